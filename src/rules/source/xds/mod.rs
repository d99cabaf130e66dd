//! Rules from a management server, by Envoy's discovery protocol: all resources of a type on one stream, sent again
//! whenever one of them changes ("state of the world").
//!
//! Each response is a whole snapshot. It is answered once its rules are in force (ACK), or with what is wrong with them
//! (NACK); then the last good rules stay. So they do while the server is gone.
//!
//! What a server does after a restart is another matter than what it says:
//! - It may begin with a part of what it knows, or with nothing, until it has looked around. So what a new stream has
//!   not named yet is not taken for deleted at once: it stays for a while ([`Options::removal_delay`]).
//! - It may count its versions from one again. So a new stream begins without a version: with the last one a server
//!   that has come to the same number would keep back what has changed.
//!
//! [`follow`] does the work and tells of it by [`Event`]s; who receives them puts rules in force.

mod backoff;
mod connect;
mod follow;
mod options;
mod resource;
mod stream;

pub use backoff::Backoff;
pub use connect::PING_INTERVAL;
pub use follow::{Event, Offer, Response, follow};
pub use options::{Headers, HostPort, Metadata, Options, PairsError};
pub use stream::StreamError;
