//! The last fifteen minutes of all instances, in steps of five seconds.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::limits::{LimitsPart, LimitsQuestion};
use super::{Ask, Local, Parts, sent_as};
use crate::metrics::Spread;
use crate::observe::history::{STEP_MS, STEPS, Step};

/// Number of limits that each instance names with their denials.
const NAMED: usize = 16;

/// How often the number of named limits is halved before steps are left out.
const HALVINGS: u32 = 5;

/// Number of limits that are shown with their denials; the others are summed up.
const SHOWN: usize = 5;

/// Number of steps that the current values cover.
const RECENT: usize = 3;

/// A question for the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverviewQuestion {
    /// The earliest step, in milliseconds since the epoch.
    pub since_ms: u64,
    /// How often the answer was shortened.
    pub shortened: u32,
    /// Limits to count.
    pub limits: LimitsQuestion,
}

/// The steps of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverviewPart {
    /// The steps that are over, the oldest first.
    pub steps: Vec<Step>,
    /// The denials of the limits that denied the most.
    pub denied_by: Vec<Part>,
    /// The counts of limits.
    pub limits: LimitsPart,
}

/// The denials of a limit at one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the limit.
    pub rule: String,
    /// Starts of steps with the number of requests denied in them.
    pub denied: Vec<(u64, u32)>,
}

/// The last minutes of all instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overview {
    /// Length of a step.
    pub step_ms: u64,
    /// Steps, the oldest first. One without any data is left out.
    pub steps: Vec<OverviewStep>,
    /// Denials of the limits that denied the most, and last those of all others.
    pub denied_by: Vec<DeniedBy>,
    /// Current values.
    pub now: Now,
}

/// Events of five seconds at all instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OverviewStep {
    /// Start, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Limits that were answered without the store.
    pub undecided: u64,
    /// Calls that failed or were rejected.
    pub failed: u64,
    /// Median and 99th percentile of the duration of calls, in microseconds.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// The same for the store.
    pub store_p50_us: Option<u64>,
    /// See `store_p50_us`.
    pub store_p99_us: Option<u64>,
    /// Number of instances with data.
    pub instances: usize,
}

/// The denials of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeniedBy {
    /// Domain of the rule; `None` for all other limits together.
    pub domain: Option<String>,
    /// Label of the limit; `None` for all other limits together.
    pub rule: Option<String>,
    /// Requests denied in each step.
    pub denied: Vec<u64>,
}

/// Values of the last fifteen seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Now {
    /// Decisions a second.
    pub decisions_per_s: f64,
    /// The share of them that was denied; `None` if there were none.
    pub denied_share: Option<f64>,
    /// Limits answered without the store, a second.
    pub undecided_per_s: f64,
    /// Failed calls a second.
    pub failed_per_s: f64,
    /// Median and 99th percentile of the duration of calls, in microseconds.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// The same for the store.
    pub store_p50_us: Option<u64>,
    /// See `store_p50_us`.
    pub store_p99_us: Option<u64>,
}

impl Ask for OverviewQuestion {
    type Part = OverviewPart;

    fn answer(&self, local: &Local) -> Option<OverviewPart> {
        let history = local.history.as_ref()?;
        let denied_by = history
            .busiest_rules(NAMED >> self.shortened.min(usize::BITS - 1))
            .into_iter()
            .filter(|of| !of.denied.is_empty());
        let denied_by = denied_by.map(|of| Part { domain: of.domain, rule: of.rule, denied: of.denied });
        let mut steps = history.steps(self.since_ms);
        // The latest minutes matter most.
        let most = STEPS >> self.shortened.saturating_sub(HALVINGS).min(usize::BITS - 1);
        steps.drain(..steps.len().saturating_sub(most));
        let limits = self.limits.answer(local)?;
        Some(OverviewPart { steps, denied_by: denied_by.collect(), limits })
    }

    fn shorter(&self) -> Option<OverviewQuestion> {
        let shortened = self.shortened + 1;
        let limits = self.limits.shorter().unwrap_or_default();
        (shortened < 2 * HALVINGS).then_some(OverviewQuestion { shortened, limits, ..*self })
    }

