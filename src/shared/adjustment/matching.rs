//! Whether adjustments match the rules, and what they probably mean if not.

use std::collections::{BTreeMap, HashMap};

use super::AdjustmentError;
use crate::engine::adjustment::{Content, DescriptorPattern, Effect, EntryPattern, Kind, Target, ValuePattern};
use crate::engine::descriptor::Entry;
use crate::engine::rules::report::{nearest, quoted};
use crate::engine::rules::{Allowance, Budget, Domain, Rule, Rules};

/// Most names of rules that are compared with a name that no rule has.
const NEAR: usize = 10_000;

/// The reason why an adjustment does not match the rules.
pub(super) struct Mismatch {
    pub(super) reason: String,
    /// Whether the adjustment may still be intended, because it changes limits that requests bring along.
    may_begin: bool,
}

impl Mismatch {
    fn refused(reason: String) -> Mismatch {
        Mismatch { reason, may_begin: false }
    }

    /// Says which of several descriptors it is about, without its values: logs have the reason, too.
    fn of_several(mut self, place: usize, count: usize) -> Mismatch {
        self.reason = format!("descriptor {} of {count}: {}", place + 1, self.reason);
        self
    }

    /// Adds what the rules have instead, for entries that reach no rule.
    fn with_near_miss(mut self, rules: &Rules, domain: &Domain, entries: &[Entry]) -> Mismatch {
        let mut budget = Budget::new(Budget::PERSON);
        if let Some(miss) = rules.trace(domain, entries, &mut budget).misses.into_iter().next() {
            self.reason = format!("{}; {}", self.reason, miss.words);
        }
        self
    }

    fn of_rules(reason: &str) -> Mismatch {
        let reason = format!("{reason}: it changes only limits that requests supply");
        Mismatch { reason, may_begin: true }
    }
}

/// Returns why an adjustment changes only limits that requests supply, if so.
///
/// # Errors
/// If it would change nothing.
pub(super) fn note_of(rules: &Rules, content: &Content) -> Result<Option<String>, AdjustmentError> {
    match unmatched(rules, &[content]).remove(&0) {
        Some(Mismatch { reason, may_begin: false }) => Err(AdjustmentError::Unmatched(reason)),
        Some(Mismatch { reason, may_begin: true }) => Ok(Some(reason)),
        None => Ok(None),
    }
}

/// Returns which of these do not match the rules, by index.
pub(super) fn unmatched(rules: &Rules, contents: &[&Content]) -> BTreeMap<usize, Mismatch> {
    let mut found = BTreeMap::new();
    // By name, so a million rules are searched only once.
    let mut wanted: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (place, content) in contents.iter().enumerate() {
        let Some(name) = content.target.domain() else { continue };
        let Some(domain) = rules.domain(name) else {
            let miss = rules.missed_domain(name, &mut Budget::new(Budget::PERSON));
            found.insert(place, Mismatch::refused(format!("the rules have no domain {name}: {}", miss.words)));
            continue;
        };
        match &content.target {
            Target::Rule { rule, .. } => {
                let reason = format!("domain {name} has no rule {rule}: name its path or its limit");
                found.insert(place, Mismatch::refused(reason));
                wanted.entry((name, rule)).or_default().push(place);
            }
            Target::Descriptors { descriptors, .. } => {
                let count = descriptors.len();
                let mut mismatches = descriptors.iter().enumerate().filter_map(|(place, one)| {
                    let mismatch = of_descriptor(rules, domain, one, content.effect)?;
                    Some(if count > 1 { mismatch.of_several(place, count) } else { mismatch })
                });
                // One that cannot begin says more than one that only requests may bring along.
                let first = mismatches.next();
                let refused = first.as_ref().is_some_and(|first| first.may_begin);
                let refused = refused.then(|| mismatches.find(|other| !other.may_begin)).flatten();
                found.extend(refused.or(first).map(|mismatch| (place, mismatch)));
            }
            Target::All | Target::Domain(_) => {}
        }
    }
    if wanted.is_empty() {
        return found;
    }
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (rule, limit) in rules.limits() {
        for name in [&rule.path, &limit.label] {
            if names.len() < NEAR && wanted.keys().any(|(domain, _)| *domain == &*rule.domain) {
                names.push((&rule.domain, name));
            }
            for place in wanted.get(&(&*rule.domain, &**name)).into_iter().flatten() {
                match changes(contents[*place].effect, &limit.config.allowance) {
                    None => drop(found.remove(place)),
                    Some(reason) => drop(found.entry(*place).and_modify(|found| found.reason = reason)),
                }
            }
        }
    }
    for ((domain, rule), places) in wanted {
        let known: Vec<&str> = names.iter().filter(|(of, _)| *of == domain).map(|(_, name)| *name).collect();
        let Some(near) = nearest(rule, &known).filter(|near| *near != rule) else { continue };
        for place in places {
            found.entry(place).and_modify(|found| found.reason += &format!("; did you mean {}?", quoted(near)));
        }
    }
    found
}

/// Returns why an adjustment of one descriptor, or of all that are alike, does not match the rules.
fn of_descriptor(rules: &Rules, domain: &Domain, pattern: &DescriptorPattern, effect: Effect) -> Option<Mismatch> {
    let exact = pattern.exact();
    let reached = match &exact {
        Some(entries) => rules.find(domain, entries).into_iter().collect(),
        None => rules.reached_by(domain, pattern),
    };
    if reached.is_empty() {
        let what = if exact.is_some() { "a descriptor with these entries" } else { "descriptors like these" };
        let mismatch = Mismatch::of_rules(&format!("no rule matches {what}"));
        return Some(exact.iter().fold(mismatch, |mismatch, entries| mismatch.with_near_miss(rules, domain, entries)));
    }
    if let Some(reason) = reached.iter().find_map(|rule| shares(rule, pattern, effect)) {
        return Some(Mismatch::refused(reason));
    }
    // It is in order if it changes a limit of any of the rules.
    let of_rule = |rule: &&Rule| {
        let allowances = || rule.limits.iter().map(|limit| &limit.config.allowance);
        if allowances().all(|allowance| matches!(allowance, Allowance::Unlimited)) {
            return Some(Mismatch::of_rules("the rule is unlimited"));
        }
        allowances().map(|allowance| changes(effect, allowance)).reduce(Option::and).flatten().map(Mismatch::refused)
    };
    reached.iter().map(of_rule).reduce(Option::and).flatten()
}

/// Returns why descriptors that share a counter have nothing to change separately: a pattern of the rules is not a
/// value of any request, and the number belongs to all values that share the counter. The cost of requests and the
/// effect of a denial are separate for each value.
fn shares(rule: &Rule, DescriptorPattern(entries): &DescriptorPattern, effect: Effect) -> Option<String> {
    entries.iter().enumerate().find_map(|(level, EntryPattern { key, value })| {
        let pattern = rule.shared_pattern(level)?;
        let is_pattern = matches!(value, ValuePattern::Exactly(value) if value == pattern);
        let is_of_all = is_pattern || effect.kind() == Kind::Number;
        let path = &rule.path;
        is_of_all.then(|| format!("the values of {key} that match {pattern} share one counter: name the rule {path}"))
    })
}

/// Returns why this effect changes nothing about a limit, if so.
fn changes(effect: Effect, allowance: &Allowance) -> Option<String> {
    let Allowance::Limited(limit) = allowance else { return Some("the rule is unlimited".to_owned()) };
    let number = effect.number(limit.number());
    let has_number = effect.limit(limit).number() == number;
    (!has_number).then(|| format!("{} cannot have the number {number}", limit.algorithm()))
}
