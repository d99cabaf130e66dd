//! A sample of what clients ask: copies of the requests of some keys, on their way to a thread that does more with them
//! than a decision may wait for.
//!
//! A key is wholly in the sample or not at all, so that its own sequence is whole. What waits is bounded in bytes; at
//! the bound copies are dropped, and counted.

mod sampling;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::descriptor::Request;
use crate::rules::Rules;
use crate::store::memory::Clock;

pub use sampling::{Picked, Sampling, Share};

/// Rules that others hold, too.
pub type Shared = Arc<dyn AsRef<Rules> + Send + Sync>;

/// Takes copies of requests whose keys are in a sample.
pub struct Queue<const N: usize> {
    clock: Box<dyn Clock>,
    most_bytes: usize,
    /// `None`: nothing is.
    sampling: ArcSwapOption<Sampling<N>>,
    waiting: Mutex<Waiting>,
}

/// Requests that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    /// When each came, in milliseconds since the Unix epoch, in that order.
    pub requests: Vec<(u64, Request)>,
    bytes: usize,
    /// There was no room for so many.
    pub dropped: u64,
}

impl<const N: usize> Queue<N> {
    /// An empty one, in which so many bytes may wait. It takes nothing until there is a sample.
    pub fn new(clock: impl Clock, most_bytes: usize) -> Queue<N> {
        Queue { clock: Box::new(clock), most_bytes, sampling: ArcSwapOption::empty(), waiting: Mutex::default() }
    }

    /// The time by its clock.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// From now on these keys are in the sample.
    pub fn sample(&self, sampling: Arc<Sampling<N>>) {
        self.sampling.store(Some(sampling));
    }

    /// The keys that are in the sample; `None` where there is none yet.
    pub fn sampling(&self) -> Option<Arc<Sampling<N>>> {
        self.sampling.load_full()
    }

    /// Takes a copy of a request that has been decided, where some of its keys are in the sample.
    pub fn offer(&self, request: &Request) {
        let sampling = self.sampling.load();
        let Some(sampling) = &*sampling else { return };
        if !(0..request.descriptors.len()).any(|descriptor| sampling.picks(request, descriptor)) {
            return;
        }
        let bytes = bytes(request);
        let is_room = |waiting: &Waiting| waiting.bytes + bytes <= self.most_bytes;
        let copy = is_room(&self.waiting.lock()).then(|| request.clone());
        let mut waiting = self.waiting.lock();
        match copy.filter(|_| is_room(&waiting)) {
            Some(copy) => {
                waiting.bytes += bytes;
                // Under the lock, so that they are in the order of time.
                let at_ms = self.clock.now();
                waiting.requests.push((at_ms, copy));
            }
            None => waiting.dropped += 1,
        }
    }

    /// What waits, and from now on does no more.
    pub fn take(&self) -> Waiting {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// About what a request takes.
pub fn bytes(request: &Request) -> usize {
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let of_entries: usize = entries.map(|entry| size_of_val(entry) + entry.key.len() + entry.value.len()).sum();
    size_of::<(u64, Request)>() + request.domain.len() + size_of_val(&*request.descriptors) + of_entries
}
