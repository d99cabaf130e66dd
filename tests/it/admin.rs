//! Requests to the admin API: who may make them, and the traces of those that are refused.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::tollgate::Tollgate;
use crate::support::wait_until;

const RULES: &str = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]}";

const ADMIN: &str = "a token of some length";
const READER: &str = "another one, of a reader";

fn start() -> Tollgate {
    let (admin, reader) = (format!("ADMIN_TOKEN={ADMIN}"), format!("ADMIN_READ_TOKEN={READER}"));
    Tollgate::start(RULES, &["ADMIN_API=true", &admin, &reader])
}

fn counted(service: &Tollgate, role: &str, result: &str) -> f64 {
    service.metric(&format!("tollgate_admin_requests_total{{result=\"{result}\",role=\"{role}\"}}"))
}

#[test]
fn a_refused_request_is_logged_with_the_address_of_its_client_and_counted() {
    let service = start();
    let refused = "a request to the admin API was refused";
    assert_eq!(service.admin("GET", "/top", ADMIN).0, 200);
    assert_eq!(service.admin("GET", "/adjustments", READER).0, 200);
    assert_eq!(service.admin("GET", "/adjustments", ADMIN).0, 200);
    assert!(service.logged(refused).is_none());

    assert_eq!(service.admin("POST", "/adjustments", READER).0, 403);
    let line = service.must_log(refused);
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    for (field, value) in [("method", "POST"), ("path", "/adjustments"), ("role", "reader"), ("result", "forbidden")] {
        assert_eq!(line[field], value, "{line}");
    }
    let long = format!("/adjustments/{}", "x".repeat(10_000));
    assert_eq!(service.admin("DELETE", &long, "a wrong token").0, 401);
    assert_eq!(service.get("/console/live").0, 401);
    let unauthorized = || service.logs().into_iter().find(|line| line["result"] == "unauthorized");
    wait_until("it is logged", || unauthorized().is_some());
    let line = unauthorized().unwrap();
    assert_eq!((line["role"].as_str(), line["path"].as_str().map(str::len)), (Some("none"), Some(64)), "{line}");

    let results =
        [("admin", "ok", 2.0), ("reader", "ok", 1.0), ("reader", "forbidden", 1.0), ("none", "unauthorized", 2.0)];
    for (role, result, times) in results {
        assert_eq!(counted(&service, role, result), times, "{role} {result}");
    }
    assert_eq!(service.admin("GET", "/counters?domain=shop", ADMIN).0, 400);
    assert_eq!(counted(&service, "admin", "invalid"), 1.0);
}

#[test]
fn a_method_that_a_path_does_not_have_is_refused_without_a_token_and_counted() {
    let service = start();
    let paths =
        ["/replicas", "/what-if", "/what-if/log", "/candidates", "/top", "/usage", "/explain", "/rules", "/log-level"];
    for (before, path) in paths.into_iter().enumerate() {
        assert_eq!(service.send("POST", path, &[], b"").0, 401, "{path}");
        assert_eq!(counted(&service, "none", "unauthorized"), (before + 1) as f64, "{path}");
        let (status, _) = service.admin("PATCH", path, ADMIN);
        // One path reads its query first.
        assert_eq!(status, if path == "/explain" { 400 } else { 405 }, "{path}");
        assert_eq!(counted(&service, "admin", "invalid"), (before + 1) as f64, "{path}");
    }
}

