//! What each limit did in the last fifteen minutes, in steps of five seconds, and in the last hour, in minutes: of the
//! [`MOST`] limits that were in use lately and denied the most.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

use super::steps::{SET_BACK_MS, STEP_MS, STEPS};
use crate::metrics::RuleReading;

/// The most limits with a history.
pub const MOST: usize = 512;

/// The most limits that are counted at all. Beyond that, limits that are used for the first time have no history.
const MOST_COUNTED: usize = 200_000;

/// The most limits that lose their history to others in one step.
const EVICTIONS: usize = 32;

/// Number of steps that a rate covers.
const RECENT: usize = 3;

/// Number of bars of a spark line.
pub const BARS: usize = 30;

const MINUTE_MS: u64 = 60_000;
const MINUTES: usize = 60;

/// Requests that a limit was checked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// All requests.
    pub all: u32,
    /// Requests denied.
    pub denied: u32,
    /// Requests that would have been denied, but for shadow mode.
    pub shadow: u32,
    /// Requests that the store could not decide.
    pub undecided: u32,
    /// Hits near the limit.
    pub near: u32,
}

/// Requests a second, over the last fifteen seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// All requests.
    pub requests_per_s: f64,
    /// Requests denied.
    pub denied_per_s: f64,
    /// Requests that would have been denied, but for shadow mode.
    pub shadow_per_s: f64,
    /// Requests that the store could not decide.
    pub undecided_per_s: f64,
    /// Hits near the limit.
    pub near_per_s: f64,
}

/// A minute of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Minute {
    /// Start, in milliseconds since the epoch.
    pub at_ms: u64,
    /// All requests.
    pub requests: u64,
    /// Requests denied.
    pub denied: u64,
}

/// The history of one limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleHistory {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the limit in metrics.
    pub rule: String,
    /// The rate of the last fifteen seconds; `None` if it was not used then.
    pub rate: Option<Rate>,
    /// Start of the latest step, in milliseconds since the epoch.
    pub latest_ms: u64,
    /// Requests over the limit, also in shadow mode, in each step that had any: the start of the step and their number.
    pub over: Vec<(u64, u32)>,
    /// The same without shadow mode: those that were denied.
    pub denied: Vec<(u64, u32)>,
}

/// The histories of the limits.
#[derive(Debug, Default)]
pub(super) struct Histories {
    hasher: RandomState,
    /// The counts at the end of the last step, by the hash of domain and label. That two of them have one hash is so
    /// unlikely that it does not matter here.
    before: HashMap<u64, Counts>,
    tracked: HashMap<u64, Tracked>,
    /// Start of the latest step.
    latest_ms: u64,
}

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Counts([u64; 5]);

#[derive(Debug)]
struct Tracked {
    domain: Box<str>,
    rule: Box<str>,
    /// Steps in which it was used, with their starts.
    steps: VecDeque<(u64, Requests)>,
    minutes: VecDeque<Minute>,
    /// Denials and requests, halved with each step: what ranks it.
    weight: (u64, u64),
}

impl Counts {
    fn of(reading: &RuleReading) -> Counts {
        Counts([
            reading.requests,
            reading.over_limit_requests,
            reading.shadow_requests,
            reading.undecided_requests + reading.without_store,
            reading.near_limit,
        ])
    }
}

impl Sub for Counts {
    type Output = Requests;

    fn sub(self, before: Counts) -> Requests {
        let since = |at: usize| u32::try_from(self.0[at].saturating_sub(before.0[at])).unwrap_or(u32::MAX);
        Requests { all: since(0), denied: since(1), shadow: since(2), undecided: since(3), near: since(4) }
    }
}

impl Add for Requests {
    type Output = Requests;

    fn add(self, other: Requests) -> Requests {
        Requests {
            all: self.all.saturating_add(other.all),
            denied: self.denied.saturating_add(other.denied),
            shadow: self.shadow.saturating_add(other.shadow),
            undecided: self.undecided.saturating_add(other.undecided),
            near: self.near.saturating_add(other.near),
        }
    }
}

impl Requests {
    /// Returns what ranks a limit: its requests over the limit, also in shadow mode, and then all.
    fn weight(self) -> (u64, u64) {
        (u64::from(self.denied) + u64::from(self.shadow), u64::from(self.all))
    }
}

