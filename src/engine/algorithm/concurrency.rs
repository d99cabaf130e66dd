//! Concurrency: at most `number` requests in progress at once. A stream takes a slot when it begins and releases it
//! when it ends.
//!
//! Every slot has a holder, and only the holder can release it. This keeps the count of requests in progress right,
//! because releases get lost (a proxy is killed), come late (after the slot has expired), and come from streams that
//! never got a slot (Envoy sends one for every stream, including denied ones). Without holders, a release could be for
//! any slot:
//! - If it freed the oldest slot, the slots that a killed proxy leaked would live on as the youngest ones for as long
//!   as there is traffic.
//! - If it freed the newest slot, slots of long-running streams would expire while those streams are still running, and
//!   a limit that is always used up would admit its number again with every `hold`.
//!
//! No rule between the two does better: five leaked slots with fast streams look exactly like no leak with slower
//! streams.
//!
//! The name of a holder can repeat: a mesh forwards a request ID, and a client may choose one. So a denied take is
//! remembered for a while and absorbs the release that Envoy sends for it. Without this, the release would free the
//! slot of another stream with the same name. A take that was taken back counts as denied. Denied takes are all
//! remembered for holders that have a slot; for other holders, the last [`MAX_DENIED`] are.
//!
//! A slot that is not released expires exactly `hold` after it was taken, to the millisecond. The counter stores one
//! entry for each stream in progress, so the number is bounded. A release frees the holder's newest hits first.

use std::collections::HashSet;

use super::{
    Attempt, Caller, FIGURES, Limit, LimitError, LimitErrors, MAX_HITS, Options, Packed, Traits, Verdict, figures,
    push_number, steady,
};

/// Such a limit writes its period as `hold`.
pub(super) const OPTIONS: &[&str] = &["hold"];

/// The reason why denied requests are never charged.
pub(super) const COUNTS_NO_DENIED: &str =
    "concurrency counts requests in progress, which denied requests never are: remove count_denied";

/// The most slots. Each takes 20 bytes, which Redis copies with every call. Measured in Redis, by slots taken: 16 µs a
/// call with 10, 27 µs with 100, 180 µs with 1,000, 1.7 ms with 10,000. (A sliding window takes 14 µs.)
pub(super) const MAX_NUMBER: u32 = 10_000;

/// How long a denied take is remembered, or `hold` if that is shorter. Its release comes within milliseconds.
const DENIED_MS: u64 = 10_000;

/// How many denied takes of holders without a slot are remembered.
const MAX_DENIED: usize = 100;

pub(super) const TRAITS: Traits =
    Traits { code: "co1", has_holders: true, counts_in_progress: true, leased: None, denials_last: false };

/// A concurrency limit has no parameters besides number and period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters;

/// The slots in use, and the denied takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Hits of all slots.
    used: u32,
    /// Slots in use, the newest last.
    slots: Vec<Slot>,
    /// Denied takes, the newest last, one for each holder.
    denied: Vec<Slot>,
}

/// A take, or the denied takes of one holder with the time of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    holder: u64,
    /// Time of the take, in milliseconds since the epoch.
    at: u64,
    hits: u32,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    _: &Parameters,
    Attempt { hits, charge, denied: by_others, caller: Caller { holder, .. }, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    // Times are truncated to milliseconds, so a slot is kept one millisecond longer to cover the whole period.
    let held = limit.period_ms + 1;
    let remembered = DENIED_MS.min(limit.period_ms) + 1;
    let mut time = now;
    let mut set_back = false;
    let mut used = 0;
    // Capacity for just one more: most counters hold a few slots, and there may be many counters.
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
            // Moves all times by the clock's step, so each entry keeps its age.
            let back = newest - now;
            slots.iter_mut().chain(&mut denied).for_each(|one| one.at = one.at.saturating_sub(back));
        }
        let over = slots.iter().take_while(|slot| slot.at + held <= time).count();
        used -= slots.drain(..over).map(|slot| slot.hits).sum::<u32>();
        let over = denied.iter().take_while(|one| one.at + remembered <= time).count();
        denied.drain(..over);
    }

    let number = limit.number_as_u32();
    let allowed = hits < 0 || (!by_others && i64::from(used) + hits <= i64::from(number));
    let mut changed = set_back;
    // Hits that the holder is denied, by this decision or by a take-back.
    let mut refused = 0;
    if hits > 0 && allowed {
        slots.push(Slot { holder, at: time, hits: hits as u32 });
        used += hits as u32;
        changed = true;
    } else if hits > 0 {
        refused = hits;
    } else if let Some(charge) = charge {
        // Only from the slot taken at that time. After a clock reset that slot is unknown.
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
            // The oldest usually has no slot. If it has one, searching all slots for each of the others would be slow.
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
    let remaining = number.saturating_sub(used).into();
    let verdict = Verdict { allowed, remaining, reset_after_ms, retry_after_ms, ..Verdict::NOTHING };
    (changed.then_some((State { used, slots, denied }, reset_after_ms)), verdict)
}

/// Removes up to `owed` hits of the matching entries, the newest first, and returns how many were removed.
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

pub(super) fn parameters(number: u32, _: u64, options: &Options) -> Result<Parameters, LimitErrors> {
    LimitErrors::any([
        (number > MAX_NUMBER).then_some(LimitError::Slots),
        (options.count_denied == Some(true)).then_some(LimitError::SlotsOfDenied),
    ])?;
    Ok(Parameters)
}

impl Parameters {
    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        figures(&[caller.holder])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    /// Slots are copied, see [`MAX_NUMBER`].
    pub(super) fn work(&self, limit: &Limit) -> u64 {
        3 + limit.number / 16
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        (self.slots.len() + self.denied.len()) * size_of::<Slot>()
    }

    /// Parses a state from [`pack`](State::pack); `None` if it is damaged. Both lists must be in order, and the slots'
    /// hits must add up to the used hits.
    pub(super) fn unpack(_: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let (used, count) = (packed.count()?, packed.count()? as usize);
        let mut slots = Vec::new();
        while !packed.is_empty() {
            let holder = f64::from_le_bytes(packed.take()?);
            // Lua finds a holder by its bytes, for which -0.0 is another one than 0.0.
            if holder.fract() != 0.0 || holder.is_sign_negative() || holder > MAX_HITS as f64 {
                return None;
            }
            let holder = holder as u64;
            slots.push(Slot { holder, at: packed.whole()?, hits: packed.count()? });
        }
        let denied = (count <= slots.len()).then(|| slots.split_off(count))?;
        let is_list = |list: &[Slot]| list.is_sorted_by_key(|slot| slot.at) && list.iter().all(|slot| slot.hits > 0);
        let hits: u64 = slots.iter().map(|slot| u64::from(slot.hits)).sum();
        (is_list(&slots) && is_list(&denied) && hits == u64::from(used)).then_some(State { used, slots, denied })
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
