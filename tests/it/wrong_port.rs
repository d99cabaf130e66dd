//! `ask` and `health` at an address without Tollgate: they probe the address and suggest a correction.

use crate::support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use support::redis::Redis;
use support::tollgate::{self, Tollgate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
";

/// Returns the message of both commands for this address, which must be the same.
fn said_of(address: &str) -> String {
    said_within("20s", address)
}

/// The same where the time is up before anything answers.
fn said_within(timeout: &str, address: &str) -> String {
    let said = |arguments: &[&str]| {
        let place = ["--address", address, "--timeout", timeout];
        let output = tollgate::command().args(arguments).args(place).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let of_ask = said(&["ask", "--domain", "shop", "user=ann"]);
    assert_eq!(said(&["health"]), of_ask);
    of_ask
}

/// Starts a server that handles each connection this way, on a free port.
fn listener(treat: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(treat));
    port
}

/// Reads the request and sends this answer.
fn answer(mut connection: TcpStream, words: &[u8]) {
    let _ = connection.read(&mut [0; 1024]);
    let _ = connection.write_all(words);
}

#[test]
fn an_address_that_is_none_is_answered_with_the_right_one() {
    for (address, said) in [
        ("https://gate.example", "not host:port: write gate.example:8081"),
        ("redis://localhost:9000", "unknown scheme redis://: write localhost:9000"),
        ("localhost", "not host:port: write localhost:8081"),
        ("localhost:", "the port must be a whole number from 1 to 65535: write, for example, localhost:8081"),
        ("localhost:grpc", "the port must be a whole number from 1 to 65535: write, for example, localhost:8081"),
        ("localhost:99999", "the port must be a whole number from 1 to 65535: write, for example, localhost:8081"),
        ("localhost:8081/path", "not host:port: write localhost:8081"),
        ("::1", "not host:port: write [::1]:8081"),
        ("[::1]", "not host:port: write [::1]:8081"),
        ("8081", "not host:port: write localhost:8081"),
        ("", "write host:port, such as localhost:8081"),
        (":8081", "write host:port, such as localhost:8081"),
        ("a b:8081", "write host:port, such as localhost:8081"),
    ] {
        assert_eq!(said_of(address), format!("error: --address={address} (command line): {said}\n"));
    }
}

#[test]
fn an_address_may_be_a_url() {
    let tollgate = Tollgate::start(RULES, &["ADMIN_API=true", "ADMIN_TOKEN=a token of some length"]);
    let (grpc, http) = (tollgate.grpc_port, tollgate.http_port);
    let run = |words: &[&str], address: &str| {
        let mut command = crate::support::tollgate::command();
        command.args(words).args(["--address", address]).env("ADMIN_TOKEN", "a token of some length");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for scheme in ["", "http://", "grpc://"] {
        assert_eq!(run(&["health"], &format!("{scheme}localhost:{grpc}")), (Some(0), String::new()), "{scheme}");
        let (code, said) = run(&["top"], &format!("{scheme}localhost:{http}"));
        match scheme {
            "grpc://" => assert!(code == Some(1) && said.contains(&format!("write http://localhost:{http}")), "{said}"),
            _ => assert_eq!((code, &*said), (Some(0), "")),
        }
    }
    let (code, said) = run(&["health"], &format!("https://localhost:{grpc}"));
    assert!(code == Some(1) && said.contains("does not use TLS"), "a URL with https implies --tls: {said}");
    let (_, said) = run(&["bans"], "localhost");
    assert!(said.contains("write host:port, such as localhost:8080"), "{said}");
}

#[test]
fn the_http_port_of_tollgate_is_told_from_the_one_for_grpc() {
    let tollgate = Tollgate::start(RULES, &[]);
    let said = said_of(&format!("127.0.0.1:{}", tollgate.http_port));
    assert!(said.contains("speaks HTTP/1.1, not gRPC"), "{said}");
    assert!(said.contains("GRPC_PORT, 8081 unless it is set; for example --address 127.0.0.1:8081"), "{said}");
}

#[test]
fn redis_and_others_are_told_by_what_they_say() {
    let redis = Redis::start();
    let said = said_of(&redis.tcp_address());
    assert!(
        said.contains(&format!("{} is Redis, not Tollgate: for example --address 127.0.0.1:8081", redis.tcp_address()))
    );
    let locked = Redis::start_with(&["--requirepass", "x"]);
    assert!(said_of(&locked.tcp_address()).contains(" is Redis, not Tollgate"));
    let ssh = listener(|connection| answer(connection, b"SSH-2.0-OpenSSH_9.6\r\n"));
    let said = said_of(&format!("localhost:{ssh}"));
    assert!(said.contains("speaks another protocol than gRPC") && said.contains("\"SSH-2.0-OpenSSH_9.6\""), "{said}");
}

/// A TLS server of OpenSSL with a generated certificate.
struct Tls {
    server: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Tls {
    fn start(arguments: &[&str]) -> Tls {
        let folder = tempfile::tempdir().unwrap();
        let openssl = || {
            let mut command = Command::new("openssl");
            command.current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::null());
            command
        };
        let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"];
        let made = openssl().args(request).args(["-keyout", "key.pem", "-out", "cert.pem"]).status();
        assert!(made.expect("openssl is not installed").success());
        let server = ["s_server", "-accept", "127.0.0.1:0", "-key", "key.pem", "-cert", "cert.pem"];
        // It ends at the end of its input.
        let (input, output) = (Stdio::piped(), Stdio::piped());
        let mut server = openssl().args(server).args(arguments).stdin(input).stdout(output).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
        let place = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned)).expect("it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Tls { server, port: place.rsplit(':').next().unwrap().parse().unwrap(), _folder: folder }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn tls_is_told_whatever_its_version_and_however_it_answers_what_is_not_tls() {
    for version in ["-tls1_2", "-tls1_3"] {
        let tls = Tls::start(&[version]);
        let said = said_of(&format!("127.0.0.1:{}", tls.port));
        assert!(said.contains("uses TLS: write --tls"), "{version}: {said}");
    }
    // Like Go's servers.
    let https = listener(|mut connection| {
        let mut first = [0];
        let words: &[u8] = match connection.read(&mut first) {
            Ok(1) if first == [22] => &[21, 3, 1, 0, 2, 2, 40],
            _ => b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
        };
        let _ = connection.write_all(words);
    });
    assert!(said_of(&format!("localhost:{https}")).contains("uses TLS: write --tls"));
}

#[test]
fn where_nobody_is_or_nobody_speaks_that_is_said() {
    let free = Redis::stopped().tcp_address();
    assert!(said_of(&free).contains(&format!("connection to {free} refused: is the service running? see --address")));
    assert!(said_of("no-such-host.invalid:8081").contains("the host name no-such-host.invalid does not resolve"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = said_within("300ms", &silent.local_addr().unwrap().to_string());
    assert!(said.contains("accepts connections and sends nothing"), "{said}");
    let closes = listener(drop);
    let said = said_of(&format!("localhost:{closes}"));
    assert!(said.contains("closes connections without an answer"), "{said}");
}

/// Responds to a request in h2.
type Respond = h2::server::SendResponse<prost::bytes::Bytes>;

/// A server of HTTP/2 that answers every call in this way.
async fn http2(answer: impl Fn(Respond) + Clone + Send + 'static) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    answer(respond);
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_without_our_service_is_told_from_tollgate_and_so_is_one_that_is_only_late() {
    let other = http2(|mut respond| {
        let not_found = http::Response::builder().status(404).body(()).unwrap();
        let _ = respond.send_response(not_found, true);
    })
    .await;
    let said = tokio::task::spawn_blocking(move || said_of(&other)).await.unwrap();
    assert!(said.contains("speaks HTTP/2, but is not Tollgate: see --address"), "{said}");

    let late = http2(std::mem::forget).await;
    let said = tokio::task::spawn_blocking(move || said_within("1s", &late)).await.unwrap();
    assert!(said.contains("Timeout expired") && !said.contains("--address"), "{said}");
}
