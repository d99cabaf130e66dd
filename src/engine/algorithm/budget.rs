//! Budget: what streams have used in a window, and what streams in progress hold of it. A stream whose cost is known
//! only at its end, such as the tokens of a language model, reserves its estimate when it begins (a hold), and settles
//! for what it used when it ends. A limit that charges at the end alone is overrun by all streams that begin before the
//! first has ended; one that reserves and never gives back denies clients who have budget left.
//!
//! A stream may begin if what is used, what is held and its estimate are within the number. So used hits exceed the
//! number by no more than what settles brought beyond their own holds, in any interval of one period: the window is
//! that of [`sliding_window`](super::sliding_window) with strict weighting. With a time zone it is one of the calendar,
//! and each is promised for itself. Lua gets the windows of a calendar by the clock of the instance that asks, as for
//! [`fixed_window`](super::fixed_window).
//!
//! A stream that brings no estimate may hold what the counter has learned of others.
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
//! What became of a hold is remembered for an hour, of some [`MAX_CLOSED`] streams: of more, those are forgotten first
//! that ended first. A settle that finds nothing is charged. How long a hold lasts, and whether it is charged when it
//! ends, is decided when it begins.
//!
//! A decision reads the account and the entries of its own stream, however many streams there are. Holds end together:
//! their ends are rounded up to a multiple of a width, and the account has a sum for each end. Streams are forgotten by
//! later changes, in the order of a queue. Each stream that is known is once in the queue; a change examines at most
//! [`MAX_TIDIED`] of them, and appends those again of which something is new since.
//!
//! A budget without an end ([`NEVER`]) is a balance: what is used stays used. Operators add to it by a top-up, and give
//! back what was used by a refund; both have an ID, by which a repetition is known ([`Credit`]). Of a window of the
//! calendar, a part of what is left may be carried over into the next one.
//!
//! Numbers are below 2^53, for bytes a month or billionths of a currency unit. Used hits, and those of a stream, are
//! counted up to 2^53 - 1, and estimates are learned up to 2^45 - 1, as they are kept in parts of a hit.
//!
//! The store's clock may step back. The counter's own clock then pauses for at most a period, and is ahead of the
//! store's from then on, so each hold lasts as long as it should.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::budget_terms::{CREDITS_KEPT_MS, Window, Windows};
pub(super) use super::budget_terms::{OPTIONS, Parameters, parameters};
use super::sliding_window;
use super::{
    Attempt, Becomes, Bounds, Caller, Charge, Credit, CreditKind, Held, Limit, MAX_NUMBER, REMEMBERED_MS, Traits,
    Unsettled, Verdict,
};

/// How far a clock may step back before a counter of a calendar, or a balance, follows it, as for a fixed window.
const STANDS_STILL_MS: u64 = 60 * 60 * 1000;

/// A hold lasts longer than the rule says by at most this part of the time, and two milliseconds.
const ENDS: u64 = 16;

/// The most holds. They bound the memory of a counter, not the cost of a decision.
const MAX_HOLDS: u64 = 10_000;

/// Of more streams than these, beside those with a hold, the first are forgotten.
const MAX_CLOSED: u64 = 10_000;

/// The most entries of streams with the same name: a decision reads them all.
pub(super) const MAX_NAMESAKES: usize = 100;

/// What is learned is kept in so many parts of a hit.
const LEARNED: u64 = 256;

/// The most hits that are learned: in parts of a hit, as many are the most below 2^53.
const MAX_LEARNED: u64 = MAX_NUMBER / LEARNED;

/// A stream that used more than was learned raises it by 9 of so many parts, one that used less lowers it by one.
const STEPS: u64 = 80;

/// The last so many credits are known by their IDs.
pub(super) const MAX_CREDITS: u64 = 1_000;

/// The most streams that a change examines to forget them. It adds at most one.
const MAX_TIDIED: usize = 2;

pub(super) const TRAITS: Traits =
    Traits { code: "bu1", has_holders: true, counts_in_progress: false, leased: None, denials_last: false };

/// What is used and held, and what is known of streams; boxed, because counters of other algorithms are smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(pub(super) Box<Contents>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) account: Account,
    /// By their names.
    pub(super) streams: BTreeMap<u64, Entries>,
    /// One item for each of the streams.
    pub(super) queue: VecDeque<Item>,
    /// By their IDs.
    pub(super) credits: BTreeMap<u64, Credited>,
}

