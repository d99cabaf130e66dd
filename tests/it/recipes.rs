//! The recipes of docs/recipes.md, each with the file of `deploy/` that users are given: in a real Envoy, or as a
//! script.

use crate::support;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::envoy::{Answer, Envoy};
use support::tollgate::{BINARY, Tollgate, request};
use support::{wait_until, wait_until_async};
use tollgate::wire::rate_limit_response::Code;

/// Periods so long that nothing refills during a test.
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 5}}
  - key: failed
    value: login
    descriptors:
      - key: remote_address
        rate_limit: {unit: year, requests_per_unit: 5, penalty: {after: 10, within: 1h, ban: 1d}}
  - {key: failures, rate_limit: {unit: year, requests_per_unit: 4, count_denied: true}}
";

fn start(file: &str, rules: &str, changes: &[(&str, &str)]) -> (Tollgate, Envoy) {
    let tollgate = Tollgate::start(rules, &[]);
    let changes = [&[Envoy::LONG_TIMEOUT], changes].concat();
    let envoy = Envoy::start_from(file, tollgate.grpc_port, &changes);
    (tollgate, envoy)
}

mod local_limits_in_front {
    use super::*;

    /// The client's address comes from its header, and buckets never refill.
    const CHANGES: &[(&str, &str)] = &[
        ("use_remote_address: true", "use_remote_address: true\n                xff_num_trusted_hops: 1"),
        ("fill_interval: 1s", "fill_interval: 86400s"),
        ("max_tokens: 100,", "max_tokens: 20,"),
    ];

    fn ask(envoy: &Envoy, address: &str, user: &str) -> Answer {
        envoy.ask("/", &[("x-forwarded-for", address), ("x-user", user)])
    }

    #[test]
    fn a_flood_costs_tollgate_no_more_than_envoy_lets_through() {
        let (tollgate, envoy) = start("deploy/envoy/local.yaml", RULES, CHANGES);
        let answers: Vec<Answer> = (0..60).map(|_| ask(&envoy, "203.0.113.7", "ann")).collect();
        let by_envoy = |answer: &&Answer| answer.header("x-denied-by") == Some("envoy");
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 5, "by Tollgate's rule");
        assert_eq!(answers.iter().filter(by_envoy).count(), 40, "by Envoy's bucket of 20");
        assert!(answers[20..].iter().all(|answer| answer.status == 429 && !answer.is_decided()));
        let asked = |outcome: &str| tollgate.metric(&format!("tollgate_requests_total{{outcome=\"{outcome}\"}}"));
        assert_eq!((asked("ok"), asked("over_limit")), (5.0, 15.0));

        let answer = ask(&envoy, "203.0.113.8", "ann");
        assert!(answer.status == 429 && answer.is_decided(), "another address has a bucket of its own: {answer:?}");
        assert_eq!(ask(&envoy, "203.0.113.8", "bob").status, 200);
    }

    #[test]
    fn all_clients_together_have_a_bucket_too() {
        let together = ("max_tokens: 2000,", "max_tokens: 30,");
        let (_tollgate, envoy) = start("deploy/envoy/local.yaml", RULES, &[CHANGES, &[together]].concat());
        let passed = (0..40).filter(|i| ask(&envoy, &format!("203.0.113.{i}"), &format!("user-{i}")).status == 200);
        assert_eq!(passed.count(), 30);
    }
}

mod a_body_for_denied_clients {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_denied_client_learns_how_long_to_wait_and_the_id_of_its_request() {
        let rules = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: user, value: never, rate_limit: {unit: minute, requests_per_unit: 0}}
";
        let tollgate = Tollgate::start(rules, &["LIMIT_RESPONSE_HEADERS_ENABLED=true"]);
        let envoy = Envoy::start_from("deploy/envoy/denied.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT]);
        let passed = envoy.get_as("ann");
        assert_eq!((passed.status, &*passed.body), (200, "hello from the service\n"));
        assert_eq!(passed.number("ratelimit-remaining"), Some(0));

        let denied = envoy.get_as("ann");
        let body: Value = serde_json::from_str(&denied.body).unwrap();
        let wait = denied.number("retry-after").unwrap();
        assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")));
        assert!((1..=66).contains(&wait) && body["retry_after_seconds"] == wait, "{denied:?}");
        assert!(body["error"] == "rate_limited" && body["request_id"].is_string(), "{body}");

        let never = envoy.get_as("never");
        let body: Value = serde_json::from_str(&never.body).unwrap();
        assert_eq!((never.status, never.header("retry-after")), (429, None), "no wait helps");
        assert!(body["retry_after_seconds"].is_null(), "{body}");
    }
}

mod failures_alone {
    use super::*;

