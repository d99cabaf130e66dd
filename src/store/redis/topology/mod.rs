//! The topology of a Redis: its nodes, and how to reach each of them.
//!
//! The differences between kinds of Redis end here: whoever needs a connection asks a [`Dialer`], which knows the
//! current place of its node.

mod access;
pub mod address;
pub mod config;
mod diagnosis;
mod dial;
mod layout;
mod named_master;
pub mod route;
mod sentinel;
pub(crate) mod survey;

use std::sync::Arc;

use self::address::Place;
pub(crate) use access::Access;
use dial::Target;
pub(crate) use dial::{DialError, Dialed, Dialer};
pub(crate) use layout::{Layout, Master};
pub(crate) use route::{Reach, Route};
pub(crate) use survey::survey;

/// Returns a dialer for the node at this place: a node of a cluster, or a replica.
pub(crate) fn node_dialer(place: Place, access: &Arc<Access>) -> Dialer {
    Dialer::new(Target::Fixed(place), Arc::clone(access))
}
