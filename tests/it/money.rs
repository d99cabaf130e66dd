//! Budgets in money: units count at the price that the entries after `hold` and `settle` choose.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use tollgate::engine::algorithm::Ask;
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::engine::plan::{Names, Plan, PlanOptions};
use tollgate::engine::rules::Rules;
use tollgate::engine::rules::diff::{self, Totals};
use tollgate::wire::rate_limit_response::Code;

use crate::rules::load_text;
use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, request};
use crate::support::wait_until;

const TOKEN: &str = "a token of some length";

/// Half a dollar, and periods so long that none ends during a test.
const RULES: &str = "
domain: llm
prices:
  gpt-4o: {input: 2.5, output: 10}
  gpt-4o-mini*: {input: 0.15, output: 0.6}
  tiny: {input: 0.0001, output: 0.0003}
  free: {input: 0, output: 0}
descriptors:
  - key: tenant
    descriptors:
      - key: hold
        rate_limits:
          - {name: tokens, algorithm: budget, unit: year, requests_per_unit: 100000, estimate: 1000}
          - {name: dollars, algorithm: budget, unit: year, requests_per_unit: 500000000, weigh_by: [model, direction]}
";

/// A part of a call: `hold` or `settle`, the stream, the entries that choose the price, and tokens.
type Part<'p> = (&'p str, &'p str, &'p [(&'p str, &'p str)], u64);

const INPUT: &[(&str, &str)] = &[("model", "gpt-4o"), ("direction", "input")];
const OUTPUT: &[(&str, &str)] = &[("model", "gpt-4o"), ("direction", "output")];
const TINY_INPUT: &[(&str, &str)] = &[("model", "tiny"), ("direction", "input")];
const TINY_OUTPUT: &[(&str, &str)] = &[("model", "tiny"), ("direction", "output")];

fn entries<'p>((key, stream, weights, _): &Part<'p>) -> Vec<(&'p str, &'p str)> {
    [("tenant", "acme"), (*key, *stream)].into_iter().chain(weights.iter().copied()).collect()
}

