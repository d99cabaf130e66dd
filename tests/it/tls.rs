//! TLS at the gRPC port: accepted clients, messages to rejected ones, and certificate reloads.

use crate::support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, SystemTime};

use support::certificates::{Authority, Pair};
use support::envoy::Envoy;
use support::http2;
use support::tollgate::{self, Tollgate};
use support::wait_until;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000000}
";

const YEAR: u64 = 365 * 24 * 60 * 60;

/// The name that proxies have.
const ENVOY: &str = "spiffe://cluster.local/ns/edge/sa/envoy";

/// A service by these settings.
fn start(settings: &[Vec<String>]) -> Tollgate {
    let settings: Vec<_> = settings.iter().flatten().map(String::as_str).collect();
    Tollgate::start(RULES, &settings)
}

fn setting(name: &str, path: &Path) -> Vec<String> {
    vec![format!("{name}={}", path.display())]
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Runs `tollgate ask` with these flags.
fn ask(tollgate: &Tollgate, flags: &[String]) -> Output {
    let address = format!("localhost:{}", tollgate.grpc_port);
    let question = ["ask", "--timeout", "20s", "--domain", "shop", "user=ann", "--address", &address];
    tollgate::command().args(question).args(flags).output().unwrap()
}

fn passes(tollgate: &Tollgate, flags: &[String]) {
    let output = ask(tollgate, flags);
    assert_eq!(output.status.code(), Some(0), "{flags:?}: {output:?}");
}

/// Returns the error message of a call without an answer.
fn refusal(tollgate: &Tollgate, flags: &[String]) -> String {
    let output = ask(tollgate, flags);
    assert_eq!(output.status.code(), Some(1), "{flags:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn ca(authority: &Authority) -> Vec<String> {
    vec!["--ca".into(), text(&authority.file())]
}

fn with(authority: &Authority, pair: &Pair) -> Vec<String> {
    [ca(authority), pair.flags().to_vec()].concat()
}

fn handshakes(tollgate: &Tollgate, outcome: &str) -> f64 {
    tollgate.metric(&format!("tollgate_tls_handshakes_total{{outcome=\"{outcome}\"}}"))
}

#[test]
fn only_the_given_authority_lets_clients_in_and_only_by_the_given_name() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = ours.sign("server", &["localhost"]);
    let required = setting("GRPC_CLIENT_TLS_CACERT", &ours.file());
    let names = vec![format!("GRPC_CLIENT_TLS_SAN=gate.example,{ENVOY}")];
    // An authority of the machine is none of clients.
    let machine = setting("SSL_CERT_FILE", &others.file());
    let tollgate = start(&[server.settings(), required, names, machine]);
    tollgate
        .must_log("the gRPC port speaks TLS, and accepts clients with a certificate signed by GRPC_CLIENT_TLS_CACERT=");

    passes(&tollgate, &with(&ours, &ours.sign("envoy", &[ENVOY])));
    passes(&tollgate, &with(&ours, &ours.sign("gate", &["other.example", "Gate.Example"])));
    let mut served = 2.0;
    assert_eq!(handshakes(&tollgate, "done"), served);
    for (pair, outcome, told) in [
        (
            None,
            "no_certificate",
            "the peer sent no certificate: give the client one that an authority in GRPC_CLIENT_TLS_CACERT",
        ),
        (Some(others.sign("envoy", &[ENVOY])), "untrusted", "an authority in GRPC_CLIENT_TLS_CACERT must have signed"),
        (
            Some(ours.sign_between("old", &[ENVOY], (-20, -10))),
            "expired",
            "its certificate has expired or is not valid yet",
        ),
        (Some(ours.sign_between("young", &[ENVOY], (10, 20))), "expired", ""),
        (
            Some(ours.sign("longer", &[&format!("{ENVOY}/more"), "*.gate.example"])),
            "wrong_name",
            "its names are spiffe://cluster.local/ns/edge/sa/envoy/more, *.gate.example, but it needs gate.example, \
             spiffe://cluster.local/ns/edge/sa/envoy: see GRPC_CLIENT_TLS_SAN",
        ),
        (Some(ours.sign("nameless", &[])), "wrong_name", ""),
    ] {
        let before = handshakes(&tollgate, outcome);
        let flags = pair.map_or_else(|| ca(&ours), |pair| with(&ours, &pair));
        let said = refusal(&tollgate, &flags);
        assert!(
            said.contains("the service requires a certificate from an authority that it trusts: --cert FILE"),
            "{said}"
        );
        // The client can end before the service has counted its handshake.
        wait_until(outcome, || handshakes(&tollgate, outcome) == before + 1.0);
        wait_until(told, || tollgate.logs().iter().any(|line| line["message"].as_str().unwrap().contains(told)));
    }
    passes(&tollgate, &with(&ours, &ours.sign("envoy", &[ENVOY])));
    served += 1.0;
    assert_eq!(handshakes(&tollgate, "done"), served);
}

#[test]
fn a_client_believes_only_whom_it_is_told_to_and_says_what_is_wrong() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let tollgate = start(&[ours.sign("server", &["localhost", "gate.example"]).settings()]);
    let plain = Tollgate::start(RULES, &[]);
    passes(&tollgate, &ca(&ours));
    let flag = |flag: &str, value: &str| vec![flag.to_owned(), value.to_owned()];
    passes(&tollgate, &[ca(&ours), flag("--server-name", "gate.example")].concat());
    passes(&tollgate, &["--grpc-use-tls".into(), "--grpc-server-ca-file".into(), text(&ours.file())]);
    for (service, flags, told) in [
        (&tollgate, ca(&others), "name the authority that signed it, or the certificate itself: --ca FILE"),
        (&tollgate, [ca(&ours), flag("--server-name", "a.example")].concat(), "--server-name NAME"),
        (&tollgate, vec![], "uses TLS: write --tls"),
        (&plain, ca(&ours), "does not use TLS"),
        (&tollgate, flag("--ca", "nowhere.pem"), "--ca=nowhere.pem cannot be read: "),
        (&tollgate, flag("--cert", "a.pem"), "--key <FILE>"),
    ] {
        let said = refusal(service, &flags);
        assert!(said.contains(told), "{flags:?}: {said}");
    }
    // The authorities of the machine are trusted where none is named.
    let address = format!("localhost:{}", tollgate.grpc_port);
    let health = |authority: &Authority| {
        let mut command = tollgate::command();
        command.env("SSL_CERT_FILE", authority.file()).args(["health", "--tls", "--timeout", "20s"]);
        command.args(["--address", &address]).output().unwrap().status.code()
    };
    assert_eq!((health(&ours), health(&others)), (Some(0), Some(1)));
}

