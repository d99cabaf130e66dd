//! Rules from a management server: put in force as they come, and told of.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::reload::{Settled, Target, panicked};
use super::secure::Words;
use super::signals::Hangups;
use super::supervise::supervise;
use crate::metrics::XdsMetrics;
use crate::probe::{self, Found};
use crate::rules::xds::{self, Event, HostPort, Offer, Options, Response, StreamError};
use crate::store::Store;
use crate::telemetry::Throttle;

/// How often is said that the first rules are waited for, and again what is no news.
const REMIND: Duration = Duration::from_secs(5 * 60);

/// How long what is at an address may take to show what it is, each time that it is asked.
const LOOK: Duration = Duration::from_secs(2);

/// A management server that the rules come from.
pub(super) struct Management {
    pub(super) options: Options,
    pub(super) before_the_first: BeforeTheFirst,
    pub(super) metrics: XdsMetrics,
    /// What makes the server be asked anew.
    pub(super) hangups: Hangups,
}

/// What the process does before the first rules come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeforeTheFirst {
    /// It waits, and does not serve.
    Wait,
    /// It serves without rules: where there is no policy, none ever come.
    Serve,
}

/// What is said where TLS with the server fails.
pub(super) const TLS: Words = Words {
    tls: "TLS with the management server (CONFIG_GRPC_XDS_SERVER_USE_TLS)",
    name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    plain_text: "unset CONFIG_GRPC_XDS_SERVER_USE_TLS, or see CONFIG_GRPC_XDS_SERVER_URL",
    untrusted: "an authority in CONFIG_GRPC_XDS_SERVER_TLS_CACERT must have signed it",
    wrong_name: "write a name that it has into CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    refused: "does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?",
};

/// Puts in force what the server sends, for ever.
pub(super) async fn keep<S: Store>(management: Management, target: Target<S>) -> Infallible {
    let Management { options, before_the_first, metrics, hangups } = management;
    target.up.listening();
    let mut teller = Teller {
        server: options.server.clone(),
        metrics,
        secure: options.handshake.is_some(),
        is_connected: false,
        strays: Throttle::default(),
        last: None,
    };
    let is_up = before_the_first == BeforeTheFirst::Serve;
    if is_up {
        target.limiter.serve_without_rules();
        target.serving.loaded(0).await;
        target.up.announce(&target.limiter.snapshot().rules);
    } else {
        target.serving.waiting().await;
    }
    let asked = Arc::new(Notify::new());
    let (events, mut received) = mpsc::unbounded_channel();
    let follow = supervise(
        |error| panicked(error, &target.metrics),
        || xds::follow(options.clone(), Arc::clone(&asked), events.clone()),
    );
    let receive = async {
        let mut waits = Waits { is_up, has_rules: false };
        let mut reminder = interval_at(Instant::now(), REMIND);
        reminder.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = received.recv() => match event {
                    Some(Event::Offered(offer)) => waits.settle(offer, &target).await,
                    Some(event) => teller.tell(event).await,
                    None => std::future::pending().await,
                },
                _ = reminder.tick(), if !waits.has_rules => waits.remind(&options),
            }
        }
    };
    let (never, ..) = tokio::join!(follow, receive, hangups.forward(&asked));
    match never {}
}

/// What has not happened yet.
struct Waits {
    is_up: bool,
    has_rules: bool,
}

impl Waits {
    fn remind(&self, Options { server, node_id, .. }: &Options) {
        match self.is_up {
            true => tracing::info!(
                %server, node = node_id,
                "no rules have come from the management server yet: no request is limited"
            ),
            false => tracing::warn!(
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
            tracing::info!(version, rules, domains, "the management server has sent rules");
        }
        match target.settle(loaded).await {
            Settled::InForce => {
                self.has_rules = true;
                if !self.is_up {
                    self.is_up = true;
                    target.up.announce(&target.limiter.snapshot().rules);
                }
                // The receiver is gone only where its stream has been given up.
                let _ = in_force.send(());
            }
            Settled::Kept if is_refused && !self.is_up => {
                target.serving.refused().await;
            }
            Settled::Kept => {}
        }
    }
}

/// Tells what comes of the server, in the log and in metrics.
struct Teller {
    server: HostPort,
    metrics: XdsMetrics,
    /// Whether TLS is spoken with it.
    secure: bool,
    is_connected: bool,
    /// What it sends and nobody has asked for.
    strays: Throttle,
    /// What has been logged last of its failures, and when.
    last: Option<(StreamError, Instant)>,
}

impl Teller {
    async fn tell(&mut self, event: Event) {
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
                self.metrics.record_accepted(&version);
                tracing::debug!(%server, version, "the management server hears that its rules are in force");
            }
            Event::Answered(Response::Refused(version)) => {
                self.metrics.record_refused();
                tracing::warn!(%server, version, "the management server hears that its rules are refused, and why");
            }
            Event::Unnamed(names, stay) => {
                let (resources, names) = (names.len(), some(&names));
                tracing::warn!(
                    %server, resources, names, ?stay,
                    "the management server has not named these since it came back: they stay in force for a while"
                );
            }
            Event::Stray(type_url) => {
                let server = server.clone();
                // It may send such again and again.
                self.strays.log((), || {
                    move |times| {
                        let told = "the management server sends what nobody has asked for: ignored";
                        tracing::warn!(%server, type_url, times, "{told}");
                    }
                });
            }
            // It is settled before.
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
            // In TLS 1.3 a server looks at what it is shown after the handshake, and then it goes.
            StreamError::Lost(_) if self.secure && !was_connected => {
                Some("does it trust CONFIG_GRPC_XDS_CLIENT_TLS_CERT?".to_owned())
            }
            StreamError::Unreachable(_) | StreamError::Lost(_) => self.look().await,
            _ => None,
        };
        let found = found.map(|found| format!(": {found}")).unwrap_or_default();
        tracing::warn!(
            %server, ?retry,
            "no stream to the management server, the last good rules stay in force: {error}{found}"
        );
        self.last = Some((error, Instant::now()));
    }

    /// What there is instead of a management server.
    async fn look(&self) -> Option<String> {
        let found = match probe::probe(&self.server.to_string(), LOOK).await {
            Found::UnknownHost => "the name has no address: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Nobody => "nobody listens there: is the management server running? see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Tls if !self.secure => "TLS is spoken there: set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
            Found::Http2 if self.secure => "no TLS is spoken there: unset CONFIG_GRPC_XDS_SERVER_USE_TLS",
            Found::Http => "HTTP/1.1 is spoken there, not gRPC: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Redis => "Redis is there, no management server: see CONFIG_GRPC_XDS_SERVER_URL",
            Found::Silent => "it takes connections and says nothing",
            Found::Other(said) => return Some(format!("something else is spoken there, which says {said:?}")),
            Found::Tls | Found::Http2 | Found::Closes | Found::Unreachable(_) => return None,
        };
        Some(found.to_owned())
    }
}

/// The first of many names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
