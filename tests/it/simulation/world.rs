//! The store of a simulation: real decisions with a simulated clock, behind a network that delays and loses messages.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate::engine::algorithm::{Ask, Effect, State};
use tollgate::engine::check::group::{self, Votes};
use tollgate::engine::check::{Check, CheckVerdict, Key, StoreError, Verdicts};
use tollgate::engine::share::{self, Beat, Table};
use tollgate::shared::seats::{SeatError, SeatTable};
use tollgate::store::Store;

use super::TIMEOUT;

/// Milliseconds since the epoch, some day in 2026, where every run begins.
pub const START: u64 = 1_784_000_000_123;

/// Frequencies of events, in 256ths of all calls, and the possible faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// A question does not arrive.
    pub lost_before: u8,
    /// An answer does not.
    pub lost_after: u8,
    /// The longest way, in microseconds.
    pub longest_us: u64,
    /// Whether expired counters are deleted.
    pub deletes: bool,
    /// A replica takes over that has not received the last writes.
    pub fails_over: bool,
    /// The store is down for seconds.
    pub outages: bool,
    /// No request is denied.
    pub shadow_mode: bool,
    /// The store's clock steps forwards, or backwards.
    pub steps: Option<bool>,
}

impl Weather {
    pub fn draw(rng: &mut fastrand::Rng) -> Weather {
        let lossy = rng.u8(..4) == 0;
        Weather {
            lost_before: if lossy { rng.u8(..80) } else { 0 },
            lost_after: if lossy { rng.u8(..80) } else { 0 },
            longest_us: [200, 2_000, 20_000, 200_000][rng.usize(..4)],
            deletes: rng.bool(),
            fails_over: rng.u8(..6) == 0,
            outages: rng.u8(..6) == 0,
            shadow_mode: rng.u8(..12) == 0,
            steps: (rng.u8(..6) == 0).then(|| rng.bool()),
        }
    }

    /// Returns whether no request and no reply is lost or late.
    pub fn is_calm(&self) -> bool {
        self.lost_before == 0 && self.lost_after == 0 && self.longest_us < 10_000 && !self.fails_over && !self.outages
    }
}

/// A counter, and when it expires.
type Counters = HashMap<Key, (State, u64)>;

pub struct World {
    weather: Weather,
    rng: fastrand::Rng,
    begin: Instant,
    /// Offset of the store's clock.
    ahead_ms: i64,
    counters: Counters,
    /// The table of seats.
    seats: Table,
    /// The counters of a replica of the store, and its table of seats.
    replica: (Counters, Table),
    /// Hits charged to each counter, and those that were granted in advance.
    pub taken: HashMap<Key, u64>,
    /// Hits of leases that were returned unused.
    pub returned: HashMap<Key, u64>,
    pub refunded: HashMap<Key, u64>,
    /// Time of the last failover.
    pub failed_over: Option<Instant>,
    pub failovers: u64,
    pub steps: u64,
    pub outages: u64,
    /// Denied requests that were charged, which must not happen.
    pub charged_denied: Vec<String>,
    /// The end of an outage.
    away_until: Instant,
}

impl World {
    pub fn new(weather: Weather, rng: fastrand::Rng) -> World {
        World {
            weather,
            rng,
            begin: Instant::now(),
            ahead_ms: 0,
            counters: HashMap::new(),
            seats: Table::default(),
            replica: Default::default(),
            taken: HashMap::new(),
            returned: HashMap::new(),
            refunded: HashMap::new(),
            failed_over: None,
            failovers: 0,
            steps: 0,
            outages: 0,
            charged_denied: Vec::new(),
            away_until: Instant::now(),
        }
    }

    pub fn fail_over(&mut self) {
        if self.weather.fails_over {
            (self.counters, self.seats) = self.replica.clone();
            self.failed_over = Some(Instant::now());
            self.failovers += 1;
        }
    }

    pub fn go_away(&mut self) {
        if self.weather.outages {
            self.away_until = Instant::now() + Duration::from_millis(self.rng.u64(100..3_000));
            self.outages += 1;
        }
    }