#[test]
fn a_certificate_that_openssl_signs_with_its_own_key_is_trusted_where_exactly_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let make = |file: &str, more: &[&str]| -> Pair {
        let path = |end: &str| folder.path().join(format!("{file}.{end}"));
        let pair = Pair { cert: path("crt"), key: path("key") };
        let mut openssl = std::process::Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.arg("-keyout").arg(&pair.key).arg("-out").arg(&pair.cert).args(["-subj", "/CN=localhost"]).args(more);
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        pair
    };
    let ca = |pair: &Pair| vec!["--ca".to_owned(), text(&pair.cert)];
    let name = ["-addext", "subjectAltName=DNS:localhost"];
    let leaf = [&name[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat();
    let (authority, leaf, other) = (make("authority", &name), make("leaf", &leaf), make("other", &name));
    for own in [&authority, &leaf] {
        let tollgate = start(&[own.settings()]);
        passes(&tollgate, &ca(own));
        let said = refusal(&tollgate, &ca(&other));
        assert!(said.contains("not trusted") && said.contains("certificate itself: --ca FILE"), "{said}");
        let wrong_name = [ca(own), vec!["--server-name".to_owned(), "a.example".to_owned()]].concat();
        let said = [said, refusal(&tollgate, &wrong_name)].join("\n");
        assert!(said.contains("--server-name NAME"), "{said}");
        assert!(
            !said.contains("OtherError") && !said.contains("CaUsedAs") && !said.contains("UnknownIssuer"),
            "{said}"
        );
    }
    let nameless = make("nameless", &[]);
    let said = refusal(&start(&[nameless.settings()]), &ca(&nameless));
    let made = "no name (no subjectAltName): openssl req -x509 -addext 'subjectAltName=DNS:localhost' makes one";
    assert!(said.contains(made) && !said.contains("--server-name"), "{said}");
    // A client's certificate as well.
    let tollgate = start(&[leaf.settings(), setting("GRPC_CLIENT_TLS_CACERT", &authority.cert)]);
    let shows =
        |pair: &Pair| [ca(&leaf), vec!["--cert".into(), text(&pair.cert), "--key".into(), text(&pair.key)]].concat();
    passes(&tollgate, &shows(&authority));
    refusal(&tollgate, &shows(&other));
}

#[test]
fn health_on_the_same_machine_needs_nothing_but_the_settings_of_the_service() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let server = ours.sign("server", &["gate.example"]);
    let tollgate = start(&[server.settings(), setting("GRPC_CLIENT_TLS_CACERT", &ours.file())]);
    let health = |pair: &Pair| {
        let settings = pair.settings();
        let settings = settings.iter().map(|setting| setting.split_once('=').unwrap());
        let mut command = tollgate::command();
        command.envs(settings).env("GRPC_PORT", tollgate.grpc_port.to_string());
        command.args(["health", "--timeout", "20s"]).output().unwrap()
    };
    let output = health(&server);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = health(&others.sign("server", &["gate.example"]));
    assert_eq!(output.status.code(), Some(1), "that is another: {output:?}");
}