/// What a decision needs of all streams together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// The counter's own time when it last changed, in milliseconds.
    pub(super) at: u64,
    /// How far that time is ahead of the store's clock, in milliseconds.
    pub(super) shift: u64,
    /// When all entries are forgotten, but for those of holds.
    pub(super) known_until: u64,
    /// Number of the first item of the queue, and of the next one to come.
    pub(super) first: u64,
    pub(super) next: u64,
    /// When the first item is due, 0 if there is none: Lua need not read the item for it.
    pub(super) due: u64,
    /// What nine of ten streams use at most, in parts of a hit ([`LEARNED`]); 0 before a stream has asked for it.
    pub(super) learned: u64,
    /// Hits beyond the number: topped up, or carried over into this window.
    pub(super) extra: u64,
    /// Number of all credits so far.
    pub(super) credits: u64,
    /// When hits were last refunded; 0 if they never were.
    pub(super) refunded: u64,
    /// Used hits of the newest segment, the one of `at`, and of each one before it.
    pub(super) counts: Counts,
    /// In the order of their times.
    pub(super) ends: Vec<End>,
}

pub(super) type Counts = SmallVec<[u64; sliding_window::SEGMENTS as usize + 1]>;

/// The holds that end at the same time if nothing settles them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: u64,
    pub(super) hits: u64,
    /// The hits of those that are charged then.
    pub(super) charged: u64,
    pub(super) holds: u32,
}

/// What is known of the streams with one name, the newest last.
pub(super) type Entries = SmallVec<[Entry; 1]>;

/// A hold, or what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// When the hold ends if nothing settles it; otherwise the time of the settle, or of the denial.
    pub(super) at: u64,
    /// Hits that are held, or that were charged for the stream.
    pub(super) hits: u64,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A hold that is charged when it ends.
    Charged,
    /// A hold that is refunded when it ends.
    Refunded,
    /// It was settled.
    Settled,
    /// It was settled, and the hold is still to come.
    Overtaken,
    /// There was none: the stream was denied.
    Denied,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [Kind::Charged, Kind::Refunded, Kind::Settled, Kind::Overtaken, Kind::Denied];
}

impl Entry {
    fn is_hold(&self) -> bool {
        matches!(self.kind, Kind::Charged | Kind::Refunded)
    }

    /// Returns whether hits are held at this time.
    pub(super) fn is_held(&self, time: u64) -> bool {
        self.is_hold() && self.at > time
    }

    /// Returns whether this is a hold that has ended without a settle.
    fn is_over(&self, time: u64) -> bool {
        self.is_hold() && self.at <= time
    }

    /// Returns the hits that were charged.
    pub(super) fn paid(&self) -> u64 {
        if self.kind == Kind::Refunded { 0 } else { self.hits }
    }

    fn known_until(&self) -> u64 {
        self.at + REMEMBERED_MS
    }
}

/// A stream, and when what was known of it is forgotten: an hour after it was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) holder: u64,
    pub(super) due: u64,
}

/// What an operator has credited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credited {
    /// Counted from 1.
    pub(super) number: u64,
    /// Hits that were to be credited.
    pub(super) asked: u64,
    /// Hits that were: a refund gives back no more than was used.
    pub(super) done: u64,
    pub(super) kind: CreditKind,
}

/// Boxed for the same reason as the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change(Box<Altered>);

/// The account after a decision, and the streams that change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Altered {
    /// Nothing is left of what is stored.
    is_new: bool,
    account: Account,
    /// `None`: it is forgotten.
    streams: SmallVec<[(u64, Option<Entries>); 2]>,
    /// Behind the last of the queue.
    queued: SmallVec<[Item; 2]>,
    /// A new credit, and its ID.
    credited: Option<(u64, Credited)>,
    /// Hits that were charged, less those that were charged before and too many.
    charged: i64,
}

/// A counter during a decision.
struct Budget<'s> {
    stored: Option<&'s Contents>,
    change: Altered,
    /// The time on the counter's own clock.
    time: u64,
    /// The store's time on that clock. It is earlier while the clock pauses.
    clock: u64,
    number: u64,
    window: Window,
    within: u64,
    unsettled: Unsettled,
    /// The stream that asks, unless an operator credits, and what is known of it.
    holder: Option<u64>,
    own: Entries,
    /// What the stream has begun to hold.
    begun: Held,
    changed: bool,
    /// The clock was reset.
    set_back: bool,
}

