//! Budgets: streams hold an estimate, and settle what they have used.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::engine::algorithm::{
    Algorithm, Ask, Bounds, Caller, Charge, Held, Limit, MAX_HITS, MAX_NUMBER, Options, Outcome, State, TimeZone,
    Unsettled, Verdict,
};
use tollgate::wire::rate_limit_response::Code;
use tonic::Code as Status;

use crate::rules::load_text;
use crate::support::envoy::Envoy;
use crate::support::model::{DOLLARS, ESTIMATE, Model, PRICES, passes};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, command, request};
use crate::support::{wait_until, wait_until_async};

const START: u64 = 1_784_000_000_123;

/// Longer than any test lasts.
const LONG: Duration = Duration::from_secs(3_600);

const WITHIN: Duration = Duration::from_millis(100);

fn limit(number: u32, period: Duration, unsettled: Unsettled) -> Limit {
    let options = Options { settle_within: Some(WITHIN), unsettled: Some(unsettled), ..Options::default() };
    Limit::new(Algorithm::Budget, number.into(), period, options).unwrap()
}

/// The counter of a budget.
#[derive(Clone)]
struct Budget {
    limit: Limit,
    state: Option<State>,
    now: u64,
}

impl Budget {
    fn new(number: u32, unsettled: Unsettled) -> Budget {
        Budget { limit: limit(number, LONG, unsettled), state: None, now: START }
    }

    fn ask(&mut self, holder: u64, ask: Ask) -> Verdict {
        self.ask_as(Caller { holder, ..Caller::default() }, ask)
    }

    fn ask_as(&mut self, caller: Caller, ask: Ask) -> Verdict {
        let Outcome { effect, verdict } = self.limit.decide(ask, caller, self.state.as_ref(), self.now);
        self.state = effect.apply(self.state.take());
        verdict
    }

    fn hold(&mut self, holder: u64, hits: u64) -> bool {
        self.ask(holder, Ask::Take(hits)).allowed
    }

    /// Settles, and returns what remains.
    fn settle(&mut self, holder: u64, used: u64) -> u64 {
        let verdict = self.ask(holder, Ask::Settle(used));
        assert!(verdict.allowed, "no settle is denied");
        verdict.remaining
    }

    fn remaining(&mut self) -> u64 {
        self.ask(0, Ask::Peek).remaining
    }
}

#[test]
fn a_settle_replaces_what_is_held_by_what_was_used() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    assert!(budget.hold(1, 60) && !budget.hold(2, 50) && budget.hold(2, 40));
    assert_eq!(budget.settle(1, 25), 35);
    assert!(budget.hold(3, 35) && !budget.hold(4, 1));
    assert_eq!((budget.settle(2, 0), budget.settle(3, 35)), (40, 40));
    // Nothing is left but what was used: 25 and 35.
    budget.now += 2 * WITHIN.as_millis() as u64;
    assert_eq!(budget.remaining(), 40);
}

#[test]
fn a_budget_tells_what_is_used_what_is_held_and_until_when() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    let nothing = Held::default();
    assert_eq!(budget.ask(0, Ask::Peek).held, Some(nothing));
    let first = budget.ask(1, Ask::Take(60)).held.unwrap();
    assert_eq!((first.hits, first.holds), (60, 1));
    assert!(first.first_ends_ms > WITHIN.as_millis() as u64);
    budget.now += 50;
    let second = budget.ask(2, Ask::Take(30)).held.unwrap();
    assert_eq!((second.hits, second.holds), (30, 1), "a stream that begins is told of its own hold");
    let all = Held { hits: 90, holds: 2, first_ends_ms: first.first_ends_ms - 50 };
    assert_eq!(budget.ask(0, Ask::Peek).held, Some(all));
    assert_eq!(budget.ask(3, Ask::Take(11)).held, None, "a denial is told when to come again");
    let settled = budget.ask(1, Ask::Settle(120));
    assert_eq!(settled.held, Some(Held { hits: 30, holds: 1, ..second }));
    assert_eq!((settled.remaining, settled.excess), (0, Some(50)));
    let overspent = budget.ask(2, Ask::Settle(1));
    assert_eq!((overspent.held, overspent.excess), (Some(nothing), Some(21)));
}

/// In both twins: tests/it/twins.rs.
#[test]
fn a_budget_of_a_calendar_month_begins_anew_with_the_month() {
    let time_zone = TimeZone::named("Europe/Berlin");
    let month = time_zone.unwrap().month(START);
    let (within, settle_within) = (3_600_000, Some(LONG));
    let options = Options { time_zone, settle_within, ..Options::default() };
    let limit = Limit::new(Algorithm::Budget, 100, Duration::from_secs(30 * 86_400), options).unwrap();
    let mut budget = Budget { limit, state: None, now: month.start + 5 };
    assert!(budget.hold(1, 70));
    budget.settle(1, 60);
    budget.now = month.end - within * 3 / 2;
    let denied = budget.ask(2, Ask::Take(41));
    assert_eq!((denied.allowed, denied.retry_after_ms), (false, Some(within * 3 / 2)), "the month ends then");
    assert!(budget.hold(3, 40));
    budget.now = month.end - 1;
    assert_eq!(budget.remaining(), 0, "what was not settled in an hour is charged");
    // These are held beyond the month.
    budget.settle(3, 30);
    assert!(budget.hold(4, 5) && budget.hold(5, 5) && !budget.hold(6, 1));
    budget.now = month.end;
    assert_eq!(budget.remaining(), 90, "only what is held counts in a new month");
    assert_eq!(budget.settle(4, 7), 88);
    // A late settle corrects the charge in the month in which the hold ended, and charges no other.
    assert_eq!(budget.settle(3, 40), 78, "what exceeds the first settle is used now");
    budget.now += within * 2;
    assert_eq!(budget.remaining(), 78, "the last hold has ended, and was charged");
    assert_eq!(budget.settle(5, 1), 82);
    let next = time_zone.unwrap().month(month.end);
    assert_eq!(budget.ask(0, Ask::Peek).reset_after_ms, next.end - budget.now);
    budget.now = next.end;
    assert_eq!(budget.remaining(), 100);
}

