//! The selection of sampled keys.

use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Shared;
use crate::engine::descriptor::{Entry, HOLD_KEY, Request};
use crate::engine::rules::{Allowance, Rule, Rules};

/// A share of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All keys.
    All,
    /// Keys with a hash below this bound.
    Below(u64),
}

impl Share {
    /// Creates a share from a number from 0 to 1.
    pub fn new(ratio: f64) -> Share {
        if ratio >= 1.0 { Share::All } else { Share::Below((ratio * u64::MAX as f64) as u64) }
    }

    /// Returns the share as a number from 0 to 1.
    pub fn as_ratio(self) -> f64 {
        match self {
            Share::All => 1.0,
            Share::Below(bound) => bound as f64 / u64::MAX as f64,
        }
    }

    /// Returns half of the share. Its keys are a subset of the whole share's.
    #[must_use]
    pub fn half(self) -> Share {
        match self {
            Share::All => Share::Below(u64::MAX / 2),
            Share::Below(bound) => Share::Below(bound / 2),
        }
    }

    /// Returns the share after it was halved so many times.
    #[must_use]
    pub fn halved(self, times: u32) -> Share {
        (0..times).fold(self, |share, _| share.half())
    }
}

/// Selects the descriptors of requests with sampled counters.
///
/// The hash is over the descriptor without the values that share a counter by any of the `N` sets of rules. So a
/// counter gets all of its requests or none. The exception: if rules with and without shared values use one counter of
/// another set of rules, that counter may get some of its requests.
pub struct Sampling<const N: usize> {
    share: Share,
    rules: [Shared; N],
    /// Whether some values share a counter.
    shares: bool,
}

/// Indices of the descriptors of a request that are not sampled.
pub type Outside = SmallVec<[usize; 4]>;

impl<const N: usize> Sampling<N> {
    /// Creates a selection of this share of the keys that these rules count.
    pub fn new(share: Share, rules: [Shared; N]) -> Sampling<N> {
        let shares = rules.iter().any(|rules| (**rules).as_ref().rules().iter().any(shares));
        Sampling { share, rules, shares }
    }

    /// Returns the share of keys.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the rules.
    pub fn rules(&self) -> &[Shared; N] {
        &self.rules
    }

    /// Returns whether some values share a counter. If so, other rules may select other keys.
    pub fn has_shared_counters(&self) -> bool {
        self.shares
    }

    /// Returns the same selection for rules with the same content.
    #[must_use]
    pub fn with_rules(&self, rules: [Shared; N]) -> Sampling<N> {
        Sampling { share: self.share, rules, shares: self.shares }
    }

    /// Returns another share of the keys of the same rules.
    #[must_use]
    pub fn with_share(&self, share: Share) -> Sampling<N> {
        Sampling { share, rules: self.rules.clone(), shares: self.shares }
    }

    /// Returns half of the selection.
    #[must_use]
    pub fn half(&self) -> Sampling<N> {
        Sampling { share: self.share.half(), rules: self.rules.clone(), shares: self.shares }
    }

    /// Returns whether any descriptor of a request is sampled.
    pub fn picks_any(&self, request: &Request) -> bool {
        (0..request.descriptors.len()).any(|descriptor| self.picks(request, descriptor))
    }

    /// Returns the descriptors of a request that are not sampled; `None` if no descriptor is sampled.
    pub fn outside(&self, request: &Request) -> Option<Outside> {
        let descriptors = 0..request.descriptors.len();
        let outside: Outside = descriptors.filter(|descriptor| !self.picks(request, *descriptor)).collect();
        (outside.len() < request.descriptors.len()).then_some(outside)
    }

