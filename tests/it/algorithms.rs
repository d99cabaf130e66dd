//! The promises of every algorithm, as properties.

mod take_back;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::limits::{
    any_change, any_limit, any_penalty, any_time_zone, ask, bound, calendar_limit, forgets, longest_memory_ms,
    max_wait_ms, memory_ms, most_remaining, small_limit,
};
use proptest::prelude::*;
use tollgate::engine::algorithm::{
    Algorithm, Ask, Caller, Effect, Event, Initial, Limit, LimitError, LimitErrors, MAX_HITS, Options, Outcome,
    Penalty, PenaltyError, Starts, State, TimeZone, Verdict,
};
use tollgate::engine::check::group;
use tollgate::engine::check::{Check, Key, Origin};

/// Milliseconds since the epoch, some day in 2026, where every sequence begins.
const START: u64 = 1_784_000_000_123;

/// A counter and its clock.
#[derive(Clone, Debug)]
struct Counter {
    limit: Limit,
    caller: Caller,
    state: Option<State>,
    now: u64,
}

impl Counter {
    fn new(limit: Limit, now: u64) -> Counter {
        Counter { limit, caller: Caller::default(), state: None, now }
    }

    /// Takes hits; negative ones are refunded.
    fn take(&mut self, hits: i64) -> Verdict {
        self.ask(ask(hits))
    }

    fn ask(&mut self, ask: Ask) -> Verdict {
        let Outcome { effect, verdict } = self.limit.decide(ask, self.caller, self.state.as_ref(), self.now);
        self.state = effect.apply(self.state.take());
        verdict
    }

    /// Returns the verdict for `hits` at `now`, without changing the counter.
    fn at(&self, now: u64, hits: i64) -> Verdict {
        Counter { now, ..self.clone() }.take(hits)
    }

    fn peek(&self) -> Verdict {
        self.at(self.now, 0)
    }

    fn held_by(self, holder: u64) -> Counter {
        Counter { caller: Caller { holder, ..self.caller }, ..self }
    }

    fn within(self, max_wait_ms: u64) -> Counter {
        Counter { caller: Caller { max_wait_ms, ..self.caller }, ..self }
    }
}

/// A check of the counter of this number.
fn check(counter: usize, limit: Limit, hits: u64) -> Check {
    let key = Key::new("", &format!("c{counter}"), &[], |_| None, &limit, Origin::Rule);
    Check::new(key, limit, Ask::take(hits).unwrap())
}

/// Hits, and how much later they come, in 64ths of what the limit remembers.
fn steps() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let hits = prop_oneof![6 => 1..4_i64, 2 => 4..40_i64, 1 => Just(0), 1 => -5..0_i64, 1 => 1..=MAX_HITS as i64];
    prop::collection::vec((hits, prop_oneof![2 => Just(0), 3 => 0..8_u64, 1 => 0..80_u64]), 0..40)
}

fn later(limit: &Limit, sixty_fourths: u64) -> u64 {
    (u128::from(memory_ms(limit)) * u128::from(sixty_fourths) / 64) as u64
}

/// A counter somewhere in its life.
fn used(limit: Limit, start: u64, steps: &[(i64, u64)]) -> Counter {
    let mut counter = Counter::new(limit, start);
    for (hits, wait) in steps {
        counter.now += later(&limit, *wait);
        counter.take(*hits);
    }
    counter
}

