//! Comparisons of the decisions by two sets of rules.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;

use smallvec::SmallVec;

use super::Arrival;
use super::tally::KeyHash;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::{Descriptor, Role};
use crate::observe::redaction::Values;

/// The most rules with examples, and the most examples of a rule.
const RULES_WITH_EXAMPLES: usize = 256;
const EXAMPLES: usize = 5;
/// The most bytes of an example, apart from a few more to end at a whole character.
const EXAMPLE_BYTES: usize = 256;
/// The most keys with differences that are told apart, for all rules together.
const MOST_KEYS: usize = 1 << 16;

/// Represents a rule when a request is denied because the rules do not know its domain or descriptor.
const UNKNOWN: &str = "(unknown)";

/// How two sets of rules, an old and a new one, decide a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Both decide alike.
    Agreed,
    /// Only the new rules deny it.
    NewlyDenied,
    /// Only the old rules deny it.
    NewlyAllowed,
}

impl Difference {
    /// All variants.
    pub const ALL: [Difference; 3] = [Difference::Agreed, Difference::NewlyDenied, Difference::NewlyAllowed];

    /// Returns the name in metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Difference::Agreed => "agreed",
            Difference::NewlyDenied => "newly_denied",
            Difference::NewlyAllowed => "newly_allowed",
        }
    }
}

/// The requests that two sets of rules decide differently, by the rules that deny them.
#[derive(Debug, Default)]
pub struct Comparison {
    pub(super) compared: u64,
    pub(super) newly_denied: u64,
    pub(super) newly_allowed: u64,
    /// Counts by domain and rule. The rules of both sets bound their number.
    pub(super) rules: HashMap<Box<str>, HashMap<Box<str>, OfRule>>,
    with_examples: usize,
    values: Values,
    /// Number of keys in all sets of keys.
    keys: usize,
}

/// The counts of a rule.
#[derive(Debug, Default)]
pub(super) struct OfRule {
    pub(super) agreed: u64,
    pub(super) newly_denied: u64,
    pub(super) newly_allowed: u64,
    /// Keys with requests that are decided differently, as far as there is room.
    pub(super) keys_newly_denied: HashSet<KeyHash>,
    pub(super) keys_newly_allowed: HashSet<KeyHash>,
    /// The latest requests that differ from each other: time, difference and request.
    pub(super) examples: VecDeque<(u64, Difference, String)>,
}

/// A request and its decisions by both sets of rules.
struct Compared<'c, 'r> {
    arrival: Arrival<'c>,
    difference: Difference,
    old: &'c Decision<'r>,
    new: &'c Decision<'r>,
}

impl Comparison {
    /// Creates an empty comparison. `values` selects how examples show values.
    pub fn new(values: Values) -> Comparison {
        Comparison { values, ..Comparison::default() }
    }

    /// Returns the number of compared requests, and of those newly denied and newly allowed.
    pub fn counts(&self) -> [u64; 3] {
        [self.compared, self.newly_denied, self.newly_allowed]
    }

    /// Returns whether there may be more keys than can be told apart.
    pub(super) fn has_more_keys(&self) -> bool {
        self.keys >= MOST_KEYS
    }

