//! Who may change what: tokens with names, roles and domains, and the audit trail of what was changed and refused.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::redis::Redis;
use crate::support::tollgate::{Tollgate, command};
use crate::support::wait_until;

const RULES: &str = "
domain: shop
descriptors:
- {key: user, rate_limit: {name: per-user, unit: day, requests_per_unit: 5}}
";

const ADMIN: &str = "a token of some length";
const READER: &str = "another one, of a reader";
const OPS: &str = "the token of operations";
const SHOP: &str = "the token of the shop team";
const RESET: &str = "the token of the support team";
const VIEW: &str = "the token of a viewer";

const TOKENS: &str = "
tokens:
- {name: ops, token: the token of operations, roles: [read, adjust, reset]}
- {name: shop-team, token: the token of the shop team, roles: [adjust, reset], domains: [shop]}
- {name: support, token: the token of the support team, roles: [reset]}
- {name: viewer, sha256: a5c1ad4a7eed7cb0b5a9ff0b1a0a2ca7ac1d4fb64f3b8d8a3c3a4ad25c0ff3f5, roles: [read]}
";

/// The file of tokens, with the hash of the viewer's.
fn tokens() -> String {
    let of_viewer: String = ring_sha256(VIEW);
    TOKENS.replace("a5c1ad4a7eed7cb0b5a9ff0b1a0a2ca7ac1d4fb64f3b8d8a3c3a4ad25c0ff3f5", &of_viewer)
}

