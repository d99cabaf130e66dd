//! What may and what must have counted at one counter.
//!
//! **Denials.** Statement: if at each instant of a denied operation, everything that may have counted and the operation
//! itself were within the limit, the denial was needless. May have counted: every operation that took and was not
//! denied, also one that failed, from its begin on, for as long as the limit remembers after its end; without an
//! answer, also for as long as an operation lasts at most after its end. Proof: a count at an instant in [b, e] has
//! hits whose own instant x is no later than e and later than b - memory; so such an operation begins at e or earlier
//! and ends after b - memory. Until a period has passed since the first hit none is forgotten, and what was certainly
//! given back before b counts no longer, if all returns are whole (`returns.rs`).
//!
//! **Remaining.** Statement: what is left after an operation is at least the limit without all that may have counted,
//! and at most the limit without all that must have. Must have counted: every operation that was allowed, began after e
//! - P, and ended before b. Proof: its instant lies in the period before every instant in [b, e].
//!
//! **Totals.** Statement: a system's own count of what was taken and not given back is at least all hits that were
//! allowed by operations that ended before b, without all that may have been given back by operations that began at e
//! or before, and without those that are promised to be counted late or never (`unrecorded`). It is at most all hits of
//! operations that were not denied and began at e or before, without those that were certainly given back before b, if
//! all returns are whole. Proof: the count is of one instant in [b, e].
//!
//! **Waits.** Statement: if a request was denied with a wait, and until the same request was asked again, after it,
//! nothing else was taken or given back, then it passes if it begins after the wait, and is denied if it ends before
//! the wait does, but for the resolution. Proof: with nobody else asking, the counter only gets more room with time;
//! the wait is the instant from which it has enough, counted from an instant in [b, e].

use std::collections::VecDeque;

use super::bucket::Rate;
use super::returns::{Return, Returns};
use crate::history::{Ask, Told};

#[derive(Debug)]
pub(super) struct Known {
    memory_us: u64,
    period_us: u64,
    /// The least tokens that a bucket can have had after the operations that are forgotten.
    tokens: Option<Tokens>,
    longest_us: u64,
    /// Operations that may have counted, in the order of their ends.
    takes: VecDeque<Take>,
    /// The hits of all of them.
    hits: u64,
    /// The hits of all that ever may have counted, and of those that certainly did.
    taken: u64,
    certainly_taken: u64,
    /// The earliest that a hit may have counted.
    first: u64,
    returns: Returns,
    /// The last denial, if nothing has happened since.
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Take {
    begin: u64,
    end: u64,
    hits: u64,
    is_certain: bool,
}

/// The least tokens of a bucket: as if each operation took as late as it may have. Later is never more: the tokens at
/// an instant are the least, over all earlier instants, of the burst and what was refilled since, without what was
/// taken since.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    rate: Rate,
    /// Tokens times the period. Below zero, the operations cannot all have taken so late.
    tokens: i128,
    at: u64,
}

impl Tokens {
    fn full(rate: Rate) -> Tokens {
        Tokens { rate, tokens: i128::from(rate.burst) * i128::from(rate.period_us), at: 0 }
    }

    fn refill(&mut self, at: u64) {
        let Rate { burst, number, period_us, .. } = self.rate;
        let refilled = i128::from(number) * i128::from(at.saturating_sub(self.at));
        self.tokens = (self.tokens + refilled).min(i128::from(burst) * i128::from(period_us));
        self.at = self.at.max(at);
    }

    fn take(&mut self, at: u64, hits: u64) {
        self.refill(at);
        self.tokens -= i128::from(hits) * i128::from(self.rate.period_us);
    }

    /// Returns the whole tokens, without those of a step of the clock.
    fn whole(&self) -> u64 {
        let Rate { number, period_us, clock_us, .. } = self.rate;
        let of_a_step = i128::from(number) * i128::from(clock_us);
        u64::try_from((self.tokens - of_a_step) / i128::from(period_us.max(1))).unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    begin: u64,
    end: u64,
    hits: u64,
    wait_us: u64,
}

impl Known {
    /// Begins to know a counter that remembers hits for at most and at least these times, or that is a bucket.
    pub(super) fn new(memory_us: u64, period_us: u64, rate: Option<Rate>, longest_us: u64) -> Known {
        Known {
            memory_us,
            period_us,
            tokens: rate.map(Tokens::full),
            longest_us,
            takes: VecDeque::new(),
            hits: 0,
            taken: 0,
            certainly_taken: 0,
            first: u64::MAX,
            returns: Returns::default(),
            waiting: None,
        }
    }

    /// Adds the part of an operation.
    pub(super) fn add(&mut self, (begin, end): (u64, u64), (ask, told): (Ask, Told), hits: u64) {
        // What is judged now ended up to the longest time ago, and began as long before.
        let oldest = end.saturating_sub(self.memory_us.saturating_add(2 * self.longest_us));
        let oldest = self.waiting.map_or(oldest, |waiting| oldest.min(waiting.begin));
        while let Some(first) = self.takes.front()
            && first.end < oldest
        {
            self.hits -= first.hits;
            if let Some(tokens) = &mut self.tokens {
                tokens.take(first.end, first.hits);
            }
            self.takes.pop_front();
        }
        self.returns.settle(oldest);
        // A call without an answer may be counted after its caller has given up. So operations are not quite in the
        // order of ends; where a loop stops too early for it, more may have counted, which is no false alarm.
        let end = if matches!(told, Told::Failed | Told::Late) { end + self.longest_us } else { end };
        match (ask, told) {
            (Ask::Take, Told::Denied) | (Ask::Peek | Ask::Hold | Ask::Settle | Ask::Total, _) => {}
            (Ask::Take, told) => {
                let is_certain = told == Told::Allowed;
                self.takes.push_back(Take { begin, end, hits, is_certain });
                self.hits += hits;
                self.taken += hits;
                self.certainly_taken += if is_certain { hits } else { 0 };
                self.first = self.first.min(begin);
            }
            (Ask::Return, told) => {
                let (takes, all) = (&self.takes, self.certainly_taken);
                let one = Return { begin, end, hits, is_certain: told == Told::Allowed };
                self.returns.add(one, |at| all - certain_since(takes, at));
            }
        }
    }

