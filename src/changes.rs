//! What new rules change beside others, limit by limit, and whose counters start afresh.
//!
//! A counter is kept where both sets of rules give it the same name, so names are what is compared ([`Key`]). It
//! belongs to no rule: where a rule is added or removed, a request that reaches it may reach another one in the other
//! set, and find its counter there.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::algorithm::{Initial, Limit, Options, Weighting};
use crate::counters;
use crate::descriptor::{Entry, Role, Unit};
use crate::rules::{Allowance, Defaults, LimitConfig, Rule, RuleLimit, Rules};
use crate::store::{Key, Origin};

/// One difference between two sets of rules.
#[derive(Clone, Copy, Debug)]
pub struct Change<'r> {
    /// Where it is.
    pub domain: &'r str,
    /// What it is.
    pub kind: Kind<'r>,
    /// What becomes of the counters.
    pub counters: Counters,
}

/// What a difference is.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'r> {
    /// The domain is new, with so many limits.
    DomainAdded(usize),
    /// The domain is gone, with so many limits.
    DomainRemoved(usize),
    /// What a limit is that a request brings along.
    Defaults(Defaults, Defaults),
    /// Its rules with wildcards are in another order.
    Order,
    /// A limit is new; requests that it applies to came to this other rule before.
    Added(&'r RuleLimit, Option<&'r Rule>),
    /// A limit is gone; requests that it applied to come to this other rule now.
    Removed(&'r RuleLimit, Option<&'r Rule>),
    /// A limit says something else than before.
    Changed(Side<'r>, Side<'r>),
}

/// A limit that there was or is.
#[derive(Clone, Copy, Debug)]
pub struct Side<'r> {
    /// Its rule.
    pub rule: &'r Rule,
    /// The limit.
    pub limit: &'r RuleLimit,
}

/// What becomes of the counters of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// There are none, before or after.
    None,
    /// They go on.
    Kept,
    /// What has been counted counts no more: everybody has a fresh allowance.
    Afresh,
    /// They go on, but the denials that lead to a ban are counted anew, and bans are over.
    PenaltyAfresh,
}

impl Counters {
    /// Something that has been counted counts no more.
    pub fn are_lost(self) -> bool {
        matches!(self, Counters::Afresh | Counters::PenaltyAfresh)
    }
}

/// Calls `visit` with every difference: domain by domain as they are called, and then in the order of the new rules,
/// with what is gone at the end.
pub fn compare<'r>(old: &'r Rules, new: &'r Rules, visit: &mut impl FnMut(Change<'r>)) {
    domains(old, new, visit);
    let index = Index::of(old);
    let mut seen = vec![false; old.rules().len()];
    let mut order = Order::default();
    for rule in new.rules() {
        if old.domain(&rule.domain).is_none() {
            continue;
        }
        match index.find(rule, &seen) {
            Some(at) => {
                seen[at] = true;
                order.note(rule, at, visit);
                if !is_same(&old.rules()[at], rule) {
                    changed(&old.rules()[at], rule, visit);
                }
            }
            None => moved(rule, (new, old), Kind::Added, visit),
        }
    }
    let gone = old.rules().iter().zip(seen).filter(|(rule, seen)| !seen && new.domain(&rule.domain).is_some());
    gone.for_each(|(rule, _)| moved(rule, (old, new), Kind::Removed, visit));
}

/// What is to be said of whole domains.
fn domains<'r>(old: &'r Rules, new: &'r Rules, visit: &mut impl FnMut(Change<'r>)) {
    let limits = |of: &'r Rules| {
        let mut limits: HashMap<&str, usize> = HashMap::new();
        of.rules().iter().for_each(|rule| *limits.entry(&rule.domain).or_default() += rule.limits.len());
        move |domain: &str| limits.get(domain).copied().unwrap_or(0)
    };
    let (limits_before, limits_after) = (limits(old), limits(new));
    let mut names: Vec<&'r str> = old.domain_names().chain(new.domain_names()).collect();
    names.sort_unstable();
    names.dedup();
    for domain in names {
        let (kind, counters) = match (old.domain(domain), new.domain(domain)) {
            (None, _) => (Kind::DomainAdded(limits_after(domain)), Counters::None),
            (_, None) => (Kind::DomainRemoved(limits_before(domain)), Counters::None),
            (Some(before), Some(after)) if before.defaults != after.defaults => {
                let is_kept = before.defaults.algorithm == after.defaults.algorithm;
                let counters = if is_kept { Counters::Kept } else { Counters::Afresh };
                (Kind::Defaults(before.defaults, after.defaults), counters)
            }
            _ => continue,
        };
        visit(Change { domain, kind, counters });
    }
}

