//! `tollgate replay`: its report on rules equals the service's real decisions.

use std::collections::HashMap;
use std::io::{Cursor, Write as _};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::engine::algorithm::{Algorithm, Ask, Caller, State};
use tollgate::engine::plan::PlanOptions;
use tollgate::engine::rules::{Allowance, Rules};
use tollgate::evaluate::{Goal, GoalOf, RuleSet, Run, RunOptions, Search};
use tollgate::replay::{Event, Log, MappingOptions, Reading, Report, Requests};
use tollgate::sources::files::load::{self, LoadOptions, NamedText, Sources};

use crate::support::tollgate::command;

/// Some time in 2026.
const BEGIN_MS: u64 = 1_767_323_045_000;

fn rules(text: &str) -> Rules {
    let text = NamedText { name: "rules.yaml".into(), bytes: text.as_bytes().to_vec() };
    load::check(&Sources { paths: Vec::new() }, &[text], &LoadOptions::default()).unwrap().rules
}

/// A rule for each user.
fn of_users(algorithm: Algorithm, number: u64, period_ms: u64) -> String {
    let algorithm = algorithm.name();
    format!(
        "{{domain: shop, descriptors: [{{key: user, rate_limit: {{name: per-user, period: {period_ms}ms, \
         requests_per_unit: {number}, algorithm: {algorithm}}}}}]}}"
    )
}

/// The requests of a log of users, in JSON.
fn requests(lines: &[(u64, usize, u64)]) -> Vec<Event> {
    let line = |(at_ms, user, hits): &(u64, usize, u64)| {
        json!({"time": BEGIN_MS + at_ms, "user": format!("u{user}"), "hits": hits}).to_string() + "\n"
    };
    let text: String = lines.iter().map(line).collect();
    let log: Log = Box::new(Cursor::new(text.into_bytes()));
    let mapping = MappingOptions {
        entries: vec!["user=%user%".to_owned()],
        hits: Some("%hits%".to_owned()),
        ..MappingOptions::default()
    };
    let domain = Some("shop".to_owned());
    let reading = Reading { format: None, mapping, domain, window_ms: 1_000, is_strict: true };
    let mut requests = Requests::new(vec![(PathBuf::from("log"), log)], &reading).unwrap();
    std::iter::from_fn(|| requests.next_event().unwrap()).collect()
}

fn replayed(rules: &Rules, events: &[Event]) -> (Vec<bool>, Report) {
    let options = PlanOptions::default();
    let mut run = Run::new(RuleSet::new(rules, &options), RunOptions::default());
    let denied = events.iter().map(|event| run.decide(event).unwrap().unwrap().over_limit).collect();
    (denied, Report::new(Default::default(), &run))
}

