//! What the process announces: a log line when it is up, and its health to clients.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::field::display;

use super::port::Address;
use crate::engine::rules::Rules;
use crate::http::{Availability, Health};
use crate::version;

/// Names that gRPC's health check accepts: the empty name, the name of the service, and the name that
/// `envoyproxy/ratelimit` uses. All of them have the same status.
const SERVICES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// The health of this process, as health checks see it.
#[derive(Clone)]
pub(super) struct Serving {
    reporter: HealthReporter,
    health: watch::Sender<Health>,
    state: Arc<Mutex<State>>,
    wants: Wants,
}

/// Conditions for a healthy process in addition to rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// The rules must have a domain.
    pub(super) domain: bool,
    /// The store must be available.
    pub(super) store: bool,
}

/// The state that health derives from.
#[derive(Default)]
struct State {
    /// Health by the rules alone.
    rules: Health,
    store_is_up: bool,
    draining: bool,
}

impl Serving {
    /// Starts as not serving.
    pub(super) async fn new(reporter: HealthReporter, wants: Wants) -> Serving {
        let serving = Serving { reporter, health: watch::Sender::default(), state: Arc::default(), wants };
        serving.change(|_| {}).await;
        serving
    }

    /// Records that the first rules have not arrived yet.
    pub(super) async fn waiting(&self) {
        self.change(|state| state.rules = Health::Waiting).await;
    }

    /// Records that the first rules were rejected.
    pub(super) async fn refused(&self) {
        self.change(|state| state.rules = Health::Refused).await;
    }

    /// Records that rules with this many domains are in force.
    pub(super) async fn loaded(&self, domains: usize) {
        let health = if domains == 0 && self.wants.domain { Health::NoDomains } else { Health::Serving };
        self.change(|state| state.rules = health).await;
    }

    /// Follows the state of the store until its sender is dropped.
    pub(super) async fn follow_store(self, mut is_up: watch::Receiver<bool>) {
        loop {
            let now = *is_up.borrow_and_update();
            self.change(|state| state.store_is_up = now).await;
            if is_up.changed().await.is_err() {
                return;
            }
        }
    }

    /// Announces for good that the process is ending. Returns whether it was healthy before.
    pub(super) async fn drain(&self) -> bool {
        self.change(|state| state.draining = true).await == Health::Serving
    }

    /// Applies a change and announces the resulting health. Returns the health announced before.
    async fn change(&self, change: impl FnOnce(&mut State)) -> Health {
        let mut state = self.state.lock().await;
        change(&mut state);
        let health = match state.rules {
            _ if state.draining => Health::Draining,
            // `progress` has announced how far the load is.
            Health::Loading { .. } => *self.health.borrow(),
            Health::Serving if self.wants.store && !state.store_is_up => Health::NoStore,
            health => health,
        };
        let status = if health == Health::Serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
        self.health.send_replace(health)
    }

    /// Announces the progress of loading the first rules. Does nothing once they are loaded.
    pub(super) fn progress(&self, bytes_read: u64, bytes: u64) {
        self.health.send_if_modified(|health| {
            let is_loading = matches!(health, Health::Loading { .. });
            if is_loading {
                *health = Health::Loading { bytes_read, bytes };
            }
            is_loading
        });
    }

    /// Returns a receiver of the health, for the HTTP port.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

/// The contents of the log lines that announce the process.
pub(super) struct Up {
    pub(super) grpc: Address,
    /// Additional flags that a client needs.
    pub(super) client_flags: &'static str,
    pub(super) http: SocketAddr,
    pub(super) debug: Option<SocketAddr>,
    /// Where the statistics of `envoyproxy/ratelimit` are shown.
    pub(super) statistics: Option<SocketAddr>,
    pub(super) store: String,
    pub(super) console: Availability,
    pub(super) announced: watch::Sender<Option<Addresses>>,
}

/// The addresses of a process that is up.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Address of gRPC.
    pub grpc: Address,
    /// Address of HTTP.
    pub http: SocketAddr,
}

impl Up {
    /// Logs that HTTP answers, and that gRPC will listen once the rules are in force.
    pub(super) fn listening_for_http(&self) {
        let Up { grpc, http, .. } = self;
        let debug_port = self.debug.map(display);
        tracing::info!(%grpc, %http, debug_port, "listening for HTTP, and for gRPC once the rules are in force");
    }

    /// Logs that all ports answer, while the first rules have not arrived.
    pub(super) fn listening(&self) {
        let Up { grpc, http, .. } = self;
        let debug_port = self.debug.map(display);
        tracing::info!(%grpc, %http, debug_port, "listening, and waiting for the first rules");
    }

    /// Logs that the process is up with these rules, possibly none.
    pub(super) fn announce(&self, rules: &Rules) {
        let Up { grpc, client_flags, http, store, .. } = self;
        let debug_port = self.debug.map(display);
        let prometheus = self.statistics.map(display);
        let (count, domains) = (rules.rules().len(), rules.domains());
        let (version, commit) = (version::VERSION, version::COMMIT);
        tracing::info!(
            %grpc, %http, debug_port, prometheus, store, rules = count, domains, version, commit, "tollgate is up"
        );
        match self.console {
            Availability::On => {
                let console = format!("http://{}/console", host_and_port(*http));
                tracing::info!(console, "serving the console");
            }
            Availability::Off(why) => tracing::info!("no console: {why}"),
        }
        if let Some(example) = example(rules, grpc, client_flags) {
            tracing::info!("try: {example}");
        }
        self.announced.send_replace(Some(Addresses { grpc: grpc.clone(), http: *http }));
    }
}

/// Returns the address as a client on this machine writes it.
pub(super) fn host_and_port(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() || ip.is_loopback() => format!("localhost:{}", address.port()),
        _ => address.to_string(),
    }
}

impl Addresses {
    /// Returns the address of HTTP as a client on this machine writes it.
    pub fn http_for_clients(&self) -> String {
        host_and_port(self.http)
    }
}

/// Returns a command that asks this process about the first of its rules.
fn example(rules: &Rules, grpc: &Address, flags: &str) -> Option<String> {
    let rule = rules.rules().first()?;
    let entries: Vec<String> = rule
        .path
        .split('|')
        .map(|step| {
            let step = step.replace('*', "x");
            if step.contains('=') { step } else { format!("{step}=ann") }
        })
        .collect();
    let address = match grpc {
        Address::Tcp(address) if address.port() == 8081 => String::new(),
        Address::Tcp(address) => format!(" --address localhost:{}", address.port()),
        Address::Unix(_) => format!(" --address {grpc}"),
    };
    // Named as the process was started, since the program may not be in `PATH`.
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    Some(format!("{program} ask{address}{flags} --domain {} {}", rule.domain, entries.join(" ")))
}
