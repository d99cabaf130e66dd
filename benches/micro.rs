//! The parts of a decision, each for itself: `cargo bench --bench micro`, or with a part of a name at the end.

#[path = "service/headers.rs"]
mod headers;
#[path = "service/rules.rs"]
mod rules;
#[path = "service/users.rs"]
mod users;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use divan::{AllocProfiler, Bencher};
use futures_util::FutureExt as _;
use prost::Message as _;
use tollgate::engine::adjustment::{Adjustment, Content, Effect, Id, InForce, Target};
use tollgate::engine::algorithm::{Algorithm, Ask, Caller, Limit, Options};
use tollgate::engine::check::{Check, Key, Origin};
use tollgate::engine::descriptor::{Descriptor, Entry, Request, Role};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::{DescriptorConfig, RuleConfig};
use tollgate::evaluate::{RuleSet, Run, RunOptions};
use tollgate::observe::sample::{Sampling, Share, Shared};
use tollgate::replay::Event;
use tollgate::store::memory::MemoryStore;
use tollgate::store::redis::script::{self, Group};
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, rate_limit_descriptor};

use rules::entries;

/// Counts allocations as well as time.
#[global_allocator]
static ALLOCATOR: AllocProfiler<mimalloc::MiMalloc> = AllocProfiler::new(mimalloc::MiMalloc);

fn main() {
    // A sample large enough that the timer does not matter.
    divan::Divan::default().sample_size(100).config_with_args().main();
}

fn limit(algorithm: Algorithm) -> Limit {
    let made = Limit::new(algorithm, 10_000, Duration::from_secs(60), Options::default());
    made.expect("every algorithm has such a limit")
}

fn check(user: usize, limit: Limit) -> Check {
    let key = Key::new("", "bench", &entries(user), |_| None, &limit, Origin::Rule);
    Check { descriptor: user, ..Check::new(key, limit, Ask::Take(1)) }
}

/// Looks up one request among this many rules on one level.
#[divan::bench(args = [10, 10_000, 1_000_000])]
fn matching(bencher: Bencher<'_, '_>, rules: usize) {
    let rules = rules::of_one_level(rules);
    let entries = entries(7);
    bencher.bench(|| {
        let domain = rules.domain(black_box("bench"))?;
        rules.find(domain, black_box(&entries)).map(|rule| rule.limits.len())
    });
}

/// Looks up one request of 128 headers among this many rules of Envoy Gateway, with 128 headers each.
#[divan::bench(args = [1, 16, 256])]
fn matching_headers(bencher: Bencher<'_, '_>, rules: usize) {
    let entries = headers::entries(rules / 2);
    let rules = headers::of_rules(rules);
    bencher.bench(|| {
        let domain = rules.domain(black_box("bench"))?;
        rules.find(domain, black_box(&entries)).map(|rule| rule.limits.len())
    });
}

/// Plans one request with this many adjustments in force, each for another descriptor.
#[divan::bench(args = [0, 1, 1_000])]
fn plan(bencher: Bencher<'_, '_>, adjustments: usize) {
    let (rules, options) = (rules::of_one_level(10), PlanOptions::default());
    let adjustment = |place: usize| {
        let target = Target::descriptor("bench", &entries(place + 100));
        let content = Content { target, effect: Effect::Pass, hours: None, who: "ann".into(), why: "a bench".into() };
        Arc::new(Adjustment { id: Id::of_number(place as u64), content, since_ms: 0, until_ms: 1 })
    };
    let in_force = InForce::new((0..adjustments).map(adjustment).collect());
    let in_force = Some(&in_force).filter(|in_force| !in_force.is_empty());
    let descriptor = Descriptor { entries: entries(7), ask: Ask::Take(1), limit: None };
    let request = Request { domain: "bench".into(), descriptors: vec![descriptor] };
    bencher.bench(|| {
        let plan = Plan::adjusted(&options, (&rules, in_force), black_box(&request), Names::default());
        plan.asked().len()
    });
}

/// A counter's name, of one entry and of four.
#[divan::bench(args = [1, 4])]
fn key(bencher: Bencher<'_, '_>, levels: usize) {
    let entries: Vec<Entry> = (0..levels).flat_map(entries).collect();
    let limit = limit(Algorithm::SlidingWindow);
    bencher.bench(|| Key::new("", black_box("bench"), black_box(&entries), |_| None, &limit, Origin::Rule));
}

/// Decides on a counter with ten hits, at the next tick of the clock.
#[divan::bench(args = Algorithm::ALL)]
fn decide(bencher: Bencher<'_, '_>, algorithm: &Algorithm) {
    let limit = limit(*algorithm);
    let mut now = 1_700_000_000_000;
    let mut state = None;
    for holder in 0..10 {
        let caller = Caller { holder, ..Caller::default() };
        state = limit.decide(Ask::Take(1), caller, state.as_ref(), now).effect.apply(state.take());
    }
    let caller = Caller { holder: 10, ..Caller::default() };
    bencher.bench_local(|| {
        now += 1;
        limit.decide(black_box(Ask::Take(1)), caller, state.as_ref(), now)
    });
}

