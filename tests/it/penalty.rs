//! Penalties: a client that is denied repeatedly is banned on all instances, for exactly the configured time, and only
//! for its own denials.

use crate::support;

use ::tollgate::wire::RateLimitResponse;
use ::tollgate::wire::rate_limit_response::Code;
use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};
use support::wait_until_async;

/// The buckets refill so fast that a limit allows requests again at once; only a ban does not.
const RULES: &str = "
domain: shop
defaults: {algorithm: token_bucket}
descriptors:
  - {key: user, rate_limit: {period: 100ms, requests_per_unit: 2, penalty: {after: 3, within: 1h, ban: 1d}}}
  - {key: brief, rate_limit: {period: 1ms, requests_per_unit: 2, penalty: {after: 1, within: 1h, ban: 200ms}}}
  - key: shadow
    shadow_mode: true
    rate_limit: {period: 1ms, requests_per_unit: 2, penalty: {after: 1, within: 1h, ban: 1d}}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 1000, failure_mode: closed, penalty: {after: 1, within: 1h, ban: 1d}}
  - key: team
    value: blue-*
    share_threshold: true
    rate_limit: {period: 100ms, requests_per_unit: 2, penalty: {after: 3, within: 1h, ban: 1d}}
  - key: team
    value: red-*
    rate_limit: {period: 100ms, requests_per_unit: 2, penalty: {after: 3, within: 1h, ban: 1d}}
  - key: report
    descriptors:
      - key: stream
        rate_limit: {requests_per_unit: 2, algorithm: concurrency, penalty: {after: 2, within: 1h, ban: 1d}}
  - {key: ip, rate_limit: {unit: year, requests_per_unit: 4}}
";

/// Asks for so many hits; more than 2 are always denied.
async fn ask(tollgate: &Tollgate, entries: &[(&str, &str)], hits: u32) -> RateLimitResponse {
    let mut request = request("shop", &[entries]);
    // The request's own field takes 0 for 1.
    request.descriptors[0].hits_addend = Some(hits.into());
    tollgate.ask(request).await.unwrap()
}

/// The code, what remains, and the seconds until the reset; 0 if they are not told.
fn status(response: &RateLimitResponse) -> (Code, u32, i64) {
    let [status] = &response.statuses[..] else { panic!("not one status") };
    (status.code(), status.limit_remaining, status.duration_until_reset.map_or(0, |reset| reset.seconds))
}

const DAY: i64 = 24 * 60 * 60;

#[tokio::test]
async fn a_ban_holds_in_every_process_at_once_and_is_reported() {
    let redis = Redis::start();
    let settings = [&*format!("REDIS_URL={}", redis.url()), "LIMIT_RESPONSE_HEADERS_ENABLED=true"];
    let services = [(); 2].map(|()| Tollgate::start(RULES, &settings));
    let ann: &[(&str, &str)] = &[("user", "ann")];
    for denial in 1..=3 {
        let (code, _, reset) = status(&ask(&services[denial % 2], ann, 3).await);
        assert_eq!((code, reset > 1), (Code::OverLimit, denial == 3), "denial {denial}");
    }
    for tollgate in &services {
        let response = ask(tollgate, ann, 1).await;
        let (code, remaining, reset) = status(&response);
        assert_eq!((code, remaining, (DAY - 60..=DAY).contains(&reset)), (Code::OverLimit, 0, true), "{reset}");
        let header = |name: &str| {
            let header = response.response_headers_to_add.iter().find(|header| header.key == name);
            header.unwrap().value.parse::<i64>().unwrap()
        };
        assert!((DAY - 60..=DAY).contains(&header("Retry-After")));
        assert_eq!(header("RateLimit-Remaining"), 0);
        assert_eq!(status(&ask(tollgate, ann, 0).await).0, Code::OverLimit, "a peek says so, too");
        assert_eq!(status(&ask(tollgate, &[("user", "bob")], 1).await).0, Code::Ok, "nobody else is banned");
    }
}

