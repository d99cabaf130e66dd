//! Trials: two sets of rules that decide the same requests on one clock.

use std::sync::Arc;

use super::CandidateOptions;
use crate::engine::plan::PlanOptions;
use crate::engine::rules::diff::Summary;
use crate::evaluate::{Arrival, Comparison, Evaluator, RuleSet};
use crate::metrics::CandidateMetrics;
use crate::observe::sample::{Copied, Sampling};

/// Counters may use this many eighths of their memory. With less room to spare, a request could find memory for one set
/// of rules and not for the other.
const MOST_EIGHTHS: usize = 7;

/// A comparison and its results.
pub(super) struct Trial {
    pub(super) sampling: Arc<Sampling<2>>,
    pub(super) summary: Summary,
    pub(super) begin_ms: u64,
    pub(super) comparison: Comparison,
    plan: PlanOptions,
    replicas: u32,
    /// The most memory of the counters of each set of rules, in bytes.
    most_bytes: usize,
    /// The rules in force and the candidates.
    evaluators: [Evaluator; 2],
}

/// Whether there is memory for more counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    UsedUp,
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
            comparison: Comparison::new(options.values.clone()),
            plan: options.plan.clone(),
            replicas: options.replicas,
            most_bytes,
            evaluators: [most_bytes; 2].map(Evaluator::new),
        }
    }

    /// Continues with half of the sample. The counters of both sets of rules are emptied, to keep them comparable.
    pub(super) fn halve(&mut self) {
        self.sampling = Arc::new(self.sampling.half());
        self.evaluators = [self.most_bytes; 2].map(Evaluator::new);
    }

    /// Decides a request by both sets if one of its keys is sampled, both with the adjustments that the service decided
    /// it with. All of its descriptors take part in that, because one may replace the limits of another or deny the
    /// request. Of the verdicts, only those of sampled keys are counted. A request is not compared if there is no
    /// memory for it, or if the service would reject it as invalid by one of the sets.
    pub(super) fn compare(&mut self, copied: &Copied, metrics: &CandidateMetrics) -> Room {
        let Copied { at_ms, request, adjustments } = copied;
        let Some(outside) = self.sampling.outside(request) else { return Room::Enough };
        if self.evaluators.iter().any(|evaluator| evaluator.bytes() >= self.most_bytes / 8 * MOST_EIGHTHS) {
            return Room::UsedUp;
        }
        let arrival = Arrival { at_ms: *at_ms, request, outside: &outside, lasts_ms: None };
        let [in_force, candidates] = self.sampling.rules().each_ref().map(|rules| RuleSet {
            adjustments: adjustments.as_deref(),
            replicas: self.replicas,
            has_releases: true,
            ..RuleSet::new((**rules).as_ref(), &self.plan)
        });
        let [of_rules, of_candidates] = &self.evaluators;
        match (of_rules.decide(&in_force, arrival), of_candidates.decide(&candidates, arrival)) {
            (Ok(Some(old)), Ok(Some(new))) => {
                self.comparison.add(arrival, (&old, &new), |rule, difference| metrics.record(rule, difference));
                Room::Enough
            }
            (Ok(_), Ok(_)) => Room::Enough,
            _ => Room::UsedUp,
        }
    }
}
