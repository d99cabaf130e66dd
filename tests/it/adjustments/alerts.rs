//! Alerts that begin and end adjustments, as Alertmanager tells of them.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{ADMIN, READ_TOKEN, RULES, TOKEN, passed, send, start};
use crate::support::redis::Redis;
use crate::support::tollgate::{self as process, Tollgate};
use crate::support::{free_port, wait_until};

/// Tells of an alert, with what it asks for.
fn alert(name: &str, status: &str, asks: &Value) -> Value {
    json!({
        "status": status,
        "labels": {"alertname": name, "severity": "critical"},
        "annotations": {"summary": format!("{name}\nis too much"), "tollgate": asks.to_string()},
        "startsAt": "2026-11-27T03:00:00Z", "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph", "fingerprint": format!("{}01", name.to_lowercase()),
    })
}

fn tell(tollgate: &Tollgate, token: &str, alerts: &[Value]) -> (u16, Value) {
    let message = json!({
        "version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "tollgate",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://alertmanager",
        "alerts": alerts,
    });
    send(tollgate, "POST", "/adjustments/alerts", token, &message)
}

fn list(tollgate: &Tollgate) -> Vec<Value> {
    let (_, list) = send(tollgate, "GET", "/adjustments", TOKEN, &Value::Null);
    list.as_array().unwrap().clone()
}

#[tokio::test]
async fn an_alert_begins_an_adjustment_once_and_its_end_ends_it() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let [one, other] = [(); 2].map(|()| start(&[&url, "REDIS_TIMEOUT=20s"]));
    let asks =
        json!({"effect": "block", "domain": "shop", "entries": [{"key": "user", "pattern": "bot*"}], "for": "2h"});
    let plain = json!({"status": "firing", "labels": {"alertname": "Disk"}, "annotations": {}, "fingerprint": "77"});
    let flood = |status: &str| alert("Flood", status, &asks);
    let (status, told) = tell(&one, TOKEN, &[flood("firing"), plain.clone()]);
    assert_eq!((status, &told["begun"], &told["ignored"]), (200, &json!(["alert-flood01"]), &json!(1)), "{told}");
    let kept = &list(&one)[0];
    assert_eq!((&kept["who"], &kept["why"]), (&json!("alertmanager"), &json!("Flood is too much")), "{kept}");
    assert_eq!(passed(&one, "user", "bot7", 1).await, 0);

    // Alertmanager repeats what goes on, to any instance, and may say it in other words.
    let mut again = flood("firing");
    again["annotations"]["summary"] = json!("still too much");
    for tollgate in [&one, &other] {
        let (status, told) = tell(tollgate, TOKEN, std::slice::from_ref(&again));
        assert_eq!((status, &told["in_force"]), (200, &json!(["alert-flood01"])), "{told}");
    }
    assert_eq!(list(&one).len(), 1);

    let (status, told) = tell(&other, TOKEN, &[flood("resolved"), plain]);
    assert_eq!((status, &told["ended"]), (200, &json!(["alert-flood01"])), "{told}");
    wait_until("it has ended", || list(&one).is_empty());
    assert_eq!(passed(&one, "user", "bot7", 1).await, 1);
    let (status, told) = tell(&one, TOKEN, &[flood("resolved")]);
    assert_eq!((status, &told["gone"]), (200, &json!(["alert-flood01"])), "{told}");
    // It fires anew.
    assert_eq!(tell(&one, TOKEN, &[flood("firing")]).1["begun"], json!(["alert-flood01"]));
}

#[test]
fn an_alert_that_fails_is_told_and_keeps_no_other_back() {
    let tollgate = start(&[]);
    let good = alert("Flood", "firing", &json!({"effect": "scale", "share": "50%", "domain": "shop"}));
    let mut broken = good.clone();
    broken["annotations"]["tollgate"] = json!("block shop");
    broken["fingerprint"] = json!("broken01");
    let mut nameless = good.clone();
    nameless["fingerprint"] = json!("");
    for (bad, status, wrong) in [
        (alert("Load", "firing", &json!({"effect": "block", "domain": "mall"})), 404, "the rules have no domain mall"),
        (alert("Load", "firing", &json!({"effect": "blcok", "domain": "shop"})), 400, "effect: one of scale"),
        (broken, 400, "annotation tollgate: not an adjustment ("),
        (nameless, 400, "the alert needs a fingerprint"),
    ] {
        let (given, told) = tell(&tollgate, TOKEN, &[bad, good.clone()]);
        let error = told["error"].as_str().unwrap();
        assert!(given == status && error.contains(wrong), "{told}");
        let name = error.split_once(": ").unwrap().0;
        let in_force = told["begun"].as_array().unwrap().len() + told["in_force"].as_array().unwrap().len();
        assert_eq!((in_force, &told["failed"][0]["alert"]), (1, &json!(name)), "{told}");
        tollgate.must_log("an alert has not changed limits as it asks");
    }
    let kept = &list(&tollgate)[0];
    assert_eq!((kept["id"].as_str(), kept["share"].as_str()), (Some("alert-flood01"), Some("50%")));
    let time = |name: &str| humantime::parse_rfc3339(kept[name].as_str().unwrap()).unwrap();
    assert_eq!(
        time("until").duration_since(time("since")).unwrap().as_secs(),
        30 * 60,
        "half an hour, if it names none"
    );

    assert_eq!(tell(&tollgate, READ_TOKEN, std::slice::from_ref(&good)).0, 403);
    let (status, told) = send(&tollgate, "POST", "/adjustments/alerts", TOKEN, &json!({"alerts": 1}));
    assert!(status == 400 && told["error"].as_str().unwrap().contains("it is such as {\"alerts\":"), "{told}");
    let many: Vec<Value> = (0..101).map(|at| alert(&format!("A{at}"), "firing", &json!({}))).collect();
    let (status, told) = tell(&tollgate, TOKEN, &many);
    assert!(status == 413 && told["error"].as_str().unwrap().contains("set max_alerts"), "{told}");
}

