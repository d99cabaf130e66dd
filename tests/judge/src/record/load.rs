//! What a caller asks, drawn from a seed.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;

use super::adapter::Asked;
use super::scenario::{Load, Scenario};
use super::streams::Streams;
use crate::clock::now_us;
use crate::history::{Ask, Operation, Part, Promise, Told};

/// A caller, which asks one request after the other.
#[derive(Debug)]
pub(super) struct Caller {
    rng: Rng,
    load: Load,
    /// Name, key of the entry, and what is held, of each limit.
    limits: Vec<(String, String, Holds)>,
    /// The share of requests for the keys up to each.
    keys: Vec<f64>,
    begin_us: u64,
    /// The prefix of what is its own: holders, and a prober's key.
    name: String,
    is_prober: bool,
    holders: u64,
    /// What it took and may give back.
    taken: VecDeque<Taken>,
    /// The request that was denied, to be asked again.
    again: Option<Taken>,
    /// What it holds of budgets.
    streams: Streams,
}

/// What a request holds at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Place,
    /// Hits of a budget.
    Hits,
}

#[derive(Clone, Debug)]
struct Taken {
    asked: Vec<(usize, Asked)>,
}

/// A request to ask.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) ask: Ask,
    pub(super) asked: Vec<Asked>,
    pub(super) parts: Vec<Part<'static>>,
}

impl Caller {
    /// The most that a caller remembers to give back.
    const MOST_TAKEN: usize = 16;
    /// The most places of a counter that are taken at the end.
    pub(super) const MOST_AT_END: u64 = 64;

    pub(super) fn new(scenario: &Scenario, process: u32, index: usize) -> Caller {
        let load = scenario.load.clone();
        let weights = (1..=load.keys.max(1)).map(|rank| (rank as f64).powf(-load.zipf));
        let keys = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        let holds = |promise: &Promise| match promise {
            Promise::Window { .. } | Promise::Bucket { .. } => Holds::Nothing,
            Promise::Holders { .. } => Holds::Place,
            Promise::Budget { .. } => Holds::Hits,
        };
        let limits =
            scenario.limits.iter().map(|(name, limit)| (name.clone(), limit.entry.clone(), holds(&limit.promise)));
        let hold_for_us = scenario.limits.values().map(|limit| match limit.promise {
            Promise::Budget { hold_for_us, .. } => hold_for_us,
            _ => 0,
        });
        Caller {
            rng: Rng::with_seed(load.seed ^ (u64::from(process) << 32) ^ ((index as u64) << 16)),
            keys: keys.collect(),
            limits: limits.collect(),
            begin_us: now_us(),
            name: format!("{process}-{index}"),
            is_prober: index >= load.callers,
            load,
            holders: 0,
            taken: VecDeque::new(),
            again: None,
            streams: Streams::new(hold_for_us.max().unwrap_or(0)),
        }
    }

    /// Draws the next request.
    pub(super) fn next_turn(&mut self) -> Turn {
        if let Some(again) = self.again.clone() {
            return self.turn(Ask::Take, again);
        }
        if let Some(asked) = self.streams.settling(false, &mut self.rng) {
            return self.turn(Ask::Settle, Taken { asked });
        }
        let percent = self.rng.u8(0..100);
        // A place is let go when its time has come; hits are given back as drawn.
        let is_holder = self.taken.front().is_some_and(|taken| taken.asked.iter().any(|(_, one)| one.holder.is_some()));
        let gives_back = (is_holder && self.rng.bool()) || percent < self.load.refunds;
        if gives_back && let Some(taken) = self.taken.pop_front() {
            return self.turn(Ask::Return, taken);
        }
        let request = self.draw();
        let ask = match () {
            () if self.is_of_budget(&request) => Ask::Hold,
            () if percent >= 100 - self.load.peeks.min(100) => Ask::Peek,
            () => Ask::Take,
        };
        self.turn(ask, request)
    }

    fn is_of_budget(&self, taken: &Taken) -> bool {
        taken.asked.iter().any(|(limit, _)| self.limits[*limit].2 == Holds::Hits)
    }

