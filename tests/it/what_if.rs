//! What if: its report equals a replay of the requests with the new number.

use crate::support;

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use support::tollgate::{Tollgate, command};
use support::wait_until;
use tollgate::engine::adjustment::{
    Adjustment, Content, DescriptorPattern, Effect, EntryPattern, Id, InForce, Target, ValuePattern,
};
use tollgate::engine::algorithm::{Algorithm, Ask};
use tollgate::engine::clock::GivenClock;
use tollgate::engine::descriptor::{Descriptor, Entry, Override, Request, Unit};
use tollgate::engine::plan::PlanOptions;
use tollgate::engine::rules::Rules;
use tollgate::engine::wildcard::Wildcard;
use tollgate::evaluate::{Evaluator, LimitReport, RuleSet, Run, RunOptions};
use tollgate::observe::redaction::Values;
use tollgate::observe::what_if::{Adjusted, LONGEST, Others, Question, Trial, WhatIf, WhatIfError, WhatIfOptions};
use tollgate::replay::{Event, MappingOptions, Reading, Requests};
use tollgate::sources::files::load::{self, LoadOptions, NamedText, Sources};

use crate::console::{TOKEN, ask, start};

/// Some time in 2026.
const BEGIN_MS: u64 = 1_767_323_045_000;

fn rules(text: &str) -> Rules {
    let text = NamedText { name: "rules.yaml".into(), bytes: text.as_bytes().to_vec() };
    load::check(&Sources { paths: Vec::new() }, &[text], &LoadOptions::default()).unwrap().rules
}

/// Users and paths have a limit each.
fn shop(algorithm: Algorithm, number: u32, period_ms: u64) -> String {
    let algorithm = algorithm.name();
    format!(
        "{{domain: shop, descriptors: [
           {{key: user, rate_limit: {{name: per-user, period: {period_ms}ms, requests_per_unit: {number},
             algorithm: {algorithm}}}}},
           {{key: path, rate_limit: {{name: paths, unit: minute, requests_per_unit: 3}}}}]}}"
    )
}

fn descriptor(key: &str, value: String, hits: u64) -> Descriptor {
    Descriptor { entries: vec![Entry { key: key.into(), value: value.into() }], ask: Ask::Take(hits), limit: None }
}

fn of(descriptors: Vec<Descriptor>) -> Request {
    Request { domain: "shop".into(), descriptors }
}

