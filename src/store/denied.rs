//! Denials that are known: what the store has just denied is denied here, until the moment when the store would let it pass. So whoever goes
//! on asking for the same costs the store nothing.
//!
//! Nothing is denied that the store would let pass. A denial says when the same request passes again, to the millisecond; it is counted from
//! when the store was asked, on this process's own clock. It holds for as many hits, because others may pass or must wait for longer, and for
//! the very limit that denied. A give-back or a reset through this process ends it; one through another process, also by `tollgate counter
//! reset`, is seen within [`KNOWN`], because nothing is known for longer.
//!
//! Of a counter one denial is known. One that still holds is not replaced by one of more hits: so who asks for one hit costs nothing, whatever
//! others ask for.
//!
//! How long to wait is told as the store said it. For a request of several hits that may have become longer, if others have taken fewer; and
//! for a caller who could not be held for as long as others, if such have passed.
//!
//! A request is denied here only if all of its limits are known to deny: then the store would charge none of them, and could say
//! nothing else. So a limit that counts denials is always asked, and one with a penalty until there is a ban, because it counts them,
//! too; and so is concurrency, whose slots come back at any moment. Of a counter that a request asks twice nothing is known: it
//! may be denied for what the same request would have taken before.
//!
//! Leases stand before it: what they hold they spend first, what they give back is seen here, and what they ask for in advance is a question
//! like any other, of so many hits.

mod shard;

use std::sync::Arc;
use std::time::{Duration, Instant};

use shard::Shard;

use super::sharded::{SHARDS, Sharded};
use super::{Check, Key, Store, StoreError, Verdicts};
use crate::algorithm::{Initial, Limit, Verdict};
use crate::descriptor::{Hits, Role};

/// The longest that a denial is known.
const KNOWN: Duration = Duration::from_secs(1);

/// A store in front of which known denials are answered.
pub struct DeniedCache<S> {
    store: S,
    denials: Arc<Denials>,
}

/// What is known to be denied, for all stores of a process that lead to the same counters.
pub struct Denials {
    shards: Sharded<Shard>,
    /// What each of them may take.
    shard_bytes: usize,
    on_hit: Box<dyn Fn() + Send + Sync>,
}

/// What a limit and its penalty have said.
#[derive(Clone, Copy)]
struct Denial {
    limit: Limit,
    penalty: Option<Limit>,
    hits: Hits,
    verdict: Verdict,
    ban: Option<Verdict>,
    /// When the store was asked.
    asked: Instant,
    until: Instant,
}

/// A limit's check, and that of its penalty.
#[derive(Clone, Copy)]
struct Unit<'c> {
    check: &'c Check,
    penalty: Option<&'c Check>,
}

impl<S> DeniedCache<S> {
    /// The same store behind what is known.
    pub fn new(store: S, denials: Arc<Denials>) -> DeniedCache<S> {
        DeniedCache { store, denials }
    }
}

impl<S: Store> Store for DeniedCache<S> {
    async fn check(&self, checks: &[Check], deadline: Instant) -> Result<Verdicts, StoreError> {
        let denials = &*self.denials;
        if denials.shard_bytes == 0 {
            return self.store.check(checks, deadline).await;
        }
        let asked = Instant::now();
        if let Some(verdicts) = denials.known(checks, asked) {
            (denials.on_hit)();
            return Ok(verdicts);
        }
        // When there is an answer, and also where nobody waits for it any more: it may have happened.
        let _forget = Forget { denials, checks };
        let verdicts = self.store.check(checks, deadline).await?;
        denials.learn(checks, &verdicts, asked);
        Ok(verdicts)
    }

    async fn close(&self, deadline: Instant) {
        self.store.close(deadline).await;
    }
}

/// Forgets what is known of counters that something is given back to, when it goes.
struct Forget<'c> {
    denials: &'c Denials,
    checks: &'c [Check],
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        for check in self.checks.iter().filter(|check| gives_back(check)) {
            self.denials.forget(&check.key, Instant::now());
        }
    }
}