/// Generates users, some with more requests than others, and the times between requests.
fn lines(most: usize) -> impl Strategy<Value = Vec<(u64, usize, u64)>> {
    let line = (0..400_u64, 0..6_usize, 0..6_usize, 1..3_u64);
    prop::collection::vec(line, 1..most).prop_map(|steps| {
        let mut at_ms = 0;
        let of_step = |(step, one, other, hits): (u64, usize, usize, u64)| {
            at_ms += step;
            (at_ms, one.min(other), hits)
        };
        steps.into_iter().map(of_step).collect()
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let all = Algorithm::ALL.iter().copied().filter(|algorithm| !algorithm.has_holders()).collect::<Vec<_>>();
    prop::sample::select(all)
}

proptest! {
    /// Live is here the algorithm itself, with a state for each user.
    #[test]
    fn a_replay_says_what_was_said_live(
        lines in lines(200), algorithm in algorithm(), number in 1..8_u32, period_ms in 1..5_000_u64,
    ) {
        let rules = rules(&of_users(algorithm, number.into(), period_ms));
        let (_, limit) = rules.limits().next().unwrap();
        let Allowance::Limited(limit) = limit.config.allowance else { panic!("it is limited") };
        let mut states: HashMap<usize, State> = HashMap::new();
        let mut live = Vec::new();
        for (at_ms, user, hits) in &lines {
            let state = states.remove(user);
            let outcome = limit.decide(Ask::Take(*hits), Caller::default(), state.as_ref(), BEGIN_MS + at_ms);
            live.push(!outcome.verdict.allowed);
            states.extend(outcome.effect.apply(state).map(|state| (*user, state)));
        }
        let (denied, report) = replayed(&rules, &requests(&lines));
        prop_assert_eq!(&denied, &live);
        let limit = &report.limits[0];
        let count = live.iter().filter(|denied| **denied).count() as u64;
        prop_assert_eq!((limit.decisions, limit.denied, report.denied), (live.len() as u64, count, count));
        let told: u64 = limit.most_denied.iter().map(|key| key.denied).sum();
        prop_assert!(limit.keys_denied > 5 || told == count, "{:?}", limit);
    }

    /// One less would deny more than allowed, which a replay of rules with these numbers confirms.
    #[test]
    fn the_number_that_is_suggested_is_the_least(
        lines in lines(120), algorithm in algorithm(), period_ms in 1..5_000_u64, percent in 0..60_u32,
        of_keys in any::<bool>(),
    ) {
        let (options, events) = (PlanOptions::default(), requests(&lines));
        let present = rules(&of_users(algorithm, 3, period_ms));
        let mut run = Run::new(RuleSet::new(&present, &options), RunOptions::default());
        events.iter().for_each(|event| drop(run.decide(event).unwrap()));
        let of = if of_keys { GoalOf::Keys } else { GoalOf::Requests };
        let most_bytes = RunOptions::default().most_bytes;
        let mut search = Search::new(Goal { percent: percent.into(), of }, &run, Some("per-user"), most_bytes);
        while !search.is_done() {
            search.decide_all(&events).unwrap();
            search.narrow();
        }
        let report = Report::new(Default::default(), &run).suggesting(&search);
        let suggestion = &report.suggestions[0];
        let denied = |number| {
            let (_, report) = replayed(&rules(&of_users(algorithm, number, period_ms)), &events);
            let limit = &report.limits[0];
            (limit.keys_denied, limit.denied)
        };
        let is_reached = |number| {
            let (part, whole) = match (of, denied(number)) {
                (GoalOf::Keys, (keys, _)) => (keys, suggestion.keys),
                (GoalOf::Requests, (_, requests)) => (requests, suggestion.requests),
            };
            part * 100 <= u64::from(percent) * whole
        };
        for point in &suggestion.curve {
            prop_assert_eq!((point.keys_denied, point.requests_denied), denied(point.number), "{}", point.number);
        }
        match suggestion.number {
            Some(number) => {
                prop_assert!(is_reached(number), "{} denies too much: {:?}", number, suggestion);
                prop_assert!(number == 1 || !is_reached(number - 1), "{} is not the least: {:?}", number, suggestion);
            }
            None => prop_assert!(suggestion.curve.iter().all(|point| !is_reached(point.number)), "{:?}", suggestion),
        }
    }
}

/// A folder with rules and a log.
fn folder(rules: &str, logs: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("new.yaml"), rules).unwrap();
    for (name, text) in logs {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn replay(folder: &TempDir, arguments: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = command();
    command.args(["replay", "--rules", "new.yaml"]).args(arguments).current_dir(folder.path());
    let Some(input) = input else { return command.output().unwrap() };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn printed(folder: &TempDir, arguments: &[&str]) -> String {
    let output = replay(folder, arguments, None);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(folder: &TempDir, arguments: &[&str]) -> String {
    let output = replay(folder, arguments, None);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

const NEW: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: minute, requests_per_unit: 5}}
  - {key: path, value: /export, shadow_mode: true, rate_limit: {name: exports, unit: minute, requests_per_unit: 2}}
  - {key: phone, rate_limit: {name: sms, unit: day, requests_per_unit: 1}}
  - key: route
    value: reports
    descriptors: [{key: stream, rate_limit: {name: reports, requests_per_unit: 1, algorithm: concurrency}}]
";

fn time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// Lines of Envoy's default format: `ann` asks every second, and `bob` every ten.
fn envoy_log() -> String {
    let line = |second: u64| {
        let time = time(BEGIN_MS + second * 1_000);
        let user = if second % 10 == 9 { "bob" } else { "ann" };
        let path = if second.is_multiple_of(3) { "/export" } else { "/a" };
        format!(
            "[{time}] \"GET {path} HTTP/1.1\" 200 - 0 70 3 2 \"-\" \"{user}\" \"id-{second}\" \"shop.example\" \
             \"127.0.0.1:80\"\n"
        )
    };
    (0..40).map(line).collect()
}

const MAP: &str = "
rate_limits:
  - actions: [{request_headers: {header_name: user-agent, descriptor_key: user}}]
  - actions: [{generic_key: {descriptor_key: path, descriptor_value: '%REQ(:PATH)%'}}]
  - actions:
      - generic_key: {descriptor_key: route, descriptor_value: reports}
      - request_headers: {header_name: x-request-id, descriptor_key: stream}
";

#[test]
fn a_report_says_whom_each_limit_denies_when_and_what_changes() {
    let log = envoy_log() + "upstream connect error\n";
    let old = NEW.replace("requests_per_unit: 5}", "requests_per_unit: 8}");
    let logs = [("access.log", log.as_bytes()), ("map.yaml", MAP.as_bytes()), ("old.yaml", old.as_bytes())];
    let folder = folder(NEW, &logs);
    let arguments = ["--map-file", "map.yaml", "--against", "old.yaml", "--suggest", "50% of users", "access.log"];
    let text = printed(&folder, &arguments);
    insta::assert_snapshot!(text);
    assert_eq!(printed(&folder, &arguments), text, "twice the same");
    let json = printed(&folder, &[&arguments[..], &["--json"]].concat());
    assert_eq!(printed(&folder, &[&arguments[..], &["--json"]].concat()), json);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["requests"], &report["log"]["unreadable"]), (&40.into(), &1.into()));
    let [user, path, stream] = report["limits"].as_array().unwrap().as_slice() else { panic!("{report:#}") };
    assert_eq!((&user["rule"], &user["denied"], &report["denied"]), (&"per-user".into(), &31.into(), &31.into()));
    assert_eq!((&path["role"], &path["denied"]), (&"shadow_mode".into(), &12.into()));
    assert_eq!((&stream["not_replayed"], &stream["denied"]), (&false.into(), &0.into()));
    assert_eq!(report["against"]["newly_denied"], 3);
}

/// Streams of ann: three in progress from second 0 to 10, and one after the other afterwards.
fn streams() -> String {
    let lines = [(0, 10_000), (1, 9_000), (2, 1_000), (3, 500), (11, 800), (12, 5_000), (13, 700)];
    let line = |(second, lasts): &(u64, u64)| {
        format!(
            "{{\"start_time\":\"{}\",\"duration\":{lasts},\"id\":\"s{second}\"}}\n",
            time(BEGIN_MS + second * 1_000)
        )
    };
    lines.iter().map(line).collect()
}

const STREAMS: &str = "
domain: shop
descriptors:
  - key: user
    descriptors: [{key: stream, rate_limit: {name: streams, requests_per_unit: 2, algorithm: concurrency}}]
";

#[test]
fn streams_are_replayed_by_their_duration_and_each_request_has_a_verdict() {
    let old = STREAMS.replace("requests_per_unit: 2", "requests_per_unit: 1");
    let log = streams();
    let folder = folder(STREAMS, &[("log.json", log.as_bytes()), ("old.yaml", old.as_bytes())]);
    let map = ["--map", "user=ann", "--map", "stream=%id%"];
    let verdicts = |more: &[&str]| -> Vec<String> {
        let all = [&map[..], &["--verdicts", "verdicts.jsonl", "--id", "%id%", "log.json"], more].concat();
        let report = printed(&folder, &all);
        assert!(!report.contains("not replayed"), "{report}");
        assert!(report.contains("    user=ann stream=*  2 of 7\n"), "streams share a counter: {report}");
        let lines = std::fs::read_to_string(folder.path().join("verdicts.jsonl")).unwrap();
        lines.lines().map(str::to_owned).collect()
    };
    let word = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap();
        [&line["id"], &line["verdict"], &line["old_verdict"]].map(|it| it.as_str().unwrap_or("-").to_owned()).join(" ")
    };
    let told: Vec<String> = verdicts(&["--against", "old.yaml"]).iter().map(word).collect();
    let expected = ["s0 pass pass", "s1 pass deny", "s2 deny deny", "s3 deny deny"];
    let rest = ["s11 pass pass", "s12 pass pass", "s13 pass deny"];
    assert_eq!(told, [&expected[..], &rest[..]].concat());
    let line: Value = serde_json::from_str(&verdicts(&[])[2]).unwrap();
    assert_eq!(
        line,
        serde_json::json!({
            "time": time(BEGIN_MS + 2_000), "id": "s2", "domain": "shop", "verdict": "deny", "denied_by": ["streams"],
            "would_deny": [], "descriptors": [{"entries": [["user", "ann"], ["stream", "s2"]], "hits": 1}],
        })
    );

    // Without durations the limit is left out, as before.
    let without = printed(&folder, &[&map[..], &["--duration", "%nothing%", "log.json"]].concat());
    assert!(without.contains("not replayed"), "{without}");
    let wrong = replay(&folder, &[&map[..], &["--duration", "%start_time%", "log.json"]].concat(), None);
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stdout).contains("is no duration: milliseconds"), "{wrong:?}");
    let refused = refused(&folder, &[&map[..], &["--verdicts", "./log.json", "log.json"]].concat());
    assert!(refused.contains("--verdicts would overwrite the log"), "{refused}");
    assert_eq!(std::fs::read_to_string(folder.path().join("log.json")).unwrap(), log);
}

