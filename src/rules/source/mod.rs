//! Where rules come from.

pub mod load;
pub mod watch;
pub mod xds;
pub(super) mod yaml;

pub use yaml::schema;
