//! Every pair of options of a limit: refused for the reason that the table gives, or decided alike by both twins, with
//! the properties of its algorithm, and kept by the simulation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tollgate::engine::algorithm::{Algorithm, Ask, Initial};
use tollgate::engine::check::Check;
use tollgate::engine::descriptor::{Descriptor, Entry, Override, Request, Unit};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::Rules;
use tollgate::engine::rules::options::own_share;
use tollgate::engine::rules::pairs::{self, ConflictKind, Pair, Term};

use crate::rules::load_text;
use crate::simulation::{self, Scenario};
use crate::support::limits::{bound, memory_ms, stream_key};
use crate::support::redis::Redis;
use crate::twins::{self, Clocks, Lua, START, Twin};

/// The number of most limits here: as many as the examples of options fit.
const NUMBER: u32 = 30;

/// A limit of two options.
#[derive(Clone, Copy, Debug)]
struct Case {
    options: [Term; 2],
    algorithm: Algorithm,
}

impl Case {
    /// Every pair, by an algorithm.
    fn of(one: Term, other: Term, algorithm: Algorithm) -> Case {
        Case { options: [one, other], algorithm }
    }

    fn has(&self, key: &str) -> bool {
        self.options.iter().any(|term| term.key.name == key)
    }

    fn name(&self) -> String {
        let [one, other] = self.options.map(|term| term.key.name);
        format!("{one} and {other} of {}", self.algorithm)
    }

    /// Returns the cost of a hit.
    fn cost(&self) -> u64 {
        if self.has("cost") { 5 } else { 1 }
    }

    fn is_counted(&self) -> bool {
        !self.has("unlimited")
    }

    /// The first key of requests.
    fn key(&self) -> &'static str {
        match stream_key(self.algorithm).filter(|_| self.is_counted()) {
            Some("hold") => "spend",
            Some(_) => "run",
            None => "pair",
        }
    }

    /// Returns the limit: the two options and what they require.
    fn limit(&self, number: &str) -> String {
        let (algorithm, own) = (self.algorithm, |key: &str| self.has(key));
        let of_calendar = own("time_zone") || own("starts_on") || own("carry_percent");
        let mut says: Vec<(&str, &str)> = Vec::new();
        for Term { key, .. } in self.options.iter().filter(|term| !term.is_beside) {
            says.push((
                key.name,
                match key.name {
                    // Of a bucket of the other example, the example of a lease is less than a hit.
                    "lease" => "{unused: 20%, ttl: 100ms}",
                    "period" if of_calendar => "14d",
                    // A day begins every day.
                    "unit" if own("starts_on") => "month",
                    _ => key.example,
                },
            ));
        }
        if self.is_counted() {
            says.extend([("algorithm", algorithm.name()), ("requests_per_unit", number)]);
            if !algorithm.counts_in_progress() && !own("unit") && !own("period") {
                says.push(match (own("starts_on"), of_calendar) {
                    (true, _) => ("unit", "week"),
                    (false, true) => ("unit", "day"),
                    (false, false) => ("period", "1s"),
                });
            }
            // One needs the other, and a period needs both.
            if of_calendar && !own("time_zone") && algorithm.has("time_zone") {
                says.push(("time_zone", "UTC"));
            }
            if own("period") && of_calendar && !own("starts_on") && algorithm.has("starts_on") {
                says.push(("starts_on", "2026-01-15"));
            }
            if algorithm == Algorithm::LeakyBucket && !own("burst") {
                // A lease takes at most an eighth of a burst, and must be worth a request of the example's cost.
                says.push(("burst", if own("lease") && own("cost") { "200" } else { "20" }));
            }
            let is_taken_early = own("lease") || own("own_share");
            if is_taken_early && algorithm.counts_denied() && !own("count_denied") {
                says.push(("count_denied", "false"));
            }
        }
        let says: Vec<String> = says.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        format!("{{{}}}", says.join(", "))
    }

    /// A file with the limit.
    fn rules(&self, number: &str) -> String {
        let limit = self.limit(number);
        let mut beside = if self.has("rate_limits") {
            // With another period than the examples.
            let other = if self.algorithm == Algorithm::Budget { "budget" } else { "fixed_window" };
            format!("rate_limits: [{limit}, {{algorithm: {other}, period: 1h, requests_per_unit: 1000}}]")
        } else {
            format!("rate_limit: {limit}")
        };
        for Term { key, .. } in self.options.iter().filter(|term| term.is_beside && term.key.name != "rate_limits") {
            beside.push_str(&format!(", {}: {}", key.name, key.example));
        }
        let pair = match self.key() {
            key @ ("run" | "spend") => {
                let stream = stream_key(self.algorithm).unwrap();
                format!("{{key: {key}, descriptors: [{{key: {stream}, {beside}}}]}}")
            }
            key => format!("{{key: {key}, {beside}}}"),
        };
        let other = "{key: other, rate_limit: {name: other, unit: day, requests_per_unit: 1000}}";
        let prices = if self.has("weigh_by") && self.is_counted() { "prices: {any: 2000000}\n" } else { "" };
        format!("domain: sim\n{prices}descriptors:\n  - {other}\n  - {pair}\n")
    }

    /// Returns whether the loader rejects the rules, and all problems.
    fn told(&self) -> (bool, String) {
        let is_large = ["lease", "own_share", "estimate", "min_estimate"].iter().any(|key| self.has(key));
        let number = if is_large { "10000".to_owned() } else { NUMBER.to_string() };
        match load_text(self.rules(&number)) {
            Ok(loaded) => (false, loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
            Err(error) => (true, error.to_string()),
        }
    }
}

