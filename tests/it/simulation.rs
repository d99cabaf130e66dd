//! Several instances with a store that is slow, forgets, loses requests and replies, fails over, and has a clock that
//! steps: under a paused clock, generated from a seed, which reproduces the run. All code on the path of a request is
//! real except for Redis; the judge checks the promises.
//!
//! `TOLLGATE_SIMULATION=FIRST..LAST cargo test --test it simulation::` runs other seeds than these, and more
//! (`make simulate`).

mod credits;
mod judge;
mod replica;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use judge::{Judge, Seen};
use parking_lot::Mutex;
use replica::{Fleet, Replica};
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::engine::algorithm::Ask;
use tollgate::engine::decision::{Answer, Limited};
use tollgate::engine::descriptor::{Descriptor, Entry, Override, Request, Unit};
use tollgate::engine::rules::Rules;
use tollgate::inspect::{Action, CounterOf, running};
use tollgate::limiter::{Deadlines, DecideError};
use tollgate::shared::seats::SeatTerms;
use tollgate::sources::files::load::{self, LoadOptions, Sources};
use world::{Weather, World};

/// The rules of all seeds.
const RULES: &str = "
domain: sim
descriptors:
  - {key: window, rate_limit: {period: 1s, requests_per_unit: NUMBER, failure_mode: open}}
  - {key: log, rate_limit: {algorithm: sliding_log, period: 1s, requests_per_unit: NUMBER, failure_mode: closed}}
  - key: bucket
    rate_limit: {algorithm: token_bucket, period: 1s, requests_per_unit: NUMBER, burst: 6, failure_mode: local}
  - key: hot
    rate_limit:
      algorithm: sliding_log
      period: 2s
      requests_per_unit: MANY
      lease: {unused: 20%, ttl: 200ms}
      failure_mode: error
  - {key: lent, rate_limit: {period: 1s, requests_per_unit: MANY, lease: {unused: 20%, ttl: 250ms}, failure_mode: open}}
  - key: tokens
    rate_limit:
      {algorithm: token_bucket, period: 1s, requests_per_unit: MANY, lease: {unused: 20%, ttl: 150ms}}
  - key: minute
    rate_limit:
      algorithm: fixed_window
      period: 1s
      requests_per_unit: MANY
      count_denied: false
      lease: {unused: 20%, ttl: 400ms}
  - {key: counted, rate_limit: {algorithm: fixed_window, period: 1s, requests_per_unit: NUMBER}}
  - {key: banned, rate_limit: {period: 100ms, requests_per_unit: 2, penalty: {after: 3, within: 10s, ban: 2s}}}
  - key: slow
    rate_limit:
      {algorithm: leaky_bucket, period: 200ms, requests_per_unit: NUMBER, max_delay: 300ms, failure_mode: open}
  - key: both
    rate_limits:
      - {algorithm: sliding_log, period: 1s, requests_per_unit: NUMBER}
      - {algorithm: fixed_window, period: 3s, requests_per_unit: MANY}
  - key: run
    descriptors:
      - {key: stream, rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: 1h, failure_mode: closed}}
  - key: spend
    descriptors:
      - {key: hold, rate_limit: {algorithm: budget, period: 1s, requests_per_unit: NUMBER, settle_within: 2s}}
";

/// The rules of the seeds with shares. Periods are short, so that shares come into use again after each change.
const SHARES: &str = "
domain: sim
descriptors:
  - {key: window, rate_limit: {period: 400ms, requests_per_unit: MANY, own_share: 50%, failure_mode: open}}
  - key: log
    rate_limit: {algorithm: sliding_log, period: 300ms, requests_per_unit: MANY, own_share: 100%, failure_mode: closed}
  - key: bucket
    rate_limit:
      {algorithm: token_bucket, period: 400ms, requests_per_unit: MANY, own_share: 40%, failure_mode: local}
  - key: minute
    rate_limit:
      {algorithm: fixed_window, period: 400ms, requests_per_unit: MANY, count_denied: false, own_share: 60%}
  - key: lent
    rate_limit: {period: 400ms, requests_per_unit: MANY, own_share: 30%, lease: {unused: 20%, ttl: 100ms}}
  - key: tokens
    rate_limit:
      algorithm: token_bucket
      period: 300ms
      requests_per_unit: MANY
      own_share: 30%
      lease: {unused: 20%, ttl: 75ms}
      failure_mode: error
  - {key: few, rate_limit: {period: 300ms, requests_per_unit: NUMBER, own_share: 50%}}
  - {key: plain, rate_limit: {algorithm: sliding_log, period: 300ms, requests_per_unit: NUMBER}}
  - key: both
    rate_limits:
      - {algorithm: sliding_log, period: 300ms, requests_per_unit: MANY, own_share: 50%}
      - {algorithm: fixed_window, period: 1s, requests_per_unit: MANY, count_denied: false}