#[test]
fn what_the_example_rules_ask_for_begins() {
    let rules = "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: hour, requests_per_unit: 500}}]";
    let tollgate = Tollgate::start(rules, &ADMIN);
    let text = std::fs::read_to_string("deploy/prometheus/brakes.yaml").unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let alerts = file["groups"][0]["rules"].as_array().unwrap().iter().map(|rule| {
        let asks = rule["annotations"]["tollgate"].as_str().unwrap();
        // As Prometheus writes the value of a label that has a quote.
        let asks = asks.replace(r#"{{ printf "%q" $labels.tenant }}"#, r#""ac\"me""#);
        alert(rule["alert"].as_str().unwrap(), "firing", &serde_json::from_str(&asks).unwrap())
    });
    let alerts: Vec<Value> = alerts.collect();
    let (status, told) = tell(&tollgate, TOKEN, &alerts);
    assert_eq!((status, told["begun"].as_array().map(Vec::len)), (200, Some(alerts.len())), "{told}");
    assert_eq!(list(&tollgate)[1]["entries"], json!([{"key": "tenant", "value": "ac\"me"}]));
}

#[test]
fn a_named_token_changes_its_domains_alone_and_the_trail_has_its_name() {
    let tokens = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let token = "alerts-token-of-some-length";
    let text = format!("tokens:\n  - {{name: alerts, token: {token}, roles: [adjust], domains: [shop]}}\n");
    std::fs::write(tokens.path(), text).unwrap();
    let setting = format!("ADMIN_TOKENS_FILE={}", tokens.path().display());
    let tollgate = Tollgate::start(RULES, &[&ADMIN[..], &[&setting]].concat());
    let all = alert("All", "firing", &json!({"effect": "block", "everything": true}));
    let shop = alert("Shop", "firing", &json!({"effect": "shadow", "domain": "shop"}));
    let (status, told) = tell(&tollgate, token, &[all, shop]);
    let error = told["error"].as_str().unwrap();
    assert!(status == 403 && error.contains("of shop only, not of everything"), "{told}");
    let kept = list(&tollgate);
    assert_eq!((kept.len(), &kept[0]["who"]), (1, &json!("alerts (as alertmanager)")));
}

#[test]
fn without_redis_an_alert_holds_here_and_is_published_later() {
    let mut redis = Redis::start();
    let [one, other] = super::brakes::two(&redis);
    redis.kill();
    let flood = alert("Flood", "firing", &json!({"effect": "block", "domain": "shop", "rule": "user"}));
    let (status, told) = tell(&one, TOKEN, std::slice::from_ref(&flood));
    assert_eq!((status, &told["begun"]), (200, &json!(["alert-flood01"])), "{told}");
    assert_eq!(tell(&one, TOKEN, &[flood]).1["in_force"], json!(["alert-flood01"]));
    redis.restart();
    wait_until("it is published", || super::brakes::held(&other) == [("alert-flood01".to_owned(), false)]);
}

/// A real Alertmanager with the configuration of deploy/prometheus, which ends with the test.
struct Alertmanager {
    process: std::process::Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Alertmanager {
    fn start(tollgate: &Tollgate) -> Alertmanager {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (token, config) = (path("token"), path("alertmanager.yaml"));
        let text = std::fs::read_to_string("deploy/prometheus/alertmanager.yaml").unwrap();
        let text = text.replace("tollgate:8080", &format!("127.0.0.1:{}", tollgate.http_port));
        std::fs::write(&token, TOKEN).unwrap();
        std::fs::write(&config, text.replace("/etc/alertmanager/tollgate-token", &token)).unwrap();
        let process = Command::new("prometheus-alertmanager")
            .args(["--config.file", &config, "--storage.path", &path("data"), "--cluster.listen-address="])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("make e2e installs prometheus-alertmanager");
        let started = Alertmanager { process, port, _folder: folder };
        wait_until("Alertmanager is up", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        started
    }

    fn post(&self, alert: &Value) {
        let headers = [("Content-Type", "application/json")];
        let body = json!([alert]).to_string();
        let (status, said) = process::send(self.port, "POST /api/v2/alerts", &headers, body.as_bytes());
        assert_eq!(status, 200, "{said}");
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
#[ignore = "needs Alertmanager: make e2e"]
async fn a_real_alertmanager_begins_and_ends_what_an_alert_asks_for() {
    let tollgate = start(&[]);
    let alertmanager = Alertmanager::start(&tollgate);
    let asks = json!({"effect": "block", "domain": "shop", "entries": [{"key": "user", "value": "bot"}]});
    let mut alert = json!({
        "labels": {"alertname": "Flood"},
        "annotations": {"summary": "a flood", "tollgate": asks.to_string()},
    });
    alertmanager.post(&alert);
    wait_until("it is in force", || list(&tollgate).len() == 1);
    let kept = &list(&tollgate)[0];
    assert!(kept["id"].as_str().unwrap().starts_with("alert-") && kept["why"] == "a flood", "{kept}");
    assert_eq!(passed(&tollgate, "user", "bot", 1).await, 0);
    let now = std::time::SystemTime::now();
    alert["endsAt"] = json!(humantime::format_rfc3339_seconds(now).to_string());
    alertmanager.post(&alert);
    wait_until("it has ended", || list(&tollgate).is_empty());
    assert_eq!(passed(&tollgate, "user", "bot", 1).await, 1);
}
