//! What-if replays: the effect of another limit on the latest requests. Requests of some keys are kept and replayed
//! with the real algorithms, on the clock of those requests.
//!
//! ```text
//! worker ─▶ sample       selects keys by their hash, and copies their requests
//! thread ─▶ recorder     keeps the latest requests, bounded in number and in bytes; takes fewer keys if they are many
//! people ◀─ trial        replays them by the rules in force and by another limit
//!        ◀─ compare      replays them by the rules in force and by proposed ones
//!        ◀─ preview      replays them with and without an adjustment
//!        ◀─ log          writes them as lines for `tollgate replay`
//! ```
//!
//! The requests of several instances are replayed as one stream, see `others`.
//!
//! No answer depends on a replay, and it does not touch the service's counters. Replays start with empty counters, so
//! usage before the first request of the ring is unknown.

mod compare;
mod log;
mod others;
mod preview;
mod recorder;
mod ring;
mod trial;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::algorithm::{Algorithm, LimitErrors};
use crate::engine::clock::Clock;
use crate::engine::descriptor::Request;
use crate::engine::plan::{CounterKeys, PlanOptions};
use crate::engine::rules::Rules;
use crate::evaluate::Goal;
use crate::observe::redaction::Values;
use crate::observe::sample::{self, Queue, RETRY};
use crate::observe::watch::{Observed, Observer, Watch};
use recorder::State;

pub use compare::Compared;
pub use others::{Others, Recorded};
pub use preview::{Adjusted, Preview, Previewable};
pub use trial::{Kept, LimitOfRule, Overview, RuleLine, Trial};

/// The most memory of queued requests, in bytes.
const MOST_WAITING_BYTES: usize = 2 << 20;
/// Options for keeping and replaying requests.
#[derive(Clone, Debug)]
pub struct WhatIfOptions {
    /// The most requests to keep.
    pub requests: usize,
    /// The largest share of keys with requests to keep, from 0 to 1.
    pub sample: f64,
    /// The time that the requests cover at least, if a smaller share of keys makes it possible. Zero keeps the share.
    pub covers: Duration,
    /// Options for planning requests. Global shadow mode is ignored, so that only the rules decide.
    pub plan: PlanOptions,
    /// Number of instances that share the traffic of a key. Each replays its share of every limit.
    pub replicas: u32,
    /// How keys show the values of descriptors.
    pub values: Values,
    /// ID of this instance, in the lines of the log.
    pub instance: String,
    /// Time limit of a replay, usually [`LONGEST`].
    pub longest: Duration,
}

/// Time limit of a replay.
pub const LONGEST: Duration = Duration::from_secs(10);

/// The latest requests of some keys.
pub struct WhatIf {
    options: WhatIfOptions,
    /// Global shadow mode: no adjustment denies anything.
    shadow_mode: bool,
    /// Requests of the keys in the state, unless the recorder rests. Changes under the lock of the state.
    queue: Queue<1>,
    state: Mutex<State>,
}

/// A question: the effect of another limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the limit.
    pub rule: String,
    /// Another number; `None` for the present one. The same applies to the other fields.
    pub number: Option<u64>,
    /// Another algorithm. Options that it does not have are dropped.
    pub algorithm: Option<Algorithm>,
    /// Another period.
    pub period_ms: Option<u64>,
    /// Also search for the smallest number that denies no more than this.
    pub goal: Option<Goal>,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// No rules are in force yet.
    #[error("no rules are in force yet")]
    NoRules,
    /// No limit has this label.
    #[error("the rules in force have no limit {0} in the domain {1}")]
    NoLimit(String, String),
    /// A concurrency limit: requests do not show when a stream ends.
    #[error("a limit of concurrency cannot be replayed: no request says when a stream ends")]
    Concurrency,
    /// The limit is invalid.
    #[error(transparent)]
    Limit(#[from] LimitErrors),
    /// There is no memory for the counters of even a single key.
    #[error("the counters of the requests that are kept have no room: set a lower WHAT_IF_REQUESTS")]
    NoRoom,
    /// The replay exceeded its time limit.
    #[error("the replay takes longer than {} seconds: set a lower WHAT_IF_REQUESTS", LONGEST.as_secs())]
    TooLong,
}

impl WhatIf {
    /// Creates an empty ring. It keeps nothing until rules are set.
    pub fn new(options: WhatIfOptions, clock: impl Clock) -> WhatIf {
        let shadow_mode = options.plan.shadow_mode;
        let plan = PlanOptions { shadow_mode: false, counter_keys: CounterKeys::default(), ..options.plan };
        let queue = Queue::new(clock, MOST_WAITING_BYTES);
        WhatIf { options: WhatIfOptions { plan, ..options }, shadow_mode, queue, state: Mutex::default() }
    }

    /// Queues a copy of a decided request if its keys are sampled.
    pub fn offer(&self, request: &Request) {
        self.queue.offer(request, None);
    }

    /// Starts a thread that keeps requests until this object is dropped.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn follow(self: &Arc<Self>) -> io::Result<()> {
        let panicked = || tracing::error!(retry = ?RETRY, "a panic while recording requests for what-if");
        sample::follow(self, "what-if", panicked, WhatIf::keep)
    }
}

impl Observer for WhatIf {
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch> {
        self.put_in_force(Arc::clone(rules) as _);
        self
    }
}

impl Watch for WhatIf {
    fn decided(&self, observed: &Observed<'_, '_>) {
        self.offer(observed.request);
    }
}
