//! The reasons why Redis cannot decide, as reported at the start, at run time, to clients, by commands and in metrics;
//! and configurations that are rejected or warned about because limits would not hold.

use crate::support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use ::tollgate::store::health::Health;
use serde_json::Value;
use support::free_port;
use support::redis::Redis;
use support::tollgate::{self, Tollgate, request};
use support::{wait_until, wait_until_async};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4, failure_mode: error}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 4, algorithm: sliding_log, failure_mode: error}}
";

/// In every test that has one.
const PASSWORD: &str = "open-sesame";

/// An address for `REDIS_URL`, with credentials.
struct Place {
    url: String,
    auth: String,
    timeout: &'static str,
}

impl Place {
    fn at(url: impl ToString) -> Place {
        // Long enough for any busy machine.
        Place { url: url.to_string(), auth: String::new(), timeout: "10s" }
    }

    fn with_auth(self, auth: &str) -> Place {
        Place { auth: auth.to_owned(), ..self }
    }

    fn settings(&self) -> Vec<String> {
        let Place { url, auth, .. } = self;
        let timeout = format!("REDIS_TIMEOUT={}", self.timeout);
        // Secrets do not appear in debug logs either.
        vec![format!("REDIS_URL={url}"), format!("REDIS_AUTH={auth}"), timeout, "LOG_LEVEL=debug".into()]
    }

    fn start(&self) -> Tollgate {
        let settings = self.settings();
        Tollgate::start(RULES, &settings.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs `tollgate` with these arguments until it ends.
    fn run(&self, words: &[&str]) -> Output {
        let rules = tempfile::tempdir().unwrap();
        std::fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
        let settings = self.settings();
        let settings = settings.iter().map(|setting| setting.split_once('=').unwrap());
        let ports = [("GRPC_HOST", "127.0.0.1"), ("GRPC_PORT", "0"), ("HOST", "127.0.0.1"), ("PORT", "0")];
        tollgate::command().args(words).envs(ports).envs(settings).env("RULES", rules.path()).output().unwrap()
    }

    /// Asserts that the service starts, and that the log, clients, the command and the metrics report the cause.
    async fn assert_tells(&self, kind: &str, words: &str) {
        let tollgate = self.start();
        assert_tells(&tollgate, kind, words).await;
        let line = tollgate.must_log("redis cannot be used");
        assert!(line["error"].as_str().unwrap().contains(words), "{line}");
        self.assert_command_tells(words);
        assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
    }

    fn assert_command_tells(&self, words: &str) {
        let output = self.run(&["counter", "get", "--domain", "shop", "user=ann"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said.starts_with("error: ") && said.contains(words), "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }

    /// Asserts that neither the service nor the command starts.
    fn assert_refused(&self, words: &str) {
        for command in [&["serve"][..], &["counter", "get", "--domain", "shop", "user=ann"]] {
            let output = self.run(command);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("cannot hold counters: ") && said.contains(words), "{said}");
            assert!(!said.contains("failure mode"), "it is not the outage of a Redis that is right: {said}");
        }
    }
}

/// Asserts that clients and metrics report the cause.
async fn assert_tells(tollgate: &Tollgate, kind: &str, words: &str) {
    let error = async || tollgate.ask(request("shop", &[&[("user", "ann")]])).await.unwrap_err().message().to_owned();
    let series = format!("tollgate_store_down{{cause=\"{kind}\"}}");
    wait_until(&series, || tollgate.metric(&series) == 1.0);
    wait_until_async(words, async || error().await.contains(words)).await;
    let page = std::fs::read_to_string("docs/troubleshooting.md").unwrap();
    assert!(page.contains(&format!("`{kind}`")), "{kind} is not in docs/troubleshooting.md");
    assert_eq!(causes(tollgate), (1, Health::CAUSES.len()));
}

/// Returns the number of causes that are 1, and the number of causes.
fn causes(tollgate: &Tollgate) -> (usize, usize) {
    let (_, metrics) = tollgate.get("/metrics");
    let causes: Vec<&str> = metrics.lines().filter(|line| line.starts_with("tollgate_store_down{")).collect();
    (causes.iter().filter(|line| line.ends_with(" 1")).count(), causes.len())
}

async fn assert_decides(tollgate: &Tollgate) {
    wait_until_async("redis decides", async || {
        tollgate.ask(request("shop", &[&[("user", "ann")], &[("log", "ann")]])).await.is_ok()
    })
    .await;
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
    assert_eq!(causes(tollgate), (0, Health::CAUSES.len()));
}

/// Starts a server that passes the first bytes of each connection to `answer`, sends the result, and closes the
/// connection.
fn stand_in(answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).unwrap_or(0);
            let _ = stream.write_all(&answer(&buffer[..read]));
            let _ = stream.shutdown(Shutdown::Write);
            // Reads the rest of the request, so that a reset does not discard the answer.
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
        }
    });
    address
}

