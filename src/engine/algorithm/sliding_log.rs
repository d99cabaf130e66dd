//! Sliding log: stores every admitted hit with its time. No interval of one period admits more than the number, and
//! every request that keeps to this by a millisecond is allowed. The other algorithms give up one of these two
//! properties to save memory.
//!
//! The log has one entry for each millisecond in which it admitted hits, so memory grows with the number, which is
//! therefore bounded. Each entry stores the running sum of all hits. The count in a stretch of the log is then one
//! subtraction, and a search is a binary search. A decision reads and changes only a few entries, however long the log
//! is.
//!
//! If denials count, a log stores up to twice the number. As with a token bucket, usage beyond the number keeps other
//! requests out until it expires, and usage beyond twice the number is dropped.

use std::collections::VecDeque;

use super::{
    Attempt, Becomes, Caller, FIGURES, Limit, LimitError, LimitErrors, MAX_HITS, Occupies, Options, Packed, Traits,
    Verdict, push_number, steady,
};

pub(super) const OPTIONS: &[&str] = &[];

pub(super) const TRAITS: Traits = Traits {
    code: "sl1",
    has_holders: false,
    counts_in_progress: false,
    leased: Some(Occupies::Room),
    denials_last: true,
};

/// The largest number. In Redis each entry takes 22 bytes.
///
/// Three layouts were measured in Redis 7.0, with logs of 10, 1,000 and 100,000 hits: µs for an allowed and for a
/// denied decision, and the memory of the largest log. A list, as used here: 8.0 and 7.8, 8.2 and 14.1, 8.2 and 22.5
/// µs, 2.2 MB. A sorted set: 7.3 and 5.2, 7.1 and 5.0, 7.8 and 5.3 µs, 10.4 MB; it needs a member per hit if a request
/// takes several. One packed string: 5.7 and 3.9, 79 and 27, 7,100 and 2,300 µs, 2.1 MB.
pub(super) const MAX_NUMBER: u32 = 100_000;

/// The most hits in a log: denials may count, too.
const MAX_LOGGED: u64 = 2 * MAX_NUMBER as u64;

/// The largest running sum, which leaves room for a full log below 2^53.
const MAX_SUM: u64 = MAX_HITS - MAX_LOGGED;

/// A charge is taken back only if at most this many entries follow its own, because all of them change. There is at
/// most one entry per millisecond, so a charge can be taken back for at least a tenth of a second; it usually takes one
/// or two milliseconds. Measured in Redis: 0.3 ms more with a hundred entries to change than with none.
const MAX_BEHIND: usize = 100;

/// A log has no algorithm-specific figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters;

/// The log, with the newest entry last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    entries: VecDeque<Entry>,
}

/// The hits admitted in one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Time in milliseconds since the epoch.
    at: u64,
    /// Hits of this entry and all entries before it, including those that have expired.
    sum: u64,
    hits: u64,
}

/// The part of a log that is kept, and the few entries that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Positions in the log before the change; `end` may be past its end.
    first: usize,
    end: usize,
    set: Vec<(usize, Entry)>,
}

/// A log with a pending change.
struct Log<'s> {
    stored: Option<&'s State>,
    change: Change,
}

