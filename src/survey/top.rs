//! The heaviest keys over all instances.
//!
//! Each instance answers with the heaviest keys of its own sketches. Counts of one key add up. A sketch is bounded, so
//! a key that is light at one instance may have no count there: merged counts have a lower bound, which is certain, and
//! an upper bound. The upper bound follows from how a sketch admits keys. A key without a count competes with counts of
//! up to `floor` hits, and each of its hits wins with a probability of at least `1 / (floor + 1)`. It stays without a
//! count for more than `5 * (floor + 1)` hits in less than one of a hundred cases (`exp(-5)`). The same holds for the
//! hits of a key before it got its count, with the count that it took over.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Ask, Instances, Local, Parts, sent_as};
use crate::observe::heavy_hitters::{By, HeavyKey, Query, RuleTotal};

/// Times as many hits as the count that it competes with a key may have without a count.
const UNSEEN: u64 = 5;

/// Number of keys that each instance answers for each that is wanted: a key may be among the first over all instances
/// without being so at each.
const SPARE: usize = 4;

/// The least number of keys that each instance answers.
const LEAST: usize = 200;

/// A question for the heaviest keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopQuestion {
    /// Only this domain; `None` for all.
    pub domain: Option<String>,
    /// Only the rule with this name in metrics; `None` for all.
    pub rule: Option<String>,
    /// The measure.
    pub by: By,
    /// The most keys of one instance.
    pub most: usize,
}

/// The heaviest keys of one instance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopPart {
    /// Keys, the heaviest first.
    pub keys: Vec<PartKey>,
    /// Totals of the matching rules.
    pub totals: Vec<RuleTotal>,
    /// The largest count that was left out, at the most; 0 if all are there.
    #[serde(default)]
    pub left_out: u64,
}

/// A key of one instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartKey {
    #[serde(flatten)]
    key: HeavyKey,
    /// The identity of the counter; `None` if its name was not kept.
    id: Option<u64>,
}

/// The heaviest keys of all instances.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MergedTop {
    /// The measure.
    pub by: By,
    /// Number of matching rules that are counted.
    pub rules: usize,
    /// Keys, the heaviest first.
    pub keys: Vec<TopKey>,
    /// Where the counts are from.
    #[serde(default)]
    pub instances: Instances,
    /// Why counters that were requested could not all be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// How the domain or the rule of the question misses the rules in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// A key with its counts over all instances.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TopKey {
    /// The key, with the sums of its counts.
    #[serde(flatten)]
    pub key: HeavyKey,
    /// Upper bound of the measure's count, for 99 keys of 100; `None` from a release that does not say.
    #[serde(default)]
    pub at_most: Option<u64>,
}

impl TopQuestion {
    /// Returns a question for so many keys of all instances.
    #[must_use]
    pub fn for_keys(self, wanted: usize) -> TopQuestion {
        TopQuestion { most: (wanted * SPARE).max(LEAST), ..self }
    }
}

impl Ask for TopQuestion {
    type Part = TopPart;

    fn answer(&self, local: &Local) -> Option<TopPart> {
        let TopQuestion { domain, rule, by, most } = self.clone();
        let top = local.heavy_hitters.as_ref()?.top(&Query { domain, rule, by, most });
        let last = top.keys.last().filter(|_| top.keys.len() >= most);
        let left_out = last.map_or(0, |last| last.count(by));
        let key = |key: HeavyKey| PartKey { id: key.id, key };
        Some(TopPart { keys: top.keys.into_iter().map(key).collect(), totals: top.totals, left_out })
    }

    fn shorter(&self) -> Option<TopQuestion> {
        (self.most > 1).then(|| TopQuestion { most: self.most / 2, ..self.clone() })
    }

    sent_as!(Top);
}

/// The counts of a key at those instances that have one.
struct Sum {
    key: HeavyKey,
    count: u64,
    at_least: u64,
    at_most: u64,
    /// Instances, by their place among the parts, that have a count.
    counted: Vec<usize>,
}