impl Rate {
    fn of(requests: Requests) -> Rate {
        let per_s = |number: u32| f64::from(number) * 1_000.0 / (RECENT as u64 * STEP_MS) as f64;
        Rate {
            requests_per_s: per_s(requests.all),
            denied_per_s: per_s(requests.denied),
            shadow_per_s: per_s(requests.shadow),
            undecided_per_s: per_s(requests.undecided),
            near_per_s: per_s(requests.near),
        }
    }
}

impl AddAssign for Rate {
    fn add_assign(&mut self, other: Rate) {
        self.requests_per_s += other.requests_per_s;
        self.denied_per_s += other.denied_per_s;
        self.shadow_per_s += other.shadow_per_s;
        self.undecided_per_s += other.undecided_per_s;
        self.near_per_s += other.near_per_s;
    }
}

impl Histories {
    /// Adds the requests of the step with this start, by the counts of all limits at its end. The first call only
    /// learns the counts.
    pub(super) fn add(&mut self, at_ms: u64, each: impl FnOnce(&mut dyn FnMut(&str, &str, RuleReading))) {
        let is_first = self.latest_ms == 0;
        self.latest_ms = at_ms;
        self.tracked.values_mut().for_each(|tracked| tracked.weight = (tracked.weight.0 / 2, tracked.weight.1 / 2));
        let mut new = Vec::new();
        each(&mut |domain, rule, reading| {
            let key = self.hasher.hash_one((domain, rule));
            let counts = Counts::of(&reading);
            let has_room = self.before.len() < MOST_COUNTED;
            let before = match self.before.get_mut(&key) {
                Some(before) => std::mem::replace(before, counts),
                None if has_room => {
                    self.before.insert(key, counts);
                    if is_first { counts } else { Counts::default() }
                }
                None => return,
            };
            let requests = counts - before;
            if requests == Requests::default() {
                return;
            }
            match self.tracked.get_mut(&key) {
                Some(tracked) => tracked.add(at_ms, requests),
                None => new.push((key, domain.to_owned(), rule.to_owned(), requests)),
            }
        });
        new.sort_unstable_by_key(|(.., requests)| std::cmp::Reverse(requests.weight()));
        let mut evictions = 0;
        for (key, domain, rule, requests) in new {
            if self.tracked.len() >= MOST {
                let weight = |(_, tracked): &(&u64, &Tracked)| tracked.weight;
                let least = self.tracked.iter().min_by_key(weight).map(|(key, tracked)| (*key, tracked.weight));
                let own = requests.weight();
                let Some((least, _)) = least.filter(|(_, weight)| *weight < own && evictions < EVICTIONS) else {
                    break;
                };
                self.tracked.remove(&least);
                evictions += 1;
            }
            let mut tracked = Tracked::new(&domain, &rule);
            tracked.add(at_ms, requests);
            self.tracked.insert(key, tracked);
        }
    }

    /// Returns the history of a limit; `None` if it has none.
    pub(super) fn of(&self, domain: &str, rule: &str) -> Option<RuleHistory> {
        self.tracked.get(&self.hasher.hash_one((domain, rule))).map(|tracked| tracked.history(self.latest_ms))
    }

    /// Returns the minutes of the last hour of a limit.
    pub(super) fn hour(&self, domain: &str, rule: &str) -> Vec<Minute> {
        let tracked = self.tracked.get(&self.hasher.hash_one((domain, rule)));
        let is_recent = |minute: &&Minute| minute.at_ms + MINUTES as u64 * MINUTE_MS > self.latest_ms;
        let minutes = tracked.into_iter().flat_map(|tracked| &tracked.minutes);
        minutes.filter(is_recent).copied().collect()
    }

    /// Returns the limits that denied the most in the last fifteen minutes, also in shadow mode, and then those with
    /// the most requests.
    pub(super) fn busiest(&self, most: usize) -> Vec<RuleHistory> {
        let mut all: Vec<(&Tracked, (u64, u64))> =
            self.tracked.values().map(|tracked| (tracked, tracked.total(self.latest_ms))).collect();
        all.sort_unstable_by(|(one, one_total), (other, other_total)| {
            other_total.cmp(one_total).then_with(|| (&one.domain, &one.rule).cmp(&(&other.domain, &other.rule)))
        });
        all.into_iter().take(most).map(|(tracked, _)| tracked.history(self.latest_ms)).collect()
    }
}

