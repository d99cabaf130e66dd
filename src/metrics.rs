//! Every metric, once, with its meaning. Labels come from rules and settings, which are few; never from requests.

mod striped;

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use self::striped::Striped;
use crate::descriptor::Role;
use crate::plan::{Answer, Decision, Limited, Source, Status};
use crate::rules::{FailureMode, Rules};
use crate::store::StoreError;

/// Upper bounds in seconds: from what memory takes to what a patient client waits.
const SECONDS: [f64; 14] =
    [0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// What the process counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    near_limit_ratio: f64,
    requests: Outcomes,
    request_seconds: Striped<Histogram>,
    descriptors: Matches,
    spared: IntCounter,
    rule_hits: Hits<IntCounterVec>,
    banned_hits: IntCounterVec,
    store_seconds: Striped<Histogram>,
    store_errors: Known<&'static str, 7>,
    denied_cache_hits: Striped<IntCounter>,
    lease_decisions: Striped<IntCounter>,
    failure_answers: Known<FailureMode, 4>,
    held_requests: IntGauge,
    held: HeldOutcomes,
    store_up: IntGauge,
    memory_counters: IntGauge,
    rules_loaded: IntGauge,
    domains_loaded: IntGauge,
    loads: IntCounterVec,
}

/// What the metrics call the limits that clients bring along.
const OVERRIDE: &str = "(override)";

/// The counters of a label whose values are known from the start.
#[derive(Debug)]
struct Known<K, const N: usize>([(K, IntCounter); N]);

/// How a call ended.
#[derive(Debug)]
struct Outcomes {
    ok: Striped<IntCounter>,
    over_limit: Striped<IntCounter>,
    invalid: Striped<IntCounter>,
    unavailable: Striped<IntCounter>,
    overloaded: Striped<IntCounter>,
}

/// What became of a request that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Its turn came.
    Passed,
    /// Its caller went away before.
    Left,
    /// There was no seat for it: it was denied.
    Refused,
    /// The process ended before its turn: it passed.
    Released,
}

/// How many of each.
#[derive(Debug)]
struct HeldOutcomes {
    passed: IntCounter,
    left: IntCounter,
    refused: IntCounter,
    released: IntCounter,
}

/// What was found for a descriptor.
#[derive(Debug)]
struct Matches {
    limited: Striped<IntCounter>,
    unlimited: Striped<IntCounter>,
    no_rule: Striped<IntCounter>,
    domain_not_found: Striped<IntCounter>,
}

/// The hits of a limit, by what became of them.
#[derive(Debug)]
struct Hits<T> {
    total: T,
    over: T,
    near: T,
    within: T,
    shadow: T,
}

/// The counters of one limit.
#[derive(Debug)]
struct LimitHits {
    hits: Hits<IntCounter>,
    /// Where there is a penalty.
    banned: Option<IntCounter>,
}

/// The counters of every limit of one snapshot, in the order of their ids; made when a limit is first used, so that one that
/// never applies costs nothing at a scrape.
#[derive(Debug, Default)]
pub struct RuleMetrics {
    limits: Box<[OnceLock<LimitHits>]>,
    /// Of what clients bring along, in the order of the domains' ids.
    overrides: Box<[OnceLock<Hits<IntCounter>>]>,
}

