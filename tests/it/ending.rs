//! The end of the process, by signals, and of connections, by their age or where they are too many.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::process::{RULES, health};
use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate, request};
use crate::support::{self, wait_until, wait_until_async};
use ::tollgate::wire::RateLimitServiceClient;
use ::tollgate::wire::rate_limit_response::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// The start of an HTTP/2 connection, with empty SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn a_signal_drains_and_answers_what_is_on_its_way() {
    for signal in ["TERM", "INT"] {
        let redis = Redis::start();
        let url = format!("REDIS_URL={}", redis.url());
        let mut tollgate = Tollgate::start(RULES, &[&url, "REDIS_TIMEOUT=2s", "DRAIN_DELAY=3s"]);
        let mut client = tollgate.client().await;
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
        tollgate.signal(signal);
        wait_until_async("health turns", async || health(&tollgate).await == ServingStatus::NotServing).await;
        assert_eq!(tollgate.get("/healthcheck").0, 500);
        assert!(tollgate.passes("shop", &[("user", "bob")]).await, "while it drains it still answers");

        // On its way when the ports close: a request that a frozen Redis holds up.
        redis.freeze();
        let on_its_way = tokio::spawn(async move {
            client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap().into_inner().overall_code()
        });
        assert_eq!(on_its_way.await.unwrap(), Code::Ok);
        redis.thaw();
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate.must_log("all requests are answered");
    }
}

#[tokio::test]
async fn draining_answers_what_is_on_its_way_on_every_worker() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&url, "REDIS_TIMEOUT=2s", "DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=60s", "WORKER_THREADS=3"];
    let mut tollgate = Tollgate::start(RULES, &settings);
    redis.freeze();
    let mut calls = Vec::new();
    for _ in 0..6 {
        let channel = tollgate.channel().await;
        let mut client = RateLimitServiceClient::new(channel.clone());
        calls.push(tokio::spawn(async move {
            client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.map(|answer| answer.into_inner())
        }));
        tokio::task::yield_now().await;
        // A later call on the same connection is answered, so this one has arrived.
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    }
    tollgate.signal("TERM");
    let tollgate = tokio::task::spawn_blocking(move || {
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate
    });
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().overall_code(), Code::Ok, "by the failure mode");
    }
    tollgate.await.unwrap().must_log("all requests are answered");
    redis.thaw();
}

#[tokio::test]
async fn every_worker_has_connections_to_redis_of_its_own() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for (pool_size, connections) in [("2", 3), ("4", 6)] {
        let pool_size = format!("REDIS_POOL_SIZE={pool_size}");
        let _tollgate = Tollgate::start(RULES, &[&url, &pool_size, "WORKER_THREADS=3"]);
        wait_until_async("the connections of the one before are gone", async || {
            let clients: String = redis.command("CLIENT LIST TYPE normal").await;
            // One more reads adjustments, one each is for heartbeats and questions of instances, and one for seats.
            clients.lines().count() == connections + 4
        })
        .await;
    }
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() {
    let mut tollgate = Tollgate::start(RULES, &["SHUTDOWN_TIMEOUT=60s"]);
    let mut client = tollgate.client().await;
    client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.unwrap();
    tollgate.signal("TERM");
    // The client stays connected and active meanwhile.
    let tollgate = tokio::task::spawn_blocking(move || {
        assert_eq!(tollgate.wait().code(), Some(0));
        tollgate
    });
    tollgate.await.unwrap().must_log("all requests are answered");
    drop(client);
}

