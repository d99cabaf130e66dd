//! State that the instances of a fleet share, in addition to counters.

pub mod adjustment;
pub mod claims;
mod exchange;
pub mod fleet;
pub mod seats;
pub mod usage;
