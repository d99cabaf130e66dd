//! A master that Sentinels watch: where it is, and what a failover costs.

use crate::support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::redis::{AsyncConnectionConfig, RedisError};
use support::free_port;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{SOON, wait_until, wait_until_async};
use tempfile::TempDir;
use tollgate::wire::RateLimitRequest;
use tollgate::wire::rate_limit_response::Code;

/// Larger than the number of requests during the test.
const LIMIT: u64 = 1_000_000;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      {unit: year, requests_per_unit: 1000000, algorithm: fixed_window, count_denied: false, failure_mode: error}
";

/// The same limit with `durable`, which passes requests only after a replica has confirmed them.
const DURABLE: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      unit: year
      requests_per_unit: 1000000
      algorithm: fixed_window
      count_denied: false
      durable: true
      failure_mode: error
";

/// In every test that has one.
const PASSWORD: &str = "open-sesame";

/// A master with replicas, and three Sentinels that watch them.
pub(crate) struct Watched {
    pub(crate) redis: Vec<Redis>,
    sentinels: Vec<Redis>,
    ports: Vec<u16>,
    _folder: TempDir,
}

impl Watched {
    /// Starts a master with one replica. `lines` are further lines of a Sentinel's configuration.
    pub(crate) async fn start(arguments: &[&str], lines: &str) -> Watched {
        Watched::start_with(1, arguments, lines).await
    }

    /// Starts them with this number of replicas. They know each other unless there are further lines.
    pub(crate) async fn start_with(replicas: usize, arguments: &[&str], lines: &str) -> Watched {
        let arguments = [&["--repl-diskless-sync-delay", "0"], arguments].concat();
        let master = Redis::start_with(&arguments);
        let (host, port) = master.host_and_port();
        let replica = |_| Redis::start_with(&[&arguments[..], &["--replicaof", &host, &port]].concat());
        let mut redis: Vec<Redis> = (0..replicas).map(replica).collect();
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let sentinel = |own: &u16| {
            let config = folder.path().join(format!("{own}.conf"));
            // A Sentinel connects to a node once a second. If it may take a node for down sooner, it does so with the
            // master that it has just promoted, and promotes the old one, which comes back empty.
            let text = format!(
                "bind 127.0.0.1\nport {own}\ndir {}\nsentinel monitor main {host} {port} 2\nsentinel \
                 down-after-milliseconds main 2500\nsentinel failover-timeout main 3000\n{lines}",
                folder.path().display()
            );
            std::fs::write(&config, text).unwrap();
            Redis::start_sentinel(&config, *own)
        };
        let sentinels: Vec<Redis> = ports.iter().map(sentinel).collect();
        redis.insert(0, master);
        let watched = Watched { redis, sentinels, ports, _folder: folder };
        if lines.is_empty() {
            watched.settled().await;
        }
        watched
    }

    /// Waits until every Sentinel knows the others and a replica that is in step.
    async fn settled(&self) {
        let replicas = (self.redis.len() - 1).to_string();
        for port in &self.ports {
            wait_until_async("the sentinels know each other", async || {
                let known = said(*port, &["SENTINEL", "MASTER", "main"]).await;
                let is = |name: &str, value: &str| known.iter().any(|pair| *pair == (name.into(), value.into()));
                is("num-other-sentinels", "2") && is("num-slaves", &replicas) && is("flags", "master")
            })
            .await;
        }
        wait_until_async("the replica is in step", async || {
            let replicas = said(self.ports[0], &["SENTINEL", "REPLICAS", "main"]).await;
            replicas.iter().any(|(name, value)| name == "master-link-status" && value == "ok")
                && replicas.iter().any(|(name, value)| name == "flags" && value == "slave")
        })
        .await;
    }

    /// The setting that names them.
    pub(crate) fn setting(&self) -> String {
        let list: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("REDIS_URL=main,{}", list.join(","))
    }