";

const SHARED_KEYS: [&str; 9] = ["window", "log", "bucket", "minute", "lent", "tokens", "few", "plain", "both"];

/// How long a replica uses its seat without a confirmed beat.
const SHARE_TIMEOUT: Duration = Duration::from_millis(600);

/// The numbers of a rule, which change during a run.
const NUMBERS: [u32; 3] = [4, 2, 0];
const KEYS: [&str; 13] =
    ["window", "log", "bucket", "hot", "lent", "tokens", "minute", "counted", "banned", "slow", "both", "run", "spend"];
/// How long streams hold what they do not settle.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// An instance's timeout for the store.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Each so many'th seed is run twice, to compare what deletion at expiry changes: nothing.
const FLIPPED: u64 = 4;

/// The rules of the runs, and what requests ask for.
pub struct Scenario {
    /// A file of rules for each of [`NUMBERS`].
    files: Vec<tempfile::NamedTempFile>,
    /// The first keys of requests. Of `run` there is a second, `stream`.
    keys: Vec<&'static str>,
    /// Keys of limits whose number is the one in force.
    numbered: Vec<&'static str>,
    /// Keys of limits that can fail a call.
    failing: Vec<&'static str>,
    /// The number of hits that each hit counts as.
    cost: u64,
    /// Whether a limit takes its number from requests, so those that bring a limit along share its counter.
    takes_numbers: bool,
    /// Whether limits have shares: then replicas also end and start.
    has_shares: bool,
}

impl Scenario {
    /// Runs of rules in which `NUMBER` is the number in force.
    pub fn new(rules: &str, keys: &[&'static str], cost: u64) -> Scenario {
        let file = |number: &u32| {
            let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
            let text = rules.replace("NUMBER", &number.to_string()).replace("MANY", &(number * 20).max(10).to_string());
            std::fs::write(&file, text).unwrap();
            file
        };
        let (keys, numbered) = (keys.to_vec(), Vec::new());
        let takes_numbers = rules.contains("from: request");
        let has_shares = rules.contains("own_share");
        let files = NUMBERS.iter().map(file).collect();
        Scenario { files, keys, numbered, failing: Vec::new(), cost, takes_numbers, has_shares }
    }

    fn rules(&self, version: usize) -> Rules {
        let sources = Sources { paths: vec![self.files[version].path().to_owned()] };
        load::load(&sources, &LoadOptions::default()).unwrap().rules
    }
}

static EVERYTHING: LazyLock<Arc<Scenario>> = LazyLock::new(|| {
    Arc::new(Scenario {
        numbered: vec!["window", "log", "bucket", "counted", "slow", "spend"],
        failing: vec!["hot"],
        ..Scenario::new(RULES, &KEYS, 1)
    })
});

static WITH_SHARES: LazyLock<Arc<Scenario>> = LazyLock::new(|| {
    Arc::new(Scenario {
        numbered: vec!["few", "plain"],
        failing: vec!["tokens"],
        ..Scenario::new(SHARES, &SHARED_KEYS, 1)
    })
});

/// One run.
struct Run {
    scenario: Arc<Scenario>,
    rng: fastrand::Rng,
    fleet: Fleet,
    judge: Arc<Mutex<Judge>>,
    replicas: Vec<Replica>,
    /// The number of replicas that have ever been started.
    started: usize,
    /// The index of the rules in force.
    version: usize,
    /// Keys to request; some runs repeat a few of them.
    keys: Vec<&'static str>,
    /// Frequency of refunds in 256ths, and their maximum delay.
    refunds: u8,
    lasts_ms: u64,
}

impl Run {
    fn new(scenario: &Arc<Scenario>, seed: u64, flipped: bool) -> Run {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut weather = Weather::draw(&mut rng);
        weather.deletes ^= flipped;
        let world = Arc::new(Mutex::new(World::new(weather, rng.fork())));
        let seats = scenario.has_shares.then(|| SeatTerms { seats: rng.u32(1..4), timeout: SHARE_TIMEOUT });
        let (admitted, shadow_mode) = (Arc::default(), weather.shadow_mode);
        let fleet = Fleet { world, shadow_mode, seats, admitted };
        let replicas = rng.usize(1..4);
        let judge = Arc::new(Mutex::new(Judge::new(Arc::clone(scenario), weather)));
        let mut keys = scenario.keys.clone();
        if rng.bool() {
            rng.shuffle(&mut keys);
            keys.truncate(2);
        }
        let (refunds, lasts_ms) = ([40, 160][rng.usize(..2)], [400, 4_000][rng.usize(..2)]);
        let scenario = Arc::clone(scenario);
        let (started, version) = (0, 0);
        let mut run =
            Run { scenario, rng, fleet, judge, replicas: Vec::new(), started, version, keys, refunds, lasts_ms };
        run.replicas = (0..replicas).map(|_| run.start()).collect();
        run
    }

