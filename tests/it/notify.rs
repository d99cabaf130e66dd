//! Notices that counters reach shares of their limits: to the log, and to a webhook of a real process.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use ring::hmac;
use serde_json::{Value, json};
use tollgate::shared::claims::{Claim, Claims};
use tollgate::store::redis::topology::config::{OnCall, RedisConfig};
use tollgate::store::redis::topology::route::Route;

use crate::rules::load_text;
use crate::support::redis::Redis;
use crate::support::tollgate::Tollgate;
use crate::support::wait_until;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      {name: per-user, unit: day, requests_per_unit: 10, algorithm: fixed_window, count_denied: false,
       notify: {at: [80%, 100%]}}
  - key: team
    rate_limit: {unit: day, requests_per_unit: 10}
";

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A webhook that answers with these statuses in turn, the last one for ever.
struct Hook {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
}

#[derive(Clone, Debug)]
struct Received {
    headers: BTreeMap<String, String>,
    body: String,
}

impl Hook {
    fn start(statuses: &'static [u16]) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, received) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<Received>>>::default());
        let kept = Arc::clone(&received);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let received = Arc::clone(&kept);
                std::thread::spawn(move || {
                    let mut connection = BufReader::new(connection.unwrap());
                    while let Some(one) = read(&mut connection) {
                        let status = {
                            let mut received = received.lock();
                            received.push(one);
                            statuses[received.len().min(statuses.len()) - 1]
                        };
                        let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: 0\r\n\r\n");
                        connection.get_mut().write_all(answer.as_bytes()).unwrap();
                    }
                });
            }
        });
        Hook { port, received }
    }

    fn settings(&self) -> [String; 2] {
        [
            format!("NOTIFY_WEBHOOK_URL=http://127.0.0.1:{}/limits?from=tollgate", self.port),
            format!("NOTIFY_WEBHOOK_SECRET={SECRET}"),
        ]
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    /// Returns the marks that it was told, in order.
    fn marks(&self) -> Vec<String> {
        let mark = |one: &Received| one.data()["mark"].as_str().unwrap().to_owned();
        let mut marks: Vec<_> = self.received().iter().map(mark).collect();
        marks.sort();
        marks
    }
}

impl Received {
    fn data(&self) -> Value {
        serde_json::from_str::<Value>(&self.body).unwrap()["data"].clone()
    }
}

fn read(connection: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut headers = BTreeMap::new();
    let mut line = String::new();
    loop {
        line.clear();
        connection.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        } else {
            headers.insert("line".into(), line.trim_end().to_owned());
        }
    }
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    connection.read_exact(&mut body).ok()?;
    Some(Received { headers, body: String::from_utf8(body).unwrap() })
}

fn hit(tollgate: &Tollgate, user: &str, hits: u32) -> u16 {
    let request = json!({"domain": "shop", "hitsAddend": hits, "descriptors": [
        {"entries": [{"key": "user", "value": user}]},
        {"entries": [{"key": "team", "value": "red"}]},
    ]});
    tollgate.post("/json", request.to_string().as_bytes()).0
}

fn start(redis: Option<&Redis>, hook: &Hook, more: &[&str]) -> Tollgate {
    let settings = hook.settings();
    let redis = redis.map(|redis| format!("REDIS_URL={}", redis.url()));
    let mut settings: Vec<&str> = settings.iter().chain(&redis).map(String::as_str).collect();
    settings.extend(more);
    Tollgate::start(RULES, &settings)
}

fn fate(tollgate: &Tollgate, fate: &str) -> f64 {
    tollgate.metric(&format!("tollgate_notices_total{{fate=\"{fate}\"}}"))
}

#[test]
fn a_webhook_and_the_log_are_told_once_who_reached_which_share_of_what() {
    let hook = Hook::start(&[204]);
    let tollgate = start(None, &hook, &[]);
    for _ in 0..7 {
        assert_eq!(hit(&tollgate, "ann", 1), 200);
    }
    assert_eq!(hit(&tollgate, "ann", 1), 200);
    wait_until("the first mark is told", || hook.received().len() == 1);
    let first = hook.received().remove(0);
    assert_eq!(first.headers["line"], "POST /limits?from=tollgate HTTP/1.1");
    assert_eq!(first.headers["content-type"], "application/json");
    let id = &first.headers["webhook-id"];
    let signed = format!("{id}.{}.{}", first.headers["webhook-timestamp"], first.body);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(&SECRET["whsec_".len()..]).unwrap());
    let signature = STANDARD.decode(first.headers["webhook-signature"].strip_prefix("v1,").unwrap()).unwrap();
    hmac::verify(&key, signed.as_bytes(), &signature).unwrap();
    let mut data = first.data();
    let reset = data.as_object_mut().unwrap().remove("reset_after_ms").unwrap().as_u64().unwrap();
    assert!((1..=86_400_000).contains(&reset), "{reset}");
    assert_eq!(
        data,
        json!({
            "domain": "shop", "rule": "per-user", "descriptor": [{"key": "user", "value": "ann"}], "mark": "80%",
            "used": 8, "remaining": 2, "limit": 10, "number": 10, "algorithm": "fixed_window", "period_ms": 86_400_000,
            "over_limit": false, "shadow_mode": false,
        })
    );
    assert_eq!([hit(&tollgate, "ann", 1), hit(&tollgate, "ann", 1), hit(&tollgate, "ann", 1)], [200, 200, 429]);
    wait_until("the second is", || fate(&tollgate, "told") == 2.0);
    // All at once.
    assert_eq!(hit(&tollgate, "bob", 10), 429, "his team has no more");
    assert_eq!(hook.marks(), ["100%", "80%"]);
    let line = tollgate.must_log("a counter has reached a share of its limit");
    assert_eq!([&line["rule"], &line["descriptor"], &line["mark"]], ["per-user", "user=ann", "80%"]);
}

