//! Compares two sets of rules limit by limit, and finds the counters that start from zero.
//!
//! A counter is kept if both sets give it the same name, so names are compared ([`Key`]). A counter does not belong to
//! a rule: if a rule is added or removed, a request that matches it may match another rule in the other set, and find
//! its counter there.

mod summary;
mod text;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::check::Key;
use crate::descriptor::{Entry, Text};
use crate::rules::expect::Expect;
use crate::rules::{Allowance, Defaults, LimitConfig, Rule, RuleLimit, Rules};

pub use summary::{Summary, Totals};

/// A difference between two sets of rules.
#[derive(Clone, Copy, Debug)]
pub struct Change<'r> {
    /// The domain.
    pub domain: &'r str,
    /// The kind of difference.
    pub kind: Kind<'r>,
    /// The effect on counters.
    pub counters: Counters,
}

/// Kind of a difference.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'r> {
    /// The domain is new, with this number of limits.
    DomainAdded(usize),
    /// The domain was removed, with this number of limits.
    DomainRemoved(usize),
    /// The defaults for limits sent in requests have changed.
    Defaults(&'r Defaults, &'r Defaults),
    /// The entries that each request must bring have changed.
    Expect(Option<&'r Expect>, Option<&'r Expect>),
    /// Rules with wildcards have changed their order.
    Order,
    /// A limit is new; requests that it applies to matched this other rule before.
    Added(Side<'r>, Option<&'r Rule>),
    /// A limit was removed; requests that it applied to match this other rule now.
    Removed(Side<'r>, Option<&'r Rule>),
    /// A limit has changed.
    Changed(Side<'r>, Side<'r>),
}

/// A limit of the old or the new rules.
#[derive(Clone, Copy, Debug)]
pub struct Side<'r> {
    /// Its rule.
    pub rule: &'r Rule,
    /// The limit.
    pub limit: &'r RuleLimit,
}

/// The effect of a change on the counters of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// There are no counters, before or after.
    None,
    /// The counters continue.
    Kept,
    /// The counters start from zero, so every client has a fresh allowance.
    Afresh,
    /// The counters continue, but the counts of denials for a penalty restart, and bans end.
    PenaltyAfresh,
}

impl<'r> Kind<'r> {
    /// Returns the name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::DomainAdded(_) | Kind::Added(..) => "added",
            Kind::DomainRemoved(_) | Kind::Removed(..) => "removed",
            Kind::Defaults(..) | Kind::Expect(..) | Kind::Order | Kind::Changed(..) => "changed",
        }
    }

    /// Returns the name of the limit, if the difference is in a limit; after renaming, the new name.
    pub fn rule(&self) -> Option<&'r str> {
        match self {
            Kind::Added(side, _) | Kind::Removed(side, _) | Kind::Changed(_, side) => Some(&side.limit.label),
            Kind::DomainAdded(_) | Kind::DomainRemoved(_) | Kind::Defaults(..) | Kind::Expect(..) | Kind::Order => None,
        }
    }
}

impl Counters {
    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Counters::None => "none",
            Counters::Kept => "kept",
            Counters::Afresh => "afresh",
            Counters::PenaltyAfresh => "penalty_afresh",
        }
    }

    /// Returns whether any counts are lost.
    pub fn are_lost(self) -> bool {
        matches!(self, Counters::Afresh | Counters::PenaltyAfresh)
    }
}

/// Calls `visit` with every difference: first those of whole domains by name, and then the others in the order of the
/// new rules, followed by removed rules.
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

/// Visits the differences of whole domains.
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
        if let (Some(before), Some(after)) = (old.domain(domain), new.domain(domain))
            && before.expect != after.expect
        {
            let kind = Kind::Expect(before.expect.as_ref(), after.expect.as_ref());
            visit(Change { domain, kind, counters: Counters::None });
        }
        let (kind, counters) = match (old.domain(domain), new.domain(domain)) {
            (None, _) => (Kind::DomainAdded(limits_after(domain)), Counters::None),
            (_, None) => (Kind::DomainRemoved(limits_before(domain)), Counters::None),
            (Some(before), Some(after)) if before.defaults != after.defaults => {
                let is_kept = before.defaults.algorithm == after.defaults.algorithm;
                let counters = if is_kept { Counters::Kept } else { Counters::Afresh };
                (Kind::Defaults(&before.defaults, &after.defaults), counters)
            }
            _ => continue,
        };
        visit(Change { domain, kind, counters });
    }
}

/// Detects changes in the order of rules with wildcards, as the first match wins.
#[derive(Default)]
struct Order<'r> {
    /// The domain and the old index of the last such rule; `None` for the index once a change has been reported.
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

/// Finds rules by domain and path, with a few bytes for each.
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

    /// Finds the first matching rule not seen yet. Two rules may have the same path if a key contains an equals sign.
    fn find(&self, wanted: &Rule, seen: &[bool]) -> Option<usize> {
        let is_wanted = |at: &usize| {
            let rule = &self.rules[*at];
            !seen[*at] && rule.path == wanted.path && rule.domain == wanted.domain && rule.levels() == wanted.levels()
        };
        self.places.find(self.hasher.hash_one((&wanted.domain, &wanted.path)), is_wanted).copied()
    }
}