    fn start(&mut self) -> Replica {
        // Shares bear clocks that differ by a part of their margin.
        let speed = if self.scenario.has_shares { 0.98 + self.rng.f64() * 0.04 } else { 1.0 };
        self.started += 1;
        Replica::start(&self.fleet, self.started, speed, self.scenario.rules(self.version))
    }

    /// Sends the scenario's requests, with its faults.
    async fn go(mut self) -> Judge {
        let begin = Instant::now();
        let busy = self.rng.u64(1..60);
        if self.scenario.has_shares {
            // Most of the time until shares are in use.
            sleep(SHARE_TIMEOUT * self.rng.u32(0..6)).await;
        }
        for number in 0..self.rng.u64(30..90) {
            sleep(Duration::from_micros(self.rng.u64(0..busy * 2_000))).await;
            match self.rng.u8(..) {
                0..6 => {
                    self.version = self.rng.usize(..NUMBERS.len());
                    let rules = || self.scenario.rules(self.version);
                    self.judge.lock().rules_change();
                    self.replicas.iter().for_each(|replica| drop(replica.workers[0].put_in_force(rules())));
                }
                6..10 => self.fleet.world.lock().fail_over(),
                10..14 => self.fleet.world.lock().step_clock(),
                14..17 => self.reset(),
                17..21 => self.fleet.world.lock().go_away(),
                21..27 if self.scenario.has_shares => self.restart(),
                _ => self.request(number, NUMBERS[self.version]),
            }
        }
        let busy = begin.elapsed();
        // Waits until every request is answered and every stream has ended; then ends the processes.
        sleep(Duration::from_secs(10)).await;
        self.fleet.world.lock().calm_down();
        for replica in std::mem::take(&mut self.replicas) {
            replica.end().await;
        }
        sleep(Duration::from_secs(60)).await;
        let world = self.fleet.world.lock();
        self.judge.lock().end(&world);
        self.judge.lock().counts.simulate(begin.elapsed(), busy);
        self.judge.lock().counts.see("admitted by a share", self.fleet.admitted.load(Ordering::Relaxed));
        drop(world);
        std::mem::replace(&mut *self.judge.lock(), Judge::of_panic(Arc::clone(&self.scenario)))
    }

    /// Replaces a replica by a new one, or starts or ends one.
    fn restart(&mut self) {
        let (kind, place) = (self.rng.u8(..4), self.rng.usize(..self.replicas.len()));
        if kind > 0 && (kind < 3 || self.replicas.len() > 1) {
            let gone = self.replicas.swap_remove(place);
            self.judge.lock().counts.see(if kind == 1 { "killed" } else { "ended" }, 1);
            if kind == 1 {
                gone.kill();
            } else {
                tokio::spawn(gone.end());
            }
        }
        if kind < 3 && self.replicas.len() < 4 {
            let new = self.start();
            self.replicas.push(new);
        }
    }

