//! Budgets: streams hold hits when they begin, and settle what they have used when they end.
//!
//! A stream holds once, and settles any number of times. Its first settle ends its hold; a later one charges what
//! exceeds the first. A hold without a settle ends after a time between two bounds, and is then charged or refunded. A
//! settle after that corrects a charge to what was used. So all charges of a stream together are the most that a settle
//! of it has told, or what it held if none came.
//!
//! **Admission** (`over_limit`). Statement: a hold may begin only if what was used in the period before, what others
//! hold and its own hits are within N. If at each instant of a hold that was allowed other streams certainly used or
//! held more than N without its hits, no assignment of instants keeps the budget. Of another stream counts for certain
//! until the end e of the hold, from its begin b on:
//! - what a settle told that was answered before b, if no charge of the stream can be older than a period at e;
//! - or else, if its hold was answered before b, the least of what it held and all settles that began until e: whether
//!   a settle has taken effect or not, the stream has used or holds that much. If its hold may have ended, it must
//!   have been charged, and within the period.
//!
//! **Conversion** (`over_limit`). Statement: used hits exceed N by no more than what settles brought beyond their own
//! holds. So in no interval of one period, the parts of charges that were held before exceed N. Proof: of the streams
//! that are charged in the interval, take the one that was admitted last. At that instant each of the others has been
//! charged, within the period before, or still holds as much. The part of a stream is charged, for certain, between its
//! first settle's begin, or the earliest end of its hold, and the end of the first settle that was answered. If no
//! settle is certain, one that comes after the end of the hold may lower what was charged then.
//!
//! **Denials** (`needless_denial`). Statement: if at each instant of a denied hold, all that may have been used, all
//! that may have been held, and its own hits were within N, the denial was needless. A stream that holds hits has used
//! none, so of each counts the most that it may have held or used. A hold is certainly gone once a settle was answered
//! that began after the hold's latest instant, or the longest time of a hold has passed. Once all streams have ended
//! and the window is over, a hold of the whole budget must pass: so a hold that is never given back shows at the end.
//!
//! **Remaining** (`wrong_remaining`). Statement: what is told to remain is at least N without all that may be used or
//! held, and at most N without all that must be.
//!
//! **Totals** (`wrong_total`). Statement: the system's own count is, summed over streams, at least what settles told
//! that were answered before it, and at most what those told that began. A hold that has ended is charged once a later
//! hold was allowed, which is when a system counts it at the latest.
//!
//! If settles may be lost although they are answered, as where a store fails, none is certain.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::finding::Kind;
use super::window::Window;
use crate::history::{Ask, Promise, Told, Unsettled};

/// What a budget promises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) number: u64,
    pub(super) period_us: u64,
    /// How long used hits may count.
    pub(super) memory_us: u64,
    /// A hold without a settle ends within these times.
    pub(super) held_us: (u64, u64),
    pub(super) unsettled: Unsettled,
    pub(super) settles_may_be_lost: bool,
    /// No operation lasts longer.
    pub(super) longest_us: u64,
}

/// The streams of one counter.
#[derive(Debug, Default)]
pub(super) struct Budget {
    streams: HashMap<String, Stream>,
    totals: Vec<(Call, i64)>,
}

/// A hold, a settle or a question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) line: u64,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) hits: u64,
    pub(super) told: Told,
    pub(super) remaining: Option<u64>,
    /// It asks this counter alone, so its answer is of this one.
    pub(super) is_alone: bool,
}

/// The calls of one stream.
#[derive(Debug, Default)]
struct Stream {
    hold: Option<Call>,
    settles: SmallVec<[Call; 2]>,
}

/// A broken promise.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) kind: Kind,
    pub(super) line: u64,
    pub(super) hits: u64,
    pub(super) what: String,
}

/// What comes of a counter.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    pub(super) found: Vec<Found>,
    /// What was left for certain at each denial.
    pub(super) left: Vec<u64>,
}

impl Terms {
    /// Returns the terms of a budget; `None` for other promises.
    pub(super) fn of(promise: &Promise, longest_us: u64) -> Option<Terms> {
        let Promise::Budget {
            number,
            period_us,
            memory_us,
            settle_within_us,
            hold_for_us,
            unsettled,
            settles_may_be_lost,
        } = *promise
        else {
            return None;
        };
        let held_us = (settle_within_us, hold_for_us);
        Some(Terms { number, period_us, memory_us, held_us, unsettled, settles_may_be_lost, longest_us })
    }

