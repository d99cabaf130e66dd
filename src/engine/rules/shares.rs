//! What rules say about own shares: which domains have them, and what instances must agree on.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::compiled::Rules;
use super::version;
use crate::share::{DomainTerms, Shared, Split};

/// The shares of a domain's limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct DomainShares {
    /// What each check of the domain knows of shares, apart from its limit.
    pub shared: Shared,
    /// The largest part of a limit, in hundredths of a percent; 0 if no limit has a share.
    largest: u16,
}

impl Rules {
    /// Returns what instances with these rules state of each domain with shares, by the number of the domain.
    pub fn share_terms(&self, seats: u32) -> BTreeMap<u64, DomainTerms> {
        let domains = self.domain_names().filter_map(|name| self.domain(name)).map(|domain| domain.shares);
        let terms = domains.filter(|shares| shares.largest > 0).map(|DomainShares { shared, largest }| {
            (shared.domain, DomainTerms { digest: shared.digest, largest: Split::new(largest, seats) })
        });
        terms.collect()
    }

    /// Returns the shares of each domain, by its name.
    pub(super) fn domain_shares(&self) -> HashMap<String, DomainShares> {
        let mut parts: HashMap<&str, u16> = HashMap::new();
        for (rule, limit) in self.limits() {
            if let Some(share) = limit.config.options.own_share {
                let part = parts.entry(&rule.domain).or_default();
                *part = share.hundredths().max(*part);
            }
        }
        // Hashing all rules takes a while, and most have no shares.
        let digests = version::of_domains(self, parts.keys().copied());
        let of = |name: &str| {
            let shared = Shared {
                domain: Shared::domain_id(name),
                digest: digests.get(name).copied().unwrap_or_default(),
                ..Shared::default()
            };
            let largest = parts.get(name).copied().unwrap_or_default();
            (name.to_owned(), DomainShares { shared, largest })
        };
        self.domain_names().map(of).collect()
    }
}