    sent_as!(Overview);
}

/// Events of five seconds, not yet in words for people.
#[derive(Default)]
struct Sum {
    step: Step,
    instances: usize,
}

fn quantile(spread: &Spread, quantile: f64) -> Option<u64> {
    spread.quantile(quantile).map(|time| time.as_micros() as u64)
}

impl Sum {
    fn add(&mut self, step: &Step) {
        self.step.allowed += step.allowed;
        self.step.denied += step.denied;
        self.step.undecided += step.undecided;
        self.step.failed += step.failed;
        self.step.calls.add(&step.calls);
        self.step.store.add(&step.store);
    }

    fn shown(&self, at_ms: u64) -> OverviewStep {
        let Step { allowed, denied, undecided, failed, calls, store, .. } = &self.step;
        OverviewStep {
            at_ms,
            allowed: *allowed,
            denied: *denied,
            undecided: *undecided,
            failed: *failed,
            p50_us: quantile(calls, 0.5),
            p99_us: quantile(calls, 0.99),
            store_p50_us: quantile(store, 0.5),
            store_p99_us: quantile(store, 0.99),
            instances: self.instances,
        }
    }

    fn now(&self, seconds: f64) -> Now {
        let Step { allowed, denied, undecided, failed, calls, store, .. } = &self.step;
        let decisions = (allowed + denied) as f64;
        Now {
            decisions_per_s: decisions / seconds,
            denied_share: (decisions > 0.0).then(|| *denied as f64 / decisions),
            undecided_per_s: *undecided as f64 / seconds,
            failed_per_s: *failed as f64 / seconds,
            p50_us: quantile(calls, 0.5),
            p99_us: quantile(calls, 0.99),
            store_p50_us: quantile(store, 0.5),
            store_p99_us: quantile(store, 0.99),
        }
    }
}

/// Adds up the steps of all instances. A clock of one that is ahead does not push out the steps of the others: the
/// fifteen minutes end with the latest step that at least half of the instances have.
pub fn merge(parts: &Parts<OverviewPart>) -> Overview {
    let mut sums: BTreeMap<u64, Sum> = BTreeMap::new();
    for step in parts.parts.iter().flat_map(|(_, part)| &part.steps) {
        let sum = sums.entry(step.at_ms).or_default();
        sum.add(step);
        sum.instances += 1;
    }
    let half = parts.parts.iter().filter(|(_, part)| !part.steps.is_empty()).count().div_ceil(2);
    let latest = sums.iter().rev().find(|(_, sum)| sum.instances >= half).map(|(at_ms, _)| *at_ms);
    let Some(latest) = latest else { return Overview { step_ms: STEP_MS, ..Overview::default() } };
    sums.retain(|at_ms, _| *at_ms <= latest && *at_ms + STEPS as u64 * STEP_MS > latest);

    let recent_ms = latest.saturating_sub((RECENT as u64 - 1) * STEP_MS);
    let seconds = (RECENT as u64 * STEP_MS) as f64 / 1_000.0;
    let mut recent = Sum::default();
    sums.range(recent_ms..).for_each(|(_, sum)| recent.add(&sum.step));
    Overview {
        step_ms: STEP_MS,
        now: recent.now(seconds),
        denied_by: denied_by(parts, &sums),
        steps: sums.iter().map(|(at_ms, sum)| sum.shown(*at_ms)).collect(),
    }
}