/// Starts a proxy in front of Redis. It passes each reply, with the request before it, through `change`. `None` closes
/// the connection.
pub(crate) fn proxy(redis: &Redis, change: fn(sent: &[u8], reply: Vec<u8>) -> Option<Vec<u8>>) -> String {
    let (listener, redis) = (TcpListener::bind("127.0.0.1:0").unwrap(), redis.tcp_address());
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut near in listener.incoming().map_while(Result::ok) {
            let mut far = TcpStream::connect(&redis).unwrap();
            let (mut asks, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let sent = Arc::new(Mutex::new(Vec::new()));
            let last = Arc::clone(&sent);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(read @ 1..) = asks.read(&mut buffer) {
                    *last.lock().unwrap() = buffer[..read].to_vec();
                    if asked.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _ = asked.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while let Ok(read @ 1..) = far.read(&mut buffer) {
                    let reply = change(&sent.lock().unwrap(), buffer[..read].to_vec());
                    if reply.is_none_or(|reply| near.write_all(&reply).is_err()) {
                        break;
                    }
                }
                let _ = near.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Returns whether a client's command is `INFO`.
fn asks_info(sent: &[u8]) -> bool {
    sent.starts_with(b"*1\r\n$4\r\nINFO\r\n")
}

#[tokio::test]
async fn a_redis_cluster_is_refused_at_the_start_with_slots_and_without() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]);
    Place::at(redis.url()).assert_refused("it is a node of a Redis Cluster");
    // In one range that would be, and Redis 6 knows no ranges.
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    redis.command::<()>(&format!("CLUSTER ADDSLOTS {}", slots.join(" "))).await;
    wait_until_async("the cluster is whole", async || {
        redis.command::<String>("CLUSTER INFO").await.contains("cluster_state:ok")
    })
    .await;
    Place::at(redis.url()).assert_refused("set REDIS_TYPE=CLUSTER");
    // Also without permission for INFO.
    redis.command::<()>(&format!("ACL SETUSER toll on >{PASSWORD} ~* +@all -info")).await;
    Place::at(redis.url()).with_auth(&format!("toll:{PASSWORD}")).assert_refused("it is a node of a Redis Cluster");
}

#[tokio::test]
async fn a_redis_cluster_in_the_place_of_a_redis_is_not_asked() {
    let mut redis = Redis::start();
    let tollgate = Place::at(redis.tcp_address()).start();
    assert_decides(&tollgate).await;
    let address = redis.tcp_address();
    redis.kill();
    let _cluster = Redis::start_at(&address, &["--cluster-enabled", "yes"]);
    assert_tells(&tollgate, "cluster", "it is a node of a Redis Cluster").await;
}

#[tokio::test]
async fn a_sentinel_is_refused_with_the_redis_that_it_watches() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let config = folder.path().join("sentinel.conf");
    std::fs::write(&config, format!("bind 127.0.0.1\nport {port}\nsentinel monitor main 127.0.0.1 1234 1\n")).unwrap();
    let sentinel = Redis::start_sentinel(&config, port);
    for auth in ["", PASSWORD] {
        let place = Place::at(sentinel.tcp_address()).with_auth(auth);
        place.assert_refused("name the Redis that it monitors (127.0.0.1:1234) in REDIS_URL");
    }
}

