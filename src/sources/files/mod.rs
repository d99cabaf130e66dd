//! Rules from files: finds and reads them, and notices changes. The tokens of administrators come from a file, too.

pub mod excerpt;
pub mod load;
pub mod promote;
mod token;
pub mod tokens;
pub mod watch;
mod yaml;

pub use yaml::schema;
