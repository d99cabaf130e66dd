//! A cache of known denials: a request that the store has denied stays denied here until the store would let it pass.
//!
//! While the store is available, the cache answers from a denial for at most [`FRESH`], so a client that repeats a
//! denied request costs the store nothing. While the store is unavailable, a denial holds to its end
//! ([`Store::known_denial`]): neither load nor an outage of the store opens a limit that is known to be used up.
//!
//! The cache denies nothing that the store would let pass. A denial says to the millisecond when the same request
//! passes again, and the cache counts from the time when it asked the store, on this process's clock. A denial holds
//! for the same number of hits, because fewer may pass and more must wait longer, and only for the limit that denied. A
//! refund, a reset or a lease returned through this process ends it. If it goes through another process, `tollgate
//! counter reset` included, it ends within [`FRESH`] while the store is available.
//!
//! The cache keeps one denial per counter. A denial of more hits does not replace a fresh one, so a client that asks
//! for one hit costs nothing, whatever other clients ask for. A denial that is no longer fresh is replaced. If it is of
//! fewer hits, the new denial keeps it, for use while the store is unavailable.
//!
//! The answer repeats the wait that the store reported. That wait may have become longer for a request of several hits
//! if other clients have taken fewer hits, and for a caller with a shorter maximum delay if others with a longer one
//! have passed.
//! The cache denies a request if a limit is known to deny it and no other limit counts denied requests, because the
//! store would then charge nothing. The store is therefore always asked:
//! - for a limit that counts denials;
//! - for a limit with a penalty, until there is a ban, because a penalty counts denials too;
//! - for concurrency, whose slots may be released at any moment;
//! - if the use of a counter is recorded, because the records include denials.
//!
//! The cache keeps nothing about a counter that a request asks twice: the first check of the request may have caused
//! the denial of the second.
//!
//! Leases come before the cache. A lease spends its hits first, and the cache sees what is returned. The denials of a
//! limit with leases say when a request passes at the latest: it may pass before, when an instance returns hits that it
//! has not used.
//!
//! The map is `quick_cache`. With it, as with the hand-written table before it, the server spends 0.98 of the time that
//! the same request costs on the memory store (`make bench-quick`, "keys over their limit").

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use super::Store;
use super::sharded::Sharded;
use crate::engine::algorithm::{Ask, Caller, Initial, Limit, MAX_HITS, Penalty, Verdict};
use crate::engine::check::group::Votes;
use crate::engine::check::{Ban, Check, CheckVerdict, Key, StoreError, Verdicts};
use crate::engine::descriptor::Role;
use crate::instant;

/// The longest time that the cache answers from a denial while the store is available. Refunds through other processes
/// take effect here at most this late.
const FRESH: Duration = Duration::from_secs(1);
/// The longest time that a denial is kept. A later end makes no difference.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Overhead of a denial in addition to its value and its key: its share of the table and of the queues.
const OVERHEAD: u64 = 64;
/// Factor for growth: up to half of a growing collection is empty.
const GROWTH: u64 = 2;

/// Bytes that a denial takes in addition to its key.
const ONE: u64 = GROWTH * (size_of::<(Key, Denial)>() as u64 + OVERHEAD);

/// A store behind a cache of known denials.
pub struct DeniedCache<S> {
    store: S,
    denials: Arc<Denials>,
}

/// The known denials of a process, shared by all its stores that lead to the same counters.
pub struct Denials {
    /// `None` if the bound is too small for a denial.
    cache: Option<Cache<Key, Denial, Bytes>>,
    /// When a request last refunded to a counter of each shard. Answers to questions asked before that may be outdated.
    refunded: Sharded<Option<Instant>>,
    on_hit: Box<dyn Fn() + Send + Sync>,
}

/// A denied check, with the store's answer.
#[derive(Clone, Debug)]
struct Denial {
    limit: Limit,
    penalty: Option<Penalty>,
    ask: Ask,
    caller: Caller,
    verdict: CheckVerdict,
    /// When the store was asked.
    asked: Instant,
    /// Until when the cache answers while the store is available.
    fresh_until: Instant,
    /// Until when the denial holds.
    until: Instant,
    /// An older denial of fewer hits, for as long as it holds.
    fewer: Option<Arc<Denial>>,
}

/// The size of a denial in bytes.
#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Denial> for Bytes {
    fn weight(&self, key: &Key, denial: &Denial) -> u64 {
        key.as_str().len() as u64 + if denial.fewer.is_some() { 2 * ONE } else { ONE }
    }
}

impl<S> DeniedCache<S> {
    /// Returns the store behind this cache.
    pub fn new(store: S, denials: Arc<Denials>) -> DeniedCache<S> {
        DeniedCache { store, denials }
    }
}

