//! Candidate rules: what differs is what the rules say, nothing else notices them, and they can take the rules' place.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use support::limits::{length_of, stream_key};
use support::redis::Redis;
use support::tollgate::{Tollgate, command};
use support::wait_until;
use tempfile::TempDir;
use tollgate::engine::algorithm::{Algorithm, Ask};
use tollgate::engine::clock::GivenClock;
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::engine::plan::PlanOptions;
use tollgate::engine::rules::Rules;
use tollgate::evaluate::{RuleSet, Run, RunOptions};
use tollgate::limiter::{Deadlines, Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::observe::Observers;
use tollgate::observe::candidates::{CandidateOptions, Candidates, Report};
use tollgate::observe::redaction::Values;
use tollgate::replay::Event;
use tollgate::sources::files::load::{self, LoadOptions, NamedText, Sources};
use tollgate::store::memory::MemoryStore;

use super::console::TOKEN;

/// Some time in 2026.
const BEGIN_MS: u64 = 1_767_323_045_000;

fn rules(text: &str) -> Rules {
    let text = NamedText { name: "rules.yaml".into(), bytes: text.as_bytes().to_vec() };
    load::check(&Sources { paths: Vec::new() }, &[text], &LoadOptions::default()).unwrap().rules
}

/// Users and paths have a limit each, and all paths of the admin share one.
fn shop(algorithm: Algorithm, number: u32) -> String {
    let period = length_of(algorithm, "unit: minute", "1m");
    let limit = format!(
        "rate_limit: {{name: per-user, {period}, requests_per_unit: {number}, algorithm: {}}}",
        algorithm.name()
    );
    let of_users = match stream_key(algorithm) {
        Some(key) => format!("descriptors: [{{key: {key}, {limit}}}]"),
        None => limit,
    };
    format!(
        "{{domain: shop, descriptors: [
           {{key: user, {of_users}}},
           {{key: path, rate_limit: {{unit: minute, requests_per_unit: 9}}}},
           {{key: path, value: '/admin*', share_threshold: true,
             rate_limit: {{unit: minute, requests_per_unit: 5}}}}]}}"
    )
}

/// Returns the same requests, each with its own stream if the algorithm needs one.
fn asking(algorithm: Algorithm, mut events: Vec<Event>) -> Vec<Event> {
    let Some(key) = stream_key(algorithm) else { return events };
    for (number, event) in events.iter_mut().enumerate() {
        let stream = Entry { key: key.into(), value: format!("s{number}").into() };
        event.request.descriptors[0].entries.push(stream);
    }
    events
}

fn descriptor(key: &str, value: String, hits: u64) -> Descriptor {
    Descriptor { entries: vec![Entry { key: key.into(), value: value.into() }], ask: Ask::Take(hits), limit: None }
}

/// Requests of users, some with a path as well, with the time since the previous request.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let paths = prop::sample::select(vec!["/a", "/b", "/admin/x", "/admin/y"]);
    let one = (0..8_000_u64, 0..12_usize, 0..12_usize, 1..3_u64, prop::option::of(paths));
    prop::collection::vec(one, 1..150).prop_map(|steps| {
        let mut at_ms = BEGIN_MS;
        let event = |(step, one, other, hits, path): (u64, usize, usize, u64, Option<&str>)| {
            at_ms += step;
            let user = descriptor("user", format!("u{}", one.min(other)), hits);
            let path = path.map(|path| descriptor("path", path.to_owned(), 1));
            let descriptors = [Some(user), path].into_iter().flatten().collect();
            Event::new(at_ms, Request { domain: "shop".into(), descriptors })
        };
        steps.into_iter().map(event).collect()
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL.to_vec())
}

/// Candidates on a clock that the test sets, and the metrics that they are counted in.
struct Tried {
    candidates: Arc<Candidates>,
    clock: GivenClock,
    metrics: Metrics,
}

impl Tried {
    fn new(sample: f64, most_bytes: usize) -> Tried {
        Tried::showing(Values::Plain, sample, most_bytes)
    }

    fn showing(values: Values, sample: f64, most_bytes: usize) -> Tried {
        let (clock, metrics) = (GivenClock::default(), Metrics::new(0.8).unwrap());
        let plan = PlanOptions { shadow_mode: true, ..PlanOptions::default() };
        let options = CandidateOptions { files: vec!["next".into()], plan, replicas: 1, sample, most_bytes, values };
        let counted = metrics.candidates().unwrap();
        Tried { candidates: Arc::new(Candidates::new(options, clock.clone(), counted)), clock, metrics }
    }