    /// Sends a request in a separate task.
    fn request(&mut self, number: u64, in_force: u32) {
        let rng = &mut self.rng;
        let to = &self.replicas[rng.usize(..self.replicas.len())];
        let (replica, killed) = (to.id, to.killed());
        let limiter = to.workers[rng.usize(..2)].clone();
        // Names of streams repeat.
        let stream = ["a", "b", "c"][rng.usize(..3)];
        let mut descriptors = vec![descriptor(rng, &self.keys, (stream, number))];
        while rng.u8(..) < 60 {
            descriptors.push(descriptor(rng, &self.keys, (stream, number)));
        }
        // Of what a stream holds, in percent.
        let uses = if self.keys.contains(&"spend") { rng.u64(..=100) } else { 0 };
        let fate = match rng.u8(..) {
            0..26 => Fate::Lost,
            26..52 => Fate::Doubled,
            52..104 => Fate::InParts,
            _ => Fate::Once,
        };
        let timeout = [TIMEOUT, Duration::from_millis(20), Duration::ZERO][[0, 0, 0, 0, 0, 1, 1, 2][rng.usize(..8)]];
        let refunds = descriptors.len() == 1 && rng.u8(..) < self.refunds;
        let lasts = Duration::from_millis(rng.u64(1..self.lasts_ms));
        let is_stream = descriptors.iter().any(|descriptor| descriptor.entries.len() > 1);
        // Some callers go away, before or after the decision.
        let leaves = (rng.u8(..) < 40 && !is_stream).then(|| Duration::from_micros(rng.u64(0..100_000)));
        let request = Request { domain: "sim".into(), descriptors };
        let (judge, world) = (Arc::clone(&self.judge), Arc::clone(&self.fleet.world));
        // Taken now, because the rules may change before the task starts.
        let snapshot = limiter.snapshot();
        tokio::spawn(async move {
            let sent = Instant::now();
            judge.lock().sent(&request);
            let deadlines = Deadlines { store: sent + timeout.min(TIMEOUT), caller: Some(sent + timeout) };
            let leaves = async {
                match leaves {
                    Some(after) => sleep_until(sent + after).await,
                    None => std::future::pending().await,
                }
            };
            let mut told = killed.clone();
            let ends = async {
                if told.wait_for(|killed| *killed).await.is_err() {
                    std::future::pending().await
                }
            };
            let gone = async {
                tokio::select! {
                    () = leaves => {}
                    () = ends => {}
                }
            };
            tokio::pin!(gone);
            let decided = tokio::select! {
                biased;
                decided = limiter.decide(&snapshot, &request, deadlines) => decided,
                () = &mut gone => return judge.lock().left(number, &request),
            };
            let seen = Seen { number, replica, in_force, sent, timeout, request: &request };
            let passed = judge.lock().decided(&seen, &decided, &world.lock());
            let decided_at_all = decided.is_ok();
            let by_store = |limited: &Limited<'_>| matches!(limited.answer, Answer::Store(_)) && !limited.over();
            let is_held = passed && decided.as_ref().is_ok_and(|(decision, _)| decision.limits.iter().all(by_store));
            if let Ok((decision, Some(delay))) = decided {
                tokio::select! {
                    biased;
                    () = delay.wait() => {}
                    () = &mut gone => return judge.lock().gives_up(number, &decision),
                }
            }
            // Envoy admits a stream whose call has failed and later releases a slot that it never had; in a mesh
            // another stream may have the same name.
            if decided_at_all && (is_stream || (passed && refunds)) {
                // Envoy sends a release for every stream, at its end; for the denied ones at once.
                sleep(if passed { lasts } else { Duration::from_millis(1) }).await;
                if *killed.borrow() {
                    return;
                }
                let mut refund = request.clone();
                let wants = |descriptor: &Descriptor| {
                    matches!(descriptor.ask, Ask::Take(_)) && (descriptor.entries.len() > 1 || (passed && refunds))
                };
                refund.descriptors.retain(wants);
                if fate == Fate::Lost {
                    refund.descriptors.retain(|one| one.entries[0].key != "spend");
                }
                if refund.descriptors.is_empty() {
                    return;
                }
                for one in &mut refund.descriptors {
                    one.ask = match one.entries.get_mut(1).filter(|entry| entry.key == "hold") {
                        Some(entry) => {
                            entry.key = "settle".into();
                            Ask::take(if passed { one.ask.taken() * uses / 100 } else { 0 }).unwrap()
                        }
                        None => Ask::refund(one.ask.taken()).unwrap(),
                    };
                }
                let again = Request {
                    domain: refund.domain.clone(),
                    descriptors: refund
                        .descriptors
                        .iter()
                        .filter(|one| one.entries[0].key == "spend")
                        .cloned()
                        .collect(),
                };
                if fate == Fate::InParts {
                    refund.descriptors = refund.descriptors.into_iter().flat_map(in_parts).collect();
                }
                judge.lock().refunds(replica, &refund, passed);
                let settles = Instant::now();
                let deadlines = Deadlines { store: Instant::now() + TIMEOUT, caller: None };
                let snapshot = limiter.snapshot();
                let decided = limiter.decide(&snapshot, &refund, deadlines).await;
                if matches!(decided, Err(DecideError::GiveBack { .. })) {
                    return judge.lock().refused_refund(replica, &refund);
                }
                let heard = decided.is_ok_and(|(decision, _)| {
                    decision.limits.iter().all(|limited| matches!(limited.answer, Answer::Store(_)))
                });
                judge.lock().refunded(replica, &refund, heard);
                // What is held no longer was charged when the hold ended.
                if is_held && heard && settles - sent < SETTLE_WITHIN {
                    judge.lock().settled(&refund, settles);
                }
                if fate == Fate::Doubled && !again.descriptors.is_empty() {
                    // A stream is charged once: what the judge knows of is all that may be charged.
                    let _ = limiter.decide(&limiter.snapshot(), &again, deadlines).await;
                }
            }
        });
    }