pub(super) fn decide(
    limit: &Limit,
    parameters: &Parameters,
    Attempt { hits: asked, charge, settles, credit, denied: by_others, caller }: Attempt,
    state: Option<&State>,
    now: u64,
) -> (Option<(Change, u64)>, Verdict) {
    let Caller { holder, learned, .. } = caller;
    let holder = if credit.is_some() { None } else { Some(holder) };
    let mut budget = Budget::open(parameters, limit, holder, state.map(|state| &*state.0), now);
    let hits = match learned {
        Some(bounds) if asked > 0 => budget.estimate(bounds, asked),
        _ => asked,
    };
    let mut allowed = true;
    if let Some(credit) = credit {
        allowed = budget.credit(credit, parameters);
    } else if let Some(actual) = settles {
        budget.settle(actual);
    } else if let Some(charge) = charge {
        budget.take_back(charge);
    } else if hits < 0 {
        budget.release(hits.unsigned_abs());
    } else if hits > 0 {
        let overtaken = budget.first(|one, _| one.kind == Kind::Overtaken);
        let has_room =
            || budget.used() + budget.reserved() + hits <= budget.amount() && !budget.is_full() && budget.has_place();
        allowed = !by_others && (overtaken.is_some() || has_room());
        match overtaken {
            Some(place) if allowed => {
                budget.own[place].kind = Kind::Settled;
                budget.changed = true;
            }
            Some(_) => {}
            None if allowed => {
                budget.hold(hits as u64);
                if learned.is_some() {
                    budget.begin_to_learn(hits as u64);
                }
            }
            None => budget.remember_denied(),
        }
    }

    let retry_after_ms = match allowed {
        true => Some(0),
        false if by_others || credit.is_some() => None,
        false => budget.freed_at(hits, parameters).map(|at| at - budget.clock),
    };
    let reset_at = budget.reset_at(limit.period_ms, parameters);
    let left = budget.amount() - budget.used() - budget.reserved();
    let clipped = |hits: i64| hits.max(0).unsigned_abs().min(MAX_NUMBER);
    let tells_own = hits > 0 || credit.is_some();
    let is_peek = hits == 0 && charge.is_none() && settles.is_none() && credit.is_none();
    let verdict = Verdict {
        allowed,
        remaining: clipped(left),
        excess: Some(clipped(-left)).filter(|excess| *excess > 0 && allowed),
        reset_after_ms: reset_at - budget.clock,
        retry_after_ms,
        delay_ms: 0,
        held: allowed.then(|| if tells_own { budget.begun } else { budget.told() }),
        extra: budget.change.account.extra,
        learned: if is_peek { budget.change.account.learned.div_ceil(LEARNED) } else { 0 },
    };
    let (clock, changed) = (budget.clock, budget.changed);
    let kept = parameters.kept_ms(limit.period_ms).map_or(0, |kept| budget.time + kept);
    let change = changed.then(|| budget.close());
    let effect = change.map(|change| {
        let holds = change.account.ends.last().map_or(0, |end| end.at + REMEMBERED_MS);
        let kept_until = reset_at.max(change.account.known_until).max(holds).max(kept);
        (Change(Box::new(change)), kept_until - clock)
    });
    (effect, verdict)
}

