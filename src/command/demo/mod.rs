//! `tollgate demo`: the service with the example rules, and traffic made by this process.

mod traffic;

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::builder::Resettable;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::{Channel, Endpoint};

use self::traffic::Traffic;
use super::{output, serve};
use crate::server::Addresses;
use crate::server::port::Address;
use crate::server::watchdog::Watchdog;
use crate::settings::Settings;
use crate::sources::files::load::NamedText;
use crate::telemetry;
use crate::wire::rate_limit_response::Code;
use crate::wire::{RateLimitRequest, RateLimitServiceClient};

/// Run the service with example rules and made-up traffic, to see what it does.
///
/// Prints a link to the console and commands to try in another terminal. Reads no rules and no settings of the service:
/// not even REDIS_URL, so counters are in memory unless --redis-url is given. Exits with 0 after Ctrl-C, and with 1 if
/// it cannot serve.
#[derive(Args)]
pub(super) struct Demo {
    /// Address or host name for both ports.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    host: String,

    /// Port for HTTP, with the console; 0 chooses a free one.
    #[arg(long, env = "PORT", value_name = "PORT", default_value = "8080")]
    port: u16,

    /// Port for gRPC; 0 chooses a free one.
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value = "8081")]
    grpc_port: u16,

    /// Requests per second, apart from the flood.
    #[arg(long, value_name = "NUMBER", default_value = "250",
        value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rate: u32,

    /// Redis for the counters: HOST:PORT, or another address that REDIS_URL takes. The names of the counters there
    /// begin with demo:. Unset: counters are in memory.
    #[arg(long, value_name = "ADDRESS")]
    redis_url: Option<String>,
}

/// The rules in force, by the names of their files in the sources.
const RULES: [(&str, &str); 4] = [
    ("config/rules/api.yaml", include_str!("../../../config/rules/api.yaml")),
    ("config/rules/jobs.yaml", include_str!("../../../config/rules/jobs.yaml")),
    ("config/rules/plain.yaml", include_str!("../../../config/rules/plain.yaml")),
    ("config/rules/shop.yaml", include_str!("../../../config/rules/shop.yaml")),
];

/// What the candidate rules change: each number of the left column.
const CANDIDATES: [(&str, &str); 2] = [
    ("unit: minute\n      requests_per_unit: 5\n", "unit: minute\n      requests_per_unit: 10\n"),
    ("burst: 50\n", "burst: 20\n"),
];

/// Interval at which requests are sent.
const TICK: Duration = Duration::from_millis(20);

/// Time limit of each request, longer than any delay of the rules but that of queued mails.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Number of decisions so far.
#[derive(Default)]
struct Decided {
    passed: AtomicU64,
    denied: AtomicU64,
}

pub(super) fn run(demo: &Demo) -> anyhow::Result<ExitCode> {
    let token = token()?;
    let settings = demo.settings(&token)?;
    let logs = telemetry::init(&settings.logs.log_level, settings.logs.log_format);
    let watchdog = Watchdog::start(Vec::new());
    let (announced, mut addresses) = watch::channel(None::<Addresses>);
    let decided = Arc::new(Decided::default());
    let (rate, counted) = (demo.rate, Arc::clone(&decided));
    let store = demo.redis_url.as_ref().map_or_else(|| "memory".to_owned(), |url| format!("Redis at {url}"));
    let drive = async move {
        let Ok(addresses) = addresses.wait_for(Option::is_some).await.map(|found| found.clone()) else { return };
        let Some(addresses) = addresses else { return };
        // Fails only if nobody reads, and the service is of use even then.
        let _ = output::print(&greeting(&addresses, &token, &store));
        if let Err(error) = send(&addresses.grpc, rate, &counted).await {
            eprintln!("error: the demo has no traffic: {error:#}");
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // The thread ends with the process.
    thread::Builder::new().name("demo".into()).spawn(move || runtime.block_on(drive))?;
    serve::run_to_the_end(settings, &logs, watchdog, announced).map_err(advised)?;
    let (passed, denied) = (decided.passed.load(Ordering::Relaxed), decided.denied.load(Ordering::Relaxed));
    output::print(&format!("\nThe demo has ended: {passed} requests passed, {denied} were denied.\n"))
}

/// Adds what to do about a port in use.
fn advised(error: anyhow::Error) -> anyhow::Error {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        Some(io::ErrorKind::AddrInUse) => anyhow!("{error:#}: choose others with --port and --grpc-port"),
        _ => error,
    }
}

/// Returns a new token of administrators.
fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow!("the system provides no random numbers"))?;
    Ok(bytes.iter().fold(String::new(), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    }))
}

