//! What is counted of each rule. There can be a hundred thousand of them, so one that is never asked costs nothing at a
//! scrape, and one that has not been asked for an hour is left out until it is asked again; it goes on from where it
//! was.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

use super::declaration::{NAMESPACE, OF_RULES, OF_RULES_WITHOUT_STORE};
use crate::decision::DecidedBy;
use crate::plan::{OVERRIDE, Source};
use crate::rules::Rules;

/// The series of a rule are left out when it has not been asked for so long.
const QUIET: Duration = Duration::from_secs(60 * 60);

/// What is counted of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfRule {
    Requests,
    OverLimitRequests,
    Hits,
    OverLimit,
    NearLimit,
    WithinLimit,
    Shadow,
    /// Where there is a penalty.
    Banned,
}

impl OfRule {
    pub(super) const NUMBER: usize = OfRule::Banned as usize + 1;
}

/// The counters of all rules that have been asked, over all snapshots: a rule that is loaded anew goes on counting.
#[derive(Debug)]
pub(super) struct ByRule {
    known: RwLock<ByName>,
    start: Instant,
}

/// By domain and rule.
type ByName = HashMap<Box<str>, HashMap<Box<str>, Arc<RuleCounters>>>;

/// The counters of one rule's limit.
#[derive(Debug)]
pub(super) struct RuleCounters {
    counts: [AtomicU64; OfRule::NUMBER],
    /// The answers without the store, in the order of [`DecidedBy::WITHOUT_STORE`].
    without_store: [AtomicU64; DecidedBy::WITHOUT_STORE.len()],
    domain: Box<str>,
    rule: Box<str>,
    /// Some of its snapshots had one.
    has_penalty: AtomicBool,
    /// Since the last scrape.
    asked: AtomicBool,
    /// The last scrape that found it asked, in milliseconds from the start.
    last_asked_ms: AtomicU64,
}

/// The counters of every limit of one snapshot, in the order of their ids; found when a limit is first used.
#[derive(Debug, Default)]
pub struct RuleMetrics {
    limits: Box<[OnceLock<Arc<RuleCounters>>]>,
    /// Of what clients bring along, in the order of the domains' ids.
    overrides: Box<[OnceLock<Arc<RuleCounters>>]>,
}

