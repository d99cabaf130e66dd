//! What new rules change beside others, limit by limit, and whose counters start afresh.
//!
//! A counter is kept where both sets of rules give it the same name, so names are what is compared ([`Key`]). It
//! belongs to no rule: where a rule is added or removed, a request that reaches it may reach another one in the other
//! set, and find its counter there.

mod summary;
mod text;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::descriptor::Entry;
use crate::rules::{Allowance, Defaults, LimitConfig, Rule, RuleLimit, Rules};
use crate::store::{Key, Origin};

pub use summary::{Summary, Totals};

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
    Added(Side<'r>, Option<&'r Rule>),
    /// A limit is gone; requests that it applied to come to this other rule now.
    Removed(Side<'r>, Option<&'r Rule>),
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

impl<'r> Kind<'r> {
    /// The name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::DomainAdded(_) | Kind::Added(..) => "added",
            Kind::DomainRemoved(_) | Kind::Removed(..) => "removed",
            Kind::Defaults(..) | Kind::Order | Kind::Changed(..) => "changed",
        }
    }

    /// What the limit is called, where it is one; of one that is renamed, its new name.
    pub fn rule(&self) -> Option<&'r str> {
        match self {
            Kind::Added(side, _) | Kind::Removed(side, _) | Kind::Changed(_, side) => Some(&side.limit.label),
            Kind::DomainAdded(_) | Kind::DomainRemoved(_) | Kind::Defaults(..) | Kind::Order => None,
        }
    }
}

impl Counters {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Counters::None => "none",
            Counters::Kept => "kept",
            Counters::Afresh => "afresh",
            Counters::PenaltyAfresh => "penalty_afresh",
        }
    }

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
        && old.limits.iter().zip(&new.limits).all(|(old, new)| says_the_same(old, new));
    stands_as(old, new) && same_limits
}

/// Wherever they stand, and whoever says what they need not say. What a limit is called may depend on other limits.
fn says_the_same(old: &RuleLimit, new: &RuleLimit) -> bool {
    let LimitConfig { said, allowance, .. } = *new.config;
    let allows_the_same = match (&old.config.allowance, &new.config.allowance) {
        (Allowance::Limited(old), Allowance::Limited(new)) => old.limits_as(new),
        (old, new) => old == new,
    };
    allows_the_same
        && old.label == new.label
        && old.name == new.name
        && LimitConfig { said, allowance, ..(*old.config).clone() } == *new.config
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
    let name = |rule: &'r Rule, at: usize| rule.limits[at].name();
    pair(&|other, at| !name(new, at).is_empty() && name(old, other) == name(new, at), &mut pairs);
    pair(&|other, at| other == at, &mut pairs);
    pairs
}

/// What is to be said of a rule that is in `own` and not in `other`: where the requests that reach it in the one go in
/// the other.
fn moved<'r>(
    rule: &'r Rule,
    (own, other): (&'r Rules, &'r Rules),
    kind: fn(Side<'r>, Option<&'r Rule>) -> Kind<'r>,
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
        visit(Change { domain: &rule.domain, kind: kind(Side { rule, limit }, elsewhere), counters });
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