/// What `printf %s TOKEN | sha256sum` prints.
fn ring_sha256(token: &str) -> String {
    let script = format!("printf %s '{token}' | sha256sum | cut -d' ' -f1");
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A service with a file of tokens in this folder.
fn start(folder: &Path, settings: &[&str]) -> Tollgate {
    fs::write(folder.join("tokens.yaml"), tokens()).unwrap();
    let file = format!("ADMIN_TOKENS_FILE={}", folder.join("tokens.yaml").display());
    let (admin, reader) = (format!("ADMIN_TOKEN={ADMIN}"), format!("ADMIN_READ_TOKEN={READER}"));
    Tollgate::start(RULES, &[&["ADMIN_API=true", &file, &admin, &reader], settings].concat())
}

fn send(service: &Tollgate, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let token = format!("Bearer {token}");
    let (status, said) = service.send(method, path, &[("authorization", &token)], body.to_string().as_bytes());
    (status, serde_json::from_str(&said).unwrap_or(Value::Null))
}

fn begin(service: &Tollgate, token: &str, id: &str, rest: Value) -> (u16, Value) {
    let mut body = json!({"effect": "block", "why": "a test", "for": "1h", "id": id});
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    send(service, "POST", "/adjustments", token, &body)
}

fn audit(service: &Tollgate, token: &str) -> Vec<Value> {
    let (status, said) = service.admin("GET", "/audit", token);
    assert_eq!((status, &said["unavailable"]), (200, &Value::Null), "{said}");
    said["entries"].as_array().unwrap().clone()
}

fn must_audit(service: &Tollgate, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    wait_until(what, || audit(service, ADMIN).iter().any(&is_it));
    audit(service, ADMIN).into_iter().find(is_it).unwrap()
}

#[tokio::test]
async fn a_role_permits_its_changes_and_domains_bound_them() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[]);
    let told = service.must_log("the admin API answers requests with these tokens");
    assert_eq!((&told["named_tokens"], &told["hosts"]), (&4.into(), &"any".into()), "{told}");
    assert!(service.passes("shop", &[("user", "ann")]).await);
    let error = |(status, said): (u16, Value)| (status, said["error"].as_str().unwrap_or_default().to_owned());
    let (ann, elsewhere) = ("/counters?domain=shop&user=ann", "/counters?domain=elsewhere&user=ann");
    let of_shop = json!({"domain": "shop"});

    for token in [OPS, SHOP, RESET, VIEW, READER] {
        for path in ["/top", "/adjustments", ann, "/audit", "/log-level", "/rules"] {
            assert_eq!(service.admin("GET", path, token).0, 200, "{path}: each role includes reading");
        }
        // Only admin may, whatever the method.
        for method in ["PUT", "DELETE"] {
            assert_eq!(send(&service, method, "/log-level", token, &json!("debug")).0, 403, "{token}");
        }
        for method in ["PATCH", "PUT", "OPTIONS"] {
            assert_eq!(send(&service, method, "/adjustments", token, &of_shop).0, 405, "{method}");
        }
    }
    for token in [RESET, VIEW, READER] {
        assert_eq!(begin(&service, token, "no", of_shop.clone()).0, 403, "{token}");
        assert_eq!(service.admin("DELETE", "/adjustments/no?why=x", token).0, 403, "{token}");
    }
    for token in [VIEW, READER] {
        assert_eq!(service.admin("DELETE", ann, token).0, 403, "{token}");
    }
    let (status, said) = error(begin(&service, VIEW, "no", of_shop.clone()));
    assert!(
        status == 403 && said.contains("the token viewer may not adjust limits: it needs the role adjust"),
        "{said}"
    );

    for (rest, wanted) in [
        (json!({"everything": true}), "may adjust limits of shop only, not of everything"),
        (json!({"everything": true, "domain": "shop"}), "not of everything"),
        (json!({"domain": "elsewhere"}), "not of domain elsewhere"),
        (json!({"domain": "elsewhere", "rule": "per-user"}), "not of domain elsewhere"),
        (json!({"domain": "SHOP"}), "not of domain SHOP"),
    ] {
        let (status, said) = error(begin(&service, SHOP, "no", rest.clone()));
        assert!(status == 403 && said.contains(wanted), "{rest}: {status} {said}");
    }
    assert_eq!(begin(&service, SHOP, "no", json!({})).0, 400, "no target at all is a mistake, not a right");
    assert_eq!(begin(&service, SHOP, "own", json!({"domain": "shop", "rule": "per-user"})).0, 201);
    assert_eq!(begin(&service, OPS, "all", json!({"everything": true})).0, 201);
    let (status, said) = error(service.admin("DELETE", "/adjustments/all?why=x", SHOP));
    assert!(status == 403 && said.contains("not of everything"), "{said}");
    assert_eq!(service.admin("DELETE", "/adjustments/none?why=x", SHOP).0, 404);
    assert_eq!(service.admin("DELETE", "/adjustments/own?why=x", SHOP).0, 200);
    assert_eq!(service.admin("DELETE", "/adjustments/all?why=x", OPS).0, 200);

    let (status, said) = error(service.admin("DELETE", elsewhere, SHOP));
    assert!(status == 403 && said.contains("may reset counters of shop only, not of domain elsewhere"), "{said}");
    for token in [SHOP, RESET, OPS, ADMIN] {
        assert_eq!(service.admin("DELETE", ann, token).0, 200, "{token}");
    }
    for (role, result) in [("adjust", "ok"), ("adjust", "forbidden"), ("reset", "forbidden"), ("reader", "forbidden")] {
        let series = format!("tollgate_admin_requests_total{{result=\"{result}\",role=\"{role}\"}}");
        assert!(service.metric(&series) > 0.0, "{series}");
    }
}

#[test]
fn who_made_a_change_is_the_name_of_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[]);
    for (id, token, given, who) in [
        ("a", OPS, json!({}), "ops"),
        ("b", OPS, json!({"who": "ops"}), "ops"),
        ("c", OPS, json!({"who": "ann"}), "ops (as ann)"),
        ("d", ADMIN, json!({"who": "ann"}), "ann"),
    ] {
        let mut rest = json!({"domain": "shop"});
        rest.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        for _ in 0..2 {
            let (status, said) = begin(&service, token, id, rest.clone());
            assert_eq!((status, &said["who"]), (201, &who.into()), "also if it is repeated: {said}");
        }
    }
    assert_eq!(begin(&service, ADMIN, "e", json!({"domain": "shop"})).0, 400, "without a name it is asked");
    assert_eq!(service.admin("DELETE", "/adjustments/c?who=bob&why=over", OPS).0, 200);
    let ended = must_audit(&service, "the end", |one| one["action"] == "ended");
    assert_eq!((&ended["who"], &ended["why"]), (&"ops (as bob)".into(), &"over".into()), "{ended}");
}

