//! What happens to a request, and what is counted then.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::by_rule::RuleMetrics;
use super::declaration::{Known, Matches, Metrics};
use super::reference::StatPath;
use super::tally::{Around, Tally, decisive};
use crate::adjustment::Effect;
use crate::decision::{DecidedBy, Decision, Limited, Status};
use crate::descriptor::{Descriptor, Request};
use crate::plan::{Asked, OVERRIDE, Source, Undecided};
use crate::rules::Rules;
use crate::store::StoreError;
use crate::store::lease::LeaseEvent;
use crate::store::redis::Health;

/// One descriptor of a request adds so many hits at most. It can ask for 2^53, beyond which Prometheus cannot tell one
/// from none: what a thousand others have asked for would not be seen any more.
const MAX_HITS: u64 = u32::MAX as u64;

/// What a statsd server knows unknown domains by that made way before it got them.
const OTHERS: &str = "(others)";

/// What became of a request that was to be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delayed {
    /// Its release time came.
    Passed,
    /// Its caller went away before.
    Cancelled,
    /// All permits were taken: where it would have been delayed, it was denied.
    NoPermit,
    /// The process ended before its release time: it passed.
    Released,
}

impl Metrics {
    /// A call has been answered, or refused.
    pub fn record_call(&self, took: Duration) {
        self.request_seconds.mine().observe(took.as_secs_f64());
    }