    const FILE: &str = "deploy/envoy/failures.yaml";
    const RIGHT: (&str, &str) = ("x-password", "right");
    const WRONG: (&str, &str) = ("x-password", "wrong");

    fn log_in(envoy: &Envoy, password: (&str, &str)) -> u16 {
        envoy.ask("/login", &[password]).status
    }

    /// Sends a request as `ann` after this many failures. The charge at the end of a stream arrives later, so this
    /// waits for it.
    async fn call(envoy: &Envoy, tollgate: &Tollgate, failed: f64) -> u16 {
        wait_until("the failures are charged", || hits(tollgate) >= failed);
        envoy.ask("/api", &[("x-user", "ann"), WRONG]).status
    }

    fn hits(tollgate: &Tollgate) -> f64 {
        tollgate.metric("tollgate_hits_total{domain=\"shop\",rule=\"failures\"}")
    }

    /// Returns the remaining hits of the test's own address.
    async fn left(tollgate: &Tollgate) -> u32 {
        let mut peek = request("shop", &[&[("failed", "login"), ("remote_address", "127.0.0.1")]]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = tollgate.ask(peek).await.unwrap();
        answer.statuses[0].limit_remaining
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_knows_the_password_is_never_limited_and_who_guesses_has_five() {
        let (tollgate, envoy) = start(FILE, RULES, &[]);
        for _ in 0..20 {
            assert_eq!(log_in(&envoy, RIGHT), 200);
            wait_until_async("the hit is refunded", async || left(&tollgate).await == 5).await;
        }
        for failed in 1..=5 {
            assert_eq!(log_in(&envoy, WRONG), 401);
            assert_eq!(left(&tollgate).await, 5 - failed, "a failure is not refunded");
        }
        for _ in 0..3 {
            assert_eq!(log_in(&envoy, WRONG), 429);
        }
        assert_eq!(log_in(&envoy, RIGHT), 429, "the sixth is not even tried");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_denied_guess_gets_nothing_back_and_brings_the_ban_nearer() {
        let (tollgate, envoy) = start(FILE, RULES, &[]);
        for _ in 0..5 {
            assert_eq!(log_in(&envoy, WRONG), 401);
        }
        for _ in 0..10 {
            assert_eq!(log_in(&envoy, WRONG), 429);
        }
        let banned = "tollgate_banned_hits_total{domain=\"shop\",rule=\"failed=login|remote_address\"}";
        wait_until("the address is banned", || {
            assert_eq!(log_in(&envoy, RIGHT), 429);
            tollgate.metric(banned) > 0.0
        });
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_guesses_at_once_are_no_more_than_five() {
        let (_tollgate, envoy) = start(FILE, RULES, &[]);
        let tried: usize = std::thread::scope(|scope| {
            let guess = || (0..8).filter(|_| log_in(&envoy, WRONG) == 401).count();
            let guesses: Vec<_> = (0..8).map(|_| scope.spawn(guess)).collect();
            guesses.into_iter().map(|guess| guess.join().unwrap()).sum()
        });
        assert_eq!(tried, 5);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_peek_lets_one_failure_more_pass_than_the_number_says() {
        for (number, failures) in [(4, 5), (5, 6)] {
            let rules = RULES.replace("requests_per_unit: 4", &format!("requests_per_unit: {number}"));
            let (tollgate, envoy) = start(FILE, &rules, &[]);
            for failed in 0..failures {
                assert_eq!(call(&envoy, &tollgate, f64::from(failed)).await, 401, "{failed} of {failures} have failed");
            }
            assert_eq!(call(&envoy, &tollgate, f64::from(failures)).await, 429);
            assert_eq!(envoy.ask("/api", &[("x-user", "bob"), WRONG]).status, 401, "to each their own");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_count_denied_a_peek_never_denies() {
        let (tollgate, envoy) = start(FILE, &RULES.replace(", count_denied: true", ""), &[]);
        for failed in 0..12 {
            assert_eq!(call(&envoy, &tollgate, f64::from(failed)).await, 401);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_denied_peek_brings_no_ban() {
        let penalty = "count_denied: true, penalty: {after: 2, within: 1h, ban: 1d}";
        let (tollgate, envoy) = start(FILE, &RULES.replace("count_denied: true", penalty), &[]);
        for failed in 0..5 {
            call(&envoy, &tollgate, f64::from(failed)).await;
        }
        for _ in 0..10 {
            assert_eq!(call(&envoy, &tollgate, 5.0).await, 429);
        }
        assert_eq!(tollgate.metric("tollgate_banned_hits_total{domain=\"shop\",rule=\"failures\"}"), 0.0);
    }
}

mod plans {
    use super::*;

    const RULES: &str = "
domain: api
descriptors:
  - {key: plan, value: free, descriptors: [{key: customer, rate_limit: {unit: year, requests_per_unit: 2}}]}
  - key: plan
    value: paid
    descriptors:
      - {key: customer, rate_limit: {unit: year, requests_per_unit: 4}}
      - {key: customer, value: acme, rate_limit: {unit: year, requests_per_unit: 6}}
";

    // Tokens signed with the key in the file, without an expiry. The first is also in the file.
    const SMALL: &str = concat!(
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRyeSIsInR5cCI6IkpXVCJ9.",
        "eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwicGxhbiI6ImZyZWUiLCJjdXN0b21lciI6InNtYWxsIn0.",
        "ULFR7m5s6IodABkIstHqeCTZdw7c_2MzWikX4ikeqH4",
    );
    const LARGE: &str = concat!(
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRyeSIsInR5cCI6IkpXVCJ9.",
        "eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwicGxhbiI6InBhaWQiLCJjdXN0b21lciI6ImxhcmdlIn0.",
        "OCm3qRM-8MTkECMqikNp_EJB_oXowJuD4hJ24qNf_H4",
    );
    const ACME: &str = concat!(
        "eyJhbGciOiJIUzI1NiIsImtpZCI6InRyeSIsInR5cCI6IkpXVCJ9.",
        "eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwicGxhbiI6InBhaWQiLCJjdXN0b21lciI6ImFjbWUifQ.",
        "HtC_U7VofWkSJmYPm8yDKag27K6UCrt0OKp2d_54VbE",
    );

    fn passes(envoy: &Envoy, token: &str, forged: &[(&str, &str)]) -> bool {
        let bearer = format!("Bearer {token}");
        let headers = [&[("authorization", bearer.as_str())], forged].concat();
        envoy.ask("/", &headers).status == 200
    }

    #[test]
    fn each_customer_has_the_number_of_its_plan_or_its_own() {
        let (_tollgate, envoy) = start("deploy/envoy/plans.yaml", RULES, &[]);
        for (token, number) in [(SMALL, 2), (LARGE, 4), (ACME, 6)] {
            assert_eq!((0..8).filter(|_| passes(&envoy, token, &[])).count(), number);
        }
    }

    #[test]
    fn no_client_chooses_its_plan_or_its_name() {
        let (_tollgate, envoy) = start("deploy/envoy/plans.yaml", RULES, &[]);
        let forged = [("x-plan", "paid"), ("x-customer", "acme")];
        assert_eq!((0..8).filter(|_| passes(&envoy, SMALL, &forged)).count(), 2);
        let unsigned = SMALL.rsplit_once('.').unwrap().0.to_owned() + ".AAAA";
        assert_eq!(envoy.ask("/", &[("authorization", &format!("Bearer {unsigned}"))]).status, 401);
    }

    #[test]
    fn the_token_in_the_file_is_one_that_it_takes() {
        let file = std::fs::read_to_string("deploy/envoy/plans.yaml").unwrap();
        assert!(file.contains(&format!("#   TOKEN={SMALL}\n")));
    }
}

/// The rules of docs/recipes.md for this domain.
pub(crate) fn of_the_page(domain: &str) -> String {
    let page = std::fs::read_to_string("docs/recipes.md").unwrap();
    let mut blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.starts_with(&format!("domain: {domain}\n"))).unwrap().to_owned()
}

mod networks {
    use super::*;

    fn ask(envoy: &Envoy, address: &str) -> Answer {
        envoy.ask("/", &[("x-forwarded-for", address)])
    }

    #[test]
    fn an_office_shares_a_limit_others_have_their_own_and_private_networks_none() {
        let rules = of_the_page("addresses").replace("_unit: 60}", "_unit: 2}").replace("_unit: 6000}", "_unit: 3}");
        let (_tollgate, envoy) = start("deploy/envoy/addresses.yaml", &rules, &[]);
        let statuses =
            |addresses: &[&str]| -> Vec<u16> { addresses.iter().map(|address| ask(&envoy, address).status).collect() };
        let office = ["203.0.113.1", "2001:db8::1", "203.0.113.255", "2001:db8:ffff::1"];
        assert_eq!(statuses(&office), [200, 200, 200, 429]);
        for address in ["203.0.114.1", "2001:db9::1", "11.0.0.1"] {
            assert_eq!(statuses(&[address; 3]), [200, 200, 429], "{address}");
        }
        for address in ["10.1.2.3", "172.31.0.1", "192.168.1.1"] {
            assert_eq!(ask(&envoy, address).header("x-ratelimit-limit"), None, "{address}");
        }
    }
}

mod tools_of_an_agent {
    use serde_json::json;

    use super::*;

    fn call(envoy: &Envoy, session: &str, method: &str, tool: &str) -> u16 {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": tool, "arguments": {}}});
        envoy.post("/mcp", &[("x-agent", "ann"), ("mcp-session-id", session)], &body).status
    }

    #[test]
    fn each_tool_has_its_limit_and_a_loop_ends() {
        let rules = of_the_page("mcp").replace("period: 30s", "period: 1d").replace("within: 1m", "within: 1d");
        let (_tollgate, envoy) = start("deploy/envoy/mcp.yaml", &rules, &[]);
        let codes: Vec<u16> = (0..11).map(|_| call(&envoy, "a", "tools/call", "search")).collect();
        assert_eq!(codes, [[200; 10].as_slice(), &[429]].concat(), "the loop");
        assert_eq!(call(&envoy, "a", "tools/call", "fetch"), 200, "another tool");
        assert_eq!(call(&envoy, "b", "tools/call", "search"), 200, "another session");
        let codes: Vec<u16> = (0..11).map(|i| call(&envoy, &format!("s{i}"), "tools/call", "send_email")).collect();
        assert_eq!(codes, [[200; 10].as_slice(), &[429]].concat(), "over all sessions");
    }

    #[test]
    fn what_is_no_call_of_a_tool_is_not_limited() {
        let rules = of_the_page("mcp").replace("_unit: 60}", "_unit: 0}").replace("_unit: 500}", "_unit: 0}");
        let (_tollgate, envoy) = start("deploy/envoy/mcp.yaml", &rules, &[]);
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let headers = [("x-agent", "ann"), ("mcp-session-id", "a")];
        assert_eq!(envoy.post("/mcp", &headers, &list).status, 200);
        assert_eq!(envoy.ask("/mcp", &headers).status, 200, "a stream of the server's messages");
        assert_eq!(call(&envoy, "a", "tools/call", "search"), 429);
    }
}

mod a_consumer_of_a_queue {
    use super::*;

    const RULES: &str = "
domain: jobs
descriptors:
  - {key: queue, value: mail, rate_limit: {period: 50ms, requests_per_unit: 1, algorithm: leaky_bucket, max_delay: 30s}}
";

    /// Starts a consumer whose command writes each job to a file.
    fn consumer(tollgate: &Tollgate, jobs: &str, done: &std::path::Path) -> Child {
        let folder = std::path::Path::new(BINARY).parent().unwrap();
        let mut consumer = Command::new("deploy/queue/consumer.sh")
            .args(["sh", "-c", "echo \"$1\" >> \"$0\""])
            .arg(done)
            .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
            .env("GRPC_PORT", tollgate.grpc_port.to_string())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        consumer.stdin.take().unwrap().write_all(jobs.as_bytes()).unwrap();
        consumer
    }

    #[test]
    fn however_many_there_are_they_are_no_faster_than_the_rule() {
        let tollgate = Tollgate::start(RULES, &[]);
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| folder.path().join(name));
        let start = Instant::now();
        for mut consumer in files.each_ref().map(|file| consumer(&tollgate, "one\ntwo\nthree\nfour\n", file)) {
            assert!(consumer.wait().unwrap().success());
        }
        assert!(start.elapsed() >= 7 * Duration::from_millis(50), "{:?}", start.elapsed());
        for file in files {
            assert_eq!(std::fs::read_to_string(file).unwrap(), "one\ntwo\nthree\nfour\n");
        }
    }

    #[test]
    fn it_handles_nothing_that_no_limit_paces() {
        let tollgate = Tollgate::start(&RULES.replace("value: mail", "value: letter"), &[]);
        let done = tempfile::NamedTempFile::new().unwrap();
        let output = consumer(&tollgate, "one\n", done.path()).wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("no limit applies to queue=mail of the domain jobs"), "{said}");
        assert_eq!(std::fs::read_to_string(done.path()).unwrap(), "");
    }

    #[tokio::test]
    async fn it_waits_while_it_is_denied_and_loses_no_job() {
        let none = RULES.replace("requests_per_unit: 1,", "requests_per_unit: 0,");
        let none = none.replace(", algorithm: leaky_bucket, max_delay: 30s", "");
        let tollgate = Tollgate::start(&none, &[]);
        let done = tempfile::NamedTempFile::new().unwrap();
        let mut consumer = consumer(&tollgate, "one\ntwo\n", done.path());
        let denied = || tollgate.metric("tollgate_requests_total{outcome=\"over_limit\"}");
        wait_until("it is denied", || denied() >= 1.0);
        assert_eq!(std::fs::read_to_string(done.path()).unwrap(), "");
        tollgate.change_rules(RULES);
        assert!(consumer.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(done.path()).unwrap(), "one\ntwo\n");
        let answer = tollgate.ask(request("jobs", &[&[("queue", "mail")]])).await.unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
    }
}