#[tokio::test]
async fn the_level_of_the_log_changes_without_a_restart() {
    let service = start();
    let change = |way: &str, path: &str, levels: &str, token: &str| {
        let token = format!("Bearer {token}");
        let (status, said) = service.send(way, path, &[("authorization", &token)], levels.as_bytes());
        (status, serde_json::from_str::<Value>(&said).unwrap_or_else(|error| panic!("{said}: {error}")))
    };
    // At DEBUG, each request has a line.
    let is_shown = async |user: &str| {
        assert!(service.passes("shop", &[("user", user)]).await);
        let changes =
            || service.logs().iter().filter(|line| line["message"] == "the level of the log has changed").count();
        let before = changes();
        assert_eq!(change("DELETE", "/log-level", "", ADMIN).0, 200);
        wait_until("it is logged", || changes() > before);
        service.logs().iter().any(|line| line.to_string().contains(user))
    };
    assert_eq!(
        change("GET", "/log-level", "", READER).1,
        json!({
            "level": "info", "configured": "info", "ends_in_ms": null
        })
    );
    assert!(!is_shown("one-at-info").await);
    assert_eq!(change("PUT", "/log-level", "debug,h2=warn", ADMIN).1["level"], "debug,h2=warn");
    assert!(is_shown("one-at-debug").await);
    assert!(!is_shown("one-at-info-again").await);

    assert_eq!(change("PUT", "/log-level", "debug", READER).0, 403);
    for (path, levels, said) in [
        ("/log-level", "loud", "must be one of trace"),
        ("/log-level?for=10", "debug", "for=10m, up to 7d"),
        ("/log-level?for=8d", "debug", "for=10m, up to 7d"),
        ("/log-level?level=debug", "", "the only parameter is for"),
    ] {
        let (status, error) = change("PUT", path, levels, ADMIN);
        assert!(status == 400 && error["error"].as_str().unwrap().contains(said), "{path}: {error}");
    }
    let told = change("PUT", "/log-level?for=10m", "debug", ADMIN).1;
    assert!((1..=600_000).contains(&told["ends_in_ms"].as_u64().unwrap()), "{told}");
    change("PUT", "/log-level?for=50ms", "warn", ADMIN);
    wait_until("it is over", || change("GET", "/log-level", "", READER).1["level"] == "info");
    let timed = || service.logs().into_iter().any(|line| line["role"] == "timer" && line["now"] == "info");
    wait_until("it is logged", timed);
}

#[test]
fn wrong_tokens_are_slowed_and_hold_up_no_right_one() {
    let service = start();
    let guess = |number: u32| service.admin("GET", "/top", &format!("guess {number}")).0;
    (0..10).for_each(|number| assert_eq!(guess(number), 401));
    std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..60).map(|number| scope.spawn(move || (guess(number), Instant::now()))).collect();
        let start = Instant::now();
        for _ in 0..20 {
            assert_eq!(service.admin("GET", "/top", ADMIN).0, 200);
        }
        let took = start.elapsed();
        let answers: Vec<_> = guesses.into_iter().map(|guess| guess.join().unwrap()).collect();
        let slow = answers.iter().filter(|(_, at)| *at > start + Duration::from_millis(900)).count();
        assert!((30..=34).contains(&slow), "{slow} of {answers:?}");
        assert!(answers.iter().all(|(status, _)| [401, 429].contains(status)), "{answers:?}");
        assert!(took < Duration::from_millis(900), "{took:?}");
    });
    assert!(counted(&service, "none", "throttled") >= 20.0);
}

#[tokio::test]
async fn hidden_values_of_clients_are_in_no_answer_to_a_reader() {
    let (admin, reader) = (format!("ADMIN_TOKEN={ADMIN}"), format!("ADMIN_READ_TOKEN={READER}"));
    let rules = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 5, usage: {by: hour, keep: 2d}}}
- {key: user, value: bob, rate_limit: {unit: day, requests_per_unit: 7}}
";
    let settings = ["ADMIN_API=true", "TOP_KEYS_VALUES=hidden", "WHAT_IF_REQUESTS=100", &admin, &reader];
    let service = Tollgate::start(rules, &settings);
    assert!(service.passes("shop", &[("user", "eve-of-acme")]).await);
    for path in [
        "/usage",
        "/rules",
        "/top",
        "/adjustments",
        "/what-if",
        "/what-if/log",
        "/replicas",
        "/console/entries?domain=shop",
    ] {
        let get = |token: &str| {
            let token = format!("Bearer {token}");
            service.send("GET", path, &[("authorization", &token)], b"")
        };
        let (status, text) = get(READER);
        assert!(!text.contains("eve-of-acme"), "{path}: {text}");
        assert_eq!(status, if path == "/usage" { 403 } else { 200 }, "{path}: {text}");
        assert_eq!(get(ADMIN).0, 200, "{path}");
    }
    let usage = service.admin("GET", "/usage", ADMIN).1;
    assert!(usage.to_string().contains("eve-of-acme"), "{usage}");
    // A value that a rule names is no client's: /metrics has it for everybody.
    let rules = service.admin("GET", "/rules", READER).1;
    assert!(rules.to_string().contains("user=bob"), "{rules}");
}
