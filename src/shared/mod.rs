//! State that the instances of a fleet share, in addition to counters.

pub mod adjusting;
pub mod adjustments;
pub mod fleet;
pub mod redis;
pub mod usage;
