//! The dashboards and alerts ask for what the service declares, and a real Prometheus answers every query.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command, Stdio};

use regex::Regex;
use serde_json::Value;

use super::documents;
use crate::support::free_port;
use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate, request};
use crate::support::{wait_until, wait_until_async};

const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const BRAKES: &str = "deploy/prometheus/brakes.yaml";
/// Cases in which each alert fires, and in which none does.
const CASES: &str = "tests/alerts.yaml";
const DASHBOARDS: [&str; 2] = ["deploy/grafana/service.json", "deploy/grafana/limits.json"];

/// Prometheus adds these, a query makes them, or they come from the variables of a dashboard.
const LABELS_OF_OTHERS: [&str; 3] = ["job", "instance", "le"];

/// The alerts of all groups.
pub(super) fn alerts() -> Vec<Value> {
    let file = &documents(ALERTS)[0];
    let rules = file["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

/// The queries of the dashboards, each with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for file in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().into_iter().flatten() {
                queries.push((format!("{file}: {title}"), target["expr"].as_str().unwrap().to_owned()));
            }
        }
    }
    assert!(queries.len() > 50, "{queries:?}");
    queries
}

/// For each metric of docs/metrics.md, the words in backticks of its row: labels and their values.
fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let output = tollgate::command().arg("metrics").output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let mut declared = BTreeMap::new();
    let (of_process, of_rules) = page.split_once("## Of each rule").unwrap();
    for (part, more) in [(of_process, &[][..]), (of_rules, &["domain", "rule"][..])] {
        for row in part.lines().filter_map(|line| line.strip_prefix("| `tollgate_")) {
            let name = format!("tollgate_{}", row.split('`').next().unwrap());
            let words = row.split('`').skip(2).step_by(2).map(str::to_owned);
            declared.insert(name, words.chain(more.iter().map(|label| (*label).to_owned())).collect());
        }
    }
    assert!(declared.len() > 40);
    declared
}