/// Returns a stream that brings no estimate.
fn without_estimate(holder: u64) -> Caller {
    Caller { holder, learned: Some(Bounds { least: 10, most: 5_000 }), ..Caller::default() }
}

/// Lets streams run one after the other, and returns what each has held.
fn learns(budget: &mut Budget, cold: u64, used: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let run = |(holder, used): (u64, u64)| {
        let held = budget.ask_as(without_estimate(holder), Ask::Take(cold)).held.unwrap().hits;
        budget.settle(holder, used);
        held
    };
    (1..).zip(used).map(run).collect()
}

#[test]
fn a_stream_without_an_estimate_holds_what_nine_of_ten_streams_use() {
    let mut budget = Budget::new(u32::MAX, Unsettled::Charge);
    // In no order, from 1 to 1,000: nine of ten use at most 900.
    let used = (0..2_000).map(|stream| 1 + stream * 617 % 1_000);
    let held = learns(&mut budget, 50, used);
    assert_eq!(held[0], 50, "a new counter knows nothing");
    let enough =
        held[200..].iter().zip((200..).map(|stream| 1 + stream * 617 % 1_000)).filter(|(held, used)| *held >= used);
    let enough = enough.count() * 100 / held[200..].len();
    assert!((85..=95).contains(&enough), "{enough} of 100 streams used no more than they held");
    // Streams that bring an estimate hold that, and are learned from as well.
    for stream in 0..500 {
        assert_eq!(budget.ask(stream, Ask::Take(7)).held.unwrap().hits, 7);
        budget.settle(stream, 100);
    }
    let later = budget.ask_as(without_estimate(9), Ask::Take(50)).held.unwrap().hits;
    assert!((100..150).contains(&later), "{later}");
}

#[test]
fn no_stream_moves_what_is_learned_far_and_its_bounds_hold() {
    let mut budget = Budget::new(u32::MAX, Unsettled::Charge);
    let held = learns(&mut budget, 400, [1_000_000, 1, 1, 1, 1, 1, 1, 1, 1, 1, 400]);
    assert!(held[1] <= 450 && held.iter().all(|held| (390..=450).contains(held)), "{held:?}");
    let failing = learns(&mut budget, 400, [0; 50]);
    assert!(failing.iter().all(|held| *held == failing[0]), "streams that fail say nothing: {failing:?}");
    assert_eq!(learns(&mut budget, 400, [1; 2_000])[1_999], 10, "the least");
    assert_eq!(learns(&mut budget, 400, [20_000; 200])[199], 5_000, "the most");
    // It is never more than the budget, with which no stream could begin.
    let second = Duration::from_secs(1);
    let mut small = Budget { limit: limit(300, second, Unsettled::Charge), state: None, now: START };
    assert_eq!(learns(&mut small, 200, [0])[0], 200);
    for _ in 0..20 {
        small.ask(1, Ask::Take(1));
        small.settle(1, 5_000);
        small.now += 2 * second.as_millis() as u64;
    }
    assert_eq!(small.ask_as(without_estimate(2), Ask::Take(200)).held.unwrap().hits, 300);
}

/// What a stream held is taken back, and not what it asked for.
#[test]
fn a_charge_of_a_learned_estimate_is_taken_back_whole() {
    let mut budget = Budget::new(1_000_000, Unsettled::Charge);
    learns(&mut budget, 400, [900; 30]);
    let (before, ask) = (budget.remaining(), Ask::Take(400));
    let verdict = budget.ask_as(without_estimate(77), ask);
    let held = verdict.held.unwrap().hits;
    assert!(held > 500, "{held}");
    let charge = Charge::of(ask, budget.now, &verdict).unwrap();
    assert_eq!((charge.hits, (before - budget.remaining())), (held, held));
    budget.ask_as(without_estimate(77), Ask::TakeBack(charge));
    assert_eq!(budget.remaining(), before);
}

#[test]
fn what_was_used_beyond_the_budget_is_charged_and_keeps_others_out() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    assert!(budget.hold(1, 10));
    assert_eq!(budget.settle(1, 150), 0);
    assert!(!budget.hold(2, 1));
    budget.ask(2, Ask::Reset);
    assert_eq!(budget.remaining(), 100);
}

#[test]
fn what_is_not_settled_in_time_is_charged_or_refunded_and_a_late_settle_corrects_it() {
    for (unsettled, after, corrected) in [(Unsettled::Charge, 40, 80), (Unsettled::Refund, 100, 80)] {
        let mut budget = Budget::new(100, unsettled);
        assert!(budget.hold(1, 60));
        budget.now += WITHIN.as_millis() as u64;
        assert_eq!(budget.remaining(), 40, "it is held for the whole time");
        budget.now += 1;
        assert_eq!(budget.remaining(), after, "{unsettled:?}");
        assert_eq!(budget.settle(1, 20), corrected, "{unsettled:?}");
        assert_eq!(budget.settle(1, 20), corrected, "a second time: {unsettled:?}");
    }
}

#[test]
fn a_second_settle_charges_only_what_exceeds_the_first() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    assert!(budget.hold(1, 10));
    let remaining: Vec<u64> = [10, 10, 30, 0].into_iter().map(|used| budget.settle(1, used)).collect();
    assert_eq!(remaining, [90, 90, 70, 70]);
    assert!(budget.hold(1, 10), "a stream with that name begins anew");
    assert_eq!((budget.remaining(), budget.settle(1, 5)), (60, 65));
}

#[test]
fn a_settle_that_overtakes_its_hold_charges_and_the_hold_then_holds_nothing() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    assert_eq!(budget.settle(1, 30), 70);
    assert!(budget.hold(1, 50));
    assert_eq!(budget.remaining(), 70);
    assert!(budget.hold(1, 50), "another stream with that name");
    assert_eq!(budget.remaining(), 20);
    assert_eq!(budget.settle(2, 0), 20, "a stream that is not known has used nothing");
}

/// Envoy tells the end of denied streams as well.
#[test]
fn the_end_of_a_denied_stream_closes_no_hold_of_another_with_its_name() {
    let mut budget = Budget::new(100, Unsettled::Charge);
    assert!(budget.hold(1, 60) && !budget.hold(1, 60));
    assert_eq!(budget.settle(1, 0), 40);
    assert_eq!(budget.settle(1, 0), 100, "the end of the stream that passed");
}

