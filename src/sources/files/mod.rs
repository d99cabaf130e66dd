//! Rules from files: finds and reads them, and notices changes.

pub mod load;
pub mod watch;
mod yaml;

pub use yaml::schema;