impl<'s> Budget<'s> {
    /// Opens a counter at this time: moves its window, and ends the holds that were not settled in time.
    fn open(
        parameters: &Parameters,
        limit: &Limit,
        holder: Option<u64>,
        stored: Option<&'s Contents>,
        now: u64,
    ) -> Budget<'s> {
        let Parameters { windows, within_ms: within, unsettled } = *parameters;
        let counts = Counts::from_elem(0, windows.places());
        let account = Account {
            at: now,
            shift: 0,
            known_until: 0,
            first: 0,
            next: 0,
            due: 0,
            learned: 0,
            extra: 0,
            credits: 0,
            refunded: 0,
            counts,
            ends: Vec::new(),
        };
        let change = Altered {
            is_new: true,
            account,
            streams: SmallVec::new(),
            queued: SmallVec::new(),
            credited: None,
            charged: 0,
        };
        let new = || Budget {
            stored: None,
            change: change.clone(),
            time: now,
            clock: now,
            number: limit.number,
            window: windows.at(now, 0),
            within,
            unsettled,
            holder,
            own: Entries::new(),
            begun: Held::default(),
            changed: false,
            set_back: false,
        };
        let Some(Contents { account, .. }) = stored else { return new() };
        let mut budget = Budget { stored, ..new() };
        budget.change.is_new = false;
        let Account { at, shift, known_until, first, next, due, learned, extra, credits, refunded, .. } = *account;
        budget.clock = now + shift;
        let stands_still = match windows {
            Windows::Sliding { .. } => limit.period_ms,
            Windows::Calendar { .. } | Windows::Never => STANDS_STILL_MS,
        };
        let shift = if at.saturating_sub(budget.clock) > stands_still {
            (budget.clock, budget.changed, budget.set_back) = (at, true, true);
            at - now
        } else {
            shift
        };
        let time = budget.clock.max(at);
        (budget.time, budget.window) = (time, windows.at(time, shift));
        let over = account.ends.iter().take_while(|end| end.at <= time).count();
        // Capacity for just one more: most counters have a few, and there may be many counters.
        let mut ends = Vec::with_capacity(account.ends.len() - over + 1);
        ends.extend(&account.ends[over..]);
        let mut counts = std::mem::take(&mut budget.change.account.counts);
        let left = usize::try_from(budget.age(at)).unwrap_or(usize::MAX);
        for age in left..counts.len() {
            counts[age] = account.counts[age - left];
        }
        let extra = match (windows, budget.window) {
            (Windows::Calendar { carry: 0, .. }, Window::Calendar { start, .. }) if at < start => 0,
            (Windows::Calendar { carry, .. }, Window::Calendar { start, .. }) if at < start => {
                let previous = windows.start_before(start, shift);
                let (used, extra) = if at < previous { (0, 0) } else { (account.counts[0], extra) };
                let then = account.ends[..over].iter().filter(|end| (previous..start).contains(&end.at));
                let used = then.map(|end| end.charged).sum::<u64>() + used;
                carried(limit.number, extra, used, carry)
            }
            _ => extra,
        };
        let counted =
            Account { at: time, shift, known_until, first, next, due, learned, extra, credits, refunded, counts, ends };
        budget.change.account = counted;
        for end in &account.ends[..over] {
            budget.correct(end.at, end.charged as i64);
            let known_until = &mut budget.change.account.known_until;
            *known_until = (end.at + REMEMBERED_MS).max(*known_until);
        }
        let Account { ends, known_until, extra, .. } = &budget.change.account;
        if budget.used() == 0 && *extra == 0 && ends.is_empty() && *known_until <= time {
            return new();
        }
        budget.own = holder.map_or_else(Entries::new, |holder| budget.known(holder));
        budget
    }

    /// Returns the entries of a stream that are not forgotten.
    fn known(&self, holder: u64) -> Entries {
        let mut entries = self.entries(holder).cloned().unwrap_or_default();
        entries.retain(|entry| entry.known_until() > self.time);
        entries
    }

    /// Returns all entries of a stream; `None` if it is not in the queue.
    fn entries(&self, holder: u64) -> Option<&Entries> {
        match self.change.streams.iter().find(|(name, _)| *name == holder) {
            Some((_, changed)) => changed.as_ref(),
            None => self.stored.and_then(|stored| stored.streams.get(&holder)),
        }
    }

    /// Returns the item of the queue with this number, which must be there.
    fn item(&self, number: u64) -> Item {
        let (first, stored) = self.stored.map_or((0, None), |stored| (stored.account.first, Some(&stored.queue)));
        let (place, count) = ((number - first) as usize, stored.map_or(0, VecDeque::len));
        match stored.and_then(|queue| queue.get(place)) {
            Some(item) => *item,
            None => self.change.queued[place - count],
        }
    }

    /// Returns how many segments ago an earlier time was, or windows of the calendar, of which more than one are one.
    fn age(&self, at: u64) -> u64 {
        match self.window {
            Window::Sliding { segment } => self.time / segment - at / segment,
            Window::Calendar { start, .. } => u64::from(at < start),
            Window::Never => 0,
        }
    }

    /// Returns the hits that may be used now.
    fn amount(&self) -> i64 {
        (self.number + self.change.account.extra).min(MAX_NUMBER) as i64
    }

    fn used(&self) -> i64 {
        self.change.account.counts.iter().sum::<u64>().min(MAX_NUMBER) as i64
    }

    fn reserved(&self) -> i64 {
        self.change.account.ends.iter().map(|end| end.hits as i64).sum()
    }

    /// Returns the number of holds.
    fn holds(&self) -> u64 {
        self.change.account.ends.iter().map(|end| u64::from(end.holds)).sum()
    }

    /// Returns what all streams hold.
    fn told(&self) -> Held {
        let first = self.change.account.ends.first();
        let first_ends_ms = first.map_or(0, |end| told_ms(end.at - self.clock));
        Held { hits: self.reserved().unsigned_abs(), holds: self.holds() as u32, first_ends_ms }
    }

    fn is_full(&self) -> bool {
        self.holds() >= MAX_HOLDS
    }

    /// Returns whether there is a place for another entry of the stream.
    fn has_place(&self) -> bool {
        self.own.len() < MAX_NAMESAKES || self.own.iter().any(|one| !one.is_held(self.time))
    }

    /// Returns the oldest entry of the stream that is such a one at this time.
    fn first(&self, is_one: impl Fn(&Entry, u64) -> bool) -> Option<usize> {
        self.own.iter().position(|one| is_one(one, self.time))
    }

    fn charge(&mut self, hits: u64) {
        self.change.charged += hits as i64;
        let newest = &mut self.change.account.counts[0];
        *newest = add(*newest, hits as i64);
    }

    /// Adds to the used hits of that time, if it is still in the window.
    fn correct(&mut self, at: u64, hits: i64) {
        self.change.charged += hits;
        let age = usize::try_from(self.age(at)).unwrap_or(usize::MAX);
        if let Some(count) = self.change.account.counts.get_mut(age) {
            *count = add(*count, hits);
        }
    }

    /// Adds an entry of the stream, in the place of one without a hold if there is no other.
    fn push(&mut self, kind: Kind, at: u64, hits: u64) {
        if self.own.len() >= MAX_NAMESAKES {
            match self.first(|one, time| !one.is_held(time)) {
                Some(place) => drop(self.own.remove(place)),
                None => return,
            }
        }
        let entry = Entry { at, hits: hits.min(MAX_NUMBER), kind };
        self.own.push(entry);
        if !entry.is_hold() {
            let known_until = &mut self.change.account.known_until;
            *known_until = entry.known_until().max(*known_until);
        }
        self.changed = true;
    }

    /// Returns when a hold ends that began at this time. Times are truncated to milliseconds, so it lasts at least one
    /// millisecond longer than the rule says.
    fn end_of(&self, began: u64) -> u64 {
        let width = 1 << (self.within / ENDS).max(1).ilog2();
        (began + self.within + 1).next_multiple_of(width)
    }

    fn hold(&mut self, hits: u64) {
        let (at, is_charged) = (self.end_of(self.time), self.unsettled == Unsettled::Charge);
        let ends = &mut self.change.account.ends;
        let place = ends.partition_point(|end| end.at < at);
        if ends.get(place).is_none_or(|end| end.at != at) {
            ends.insert(place, End { at, hits: 0, charged: 0, holds: 0 });
        }
        let end = &mut ends[place];
        end.hits += hits;
        end.charged += if is_charged { hits } else { 0 };
        end.holds += 1;
        self.begun = Held { hits, holds: 1, first_ends_ms: told_ms(at - self.clock) };
        self.push(if is_charged { Kind::Charged } else { Kind::Refunded }, at, hits);
    }

    /// Returns what a stream without an estimate holds.
    fn estimate(&self, Bounds { least, most }: Bounds, asked: i64) -> i64 {
        let hits = match self.change.account.learned.div_ceil(LEARNED) {
            0 => asked,
            learned => learned.clamp(least, most.max(least)) as i64,
        };
        // No more than the budget, with which no stream could begin.
        hits.min(self.amount().max(1))
    }

    fn begin_to_learn(&mut self, hits: u64) {
        let learned = &mut self.change.account.learned;
        if *learned == 0 {
            *learned = hits.min(MAX_LEARNED) * LEARNED;
        }
    }

    /// Learns from a stream what nine of ten streams use at most. Each stream moves the estimate by a part of it, nine
    /// times as far up as down, so that it stays where one of ten streams uses more. The deterministic multiplicative
    /// estimator of a quantile (Yazidi and Hammer, 2017), with a step of an eighth: it needs one number, and no stream
    /// moves it far.
    fn learn(&mut self, actual: u64) {
        if actual == 0 {
            // A stream that has failed says nothing of what streams use.
            return;
        }
        let learned = &mut self.change.account.learned;
        let used = actual.min(MAX_LEARNED) * LEARNED;
        let (step, rest) = (*learned / STEPS, *learned % STEPS);
        if used > *learned {
            // Nine times as much would not fit into the twin's doubles.
            *learned = (*learned + 9 * step + 9 * rest / STEPS).min(MAX_LEARNED * LEARNED);
        } else if used < *learned {
            *learned -= step;
        }
    }

    /// Reserves this much less for a hold of the stream, and removes it if nothing is left of it.
    fn reduce(&mut self, place: usize, hits: u64) {
        let Entry { at, hits: held, kind } = self.own[place];
        let ends = &mut self.change.account.ends;
        if let Some(found) = ends.iter().position(|end| end.at == at) {
            let end = &mut ends[found];
            end.hits -= hits;
            end.charged -= if kind == Kind::Charged { hits } else { 0 };
            end.holds -= u32::from(hits == held);
            if end.holds == 0 {
                ends.remove(found);
            }
        }
        if hits == held {
            self.own.remove(place);
        } else {
            self.own[place].hits -= hits;
        }
        self.changed = true;
    }

    fn settle(&mut self, actual: u64) {
        let denied = self.first(|one, _| one.kind == Kind::Denied).filter(|_| actual == 0);
        if let Some(denied) = denied {
            self.own.remove(denied);
            self.changed = true;
        } else if let Some(hold) = self.first(Entry::is_held) {
            self.reduce(hold, self.own[hold].hits);
            self.charge(actual);
            self.learn(actual);
            self.push(Kind::Settled, self.time, actual);
        } else if let Some(over) = self.first(Entry::is_over) {
            let Entry { at, .. } = self.own[over];
            let paid = self.own[over].paid();
            // What an operator has refunded since may have been this.
            let most = if self.is_refunded(at) { paid.max(actual) } else { actual };
            self.charge(actual.saturating_sub(paid));
            self.correct(at, -(paid.saturating_sub(most) as i64));
            self.learn(actual);
            self.own[over] = Entry { at, hits: most.min(MAX_NUMBER), kind: Kind::Settled };
            self.changed = true;
        } else if let Some(settled) = self.cheapest() {
            let paid = self.own[settled].hits;
            if actual > paid {
                self.charge(actual - paid);
                self.own[settled].hits = actual.min(MAX_NUMBER);
                self.changed = true;
            }
        } else if actual > 0 {
            self.charge(actual);
            self.learn(actual);
            self.push(Kind::Overtaken, self.time, actual);
        }
    }

    /// Credits hits, unless a credit with this ID has done so. Returns whether this is done: no other credit has the
    /// ID, and there is room for the hits, or there are hits to refund.
    fn credit(&mut self, Credit { hits, id, kind }: Credit, parameters: &Parameters) -> bool {
        if let Some(known) = self.stored.and_then(|stored| stored.credits.get(&id)).filter(|_| !self.change.is_new) {
            self.begun = Held { hits: known.done, ..Held::default() };
            return (known.asked, known.kind) == (hits, kind);
        }
        let done = match kind {
            CreditKind::Refund => self.give_back(hits),
            CreditKind::TopUp => {
                let slides = matches!(parameters.windows, Windows::Sliding { .. });
                let fits = self.number + self.change.account.extra + hits <= MAX_NUMBER;
                if slides || !fits { 0 } else { hits }
            }
        };
        if done == 0 {
            return false;
        }
        match kind {
            CreditKind::Refund => self.change.account.refunded = self.time,
            CreditKind::TopUp => self.change.account.extra += hits,
        }
        let account = &mut self.change.account;
        account.credits += 1;
        account.known_until = account.known_until.max(self.time + CREDITS_KEPT_MS);
        self.change.credited = Some((id, Credited { number: account.credits, asked: hits, done, kind }));
        self.begun = Held { hits: done, holds: 1, ..Held::default() };
        self.changed = true;
        true
    }

    /// Returns whether hits were refunded after those of this time were charged.
    fn is_refunded(&self, at: u64) -> bool {
        at <= self.change.account.refunded
    }

    /// Gives back so many used hits, the newest first. Returns how many there were.
    fn give_back(&mut self, hits: u64) -> u64 {
        let mut owed = hits;
        for count in &mut self.change.account.counts {
            let given = owed.min(*count);
            (*count, owed) = (*count - given, owed - given);
        }
        self.change.charged -= (hits - owed) as i64;
        hits - owed
    }

    /// Returns the settled entry that was charged least, the oldest of several, so that streams with the same name pay
    /// no less than they used.
    fn cheapest(&self) -> Option<usize> {
        let own = self.own.iter().enumerate().filter(|(_, one)| matches!(one.kind, Kind::Settled | Kind::Overtaken));
        own.min_by_key(|(_, one)| one.hits).map(|(place, _)| place)
    }

    /// Takes back the hold that began with the charge, or what it was charged when it ended. The stream is denied then.
    /// After a clock reset its hold is unknown.
    fn take_back(&mut self, charge: Charge) {
        let at = self.end_of(charge.at_ms + self.change.account.shift);
        let is_it = |one: &Entry, _| one.is_hold() && one.at == at && one.hits == charge.hits;
        let Some(place) = self.first(is_it).filter(|_| !self.set_back) else { return };
        let one = self.own[place];
        if one.is_held(self.time) {
            self.reduce(place, one.hits);
        } else {
            let paid = if self.is_refunded(at) { 0 } else { one.paid() };
            self.correct(at, -(paid as i64));
            self.own.remove(place);
            self.changed = true;
        }
        self.remember_denied();
    }

    /// Releases up to so many hits that the stream holds, the newest first.
    fn release(&mut self, mut owed: u64) {
        for place in (0..self.own.len()).rev() {
            let one = self.own[place];
            if owed > 0 && one.is_held(self.time) {
                let released = owed.min(one.hits);
                self.reduce(place, released);
                owed -= released;
            }
        }
    }

    /// Remembers that a stream is denied while another with the same name has a hold, which the settle of the denied
    /// stream must not close.
    fn remember_denied(&mut self) {
        if self.first(Entry::is_held).is_some() {
            self.push(Kind::Denied, self.time, 0);
        }
    }

    /// Ends the change: with the entries of the stream, and without those of others that are forgotten.
    fn close(mut self) -> Altered {
        self.change.account.at = self.time;
        let own = std::mem::take(&mut self.own);
        if let Some(holder) = self.holder {
            let is_known = self.entries(holder).is_some();
            if !is_known && !own.is_empty() {
                self.append(holder);
            }
            if is_known || !own.is_empty() {
                self.put(holder, Some(own));
            }
        }
        for _ in 0..MAX_TIDIED {
            let Account { first, next, due, .. } = self.change.account;
            if first == next || !(due <= self.time || next - first > self.holds() + MAX_CLOSED) {
                break;
            }
            let Item { holder, .. } = self.item(first);
            self.change.account.first = first + 1;
            self.change.account.due = if first + 1 < next { self.item(first + 1).due } else { 0 };
            let entries = self.known(holder);
            // Holds are newer, because they end later.
            if entries.iter().any(|one| one.known_until() > due) {
                self.put(holder, Some(entries));
                self.append(holder);
            } else {
                self.put(holder, None);
            }
        }
        self.change
    }

    /// Changes the entries of a stream.
    fn put(&mut self, holder: u64, entries: Option<Entries>) {
        match self.change.streams.iter_mut().find(|(name, _)| *name == holder) {
            Some((_, changed)) => *changed = entries,
            None => self.change.streams.push((holder, entries)),
        }
    }

    /// Appends a stream to the queue.
    fn append(&mut self, holder: u64) {
        let due = self.time + REMEMBERED_MS;
        self.change.queued.push(Item { holder, due });
        let account = &mut self.change.account;
        if account.first == account.next {
            account.due = due;
        }
        account.next += 1;
    }

    /// Returns when hits that are charged at this time leave the window; of a calendar at the latest.
    fn charged_until(&self, at: u64) -> u64 {
        match self.window {
            Window::Sliding { segment } => (at / segment + self.change.account.counts.len() as u64) * segment,
            Window::Calendar { stop, .. } if at < stop => stop,
            // A day, a month or a year is longer than another one by less than an eighth.
            Window::Calendar { start, stop } => at + (stop - start) + (stop - start) / 8,
            Window::Never => u64::MAX,
        }
    }

    /// Returns when the hits of a segment leave the window.
    fn gone_at(&self, age: usize) -> u64 {
        match self.window {
            Window::Sliding { segment } => {
                (self.time / segment + (self.change.account.counts.len() - age) as u64) * segment
            }
            Window::Calendar { stop, .. } => stop,
            Window::Never => u64::MAX,
        }
    }

    /// Returns when there is room for so many hits, if nothing is settled before; `None` if there never is. There must
    /// be none now.
    fn freed_at(&self, hits: i64, parameters: &Parameters) -> Option<u64> {
        let Account { counts, ends, extra, .. } = &self.change.account;
        let full = ends.first().map(|end| end.at).filter(|_| self.is_full());
        let own = self.own.iter().map(|one| one.at).min().filter(|_| !self.has_place());
        let used = counts.iter().enumerate().map(|(age, count)| (self.gone_at(age), *count));
        let refunded = ends.iter().map(|end| (end.at, end.hits - end.charged));
        let charged = ends.iter().map(|end| (self.charged_until(end.at), end.charged));
        let mut free: SmallVec<[(u64, u64); 32]> = used.chain(refunded).chain(charged).collect();
        free.sort_unstable();
        let closes = if let Window::Calendar { stop, .. } = self.window { stop } else { u64::MAX };
        let (before, later) = free.split_at(free.partition_point(|(at, _)| *at < closes));
        // From the last on: sums stay below 2^53 until they are beyond `most`.
        let found = |free: &[(u64, u64)], mut left: i64, most: i64| {
            let needed = free.iter().rev().find(|(_, hits)| {
                left += *hits as i64;
                left > most
            });
            needed.map(|(at, _)| *at)
        };
        let left = later.iter().map(|(_, hits)| *hits as i64).sum();
        let at = if left <= self.amount() - hits {
            found(before, left, self.amount() - hits)
        } else {
            let Windows::Calendar { carry, .. } = parameters.windows else { return None };
            let then = ends.iter().filter(|end| end.at < closes).map(|end| end.charged).sum::<u64>();
            // A denial leaves no trace, so a new counter is one then, too.
            let more = if !self.change.is_new { carried(self.number, *extra, counts[0] + then, carry) } else { 0 };
            let next = self.number + more;
            let most = next.min(MAX_NUMBER) as i64 - hits;
            if most < 0 {
                return None;
            }
            found(later, 0, most).max(Some(closes))
        };
        Some(at.max(full).max(own).unwrap_or(self.clock))
    }

    /// Returns when nothing is used or held any more, and nothing is left of credits. A balance is told to last for its
    /// period from now on.
    fn reset_at(&self, period_ms: u64, parameters: &Parameters) -> u64 {
        let Account { counts, ends, extra, .. } = &self.change.account;
        let used = counts.iter().position(|count| *count > 0).map(|age| self.gone_at(age));
        let free = |end: &End| if end.charged > 0 { self.charged_until(end.at) } else { end.at };
        let free = ends.iter().map(free).max();
        // The next window has what is carried over.
        let is_known = !self.change.is_new || self.changed;
        let extra = Some(self.gone_at(0)).filter(|_| *extra > 0 || (is_known && carries(parameters)));
        match used.max(free).max(extra).unwrap_or(0).max(self.clock) {
            u64::MAX => self.time + period_ms,
            at => at,
        }
    }
}

