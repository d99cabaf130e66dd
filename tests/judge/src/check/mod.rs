//! Judges a history by the promises of its limits. Each check has its statement and its proof in its own file.
//!
//! ```text
//! window      over N in some period, for certain
//! bucket      over burst and rate in some interval, for certain
//! schedule    whether instants exist at all that keep a window, exactly
//! holders     more holders than places, for certain
//! places      whether each place of a limit of holders comes back
//! known       what may and what must have counted: denials, remaining hits, waits and totals are judged by it
//! returns     what was given back of it
//! budget      what streams of a budget hold and have used
//!
//! answers     compares what was told with what is known
//! counter     the counters
//! ```
//!
//! Of several counters that are asked together, all are taken from or none. This has no check of its own: what a denied
//! group took from a counter shows only at that counter, as a needless denial or too few remaining, and nothing tells
//! it apart from any other hit that should not have counted. A group that passes although one of its counters is full
//! shows as too much at that counter.
//!
//! Operations are judged once all that began before their ends are known: after the longest that an operation lasts.

mod answers;
mod bucket;
mod budget;
mod counter;
mod finding;
mod holders;
mod known;
mod places;
mod returns;
pub mod schedule;
mod window;

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::history::{Ask, Header, Operation, Promise, Told};
use bucket::Rate;
use budget::{Call, Found, Terms, Verdicts};
use counter::{Counter, Counters, Sound};
pub use finding::{Count, Finding, Judgement, Kind, Unused};
use places::Doubt;

/// What to check beyond what is cheap.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    /// The most operations of a counter for which the exact check runs; 0 for none.
    pub most_scheduled: usize,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { most_scheduled: 100_000 }
    }
}

/// A judge at work.
#[derive(Debug)]
pub struct Judge {
    checks: Checks,
    longest_us: u64,
    wait_resolution_us: u64,
    clock_us: u64,
    limits: Vec<(String, Promise)>,
    counters: Counters,
    /// What was left unused where each limit denied.
    unused: Vec<Unused>,
    /// Operations whose time has not come.
    lag: VecDeque<Lagging>,
    line: u64,
    /// When the first operation since the last decision was asked.
    undecided_since: Option<u64>,
    decided_at: u64,
    judgement: Judgement,
}

/// An operation whose time has not come.
#[derive(Debug)]
struct Lagging {
    line: u64,
    begin: u64,
    end: u64,
    ask: Ask,
    told: Told,
    remaining: Option<u64>,
    wait_us: Option<u64>,
    total: Option<i64>,
    /// Counters and hits.
    parts: SmallVec<[(usize, u64); 2]>,
}

impl Judge {
    /// Starts to judge a history.
    pub fn new(header: Header, checks: Checks) -> Judge {
        let by_clock = |(name, promise): (String, Promise)| (name, promise.by_clock(header.clock_us));
        let limits: Vec<_> = header.limits.into_iter().map(by_clock).collect();
        Judge {
            checks,
            longest_us: header.longest_us,
            wait_resolution_us: header.wait_resolution_us,
            clock_us: header.clock_us,
            counters: Counters::default(),
            unused: vec![Unused::default(); limits.len()],
            limits,
            lag: VecDeque::new(),
            line: 1,
            undecided_since: None,
            decided_at: 0,
            judgement: Judgement::default(),
        }
    }

