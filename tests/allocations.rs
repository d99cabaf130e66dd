//! The number of allocations per decision, which must stay within a budget because each costs as much as finding a
//! rule. And the memory in use, for settings that limit it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin};
use tollgate::engine::descriptor::{self, Descriptor, Request};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::Rules;
use tollgate::grpc::{Headers, RequestLimits, Service, ServiceOptions, Upstream};
use tollgate::limiter::{Limiter, LimiterOptions};
use tollgate::metrics::{Around, Metrics};
use tollgate::observe::Observers;
use tollgate::observe::heavy_hitters::{HeavyHitters, Places, RULE_BYTES, SEATS};
use tollgate::observe::redaction::Values;
use tollgate::sources::files::load::{self, LoadOptions, Sources};
use tollgate::spans::{
    self, Collector, Compression, Decider, Exporting, Propagators, Protocol, Queue, Resource, Sampling, Spans,
};
use tollgate::store::Store as _;
use tollgate::store::denied::{Denials, DeniedCache};
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

/// Returns the service with the memory store, without tonic's part of a call.
fn service() -> Service<MemoryStore> {
    service_with(LimiterOptions::default())
}

fn rules() -> Rules {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(&file, RULES).unwrap();
    load::load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
}

/// The same service with other options.
fn service_with(options: LimiterOptions) -> Service<MemoryStore> {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let limiter = Limiter::new(options, Arc::default(), Arc::<MemoryStore>::default(), Arc::clone(&metrics));
    limiter.put_in_force(rules());
    let options = ServiceOptions {
        limits: RequestLimits { descriptors: 10, entries: 10, key_bytes: 100, value_bytes: 100 },
        headers: Headers::Off,
        decided_by_header: None,
        dynamic_metadata: false,
        upstream: Upstream::default(),
        store_timeout: Duration::from_secs(1),
        request_ids: false,
    };
    Service::new(Arc::new(limiter), metrics, options)
}

/// Returns a request with the same path for this many users.
fn request(users: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.into(), value: value.into() };
    let descriptor = |user| RateLimitDescriptor {
        entries: vec![entry("user", format!("user-{user}")), entry("path", "/pay".into())],
        ..RateLimitDescriptor::default()
    };
    let descriptors = (0..users).map(descriptor).collect();
    RateLimitRequest { domain: "shop".into(), descriptors, ..RateLimitRequest::default() }
}

/// Returns the number of allocations from a request's arrival to its answer, after a warm-up.
fn allocations(users: usize) -> u64 {
    allocations_of(service(), users)
}

/// The same of this service.
fn allocations_of(service: Service<MemoryStore>, users: usize) -> u64 {
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
    assert!(five <= 13, "{five} for five: a name for each counter, and a list now and then");
}

/// Creates an exporter for this share of calls, without a collector.
fn spans(share: f64) -> (Spans, Exporting) {
    let resource = Resource { service: "tollgate".into(), instance: None, attributes: Vec::new() };
    let queue = Queue { capacity: 10, batch: 10, delay: Duration::from_secs(3_600) };
    let collector = Collector {
        protocol: Protocol::Http,
        endpoint: "http://127.0.0.1:9".into(),
        headers: HashMap::new(),
        compression: Compression::None,
        timeout: Duration::from_secs(1),
    };
    let propagators = Propagators { trace_context: true, b3: true };
    let sampling = Sampling { decider: Decider::Caller, share, propagators };
    let options = spans::SpanOptions { sampling, resource, collector, handshake: None, queue };
    Exporting::start(options, Arc::new(|_, _| {})).unwrap()
}

#[test]
fn a_call_that_is_not_sampled_allocates_as_often_as_one_without_tracing() {
    let ((none, _exporting), (all, _sending)) = (spans(0.0), spans(1.0));
    assert_eq!(allocations_of(service().traced(none), 1), allocations(1));
    assert!(allocations_of(service().traced(all), 1) > allocations(1), "it is seen where it is");
}

#[test]
fn a_key_that_has_a_count_is_counted_without_asking_the_allocator() {
    let heavy_hitters = Arc::new(HeavyHitters::new(Values::Plain, 0.8));
    let mut observers = Observers::default();
    observers.add(heavy_hitters);
    let options = LimiterOptions { observers, ..LimiterOptions::default() };
    assert_eq!(allocations_of(service_with(options), 1), allocations(1));
}