fn carries(parameters: &Parameters) -> bool {
    matches!(parameters.windows, Windows::Calendar { carry: 1.., .. })
}

/// Returns what is carried over from a window into the next one: a part of what is left, which is no more than the
/// number.
fn carried(number: u64, extra: u64, used: u64, percent: u64) -> u64 {
    let left = (number + extra).min(MAX_NUMBER).saturating_sub(used).min(number);
    left / 100 * percent + left % 100 * percent / 100
}

impl Becomes<State> for Change {
    fn begin(self) -> State {
        let account = Account { first: 0, next: 0, ..self.0.account.clone() };
        let mut state = State(Box::new(Contents::of(account)));
        self.onto(&mut state);
        state
    }

    fn onto(self, State(contents): &mut State) {
        let Contents { account: before, streams, queue, credits } = &mut **contents;
        let Altered { is_new, account, streams: altered, queued, credited, charged: _ } = *self.0;
        if is_new {
            streams.clear();
            queue.clear();
            credits.clear();
        }
        if let Some((id, one)) = credited {
            credits.retain(|_, other| other.number + MAX_CREDITS > one.number);
            credits.insert(id, one);
        }
        let gone = account.first - if is_new { 0 } else { before.first };
        queue.extend(queued);
        queue.drain(..gone as usize);
        // Frees the memory of a burst once most of it is unused.
        if queue.capacity() > 64 && queue.len() < queue.capacity() / 4 {
            queue.shrink_to(queue.len() * 2);
        }
        for (holder, entries) in altered {
            match entries {
                Some(entries) => drop(streams.insert(holder, entries)),
                None => drop(streams.remove(&holder)),
            }
        }
        *before = account;
    }
}

