//! Client of the HTTP port of a running service, as its administrator.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::engine::descriptor::{self, Entry, Override, Unit};
use crate::engine::rules::report::{nearest, quoted};
use crate::ledger::answer::{UsageAnswer, Wanted};
use crate::ledger::statement::{Statement, StatementOptions};
use crate::probe::{self, Found};
use crate::shared::fleet::FleetReport;
use crate::survey::MergedTop;

/// Longest answer of a service that is read.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Longest log of requests that is read.
const MOST_LOG_BYTES: usize = 512 * 1024 * 1024;

/// Most names that are suggested.
const NAMED: usize = 10;

/// Most attempts to read an answer of several pages. The service may ask to start again.
const BEGINNINGS: usize = 5;

/// The service to ask, and the administrator's token.
#[derive(Args)]
pub(crate) struct Administered {
    /// Address of the service's HTTP port: HOST:PORT, or a URL such as http://HOST:PORT. Unset: this machine, at PORT
    /// (default 8080).
    #[arg(
        long,
        short,
        value_name = "HOST:PORT",
        default_value_t = this_machine(),
        hide_default_value = true,
        value_parser = http_address
    )]
    pub(crate) address: String,

    /// The service's ADMIN_TOKEN or ADMIN_READ_TOKEN.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// Longest wait for the service.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

impl Administered {
    /// Returns the top keys for a query of `/top`.
    ///
    /// # Errors
    /// As those of [`AdminPort::get`]; also fails if the service has no such path.
    pub(crate) async fn top(&self, query: &[(&str, &str)]) -> anyhow::Result<MergedTop> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        match self.port().get(&format!("/top?{query}")).await? {
            Some(answer) => Ok(answer),
            None => bail!(
                "{} does not serve the top keys: start the service with ADMIN_API=true and TOP_KEYS=true",
                self.address
            ),
        }
    }

    /// Returns how a filter misses the rules with hits in the last minutes, with the nearest name; `None` if it
    /// matches one of them, or if there is no filter.
    ///
    /// # Errors
    /// As those of [`top`](Self::top).
    pub(crate) async fn missed(&self, domain: Option<&str>, rule: Option<&str>) -> anyhow::Result<Option<String>> {
        if domain.is_none() && rule.is_none() {
            return Ok(None);
        }
        let keys = self.top(&[("by", "hits"), ("n", "1000")]).await?.keys;
        Ok(missed(keys.iter().map(|key| (&*key.key.domain, &*key.key.rule)), domain, rule))
    }

    /// Reads all usage that passes the filter.
    ///
    /// # Errors
    /// As those of [`AdminPort::get`]; also fails if the service has no such path, or if its Redis changes during each
    /// attempt.
    pub(crate) async fn usage(&self, wanted: &Wanted, options: &StatementOptions) -> anyhow::Result<Statement> {
        for _ in 1..BEGINNINGS {
            match self.usage_once(wanted, options).await {
                Err(error) if error.is::<BeginAgain>() => {}
                told => return told,
            }
        }
        self.usage_once(wanted, options).await
    }

    async fn usage_once(&self, wanted: &Wanted, options: &StatementOptions) -> anyhow::Result<Statement> {
        let (port, mut statement, mut cursor) = (self.port(), Statement::new(options.clone()), None);
        loop {
            let (from, to) = (wanted.from.to_string(), wanted.to.to_string());
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("from", &from).append_pair("to", &to);
            let given = [("domain", &wanted.domain), ("rule", &wanted.rule), ("cursor", &cursor)];
            for (name, value) in given {
                query.extend_pairs(value.iter().map(|value| (name, value)));
            }
            query.extend_pairs(wanted.is_exact.then_some(("exact", "true")));
            query.extend_pairs(wanted.entries.iter().map(|(key, value)| ("key", format!("{key}={value}"))));
            let Some(answer) = port.get::<UsageAnswer>(&format!("/usage?{}", query.finish())).await? else {
                bail!("{} does not serve usage: start the service with ADMIN_API=true", self.address);
            };
            cursor.clone_from(&answer.cursor);
            statement.add(answer);
            if cursor.is_none() {
                return Ok(statement);
            }
        }
    }

    /// Returns the instances that share the service's store.
    ///
    /// # Errors
    /// As those of [`AdminPort::get`]; also fails if the service has no such path.
    pub(crate) async fn replicas(&self) -> anyhow::Result<FleetReport> {
        match self.port().get("/replicas").await? {
            Some(report) => Ok(report),
            None => bail!("{} does not list its instances: start the service with ADMIN_API=true", self.address),
        }
    }

    /// Returns its HTTP port.
    pub(crate) fn port(&self) -> AdminPort<'_> {
        AdminPort { address: &self.address, token: self.admin_token.as_deref(), timeout: self.timeout }
    }
}

