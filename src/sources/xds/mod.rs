//! Rules from a management server, by Envoy's discovery protocol: one stream with all resources of a type, sent again
//! whenever one of them changes ("state of the world").
//!
//! Each response is a complete snapshot. It is answered once its rules are in force (ACK), or with the errors in them
//! (NACK); then the last good rules stay in force. They also stay while the server is unreachable.
//!
//! After a restart, a server may behave differently:
//! - It may first send only some of its resources, or none, until it has found them all. So resources that a new stream
//!   has not named yet do not count as deleted at once, but stay for a while ([`Options::removal_delay`]).
//! - It may number its versions from one again. So a new stream begins without a version: if it named the last one, a
//!   server that has reached the same number could withhold changes.
//!
//! [`follow`] does the work and reports it as [`Event`]s; their receiver puts rules in force.

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