#[test]
fn there_are_ten_thousand_holds_at_most() {
    let mut budget = Budget::new(u32::MAX, Unsettled::Refund);
    let all: Vec<bool> = (0..10_001).map(|holder| budget.hold(holder, 1)).collect();
    assert_eq!(all.iter().filter(|held| **held).count(), 10_000);
    let wait = budget.ask(20_000, Ask::Take(1)).retry_after_ms.unwrap();
    assert_eq!(wait, WITHIN.as_millis() as u64 + 1);
    budget.now += wait;
    assert!(budget.hold(20_000, 1));
}

/// A stream: when it begins, what it holds, how long it lasts, what part of it it uses, and whether it never settles.
type Stream = (u64, u64, u64, u64, bool);

fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let lasts = prop_oneof![4 => 0..80_u64, 1 => 80..300_u64];
    prop::collection::vec((0..20_u64, 1..40_u64, lasts, 0..=100_u64, prop::bool::weighted(0.1)), 1..80)
}

/// Runs streams whose names are these numbers modulo `names`. Returns the budget at the end, the hits that streams
/// used with the times of their ends, and what streams that did not settle held.
fn run(limit: Limit, names: u64, streams: &[Stream]) -> (Budget, Vec<(u64, u64)>, u64) {
    let mut budget = Budget { limit, state: None, now: START };
    // The end, the name and the use of each stream in progress.
    let mut ends: Vec<(u64, u64, u64)> = Vec::new();
    let (mut used, mut lost) = (Vec::new(), 0);
    let mut begins = START;
    for (number, (wait, hits, lasts, part, is_lost)) in (0..).zip(streams) {
        begins += wait;
        ends.sort_unstable();
        for (at, holder, hits) in ends.extract_if(.., |(at, ..)| *at <= begins) {
            budget.now = at;
            budget.settle(holder, hits);
        }
        budget.now = begins;
        let holder = number % names;
        let end = begins + lasts;
        match (budget.hold(holder, *hits), is_lost) {
            (true, true) => lost += hits,
            (true, false) => {
                ends.push((end, holder, hits * part / 100));
                used.push((end, hits * part / 100));
            }
            (false, _) => ends.push((begins, holder, 0)),
        }
    }
    ends.sort_unstable();
    for (at, holder, hits) in ends {
        budget.now = at.max(budget.now);
        budget.settle(holder, hits);
    }
    (budget, used, lost)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The first promise: where each stream uses at most what it holds, no interval of one period uses more than the
    /// number.
    #[test]
    fn no_period_uses_more_than_the_number(number in 1..100_u32, period in 20..400_u64, streams in streams()) {
        let in_time = |(wait, hits, lasts, part, lost): Stream| (wait, hits, lasts.min(100), part, lost);
        let within: Vec<Stream> = streams.into_iter().map(in_time).collect();
        let limit = limit(number, Duration::from_millis(period), Unsettled::Charge);
        let (_, used, _) = run(limit, u64::MAX, &within);
        for (from, _) in &used {
            let within = used.iter().filter(|(at, _)| (*from..=from + period).contains(at));
            let sum: u64 = within.map(|(_, hits)| hits).sum();
            prop_assert!(sum <= u64::from(number), "{sum} from {from}");
        }
    }

    /// The second and the third: when all streams have ended, nothing is held, and each has paid what it used, or what
    /// it held if it never settled.
    #[test]
    fn each_stream_is_charged_once_and_nothing_stays_held(streams in streams(), charges in any::<bool>()) {
        let unsettled = if charges { Unsettled::Charge } else { Unsettled::Refund };
        let (mut budget, used, lost) = run(limit(100_000, LONG, unsettled), u64::MAX, &streams);
        budget.now += 2 * WITHIN.as_millis() as u64;
        let paid: u64 = used.iter().map(|(_, hits)| hits).sum::<u64>() + if charges { lost } else { 0 };
        prop_assert_eq!(100_000 - budget.remaining(), paid);
    }

    /// No choice of names lets streams pay less than what they used.
    #[test]
    fn streams_of_one_name_pay_no_less_than_they_used(
        streams in streams(), names in 1..4_u64, number in 20..100_000_u32, charges in any::<bool>()
    ) {
        let unsettled = if charges { Unsettled::Charge } else { Unsettled::Refund };
        let (mut budget, used, _) = run(limit(number, LONG, unsettled), names, &streams);
        budget.now += 2 * WITHIN.as_millis() as u64;
        let paid = u64::from(number) - budget.remaining();
        let owed: u64 = used.iter().map(|(_, hits)| hits).sum();
        prop_assert!(paid >= owed.min(number.into()), "{paid} of {owed}");
    }
}

const RULES: &str = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limits:
          - {name: a-minute, algorithm: budget, unit: hour, requests_per_unit: 1000, estimate: 400}
          - {name: a-day, algorithm: budget, unit: day, requests_per_unit: 5000}
";

/// Asks for one tenant, and returns the code and what remains by each limit of the last descriptor.
async fn asks(tollgate: &Tollgate, descriptors: &[(&str, &str, u64)]) -> (Code, u32) {
    let entries: Vec<[(&str, &str); 2]> =
        descriptors.iter().map(|(key, stream, _)| [("tenant", "acme"), (*key, *stream)]).collect();
    let entries: Vec<&[(&str, &str)]> = entries.iter().map(<[_; 2]>::as_slice).collect();
    let mut all = request("llm", &entries);
    for (asked, (.., hits)) in all.descriptors.iter_mut().zip(descriptors) {
        asked.hits_addend = Some(*hits);
    }
    let response = tollgate.ask(all).await.unwrap();
    (response.overall_code(), response.statuses.last().unwrap().limit_remaining)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_hold_and_settle_over_grpc_in_memory_and_in_redis() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for settings in [&[][..], &[&*url]] {
        let tollgate = Tollgate::start(RULES, settings);
        let asks = async |descriptors: &[(&str, &str, u64)]| asks(&tollgate, descriptors).await;
        // As Envoy asks: a fixed number, and the request's own estimate.
        assert_eq!(asks(&[("hold", "a", 0), ("hold", "a", 700)]).await.0, Code::Ok);
        assert_eq!(asks(&[("hold", "b", 400)]).await.0, Code::OverLimit);
        assert_eq!(asks(&[("settle", "b", 0)]).await, (Code::Ok, 300));
        // The parts of a cost come in any order.
        assert_eq!(asks(&[("settle", "a", 0), ("settle", "a", 120), ("settle", "a", 80)]).await.0, Code::Ok);
        assert_eq!(asks(&[("settle", "c", 0)]).await, (Code::Ok, 800));
        // Without an estimate, that of the rule.
        assert_eq!(asks(&[("hold", "d", 0)]).await, (Code::Ok, 400));
        assert_eq!(asks(&[("settle", "d", 1_000)]).await, (Code::Ok, 0));
        assert_eq!(asks(&[("hold", "e", 1)]).await.0, Code::OverLimit);
    }
}

