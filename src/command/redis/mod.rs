//! Commands that work on Redis, without the service.

pub(crate) mod adjustment;
pub(crate) mod audit;
pub(crate) mod budget;
pub(crate) mod check;
pub(crate) mod counter;
pub(crate) mod fleet;
mod place;
pub(crate) mod usage;
