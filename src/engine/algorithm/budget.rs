//! Budget: what streams have used in a sliding window, and what streams in progress hold of it. A stream whose cost is
//! known only at its end, such as the tokens of a language model, reserves its estimate when it begins (a hold), and
//! settles for what it used when it ends. A limit that charges at the end alone is overrun by all streams that begin
//! before the first has ended; one that reserves and never gives back denies clients who have budget left.
//!
//! A stream may begin if what is used, what is held and its estimate are within the number. So used hits exceed the
//! number by no more than what settles brought beyond their own holds, in any interval of one period: the window is
//! that of [`sliding_window`](super::sliding_window) with strict weighting.
//!
//! Holds and settles get lost, come twice or late, or overtake each other. Every disorder has one result, and where
//! doubt remains, hits are charged:
//! - A hold that is not settled in time ends. It is then charged as if it had been used up, or refunded
//!   ([`Unsettled`]). A settle that comes later corrects a charge to what was used; after a refund it charges.
//! - A settle without a hold charges. If the hold comes later, the settle had overtaken it: the stream may begin, and
//!   nothing is held.
//! - A second settle of a stream charges only what exceeds the first.
//! - A stream that is denied settles for nothing, as Envoy tells every end. That does not close the hold of another
//!   stream with the same name.
//! - If streams have the same name, each settle closes the oldest hold. In whatever order they come, streams with the
//!   same name pay no less than what they used.
//!
//! Settles are remembered for an hour, and for the last [`MAX_CLOSED`] streams. One that is forgotten counts as
//! unknown, so its repetition is charged again. How long a hold lasts is decided when it begins.
//!
//! The store's clock may step back. The counter's own clock then pauses for at most a period, and is ahead of the
//! store's from then on, so each hold lasts as long as it should.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    Attempt, Caller, Charge, FIGURES, Limit, LimitError, LimitErrors, MAX_HITS, Options, Packed,
    Parameters as AnyParameters, REMEMBERED_MS, Traits, Unsettled, Verdict, add, figures, push_number,
};

pub(super) const OPTIONS: &[&str] = &["settle_within", "estimate", "unsettled"];

/// The reason why denied requests are never charged.
pub(super) const COUNTS_NO_DENIED: &str =
    "a budget charges what streams have used, which denied streams never do: remove count_denied";

/// Default time after which a hold ends.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_secs(600);

/// Number of segments of the window.
const SEGMENTS: u64 = 10;

/// The most holds. Each takes 20 bytes, which Redis copies with every call.
pub(super) const MAX_HOLDS: usize = 10_000;

/// How many settles, and denied streams with the name of one in progress, are remembered.
const MAX_CLOSED: usize = 100;

pub(super) const TRAITS: Traits =
    Traits { code: "bu1", has_holders: true, counts_in_progress: false, leased: None, denials_last: false };

/// The window, and how holds end that are not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Parameters {
    segment_ms: u64,
    segments: u64,
    within_ms: u64,
    unsettled: Unsettled,
}

/// What is used, and what is held; boxed, because counters of other algorithms are smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Box<Account>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    /// The counter's own time when it last changed, in milliseconds.
    at: u64,
    /// How far that time is ahead of the store's clock, in milliseconds.
    shift: u64,
    /// Number of the newest segment, the one of `at`.
    index: u64,
    /// Used hits of the newest segment and of each one before it.
    counts: Counts,
    /// Holds in the order of their ends.
    holds: Vec<Hold>,
    /// What became of holds, in the order of their times.
    closed: Vec<Closed>,
}

type Counts = SmallVec<[u32; SEGMENTS as usize + 1]>;

/// The reserved hits of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    holder: u64,
    /// When it ends if nothing settles it.
    until: u64,
    hits: u32,
}

/// What became of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed {
    holder: u64,
    /// Time of the settle, of the end of the hold, or of the denial.
    at: u64,
    /// Hits charged for the stream.
    paid: u32,
    kind: ClosedBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosedBy {
    /// It was settled.
    Settle,
    /// It was settled, and the hold is still to come.
    Overtaking,
    /// There was none: the stream was denied.
    Denial,
    /// It was not settled in time. If it was refunded, nothing is paid.
    Expiry,
}

impl ClosedBy {
    const ALL: [ClosedBy; 4] = [ClosedBy::Settle, ClosedBy::Overtaking, ClosedBy::Denial, ClosedBy::Expiry];
}

pub use self::State as Change;

