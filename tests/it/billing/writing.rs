//! Usage records equal the charges.

use crate::support;

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::wait_until_async;
use tollgate::engine::usage::Totals;
use tollgate::wire::RateLimitRequest;
use tollgate::wire::rate_limit_response::Code;

/// Windows so long that none ends meanwhile.
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5, cost: 2, algorithm: fixed_window, usage: {by: hour, keep: 400d}}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 10, count_denied: true, usage: {by: day, keep: 400d}}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1, usage: {by: minute, keep: 1d}}
  - key: waits
    rate_limit:
      {algorithm: leaky_bucket, period: 1h, requests_per_unit: 60, max_delay: 60s, usage: {by: hour, keep: 400d}}
  - key: tenant
    descriptors:
      - key: hold
        rate_limit:
          {algorithm: budget, unit: year, requests_per_unit: 1000, settle_within: 100ms, usage: {by: hour, keep: 400d}}
  - key: never
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: load
    rate_limit:
      {unit: year, requests_per_unit: 1000000, algorithm: fixed_window, count_denied: false, failure_mode: open,
       usage: {by: minute, keep: 30d}}
";

fn start(redis: &Redis, settings: &[&str]) -> Tollgate {
    let url = format!("REDIS_URL={}", redis.url());
    Tollgate::start(RULES, &[&[&*url], settings].concat())
}

/// Returns a request with one descriptor and this many hits; negative hits are refunds.
fn hits(key: &str, value: &str, hits: i64) -> RateLimitRequest {
    let mut request = request("shop", &[&[(key, value)]]);
    request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
    request.descriptors[0].is_negative_hits = hits < 0;
    request
}

/// Returns the sum of all records of the pages whose names have this prefix.
pub(super) async fn recorded(redis: &Redis, prefix: &str) -> Totals {
    let mut sum = Totals::default();
    let pages: Vec<String> = cmd("KEYS").arg("*|u1:*").query_async(&mut redis.connection().await).await.unwrap();
    for page in pages.iter().filter(|page| page.starts_with(prefix)) {
        let fields: BTreeMap<String, Vec<u8>> =
            cmd("HGETALL").arg(page).query_async(&mut redis.connection().await).await.unwrap();
        let records = fields.iter().filter(|(field, _)| *field != "tag");
        sum = records.fold(sum, |sum, (_, bytes)| sum.plus(Totals::unpack(bytes).unwrap()));
    }
    sum
}