#[test]
fn every_way_to_write_a_log_says_the_same() {
    let events: Vec<(u64, &str)> = (0..30).map(|step| (step * 700, ["ann", "bob", "cid"][step as usize % 3])).collect();
    let write = |header: &str, line: &dyn Fn(u64, &str) -> String| -> String {
        header.to_owned() + &events.iter().map(|(at_ms, user)| line(BEGIN_MS + at_ms, user) + "\n").collect::<String>()
    };
    let json = write("", &|ms, user| json!({"start_time": time(ms), "req": {"user": user}}).to_string());
    let csv = write("ms,user\n", &|ms, user| format!("{ms},{user}"));
    let text = write("", &|ms, user| format!("{}.{:03} user={user} end", ms / 1_000, ms % 1_000));
    let decisions = write("", &|ms, user| {
        json!({
            "time": time(ms), "domain": "shop", "rule": "per-user", "descriptor": [{"key": "user", "value": user}],
            "hits": 1, "limit": {"algorithm": "sliding_window", "number": 5, "period_ms": 60_000}, "remaining": 0,
            "retry_after_ms": 7, "outcome": "allowed", "reason": "within", "sampled": true, "request_id": null,
        })
        .to_string()
    });
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(json.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let logs: [(&str, &[u8]); 5] = [
        ("a.json", json.as_bytes()),
        ("a.csv", csv.as_bytes()),
        ("a.txt", text.as_bytes()),
        ("a.decisions", decisions.as_bytes()),
        ("a.json.gz", &packed),
    ];
    let folder = folder(NEW, &logs);
    let limits = |output: &str| serde_json::from_str::<Value>(output).unwrap()["limits"].clone();
    let format = "%START_TIME(%s.%3f)% user=%REQ(x-user)% end";
    let ways: [&[&str]; 6] = [
        &["--map", "user=%req.user%", "a.json"],
        &["--map", "user=%req.user%", "a.json.gz"],
        &["--map", "user=%user%", "--time", "%ms%", "a.csv"],
        &["--map", "user=%REQ(X-USER)%", "--log-format", format, "a.txt"],
        &["a.decisions"],
        &["--map", "user=%req.user%", "--window", "1h", "--domain", "shop", "a.json"],
    ];
    let all: Vec<Value> = ways.iter().map(|way| limits(&printed(&folder, &[way, &["--json"][..]].concat()))).collect();
    assert_eq!(all[0][0]["denied"], 15, "{}", all[0]);
    assert!(all.iter().all(|limits| *limits == all[0]), "{all:#?}");
    let piped = replay(&folder, &["--map", "user=%req.user%", "--json", "-"], Some(&packed));
    assert_eq!(limits(std::str::from_utf8(&piped.stdout).unwrap()), all[0]);
}

/// A log of users, each with so many requests in a minute.
fn of_users_in_a_minute(users: &[(&str, u64)]) -> String {
    let lines =
        users.iter().flat_map(|(user, requests)| (0..*requests).map(move |i| (BEGIN_MS + i * 60_000 / requests, user)));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines.iter().map(|(time, user)| format!("{{\"time\": {time}, \"user\": \"{user}\"}}\n")).collect()
}

#[test]
fn a_fleet_with_shares_is_told_by_its_calls_and_by_whom_it_denies_too_early() {
    let limit = |number, more: &str| {
        format!(
            "{{domain: shop, descriptors: [{{key: user, rate_limit: \
             {{unit: minute, requests_per_unit: {number}{more}}}}}]}}"
        )
    };
    let log = of_users_in_a_minute(&[("quiet", 20), ("busy", 100)]);
    let told = |rules: &str, arguments: &[&str]| -> Value {
        let folder = folder(rules, &[("log", log.as_bytes())]);
        let given = ["--map", "user=%user%", "--json", "log"];
        serde_json::from_str(&printed(&folder, &[&given[..], arguments].concat())).unwrap()
    };
    let fleet = |part, instances| ["--fleet-share", part, "--instances", instances];
    // Of 100, each of two has 20: the quiet user asks for nothing.
    let told_all = told(&limit(100, ""), &fleet("40%", "2"));
    let shared = &told_all["fleet"];
    assert_eq!((&shared["share"], &shared["instances"]), (&json!("40%"), &json!(2)));
    assert_eq!((&shared["decisions"], &shared["calls"]), (&json!(120), &json!(60)), "{shared}");
    assert_eq!((&shared["denied"], &shared["newly_denied"]), (&json!(0), &json!(0)), "traffic is even");
    let own = told(&limit(100, ", own_share: 100%"), &fleet("40%", "1"));
    assert_eq!((&own["fleet"]["calls"], &own["fleet"]["denied"]), (&json!(0), &json!(0)), "the rule has its own");
    // An even split among many denies the busy one too early.
    let early = &told(&limit(100, ""), &fleet("100%", "10"))["fleet"];
    assert!(early["newly_denied"].as_u64().unwrap() > 0 && early["newly_denied"] == early["denied"], "{early}");
    assert!(early["denied"].as_u64().unwrap() < 50, "each of ten has a seat: {early}");
    // Limits that cannot have shares ask for each.
    let none = told(&limit(100, ", algorithm: leaky_bucket, burst: 100"), &fleet("40%", "2"));
    assert_eq!((&none["fleet"]["calls"], &none["fleet"]["decisions"]), (&json!(120), &json!(120)));
    assert!(told(&limit(100, ""), &[]).get("fleet").is_none());

    let folder = folder(&limit(100, ""), &[("log", log.as_bytes())]);
    let text = printed(&folder, &[&["--map", "user=%user%", "log"], &fleet("40%", "2")[..]].concat());
    let expected = "with own_share: 40% and 2 instances:\n  60 calls to Redis for 120 decisions: 0.500 each\n  \
                    0 denied, of which 0 too early\n";
    assert!(text.contains(expected), "{text}");
    assert!(refused(&folder, &["--fleet-share", "5", "--instances", "2", "log"]).contains("such as 5%"));
    assert!(refused(&folder, &["--fleet-share", "5%", "log"]).contains("--instances"));
}

#[test]
fn what_cannot_be_done_is_refused_with_what_would_be_right() {
    let log = envoy_log() + "upstream connect error\n";
    let folder = folder(NEW, &[("access.log", log.as_bytes()), ("a.csv", b"time,usr\n1,ann\n")]);
    let map = "user=%REQ(user-agent)%";
    let cases: [(&[&str], &str); 9] = [
        (&["access.log"], "error: access.log: say which descriptors lines stand for"),
        (&["--map", map, "--strict", "access.log"], "error: access.log:41: is not as the format says"),
        (&["--map", "user=%REQ(x-usr)%", "access.log"], "error: access.log: lines have no %REQ(x-usr)%; they have"),
        (&["--map", "user=%user%", "a.csv"], "error: a.csv: lines have no %user%; they have %time% %usr%"),
        (&["--map", map, "nowhere.log"], "error: nowhere.log cannot be read: "),
        (
            &["--map", map, "--suggest", "few", "access.log"],
            "error: --suggest=few (command line): write: deny at most 0.1 % of users",
        ),
        (&["--map", map, "--suggest", "1% of users", "--rule", "usr", "access.log"], "error: no limit is called usr"),
        (&["--map", map, "--suggest", "1% of users", "-"], "error: --suggest reads the logs several times"),
        (
            &["--map", map, "--log-format", "yaml", "access.log"],
            "error: --log-format=yaml (command line): \"yaml\" is no format: auto, envoy",
        ),
    ];
    for (arguments, expected) in cases {
        let said = refused(&folder, arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

/// Returns a line of a decision log with these fields replaced.
fn decision(second: u64, other: &Value) -> String {
    let mut line = json!({
        "time": time(BEGIN_MS + second * 1_000), "domain": "shop", "rule": "exports",
        "descriptor": [{"key": "path", "value": "/export"}], "hits": 1,
        "limit": {"algorithm": "sliding_window", "number": 2, "period_ms": 60_000}, "remaining": 0,
        "retry_after_ms": 7, "outcome": "denied", "reason": "over", "sampled": false, "request_id": null,
    });
    line.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    line.to_string() + "\n"
}

#[test]
fn a_report_on_a_decision_log_says_what_it_lacks() {
    let log = |other: Value| -> String { (0..5).map(|second| decision(second, &other)).collect() };
    let hashed = json!({"descriptor": [{"key": "path", "value": "0123456789abcdef".repeat(2)}]});
    let logs = [
        ("plain", log(json!({}))),
        ("hashed", log(hashed)),
        ("hidden", log(json!({"descriptor": [{"key": "path"}]}))),
        ("refunds", log(json!({"hits": -1}))),
    ];
    let folder = folder(NEW, &logs.each_ref().map(|(name, text)| (*name, text.as_bytes())));
    let [(plain, 0), (hashed, 3), (hidden, 3), (refunds, 3)] = logs.map(|(name, _)| {
        let output = replay(&folder, &[name], None);
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }) else {
        panic!("without a request that reaches a limit it exits with 3");
    };
    let (masked, skipped) = ("5 of these have values that are hidden or look hashed", "5 of these are refunds");
    assert!(plain.contains("all denials as far as none was dropped: see tollgate_decision_log_lines_total"), "{plain}");
    assert!(plain.contains("shop: exports") && !plain.contains(masked) && !plain.contains(skipped), "{plain}");
    for said in [hashed, hidden] {
        assert!(
            said.contains(masked) && said.contains("5 reach no limit") && !said.contains("cannot be read"),
            "{said}"
        );
    }
    assert!(refunds.contains(skipped) && refunds.contains("0 requests") && !refunds.contains("cannot be read"));
}

#[test]
fn a_limit_that_requests_bring_along_denies_as_it_did() {
    let limit = json!({"algorithm": "sliding_window", "number": 3, "period_ms": 60_000});
    let other = json!({"rule": "(override)", "descriptor": [{"key": "user", "value": "ann"}], "limit": limit});
    let log: String = (0..5).map(|second| decision(second, &other)).collect();
    let folder = folder(NEW, &[("decisions", log.as_bytes())]);
    let report: Value = serde_json::from_str(&printed(&folder, &["--json", "decisions"])).unwrap();
    assert_eq!((&report["requests"], &report["denied"]), (&5.into(), &2.into()), "{report:#}");
}

#[test]
fn who_has_read_enough_ends_a_command_quietly() {
    let folder = folder(NEW, &[("decisions", decision(0, &json!({})).as_bytes())]);
    let commands: [&[&str]; 5] =
        [&["replay", "--rules", "new.yaml", "decisions"], &["schema"], &["settings"], &["metrics"], &["command-line"]];
    for words in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command().args(words).current_dir(folder.path()).stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    }
}

#[test]
fn a_replay_that_reaches_no_limit_says_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "time,user\n2026-01-02T03:04:05Z,ann\n").unwrap();
    std::fs::write(folder.path().join("rules.yaml"), crate::process::RULES).unwrap();
    let replay = |words: &[&str]| {
        let mut command = crate::support::tollgate::command();
        command.current_dir(folder.path()).args(["replay", "--rules", "rules.yaml", "a.csv"]).args(words);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
    };
    assert_eq!(replay(&["--map", "user=%user%"]).0, Some(0));
    let (code, said) = replay(&["--map", "usr=%user%"]);
    assert!(code == Some(3) && said.contains("for example: key \"usr\": this level has \"user\""), "{said}");
    let (code, said) = replay(&["--map", "user=%user%", "--domain", "shpo"]);
    assert!(code == Some(3) && said.contains("domain \"shpo\": did you mean \"shop\"?"), "{said}");
    for format in ["json", "decisions", "envoy"] {
        let map: &[&str] =
            if format == "envoy" { &["--map", "user=%REQ(:METHOD)%"] } else { &["--map", "user=%user%"] };
        let (code, said) = replay(&[map, &["--log-format", format]].concat());
        assert!(code == Some(1) && said.contains("name the format of the log with --log-format"), "{format}: {said}");
        assert!(!said.contains("invalid type") && !said.contains("expected"), "{format}: {said}");
    }
}

#[test]
fn a_log_that_is_none_says_what_it_is() {
    let binary: Vec<u8> = (0..=255).cycle().take(3_000).collect();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&binary).unwrap();
    let others = "{\"a\": 1, \"b\": [1]}\n".repeat(3);
    let logs = [
        ("binary", binary),
        ("binary.gz", packed.finish().unwrap()),
        ("array.json", b"[\n  {\"user\": \"ann\"}\n]\n".to_vec()),
        ("others.json", others.into_bytes()),
        ("empty", Vec::new()),
    ];
    let logs = logs.each_ref().map(|(name, bytes)| (*name, &**bytes));
    let folder = folder(NEW, &logs);
    for (log, expected) in [
        ("binary", "error: binary: is binary: a log is text, plain or compressed with gzip\n"),
        ("binary.gz", "error: binary.gz: is binary: a log is text, plain or compressed with gzip\n"),
        ("array.json", "error: array.json: is a JSON array: write one object on each line, for example with jq"),
    ] {
        let said = refused(&folder, &["--map", "user=%user%", log]);
        assert!(said.starts_with(expected), "{log}: {said}");
    }
    let output = replay(&folder, &["--map", "user=%user%", "others.json"], None);
    let (said, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(said.contains("  3 cannot be read:\n    others.json:1: has no time: --time '%FIELD%' says"), "{said}");
    assert!(output.status.code() == Some(1) && error.starts_with("error: no line can be read"), "{error}");
    assert!(printed(&folder, &["empty"]).starts_with("0 lines: the log is empty\n"));
}

#[test]
fn a_suggestion_that_cannot_be_made_says_why() {
    let folder = folder(NEW, &[("a.csv", b"time,user\n2026-01-02T03:04:05Z,ann\n"), ("empty", b"")]);
    let goal = ["--map", "user=%user%", "--suggest", "deny at most 1 % of users"];
    for (words, why) in [
        (
            &["--rule", "sms", "a.csv"][..],
            "no number is suggested: no request reaches a limit whose number can be tried",
        ),
        (&["empty"], "no number is suggested: the log is empty"),
    ] {
        let said = printed(&folder, &[&goal, words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert!(!printed(&folder, &[&goal[..], &["a.csv"]].concat()).contains("no number is suggested"));
}

#[test]
fn rules_without_any_rule_are_named_as_the_cause() {
    let folder = folder("domain: shop\ndescriptors: []\n", &[("a.csv", b"time,user\n2026-01-02T03:04:05Z,ann\n")]);
    let output = replay(&folder, &["--map", "user=%user%", "a.csv"], None);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("for example: key \"user\": this level has no rules"), "{said}");
}
