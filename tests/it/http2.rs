//! The two servers of HTTP/2 side by side (`GRPC_TRANSPORT`): both answer the same bytes in the same way.

use crate::support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;

use fastrand::Rng;
use http::Request;
use hyper::body::Bytes;
use prost::Message as _;
use support::http2::*;
use support::tollgate::{Tollgate, request};
use tollgate::wire::RateLimitResponse;
use tollgate::wire::details::REQUEST_KEY;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
";

const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// How many cases are drawn.
const CASES: u64 = 300;

fn both() -> [Tollgate; 2] {
    ["front", "hyper"].map(|server| Tollgate::start(RULES, &[&format!("GRPC_TRANSPORT={server}"), "WORKER_THREADS=1"]))
}

/// What a client sees of a stream: the kinds of its frames with their ends, its data, and the code of its reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    headers: usize,
    data: Vec<u8>,
    ended: bool,
    reset: Option<u32>,
}

impl Seen {
    /// Leaves out when limits reset: one server is asked a moment later than the other.
    fn leave_out_times(&mut self) {
        if let Some(mut answer) = self.data.get(5..).and_then(|message| RateLimitResponse::decode(message).ok()) {
            answer.statuses.iter_mut().for_each(|status| status.duration_until_reset = None);
            self.data = answer.encode_to_vec();
        }
    }
}

/// What it sees of a connection: its streams, and the code of its GOAWAY.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sight {
    streams: BTreeMap<u32, Seen>,
    end: Option<u32>,
}

/// Sends these bytes in pieces, and sees what comes back.
fn see(port: u16, bytes: &[u8], rng: &mut Rng) -> Sight {
    let mut connection = open(port, &[]);
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rng.usize(1..=rest.len()));
        // The service may have closed the connection.
        let _ = connection.write_all(now);
        rest = later;
    }
    let mut sight = Sight::default();
    // What is answered after the first PING has been answered before the third.
    for turn in 0..3_u8 {
        let _ = connection.write_all(&frame(PING, 0, 0, &[b'p', turn, 0, 0, 0, 0, 0, 0]));
        if !until_pong(&mut connection, turn, &mut sight) {
            break;
        }
    }
    sight
}

/// Takes frames until the answer to this PING. `false`: the connection has ended.
fn until_pong(connection: &mut TcpStream, turn: u8, sight: &mut Sight) -> bool {
    while let Some(Received { kind, flags, stream, payload }) = any_frame(connection) {
        let code = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            PING if flags & ACK != 0 && payload[..2] == [b'p', turn] => return true,
            GOAWAY => sight.end = Some(code(4)),
            HEADERS | DATA | RESET => {
                let seen = sight.streams.entry(stream).or_default();
                match kind {
                    HEADERS => seen.headers += 1,
                    DATA => seen.data.extend(&payload),
                    _ => seen.reset = Some(code(0)),
                }
                seen.ended |= kind != RESET && flags & END_STREAM != 0;
            }
            _ => {}
        }
    }
    sight.end = sight.end.or(Some(u32::MAX));
    false
}

fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8][..], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[0], &(body.len() as u32).to_be_bytes()[..], body].concat()
}

/// The frames of a drawn call, which may be one that no client makes.
fn a_call(stream: u32, user: &str, (rng, given_up): (&mut Rng, &mut Vec<u32>)) -> Vec<u8> {
    let mut headers = match rng.u8(0..10) {
        0 => call(HEALTH),
        1 => call("/nowhere"),
        _ => call(RATE_LIMIT),
    };
    // No name with a capital: to hyper it is an error of the connection. "Malformed requests [...] MUST be treated as a
    // stream error of type PROTOCOL_ERROR" (RFC 9113, section 8.1.1).
    match rng.u8(0..14) {
        0 => headers.extend(literal("connection", "close")),
        2 => headers.extend(literal("te", "gzip")),
        3 => headers.extend(literal("content-length", "3")),
        4 => headers.extend(literal("grpc-timeout", "20S")),
        5 => headers.extend(literal("x-request-id", "a-1")),
        6 => headers.extend(literal(":path", "/second")),
        // Indexed in the table: name and value new, and then again by their index.
        7 => headers.extend([vec![0x40], literal("x-indexed", "1")[1..].to_vec(), vec![0xbe]].concat()),
        _ => {}
    }
    let mut body = message(&request("shop", &[&[("user", user)]]).encode_to_vec());
    // No second message: tonic ignores it. gRPC's list of statuses has UNIMPLEMENTED for "some other number of
    // requests".
    match rng.u8(0..12) {
        0 => body.truncate(rng.usize(0..body.len())),
        1 => body[4] ^= 1,
        2 => body[0] = rng.u8(1..3),
        3 => body.last_mut().into_iter().for_each(|last| *last ^= 0x80),
        _ => {}
    }
    let cut = rng.usize(0..=headers.len());
    let mut frames = match rng.u8(0..8) {
        0 => {
            vec![frame(HEADERS, 0, stream, &headers[..cut]), frame(CONTINUATION, END_HEADERS, stream, &headers[cut..])]
        }
        // Nothing after the end of the stream: to hyper it is an error of the connection. An endpoint that receives it
        // "MUST respond with a stream error of type STREAM_CLOSED" (RFC 9113, section 5.1).
        1 => return frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers),
        2 => vec![frame(HEADERS, END_HEADERS | 8, stream, &[&[3], &headers[..], &[0; 3]].concat())],
        3 => vec![frame(HEADERS, END_HEADERS | 32, stream, &[&[0, 0, 0, 0, 9], &headers[..]].concat())],
        _ => vec![frame(HEADERS, END_HEADERS, stream, &headers)],
    };
    let cut = rng.usize(0..=body.len());
    frames.extend(match rng.u8(0..10) {
        0 => vec![frame(DATA, 0, stream, &body[..cut]), frame(DATA, END_STREAM, stream, &body[cut..])],
        1 => vec![frame(DATA, END_STREAM | 8, stream, &[&[2], &body[..], &[0; 2]].concat())],
        2 => vec![frame(DATA, 0, stream, &body), frame(DATA, END_STREAM, stream, &[])],
        3 => vec![frame(DATA, 0, stream, &body), frame(HEADERS, END_HEADERS | END_STREAM, stream, &literal("a", "b"))],
        4 => {
            given_up.push(stream);
            vec![frame(RESET, 0, stream, &8_u32.to_be_bytes())]
        }
        _ => vec![frame(DATA, END_STREAM, stream, &body)],
    });
    frames.concat()
}

