//! TLS at the gRPC port: the certificates in force, their replacement when files change, and the log lines and metrics
//! about both.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use humantime::format_duration;

use super::stream::{Peer, Plain, Stream};
use crate::files::watch::{self, Watched};
use crate::metrics::Metrics;
use crate::supervise;
use crate::telemetry::Throttle;
use crate::tls::{self, Clients, HandshakeError, Held, ServerFiles, ServerTls, Shown, Standing, TlsErrors, Turns};

/// Interval of the checks for expiry.
const LOOK: Duration = Duration::from_secs(60);
/// Interval of repeated warnings about the same certificate.
const REMINDER: Duration = Duration::from_secs(24 * 60 * 60);

/// TLS of the gRPC port.
pub(super) struct Tls {
    files: ServerFiles,
    current: ArcSwap<ServerTls>,
    metrics: Arc<Metrics>,
    failures: Throttle<&'static str>,
    unverified: Throttle<&'static str>,
}

impl Tls {
    /// Reads the files, and logs their requirements for clients. Starts the task that replaces certificates when their
    /// files change.
    ///
    /// # Errors
    /// If the files cannot be used.
    pub(super) fn keep(files: ServerFiles, metrics: Arc<Metrics>) -> anyhow::Result<Arc<Tls>> {
        let watched = Watched::new(files.paths());
        let first = files.load().context("TLS at the gRPC port (GRPC_SERVER_USE_TLS)")?;
        tracing::info!("the gRPC port speaks TLS, and {}", demand(&files.clients));
        let current = ArcSwap::from_pointee(first);
        let (failures, unverified) = (Throttle::default(), Throttle::default());
        let tls = Arc::new(Tls { files, current, metrics, failures, unverified });
        tls.show(&tls.current.load());
        let kept = Arc::clone(&tls);
        supervise::spawn("certificates", move || {
            let (kept, watched) = (Arc::clone(&kept), watched.clone());
            async move { match tokio::join!(kept.watch(watched), kept.remind()).1 {} }
        });
        Ok(tls)
    }

    /// Performs the handshake, on the worker that will serve the connection. Returns `None` if it fails, after logging
    /// the failure.
    pub(super) async fn accept(&self, connection: Plain, peer: Peer, turns: &Turns) -> Option<Stream> {
        let server = self.current.load_full();
        // Boxed because it is large, and most processes do not use TLS.
        match Box::pin(tls::accept(&server, turns, connection)).await {
            Ok(stream) => {
                self.metrics.record_handshake(HandshakeError::DONE);
                self.note(&server.shown(stream.get_ref().1), peer);
                Some(Stream::Tls(Box::new(stream)))
            }
            Err(error) => {
                self.metrics.record_handshake(error.kind());
                self.tell(error, peer);
                None
            }
        }
    }

    fn tell(&self, error: HandshakeError, client: Peer) {
        let advice = match error {
            // Usual for a probe that only checks whether the port is open.
            HandshakeError::Closed | HandshakeError::Timeout => return tracing::debug!(%client, "{error}"),
            HandshakeError::PlainText => "use TLS in the client, or unset GRPC_SERVER_USE_TLS",
            HandshakeError::NoCertificate => {
                "give the client one that an authority in GRPC_CLIENT_TLS_CACERT has signed"
            }
            HandshakeError::Untrusted(_) => "an authority in GRPC_CLIENT_TLS_CACERT must have signed it",
            HandshakeError::WrongName(_) | HandshakeError::Nameless(_) => "see GRPC_CLIENT_TLS_SAN",
            HandshakeError::Expired(_) => "give the client a valid certificate",
            HandshakeError::Refused(_) => {
                "does it trust the authority that signed GRPC_SERVER_TLS_CERT, and ask for a name in that certificate?"
            }
            HandshakeError::NothingInCommon(_) => "the port speaks gRPC (ALPN h2) in TLS 1.2 or 1.3",
            HandshakeError::Broken(_) => "is it a gRPC client?",
        };
        self.failures.log(error.kind(), || {
            move |times| {
                tracing::warn!(%client, times, "TLS handshake with a gRPC client failed: {error}: {advice}")
            }
        });
    }