/// Bytes a day: more than 32 bits hold. Only the protocol's own fields have no room for that.
#[tokio::test]
async fn a_wide_budget_counts_exactly_in_memory_and_in_redis() {
    const NUMBER: u64 = 10_000_000_000_000;
    const TOKEN: &str = "a token of some length";
    let rules = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limit:
          {algorithm: budget, unit: year, requests_per_unit: 10000000000000,
           estimate: 5000000000, max_estimate: 9999999999999}
";
    let redis = Redis::start();
    for settings in [&[][..], &[&*format!("REDIS_URL={}", redis.url())]] {
        let settings = [&["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"], settings].concat();
        let tollgate = Tollgate::start(rules, &settings);
        let counter = || {
            let told = tollgate.admin("GET", "/counters?domain=llm&tenant=acme&hold=peek", TOKEN).1[0].take();
            let number = |value: &serde_json::Value| value.as_u64().unwrap();
            assert_eq!(number(&told["capacity"]), NUMBER, "{told}");
            (number(&told["remaining"]), number(&told["budget"]["used"]), number(&told["budget"]["held"]))
        };
        assert_eq!(asks(&tollgate, &[("hold", "a", 9_999_999_999_999)]).await, (Code::Ok, 1));
        assert_eq!(counter(), (1, 0, 9_999_999_999_999));
        assert_eq!(asks(&tollgate, &[("hold", "b", 2)]).await.0, Code::OverLimit);
        assert_eq!(asks(&tollgate, &[("settle", "a", 5_000_000_001)]).await, (Code::Ok, u32::MAX));
        assert_eq!(counter(), (NUMBER - 5_000_000_001, 5_000_000_001, 0));
        assert_eq!(asks(&tollgate, &[("hold", "c", 0)]).await.0, Code::Ok, "the estimate of the rule");
        assert_eq!(counter(), (NUMBER - 10_000_000_001, 5_000_000_001, 5_000_000_000));
        assert_eq!(asks(&tollgate, &[("settle", "c", NUMBER)]).await, (Code::Ok, 0));
        assert_eq!(counter(), (0, NUMBER + 5_000_000_001, 0), "the excess is counted");
        let (_, told) = tollgate.admin("GET", "/explain?domain=llm&tenant=acme&hold=peek", TOKEN);
        let limit = &told["descriptors"][0]["limits"][0];
        assert_eq!(limit["state"]["budget"]["used"], NUMBER + 5_000_000_001, "{told}");
        let all = request("llm", &[&[("tenant", "acme"), ("hold", "d")]]);
        let status = tollgate.ask(all).await.unwrap().statuses.remove(0);
        assert_eq!(status.current_limit.unwrap().requests_per_unit, u32::MAX, "clipped");
    }
}

/// Sums of the largest numbers are still compared exactly.
#[test]
fn numbers_up_to_the_largest_are_held_and_settled_to_the_hit() {
    let options = Options { settle_within: Some(WITHIN), ..Options::default() };
    let limit = Limit::new(Algorithm::Budget, MAX_NUMBER - 1, LONG, options).unwrap();
    let mut budget = Budget { limit, state: None, now: START };
    assert!(budget.hold(1, MAX_NUMBER - 2) && budget.hold(2, 1) && !budget.hold(3, 1));
    assert_eq!(budget.settle(1, MAX_NUMBER - 3), 1);
    assert_eq!(budget.settle(2, 3), 0);
    let held = Held::default();
    let verdict = budget.ask(0, Ask::Peek);
    assert_eq!((verdict.remaining, verdict.excess, verdict.held), (0, Some(1), Some(held)));
    // Beyond that, hits are no longer counted.
    assert_eq!((budget.settle(4, MAX_HITS), budget.ask(0, Ask::Peek).excess), (0, Some(1)));
}

/// A stream is one request, however many parts tell of it.
#[tokio::test]
async fn metrics_tell_what_streams_held_and_what_they_settled() {
    let rules = "
domain: llm
descriptors:
  - {key: tenant, descriptors: [{key: hold, rate_limit: {algorithm: budget, unit: year, requests_per_unit: 1000}}]}
";
    let tollgate = Tollgate::start(rules, &[]);
    asks(&tollgate, &[("hold", "a", 0), ("hold", "a", 500)]).await;
    asks(&tollgate, &[("hold", "b", 501)]).await;
    asks(&tollgate, &[("settle", "a", 0), ("settle", "a", 20), ("settle", "a", 100), ("settle", "a", 0)]).await;
    asks(&tollgate, &[("settle", "b", 0)]).await;
    let metric = |name: &str, more: &str| {
        tollgate.metric(&format!("tollgate_{name}{{domain=\"llm\",rule=\"tenant|hold\"{more}}}"))
    };
    assert_eq!(metric("settled_hits_total", ""), 120.0);
    assert_eq!((metric("hits_total", ""), metric("within_limit_hits_total", "")), (1001.0, 500.0));
    let requests =
        ["within_limit", "over_limit"].map(|outcome| metric("rule_requests_total", &format!(",outcome=\"{outcome}\"")));
    assert_eq!(requests, [1.0, 1.0]);
}

