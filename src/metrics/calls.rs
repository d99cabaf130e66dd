//! Metrics of calls and their descriptors, of all rules together.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Opts};

use super::register::{Known, Register, itself};
use super::striped::Striped;
use crate::engine::decision::DecidedBy;

/// Bounds of waits in seconds: from the shortest wait worth reporting to a day.
const WAITS: [f64; 14] = [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0];

/// Metrics of calls.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) outcomes: Outcomes,
    pub(super) without_store: Striped<IntCounter>,
    pub(super) seconds: Striped<Histogram>,
    pub(super) descriptors: Matches,
    /// By whether the domain or the rule is unknown.
    pub(super) unknown_denied: Known<&'static str, 2>,
    pub(super) missing_entries: IntCounterVec,
    pub(super) only_shadow: IntCounter,
    pub(super) retry_after_seconds: Striped<Histogram>,
    pub(super) failure_answers: Known<DecidedBy, { DecidedBy::WITHOUT_STORE.len() }>,
    pub(super) delayed_now: IntGauge,
    pub(super) delayed: DelayedOutcomes,
}

/// Counters of calls by outcome.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) ok: Striped<IntCounter>,
    pub(super) over_limit: Striped<IntCounter>,
    pub(super) invalid: Striped<IntCounter>,
    pub(super) unavailable: Striped<IntCounter>,
    pub(super) no_rules: Striped<IntCounter>,
    pub(super) overloaded: Striped<IntCounter>,
    pub(super) deadline_exceeded: Striped<IntCounter>,
}

/// Counters of delayed requests by outcome.
#[derive(Debug)]
pub(super) struct DelayedOutcomes {
    pub(super) passed: IntCounter,
    pub(super) cancelled: IntCounter,
    pub(super) no_permit: IntCounter,
    pub(super) released: IntCounter,
}

/// Counters of descriptors, by how they match the rules.
#[derive(Debug)]
pub(super) struct Matches {
    pub(super) limited: Striped<IntCounter>,
    pub(super) unlimited: Striped<IntCounter>,
    pub(super) no_rule: Striped<IntCounter>,
    pub(super) domain_not_found: Striped<IntCounter>,
}

impl Calls {
    pub(super) fn new(register: &Register<'_>) -> prometheus::Result<Calls> {
        Ok(Calls {
            outcomes: Outcomes::new(register)?,
            without_store: register.striped(Opts::new(
                "calls_without_store_total",
                "Calls that the store could not decide, regardless of their answer.",
            ))?,
            seconds: register
                .seconds("request_seconds", "Time from the reading of a call to its answer, without its delay.")?,
            descriptors: Matches::new(register)?,
            unknown_denied: register.known(
                (
                    "unknown_denied_total",
                    "Descriptors denied because no rules have their domain (UNKNOWN_DOMAIN=deny) or no rule matches \
                     them (UNKNOWN_DESCRIPTOR=deny), including those allowed only because of SHADOW_MODE.",
                ),
                ("unknown", ["domain", "descriptor"]),
                itself,
            )?,
            missing_entries: register.counters(
                "missing_entries_total",
                "Calls without an entry that their domain expects, by the first entry that is missing, whether they \
                 are denied or only counted.",
                &["domain", "entry"],
            )?,
            only_shadow: register.counter("global_shadow_mode_total", "Calls allowed only because of SHADOW_MODE.")?,
            retry_after_seconds: register.histogram(
                "retry_after_seconds",
                "Time until a denied call can pass, if known. Responses to clients have whole seconds.",
                &WAITS,
            )?,
            failure_answers: register.known(
                (
                    "failure_mode_answers_total",
                    "Limits answered while the store was unavailable, by what answered: a known denial or the failure \
                     mode; also refunds that the store has not confirmed.",
                ),
                ("decided_by", DecidedBy::WITHOUT_STORE),
                DecidedBy::name,
            )?,
            delayed_now: register.gauge("delayed_requests", "Requests being delayed.")?,
            delayed: DelayedOutcomes::new(register)?,
        })
    }
}

impl Outcomes {
    fn new(register: &Register<'_>) -> prometheus::Result<Outcomes> {
        let options = Opts::new("requests_total", "Calls to ShouldRateLimit, by outcome.");
        let calls = |outcome: &str| register.striped(options.clone().const_label("outcome", outcome));
        Ok(Outcomes {
            ok: calls("ok")?,
            over_limit: calls("over_limit")?,
            invalid: calls("invalid")?,
            unavailable: calls("unavailable")?,
            no_rules: calls("no_rules")?,
            overloaded: calls("overloaded")?,
            deadline_exceeded: calls("deadline_exceeded")?,
        })
    }
}

impl DelayedOutcomes {
    fn new(register: &Register<'_>) -> prometheus::Result<DelayedOutcomes> {
        let help = "Requests that needed a delay, by outcome.";
        let requests = register.counters("delayed_requests_total", help, &["outcome"])?;
        Ok(DelayedOutcomes {
            passed: requests.with_label_values(&["passed"]),
            cancelled: requests.with_label_values(&["cancelled"]),
            no_permit: requests.with_label_values(&["no_permit"]),
            released: requests.with_label_values(&["released"]),
        })
    }
}

impl Matches {
    fn new(register: &Register<'_>) -> prometheus::Result<Matches> {
        let options = Opts::new("descriptors_total", "Descriptors in requests, by how they match the rules.");
        let descriptors = |matched: &str| register.striped(options.clone().const_label("match", matched));
        Ok(Matches {
            limited: descriptors("limited")?,
            unlimited: descriptors("unlimited")?,
            no_rule: descriptors("no_rule")?,
            domain_not_found: descriptors("domain_not_found")?,
        })
    }
}
