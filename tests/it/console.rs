//! The console: the page is public, its data needs the token, and it shows live updates.

use crate::support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use support::redis::Redis;
use support::tollgate::Tollgate;
use support::wait_until;

pub(crate) const TOKEN: &str = "a token of some length";

pub(crate) const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: day, requests_per_unit: 2}
  - key: login
    rate_limit: {name: logins, unit: minute, requests_per_unit: 5, failure_mode: closed}
  - key: try
    shadow_mode: true
    rate_limit: {name: trial, unit: day, requests_per_unit: 1, algorithm: fixed_window}
";

pub(crate) fn start(settings: &[&str]) -> Tollgate {
    let token = format!("ADMIN_TOKEN={TOKEN}");
    Tollgate::start(RULES, &[&["ADMIN_API=true", &token][..], settings].concat())
}

/// A request of one entry.
pub(crate) fn ask(service: &Tollgate, key: &str, value: &str) {
    let descriptor = serde_json::json!({ "entries": [{ "key": key, "value": value }] });
    let request = serde_json::json!({ "domain": "shop", "descriptors": [descriptor] });
    let (status, said) = service.post("/json", request.to_string().as_bytes());
    assert!([200, 429].contains(&status), "{status}: {said}");
}

/// The head of an answer, its names in small letters.
fn head(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split("\r\n\r\n").next().unwrap().to_lowercase()
}

/// The stream of updates that the page receives.
struct Live(BufReader<TcpStream>);

impl Live {
    fn open(port: u16) -> Live {
        Live::open_after(port, "")
    }

    fn open_after(port: u16, query: &str) -> Live {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET /console/live{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n")
            .unwrap();
        Live(BufReader::new(stream))
    }
}

impl Iterator for Live {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(told) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(told).unwrap());
            }
        }
    }
}

#[test]
fn anybody_may_have_the_page_and_nobody_else_may_use_it() {
    let service = start(&[]);
    for path in ["/console", "/console/page.js", "/console/parts.js", "/console/page.css"] {
        let head = head(service.http_port, path);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        for said in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(said), "{path} without {said}: {head}");
        }
        assert!(!head.contains("unsafe-") && !head.contains("access-control-"), "{path}: {head}");
    }
    let (_, page) = service.get("/console");
    assert!(!page.contains("per-user") && !page.contains(TOKEN), "{page}");
}

#[test]
fn what_it_shows_needs_the_token_and_is_on_no_other_port() {
    let service = start(&["DEBUG_PORT=0"]);
    for path in ["/console/live", "/console/entries", "/rules", "/redis", "/redis/history"] {
        for token in ["", "another token of some length"] {
            let (status, said) = service.admin("GET", path, token);
            assert_eq!(
                (status, &said["error"]),
                (401, &"send Authorization: Bearer and the ADMIN_TOKEN, or ADMIN_READ_TOKEN".into())
            );
        }
    }
    // On the gRPC port, HTTP/1.1 gets no response.
    let mut stream = TcpStream::connect(("127.0.0.1", service.grpc_port)).unwrap();
    write!(stream, "GET /console HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).to_lowercase().contains("<html"), "{said:?}");
}

#[test]
fn without_the_administrators_there_is_none_and_a_setting_turns_it_off() {
    for service in [Tollgate::start(RULES, &[]), start(&["CONSOLE=false"])] {
        let paths = ["/console/page.js", "/console/live", "/console/entries", "/rules", "/redis", "/redis/history"];
        for path in ["/console"].into_iter().chain(paths) {
            assert_eq!(service.get(path).0, 404, "{path}");
        }
    }
}

#[test]
fn every_second_it_tells_what_was_decided_and_what_was_logged() {
    let service = start(&[]);
    let mut live = Live::open(service.http_port);
    let first = live.next().unwrap();
    assert_eq!((&first["store"]["name"], &first["store"]["up"]), (&"memory".into(), &1.0.into()), "{first}");
    assert_eq!(
        (&first["rules"], &first["not_serving"], &first["shadow_mode"]),
        (&3.into(), &Value::Null, &false.into())
    );
    let told = first["events"].as_array().unwrap();
    assert!(told.iter().any(|event| event["text"].as_str().unwrap().starts_with("tollgate is up")), "{first}");

    for _ in 0..5 {
        ask(&service, "user", "ann");
    }
    service.change_rules(&RULES.replace("requests_per_unit: 5", "requests_per_unit: 6"));
    let (mut passed, mut denied, mut reloaded, mut numbers) = (0, 0, false, Vec::new());
    for tick in live {
        for second in tick["seconds"].as_array().unwrap() {
            passed += second["passed"].as_u64().unwrap();
            denied += second["denied"].as_u64().unwrap();
            numbers.push(second["number"].as_u64().unwrap());
        }
        let mut events = tick["events"].as_array().unwrap().iter();
        reloaded |= events.any(|event| event["text"].as_str().unwrap().contains("new rules are in force"));
        if reloaded && passed + denied == 5 {
            break;
        }
    }
    assert_eq!((passed, denied), (2, 3));
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "each second once: {numbers:?}");
}

