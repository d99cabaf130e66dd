//! Rules from a management server, with resources as Envoy Gateway writes them. Each scenario runs against recorded
//! messages of go-control-plane (tests/xds/exchanges), and in `make e2e` against the real one.

use std::os::unix::process::CommandExt as _;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tollgate::sources::files::load::LoadOptions;
use tollgate::sources::xds::{self, Backoff, Event, Headers, Metadata, Options, StreamError};
use tollgate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::ratelimit_config::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};

use crate::health;
use crate::support::certificates::{Authority, Pair};
use crate::support::management::{Fickle, Management};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, command, request};
use crate::support::{wait_until, wait_until_async};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Each scenario by its name, against both servers.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod replayed {
            use super::Management;
            // The server plays while the scenario waits.
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(Management::replayed(stringify!($name)).await).await;
            })*
        }

        mod real {
            use super::Management;
            $(#[tokio::test]
            #[ignore = "needs the server in Go, which `make e2e` builds"]
            async fn $name() {
                super::$name(Management::real(stringify!($name), &[])).await;
            })*
        }
    };
}

scenarios![
    policies_come_change_and_go,
    nothing_is_served_before_the_first_rules,
    what_is_refused_leaves_the_last_good_in_force_until_it_is_mended,
    a_restarted_server_may_know_nothing_at_first,
    a_restarted_server_is_believed_in_the_end,
    the_same_in_another_order_is_no_change,
    health_wants_a_domain_where_it_is_told_to,
    all_that_a_resource_can_say_is_in_force,
    a_policy_that_matches_128_headers_at_once_is_in_force,
];

pub const HOST: &str = "httproute/default/shop/rule/0/match/0/shop_example_com";
pub const MATCH: &str = "rule-0-match-0";

pub fn limit(unit: RateLimitUnit, requests_per_unit: u32) -> Option<RateLimitPolicy> {
    Some(RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() })
}

pub fn node(key: &str, value: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
    RateLimitDescriptor { key: key.into(), value: value.into(), rate_limit, ..RateLimitDescriptor::default() }
}

fn above(key: &str, value: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor { descriptors, ..node(key, value, None) }
}

/// Returns rules as Envoy Gateway writes a route's policy: by header, by address, and with a blocked value.
pub fn policy(domain: &str, requests: u32) -> RateLimitConfig {
    let shadow = RateLimitDescriptor { shadow_mode: true, ..node("rule-1-match-0", "rule-1-match-0", None) };
    let shadow = RateLimitDescriptor { rate_limit: limit(RateLimitUnit::Hour, 1), ..shadow };
    let of_address = node("remote_address", "", limit(RateLimitUnit::Day, u32::MAX));
    let of_network = above("masked_remote_address", "10.0.0.0/8", vec![of_address]);
    let rules = vec![
        node(MATCH, MATCH, limit(RateLimitUnit::Week, requests)),
        shadow,
        node("rule-2-match-0", "rule-2-match-0", limit(RateLimitUnit::Second, 0)),
        of_network,
    ];
    RateLimitConfig { name: domain.into(), domain: domain.into(), descriptors: vec![above(HOST, HOST, rules)] }
}

fn start(management: &Management, settings: &[&str]) -> Tollgate {
    start_until("tollgate is up", management.port, settings)
}

fn start_until(said: &str, port: u16, settings: &[&str]) -> Tollgate {
    let server = format!("CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:{port}");
    let all = [
        "CONFIG_TYPE=GRPC_XDS_SOTW",
        &server,
        "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
        "CONFIG_GRPC_XDS_NODE_METADATA=zone=a",
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=50ms",
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL=50ms",
    ];
    Tollgate::start_until(said, command(), &[&all, settings].concat())
}

const FORCE: &str = "FORCE_START_WITHOUT_INITIAL_CONFIG=true";

