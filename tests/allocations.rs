//! How often a decision asks the allocator: by a budget, because every time costs as much as finding a rule does.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tollgate::grpc::{Headers, RequestLimits, Service, ServiceOptions};
use tollgate::limiter::{Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::rules::load::{self, LoadOptions, Sources};
use tollgate::store::memory::MemoryStore;
use tollgate::wire::rate_limit_descriptor::Entry;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitService};

const RULES: &str = "
domain: shop
descriptors:
- key: user
  descriptors:
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1000000}}
";

/// The service on the memory store, as far as it is ours: tonic has read the request already, and will send the answer.
fn service() -> Service<MemoryStore> {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(&rules, RULES).unwrap();
    let rules = load::load(&Sources { paths: vec![rules.path().to_owned()] }, &LoadOptions::default()).unwrap().rules;
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let limiter = Limiter::new(LimiterOptions::default(), Arc::default(), Arc::default(), Arc::clone(&metrics));
    limiter.put_in_force(rules);
    let options = ServiceOptions {
        limits: RequestLimits { descriptors: 10, entries: 10, key_bytes: 100, value_bytes: 100 },
        headers: Headers::Off,
        store_timeout: Duration::from_secs(1),
    };
    Service::new(Arc::new(limiter), metrics, options)
}

/// One that asks about the same path for so many users.
fn request(users: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.into(), value };
    let descriptor = |user| RateLimitDescriptor {
        entries: vec![entry("user", format!("user-{user}")), entry("path", "/pay".into())],
        ..RateLimitDescriptor::default()
    };
    let descriptors = (0..users).map(descriptor).collect();
    RateLimitRequest { domain: "shop".into(), descriptors, ..RateLimitRequest::default() }
}

/// How often the allocator is asked from a request's arrival to its answer, once everything that lasts is there.
fn allocations(users: usize) -> u64 {
    let service = service();
    let mut counted = 0;
    for _ in 0..100 {
        let call = tonic::Request::new(request(users));
        let mut answer = None;
        let info = allocation_counter::measure(|| answer = service.should_rate_limit(call).now_or_never());
        let answer = answer.expect("memory answers at once").unwrap().into_inner();
        assert_eq!((answer.overall_code(), answer.statuses.len()), (Code::Ok, users));
        counted = info.count_total;
    }
    // tonic's own: whatever the answer, the call is a future in a box, and the statuses are a list.
    counted - 2
}

#[test]
fn a_decision_allocates_at_most_four_times() {
    let (one, five) = (allocations(1), allocations(5));
    assert!(one <= 4, "{one} for one descriptor");
    assert!(five <= 12, "{five} for five: a name for each counter, and a list now and then");
}