/// Returns the denials of the limits that denied the most, and of all others together, in each step.
fn denied_by(parts: &Parts<OverviewPart>, sums: &BTreeMap<u64, Sum>) -> Vec<DeniedBy> {
    let mut limits: HashMap<(&str, &str), BTreeMap<u64, u64>> = HashMap::new();
    for part in parts.parts.iter().flat_map(|(_, part)| &part.denied_by) {
        let limit = limits.entry((&part.domain, &part.rule)).or_default();
        for (at_ms, denied) in part.denied.iter().filter(|(at_ms, _)| sums.contains_key(at_ms)) {
            *limit.entry(*at_ms).or_default() += u64::from(*denied);
        }
    }
    let mut limits: Vec<_> =
        limits.into_iter().map(|(name, steps)| (steps.values().sum::<u64>(), name, steps)).collect();
    limits.retain(|(all, ..)| *all > 0);
    limits.sort_unstable_by(|(one, one_name, _), (other, other_name, _)| other.cmp(one).then(one_name.cmp(other_name)));
    limits.truncate(SHOWN);
    let mut rest: Vec<u64> = sums.values().map(|sum| sum.step.denied).collect();
    let mut shown: Vec<DeniedBy> = Vec::new();
    for (_, (domain, rule), steps) in limits {
        let denied: Vec<u64> = sums.keys().map(|at_ms| steps.get(at_ms).copied().unwrap_or_default()).collect();
        // A request that several limits deny is in each of them, and in the rest not at all.
        rest.iter_mut().zip(&denied).for_each(|(rest, denied)| *rest = rest.saturating_sub(*denied));
        shown.push(DeniedBy { domain: Some(domain.to_owned()), rule: Some(rule.to_owned()), denied });
    }
    if rest.iter().any(|rest| *rest > 0) {
        shown.push(DeniedBy { denied: rest, ..DeniedBy::default() });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::Instances;

    const START: u64 = 1_000_000_000;

    fn step(number: u64, allowed: u64, denied: u64) -> Step {
        Step { at_ms: START + number * STEP_MS, allowed, denied, ..Step::default() }
    }

    fn parts(parts: impl IntoIterator<Item = OverviewPart>) -> Parts<OverviewPart> {
        let parts = parts.into_iter().enumerate().map(|(number, part)| (format!("i{number}"), part)).collect();
        Parts { parts, instances: Instances::default() }
    }

    #[test]
    fn steps_of_one_time_add_up_and_the_current_values_are_of_the_last_three() {
        let one = (0..10).map(|number| step(number, 90, 10)).collect();
        let other = (5..10).map(|number| step(number, 30, 0)).collect();
        let part = |steps| OverviewPart { steps, ..OverviewPart::default() };
        let told = merge(&parts([part(one), part(other)]));
        assert_eq!(told.steps.len(), 10);
        assert_eq!((told.steps[4].allowed, told.steps[4].instances), (90, 1));
        assert_eq!((told.steps[5].allowed, told.steps[5].instances), (120, 2));
        assert_eq!(told.now.decisions_per_s, 26.0);
        assert_eq!(told.now.denied_share, Some(30.0 / 390.0));
        assert_eq!(merge(&parts([])).steps, []);
    }

    #[test]
    fn an_instance_whose_clock_is_far_ahead_hides_nothing() {
        let part = |number: u64| OverviewPart { steps: vec![step(number, 1, 0)], ..OverviewPart::default() };
        let told = merge(&parts([part(0), part(0), part(100_000)]));
        assert_eq!(told.steps.iter().map(|step| step.at_ms).collect::<Vec<_>>(), [START]);
        assert_eq!(told.steps[0].allowed, 2);
    }

    #[test]
    fn the_five_limits_that_denied_most_are_named_and_the_rest_is_one() {
        let denied_by = (1..=7)
            .map(|rule| Part { domain: "shop".into(), rule: format!("r{rule}"), denied: vec![(START, rule)] })
            .collect::<Vec<_>>();
        let part = OverviewPart { steps: vec![step(0, 0, 28)], denied_by, ..OverviewPart::default() };
        let told = merge(&parts([part.clone(), part]));
        let names: Vec<_> = told.denied_by.iter().map(|of| (of.rule.as_deref(), of.denied[0])).collect();
        let expected =
            [(Some("r7"), 14), (Some("r6"), 12), (Some("r5"), 10), (Some("r4"), 8), (Some("r3"), 6), (None, 6)];
        assert_eq!(names, expected);
    }
}
