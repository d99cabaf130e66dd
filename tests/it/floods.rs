//! Clients that mean no good, on the gRPC port: whatever one sends, another is answered meanwhile, and neither memory
//! nor the log grows.

#![cfg(target_os = "linux")]

use crate::support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message as _;
use support::http2::*;
use support::tollgate::{Tollgate, request};
use support::{SOON, wait_until};
use tollgate::wire::details::REQUEST_KEY;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitResponse, RateLimitServiceClient};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000000}}
";

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Largest growth of memory.
const GROWTH_KB: usize = 64 * 1024;
/// Largest size of the log.
const LOG_BYTES: usize = 64 * 1024;

/// The memory that a process has of the system, in kilobytes.
fn memory_kb(tollgate: &Tollgate) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tollgate.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A service, with a client that must be answered during the whole test.
struct Scene {
    tollgate: Arc<Tollgate>,
    before_kb: usize,
    over: Arc<AtomicBool>,
    good: Option<std::thread::JoinHandle<usize>>,
}

impl Scene {
    fn new(settings: &[&str]) -> Scene {
        Scene::with(RULES, settings)
    }

    fn with(rules: &str, settings: &[&str]) -> Scene {
        let tollgate = Arc::new(Tollgate::start(rules, settings));
        let over = Arc::new(AtomicBool::new(false));
        let (begun, has_begun) = std::sync::mpsc::channel();
        let client = (Arc::clone(&tollgate), Arc::clone(&over));
        let good = std::thread::spawn(move || {
            let (tollgate, over) = client;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut client = tollgate.client().await;
                let mut answered = 0;
                while !over.load(Ordering::Relaxed) {
                    let call = client.should_rate_limit(request("shop", &[&[("user", "ann")]]));
                    let answer = tokio::time::timeout(SOON, call).await.expect("in time").unwrap();
                    assert_eq!(answer.into_inner().overall_code(), Code::Ok);
                    answered += 1;
                    let _ = begun.send(());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answered
            })
        });
        has_begun.recv().unwrap();
        Scene { before_kb: memory_kb(&tollgate), tollgate, over, good: Some(good) }
    }

    fn check(&self, what: &str) {
        let grown = memory_kb(&self.tollgate).saturating_sub(self.before_kb);
        assert!(grown < GROWTH_KB, "{what}: memory has grown by {grown} kB");
        let logged: usize = self.tollgate.logs().iter().map(|line| line.to_string().len()).sum();
        assert!(logged < LOG_BYTES, "{what}: {logged} bytes of log");
        // A new client is served as well.
        let mut late = open(self.tollgate.grpc_port, &[]);
        late.read_exact(&mut [0; 9]).expect("a new client is served");
    }

    fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        assert!(self.good.take().unwrap().join().expect("the good client is answered") > 0);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // If the test fails: the client keeps the service alive, so joins its thread first.
        let _ = self.good.take().map(std::thread::JoinHandle::join);
    }
}

/// Sends this over and over, until so much is sent, or the service closes or reads no more.
fn flood(connection: &mut TcpStream, mut next: impl FnMut(u32) -> Vec<u8>, bytes: usize) {
    connection.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut sent, mut turn) = (0, 0);
    while sent < bytes {
        let mut chunk = Vec::new();
        while chunk.len() < 64 * 1024 {
            chunk.extend(next(turn));
            turn += 1;
        }
        if connection.write_all(&chunk).is_err() {
            return;
        }
        sent += chunk.len();
    }
}

/// Returns the frames to send in each turn.
type Frames = fn(u32) -> Vec<u8>;

