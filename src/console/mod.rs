//! What the console shows beside what there is without it: the last fifteen minutes, second by second, a list of the
//! rules with what has been counted of each, and what may stand next in a descriptor. Closed, it costs a reading of the
//! metrics a second.

mod completion;
mod history;
mod listing;
mod redis;

pub use completion::{Completion, NextEntry};
pub use history::{History, Second, StoreNow};
pub use listing::{LimitLine, Listing, Wanted};
pub use redis::{RedisHistory, RedisPast, RedisStep};