/// A counter during a decision.
struct Budget {
    /// The time on the counter's own clock.
    time: u64,
    /// The store's time on that clock. It is earlier while the clock pauses.
    clock: u64,
    segment: u64,
    /// How long a hold lasts. Times are truncated to milliseconds, so this is one millisecond more than the rule says.
    held: u64,
    unsettled: Unsettled,
    state: Account,
    changed: bool,
    /// The clock was reset.
    set_back: bool,
}

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    Attempt { hits, charge, settles, denied: by_others, caller: Caller { holder, .. } }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(State, u64)>, Verdict) {
    let number = i64::from(limit.number);
    let mut budget = Budget::open(parameters, limit.period_ms, state.map(|state| &*state.0), now);
    let mut allowed = true;
    if let Some(actual) = settles {
        budget.settle(holder, actual);
    } else if let Some(charge) = charge {
        budget.take_back(holder, charge);
    } else if hits < 0 {
        budget.release(holder, hits.unsigned_abs());
    } else if hits > 0 {
        if let Some(overtaking) = budget.closed_of(holder, |one| one.kind == ClosedBy::Overtaking) {
            allowed = !by_others;
            if allowed {
                budget.state.closed[overtaking].kind = ClosedBy::Settle;
                budget.changed = true;
            }
        } else {
            let has_room = budget.used() + budget.reserved() + hits <= number;
            allowed = !by_others && has_room && budget.state.holds.len() < MAX_HOLDS;
            if allowed {
                budget.hold(holder, hits as u32);
            } else {
                budget.remember_denied(holder);
            }
        }
    }

    let retry_after_ms = match allowed {
        true => Some(0),
        false if by_others || hits > number => None,
        false => Some(budget.freed_at(hits - number) - budget.clock),
    };
    let Budget { clock, changed, .. } = budget;
    let (reset_at, kept_until) = budget.ends();
    let verdict = Verdict {
        allowed,
        remaining: u32::try_from((number - budget.used() - budget.reserved()).max(0)).unwrap_or(u32::MAX),
        excess: None,
        reset_after_ms: reset_at - clock,
        retry_after_ms,
        delay_ms: 0,
    };
    let account = Account { at: budget.time, index: budget.index(), ..budget.state };
    (changed.then(|| (State(Box::new(account)), kept_until - clock)), verdict)
}

impl Budget {
    /// Opens a counter at this time: moves its window, and ends the holds that were not settled in time.
    fn open(parameters: &Parameters, period_ms: u64, stored: Option<&Account>, now: u64) -> Budget {
        let Parameters { segment_ms: segment, segments, within_ms, unsettled } = *parameters;
        let new = || Budget {
            time: now,
            clock: now,
            segment,
            held: within_ms + 1,
            unsettled,
            state: Account {
                at: now,
                shift: 0,
                index: now / segment,
                counts: Counts::from_elem(0, segments as usize + 1),
                holds: Vec::new(),
                closed: Vec::new(),
            },
            changed: false,
            set_back: false,
        };
        let Some(stored) = stored else { return new() };
        let mut budget = new();
        let Account { at, shift, .. } = *stored;
        budget.state.shift = shift;
        budget.clock = now + shift;
        if at.saturating_sub(budget.clock) > period_ms {
            (budget.state.shift, budget.clock) = (at - now, at);
            (budget.changed, budget.set_back) = (true, true);
        }
        budget.time = budget.clock.max(at);
        let left = budget.index() - stored.index;
        for age in left..=segments {
            budget.state.counts[age as usize] = stored.counts[(age - left) as usize];
        }
        let time = budget.time;
        budget.state.closed.extend(stored.closed.iter().filter(|one| one.at + REMEMBERED_MS > time));
        let over = stored.holds.iter().take_while(|hold| hold.until <= time).count();
        // Capacity for just one more: most counters have a few holds, and there may be many counters.
        budget.state.holds.reserve_exact(stored.holds.len() - over + 1);
        budget.state.holds.extend(&stored.holds[over..]);
        for Hold { holder, until, hits } in &stored.holds[..over] {
            let paid = if unsettled == Unsettled::Charge { *hits } else { 0 };
            if let Some(count) = budget.count_at(*until) {
                *count = add(*count, paid.into());
            }
            if until + REMEMBERED_MS > time {
                budget.close(ClosedBy::Expiry, *holder, *until, paid.into());
            }
        }
        let Account { holds, closed, .. } = &budget.state;
        if budget.used() == 0 && holds.is_empty() && closed.is_empty() { new() } else { budget }
    }