    /// Returns the last instant at which a call may take effect.
    fn latest(&self, call: &Call) -> u64 {
        match call.told {
            Told::Allowed | Told::Denied => call.end,
            Told::Failed | Told::Late => call.end + self.longest_us,
        }
    }

    fn is_certain(&self, settle: &Call) -> bool {
        settle.told == Told::Allowed && !self.settles_may_be_lost
    }

    fn charges(&self) -> bool {
        self.unsettled == Unsettled::Charge
    }
}

impl Stream {
    /// Returns the settles that may have taken effect until `end`.
    fn begun(&self, end: u64) -> impl Iterator<Item = &Call> {
        self.settles.iter().filter(move |settle| settle.begin <= end)
    }

    /// Returns the settles that took effect before `begin`, for certain.
    fn done(&self, begin: u64, terms: &Terms) -> impl Iterator<Item = &Call> {
        self.settles.iter().filter(move |settle| terms.is_certain(settle) && settle.end < begin)
    }

    /// Returns the hold if it was allowed or may have been.
    fn possible_hold(&self) -> Option<&Call> {
        self.hold.as_ref().filter(|hold| hold.told != Told::Denied)
    }

    /// Returns the hold if it was certainly allowed, and no settle can have overtaken it.
    fn certain_hold(&self) -> Option<&Call> {
        self.hold.as_ref().filter(|hold| hold.told == Told::Allowed && self.begun(hold.end).next().is_none())
    }

    /// Returns the earliest instant of a charge until `end`.
    fn since(&self, end: u64, terms: &Terms) -> u64 {
        let over = self.possible_hold().filter(|_| terms.charges()).map(|hold| hold.begin + terms.held_us.0);
        self.begun(end).map(|settle| settle.begin).chain(over).min().unwrap_or(u64::MAX)
    }

    /// Returns the least that the stream had used within a period, or held, at each instant of an interval.
    fn least_in(&self, (begin, end): (u64, u64), terms: &Terms) -> u64 {
        // Two instants that are less than a period apart.
        let is_used = || self.since(end, terms).saturating_add(terms.period_us) > end;
        if let Some(used) = self.done(begin, terms).map(|settle| settle.hits).max() {
            return if is_used() { used } else { 0 };
        }
        let Some(hold) = self.certain_hold().filter(|hold| hold.end < begin) else { return 0 };
        let is_held = end < hold.begin + terms.held_us.0;
        if !is_used() || (!terms.charges() && !is_held) {
            return 0;
        }
        self.begun(end).map(|settle| settle.hits).fold(hold.hits, u64::min)
    }

    /// Returns whether a settle certainly ended the hold before this time, or came after its end.
    fn is_settled(&self, hold: &Call, before: u64, terms: &Terms) -> bool {
        let latest = terms.latest(hold);
        self.done(before, terms).any(|settle| settle.begin > latest)
    }

    /// Returns the most that the stream may have used in what is remembered, or held, at an instant of an interval.
    fn most_in(&self, (begin, end): (u64, u64), terms: &Terms) -> u64 {
        let is_recent = |at: u64| at.saturating_add(terms.memory_us) >= begin;
        let held = self.possible_hold().filter(|hold| hold.begin <= end && !self.is_settled(hold, begin, terms));
        let held = held.filter(|hold| {
            let over = terms.latest(hold) + terms.held_us.1;
            over >= begin || (terms.charges() && is_recent(over))
        });
        let settled = self.begun(end).any(|settle| is_recent(terms.latest(settle)));
        let used = self.begun(end).filter(|_| settled).map(|settle| settle.hits);
        used.chain(held.map(|hold| hold.hits)).max().unwrap_or(0)
    }

    /// Returns the most that the stream was charged in all.
    fn most_charged(&self, (begin, end): (u64, u64), terms: &Terms) -> u64 {
        let over = self.possible_hold().filter(|hold| {
            terms.charges() && hold.begin + terms.held_us.0 <= end && !self.is_settled(hold, begin, terms)
        });
        self.begun(end).chain(over).map(|call| call.hits).max().unwrap_or(0)
    }