impl Denials {
    /// Knows nothing yet, and never more than fits these bytes; without any it stays so. `on_hit` is told of each request that is denied here.
    pub fn new(bytes: usize, on_hit: Box<dyn Fn() + Send + Sync>) -> Denials {
        Denials { shards: Sharded::default(), shard_bytes: bytes / SHARDS, on_hit }
    }

    /// What the store would say, if it is known to deny all of it.
    fn known(&self, checks: &[Check], now: Instant) -> Option<Verdicts> {
        let mut verdicts = Verdicts::new();
        for unit in units(checks) {
            let denial = self.shards.of(&unit.check.key).lock().get(&unit.check.key)?;
            if !denial.denies(unit, now) || unit.is_repeated(checks) {
                return None;
            }
            verdicts.push(denial.later(denial.verdict, now));
            verdicts.extend(denial.ban.map(|ban| denial.later(ban, now)));
        }
        (verdicts.len() == checks.len() && !checks.is_empty()).then_some(verdicts)
    }

    /// Remembers the denials among these verdicts, unless something has been given back since they were asked for.
    fn learn(&self, checks: &[Check], verdicts: &[Verdict], asked: Instant) {
        let mut verdicts = verdicts.iter().copied();
        for unit in units(checks) {
            let verdict = verdicts.next();
            let ban = unit.penalty.and_then(|_| verdicts.next());
            let Some(denial) = verdict.and_then(|verdict| Denial::new(unit, verdict, ban, asked)) else { continue };
            if unit.is_repeated(checks) {
                continue;
            }
            self.shards.of(&unit.check.key).lock().learn(&unit.check.key, denial, self.shard_bytes);
        }
    }

    /// Something has been given back to this counter.
    fn forget(&self, key: &Key, now: Instant) {
        self.shards.of(key).lock().forget(key, now);
    }
}

impl Unit<'_> {
    /// Its request asks its counter several times.
    fn is_repeated(&self, checks: &[Check]) -> bool {
        checks.iter().filter(|check| check.key == self.check.key).count() > 1
    }
}

impl Denial {
    /// What is to be remembered of a unit's verdicts.
    fn new(
        Unit { check, penalty }: Unit<'_>,
        verdict: Verdict,
        ban: Option<Verdict>,
        asked: Instant,
    ) -> Option<Denial> {
        if check.limit.count_denied() || check.limit.algorithm().has_holders() || check.hits.get() < 0 {
            return None;
        }
        let (denied, wait_ms) = match (penalty, ban) {
            // In shadow mode a ban denies nobody: the limit is charged.
            (Some(penalty), Some(ban)) => {
                (!ban.allowed && !penalty.limit.extends() && check.role != Role::Shadow, ban.retry_after_ms)
            }
            _ => (!verdict.allowed, verdict.retry_after_ms),
        };
        // A bucket that begins empty does so with a denied request, too, and again when it has been forgotten: then the store must be asked.
        let begins_ms = (check.limit.options().initial == Some(Initial::Empty)).then_some(verdict.reset_after_ms);
        // The store's clock is cut to milliseconds: it may have been nearly one later than it said.
        let wait = |ms: u64| Duration::from_millis(ms.saturating_sub(1));
        let wait = [wait_ms, begins_ms].into_iter().flatten().map(wait).fold(KNOWN, Duration::min);
        let penalty = penalty.map(|penalty| penalty.limit);
        let (limit, hits, until) = (check.limit, check.hits, asked + wait);
        denied.then_some(Denial { limit, penalty, hits, verdict, ban, asked, until })
    }

    fn denies(&self, Unit { check, penalty }: Unit<'_>, now: Instant) -> bool {
        now < self.until
            && check.hits == self.hits
            && check.limit == self.limit
            && penalty.map(|penalty| penalty.limit) == self.penalty
    }

    /// It stays where the other would take its place: it still denies, and fewer hits, which are asked for more often. A look, which takes none,
    /// comes last.
    fn goes_before(&self, other: &Denial) -> bool {
        let rank = |denial: &Denial| denial.hits.get().checked_sub(1).filter(|rank| *rank >= 0).unwrap_or(i64::MAX);
        let same_terms = (self.limit, self.penalty) == (other.limit, other.penalty);
        same_terms && other.asked < self.until && rank(self) < rank(other)
    }