    /// Returns the number of the newest segment.
    fn index(&self) -> u64 {
        self.time / self.segment
    }

    /// Returns the count of the segment of a time; `None` if it is outside the window.
    fn count_at(&mut self, at: u64) -> Option<&mut u32> {
        let age = self.index() - at / self.segment;
        self.state.counts.get_mut(age as usize)
    }

    fn used(&self) -> i64 {
        self.state.counts.iter().copied().map(i64::from).sum()
    }

    fn reserved(&self) -> i64 {
        self.state.holds.iter().map(|hold| i64::from(hold.hits)).sum()
    }

    fn charge(&mut self, hits: u64) {
        self.state.counts[0] = add(self.state.counts[0], hits as i64);
    }

    fn close(&mut self, kind: ClosedBy, holder: u64, at: u64, paid: u64) {
        let closed = &mut self.state.closed;
        let place = closed.partition_point(|one| one.at <= at);
        closed.insert(place, Closed { holder, at, paid: u32::try_from(paid).unwrap_or(u32::MAX), kind });
        if closed.len() > MAX_CLOSED {
            // A late settle still has to correct what was charged at the end of a hold.
            let place = closed.iter().position(|one| one.kind != ClosedBy::Expiry);
            closed.remove(place.unwrap_or(0));
        }
    }

    /// Returns the oldest closed one of this holder that is such a one.
    fn closed_of(&self, holder: u64, is_one: impl Fn(&Closed) -> bool) -> Option<usize> {
        self.state.closed.iter().position(|one| one.holder == holder && is_one(one))
    }

    fn hold(&mut self, holder: u64, hits: u32) {
        let until = self.time + self.held;
        let place = self.state.holds.partition_point(|hold| hold.until <= until);
        self.state.holds.insert(place, Hold { holder, until, hits });
        self.changed = true;
    }

    fn settle(&mut self, holder: u64, actual: u64) {
        let denied = self.closed_of(holder, |one| one.kind == ClosedBy::Denial).filter(|_| actual == 0);
        let hold = self.state.holds.iter().position(|hold| hold.holder == holder);
        if let Some(denied) = denied {
            self.state.closed.remove(denied);
            self.changed = true;
        } else if let Some(hold) = hold {
            self.state.holds.remove(hold);
            self.charge(actual);
            self.close(ClosedBy::Settle, holder, self.time, actual);
            self.changed = true;
        } else if let Some(place) = self.settled_before(holder) {
            self.correct(place, actual);
        } else if actual > 0 {
            self.charge(actual);
            self.close(ClosedBy::Overtaking, holder, self.time, actual);
            self.changed = true;
        }
    }

    /// Returns the closed hold that a settle without a hold is for: one that expired, because its stream still has to
    /// settle, or the one that has paid least, so that streams with the same name pay no less than they used.
    fn settled_before(&self, holder: u64) -> Option<usize> {
        let least = || {
            let own = self.state.closed.iter().enumerate().filter(|(_, one)| one.holder == holder);
            own.filter(|(_, one)| one.kind != ClosedBy::Denial).min_by_key(|(_, one)| one.paid).map(|(place, _)| place)
        };
        self.closed_of(holder, |one| one.kind == ClosedBy::Expiry).or_else(least)
    }

    /// Corrects what was charged for a stream.
    fn correct(&mut self, place: usize, actual: u64) {
        let Closed { at, paid, kind, .. } = self.state.closed[place];
        let paid = u64::from(paid);
        if actual > paid {
            self.charge(actual - paid);
        } else if kind != ClosedBy::Expiry {
            return;
        } else if let Some(count) = self.count_at(at) {
            *count = add(*count, -((paid - actual) as i64));
        }
        let closed = &mut self.state.closed[place];
        closed.paid = u32::try_from(actual).unwrap_or(u32::MAX);
        if kind == ClosedBy::Expiry {
            closed.kind = ClosedBy::Settle;
        }
        self.changed = true;
    }

    /// Takes back the hold that began with the charge, or what it was charged when it ended. The stream is denied then.
    /// After a clock reset its hold is unknown.
    fn take_back(&mut self, holder: u64, charge: Charge) {
        let until = charge.at_ms + self.state.shift + self.held;
        let is_it = |hold: &Hold| (hold.holder, hold.until) == (holder, until) && u64::from(hold.hits) == charge.hits;
        if self.set_back {
            return;
        }
        let ended =
            |one: &Closed| one.kind == ClosedBy::Expiry && one.at == until && u64::from(one.paid) == charge.hits;
        if let Some(place) = self.closed_of(holder, ended) {
            let Closed { at, paid, .. } = self.state.closed.remove(place);
            if let Some(count) = self.count_at(at) {
                *count = add(*count, -i64::from(paid));
            }
        } else if let Some(place) = self.state.holds.iter().position(is_it) {
            self.state.holds.remove(place);
        } else {
            return;
        }
        self.changed = true;
        self.remember_denied(holder);
    }