#[test]
fn the_heaviest_keys_of_a_rule_take_at_most_64_kib_whatever_clients_send() {
    const { assert!(RULE_BYTES == 64 << 10 && SEATS * RULE_BYTES <= 32 << 20) }
    let (rules, options, store) = (rules(), PlanOptions::default(), MemoryStore::default());
    let request = |key: usize| {
        let entry = |key: &str, value: String| descriptor::Entry { key: key.into(), value: value.into() };
        let entries = vec![entry("user", "u".repeat(key % 40)), entry("path", format!("{key:0$}", key % 300))];
        let descriptor = Descriptor { entries, ask: Ask::Take(1 + key as u64 % 7), limit: None };
        Request { domain: "shop".into(), descriptors: vec![descriptor] }
    };
    let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(60), Options::default()).unwrap();
    let verdicts = store.decide(&[check("one for all", limit)]).unwrap();
    let heavy_hitters = HeavyHitters::new(Values::Plain, 0.8);
    let places = Places::new(&rules);
    let record = |key| {
        let request = request(key);
        let plan = Plan::new(&options, &rules, &request, Names::default());
        let decision = plan.conclude(&verdicts);
        heavy_hitters.record(&places, &request, &decision, |_, hits| Some(Around { near: hits, over: hits }));
    };
    // A key that comes a second time is stored with its name.
    let info = allocation_counter::measure(|| (0..200_000).for_each(|turn| record(turn / 2)));
    let taken = usize::try_from(info.bytes_current).unwrap();
    assert!((RULE_BYTES / 2..RULE_BYTES).contains(&taken), "{taken} bytes");
}

#[test]
fn an_idle_counter_takes_at_most_150_bytes_and_a_rule_a_thousand() {
    const COUNTERS: usize = 200_000;
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has_holders()) {
        let limit = Limit::new(*algorithm, 100, Duration::from_secs(3_600), Options::default()).unwrap();
        let store = MemoryStore::default();
        let info = allocation_counter::measure(|| {
            for i in 0..COUNTERS {
                store.decide(&[check(&format!("user-{i}"), limit)]).unwrap();
            }
        });
        assert_eq!(store.len(), COUNTERS);
        let each = usize::try_from(info.bytes_current).unwrap() / COUNTERS;
        assert!(each <= 150, "{algorithm}: {each} bytes");
    }

    const RULES: usize = 10_000;
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let rule = |i| format!("- {{key: user, value: user-{i:07}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}\n");
    let rules: String = (0..RULES).map(rule).collect();
    std::fs::write(&file, format!("domain: shop\ndescriptors:\n{rules}")).unwrap();
    let sources = Sources { paths: vec![file.path().to_owned()] };
    let mut loaded = None;
    let info = allocation_counter::measure(|| {
        loaded = Some(load::load(&sources, &LoadOptions::default()).unwrap().rules);
    });
    let each = usize::try_from(info.bytes_current).unwrap() / RULES;
    assert!(each <= 1_000, "{each} bytes");
}

fn check(name: &str, limit: Limit) -> Check {
    let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
    Check::new(key, limit, Ask::Take(1))
}

/// Measures the memory of the denied cache after this many denials, with keys that grow by `growth` bytes from the
/// first to the last.
fn taken_by_denials(setting: usize, denials: usize, growth: usize) -> usize {
    // The store itself stores nothing: it denies everything.
    let limit = Limit::new(Algorithm::SlidingWindow, 0, Duration::from_secs(60), Options::default()).unwrap();
    let cache = DeniedCache::new(MemoryStore::default(), Arc::new(Denials::new(setting as u64, Box::new(|| {}))));
    let info = allocation_counter::measure(|| {
        for i in 0..denials {
            let name = format!("{i:09}{}", "x".repeat(growth * i / denials));
            let verdicts = cache
                .check(&[check(&name, limit)], tokio::time::Instant::now())
                .now_or_never()
                .expect("memory answers at once")
                .unwrap();
            assert!(!verdicts[0].unwrap().allowed());
        }
    });
    usize::try_from(info.bytes_current).unwrap()
}

#[test]
fn what_is_known_to_be_denied_takes_no_more_than_the_setting_says_and_not_before_it_is_needed() {
    for kib in [512, 1_024, 1_500, 2_048, 3_000, 4_096] {
        let setting = kib * 1_024;
        for growth in [0, 150] {
            let taken = taken_by_denials(setting, setting / 100, growth);
            assert!(taken <= setting, "{taken} bytes of {setting}, names grow by {growth}");
            assert!(growth > 0 || taken > setting / 5 * 2, "{taken} bytes of {setting} only");
        }
    }
    let taken = taken_by_denials(16 << 20, 100, 0);
    assert!(taken < 200_000, "{taken} bytes for a hundred");
}

/// Compiled descriptors need less memory than their text. A tree of all of them would need more than ten times the
/// text.
#[test]
fn to_load_many_rules_takes_a_few_times_the_memory_of_their_text() {
    let rule = |user| {
        format!("- key: user\n  value: user-{user:07}\n  rate_limit:\n    unit: minute\n    requests_per_unit: 100\n")
    };
    let rules: String = (0..20_000).map(rule).collect();
    let flat = format!("domain: shop\ndescriptors:\n{rules}");
    let deeper: String = rules.lines().map(|line| format!("  {line}\n")).collect();
    let nested = format!("domain: shop\ndescriptors:\n- key: tenant\n  descriptors:\n{deeper}");
    for text in [flat, nested] {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, &text).unwrap();
        let sources = Sources { paths: vec![file.path().to_owned()] };
        let taken = allocation_counter::measure(|| {
            assert_eq!(load::load(&sources, &LoadOptions::default()).unwrap().rules.rules().len(), 20_000);
        });
        assert!(taken.bytes_max < 10 * text.len() as u64, "{} of {} bytes", taken.bytes_max, text.len());
    }
}