/// Over gRPC, in memory and in Redis: too large an estimate is none, too small a one is raised, and what is learned is
/// held by who brings none, and told to operators.
#[tokio::test]
async fn estimates_are_bounded_and_learned() {
    let rules = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limit:
          {algorithm: budget, unit: year, requests_per_unit: 100000, cost: 2,
           learn_estimate: true, min_estimate: 20, estimate: 100, max_estimate: 1000}
";
    let redis = Redis::start();
    for settings in [&[][..], &[&*format!("REDIS_URL={}", redis.url())]] {
        let admin = ["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"];
        let tollgate = Tollgate::start(rules, &[settings, &admin].concat());
        let told = || {
            let path = "/counters?domain=llm&tenant=acme&hold=none";
            tollgate.admin("GET", path, "a token of some length").1[0]["budget"]["learned"].as_u64()
        };
        assert_eq!(told(), None, "nothing");
        let held = async |stream: &str, estimate: u64, used: u64| {
            let (_, before) = asks(&tollgate, &[("settle", "none", 0)]).await;
            let (code, left) = asks(&tollgate, &[("hold", stream, estimate)]).await;
            assert_eq!(code, Code::Ok);
            let (_, after) = asks(&tollgate, &[("settle", stream, used)]).await;
            assert_eq!(u64::from(before - after), 2 * used);
            before - left
        };
        assert_eq!(held("a", 500, 500).await, 1_000, "its own estimate");
        assert_eq!(held("b", 5, 5).await, 40, "the least");
        assert_eq!(held("c", 1_000, 1).await, 2_000, "the most");
        assert_eq!(held("d", 1_001, 101).await, 200, "more than the most is no estimate");
        let learned = held("e", 0, 100).await;
        assert!((201..=225).contains(&learned), "{learned}");
        assert_eq!(told(), Some(u64::from(learned - learned / 80 - 1)), "after a stream that used less");
        let mut read = command();
        read.args(["counter", "get", "--domain", "llm", "--address", &format!("localhost:{}", tollgate.http_port)]);
        read.args(["tenant=acme", "hold=none"]).env("ADMIN_TOKEN", "a token of some length");
        let text = String::from_utf8(read.output().unwrap().stdout).unwrap();
        let (_, words) = text.split_once("nine of ten streams use up to ").expect(&text);
        assert!(words.starts_with("2"), "{text}");
        assert_eq!(held("f", 999_999, 100).await, learned - learned / 80 - 1, "a stream that used less lowers it");
    }
}

/// A stream that brings no estimate would pass however little is left if it held nothing.
#[tokio::test]
async fn a_stream_without_an_estimate_holds_that_of_a_budget_beside_it_or_one_hit() {
    let small_day = RULES.replace("requests_per_unit: 5000", "requests_per_unit: 700");
    let tollgate = Tollgate::start(&small_day, &[]);
    assert_eq!(asks(&tollgate, &[("hold", "a", 0)]).await, (Code::Ok, 300), "of the day");
    assert_eq!(asks(&tollgate, &[("hold", "b", 0)]).await.0, Code::OverLimit);
    let bare = "
domain: llm
descriptors:
  - key: tenant
    descriptors: [{key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 100}}]
";
    let tollgate = Tollgate::start(bare, &[]);
    assert_eq!(asks(&tollgate, &[("hold", "a", 0), ("hold", "a", 0)]).await, (Code::Ok, 99));
    assert_eq!(asks(&tollgate, &[("settle", "a", 500)]).await.0, Code::Ok);
    assert_eq!(asks(&tollgate, &[("hold", "b", 0)]).await.0, Code::OverLimit);
}

/// Envoy sends a fixed number beside the request's own. That part is no vote for letting the request pass.
#[tokio::test]
async fn the_parts_of_one_hold_are_one_vote_of_a_quota() {
    let quota = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - {key: hold, quota_mode: true, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 1000}}
";
    let tollgate = Tollgate::start(quota, &[]);
    for parts in [[0, 700], [700, 0], [300, 400]] {
        let tenant = fastrand::u32(..).to_string();
        let of_tenant = async |stream: &str| {
            let entries = [("tenant", &*tenant), ("hold", stream)];
            let mut all = request("llm", &[&entries, &entries]);
            for (descriptor, hits) in all.descriptors.iter_mut().zip(parts) {
                descriptor.hits_addend = Some(hits);
            }
            tollgate.ask(all).await.unwrap().overall_code()
        };
        assert_eq!((of_tenant("a").await, of_tenant("b").await), (Code::Ok, Code::OverLimit), "{parts:?}");
    }
}

/// A settle passes whatever a quota says, which is no reason to pass for what is beside it.
#[tokio::test]
async fn a_settle_is_no_vote_of_a_quota() {
    let quota = "
domain: llm
descriptors:
  - {key: user, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - key: tenant
    descriptors:
      - {key: hold, quota_mode: true, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 1000}}
";
    let tollgate = Tollgate::start(quota, &[]);
    let code = async |entries: &[&[(&str, &str)]]| tollgate.ask(request("llm", entries)).await.unwrap().overall_code();
    let settle = [("tenant", "acme"), ("settle", "a")];
    assert_eq!(
        code(&[&[("user", "ann")], &[("tenant", "acme"), ("hold", "a")]]).await,
        Code::Ok,
        "the budget has room"
    );
    assert_eq!(code(&[&settle]).await, Code::Ok);
    assert_eq!(code(&[&[("user", "ann")], &settle]).await, Code::OverLimit);
}

/// What one descriptor settles is no hold of another.
#[tokio::test]
async fn a_hold_without_an_estimate_holds_beside_a_settle_of_its_name() {
    let tollgate = Tollgate::start(RULES, &[]);
    let (_, all) = asks(&tollgate, &[("settle", "nobody", 0)]).await;
    assert_eq!(asks(&tollgate, &[("hold", "a", all.into())]).await, (Code::Ok, 0));
    assert_eq!(asks(&tollgate, &[("hold", "b", 0), ("settle", "b", 0)]).await.0, Code::OverLimit);
}

/// A client that goes away while another limit delays it gives back what it held, and not what it asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_waiting_holds_nothing_of_a_learned_estimate() {
    let rules = "