/// Notices that rules with wildcards, of which the first that matches wins, have changed places.
#[derive(Default)]
struct Order<'r> {
    /// Of the last one: its domain, and its place in the old order; `None` once it has been said.
    last: Option<(&'r str, Option<usize>)>,
}

impl<'r> Order<'r> {
    fn note(&mut self, rule: &'r Rule, place: usize, visit: &mut impl FnMut(Change<'r>)) {
        if !rule.path.contains('*') {
            return;
        }
        let domain = &*rule.domain;
        self.last = match self.last {
            Some((last, Some(before))) if last == domain && before > place => {
                visit(Change { domain, kind: Kind::Order, counters: Counters::None });
                Some((domain, None))
            }
            Some((last, None)) if last == domain => self.last,
            _ => Some((domain, Some(place))),
        };
    }
}

/// Finds a rule by its domain and path. It takes a few bytes for each.
struct Index<'r> {
    rules: &'r [Rule],
    places: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl<'r> Index<'r> {
    fn of(rules: &'r Rules) -> Index<'r> {
        let (rules, hasher) = (rules.rules(), DefaultHashBuilder::default());
        let mut places = HashTable::with_capacity(rules.len());
        let hash = |at: &usize| hasher.hash_one((&rules[*at].domain, &rules[*at].path));
        for at in 0..rules.len() {
            places.insert_unique(hash(&at), at, hash);
        }
        Index { rules, places, hasher }
    }

    /// The first that has not been seen. Two may have one path, where a key has an equals sign in it.
    fn find(&self, wanted: &Rule, seen: &[bool]) -> Option<usize> {
        let is_wanted = |at: &usize| {
            let rule = &self.rules[*at];
            !seen[*at] && rule.path == wanted.path && rule.domain == wanted.domain && rule.levels() == wanted.levels()
        };
        self.places.find(self.hasher.hash_one((&wanted.domain, &wanted.path)), is_wanted).copied()
    }
}

/// Nothing in them differs.
fn is_same(old: &Rule, new: &Rule) -> bool {
    let same_limits = old.limits.len() == new.limits.len()
        && old.limits.iter().zip(&new.limits).all(|(old, new)| says_the_same(&old.config, &new.config));
    stands_as(old, new) && same_limits
}

/// Wherever they stand, and whoever says what they need not say.
fn says_the_same(old: &LimitConfig, new: &LimitConfig) -> bool {
    LimitConfig { line: new.line, said: new.said, ..old.clone() } == *new
}

/// What its limits have in common is the same.
fn stands_as(old: &Rule, new: &Rule) -> bool {
    old.role == new.role && old.metadata == new.metadata && shares_as(old, new)
}

/// The same values share one counter.
fn shares_as(old: &Rule, new: &Rule) -> bool {
    (0..new.levels()).all(|level| old.shared_pattern(level) == new.shared_pattern(level))
}

/// What has changed in a rule that is in both.
fn changed<'r>(old: &'r Rule, new: &'r Rule, visit: &mut impl FnMut(Change<'r>)) {
    // Of what their keys and values are nothing depends: they are the same in both.
    let any = vec![Entry { key: "key".into(), value: "value".into() }; new.levels()];
    let (before, after) = (names(old, &any), names(new, &any));
    let others = pairs((old, &before), (new, &after));
    for (limit, name) in new.limits.iter().zip(&after) {
        let Some(other) = others.get(&limit.id) else {
            visit(Change { domain: &new.domain, kind: Kind::Added(limit, None), counters: Counters::None });
            continue;
        };
        if says_the_same(&other.config, &limit.config) && stands_as(old, new) {
            continue;
        }
        let counters = match name {
            Some(name) if before.contains(&Some(name.clone())) => penalties(name, other, limit),
            Some(_) if before.iter().any(Option::is_some) => Counters::Afresh,
            _ => Counters::None,
        };
        let kind = Kind::Changed(Side { rule: old, limit: other }, Side { rule: new, limit });
        visit(Change { domain: &new.domain, kind, counters });
    }
    let paired: HashSet<usize> = others.values().map(|limit| limit.id).collect();
    for limit in old.limits.iter().filter(|limit| !paired.contains(&limit.id)) {
        visit(Change { domain: &old.domain, kind: Kind::Removed(limit, None), counters: Counters::None });
    }
}

