//! Durable limits, which admit only requests that a replica of Redis has confirmed.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_redis::redis::cmd;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{wait_until, wait_until_async};
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - key: durable
    rate_limit:
      unit: year
      requests_per_unit: 10000000
      algorithm: fixed_window
      count_denied: false
      durable: true
      failure_mode: error
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 10000000, failure_mode: error}
";

/// Starts a master and a replica in sync.
async fn pair() -> (Redis, Redis) {
    let master = Redis::start();
    let replica = master.start_replica(&[]).await;
    (master, replica)
}

fn start(master: &Redis) -> Tollgate {
    Tollgate::start(RULES, &[&format!("REDIS_URL={}", master.url()), "REDIS_TIMEOUT=2s"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_replica_has_heard_of_is_answered_by_the_failure_mode_and_keeps_no_other_limit_waiting() {
    let (master, replica) = pair().await;
    let tollgate = start(&master);
    let ask = async |key: &str| tollgate.ask(request("shop", &[&[(key, "ann")]])).await;
    assert_eq!(ask("durable").await.unwrap().overall_code(), Code::Ok);
    replica.freeze();
    let waiting = ask("durable");
    for _ in 0..20 {
        assert_eq!(ask("plain").await.unwrap().overall_code(), Code::Ok);
    }
    let error = waiting.await.unwrap_err();
    assert!(error.message().contains("no replica confirmed the write within 1s"), "{error}");
    // The next ones do not wait so long for a replica that is gone.
    wait_until_async("a call waits a fifth of the time", async || {
        ask("durable").await.unwrap_err().message().contains("no replica confirmed the write within 200ms")
    })
    .await;
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0, "Redis itself is well");
    replica.thaw();
    wait_until_async("the replica hears again", async || ask("durable").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_what_has_passed_nothing_is_lost_with_the_master() {
    let (mut master, replica) = pair().await;
    let tollgate = start(&master);
    let passed = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (passed, mut client) = (Arc::clone(&passed), tollgate.client().await);
        tasks.push(tokio::spawn(async move {
            while client.should_rate_limit(request("shop", &[&[("durable", "ann")]])).await.is_ok() {
                passed.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    wait_until("some have passed", || passed.load(Ordering::SeqCst) > 100);
    master.kill();
    for task in tasks {
        task.await.unwrap();
    }
    let names: Vec<String> = replica.command("KEYS {shop|durable=ann}*").await;
    let state: Vec<u8> = cmd("GET").arg(&names[0]).query_async(&mut replica.connection().await).await.unwrap();
    let heard = u64::from(u32::from_le_bytes(state[8..12].try_into().unwrap()));
    let passed = passed.load(Ordering::SeqCst);
    // A client without an answer may have been charged, at most once each.
    assert!((passed..=passed + 8).contains(&heard), "{passed} passed, {heard} heard of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_needs_no_replica_and_the_first_requests_wait_for_their_connection() {
    let (master, replica) = pair().await;
    let rules = "
domain: shop
descriptors:
  - key: durable
    rate_limit: {unit: year, requests_per_unit: 3, durable: true}
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 3}
";
    let settings = [&*format!("REDIS_URL={}", master.url()), "REDIS_TIMEOUT=2s", "LOCAL_CACHE_SIZE_IN_BYTES=0"];
    let tollgate = Tollgate::start(rules, &settings);
    let ask = async |descriptors: &[&[(&str, &str)]]| tollgate.ask(request("shop", descriptors)).await.unwrap();
    // At once, the first of all: none of them is answered by a failure mode, which lets pass.
    let mut first = Vec::new();
    for _ in 0..20 {
        let mut client = tollgate.client().await;
        first.push(tokio::spawn(async move {
            let answer = client.should_rate_limit(request("shop", &[&[("durable", "ann")]])).await;
            answer.unwrap().into_inner().overall_code() == Code::Ok
        }));
    }
    let mut passed = 0;
    for first in first {
        passed += u32::from(first.await.unwrap());
    }
    assert_eq!(passed, 3);
    for _ in 0..3 {
        assert_eq!(ask(&[&[("plain", "ann")]]).await.overall_code(), Code::Ok);
    }
    replica.freeze();
    assert_eq!(ask(&[&[("durable", "ann")]]).await.overall_code(), Code::OverLimit, "it is used up, heard of or not");
    let both = [&[("plain", "ann")][..], &[("durable", "bob")]];
    assert_eq!(ask(&both).await.overall_code(), Code::OverLimit, "the limit beside it is used up");
    assert_eq!(ask(&[&[("durable", "bob")]]).await.overall_code(), Code::Ok, "its failure mode lets pass");
    replica.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_a_replica_is_warned_of_at_the_start_and_by_new_rules() {
    let warning = "redis has no replica to confirm the charges of limits with durable: true, so failure_mode answers \
                   their requests: add a replica, or remove durable: true";
    let alone = Redis::start();
    let service = start(&alone);
    assert_eq!(service.must_log(warning)["level"], "WARN");

    let plain = RULES.replace("      durable: true\n", "");
    let settings = [&format!("REDIS_URL={}", alone.url())[..]];
    let service = Tollgate::start(&plain, &settings);
    wait_until("redis is asked", || service.metric("tollgate_store_up") == 1.0);
    assert!(service.logged(warning).is_none());
    service.change_rules(RULES);
    service.must_log(warning);

    let (master, _replica) = pair().await;
    let service = start(&master);
    assert!(service.passes("shop", &[("durable", "ann")]).await);
    assert!(service.logged(warning).is_none());

    let in_memory = "durable: true does nothing without Redis";
    assert_eq!(Tollgate::start(RULES, &[]).must_log(in_memory)["level"], "WARN");
    assert!(Tollgate::start(&plain, &[]).logged(in_memory).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ask_names_the_missing_confirmation_as_the_cause() {
    let (master, replica) = pair().await;
    let rules = RULES.replace("failure_mode: error", "failure_mode: closed");
    let tollgate = Tollgate::start(&rules, &[&format!("REDIS_URL={}", master.url()), "REDIS_TIMEOUT=2s"]);
    let address = format!("localhost:{}", tollgate.grpc_port);
    let ask = || {
        let words = ["ask", "--address", &address, "--domain", "shop", "--timeout", "10s", "durable=ann"];
        crate::process::run(&words, &[])
    };
    wait_until("a replica confirms", || ask().status.code() == Some(0));
    replica.freeze();
    let output = ask();
    let said = crate::process::text(&output.stdout);
    let cause = "no replica of Redis has confirmed the hits in time, which durable requires, or Redis is unavailable \
                 (tollgate check --redis says which): failure_mode closed denies the request";
    assert!(output.status.code() == Some(2) && said.contains(cause), "{said}");
    replica.thaw();
}