#[derive(Parser)]
struct OfService {
    #[command(flatten)]
    settings: Settings,
}

impl Demo {
    /// Returns the settings of the service, which come from the command line alone.
    fn settings(&self, token: &str) -> anyhow::Result<Settings> {
        let ports = [("--port", self.port), ("--grpc-port", self.grpc_port)];
        let ports = ports.map(|(flag, port)| format!("{flag}={port}"));
        let mut words = vec![
            "tollgate".to_owned(),
            format!("--host={}", self.host),
            format!("--grpc-host={}", self.host),
            format!("--admin-token={token}"),
        ];
        words.extend(ports);
        words.extend(
            self.redis_url.iter().flat_map(|url| [format!("--redis-url={url}"), "--cache-key-prefix=demo:".into()]),
        );
        let fixed = [
            "--admin-api=true",
            "--what-if-requests=100000",
            "--what-if-sample=1",
            "--candidate-sample=1",
            // A machine that compiles something at the same time is slow.
            "--redis-timeout=500ms",
            "--drain-delay=0s",
            "--shutdown-timeout=2s",
            "--log-level=warn",
        ];
        words.extend(fixed.map(str::to_owned));
        let command = OfService::command().mut_args(|arg| arg.env(Resettable::Reset));
        let matches =
            command.try_get_matches_from(words).map_err(|error| anyhow!(error.kind()).context(error.to_string()))?;
        let OfService { mut settings } = OfService::from_arg_matches(&matches)?;
        settings.rules.built_in = RULES.map(|(name, text)| named(name, text)).into();
        settings.candidates.files.built_in = RULES.map(|(name, text)| named(name, &candidate(text))).into();
        Ok(settings)
    }
}

fn candidate(text: &str) -> String {
    CANDIDATES.iter().fold(text.to_owned(), |text, (now, then)| text.replace(now, then))
}

fn named(name: &str, text: &str) -> NamedText {
    NamedText { name: name.into(), bytes: text.into() }
}

fn greeting(addresses: &Addresses, token: &str, store: &str) -> String {
    let http = addresses.http_for_clients();
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    let grpc = match &addresses.grpc {
        Address::Tcp(address) if address.port() != 8081 => format!(" --address localhost:{}", address.port()),
        _ => String::new(),
    };
    let top = if addresses.http.port() == 8080 { String::new() } else { format!(" --address http://{http}") };
    format!(
        "\
Tollgate with example rules and made-up traffic. Counters are in {store}. Ctrl-C ends it.

  Console   http://{http}/console#token={token}
  Paths     http://{http}/

Try in another terminal. The sixth `ask` within a minute is LIMITED:

  export ADMIN_TOKEN={token}
  {program} ask{grpc} --domain shop user=ann
  {program} explain --address http://{http} --domain shop user=ann
  {program} top{top} --by denied
  {program} bans{top}

"
    )
}

/// Sends the traffic to the gRPC port, forever.
async fn send(grpc: &Address, rate: u32, decided: &Arc<Decided>) -> anyhow::Result<()> {
    let Address::Tcp(mut address) = *grpc else { return Ok(()) };
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.timeout(TIMEOUT);
    let client = RateLimitServiceClient::new(endpoint.connect().await.context("cannot connect")?);
    let (mut traffic, begin) = (Traffic::new(rate), Instant::now());
    let mut ticks = interval(TICK);
    // After a pause of the machine, what was missed is not sent all at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for request in traffic.next(begin.elapsed(), TICK) {
            tokio::spawn(ask(client.clone(), request, Arc::clone(decided)));
        }
    }
}

async fn ask(mut client: RateLimitServiceClient<Channel>, request: RateLimitRequest, decided: Arc<Decided>) {
    // A request that fails appears in the metrics of the service.
    let Ok(response) = client.should_rate_limit(request).await else { return };
    let counter = match response.into_inner().overall_code() {
        Code::OverLimit => &decided.denied,
        Code::Ok | Code::Unknown => &decided.passed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::files::load::{LoadOptions, Sources, check};

    #[test]
    fn the_candidates_differ_and_both_are_right() {
        for change in CANDIDATES {
            assert!(RULES.iter().any(|(_, text)| text.contains(change.0)), "{change:?}");
        }
        for rules in
            [RULES.map(|(name, text)| named(name, text)), RULES.map(|(name, text)| named(name, &candidate(text)))]
        {
            let loaded = check(&Sources::default(), &rules, &LoadOptions::default()).unwrap();
            assert_eq!(loaded.rules.domains(), RULES.len());
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        }
    }
}