#[test]
fn it_tells_that_redis_is_down_since_when_and_why() {
    let mut redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let mut live = Live::open(service.http_port);
    let up = |tick: &Value| tick["store"]["up"].as_f64().unwrap();
    assert!(live.find(|tick| up(tick) == 1.0).is_some());
    redis.kill();
    let down = live.find(|tick| up(tick) == 0.0).unwrap();
    assert!(down["store"]["cause"].is_string() && down["store"]["since_ms"].as_u64() > Some(0), "{down}");
    redis.restart();
    assert!(live.find(|tick| up(tick) == 1.0).is_some());
}

#[test]
fn rules_are_listed_with_where_they_stand_and_what_they_have_counted() {
    let service = start(&[]);
    for _ in 0..5 {
        ask(&service, "user", "ann");
    }
    ask(&service, "try", "it");
    let list = |query: &str| {
        let (status, listing) = service.admin("GET", &format!("/rules{query}"), TOKEN);
        assert_eq!(status, 200, "{listing}");
        listing
    };
    let names = |listing: &Value| -> Vec<String> {
        let limits = listing["limits"].as_array().unwrap();
        limits.iter().map(|limit| limit["rule"].as_str().unwrap().to_owned()).collect()
    };
    let all = list("");
    assert_eq!((names(&all), &all["total"]), (vec!["per-user".into(), "logins".into(), "trial".into()], &3.into()));
    assert_eq!(all["domains"], serde_json::json!([{ "domain": "shop", "limits": 3 }]));
    let [user, login, trial] = [0, 1, 2].map(|at| &all["limits"][at]);
    assert_eq!((&user["limit"], &user["algorithm"]), (&"2 per day, sliding_window".into(), &"sliding_window".into()));
    assert!(user["at"].as_str().unwrap().ends_with("rules.yaml:5"), "{user}");
    assert_eq!((&user["counted"]["hits"], &user["counted"]["over_limit"]), (&5.into(), &3.into()));
    assert_eq!((&login["failure_mode"], &login["counted"]), (&"closed".into(), &Value::Null));
    assert_eq!(trial["role"], "shadow");

    assert_eq!(names(&list("?search=LOG")), ["logins"]);
    assert_eq!(names(&list("?failure_mode=open&sort=denials")), ["per-user", "trial"]);
    assert_eq!(names(&list("?offset=1&limit=1")), ["logins"]);
    for (sort, first) in [("rules", "per-user"), ("rule", "logins"), ("number", "logins"), ("mode", "logins")] {
        let [one, other] = ["false", "true"].map(|way| names(&list(&format!("?sort={sort}&reverse={way}"))));
        assert_eq!((&*one[0], one.iter().rev().collect::<Vec<_>>()), (first, other.iter().collect()), "{sort}");
    }
    assert_eq!(list("?domain=elsewhere")["total"], 0);
    for (query, right) in [
        ("?limit=many", "write a whole number"),
        (
            "?sort=size",
            "write one of rules, rule, number, burst, algorithm, mode, denials, requests, share, near, undecided",
        ),
        ("?filter=big", "write one of denying, shadow, adjusted, unused, undecided"),
        ("?instance=b", "instance must be all, or self"),
        ("?failure_mode=ajar", "write one of open, closed, local, error"),
        (
            "?rule=x",
            "the parameters are domain, search, failure_mode, filter, sort, reverse, offset, limit and instance",
        ),
    ] {
        let (status, said) = service.admin("GET", &format!("/rules{query}"), TOKEN);
        assert!(status == 400 && said["error"].as_str().unwrap().contains(right), "{query}: {said}");
    }
}

