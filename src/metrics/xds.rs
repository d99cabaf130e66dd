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
        let version = ("xds_version_info", "1 for the version of the rules accepted last.");
        Ok(XdsMetrics {
            connected: register
                .gauge("xds_connected", "1 while a stream to the management server is open, 0 while none is.")?,
            responses: register.known(
                (
                    "xds_responses_total",
                    "Responses of the management server, by answer. A response that is repeated unchanged counts once.",
                ),
                ("answer", ["ack", "nack"]),
                itself,
            )?,
            accepted_at: register.gauge(
                "xds_accepted_timestamp_seconds",
                "Time of the last response accepted from the management server, in Unix time; 0 before the first.",
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
