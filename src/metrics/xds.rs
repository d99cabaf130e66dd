//! Metrics of the management server, if rules come from one.

use std::time::{Duration, UNIX_EPOCH};

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts};

use super::declaration::{Known, Metrics};

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
        let connected = IntGauge::new(
            "xds_connected",
            "1 while there is a stream to the management server; 0 while there is none.",
        )?;
        let responses = Opts::new(
            "xds_responses_total",
            "Responses of the management server by their answer, one that comes again unchanged only once.",
        );
        let responses = IntCounterVec::new(responses, &["answer"])?;
        let accepted_at = IntGauge::new(
            "xds_accepted_timestamp_seconds",
            "When the management server's last response was accepted, in Unix time; 0 before the first.",
        )?;
        let version = Opts::new("xds_version_info", "1 for the version of the rules that was accepted last.");
        let version = IntGaugeVec::new(version, &["version"])?;
        version.with_label_values(&[""]).set(0);
        self.registry.register(Box::new(connected.clone()))?;
        self.registry.register(Box::new(responses.clone()))?;
        self.registry.register(Box::new(accepted_at.clone()))?;
        self.registry.register(Box::new(version.clone()))?;
        let responses = Known(["ack", "nack"].map(|answer| (answer, responses.with_label_values(&[answer]))));
        Ok(XdsMetrics { connected, responses, accepted_at, version })
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
