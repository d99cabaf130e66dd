//! What another number would do with what clients have asked: the last requests of some keys, and replays of them by
//! the real algorithms, on the clock of those requests.
//!
//! ```text
//! worker ─▶ sample       picks keys by their hash, and takes copies of their requests
//! thread ─▶ ring         keeps the last of them, bounded in number and in bytes
//! people ◀─ trial        replays them by the rules in force and by another limit
//!        ◀─ log          the same requests as lines for `tollgate replay`
//! ```
//!
//! No answer depends on any of it, and no counter of the service is touched. Replays begin with empty counters, so that
//! what came before the first request of the ring is not known.

mod log;
mod ring;
mod trial;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::algorithm::{Algorithm, LimitErrors};
use crate::descriptor::Request;
use crate::plan::{CounterKeys, PlanOptions};
use crate::replay::Goal;
use crate::sample::{Queue, Sampling, Share, Shared};
use crate::store::memory::Clock;
use crate::values::Values;
use ring::Ring;

pub use trial::{Kept, LimitOfRule, Overview, RuleLine, Trial};

/// How often the thread takes what waits.
const TICK: Duration = Duration::from_millis(50);
/// So long after a panic it goes on.
const RETRY: Duration = Duration::from_secs(1);
/// The most that waiting requests take, in bytes.
const MOST_WAITING_BYTES: usize = 2 << 20;
/// The most that the ring takes, in bytes.
const MOST_RING_BYTES: usize = 8 << 20;

/// What is kept, and how it is replayed.
#[derive(Clone, Debug)]
pub struct WhatIfOptions {
    /// So many requests at most.
    pub requests: usize,
    /// The share of keys whose requests are kept, from 0 to 1.
    pub sample: f64,
    /// How requests are planned. Global shadow mode is left out: what counts is what the rules say.
    pub plan: PlanOptions,
    /// Among so many processes the traffic of a key is divided: each replays its part of every limit.
    pub replicas: u32,
    /// How keys show the values of descriptors.
    pub values: Values,
}

/// The last requests of some keys.
pub struct WhatIf {
    options: WhatIfOptions,
    /// By the rules in force, once there are any. Changes under the lock of the state.
    queue: Queue<1>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ring: Ring,
    /// There was no room for so many to wait.
    dropped: u64,
}

/// What somebody wants to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The domain of the rule.
    pub domain: String,
    /// What its limit is called.
    pub rule: String,
    /// Another number. `None`: the one that it has, and so with the rest.
    pub number: Option<u32>,
    /// Another algorithm. The options that it does not have are left out.
    pub algorithm: Option<Algorithm>,
    /// Another period.
    pub period_ms: Option<u64>,
    /// The least number that denies no more is searched, too.
    pub goal: Option<Goal>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// No rules are in force yet.
    #[error("no rules are in force yet")]
    NoRules,
    /// No limit is called so.
    #[error("the rules in force have no limit {0} in the domain {1}")]
    NoLimit(String, String),
    /// Nobody knows when a stream ends.
    #[error("a limit of concurrency cannot be replayed: no request says when a stream ends")]
    Concurrency,
    /// There is no such limit.
    #[error(transparent)]
    Limit(#[from] LimitErrors),
    /// Not even one key has room.
    #[error("the counters of the requests that are kept have no room: set a lower WHAT_IF_REQUESTS")]
    NoRoom,
    /// It takes longer than somebody waits.
    #[error("the replay takes longer than {} seconds: set a lower WHAT_IF_REQUESTS", trial::LONGEST.as_secs())]
    TooLong,
}

impl WhatIf {
    /// Keeps nothing, until there are rules.
    pub fn new(options: WhatIfOptions, clock: impl Clock) -> WhatIf {
        let plan = PlanOptions { shadow_mode: false, counter_keys: CounterKeys::default(), ..options.plan };
        let queue = Queue::new(clock, MOST_WAITING_BYTES);
        WhatIf { options: WhatIfOptions { plan, ..options }, queue, state: Mutex::default() }
    }

    /// Takes a copy of a request that has been decided, where its keys are in the sample.
    pub fn offer(&self, request: &Request) {
        self.queue.offer(request);
    }

    /// These rules are in force now. The ring begins anew where other keys may be in the sample by them.
    pub fn put_in_force(&self, rules: Shared) {
        let mut state = self.state.lock();
        let sampling = Arc::new(Sampling::new(Share::new(self.options.sample), [rules]));
        let begins_anew = self.queue.sampling().is_some_and(|old| {
            let says = |sampling: &Sampling<1>| (*sampling.rules()[0]).as_ref().version().to_owned();
            (old.has_shared_counters() || sampling.has_shared_counters()) && says(&old) != says(&sampling)
        });
        if begins_anew {
            drop(self.queue.take());
            state.ring = Ring::default();
        }
        self.queue.sample(sampling);
    }

    /// Puts what waits into the ring.
    pub fn keep(&self) {
        let mut state = self.state.lock();
        let waiting = self.queue.take();
        state.dropped += waiting.dropped;
        let Some(sampling) = self.queue.sampling() else { return };
        for (at_ms, mut request) in waiting.requests {
            if trial::strip(&sampling, &mut request) {
                state.ring.push((at_ms, request), (self.options.requests, MOST_RING_BYTES));
            }
        }
    }

    /// Keeps on a thread of its own, until nobody holds this any more.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn follow(self: &Arc<Self>) -> io::Result<()> {
        let what_if = Arc::downgrade(self);
        thread::Builder::new().name("what-if".to_owned()).spawn(move || follow(&what_if))?;
        Ok(())
    }
}

fn follow(what_if: &Weak<WhatIf>) {
    loop {
        thread::sleep(TICK);
        let Some(what_if) = what_if.upgrade() else { return };
        if catch_unwind(AssertUnwindSafe(|| what_if.keep())).is_err() {
            // What it was about has left the queue.
            tracing::error!(retry = ?RETRY, "a panic while requests are kept to be replayed");
            thread::sleep(RETRY);
        }
    }
}
