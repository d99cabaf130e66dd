//! What is told of single decisions, where the settings ask for that: spans for a collector, and the decision log.

use std::sync::Arc;

use anyhow::Context as _;

use super::secure::{Words, secure};
use crate::decision_log::DecisionLog;
use crate::metrics::Metrics;
use crate::settings::{DecisionSettings, TracingSettings};
use crate::spans::{Exporting, Spans};

const TLS: Words = Words {
    tls: "TLS with the collector of traces (OTEL_EXPORTER_OTLP_ENDPOINT)",
    name: "OTEL_EXPORTER_OTLP_ENDPOINT",
    plain_text: "name an http:// URL in OTEL_EXPORTER_OTLP_ENDPOINT, or another port",
    untrusted: "an authority in OTEL_EXPORTER_OTLP_CERTIFICATE must have signed it",
    wrong_name: "OTEL_EXPORTER_OTLP_ENDPOINT must have a name that it has",
    refused: "does it trust OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE?",
};

/// Begins to export spans, or makes none.
///
/// # Errors
/// Where the settings or the files do not allow it.
pub(super) fn start(settings: &TracingSettings, metrics: &Metrics) -> anyhow::Result<(Spans, Option<Exporting>)> {
    let Some(mut options) = settings.exporting()? else { return Ok((Spans::default(), None)) };
    options.handshake = settings.tls()?.map(|tls| secure(tls, &TLS)).transpose()?;
    let counts = metrics.spans()?;
    let (spans, exporting) = Exporting::start(options, Arc::new(move |fate, spans| counts.record(fate, spans)))?;
    Ok((spans, Some(exporting)))
}

/// Begins to write the decision log, or writes none.
///
/// # Errors
/// Where the settings or the system do not allow it.
pub(super) fn decision_log(settings: &DecisionSettings, metrics: &Metrics) -> anyhow::Result<Option<Arc<DecisionLog>>> {
    let Some(options) = settings.decision_log()? else { return Ok(None) };
    let counts = metrics.decision_log()?;
    let log = DecisionLog::start(options, Arc::new(move |fate| counts.record(fate)));
    Ok(Some(Arc::new(log.context("the decision log cannot be written (DECISION_LOG)")?)))
}
