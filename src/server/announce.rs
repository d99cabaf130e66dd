//! What the process announces: in its log when it is up, and to clients that ask for its health.

use std::net::SocketAddr;

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::http::Health;
use crate::rules::Rules;
use crate::version;

/// The service's name in gRPC's health check; the empty name means the same.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Whether this process answers by rules, as health checks see it.
#[derive(Clone)]
pub(super) struct Serving {
    reporter: HealthReporter,
    health: watch::Sender<Health>,
}

impl Serving {
    /// It does not, yet.
    pub(super) async fn new(reporter: HealthReporter) -> Serving {
        let serving = Serving { reporter, health: watch::Sender::default() };
        serving.set(Health::default()).await;
        serving
    }

    /// Announces it, and returns what was announced before.
    pub(super) async fn set(&self, health: Health) -> Health {
        let status = if health == Health::Serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("", status).await;
        self.reporter.set_service_status(SERVICE, status).await;
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
    pub(super) grpc: SocketAddr,
    pub(super) http: SocketAddr,
    pub(super) store: String,
}

impl Up {
    /// The ports answer, and no rules are there yet.
    pub(super) fn listening(&self) {
        let Up { grpc, http, .. } = self;
        tracing::info!(%grpc, %http, "listening, and not serving until the rules are loaded");
    }

    /// With these rules, which may be none.
    pub(super) fn announce(&self, rules: &Rules) {
        let Up { grpc, http, store } = self;
        let (count, domains) = (rules.rules().len(), rules.domains());
        let (version, commit) = (version::VERSION, version::COMMIT);
        tracing::info!(%grpc, %http, store, rules = count, domains, version, commit, "tollgate is up");
        if let Some(example) = example(rules, *grpc) {
            tracing::info!("try: {example}");
        }
    }
}

/// A command that asks this process about the first of its rules.
fn example(rules: &Rules, grpc: SocketAddr) -> Option<String> {
    let rule = rules.rules().first()?;
    let entries: Vec<String> = rule
        .path
        .split('|')
        .map(|step| {
            let step = step.replace('*', "x");
            if step.contains('=') { step } else { format!("{step}=ann") }
        })
        .collect();
    let address = match grpc.port() {
        8081 => String::new(),
        port => format!(" --address localhost:{port}"),
    };
    // As it was started, because it need not be on the path.
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    Some(format!("{program} ask{address} --domain {} {}", rule.domain, entries.join(" ")))
}