impl RuleMetrics {
    /// None made yet.
    pub fn new(rules: &Rules) -> RuleMetrics {
        RuleMetrics {
            limits: rules.limits().map(|_| OnceLock::new()).collect(),
            overrides: (0..rules.domains()).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Metrics {
    /// All at zero. A hit is near its limit beyond this share of it.
    ///
    /// # Errors
    /// Where two metrics have the same name.
    pub fn new(near_limit_ratio: f64) -> prometheus::Result<Metrics> {
        let registry = Registry::new_custom(Some("tollgate".into()), None)?;
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let striped = |options: Opts| -> prometheus::Result<Striped<IntCounter>> {
            let counter = Striped::new(|| IntCounter::with_opts(options.clone()))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let seconds = |name: &str, help: &str| -> prometheus::Result<Striped<Histogram>> {
            let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
            let histogram = Striped::new(|| Histogram::with_opts(options.clone()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };

        let requests = Opts::new("requests_total", "Calls to ShouldRateLimit by outcome.");
        let requests = |outcome: &str| striped(requests.clone().const_label("outcome", outcome));
        let descriptors = Opts::new("descriptors_total", "Descriptors asked about, by what the rules say.");
        let descriptors = |matched: &str| striped(descriptors.clone().const_label("match", matched));
        let held =
            counters("held_requests_total", "Requests that were to be held, by what became of them.", &["outcome"])?;
        let store_errors =
            counters("store_errors_total", "Decisions that the store could not make, by reason.", &["kind"])?;
        let failure_answers =
            counters("failure_mode_answers_total", "Limits answered by their failure mode.", &["mode"])?;
        let by_rule = ["domain", "rule"];
        let metrics = Metrics {
            near_limit_ratio,
            requests: Outcomes {
                ok: requests("ok")?,
                over_limit: requests("over_limit")?,
                invalid: requests("invalid")?,
                unavailable: requests("unavailable")?,
                overloaded: requests("overloaded")?,
            },
            request_seconds: seconds(
                "request_seconds",
                "Time from a call's arrival to its answer, not counting that it was held.",
            )?,
            descriptors: Matches {
                limited: descriptors("limited")?,
                unlimited: descriptors("unlimited")?,
                no_rule: descriptors("no_rule")?,
                domain_not_found: descriptors("domain_not_found")?,
            },
            spared: counter("global_shadow_mode_total", "Calls that only SHADOW_MODE let pass.")?,
            rule_hits: Hits {
                total: counters("hits_total", "Hits that a rule was asked about.", &by_rule)?,
                over: counters(
                    "over_limit_hits_total",
                    "Hits over the rule's limit, where that could be decided.",
                    &by_rule,
                )?,
                near: counters(
                    "near_limit_hits_total",
                    "Hits within the limit, beyond NEAR_LIMIT_RATIO of it.",
                    &by_rule,
                )?,
                within: counters(
                    "within_limit_hits_total",
                    "Hits within the rule's limit, where that could be decided.",
                    &by_rule,
                )?,
                shadow: counters(
                    "shadow_hits_total",
                    "Hits over the limit of a rule in shadow mode, which passed.",
                    &by_rule,
                )?,
            },
            banned_hits: counters(
                "banned_hits_total",
                "Hits of those whom the rule's penalty bans, the denial that brings the ban among them; they are over its limit, too.",
                &by_rule,
            )?,
            store_seconds: seconds(
                "store_seconds",
                "Time the store took to decide or to fail, its queue included; where a lease or the denied cache answers it is not asked.",
            )?,
            store_errors: Known(StoreError::KINDS.map(|kind| (kind, store_errors.with_label_values(&[kind])))),
            denied_cache_hits: striped(Opts::new(
                "denied_cache_hits_total",
                "Requests denied without asking Redis, which had just said so.",
            ))?,
            lease_decisions: striped(Opts::new(
                "lease_decisions_total",
                "Requests decided by a lease, without asking the store.",
            ))?,
            failure_answers: Known(
                FailureMode::ALL.map(|mode| (mode, failure_answers.with_label_values(&[mode.name()]))),
            ),
            held_requests: gauge("held_requests", "Requests that are held until their turn.")?,
            held: HeldOutcomes {
                passed: held.with_label_values(&["passed"]),
                left: held.with_label_values(&["left"]),
                refused: held.with_label_values(&["refused"]),
                released: held.with_label_values(&["released"]),
            },
            store_up: gauge("store_up", "1 while the store can be asked; 0 while it is known to be down and is not.")?,
            memory_counters: gauge("memory_counters", "Counters in this process's memory.")?,
            rules_loaded: gauge("rules_loaded", "Rules in force.")?,
            domains_loaded: gauge("domains_loaded", "Domains in force.")?,
            loads: counters("rules_loads_total", "Attempts to load the rules, by result.", &["result"])?,
            registry: registry.clone(),
        };
        let build = IntGaugeVec::new(Opts::new("build_info", "Always 1; the labels tell the version."), &["version"])?;
        registry.register(Box::new(build.clone()))?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(metrics)
    }

    /// A call has been answered, or refused.
    pub fn record_call(&self, took: Duration) {
        self.request_seconds.mine().observe(took.as_secs_f64());
    }

    /// A request was decided.
    pub fn record(&self, rules: &RuleMetrics, decision: &Decision<'_>) {
        if decision.over_limit { &self.requests.over_limit } else { &self.requests.ok }.mine().inc();
        if decision.spared {
            self.spared.inc();
        }
        for status in &decision.statuses {
            match status {
                Status::NoLimit if decision.domain_found => self.descriptors.no_rule.mine().inc(),
                Status::NoLimit => self.descriptors.domain_not_found.mine().inc(),
                Status::Unlimited(_) => self.descriptors.unlimited.mine().inc(),
                Status::Limited(_) => self.descriptors.limited.mine().inc(),
            }
        }
        for limited in &decision.limits {
            self.record_limited(rules, limited);
        }
    }

    fn record_limited(&self, rules: &RuleMetrics, limited: &Limited<'_>) {
        let answered_by = match limited.answer {
            Answer::Store(_) => None,
            Answer::Local(_) => Some(FailureMode::Local),
            Answer::FailedOpen => Some(FailureMode::Open),
            Answer::FailedClosed => Some(FailureMode::Closed),
        };
        if let Some(mode) = answered_by {
            self.failure_answers.inc(mode);
        }
        let Ok(hits) = u64::try_from(limited.hits.get()) else { return };
        match limited.source {
            Source::Rule(rule, limit) => {
                let of_limit = rules.limits[limit.id].get_or_init(|| LimitHits {
                    hits: self.rule_hits.with(&rule.domain, &limit.label),
                    banned: (limit.config.penalty.is_some())
                        .then(|| self.banned_hits.with_label_values(&[&*rule.domain, &*limit.label])),
                });
                of_limit.hits.record(limited, hits, self.near_limit_ratio);
                if let (Some(banned), Some(_)) = (&of_limit.banned, limited.banned_ms) {
                    banned.inc_by(hits);
                }
            }
            Source::Override(domain) => {
                let of_domain = rules.overrides[domain.id].get_or_init(|| self.rule_hits.with(&domain.name, OVERRIDE));
                of_domain.record(limited, hits, self.near_limit_ratio);
            }
        }
    }

    /// A call was refused because the request is not valid.
    pub fn record_invalid(&self) {
        self.requests.invalid.mine().inc();
    }

    /// A call failed because the store could not decide and a limit wants it so.
    pub fn record_unavailable(&self) {
        self.requests.unavailable.mine().inc();
        self.failure_answers.inc(FailureMode::Error);
    }

    /// A call failed because too many wait for the store.
    pub fn record_overloaded(&self) {
        self.requests.overloaded.mine().inc();
    }

    /// The store itself was asked, unless it turned out that it could not be.
    pub fn record_store(&self, error: Option<&StoreError>, took: Duration) {
        if !matches!(error, Some(StoreError::Down | StoreError::Overloaded)) {
            self.store_seconds.mine().observe(took.as_secs_f64());
        }
    }

    /// A decision could not be had.
    pub fn record_store_error(&self, error: &StoreError) {
        self.store_errors.inc(error.kind());
    }

    /// So many requests more are held, or fewer.
    pub fn add_held(&self, requests: i64) {
        self.held_requests.add(requests);
    }

    /// A request is no longer held, or could not be.
    pub fn record_held(&self, held: Held) {
        match held {
            Held::Passed => &self.held.passed,
            Held::Left => &self.held.left,
            Held::Refused => &self.held.refused,
            Held::Released => &self.held.released,
        }
        .inc();
    }

    /// A request was denied because the store was known to deny it.
    pub fn record_denied_cache_hit(&self) {
        self.denied_cache_hits.mine().inc();
    }

    /// A lease has decided a request, so that the store behind it was not asked.
    pub fn record_lease(&self) {
        self.lease_decisions.mine().inc();
    }

    /// The store went up or down.
    pub fn set_store_up(&self, up: bool) {
        self.store_up.set(i64::from(up));
    }

    /// So many counters are in memory.
    pub fn set_memory_counters(&self, counters: usize) {
        self.memory_counters.set(i64::try_from(counters).unwrap_or(i64::MAX));
    }

    /// New rules are in force, in place of old ones: the series of rules that are gone go too.
    pub fn record_load(&self, new: &Rules, old: &Rules) {
        self.loads.with_label_values(&["success"]).inc();
        self.rules_loaded.set(i64::try_from(new.rules().len()).unwrap_or(i64::MAX));
        self.domains_loaded.set(i64::try_from(new.domains()).unwrap_or(i64::MAX));
        let kept: HashSet<(&str, &str)> = new.limits().map(|(rule, limit)| (&*rule.domain, &*limit.label)).collect();
        for (rule, limit) in old.limits().filter(|(rule, limit)| !kept.contains(&(&*rule.domain, &*limit.label))) {
            self.rule_hits.remove(&rule.domain, &limit.label);
            // One without a penalty has none.
            let _ = self.banned_hits.remove_label_values(&[&*rule.domain, &*limit.label]);
        }
        for domain in old.domain_names().filter(|domain| new.domain(domain).is_none()) {
            self.rule_hits.remove(domain, OVERRIDE);
        }
    }

    /// Rules were refused.
    pub fn record_load_error(&self) {
        self.loads.with_label_values(&["error"]).inc();
    }

    /// All of them in Prometheus' text format.
    ///
    /// # Errors
    /// Where a metric cannot be written.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

impl<K: PartialEq, const N: usize> Known<K, N> {
    fn inc(&self, value: K) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.inc();
        }
    }
}

impl Hits<IntCounterVec> {
    fn with(&self, domain: &str, rule: &str) -> Hits<IntCounter> {
        let counter = |counters: &IntCounterVec| counters.with_label_values(&[domain, rule]);
        Hits {
            total: counter(&self.total),
            over: counter(&self.over),
            near: counter(&self.near),
            within: counter(&self.within),
            shadow: counter(&self.shadow),
        }
    }

    fn remove(&self, domain: &str, rule: &str) {
        for counters in [&self.total, &self.over, &self.near, &self.within, &self.shadow] {
            // A rule that was never used has no series: nothing to remove is no error.
            let _ = counters.remove_label_values(&[domain, rule]);
        }
    }
}

impl Hits<IntCounter> {
    fn record(&self, limited: &Limited<'_>, hits: u64, near_limit_ratio: f64) {
        self.total.inc_by(hits);
        // What a failure mode answers is no statement about the limit.
        let Some(verdict) = limited.verdict() else { return };
        if !verdict.allowed {
            self.over.inc_by(hits);
            if limited.role == Role::Shadow {
                self.shadow.inc_by(hits);
            }
            return;
        }
        self.within.inc_by(hits);
        let capacity = f64::from(limited.limit.capacity());
        let near = (capacity * near_limit_ratio).floor() as u64;
        let used = u64::from(limited.limit.capacity().saturating_sub(verdict.remaining));
        if used > near {
            self.near.inc_by((used - near).min(hits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Descriptor, Entry, Hits as Asked, Override, Request, Unit};
    use crate::plan::{Plan, PlanOptions};
    use crate::rules::{Defaults, DomainConfig};

    /// The rules of a domain that has none of its own.
    fn rules(domain: &str) -> Rules {
        let config = DomainConfig { name: domain.into(), defaults: Defaults::default(), descriptors: Vec::new() };
        Rules::new(vec![config])
    }

    /// The metrics of this name.
    fn series(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        text.lines().filter(|line| line.starts_with(&format!("tollgate_{name}{{"))).map(str::to_owned).collect()
    }

    #[test]
    fn a_clients_own_limit_is_looked_up_once_and_its_series_go_with_the_domain() {
        let (metrics, options, shop) = (Metrics::new(0.8).unwrap(), PlanOptions::default(), rules("shop"));
        let of_shop = RuleMetrics::new(&shop);
        let descriptor = Descriptor {
            entries: vec![Entry { key: "user".into(), value: "ann".into() }],
            hits: Asked::take(1).unwrap(),
            limit: Override::new(5, Unit::Minute, 1),
        };
        let request = Request { domain: "shop".into(), descriptors: vec![descriptor] };
        let decide = || Plan::new(&options, &shop, &request).conclude_without_store(|_| unreachable!("it fails open"));
        let ask = || metrics.record(&of_shop, &decide().unwrap());
        ask();
        ask();
        let hits = "tollgate_hits_total{domain=\"shop\",rule=\"(override)\"} 2";
        assert_eq!(series(&metrics, "hits_total"), [hits]);

        metrics.record_load(&rules("mall"), &shop);
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
        // A request that is still under the old rules: looked up again, it would bring the series back.
        ask();
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
    }

    #[test]
    fn every_kind_of_error_and_every_mode_is_counted_as_what_it_is() {
        let metrics = Metrics::new(0.8).unwrap();
        metrics.record_store_error(&StoreError::Down);
        metrics.record_unavailable();
        let counted = |name: &str| -> Vec<String> {
            let all = series(&metrics, name);
            all.into_iter().filter(|line| !line.ends_with(" 0")).collect()
        };
        assert_eq!(counted("store_errors_total"), ["tollgate_store_errors_total{kind=\"down\"} 1"]);
        assert_eq!(counted("failure_mode_answers_total"), ["tollgate_failure_mode_answers_total{mode=\"error\"} 1"]);
        assert_eq!(series(&metrics, "store_errors_total").len(), StoreError::KINDS.len());
        assert_eq!(series(&metrics, "failure_mode_answers_total").len(), FailureMode::ALL.len());
    }
}
