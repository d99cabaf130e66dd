//! Which keys are in a sample.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use super::Shared;
use crate::descriptor::{Entry, Request};
use crate::rules::{Allowance, Rule, Rules};

/// A share of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Every key.
    All,
    /// Those whose hash is below.
    Below(u64),
}

impl Share {
    /// From 0 to 1.
    pub fn new(ratio: f64) -> Share {
        if ratio >= 1.0 { Share::All } else { Share::Below((ratio * u64::MAX as f64) as u64) }
    }

    /// The same as a number from 0 to 1.
    pub fn as_ratio(self) -> f64 {
        match self {
            Share::All => 1.0,
            Share::Below(bound) => bound as f64 / u64::MAX as f64,
        }
    }

    /// Each key that is in it is in the whole, too.
    #[must_use]
    pub fn half(self) -> Share {
        match self {
            Share::All => Share::Below(u64::MAX / 2),
            Share::Below(bound) => Share::Below(bound / 2),
        }
    }
}

/// Picks the descriptors of requests whose counters are in the sample.
///
/// What is hashed is the descriptor without the values that share a counter by any of so many sets of rules, so that a
/// counter sees all of its requests or none. Only where rules with and without such values count in one counter of
/// another set it may see a part of them.
pub struct Sampling<const N: usize> {
    share: Share,
    rules: [Shared; N],
    /// Some values share a counter.
    shares: bool,
}

/// For each descriptor of a request, whether it is in the sample.
pub type Picked = SmallVec<[bool; 8]>;

impl<const N: usize> Sampling<N> {
    /// So many of the keys that these rules count.
    pub fn new(share: Share, rules: [Shared; N]) -> Sampling<N> {
        let shares = rules.iter().any(|rules| (**rules).as_ref().rules().iter().any(shares));
        Sampling { share, rules, shares }
    }

    /// How many of them.
    pub fn share(&self) -> Share {
        self.share
    }

    /// By these rules.
    pub fn rules(&self) -> &[Shared; N] {
        &self.rules
    }

    /// Some values share a counter: by other rules other keys may be in the sample.
    pub fn has_shared_counters(&self) -> bool {
        self.shares
    }

    /// The same with rules that say the same.
    #[must_use]
    pub fn with_rules(&self, rules: [Shared; N]) -> Sampling<N> {
        Sampling { share: self.share, rules, shares: self.shares }
    }

    /// Half of it.
    #[must_use]
    pub fn half(&self) -> Sampling<N> {
        Sampling { share: self.share.half(), rules: self.rules.clone(), shares: self.shares }
    }

    /// For each descriptor of a request, whether it is in the sample.
    pub fn picked(&self, request: &Request) -> Picked {
        (0..request.descriptors.len()).map(|descriptor| self.picks(request, descriptor)).collect()
    }

    /// Whether this one of its descriptors is in the sample.
    pub fn picks(&self, request: &Request, descriptor: usize) -> bool {
        let Share::Below(bound) = self.share else { return true };
        let (domain, entries) = (&*request.domain, &*request.descriptors[descriptor].entries);
        let mut rules: SmallVec<[&Rule; 2]> = SmallVec::new();
        if self.shares {
            rules.extend(self.rules.iter().filter_map(|rules| find((**rules).as_ref(), domain, entries)));
        }
        // The same on every replica: nobody gains anything by a name that is in the sample, or is not.
        let mut hasher = SipHasher13::new();
        let mut add = |text: &str| {
            hasher.write(text.as_bytes());
            hasher.write_u8(0xff);
        };
        add(domain);
        for (level, entry) in entries.iter().enumerate() {
            add(&entry.key);
            let is_shared = |rule: &&Rule| rule.shared_pattern(level).is_some() || names_holder(rule, level);
            if !rules.iter().any(is_shared) {
                add(&entry.value);
            }
        }
        hasher.finish() < bound
    }
}

fn find<'r>(rules: &'r Rules, domain: &str, entries: &[Entry]) -> Option<&'r Rule> {
    rules.find(rules.domain(domain)?, entries)
}

/// Values share a counter.
fn shares(rule: &Rule) -> bool {
    (0..rule.levels()).any(|level| rule.shared_pattern(level).is_some() || names_holder(rule, level))
}

/// The value at this level names who holds a slot, and is no part of the counter's name.
fn names_holder(rule: &Rule, level: usize) -> bool {
    let has_holders = |allowance: &Allowance| match allowance {
        Allowance::Limited(limit) => limit.algorithm().has_holders(),
        Allowance::Unlimited => false,
    };
    level + 1 == rule.levels() && rule.limits.iter().any(|limit| has_holders(&limit.config.allowance))
}
