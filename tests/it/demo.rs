//! `tollgate demo`: one command without files, and what it prints works as printed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::support::tollgate::{command, get, send};
use crate::support::wait_until;

/// A running demo, and what it has printed.
pub(crate) struct Demo {
    process: Child,
    rest: BufReader<std::process::ChildStdout>,
    /// The lines of commands to try.
    commands: Vec<String>,
    /// The link that signs in.
    pub(crate) link: String,
    pub(crate) http_port: u16,
    pub(crate) grpc_port: u16,
    pub(crate) token: String,
}

impl Demo {
    /// Starts one with these flags, on free ports.
    pub(crate) fn start(flags: &[&str]) -> Demo {
        let mut process = command()
            .args(["demo", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0"])
            .args(flags)
            // It would not start if it read these.
            .envs([("REDIS_URL", "127.0.0.1:1"), ("RULES", "/nowhere"), ("UNKNOWN_DOMAIN", "nonsense")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut rest = BufReader::new(process.stdout.take().unwrap());
        let (mut commands, mut link) = (Vec::new(), None);
        loop {
            let mut line = String::new();
            assert!(rest.read_line(&mut line).unwrap() > 0, "{commands:?}");
            let text = line.trim();
            match text.strip_prefix("Console ") {
                Some(url) => link = Some(url.trim().to_owned()),
                None if !commands.is_empty() && text.is_empty() => break,
                None if text.starts_with("export ") || !commands.is_empty() => commands.push(text.to_owned()),
                None => {}
            }
        }
        let link = link.unwrap();
        let (place, token) = link.split_once("/console#token=").unwrap();
        let http_port = place.rsplit(':').next().unwrap().parse().unwrap();
        let (_, ask) = commands[1].split_once("--address localhost:").unwrap();
        let grpc_port = ask.split(' ').next().unwrap().parse().unwrap();
        let token = token.to_owned();
        Demo { process, rest, commands, http_port, grpc_port, token, link }
    }

    /// Begins an adjustment.
    pub(crate) fn adjust(&self, adjustment: &str) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("authorization", &*bearer)];
        let (status, body) = send(self.http_port, "POST /adjustments", &headers, adjustment.as_bytes());
        assert_eq!(status, 201, "{body}");
    }

    fn admin(&self, path: &str) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token);
        send(self.http_port, &format!("GET {path}"), &[("authorization", &bearer)], b"")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_shows_denials_of_several_rules_and_what_it_prints_works() {
    let mut demo = Demo::start(&[]);
    for path in ["/rules", "/top", "/adjustments", "/what-if?domain=shop&rule=per-user&number=10"] {
        let (status, body) = demo.admin(path);
        assert_eq!(status, 200, "{path}: {body}");
    }
    let denying = || {
        let (_, metrics) = get(demo.http_port, "/metrics");
        let count = |line: &&str| {
            let is_denied = line.starts_with("tollgate_rule_requests_total{") && line.contains("\"over_limit\"");
            is_denied && !line.ends_with(" 0")
        };
        metrics.lines().filter(count).count()
    };
    wait_until("three rules deny", || denying() >= 3);
    wait_until("candidates are compared", || demo.admin("/candidates").1.contains("newly_"));

    let [export, ask, others @ ..] = &demo.commands[..] else { panic!("{:?}", demo.commands) };
    let run = |line: &str| {
        let done = Command::new("sh").args(["-c", &format!("{export}; {line}")]).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
        (done.status.code().unwrap(), said)
    };
    let asked: Vec<_> = (0..6).map(|_| run(ask).0).collect();
    assert_eq!(asked, [0, 0, 0, 0, 0, 2]);
    let (status, explained) = run(&others[0]);
    assert_eq!(status, 2, "{explained}");
    assert!(explained.contains("config/rules/shop.yaml:"), "{explained}");
    for line in &others[1..] {
        let (status, said) = run(line);
        assert_eq!(status, 0, "{line}: {said}");
    }

    crate::support::signal(&demo.process, "INT");
    let mut last = String::new();
    demo.rest.read_to_string(&mut last).unwrap();
    assert!(demo.process.wait().unwrap().success());
    assert!(last.contains("The demo has ended: "), "{last}");
    let mut errors = String::new();
    demo.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(errors, "");
}

#[test]
fn a_port_in_use_is_an_error_that_names_the_flags() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let done = command().args(["demo", "--host", "127.0.0.1", "--grpc-port", "0", "--port", &port]).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains(&format!("127.0.0.1:{port}")) && said.contains("--port and --grpc-port"), "{said}");
}