impl<S: Store> Store for DeniedCache<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let denials = &*self.denials;
        let asked = instant::now();
        if let Some(verdicts) = denials.fresh(checks, asked) {
            (denials.on_hit)();
            return Ok(verdicts);
        }
        // Forgets on an answer, and also if the caller drops the future, because the refund may have happened.
        let forget = Forget { denials, checks };
        let verdicts = self.store.check(checks, deadline).await;
        match &verdicts {
            Ok(verdicts) => denials.learn(checks, verdicts, asked),
            // A refund that has not happened lets nothing pass, so the denials remain.
            Err(error) if error.changes_nothing() => forget.nothing(),
            Err(_) => {}
        }
        verdicts
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        self.denials.known(check, Instant::now()).or_else(|| self.store.known_denial(check))
    }

    async fn close(&self, deadline: Instant) {
        self.store.close(deadline).await;
    }

    fn flush_log(&self) {
        self.store.flush_log();
    }
}

/// A guard that forgets, when dropped, the denials of counters that the checks refund to.
struct Forget<'c, C: Borrow<Check>> {
    denials: &'c Denials,
    checks: &'c [C],
}

impl<C: Borrow<Check>> Forget<'_, C> {
    /// Forgets no denials, because nothing was refunded.
    fn nothing(mut self) {
        self.checks = &[];
    }
}

impl<C: Borrow<Check>> Drop for Forget<'_, C> {
    fn drop(&mut self) {
        for check in self.checks.iter().map(Borrow::borrow).filter(|check| gives(check)) {
            self.denials.forget(&check.key, Instant::now());
        }
    }
}

impl Denials {
    /// Returns an empty cache of about this many bytes; with too few bytes it stays empty. `on_hit` is called for each
    /// request that the cache denies.
    pub fn new(bytes: u64, on_hit: Box<dyn Fn() + Send + Sync>) -> Denials {
        // Estimates no number of items: memory is allocated as needed.
        let cache = (bytes > ONE).then(|| Cache::with_weighter(0, bytes, Bytes));
        Denials { cache, refunded: Sharded::default(), on_hit }
    }

    /// Returns the verdicts of the store if it is known to deny the request and would charge nothing.
    fn fresh<C: Borrow<Check>>(&self, checks: &[C], now: Instant) -> Option<Verdicts> {
        let cache = self.cache.as_ref()?;
        // If the use of a counter is recorded, the store also records denials. A lease that is returned must arrive.
        if checks.iter().map(Borrow::borrow).any(|check| check.recorded.is_some() || returns_lease(check)) {
            return None;
        }
        let mut votes = Votes::default();
        let mut verdicts = Verdicts::with_capacity(checks.len());
        let (mut all_known, mut rest_ignores) = (true, true);
        for check in checks.iter().map(Borrow::borrow) {
            let denial =
                cache.get(&check.key).filter(|denial| denial.answers(check, now) && !is_repeated(check, checks));
            votes.add(check.role, check, denial.is_some());
            if denial.is_none() {
                all_known = false;
                rest_ignores &= ignores_denied(check);
            }
            verdicts.push(denial.map(|denial| denial.later(now)));
            if !all_known && !rest_ignores {
                return None;
            }
        }
        (!checks.is_empty() && (all_known || votes.deny())).then_some(verdicts)
    }

    /// Returns a denial that holds while the store is unavailable: of the same number of hits, or of fewer.
    fn known(&self, check: &Check, now: Instant) -> Option<CheckVerdict> {
        let denial = self.cache.as_ref()?.get(&check.key)?;
        let known = Some(&denial).filter(|denial| denial.holds_for(check, now));
        let known = known.or_else(|| denial.fewer.as_deref().filter(|denial| denial.holds_for(check, now)));
        known.map(|denial| denial.later(now))
    }

    /// Remembers the denials among these verdicts, except for counters that got a refund since the store was asked.
    fn learn<C: Borrow<Check>>(&self, checks: &[C], verdicts: &Verdicts, asked: Instant) {
        let Some(cache) = &self.cache else { return };
        for (check, verdict) in checks.iter().map(Borrow::borrow).zip(verdicts) {
            let Some(mut denial) = verdict.and_then(|verdict| Denial::new(check, verdict, asked)) else { continue };
            // A refund is noted under the same lock: either before this, or it finds what is inserted here.
            let refunded = self.refunded.of(&check.key).lock();
            let is_late = refunded.is_some_and(|at| at >= asked);
            let known = cache.get(&check.key);
            if is_late || is_repeated(check, checks) || known.as_ref().is_some_and(|known| known.goes_before(&denial)) {
                continue;
            }
            denial.fewer = known.and_then(|known| known.fewer_than(&denial));
            cache.insert(check.key.clone(), denial);
        }
    }