/// The floods. Client streams have odd numbers.
const FLOODS: &[(&str, Frames)] = &[
    ("reset", |turn| {
        let stream = 2 * turn + 1;
        [frame(HEADERS, END_HEADERS, stream, &call(RATE_LIMIT)), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    }),
    ("reset of reflection", |turn| {
        let stream = 2 * turn + 1;
        [frame(HEADERS, END_HEADERS, stream, &call(REFLECTION)), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    }),
    ("refused", |turn| frame(HEADERS, END_HEADERS | END_STREAM, 2 * turn + 1, &call("/nowhere"))),
    // To widen a window by nothing is an error of the stream, which the server resets.
    ("stream error", |turn| {
        let stream = 2 * turn + 1;
        let none = frame(WINDOW_UPDATE, 0, stream, &0_u32.to_be_bytes());
        [frame(HEADERS, END_HEADERS, stream, &call(RATE_LIMIT)), none].concat()
    }),
    ("messages of reset calls", |turn| {
        let stream = 2 * turn + 1;
        let reset = frame(RESET, 0, stream, &8_u32.to_be_bytes());
        let message = frame(DATA, END_STREAM, stream, &[]);
        [frame(HEADERS, END_HEADERS, stream, &call(RATE_LIMIT)), reset, message].concat()
    }),
    ("CONTINUATION", |turn| match turn {
        0 => frame(HEADERS, 0, 1, &call(RATE_LIMIT)),
        _ => frame(CONTINUATION, 0, 1, b"\0\x01a\x10aaaaaaaaaaaaaaaa"),
    }),
    ("empty CONTINUATION", |turn| match turn {
        0 => frame(HEADERS, 0, 1, &call(RATE_LIMIT)),
        _ => frame(CONTINUATION, 0, 1, &[]),
    }),
    ("ping", |turn| frame(PING, 0, 0, &u64::from(turn).to_be_bytes())),
    ("ping answer", |turn| frame(PING, ACK, 0, &u64::from(turn).to_be_bytes())),
    ("settings", |_| frame(SETTINGS, 0, 0, &[])),
    ("settings that change", |turn| {
        // The size of the table of headers.
        frame(SETTINGS, 0, 0, &[&[0, 1], &(turn % 2 * 4096).to_be_bytes()[..]].concat())
    }),
    ("window", |turn| match turn {
        0 => frame(HEADERS, END_HEADERS, 1, &call(RATE_LIMIT)),
        _ => [frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat(),
    }),
    ("empty data", |turn| match turn {
        0 => frame(HEADERS, END_HEADERS, 1, &call(RATE_LIMIT)),
        _ => frame(DATA, 0, 1, &[]),
    }),
    ("priority", |turn| frame(PRIORITY, 0, 2 * turn + 1, &[0, 0, 0, 0, 16])),
    ("unknown frames", |_| frame(200, 255, 0, &[7; 1000])),
];

#[test]
fn a_good_client_is_answered_during_every_flood_and_neither_memory_nor_log_grows() {
    let scene = Scene::new(&["WORKER_THREADS=1"]);
    for (name, next) in FLOODS {
        for reads in [true, false] {
            let mut connection = open(scene.tollgate.grpc_port, &[]);
            let reading = reads.then(|| {
                let mut reader = connection.try_clone().unwrap();
                std::thread::spawn(move || while reader.read(&mut [0; 1 << 16]).is_ok_and(|size| size > 0) {})
            });
            flood(&mut connection, next, 4 << 20);
            scene.check(&format!("{name}, of a client that {}", if reads { "reads" } else { "does not read" }));
            let _ = connection.shutdown(Shutdown::Both);
            reading.into_iter().for_each(|reading| reading.join().unwrap());
        }
    }
    scene.end();
}

/// Returns the message's length from its prefix, plus the prefix.
fn message_length(message: &[u8]) -> usize {
    5 + u32::from_be_bytes(message[1..5].try_into().unwrap()) as usize
}

/// Opens so many calls on a connection, each with these headers, this message and its flags, and this behind it. Waits
/// until the service has read all that, or closes.
fn open_calls(port: u16, calls: u32, headers: &[u8], (flags, message): (u8, &[u8]), behind: &[u8]) -> TcpStream {
    let mut connection = open(port, &[]);
    connection.set_write_timeout(Some(SOON)).unwrap();
    for call in 0..calls {
        let stream = 2 * call + 1;
        let begun = frame(HEADERS, END_HEADERS, stream, headers);
        // The service may close the connection.
        if connection.write_all(&[&begun, &frame(DATA, flags, stream, message), behind].concat()).is_err() {
            break;
        }
    }
    // The server rejects messages that do not fit, and may then close the connection.
    let _ = is_read(&mut connection);
    connection
}

#[test]
fn a_thousand_open_calls_on_each_of_ten_connections_take_less_than_64_mb() {
    // The prefix of a message of 64 KiB, and this many bytes of it.
    let half = |bytes| [&[0, 0, 1, 0, 0][..], &vec![7; bytes]].concat();
    // Padding after a call fills the buffer in which it was read; the call must not keep that buffer.
    let padding = frame(200, 0, 0, &[0; 16_000]);
    let rate_limit = call(RATE_LIMIT);
    let many_headers = [rate_limit.clone(), b"\0\x01a\x01a".repeat(450)].concat();
    let long_headers = [rate_limit.clone(), [&b"\0\x01a\x7e"[..], &[b'a'; 126]].concat().repeat(90)].concat();
    for (what, headers, message, behind) in [
        ("nothing but a prefix", &rate_limit, &half(0), &[][..]),
        ("something in a full buffer", &rate_limit, &half(100), &padding),
        ("a tenth", &rate_limit, &half(6_000), &[]),
        ("a quarter", &rate_limit, &half(16_000), &[]),
        ("many headers", &many_headers, &half(0), &[]),
        ("long headers", &long_headers, &half(0), &[]),
        ("half of a health check", &call("/grpc.health.v1.Health/Check"), &half(6_000), &[]),
        ("a watch of health", &call("/grpc.health.v1.Health/Watch"), &vec![0; 5], &[]),
        ("reflection", &call(REFLECTION), &half(100), &padding),
    ] {
        let flags = if message.len() == message_length(message) { END_STREAM } else { 0 };
        let scene = Scene::new(&["WORKER_THREADS=1"]);
        let connections: Vec<_> =
            (0..10).map(|_| open_calls(scene.tollgate.grpc_port, 1_024, headers, (flags, message), behind)).collect();
        scene.check(what);
        drop(connections);
        scene.end();
    }
}

#[tokio::test]
async fn a_message_that_does_not_come_whole_in_time_ends_its_call() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).await.unwrap();
    let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let (answer, mut message) = client.send_request(post("application/grpc", RATE_LIMIT), false).unwrap();
    message.send_data(vec![0, 0, 0, 0, 9, 1].into(), false).unwrap();
    let answer = tokio::time::timeout(SOON, answer).await.expect("it ends").unwrap();
    assert_eq!(answer.headers()["grpc-status"], (tonic::Code::DeadlineExceeded as i32).to_string().as_str());
}

fn post(content_type: &str, path: &str) -> http::Request<()> {
    let request = http::Request::post(format!("http://localhost{path}"));
    request.header("content-type", content_type).body(()).unwrap()
}

#[tokio::test]
async fn what_is_half_received_has_a_budget_and_gives_it_back() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).await.unwrap();
    let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let half = [&[0, 0, 1, 0, 0][..], &[7; 60_000]].concat();
    for _ in 0..3 {
        // More than four megabytes, and far more in all than one budget.
        let mut calls = Vec::new();
        for _ in 0..100 {
            client = client.ready().await.unwrap();
            let (answer, mut stream) = client.send_request(post("application/grpc", RATE_LIMIT), false).unwrap();
            stream.send_data(half.clone().into(), false).unwrap();
            calls.push((Box::pin(answer), stream));
        }
        let answers = calls.iter_mut().map(|(answer, _)| answer.as_mut());
        let (first, ..) = futures_util::future::select_all(answers).await;
        let exhausted = (tonic::Code::ResourceExhausted as i32).to_string();
        assert_eq!(first.unwrap().headers()["grpc-status"], exhausted.as_str());
        // To let them go resets those that are left.
        drop(calls);
        let whole = request("shop", &[&[("user", &"x".repeat(4_000))]]).encode_to_vec();
        let whole = [&[0], &(whole.len() as u32).to_be_bytes()[..], &whole].concat();
        let (answer, mut stream) = client.send_request(post("application/grpc", RATE_LIMIT), false).unwrap();
        for piece in whole.chunks(100) {
            stream.send_data(piece.to_vec().into(), false).unwrap();
            tokio::task::yield_now().await;
        }
        stream.send_data(Vec::new().into(), true).unwrap();
        let answer = tokio::time::timeout(SOON, answer).await.unwrap().unwrap();
        assert!(answer.headers().get("grpc-status").is_none(), "{answer:?}");
    }
}

