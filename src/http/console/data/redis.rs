//! The state of Redis over the last fifteen minutes, in steps of ten seconds: this process's own measurements of its
//! calls, and the statistics that the servers report in calls made anyway. Showing it makes no call.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::metrics::{Metrics, StoreReading};
use crate::observe::history::now_ms;
use crate::store::redis::doctor::Vitals;

/// Length of a step.
const STEP: Duration = Duration::from_secs(10);
/// Number of steps kept.
const KEPT: usize = 90;
/// Time after which a silent server is forgotten.
const GONE: Duration = Duration::from_secs(60);
/// Most servers known at once.
const MOST_SERVERS: usize = 256;

/// The recorded state of Redis.
#[derive(Debug, Default)]
pub struct RedisHistory {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    steps: VecDeque<RedisStep>,
    before: Option<(StoreReading, Instant)>,
    servers: BTreeMap<String, Known>,
    /// Keys evicted since the last step.
    evicted: Option<u64>,
}

/// Last report of a server.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Instant,
    vitals: Vitals,
    /// Cores that it used on average between its last two reports.
    cpu: Option<f64>,
}

/// Events of ten seconds. Values that servers report are totals of all servers; `None` if no server has reported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RedisStep {
    /// End of the step, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Median and 99th percentile of the duration of decisions in Redis, in microseconds; `None` if there were no
    /// decisions.
    pub p50_us: Option<u64>,
    /// See `p50_us`.
    pub p99_us: Option<u64>,
    /// Average number of requests queued for Redis or in progress there.
    pub in_flight: f64,
    /// Calls per second.
    pub calls: f64,
    /// Average number of requests in a call; `None` if there were no calls.
    pub requests_per_call: Option<f64>,
    /// Number of failed decisions by kind, without the kinds that did not occur.
    pub errors: BTreeMap<&'static str, u64>,
    /// Damaged counters, which were decided as fresh ones.
    pub damaged: u64,
    /// Size of its data in bytes.
    pub memory: Option<u64>,
    /// Number of evicted keys.
    pub evicted: Option<u64>,
    /// Number of connected clients.
    pub clients: Option<u64>,
    /// Commands per second.
    pub commands: Option<u64>,
    /// Number of cores used.
    pub cpu: Option<f64>,
}

/// The recorded steps, as shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RedisPast {
    /// Length of a step in milliseconds.
    pub step_ms: u64,
    /// Most steps kept.
    pub most: usize,
    /// Oldest first.
    pub steps: Vec<RedisStep>,
    /// Memory limit of all servers together, in bytes; `None` if some server has no limit.
    pub maxmemory: Option<u64>,
}

impl RedisHistory {
    /// Records a step every ten seconds, forever.
    pub async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) -> Infallible {
        let mut ticks = interval(STEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.note(metrics.store_reading(), Instant::now(), now_ms());
        }
    }

    /// Takes the report of a server.
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
            // A server that has restarted counts from zero.
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
        // The time that the first reading covers is unknown.
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
            damaged: reading.damaged.saturating_sub(before.damaged),
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

    /// Returns the recorded steps.
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
            replicas: None,
            persistence: None,
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
        // Server `a` has restarted, and the other one is gone.
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
