//! Counters of each rule. There can be a hundred thousand rules, so a rule that no request has matched costs nothing at
//! a scrape, and one that no request has matched for an hour is left out until one does again. Its counters then
//! continue from their last values.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use prometheus::IntCounter;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::declaration::{FIGURES_OF_RULES, Figure, OF_RULES, OF_RULES_WITHOUT_STORE, OUTCOMES, REQUESTS_OF_RULES};
use super::names::{Departed, Places, Stat, StatPath};
use super::namespace::NAMESPACE;
use super::tally::{OfRule, Tally};
use crate::engine::asked::{OVERRIDE, Source};
use crate::engine::decision::{DecidedBy, Limited};
use crate::engine::rules::expect::Missing;
use crate::engine::rules::{Allowance, Rule, RuleLimit, Rules};

/// The series of a rule are left out after it has not been used for this long.
const QUIET: Duration = Duration::from_secs(60 * 60);

/// The value of a figure that a limit does not have.
const NONE: u64 = u64::MAX;

/// Number of parts of the table of counters. The first request of a rule waits at most while a scrape copies one part.
const PARTS: usize = 64;

/// The counters of all rules used so far, across snapshots: a rule that is loaded again continues its counters.
#[derive(Debug)]
pub(super) struct ByRule {
    /// Parts of the table, each with the rules whose names have its hash.
    known: Box<[Mutex<ByName>]>,
    hasher: RandomState,
    /// Held for reading while a scrape reads all paths, and for writing while a rule leaves its path, which the scrape
    /// would otherwise count twice. A rule that has no path yet enters one without this lock.
    moves: RwLock<()>,
    /// Counters of removed rules, kept until everything in them has been pushed.
    gone: Mutex<Vec<Arc<RuleCounters>>>,
    is_pushed: AtomicBool,
    /// Number of the latest snapshot.
    latest: AtomicU64,
    /// Where removed counters are kept for Prometheus.
    pub(super) departed: Option<Arc<Departed>>,
    start: Instant,
}

/// Counters by domain and by rule.
type ByName = HashMap<Box<str>, HashMap<Box<str>, Arc<RuleCounters>>>;

/// The counters of one limit of a rule.
#[derive(Debug)]
pub(super) struct RuleCounters {
    pub(super) tally: Tally,
    /// Counts the combined verdict of all the rule's limits; set for the first of several.
    together: OnceLock<Box<Tally>>,
    /// Answers given without the store, in the order of [`DecidedBy::WITHOUT_STORE`].
    without_store: [AtomicU64; DecidedBy::WITHOUT_STORE.len()],
    domain: Box<str>,
    rule: Box<str>,
    placed: Mutex<Placed>,
    /// The number of the limit, and its period in milliseconds, by the latest snapshot; `NONE` if it has none.
    number: AtomicU64,
    period_ms: AtomicU64,
    /// Whether the rule had a penalty in any of its snapshots.
    has_penalty: AtomicBool,
    /// Whether the rule has been used since the last scrape.
    asked: AtomicBool,
    /// The last scrape that found the rule used, in milliseconds since the start.
    last_asked_ms: AtomicU64,
}

/// Where `envoyproxy/ratelimit` counts a rule.
#[derive(Debug, Default)]
struct Placed {
    /// `None` if that depends on the request, or if nobody reads its statistics.
    place: Option<Arc<Place>>,
    /// Number of the snapshot that says so.
    snapshot: u64,
}

/// The path under which `envoyproxy/ratelimit` counts a rule.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) path: StatPath,
    limits: Limits,
    places: Option<Places>,
    /// The rule's counts when it moved to this path.
    before: [u64; Stat::NUMBER],
}

/// The number of a rule's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limits {
    One,
    /// Their combined verdict is counted once, by the counters of the first limit.
    Several,
}

/// A rule's counters at a path.
pub(super) struct AtPlace {
    pub(super) place: Arc<Place>,
    counters: Arc<RuleCounters>,
    pub(super) is_quiet: bool,
}

impl AtPlace {
    /// Returns the rule's count at this path.
    pub(super) fn stat(&self, stat: Stat) -> u64 {
        self.place.stat(self.counters.at_path(&self.place), stat)
    }
}

