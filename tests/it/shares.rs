//! Own shares: what an instance admits by itself, what it asks the store for, and that both together are never
//! more than the limit.

use crate::support;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{wait_until, wait_until_async};
use tokio::time::Instant;
use tollgate::engine::algorithm::lease_terms::Lease;
use tollgate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use tollgate::engine::check::{Check, CheckVerdict, Key, Origin, StoreError, Verdicts};
use tollgate::engine::clock::Clock;
use tollgate::engine::descriptor::Role;
use tollgate::engine::share::{DomainTerms, Member, Shared, Split, Table};
use tollgate::store::Store;
use tollgate::store::denied::{Denials, DeniedCache};
use tollgate::store::lease::Leases;
use tollgate::store::memory::MemoryStore;
use tollgate::store::share::{BeatEnd, Desk, Shares};
use tollgate::wire::rate_limit_response::Code;

const DOMAIN: u64 = 3;
const DIGEST: u64 = 8;
const TIMEOUT: Duration = Duration::from_secs(600);

/// The paused clock of a test.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> u64 {
        1_784_000_000_000 + self.0.elapsed().as_millis() as u64
    }
}

/// What all instances ask.
struct Central {
    counters: Arc<MemoryStore<Paused>>,
    asked: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
}

impl Store for Central {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], _: Instant) -> Result<Verdicts, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        match self.is_down.load(Ordering::Relaxed) {
            false => self.counters.decide(checks),
            true => Err(StoreError::Down("a test".into())),
        }
    }
}

/// What is between shares and the store, as in the service.
type Way = Leases<DeniedCache<Central>>;

/// A fleet whose instances have seats, and use them.
struct Fleet {
    instances: Vec<Shares<Way>>,
    asked: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
    admitted_alone: Arc<AtomicU64>,
}

/// The split of all limits here.
fn split(seats: u32) -> Split {
    Split::new(5_000, seats)
}

impl Fleet {
    /// Lets time pass until instances may use their shares of limits with periods up to a minute.
    async fn start(seats: u32) -> Fleet {
        Fleet::with(split(seats)).await
    }

    async fn with(largest: Split) -> Fleet {
        let seats = largest.seats();
        let counters = Arc::new(MemoryStore::new(Paused(Instant::now()), 1 << 24));
        let [asked, admitted_alone] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let is_down = Arc::<AtomicBool>::default();
        let desk = || {
            let admitted = Arc::clone(&admitted_alone);
            Arc::new(Desk::new(Box::new(move || {
                admitted.fetch_add(1, Ordering::Relaxed);
            })))
        };
        let desks: Vec<Arc<Desk>> = (0..seats).map(|_| desk()).collect();
        let terms = DomainTerms { digest: DIGEST, largest };
        let member = |id: u32| {
            let mut member = Member::new(&id.to_string(), seats, TIMEOUT);
            member.set_domains(BTreeMap::from([(DOMAIN, terms)]));
            member
        };
        let mut members: Vec<Member> = (0..seats).map(member).collect();
        let mut table = Table::default();
        for _ in 0..10 {
            for (member, desk) in members.iter_mut().zip(&desks) {
                let query = member.query(desk.now());
                let answer = table.beat("s", &query.beat(member.id(), "i"));
                member.answered(&query, &answer, desk.now());
                desk.put(member.view().clone());
                desk.end_beat(BeatEnd::Answered);
            }
            tokio::time::advance(Duration::from_secs(100)).await;
        }
        assert!(members.iter().all(|member| member.view().is_agreed(DOMAIN)));
        let store =
            || Central { counters: Arc::clone(&counters), asked: Arc::clone(&asked), is_down: Arc::clone(&is_down) };
        let around = |desk: &Arc<Desk>| {
            let denials = Arc::new(Denials::new(1 << 20, Box::new(|| {})));
            let leases = Leases::around(vec![DeniedCache::new(store(), denials)], 1_000, Box::new(|_| {}));
            Shares::around(leases, desk).remove(0)
        };
        Fleet { instances: desks.iter().map(around).collect(), asked, is_down, admitted_alone }
    }