impl Tracked {
    fn new(domain: &str, rule: &str) -> Tracked {
        Tracked {
            domain: domain.into(),
            rule: rule.into(),
            steps: VecDeque::new(),
            minutes: VecDeque::new(),
            weight: (0, 0),
        }
    }

    fn add(&mut self, at_ms: u64, requests: Requests) {
        if self.steps.back().is_some_and(|(last, _)| at_ms + SET_BACK_MS < *last) {
            self.steps.clear();
            self.minutes.clear();
        }
        // A clock that is set back a little adds to the latest step.
        match self.steps.back_mut() {
            Some((last, before)) if *last >= at_ms => *before = *before + requests,
            _ => self.steps.push_back((at_ms, requests)),
        }
        if self.steps.len() > STEPS {
            self.steps.pop_front();
        }
        let minute = at_ms / MINUTE_MS * MINUTE_MS;
        if self.minutes.back().is_none_or(|last| last.at_ms < minute) {
            self.minutes.push_back(Minute { at_ms: minute, ..Minute::default() });
        }
        if self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
        if let Some(minute) = self.minutes.back_mut() {
            minute.requests += u64::from(requests.all);
            minute.denied += u64::from(requests.denied);
        }
        let (over, all) = requests.weight();
        self.weight = (self.weight.0 + over, self.weight.1 + all);
    }

    /// Returns the steps of the last fifteen minutes.
    fn recent(&self, latest_ms: u64) -> impl Iterator<Item = &(u64, Requests)> {
        let since = latest_ms.saturating_sub(STEPS as u64 * STEP_MS);
        self.steps.iter().filter(move |(at_ms, _)| *at_ms > since)
    }

    fn total(&self, latest_ms: u64) -> (u64, u64) {
        let weights = self.recent(latest_ms).map(|(_, requests)| requests.weight());
        weights.fold((0, 0), |(over, all), (more_over, more)| (over + more_over, all + more))
    }

    fn history(&self, latest_ms: u64) -> RuleHistory {
        let since = latest_ms.saturating_sub((RECENT as u64 - 1) * STEP_MS);
        let latest = self.steps.iter().filter(|(at_ms, _)| *at_ms >= since);
        let requests = latest.fold(Requests::default(), |sum, (_, requests)| sum + *requests);
        let numbers = |number: fn(&Requests) -> u32| {
            let steps = self.recent(latest_ms).map(move |(at_ms, requests)| (*at_ms, number(requests)));
            steps.filter(|(_, number)| *number > 0).collect()
        };
        RuleHistory {
            domain: self.domain.to_string(),
            rule: self.rule.to_string(),
            rate: (requests != Requests::default()).then(|| Rate::of(requests)),
            latest_ms,
            over: numbers(|requests| requests.denied.saturating_add(requests.shadow)),
            denied: numbers(|requests| requests.denied),
        }
    }
}

impl RuleHistory {
    /// Leaves only what a spark line needs: the requests over the limit in each of its bars.
    pub fn fold(&mut self) {
        let bar_ms = STEPS as u64 * STEP_MS / BARS as u64;
        self.denied.clear();
        let mut bars: Vec<(u64, u32)> = Vec::new();
        for (at_ms, number) in self.over.drain(..) {
            let at_ms = at_ms - at_ms % bar_ms;
            match bars.last_mut() {
                Some((last, sum)) if *last == at_ms => *sum = sum.saturating_add(number),
                _ => bars.push((at_ms, number)),
            }
        }
        self.over = bars;
    }