/// A frame between calls.
fn between(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(0..16) {
        0 => frame(PRIORITY, 0, 101, &[0, 0, 0, 3, 7]),
        1 => frame(200, 0, 0, b"unknown"),
        2 => frame(SETTINGS, 0, 0, &[0, 4, 0, 0, rng.u8(..), rng.u8(..)]),
        3 => frame(WINDOW_UPDATE, 0, 0, &rng.u32(1..1_000).to_be_bytes()),
        4 => frame(WINDOW_UPDATE, 0, 1, &rng.u32(1..1_000).to_be_bytes()),
        _ => Vec::new(),
    }
}

#[test]
fn drawn_calls_are_answered_alike() {
    let servers = both();
    let first = std::env::var("TOLLGATE_HTTP2_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut answered = 0;
    for seed in first.map_or(0..CASES, |seed| seed..seed + 1) {
        let mut rng = Rng::with_seed(seed);
        let user = format!("user-{seed}");
        let (mut bytes, mut given_up) = (Vec::new(), Vec::new());
        for call in 0..rng.u32(1..8) {
            bytes.extend(a_call(2 * call + 1, &user, (&mut rng, &mut given_up)));
            bytes.extend(between(&mut rng));
        }
        let sights = servers.each_ref().map(|server| {
            let mut sight = see(server.grpc_port, &bytes, &mut rng.clone());
            // What is sent of a call that the client gives up depends on when it is read.
            sight.streams.retain(|stream, _| !given_up.contains(stream));
            sight.streams.values_mut().for_each(Seen::leave_out_times);
            sight
        });
        assert_eq!(sights[0], sights[1], "seed {seed}: TOLLGATE_HTTP2_SEED={seed} repeats it");
        answered += sights[0].streams.values().filter(|seen| seen.ended && !seen.data.is_empty()).count();
    }
    assert!(first.is_some() || answered > 300, "only {answered} calls had an answer");
}

#[tokio::test]
async fn odd_calls_have_the_same_status() {
    let post = |path: &str| Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
    let body = message(&request("shop", &[&[("user", "ann")]]).encode_to_vec());
    let no_domain = message(&request("", &[&[("user", "ann")]]).encode_to_vec());
    let odd = || {
        [
            (post(RATE_LIMIT), body.clone()),
            (post(RATE_LIMIT), no_domain.clone()),
            (post(RATE_LIMIT), Vec::new()),
            (post(RATE_LIMIT), body[..7].to_vec()),
            (post(RATE_LIMIT), [&[1], &body[1..]].concat()),
            (post(RATE_LIMIT), [&[2], &body[1..]].concat()),
            (post(RATE_LIMIT), message(&[0xff; 9])),
            (post(RATE_LIMIT).header("grpc-encoding", "gzip"), body.clone()),
            (post(RATE_LIMIT).header("grpc-encoding", "identity"), body.clone()),
            (post(RATE_LIMIT).header("grpc-timeout", "0n"), body.clone()),
            (post(RATE_LIMIT).header("grpc-timeout", "soon"), body.clone()),
            (post(RATE_LIMIT).header(REQUEST_KEY, "1"), body.clone()),
            (post(RATE_LIMIT).header("x-long", "a".repeat(20_000)), body.clone()),
            (post("/envoy.service.ratelimit.v3.RateLimitService/Other"), body.clone()),
            (post("/nowhere"), body.clone()),
            (post(HEALTH), message(b"")),
            (post(HEALTH), message(b"\x0a\x07nowhere")),
            (post(HEALTH), Vec::new()),
            (Request::get("http://localhost/"), Vec::new()),
            (Request::post("http://localhost/").header("content-type", "application/json"), Vec::new()),
        ]
    };
    let mut all = Vec::new();
    for server in both() {
        let connection = tokio::net::TcpStream::connect(("127.0.0.1", server.grpc_port)).await.unwrap();
        let (mut client, connection) = h2::client::handshake(connection).await.unwrap();
        tokio::spawn(connection);
        let mut answers = Vec::new();
        for (request, body) in odd() {
            let (answer, mut sending) = client.send_request(request.body(()).unwrap(), false).unwrap();
            // The service may answer before it has the body.
            let _ = sending.send_data(Bytes::from(body), true);
            let answer = answer.await.unwrap();
            let (head, mut body) = answer.into_parts();
            let mut data = Vec::new();
            while let Some(piece) = body.data().await {
                data.extend(piece.unwrap_or_default());
            }
            let trailers = body.trailers().await.unwrap_or_default().unwrap_or_default();
            let field = |name: &str| head.headers.get(name).or(trailers.get(name)).cloned();
            // Times in details differ.
            answers.push((head.status, field("content-type"), field("grpc-status"), data.len()));
        }
        all.push(answers);
    }
    for (at, (front, hyper)) in all[0].iter().zip(&all[1]).enumerate() {
        assert_eq!(front, hyper, "call {at}");
    }
}
