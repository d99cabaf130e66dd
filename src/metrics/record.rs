//! Recording of requests: each event of a request, and the metrics it changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::by_rule::RuleMetrics;
use super::calls::Matches;
use super::declaration::Metrics;
use super::names::StatPath;
use super::tally::{Around, OfRule, Tally, decisive};
use crate::engine::algorithm::Ask;
use crate::engine::asked::{Asked, OVERRIDE, Source};
use crate::engine::decision::{DecidedBy, Decision, Limited, Status};
use crate::engine::descriptor::{Descriptor, Request};
use crate::engine::plan::Undecided;

/// Largest number of hits counted for one descriptor of a request. A request can ask for 2^53 hits; beyond that number,
/// Prometheus' floating-point values no longer change when one is added, which would hide the hits of all other
/// requests.
const MAX_HITS: u64 = u32::MAX as u64;

/// The same for what a stream settles: bytes and tokens of a long one are more.
const MAX_SETTLED: u64 = 1 << 43;

/// The name under which a statsd server sees unknown domains that were evicted before they were pushed.
const OTHERS: &str = "(others)";

/// The end of a delayed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delayed {
    /// Its release time came.
    Passed,
    /// Its caller cancelled it first.
    Cancelled,
    /// No permit was free, so the request was denied instead of delayed.
    NoPermit,
    /// The process ended before the release time, and the request passed.
    Released,
}

impl Metrics {
    /// Records a call that was answered or rejected.
    pub fn record_call(&self, took: Duration) {
        self.calls.seconds.mine().observe(took.as_secs_f64());
    }

    /// Records the decision on a request.
    pub fn record(&self, rules: &RuleMetrics, request: &Request, decision: &Decision<'_>) {
        if decision.over_limit { &self.calls.outcomes.over_limit } else { &self.calls.outcomes.ok }.mine().inc();
        if decision.only_shadow {
            self.calls.only_shadow.inc();
        }
        if let Some(missing) = &decision.missing {
            let found = |domain: &str, entry: &str| self.calls.missing_entries.with_label_values(&[domain, entry]);
            rules.missing_entry(missing, found).inc();
        }
        if let Some(wait_ms) = decision.retry_after_ms() {
            self.calls.retry_after_seconds.mine().observe(Duration::from_millis(wait_ms).as_secs_f64());
        }
        for status in &decision.statuses {
            match status {
                Status::NoLimit => self.record_unmatched(decision),
                Status::Unknown => {
                    self.record_unmatched(decision);
                    self.calls.unknown_denied.inc(if decision.domain_found { "descriptor" } else { "domain" });
                }
                Status::Unlimited(_) => self.calls.descriptors.unlimited.mine().inc(),
                Status::Limited(_) => self.calls.descriptors.limited.mine().inc(),
            }
        }
        for limits in decision.limits.chunk_by(|one, next| one.asked.check.descriptor == next.asked.check.descriptor) {
            limits.iter().for_each(|limited| self.record_limited(rules, limited));
            if self.values.is_some()
                && let Some(limited) = decisive(limits, self.near_limit_ratio)
            {
                self.record_at_path(rules, request, &limited.asked, |tally, hits| match hits {
                    Hits::Taken(_) => tally.record(limited, taken(limited), self.near_limit_ratio),
                    Hits::Refunded(hits) => tally.add(OfRule::Refunded, hits),
                    Hits::Settled(hits) => tally.add(OfRule::Settled, hits),
                });
            }
        }
        if let Some(values) = &self.values
            && !decision.domain_found
        {
            let others = || StatPath::new(OTHERS, []);
            values.of_callers.count(StatPath::new(&request.domain, []), others, |counters| {
                counters.domain_not_found.fetch_add(request.descriptors.len() as u64, Ordering::Relaxed);
            });
        }
    }

    /// Returns how many of the hits are near the limit and over it, or `None` if the limit is undecided.
    pub fn around(&self, limited: &Limited<'_>, hits: u64) -> Option<Around> {
        Some(Around::of_limit(limited, limited.verdict()?, hits, self.near_limit_ratio))
    }

    fn record_unmatched(&self, decision: &Decision<'_>) {
        let Matches { no_rule, domain_not_found, .. } = &self.calls.descriptors;
        if decision.domain_found { no_rule } else { domain_not_found }.mine().inc();
    }

