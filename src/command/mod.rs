//! What the command line does: one file a command.

pub mod ask;
mod client;
pub mod health;