/// With 256 rules that match 128 headers and the route each.
#[tokio::test]
async fn the_largest_request_that_envoy_gateway_can_make_is_answered_beside_another() {
    let entries = |rule: usize| -> Vec<(String, String)> {
        let route = "httproute/default/a-route-with-a-name/rule/0/match/0/shop_example_com";
        let headers = (0..128).map(|header| format!("rule-{rule}-match-{header}"));
        let names = [route.to_owned()].into_iter().chain(headers).chain(["user".to_owned()]);
        names.map(|name| (name.clone(), name)).collect()
    };
    let descriptors: Vec<_> = (0..256).map(entries).collect();
    let entries: Vec<Vec<(&str, &str)>> = descriptors
        .iter()
        .map(|entries| entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
        .collect();
    let all: Vec<&[(&str, &str)]> = entries.iter().map(Vec::as_slice).collect();
    let largest = request("shop", &all);
    assert!(largest.encoded_len() > 1024 * 1024, "{} bytes", largest.encoded_len());
    let tollgate = Tollgate::start(RULES, &[]);
    let client = tollgate.client().await;
    let ask = |mut client: RateLimitServiceClient<_>| {
        let request = largest.clone();
        async move { client.should_rate_limit(request).await }
    };
    for _ in 0..3 {
        let (one, other) = tokio::join!(ask(client.clone()), ask(client.clone()));
        assert_eq!([one, other].map(|answer| answer.unwrap().into_inner().statuses.len()), [256, 256]);
    }
}

#[tokio::test]
async fn a_message_is_the_same_however_it_is_cut() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).await.unwrap();
    let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let body = request("shop", &[&[("user", &"x".repeat(300))]]).encode_to_vec();
    let message = [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat();
    for (cut, ends_apart, waits) in [1, 4, 5, 6, 100, message.len()]
        .into_iter()
        .flat_map(|cut| [(cut, false, false), (cut, true, false), (cut, false, true), (cut, true, true)])
    {
        let (answer, mut stream) = client.send_request(post("application/grpc", RATE_LIMIT), false).unwrap();
        let pieces: Vec<_> = message.chunks(cut).collect();
        for (i, piece) in pieces.iter().enumerate() {
            let last = i + 1 == pieces.len();
            stream.send_data(piece.to_vec().into(), last && !ends_apart).unwrap();
            if waits {
                tokio::task::yield_now().await;
            }
        }
        if ends_apart {
            stream.send_data(Vec::new().into(), true).unwrap();
        }
        let answer = tokio::time::timeout(SOON, answer).await.unwrap().unwrap();
        let answer = tokio::time::timeout(SOON, answer.into_body().data()).await.unwrap().expect("an answer").unwrap();
        let code = RateLimitResponse::decode(&answer[5..]).unwrap().overall_code();
        assert_eq!(code, Code::Ok, "{cut} {ends_apart} {waits}");
    }
}