    /// Returns what was given back.
    pub(super) fn returns(&self) -> &Returns {
        &self.returns
    }

    /// Returns the least and the most that a system's own count can tell at an instant from `begin` to `end`.
    pub(super) fn total_in(&self, begin: u64, end: u64) -> (i128, i128) {
        let certain = self.certainly_taken - certain_since(&self.takes, begin);
        let later = self.takes.iter().rev().take_while(|take| take.end > end).filter(|take| take.begin > end);
        let may = self.taken - later.map(|take| take.hits).sum::<u64>();
        let returned = if self.returns.are_whole() { self.returns.certain_before(begin) } else { 0 };
        (i128::from(certain) - i128::from(self.returns.begun_until(end)), i128::from(may) - i128::from(returned))
    }

    /// Returns the most hits that may count at an instant from `begin` to `end`.
    pub(super) fn most_in(&self, begin: u64, end: u64, memory_us: u64) -> u64 {
        let too_old = self.takes.iter().take_while(|take| take.end.saturating_add(memory_us) <= begin);
        let too_old: u64 = too_old.map(|take| take.hits).sum();
        // In the order of ends, those that begin after `end` are at the back, but not only they.
        let later = self.takes.iter().rev().take_while(|take| take.end > end).filter(|take| take.begin > end);
        let may = self.hits - too_old - later.map(|take| take.hits).sum::<u64>();
        let is_all_remembered = !self.returns.is_empty() && end < self.first.saturating_add(self.period_us);
        if is_all_remembered && self.returns.are_whole() {
            return may.saturating_sub(self.returns.certain_before(begin));
        }
        may
    }

    /// Returns the least hits of others that count at each instant from `begin` to `end`.
    pub(super) fn least_in(&self, begin: u64, end: u64, period_us: u64) -> u64 {
        let recent = self.takes.iter().rev().take_while(|take| take.end.saturating_add(period_us) > end);
        let must =
            recent.filter(|take| take.is_certain && take.end < begin && take.begin.saturating_add(period_us) > end);
        must.map(|take| take.hits).sum()
    }

    /// Returns the hits that a bucket has at every instant from `begin` to `end`, whatever may have counted.
    pub(super) fn least_tokens(&self, begin: u64, end: u64) -> u64 {
        let Some(mut tokens) = self.tokens else { return 0 };
        for take in self.takes.iter().filter(|take| take.begin <= end) {
            tokens.take(take.end.min(begin), take.hits);
        }
        tokens.refill(begin);
        tokens.whole()
    }

    /// Forgets the denial that was waiting.
    pub(super) fn forget_wait(&mut self) {
        self.waiting = None;
    }

    /// Judges the wait of the denial before an operation. Returns what is wrong with it.
    pub(super) fn judge_wait(
        &mut self,
        (begin, end): (u64, u64),
        (ask, told): (Ask, Told),
        hits: u64,
        wait_us: Option<u64>,
        (resolution_us, clock_us): (u64, u64),
    ) -> Option<String> {
        if matches!(ask, Ask::Peek | Ask::Total) {
            return None;
        }
        let before = self.waiting.take();
        let is_denied = ask == Ask::Take && told == Told::Denied;
        // Nothing else may have begun before this one ended, and have taken or given back.
        let is_alone = |since: u64| {
            if self.returns.may_be_between(since, end) {
                return false;
            }
            let others = self.takes.iter().filter(|take| take.end >= since);
            let is_itself = |take: &Take| (take.begin, take.end, take.hits) == (begin, end, hits);
            others.filter(|take| take.begin <= end && !is_itself(take)).count() == 0
        };
        let wrong = before
            .filter(|before| before.hits == hits && ask == Ask::Take && begin > before.end && is_alone(before.begin));
        let wrong = wrong.and_then(|Waiting { begin: asked, end: heard, wait_us, .. }| match told {
            Told::Denied if begin > heard.saturating_add(wait_us + clock_us) => {
                Some(format!("a wait of {wait_us} us was told, and {} us later it is still denied", begin - heard))
            }
            Told::Allowed if end.saturating_add(resolution_us + clock_us) < asked.saturating_add(wait_us) => {
                Some(format!("a wait of {wait_us} us was told, and it passes within {} us", end - asked))
            }
            _ => None,
        });
        if is_denied {
            self.waiting = wait_us.map(|wait_us| Waiting { begin, end, hits, wait_us });
        }
        wrong
    }
}

/// Returns the hits of operations that certainly counted and ended at an instant or later.
fn certain_since(takes: &VecDeque<Take>, at: u64) -> u64 {
    takes.iter().rev().take_while(|take| take.end >= at).filter(|take| take.is_certain).map(|take| take.hits).sum()
}
