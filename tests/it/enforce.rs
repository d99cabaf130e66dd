//! Limits that are enforced for a share of their keys.

use proptest::prelude::*;
use serde_json::Value;
use tollgate::engine::adjustment::{Adjustment, Content, Effect, Id, InForce, Target};
use tollgate::engine::algorithm::{Algorithm, Ask};
use tollgate::engine::decision::Decision;
use tollgate::engine::descriptor::{Descriptor, Entry, Request, Role};
use tollgate::engine::plan::PlanOptions;
use tollgate::engine::rules::Rules;
use tollgate::evaluate::{Arrival, Evaluator, RuleSet};
use tollgate::observe::sample::{Sampling, Share};

use crate::console::{TOKEN, ask};
use crate::rules::load_text;
use crate::support::limits::{length_of, stream_key};
use crate::support::tollgate::Tollgate;

const BEGIN_MS: u64 = 1_767_323_045_000;

/// Rules of users, whose limit says this in addition, in a descriptor that says that.
fn rules(algorithm: Algorithm, limit: &str, beside: &str) -> Rules {
    let period = length_of(algorithm, "period: 5s", "1m");
    let name = algorithm.name();
    let limit = format!("{{name: per-user, {period}, requests_per_unit: 3, algorithm: {name}{limit}}}");
    let rule = match stream_key(algorithm) {
        Some(key) => format!("{{key: user, descriptors: [{{key: {key}, rate_limit: {limit}{beside}}}]}}"),
        None => format!("{{key: user, rate_limit: {limit}{beside}}}"),
    };
    load_text(format!("{{domain: shop, descriptors: [{rule}]}}")).unwrap().rules
}

fn request(algorithm: Algorithm, user: &str, stream: &str, hits: u64) -> Request {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let mut entries = vec![entry("user", user)];
    entries.extend(stream_key(algorithm).map(|key| entry(key, stream)));
    Request { domain: "shop".into(), descriptors: vec![Descriptor { entries, ask: Ask::Take(hits), limit: None }] }
}

/// Returns the role of the first limit of a request.
fn role(rules: &Rules, request: &Request) -> Role {
    let (options, evaluator) = (PlanOptions::default(), Evaluator::new(1 << 20));
    let arrival = Arrival { at_ms: BEGIN_MS, request, outside: &[], lasts_ms: None };
    evaluator.decide(&RuleSet::new(rules, &options), arrival).unwrap().unwrap().limits[0].role()
}

/// The parts of a decision that clients see.
fn seen(decision: &Decision<'_>) -> String {
    let limits = decision.limits.iter();
    let limits: Vec<_> = limits.map(|limit| (limit.role(), limit.over(), limit.verdict(), limit.banned_ms())).collect();
    format!("{} {:?} {:?} {limits:?}", decision.over_limit, decision.delay, decision.retry_after_ms())
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// With penalties, costs and adjustments as well.
    #[test]
    fn a_key_inside_is_decided_as_enforced_and_one_outside_as_in_shadow_mode(
        algorithm in algorithms(), share in 1..100_u32, penalty in any::<bool>(),
        adjusted in prop::option::of(prop::sample::select(vec![Effect::Enforce, Effect::Shadow, Effect::Number(1)])),
        steps in prop::collection::vec((0..2_500_u64, 0..8_u8, 0..4_u8, 1..3_u64), 1..80),
    ) {
        let penalty = if penalty { ", penalty: {after: 2, within: 1m, ban: 3s}" } else { "" };
        let canary = rules(algorithm, &format!("{penalty}, enforce: {share}%"), "");
        let [enforced, shadow] = [("", ""), ("", ", shadow_mode: true")]
            .map(|(_, beside)| rules(algorithm, penalty, beside));
        let (options, target) = (PlanOptions::default(), Target::Domain("shop".into()));
        let in_force = adjusted.map(|effect| {
            let content = Content { target, effect, hours: None, who: "ann".into(), why: "a test".into() };
            InForce::default().with(Adjustment { id: Id::of_number(1), content, since_ms: 0, until_ms: u64::MAX })
        });
        let evaluators = [1 << 20; 3].map(Evaluator::new);
        let set = |rules| RuleSet {
            adjustments: in_force.as_ref(), has_releases: true, ..RuleSet::new(rules, &options)
        };
        let mut at_ms = BEGIN_MS;
        for (step, user, stream, hits) in steps {
            at_ms += step;
            let hits = if algorithm.has_holders() { 1 } else { hits };
            let request = request(algorithm, &format!("u{user}"), &format!("s{stream}"), hits);
            let decide = |index: usize, rules| {
                let arrival = Arrival { at_ms, request: &request, outside: &[], lasts_ms: None };
                seen(&evaluators[index].decide(&set(rules), arrival).unwrap().unwrap())
            };
            let [canary_says, enforced_says, shadow_says] =
                [decide(0, &canary), decide(1, &enforced), decide(2, &shadow)];
            match role(&canary, &request) {
                Role::Shadow => prop_assert_eq!(canary_says, shadow_says),
                _ => prop_assert_eq!(canary_says, enforced_says),
            }
        }
    }

    #[test]
    fn a_larger_share_has_the_keys_of_every_smaller_one(
        algorithm in algorithms(), user in "[a-z0-9]{0,12}", one in 1..10_001_u32, other in 1..10_001_u32,
    ) {
        let (few, many) = (one.min(other), one.max(other));
        let of = |share: u32| {
            let share = format!(", enforce: {}.{:02}%", share / 100, share % 100);
            role(&rules(algorithm, &share, ""), &request(algorithm, &user, "s", 1))
        };
        prop_assert!(of(few) == Role::Shadow || of(many) == Role::Enforced);
        prop_assert_eq!(of(10_000), Role::Enforced);
    }
}

