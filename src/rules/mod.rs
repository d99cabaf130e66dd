//! The rules: from what files say to a compiled snapshot that never changes.

mod compiled;
pub mod report;
mod source;
mod validate;

pub use compiled::*;
pub use source::{load, watch};