impl Place {
    fn stat(&self, tally: &Tally, stat: Stat) -> u64 {
        tally.stat(stat).saturating_sub(self.before[stat as usize])
    }

    /// Removes the rule from the path.
    fn leave(&self, departed: Option<&Arc<Departed>>, tally: &Tally) {
        if let (Some(departed), Some(places)) = (departed, &self.places) {
            departed.leave(places, Stat::ALL.map(|stat| self.stat(tally, stat)), 0);
        }
    }
}

/// The counters of every limit of one snapshot, in the order of the limits' IDs. Those of rules that have been used
/// before are there from the start, the others from the first use of their limit.
#[derive(Debug, Default)]
pub struct RuleMetrics {
    limits: Box<[OnceLock<Arc<RuleCounters>>]>,
    /// Counters of the limits that clients send in requests, in the order of the domains' IDs.
    overrides: Box<[OnceLock<Arc<RuleCounters>>]>,
    /// Counters of the entries that the domains expect, in the order of the domains' IDs.
    missing_entries: Box<[OnceLock<OfEntries>]>,
    /// Number of the snapshot; later ones have larger numbers.
    number: u64,
}

/// A counter for each entry that a domain expects, in their order.
type OfEntries = Box<[OnceLock<IntCounter>]>;

impl RuleMetrics {
    /// Returns the counter of an entry that is missing. `found` looks it up, at its first use in this snapshot.
    pub(super) fn missing_entry(
        &self,
        missing: &Missing<'_>,
        found: impl FnOnce(&str, &str) -> IntCounter,
    ) -> &IntCounter {
        let expected = missing.domain.expect.as_ref().map_or(0, |expect| expect.entries.len());
        let of_domain = || (0..expected).map(|_| OnceLock::new()).collect();
        let counters = self.missing_entries[missing.domain.id].get_or_init(of_domain);
        counters[missing.index].get_or_init(|| found(&missing.domain.name, missing.entry))
    }
}

impl Default for ByRule {
    fn default() -> Self {
        ByRule {
            known: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            moves: RwLock::default(),
            gone: Mutex::default(),
            is_pushed: AtomicBool::new(false),
            latest: AtomicU64::new(0),
            departed: None,
            start: Instant::now(),
        }
    }
}

impl ByRule {
    /// Returns the table of a new snapshot's counters, before the snapshot is in force. After a reload no request then
    /// looks up the counters of a rule that continues.
    pub(super) fn of_rules(&self, rules: &Rules) -> RuleMetrics {
        let is_any_known = self.known.iter().any(|part| !part.lock().is_empty());
        let known =
            |(rule, limit): (&Rule, &RuleLimit)| is_any_known.then(|| self.known(&rule.domain, &limit.label)).flatten();
        let slot = |counters: Option<Arc<RuleCounters>>| counters.map_or_else(OnceLock::new, OnceLock::from);
        RuleMetrics {
            limits: rules.limits().map(known).map(slot).collect(),
            overrides: (0..rules.domains()).map(|_| OnceLock::new()).collect(),
            missing_entries: (0..rules.domains()).map(|_| OnceLock::new()).collect(),
            number: self.latest.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Moves the rules that continue to their paths in the snapshot of these counters. Called when it is in force:
    /// until then they are counted at their previous paths. No request computes the path of such a rule.
    pub(super) fn take_paths(&self, rules: &Rules, metrics: &RuleMetrics) {
        for ((rule, limit), counters) in rules.limits().zip(&metrics.limits) {
            if let Some(counters) = counters.get() {
                self.prepare(counters, metrics.number, (rule, limit));
            }
        }
    }

    /// Returns the counters of a limit of this snapshot.
    pub(super) fn of<'r>(&self, rules: &'r RuleMetrics, source: Source<'_>) -> &'r RuleCounters {
        match source {
            Source::Rule(rule, limit) => self.of_limit(rules, rule, limit),
            Source::Override(domain) => rules.overrides[domain.id].get_or_init(|| self.find(&domain.name, OVERRIDE)),
        }
    }

    /// Returns the counters that hold the combined verdict of all limits of a rule.
    pub(super) fn of_all<'r>(&self, rules: &'r RuleMetrics, rule: &Rule) -> Option<&'r RuleCounters> {
        rule.limits.first().map(|first| self.of_limit(rules, rule, first))
    }