#[tokio::test]
async fn what_is_no_call_of_grpc_is_refused_as_http_says() {
    let tollgate = Tollgate::start(RULES, &[]);
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).await.unwrap();
    let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let get = http::Request::get(format!("http://localhost{RATE_LIMIT}"));
    for (request, status) in [
        (post("application/json", RATE_LIMIT), 415),
        (post("application/grpc-web", "/grpc.health.v1.Health/Check"), 415),
        (get.header("content-type", "application/grpc").body(()).unwrap(), 405),
        (post("application/grpc", "/nowhere"), 200),
    ] {
        let (answer, _) = client.send_request(request, true).unwrap();
        let answer = tokio::time::timeout(SOON, answer).await.unwrap().unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(
            answer.headers().get("grpc-status").map(|code| code.as_bytes()),
            (status == 200).then_some(&b"12"[..])
        );
    }
}

/// A client that does not read answers: it gives them no window.
const NO_WINDOW: &[u8] = &[0, 4, 0, 0, 0, 0];
/// A window of one byte per stream.
const A_BYTE: &[u8] = &[0, 4, 0, 0, 0, 1];

/// The headers of a call that asks for details.
fn call_for_details() -> Vec<u8> {
    let (name, value) = (REQUEST_KEY, "1");
    let header = [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat();
    [call(RATE_LIMIT), header].concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[0], &(body.len() as u32).to_be_bytes()[..], body].concat()
}