    fn tollgate(&self, settings: &[&str]) -> Tollgate {
        let url = self.setting();
        Tollgate::start(RULES, &[&[&*url, "REDIS_TYPE=sentinel", "REDIS_TIMEOUT=20s"], settings].concat())
    }

    /// Has the first Sentinel promote a replica. It gives up after three seconds if the replica is slow, as on a busy
    /// machine, and is asked again.
    pub(crate) async fn fail_over(&self) {
        let old = self.master().await.tcp_address();
        let mut asked: Option<Instant> = None;
        wait_until_async("the sentinels promote a replica", async || {
            if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                asked = Some(Instant::now());
                match try_said(self.ports[0], &["SENTINEL", "FAILOVER", "main"]).await {
                    Err(error) if !error.to_string().contains("INPROG") => {
                        eprintln!("the sentinel refuses a failover: {error}");
                        asked = None;
                    }
                    _ => {}
                }
            }
            self.master().await.tcp_address() != old
        })
        .await;
    }

    /// Returns the server that a Sentinel names to clients.
    pub(crate) async fn master(&self) -> &Redis {
        let named = said(self.ports[0], &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).await;
        let (host, port) = named.first().expect("the name is known");
        let address = format!("{host}:{port}");
        self.redis.iter().find(|redis| redis.tcp_address() == address).expect("it is one of these")
    }
}

/// Waits until a replica is promoted, and returns its place.
async fn promoted(watched: &Watched) -> usize {
    let mut promoted = None;
    wait_until_async("a replica is promoted", async || {
        for (place, redis) in watched.redis.iter().enumerate().skip(1) {
            if is_master(redis).await {
                promoted = Some(place);
            }
        }
        promoted.is_some()
    })
    .await;
    promoted.unwrap()
}