#[test]
fn tokens_change_with_their_file_and_a_wrong_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[]);
    let file = folder.path().join("tokens.yaml");
    let reloads = |result: &str| service.metric(&format!("tollgate_admin_token_reloads_total{{result=\"{result}\"}}"));
    let rejected = "changed tokens of administrators are rejected, the previous ones stay in force";
    let long = format!("tokens: []\n{}", "#".repeat(1024 * 1024));
    let wrong = [
        ("", "the file is empty"),
        ("tokens:\n- {name: ops, token: the token of op", "never closed"),
        (
            "tokens:\n- {name: ops, token: the token of operations, roles: [raed]}\n- {name: b}",
            "did you mean \"read\"?",
        ),
        (&*long, "longer than 1 MiB"),
    ];
    for (before, (text, words)) in wrong.into_iter().enumerate() {
        fs::write(&file, text).unwrap();
        wait_until("it is rejected", || reloads("error") >= (before + 1) as f64);
        let is_told = || {
            let lines = service.logs();
            lines.iter().any(|line| {
                let said = line["message"].as_str().unwrap_or_default();
                said.starts_with(rejected) && said.contains(words)
            })
        };
        wait_until(words, is_told);
        assert_eq!(service.admin("GET", "/top", OPS).0, 200, "{words}");
    }
    fs::remove_file(&file).unwrap();
    wait_until("it has vanished", || reloads("error") >= 5.0);
    assert_eq!(service.admin("GET", "/top", OPS).0, 200);

    // As Kubernetes swaps a Secret: the file is a link through a link to a folder.
    for (version, token) in [("1", "the first that is mounted"), ("2", "the second that is mounted")] {
        let real = folder.path().join(format!("..{version}"));
        fs::create_dir(&real).unwrap();
        fs::write(real.join("tokens.yaml"), format!("tokens: [{{name: k, token: {token}, roles: [read]}}]")).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("..next")).unwrap();
        fs::rename(folder.path().join("..next"), folder.path().join("..data")).unwrap();
        if version == "1" {
            std::os::unix::fs::symlink(folder.path().join("..data/tokens.yaml"), &file).unwrap();
        }
        wait_until(token, || service.admin("GET", "/top", token).0 == 200);
    }
    assert_eq!(service.admin("GET", "/top", "the first that is mounted").0, 401);
    assert_eq!(service.admin("GET", "/top", OPS).0, 401);
    assert_eq!((service.admin("GET", "/top", ADMIN).0, service.admin("GET", "/top", READER).0), (200, 200));
    assert_eq!(reloads("success"), 2.0);
    assert!(!format!("{:?}", service.logs()).contains("that is mounted"), "no log has a token");
}

#[test]
fn a_service_does_not_start_with_a_wrong_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.yaml");
    fs::write(&file, "tokens:\n- {name: a, roles: [raed]}\n- {name: a, token: short, roles: []}\n").unwrap();
    let path = file.display().to_string();
    let settings = [("ADMIN_API", "true"), ("ADMIN_TOKENS_FILE", &*path), ("RULES", "config/rules")];
    let run = |words: &[&str]| {
        let output = command().args(words).envs(settings).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    for words in [&["serve"][..], &["check", "--env"]] {
        let (code, said) = run(words);
        assert_eq!(code, Some(1), "{said}");
        for line in [":2:3: tokens[0]: sha256 is missing", ":3:", "has this name, too", "too easy to guess", "raed"] {
            assert!(said.contains(line), "{line}: {said}");
        }
    }
}

#[test]
fn the_example_of_a_file_is_right() {
    let service = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKENS_FILE=config/tokens.yaml"]);
    let told = service.must_log("the admin API answers requests with these tokens");
    assert_eq!((&told["named_tokens"], &told["admin_token"]), (&2.into(), &false.into()), "{told}");
}

/// Opens the stream of updates. Returns it and the status.
fn watch(service: &Tollgate, token: &str) -> (TcpStream, u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /console/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    (stream, String::from_utf8_lossy(&head[9..]).parse().unwrap())
}