    fn record_limited(&self, rules: &RuleMetrics, limited: &Limited<'_>) {
        let (source, decided_by) = (limited.asked.source, limited.answer.decided_by());
        if decided_by.is_without_store() {
            self.record_without_store(rules, source, decided_by);
        }
        let counters = self.by_rule.of(rules, source);
        match Hits::of(&limited.asked) {
            Some(Hits::Taken(_)) => counters.record(limited, taken(limited), self.near_limit_ratio),
            Some(Hits::Refunded(hits)) => counters.record_report(OfRule::Refunded, hits),
            Some(Hits::Settled(hits)) => counters.record_report(OfRule::Settled, hits),
            None => {}
        }
    }

    /// Counts a descriptor under the path that `envoyproxy/ratelimit` uses. A rule with a single limit and a fixed path
    /// needs nothing here, as its own counters serve for that path.
    fn record_at_path(
        &self,
        rules: &RuleMetrics,
        request: &Request,
        asked: &Asked<'_>,
        record: impl FnOnce(&Tally, Hits),
    ) {
        let (Some(values), Some(hits)) = (&self.values, Hits::of(asked)) else { return };
        let Some(Descriptor { entries, .. }) = request.descriptors.get(asked.check.descriptor) else { return };
        match asked.source {
            Source::Rule(rule, _) if rule.has_values() => {
                let without_values = || StatPath::of_rule(rule);
                let path = StatPath::of_request(rule, entries);
                values.of_rules.count(path, without_values, |counters| record(&counters.tally, hits));
            }
            Source::Rule(rule, _) if rule.limits.len() > 1 => {
                if let Some(counters) = self.by_rule.of_all(rules, rule) {
                    counters.count_together(|tally| record(tally, hits));
                }
            }
            Source::Rule(..) => {}
            Source::Override(domain) => {
                let without_values = || StatPath::new(&domain.name, [OVERRIDE.into()]);
                let path = StatPath::of_override(&domain.name, entries);
                values.of_callers.count(path, without_values, |counters| record(&counters.tally, hits));
            }
        }
    }

