//! Balances, top-ups, refunds, and what is carried over: in the engine, by the command against Redis, and over HTTP.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::engine::algorithm::{
    Algorithm, Ask, Caller, Credit, CreditKind, Limit, MAX_NUMBER, NEVER, Options, Outcome, State, TimeZone, Unsettled,
    Verdict,
};
use tollgate::wire::rate_limit_response::Code;

use crate::support::cluster::{Cluster, slot_of_tag};
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, command, request};
use crate::support::{wait_until, wait_until_async};

const START: u64 = 1_784_000_000_123;

const DAY: u64 = 86_400_000;

const WITHIN: u64 = 3_600_000;

/// The counter of a budget.
#[derive(Clone)]
struct Budget {
    limit: Limit,
    state: Option<State>,
    now: u64,
}

impl Budget {
    fn balance(number: u64) -> Budget {
        Budget::new(number, NEVER, Options::default())
    }

    /// A month in Berlin of which so many percent are carried over.
    fn month(number: u64, carry: Option<u32>) -> Budget {
        let options =
            Options { time_zone: TimeZone::named("Europe/Berlin"), carry_percent: carry, ..Options::default() };
        Budget::new(number, Duration::from_secs(30 * 86_400), options)
    }

    fn new(number: u64, period: Duration, options: Options) -> Budget {
        let options = Options { settle_within: Some(Duration::from_millis(WITHIN)), ..options };
        let limit = Limit::new(Algorithm::Budget, number, period, options).unwrap();
        Budget { limit, state: None, now: START }
    }

    fn ask(&mut self, holder: u64, ask: Ask) -> Verdict {
        let caller = Caller { holder, ..Caller::default() };
        let Outcome { effect, verdict } = self.limit.decide(ask, caller, self.state.as_ref(), self.now);
        self.state = effect.apply(self.state.take());
        verdict
    }

    fn hold(&mut self, holder: u64, hits: u64) -> bool {
        self.ask(holder, Ask::Take(hits)).allowed
    }

    fn uses(&mut self, hits: u64) {
        let holder = self.now % 1_000_003;
        assert!(self.hold(holder, hits));
        self.ask(holder, Ask::Settle(hits));
        self.now += 1;
    }

    fn remaining(&mut self) -> u64 {
        self.ask(0, Ask::Peek).remaining
    }

    /// Credits, and returns how many hits were, and whether they are now; `None` if it is refused.
    fn credit(&mut self, kind: CreditKind, hits: u64, id: u64) -> Option<(u64, bool)> {
        let verdict = self.ask(0, Ask::Credit(Credit { hits, id, kind }));
        verdict.allowed.then(|| (verdict.held.unwrap().hits, verdict.held.unwrap().holds == 1))
    }

    fn top_up(&mut self, hits: u64, id: u64) -> Option<(u64, bool)> {
        self.credit(CreditKind::TopUp, hits, id)
    }

    fn refund(&mut self, hits: u64, id: u64) -> Option<(u64, bool)> {
        self.credit(CreditKind::Refund, hits, id)
    }

    fn month_of(&self) -> std::ops::Range<u64> {
        TimeZone::named("Europe/Berlin").unwrap().month(self.now)
    }
}

#[test]
fn what_is_used_of_a_balance_stays_used_and_a_top_up_adds_to_it() {
    let mut balance = Budget::balance(100);
    balance.uses(70);
    balance.now += 9 * 365 * DAY;
    assert_eq!(balance.remaining(), 30);
    let denied = balance.ask(1, Ask::Take(31));
    assert_eq!((denied.allowed, denied.retry_after_ms), (false, None), "no time gives it back");
    assert_eq!(balance.top_up(50, 1), Some((50, true)));
    assert_eq!(balance.remaining(), 80);
    assert!(balance.hold(2, 80) && !balance.hold(3, 1));
    balance.now += 2 * WITHIN;
    assert_eq!(balance.remaining(), 0, "what is not settled is charged");
    assert_eq!(balance.ask(2, Ask::Settle(10)).remaining, 70);
}

#[test]
fn a_hold_of_a_balance_is_waited_for_only_if_it_would_be_refunded() {
    for (unsettled, waits) in [(Unsettled::Charge, false), (Unsettled::Refund, true)] {
        let options = Options { unsettled: Some(unsettled), ..Options::default() };
        let mut balance = Budget::new(100, NEVER, options);
        assert!(balance.hold(1, 60));
        let wait = balance.ask(2, Ask::Take(50)).retry_after_ms;
        assert_eq!(wait.is_some(), waits, "{unsettled:?}");
        balance.now += wait.unwrap_or(0);
        assert_eq!(balance.hold(2, 50), waits);
    }
}

