//! What one instance answers for all that share its store: the busiest keys, the counts of limits, the last minutes and
//! the log.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, command};
use crate::support::{wait_until, wait_until_async};

const TOKEN: &str = "a token of some length";

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 5, name: per-user}}
- {key: path, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

fn start(url: &str, settings: &[&str]) -> Tollgate {
    let (url, token) = (format!("REDIS_URL={url}"), format!("ADMIN_TOKEN={TOKEN}"));
    Tollgate::start(RULES, &[&["ADMIN_API=true", "REDIS_TIMEOUT=20s", &url, &token], settings].concat())
}

fn told(service: &Tollgate, path: &str) -> Value {
    let (status, told) = service.admin("GET", path, TOKEN);
    assert_eq!(status, 200, "{path}: {told}");
    told
}

/// Waits until each service knows all others, and that they answer.
fn meet(services: &[Tollgate]) {
    let of = |service: &Tollgate| told(service, "/top")["instances"]["answered"] == services.len();
    wait_until("each hears all", || services.iter().all(of));
}

/// Returns the value of the first entry, the hits and the denials of each key.
fn keys(top: &Value) -> Vec<(String, u64, u64)> {
    let keys = top["keys"].as_array().unwrap().iter();
    let key = |key: &Value| {
        let value = key["descriptor"][0]["value"].as_str().unwrap().to_owned();
        (value, key["hits"].as_u64().unwrap(), key["denied"].as_u64().unwrap())
    };
    keys.map(key).collect()
}

async fn ask(service: &Tollgate, key: &str, value: &str, times: usize) {
    for _ in 0..times {
        service.passes("shop", &[(key, value)]).await;
    }
}

#[tokio::test]
async fn each_of_two_instances_shows_one_list_of_keys_with_the_counts_of_both() {
    let redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url(), &[]));
    ask(&services[0], "user", "ann", 4).await;
    ask(&services[1], "user", "ann", 3).await;
    ask(&services[1], "user", "bob", 2).await;
    meet(&services);
    let expected = [("ann".to_owned(), 7, 2), ("bob".to_owned(), 2, 0)];
    for service in &services {
        let top = told(service, "/top?rule=per-user&by=hits&remaining=true");
        assert_eq!(keys(&top), expected, "{top}");
        let bounds = ["at_least", "at_most", "remaining"].map(|bound| top["keys"][0][bound].as_u64().unwrap());
        assert_eq!(bounds, [7, 7, 0], "no sketch is full, and the store has the counter of both");
        assert_eq!((&top["instances"]["of"], &top["instances"]["missing"]), (&2.into(), &Value::Array(Vec::new())));
    }
    let own = told(&services[0], "/top?rule=per-user&instance=self");
    assert_eq!((keys(&own), &own["instances"]["of"]), (vec![("ann".to_owned(), 4, 0)], &1.into()));

    let terminal = |more: &[&str]| {
        let address = format!("http://127.0.0.1:{}", services[0].http_port);
        let mut top = command();
        top.args(["top", "--address", &address, "--timeout", "30s"]).args(more).env("ADMIN_TOKEN", TOKEN);
        String::from_utf8(top.output().unwrap().stdout).unwrap()
    };
    let text = terminal(&[]);
    assert!(text.contains("instances: 2 of 2)") && text.contains("user=ann"), "{text}");
    assert!(!terminal(&["--one-instance"]).contains("instances"));
}

#[tokio::test]
async fn a_hash_that_another_instance_shows_is_not_taken_for_the_value_of_a_counter() {
    let redis = Redis::start();
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "a key of sixteen letters").unwrap();
    let file = format!("VALUES_KEY_FILE={}", key.path().display());
    let services = [(); 2].map(|()| start(&redis.url(), &["TOP_KEYS_VALUES=hashed", &file]));
    ask(&services[0], "user", "ann", 7).await;
    meet(&services);
    let key_at = |service: &Tollgate| told(service, "/top?rule=per-user&by=hits&remaining=true")["keys"][0].clone();
    let (own, elsewhere) = (key_at(&services[0]), key_at(&services[1]));
    assert_eq!((&own["hits"], &own["remaining"]), (&7.into(), &0.into()));
    assert_eq!((&elsewhere["hits"], &elsewhere["remaining"]), (&7.into(), &Value::Null), "{elsewhere}");
}