#[test]
fn the_authority_of_envoy_gateway_locks_nobody_out_and_tells_who_would_be() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let observed = setting("GRPC_SERVER_TLS_CA_CERT", &ours.file());
    let tollgate = start(&[ours.sign("server", &["localhost"]).settings(), observed]);
    tollgate.must_log("the gRPC port speaks TLS, and accepts clients without a certificate, too");
    passes(&tollgate, &with(&ours, &ours.sign("envoy", &[ENVOY])));
    let unverified =
        |what: &str| tollgate.metric(&format!("tollgate_tls_unverified_clients_total{{certificate=\"{what}\"}}"));
    assert_eq!((unverified("none"), unverified("wrong")), (0.0, 0.0));
    passes(&tollgate, &ca(&ours));
    passes(&tollgate, &with(&ours, &others.sign("envoy", &[ENVOY])));
    assert_eq!((unverified("none"), unverified("wrong")), (1.0, 1.0));
    tollgate.must_log("GRPC_CLIENT_TLS_CACERT would reject this client");

    // envoyproxy/ratelimit never looks whether it is there.
    let missing = setting("GRPC_SERVER_TLS_CA_CERT", Path::new("nowhere.crt"));
    let tollgate = start(&[ours.sign("server", &["localhost"]).settings(), missing]);
    passes(&tollgate, &ca(&ours));
    tollgate.must_log("GRPC_SERVER_TLS_CA_CERT=nowhere.crt cannot be read: ");
}