    async fn ask(&self, instance: usize, checks: &[Check]) -> Result<Vec<CheckVerdict>, StoreError> {
        let verdicts = self.instances[instance].check(checks, Instant::now() + Duration::from_secs(1)).await?;
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn one(&self, instance: usize, check: &Check) -> CheckVerdict {
        self.ask(instance, from_ref(check)).await.unwrap()[0]
    }

    /// Returns the hits that shares and the store have charged to a counter of this limit.
    async fn charged(&self, name: &str, limit: &Limit) -> u64 {
        let mut charged = 0;
        for instance in 0..self.instances.len() {
            let verdict = self.one(instance, &check(name, *limit, Ask::Peek, self.instances.len())).await;
            let share = verdict.share.unwrap();
            charged += share.capacity - share.remaining;
            if instance == 0 {
                let rest = split(self.instances.len() as u32).rest(limit);
                charged += rest.capacity() - (verdict.own.remaining - share.remaining);
            }
        }
        charged
    }

    fn asked(&self) -> u64 {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

fn window(number: u32) -> Limit {
    Limit::new(Algorithm::SlidingWindow, number.into(), Duration::from_secs(60), Options::default()).unwrap()
}

fn check(name: &str, limit: Limit, ask: Ask, seats: usize) -> Check {
    let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
    let split = Some(split(seats as u32));
    let shared = Shared { domain: DOMAIN, digest: DIGEST, split, is_changed: false };
    Check { shared, ..Check::new(key, limit, ask) }
}

#[tokio::test(start_paused = true)]
async fn a_share_is_admitted_without_the_store_and_the_rest_with_it() {
    let fleet = Fleet::start(2).await;
    // Of 40, each of two has 10, and the store 20.
    let take = check("ann", window(40), Ask::Take(1), 2);
    let mut remaining = Vec::new();
    for _ in 0..10 {
        let verdict = fleet.one(0, &take).await;
        assert!(verdict.allowed());
        remaining.push(verdict.own.remaining);
    }
    assert_eq!(remaining, (20..30).rev().collect::<Vec<u64>>(), "what the store has is not known to be used");
    assert_eq!((fleet.asked(), fleet.admitted_alone.load(Ordering::Relaxed)), (0, 10));
    for left in (0..20).rev() {
        let verdict = fleet.one(0, &take).await;
        assert_eq!((verdict.allowed(), verdict.own.remaining), (true, left));
    }
    assert!(!fleet.one(0, &take).await.allowed());
    assert_eq!(fleet.asked(), 21);
    for _ in 0..10 {
        assert!(fleet.one(1, &take).await.allowed(), "the share of the other is its own");
    }
    assert_eq!(fleet.asked(), 0);
    assert!(!fleet.one(1, &take).await.allowed());
}

#[tokio::test(start_paused = true)]
async fn a_denial_says_the_earlier_of_the_two_times() {
    let fleet = Fleet::start(2).await;
    let log = Limit::new(Algorithm::SlidingLog, 4, Duration::from_secs(60), Options::default()).unwrap();
    let take = check("ann", log, Ask::Take(1), 2);
    // One in the share, and ten seconds later two in the store.
    for (wait, passes) in [(0, true), (10, true), (0, true), (0, false)] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        let verdict = fleet.one(0, &take).await;
        assert_eq!(verdict.allowed(), passes);
        if !passes {
            assert_eq!((verdict.own.retry_after_ms, verdict.own.reset_after_ms), (Some(50_001), 60_001));
        }
    }
    tokio::time::advance(Duration::from_secs(50)).await;
    assert!(!fleet.one(0, &take).await.allowed());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(fleet.one(0, &take).await.allowed());
}

#[tokio::test(start_paused = true)]
async fn more_hits_than_the_share_has_are_asked_for() {
    let fleet = Fleet::start(2).await;
    let take = |hits| check("ann", window(40), Ask::Take(hits), 2);
    assert!(fleet.one(0, &take(15)).await.allowed());
    assert_eq!(fleet.asked(), 1);
    assert!(fleet.one(0, &take(10)).await.allowed(), "the share is whole");
    assert_eq!(fleet.asked(), 0);
    let denied = fleet.one(0, &take(6)).await;
    assert_eq!((denied.allowed(), denied.own.remaining), (false, 5));
    assert_eq!(fleet.one(0, &take(21)).await.own.retry_after_ms, None, "neither the share nor the rest has so many");
    assert_eq!(fleet.charged("ann", &window(40)).await, 25);
}

#[tokio::test(start_paused = true)]
async fn what_a_share_has_charged_is_taken_back_if_the_store_denies_or_fails() {
    let fleet = Fleet::start(2).await;
    let (own, full) = (check("ann", window(40), Ask::Take(2), 2), check("all", window(4), Ask::Take(3), 2));
    let denied = fleet.ask(0, &[own.clone(), full.clone()]).await.unwrap();
    assert_eq!(denied.iter().map(CheckVerdict::allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(denied[0].own.remaining, 30, "nothing is charged");
    assert_eq!((fleet.charged("ann", &window(40)).await, fleet.charged("all", &window(4)).await), (0, 0));

    fleet.is_down.store(true, Ordering::Relaxed);
    // Nothing is known of this one.
    let other = check("other", window(4), Ask::Take(3), 2);
    fleet.ask(0, &[own.clone(), other.clone()]).await.unwrap_err();
    let shadow = Check { role: Role::Shadow, ..other };
    fleet.ask(0, &[own.clone(), shadow.clone()]).await.unwrap_err();
    assert!(fleet.one(0, &own).await.allowed(), "a share does not notice that the store is gone");
    fleet.is_down.store(false, Ordering::Relaxed);
    assert_eq!(fleet.charged("ann", &window(40)).await, 2);

    let passed = fleet.ask(0, &[own, shadow]).await.unwrap();
    assert_eq!(passed.iter().map(CheckVerdict::allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(fleet.charged("ann", &window(40)).await, 4, "a limit in shadow mode denies nothing");
}

#[tokio::test(start_paused = true)]
async fn quotas_vote_together() {
    let fleet = Fleet::start(2).await;
    let quota = |name, number, hits| Check { role: Role::Quota, ..check(name, window(number), Ask::Take(hits), 2) };
    // The second alone is over, so the request passes, and the first is charged.
    let passed = fleet.ask(0, &[quota("a", 40, 1), Check { descriptor: 1, ..quota("b", 4, 3) }]).await.unwrap();
    assert_eq!(passed.iter().map(CheckVerdict::allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(fleet.charged("a", &window(40)).await, 1);
    fleet.asked();
    fleet.ask(0, &[quota("a", 40, 1), Check { descriptor: 1, ..quota("b", 4, 1) }]).await.unwrap();
    assert_eq!(fleet.asked(), 0, "both have room in their shares");
}

#[tokio::test(start_paused = true)]
async fn a_refund_goes_to_the_share_first_and_a_reset_to_both() {
    let fleet = Fleet::start(2).await;
    let ask = |ask| check("ann", window(40), ask, 2);
    fleet.one(0, &ask(Ask::Take(3))).await;
    fleet.one(0, &ask(Ask::Take(12))).await;
    fleet.asked();
    fleet.one(0, &ask(Ask::Refund(2))).await;
    assert_eq!(fleet.asked(), 0);
    fleet.one(0, &ask(Ask::Refund(5))).await;
    assert_eq!(fleet.asked(), 1);
    assert_eq!(fleet.charged("ann", &window(40)).await, 8);
    fleet.one(0, &ask(Ask::Take(3))).await;
    fleet.one(1, &ask(Ask::Take(1))).await;
    fleet.one(0, &ask(Ask::Reset)).await;
    assert_eq!(fleet.charged("ann", &window(40)).await, 1, "the share of another instance keeps its hit");
}

#[tokio::test(start_paused = true)]
async fn without_a_seat_the_store_decides_by_the_rest() {
    let fleet = Fleet::start(2).await;
    let take = check("ann", window(40), Ask::Take(1), 2);
    // Beyond the timeout without a beat, with a table that does not answer.
    tokio::time::advance(TIMEOUT).await;
    let without = |shares: &Shares<Way>| shares.desk().end_beat(BeatEnd::Lost);
    fleet.instances.iter().for_each(without);
    for _ in 0..20 {
        let verdict = fleet.one(0, &take).await;
        assert!(verdict.allowed() && verdict.share.is_none());
    }
    assert!(!fleet.one(0, &take).await.allowed());
    assert_eq!(fleet.asked(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_a_beat_if_the_table_is_not_known() {
    let fleet = Arc::new(Fleet::start(1).await);
    tokio::time::advance(TIMEOUT).await;
    let asking = {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move { fleet.ask(0, &[check("ann", window(40), Ask::Take(1), 1)]).await })
    };
    fleet.instances[0].desk().wanted().await;
    assert!(!asking.is_finished() && fleet.asked() == 0);
    fleet.instances[0].desk().end_beat(BeatEnd::Lost);
    assert!(asking.await.unwrap().is_ok(), "the table does not answer, but the store does");
    assert_eq!(fleet.asked(), 1);
    fleet.instances[0].desk().end_beat(BeatEnd::Answered);
    let late = fleet.ask(0, &[check("ann", window(40), Ask::Take(1), 1)]).await;
    assert!(matches!(late, Err(StoreError::Timeout)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_table_has_never_answered_does_not_ask_for_what_may_be_in_shares() {
    let ask = async |desk: Desk| {
        let counters = Arc::new(MemoryStore::new(Paused(Instant::now()), 1 << 24));
        let store = Central { counters, asked: Arc::default(), is_down: Arc::default() };
        let shares = Shares::around(vec![store], &Arc::new(desk)).remove(0);
        // Its rules have no shares, and those of others may.
        let plain = Check { shared: Shared::default(), ..check("ann", window(40), Ask::Take(1), 1) };
        shares.check(&[plain], Instant::now() + Duration::from_millis(100)).await
    };
    let desk = || Desk::new(Box::new(|| {}));
    let lost = desk();
    lost.end_beat(BeatEnd::Lost);
    assert!(matches!(ask(lost).await, Err(StoreError::Down(_))));
    assert!(matches!(ask(desk()).await, Err(StoreError::Timeout)), "it waits for the first beat");
    let refused = desk();
    refused.end_beat(BeatEnd::Refused);
    assert!(ask(refused).await.is_ok(), "nobody can have a seat");
    assert!(ask(Desk::of_command()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_down_a_peek_passes_by_a_share_and_what_is_taken_beside_it_is_charged() {
    let fleet = Fleet::start(2).await;
    fleet.is_down.store(true, Ordering::Relaxed);
    // Of 40, each of two has 10.
    let request = [check("ann", window(40), Ask::Take(1), 2), check("bob", window(40), Ask::Peek, 2)];
    for passed in 1..=10 {
        let verdicts = fleet.ask(0, &request).await.unwrap();
        assert!(verdicts.iter().all(CheckVerdict::allowed), "{passed}: {verdicts:?}");
        assert_eq!((verdicts[0].share.unwrap().remaining, verdicts[1].share.unwrap().remaining), (10 - passed, 10));
    }
    assert!(fleet.ask(0, &request).await.is_err(), "the share is used up");
    let used_up = [check("ann", window(40), Ask::Peek, 2)];
    assert!(fleet.ask(0, &used_up).await.is_err(), "a share without room answers no peek");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_goes_away_is_taken_back_from_shares() {
    let fleet = Fleet::start(2).await;
    let shared = || check("ann", window(40), Ask::Take(1), 2);
    let plain = Check { shared: Shared::default(), ..check("org", window(40), Ask::Take(1), 2) };
    let left = async || fleet.one(0, &check("ann", window(40), Ask::Peek, 2)).await.share.unwrap();
    let before = left().await;
    for _ in 0..3 {
        let request = [shared(), plain.clone()];
        tokio::select! {
            biased;
            _ = fleet.ask(0, &request) => panic!("the store takes its time"),
            () = std::future::ready(()) => {}
        }
    }
    assert_eq!(left().await, before);
}

/// What a fleet asks and admits.
#[derive(Debug)]
struct Asked {
    calls_per_decision: f64,
    admitted_per_minute: f64,
}

/// Lets instances share a limit of 1,000 a minute for eight minutes. Requests of one key come at random. `part`
/// is in shares, and as much may be in leases; both in percent.
async fn asked(instances: u32, (part, leased): (u16, u16), per_minute: f64) -> Asked {
    let split = Split::new(part * 100, instances);
    let fleet = Fleet::with(split).await;
    let limit = window(1_000);
    let shared = Shared { domain: DOMAIN, digest: DIGEST, split: (part > 0).then_some(split), is_changed: false };
    let lease = (leased > 0).then(|| Lease::new(leased * 100, None, &limit).unwrap());
    let take = Check { shared, lease, ..check("ann", limit, Ask::Take(1), 1) };
    let mut rng = fastrand::Rng::with_seed(1);
    let (begin, mut decisions, mut late) = (Instant::now(), 0_u32, 0_u32);
    while begin.elapsed() < Duration::from_secs(480) {
        tokio::time::sleep(Duration::from_secs_f64(-rng.f64().ln() * 60.0 / per_minute)).await;
        let verdict = fleet.one(rng.usize(..fleet.instances.len()), &take).await;
        decisions += 1;
        // After the first windows.
        late += u32::from(verdict.allowed() && begin.elapsed() > Duration::from_secs(120));
    }
    Asked {
        calls_per_decision: fleet.asked() as f64 / f64::from(decisions),
        admitted_per_minute: f64::from(late) / 6.0,
    }
}

/// The numbers of docs/algorithms-in-detail.md.
#[tokio::test(start_paused = true)]
async fn shares_and_leases_save_most_calls_and_admit_no_less_than_they_state() {
    for (instances, part, half_most, above_most) in [(4, 5, 0.10, 0.21), (16, 10, 0.16, 0.40)] {
        for (shared, leased) in [(0, 0), (part, 0), (0, part), (part, part), (part, 3 * part)] {
            let half = asked(instances, (shared, leased), 500.0).await;
            let above = asked(instances, (shared, leased), 1_500.0).await;
            let low = asked(instances, (shared, leased), f64::from(part) * 5.0).await;
            println!("{instances} instances, own_share {shared}%, lease {leased}%: {low:?}, {half:?}, {above:?}");
            if (shared, leased) == (part, part) {
                assert!(
                    half.calls_per_decision < half_most && above.calls_per_decision < above_most,
                    "{half:?} {above:?}"
                );
                assert!(low.calls_per_decision < 0.10, "{low:?}");
                // The window admits 892 without both; at most the shares of others and what is leased are unused.
                assert!(above.admitted_per_minute > 892.0 - f64::from(2 * part) * 10.0, "{above:?}");
            }
            if leased > part {
                assert!(half.calls_per_decision < half_most / 2.0, "{half:?}");
            }
        }
    }
}

/// A step of a drawn life.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// An instance asks for hits of some of the limits.
    Take {
        instance: usize,
        limits: Vec<(usize, u64)>,
    },
    Peek {
        instance: usize,
    },
    /// The store is down, or up again.
    Down(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limits = prop::collection::vec((0..3_usize, 1..6_u64), 1..4);
    let step = prop_oneof![
        4 => (0..20_000_u64).prop_map(Step::Wait),
        12 => (0..INSTANCES, limits).prop_map(|(instance, limits)| Step::Take { instance, limits }),
        1 => (0..INSTANCES).prop_map(|instance| Step::Peek { instance }),
        1 => any::<bool>().prop_map(Step::Down),
    ];
    prop::collection::vec(step, 1..80)
}

/// The number of instances in drawn lives.
const INSTANCES: usize = 3;

/// The limits of drawn lives: a window, a log and a bucket.
fn limits() -> [Limit; 3] {
    let of = |algorithm, number, burst| {
        let options = Options { burst, ..Options::default() };
        Limit::new(algorithm, number, Duration::from_secs(60), options).unwrap()
    };
    [
        of(Algorithm::SlidingWindow, 30, None),
        of(Algorithm::SlidingLog, 17, None),
        of(Algorithm::TokenBucket, 24, Some(14)),
    ]
}

#[test]
fn no_load_gets_more_than_the_limits_and_a_denied_request_costs_nothing() {
    TestRunner::default()
        .run(&steps(), |steps| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(drawn(steps))
        })
        .unwrap();
}

async fn drawn(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let fleet = Fleet::start(INSTANCES as u32).await;
    let (limits, start) = (limits(), Instant::now());
    let mut admitted: [Vec<(u64, u64)>; 3] = Default::default();
    for step in steps {
        match step {
            Step::Wait(ms) => tokio::time::advance(Duration::from_millis(ms)).await,
            Step::Down(is_down) => fleet.is_down.store(is_down, Ordering::Relaxed),
            Step::Peek { instance } => {
                let _ = fleet.ask(instance, &[check("0", limits[0], Ask::Peek, INSTANCES)]).await;
            }
            Step::Take { instance, limits: taken } => {
                let of = |(place, hits): &(usize, u64)| {
                    check(&place.to_string(), limits[*place], Ask::Take(*hits), INSTANCES)
                };
                let checks: Vec<Check> = taken.iter().map(of).collect();
                let before = states(&fleet, &limits).await;
                let verdicts = fleet.ask(instance, &checks).await;
                let passes = verdicts.is_ok_and(|verdicts| verdicts.iter().all(CheckVerdict::allowed));
                let at = start.elapsed().as_millis() as u64;
                if passes {
                    taken.iter().for_each(|(place, hits)| admitted[*place].push((at, *hits)));
                } else {
                    let after = states(&fleet, &limits).await;
                    // What leaks from a bucket in a millisecond may stay charged.
                    let is_close = |(one, other): (&u64, &u64)| one.abs_diff(*other) <= 1;
                    let (exact, buckets) = (..2 * INSTANCES * 2, 2 * INSTANCES * 2..);
                    prop_assert_eq!(&before[exact], &after[exact], "a request that does not pass costs nothing");
                    prop_assert!(before[buckets.clone()].iter().zip(&after[buckets]).all(is_close));
                }
            }
        }
    }
    for (limit, admitted) in limits.iter().zip(&admitted) {
        for (place, (first, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (at, hits) in &admitted[place..] {
                sum += hits;
                let most = match limit.algorithm() {
                    Algorithm::TokenBucket => {
                        let refilled = (at - first) * limit.number() / limit.period_ms();
                        limit.capacity() + refilled
                    }
                    _ if at - first >= limit.period_ms() => break,
                    _ => limit.number(),
                };
                prop_assert!(sum <= most, "{sum} of {most} from {first} to {at}");
            }
        }
    }
    Ok(())
}

/// Returns what remains of each limit's counters and shares, by instance.
async fn states(fleet: &Fleet, limits: &[Limit]) -> Vec<u64> {
    let is_down = fleet.is_down.swap(false, Ordering::Relaxed);
    let mut states = Vec::new();
    for (place, limit) in limits.iter().enumerate() {
        for instance in 0..fleet.instances.len() {
            let verdict = fleet.one(instance, &check(&place.to_string(), *limit, Ask::Peek, INSTANCES)).await;
            states.extend([verdict.own.remaining, verdict.share.unwrap().remaining]);
        }
    }
    fleet.is_down.store(is_down, Ordering::Relaxed);
    states
}

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      {requests_per_unit: 100, unit: second, own_share: 50%, failure_mode: closed}
";

/// Returns the settings of an instance of two.
fn settings(redis: &str) -> [String; 3] {
    [format!("REDIS_URL={redis}"), "EXPECTED_REPLICAS=2".to_owned(), "SHARE_TIMEOUT=10s".to_owned()]
}

fn start(redis: &Redis) -> Tollgate {
    let settings = settings(&redis.url());
    Tollgate::start(RULES, &settings.each_ref().map(String::as_str))
}

const AGREED: &str = "tollgate_share_domains{state=\"agreed\"}";
const BY_SHARES: &str = "tollgate_share_decisions_total";

async fn code(tollgate: &Tollgate, user: &str) -> Code {
    tollgate.ask(request("shop", &[&[("user", user)]])).await.unwrap().overall_code()
}

#[tokio::test]
async fn instances_use_their_shares_once_they_agree_and_do_not_notice_that_redis_is_gone() {
    let mut redis = Redis::start();
    let (one, other) = (start(&redis), start(&redis));
    let both = [&one, &other];
    wait_until("each has a seat and both agree", || {
        both.iter().all(|tollgate| tollgate.metric(AGREED) == 1.0 && tollgate.metric("tollgate_share_seat") == 1.0)
    });
    wait_until_async("a period later, shares are used", async || {
        let before = both.map(|tollgate| tollgate.metric(BY_SHARES));
        for tollgate in both {
            code(tollgate, "first").await;
        }
        both.iter().zip(before).all(|(tollgate, before)| tollgate.metric(BY_SHARES) > before)
    })
    .await;
    // Each has 25 of 100 for itself.
    redis.kill();
    for tollgate in both {
        let mut passed = 0;
        for _ in 0..25 {
            passed += u32::from(code(tollgate, "ann").await == Code::Ok);
        }
        assert_eq!(passed, 25);
    }
    // Redis has lost the table: those who have a seat keep it, and go on.
    redis.restart();
    wait_until_async("Redis decides again", async || {
        code(&one, &format!("user{}", fastrand::u32(..))).await == Code::Ok
    })
    .await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    for tollgate in both {
        assert_eq!((tollgate.metric("tollgate_share_seat"), tollgate.metric(AGREED)), (1.0, 1.0));
        let before = tollgate.metric(BY_SHARES);
        assert_eq!(code(tollgate, "bob").await, Code::Ok);
        assert_eq!(tollgate.metric(BY_SHARES), before + 1.0);
    }
    // Rules that differ: nobody uses shares until both have the same ones again, and a period has passed.
    one.change_rules(&RULES.replace("100,", "200,"));
    wait_until_async("the instance with new rules has no shares", async || {
        let before = one.metric(BY_SHARES);
        code(&one, &format!("user{}", fastrand::u32(..))).await == Code::Ok && one.metric(BY_SHARES) == before
    })
    .await;
    other.change_rules(&RULES.replace("100,", "200,"));
    wait_until_async("shares of the new number", async || {
        let before = one.metric(BY_SHARES);
        code(&one, &format!("user{}", fastrand::u32(..))).await == Code::Ok && one.metric(BY_SHARES) > before
    })
    .await;
}

#[tokio::test]
async fn without_info_no_limit_has_shares_and_all_are_decided() {
    let forbidden = Redis::start();
    forbidden.command::<()>("ACL SETUSER toll on >open-sesame ~* +@all -info").await;
    let unknown = Redis::start_with(&["--rename-command", "INFO", ""]);
    for (redis, auth) in [(&forbidden, "REDIS_AUTH=toll:open-sesame"), (&unknown, "REDIS_AUTH=")] {
        let url = format!("REDIS_URL={}", redis.url());
        let tollgate = Tollgate::start(RULES, &[&url, auth, "EXPECTED_REPLICAS=2"]);
        assert_eq!(code(&tollgate, "ann").await, Code::Ok, "{:?}", tollgate.logs());
        tollgate.must_log("Redis does not run the table of seats, so limits have no own shares");
    }
}

#[tokio::test]
async fn an_instance_that_cannot_reach_the_table_answers_when_it_can() {
    let mut redis = Redis::stopped();
    let tollgate = start(&redis);
    assert_eq!(code(&tollgate, "ann").await, Code::OverLimit, "by its failure mode");
    redis.restart();
    wait_until_async("the table answers", async || code(&tollgate, "ann").await == Code::Ok).await;
}

const LOG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {algorithm: sliding_log, requests_per_unit: 20, period: 2s, own_share: 50%, failure_mode: closed}
";

/// Asks for one user until told to stop. Returns when each request that passed was sent and answered.
async fn load(tollgate: &Tollgate, stop: &AtomicBool) -> Vec<(Instant, Instant)> {
    let mut client = tollgate.client().await;
    let mut passed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let asked = client.should_rate_limit(request("shop", &[&[("user", "ann")]]));
        let answered = tokio::time::timeout(Duration::from_secs(20), asked).await;
        if let Ok(Ok(response)) = answered
            && response.into_inner().overall_code() == Code::Ok
        {
            passed.push((sent, Instant::now()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seat_goes_to_another_when_an_instance_stands_still_and_no_more_passes() {
    let redis = Redis::start();
    let settings = settings(&redis.url());
    let start = || Tollgate::start(LOG, &settings.each_ref().map(String::as_str));
    let instances = [start(), start(), start()];
    let seats = || instances.each_ref().map(|tollgate| tollgate.metric("tollgate_share_seat") == 1.0);
    wait_until("two of three have a seat", || seats().iter().filter(|has| **has).count() == 2);
    let waiting = seats().iter().position(|has| !has).unwrap();
    let still = (waiting + 1) % 3;
    assert_eq!(instances[waiting].must_log("all seats have been taken for SHARE_TIMEOUT")["seats"], 2);
    assert_eq!(instances[still].must_log("own shares are in use a period from now")["agreed"], 1);

    let stop = AtomicBool::new(false);
    let scene = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(instances[still].metric(BY_SHARES) > 0.0, "it uses its share");
        instances[still].signal("STOP");
        let taken = async || instances[waiting].metric("tollgate_share_seat") == 1.0;
        wait_until_async("the seat of the one that stands still is taken", taken).await;
        instances[still].signal("CONT");
        wait_until_async("the new one uses it", async || instances[waiting].metric(BY_SHARES) > 0.0).await;
        wait_until_async("the old one knows", async || instances[still].metric("tollgate_share_seat") == 0.0).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        stop.store(true, Ordering::Relaxed);
    };
    let [one, other, third] = &instances;
    let (mut passed, second, others, ()) =
        tokio::join!(load(one, &stop), load(other, &stop), load(third, &stop), scene);
    passed.extend(second.into_iter().chain(others));
    passed.sort_unstable();
    assert!(passed.len() > 100, "{}", passed.len());
    for (place, (begin, _)) in passed.iter().enumerate() {
        let within = passed[place..].iter().filter(|(_, answered)| *answered < *begin + Duration::from_secs(2));
        assert!(within.count() <= 20, "in two seconds");
    }
}