    /// Returns the least that the stream was charged in all. `counted` is the time up to which holds that have ended
    /// are in the count.
    fn least_charged(&self, (begin, end): (u64, u64), counted: u64, terms: &Terms) -> u64 {
        if let Some(used) = self.done(begin, terms).map(|settle| settle.hits).max() {
            return used;
        }
        let is_over = |hold: &&Call| terms.charges() && hold.end + terms.held_us.1 < counted;
        let Some(hold) = self.certain_hold().filter(is_over) else { return 0 };
        self.begun(end).map(|settle| settle.hits).fold(hold.hits, u64::min)
    }

    /// Returns when what the stream held was charged: an interval, the hits, and the line that shows it.
    fn conversion(&self, terms: &Terms) -> Option<(u64, u64, u64, u64)> {
        let hold = self.certain_hold()?;
        let over = hold.begin + terms.held_us.0;
        let first = self.settles.iter().filter(|settle| terms.is_certain(settle)).min_by_key(|settle| settle.end);
        // Without a settle for certain, one that comes after the end of the hold may lower the charge.
        let (last, line, lowered_until) = match first {
            Some(settle) => (settle.end, settle.line, settle.end),
            None if terms.charges() => (hold.end + terms.held_us.1, hold.line, u64::MAX),
            None => return None,
        };
        if over <= last && !terms.charges() {
            return None;
        }
        let hits = self.begun(lowered_until).map(|settle| settle.hits).fold(hold.hits, u64::min);
        let begins = self.begun(last).map(|settle| settle.begin);
        let begin = begins.chain((over <= last).then_some(over)).min()?;
        Some((last, begin, hits, line))
    }

    /// Returns the time from which on the stream has no effect on any instant.
    fn is_past_at(&self, terms: &Terms) -> u64 {
        let calls = self.hold.iter().chain(&self.settles).map(|call| call.end).max().unwrap_or(0);
        calls + terms.longest_us + terms.held_us.1 + terms.memory_us
    }
}

impl Budget {
    /// Adds a call of a stream.
    ///
    /// # Errors
    /// Fails if the stream holds a second time, and for what a budget cannot be asked.
    pub(super) fn add(&mut self, ask: Ask, stream: &str, call: Call) -> Result<(), String> {
        let known = self.streams.entry_ref(stream).or_default();
        match ask {
            Ask::Hold if known.hold.is_some() => return Err(format!("the stream {stream:?} holds a second time")),
            Ask::Hold => known.hold = Some(call),
            Ask::Settle => known.settles.push(call),
            Ask::Take | Ask::Peek | Ask::Return | Ask::Total => {
                return Err("a budget is asked for a hold, a settle or its total".to_owned());
            }
        }
        Ok(())
    }

    /// Adds the system's own count.
    pub(super) fn add_total(&mut self, call: Call, total: i64) {
        self.totals.push((call, total));
    }

    /// Judges the counter by its whole history.
    pub(super) fn judge(&self, terms: &Terms) -> Verdicts {
        let mut verdicts = Verdicts::default();
        let mut streams: Vec<&Stream> = self.streams.values().collect();
        let first = |stream: &&Stream| stream.hold.iter().chain(&stream.settles).map(|call| call.begin).min();
        streams.sort_by_key(first);
        let holds = streams.iter().filter_map(|stream| Some((*stream, Ask::Hold, stream.hold?)));
        let settles =
            streams.iter().flat_map(|stream| stream.settles.iter().map(|settle| (*stream, Ask::Settle, *settle)));
        let mut calls: Vec<_> = holds.chain(settles).filter(|(.., call)| call.told != Told::Late).collect();
        calls.sort_by_key(|(.., call)| (call.begin, call.line));
        // Those that may have an effect now, as calls go on.
        let (mut present, mut coming): (Vec<&Stream>, _) = (Vec::new(), streams.iter().peekable());
        for (index, (own, ask, call)) in calls.iter().enumerate() {
            while let Some(stream) = coming.next_if(|stream| first(stream) <= Some(call.end)) {
                present.push(stream);
            }
            if index % 64 == 0 {
                present.retain(|stream| stream.is_past_at(terms) >= call.begin);
            }
            let others = present.iter().copied().filter(|stream| !std::ptr::eq(*stream, *own));
            verdicts.judge_call((own, *ask, call), others, terms);
        }
        verdicts.judge_conversions(&streams, terms);
        for (call, total) in &self.totals {
            verdicts.judge_total(&streams, (call, *total), terms);
        }
        verdicts
    }
}

