//! Histories of real instances, judged by the program of `tests/judge`, which knows nothing of how Tollgate decides.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_judge::check::{Checks, Judge, Judgement, Kind};
use tollgate_judge::faults::{self, Fault, Outcome, Programs, System};
use tollgate_judge::history::{self, Header, Operation};
use tollgate_judge::record;
use tollgate_judge::record::adapter::{Target, Usage};
use tollgate_judge::record::scenario::Scenario;

use crate::sentinel::Watched;
use crate::support::cluster::{Cluster, slot_of_tag};
use crate::support::redis::Redis;
use crate::support::tollgate::{BINARY, Tollgate};
use crate::support::wait_until_async;

/// Where a store does not answer in time, callers are told an error.
const RULES: &str = "
domain: judge
defaults: {failure_mode: error}
descriptors:
  - {key: window, rate_limit: {period: 2s, requests_per_unit: 7, algorithm: sliding_window}}
  - {key: log, rate_limit: {period: 1s, requests_per_unit: 6, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {period: 1s, requests_per_unit: 5, algorithm: token_bucket, burst: 8}}
  - {key: leaky, rate_limit: {period: 1s, requests_per_unit: 20, algorithm: leaky_bucket}}
  - key: slots
    descriptors: [{key: stream, rate_limit: {requests_per_unit: 3, algorithm: concurrency}}]
";

/// How long each history is.
fn seconds() -> f64 {
    std::env::var("JUDGE_SECONDS").map_or(8.0, |seconds| seconds.parse().expect("JUDGE_SECONDS=60"))
}

/// A scenario on these instances with these limits: name and promise.
fn scenario(instances: &[&Tollgate], limits: &[(&str, serde_json::Value)], load: &[(&str, u64)]) -> Scenario {
    let addresses: Vec<_> = instances.iter().map(|one| format!("127.0.0.1:{}", one.grpc_port)).collect();
    let limit =
        |(name, promise): &(&str, serde_json::Value)| ((*name).to_owned(), json!({"entry": name, "promise": promise}));
    let limits: serde_json::Map<_, _> = limits.iter().map(limit).collect();
    let mut drawn = json!({"seconds": seconds(), "keys": 8, "deadline_ms": 2_000});
    for (name, value) in load {
        drawn[*name] = json!(value);
    }
    let scenario = json!({
        "about": "a test", "target": {"rls": {"addresses": addresses, "domain": "judge"}}, "clock_us": 1_000,
        "limits": limits,
        "load": drawn,
    });
    serde_json::from_value(scenario).unwrap()
}

fn windows() -> [(&'static str, serde_json::Value); 4] {
    let window = |number: u64, period_ms: u64, memory_ms: u64| {
        let (period_us, memory_us) = (period_ms * 1_000, memory_ms * 1_000);
        json!({"kind": "window", "number": number, "period_us": period_us, "memory_us": memory_us})
    };
    let bucket =
        |burst: u64, number: u64| json!({"kind": "bucket", "burst": burst, "number": number, "period_us": 1_000_000});
    [
        ("window", window(7, 2_000, 2_200)),
        ("log", window(6, 1_000, 1_000)),
        ("bucket", bucket(8, 5)),
        ("leaky", bucket(1, 20)),
    ]
}

fn slots() -> [(&'static str, serde_json::Value); 1] {
    [("slots", json!({"kind": "holders", "number": 3, "expiry_us": 60_000_000}))]
}

/// A history and what the judge says of it.
struct Judged {
    header: Header,
    operations: Vec<Operation<'static>>,
    judgement: Judgement,
}

impl Deref for Judged {
    type Target = Judgement;

    fn deref(&self) -> &Judgement {
        &self.judgement
    }
}

impl Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.judgement.fmt(f)
    }
}

impl Judged {
    /// Fails if a promise but for these was broken, and keeps the history.
    #[track_caller]
    fn assert_legal_but_for(&self, ignored: &[Kind]) {
        if self.is_legal_but_for(ignored) {
            return;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("broken-{}-{}.jsonl", std::process::id(), fastrand::u32(..)));
        let file = File::create(&path).unwrap();
        history::write(&self.header, self.operations.clone(), file).unwrap();
        panic!("{}: {}", path.display(), self.judgement);
    }
}

/// Records a history from two processes of callers, and judges it.
async fn judged(scenario: Scenario) -> Judged {
    let (header, operations) = record::history(&scenario).await.unwrap();
    let mut judge = Judge::new(header.clone(), Checks::default());
    operations.iter().for_each(|operation| judge.add(operation).unwrap());
    let judgement = judge.finish();
    assert!(judgement.allowed > 50 && judgement.denied > 50, "{judgement}");
    Judged { header, operations, judgement }
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_in_memory_are_legal() {
    let tollgate = Tollgate::start(RULES, &[]);
    let (limits, places) =
        tokio::join!(judged(scenario(&[&tollgate], &windows(), &[])), judged(scenario(&[&tollgate], &slots(), &[])));
    for judgement in [limits, places] {
        judgement.assert_legal_but_for(&[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_replicas_on_one_redis_are_legal() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&*url, "REDIS_TIMEOUT=2s"];
    let instances = [Tollgate::start(RULES, &settings), Tollgate::start(RULES, &settings)];
    let instances: Vec<&Tollgate> = instances.iter().collect();
    let (limits, places) =
        tokio::join!(judged(scenario(&instances, &windows(), &[])), judged(scenario(&instances, &slots(), &[])));
    for judgement in [limits, places] {
        judgement.assert_legal_but_for(&[]);
    }
}

/// What is given back makes room again, and never more than was taken.
#[tokio::test(flavor = "multi_thread")]
async fn refunds_make_no_more_room_than_they_give_back() {
    let tollgate = Tollgate::start(RULES, &[]);
    let judgement = judged(scenario(&[&tollgate], &windows()[..2], &[("refunds", 20)])).await;
    judgement.assert_legal_but_for(&[]);
}

/// Places that are let go come back, and those that are not expire: at the end all of them are free.
#[tokio::test(flavor = "multi_thread")]
async fn all_places_are_free_at_the_end() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules = RULES.replace("algorithm: concurrency", "algorithm: concurrency, hold: 1500ms");
    let slots = [("slots", json!({"kind": "holders", "number": 3, "expiry_us": 1_500_000}))];
    let load = [("abandons", 30), ("keys", 4)];
    let [alone, one, other] = [&[][..], &[&*url, "REDIS_TIMEOUT=2s"], &[&*url, "REDIS_TIMEOUT=2s"]]
        .map(|settings| Tollgate::start(&rules, settings));
    let (memory, store) =
        tokio::join!(judged(scenario(&[&alone], &slots, &load)), judged(scenario(&[&one, &other], &slots, &load)));
    for judgement in [memory, store] {
        judgement.assert_legal_but_for(&[]);
    }
    // A place that is held for longer than is promised did not come back.
    let shorter = [("slots", json!({"kind": "holders", "number": 3, "expiry_us": 100_000}))];
    let judgement = judged(scenario(&[&alone], &shorter, &load)).await;
    // A place may come back so late that it looks lost.
    let kinds = [Kind::NeedlessDenial, Kind::WrongRemaining, Kind::LeakedPlace];
    assert!(kinds.iter().any(|kind| judgement.count(*kind) > 0), "{judgement}");
}

/// Rules with a budget for each way in which holds end, and what they promise.
const BUDGETS: &str = "
domain: judge
defaults: {failure_mode: error}
descriptors:
  - key: charged
    descriptors:
      - key: hold
        rate_limit: {algorithm: budget, period: 2s, requests_per_unit: 40, settle_within: 800ms}
  - key: refunded
    descriptors:
      - key: hold
        rate_limit: {algorithm: budget, period: 1s, requests_per_unit: 30, settle_within: 800ms, unsettled: refund}
";

fn budgets() -> [(&'static str, serde_json::Value); 2] {
    let budget = |number: u64, period_us: u64, unsettled: &str| {
        json!({
            "kind": "budget", "number": number, "period_us": period_us, "memory_us": period_us + period_us / 10,
            "settle_within_us": 800_000, "hold_for_us": 852_000, "unsettled": unsettled,
        })
    };
    [("charged", budget(40, 2_000_000, "charge")), ("refunded", budget(30, 1_000_000, "refund"))]
}

/// Streams that settle for less and for more than they hold, twice, late, or never.
const STREAMS: [(&str, u64); 4] = [("most_hits", 12), ("abandons", 15), ("keys", 4), ("settle_ms", 8_000)];

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_budgets_are_legal() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let [alone, one, other] = [&[][..], &[&*url, "REDIS_TIMEOUT=2s"], &[&*url, "REDIS_TIMEOUT=2s"]]
        .map(|settings| Tollgate::start(BUDGETS, settings));
    let (memory, store) = tokio::join!(
        judged(scenario(&[&alone], &budgets(), &STREAMS)),
        judged(scenario(&[&one, &other], &budgets(), &STREAMS))
    );
    for judgement in [memory, store] {
        println!("{judgement}");
        judgement.assert_legal_but_for(&[]);
    }
}

const TOKEN: &str = "a token of some length";

/// Records this scenario with the usage that an instance tells. Asserts that its totals, of so many counters at least,
/// are legal, and that one hit more or fewer of any of them is found.
async fn every_hit_is_known(mut scenario: Scenario, instance: &Tollgate, counters: usize) {
    let Target::Rls(rls) = scenario.target else { panic!("{scenario:?}") };
    let usage = Usage { address: format!("127.0.0.1:{}", instance.http_port), token: TOKEN.to_owned() };
    scenario.target = Target::Tollgate(record::adapter::Tollgate { rls, usage });
    let (header, operations) = record::history(&scenario).await.unwrap();
    let judged = |more: i64| {
        let mut judge = Judge::new(header.clone(), Checks::default());
        for operation in &operations {
            let total = operation.total.map(|total| total + more);
            judge.add(&Operation { total, ..operation.clone() }).unwrap();
        }
        judge.finish()
    };
    let totals: Vec<i64> = operations.iter().filter_map(|operation| operation.total).collect();
    assert!(totals.len() >= counters && totals.iter().sum::<i64>() > 100, "{totals:?}");
    assert!(judged(0).is_legal_but_for(&[]), "{}", judged(0));
    for more in [-1, 1] {
        assert_eq!(judged(more).count(Kind::WrongTotal), totals.len() as u64, "every hit is known: {}", judged(more));
    }
}

/// Each stream is billed once, whatever its calls become.
#[tokio::test(flavor = "multi_thread")]
async fn the_usage_of_budgets_is_what_streams_settled() {
    let redis = Redis::start();
    let (url, token) = (format!("REDIS_URL={}", redis.url()), format!("ADMIN_TOKEN={TOKEN}"));
    let rules = BUDGETS.replace("settle_within: 800ms", "settle_within: 800ms, usage: {by: day, keep: 32d}");
    let settings = [&*url, "REDIS_TIMEOUT=2s", "ADMIN_API=true", &*token];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    every_hit_is_known(scenario(&instances.each_ref(), &budgets(), &STREAMS), &instances[1], 8).await;
}

/// Returns what budgets promise where a settle is answered although the store has not confirmed it.
fn budgets_with_lost_settles() -> [(&'static str, serde_json::Value); 2] {
    budgets().map(|(name, mut promise)| {
        promise["settles_may_be_lost"] = json!(true);
        (name, promise)
    })
}

/// Callers hear of errors, and what became of their streams is unknown: none begins beside too many, and no hold stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_stops_now_and_then_keeps_no_hold_and_lets_no_more_begin() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&*url, "REDIS_TIMEOUT=200ms"];
    let instances = [Tollgate::start(BUDGETS, &settings), Tollgate::start(BUDGETS, &settings)];
    let scenario = scenario(&instances.each_ref(), &budgets_with_lost_settles(), &STREAMS);
    let disturb = async {
        for _ in 0..(seconds() / 2.0) as u32 {
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            redis.freeze();
            tokio::time::sleep(Duration::from_millis(500)).await;
            redis.thaw();
        }
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    judgement.assert_legal_but_for(&[]);
    assert!(judgement.failed + judgement.late > 0, "{judgement}");
}

/// Other promises of budgets than those of the rules are found broken.
#[tokio::test(flavor = "multi_thread")]
async fn budgets_with_other_rules_are_found() {
    let rules = BUDGETS
        .replace("requests_per_unit: 40", "requests_per_unit: 48")
        .replace("requests_per_unit: 30", "requests_per_unit: 24");
    let tollgate = Tollgate::start(&rules, &[]);
    let [charged, refunded] = budgets();
    let (more, fewer) = tokio::join!(
        judged(scenario(&[&tollgate], &[charged], &STREAMS)),
        judged(scenario(&[&tollgate], &[refunded], &STREAMS))
    );
    assert!(more.count(Kind::OverLimit) > 0, "{more}");
    assert!(fewer.count(Kind::NeedlessDenial) > 0 && fewer.count(Kind::OverLimit) == 0, "{fewer}");
}

/// What is billed is what was allowed, whichever instance decided it.
#[tokio::test(flavor = "multi_thread")]
async fn usage_is_what_callers_were_allowed() {
    let redis = Redis::start();
    let (url, token) = (format!("REDIS_URL={}", redis.url()), format!("ADMIN_TOKEN={TOKEN}"));
    // By the day: pages of a month, so that hardly a run crosses from one to the next.
    let rules = RULES.replace("algorithm: sliding_window", "algorithm: sliding_window, usage: {by: day, keep: 32d}");
    let rules = rules.replace("algorithm: token_bucket", "algorithm: token_bucket, usage: {by: day, keep: 32d}");
    let settings = [&*url, "REDIS_TIMEOUT=2s", "ADMIN_API=true", &*token];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    let [window, _, bucket, _] = windows();
    let scenario = scenario(&instances.each_ref(), &[window, bucket], &[("refunds", 5)]);
    every_hit_is_known(scenario, &instances[1], 11).await;
}

/// Two instances that lease hits admit no more than without, and hold back no more than `unused`.
#[tokio::test(flavor = "multi_thread")]
async fn leases_hold_back_no_more_than_is_stated() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules = RULES.replace("requests_per_unit: 7,", "requests_per_unit: 500, lease: {unused: 10%, ttl: 200ms},");
    let settings = [&*url, "REDIS_TIMEOUT=2s"];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    // 450 are always there. A hit counts from the return of its lease, which ends up to a quarter of the TTL late.
    let (period_us, memory_us) = (2_000_000, 2_200_000 + 300_000);
    let window = json!({
        "kind": "window", "number": 500, "period_us": period_us, "memory_us": memory_us, "usable_thousandths": 900,
    });
    let load = [("keys", 1), ("think_ms", 2), ("most_hits", 2), ("probers", 0)];
    let judgement = judged(scenario(&instances.each_ref(), &[("window", window)], &load)).await;
    judgement.assert_legal_but_for(&[]);
    let leased = instances.each_ref().map(|one| one.metric("tollgate_lease_decisions_total"));
    assert!(leased.iter().all(|decisions| *decisions > 100.0), "{leased:?}");
}

/// What is used from leases is billed late, by no more than may be out.
#[tokio::test(flavor = "multi_thread")]
async fn usage_lacks_no_more_than_may_be_in_leases() {
    const TOKEN: &str = "a token of some length";
    let redis = Redis::start();
    let (url, token) = (format!("REDIS_URL={}", redis.url()), format!("ADMIN_TOKEN={TOKEN}"));
    let rules = RULES.replace(
        "requests_per_unit: 7,",
        "requests_per_unit: 500, lease: {unused: 10%, ttl: 200ms}, usage: {by: day, keep: 32d},",
    );
    let settings = [&*url, "REDIS_TIMEOUT=2s", "ADMIN_API=true", &*token];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    let window = |unrecorded: u64| {
        json!({
            "kind": "window", "number": 500, "period_us": 2_000_000, "memory_us": 2_200_000 + 300_000,
            "usable_thousandths": 900, "unrecorded": unrecorded,
        })
    };
    let load = [("keys", 16), ("think_ms", 2), ("most_hits", 2), ("probers", 0)];
    let mut scenario = scenario(&instances.each_ref(), &[("window", window(50))], &load);
    let Target::Rls(rls) = scenario.target else { panic!("{scenario:?}") };
    let usage = Usage { address: format!("127.0.0.1:{}", instances[1].http_port), token: TOKEN.to_owned() };
    scenario.target = Target::Tollgate(record::adapter::Tollgate { rls, usage });
    let (header, operations) = record::history(&scenario).await.unwrap();
    let judged = |unrecorded: u64, more: i64| {
        let mut header = header.clone();
        header.limits.insert("window".to_owned(), serde_json::from_value(window(unrecorded)).unwrap());
        let mut judge = Judge::new(header, Checks::default());
        for operation in &operations {
            let total = operation.total.map(|total| total + more);
            judge.add(&Operation { total, ..operation.clone() }).unwrap();
        }
        judge.finish()
    };
    let totals: Vec<i64> = operations.iter().filter_map(|operation| operation.total).collect();
    assert!(totals.len() > 10 && totals.iter().sum::<i64>() > 500, "{totals:?}");
    let legal = judged(50, 0);
    assert!(legal.is_legal_but_for(&[]), "{legal}");
    let leased = instances.each_ref().map(|one| one.metric("tollgate_lease_decisions_total"));
    assert!(leased.iter().all(|decisions| *decisions > 100.0), "{leased:?}");
    let missing = judged(50, -51);
    assert_eq!(missing.count(Kind::WrongTotal), totals.len() as u64, "more is missing than may be: {missing}");
    let without = judged(0, 0);
    println!("{} of {} totals lack hits that are in leases", without.count(Kind::WrongTotal), totals.len());
}

/// The judge is not blind: what the rules do not promise, it does not find kept.
#[tokio::test(flavor = "multi_thread")]
async fn other_promises_than_those_of_the_rules_are_found_broken() {
    let rules = RULES
        .replace(
            "period: 2s, requests_per_unit: 7, algorithm: sliding_window",
            "period: 2s, requests_per_unit: 7, algorithm: fixed_window",
        )
        .replace("requests_per_unit: 6, algorithm: sliding_log", "requests_per_unit: 4, algorithm: sliding_log")
        .replace("burst: 8", "burst: 9")
        .replace("requests_per_unit: 3", "requests_per_unit: 4");
    let tollgate = Tollgate::start(&rules, &[]);
    let all = windows();
    let (fixed, fewer, bucket, places) = tokio::join!(
        judged(scenario(&[&tollgate], &all[..1], &[])),
        judged(scenario(&[&tollgate], &all[1..2], &[])),
        judged(scenario(&[&tollgate], &all[2..3], &[])),
        judged(scenario(&[&tollgate], &slots(), &[])),
    );
    assert!(fixed.count(Kind::OverLimit) > 0, "{fixed}");
    assert!(fewer.count(Kind::NeedlessDenial) > 0 && fewer.count(Kind::OverLimit) == 0, "{fewer}");
    assert!(bucket.count(Kind::OverLimit) > 0, "{bucket}");
    assert!(places.count(Kind::TooManyHolders) > 0, "{places}");
}

/// A Redis without persistence forgets its counters when it restarts: that shows as an excess.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_is_found() {
    let mut redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let tollgate = Tollgate::start(&RULES.replace("period: 2s", "period: 20s"), &[&*url, "REDIS_TIMEOUT=1s"]);
    let window = json!({"kind": "window", "number": 7, "period_us": 20_000_000, "memory_us": 22_000_000});
    let scenario = scenario(&[&tollgate], &[("window", window)], &[]);
    let disturb = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        redis.kill();
        redis.restart();
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    assert!(judgement.count(Kind::OverLimit) > 0, "{judgement}");
}

/// Callers give up before a reply that Redis has sent too late; nothing is charged twice, and the limit holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_stops_now_and_then_lets_no_more_pass() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let rules = RULES.replace("failure_mode: error", "failure_mode: closed");
    let instances = [&*url, "REDIS_TIMEOUT=200ms"];
    let instances = [Tollgate::start(&rules, &instances), Tollgate::start(&rules, &instances)];
    let instances: Vec<&Tollgate> = instances.iter().collect();
    let scenario = scenario(&instances, &windows(), &[]);
    let disturb = async {
        for _ in 0..(seconds() / 2.0) as u32 {
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            redis.freeze();
            tokio::time::sleep(Duration::from_millis(500)).await;
            redis.thaw();
        }
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    // Closed, it denies while Redis is away, and does not know what remains or how long to wait.
    let ignored = [Kind::NeedlessDenial, Kind::WrongWait, Kind::WrongRemaining];
    judgement.assert_legal_but_for(&ignored);
    assert!(judgement.count(Kind::NeedlessDenial) > 0, "{judgement}");
}

/// A killed master, a replica that takes over, and the old master that comes back: with `durable`, nothing passes
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_lets_nothing_pass_twice_that_is_durable() {
    let mut watched = Watched::start(&[], "").await;
    let rules = RULES.replace("algorithm: sliding_window", "algorithm: sliding_window, durable: true");
    // Longer than the failover, so that what is lost would show.
    let rules = rules.replace("period: 2s", "period: 15s").replace("requests_per_unit: 7", "requests_per_unit: 30");
    let url = watched.setting();
    let settings = [&*url, "REDIS_TYPE=sentinel", "REDIS_TIMEOUT=1s"];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    let instances: Vec<&Tollgate> = instances.iter().collect();
    let window = json!({"kind": "window", "number": 30, "period_us": 15_000_000, "memory_us": 16_500_000});
    let scenario = scenario(&instances, &[("window", window)], &[("seconds", 20), ("keys", 3), ("think_ms", 100)]);
    let disturb = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        watched.redis[0].kill();
        // It has no persistence: if it came back before, it would hand its emptiness to the replica.
        let old = watched.redis[0].tcp_address();
        wait_until_async("the replica is promoted", async || watched.master().await.tcp_address() != old).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        watched.redis[0].restart();
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    judgement.assert_legal_but_for(&[]);
    assert!(judgement.failed + judgement.late > 0, "{judgement}");
}

/// An operator has a replica take over while the master lives, which goes on answering for seconds: with `durable`,
/// nothing passes twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_lets_nothing_pass_twice_that_is_durable() {
    let watched = Watched::start_with(2, &[], "").await;
    let rules = RULES.replace("algorithm: sliding_window", "algorithm: sliding_window, durable: true");
    // Longer than the failover, so that what is lost would show.
    let rules = rules.replace("period: 2s", "period: 15s").replace("requests_per_unit: 7", "requests_per_unit: 30");
    let url = watched.setting();
    let settings = [&*url, "REDIS_TYPE=sentinel", "REDIS_TIMEOUT=1s"];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    let instances: Vec<&Tollgate> = instances.iter().collect();
    let window = json!({"kind": "window", "number": 30, "period_us": 15_000_000, "memory_us": 16_500_000});
    let load = [("seconds", 12), ("keys", 3), ("think_ms", 100)];
    let scenario = scenario(&instances, &[("window", window)], &load);
    let disturb = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        watched.fail_over().await;
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    judgement.assert_legal_but_for(&[]);
}

/// The same of a budget. A settle denies no request, so it is answered also where the store does not confirm it; then
/// the hold ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_lets_no_stream_begin_twice_that_is_durable() {
    let watched = Watched::start_with(2, &[], "").await;
    // Longer than the failover, so that what is lost would show.
    let rules = BUDGETS
        .replace("algorithm: budget", "algorithm: budget, durable: true")
        .replace("period: 2s, requests_per_unit: 40", "period: 10s, requests_per_unit: 200");
    let url = watched.setting();
    let settings = [&*url, "REDIS_TYPE=sentinel", "REDIS_TIMEOUT=1s"];
    let instances = [Tollgate::start(&rules, &settings), Tollgate::start(&rules, &settings)];
    let budget = json!({
        "kind": "budget", "number": 200, "period_us": 10_000_000, "memory_us": 11_000_000,
        "settle_within_us": 800_000, "hold_for_us": 852_000, "settles_may_be_lost": true,
    });
    let load = [("seconds", 12), ("think_ms", 100), ("most_hits", 20), ("keys", 2), ("settle_ms", 15_000)];
    let scenario = scenario(&instances.each_ref(), &[("charged", budget)], &load);
    let disturb = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        watched.fail_over().await;
    };
    let (judgement, ()) = tokio::join!(judged(scenario), disturb);
    judgement.assert_legal_but_for(&[]);
}

