//! What happens to a request, and what is counted then.

use std::time::{Duration, SystemTime};

use super::by_rule::{OfRule, RuleCounters, RuleMetrics};
use super::declaration::{Known, Matches, Metrics};
use crate::algorithm::Verdict;
use crate::decision::{DecidedBy, Decision, Limited, Status};
use crate::descriptor::Role;
use crate::plan::Source;
use crate::rules::Rules;
use crate::store::StoreError;
use crate::store::redis::Health;

/// One descriptor of a request adds so many hits at most. It can ask for 2^53, beyond which Prometheus cannot tell one
/// from none: what a thousand others have asked for would not be seen any more.
const MAX_HITS: u64 = u32::MAX as u64;

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
    pub fn record(&self, rules: &RuleMetrics, decision: &Decision<'_>) {
        if decision.over_limit { &self.requests.over_limit } else { &self.requests.ok }.mine().inc();
        if decision.only_shadow {
            self.only_shadow.inc();
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
        for limited in &decision.limits {
            self.record_limited(rules, limited);
        }
    }

    fn record_unmatched(&self, decision: &Decision<'_>) {
        let Matches { no_rule, domain_not_found, .. } = &self.descriptors;
        if decision.domain_found { no_rule } else { domain_not_found }.mine().inc();
    }

    fn record_limited(&self, rules: &RuleMetrics, limited: &Limited<'_>) {
        let decided_by = limited.answer.decided_by();
        if decided_by.is_without_store() {
            self.record_without_store(rules, limited.asked.source, decided_by);
        }
        let ask = limited.asked.check.ask;
        // What is refunded has been counted when it was taken.
        if !ask.is_refund() {
            self.by_rule.of(rules, limited.asked.source).record(
                limited,
                ask.taken().min(MAX_HITS),
                self.near_limit_ratio,
            );
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

    /// A call failed because the store could not decide and this limit wants it so.
    pub fn record_unavailable(&self, rules: &RuleMetrics, source: Source<'_>) {
        self.requests.unavailable.mine().inc();
        self.record_without_store(rules, source, DecidedBy::FailureModeError);
    }

    /// A call failed because no rules are in force yet.
    pub fn record_no_rules(&self) {
        self.requests.no_rules.mine().inc();
    }

    /// A call failed because too many wait for the store.
    pub fn record_overloaded(&self) {
        self.requests.overloaded.mine().inc();
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

    /// A lease has decided a request, so that the store behind it was not asked.
    pub fn record_lease(&self) {
        self.lease_decisions.mine().inc();
    }

    /// The store is up.
    pub fn set_store_up(&self) {
        self.store_up.set(1);
        self.clear_store_down();
    }

    /// The store is down: why, in one word.
    pub fn set_store_down(&self, cause: &str) {
        self.store_up.set(0);
        self.clear_store_down();
        self.store_down.with_label_values(&[cause]).set(1);
    }

    fn clear_store_down(&self) {
        for cause in Health::CAUSES {
            self.store_down.with_label_values(&[cause]).set(0);
        }
    }

    /// So many counters are in memory, and take so much.
    pub fn set_memory(&self, counters: usize, bytes: usize) {
        self.memory_counters.set(i64::try_from(counters).unwrap_or(i64::MAX));
        self.memory_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// New rules are in force: the series of rules that are gone go too.
    pub fn record_load(&self, new: &Rules) {
        self.loads.inc("success");
        self.rules_loaded.set(i64::try_from(new.rules().len()).unwrap_or(i64::MAX));
        self.domains_loaded.set(i64::try_from(new.domains()).unwrap_or(i64::MAX));
        self.by_rule.keep(new);
    }

    /// Rules were refused.
    pub fn record_load_error(&self) {
        self.loads.inc("error");
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

impl RuleCounters {
    fn record(&self, limited: &Limited<'_>, hits: u64, near_limit_ratio: f64) {
        self.add(OfRule::Requests, 1);
        self.add(OfRule::Hits, hits);
        if limited.banned_ms().is_some() {
            self.add(OfRule::Banned, hits);
        }
        // What a failure mode answers is no statement about the limit.
        let Some(verdict) = limited.verdict() else { return };
        let capacity = limited.asked.check.limit.capacity();
        let around = Around::of(verdict, capacity, near_limit(capacity, near_limit_ratio), hits);
        self.add(OfRule::NearLimit, around.near);
        if verdict.allowed {
            return self.add(OfRule::WithinLimit, hits);
        }
        self.add(OfRule::OverLimitRequests, 1);
        self.add(OfRule::OverLimit, around.over);
        if limited.role() == Role::Shadow {
            self.add(OfRule::Shadow, around.over);
        }
    }
}

/// How many hits of a request are beyond what is near a limit, and beyond the limit.
#[derive(Debug, PartialEq, Eq)]
struct Around {
    near: u64,
    over: u64,
}

impl Around {
    /// Where a denied request is charged, it uses what is left before it is over: that is near the limit, and only the
    /// rest is over.
    fn of(verdict: Verdict, capacity: u32, near: u64, hits: u64) -> Around {
        let capacity = u64::from(capacity);
        if verdict.allowed {
            let used = capacity.saturating_sub(verdict.remaining.into());
            return Around { near: used.saturating_sub(near).min(hits), over: 0 };
        }
        let over = verdict.excess.map_or(hits, |excess| hits.min(excess.into()));
        let before = capacity.saturating_sub(hits - over);
        Around { near: if over < hits { capacity.saturating_sub(near.max(before)) } else { 0 }, over }
    }
}

/// How many hits may be used before a limit is near. In single precision, as `envoyproxy/ratelimit` computes it: 0.7 of
/// 90 is 63, and 62.99… in double precision.
fn near_limit(capacity: u32, ratio: f64) -> u64 {
    (capacity as f32 * ratio as f32).floor() as u64
}

impl<K: PartialEq, const N: usize> Known<K, N> {
    pub(super) fn inc(&self, value: K) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Ask;
    use crate::descriptor::{Descriptor, Entry, Override, Request, Unit};
    use crate::plan::{Names, Plan, PlanOptions, WithoutStore};
    use crate::rules::{Defaults, DomainConfig};
    use crate::store::Check;

    #[test]
    fn a_request_that_comes_over_the_limit_is_near_it_first() {
        let said = |allowed, remaining, excess| {
            let reset_after_ms = 1_000;
            Verdict { allowed, remaining, excess, reset_after_ms, retry_after_ms: Some(0), delay_ms: 0 }
        };
        let of = |verdict, hits| {
            let Around { near, over } = Around::of(verdict, 20, 16, hits);
            (near, over)
        };
        // Up to near, from far, within it.
        assert_eq!(of(said(true, 4, None), 6), (0, 0));
        assert_eq!(of(said(true, 2, None), 4), (2, 0));
        assert_eq!(of(said(true, 1, None), 3), (3, 0));
        // From 10 to 25, from 18 to 23, then all of it, and all at once.
        assert_eq!(of(said(false, 0, Some(5)), 15), (4, 5));
        assert_eq!(of(said(false, 0, Some(3)), 5), (2, 3));
        assert_eq!(of(said(false, 0, Some(8)), 5), (0, 5));
        assert_eq!(of(said(false, 0, Some(10)), 30), (4, 10));
        // What a denial costs nothing counts as over.
        assert_eq!(of(said(false, 2, None), 5), (0, 5));
    }

    #[test]
    fn a_limit_is_near_where_envoyproxy_ratelimit_says_so() {
        let near = [(15, 0.8), (20, 0.8), (10, 0.8), (8, 0.8), (14, 0.8), (5, 0.8), (0, 0.8), (90, 0.7), (180, 0.7)];
        let near = near.map(|(capacity, ratio)| near_limit(capacity, ratio));
        assert_eq!(near, [12, 16, 8, 6, 11, 4, 0, 63, 126]);
        assert_eq!(near_limit(100_000_007, 0.8), 80_000_008);
    }

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
                known: |_: &Check| None,
                decide: |_: &[Check]| unreachable!("it fails open"),
                retry_after_ms: 0,
            })
        };
        let ask = || metrics.record(&of_shop, &decide().unwrap());
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
        let domain = shop.domain("shop").unwrap();
        metrics.record_unavailable(&RuleMetrics::new(&shop), Source::Override(domain));
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