#[test]
fn of_two_instances_one_tells_and_keeps_the_claim_until_the_window_is_over() {
    let (redis, hook) = (Redis::start(), Hook::start(&[200]));
    let instances = [start(Some(&redis), &hook, &[]), start(Some(&redis), &hook, &[])];
    for round in 0..4 {
        for instance in &instances {
            assert_eq!(hit(instance, "ann", 1), 200, "{round}");
        }
    }
    let all = |of: &str| instances.iter().map(|instance| fate(instance, of)).sum::<f64>();
    wait_until("one tells", || all("told") == 1.0);
    // The other one learns of it with its next request, which is beyond the mark.
    instances.iter().for_each(|instance| assert_eq!(hit(instance, "ann", 1), 200));
    wait_until("the other hears of it, and the next mark is told", || all("told") == 2.0 && all("repeated") == 1.0);
    instances.iter().for_each(|instance| assert_eq!(hit(instance, "ann", 1), 429));
    wait_until("the other hears of the next one", || all("repeated") == 2.0);
    // And asks no more.
    instances.iter().for_each(|instance| assert_eq!(hit(instance, "ann", 1), 429));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(hook.marks(), ["100%", "80%"]);
    assert_eq!((all("told"), all("repeated")), (2.0, 2.0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let keys: Vec<String> = redis.command("KEYS *claims*").await;
        assert_eq!(keys.len(), 2, "{keys:?}");
        for key in keys {
            let ttl: i64 = redis.command(&format!("PTTL {key}")).await;
            let rest = hook.received()[0].data()["reset_after_ms"].as_i64().unwrap();
            assert!(ttl > rest.min(60_000) - 30_000 && ttl <= rest, "{ttl} of {rest}");
        }
    });
}

#[test]
fn a_webhook_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let busy = Hook::start(&[503, 429, 200]);
    let tollgate = start(None, &busy, &[]);
    hit(&tollgate, "ann", 8);
    wait_until("the third attempt is taken", || fate(&tollgate, "told") == 1.0);
    let ids: Vec<String> = busy.received().iter().map(|one| one.headers["webhook-id"].clone()).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]), "a receiver knows a repeated notice by its ID: {ids:?}");

    let refuses = Hook::start(&[404]);
    let tollgate = start(None, &refuses, &[]);
    hit(&tollgate, "ann", 8);
    wait_until("it has failed", || fate(&tollgate, "failed") == 1.0);
    assert_eq!(refuses.received().len(), 1);
    let line = tollgate.must_log("a notice was not told");
    assert_eq!([&line["kind"], &line["why"]], ["failed", "it answers 404 Not Found"]);
}

#[test]
fn values_are_hidden_in_notices_if_a_setting_wants_that_and_limits_without_marks_tell_nothing() {
    let hook = Hook::start(&[200]);
    let tollgate = start(None, &hook, &["NOTIFY_VALUES=hidden"]);
    hit(&tollgate, "ann", 8);
    wait_until("it is told", || fate(&tollgate, "told") == 1.0);
    let told = hook.received().remove(0);
    assert_eq!(told.data()["descriptor"], json!([{"key": "user"}]));
    assert!(!told.body.contains("ann"), "{}", told.body);
    assert_eq!(tollgate.must_log("a counter has reached a share of its limit")["descriptor"], "user");
    assert_eq!(hook.received().len(), 1, "the team's limit has no marks");
}

