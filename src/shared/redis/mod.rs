//! State that instances share, kept in Redis.

pub mod adjustments;
mod exchange;
pub mod heartbeats;
pub mod usage;
