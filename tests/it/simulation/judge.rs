//! Checks the promises against the observed results.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::engine::algorithm::Algorithm;
use tollgate::engine::asked::Source;
use tollgate::engine::check::group::Votes;
use tollgate::engine::check::{Check, Key};
use tollgate::engine::decision::{Answer, Decision, Limited};
use tollgate::engine::descriptor::{Descriptor, Request, Role};
use tollgate::engine::rules::FailureMode;
use tollgate::limiter::DecideError;

use super::world::{Weather, World};
use super::{Scenario, TIMEOUT};

/// Delay of an answer due to timers with millisecond resolution.
const LATE: Duration = Duration::from_millis(3);
/// Time for which a denial is cached while the store is up.
const FRESH: Duration = Duration::from_secs(1);

/// Numbers of observations.
#[derive(Debug, Default)]
pub struct Counts {
    times: HashMap<&'static str, u64>,
    /// Total duration of the runs, and of the requests in them.
    simulated: (Duration, Duration),
}

/// Conditions that must occur in some run, or they are not tested.
pub const EVERYTHING: [&str; 19] = [
    "passed",
    "denied",
    "answered without the store",
    "known denial",
    "failed open",
    "failed closed",
    "decided here",
    "undecided",
    "deadline exceeded",
    "skipped",
    "banned",
    "delayed",
    "failover",
    "clock step",
    "outage",
    "in shadow mode",
    "left",
    "gave up",
    "compared without deletion",
];

/// The same for runs with shares.
pub const WITH_SHARES: [&str; 12] = [
    "passed",
    "denied",
    "admitted by a share",
    "known denial",
    "failed open",
    "failed closed",
    "decided here",
    "failover",
    "clock step",
    "outage",
    "killed",
    "ended",
];

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        other.times.iter().for_each(|(what, times)| *self.times.entry(what).or_default() += times);
        self.simulate(other.simulated.0, other.simulated.1);
    }

    pub fn simulate(&mut self, all: Duration, busy: Duration) {
        self.simulated = (self.simulated.0 + all, self.simulated.1 + busy);
    }

    pub fn simulated(&self) -> (Duration, Duration) {
        self.simulated
    }

    pub fn see(&mut self, what: &'static str, times: u64) {
        *self.times.entry(what).or_default() += times;
    }

    pub fn assert_happened(&self, what: &[&str], seeds: u64) {
        let never = what.iter().filter(|what| self.times.get(*what).copied().unwrap_or(0) == 0);
        let never: Vec<_> = never.collect();
        assert!(seeds < 500 || never.is_empty(), "never seen: {never:?}");
    }
}

/// A request and its result.
pub struct Seen<'s> {
    pub number: u64,
    pub replica: usize,
    /// The number in the rules when it was sent.
    pub in_force: u32,
    pub sent: Instant,
    pub timeout: Duration,
    pub request: &'s Request,
}

/// The admitted hits of a counter, and the events that excuse deviations.
#[derive(Default)]
struct Counter {
    /// Times and hits admitted by the store or a lease.
    /// What streams have settled: sent, answered, and the hits.
    settled: Vec<(Instant, Instant, u64)>,
    passed: Vec<(Instant, u64)>,
    /// The greatest number that was in force, and its period.
    most: u64,
    period: Duration,
    algorithm: Option<Algorithm>,
    /// Whether instances take hits of it in advance.
    is_leased: bool,
    /// Whether instances admit a share of it by themselves, which the store does not hear of.
    is_shared: bool,
    /// Its hits are those confirmed by a replica of the store.
    is_durable: bool,
    /// Whether requests can be delayed.
    delays: bool,
    /// Slots that are taken.
    in_progress: u64,
    /// The hits that callers take back: by a refund, or by going away while they are delayed.
    taken_back: u64,
    /// Times of refunds and resets, with the instance and the total hits.
    refunded: Vec<(Instant, Option<usize>)>,
    refunded_hits: u64,
    /// Instances with a pending refund: until its answer, cached knowledge stays.
    refunding: Vec<usize>,
}

pub struct Judge {
    scenario: Arc<Scenario>,
    weather: Weather,
    counters: HashMap<Key, Counter>,
    /// Hits on their way to an answer.
    in_flight: u64,
    most_in_flight: u64,
    pub wrong: Vec<String>,
    pub counts: Counts,
    /// Requests whose callers left before the answer.
    left: HashSet<(String, String)>,
    /// When the rules last changed.
    changed: Option<Instant>,
    /// Every answer, in order.
    pub story: Vec<String>,
}

