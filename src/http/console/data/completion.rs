//! Entries that may come next in a descriptor, by the rules: completion for people who type one.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::engine::descriptor::Entry;
use crate::engine::rules::{Rule, Rules};

/// Most entries suggested.
const MOST: usize = 50;

/// Entries that the rules have at the next level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Completion {
    /// In alphabetical order.
    pub next: Vec<NextEntry>,
    /// Whether there are more entries.
    pub more: bool,
}

/// An entry of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NextEntry {
    /// Its key.
    pub key: String,
    /// Its value, if the rule has one.
    pub value: Option<String>,
}

impl Completion {
    /// Finds the entries that may follow `before` in a domain and start with `begin`: `key` or `key=value`. Takes
    /// milliseconds for a hundred thousand rules.
    pub fn new(rules: &Rules, domain: &str, (before, begin): (&[Entry], &str)) -> Completion {
        let mut next = BTreeSet::new();
        for rule in rules.rules().iter().filter(|rule| *rule.domain == *domain) {
            let Some((key, value)) = follows(rule, before) else { continue };
            let text = value.map(|value| format!("{key}={value}"));
            if text.as_deref().unwrap_or(key).starts_with(begin) {
                next.insert(NextEntry { key: key.to_owned(), value: value.map(str::to_owned) });
            }
            if next.len() > MOST {
                next.pop_last();
                return Completion { next: next.into_iter().collect(), more: true };
            }
        }
        Completion { next: next.into_iter().collect(), more: false }
    }
}

/// Returns the key and the value of the rule at the level after these entries, or `None` if the rule does not match
/// them or has no such level.
fn follows<'r>(rule: &'r Rule, before: &[Entry]) -> Option<(&'r str, Option<&'r str>)> {
    let mut levels = rule.keys_and_values();
    for entry in before {
        let (key, value) = levels.next()?;
        let may_be = |said: &str, given: &str| said == given || said.contains('*');
        if !may_be(key, &entry.key) || !value.is_none_or(|value| may_be(value, &entry.value)) {
            return None;
        }
    }
    levels.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::files::load::{self, LoadOptions, NamedText, Sources};

    const RULES: &str = "
domain: shop
descriptors:
- key: user
  descriptors: [{key: plan, value: gold, rate_limit: {unit: day, requests_per_unit: 1}}]
- {key: path, value: '/a*', rate_limit: {unit: day, requests_per_unit: 1}}
- {key: path, value: '/a/b', descriptors: [{key: method, rate_limit: {unit: day, requests_per_unit: 1}}]}
";

    fn next(text: &str, before: &[(&str, &str)], begin: &str) -> Vec<String> {
        let text = NamedText { name: "rules.yaml".into(), bytes: text.as_bytes().to_vec() };
        let rules = load::check(&Sources { paths: Vec::new() }, &[text], &LoadOptions::default()).unwrap().rules;
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        let before: Vec<Entry> = before.iter().map(entry).collect();
        let completion = Completion::new(&rules, "shop", (&before, begin));
        let text = |next: NextEntry| [Some(next.key), next.value].into_iter().flatten().collect::<Vec<_>>().join("=");
        completion.next.into_iter().map(text).chain(completion.more.then(|| "...".to_owned())).collect()
    }

    #[test]
    fn it_tells_what_the_rules_have_at_the_next_level_and_begins_so() {
        assert_eq!(next(RULES, &[], ""), ["path=/a*", "path=/a/b", "user"]);
        assert_eq!(next(RULES, &[], "path=/a/"), ["path=/a/b"]);
        assert_eq!(next(RULES, &[("user", "ann")], ""), ["plan=gold"]);
        assert_eq!(next(RULES, &[("path", "/a/b")], "m"), ["method"]);
        assert_eq!(next(RULES, &[("path", "/c")], ""), [""; 0]);
        assert_eq!(next(RULES, &[("user", "ann"), ("plan", "gold")], ""), [""; 0]);
    }

    #[test]
    fn of_many_it_tells_some_and_that_there_are_others() {
        let one = |number| format!("- {{key: k{number:04}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
        let many: String = (0..300).map(one).collect();
        let told = next(&format!("domain: shop\ndescriptors:\n{many}"), &[], "k");
        assert_eq!((told.len(), told.last().map(String::as_str)), (MOST + 1, Some("...")));
    }
}
