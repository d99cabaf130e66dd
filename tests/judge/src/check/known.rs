//! What may and what must have counted at one counter.
//!
//! **Denials.** Statement: if at each instant of a denied operation, everything that may have counted and the operation
//! itself were within the limit, the denial was needless. May have counted: every operation that took and was not
//! denied, also one that failed, from its begin on, for as long as the limit remembers after its end; without an
//! answer, also for as long as an operation lasts at most after its end. Proof: a count at an instant in [b, e] has
//! hits whose own instant x is no later than e and later than b - memory; so such an operation begins at e or earlier
//! and ends after b - memory.
//!
//! **Remaining.** Statement: what is left after an operation is at least the limit without all that may have counted,
//! and at most the limit without all that must have. Must have counted: every operation that was allowed, began after e
//! - P, and ended before b. Proof: its instant lies in the period before every instant in [b, e].
//!
//! **Waits.** Statement: if a request was denied with a wait, and until the same request was asked again, after it,
//! nothing else was taken or given back, then it passes if it begins after the wait, and is denied if it ends before
//! the wait does, but for the resolution. Proof: with nobody else asking, the counter only gets more room with time;
//! the wait is the instant from which it has enough, counted from an instant in [b, e].

use std::collections::VecDeque;

use super::bucket::Rate;
use crate::history::{Ask, Told};

#[derive(Debug)]
pub(super) struct Known {
    memory_us: u64,
    /// The least tokens that a bucket can have had after the operations that are forgotten.
    tokens: Option<Tokens>,
    longest_us: u64,
    /// Operations that may have counted, in the order of their ends.
    takes: VecDeque<Take>,
    /// The hits of all of them.
    hits: u64,
    /// Begin, end and hits of operations that may have given back, in the order of their ends.
    returns: VecDeque<(u64, u64, u64)>,
    /// The hits that were given back before all of those.
    returned: u64,
    has_returns: bool,
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

    fn have(&self, hits: u64) -> bool {
        let Rate { number, period_us, clock_us, .. } = self.rate;
        let of_a_step = i128::from(number) * i128::from(clock_us);
        self.tokens - of_a_step >= i128::from(hits) * i128::from(period_us)
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
    /// Begins to know a counter that remembers hits for this time, or that is a bucket.
    pub(super) fn new(memory_us: u64, rate: Option<Rate>, longest_us: u64) -> Known {
        Known {
            memory_us,
            tokens: rate.map(Tokens::full),
            longest_us,
            takes: VecDeque::new(),
            hits: 0,
            returns: VecDeque::new(),
            returned: 0,
            has_returns: false,
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
        while let Some((_, end, hits)) = self.returns.front()
            && *end < oldest
        {
            self.returned += hits;
            self.returns.pop_front();
        }
        // A call without an answer may be counted after its caller has given up. So operations are not quite in the
        // order of ends; where a loop stops too early for it, more may have counted, which is no false alarm.
        let end = if matches!(told, Told::Failed | Told::Late) { end + self.longest_us } else { end };
        match (ask, told) {
            (Ask::Take, Told::Denied) | (Ask::Peek, _) => {}
            (Ask::Take, told) => {
                self.takes.push_back(Take { begin, end, hits, is_certain: told == Told::Allowed });
                self.hits += hits;
            }
            (Ask::Return, _) => {
                self.returns.push_back((begin, end, hits));
                self.has_returns = true;
            }
        }
    }

    pub(super) fn has_returns(&self) -> bool {
        self.has_returns
    }

    /// Returns all hits that may have been given back before an instant.
    pub(super) fn returned_until(&self, at: u64) -> u64 {
        self.returned + self.may_be_returned(at, u64::MAX)
    }

    /// Returns the hits that may have been given back in the period before an instant.
    pub(super) fn may_be_returned(&self, at: u64, period_us: u64) -> u64 {
        let may = self.returns.iter().filter(|(begin, end, _)| *begin <= at && end.saturating_add(period_us) > at);
        may.map(|(.., hits)| hits).sum()
    }

    /// Returns the most hits that may count at an instant from `begin` to `end`.
    pub(super) fn most_in(&self, begin: u64, end: u64, memory_us: u64) -> u64 {
        let too_old = self.takes.iter().take_while(|take| take.end.saturating_add(memory_us) <= begin);
        let too_old: u64 = too_old.map(|take| take.hits).sum();
        // In the order of ends, those that begin after `end` are at the back, but not only they.
        let later = self.takes.iter().rev().take_while(|take| take.end > end).filter(|take| take.begin > end);
        self.hits - too_old - later.map(|take| take.hits).sum::<u64>()
    }

    /// Returns the least hits of others that count at each instant from `begin` to `end`.
    pub(super) fn least_in(&self, begin: u64, end: u64, period_us: u64) -> u64 {
        let recent = self.takes.iter().rev().take_while(|take| take.end.saturating_add(period_us) > end);
        let must =
            recent.filter(|take| take.is_certain && take.end < begin && take.begin.saturating_add(period_us) > end);
        must.map(|take| take.hits).sum()
    }

    /// Returns whether a bucket has hits at every instant from `begin` to `end`, whatever may have counted.
    pub(super) fn fits_bucket(&self, begin: u64, end: u64, hits: u64) -> bool {
        let Some(mut tokens) = self.tokens else { return false };
        for take in self.takes.iter().filter(|take| take.begin <= end) {
            tokens.take(take.end.min(begin), take.hits);
        }
        tokens.refill(begin);
        tokens.have(hits)
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
        if ask == Ask::Peek {
            return None;
        }
        let before = self.waiting.take();
        let is_denied = ask == Ask::Take && told == Told::Denied;
        // Nothing else may have begun before this one ended, and have taken or given back.
        let is_alone = |since: u64| {
            if self.returns.iter().any(|(begin, last, _)| *begin <= end && *last >= since) {
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