/// Requests of users, some with a path as well, with the time since the previous request.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let paths = prop::sample::select(vec!["/a", "/b"]);
    let one = (0..900_u64, 0..12_usize, 0..12_usize, 1..3_u64, prop::option::of(paths));
    prop::collection::vec(one, 1..120).prop_map(|steps| {
        let mut at_ms = BEGIN_MS;
        let event = |(step, one, other, hits, path): (u64, usize, usize, u64, Option<&str>)| {
            at_ms += step;
            let user = descriptor("user", format!("u{}", one.min(other)), hits);
            let path = path.map(|path| descriptor("path", path.to_owned(), 1));
            Event::new(at_ms, of([Some(user), path].into_iter().flatten().collect()))
        };
        steps.into_iter().map(event).collect()
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let all: Vec<Algorithm> = Algorithm::ALL.iter().copied().filter(|algorithm| !algorithm.has_holders()).collect();
    prop::sample::select(all)
}

/// The recorded requests, with a clock set by the test.
struct Scene {
    what_if: WhatIf,
    clock: GivenClock,
}

fn options() -> WhatIfOptions {
    let plan = PlanOptions { shadow_mode: true, ..PlanOptions::default() };
    WhatIfOptions {
        requests: 100_000,
        sample: 1.0,
        covers: Duration::ZERO,
        plan,
        replicas: 1,
        values: Values::Plain,
        instance: "toll-1".into(),
        // Builds without optimization are slow, and so are machines with other work.
        longest: 30 * LONGEST,
    }
}

impl Scene {
    fn new(text: &str, options: WhatIfOptions) -> Scene {
        let clock = GivenClock::default();
        let what_if = WhatIf::new(options, clock.clone());
        what_if.put_in_force(Arc::new(rules(text)));
        Scene { what_if, clock }
    }

    fn see(self, events: &[Event]) -> Scene {
        for Event { at_ms, request, .. } in events {
            self.clock.set(*at_ms);
            self.what_if.offer(request);
            self.what_if.keep();
        }
        self
    }

    /// The requests, as `tollgate replay` reads them.
    fn logged(&self) -> Vec<Event> {
        let log = self.what_if.log(&Others::default()).collect::<String>();
        let (mapping, domain) = (MappingOptions::default(), None);
        let reading = Reading { format: None, mapping, domain, window_ms: 0, is_strict: true };
        let mut requests = Requests::new(vec![(PathBuf::from("log"), Box::new(Cursor::new(log)))], &reading).unwrap();
        std::iter::from_fn(|| requests.next_event().unwrap()).collect()
    }
}

fn question(number: u64) -> Question {
    Question { domain: "shop".into(), rule: "per-user".into(), number: Some(number), ..Question::default() }
}

/// Decisions, denials, keys, keys that are denied: of the limit of users, by a replay of these rules.
fn replayed(text: &str, events: &[Event]) -> (u64, u64, u64, u64) {
    let (rules, options) = (rules(text), PlanOptions::default());
    let mut run = Run::new(RuleSet::new(&rules, &options), RunOptions::default());
    events.iter().for_each(|event| drop(run.decide(event).unwrap()));
    let limits = run.limit_reports(0);
    let limit = limits.iter().find(|limit| limit.rule == "per-user").unwrap();
    (limit.decisions, limit.denied, limit.keys, limit.keys_denied)
}

fn then(trial: &Trial) -> (u64, u64, u64, u64) {
    (trial.then.decisions, trial.then.denied, trial.then.keys, trial.then.keys_denied)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Even if another limit denies the request.
    #[test]
    fn another_limit_does_what_a_replay_of_rules_with_it_says(
        events in events(), old in algorithm(), new in algorithm(), number in 1..8_u32, period_ms in 1..20_000_u64,
    ) {
        let scene = Scene::new(&shop(old, 4, 5_000), options()).see(&events);
        let asked = Question { algorithm: Some(new), period_ms: Some(period_ms), ..question(number.into()) };
        let trial = scene.what_if.ask(&asked, &Others::default()).unwrap();
        prop_assert_eq!(then(&trial), replayed(&shop(new, number, period_ms), &events));
        let now = (trial.now.decisions, trial.now.denied, trial.now.keys, trial.now.keys_denied);
        prop_assert_eq!(now, replayed(&shop(old, 4, 5_000), &events));
        prop_assert_eq!((trial.in_force.number, trial.in_force.algorithm), (4, old.name()));
        let peaks: u64 = trial.peaks.iter().map(|up_to| up_to.keys).sum();
        prop_assert_eq!(peaks, trial.then.keys);
    }

    #[test]
    fn the_number_that_is_found_denies_no_more_and_the_one_before_does(
        events in events(), algorithm in algorithm(), percent in 0..60_u32,
    ) {
        // Only users, because a search ignores other limits.
        let events: Vec<Event> = events.into_iter().map(|mut event| {
            event.request.descriptors.truncate(1);
            event
        }).collect();
        let scene = Scene::new(&shop(algorithm, 3, 5_000), options()).see(&events);
        let goal = format!("deny at most {percent} % of requests").parse().unwrap();
        let trial = scene.what_if.ask(&Question { goal: Some(goal), ..question(3) }, &Others::default()).unwrap();
        let Some(number) = trial.suggestion.unwrap().number else { return Ok(()) };
        let share = |number| {
            let trial = scene.what_if.ask(&question(number), &Others::default()).unwrap();
            trial.then.denied * 100 <= u64::from(percent) * trial.then.decisions
        };
        prop_assert!(share(number) && (number == 1 || !share(number - 1)), "{}", number);
    }

    #[test]
    fn of_a_key_every_request_is_kept_or_none(events in events()) {
        let half = WhatIfOptions { sample: 0.5, ..options() };
        let logged = Scene::new(&shop(Algorithm::FixedWindow, 3, 1_000), half).see(&events).logged();
        let counted = |events: &[Event]| {
            let mut counted: HashMap<Descriptor, usize> = HashMap::new();
            let descriptors = events.iter().flat_map(|event| &event.request.descriptors);
            descriptors.for_each(|descriptor| {
                let key = Descriptor { ask: Ask::Peek, ..descriptor.clone() };
                *counted.entry(key).or_default() += 1;
            });
            counted
        };
        let all = counted(&events);
        let sampled = logged.iter().cloned().map(|mut event| {
            let mut index = 0..;
            let outside = std::mem::take(&mut event.outside);
            event.request.descriptors.retain(|_| index.next().is_some_and(|index| !outside.contains(&index)));
            event
        });
        prop_assert!(counted(&sampled.collect::<Vec<_>>()).iter().all(|(key, times)| all[key] == *times));
    }

    /// All requests of a user ask about the same other keys, which are this user's alone. So a sample that has one of
    /// these keys has all requests of all of them, and is exact.
    #[test]
    fn a_sample_says_of_its_keys_what_all_requests_say(events in events(), algorithm in algorithm()) {
        let text = "{domain: shop, descriptors: [
            {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 4, algorithm: ALGORITHM}},
            {key: plan, rate_limit: {name: paid, unit: minute, requests_per_unit: 6, replaces: [{name: per-user}]}},
            {key: path, rate_limit: {name: paths, unit: minute, requests_per_unit: 3}}]}";
        let text = text.replace("ALGORITHM", algorithm.name());
        let own = |mut event: Event| {
            let user = event.request.descriptors[0].entries[0].value.clone();
            let number: usize = user[1..].parse().unwrap();
            event.request.descriptors.truncate(1);
            let others = [number.is_multiple_of(2).then_some("path"), number.is_multiple_of(3).then_some("plan")];
            let others = others.into_iter().flatten().map(|key| descriptor(key, user.to_string(), 1));
            event.request.descriptors.extend(others);
            event
        };
        let events: Vec<Event> = events.into_iter().map(own).collect();
        let report = |scene: Scene, rule: &str| {
            let question = Question { rule: rule.into(), ..question(4) };
            scene.what_if.ask(&question, &Others::default()).unwrap().then
        };
        for rule in ["per-user", "paid", "paths"] {
            let all = report(Scene::new(&text, options()).see(&events), rule);
            let scene = Scene::new(&text, WhatIfOptions { sample: 0.5, ..options() }).see(&events);
            // `tollgate replay` reports the same for the log of the sample.
            let (rules, plan) = (rules(&text), PlanOptions::default());
            let mut run = Run::new(RuleSet::new(&rules, &plan), RunOptions::default());
            scene.logged().iter().for_each(|event| drop(run.decide(event).unwrap()));
            let replayed = run.limit_reports(0);
            let overview = scene.what_if.overview(&Others::default()).unwrap().rules;
            for line in &overview {
                let LimitReport { decisions, denied, keys, .. } =
                    replayed.iter().find(|limit| limit.rule == line.rule).unwrap();
                prop_assert_eq!((line.decisions, line.denied, line.keys), (*decisions, *denied, *keys));
            }
            prop_assert_eq!(overview.len(), replayed.len());
            let some = report(scene, rule);
            prop_assert!(some.most_denied.iter().all(|key| all.most_denied.contains(key)), "{:?} {:?}", some, all);
            prop_assert!(some.keys <= all.keys && some.denied <= all.denied);
        }
    }

    #[test]
    fn the_log_has_the_requests_as_they_were(events in events()) {
        let scene = Scene::new(&shop(Algorithm::FixedWindow, 3, 1_000), options()).see(&events);
        prop_assert_eq!(scene.logged(), events);
    }
}