domain: llm
descriptors:
  - {key: slow, rate_limit: {algorithm: leaky_bucket, unit: hour, requests_per_unit: 60, max_delay: 60s}}
  - key: tenant
    descriptors:
      - key: hold
        rate_limit: {algorithm: budget, unit: year, requests_per_unit: 100000, estimate: 100, learn_estimate: true}
";
    let tollgate = Tollgate::start(rules, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    for stream in 0..20 {
        let name = stream.to_string();
        asks(&tollgate, &[("hold", &name, 0)]).await;
        asks(&tollgate, &[("settle", &name, 500)]).await;
    }
    let budget = || {
        let path = "/counters?domain=llm&tenant=acme&hold=none";
        tollgate.admin("GET", path, "a token of some length").1[0]["budget"].take()
    };
    let delayed = || {
        let mut all = request("llm", &[&[("slow", "lane")], &[("tenant", "acme"), ("hold", "late")]]);
        all.descriptors[1].hits_addend = Some(0);
        all
    };
    tollgate.ask(request("llm", &[&[("slow", "lane")]])).await.unwrap();
    let mut client = tollgate.client().await;
    let waiting = tokio::spawn(async move { client.should_rate_limit(delayed()).await });
    wait_until_async("it holds what was learned", async || budget()["held"].as_u64() > Some(400)).await;
    waiting.abort();
    wait_until_async("it holds nothing", async || budget()["holds"] == 0).await;
    assert_eq!((budget()["used"].as_u64(), budget()["held"].as_u64()), (Some(20 * 500), Some(0)));
}

#[tokio::test]
async fn without_a_store_an_instance_that_decides_alone_knows_of_settles() {
    let mut redis = Redis::start();
    let rules = RULES.replace("algorithm: budget,", "algorithm: budget, failure_mode: local,");
    let tollgate = Tollgate::start(&rules, &[&format!("REDIS_URL={}", redis.url())]);
    redis.kill();
    for stream in ["a", "b", "c"] {
        assert_eq!(asks(&tollgate, &[("hold", stream, 700)]).await.0, Code::Ok, "{stream}");
        assert_eq!(asks(&tollgate, &[("settle", stream, 0), ("settle", stream, 10)]).await.0, Code::Ok);
    }
    assert_eq!(asks(&tollgate, &[("hold", "d", 980)]).await.0, Code::OverLimit);
}

#[tokio::test]
async fn a_settle_of_nothing_and_a_hold_without_an_estimate_are_no_peeks_to_who_asks() {
    let tollgate = Tollgate::start(RULES, &[]);
    let told = |last: &str| {
        let address = format!("localhost:{}", tollgate.grpc_port);
        let words = ["ask", "--address", &*address, "--domain", "llm", "--hits", "0", "tenant=acme", last];
        String::from_utf8(command().args(words).output().unwrap().stdout).unwrap()
    };
    for last in ["hold=a", "settle=a"] {
        let told = told(last);
        assert!(told.starts_with("passed\n") && !told.contains("shadow mode"), "{told}");
    }
}

/// When streams settle is not known, so it is no time to wait for.
#[tokio::test]
async fn a_denial_tells_a_time_only_where_no_stream_may_settle_before() {
    let rules = "
domain: llm
descriptors: [{key: hold, rate_limit: {algorithm: budget, unit: minute, requests_per_unit: 1000}}]
";
    let tollgate = Tollgate::start(rules, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
    let asks = async |key: &str, stream: &str, hits: u64| {
        let mut all = request("llm", &[&[(key, stream)]]);
        all.descriptors[0].hits_addend = Some(hits);
        let response = tollgate.ask(all).await.unwrap();
        let wait = response.response_headers_to_add.iter().find(|header| header.key == "Retry-After");
        (response.overall_code(), wait.map(|wait| wait.value.parse::<u64>().unwrap()))
    };
    assert_eq!(asks("hold", "a", 900).await, (Code::Ok, None));
    assert_eq!(asks("hold", "b", 200).await, (Code::OverLimit, None));
    assert_eq!(asks("settle", "a", 950).await, (Code::Ok, None));
    let (code, wait) = asks("hold", "b", 200).await;
    assert!(code == Code::OverLimit && wait.is_some_and(|wait| (50..=66).contains(&wait)), "{wait:?}");
}

#[tokio::test]
async fn negative_hits_are_no_way_to_refund_a_budget() {
    let tollgate = Tollgate::start(RULES, &[]);
    let mut all = request("llm", &[&[("tenant", "acme"), ("settle", "a")]]);
    all.descriptors[0].hits_addend = Some(1);
    all.descriptors[0].is_negative_hits = true;
    assert_eq!(tollgate.ask(all).await.unwrap_err().code(), Status::InvalidArgument);
}

/// A settle tells what has happened, so no failure mode denies it.
#[tokio::test]
async fn without_a_store_settles_are_answered_and_streams_by_the_failure_mode() {
    let mut redis = Redis::start();
    let rules = RULES.replace("estimate: 400", "estimate: 400, failure_mode: closed");
    let tollgate = Tollgate::start(&rules, &[&format!("REDIS_URL={}", redis.url())]);
    assert_eq!(asks(&tollgate, &[("hold", "a", 10)]).await.0, Code::Ok);
    redis.kill();
    wait_until_async("the store is down", async || asks(&tollgate, &[("hold", "b", 10)]).await.0 == Code::OverLimit)
        .await;
    assert_eq!(asks(&tollgate, &[("settle", "a", 0), ("settle", "a", 10), ("settle", "a", 5)]).await.0, Code::Ok);
}

/// Each `settle` is for the `hold` beside it, whatever rules are below.
#[tokio::test]
async fn a_settle_reaches_the_budget_beside_it_and_reading_a_counter_holds_nothing() {
    let rules = "
domain: llm
expect: [team]
descriptors:
  - key: team
    descriptors:
      - key: hold
        rate_limit: {algorithm: budget, unit: day, requests_per_unit: 1000, estimate: 100, cost: 2}
      - key: user
        rate_limit: {unit: second, requests_per_unit: 100}
        descriptors:
          - {key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 500, estimate: 100}}
";
    let tollgate = Tollgate::start(rules, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let left = async |entries: &[(&str, &str)], hits: u64| {
        let mut all = request("llm", &[entries]);
        all.descriptors[0].hits_addend = Some(hits);
        let response = tollgate.ask(all).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok, "{entries:?}");
        response.statuses[0].limit_remaining
    };
    assert_eq!(left(&[("team", "a"), ("hold", "1")], 0).await, 800);
    assert_eq!(left(&[("team", "a"), ("user", "u"), ("hold", "1")], 0).await, 400);
    for key in ["hold", "settle"] {
        let (_, told) =
            tollgate.admin("GET", &format!("/counters?domain=llm&team=a&{key}=1"), "a token of some length");
        assert_eq!(told[0]["remaining"], 800, "{told}");
        let budget = &told[0]["budget"];
        let first = &budget["first_ends_after_ms"];
        assert_eq!(budget, &json!({"used": 0, "held": 200, "holds": 1, "first_ends_after_ms": first}));
        assert!(first.as_u64() > Some(500_000), "{told}");
    }
    let (_, told) = tollgate.admin("GET", "/explain?domain=llm&team=a&hold=2", "a token of some length");
    let state = &told["descriptors"][0]["limits"][0]["state"];
    assert_eq!((&state["remaining"], &state["budget"]["held"]), (&json!(800), &json!(200)), "{told}");
    assert_eq!(left(&[("team", "a"), ("settle", "1")], 30).await, 940);
    assert_eq!(left(&[("team", "a"), ("user", "u"), ("settle", "1")], 30).await, 470);
    let (_, told) = tollgate.admin("GET", "/counters?domain=llm&team=a&hold=1", "a token of some length");
    assert_eq!(told[0]["budget"], json!({"used": 60, "held": 0, "holds": 0, "first_ends_after_ms": null}));
}