    /// Returns whether one descriptor of a request is sampled.
    pub fn picks(&self, request: &Request, descriptor: usize) -> bool {
        let Share::Below(bound) = self.share else { return true };
        let (domain, entries) = (&*request.domain, &*request.descriptors[descriptor].entries);
        let mut rules: SmallVec<[&Rule; 2]> = SmallVec::new();
        if self.shares {
            rules.extend(self.rules.iter().filter_map(|rules| find((**rules).as_ref(), domain, entries)));
        }
        // The hash of each text is the seed of the next one. It is a published algorithm without a secret, so instances
        // of all versions agree. Clients gain nothing by choosing names that are sampled or not.
        let mut hash = xxh3_64(domain.as_bytes());
        let mut add = |text: &str| hash = xxh3_64_with_seed(text.as_bytes(), hash);
        // Entries that choose a price are no part of a counter.
        let counted = rules.iter().map(|rule| rule.levels()).min().unwrap_or(entries.len());
        for (level, entry) in entries.iter().enumerate().take(counted) {
            // What a stream settles belongs to the counter of which it held hits.
            let is_settle = |rule: &&Rule| level + 1 == rule.levels() && rule.settles(entries);
            add(if rules.iter().any(is_settle) { HOLD_KEY } else { &entry.key });
            let is_shared = |rule: &&Rule| rule.shared_pattern(level).is_some() || names_holder(rule, level);
            if !rules.iter().any(is_shared) {
                add(&entry.value);
            }
        }
        hash < bound
    }
}

fn find<'r>(rules: &'r Rules, domain: &str, entries: &[Entry]) -> Option<&'r Rule> {
    rules.find(rules.domain(domain)?, entries)
}

/// Returns whether values share a counter by this rule.
fn shares(rule: &Rule) -> bool {
    (0..rule.levels()).any(|level| rule.shared_pattern(level).is_some() || names_holder(rule, level))
}

/// Returns whether the value at this level identifies the holder of a slot and is not part of the counter's name.
fn names_holder(rule: &Rule, level: usize) -> bool {
    let has_holders = |allowance: &Allowance| match allowance {
        Allowance::Limited(limit) => limit.algorithm().has_holders(),
        Allowance::Unlimited => false,
    };
    level + 1 == rule.levels() && rule.limits.iter().any(|limit| has_holders(&limit.config.allowance))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::descriptor::Descriptor;
    use crate::sources::files::load::{self, LoadOptions, Sources};

    /// Instances of different versions run side by side during an update, and must sample the same keys: other numbers
    /// here are a change that release notes name.
    #[test]
    fn all_versions_sample_the_same_keys() {
        let sampling = Sampling::new(Share::new(0.01), [Arc::new(Rules::default()) as Shared]);
        let picks = |entries: Vec<Entry>| {
            let descriptor = Descriptor { entries, ask: Ask::Take(1), limit: None };
            sampling.picks_any(&Request { domain: "shop".into(), descriptors: vec![descriptor] })
        };
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let user = |number: &u32| picks(vec![entry("user", &format!("u{number}"))]);
        let picked: Vec<u32> = (0..10_000).filter(user).collect();
        assert_eq!((picked.len(), &picked[..3]), (102, &[58, 106, 292][..]));
        let pair = |number: &u32| picks(vec![entry("user", &format!("u{number}")), entry("page", "/")]);
        let of_two: Vec<u32> = (0..10_000).filter(pair).collect();
        assert_eq!((of_two.len(), &of_two[..3]), (97, &[145, 191, 320][..]));
    }

    #[test]
    fn what_a_stream_settles_is_sampled_with_what_its_counter_holds() {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        let rules = "
domain: shop
prices: {small: 1}
descriptors:
- key: tenant
  descriptors:
  - {key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 9, weigh_by: [model]}}
- key: settle
  rate_limit: {unit: day, requests_per_unit: 9}
";
        std::fs::write(&file, rules).unwrap();
        let sources = Sources { paths: vec![file.path().to_owned()] };
        let rules = load::load(&sources, &LoadOptions::default()).unwrap().rules;
        let sampling = Sampling::new(Share::new(0.1), [Arc::new(rules) as Shared]);
        let picks = |tenant: u32, key: &str, more: &[(&str, &str)]| {
            let tenant = tenant.to_string();
            let entries = [("tenant", &*tenant), (key, "1")].into_iter().chain(more.iter().copied());
            let entries = entries.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
            let descriptor = Descriptor { entries, ask: Ask::Take(1), limit: None };
            sampling.picks_any(&Request { domain: "shop".into(), descriptors: vec![descriptor] })
        };
        let holds: Vec<u32> = (0..1_000).filter(|tenant| picks(*tenant, "hold", &[])).collect();
        let settles = |more: &[(&str, &str)]| -> Vec<u32> {
            (0..1_000).filter(|tenant| picks(*tenant, "settle", more)).collect()
        };
        assert!((50..200).contains(&holds.len()), "{}", holds.len());
        assert_eq!((&settles(&[]), &settles(&[("model", "small")])), (&holds, &holds));
    }
}
