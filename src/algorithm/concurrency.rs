//! Concurrency: no more than the number in progress at once. A stream takes a slot when it begins and releases it when
//! it ends.
//!
//! Every slot has a holder, and only its holder releases it. The count of what is in progress stays right because of
//! this. Releases get lost (a proxy is killed), come late (after the slot has expired), and come from streams that
//! never got a slot (Envoy sends one for every stream, the denied ones too). Without holders a release would mean
//! any slot:
//! - if it freed the oldest, what a killed proxy has leaked would live on as the youngest for as long as there is
//!   traffic;
//! - if it freed the newest, long-running slots at the bottom would expire while others still stand on them, and a
//!   limit that is always used up would let in its number anew with every `hold`.
//!
//! No rule in between does better: five leaked slots and fast streams look just like no leak and slower streams.
//!
//! The name of a holder may repeat: a mesh hands a request id on, and a client may choose its own. So a denied take is
//! remembered for a while, and swallows the release that Envoy sends for it, lest that frees the slot of another stream
//! of the same name. A take that is taken back is one that was denied. Those of holders that have a slot are all
//! remembered; of the others the last [`MAX_DENIED`].
//!
//! A slot that its holder does not release expires `hold` after it was taken, to the millisecond, and never before. The
//! counter keeps one entry for each stream in progress, so the number is bounded. A holder releases its newest hits
//! first.

use std::collections::HashSet;

use super::{
    Attempt, Caller, FIGURES, Limit, LimitError, LimitErrors, NoLease, Options, Traits, Verdict, figures, push_number,
    steady,
};

/// `hold` is the period of such a limit.
pub(super) const OPTIONS: &[&str] = &["hold"];

/// The most slots: each is 20 bytes, which Redis copies with every call. Measured in Redis, with so many taken: 10, 16
/// µs a call; 100, 27 µs; 1,000, 180 µs; 10,000, 1.7 ms. (A sliding window, beside it: 14 µs.)
pub(super) const MAX_NUMBER: u32 = 10_000;

/// How long a denied take is remembered; its release comes within milliseconds. A hold that is shorter makes it
/// shorter.
const DENIED_MS: u64 = 10_000;

/// How many denied takes are remembered of holders that have no slot.
const MAX_DENIED: usize = 100;

pub(super) const TRAITS: Traits =
    Traits { code: "co1", has_holders: true, no_lease: Some(NoLease::Holders), denials_last: false };

/// It has none beyond number and period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters;

/// The slots that are taken, and the takes that were denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The hits of all slots.
    used: u32,
    /// The newest last.
    slots: Vec<Slot>,
    /// The newest last, and of each holder one.
    denied: Vec<Slot>,
}