    /// Notes a refund to this counter.
    fn forget(&self, key: &Key, now: Instant) {
        let Some(cache) = &self.cache else { return };
        let mut refunded = self.refunded.of(key).lock();
        *refunded = (*refunded).max(Some(now));
        cache.remove(key);
    }
}

impl Denial {
    /// Returns the denial to remember from a check's verdict, if there is one.
    fn new(check: &Check, verdict: CheckVerdict, asked: Instant) -> Option<Denial> {
        let together = verdict.together();
        // No answer can predict when a slot is released.
        if together.allowed || check.limit.algorithm().has_holders() || check.ask.is_refund() || check.ask == Ask::Reset
        {
            return None;
        }
        let until = asked + together.retry_after_ms.map_or(LONGEST, wait).min(LONGEST);
        let asks_no_more = match (&check.penalty, verdict.ban) {
            // In shadow mode a ban denies no request: the limit is charged.
            (Some(penalized), Some(ban)) => ban.in_force && !penalized.penalty.extends() && check.role != Role::Shadow,
            _ => !verdict.own.allowed,
        };
        // A ban outlasts the denial that came with it, so when the ban ends the limit must be asked: take the ban
        // first.
        let own_ends = || Some(verdict.own).filter(|own| !own.allowed)?.retry_after_ms;
        let ends = verdict.banned_ms().or_else(own_ends);
        // A bucket that starts empty does so on a denied request too, and again once it has expired. The store must be
        // asked then.
        let begins_ms = (check.limit.options().initial == Some(Initial::Empty)).then_some(verdict.own.reset_after_ms);
        let fresh = [ends, begins_ms].into_iter().flatten().map(wait).fold(FRESH, Duration::min);
        let is_fresh = asks_no_more && check.limit.denials_last();
        let fresh_until = if is_fresh { asked + fresh } else { asked };
        let penalty = check.penalty.as_ref().map(|penalized| penalized.penalty);
        let Check { limit, ask, caller, .. } = *check;
        Some(Denial { limit, penalty, ask, caller, verdict, asked, fresh_until, until, fewer: None })
    }

    /// Returns whether the cache may answer this check in place of an available store.
    fn answers(&self, check: &Check, now: Instant) -> bool {
        let waits_as_long = || check.limit.max_delay_ms(check.caller) == check.limit.max_delay_ms(self.caller);
        now < self.fresh_until && check.ask == self.ask && self.is_of(check) && waits_as_long()
    }

    /// Returns whether this denies the check: the same number of hits or more, of a caller that accepts no longer
    /// delay. A ban denies every request.
    fn holds_for(&self, check: &Check, now: Instant) -> bool {
        let at_least = || {
            let waits_no_longer = check.limit.max_delay_ms(check.caller) <= check.limit.max_delay_ms(self.caller);
            self.ask.taken() <= check.ask.taken() && now < self.until && waits_no_longer
        };
        matches!(check.ask, Ask::Take(_) | Ask::Peek) && self.is_of(check) && (at_least() || self.bans(now))
    }

    /// Returns whether this came with a ban that is still in force.
    fn bans(&self, now: Instant) -> bool {
        self.verdict.banned_ms().is_some_and(|ms| now < self.asked + wait(ms))
    }

    /// Returns whether this is a denial by the check's limit.
    fn is_of(&self, check: &Check) -> bool {
        check.limit == self.limit && check.penalty.as_ref().map(|penalized| penalized.penalty) == self.penalty
    }

    /// Returns whether this keeps its place against the other: it is still fresh, and of fewer hits, which clients ask
    /// for more often. A peek ranks last.
    fn goes_before(&self, other: &Denial) -> bool {
        let rank = |denial: &Denial| denial.ask.taken().checked_sub(1).unwrap_or(u64::MAX);
        self.has_terms_of(other) && other.asked < self.fresh_until && rank(self) < rank(other)
    }

    /// Returns the denial to keep when the other replaces this: of this and the one kept with it, the one of the fewest
    /// hits that still holds. It must be of fewer hits than the other.
    fn fewer_than(mut self, other: &Denial) -> Option<Arc<Denial>> {
        let lasts = |denial: &Denial| {
            denial.has_terms_of(other) && other.asked < denial.until && denial.ask.taken() < other.ask.taken()
        };
        let fewest = self.fewer.take().filter(|denial| lasts(denial));
        fewest.or_else(|| lasts(&self).then(|| Arc::new(self)))
    }

