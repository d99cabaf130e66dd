//! Which keys are compared.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use super::Shared;
use crate::descriptor::{Entry, Request};
use crate::rules::{Allowance, Rule, Rules};

/// A share of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    All,
    /// Those whose hash is below.
    Below(u64),
}

impl Share {
    /// From 0 to 1.
    pub(super) fn new(ratio: f64) -> Share {
        if ratio >= 1.0 { Share::All } else { Share::Below((ratio * u64::MAX as f64) as u64) }
    }

    pub(super) fn as_ratio(self) -> f64 {
        match self {
            Share::All => 1.0,
            Share::Below(bound) => bound as f64 / u64::MAX as f64,
        }
    }

    /// Each key that is in it is in the whole, too.
    pub(super) fn half(self) -> Share {
        match self {
            Share::All => Share::Below(u64::MAX / 2),
            Share::Below(bound) => Share::Below(bound / 2),
        }
    }
}

/// Picks the descriptors of requests whose counters are in the sample.
///
/// What is hashed is the descriptor without the values that share a counter by either set of rules, so that a counter
/// sees all of its requests or none. Only where rules with and without such values count in one counter of the other
/// set it may see a part of them.
pub(super) struct Sampling {
    share: Share,
    pub(super) in_force: Shared,
    pub(super) candidates: Shared,
    /// Some values share a counter.
    shares: bool,
}

/// For each descriptor of a request, whether it is in the sample.
pub(super) type Picked = SmallVec<[bool; 8]>;

impl Sampling {
    pub(super) fn new(share: Share, in_force: Shared, candidates: Shared) -> Sampling {
        let shares = [&in_force, &candidates].into_iter().any(|rules| (**rules).as_ref().rules().iter().any(shares));
        Sampling { share, in_force, candidates, shares }
    }

    pub(super) fn share(&self) -> Share {
        self.share
    }

    /// The same with rules in force that say the same.
    pub(super) fn with_in_force(&self, in_force: Shared) -> Sampling {
        Sampling { share: self.share, in_force, candidates: Arc::clone(&self.candidates), shares: self.shares }
    }

    /// Half of it.
    pub(super) fn half(&self) -> Sampling {
        let (in_force, candidates) = (Arc::clone(&self.in_force), Arc::clone(&self.candidates));
        Sampling { share: self.share.half(), in_force, candidates, shares: self.shares }
    }

    pub(super) fn picked(&self, request: &Request) -> Picked {
        (0..request.descriptors.len()).map(|descriptor| self.picks(request, descriptor)).collect()
    }

    /// Whether this one of its descriptors is in the sample.
    pub(super) fn picks(&self, request: &Request, descriptor: usize) -> bool {
        let Share::Below(bound) = self.share else { return true };
        let (domain, entries) = (&*request.domain, &*request.descriptors[descriptor].entries);
        let both = [&self.in_force, &self.candidates];
        let rules = both.map(|rules| if self.shares { find((**rules).as_ref(), domain, entries) } else { None });
        // The same on every replica: nobody gains anything by a name that is in the sample, or is not.
        let mut hasher = SipHasher13::new();
        let mut add = |text: &str| {
            hasher.write(text.as_bytes());
            hasher.write_u8(0xff);
        };
        add(domain);
        for (level, entry) in entries.iter().enumerate() {
            add(&entry.key);
            let is_shared = |rule: &Rule| rule.shared_pattern(level).is_some() || names_holder(rule, level);
            if !rules.iter().flatten().any(|rule| is_shared(rule)) {
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
