//! Tests of [`Driver`] with a client at the other end of a pipe.

use std::future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{FutureExt as _, poll};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls};
use tonic::service::Routes;

use super::connection::Bounds;
use super::drive::{Answer, Driver, READ};
use super::frame::{self, HEAD, flag, kind, setting};
use super::hpack;
use crate::grpc::activity::Activity;
use crate::grpc::{CallerHeaders, Incoming};
use crate::metrics::Metrics;
use crate::wire::rate_limit_response::DescriptorStatus;
use crate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

const BOUNDS: Bounds = Bounds { streams: 1_024, keeps_trace: false };
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Serves one end of a pipe, with answers that repeat a status so often. Returns the other end.
fn serve(statuses: usize, bytes: (usize, usize)) -> DuplexStream {
    serve_by(bytes, move |_| {
        let status = DescriptorStatus { limit_remaining: 7, ..DescriptorStatus::default() };
        RateLimitResponse { statuses: vec![status; statuses], ..RateLimitResponse::default() }
    })
}

/// The same with these answers.
fn serve_by(
    bytes: (usize, usize),
    decide: impl Fn(&CallerHeaders) -> RateLimitResponse + Send + 'static,
) -> DuplexStream {
    let (client, mut driver) = connected(bytes, decide);
    tokio::spawn(async move { driver.run().await });
    client
}

/// Returns both ends of a pipe, to serve one of them with these answers.
fn connected(
    bytes: (usize, usize),
    decide: impl Fn(&CallerHeaders) -> RateLimitResponse + Send + 'static,
) -> (DuplexStream, Driver<DuplexStream, impl Answer>) {
    let (client, server) = tokio::io::duplex(1 << 20);
    (client, driver(server, bytes, decide))
}

/// Returns what serves a connection with these answers.
fn driver<IO: AsyncRead + AsyncWrite + Incoming + Unpin>(
    server: IO,
    (max_message, half_received): (usize, usize),
    decide: impl Fn(&CallerHeaders) -> RateLimitResponse + Send + 'static,
) -> Driver<IO, impl Answer> {
    let answer = move |_: RateLimitRequest, headers: CallerHeaders| future::ready(Ok(decide(&headers)));
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let parts = (answer, Routes::default());
    Driver::new(server, parts, BOUNDS, (max_message, half_received), (Activity::new(), metrics))
}

/// A pipe, of which nobody knows what waits in it.
impl Incoming for DuplexStream {
    fn waiting(&self) -> u64 {
        0
    }

    fn wake_at_input(&self, _: &mut Context<'_>) {}
}

/// A connection with as much waiting as was sent and is not read, and the most that is read at once.
struct Counted(DuplexStream, Arc<AtomicUsize>, usize);

impl Incoming for Counted {
    fn waiting(&self) -> u64 {
        self.1.load(Ordering::Relaxed) as u64
    }

