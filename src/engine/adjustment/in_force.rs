//! The adjustments in force, indexed to find those that apply to a limit.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Adjustment, Kind, Target};
use crate::descriptor::Entry;

/// The adjustments in force. Those for a limit are found with a few lookups, however many there are.
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
            let of_domain = target.domain().map(|domain| domains.entry(domain.to_owned()).or_default());
            let Places(places) = match (target, of_domain) {
                (Target::Rule { rule, .. }, Some(domain)) => domain.rules.entry(rule.clone()).or_default(),
                (Target::Descriptor { entries, .. }, Some(domain)) => {
                    domain.descriptors.entry(entries.clone()).or_default()
                }
                (_, Some(domain)) => &mut domain.own,
                (_, None) => &mut all,
            };
            places[adjustment.content.effect.kind() as usize] = Some(place);
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
        if let Some(OfDomain { own, rules, descriptors }) = self.domains.get(domain) {
            places = places.under(Some(own));
            if let Some(LimitName { path, label }) = limit.filter(|_| !rules.is_empty()) {
                places = places.under(rules.get(path)).under(rules.get(label));
            }
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

    use super::super::{Content, Effect, Id, Share};
    use super::*;

    fn entry(value: &str) -> Entry {
        Entry { key: "user".into(), value: value.into() }
    }

    fn targets() -> impl Strategy<Value = Target> {
        let (domain, rule, value) = ("[ab]", prop::sample::select(vec!["user", "user#1", "path"]), "[xy]");
        prop_oneof![
            Just(Target::All),
            domain.prop_map(Target::Domain),
            (domain, rule).prop_map(|(domain, rule)| Target::Rule { domain, rule: rule.to_owned() }),
            (domain, value).prop_map(|(domain, value)| Target::Descriptor { domain, entries: vec![entry(&value)] }),
        ]
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

    /// Returns how narrow a target is; `None` if it does not include this limit.
    fn rank(target: &Target, domain: &str, name: LimitName<'_>, entries: &[Entry]) -> Option<u8> {
        match target {
            Target::All => Some(0),
            Target::Domain(of) => (of == domain).then_some(1),
            Target::Rule { domain: of, rule } if of == domain && rule == name.label => Some(3),
            Target::Rule { domain: of, rule } => (of == domain && rule == name.path).then_some(2),
            Target::Descriptor { domain: of, entries: these } => (of == domain && these == entries).then_some(4),
        }
    }

    proptest! {
        #[test]
        fn the_narrowest_counts_and_then_the_latest(
            all in prop::collection::vec((targets(), effects(), 0..5_u64), 0..20), value in "[xyz]",
        ) {
            let adjustment = |(place, (target, effect, since_ms)): (usize, (Target, Effect, u64))| {
                let content = Content { target, effect, who: "ann".into(), why: "a test".into() };
                Arc::new(Adjustment { id: Id::of_number(place as u64), content, since_ms, until_ms: 10 })
            };
            let all: Vec<Arc<Adjustment>> = all.into_iter().enumerate().map(adjustment).collect();
            let in_force = InForce::new(all.clone());
            let (name, entries) = (LimitName { path: "user", label: "user#1" }, [entry(&value)]);
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