/// What one holder took at one time, or what one holder was denied and when last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    holder: u64,
    /// When it was, in milliseconds since the epoch.
    at: u64,
    hits: u32,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    _: &Parameters,
    Attempt { hits, charge, denied: by_others, caller: Caller { holder, .. } }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    // Time is cut to milliseconds: one more, lest a slot be free before it was held for the whole of the period.
    let held = limit.period_ms + 1;
    let remembered = DENIED_MS.min(limit.period_ms) + 1;
    let mut time = now;
    let mut set_back = false;
    let mut used = 0;
    // Room for just one more: most counters hold a few, and there may be many counters.
    let mut slots = Vec::with_capacity(state.map_or(0, |state| state.slots.len()) + 1);
    let mut denied = Vec::new();
    if let Some(state) = state {
        let newest = |list: &[Slot]| list.last().map_or(0, |newest| newest.at);
        let newest = newest(&state.slots).max(newest(&state.denied));
        (time, set_back) = steady(now, newest, limit.period_ms);
        used = state.used;
        slots.extend_from_slice(&state.slots);
        denied.extend_from_slice(&state.denied);
        if set_back {
            // All of them are as old as the old clock left them.
            let back = newest - now;
            slots.iter_mut().chain(&mut denied).for_each(|one| one.at = one.at.saturating_sub(back));
        }
        let over = slots.iter().take_while(|slot| slot.at + held <= time).count();
        used -= slots.drain(..over).map(|slot| slot.hits).sum::<u32>();
        let over = denied.iter().take_while(|one| one.at + remembered <= time).count();
        denied.drain(..over);
    }

    let number = limit.number;
    let allowed = hits < 0 || (!by_others && i64::from(used) + hits <= i64::from(number));
    let mut changed = set_back;
    // What the holder is denied, now or after all.
    let mut refused = 0;
    if hits > 0 && allowed {
        slots.push(Slot { holder, at: time, hits: hits as u32 });
        used += hits as u32;
        changed = true;
    } else if hits > 0 {
        refused = hits;
    } else if let Some(charge) = charge {
        // Only the slot of that time. Which that is now, a clock that was set back cannot tell.
        let is_it = |slot: &Slot| !set_back && slot.holder == holder && slot.at == charge.at_ms;
        let released = release(&mut slots, hits.unsigned_abs(), is_it);
        used -= released;
        refused = released.into();
    } else if hits < 0 {
        let owed = hits.unsigned_abs();
        let swallowed = release(&mut denied, owed, |one| one.holder == holder);
        let released = release(&mut slots, owed - u64::from(swallowed), |slot| slot.holder == holder);
        used -= released;
        changed |= swallowed > 0 || released > 0;
    }
    if refused > 0 {
        let known = denied.iter().position(|one| one.holder == holder).map(|place| denied.remove(place));
        let before = known.map_or(0, |one| i64::from(one.hits));
        let hits = u32::try_from(before + refused).unwrap_or(u32::MAX);
        denied.push(Slot { holder, at: time, hits });
        if denied.len() > MAX_DENIED {
            // Mostly the oldest has no slot. Where it has, to search all slots for each of the others takes long.
            let oldest = denied[0].holder;
            let place = if slots.iter().all(|slot| slot.holder != oldest) {
                Some(0)
            } else {
                let holders: HashSet<u64> = slots.iter().map(|slot| slot.holder).collect();
                denied.iter().position(|one| !holders.contains(&one.holder))
            };
            place.map(|place| denied.remove(place));
        }
        changed = true;
    }

    let free = slots.last().map_or(0, |slot| slot.at + held - now);
    let forgotten = denied.last().map_or(0, |one| one.at + remembered - now);
    let reset_after_ms = free.max(forgotten);
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    if !allowed && !by_others && hits <= i64::from(number) {
        let mut younger = used;
        let enough = slots.iter().find(|slot| {
            younger -= slot.hits;
            i64::from(younger) + hits <= i64::from(number)
        });
        retry_after_ms = enough.map(|slot| slot.at + held - now);
    }
    let remaining = number.saturating_sub(used);
    let verdict = Verdict { allowed, remaining, excess: None, reset_after_ms, retry_after_ms, delay_ms: 0 };
    (changed.then_some((State { used, slots, denied }, reset_after_ms)), verdict)
}

/// Removes up to so many hits of those in a list, the newest first, and returns how many there were.
fn release(list: &mut Vec<Slot>, mut owed: u64, is_one: impl Fn(&Slot) -> bool) -> u32 {
    let mut released = 0;
    for one in list.iter_mut().rev().filter(|one| is_one(one)) {
        let hits = owed.min(one.hits.into()) as u32;
        one.hits -= hits;
        released += hits;
        owed -= u64::from(hits);
    }
    list.retain(|one| one.hits > 0);
    released
}

impl Parameters {
    pub(super) fn new(number: u32, _: u64, options: &Options) -> Result<Self, LimitErrors> {
        LimitErrors::any([
            (number > MAX_NUMBER).then_some(LimitError::Slots),
            (options.count_denied == Some(true)).then_some(LimitError::SlotsOfDenied),
        ])?;
        Ok(Parameters)
    }

    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        figures(&[caller.holder])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    /// Its slots are copied, see [`MAX_NUMBER`].
    pub(super) fn work(&self, limit: &Limit) -> u64 {
        3 + u64::from(limit.number) / 16
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        (self.slots.len() + self.denied.len()) * size_of::<Slot>()
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = self.used.to_le_bytes().to_vec();
        bytes.extend((self.slots.len() as u32).to_le_bytes());
        for Slot { holder, at, hits } in self.slots.iter().chain(&self.denied) {
            bytes.extend((*holder as f64).to_le_bytes());
            bytes.extend((*at as f64).to_le_bytes());
            bytes.extend(hits.to_le_bytes());
        }
        bytes
    }
}