    /// Records a client that was admitted, but would not be with GRPC_CLIENT_TLS_CACERT.
    fn note(&self, shown: &Shown, client: Peer) {
        let (certificate, said) = match shown {
            Shown::Enough => return,
            Shown::Nothing => ("none", "none".to_owned()),
            Shown::Wrong(error) => ("wrong", error.to_string()),
        };
        self.metrics.record_unverified_client(certificate);
        self.unverified.log(certificate, || {
            let told = "GRPC_CLIENT_TLS_CACERT would reject this client";
            move |times| tracing::info!(%client, times, certificate = said, "{told}")
        });
    }

    async fn watch(&self, watched: Watched) {
        let files = self.files.clone();
        let load = move || files.reload(SystemTime::now());
        watch::watch(watched, load, |loaded| match loaded {
            Ok(loaded) => {
                tracing::info!("new certificates are in force for the gRPC port");
                self.show(&loaded);
                self.current.store(Arc::new(loaded));
                self.metrics.record_tls_reload();
            }
            Err(TlsErrors(errors)) => {
                self.metrics.record_tls_reload_error();
                for error in errors {
                    tracing::error!("changed certificates are rejected, the previous ones stay in force: {error}");
                }
            }
        })
        .await;
    }

    /// Logs warnings about these certificates, and sets their metrics.
    fn show(&self, loaded: &ServerTls) {
        for warning in &loaded.warnings {
            tracing::warn!("{warning}: clients are not asked for certificates");
        }
        for Held { role, validity, .. } in &loaded.held {
            if let Some(validity) = validity {
                self.metrics.set_certificate(role, validity.until);
            }
        }
    }

    /// Warns before a certificate expires and after it has, forever.
    async fn remind(&self) -> Infallible {
        let mut told = Vec::new();
        loop {
            self.remind_once(&mut told, SystemTime::now());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// `told` lists the certificates warned about, with the level and time of each warning.
    fn remind_once(&self, told: &mut Vec<(Held, Level, SystemTime)>, now: SystemTime) {
        let current = self.current.load();
        told.retain(|(held, _, at)| {
            current.held.contains(held) && now.duration_since(*at).is_ok_and(|since| since < REMINDER)
        });
        for held in &current.held {
            let Some((level, line)) = held.validity.and_then(|validity| line(held, validity.standing(now))) else {
                continue;
            };
            if told.iter().any(|(of, was, _)| of == held && *was == level) {
                continue;
            }
            match level {
                Level::Error => tracing::error!("{line}"),
                Level::Warning => tracing::warn!("{line}"),
            }
            told.push((held.clone(), level, now));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Warning,
    Error,
}

/// Returns the warning for a certificate, or `None` if it needs none.
fn line(held: &Held, standing: Standing) -> Option<(Level, String)> {
    let file = &held.file;
    match standing {
        Standing::Valid => None,
        Standing::Ending(left) => Some((
            Level::Warning,
            format!("the certificate of {file} expires in {}: replace the file", format_duration(left)),
        )),
        Standing::Expired(ago) => Some((
            Level::Error,
            format!("the certificate of {file} expired {} ago: replace the file", format_duration(ago)),
        )),
        Standing::NotYet(after) => {
            Some((Level::Error, format!("the certificate of {file} only becomes valid in {}", format_duration(after))))
        }
    }
}

/// Returns the flags that `tollgate ask` needs for TLS.
pub(super) fn client_flags(files: &ServerFiles) -> &'static str {
    match files.clients {
        Clients::Unasked | Clients::Observed(_) => " --ca FILE",
        Clients::Required { .. } => " --ca FILE --cert FILE --key FILE",
    }
}

/// Describes what clients must present.
fn demand(clients: &Clients) -> String {
    match clients {
        Clients::Unasked => "does not ask clients for certificates".into(),
        Clients::Observed(authorities) => format!(
            "accepts clients without a certificate, too; {authorities} is only used to report clients that \
             GRPC_CLIENT_TLS_CACERT would reject"
        ),
        Clients::Required { authorities, names } if names.is_empty() => {
            format!("accepts clients with a certificate signed by {authorities}")
        }
        Clients::Required { authorities, names } => {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            format!("accepts clients with a certificate signed by {authorities} for {}", names.join(" or "))
        }
    }
}