    /// Judges the next operation.
    ///
    /// # Errors
    /// Fails if the operation names a limit that the header has not, or the history has more than can be counted.
    pub fn add(&mut self, operation: &Operation<'_>) -> Result<(), String> {
        self.line += 1;
        self.count(operation);
        let Operation { begin, end, ask, told, remaining, wait_us, total, .. } = *operation;
        // Their time has come: this one and all that follow begin later than they end.
        while let Some(first) = self.lag.front()
            && first.end + self.longest_us < end
        {
            if let Some(first) = self.lag.pop_front() {
                self.judge(&first);
            }
        }
        let mut parts = SmallVec::new();
        let is_alone = operation.of.len() == 1;
        for part in &operation.of {
            let counter = self.counter(&part.limit, &part.key)?;
            parts.push((counter, part.hits));
            let Counter { sound, known, .. } = &mut self.counters.all[counter];
            match sound {
                Sound::Holders(_) if ask == Ask::Total => return Err("a limit of holders has no total".to_owned()),
                Sound::Holders(holders) => {
                    let holder = part.holder.as_deref().ok_or("a part of a limit of holders has no holder")?;
                    holders.0.add((begin, end), (ask, told), holder);
                    holders.1.add((begin, end), (ask, told), holder);
                }
                Sound::Budget(budget) => {
                    let (line, hits) = (self.line, part.hits);
                    let call = Call { line, begin, end, hits, told, remaining, is_alone };
                    match (ask, total) {
                        (Ask::Total, Some(total)) if told == Told::Allowed => budget.add_total(call, total),
                        (Ask::Total, _) => {}
                        _ => {
                            let stream = part.holder.as_deref().ok_or("a part of a budget has no stream")?;
                            budget.add(ask, stream, call)?;
                        }
                    }
                }
                Sound::Window(_) | Sound::Bucket(_) if matches!(ask, Ask::Hold | Ask::Settle) => {
                    return Err("only a budget has holds and settles".to_owned());
                }
                Sound::Window(_) | Sound::Bucket(_) => known.add((begin, end), (ask, told), part.hits),
            }
        }
        self.lag.push_back(Lagging { line: self.line, begin, end, ask, told, remaining, wait_us, total, parts });
        Ok(())
    }

    /// Judges what is left.
    pub fn finish(mut self) -> Judgement {
        while let Some(first) = self.lag.pop_front() {
            self.judge(&first);
        }
        for counter in 0..self.counters.all.len() {
            self.judge_whole(counter);
        }
        self.judgement.counters = self.counters.all.len() as u64;
        let unused = self.limits.iter().zip(&self.unused).filter(|(_, unused)| unused.denials > 0);
        self.judgement.unused = unused.map(|((name, _), unused)| (name.clone(), *unused)).collect();
        self.judgement
    }

    fn count(&mut self, operation: &Operation<'_>) {
        let judgement = &mut self.judgement;
        judgement.operations += 1;
        let is_decided = match operation.told {
            Told::Allowed => {
                judgement.allowed += 1;
                if matches!(operation.ask, Ask::Take | Ask::Hold) {
                    judgement.admitted_hits += operation.of.iter().map(|part| part.hits).sum::<u64>();
                }
                true
            }
            Told::Denied => {
                judgement.denied += 1;
                true
            }
            Told::Failed => {
                judgement.failed += 1;
                false
            }
            Told::Late => {
                judgement.late += 1;
                false
            }
        };
        let since = self.undecided_since.get_or_insert(operation.begin);
        *since = (*since).min(operation.begin);
        let undecided_us = operation.end - (*since).max(self.decided_at);
        judgement.longest_undecided_us = judgement.longest_undecided_us.max(undecided_us);
        if is_decided {
            (self.undecided_since, self.decided_at) = (None, operation.end);
        }
    }

    fn counter(&mut self, limit: &str, key: &str) -> Result<usize, String> {
        let index = self.limits.iter().position(|(name, _)| name == limit);
        let index = index.ok_or_else(|| format!("the header has no limit {limit:?}"))?;
        Ok(self.counters.of(index, key, &self.limits[index].1, (self.longest_us, self.clock_us)))
    }

    fn finding(&mut self, kind: Kind, line: u64, counter: usize, hits: u64, what: String) {
        let finding = self.finding_of(kind, line, counter, what);
        self.judgement.add(1, hits, finding);
    }