async fn asks(tollgate: &Tollgate, parts: &[Part<'_>]) -> Code {
    let all: Vec<_> = parts.iter().map(entries).collect();
    let all: Vec<&[(&str, &str)]> = all.iter().map(|entries| &**entries).collect();
    let mut call = request("llm", &all);
    for (descriptor, (.., tokens)) in call.descriptors.iter_mut().zip(parts) {
        descriptor.hits_addend = Some(*tokens);
    }
    tollgate.ask(call).await.unwrap().overall_code()
}

/// Returns what is used and held, in tokens and in billionths.
fn counters(tollgate: &Tollgate) -> [(u64, u64); 2] {
    let (_, told) = tollgate.admin("GET", "/counters?domain=llm&tenant=acme&hold=peek", TOKEN);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{told}"));
    let of = |place: usize| {
        let budget = &told[place]["budget"];
        (number(&budget["used"]), number(&budget["held"]))
    };
    let counters = [of(0), of(1)];
    for (place, number) in [100_000, 500_000_000].into_iter().enumerate() {
        let (used, held) = counters[place];
        assert_eq!(told[place]["remaining"], number - used - held, "{told}");
    }
    counters
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_count_as_tokens_and_at_their_price_in_memory_and_in_redis() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    for settings in [&[][..], &[&*url]] {
        let settings = [&["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"], settings].concat();
        let tollgate = Tollgate::start(RULES, &settings);
        let asks = async |parts: &[Part<'_>]| asks(&tollgate, parts).await;
        assert_eq!(asks(&[("hold", "a", INPUT, 1_000), ("hold", "a", OUTPUT, 500)]).await, Code::Ok);
        assert_eq!(counters(&tollgate), [(0, 1_500), (0, 2_500_000 + 5_000_000)]);
        // As Envoy asks: a fixed number at the end, which names no model.
        assert_eq!(
            asks(&[("settle", "a", INPUT, 1_000), ("settle", "a", &[], 0), ("settle", "a", OUTPUT, 200)]).await,
            Code::Ok
        );
        let (mut tokens, mut billionths) = (1_200, 2_500_000 + 2_000_000);
        assert_eq!(counters(&tollgate), [(tokens, 0), (billionths, 0)]);
        let mini = ("model", "gpt-4o-mini-2024-07-18");
        for (weights, used, cost) in [
            (&[mini, ("direction", "input")][..], 3, 450),
            // What is not known, and what is missing, costs the most.
            (&[mini, ("direction", "cached")], 100, 60_000),
            (&[mini], 100, 60_000),
            (&[("model", "gpt-6"), ("direction", "input")], 100, 1_000_000),
            (&[("model", "")], 100, 1_000_000),
            (&[], 100, 1_000_000),
            (&INPUT[1..], 100, 1_000_000),
            (&[("model", "free")], 100, 0),
            // Three tenths and six tenths of a billionth, each rounded up.
            (TINY_INPUT, 3, 1),
            (TINY_OUTPUT, 2, 1),
        ] {
            let stream = format!("{tokens}");
            assert_eq!(asks(&[("settle", &stream, weights, used)]).await, Code::Ok);
            (tokens, billionths) = (tokens + used, billionths + cost);
            assert_eq!(counters(&tollgate), [(tokens, 0), (billionths, 0)], "{weights:?}");
        }
        // In one call, the sum of them is.
        let parts = [("settle", "b", TINY_INPUT, 3), ("settle", "b", TINY_OUTPUT, 2), ("settle", "b", TINY_INPUT, 1)];
        assert_eq!(asks(&parts).await, Code::Ok);
        (tokens, billionths) = (tokens + 6, billionths + 1);
        assert_eq!(counters(&tollgate), [(tokens, 0), (billionths, 0)]);
        // Entries that choose no price, or in another order, reach no limit.
        let (turned, other) = ([OUTPUT[1], OUTPUT[0]], [OUTPUT[0], OUTPUT[1], ("tier", "batch")]);
        let parts = [("settle", "c", &turned[..], 9), ("settle", "c", &other, 9), ("hold", "c", &[mini, mini], 9)];
        assert_eq!(asks(&parts).await, Code::Ok);
        assert_eq!(counters(&tollgate), [(tokens, 0), (billionths, 0)]);
    }
}

#[tokio::test]
async fn a_hold_fits_into_both_budgets_or_holds_nothing() {
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let asks = async |parts: &[Part<'_>]| asks(&tollgate, parts).await;
    assert_eq!(asks(&[("hold", "a", OUTPUT, 50_001)]).await, Code::OverLimit, "half a dollar is 50,000 tokens");
    assert_eq!(asks(&[("hold", "a", &OUTPUT[..1], 50_001)]).await, Code::OverLimit, "the dearest direction");
    let mini = &[("model", "gpt-4o-mini")][..];
    assert_eq!(asks(&[("hold", "a", mini, 100_001)]).await, Code::OverLimit, "there are 100,000 tokens");
    assert_eq!(counters(&tollgate), [(0, 0); 2]);
    assert_eq!(asks(&[("hold", "a", mini, 50_001)]).await, Code::Ok);
    assert_eq!(counters(&tollgate), [(0, 50_001), (0, 30_000_600)]);
    assert_eq!(asks(&[("settle", "a", mini, 0)]).await, Code::Ok);
    assert_eq!(counters(&tollgate), [(0, 0); 2]);
    // Without an estimate in either, the tokens' estimate at the price; of several parts, the highest.
    assert_eq!(asks(&[("hold", "b", INPUT, 0), ("hold", "b", OUTPUT, 0)]).await, Code::Ok);
    assert_eq!(counters(&tollgate), [(0, 1_000), (0, 10_000_000)]);
    // A stream holds something even where units cost nothing, or it would pass however little is left.
    assert_eq!(asks(&[("hold", "c", &[("model", "free")], 10)]).await, Code::Ok);
    assert_eq!(counters(&tollgate), [(0, 1_010), (0, 10_000_001)]);
}

/// An adjustment names the counter as any other: the entries that choose a price are no part of its target.
#[tokio::test]
async fn an_adjustment_of_a_budget_applies_to_streams_of_every_price() {
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let parts = [("hold", "a", OUTPUT, 60_000)];
    assert_eq!(asks(&tollgate, &parts).await, Code::OverLimit);
    let body = json!({
        "effect": "pass", "domain": "llm", "who": "ann", "why": "a test", "for": "1h",
        "entries": [{"key": "tenant", "value": "acme"}, {"key": "hold", "pattern": "*"}],
    });
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", &*bearer)];
    let (status, told) = tollgate.send("POST", "/adjustments", &headers, body.to_string().as_bytes());
    assert_eq!(status, 201, "{told}");
    assert_eq!(asks(&tollgate, &parts).await, Code::Ok);
}

#[tokio::test]
async fn an_explanation_tells_the_price_and_the_decision_log_what_was_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("decisions.jsonl");
    let place = format!("DECISION_LOG={}", log.display());
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length", &place]);
    let query = "/explain?domain=llm&tenant=acme&hold=peek&model=gpt-4o-mini&direction=input";
    let (_, told) = tollgate.admin("GET", query, TOKEN);
    let explained = &told["descriptors"][0];
    let part = |limit: usize, key: &str| {
        let parts = explained["limits"][limit]["parts"].as_array().unwrap_or_else(|| panic!("{told}"));
        parts.iter().find(|part| part["key"] == key).map(|part| part["value"].as_str().unwrap().to_owned())
    };
    assert_eq!(part(1, "price").as_deref(), Some("0.15 per million units"), "{told}");
    assert_eq!(part(1, "weigh_by").as_deref(), Some("model, direction, for 0 to 10 per million units"));
    assert_eq!((part(0, "price"), &explained["matched"][3]["node"]), (None, &"direction".into()));
    let counter = |limit: usize| explained["limits"][limit]["counter"].as_str().unwrap().to_owned();
    assert_eq!(counter(1), counter(0).replace("}|", "}|money|"), "the entries are no part of it");

    assert_eq!(asks(&tollgate, &[("hold", "a", INPUT, 40_000), ("hold", "a", OUTPUT, 45_000)]).await, Code::OverLimit);
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    let of_dollars = |line: &Value| line["rule"] == "dollars" && line["outcome"] == "denied";
    let read = || lines().lines().filter_map(|line| serde_json::from_str(line).ok()).find(of_dollars);
    wait_until("a line of the denial", || read().is_some());
    let line = read().unwrap();
    assert_eq!((&line["hits"], &line["counted"]), (&40_000.into(), &550_000_000.into()), "{line}");
}

/// Returns the names of the counters of a descriptor, and what each is asked.
fn asked(rules: &Rules, entries: &[(&str, &str)], hits: u64) -> Vec<(String, Ask)> {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let descriptor =
        Descriptor { entries: entries.iter().map(entry).collect(), ask: Ask::take(hits).unwrap(), limit: None };
    let request = Request { domain: "llm".into(), descriptors: vec![descriptor] };
    let options = PlanOptions::default();
    let plan = Plan::new(&options, rules, &request, Names::Tollgate);
    plan.asked().iter().map(|asked| (asked.check.key.to_string(), asked.check.ask)).collect()
}

#[test]
fn units_cost_what_the_prices_are_when_they_are_told() {
    let rules = load_text(RULES).unwrap().rules;
    let part = ("settle", "a", OUTPUT, 0);
    let asks = |rules: &Rules| asked(rules, &entries(&part), 100).into_iter().map(|(_, ask)| ask).collect::<Vec<_>>();
    assert_eq!(asks(&rules), [Ask::Settle(100), Ask::Settle(1_000_000)]);
    let dearer = load_text(RULES.replace("output: 10}", "output: 12.5}").replace("0.6", "0.5")).unwrap().rules;
    assert_eq!(asks(&dearer), [Ask::Settle(100), Ask::Settle(1_250_000)]);

    let told = |old: &Rules, new: &Rules| {
        let mut lines = String::new();
        diff::compare(old, new, &mut |change| writeln!(lines, "{change}").unwrap());
        lines
    };
    let expected = "changed: llm: dollars: prices gpt-4o-mini*.output 0.6 -> 0.5, gpt-4o.output 10 -> 12.5: counters \
                    are kept\n";
    assert_eq!(told(&rules, &dearer), expected);
    assert_ne!(rules.version(), dearer.version());
    // Billionths are not continued as tokens.
    let limit = "algorithm: budget, unit: day, requests_per_unit: 9";
    let text = |more: &str| format!("domain: llm\ndescriptors: [{{key: hold, rate_limit: {{{limit}{more}}}}}]");
    let units = load_text(text("")).unwrap().rules;
    let money = load_text(format!("prices: {{any: 1}}\n{}", text(", weigh_by: [model]"))).unwrap().rules;
    assert_eq!(told(&units, &money), "changed: llm: hold: weigh_by none -> [model]: counters are reset\n");
    let mut totals = Totals::default();
    diff::compare(&units, &money, &mut |change| totals.add(&change));
    assert_eq!((totals.changed, totals.afresh), (1, 1));
}

/// Prices may follow the descriptors, and each file of a domain has its own.
#[test]
fn prices_are_those_of_the_file_wherever_they_are_in_it() {
    let (before, after) = RULES.split_once("prices:").unwrap();
    let (prices, descriptors) = after.split_once("descriptors:").unwrap();
    let turned = format!("{before}descriptors:{descriptors}prices:{prices}");
    let [one, other] = [RULES, &turned].map(|text| load_text(text).unwrap().rules);
    assert_eq!(one.version(), other.version());
    let json = r#"{"domain": "llm", "prices": {"any": 0.1}, "descriptors": [{"key": "hold", "rate_limit":
        {"algorithm": "budget", "unit": "day", "requests_per_unit": 9, "weigh_by": ["m"]}}]}"#;
    let rules = load_text(json).unwrap().rules;
    assert_eq!(asked(&rules, &[("hold", "a"), ("m", "any")], 11)[0].1, Ask::Take(1_100));
}
