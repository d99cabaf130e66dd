//! How Redis has been for the last fifteen minutes, in steps of ten seconds: what this process knows of its own calls,
//! and what the servers say of themselves where they are asked anyway. Nobody who looks at it makes a call.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::history::now_ms;
use crate::metrics::{Metrics, StoreReading};
use crate::store::redis::Vitals;

/// Of a step.
const STEP: Duration = Duration::from_secs(10);
/// So many are kept.
const KEPT: usize = 90;
/// A server that has said nothing for so long is forgotten.
const GONE: Duration = Duration::from_secs(60);
/// So many servers are known at once.
const MOST_SERVERS: usize = 256;

/// How Redis has been.
#[derive(Debug, Default)]
pub struct RedisHistory {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    steps: VecDeque<RedisStep>,
    before: Option<(StoreReading, Instant)>,
    servers: BTreeMap<String, Known>,
    /// Since the last step.
    evicted: Option<u64>,
}

/// What a server has said last.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Instant,
    vitals: Vitals,
    /// The share of a core that it used between the last two times.
    cpu: Option<f64>,
}

/// What happened in ten seconds. What servers say is of all of them together; `None`: none has said it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RedisStep {
    /// When it ended, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What half of the decisions in Redis took at most, in microseconds, and what 99 % did; `None` where there were
    /// none.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// How many requests waited for it or were on their way, on average.
    pub in_flight: f64,
    /// Calls a second.
    pub calls: f64,
    /// How many requests travelled in one; `None` where there were none.
    pub requests_per_call: Option<f64>,
    /// How often it could not decide, by kind, where that is not never.
    pub errors: BTreeMap<&'static str, u64>,
    /// What its data takes, in bytes.
    pub memory: Option<u64>,
    /// So many keys were evicted.
    pub evicted: Option<u64>,
    /// So many clients are connected.
    pub clients: Option<u64>,
    /// So many commands it does in a second.
    pub commands: Option<u64>,
    /// The cores that it uses.
    pub cpu: Option<f64>,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RedisPast {
    /// How long a step is, in milliseconds.
    pub step_ms: u64,
    /// How many there are at most.
    pub most: usize,
    /// The oldest first.
    pub steps: Vec<RedisStep>,
    /// The bound of memory of all servers together, in bytes; `None` where one has none.
    pub maxmemory: Option<u64>,
}