pub(super) fn decide(
    limit: &Limit,
    _: &Parameters,
    Attempt { hits, charge, denied, .. }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(Change, u64)>, Verdict) {
    let number = limit.number;
    let most = if limit.count_denied() { 2 * number } else { number };
    // Times are truncated to milliseconds, so a hit is kept one millisecond longer to cover the whole period.
    let held = limit.period_ms + 1;
    let mut log = Log::open(state);
    let mut time = now;
    let mut set_back = false;
    // The running sums up to the newest entry, and up to the oldest entry that counts.
    let mut total = 0;
    let mut base = 0;
    let mut oldest = log.change.first;
    if log.change.end > log.change.first {
        let newest = log.get(log.change.end - 1);
        (time, set_back) = steady(now, newest.at, limit.period_ms);
        total = newest.sum;
        let clock = if set_back { newest.at } else { time };
        oldest = log.search(oldest, |entry| entry.at + held > clock);
        if oldest < log.change.end {
            let entry = log.get(oldest);
            base = entry.sum - entry.hits;
        } else {
            // The sums restart when a log is empty. Without a restart, a million hits a second would take 285 years to
            // reach 2^53.
            total = 0;
        }
        if set_back {
            // After a clock reset the age of each hit is unknown, so all of them are dated now.
            oldest = log.change.end - 1;
            log.change.first = oldest;
            log.set(oldest, Entry { at: time, sum: total, hits: total - base });
        }
    }

    let allowed = hits < 0 || (!denied && (total - base) as i64 + hits <= number as i64);
    // A limit with the number 0 stores nothing, not even denials.
    let mut charged = hits != 0 && (allowed || (limit.count_denied() && number > 0));
    if let Some(charge) = charge {
        // Only from the entry of the charge. After a clock reset that entry is unknown.
        let nearest = oldest.max(log.change.end.saturating_sub(MAX_BEHIND + 1));
        let place = log.search(nearest, |entry| entry.at >= charge.at_ms);
        charged = !set_back && place < log.change.end && log.get(place).at == charge.at_ms;
        if charged {
            let Entry { at, sum, hits: put } = log.get(place);
            let taken = put.min(hits.unsigned_abs());
            let (end, mut to) = (log.change.end, place);
            if put > taken {
                log.set(to, Entry { at, sum: sum - taken, hits: put - taken });
                to += 1;
            }
            for behind in place + 1..end {
                let entry = log.get(behind);
                log.set(to, Entry { sum: entry.sum - taken, ..entry });
                to += 1;
            }
            log.change.first = oldest;
            log.change.end = to;
            total -= taken;
        }
    } else if charged && hits > 0 {
        let mut added = (hits as u64).min(most);
        total += added;
        log.change.first = oldest;
        if log.change.end > oldest && log.get(log.change.end - 1).at == time {
            log.change.end -= 1;
            added += log.get(log.change.end).hits;
        }
        log.set(log.change.end, Entry { at: time, sum: total, hits: added });
        log.change.end += 1;
        if total - base > most {
            // Drops the oldest hits. Only hits that affect decisions are kept.
            base = total - most;
            oldest = log.search(oldest, |entry| entry.sum > base);
            let entry = log.get(oldest);
            log.change.first = oldest;
            log.set(oldest, Entry { hits: entry.sum - base, ..entry });
        }
    } else if charged {
        // Refunds remove the newest hits first, so a refund right after its charge leaves no trace.
        let left = total.saturating_sub(hits.unsigned_abs()).max(base);
        log.change.first = oldest;
        if left == base {
            log.change.end = oldest;
        } else {
            let last = log.search(oldest, |entry| entry.sum >= left);
            let entry = log.get(last);
            log.change.end = last + 1;
            log.set(last, Entry { sum: left, hits: entry.hits - (entry.sum - left), ..entry });
        }
        total = left;
    }

    let used = total - base;
    let reset_after_ms = if used > 0 { log.get(log.change.end - 1).at + held - now } else { 0 };
    let retry_after_ms = if allowed {
        Some(0)
    } else if hits > number as i64 || denied {
        None
    } else {
        // Number of the oldest hits that must expire first.
        let leaving = used + hits as u64 - number;
        let last = log.search(oldest, |entry| entry.sum - base >= leaving);
        Some(log.get(last).at + held - now)
    };
    let remaining = number.saturating_sub(used);
    let changed = charged || set_back;
    (
        changed.then_some((log.change, reset_after_ms)),
        Verdict { allowed, remaining, reset_after_ms, retry_after_ms, ..Verdict::NOTHING },
    )
}