impl Verdicts {
    fn judge_call<'s>(
        &mut self,
        (own, ask, call): (&Stream, Ask, &Call),
        others: impl Iterator<Item = &'s Stream> + Clone,
        terms: &Terms,
    ) {
        let Call { line, begin, end, hits, .. } = *call;
        let number = terms.number;
        let least = || others.clone().map(|stream| stream.least_in((begin, end), terms)).sum::<u64>();
        let most = || others.clone().map(|stream| stream.most_in((begin, end), terms)).sum::<u64>();
        // A settle that overtakes its hold lets it pass, and it holds nothing.
        let is_overtaken = own.begun(end).next().is_some();
        match (ask, call.told) {
            (Ask::Hold, Told::Allowed) if !is_overtaken => {
                let without = least();
                if without + hits > number {
                    let what =
                        format!("{without} were used or held for certain, and {hits} more were held of {number}");
                    let over = (without + hits - number).min(hits);
                    self.found.push(Found { kind: Kind::OverLimit, line, hits: over, what });
                }
            }
            (Ask::Hold, Told::Denied) if call.is_alone && hits <= number && !is_overtaken => {
                let left = number.saturating_sub(most());
                self.left.push(left);
                if left >= hits {
                    let what = format!("{left} were neither used nor held, and {hits} were denied");
                    self.found.push(Found { kind: Kind::NeedlessDenial, line, hits, what });
                }
            }
            _ => {}
        }
        let is_answered = call.told == Told::Allowed && call.is_alone && (ask == Ask::Hold || terms.is_certain(call));
        let Some(told) = call.remaining.filter(|_| is_answered) else { return };
        let may = most() + own.most_in((begin, end), terms);
        let must = least() + if ask == Ask::Hold && !is_overtaken { hits } else { 0 };
        let (fewest, most) = (number.saturating_sub(may), number.saturating_sub(must));
        if !(fewest..=most).contains(&told) {
            let what = format!("{told} remaining were told, between {fewest} and {most} can be");
            self.found.push(Found { kind: Kind::WrongRemaining, line, hits: 0, what });
        }
    }

    /// No interval of one period has more than N hits that were held before they were charged.
    fn judge_conversions(&mut self, streams: &[&Stream], terms: &Terms) {
        let mut all: Vec<_> = streams.iter().filter_map(|stream| stream.conversion(terms)).collect();
        all.sort_unstable();
        let mut window = Window::default();
        for (end, begin, hits, line) in all {
            if let Some(found) = window.admit((begin, end), hits, terms.number, terms.period_us) {
                let number = terms.number;
                let what = format!("{found} hits that were held were charged in one period, {number} are promised");
                self.found.push(Found { kind: Kind::OverLimit, line, hits: (found - number).min(hits), what });
            }
        }
    }

    fn judge_total(&mut self, streams: &[&Stream], (call, total): (&Call, i64), terms: &Terms) {
        let interval = (call.begin, call.end);
        // A system counts a hold that has ended with the next change of its counter.
        let changes = streams.iter().filter_map(|stream| stream.hold).filter(|hold| hold.told == Told::Allowed);
        let counted = changes.filter(|hold| hold.end < call.begin).map(|hold| hold.begin).max().unwrap_or(0);
        let sum = |one: &dyn Fn(&Stream) -> u64| streams.iter().map(|stream| i128::from(one(stream))).sum::<i128>();
        let least = sum(&|stream| stream.least_charged(interval, counted, terms));
        let most = sum(&|stream| stream.most_charged(interval, terms));
        if !(least..=most).contains(&i128::from(total)) {
            let what = format!("{total} hits were charged by the system, between {least} and {most} were settled");
            self.found.push(Found { kind: Kind::WrongTotal, line: call.line, hits: 0, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use Ask::{Hold, Settle};
    use Told::{Allowed, Denied, Late};

    use super::*;

    const TERMS: Terms = Terms {
        number: 10,
        period_us: 100,
        memory_us: 110,
        held_us: (1_000, 1_100),
        unsettled: Unsettled::Charge,
        settles_may_be_lost: false,
        longest_us: 20,
    };

    type Said = (u64, u64, Ask, &'static str, u64, Told);

    fn budget(calls: &[Said]) -> Budget {
        let mut budget = Budget::default();
        for (line, (begin, end, ask, stream, hits, told)) in (2..).zip(calls.iter().copied()) {
            let call = Call { line, begin, end, hits, told, remaining: None, is_alone: true };
            budget.add(ask, stream, call).unwrap();
        }
        budget
    }

    fn found_with(terms: &Terms, calls: &[Said]) -> Vec<(Kind, u64)> {
        budget(calls).judge(terms).found.iter().map(|found| (found.kind, found.line)).collect()
    }

    fn found(calls: &[Said]) -> Vec<(Kind, u64)> {
        found_with(&TERMS, calls)
    }

    #[test]
    fn a_stream_begins_only_beside_what_others_hold_and_have_used() {
        let over = vec![(Kind::OverLimit, 3)];
        let first = (0, 5, Hold, "a", 6, Allowed);
        assert_eq!(found(&[first, (6, 9, Hold, "b", 5, Allowed)]), over);
        assert_eq!(found(&[first, (6, 9, Hold, "b", 4, Allowed)]), []);
        assert_eq!(found(&[first, (5, 9, Hold, "b", 5, Allowed)]), [], "it may have come first");
        assert_eq!(found(&[(0, 5, Hold, "a", 6, Late), (6, 9, Hold, "b", 5, Allowed)]), [], "it may not hold");
        let settled = [first, (6, 8, Settle, "a", 2, Allowed)];
        assert_eq!(found(&[settled[0], settled[1], (9, 12, Hold, "b", 9, Allowed)]), [(Kind::OverLimit, 4)]);
        assert_eq!(found(&[settled[0], settled[1], (9, 12, Hold, "b", 8, Allowed)]), []);
        assert_eq!(found(&[settled[0], settled[1], (9, 106, Hold, "b", 9, Allowed)]), [], "it may be used no more");
        let lost = Terms { settles_may_be_lost: true, ..TERMS };
        let more = [first, (6, 8, Settle, "a", 9, Allowed), (9, 12, Hold, "b", 3, Allowed)];
        assert_eq!(found(&more), [(Kind::OverLimit, 4)], "what a settle brings beyond its hold keeps others out");
        assert_eq!(found_with(&lost, &more), []);
        assert_eq!(found_with(&lost, &[more[0], more[1], (9, 12, Hold, "b", 5, Allowed)]), [(Kind::OverLimit, 4)]);
    }

    #[test]
    fn a_hold_that_has_ended_is_used_where_it_is_charged() {
        let first = (0, 5, Hold, "a", 6, Allowed);
        let second = |at: u64| [first, (at, at + 1, Hold, "b", 5, Allowed)];
        assert_eq!(found(&second(1_090)), [(Kind::OverLimit, 3)], "it holds or has been charged since 1,000");
        assert_eq!(found(&second(1_099)), [], "it may have been charged a period ago");
        let refund = Terms { unsettled: Unsettled::Refund, ..TERMS };
        assert_eq!(found_with(&refund, &second(998)), [(Kind::OverLimit, 3)]);
        assert_eq!(found_with(&refund, &second(999)), []);
    }

    /// Streams that all begin at once show what they hold when they settle.
    #[test]
    fn held_hits_of_one_period_do_not_exceed_the_number() {
        let streams = |hits: u64, apart: u64| {
            let names = ["a", "b", "c", "d", "e", "f"];
            let holds = names.map(|name| (0, 9, Hold, name, 2, Allowed));
            let settle = |(index, name)| (10 + index * apart, 12 + index * apart, Settle, name, hits, Allowed);
            let settles = (0..).zip(names).map(settle);
            holds.into_iter().chain(settles).collect::<Vec<_>>()
        };
        assert_eq!(found(&streams(2, 1)), [(Kind::OverLimit, 13)]);
        assert_eq!(found(&streams(9, 1)), [(Kind::OverLimit, 13)], "whatever they use beyond");
        assert_eq!(found(&streams(1, 1)), []);
        assert_eq!(found(&streams(2, 20)), [], "not in one period");
    }

    #[test]
    fn a_denial_is_right_where_hits_may_be_held_or_used() {
        let denied = |at: u64| (at, at + 1, Hold, "z", 10, Denied);
        let needless = |line: u64| vec![(Kind::NeedlessDenial, line)];
        let first = (0, 5, Hold, "a", 1, Allowed);
        assert_eq!(found(&[denied(0)]), needless(2));
        assert_eq!(found(&[first, denied(1_215)]), [], "it may have been charged at 1,105");
        assert_eq!(found(&[first, denied(1_216)]), needless(3));
        let late = (0, 5, Hold, "a", 1, Late);
        assert_eq!([found(&[late, denied(1_235)]), found(&[late, denied(1_236)])], [vec![], needless(3)]);
        let failed = [first, (6, 8, Settle, "a", 0, Allowed), denied(9)];
        assert_eq!(found(&failed), needless(4), "nothing was used");
        assert_eq!(found(&[first, (5, 8, Settle, "a", 0, Allowed), denied(9)]), [], "it may have come before the hold");
        assert_eq!(found(&[first, (6, 8, Settle, "a", 0, Late), denied(9)]), []);
        let used = [first, (6, 8, Settle, "a", 1, Allowed)];
        assert_eq!(found(&[used[0], used[1], denied(118)]), []);
        assert_eq!(found(&[used[0], used[1], denied(119)]), needless(4));
        assert_eq!(found(&[(0, 1, Hold, "a", 11, Denied)]), [], "no budget has so many");
    }

    #[test]
    fn what_remains_is_what_is_neither_used_nor_held() {
        let told = |remaining: u64| {
            let mut budget = budget(&[(0, 5, Hold, "a", 3, Allowed), (6, 7, Settle, "a", 2, Allowed)]);
            let call =
                Call { line: 9, begin: 8, end: 9, hits: 4, told: Allowed, remaining: Some(remaining), is_alone: true };
            budget.add(Hold, "b", call).unwrap();
            budget.judge(&TERMS).found.iter().map(|found| found.kind).collect::<Vec<_>>()
        };
        assert_eq!([3, 4, 5].map(told), [vec![Kind::WrongRemaining], vec![], vec![Kind::WrongRemaining]]);
    }

    #[test]
    fn each_stream_is_charged_once() {
        let range = |calls: &[Said], at: u64| {
            let is_right = |total: &i64| {
                let mut budget = budget(calls);
                let call =
                    Call { line: 99, begin: at, end: at + 1, hits: 1, told: Allowed, remaining: None, is_alone: true };
                budget.add_total(call, *total);
                budget.judge(&TERMS).found.iter().all(|found| found.kind != Kind::WrongTotal)
            };
            (0..30).filter(is_right).collect::<Vec<i64>>()
        };
        let hold = (0, 5, Hold, "a", 3, Allowed);
        assert_eq!(range(&[hold], 500), [0]);
        assert_eq!(range(&[hold, (6, 7, Settle, "a", 5, Allowed)], 500), [5]);
        assert_eq!(range(&[hold, (6, 7, Settle, "a", 5, Allowed), (8, 9, Settle, "a", 6, Allowed)], 500), [6]);
        assert_eq!(range(&[hold, (6, 7, Settle, "a", 5, Late)], 500), [0, 1, 2, 3, 4, 5]);
        assert_eq!(range(&[(0, 5, Hold, "a", 3, Denied), (6, 7, Settle, "a", 1, Allowed)], 500), [1]);
        assert_eq!(range(&[hold], 2_000), [0, 1, 2, 3], "nothing has come since");
        let later = (1_500, 1_501, Hold, "b", 1, Allowed);
        assert_eq!(range(&[hold, later], 2_000), [3]);
        assert_eq!(range(&[hold, later, (1_600, 1_601, Settle, "a", 2, Allowed)], 2_000), [2], "it was corrected");
    }

    #[test]
    fn a_stream_holds_once() {
        let mut budget = budget(&[(0, 5, Hold, "a", 3, Allowed)]);
        let call = Call { line: 3, begin: 6, end: 7, hits: 1, told: Allowed, remaining: None, is_alone: true };
        assert!(budget.add(Hold, "a", call).is_err() && budget.add(Ask::Take, "b", call).is_err());
        assert!(budget.add(Settle, "a", call).is_ok());
    }
}