#[test]
fn without_redis_nothing_is_told_twice_and_a_later_request_tells_it() {
    let (mut redis, hook) = (Redis::start(), Hook::start(&[200]));
    let tollgate = start(Some(&redis), &hook, &[]);
    assert_eq!(hit(&tollgate, "ann", 7), 200);
    redis.kill();
    wait_until("Redis is missed", || {
        hit(&tollgate, "bob", 1);
        tollgate.logged("redis is down").is_some()
    });
    assert_eq!(hook.received().len(), 0, "failure modes count nothing");
    redis.restart();
    wait_until("Redis is back, and a mark is reached in it", || {
        hit(&tollgate, "eve", 8);
        !hook.received().is_empty()
    });
    assert!(hook.received().iter().all(|one| one.data()["descriptor"][0]["value"] == "eve"));
}

#[test]
fn the_last_notices_are_told_before_the_process_ends() {
    let hook = Hook::start(&[503, 200]);
    let mut tollgate = start(None, &hook, &["DRAIN_DELAY=0s"]);
    hit(&tollgate, "ann", 8);
    wait_until("the first attempt has failed", || hook.received().len() == 1);
    tollgate.signal("TERM");
    assert!(tollgate.wait().success());
    assert_eq!(hook.received().len(), 2);
}

/// The script against what [`Claims`] promises.
#[tokio::test]
async fn a_claim_is_one_notices_until_it_ends() {
    const LONG: Duration = Duration::from_secs(600);
    let redis = Redis::start();
    let config = || RedisConfig {
        on_call: OnCall::default(),
        address: redis.url().parse().unwrap(),
        connections: 1,
        timeout: Duration::from_secs(30),
        queue: 100,
        key_prefix: "p:".to_owned(),
        per_second: None,
    };
    let claims = || Claims::in_redis(&Route::start(config()).unwrap());
    let (one, other) = (claims(), claims());
    assert_eq!(one.claim("a", "n1", LONG).await.unwrap(), Claim::Ours);
    // Asked again after a lost reply.
    assert_eq!(one.claim("a", "n1", LONG).await.unwrap(), Claim::Ours);
    let Claim::Taken(rest) = other.claim("a", "n2", LONG).await.unwrap() else { panic!("two have it") };
    assert!(rest <= LONG && rest > LONG / 2, "{rest:?}");
    assert_eq!(other.claim("b", "n2", LONG).await.unwrap(), Claim::Ours, "another mark");
    one.keep("a", "n1", Duration::from_millis(1)).await.unwrap();
    let mut left = Claim::Taken(LONG);
    while left != Claim::Ours {
        left = other.claim("a", "n2", LONG).await.unwrap();
    }
    assert!(matches!(one.claim("a", "n1", LONG).await.unwrap(), Claim::Taken(_)));
}

#[test]
fn marks_are_shares_each_once() {
    let of = |notify: &str| {
        load_text(format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: day, requests_per_unit: 10, {notify}}}}}]\n"
        ))
    };
    let rules = of("notify: {at: [100%, 5%]}").unwrap().rules;
    let written = rules.limits().next().unwrap().1.config.options.notify.as_ref().unwrap().to_string();
    assert_eq!(written, "{at: [5%, 100%]}");
    for (notify, said) in [
        ("notify: {at: []}", "is empty: write shares of the limit, such as [80%, 100%]"),
        ("notify: {at: [\"0.8\"]}", "is not a share: write a percentage with its sign, such as 80%"),
        ("notify: {at: [0%]}", "is not a share"),
        ("notify: {at: [120%]}", "is not a share"),
        ("notify: {at: [80%, 80.0%]}", "80% is named above as well"),
        ("notify: {at: [1%, 2%, 3%, 4%, 5%, 6%, 7%, 8%, 9%]}", "has 9 shares; there may be up to 8"),
        ("notify: {}", "at"),
    ] {
        let error = of(notify).unwrap_err().to_string();
        assert!(error.contains(said), "{notify}: {error}");
    }
}

#[test]
fn a_webhook_needs_a_secret() {
    for (settings, said) in [
        (&["NOTIFY_WEBHOOK_URL=http://localhost:9"][..], "needs a NOTIFY_WEBHOOK_SECRET"),
        (
            &["NOTIFY_WEBHOOK_URL=http://localhost:9", "NOTIFY_WEBHOOK_SECRET=short"],
            "has 5 bytes, which is too easy to guess",
        ),
        (
            &["NOTIFY_WEBHOOK_URL=localhost", "NOTIFY_WEBHOOK_SECRET=a secret of some length"],
            "must be a URL, such as https://",
        ),
        (&["NOTIFY_WEBHOOK_URL=http://localhost:9", "NOTIFY_WEBHOOK_SECRET_FILE=/nowhere"], "cannot be read"),
        (&["NOTIFY_VALUES=hashed"], "needs VALUES_KEY"),
    ] {
        let mut command = crate::support::tollgate::command();
        command.args(["serve", "--rules", "config/rules"]);
        command.envs(settings.iter().map(|setting| setting.split_once('=').unwrap()));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains(said), "{settings:?}: {text}");
    }
}
