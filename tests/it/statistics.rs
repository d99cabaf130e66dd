//! The statistics that have envoyproxy/ratelimit's names: as Prometheus scrapes them, and as a statsd server gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use crate::support::tollgate::{self, Tollgate, request};
use crate::support::wait_until;
use ::tollgate::wire::rate_limit_descriptor::RateLimitOverride;

const RULES: &str = "
domain: shop
descriptors:
  - {key: plan, value: free, rate_limit: {unit: year, requests_per_unit: 2}}
  - key: tenant
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
      - key: route
        value: /v1.2/*
        share_threshold: true
        detailed_metric: true
        descriptors:
          - {key: method, value: GET, rate_limit: {unit: year, requests_per_unit: 5}}
          - {key: method, value: PUT, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: dry, value: run, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: row, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - key: ip
    descriptors:
      - key: path
        detailed_metric: true
        value: /*
        rate_limit: {unit: year, requests_per_unit: 10}
      - key: shared
        value: a*
        share_threshold: true
        value_to_metric: true
        rate_limit: {unit: year, requests_per_unit: 10}
";

const PROMETHEUS: [&str; 3] = ["USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "DEFAULT_ALGORITHM=fixed_window"];

/// Reads this path of the statistics port, as Prometheus does.
fn scrape(service: &Tollgate, path: &str) -> BTreeMap<String, f64> {
    let address = service.must_log("tollgate is up")["prometheus"].as_str().unwrap().to_owned();
    let text = ureq::get(format!("http://{address}{path}")).call().unwrap().body_mut().read_to_string().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples: Vec<_> = samples.map(|line| line.rsplit_once(' ').unwrap()).collect();
    let series: BTreeMap<_, _> =
        samples.iter().map(|(name, value)| ((*name).to_owned(), value.parse().unwrap())).collect();
    assert_eq!(series.len(), samples.len(), "no series is there twice");
    series
}

async fn ask(service: &Tollgate, entries: &[(&str, &str)], hits: u64) {
    let mut request = request("shop", &[entries]);
    request.descriptors[0].hits_addend = Some(hits);
    service.ask(request).await.unwrap();
}

/// Rules as Envoy Gateway writes them: a route's name is key and value.
const ROUTES: &str = "
domain: default/eg/http
descriptors:
  - key: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    value: httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    descriptors:
      - {key: rule-0-match-0, value: rule-0-match-0, rate_limit: {unit: year, requests_per_unit: 2}}
";

/// Returns the name of each series in a query, and its labels except those that Prometheus adds to a pod.
fn selectors(query: &str) -> Vec<(&str, BTreeSet<String>)> {
    let selector = regex::Regex::new(r"([a-z_]{3,})(?:\{([^}]*)\})?").unwrap();
    let labels = |text: &str| {
        let all = text.replace("$DefaultDomain", "default/eg/http");
        let all = all.split(", ").filter(|label| !label.is_empty() && !label.starts_with("app_kubernetes_io_"));
        all.map(str::to_owned).collect()
    };
    let found = selector.captures_iter(query);
    found.map(|found| (found.get(1).unwrap().as_str(), labels(found.get(2).map_or("", |text| text.as_str())))).collect()
}

#[tokio::test]
async fn every_query_of_envoy_gateways_dashboard_finds_data_with_its_mapping_and_without() {
    let queries = include_str!("../statistics/envoy-gateway-dashboard.promql").lines();
    let queries: Vec<_> = queries.flat_map(selectors).collect();
    assert_eq!(queries.len(), 6);
    let mapping = concat!("PROMETHEUS_MAPPER_YAML=", env!("CARGO_MANIFEST_DIR"), "/tests/statistics/");
    let mapping = format!("{mapping}envoy-gateway-mapping.yaml");
    let missing = "PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml";
    for settings in [&[][..], &[mapping.as_str()], &[missing]] {
        let service = Tollgate::start(ROUTES, &[&PROMETHEUS[..], settings].concat());
        if settings == [missing] {
            service.must_log("the file of PROMETHEUS_MAPPER_YAML does not exist");
        }
        let route = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
        for _ in 0..3 {
            let asked = request("default/eg/http", &[&[(route, route), ("rule-0-match-0", "rule-0-match-0")]]);
            service.ask(asked).await.unwrap();
        }
        let series = scrape(&service, "/metrics");
        for (name, labels) in &queries {
            let found = series.iter().find(|(series, _)| {
                let (of, rest) = series.split_once('{').unwrap_or((series, ""));
                let has: BTreeSet<_> = rest.trim_end_matches("\"}").split("\",").collect();
                of == *name && labels.iter().all(|label| has.contains(label.trim_end_matches('"')))
            });
            let (_, value) = found.unwrap_or_else(|| panic!("{name} {labels:?}: {series:#?}"));
            assert!(*value > 0.0 || name.starts_with("go_"), "{name}: {value}");
        }
        let is_mapped = settings == [mapping.as_str()];
        let dropped = ["ratelimit_service_config_load_success", "ratelimit_service_rate_limit_shadow_mode"];
        for name in dropped {
            assert_eq!(series.keys().any(|series| series.starts_with(name)), !is_mapped, "{name}: {settings:?}");
        }
    }
}

#[tokio::test]
async fn the_series_are_those_of_envoyproxys_ratelimit() {
    let service = Tollgate::start(RULES, &PROMETHEUS);
    for _ in 0..3 {
        ask(&service, &[("plan", "free")], 1).await;
        ask(&service, &[("dry", "run")], 1).await;
    }
    for user in ["ann", "bob"] {
        ask(&service, &[("tenant", "a"), ("user", user)], 9).await;
    }
    ask(&service, &[("tenant", "a"), ("route", "/v1.2/x"), ("method", "GET")], 1).await;
    ask(&service, &[("tenant", "b"), ("route", "/v1.2/y"), ("method", "PUT")], 1).await;
    service.ask(request("mall", &[&[("user", "ann")]])).await.unwrap();
    let series = scrape(&service, "/metrics");
    let rate_limit = |stat: &str, labels: &str| series[&format!("ratelimit_service_rate_limit_{stat}{{{labels}}}")];
    for (labels, stats) in [
        // total_hits, over_limit, near_limit, within_limit, shadow_mode
        ("domain=\"shop\",key1=\"plan_free\"", [3.0, 1.0, 1.0, 2.0, 0.0]),
        ("domain=\"shop\",key1=\"dry_run\"", [3.0, 2.0, 1.0, 1.0, 2.0]),
        ("domain=\"shop\",key1=\"tenant\",key2=\"user\"", [18.0, 0.0, 2.0, 18.0, 0.0]),
        // Levels below the second share a series, and a dot in a value does not start a level.
        ("domain=\"shop\",key1=\"tenant\",key2=\"route_/v1.2/*\"", [2.0, 0.0, 0.0, 2.0, 0.0]),
    ] {
        let names = ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];
        assert_eq!(names.map(|stat| rate_limit(stat, labels)), stats, "{labels}");
    }
    for (name, value) in [
        ("ratelimit_service_rate_limit_mall_domain_not_found", 1.0),
        ("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}", 11.0),
        ("ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}", 11.0),
        ("ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"10\"}", 11.0),
        ("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}", 0.0),
        ("ratelimit_service_config_load_success", 1.0),
        ("ratelimit_service_config_load_error", 0.0),
        ("ratelimit_service_global_shadow_mode", 0.0),
        ("tollgate_requests_total{outcome=\"over_limit\"}", 1.0),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name}");
    }
    for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
        assert!(series.contains_key(name), "{name}");
    }
    let (_, own) = service.get("/metrics");
    assert!(!own.contains("ratelimit_service"), "the HTTP port has Tollgate's names alone");
}

#[tokio::test]
async fn hits_near_the_limit_are_counted_as_envoyproxys_ratelimit_does() {
    let service = Tollgate::start(RULES, &PROMETHEUS);
    // For a limit of 10 with 8 as near: over_limit, near_limit, within_limit.
    let rows: [(&str, &[u64], [f64; 3]); 8] = [
        ("below", &[5, 3], [0.0, 0.0, 8.0]),
        ("across near", &[5, 5], [0.0, 2.0, 10.0]),
        ("from near on", &[8, 1, 1], [0.0, 2.0, 10.0]),
        ("beyond near", &[9, 1], [0.0, 2.0, 10.0]),
        ("at once", &[10], [0.0, 2.0, 10.0]),
        ("one over", &[10, 1, 1], [2.0, 2.0, 10.0]),
        ("all over", &[10, 5], [5.0, 2.0, 10.0]),
        ("a peek", &[9, 0], [0.0, 1.0, 9.0]),
    ];
    for (row, all, _) in rows {
        for hits in all {
            ask(&service, &[("row", row)], *hits).await;
        }
    }
    let series = scrape(&service, "/metrics");
    for (row, all, stats) in rows {
        let stat =
            |stat: &str| series[&format!("ratelimit_service_rate_limit_{stat}{{domain=\"shop\",key1=\"row_{row}\"}}")];
        assert_eq!(stat("total_hits"), all.iter().sum::<u64>() as f64, "{row}");
        assert_eq!(["over_limit", "near_limit", "within_limit"].map(stat), stats, "{row}");
    }
}

#[tokio::test]
async fn values_stand_in_paths_where_the_rule_says_so_and_a_shared_one_never_does() {
    let service = Tollgate::start(RULES, &[&PROMETHEUS[..], &["EXTRA_TAGS=pod:a,zone:b"]].concat());
    ask(&service, &[("ip", "10.0.0.1"), ("path", "/x")], 1).await;
    ask(&service, &[("ip", "10.0.0.1"), ("shared", "abc")], 1).await;
    ask(&service, &[("row", "")], 1).await;
    let expected = [
        ("ip_10_0_0_1", Some("path_/x")),
        ("ip", Some("shared_a*")),
        // value_to_metric adds nothing without a value.
        ("row", None),
    ];
    let label = |(key1, key2): (&str, Option<&str>)| {
        let key2 = key2.map(|key2| format!(",key2=\"{key2}\"")).unwrap_or_default();
        format!("ratelimit_service_rate_limit_total_hits{{domain=\"shop\",key1=\"{key1}\"{key2},pod=\"a\",zone=\"b\"}}")
    };
    let series = scrape(&service, "/metrics");
    let hits: BTreeSet<_> = series.keys().filter(|name| name.contains("total_hits")).cloned().collect();
    assert_eq!(hits, expected.map(label).into());
}

#[tokio::test]
async fn refunds_are_counted_apart_as_far_as_there_are_any() {
    let service = Tollgate::start(RULES, &PROMETHEUS);
    let refunds = |series: &BTreeMap<String, f64>| -> Vec<(String, f64)> {
        let refunds = series.iter().filter(|(name, _)| name.contains("total_negative_hits"));
        refunds.map(|(name, value)| (name.clone(), *value)).collect()
    };
    ask(&service, &[("plan", "free")], 2).await;
    assert_eq!(refunds(&scrape(&service, "/metrics")), []);
    for (key, value) in [("plan", "free"), ("row", "7")] {
        let mut request = request("shop", &[&[(key, value)]]);
        (request.descriptors[0].hits_addend, request.descriptors[0].is_negative_hits) = (Some(2), true);
        service.ask(request).await.unwrap();
    }
    let series = scrape(&service, "/metrics");
    let named =
        |level: &str| format!("ratelimit_service_rate_limit_total_negative_hits{{domain=\"shop\",key1=\"{level}\"}}");
    assert_eq!(refunds(&series), [(named("plan_free"), 2.0), (named("row_7"), 2.0)]);
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"plan_free\"}";
    assert_eq!(series[hits], 2.0, "no refund is a hit");
}

#[tokio::test]
async fn series_from_values_are_bounded_and_a_metric_tells_how_many_have_gone() {
    let settings = [&PROMETHEUS[..], &["MAX_VALUE_SERIES=3", "PROMETHEUS_PATH=/stats"]].concat();
    let service = Tollgate::start(RULES, &settings);
    for row in ["a", "b", "c", "d", "b", "e"] {
        ask(&service, &[("row", row)], 1).await;
    }
    // Values invented by callers do not evict rules.
    for made_up in 0..5 {
        service.ask(request(&format!("unknown-{made_up}"), &[&[("a", "b")]])).await.unwrap();
        let mut brought = request("shop", &[&[("made", &made_up.to_string())]]);
        brought.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 1, ..Default::default() });
        service.ask(brought).await.unwrap();
    }
    let series = scrape(&service, "/stats");
    let rows = series.keys().filter_map(|name| {
        name.strip_prefix("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"row_")?.strip_suffix("\"}")
    });
    assert_eq!(rows.collect::<Vec<_>>(), ["b", "d", "e"]);
    let is_made_up = |name: &&String| {
        let name = name.trim_start_matches("ratelimit_service_rate_limit_");
        name.starts_with("unknown_") || name.starts_with("total_hits{domain=\"shop\",key1=\"made")
    };
    assert_eq!(series.keys().filter(is_made_up).count(), 3);
    assert_eq!(series["tollgate_value_series_evicted_total"], 9.0);
    assert_eq!(series["tollgate_hits_total{domain=\"shop\",rule=\"row\"}"], 6.0, "Tollgate's own know no values");
}

/// The sums of what a statsd server has got of each counter, and all lines.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Vec<String>>>);

impl Server {
    /// Takes the connections of a listener.
    fn tcp(listener: TcpListener) -> Server {
        let server = Server::default();
        let lines = Arc::clone(&server.0);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let read = BufReader::new(connection.unwrap()).lines();
                read.map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
            }
        });
        server
    }

    fn udp(socket: UdpSocket) -> Server {
        let server = Server::default();
        let lines = Arc::clone(&server.0);
        std::thread::spawn(move || {
            let mut datagram = [0; 65_536];
            while let Ok(bytes) = socket.recv(&mut datagram) {
                let text = String::from_utf8(datagram[..bytes].to_vec()).unwrap();
                lines.lock().unwrap().extend(text.lines().map(str::to_owned));
            }
        });
        server
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the sum of the counter with this name, ignoring tags.
    fn sum(&self, name: &str) -> u64 {
        let lines = self.lines();
        let of_name = lines.iter().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.split_once("|c"));
        of_name.map(|(count, _)| count.parse::<u64>().unwrap()).sum()
    }
}

const HITS: &str = "ratelimit.service.rate_limit.shop.plan_free.total_hits";

#[tokio::test]
async fn a_statsd_server_gets_each_hit_once_though_it_comes_late_and_the_rest_at_the_end() {
    // An address that no process listens on yet.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = format!("STATSD_PORT={}", address.port());
    let mut service = Tollgate::start(RULES, &["STATSD_HOST=127.0.0.1", &port, "STATS_FLUSH_INTERVAL=20ms"]);
    for _ in 0..3 {
        ask(&service, &[("plan", "free")], 1).await;
    }
    service.must_log("cannot send statistics");
    let server = Server::tcp(TcpListener::bind(address).unwrap());
    wait_until("what was kept", || server.sum(HITS) == 3);
    assert_eq!(server.sum("ratelimit.service.rate_limit.shop.plan_free.over_limit"), 1);
    assert_eq!(server.sum("ratelimit.service.config_load_success"), 1);

    // Removed rules are reported until the end, including their last hit.
    ask(&service, &[("plan", "free")], 1).await;
    service.change_rules(&RULES.replace("value: free", "value: paid"));
    service.must_log("new rules are in force");
    ask(&service, &[("dry", "run")], 1).await;
    service.signal("TERM");
    assert!(service.wait().success());
    wait_until("the last", || server.sum("ratelimit.service.rate_limit.shop.dry_run.total_hits") == 1);
    assert_eq!(server.sum(HITS), 4);
    assert_eq!(server.sum("ratelimit_server.ShouldRateLimit.total_requests"), 5);
    // One line covers all calls of about the same duration.
    let lines = server.lines();
    let times = lines.iter().filter_map(|line| line.strip_prefix("ratelimit_server.ShouldRateLimit.response_time:"));
    let times = times.map(|time| time.split_once("|ms|@").unwrap().1.parse::<f64>().unwrap());
    assert_eq!(times.map(|rate| 1.0 / rate).sum::<f64>().round(), 5.0, "{lines:?}");
}

#[tokio::test]
async fn nothing_is_lost_where_nobody_takes_datagrams_yet() {
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = format!("STATSD_PORT={}", address.port());
    let settings = ["STATSD_HOST=127.0.0.1", &port, "STATSD_PROTOCOL=udp", "STATS_FLUSH_INTERVAL=20ms"];
    let service = Tollgate::start(RULES, &settings);
    for user in 0..200 {
        ask(&service, &[("row", &user.to_string())], 1).await;
    }
    service.must_log("cannot send statistics");
    let server = Server::udp(UdpSocket::bind(address).unwrap());
    let hits = |user| format!("ratelimit.service.rate_limit.shop.row_{user}.total_hits");
    wait_until("what was kept", || (0..200).all(|user| server.sum(&hits(user)) == 1));
    assert_eq!(server.sum("ratelimit.service.config_load_success"), 1);
}

#[tokio::test]
async fn a_server_that_takes_nothing_delays_no_request_and_new_rules_come() {
    // Connections stay in the queue of this listener and are never read.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("STATSD_PORT={}", silent.local_addr().unwrap().port());
    let settings = ["STATSD_HOST=127.0.0.1", &port, "STATS_FLUSH_INTERVAL=1ms", "MAX_VALUE_SERIES=100"];
    let mut service = Tollgate::start(RULES, &settings);
    for user in 0..2_000 {
        ask(&service, &[("row", &format!("{user:0200}"))], 1).await;
    }
    service.change_rules(&RULES.replace("value: free", "value: paid"));
    service.must_log("new rules are in force");
    ask(&service, &[("plan", "paid")], 1).await;
    let (_, metrics) = service.get("/metrics");
    assert!(metrics.contains("\ntollgate_value_series_evicted_total 1900\n"), "{metrics}");
    service.signal("TERM");
    assert!(service.wait().success());
}

#[tokio::test]
async fn a_statsd_server_gets_each_hit_though_most_values_have_made_way() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("STATSD_PORT={}", listener.local_addr().unwrap().port());
    let server = Server::tcp(listener);
    let settings = ["STATSD_HOST=127.0.0.1", &port, "STATS_FLUSH_INTERVAL=1h", "MAX_VALUE_SERIES=3"];
    let mut service = Tollgate::start(RULES, &settings);
    for row in 0..61 {
        ask(&service, &[("row", &row.to_string())], 1).await;
        service.ask(request(&format!("unknown-{row}"), &[&[("a", "b")]])).await.unwrap();
    }
    service.signal("TERM");
    assert!(service.wait().success());
    // The last three, three that made way, and all others at the rule's own path.
    let of = |path: &str, end: &str| server.sum(&format!("ratelimit.service.rate_limit.{path}.{end}"));
    let apart = |first: &str, end: &str| (0..61).map(|row| of(&format!("{first}{row}"), end)).sum::<u64>();
    wait_until("the last", || apart("unknown-", "domain_not_found") == 6);
    assert_eq!((apart("shop.row_", "total_hits"), of("shop.row", "total_hits")), (6, 55));
    assert_eq!((apart("shop.row_", "within_limit"), of("shop.row", "within_limit")), (6, 55));
    assert_eq!(of("(others)", "domain_not_found"), 55);
}

#[tokio::test]
async fn a_rule_with_several_limits_counts_each_hit_once_as_the_nearest_says() {
    let limits = "rate_limits: [{unit: year, requests_per_unit: 1000}, {unit: week, requests_per_unit: 10},
      {unit: day, requests_per_unit: 500}]";
    let rules = format!(
        "domain: shop\ndescriptors:\n  - {{key: plan, {limits}}}\n  - {{key: row, value_to_metric: true, {limits}}}\n"
    );
    let service = Tollgate::start(&rules, &PROMETHEUS);
    for _ in 0..11 {
        ask(&service, &[("plan", "free")], 1).await;
        ask(&service, &[("row", "a")], 1).await;
    }
    let series = scrape(&service, "/metrics");
    for key in ["plan", "row_a"] {
        let stat =
            |stat: &str| series[&format!("ratelimit_service_rate_limit_{stat}{{domain=\"shop\",key1=\"{key}\"}}")];
        let stats = ["total_hits", "over_limit", "near_limit", "within_limit"].map(stat);
        assert_eq!(stats, [11.0, 1.0, 2.0, 10.0], "{key}");
    }
    // Tollgate's own are of each limit.
    let own = series.iter().filter(|(name, _)| name.starts_with("tollgate_hits_total{"));
    assert_eq!(own.map(|(_, hits)| *hits).collect::<Vec<_>>(), [11.0; 6]);
}

#[tokio::test]
async fn without_redis_each_call_is_an_error_of_its_and_its_hits_count_whatever_the_mode() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let redis = format!("REDIS_URL=redis://{gone}");
    for mode in ["open", "closed", "local", "error"] {
        let mode = format!("FAILURE_MODE={mode}");
        let service = Tollgate::start(RULES, &[&PROMETHEUS[..], &[&redis, &mode]].concat());
        for _ in 0..3 {
            let both = request("shop", &[&[("plan", "free")], &[("row", "a")]]);
            assert_eq!(service.ask(both).await.is_err(), mode == "FAILURE_MODE=error");
        }
        let series = scrape(&service, "/metrics");
        for (name, value) in [
            ("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}", 3.0),
            ("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}", 0.0),
            ("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"plan_free\"}", 3.0),
            ("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"row_a\"}", 3.0),
            ("tollgate_hits_total{domain=\"shop\",rule=\"plan=free\"}", 3.0),
            ("tollgate_calls_without_store_total", 3.0),
        ] {
            assert_eq!(series.get(name), Some(&value), "{name} {mode}");
        }
    }
}

#[tokio::test]
async fn nothing_in_a_key_or_a_value_breaks_a_line_or_moves_a_level() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = format!("STATSD_PORT={}", socket.local_addr().unwrap().port());
    let server = Server::udp(socket);
    let rules = r#"
domain: "shop:1|c\nshop"
descriptors:
  - key: "a|b=c"
    value: "d=e|f"
    descriptors:
      - {key: "g=", value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: "h|", rate_limit: {unit: year, requests_per_unit: 2}}
"#;
    let statsd = ["STATSD_HOST=127.0.0.1", &port, "STATSD_PROTOCOL=udp", "STATS_FLUSH_INTERVAL=20ms"];
    let tags = ["EXTRA_TAGS=url:http://a.b|c"];
    let service = Tollgate::start(rules, &[&PROMETHEUS[..], &statsd, &tags].concat());
    for below in [("g=", "x:1|c|@0.1|#t\nown:5"), ("h|", "y")] {
        service.ask(request("shop:1|c\nshop", &[&[("a|b=c", "d=e|f"), below]])).await.unwrap();
    }
    let name = |last: &str| format!("ratelimit.service.rate_limit.shop_1_c_shop.a_b=c_d=e_f.{last}.total_hits");
    let tag = ".__url=http_//a_b_c";
    let lines = [name("g=_x_1_c_@0_1_#t_own_5"), name("h_")].map(|name| format!("{name}{tag}:1|c"));
    let lines = lines.map(|line| line.replace("@0_1", "@0.1"));
    wait_until("both", || lines.iter().all(|line| server.lines().contains(line)));
    let is_line = regex::Regex::new(r"^ratelimit[^:|]*:\d+\|(c|ms(\|@[\d.e-]+)?)$").unwrap();
    assert!(server.lines().iter().all(|line| is_line.is_match(line)), "{:?}", server.lines());
    let hits = "ratelimit_service_rate_limit_total_hits";
    let labels = "domain=\"shop_1_c_shop\",key1=\"a_b=c_d=e_f\",key2=\"h_\",url=\"http://a.b|c\"";
    assert_eq!(scrape(&service, "/metrics")[&format!("{hits}{{{labels}}}")], 1.0);
}

#[tokio::test]
async fn statsd_by_datagrams_has_tags_in_names() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = format!("STATSD_PORT={}", socket.local_addr().unwrap().port());
    let server = Server::udp(socket);
    let settings =
        ["USE_STATSD=true", "STATSD_HOST=127.0.0.1", &port, "STATSD_PROTOCOL=udp", "STATS_FLUSH_INTERVAL=20ms"];
    let service = Tollgate::start(RULES, &[&settings[..], &["EXTRA_TAGS=zone:b,pod:a"]].concat());
    ask(&service, &[("plan", "free")], 2).await;
    wait_until("two hits", || server.sum(&format!("{HITS}.__pod=a.__zone=b")) == 2);
}

#[tokio::test]
async fn dogstatsd_has_the_names_and_tags_of_the_first_mogrifier_that_matches() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = format!("STATSD_PORT={}", socket.local_addr().unwrap().port());
    let server = Server::udp(socket);
    let settings = ["USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1", &port, "STATS_FLUSH_INTERVAL=20ms"];
    let mogrifiers = [
        "EXTRA_TAGS=pod:a",
        "USE_DOG_STATSD_MOGRIFIERS=hits,other",
        "DOG_STATSD_MOGRIFIER_HITS_PATTERN=^ratelimit\\.service\\.rate_limit\\.([^.]*)\\.(.*)\\.([^.]*)$",
        "DOG_STATSD_MOGRIFIER_HITS_NAME=ratelimit.$3",
        "DOG_STATSD_MOGRIFIER_HITS_TAGS=domain:$1,descriptor:$2",
        "DOG_STATSD_MOGRIFIER_OTHER_PATTERN=^ratelimit",
        "DOG_STATSD_MOGRIFIER_OTHER_NAME=other",
    ];
    let service = Tollgate::start(RULES, &[&settings[..], &mogrifiers].concat());
    ask(&service, &[("row", "a,b|c\n#d")], 2).await;
    let hits = "ratelimit.total_hits:2|c|#pod:a,domain:shop,descriptor:row_a_b_c__d";
    wait_until("two hits", || server.lines().contains(&hits.to_owned()));
    assert!(server.lines().iter().any(|line| line.starts_with("other:1|c|#pod:a")), "{:?}", server.lines());
}

#[test]
fn what_cannot_be_sent_is_refused_at_the_start() {
    let mapping = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&mapping, "mappings: [{match: a}]").unwrap();
    let not_a_mapping = format!("PROMETHEUS_MAPPER_YAML={}", mapping.path().display());
    for (settings, said) in [
        (&["USE_STATSD=true", "USE_DOG_STATSD=true"][..], "statsd or DogStatsD"),
        (&["USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=A"], "DOG_STATSD_MOGRIFIER_A_PATTERN: must be set"),
        (
            &[
                "USE_DOG_STATSD=true",
                "USE_DOG_STATSD_MOGRIFIERS=A",
                "DOG_STATSD_MOGRIFIER_A_PATTERN=(",
                "DOG_STATSD_MOGRIFIER_A_NAME=x",
            ],
            "DOG_STATSD_MOGRIFIER_A_PATTERN: ",
        ),
        (&["PROMETHEUS_ADDR=9090"], "must be address:port"),
        (&["USE_PROMETHEUS=true", &not_a_mapping], "has no name"),
        (&["USE_PROMETHEUS=true", "EXTRA_TAGS=pod:a,__name__:evil"], "\"__name__\" cannot be a label: choose a name"),
        (&["USE_PROMETHEUS=true", "EXTRA_TAGS=le:1"], "\"le\" cannot be a label"),
        (&["USE_PROMETHEUS=true", "EXTRA_TAGS=.-pod:1"], "\".-pod\" cannot be a label"),
    ] {
        let mut command = tollgate::command();
        let settings = settings.iter().map(|setting| setting.split_once('=').unwrap());
        let output = command.args(["check", "--env"]).envs(settings).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains(said), "{text}");
    }
}