    fn of_limit<'r>(&self, rules: &'r RuleMetrics, rule: &Rule, limit: &RuleLimit) -> &'r RuleCounters {
        rules.limits[limit.id].get_or_init(|| {
            let counters = self.find(&rule.domain, &limit.label);
            self.prepare(&counters, rules.number, (rule, limit));
            counters
        })
    }

    /// Prepares a rule's counters for this limit of the snapshot with this number.
    fn prepare(&self, counters: &RuleCounters, snapshot: u64, (rule, limit): (&Rule, &RuleLimit)) {
        counters.has_penalty.fetch_or(limit.config.options.penalty.is_some(), Ordering::Relaxed);
        counters.set_figures(&limit.config.allowance);
        if !self.is_pushed() && self.departed.is_none() {
            return;
        }
        let limits = match &*rule.limits {
            _ if rule.has_values() => None,
            [_] => Some(Limits::One),
            [first, ..] => (first.id == limit.id).then_some(Limits::Several),
            [] => None,
        };
        self.count_at(counters, snapshot, limits.map(|limits| (limits, StatPath::of_rule(rule))));
    }

    /// Keeps the statistics of removed rules until they are pushed. Called before any rule is used.
    pub(super) fn push(&self) {
        self.is_pushed.store(true, Ordering::Relaxed);
    }

    fn is_pushed(&self) -> bool {
        self.is_pushed.load(Ordering::Relaxed)
    }

    fn part(&self, domain: &str, rule: &str) -> &Mutex<ByName> {
        &self.known[self.hasher.hash_one((domain, rule)) as usize % PARTS]
    }

    /// Returns the counters of a rule if it has been used.
    pub(super) fn known(&self, domain: &str, rule: &str) -> Option<Arc<RuleCounters>> {
        self.part(domain, rule).lock().get(domain).and_then(|rules| rules.get(rule)).map(Arc::clone)
    }

    fn find(&self, domain: &str, rule: &str) -> Arc<RuleCounters> {
        let mut known = self.part(domain, rule).lock();
        if let Some(counters) = known.get(domain).and_then(|rules| rules.get(rule)) {
            return Arc::clone(counters);
        }
        let counters = Arc::new(RuleCounters::new(domain, rule));
        known.entry(domain.into()).or_default().insert(rule.into(), Arc::clone(&counters));
        counters
    }

    /// Counts the rule at this path from now on, unless a later snapshot has said otherwise: a request in progress may
    /// still have the previous one.
    fn count_at(&self, counters: &RuleCounters, snapshot: u64, at: Option<(Limits, StatPath)>) {
        let is_there = |place: &Option<Arc<Place>>| match (place, &at) {
            (Some(place), Some((limits, path))) => place.limits == *limits && place.path == *path,
            (place, at) => place.is_none() && at.is_none(),
        };
        let (moving, mut placed) = loop {
            let is_moving = counters.place().is_some_and(|place| !is_there(&Some(place)));
            let moving = is_moving.then(|| self.moves.write());
            let mut placed = counters.placed.lock();
            if placed.snapshot > snapshot {
                return;
            }
            placed.snapshot = snapshot;
            if is_there(&placed.place) {
                return;
            }
            // Another thread may have entered a path in between.
            if moving.is_some() || placed.place.is_none() {
                break (moving, placed);
            }
        };
        let departed = self.departed.as_ref();
        let before = placed.place.take();
        if let Some(before) = &before {
            before.leave(departed, counters.at_path(before));
        }
        placed.place = at.map(|(limits, path)| {
            let tally = counters.tally(limits);
            if before.is_none_or(|before| before.limits != limits) {
                // The counts so far have been pushed under the previous path.
                Stat::ALL.iter().for_each(|stat| tally.note_pushed(*stat, tally.unpushed(*stat)));
            }
            let places = departed.map(|departed| departed.places(&path));
            if let (Some(departed), Some(places)) = (departed, &places) {
                departed.enter(places);
            }
            Arc::new(Place { path, limits, places, before: Stat::ALL.map(|stat| tally.stat(stat)) })
        });
        drop(moving);
    }

    /// Removes the counters of rules that are not in `new`.
    pub(super) fn keep(&self, new: &Rules) {
        // Few of a million rules may have been used.
        let all = self.all();
        let mut gone: HashSet<(&str, &str)> = all.iter().map(|counters| (&*counters.domain, &*counters.rule)).collect();
        let limits = new.limits().map(|(rule, limit)| (&*rule.domain, &*limit.label));
        for kept in limits.chain(new.domain_names().map(|domain| (domain, OVERRIDE))) {
            gone.remove(&kept);
        }
        for (domain, rule) in gone {
            let _moves = self.moves.write();
            let mut known = self.part(domain, rule).lock();
            let Some(rules) = known.get_mut(domain) else { continue };
            let removed = rules.remove(rule);
            if rules.is_empty() {
                known.remove(domain);
            }
            drop(known);
            if let Some(counters) = removed
                && let Some(place) = counters.place()
            {
                place.leave(self.departed.as_ref(), counters.at_path(&place));
                self.gone.lock().extend(self.is_pushed().then_some(counters));
            }
        }
    }

    /// Calls `each` with the domain, the rule and the reading of all counters, part by part.
    pub(super) fn each<R>(&self, mut each: impl FnMut(&str, &str, R), read: impl Fn(&RuleCounters) -> R) {
        for part in &self.known {
            let part: Vec<Arc<RuleCounters>> = part.lock().values().flat_map(HashMap::values).map(Arc::clone).collect();
            part.iter().for_each(|counters| each(&counters.domain, &counters.rule, read(counters)));
        }
    }

    fn all(&self) -> Vec<Arc<RuleCounters>> {
        let mut all = Vec::new();
        for part in &self.known {
            all.extend(part.lock().values().flat_map(HashMap::values).map(Arc::clone));
        }
        all
    }

    /// Returns the counters that may have an increase to push.
    pub(super) fn to_push(&self) -> Vec<Arc<RuleCounters>> {
        let gone = self.gone.lock().clone();
        self.all().into_iter().chain(gone).filter(|counters| counters.has_unpushed()).collect()
    }

    /// Drops the counters of removed rules that have nothing to push and that no request in flight still uses.
    pub(super) fn forget_pushed(&self) {
        self.gone.lock().retain(|counters| Arc::strong_count(counters) > 1 || counters.has_unpushed());
    }

    /// Returns the rules that have a path, and the result of `then`, which runs before any of them can leave its path.
    pub(super) fn paths<T>(&self, now: Duration, then: impl FnOnce() -> T) -> (Vec<AtPlace>, T) {
        let _moves = self.moves.read();
        let at_place = |counters: Arc<RuleCounters>| {
            let is_quiet = counters.quiet_for(now) >= QUIET;
            Some(AtPlace { place: counters.place()?, counters, is_quiet })
        };
        (self.all().into_iter().filter_map(at_place).collect(), then())
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the families of all rules that are not quiet, in the order of their names. Each family is built when it
    /// is reached: together they would take ten times the memory of the resulting text.
    pub(super) fn families(&self) -> impl Iterator<Item = MetricFamily> {
        let recent = self.recent(self.now());
        let (requests, without_store) = (family_of_requests(&recent), family_without_store(&recent));
        let figures: Vec<MetricFamily> =
            FIGURES_OF_RULES.iter().filter_map(|figure| family_of_figure(*figure, &recent)).collect();
        let families = OF_RULES.iter().filter_map(move |of_rules| family(*of_rules, &recent));
        requests.into_iter().chain(families).chain(without_store).chain(figures)
    }

    /// Returns the counters used recently enough before `now`, which counts from the start.
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
            tally: Tally::default(),
            together: OnceLock::new(),
            without_store: Default::default(),
            domain: domain.into(),
            rule: rule.into(),
            placed: Mutex::default(),
            number: AtomicU64::new(NONE),
            period_ms: AtomicU64::new(NONE),
            has_penalty: AtomicBool::new(false),
            asked: AtomicBool::new(true),
            last_asked_ms: AtomicU64::new(0),
        }
    }

    fn set_figures(&self, allowance: &Allowance) {
        let (number, period_ms) = match allowance {
            Allowance::Unlimited => (NONE, NONE),
            Allowance::Limited(limit) => (limit.number(), limit.window().map_or(NONE, |_| limit.period_ms())),
        };
        self.number.store(number, Ordering::Relaxed);
        self.period_ms.store(period_ms, Ordering::Relaxed);
    }

    fn figure(&self, figure: Figure) -> Option<f64> {
        let known = |value: &AtomicU64| Some(value.load(Ordering::Relaxed)).filter(|value| *value != NONE);
        match figure {
            Figure::Number => known(&self.number).map(|number| number as f64),
            Figure::Period => known(&self.period_ms).map(|ms| ms as f64 / 1_000.0),
        }
    }

    /// Returns where `envoyproxy/ratelimit` counts the rule.
    pub(super) fn place(&self) -> Option<Arc<Place>> {
        self.placed.lock().place.clone()
    }

    /// Returns the tally that is counted at this path.
    pub(super) fn at_path(&self, place: &Place) -> &Tally {
        self.tally(place.limits)
    }

    fn tally(&self, limits: Limits) -> &Tally {
        match limits {
            Limits::One => &self.tally,
            Limits::Several => self.together.get_or_init(Box::default),
        }
    }

    /// Returns the number of answers given without the store.
    pub(super) fn without_store(&self) -> u64 {
        self.without_store.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn has_unpushed(&self) -> bool {
        self.place().is_some_and(|place| self.at_path(&place).has_unpushed())
    }

    /// Counts the combined verdict of all limits of the rule.
    pub(super) fn count_together(&self, count: impl FnOnce(&Tally)) {
        count(self.tally(Limits::Several));
        self.note_asked();
    }

    /// Counts the hits of a call that failed.
    pub(super) fn record_undecided(&self, hits: u64) {
        self.tally.record_undecided(hits);
        self.note_asked();
    }

    /// Counts a limit's verdict on a request of `hits` hits.
    pub(super) fn record(&self, limited: &Limited<'_>, hits: u64, near_limit_ratio: f32) {
        self.tally.record(limited, hits, near_limit_ratio);
        self.note_asked();
    }

    /// Counts hits that a request reports: refunds, or what a stream has used.
    pub(super) fn record_report(&self, of_rule: OfRule, hits: u64) {
        self.tally.add(of_rule, hits);
        self.note_asked();
    }

    /// Counts an answer given without the store.
    pub(super) fn add_without_store(&self, decided_by: DecidedBy) {
        if let Some(place) = DecidedBy::WITHOUT_STORE.iter().position(|known| *known == decided_by) {
            self.without_store[place].fetch_add(1, Ordering::Relaxed);
            self.note_asked();
        }
    }

    fn note_asked(&self) {
        // The flag is usually set already; then nothing is written.
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

/// Builds the family of one quantity, or `None` if no rule has such a series.
fn family((of_rule, name, help): (OfRule, &str, &str), rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let count = |rule: &Arc<RuleCounters>| rule.tally.get(of_rule);
    let has = |rule: &&Arc<RuleCounters>| match of_rule {
        OfRule::Banned => rule.has_penalty.load(Ordering::Relaxed),
        OfRule::KnownDenied | OfRule::Settled => count(rule) > 0,
        _ => true,
    };
    let metrics = rules.iter().filter(has).map(|rule| metric(rule, None, count(rule))).collect();
    of_metrics(name, help, metrics)
}

fn family_of_requests(rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let (name, help) = REQUESTS_OF_RULES;
    let metrics = rules.iter().flat_map(|rule| {
        let counts = OUTCOMES.into_iter().map(|(of_rule, outcome)| (of_rule, outcome, rule.tally.get(of_rule)));
        let has = |of_rule| matches!(of_rule, OfRule::WithinLimitRequests | OfRule::OverLimitRequests);
        let counts = counts.filter(move |(of_rule, _, count)| *count > 0 || has(*of_rule));
        counts.map(|(_, outcome, count)| metric(rule, Some(("outcome", outcome)), count))
    });
    of_metrics(name, help, metrics.collect())
}

/// Builds the family of failure mode answers, or `None` if the store has always been available.
fn family_without_store(rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let (name, help) = OF_RULES_WITHOUT_STORE;
    let metrics = rules.iter().flat_map(|rule| {
        let counts = DecidedBy::WITHOUT_STORE.into_iter().zip(&rule.without_store);
        let counts = counts.map(|(decided_by, count)| (decided_by, count.load(Ordering::Relaxed)));
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(decided_by, count)| metric(rule, Some(("decided_by", decided_by.name())), count))
    });
    of_metrics(name, help, metrics.collect())
}

/// Builds the family of a figure of the rules' limits.
fn family_of_figure((figure, name, help): (Figure, &str, &str), rules: &[Arc<RuleCounters>]) -> Option<MetricFamily> {
    let gauge = |rule: &Arc<RuleCounters>| {
        let mut gauge = Gauge::default();
        gauge.set_value(rule.figure(figure)?);
        let mut metric = labelled(rule, None);
        metric.set_gauge(gauge);
        Some(metric)
    };
    let mut family = of_metrics(name, help, rules.iter().filter_map(gauge).collect())?;
    family.set_field_type(MetricType::GAUGE);
    Some(family)
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

/// Builds a rule's counter, with an additional label if there is one.
fn metric(rule: &RuleCounters, more: Option<(&str, &str)>, count: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(count as f64);
    let mut metric = labelled(rule, more);
    metric.set_counter(counter);
    metric
}

/// Builds a rule's metric without a value.
fn labelled(rule: &RuleCounters, more: Option<(&str, &str)>) -> Metric {
    let label = |name: &str, value: &str| {
        let mut label = LabelPair::default();
        label.set_name(name.to_owned());
        label.set_value(value.to_owned());
        label
    };
    let mut metric = Metric::default();
    let mut labels = vec![label("domain", &rule.domain), label("rule", &rule.rule)];
    labels.extend(more.map(|(name, value)| label(name, value)));
    metric.set_label(labels);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::declaration::ELSEWHERE;
    use crate::metrics::names::Exposition;
    use crate::sources::files::load::{self, LoadOptions, Sources};

    fn names(by_rule: &ByRule, minutes: u64) -> Vec<String> {
        let recent = by_rule.recent(Duration::from_secs(60 * minutes));
        recent.iter().map(|counters| format!("{}/{}", counters.domain, counters.rule)).collect()
    }

    #[test]
    fn a_rule_that_is_quiet_is_left_out_and_goes_on_from_where_it_was() {
        let by_rule = ByRule::default();
        let (ann, bob) = (by_rule.find("shop", "ann"), by_rule.find("shop", "bob"));
        let add = |counters: &RuleCounters, hits| {
            counters.tally.add(OfRule::Hits, hits);
            counters.note_asked();
        };
        add(&ann, 5);
        for minutes in [0, 30, 59] {
            add(&bob, 1);
            assert_eq!(names(&by_rule, minutes), ["shop/ann", "shop/bob"], "{minutes}");
        }
        assert_eq!(names(&by_rule, 61), ["shop/bob"]);
        add(&ann, 1);
        assert_eq!(names(&by_rule, 90), ["shop/ann", "shop/bob"]);
        let again = by_rule.find("shop", "ann");
        assert_eq!(again.tally.get(OfRule::Hits), 6);
        assert_eq!(names(&by_rule, 200), [""; 0]);
    }

    /// Returns rules of the domain `shop`, one for each of these keys.
    fn rules(keys: &[&str]) -> Rules {
        let limit = "rate_limit: {unit: year, requests_per_unit: 9}";
        rules_of(keys.iter().map(|key| format!("- {{key: {key}, {limit}}}\n")).collect())
    }

    /// Returns a rule of this key, which has the same name whatever its key.
    fn named(key: &str) -> Rules {
        rules_of(format!("- {{key: {key}, rate_limit: {{name: one, unit: year, requests_per_unit: 9}}}}\n"))
    }

    fn rules_of(descriptors: String) -> Rules {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, format!("domain: shop\ndescriptors:\n{descriptors}")).unwrap();
        load::load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
    }

    /// Uses the rule of each limit.
    fn ask(by_rule: &ByRule, metrics: &RuleMetrics, rules: &Rules) {
        rules.limits().for_each(|(rule, limit)| by_rule.of(metrics, Source::Rule(rule, limit)).note_asked());
    }

    fn paths(by_rule: &ByRule) -> Vec<String> {
        let (at, ()) = by_rule.paths(Duration::ZERO, || ());
        let mut paths: Vec<_> = at.iter().map(|at| at.place.path.as_str().to_owned()).collect();
        paths.sort();
        paths
    }

    #[test]
    fn a_scrape_holds_up_no_first_request_of_a_rule() {
        let departed = Some(Arc::new(Departed::new(Exposition::default())));
        let by_rule = ByRule { departed, ..ByRule::default() };
        let (by_rule, rules) = (Arc::new(by_rule), rules(&["ann", "bob"]));
        let (asked, was_asked) = std::sync::mpsc::channel();
        let scraped = Arc::clone(&by_rule);
        let (_, is_asked) = scraped.paths(Duration::ZERO, || {
            std::thread::spawn(move || {
                ask(&by_rule, &by_rule.of_rules(&rules), &rules);
                asked.send(())
            });
            was_asked.recv_timeout(Duration::from_secs(10))
        });
        assert_eq!(is_asked, Ok(()));
        assert_eq!(paths(&scraped), ["shop.ann", "shop.bob"]);
    }

    #[test]
    fn the_counters_of_a_rule_that_continues_are_there_before_its_first_request() {
        let (by_rule, old) = (ByRule::default(), rules(&["ann", "bob"]));
        ask(&by_rule, &by_rule.of_rules(&old), &old);
        let new = rules(&["bob", "cat"]);
        let metrics = by_rule.of_rules(&new);
        let known = new.limits().map(|(_, limit)| (&*limit.label, metrics.limits[limit.id].get().is_some()));
        let mut known: Vec<_> = known.collect();
        known.sort();
        assert_eq!(known, [("bob", true), ("cat", false)]);
        by_rule.keep(&new);
        assert!(by_rule.known("shop", "ann").is_none());
        assert!(Arc::ptr_eq(&by_rule.known("shop", "bob").unwrap(), metrics.limits[0].get().unwrap()));
    }

    #[test]
    fn a_rule_moves_when_its_new_path_is_in_force_and_never_back() {
        let by_rule = ByRule::default();
        by_rule.push();
        let (old, new) = (named("ann"), named("bob"));
        let of_old = by_rule.of_rules(&old);
        ask(&by_rule, &of_old, &old);
        let of_new = by_rule.of_rules(&new);
        assert_eq!(paths(&by_rule), ["shop.ann"], "the new rules are not in force yet");
        by_rule.take_paths(&new, &of_new);
        assert_eq!(paths(&by_rule), ["shop.bob"]);
        // A thread that has found the counters by the old rules is this late.
        let (rule, limit) = old.limits().next().unwrap();
        let counters = of_old.limits[limit.id].get().unwrap();
        by_rule.prepare(counters, of_old.number, (rule, limit));
        assert_eq!(paths(&by_rule), ["shop.bob"]);
    }

    #[test]
    fn paths_are_computed_only_where_statistics_are_read() {
        let used = |by_rule: ByRule| {
            let rules = rules(&["ann", "bob"]);
            ask(&by_rule, &by_rule.of_rules(&rules), &rules);
            paths(&by_rule)
        };
        assert_eq!(used(ByRule::default()), [""; 0]);
        let pushed = ByRule::default();
        pushed.push();
        assert_eq!(used(pushed), ["shop.ann", "shop.bob"]);
        let departed = Some(Arc::new(Departed::new(Exposition::default())));
        assert_eq!(used(ByRule { departed, ..ByRule::default() }), ["shop.ann", "shop.bob"]);
    }

    #[test]
    fn what_is_declared_stands_where_it_is_counted() {
        let requests = OUTCOMES.iter().map(|(of_rule, _)| *of_rule as usize);
        let of_rules = OF_RULES.iter().map(|(of_rule, ..)| *of_rule as usize);
        let elsewhere = ELSEWHERE.iter().map(|of_rule| *of_rule as usize);
        let places: Vec<usize> = requests.chain(of_rules).chain(elsewhere).collect();
        assert_eq!(places, (0..OfRule::NUMBER).collect::<Vec<_>>());
        let names: HashSet<&str> = OF_RULES.iter().map(|(_, name, _)| *name).collect();
        assert_eq!(names.len(), OF_RULES.len());
    }
}
