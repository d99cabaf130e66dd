//! The adjustments in force, indexed to find those that apply to a limit.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Adjustment, DescriptorPattern, Kind, Target};
use crate::descriptor::Entry;

/// The adjustments in force. Those for a limit are found with a few lookups, however many there are; only patterns of
/// a descriptor's keys are compared one by one.
#[derive(Debug, Default)]
pub struct InForce {
    list: Vec<Arc<Adjustment>>,
    all: Places,
    domains: HashMap<String, OfDomain>,
}

#[derive(Debug, Default)]
struct OfDomain {
    own: Places,
    rules: HashMap<String, Places>,
    descriptors: HashMap<Vec<Entry>, Places>,
    patterns: Vec<Patterns>,
}

/// Patterns of descriptors with the same keys.
#[derive(Debug)]
struct Patterns {
    keys: Vec<String>,
    list: Vec<(DescriptorPattern, Places)>,
}

/// The adjustment of each kind that applies to a target, as a position in the list.
#[derive(Clone, Copy, Debug, Default)]
struct Places([Option<usize>; 3]);

impl Places {
    /// Returns these adjustments, replaced by narrower ones of the same kind.
    fn under(self, narrower: Option<&Places>) -> Places {
        let Some(Places(narrower)) = narrower else { return self };
        Places(std::array::from_fn(|kind| narrower[kind].or(self.0[kind])))
    }

    /// Returns these adjustments, replaced by later ones of the same kind.
    fn latest(self, Places(others): &Places) -> Places {
        Places(std::array::from_fn(|kind| self.0[kind].max(others[kind])))
    }
}

impl OfDomain {
    fn places(&mut self, target: &DescriptorPattern) -> &mut Places {
        if let Some(entries) = target.exact() {
            return self.descriptors.entry(entries).or_default();
        }
        let same_keys = |patterns: &Patterns| target.keys().eq(patterns.keys.iter().map(String::as_str));
        let group = self.patterns.iter().position(same_keys).unwrap_or_else(|| {
            let keys = target.keys().map(str::to_owned).collect();
            self.patterns.push(Patterns { keys, list: Vec::new() });
            self.patterns.len() - 1
        });
        let list = &mut self.patterns[group].list;
        let at = list.iter().position(|(pattern, _)| pattern == target).unwrap_or_else(|| {
            list.push((target.clone(), Places::default()));
            list.len() - 1
        });
        &mut list[at].1
    }
}

impl Patterns {
    /// Returns the latest adjustments whose patterns a descriptor matches.
    fn of(&self, entries: &[Entry]) -> Option<Places> {
        let keys = || self.keys.iter().map(String::as_str);
        if self.keys.len() != entries.len() || !keys().eq(entries.iter().map(|entry| entry.key.as_str())) {
            return None;
        }
        let matching = self.list.iter().filter(|(pattern, _)| pattern.matches(entries)).map(|(_, places)| places);
        Some(matching.fold(Places::default(), |latest, places| latest.latest(places)))
    }
}

/// The adjustments that apply to one limit of a request: at most one of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Applied<'a> {
    /// Changes the number.
    pub number: Option<&'a Adjustment>,
    /// Lets all requests pass, or blocks them.
    pub passage: Option<&'a Adjustment>,
    /// Changes the effect of a denial.
    pub role: Option<&'a Adjustment>,
}

impl<'a> Applied<'a> {
    /// Returns the adjustments that are set.
    pub fn all(self) -> impl Iterator<Item = &'a Adjustment> {
        [self.number, self.passage, self.role].into_iter().flatten()
    }
}

/// A limit of the rules, as adjustments refer to it.
#[derive(Clone, Copy, Debug)]
pub struct LimitName<'a> {
    /// Path of the limit's rule.
    pub path: &'a str,
    /// The limit's label, used everywhere.
    pub label: &'a str,
}

impl InForce {
    /// Indexes these adjustments, whose times are of one clock.
    pub fn new(mut list: Vec<Arc<Adjustment>>) -> InForce {
        list.sort_by(|a, b| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
        InForce::in_order(list)
    }

    /// Indexes these adjustments, the oldest first. A later one replaces an earlier one for the same target.
    pub fn in_order(list: Vec<Arc<Adjustment>>) -> InForce {
        let (mut all, mut domains) = (Places::default(), HashMap::<String, OfDomain>::new());
        for (place, adjustment) in list.iter().enumerate() {
            let target = &adjustment.content.target;
            let kind = adjustment.content.effect.kind() as usize;
            let of_domain = target.domain().map(|domain| domains.entry(domain.to_owned()).or_default());
            let Places(places) = match (target, of_domain) {
                (Target::Rule { rule, .. }, Some(domain)) => domain.rules.entry(rule.clone()).or_default(),
                (Target::Descriptors { descriptors, .. }, Some(domain)) => {
                    descriptors.iter().for_each(|descriptor| domain.places(descriptor).0[kind] = Some(place));
                    continue;
                }
                (_, Some(domain)) => &mut domain.own,
                (_, None) => &mut all,
            };
            places[kind] = Some(place);
        }
        InForce { list, all, domains }
    }

    /// Returns these adjustments and a further one, which is the latest of them. It replaces the one with its ID.
    pub fn with(&self, adjustment: Adjustment) -> InForce {
        let others = self.list.iter().filter(|other| other.id != adjustment.id).cloned();
        let mut list: Vec<Arc<Adjustment>> = others.collect();
        let latest = self.list.iter().map(|other| other.since_ms).max().unwrap_or(0);
        let since_ms = adjustment.since_ms.max(latest.saturating_add(1));
        list.push(Arc::new(Adjustment { since_ms, ..adjustment }));
        InForce::in_order(list)
    }

    /// Returns only the adjustments that change how limits count, without those that let requests pass or block them.
    pub fn that_count(&self) -> InForce {
        let count = self.list.iter().filter(|adjustment| adjustment.content.effect.kind() != Kind::Passage);
        InForce::in_order(count.cloned().collect())
    }

    /// Returns whether there are no adjustments.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all adjustments, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Adjustment> {
        self.list.iter().map(AsRef::as_ref)
    }

