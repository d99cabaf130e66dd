//! Commands to a store of adjustments and its replies, and the store in memory. Adjustments are read as a whole, by a
//! version that changes with them.
//!
//! A change is made once, however often it is requested. The caller chooses the ID of a new adjustment, and a repeated
//! request with the same ID and content has no second effect. A change with a lost reply can therefore be requested
//! again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::{Action, KEPT, MOST_CHANGES, MOST_REFUSALS, Note, Record, Trail};
use crate::engine::adjustment::{Adjustment, Id, InForce, MOST, Proposal, Written};
use crate::engine::clock::Clock;
use crate::store::memory::SystemClock;

/// A command to the store.
#[derive(Clone, Copy, Debug)]
pub enum Command<'c> {
    /// Read the adjustments.
    Read,
    /// Begin an adjustment, and record this.
    Begin(&'c Proposal, &'c Note),
    /// Begin an adjustment that has held at one instance, if nothing has changed since that instance read the others.
    Offer(Offer<'c>),
    /// End an adjustment, and record this.
    End(&'c Id, &'c Note),
    /// Remove the adjustments that are over, and record the end of each. Whichever instance asks first does it for all.
    Sweep,
}

impl Command<'_> {
    /// Returns whether it is one that every instance repeats, to read the adjustments.
    pub const fn reads(&self) -> bool {
        matches!(self, Command::Read | Command::Sweep)
    }
}

/// An adjustment that one instance has held while the store was away.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'c> {
    /// The adjustment. It keeps its start and its end.
    pub proposal: &'c Proposal,
    /// The note to record.
    pub note: &'c Note,
    /// How long it has held.
    pub held: Duration,
    /// The version of the adjustments that the instance has read.
    pub seen: u64,
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The adjustments were read. To an offer: they have changed, and it was not taken.
    Read,
    /// The adjustments are still those of the version that the caller knows, and are left out of the reply.
    Unchanged,
    /// The change was made.
    Done,
    /// The same adjustment was begun before.
    Same,
    /// Another adjustment has this ID.
    Taken,
    /// The maximum number of adjustments is reached.
    Full,
    /// No adjustment has this ID, or the offered one is over.
    Unknown,
}

/// The store's reply with the adjustments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The outcome of the command.
    pub outcome: Outcome,
    /// The store's time, in milliseconds since the epoch; 0 if the adjustments are unchanged.
    pub now_ms: u64,
    /// A version that changes with the adjustments; 0 if there are none.
    pub version: u64,
    /// All adjustments, including ended ones that were not removed yet; empty if they are unchanged.
    pub adjustments: Vec<Adjustment>,
    /// Number of further adjustments that cannot be read, because another version of Tollgate has made them.
    pub unreadable: usize,
}

impl Reply {
    /// Returns the reply to a caller that knows this version.
    pub(super) fn unchanged(version: u64) -> Reply {
        Reply { outcome: Outcome::Unchanged, now_ms: 0, version, adjustments: Vec::new(), unreadable: 0 }
    }

    fn lasting(&self) -> impl Iterator<Item = &Adjustment> {
        self.adjustments.iter().filter(|one| !remaining(one, self.now_ms).is_zero())
    }

    /// Returns whether an adjustment with this ID has not ended.
    pub(super) fn has(&self, id: &Id) -> bool {
        self.lasting().any(|one| one.id == *id)
    }

    /// Returns the adjustments that have not ended, and are within their hours.
    pub fn in_force(&self) -> InForce {
        let now = self.lasting().filter(|one| one.is_within_hours(self.now_ms));
        InForce::new(now.cloned().map(Arc::new).collect())
    }
}

/// The adjustments of this process.
#[derive(Debug, Default)]
pub struct MemoryAdjustments<C = SystemClock> {
    clock: C,
    board: Mutex<Board>,
}

impl<C: Clock> MemoryAdjustments<C> {
    /// Returns an empty store on this clock.
    pub fn new(clock: C) -> MemoryAdjustments<C> {
        MemoryAdjustments { clock, board: Mutex::default() }
    }

    /// Executes a command.
    pub fn ask(&self, known: u64, command: Command<'_>) -> Reply {
        self.board.lock().ask(self.clock.now(), known, command)
    }

    /// Adds a record of this age to the trail.
    pub(super) fn record(&self, action: Action, age: Duration, note: &Note) {
        let now = self.clock.now();
        let at_ms = now.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        self.board.lock().record(now, action, Record::kept(at_ms, action, "-", (&note.json(), "")));
    }

    /// Returns the newest records of each trail, at most `most` of each, the newest first.
    pub fn trail(&self, most: usize) -> Trail {
        let board = self.board.lock();
        let newest = |trail: &VecDeque<String>| -> Vec<Record> {
            trail.iter().rev().take(most).filter_map(|kept| Record::parse(kept)).collect()
        };
        Trail { now_ms: self.clock.now(), records: [newest(&board.changes), newest(&board.refusals)].concat() }
    }

