//! A service with a single rule, which limits each user, and requests of a million users with Zipf's distribution.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tollgate::engine::rules::Rules;
use tollgate::grpc::{Headers, RequestLimits, Service, ServiceOptions, Upstream};
use tollgate::limiter::{Limiter, LimiterOptions};
use tollgate::metrics::Metrics;
use tollgate::observe::Observing;
use tollgate::observe::decision_log::{DecisionLog, Destination, Options};
use tollgate::observe::heavy_hitters::HeavyHitters;
use tollgate::observe::redaction::Values;
use tollgate::sources::files::load::{self, LoadOptions, Sources};
use tollgate::store::memory::MemoryStore;
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};

use super::Told;

const RULES: &str = "
domain: bench
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000000}}
";

/// Number of users, and of requests.
const USERS: usize = 1_000_000;
const REQUESTS: usize = 1 << 17;

/// Starts a service with the memory store; requests within the limit are not logged.
pub fn service(told: Told) -> Service<MemoryStore> {
    let decision_log = matches!(told, Told::DecisionLog).then(|| {
        let options = Options {
            destination: Destination::Stdout,
            sample: 0.0,
            values: Values::Plain,
            lines_per_second: NonZeroU32::MIN,
        };
        Arc::new(DecisionLog::start(options, "bench".to_owned(), Arc::new(|_| {})).expect("the system gives a thread"))
    });
    let heavy_hitters = matches!(told, Told::HeaviestKeys).then(|| Arc::new(HeavyHitters::new(Values::Plain, 0.8)));
    let observing = Observing { heavy_hitters, decision_log, ..Observing::default() };
    let options = LimiterOptions { observers: observing.observers(), ..LimiterOptions::default() };
    let metrics = Arc::new(Metrics::new(0.8).expect("every metric has a name of its own"));
    let limiter = Limiter::new(options, Arc::default(), Arc::<MemoryStore>::default(), Arc::clone(&metrics));
    limiter.put_in_force(rules());
    let options = ServiceOptions {
        limits: RequestLimits { descriptors: 10, entries: 10, key_bytes: 100, value_bytes: 100 },
        headers: Headers::Off,
        decided_by_header: None,
        dynamic_metadata: false,
        upstream: Upstream::default(),
        store_timeout: Duration::from_secs(1),
        request_ids: matches!(told, Told::DecisionLog),
    };
    Service::new(Arc::new(limiter), metrics, options)
}

fn rules() -> Rules {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("there is a folder for such files");
    std::fs::write(&file, RULES).expect("it has room");
    let sources = Sources { paths: vec![file.path().to_owned()] };
    load::load(&sources, &LoadOptions::default()).expect("these rules are right").rules
}

/// Returns requests of users with random ranks.
pub fn requests() -> Vec<RateLimitRequest> {
    let mut sums = Vec::with_capacity(USERS);
    let mut sum = 0.0;
    for rank in 1..=USERS {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut random = fastrand::Rng::with_seed(1);
    let request = |user: usize| {
        let entry = rate_limit_descriptor::Entry { key: "user".into(), value: format!("user-{user:07}").into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 1 }
    };
    (0..REQUESTS).map(|_| request(sums.partition_point(|until| *until < random.f64() * sum))).collect()
}