/// Returns whether a server says that it is a master. A Sentinel that promotes it closes its connections.
async fn is_master(redis: &Redis) -> bool {
    let ask = async || {
        let client = deadpool_redis::redis::Client::open(redis.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        deadpool_redis::redis::cmd("INFO").arg("replication").query_async::<String>(&mut connection).await
    };
    ask().await.is_ok_and(|info| info.contains("role:master"))
}

/// Returns a Sentinel's reply as pairs, several nodes one after the other.
async fn said(port: u16, words: &[&str]) -> Vec<(String, String)> {
    try_said(port, words).await.unwrap()
}

async fn try_said(port: u16, words: &[&str]) -> Result<Vec<(String, String)>, RedisError> {
    let client = deadpool_redis::redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    // On a busy machine a Sentinel takes longer than the half second that this client would wait.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(SOON)).set_connection_timeout(Some(SOON));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut command = deadpool_redis::redis::cmd(words[0]);
    command.arg(&words[1..]);
    let said: deadpool_redis::redis::Value = command.query_async(&mut connection).await?;
    let mut flat = Vec::new();
    flatten(&said, &mut flat);
    Ok(flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

fn flatten(value: &deadpool_redis::redis::Value, flat: &mut Vec<String>) {
    use deadpool_redis::redis::Value;
    match value {
        Value::Array(parts) => parts.iter().for_each(|part| flatten(part, flat)),
        Value::BulkString(text) => flat.push(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => flat.push(text.clone()),
        _ => {}
    }
}

/// The answers to a load.
#[derive(Default)]
struct Answers {
    ok: AtomicU64,
    /// By the failure mode.
    errors: AtomicU64,
    ends: AtomicBool,
}

impl Answers {
    fn ok(&self) -> u64 {
        self.ok.load(Ordering::SeqCst)
    }

    /// Ends the load.
    async fn end(&self, tasks: Vec<tokio::task::JoinHandle<()>>) {
        self.ends.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// Asks on and on, by so many clients.
async fn load(tollgate: &Tollgate, clients: usize) -> (Arc<Answers>, Vec<tokio::task::JoinHandle<()>>) {
    let answers = Arc::new(Answers::default());
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (answers, mut client) = (Arc::clone(&answers), tollgate.client().await);
        tasks.push(tokio::spawn(async move {
            while !answers.ends.load(Ordering::SeqCst) {
                let counted = match client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await {
                    Ok(response) if response.get_ref().overall_code() == Code::Ok => &answers.ok,
                    Ok(denied) => panic!("so many have never been asked for: {denied:?}"),
                    Err(_) => &answers.errors,
                };
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    (answers, tasks)
}

/// Starts Tollgate with a durable limit, and a load of which some requests have passed.
async fn durable_load(watched: &Watched, timeout: &str) -> (Tollgate, Arc<Answers>, Vec<tokio::task::JoinHandle<()>>) {
    let timeout = format!("REDIS_TIMEOUT={timeout}");
    let settings = [&*watched.setting(), "REDIS_TYPE=sentinel", &timeout, "LOCAL_CACHE_SIZE_IN_BYTES=0"];
    let tollgate = Tollgate::start(DURABLE, &settings);
    assert_decides(&tollgate).await;
    let (answers, tasks) = load(&tollgate, 4).await;
    wait_until("some have passed", || answers.ok() > 20);
    (tollgate, answers, tasks)
}

/// Takes all remaining hits in a few requests; returns their number.
async fn rest(tollgate: &Tollgate) -> u64 {
    let (mut taken, mut hits) = (0, 100_000);
    while hits > 0 {
        let asked = RateLimitRequest { hits_addend: hits, ..request("shop", &[&[("user", "ann")]]) };
        match tollgate.ask(asked).await.unwrap().overall_code() {
            Code::Ok => taken += u64::from(hits),
            _ => hits /= 10,
        }
    }
    taken
}

/// The count of the one counter that there is: a fixed window's is behind its beginning.
async fn count(redis: &Redis) -> u64 {
    let names: Vec<String> = redis.command("KEYS {shop|user=ann}*").await;
    let state: Vec<u8> = redis.command(&format!("GET {}", names[0])).await;
    u32::from_le_bytes(state[8..12].try_into().unwrap()).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_costs_what_its_replica_had_not_heard_of() {
    let mut watched = Watched::start(&[], "").await;
    let tollgate = watched.tollgate(&["LOCAL_CACHE_SIZE_IN_BYTES=0"]);
    wait_until_async("redis decides", async || tollgate.passes("other", &[("user", "x")]).await).await;
    let (answers, tasks) = load(&tollgate, 4).await;
    wait_until("some have passed", || answers.ok() > 20);
    watched.redis[0].kill();
    wait_until("the failure mode answers", || answers.errors.load(Ordering::SeqCst) > 0);
    // From here on nothing passes until another is the master.
    let heard = count(&watched.redis[1]).await;
    let before = answers.ok();
    let unheard = before.saturating_sub(heard);
    wait_until("the replica has taken over", || answers.ok() > before);
    answers.end(tasks).await;
    let admitted = answers.ok() + rest(&tollgate).await;
    // A client without an answer may have been charged, at most once each.
    assert!((LIMIT - 4..=LIMIT + unheard).contains(&admitted), "{admitted} admitted, {unheard} unheard of");
    assert_eq!(count(&watched.redis[1]).await, LIMIT);

    // The old master returns and acts as master until the Sentinels tell it otherwise. It must decide nothing.
    watched.redis[0].restart();
    for _ in 0..20 {
        assert!(!tollgate.passes("shop", &[("user", "ann")]).await);
    }
    // A manual failover back, with both nodes alive: nothing is lost.
    watched.settled().await;
    watched.fail_over().await;
    let old = watched.redis[0].tcp_address();
    wait_until("the sentinels name the first again", || {
        tollgate.logs().iter().any(|line| line["now"].as_str() == Some(&old) && line["before"].is_string())
    });
    wait_until_async("the first decides", async || {
        let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await;
        answer.is_ok_and(|answer| answer.overall_code() == Code::OverLimit) && watched.redis[0].script_calls() > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_loses_no_durable_charge_and_moves_connections_once() {
    let watched = Watched::start_with(2, &[], "").await;
    let (tollgate, answers, tasks) = durable_load(&watched, "2s").await;
    let old = watched.redis[0].tcp_address();
    watched.fail_over().await;
    let moves = || {
        let logs = tollgate.logs();
        let names = |line: &serde_json::Value, field: &str| line[field].as_str().map(str::to_owned);
        logs.iter().filter_map(|line| Some((names(line, "before")?, names(line, "now")?))).collect::<BTreeSet<_>>()
    };
    wait_until("the sentinels name the promoted replica", || moves().iter().any(|(before, _)| *before == old));
    let before = answers.ok();
    wait_until("it decides", || answers.ok() > before + 20);
    answers.end(tasks).await;
    let master = watched.master().await;
    assert_eq!(moves(), BTreeSet::from([(old, master.tcp_address())]), "there, and not back");
    // Every request that passed is charged where decisions are made now.
    let (admitted, charged) = (answers.ok(), count(master).await);
    assert!(charged >= admitted, "{admitted} admitted, {charged} charged");
}

/// A replica that is not promoted follows the old master until it is told otherwise, and must not confirm alone what is
/// lost then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_fall_silent_during_a_failover_cost_no_durable_charge() {
    let watched = Watched::start_with(2, &[], "").await;
    let (tollgate, answers, tasks) = durable_load(&watched, "400ms").await;
    let says = |text: &str| tollgate.logs().iter().any(|line| line["message"].as_str().unwrap().contains(text));
    watched.sentinels[1..].iter().for_each(Redis::freeze);
    wait_until("two are silent", || says("the sentinels do not answer"));
    try_said(watched.ports[0], &["SENTINEL", "FAILOVER", "main"]).await.unwrap();
    let promoted = promoted(&watched).await;
    watched.sentinels[0].freeze();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    watched.sentinels.iter().for_each(Redis::thaw);
    wait_until("they name the promoted replica", || says("the sentinels name another master"));
    let before = answers.ok();
    wait_until("it decides", || answers.ok() > before + 20);
    answers.end(tasks).await;
    let (admitted, charged) = (answers.ok(), count(&watched.redis[promoted]).await);
    assert!(charged >= admitted, "{admitted} admitted, {charged} charged");
}

/// A Sentinel that hears nothing of the replica that it has promoted gives up. The replica then calls itself a master
/// for some seconds, until the Sentinels tell it to follow, or promote it again, which loses what others confirm alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_is_open_whether_a_replica_is_promoted_nothing_durable_passes() {
    let watched = Watched::start_with(2, &[], "").await;
    let (_tollgate, answers, tasks) = durable_load(&watched, "400ms").await;
    try_said(watched.ports[0], &["SENTINEL", "FAILOVER", "main"]).await.unwrap();
    let promoted = promoted(&watched).await;
    watched.redis[promoted].freeze();
    let has = async |sentinel: usize, of: &str, name: &str, value: &str| {
        let told = said(watched.ports[sentinel], &["SENTINEL", of, "main"]).await;
        told.iter().any(|pair| *pair == (name.to_owned(), value.to_owned()))
    };
    wait_until_async("the first one gives up", async || has(0, "MASTER", "flags", "master").await).await;
    watched.redis[promoted].thaw();
    let is_open = async || {
        let mut all = true;
        for sentinel in 0..3 {
            all &= has(sentinel, "REPLICAS", "role-reported", "master").await;
        }
        all
    };
    wait_until_async("all hear that the replica calls itself a master", is_open).await;
    // They are asked ten times a second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = answers.ok();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let passed = answers.ok() - before;
    assert!(passed == 0 || !is_open().await, "{passed} passed");
    wait_until("it follows again, and confirms", || answers.ok() > before + 20);
    answers.end(tasks).await;
}

/// The previous master accepts writes for ten seconds after a planned failover, and loses them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_instances_share_goes_to_the_new_master_though_the_previous_one_still_answers() {
    let watched = Watched::start(&[], "").await;
    let token = "a token of some length";
    let tollgate = watched.tollgate(&["ADMIN_API=true", &format!("ADMIN_TOKEN={token}")]);
    let begin = |id: &str| {
        let body = serde_json::json!({
            "id": id, "effect": "pass", "everything": true, "who": "ann", "why": "a sale", "for": "1h",
        });
        let headers = [("Authorization", &*format!("Bearer {token}"))];
        tollgate.send("POST", "/adjustments", &headers, body.to_string().as_bytes()).0
    };
    wait_until("an adjustment is in force", || begin("before") == 201);
    watched.fail_over().await;
    let new = watched.redis[1].tcp_address();
    wait_until("the sentinels name the promoted replica", || {
        tollgate.logs().iter().any(|line| line["now"].as_str() == Some(&new) && line["before"].is_string())
    });
    wait_until("an adjustment is in force", || begin("after") == 201);
    let list: String = watched.redis[1].command("GET {|adjustments}|list").await;
    assert!(list.contains(" after "), "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_asked_by_their_own_user_and_any_of_them_will_do() {
    let lines = format!("requirepass {PASSWORD}-s\nsentinel auth-pass main {PASSWORD}\n");
    let mut watched = Watched::start(&["--requirepass", PASSWORD, "--masterauth", PASSWORD], &lines).await;
    let master = format!("REDIS_AUTH={PASSWORD}");
    for (auth, kind, words) in
        [("", "no_sentinel", "correct REDIS_SENTINEL_AUTH"), ("wrong", "no_sentinel", "correct REDIS_SENTINEL_AUTH")]
    {
        let tollgate = watched.tollgate(&[&master, &format!("REDIS_SENTINEL_AUTH={auth}")]);
        assert_tells(&tollgate, kind, words).await;
    }
    let sentinel = format!("REDIS_SENTINEL_AUTH={PASSWORD}-s");
    let tollgate = watched.tollgate(&[&sentinel]);
    assert_tells(&tollgate, "no_password", "it requires a password").await;

    watched.sentinels.truncate(1);
    let tollgate = watched.tollgate(&[&master, &sentinel]);
    assert_decides(&tollgate).await;
    let answering = || tollgate.metric("tollgate_sentinels_answering_ratio{master=\"main\"}");
    wait_until("one of three answers", || (answering() - 1.0 / 3.0).abs() < 0.01);
    // Without any Sentinel, existing connections stay open.
    watched.sentinels.clear();
    tollgate.must_log("the sentinels do not answer, a failover would go unnoticed");
    wait_until("none answers", || answering() == 0.0);
    assert_decides(&tollgate).await;
    let late = watched.tollgate(&[&master, &sentinel]);
    assert_tells(&late, "no_sentinel", "no Sentinel names the master").await;
    for tollgate in [tollgate, late] {
        assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_names_of_sentinels_is_told() {
    let watched = Watched::start(&[], "\n").await;
    let url = watched.setting().replace("main", "primary");
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_TYPE=SENTINEL", "REDIS_TIMEOUT=20s"]);
    assert_tells(&tollgate, "unknown_master", "the Sentinels do not know the master \"primary\"").await;
    let url = format!("REDIS_URL=redis+sentinel://{}/main", watched.redis[0].tcp_address());
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=20s"]);
    assert_tells(&tollgate, "no_sentinel", "an address given as a Sentinel is not a Sentinel").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_each_sentinel_says_is_told_before_anything_depends_on_it() {
    let mut watched = Watched::start(&[], "").await;
    let url = watched.setting();
    let (name, url) = url.split_once('=').unwrap();
    let check = || {
        let settings = [(name, url), ("REDIS_TYPE", "Sentinel"), ("REDIS_TIMEOUT", "20s")];
        let output = support::tollgate::command().args(["check", "--redis", "--format=json"]).envs(settings).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let found = check();
    let master = watched.redis[0].tcp_address();
    let server = &found["servers"][0];
    assert_eq!((&found["kind"], &server["server"]), (&"sentinel".into(), &master.as_str().into()));
    assert_eq!((&server["role"], &server["replicas"]), (&"master".into(), &1.into()));
    assert_eq!(found["sentinels"][2]["master"], *master);
    assert_eq!(found["warnings"], serde_json::json!([]));
    assert!(server["warnings"][0].as_str().unwrap().contains("min-replicas-to-write is 0"), "{found:#}");
    watched.redis[0].command::<()>("CONFIG SET min-replicas-to-write 1").await;
    let warnings = check()["servers"][0]["warnings"].take();
    match watched.redis[0].version().await {
        (7.., _) => assert_eq!(warnings, serde_json::json!([])),
        _ => assert!(warnings[0].as_str().unwrap().contains("does not apply its min-replicas-to-write to scripts")),
    }
    watched.sentinels.remove(2);
    let found = check();
    assert_eq!(found["sentinels"][2]["master"], serde_json::Value::Null);
    assert!(found["warnings"][0].as_str().unwrap().contains("does not say where the master is"), "{found:#}");
}

/// A Sentinel with outdated or invented information cannot direct writes to a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_no_master_whatever_a_sentinel_says() {
    let master = Redis::start();
    let (host, port) = master.host_and_port();
    let replica = Redis::start_with(&["--replicaof", &host, &port, "--replica-read-only", "no"]);
    let (folder, own) = (tempfile::tempdir().unwrap(), free_port());
    let config = folder.path().join("sentinel.conf");
    let (host, port) = replica.host_and_port();
    std::fs::write(&config, format!("bind 127.0.0.1\nport {own}\nsentinel monitor main {host} {port} 9\n")).unwrap();
    let _sentinel = Redis::start_sentinel(&config, own);
    let url = format!("REDIS_URL=redis+sentinel://127.0.0.1:{own}/main");
    let tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=20s"]);
    assert_tells(&tollgate, "replica", "which is now a replica").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_frozen_master_is_read_by_what_the_sentinels_say() {
    // None that would take the master's place.
    let watched = Watched::start(&["--replica-priority", "0"], "").await;
    let tollgate = watched.tollgate(&[]);
    assert_decides(&tollgate).await;
    let names = |redis: &Redis| {
        let words = ["counter", "get", "--replica", "--domain", "shop", "user=ann"];
        let url = watched.setting().replace("REDIS_URL=", "");
        let rules = tollgate.rules.path().to_str().unwrap();
        let settings = [("REDIS_URL", &*url), ("REDIS_TYPE", "sentinel"), ("RULES", rules), ("REDIS_TIMEOUT", "20s")];
        let output = support::tollgate::command().args(words).envs(settings).output().unwrap();
        let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
        assert!(out.contains(" of 1000000 left, resets in "), "{out}");
        out.contains(&format!("at the replica {}, which heard from its master ", redis.tcp_address()))
    };
    watched.redis[0].freeze();
    wait_until_async("the sentinels miss the master", async || {
        let known = said(watched.ports[0], &["SENTINEL", "MASTER", "main"]).await;
        known.iter().any(|(name, value)| name == "flags" && value.contains("s_down"))
    })
    .await;
    assert!(names(&watched.redis[1]));
    watched.redis[0].thaw();
}

async fn assert_tells(tollgate: &Tollgate, kind: &str, words: &str) {
    let series = format!("tollgate_store_down{{cause=\"{kind}\"}}");
    wait_until(&series, || tollgate.metric(&series) == 1.0);
    let error = tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap_err();
    assert!(error.message().contains(words), "{error}");
    let page = std::fs::read_to_string("docs/troubleshooting.md").unwrap();
    assert!(page.contains(&format!("`{kind}`")), "{kind} is not in docs/troubleshooting.md");
}

async fn assert_decides(tollgate: &Tollgate) {
    wait_until_async("redis decides", async || tollgate.ask(request("shop", &[&[("user", "ann")]])).await.is_ok())
        .await;
}