/// The slots of all counters move to the next node of a cluster, again and again: no hit is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_a_cluster_whose_slots_move_are_legal() {
    let cluster = Cluster::start(3, 0).await;
    let url = cluster.setting();
    let settings = [&*url, "REDIS_TIMEOUT=2s"];
    let instances = [Tollgate::start(RULES, &settings), Tollgate::start(RULES, &settings)];
    let instances: Vec<&Tollgate> = instances.iter().collect();
    // Without requests over several slots, which may be charged for a moment while they are denied (docs/redis.md).
    let scenario = scenario(&instances, &windows(), &[("groups", 0)]);
    let moves = async {
        let tags = windows().into_iter().flat_map(|(limit, _)| (0..8).map(move |key| format!("judge|{limit}=k{key}")));
        let slots: BTreeSet<u16> = tags.map(|tag| slot_of_tag(&tag)).collect();
        let begin = Instant::now();
        let mut moved = 0;
        while begin.elapsed().as_secs_f64() < seconds() {
            for slot in &slots {
                let first = (0..3).find(|master| cluster.slots(*master).contains(slot)).unwrap();
                let from = (usize::from(first) + moved) % 3;
                cluster.move_slot(*slot, from, (from + 1) % 3, async || {}).await;
            }
            moved += 1;
        }
    };
    let (judgement, ()) = tokio::join!(judged(scenario), moves);
    judgement.assert_legal_but_for(&[]);
}