#[test]
fn what_may_stand_next_in_a_descriptor_is_told_with_where_grpc_listens() {
    let service = start(&[]);
    let next = |query: &str| service.admin("GET", &format!("/console/entries{query}"), TOKEN);
    let (status, told) = next("?domain=shop&begin=us");
    let user = serde_json::json!([{ "key": "user", "value": null }]);
    assert_eq!((status, &told["next"], &told["more"]), (200, &user, &false.into()));
    assert_eq!((&told["grpc"], &told["grpc_tls"]), (&format!("127.0.0.1:{}", service.grpc_port).into(), &false.into()));
    let (_, told) = next("?domain=shop&entries=%5B%7B%22key%22%3A%22user%22%2C%22value%22%3A%22ann%22%7D%5D");
    assert_eq!(told["next"], serde_json::json!([]), "there is no other level");
    assert_eq!(next("?entries=user").0, 400);
    let (status, said) = next("?rule=x");
    assert!(
        status == 400 && said["error"].as_str().unwrap().contains("the parameters are domain, entries and begin"),
        "{said}"
    );
}

#[test]
fn redis_is_looked_at_as_the_command_looks_at_it() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url())]);
    let (status, found) = service.admin("GET", "/redis", TOKEN);
    assert_eq!((status, &found["kind"], &found["errors"]), (200, &"single".into(), &serde_json::json!([])), "{found}");
    assert_eq!(found["servers"][0]["runs_scripts"], true);
    let (status, said) = start(&[]).admin("GET", "/redis", TOKEN);
    assert!(status == 404 && said["error"].as_str().unwrap().contains("set REDIS_URL"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn how_redis_has_been_is_kept_and_who_looks_at_it_asks_redis_for_nothing() {
    let redis = Redis::start();
    let service = start(&[&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=20s"]);
    let damaged = "tollgate_damaged_counters_total";
    (0..20).for_each(|number| ask(&service, "user", &format!("u{number}")));
    ask(&service, "login", "ann");
    for name in redis.command::<Vec<String>>("KEYS *login*").await {
        redis.command::<()>(&format!("DEL {name}")).await;
        redis.command::<()>(&format!("LPUSH {name} x")).await;
    }
    ask(&service, "login", "ann");
    assert_eq!(service.metric(damaged), 1.0);
    let past = || service.admin("GET", "/redis/history", TOKEN);
    let steps = || past().1["steps"].as_array().unwrap().clone();
    wait_until("a step is over", || steps().iter().any(|step| step["calls"].as_f64() > Some(0.0)));
    let (status, told) = past();
    assert_eq!((status, &told["step_ms"], &told["most"]), (200, &10_000.into(), &90.into()));
    let step = steps().into_iter().find(|step| step["calls"].as_f64() > Some(0.0)).unwrap();
    assert_eq!((&step["requests_per_call"], &step["damaged"]), (&1.0.into(), &1.into()), "{step}");
    assert!(step["memory"].as_u64() > Some(0) && step["clients"].as_u64() > Some(0), "{step}");
    assert!(step["p50_us"].is_u64() && step["in_flight"].as_f64() > Some(0.0) && step["evicted"] == 0, "{step}");
    let before = redis.calls_of("info");
    (0..50).for_each(|_| drop(past()));
    assert!(redis.calls_of("info") - before <= 5, "its own, and those that come anyway");
    assert_eq!(start(&[]).admin("GET", "/redis/history", TOKEN).0, 404);
}

#[test]
fn only_so_many_watch_at_once_and_who_goes_leaves_room() {
    let service = start(&[]);
    let mut watching: Vec<Live> = (0..16).map(|_| Live::open(service.http_port)).collect();
    watching.iter_mut().for_each(|live| assert!(live.next().is_some()));
    let (status, said) = service.admin("GET", "/console/live", TOKEN);
    assert_eq!((status, &said["error"]), (429, &"16 console pages are open already: close one".into()));
    watching.pop();
    wait_until("there is room for one more", || {
        let mut stream = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
        let path = format!("GET /console/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
        stream.write_all(path.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).is_ok() && &answer == b"HTTP/1.1 200"
    });
}

#[test]
fn refused_rules_are_told_until_right_ones_are_there() {
    let service = start(&[]);
    let mut live = Live::open(service.http_port);
    assert_eq!(live.next().unwrap()["rules_refused"], false);
    service.change_rules("domain: [");
    let told = live.find(|tick| tick["rules_refused"] == true).unwrap();
    assert!(told.is_object());
    service.change_rules(RULES);
    assert!(live.find(|tick| tick["rules_refused"] == false).is_some());
}

#[test]
fn who_comes_again_is_told_what_came_meanwhile_and_nothing_twice() {
    let service = start(&[]);
    let seconds = |tick: &Value| -> Vec<u64> {
        tick["seconds"].as_array().unwrap().iter().map(|second| second["number"].as_u64().unwrap()).collect()
    };
    let mut first = Live::open(service.http_port);
    let third = first.find(|tick| seconds(tick).contains(&3)).unwrap();
    assert!(third["events"].as_array().unwrap().is_empty() || seconds(&third).len() == 3);
    let again = Live::open_after(service.http_port, "?after=2,1").next().unwrap();
    assert_eq!(seconds(&again)[0], 3);
    let events = again["events"].as_array().unwrap();
    assert!(events.iter().all(|event| event["number"].as_u64() > Some(1)), "{again}");
}

#[test]
fn the_page_comes_in_fewer_bytes_to_who_takes_them() {
    let service = start(&[]);
    let (_, plain) = service.get("/console/page.js");
    let address = ("127.0.0.1", service.http_port);
    let mut stream = TcpStream::connect(address).unwrap();
    let asks = "GET /console/page.js HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n";
    stream.write_all(asks.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.len() * 2 < plain.len(), "{} bytes of {}", answer.len(), plain.len());
    assert!(String::from_utf8_lossy(&answer).to_lowercase().contains("content-encoding: gzip"));
}

#[test]
fn a_page_of_another_site_decides_nothing() {
    let service = start(&[]);
    let request = br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    let from = |origin: &str| service.send("POST", "/json", &[("origin", origin)], request).0;
    assert_eq!([from("https://elsewhere.example"), from("null"), from("http://localhost")], [403, 403, 200]);
}

#[test]
fn readers_leave_a_place_for_the_admin_token() {
    const READER: &str = "a token that only reads";
    let service = start(&[&format!("ADMIN_READ_TOKEN={READER}")]);
    let watch = |token: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
        write!(stream, "GET /console/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
            .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        (stream, String::from_utf8_lossy(&answer[9..]).into_owned())
    };
    let readers: Vec<_> = (0..16).map(|_| watch(READER)).collect();
    let answered: Vec<&str> = readers.iter().map(|(_, status)| &**status).collect();
    assert_eq!(answered, [&["200"; 12][..], &["429"; 4]].concat());
    assert_eq!(watch(TOKEN).1, "200");
}

#[test]
fn answers_to_administrators_are_kept_in_no_cache() {
    let service = start(&[]);
    for path in ["/top", "/usage", "/explain?domain=shop&user=ann", "/adjustments", "/counters?domain=shop&user=ann"] {
        let head = head(service.http_port, path);
        assert!(head.contains("\r\ncache-control: no-store"), "{path}: {head}");
    }
}

#[test]
fn the_root_lists_the_paths_that_are_served_and_the_start_logs_the_console() {
    let root = |service: &Tollgate, accept: &str| {
        let (status, body) = service.send("GET", "/", &[("accept", accept)], b"");
        assert_eq!(status, 200);
        body
    };
    let without = Tollgate::start(RULES, &["JSON_API=false"]);
    let text = root(&without, "*/*");
    assert!(
        text.contains("\n/metrics ") && text.contains("No console: set ADMIN_API=true and an ADMIN_TOKEN"),
        "{text}"
    );
    assert!(!text.contains("/json") && !text.contains("/top") && !text.contains("<"), "{text}");
    without.must_log("no console: set ADMIN_API=true and an ADMIN_TOKEN to serve it");

    let service = start(&[]);
    let html = root(&service, "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
    assert!(html.starts_with("<!doctype html>") && html.contains("<a href=\"/console\">"), "{html}");
    for line in root(&service, "*/*").lines().filter(|line| line.starts_with('/')) {
        let path = line.split(' ').next().unwrap();
        assert!(html.contains(path), "{path}");
        assert_ne!(service.admin("GET", path, TOKEN).0, 404, "{path}");
    }
    let logged = service.must_log("serving the console");
    assert_eq!(logged["console"], format!("http://localhost:{}/console", service.http_port));
    let off = start(&["CONSOLE=false"]);
    off.must_log("no console: CONSOLE is off");
    for (service, setting) in [(&without, "ADMIN_API=true and an ADMIN_TOKEN"), (&off, "CONSOLE=true")] {
        let expected = format!("set {setting} to serve it.\n");
        let (status, body) = service.get("/console");
        assert!(status == 404 && body.starts_with("No console: ") && body.ends_with(&expected), "{status} {body}");
    }
}