impl Log<'_> {
    fn open(stored: Option<&State>) -> Log<'_> {
        let end = stored.map_or(0, |state| state.entries.len());
        Log { stored, change: Change { first: 0, end, set: Vec::new() } }
    }

    fn get(&self, place: usize) -> Entry {
        let set = self.change.set.iter().rev().find(|(set, _)| *set == place).map(|(_, entry)| *entry);
        let stored = || self.stored.and_then(|state| state.entries.get(place)).copied();
        set.or_else(stored).expect("only places between the first and the end are asked for")
    }

    fn set(&mut self, place: usize, entry: Entry) {
        self.change.set.push((place, entry));
    }

    /// Returns the first position from `from` on where `holds` is true, or the end. `holds` must stay true from there
    /// to the end.
    ///
    /// The position is usually close to `from`, so the search starts with a step of one and doubles it.
    fn search(&self, mut from: usize, holds: impl Fn(Entry) -> bool) -> usize {
        let end = self.change.end;
        let (mut to, mut stride) = (from, 1);
        while to < end && !holds(self.get(to)) {
            from = to + 1;
            to += stride;
            stride *= 2;
        }
        to = to.min(end);
        while from < to {
            let middle = from.midpoint(to);
            if holds(self.get(middle)) {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        from
    }
}

impl Becomes<State> for Change {
    fn begin(self) -> State {
        // Many logs never have more than their first entry.
        let mut state = State { entries: VecDeque::with_capacity(self.set.len()) };
        self.onto(&mut state);
        state
    }

    fn onto(self, State { entries }: &mut State) {
        let Change { first, end, set } = self;
        entries.truncate(end);
        entries.drain(..first.min(entries.len()));
        for (place, entry) in set.into_iter().filter(|(place, _)| (first..end).contains(place)) {
            match entries.get_mut(place - first) {
                Some(kept) => *kept = entry,
                None => entries.push_back(entry),
            }
        }
        // Frees the memory of a burst once most of it is unused.
        if entries.capacity() > 64 && entries.len() < entries.capacity() / 4 {
            entries.shrink_to(entries.len() * 2);
        }
    }
}

impl Change {
    pub(super) fn heap_bytes(&self) -> usize {
        (self.end - self.first) * size_of::<Entry>()
    }
}

pub(super) fn parameters(number: u32, _: u64, _: &Options) -> Result<Parameters, LimitErrors> {
    if number > MAX_NUMBER { Err(LimitError::LogNumber.into()) } else { Ok(Parameters) }
}

impl Parameters {
    pub(super) fn figures(&self, _: Caller) -> [u64; FIGURES] {
        [0; FIGURES]
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    /// Entries are found by binary search in a linked list, which is linear.
    pub(super) fn work(&self, limit: &Limit) -> u64 {
        6 + limit.number / 10_000
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }

    /// Parses a state from [`pack`](State::pack); `None` if it is damaged. Each entry must be younger than the previous
    /// one, and must add its hits to the sum.
    pub(super) fn unpack(_: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let mut packed = Packed(bytes);
        let mut entries = VecDeque::new();
        while !packed.is_empty() {
            let entry = Entry { at: packed.whole()?, sum: packed.whole()?, hits: packed.count()?.into() };
            let is_next = |before: &Entry| before.at < entry.at && before.sum + entry.hits == entry.sum;
            let is_bounded = (entry.hits..=MAX_SUM).contains(&entry.sum);
            if entry.hits == 0 || !is_bounded || !entries.back().is_none_or(is_next) {
                return None;
            }
            entries.push_back(entry);
        }
        let hits: u64 = entries.iter().map(|entry| entry.hits).sum();
        (hits <= MAX_LOGGED).then_some(State { entries })
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len() * 20);
        for Entry { at, sum, hits } in &self.entries {
            bytes.extend((*at as f64).to_le_bytes());
            bytes.extend((*sum as f64).to_le_bytes());
            bytes.extend((*hits as u32).to_le_bytes());
        }
        bytes
    }
}