    /// Counts the hits of a call that failed without a decision.
    fn record_undecided(&self, rules: &RuleMetrics, request: &Request, asked: &[Asked<'_>]) {
        for limits in asked.chunk_by(|one, next| one.check.descriptor == next.check.descriptor) {
            for asked in limits {
                if let Some(Hits::Taken(hits)) = Hits::of(asked) {
                    self.by_rule.of(rules, asked.source).record_undecided(hits);
                }
            }
            if let Some(first) = limits.first() {
                self.record_at_path(rules, request, first, |tally, hits| {
                    if let Hits::Taken(hits) = hits {
                        tally.record_undecided(hits);
                    }
                });
            }
        }
    }

    fn record_without_store(&self, rules: &RuleMetrics, source: Source<'_>, decided_by: DecidedBy) {
        self.calls.failure_answers.inc(decided_by);
        self.by_rule.of(rules, source).add_without_store(decided_by);
    }

    /// Records a call rejected because its request is invalid.
    pub fn record_invalid(&self) {
        self.calls.outcomes.invalid.mine().inc();
    }

    /// Records a call that the store could not decide, regardless of the answer.
    pub fn record_call_without_store(&self) {
        self.calls.without_store.mine().inc();
    }

    /// Records a call that failed because the store could not decide and a limit's failure mode is `error`.
    pub fn record_unavailable(&self, rules: &RuleMetrics, request: &Request, undecided: &Undecided<'_>) {
        self.calls.outcomes.unavailable.mine().inc();
        self.record_undecided(rules, request, &undecided.asked);
        self.record_without_store(rules, undecided.source, DecidedBy::FailureModeError);
    }

    /// Records a call that failed because no rules are in force yet.
    pub fn record_no_rules(&self) {
        self.calls.outcomes.no_rules.mine().inc();
    }

    /// Records a call that failed because too many calls wait for the store.
    pub fn record_overloaded(&self, rules: &RuleMetrics, request: &Request, asked: &[Asked<'_>]) {
        self.calls.outcomes.overloaded.mine().inc();
        self.record_undecided(rules, request, asked);
    }

    /// Records a call whose deadline was over, or nearly so, before the store was asked.
    pub fn record_deadline_exceeded(&self) {
        self.calls.outcomes.deadline_exceeded.mine().inc();
    }

    /// Changes the number of delayed requests by `requests`, which may be negative.
    pub fn add_delayed(&self, requests: i64) {
        self.calls.delayed_now.add(requests);
    }

    /// Records the end of a delayed request, or that no permit was free.
    pub fn record_delayed(&self, delayed: Delayed) {
        match delayed {
            Delayed::Passed => &self.calls.delayed.passed,
            Delayed::Cancelled => &self.calls.delayed.cancelled,
            Delayed::NoPermit => &self.calls.delayed.no_permit,
            Delayed::Released => &self.calls.delayed.released,
        }
        .inc();
    }
}

/// The hits of a request that a limit counts.
#[derive(Clone, Copy, Debug)]
enum Hits {
    Taken(u64),
    /// Counted apart: they were counted as hits when they were taken.
    Refunded(u64),
    /// Counted apart: the stream was counted when it began, with the hits that it held.
    Settled(u64),
}

impl Hits {
    /// Returns the hits of a question; `None` for a part for which another question asks.
    fn of(Asked { check, is_part, .. }: &Asked<'_>) -> Option<Hits> {
        (!is_part).then(|| match check.ask {
            Ask::Refund(hits) => Hits::Refunded(hits.min(MAX_HITS)),
            Ask::Settle(hits) => Hits::Settled(hits.min(MAX_SETTLED)),
            ask => Hits::Taken(ask.taken().min(MAX_HITS)),
        })
    }
}

fn taken(limited: &Limited<'_>) -> u64 {
    limited.taken().min(MAX_HITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::check::{Check, StoreError};
    use crate::engine::descriptor::{Entry, Override, Unit};
    use crate::engine::plan::{Names, Plan, PlanOptions, WithoutStore};
    use crate::engine::rules::{Defaults, DomainConfig, Rules};

    /// Returns the rules of a domain without any rule.
    fn rules(domain: &str) -> Rules {
        Rules::new(vec![DomainConfig {
            name: domain.into(),
            expect: None,
            defaults: Defaults::default(),
            origins: Vec::new(),
            descriptors: Vec::new(),
        }])
    }

    /// Returns the series with this name.
    fn series(metrics: &Metrics, name: &str) -> Vec<String> {
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        text.lines().filter(|line| line.starts_with(&format!("tollgate_{name}{{"))).map(str::to_owned).collect()
    }

    #[test]
    fn a_clients_own_limit_is_looked_up_once_and_its_series_go_with_the_domain() {
        let (metrics, options, shop) = (Metrics::new(0.8).unwrap(), PlanOptions::default(), rules("shop"));
        let of_shop = metrics.of_rules(&shop);
        let descriptor = Descriptor {
            entries: vec![Entry { key: "user".into(), value: "ann".into() }],
            ask: Ask::Take(1),
            limit: Override::new(5, Unit::Minute, 1),
        };
        let request = Request { domain: "shop".into(), descriptors: vec![descriptor] };
        let decide = || {
            Plan::new(&options, &shop, &request, Names::default()).conclude_without_store(WithoutStore {
                partly: None,
                known: |_: &Check| None,
                decide: |_: &[Check]| unreachable!("it fails open"),
                retry_after_ms: 0,
            })
        };
        let ask = || metrics.record(&of_shop, &request, &decide().unwrap());
        ask();
        ask();
        let hits = "tollgate_hits_total{domain=\"shop\",rule=\"(override)\"} 2";
        assert_eq!(series(&metrics, "hits_total"), [hits]);

        let mall = rules("mall");
        metrics.record_load(&mall, &metrics.of_rules(&mall));
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
        // This request still runs under the old rules. A second lookup would bring the series back.
        ask();
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
    }

    #[test]
    fn every_kind_of_error_and_every_mode_is_counted_as_what_it_is() {
        let metrics = Metrics::new(0.8).unwrap();
        metrics.record_store_error(&StoreError::Down("it requires a password".into()));
        let shop = rules("shop");
        let source = Source::Override(shop.domain("shop").unwrap());
        let request = Request { domain: "shop".into(), descriptors: Vec::new() };
        metrics.record_unavailable(
            &metrics.of_rules(&shop),
            &request,
            &Undecided { source, asked: Vec::new(), place: 0 },
        );
        let counted = |name: &str| -> Vec<String> {
            let all = series(&metrics, name);
            all.into_iter().filter(|line| !line.ends_with(" 0")).collect()
        };
        assert_eq!(counted("store_errors_total"), ["tollgate_store_errors_total{kind=\"down\"} 1"]);
        let answered = "tollgate_failure_mode_answers_total{decided_by=\"failure_mode_error\"} 1";
        assert_eq!(counted("failure_mode_answers_total"), [answered]);
        assert_eq!(series(&metrics, "store_errors_total").len(), StoreError::KINDS.len());
        assert_eq!(series(&metrics, "failure_mode_answers_total").len(), DecidedBy::WITHOUT_STORE.len());
        let of_rule = "tollgate_rule_failure_mode_answers_total\
                       {domain=\"shop\",rule=\"(override)\",decided_by=\"failure_mode_error\"} 1";
        assert_eq!(series(&metrics, "rule_failure_mode_answers_total"), [of_rule]);
    }
}