    fn wake_at_input(&self, _: &mut Context<'_>) {}
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = buffer.remaining().min(self.2);
        let mut part = buffer.take(most);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.1.fetch_sub(read, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
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

/// A call that takes a hit, or gives one back, with a message for it.
fn asking(timeout: &str, stream: u32, is_negative_hits: bool) -> Vec<u8> {
    let descriptors = vec![RateLimitDescriptor { is_negative_hits, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { descriptors, ..RateLimitRequest::default() }.encode_to_vec();
    let mut out = headers(RATE_LIMIT, &timeout_header(timeout), stream);
    frame::begin(&mut out, 5 + message.len(), (kind::DATA, flag::END_STREAM), stream);
    out.push(0);
    out.extend((message.len() as u32).to_be_bytes());
    out.extend(message);
    out
}

fn timeout_header(timeout: &str) -> Vec<u8> {
    let mut header = Vec::new();
    if !timeout.is_empty() {
        hpack::literal(&mut header, b"grpc-timeout", timeout.as_bytes());
    }
    header
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_for_too_long_is_refused_and_only_then() {
    let (told, timeouts) = std::sync::mpsc::channel();
    let mut client = serve_by(ROOMY, move |headers| {
        told.send(headers.timeout).unwrap();
        RateLimitResponse { overall_code: 1, ..RateLimitResponse::default() }
    });
    client.write_all(&settings()).await.unwrap();
    // The timeout, whether it is a refund, how long the connection is silent before, how long the call waits once it is
    // reported, and the timeout that it is decided with, if it is.
    let ms = Duration::from_millis;
    let scenes = [
        ("20m", false, ms(0), ms(0), Some(Some(ms(20)))),
        ("20m", false, ms(0), ms(14), Some(Some(ms(6)))),
        ("20m", false, ms(0), ms(15), None),
        ("20m", true, ms(0), ms(14), Some(Some(ms(6)))),
        ("20m", true, ms(0), ms(15), Some(None)),
        ("20m", true, ms(0), ms(100), Some(None)),
        ("100m", false, ms(0), ms(15), Some(Some(ms(85)))),
        ("", false, ms(0), ms(1_000), Some(None)),
        ("20m", false, ms(1_000), ms(1), Some(Some(ms(19)))),
        ("0n", false, ms(0), ms(0), None),
    ];
    for (stream, (timeout, is_refund, silent, waits, expected)) in (1..).step_by(2).zip(scenes) {
        tokio::task::yield_now().await;
        // Other tasks of the thread are busy: nothing sleeps.
        tokio::time::advance(silent).await;
        client.write_all(&asking(timeout, stream, is_refund)).await.unwrap();
        tokio::time::advance(waits).await;
        let (data, _) = answers(&mut client, 1).await;
        let decided = timeouts.try_recv().ok();
        assert_eq!((decided, data > 0), (expected, expected.is_some()), "{timeout} {is_refund} {silent:?} {waits:?}");
    }
}

#[tokio::test]
async fn calls_over_tcp_have_waited_since_the_system_reported_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    assert_waiting_counts(client, server).await;
}

#[tokio::test]
async fn calls_over_a_unix_socket_have_waited_since_the_system_reported_them() {
    let (client, server) = UnixStream::pair().unwrap();
    assert_waiting_counts(client, server).await;
}

#[tokio::test]
async fn calls_over_tls_have_waited_since_the_system_reported_them() {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(server.with_single_cert(vec![made.cert.der().clone()], key).unwrap()));
    let client = rustls::ClientConfig::builder_with_provider(provider);
    let client = client.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let connector = TlsConnector::from(Arc::new(client.with_no_client_auth()));
    let (near, far) = UnixStream::pair().unwrap();
    let (client, server) = tokio::join!(connector.connect("localhost".try_into().unwrap(), near), acceptor.accept(far));
    assert_waiting_counts(client.unwrap(), server.unwrap()).await;
}

/// Has a connection wait while its thread does other things, and asks once more when it does not.
async fn assert_waiting_counts(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: impl AsyncRead + AsyncWrite + Incoming + Unpin,
) {
    const TIMEOUT: Duration = Duration::from_millis(80);
    let (told, timeouts) = std::sync::mpsc::channel();
    let mut driver = driver(server, ROOMY, move |headers| {
        told.send(headers.timeout).unwrap();
        RateLimitResponse::default()
    });
    let mut driven = pin!(driver.run());
    client.write_all(&settings()).await.unwrap();
    client.flush().await.unwrap();
    while poll!(driven.as_mut()).is_pending() && poll!(pin!(client.read_exact(&mut [0; HEAD]))).is_pending() {
        tokio::task::yield_now().await;
    }
    client.write_all(&asking("80m", 1, false)).await.unwrap();
    client.flush().await.unwrap();
    // The system reports it, and nobody reads it.
    tokio::time::sleep(Duration::from_millis(5)).await;
    std::thread::sleep(TIMEOUT);
    assert!(poll!(driven.as_mut()).is_pending());
    assert!(timeouts.try_recv().is_err(), "it is refused");
    client.write_all(&asking("80S", 3, false)).await.unwrap();
    client.flush().await.unwrap();
    let decided = async {
        loop {
            assert!(poll!(driven.as_mut()).is_pending());
            if let Ok(timeout) = timeouts.try_recv() {
                return timeout.unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let left = timeout(Duration::from_secs(60), decided).await.expect("it is decided");
    assert!(left > Duration::from_secs(10), "{left:?}");
}

/// The time is the client's own, and not that of its calls.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_not_read_its_answers_for_a_while_is_refused_nothing() {
    const CALLS: usize = 60;
    let (told, timeouts) = std::sync::mpsc::channel();
    // More in all than the pipe and the output hold.
    let status = DescriptorStatus { limit_remaining: 7, ..DescriptorStatus::default() };
    let (mut client, mut driver) = connected(ROOMY, move |headers| {
        told.send(headers.timeout).unwrap();
        RateLimitResponse { statuses: vec![status.clone(); 5_000], ..RateLimitResponse::default() }
    });
    let mut driven = pin!(driver.run());
    assert!(poll!(driven.as_mut()).is_pending());
    let calls: Vec<u8> = (0..CALLS as u32).flat_map(|place| asking("20m", 2 * place + 1, false)).collect();
    client.write_all(&[settings(), calls].concat()).await.unwrap();
    assert!(poll!(driven.as_mut()).is_pending());
    assert_eq!(timeouts.try_iter().count(), CALLS);
    tokio::time::advance(Duration::from_millis(30)).await;
    client.write_all(&asking("20m", 2 * CALLS as u32 + 1, false)).await.unwrap();
    assert!(poll!(driven.as_mut()).is_pending());
    assert_eq!(timeouts.try_iter().count(), 0, "nothing is read before the client reads");
    let mut read = vec![0; 1 << 20];
    for _ in 0..10 {
        assert!(matches!(poll!(pin!(client.read(&mut read))), Poll::Ready(Ok(1..))));
        assert!(poll!(driven.as_mut()).is_pending());
        if let Ok(timeout) = timeouts.try_recv() {
            return assert_eq!(timeout, Some(Duration::from_millis(20)));
        }
    }
    panic!("the last call is not decided");
}

/// Has a client always some readings more on its way than are read, each reading a millisecond. Returns how long each
/// of the calls has waited as far as the server knows, and `None` for those that it refuses.
async fn with_more_on_its_way(readings: usize) -> Vec<Option<Duration>> {
    const IN_A_READING: usize = 122;
    const TIMEOUT: Duration = Duration::from_millis(20);
    const TIMES: usize = 100;
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let waiting = Arc::new(AtomicUsize::new(0));
    let (told, timeouts) = std::sync::mpsc::channel();
    let server = Counted(server, Arc::clone(&waiting), usize::MAX);
    let mut driver = driver(server, ROOMY, move |headers| {
        told.send(headers.timeout).unwrap();
        RateLimitResponse::default()
    });
    let mut driven = pin!(driver.run());
    assert!(poll!(driven.as_mut()).is_pending(), "it waits to be told of the first");
    let mut streams = (1..).step_by(2);
    let mut more = |readings: usize| -> Vec<u8> {
        streams.by_ref().take(readings * IN_A_READING).flat_map(|stream| asking("20m", stream, false)).collect()
    };
    let mut bytes = [settings(), more(readings)].concat();
    let mut waits = Vec::new();
    for _ in 0..TIMES {
        bytes.extend(more(1));
        waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        client.write_all(&std::mem::take(&mut bytes)).await.unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(poll!(driven.as_mut()).is_pending());
        let decided: Vec<_> = timeouts.try_iter().map(|timeout| Some(TIMEOUT - timeout.unwrap())).collect();
        waits.extend(if decided.is_empty() { vec![None] } else { decided });
        let mut read = vec![0; 1 << 20];
        let _ = poll!(pin!(client.read(&mut read)));
    }
    waits
}

#[tokio::test(start_paused = true)]
async fn calls_behind_others_have_waited_since_they_were_there() {
    let waits = with_more_on_its_way(5).await;
    let (first, later) = waits.split_at(1_000);
    assert!(first[0] == Some(Duration::from_millis(1)), "{:?}", first[0]);
    let ms = |wait: &Option<Duration>| wait.map(|wait| wait.as_millis());
    assert!(later.iter().map(ms).all(|wait| matches!(wait, Some(4..=8))), "{:?}", later.iter().map(ms).max());
}

#[tokio::test(start_paused = true)]
async fn calls_behind_too_many_others_are_refused() {
    let waits = with_more_on_its_way(40).await;
    let decided = waits.iter().position(Option::is_none).unwrap();
    assert_eq!(waits[decided - 1], Some(Duration::from_millis(14)));
    assert!(waits[decided..].iter().all(Option::is_none), "the queue is never shorter");
}

/// Sends calls of 20 ms in one piece, of which each takes half a millisecond, and reads so much at once. Returns how
/// many were decided in each poll.
async fn slowly_decided(calls: u32, at_once: usize) -> Vec<usize> {
    const TIME: Duration = Duration::from_micros(500);
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let (waiting, decided) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&decided);
    let mut driver = driver(Counted(server, Arc::clone(&waiting), at_once), ROOMY, move |_| {
        assert_eq!(tokio::time::advance(TIME).now_or_never(), None, "it goes on elsewhere");
        counted.fetch_add(1, Ordering::Relaxed);
        RateLimitResponse::default()
    });
    let mut driven = pin!(driver.run());
    assert!(poll!(driven.as_mut()).is_pending());
    let bytes: Vec<u8> = (0..calls).flat_map(|call| asking("20m", 2 * call + 1, false)).collect();
    let bytes = [settings(), bytes].concat();
    waiting.fetch_add(bytes.len(), Ordering::Relaxed);
    client.write_all(&bytes).await.unwrap();
    let mut polls = Vec::new();
    for _ in 0..calls {
        assert!(poll!(driven.as_mut()).is_pending());
        polls.extend(Some(decided.swap(0, Ordering::Relaxed)).filter(|decided| *decided > 0));
    }
    let (data, _) = answers(&mut client, calls as usize).await;
    assert_eq!(data, polls.iter().sum::<usize>() * 5, "all others are refused");
    polls
}

#[tokio::test(start_paused = true)]
async fn what_a_poll_leaves_undecided_waits_on() {
    // All are read in the first poll.
    let polls = slowly_decided(100, usize::MAX).await;
    // The clock is read at each eighth.
    assert_eq!(polls, [8, 8, 8, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_poll_ends_however_little_each_read_brings() {
    let polls = slowly_decided(24, 200).await;
    assert!(polls.iter().all(|decided| *decided <= 8), "{polls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_may_write_everything_before_it_reads() {
    const CALLS: u32 = 200;
    // It holds few answers.
    let (mut client, server) = tokio::io::duplex(256);
    let mut driver = driver(server, ROOMY, |_| RateLimitResponse::default());
    tokio::spawn(async move { driver.run().await });
    let calls: Vec<u8> = (0..CALLS).flat_map(|place| call(2 * place + 1)).collect();
    let written = Instant::now();
    client.write_all(&[settings(), calls].concat()).await.unwrap();
    assert_eq!(written.elapsed(), Duration::ZERO);
    answers(&mut client, CALLS as usize).await;
}

/// A burst of twice as much as is read at once.
#[tokio::test(start_paused = true)]
async fn the_rest_of_a_burst_is_as_old_as_the_burst() {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let waiting = Arc::new(AtomicUsize::new(0));
    let (told, timeouts) = std::sync::mpsc::channel();
    let mut driver = driver(Counted(server, Arc::clone(&waiting), usize::MAX), ROOMY, move |headers| {
        told.send(headers.timeout).unwrap();
        RateLimitResponse::default()
    });
    let mut driven = pin!(driver.run());
    assert!(poll!(driven.as_mut()).is_pending());
    let calls: Vec<u8> = (0..200).flat_map(|call| asking("20m", 2 * call + 1, false)).collect();
    let bytes = [settings(), calls].concat();
    assert!((READ + 4_000..2 * READ).contains(&bytes.len()), "{}", bytes.len());
    waiting.fetch_add(bytes.len(), Ordering::Relaxed);
    client.write_all(&bytes).await.unwrap();
    assert!(poll!(driven.as_mut()).is_pending());
    assert!(timeouts.try_iter().count() > 100, "the first are decided at once");
    tokio::time::advance(Duration::from_millis(15)).await;
    assert!(poll!(driven.as_mut()).is_pending());
    assert_eq!(timeouts.try_iter().count(), 0, "the others are refused");
}

#[tokio::test]
async fn what_comes_while_others_are_left_undecided_waits_since_it_was_reported() {
    const FIRST: u32 = 20;
    let (mut client, server) = UnixStream::pair().unwrap();
    let (told, timeouts) = std::sync::mpsc::channel();
    let mut driver = driver(server, ROOMY, move |headers| {
        std::thread::sleep(Duration::from_millis(1));
        told.send(headers.timeout).unwrap();
        RateLimitResponse::default()
    });
    let mut driven = pin!(driver.run());
    let first: Vec<u8> = (0..FIRST).flat_map(|call| asking("80S", 2 * call + 1, false)).collect();
    client.write_all(&[settings(), first].concat()).await.unwrap();
    let mut decided = 0;
    while decided == 0 {
        tokio::task::yield_now().await;
        assert!(poll!(driven.as_mut()).is_pending());
        decided = timeouts.try_iter().count() as u32;
    }
    assert!(decided < FIRST, "some are left");
    client.write_all(&asking("80m", 2 * FIRST + 1, false)).await.unwrap();
    // The system reports it, and nobody reads it.
    tokio::time::sleep(Duration::from_millis(5)).await;
    std::thread::sleep(Duration::from_millis(80));
    for _ in 0..FIRST {
        assert!(poll!(driven.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    let timeouts: Vec<_> = timeouts.try_iter().collect();
    assert!(timeouts.iter().all(|timeout| *timeout > Some(Duration::from_secs(1))), "the last one is refused");
    assert_eq!(decided + timeouts.len() as u32, FIRST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_sent_while_others_that_came_with_them_are_still_decided() {
    const CALLS: usize = 100;
    let (received, was_received) = std::sync::mpsc::channel();
    let (decided, was_received) = (AtomicUsize::new(0), Mutex::new(was_received));
    let mut client = serve_by(ROOMY, move |_| {
        std::thread::sleep(Duration::from_micros(100));
        if decided.fetch_add(1, Ordering::Relaxed) + 1 == CALLS {
            was_received.lock().recv_timeout(Duration::from_secs(60)).unwrap();
        }
        RateLimitResponse::default()
    });
    let calls: Vec<u8> = (0..CALLS as u32).flat_map(|place| call(2 * place + 1)).collect();
    client.write_all(&[settings(), calls].concat()).await.unwrap();
    answers(&mut client, 1).await;
    received.send(()).unwrap();
    answers(&mut client, CALLS - 1).await;
}

/// Starts a connection that leaves after its first answer, and reads all that the client is sent.
async fn left() -> (DuplexStream, tokio::task::JoinHandle<Duration>) {
    let (mut client, mut driver) = connected(ROOMY, |_| RateLimitResponse::default());
    let mut knows_it = Vec::new();
    frame::ping(&mut knows_it, flag::ACK, b"tollgate");
    client.write_all(&[settings(), call(1), knows_it].concat()).await.unwrap();
    driver.leave();
    let start = Instant::now();
    let driving = tokio::spawn(async move {
        driver.run().await;
        start.elapsed()
    });
    let mut sent = Vec::new();
    client.read_to_end(&mut sent).await.unwrap();
    assert!(sent.windows(11).any(|part| part == b"grpc-status"), "{sent:?}");
    (client, driving)
}

#[tokio::test(start_paused = true)]
async fn what_a_client_still_sends_to_a_connection_that_ends_is_read() {
    let (mut client, driving) = left().await;
    for stream in [3, 5, 7] {
        client.write_all(&call(stream)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!driving.is_finished(), "its answers may be lost by a reset");
    drop(client);
    assert!(driving.await.unwrap() < Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_closes_is_left_after_a_turn() {
    let (mut client, driving) = left().await;
    while client.write_all(&call(3)).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(driving.await.unwrap().as_secs(), 5);
}