    /// Adds a request with its decisions by both sets of rules. `record` gets each domain and rule that it counts for.
    pub fn add<'d>(
        &mut self,
        arrival: Arrival<'_>,
        (old, new): (&Decision<'d>, &Decision<'d>),
        mut record: impl FnMut((&str, &str), Difference),
    ) {
        let difference = match (old.over_limit, new.over_limit) {
            (false, true) => Difference::NewlyDenied,
            (true, false) => Difference::NewlyAllowed,
            _ => Difference::Agreed,
        };
        let compared = Compared { arrival, difference, old, new };
        let rules = compared.rules();
        self.compared += 1;
        match difference {
            Difference::Agreed => {}
            // Only keys outside of the sample decide this request differently.
            _ if rules.is_empty() => {}
            Difference::NewlyDenied => self.newly_denied += 1,
            Difference::NewlyAllowed => self.newly_allowed += 1,
        }
        for rule in rules {
            record(rule, difference);
            self.add_to(rule, &compared);
        }
        if difference != Difference::Agreed {
            compared.limits().for_each(|limited| self.add_key(limited, difference));
        }
    }

    fn add_key(&mut self, limited: &Limited<'_>, difference: Difference) {
        let source = limited.asked.source;
        if self.has_more_keys() {
            return;
        }
        let of_rule = self.rules.get_mut(source.domain()).and_then(|rules| rules.get_mut(source.label()));
        let Some(of_rule) = of_rule else { return };
        let keys = match difference {
            Difference::NewlyDenied => &mut of_rule.keys_newly_denied,
            Difference::NewlyAllowed | Difference::Agreed => &mut of_rule.keys_newly_allowed,
        };
        self.keys += usize::from(keys.insert(KeyHash::of(&limited.asked.check.key)));
    }

    fn add_to(&mut self, (domain, rule): (&str, &str), compared: &Compared<'_, '_>) {
        if !self.rules.get(domain).is_some_and(|rules| rules.contains_key(rule)) {
            self.rules.entry(domain.into()).or_default().insert(rule.into(), OfRule::default());
        }
        let Some(of_rule) = self.rules.get_mut(domain).and_then(|rules| rules.get_mut(rule)) else { return };
        match compared.difference {
            Difference::Agreed => return of_rule.agreed += 1,
            Difference::NewlyDenied => of_rule.newly_denied += 1,
            Difference::NewlyAllowed => of_rule.newly_allowed += 1,
        }
        let is_first = of_rule.examples.is_empty();
        if !is_first || self.with_examples < RULES_WITH_EXAMPLES {
            self.with_examples += usize::from(is_first);
            let Arrival { at_ms, request, .. } = compared.arrival;
            of_rule.keep(at_ms, compared.difference, example_of(&request.descriptors, &self.values));
        }
    }
}

impl Compared<'_, '_> {
    /// Returns the limits that the request counts for: those that deny it, or all if both sets agree.
    fn limits(&self) -> impl Iterator<Item = &Limited<'_>> {
        let (old, new) = match self.difference {
            Difference::Agreed => (&self.old.limits[..], &self.new.limits[..]),
            Difference::NewlyDenied => (&[][..], &self.new.limits[..]),
            Difference::NewlyAllowed => (&self.old.limits[..], &[][..]),
        };
        let counts = |limited: &&Limited<'_>| {
            let denies = limited.over() && limited.role() != Role::Shadow;
            self.arrival.is_sampled(limited.asked.check.descriptor) && (self.difference == Difference::Agreed || denies)
        };
        old.iter().chain(new).filter(counts)
    }

    /// Returns the domains and rules of these limits, each once.
    fn rules(&self) -> SmallVec<[(&str, &str); 4]> {
        let sources = self.limits().map(|limited| limited.asked.source);
        let mut rules: SmallVec<[(&str, &str); 4]> = sources.map(|source| (source.domain(), source.label())).collect();
        rules.sort_unstable();
        rules.dedup();
        if rules.is_empty() && self.is_unknown() {
            rules.push(("", UNKNOWN));
        }
        rules
    }

    /// Returns whether one set of rules alone denies the request because it does not know a sampled descriptor, or
    /// expects an entry that the request does not bring.
    fn is_unknown(&self) -> bool {
        let denying = match self.difference {
            Difference::Agreed => return false,
            Difference::NewlyDenied => self.new,
            Difference::NewlyAllowed => self.old,
        };
        let is_missing = denying.missing.is_some_and(|missing| missing.denies());
        let mut statuses = denying.statuses.iter().enumerate();
        is_missing || statuses.any(|(descriptor, status)| status.is_unknown() && self.arrival.is_sampled(descriptor))
    }
}

impl OfRule {
    /// Keeps an example with its latest time.
    fn keep(&mut self, at_ms: u64, difference: Difference, example: String) {
        self.examples.retain(|(.., known)| *known != example);
        if self.examples.len() == EXAMPLES {
            self.examples.pop_front();
        }
        self.examples.push_back((at_ms, difference, example));
    }
}

/// Formats descriptors as people write them, with values as far as they are shown: `user=ann + path`.
pub(super) fn example_of(descriptors: &[Descriptor], values: &Values) -> String {
    let mut text = String::new();
    for (place, descriptor) in descriptors.iter().enumerate() {
        text.push_str(if place == 0 { "" } else { " + " });
        for (level, (key, value)) in values.of_entries(&descriptor.entries).enumerate() {
            text.push_str(if level == 0 { "" } else { " " });
            // Writing to a String cannot fail.
            let _ = match value {
                Some(value) => write!(text, "{key}={value}"),
                None => write!(text, "{key}"),
            };
        }
    }
    if let Some(end) = (EXAMPLE_BYTES..text.len()).find(|at| text.is_char_boundary(*at)) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}
