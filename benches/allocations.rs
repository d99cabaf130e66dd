//! The number of allocations per request, in a process with a counting allocator: of a decision with the memory store,
//! and of tonic alone, with a constant answer. `make bench` prints the difference.

#![allow(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::runtime::Builder;
use tollgate::grpc::{Headers, RequestLimits, Service, ServiceOptions};
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
use tonic::{Request, Response, Status};

const RULES: &str = "
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

/// Number of repetitions of each count.
const TIMES: u64 = 1_000;

fn main() {
    println!("decision: {}", allocations(decide()));
    println!("constant: {}", allocations(Constant));
}

/// The service as the server has it, in memory.
fn decide() -> impl RateLimitService {
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

/// The mean over requests of one user.
fn allocations(service: impl RateLimitService) -> f64 {
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut server = RateLimitServiceServer::new(service);
    let entry = rate_limit_descriptor::Entry { key: "user".into(), value: "ann".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 };
    let body = request.encode_to_vec();
    let message = [&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat();
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
                    let response = RateLimitResponse::decode(&data[5..]).unwrap();
                    assert_eq!(response.overall_code(), Code::Ok);
                }
            }
            assert_eq!(frames, 2, "a message and its trailers");
        });
    };
    (0..TIMES).for_each(|_| ask());
    let counted = allocation_counter::measure(|| (0..TIMES).for_each(|_| ask()));
    counted.count_total as f64 / TIMES as f64
}