/// One run of the table in docs/faults.md.
async fn run(system: System, fault: Fault) -> Outcome {
    let none = std::path::PathBuf::new();
    let programs = Programs {
        tollgate: BINARY.into(),
        ratelimit: none.clone(),
        gubernator: none,
        redis: "redis-server".into(),
        libfaketime: Programs::LIBFAKETIME.into(),
    };
    faults::run(system, fault, &programs).await.unwrap().0
}

/// Callers hear of errors, and no reply that is lost is charged for twice.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_let_no_more_pass() {
    let outcome = run(System::TollgateRedis, Fault::RepliesLost).await;
    assert!(outcome.operations > 100 && outcome.failed + outcome.late > 0, "{outcome:?}");
    assert_eq!((outcome.over_hits, outcome.needless), (0, 0), "{outcome:?}");
    assert!(outcome.said_so, "{outcome:?}");
}

/// Fails if more passed than limits with shares promise, or less than the part that the store always has.
#[track_caller]
fn assert_shares_keep_their_promise(outcome: &Outcome) {
    println!("{}: {}: {outcome:?}", outcome.system.name(), outcome.fault.name());
    assert!(outcome.operations > 1_000, "{outcome:?}");
    assert_eq!((outcome.beyond_hits, outcome.needless), (0, 0), "{outcome:?}");
}

/// A Redis that comes back empty has lost the table of seats, too.
#[tokio::test(flavor = "multi_thread")]
async fn shares_admit_no_more_when_redis_comes_back_empty() {
    assert_shares_keep_their_promise(&run(System::TollgateShares, Fault::StoreKilled).await);
}

/// Instances that are killed, stopped, restarted, added and cut off, rules that change, and failovers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes: make judge-long"]
async fn shares_admit_no_more_whatever_happens() {
    for system in System::ALL.into_iter().filter(|system| system.has_shares()) {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.happens_to(system)) {
            assert_shares_keep_their_promise(&run(system, fault).await);
        }
    }
}