    /// Returns the adjustments that apply to a limit of a descriptor. A limit that the request itself sets has no name.
    pub fn of(&self, domain: &str, limit: Option<LimitName<'_>>, entries: &[Entry]) -> Applied<'_> {
        let mut places = self.all;
        if let Some(OfDomain { own, rules, descriptors, patterns }) = self.domains.get(domain) {
            places = places.under(Some(own));
            if let Some(LimitName { path, label }) = limit.filter(|_| !rules.is_empty()) {
                places = places.under(rules.get(path)).under(rules.get(label));
            }
            // Of several groups only one has the keys of the descriptor.
            places = places.under(patterns.iter().find_map(|patterns| patterns.of(entries)).as_ref());
            if !descriptors.is_empty() {
                places = places.under(descriptors.get(entries));
            }
        }
        let of = |kind: Kind| places.0[kind as usize].and_then(|place| self.list.get(place)).map(AsRef::as_ref);
        Applied { number: of(Kind::Number), passage: of(Kind::Passage), role: of(Kind::Role) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Content, Effect, EntryPattern, Id, Share, ValuePattern};
    use super::*;
    use crate::wildcard::Wildcard;

    fn entry(value: &str) -> Entry {
        Entry { key: "user".into(), value: value.into() }
    }

    fn targets() -> impl Strategy<Value = Target> {
        let (domain, rule) = ("[ab]", prop::sample::select(vec!["user", "user#1", "path"]));
        prop_oneof![
            Just(Target::All),
            domain.prop_map(Target::Domain),
            (domain, rule).prop_map(|(domain, rule)| Target::Rule { domain, rule: rule.to_owned() }),
            (domain, prop::collection::vec(descriptors(), 1..3))
                .prop_map(|(domain, descriptors)| Target::Descriptors { domain, descriptors }),
        ]
    }

    /// Generates descriptors of one or two entries, some with a pattern.
    fn descriptors() -> impl Strategy<Value = DescriptorPattern> {
        let value = prop_oneof![
            "[xy]".prop_map(|value| ValuePattern::Exactly(value.into())),
            "[xy]?[*]".prop_map(|pattern| ValuePattern::Like(Wildcard::new(&pattern))),
        ];
        let entry = value.prop_map(|value| EntryPattern { key: "user".into(), value });
        prop::collection::vec(entry, 1..3).prop_map(DescriptorPattern)
    }

    fn effects() -> impl Strategy<Value = Effect> {
        prop_oneof![
            Just(Effect::Scale(Share::parse("10%").unwrap())),
            Just(Effect::Number(7)),
            Just(Effect::Pass),
            Just(Effect::Block),
            Just(Effect::Enforce),
            Just(Effect::Shadow),
        ]
    }

    /// Returns how narrow a target is for this limit; `None` if it does not include it.
    fn rank(target: &Target, domain: &str, name: LimitName<'_>, entries: &[Entry]) -> Option<u8> {
        match target {
            Target::All => Some(0),
            Target::Domain(of) => (of == domain).then_some(1),
            Target::Rule { domain: of, rule } if of == domain && rule == name.label => Some(3),
            Target::Rule { domain: of, rule } => (of == domain && rule == name.path).then_some(2),
            Target::Descriptors { domain: of, descriptors } => {
                let here = descriptors.iter().filter(|one| of == domain && one.matches(entries));
                here.map(|one| if one.exact().is_some() { 5 } else { 4 }).max()
            }
        }
    }

    proptest! {
        #[test]
        fn the_narrowest_counts_and_then_the_latest(
            all in prop::collection::vec((targets(), effects(), 0..5_u64), 0..20),
            values in prop::collection::vec("[xyz]", 1..3),
        ) {
            let adjustment = |(place, (target, effect, since_ms)): (usize, (Target, Effect, u64))| {
                let content = Content { target, effect, hours: None, who: "ann".into(), why: "a test".into() };
                Arc::new(Adjustment { id: Id::of_number(place as u64), content, since_ms, until_ms: 10 })
            };
            let all: Vec<Arc<Adjustment>> = all.into_iter().enumerate().map(adjustment).collect();
            let in_force = InForce::new(all.clone());
            let name = LimitName { path: "user", label: "user#1" };
            let entries: Vec<Entry> = values.iter().map(|value| entry(value)).collect();
            let applied = in_force.of("a", Some(name), &entries);
            for (kind, found) in
                [(Kind::Number, applied.number), (Kind::Passage, applied.passage), (Kind::Role, applied.role)]
            {
                let of_kind = all.iter().filter(|one| one.content.effect.kind() == kind);
                let ranked = of_kind.filter_map(|one| {
                    Some((rank(&one.content.target, "a", name, &entries)?, one.since_ms, one.id.clone()))
                });
                prop_assert_eq!(found.map(|one| one.id.clone()), ranked.max().map(|(.., id)| id));
            }
        }
    }
}