#[test]
fn certificates_are_exchanged_when_their_files_change_and_bad_ones_are_refused() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name);
    let put = |pair: &Pair| {
        fs::copy(&pair.cert, file("tls.crt")).unwrap();
        fs::copy(&pair.key, file("tls.key")).unwrap();
    };
    put(&first.sign("server", &["localhost"]));
    let tollgate = start(&[Pair { cert: file("tls.crt"), key: file("tls.key") }.settings()]);
    let reloads = |result: &str| tollgate.metric(&format!("tollgate_tls_reloads_total{{result=\"{result}\"}}"));
    let expiry = || tollgate.metric("tollgate_tls_certificate_expiry_timestamp_seconds{certificate=\"server\"}");
    passes(&tollgate, &ca(&first));
    let first_expiry = expiry();
    let in_a_year = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + Duration::from_secs(YEAR);
    assert!((first_expiry - in_a_year.as_secs_f64()).abs() < 600.0, "{first_expiry}");

    put(&second.sign_between("server", &["localhost"], (-1, 100)));
    wait_until("the second is in force", || reloads("success") == 1.0);
    passes(&tollgate, &ca(&second));
    refusal(&tollgate, &ca(&first));
    assert!(expiry() < first_expiry);

    for (bad, told) in [
        ("mismatch", "is not the key of the first certificate in GRPC_SERVER_TLS_CERT="),
        ("expired", "has a certificate that expired "),
        ("young", "has a certificate that is not valid yet"),
        ("damaged", "has no certificate: PEM with"),
        ("gone", "cannot be read: "),
    ] {
        let before = reloads("error");
        match bad {
            "mismatch" => drop(fs::copy(first.sign("other", &["localhost"]).key, file("tls.key")).unwrap()),
            "expired" => put(&second.sign_between("old", &["localhost"], (-20, -10))),
            "young" => put(&second.sign_between("young", &["localhost"], (10, 20))),
            "damaged" => fs::write(file("tls.crt"), "not yet").unwrap(),
            _ => fs::remove_file(file("tls.crt")).unwrap(),
        }
        wait_until(bad, || reloads("error") > before);
        wait_until(told, || {
            tollgate.logs().iter().any(|line| {
                let line = line["message"].as_str().unwrap();
                line.starts_with("changed certificates are rejected") && line.contains(told)
            })
        });
        passes(&tollgate, &ca(&second));
    }
    put(&first.sign("server", &["localhost"]));
    wait_until("the first is back", || reloads("success") == 2.0);
    passes(&tollgate, &ca(&first));
    let key = fs::read_to_string(file("tls.key")).unwrap();
    assert!(!format!("{:?}", tollgate.logs()).contains(key.lines().nth(1).unwrap()), "no key is ever told");
}

#[cfg(unix)]
#[test]
fn the_swap_of_a_kubernetes_secret_exchanges_certificate_key_and_authority_at_once() {
    use std::os::unix::fs::symlink;

    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let place = tempfile::tempdir().unwrap();
    let version = |name: &str, authority: &Authority| {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        let pair = authority.sign("server", &["localhost"]);
        fs::copy(pair.cert, folder.join("tls.crt")).unwrap();
        fs::copy(pair.key, folder.join("tls.key")).unwrap();
        fs::copy(authority.file(), folder.join("ca.crt")).unwrap();
    };
    version("..1", &first);
    version("..2", &second);
    symlink("..1", place.path().join("..data")).unwrap();
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        symlink(format!("..data/{name}"), place.path().join(name)).unwrap();
    }
    let pair = Pair { cert: place.path().join("tls.crt"), key: place.path().join("tls.key") };
    let tollgate = start(&[pair.settings(), setting("GRPC_CLIENT_TLS_CACERT", &place.path().join("ca.crt"))]);
    passes(&tollgate, &with(&first, &first.sign("envoy", &[ENVOY])));

    symlink("..2", place.path().join("..next")).unwrap();
    fs::rename(place.path().join("..next"), place.path().join("..data")).unwrap();
    let success = "tollgate_tls_reloads_total{result=\"success\"}";
    wait_until("the second is in force", || tollgate.metric(success) == 1.0);
    passes(&tollgate, &with(&second, &second.sign("envoy", &[ENVOY])));
    refusal(&tollgate, &with(&second, &first.sign("envoy", &[ENVOY])));
}