impl RuleMetrics {
    /// None found yet.
    pub fn new(rules: &Rules) -> RuleMetrics {
        RuleMetrics {
            limits: rules.limits().map(|_| OnceLock::new()).collect(),
            overrides: (0..rules.domains()).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Default for ByRule {
    fn default() -> Self {
        ByRule { known: RwLock::default(), start: Instant::now() }
    }
}

impl ByRule {
    /// The counters of a limit of this snapshot.
    pub(super) fn of<'r>(&self, rules: &'r RuleMetrics, source: Source<'_>) -> &'r RuleCounters {
        match source {
            Source::Rule(rule, limit) => rules.limits[limit.id]
                .get_or_init(|| self.find(&rule.domain, &limit.label, limit.config.penalty.is_some())),
            Source::Override(domain) => {
                rules.overrides[domain.id].get_or_init(|| self.find(&domain.name, OVERRIDE, false))
            }
        }
    }

    fn find(&self, domain: &str, rule: &str, has_penalty: bool) -> Arc<RuleCounters> {
        let known = self.known.read().get(domain).and_then(|rules| rules.get(rule)).map(Arc::clone);
        let counters = known.unwrap_or_else(|| {
            let mut known = self.known.write();
            let rules = known.entry(domain.into()).or_default();
            Arc::clone(rules.entry(rule.into()).or_insert_with(|| Arc::new(RuleCounters::new(domain, rule))))
        });
        counters.has_penalty.fetch_or(has_penalty, Ordering::Relaxed);
        counters
    }

    /// Forgets rules that are not among these. A few at a time, because requests under the new rules look for theirs
    /// meanwhile.
    pub(super) fn keep(&self, new: &Rules) {
        const AT_ONCE: usize = 64;

        // Of a million rules few may have been asked.
        let all = self.all();
        let mut gone: HashSet<(&str, &str)> = all.iter().map(|counters| (&*counters.domain, &*counters.rule)).collect();
        let limits = new.limits().map(|(rule, limit)| (&*rule.domain, &*limit.label));
        for kept in limits.chain(new.domain_names().map(|domain| (domain, OVERRIDE))) {
            gone.remove(&kept);
        }
        for some in Vec::from_iter(gone).chunks(AT_ONCE) {
            let mut known = self.known.write();
            for (domain, rule) in some {
                if let Some(rules) = known.get_mut(*domain) {
                    rules.remove(*rule);
                    if rules.is_empty() {
                        known.remove(*domain);
                    }
                }
            }
        }
    }

    fn all(&self) -> Vec<Arc<RuleCounters>> {
        self.known.read().values().flat_map(HashMap::values).map(Arc::clone).collect()
    }

    /// The families of all rules that are not quiet, in the order of their names. Each is made when it is its turn:
    /// together they take ten times the memory of the text that is made of them.
    pub(super) fn families(&self) -> impl Iterator<Item = MetricFamily> {
        let recent = self.recent(self.start.elapsed());
        let without_store = family_without_store(&recent);
        OF_RULES.iter().filter_map(move |of_rules| family(*of_rules, &recent)).chain(without_store)
    }

    /// Those asked not too long before `now`, which counts from the start.
    fn recent(&self, now: Duration) -> Vec<Arc<RuleCounters>> {
        let mut recent = self.all();
        recent.retain(|counters| counters.quiet_for(now) < QUIET);
        recent.sort_unstable_by(|a, b| (&a.domain, &a.rule).cmp(&(&b.domain, &b.rule)));
        recent
    }
}

impl RuleCounters {
    fn new(domain: &str, rule: &str) -> RuleCounters {
        RuleCounters {
            counts: Default::default(),
            without_store: Default::default(),
            domain: domain.into(),
            rule: rule.into(),
            has_penalty: AtomicBool::new(false),
            asked: AtomicBool::new(true),
            last_asked_ms: AtomicU64::new(0),
        }
    }

    /// Counts so many more.
    pub(super) fn add(&self, of_rule: OfRule, more: u64) {
        self.counts[of_rule as usize].fetch_add(more, Ordering::Relaxed);
        self.note_asked();
    }

    /// Counts an answer without the store.
    pub(super) fn add_without_store(&self, decided_by: DecidedBy) {
        if let Some(place) = DecidedBy::WITHOUT_STORE.iter().position(|known| *known == decided_by) {
            self.without_store[place].fetch_add(1, Ordering::Relaxed);
            self.note_asked();
        }
    }

    fn note_asked(&self) {
        // Mostly it is set already, and then nothing is written.
        if !self.asked.load(Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    fn quiet_for(&self, now: Duration) -> Duration {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if self.asked.swap(false, Ordering::Relaxed) {
            self.last_asked_ms.store(now_ms, Ordering::Relaxed);
        }
        Duration::from_millis(now_ms.saturating_sub(self.last_asked_ms.load(Ordering::Relaxed)))
    }
}

/// `None` where no rule has such a series.
fn family((of_rule, name, help): (OfRule, &str, &str), rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let has = |rule: &&Arc<RuleCounters>| of_rule != OfRule::Banned || rule.has_penalty.load(Ordering::Relaxed);
    let count = |rule: &Arc<RuleCounters>| rule.counts[of_rule as usize].load(Ordering::Relaxed);
    let metrics = rules.iter().filter(has).map(|rule| metric(rule, None, count(rule))).collect();
    of_metrics(name, help, metrics)
}

/// `None` where the store has always been there.
fn family_without_store(rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let (name, help) = OF_RULES_WITHOUT_STORE;
    let metrics = rules.iter().flat_map(|rule| {
        let counts = DecidedBy::WITHOUT_STORE.into_iter().zip(&rule.without_store);
        let counts = counts.map(|(decided_by, count)| (decided_by, count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).map(|(decided_by, count)| metric(rule, Some(decided_by), count))
    });
    of_metrics(name, help, metrics.collect())
}

fn of_metrics(name: &str, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    if metrics.is_empty() {
        return None;
    }
    let mut family = MetricFamily::default();
    family.set_name(format!("{NAMESPACE}_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(MetricType::COUNTER);
    family.set_metric(metrics);
    Some(family)
}

fn metric(rule: &RuleCounters, decided_by: Option<DecidedBy>, count: u64) -> Metric {
    let label = |name: &str, value: &str| {
        let mut label = LabelPair::default();
        label.set_name(name.to_owned());
        label.set_value(value.to_owned());
        label
    };
    let mut counter = Counter::default();
    counter.set_value(count as f64);
    let mut metric = Metric::default();
    let mut labels = vec![label("domain", &rule.domain), label("rule", &rule.rule)];
    labels.extend(decided_by.map(|decided_by| label("decided_by", decided_by.name())));
    metric.set_label(labels);
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(by_rule: &ByRule, minutes: u64) -> Vec<String> {
        let recent = by_rule.recent(Duration::from_secs(60 * minutes));
        recent.iter().map(|counters| format!("{}/{}", counters.domain, counters.rule)).collect()
    }

    #[test]
    fn a_rule_that_is_quiet_is_left_out_and_goes_on_from_where_it_was() {
        let by_rule = ByRule::default();
        let (ann, bob) = (by_rule.find("shop", "ann", false), by_rule.find("shop", "bob", false));
        ann.add(OfRule::Hits, 5);
        for minutes in [0, 30, 59] {
            bob.add(OfRule::Hits, 1);
            assert_eq!(names(&by_rule, minutes), ["shop/ann", "shop/bob"], "{minutes}");
        }
        assert_eq!(names(&by_rule, 61), ["shop/bob"]);
        ann.add(OfRule::Hits, 1);
        assert_eq!(names(&by_rule, 90), ["shop/ann", "shop/bob"]);
        let again = by_rule.find("shop", "ann", false);
        assert_eq!(again.counts[OfRule::Hits as usize].load(Ordering::Relaxed), 6);
        assert_eq!(names(&by_rule, 200), [""; 0]);
    }

    #[test]
    fn what_is_declared_stands_where_it_is_counted() {
        let places: Vec<usize> = OF_RULES.iter().map(|(of_rule, ..)| *of_rule as usize).collect();
        assert_eq!(places, (0..OfRule::NUMBER).collect::<Vec<_>>());
        let names: HashSet<&str> = OF_RULES.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(names.len(), OfRule::NUMBER);
    }
}
