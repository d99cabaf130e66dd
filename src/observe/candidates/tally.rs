//! The tally of compared requests.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::BuildHasher as _;

use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::{Request, Role};
use crate::metrics::{CandidateMetrics, CandidateOutcome};
use crate::observe::redaction::Values;
use crate::observe::sample::Picked;

/// The most rules with examples, and the most examples of a rule.
const RULES_WITH_EXAMPLES: usize = 256;
const EXAMPLES: usize = 5;
/// The most bytes of an example, apart from a few more to end at a whole character.
const EXAMPLE_BYTES: usize = 256;
/// The most keys with differences that are told apart, for all rules together.
const MOST_KEYS: usize = 1 << 16;

/// Represents a rule when a request is denied because the rules do not know its domain or descriptor.
const UNKNOWN: &str = "(unknown)";

/// The counts of a trial.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) compared: u64,
    pub(super) newly_denied: u64,
    pub(super) newly_allowed: u64,
    /// Counts by domain and rule. The rules of both sets bound their number.
    pub(super) rules: HashMap<Box<str>, HashMap<Box<str>, RuleTally>>,
    with_examples: usize,
    values: Values,
    /// Keys that are decided differently, as hashes with the rule and the difference.
    keys: HashSet<u64>,
    hasher: RandomState,
}

/// The counts of a rule.
#[derive(Default)]
pub(super) struct RuleTally {
    pub(super) agreed: u64,
    pub(super) newly_denied: u64,
    pub(super) newly_allowed: u64,
    /// Lower bound of the number of keys.
    pub(super) keys_newly_denied: u64,
    pub(super) keys_newly_allowed: u64,
    /// The latest examples of different keys: time and request.
    pub(super) examples: VecDeque<(u64, String)>,
}

/// A request and its decisions by both sets of rules.
pub(super) struct Compared<'c, 'r> {
    pub(super) at_ms: u64,
    pub(super) request: &'c Request,
    pub(super) picked: &'c Picked,
    pub(super) old: &'c Decision<'r>,
    pub(super) new: &'c Decision<'r>,
}

impl Compared<'_, '_> {
    fn outcome(&self) -> CandidateOutcome {
        match (self.old.over_limit, self.new.over_limit) {
            (false, true) => CandidateOutcome::NewlyDenied,
            (true, false) => CandidateOutcome::NewlyAllowed,
            _ => CandidateOutcome::Agreed,
        }
    }

    /// Returns the limits that the request counts for: those that deny it, or all if both sets agree.
    fn limits(&self) -> impl Iterator<Item = &Limited<'_>> {
        let (outcome, old, new) = (self.outcome(), &self.old.limits[..], &self.new.limits[..]);
        let (old, new) = match outcome {
            CandidateOutcome::Agreed => (old, new),
            CandidateOutcome::NewlyDenied => (&[][..], new),
            CandidateOutcome::NewlyAllowed => (old, &[][..]),
        };
        let denies = |limited: &Limited<'_>| limited.over() && limited.role() != Role::Shadow;
        let counts = move |limited: &&Limited<'_>| {
            self.picked[limited.asked.check.descriptor] && (outcome == CandidateOutcome::Agreed || denies(limited))
        };
        old.iter().chain(new).filter(counts)
    }

    /// Returns the rules of these limits, each once.
    fn rules(&self) -> Vec<(&str, &str)> {
        let sources = self.limits().map(|limited| limited.asked.source);
        let mut rules: Vec<(&str, &str)> = sources.map(|source| (source.domain(), source.label())).collect();
        rules.sort_unstable();
        rules.dedup();
        if rules.is_empty() && self.is_unknown() {
            rules.push(("", UNKNOWN));
        }
        rules
    }

    /// Returns whether one set of rules alone denies the request because it does not know a sampled descriptor.
    fn is_unknown(&self) -> bool {
        let denying = match self.outcome() {
            CandidateOutcome::Agreed => return false,
            CandidateOutcome::NewlyDenied => self.new,
            CandidateOutcome::NewlyAllowed => self.old,
        };
        denying.statuses.iter().zip(self.picked).any(|(status, is_picked)| *is_picked && status.is_unknown())
    }
}

impl Tally {
    /// Creates an empty tally. `values` selects how examples show values.
    pub(super) fn new(values: Values) -> Tally {
        Tally { values, ..Tally::default() }
    }

    /// Returns whether there may be more keys than can be told apart.
    pub(super) fn has_more_keys(&self) -> bool {
        self.keys.len() >= MOST_KEYS
    }

    pub(super) fn add(&mut self, compared: &Compared<'_, '_>, metrics: &CandidateMetrics) {
        let (outcome, rules) = (compared.outcome(), compared.rules());
        self.compared += 1;
        match outcome {
            CandidateOutcome::Agreed => {}
            // Only keys outside of the sample decide this request differently.
            _ if rules.is_empty() => {}
            CandidateOutcome::NewlyDenied => self.newly_denied += 1,
            CandidateOutcome::NewlyAllowed => self.newly_allowed += 1,
        }
        for (domain, rule) in rules {
            metrics.record((domain, rule), outcome);
            self.add_to((domain, rule), outcome, compared);
        }
        if outcome != CandidateOutcome::Agreed {
            compared.limits().for_each(|limited| self.add_key(limited, outcome));
        }
    }

    fn add_key(&mut self, limited: &Limited<'_>, outcome: CandidateOutcome) {
        let is_denied = outcome == CandidateOutcome::NewlyDenied;
        let (domain, rule) = (limited.asked.source.domain(), limited.asked.source.label());
        let hash = self.hasher.hash_one((is_denied, domain, rule, limited.asked.check.key.as_str()));
        if self.has_more_keys() || !self.keys.insert(hash) {
            return;
        }
        let Some(tally) = self.rules.get_mut(domain).and_then(|rules| rules.get_mut(rule)) else { return };
        match is_denied {
            true => tally.keys_newly_denied += 1,
            false => tally.keys_newly_allowed += 1,
        }
    }

    fn add_to(&mut self, (domain, rule): (&str, &str), outcome: CandidateOutcome, compared: &Compared<'_, '_>) {
        let has = |known: &Self| known.rules.get(domain).is_some_and(|rules| rules.contains_key(rule));
        if !has(self) {
            self.rules.entry(domain.into()).or_default().insert(rule.into(), RuleTally::default());
        }
        let Some(tally) = self.rules.get_mut(domain).and_then(|rules| rules.get_mut(rule)) else { return };
        match outcome {
            CandidateOutcome::Agreed => return tally.agreed += 1,
            CandidateOutcome::NewlyDenied => tally.newly_denied += 1,
            CandidateOutcome::NewlyAllowed => tally.newly_allowed += 1,
        }
        let is_first = tally.examples.is_empty();
        if !is_first || self.with_examples < RULES_WITH_EXAMPLES {
            self.with_examples += usize::from(is_first);
            tally.keep(compared.at_ms, example(compared.request, &self.values));
        }
    }
}

impl RuleTally {
    /// Keeps an example with its latest time.
    fn keep(&mut self, at_ms: u64, example: String) {
        self.examples.retain(|(_, known)| *known != example);
        if self.examples.len() == EXAMPLES {
            self.examples.pop_front();
        }
        self.examples.push_back((at_ms, example));
    }
}

/// Formats a request as people write it, with values as far as they are shown: `user=ann + path`.
fn example(request: &Request, values: &Values) -> String {
    let mut text = String::new();
    for (place, descriptor) in request.descriptors.iter().enumerate() {
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
