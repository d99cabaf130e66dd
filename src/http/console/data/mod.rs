//! Data that only the console shows: a list of the rules with their counts, Redis over the last fifteen
//! minutes, and the entries that may come next in a descriptor.

mod completion;
mod listing;
mod redis;

pub use completion::{Completion, NextEntry};
pub use listing::{Filter, LimitLine, Listing, MOST, Sort, Wanted};
pub use redis::{RedisHistory, RedisPast, RedisStep};
