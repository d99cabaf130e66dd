//! The metrics that the process serves.

use crate::process::RULES;
use crate::support::tollgate::{Tollgate, request};
use crate::support::{wait_until, wait_until_async};

/// The requests of the rule `per-user` with this outcome.
fn requests(tollgate: &Tollgate, outcome: &str) -> f64 {
    let series = format!("{{domain=\"shop\",rule=\"per-user\",outcome=\"{outcome}\"}}");
    tollgate.metric(&format!("tollgate_rule_requests_total{series}"))
}

#[tokio::test]
async fn metrics_tell_what_was_decided_with_labels_from_rules_only() {
    let tollgate = Tollgate::start(RULES, &["NEAR_LIMIT_RATIO=0.5"]);
    for _ in 0..3 {
        tollgate.passes("shop", &[("user", "ann")]).await;
    }
    tollgate.passes("shop", &[("color", "crimson")]).await;
    tollgate.passes("mall", &[("user", "ann")]).await;
    let rule = |name: &str| tollgate.metric(&format!("tollgate_{name}{{domain=\"shop\",rule=\"per-user\"}}"));
    let hits = [
        "hits_total",
        "within_limit_hits_total",
        "near_limit_hits_total",
        "over_limit_hits_total",
        "shadow_hits_total",
    ];
    assert_eq!(hits.map(rule), [3.0, 2.0, 1.0, 1.0, 0.0]);
    assert_eq!(
        ["within_limit", "over_limit", "shadow", "undecided"].map(|of| requests(&tollgate, of)),
        [2.0, 1.0, 0.0, 0.0]
    );
    for (series, value) in [
        ("requests_total{outcome=\"ok\"}", 4.0),
        ("requests_total{outcome=\"over_limit\"}", 1.0),
        ("descriptors_total{match=\"limited\"}", 3.0),
        ("descriptors_total{match=\"no_rule\"}", 1.0),
        ("descriptors_total{match=\"domain_not_found\"}", 1.0),
        ("store_seconds_count", 3.0),
        ("request_seconds_count", 5.0),
        ("store_up", 1.0),
        ("retry_after_seconds_bucket{le=\"86400\"}", 0.0),
        ("retry_after_seconds_count", 1.0),
        ("rules_loaded", 1.0),
        ("domains_loaded", 1.0),
    ] {
        assert_eq!(tollgate.metric(&format!("tollgate_{series}")), value, "{series}");
    }
    let (status, body) = tollgate.get("/metrics");
    assert_eq!(status, 200);
    for secret in ["\"ann", "crimson", "mall"] {
        assert!(!body.contains(secret), "{secret} is in the metrics");
    }
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let name = name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
        assert!(body.contains(&format!("# HELP {name} ")), "{name} has no meaning");
    }
    wait_until("the counter in memory is told", || tollgate.metric("tollgate_memory_counters") == 1.0);
}

#[test]
fn replicas_are_compared_by_the_version_of_their_rules() {
    let replicas = [(); 2].map(|()| Tollgate::start(RULES, &[]));
    let versions = |tollgate: &Tollgate| -> Vec<String> {
        let (_, text) = tollgate.get("/metrics");
        let series = text.lines().filter_map(|line| line.strip_prefix("tollgate_rules_info{version=\""));
        series.map(|rest| rest.strip_suffix("\"} 1").unwrap().to_owned()).collect()
    };
    let [before, other] = [0, 1].map(|replica| versions(&replicas[replica]));
    assert_eq!((before.len(), &before), (1, &other));
    replicas[0].change_rules(&RULES.replace("year", "day"));
    wait_until("another version is in force", || versions(&replicas[0]) != before);
    assert_eq!(versions(&replicas[0]).len(), 1);
    replicas[0].change_rules(&format!("# The same in other words.\n{RULES}"));
    wait_until("the version of before is in force", || versions(&replicas[0]) == before);
}

#[tokio::test]
async fn no_single_request_spoils_the_metrics_of_a_rule() {
    let tollgate = Tollgate::start(RULES, &[]);
    let rule = |name: &str| tollgate.metric(&format!("tollgate_{name}{{domain=\"shop\",rule=\"per-user\"}}"));
    for hits in [1 << 53, u64::MAX, 1 << 40] {
        let mut asked = request("shop", &[&[("user", "ann")]]);
        asked.descriptors[0].hits_addend = Some(hits);
        // Some are refused as invalid, and none of those is counted.
        let _ = tollgate.ask(asked).await;
    }
    let (hits, denied) = (rule("hits_total"), requests(&tollgate, "over_limit"));
    assert!((1.0..=3.0).contains(&denied), "{denied}");
    assert!(hits <= denied * f64::from(u32::MAX), "{hits}");
    assert!(tollgate.passes("shop", &[("user", "bob")]).await);
    assert_eq!(rule("hits_total"), hits + 1.0, "one more is seen");
    assert_eq!(requests(&tollgate, "within_limit"), 1.0);
    assert_eq!(rule("within_limit_hits_total"), 1.0);
    // A peek at a counter is a request, too.
    let mut peek = request("shop", &[&[("user", "bob")]]);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap();
    assert_eq!((rule("hits_total"), requests(&tollgate, "within_limit")), (hits + 1.0, 2.0));
}

#[tokio::test]
async fn a_large_scrape_is_shared_and_then_made_anew() {
    let rules = (0..1_000)
        .map(|rule| format!("  - {{key: user, value: u{rule}, rate_limit: {{unit: day, requests_per_unit: 5}}}}\n"));
    let tollgate = Tollgate::start(&format!("domain: shop\ndescriptors:\n{}", rules.collect::<String>()), &[]);
    for hundred in 0..10 {
        let users: Vec<String> = (0..100).map(|user| format!("u{}", hundred * 100 + user)).collect();
        let entries: Vec<[(&str, &str); 1]> = users.iter().map(|user| [("user", user.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entries| &entries[..]).collect();
        tollgate.ask(request("shop", &descriptors)).await.unwrap();
    }
    let first = || tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"user=u0\"}");
    let mut before = 0.0;
    wait_until_async("a request between two scrapes is not seen at once", async || {
        before = first();
        tollgate.passes("shop", &[("user", "u0")]).await;
        first() == before
    })
    .await;
    wait_until("it is seen later", || first() > before);
    let body = tollgate.get("/metrics").1;
    assert_eq!(body.lines().filter(|line| line.starts_with("tollgate_hits_total{")).count(), 1_000);
    assert_eq!(body.matches("# HELP tollgate_hits_total ").count(), 1);
    let zipped = ureq::get(format!("http://127.0.0.1:{}/metrics", tollgate.http_port));
    let mut zipped = zipped.header("Accept-Encoding", "gzip").call().unwrap();
    assert_eq!(zipped.headers()["content-encoding"], "gzip");
    assert!(zipped.body_mut().read_to_vec().unwrap().len() < body.len() / 5);
}

#[tokio::test]
async fn series_of_rules_that_are_gone_go_with_them() {
    let tollgate = Tollgate::start(RULES, &[]);
    tollgate.passes("shop", &[("user", "ann")]).await;
    assert!(tollgate.get("/metrics").1.contains("rule=\"per-user\""));
    tollgate.change_rules(&RULES.replace("per-user", "per-customer"));
    wait_until("the series are gone", || !tollgate.get("/metrics").1.contains("rule=\"per-user\""));
}
