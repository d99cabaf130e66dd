//! Access to Redis: TLS with certificates that are replaced, and passwords in files that are rotated.

use crate::support;

use std::fs;
use std::path::Path;

use support::certificates::{Authority, Pair};
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{wait_until, wait_until_async};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000, failure_mode: error}}
";

/// In every test that has one.
const PASSWORD: &str = "open-sesame";

/// A service with these settings, for which no machine is too busy.
fn start(settings: &[String]) -> Tollgate {
    let common = ["REDIS_TIMEOUT=20s".to_owned(), "LOG_LEVEL=debug".to_owned()];
    let settings: Vec<&str> = common.iter().chain(settings).map(String::as_str).collect();
    Tollgate::start(RULES, &settings)
}

async fn asks(tollgate: &Tollgate) -> Result<(), String> {
    let answer = tollgate.ask(request("shop", &[&[("user", "ann")]])).await;
    answer.map(drop).map_err(|error| error.message().to_owned())
}

async fn assert_decides(tollgate: &Tollgate) {
    wait_until_async("redis decides", async || asks(tollgate).await.is_ok()).await;
    assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
}

/// Asserts that Redis is down with this cause, and that clients get the reason.
async fn assert_tells(tollgate: &Tollgate, kind: &str, words: &str) {
    let series = format!("tollgate_store_down{{cause=\"{kind}\"}}");
    wait_until(&series, || tollgate.metric(&series) == 1.0);
    let error = asks(tollgate).await.unwrap_err();
    assert!(error.contains(words), "{error}");
    assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
}

