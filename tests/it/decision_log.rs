//! The decision log: denials, their limits and reasons; and that logging never changes a decision.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ::tollgate::wire::rate_limit_response::Code;
use serde_json::{Value, json};
use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};
use support::{wait_until, wait_until_async};

use super::console::TOKEN;

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 1, name: per-user, algorithm: fixed_window}}
- {key: new, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: guess, rate_limit: {unit: year, requests_per_unit: 1, penalty: {after: 1, within: 1h, ban: 1d}}}
- {key: jobs, descriptors: [{key: stream, rate_limit: {requests_per_unit: 1, algorithm: concurrency}}]}
- key: several
  rate_limits:
  - {unit: year, requests_per_unit: 1}
  - {unit: day, requests_per_unit: 5}
";

/// A folder for the log, and where that is.
fn log() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    (folder, path)
}

fn start(path: &Path, settings: &[&str]) -> Tollgate {
    let place = format!("DECISION_LOG={}", path.display());
    Tollgate::start(RULES, &[settings, &[&place]].concat())
}

/// The lines, as soon as there are so many.
fn lines(path: &Path, number: usize) -> Vec<Value> {
    let text = || fs::read_to_string(path).unwrap_or_default();
    wait_until("lines", || text().lines().count() >= number && text().ends_with('\n'));
    let lines: Vec<Value> = text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), number, "{lines:?}");
    lines
}

fn written(service: &Tollgate, fate: &str) -> f64 {
    service.metric(&format!("tollgate_decision_log_lines_total{{fate=\"{fate}\"}}"))
}

/// Rule, outcome and reason of each line.
fn said(lines: &[Value]) -> Vec<[&str; 3]> {
    let text = |line: &'_ Value, name: &str| -> &'static str { Box::leak(line[name].as_str().unwrap_or("-").into()) };
    lines.iter().map(|line| ["rule", "outcome", "reason"].map(|name| text(line, name))).collect()
}