    fn of(in_force: &str, candidates: &str, sample: f64) -> Tried {
        let tried = Tried::new(sample, 32 << 20);
        tried.candidates.put_in_force(Arc::new(rules(in_force)));
        tried.candidates.settle(Ok(rules(candidates)));
        tried
    }

    fn see(&self, events: &[Event]) -> Report {
        for Event { at_ms, request, .. } in events {
            self.clock.set(*at_ms);
            self.candidates.offer(request, None);
        }
        self.candidates.evaluate();
        self.candidates.report()
    }

    fn text(&self) -> String {
        String::from_utf8(self.metrics.render().unwrap()).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rules_that_say_the_same_never_differ(
        events in events(), algorithm in algorithm(), sample in prop::sample::select(vec![1.0, 0.5, 0.1]),
    ) {
        let (text, events) = (shop(algorithm, 3), asking(algorithm, events));
        let tried = Tried::of(&text, &text, sample);
        let report = tried.see(&events);
        prop_assert_eq!((report.differences.newly_denied, report.differences.newly_allowed), (0, 0), "{:?}", report);
        if sample == 1.0 {
            prop_assert_eq!(report.differences.compared, events.len() as u64);
        }
        prop_assert!(report.changes.is_empty());
    }

    #[test]
    fn what_differs_is_what_a_replay_of_the_same_requests_says(
        events in events(), algorithm in algorithm().prop_filter("replayed", |algorithm| !algorithm.has_holders()),
    ) {
        let (old, new) = (shop(algorithm, 4), shop(algorithm, 2));
        let report = Tried::of(&old, &new, 1.0).see(&events);
        let (old, new, options) = (rules(&old), rules(&new), PlanOptions::default());
        let run = |rules| Run::new(RuleSet::new(rules, &options), RunOptions::default());
        let (mut old, mut new, mut expected) = (run(&old), run(&new), (0, 0));
        for event in &events {
            let is_denied = |run: &mut Run<'_>| run.decide(event).unwrap().unwrap().over_limit;
            match (is_denied(&mut old), is_denied(&mut new)) {
                (false, true) => expected.0 += 1,
                (true, false) => expected.1 += 1,
                _ => {}
            }
        }
        prop_assert_eq!((report.differences.newly_denied, report.differences.newly_allowed), expected);
    }

    #[test]
    fn a_key_is_wholly_in_the_sample_or_not_at_all(events in events(), algorithm in algorithm()) {
        let text = shop(algorithm, 3);
        let of_users: Vec<Event> = asking(algorithm, events).into_iter().map(|mut event| {
            event.request.descriptors.truncate(1);
            event
        }).collect();
        let mut compared = 0;
        for user in 0..12 {
            let own = |event: &&Event| event.request.descriptors[0].entries[0].value == format!("u{user}");
            let own: Vec<Event> = of_users.iter().filter(own).cloned().collect();
            let of_user = Tried::of(&text, &text, 0.5).see(&own).differences.compared;
            prop_assert!([0, own.len() as u64].contains(&of_user), "{of_user} of {}", own.len());
            compared += of_user;
        }
        prop_assert_eq!(Tried::of(&text, &text, 0.5).see(&of_users).differences.compared, compared);
    }

    /// All requests of a user ask about the same path, which is this user's alone. So a sample that has one of the two
    /// keys has all requests of both, and is exact.
    #[test]
    fn a_sample_says_of_its_keys_what_all_requests_say(
        events in events(), algorithm in algorithm().prop_filter("no streams", |algorithm| !algorithm.has_holders()),
    ) {
        let (old, new) = (shop(algorithm, 4), shop(algorithm, 2));
        for user in 0..12 {
            let user = format!("u{user}");
            let is_own = |event: &&Event| event.request.descriptors[0].entries[0].value == user;
            let own: Vec<Event> = events.iter().filter(is_own).cloned().map(|mut event| {
                event.request.descriptors.truncate(1);
                event.request.descriptors.push(descriptor("path", format!("/{user}"), 1));
                event
            }).collect();
            let all = Tried::of(&old, &new, 1.0).see(&own);
            for rule in Tried::of(&old, &new, 0.4).see(&own).differences.rules {
                let whole = all.differences.rules.iter().find(|other| other.rule == rule.rule).unwrap();
                prop_assert_eq!(&rule, whole);
            }
        }
    }

    #[test]
    fn an_answer_does_not_depend_on_candidates(events in events(), algorithm in algorithm()) {
        let (text, events) = (shop(algorithm, 3), asking(algorithm, events));
        let answers = |candidates: Option<&str>| {
            let clock = GivenClock::default();
            let (store, metrics) = (Arc::new(MemoryStore::new(clock.clone(), usize::MAX)), Metrics::new(0.8).unwrap());
            let (tried, mut observers) = (Tried::new(1.0, 32 << 20), Observers::default());
            if let Some(text) = candidates {
                observers.add(Arc::clone(&tried.candidates) as _);
                tried.candidates.settle(Ok(rules(text)));
            }
            let options = LimiterOptions { observers, ..LimiterOptions::default() };
            let limiter = Limiter::new(options, Arc::clone(&store), store, Arc::new(metrics));
            limiter.put_in_force(rules(&text));
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            let answers: Vec<String> = runtime.block_on(async {
                let mut answers = Vec::new();
                for Event { at_ms, request, .. } in &events {
                    clock.set(*at_ms);
                    tried.clock.set(*at_ms);
                    let deadlines = Deadlines { store: tokio::time::Instant::now(), caller: None };
                    let snapshot = limiter.snapshot();
                    let decided = limiter.decide(&snapshot, request, deadlines).await.unwrap();
                    answers.push(format!("{:?}", decided.0));
                    tried.candidates.evaluate();
                }
                answers
            });
            (answers, tried.candidates.report().differences.compared)
        };
        let (without, _) = answers(None);
        let (beside, compared) = answers(Some(&shop(algorithm, 1)));
        prop_assert_eq!(compared, events.len() as u64);
        prop_assert_eq!(without, beside);
    }
}

fn of_user(user: &str, times: u64) -> Vec<Event> {
    let request = Request { domain: "shop".into(), descriptors: vec![descriptor("user", user.to_owned(), 1)] };
    (0..times).map(|ms| Event::new(BEGIN_MS + ms, request.clone())).collect()
}

#[test]
fn what_differs_is_counted_by_rule_with_the_last_of_different_keys() {
    let tried = Tried::of(&shop(Algorithm::FixedWindow, 3), &shop(Algorithm::FixedWindow, 2), 1.0);
    for user in 0..7 {
        tried.see(&of_user(&format!("u{user}"), 4));
    }
    let report = tried.candidates.report();
    assert_eq!(
        (report.differences.compared, report.differences.newly_denied, report.differences.newly_allowed),
        (28, 7, 0)
    );
    let [of_users] = &report.differences.rules[..] else { panic!("{report:?}") };
    assert_eq!((&*of_users.domain, &*of_users.rule), ("shop", "per-user"));
    assert_eq!((of_users.agreed, of_users.newly_denied), (21, 7));
    assert_eq!((of_users.keys_newly_denied, of_users.keys_newly_allowed, report.differences.more_keys), (7, 0, false));
    let asked: Vec<&str> = of_users.examples.iter().map(|example| &*example.asked).collect();
    assert_eq!(asked, ["user=u2", "user=u3", "user=u4", "user=u5", "user=u6"]);
    assert_eq!(report.changes.len(), 1, "{report:?}");
    let series = "tollgate_candidate_requests_total{domain=\"shop\",outcome=\"newly_denied\",rule=\"per-user\"} 7";
    assert!(tried.text().contains(series), "{}", tried.text());

    // The candidates become the rules.
    tried.candidates.put_in_force(Arc::new(rules(&shop(Algorithm::FixedWindow, 2))));
    let report = tried.see(&of_user("u1", 4));
    assert_eq!((report.differences.compared, report.differences.newly_denied, report.changes.len()), (4, 0, 0));
    assert!(!tried.text().contains("outcome=\"newly_denied\""));
    // Identical candidates do not restart the comparison.
    tried.candidates.put_in_force(Arc::new(rules(&shop(Algorithm::FixedWindow, 2))));
    assert_eq!(tried.see(&of_user("u1", 1)).differences.compared, 5);
}

#[test]
fn a_key_counts_once_however_often_it_is_decided_otherwise() {
    let tried = Tried::of(&shop(Algorithm::FixedWindow, 1), &shop(Algorithm::FixedWindow, 9), 1.0);
    let report = tried.see(&of_user("ann", 9));
    let [of_users] = &report.differences.rules[..] else { panic!("{report:?}") };
    assert_eq!((of_users.newly_allowed, of_users.keys_newly_allowed, of_users.keys_newly_denied), (8, 1, 0));
}

#[test]
fn examples_show_values_as_other_keys_are_shown() {
    let told = |values| {
        let tried = Tried::showing(values, 1.0, 32 << 20);
        tried.candidates.put_in_force(Arc::new(rules(&shop(Algorithm::FixedWindow, 3))));
        tried.candidates.settle(Ok(rules(&shop(Algorithm::FixedWindow, 2))));
        let report = serde_json::to_string(&tried.see(&of_user("zaphod", 3))).unwrap();
        assert!(report.contains("\"asked\":\"user"), "{report}");
        report.contains("zaphod")
    };
    assert_eq!([Values::Plain, Values::hashed("a key of sixteen"), Values::Hidden].map(told), [true, false, false]);
}

#[test]
fn a_replica_compares_its_part_of_a_limit() {
    let tried = |replicas| {
        let (clock, metrics) = (GivenClock::default(), Metrics::new(0.8).unwrap().candidates().unwrap());
        let options = CandidateOptions {
            files: Vec::new(),
            plan: PlanOptions::default(),
            replicas,
            sample: 1.0,
            most_bytes: 32 << 20,
            values: Values::Plain,
        };
        let candidates = Candidates::new(options, clock, metrics);
        candidates.put_in_force(Arc::new(rules(&shop(Algorithm::FixedWindow, 100))));
        candidates.settle(Ok(rules(&shop(Algorithm::FixedWindow, 10))));
        of_user("ann", 8).iter().for_each(|event| candidates.offer(&event.request, None));
        candidates.evaluate();
        candidates.report().differences.newly_denied
    };
    assert_eq!((tried(1), tried(2)), (0, 3));
}

#[test]
fn where_there_is_no_room_it_begins_anew_with_fewer_keys_and_still_nothing_differs() {
    let text = shop(Algorithm::FixedWindow, 1);
    let tried = Tried::new(1.0, 1 << 20);
    tried.candidates.put_in_force(Arc::new(rules(&text)));
    tried.candidates.settle(Ok(rules(&text)));
    for user in 0..20_000 {
        tried.see(&of_user(&format!("u{user}"), 2));
    }
    let report = tried.candidates.report();
    assert_eq!((report.differences.newly_denied, report.differences.newly_allowed), (0, 0));
    assert!(report.sample_now > 0.0 && report.sample_now < 0.6, "{report:?}");
    assert!(tried.text().contains(&format!("tollgate_candidate_sample_ratio {}", report.sample_now)));
}

#[test]
fn what_waits_is_bounded_and_what_is_dropped_is_counted() {
    let text = shop(Algorithm::FixedWindow, 3);
    let tried = Tried::of(&text, &text, 1.0);
    let requests = of_user(&"x".repeat(60_000), 100);
    let report = tried.see(&requests);
    assert!(report.differences.compared > 50 && report.differences.compared < 80, "{}", report.differences.compared);
    let dropped = format!("tollgate_candidate_dropped_requests_total {}", 100 - report.differences.compared);
    assert!(tried.text().contains(&dropped), "{}", tried.text());
    assert_eq!(tried.see(&requests[..10]).differences.compared, report.differences.compared + 10);
}

/// Starts a service with candidates in a separate folder.
fn start(in_force: &str, candidates: &str, settings: &[&str]) -> (Tollgate, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("next.yaml"), candidates).unwrap();
    let (token, named) = (format!("ADMIN_TOKEN={TOKEN}"), format!("CANDIDATE_RULES={}", folder.path().display()));
    let own = ["ADMIN_API=true", &token, &named, "CANDIDATE_SAMPLE=1"];
    (Tollgate::start(in_force, &[&own[..], settings].concat()), folder)
}