    /// Returns the trail of changes as it is kept, the oldest first.
    pub fn kept_changes(&self) -> Vec<String> {
        self.board.lock().changes.iter().cloned().collect()
    }
}

/// The adjustments, and the commands on them. The twin of `lua/adjustments.lua`.
#[derive(Debug, Default)]
struct Board {
    version: u64,
    list: Vec<Adjustment>,
    changes: VecDeque<String>,
    refusals: VecDeque<String>,
}

impl Board {
    fn ask(&mut self, now: u64, known: u64, command: Command<'_>) -> Reply {
        let outcome = match command {
            Command::Read if self.version == known => return Reply::unchanged(known),
            Command::Read => Outcome::Read,
            Command::Begin(proposal, note) => self.change(now, |list| begin(list, (proposal, note), (now, now))),
            Command::Offer(Offer { seen, .. }) if seen != self.version => Outcome::Read,
            Command::Offer(Offer { proposal, note, held, .. }) => {
                let since = now.saturating_sub(u64::try_from(held.as_millis()).unwrap_or(u64::MAX));
                self.change(now, |list| begin(list, (proposal, note), (since, now)))
            }
            Command::End(id, note) => self.change(now, |list| match list.iter().position(|one| one.id == *id) {
                Some(place) => (Outcome::Done, Some(kept(now, Action::Ended, &list.remove(place), note))),
                None => (Outcome::Unknown, None),
            }),
            Command::Sweep => match self.list.iter().any(|one| set_back(one, now).until_ms <= now) {
                true => self.change(now, |_| (Outcome::Done, None)),
                false => Outcome::Read,
            },
        };
        Reply { outcome, now_ms: now, version: self.version, adjustments: self.list.clone(), unreadable: 0 }
    }

    /// Changes the adjustments that have not ended, and records the end of the others. If nothing changes, the ended
    /// ones stay too.
    fn change(
        &mut self,
        now: u64,
        change: impl FnOnce(&mut Vec<Adjustment>) -> (Outcome, Option<(Action, String)>),
    ) -> Outcome {
        let list = self.list.iter().map(|one| set_back(one, now));
        let (mut list, over): (Vec<Adjustment>, Vec<Adjustment>) = list.partition(|one| one.until_ms > now);
        let (outcome, record) = change(&mut list);
        if outcome == Outcome::Done {
            self.version = if list.is_empty() { 0 } else { (self.version + 1).max(now * 1_000) };
            self.list = list;
            let over = over.iter().map(|one| kept(one.until_ms, Action::Expired, one, &Note::default()));
            for (action, record) in over.chain(record) {
                self.record(now, action, record);
            }
        }
        outcome
    }

    fn record(&mut self, now: u64, action: Action, kept: String) {
        let (trail, most) = match action {
            Action::Refused => (&mut self.refusals, MOST_REFUSALS),
            _ => (&mut self.changes, MOST_CHANGES),
        };
        trail.push_back(kept);
        let lifetime = u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX);
        let is_old = |kept: &String| Record::parse(kept).is_none_or(|record| record.at_ms + lifetime <= now);
        while trail.len() > most || trail.front().is_some_and(is_old) {
            trail.pop_front();
        }
    }
}

/// Returns the record of an action with an adjustment.
fn kept(at_ms: u64, action: Action, adjustment: &Adjustment, note: &Note) -> (Action, String) {
    // Cannot fail, since there are only strings and numbers.
    let content = serde_json::to_string(&Written::from(&adjustment.content)).unwrap_or_default();
    (action, Record::kept(at_ms, action, adjustment.id.as_str(), (&note.json(), &content)))
}

/// Returns the adjustment. If the clock was set back to before its start, it is moved to start now.
fn set_back(one: &Adjustment, now: u64) -> Adjustment {
    let ahead = one.since_ms.saturating_sub(now);
    Adjustment { since_ms: one.since_ms - ahead, until_ms: one.until_ms - ahead, ..one.clone() }
}

fn begin(
    list: &mut Vec<Adjustment>,
    (Proposal { id, content, lasts }, note): (&Proposal, &Note),
    (since_ms, now): (u64, u64),
) -> (Outcome, Option<(Action, String)>) {
    if let Some(known) = list.iter().find(|one| one.id == *id) {
        let is_same = known.content == *content && known.lasts() == *lasts;
        return (if is_same { Outcome::Same } else { Outcome::Taken }, None);
    }
    let until_ms = since_ms + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    if until_ms <= now {
        return (Outcome::Unknown, None);
    }
    if list.len() >= MOST {
        return (Outcome::Full, None);
    }
    let begun = Adjustment { id: id.clone(), content: content.clone(), since_ms, until_ms };
    let record = kept(now, Action::Began, &begun, note);
    list.push(begun);
    (Outcome::Done, Some(record))
}

/// Returns the remaining duration of an adjustment in this reply. Never longer than its full duration, whatever time
/// the store's clock shows.
pub fn remaining(adjustment: &Adjustment, now_ms: u64) -> Duration {
    Duration::from_millis(adjustment.until_ms.saturating_sub(now_ms)).min(adjustment.lasts())
}