#[tokio::test]
async fn a_denied_limit_has_a_line_that_says_who_how_much_and_why() {
    let (_folder, path) = log();
    let service = start(&path, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let mut client = service.client().await;
    for _ in 0..2 {
        let mut call = tonic::Request::new(request("shop", &[&[("user", "ann")]]));
        call.metadata_mut().insert("x-request-id", "call-7".parse().unwrap());
        client.should_rate_limit(call).await.unwrap();
    }
    let mut line = lines(&path, 1).remove(0);
    let time = line["time"].take();
    let time = humantime::parse_rfc3339(time.as_str().unwrap()).unwrap();
    assert!(time.elapsed().unwrap() < support::SOON);
    let retry_after_ms = line["retry_after_ms"].take().as_u64().unwrap();
    assert!(retry_after_ms > 0);
    let expected = json!({
        "time": null,
        "domain": "shop",
        "rule": "per-user",
        "descriptor": [{"key": "user", "value": "ann"}],
        "hits": 1,
        "limit": {"algorithm": "fixed_window", "number": 1, "period_ms": 31_536_000_000_u64},
        "remaining": 0,
        "retry_after_ms": null,
        "outcome": "denied",
        "reason": "over",
        "sampled": false,
        "instance": service.admin("GET", "/replicas", TOKEN).1["replicas"][0]["id"],
        "call": 1,
        "request_id": "call-7",
    });
    assert_eq!(line, expected);
    wait_until("it is counted", || written(&service, "written") == 1.0);
}

#[tokio::test]
async fn every_way_to_be_denied_is_told_apart_and_what_passes_is_not_told() {
    let (_folder, path) = log();
    let service = start(&path, &["UNKNOWN_DOMAIN=deny", "UNKNOWN_DESCRIPTOR=deny"]);
    let passes = async |domain: &str, entries: &[(&str, &str)]| service.passes(domain, entries).await;
    for (entries, expected) in [
        (&[("user", "ann")][..], [true, false]),
        (&[("new", "ann")], [true, true]),
        (&[("guess", "ann")], [true, false]),
        (&[("several", "ann")], [true, false]),
    ] {
        for is_passed in expected {
            assert_eq!(passes("shop", entries).await, is_passed, "{entries:?}");
        }
    }
    assert!(!passes("shop", &[("guess", "ann")]).await);
    assert!(passes("shop", &[("jobs", "all"), ("stream", "1")]).await);
    assert!(!passes("shop", &[("jobs", "all"), ("stream", "2")]).await);
    assert!(!passes("shop", &[("path", "/")]).await);
    assert!(!passes("mall", &[("user", "ann")]).await);
    let lines = lines(&path, 8);
    let expected = [
        ["per-user", "denied", "over"],
        ["new", "shadow_denied", "over"],
        ["guess", "denied", "banned"],
        ["several#0", "denied", "over"],
        ["guess", "denied", "banned"],
        ["jobs|stream", "denied", "over"],
        ["-", "denied", "unknown_descriptor"],
        ["-", "denied", "unknown_domain"],
    ];
    assert_eq!(said(&lines), expected);
    assert_eq!(lines[5]["limit"], json!({"algorithm": "concurrency", "number": 1}));
    // A stream may release its slot at any moment. The other limits know when they allow it again.
    assert_eq!(lines[5]["retry_after_ms"], Value::Null, "{}", lines[5]);
    assert!(lines[0]["retry_after_ms"].is_u64(), "{}", lines[0]);
    assert_eq!((&lines[7]["domain"], &lines[7]["limit"]), (&"mall".into(), &Value::Null));
}

#[tokio::test]
async fn a_limit_that_an_adjustment_blocks_is_told_with_its_own_number() {
    let (_folder, path) = log();
    let service = start(&path, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let block =
        json!({"effect": "block", "domain": "shop", "rule": "user", "who": "ann", "why": "a test", "for": "1h"});
    let token = format!("Bearer {TOKEN}");
    let (status, text) =
        service.send("POST", "/adjustments", &[("authorization", &token)], block.to_string().as_bytes());
    assert_eq!(status, 201, "{text}");
    assert!(!service.passes("shop", &[("user", "ann")]).await);
    let line = &lines(&path, 1)[0];
    assert_eq!((&line["limit"]["number"], &line["rule"]), (&1.into(), &"per-user".into()), "{line}");
    let adjusted = &line["adjustments"][0];
    assert_eq!(
        (&adjusted["effect"], &adjusted["who"], &adjusted["why"]),
        (&"block".into(), &"ann".into(), &"a test".into())
    );
}

#[tokio::test]
async fn global_shadow_mode_and_failure_modes_are_told() {
    let (_folder, path) = log();
    let service = start(&path, &["SHADOW_MODE=true"]);
    for _ in 0..2 {
        assert!(service.passes("shop", &[("user", "ann")]).await);
    }
    assert_eq!(said(&lines(&path, 1)), [["per-user", "global_shadow_denied", "over"]]);

    let (_folder, path) = log();
    let service =
        start(&path, &["REDIS_URL=127.0.0.1:1", "FAILURE_MODE=closed", "DECISION_LOG_SAMPLE=1", "REDIS_TIMEOUT=1s"]);
    assert!(!service.passes("shop", &[("user", "ann")]).await);
    assert!(service.passes("shop", &[("new", "ann")]).await);
    let lines = lines(&path, 2);
    let expected = [["per-user", "denied", "failure_mode_closed"], ["new", "shadow_denied", "failure_mode_closed"]];
    assert_eq!(said(&lines), expected);
    assert!(lines[0]["retry_after_ms"].as_u64() > Some(0) && lines[0]["remaining"].is_null(), "{lines:?}");
}

#[tokio::test]
async fn values_are_as_they_are_hashed_or_left_out() {
    let key = "VALUES_KEY=a key of sixteen";
    for (settings, shown) in [
        (&["DECISION_LOG_VALUES=hidden"][..], json!([{"key": "user"}])),
        (&["DECISION_LOG_VALUES=hashed", key], {
            let key = blake3::hash(b"a key of sixteen");
            let hash = blake3::keyed_hash(key.as_bytes(), b"ann").to_hex();
            json!([{"key": "user", "value": &hash[..32]}])
        }),
    ] {
        let (_folder, path) = log();
        let service = start(&path, settings);
        for _ in 0..2 {
            service.passes("shop", &[("user", "ann")]).await;
        }
        assert_eq!(lines(&path, 1)[0]["descriptor"], shown);
        assert!(!format!("{:?}", service.logs()).contains("a key of sixteen"));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all(b"short\n").unwrap();
    let of_file = format!("VALUES_KEY_FILE={}", file.path().display());
    for (setting, reason) in [
        ("RULES=config/rules", "DECISION_LOG_VALUES=hashed (environment): needs VALUES_KEY, or VALUES_KEY_FILE"),
        ("VALUES_KEY=short", "VALUES_KEY=*** (environment): has 5 characters"),
        (&of_file, "has 5 characters"),
        ("VALUES_KEY_FILE=/nowhere", "VALUES_KEY_FILE=/nowhere (environment): cannot be read: "),
    ] {
        let settings = ["DECISION_LOG_VALUES=hashed", "DECISION_LOG=stdout", "RULES=config/rules", setting];
        let settings = settings.map(|setting| setting.split_once('=').unwrap());
        let output = tollgate::command().envs(settings).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(reason), "{said}");
    }
}

#[tokio::test]
async fn standard_output_takes_lines_and_the_last_are_there_at_the_end() {
    let (_folder, path) = log();
    let mut command = tollgate::command();
    command.stdout(fs::File::create(&path).unwrap());
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let named = format!("RULES={}", rules.path().display());
    let mut service = Tollgate::start_by(command, &["DECISION_LOG=stdout", "DECISION_LOG_SAMPLE=1", &named]);
    let asked = request("shop", &[&[("user", "ann")], &[("several", "ann")]]);
    assert_eq!(service.ask(asked).await.unwrap().overall_code(), Code::Ok);
    service.signal("TERM");
    assert!(service.wait().success());
    let lines = lines(&path, 3);
    let outcomes = ["per-user", "several#0", "several#1"].map(|rule| [rule, "allowed", "within"]);
    assert_eq!(said(&lines), outcomes);
    assert!(lines.iter().all(|line| line["sampled"] == true && line["sample_share"] == 1.0), "{lines:?}");
}

#[tokio::test]
async fn a_file_has_so_many_bytes_and_so_many_of_those_of_before_are_kept() {
    let (folder, path) = log();
    let service = start(&path, &["DECISION_LOG_FILE_BYTES=2000", "DECISION_LOG_FILES=2", "DECISION_LOG_SAMPLE=1"]);
    for _ in 0..50 {
        service.passes("shop", &[("user", "ann")]).await;
    }
    wait_until("all are written", || written(&service, "written") == 50.0);
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    names.sort();
    let suffixes: Vec<_> = names.iter().map(|name| name.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(suffixes, ["jsonl", "1", "2"]);
    assert!(names.iter().all(|name| fs::metadata(name).unwrap().len() <= 2_000));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_harms_no_decision_and_is_told_once_and_counted() {
    let service = start(Path::new("/dev/full"), &["DECISION_LOG_SAMPLE=1"]);
    for number in 0..20 {
        assert_eq!(service.passes("shop", &[("user", "ann")]).await, number == 0);
    }
    wait_until("all are counted", || written(&service, "error") == 20.0);
    let told = service.must_log("the decision log cannot be written");
    assert!(told["level"] == "ERROR" && told["error"].as_str().unwrap().contains("No space left"), "{told}");
    let times = service.logs().iter().filter(|line| line["message"] == told["message"]).count();
    assert!(times <= 2, "{times}");

    let settings =
        [("RULES", "config/rules"), ("DECISION_LOG", "/nowhere/decisions"), ("GRPC_PORT", "0"), ("PORT", "0")];
    let output = tollgate::command().envs(settings).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("the decision log cannot be written"), "{said}");
}

#[tokio::test]
async fn lines_are_bounded_in_a_second_and_the_others_are_counted() {
    let (_folder, path) = log();
    let service = start(&path, &["DECISION_LOG_LINES_PER_SECOND=1"]);
    let mut client = service.client().await;
    for _ in 0..201 {
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
    }
    let fates = || ["written", "rule", "rate"].map(|fate| written(&service, fate));
    wait_until("all have their fate", || fates().iter().sum::<f64>() == 200.0);
    assert!(fates()[0] >= 1.0 && fates()[1] > 0.0, "{:?}", fates());
}

#[tokio::test]
async fn a_flood_at_one_limit_leaves_the_lines_of_others_and_says_how_many_it_has_lost() {
    let (_folder, path) = log();
    let service = start(&path, &["DECISION_LOG_LINES_PER_SECOND=20"]);
    let mut client = service.client().await;
    for _ in 0..301 {
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
    }
    for _ in 0..2 {
        service.passes("shop", &[("guess", "bob")]).await;
    }
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    wait_until("the other limit is told", || lines().iter().any(|line| line["rule"] == "guess"));
    assert!(written(&service, "rule") > 0.0);
    // In the next second there is room again, and the limit's first line says how many there were not.
    wait_until_async("what was left out is told", async || {
        service.passes("shop", &[("user", "ann")]).await;
        let (told, lines) = (lines(), |line: &&Value| line["rule"] == "per-user");
        let of_limit = told.iter().filter(lines);
        of_limit.map(|line| 1 + line["suppressed"].as_u64().unwrap_or(0)).sum::<u64>() >= 300
    })
    .await;
}

#[tokio::test]
async fn calls_that_fail_are_told_with_the_limits_that_they_failed_for() {
    let (_folder, path) = log();
    let service =
        start(&path, &["REDIS_URL=127.0.0.1:1", "FAILURE_MODE=error", "REDIS_TIMEOUT=1s", "UNKNOWN_DESCRIPTOR=deny"]);
    let asked = request("shop", &[&[("user", "ann")]]);
    assert!(service.ask(asked).await.is_err());
    let lines = lines(&path, 1);
    assert_eq!(said(&lines), [["per-user", "failed", "failure_mode_error"]]);
    assert_eq!((&lines[0]["limit"]["number"], &lines[0]["remaining"]), (&1.into(), &Value::Null), "{lines:?}");
    assert_eq!(lines[0]["descriptor"][0]["value"], "ann");
}

#[tokio::test]
async fn nobody_waits_for_a_reader_of_standard_output_and_what_does_not_fit_is_counted() {
    let mut command = tollgate::command();
    command.stdout(Stdio::piped());
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let named = format!("RULES={}", rules.path().display());
    let service = Tollgate::start_by(command, &["DECISION_LOG=stdout", &named, "DECISION_LOG_LINES_PER_SECOND=100000"]);
    let mut client = service.client().await;
    let user = "x".repeat(60_000);
    for number in 0..250 {
        let answer = client.should_rate_limit(request("shop", &[&[("user", &user)]])).await.unwrap().into_inner();
        assert_eq!(answer.overall_code() == Code::Ok, number == 0);
    }
    assert!(written(&service, "queue") > 50.0, "of 15 MB half waits");
}

#[tokio::test]
async fn without_the_log_there_is_none_and_the_debug_line_names_the_limits_that_are_over() {
    let service = Tollgate::start(RULES, &["LOG_LEVEL=debug"]);
    let asked = request("shop", &[&[("user", "ann")], &[("new", "ann")]]);
    for _ in 0..2 {
        service.ask(asked.clone()).await.unwrap();
    }
    let is_denied = |line: &Value| line["message"] == "decided" && line["over_limit"] == true;
    wait_until("it is logged", || service.logs().iter().any(is_denied));
    let line = service.logs().into_iter().find(is_denied).unwrap();
    assert_eq!(line["over"], "[\"per-user\", \"new (shadow)\"]");
    assert!(service.passes("shop", &[("new", "ann")]).await && service.passes("shop", &[("new", "ann")]).await);
    let is_shadow = |line: &Value| line["over"] == "[\"new (shadow)\"]" && line["over_limit"] == false;
    wait_until("it is logged", || service.logs().iter().any(is_shadow));
    assert!(!service.get("/metrics").1.contains("decision_log"));
}

#[test]
fn a_setting_of_a_log_that_is_off_is_told_to_do_nothing() {
    let service = Tollgate::start(RULES, &["DECISION_LOG_SAMPLE=0.5", "DECISION_LOG_FILES=2", "VALUES_KEY=hidden"]);
    for told in [
        "DECISION_LOG_SAMPLE=0.5 (environment) does nothing: DECISION_LOG is off",
        "DECISION_LOG_FILES=2 (environment) does nothing: DECISION_LOG is not a file",
        "VALUES_KEY=*** (environment) does nothing: nothing is hashed",
    ] {
        service.must_log(told);
    }
}

/// The names in the first column of the table of fields on the page about the decision log.
fn explained() -> BTreeSet<String> {
    let page = fs::read_to_string("docs/decision-log.md").unwrap();
    let (_, table) = page.split_once("| field |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split(", "));
    names.map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[tokio::test]
async fn the_page_explains_the_fields_that_there_are() {
    let (_folder, path) = log();
    let service = start(&path, &["DECISION_LOG_SAMPLE=1"]);
    assert!(service.passes("shop", &[("user", "ann")]).await);
    let line = lines(&path, 1).remove(0);
    let mut fields = BTreeSet::new();
    for (name, value) in line.as_object().unwrap() {
        fields.insert(name.clone());
        if name == "limit" {
            fields.extend(value.as_object().unwrap().keys().map(|field| format!("limit.{field}")));
        }
    }
    // A line has these only if they say something; other tests have such lines.
    fields.extend(["adjustments", "counted", "never", "suppressed"].map(str::to_owned));
    assert_eq!(explained(), fields);
}

#[tokio::test]
async fn the_command_says_in_words_why_a_request_was_denied() {
    let (folder, path) = log();
    let hashing = ["DECISION_LOG_VALUES=hashed", "VALUES_KEY=a key of sixteen", "DECISION_LOG_FILE_BYTES=1024"];
    for settings in [&[][..], &hashing] {
        let service = start(&path, settings);
        for user in ["ann", "bob"] {
            for _ in 0..2 {
                service.passes("shop", &[("user", user)]).await;
            }
        }
        wait_until("all are written", || written(&service, "written") == 2.0);
    }
    // Two instances wrote here, one after the other, and the file was rotated in between.
    assert!(fs::exists(path.with_extension("jsonl.1")).unwrap());
    let log = path.to_str().unwrap();
    let why = |words: &[&str]| {
        let output = crate::process::run(&[&["why", "--log", log], words].concat(), &[]);
        (output.status.code(), crate::process::text(&output.stdout), crate::process::text(&output.stderr))
    };
    let (code, said, _) = why(&["user=ann"]);
    assert_eq!((code, said.matches("DENIED").count()), (Some(0), 1), "{said}");
    for words in [
        "shop: user=ann  DENIED\n  per-user: 1 per year, fixed_window: it asked for 1 hit, 0 left\n",
        "  the same request would have passed from ",
        "  to tell the client: Requests with user=ann have used all of 1 per year.",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let keyed = ["--values-key", "a key of sixteen", "user=ann"];
    assert_eq!(why(&keyed).1.matches("DENIED").count(), 2, "of both, also where values are hashed");
    assert_eq!(why(&["--domain", "mall", "user=ann"]).0, Some(3));
    let (_, json, _) = why(&["--json", "user=ann"]);
    let lines: Value = serde_json::from_str(&json).unwrap();
    let time = lines[0]["time"].as_str().unwrap();
    assert_eq!((lines.as_array().unwrap().len(), &lines[0]["rule"]), (1, &"per-user".into()));
    for (at, found) in
        [(&time[..10], 0), (&time[..16], 0), (&time[11..16], 0), ("1999-01-01", 3), ("14", 1), ("2 pm", 1)]
    {
        let (code, _, said) = why(&["--at", at, "user=ann"]);
        assert_eq!(code, Some(found), "{at}: {said}");
        assert!(found != 1 || said.contains("write a time in UTC"), "{said}");
    }
    let (code, _, said) = why(&["user=eve"]);
    assert!(code == Some(3) && said.contains("none of 4 lines matches"), "{said}");
    let (_, _, said) = why(&["-n", "1", "--values-key", "a key of sixteen", "user=ann"]);
    assert!(said.contains("1 earlier lines match"), "{said}");
    let other = folder.path().join("other.log");
    fs::write(&other, "GET / 200\nGET / 429\n").unwrap();
    let output = crate::process::run(&["why", "--log", other.to_str().unwrap(), "user=ann"], &[]);
    let said = crate::process::text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("none of 2 lines is one of a decision log"), "{said}");
}

/// In memory and in Redis: a stream that brings no estimate holds that of the rule, and then what was learned.
#[tokio::test]
async fn a_stream_of_a_budget_is_told_by_what_it_holds_and_not_by_what_it_asks_for() {
    let rules = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limit: {name: tokens, algorithm: budget, unit: year, requests_per_unit: 1000, estimate: 455,
                     learn_estimate: true, max_estimate: 900}
";
    let redis = Redis::start();
    for settings in [&[][..], &[&*format!("REDIS_URL={}", redis.url())]] {
        let (_folder, path) = log();
        let place = format!("DECISION_LOG={}", path.display());
        let service = Tollgate::start(rules, &[settings, &[&place, "DECISION_LOG_SAMPLE=1"]].concat());
        for (key, stream, hits) in
            [("hold", "a", 0), ("settle", "a", 200), ("hold", "b", 0), ("hold", "c", 0), ("hold", "d", 800)]
        {
            let mut call = request("llm", &[&[("tenant", "acme"), (key, stream)]]);
            call.descriptors[0].hits_addend = Some(hits);
            service.ask(call).await.unwrap();
        }
        let counted: Vec<_> =
            lines(&path, 5).iter().map(|line| json!([line["outcome"], line["hits"], line["counted"]])).collect();
        let expected = [
            json!(["allowed", 0, 455]),
            json!(["allowed", 200, 200]),
            json!(["allowed", 0, 450]),
            json!(["denied", 0, null]),
            json!(["denied", 800, 800]),
        ];
        assert_eq!(counted, expected, "{settings:?}");
        let output = crate::process::run(&["why", "--all", "--log", path.to_str().unwrap(), "tenant=acme"], &[]);
        let said = crate::process::text(&output.stdout);
        for words in [
            "within the limit, holding 455 hits, 545 left",
            "within the limit, settling for 200 hits, 800 left",
            "within the limit, holding 450 hits, 350 left",
            "it would hold an estimate that is not in the log, 350 left",
            "it would hold 800 hits, 350 left",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