#[test]
fn a_credit_is_done_once_for_each_id() {
    let mut balance = Budget::balance(100);
    balance.uses(40);
    assert_eq!((balance.top_up(50, 7), balance.top_up(50, 7)), (Some((50, true)), Some((50, false))));
    balance.now += 399 * DAY;
    assert_eq!(balance.top_up(50, 7), Some((50, false)), "also a year later");
    assert_eq!((balance.top_up(51, 7), balance.refund(50, 7)), (None, None), "it has other hits, or is a refund");
    assert_eq!(balance.remaining(), 110);
    assert_eq!(balance.refund(100, 8), Some((40, true)), "no more than were used");
    assert_eq!(balance.refund(100, 8), Some((40, false)));
    assert_eq!(balance.remaining(), 150);
    balance.uses(150);
    assert_eq!(balance.refund(100, 8), Some((40, false)));
    assert_eq!(balance.remaining(), 0);
    // Of very many, the last thousand are known.
    for id in 100..1_099 {
        assert_eq!(balance.top_up(1, id), Some((1, true)));
    }
    assert_eq!((balance.refund(100, 8), balance.remaining()), (Some((40, false)), 999));
    assert_eq!(balance.top_up(1, 5_000), Some((1, true)));
    assert_eq!(balance.top_up(50, 7), Some((50, true)), "the oldest was forgotten");
}

/// Refunding what was charged for a stream that told nothing is what support does, and then the stream tells.
#[test]
fn what_was_refunded_is_not_corrected_by_a_late_settle_as_well() {
    let mut balance = Budget::balance(1_000);
    balance.uses(50);
    assert!(balance.hold(1, 100));
    balance.now += 2 * WITHIN;
    assert_eq!(balance.remaining(), 850);
    assert_eq!(balance.refund(100, 1), Some((100, true)));
    balance.now += 1;
    assert_eq!(balance.ask(1, Ask::Settle(10)).remaining, 950, "it was refunded more than it used");
    assert_eq!(balance.ask(1, Ask::Settle(100)).remaining, 950, "and has paid for as much");
    assert_eq!(balance.ask(1, Ask::Settle(130)).remaining, 920);
    // What is charged after the refund is corrected as ever.
    assert!(balance.hold(2, 100));
    balance.now += 2 * WITHIN;
    assert_eq!((balance.remaining(), balance.ask(2, Ask::Settle(10)).remaining), (820, 910));
}

#[test]
fn a_refund_of_nothing_is_refused_and_leaves_its_id_free() {
    let mut month = Budget::month(100, None);
    assert_eq!((month.refund(10, 1), month.state.clone()), (None, None));
    month.uses(4);
    assert_eq!((month.refund(10, 1), month.refund(10, 2)), (Some((4, true)), None));
}

#[test]
fn a_balance_has_no_more_than_the_largest_number() {
    let mut balance = Budget::balance(MAX_NUMBER - 10);
    assert_eq!((balance.top_up(11, 1), balance.top_up(10, 1)), (None, Some((10, true))));
    assert_eq!((balance.remaining(), balance.top_up(1, 2)), (MAX_NUMBER, None));
}

#[test]
fn a_window_that_slides_is_refunded_and_not_topped_up() {
    let mut budget = Budget::new(100, Duration::from_secs(60), Options::default());
    budget.uses(30);
    budget.now += 30_000;
    budget.uses(40);
    assert_eq!(budget.top_up(10, 1), None);
    assert_eq!(budget.refund(50, 1), Some((50, true)), "of the newest first");
    assert_eq!(budget.remaining(), 80);
    budget.now += 10 * 60_000;
    budget.uses(60);
    assert_eq!((budget.refund(50, 1), budget.remaining()), (Some((50, false)), 40), "its ID outlasts the window");
}

#[test]
fn a_top_up_of_a_month_is_for_that_month() {
    let mut month = Budget::month(100, None);
    month.uses(100);
    assert_eq!(month.top_up(50, 1), Some((50, true)));
    month.uses(20);
    let wait = month.ask(1, Ask::Take(31)).retry_after_ms;
    assert_eq!(wait, Some(month.month_of().end - month.now), "more than is left, and no more than a month has");
    assert_eq!(month.ask(1, Ask::Take(101)).retry_after_ms, None);
    month.now = month.month_of().end;
    assert_eq!((month.remaining(), month.top_up(50, 1)), (100, Some((50, false))));
}

