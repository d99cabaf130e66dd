//! Commands to a store of adjustments and its replies, and the store in memory. Adjustments are read as a whole, by a
//! version that changes with them.
//!
//! A change is made once, however often it is requested. The caller chooses the ID of a new adjustment, and a repeated
//! request with the same ID and content has no second effect. A change with a lost reply can therefore be requested
//! again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::adjustment::{Adjustment, Id, InForce, MOST, Proposal};
use crate::engine::clock::Clock;
use crate::store::memory::SystemClock;

/// A command to the store.
#[derive(Clone, Copy, Debug)]
pub enum Command<'c> {
    /// Read the adjustments.
    Read,
    /// Begin an adjustment.
    Begin(&'c Proposal),
    /// End an adjustment.
    End(&'c Id),
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The adjustments were read.
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
    /// No adjustment has this ID.
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

    /// Returns the adjustments that have not ended.
    pub fn in_force(&self) -> InForce {
        let last = self.adjustments.iter().filter(|one| !remaining(one, self.now_ms).is_zero());
        InForce::new(last.cloned().map(Arc::new).collect())
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
}

/// The adjustments, and the commands on them. The twin of `lua/adjustments.lua`.
#[derive(Debug, Default)]
struct Board {
    version: u64,
    list: Vec<Adjustment>,
}

impl Board {
    fn ask(&mut self, now: u64, known: u64, command: Command<'_>) -> Reply {
        let outcome = match command {
            Command::Read if self.version == known => return Reply::unchanged(known),
            Command::Read => Outcome::Read,
            Command::Begin(proposal) => self.change(now, |list| begin(list, proposal, now)),
            Command::End(id) => self.change(now, |list| match list.iter().position(|one| one.id == *id) {
                Some(place) => {
                    list.remove(place);
                    Outcome::Done
                }
                None => Outcome::Unknown,
            }),
        };
        Reply { outcome, now_ms: now, version: self.version, adjustments: self.list.clone(), unreadable: 0 }
    }

    /// Changes the adjustments that have not ended. If nothing changes, the ended ones stay too.
    fn change(&mut self, now: u64, change: impl FnOnce(&mut Vec<Adjustment>) -> Outcome) -> Outcome {
        let mut list: Vec<Adjustment> = self.list.iter().map(|one| set_back(one, now)).collect();
        list.retain(|one| one.until_ms > now);
        let outcome = change(&mut list);
        if outcome == Outcome::Done {
            self.version = if list.is_empty() { 0 } else { (self.version + 1).max(now * 1_000) };
            self.list = list;
        }
        outcome
    }
}

/// Returns the adjustment. If the clock was set back to before its start, it is moved to start now.
fn set_back(one: &Adjustment, now: u64) -> Adjustment {
    let ahead = one.since_ms.saturating_sub(now);
    Adjustment { since_ms: one.since_ms - ahead, until_ms: one.until_ms - ahead, ..one.clone() }
}

fn begin(list: &mut Vec<Adjustment>, Proposal { id, content, lasts }: &Proposal, now: u64) -> Outcome {
    if let Some(known) = list.iter().find(|one| one.id == *id) {
        return if known.content == *content && known.lasts() == *lasts { Outcome::Same } else { Outcome::Taken };
    }
    if list.len() >= MOST {
        return Outcome::Full;
    }
    let until_ms = now + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    list.push(Adjustment { id: id.clone(), content: content.clone(), since_ms: now, until_ms });
    Outcome::Done
}

/// Returns the remaining duration of an adjustment in this reply. Never longer than its full duration, whatever time
/// the store's clock shows.
pub fn remaining(adjustment: &Adjustment, now_ms: u64) -> Duration {
    Duration::from_millis(adjustment.until_ms.saturating_sub(now_ms)).min(adjustment.lasts())
}
