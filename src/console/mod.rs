//! What the console shows beside what there is without it: the last fifteen minutes, second by second, and a list of
//! the rules with what has been counted of each. Closed, it costs a reading of the metrics a second.

mod history;
mod listing;
mod redis;

pub use history::{History, Second, StoreNow};
pub use listing::{LimitLine, Listing, Wanted};
pub use redis::{RedisHistory, RedisPast, RedisStep};