/// A rule that another descriptor replaces, or a request that another descriptor denies: both are as they were,
/// although the other descriptor's key is not in the sample.
#[test]
fn whole_requests_are_replayed_where_one_of_their_keys_is_in_the_sample() {
    let text = "{domain: shop, descriptors: [
        {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 5}},
        {key: plan, rate_limit: {name: paid, unit: minute, requests_per_unit: 100, replaces: [{name: per-user}]}},
        {key: network, rate_limit: {name: networks, unit: minute, requests_per_unit: 2}}]}";
    let few = || WhatIfOptions { sample: 0.2, ..options() };
    let is_sampled = |key: &str, value: &str| {
        let request = of(vec![descriptor(key, value.to_owned(), 1)]);
        !Scene::new(text, few()).see(&[Event::new(BEGIN_MS, request)]).logged().is_empty()
    };
    let find =
        |key: &str, wanted: bool| (0..).map(|n| format!("v{n}")).find(|it| is_sampled(key, it) == wanted).unwrap();
    let (user, plan, network) = (find("user", true), find("plan", false), find("network", false));
    let denied = |other: &str, value: &str| {
        let request = of(vec![descriptor("user", user.clone(), 1), descriptor(other, value.to_owned(), 1)]);
        let events: Vec<Event> = (0..20).map(|ms| Event::new(BEGIN_MS + ms, request.clone())).collect();
        let scene = Scene::new(text, few()).see(&events);
        assert_eq!(scene.what_if.overview(&Others::default()).unwrap().kept.requests, 20);
        let rules = scene.what_if.overview(&Others::default()).unwrap().rules;
        rules.iter().map(|line| (line.rule.clone(), line.denied)).collect::<Vec<_>>()
    };
    assert_eq!(denied("plan", &plan), [], "the plan's limit stands in for the user's");
    assert_eq!(denied("network", &network), [("per-user".to_owned(), 0)], "the network denies what the user would not");
}

#[test]
fn logs_of_several_instances_are_joined_and_put_together_exactly() {
    let pair = |user: &str| of(vec![descriptor("user", user.to_owned(), 1), descriptor("path", "/a".to_owned(), 1)]);
    let log = |instance: &str| {
        let options = WhatIfOptions { instance: instance.into(), ..options() };
        let events: Vec<Event> = (0..50).map(|ms| Event::new(BEGIN_MS + ms / 7, pair("ann"))).collect();
        Scene::new(&shop(Algorithm::FixedWindow, 3, 1_000), options)
            .see(&events)
            .what_if
            .log(&Others::default())
            .collect::<String>()
    };
    // The logs of several instances in one file, as written by a log collector or `sort`.
    let (a, b) = (log("a-1"), log("b-2"));
    let mut lines: Vec<&str> = a.lines().chain(b.lines()).collect();
    lines.sort_by_key(|line| line.split(',').next());
    let mixed: Vec<&str> = lines.iter().copied().step_by(2).chain(lines.iter().copied().skip(1).step_by(2)).collect();
    for lines in [lines, mixed] {
        let reading = Reading {
            format: None,
            mapping: MappingOptions::default(),
            domain: None,
            window_ms: 10_000,
            is_strict: true,
        };
        let log = Box::new(Cursor::new(lines.join("\n")));
        let mut requests = Requests::new(vec![(PathBuf::from("log"), log)], &reading).unwrap();
        let events: Vec<Event> = std::iter::from_fn(|| requests.next_event().unwrap()).collect();
        assert_eq!(events.len(), 100);
        assert!(events.iter().all(|event| event.request == pair("ann")));
    }
}

fn of_user(user: &str, times: u64) -> Vec<Event> {
    let request = of(vec![descriptor("user", user.to_owned(), 1)]);
    (0..times).map(|ms| Event::new(BEGIN_MS + ms, request.clone())).collect()
}

#[test]
fn the_log_has_limits_that_requests_bring_along_and_no_hidden_value() {
    let mut events = of_user("zaphod", 3);
    events[0].request.descriptors[0].limit = Override::new(7, Unit::Minute, 1);
    let text = shop(Algorithm::FixedWindow, 3, 1_000);
    assert_eq!(Scene::new(&text, options()).see(&events).logged(), events);
    for values in [Values::Hidden, Values::hashed("a key of sixteen")] {
        let scene = Scene::new(&text, WhatIfOptions { values, ..options() }).see(&events);
        let trial = serde_json::to_string(&scene.what_if.ask(&question(1), &Others::default()).unwrap()).unwrap();
        let log = scene.what_if.log(&Others::default()).collect::<String>();
        assert!(!trial.contains("zaphod") && !log.contains("zaphod"), "{trial} {log}");
        assert!(trial.contains("\"key\":\"user"), "{trial}");
    }
}

#[test]
fn the_last_requests_are_kept_and_no_more_than_were_wanted() {
    let few = WhatIfOptions { requests: 10, ..options() };
    let scene = Scene::new(&shop(Algorithm::FixedWindow, 3, 60_000), few).see(&of_user("ann", 25));
    let overview = scene.what_if.overview(&Others::default()).unwrap();
    assert_eq!((overview.kept.requests, overview.rules.len(), overview.rules[0].denied), (10, 1, 7));
    assert_eq!(scene.logged(), of_user("ann", 25)[15..]);
}

#[test]
fn what_waits_is_bounded_and_what_is_dropped_is_told() {
    let scene = Scene::new(&shop(Algorithm::FixedWindow, 3, 60_000), options());
    let large = of_user(&"x".repeat(60_000), 1);
    (0..100).for_each(|_| scene.what_if.offer(&large[0].request));
    let kept = scene.what_if.overview(&Others::default()).unwrap().kept;
    assert!((20..50).contains(&kept.requests) && kept.requests as u64 + kept.dropped == 100, "{kept:?}");
}

#[test]
fn a_replica_replays_its_part_of_a_limit_and_finds_numbers_of_all() {
    let events = of_user("ann", 8);
    let of = |replicas| {
        let options = WhatIfOptions { replicas, ..options() };
        let scene = Scene::new(&shop(Algorithm::FixedWindow, 100, 60_000), options).see(&events);
        let goal = "deny at most 0 % of users".parse().unwrap();
        let trial = scene.what_if.ask(&Question { goal: Some(goal), ..question(10) }, &Others::default()).unwrap();
        let suggestion = trial.suggestion.unwrap();
        let peak = trial.peaks.iter().find(|up_to| up_to.keys > 0).unwrap().hits;
        (trial.then.denied, &*trial.then.limit == "10 per minute", suggestion.number, suggestion.present, peak)
    };
    assert_eq!(of(1), (0, true, Some(8), 10, 10));
    assert_eq!(of(2), (3, true, Some(16), 10, 20));
}