    /// By hand.
    fn reset(&mut self) {
        let without_streams: Vec<_> = self.scenario.keys.iter().copied().filter(|key| *key != "run").collect();
        if without_streams.is_empty() {
            return;
        }
        let key = without_streams[self.rng.usize(..without_streams.len())];
        let value = ["ann", "bob"][self.rng.usize(..2)];
        let replica = self.rng.usize(..self.replicas.len());
        let (limiter, judge) = (self.replicas[replica].workers[0].clone(), Arc::clone(&self.judge));
        tokio::spawn(async move {
            judge.lock().resets(key, value);
            let entries = vec![Entry { key: key.into(), value: value.into() }];
            let of = CounterOf { domain: "sim".into(), entries, limit: None };
            let _ = running::counters(&limiter, Action::Reset, of, TIMEOUT).await;
            judge.lock().resets(key, value);
        });
    }
}

/// What becomes of the settle of a stream.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Once,
    Lost,
    Doubled,
    /// By several descriptors of one call, of which the first and the last tell nothing.
    InParts,
}

/// Returns the parts of a settle.
fn in_parts(settle: Descriptor) -> Vec<Descriptor> {
    if settle.entries[0].key != "spend" {
        return vec![settle];
    }
    let used = settle.ask.taken();
    let part = |hits| Descriptor { ask: Ask::take(hits).unwrap(), ..settle.clone() };
    vec![part(0), part(used / 3), part(used - used / 3), part(0)]
}

fn descriptor(rng: &mut fastrand::Rng, keys: &[&'static str], (stream, number): (&str, u64)) -> Descriptor {
    let key = keys[rng.usize(..keys.len())];
    let value = ["ann", "bob"][rng.usize(..2)];
    let mut entries = vec![Entry { key: key.into(), value: value.into() }];
    if key == "run" {
        entries.push(Entry { key: "stream".into(), value: stream.into() });
        return Descriptor { entries, ask: Ask::Take(1), limit: None };
    }
    if key == "spend" {
        entries.push(Entry { key: "hold".into(), value: format!("s{number}").into() });
        return Descriptor { entries, ask: Ask::Take(rng.u64(1..4)), limit: None };
    }
    let hits = [1, 1, 1, 1, 2, 3, 0, 9][rng.usize(..8)];
    // A client's own limit is another counter than the rule's.
    let limit = if rng.u8(..) < 12 { Override::new(1_000, Unit::Second, 1) } else { None };
    Descriptor { entries, ask: Ask::take(hits).unwrap(), limit }
}

/// Runs a seed. With `flipped`, expired counters are kept where they would be deleted, and vice versa.
fn run(scenario: &Arc<Scenario>, seed: u64, flipped: bool) -> Judge {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { Run::new(scenario, seed, flipped).go().await })
}