#[test]
fn a_stream_ends_when_its_token_is_removed_or_has_other_rights_and_no_other_does() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[]);
    let told = |token: &str| {
        let (mut stream, status) = watch(&service, token);
        assert_eq!(status, 200);
        let mut text = String::new();
        while !text.contains("\n\n") || !text.contains("data: ") {
            let mut some = [0; 4096];
            let length = stream.read(&mut some).unwrap();
            text.push_str(&String::from_utf8_lossy(&some[..length]));
        }
        text
    };
    let of_shop = told(SHOP);
    assert!(
        of_shop.contains(r#""role":"adjust","name":"shop-team","may":{"adjust":true,"reset":true,"domains":["shop"]}"#)
    );
    assert!(told(READER).contains(r#""role":"read","name":null,"may":{"adjust":false,"reset":false,"domains":null}"#));
    assert!(told(ADMIN).contains(r#""role":"admin","name":null,"may":{"adjust":true,"reset":true,"domains":null}"#));

    let ((mut gone, _), (mut changed, _), (mut other, _)) =
        (watch(&service, SHOP), watch(&service, RESET), watch(&service, OPS));
    let text = tokens().replace("roles: [reset]}", "roles: [read]}");
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("shop-team")).collect();
    fs::write(folder.path().join("tokens.yaml"), lines.join("\n")).unwrap();
    for stream in [&mut gone, &mut changed] {
        // Reads to the last chunk.
        let mut rest = Vec::new();
        let mut some = [0; 65536];
        while !rest.ends_with(b"0\r\n\r\n") {
            let length = stream.read(&mut some).unwrap();
            assert!(length > 0, "it ends as a response does");
            rest.extend_from_slice(&some[..length]);
        }
    }
    let mut some = [0; 16];
    assert!(other.read(&mut some).unwrap() > 0, "this one goes on");
    assert_eq!((watch(&service, SHOP).1, watch(&service, RESET).1), (401, 200));
}

#[test]
fn one_place_of_the_stream_is_for_who_may_change_something_and_no_token_takes_all() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[]);
    let mut open = Vec::new();
    let mut count = |token: &str, tries: usize| {
        let tried: Vec<_> = (0..tries).map(|_| watch(&service, token)).collect();
        let admitted: Vec<_> = tried.into_iter().filter(|(_, status)| *status == 200).collect();
        let number = admitted.len();
        open.extend(admitted);
        number
    };
    assert_eq!(count(READER, 14), 12, "one token of a reader leaves places");
    assert_eq!(count(VIEW, 5), 3, "another one takes those that are not kept");
    assert_eq!(count(RESET, 2), 1, "the kept one is for whoever may change something");
    let (status, said) = service.admin("GET", "/console/live", VIEW);
    assert_eq!((status, &said["error"]), (429, &"16 console pages are open already: close one".into()));
    let (_, said) = service.admin("GET", "/console/live", READER);
    assert_eq!(said["error"], "12 console pages are open with this token already: close one");
    open.clear();
    wait_until("the places are free again", || watch(&service, READER).1 == 200);
}

#[tokio::test]
async fn the_trail_tells_changes_and_refusals_once_for_the_fleet_and_outlives_instances() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let settings = [&*url, "REDIS_TIMEOUT=20s", "TOP_KEYS_VALUES=hidden"];
    let (first, second) = (start(folder.path(), &settings), start(folder.path(), &settings));
    assert!(first.passes("shop", &[("user", "ann-of-acme")]).await);
    let user = json!([{"key": "user", "value": "ann-of-acme"}]);
    assert_eq!(begin(&first, OPS, "short", json!({"domain": "shop", "entries": user, "for": "1s"})).0, 201);
    assert_eq!(begin(&second, SHOP, "rule", json!({"domain": "shop", "rule": "per-user"})).0, 201);
    assert_eq!(first.admin("DELETE", "/adjustments/rule?why=over", SHOP).0, 200);
    assert_eq!(second.admin("DELETE", "/counters?domain=shop&user=ann-of-acme", RESET).0, 200);
    assert_eq!(send(&first, "PUT", "/log-level?for=10m", ADMIN, &json!(null)).0, 400);
    let token = format!("Bearer {ADMIN}");
    assert_eq!(first.send("PUT", "/log-level?for=10m", &[("authorization", &token)], b"warn").0, 200);
    for _ in 0..20 {
        assert_eq!(begin(&first, VIEW, "no", json!({"domain": "shop"})).0, 403);
    }

    must_audit(&first, "the end by itself", |one| one["action"] == "expired");
    must_audit(&first, "a change of the level", |one| one["action"] == "log_level");
    must_audit(&first, "a reset", |one| one["action"] == "reset");
    must_audit(&first, "refusals", |one| one["action"] == "refused");
    let all = audit(&second, ADMIN);
    let of = |action: &str| -> Vec<&Value> { all.iter().filter(|one| one["action"] == action).collect() };
    assert_eq!((of("began").len(), of("ended").len(), of("reset").len()), (2, 1, 1), "{all:?}");
    assert_eq!(of("expired").len(), 1, "once, whatever number of instances sees it");
    assert!((1..=5).contains(&of("refused").len()), "{all:?}");
    let expect = |one: &Value, fields: &[(&str, &str)]| {
        for (field, value) in fields {
            assert_eq!(one[field], *value, "{field} of {one}");
        }
    };
    let descriptor = ("target", "shop: user=ann-of-acme");
    expect(of("expired")[0], &[("who", "ops"), descriptor, ("effect", "block"), ("why", "a test"), ("id", "short")]);
    expect(of("ended")[0], &[("who", "shop-team"), ("role", "adjust"), ("target", "shop/per-user"), ("why", "over")]);
    expect(of("reset")[0], &[("who", "support"), ("role", "reset"), descriptor, ("effect", "counters of per-user")]);
    expect(of("log_level")[0], &[("who", "ADMIN_TOKEN"), ("role", "admin"), ("effect", "warn for 10m")]);
    expect(of("refused")[0], &[("who", "viewer"), ("role", "read"), ("target", "/adjustments"), ("effect", "POST")]);
    assert!(of("refused")[0]["reason"].as_str().unwrap().contains("it needs the role adjust"));
    assert!(of("reset")[0]["instance"].is_string());
    let times: Vec<&str> = all.iter().map(|one| one["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|later, earlier| later >= earlier), "the newest first: {times:?}");

    let of_reader = first.admin("GET", "/audit", READER).1.to_string();
    assert!(of_reader.contains("shop: user\"") && !of_reader.contains("ann-of-acme"), "{of_reader}");
    assert_eq!(first.admin("GET", "/audit?days=1&limit=2", VIEW).1["entries"].as_array().unwrap().len(), 2);
    for query in ["days=31", "days=0", "limit=2001", "limit=x", "x=1"] {
        assert_eq!(first.admin("GET", &format!("/audit?{query}"), VIEW).0, 400, "{query}");
    }
    assert_eq!(first.admin("DELETE", "/audit", ADMIN).0, 405);

    let address = format!("localhost:{}", first.http_port);
    let run = |words: &[&str], settings: &[(&str, &str)]| {
        let output = command().arg("audit").args(words).envs(settings.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (of_redis, of_port) = ([("REDIS_URL", &*redis.url())], [("ADMIN_TOKEN", OPS)]);
    let (code, said, error) = run(&["--json"], &of_redis);
    assert_eq!((code, &*error), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Vec<Value>>(&said).unwrap(), all);
    let (code, said, _) = run(&["--address", &address, "--format", "csv"], &of_port);
    assert!(code == Some(0) && said.starts_with("\"at\",\"action\",\"target\""), "{said}");
    let (code, said, _) = run(&["-n", "1", "--address", &address], &of_port);
    assert!(code == Some(0) && said.lines().count() == 1, "{said}");
    let (code, _, error) = run(&["--address", &address], &[("ADMIN_TOKEN", "a wrong token, of course")]);
    assert!(code == Some(1) && error.contains("does not accept"), "{error}");
    let (code, _, error) = run(&[], &[]);
    assert!(code == Some(1) && error.contains("no REDIS_URL"), "{error}");
}

#[test]
fn a_reset_is_recorded_though_its_client_leaves_or_redis_does_not_answer_in_time() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[&url, "REDIS_TIMEOUT=1s"]);
    redis.freeze();
    let mut leaving = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
    let request = "DELETE /counters?domain=shop&user=leaving HTTP/1.1\r\nhost: localhost";
    write!(leaving, "{request}\r\nauthorization: Bearer {RESET}\r\n\r\n").unwrap();
    // Long enough for the service to read the request, and shorter than its timeout.
    leaving.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(leaving.read(&mut [0]).is_err(), "it waits for Redis");
    drop(leaving);
    assert_eq!(service.admin("DELETE", "/counters?domain=shop&user=staying", RESET).0, 503);
    redis.thaw();
    for user in ["leaving", "staying"] {
        let target = format!("shop: user={user}");
        let reset = must_audit_later(&service, |one| one["action"] == "reset" && one["target"] == *target);
        assert!(reset["effect"].as_str().unwrap().starts_with("counters may have been reset: "), "{reset}");
    }
}

#[test]
fn clients_read_the_trail_one_after_the_other_and_wait_only_for_a_while() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[&url, "REDIS_TIMEOUT=6s"]);
    let read_at_once = |readers: usize| {
        let mut statuses = std::thread::scope(|scope| {
            let read = || service.admin("GET", "/audit?limit=2000", READER).0;
            let readers: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        statuses.sort_unstable();
        statuses
    };
    // A page that is opened again asks while its first question is being answered.
    assert_eq!(read_at_once(6), [200; 6]);
    redis.freeze();
    assert_eq!(read_at_once(3), [200, 429, 429]);
    redis.thaw();
    wait_until("the trail is read", || service.admin("GET", "/audit", READER).1["unavailable"].is_null());
}

/// As `must_audit`, while the store may be unavailable still.
fn must_audit_later(service: &Tollgate, is_it: impl Fn(&Value) -> bool) -> Value {
    let read = || service.admin("GET", "/audit", ADMIN).1["entries"].as_array().cloned().unwrap_or_default();
    let mut found = None;
    wait_until("a record", || {
        found = read().into_iter().find(&is_it);
        found.is_some()
    });
    found.unwrap()
}

#[tokio::test]
async fn records_wait_while_redis_is_down_and_a_key_of_another_type_stands_in_nobodys_way() {
    let mut redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[&url]);
    redis.kill();
    assert_eq!(begin(&service, VIEW, "no", json!({"domain": "shop"})).0, 403);
    service.must_log("records of the audit trail wait for the store");
    let (status, said) = service.admin("GET", "/audit", ADMIN);
    assert!(status == 200 && said["unavailable"].is_string() && said["entries"] == json!([]), "{said}");
    redis.restart();
    wait_until("it is written", || !service.admin("GET", "/audit", ADMIN).1["entries"].as_array().unwrap().is_empty());
    assert_eq!(service.metric("tollgate_audit_records_lost_total"), 0.0);

    for key in ["audit", "refused"] {
        redis.command::<()>(&format!("DEL {{|adjustments}}|{key}")).await;
        redis.command::<()>(&format!("SET {{|adjustments}}|{key} x")).await;
    }
    assert_eq!(audit(&service, ADMIN), Vec::<Value>::new());
    wait_until("an adjustment begins", || begin(&service, OPS, "one", json!({"domain": "shop"})).0 == 201);
    assert_eq!(begin(&service, VIEW, "no", json!({"domain": "shop"})).0, 403);
    must_audit(&service, "a refusal", |one| one["action"] == "refused");
    assert_eq!(must_audit(&service, "a beginning", |one| one["action"] == "began")["id"], "one");
    let length: i64 = redis.command("LLEN {|adjustments}|audit").await;
    let ttl: i64 = redis.command("PTTL {|adjustments}|audit").await;
    assert!(length == 1 && ttl > 29 * 86_400_000, "{length} {ttl}");
}

#[tokio::test]
async fn the_trail_is_bounded_and_forgets_what_is_older_than_thirty_days() {
    let redis = Redis::start();
    let url = format!("REDIS_URL={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &[&url, "REDIS_TIMEOUT=20s"]);
    let now: Vec<u64> = redis.command("TIME").await;
    let old = now[0] * 1_000 - 31 * 86_400_000;
    let mut connection = redis.connection().await;
    let mut push = deadpool_redis::redis::cmd("RPUSH");
    push.arg("{|adjustments}|audit");
    for place in 0..2_100 {
        let at = if place < 5 { old } else { now[0] * 1_000 };
        push.arg(format!("{at} reset - {{\"who\":\"w{place}\",\"target\":\"t\"}}\n"));
    }
    push.exec_async(&mut connection).await.unwrap();
    let (_, said) = service.admin("GET", "/audit?limit=2000", ADMIN);
    assert_eq!(said["entries"].as_array().unwrap().len(), 2_000);
    assert_eq!(service.admin("DELETE", "/counters?domain=shop&user=ann", ADMIN).0, 200);
    let newest = must_audit(&service, "the newest", |one| one["effect"] == "counters of per-user");
    assert_eq!(newest["who"], "ADMIN_TOKEN");
    let length: i64 = redis.command("LLEN {|adjustments}|audit").await;
    assert_eq!(length, 2_000);

    redis.command::<()>("DEL {|adjustments}|audit").await;
    let mut push = deadpool_redis::redis::cmd("RPUSH");
    push.arg("{|adjustments}|audit").arg(format!("{old} reset - {{}}\n")).arg("damaged");
    push.exec_async(&mut connection).await.unwrap();
    assert_eq!(audit(&service, ADMIN), Vec::<Value>::new(), "neither is shown");
    assert_eq!(service.admin("DELETE", "/counters?domain=shop&user=ann", ADMIN).0, 200);
    wait_until("one is written", || audit(&service, ADMIN).len() == 1);
    let length: i64 = redis.command("LLEN {|adjustments}|audit").await;
    assert_eq!(length, 1, "those before are gone");
}

/// The head of the answer to a request with these lines.
fn head(service: &Tollgate, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
    write!(stream, "{request}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    answer.split("\r\n\r\n").next().unwrap().to_owned()
}

#[test]
fn every_answer_of_the_port_is_kept_in_no_cache_also_errors() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &["WHAT_IF_REQUESTS=10"]);
    let paths = [
        "/",
        "/metrics",
        "/healthcheck",
        "/top",
        "/usage",
        "/explain?domain=shop&user=ann",
        "/adjustments",
        "/adjustments/x",
        "/counters?domain=shop&user=ann",
        "/counters",
        "/replicas",
        "/what-if",
        "/what-if/log",
        "/candidates",
        "/audit",
        "/audit?x=1",
        "/log-level",
        "/rules",
        "/rules?x=1",
        "/redis",
        "/redis/history",
        "/console",
        "/console/page.js",
        "/console/entries",
        "/console/entries?x=1",
        "/console/none",
        "/none",
        "/adjustments/x/y",
    ];
    for path in paths {
        for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PATCH"] {
            for token in ["", ADMIN, READER, "a wrong token"] {
                // The delay of wrong tokens would take long.
                if token == "a wrong token" && path != "/top" {
                    continue;
                }
                let token = if token.is_empty() { String::new() } else { format!("\r\nauthorization: Bearer {token}") };
                let head = head(&service, &format!("{method} {path} HTTP/1.1\r\nhost: localhost{token}"));
                assert_eq!(head.matches("\r\ncache-control: no-store").count(), 1, "{method} {path}{token}: {head}");
            }
        }
    }
}