#[test]
fn where_counters_have_no_room_fewer_keys_are_replayed() {
    let text = shop(Algorithm::SlidingLog, 3, 600_000);
    let scene = Scene::new(&text, options());
    for user in 0..20_000 {
        let event = &of_user(&format!("u{user}"), 1)[0];
        scene.clock.set(event.at_ms + user);
        scene.what_if.offer(&event.request);
        if user % 100 == 0 {
            scene.what_if.keep();
        }
    }
    let all = scene.what_if.ask(&question(3), &Others::default()).unwrap();
    assert_eq!((all.kept.sample_now, all.then.keys), (1.0, all.kept.requests as u64));
    let goal = "deny at most 1 % of users".parse().unwrap();
    let some = scene.what_if.ask(&Question { goal: Some(goal), ..question(3) }, &Others::default()).unwrap();
    assert!(some.kept.sample_now < 0.6 && some.kept.sample_now > 0.1, "{:?}", some.kept);
    assert!(some.then.keys > 1_000 && some.then.keys < all.then.keys * 6 / 10, "{}", some.then.keys);
    assert_eq!(some.suggestion.unwrap().number, Some(1));
}

#[test]
fn by_rules_that_count_other_values_together_it_begins_anew_and_else_it_goes_on() {
    let shared = "{domain: shop, descriptors: [{key: user, value: 'a*', share_threshold: true,
        rate_limit: {name: per-user, unit: minute, requests_per_unit: 3}}]}";
    let plain = shop(Algorithm::FixedWindow, 3, 60_000);
    let scene = Scene::new(&plain, options()).see(&of_user("ann", 5));
    let kept = |text: &str| {
        scene.what_if.put_in_force(Arc::new(rules(text)));
        scene.what_if.overview(&Others::default()).unwrap().kept.requests
    };
    assert_eq!(kept(&shop(Algorithm::FixedWindow, 4, 60_000)), 5);
    assert_eq!(kept(shared), 0);
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let text = "{domain: shop, descriptors: [
        {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 3}},
        {key: path, rate_limit: {name: free, unlimited: true}},
        {key: route, descriptors: [{key: stream, rate_limit:
          {name: streams, hold: 1m, requests_per_unit: 3, algorithm: concurrency}}]}]}";
    let scene = Scene::new(text, options()).see(&of_user("ann", 1));
    let asked = |rule: &str, other: Question| {
        scene.what_if.ask(&Question { rule: rule.into(), ..other }, &Others::default()).unwrap_err().to_string()
    };
    assert_eq!(asked("nobody", question(1)), "the rules in force have no limit nobody in the domain shop");
    assert_eq!(asked("free", question(1)), "the rules in force have no limit free in the domain shop");
    let streams = "a limit of concurrency cannot be replayed: no request says when a stream ends";
    assert_eq!(asked("streams", question(1)), streams);
    let concurrency = Question { algorithm: Some(Algorithm::Concurrency), ..question(1) };
    assert_eq!(asked("per-user", concurrency), streams);
    let log = Question { algorithm: Some(Algorithm::SlidingLog), ..question(u32::MAX.into()) };
    assert!(asked("per-user", log).starts_with("a sliding log stores every hit"), "told by the algorithm");
    let none = WhatIf::new(options(), GivenClock::default());
    assert!(matches!(none.overview(&Others::default()), Err(WhatIfError::NoRules)));
}

fn told(service: &Tollgate, query: &str) -> Value {
    let (status, told) = service.admin("GET", &format!("/what-if{query}"), TOKEN);
    assert_eq!(status, 200, "{told}");
    told
}

#[test]
fn a_service_tells_whom_another_number_would_deny() {
    let service = start(&["WHAT_IF_REQUESTS=1000", "WHAT_IF_SAMPLE=1"]);
    for _ in 0..5 {
        ask(&service, "user", "ann");
    }
    ask(&service, "user", "bob");
    wait_until("they are kept", || told(&service, "")["requests"] == 6);
    let line = &told(&service, "")["rules"][0];
    assert_eq!((&line["rule"], &line["decisions"], &line["denied"]), (&"per-user".into(), &6.into(), &3.into()));
    let query = "?domain=shop&rule=per-user&number=4&suggest=deny+at+most+0+%25+of+users";
    let trial = told(&service, query);
    assert_eq!((&trial["now"]["denied"], &trial["then"]["denied"]), (&3.into(), &1.into()));
    let most = serde_json::json!([{ "key": "user=ann", "decisions": 5, "denied": 1 }]);
    assert_eq!((&trial["then"]["keys"], &trial["then"]["most_denied"]), (&2.into(), &most));
    assert_eq!(trial["suggestion"]["number"], 5);
    assert_eq!(
        trial["peaks"],
        serde_json::json!([{"hits": 1, "keys": 1}, {"hits": 2, "keys": 0}, {"hits": 5, "keys": 1}])
    );
    // It counts nothing.
    let (_, counters) = service.admin("GET", "/counters?domain=shop&user=bob", TOKEN);
    assert_eq!(counters[0]["remaining"], 1);

    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let (_, log) = service.send("GET", "/what-if/log", &headers, b"");
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(lines.len(), 6, "{log}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("requests.log"), lines.join("\n")).unwrap();
    let rules = service.rules.path().join("rules.yaml");
    let mut replay = command();
    replay.args(["replay", "--json", "--rules"]).arg(rules).arg(folder.path().join("requests.log"));
    let output = replay.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["denied"]), (&6.into(), &3.into()));
}

/// A log whose client stops reading keeps the requests of the time when it was requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_logs_are_begun_than_may_be_read_at_once() {
    let service = start(&["WHAT_IF_REQUESTS=100000", "WHAT_IF_SAMPLE=1"]);
    // Far more than the buffers of a connection hold.
    let mut client = service.client().await;
    let value = "x".repeat(400);
    let mut request = support::tollgate::request("shop", &[&[("user", &value)]]);
    request.descriptors = vec![request.descriptors[0].clone(); 20];
    for _ in 0..1_000 {
        client.should_rate_limit(request.clone()).await.unwrap();
    }
    let status = || service.send("GET", "/what-if/log", &[("authorization", &*format!("Bearer {TOKEN}"))], b"").0;
    let begin = || {
        let mut reader = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
        write!(reader, "GET /what-if/log HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {TOKEN}\r\n\r\n").unwrap();
        // It has started, and pauses there.
        reader.read_exact(&mut [0; 100]).unwrap();
        reader
    };
    let readers = [begin(), begin()];
    assert_eq!(status(), 429);
    drop(readers);
    wait_until("the next may begin", || status() == 200);
}

