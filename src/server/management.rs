//! Rules from a management server: puts each version in force as it arrives, and reports events of the server in the
//! log and in metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::reload::{Settled, Target, panicked};
use super::secure::Words;
use super::signals::Hangups;
use crate::metrics::XdsMetrics;
use crate::probe::{self, Found};
use crate::sources::xds::{self, Event, HostPort, Offer, Options, Response, StreamError};
use crate::store::Store;
use crate::supervise::supervise;
use crate::telemetry::Throttle;

/// Interval of the reminders that the first rules have not arrived, and of repeated failures in the log.
const REMIND: Duration = Duration::from_secs(5 * 60);

/// Time limit of each probe of the server's address.
const LOOK: Duration = Duration::from_secs(2);

/// The management server that provides the rules.
pub(super) struct Management {
    pub(super) options: Options,
    pub(super) before_the_first: BeforeTheFirst,
    pub(super) metrics: XdsMetrics,
    /// Each SIGHUP requests the rules from the server again.
    pub(super) hangups: Hangups,
}

/// Behavior of the process before the first rules arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeforeTheFirst {
    /// It is not healthy, and waits.
    Wait,
    /// It is healthy, because a server without policies sends no rules, but its calls fail.
    Fail,
    /// It is healthy, and answers as for an unknown domain.
    Serve,
}

/// Messages for failures of TLS with the server.
pub(super) const TLS: Words = Words {
    tls: "TLS with the management server (CONFIG_GRPC_XDS_SERVER_USE_TLS)",
    name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    plain_text: "unset CONFIG_GRPC_XDS_SERVER_USE_TLS, or see CONFIG_GRPC_XDS_SERVER_URL",
    untrusted: "an authority in CONFIG_GRPC_XDS_SERVER_TLS_CACERT must have signed it",
    wrong_name: "write a name that it has into CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    refused: "does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?",
};

/// Puts the rules in force that the server sends, forever.
///
/// # Errors
/// If the gRPC port cannot be opened.
pub(super) async fn keep<S: Store>(management: Management, target: Target<S>) -> anyhow::Result<Infallible> {
    let Management { options, before_the_first, metrics, hangups } = management;
    let mut reporter = Reporter {
        server: options.server.clone(),
        metrics,
        secure: options.handshake.is_some(),
        is_connected: false,
        has_rules: false,
        strays: Throttle::default(),
        refusals: Throttle::default(),
        last: None,
    };
    let is_up = before_the_first != BeforeTheFirst::Wait;
    if before_the_first == BeforeTheFirst::Serve {
        target.limiter.serve_without_rules();
    }
    match is_up {
        true => target.serving.loaded(0).await,
        false => target.serving.waiting().await,
    }
    // The server may never send rules, so the port opens now. Health and the answers to calls show the state of the
    // process.
    target.door.open()?;
    target.up.listening();
    if is_up {
        target.up.announce(&target.limiter.snapshot().rules);
    }
    let asked = Arc::new(Notify::new());
    let (events, mut received) = mpsc::unbounded_channel();
    let follow = supervise(
        |error| panicked(error, &target.metrics),
        || xds::follow(options.clone(), Arc::clone(&asked), events.clone()),
    );
    let receive = async {
        let mut waits = Waits { before_the_first, is_up, has_rules: false, refusals: Throttle::default() };
        let mut reminder = interval_at(Instant::now(), REMIND);
        reminder.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = received.recv() => match event {
                    Some(Event::Offered(offer)) => waits.settle(offer, &target).await,
                    Some(event) => reporter.report(event).await,
                    None => std::future::pending().await,
                },
                _ = reminder.tick(), if !waits.has_rules => waits.remind(&options),
            }
        }
    };
    let (never, ..) = tokio::join!(follow, receive, hangups.forward(&asked));
    match never {}
}

/// Progress of the start.
struct Waits {
    before_the_first: BeforeTheFirst,
    is_up: bool,
    has_rules: bool,
    /// Limits log lines about rejected rules: a server may send different wrong rules each time.
    refusals: Throttle,
}

impl Waits {
    fn remind(&self, Options { server, node_id, .. }: &Options) {
        match self.before_the_first {
            BeforeTheFirst::Serve => tracing::info!(
                %server, node = node_id,
                "no rules have been received from the management server yet: no request is limited"
            ),
            BeforeTheFirst::Fail => tracing::info!(
                %server, node = node_id,
                "no rules have been received from the management server yet: calls fail (FAILURE_MODE=error)"
            ),
            BeforeTheFirst::Wait => tracing::warn!(
                %server, node = node_id,
                "waiting for the first rules from the management server: not serving"
            ),
        }
    }