    fn has_terms_of(&self, other: &Denial) -> bool {
        (self.limit, self.penalty) == (other.limit, other.penalty)
    }

    /// Returns the verdict with its times counted down to now.
    fn later(&self, now: Instant) -> CheckVerdict {
        let elapsed_ms = u64::try_from(now.duration_since(self.asked).as_millis()).unwrap_or(u64::MAX);
        let CheckVerdict { own, ban, .. } = self.verdict;
        let own = Verdict {
            // None of the hits asked for now is counted, so all of them are above the number.
            excess: own.excess.map(|_| MAX_HITS),
            reset_after_ms: own.reset_after_ms.saturating_sub(elapsed_ms),
            retry_after_ms: own.retry_after_ms.map(|ms| ms.saturating_sub(elapsed_ms)),
            ..own
        };
        let ban = ban.map(|ban| Ban { left_ms: ban.left_ms.saturating_sub(elapsed_ms), ..ban });
        CheckVerdict { own, ban, is_known: true, ..self.verdict }
    }
}

/// Returns how long a store denies after it reported this wait. Its clock is truncated to milliseconds and may have
/// been almost one millisecond later than reported.
fn wait(ms: u64) -> Duration {
    Duration::from_millis(ms.saturating_sub(1))
}

/// Returns whether the check refunds hits, returns a lease or resets the counter.
fn gives(check: &Check) -> bool {
    let gives = check.ask.returns_hits() || check.ask == Ask::Reset || returns_lease(check);
    gives && !check.limit.algorithm().has_holders()
}

fn returns_lease(check: &Check) -> bool {
    check.leased.as_ref().is_some_and(|leased| leased.ask.returned.is_some())
}

/// Returns whether a check has no effect once its request is denied: a take that changes neither its counter nor the
/// statistics of a limit in shadow mode.
fn ignores_denied(check: &Check) -> bool {
    matches!(check.ask, Ask::Take(_))
        && check.limit.ignores_denied()
        && check.penalty.is_none()
        && check.role != Role::Shadow
}