#[tokio::test]
async fn a_redis_that_is_too_old_is_refused() {
    let redis = Redis::start();
    let older = proxy(&redis, |sent, reply| {
        let info = b"$20\r\nredis_version:5.0.14\r\n".to_vec();
        Some(if asks_info(sent) { info } else { reply })
    });
    Place::at(older).assert_refused("it is Redis 5.0");
    // A server without scripts.
    let redis = Redis::start_with(&["--rename-command", "EVALSHA", ""]);
    Place::at(redis.url()).assert_refused("it does not know EVALSHA");
    // A server that does not know an option of a command.
    let redis = Redis::start();
    let older = proxy(&redis, |_, reply| {
        let is_of_rights = reply == b"$0\r\n\r\n";
        Some(if is_of_rights { b"$20\r\nSET ERR syntax error\r\n".to_vec() } else { reply })
    });
    Place::at(older).assert_refused("it does not know SET KEEPTTL");
}

#[tokio::test]
async fn a_replica_says_so_and_names_its_primary() {
    let redis = Redis::start();
    let place = Place::at(redis.url());
    redis.command::<()>("REPLICAOF 127.0.0.1 1").await;
    place.assert_tells("replica", "it is a replica, which accepts no writes: name its primary (127.0.0.1:1)").await;
    // Also if it becomes a master.
    redis.command::<()>("REPLICAOF NO ONE").await;
    let tollgate = place.start();
    assert_decides(&tollgate).await;
    redis.command::<()>("REPLICAOF 127.0.0.1 1").await;
    assert_tells(&tollgate, "replica", "name its primary (127.0.0.1:1)").await;
    tollgate.must_log("redis is down");
    redis.command::<()>("REPLICAOF NO ONE").await;
    assert_decides(&tollgate).await;
}

#[tokio::test]
async fn what_evicts_counters_is_warned_of_and_told_again_when_that_has_changed() {
    for (policy, words) in [
        ("allkeys-lru", "redis evicts keys when it is full (allkeys-lru, 0 so far)"),
        (
            "volatile-ttl",
            "redis evicts keys with a TTL, which every counter has, when it is full (volatile-ttl, 0 so far)",
        ),
    ] {
        let redis = Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", policy]);
        let tollgate = Place::at(redis.url()).start();
        let warning = tollgate.must_log(words);
        assert_eq!(warning["level"], "WARN");
        assert!(warning["message"].as_str().unwrap().contains("CONFIG SET maxmemory-policy noeviction"), "{warning}");
        assert_decides(&tollgate).await;
        assert_eq!(tollgate.logs().iter().filter(|line| line["level"] == "WARN").count(), 1, "{:?}", tollgate.logs());
    }
    let redis = Redis::start_with(&["--maxmemory", "100mb"]);
    let tollgate = Place::at(redis.url()).start();
    assert_decides(&tollgate).await;
    assert!(tollgate.logged("redis evicts").is_none());
    // While it serves, too.
    redis.command::<()>("CONFIG SET maxmemory-policy allkeys-lfu").await;
    let warning = "redis evicts keys when it is full (allkeys-lfu";
    wait_until("it is looked at again", || tollgate.logged(warning).is_some());
    redis.command::<()>("CONFIG SET maxmemory-policy noeviction").await;
    wait_until("it is right again", || tollgate.logged("redis no longer evicts keys").is_some());
    assert!(tollgate.logged("redis is down").is_none());
}