    /// Returns the next place to let go, or stream to settle, at the end.
    pub(super) fn last_turn(&mut self) -> Option<Turn> {
        if let Some(asked) = self.streams.settling(true, &mut self.rng) {
            return Some(self.turn(Ask::Settle, Taken { asked }));
        }
        let is_place = |taken: &Taken| taken.asked.iter().any(|(_, one)| one.holder.is_some());
        let taken = std::iter::from_fn(|| self.taken.pop_front()).find(is_place)?;
        Some(self.turn(Ask::Return, taken))
    }

    fn draw(&mut self) -> Taken {
        // A stream holds hits of budgets alone.
        let is_mixed = self.limits.windows(2).any(|two| (two[0].2 == Holds::Hits) != (two[1].2 == Holds::Hits));
        let is_group = !self.is_prober && !is_mixed && self.rng.u8(0..100) < self.load.groups;
        let count = if is_group { self.limits.len() } else { 1 };
        let first = self.rng.usize(0..self.limits.len().max(1));
        let key = if self.is_prober { format!("probe-{}", self.name) } else { self.key() };
        let hits = if self.is_prober { 1 } else { self.rng.u64(1..=self.load.most_hits.max(1)) };
        let asked = (first..first + count).map(|index| index % self.limits.len()).map(|limit| {
            let (_, entry, holds) = &self.limits[limit];
            self.holders += 1;
            let holder = (*holds != Holds::Nothing).then(|| format!("{}-{}", self.name, self.holders));
            let hits = if *holds == Holds::Place { 1 } else { hits };
            (limit, Asked { entry: entry.clone(), key: key.clone(), hits, holder })
        });
        Taken { asked: asked.collect() }
    }

    /// Draws a key by Zipf's law.
    fn key(&mut self) -> String {
        let at = self.rng.f64() * self.keys.last().copied().unwrap_or(0.0);
        let key = self.keys.partition_point(|sum| *sum < at);
        match ((now_us() - self.begin_us) / 1_000).checked_div(self.load.new_keys_ms) {
            None => format!("k{key}"),
            Some(newest) if self.rng.bool() => format!("k{newest}-{key}"),
            Some(newest) => format!("k{}-{key}", self.rng.u64(0..=newest)),
        }
    }

    fn turn(&mut self, ask: Ask, Taken { asked }: Taken) -> Turn {
        let part = |(limit, asked): &(usize, Asked)| Part {
            limit: self.limits[*limit].0.clone().into(),
            key: asked.key.clone().into(),
            hits: asked.hits,
            holder: asked.holder.clone().map(Into::into),
        };
        let parts = asked.iter().map(part).collect();
        self.again = Some(Taken { asked: asked.clone() });
        Turn { ask, asked: asked.into_iter().map(|(_, asked)| asked).collect(), parts }
    }

    /// Hears the answer to the request, and returns how long to pause before the next.
    pub(super) fn heard(&mut self, operation: &Operation<'_>) -> Duration {
        let request = self.again.take();
        if matches!(operation.ask, Ask::Hold | Ask::Settle)
            && let Some(request) = &request
        {
            self.streams.heard(&request.asked, operation, &self.load, &mut self.rng);
        }
        if operation.ask.is_take() && operation.told == Told::Allowed {
            let gives_back = self.load.refunds > 0 && !self.is_prober;
            let is_left = self.load.abandons > 0 && self.rng.u8(0..100) < self.load.abandons;
            let is_place = |taken: &Taken| taken.asked.iter().any(|(_, asked)| asked.holder.is_some());
            let keep = |taken: &Taken| if is_place(taken) { !is_left } else { gives_back };
            self.taken.extend(request.clone().filter(keep));
            if self.taken.len() > Self::MOST_TAKEN {
                self.taken.pop_front();
            }
        }
        match operation.wait_us {
            Some(wait_us) if self.is_prober && operation.told == Told::Denied && operation.ask.is_take() => {
                self.again = request;
                Duration::from_micros(wait_us) + Duration::from_millis(2)
            }
            _ if self.is_prober => Duration::ZERO,
            _ if matches!(operation.ask, Ask::Hold | Ask::Settle) => {
                Duration::from_millis(self.rng.u64(0..=self.load.think_ms))
            }
            _ if operation.of.iter().any(|part| part.holder.is_some()) => {
                Duration::from_millis(self.rng.u64(0..=self.load.holds_ms))
            }
            _ => Duration::from_millis(self.rng.u64(0..=self.load.think_ms)),
        }
    }
}
