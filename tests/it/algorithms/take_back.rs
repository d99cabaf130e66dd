//! Charges that are taken back, because another store denies the request.

use super::*;
use crate::support::limits::bound;
use tollgate::engine::algorithm::Charge;
use tollgate::engine::algorithm::lease_terms::Lease;
use tollgate::engine::check::{CheckVerdict, Penalized};
use tollgate::engine::clock::Clock;
use tollgate::engine::descriptor::Role;
use tollgate::store::memory::MemoryStore;

/// A request: time since the previous one, hits, holder, and the time after which it is taken back, if it is.
type Step = (u64, i64, u64, Option<u64>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![3 => 0..2_u64, 2 => 0..10_u64, 1 => 0..200_u64];
    let way = prop_oneof![4 => 0..4_u64, 3 => 0..30_u64, 1 => 0..400_u64];
    prop::collection::vec((wait, 1..6_i64, 0..3_u64, prop::option::of(way)), 1..120)
}

/// The same limit, and denials cost nothing: what counts them keeps its charges.
fn without_denials(limit: Limit) -> Limit {
    let options = Options { count_denied: Some(false), ..limit.options() };
    Limit::new(limit.algorithm(), limit.number(), limit.period(), options).unwrap()
}

fn charge(counter: &Counter, hits: i64, verdict: &Verdict) -> Option<Charge> {
    Charge::of(ask(hits), counter.now, verdict)
}

impl Counter {
    fn take_back(&mut self, charge: Charge) {
        assert!(self.ask(Ask::TakeBack(charge)).allowed);
    }

