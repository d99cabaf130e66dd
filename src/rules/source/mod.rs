//! Where rules come from.

pub mod load;
pub mod watch;
pub(super) mod yaml;

pub use yaml::schema;