impl Judge {
    pub fn new(scenario: Arc<Scenario>, weather: Weather) -> Judge {
        Judge {
            scenario,
            weather,
            counters: HashMap::new(),
            in_flight: 0,
            most_in_flight: 0,
            wrong: Vec::new(),
            counts: Counts::default(),
            left: HashSet::new(),
            changed: None,
            story: Vec::new(),
        }
    }

    /// Creates the judge of a run that panicked.
    pub fn of_panic(scenario: Arc<Scenario>) -> Judge {
        let mut judge = Judge::new(scenario, Weather::default());
        judge.wrong.push("it panicked".into());
        judge
    }

    pub fn clock_steps(&self) -> bool {
        self.weather.steps.is_some()
    }

    /// The other run differs in nothing but deletion at expiry.
    pub fn compare(&mut self, other: &Judge) {
        self.wrong.extend(other.wrong.iter().map(|wrong| format!("with deletion flipped: {wrong}")));
        // In the same millisecond, the order of events is that of the runtime.
        let sorted = |story: &[String]| {
            let mut story = story.to_vec();
            story.sort_unstable();
            story
        };
        let (own, others) = (sorted(&self.story), sorted(&other.story));
        let differs = own.iter().zip(&others).find(|(one, other)| one != other);
        let differs = differs.map(|(one, other)| format!("deletion at expiry makes {other:?} of {one:?}"));
        self.wrong.extend(differs);
        self.counts.see("compared without deletion", 1);
    }

    fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    pub fn sent(&mut self, request: &Request) {
        self.in_flight += self.hits(request);
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    /// Records that the caller left before the answer.
    pub fn left(&mut self, number: u64, request: &Request) {
        self.in_flight -= self.hits(request);
        self.counts.see("left", 1);
        self.story.push(format!("{number} left"));
        for one in &request.descriptors {
            self.left.insert((one.entries[0].key.to_string(), one.entries[0].value.to_string()));
        }
    }

    /// Records that the caller left while the request was delayed: as if it had not been sent.
    pub fn gives_up(&mut self, number: u64, decision: &Decision<'_>) {
        self.counts.see("gave up", 1);
        self.story.push(format!("{number} gave up"));
        for Limited { asked, answer } in &decision.limits {
            let hits = asked.check.ask.taken();
            let Some(counter) = self.counters.get_mut(&asked.check.key) else { continue };
            if !matches!(answer, Answer::Store(verdict) if verdict.allowed()) || hits == 0 {
                continue;
            }
            if let Some(place) = counter.passed.iter().rposition(|(_, passed)| *passed == hits) {
                counter.passed.remove(place);
            }
            counter.taken_back += hits;
            counter.refunded_hits += hits;
            counter.refunded.push((Instant::now(), None));
        }
    }

    /// Records an answer; returns whether the request passed.
    pub fn decided<T>(
        &mut self,
        seen: &Seen<'_>,
        decided: &Result<(Decision<'_>, Option<T>), DecideError>,
        world: &World,
    ) -> bool {
        self.in_flight -= self.hits(seen.request);
        let took = seen.sent.elapsed();
        let told = match decided {
            Ok((decision, delay)) => format!("{} {:?} {}", decision.over_limit, decision.delay, delay.is_some()),
            Err(error) => error.to_string(),
        };
        self.story.push(format!("{} after {took:?}: {told}", seen.number));
        self.demand(took <= seen.timeout.min(TIMEOUT) + LATE, || {
            format!("{} was answered after {took:?}", seen.number)
        });
        let (decision, delay) = match decided {
            Ok(decided) => decided,
            Err(DecideError::Undecided { .. }) => {
                self.counts.see("undecided", 1);
                let fails = |key: &str| self.scenario.failing.contains(&key);
                let has_error_mode = seen.request.descriptors.iter().any(|one| fails(&one.entries[0].key));
                self.demand(has_error_mode && !self.weather.shadow_mode, || {
                    format!("{} fails without failure mode error", seen.number)
                });
                return false;
            }
            Err(DecideError::DeadlineExceeded) => {
                self.counts.see("deadline exceeded", 1);
                let is_short = seen.timeout < Duration::from_millis(1);
                self.demand(is_short, || format!("{} had time", seen.number));
                return false;
            }
            Err(error) => {
                self.wrong.push(format!("{}: {error}", seen.number));
                return false;
            }
        };
        self.demand(seen.timeout > Duration::from_micros(1), || format!("{} had no time", seen.number));
        self.counts.see(if decision.over_limit { "denied" } else { "passed" }, 1);
        self.counts.see("delayed", u64::from(delay.is_some()));
        self.demand(!(self.weather.shadow_mode && decision.over_limit), || {
            format!("{} is denied in shadow", seen.number)
        });
        // The answer itself names the limit that denies the request.
        let mut votes = Votes::default();
        decision.limits.iter().for_each(|limited| votes.add(limited.role(), &limited.asked.check, limited.over()));
        let denied = votes.deny();
        let shadow_mode = self.weather.shadow_mode;
        self.demand(denied == if shadow_mode { decision.only_shadow } else { decision.over_limit }, || {
            format!("{}: {decision:?}", seen.number)
        });
        for limited in &decision.limits {
            self.limit(seen, decision, limited, took, world);
        }
        !decision.over_limit
    }

    fn limit(
        &mut self,
        seen: &Seen<'_>,
        decision: &Decision<'_>,
        limited: &Limited<'_>,
        took: Duration,
        world: &World,
    ) {
        let check = &limited.asked.check;
        let mode = limited.asked.failure_mode;
        if limited.banned_ms().is_some() {
            self.counts.see("banned", 1);
        }
        if let Source::Rule(rule, _) = limited.asked.source
            && self.scenario.numbered.contains(&&*rule.path)
        {
            let number = check.limit.number();
            self.demand(number == u64::from(seen.in_force), || {
                format!("{} is under {number}, not {}", seen.number, seen.in_force)
            });
        }
        match limited.answer {
            Answer::Store(verdict) => {
                let (allowed, number) = (verdict.own.allowed, check.limit.number());
                let passes_nothing = number == 0 && check.ask.taken() > 0;
                self.demand(!(allowed && passes_nothing), || {
                    format!("{} passes a limit of 0: {limited:?}", seen.number)
                });
                if !verdict.allowed() && took.is_zero() {
                    self.counts.see("answered without the store", 1);
                    self.known_denial(seen, limited, world, Some(FRESH));
                }
            }
            Answer::Known(_) => {
                self.counts.see("known denial", 1);
                self.demand(limited.over(), || format!("{}: a known denial passes", seen.number));
                self.known_denial(seen, limited, world, None);
            }
            Answer::NotRefunded => {
                self.demand(check.ask.is_refund(), || format!("{} is no refund", seen.number));
            }
            Answer::Exempt | Answer::Blocked => {
                self.demand(false, || format!("{} meets an adjustment, of which there is none", seen.number));
            }
            Answer::Skipped => {
                self.counts.see("skipped", 1);
                let denied = decision.over_limit || decision.only_shadow;
                self.demand(denied, || format!("{} passes, and was not asked", seen.number));
            }
            Answer::Local(_) => {
                self.counts.see("decided here", 1);
                self.demand(mode == FailureMode::Local, || format!("{} was decided here", seen.number));
            }
            Answer::FailedOpen => {
                self.counts.see("failed open", 1);
                self.demand(
                    mode == FailureMode::Open || (self.weather.shadow_mode && mode == FailureMode::Error),
                    || format!("{} fails open", seen.number),
                );
            }
            Answer::FailedClosed { .. } => {
                self.counts.see("failed closed", 1);
                // A denial of this descriptor may not deny the request.
                let denied = decision.over_limit || decision.only_shadow || limited.role() != Role::Enforced;
                self.demand(mode == FailureMode::Closed && denied, || format!("{} fails closed", seen.number));
            }
        }
        let counter = self.counters.entry(check.key.clone()).or_default();
        counter.most = counter.most.max(check.limit.capacity());
        counter.algorithm = Some(check.limit.algorithm());
        counter.period = check.limit.period();
        counter.is_leased |= check.lease.is_some();
        counter.is_shared |= check.shared.split.is_some();
        counter.is_durable = check.durable;
        counter.delays = check.limit.options().max_delay.is_some();
        if matches!(limited.answer, Answer::Store(verdict) if verdict.allowed())
            && !decision.over_limit
            && check.ask.taken() > 0
        {
            counter.passed.push((Instant::now() + decision.delay, check.ask.taken()));
            if check.limit.algorithm().counts_in_progress() {
                counter.in_progress += 1;
                let (in_progress, most) = (counter.in_progress, counter.most);
                let excused = !self.weather.is_calm() || self.weather.steps.is_some();
                self.demand(in_progress <= most || excused, || format!("{}: {in_progress} in progress", seen.number));
            }
        }
    }

    /// The store must also deny it, unless its state changed in a way that this instance cannot know; `within` this
    /// time it would have.
    fn known_denial(&mut self, seen: &Seen<'_>, limited: &Limited<'_>, world: &World, within: Option<Duration>) {
        let check = &limited.asked.check;
        let counter = self.counters.entry(check.key.clone()).or_default();
        let unheard = |(at, by): &(Instant, Option<usize>)| {
            *by != Some(seen.replica) && within.is_none_or(|within| at.elapsed() <= within + TIMEOUT)
        };
        let failed_over =
            world.failed_over.is_some_and(|at| within.is_none_or(|within| at.elapsed() <= within + TIMEOUT));
        // Another instance may have returned a lease.
        let leased = check.lease.is_some();
        let refunding = counter.refunding.contains(&seen.replica);
        let excused =
            refunding || counter.refunded.iter().any(unheard) || failed_over || self.weather.steps.is_some() || leased;
        // A bucket fills faster while it has a larger number, and may have had one meanwhile: of other rules, or of a
        // request that brings it.
        let changed = self.changed.is_some_and(|at| within.is_none_or(|within| at.elapsed() <= within + TIMEOUT));
        let is_bucket = matches!(check.limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let excused = excused || (is_bucket && (changed || self.scenario.takes_numbers));
        // While instances do not agree on shares, each asks the store for as little as any of them may.
        let excused = excused || (self.scenario.has_shares && (self.changed.is_some() || !self.weather.is_calm()));
        let says = world.would_say(&Check { limit: check.shared.rest(&check.limit), ..check.clone() });
        self.demand(excused || !says.allowed(), || {
            format!("{} is denied: {limited:?}; the store: {says:?}", seen.number)
        });
    }

    /// Records that rules with other numbers are in force.
    pub fn rules_change(&mut self) {
        self.changed = Some(Instant::now());
    }

    /// Records that streams which held hits have settled, since this time.
    pub fn settled(&mut self, settle: &Request, since: Instant) {
        for one in settle.descriptors.iter().filter(|one| one.entries[0].key == "spend") {
            for (key, counter) in &mut self.counters {
                if is_of(key, &one.entries[0].key, &one.entries[0].value) {
                    counter.settled.push((since, Instant::now(), one.ask.taken() * self.scenario.cost));
                }
            }
        }
    }

    /// Returns the descriptors of a refund that are counted by rules.
    fn of_rules<'d>(&self, refund: &'d Request) -> impl Iterator<Item = &'d Descriptor> + use<'d> {
        let takes_numbers = self.scenario.takes_numbers;
        let is_refund = |one: &&Descriptor| one.entries[0].key != "spend";
        refund.descriptors.iter().filter(is_refund).filter(move |one| one.limit.is_none() || takes_numbers)
    }

    /// Records that refunds start now; a stream that passed has ended.
    pub fn refunds(&mut self, replica: usize, refund: &Request, passed: bool) {
        for one in self.of_rules(refund) {
            for (key, counter) in &mut self.counters {
                if is_of(key, &one.entries[0].key, &one.entries[0].value) {
                    counter.refunded.push((Instant::now(), Some(replica)));
                    counter.refunding.push(replica);
                    let hits = one.ask.hits().unsigned_abs() * self.scenario.cost;
                    counter.refunded_hits += hits;
                    counter.taken_back += hits;
                    if counter.algorithm.is_some_and(Algorithm::has_holders) && passed {
                        counter.in_progress = counter.in_progress.saturating_sub(1);
                    }
                }
            }
        }
    }

    /// Records the answer to a refund; if the instance has not `heard` one, the store may still do it.
    pub fn refunded(&mut self, replica: usize, refund: &Request, heard: bool) {
        for one in self.of_rules(refund) {
            for (key, counter) in &mut self.counters {
                if is_of(key, &one.entries[0].key, &one.entries[0].value) {
                    counter.refunded.push((Instant::now(), heard.then_some(replica)));
                    let under_way = counter.refunding.iter().position(|by| *by == replica);
                    under_way.map(|place| counter.refunding.swap_remove(place));
                }
            }
        }
    }

    /// The rules allow no refunds: nothing is taken back.
    pub fn refused_refund(&mut self, replica: usize, refund: &Request) {
        for one in self.of_rules(refund) {
            let hits = one.ask.hits().unsigned_abs() * self.scenario.cost;
            for (_, counter) in
                self.counters.iter_mut().filter(|(key, _)| is_of(key, &one.entries[0].key, &one.entries[0].value))
            {
                counter.taken_back -= hits;
                counter.refunded_hits -= hits;
            }
        }
        self.refunded(replica, refund, true);
    }

    /// Everything of a counter is taken back by hand.
    pub fn resets(&mut self, key: &str, value: &str) {
        for (name, counter) in &mut self.counters {
            if is_of(name, key, value) {
                counter.refunded.push((Instant::now(), None));
                counter.refunded_hits += u64::MAX / 4;
                counter.refunded_hits = counter.refunded_hits.min(u64::MAX / 4);
            }
        }
    }

    /// All is over.
    pub fn end(&mut self, world: &World) {
        self.counts.see("failover", world.failovers);
        self.counts.see("clock step", world.steps);
        self.counts.see("outage", world.outages);
        self.counts.see("in shadow mode", u64::from(self.weather.shadow_mode));
        self.wrong.extend(world.charged_denied.iter().map(|what| format!("a denied request was charged: {what}")));
        let in_flight = self.in_flight;
        self.demand(in_flight == 0, || format!("{in_flight} hits were never answered"));
        let counters = std::mem::take(&mut self.counters);
        for (key, counter) in &counters {
            let passed: u64 = counter.passed.iter().map(|(_, hits)| hits).sum();
            let taken = world.taken.get(key).copied().unwrap_or(0);
            let is_leased = counter.is_leased;
            let let_go = world.returned.get(key).copied().unwrap_or(0);
            let is_shared = counter.is_shared;
            self.demand(is_shared || passed + let_go <= taken, || {
                format!("{key}: {passed} passed, {let_go} were let go, and only {taken} were charged")
            });
            // Each take-back of a caller is done once.
            let back = world.refunded.get(key).copied().unwrap_or(0);
            let asked_back = counter.taken_back;
            let is_own = !is_leased && !is_shared && !key.as_str().contains("override");
            let is_calm = self.weather.is_calm();
            let is_slow = counter.delays;
            self.demand(!is_own || back <= asked_back && (!is_calm || !is_slow || back == asked_back), || {
                format!("{key}: {back} were taken back, of {asked_back}")
            });
            let has_left = self.left.iter().any(|(one, value)| is_of(key, one, value));
            // Leased hits that were not used have been returned by the end.
            let is_calm = is_calm && counter.refunded_hits == 0 && !has_left && !is_shared;
            self.demand(!(is_calm && is_leased) || passed + let_go == taken, || {
                format!("{key}: {taken} were charged, and {passed} passed and {let_go} were let go")
            });
            self.never_more(key, counter);
            self.never_overspent(key, counter);
        }
    }

    /// Asserts that in no interval of one period streams settle more than the number, where each settles at most what
    /// it holds.
    fn never_overspent(&mut self, key: &Key, counter: &Counter) {
        if (self.weather.fails_over && !counter.is_durable) || self.weather.steps == Some(true) {
            return;
        }
        for (from, ..) in &counter.settled {
            let within =
                counter.settled.iter().filter(|(since, until, _)| since >= from && *until <= *from + counter.period);
            let sum: u64 = within.map(|(.., hits)| hits).sum();
            self.demand(sum <= counter.most, || {
                format!("{key}: {sum} settled in a period, {} at the most", counter.most)
            });
        }
    }

    fn hits(&self, request: &Request) -> u64 {
        request.descriptors.iter().map(|descriptor| descriptor.ask.taken()).sum::<u64>() * self.scenario.cost
    }

    /// Asserts that no interval of one period admits more than the bound plus the requests in flight at its start.
    /// Leases add nothing.
    fn never_more(&mut self, key: &Key, counter: &Counter) {
        let Some(algorithm) = counter.algorithm.filter(|algorithm| !algorithm.has_holders()) else { return };
        if (self.weather.fails_over && !counter.is_durable)
            || self.weather.steps == Some(true)
            || counter.refunded_hits > u64::MAX / 8
        {
            return;
        }
        let doubled = matches!(algorithm, Algorithm::FixedWindow | Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let bound = counter.most * if doubled { 2 } else { 1 };
        let bound = bound + self.most_in_flight + counter.refunded_hits;
        let mut passed = counter.passed.clone();
        passed.sort_unstable();
        let (mut sum, mut first) = (0, 0);
        for (at, hits) in &passed {
            sum += hits;
            while passed[first].0 + counter.period < *at {
                sum -= passed[first].1;
                first += 1;
            }
            self.demand(sum <= bound, || format!("{key}: {sum} passed in a period, {bound} at the most"));
        }
    }
}

/// The counter is that of a rule, for this value.
fn is_of(name: &Key, key: &str, value: &str) -> bool {
    let tag = format!("{key}={value}");
    let name = name.as_str();
    !name.contains("override") && name.split(['{', '}', '|']).any(|part| part == tag)
}