#[tokio::test]
async fn an_instance_that_does_not_answer_is_named_and_the_others_are_told() {
    let redis = Redis::start();
    let services = [(); 3].map(|()| start(&redis.url(), &[]));
    for service in &services {
        ask(service, "user", "ann", 1).await;
    }
    meet(&services);
    let told_replicas = told(&services[2], "/replicas");
    let lines = told_replicas["replicas"].as_array().unwrap();
    let third = lines.iter().find(|line| line["is_self"] == true).unwrap()["id"].clone();
    services[2].signal("STOP");
    wait_until("the third is missing", || {
        let top = told(&services[0], "/top?rule=per-user");
        let is_missing = top["instances"]["missing"] == Value::Array(vec![third.clone()]);
        is_missing && keys(&top) == [("ann".to_owned(), 2, 0)]
    });
    services[2].signal("CONT");
    wait_until("it is back", || told(&services[0], "/top")["instances"]["answered"] == 3);
}

#[tokio::test]
async fn the_last_minutes_and_the_limits_are_those_of_all_instances() {
    let redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url(), &[]));
    meet(&services);
    for service in &services {
        ask(service, "user", "ann", 5).await;
        ask(service, "path", "/a", 3).await;
    }
    let sums = |overview: &Value, of: &str| -> u64 {
        overview["steps"].as_array().unwrap().iter().map(|step| step[of].as_u64().unwrap()).sum()
    };
    // A step is shown when it is over.
    let mut overview = Value::Null;
    wait_until_async("all requests are in a step", async || {
        overview = told(&services[0], "/overview");
        sums(&overview, "allowed") + sums(&overview, "denied") == 16
    })
    .await;
    assert_eq!((sums(&overview, "allowed"), sums(&overview, "denied")), (11, 5), "shadow mode denies nothing");
    let denied_by = &overview["denied_by"][0];
    assert_eq!((&denied_by["domain"], &denied_by["rule"]), (&"shop".into(), &"per-user".into()), "{overview}");
    let instances = &told(&services[0], "/replicas?rates=true")["replicas"];
    let shares = |of: &str| instances.as_array().unwrap().iter().map(|one| one[of].as_f64().unwrap()).sum::<f64>();
    assert!((shares("share") - 1.0).abs() < 1e-9 && shares("decisions_per_s") > 0.0, "{instances}");
    assert_eq!(told(&services[0], "/replicas")["replicas"][0]["share"], Value::Null, "nobody was asked");
    assert_eq!(overview["instances"]["answered"], 2);

    wait_until("the limits have their counts", || {
        let listing = told(&services[1], "/rules?sort=denials");
        let limits = listing["limits"].as_array().unwrap();
        let of = |rule: &str| limits.iter().find(|limit| limit["rule"] == rule).unwrap();
        let (user, path) = (&of("per-user")["counted"], &of("path")["counted"]);
        user["requests"] == 10
            && user["over_limit_requests"] == 5
            && path["requests"] == 6
            && path["shadow_requests"] == 5
            && of("per-user")["spark"].as_array().unwrap().iter().map(|bar| bar.as_u64().unwrap()).sum::<u64>() == 5
    });
    let only = told(&services[0], "/rules?filter=shadow");
    assert_eq!((&only["total"], &only["limits"][0]["rule"]), (&1.into(), &"path".into()));
    let one = told(&services[0], "/rules/one?domain=shop&rule=per-user");
    assert!(one["yaml"].as_str().unwrap().contains("key: user"), "{one}");
    assert_eq!(one["hour"].as_array().unwrap().iter().map(|minute| minute["denied"].as_u64().unwrap()).sum::<u64>(), 5);
    assert_eq!(services[0].admin("GET", "/rules/one?domain=shop&rule=per-usr", TOKEN).0, 404);

    let log = told(&services[0], "/log?search=rules&limit=50");
    let instances: std::collections::BTreeSet<_> =
        log["lines"].as_array().unwrap().iter().map(|line| line["instance"].as_str().unwrap().to_owned()).collect();
    assert_eq!(instances.len(), 2, "{log}");
}