/// Returns whether two rules are equal.
fn is_same(old: &Rule, new: &Rule) -> bool {
    let same_limits = old.limits.len() == new.limits.len()
        && old.limits.iter().zip(&new.limits).all(|(old, new)| says_the_same(old, new));
    stands_as(old, new) && same_limits
}

/// Returns whether two limits are equal, regardless of their places and of where their settings come from. Labels are
/// compared, too, as they may depend on other limits.
fn says_the_same(old: &RuleLimit, new: &RuleLimit) -> bool {
    let LimitConfig { origins, allowance, .. } = *new.config;
    let allows_the_same = match (&old.config.allowance, &new.config.allowance) {
        (Allowance::Limited(old), Allowance::Limited(new)) => old.limits_as(new),
        (old, new) => old == new,
    };
    allows_the_same
        && old.label == new.label
        && old.name == new.name
        && LimitConfig { origins, allowance, ..(*old.config).clone() } == *new.config
}

/// Returns whether the common settings of a rule's limits are equal.
fn stands_as(old: &Rule, new: &Rule) -> bool {
    old.role == new.role && old.metadata == new.metadata && shares_as(old, new)
}

/// Returns whether the same values share one counter.
fn shares_as(old: &Rule, new: &Rule) -> bool {
    (0..new.levels()).all(|level| old.shared_pattern(level) == new.shared_pattern(level))
}

/// Visits the changes in a rule that both sets have.
fn changed<'r>(old: &'r Rule, new: &'r Rule, visit: &mut impl FnMut(Change<'r>)) {
    // The keys and values do not matter: they are the same in both.
    let any = vec![Entry { key: "key".into(), value: "value".into() }; new.levels()];
    let (before, after) = (names(old, &any), names(new, &any));
    let others = pairs((old, &before), (new, &after));
    for (limit, name) in new.limits.iter().zip(&after) {
        let Some(other) = others.get(&limit.id) else {
            let kind = Kind::Added(Side { rule: new, limit }, None);
            visit(Change { domain: &new.domain, kind, counters: Counters::None });
            continue;
        };
        if says_the_same(other, limit) && stands_as(old, new) {
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
        let kind = Kind::Removed(Side { rule: old, limit }, None);
        visit(Change { domain: &old.domain, kind, counters: Counters::None });
    }
}

/// Returns the effect on the counter of the penalty, if the limit's counter continues.
fn penalties(counter: &Key, old: &RuleLimit, new: &RuleLimit) -> Counters {
    let name = |limit: &RuleLimit| limit.config.options.penalty.map(|penalty| counter.of_penalty(&penalty));
    match (name(old), name(new)) {
        (Some(before), Some(after)) if before != after => Counters::PenaltyAfresh,
        _ => Counters::Kept,
    }
}

/// Finds, for limits of `new` by ID, the corresponding limit of `old`: with the same counter, or else with the same
/// name, or else at the same index.
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
    let name = |rule: &'r Rule, at: usize| rule.limits[at].name();
    pair(&|other, at| !name(new, at).is_empty() && name(old, other) == name(new, at), &mut pairs);
    pair(&|other, at| other == at, &mut pairs);
    pairs
}

/// Visits the limits of a rule that is in `own` and not in `other`, with the rule of `other` that their requests match.
fn moved<'r>(
    rule: &'r Rule,
    (own, other): (&'r Rules, &'r Rules),
    kind: fn(Side<'r>, Option<&'r Rule>) -> Kind<'r>,
    visit: &mut impl FnMut(Change<'r>),
) {
    let request = example(rule);
    // If the example matches another rule, it says nothing about this one.
    let is_example = reached(own, rule, &request).is_some_and(|found| std::ptr::eq(found, rule));
    let elsewhere = reached(other, rule, &request).filter(|_| is_example);
    let theirs = elsewhere.map(|elsewhere| names(elsewhere, &request)).unwrap_or_default();
    for (limit, name) in rule.limits.iter().zip(names(rule, &request)) {
        let counters = match name {
            Some(name) if theirs.contains(&Some(name.clone())) => Counters::Kept,
            Some(_) if theirs.iter().any(Option::is_some) => Counters::Afresh,
            _ => Counters::None,
        };
        visit(Change { domain: &rule.domain, kind: kind(Side { rule, limit }, elsewhere), counters });
    }
}

fn reached<'r>(rules: &'r Rules, like: &Rule, request: &[Entry]) -> Option<&'r Rule> {
    rules.find(rules.domain(&like.domain)?, request)
}

/// Returns a descriptor that matches the rule, unless an earlier rule has a wildcard that matches it, too.
pub fn example(rule: &Rule) -> Vec<Entry> {
    // A value that a rule has only by chance.
    let filled = |text: &str| Text::from(text.replace('*', "any-0b9a918f"));
    let levels = rule.keys_and_values();
    levels.map(|(key, value)| Entry { key: filled(key), value: filled(value.unwrap_or("*")) }).collect()
}

/// Returns the counter of each limit for these entries, or `None` for an unlimited one.
fn names(rule: &Rule, entries: &[Entry]) -> Vec<Option<Key>> {
    let name = |RuleLimit { config, .. }: &RuleLimit| match &config.allowance {
        Allowance::Unlimited => None,
        Allowance::Limited(limit) => {
            let shared = |level| rule.shared_pattern(level);
            let origin = config.origin();
            Some(Key::new("", &rule.domain, entries, shared, limit, origin))
        }
    };
    rule.limits.iter().map(name).collect()
}
