//! Starts the exports of single decisions that the settings ask for: spans for a collector, and the decision log.

use std::sync::Arc;

use anyhow::Context as _;

use super::secure::{Words, secure};
use crate::metrics::Metrics;
use crate::observe::decision_log::DecisionLog;
use crate::settings::{DecisionSettings, TracingSettings};
use crate::spans::{Exporting, Spans};

const TLS: Words = Words {
    tls: "TLS with the collector of traces (OTEL_EXPORTER_OTLP_ENDPOINT)",
    name: "OTEL_EXPORTER_OTLP_ENDPOINT",
    plain_text: "use an http:// URL in OTEL_EXPORTER_OTLP_ENDPOINT, or another port",
    untrusted: "an authority in OTEL_EXPORTER_OTLP_CERTIFICATE must have signed it",
    wrong_name: "use a host name from the certificate in OTEL_EXPORTER_OTLP_ENDPOINT",
    refused: "does it trust OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE?",
};

/// Starts to export spans. Without a collector in the settings, no spans are made.
///
/// # Errors
/// If the settings or the files are invalid.
pub(super) fn start(settings: &TracingSettings, metrics: &Metrics) -> anyhow::Result<(Spans, Option<Exporting>)> {
    let Some(mut options) = settings.exporting()? else { return Ok((Spans::default(), None)) };
    options.handshake = settings.tls()?.map(|tls| secure(tls, &TLS)).transpose()?;
    let counts = metrics.spans()?;
    let (spans, exporting) = Exporting::start(options, Arc::new(move |fate, spans| counts.record(fate, spans)))?;
    Ok((spans, Some(exporting)))
}

/// Starts to write the decision log, if the settings ask for it.
///
/// # Errors
/// If the settings are invalid, or the system cannot open the log.
pub(super) fn decision_log(
    settings: &DecisionSettings,
    instance: String,
    metrics: &Metrics,
) -> anyhow::Result<Option<Arc<DecisionLog>>> {
    let Some(options) = settings.decision_log()? else { return Ok(None) };
    let counts = metrics.decision_log()?;
    let log = DecisionLog::start(options, instance, Arc::new(move |fate| counts.record(fate)));
    Ok(Some(Arc::new(log.context("the decision log cannot be written (DECISION_LOG)")?)))
}