/// The counter goes on; whether that of its penalty does, too.
fn penalties(counter: &Key, old: &RuleLimit, new: &RuleLimit) -> Counters {
    let name = |limit: &RuleLimit| limit.config.penalty.map(|penalty| counter.of_penalty(&penalty));
    match (name(old), name(new)) {
        (Some(before), Some(after)) if before != after => Counters::PenaltyAfresh,
        _ => Counters::Kept,
    }
}

/// For limits of `new`, by their ids, the limit of `old` that each was: of the same counter; or else of the same
/// name; or else at the same place.
fn pairs<'r>(
    (old, before): (&'r Rule, &[Option<Key>]),
    (new, after): (&'r Rule, &[Option<Key>]),
) -> HashMap<usize, &'r RuleLimit> {
    let mut pairs = HashMap::new();
    let mut left: Vec<bool> = vec![true; old.limits.len()];
    let mut pair = |find: &dyn Fn(usize, usize) -> bool, pairs: &mut HashMap<usize, &'r RuleLimit>| {
        for (at, limit) in new.limits.iter().enumerate() {
            if pairs.contains_key(&limit.id) {
                continue;
            }
            if let Some(other) = (0..left.len()).find(|other| left[*other] && find(*other, at)) {
                left[other] = false;
                pairs.insert(limit.id, &old.limits[other]);
            }
        }
    };
    pair(&|other, at| before[other] == after[at], &mut pairs);
    let name = |rule: &'r Rule, at: usize| rule.limits[at].config.name.as_str();
    pair(&|other, at| !name(new, at).is_empty() && name(old, other) == name(new, at), &mut pairs);
    pair(&|other, at| other == at, &mut pairs);
    pairs
}

/// What is to be said of a rule that is in `own` and not in `other`: where the requests that reach it in the one go in
/// the other.
fn moved<'r>(
    rule: &'r Rule,
    (own, other): (&'r Rules, &'r Rules),
    kind: fn(&'r RuleLimit, Option<&'r Rule>) -> Kind<'r>,
    visit: &mut impl FnMut(Change<'r>),
) {
    let request = example(rule);
    // Where an example reaches another rule, it tells nothing of this one.
    let is_example = reached(own, rule, &request).is_some_and(|found| std::ptr::eq(found, rule));
    let elsewhere = reached(other, rule, &request).filter(|_| is_example);
    let theirs = elsewhere.map(|elsewhere| names(elsewhere, &request)).unwrap_or_default();
    for (limit, name) in rule.limits.iter().zip(names(rule, &request)) {
        let counters = match name {
            Some(name) if theirs.contains(&Some(name.clone())) => Counters::Kept,
            Some(_) if theirs.iter().any(Option::is_some) => Counters::Afresh,
            _ => Counters::None,
        };
        visit(Change { domain: &rule.domain, kind: kind(limit, elsewhere), counters });
    }
}

fn reached<'r>(rules: &'r Rules, like: &Rule, request: &[Entry]) -> Option<&'r Rule> {
    rules.find(rules.domain(&like.domain)?, request)
}

/// A descriptor that reaches the rule, unless a rule before it has a wildcard that matches as well.
pub fn example(rule: &Rule) -> Vec<Entry> {
    let entry = |step: &str| {
        let (key, value) = step.split_once('=').unwrap_or((step, "*"));
        // No rule names such a value, but by chance.
        let filled = |text: &str| text.replace('*', "any-0b9a918f");
        Entry { key: filled(key), value: filled(value) }
    };
    rule.path.split('|').map(entry).collect()
}