fn setting(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// The settings of a client that trusts this authority, and shows this.
fn tls(authority: &Authority, pair: &Pair) -> Vec<String> {
    vec![
        setting("REDIS_TLS_CACERT", &authority.file()),
        setting("REDIS_TLS_CLIENT_CERT", &pair.cert),
        setting("REDIS_TLS_CLIENT_KEY", &pair.key),
    ]
}

#[tokio::test]
async fn redis_is_asked_over_tls_by_whichever_word_says_so() {
    let authority = Authority::new("ours");
    let redis = Redis::start_secure(&authority, &authority.sign("redis", &["localhost"]), &["--requirepass", PASSWORD]);
    let port = redis.tcp_address().rsplit(':').next().unwrap().to_owned();
    let files = tls(&authority, &authority.sign("client", &["client"]));
    for place in [
        vec![format!("REDIS_URL=rediss://:{PASSWORD}@localhost:{port}/2")],
        vec![format!("REDIS_URL=localhost:{port}"), "REDIS_TLS=true".into(), format!("REDIS_AUTH={PASSWORD}")],
        vec![format!("REDIS_URL=rediss://:{PASSWORD}@127.0.0.1:{port}"), "REDIS_TLS_SERVER_NAME=localhost".into()],
        vec![
            format!("REDIS_URL=rediss://:{PASSWORD}@127.0.0.1:{port}"),
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true".into(),
        ],
    ] {
        let tollgate = start(&[&place[..], &files].concat());
        assert_decides(&tollgate).await;
        assert_eq!(tollgate.metric("tollgate_store_up"), 1.0, "{place:?}");
    }
}

#[tokio::test]
async fn a_redis_that_may_be_another_is_not_asked_over_tls() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let redis = Redis::start_secure(&ours, &ours.sign("redis", &["localhost"]), &[]);
    let port = redis.tcp_address().rsplit(':').next().unwrap().to_owned();
    let url = |host: &str| format!("REDIS_URL=rediss://{host}:{port}");
    let client = ours.sign("client", &["client"]);
    for (settings, words) in [
        ([vec![url("127.0.0.1")], tls(&ours, &client)].concat(), "into REDIS_TLS_SERVER_NAME"),
        ([vec![url("localhost")], tls(&theirs, &client)].concat(), "in REDIS_TLS_CACERT"),
        (
            [vec![url("127.0.0.1"), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=1".into()], tls(&theirs, &client)].concat(),
            "in REDIS_TLS_CACERT",
        ),
        (vec![url("localhost"), setting("REDIS_TLS_CACERT", &ours.file())], "does it want a REDIS_TLS_CLIENT_CERT"),
        ([vec![url("localhost")], tls(&ours, &theirs.sign("client", &["client"]))].concat(), "REDIS_TLS_CLIENT_CERT"),
    ] {
        assert_tells(&start(&settings), "tls", words).await;
    }
    // Plain text with TLS required, on either side.
    let plain = Redis::start();
    let (address, files) = (plain.tcp_address(), tls(&ours, &client));
    let settings = [vec![format!("REDIS_URL=rediss://{address}"), "REDIS_TIMEOUT=2s".into()], files].concat();
    assert_tells(&start(&settings), "tls", "the port does not use TLS").await;
    let settings = [format!("REDIS_URL={}", redis.tcp_address())];
    assert_tells(&start(&settings), "tls", "the port uses TLS: write rediss://").await;
}

#[tokio::test]
async fn certificates_that_change_are_those_of_the_next_connection_over_tls() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.crt");
    fs::copy(old.file(), &ca).unwrap();
    let mut redis = Redis::start_secure(&old, &old.sign("redis", &["localhost"]), &["--tls-auth-clients", "no"]);
    let port = redis.tcp_address().rsplit(':').next().unwrap().to_owned();
    let tollgate = start(&[format!("REDIS_URL=rediss://localhost:{port}"), setting("REDIS_TLS_CACERT", &ca)]);
    assert_decides(&tollgate).await;
    fs::write(&ca, "no certificate").unwrap();
    tollgate.must_log("changed certificates for redis are rejected, the previous ones stay in force");
    fs::copy(new.file(), &ca).unwrap();
    tollgate.must_log("new certificates are in force for connections to redis");
    assert_eq!(asks(&tollgate).await, Ok(()), "a connection that is there stays");
    redis.kill();
    let pair = new.sign("redis", &["localhost"]);
    let arguments = ["--port", "0", "--tls-port", &port, "--tls-cert-file", pair.cert.to_str().unwrap()];
    let files = ["--tls-key-file", pair.key.to_str().unwrap(), "--tls-ca-cert-file", ca.to_str().unwrap()];
    let arguments = [&arguments[..], &files, &["--tls-auth-clients", "no"]].concat();
    let _redis = Redis::start_at(&format!("127.0.0.1:{port}"), &arguments);
    assert_decides(&tollgate).await;
}

#[tokio::test]
async fn a_password_that_is_rotated_costs_no_answer() {
    let redis = Redis::start();
    let set = |password: &str| format!("ACL SETUSER toll on resetpass >{password} ~* +@all");
    redis.command::<()>(&set(PASSWORD)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let settings =
        [format!("REDIS_URL=redis://toll:@{}", redis.tcp_address()), setting("REDIS_AUTH_FILE", file.path())];
    let tollgate = start(&settings);
    assert_decides(&tollgate).await;

    // Both are valid for a while, as with issued tokens.
    redis.command::<()>(&format!("ACL SETUSER toll >{PASSWORD}-2")).await;
    redis.forget_calls();
    fs::write(&file, format!("{PASSWORD}-2\n")).unwrap();
    tollgate.must_log("a new password is in force for redis");
    wait_until("connections that are there make themselves known anew", || redis.calls_of("auth") >= 2);
    assert_eq!(asks(&tollgate).await, Ok(()));
    // A connection that only knows the old password would be closed with it.
    redis.command::<()>(&format!("ACL SETUSER toll <{PASSWORD}")).await;
    redis.command::<()>("CLIENT KILL TYPE normal").await;
    assert_decides(&tollgate).await;

    // A password that Redis does not know yet: existing connections continue.
    fs::write(&file, format!("toll:{PASSWORD}-3")).unwrap();
    tollgate.must_log("redis rejects the new password: an open connection keeps using the old one");
    assert_eq!(asks(&tollgate).await, Ok(()));
    assert_eq!(tollgate.metric("tollgate_store_up"), 1.0);
    // An empty file during a change has no effect.
    fs::write(&file, "").unwrap();
    tollgate.must_log("a changed password for redis is rejected, the previous one stays in use");
    assert!(!format!("{:?}", tollgate.logs()).contains(PASSWORD), "a password is in the log");
}

#[tokio::test]
async fn where_a_name_leads_elsewhere_a_replica_of_it_is_given_up() {
    // A managed Redis fails over, and its name follows: the previous server continues as a replica.
    let (mut old, mut new) = (Redis::start(), Redis::start());
    let tollgate = start(&[format!("REDIS_URL={}", old.tcp_address())]);
    assert_decides(&tollgate).await;
    let (address, replica) = (old.tcp_address(), new.tcp_address());
    let (host, port) = replica.split_once(':').unwrap();
    old.command::<()>(&format!("REPLICAOF {host} {port}")).await;
    let series = "tollgate_store_down{cause=\"replica\"}";
    wait_until_async("the replica refuses", async || asks(&tollgate).await.is_err() && tollgate.metric(series) == 1.0)
        .await;
    // In the test, only the port identifies the server behind the name.
    old.kill();
    new.kill();
    let _new = Redis::start_at(&address, &[]);
    assert_decides(&tollgate).await;
}