/// A running service to ask in place of Redis and files.
#[derive(Args)]
pub(crate) struct Service {
    /// Ask the service with this HTTP port, in place of Redis and rules files: HOST:PORT, or a URL such as
    /// http://localhost:8080. Needs ADMIN_API=true at the service, and a token here.
    #[arg(long, short, value_name = "HOST:PORT", value_parser = http_address)]
    address: Option<String>,

    /// The service's ADMIN_TOKEN, ADMIN_READ_TOKEN (for what changes nothing), or a token of its ADMIN_TOKENS_FILE.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// Longest wait for the service.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

impl Service {
    /// Returns whether a service is asked.
    pub(crate) fn is_given(&self) -> bool {
        self.address.is_some()
    }

    /// Returns its HTTP port, if a service is asked.
    pub(crate) fn port(&self) -> Option<AdminPort<'_>> {
        let address = self.address.as_deref()?;
        Some(AdminPort { address, token: self.admin_token.as_deref(), timeout: self.timeout })
    }
}

/// Returns the address of a service on this machine: commands in a pod have the settings of the service.
fn this_machine() -> String {
    let port = std::env::var("PORT").ok().and_then(|port| port.parse::<u16>().ok());
    format!("http://localhost:{}", port.unwrap_or(8080))
}

/// Returns the address if it can be that of an HTTP port; if not, says what to write instead.
pub(crate) fn http_address(address: &str) -> Result<String, String> {
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    let place = rest.strip_suffix('/').unwrap_or(rest);
    let port = place.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    match (scheme, port) {
        ("https", _) => Err(format!("the service's HTTP port does not use TLS: write http://{place}")),
        ("http", Some((host, _))) if !host.is_empty() && !place.contains('/') => Ok(address.to_owned()),
        (_, Some((host, port))) if !host.is_empty() && !place.contains('/') => {
            Err(format!("unknown scheme {scheme}://: write http://{host}:{port}"))
        }
        _ => Err("write host:port, such as localhost:8080".to_owned()),
    }
}

/// Returns the query with which the service is asked about these descriptors.
pub(crate) fn question(domain: &str, limit: Option<Override>, descriptors: &[Vec<Entry>]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("domain", domain);
    if let Some((Override { number, .. }, (unit, multiplier))) =
        limit.and_then(|limit| Some((limit, Unit::multiple_of(limit.period)?)))
    {
        query.append_pair("@limit", &format!("{number}/{multiplier}{}", unit.name()));
    }
    for (index, entries) in descriptors.iter().enumerate() {
        if index > 0 {
            query.append_pair("+", "");
        }
        query.extend_pairs(entries.iter().map(|Entry { key, value }| (key, value)));
    }
    query.finish()
}

/// Returns how a filter misses these rules, each with its domain; `None` if it matches one.
pub(crate) fn missed<'n>(
    names: impl Iterator<Item = (&'n str, &'n str)>,
    domain: Option<&str>,
    rule: Option<&str>,
) -> Option<String> {
    let names: BTreeSet<_> = names.collect();
    let domains: BTreeSet<_> = names.iter().map(|(domain, _)| *domain).collect();
    let rules = names.iter().filter(|(of, _)| domain.is_none_or(|domain| domain == *of)).map(|(_, rule)| *rule);
    let rules: BTreeSet<_> = rules.collect();
    let (what, given, known) = match (domain, rule) {
        (Some(domain), _) if !domains.contains(domain) => ("domain", domain, domains),
        (_, Some(rule)) if !rules.contains(rule) => ("rule", rule, rules),
        _ => return None,
    };
    let known: Vec<&str> = known.into_iter().collect();
    let shown = known.iter().take(NAMED).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    Some(match nearest(given, &known) {
        Some(near) => format!("{what} {} has no hits: did you mean {}?", quoted(given), quoted(near)),
        None if known.is_empty() => format!("{what} {} has no hits", quoted(given)),
        None if known.len() > NAMED => format!("{what} {} has no hits: there are {shown}, ...", quoted(given)),
        None => format!("{what} {} has no hits: there are {shown}", quoted(given)),
    })
}

/// Error: the pages read so far are no longer valid. The text is the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BeginAgain(String);

/// The HTTP port of a service.
pub(crate) struct AdminPort<'a> {
    /// `http://host:port`.
    pub(crate) address: &'a str,
    pub(crate) token: Option<&'a str>,
    /// Time within which it must answer.
    pub(crate) timeout: Duration,
}