/// The counter of each limit for these entries; `None` where it has none.
fn names(rule: &Rule, entries: &[Entry]) -> Vec<Option<Key>> {
    let name = |limit: &RuleLimit| match &limit.config.allowance {
        Allowance::Unlimited => None,
        Allowance::Limited(limit) => {
            let shared = |level| rule.shared_pattern(level);
            Some(Key::new("", &rule.domain, entries, shared, limit, Origin::Rule))
        }
    };
    rule.limits.iter().map(name).collect()
}

fn counted(limits: usize) -> String {
    format!("{limits} limit{}", if limits == 1 { "" } else { "s" })
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = Short(self.domain);
        match self.kind {
            Kind::DomainAdded(limits) => return write!(f, "added: domain {domain}: {}", counted(limits)),
            Kind::DomainRemoved(limits) => return write!(f, "removed: domain {domain}: {}", counted(limits)),
            Kind::Order => {
                return write!(
                    f,
                    "changed: domain {domain}: the order of its wildcards, of which the first match wins"
                );
            }
            Kind::Defaults(old, new) => {
                write!(f, "changed: defaults of {domain}: ")?;
                let mut differences = Differences::default();
                differences.add("algorithm", old.algorithm.name(), new.algorithm.name());
                differences.add("failure_mode", old.failure_mode.name(), new.failure_mode.name());
                write!(f, "{differences}, for limits that requests bring along")?;
            }
            Kind::Added(limit, from) => {
                write!(f, "added: {domain}: {}: {}", Short(&limit.label), words(limit))?;
                if let Some(from) = from {
                    write!(f, "; its requests came to {}", Short(&from.path))?;
                }
            }
            Kind::Removed(limit, to) => {
                write!(f, "removed: {domain}: {}: {}", Short(&limit.label), words(limit))?;
                if let Some(to) = to {
                    write!(f, "; its requests come to {}", Short(&to.path))?;
                }
            }
            Kind::Changed(old, new) => {
                write!(f, "changed: {domain}: {}: {}", Short(&new.limit.label), differences(old, new))?;
            }
        }
        f.write_str(match self.counters {
            Counters::None => "",
            Counters::Kept => ": counters are kept",
            Counters::Afresh => ": counters start afresh",
            Counters::PenaltyAfresh => ": counters are kept, denials and bans of its penalty start afresh",
        })
    }
}

fn words(limit: &RuleLimit) -> String {
    match &limit.config.allowance {
        Allowance::Unlimited => "unlimited".to_owned(),
        Allowance::Limited(limit) => counters::in_words(limit),
    }
}

/// What two limits say differently, by the keys of rules.
fn differences(old: Side<'_>, new: Side<'_>) -> Differences {
    let mut found = Differences::default();
    let LimitConfig { name, allowance, failure_mode, cost, give_back, penalty, lease, replaces, line: _, said: _ } =
        &old.limit.config;
    let config = &new.limit.config;
    match (allowance, &config.allowance) {
        (Allowance::Limited(old), Allowance::Limited(new)) => found.of_limits(old, new),
        _ => found.add("limit", words(old.limit), words(new.limit)),
    }
    found.add("name", Short(name).to_string(), Short(&config.name).to_string());
    found.add("cost", cost, config.cost);
    found.add("failure_mode", failure_mode.name(), config.failure_mode.name());
    found.add("give_back", give_back, config.give_back);
    found.add("penalty", given(penalty), given(&config.penalty));
    found.add("lease", given(lease), given(&config.lease));
    found.add("replaces", Short(&replaces.join(", ")).to_string(), Short(&config.replaces.join(", ")).to_string());
    found.add("shadow_mode", old.rule.role == Role::Shadow, new.rule.role == Role::Shadow);
    found.add("quota_mode", old.rule.role == Role::Quota, new.rule.role == Role::Quota);
    let metadata = |rule: &Rule| rule.metadata.as_ref().and_then(|metadata| serde_json::to_string(metadata).ok());
    found.add_long("metadata", &metadata(old.rule).unwrap_or_default(), &metadata(new.rule).unwrap_or_default());
    let shares = |rule: &Rule| (0..rule.levels()).any(|level| rule.shared_pattern(level).is_some());
    if !shares_as(old.rule, new.rule) {
        found.add("share_threshold", shares(old.rule), shares(new.rule));
    }
    found
}

