//! The hits of a counter that instances hold in advance: its leases.
//!
//! **Promise.** Leases change nothing about what a limit admits: a leased hit occupies the counter from its grant until
//! one period after its last possible use, whatever dies. So a limit with leases keeps its number exactly, as without.
//!
//! A lease is granted until a time on the store's clock, and an instance uses its hits before that by its own clock,
//! counted from when it *sent* the question. The store keeps for each counter how many hits are out and until when, in
//! a counter beside it. An instance returns a lease with the hits it has used, and the store forgets it. A lease that
//! nobody returns ends by itself, and all its hits count as used. How a hit that is out occupies the counter depends on
//! the algorithm ([`Occupies`]):
//!
//! - **A sliding window or log** admits the number less all hits that are out. The used hits of a lease are charged
//!   when it is returned, and all its hits at its end if it is not: later than any of them was used. So at every
//!   instant, the hits that were used in the last period are charged or out.
//! - **A fixed window** charges hits when they are granted, and its leases end with the window. What is returned in
//!   time is refunded. So the hits that are used in a window were charged in it.
//! - **A bucket** charges hits when they are granted, too, and fills up only to its burst less the hits that are out,
//!   and less one for a fraction.
//!   So tokens and hits out are never more than the burst together, and in an interval no more hits are used than the
//!   burst and what is refilled in it.
//!
//! What is out, of all instances together, is never more than the part of the limit that the lease states. It is the
//! only error: hits that are out and never used are denied to others. A lease is at most half of what may still be
//! lent, so that with k instances in demand each comes to hold a (k+1)th of it; and at most an eighth of what remains,
//! so that near the limit leases get smaller and stop.
//!
//! A reset of the counter keeps what is out. A store that loses its counters loses the leases with them.

use smallvec::SmallVec;

use super::{Change, Effect, Packed, State as AnyState, clipped};

/// The source of the Lua twin.
pub const LUA: &str = include_str!("../../../lua/leased.lua");

/// The part of its counter's name: the version of the layout.
pub const CODE: &str = "le1";

/// The longest time for which a lease may be granted.
pub const MAX_TTL_MS: u64 = 30_000;

/// A lease takes at most one in this many of the remaining hits, so that other instances find enough.
pub const PART: u32 = 8;

/// The most ends of leases that a counter stores. Ends are rounded up to a quarter of the TTL, so there are seldom more
/// than six.
const MAX_ENDS: usize = 64;

/// How a hit that is out occupies the limit's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupies {
    /// The counter has that much less room. Used hits are charged when the lease is returned.
    Room = 0,
    /// It is charged, until its window ends.
    Window = 1,
    /// It is charged, and a bucket has that much less room for tokens.
    Tokens = 2,
}

/// What an instance asks of a counter's leases, besides its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseAsk {
    /// The lease that it returns, if it has one.
    pub returned: Option<Returned>,
    /// The most hits that it takes in advance; 0 for no lease.
    pub want: u32,
    /// For how long it takes them.
    pub ttl_ms: u64,
    /// The most hits of the counter that may be out, of all instances together.
    pub most: u32,
}

/// A lease at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Its end, as it was granted.
    pub until_ms: u64,
    /// Its hits, as they were granted.
    pub hits: u32,
    /// How many of them were used.
    pub used: u32,
}

/// What the store says of a counter's leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The hits that the asker may use; 0 if it gets no lease.
    pub hits: u32,
    /// The end of the lease on the store's clock, in milliseconds since the epoch.
    pub until_ms: u64,
    /// The hits that are out with all instances, these included.
    pub out: u32,
}

/// The hits that are out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The ends of leases, in ascending order, with their hits.
    ends: SmallVec<[(u64, u32); 3]>,
}

/// What a return and the time have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    state: State,
    is_changed: bool,
    /// The leases that nobody has returned: their ends, in ascending order, and their hits.
    pub ended: SmallVec<[(u64, u32); 3]>,
    /// The used hits of the lease that was returned.
    pub used: u64,
    /// Its other hits.
    pub unused: u64,
    /// The hits that are still out.
    pub out: u64,
    /// The hits that were out until now.
    pub occupied: u64,
}

impl LeaseAsk {
    /// Returns whether nothing is returned and no lease is asked for.
    pub fn is_look(&self) -> bool {
        self.returned.is_none() && self.want == 0
    }