    fn finding_of(&self, kind: Kind, line: u64, counter: usize, what: String) -> Finding {
        let Counter { limit, key, .. } = &self.counters.all[counter];
        Finding { kind, line, limit: self.limits[*limit].0.clone(), key: key.to_string(), what }
    }

    /// Judges an operation whose time has come.
    fn judge(&mut self, operation: &Lagging) {
        if operation.ask.is_take() && operation.told == Told::Allowed {
            for (counter, hits) in operation.parts.clone() {
                self.judge_admission(operation, counter, hits);
            }
        }
        if operation.ask.is_take() && operation.told == Told::Denied {
            self.judge_denial(operation);
        }
        self.judge_remaining(operation);
        self.judge_wait(operation);
        self.judge_total(operation);
    }

    fn judge_admission(&mut self, operation: &Lagging, counter: usize, hits: u64) {
        let interval = (operation.begin, operation.end);
        let Counter { limit, sound, known, jobs, .. } = &mut self.counters.all[counter];
        let over = match (&self.limits[*limit].1, sound) {
            (Promise::Window { number, period_us, .. }, Sound::Window(window)) => {
                let returned = known.returns().may_within(operation.end, *period_us);
                if self.checks.most_scheduled > 0 && jobs.len() <= self.checks.most_scheduled {
                    jobs.extend((0..hits).map(|_| interval));
                }
                let over = window.admit(interval, hits, number + returned, *period_us);
                over.map(|found| {
                    (found - number - returned, format!("{found} hits lie wholly in one period, {number} are promised"))
                })
            }
            (Promise::Bucket { burst, number, period_us, .. }, Sound::Bucket(bucket)) => {
                let returned = known.returns().may_until(operation.end);
                let clock_us = self.clock_us;
                let rate = Rate { burst: burst + returned, number: *number, period_us: *period_us, clock_us };
                let over = bucket.admit(interval, hits, rate, self.longest_us);
                over.map(|over| (over, format!("{over} hits more than the bucket can have had")))
            }
            _ => None,
        };
        if let Some((over, what)) = over {
            self.finding(Kind::OverLimit, operation.line, counter, over.min(hits), what);
        }
    }

    /// Judges a counter by its whole history.
    fn judge_whole(&mut self, counter: usize) {
        let line = self.line;
        let most = self.checks.most_scheduled;
        let Counter { limit, sound, known, jobs, .. } = &mut self.counters.all[counter];
        match (&self.limits[*limit].1, sound) {
            (Promise::Window { number, period_us, .. }, Sound::Window(_)) if most > 0 && known.returns().is_empty() => {
                if jobs.len() > most {
                    self.judgement.not_scheduled += 1;
                    return;
                }
                let number = usize::try_from(*number).unwrap_or(usize::MAX);
                if schedule::schedule(jobs, number, *period_us).is_none() {
                    let what = format!("no instants keep {number} in each period");
                    self.finding(Kind::NoSchedule, line, counter, 0, what);
                }
            }
            (Promise::Holders { number, .. }, Sound::Holders(holders)) => {
                let (number, most, leaked) = (*number, holders.0.most(), holders.1.leaked());
                if most > number {
                    let what = format!("{most} held a place at once for certain, {number} are promised");
                    self.finding(Kind::TooManyHolders, line, counter, most - number, what);
                }
                if let Some(Doubt { line, what, missing, .. }) = leaked {
                    let what = format!("{what}, and no later answer shows otherwise");
                    self.finding(Kind::LeakedPlace, line, counter, missing, what);
                }
            }
            (promise, Sound::Budget(budget)) => {
                let Some(terms) = Terms::of(promise, self.longest_us) else { return };
                let (limit, Verdicts { found, left }) = (*limit, budget.judge(&terms));
                left.into_iter().for_each(|left| self.unused[limit].add(left));
                for Found { kind, line, hits, what } in found {
                    self.finding(kind, line, counter, hits, what);
                }
            }
            _ => {}
        }
    }
}