impl Contents {
    fn of(account: Account) -> Contents {
        Contents { account, streams: BTreeMap::new(), queue: VecDeque::new(), credits: BTreeMap::new() }
    }
}

impl State {
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.account.heap_bytes()
    }
}

impl Account {
    /// Returns the approximate heap memory of a counter, in bytes.
    fn heap_bytes(&self) -> usize {
        let stream = size_of::<(u64, Entries)>() + size_of::<Item>();
        let credits = self.credits.min(MAX_CREDITS) as usize * size_of::<(u64, Credited)>();
        size_of::<Contents>()
            + self.ends.len() * size_of::<End>()
            + (self.next - self.first) as usize * stream
            + credits
    }
}

impl Change {
    /// Returns what a peek sees after the change, without the streams: there may be thousands.
    pub(super) fn account(&self) -> State {
        let Altered { account, .. } = &*self.0;
        State(Box::new(Contents::of(account.clone())))
    }

    /// Returns the hits that were charged, less those that were charged before and too many.
    pub(super) fn charged(&self) -> i64 {
        self.0.charged
    }

    /// Returns the hits of a top-up.
    pub(super) fn topped_up(&self) -> u64 {
        let credited = self.0.credited.filter(|(_, one)| one.kind == CreditKind::TopUp);
        credited.map_or(0, |(_, one)| one.done)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.account.heap_bytes()
    }
}

/// Returns a time as the twin can tell it beside a number of holds. No hold lasts longer, but a damaged state may say
/// so.
fn told_ms(ms: u64) -> u64 {
    ms.min((1 << 38) - 1)
}

/// Returns the count after adding `hits`, kept within 0 and [`MAX_NUMBER`].
fn add(count: u64, hits: i64) -> u64 {
    count.saturating_add_signed(hits).min(MAX_NUMBER)
}