#[test]
fn what_cannot_be_is_told_at_the_start_with_what_would_be_right() {
    let ours = Authority::new("ours");
    let (server, other) = (ours.sign("server", &["localhost"]), ours.sign("other", &["localhost"]));
    let write = |name: &str, text: &[u8]| {
        let path = ours.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let der = write("der.crt", &[0x30, 0x82, 1, 2]);
    let locked =
        write("locked.key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let rules = write("rules.yaml", RULES.as_bytes());
    let (cert, key) = (text(&server.cert), text(&server.key));
    let said = |settings: &[(&str, &str)]| {
        let mut command = tollgate::command();
        command.env("RULES", &rules).env("LOG_LEVEL", "error").envs(settings.iter().copied());
        let output = command.envs([("GRPC_PORT", "0"), ("PORT", "0")]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{settings:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let private_text = fs::read_to_string(&server.key).unwrap();
    let secret = private_text.lines().nth(1).unwrap();
    const ON: (&str, &str) = ("GRPC_SERVER_USE_TLS", "true");
    let (chain, private) = (("GRPC_SERVER_TLS_CERT", &*cert), ("GRPC_SERVER_TLS_KEY", &*key));
    let (der, locked, foreign) = (text(&der), text(&locked), text(&other.key));
    for (settings, told) in [
        (&[ON][..], "GRPC_SERVER_USE_TLS=true (environment): needs GRPC_SERVER_TLS_CERT"),
        (&[ON, chain], "GRPC_SERVER_USE_TLS=true (environment): needs GRPC_SERVER_TLS_KEY"),
        (&[ON, chain, private, ("GRPC_CLIENT_TLS_SAN", "a")], "GRPC_CLIENT_TLS_SAN=a (environment): needs GRPC_CLIENT"),
        (&[ON, chain, private, ("GRPC_CLIENT_TLS_SAN", "CN=a")], "write a DNS name, an address, or a URI"),
        (&[ON, chain, ("GRPC_SERVER_TLS_KEY", &foreign)], "is not the key of the first certificate in GRPC_"),
        (&[ON, chain, ("GRPC_SERVER_TLS_KEY", &locked)], "has a key with a passphrase"),
        (&[ON, chain, ("GRPC_SERVER_TLS_KEY", &cert)], "has no private key"),
        (&[ON, ("GRPC_SERVER_TLS_CERT", &key), private], "has a private key, and no certificate"),
        (&[ON, ("GRPC_SERVER_TLS_CERT", &der), private], "perhaps DER"),
        (&[ON, chain, private, ("GRPC_CLIENT_TLS_CACERT", &key)], "GRPC_CLIENT_TLS_CACERT="),
    ] {
        let said = said(settings);
        assert!(said.contains(told), "{settings:?}: {said}");
        assert!(!said.contains(secret), "{said}");
    }
    let both = said(&[ON, ("GRPC_SERVER_TLS_CERT", "a.crt"), ("GRPC_SERVER_TLS_KEY", "a.key")]);
    assert!(both.contains("GRPC_SERVER_TLS_CERT=a.crt cannot be read") && both.contains("GRPC_SERVER_TLS_KEY=a.key"));

    // Settings without effect are reported but do not prevent the start; neither do certificates that clients reject,
    // because there may be no others.
    let idle = start(&[vec![format!("GRPC_SERVER_TLS_CERT={cert}"), "GRPC_CLIENT_TLS_SAN=a".into()]]);
    idle.must_log(&format!("GRPC_SERVER_TLS_CERT={cert} (environment) does nothing: GRPC_SERVER_USE_TLS is off"));
    idle.must_log("GRPC_CLIENT_TLS_SAN=a (environment) does nothing");
    let expired = start(&[ours.sign_between("old", &["localhost"], (-20, -10)).settings()]);
    let told = expired.must_log("the certificate of GRPC_SERVER_TLS_CERT=")["message"].to_string();
    assert!(told.contains("expired ") && told.contains(" ago: replace the file"), "{told}");
}

#[test]
fn a_certificate_that_ends_soon_is_warned_of() {
    let ours = Authority::new("ours");
    let tollgate = start(&[ours.sign_between("server", &["localhost"], (-80, 5)).settings()]);
    let told = tollgate.must_log("the certificate of GRPC_SERVER_TLS_CERT=");
    assert_eq!(told["level"], "WARN");
    assert!(told["message"].as_str().unwrap().contains(" expires in 4days "), "{told}");
    passes(&tollgate, &ca(&ours));
}

#[test]
fn who_speaks_the_wrong_one_of_two_is_told_of() {
    let ours = Authority::new("ours");
    let tollgate = start(&[ours.sign("server", &["localhost"]).settings()]);
    let mut plain = http2::open(tollgate.grpc_port, &[]);
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(&[0, 0]), "no frame of HTTP/2: {said:?}");
    let told = tollgate.must_log("TLS handshake with a gRPC client failed: the peer does not use TLS");
    assert!(told["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{told}");
    assert_eq!(handshakes(&tollgate, "plain_text"), 1.0);

    let tollgate = Tollgate::start(RULES, &[]);
    let mut secret = TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
    secret.write_all(&[22, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3]).unwrap();
    tollgate.must_log("a client uses TLS at the gRPC port, which does not: set GRPC_SERVER_USE_TLS");
}

#[test]
fn a_crowd_that_never_ends_its_handshake_keeps_nobody_out_and_does_not_hold_up_the_end() {
    let ours = Authority::new("ours");
    let most = vec!["GRPC_MAX_CONNECTIONS=40".into(), "WORKER_THREADS=1".into()];
    let mut tollgate = start(&[ours.sign("server", &["localhost"]).settings(), most]);
    let silent: Vec<_> = (0..40)
        .map(|turn| {
            let mut connection = TcpStream::connect(("127.0.0.1", tollgate.grpc_port)).unwrap();
            // Some say nothing, and some begin.
            connection.write_all(&[22, 3, 1, 0, 47, 1, 0, 0, 43][..turn % 10]).unwrap();
            connection
        })
        .collect();
    wait_until("the oldest makes room", || ask(&tollgate, &ca(&ours)).status.success());
    let start = std::time::Instant::now();
    tollgate.signal("TERM");
    assert_eq!(tollgate.wait().code(), Some(0));
    tollgate.must_log("all requests are answered");
    assert!(start.elapsed() < support::SOON, "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_real_envoy_asks_over_mutual_tls() {
    let ours = Authority::new("ours");
    let required = setting("GRPC_CLIENT_TLS_CACERT", &ours.file());
    let server = ours.sign("server", &["tollgate.example"]);
    let rules = RULES.replace("1000000", "2");
    let settings = [server.settings(), required, vec![format!("GRPC_CLIENT_TLS_SAN={ENVOY}")]].concat();
    let tollgate = Tollgate::start(&rules, &settings.iter().map(String::as_str).collect::<Vec<_>>());
    let proxy = ours.sign("envoy", &[ENVOY]);
    let transport = fs::read_to_string("deploy/tls/transport_socket.yaml")
        .unwrap()
        .replace("/certs/tls.crt", &text(&proxy.cert))
        .replace("/certs/tls.key", &text(&proxy.key))
        .replace("/certs/ca.crt", &text(&ours.file()));
    let transport: String = transport.lines().map(|line| format!("      {line}\n")).collect();
    let cluster = "      type: STRICT_DNS\n";
    let changes = [Envoy::LONG_TIMEOUT, (cluster, &format!("{transport}{cluster}"))];
    let envoy = Envoy::start_with(tollgate.grpc_port, &changes);
    // It asks even before its first connection is established.
    wait_until("envoy is answered", || envoy.get_as("ann").is_decided());
    wait_until("ann is limited", || envoy.get_as("ann").status == 429);
    assert!(handshakes(&tollgate, "done") >= 1.0);
}