impl RedisHistory {
    /// Notes what happens, for ever.
    pub async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) -> Infallible {
        let mut ticks = interval(STEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.note(metrics.store_reading(), Instant::now(), now_ms());
        }
    }

    /// A server says how it is.
    pub fn take(&self, server: &str, vitals: Vitals) {
        self.take_at(server, vitals, Instant::now());
    }

    fn take_at(&self, server: &str, vitals: Vitals, at: Instant) {
        let mut kept = self.kept.lock();
        let before = kept.servers.get(server).copied();
        if before.is_none() && kept.servers.len() >= MOST_SERVERS {
            return;
        }
        let evicted = vitals.evicted_keys.map(|now| {
            // One that has begun anew counts anew.
            before.and_then(|before| now.checked_sub(before.vitals.evicted_keys?)).unwrap_or(0)
        });
        kept.evicted = kept.evicted.into_iter().chain(evicted).reduce(u64::saturating_add);
        let cpu = before.and_then(|before| {
            let used = vitals.cpu_seconds? - before.vitals.cpu_seconds?;
            let seconds = at.saturating_duration_since(before.at).as_secs_f64();
            (used >= 0.0 && seconds > 1.0).then_some(used / seconds).or(before.cpu)
        });
        kept.servers.insert(server.to_owned(), Known { at, vitals, cpu });
    }

    fn note(&self, reading: StoreReading, now: Instant, at_ms: u64) {
        let mut kept = self.kept.lock();
        kept.servers.retain(|_, known| now.saturating_duration_since(known.at) < GONE);
        let before = kept.before.replace((reading.clone(), now));
        let tells = kept.servers.values().any(|known| known.vitals.evicted_keys.is_some());
        let evicted = kept.evicted.take().or(tells.then_some(0));
        // Of what was before the first reading nobody knows when it was.
        let Some((before, then)) = before else { return };
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(1e-3);
        let quantile =
            |quantile| reading.times.quantile_since(&before.times, quantile).map(|time| time.as_micros() as u64);
        let calls = reading.calls.saturating_sub(before.calls);
        let requests = reading.requests.saturating_sub(before.requests);
        let errors = reading.errors.iter().zip(&before.errors);
        let errors = errors.map(|((kind, now), (_, before))| (*kind, now.saturating_sub(*before)));
        let sum = |of: fn(&Vitals) -> Option<u64>| {
            kept.servers.values().filter_map(|known| of(&known.vitals)).reduce(u64::saturating_add)
        };
        let step = RedisStep {
            at_ms,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            in_flight: (reading.seconds - before.seconds).max(0.0) / seconds,
            calls: calls as f64 / seconds,
            requests_per_call: (calls > 0).then(|| requests as f64 / calls as f64),
            errors: errors.filter(|(_, number)| *number > 0).collect(),
            memory: sum(|vitals| vitals.used_memory),
            evicted,
            clients: sum(|vitals| vitals.clients),
            commands: sum(|vitals| vitals.commands_per_second),
            cpu: kept.servers.values().filter_map(|known| known.cpu).reduce(|one, other| one + other),
        };
        if kept.steps.len() == KEPT {
            kept.steps.pop_front();
        }
        kept.steps.push_back(step);
    }

    /// What is kept.
    pub fn past(&self) -> RedisPast {
        let kept = self.kept.lock();
        let bounds = kept.servers.values().map(|known| known.vitals.maxmemory.filter(|bytes| *bytes > 0));
        let maxmemory = bounds.reduce(|one, other| Some(one?.saturating_add(other?))).flatten();
        let step_ms = STEP.as_millis() as u64;
        RedisPast { step_ms, most: KEPT, steps: kept.steps.iter().cloned().collect(), maxmemory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals(evicted: u64, cpu: f64) -> Vitals {
        Vitals {
            used_memory: Some(1_000),
            maxmemory: Some(10_000),
            evicted_keys: Some(evicted),
            clients: Some(3),
            commands_per_second: Some(50),
            cpu_seconds: Some(cpu),
        }
    }

    fn reading(calls: u64, timeouts: u64) -> StoreReading {
        let errors = vec![("timeout", timeouts), ("counter", 0)];
        StoreReading { seconds: calls as f64 / 100.0, calls, requests: 3 * calls, errors, ..StoreReading::default() }
    }

    #[test]
    fn a_step_has_what_came_in_it_and_only_the_last_are_kept() {
        let (history, begin) = (RedisHistory::default(), Instant::now());
        for step in 0..=100_u64 {
            history.note(reading(step * 20, step), begin + STEP * step as u32, 1_000 * step);
        }
        let past = history.past();
        assert_eq!((past.steps.len(), past.most, past.steps[0].at_ms), (KEPT, KEPT, 11_000));
        let step = &past.steps[89];
        assert_eq!((step.calls, step.requests_per_call, step.p50_us), (2.0, Some(3.0), None));
        assert!((step.in_flight - 0.02).abs() < 1e-9, "{}", step.in_flight);
        assert_eq!(step.errors, BTreeMap::from([("timeout", 1)]), "what has not happened is left out");
        assert_eq!((step.memory, step.evicted, past.maxmemory), (None, None, None), "no server has said anything");
    }

    #[test]
    fn servers_are_added_up_and_what_one_has_done_before_is_of_no_step() {
        let (history, begin) = (RedisHistory::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        history.take_at("a", vitals(7_000, 100.0), at(0));
        history.note(reading(0, 0), at(1), 1);
        history.take_at("a", vitals(7_005, 104.0), at(10));
        history.take_at("b", vitals(0, 1.0), at(10));
        history.note(reading(0, 0), at(11), 11);
        let first = history.past().steps[0].clone();
        assert_eq!((first.memory, first.clients, first.commands), (Some(2_000), Some(6), Some(100)));
        assert_eq!((first.evicted, first.cpu), (Some(5), Some(0.4)));
        assert_eq!(history.past().maxmemory, Some(20_000));
        // One has begun anew, and the other is gone.
        history.take_at("a", vitals(2, 0.5), at(60));
        history.note(reading(0, 0), at(71), 71);
        let second = history.past().steps[1].clone();
        assert_eq!((second.memory, second.evicted), (Some(1_000), Some(0)));
    }

    #[test]
    fn a_server_without_a_bound_leaves_all_of_them_without_one() {
        let history = RedisHistory::default();
        history.take("a", vitals(0, 0.0));
        history.take("b", Vitals { maxmemory: Some(0), ..vitals(0, 0.0) });
        assert_eq!(history.past().maxmemory, None);
    }
}
