//! Usage that is known at the end and charged then: `deploy/envoy/usage.yaml` in a real Envoy.

use crate::support;

use support::envoy::Envoy;
use support::tollgate::{Tollgate, request};
use support::{wait_until, wait_until_async};
use tollgate::wire::rate_limit_response::Code;

/// Periods so long that no debt is repaid during a test.
const RULES: &str = "
domain: shop
descriptors:
  - key: model-tokens
    rate_limit: {unit: year, requests_per_unit: 10000, count_denied: true}
  - key: download-bytes
    rate_limit: {unit: year, requests_per_unit: 40, count_denied: true}
";

/// The path of the stand-in service, the budget that it uses, and the amount per request.
const TOKENS: Usage = Usage { path: "/chat", budget: "model-tokens", each: 4_000, number: 10_000 };
const BYTES: Usage = Usage { path: "/downloads", budget: "download-bytes", each: 28, number: 40 };

struct Usage {
    path: &'static str,
    budget: &'static str,
    each: u64,
    number: u64,
}

impl Usage {
    /// The status of a request of this user.
    fn ask(&self, envoy: &Envoy, user: &str) -> u16 {
        envoy.ask(self.path, &[("x-user", user)]).status
    }

    /// Takes or refunds hits directly at Tollgate; returns whether the request passed, and the remaining hits.
    async fn count(&self, tollgate: &Tollgate, user: &str, hits: i64) -> (bool, u64) {
        let mut request = request("shop", &[&[(self.budget, user)]]);
        request.descriptors[0].hits_addend = Some(hits.unsigned_abs());
        request.descriptors[0].is_negative_hits = hits < 0;
        let answer = tollgate.ask(request).await.unwrap();
        (answer.overall_code() == Code::Ok, answer.statuses[0].limit_remaining.into())
    }

    /// Sends requests until the budget is used up, waiting for each charge; returns the resulting debt.
    async fn use_up(&self, tollgate: &Tollgate, envoy: &Envoy, user: &str) -> u64 {
        let mut used = 0;
        while used <= self.number {
            assert_eq!(self.ask(envoy, user), 200, "{used} of {} are used", self.number);
            used += self.each;
            let left = (used <= self.number, self.number.saturating_sub(used));
            // The charge at the end of a stream arrives later.
            wait_until_async("it is charged", async || self.count(tollgate, user, 0).await == left).await;
        }
        used - self.number
    }
}

fn start(rules: &str) -> (Tollgate, Envoy) {
    let tollgate = Tollgate::start(rules, &[]);
    let envoy = Envoy::start_from("deploy/envoy/usage.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT]);
    (tollgate, envoy)
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_beyond_the_limit_is_charged_and_nothing_passes_until_it_is_paid_back() {
    let (tollgate, envoy) = start(RULES);
    for usage in [TOKENS, BYTES] {
        let debt = usage.use_up(&tollgate, &envoy, "ann").await;
        assert!(debt > 0);
        for _ in 0..3 {
            assert_eq!(usage.ask(&envoy, "ann"), 429);
        }
        assert_eq!(usage.ask(&envoy, "bob"), 200, "to each what they have used");

        assert_eq!(usage.count(&tollgate, "ann", 1 - debt as i64).await, (true, 0), "a refund passes, and 1 is owed");
        assert_eq!(usage.ask(&envoy, "ann"), 429);
        usage.count(&tollgate, "ann", -1).await;
        assert_eq!(usage.ask(&envoy, "ann"), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_not_charged() {
    let (tollgate, envoy) = start(RULES);
    let calls = || tollgate.metric("tollgate_requests_total{outcome=\"over_limit\"}");
    // At the end of a denied request there are no tokens to report, so Envoy does not call; the bytes are reported as
    // 0.
    for (usage, asks) in [(TOKENS, 1), (BYTES, 2)] {
        let debt = usage.use_up(&tollgate, &envoy, "ann").await;
        let before = calls();
        for _ in 0..10 {
            assert_eq!(usage.ask(&envoy, "ann"), 429);
        }
        wait_until("Tollgate has been asked", || calls() >= before + f64::from(10 * asks));
        assert_eq!(usage.count(&tollgate, "ann", -(debt as i64) - 1).await, (true, 1), "no more was owed than before");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn time_pays_a_debt() {
    let (_tollgate, envoy) = start(&RULES.replace("unit: year", "period: 3s"));
    for usage in [TOKENS, BYTES] {
        wait_until("the budget is used up", || usage.ask(&envoy, "ann") == 429);
        wait_until("the debt is paid", || usage.ask(&envoy, "ann") == 200);
    }
}

/// No policy of a gateway has the key `count_denied`, so the Deployment sets the algorithm that has it by default.
#[tokio::test]
async fn a_cost_of_ai_gateway_that_exceeds_what_is_left_is_charged() {
    let deployment = std::fs::read_to_string("deploy/ai-gateway/quota.yaml").unwrap();
    let (_, algorithm) = deployment.split_once("DEFAULT_ALGORITHM, value: ").unwrap();
    let setting = format!("DEFAULT_ALGORITHM={}", algorithm.split(' ').next().unwrap());
    let rules = "
domain: ai-gateway-quota
descriptors:
  - {key: model_name_override, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 100}}
";
    let tollgate = Tollgate::start(rules, &[&setting]);
    let mut passed = Vec::new();
    for hits in [0, 90, 0, 20, 0] {
        let mut request = request("ai-gateway-quota", &[&[("model_name_override", "gpt")]]);
        request.descriptors[0].hits_addend = Some(hits);
        passed.push(tollgate.ask(request).await.unwrap().overall_code() == Code::Ok);
    }
    assert_eq!(passed, [true, true, true, false, false], "the last peek is denied");
}
