//! The recorded requests of one domain, decided by the rules in force and by proposed ones.

use serde::Serialize;

use super::trial::{MOST_BYTES, Trouble};
use super::{Kept, Others, WhatIf, WhatIfError};
use crate::engine::rules::Rules;
use crate::evaluate::{Comparison, Differences, Evaluator, KeyCount, RuleSet};

/// The requests that proposed rules decide differently. Counts are those of the sampled keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The content of the ring.
    #[serde(flatten)]
    pub kept: Kept,
    /// Number of keys of the compared requests.
    pub keys: u64,
    /// The differences.
    #[serde(flatten)]
    pub differences: Differences,
}

impl WhatIf {
    /// Decides the recorded requests of a domain by the rules in force and by others, each with its own counters. This
    /// takes seconds if there are many requests.
    ///
    /// # Errors
    /// Fails if the requests cannot be replayed.
    pub fn compare(
        &self,
        domain: &str,
        (in_force, other): (&Rules, &Rules),
        others: &Others,
    ) -> Result<Compared, WhatIfError> {
        self.replay(others, |scene| {
            let evaluators = [MOST_BYTES / 2; 2].map(Evaluator::new);
            let [old, new] = [in_force, other].map(|rules| {
                let replicas = scene.replicas;
                RuleSet { replicas, ..RuleSet::new(rules, &self.options.plan) }
            });
            let mut comparison = Comparison::new(self.options.values.clone());
            let mut keys = KeyCount::default();
            scene.each(|arrival| {
                if *arrival.request.domain != *domain {
                    return Ok(());
                }
                let [by_old, by_new] = &evaluators;
                let (old, new) = (by_old.decide(&old, arrival)?, by_new.decide(&new, arrival)?);
                if let (Some(old), Some(new)) = (old, new) {
                    keys.add(arrival, &new);
                    comparison.add(arrival, (&old, &new), |_, _| {});
                }
                Ok(())
            })?;
            let kept = self.kept(scene);
            Ok::<_, Trouble>(Compared { kept, keys: keys.get(), differences: comparison.report() })
        })
    }
}
