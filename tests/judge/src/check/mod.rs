//! Judges a history by the promises of its limits. Each check has its statement and its proof in its own file.
//!
//! ```text
//! window      over N in some period, for certain
//! bucket      over burst and rate in some interval, for certain
//! schedule    whether instants exist at all that keep a window, exactly
//! holders     more holders than places, for certain
//! known       what may and what must have counted at a time: denials, remaining hits and waits are judged by it
//! ```
//!
//! Operations are judged once all that began before their ends are known: after the longest that an operation lasts.

mod bucket;
mod finding;
mod holders;
mod known;
pub mod schedule;
mod window;

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use hashbrown::{Equivalent, HashMap};
use smallvec::SmallVec;

use crate::history::{Ask, Header, Operation, Promise, Told};
use bucket::{Bucket, Rate};
pub use finding::{Count, Finding, Judgement, Kind};
use holders::Holders;
use known::Known;
use window::Window;

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
    index: HashMap<CounterName, usize>,
    counters: Vec<Counter>,
    /// Operations whose time has not come.
    lag: VecDeque<Lagging>,
    line: u64,
    /// When the first operation since the last decision was asked.
    undecided_since: Option<u64>,
    decided_at: u64,
    judgement: Judgement,
}

#[derive(Debug, PartialEq, Eq)]
struct CounterName {
    limit: usize,
    key: Box<str>,
}

/// The same, borrowed.
#[derive(PartialEq, Eq)]
struct CounterRef<'k> {
    limit: usize,
    key: &'k str,
}

impl Hash for CounterName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        CounterRef { limit: self.limit, key: &self.key }.hash(state);
    }
}

impl Hash for CounterRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
        self.key.hash(state);
    }
}

impl Equivalent<CounterName> for CounterRef<'_> {
    fn equivalent(&self, name: &CounterName) -> bool {
        self.limit == name.limit && *self.key == *name.key
    }
}

#[derive(Debug)]
struct Counter {
    limit: usize,
    key: Box<str>,
    known: Known,
    sound: Sound,
    /// The operations of one hit each, for the exact check.
    jobs: Vec<schedule::Job>,
}

/// The check that no more was admitted than is promised.
#[derive(Debug)]
enum Sound {
    Window(Window),
    Bucket(Bucket),
    Holders(Holders),
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
    /// Counters and hits.
    parts: SmallVec<[(usize, u64); 2]>,
}