    fn is_away(&self) -> bool {
        Instant::now() < self.away_until
    }

    pub fn step_clock(&mut self) {
        let by = i64::from(self.rng.u32(1..3_000));
        match self.weather.steps {
            None => return,
            Some(true) => self.ahead_ms += by,
            Some(false) => self.ahead_ms -= by,
        }
        self.steps += 1;
    }

    /// From now on nothing is lost.
    pub fn calm_down(&mut self) {
        self.weather = Weather { lost_before: 0, lost_after: 0, longest_us: 200, ..self.weather };
    }

    fn now(&self) -> u64 {
        (START + self.begin.elapsed().as_millis() as u64).saturating_add_signed(self.ahead_ms)
    }

    /// Returns the verdict of the store if it were asked now.
    pub fn would_say(&self, check: &Check) -> CheckVerdict {
        let keys: Vec<&Key> = group::keys(std::slice::from_ref(check)).collect();
        let state = |i: usize| self.counters.get(keys[i]).map(|(state, _)| state);
        group::decide(&[check], self.now(), state).0[0].unwrap()
    }

    fn decide<C: Borrow<Check>>(&mut self, checks: &[C]) -> Verdicts {
        let now = self.now();
        if self.weather.deletes {
            self.counters.retain(|_, (_, expires_at)| *expires_at > now);
        }
        let keys: Vec<Key> = group::keys(checks).cloned().collect();
        let state = |i: usize| self.counters.get(&keys[i]).map(|(state, _)| state);
        let (verdicts, effects) = group::decide(checks, now, state);
        let before = self.rests(checks);
        for (i, effect) in effects {
            let expires_at = match effect {
                Effect::Changed { expires_after_ms, .. } => now + expires_after_ms,
                Effect::None | Effect::Forgotten => now,
            };
            let state = self.counters.remove(&keys[i]).map(|(state, _)| state);
            if let Some(state) = effect.apply(state) {
                self.counters.insert(keys[i].clone(), (state, expires_at));
            }
        }
        if denies(checks, &verdicts) && before != self.rests(checks) {
            self.charged_denied.push(format!("{:?}: {before:?}, {:?}", keys, self.rests(checks)));
        }
        self.count(checks, &verdicts);
        // A durable decision waits for confirmation by a replica.
        if self.rng.u8(..) < 64 || checks.iter().any(|check| check.borrow().durable) {
            self.replicate();
        }
        verdicts
    }

    fn replicate(&mut self) {
        self.replica = (self.counters.clone(), self.seats.clone());
    }

    /// Takes a beat.
    fn beat(&mut self, beat: &Beat<'_>) -> share::Answer {
        // Each failover is to another server.
        let answer = self.seats.beat(&format!("s{}", self.failovers), beat);
        if self.rng.u8(..) < 64 {
            self.replicate();
        }
        answer
    }

    /// Returns the remaining hits of the limits that are not charged for a denied request and get no refund.
    fn rests<C: Borrow<Check>>(&self, checks: &[C]) -> Vec<u64> {
        let checks = checks.iter().map(Borrow::borrow);
        let refunded: Vec<&Key> =
            checks.clone().filter(|check| check.ask.is_refund() || returns(check)).map(|check| &check.key).collect();
        let takes = checks
            .filter(|check| !check.limit.count_denied() && !refunded.contains(&&check.key) && check.ask != Ask::Reset);
        takes.map(|check| self.would_say(&Check { ask: Ask::Peek, ..check.clone() }).own.remaining).collect()
    }