#[test]
fn the_share_is_that_of_the_keys_and_not_that_of_the_recorder() {
    let canary = rules(Algorithm::FixedWindow, ", enforce: 5%", "");
    let rules: std::sync::Arc<dyn AsRef<Rules> + Send + Sync> =
        std::sync::Arc::new(load_text("domain: shop").unwrap().rules);
    let sampling = Sampling::new(Share::new(0.05), [rules]);
    let (mut inside, mut sampled) = (0, 0);
    let all = 100_000;
    for user in 0..all {
        let request = request(Algorithm::FixedWindow, &format!("user-{user}"), "", 1);
        if role_of(&canary, &request) == Role::Enforced {
            inside += 1;
            sampled += u32::from(sampling.picks_any(&request));
        }
    }
    assert!((4_500..=5_500).contains(&inside), "{inside} of {all}");
    assert!((150..=350).contains(&sampled), "{sampled} of {inside} are recorded");
}

/// Returns the role without asking a counter.
fn role_of(rules: &Rules, request: &Request) -> Role {
    let options = PlanOptions::default();
    let plan = tollgate::engine::plan::Plan::new(&options, rules, request, tollgate::engine::plan::Names::Tollgate);
    plan.asked()[0].role
}

/// Streams of one key share its slots, and values that share a counter are one key.
#[test]
fn values_that_share_a_counter_are_all_inside_or_all_outside() {
    for user in ["ann", "bob", "cid", "dan", "eve"] {
        let canary = rules(Algorithm::Concurrency, ", enforce: 50%", "");
        let roles = (0..20).map(|n| role_of(&canary, &request(Algorithm::Concurrency, user, &format!("s{n}"), 1)));
        assert_eq!(roles.map(|role| format!("{role:?}")).collect::<std::collections::HashSet<_>>().len(), 1);
    }
    for prefix in ["a", "b", "c", "d"] {
        let text = format!(
            "{{domain: shop, descriptors: [{{key: user, value: '{prefix}*', share_threshold: true,
               rate_limit: {{unit: day, requests_per_unit: 3, enforce: 50%}}}}]}}"
        );
        let rules = load_text(text).unwrap().rules;
        let roles = (0..20).map(|n| role_of(&rules, &request(Algorithm::FixedWindow, &format!("{prefix}{n}"), "", 1)));
        assert_eq!(roles.map(|role| format!("{role:?}")).collect::<std::collections::HashSet<_>>().len(), 1);
    }
}

