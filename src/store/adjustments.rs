//! Where adjustments are kept: in Redis for all replicas, or in memory for this process. They are read whole, by a
//! version that changes whenever they do.
//!
//! A change is made once, however often it is asked for: who begins an adjustment gives it its id, and an id that is
//! there already with the same content is no second one. So a change whose reply was lost is asked for again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::StoreError;
use super::memory::{Clock, SystemClock};
use super::redis::RedisAdjustments;
use crate::adjustment::{Adjustment, Id, InForce, MOST, Proposal};

/// Where the adjustments of a process are kept.
pub enum AdjustmentStore {
    /// In Redis.
    Redis(Box<RedisAdjustments>),
    /// In this process, until it ends.
    Memory(MemoryAdjustments),
}

/// What is asked of the adjustments.
#[derive(Clone, Copy, Debug)]
pub enum Command<'c> {
    /// What they are.
    Read,
    /// One more.
    Begin(&'c Proposal),
    /// One fewer.
    End(&'c Id),
}

/// What has come of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They have been read.
    Read,
    /// They are those of the version that the caller knows, and do not come with the reply.
    Unchanged,
    /// It is done.
    Done,
    /// The same has begun before.
    Same,
    /// Another has this id.
    Taken,
    /// There are as many as there may be.
    Full,
    /// None has this id.
    Unknown,
}

/// What the adjustments are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What has come of the command.
    pub outcome: Outcome,
    /// The store's time, in milliseconds since the epoch; 0 where nothing has changed.
    pub now_ms: u64,
    /// Changes whenever they do; 0 where there is none.
    pub version: u64,
    /// All of them, the ended among them that nobody has cleared away yet; empty where they are unchanged.
    pub adjustments: Vec<Adjustment>,
    /// So many more cannot be read, because another version of Tollgate has made them.
    pub unreadable: usize,
}

impl Reply {
    /// To who knows this version.
    pub(super) fn unchanged(version: u64) -> Reply {
        Reply { outcome: Outcome::Unchanged, now_ms: 0, version, adjustments: Vec::new(), unreadable: 0 }
    }

    /// Those that have not ended.
    pub fn in_force(&self) -> InForce {
        let last = self.adjustments.iter().filter(|one| !remaining(one, self.now_ms).is_zero());
        InForce::new(last.cloned().map(Arc::new).collect())
    }
}

impl AdjustmentStore {
    /// Does what is asked. `known` is the version that the caller knows.
    ///
    /// # Errors
    /// Where the store does not answer. Whether a change has happened is then unknown: it can be asked for again.
    pub async fn ask(&self, known: u64, command: Command<'_>) -> Result<Reply, StoreError> {
        match self {
            AdjustmentStore::Redis(redis) => redis.ask(known, command).await,
            AdjustmentStore::Memory(memory) => Ok(memory.ask(known, command)),
        }
    }
}

/// Those of this process.
#[derive(Debug, Default)]
pub struct MemoryAdjustments<C = SystemClock> {
    clock: C,
    board: Mutex<Board>,
}

impl<C: Clock> MemoryAdjustments<C> {
    /// None, on this clock.
    pub fn new(clock: C) -> MemoryAdjustments<C> {
        MemoryAdjustments { clock, board: Mutex::default() }
    }

    /// Does what is asked.
    pub fn ask(&self, known: u64, command: Command<'_>) -> Reply {
        self.board.lock().ask(self.clock.now(), known, command)
    }
}

/// The adjustments, and what is done to them. The twin of `lua/adjustments.lua`.
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

    /// Changes those that have not ended. Where nothing changes the ended stay, too.
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

/// Where the clock was set back, it lasts no longer than it was to.
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

/// How much longer an adjustment of this reply lasts; never longer than it was to, wherever the store's clock stands.
pub fn remaining(adjustment: &Adjustment, now_ms: u64) -> Duration {
    Duration::from_millis(adjustment.until_ms.saturating_sub(now_ms)).min(adjustment.lasts())
}