pub(super) fn totals(admitted: i64, denied: u64, cost: i64) -> Totals {
    Totals { admitted, denied, cost, topped_up: 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_has_what_passed_what_did_not_and_what_it_cost() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    let ask = async |request| tollgate.ask(request).await.unwrap().overall_code() == Code::Ok;

    assert!(ask(hits("user", "ann", 1)).await && ask(hits("user", "ann", 1)).await);
    assert!(!ask(hits("user", "ann", 1)).await, "two cost four of five, and what is denied is counted but not billed");
    assert_eq!(recorded(&redis, "{shop|user=ann}").await, totals(2, 1, 4));
    ask(hits("user", "ann", 0)).await;
    assert_eq!(recorded(&redis, "{shop|user=ann}").await, totals(2, 1, 4), "a peek is no use");
    assert!(ask(hits("user", "ann", -1)).await);
    assert_eq!(recorded(&redis, "{shop|user=ann}").await, totals(2, 1, 2), "a refund is credited");

    // Another limit denies the request.
    let both = request("shop", &[&[("user", "ben")], &[("never", "x")]]);
    assert!(!ask(both).await);
    assert_eq!(recorded(&redis, "{shop|user=ben}").await, totals(0, 1, 0));

    // Completed usage is charged, and denials from the cache are recorded as well.
    assert!(ask(hits("tokens", "ann", 8)).await);
    for _ in 0..5 {
        assert!(!ask(hits("tokens", "ann", 8)).await);
    }
    assert_eq!(recorded(&redis, "{shop|tokens=ann}").await, totals(1, 5, 48));

    // A limit in shadow mode only measures.
    for _ in 0..3 {
        assert!(ask(hits("shadow", "ann", 2)).await);
    }
    assert_eq!(recorded(&redis, "{shop|shadow=ann}").await, totals(3, 0, 6));
}

/// What a budget charges, and not what streams hold: whatever is lost, doubled or late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_streams_is_what_they_settle_or_what_they_held_until_they_do() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    let ask = async |key: &str, streams: &[(&str, u64)], beside: &[&[(&str, &str)]]| {
        let entries: Vec<[(&str, &str); 2]> =
            streams.iter().map(|(stream, _)| [("tenant", "ann"), (key, *stream)]).collect();
        let entries: Vec<&[(&str, &str)]> =
            entries.iter().map(<[_; 2]>::as_slice).chain(beside.iter().copied()).collect();
        let mut all = request("shop", &entries);
        for (asked, (_, hits)) in all.descriptors.iter_mut().zip(streams) {
            asked.hits_addend = Some(*hits);
        }
        tollgate.ask(all).await.unwrap().overall_code() == Code::Ok
    };
    let cost = async || recorded(&redis, "{shop|tenant=ann|hold~*}").await;

    assert!(ask("hold", &[("a", 300)], &[]).await);
    assert_eq!(cost().await, totals(1, 0, 0), "what is held is not used");
    for _ in 0..2 {
        assert!(ask("settle", &[("a", 120)], &[]).await);
        assert_eq!(cost().await, totals(1, 0, 120), "a stream is charged once");
    }
    assert!(ask("hold", &[("b", 700)], &[]).await && !ask("hold", &[("c", 500)], &[]).await);
    assert!(ask("settle", &[("c", 0)], &[]).await && ask("settle", &[("b", 0), ("b", 100), ("b", 50)], &[]).await);
    assert!(!ask("hold", &[("d", 1)], &[&[("never", "x")]]).await, "another limit denies it");
    assert_eq!(cost().await, totals(2, 2, 270));
    assert!(ask("settle", &[("nobody", 30)], &[]).await);
    assert_eq!(cost().await, totals(2, 2, 300), "a settle without a hold is charged");

    assert!(ask("hold", &[("e", 200)], &[]).await);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(cost().await, totals(3, 2, 300));
    assert!(ask("hold", &[("f", 1)], &[]).await && ask("settle", &[("f", 1)], &[]).await);
    assert_eq!(cost().await, totals(4, 2, 501), "what has ended without a settle is charged, and recorded by the next");
    assert!(ask("settle", &[("e", 150)], &[]).await);
    assert_eq!(cost().await, totals(4, 2, 451), "a late settle corrects it");
}