    /// Releases up to so many hits that a stream holds, the newest first.
    fn release(&mut self, holder: u64, mut owed: u64) {
        for hold in self.state.holds.iter_mut().rev().filter(|hold| hold.holder == holder) {
            let released = owed.min(hold.hits.into());
            hold.hits -= released as u32;
            owed -= released;
            self.changed |= released > 0;
        }
        self.state.holds.retain(|hold| hold.hits > 0);
    }

    /// Remembers that a stream is denied while another with the same name has a hold, which the settle of the denied
    /// stream must not close.
    fn remember_denied(&mut self, holder: u64) {
        if self.state.holds.iter().any(|hold| hold.holder == holder) {
            self.close(ClosedBy::Denial, holder, self.time, 0);
            self.changed = true;
        }
    }

    /// Returns when the hits of a hold are free at the latest.
    fn free_at(&self, hold: &Hold) -> u64 {
        match self.unsettled {
            Unsettled::Refund => hold.until,
            Unsettled::Charge => self.charged_until(hold),
        }
    }

    /// Returns when the hits of a hold leave the window that are charged when it ends.
    fn charged_until(&self, hold: &Hold) -> u64 {
        (hold.until / self.segment + self.state.counts.len() as u64) * self.segment
    }

    /// Returns when the hits of a segment leave the window.
    fn gone_at(&self, age: usize) -> u64 {
        (self.index() + (self.state.counts.len() - age) as u64) * self.segment
    }

    /// Returns when this many hits can be added to what is used and held. There must be as many, or as many holds as
    /// there can be.
    fn freed_at(&self, more: i64) -> u64 {
        let mut owed = self.used() + self.reserved() + more;
        let is_full = self.state.holds.len() >= MAX_HOLDS;
        let mut at = self.state.holds.first().filter(|_| is_full).map_or(0, |hold| hold.until);
        let counts = self.state.counts.iter().enumerate().rev().map(|(age, count)| (self.gone_at(age), *count));
        let mut counts = counts.filter(|(_, count)| *count > 0).peekable();
        let mut holds = self.state.holds.iter().map(|hold| (self.free_at(hold), hold.hits)).peekable();
        while owed > 0 {
            let (free, hits) = match (counts.peek(), holds.peek()) {
                (Some((gone, _)), Some((free, _))) if free < gone => holds.next(),
                (Some(_), _) => counts.next(),
                (None, _) => holds.next(),
            }
            .unwrap_or((at, u32::MAX));
            owed -= i64::from(hits);
            at = at.max(free);
        }
        at
    }

    /// Returns when nothing is used or held any more, and when nothing is remembered either, whatever becomes of holds
    /// that are not settled: a rule change may say so.
    fn ends(&self) -> (u64, u64) {
        let Account { counts, holds, closed, .. } = &self.state;
        let newest = counts.iter().position(|count| *count > 0).map(|age| self.gone_at(age));
        let free = holds.last().map(|hold| self.free_at(hold));
        let reset_at = newest.max(free).unwrap_or(0).max(self.clock);
        let corrected = holds.last().map(|hold| self.charged_until(hold).max(hold.until + REMEMBERED_MS));
        let forgotten = closed.last().map(|one| one.at + REMEMBERED_MS);
        (reset_at, reset_at.max(corrected.max(forgotten).unwrap_or(0)))
    }
}

pub(super) fn parameters(_: u32, period_ms: u64, options: &Options) -> Result<Parameters, LimitErrors> {
    let within = options.settle_within.unwrap_or(SETTLE_WITHIN);
    LimitErrors::any([
        (!super::is_period(within)).then_some(LimitError::SettleWithin),
        (options.estimate == Some(0)).then_some(LimitError::Estimate),
        (options.count_denied == Some(true)).then_some(LimitError::DeniedOfBudget),
    ])?;
    let segment_ms = period_ms.div_ceil(SEGMENTS);
    let segments = period_ms.div_ceil(segment_ms);
    let unsettled = options.unsettled.unwrap_or_default();
    Ok(Parameters { segment_ms, segments, within_ms: within.as_millis() as u64, unsettled })
}