#[tokio::test]
async fn passwords() {
    let redis = Redis::start_with(&["--requirepass", PASSWORD]);
    let place = || Place::at(redis.tcp_address());
    place().assert_tells("no_password", "it requires a password, and none is set: set REDIS_AUTH").await;
    for wrong in ["another", "toll:another", "toll:"] {
        place().with_auth(wrong).assert_tells("wrong_password", "the user or the password is wrong").await;
    }
    let tollgate = place().with_auth(PASSWORD).start();
    assert_decides(&tollgate).await;
    assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
    let redis = Redis::start();
    let place = Place::at(redis.url()).with_auth(PASSWORD);
    place.assert_tells("needless_password", "a password is set, but Redis has none").await;
    // It answers local clients; this is its reply to others.
    let denies = stand_in(|_| b"-DENIED Redis is running in protected mode because protected mode is on\r\n".to_vec());
    for auth in ["", PASSWORD] {
        let place = Place::at(&denies).with_auth(auth);
        place.assert_tells("protected_mode", "protected mode rejects other machines").await;
    }
}

#[tokio::test]
async fn missing_rights_are_named_with_the_line_that_grants_them() {
    let redis = Redis::start();
    for (lacks, what) in [
        ("-evalsha", "run EVALSHA"),
        ("-script", "run SCRIPT LOAD"),
        ("-set -time -rpush", "run RPUSH, SET, TIME"),
        ("resetkeys ~other:*", "access the keys of counters"),
    ] {
        redis.command::<()>("SCRIPT FLUSH").await;
        redis.command::<()>(&format!("ACL SETUSER toll reset on >{PASSWORD} ~* +@all {lacks}")).await;
        let place = Place::at(redis.url()).with_auth(&format!("toll:{PASSWORD}"));
        let words = format!("its user may not {what}; this grants all that Tollgate needs: ACL SETUSER toll ~* +");
        place.assert_tells("no_permission", &words).await;
    }
}

#[tokio::test]
async fn the_line_that_is_told_first_grants_all_there_is_to_grant() {
    for (path, rights) in [("", ""), ("/1", ""), ("", "+evalsha +script|load"), ("", "~* +@all -evalsha"), ("", "~*")] {
        let redis = Redis::start();
        if rights.contains("+@all") && redis.version().await < (6, 2) {
            // A user with all subcommands gets none added.
            continue;
        }
        redis.command::<()>(&format!("ACL SETUSER toll reset on >{PASSWORD} {rights}")).await;
        let place = Place::at(format!("redis://{}{path}", redis.tcp_address()));
        let tollgate = place.with_auth(&format!("toll:{PASSWORD}")).start();
        let told = tollgate.must_log("redis cannot be used");
        let (_, line) = told["error"].as_str().unwrap().split_once("needs: ").unwrap_or_else(|| panic!("{told}"));
        redis.command::<()>(line).await;
        assert_decides(&tollgate).await;
        assert!(tollgate.logged("some limits cannot be decided").is_none(), "{:?}", tollgate.logs());
        // Nor at the next start.
        let place = Place::at(format!("redis://{}{path}", redis.tcp_address()));
        let next = place.with_auth(&format!("toll:{PASSWORD}")).start();
        assert_decides(&next).await;
        let told = |line: &Value| line["message"].as_str().is_some_and(|text| text.contains("grants"));
        assert!(!next.logs().iter().any(told), "{:?}", next.logs());
    }
}

#[tokio::test]
async fn a_right_that_some_algorithms_need_is_warned_of() {
    let redis = Redis::start();
    redis.command::<()>(&format!("ACL SETUSER toll on >{PASSWORD} ~* +@all -llen -info")).await;
    let tollgate = Place::at(redis.url()).with_auth(&format!("toll:{PASSWORD}")).start();
    let words =
        "some limits cannot be decided in redis: its user may not run LLEN; this grants all that Tollgate needs";
    assert_eq!(tollgate.must_log(words)["level"], "WARN");
    assert!(tollgate.ask(request("shop", &[&[("user", "ann")]])).await.is_ok());
    let error = tollgate.ask(request("shop", &[&[("log", "ann")]])).await.unwrap_err();
    assert!(error.message().contains("its user may not run"), "{error}");
    let words = "redis does not answer INFO";
    let told = tollgate.must_log(words);
    assert_eq!(told["level"], "INFO");
    assert!(told["message"].as_str().unwrap().contains("ACL SETUSER toll ~* +evalsha +script|load +info"), "{told}");
}