#[test]
fn it_is_on_unless_it_is_unwanted_and_needs_a_token() {
    let without = start(&["WHAT_IF_REQUESTS=0"]);
    for path in ["/what-if", "/what-if/log"] {
        let (status, said) = without.admin("GET", path, TOKEN);
        assert!(status == 404 && said["error"].as_str().unwrap().contains("set WHAT_IF_REQUESTS"), "{said}");
    }
    let service = start(&["ADMIN_READ_TOKEN=another token of some length"]);
    for path in ["/what-if", "/what-if/log"] {
        assert_eq!(service.admin("GET", path, "").0, 401);
        assert_eq!(service.admin("POST", path, TOKEN).0, 405);
    }
    assert_eq!(service.admin("GET", "/what-if", "another token of some length").0, 200);
    for (query, status, right) in [
        ("?rule=per-user", 400, "name a limit"),
        ("?domain=shop&rule=nobody", 404, "no limit nobody"),
        ("?domain=shop&rule=per-user&number=many", 400, "write a whole number"),
        ("?domain=shop&rule=per-user&number=-1", 400, "write a whole number"),
        ("?domain=shop&rule=per-user&period_ms=0", 400, "a period is a whole number of milliseconds"),
        ("?domain=shop&rule=per-user&algorithm=gcra", 400, "write one of fixed_window, sliding_window"),
        ("?domain=shop&rule=per-user&suggest=less", 400, "deny at most"),
        ("?domain=shop&rule=per-user&colour=red", 400, "the parameters are domain, rule"),
    ] {
        let (told, said) = service.admin("GET", &format!("/what-if{query}"), TOKEN);
        assert!(told == status && said["error"].as_str().unwrap().contains(right), "{query}: {told} {said}");
    }
}

#[test]
fn keys_are_told_apart_by_name_up_to_a_bound() {
    let events: Vec<Event> = (0..60).flat_map(|user| of_user(&format!("u{user:02}"), 2)).collect();
    let text = shop(Algorithm::SlidingLog, 3, 60_000);
    let mut sorted = events.clone();
    sorted.sort_by_key(|event| event.at_ms);
    let trial = Scene::new(&text, options()).see(&sorted).what_if.ask(&question(1), &Others::default()).unwrap();
    let names: HashSet<&str> = trial.then.most_denied.iter().map(|key| &*key.key).collect();
    assert_eq!((names.len(), trial.then.keys_denied), (25, 60));
}

/// Requests of many users, spread evenly: so many users, each with one request in its turn, every so many milliseconds.
fn traffic(users: u64, every_ms: u64, begin_ms: u64, requests: u64) -> impl Iterator<Item = Event> {
    (0..requests).map(move |at| {
        Event::new(begin_ms + at * every_ms, of(vec![descriptor("user", format!("u{}", at % users), 1)]))
    })
}

fn adaptive(requests: usize) -> WhatIfOptions {
    WhatIfOptions { requests, covers: Duration::from_secs(300), ..options() }
}

#[test]
fn a_quiet_service_records_all_keys_and_a_busy_one_a_share_of_them_completely() {
    let text = shop(Algorithm::FixedWindow, 3, 60_000);
    let quiet = Scene::new(&text, adaptive(1_000)).see(&traffic(50, 1_000, BEGIN_MS, 2_000).collect::<Vec<_>>());
    let kept = quiet.what_if.overview(&Others::default()).unwrap().kept;
    assert_eq!((kept.sample_now, kept.requests, kept.seconds), (1.0, 1_000, 999));
    // 20 requests a second would fill the ring in 50 seconds.
    let events: Vec<Event> = traffic(2_000, 50, BEGIN_MS, 20_000).collect();
    let busy = Scene::new(&text, adaptive(1_000)).see(&events);
    let kept = busy.what_if.overview(&Others::default()).unwrap().kept;
    assert!(kept.sample_now < 0.3 && kept.sample_now > 0.03, "{kept:?}");
    assert!(kept.seconds >= 150 && kept.requests >= 300, "{kept:?}");
    let logged = busy.logged();
    let keys: HashSet<&Request> = logged.iter().map(|event| &event.request).collect();
    let first = logged[0].at_ms;
    let of_keys = events.iter().filter(|event| event.at_ms >= first && keys.contains(&event.request));
    assert_eq!(of_keys.count(), logged.len());
}

#[test]
fn with_less_traffic_for_an_hour_more_keys_are_recorded_again() {
    let text = shop(Algorithm::FixedWindow, 3, 60_000);
    let busy: Vec<Event> = traffic(2_000, 10, BEGIN_MS, 40_000).collect();
    let scene = Scene::new(&text, adaptive(1_000)).see(&busy);
    let share = |scene: &Scene| scene.what_if.overview(&Others::default()).unwrap().kept.sample_now;
    let few = share(&scene);
    let later = busy.last().unwrap().at_ms;
    let scene = scene.see(&traffic(2_000, 10_000, later, 2_000).collect::<Vec<_>>());
    assert!(share(&scene) > 3.0 * few, "{few} {}", share(&scene));
}