impl AdminPort<'_> {
    /// Returns the requests that all instances have recorded, as lines for `tollgate replay`.
    ///
    /// # Errors
    /// As those of [`AdminPort::get`]; also fails if the service records no requests.
    pub(crate) async fn recorded_requests(&self) -> anyhow::Result<Bytes> {
        match self.body("/what-if/log", MOST_LOG_BYTES).await? {
            Some(log) => Ok(log),
            None => bail!(
                "{} records no requests: start the service with ADMIN_API=true, and without WHAT_IF_REQUESTS=0",
                self.address
            ),
        }
    }

    /// Returns the answer at this path; `None` if the service has no such path.
    ///
    /// # Errors
    /// Fails if the service does not answer, requires another token, or rejects the request.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        let Some(body) = self.body(path, MOST_BYTES).await? else { return Ok(None) };
        serde_json::from_slice(&body)
            .map(Some)
            .with_context(|| format!("{} sent a response that this version of the command cannot read", self.address))
    }

    /// Returns the answer to a change, or to a question whose refusal is an error.
    ///
    /// # Errors
    /// Fails if the service does not answer, requires another token, or refuses, with its reason.
    pub(crate) async fn change(&self, method: Method, path: &str, body: String) -> anyhow::Result<Value> {
        let (status, body) = self.in_time(self.send(method, path, body, MOST_BYTES)).await?;
        let answer = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        match (status.is_success(), answer["error"].as_str()) {
            (true, _) => Ok(answer),
            (false, Some(error)) => bail!("{error}"),
            (false, None) if status == StatusCode::NOT_FOUND => {
                bail!("{} does not serve {path}: start the service with ADMIN_API=true", self.address)
            }
            (false, None) => bail!("{}: {status}: {}", self.address, String::from_utf8_lossy(&body)),
        }
    }

    /// Returns the answer at this path as it is.
    async fn body(&self, path: &str, most_bytes: usize) -> anyhow::Result<Option<Bytes>> {
        let (status, body) = self.in_time(self.send(Method::GET, path, String::new(), most_bytes)).await?;
        match status {
            StatusCode::OK => Ok(Some(body)),
            StatusCode::NOT_FOUND => Ok(None),
            status => {
                let refusal = format!("{}: {status}: {}", self.address, String::from_utf8_lossy(&body));
                if status == StatusCode::CONFLICT { bail!(BeginAgain(refusal)) } else { bail!(refusal) }
            }
        }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        timeout(self.timeout, answer).await.unwrap_or_else(|_| {
            Err(anyhow!("{} does not answer in {}", self.address, descriptor::length(self.timeout)))
        })
    }

    /// Returns the status and the body of the answer.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        most_bytes: usize,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let host = self.address.strip_prefix("http://").unwrap_or(self.address).trim_end_matches('/');
        let Ok(stream) = TcpStream::connect(host).await else { bail!(self.unreachable(host).await) };
        let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else { bail!(no_http(host)) };
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(AUTHORIZATION, format!("Bearer {}", self.token.unwrap_or_default()))
            .body(Full::new(Bytes::from(body)))?;
        let Ok(response) = sender.send_request(request).await else { bail!(no_http(host)) };
        let status = response.status();
        let body = Limited::new(response.into_body(), most_bytes).collect().await;
        let body =
            body.map_err(|error| anyhow!("{host} closed the connection during its response: {error}"))?.to_bytes();
        match status {
            StatusCode::UNAUTHORIZED if self.token.is_some() => bail!("{host} does not accept this ADMIN_TOKEN"),
            StatusCode::UNAUTHORIZED => bail!("{host} requires its ADMIN_TOKEN: set that variable, or --admin-token"),
            status => Ok((status, body)),
        }
    }

    /// Returns why the connection failed, and what to do.
    async fn unreachable(&self, host: &str) -> String {
        let port = "--address names the HTTP port of the service (PORT), for example http://localhost:8080";
        match probe::probe(host, self.timeout).await {
            Found::UnknownHost => format!("{host} is not a host and port; {port}"),
            Found::Unreachable(error) => format!("{host} cannot be reached, {error}; {port}"),
            _ => format!("connection to {host} refused: is the service running? {port}"),
        }
    }
}

/// Returns what to do if the port speaks another protocol.
fn no_http(host: &str) -> String {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    format!(
        "{host} does not speak HTTP/1.1: --address names the HTTP port of the service (PORT, 8080 unless it is set), \
         not the one of gRPC; for example http://{name}:8080"
    )
}
