//! Data that only the console shows: the last fifteen minutes, second by second; a list of the rules with their counts;
//! and the entries that may come next in a descriptor. While no console is open, this costs one reading of the metrics
//! per second.

mod completion;
mod history;
mod listing;
mod redis;

pub use completion::{Completion, NextEntry};
pub use history::{History, Second, StoreNow};
pub use listing::{LimitLine, Listing, Wanted};
pub use redis::{RedisHistory, RedisPast, RedisStep};
