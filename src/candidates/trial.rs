//! Two sets of rules that decide the same requests, on one clock.

use std::sync::Arc;

use super::CandidateOptions;
use super::tally::{Compared, Tally};
use crate::changes::Summary;
use crate::decision::Decision;
use crate::descriptor::Request;
use crate::metrics::CandidateMetrics;
use crate::plan::{MAX_WORK, Names, Plan, PlanOptions};
use crate::rules::Rules;
use crate::sample::{Picked, Sampling};
use crate::store::memory::{GivenClock, MemoryStore};
use crate::store::{Check, StoreError, Verdicts};

/// Counters take no more than so many eighths of their room: beyond, a request may find none for one set of rules and
/// some for the other.
const MOST_EIGHTHS: usize = 7;

/// What is compared, and what has come of it.
pub(super) struct Trial {
    pub(super) sampling: Arc<Sampling<2>>,
    pub(super) summary: Summary,
    pub(super) begin_ms: u64,
    pub(super) tally: Tally,
    plan: PlanOptions,
    replicas: u32,
    /// The most that counters take, in bytes, by each set of rules.
    most_bytes: usize,
    counters: Counters,
}

/// Those of both.
struct Counters {
    clock: GivenClock,
    in_force: MemoryStore<GivenClock>,
    candidates: MemoryStore<GivenClock>,
}

/// Whether there is some for more counters.
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

    /// Goes on with half of the sample and without counters: both sets of rules forget the same.
    pub(super) fn halve(&mut self) {
        self.sampling = Arc::new(self.sampling.half());
        self.counters = Counters::new(self.most_bytes);
    }

    /// Decides a request by both, as far as it is in the sample. Where there is no room, it is not compared.
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
        let [old, new] =
            sampling.rules().each_ref().map(|rules| plan(&self.plan, (**rules).as_ref(), request, &picked));
        // The service calls such a request invalid.
        if old.work().max(new.work()) > MAX_WORK {
            return Room::Enough;
        }
        let decided = (decide(old, in_force, self.replicas), decide(new, candidates, self.replicas));
        let (Ok(old), Ok(new)) = decided else { return Room::UsedUp };
        self.tally.add(&Compared { at_ms, request, picked: &picked, old: &old, new: &new }, metrics);
        Room::Enough
    }
}

fn plan<'a>(options: &'a PlanOptions, rules: &'a Rules, request: &'a Request, picked: &Picked) -> Plan<'a> {
    Plan::new(options, rules, request, Names::default()).only(|descriptor| picked[descriptor])
}

/// By this replica's part of each limit.
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