#[test]
fn a_budget_that_cannot_be_is_refused_with_what_would_be_right() {
    let wrong = |descriptor: &str| {
        load_text(format!("{{domain: llm, descriptors: [{descriptor}]}}")).map(drop).unwrap_err().to_string()
    };
    let budget = "{algorithm: budget, unit: day, requests_per_unit: 9}";
    let cases = [
        (format!("{{key: tenant, rate_limit: {budget}}}"), "a budget needs the key hold without a value"),
        (
            format!("{{key: hold, rate_limits: [{budget}, {{unit: day, requests_per_unit: 9}}]}}"),
            "a limit beside a budget would count each stream on its own",
        ),
        (
            format!(
                "{{key: hold, rate_limit: {budget}}}, {{key: settle, rate_limit: {{unit: day, requests_per_unit: 9}}}}"
            ),
            "hold and settle cannot both be here",
        ),
        (
            "{key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 9007199254740992}}".to_owned(),
            "must be a whole number from 0 to 9007199254740991",
        ),
        (
            "{key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 9, estimate: 0}}".to_owned(),
            "estimate must be at least 1",
        ),
        (
            format!("{{key: hold, rate_limit: {}, max_estimate: 0}}}}", budget.trim_end_matches('}')),
            "max_estimate must be at least 1",
        ),
        (
            format!("{{key: hold, rate_limit: {}, estimate: 4, min_estimate: 5}}}}", budget.trim_end_matches('}')),
            "min_estimate, estimate and max_estimate must be in ascending order",
        ),
        (
            "{key: hold, rate_limit: {algorithm: budget, unit: day, requests_per_unit: 9, settle_within: 400d}}"
                .to_owned(),
            "settle_within is a whole number of milliseconds",
        ),
    ];
    let warned = |cost: u32| {
        let limit = format!("algorithm: budget, unit: day, requests_per_unit: 9, estimate: 5, cost: {cost}");
        let loaded = load_text(format!("{{domain: llm, descriptors: [{{key: hold, rate_limit: {{{limit}}}}}]}}"));
        loaded.unwrap().warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert!(warned(2).contains("estimate: is more than the whole budget"), "{}", warned(2));
    assert_eq!(warned(1), "");
    for (descriptor, why) in cases {
        let told = wrong(&descriptor);
        assert!(told.contains(why), "{descriptor}: {told}");
    }
}

/// `deploy/envoy/llm.yaml` as it is: the stand-in for a model uses 100 tokens.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_real_envoy_hold_their_estimates_and_settle_what_they_used() {
    let rules = format!(
        "
domain: shop
{PRICES}
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limits: [{{algorithm: budget, unit: year, requests_per_unit: 10000, estimate: 9800}}, {DOLLARS}]
"
    );
    let tollgate = Tollgate::start(&rules, &[]);
    let envoy = Envoy::start_from("deploy/envoy/llm.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT]);
    let status = |tenant: &str, estimate: &[(&str, &str)]| {
        // A client that chooses the name of its stream.
        let headers = [&[("x-tenant", tenant), ("x-stream", "mine")], estimate].concat();
        envoy.ask("/v1/chat/completions", &headers).status
    };
    let left = async |tenant: &str| {
        let settle = request("shop", &[&[("tenant", tenant), ("settle", "nobody")]]);
        let mut settle = settle;
        settle.descriptors[0].hits_addend = Some(0);
        tollgate.ask(settle).await.unwrap().statuses[0].limit_remaining
    };
    for used in 1..=6 {
        assert_eq!(status("acme", &[("x-max-tokens", "9500")]), 200, "{used}");
        wait_until_async("it is settled", async || left("acme").await == 10_000 - 100 * used).await;
    }
    assert_eq!(status("acme", &[("x-max-tokens", "9500")]), 429, "600 are used");
    for no_number in ["many", "nan", "-1"] {
        assert_eq!(status("acme", &[("x-max-tokens", no_number)]), 429, "the estimate of the rule is 9,800");
    }
    assert_eq!(status("acme", &[("x-max-tokens", "9400")]), 200);
    wait_until_async("it is settled", async || left("acme").await == 9_300).await;
    assert_eq!(status("other", &[]), 200);
    wait_until_async("it is settled", async || left("other").await == 9_900).await;
}

/// `deploy/envoy/llm.yaml` with the rules that it names, as they are. The stand-in for a model uses 12 tokens of input
/// and 88 of output.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_real_envoy_are_charged_in_money_at_the_price_of_their_model() {
    const TOKEN: &str = "a token of some length";
    let rules = std::fs::read_to_string("config/rules/shop.yaml").unwrap();
    let tollgate = Tollgate::start(&rules, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let envoy = Envoy::start_from("deploy/envoy/llm.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT]);
    let post = |tenant: &str, body: &Value| {
        let headers = [("x-tenant", tenant), ("x-max-tokens", "500")];
        envoy.post("/v1/chat/completions", &headers, body).status
    };
    // What is used of tokens and of dollars, and what is held of both.
    let budgets = |tenant: &str| {
        let (_, told) = tollgate.admin("GET", &format!("/counters?domain=shop&tenant={tenant}&hold=none"), TOKEN);
        let of = |at: usize, what: &str| told[at]["budget"][what].as_u64().unwrap();
        ([of(0, "used"), of(1, "used")], of(0, "held") + of(1, "held"))
    };
    // A model without a price costs the highest of all, in both directions.
    for (tenant, body, cost) in [
        ("large", json!({"model": "gpt-4o", "messages": []}), 12 * 2_500 + 88 * 10_000),
        ("small", json!({"model": "gpt-4o-mini-2024-07-18"}), 12 * 150 + 88 * 600),
        ("new", json!({"model": "no price is known"}), 12 * 10_000 + 88 * 10_000),
        ("silent", json!({"messages": []}), 12 * 10_000 + 88 * 10_000),
    ] {
        assert_eq!(post(tenant, &body), 200, "{tenant}");
        wait_until("it is settled", || budgets(tenant).1 == 0);
        assert_eq!(budgets(tenant).0, [100, cost], "{tenant}");
    }

    // Of 0.6 cents, 0.182 are used after two streams, and another one of this model may cost half a cent.
    let dollar = "requests_per_unit: 1000000000\n            algorithm: budget";
    assert!(rules.contains(dollar));
    tollgate.change_rules(&rules.replace(dollar, &dollar.replace("1000000000", "6000000")));
    tollgate.must_log("new rules are in force");
    for _ in 0..2 {
        assert_eq!(post("poor", &json!({"model": "gpt-4o"})), 200);
        wait_until("it is settled", || budgets("poor").1 == 0);
    }
    assert_eq!(post("poor", &json!({"model": "gpt-4o"})), 429);
    assert_eq!(budgets("poor"), ([200, 1_820_000], 0), "tokens are not held either");
    assert_eq!(post("poor", &json!({"model": "gpt-4o-mini"})), 200, "that costs less");
}

/// Clients that ask at the same time.
const CLIENTS: usize = 200;

/// Streams of a model that answers none of them before all clients have asked.
#[derive(Default)]
struct Streams {
    open: AtomicUsize,
    may_end: AtomicBool,
}

impl Streams {
    /// Starts a model, and returns the streams that it gets. They use 50 to 500 tokens, the same in each run.
    fn start() -> (Arc<Streams>, Model) {
        let (streams, random) = (Arc::<Streams>::default(), Mutex::new(fastrand::Rng::with_seed(7)));
        let of_model = Arc::clone(&streams);
        let model = Model::start(move || {
            of_model.open.fetch_add(1, SeqCst);
            wait_until("the streams may end", || of_model.may_end.load(SeqCst));
            random.lock().unwrap().u64(50..=ESTIMATE)
        });
        (streams, model)
    }

    /// Lets all clients ask once, and ends the streams when each client has one or is denied. Returns their number.
    fn round(&self, envoy: &Envoy) -> usize {
        let denied = AtomicUsize::new(0);
        self.open.store(0, SeqCst);
        self.may_end.store(false, SeqCst);
        std::thread::scope(|scope| {
            let client = || denied.fetch_add(usize::from(!passes(envoy, Some(ESTIMATE))), SeqCst);
            (0..CLIENTS).for_each(|_| drop(scope.spawn(client)));
            wait_until("all have asked", || self.open.load(SeqCst) + denied.load(SeqCst) == CLIENTS);
            self.may_end.store(true, SeqCst);
        });
        CLIENTS - denied.into_inner()
    }
}

fn used(model: &Model) -> u64 {
    model.answers().iter().map(|answer| answer.tokens).sum()
}

#[test]
fn two_hundred_clients_use_nearly_a_budget_and_never_more() {
    const TOKEN: &str = "a token of some length";
    let budgets = format!("[{{algorithm: budget, unit: year, requests_per_unit: 10000}}, {DOLLARS}]");
    let rules = format!(
        "domain: shop\n{PRICES}\ndescriptors: [{{key: tenant, descriptors: [{{key: hold, rate_limits: {budgets}}}]}}]"
    );
    let tollgate = Tollgate::start(&rules, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]);
    let (streams, model) = Streams::start();
    let envoy = model.envoy("deploy/envoy/llm.yaml", tollgate.grpc_port);
    let remaining = || {
        let (_, counters) = tollgate.admin("GET", "/counters?domain=shop&tenant=acme&hold=none", TOKEN);
        counters[0]["remaining"].as_u64().unwrap()
    };
    assert_eq!(streams.round(&envoy), 20, "each holds 500");
    loop {
        assert!(used(&model) <= 10_000, "{}", used(&model));
        wait_until("nothing is held", || remaining() + used(&model) == 10_000);
        if streams.round(&envoy) == 0 {
            break;
        }
    }
    assert!(remaining() < ESTIMATE, "{}", remaining());
}

/// `deploy/envoy/usage.yaml`, for comparison: nothing is charged while streams are open.
#[test]
fn two_hundred_clients_use_more_than_a_limit_that_is_charged_at_the_end() {
    let limit = "{unit: year, requests_per_unit: 10000, count_denied: true, give_back: false}";
    let rules = format!("domain: shop\ndescriptors: [{{key: model-tokens, rate_limit: {limit}}}]");
    let tollgate = Tollgate::start(&rules, &[]);
    let (streams, model) = Streams::start();
    let envoy = model.envoy("deploy/envoy/usage.yaml", tollgate.grpc_port);
    assert_eq!(streams.round(&envoy), CLIENTS);
    assert!(used(&model) > 50_000, "{}", used(&model));
}
