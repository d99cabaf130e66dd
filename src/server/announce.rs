//! What the process announces: in its log when it is up, and to clients that ask for its health.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::field::display;

use super::port::Address;
use crate::http::Health;
use crate::rules::Rules;
use crate::version;

/// What gRPC's health check may be asked for: everything, the service by its name, and by the one that
/// `envoyproxy/ratelimit` has for it. All of them mean the same.
const SERVICES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// Whether this process answers by rules, as health checks see it.
#[derive(Clone)]
pub(super) struct Serving {
    reporter: HealthReporter,
    health: watch::Sender<Health>,
    state: Arc<Mutex<State>>,
    wants: Wants,
}

/// What must be there, beside rules, for a process to be healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    /// A domain in the rules.
    pub(super) domain: bool,
    /// The store.
    pub(super) store: bool,
}

/// What health follows from.
#[derive(Default)]
struct State {
    /// By the rules alone.
    rules: Health,
    store_is_up: bool,
    draining: bool,
}

impl Serving {
    /// It does not, yet.
    pub(super) async fn new(reporter: HealthReporter, wants: Wants) -> Serving {
        let serving = Serving { reporter, health: watch::Sender::default(), state: Arc::default(), wants };
        serving.change(|_| {}).await;
        serving
    }

    /// The first rules have not come yet.
    pub(super) async fn waiting(&self) {
        self.change(|state| state.rules = Health::Waiting).await;
    }

    /// The first rules are refused.
    pub(super) async fn refused(&self) {
        self.change(|state| state.rules = Health::Refused).await;
    }

    /// Rules of so many domains are in force.
    pub(super) async fn loaded(&self, domains: usize) {
        let health = if domains == 0 && self.wants.domain { Health::NoDomains } else { Health::Serving };
        self.change(|state| state.rules = health).await;
    }

    /// Says what the store is, whenever that changes, for ever.
    pub(super) async fn follow_store(self, mut is_up: watch::Receiver<bool>) {
        loop {
            let now = *is_up.borrow_and_update();
            self.change(|state| state.store_is_up = now).await;
            if is_up.changed().await.is_err() {
                return;
            }
        }
    }

    /// The process ends, whatever else there will be. Returns whether it was healthy before.
    pub(super) async fn drain(&self) -> bool {
        self.change(|state| state.draining = true).await == Health::Serving
    }

    /// Announces what follows, and returns what was announced before.
    async fn change(&self, change: impl FnOnce(&mut State)) -> Health {
        let mut state = self.state.lock().await;
        change(&mut state);
        let health = match state.rules {
            _ if state.draining => Health::Draining,
            // How far the load is has been said beside.
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

    /// Says how far the load of the first rules is; nothing, once they are there.
    pub(super) fn progress(&self, bytes_read: u64, bytes: u64) {
        self.health.send_if_modified(|health| {
            let is_loading = matches!(health, Health::Loading { .. });
            if is_loading {
                *health = Health::Loading { bytes_read, bytes };
            }
            is_loading
        });
    }

    /// For the HTTP port.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

/// What is said of the process when it is up.
pub(super) struct Up {
    pub(super) grpc: Address,
    /// What a client has to say beside.
    pub(super) client_flags: &'static str,
    pub(super) http: SocketAddr,
    pub(super) debug: Option<SocketAddr>,
    /// Where `envoyproxy/ratelimit`'s statistics are shown.
    pub(super) statistics: Option<SocketAddr>,
    pub(super) store: String,
}

impl Up {
    /// The ports answer, and no rules are there yet.
    pub(super) fn listening(&self) {
        let Up { grpc, http, .. } = self;
        let debug_port = self.debug.map(display);
        tracing::info!(%grpc, %http, debug_port, "listening, and not serving until the rules are loaded");
    }

    /// With these rules, which may be none.
    pub(super) fn announce(&self, rules: &Rules) {
        let Up { grpc, client_flags, http, store, .. } = self;
        let debug_port = self.debug.map(display);
        let prometheus = self.statistics.map(display);
        let (count, domains) = (rules.rules().len(), rules.domains());
        let (version, commit) = (version::VERSION, version::COMMIT);
        tracing::info!(
            %grpc, %http, debug_port, prometheus, store, rules = count, domains, version, commit, "tollgate is up"
        );
        if let Some(example) = example(rules, grpc, client_flags) {
            tracing::info!("try: {example}");
        }
    }
}

/// A command that asks this process about the first of its rules.
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
    // As it was started, because it need not be on the path.
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    Some(format!("{program} ask{address}{flags} --domain {} {}", rule.domain, entries.join(" ")))
}