#[test]
fn a_silent_client_delays_nothing_whatever_it_said_before() {
    let mut tollgate = Tollgate::start(RULES, &["SHUTDOWN_TIMEOUT=60s", "DRAIN_DELAY=0s"]);
    // Nothing; the first byte of the preface; the preface without SETTINGS; the preface with SETTINGS and half a frame.
    let silent: Vec<_> = [&b""[..], b"P", &PREFACE[..24], PREFACE, &[PREFACE, b"\0\0\x08\x06"].concat()]
        .into_iter()
        .map(|words| {
            let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
            connection.set_read_timeout(Some(support::SOON)).unwrap();
            connection.write_all(words).unwrap();
            if words.len() >= 24 {
                connection.read_exact(&mut [0]).expect("it is served");
            }
            connection
        })
        .collect();
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
    drop(silent);
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=1h"]);
    tollgate.signal("INT");
    wait_until("it drains", || tollgate.logged("draining").is_some());
    // A signal within a second of the first is ignored, so this sends several.
    wait_until("a second signal", || {
        tollgate.signal("INT");
        tollgate.logged("second signal: exiting").is_some()
    });
    assert_eq!(tollgate.wait().code(), Some(0));
}

#[tokio::test]
async fn a_hangup_reads_the_rules_again_and_ends_nothing() {
    let mut tollgate = Tollgate::start(RULES, &["DRAIN_DELAY=1h"]);
    let loads = |tollgate: &Tollgate| tollgate.metric("tollgate_rules_loads_total{result=\"success\"}");
    tollgate.signal("HUP");
    assert_eq!(tollgate.must_log("the rules are reloaded")["signal"], "SIGHUP");
    tollgate.must_log("the rules were reloaded, their limits are unchanged");
    assert_eq!(loads(&tollgate), 2.0, "though nothing has changed");
    assert!(tollgate.passes("shop", &[("user", "ann")]).await);

    tollgate.change_rules(&RULES.replace("requests_per_unit: 2", "requests_per_unit: x"));
    tollgate.signal("HUP");
    tollgate.must_log("changed rules are rejected");
    assert!(tollgate.passes("shop", &[("user", "ann")]).await, "the old ones stay");

    tollgate.signal("TERM");
    wait_until("it drains", || tollgate.logged("draining").is_some());
    tollgate.signal("HUP");
    assert!(!tollgate.passes("shop", &[("user", "ann")]).await, "and it still answers");
    wait_until("a second signal", || {
        tollgate.signal("TERM");
        tollgate.logged("second signal: exiting").is_some()
    });
    assert_eq!(tollgate.wait().code(), Some(0));
}

#[tokio::test]
async fn a_client_that_does_not_let_go_is_let_go_after_the_shutdown_timeout() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&url, "REDIS_TIMEOUT=1h", "DRAIN_DELAY=0s", "SHUTDOWN_TIMEOUT=100ms"];
    let mut tollgate = Tollgate::start(RULES, &settings);
    let channel = tollgate.channel().await;
    redis.freeze();
    let mut client = RateLimitServiceClient::new(channel.clone());
    let call = tokio::spawn(async move { client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await });
    tokio::task::yield_now().await;
    // A later call on the same connection is answered, so this one has arrived.
    HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    tollgate.signal("TERM");
    let ended = tokio::task::spawn_blocking(move || (tollgate.wait().code(), tollgate));
    assert_eq!(ended.await.unwrap().0, Some(0));
    assert!(call.await.unwrap().is_err());
    redis.thaw();
}

#[test]
fn an_old_connection_is_closed() {
    let settings = ["GRPC_MAX_CONNECTION_AGE=50ms", "GRPC_MAX_CONNECTION_AGE_GRACE=50ms"];
    let tollgate = Tollgate::start(RULES, &settings);
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
    connection.set_read_timeout(Some(support::SOON)).unwrap();
    connection.write_all(PREFACE).unwrap();
    let mut said = Vec::new();
    connection.read_to_end(&mut said).expect("the service closes the connection");
    assert!(!said.is_empty(), "it was a connection of HTTP/2");
}