/// Runs a seed, and reports violations. For some seeds also compares with a flipped run.
fn judged(scenario: &Arc<Scenario>, seed: u64) -> Judge {
    let run = |flipped| {
        let judge = std::panic::catch_unwind(|| run(scenario, seed, flipped));
        judge.unwrap_or_else(|_| Judge::of_panic(Arc::clone(scenario)))
    };
    let mut judge = run(false);
    if seed.is_multiple_of(FLIPPED) && judge.wrong.is_empty() && !judge.clock_steps() {
        judge.compare(&run(true));
    }
    judge
}

/// Returns the violations in a run of this seed, with its history.
pub fn wrong(scenario: &Arc<Scenario>, seed: u64) -> Option<String> {
    let judge = judged(scenario, seed);
    (!judge.wrong.is_empty()).then(|| format!("{:#?}\nits story:\n{}", judge.wrong, judge.story.join("\n")))
}

/// Returns the seeds that the environment names, or else these.
fn seeds(by_default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("TOLLGATE_SIMULATION") else { return by_default };
    let (first, last) = text.split_once("..").expect("FIRST..LAST");
    first.parse().unwrap()..last.parse().unwrap()
}

/// Runs all seeds; fails for the first with a violation, or if one of these conditions never occurs.
fn judge_all(scenario: &Arc<Scenario>, seeds: std::ops::Range<u64>, conditions: &[&str]) {
    let next = AtomicU64::new(seeds.start);
    let (total, failed) = (Mutex::new(judge::Counts::default()), Mutex::new(None::<(u64, Judge)>));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.lock().is_some() {
                        break;
                    }
                    let judge = judged(scenario, seed);
                    total.lock().add(&judge.counts);
                    let mut failed = failed.lock();
                    if !judge.wrong.is_empty() && failed.as_ref().is_none_or(|(first, _)| seed < *first) {
                        *failed = Some((seed, judge));
                    }
                }
            });
        }
    });
    if let Some((seed, judge)) = failed.into_inner() {
        panic!(
            "seed {seed}: {:#?}\nits story:\n{}\nalone: \
             TOLLGATE_SIMULATION={seed}..{} cargo test --test it simulation::",
            judge.wrong,
            judge.story.join("\n"),
            seed + 1
        );
    }
    let (total, took) = (total.into_inner(), start.elapsed());
    let (all, busy) = total.simulated();
    let times = |simulated: Duration| simulated.as_secs_f64() / took.as_secs_f64();
    println!(
        "{} seeds in {took:.1?}: {:.0} simulated seconds, {:.0} times real time; with requests {:.0}, \
         {:.0} times: {total:?}",
        seeds.end.saturating_sub(seeds.start),
        all.as_secs_f64(),
        times(all),
        busy.as_secs_f64(),
        times(busy),
    );
    // Conditions that never occur are never checked.
    total.assert_happened(conditions, seeds.end.saturating_sub(seeds.start));
}

#[test]
fn whatever_befalls_the_store_and_the_replicas_every_promise_is_kept() {
    judge_all(&EVERYTHING, seeds(0..10_000), &judge::EVERYTHING);
}

#[test]
fn whatever_befalls_them_shares_admit_no_more() {
    judge_all(&WITH_SHARES, seeds(0..1_000), &judge::WITH_SHARES);
}

#[test]
fn a_seed_is_one_run_and_repeats() {
    for seed in 0..20 {
        for scenario in [&EVERYTHING, &WITH_SHARES] {
            let story = || run(scenario, seed, false).story;
            assert_eq!(story(), story(), "seed {seed}");
        }
    }
}