/// Returns whether the request asks the check's counter more than once.
fn is_repeated<C: Borrow<Check>>(check: &Check, checks: &[C]) -> bool {
    checks.iter().filter(|other| (*other).borrow().key == check.key).count() > 1
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;
    use std::slice::from_ref;

    use crate::engine::algorithm::{Algorithm, Options, TimeZone};
    use crate::engine::check::group;
    use crate::engine::check::{Origin, Penalized};
    use crate::engine::clock::Clock;
    use crate::store::memory::MemoryStore;

    /// Milliseconds since the epoch, set by hand in microseconds.
    #[derive(Clone, Default)]
    struct HandClock(Arc<AtomicU64>);

    impl Clock for HandClock {
        fn now(&self) -> u64 {
            1_784_000_000_000 + self.0.load(Ordering::Relaxed) / 1_000
        }
    }

    fn check(name: &str, limit: Limit, hits: i64) -> Check {
        let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
        let amount = hits.unsigned_abs();
        let ask = if hits < 0 { Ask::refund(amount) } else { Ask::take(amount) };
        Check::new(key, limit, ask.unwrap())
    }

    fn memory(clock: &HandClock) -> MemoryStore<HandClock> {
        MemoryStore::new(clock.clone(), usize::MAX)
    }

    /// Returns the verdicts of a store that denies for this long.
    fn denied(retry_after_ms: u64) -> Verdicts {
        let own =
            Verdict { reset_after_ms: retry_after_ms + 100, retry_after_ms: Some(retry_after_ms), ..Verdict::NOTHING };
        Verdicts::from([Some(CheckVerdict::new(own, 0))])
    }

    fn limit(algorithm: Algorithm, number: u64, period_ms: u64, options: Options) -> Limit {
        Limit::new(algorithm, number, Duration::from_millis(period_ms), options).unwrap()
    }

    fn unbounded() -> Denials {
        Denials::new(1 << 30, Box::new(|| {}))
    }

    /// Generates steps: counter, hits, maximum delay, time since the previous request, and travel time to the store in
    /// microseconds.
    fn steps() -> impl Strategy<Value = Vec<(usize, i64, u64, u64, u64)>> {
        let hits = prop_oneof![6 => 1..4_i64, 1 => Just(0), 1 => -3..0_i64, 1 => 4..40_i64];
        let wait = prop_oneof![4 => 0..300_u64, 3 => 0..5_000_u64, 1 => 0..100_000_u64];
        let max_wait_ms = prop::sample::select(vec![u64::MAX, 20, 0]);
        prop::collection::vec((0..3_usize, hits, max_wait_ms, wait, 0..2_000_u64), 1..150)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn what_is_known_is_just_what_the_store_says(
            algorithms in prop::collection::vec(
                (prop::sample::select(Algorithm::ALL), 0..5_u64, 1..60_u64, prop::option::of(1..4_u32), any::<bool>()),
                3,
            ),
            // The range starts a second before midnight in Santo Domingo.
            begin in 1_599_000_000..1_600_000_000_u64, steps in steps()
        ) {
            let clock = HandClock::default();
            let store = memory(&clock);
            let denials = unbounded();
            let of = |(algorithm, number, period_ms, after, is_other): (Algorithm, _, u64, Option<u32>, bool)| {
                let [within, ban] = [period_ms * 3, period_ms * 2].map(Duration::from_millis);
                let penalty = after.map(|after| Penalty::new(after, within, ban, after == 3).unwrap());
                let max_delay = algorithm.options().contains(&"max_delay").then_some(Duration::from_millis(40));
                let initial = (is_other && algorithm.options().contains(&"initial")).then_some(Initial::Empty);
                let has_calendar = is_other && algorithm.options().contains(&"time_zone");
                let time_zone = TimeZone::named("America/Santo_Domingo").filter(|_| has_calendar);
                let count_denied = time_zone.map(|_| false);
                let period_ms = if has_calendar { 24 * 60 * 60 * 1_000 } else { period_ms };
                let options = Options { max_delay, initial, time_zone, count_denied, ..Options::default() };
                (limit(algorithm, number, period_ms, options), penalty)
            };
            let limits: Vec<(Limit, Option<Penalty>)> = algorithms.into_iter().map(of).collect();
            let origin = Instant::now();
            let mut now = begin;
            for (which, hits, max_wait_ms, wait, way) in steps {
                now += wait;
                clock.0.store(now, Ordering::Relaxed);
                let (limit, penalty) = limits[which];
                let asked = check(&format!("c{which}"), limit, hits);
                let penalty = penalty.map(|penalty| Penalized { key: asked.key.of_penalty(&penalty), penalty });
                let caller = Caller { max_wait_ms, ..Caller::default() };
                let checks = vec![Check { penalty, caller, ..asked }];
                let at = |now: u64| origin + Duration::from_micros(now);
                // A denial that is known while the store is unavailable is true, however old it is.
                if let Some(known) = denials.known(&checks[0], at(now)) {
                    let said = store.decide(&[Check { ask: Ask::Peek, ..checks[0].clone() }]).unwrap()[0].unwrap();
                    let passes = said.allowed() && said.together().remaining >= checks[0].ask.taken();
                    prop_assert!(!known.allowed() && !passes, "{:?} is let pass: {:?}", checks, said);
                }
                match denials.fresh(&checks, at(now)) {
                    Some(known) => {
                        // Asking the store now changes nothing in it: only such denials are answered here.
                        let said = store.decide(&checks).unwrap();
                        let [known, said] = [known, said].map(|verdicts| verdicts[0].unwrap().together());
                        prop_assert!(!known.allowed && !said.allowed, "{:?} is let pass", checks);
                        prop_assert_eq!(known.retry_after_ms.is_none(), said.retry_after_ms.is_none());
                        if let Some((known_ms, said_ms)) = known.retry_after_ms.zip(said.retry_after_ms) {
                            // If no other request can have passed meanwhile, the waits are equal except for the travel
                            // time and the truncation to milliseconds.
                            prop_assert!(known_ms <= said_ms + 3, "{:?}, {:?}", known, said);
                            let others_pass = hits > 1 || max_wait_ms < u64::MAX;
                            prop_assert!(others_pass || known_ms + 3 >= said_ms, "{:?}, {:?}", known, said);
                        }
                    }
                    None => {
                        clock.0.store(now + way, Ordering::Relaxed);
                        let verdicts = store.decide(&checks).unwrap();
                        denials.learn(&checks, &verdicts, at(now));
                        now += way;
                        for check in checks.iter().filter(|check| gives(check)) {
                            denials.forget(&check.key, at(now));
                        }
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Checks requests of two counters, one of which is often known to be over its limit: the answer equals the
        /// store's, and the store is charged as if it had been asked.
        #[test]
        fn a_request_that_one_known_denial_denies_is_denied_and_charged_to_none(
            algorithms in prop::collection::vec(
                (prop::sample::select(Algorithm::ALL), 0..5_u64, any::<bool>(), any::<bool>()),
                2,
            ),
            steps in prop::collection::vec(
                (
                    0..3_usize,
                    1..3_i64,
                    0..60_000_u64,
                    prop::sample::select(vec![Role::Enforced, Role::Quota, Role::Shadow]),
                ),
                1..80,
            )
        ) {
            let clock = HandClock::default();
            let (store, twin) = (memory(&clock), memory(&clock));
            let denials = unbounded();
            let limits: Vec<Limit> = algorithms.into_iter().map(|(algorithm, number, is_empty, counts)| {
                let initial = (is_empty && algorithm.options().contains(&"initial")).then_some(Initial::Empty);
                let count_denied = (!algorithm.has_holders()).then_some(counts);
                limit(algorithm, number, 100, Options { initial, count_denied, ..Options::default() })
            }).collect();
            let (origin, mut now) = (Instant::now(), 0);
            for (which, hits, wait, role) in steps {
                now += wait;
                clock.0.store(now, Ordering::Relaxed);
                let of = |i: usize| Check {
                    descriptor: i,
                    role: if i == 0 { role } else { Role::Enforced },
                    ..check(&format!("c{i}"), limits[i], hits)
                };
                let checks = match which {
                    2 => vec![of(0), of(1)],
                    one => vec![of(one)],
                };
                let at = origin + Duration::from_micros(now);
                let said = twin.decide(&checks).unwrap();
                let denied = |verdicts: &Verdicts| {
                    let mut votes = Votes::default();
                    for (check, verdict) in checks.iter().zip(verdicts) {
                        votes.add(check.role, check, verdict.is_some_and(|verdict| !verdict.allowed()));
                    }
                    votes.deny()
                };
                let answer = denials.fresh(&checks, at).unwrap_or_else(|| {
                    let verdicts = store.decide(&checks).unwrap();
                    denials.learn(&checks, &verdicts, at);
                    verdicts
                });
                prop_assert_eq!(denied(&answer), denied(&said), "{:?}: {:?}, {:?}", checks, answer, said);
                for (known, said) in answer.iter().zip(&said).filter_map(|(known, said)| known.zip(*said)) {
                    prop_assert_eq!(known.allowed(), said.allowed());
                }
                for i in 0..2 {
                    let peek = [Check { ask: Ask::Peek, ..of(i) }];
                    let [asked, unasked] = [&twin, &store].map(|store| store.decide(&peek).unwrap()[0].unwrap());
                    prop_assert_eq!(asked.own.remaining, unasked.own.remaining);
                }
            }
        }
    }

    #[test]
    fn a_denial_is_known_until_the_request_passes_again() {
        let (denials, origin) = (unbounded(), Instant::now());
        let asked = check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1);
        denials.learn(from_ref(&asked), &denied(300), origin);
        let known = |check: &Check, ms: u64| denials.fresh(from_ref(check), origin + Duration::from_millis(ms));
        let later = denied(200).into_iter().flatten().map(|verdict| Some(CheckVerdict { is_known: true, ..verdict }));
        assert_eq!(known(&asked, 100), Some(later.collect()));
        assert!(known(&asked, 298).is_some() && known(&asked, 299).is_none());
        for other in [
            check("ann", asked.limit, 2),
            check("ann", asked.limit, 0),
            check("bob", asked.limit, 1),
            Check { limit: limit(Algorithm::SlidingLog, 2, 500, Options::default()), ..asked.clone() },
        ] {
            assert!(known(&other, 100).is_none(), "{other:?}");
        }
        // One counter that denies is enough, and the other is not asked.
        let both = [asked.clone(), Check { descriptor: 1, ..check("bob", asked.limit, 1) }];
        assert_eq!(denials.fresh(&both, origin).unwrap()[1], None);
        let shadow = [asked.clone(), Check { role: Role::Shadow, ..both[1].clone() }];
        assert!(denials.fresh(&shadow, origin).is_none(), "what a limit in shadow mode says is to be seen");
    }

    #[test]
    fn while_the_store_cannot_be_asked_a_denial_holds_to_its_end_and_a_refund_ends_it() {
        let origin = Instant::now();
        let counted = Options { count_denied: Some(true), ..Options::default() };
        for options in [Options::default(), counted] {
            let denials = unbounded();
            let asked = check("ann", limit(Algorithm::SlidingLog, 1, 60_000, options), 2);
            denials.learn(from_ref(&asked), &denied(50_000), origin);
            let at = |ms| origin + Duration::from_millis(ms);
            let known = |check: &Check, ms| denials.known(check, at(ms)).map(|verdict| verdict.own.retry_after_ms);
            assert!(denials.fresh(from_ref(&asked), at(1_000)).is_none());
            assert_eq!(known(&asked, 20_000), Some(Some(30_000)));
            assert_eq!((known(&asked, 49_998).is_some(), known(&asked, 49_999)), (true, None));
            let of = |hits| check("ann", asked.limit, hits);
            assert_eq!([1, 2, 3, 0].map(|hits| known(&of(hits), 20_000).is_some()), [false, true, true, false]);
            denials.forget(&asked.key, at(20_000));
            assert_eq!(known(&asked, 20_000), None);
        }
        let denials = unbounded();
        let stream = check("ann", limit(Algorithm::Concurrency, 1, 60_000, Options::default()), 1);
        denials.learn(from_ref(&stream), &denied(50_000), origin);
        assert!(denials.known(&stream, origin).is_none(), "a slot is released at any moment");
    }

    #[test]
    fn while_the_store_cannot_be_asked_a_ban_denies_any_number_of_hits() {
        let (denials, origin) = (unbounded(), Instant::now());
        let penalty = Penalty::new(1, Duration::from_secs(60), Duration::from_secs(60), false).unwrap();
        let of = |hits| {
            let check = check("ann", limit(Algorithm::SlidingLog, 1, 60_000, Options::default()), hits);
            Check { penalty: Some(Penalized { key: check.key.of_penalty(&penalty), penalty }), ..check }
        };
        let ban = Ban { in_force: true, left_ms: 30_000 };
        let banned = CheckVerdict { ban: Some(ban), ..denied(50_000)[0].unwrap() };
        denials.learn(&[of(5)], &smallvec::smallvec![Some(banned)], origin);
        let known = |ms| [1, 5].map(|hits| denials.known(&of(hits), origin + Duration::from_millis(ms)).is_some());
        assert_eq!([29_998, 29_999, 49_998, 49_999].map(known), [[true; 2], [false, true], [false, true], [false; 2]]);
    }

    /// A store that always fails.
    struct Failing(StoreError);

    impl Store for Failing {
        async fn check<C: Borrow<Check> + Sync>(&self, _: &[C], _: Instant) -> Result<Verdicts, StoreError> {
            Err(self.0.clone())
        }
    }

    #[tokio::test]
    async fn a_refund_ends_a_denial_unless_it_is_certain_that_nothing_was_refunded() {
        use StoreError::{Connection, Down, Overloaded, Timeout};
        let down = Down("nobody listens".into());
        for (error, is_known) in [(down, true), (Overloaded, true), (Timeout, false), (Connection("".into()), false)] {
            let denials = Arc::new(unbounded());
            let asked = check("ann", limit(Algorithm::SlidingLog, 1, 60_000, Options::default()), 1);
            denials.learn(from_ref(&asked), &denied(50_000), Instant::now());
            let cache = DeniedCache::new(Failing(error.clone()), Arc::clone(&denials));
            let refund = check("ann", asked.limit, -1);
            cache.check(from_ref(&refund), Instant::now()).await.unwrap_err();
            assert_eq!(cache.known_denial(&asked).is_some(), is_known, "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_taken_back_ends_a_denial_as_a_refund_does() {
        let denials = Arc::new(unbounded());
        let cache = DeniedCache::new(memory(&HandClock::default()), Arc::clone(&denials));
        let asked = check("ann", limit(Algorithm::SlidingLog, 1, 60_000, Options::default()), 1);
        let ask = async |check: &Check| cache.check(from_ref(check), Instant::now()).await.unwrap()[0].unwrap();
        let charged = ask(&asked).await;
        assert!(!ask(&asked).await.allowed() && ask(&asked).await.is_known);
        ask(&group::take_back(&asked, &charged).unwrap()).await;
        assert!(ask(&asked).await.allowed());
    }

    #[test]
    fn while_the_store_cannot_be_asked_a_denial_of_more_hits_opens_the_limit_for_no_fewer() {
        let (denials, origin) = (unbounded(), Instant::now());
        let limited = limit(Algorithm::SlidingLog, 1, 60_000, Options::default());
        let of = |hits| check("ann", limited, hits);
        let at = |ms| origin + Duration::from_millis(ms);
        let learn = |hits, retry_after_ms, ms| denials.learn(&[of(hits)], &denied(retry_after_ms), at(ms));
        let known = |ms| [1, 2, 5, 9].map(|hits| denials.known(&of(hits), at(ms)).is_some());
        learn(2, 20_000, 0);
        for (hits, ms) in [(5, 2_000), (5, 4_000), (9, 6_000), (5, 8_000)] {
            learn(hits, 50_000, ms);
            assert!(denials.fresh(&[of(hits)], at(ms)).is_some(), "it is what the store has said last");
            assert_eq!(known(ms), [false, true, true, true], "after a denial of {hits}");
        }
        assert_eq!(denials.known(&of(2), at(8_000)).and_then(|verdict| verdict.own.retry_after_ms), Some(12_000));
        assert_eq!(known(20_000), [false, false, true, true], "two pass again");
        learn(1, 50_000, 21_000);
        assert_eq!(known(21_000), [true; 4]);
        learn(2, 50_000, 23_000);
        denials.forget(&of(1).key, at(23_000));
        assert_eq!(known(23_000), [false; 4]);
    }

    #[test]
    fn a_counter_that_is_asked_twice_in_a_request_is_not_known_to_deny_the_next_one() {
        let (denials, store) = (unbounded(), memory(&HandClock::default()));
        let once = check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1);
        let twice = [once.clone(), once.clone()];
        denials.learn(&twice, &store.decide(&twice).unwrap(), Instant::now());
        assert!(denials.fresh(from_ref(&once), Instant::now()).is_none());
        assert!(store.decide(from_ref(&once)).unwrap()[0].unwrap().allowed());
        // A known denial of one check does not answer for two of them, which must wait longer.
        denials.learn(from_ref(&once), &store.decide(from_ref(&once)).unwrap(), Instant::now());
        assert!(denials.fresh(from_ref(&once), Instant::now()).is_some());
        assert!(denials.fresh(&twice, Instant::now()).is_none());
    }

    #[test]
    fn of_one_counter_the_denial_of_the_fewest_hits_is_known() {
        let (denials, origin) = (unbounded(), Instant::now());
        let limited = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        let at = |ms| origin + Duration::from_millis(ms);
        let learn = |limit, hits, ms| denials.learn(&[check("ann", limit, hits)], &denied(300), at(ms));
        let known = |limit, ms| {
            [0, 1, 2, 3].into_iter().find(|hits| denials.fresh(&[check("ann", limit, *hits)], at(ms)).is_some())
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
    fn an_answer_from_before_a_refund_is_not_believed() {
        let (denials, origin) = (unbounded(), Instant::now());
        let asked = [check("ann", limit(Algorithm::SlidingLog, 1, 500, Options::default()), 1)];
        denials.forget(&asked[0].key, origin);
        denials.learn(&asked, &denied(300), origin);
        assert!(denials.fresh(&asked, origin).is_none());
        let later = origin + Duration::from_millis(1);
        denials.learn(&asked, &denied(300), later);
        assert!(denials.fresh(&asked, later).is_some());
        // A refund that is noted late does not replace a later one.
        denials.forget(&asked[0].key, later);
        denials.forget(&asked[0].key, origin);
        denials.learn(&asked, &denied(300), later);
        assert!(denials.fresh(&asked, later).is_none());
    }

    #[test]
    fn a_refund_elsewhere_is_no_reason_not_to_believe_an_answer() {
        let (denials, origin) = (unbounded(), Instant::now());
        let one = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        let asked: Vec<Check> = (0..1_000).map(|i| check(&format!("user{i}"), one, 1)).collect();
        denials.forget(&check("ann", one, -1).key, origin);
        asked.iter().for_each(|asked| denials.learn(from_ref(asked), &denied(300), origin));
        let known = asked.iter().filter(|asked| denials.fresh(from_ref(*asked), origin).is_some()).count();
        assert!((900..1_000).contains(&known), "{known} of a thousand, of which a few are in the same shard");
    }

    #[test]
    fn without_room_for_any_nothing_is_known() {
        let one = limit(Algorithm::SlidingLog, 1, 500, Options::default());
        for bytes in [0, 1, 64] {
            let denials = Denials::new(bytes, Box::new(|| {}));
            let asked = [check("ann", one, 1)];
            denials.learn(&asked, &denied(300), Instant::now());
            assert!(denials.fresh(&asked, Instant::now()).is_none());
        }
    }

    #[tokio::test]
    async fn each_known_denial_is_counted_and_none_without_room() {
        for (bytes, expected) in [(1 << 20, 9), (0, 0)] {
            let hits = Arc::new(AtomicUsize::new(0));
            let on_hit = Arc::clone(&hits);
            let on_hit = Box::new(move || {
                on_hit.fetch_add(1, Ordering::Relaxed);
            });
            let cache = DeniedCache::new(MemoryStore::default(), Arc::new(Denials::new(bytes, on_hit)));
            let closed = check("closed", limit(Algorithm::SlidingWindow, 0, 60_000, Options::default()), 1);
            for _ in 0..10 {
                let verdicts = cache.check(from_ref(&closed), Instant::now()).await.unwrap();
                assert!(!verdicts[0].unwrap().allowed());
            }
            assert_eq!(hits.load(Ordering::Relaxed), expected);
        }
    }
}