#[tokio::test]
async fn a_proxy_need_not_know_info() {
    let redis = Redis::start();
    let says_so =
        |sent: &[u8], reply| Some(if asks_info(sent) { b"-ERR unknown command 'INFO'\r\n".to_vec() } else { reply });
    let closes = |sent: &[u8], reply| Some(reply).filter(|_| !asks_info(sent));
    for address in [proxy(&redis, says_so), proxy(&redis, closes)] {
        let tollgate = Place::at(address).start();
        assert_decides(&tollgate).await;
        tollgate.must_log("redis does not answer INFO");
        assert!(tollgate.logged("redis cannot be used").is_none());
    }
}

#[tokio::test]
async fn another_protocol_than_rediss() {
    let other = Tollgate::start(RULES, &[]);
    for (port, kind, words) in [
        (other.http_port, "not_redis", "the port speaks HTTP, so it is not Redis"),
        (other.grpc_port, "mute", "it closes connections without an answer: correct REDIS_URL"),
    ] {
        Place::at(format!("127.0.0.1:{port}")).with_auth(PASSWORD).assert_tells(kind, words).await;
    }
    let ssh = stand_in(|_| b"SSH-2.0-OpenSSH_9.9\r\n".to_vec());
    Place::at(ssh).assert_tells("not_redis", "the port speaks another protocol").await;
    // Some servers answer plain text with a TLS alert; Redis closes the connection.
    let alert = stand_in(|_| b"\x15\x03\x01\x00\x02\x02\x46".to_vec());
    Place::at(alert).assert_tells("tls", "the port uses TLS").await;
}

#[tokio::test]
async fn a_redis_that_is_to_be_asked_over_tls() {
    let redis = redis_with_tls();
    for auth in ["", PASSWORD] {
        Place::at(redis.tcp_address()).with_auth(auth).assert_tells("tls", "the port uses TLS").await;
    }
}

