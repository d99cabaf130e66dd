//! Trials: two sets of rules that decide the same requests on one clock.

use std::sync::Arc;

use super::CandidateOptions;
use super::tally::{Compared, Tally};
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::engine::clock::GivenClock;
use crate::engine::decision::Decision;
use crate::engine::descriptor::Request;
use crate::engine::plan::{MAX_WORK, Names, Plan, PlanOptions};
use crate::engine::rules::diff::Summary;
use crate::metrics::CandidateMetrics;
use crate::observe::sample::Sampling;
use crate::store::memory::MemoryStore;

/// Counters may use this many eighths of their memory. With less room to spare, a request could find memory for one set
/// of rules and not for the other.
const MOST_EIGHTHS: usize = 7;

/// A comparison and its results.
pub(super) struct Trial {
    pub(super) sampling: Arc<Sampling<2>>,
    pub(super) summary: Summary,
    pub(super) begin_ms: u64,
    pub(super) tally: Tally,
    plan: PlanOptions,
    replicas: u32,
    /// The most memory of the counters of each set of rules, in bytes.
    most_bytes: usize,
    counters: Counters,
}

/// The counters of both sets.
struct Counters {
    clock: GivenClock,
    in_force: MemoryStore<GivenClock>,
    candidates: MemoryStore<GivenClock>,
}

/// Whether there is memory for more counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    UsedUp,
}

impl Counters {
    fn new(most_bytes: usize) -> Counters {
        let clock = GivenClock::default();
        let store = || MemoryStore::new(clock.clone(), most_bytes);
        Counters { in_force: store(), candidates: store(), clock }
    }
}

impl Trial {
    pub(super) fn new(
        sampling: Arc<Sampling<2>>,
        options: &CandidateOptions,
        summary: Summary,
        begin_ms: u64,
    ) -> Trial {
        let most_bytes = options.most_bytes / 2;
        Trial {
            sampling,
            summary,
            begin_ms,
            tally: Tally::new(options.values.clone()),
            plan: options.plan.clone(),
            replicas: options.replicas,
            most_bytes,
            counters: Counters::new(most_bytes),
        }
    }

    /// Continues with half of the sample. The counters of both sets of rules are emptied, to keep them comparable.
    pub(super) fn halve(&mut self) {
        self.sampling = Arc::new(self.sampling.half());
        self.counters = Counters::new(self.most_bytes);
    }

    /// Decides a request by both sets if one of its keys is sampled. All of its descriptors take part in that, because
    /// one may replace the limits of another or deny the request. Of the verdicts, only those of sampled keys are
    /// counted. A request is not compared if there is no memory for it.
    pub(super) fn compare(&mut self, at_ms: u64, request: &Request, metrics: &CandidateMetrics) -> Room {
        let picked = self.sampling.picked(request);
        if !picked.contains(&true) {
            return Room::Enough;
        }
        let Counters { clock, in_force, candidates } = &self.counters;
        let bytes = in_force.bytes().max(candidates.bytes());
        if bytes >= self.most_bytes / 8 * MOST_EIGHTHS {
            return Room::UsedUp;
        }
        clock.set(at_ms);
        let sampling = Arc::clone(&self.sampling);
        let [old, new] = sampling
            .rules()
            .each_ref()
            .map(|rules| Plan::new(&self.plan, (**rules).as_ref(), request, Names::default()));
        // The service rejects such requests as invalid.
        if old.work().max(new.work()) > MAX_WORK {
            return Room::Enough;
        }
        let decided = (decide(old, in_force, self.replicas), decide(new, candidates, self.replicas));
        let (Ok(old), Ok(new)) = decided else { return Room::UsedUp };
        self.tally.add(&Compared { at_ms, request, picked: &picked, old: &old, new: &new }, metrics);
        Room::Enough
    }
}

/// Decides a plan by this instance's share of each limit.
fn decide<'a>(plan: Plan<'a>, store: &MemoryStore<GivenClock>, replicas: u32) -> Result<Decision<'a>, StoreError> {
    let verdicts = match plan.asked() {
        [] => Verdicts::new(),
        asked if replicas <= 1 => store.decide(asked)?,
        asked => {
            let part = |check: &Check| Check { limit: check.limit.divided_by(replicas), ..check.clone() };
            store.decide(&asked.iter().map(|asked| part(&asked.check)).collect::<Vec<_>>())?
        }
    };
    Ok(plan.conclude(&verdicts))
}