/// Generates a counter whose limit may just have been changed.
fn any_counter() -> impl Strategy<Value = Counter> {
    let limit = prop_oneof![any_limit(), small_limit()];
    (limit, 0..1_000_000_u64, steps(), prop::option::weighted(0.3, any_change())).prop_map(
        |(limit, offset, steps, change)| {
            let counter = used(limit, START + offset, &steps);
            Counter { limit: change.and_then(|change| change.of(&limit)).unwrap_or(limit), ..counter }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_interval_of_one_period_admits_more_than_the_bound(
        limit in small_limit(), offset in 0..1_000_u64,
        steps in prop::collection::vec((1..6_i64, prop_oneof![3 => 0..2_u64, 2 => 0..10_u64, 1 => 0..200_u64]), 1..120)
    ) {
        let mut counter = Counter::new(limit, START + offset);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (hits, wait) in steps {
            counter.now += wait;
            let verdict = counter.take(hits);
            if verdict.allowed {
                admitted.push((counter.now + verdict.delay_ms, hits as u64));
            }
        }
        for (from, _) in &admitted {
            let within = |at: u64| (*from..=from + limit.period_ms()).contains(&at);
            let sum: u64 = admitted.iter().filter(|(at, _)| within(*at)).map(|(_, hits)| hits).sum();
            prop_assert!(sum <= bound(&limit, 5), "{sum} in the period from {from}");
        }
    }

    /// Clocks may step back by up to an hour, which does not start a new window.
    #[test]
    fn no_window_of_a_calendar_admits_more_than_its_number(
        limit in calendar_limit(Algorithm::FixedWindow), offset in 0..400 * 86_400_000_u64,
        steps in prop::collection::vec(
            (1..4_i64, prop_oneof![3 => 0..3_600_000_u64, 2 => 0..86_400_000_u64, 1 => 0..40 * 86_400_000_u64]), 1..120
        ), back in prop::collection::vec(0..=3_600_000_u64, 120)
    ) {
        let mut counter = Counter::new(limit, START + offset);
        let mut latest = counter.now;
        let mut admitted: BTreeMap<u64, u64> = BTreeMap::new();
        for ((hits, wait), back) in steps.into_iter().zip(back) {
            latest += wait;
            let windows = [latest, latest - back].map(|now| now + Counter::new(limit, now).peek().reset_after_ms);
            for (now, windows) in [(latest, &windows[..1]), (latest - back, &windows)] {
                counter.now = now;
                let verdict = counter.take(hits);
                let window = now + verdict.reset_after_ms;
                prop_assert!(windows.contains(&window), "{window} at {now}");
                if verdict.allowed {
                    *admitted.entry(window).or_default() += hits as u64;
                }
            }
        }
        for (window, sum) in admitted {
            prop_assert!(sum <= limit.number(), "{sum} in the window until {window}");
        }
    }

    /// Tests with another time zone as well.
    #[test]
    fn processes_that_know_different_rules_of_a_zone_begin_a_window_anew_once_at_most(
        limit in prop_oneof![calendar_limit(Algorithm::FixedWindow), calendar_limit(Algorithm::Budget)],
        zone in any_time_zone(), offset in 0..400 * 86_400_000_u64,
        others in prop::collection::vec(any::<bool>(), 1..60)
    ) {
        let options = Options { time_zone: Some(zone), ..limit.options() };
        let other = Limit::new(limit.algorithm(), limit.number(), limit.period(), options).unwrap();
        let mut counter = Counter::new(limit, START + offset);
        let mut admitted = 0;
        for is_other in others {
            counter.limit = if is_other { other } else { limit };
            admitted += u64::from(counter.take(1).allowed);
        }
        prop_assert!(admitted <= 2 * limit.number(), "{admitted}");
    }

    #[test]
    fn as_many_as_remain_pass_and_one_more_does_not(counter in any_counter()) {
        let remaining = counter.peek().remaining as i64;
        prop_assert!(remaining == 0 || counter.at(counter.now, remaining).allowed);
        prop_assert!(!counter.at(counter.now, remaining + 1).allowed);
    }

    #[test]
    fn what_remains_is_reported_after_the_charge(counter in any_counter(), hits in 0..50_i64) {
        let mut counter = counter;
        let verdict = counter.take(hits);
        prop_assert_eq!(verdict.remaining, counter.peek().remaining);
        prop_assert_eq!(verdict.reset_after_ms, counter.peek().reset_after_ms);
    }

    #[test]
    fn a_denied_request_passes_after_retry_after_and_not_a_millisecond_before(
        counter in any_counter(), max_wait in max_wait_ms(), more in prop_oneof![0..3_i64, 0..=MAX_HITS as i64]
    ) {
        let mut counter = counter.within(max_wait);
        let hits = (counter.peek().remaining as i64 + more).min(MAX_HITS as i64);
        let verdict = counter.take(hits);
        match verdict.retry_after_ms {
            Some(0) => prop_assert!(verdict.allowed),
            Some(retry_after) => {
                prop_assert!(!verdict.allowed);
                prop_assert!(counter.at(counter.now + retry_after, hits).allowed);
                prop_assert!(!counter.at(counter.now + retry_after - 1, hits).allowed);
            }
            None => {
                prop_assert!(!verdict.allowed);
                let fresh = Counter { state: None, ..counter.clone() };
                let forgets = forgets(&counter.limit);
                prop_assert!(!forgets || hits > fresh.peek().remaining as i64);
                prop_assert!(!forgets || !counter.at(counter.now + memory_ms(&counter.limit), hits).allowed);
            }
        }
    }

    #[test]
    fn a_denied_request_of_several_checks_passes_when_the_longest_wait_is_over_and_not_a_millisecond_before(
        limits in prop::collection::vec(small_limit(), 2),
        used in prop::collection::vec((0..2_usize, 1..6_i64, 0..40_u64), 0..20),
        asked in [0..6_u64, 0..6]
    ) {
        let asked: Vec<(usize, u64)> = asked.into_iter().enumerate().collect();
        // A bucket that starts empty can be forgotten while the request waits for another counter.
        prop_assume!(limits.iter().all(|limit| limit.options().initial != Some(Initial::Empty)));
        let mut counters: Vec<Counter> = limits.into_iter().map(|limit| Counter::new(limit, START)).collect();
        for (which, hits, wait) in used {
            counters.iter_mut().for_each(|counter| counter.now += wait);
            counters[which].take(hits);
        }
        let checks: Vec<Check> =
            asked.iter().map(|(which, hits)| check(*which, counters[*which].limit, *hits)).collect();
        let mut states: Vec<Option<State>> = counters.iter().map(|counter| counter.state.clone()).collect();
        let now = counters[0].now;
        let (verdicts, effects) = group::decide(&checks, now, |i| states[i].as_ref());
        for (i, effect) in effects {
            states[i] = effect.apply(states[i].take());
        }
        let verdicts: Vec<Verdict> = verdicts.into_iter().flatten().map(|verdict| verdict.own).collect();
        let passes = |now: u64| {
            let (verdicts, _) = group::decide(&checks, now, |i| states[i].as_ref());
            verdicts.iter().flatten().all(|verdict| verdict.allowed())
        };
        let denied = || verdicts.iter().filter(|verdict| !verdict.allowed);
        let denies = |counter: usize| (0..checks.len()).any(|i| asked[i].0 == counter && !verdicts[i].allowed);
        // A limit that counts denials may want to delay the charge of a request that only other limits deny. No check
        // reports that.
        let charged = |counter: &usize| counters[*counter].limit.count_denied() && !denies(*counter);
        if denied().next().is_none() || asked.iter().any(|(counter, _)| charged(counter)) {
            return Ok(());
        }
        match denied().map(|verdict| verdict.retry_after_ms).collect::<Option<Vec<u64>>>() {
            Some(waits) => {
                let longest = waits.into_iter().max().unwrap();
                prop_assert!(longest > 0 && passes(now + longest), "it does not pass after {longest}: {verdicts:?}");
                prop_assert!(!passes(now + longest - 1), "it passes before {longest}: {verdicts:?}");
            }
            None => {
                let memory = counters.iter().map(|counter| memory_ms(&counter.limit)).max().unwrap();
                prop_assert!(!passes(now + memory), "it can pass: {verdicts:?}");
            }
        }
    }

    #[test]
    fn after_reset_after_a_counter_is_as_fresh(counter in any_counter(), later in 0..10_000_u64, hits in -3..50_i64) {
        prop_assume!(forgets(&counter.limit));
        let now = counter.now + counter.peek().reset_after_ms + later;
        let fresh = Counter { state: None, now, ..counter.clone() };
        prop_assert_eq!(counter.at(now, 0), fresh.peek());
        let (mut counter, mut fresh) = (Counter { now, ..counter }, fresh);
        prop_assert_eq!(counter.take(hits), fresh.take(hits));
        prop_assert_eq!(counter.peek(), fresh.peek());
    }

    #[test]
    fn a_denial_costs_nothing_unless_denials_count(counter in any_counter(), more in 1..10_i64) {
        let mut counter = counter;
        let before = counter.clone();
        let hits = (counter.peek().remaining as i64 + more).min(MAX_HITS as i64);
        prop_assert!(!counter.take(hits).allowed);
        if counter.limit.count_denied() {
            prop_assert_eq!(counter.peek().remaining, 0);
        } else {
            // Three exceptions: a bucket that starts empty starts to fill with the first request, concurrency remembers
            // denied holders, and a limit that became slower keeps its bucket for longer.
            prop_assert_eq!(counter.peek().remaining, before.peek().remaining);
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_away_and_holds_nobody_longer_than_a_period(
        counter in any_counter(), back in prop_oneof![0..100_u64, 0..100_000_u64, 0..START], asks in 1..20_u64
    ) {
        let limit = counter.limit;
        let before = counter.peek();
        // The next window may have more than the capacity.
        let is_budget = limit.algorithm() == Algorithm::Budget;
        let too_many = if is_budget { MAX_HITS as i64 } else { limit.capacity() as i64 + 1 };
        let mut counter = Counter { now: counter.now - back, ..counter };
        let after = counter.take(0);
        // A bucket that starts empty may have been forgotten and created again.
        let begins_empty = limit.options().initial == Some(Initial::Empty);
        // The window of before may have more than the next one, into which nothing was carried over.
        let has_more = after.extra > before.extra;
        prop_assert!(after.remaining <= before.remaining || begins_empty || has_more);
        let longest = longest_memory_ms(&limit) + limit.period_ms() + 2 * limit.period_ms() / 10 + 2;
        prop_assert!(begins_empty || after.reset_after_ms <= longest);
        // Asking in vain meanwhile does not put off the end, where denials do not count.
        if limit.count_denied() {
            return Ok(());
        }
        // The first charge may be the one that extends the time for which a slower limit is kept.
        counter.take(too_many);
        let after = counter.take(0);
        let end = counter.now + after.reset_after_ms;
        let mut taken = 0;
        for ask in 0..asks {
            counter.now += after.reset_after_ms / asks * u64::from(ask > 0);
            taken += u32::from(counter.take(too_many).allowed);
        }
        prop_assert_eq!(taken, 0);
        prop_assert!(begins_empty || !forgets(&limit) || counter.at(end, 0).remaining == limit.capacity());
    }

    #[test]
    fn a_clock_that_jumps_about_breaks_nothing(
        limit in any_limit(), steps in prop::collection::vec((-10..50_i64, any::<u32>(), any::<bool>()), 1..40)
    ) {
        let mut counter = Counter::new(limit, START);
        for (hits, jump, back) in steps {
            let jump = u64::from(jump) * 100;
            counter.now = if back { counter.now.saturating_sub(jump) } else { counter.now + jump };
            let verdict = counter.take(hits);
            prop_assert!(verdict.remaining <= most_remaining(&limit));
            prop_assert!(verdict.retry_after_ms.is_none_or(|retry_after| retry_after <= verdict.reset_after_ms));
        }
    }

    #[test]
    fn a_peek_changes_nothing(counter in any_counter()) {
        let mut peeked = counter.clone();
        peeked.take(0);
        prop_assert_eq!(peeked.state, counter.state);
    }

    #[test]
    fn a_refund_undoes_its_charge_and_never_goes_below_empty(counter in any_counter(), hits in 1..50_i64) {
        // A new stream: for one that was denied, a release cancels the denial.
        let mut charged = counter.clone().held_by(MAX_HITS);
        if charged.take(hits).allowed {
            prop_assert!(charged.take(-hits).allowed);
            prop_assert_eq!(charged.peek().remaining, counter.peek().remaining);
        }
        charged.take(-(MAX_HITS as i64));
        if charged.limit.algorithm().has_holders() {
            // A holder cannot release the slots of other holders.
            prop_assert_eq!(charged.peek().remaining, counter.peek().remaining);
            return Ok(());
        }
        if counter.limit.options().initial == Some(Initial::Empty) {
            prop_assert_eq!(charged.peek().remaining, counter.limit.capacity());
            return Ok(());
        }
        prop_assert_eq!(charged.peek(), Counter::new(counter.limit, counter.now).peek());
    }

    #[test]
    fn after_a_reset_a_counter_is_as_fresh(counter in any_counter(), holder in 0..3_u64) {
        // An operator's reset has no holder.
        let mut reset = counter.clone().held_by(holder);
        let verdict = reset.ask(Ask::Reset);
        prop_assert_eq!(&reset.state, &None);
        prop_assert_eq!(verdict, Counter::new(counter.limit, counter.now).peek());
    }

    #[test]
    fn a_changed_number_is_in_force_at_once_and_keeps_the_count(counter in any_counter(), number in 0..100_u32) {
        let old = counter.limit;
        let options = Options { burst: None, ..old.options() };
        let new = Limit::new(old.algorithm(), number.into(), old.period(), options).unwrap();
        let mut counter = counter;
        // Hits restored since the last charge are restored at the new rate, so a refund that changes nothing settles
        // them first.
        counter.take(-1);
        let changed = Counter { limit: new, ..counter.clone() };
        let (before, after) = (counter.peek(), changed.peek());
        // A bucket that starts empty is equivalent to a new one once it is forgotten. Being forgotten late denies no
        // extra request.
        let begins_empty = new.options().initial == Some(Initial::Empty);
        prop_assert!(begins_empty || after.reset_after_ms <= longest_memory_ms(&new).max(1));
        // What is carried over is a part of the number that is in force now.
        let amount = |limit: Limit, verdict: &Verdict| {
            limit.capacity_with(verdict.extra)
        };
        let used = amount(old, &before) - before.remaining;
        let left = amount(new, &after).saturating_sub(used);
        // The delay need not correspond to a whole number of hits, so a partial hit may count or not.
        let part = u64::from(old.options().max_delay.is_some());
        prop_assert!(after.remaining <= left + part);
        // A counter over its limit can be over by more than it shows.
        if before.remaining > 0 {
            prop_assert!(after.remaining + part >= left);
        }
    }

    #[test]
    fn a_limit_of_zero_lets_nothing_pass(algorithm in prop::sample::select(Algorithm::ALL), hits in 1..50_i64) {
        let limit = Limit::new(algorithm, 0, Duration::from_secs(1), Options::default()).unwrap();
        let verdict = Counter::new(limit, START).take(hits);
        prop_assert!(!verdict.allowed);
        prop_assert_eq!((verdict.remaining, verdict.retry_after_ms), (0, None));
        prop_assert!(Counter::new(limit, START).take(0).allowed);
    }

    #[test]
    fn parts_of_a_limit_are_no_more_than_the_whole_and_never_nothing(limit in any_limit(), parts in 1..50_u32) {
        let part = limit.divided_by(parts);
        prop_assert_eq!(part.number(), (limit.number() / u64::from(parts)).max(limit.number().min(1)));
        prop_assert!(part.capacity() <= limit.capacity());
        prop_assert_eq!((part.algorithm(), part.period()), (limit.algorithm(), limit.period()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_passes_is_delayed_no_longer_than_its_limit_and_its_caller_allow(
        counter in any_counter(), hits in 1..50_i64, max_wait in max_wait_ms()
    ) {
        let (mut slow, mut hurried) = (counter.clone(), counter.clone().within(max_wait));
        let (long, short) = (slow.take(hits), hurried.take(hits));
        let max_delay = counter.limit.options().max_delay.unwrap_or_default();
        prop_assert!(u128::from(long.delay_ms) <= max_delay.as_millis());
        // A caller with too short a timeout is denied and not charged; for other callers nothing changes.
        prop_assert_eq!(short.allowed, long.allowed && long.delay_ms <= max_wait);
        if short.allowed {
            prop_assert_eq!(short.delay_ms, long.delay_ms);
            prop_assert_eq!(hurried.state, slow.state);
        } else if !counter.limit.count_denied() {
            prop_assert_eq!(hurried.peek().remaining, counter.clone().within(max_wait).peek().remaining);
        }
    }

    /// The generic cell rate algorithm, in fractions of a millisecond that nothing is lost of, is another way to say
    /// the same.
    #[test]
    fn a_leaky_bucket_lets_go_when_an_exact_queue_does(
        (number, period, burst) in (1..40_u32, 1..150_u64, 1..20_u32), max_delay in 1..400_u64,
        steps in prop::collection::vec((1..6_i64, prop_oneof![3 => 0..2_u64, 2 => 0..10_u64, 1 => 0..200_u64]), 1..120)
    ) {
        let delay = Some(Duration::from_millis(max_delay));
        let options = Options { burst: Some(burst), max_delay: delay, ..Options::default() };
        let limit = Limit::new(Algorithm::LeakyBucket, number.into(), Duration::from_millis(period), options).unwrap();
        let mut counter = Counter::new(limit, START);
        // The time at which the bucket is empty, in units of 1/number of a millisecond.
        let (unit, held) = (u64::from(number), u64::from(burst) * period);
        let mut empty_at = 0;
        let mut last = 0;
        for (hits, wait) in steps {
            counter.now += wait;
            let verdict = counter.take(hits);
            let then = empty_at.max(counter.now * unit) + hits as u64 * period;
            let turn = (then - held).div_ceil(unit).max(counter.now);
            prop_assert_eq!(verdict.allowed, turn - counter.now <= max_delay);
            if verdict.allowed {
                prop_assert_eq!(counter.now + verdict.delay_ms, turn);
                prop_assert!(turn >= last, "first come, first served");
                (empty_at, last) = (then, turn);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_sliding_log_admits_all_that_keeps_to_its_number(
        number in 1..12_u32, period in 1..150_u64,
        steps in prop::collection::vec((-3..6_i64, prop_oneof![3 => 0..2_u64, 2 => 0..10_u64, 1 => 0..200_u64]), 1..150)
    ) {
        let period_of = Duration::from_millis(period);
        let limit = Limit::new(Algorithm::SlidingLog, number.into(), period_of, Options::default()).unwrap();
        let mut counter = Counter::new(limit, START);
        let mut admitted: Vec<u64> = Vec::new();
        for (hits, wait) in steps {
            counter.now += wait;
            let now = counter.now;
            let in_period = admitted.iter().filter(|at| **at + period >= now).count() as i64;
            let verdict = counter.take(hits);
            if hits < 0 {
                // Hits outside of the current period cannot be refunded.
                admitted.truncate(admitted.len() - in_period.min(-hits) as usize);
            } else {
                let fits = in_period + hits <= i64::from(number);
                prop_assert_eq!(verdict.allowed, fits, "{} in the period, {} more", in_period, hits);
                admitted.extend((0..hits).filter(|_| verdict.allowed).map(|_| now));
            }
        }
    }

    #[test]
    fn a_log_is_bounded_by_its_number_whatever_is_asked(
        number in 1..12_u32, count_denied: bool, steps in prop::collection::vec((1..30_i64, 0..3_u64), 1..200)
    ) {
        let options = Options { count_denied: Some(count_denied), ..Options::default() };
        let limit = Limit::new(Algorithm::SlidingLog, number.into(), Duration::from_secs(60), options).unwrap();
        let mut counter = Counter::new(limit, START);
        for (hits, wait) in steps {
            counter.now += wait;
            counter.take(hits);
        }
        let entries = counter.state.map_or(0, |state| state.pack().len() / 20);
        prop_assert!(entries <= number as usize * if count_denied { 2 } else { 1 }, "{} entries", entries);
    }
}

/// Generates the results of requests, with the time since the previous one.
fn fates() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let fate = prop_oneof![2 => Just(Event::Peeked), 2 => Just(Event::Passed), 6 => Just(Event::Denied)];
    prop::collection::vec((fate, prop_oneof![3 => 0..3_u64, 2 => 0..20_u64, 1 => 0..200_u64]), 1..100)
}

/// The counter of a penalty in time.
#[derive(Clone, Debug)]
struct Bans {
    penalty: Penalty,
    state: Option<State>,
    now: u64,
}

impl Bans {
    fn new(penalty: Penalty, now: u64) -> Bans {
        Bans { penalty, state: None, now }
    }

    fn tell(&mut self, event: Event) -> Verdict {
        let Outcome { effect, verdict } = self.penalty.decide(event, self.state.as_ref(), self.now);
        self.state = effect.apply(self.state.take());
        verdict
    }

    fn at(&self, now: u64, event: Event) -> Verdict {
        Bans { now, ..self.clone() }.tell(event)
    }
}

fn penalty(after: u32, within: u64, ban: u64, extend: bool) -> Penalty {
    let [within, ban] = [within, ban].map(Duration::from_millis);
    Penalty::new(after, within, ban, extend).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_ban_follows_just_so_many_denials_and_lasts_just_so_long(
        after in 1..6_u32, within in 1..100_u64, ban in 1..150_u64, extend: bool, fates in fates()
    ) {
        let mut bans = Bans::new(penalty(after, within, ban, extend), START);
        let (mut denials, mut until) = (Vec::new(), 0);
        for (fate, wait) in fates {
            bans.now += wait;
            let now = bans.now;
            denials.retain(|at| *at + within >= now);
            let before = bans.state.clone();
            match fate {
                Event::Peeked => {}
                _ if until > now => until = if extend { now + ban } else { until },
                Event::Denied => denials.push(now),
                Event::Passed => {}
            }
            if denials.len() >= after as usize {
                until = now + ban;
                denials.clear();
            }
            let verdict = bans.tell(fate);
            prop_assert_eq!(verdict.allowed, until <= now);
            prop_assert_eq!(verdict.retry_after_ms, Some(until.saturating_sub(now)));
            prop_assert_eq!(verdict.remaining as usize, if until > now { 0 } else { after as usize - denials.len() });
            if fate == Event::Peeked || fate == Event::Passed && !extend {
                prop_assert_eq!(bans.state.as_ref(), before.as_ref());
            }
        }
        // From the reported time on it is equivalent to a new one.
        let fresh = Bans::new(bans.penalty, bans.now + bans.at(bans.now, Event::Peeked).reset_after_ms);
        prop_assert_eq!(bans.at(fresh.now, Event::Denied), fresh.at(fresh.now, Event::Denied));
    }

    #[test]
    fn a_clock_that_steps_back_neither_lifts_a_ban_nor_makes_it_longer_than_it_is(
        penalty in any_penalty(), fates in fates(), back in prop_oneof![0..100_u64, 0..START],
        event in prop::sample::select(vec![Event::Peeked, Event::Passed, Event::Denied])
    ) {
        let mut bans = Bans::new(penalty, START);
        for (fate, wait) in fates {
            bans.now += wait;
            bans.tell(fate);
        }
        let banned = !bans.at(bans.now, Event::Peeked).allowed;
        bans.now -= back;
        let verdict = bans.tell(event);
        prop_assert!(!banned || !verdict.allowed);
        let [_, within_ms, ban_ms, _] = penalty.figures();
        prop_assert!(verdict.retry_after_ms <= Some(ban_ms + within_ms));
    }

    /// Rule changes among them, and a clock that steps.
    #[test]
    fn a_ban_does_not_depend_on_expiry(
        penalties in prop::collection::vec((1..5_u32, 1..400_u64, any::<bool>()), 1..4), within in 1..100_u64,
        steps in prop::collection::vec(
            (0..4_usize, 0..3_usize, prop_oneof![6 => 0..200_i64, 1 => 0..8_000_000_i64, 1 => -300..0_i64]),
            1..60,
        )
    ) {
        let penalties: Vec<Penalty> =
            penalties.into_iter().map(|(after, ban, extend)| penalty(after, within, ban * ban * 100, extend)).collect();
        let (mut kept, mut deleted, mut expires) = (Bans::new(penalties[0], START), Bans::new(penalties[0], START), 0);
        for (which, event, wait) in steps {
            // A deleted counter does not reappear when the clock steps back to before the deletion.
            let now = kept.now.saturating_add_signed(wait).max(if deleted.state.is_none() { expires } else { 0 });
            let penalty = penalties[which % penalties.len()];
            (kept.now, deleted.now, kept.penalty, deleted.penalty) = (now, now, penalty, penalty);
            if expires <= now {
                deleted.state = None;
            }
            let event = [Event::Peeked, Event::Passed, Event::Denied][event];
            let Outcome { effect, .. } = penalty.decide(event, deleted.state.as_ref(), now);
            if let Effect::Changed { expires_after_ms, .. } = effect {
                expires = now + expires_after_ms;
            }
            prop_assert_eq!(kept.tell(event), deleted.tell(event));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Every algorithm; rule changes among the steps, and a clock that steps back.
    #[test]
    fn a_decision_does_not_depend_on_expiry(
        limit in prop_oneof![any_limit(), small_limit()],
        steps in prop::collection::vec(
            (
                prop_oneof![6 => 1..4_i64, 2 => 4..40_i64, 1 => Just(0), 1 => -5..0_i64],
                prop_oneof![4 => 0..80_i64, 2 => -2..0_i64],
                prop::option::weighted(0.3, any_change()), 0..3_u64, any::<bool>(),
            ),
            1..40,
        )
    ) {
        prop_assume!(forgets(&limit));
        let (mut kept, mut deleted, mut expires) = (Counter::new(limit, START), Counter::new(limit, START), 0);
        let mut now = START;
        for (hits, wait, change, holder, denied) in steps {
            let step = (i128::from(memory_ms(&kept.limit)) * i128::from(wait) / 32) as i64;
            // A deleted counter does not reappear when the clock steps back to before the deletion.
            let earliest = if deleted.state.is_none() { expires } else { START / 2 };
            now = now.saturating_add_signed(step.min(1 << 40)).max(earliest);
            let limit = change.and_then(|change| change.of(&limit)).filter(forgets).unwrap_or(kept.limit);
            for counter in [&mut kept, &mut deleted] {
                *counter = Counter { limit, now, caller: Caller { holder, ..Caller::default() }, ..counter.clone() };
            }
            if expires <= now {
                deleted.state = None;
            }
            let decide = |counter: &Counter| {
                let Counter { limit, caller, state, now } = counter;
                let decide = if denied && hits > 0 { Limit::decide_denied } else { Limit::decide };
                decide(limit, ask(hits), *caller, state.as_ref(), *now)
            };
            let (with, without) = (decide(&deleted), decide(&kept));
            prop_assert_eq!(with.verdict, without.verdict, "at {}: {:?} and {:?}", now, deleted, kept);
            if let Effect::Changed { expires_after_ms, .. } = with.effect {
                expires = now + expires_after_ms;
            }
            deleted.state = with.effect.apply(deleted.state.take());
            kept.state = without.effect.apply(kept.state.take());
        }
    }
}

#[test]
fn a_bucket_that_was_emptied_under_a_faster_limit_does_not_come_back_full_under_a_slower_one() {
    let options = Options { burst: Some(1_000), ..Options::default() };
    let limit = |number| Limit::new(Algorithm::TokenBucket, number, Duration::from_secs(1), options).unwrap();
    let fast = limit(1_000);
    let Effect::Changed { change, expires_after_ms } =
        fast.decide(Ask::Take(1_000), Caller::default(), None, START).effect
    else {
        panic!("it is charged")
    };
    assert!(expires_after_ms >= 1_000_000, "it is there when a limit of one a second asks for it");
    let mut slow = Counter { state: Some(State::begin(change)), ..Counter::new(limit(1), START + 1_500) };
    assert!(!slow.take(2).allowed);
    assert!(slow.take(1).allowed);
}

#[test]
fn a_denial_does_not_extend_a_bucket_that_a_slower_limit_kept() {
    let options = Options { burst: Some(1), initial: Some(Initial::Empty), ..Options::default() };
    let limit = |period| Limit::new(Algorithm::TokenBucket, 1, Duration::from_secs(period), options).unwrap();
    let mut counter = Counter::new(limit(86_400), START);
    counter.take(1);
    // An hour more than the two seconds of a refill and the second for which the full bucket is kept.
    let expiry = START + 3_603_000;
    let mut counter = Counter { limit: limit(1), now: expiry - 500, ..counter };
    assert_eq!(counter.peek().reset_after_ms, 500);
    let Outcome { effect, verdict } =
        counter.limit.decide_denied(Ask::Take(1), counter.caller, counter.state.as_ref(), counter.now);
    // The time at which its key expires is rounded up.
    assert!(matches!(effect, Effect::Changed { expires_after_ms: 500..=64_500, .. }), "{effect:?}");
    counter.state = effect.apply(counter.state.take());
    assert_eq!([verdict, counter.peek()].map(|verdict| verdict.reset_after_ms), [500, 500]);
}

#[test]
fn a_ban_that_is_made_longer_lasts_so_long_and_one_that_is_asked_is_kept_for_it() {
    let mut bans = Bans::new(penalty(1, 1_000, 300, false), START);
    assert!(!bans.tell(Event::Denied).allowed);
    bans.penalty = penalty(1, 1_000, 60_000, false);
    let at = |bans: &Bans, ms| bans.at(START + ms, Event::Passed).allowed;
    assert_eq!([400, 59_999, 60_000].map(|ms| at(&bans, ms)), [false, false, true]);
    // Longer than it is remembered: a request sees to it that it is kept.
    let hours = 3 * 60 * 60 * 1_000;
    bans.penalty = penalty(1, 1_000, hours, false);
    bans.now += 1_000;
    bans.tell(Event::Passed);
    assert_eq!([hours - 1, hours].map(|ms| at(&bans, ms)), [false, true]);
}

/// For repeating names of streams.
#[test]
fn a_refused_stream_releases_nobody_elses_slot_though_it_has_the_same_name() {
    let limit = Limit::new(Algorithm::Concurrency, 3, Duration::from_secs(60), Options::default()).unwrap();
    let mut counter = Counter::new(limit, START).held_by(7);
    assert_eq!([1; 4].map(|hits| counter.take(hits).allowed), [true, true, true, false]);
    // The fourth ends at once.
    counter.take(-1);
    assert!(!counter.take(1).allowed, "three are in progress");
    counter.take(-1);
    counter.take(-1);
    assert!(counter.take(1).allowed, "one has ended");
    // A stream that another limit denies is refused, too.
    let outcome = limit.decide_denied(Ask::Take(1), counter.caller, counter.state.as_ref(), counter.now);
    counter.state = outcome.effect.apply(counter.state.take());
    counter.take(-1);
    assert!(!counter.take(1).allowed, "three are in progress");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Streams of few names, which all end some time, the refused ones soon: their releases come in any order.
    #[test]
    fn concurrency_is_a_bound_also_where_names_repeat(
        number in 1..6_u32, streams in prop::collection::vec((0..3_u64, 0..40_u64, 1..400_u64, 0..30_u64), 1..120)
    ) {
        let minute = Duration::from_secs(60);
        let limit = Limit::new(Algorithm::Concurrency, number.into(), minute, Options::default()).unwrap();
        let mut counter = Counter::new(limit, START);
        // The ends of the requests in progress; and the time and holder of each release.
        let (mut in_progress, mut releases): (Vec<u64>, Vec<(u64, u64)>) = Default::default();
        let mut now = START;
        for (name, wait, lasts, late) in streams {
            now += wait;
            releases.sort_unstable();
            while let Some((at, name)) = releases.first().copied().filter(|(at, _)| *at <= now) {
                releases.remove(0);
                counter = Counter { now: at, ..counter.held_by(name) };
                counter.take(-1);
            }
            in_progress.retain(|end| *end > now);
            counter = Counter { now, ..counter.held_by(name) };
            let allowed = counter.take(1).allowed;
            if allowed {
                in_progress.push(now + lasts);
            }
            releases.push((if allowed { now + lasts } else { now + late }, name));
            prop_assert!(in_progress.len() <= number as usize, "{} in progress", in_progress.len());
        }
    }
}

/// A request: time since the previous one, duration, hits, and whether its release is lost.
type Stream = (u64, u64, i64, bool);

fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let duration = prop_oneof![3 => 0..40_u64, 1 => 0..400_u64];
    prop::collection::vec((0..12_u64, duration, 1..3_i64, prop::bool::weighted(0.1)), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// For any load, and for releases that are lost, late or sent by denied streams.
    #[test]
    fn concurrency_counts_what_is_in_progress_and_nothing_else(
        number in 1..12_u32, hold in 1..150_u64, streams in streams()
    ) {
        let period = Duration::from_millis(hold);
        let limit = Limit::new(Algorithm::Concurrency, number.into(), period, Options::default()).unwrap();
        let mut counter = Counter::new(limit, START);
        // Time of admission, hits, and end.
        let mut in_progress: Vec<(u64, i64, Option<u64>)> = Vec::new();
        let mut ends: Vec<(u64, u64, i64)> = Vec::new();
        let mut start = START;
        for (holder, (wait, duration, hits, lost)) in (0..).zip(streams) {
            start += wait;
            ends.sort_unstable();
            while let Some((end, holder, hits)) = ends.first().copied().filter(|(end, ..)| *end <= start) {
                ends.remove(0);
                counter = Counter { now: end, ..counter.held_by(holder) };
                counter.take(-hits);
            }
            counter = Counter { now: start, ..counter.held_by(holder) };
            in_progress.retain(|(at, _, end)| *at + hold >= start && end.is_none_or(|end| end > start));
            let used: i64 = in_progress.iter().map(|(_, hits, _)| hits).sum();
            let allowed = counter.take(hits).allowed;
            prop_assert_eq!(allowed, used + hits <= i64::from(number), "{} in progress, {} more", used, hits);
            let end = (!lost).then_some(start + duration);
            if allowed {
                in_progress.push((start, hits, end));
            }
            ends.extend(end.map(|end| (end, holder, hits)));
        }
    }
}

#[test]
fn of_exactly_the_number_sent_evenly_a_sliding_window_lets_a_part_pass_and_a_log_all() {
    for (segments, number) in [(10, 1), (10, 2), (10, 3), (10, 4), (10, 5), (10, 10), (60, 5), (60, 50), (5, 4), (1, 1)]
    {
        for phase in [0, 1, 997] {
            let (gap, rounds) = (6_000, 100);
            let passed = |algorithm, options, gap| {
                let period = Duration::from_millis(number * 6_000);
                let limit = Limit::new(algorithm, number, period, options).unwrap();
                let mut counter = Counter::new(limit, START + phase);
                let mut passed = 0;
                for _ in 0..rounds * (number + 1) {
                    passed += u64::from(counter.take(1).allowed);
                    counter.now += gap;
                }
                passed
            };
            let options = Options { segments: Some(segments), ..Options::default() };
            // N of N + 1, as long as no sub-window holds two.
            assert_eq!(passed(Algorithm::SlidingWindow, options, gap), rounds * number, "{number} of {segments}");
            let all = rounds * (number + 1);
            assert_eq!(passed(Algorithm::SlidingLog, Options::default(), gap + 1), all, "{number}");
            assert_eq!(passed(Algorithm::TokenBucket, Options::default(), gap), all, "{number}");
        }
    }
}

/// The boundary described in the documentation.
#[test]
fn a_sliding_log_denies_what_comes_a_period_later_and_nothing_from_a_millisecond_after_on() {
    let limit = Limit::new(Algorithm::SlidingLog, 1, Duration::from_secs(60), Options::default()).unwrap();
    let mut counter = Counter::new(limit, START);
    assert!(counter.take(1).allowed);
    assert_eq!(counter.take(1).retry_after_ms, Some(60_001));
    assert_eq!(counter.at(START + 60_000, 1).retry_after_ms, Some(1));
    assert!(counter.at(START + 60_001, 1).allowed);
}

#[test]
fn a_token_bucket_refills_evenly_and_without_loss() {
    let limit = Limit::new(Algorithm::TokenBucket, 3, Duration::from_millis(1_000), Options::default()).unwrap();
    let mut counter = Counter::new(limit, START);
    assert!(counter.take(3).allowed);
    let mut passed = Vec::new();
    for ms in 1..=1_000 {
        counter.now = START + ms;
        if counter.take(1).allowed {
            passed.push(ms);
        }
    }
    // A third of a second is not a whole number of milliseconds; the remainder is not lost.
    assert_eq!(passed, [334, 667, 1_000]);
}

#[test]
fn a_burst_leaves_a_leaky_bucket_one_by_one_and_evenly() {
    for (number, gap) in [(100, 10.0), (3, 1_000.0 / 3.0), (7, 1_000.0 / 7.0), (2_000, 0.5)] {
        let options = Options { max_delay: Some(Duration::from_secs(20)), ..Options::default() };
        let limit = Limit::new(Algorithm::LeakyBucket, number, Duration::from_secs(1), options).unwrap();
        let mut counter = Counter::new(limit, START);
        for i in 0..50 {
            let verdict = counter.take(1);
            assert!(verdict.allowed);
            assert_eq!(verdict.delay_ms, (f64::from(i) * gap).ceil() as u64, "{number} per second, {i}");
        }
    }
}

#[test]
fn a_bucket_that_begins_empty_fills_from_the_first_request_on_and_is_forgotten_when_it_was_full_for_as_long() {
    let options = Options { burst: Some(4), initial: Some(Initial::Empty), ..Options::default() };
    let limit = Limit::new(Algorithm::TokenBucket, 10, Duration::from_secs(1), options).unwrap();
    let mut counter = Counter::new(limit, START);
    assert_eq!(counter.peek().reset_after_ms, 0, "nobody has asked it yet");
    let verdict = counter.take(1);
    assert_eq!((verdict.allowed, verdict.retry_after_ms, verdict.reset_after_ms), (false, Some(100), 800));
    let remaining = |ms| counter.at(START + ms, 0).remaining;
    assert_eq!([99, 100, 250, 399, 400, 799, 800].map(remaining), [0, 1, 2, 3, 4, 4, 0]);
    counter.now += 799;
    assert_eq!(counter.take(1).reset_after_ms, 100 + 400, "who comes in time finds it full, and keeps it");
    counter.now += 500;
    assert!(!counter.take(1).allowed);
}

#[test]
fn a_sliding_window_under_steady_overload_admits_ten_elevenths() {
    let limit = Limit::new(Algorithm::SlidingWindow, 100, Duration::from_secs(1), Options::default()).unwrap();
    let start = START - START % 1_000;
    let mut counter = Counter::new(limit, start);
    let admitted = (0..110_000).filter(|ms| {
        counter.now = start + ms;
        counter.take(1).allowed
    });
    assert_eq!(admitted.count(), 10_000);
}

#[test]
fn a_fixed_window_is_aligned_to_the_clock_as_in_the_reference() {
    let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(60), Options::default()).unwrap();
    let mut counter = Counter::new(limit, 1_200_000 + 59_000);
    let verdict = counter.take(5);
    assert_eq!((verdict.allowed, verdict.remaining, verdict.reset_after_ms), (true, 0, 1_000));
    // Denied hits count, so a peek also reports the limit as exceeded.
    assert!(!counter.take(6).allowed);
    assert!(!counter.take(0).allowed);
    counter.now = 1_260_000;
    assert!(counter.take(5).allowed);
}

#[test]
fn a_window_that_starts_with_a_request_lasts_a_period_from_it() {
    let options = Options { starts: Some(Starts::FirstRequest), count_denied: Some(false), ..Options::default() };
    let limit = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(60), options).unwrap();
    let begin = 1_200_000 + 59_000;
    let mut counter = Counter::new(limit, begin);
    let of = |verdict: Verdict| (verdict.allowed, verdict.remaining, verdict.reset_after_ms);
    assert_eq!(of(counter.take(0)), (true, 5, 0), "a peek begins nothing");
    assert_eq!(of(counter.take(-3)), (true, 5, 0), "nor does a refund");
    assert_eq!(of(counter.take(6)), (false, 5, 0), "nor does what is denied");
    counter.now += 10_000;
    assert_eq!(of(counter.take(2)), (true, 3, 60_000));
    counter.now += 59_999;
    assert_eq!(of(counter.take(3)), (true, 0, 1));
    assert_eq!(counter.take(1).retry_after_ms, Some(1));
    counter.now += 1;
    assert_eq!(of(counter.take(1)), (true, 4, 60_000), "the next begins with the next request");
    counter.now -= 30_000;
    assert_eq!(of(counter.take(1)), (true, 3, 90_000), "a clock that was set back opens nothing");
    counter.now += 30_000;
    counter.now += 59_999;
    assert_eq!(of(counter.take(4)), (false, 3, 1));
    let with_days = Options { time_zone: TimeZone::named("UTC"), ..options };
    let day = Limit::new(Algorithm::FixedWindow, 5, Duration::from_secs(86_400), with_days);
    assert_eq!(day.unwrap_err().0, [LimitError::Starts]);
}

#[test]
fn nonsense_is_refused() {
    let only = |LimitErrors(errors)| match errors[..] {
        [error] => error,
        _ => panic!("{errors:?}"),
    };
    let limit = |algorithm, ms, burst| {
        Limit::new(algorithm, 5, Duration::from_micros(ms), Options { burst, ..Options::default() }).err().map(only)
    };
    assert_eq!(limit(Algorithm::SlidingWindow, 0, None), Some(LimitError::Period));
    assert_eq!(limit(Algorithm::SlidingWindow, 1_500, None), Some(LimitError::Period));
    assert_eq!(limit(Algorithm::SlidingWindow, 366 * 86_400_000_001, None), Some(LimitError::Period));
    assert_eq!(
        limit(Algorithm::SlidingWindow, 1_000, Some(5)),
        Some(LimitError::NoOption(Algorithm::SlidingWindow, "burst"))
    );
    assert_eq!(limit(Algorithm::Concurrency, 0, None), Some(LimitError::Hold));
    let log =
        |number| Limit::new(Algorithm::SlidingLog, number, Duration::from_secs(1), Options::default()).err().map(only);
    assert_eq!((log(100_000), log(100_001)), (None, Some(LimitError::LogNumber)));
    assert_eq!(limit(Algorithm::TokenBucket, 1_000, Some(0)), Some(LimitError::ZeroBurst));
    assert_eq!(limit(Algorithm::TokenBucket, 86_400_000_000, Some(u32::MAX)), Some(LimitError::EndlessRefill));
    let delayed = |number, delay| {
        let options = Options { max_delay: Some(Duration::from_micros(delay)), ..Options::default() };
        Limit::new(Algorithm::LeakyBucket, number, Duration::from_millis(1), options).err().map(only)
    };
    for delay in [0, 999, 1_500, 60_001_000, u64::MAX] {
        assert_eq!(delayed(5, delay), Some(LimitError::MaxDelay));
    }
    assert_eq!(delayed(5, 60_000_000), None);
    assert_eq!(delayed(u32::MAX.into(), 60_000_000), Some(LimitError::EndlessQueue));
}

#[test]
fn all_that_is_wrong_with_a_limit_is_reported() {
    let new = |algorithm, number, options| Limit::new(algorithm, number, Duration::ZERO, options).unwrap_err().0;
    let ms = |ms| Some(Duration::from_millis(ms));
    let burst = Options { burst: Some(0), max_delay: ms(0), segments: Some(5), ..Options::default() };
    let foreign = LimitError::NoOption(Algorithm::LeakyBucket, "segments");
    assert_eq!(
        new(Algorithm::LeakyBucket, 5, burst),
        [foreign, LimitError::Period, LimitError::MaxDelay, LimitError::ZeroBurst]
    );
    let slots = Options { count_denied: Some(true), ..Options::default() };
    assert_eq!(
        new(Algorithm::Concurrency, u32::MAX.into(), slots),
        [LimitError::Hold, LimitError::Slots, LimitError::SlotsOfDenied]
    );
    // The time to fill is not reported for an invalid period.
    let endless = Options { burst: Some(u32::MAX), max_delay: ms(60_000), ..Options::default() };
    assert_eq!(new(Algorithm::LeakyBucket, u32::MAX.into(), endless), [LimitError::Period]);
    let wrong = Penalty::new(0, Duration::ZERO, Duration::ZERO, false).unwrap_err();
    assert_eq!(wrong, [PenaltyError::After, PenaltyError::Within, PenaltyError::Ban]);
}

#[test]
fn a_bucket_that_begins_empty_begins_with_a_request_that_is_charged_to_none() {
    let options = |initial| Options { initial, ..Options::default() };
    let bucket = |initial| Limit::new(Algorithm::TokenBucket, 1, Duration::from_millis(100), options(initial)).unwrap();
    let checks = [check(0, bucket(None), 1), check(1, bucket(Some(Initial::Empty)), 1)];
    let own = |verdicts: tollgate::engine::check::Verdicts| [0, 1].map(|i| verdicts[i].unwrap().own);
    let (verdicts, effects) = group::decide(&checks, START, |_| None);
    let [full, empty] = own(verdicts);
    assert_eq!((full.allowed, empty.allowed, empty.retry_after_ms), (true, false, Some(100)));
    let mut states = [None, None];
    for (i, effect) in effects {
        states[i] = effect.apply(states[i].take());
    }
    let later = |ms: u64| own(group::decide(&checks, START + ms, |i| states[i].as_ref()).0);
    assert!(!later(99)[1].allowed && later(100).iter().all(|verdict| verdict.allowed), "{states:?}");
}