/// The observers that record each decision.
#[derive(Clone, Copy, Debug)]
enum Told {
    Nothing,
    HeaviestKeys,
    /// Requests that pass write no line.
    DecisionLog,
}

/// Decides one request with the memory store, from message to response, for a million users with Zipf's distribution.
/// The rest of a call, mainly HTTP/2, costs about four times as much.
#[divan::bench(args = [Told::Nothing, Told::HeaviestKeys, Told::DecisionLog])]
fn service(bencher: Bencher<'_, '_>, told: Told) {
    let service = users::service(told);
    let requests = users::requests();
    let mut turns = requests.iter().cycle();
    let mut answer = || {
        let request = turns.next().expect("it goes round").clone();
        let caller = service.caller(&tonic::codegen::http::HeaderMap::new());
        service.call(request, caller).now_or_never().expect("memory answers at once")
    };
    // Every counter is there before it is measured.
    (0..requests.len()).for_each(|_| drop(answer()));
    bencher.bench_local(answer);
}

/// Selects sampled keys of a request, as the recorder does for every request when it keeps few keys.
#[divan::bench(args = [1, 4])]
fn sampling(bencher: Bencher<'_, '_>, levels: usize) {
    let rules: Shared = Arc::new(rules::of_one_level(10));
    let sampling = Sampling::new(Share::new(0.001), [rules]);
    let entries = (0..levels).flat_map(entries).collect();
    let descriptor = Descriptor { entries, ask: Ask::Take(1), limit: None };
    let request = Request { domain: "bench".into(), descriptors: vec![descriptor] };
    bencher.bench(|| sampling.picks_any(black_box(&request)));
}

/// Decides one request with this many counters in the memory store, among ten thousand.
#[divan::bench(args = [1, 5])]
fn memory_store(bencher: Bencher<'_, '_>, checks: usize) {
    let store = MemoryStore::default();
    let limit = limit(Algorithm::SlidingWindow);
    let all: Vec<Check> = (0..10_000).map(|user| check(user, limit)).collect();
    let mut turns = all.chunks_exact(checks).cycle();
    bencher.bench_local(|| turns.next().map(|checks| store.decide(checks)));
}

/// Replays one request of a log with this many users: the cost of `tollgate replay` without reading the line.
#[divan::bench(args = [10_000, 1_000_000])]
fn replay(bencher: Bencher<'_, '_>, users: usize) {
    let rule = RuleConfig { role: Role::Enforced, metadata: None, limits: vec![rules::limit()] };
    let each_user = rules::entries(0).into_iter().map(|entry| rules::descriptor(entry, Some(rule.clone()), Vec::new()));
    let rules = rules::domain(each_user.map(|descriptor| DescriptorConfig { value: None, ..descriptor }).collect());
    let options = PlanOptions::default();
    let event = |user| {
        let descriptor = Descriptor { entries: entries(user), ask: Ask::Take(1), limit: None };
        Event::new(0, Request { domain: "bench".into(), descriptors: vec![descriptor] })
    };
    let mut events: Vec<Event> = (0..users).map(event).collect();
    let mut run = Run::new(RuleSet::new(&rules, &options), RunOptions::default());
    let mut turn = 0;
    bencher.bench_local(|| {
        let event = &mut events[turn % users];
        event.at_ms = 1_700_000_000_000 + turn as u64 / 10;
        turn += 1;
        run.decide(&*event).map(|decision| decision.is_some())
    });
}

/// The bytes of a call to Redis, of as many checks.
#[divan::bench(args = [1, 5, 32])]
fn encode_call(bencher: Bencher<'_, '_>, checks: usize) {
    let checks: Vec<Check> = (0..checks).map(|user| check(user, limit(Algorithm::SlidingWindow))).collect();
    bencher.bench(|| script::call(black_box(&[Group::new(&checks)])).get_packed_command());
}

#[divan::bench]
fn decode_request(bencher: Bencher<'_, '_>) {
    let entry = rate_limit_descriptor::Entry { key: "user".into(), value: "user-0000007".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let bytes = request.encode_to_vec();
    bencher.bench(|| RateLimitRequest::decode(black_box(&bytes[..])));
}

#[divan::bench]
fn encode_response(bencher: Bencher<'_, '_>) {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 5,
            unit: Unit::Minute.into(),
            name: "per-user".into(),
            unit_multiplier: None,
        }),
        limit_remaining: 4,
        duration_until_reset: Some(prost_types::Duration { seconds: 66, nanos: 0 }),
        ..DescriptorStatus::default()
    };
    let response =
        RateLimitResponse { overall_code: Code::Ok.into(), statuses: vec![status], ..RateLimitResponse::default() };
    bencher.bench(|| black_box(&response).encode_to_vec());
}