#[test]
fn the_client_of_an_old_connection_is_asked_to_connect_anew() {
    /// RFC 9113, section 6.8.
    const GOAWAY: u8 = 7;

    // Long before the connection is closed.
    let tollgate = Tollgate::start(RULES, &["GRPC_MAX_CONNECTION_AGE=50ms", "GRPC_MAX_CONNECTION_AGE_GRACE=1h"]);
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
    connection.set_read_timeout(Some(support::SOON)).unwrap();
    connection.write_all(PREFACE).unwrap();
    loop {
        let mut frame = [0; 9];
        connection.read_exact(&mut frame).expect("a frame comes");
        let [_, high, low, kind, ..] = frame;
        if kind == GOAWAY {
            break;
        }
        connection.read_exact(&mut vec![0; usize::from(u16::from_be_bytes([high, low]))]).unwrap();
    }
}

#[tokio::test]
async fn an_old_connection_is_closed_without_failing_a_request() {
    let tollgate = Tollgate::start(RULES, &["GRPC_MAX_CONNECTION_AGE=50ms"]);
    let mut client = tollgate.client().await;
    let start = std::time::Instant::now();
    let mut answered = 0;
    while start.elapsed() < Duration::from_millis(300) {
        match client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await {
            Ok(_) => answered += 1,
            // The client noticed the closed connection before it sent the call, so the server failed no call.
            Err(status) => {
                assert_eq!((status.code(), status.message()), (tonic::Code::Cancelled, "operation was canceled"))
            }
        }
    }
    assert!(answered > 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn with_few_descriptors_clients_leave_enough_for_redis_and_for_the_other_port() {
    let mut redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = RULES.replace("unit: year", "failure_mode: error, unit: year").replace(": 2}", ": 1000000}");
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let mut shell = std::process::Command::new("/bin/sh");
    shell.env_clear().args(["-c", &format!("ulimit -Sn 64 && ulimit -Hn 128 && exec {}", tollgate::BINARY)]);
    let settings =
        [format!("RULES={}", folder.path().display()), format!("REDIS_URL={}", redis.url()), "WORKER_THREADS=1".into()];
    let tollgate = Tollgate::start_by(shell, &settings.each_ref().map(String::as_str));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", tollgate.pid())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.split_whitespace().filter(|word| *word == "128").count(), 2, "soft and hard: {open_files}");

    let mut client = tollgate.client().await;
    let ask = async |client: &mut RateLimitServiceClient<_>| {
        client.should_rate_limit(request("shop", &[&[("user", "ann")]])).await.is_ok()
    };
    assert!(ask(&mut client).await);
    let flood = |port: u16, words: &[u8]| -> Vec<_> {
        let connection = |_| {
            let mut connection = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            // Connections beyond the bound are already closed.
            let _ = connection.write_all(words);
            connection
        };
        (0..300).map(connection).collect()
    };
    let half_requests = flood(tollgate.http_port, b"GET /metrics HTTP/1.1\r\n");
    assert_eq!(tollgate.get("/healthcheck").0, 200, "the oldest goes for a new one");
    let late = tollgate.client().await;
    let idle = flood(tollgate.grpc_port, PREFACE);
    wait_until("gRPC is full", || {
        let says = |line: &serde_json::Value| {
            line["message"].as_str().is_some_and(|text| text.contains("GRPC_MAX_CONNECTIONS"))
        };
        tollgate.logs().iter().any(says)
    });
    assert!(ask(&mut { late }).await, "while HTTP is full gRPC is served");

    redis.kill();
    wait_until_async("Redis is missed", async || !ask(&mut client).await).await;
    redis.restart();
    wait_until_async("Redis is reached again", async || ask(&mut client).await).await;
    drop((half_requests, idle));
}

#[test]
fn half_requests_do_not_stay_on_the_http_port() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connect = || {
        let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.http_port)).unwrap();
        connection.set_read_timeout(Some(support::SOON)).unwrap();
        connection.write_all(b"GET /healthcheck HTTP/1.1\r\nHost: ").unwrap();
        connection
    };
    let halves: Vec<_> = std::iter::repeat_with(connect).take(64).collect();
    assert_eq!(tollgate.get("/healthcheck").0, 200);
    for mut half in halves {
        half.read_to_end(&mut Vec::new()).expect("the service closes the connection");
    }
}
