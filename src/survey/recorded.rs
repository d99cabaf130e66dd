//! The requests that each instance has recorded, to replay them as one stream.

use serde::{Deserialize, Serialize};

use super::{Ask, Instances, Local, Parts, sent_as};
use crate::observe::what_if::{Others, Recorded};

/// The most halvings of a share of keys.
const MOST_HALVINGS: u32 = 40;

/// A question for recorded requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedQuestion {
    /// The least number of halvings of the share of keys.
    pub halvings: u32,
}

impl Ask for RecordedQuestion {
    type Part = Recorded;

    fn answer(&self, local: &Local) -> Option<Recorded> {
        local.what_if.as_ref()?.recorded(self.halvings)
    }

    fn shorter(&self) -> Option<RecordedQuestion> {
        (self.halvings < MOST_HALVINGS).then(|| RecordedQuestion { halvings: self.halvings + 1 })
    }

    sent_as!(Recorded);
}

/// Returns the requests of the other instances, without those of the asked one, and where they are from.
pub fn merge(parts: Parts<Recorded>) -> (Others, Instances) {
    let Parts { parts, instances } = parts;
    let recorded = parts.into_iter().skip(1).collect();
    let are_known = instances.unavailable.is_none();
    (Others { recorded, missing: instances.missing.len(), are_known }, instances)
}