/// Adds up the counts of all instances, and returns so many keys. Where the asked instance, which is the first, knows a
/// key, the result has what is needed to ask for its counter.
pub fn merge(by: By, parts: Parts<TopPart>, wanted: usize) -> MergedTop {
    let Parts { parts, instances } = parts;
    let mut totals: HashMap<(String, String), (u64, Vec<u64>)> = HashMap::new();
    for (place, (_, part)) in parts.iter().enumerate() {
        for RuleTotal { domain, rule, total, floor } in &part.totals {
            let of = totals.entry((domain.clone(), rule.clone())).or_insert_with(|| (0, vec![0; parts.len()]));
            of.0 = of.0.saturating_add(*total);
            of.1[place] = of.1[place].max(unseen((*floor).max(part.left_out)));
        }
    }
    let mut sums: Vec<Sum> = Vec::new();
    let mut places: HashMap<u64, usize> = HashMap::new();
    for (instance, (_, part)) in parts.into_iter().enumerate() {
        for PartKey { key, id } in part.keys {
            match id.and_then(|id| places.get(&id)) {
                Some(place) => sums[*place].add(by, instance, key),
                None => {
                    places.extend(id.map(|id| (id, sums.len())));
                    sums.push(Sum::new(by, instance, key));
                }
            }
        }
    }
    let mut keys: Vec<(u64, TopKey)> = sums.into_iter().map(|sum| sum.merged(&totals)).collect();
    keys.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    keys.truncate(wanted);
    let keys = keys.into_iter().map(|(_, key)| key).collect();
    MergedTop { by, rules: totals.len(), keys, instances, unavailable: None, missed: None }
}