fn report(service: &Tollgate) -> Value {
    let (status, report) = service.admin("GET", "/candidates", TOKEN);
    assert_eq!(status, 200, "{report}");
    report
}

/// Runs `tollgate candidates` with this service; returns its status, and all that it prints.
fn shown(service: &Tollgate, words: &[&str]) -> (Option<i32>, String) {
    let address = format!("localhost:{}", service.http_port);
    let mut asking = command();
    asking.args(["candidates", "--address", &address, "--admin-token", TOKEN]).args(words);
    let Output { status, stdout, stderr } = asking.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

async fn ask(service: &Tollgate, times: usize) -> usize {
    let mut passed = 0;
    for _ in 0..times {
        passed += usize::from(service.passes("shop", &[("user", "eve")]).await);
    }
    passed
}

fn newly_denied(service: &Tollgate, expected: u64) {
    wait_until("what differs", || report(service)["newly_denied"] == expected);
}

async fn a_service_tells_what_differs_and_denies_nobody(settings: &[&str]) {
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    let (service, folder) = start(&old.replace("minute", "day"), &new.replace("minute", "day"), settings);
    service.must_log("comparing candidate rules with the rules in force: 0 added, 0 removed, 1 changed");
    assert_eq!(ask(&service, 5).await, 5, "the candidates deny nobody");
    newly_denied(&service, 3);
    let series = "tollgate_candidate_requests_total{domain=\"shop\",outcome=\"newly_denied\",rule=\"per-user\"}";
    assert_eq!(service.metric(series), 3.0);
    let told = report(&service);
    assert_eq!((&told["compared"], &told["sample_now"]), (&5.into(), &1.0.into()), "{told}");
    assert_eq!(told["rules"][0]["examples"][0]["asked"], "user=eve", "{told}");
    assert!(told["changes"][0].as_str().unwrap().contains("requests_per_unit 5 -> 2"), "{told}");
    let told = service.admin("GET", "/candidates", "another token of some length");
    assert_eq!(told.0, 401);
    let (code, text) = shown(&service, &[]);
    let version = report(&service)["version"].as_str().unwrap().to_owned();
    assert!(code == Some(0) && text.starts_with(&format!("candidates {version} (")), "{text}");
    for line in
        ["at 1 of 1 instance, for 100 % of the keys", "5 requests compared", "  3 requests newly denied", "  user=eve"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let (code, json) = shown(&service, &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["newly_denied"]), (Some(0), &3.into()));

    // Wrong candidates harm neither the rules nor those before.
    fs::write(folder.path().join("next.yaml"), "domain: [").unwrap();
    service.must_log("new candidate rules are rejected, the previous ones are still compared");
    assert_eq!(ask(&service, 1).await, 0);
    wait_until("a comparison", || report(&service)["compared"] == 6);
    assert!(report(&service)["refused"].is_string());
    let lines = service.logs().iter().map(Value::to_string).collect::<String>();
    assert!(!lines.contains("user=eve"), "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_in_memory_tells_what_differs_and_denies_nobody() {
    a_service_tells_what_differs_and_denies_nobody(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_redis_tells_what_differs_and_denies_nobody() {
    let redis = Redis::start();
    a_service_tells_what_differs_and_denies_nobody(&[&format!("REDIS_URL={}", redis.tcp_address())]).await;
}

/// The adjustment would be in force beside the candidates, too: what it changes is no difference of the rules.
#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_in_force_applies_to_both_sets_of_rules() {
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    let (service, _folder) = start(&old.replace("minute", "day"), &new.replace("minute", "day"), &[]);
    let (authorization, json) = (format!("Bearer {TOKEN}"), "application/json");
    let headers = [("authorization", &*authorization), ("content-type", json)];
    service.must_log("comparing candidate rules with the rules in force");
    for (user, effect) in [("eve", "block"), ("ann", "pass")] {
        let body = serde_json::json!({
            "domain": "shop", "entries": [{"key": "user", "value": user}], "effect": effect,
            "who": "ann", "why": "abuse", "for": "1h",
        });
        let (status, said) = service.send("POST", "/adjustments", &headers, body.to_string().as_bytes());
        assert_eq!(status, 201, "{said}");
    }
    for (user, passes) in [("eve", 0), ("ann", 7), ("bob", 5)] {
        let mut passed = 0;
        for _ in 0..7 {
            passed += usize::from(service.passes("shop", &[("user", user)]).await);
        }
        assert_eq!(passed, passes, "{user}");
    }
    wait_until("a comparison", || report(&service)["compared"] == 21);
    let told = report(&service);
    assert_eq!((&told["newly_denied"], &told["newly_allowed"]), (&3.into(), &0.into()), "{told}");
    assert_eq!(told["rules"][0]["examples"][0]["asked"], "user=bob", "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_candidates_there_is_nothing_of_them() {
    let token = format!("ADMIN_TOKEN={TOKEN}");
    let service = Tollgate::start(&shop(Algorithm::FixedWindow, 5), &["ADMIN_API=true", &token]);
    assert_eq!(service.admin("GET", "/candidates", TOKEN).0, 404);
    let (code, said) = shown(&service, &[]);
    assert!(code == Some(1) && said.contains("start the service with ADMIN_API=true and CANDIDATE_RULES"), "{said}");
    assert!(!service.get("/metrics").1.contains("tollgate_candidate"));
}

fn promote(rules: &Path, candidates: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command.arg("promote").arg("--rules").arg(rules).arg("--candidate-rules").arg(candidates).args(arguments);
    command.output().unwrap()
}

/// A folder of rules with one for each team, and candidates for the first.
fn teams() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let of = |domain: &str, number| shop(Algorithm::FixedWindow, number).replace("domain: shop", domain);
    for (folder, text) in
        [("rules/a", of("domain: a", 5)), ("rules/b", of("domain: b", 5)), ("next", of("domain: a", 2))]
    {
        fs::create_dir_all(home.path().join(folder)).unwrap();
        fs::write(home.path().join(folder).join("shop.yaml"), text).unwrap();
    }
    home
}

#[test]
fn what_is_promoted_below_the_rules_of_a_service_leaves_it_able_to_start() {
    let home = teams();
    let at = |name: &str| home.path().join(name);
    let served = format!("--served={}", at("rules").display());
    // The remains of a promotion that was killed.
    fs::create_dir(at("rules/.a.next-2026-01-02T03-04-05Z")).unwrap();
    fs::copy(at("next/shop.yaml"), at("rules/.a.next-2026-01-02T03-04-05Z/shop.yaml")).unwrap();
    let output = promote(&at("rules/a"), &at("next"), &[&served]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(beside(&at("rules"), ".a.before-").len(), 1);
    let whole = load::load(&Sources { paths: vec![at("rules")] }, &LoadOptions::default()).unwrap();
    assert_eq!(whole.rules.rules().len(), 6);

    // A domain of another team.
    let taken = fs::read_to_string(at("rules/b/shop.yaml")).unwrap();
    fs::write(at("next/shop.yaml"), taken).unwrap();
    let error = refused(&promote(&at("rules/a"), &at("next"), &[&served]));
    assert!(error.contains("do not fit the other rules") && error.contains("already the domain"), "{error}");
    load::load(&Sources { paths: vec![at("rules")] }, &LoadOptions::default()).unwrap();
}

#[cfg(unix)]
#[test]
fn promoted_files_have_the_mode_of_those_that_they_replace_and_nothing_but_rules_is_copied() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    let home = teams();
    let at = |name: &str| home.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    let set = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(at("next/new")).unwrap();
    fs::write(at("next/new/more.yaml"), "{domain: more, descriptors: []}").unwrap();
    fs::write(at("next/notes.txt"), "not of the rules").unwrap();
    let pipe = std::process::Command::new("mkfifo").args([at("next/pipe"), at("next/pipe.yaml")]).status().unwrap();
    assert!(pipe.success());
    for (name, mode) in [("rules/a/shop.yaml", 0o644), ("rules/a", 0o755), ("next/shop.yaml", 0o600), ("next", 0o700)] {
        set(name, mode);
    }
    // Only root may give files away.
    let is_root = std::os::unix::fs::chown(at("rules/a/shop.yaml"), Some(12_345), Some(54_321)).is_ok();
    let output = promote(&at("rules/a"), &at("next"), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((mode("rules/a"), mode("rules/a/shop.yaml")), (0o755, 0o644));
    if is_root {
        let metadata = fs::metadata(at("rules/a/shop.yaml")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12_345, 54_321));
    }
    assert_eq!((mode("rules/a/new"), mode("rules/a/new/more.yaml")), (0o755, 0o644));
    assert!(!at("rules/a/notes.txt").exists() && !at("rules/a/pipe").exists() && !at("rules/a/pipe.yaml").exists());
    let error = refused(&promote(&at("rules/a/shop.yaml"), &at("next/pipe"), &[]));
    assert!(error.contains("is not a regular file"), "{error}");
}

fn promoted(rules: &Path, candidates: &Path) -> String {
    let output = promote(rules, candidates, &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the paths next to the rules whose names contain `part`.
fn beside(folder: &Path, part: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(part)).collect()
}

#[test]
fn promoting_exchanges_a_folder_or_a_file_and_keeps_the_old_one() {
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    for file in ["", "shop.yaml"] {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for (folder, text) in [("rules", &old), ("next", &new)] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("shop.yaml"), text).unwrap();
        }
        let (rules, next) = (at("rules").join(file), at("next").join(file));
        let said = promoted(&rules, &next);
        assert!(said.contains("requests_per_unit 5 -> 2"), "{said}");
        assert_eq!(fs::read_to_string(at("rules/shop.yaml")).unwrap(), new);
        assert_eq!(fs::read_to_string(at("next/shop.yaml")).unwrap(), new);
        let folder = rules.components().as_path().parent().unwrap();
        let [kept] = &beside(folder, ".before-")[..] else { panic!("{said}") };
        let kept_file = if kept.is_dir() { kept.join("shop.yaml") } else { kept.clone() };
        assert_eq!(fs::read_to_string(kept_file).unwrap(), old);
        assert!(said.contains(kept.to_str().unwrap()), "{said}");
        assert!(kept.file_name().unwrap().to_str().unwrap().starts_with('.'), "no service reads it");
        assert!(beside(folder, ".next-").is_empty());

        // Repeating it has no second effect.
        assert!(promoted(&rules, &next).contains("are identical"));
        assert_eq!(beside(folder, ".before-").len(), 1);
    }
}

#[test]
fn what_cannot_be_promoted_changes_nothing_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    for (folder, text) in
        [("rules", &*old), ("next", &*new), ("wrong", "domain: ["), ("mounted", &*old), ("git", &*old)]
    {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("shop.yaml"), text).unwrap();
    }
    fs::create_dir(at("mounted/..data")).unwrap();
    fs::create_dir(at("git/.git")).unwrap();
    let cases = [
        ("rules", "wrong", &[][..], "the candidates are invalid"),
        ("rules", "gone", &[], "cannot be read"),
        ("rules", "rules", &[], "must not contain each other"),
        ("rules", "next/shop.yaml", &[], "two files or two folders"),
        ("rules", "next", &["--expect", "0123456789ab"], "have version"),
        ("mounted", "next", &[], "a mounted ConfigMap or Secret"),
        ("git", "next", &[], "a checkout of Git"),
    ];
    for (rules, candidates, arguments, said) in cases {
        let error = refused(&promote(&at(rules), &at(candidates), arguments));
        assert!(error.contains(said), "{rules}, {candidates}: {error}");
        assert_eq!(fs::read_to_string(at(rules).join("shop.yaml")).unwrap(), old);
    }
    assert_eq!(beside(home.path(), "-").len(), 0, "nothing is left behind");
    let version = rules(&new).version().to_owned();
    let output = promote(&at("rules"), &at("next"), &["--expect", &version]);
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_follows_what_is_promoted() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    for (folder, text) in [("rules", &old), ("next", &new)] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("shop.yaml"), text.replace("minute", "day")).unwrap();
    }
    let (token, named) = (format!("ADMIN_TOKEN={TOKEN}"), format!("RULES={}", at("rules").display()));
    let candidates = format!("CANDIDATE_RULES={}", at("next").display());
    let service = Tollgate::start_from(&["ADMIN_API=true", &token, &named, &candidates, "CANDIDATE_SAMPLE=1"]);
    wait_until("a trial", || report(&service)["changes"].as_array().unwrap().len() == 1);
    let version = report(&service)["version"].as_str().unwrap().to_owned();
    let output = promote(&at("rules"), &at("next"), &["--expect", &version]);
    assert!(output.status.success(), "{output:?}");
    service.must_log("new rules are in force");
    wait_until("nothing differs", || report(&service)["changes"].as_array().unwrap().is_empty());
    assert_eq!(ask(&service, 5).await, 2);
    tokio::time::timeout(Duration::from_secs(60), async { newly_denied(&service, 0) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_promotes_only_where_and_for_whom_the_settings_permit_it() {
    const RELEASE: &str = "a token that may promote";
    const OPS: &str = "a token that may adjust";
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let (old, new) = (shop(Algorithm::FixedWindow, 5), shop(Algorithm::FixedWindow, 2));
    for (folder, text) in [("house/rules", &old), ("house/next", &new), ("other/next", &new)] {
        fs::create_dir_all(at(folder)).unwrap();
        fs::write(at(folder).join("shop.yaml"), text.replace("minute", "day")).unwrap();
    }
    fs::write(
        at("tokens.yaml"),
        format!(
            "tokens:\n- {{name: ci, token: {RELEASE}, roles: [promote]}}\n\
             - {{name: ops, token: {OPS}, roles: [adjust]}}\n"
        ),
    )
    .unwrap();
    let start = |candidates: &str, more: &[&str]| {
        let tokens = format!("ADMIN_TOKENS_FILE={}", at("tokens.yaml").display());
        let rules = format!("RULES={}", at("house/rules").display());
        let candidates = format!("CANDIDATE_RULES={}", at(candidates).display());
        let own = ["ADMIN_API=true", &tokens, &rules, &candidates, "CANDIDATE_SAMPLE=1"];
        Tollgate::start_from(&[&own[..], more].concat())
    };
    let folder = format!("PROMOTE_FOLDER={}", at("house").display());
    let version = rules(&new.replace("minute", "day")).version().to_owned();
    let right = format!("/candidates/promote?expect={version}&why=agreed");
    let in_force = || fs::read_to_string(at("house/rules/shop.yaml")).unwrap();

    let off = start("house/next", &[]);
    let (status, said) = off.admin("POST", &right, RELEASE);
    assert!(status == 404 && said["error"].as_str().unwrap().contains("set PROMOTE_FOLDER"), "{said}");
    let outside = start("other/next", &[&folder]);
    let (status, said) = outside.admin("POST", &right, RELEASE);
    assert!(status == 409 && said["error"].as_str().unwrap().contains("is not below"), "{said}");

    let service = start("house/next", &[&folder]);
    for (path, token, status, said) in [
        (&*right, OPS, 403, "the token ops may not promote candidate rules: it needs the role promote"),
        ("/candidates/promote?why=agreed", RELEASE, 400, "expect: name the version"),
        (&right.replace("&why=agreed", ""), RELEASE, 400, "why: say why"),
        ("/candidates/promote?expect=0123456789ab&why=x", RELEASE, 409, &format!("have version {version}, not")),
    ] {
        let (given, answer) = service.admin("POST", path, token);
        assert!(given == status && answer["error"].as_str().unwrap().contains(said), "{path}: {given} {answer}");
    }
    assert!(in_force().contains("requests_per_unit: 5"), "nothing was changed");
    let address = format!("localhost:{}", service.http_port);
    let mut promoting = command();
    promoting.args(["promote", "--address", &address, "--admin-token", RELEASE, "--expect", &version, "--who", "ann"]);
    let without_why = promoting.output().unwrap();
    assert!(refused(&without_why).contains("needs --expect VERSION, which tollgate candidates shows, and --why"));
    let promoted = promoting.args(["--why", "agreed with sales"]).output().unwrap();
    let said = String::from_utf8(promoted.stdout).unwrap();
    assert!(promoted.status.success() && said.contains("requests_per_unit 5 -> 2"), "{said}");
    service.must_log("new rules are in force");
    assert!(in_force().contains("requests_per_unit: 2"));
    assert_eq!(ask(&service, 5).await, 2);
    let kept = beside(&at("house"), "before");
    assert!(kept.len() == 1 && said.contains(kept[0].to_str().unwrap()), "{kept:?}: {said}");
    let line = service.must_log("an operator has promoted the candidate rules").to_string();
    assert!(line.contains("ci (as ann)") && line.contains("agreed with sales"), "{line}");
    let (status, again) = service.admin("POST", &right, RELEASE);
    assert_eq!((status, &again["kept"]), (200, &Value::Null), "it may be repeated");
    let (_, trail) = service.admin("GET", "/audit", RELEASE);
    let entries: Vec<&Value> =
        trail["entries"].as_array().unwrap().iter().filter(|one| one["action"] == "promoted").collect();
    assert_eq!((entries.len(), &entries[0]["who"]), (1, &"ci (as ann)".into()), "{trail}");
}

/// Rules that cannot be read for a while.
struct Fragile {
    rules: Rules,
    breaks: AtomicBool,
    broken: AtomicU32,
}

impl AsRef<Rules> for Fragile {
    fn as_ref(&self) -> &Rules {
        if self.breaks.load(Ordering::Relaxed) {
            self.broken.fetch_add(1, Ordering::Relaxed);
            panic!("for the test");
        }
        &self.rules
    }
}

#[test]
fn a_panic_costs_what_was_queued_and_not_the_comparison() {
    let tried = Tried::new(1.0, 32 << 20);
    let (rules_in_force, breaks) = (rules(&shop(Algorithm::FixedWindow, 100)), AtomicBool::new(false));
    let fragile = Arc::new(Fragile { rules: rules_in_force, breaks, broken: AtomicU32::new(0) });
    tried.candidates.put_in_force(Arc::clone(&fragile) as _);
    tried.candidates.settle(Ok(rules(&shop(Algorithm::FixedWindow, 10))));
    let offer = |user: &str| of_user(user, 1).iter().for_each(|event| tried.candidates.offer(&event.request, None));
    offer("ann");
    fragile.breaks.store(true, Ordering::Relaxed);
    tried.candidates.follow().unwrap();
    wait_until("it has panicked", || fragile.broken.load(Ordering::Relaxed) > 0);
    fragile.breaks.store(false, Ordering::Relaxed);
    offer("bob");
    wait_until("it goes on", || tried.candidates.report().differences.compared == 1);
}

#[test]
fn candidates_that_are_nowhere_leave_nothing_to_compare() {
    let service = Tollgate::start(&shop(Algorithm::FixedWindow, 5), &["CANDIDATE_RULES=nothere"]);
    service.must_log("the candidate rules are rejected, nothing is compared");
}