#[test]
fn answers_that_nobody_reads_take_less_than_64_mb() {
    // A long name makes a large answer of a small request.
    let rules = RULES.replace("rate_limit: {", &format!("rate_limit: {{name: {}, ", "n".repeat(1_000)));
    let ann: &[(&str, &str)] = &[("user", "ann")];
    let message_of = |descriptors| message(&request("shop", &vec![ann; descriptors]).encode_to_vec());
    let symbol = "envoy.service.ratelimit.v3.RateLimitService";
    // The field 4 of a request for reflection.
    let reflected = message(&[&[0x22, symbol.len() as u8], symbol.as_bytes()].concat());
    for (what, settings, headers, message, calls) in [
        ("large answers", NO_WINDOW, call(RATE_LIMIT), message_of(256), 60),
        ("large answers of which a byte is read", A_BYTE, call(RATE_LIMIT), message_of(256), 60),
        ("details", NO_WINDOW, call_for_details(), message_of(100), 100),
        ("reflection", NO_WINDOW, call(REFLECTION), reflected, 500),
    ] {
        let scene = Scene::with(&rules, &["WORKER_THREADS=1"]);
        let connections: Vec<_> = (0..8)
            .map(|_| {
                let mut connection = open(scene.tollgate.grpc_port, settings);
                for call in 0..calls {
                    let stream = 2 * call + 1;
                    let begun = frame(HEADERS, END_HEADERS, stream, &headers);
                    let sent = [begun, frame(DATA, END_STREAM, stream, &message)].concat();
                    // The service may close the connection.
                    if connection.write_all(&sent).is_err() {
                        break;
                    }
                }
                let _ = is_read(&mut connection);
                connection
            })
            .collect();
        scene.check(what);
        drop(connections);
        scene.end();
    }
}

#[tokio::test]
async fn details_of_a_large_request_are_left_out_and_say_so() {
    let tollgate = Tollgate::start(RULES, &[]);
    let ann: &[(&str, &str)] = &[("user", "ann")];
    let all = tollgate.details(request("shop", &vec![ann; 100])).await;
    assert_eq!((all.descriptors.len(), all.left_out), (100, None));
    let too_many = tollgate.details(request("shop", &vec![ann; 101])).await;
    assert_eq!((too_many.descriptors.len(), too_many.next_passes), (0, Some(true)));
    assert!(too_many.left_out.unwrap().contains("at most 100 descriptors"));
}

#[test]
fn an_answer_that_is_not_read_in_time_ends_and_one_that_is_read_does_not() {
    let tollgate = Tollgate::start(RULES, &[]);
    let body = message(&request("shop", &[&[("user", "ann")]]).encode_to_vec());
    let ask = |settings: &[u8]| {
        let mut connection = open(tollgate.grpc_port, settings);
        let call = [frame(HEADERS, END_HEADERS, 1, &call(RATE_LIMIT)), frame(DATA, END_STREAM, 1, &body)];
        connection.write_all(&call.concat()).unwrap();
        connection
    };
    let mut watch = open(tollgate.grpc_port, &[]);
    let path = call("/grpc.health.v1.Health/Watch");
    watch.write_all(&[frame(HEADERS, END_HEADERS, 1, &path), frame(DATA, END_STREAM, 1, &[0; 5])].concat()).unwrap();
    let (mut unread, mut half_read) = (ask(NO_WINDOW), ask(A_BYTE));
    for connection in [&mut unread, &mut half_read] {
        // The stream is reset, or the connection ends.
        while next_frame(connection).is_some_and(|frame| !matches!(frame.kind, RESET | GOAWAY)) {}
    }
    // A connection of the same age whose responses are read stays open.
    assert!(is_read(&mut watch));
    watch
        .write_all(&[frame(HEADERS, END_HEADERS, 3, &call(RATE_LIMIT)), frame(DATA, END_STREAM, 3, &body)].concat())
        .unwrap();
    let answer = std::iter::from_fn(|| next_frame(&mut watch)).find(|frame| frame.stream == 3);
    assert_eq!(answer.expect("an answer").kind, HEADERS);
}

/// Asks once, and waits for the end of the answer. `None`: the connection is closed.
fn ask_once(connection: &mut TcpStream, stream: u32, user: &str) -> Option<()> {
    let body = message(&request("shop", &[&[("user", user)]]).encode_to_vec());
    let call = [frame(HEADERS, END_HEADERS, stream, &call(RATE_LIMIT)), frame(DATA, END_STREAM, stream, &body)];
    connection.write_all(&call.concat()).ok()?;
    loop {
        let frame = next_frame(connection)?;
        match frame.kind {
            GOAWAY => return None,
            HEADERS if frame.stream == stream && frame.flags & END_STREAM != 0 => return Some(()),
            _ => {}
        }
    }
}

/// A client that waits for its turn is delayed for long: see the rules.
const QUEUE: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: queue, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 1m}}
";