    /// A request was decided.
    pub fn record(&self, rules: &RuleMetrics, request: &Request, decision: &Decision<'_>) {
        if decision.over_limit { &self.requests.over_limit } else { &self.requests.ok }.mine().inc();
        if decision.only_shadow {
            self.only_shadow.inc();
        }
        if let Some(wait_ms) = decision.retry_after_ms() {
            self.retry_after_seconds.mine().observe(Duration::from_millis(wait_ms).as_secs_f64());
        }
        for status in &decision.statuses {
            match status {
                Status::NoLimit => self.record_unmatched(decision),
                Status::Unknown => {
                    self.record_unmatched(decision);
                    self.unknown_denied.inc(if decision.domain_found { "descriptor" } else { "domain" });
                }
                Status::Unlimited(_) => self.descriptors.unlimited.mine().inc(),
                Status::Limited(_) => self.descriptors.limited.mine().inc(),
            }
        }
        for limits in decision.limits.chunk_by(|one, next| one.asked.check.descriptor == next.asked.check.descriptor) {
            limits.iter().for_each(|limited| self.record_limited(rules, limited));
            if self.values.is_some()
                && let Some(limited) = decisive(limits, self.near_limit_ratio)
            {
                let record = |tally: &Tally, hits| tally.record(limited, hits, self.near_limit_ratio);
                self.record_at_path(rules, request, &limited.asked, record);
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

    /// Where so many hits are by what a limit says; `None` where nobody knows.
    pub fn around(&self, limited: &Limited<'_>, hits: u64) -> Option<Around> {
        Some(Around::of_limit(limited, limited.verdict()?, hits, self.near_limit_ratio))
    }

    fn record_unmatched(&self, decision: &Decision<'_>) {
        let Matches { no_rule, domain_not_found, .. } = &self.descriptors;
        if decision.domain_found { no_rule } else { domain_not_found }.mine().inc();
    }

    fn record_limited(&self, rules: &RuleMetrics, limited: &Limited<'_>) {
        let (source, decided_by) = (limited.asked.source, limited.answer.decided_by());
        if decided_by.is_without_store() {
            self.record_without_store(rules, source, decided_by);
        }
        if let Some(hits) = hits(&limited.asked) {
            self.by_rule.of(rules, source).record(limited, hits, self.near_limit_ratio);
        }
    }

    /// Counts a descriptor where `envoyproxy/ratelimit` does. What one limit of a rule says is counted there anyway.
    fn record_at_path(
        &self,
        rules: &RuleMetrics,
        request: &Request,
        asked: &Asked<'_>,
        record: impl FnOnce(&Tally, u64),
    ) {
        let (Some(values), Some(hits)) = (&self.values, hits(asked)) else { return };
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
                if let Some(hits) = hits(asked) {
                    self.by_rule.of(rules, asked.source).record_undecided(hits);
                }
            }
            if let Some(first) = limits.first() {
                self.record_at_path(rules, request, first, Tally::record_undecided);
            }
        }
    }

    fn record_without_store(&self, rules: &RuleMetrics, source: Source<'_>, decided_by: DecidedBy) {
        self.failure_answers.inc(decided_by);
        self.by_rule.of(rules, source).add_without_store(decided_by);
    }

    /// A call was refused because the request is not valid.
    pub fn record_invalid(&self) {
        self.requests.invalid.mine().inc();
    }

    /// The store could not decide a call, whatever becomes of it.
    pub fn record_call_without_store(&self) {
        self.calls_without_store.mine().inc();
    }

    /// A call failed because the store could not decide and a limit wants it so.
    pub fn record_unavailable(&self, rules: &RuleMetrics, request: &Request, undecided: &Undecided<'_>) {
        self.requests.unavailable.mine().inc();
        self.record_undecided(rules, request, &undecided.asked);
        self.record_without_store(rules, undecided.source, DecidedBy::FailureModeError);
    }

    /// A call failed because no rules are in force yet.
    pub fn record_no_rules(&self) {
        self.requests.no_rules.mine().inc();
    }

    /// A call failed because too many wait for the store.
    pub fn record_overloaded(&self, rules: &RuleMetrics, request: &Request, asked: &[Asked<'_>]) {
        self.requests.overloaded.mine().inc();
        self.record_undecided(rules, request, asked);
    }

    /// A call failed because its deadline was over before the store was asked.
    pub fn record_deadline_exceeded(&self) {
        self.requests.deadline_exceeded.mine().inc();
    }

    /// The store itself was asked, unless it turned out that it could not be.
    pub fn record_store(&self, error: Option<&StoreError>, took: Duration) {
        if !matches!(error, Some(StoreError::Down(_) | StoreError::Overloaded)) {
            self.store_seconds.mine().observe(took.as_secs_f64());
        }
    }

    /// A decision could not be had.
    pub fn record_store_error(&self, error: &StoreError) {
        self.store_errors.inc(error.kind());
    }

    /// So many requests more are delayed, or fewer.
    pub fn add_delayed(&self, requests: i64) {
        self.delayed_requests.add(requests);
    }

    /// A request is no longer delayed, or could not be.
    pub fn record_delayed(&self, delayed: Delayed) {
        match delayed {
            Delayed::Passed => &self.delayed.passed,
            Delayed::Cancelled => &self.delayed.cancelled,
            Delayed::NoPermit => &self.delayed.no_permit,
            Delayed::Released => &self.delayed.released,
        }
        .inc();
    }

    /// A request was denied because the store was known to deny it.
    pub fn record_denied_cache_hit(&self) {
        self.denied_cache_hits.mine().inc();
    }

    /// This has happened to a lease.
    pub fn record_lease(&self, event: LeaseEvent) {
        match event {
            LeaseEvent::Decided => self.lease_decisions.mine().inc(),
            LeaseEvent::Leased(hits) => self.leased_hits.inc_by(hits.into()),
            LeaseEvent::Unused(hits) => self.unused_leased_hits.inc_by(hits.into()),
        }
    }

    /// So many requests have travelled in one call to the store.
    pub fn record_store_call(&self, requests: usize) {
        self.store_call_requests.mine().observe(requests as f64);
    }

    /// The store is so.
    pub fn set_store_health(&self, health: Health) {
        let (up, down) = match health {
            Health::Up => (1.0, None),
            Health::Down(cause) => (0.0, Some(cause)),
            Health::Partly { slots, cause } => (f64::from(slots) / f64::from(Health::SLOTS), Some(cause)),
        };
        self.store_up.set(up);
        for cause in Health::CAUSES {
            self.store_down.with_label_values(&[cause]).set(i64::from(Some(cause) == down));
        }
    }

    /// So many counters are in memory, and take so much.
    pub fn set_memory(&self, counters: usize, bytes: usize) {
        self.memory_counters.set(i64::try_from(counters).unwrap_or(i64::MAX));
        self.memory_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Adjustments of these effects are in force, one for each, and no others.
    pub fn set_adjustments(&self, effects: impl IntoIterator<Item = &'static str>) {
        let mut counts = Effect::NAMES.map(|name| (name, 0));
        for effect in effects {
            counts.iter_mut().filter(|(name, _)| *name == effect).for_each(|(_, count)| *count += 1);
        }
        counts.iter().for_each(|(name, count)| self.adjustments.with_label_values(&[*name]).set(*count));
    }

    /// So many replicas are there.
    pub fn set_replicas(&self, counts: ReplicaCounts) {
        for (rules, number) in counts.each() {
            self.replicas.with_label_values(&[rules]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }

    /// New rules are in force: the series of rules that are gone go too.
    pub fn record_load(&self, new: &Rules) {
        self.loads.inc("success");
        self.rules_refused.store(false, Ordering::Relaxed);
        self.rules_loaded.set(i64::try_from(new.rules().len()).unwrap_or(i64::MAX));
        self.rules_info.reset();
        self.rules_info.with_label_values(&[new.version()]).set(1);
        self.domains_loaded.set(i64::try_from(new.domains()).unwrap_or(i64::MAX));
        self.by_rule.keep(new);
    }

    /// Rules were refused.
    pub fn record_load_error(&self) {
        self.loads.inc("error");
        self.rules_refused.store(true, Ordering::Relaxed);
    }

    /// A TLS handshake has ended so, one of [`HandshakeError::OUTCOMES`](crate::tls::HandshakeError::OUTCOMES).
    pub fn record_handshake(&self, outcome: &'static str) {
        self.tls_handshakes.inc(outcome);
    }

    /// A client got in without a certificate, or with a wrong one.
    pub fn record_unverified_client(&self, certificate: &'static str) {
        self.tls_unverified.inc(certificate);
    }

    /// Certificates were exchanged.
    pub fn record_tls_reload(&self) {
        self.tls_reloads.inc("success");
    }

    /// New certificates were refused.
    pub fn record_tls_reload_error(&self) {
        self.tls_reloads.inc("error");
    }

    /// The certificate for this, such as `server`, ends then.
    pub fn set_certificate(&self, role: &str, until: SystemTime) {
        let seconds = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.tls_expiry.with_label_values(&[role]).set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }
}

/// How many replicas there are, by what their rules are to those of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// The same; this one is among them.
    pub same: usize,
    /// Others.
    pub other: usize,
    /// Nobody can tell.
    pub unknown: usize,
}

impl ReplicaCounts {
    /// Each, by its name in metrics.
    pub(super) fn each(self) -> [(&'static str, usize); 3] {
        [("same", self.same), ("other", self.other), ("unknown", self.unknown)]
    }
}

/// So many hits count; `None`: what is refunded has been counted when it was taken.
fn hits(Asked { check, .. }: &Asked<'_>) -> Option<u64> {
    (!check.ask.is_refund()).then(|| check.ask.taken().min(MAX_HITS))
}

impl<K: PartialEq, const N: usize> Known<K, N> {
    pub(super) fn get(&self, value: K) -> u64 {
        self.0.iter().find(|(known, _)| *known == value).map_or(0, |(_, counter)| counter.get())
    }

    pub(super) fn inc(&self, value: K) {
        self.inc_by(value, 1);
    }

    pub(super) fn inc_by(&self, value: K, by: u64) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.inc_by(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Ask;
    use crate::descriptor::{Entry, Override, Unit};
    use crate::plan::{Names, Plan, PlanOptions, WithoutStore};
    use crate::rules::{Defaults, DomainConfig};
    use crate::store::Check;

    /// The rules of a domain that has none of its own.
    fn rules(domain: &str) -> Rules {
        Rules::new(vec![DomainConfig {
            name: domain.into(),
            defaults: Defaults::default(),
            origins: Vec::new(),
            descriptors: Vec::new(),
        }])
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

        metrics.record_load(&rules("mall"));
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
        // A request that is still under the old rules: looked up again, it would bring the series back.
        ask();
        assert_eq!(series(&metrics, "hits_total"), [""; 0]);
    }

    #[test]
    fn every_kind_of_error_and_every_mode_is_counted_as_what_it_is() {
        let metrics = Metrics::new(0.8).unwrap();
        metrics.record_store_error(&StoreError::Down("a password is wanted".into()));
        let shop = rules("shop");
        let source = Source::Override(shop.domain("shop").unwrap());
        let request = Request { domain: "shop".into(), descriptors: Vec::new() };
        metrics.record_unavailable(&RuleMetrics::new(&shop), &request, &Undecided { source, asked: Vec::new() });
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