/// An option as rules have it.
fn given<T: fmt::Display>(option: &Option<T>) -> String {
    option.as_ref().map_or_else(|| "none".to_owned(), T::to_string)
}

/// `key old -> new`, for each key that says something else.
#[derive(Default)]
struct Differences(String);

impl Differences {
    fn add<T: fmt::Display>(&mut self, key: &str, old: impl fmt::Display, new: T) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            let comma = if self.0.is_empty() { "" } else { ", " };
            let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
            // A text takes what is written to it.
            let _ = write!(self.0, "{comma}{key} {} -> {}", shown(old), shown(new));
        }
    }

    /// The same with texts of one line that may be long and differ at their ends.
    fn add_long(&mut self, key: &str, old: &str, new: &str) {
        const SHOWN: usize = 80;
        let short = |text: &str| match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text.to_owned(),
        };
        match (short(old), short(new)) {
            (before, after) if before == after && old != new => self.add(key, before, "another"),
            (before, after) => self.add(key, before, after),
        }
    }

    fn of_limits(&mut self, old: &Limit, new: &Limit) {
        let length = |limit: &Limit| match limit.window().and_then(Unit::of) {
            Some(unit) => unit.name().to_owned(),
            None => humantime::format_duration(limit.period()).to_string(),
        };
        let period = if new.window().is_some() { "period" } else { "hold" };
        self.add("algorithm", old.algorithm(), new.algorithm());
        self.add("requests_per_unit", old.number(), new.number());
        self.add(period, length(old), length(new));
        self.add("count_denied", old.count_denied(), new.count_denied());
        let Options { count_denied: _, burst, max_delay, initial, segments, weighting } = old.options();
        let options = new.options();
        let delay = |delay: Option<_>| given(&delay.map(humantime::format_duration));
        self.add("burst", given(&burst), given(&options.burst));
        self.add("max_delay", delay(max_delay), delay(options.max_delay));
        self.add("initial", given(&initial.map(Initial::name)), given(&options.initial.map(Initial::name)));
        self.add("segments", given(&segments), given(&options.segments));
        let weighting = given(&weighting.map(Weighting::name));
        self.add("weighting", weighting, given(&options.weighting.map(Weighting::name)));
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text from a file, fit for a line of the log.
struct Short<'t>(&'t str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}...", self.0[..end].escape_debug()),
            None => write!(f, "{}", self.0.escape_debug()),
        }
    }
}

/// What a log says of all differences: how many there are, and the first of them.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Limits that are new.
    pub added: usize,
    /// Limits that are gone.
    pub removed: usize,
    /// Limits and defaults that say something else.
    pub changed: usize,
    /// So many of these have counters that start afresh.
    pub afresh: usize,
    lost: Vec<String>,
    others: Vec<String>,
}

/// So many differences are written out. A line of the log has room for them.
const SHOWN: usize = 25;

impl Summary {
    /// Of the differences between these.
    pub fn of(old: &Rules, new: &Rules) -> Summary {
        let mut summary = Summary::default();
        compare(old, new, &mut |change| summary.add(&change));
        summary
    }

    /// Counts one more.
    pub fn add(&mut self, change: &Change<'_>) {
        match change.kind {
            Kind::DomainAdded(limits) => self.added += limits,
            Kind::DomainRemoved(limits) => self.removed += limits,
            Kind::Added(..) => self.added += 1,
            Kind::Removed(..) => self.removed += 1,
            Kind::Defaults(..) | Kind::Order | Kind::Changed(..) => self.changed += 1,
        }
        self.afresh += usize::from(change.counters.are_lost());
        let lines = if change.counters.are_lost() { &mut self.lost } else { &mut self.others };
        // Whole domains count as one.
        if lines.len() <= SHOWN {
            lines.push(change.to_string());
        }
    }
}

/// A line for each, those first whose counters start afresh.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&String> = self.lost.iter().chain(&self.others).collect();
        for line in lines.iter().take(SHOWN) {
            writeln!(f, "{line}")?;
        }
        if lines.len() > SHOWN {
            writeln!(f, "and more: tollgate check --against OLD NEW shows all of them")?;
        }
        Ok(())
    }
}
