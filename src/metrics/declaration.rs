//! The metrics of the process, from the file of each subject, and the names of those that each rule has.

use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus::{Opts, Registry};

use super::by_rule::ByRule;
use super::by_value::Values;
use super::calls::Calls;
use super::fleet::FleetMetrics;
use super::namespace::NAMESPACE;
use super::observed::Observed;
use super::register::Register;
use super::rules::RulesMetrics;
use super::store::StoreMetrics;
use super::tally::OfRule;
use super::tls::TlsMetrics;
use crate::version;

/// Name and help of the requests of each rule, with the labels `domain`, `rule` and `outcome`.
pub(super) const REQUESTS_OF_RULES: (&str, &str) = (
    "rule_requests_total",
    "Requests that reached the rule, counted once per descriptor: within its limit; over it, which includes banned; \
     the same for a rule in shadow mode, which denies nothing; or undecided, if a failure mode answered without \
     counting, the limit was not checked or the call failed. The series of the last two appear with their first \
     request.",
);

/// Names and help of the figures of each rule's limit, with the labels `domain` and `rule`.
pub(super) const FIGURES_OF_RULES: [(Figure, &str, &str); 2] = [
    (
        Figure::Number,
        "rule_limit",
        "Number of the rule's limit in the rules in force, without adjustments: hits per period, or for concurrency \
         slots. None for an unlimited rule, and for limits that requests supply.",
    ),
    (
        Figure::Period,
        "rule_period_seconds",
        "Period of the rule's limit. With a time zone it is nominal: 30 days for a month, 365 for a year. None for a \
         limit without a period.",
    ),
];

/// A figure of a rule's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Its number.
    Number,
    /// Its period.
    Period,
}

/// Values of the label `outcome`.
pub(super) const OUTCOMES: [(OfRule, &str); 4] = [
    (OfRule::WithinLimitRequests, "within_limit"),
    (OfRule::OverLimitRequests, "over_limit"),
    (OfRule::ShadowRequests, "shadow"),
    (OfRule::UndecidedRequests, "undecided"),
];

/// Counts that only the statistics of `envoyproxy/ratelimit` show.
pub(super) const ELSEWHERE: [OfRule; 1] = [OfRule::Refunded];

/// Names and help of each rule's other metrics, with the labels `domain` and `rule`.
pub(super) const OF_RULES: [(OfRule, &str, &str); OfRule::NUMBER - OUTCOMES.len() - ELSEWHERE.len()] = [
    (
        OfRule::Hits,
        "hits_total",
        "Hits of requests that reached the rule, at most 4294967295 for one descriptor of a request.",
    ),
    (
        OfRule::OverLimit,
        "over_limit_hits_total",
        "Hits over the rule's limit, without undecided ones. If a limit charges denied requests, only the hits of such \
         a request that exceed the limit.",
    ),
    (
        OfRule::NearLimit,
        "near_limit_hits_total",
        "Hits within the limit, but above NEAR_LIMIT_RATIO of it. If a limit charges denied requests, this includes \
         the hits of such a request that use up the limit.",
    ),
    (
        OfRule::WithinLimit,
        "within_limit_hits_total",
        "Hits of requests within the rule's limit, without undecided ones. If a limit charges denied requests of \
         several hits, within and over together can be less than hits_total, as in envoyproxy/ratelimit.",
    ),
    (OfRule::Shadow, "shadow_hits_total", "Hits over the limit of a rule in shadow mode, which were allowed."),
    (
        OfRule::Banned,
        "banned_hits_total",
        "Hits of clients banned by the rule's penalty, including the denial that causes the ban; they also count as \
         over the limit.",
    ),
    (
        OfRule::KnownDenied,
        "known_denied_hits_total",
        "Hits over the rule's limit that the denied cache decided without asking the store; a series appears with its \
         first hit.",
    ),
    (
        OfRule::Settled,
        "settled_hits_total",
        "Hits that streams of a budget have used, as they told when they settled; a settle that comes twice counts \
         twice. What they held is in hits_total. A series appears with its first hit.",
    ),
];

/// Name and help of the requests on which candidate rules are compared, with the labels `domain`, `rule` and `outcome`.
pub(super) const REQUESTS_OF_CANDIDATES: (&str, &str) = (
    "candidate_requests_total",
    "Sampled requests that reached the rule, by outcome: both rule sets decided alike (agreed), only this candidate \
     rule denied it (newly_denied), or only this rule in force denied it (newly_allowed).",
);

/// Name and help of each rule's failure mode answers, with the labels `domain`, `rule` and `decided_by`.
pub(super) const OF_RULES_WITHOUT_STORE: (&str, &str) = (
    "rule_failure_mode_answers_total",
    "Limits of the rule answered while the store was unavailable, by what answered; a series appears with its first \
     answer.",
);

/// The metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    pub(super) registry: Registry,
    /// The usual metrics of a process, with names without a prefix.
    pub(super) of_process: Registry,
    pub(super) near_limit_ratio: f32,
    pub(super) calls: Calls,
    pub(super) by_rule: ByRule,
    /// Set if the statistics by value are exported.
    pub(super) values: Option<Arc<Values>>,
    pub(super) store: StoreMetrics,
    pub(super) rules: RulesMetrics,
    pub(super) fleet: FleetMetrics,
    pub(super) tls: TlsMetrics,
}

/// Processor time, memory and file descriptors, if the system reports them.
fn of_process() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    #[cfg(target_os = "linux")]
    registry.register(Box::new(super::process::Process::new()?))?;
    Ok(registry)
}

impl Metrics {
    /// Creates all metrics at zero. A hit is near its limit beyond the share `near_limit_ratio` of it.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new(near_limit_ratio: f64) -> prometheus::Result<Metrics> {
        let registry = Registry::new_custom(Some(NAMESPACE.into()), None)?;
        let register = Register(&registry);
        let build = ("build_info", "Always 1; the labels name the version and the commit.");
        let build = register.gauges(build, &["version", "commit"], &[])?;
        build.with_label_values(&[version::VERSION, version::COMMIT]).set(1);
        Ok(Metrics {
            of_process: of_process()?,
            near_limit_ratio: near_limit_ratio as f32,
            calls: Calls::new(&register)?,
            by_rule: ByRule::default(),
            values: None,
            store: StoreMetrics::new(&register)?,
            rules: RulesMetrics::new(&register)?,
            fleet: FleetMetrics::new(&register)?,
            tls: TlsMetrics::new(&register)?,
            registry,
        })
    }

    /// Adds separate counts by values of requests, for rules that ask for them, with at most `most` paths.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn with_values(mut self, most: NonZeroUsize) -> prometheus::Result<Metrics> {
        let values = Arc::new(Values::new(most));
        let evicted = Arc::clone(&values);
        let options = Opts::new(
            "value_series_evicted_total",
            "Statistics paths with values of requests that were evicted because of MAX_VALUE_SERIES.",
        );
        self.registry.register(Box::new(Observed::new(&options, move || evicted.evicted())?))?;
        self.values = Some(values);
        Ok(self)
    }

    /// Adds the number of lost log lines, read through `lost`.
    ///
    /// # Errors
    /// If it is already registered.
    pub fn observe_lost_log_lines(&self, lost: impl Fn() -> u64 + Send + Sync + 'static) -> prometheus::Result<()> {
        let options = Opts::new("log_lines_lost_total", "Log lines dropped because standard error was blocked.");
        self.registry.register(Box::new(Observed::new(&options, lost)?))
    }
}