/// The limit that the first rule of a policy is known to have; `None`: there is none.
async fn number(tollgate: &Tollgate, domain: &str) -> Option<u32> {
    let peek = request(domain, &[&[(HOST, HOST), (MATCH, MATCH)]]);
    let statuses = tollgate.ask(peek).await.unwrap().statuses;
    statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

async fn until_number(tollgate: &Tollgate, domain: &str, expected: Option<u32>) {
    let what = format!("{domain} has {expected:?}");
    wait_until_async(&what, async || number(tollgate, domain).await == expected).await;
}

fn answers(tollgate: &Tollgate) -> (f64, f64) {
    let of = |answer: &str| tollgate.metric(&format!("tollgate_xds_responses_total{{answer=\"{answer}\"}}"));
    (of("ack"), of("nack"))
}

fn loads(tollgate: &Tollgate, result: &str) -> f64 {
    tollgate.metric(&format!("tollgate_rules_loads_total{{result=\"{result}\"}}"))
}

async fn policies_come_change_and_go(mut management: Management) {
    let tollgate = start(&management, &[FORCE]);
    assert_eq!(tollgate.get("/healthcheck"), (200, "OK".to_owned()), "there may never be a policy");
    tollgate.must_log("no rules have been received from the management server");
    tollgate.must_log("connected to the management server");
    assert_eq!(number(&tollgate, "eg/http").await, None);
    assert_eq!((loads(&tollgate, "success"), answers(&tollgate)), (0.0, (0.0, 0.0)));

    management.set("1", &[policy("eg/http", 3)]).await;
    until_number(&tollgate, "eg/http", Some(3)).await;
    let ask = async |last: &[(&str, &str)]| {
        let entries = [&[(HOST, HOST)], last].concat();
        tollgate.ask(request("eg/http", &[&entries])).await.unwrap()
    };
    let shadow = [("rule-1-match-0", "rule-1-match-0")];
    for _ in 0..2 {
        assert_eq!(ask(&shadow).await.overall_code(), Code::Ok, "the second is over, and in shadow mode");
    }
    assert_eq!(ask(&[("rule-2-match-0", "rule-2-match-0")]).await.overall_code(), Code::OverLimit);
    let address = ask(&[("masked_remote_address", "10.0.0.0/8"), ("remote_address", "10.1.2.3")]).await;
    assert_eq!(address.statuses[0].limit_remaining, u32::MAX - 1);

    management.set("2", &[policy("eg/http", 4), policy("eg/https", 5)]).await;
    until_number(&tollgate, "eg/https", Some(5)).await;
    assert_eq!(number(&tollgate, "eg/http").await, Some(4));
    tollgate.must_log("new rules are in force");

    management.set("3", &[]).await;
    until_number(&tollgate, "eg/http", None).await;
    wait_until("all are answered", || answers(&tollgate) == (3.0, 0.0));
    assert_eq!(loads(&tollgate, "success"), 3.0);
    assert_eq!(tollgate.metric("tollgate_xds_connected"), 1.0);
    assert_eq!(tollgate.metric("tollgate_xds_version_info{version=\"3\"}"), 1.0);
    assert!(tollgate.metric("tollgate_xds_accepted_timestamp_seconds") > 1.7e9);
    management.finish().await;
}

async fn nothing_is_served_before_the_first_rules(mut management: Management) {
    let tollgate = start_until("listening", management.port, &[]);
    let waits = tollgate.must_log("waiting for the first rules from the management server");
    assert_eq!(waits["server"], format!("127.0.0.1:{}", management.port));
    assert_eq!(waits["node"], "envoy-ratelimit");
    let reason = "not serving: no rules have been received from the management server yet";
    wait_until("health says so", || tollgate.get("/healthcheck") == (500, reason.to_owned()));
    let refused = tollgate.ask(request("eg/http", &[&[(HOST, HOST)]])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);

    let mut wrong = policy("eg/http", 1);
    wrong.domain.clear();
    management.set("1", &[wrong]).await;
    let reason = "not serving: the rules are rejected, see the log";
    wait_until("health says so", || tollgate.get("/healthcheck") == (500, reason.to_owned()));
    management.set("2", &[policy("eg/http", 1)]).await;
    tollgate.must_log("tollgate is up");
    assert_eq!(tollgate.get("/healthcheck").0, 200);
    assert_eq!(number(&tollgate, "eg/http").await, Some(1));
    management.finish().await;
}

async fn what_is_refused_leaves_the_last_good_in_force_until_it_is_mended(mut management: Management) {
    let tollgate = start(&management, &[FORCE]);
    management.set("1", &[policy("eg/http", 3)]).await;
    until_number(&tollgate, "eg/http", Some(3)).await;

    let mut wrong = policy("eg/https", 1);
    wrong.descriptors[0].descriptors[2].rate_limit.as_mut().unwrap().unit = RateLimitUnit::Unknown.into();
    management.set("2", &[policy("eg/http", 4), wrong]).await;
    wait_until("it is refused", || !management.refusals().is_empty());
    let reason = "eg/https: descriptors[0].descriptors[2].rate_limit.unit: is missing";
    assert!(management.refusals()[0].starts_with(reason), "{:?}", management.refusals());
    let told = tollgate.must_log("changed rules are rejected");
    assert!(told["message"].as_str().unwrap().contains(reason), "{told}");
    assert_eq!(number(&tollgate, "eg/http").await, Some(3));

    management.set("3", &[policy("eg/http", 4), policy("eg/https", 1)]).await;
    until_number(&tollgate, "eg/https", Some(1)).await;
    assert_eq!(number(&tollgate, "eg/http").await, Some(4));
    wait_until("all are answered", || answers(&tollgate) == (2.0, 1.0));
    assert_eq!(loads(&tollgate, "error"), 1.0, "what comes again unchanged is not read again");
    management.finish().await;
}

#[tokio::test]
async fn refusals_that_differ_each_time_are_logged_once_a_while_and_versions_are_cut() {
    const REFUSED: usize = 50;
    let response = |number: usize, config: &RateLimitConfig| {
        let type_url = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig".to_owned();
        let resource = prost_types::Any { type_url: type_url.clone(), value: config.encode_to_vec() };
        let version_info = format!("\u{1b}[2J{}{number}", "v".repeat(100_000));
        DiscoveryResponse { version_info, resources: vec![resource], type_url, ..DiscoveryResponse::default() }
    };
    let wrong = |number| RateLimitConfig { domain: String::new(), ..policy(&format!("eg/{number}"), 1) };
    let refused = (0..REFUSED).map(|number| response(number, &wrong(number)));
    let responses = refused.chain([response(REFUSED, &policy("eg/http", 3))]).collect();
    let tollgate = start_until("tollgate is up", Fickle::start(responses).await, &[FORCE]);
    until_number(&tollgate, "eg/http", Some(3)).await;
    assert_eq!(loads(&tollgate, "error"), REFUSED as f64);
    let lines: Vec<String> = tollgate.logs().iter().map(ToString::to_string).collect();
    let told = lines.iter().filter(|line| line.contains("changed rules are rejected")).count();
    assert!((1..REFUSED / 5).contains(&told), "{told} lines");
    assert!(lines.iter().all(|line| line.len() < 5_000), "versions are cut");
    let (_, metrics) = tollgate.get("/metrics");
    let version = metrics.lines().find(|line| line.starts_with("tollgate_xds_version_info{")).unwrap();
    assert!(version.len() < 200 && !version.contains('\u{1b}'), "{version}");
}

async fn a_restarted_server_may_know_nothing_at_first(mut management: Management) {
    let tollgate = start(&management, &[FORCE, "CONFIG_GRPC_XDS_REMOVAL_DELAY=1h"]);
    management.set("1", &[policy("eg/http", 3), policy("eg/https", 5)]).await;
    until_number(&tollgate, "eg/https", Some(5)).await;
    wait_until("it is answered", || answers(&tollgate).0 == 1.0);

    management.stop().await;
    tollgate.must_log("no stream to the management server, the last good rules stay in force");
    assert_eq!(number(&tollgate, "eg/http").await, Some(3), "the last good rules stay in force");
    assert_eq!(tollgate.metric("tollgate_xds_connected"), 0.0);
    assert_eq!(tollgate.get("/healthcheck").0, 200);

    // Its versions restart at 1.
    management.start().await;
    management.set("1", &[]).await;
    tollgate.must_log("keeping rules that the management server no longer lists");
    wait_until("it is answered", || answers(&tollgate).0 == 2.0);
    assert_eq!(number(&tollgate, "eg/http").await, Some(3));
    management.set("2", &[policy("eg/http", 4)]).await;
    until_number(&tollgate, "eg/http", Some(4)).await;
    assert_eq!(number(&tollgate, "eg/https").await, Some(5));
    // A resource that this server has named itself is removed at once when it is omitted.
    management.set("3", &[policy("eg/http", 4), policy("eg/https", 6)]).await;
    until_number(&tollgate, "eg/https", Some(6)).await;
    management.set("4", &[policy("eg/https", 6)]).await;
    until_number(&tollgate, "eg/http", None).await;
    assert_eq!(number(&tollgate, "eg/https").await, Some(6));
    wait_until("all are answered", || answers(&tollgate) == (5.0, 0.0));
    management.finish().await;
}

async fn a_restarted_server_is_believed_in_the_end(mut management: Management) {
    let tollgate = start(&management, &[FORCE, "CONFIG_GRPC_XDS_REMOVAL_DELAY=100ms"]);
    management.set("1", &[policy("eg/http", 3), policy("eg/https", 5)]).await;
    until_number(&tollgate, "eg/https", Some(5)).await;
    management.stop().await;
    tollgate.must_log("no stream to the management server");
    management.start().await;
    management.set("1", &[policy("eg/https", 5)]).await;
    until_number(&tollgate, "eg/http", None).await;
    assert_eq!(number(&tollgate, "eg/https").await, Some(5));
    management.finish().await;
}

async fn the_same_in_another_order_is_no_change(mut management: Management) {
    let tollgate = start(&management, &[FORCE]);
    let [a, b, c] = ["a", "b", "c"].map(|domain| policy(domain, 3));
    management.set("1", &[a.clone(), b.clone(), c.clone()]).await;
    until_number(&tollgate, "a", Some(3)).await;
    management.set("2", &[c, b, a]).await;
    wait_until("both are answered", || answers(&tollgate) == (2.0, 0.0));
    assert_eq!(loads(&tollgate, "success"), 1.0);
    assert_eq!(tollgate.metric("tollgate_xds_version_info{version=\"2\"}"), 1.0);
    management.finish().await;
}

async fn health_wants_a_domain_where_it_is_told_to(mut management: Management) {
    let tollgate = start(&management, &[FORCE, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"]);
    let reason = "not serving: the rules have no domain, but HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED requires one";
    let ready = async |is_ready: bool| {
        let (http, grpc) = match is_ready {
            true => ((200, "OK".to_owned()), ServingStatus::Serving),
            false => ((500, reason.to_owned()), ServingStatus::NotServing),
        };
        wait_until("health follows", || tollgate.get("/healthcheck") == http);
        assert_eq!(health::statuses(&tollgate).await, [grpc; 3]);
    };
    ready(false).await;
    management.set("1", &[policy("eg/http", 3)]).await;
    ready(true).await;
    // A rejected response removes no domain.
    let mut wrong = policy("eg/http", 3);
    wrong.domain.clear();
    management.set("2", &[wrong]).await;
    wait_until("it is refused", || !management.refusals().is_empty());
    ready(true).await;
    management.set("3", &[]).await;
    ready(false).await;
    // It still answers: there is nothing to limit.
    assert_eq!(number(&tollgate, "eg/http").await, None);
    management.set("4", &[policy("eg/http", 4)]).await;
    ready(true).await;
    management.finish().await;
}

/// A limit of this number in a year, which has a name.
fn named(name: &str, requests_per_unit: u32) -> Option<RateLimitPolicy> {
    limit(RateLimitUnit::Year, requests_per_unit).map(|policy| RateLimitPolicy { name: name.into(), ..policy })
}

const UNITS: [(RateLimitUnit, Unit); 7] = [
    (RateLimitUnit::Second, Unit::Second),
    (RateLimitUnit::Minute, Unit::Minute),
    (RateLimitUnit::Hour, Unit::Hour),
    (RateLimitUnit::Day, Unit::Day),
    (RateLimitUnit::Week, Unit::Week),
    (RateLimitUnit::Month, Unit::Month),
    (RateLimitUnit::Year, Unit::Year),
];

/// Returns rules with the features that a policy lacks: every unit, quotas, names and replacing, unlimited, wildcards,
/// metadata.
fn everything() -> RateLimitConfig {
    let units = UNITS.map(|(unit, _)| node("unit", unit.as_str_name(), limit(unit, 7)));
    let quota =
        |model: &str, requests| RateLimitDescriptor { quota_mode: true, ..node("model", model, named("", requests)) };
    let replacing = node("path", "/api/*", named("path", 9));
    let replacing = RateLimitDescriptor {
        rate_limit: replacing
            .rate_limit
            .map(|policy| RateLimitPolicy { replaces: vec![RateLimitReplace { name: "user".into() }], ..policy }),
        ..replacing
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let zone = prost_types::Value { kind: Some(prost_types::value::Kind::StringValue("a".into())) };
    let metadata = Some(prost_types::Struct { fields: [("zone".to_owned(), zone)].into() });
    let told = RateLimitDescriptor { metadata, detailed_metric: true, ..node("told", "", named("told", 9)) };
    let others = vec![
        quota("small", 0),
        quota("large", 9),
        node("user", "", named("user", 0)),
        replacing,
        node("free", "", Some(unlimited)),
        told,
    ];
    RateLimitConfig { name: "all".into(), domain: "all".into(), descriptors: [units.to_vec(), others].concat() }
}

async fn all_that_a_resource_can_say_is_in_force(mut management: Management) {
    let tollgate = start_until("listening", management.port, &["RESPONSE_DYNAMIC_METADATA=true"]);
    management.set("1", &[everything()]).await;
    tollgate.must_log("tollgate is up");
    let ask = async |descriptors: &[&[(&str, &str)]]| tollgate.ask(request("all", descriptors)).await.unwrap();
    for (unit, expected) in UNITS {
        let answer = ask(&[&[("unit", unit.as_str_name())]]).await;
        let limit = answer.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.unit(), limit.requests_per_unit), (expected, 7), "{answer:?}");
    }
    let (small, large) = ([("model", "small")], [("model", "large")]);
    assert_eq!(ask(&[&small]).await.overall_code(), Code::OverLimit);
    assert_eq!(ask(&[&small, &large]).await.overall_code(), Code::Ok, "one quota is left");
    let (user, path) = ([("user", "ann")], [("path", "/api/x")]);
    assert_eq!(ask(&[&user]).await.overall_code(), Code::OverLimit);
    let answer = ask(&[&user, &path]).await;
    assert_eq!(answer.overall_code(), Code::Ok, "the limit of the path takes the place of the user's");
    assert_eq!(answer.statuses[1].current_limit.as_ref().unwrap().name, "path");
    assert_eq!(ask(&[&[("free", "x")]]).await.statuses[0].limit_remaining, u32::MAX);
    let metadata = ask(&[&[("told", "x")]]).await.dynamic_metadata.unwrap();
    assert!(format!("{metadata:?}").contains("zone"), "{metadata:?}");

    let mut second = everything();
    second.name = "second".into();
    management.set("2", &[everything(), second]).await;
    wait_until("it is refused", || !management.refusals().is_empty());
    let reason = "second: domain: \"all\" is already the domain of all; a domain must be in one resource, unless";
    assert!(management.refusals()[0].starts_with(reason), "{:?}", management.refusals());
    management.finish().await;
}

/// Each header is a level, and one more entry of the request.
async fn a_policy_that_matches_128_headers_at_once_is_in_force(mut management: Management) {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let tollgate = start_until("listening", management.port, &[&url]);
    let headers: Vec<String> = (0..128).map(|header| format!("rule-0-match-{header}")).collect();
    let below = headers.iter().rev().fold(Vec::new(), |below: Vec<RateLimitDescriptor>, header| {
        let rate_limit = if below.is_empty() { limit(RateLimitUnit::Week, 1) } else { None };
        vec![RateLimitDescriptor { rate_limit, ..above(header, header, below) }]
    });
    let config =
        RateLimitConfig { name: "eg".into(), domain: "eg".into(), descriptors: vec![above(HOST, HOST, below)] };
    management.set("1", &[config]).await;
    tollgate.must_log("tollgate is up");
    let all: Vec<(&str, &str)> = [HOST].into_iter().chain(headers.iter().map(|it| &**it)).map(|it| (it, it)).collect();
    // Next to as many rules as a policy can have, which match less.
    let others = all[..2].to_vec();
    let descriptors: Vec<_> = std::iter::once(&*all).chain((1..256).map(|_| &*others)).collect();
    for expected in [Code::Ok, Code::OverLimit] {
        let answer = tollgate.ask(request("eg", &descriptors)).await.unwrap();
        assert_eq!(answer.statuses[0].code(), expected);
        assert_eq!(answer.statuses.len(), 256);
    }
    management.finish().await;
}

/// Follows a server at this port as a separate client.
fn follow(port: u16) -> mpsc::UnboundedReceiver<Event> {
    follow_until(port, Arc::new(Notify::new()))
}

/// Follows a server, with a new stream whenever `asked` is notified.
fn follow_until(port: u16, asked: Arc<Notify>) -> mpsc::UnboundedReceiver<Event> {
    let wait = Duration::from_millis(10);
    let options = Options {
        server: format!("127.0.0.1:{port}").parse().unwrap(),
        handshake: None,
        node_id: "test".into(),
        node_metadata: Metadata::default(),
        headers: Headers::default(),
        max_response_bytes: 1024,
        ping_interval: Duration::from_millis(200),
        backoff: Backoff { unreachable: wait, refused: wait, most: wait, spread: 0.0 },
        removal_delay: Duration::ZERO,
        load: LoadOptions::default(),
    };
    let (events, received) = mpsc::unbounded_channel();
    tokio::spawn(xds::follow(options, asked, events));
    received
}

#[tokio::test]
async fn a_hangup_while_rules_are_put_in_force_forgets_none_of_them() {
    let type_url = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig".to_owned();
    let value = policy("eg/http", 3).encode_to_vec();
    let resources = vec![prost_types::Any { type_url: type_url.clone(), value }];
    let response = DiscoveryResponse { resources, type_url, ..DiscoveryResponse::default() };
    let asked = Arc::new(Notify::new());
    // Each stream is sent the same.
    let mut events = follow_until(Fickle::start(vec![response]).await, Arc::clone(&asked));
    let mut next = async || tokio::time::timeout(crate::support::SOON, events.recv()).await.unwrap().unwrap();
    let offer = loop {
        if let Event::Offered(offer) = next().await {
            break offer;
        }
    };
    asked.notify_one();
    tokio::time::sleep(Duration::from_millis(50)).await;
    offer.in_force.send(()).expect("the client still waits for this");
    let mut accepted = 0;
    while accepted < 2 {
        match next().await {
            Event::Offered(_) => panic!("the rules are in force already"),
            Event::Answered(_) => accepted += 1,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_server_that_falls_silent_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut events = follow(listener.local_addr().unwrap().port());
    // The connection is accepted, as the system does for a process that hangs.
    let _connection = listener.accept().await.unwrap();
    let lost = async {
        loop {
            if let Some(Event::Lost(error, _)) = events.recv().await {
                break error;
            }
        }
    };
    let error = tokio::time::timeout(crate::support::SOON, lost).await.unwrap();
    assert!(matches!(&error, StreamError::Lost(why) if why.contains("keep-alive")), "{error}");
}

#[test]
fn what_there_is_instead_of_a_management_server_is_told() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let other = Tollgate::start("{domain: shop, descriptors: [{key: user}]}", &[]);
    for (port, told) in [
        (nobody, "connection refused: is the management server running? see CONFIG_GRPC_XDS_SERVER_URL"),
        (other.http_port, "the port speaks HTTP/1.1, not gRPC: see CONFIG_GRPC_XDS_SERVER_URL"),
        (other.grpc_port, "it is no management server (Unimplemented): see CONFIG_GRPC_XDS_SERVER_URL"),
    ] {
        let server = format!("CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:{port}");
        let tollgate = Tollgate::start_until("listening", command(), &["CONFIG_TYPE=GRPC_XDS_SOTW", &server]);
        let line = tollgate.must_log("no stream to the management server, and it has sent no rules yet: ");
        assert!(line["message"].as_str().unwrap().contains(told), "{line}");
        assert!(tollgate.logged("connected to the management server").is_none());
        assert_eq!(tollgate.metric("tollgate_xds_connected"), 0.0);
    }
}

/// The settings of a client of TLS.
fn tls(authority: &Authority, client: Option<&Pair>) -> Vec<String> {
    let mut settings = vec![
        "CONFIG_GRPC_XDS_SERVER_USE_TLS=true".to_owned(),
        format!("CONFIG_GRPC_XDS_SERVER_TLS_CACERT={}", authority.file().display()),
    ];
    if let Some(Pair { cert, key }) = client {
        settings.push(format!("CONFIG_GRPC_XDS_CLIENT_TLS_CERT={}", cert.display()));
        settings.push(format!("CONFIG_GRPC_XDS_CLIENT_TLS_KEY={}", key.display()));
    }
    settings
}

/// A Tollgate acts as the server: it uses TLS, requires a certificate, and does not serve rules.
#[test]
fn tls_is_mutual_and_what_is_wrong_with_it_is_told() {
    let (authority, other) = (Authority::new("ours"), Authority::new("others"));
    let (pair, stranger) = (authority.sign("both", &["localhost", "127.0.0.1"]), other.sign("stranger", &["x"]));
    let mut settings = pair.settings();
    settings.push(format!("GRPC_CLIENT_TLS_CACERT={}", authority.file().display()));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let rules = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let (secure, plain) = (Tollgate::start(rules, &settings), Tollgate::start(rules, &[]));
    let other_name = vec!["CONFIG_GRPC_XDS_SERVER_TLS_SAN=envoy-gateway".to_owned()];
    for (server, settings, told) in [
        (&secure, tls(&authority, Some(&pair)), "it is no management server (Unimplemented)"),
        (&secure, tls(&other, Some(&pair)), "an authority in CONFIG_GRPC_XDS_SERVER_TLS_CACERT must have signed it"),
        (&secure, tls(&authority, None), "does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?"),
        (&secure, tls(&authority, Some(&stranger)), "does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?"),
        (&secure, [tls(&authority, Some(&pair)), other_name].concat(), "a name that it has into CONFIG_GRPC_XDS_"),
        (&secure, Vec::new(), "the port uses TLS: set CONFIG_GRPC_XDS_SERVER_USE_TLS=true"),
        (&plain, tls(&authority, Some(&pair)), "unset CONFIG_GRPC_XDS_SERVER_USE_TLS"),
    ] {
        let server = format!("CONFIG_GRPC_XDS_SERVER_URL=localhost:{}", server.grpc_port);
        let settings = [vec!["CONFIG_TYPE=GRPC_XDS_SOTW".to_owned(), server], settings].concat();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let tollgate = Tollgate::start_until("listening", command(), &settings);
        let line = tollgate.must_log("no stream to the management server");
        assert!(line["message"].as_str().unwrap().contains(told), "{settings:?}: {line}");
    }
    let missing = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "nowhere"),
    ];
    let output = command().envs(missing).envs([("GRPC_PORT", "0"), ("PORT", "0")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("CONFIG_GRPC_XDS_SERVER_TLS_CACERT=nowhere cannot be read"), "{said}");
}

#[tokio::test]
#[ignore = "needs the server in Go, which `make e2e` builds"]
async fn rules_come_over_mutual_tls() {
    let authority = Authority::new("ours");
    let pair = authority.sign("both", &["127.0.0.1"]);
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let files = [text(&pair.cert), text(&pair.key), text(&authority.file())];
    let arguments = ["-cert", &files[0], "-key", &files[1], "-client-ca", &files[2]];
    let mut management = Management::real("rules_come_over_mutual_tls", &arguments);
    let settings = [tls(&authority, Some(&pair)), vec![FORCE.to_owned()]].concat();
    let tollgate = start(&management, &settings.iter().map(String::as_str).collect::<Vec<_>>());
    management.set("1", &[policy("eg/http", 3)]).await;
    until_number(&tollgate, "eg/http", Some(3)).await;
}

/// Envoy Gateway starts `/bin/ratelimit` with FORCE_START_WITHOUT_INITIAL_CONFIG: a gateway that fails closed must stay
/// closed while its controller is away.
#[tokio::test]
async fn started_as_ratelimit_a_healthy_process_fails_calls_until_the_first_rules_come() {
    // No process listens there.
    let server = format!("CONFIG_GRPC_XDS_SERVER_URL={}", Redis::stopped().tcp_address());
    for (program, settings, passes) in [
        ("/bin/ratelimit", &[][..], false),
        ("/bin/ratelimit", &["FAILURE_MODE=open"], true),
        ("/bin/tollgate", &[], true),
        ("/bin/tollgate", &["FAILURE_MODE=error"], false),
    ] {
        let settings = [&["CONFIG_TYPE=GRPC_XDS_SOTW", &server, FORCE], settings].concat();
        let mut command = command();
        command.arg0(program);
        let tollgate = Tollgate::start_by(command, &settings);
        assert_eq!(tollgate.get("/healthcheck").0, 200, "there may never be a policy");
        let health = HealthClient::new(tollgate.channel().await).check(HealthCheckRequest::default()).await;
        assert_eq!(health.unwrap().into_inner().status(), ServingStatus::Serving);
        let answer = tollgate.ask(request("eg/http", &[&[(HOST, HOST)]])).await;
        match passes {
            true => assert_eq!(answer.unwrap().overall_code(), Code::Ok, "{program} {settings:?}"),
            false => {
                let refused = answer.unwrap_err();
                let said = (refused.code(), refused.message());
                assert_eq!(said, (tonic::Code::Unavailable, "no rules are in force yet"), "{program} {settings:?}");
                tollgate.must_log(
                    "no rules have been received from the management server yet: calls fail (FAILURE_MODE=error)",
                );
            }
        }
    }
}

#[test]
fn a_place_of_rules_that_is_not_asked_is_told() {
    let tollgate = Tollgate::start_until(
        "listening",
        command(),
        &["CONFIG_TYPE=grpc_xds_sotw", "RULES=shop.yaml", "RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit"],
    );
    tollgate.must_log("RULES=shop.yaml (environment) does nothing: CONFIG_TYPE is GRPC_XDS_SOTW");
    assert!(tollgate.logged("RUNTIME_ROOT").is_none(), "whoever drives envoyproxy/ratelimit sets it in any case");
    let files = Tollgate::start("{domain: shop, descriptors: [{key: user}]}", &["CONFIG_GRPC_XDS_NODE_ID=x"]);
    files.must_log("CONFIG_GRPC_XDS_NODE_ID=x (environment) does nothing: CONFIG_TYPE is FILE");
}

#[test]
fn our_messages_are_envoys_on_the_wire() {
    use envoy_types::pb::envoy::config::core::v3 as core;
    use envoy_types::pb::envoy::service::discovery::v3 as envoy;
    use envoy_types::pb::google::{protobuf, rpc};
    use envoy_types::pb::ratelimit::config::ratelimit::v3 as theirs;

    let metadata = protobuf::Struct {
        fields: [("zone".to_owned(), protobuf::Value { kind: Some(protobuf::value::Kind::BoolValue(true)) })].into(),
    };
    let request = envoy::DiscoveryRequest {
        version_info: "1".into(),
        node: Some(core::Node {
            id: "n".into(),
            metadata: Some(metadata),
            user_agent_name: "u".into(),
            user_agent_version_type: Some(core::node::UserAgentVersionType::UserAgentVersion("2".into())),
            ..core::Node::default()
        }),
        resource_names: vec!["r".into()],
        type_url: "t".into(),
        response_nonce: "3".into(),
        error_detail: Some(rpc::Status { code: 3, message: "m".into(), details: Vec::new() }),
        ..envoy::DiscoveryRequest::default()
    };
    let ours = DiscoveryRequest::decode(&*request.encode_to_vec()).unwrap();
    assert_eq!(envoy::DiscoveryRequest::decode(&*ours.encode_to_vec()).unwrap(), request);

    let any = protobuf::Any { type_url: "t".into(), value: vec![1, 2] };
    let response = envoy::DiscoveryResponse {
        version_info: "1".into(),
        resources: vec![any],
        type_url: "t".into(),
        nonce: "3".into(),
        control_plane: Some(core::ControlPlane { identifier: "c".into() }),
        ..envoy::DiscoveryResponse::default()
    };
    let ours = DiscoveryResponse::decode(&*response.encode_to_vec()).unwrap();
    assert_eq!(envoy::DiscoveryResponse::decode(&*ours.encode_to_vec()).unwrap(), response);

    for (unit, theirs) in [
        (RateLimitUnit::Second, theirs::RateLimitUnit::Second),
        (RateLimitUnit::Minute, theirs::RateLimitUnit::Minute),
        (RateLimitUnit::Hour, theirs::RateLimitUnit::Hour),
        (RateLimitUnit::Day, theirs::RateLimitUnit::Day),
        (RateLimitUnit::Month, theirs::RateLimitUnit::Month),
        (RateLimitUnit::Year, theirs::RateLimitUnit::Year),
    ] {
        assert_eq!(unit as i32, theirs as i32);
    }
    let mut ours = policy("shop", 3);
    ours.descriptors[0].detailed_metric = true;
    let policy = ours.descriptors[0].descriptors[0].rate_limit.as_mut().unwrap();
    (policy.unlimited, policy.name) = (true, "p".into());
    policy.replaces = vec![RateLimitReplace { name: "q".into() }];
    let theirs = theirs::RateLimitConfig::decode(&*ours.encode_to_vec()).unwrap();
    assert_eq!((theirs.name.as_str(), theirs.domain.as_str()), ("shop", "shop"));
    let (top, below) = (&theirs.descriptors[0], &theirs.descriptors[0].descriptors[0]);
    assert!(top.detailed_metric && theirs.descriptors[0].descriptors[1].shadow_mode);
    let limit = below.rate_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unlimited, limit.name.as_str()), (3, true, "p"));
    assert_eq!(limit.replaces[0].name, "q");
    assert_eq!(RateLimitConfig::decode(&*theirs.encode_to_vec()).unwrap(), ours);
}
