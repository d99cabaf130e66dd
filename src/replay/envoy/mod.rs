//! Envoy's own configuration: which requests it asks about, in which domain and with which descriptors, and in which
//! format it logs them.
//!
//! ```text
//! config      finds the connection manager with the rate limit filter, its routes and its access log
//! routing     chooses the route of a line, and with it what Envoy asks
//! ```

mod config;
mod routing;

pub use config::{EnvoyConfig, EnvoyError};
pub(super) use routing::Routing;
