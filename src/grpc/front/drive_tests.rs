//! Tests of [`Driver`] with a client at the other end of a pipe.

use std::future::ready;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, timeout};
use tonic::service::Routes;

use super::connection::Bounds;
use super::drive::Driver;
use super::frame::{self, HEAD, flag, kind, setting};
use super::hpack;
use crate::grpc::CallerHeaders;
use crate::grpc::activity::Activity;
use crate::wire::rate_limit_response::DescriptorStatus;
use crate::wire::{RateLimitRequest, RateLimitResponse};

const BOUNDS: Bounds = Bounds { streams: 1_024, keeps_trace: false };
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Serves one end of a pipe, with answers that repeat a status so often. Returns the other end.
fn serve(statuses: usize, (max_message, half_received): (usize, usize)) -> DuplexStream {
    let (client, server) = tokio::io::duplex(1 << 20);
    let answer = move |_: RateLimitRequest, _: CallerHeaders| {
        let status = DescriptorStatus { limit_remaining: 7, ..DescriptorStatus::default() };
        ready(Ok(RateLimitResponse { statuses: vec![status; statuses], ..RateLimitResponse::default() }))
    };
    let mut driver =
        Driver::new(server, (answer, Routes::default()), BOUNDS, (max_message, half_received), Activity::new());
    tokio::spawn(async move { driver.run().await });
    client
}

fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    frame::settings(&mut out, &[(setting::INITIAL_WINDOW_SIZE, 1 << 24)]);
    frame::window_update(&mut out, 0, 1 << 24);
    out
}

fn headers(path: &str, more: &[u8], stream: u32) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in
        [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
    {
        hpack::literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    block.extend(more);
    let mut out = Vec::new();
    frame::begin(&mut out, block.len(), (kind::HEADERS, flag::END_HEADERS), stream);
    out.extend(block);
    out
}

fn call(stream: u32) -> Vec<u8> {
    let mut out = headers(RATE_LIMIT, &[], stream);
    frame::begin(&mut out, 5, (kind::DATA, flag::END_STREAM), stream);
    out.extend([0; 5]);
    out
}

/// Reads frames until `streams` have ended. Returns the number of bytes of data, and the time that it took.
async fn answers(client: &mut DuplexStream, mut streams: usize) -> (usize, Duration) {
    let (start, mut data) = (Instant::now(), 0);
    while streams > 0 {
        let mut bytes = [0; HEAD];
        timeout(Duration::from_secs(600), client.read_exact(&mut bytes)).await.unwrap().unwrap();
        let head = frame::head(&bytes).unwrap();
        client.read_exact(&mut vec![0; head.length]).await.unwrap();
        match head.kind {
            kind::DATA => data += head.length,
            kind::HEADERS if head.has(flag::END_STREAM) => streams -= 1,
            kind::GOAWAY => panic!("the connection ends"),
            _ => {}
        }
    }
    (data, start.elapsed())
}

const ROOMY: (usize, usize) = (1 << 20, 1 << 20);

#[tokio::test(start_paused = true)]
async fn reading_goes_on_when_large_answers_are_sent() {
    let mut client = serve(500, ROOMY);
    let calls: Vec<u8> = (0..1_000).flat_map(|call_| call(2 * call_ + 1)).collect();
    client.write_all(&[settings(), calls].concat()).await.unwrap();
    let (data, took) = answers(&mut client, 1_000).await;
    assert_eq!((data, took), (1_000 * (5 + 500 * 4), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_answer_larger_than_the_output_is_sent_at_once_if_the_client_lets_it_pass() {
    let mut client = serve(100_000, ROOMY);
    client.write_all(&[settings(), call(1), call(3)].concat()).await.unwrap();
    let (data, took) = answers(&mut client, 2).await;
    assert_eq!((data, took), (2 * (5 + 100_000 * 4), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn headers_count_against_the_budget_before_any_message_comes() {
    let mut client = serve(1, (1_000, 100_000));
    let many = b"\0\x01a\x01a".repeat(400);
    let calls: Vec<u8> = (0..10).flat_map(|call| headers("/nowhere", &many, 2 * call + 1)).collect();
    client.write_all(&[settings(), calls].concat()).await.unwrap();
    // Some fifty kilobytes each: eight have no room.
    let (_, took) = answers(&mut client, 8).await;
    assert_eq!(took, Duration::ZERO);
    let (_, took) = answers(&mut client, 2).await;
    assert_eq!(took, Duration::from_secs(10), "the others are late");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_half_a_frame_now_and_then_is_no_client() {
    let mut client = serve(1, ROOMY);
    client.write_all(&settings()).await.unwrap();
    let start = Instant::now();
    let (mut read, mut write) = tokio::io::split(client);
    let trickle = async {
        // A frame that never ends.
        for byte in [0, 16, 0].into_iter().chain(std::iter::repeat(0)) {
            if write.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    };
    tokio::select! {
        () = trickle => {}
        _ = async { while read.read(&mut [0; 100]).await.is_ok_and(|read| read > 0) {} } => {}
    }
    assert!(start.elapsed() <= Duration::from_secs(60 + 60 + 20 + 15), "{:?}", start.elapsed());
}
