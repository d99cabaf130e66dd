//! Metrics of the management server, if rules come from one.

use std::time::{Duration, UNIX_EPOCH};

use prometheus::{IntGauge, IntGaugeVec};

use super::declaration::Metrics;
use super::register::{Known, Register, itself};

/// Metrics of the management server.
#[derive(Debug)]
pub struct XdsMetrics {
    connected: IntGauge,
    responses: Known<&'static str, 2>,
    accepted_at: IntGauge,
    version: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics of a management server.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn xds(&self) -> prometheus::Result<XdsMetrics> {
        let register = Register(&self.registry);
        let version = ("xds_version_info", "1 for the version of the rules that was accepted last.");
        Ok(XdsMetrics {
            connected: register
                .gauge("xds_connected", "1 while there is a stream to the management server; 0 while there is none.")?,
            responses: register.known(
                (
                    "xds_responses_total",
                    "Responses of the management server by their answer, one that comes again unchanged only once.",
                ),
                ("answer", ["ack", "nack"]),
                itself,
            )?,
            accepted_at: register.gauge(
                "xds_accepted_timestamp_seconds",
                "When the management server's last response was accepted, in Unix time; 0 before the first.",
            )?,
            version: register.gauges(version, &["version"], &[""])?,
        })
    }
}

impl XdsMetrics {
    /// Records that a stream is open.
    pub fn set_connected(&self) {
        self.connected.set(1);
    }

    /// Records that no stream is open.
    pub fn set_disconnected(&self) {
        self.connected.set(0);
    }

    /// Records that a response with this version was accepted.
    pub fn record_accepted(&self, version: &str) {
        self.responses.inc("ack");
        let now = UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
        self.accepted_at.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.version.reset();
        self.version.with_label_values(&[version]).set(1);
    }

    /// Records that a response was rejected.
    pub fn record_refused(&self) {
        self.responses.inc("nack");
    }
}
