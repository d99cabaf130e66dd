//! The time that a peek reports for the next hit is when it passes, and the peek changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;
use tollgate::engine::algorithm::Ask;
use tollgate::engine::clock::Clock;
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::Rules;
use tollgate::inspect::next_pass::next_after_ms;
use tollgate::sources::files::load::{LoadOptions, Sources, load};
use tollgate::store::Store as _;
use tollgate::store::memory::MemoryStore;

#[derive(Clone)]
struct HandClock(Arc<AtomicU64>);

impl Clock for HandClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limits of which a peek can say when the next hit passes.
const LIMITS: [&str; 6] = [
    "algorithm: sliding_window",
    "algorithm: sliding_window, segments: 3, weighting: linear",
    "algorithm: sliding_log",
    "algorithm: token_bucket, burst: 3",
    "algorithm: leaky_bucket, burst: 3, max_delay: 500ms",
    "algorithm: fixed_window",
];

fn rules(limit: &str, cost: u32) -> Rules {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let limit = format!("{{period: 10s, requests_per_unit: 4, cost: {cost}, {limit}}}");
    std::fs::write(file.path(), format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]\n")).unwrap();
    load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
}

/// Returns a request with this many descriptors of the same counter.
fn request(descriptors: usize, ask: Ask) -> Request {
    let descriptor = Descriptor { entries: vec![Entry { key: "a".into(), value: "x".into() }], ask, limit: None };
    Request { domain: "d".into(), descriptors: vec![descriptor; descriptors] }
}

proptest! {
    #[test]
    fn one_more_passes_when_a_peek_says_so_and_not_a_millisecond_before(
        limit in prop::sample::select(LIMITS.to_vec()),
        cost in 1..3_u32,
        descriptors in 1..3_usize,
        pauses in prop::collection::vec(0..4_000_u64, 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let rules = rules(limit, cost);
        let clock = HandClock(Arc::new(AtomicU64::new(1_700_000_000_000)));
        let store = MemoryStore::new(clock.clone(), usize::MAX);
        let options = PlanOptions::default();
        let ask = |descriptors, ask| {
            let request = request(descriptors, ask);
            let deadline = Instant::now() + Duration::from_secs(60);
            runtime.block_on(async {
                let plan = Plan::new(&options, &rules, &request, Names::default());
                let verdicts = store.check(plan.asked(), deadline).await.unwrap();
                let decision = plan.conclude(&verdicts);
                let waits = next_after_ms(&decision, &store, deadline).await;
                (decision.over_limit, decision.next_passes(), waits)
            })
        };
        for pause in pauses {
            clock.0.fetch_add(pause, Ordering::Relaxed);
            ask(1, Ask::Take(1));
            let (_, next_passes, waits) = ask(descriptors, Ask::Peek);
            prop_assert_eq!(ask(descriptors, Ask::Peek).1, next_passes, "nothing has changed");
            let capacity = if limit.contains("burst") { 3 } else { 4 };
            if cost * descriptors as u32 > capacity {
                prop_assert!(!next_passes && waits.last() == Some(&None), "they never pass together: {:?}", waits);
                continue;
            }
            prop_assert_eq!(waits.iter().all(Option::is_none), next_passes, "{:?}", waits);
            if limit.contains("fixed_window") {
                // It charges denied requests.
                continue;
            }
            let now = clock.now();
            let Some(wait) = waits.into_iter().flatten().max() else { continue };
            clock.0.store(now + wait - 1, Ordering::Relaxed);
            prop_assert!(ask(descriptors, Ask::Take(1)).0, "a millisecond before {}", wait);
            clock.0.store(now + wait, Ordering::Relaxed);
            prop_assert!(!ask(descriptors, Ask::Take(1)).0, "after {}", wait);
        }
    }
}
