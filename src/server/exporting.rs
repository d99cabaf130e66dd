//! Spans for a collector, where the settings ask for that.

use std::sync::Arc;

use super::secure::{Words, secure};
use crate::metrics::Metrics;
use crate::settings::TracingSettings;
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