    /// A verdict of then, as it reads now.
    fn later(&self, verdict: Verdict, now: Instant) -> Verdict {
        let elapsed_ms = u64::try_from(now.duration_since(self.asked).as_millis()).unwrap_or(u64::MAX);
        Verdict {
            reset_after_ms: verdict.reset_after_ms.saturating_sub(elapsed_ms),
            retry_after_ms: verdict.retry_after_ms.map(|ms| ms.saturating_sub(elapsed_ms)),
            ..verdict
        }
    }
}

fn gives_back(check: &Check) -> bool {
    check.hits.get() < 0 && !check.limit.algorithm().has_holders()
}

/// The checks, each limit with its penalty.
fn units(checks: &[Check]) -> impl Iterator<Item = Unit<'_>> {
    let limits = checks.iter().enumerate().filter(|(_, check)| !check.limit.is_penalty());
    limits.map(|(i, check)| Unit { check, penalty: checks.get(i + 1).filter(|next| next.limit.is_penalty()) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Options};
    use crate::store::memory::{Clock, MemoryStore};

    /// Milliseconds since the epoch, set by hand in microseconds.
    #[derive(Clone, Default)]
    struct HandClock(Arc<AtomicU64>);

    impl Clock for HandClock {
        fn now(&self) -> u64 {
            1_784_000_000_000 + self.0.load(Ordering::Relaxed) / 1_000
        }
    }

    fn check(name: &str, limit: Limit, hits: i64) -> Check {
        let key = Key::new("", name, &[], |_| None, &limit);
        let amount = hits.unsigned_abs();
        let hits = if hits < 0 { Hits::give_back(amount) } else { Hits::take(amount) };
        Check { key, limit, hits: hits.unwrap(), role: Role::Enforced, descriptor: 0, lease: None }
    }

    fn limit(algorithm: Algorithm, number: u32, period_ms: u64, options: Options) -> Limit {
        Limit::new(algorithm, number, Duration::from_millis(period_ms), options).unwrap()
    }

    fn unbounded() -> Denials {
        Denials::new(usize::MAX, Box::new(|| {}))
    }

    /// What is asked of which counter and with how much patience, how long after the request before, and how long the way to the store is, in
    /// microseconds.
    fn steps() -> impl Strategy<Value = Vec<(usize, i64, u64, u64, u64)>> {
        let hits = prop_oneof![6 => 1..4_i64, 1 => Just(0), 1 => -3..0_i64, 1 => 4..40_i64];
        let wait = prop_oneof![4 => 0..300_u64, 3 => 0..5_000_u64, 1 => 0..100_000_u64];
        let patience_ms = prop::sample::select(vec![u64::MAX, 20, 0]);
        prop::collection::vec((0..3_usize, hits, patience_ms, wait, 0..2_000_u64), 1..150)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn what_is_known_is_just_what_the_store_says(
            algorithms in prop::collection::vec((prop::sample::select(Algorithm::ALL), 0..5_u32, 1..60_u64, prop::option::of(1..4_u32), any::<bool>()), 3),
            begin in 0..1_000_000_u64, steps in steps()
        ) {
            let clock = HandClock::default();
            let store = MemoryStore::new(clock.clone());
            let denials = unbounded();
            let limits: Vec<(Limit, Option<Limit>)> = algorithms.into_iter().map(|(algorithm, number, period_ms, after, is_empty)| {
                let [within, ban] = [period_ms * 3, period_ms * 2].map(Duration::from_millis);
                let penalty = after.map(|after| Limit::penalty(after, within, ban, after == 3).unwrap());
                let max_delay = algorithm.options().contains(&"max_delay").then_some(Duration::from_millis(40));
                let initial = (is_empty && algorithm.options().contains(&"initial")).then_some(Initial::Empty);
                (limit(algorithm, number, period_ms, Options { max_delay, initial, ..Options::default() }), penalty)
            }).collect();
            let origin = Instant::now();
            let mut now = begin;
            for (which, hits, patience_ms, wait, way) in steps {
                now += wait;
                clock.0.store(now, Ordering::Relaxed);
                let (limit, penalty) = limits[which];
                let mut checks = vec![check(&format!("c{which}"), limit.within(patience_ms), hits)];
                checks.extend(penalty.filter(|_| hits >= 0).map(|penalty| check(&format!("p{which}"), penalty, hits)));
                let at = |now: u64| origin + Duration::from_micros(now);
                match denials.known(&checks, at(now)) {
                    Some(known) => {
                        // To ask now changes nothing: or else it would not have been known.
                        let said = store.decide(&checks);
                        let of_limit = |verdicts: &[Verdict]| match *verdicts {
                            [own, ban] => own.under(ban),
                            _ => verdicts[0],
                        };
                        let (known, said) = (of_limit(&known), of_limit(&said));
                        prop_assert!(!known.allowed && !said.allowed, "{:?} is let pass", checks);
                        prop_assert_eq!(known.retry_after_ms.is_none(), said.retry_after_ms.is_none());
                        if let Some((known_ms, said_ms)) = known.retry_after_ms.zip(said.retry_after_ms) {
                            // Where nobody else can have passed meanwhile it is the same, but for the way and the cut to milliseconds.
                            prop_assert!(known_ms <= said_ms + 3, "{:?}, {:?}", known, said);
                            let others_pass = hits > 1 || patience_ms < u64::MAX;
                            prop_assert!(others_pass || known_ms + 3 >= said_ms, "{:?}, {:?}", known, said);
                        }
                    }
                    None => {
                        clock.0.store(now + way, Ordering::Relaxed);
                        let verdicts = store.decide(&checks);
                        denials.learn(&checks, &verdicts, at(now));
                        now += way;
                        for check in checks.iter().filter(|check| gives_back(check)) {
                            denials.forget(&check.key, at(now));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_denial_is_known_until_the_request_passes_again() {
        let (denials, origin) = (unbounded(), Instant::now());
        let asked = check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1);
        let verdict =
            Verdict { allowed: false, remaining: 0, reset_after_ms: 400, retry_after_ms: Some(300), delay_ms: 0 };
        denials.learn(std::slice::from_ref(&asked), &[verdict], origin);
        let known =
            |check: &Check, ms: u64| denials.known(std::slice::from_ref(check), origin + Duration::from_millis(ms));
        assert_eq!(
            known(&asked, 100),
            Some(Verdicts::from([Verdict { reset_after_ms: 300, retry_after_ms: Some(200), ..verdict }]))
        );
        assert!(known(&asked, 298).is_some() && known(&asked, 299).is_none());
        for other in [
            check("ann", asked.limit, 2),
            check("ann", asked.limit, 0),
            check("bob", asked.limit, 1),
            Check { limit: limit(Algorithm::SlidingLog, 2, 500, Options::default()), ..asked.clone() },
        ] {
            assert!(known(&other, 100).is_none(), "{other:?}");
        }
        assert!(denials.known(&[asked.clone(), check("bob", asked.limit, 1)], origin).is_none(), "all must be known");
    }

    #[test]
    fn a_counter_that_is_asked_twice_in_a_request_is_not_known_to_deny_the_next_one() {
        let (denials, store) = (unbounded(), MemoryStore::new(HandClock::default()));
        let once = check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1);
        let twice = [once.clone(), once.clone()];
        denials.learn(&twice, &store.decide(&twice), Instant::now());
        assert!(denials.known(std::slice::from_ref(&once), Instant::now()).is_none());
        assert!(store.decide(std::slice::from_ref(&once))[0].allowed);
        // Nor is what is known of one enough for two, which wait for longer.
        denials.learn(std::slice::from_ref(&once), &store.decide(std::slice::from_ref(&once)), Instant::now());
        assert!(denials.known(std::slice::from_ref(&once), Instant::now()).is_some());
        assert!(denials.known(&twice, Instant::now()).is_none());
    }

    #[test]
    fn of_one_counter_the_denial_of_the_fewest_hits_is_known() {
        let (denials, origin) = (unbounded(), Instant::now());
        let limited = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        let denied =
            Verdict { allowed: false, remaining: 0, reset_after_ms: 400, retry_after_ms: Some(300), delay_ms: 0 };
        let at = |ms| origin + Duration::from_millis(ms);
        let learn = |limit, hits, ms| denials.learn(&[check("ann", limit, hits)], &[denied], at(ms));
        let known = |limit, ms| {
            [0, 1, 2, 3].into_iter().find(|hits| denials.known(&[check("ann", limit, *hits)], at(ms)).is_some())
        };
        for (hits, expected) in [(0, 0), (3, 3), (2, 2), (3, 2), (1, 1), (2, 1), (0, 1)] {
            learn(limited, hits, 0);
            assert_eq!(known(limited, 0), Some(expected), "after a denial of {hits}");
        }
        learn(limited, 2, 299);
        assert_eq!(known(limited, 299), Some(2), "the other does not deny any more");
        let lowered = limit(Algorithm::SlidingLog, 0, 500, Options::default());
        learn(limited, 1, 299);
        learn(lowered, 2, 299);
        assert_eq!((known(limited, 299), known(lowered, 299)), (None, Some(2)), "a changed rule");
    }

    #[test]
    fn an_answer_from_before_a_give_back_is_not_believed() {
        let (denials, origin) = (unbounded(), Instant::now());
        let asked = [check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1)];
        let denied =
            [Verdict { allowed: false, remaining: 0, reset_after_ms: 400, retry_after_ms: Some(300), delay_ms: 0 }];
        denials.forget(&asked[0].key, origin);
        denials.learn(&asked, &denied, origin);
        assert!(denials.known(&asked, origin).is_none());
        let later = origin + Duration::from_millis(1);
        denials.learn(&asked, &denied, later);
        assert!(denials.known(&asked, later).is_some());
        // One that is told late is still the later one.
        denials.forget(&asked[0].key, later);
        denials.forget(&asked[0].key, origin);
        denials.learn(&asked, &denied, later);
        assert!(denials.known(&asked, later).is_none());
    }

    #[test]
    fn a_give_back_elsewhere_is_no_reason_not_to_believe_an_answer() {
        let (denials, origin) = (unbounded(), Instant::now());
        let one = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        let denied =
            [Verdict { allowed: false, remaining: 0, reset_after_ms: 400, retry_after_ms: Some(300), delay_ms: 0 }];
        let asked: Vec<Check> = (0..1_000).map(|i| check(&format!("user{i}"), one, 1)).collect();
        denials.forget(&check("ann", one, -1).key, origin);
        asked.iter().for_each(|asked| denials.learn(std::slice::from_ref(asked), &denied, origin));
        let known = asked.iter().filter(|asked| denials.known(std::slice::from_ref(*asked), origin).is_some()).count();
        assert!((900..1_000).contains(&known), "{known} of a thousand, of which a few are in the same shard");
    }

    #[test]
    fn without_room_for_any_nothing_is_known() {
        let one = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        let denied =
            [Verdict { allowed: false, remaining: 0, reset_after_ms: 400, retry_after_ms: Some(300), delay_ms: 0 }];
        for bytes in [1, 64, 6_400] {
            let denials = Denials::new(bytes, Box::new(|| {}));
            let asked = [check("ann", one, 1)];
            denials.learn(&asked, &denied, Instant::now());
            assert!(denials.known(&asked, Instant::now()).is_none());
        }
    }

    #[tokio::test]
    async fn each_denial_that_is_known_is_told_and_none_without_room() {
        for (bytes, expected) in [(1 << 20, 9), (0, 0)] {
            let told = Arc::new(AtomicUsize::new(0));
            let on_hit = Arc::clone(&told);
            let on_hit = Box::new(move || {
                on_hit.fetch_add(1, Ordering::Relaxed);
            });
            let cache = DeniedCache::new(MemoryStore::default(), Arc::new(Denials::new(bytes, on_hit)));
            let closed = check("closed", limit(Algorithm::SlidingWindow, 0, 60_000, Options::default()), 1);
            for _ in 0..10 {
                let verdicts = cache.check(std::slice::from_ref(&closed), Instant::now()).await.unwrap();
                assert!(!verdicts[0].allowed);
            }
            assert_eq!(told.load(Ordering::Relaxed), expected);
        }
    }
}