/// The shadow-mode limit of the same request, which is over, records as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_waiting_has_not_passed() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    let both = || request("shop", &[&[("waits", "ann")], &[("shadow", "ann")]]);
    tollgate.ask(both()).await.unwrap();
    let mut client = tollgate.client().await;
    let waiting = tokio::time::timeout(Duration::from_secs(2), client.should_rate_limit(both()));
    assert!(waiting.await.is_err(), "it is delayed for a minute");
    for key in ["waits", "shadow"] {
        wait_until_async("it is taken back", async || {
            recorded(&redis, &format!("{{shop|{key}=ann}}")).await == totals(1, 1, 1)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_stays_for_as_long_as_any_rule_has_promised() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    let mut connection = redis.connection().await;
    let pages: Vec<String> = cmd("KEYS").arg("*|u1:*").query_async(&mut connection).await.unwrap();
    // As if a rule with a longer retention had recorded another hour.
    cmd("PERSIST").arg(&pages[0]).exec_async(&mut connection).await.unwrap();
    cmd("PEXPIRE").arg(&pages[0]).arg(900_u64 * 86_400_000).exec_async(&mut connection).await.unwrap();
    let fields: Vec<String> = cmd("HKEYS").arg(&pages[0]).query_async(&mut connection).await.unwrap();
    cmd("HSET").arg(&pages[0]).arg("1").arg(&[0_u8; 18][..]).exec_async(&mut connection).await.unwrap();
    cmd("HDEL").arg(&pages[0]).arg(fields).exec_async(&mut connection).await.unwrap();
    tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    let left_ms: u64 = cmd("PTTL").arg(&pages[0]).query_async(&mut connection).await.unwrap();
    assert!(left_ms > 800 * 86_400_000, "{left_ms}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_redis_that_may_not_record_charges_nothing() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["FAILURE_MODE=error"]);
    tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    redis.command::<()>("ACL SETUSER default -hset").await;
    assert!(tollgate.ask(hits("user", "ann", 1)).await.is_err());
    redis.command::<()>("ACL SETUSER default +hset").await;
    wait_until_async("it is decided again", async || tollgate.ask(hits("user", "ann", 0)).await.is_ok()).await;
    let answer = tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1, "two have been charged, at 2 each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_and_a_reset_are_no_use_and_change_no_record() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["ADMIN_API=true", "ADMIN_TOKEN=a-token-of-24-characters"]);
    for _ in 0..3 {
        tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    }
    let before = recorded(&redis, "{shop|user=ann}").await;
    let admin = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let url = |path: &str| format!("http://127.0.0.1:{}/{path}?domain=shop&user=ann", tollgate.http_port);
    let token = "Bearer a-token-of-24-characters";
    let explained = admin.get(url("explain")).header("authorization", token).call().unwrap();
    let reset = admin.delete(url("counters")).header("authorization", token).call().unwrap();
    assert_eq!((explained.status().as_u16(), reset.status().as_u16()), (200, 200));
    assert_eq!(recorded(&redis, "{shop|user=ann}").await, before);
    assert_eq!(tollgate.ask(hits("user", "ann", 1)).await.unwrap().overall_code(), Code::Ok, "it was reset");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_kept_for_as_long_as_its_rule_says_and_has_the_tag_that_its_name_has_not() {
    let redis = Redis::start();
    let tollgate = start(&redis, &[]);
    let long = "x".repeat(500);
    for user in ["ann", &*long] {
        tollgate.ask(hits("user", user, 1)).await.unwrap();
    }
    let mut connection = redis.connection().await;
    let pages: Vec<String> = cmd("KEYS").arg("*|u1:3600000:*").query_async(&mut connection).await.unwrap();
    assert_eq!(pages.len(), 2, "{pages:?}");
    for page in &pages {
        let left_ms: u64 = cmd("PTTL").arg(page).query_async(&mut connection).await.unwrap();
        let day = 86_400_000;
        assert!((400 * day..=401 * day).contains(&left_ms), "{page}: {left_ms}");
        let tag: Option<String> = cmd("HGET").arg(page).arg("tag").query_async(&mut connection).await.unwrap();
        let is_hashed = page.starts_with("{|");
        assert_eq!(tag, is_hashed.then(|| format!("shop|user={long}")), "{page}");
    }
    assert!(pages.iter().any(|page| page.starts_with("{|")) && pages.iter().any(|page| page.contains("user=ann")));
}

/// Redis stops repeatedly, so replies come too late and calls are lost; and Tollgate is killed. The counter and its
/// records always agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_breaks_the_records_say_what_was_charged() {
    let redis = Redis::start();
    let mut asked = 0;
    for round in 0..3 {
        let tollgate = start(&redis, &["REDIS_TIMEOUT=20ms"]);
        let client = tollgate.client().await;
        let load = async |clients: usize| {
            let calls = (0..clients).map(|_| {
                let mut client = client.clone();
                async move { client.should_rate_limit(hits("load", "ann", 3)).await.is_ok() }
            });
            futures_util::future::join_all(calls).await.len()
        };
        for _ in 0..10 {
            let (count, ()) = tokio::join!(load(20), async {
                redis.freeze();
                tokio::time::sleep(Duration::from_millis(40)).await;
                redis.thaw();
            });
            asked += count;
            asked += load(20).await;
        }
        // The last run is killed while it writes.
        let (count, ()) = tokio::join!(load(200), async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            drop(tollgate);
        });
        asked += count;
        let counter = async || -> Option<Vec<u8>> {
            let counters: Vec<String> =
                cmd("KEYS").arg("{shop|load=ann}|fw1:*").query_async(&mut redis.connection().await).await.unwrap();
            let counter = counters.iter().find(|name| !name.contains("|u1:"))?;
            cmd("GET").arg(counter).query_async(&mut redis.connection().await).await.unwrap()
        };
        wait_until_async("nothing is on its way any more", async || {
            let before = counter().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            before.is_some() && before == counter().await
        })
        .await;
        // The count is behind the window.
        let charged = u32::from_le_bytes(counter().await.unwrap()[8..12].try_into().unwrap());
        let recorded = recorded(&redis, "{shop|load=ann}").await;
        assert_eq!(recorded.cost, i64::from(charged), "in round {round}");
        assert_eq!(recorded, totals(i64::from(charged / 3), 0, i64::from(charged)));
        assert!(charged > 0 && u64::from(charged) <= 3 * asked as u64, "{charged} of {asked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_or_a_page_that_is_damaged_is_written_anew() {
    let redis = Redis::start();
    let tollgate = start(&redis, &["FAILURE_MODE=error"]);
    tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    let mut connection = redis.connection().await;
    let pages: Vec<String> = cmd("KEYS").arg("{shop|user=ann}*|u1:*").query_async(&mut connection).await.unwrap();
    let indices: Vec<u64> = cmd("HKEYS").arg(&pages[0]).query_async(&mut connection).await.unwrap();
    cmd("HSET").arg(&pages[0]).arg(indices[0]).arg("short").exec_async(&mut connection).await.unwrap();
    // This record would belong to the next hour.
    cmd("HSET").arg(&pages[0]).arg(indices[0] + 1).arg("short").exec_async(&mut connection).await.unwrap();
    tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    assert_eq!(tollgate.metric("tollgate_damaged_counters_total"), 1.0);
    cmd("DEL").arg(&pages[0]).exec_async(&mut connection).await.unwrap();
    cmd("LPUSH").arg(&pages[0]).arg("x").exec_async(&mut connection).await.unwrap();
    let answer = tollgate.ask(hits("user", "ann", 1)).await.unwrap();
    assert!(answer.statuses[0].limit_remaining <= 1, "all three have been charged, at 2 each");
    assert_eq!(tollgate.metric("tollgate_damaged_counters_total"), 2.0);
    assert!(recorded(&redis, "{shop|user=ann}").await.admitted <= 1, "what was damaged is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_adjustment_lets_pass_is_recorded_and_so_is_what_an_unknown_descriptor_denies() {
    let redis = Redis::start();
    let settings = ["UNKNOWN_DESCRIPTOR=deny", "ADMIN_API=true", "ADMIN_TOKEN=a-token-of-24-characters"];
    let tollgate = start(&redis, &settings);
    let with_unknown = request("shop", &[&[("user", "ann")], &[("who", "knows")]]);
    assert_eq!(tollgate.ask(with_unknown.clone()).await.unwrap().overall_code(), Code::OverLimit);
    assert_eq!(recorded(&redis, "{shop|user=ann}").await, totals(0, 1, 0));
    let adjusted = support::tollgate::command()
        .envs([("REDIS_URL", &*redis.url()), ("RULES", tollgate.rules.path().to_str().unwrap()), ("USER", "ann")])
        .args(["adjust", "pass", "--domain", "shop", "--for", "10m", "--why", "a test", "user=ann"])
        .output()
        .unwrap();
    assert!(adjusted.status.success(), "{}", String::from_utf8_lossy(&adjusted.stderr));
    wait_until_async("it holds", async || {
        for _ in 0..3 {
            tollgate.ask(hits("user", "ann", 1)).await.unwrap();
        }
        tollgate.ask(hits("user", "ann", 1)).await.unwrap().overall_code() == Code::Ok
    })
    .await;
    let before = recorded(&redis, "{shop|user=ann}").await;
    assert_eq!(tollgate.ask(hits("user", "ann", 4)).await.unwrap().overall_code(), Code::Ok);
    let after = recorded(&redis, "{shop|user=ann}").await;
    assert_eq!((after.admitted - before.admitted, after.cost - before.cost), (1, 8));
    assert!(tollgate.ask(with_unknown).await.unwrap().overall_code() == Code::OverLimit);
    assert_eq!(recorded(&redis, "{shop|user=ann}").await.denied, after.denied + 1);

    // A stream that passes so is one, and costs what it settles.
    let adjusted = support::tollgate::command()
        .envs([("REDIS_URL", &*redis.url()), ("RULES", tollgate.rules.path().to_str().unwrap()), ("USER", "ann")])
        .args(["adjust", "pass", "--domain", "shop", "--for", "10m", "--why", "a test", "tenant=ann", "hold~*"])
        .output()
        .unwrap();
    assert!(adjusted.status.success(), "{}", String::from_utf8_lossy(&adjusted.stderr));
    let stream = [("tenant", "ann"), ("hold", "a")];
    let mut in_parts = request("shop", &[&stream, &stream, &stream]);
    for (part, hits) in in_parts.descriptors.iter_mut().zip([0, 5_000, 700]) {
        part.hits_addend = Some(hits);
    }
    wait_until_async("it holds", async || tollgate.ask(in_parts.clone()).await.unwrap().overall_code() == Code::Ok)
        .await;
    let of_tenant = async || recorded(&redis, "{shop|tenant=ann|hold~*}").await;
    let denied = of_tenant().await.denied;
    assert_eq!(of_tenant().await, totals(1, denied, 0), "one stream, of three parts");
    let mut settle = request("shop", &[&[("tenant", "ann"), ("settle", "a")]]);
    settle.descriptors[0].hits_addend = Some(3_000);
    assert_eq!(tollgate.ask(settle).await.unwrap().overall_code(), Code::Ok);
    assert_eq!(of_tenant().await, totals(1, denied, 3_000));
}
