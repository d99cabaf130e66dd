//! A server under test, its Redis, and where its statistics go.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::case::{HttpPort, Sink};
use super::http;
use super::sink::Collected;
use crate::support::drop_in::{self, DropIn, Ended};
use crate::support::redis::Redis;

/// Parameters of a server.
pub struct Given<'a> {
    pub binary: &'a Path,
    pub settings: &'a BTreeMap<String, String>,
    pub sink: Sink,
    /// By their paths in the folder of rules.
    pub rules: &'a BTreeMap<String, String>,
}

/// A server under test.
pub struct Server {
    pub process: DropIn,
    pub redis: Redis,
    pub statistics: Collected,
}

impl Server {
    /// Starts one, and waits until it serves.
    pub fn start(given: &Given<'_>) -> Result<Server, Ended> {
        let (redis, statistics) = (Redis::start(), Collected::new(given.sink));
        // The only algorithm of `envoyproxy/ratelimit`.
        let mut settings = vec![("DEFAULT_ALGORITHM".to_owned(), "fixed_window".to_owned())];
        settings.extend(statistics.settings().into_iter().map(|(name, value)| (name.to_owned(), value)));
        settings.extend(given.settings.clone());
        let rules: Vec<_> = given.rules.clone().into_iter().collect();
        let command = || {
            let mut command = Command::new(given.binary);
            command.env_clear();
            command
        };
        let given = drop_in::Given { command: &command, settings: &settings, rules: &rules, redis: &redis };
        let process = DropIn::start(&given)?;
        Ok(Server { process, redis, statistics })
    }

    /// Returns the address of gRPC.
    pub fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.process.ports.grpc)
    }

    /// The answer to an HTTP request.
    pub fn http(&self, port: HttpPort, request: &http::Request<'_>) -> Result<http::Answer, String> {
        let ports = self.process.ports;
        let port = match port {
            HttpPort::Http => ports.http,
            HttpPort::Debug => ports.debug,
            HttpPort::Prometheus => ports.prometheus,
        };
        http::ask(port, request)
    }
}