#[tokio::test]
async fn what_a_denial_does_is_shown_as_it_is_decided() {
    const CANARY: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 1, name: per-user, enforce: 50%}}
- {key: path, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";
    let token = format!("ADMIN_TOKEN={TOKEN}");
    let service = Tollgate::start(CANARY, &["ADMIN_API=true", &token]);
    let mut enforced = Vec::new();
    for user in 0..20 {
        let name = format!("u{user}");
        ask(&service, "user", &name, 1).await;
        enforced.push(!service.passes("shop", &[("user", &name)]).await);
    }
    assert!(enforced.contains(&true) && enforced.contains(&false), "some keys are in the share");
    let role = |name: &str| {
        let top = told(&service, "/top?rule=per-user&n=100");
        let key = |key: &&Value| key["descriptor"][0]["value"] == name;
        top["keys"].as_array().unwrap().iter().find(key).unwrap()["role"].clone()
    };
    for (user, is_enforced) in enforced.iter().enumerate() {
        assert_eq!(role(&format!("u{user}")), if *is_enforced { "enforced" } else { "shadow" }, "u{user}");
    }
    let of = |query: &str| {
        let limits = told(&service, query)["limits"].as_array().unwrap().clone();
        limits
            .iter()
            .map(|limit| [&limit["rule"], &limit["role"], &limit["enforce"]].map(Value::clone))
            .collect::<Vec<_>>()
    };
    let path = ["path".into(), "shadow".into(), Value::Null];
    assert_eq!(of("/rules"), [["per-user".into(), "enforced".into(), "50%".into()], path.clone()]);
    assert_eq!(of("/rules?filter=shadow"), std::slice::from_ref(&path));

    let all = [["per-user".into(), "enforced".into(), Value::Null], path.clone()];
    let enforce = r#"{"effect": "enforce", "domain": "shop", "rule": "per-user", "who": "ann", "why": "a test",
        "for": "1h"}"#;
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(service.send("POST", "/adjustments", &headers, enforce.as_bytes()).0, 201);
    wait_until("it is enforced for all keys", || of("/rules") == all);
    let outside = enforced.iter().position(|is_enforced| !is_enforced).unwrap();
    assert_eq!(role(&format!("u{outside}")), "enforced");

    let service = Tollgate::start(CANARY, &["ADMIN_API=true", &token, "SHADOW_MODE=true"]);
    ask(&service, "user", "u0", 2).await;
    assert_eq!(told(&service, "/top")["keys"][0]["role"], "shadow", "nobody is denied");
    assert_eq!(told(&service, "/rules?filter=shadow")["total"], 2);
    assert_eq!(told(&service, "/rules")["limits"][0]["enforce"], Value::Null);
}