#[test]
fn the_only_key_of_a_busy_service_is_recorded_for_a_while_and_then_again() {
    let text = shop(Algorithm::FixedWindow, 3, 60_000);
    let all: Vec<Event> = traffic(1, 1, BEGIN_MS, 60_000).collect();
    let scene = Scene::new(&text, adaptive(1_000)).see(&all);
    let kept = scene.what_if.overview(&Others::default()).unwrap().kept;
    assert!(kept.requests > 900 && kept.sample_now > 0.0, "{kept:?}");
    let logged = scene.logged();
    assert!(logged.windows(2).all(|pair| pair[1].at_ms - pair[0].at_ms == 1), "no request is missing in between");
    assert!(logged[0].at_ms > BEGIN_MS + 10_000, "the oldest are gone");
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_the_recorder() {
    let text = shop(Algorithm::FixedWindow, 3, 60_000);
    let hour = 3_600_000;
    let scene = Scene::new(&text, adaptive(500)).see(&traffic(1, 1, BEGIN_MS + hour, 5_000).collect::<Vec<_>>());
    let scene = scene.see(&traffic(1, 1, BEGIN_MS, 5_000).collect::<Vec<_>>());
    let kept = scene.what_if.overview(&Others::default()).unwrap().kept;
    assert!(kept.requests > 0 && kept.seconds >= 1 && kept.seconds < 60, "{kept:?}");
}

/// An adjustment of the limit of users.
fn adjustment(id: u64, effect: Effect, target: Target) -> Arc<Adjustment> {
    let content = Content { target, effect, hours: None, who: "ann".into(), why: "a test".into() };
    Arc::new(Adjustment { id: Id::of_number(id), content, since_ms: id, until_ms: u64::MAX })
}

fn effects() -> impl Strategy<Value = Effect> {
    prop_oneof![
        (1..8_u64).prop_map(Effect::Number),
        Just(Effect::Pass),
        Just(Effect::Block),
        Just(Effect::Shadow),
        Just(Effect::Enforce),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_preview_counts_what_two_services_decide_differently(
        events in events(), algorithm in algorithm(), before in prop::option::of(effects()), effect in effects(),
        by_pattern in any::<bool>(),
    ) {
        let text = shop(algorithm, 4, 5_000);
        let plain = WhatIfOptions { plan: PlanOptions::default(), ..options() };
        let scene = Scene::new(&text, plain).see(&events);
        // The limit of all users is that of all descriptors with any user.
        let any = EntryPattern { key: "user".into(), value: ValuePattern::Like(Wildcard::new("*")) };
        let descriptors = vec![DescriptorPattern(vec![any])];
        let target = || match by_pattern {
            false => Target::Rule { domain: "shop".into(), rule: "per-user".into() },
            true => Target::Descriptors { domain: "shop".into(), descriptors: descriptors.clone() },
        };
        let before: Vec<_> = before.map(|effect| adjustment(1, effect, target())).into_iter().collect();
        let (before, new) = (InForce::new(before), adjustment(2, effect, target()));
        let after = before.with((*new).clone());
        let rules = rules(&text);
        let adjusted = Adjusted { rules: &rules, before: Some(&before), after: &after, id: &new.id };
        let preview = scene.what_if.preview(adjusted, &Others::default()).unwrap();
        let plan = PlanOptions::default();
        let decided = |adjustments| {
            let evaluator = Evaluator::new(1 << 20);
            let set = RuleSet { adjustments: Some(adjustments), ..RuleSet::new(&rules, &plan) };
            let decide = |event: &Event| evaluator.decide(&set, event.into()).unwrap().unwrap().over_limit;
            events.iter().map(decide).collect::<Vec<_>>()
        };
        let (old, new) = (decided(&before), decided(&after));
        let count = |wanted: (bool, bool)| old.iter().zip(&new).filter(|(a, b)| (**a, **b) == wanted).count();
        let rate = |count: usize| Some((count as f64 / preview.seconds as f64 * 100.0).round() / 100.0);
        prop_assert_eq!(adjusted.limits(), 1);
        prop_assert_eq!(preview.requests_per_s, rate(events.len()));
        prop_assert_eq!(preview.denied_per_s, rate(count((false, true))));
        prop_assert_eq!(preview.allowed_per_s, rate(count((true, false))));
    }
}

#[test]
fn a_preview_scales_a_sample_and_does_not_guess_about_one_key() {
    let text = shop(Algorithm::FixedWindow, 3, 3_600_000);
    let events: Vec<Event> = traffic(4_000, 10, BEGIN_MS, 40_000).collect();
    let scene =
        Scene::new(&text, WhatIfOptions { sample: 0.25, plan: PlanOptions::default(), ..options() }).see(&events);
    let rules = rules(&text);
    let ask = |effect, target: Target| {
        let new = adjustment(1, effect, target);
        let after = InForce::default().with((*new).clone());
        scene
            .what_if
            .preview(Adjusted { rules: &rules, before: None, after: &after, id: &new.id }, &Others::default())
            .unwrap()
    };
    let all = ask(Effect::Block, Target::Domain("shop".into()));
    let [touched, denied] = [all.requests_per_s, all.denied_per_s].map(|rate| rate.unwrap() / 100.0);
    assert!((touched - 1.0).abs() < 0.1, "{all:?}");
    // Each user's first 3 of 10 requests have passed.
    assert!((denied - 0.3).abs() < 0.05 && (3_500..4_500).contains(&all.keys.unwrap()), "{all:?}");
    let entries = |user: u64| vec![Entry { key: "user".into(), value: format!("u{user}").into() }];
    let of_user = |user| ask(Effect::Block, Target::descriptor("shop", &entries(user)));
    let (known, unknown): (Vec<_>, Vec<_>) = (0..40).map(of_user).partition(|preview| preview.keys.is_some());
    assert!(known.len() > 2 && unknown.len() > 10);
    assert!(known.iter().all(|one| one.keys == Some(1) && one.denied_per_s == Some(0.01)), "{known:?}");
    assert!(unknown.iter().all(|one| one.denied_per_s.is_none() && one.examples.is_empty()), "{unknown:?}");
}

#[test]
fn a_preview_without_requests_or_of_concurrency_says_that_it_does_not_know() {
    let text = "{domain: shop, descriptors: [{key: route, descriptors: [{key: stream, rate_limit:
          {name: streams, hold: 1m, requests_per_unit: 3, algorithm: concurrency}}]}]}";
    let scene = Scene::new(text, options());
    let rules = rules(text);
    let ask = |effect| {
        let new = adjustment(1, effect, Target::Domain("shop".into()));
        let after = InForce::default().with((*new).clone());
        let adjusted = Adjusted { rules: &rules, before: None, after: &after, id: &new.id };
        (adjusted.limits(), scene.what_if.preview(adjusted, &Others::default()).unwrap())
    };
    let (limits, preview) = ask(Effect::Number(1));
    assert_eq!((limits, preview.keys, preview.seconds), (1, None, 0));
    let [route, stream] =
        [("route", "/a"), ("stream", "1")].map(|(key, value)| Entry { key: key.into(), value: value.into() });
    let request = of(vec![Descriptor { entries: vec![route, stream], ask: Ask::Take(1), limit: None }]);
    scene.clock.set(BEGIN_MS);
    scene.what_if.offer(&request);
    let (_, preview) = ask(Effect::Number(1));
    assert_eq!((preview.keys, preview.denied_per_s), (Some(1), None));
    let (_, preview) = ask(Effect::Block);
    assert!(preview.denied_per_s.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn proposed_rules_are_compared_as_two_services_would_decide(
        events in events(), old in algorithm(), new in algorithm(), number in 1..8_u32,
    ) {
        let (old, new) = (shop(old, 4, 5_000), shop(new, number, 5_000));
        let scene = Scene::new(&old, options()).see(&events);
        let sets = [rules(&old), rules(&new)];
        let compared = scene.what_if.compare("shop", (&sets[0], &sets[1]), &Others::default()).unwrap();
        let plan = PlanOptions::default();
        let [old, new] = sets.each_ref().map(|rules| {
            let (evaluator, set) = (Evaluator::new(1 << 20), RuleSet::new(rules, &plan));
            let decide = |event: &Event| evaluator.decide(&set, event.into()).unwrap().unwrap().over_limit;
            events.iter().map(decide).collect::<Vec<_>>()
        });
        let count = |wanted: (bool, bool)| old.iter().zip(&new).filter(|(a, b)| (**a, **b) == wanted).count() as u64;
        let found = &compared.differences;
        prop_assert_eq!((found.newly_denied, found.newly_allowed), (count((false, true)), count((true, false))));
        prop_assert_eq!(found.compared, events.len() as u64);
        let other = scene.what_if.compare("bank", (&sets[0], &sets[1]), &Others::default()).unwrap();
        prop_assert_eq!((other.differences.compared, other.keys), (0, 0));
    }
}