    fn count<C: Borrow<Check>>(&mut self, checks: &[C], verdicts: &Verdicts) {
        let denied = denies(checks, verdicts);
        for (check, verdict) in checks.iter().map(Borrow::borrow).zip(verdicts) {
            match check.ask {
                Ask::Take(hits) if verdict.unwrap().allowed() && !denied => {
                    *self.taken.entry(check.key.clone()).or_default() += hits;
                }
                Ask::Refund(hits) if check.lease.is_none() => {
                    *self.refunded.entry(check.key.clone()).or_default() += hits;
                }
                _ => {}
            }
            let granted = verdict.unwrap().lease.map_or(0, |granted| granted.hits);
            *self.taken.entry(check.key.clone()).or_default() += u64::from(granted);
            let returned = check.leased.as_ref().and_then(|leased| leased.ask.returned);
            let unused = returned.map_or(0, |lease| lease.hits - lease.used);
            *self.returned.entry(check.key.clone()).or_default() += u64::from(unused);
        }
    }

    /// Returns the delay of a message, and whether it arrives.
    fn way(&mut self, lost: impl Fn(&Weather) -> u8) -> (Duration, bool) {
        let mut way = Duration::from_micros(self.rng.u64(1..self.weather.longest_us.max(2)));
        if self.rng.u8(..) > 20 {
            way /= 20;
        }
        (way, self.rng.u8(..) >= lost(&self.weather))
    }
}

fn returns(check: &Check) -> bool {
    check.leased.as_ref().is_some_and(|leased| leased.ask.returned.is_some())
}

/// Returns the combined verdict of the checks of a request.
fn denies<C: Borrow<Check>>(checks: &[C], verdicts: &Verdicts) -> bool {
    let mut votes = Votes::default();
    for (check, verdict) in checks.iter().map(Borrow::borrow).zip(verdicts) {
        votes.add(check.role, check, !verdict.unwrap().allowed());
    }
    votes.deny()
}

/// The connection of one instance to the store. Requests keep their order; replies need not.
pub struct Faulty {
    world: Arc<Mutex<World>>,
    /// Arrival time of the last message.
    arrives: Mutex<Instant>,
}

impl Faulty {
    pub fn new(world: Arc<Mutex<World>>) -> Faulty {
        Faulty { world, arrives: Mutex::new(Instant::now()) }
    }
}

impl Faulty {
    /// Has the store do something, and returns what it answers, if question and answer arrive in time.
    async fn ask<A: Send + 'static>(
        &self,
        deadline: Instant,
        question: impl FnOnce(&mut World) -> A + Send + 'static,
    ) -> Result<A, StoreError> {
        let world = Arc::clone(&self.world);
        let (answer, answered) = oneshot::channel();
        let (way, arrives) = world.lock().way(|weather| weather.lost_before);
        let at = {
            let mut last = self.arrives.lock();
            *last = (*last + Duration::from_millis(1)).max(Instant::now() + way);
            *last
        };
        // Messages in flight continue even if the caller has gone.
        tokio::spawn(async move {
            sleep_until(at).await;
            if !arrives || world.lock().is_away() {
                return drop(answer.send(Err(StoreError::Down("a test".into()))));
            }
            let told = question(&mut world.lock());
            let (way, arrives) = world.lock().way(|weather| weather.lost_after);
            sleep(way).await;
            let _ = answer.send(if arrives { Ok(told) } else { Err(StoreError::Timeout) });
        });
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
        }
    }
}

impl Store for Faulty {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let checks: Vec<Check> = checks.iter().map(|check| check.borrow().clone()).collect();
        self.ask(deadline, move |world| world.decide(&checks)).await
    }
}

impl SeatTable for Faulty {
    async fn beat(&self, beat: &Beat<'_>) -> Result<share::Answer, SeatError> {
        let Beat { id, beat, seat, stated, incarnation, known, silent } = *beat;
        let (id, stated, incarnation) = (id.to_owned(), stated.to_owned(), incarnation.to_owned());
        let (known, silent) = ((known.0.to_owned(), known.1), silent.to_vec());
        let ask = move |world: &mut World| {
            let (id, stated, incarnation, known) = (&*id, &*stated, &*incarnation, (&*known.0, known.1));
            world.beat(&Beat { id, beat, seat, stated, incarnation, known, silent: &silent })
        };
        Ok(self.ask(Instant::now() + TIMEOUT, ask).await?)
    }
}