/// Starts a Redis that accepts only TLS.
fn redis_with_tls() -> Redis {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"])
        .args(["-subj", "/CN=redis", "-keyout", &path("key.pem"), "-out", &path("cert.pem")])
        .output()
        .expect("openssl is not installed: `make test` installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let port = free_port();
    let (cert, key, tls_port) = (path("cert.pem"), path("key.pem"), port.to_string());
    let arguments = ["--port", "0", "--tls-port", &tls_port, "--tls-cert-file", &cert, "--tls-key-file", &key];
    Redis::start_at(&format!("127.0.0.1:{port}"), &[&arguments[..], &["--tls-ca-cert-file", &cert]].concat())
}

#[tokio::test]
async fn nobody_there() {
    let redis = Redis::stopped();
    Place::at(redis.tcp_address()).assert_tells("nobody_listens", "connection refused").await;
    Place::at(redis.url()).assert_tells("nobody_listens", "the socket does not exist").await;
    // An invalid host name, which fails without a DNS query.
    Place::at("no..such..host:6379").assert_tells("unknown_host", "its host name does not resolve").await;
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place { timeout: "100ms", ..Place::at(hole.local_addr().unwrap()) };
    place.assert_tells("timeout", "no answer within 100ms").await;
    let loads = stand_in_for_good(b"-LOADING Redis is loading the dataset in memory\r\n");
    Place::at(loads).assert_tells("loading", "it is loading its data from disk").await;
}

/// Starts a server that answers every request with these bytes.
fn stand_in_for_good(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    // Each command begins with the number of its words.
                    let commands = buffer[..read].iter().filter(|byte| **byte == b'*').count();
                    let _ = stream.write_all(&words.repeat(commands));
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_redis_that_cannot_take_part() {
    let redis = Redis::start();
    let place = Place::at(format!("redis://{}/17", redis.tcp_address()));
    place.assert_tells("no_database", "the database does not exist").await;

    redis.command::<()>("CONFIG SET min-replicas-to-write 1").await;
    if redis.version().await >= (7, 0) {
        Place::at(redis.url()).assert_tells("few_replicas", "it has too few replicas").await;
    } else {
        let tollgate = Place::at(redis.url()).start();
        assert_decides(&tollgate).await;
        let line = tollgate.must_log("redis does not apply its min-replicas-to-write to scripts");
        assert_eq!(line["level"], "WARN");
    }
    redis.command::<()>("CONFIG SET min-replicas-to-write 0").await;

    redis.command::<()>("CONFIG SET maxmemory 1").await;
    Place::at(redis.url()).assert_tells("full", "Redis is full (OOM): raise its `maxmemory`").await;
    redis.command::<()>("CONFIG SET maxmemory 0").await;

    let folder = tempfile::tempdir().unwrap();
    let unwritable = Redis::start_with(&["--dir", folder.path().to_str().unwrap(), "--save", "3600", "1"]);
    drop(folder);
    unwritable.command::<()>("SET any thing").await;
    unwritable.command::<()>("BGSAVE").await;
    wait_until_async("it cannot save", async || {
        unwritable.command::<String>("INFO persistence").await.contains("rdb_last_bgsave_status:err")
    })
    .await;
    Place::at(unwritable.url()).assert_tells("cannot_save", "it cannot save to disk").await;

    let crowded = Redis::start_with(&["--maxclients", "1"]);
    let client = deadpool_redis::redis::Client::open(crowded.url()).unwrap();
    let mut the_one = None;
    wait_until_async("there is room for one", async || {
        the_one = client.get_multiplexed_async_connection().await.ok();
        the_one.is_some()
    })
    .await;
    Place::at(crowded.url()).assert_tells("too_many_clients", "it has reached its number of clients").await;

    let busy = Redis::start_with(&["--lua-time-limit", "1"]);
    let mut connection = busy.connection().await;
    let endless = tokio::spawn(async move {
        let endless = deadpool_redis::redis::cmd("EVAL").arg(&["while true do end", "0"]).to_owned();
        // SCRIPT KILL makes it an error.
        let _: Result<(), _> = endless.query_async(&mut connection).await;
    });
    wait_until_async("it is busy", async || {
        let mut connection = busy.connection().await;
        let answer: Result<String, _> = deadpool_redis::redis::cmd("PING").query_async(&mut connection).await;
        answer.is_err()
    })
    .await;
    let tollgate = Place::at(busy.url()).start();
    assert_tells(&tollgate, "busy", "a script of another client keeps it busy: end it with SCRIPT KILL").await;
    busy.command::<()>("SCRIPT KILL").await;
    endless.await.unwrap();
    assert_decides(&tollgate).await;
}

#[tokio::test]
async fn another_cause_of_the_same_outage_is_told_when_it_comes() {
    let mut redis = Redis::stopped();
    let tollgate = Place::at(redis.tcp_address()).start();
    assert_tells(&tollgate, "nobody_listens", "connection refused").await;
    redis.restart();
    assert_decides(&tollgate).await;
    redis.kill();
    let address = redis.tcp_address();
    assert_tells(&tollgate, "nobody_listens", "connection refused").await;
    let _other = Redis::start_at(&address, &["--requirepass", PASSWORD]);
    assert_tells(&tollgate, "no_password", "it requires a password").await;
    let tells = |line: &Value| line["error"].as_str().is_some_and(|error| error.contains("it requires a password"));
    wait_until("the log tells it", || tollgate.logs().iter().any(tells));
}
