//! The terminals of a reader who follows a page step by step.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::demo::Demo;
use crate::support::envoy::Envoy;
use crate::support::redis::Redis;
use crate::support::tollgate::{self, BINARY, Tollgate};

/// A busy machine does not answer in the time that suits a page's reader.
const LONG_TIMEOUT: (&str, &str) = ("REDIS_TIMEOUT", "20s");

/// The project's folder as a reader has it, and what the page has started so far.
pub struct Terminal {
    folder: TempDir,
    tollgates: Vec<Tollgate>,
    demo: Option<Demo>,
    redis: Vec<Redis>,
    envoys: Vec<Envoy>,
    /// Exported variables: `NAME=value`.
    exported: Vec<String>,
    /// The ports that the page names, and those that are free here.
    ports: BTreeMap<u16, u16>,
}

impl Terminal {
    /// In a folder with all that pages point to, and with `tollgate` on the path.
    pub fn open() -> Terminal {
        let folder = tempfile::tempdir().unwrap();
        for part in ["config", "deploy"] {
            let copied = Command::new("cp").args(["-r", part]).arg(folder.path()).status().unwrap();
            assert!(copied.success());
        }
        for home in ["bin", "target/quick"] {
            fs::create_dir_all(folder.path().join(home)).unwrap();
            symlink(BINARY, folder.path().join(home).join("tollgate")).unwrap();
        }
        let (tollgates, redis, envoys) = (Vec::new(), Vec::new(), Vec::new());
        Terminal { folder, tollgates, demo: None, redis, envoys, exported: Vec::new(), ports: BTreeMap::new() }
    }

    /// Ends all processes and resets variables.
    pub fn end_services(&mut self) {
        self.envoys.clear();
        self.tollgates.clear();
        self.demo = None;
        self.redis.clear();
        self.exported.clear();
        self.ports.clear();
    }

    /// Saves a file.
    pub fn save(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs a command to its end, or starts it if it is a service: then nothing is printed.
    pub fn run(&mut self, command: &str) -> Option<Output> {
        let words: Vec<&str> = command.split('#').next().unwrap().split_whitespace().collect();
        let is_setting = |word: &&&str| word.split_once('=').is_some_and(|(name, _)| name == name.to_uppercase());
        let settings = words.iter().take_while(is_setting).count();
        let (settings, words) = words.split_at(settings);
        match words {
            ["tollgate" | "target/quick/tollgate", "demo", arguments @ ..] => self.demonstrate(arguments),
            ["make", "run"] => self.serve(settings, &["--rules", "config/rules"]),
            ["tollgate" | "target/quick/tollgate", arguments @ ..] if serves(arguments) => {
                self.serve(settings, arguments);
            }
            ["export", settings @ ..] => {
                let settings: Vec<_> = settings.iter().map(|setting| self.with_real_ports(setting)).collect();
                self.exported.extend(settings);
            }
            ["redis-server", arguments @ ..] => self.store(arguments),
            ["envoy", "-c", file] => self.front(file),
            _ => return Some(self.shell(command)),
        }
        None
    }

    fn serve(&mut self, settings: &[&str], arguments: &[&str]) {
        let mut ports = [("GRPC_PORT", 8081), ("PORT", 8080)];
        let mut others = Vec::new();
        for setting in settings {
            let (name, value) = setting.split_once('=').unwrap();
            match ports.iter_mut().find(|(port, _)| *port == name) {
                Some((_, port)) => *port = value.parse().unwrap(),
                None => others.push(self.with_real_ports(setting)),
            }
        }
        let [(_, grpc), (_, http)] = ports;
        let mut command = tollgate::command();
        command.args(arguments).current_dir(self.folder.path()).env(LONG_TIMEOUT.0, LONG_TIMEOUT.1);
        command.envs(self.exported.iter().filter_map(|setting| setting.split_once('=')));
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let tollgate = Tollgate::start_by(command, &others);
        self.take(grpc, tollgate.grpc_port);
        self.take(http, tollgate.http_port);
        self.tollgates.push(tollgate);
    }

    /// The demo takes the ports of the service: pages say to stop that first.
    fn demonstrate(&mut self, arguments: &[&str]) {
        self.tollgates.clear();
        let demo = Demo::start(arguments);
        self.ports.extend([(8080, demo.http_port), (8081, demo.grpc_port)]);
        self.demo = Some(demo);
    }

    fn store(&mut self, arguments: &[&str]) {
        assert!(matches!(arguments, [] | ["--save", "\"\""]), "{arguments:?}");
        let redis = Redis::start();
        self.take(6379, redis.tcp_address().rsplit(':').next().unwrap().parse().unwrap());
        self.redis.push(redis);
    }

    fn front(&mut self, file: &str) {
        let tollgate = self.ports.get(&8081).expect("Envoy asks a service that the page has started");
        let envoy = Envoy::start_from(file, *tollgate, &[Envoy::LONG_TIMEOUT]);
        self.take(10000, envoy.port);
        self.envoys.push(envoy);
    }

    /// A second service on a port that is taken would end at once.
    fn take(&mut self, named: u16, real: u16) {
        assert!(self.ports.insert(named, real).is_none(), "two services on {named}: say `fresh`, and that one ends");
    }

    fn shell(&self, command: &str) -> Output {
        let path = format!("{}:{}", self.folder.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("timeout");
        shell.args(["60", "bash", "-c", &format!("{{ {}\n}} 2>&1", self.with_real_ports(command))]);
        shell.env_clear().env("PATH", path).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env(LONG_TIMEOUT.0, LONG_TIMEOUT.1);
        shell.envs(self.exported.iter().filter_map(|setting| setting.split_once('=')));
        if let Some(port) = self.ports.get(&8081) {
            shell.env("GRPC_PORT", port.to_string());
        }
        shell.output().unwrap()
    }

    fn with_real_ports(&self, text: &str) -> String {
        let real = |text: String, (named, real): (&u16, &u16)| {
            text.replace(&format!("localhost:{named}"), &format!("127.0.0.1:{real}"))
        };
        self.ports.iter().fold(text.to_owned(), real)
    }
}

/// Returns whether `tollgate` serves with these arguments, as it does without a command.
fn serves(arguments: &[&str]) -> bool {
    match arguments.first() {
        None | Some(&"serve") => true,
        Some(first) => first.starts_with("--") && *first != "--version" && *first != "--help",
    }
}
