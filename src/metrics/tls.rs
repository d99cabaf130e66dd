//! Metrics of TLS at the gRPC port.

use std::time::SystemTime;

use prometheus::IntGaugeVec;

use super::declaration::Metrics;
use super::register::{Known, Register, itself};
use crate::tls::HandshakeError;

/// Metrics of TLS.
#[derive(Debug)]
pub(super) struct TlsMetrics {
    handshakes: Known<&'static str, { HandshakeError::OUTCOMES.len() }>,
    /// By the state of the client's certificate.
    unverified: Known<&'static str, 2>,
    reloads: Known<&'static str, 2>,
    /// Has no series without TLS.
    expiry: IntGaugeVec,
}

impl TlsMetrics {
    pub(super) fn new(register: &Register<'_>) -> prometheus::Result<TlsMetrics> {
        Ok(TlsMetrics {
            handshakes: register.known(
                (
                    "tls_handshakes_total",
                    "TLS handshakes at the gRPC port, by outcome. Probes that only check whether the port is open \
                     count as closed.",
                ),
                ("outcome", HandshakeError::OUTCOMES),
                itself,
            )?,
            unverified: register.known(
                (
                    "tls_unverified_clients_total",
                    "Clients accepted with GRPC_SERVER_TLS_CA_CERT that GRPC_CLIENT_TLS_CACERT would reject, by \
                     certificate.",
                ),
                ("certificate", ["none", "wrong"]),
                itself,
            )?,
            reloads: register.known(
                ("tls_reloads_total", "Attempts to reload certificates after their files changed."),
                ("result", ["success", "error"]),
                itself,
            )?,
            expiry: register.gauges(
                ("tls_certificate_expiry_timestamp_seconds", "Expiry of each certificate in use, in Unix time."),
                &["certificate"],
                &[],
            )?,
        })
    }
}

impl Metrics {
    /// Records the outcome of a TLS handshake, one of
    /// [`HandshakeError::OUTCOMES`](crate::tls::HandshakeError::OUTCOMES).
    pub fn record_handshake(&self, outcome: &'static str) {
        self.tls.handshakes.inc(outcome);
    }

    /// Records a client admitted without a certificate or with a wrong one.
    pub fn record_unverified_client(&self, certificate: &'static str) {
        self.tls.unverified.inc(certificate);
    }

    /// Records that certificates were replaced.
    pub fn record_tls_reload(&self) {
        self.tls.reloads.inc("success");
    }

    /// Records that new certificates were rejected.
    pub fn record_tls_reload_error(&self) {
        self.tls.reloads.inc("error");
    }

    /// Records the expiry of the certificate with this role, such as `server`.
    pub fn set_certificate(&self, role: &str, until: SystemTime) {
        let seconds = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.tls.expiry.with_label_values(&[role]).set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }
}
