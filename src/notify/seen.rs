//! The marks that this instance knows to be told, or is about to tell. They keep a counter beyond a mark from asking
//! Redis with each of its requests; in memory, they are all the claims that there are.

use std::hash::Hasher as _;

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::time::Instant;

use crate::engine::check::Key;
use crate::engine::rules::options::enforce::Share;

/// Number of marks that are kept, of some 64 bytes. Marks beyond it are claimed again, in memory told again.
const MOST: usize = 65_536;

/// The marks of counters that were claimed, with the ends of the claims.
pub(super) struct Seen {
    ends: Cache<u128, Instant>,
    /// One claim is made at a time.
    claiming: Mutex<()>,
    /// Keys of the hash, which clients must not know: they choose the names of counters.
    keys: (u64, u64),
}

/// A mark of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u128);

impl Seen {
    pub(super) fn new() -> Seen {
        let keys = (fastrand::u64(..), fastrand::u64(..));
        Seen { ends: Cache::new(MOST), claiming: Mutex::new(()), keys }
    }

    /// Returns the mark of a counter.
    pub(super) fn mark(&self, counter: &Key, share: Share) -> Mark {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u16(share.hundredths());
        hasher.write(counter.as_str().as_bytes());
        Mark(hasher.finish128().as_u128())
    }

    /// Claims a mark until `end`. Returns false if the claim of another request has not ended.
    pub(super) fn claim(&self, mark: Mark, now: Instant, end: Instant) -> bool {
        if self.is_claimed(mark, now) {
            return false;
        }
        let _one = self.claiming.lock();
        if self.is_claimed(mark, now) {
            return false;
        }
        self.ends.insert(mark.0, end);
        true
    }

    /// Sets the end of a claim.
    pub(super) fn keep(&self, mark: Mark, end: Instant) {
        self.ends.insert(mark.0, end);
    }

    fn is_claimed(&self, mark: Mark, now: Instant) -> bool {
        self.ends.get(&mark.0).is_some_and(|end| now < end)
    }
}
