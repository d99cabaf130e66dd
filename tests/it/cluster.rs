//! A Redis Cluster: counters where their slots are, and what becomes of requests while nodes and slots change.

use crate::support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::redis::cmd;
use support::certificates::Authority;
use support::cluster::{Cluster, slot_of_tag};
use support::redis::Redis;
use support::tollgate::{Tollgate, command, request};
use support::{wait_until, wait_until_async};
use tollgate::engine::usage::Totals;
use tollgate::wire::RateLimitRequest;
use tollgate::wire::rate_limit_response::Code;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3, failure_mode: error}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 1000, failure_mode: error}
";

fn start(cluster: &Cluster, rules: &str, settings: &[&str]) -> Tollgate {
    let url = cluster.setting();
    Tollgate::start(rules, &[&[&*url, "REDIS_TIMEOUT=20s"], settings].concat())
}

fn users() -> impl Iterator<Item = String> + Clone {
    (0..100).map(|i| format!("user{i}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_counter_is_where_its_slot_is() {
    let cluster = Cluster::start(3, 0).await;
    let tollgates = [(); 2].map(|()| start(&cluster, RULES, &[]));
    // Sent at the same time, so that requests of several slots share calls.
    let mut asked = Vec::new();
    for (i, user) in users().cycle().take(500).enumerate() {
        let mut client = tollgates[i % 2].client().await;
        asked.push(tokio::spawn(async move {
            let answer = client.should_rate_limit(request("shop", &[&[("user", &user)]])).await;
            (user, answer.unwrap().into_inner().overall_code())
        }));
    }
    let mut passed: HashMap<String, u32> = HashMap::new();
    for asked in asked {
        let (user, code) = asked.await.unwrap();
        *passed.entry(user).or_default() += u32::from(code == Code::Ok);
    }
    assert_eq!(passed.len(), 100);
    assert!(passed.values().all(|passed| *passed == 3), "{passed:?}");
    assert!(cluster.sizes().await.iter().all(|size| *size > 20), "{:?}", cluster.sizes().await);
    for tollgate in &tollgates {
        assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
    }
}

/// Returns the recorded usage of this user on all nodes.
async fn recorded(cluster: &Cluster, user: &str) -> Totals {
    let mut sum = Totals::default();
    for node in &cluster.nodes {
        let mut connection = node.connection().await;
        let pattern = format!("{{shop|user={user}}}*|u1:*");
        let pages: Vec<String> = cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
        for page in pages {
            let records: Vec<Vec<u8>> = cmd("HVALS").arg(page).query_async(&mut connection).await.unwrap();
            sum = records.iter().fold(sum, |sum, record| sum.plus(Totals::unpack(record).unwrap()));
        }
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_is_recorded_where_its_slot_is_and_taken_back_there() {
    let cluster = Cluster::start(3, 0).await;
    let rules = RULES.replace("requests_per_unit: 3,", "requests_per_unit: 3, usage: {by: day, keep: 400d},");
    let tollgate = start(&cluster, &rules, &[]);
    let slot = slot_of("ann");
    let from = (0..3).position(|master| cluster.slots(master).contains(&slot)).unwrap();
    let to = (from + 1) % 3;
    let users = users_of("moving", 6, |its| its == slot);
    let ask = async || pass(&tollgate, users.iter().map(|user| of_user(user))).await;
    assert_eq!(ask().await, 6);
    // Redis answers TRYAGAIN if one of two keys is missing. Undecided requests are not recorded.
    let decided = AtomicU64::new(0);
    cluster
        .move_slot(slot, from, to, async || {
            for user in &users {
                let answer = tollgate.ask(of_user(user)).await;
                decided.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
            }
        })
        .await;
    let mut admitted = 0;
    for user in &users {
        admitted += recorded(&cluster, user).await.admitted;
    }
    assert_eq!(admitted.unsigned_abs(), 6 + decided.into_inner());
    while ask().await > 0 {}
    assert!(ask().await == 0);
    for user in &users {
        let recorded = recorded(&cluster, user).await;
        assert_eq!((recorded.admitted, recorded.cost), (3, 3), "{user}");
    }

    // The user's limit is used up: the charge on the other node is taken back and recorded as denied.
    let elsewhere = users_of("elsewhere", 1, |its| !cluster.slots(to as u16).contains(&its) && its != slot).remove(0);
    let both = || request("shop", &[&[("user", &elsewhere)], &[("user", &users[0])]]);
    assert_eq!(pass(&tollgate, [both(), both()]).await, 0);
    assert_eq!(recorded(&cluster, &elsewhere).await, Totals { admitted: 0, denied: 2, cost: 0, topped_up: 0 });
    assert_eq!(pass(&tollgate, [(); 4].map(|()| of_user(&elsewhere))).await, 3);
}

/// The nodes of two budgets decide a stream each for itself, and the hold of one is taken back if the other denies it:
/// what it held by then, which is not what it asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_a_budget_of_another_node_denies_holds_nothing() {
    const TOKEN: &str = "a token of some length";
    let rules = "
domain: llm
descriptors:
  - key: team
    descriptors:
      - key: hold
        rate_limit:
          algorithm: budget
          unit: year
          requests_per_unit: 100000
          estimate: 100
          learn_estimate: true
          max_estimate: 5000
          failure_mode: error
  - key: user
    descriptors:
      - key: hold
        rate_limit:
          {algorithm: budget, unit: year, requests_per_unit: 3000, min_estimate: 300, failure_mode: error}
";
    let cluster = Cluster::start(3, 0).await;
    let tollgate = start(&cluster, rules, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let budget = |key: &str, name: &str| {
        let path = format!("/counters?domain=llm&{key}={name}&hold=none");
        let budget = tollgate.admin("GET", &path, TOKEN).1[0]["budget"].take();
        ["used", "held", "holds"].map(|figure| budget[figure].as_u64().unwrap())
    };
    let ask = async |key: &str, stream: &str, descriptors: &[(&str, &str)], hits: u64| {
        let entries: Vec<[(&str, &str); 2]> = descriptors.iter().map(|of| [*of, (key, stream)]).collect();
        let mut all = request("llm", &entries.iter().map(<[_; 2]>::as_slice).collect::<Vec<_>>());
        all.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(hits));
        tollgate.ask(all).await.unwrap().overall_code()
    };
    for stream in 0..30 {
        let name = stream.to_string();
        assert_eq!(ask("hold", &name, &[("team", "a")], 0).await, Code::Ok);
        ask("settle", &name, &[("team", "a")], 1_000).await;
    }
    // Of eight users some are on another node than the team.
    for user in 0..8 {
        let user = format!("u{user}");
        let both = [("team", "a"), ("user", &*user)];
        let name = format!("{user}-passes");
        assert_eq!(ask("hold", &name, &both, 0).await, Code::Ok);
        let [_, held, holds] = budget("team", "a");
        assert!(held > 900 && holds == 1, "what was learned: {held} by {holds}");
        assert_eq!(budget("user", &user), [0, 300, 1], "the least");
        assert_eq!(ask("settle", &name, &both, 1_000).await, Code::Ok);
        assert_eq!(ask("hold", "all", &[("user", &user)], 2_000).await, Code::Ok);
        let before = budget("team", "a");
        assert_eq!((before[1], ask("hold", "late", &both, 0).await), (0, Code::OverLimit));
        assert_eq!(budget("team", "a"), before, "{user}");
        assert_eq!(budget("user", &user), [1_000, 2_000, 1]);
    }
}

fn slot_of(user: &str) -> u16 {
    slot_of_tag(&format!("shop|user={user}"))
}

/// Returns this many users, with this name as prefix, whose counters are in slots for which `is_theirs` is true.
fn users_of(name: &str, count: usize, is_theirs: impl Fn(u16) -> bool) -> Vec<String> {
    (0..).map(|i| format!("{name}{i}")).filter(|user| is_theirs(slot_of(user))).take(count).collect()
}

/// Sends these requests at the same time; returns the number that passed.
async fn pass(tollgate: &Tollgate, asked: impl IntoIterator<Item = RateLimitRequest>) -> usize {
    let client = tollgate.client().await;
    let asked = asked.into_iter().map(|asked| {
        let mut client = client.clone();
        tokio::spawn(async move { client.should_rate_limit(asked).await.unwrap().into_inner().overall_code() })
    });
    let mut passed = 0;
    for asked in asked.collect::<Vec<_>>() {
        passed += usize::from(asked.await.unwrap() == Code::Ok);
    }
    passed
}

fn of_user(user: &str) -> RateLimitRequest {
    request("shop", &[&[("user", user)]])
}

/// Takes nothing.
fn peek(user: &str) -> RateLimitRequest {
    let mut peek = of_user(user);
    peek.descriptors[0].hits_addend = Some(0);
    peek
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_there_and_back_costs_no_decision() {
    let cluster = Cluster::start(3, 0).await;
    let tollgate = start(&cluster, RULES, &[]);
    let slot = slot_of("ann");
    let from = (0..3).position(|master| cluster.slots(master).contains(&slot)).unwrap();
    let to = (from + 1) % 3;
    for (name, from, to) in [("there", from, to), ("back", to, from)] {
        let users = users_of(name, 12, |its| its == slot);
        let beside: Vec<String> =
            users_of(&format!("beside-{name}"), 12, |its| its != slot && cluster.slots(from as u16).contains(&its));
        // Alone, with a counter of another slot of the same node, and with one that is elsewhere anyway.
        let ask = async || {
            let pair = |(user, beside): (&String, &String)| request("shop", &[&[("user", user)], &[("user", beside)]]);
            let with_path = |user: &String| request("shop", &[&[("user", user)], &[("path", user)]]);
            pass(&tollgate, users[..4].iter().map(|user| of_user(user))).await
                + pass(&tollgate, users[4..8].iter().zip(&beside[4..8]).map(pair)).await
                + pass(&tollgate, users[8..].iter().map(with_path)).await
        };
        assert_eq!(ask().await, 12, "before it moves {name}");
        cluster
            .move_slot(slot, from, to, async || {
                // Counters created while the slot moves are created in its new place.
                let fresh = users_of(&format!("fresh-{name}-{}", fastrand::u32(..)), 4, |its| its == slot);
                assert_eq!(pass(&tollgate, fresh.iter().map(|user| of_user(user))).await, 4);
                assert_eq!(ask().await, 12, "while it moves {name}");
            })
            .await;
        assert_eq!(ask().await, 0, "three have passed before, and it has moved {name}");
    }
    wait_until_async("the service has learnt where the slot is", async || {
        let redirected = async || {
            let info: String = cluster.nodes[to].command("INFO errorstats").await;
            info.lines().find(|line| line.starts_with("errorstat_MOVED")).map(str::to_owned)
        };
        let before = redirected().await;
        pass(&tollgate, users_of("later", 5, |its| its == slot).iter().map(|user| of_user(user))).await;
        before == redirected().await
    })
    .await;
}

/// A repeated request.
struct Load {
    ok: AtomicU64,
    /// By the failure mode.
    errors: AtomicU64,
    ends: AtomicBool,
}

async fn load(tollgate: &Tollgate, users: &[String]) -> (Arc<Load>, Vec<tokio::task::JoinHandle<()>>) {
    let load = Arc::new(Load { ok: AtomicU64::new(0), errors: AtomicU64::new(0), ends: AtomicBool::new(false) });
    let mut tasks = Vec::new();
    for user in users {
        let (load, mut client, user) = (Arc::clone(&load), tollgate.client().await, user.clone());
        tasks.push(tokio::spawn(async move {
            while !load.ends.load(Ordering::SeqCst) {
                let counted = match client.should_rate_limit(of_user(&user)).await {
                    Ok(response) if response.get_ref().overall_code() == Code::Ok => &load.ok,
                    Ok(denied) => panic!("so many have never been asked for: {denied:?}"),
                    Err(_) => &load.errors,
                };
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    (load, tasks)
}

async fn end(load: &Load, tasks: Vec<tokio::task::JoinHandle<()>>) {
    load.ends.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
}

const PLENTY: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      {unit: year, requests_per_unit: 10000000, algorithm: fixed_window, count_denied: false, failure_mode: error}
";

/// Returns the counts of these users' counters on this node: a fixed window's count follows its start.
async fn count(redis: &Redis, users: &[String]) -> u64 {
    let mut sum = 0;
    for user in users {
        let names: Vec<String> = redis.command(&format!("KEYS {{shop|user={user}}}*")).await;
        // A replica may not have received it yet.
        if names.is_empty() {
            continue;
        }
        let mut connection = redis.connection().await;
        // A replica would send the reader to its master.
        cmd("READONLY").exec_async(&mut connection).await.unwrap();
        let state: Vec<u8> = cmd("GET").arg(&names[0]).query_async(&mut connection).await.unwrap();
        sum += u64::from(u32::from_le_bytes(state[8..12].try_into().unwrap()));
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_costs_its_own_counters_alone_and_its_replica_takes_over() {
    let mut cluster = Cluster::start(3, 1).await;
    let tollgate = start(&cluster, PLENTY, &["LOCAL_CACHE_SIZE_IN_BYTES=0"]);
    let slots: Vec<_> = (0..3).map(|master| cluster.slots(master)).collect();
    let mine = users_of("mine", 2, |slot| slots[0].contains(&slot));
    let others = users_of("other", 2, |slot| !slots[0].contains(&slot));
    wait_until_async("each node decides", async || {
        let all = mine.iter().chain(&others).map(|user| of_user(user));
        let mut decided = true;
        for asked in all {
            decided &= tollgate.ask(asked).await.is_ok();
        }
        decided
    })
    .await;
    let ((load_of_mine, tasks), (load_of_others, tasks_of_others)) =
        (load(&tollgate, &mine).await, load(&tollgate, &others).await);
    wait_until("some have passed", || load_of_mine.ok.load(Ordering::SeqCst) > 50);
    cluster.nodes[0].kill();
    wait_until("the failure mode answers", || load_of_mine.errors.load(Ordering::SeqCst) > 0);
    let before = load_of_mine.ok.load(Ordering::SeqCst) + 2;
    // Not counting the requests that tested whether the nodes decide.
    let heard = count(&cluster.nodes[3], &mine).await;
    wait_until("the replica has taken over", || load_of_mine.ok.load(Ordering::SeqCst) > before + 50);
    end(&load_of_mine, tasks).await;
    end(&load_of_others, tasks_of_others).await;
    assert_eq!(load_of_others.errors.load(Ordering::SeqCst), 0, "the other shards go on");
    let admitted = load_of_mine.ok.load(Ordering::SeqCst);
    let counted = count(&cluster.nodes[3], &mine).await;
    let unheard = before.saturating_sub(heard);
    // Each client may have been charged once without an answer.
    assert!(admitted <= counted + unheard, "{admitted} admitted, {counted} counted, {unheard} unheard of");
    assert!(counted <= admitted + 2 * 3, "{admitted} admitted, {counted} counted");
    wait_until("it is known to be well", || tollgate.metric("tollgate_store_up") == 1.0);

    // A manual failover with both nodes alive: nothing is lost, and no request fails.
    cluster.nodes[0].restart();
    cluster.agreed(3).await;
    let (load, tasks) = load(&tollgate, &mine).await;
    wait_until_async("the old one is in step again", async || {
        cluster.nodes[0].command::<String>("INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let counted = count(&cluster.nodes[3], &mine).await;
    // Redis gives up after five seconds, on a machine that has other things to do.
    let mut tried = None::<Instant>;
    wait_until_async("it is the master again", async || {
        if tried.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
            tried = Some(Instant::now());
            cluster.nodes[0].command::<()>("CLUSTER FAILOVER").await;
        }
        cluster.nodes[0].command::<String>("INFO replication").await.contains("role:master")
    })
    .await;
    let passed = load.ok.load(Ordering::SeqCst);
    wait_until("it decides", || load.ok.load(Ordering::SeqCst) > passed + 50);
    end(&load, tasks).await;
    let admitted = load.ok.load(Ordering::SeqCst);
    let since = count(&cluster.nodes[0], &mine).await - counted;
    assert!(since <= admitted && admitted <= since + 1_000_000, "{since} of {admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_several_slots_are_charged_once_or_not_at_all_whenever_the_service_ends() {
    const NUMBER: u64 = 40;
    let rules = format!(
        "
domain: shop
descriptors:
  - key: user
    rate_limit:
      {{unit: year, requests_per_unit: {NUMBER}, algorithm: fixed_window, count_denied: false, failure_mode: error}}
"
    );
    let cluster = Cluster::start(3, 0).await;
    let users: Vec<String> = users().take(12).collect();
    let (mut passed, mut unanswered): (HashMap<String, u64>, HashMap<String, u64>) = Default::default();
    for round in 0..5 {
        let mut tollgate = start(&cluster, &rules, &["LOCAL_CACHE_SIZE_IN_BYTES=0"]);
        wait_until_async("it decides", async || {
            let mut decided = true;
            for user in &users {
                decided &= tollgate.ask(peek(user)).await.is_ok();
            }
            decided
        })
        .await;
        let client = tollgate.client().await;
        let mut asked = Vec::new();
        for i in 0..200_usize {
            let some: Vec<String> =
                (0..2 + i % 2).map(|at| users[(i * 7 + at * (1 + round + i / 12)) % 12].clone()).collect();
            let pairs: Vec<[(&str, &str); 1]> = some.iter().map(|user| [("user", &**user)]).collect();
            let descriptors: Vec<&[(&str, &str)]> = pairs.iter().map(|pair| &pair[..]).collect();
            let (mut client, request) = (client.clone(), request("shop", &descriptors));
            asked.push((some, tokio::spawn(async move { client.should_rate_limit(request).await })));
            if i % 20 == 0 {
                tokio::task::yield_now().await;
            }
        }
        if round < 4 {
            // Somewhere between the first answers and the last.
            wait_until("some are answered", || asked.iter().filter(|(_, asked)| asked.is_finished()).count() > 20);
            tollgate.signal("KILL");
            tollgate.wait();
        }
        for (users, asked) in asked {
            let to = match asked.await.unwrap() {
                Ok(answer) if answer.get_ref().overall_code() == Code::Ok => &mut passed,
                Ok(_) => continue,
                Err(_) => &mut unanswered,
            };
            users.into_iter().for_each(|user| *to.entry(user).or_default() += 1);
        }
    }
    for user in &users {
        let (passed, unanswered) = (passed.get(user).copied().unwrap_or(0), unanswered.get(user).copied().unwrap_or(0));
        let slot = slot_of(user);
        let node = (0..3).position(|master| cluster.slots(master).contains(&slot)).unwrap();
        let counted = count(&cluster.nodes[node], std::slice::from_ref(user)).await;
        assert!(passed <= NUMBER, "{passed} of {user}");
        assert!(
            (passed..=passed + unanswered).contains(&counted),
            "{user}: {passed} passed, {unanswered} unanswered, {counted} counted"
        );
    }
    // Some requests passed, and some had no clear result.
    assert!(passed.len() == 12 && !unanswered.is_empty(), "{passed:?} {unanswered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_shard_is_dead_a_request_is_decided_by_the_others_as_far_as_they_can() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3, failure_mode: open}
  - key: strict
    rate_limit: {unit: year, requests_per_unit: 3, failure_mode: closed}
";
    let mut cluster = Cluster::start(3, 0).await;
    let tollgate = start(&cluster, rules, &[]);
    let alive = users_of("alive", 2, |slot| !cluster.slots(0).contains(&slot));
    let dead = users_of("dead", 1, |slot| cluster.slots(0).contains(&slot)).remove(0);
    let strict = (0..)
        .map(|i| format!("strict{i}"))
        .find(|user| {
            let slot = slot_of_tag(&format!("shop|strict={user}"));
            cluster.slots(0).contains(&slot)
        })
        .unwrap();
    cluster.nodes[0].kill();
    wait_until("the shard is known to be dead", || (0.6..0.7).contains(&tollgate.metric("tollgate_store_up")));
    let ask = async |descriptors: &[&[(&str, &str)]]| tollgate.ask(request("shop", descriptors)).await.unwrap();
    let both = [&[("user", &*alive[0])][..], &[("user", &*dead)]];
    for left in [2, 1, 0] {
        let answer = ask(&both).await;
        assert_eq!(answer.overall_code(), Code::Ok, "the dead shard's limit fails open");
        assert_eq!(answer.statuses[0].limit_remaining, left, "and the other one counts");
    }
    assert_eq!(ask(&both).await.overall_code(), Code::OverLimit, "the other one denies");
    // A limit that fails closed denies the request; what the other was charged is taken back.
    for _ in 0..5 {
        let answer = ask(&[&[("user", &*alive[1])], &[("strict", &*strict)]]).await;
        assert_eq!(answer.overall_code(), Code::OverLimit);
    }
    wait_until_async("all of it is taken back", async || {
        tollgate.ask(peek(&alive[1])).await.unwrap().statuses[0].limit_remaining == 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_master_is_examined_before_anything_depends_on_it() {
    let cluster = Cluster::start(2, 0).await;
    let check = |name: &str, value: &str| {
        let settings = [(name, value), ("REDIS_TIMEOUT", "20s")];
        let output = command().args(["check", "--redis", "--format=json"]).envs(settings).output().unwrap();
        (output.status.success(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    let setting = cluster.setting();
    let (name, url) = setting.split_once('=').unwrap();
    let (is_good, found) = check(name, url);
    assert!(is_good, "{found:#}");
    assert_eq!((&found["kind"], &found["servers"][1]["slots"]), (&"cluster".into(), &8192.into()));
    for server in found["servers"].as_array().unwrap() {
        assert_eq!((&server["role"], &server["runs_scripts"]), (&"master".into(), &true.into()), "{found:#}");
        assert!(server["warnings"][0].as_str().unwrap().starts_with("it has no replica"), "{found:#}");
    }
    let single = Redis::start();
    let (is_good, found) = check(name, &format!("redis-cluster://{}", single.tcp_address()));
    assert!(
        !is_good && found["errors"][0].as_str().unwrap().starts_with("it is not a node of a Redis Cluster"),
        "{found:#}"
    );
    let (is_good, found) = check(name, &format!("redis://{}", cluster.nodes[0].tcp_address()));
    let errors = found["servers"][0]["errors"].to_string();
    assert!(!is_good && errors.contains("set REDIS_TYPE=CLUSTER"), "{found:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_of_every_slot_are_read_from_replicas_though_a_master_is_frozen() {
    let cluster = Cluster::start_with(3, 1, &["--cluster-replica-no-failover", "yes"]).await;
    let tollgate = start(&cluster, RULES, &[]);
    let users = (0..3_u16).flat_map(|master| {
        let slots = cluster.slots(master);
        users_of("read", 2, move |slot| slots.contains(&slot))
            .into_iter()
            .map(move |user| (user, 3 + usize::from(master)))
    });
    let users: Vec<(String, usize)> = users.collect();
    for (user, _) in &users {
        assert_eq!(tollgate.ask(of_user(user)).await.unwrap().overall_code(), Code::Ok);
    }
    let read = |user: &str| {
        let entry = format!("user={user}");
        let words = ["counter", "get", "--replica", "--domain", "shop", &entry];
        let url = cluster.setting().replace("REDIS_URL=", "");
        let rules = tollgate.rules.path().to_str().unwrap();
        let settings = [("REDIS_URL", &*url), ("RULES", rules), ("REDIS_TIMEOUT", "5s")];
        let output = command().args(words).envs(settings).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for node in &cluster.nodes {
        wait_until_async("the node knows all replicas", async || {
            node.command::<String>("CLUSTER NODES").await.matches("slave").count() == 3
        })
        .await;
    }
    for (user, _) in &users {
        wait_until("the replica has heard of it", || read(user).contains(": 2 of 3 left, "));
    }
    cluster.nodes[0].freeze();
    for node in &cluster.nodes[1..] {
        wait_until_async("the node misses the master", async || {
            let info: String = node.command("CLUSTER INFO").await;
            !info.contains("cluster_slots_fail:0") && info.contains("cluster_state:ok")
        })
        .await;
    }
    let sizes = async || {
        let mut sizes = Vec::new();
        for replica in &cluster.nodes[3..] {
            sizes.push(cmd("DBSIZE").query_async::<u64>(&mut replica.connection().await).await.unwrap());
        }
        sizes
    };
    let held = sizes().await;
    for (user, replica) in &users {
        let out = read(user);
        let replica = format!("at the replica {}, which ", cluster.nodes[*replica].tcp_address());
        assert!(out.contains(": 2 of 3 left, ") && out.contains(&replica), "{out}");
    }
    let after = sizes().await;
    // What the fleet knows of itself may have expired.
    assert!(after.iter().zip(&held).all(|(after, held)| after <= held), "a read writes nothing: {held:?}, {after:?}");
    cluster.nodes[0].thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_takes_a_password_that_is_rotated() {
    const OLD: &str = "open-sesame";
    const NEW: &str = "close-sesame";
    let authority = Authority::new("ours");
    let pair = authority.sign("redis", &["redis"]);
    let cluster = Cluster::start_secure(2, &authority, &pair, &[]).await;
    for node in &cluster.nodes {
        node.command::<()>(&format!("ACL SETUSER toll on >{OLD} ~* +@all")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth");
    std::fs::write(&file, format!("toll:{OLD}\n")).unwrap();
    let client = authority.sign("client", &["client"]);
    let tollgate = start(
        &cluster,
        RULES,
        &[
            "REDIS_TLS=true",
            "REDIS_TLS_SERVER_NAME=redis",
            &format!("REDIS_TLS_CACERT={}", authority.file().display()),
            &format!("REDIS_TLS_CLIENT_CERT={}", client.cert.display()),
            &format!("REDIS_TLS_CLIENT_KEY={}", client.key.display()),
            &format!("REDIS_AUTH_FILE={}", file.display()),
        ],
    );
    let first: Vec<String> = users().take(20).collect();
    assert_eq!(pass(&tollgate, first.iter().map(|user| of_user(user))).await, 20);
    for node in &cluster.nodes {
        node.command::<()>(&format!("ACL SETUSER toll >{NEW} <{OLD}")).await;
    }
    std::fs::write(&file, format!("toll:{NEW}\n")).unwrap();
    tollgate.must_log("a new password is in force for redis");
    for node in &cluster.nodes {
        node.command::<i64>("CLIENT KILL USER toll").await;
    }
    wait_until_async("both nodes decide again", async || {
        let mut decided = true;
        for user in &first {
            decided &= tollgate.ask(peek(user)).await.is_ok();
        }
        decided
    })
    .await;
    assert_eq!(pass(&tollgate, first.iter().map(|user| of_user(user))).await, 20);
    let logs = format!("{:?}", tollgate.logs());
    assert!(!logs.contains(OLD) && !logs.contains(NEW), "a password is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_no_use_costs_its_own_slots_alone() {
    let mut cluster = Cluster::start(3, 0).await;
    let tollgate = start(&cluster, RULES, &[]);
    let slot = slot_of("ann");
    let from = (0..3).position(|master| cluster.slots(master).contains(&slot)).unwrap();
    let to = (from + 1) % 3;
    let moved = users_of("moved", 1, |its| its == slot).remove(0);
    assert_eq!(pass(&tollgate, [of_user(&moved)]).await, 1);
    // A node without scripts joins, and gets the slot.
    let address = cluster.join(&["--rename-command", "EVALSHA", ""]).await;
    let last = cluster.nodes.len() - 1;
    cluster.move_slot(slot, from, last, async || {}).await;
    wait_until_async("its limits fail", async || tollgate.ask(of_user(&moved)).await.is_err()).await;
    wait_until("the slot is known to be lost", || (0.9..1.0).contains(&tollgate.metric("tollgate_store_up")));
    assert!(tollgate.metric("tollgate_store_down{cause=\"no_command\"}") == 1.0, "{address}");
    // Changes of other slots are noticed as well.
    let other = (cluster.slots(from as u16).start..).find(|its| *its != slot).unwrap();
    let user = users_of("other", 1, |its| its == other).remove(0);
    cluster.move_slot(other, from, to, async || {}).await;
    wait_until_async("it is decided at its new place without a redirection", async || {
        let moved = async || {
            let info: String = cluster.nodes[from].command("INFO errorstats").await;
            info.lines().find(|line| line.starts_with("errorstat_MOVED")).map(str::to_owned)
        };
        let before = moved().await;
        tollgate.ask(peek(&user)).await.is_ok() && before == moved().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_do_not_know_their_own_names_are_found_nevertheless() {
    if Redis::start().version().await < (7, 0) {
        // All nodes know their addresses.
        return;
    }
    for preferred in ["unknown-endpoint", "hostname"] {
        let cluster = Cluster::start_with(2, 0, &["--cluster-preferred-endpoint-type", preferred]).await;
        let tollgate = start(&cluster, RULES, &[]);
        let slot = slot_of("ann");
        let from = (0..2).position(|master| cluster.slots(master).contains(&slot)).unwrap();
        let users = users_of("ann", 3, |its| its == slot);
        let ask = async || pass(&tollgate, users.iter().map(|user| of_user(user))).await;
        assert_eq!(ask().await, 3);
        cluster
            .move_slot(slot, from, 1 - from, async || {
                let fresh = users_of(&format!("fresh{}", fastrand::u32(..)), 2, |its| its == slot);
                assert_eq!(pass(&tollgate, fresh.iter().map(|user| of_user(user))).await, 2, "{preferred}");
            })
            .await;
        assert_eq!(ask().await, 3, "{preferred}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_without_a_node_are_told_at_the_start_and_when_they_have_one_again() {
    const SLOTS: &str = "0 1 2 3 4 5 6 7 8 9";
    let cluster = Cluster::start(3, 0).await;
    for node in &cluster.nodes {
        node.command::<()>(&format!("CLUSTER DELSLOTS {SLOTS}")).await;
    }
    let tollgate = start(&cluster, RULES, &[]);
    assert_eq!(tollgate.must_log("slots of the cluster have no node")["slots"], 10);
    cluster.nodes[0].command::<()>(&format!("CLUSTER ADDSLOTS {SLOTS}")).await;
    tollgate.must_log("every slot of the cluster has a node again");
}
