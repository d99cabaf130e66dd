//! What the process announces: in its log when it is up, and to clients that ask for its health.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::rules::Rules;
use crate::version;

/// The service's name in gRPC's health check; the empty name means the same.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Whether this process answers by rules, as health checks see it.
#[derive(Clone)]
pub(super) struct Serving {
    reporter: HealthReporter,
    http: Arc<AtomicBool>,
}

impl Serving {
    /// It does not, yet.
    pub(super) async fn new(reporter: HealthReporter) -> Serving {
        let serving = Serving { reporter, http: Arc::default() };
        serving.set(false).await;
        serving
    }

    pub(super) async fn set(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("", status).await;
        self.reporter.set_service_status(SERVICE, status).await;
        self.http.store(serving, Ordering::Relaxed);
    }

    /// For the HTTP port.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.http)
    }
}

/// What is said of the process when it is up.
pub(super) struct Up {
    grpc: SocketAddr,
    rules: usize,
    domains: usize,
    example: Option<String>,
}

impl Up {
    pub(super) fn new(rules: Option<&Rules>, grpc: SocketAddr) -> Up {
        let (count, domains) = rules.map_or((0, 0), |rules| (rules.rules().len(), rules.domains()));
        Up { grpc, rules: count, domains, example: rules.and_then(|rules| example(rules, grpc)) }
    }

    pub(super) fn announce(self, http: SocketAddr, store: &str) {
        let Up { grpc, rules, domains, example } = self;
        tracing::info!(
            %grpc, %http, store, rules, domains, version = version::VERSION, commit = version::COMMIT, "tollgate is up"
        );
        if let Some(example) = example {
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