#[tokio::test]
async fn of_a_limit_in_progress_the_end_of_a_ban_is_reported_and_the_release_of_a_slot_is_not() {
    let tollgate = Tollgate::start(RULES, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let retry_after = async |hits: u32| {
        let response = ask(&tollgate, &[("report", "ann"), ("stream", "a")], hits).await;
        let header = response.response_headers_to_add.iter().find(|header| header.key == "Retry-After");
        (response.overall_code(), header.map(|header| header.value.parse::<i64>().unwrap()))
    };
    assert_eq!(retry_after(2).await, (Code::Ok, None));
    assert_eq!(retry_after(1).await, (Code::OverLimit, None));
    for _ in 0..2 {
        let (code, seconds) = retry_after(1).await;
        assert!(code == Code::OverLimit && seconds.is_some_and(|s| (DAY - 60..=DAY).contains(&s)), "{seconds:?}");
    }
    assert_eq!(retry_after(3).await, (Code::OverLimit, None), "what is more than all slots never passes");
}

#[tokio::test]
async fn a_ban_ends_and_hits_meanwhile_do_not_prolong_it() {
    let tollgate = Tollgate::start(RULES, &[]);
    assert_eq!(status(&ask(&tollgate, &[("brief", "ann")], 3).await).0, Code::OverLimit);
    assert_eq!(status(&ask(&tollgate, &[("brief", "ann")], 1).await).0, Code::OverLimit);
    // Asked without a pause: were it prolonged, this would not end.
    wait_until_async("the ban ends", async || status(&ask(&tollgate, &[("brief", "ann")], 1).await).0 == Code::Ok)
        .await;
}

#[tokio::test]
async fn a_request_that_a_ban_denies_is_charged_to_none_of_its_limits() {
    let redis = Redis::start();
    let in_redis = format!("REDIS_URL={}", redis.url());
    for settings in [&[][..], &[&*in_redis]] {
        let tollgate = Tollgate::start(RULES, settings);
        for _ in 0..3 {
            ask(&tollgate, &[("user", "ann")], 3).await;
        }
        for _ in 0..10 {
            let both = request("shop", &[&[("ip", "192.0.2.1")], &[("user", "ann")]]);
            let response = tollgate.ask(both).await.unwrap();
            let codes: Vec<Code> = response.statuses.iter().map(|status| status.code()).collect();
            assert_eq!((response.overall_code(), codes), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
        }
        assert_eq!(status(&ask(&tollgate, &[("ip", "192.0.2.1")], 0).await).1, 4);
    }
}

#[tokio::test]
async fn hits_under_a_ban_are_counted_for_their_rule() {
    let tollgate = Tollgate::start(RULES, &[]);
    for hits in [3, 3, 3, 1, 0] {
        ask(&tollgate, &[("user", "ann")], hits).await;
    }
    ask(&tollgate, &[("user", "bob")], 3).await;
    let hits = |of: &str| tollgate.metric(&format!("tollgate_{of}_hits_total{{domain=\"shop\",rule=\"user\"}}"));
    assert_eq!((hits("banned"), hits("over_limit")), (4.0, 13.0), "from the denial on that brings the ban");
    ask(&tollgate, &[("ip", "192.0.2.1")], 5).await;
    let metrics = tollgate.get("/metrics").1;
    assert!(metrics.contains("over_limit_hits_total{domain=\"shop\",rule=\"ip\"} 5"), "{metrics}");
    assert!(!metrics.contains("banned_hits_total{domain=\"shop\",rule=\"ip\"}"), "no penalty, no ban");
    tollgate.change_rules(&RULES.replace("key: user", "key: customer"));
    tollgate.must_log("new rules are in force");
    assert!(!tollgate.get("/metrics").1.contains("rule=\"user\""), "a rule that is gone takes its series with it");
}

#[tokio::test]
async fn a_ban_is_of_a_counter_and_meets_all_clients_that_share_it() {
    let tollgate = Tollgate::start(RULES, &[]);
    for _ in 0..3 {
        ask(&tollgate, &[("team", "blue-1")], 3).await;
    }
    assert_eq!(status(&ask(&tollgate, &[("team", "blue-2")], 1).await).0, Code::OverLimit);
    assert_eq!(status(&ask(&tollgate, &[("team", "red-1")], 1).await).0, Code::Ok, "red values count each for itself");
    for _ in 0..3 {
        ask(&tollgate, &[("team", "red-1")], 3).await;
    }
    assert_eq!(status(&ask(&tollgate, &[("team", "red-1")], 1).await).0, Code::OverLimit);
    assert_eq!(status(&ask(&tollgate, &[("team", "red-2")], 1).await).0, Code::Ok);
}

#[tokio::test]
async fn in_shadow_mode_a_ban_denies_nobody() {
    let tollgate = Tollgate::start(RULES, &[]);
    for hits in [3, 1, 1] {
        assert_eq!(ask(&tollgate, &[("shadow", "ann")], hits).await.overall_code(), Code::Ok);
    }
    let metric = "tollgate_shadow_hits_total{domain=\"shop\",rule=\"shadow\"}";
    assert_eq!(tollgate.metric(metric), 5.0, "but it is counted");
}

#[tokio::test]
async fn nobody_is_punished_while_the_store_is_away() {
    let redis = Redis::start();
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", redis.url())]);
    assert_eq!(status(&ask(&tollgate, &[("closed", "ann")], 1).await).0, Code::Ok);
    redis.freeze();
    for _ in 0..3 {
        assert_eq!(ask(&tollgate, &[("closed", "ann")], 1).await.overall_code(), Code::OverLimit);
    }
    redis.thaw();
    let passes = async || ask(&tollgate, &[("closed", "ann")], 1).await.overall_code() == Code::Ok;
    wait_until_async("the limit is decided again", passes).await;
}

#[tokio::test]
async fn a_ban_survives_a_failover_to_a_replica() {
    let [mut first, second] = [(); 2].map(|()| Redis::start());
    second.command::<()>(&format!("REPLICAOF {}", first.tcp_address().replace(':', " "))).await;
    // A busy machine may take long to answer.
    let patient = "REDIS_TIMEOUT=20s";
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", first.url()), patient]);
    let synced = async || first.command::<String>("INFO replication").await.contains("state=online");
    wait_until_async("the replica is in step", synced).await;
    for _ in 0..3 {
        ask(&tollgate, &[("user", "ann")], 3).await;
    }
    wait_until_async("the replica has the ban", async || {
        second.command::<Vec<String>>("KEYS *").await.iter().any(|key| key.contains("|pe"))
    })
    .await;
    first.kill();
    second.command::<()>("REPLICAOF NO ONE").await;
    let tollgate = Tollgate::start(RULES, &[&format!("REDIS_URL={}", second.url()), patient]);
    let (code, _, reset) = status(&ask(&tollgate, &[("user", "ann")], 1).await);
    assert_eq!((code, (DAY - 60..=DAY).contains(&reset)), (Code::OverLimit, true));
}

#[tokio::test]
async fn a_ban_is_shown_and_lifted_by_hand() {
    let redis = Redis::start();
    let url = redis.url();
    let service = Tollgate::start(RULES, &[&format!("REDIS_URL={url}")]);
    for _ in 0..3 {
        ask(&service, &[("user", "ann")], 3).await;
    }
    let counter = |action: &str| {
        let settings = [("REDIS_URL", url.as_str()), ("RULES", service.rules.path().to_str().unwrap())];
        let words = ["counter", action, "--domain", "shop", "user=ann"];
        let output = tollgate::command().args(words).envs(settings).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = counter("get");
    let banned = shown
        .split_once("2 per 100ms, token_bucket (user): 0 of 2 left, banned for ")
        .unwrap_or_else(|| panic!("{shown}"))
        .1;
    let (banned, resets) = banned.trim_end().split_once(", resets in ").unwrap_or_else(|| panic!("{shown}"));
    let nearly_a_day = |wait: &str| wait == "1day" || wait.starts_with("23h 59m ");
    assert!(nearly_a_day(banned) && nearly_a_day(resets), "{shown}");
    let shown = counter("reset");
    assert!(shown.contains("2 of 2 left\n"), "{shown}");
    // The service may cache the ban for another second, because the reset did not go through it.
    wait_until_async("ann may come in", async || service.passes("shop", &[("user", "ann")]).await).await;
}