    /// Ends leases by the time, takes one back, and says what that changes.
    pub fn settle(&self, state: Option<&AnyState>, now: u64) -> Settled {
        // The kind of counter is part of its name, so the state is always one of leases.
        let mut state = match state {
            Some(AnyState::Leased(state)) => state.clone(),
            _ => State::default(),
        };
        // After the clock was set back, leases end later than any lease can.
        let latest = now + 2 * MAX_TTL_MS;
        let sound = state.ends.partition_point(|(until, _)| *until <= latest);
        let is_changed = sound < state.ends.len();
        if is_changed {
            let late = state.ends.drain(sound..).fold(0, |sum: u32, (_, hits)| sum.saturating_add(hits));
            match state.ends.last_mut() {
                Some((until, hits)) if *until == latest => *hits = hits.saturating_add(late),
                _ => state.ends.push((latest, late)),
            }
        }
        let occupied = state.out();
        let due = state.ends.partition_point(|(until, _)| *until <= now);
        let ended: SmallVec<_> = state.ends.drain(..due).collect();
        let is_changed = is_changed || due > 0;
        let mut settled = Settled { state, is_changed, ended, used: 0, unused: 0, out: 0, occupied };
        if let Some(Returned { until_ms, hits, used }) = self.returned
            && let Some(place) = settled.state.ends.iter().position(|(until, out)| *until == until_ms && *out >= hits)
        {
            settled.is_changed = true;
            settled.used = u64::from(used);
            settled.unused = u64::from(hits.saturating_sub(used));
            settled.state.ends[place].1 -= hits;
            if settled.state.ends[place].1 == 0 {
                settled.state.ends.remove(place);
            }
        }
        settled.out = settled.state.out();
        settled
    }
}

impl Settled {
    /// Returns the hits of a new lease, where this many remain.
    pub fn lends(&self, ask: &LeaseAsk, remaining: u64, now: u64) -> u32 {
        let until = end_of(ask.ttl_ms, now);
        let is_full = self.state.ends.len() >= MAX_ENDS && self.state.ends.iter().all(|(other, _)| *other != until);
        if ask.want == 0 || is_full {
            return 0;
        }
        let left = u64::from(ask.most).saturating_sub(self.out).div_ceil(2);
        ask.want.min(clipped(remaining) / PART).min(clipped(left))
    }

    /// Adds a lease of these hits, and returns it. It ends at `latest` at the latest, if that is given.
    pub fn lend(&mut self, ask: &LeaseAsk, hits: u32, latest: Option<u64>, now: u64) -> Granted {
        let mut until_ms = 0;
        if hits > 0 {
            until_ms = latest.map_or(end_of(ask.ttl_ms, now), |latest| end_of(ask.ttl_ms, now).min(latest));
            let place = self.state.ends.partition_point(|(until, _)| *until < until_ms);
            match self.state.ends.get_mut(place) {
                Some((until, out)) if *until == until_ms => *out += hits,
                _ => self.state.ends.insert(place, (until_ms, hits)),
            }
            self.is_changed = true;
            self.out += u64::from(hits);
        }
        Granted { hits, until_ms, out: clipped(self.out) }
    }

    /// Returns the end of the last lease that is out.
    pub fn last_end(&self) -> Option<u64> {
        self.state.ends.last().map(|(until, _)| *until)
    }

    /// Returns the effect on the counter of leases. It is kept for a period after the last end, because hits that are
    /// not returned are charged at the next decision.
    pub fn effect(self, period_ms: u64, now: u64) -> Effect {
        let Some(last) = self.last_end() else {
            return if self.is_changed { Effect::Forgotten } else { Effect::None };
        };
        if !self.is_changed {
            return Effect::None;
        }
        Effect::Changed { change: Change::Leased(self.state), expires_after_ms: last + period_ms - now }
    }
}

/// Returns the end of a lease, rounded up so that few ends are stored.
fn end_of(ttl_ms: u64, now: u64) -> u64 {
    let step = (ttl_ms / 4).max(1);
    (now + ttl_ms).div_ceil(step) * step
}

impl State {
    /// Returns the hits that are out.
    pub fn out(&self) -> u64 {
        self.ends.iter().map(|(_, hits)| u64::from(*hits)).sum()
    }

    /// Parses a state from [`pack`](State::pack); `None` if it is damaged.
    pub fn unpack(bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let mut ends: SmallVec<[(u64, u32); 3]> = SmallVec::new();
        while !packed.is_empty() {
            ends.push((packed.whole()?, packed.count()?));
        }
        let is_sound = !ends.is_empty() && ends.len() <= MAX_ENDS && ends.is_sorted_by(|one, next| one.0 < next.0);
        (is_sound && ends.iter().all(|(_, hits)| *hits > 0)).then_some(State { ends })
    }

    pub(super) fn heap_bytes(&self) -> usize {
        if self.ends.spilled() { size_of_val(&*self.ends) } else { 0 }
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let end = |(until, hits): &(u64, u32)| [&(*until as f64).to_le_bytes()[..], &hits.to_le_bytes()].concat();
        self.ends.iter().flat_map(end).collect()
    }
}