/// Sends a POST with this token; returns the status and the body.
fn post(service: &Tollgate, path: &str, token: &str, body: &str) -> (u16, Value) {
    let (status, text) = service.send("POST", path, &[("authorization", &format!("Bearer {token}"))], body.as_bytes());
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

const READER: &str = "another token of some length";

#[test]
fn pasted_rules_are_checked_compared_and_made_a_patch() {
    let service = start(&[&format!("ADMIN_READ_TOKEN={READER}")]);
    for _ in 0..4 {
        ask(&service, "user", "ann");
    }
    wait_until("they are kept", || told(&service, "")["requests"] == 4);
    let file = std::fs::read_to_string(service.rules.path().join("rules.yaml")).unwrap();
    let (status, same) = post(&service, "/what-if/rules", READER, &file);
    assert_eq!(
        (status, &same["ok"], &same["newly_denied"], &same["patch"]),
        (200, &true.into(), &0.into(), &Value::Null)
    );
    let more = file.replacen("requests_per_unit: 2", "requests_per_unit: 3", 1);
    assert_ne!(more, file);
    let (_, report) = post(&service, "/what-if/rules", TOKEN, &more);
    assert_eq!((&report["ok"], &report["newly_allowed"], &report["requests"]), (&true.into(), &1.into(), &4.into()));
    assert_eq!(report["instances"]["answered"], 1);
    assert_eq!(report["rules"][0]["examples"][0]["asked"], "user=ann");
    assert!(report["changes"][0].as_str().unwrap().contains("requests_per_unit 2 -> 3"), "{report}");
    assert!(report["patch"].as_str().unwrap().starts_with("--- a/rules.yaml\n+++ b/rules.yaml\n@@ "), "{report}");

    let (status, wrong) = post(&service, "/what-if/rules", READER, &file.replacen("unit", "unti", 1));
    assert_eq!((status, &wrong["ok"], &wrong["requests"]), (200, &false.into(), &Value::Null));
    let mistakes = wrong["mistakes"].as_str().unwrap();
    assert!(mistakes.starts_with("pasted.yaml:") && mistakes.contains('^'), "{mistakes}");

    assert_eq!(post(&service, "/what-if/rules", "", &file).0, 401);
    assert_eq!(post(&service, "/what-if/rules?colour=red", TOKEN, &file).0, 400);
    assert_eq!(post(&service, "/what-if/rules", TOKEN, &"#".repeat((1 << 20) + 1)).0, 413);
    assert_eq!(service.admin("GET", "/what-if/rules", TOKEN).0, 405);
    // Nothing was put in force.
    assert_eq!(std::fs::read_to_string(service.rules.path().join("rules.yaml")).unwrap(), file);
    let without = start(&["WHAT_IF_REQUESTS=0"]);
    let (_, report) = post(&without, "/what-if/rules", TOKEN, &more);
    assert_eq!((&report["ok"], &report["requests"]), (&true.into(), &Value::Null));
    assert!(report["patch"].is_string());
}

#[test]
fn rules_may_change_while_others_are_compared_with_them() {
    let service = start(&[]);
    ask(&service, "user", "ann");
    let file = std::fs::read_to_string(service.rules.path().join("rules.yaml")).unwrap();
    let others = [file.replacen("requests_per_unit: 2", "requests_per_unit: 7", 1), file.clone()];
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| (0..15).map(|_| post(&service, "/what-if/rules", TOKEN, &file).0).collect::<Vec<_>>())
            })
            .collect();
        (0..10).for_each(|turn| service.change_rules(&others[turn % 2]));
        let statuses = askers.into_iter().flat_map(|asker| asker.join().unwrap());
        assert!(statuses.into_iter().all(|status| status == 200));
    });
}

#[test]
fn an_adjustment_is_previewed_and_not_begun() {
    let service = start(&[&format!("ADMIN_READ_TOKEN={READER}"), "TOP_KEYS_VALUES=hidden"]);
    for _ in 0..2 {
        ask(&service, "user", "zaphod");
    }
    wait_until("they are kept", || told(&service, "")["requests"] == 2);
    let of = |body: Value| post(&service, "/adjustments/preview", READER, &body.to_string());
    let block = serde_json::json!({ "effect": "block", "domain": "shop", "rule": "per-user" });
    let (status, preview) = of(block);
    assert_eq!((status, &preview["limits"], &preview["keys"]), (200, &1.into(), &1.into()), "{preview}");
    assert!(preview["denied_per_s"].as_f64().unwrap() > 0.0, "{preview}");
    assert_eq!(preview["examples"], serde_json::json!(["user"]), "values are hidden");
    assert_eq!((&preview["sample"], &preview["instances"]["of"]), (&1.0.into(), &1.into()));
    let (_, list) = service.admin("GET", "/adjustments", TOKEN);
    assert_eq!(list, serde_json::json!([]));

    let (status, said) = of(serde_json::json!({ "effect": "block", "domain": "shop", "rule": "gone" }));
    assert!(status == 404 && said["error"].as_str().unwrap().contains("no rule gone"), "{said}");
    let (status, said) = of(serde_json::json!({ "effect": "number", "domain": "shop" }));
    assert!(status == 400 && said["error"].as_str().unwrap().contains("number: write"), "{said}");
    let smaller = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let (_, hidden) = post(&service, "/what-if/rules", READER, smaller);
    let (_, shown) = post(&service, "/what-if/rules", TOKEN, smaller);
    assert!(hidden["patch"].is_null() && hidden["changes"] == serde_json::json!([]), "{hidden}");
    assert!(shown["patch"].is_string() && shown["changes"] != serde_json::json!([]), "{shown}");
    let rule = service.admin("GET", "/rules", TOKEN).1["limits"][0].clone();
    let path = format!("/rules/one?domain=shop&rule={}", rule["rule"].as_str().unwrap());
    assert!(service.admin("GET", &path, READER).1["yaml"].is_null());
    assert!(service.admin("GET", &path, TOKEN).1["yaml"].is_string());
    assert_eq!(post(&service, "/adjustments/preview", READER, "[").0, 400);
    assert_eq!(post(&service, "/adjustments", READER, "{}").0, 403);

    let without = start(&["WHAT_IF_REQUESTS=0"]);
    let block = serde_json::json!({ "effect": "scale", "share": "50%", "everything": true }).to_string();
    let (_, preview) = post(&without, "/adjustments/preview", TOKEN, &block);
    assert!(preview["limits"].as_u64().unwrap() > 0 && preview["keys"].is_null(), "{preview}");
}