/// Returns the longest time for which used hits stay in the window of this period.
pub(super) fn window_ms(period_ms: u64) -> u64 {
    let segment_ms = period_ms.div_ceil(SEGMENTS);
    (period_ms.div_ceil(segment_ms) + 1) * segment_ms
}

impl Parameters {
    pub(super) fn figures(&self, caller: Caller) -> [u64; FIGURES] {
        figures(&[caller.holder, 0, 0, self.within_ms, u64::from(self.unsettled == Unsettled::Refund)])
    }

    /// Returns these figures for a settle.
    pub(super) fn settling([holder, _, _, within_ms, refunds]: [u64; FIGURES], actual: u64) -> [u64; FIGURES] {
        [holder, 1, actual, within_ms, refunds]
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u32 {
        limit.number
    }

    pub(super) fn identity(&self, limit: &Limit, name: &mut String) {
        push_number(name, limit.period_ms);
    }

    /// Holds are copied, as the slots of [`concurrency`](super::concurrency) are, but each is of many hits.
    pub(super) fn work(&self, limit: &Limit) -> u64 {
        3 + u64::from(limit.number).min(MAX_HOLDS as u64) / 64
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        let Account { holds, closed, .. } = &*self.0;
        size_of::<Account>() + holds.len() * size_of::<Hold>() + closed.len() * size_of::<Closed>()
    }

    /// Parses a state from [`pack`](State::pack); `None` if it is damaged.
    pub(super) fn unpack(limit: &Limit, _: Caller, bytes: &[u8]) -> Option<State> {
        let AnyParameters::Budget(Parameters { segment_ms, segments, .. }) = limit.parameters else { return None };
        let mut packed = Packed(bytes);
        let (at, shift, index) = (packed.whole()?, packed.whole()?, packed.whole()?);
        let (reserved, number) = (packed.count()?, packed.count()?);
        let mut counts = Counts::new();
        for _ in 0..=segments {
            counts.push(packed.count()?);
        }
        let mut holds = Vec::new();
        for _ in 0..number {
            holds.push(Hold { holder: holder(&mut packed)?, until: packed.whole()?, hits: packed.count()? });
        }
        let mut closed = Vec::new();
        while !packed.is_empty() {
            let (holder, at, paid) = (holder(&mut packed)?, packed.whole()?, packed.count()?);
            closed.push(Closed { holder, at, paid, kind: *ClosedBy::ALL.get(packed.count()? as usize)? });
        }
        let held: u64 = holds.iter().map(|hold| u64::from(hold.hits)).sum();
        let is_sound = index == at / segment_ms
            && holds.is_sorted_by_key(|hold| hold.until)
            && closed.is_sorted_by_key(|one| one.at)
            && holds.iter().all(|hold| hold.hits > 0)
            && closed.iter().all(|one| one.at <= at)
            && held == u64::from(reserved);
        is_sound.then(|| State(Box::new(Account { at, shift, index, counts, holds, closed })))
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        let Account { at, shift, index, counts, holds, closed } = &*self.0;
        let reserved: u64 = holds.iter().map(|hold| u64::from(hold.hits)).sum();
        let mut bytes: Vec<u8> =
            [at, shift, index].into_iter().flat_map(|whole| (*whole as f64).to_le_bytes()).collect();
        bytes.extend((reserved as u32).to_le_bytes());
        bytes.extend((holds.len() as u32).to_le_bytes());
        bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        for Hold { holder, until, hits } in holds {
            bytes.extend((*holder as f64).to_le_bytes());
            bytes.extend((*until as f64).to_le_bytes());
            bytes.extend(hits.to_le_bytes());
        }
        for Closed { holder, at, paid, kind } in closed {
            bytes.extend((*holder as f64).to_le_bytes());
            bytes.extend((*at as f64).to_le_bytes());
            bytes.extend(paid.to_le_bytes());
            bytes.extend((*kind as u32).to_le_bytes());
        }
        bytes
    }
}

/// Reads the name of a holder. Lua finds one by its bytes, for which -0.0 is another one than 0.0.
fn holder(packed: &mut Packed<'_>) -> Option<u64> {
    let holder = f64::from_le_bytes(packed.take()?);
    let is_one = holder.fract() == 0.0 && !holder.is_sign_negative() && holder <= MAX_HITS as f64;
    is_one.then_some(holder as u64)
}