    /// Returns the requests over the limit in each of the [`BARS`] equal parts of the last fifteen minutes, the oldest
    /// first.
    pub fn spark(&self, latest_ms: u64) -> Vec<u64> {
        let bar_ms = STEPS as u64 * STEP_MS / BARS as u64;
        let mut bars = vec![0; BARS];
        for (at_ms, number) in &self.over {
            let back = latest_ms.saturating_sub(*at_ms) / bar_ms;
            if let Some(bar) = (BARS as u64).checked_sub(back + 1) {
                bars[bar as usize] += u64::from(*number);
            }
        }
        bars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(requests: u64, denied: u64) -> RuleReading {
        RuleReading { requests, over_limit_requests: denied, ..RuleReading::default() }
    }

    fn add(histories: &mut Histories, at_ms: u64, counts: &[(&str, u64, u64)]) {
        histories.add(at_ms, |each| {
            counts.iter().for_each(|(rule, requests, denied)| each("shop", rule, reading(*requests, *denied)));
        });
    }

    #[test]
    fn a_step_has_what_came_since_the_one_before_and_the_first_reading_is_left_out() {
        let mut histories = Histories::default();
        add(&mut histories, 5_000, &[("user", 100, 50)]);
        assert_eq!(histories.of("shop", "user"), None);
        for step in 1..=3_u64 {
            add(&mut histories, 5_000 + step * STEP_MS, &[("user", 100 + 30 * step, 50 + 6 * step)]);
        }
        let history = histories.of("shop", "user").unwrap();
        let rate = history.rate.unwrap();
        assert_eq!((rate.requests_per_s, rate.denied_per_s), (6.0, 1.2));
        assert_eq!(history.denied, [(10_000, 6), (15_000, 6), (20_000, 6)]);
        assert_eq!(history.spark(20_000).iter().sum::<u64>(), 18);
        assert_eq!(histories.hour("shop", "user"), [Minute { at_ms: 0, requests: 90, denied: 18 }]);
        // A limit that is used for the first time has all of its requests in this step.
        add(&mut histories, 25_000, &[("login", 7, 7)]);
        assert_eq!(histories.busiest(1)[0].rule, "user");
        assert_eq!(histories.busiest(2)[1].denied, [(25_000, 7)]);
        assert_eq!(histories.of("shop", "user").unwrap().rate.unwrap().requests_per_s, 4.0);
    }

    #[test]
    fn of_many_limits_those_that_deny_most_keep_their_history() {
        let mut histories = Histories::default();
        add(&mut histories, 5_000, &[]);
        let names: Vec<String> = (0..2 * MOST).map(|rule| format!("r{rule}")).collect();
        let counts: Vec<(&str, u64, u64)> = names.iter().map(|name| (&**name, 1, 0)).collect();
        add(&mut histories, 10_000, &counts);
        assert_eq!(histories.tracked.len(), MOST);
        let quiet = names.iter().find(|name| histories.of("shop", name).is_none()).unwrap();
        add(&mut histories, 15_000, &[(quiet, 100, 99)]);
        assert_eq!(histories.busiest(1)[0].rule, *quiet);
        assert_eq!(histories.tracked.len(), MOST);
    }

    #[test]
    fn a_clock_that_is_set_back_far_starts_over() {
        let mut histories = Histories::default();
        add(&mut histories, 100_000_000, &[]);
        add(&mut histories, 100_005_000, &[("user", 1_000, 1_000)]);
        for step in 1..=3_u64 {
            add(&mut histories, 50_000_000 + step * STEP_MS, &[("user", 1_000 + 3 * step, 1_000)]);
        }
        let history = histories.of("shop", "user").unwrap();
        assert_eq!(history.rate.unwrap().requests_per_s, 0.6);
        assert_eq!(history.denied, []);
        assert_eq!(histories.hour("shop", "user").iter().map(|minute| minute.requests).sum::<u64>(), 9);
    }

    #[test]
    fn what_is_older_than_the_bounds_is_forgotten() {
        let mut histories = Histories::default();
        add(&mut histories, 5_000, &[]);
        for step in 1..1_000_u64 {
            add(&mut histories, 5_000 + step * STEP_MS, &[("user", step, step)]);
        }
        let history = histories.of("shop", "user").unwrap();
        assert_eq!((history.denied.len(), histories.hour("shop", "user").len()), (STEPS, MINUTES));
        assert_eq!(history.spark(history.latest_ms), vec![(STEPS / BARS) as u64; BARS]);
        add(&mut histories, 90_000_000, &[]);
        let history = histories.of("shop", "user").unwrap();
        assert_eq!((history.rate, history.over.len(), histories.hour("shop", "user").len()), (None, 0, 0));
    }
}