/// Requests spread over instances, and those of one instance that has all: the same answers.
#[test]
fn the_requests_of_several_instances_are_one_stream() {
    let text = shop(Algorithm::SlidingLog, 3, 60_000);
    let events: Vec<Event> = (0..40)
        .flat_map(|turn| {
            let users = (0..20).map(move |user| (turn, user));
            users.map(|(turn, user)| {
                let at_ms = BEGIN_MS + turn * 10_000 + user * 7;
                Event::new(at_ms, of(vec![descriptor("user", format!("u{user}"), 1 + turn % 2)]))
            })
        })
        .collect();
    let whole = Scene::new(&text, options()).see(&events);
    let part = |index: usize| {
        let own: Vec<Event> = events.iter().skip(index).step_by(3).cloned().collect();
        let few = WhatIfOptions { replicas: 3, instance: format!("i-{index}"), ..options() };
        let scene = Scene::new(&text, few).see(&own);
        scene.clock.set(events.last().unwrap().at_ms);
        scene
    };
    let parts = [0, 1, 2].map(part);
    let sent = |scene: &Scene, halvings: u32| {
        let recorded = serde_json::to_vec(&scene.what_if.recorded(halvings).unwrap()).unwrap();
        serde_json::from_slice(&recorded).unwrap()
    };
    let others = |halvings: u32| Others {
        recorded: vec![("i-1".into(), sent(&parts[1], 0)), ("i-2".into(), sent(&parts[2], halvings))],
        missing: 0,
        are_known: true,
    };
    let all = parts[0].what_if.ask(&question(2), &others(0)).unwrap();
    let expected = whole.what_if.ask(&question(2), &Others::default()).unwrap();
    assert_eq!(then(&all), then(&expected));
    assert_eq!((all.kept.replicas, all.kept.requests, &all.peaks), (1, events.len(), &expected.peaks));
    // The smallest share wins, and is complete.
    let half = parts[0].what_if.ask(&question(2), &others(1)).unwrap();
    assert!((half.kept.sample_now - 0.5).abs() < 1e-9 && half.then.keys < 20 && half.then.keys > 2, "{half:?}");
    assert_eq!(half.then.decisions, half.then.keys * 40);
    // The log has the lines of all, in order.
    let log: String = parts[0].what_if.log(&others(0)).collect();
    let times: Vec<&str> = log.lines().map(|line| &line[..40]).collect();
    assert!(log.lines().count() == events.len() && times.is_sorted());
    assert!(["i-0", "i-1", "i-2"].iter().all(|id| log.contains(&format!("\"instance\":\"{id}\""))));
    // Without one of them, the rates are scaled.
    let rules = rules(&text);
    let new = adjustment(1, Effect::Block, Target::Domain("shop".into()));
    let after = InForce::default().with((*new).clone());
    let adjusted = Adjusted { rules: &rules, before: None, after: &after, id: &new.id };
    let rate = |others: &Others| parts[0].what_if.preview(adjusted, others).unwrap().requests_per_s.unwrap();
    let without = Others { missing: 1, recorded: others(0).recorded[..1].to_vec(), are_known: true };
    let (full, scaled) = (rate(&others(0)), rate(&without));
    assert!((full - scaled).abs() < 0.1 * full, "{full} {scaled}");
}

#[test]
fn two_services_with_one_redis_replay_the_requests_of_both() {
    let redis = support::redis::Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let services = [(); 2].map(|()| start(&[&url, "REDIS_TIMEOUT=20s"]));
    for service in &services {
        for _ in 0..3 {
            ask(service, "user", "ann");
        }
    }
    wait_until("both answer", || {
        let both = told(&services[0], "");
        both["instances"]["answered"] == 2 && both["requests"] == 6
    });
    let both = told(&services[0], "");
    assert_eq!((&both["rules"][0]["denied"], &both["replicas"]), (&4.into(), &1.into()), "{both}");
    let own = told(&services[0], "?instance=self");
    assert_eq!((&own["requests"], &own["instances"]["of"]), (&3.into(), &1.into()), "{own}");
    wait_until("both answer the other", || told(&services[1], "")["requests"] == 6);
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let (_, log) = services[1].send("GET", "/what-if/log", &headers, b"");
    assert_eq!(log.lines().filter(|line| line.starts_with('{')).count(), 6, "{log}");
    let mut replay = command();
    replay.args(["replay", "--json", "--rules"]).arg(services[0].rules.path());
    replay.args(["--fleet", &format!("http://127.0.0.1:{}", services[0].http_port), "--admin-token", TOKEN]);
    let output = replay.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["denied"]), (&6.into(), &4.into()));
    let block = serde_json::json!({ "effect": "block", "domain": "shop", "rule": "per-user" });
    let (_, preview) = post(&services[1], "/adjustments/preview", TOKEN, &block.to_string());
    assert_eq!((&preview["instances"]["answered"], &preview["keys"]), (&2.into(), &1.into()), "{preview}");
}