/// Returns the most hits that a key may have before it gets a count, in 99 of 100 cases.
fn unseen(competing: u64) -> u64 {
    if competing == 0 { 0 } else { UNSEEN.saturating_mul(competing.saturating_add(1)) }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

impl Sum {
    fn new(by: By, instance: usize, key: HeavyKey) -> Sum {
        let (count, at_least) = (key.count(by), key.at_least);
        let at_most = at_least.saturating_add(unseen(key.count(by).saturating_sub(key.at_least)));
        Sum { key, count, at_least, at_most, counted: vec![instance] }
    }

    fn add(&mut self, by: By, instance: usize, key: HeavyKey) {
        let more = Sum::new(by, instance, key);
        self.count = self.count.saturating_add(more.count);
        self.at_least = self.at_least.saturating_add(more.at_least);
        self.at_most = self.at_most.saturating_add(more.at_most);
        self.counted.push(instance);
        let (own, key) = (&mut self.key, more.key);
        (own.hits, own.denied, own.near) =
            (sum(own.hits, key.hits), sum(own.denied, key.denied), sum(own.near, key.near));
        own.window_ms = own.window_ms.max(key.window_ms);
    }

    fn merged(self, totals: &HashMap<(String, String), (u64, Vec<u64>)>) -> (u64, TopKey) {
        let Sum { mut key, count, at_least, mut at_most, counted } = self;
        if let Some((total, unseen)) = totals.get(&(key.domain.clone(), key.rule.clone())) {
            key.share = count as f64 / (*total).max(1) as f64;
            let elsewhere = unseen.iter().enumerate().filter(|(instance, _)| !counted.contains(instance));
            at_most = elsewhere.map(|(_, unseen)| *unseen).fold(at_most, u64::saturating_add);
        }
        key.at_least = at_least;
        (count, TopKey { key, at_most: Some(at_most) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::observe::heavy_hitters::tests::World;
    use crate::observe::redaction::Values;

    const INSTANCES: usize = 6;

    const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000, name: per-user}}
- {key: tenant, rate_limit: {unit: year, requests_per_unit: 1}}
";

    /// Asks the instances by Zipf's law with this exponent for so many requests, each of which `choose` gives to one of
    /// them. Returns the exact counts, and the merged answer.
    fn asked(
        (s, requests, seed): (f64, usize, u64),
        choose: impl Fn(u64, &mut fastrand::Rng) -> usize,
    ) -> (HashMap<String, u64>, MergedTop) {
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sums: Vec<f64> = Vec::new();
        for rank in 1..=20_000 {
            sums.push(sums.last().copied().unwrap_or(0.0) + f64::from(rank).powf(-s));
        }
        let worlds: Vec<World> = (0..INSTANCES).map(|_| World::new(RULES, Values::Plain)).collect();
        let mut exact: HashMap<String, u64> = HashMap::new();
        for _ in 0..requests {
            let drawn = random.f64() * sums[sums.len() - 1];
            let user = sums.partition_point(|sum| *sum < drawn) as u64;
            let name = format!("u{user}");
            worlds[choose(user, &mut random)].ask(&[("user", &name)], 1);
            *exact.entry(name).or_default() += 1;
        }
        (exact, merged(worlds, By::Hits, 100))
    }

    fn merged(worlds: Vec<World>, by: By, wanted: usize) -> MergedTop {
        let question = TopQuestion { by, ..TopQuestion::default() }.for_keys(wanted);
        let part = |world: World| {
            let local = Local { heavy_hitters: Some(Arc::new(world.heavy)), ..Local::default() };
            question.answer(&local).unwrap()
        };
        let parts = worlds.into_iter().enumerate().map(|(number, world)| (format!("i{number}"), part(world)));
        // As it is sent.
        let parts = parts.map(|(id, part)| (id, serde_json::from_slice(&serde_json::to_vec(&part).unwrap()).unwrap()));
        merge(by, Parts { parts: parts.collect(), instances: Instances::default() }, wanted)
    }

    fn user(key: &TopKey) -> String {
        key.key.descriptor.as_ref().and_then(|pairs| pairs[0].value.clone()).unwrap_or_default()
    }

    #[test]
    fn merged_counts_are_within_their_bounds_and_the_heavy_keys_are_found() {
        let even = |_: u64, random: &mut fastrand::Rng| random.usize(..INSTANCES);
        // One instance gets half of the traffic, the next a quarter, and so on.
        let uneven = |_: u64, random: &mut fastrand::Rng| (random.f64().log2().abs() as usize).min(INSTANCES - 1);
        let by_key = |user: u64, _: &mut fastrand::Rng| user as usize % INSTANCES;
        let (mut keys, mut outside) = (0, 0);
        for (seed, s) in [(1, 0.9), (2, 1.1), (3, 1.4)] {
            for (exact, top) in
                [asked((s, 30_000, seed), even), asked((s, 30_000, seed), uneven), asked((s, 30_000, seed), by_key)]
            {
                let mut heaviest: Vec<(&String, &u64)> = exact.iter().collect();
                heaviest.sort_by_key(|(name, hits)| (std::cmp::Reverse(**hits), (*name).clone()));
                let first: Vec<String> = top.keys.iter().take(25).map(user).collect();
                for (name, hits) in heaviest.iter().take(10) {
                    assert!(first.contains(name), "{name} with {hits} hits at {s}: {first:?}");
                }
                for key in top.keys.iter().take(50).filter(|key| key.key.descriptor.is_some()) {
                    let real = exact[&user(key)];
                    assert!(key.key.at_least <= real, "{key:?} has {real}");
                    keys += 1;
                    outside += usize::from(key.at_most.unwrap() < real);
                }
                for key in top.keys.iter().take(5) {
                    let (said, real) = (key.key.hits.unwrap() as f64, exact[&user(key)] as f64);
                    assert!((said / real - 1.0).abs() < 0.1, "{said} for {real} at {s}");
                }
            }
        }
        assert!(keys > 200 && outside * 100 <= keys, "{outside} of {keys} are above their upper bound");
    }

    #[test]
    fn what_an_instance_leaves_out_is_within_the_upper_bound() {
        let rules: String = (0..40)
            .map(|rule| format!("- {{key: k{rule}, rate_limit: {{unit: year, requests_per_unit: 1000000}}}}\n"))
            .collect();
        let rules = format!("domain: shop\ndescriptors:\n{rules}");
        let worlds: Vec<World> = (0..2).map(|_| World::new(&rules, Values::Plain)).collect();
        for rule in 0..40 {
            for user in 0..20_u64 {
                // At the second instance all keys but one are too light to be sent.
                worlds[0].ask(&[(&format!("k{rule}"), &format!("u{user}"))], 100 + user);
                worlds[1].ask(&[(&format!("k{rule}"), &format!("u{user}"))], 50);
            }
        }
        let top = merged(worlds, By::Hits, 25);
        for key in &top.keys {
            let hits: u64 = user(key)[1..].parse::<u64>().unwrap() + 150;
            assert!(key.key.at_least <= hits && hits <= key.at_most.unwrap(), "{key:?} has {hits}");
        }
    }

    #[test]
    fn where_no_sketch_is_full_counts_are_exact_and_shares_are_of_all_instances() {
        let worlds: Vec<World> = (0..3).map(|_| World::new(RULES, Values::Plain)).collect();
        for (number, world) in worlds.iter().enumerate() {
            world.ask(&[("user", "ann")], 10 * (number as u64 + 1));
            world.ask(&[("user", &format!("u{number}"))], 5);
            world.ask(&[("tenant", "ann")], 3);
        }
        let top = merged(worlds, By::Hits, 2);
        let told: Vec<_> =
            top.keys.iter().map(|key| (user(key), key.key.hits, key.key.at_least, key.at_most)).collect();
        assert_eq!(told, [("ann".into(), Some(60), 60, Some(60)), ("ann".into(), Some(9), 9, Some(9))]);
        assert_eq!((top.keys[0].key.share, top.rules), (0.8, 2));
    }

    #[test]
    fn values_that_are_hidden_are_merged_by_counter_and_not_by_what_is_shown() {
        let worlds: Vec<World> = (0..2).map(|_| World::new(RULES, Values::Hidden)).collect();
        for world in &worlds {
            world.ask(&[("user", "secret-ann")], 7);
            world.ask(&[("user", "secret-bob")], 2);
        }
        let top = merged(worlds, By::Hits, 10);
        assert_eq!(top.keys.iter().map(|key| key.key.hits).collect::<Vec<_>>(), [Some(14), Some(4)]);
        assert!(!serde_json::to_string(&top).unwrap().contains("secret"));
    }
}