#[test]
fn only_hosts_of_the_setting_reach_the_admin_api_and_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path(), &["ADMIN_HOSTS=tollgate.example.com,tollgate"]);
    let told = service.must_log("the admin API answers requests with these tokens");
    assert_eq!(told["hosts"], "tollgate.example.com, tollgate, localhost and IP addresses");
    let status = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {ADMIN}");
        head(&service, &request).split(' ').nth(1).unwrap().to_owned()
    };
    for path in ["/top", "/console", "/console/page.js", "/rules", "/adjustments", "/audit"] {
        for host in ["tollgate.example.com:8080", "tollgate", "localhost", "127.0.0.1:80", "[::1]"] {
            assert_eq!(status(path, host), "200", "{path} {host}");
        }
        for host in ["evil.example", "tollgate.example.com.evil.example", ""] {
            assert_eq!(status(path, host), "421", "{path} {host}");
        }
    }
    for path in ["/metrics", "/healthcheck", "/"] {
        assert_eq!(status(path, "evil.example"), "200", "{path}: not of administrators");
    }
    let (_, said) = {
        let mut stream = TcpStream::connect(("127.0.0.1", service.http_port)).unwrap();
        write!(stream, "GET /top HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (0, answer)
    };
    assert!(said.contains("ADMIN_HOSTS does not name this host") && said.contains("no-store"), "{said}");
}