fn all_pairs() -> impl Iterator<Item = (Term, Term, Pair)> {
    let after = |(at, one): (usize, &'static Term)| pairs::terms().skip(at + 1).map(move |other| (*one, *other));
    let all = pairs::terms().enumerate().flat_map(after);
    all.map(|(one, other)| (one, other, pairs::pair(one.key.name, other.key.name)))
}

/// Returns every valid pair, for each algorithm that has both options.
fn cases() -> Vec<Case> {
    let of = |(one, other, pair)| match pair {
        Pair::Together(algorithms) => {
            algorithms.into_iter().map(|algorithm| Case::of(one, other, algorithm)).collect::<Vec<_>>()
        }
        Pair::Apart(_) | Pair::NoAlgorithm => Vec::new(),
    };
    all_pairs().flat_map(of).collect()
}

/// A replay tries shares for limits without them.
#[test]
fn a_limit_can_have_shares_if_the_table_lets_it_have_own_share() {
    let (mut can, mut cannot) = (0, 0);
    for case in cases().into_iter().filter(|case| case.is_counted() && !case.has("own_share")) {
        let without = case.rules("1001");
        let with = without.replace("requests_per_unit: 1001", "requests_per_unit: 1001, own_share: 50%");
        let loaded = load_text(without).unwrap();
        // The first of several is that of the two options.
        let (_, limit) = loaded.rules.limits().find(|(rule, _)| &*rule.path != "other").unwrap();
        let fits = own_share::fits(&limit.config);
        assert_eq!(fits, load_text(with.clone()).is_ok(), "{}:\n{with}", case.name());
        *(if fits { &mut can } else { &mut cannot }) += 1;
    }
    assert!(can > 100 && cannot > 100, "{can}, {cannot}");
}

#[test]
fn every_pair_of_options_is_refused_for_the_reason_of_the_table_or_loads() {
    let (mut together, mut apart) = (0, 0);
    for (one, other, pair) in all_pairs() {
        match pair {
            Pair::Together(algorithms) => {
                together += 1;
                for algorithm in algorithms {
                    let case = Case::of(one, other, algorithm);
                    assert_eq!(case.told(), (false, String::new()), "{}:\n{}", case.name(), case.rules("30"));
                }
            }
            Pair::Apart(conflict) => {
                apart += 1;
                let fits = |algorithm: &&Algorithm| {
                    [one, other].iter().all(|term| pairs::between(term.key.name, algorithm.name()).is_none())
                };
                let algorithm = Algorithm::ALL.iter().find(fits).copied().unwrap_or(Algorithm::SlidingWindow);
                let case = Case::of(one, other, algorithm);
                let (is_refused, told) = case.told();
                assert_eq!(is_refused, conflict.kind == ConflictKind::Refused, "{}: {told}", case.name());
                assert_eq!(told.matches(&conflict.why).count(), 1, "{}: {told}", case.name());
            }
            Pair::NoAlgorithm => {
                apart += 1;
                for algorithm in Algorithm::ALL {
                    let case = Case::of(one, other, *algorithm);
                    let why = [one, other].iter().find_map(|term| pairs::between(term.key.name, algorithm.name()));
                    let ((is_refused, told), why) = (case.told(), &why.unwrap().why);
                    assert!(is_refused && told.contains(why), "{}: {told}", case.name());
                }
            }
        }
    }
    assert!(together > 100 && apart > 50, "{together} go together, {apart} do not");
}

/// An algorithm that an option does not go with is refused for the reason of the table.
#[test]
fn every_option_is_refused_by_the_algorithms_that_do_not_have_it() {
    let failure_mode = *pairs::terms().find(|term| term.key.name == "failure_mode").unwrap();
    let mut refused = 0;
    for term in pairs::terms() {
        for algorithm in Algorithm::ALL {
            let Some(conflict) = pairs::between(term.key.name, algorithm.name()) else { continue };
            let case = Case::of(*term, failure_mode, *algorithm);
            let (is_refused, told) = case.told();
            assert!(is_refused && told.contains(&conflict.why), "{}: {told}", case.name());
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
}

/// Requests for the limit of a case.
struct Requests {
    rng: fastrand::Rng,
    case: Case,
    rules: Rules,
    options: PlanOptions,
    /// Whether some requests bring a limit along.
    bring_limits: bool,
}

impl Requests {
    fn new(seed: u64, case: Case) -> Requests {
        let rules = load_text(case.rules(&NUMBER.to_string())).unwrap().rules;
        let rng = fastrand::Rng::with_seed(seed);
        Requests { rng, case, rules, options: PlanOptions::default(), bring_limits: false }
    }

    /// The checks of a request of so many hits.
    fn checks(&mut self, hits: i64) -> Vec<Check> {
        let amount = hits.unsigned_abs();
        let ask = if hits < 0 { Ask::refund(amount) } else { Ask::take(amount) }.unwrap();
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let mut entries = vec![entry(self.case.key(), ["ann", "bob"][self.rng.usize(..2)])];
        if let Some(stream) = stream_key(self.case.algorithm).filter(|_| self.case.is_counted()) {
            entries.push(entry(stream, ["a", "b", "c"][self.rng.usize(..3)]));
        }
        let brought = Override::new(self.rng.u32(1..60), Unit::Second, 1);
        let limit = brought.filter(|_| self.bring_limits && self.rng.bool());
        let mut descriptors = vec![Descriptor { entries, ask, limit }];
        if self.rng.bool() {
            let entries = vec![entry("other", "ann")];
            descriptors.push(Descriptor { entries, ask, limit: None });
        }
        let request = Request { domain: "sim".into(), descriptors };
        let plan = Plan::new(&self.options, &self.rules, &request, Names::Tollgate);
        if plan.refused_refund().is_some() {
            return Vec::new();
        }
        plan.asked().iter().map(|asked| asked.check.clone()).collect()
    }
}

#[test]
fn both_twins_decide_every_pair_of_options_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let mut lua = runtime.block_on(Lua::new(&redis));
    let mut decided = 0;
    for (seed, case) in (0..).zip(cases()) {
        runtime.block_on(lua.forget());
        let (mut requests, mut rust, mut now) = (Requests::new(seed, case), Twin::default(), START);
        requests.bring_limits = case.has("number");
        for _ in 0..12 {
            let hits = [1, 1, 2, 9, 30, 0, -1, -3][requests.rng.usize(..8)];
            now += [0, 1, 40, 300, 2_000, 90_000][requests.rng.usize(..6)];
            let calls: Vec<Vec<Check>> =
                (0..2).map(|_| requests.checks(hits)).filter(|checks| !checks.is_empty()).collect();
            if calls.is_empty() {
                continue;
            }
            let agreed =
                runtime.block_on(twins::agree(&mut lua, &mut rust, &calls, Clocks { redis: now, process: now }));
            decided += agreed.unwrap_or_else(|error| panic!("{}: {error}", case.name())).len();
        }
    }
    assert!(decided > 5_000, "{decided}");
}

/// A limit with two options keeps the promises of both.
#[test]
fn every_pair_of_options_keeps_the_properties_of_its_algorithm() {
    let mut denied = 0;
    for (seed, case) in (0..).zip(cases()).filter(|(_, case)| case.is_counted()) {
        let (mut requests, mut twin, mut now) = (Requests::new(seed, case), Twin::default(), START);
        let mut passed: Vec<(u64, u64, String)> = Vec::new();
        for _ in 0..60 {
            now += [0, 0, 1, 20, 400, 4_000][requests.rng.usize(..6)];
            let hits = [1, 1, 2, 4][requests.rng.usize(..4)];
            // The first is the limit's.
            let Some(check) = requests.checks(hits).into_iter().next() else { panic!("{} asks nothing", case.name()) };
            let checks = std::slice::from_ref(&check);
            let verdict = twin.decide(checks, now)[0].unwrap();
            let at =
                |now: u64, ask: Ask| twin.clone().decide(&[Check { ask, ..check.clone() }], now)[0].unwrap().allowed();
            let told = || format!("{} at {now}: {check:?}: {verdict:?}", case.name());
            let (name, limit) = (check.key.as_str().to_owned(), &check.limit);
            if verdict.allowed() {
                passed.push((now + verdict.own.delay_ms, check.ask.taken(), name.clone()));
            } else if limit.options().initial == Some(Initial::Empty) && verdict.banned_ms().is_some() {
                // A bucket that starts empty may be forgotten while a ban lasts.
                denied += 1;
            } else {
                denied += 1;
                match verdict.together().retry_after_ms {
                    Some(wait) => {
                        assert!(at(now + wait, check.ask), "it does not pass after {wait}: {}", told());
                        assert!(!at(now + wait - 1, check.ask), "it passes before {wait}: {}", told());
                    }
                    None => assert!(!at(now + memory_ms(limit), check.ask), "it can pass: {}", told()),
                }
            }
            // Honest where no ban hides it.
            if verdict.ban.is_none() && limit.options().initial != Some(Initial::Empty) {
                let remaining = verdict.own.remaining;
                assert!(remaining == 0 || at(now, Ask::take(remaining).unwrap()), "fewer remain: {}", told());
                assert!(!at(now, Ask::take(remaining + 1).unwrap()), "more remain: {}", told());
            }
            let within = |from: u64| from..=from + limit.period_ms();
            let sum = |from: u64| -> u64 {
                passed
                    .iter()
                    .filter(|(at, _, of)| *of == name && within(from).contains(at))
                    .map(|(_, hits, _)| hits)
                    .sum()
            };
            for (from, ..) in passed.iter().filter(|(_, _, of)| *of == name) {
                let most = bound(limit, 4 * case.cost());
                assert!(sum(*from) <= most, "{} in a period from {from}, {most} at most: {}", sum(*from), told());
            }
        }
    }
    assert!(denied > 1_000, "{denied}");
}

/// A run for each case, drawn as the simulation draws them.
#[test]
fn the_simulation_keeps_its_promises_with_every_pair_of_options() {
    let cases: Vec<Case> = cases().into_iter().filter(Case::is_counted).collect();
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(seed) else { break };
                    // The hits taken at once must fit into the limit.
                    let is_many = ["lease", "own_share", "cost"].iter().any(|option| case.has(option));
                    let number = if is_many { "MANY" } else { "NUMBER" };
                    let rules = case.rules(number);
                    let scenario = Arc::new(Scenario::new(&rules, &[case.key(), "other"], case.cost()));
                    let wrong = simulation::wrong(&scenario, seed as u64);
                    broken.lock().extend(wrong.map(|wrong| format!("seed {seed} of {}: {wrong}", case.name())));
                }
            });
        }
    });
    let broken = broken.into_inner();
    let first: Vec<_> = broken.iter().take(10).map(|wrong| wrong.chars().take(1_000).collect::<String>()).collect();
    assert!(broken.is_empty(), "{}, of which the first are\n{}", broken.len(), first.join("\n\n"));
    assert!(next.into_inner() > cases.len() && cases.len() > 300, "{}", cases.len());
}
