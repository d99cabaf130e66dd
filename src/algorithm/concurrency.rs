//! Concurrency: no more than the number in progress at once. Hits take slots, negative hits give them back.
//!
//! Every slot has a holder, and only its holder gives it back. That a count of what is in progress stays right hangs on this.
//! Give-backs get lost (a proxy is killed), come late (after the slot has freed itself), and come from requests that never got a slot
//! (Envoy sends one for every stream, the refused ones too). Without holders it could not be told whose slot a give-back means:
//! - if it freed the oldest, what a killed proxy has leaked would live on as the youngest for as long as there is traffic;
//! - if it freed the newest, long-running slots at the bottom would free themselves while others still stand on them, and a limit
//!   that is always used up would let in its number anew with every `hold`.
//!
//! No rule in between does better: five leaked slots and fast requests look just like no leak and slower requests. With
//! holders a give-back that has nothing to give back changes nothing, and a denial need not be charged.
//!
//! A slot that is not given back frees itself `hold` after it was taken, to the millisecond, and never before. What is kept is one entry for
//! each request in progress, so that the number is bounded. Hits of one holder come back newest first. A reset by hand frees all.

use super::{FIGURES, Limit, LimitError, LimitErrors, MAX_HITS, Options, Verdict, figures, hold, push_number};

/// `hold` is the period of such a limit.
pub(super) const OPTIONS: &[&str] = &["hold"];

/// The most slots: each is 20 bytes, which Redis copies with every call. Measured in Redis, with so many taken: 10, 16 µs a call;
/// 100, 27 µs; 1,000, 180 µs; 10,000, 1.7 ms. (A sliding window, beside it: 14 µs.)
pub(super) const MAX_NUMBER: u32 = 10_000;

/// All that can be given back: a reset by hand, which frees every slot, whoever holds it.
const RESET: i64 = -(MAX_HITS as i64);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) holder: u64,
}

/// The slots that are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The hits of all of them.
    used: u32,
    /// The newest last.
    slots: Vec<Slot>,
}

/// What one request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    holder: u64,
    /// When it was taken, in milliseconds since the epoch.
    at: u64,
    hits: u32,
}

pub use self::State as Change;

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    hits: i64,
    state: Option<&State>,
    now: u64,
) -> (Option<State>, Verdict) {
    let Parameters { holder } = *parameters;
    // Time is cut to milliseconds: one more, lest a slot be free before it was held for the whole of the period.
    let held = limit.period_ms + 1;
    let mut time = now;
    let mut set_back = false;
    let mut used = 0;
    // Room for just one more: most counters hold a few, and there may be many counters.
    let mut slots = Vec::with_capacity(state.map_or(0, |state| state.slots.len()) + 1);
    if let Some(state) = state
        && let Some(newest) = state.slots.last()
    {
        (time, set_back) = hold(now, newest.at, limit.period_ms);
        used = state.used;
        slots.extend_from_slice(&state.slots);
        if set_back {
            // Every slot is as old as the old clock left it.
            let back = newest.at - now;
            slots.iter_mut().for_each(|slot| slot.at = slot.at.saturating_sub(back));
        }
        let over = slots.iter().take_while(|slot| slot.at + held <= time).count();
        used -= slots.drain(..over).map(|slot| slot.hits).sum::<u32>();
    }

    let number = limit.number;
    let allowed = hits < 0 || i64::from(used) + hits <= i64::from(number);
    let mut charged = false;
    if hits > 0 && allowed {
        let hits = hits as u32;
        slots.push(Slot { holder, at: time, hits });
        used += hits;
        charged = true;
    } else if hits == RESET {
        charged = !slots.is_empty();
        slots.clear();
        used = 0;
    } else if hits < 0 {
        let mut owed = -hits;
        for slot in slots.iter_mut().rev().filter(|slot| slot.holder == holder) {
            let given = owed.min(slot.hits.into()) as u32;
            slot.hits -= given;
            used -= given;
            owed -= i64::from(given);
            charged |= given > 0;
        }
        slots.retain(|slot| slot.hits > 0);
    }

    let reset_after_ms = slots.last().map_or(0, |slot| slot.at + held - now);
    let mut retry_after_ms = if allowed { Some(0) } else { None };
    if !allowed && hits <= i64::from(number) {
        let mut younger = used;
        let enough = slots.iter().find(|slot| {
            younger -= slot.hits;
            i64::from(younger) + hits <= i64::from(number)
        });
        retry_after_ms = enough.map(|slot| slot.at + held - now);
    }
    let remaining = number.saturating_sub(used);
    let verdict = Verdict { allowed, remaining, reset_after_ms, retry_after_ms, delay_ms: 0 };
    ((charged || set_back).then_some(State { used, slots }), verdict)
}

impl Parameters {
    pub(super) fn new(number: u32, _: u64, options: &Options) -> Result<Self, LimitErrors> {
        LimitErrors::any([
            (number > MAX_NUMBER).then_some(LimitError::Slots),
            (options.count_denied == Some(true)).then_some(LimitError::SlotsOfDenied),
        ])?;
        Ok(Parameters { holder: 0 })
    }

    pub(super) fn arguments(&self) -> [u64; FIGURES] {
        figures(&[self.holder])
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        name.push_str("co");
        push_number(name, limit.period_ms);
    }
}

impl State {
    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = self.used.to_le_bytes().to_vec();
        for Slot { holder, at, hits } in &self.slots {
            bytes.extend((*holder as f64).to_le_bytes());
            bytes.extend((*at as f64).to_le_bytes());
            bytes.extend(hits.to_le_bytes());
        }
        bytes
    }
}
