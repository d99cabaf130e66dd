//! Samples of requests: copies of the requests for some keys, queued for a thread that processes them without delaying
//! decisions.
//!
//! A key is sampled completely or not at all, so the sequence of its requests is complete. The queue is bounded in
//! bytes. When it is full, copies are dropped and counted.

mod sampling;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::engine::adjustment::InForce;
use crate::engine::clock::Clock;
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;

pub use sampling::{Outside, Sampling, Share};

/// Interval at which a thread takes queued requests.
const TICK: Duration = Duration::from_millis(50);
/// Pause of that thread after a panic.
pub const RETRY: Duration = Duration::from_secs(1);

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

/// A copy of a request.
#[derive(Debug)]
pub struct Copied {
    /// When it came, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The whole request.
    pub request: Request,
    /// The adjustments that it was decided with, if any.
    pub adjustments: Option<Arc<InForce>>,
}

/// Requests in the queue.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Requests in order of time.
    pub requests: Vec<Copied>,
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

    /// Accepts nothing until sampled keys are set again.
    pub fn rest(&self) {
        self.sampling.store(None);
    }

    /// Returns the sampled keys; `None` if they are not set yet, or while the queue rests.
    pub fn sampling(&self) -> Option<Arc<Sampling<N>>> {
        self.sampling.load_full()
    }

    /// Queues a copy of a decided request if some of its keys are sampled.
    pub fn offer(&self, request: &Request, adjustments: Option<&Arc<InForce>>) {
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
            Some(request) => {
                waiting.bytes += bytes;
                // Under the lock, so requests are queued in order of time.
                let at_ms = self.clock.now();
                waiting.requests.push(Copied { at_ms, request, adjustments: adjustments.cloned() });
            }
            None => waiting.dropped += 1,
        }
    }

    /// Takes the queued requests, leaving the queue empty.
    pub fn take(&self) -> Waiting {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Starts a thread of this name that calls `turn` every [`TICK`] until `shared` is dropped. After a panic it calls
/// `panicked`, and continues with the next requests: those that caused the panic have left the queue.
///
/// # Errors
/// Fails if the system cannot create a thread.
pub fn follow<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    name: &str,
    panicked: fn(),
    mut turn: impl FnMut(&T) + Send + 'static,
) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    let follow = move || {
        loop {
            thread::sleep(TICK);
            let Some(shared) = weak.upgrade() else { return };
            if catch_unwind(AssertUnwindSafe(|| turn(&shared))).is_err() {
                panicked();
                thread::sleep(RETRY);
            }
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(follow)?;
    Ok(())
}

/// Returns the approximate memory of a request, in bytes.
pub fn bytes(request: &Request) -> usize {
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let of_entries: usize = entries.map(|entry| size_of_val(entry) + entry.key.len() + entry.value.len()).sum();
    size_of::<Copied>() + request.domain.len() + size_of_val(&*request.descriptors) + of_entries
}