#[test]
fn a_part_of_what_is_left_is_carried_over_into_the_next_month_alone() {
    let mut month = Budget::month(1_000, Some(20));
    month.uses(395);
    let begun = month.now;
    month.now = month.month_of().end;
    assert_eq!(month.remaining(), 1_121, "a fifth of 605, rounded down");
    month.uses(10);
    month.now = month.month_of().end;
    assert_eq!(month.remaining(), 1_200, "of a month, not of what was carried over into it");
    month.uses(1_200);
    month.now = month.month_of().end;
    assert_eq!(month.remaining(), 1_000);
    assert!(!month.hold(1, 1_001));
    // Nothing came in that month: the next one has a fifth of it more.
    month.now = month.month_of().end;
    assert_eq!(month.remaining(), 1_200);
    assert!(month.now - begun > 100 * DAY);
    assert_eq!(Budget::month(1_000, Some(20)).remaining(), 1_000, "a new counter has nothing to carry over");
}

#[test]
fn a_request_waits_for_what_the_next_month_has_more() {
    let mut month = Budget::month(1_000, Some(50));
    month.uses(100);
    let end = month.month_of().end;
    let denied = month.ask(1, Ask::Take(1_450));
    assert_eq!(denied.retry_after_ms, Some(end - month.now));
    assert_eq!(month.ask(1, Ask::Take(1_451)).retry_after_ms, None);
    month.now = end;
    assert!(month.hold(1, 1_450) && !month.hold(2, 1));
}

#[test]
fn what_is_charged_as_unsettled_at_the_end_of_a_month_is_not_carried_over() {
    let mut month = Budget::month(1_000, Some(100));
    month.now = month.month_of().end - 2 * WITHIN;
    assert!(month.hold(1, 300));
    month.now = month.month_of().end + 5;
    assert_eq!(month.remaining(), 1_700);
    // A hold that outlasts the month is settled in the next.
    let mut month = Budget::month(1_000, Some(100));
    month.now = month.month_of().end - 5;
    assert!(month.hold(1, 300));
    month.now += 10;
    assert_eq!(month.remaining(), 1_700);
    assert_eq!(month.ask(1, Ask::Settle(200)).remaining, 1_800);
}

/// The number in force at the first call of a month counts for what it carries over, of an adjustment too.
#[test]
fn an_adjusted_number_counts_for_what_is_carried_over_if_it_is_in_force_at_the_boundary() {
    let adjusted = |month: &Budget, number| Budget { limit: Budget::month(number, Some(50)).limit, ..month.clone() };
    let mut month = Budget::month(1_000, Some(50));
    month.uses(100);
    let end = month.month_of().end;
    month.now = end;
    // Raised, lowered to less than is used, and without an adjustment.
    for (number, carried) in [(2_000, 950), (60, 0), (1_000, 450)] {
        let mut first = adjusted(&month, number);
        assert_eq!(first.remaining(), number + carried);
        assert!(first.hold(1, 10));
        first.ask(1, Ask::Settle(10));
        // The first call has decided it; other numbers are for the rest of the month.
        for number in [1_000, 3_000] {
            assert_eq!(adjusted(&first, number).remaining(), number + carried - 10, "{number}");
        }
    }
    // One that ended before the boundary leaves what the streams used under it.
    let mut raised = adjusted(&Budget::month(1_000, Some(50)), 2_000);
    raised.uses(1_500);
    raised.now = end;
    assert_eq!((adjusted(&raised, 1_000).remaining(), raised.remaining()), (1_000, 2_250));
}

/// What happens to a balance.
#[derive(Clone, Debug)]
enum Event {
    Holds(u64, u64),
    Settles(u64, u64),
    TopsUp(u64, u64),
    Refunds(u64, u64),
    Waits(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..6_u64, 1..60_u64).prop_map(|(holder, hits)| Event::Holds(holder, hits)),
        4 => (0..6_u64, 0..80_u64).prop_map(|(holder, hits)| Event::Settles(holder, hits)),
        2 => (0..8_u64, 1..60_u64).prop_map(|(id, hits)| Event::TopsUp(id, hits)),
        2 => (0..8_u64, 1..60_u64).prop_map(|(id, hits)| Event::Refunds(id, hits)),
        1 => (0..3 * WITHIN).prop_map(Event::Waits),
    ];
    prop::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// In whatever order credits come, and however often: each ID counts once, and only settles, the ends of holds and
    /// refunds change what is used.
    #[test]
    fn a_balance_adds_up(number in 0..200_u64, events in events()) {
        let mut balance = Budget::balance(number);
        // What is used, the hits that were topped up, and the IDs of credits.
        let (mut used, mut topped_up, mut ids) = (0, 0, BTreeSet::new());
        let used_of = |told: &Verdict, topped_up: u64| {
            let charged = number + topped_up + told.excess.unwrap_or(0);
            charged - told.remaining - told.held.unwrap().hits
        };
        for event in events {
            balance.now += 1;
            let before = balance.ask(0, Ask::Peek);
            used = used_of(&before, topped_up).max(used);
            prop_assert_eq!(used_of(&before, topped_up), used, "only the ends of holds use more meanwhile");
            match event {
                Event::Holds(holder, hits) => {
                    if balance.hold(holder, hits) {
                        prop_assert!(hits <= before.remaining || before.remaining == balance.remaining());
                    }
                }
                Event::Settles(holder, hits) => {
                    used = used_of(&balance.ask(holder, Ask::Settle(hits)), topped_up);
                    let most = used_of(&before, topped_up) + hits;
                    prop_assert!(used <= most, "{used} of {most}");
                }
                Event::Waits(ms) => balance.now += ms,
                Event::TopsUp(id, hits) => {
                    let is_new = balance.top_up(hits, id).is_some_and(|(_, is_new)| is_new);
                    prop_assert_eq!(is_new, ids.insert(id));
                    topped_up += if is_new { hits } else { 0 };
                }
                Event::Refunds(id, hits) => {
                    let done = balance.refund(hits, id);
                    let given = match done {
                        Some((given, true)) => given,
                        _ => 0,
                    };
                    let is_known = ids.contains(&id);
                    prop_assert_eq!(given, if is_known { 0 } else { hits.min(used) });
                    if given > 0 {
                        ids.insert(id);
                    }
                    used -= given;
                }
            }
            let told = balance.ask(0, Ask::Peek);
            prop_assert_eq!(told.extra, topped_up);
            let is_ended = matches!(event, Event::Waits(_));
            prop_assert!(is_ended || used_of(&told, topped_up) == used, "{told:?}: {used} were used");
            used = used_of(&told, topped_up);
        }
    }
}

