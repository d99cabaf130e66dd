//! Samples of requests: copies of the requests for some keys, queued for a thread that processes them without delaying
//! decisions.
//!
//! A key is sampled completely or not at all, so the sequence of its requests is complete. The queue is bounded in
//! bytes. When it is full, copies are dropped and counted.

mod sampling;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::engine::clock::Clock;
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;

pub use sampling::{Picked, Sampling, Share};

/// Shared rules.
pub type Shared = Arc<dyn AsRef<Rules> + Send + Sync>;

/// A queue of copies of requests with sampled keys.
pub struct Queue<const N: usize> {
    clock: Box<dyn Clock>,
    most_bytes: usize,
    /// The sampled keys; `None` for no keys.
    sampling: ArcSwapOption<Sampling<N>>,
    waiting: Mutex<Waiting>,
}

/// Requests in the queue.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Requests with their times in milliseconds since the Unix epoch, in order of time.
    pub requests: Vec<(u64, Request)>,
    bytes: usize,
    /// Number of requests dropped because the queue was full.
    pub dropped: u64,
}

impl<const N: usize> Queue<N> {
    /// Creates an empty queue for at most `most_bytes`. It accepts nothing until sampled keys are set.
    pub fn new(clock: impl Clock, most_bytes: usize) -> Queue<N> {
        Queue { clock: Box::new(clock), most_bytes, sampling: ArcSwapOption::empty(), waiting: Mutex::default() }
    }

    /// Returns the time of its clock.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Sets the sampled keys.
    pub fn sample(&self, sampling: Arc<Sampling<N>>) {
        self.sampling.store(Some(sampling));
    }

    /// Returns the sampled keys; `None` if they are not set yet.
    pub fn sampling(&self) -> Option<Arc<Sampling<N>>> {
        self.sampling.load_full()
    }

    /// Queues a copy of a decided request if some of its keys are sampled.
    pub fn offer(&self, request: &Request) {
        let sampling = self.sampling.load();
        let Some(sampling) = &*sampling else { return };
        if !sampling.picks_any(request) {
            return;
        }
        let bytes = bytes(request);
        let has_room = |waiting: &Waiting| waiting.bytes + bytes <= self.most_bytes;
        // A statement of its own, so that the lock is released before the copy is made: other workers need not wait
        // for the allocator.
        let had_room = has_room(&self.waiting.lock());
        let copy = had_room.then(|| request.clone());
        let mut waiting = self.waiting.lock();
        match copy.filter(|_| has_room(&waiting)) {
            Some(copy) => {
                waiting.bytes += bytes;
                // Under the lock, so requests are queued in order of time.
                let at_ms = self.clock.now();
                waiting.requests.push((at_ms, copy));
            }
            None => waiting.dropped += 1,
        }
    }

    /// Takes the queued requests, leaving the queue empty.
    pub fn take(&self) -> Waiting {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Returns the approximate memory of a request, in bytes.
pub fn bytes(request: &Request) -> usize {
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let of_entries: usize = entries.map(|entry| size_of_val(entry) + entry.key.len() + entry.value.len()).sum();
    size_of::<(u64, Request)>() + request.domain.len() + size_of_val(&*request.descriptors) + of_entries
}
