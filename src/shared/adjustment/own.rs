//! What holds at this instance alone, because the store was away when an operator asked for it: adjustments that began
//! here, and adjustments of the store that were ended here.
//!
//! When the store is back, each that is meant for the fleet is offered to it, with the start and the end that it has
//! here. It is published only if no later adjustment changes the same limits in the same way: somebody may have steered
//! through another instance meanwhile, and knew more. What is not published stays here until its end, or until the
//! process ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Entry;
use super::audit::Note;
use crate::engine::adjustment::{Adjustment, Content, Id, MOST, OnlyHere, Proposal};

/// How much later an adjustment may seem to begin at other instances than where it began. An instance offers it to the
/// store with the time that it has held, and this time is too short by the way of the offer: usually milliseconds, and
/// at most about `REDIS_TIMEOUT` unless Redis was frozen. So an end given soon after the begin may look older
/// than the begin. If an offer is later still, the adjustment stays in the list until it is ended again.
///
/// The price: if another instance begins the same adjustment, with the same ID and content, within this time after the
/// end, that is ended too.
const LATE: Duration = Duration::from_secs(5);

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
    /// Whether it is outside its hours.
    pub(super) is_paused: bool,
    /// The note that is recorded when it is published.
    pub(super) note: Note,
    /// Why it does not match the rules.
    pub(super) unmatched: Option<String>,
    /// Whether it is meant for the fleet.
    pub(super) fleet: bool,
    /// Whether the store may have it all the same: its answer was lost.
    pub(super) uncertain: bool,
    /// Why it was not published.
    pub(super) stays: Option<String>,
}

/// An adjustment that was ended at this instance alone: one of the store, or one of this instance, which the store may
/// have taken although its answer was lost, or may yet take from another instance.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) adjustment: Arc<Adjustment>,
    /// When it was ended. One with the same ID and content that began more than [`LATE`] after it is another.
    pub(super) at: Instant,
    /// When it would have ended by itself, and this is forgotten.
    pub(super) until: Instant,
    pub(super) note: Note,
    /// Whether its end is meant for the fleet.
    pub(super) fleet: bool,
}

impl Ended {
    /// Returns whether this ends an adjustment of the store.
    pub(super) fn ends(&self, entry: &Entry) -> bool {
        is_alike(&self.adjustment, &entry.adjustment) && entry.began() <= Some(self.at + LATE)
    }
}

impl Own {
    /// Notes an end. Beyond the most, the oldest is forgotten.
    pub(super) fn note_end(&mut self, end: Ended) {
        self.ended.retain(|other| other.adjustment.id != end.adjustment.id);
        if self.ended.len() >= MOST {
            self.ended.remove(0);
        }
        self.ended.push(end);
    }

    /// Forgets the end of an adjustment with this ID, because it has begun again.
    pub(super) fn begun_again(&mut self, id: &Id) {
        self.ended.retain(|ended| ended.adjustment.id != *id);
    }
}

/// Returns whether both have the same ID, content and duration, and so are the same adjustment if they began at the
/// same time.
pub(super) fn is_alike(one: &Adjustment, other: &Adjustment) -> bool {
    one.id == other.id && one.content == other.content && one.lasts() == other.lasts()
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
        let Begun { fleet, uncertain, stays, .. } = self;
        let (fleet, uncertain, stays) = (*fleet, *uncertain, stays.clone());
        OnlyHere { instance: instance.to_owned(), fleet, uncertain, stays, ended: false }
    }

    /// Returns whether the store has it.
    pub(super) fn is_in(&self, store: &[Entry]) -> bool {
        store.iter().any(|entry| !entry.has_ended && is_alike(&self.adjustment, &entry.adjustment))
    }

    /// Decides what to do with it, by the adjustments of the store.
    pub(super) fn next(&self, store: &[Entry]) -> Next {
        let Proposal { id, content, .. } = &self.proposal;
        // The answer of the store was lost, or another instance has published it.
        if self.is_in(store) {
            return Next::Published;
        }
        if store.iter().any(|entry| !entry.has_ended && entry.adjustment.id == *id) {
            return Next::Stays(format!("another adjustment has the id {id}"));
        }
        let changes_the_same =
            |other: &Content| other.target.shares_with(&content.target) && other.effect.kind() == content.effect.kind();
        let later = store.iter().find(|entry| {
            !entry.has_ended && entry.began() > Some(self.since) && changes_the_same(&entry.adjustment.content)
        });
        match later {
            Some(entry) => Next::Stays(format!("{} began later and changes the same", entry.adjustment.id)),
            None => Next::Offer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::adjustment::Written;

    fn blocked(id: &str) -> Arc<Adjustment> {
        let written = Written {
            id: Some(id.to_owned()),
            domain: Some("shop".to_owned()),
            effect: "block".to_owned(),
            lasts: Some("10m".to_owned()),
            who: "dana".to_owned(),
            why: "abuse".to_owned(),
            ..Written::default()
        };
        let Proposal { id, content, lasts } = written.proposal(|| unreachable!("it has an ID")).unwrap();
        let until_ms = u64::try_from(lasts.as_millis()).unwrap();
        Arc::new(Adjustment { id, content, since_ms: 0, until_ms })
    }

    fn begun_at(adjustment: &Arc<Adjustment>, began: Instant) -> Entry {
        let (adjustment, ends) = (Arc::clone(adjustment), began + adjustment.lasts());
        Entry { adjustment, ends, has_ended: false, is_paused: false, unmatched: None }
    }

    #[tokio::test]
    async fn an_end_reaches_what_began_before_it_although_the_offer_was_slow() {
        let (adjustment, at) = (blocked("flood"), Instant::now() + Duration::from_secs(3600));
        let note = Note::default();
        let until = at + adjustment.lasts();
        let ended = Ended { adjustment: Arc::clone(&adjustment), at, until, note, fleet: true };
        for (after, ends) in [(0, true), (1, true), (5_000, true), (5_001, false), (60_000, false)] {
            let entry = begun_at(&adjustment, at + Duration::from_millis(after));
            assert_eq!(ended.ends(&entry), ends, "it began {after} ms after the end");
        }
        let earlier = begun_at(&adjustment, at - Duration::from_secs(600));
        assert!(ended.ends(&earlier));
        assert!(!ended.ends(&begun_at(&blocked("another"), at)), "only the ID that was ended");
    }
}