impl Judge {
    /// Starts to judge a history.
    pub fn new(header: Header, checks: Checks) -> Judge {
        Judge {
            checks,
            longest_us: header.longest_us,
            wait_resolution_us: header.wait_resolution_us,
            clock_us: header.clock_us,
            limits: header
                .limits
                .into_iter()
                .map(|(name, promise)| (name, promise.by_clock(header.clock_us)))
                .collect(),
            index: HashMap::new(),
            counters: Vec::new(),
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
        let Operation { begin, end, ask, told, remaining, wait_us, .. } = *operation;
        // Their time has come: this one and all that follow begin later than they end.
        while let Some(first) = self.lag.front()
            && first.end + self.longest_us < end
        {
            if let Some(first) = self.lag.pop_front() {
                self.judge(&first);
            }
        }
        let mut parts = SmallVec::new();
        for part in &operation.of {
            let counter = self.counter(&part.limit, &part.key)?;
            parts.push((counter, part.hits));
            let Counter { sound, known, .. } = &mut self.counters[counter];
            match sound {
                Sound::Holders(holders) => {
                    let holder = part.holder.as_deref().ok_or("a part of a limit of holders has no holder")?;
                    holders.add((begin, end), (ask, told), holder);
                }
                Sound::Window(_) | Sound::Bucket(_) => known.add((begin, end), (ask, told), part.hits),
            }
        }
        self.lag.push_back(Lagging { line: self.line, begin, end, ask, told, remaining, wait_us, parts });
        Ok(())
    }

    /// Judges what is left.
    pub fn finish(mut self) -> Judgement {
        while let Some(first) = self.lag.pop_front() {
            self.judge(&first);
        }
        for counter in 0..self.counters.len() {
            self.judge_whole(counter);
        }
        self.judgement.counters = self.counters.len() as u64;
        self.judgement
    }

    fn count(&mut self, operation: &Operation<'_>) {
        let judgement = &mut self.judgement;
        judgement.operations += 1;
        let is_decided = match operation.told {
            Told::Allowed => {
                judgement.allowed += 1;
                if operation.ask.is_take() {
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
        if let Some(counter) = self.index.get(&CounterRef { limit: index, key }) {
            return Ok(*counter);
        }
        let (memory_us, rate, sound) = match self.limits[index].1 {
            Promise::Window { memory_us, .. } => (memory_us, None, Sound::Window(Window::default())),
            Promise::Bucket { burst, number, period_us } => {
                (0, Some(Rate { burst, number, period_us, clock_us: self.clock_us }), Sound::Bucket(Bucket::default()))
            }
            Promise::Holders { expiry_us, .. } => (0, None, Sound::Holders(Holders::new(expiry_us, self.longest_us))),
        };
        let known = Known::new(memory_us, rate, self.longest_us);
        let counter = self.counters.len();
        self.counters.push(Counter { limit: index, key: key.into(), known, sound, jobs: Vec::new() });
        self.index.insert(CounterName { limit: index, key: key.into() }, counter);
        Ok(counter)
    }

    fn finding(&mut self, kind: Kind, line: u64, counter: usize, hits: u64, what: String) {
        let Counter { limit, key, .. } = &self.counters[counter];
        let finding = Finding { kind, line, limit: self.limits[*limit].0.clone(), key: key.to_string(), what };
        self.judgement.add(hits, finding);
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
    }

    fn judge_admission(&mut self, operation: &Lagging, counter: usize, hits: u64) {
        let interval = (operation.begin, operation.end);
        let Counter { limit, sound, known, jobs, .. } = &mut self.counters[counter];
        let over = match (&self.limits[*limit].1, sound) {
            (Promise::Window { number, period_us, .. }, Sound::Window(window)) => {
                let returned = known.may_be_returned(operation.end, *period_us);
                if self.checks.most_scheduled > 0 && jobs.len() <= self.checks.most_scheduled {
                    jobs.extend((0..hits).map(|_| interval));
                }
                let over = window.admit(interval, hits, number + returned, *period_us);
                over.map(|found| {
                    (found - number - returned, format!("{found} hits lie wholly in one period, {number} are promised"))
                })
            }
            (Promise::Bucket { burst, number, period_us }, Sound::Bucket(bucket)) => {
                let returned = known.returned_until(operation.end);
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

    /// A denial is needless if each of its counters was free at every instant of it, whatever may have counted.
    fn judge_denial(&mut self, operation: &Lagging) {
        let is_free = |(counter, hits): &(usize, u64)| {
            let Counter { limit, known, .. } = &self.counters[*counter];
            match &self.limits[*limit].1 {
                Promise::Window { number, memory_us, usable_thousandths, .. } => {
                    let usable = number * usable_thousandths / 1_000;
                    known.most_in(operation.begin, operation.end, *memory_us) + hits <= usable
                }
                Promise::Bucket { .. } => known.fits_bucket(operation.begin, operation.end, *hits),
                Promise::Holders { .. } => false,
            }
        };
        if operation.parts.is_empty() || !operation.parts.iter().all(is_free) {
            return;
        }
        let (counter, hits) = operation.parts[0];
        let what = "no counter of the request can have been full".to_owned();
        self.finding(Kind::NeedlessDenial, operation.line, counter, hits, what);
    }

    /// What remains is between the limit without all that may have counted, and without all that must have.
    fn judge_remaining(&mut self, operation: &Lagging) {
        let Some(told) = operation.remaining.filter(|_| operation.ask.is_take() && operation.told == Told::Allowed)
        else {
            return;
        };
        let mut range = Some((u64::MAX, u64::MAX));
        for (counter, hits) in &operation.parts {
            let Counter { limit, known, .. } = &self.counters[*counter];
            let Promise::Window { number, period_us, memory_us, usable_thousandths } = &self.limits[*limit].1 else {
                range = None;
                break;
            };
            if *usable_thousandths != 1_000 || known.has_returns() {
                range = None;
                break;
            }
            let may = known.most_in(operation.begin, operation.end, *memory_us);
            let must = hits + known.least_in(operation.begin, operation.end, *period_us);
            range = range
                .map(|(least, most)| (least.min(number.saturating_sub(may)), most.min(number.saturating_sub(must))));
        }
        if let Some((least, most)) = range
            && let Some((counter, _)) = operation.parts.first()
            && !(least..=most).contains(&told)
        {
            let what = format!("{told} remaining were told, between {least} and {most} can be");
            self.finding(Kind::WrongRemaining, operation.line, *counter, 0, what);
        }
    }

    /// After a wait that was told, the same request passes if nobody else asked, and not long before.
    fn judge_wait(&mut self, operation: &Lagging) {
        let [(counter, hits)] = operation.parts[..] else {
            operation.parts.iter().for_each(|(counter, _)| self.counters[*counter].known.forget_wait());
            return;
        };
        let Counter { limit, .. } = &self.counters[counter];
        let most = match self.limits[*limit].1 {
            Promise::Window { number, .. } | Promise::Holders { number, .. } => number,
            Promise::Bucket { burst, .. } => burst,
        };
        // A request of more hits than there ever are never passes, and no wait is right.
        let wait_us = operation.wait_us.filter(|_| hits <= most);
        let steps = (self.wait_resolution_us, self.clock_us);
        if matches!(self.limits[*limit].1, Promise::Holders { .. }) {
            // The wait until a place expires, which may be let go before.
            return;
        }
        let interval = (operation.begin, operation.end);
        let known = &mut self.counters[counter].known;
        let wrong = known.judge_wait(interval, (operation.ask, operation.told), hits, wait_us, steps);
        if let Some(what) = wrong {
            self.finding(Kind::WrongWait, operation.line, counter, 0, what);
        }
    }

    /// Judges a counter by its whole history.
    fn judge_whole(&mut self, counter: usize) {
        let line = self.line;
        let most = self.checks.most_scheduled;
        let Counter { limit, sound, known, jobs, .. } = &mut self.counters[counter];
        match (&self.limits[*limit].1, sound) {
            (Promise::Window { number, period_us, .. }, Sound::Window(_)) if most > 0 && !known.has_returns() => {
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
                let (number, most) = (*number, holders.most());
                if most > number {
                    let what = format!("{most} held a place at once for certain, {number} are promised");
                    self.finding(Kind::TooManyHolders, line, counter, most - number, what);
                }
            }
            _ => {}
        }
    }
}
