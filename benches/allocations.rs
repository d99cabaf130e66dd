//! The number of allocations per request, in a process with a counting allocator. `make bench` prints:
//!
//! - all of a server's thread, from reading a request to writing its answer, over a connection with one call at a time,
//!   whose headers are constant or new in each call;
//! - those of a decision with the memory store beyond those of tonic with a constant answer, without a connection.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

#[allow(dead_code, reason = "the client of the other benchmarks, which need more of it")]
#[path = "service/http2.rs"]
mod http2;

use std::net::{Ipv4Addr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http2::Connection;
use prost::Message as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tollgate::grpc::{
    self, Activity, ConnectionOptions, Headers, RequestLimits, Server, Service, ServiceOptions, Transport, Upstream,
};
use tollgate::limiter::{Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::sources::files::load::{LoadOptions, Sources, load};
use tollgate::store::memory::MemoryStore;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
    rate_limit_descriptor,
};
use tonic::codegen::{Body, Service as _, http};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

const RULES: &str = "
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

/// Number of repetitions of each count.
const TIMES: u64 = 1_000;
/// A timeout that calls do not reach.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() {
    println!("connection, constant headers: {}", over_a_connection(http2::Headers::Constant));
    println!("connection, new headers: {}", over_a_connection(http2::Headers::New));
    println!("decision: {}", allocations(decide()));
    println!("constant: {}", allocations(Constant));
}

/// The service as the server has it, in memory.
fn decide() -> Service<MemoryStore> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let loaded = load(&Sources { paths: vec![folder.path().to_owned()] }, &LoadOptions::default()).unwrap();
    let (metrics, memory) = (Arc::new(Metrics::new(0.8).unwrap()), Arc::new(MemoryStore::default()));
    let limiter = Limiter::new(LimiterOptions::default(), Arc::clone(&memory), memory, Arc::clone(&metrics));
    limiter.put_in_force(loaded.rules);
    let limits = RequestLimits { descriptors: 100, entries: 100, key_bytes: 4096, value_bytes: 4096 };
    let options = ServiceOptions {
        limits,
        headers: Headers::Off,
        decided_by_header: None,
        dynamic_metadata: false,
        upstream: Upstream::default(),
        store_timeout: Duration::from_secs(1),
        request_ids: false,
    };
    Service::new(Arc::new(limiter), metrics, options)
}

/// An answer of the same shape.
struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit { requests_per_unit: 1_000_000, ..RateLimit::default() }),
            ..DescriptorStatus::default()
        };
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses: vec![status], ..RateLimitResponse::default() }))
    }
}

/// The mean over requests of one user, one after the other, of all that the thread of their server does.
fn over_a_connection(headers: http2::Headers) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = http2::Server::from(listener.local_addr().unwrap().port()).with(headers);
    let (rounds, ended) = mpsc::unbounded_channel();
    // Twice: the first time, buffers grow.
    let (go, starts) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        let mut connection = Connection::open(address, TIMEOUT).unwrap();
        connection.flush().unwrap();
        for () in starts {
            (0..TIMES).for_each(|_| ask(&mut connection));
            rounds.send(()).unwrap();
        }
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let counted = serve(&runtime, &listener, Rounds { go, ended });
    client.join().unwrap();
    counted as f64 / TIMES as f64
}

/// The rounds of the client.
struct Rounds {
    go: std::sync::mpsc::Sender<()>,
    ended: mpsc::UnboundedReceiver<()>,
}

/// Serves a connection, and returns the allocations of the second round.
fn serve(runtime: &Runtime, listener: &TcpListener, mut rounds: Rounds) -> u64 {
    let options = ConnectionOptions {
        max_age: Duration::MAX,
        max_age_grace: Duration::MAX,
        max_message_bytes: 64 * 1024,
        max_concurrent_streams: 1024,
        transport: Transport::default(),
    };
    let server = Server::new(decide(), Routes::default(), options);
    let begun = runtime.block_on(async {
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        grpc::begin(tokio::net::TcpStream::from_std(stream).unwrap()).await.unwrap()
    });
    let mut serving = pin!(server.serve(begun, Activity::new(), std::future::pending()));
    let mut round = || {
        rounds.go.send(()).unwrap();
        runtime.block_on(async {
            tokio::select! {
                () = &mut serving => panic!("the connection has ended"),
                ended = rounds.ended.recv() => ended.unwrap(),
            }
        });
    };
    round();
    allocation_counter::measure(round).count_total
}

/// Asks, and waits for the answer.
fn ask(connection: &mut Connection<()>) {
    connection.call(&message(), ());
    connection.flush().unwrap();
    while connection.waiting() > 0 {
        connection.receive(|(), answer| assert_is_ok(answer), |(), answered| assert!(answered)).unwrap();
    }
}

/// A request of a user, with gRPC's prefix.
fn message() -> Vec<u8> {
    let entry = rate_limit_descriptor::Entry { key: "user".into(), value: "ann".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 };
    let body = request.encode_to_vec();
    [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat()
}

fn assert_is_ok(answer: &[u8]) {
    assert_eq!(RateLimitResponse::decode(&answer[5..]).unwrap().overall_code(), Code::Ok);
}

/// The mean over requests of one user.
fn allocations(service: impl RateLimitService) -> f64 {
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut server = RateLimitServiceServer::new(service);
    let message = message();
    let mut ask = || {
        let request = http::Request::post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .body(axum::body::Body::from(message.clone()))
            .unwrap();
        runtime.block_on(async {
            let mut body = server.call(request).await.unwrap().into_body();
            let mut frames = 0;
            while let Some(frame) =
                std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
            {
                frames += 1;
                if let Ok(data) = frame.unwrap().into_data() {
                    assert_is_ok(&data);
                }
            }
            assert_eq!(frames, 2, "a message and its trailers");
        });
    };
    (0..TIMES).for_each(|_| ask());
    let counted = allocation_counter::measure(|| (0..TIMES).for_each(|_| ask()));
    counted.count_total as f64 / TIMES as f64
}