const RULES: &str = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limits:
          - {name: credit, algorithm: budget, unit: never, requests_per_unit: 100, usage: {by: day, keep: 400d}}
          - {name: a-minute, algorithm: budget, unit: minute, requests_per_unit: 5000}
  - key: other
    descriptors:
      - key: hold
        rate_limit: {algorithm: budget, unit: month, time_zone: UTC, requests_per_unit: 10, carry_percent: 20}
";

async fn asks(tollgate: &Tollgate, key: &str, stream: &str, hits: u64) -> (Code, u32) {
    let mut asked = request("llm", &[&[("tenant", "acme"), (key, stream)]]);
    asked.descriptors[0].hits_addend = Some(hits);
    let answer = tollgate.ask(asked).await.unwrap();
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

const TOKEN: &str = "a token of some length";

/// A balance begins with nothing, and says so; what clients are told of it counts what was topped up.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepaid_balance_is_told_with_its_top_ups() {
    let rules = "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - {key: hold, rate_limit: {name: credit, algorithm: budget, unit: never, requests_per_unit: 0, estimate: 10}}
";
    let redis = Redis::start();
    for store in [String::new(), format!("REDIS_URL={}", redis.url())] {
        let admin = ["ADMIN_API=true", "ADMIN_TOKEN=a token of some length", "LIMIT_RESPONSE_HEADERS_ENABLED=true"];
        let settings: Vec<&str> = admin.into_iter().chain([&*store]).filter(|setting| !setting.is_empty()).collect();
        let service = Tollgate::start(rules, &settings);
        let hold = async |stream: &str, hits: u64| {
            let mut asked = request("llm", &[&[("tenant", "acme"), ("hold", stream)]]);
            asked.descriptors[0].hits_addend = Some(hits);
            let answer = service.ask(asked).await.unwrap();
            let header = |name: &str| {
                let found = answer.response_headers_to_add.iter().find(|header| header.key == name);
                found.map(|header| header.value.clone())
            };
            let said = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"].map(header);
            (answer.overall_code(), said.map(|value| value.unwrap_or_default()))
        };
        let words = |words: [&str; 4]| words.map(str::to_owned);
        assert_eq!(hold("a", 1).await, (Code::OverLimit, words(["0", "0", "", ""])));
        let explained = service.admin("GET", "/explain?domain=llm&tenant=acme&hold=a", TOKEN).1;
        assert!(!explained.to_string().contains("allows no requests"), "{explained}");
        let top_up = json!({"kind": "top-up", "hits": 500, "id": "invoice"}).to_string();
        let (status, told) = service.admin_with("POST", "/credits?domain=llm&tenant=acme", TOKEN, &top_up);
        assert_eq!((status, &told["counter"]["capacity"]), (200, &500.into()), "{told}");
        assert_eq!(hold("b", 0).await, (Code::Ok, words(["500", "490", "", ""])));
        assert_eq!(hold("c", 491).await, (Code::OverLimit, words(["500", "490", "", ""])));
        let output = command()
            .args(["ask", "--address", &format!("localhost:{}", service.grpc_port), "--domain", "llm", "--hits", "491"])
            .args(["tenant=acme", "hold=d"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("in all") && said.contains("it is used up until it is topped up"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_shown_topped_up_and_refunded_by_the_command() {
    let redis = Redis::start();
    let url = redis.url();
    for by_service in [false, true] {
        redis.command::<()>("FLUSHALL").await;
        let admin = ["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"].map(str::to_owned);
        let settings = [&admin[..], &[format!("REDIS_URL={url}")]].concat();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let service = Tollgate::start(RULES, &settings);
        let (rules, address) = (service.rules.path().to_str().unwrap().to_owned(), service.http_port.to_string());
        let budget = |words: &[&str]| {
            let mut program = command();
            program.arg("budget").args(words).args(["--domain", "llm", "tenant=acme"]);
            if by_service {
                program.args(["--address", &format!("localhost:{address}")]).env("ADMIN_TOKEN", TOKEN);
            } else {
                program.envs([("REDIS_URL", url.as_str()), ("RULES", &rules)]);
            }
            let output = program.output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        assert_eq!(asks(&service, "hold", "a", 80).await, (Code::Ok, 20));
        assert_eq!(asks(&service, "settle", "a", 90).await, (Code::Ok, 10));
        assert_eq!(asks(&service, "hold", "b", 30).await.0, Code::OverLimit);
        let (code, out, _) = budget(&["show"]);
        let shown = "100 in all, budget (credit): 10 of 100 left, 90 used\n";
        assert!(
            code == Some(0) && out.contains(shown) && out.contains("(a-minute): 4910 of 5000 left, 90 used"),
            "{out}"
        );
        let (code, _, said) = budget(&["top-up", "--hits", "50", "--id", "invoice-1"]);
        assert!(code == Some(1) && said.contains("choose one of credit, a-minute as rule"), "{said}");
        let top_up = ["top-up", "--hits", "50", "--id", "invoice-1", "--rule", "credit", "--why", "paid"];
        let (code, out, _) = budget(&top_up);
        assert_eq!(code, Some(0));
        let shown = "100 in all, budget (credit): 60 of 150 left, 90 used, 50 beyond the number\n";
        assert!(out.starts_with("50 credited\n") && out.ends_with(shown), "{out}");
        let (code, out, _) = budget(&top_up);
        assert!(code == Some(0) && out.starts_with("nothing changed: 50 were credited with this ID before\n"), "{out}");
        assert_eq!(asks(&service, "hold", "b", 30).await, (Code::Ok, 30));
        let (code, _, said) = budget(&["refund", "-n", "50", "--id", "invoice-1", "--rule", "credit"]);
        assert!(code == Some(1) && said.contains("another top-up or refund of credit has this ID"), "{said}");
        let (code, out, _) = budget(&["refund", "-n", "500", "--id", "sorry", "--rule", "credit", "--json"]);
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &told["hits"], &told["repeated"]), (Some(0), &90.into(), &false.into()));
        let told = &told["counter"];
        assert_eq!((&told["remaining"], &told["budget"]["used"]), (&120.into(), &0.into()), "{told}");
        assert_eq!((&told["budget"]["extra"], &told["budget"]["held"]), (&50.into(), &30.into()));
        let (code, _, said) = budget(&["top-up", "-n", "5", "--id", "invoice-2", "--rule", "a-minute"]);
        assert!(code == Some(1) && said.contains("a-minute is not topped up, because its window slides"), "{said}");
        let (code, out, _) = budget(&["refund", "-n", "5", "--id", "invoice-2", "--rule", "a-minute"]);
        assert!(code == Some(0) && out.starts_with("5 credited\n"), "{out}");
        let (code, _, said) = budget(&["refund", "-n", "5", "--id", "again", "--rule", "credit"]);
        assert!(code == Some(1) && said.contains("and the ID is free: nothing is used of credit"), "{said}");
        let (code, _, said) = budget(&["top-up", "-n", "9007199254740991", "--id", "all", "--rule", "credit"]);
        assert!(
            code == Some(1) && said.contains("nothing was credited: credit would exceed 9007199254740991"),
            "{said}"
        );
        let (code, _, said) = budget(&["top-up", "-n", "0", "--id", "invoice-3"]);
        assert!(
            code == Some(1) && said.contains("hits are a whole number from 1 to 9007199254740991, not 0"),
            "{said}"
        );
        // The trail says who did it, and why; the statement of usage what was charged and paid.
        let other = |words: &[&str]| {
            let mut program = command();
            program.args(words).args(["--address", &format!("localhost:{}", service.http_port)]);
            String::from_utf8(program.env("ADMIN_TOKEN", TOKEN).output().unwrap().stdout).unwrap()
        };
        let trail = other(&["audit"]);
        for effect in [
            "credited  top-up of 50 to credit, with the ID invoice-1  llm: tenant=acme  ",
            "refund of 90 to credit",
            "refund of 5",
        ] {
            assert!(trail.contains(effect), "{trail}");
        }
        assert_eq!(trail.matches("top-up").count(), 1, "{trail}");
        let usage = other(&["usage", "--open", "--json"]);
        let usage: Value = serde_json::from_str(&usage).unwrap();
        let row = &usage["rows"][0];
        assert_eq!((&row["cost"], &row["topped_up"], &row["admitted"]), (&0.into(), &50.into(), &2.into()), "{usage}");
    }
}

/// Redis gets the credit, and its reply is lost: nobody knows whether it is done, and a repetition does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_credit_whose_reply_was_lost_is_repeated_and_counts_once() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let settings = [&*url, "REDIS_TIMEOUT=200ms", "ADMIN_API=true", "ADMIN_TOKEN=a token of some length"];
    let [one, other] = [Tollgate::start(RULES, &settings), Tollgate::start(RULES, &settings)];
    let top_up = json!({"kind": "top-up", "hits": 50, "id": "invoice", "rule": "credit"}).to_string();
    let credit = |service: &Tollgate| service.admin_with("POST", "/credits?domain=llm&tenant=acme", TOKEN, &top_up);
    redis.freeze();
    let (status, told) = credit(&one);
    redis.thaw();
    let said = told["error"].as_str().unwrap();
    assert!(status == 503 && said.contains("repeat the credit with the same ID"), "{status} {said}");
    let done = || {
        let (status, told) = credit(&other);
        (status == 200).then_some(told)
    };
    wait_until_async("Redis answers again", async || done().is_some()).await;
    let told = done().unwrap();
    assert_eq!((&told["repeated"], &told["counter"]["budget"]["extra"]), (&true.into(), &50.into()), "{told}");
    let (_, trail) = one.admin("GET", "/audit", TOKEN);
    assert!(trail.to_string().contains("a top-up of 50 with the ID invoice may have been done"), "{trail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_in_memory_is_credited_over_http() {
    let service = Tollgate::start(
        RULES,
        &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length", "ADMIN_READ_TOKEN=another of some length"],
    );
    let credit = |query: &str, body: Value, token: &str| {
        service.admin_with("POST", &format!("/credits{query}"), token, &body.to_string())
    };
    let acme = "?domain=llm&tenant=acme";
    let top_up = json!({"kind": "top-up", "hits": 50, "id": "invoice-1", "rule": "credit"});
    assert_eq!(credit(acme, top_up.clone(), "another of some length").0, 403);
    let (status, told) = credit(acme, top_up.clone(), TOKEN);
    assert_eq!((status, &told["hits"], &told["repeated"]), (200, &50.into(), &false.into()), "{told}");
    assert_eq!(credit(acme, top_up, TOKEN).1["repeated"], true);
    assert_eq!(asks(&service, "hold", "a", 150).await, (Code::Ok, 0));
    let other = json!({"kind": "top-up", "hits": 5, "id": "x"});
    let (status, told) = credit("?domain=llm&other=acme", other.clone(), TOKEN);
    assert_eq!((status, &told["counter"]["budget"]["extra"]), (200, &5.into()), "{told}");
    assert_eq!(told["counter"]["remaining"], 15);
    for (query, body, status, said) in [
        (acme, other.clone(), 409, "choose one of credit, a-minute as rule"),
        (acme, json!({"kind": "gift", "hits": 5, "id": "x"}), 400, "write top-up or refund"),
        (acme, json!({"kind": "refund", "hits": 5, "id": " "}), 400, "a credit needs an ID"),
        (acme, json!({"kind": "refund", "hits": -5, "id": "x"}), 400, "the body is no credit"),
        (acme, json!({"kind": "refund", "hits": 5, "id": "x", "rule": "nix"}), 404, "with the name nix"),
        ("?domain=llm&tenants=acme", other.clone(), 404, "did you mean"),
        ("?domain=llm", other, 400, "name a descriptor"),
    ] {
        let (found, told) = credit(query, body, TOKEN);
        assert!(found == status && told["error"].as_str().unwrap().contains(said), "{found} {told}, not {said}");
    }
}

/// Balances are money, which a restart of the store must not delete.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgets_balances_is_warned_of_once_at_the_start_and_by_the_first_balance() {
    let plain = "{domain: llm, descriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 9}}]}";
    let (warning, in_memory) =
        ("redis writes no file, so its restart deletes the balances", "balances (unit: never) are kept");
    let lines = |service: &Tollgate, words: &str| {
        service
            .logs()
            .iter()
            .filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(words)))
            .count()
    };
    let start = |rules: &str, url: &str| Tollgate::start(rules, &[&format!("REDIS_URL={url}")]);

    let forgets = Redis::start();
    let service = start(plain, &forgets.url());
    wait_until("redis is asked", || service.metric("tollgate_store_up") == 1.0);
    assert_eq!(lines(&service, warning), 0);
    service.change_rules(RULES);
    assert_eq!(service.must_log(warning)["level"], "WARN");
    service.change_rules(&RULES.replace("5000", "6000"));
    service.must_log("new rules are in force: 0 added, 0 removed, 1 changed");
    assert_eq!(lines(&service, warning), 1);
    start(RULES, &forgets.url()).must_log(warning);

    let service = Tollgate::start(RULES, &[]);
    assert_eq!(service.must_log(in_memory)["level"], "WARN");
    service.change_rules(&RULES.replace("5000", "6000"));
    service.must_log("new rules are in force: 0 added, 0 removed, 1 changed");
    assert_eq!(lines(&service, in_memory), 1);
    assert!(Tollgate::start(plain, &[]).logged(in_memory).is_none());

    // These persist, or do not tell.
    let hides = Redis::start();
    hides.command::<()>("ACL SETUSER toll on >open-sesame ~* +@all -config").await;
    let of_user = format!("redis://toll:open-sesame@{}", hides.tcp_address());
    let keeps = [&["--appendonly", "yes"][..], &["--save", "3600", "1"]].map(Redis::start_with);
    for url in [keeps[0].url(), keeps[1].url(), of_user] {
        let service = start(RULES, &url);
        assert_eq!(asks(&service, "hold", "a", 1).await.0, Code::Ok);
        assert_eq!(lines(&service, warning), 0, "{url}");
    }
}

#[test]
fn a_check_of_redis_tells_that_it_forgets_balances() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let check = |redis: &Redis, text: &str| {
        std::fs::write(&rules, text).unwrap();
        let mut program = command();
        program.args(["check", "--redis", "--strict"]).env("REDIS_URL", redis.url()).env("RULES", &rules);
        let output = program.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let forgets = Redis::start();
    let (is_good, told) = check(&forgets, RULES);
    let warning = "warning: it writes no file, and the rules have balances (unit: never), which its restart deletes";
    assert!(!is_good && told.contains("persistence       none\n") && told.contains(warning), "{told}");
    assert!(check(&forgets, &RULES.replace("unit: never", "unit: day")).0, "no balance");
    let (is_good, told) = check(&Redis::start_with(&["--appendonly", "yes"]), RULES);
    assert!(is_good && told.contains("persistence       appendonly\n"), "{told}");
}

/// A credit reaches the node of its counter, also while the slot of that moves.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_each_id_counts_once_wherever_its_slot_is() {
    let cluster = Cluster::start(3, 0).await;
    let url = cluster.setting();
    let settings = [&*url, "REDIS_TIMEOUT=2s", "ADMIN_API=true", "ADMIN_TOKEN=a token of some length"];
    let [one, other] = [Tollgate::start(RULES, &settings), Tollgate::start(RULES, &settings)];
    let tried = |service: &Tollgate, tenant: &str, id: &str| {
        let body = json!({"kind": "top-up", "hits": 50, "id": id, "rule": "credit"}).to_string();
        service.admin_with("POST", &format!("/credits?domain=llm&tenant={tenant}"), TOKEN, &body)
    };
    let credit = |service: &Tollgate, tenant: &str, id: &str| {
        let (status, told) = tried(service, tenant, id);
        let extra = told["counter"]["budget"]["extra"].as_u64().filter(|_| status == 200);
        (told["repeated"] == true, extra.unwrap_or_else(|| panic!("{status} {told}")))
    };
    for tenant in (0..12).map(|i| format!("tenant{i}")) {
        assert_eq!((credit(&one, &tenant, "a"), credit(&other, &tenant, "a")), ((false, 50), (true, 50)), "{tenant}");
        let mut show = command();
        show.args(["budget", "show", "--domain", "llm", &format!("tenant={tenant}")]);
        show.envs([("REDIS_URL", url.trim_start_matches("REDIS_URL=")), ("REDIS_TIMEOUT", "20s")]);
        let output = show.env("RULES", one.rules.path()).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("150 of 150 left, 0 used, 50 beyond the number"), "{told}");
    }
    assert!(cluster.sizes().await.iter().all(|keys| *keys > 2), "each node has some: {:?}", cluster.sizes().await);

    let mut names: Vec<String> = Vec::new();
    for node in &cluster.nodes {
        names.extend(node.command::<Vec<String>>("KEYS *tenant=tenant0|*").await);
    }
    let tag = |name: &String| Some(name.split_once('{')?.1.split_once('}')?.0.to_owned());
    let tag = names.iter().find_map(tag).unwrap_or_else(|| panic!("{names:?}"));
    let slot = slot_of_tag(&tag);
    let from = (0..3).find(|node| cluster.slots(*node).contains(&slot)).unwrap();
    // A credit also writes a record of usage. While just one of the two has moved it fails, and is repeated.
    let done = std::sync::Mutex::new(Vec::new());
    let halfway = async || {
        let id = ["b", "c"][done.lock().unwrap().len()];
        let (status, told) = tried(&one, "tenant0", id);
        let is_told = status == 200 || told["error"].to_string().contains("repeat the credit with the same ID");
        assert!(is_told, "{status} {told}");
        done.lock().unwrap().push(status == 200);
    };
    cluster.move_slot(slot, usize::from(from), usize::from(from + 1) % 3, halfway).await;
    let done = done.into_inner().unwrap();
    assert!(done.len() == 2 && done[0], "nothing has moved at first: {done:?}");
    wait_until("the slot has moved", || tried(&other, "tenant0", "c").0 == 200);
    for id in ["a", "b", "c"] {
        assert_eq!(credit(&other, "tenant0", id), (true, 150), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_shows_a_balance_with_its_top_ups() {
    let master = Redis::start();
    let replica = master.start_replica(&[]).await;
    let url = format!("REDIS_URL={}", master.url());
    let service = Tollgate::start(RULES, &[&*url, "ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let top_up = json!({"kind": "top-up", "hits": 50, "id": "invoice", "rule": "credit"}).to_string();
    assert_eq!(service.admin_with("POST", "/credits?domain=llm&tenant=acme", TOKEN, &top_up).0, 200);
    assert_eq!(asks(&service, "hold", "a", 30).await.0, Code::Ok);
    assert_eq!(asks(&service, "hold", "b", 70).await.0, Code::Ok);
    assert_eq!(asks(&service, "settle", "b", 40).await.0, Code::Ok);
    let get = || {
        let mut get = command();
        get.args(["counter", "get", "--replica", "--domain", "llm", "tenant=acme", "hold=none", "--json"]);
        get.envs([("REDIS_URL", master.url()), ("REDIS_TIMEOUT", "20s".to_owned())]);
        let output = get.env("RULES", service.rules.path()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    // A replica hears of writes a moment later.
    wait_until("the replica has heard of all", || get()[0]["budget"]["used"] == 40);
    let told = &get()[0];
    assert_eq!(
        (&told["remaining"], &told["budget"]["extra"], &told["budget"]["held"]),
        (&80.into(), &50.into(), &30.into())
    );
    assert!(told.to_string().contains(&replica.tcp_address()), "{told}");
}

/// An instance that decides alone knows nothing of a balance but its number.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_an_instance_allows_its_part_of_the_number_of_a_balance_once() {
    let rules = RULES.replace("{name: credit,", "{name: credit, failure_mode: local,");
    let mut redis = Redis::start_with(&["--appendonly", "yes"]);
    let url = format!("REDIS_URL={}", redis.url());
    let settings = ["EXPECTED_REPLICAS=2", "ADMIN_API=true", "ADMIN_TOKEN=a token of some length"];
    let service = Tollgate::start(&rules, &[&settings[..], &[&url]].concat());
    let warning = "failure_mode: while Redis is unavailable, each instance allows its part of requests_per_unit again";
    wait_until("it is advised against", || service.logs().iter().any(|line| line.to_string().contains(warning)));
    let top_up = json!({"kind": "top-up", "hits": 900, "id": "invoice", "rule": "credit"}).to_string();
    assert_eq!(service.admin_with("POST", "/credits?domain=llm&tenant=acme", TOKEN, &top_up).0, 200);
    assert_eq!(asks(&service, "hold", "a", 1_000).await, (Code::Ok, 0));
    assert_eq!(asks(&service, "settle", "a", 1_000).await.0, Code::Ok);
    for (outage, allowed) in [Code::Ok, Code::OverLimit].into_iter().enumerate() {
        redis.kill();
        wait_until("the store is down", || service.metric("tollgate_store_up") == 0.0);
        let stream = |name: &str| format!("{name}{outage}");
        assert_eq!(asks(&service, "hold", &stream("b"), 51).await.0, Code::OverLimit, "half of the number is 50");
        assert_eq!(asks(&service, "hold", &stream("c"), 50).await.0, allowed, "all is used, and it does not know");
        assert_eq!(asks(&service, "settle", &stream("c"), 50).await.0, Code::Ok);
        assert_eq!(asks(&service, "hold", &stream("d"), 1).await.0, Code::OverLimit);
        redis.restart();
        wait_until("the store is up", || service.metric("tollgate_store_up") == 1.0);
        assert_eq!(asks(&service, "hold", &stream("e"), 1).await.0, Code::OverLimit, "all is used");
    }
}
