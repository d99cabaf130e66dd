//! What holds at this instance alone, because the store was away when an operator asked for it: adjustments that began
//! here, and adjustments of the store that were ended here.
//!
//! When the store is back, each that is meant for the fleet is offered to it, with the start and the end that it has
//! here. It is published only if no later adjustment changes the same limits in the same way: somebody may have steered
//! through another instance meanwhile, and knew more. What is not published stays here until its end, or until the
//! process ends.

use std::sync::Arc;

use tokio::time::Instant;

use super::Entry;
use super::audit::Note;
use crate::engine::adjustment::{Adjustment, Content, Id, OnlyHere, Proposal};

/// What holds at this instance alone.
#[derive(Default)]
pub(super) struct Own {
    pub(super) begun: Vec<Begun>,
    pub(super) ended: Vec<Ended>,
}

/// An adjustment that began at this instance alone.
#[derive(Clone)]
pub(super) struct Begun {
    pub(super) proposal: Proposal,
    /// The same with its times by the clock of this instance.
    pub(super) adjustment: Arc<Adjustment>,
    pub(super) since: Instant,
    /// The note that is recorded when it is published.
    pub(super) note: Note,
    /// Why it does not match the rules.
    pub(super) unmatched: Option<String>,
    /// Whether it is meant for the fleet.
    pub(super) fleet: bool,
    /// Why it was not published.
    pub(super) stays: Option<String>,
}

/// An adjustment of the store that was ended at this instance alone.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) id: Id,
    pub(super) note: Note,
    /// Whether its end is meant for the fleet.
    pub(super) fleet: bool,
}

/// What to do with an adjustment of this instance, by those of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Offer it to the store.
    Offer,
    /// The store has it.
    Published,
    /// It stays here, for this reason.
    Stays(String),
}

impl Begun {
    pub(super) fn ends(&self) -> Instant {
        self.since + self.proposal.lasts
    }

    pub(super) fn shown(&self, instance: &str) -> OnlyHere {
        OnlyHere { instance: instance.to_owned(), fleet: self.fleet, stays: self.stays.clone() }
    }

    /// Decides what to do with it, by the adjustments of the store.
    pub(super) fn next(&self, store: &[Entry]) -> Next {
        let Proposal { id, content, lasts } = &self.proposal;
        if let Some(Entry { adjustment, .. }) = store.iter().find(|entry| entry.adjustment.id == *id) {
            // If it is the same, the answer of the store was lost.
            return match adjustment.content == *content && adjustment.lasts() == *lasts {
                true => Next::Published,
                false => Next::Stays(format!("another adjustment has the id {id}")),
            };
        }
        let changes_the_same =
            |other: &Content| other.target == content.target && other.effect.kind() == content.effect.kind();
        let later = store.iter().find(|entry| {
            !entry.has_ended && entry.began() > Some(self.since) && changes_the_same(&entry.adjustment.content)
        });
        match later {
            Some(entry) => Next::Stays(format!("{} began later and changes the same", entry.adjustment.id)),
            None => Next::Offer,
        }
    }
}