/// A new limit beside the one in force.
#[test]
fn one_of_several_limits_is_enforced_for_a_share() {
    let text = "{domain: shop, descriptors: [{key: user, rate_limits: [
        {name: new, unit: hour, requests_per_unit: 1, enforce: 50%},
        {name: old, unit: minute, requests_per_unit: 3}]}]}";
    let (rules, options, evaluator) = (load_text(text).unwrap().rules, PlanOptions::default(), Evaluator::new(1 << 20));
    let mut denied_at = std::collections::BTreeSet::new();
    for user in 0..20 {
        let request = request(Algorithm::FixedWindow, &format!("u{user}"), "", 1);
        let decide = || {
            let arrival = Arrival { at_ms: BEGIN_MS, request: &request, outside: &[], lasts_ms: None };
            evaluator.decide(&RuleSet::new(&rules, &options), arrival).unwrap().unwrap()
        };
        let decisions: Vec<_> = (0..4).map(|_| decide()).collect();
        let first = decisions.iter().position(|decision| decision.over_limit).unwrap();
        denied_at.insert(first);
        assert_eq!(first, if role_of(&rules, &request) == Role::Enforced { 1 } else { 3 });
        if first == 3 {
            // The old limit denies, and the hour of the new one is no time to wait.
            assert!(decisions[3].retry_after_ms().unwrap() <= 120_000, "{:?}", decisions[3].retry_after_ms());
            let limits = decisions[3].limited().next().unwrap();
            let told = tollgate::engine::decision::most_pressing(limits).unwrap();
            assert_eq!(told.asked.source.label(), "old");
        }
    }
    assert_eq!(denied_at.into_iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let told = |limit: &str, beside: &str| {
        let text = format!("{{domain: shop, descriptors: [{{key: user, rate_limit: {{{limit}}}{beside}}}]}}");
        load_text(text).unwrap_err().to_string()
    };
    let minute = "unit: minute, requests_per_unit: 3";
    for (share, wrong) in [
        ("0%", "write shadow_mode: true"),
        ("0.00%", "write shadow_mode: true"),
        ("101%", "from 0.01% to 100%"),
        ("5", "a percentage with its sign"),
        ("true", "a percentage with its sign"),
        ("-5%", "a percentage with its sign"),
    ] {
        let said = told(&format!("{minute}, enforce: {share}"), "");
        assert!(said.contains(wrong) && said.contains(".enforce"), "{said}");
    }
    let said = told(&format!("{minute}, enforce: 5%"), ", shadow_mode: true");
    assert!(said.contains("rate_limit.enforce: shadow_mode enforces the limit for no key"), "{said}");
    assert!(told("unlimited: true, enforce: 5%", "").contains("nothing to enforce"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_denies_inside_counts_outside_and_explains_both() {
    let text = "{domain: shop, descriptors: [{key: user, rate_limit:
        {name: per-user, unit: day, requests_per_unit: 1, enforce: 50%}}]}";
    let rules = load_text(text).unwrap().rules;
    let of = |wanted: Role| {
        let users = (0..).map(|n| format!("u{n}"));
        users.into_iter().find(|user| role_of(&rules, &request(Algorithm::FixedWindow, user, "", 1)) == wanted).unwrap()
    };
    let (inside, outside) = (of(Role::Enforced), of(Role::Shadow));
    let services = [(); 2].map(|()| Tollgate::start(text, &["ADMIN_API=true", &format!("ADMIN_TOKEN={TOKEN}")]));
    for service in &services {
        for (user, passes) in [(&inside, false), (&outside, true)] {
            assert!(service.passes("shop", &[("user", user)]).await);
            assert_eq!(service.passes("shop", &[("user", user)]).await, passes, "{user}");
            let (_, explained) = service.admin("GET", &format!("/explain?domain=shop&user={user}"), TOKEN);
            let limit = &explained["descriptors"][0]["limits"][0];
            assert_eq!(limit["in_share"], Value::from(!passes), "{explained}");
            let role = if passes { "shadow_mode" } else { "enforced" };
            assert_eq!(limit["role"], role, "{explained}");
            assert!(explained.to_string().contains("5") && explained.to_string().contains("enforce"), "{explained}");
        }
        let counted = |result: &str| {
            let (_, text) = service.get("/metrics");
            let line = text.lines().find(|line| line.contains("per-user") && line.contains(result));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        assert!(counted("shadow") >= 1.0, "{}", service.get("/metrics").1);
    }
    // Adjustments override the share.
    let service = &services[0];
    let adjust = |effect: &str, user: &str| {
        let body = serde_json::json!({
            "effect": effect, "domain": "shop", "entries": [{"key": "user", "value": user}],
            "who": "ann", "why": "a test", "for": "1h",
        });
        let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
        assert_eq!(service.send("POST", "/adjustments", &headers, body.to_string().as_bytes()).0, 201);
    };
    adjust("enforce", &outside);
    adjust("shadow", &inside);
    assert!(!service.passes("shop", &[("user", &outside)]).await);
    assert!(service.passes("shop", &[("user", &inside)]).await);
    ask(service, "user", "someone");
}