    async fn settle<S: Store>(&mut self, offer: Offer, target: &Target<S>) {
        let Offer { version, loaded, in_force } = offer;
        let is_refused = loaded.is_err();
        if let Ok(loaded) = &loaded {
            let (rules, domains) = (loaded.rules.rules().len(), loaded.rules.domains());
            tracing::info!(version, rules, domains, "received rules from the management server");
        }
        let settled = match loaded {
            Ok(_) => target.settle(loaded).await,
            Err(error) => {
                let line = target.refuse(error);
                self.refusals.log((), || line);
                Settled::Kept
            }
        };
        match settled {
            Settled::InForce => {
                self.has_rules = true;
                if !self.is_up {
                    self.is_up = true;
                    target.up.announce(&target.limiter.snapshot().rules);
                }
                // The receiver is gone only if its stream has been abandoned.
                let _ = in_force.send(());
            }
            Settled::Kept if is_refused && !self.is_up => {
                target.serving.refused().await;
            }
            Settled::Kept => {}
        }
    }
}

/// Reports the events of the server, in the log and in metrics.
struct Reporter {
    server: HostPort,
    metrics: XdsMetrics,
    /// Whether the connection uses TLS.
    secure: bool,
    is_connected: bool,
    /// Whether the server has sent rules that were accepted.
    has_rules: bool,
    /// Limits log lines about resources that were not requested.
    strays: Throttle,
    /// Limits log lines about rejected responses.
    refusals: Throttle,
    /// The failure logged last, and when.
    last: Option<(StreamError, Instant)>,
}

impl Reporter {
    async fn report(&mut self, event: Event) {
        let server = &self.server;
        match event {
            Event::Connected => {
                self.metrics.set_connected();
                self.is_connected = true;
                self.last = None;
                tracing::info!(%server, "connected to the management server");
            }
            Event::Lost(error, retry) => self.lost(error, retry).await,
            Event::Answered(Response::Accepted(version)) => {
                self.has_rules = true;
                self.metrics.record_accepted(&version);
                tracing::debug!(%server, version, "accepted the rules of the management server (ACK)");
            }
            Event::Answered(Response::Refused(version)) => {
                self.metrics.record_refused();
                let server = server.clone();
                self.refusals.log((), || {
                    move |times| {
                        let told = "rejected the rules of the management server (NACK)";
                        tracing::warn!(%server, version, times, "{told}");
                    }
                });
            }
            Event::Unnamed(names, stay) => {
                let (resources, names) = (names.len(), some(&names));
                tracing::warn!(
                    %server, resources, names, ?stay,
                    "keeping rules that the management server no longer lists since it reconnected"
                );
            }
            Event::Stray(type_url) => {
                let server = server.clone();
                // The server may repeat this without end.
                self.strays.log((), || {
                    move |times| {
                        let told = "ignoring a response of the management server for a resource type that was not \
                                    requested";
                        tracing::warn!(%server, type_url, times, "{told}");
                    }
                });
            }
            // Settled before it gets here.
            Event::Offered(_) => {}
        }
    }

    async fn lost(&mut self, error: StreamError, retry: Duration) {
        self.metrics.set_disconnected();
        let was_connected = std::mem::take(&mut self.is_connected);
        let server = &self.server;
        if let Some((last, when)) = &self.last
            && *last == error
            && when.elapsed() < REMIND
        {
            tracing::debug!(%server, %error, ?retry, "still no stream to the management server");
            return;
        }
        let found = match &error {
            // In TLS 1.3 a server checks the client's certificate after the handshake, and closes the connection if it
            // rejects it.
            StreamError::Lost(_) if self.secure && !was_connected => {
                Some("does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?".to_owned())
            }
            StreamError::Unreachable(_) | StreamError::Lost(_) => self.look().await,
            _ => None,
        };
        let found = found.map(|found| format!(": {found}")).unwrap_or_default();
        match self.has_rules {
            true => tracing::warn!(
                %server, ?retry,
                "no stream to the management server, the last good rules stay in force: {error}{found}"
            ),
            false => tracing::warn!(
                %server, ?retry,
                "no stream to the management server, and it has sent no rules yet: {error}{found}"
            ),
        }
        self.last = Some((error, Instant::now()));
    }

    /// Probes the address, and describes what answers there if it is not a management server.
    async fn look(&self) -> Option<String> {
        let found = match probe::probe(&self.server.to_string(), LOOK).await {
            Found::UnknownHost => "its name does not resolve: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Nobody => "connection refused: is the management server running? see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Tls if !self.secure => "the port uses TLS: set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
            Found::Http2 if self.secure => "the port does not use TLS: unset CONFIG_GRPC_XDS_SERVER_USE_TLS",
            Found::Http => "the port speaks HTTP/1.1, not gRPC: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Redis => "the port belongs to Redis, not to a management server: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Silent => "the server accepts connections and sends nothing",
            Found::Other(said) => return Some(format!("the port speaks another protocol; it sends {said:?}")),
            Found::Tls | Found::Http2 | Found::Closes | Found::Unreachable(_) => return None,
        };
        Some(found.to_owned())
    }
}

/// Joins the first of many names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