/// Returns the metrics and labels of a query that are not declared.
fn undeclared(query: &str, declared: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let series = Regex::new(r"(tollgate_[a-z_]+)(?:\{([^}]*)\})?").unwrap();
    let matcher = Regex::new(r#"([a-z_0-9]+)(=~|!~|!=|=)"([^"]*)""#).unwrap();
    let grouping = Regex::new(r"\b(?:by|on|ignoring) \(([^)]*)\)").unwrap();
    let (mut wrong, mut labels) = (Vec::new(), BTreeSet::from(LABELS_OF_OTHERS.map(str::to_owned)));
    for found in series.captures_iter(query) {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| found[1].strip_suffix(end));
        let Some(words) = declared.get(&found[1]).or_else(|| declared.get(histogram?)) else {
            wrong.push(found[1].to_owned());
            continue;
        };
        labels.extend(words.iter().cloned());
        for pair in matcher.captures_iter(found.get(2).map_or("", |matchers| matchers.as_str())) {
            let is_of_others = LABELS_OF_OTHERS.contains(&&pair[1]);
            let is_variable = pair[3].starts_with('$');
            if !is_of_others && !words.contains(&pair[1]) {
                wrong.push(format!("{}{{{}}}", &found[1], &pair[1]));
            }
            if !is_of_others && !is_variable {
                wrong.extend(pair[3].split('|').filter(|value| !words.contains(*value)).map(str::to_owned));
            }
        }
    }
    let grouped =
        grouping.captures_iter(query).flat_map(|list| list[1].split(", ").map(str::to_owned).collect::<Vec<_>>());
    wrong.extend(grouped.filter(|label| !labels.contains(label)));
    wrong
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_and_labels_that_there_are() {
    let declared = declared();
    let alerts = alerts();
    let alerts = alerts
        .iter()
        .map(|alert| (alert["alert"].as_str().unwrap().to_owned(), alert["expr"].as_str().unwrap().to_owned()));
    for (place, query) in alerts.chain(queries()) {
        assert_eq!(undeclared(&query, &declared), [""; 0], "{place}: {query}");
    }
}

#[test]
fn every_metric_is_on_a_dashboard_or_means_trouble() {
    let files = DASHBOARDS.iter().chain(&[ALERTS, "docs/trouble-metrics.md"]);
    let text: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    let is_shown =
        |name: &&String| Regex::new(&format!("{name}(_bucket|_sum|_count)?[^a-z_]")).unwrap().is_match(&text);
    let declared = declared();
    assert_eq!(declared.keys().filter(|name| !is_shown(name)).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_is_not_declared_is_found() {
    let declared = declared();
    for (query, wrong) in [
        ("tollgate_gone_total > 0", "tollgate_gone_total"),
        ("rate(tollgate_requests_total{result=\"ok\"}[5m])", "tollgate_requests_total{result}"),
        ("rate(tollgate_requests_total{outcome=~\"ok|fine\"}[5m])", "fine"),
        ("sum by (reason) (tollgate_store_up)", "reason"),
    ] {
        assert!(undeclared(query, &declared).contains(&wrong.to_owned()), "{query}");
    }
}

#[test]
fn each_alert_has_its_case() {
    let cases = fs::read_to_string(CASES).unwrap();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(alert["annotations"]["summary"].is_string(), "{name}");
        assert!(["critical", "warning"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(cases.contains(&format!("{{alertname=\"{name}\"}}")), "{CASES} does not have {name}");
    }
}

/// Metrics that a quiet service does not have or has no data for, so queries of them can be empty.
const QUIET: [(&str, &str); 13] = [
    ("tollgate_sentinels_answering_ratio", "without Sentinels"),
    ("tollgate_admin_requests_total", "without the admin API"),
    ("tollgate_candidate_", "without candidate rules"),
    ("tollgate_tls_certificate_expiry_timestamp_seconds", "without TLS"),
    ("tollgate_xds_", "without a management server"),
    ("tollgate_spans_total", "without tracing"),
    ("tollgate_store_down", "while Redis is up"),
    ("tollgate_known_denied_hits_total", "before the first known denial"),
    ("tollgate_banned_hits_total", "without a penalty"),
    ("tollgate_settled_hits_total", "without a budget"),
    ("outcome=\"shadow\"", "without a rule in shadow mode"),
    ("outcome=\"undecided\"", "while every limit is decided"),
    ("tollgate_rule_failure_mode_answers_total", "while Redis decides"),
];

/// A Prometheus that scrapes a service every second, and evaluates the alerts as often.
struct Prometheus {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(tollgate: &Tollgate) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yaml");
        let alerts = fs::canonicalize(ALERTS).unwrap();
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n  - \
             job_name: tollgate\n    static_configs: [{{targets: ['127.0.0.1:{}']}}]\n",
            alerts.display(),
            tollgate.http_port
        );
        fs::write(&config, text).unwrap();
        let port = free_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("make e2e installs prometheus");
        Prometheus { process, port, _folder: folder }
    }

    /// Returns the response of the API, or null before it is up.
    fn get(&self, path: &str) -> Value {
        let address = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let text = ureq::get(address).call().and_then(|mut response| response.body_mut().read_to_string());
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }

    /// Returns the results of a query, as lists of labels and values.
    ///
    /// # Panics
    /// Where it is none.
    fn query(&self, query: &str) -> Vec<Value> {
        let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let answer = self.get(&format!("query?query={query}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// Each alert, and whether it is well, and its state.
    fn rules(&self) -> Vec<Value> {
        let answer = self.get("rules");
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, unit: hour, requests_per_unit: 5}}
  - {key: hot, rate_limit: {unit: hour, requests_per_unit: 100000, lease: {unused: 1%, ttl: 1s}}}
";

#[tokio::test]
#[ignore = "needs Prometheus: make e2e"]
async fn prometheus_answers_every_query_and_evaluates_every_alert() {
    let mut redis = Redis::start();
    let values = ["USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"];
    let tollgate = Tollgate::start(RULES, &[&[&*format!("REDIS_URL={}", redis.url())], &values[..]].concat());
    let prometheus = Prometheus::start(&tollgate);
    let mut client = tollgate.client().await;
    // A rate needs two values of a counter.
    let is_seen = async || {
        for key in ["user", "hot", "none"] {
            client.should_rate_limit(request("shop", &[&[(key, "ann")]])).await.unwrap();
        }
        let denied = "sum(rate(tollgate_rule_requests_total{outcome=\"over_limit\"}[10s])) > 0";
        prometheus.get("status/runtimeinfo") != Value::Null && !prometheus.query(denied).is_empty()
    };
    wait_until_async("denials are seen", is_seen).await;
    for (place, query) in queries() {
        let asked = query.replace("$__rate_interval", "10s").replace("$job", "tollgate");
        let asked = asked.replace("$instance", ".*").replace("$domain", ".*").replace("$rule", ".*");
        let is_quiet = QUIET.iter().any(|(part, _)| query.contains(part));
        assert!(!prometheus.query(&asked).is_empty() || is_quiet, "{place} has no data: {asked}");
    }
    let is_evaluated = || {
        let rules = prometheus.rules();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        rules.len() == alerts().len() && rules.iter().all(|rule| rule["health"] == "ok")
    };
    wait_until("every alert is evaluated", is_evaluated);
    assert!(prometheus.rules().iter().all(|rule| rule["state"] == "inactive"), "{:?}", prometheus.rules());

    redis.kill();
    let is_pending = async || {
        client.should_rate_limit(request("shop", &[&[("user", "bob")]])).await.unwrap();
        let rules = prometheus.rules();
        let pending = rules.iter().filter(|rule| rule["state"] == "pending");
        let pending: BTreeSet<_> = pending.filter_map(|rule| rule["name"].as_str()).collect();
        ["TollgateStoreDown", "TollgateFailureModesAnswer"].iter().all(|name| pending.contains(name))
    };
    wait_until_async("the alerts of an outage are pending", is_pending).await;
}

#[tokio::test]
#[ignore = "needs promtool: make e2e"]
async fn promtool_finds_nothing_wrong_with_names_and_units_and_alerts_fire_when_they_should() {
    let redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    for user in ["ann", "bob"] {
        for _ in 0..10 {
            tollgate.passes("shop", &[("user", user)]).await;
        }
    }
    let (_, page) = tollgate.get("/metrics");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("metrics");
    fs::write(&file, page).unwrap();
    let promtool = || Command::new("promtool");
    let metrics = promtool().args(["check", "metrics"]).stdin(fs::File::open(&file).unwrap()).output();
    let rules = promtool().args(["check", "rules", ALERTS, BRAKES]).output();
    let alarms = promtool().args(["test", "rules", CASES]).output();
    for output in [metrics, rules, alarms].map(|output| output.expect("make e2e installs promtool")) {
        assert!(output.status.success(), "{output:?}");
    }
}