#[tokio::test]
async fn a_limit_that_any_instance_has_used_is_not_called_unused() {
    // More than each instance counts unasked.
    let rules = (0..540).map(|rule| format!("- {{key: k{rule}, rate_limit: {{unit: year, requests_per_unit: 5}}}}\n"));
    let rules = format!("domain: shop\ndescriptors:\n{}", rules.collect::<String>());
    let redis = Redis::start();
    let (url, token) = (format!("REDIS_URL={}", redis.url()), format!("ADMIN_TOKEN={TOKEN}"));
    let settings = ["ADMIN_API=true", "REDIS_TIMEOUT=20s", &url, &token];
    let services = [(); 2].map(|()| Tollgate::start(&rules, &settings));
    meet(&services);
    ask(&services[1], "k7", "a", 1).await;
    let unused = told(&services[0], "/rules?filter=unused&search=k7&domain=shop&limit=1");
    assert_ne!(unused["limits"][0]["rule"], "k7", "it was used a moment ago");
    for rule in 0..530 {
        ask(&services[1], &format!("k{rule}"), "a", 1).await;
    }
    wait_until("the used ones are known", || {
        let unused = told(&services[0], "/rules?filter=unused");
        let names = unused["limits"].as_array().unwrap().iter().map(|limit| limit["rule"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>() == (530..540).map(|rule| format!("k{rule}")).collect::<Vec<_>>()
    });
}

#[tokio::test]
async fn an_adjusted_limit_is_listed_with_both_numbers() {
    let service = Tollgate::start(RULES, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let half = r#"{"effect": "number", "number": 2, "domain": "shop", "rule": "per-user", "who": "ann", "why": "a test",
        "for": "1h", "id": "two"}"#;
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    assert_eq!(service.send("POST", "/adjustments", &headers, half.as_bytes()).0, 201);
    let listing = told(&service, "/rules?filter=adjusted");
    assert_eq!(listing["total"], 1, "{listing}");
    let limit = &listing["limits"][0];
    assert!(limit["limit"].as_str().unwrap().starts_with("5 per"), "{limit}");
    assert!(limit["adjusted"]["limit"].as_str().unwrap().starts_with("2 per"), "{limit}");
    assert_eq!((&limit["adjusted"]["number"], &limit["adjusted"]["ids"][0]), (&2.into(), &"two".into()));
    assert_eq!(listing["instances"]["of"], 1);
}

#[tokio::test]
async fn while_redis_is_down_the_own_counts_are_told_and_why_the_others_are_missing() {
    let mut redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url(), &["REDIS_TIMEOUT=300ms"]));
    ask(&services[0], "user", "ann", 2).await;
    ask(&services[1], "user", "ann", 1).await;
    meet(&services);
    redis.kill();
    wait_until("it is told", || {
        let top = told(&services[0], "/top?rule=per-user");
        top["instances"]["unavailable"].is_string()
            && top["instances"]["answered"] == 1
            && keys(&top) == [("ann".to_owned(), 2, 0)]
    });
}

#[tokio::test]
async fn a_cluster_carries_questions_too() {
    let cluster = Cluster::start(3, 0).await;
    let (setting, token) = (cluster.setting(), format!("ADMIN_TOKEN={TOKEN}"));
    let settings = [&*setting, "ADMIN_API=true", "REDIS_TIMEOUT=20s", &token];
    let services = [(); 2].map(|()| Tollgate::start(RULES, &settings));
    ask(&services[0], "user", "ann", 2).await;
    ask(&services[1], "user", "ann", 1).await;
    meet(&services);
    assert_eq!(keys(&told(&services[0], "/top?rule=per-user")), [("ann".to_owned(), 3, 0)]);
}

#[tokio::test]
async fn questions_expire_and_a_key_of_another_type_only_costs_the_others_answers() {
    let redis = Redis::start();
    let services = [(); 2].map(|()| start(&redis.url(), &["CACHE_KEY_PREFIX=p:"]));
    ask(&services[0], "user", "ann", 2).await;
    meet(&services);
    let left = async || {
        let mut connection = redis.connection().await;
        let keys: Vec<String> = cmd("KEYS").arg("p:{|replicas}|asked*").query_async(&mut connection).await.unwrap();
        keys
    };
    assert!(!told(&services[0], "/top?n=7")["instances"]["missing"].is_null());
    wait_until_async("questions and answers are gone", async || left().await.is_empty()).await;
    redis.command::<()>("SET p:{|replicas}|asked junk").await;
    wait_until("the own keys are told, and why there are no others", || {
        let top = told(&services[0], "/top?rule=per-user");
        let instances = &top["instances"];
        keys(&top) == [("ann".to_owned(), 2, 0)] && instances["answered"] == 1 && instances["unavailable"].is_string()
    });
    redis.command::<()>("DEL p:{|replicas}|asked").await;
    wait_until("both answer again", || told(&services[0], "/top")["instances"]["answered"] == 2);
    tokio::time::timeout(Duration::from_secs(30), async { while !left().await.is_empty() {} }).await.unwrap();
}