    /// Comes denied by another limit.
    fn take_denied(&mut self, hits: i64) {
        let outcome = self.limit.decide_denied(ask(hits), self.caller, self.state.as_ref(), self.now);
        self.state = outcome.effect.apply(self.state.take());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Many are on their way at a time, and come back in any order.
    #[test]
    fn no_interval_of_one_period_admits_more_than_the_bound_whatever_is_taken_back(
        limit in small_limit().prop_map(without_denials), offset in 0..1_000_u64, steps in steps()
    ) {
        let mut counter = Counter::new(limit, START + offset);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let mut on_its_way: Vec<(u64, u64, Charge)> = Vec::new();
        for (wait, hits, holder, way) in steps {
            let now = counter.now + wait;
            on_its_way.sort_by_key(|(at, ..)| *at);
            while let Some((at, holder, charge)) = on_its_way.first().copied().filter(|(at, ..)| *at <= now) {
                on_its_way.remove(0);
                counter = Counter { now: at, ..counter.held_by(holder) };
                counter.take_back(charge);
            }
            counter = Counter { now, ..counter.held_by(holder) };
            let verdict = counter.take(hits);
            match (way, charge(&counter, hits, &verdict)) {
                (Some(way), Some(charge)) => on_its_way.push((now + way, holder, charge)),
                (None, Some(charge)) => admitted.push((now + verdict.delay_ms, charge.hits)),
                (_, None) => {}
            }
        }
        for (from, _) in &admitted {
            let within = |at: u64| (*from..=from + limit.period_ms()).contains(&at);
            let sum: u64 = admitted.iter().filter(|(at, _)| within(*at)).map(|(_, hits)| hits).sum();
            prop_assert!(sum <= bound(&limit, 5), "{sum} in the period from {from}");
        }
    }

    /// Such a counter knows the admitted requests, and the denials of others.
    #[test]
    fn a_counter_never_has_more_room_than_one_that_was_not_charged_what_is_taken_back(
        limit in small_limit().prop_map(without_denials), steps in steps()
    ) {
        // A bucket that starts empty is kept longer because of the charge, and a window that it has started ends
        // earlier than one of a later request.
        let Options { initial, starts, .. } = limit.options();
        if initial == Some(Initial::Empty) || starts == Some(Starts::FirstRequest) {
            return Ok(());
        }
        let (mut counter, mut plain) = (Counter::new(limit, START), Counter::new(limit, START));
        let mut on_its_way: Vec<(u64, u64, Charge)> = Vec::new();
        for (wait, hits, holder, way) in steps {
            let now = counter.now + wait;
            on_its_way.sort_by_key(|(at, ..)| *at);
            while let Some((at, holder, charge)) = on_its_way.first().copied().filter(|(at, ..)| *at <= now) {
                on_its_way.remove(0);
                counter = Counter { now: at, ..counter.held_by(holder) };
                counter.take_back(charge);
            }
            counter = Counter { now, ..counter.held_by(holder) };
            plain = Counter { now, ..plain.held_by(holder) };
            let verdict = counter.take(hits);
            match (way, charge(&counter, hits, &verdict)) {
                (Some(way), Some(charge)) => {
                    plain.take_denied(hits);
                    on_its_way.push((now + way, holder, charge));
                }
                (None, Some(_)) => {
                    let alone = plain.take(hits);
                    prop_assert!(alone.allowed && alone.delay_ms <= verdict.delay_ms, "{plain:?}, {counter:?}");
                }
                (_, None) => plain.take_denied(hits),
            }
            prop_assert!(counter.peek().remaining <= plain.peek().remaining, "{plain:?}, {counter:?}");
        }
    }

    #[test]
    fn if_nothing_comes_between_a_counter_is_as_if_the_request_had_come_denied(
        counter in any_counter(), hits in 1..40_i64, later in 0..3_000_u64, next in 1..40_i64
    ) {
        let mut counter = Counter { limit: without_denials(counter.limit), ..counter }.held_by(MAX_HITS);
        let (before, mut denied) = (counter.clone(), counter.clone());
        let hits = hits.min(counter.peek().remaining as i64);
        let verdict = counter.take(hits);
        let Some(charge) = charge(&counter, hits, &verdict) else { return Ok(()) };
        denied.take_denied(hits);
        counter.now += later;
        denied.now += later;
        counter.take_back(charge);
        let is_bucket = matches!(counter.limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if is_bucket {
            // A bucket's level is precise to a millisecond. A bucket that starts empty may be forgotten sooner.
            let remaining = |counter: &Counter, ms| counter.at(counter.now + ms, 0).remaining;
            let is_forgotten = |counter: &Counter| counter.at(counter.now + 2, 0).reset_after_ms == 0;
            let begins_empty = counter.limit.options().initial == Some(Initial::Empty);
            if begins_empty && (is_forgotten(&counter) || is_forgotten(&denied)) {
                return Ok(());
            }
            prop_assert!(remaining(&counter, 0) <= remaining(&denied, 0), "{before:?}");
            prop_assert!(remaining(&counter, 2) >= remaining(&denied, 0), "{before:?}");
            return Ok(());
        }
        prop_assert_eq!(counter.peek().remaining, denied.peek().remaining);
        if counter.limit.algorithm().has_holders() {
            // Its release frees nothing further.
            counter.take(-hits);
            prop_assert_eq!(counter.peek().remaining, denied.peek().remaining);
            return Ok(());
        }
        prop_assert_eq!(counter.take(next), denied.take(next));
        prop_assert_eq!(counter.peek(), denied.peek());
    }

    #[test]
    fn what_is_taken_back_twice_or_was_never_charged_is_no_gift_beyond_it(
        counter in any_counter(), hits in 1..40_u64, age in 0..300_u64, reset_after_ms in 0..100_000_u64
    ) {
        let mut counter = counter;
        let before = counter.peek().remaining;
        let charge = Charge { hits, at_ms: counter.now.saturating_sub(age), reset_after_ms };
        counter.take_back(charge);
        prop_assert!(counter.peek().remaining <= before + hits);
        let after = counter.peek();
        prop_assert!(after.remaining <= counter.limit.capacity_with(after.extra));
    }

    #[test]
    fn a_clock_that_was_set_back_takes_nothing_back(counter in any_counter(), hits in 1..40_i64, back in 1..START) {
        let mut counter = counter.held_by(MAX_HITS);
        let hits = hits.min(counter.peek().remaining as i64);
        let verdict = counter.take(hits);
        let Some(charge) = charge(&counter, hits, &verdict) else { return Ok(()) };
        // By less it is as if time stood still.
        if back <= 2 * counter.limit.period_ms() {
            return Ok(());
        }
        counter.now -= back;
        let before = counter.peek().remaining;
        counter.take_back(charge);
        prop_assert_eq!(counter.peek().remaining, before);
    }
}

fn limit(algorithm: Algorithm, number: u32, period_ms: u64) -> Limit {
    Limit::new(algorithm, number.into(), Duration::from_millis(period_ms), Options::default()).unwrap()
}

#[test]
fn what_is_charged_in_another_window_stays() {
    for (algorithm, period) in [(Algorithm::FixedWindow, 1_000), (Algorithm::SlidingWindow, 100)] {
        let options = Options { count_denied: Some(false), ..Options::default() };
        let limit = Limit::new(algorithm, 10, Duration::from_millis(period), options).unwrap();
        let mut counter = Counter::new(limit, START - START % 10_000 + 999);
        let verdict = counter.take(3);
        let charge = charge(&counter, 3, &verdict).unwrap();
        counter.now += period + 50;
        assert!(counter.take(4).allowed);
        let before = counter.peek().remaining;
        counter.take_back(charge);
        assert_eq!(counter.peek().remaining, before, "{algorithm}");
    }
}

#[test]
fn a_log_takes_back_from_behind_a_hundred_entries_and_not_from_behind_more() {
    for (behind, back) in [(0, 7), (1, 7), (100, 7), (101, 0)] {
        let mut counter = Counter::new(limit(Algorithm::SlidingLog, 1_000, 60_000), START);
        assert!(counter.take(5).allowed);
        counter.now += 1;
        let verdict = counter.take(7);
        let charge = charge(&counter, 7, &verdict).unwrap();
        for _ in 0..behind {
            counter.now += 1;
            counter.take(1);
        }
        let before = counter.peek().remaining;
        counter.take_back(charge);
        assert_eq!(counter.peek().remaining - before, back, "behind {behind}");
    }
}

#[test]
fn a_release_that_comes_first_is_not_waited_for() {
    let mut counter = Counter::new(limit(Algorithm::Concurrency, 3, 60_000), START).held_by(7);
    let verdict = counter.take(1);
    let charge = charge(&counter, 1, &verdict).unwrap();
    counter.take(-1);
    counter.take_back(charge);
    // Another stream with the same name takes a slot and releases it.
    counter.now += 1;
    assert_eq!((counter.take(1).remaining, counter.take(-1).remaining), (2, 3));
}

#[test]
fn of_charges_that_lie_one_above_the_other_what_has_leaked_meanwhile_is_taken_back_of_none() {
    // One hit leaks per millisecond.
    let options = Options { burst: Some(20), ..Options::default() };
    let limit = Limit::new(Algorithm::TokenBucket, 10, Duration::from_millis(10), options).unwrap();
    let mut counter = Counter::new(limit, START);
    let charges = [10, 4].map(|hits| {
        let verdict = counter.take(hits);
        charge(&counter, hits, &verdict).unwrap()
    });
    counter.take_back(charges[0]);
    // Of the missing hits, all but one belong to the second charge; four leak.
    counter.now += 4;
    assert_eq!(counter.take(19).remaining, 0);
    counter.take_back(charges[1]);
    assert_eq!(counter.peek().remaining, 0, "the burst has passed at this moment already");
}

#[test]
fn who_waits_behind_a_charge_leaves_alone() {
    let options = Options { max_delay: Some(Duration::from_secs(1)), ..Options::default() };
    let limit = Limit::new(Algorithm::LeakyBucket, 100, Duration::from_secs(1), options).unwrap();
    let mut counter = Counter::new(limit, START);
    let mut next = || {
        let verdict = counter.take(1);
        (charge(&counter, 1, &verdict).unwrap(), verdict.delay_ms)
    };
    let charges = [next(), next(), next()];
    assert_eq!(charges.map(|(_, delay_ms)| delay_ms), [0, 10, 20]);
    // Takes back the second charge, before which the third waits, and then the third.
    counter.take_back(charges[1].0);
    assert_eq!(counter.at(START, 1).delay_ms, 30);
    counter.take_back(charges[2].0);
    let delay_ms = counter.at(START, 1).delay_ms;
    assert!((20..=21).contains(&delay_ms), "{delay_ms}");
}

struct Still;

impl Clock for Still {
    fn now(&self) -> u64 {
        START
    }
}

#[test]
fn a_store_says_when_it_charged_and_takes_that_back_also_in_a_group_that_is_denied() {
    for algorithm in Algorithm::ALL {
        let options = Options {
            count_denied: (*algorithm == Algorithm::FixedWindow).then_some(false),
            burst: algorithm.options().contains(&"burst").then_some(10),
            ..Options::default()
        };
        let limit = Limit::new(*algorithm, 10, Duration::from_secs(60), options).unwrap();
        let store = MemoryStore::new(Still, usize::MAX);
        let asked = check(0, limit, 4);
        let verdict = store.decide(std::slice::from_ref(&asked)).unwrap()[0].unwrap();
        assert_eq!((verdict.own.remaining, verdict.at_ms), (6, START));
        let back = group::take_back(&asked, &verdict).unwrap();
        let denied = check(1, limit, 11);
        let verdicts = store.decide(&[back, denied]).unwrap();
        assert!(verdicts[0].unwrap().allowed() && !verdicts[1].unwrap().allowed());
        let left = store.decide(&[check(0, limit, 0)]).unwrap()[0].unwrap().own.remaining;
        // A bucket may lose the hits that leak in a millisecond.
        assert!(left == 10 || (left == 9 && algorithm.options().contains(&"burst")), "{algorithm}: {left}");
    }
}

#[test]
fn only_what_was_charged_is_taken_back_and_by_nobody_but_the_limit() {
    let limit = limit(Algorithm::SlidingWindow, 10, 60_000);
    let verdict = |allowed| {
        let own = Verdict { allowed, reset_after_ms: 7, retry_after_ms: Some(0), ..Verdict::NOTHING };
        CheckVerdict::new(own, START)
    };
    let asked = check(0, limit, 3);
    let penalty = penalty(1, 1_000, 1_000, false);
    let penalty = Some(Penalized { key: asked.key.of_penalty(&penalty), penalty });
    let lease = Lease::new(5_000, None, &limit).ok();
    let asked = Check { penalty, lease, ..asked };
    let back = group::take_back(&asked, &verdict(true)).unwrap();
    assert_eq!(back.ask, Ask::TakeBack(Charge { hits: 3, at_ms: START, reset_after_ms: 7 }));
    assert_eq!((back.penalty.as_ref(), back.lease, back.role, back.counters()), (None, None, Role::Shadow, 1));
    assert_eq!(group::take_back(&asked, &verdict(false)), None);
    for ask in [Ask::Peek, Ask::Refund(3), Ask::Reset, back.ask] {
        assert_eq!(group::take_back(&Check { ask, ..asked.clone() }, &verdict(true)), None);
    }
    let options = Options { count_denied: Some(true), ..Options::default() };
    let counts = Limit::new(Algorithm::SlidingWindow, 10, Duration::from_secs(60), options).unwrap();
    assert_eq!(group::take_back(&Check { limit: counts, ..asked }, &verdict(true)), None);
}
