//! The log of the process: what is in it, and that nobody needs to read it.

use std::io::{BufRead as _, Read as _, Write as _};

use crate::ending::PREFACE;
use crate::process::RULES;
use crate::support::redis::Redis;
use crate::support::tollgate::{self, Tollgate, request};
use crate::support::{self, wait_until};
use ::tollgate::wire::RateLimitServiceClient;

#[tokio::test]
async fn logs_tell_no_values_above_debug() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for (level, told) in [("info", false), ("debug", true)] {
        let settings = [&url, "ADMIN_API=true", "ADMIN_TOKEN=a token of some length", &format!("LOG_LEVEL={level}")];
        let tollgate = Tollgate::start(RULES, &settings);
        tollgate.passes("shop", &[("user", "crimson")]).await;
        tollgate.ask(request("", &[&[("user", "crimson")]])).await.unwrap_err();
        let counter = format!("http://127.0.0.1:{}/counters?domain=shop&user=crimson", tollgate.http_port);
        let reset = ureq::delete(counter).header("Authorization", "Bearer a token of some length").call();
        assert_eq!(reset.unwrap().status(), 200);
        tollgate.must_log("an operator has reset counters");

        // A counter that somebody has written to.
        tollgate.passes("shop", &[("user", "crimson")]).await;
        for name in redis.command::<Vec<String>>("KEYS *crimson*").await {
            redis.command::<()>(&format!("DEL {name}")).await;
            redis.command::<()>(&format!("HSET {name} x y")).await;
        }
        tollgate.passes("shop", &[("user", "crimson")]).await;
        tollgate.must_log("damaged counters were treated as new ones");
        redis.command::<()>("FLUSHALL").await;

        let tells = |name: &str| format!("{:?}", tollgate.logs()).contains(name);
        if told {
            wait_until("the name of the damaged counter is logged", || tells("{shop|user=crimson"));
        } else {
            assert!(!tells("crimson"), "{:?}", tollgate.logs());
        }
    }
}

/// Starts a service with standard error and output in one pipe, and reads the pipe only up to the line that reports the
/// start.
fn start_unread(settings: &[(&str, &str)]) -> (std::process::Child, std::io::BufReader<std::io::PipeReader>, [u16; 2]) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = tollgate::command();
    command.env("LOG_FORMAT", "json").env("GRPC_PORT", "0").env("PORT", "0").envs(settings.iter().copied());
    let process = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    let mut reader = std::io::BufReader::new(reader);
    let up = loop {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "it ended");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["message"] == "tollgate is up" {
            break line;
        }
    };
    let port = |field: &str| up[field].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    (process, reader, [port("grpc"), port("http")])
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_request_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), RULES).unwrap();
    let rules = folder.path().to_str().unwrap();
    let settings = [("RULES", rules), ("LOG_LEVEL", "debug"), ("DRAIN_DELAY", "0s")];
    let (mut process, unread, [grpc, http]) = start_unread(&settings);
    let mut client = RateLimitServiceClient::connect(format!("http://127.0.0.1:{grpc}")).await.unwrap();
    // Each call logs a line of 16 KiB: after some 2,000 of them the queue and the pipe are full.
    let long = "x".repeat(50_000);
    for _ in 0..3_000 {
        client.should_rate_limit(request("shop", &[&[("user", &long)]])).await.unwrap();
    }
    let metrics = format!("http://127.0.0.1:{http}/metrics");
    let metrics = ureq::get(metrics).call().unwrap().body_mut().read_to_string().unwrap();
    let lost = metrics.lines().find_map(|line| line.strip_prefix("tollgate_log_lines_lost_total ")).unwrap();
    assert!(lost.parse::<u64>().unwrap() > 100, "{lost}");
    drop(client);
    support::signal(&process, "TERM");
    wait_until("it ends", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    drop(unread);
}

#[test]
fn a_start_that_fails_ends_though_nobody_reads_why() {
    let folder = tempfile::tempdir().unwrap();
    let mistakes = "  - {key: user, rate_limit: {unit: minuets, requests_per_unit: 5}}\n".repeat(5_000);
    std::fs::write(folder.path().join("a.yaml"), format!("domain: shop\ndescriptors:\n{mistakes}")).unwrap();
    // A pipe that is full from the start, because its reader does not read.
    let (reader, mut full) = std::os::unix::net::UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(&[b'x'; 1_024]).is_ok() {}
    full.set_nonblocking(false).unwrap();
    let mut command = tollgate::command();
    let command = command.env("RULES", folder.path()).stderr(std::os::fd::OwnedFd::from(full));
    let mut process = command.spawn().unwrap();
    wait_until("it ends", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(1));
    drop(reader);
}

#[test]
fn what_a_client_makes_a_library_say_is_not_logged() {
    /// A PING response without a request: h2 logs a warning for each.
    const PING_ACK: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0ofnobody";

    let flood = |tollgate: &Tollgate| {
        let mut connection = std::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
        connection.set_read_timeout(Some(support::SOON)).unwrap();
        // When it answers a final PING it has read all of them, unless it has closed the connection.
        let _ = connection.write_all(&[PREFACE, &PING_ACK.repeat(1_000), b"\0\0\x08\x06\0\0\0\0\0lastping"].concat());
        let (mut said, mut buffer) = (Vec::<u8>::new(), [0; 1_024]);
        while !said.windows(8).any(|bytes| bytes == b"lastping") {
            match connection.read(&mut buffer) {
                Ok(length @ 1..) => said.extend(&buffer[..length]),
                _ => break,
            }
        }
    };
    let tollgate = Tollgate::start(RULES, &["LOG_LEVEL=debug", "GRPC_TRANSPORT=hyper"]);
    let before = tollgate.logs().len();
    flood(&tollgate);
    assert_eq!(tollgate.logs().len(), before, "{:?}", tollgate.logs().last());

    let tollgate = Tollgate::start(RULES, &["LOG_LEVEL=error,tollgate=info,h2=warn", "GRPC_TRANSPORT=hyper"]);
    let before = tollgate.logs().len();
    flood(&tollgate);
    wait_until("h2 was asked for, and warns", || tollgate.logs().len() > before);
}