#[test]
fn idle_connections_make_room_for_new_ones_and_those_with_a_call_stay() {
    const MOST: usize = 8;
    let tollgate = Tollgate::start(
        QUEUE,
        &[&format!("GRPC_MAX_CONNECTIONS={MOST}"), "WORKER_THREADS=1", "MAX_DELAYED_REQUESTS=10"],
    );
    let port = tollgate.grpc_port;
    // It stays in the queue during all this.
    let mut busy = open(port, &[]);
    let body = message(&request("shop", &[&[("queue", "x")]]).encode_to_vec());
    for stream in [1, 3] {
        let call = [frame(HEADERS, END_HEADERS, stream, &call(RATE_LIMIT)), frame(DATA, END_STREAM, stream, &body)];
        busy.write_all(&call.concat()).unwrap();
    }
    let mut answered = std::iter::from_fn(|| next_frame(&mut busy)).filter(|frame| frame.kind == HEADERS);
    assert_eq!(answered.next().expect("the first is not delayed").stream, 1);
    assert!(is_read(&mut busy));
    // All others have begun, and some have had a call; none has more to say.
    let mut idle: Vec<_> = (1..MOST).map(|_| open(port, &[])).collect();
    for (number, connection) in idle.iter_mut().enumerate() {
        assert!(is_read(connection));
        if number % 2 == 0 {
            ask_once(connection, 1, "ann").expect("an answer");
        }
    }
    let watch =
        [frame(HEADERS, END_HEADERS, 3, &call("/grpc.health.v1.Health/Watch")), frame(DATA, END_STREAM, 3, &[0; 5])];
    idle[0].write_all(&watch.concat()).unwrap();
    assert!(is_read(&mut idle[0]));
    // The same number of new clients, each of which retries like a proxy.
    let mut clients = Vec::new();
    wait_until("all new clients are served", || {
        let connection = try_open(port, &[]).ok();
        clients.extend(connection.and_then(|mut connection| ask_once(&mut connection, 1, "ben").map(|()| connection)));
        clients.len() == MOST - 1
    });
    for mut gone in idle {
        let mut frames = std::iter::from_fn(|| next_frame(&mut gone));
        assert!(frames.any(|frame| frame.kind == GOAWAY), "it is told to go elsewhere");
        assert!(frames.all(|frame| frame.kind != DATA), "and nothing else");
    }
    assert!(is_read(&mut busy), "it has a call in progress");
    tollgate.must_log("GRPC_MAX_CONNECTIONS is reached: the longest idle connections were closed for new ones");
}

#[test]
fn nothing_but_requests_that_are_being_decided_holds_up_the_end() {
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    let mut tollgate = Tollgate::start(RULES, &["SHUTDOWN_TIMEOUT=1h", "DRAIN_DELAY=0s"]);
    let empty_message = [0; 5];
    let begin = |settings: &[u8], path: &str, flags: u8, message: &[u8]| {
        let mut connection = open(tollgate.grpc_port, settings);
        let frames = [frame(HEADERS, END_HEADERS, 1, &call(path)), frame(DATA, flags, 1, message)];
        connection.write_all(&frames.concat()).unwrap();
        assert!(is_read(&mut connection));
        connection
    };
    let mut http = TcpStream::connect(("127.0.0.1", tollgate.http_port)).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let held = [
        http,
        begin(&[], WATCH, END_STREAM, &empty_message),
        begin(&[], WATCH, 0, &empty_message[..3]),
        begin(&[], REFLECTION, 0, &empty_message),
        begin(&[], RATE_LIMIT, 0, &empty_message[..3]),
        begin(&[], RATE_LIMIT, 0, &empty_message),
        begin(NO_WINDOW, RATE_LIMIT, END_STREAM, &empty_message),
    ];
    let start = std::time::Instant::now();
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(held);
}

/// `make e2e` installs it and runs this.
#[test]
#[ignore = "needs h2spec, which needs Go"]
fn h2spec_is_content() {
    let tollgate = Tollgate::start(RULES, &[]);
    let port = tollgate.grpc_port.to_string();
    let checked = std::process::Command::new("target/tools/bin/h2spec")
        .args(["--host", "127.0.0.1", "--port", &port, "--path", RATE_LIMIT, "--timeout", "10"])
        .output()
        .expect("make e2e installs h2spec");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{}", said.split("Failures:").last().unwrap_or_default());
}
