//! Sends batches of spans on a separate thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::SpanData;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::connection::Heard;
use super::queue::Waiting;
use super::{Collector, Fate, OnSpans};
use crate::telemetry::Throttle;

/// Sends batches, counts the spans, and logs when the collector fails and when it works again.
pub(super) struct Exporter {
    pub(super) exporter: Arc<SpanExporter>,
    pub(super) runtime: Handle,
    pub(super) outages: Arc<OutageLog>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) on_spans: OnSpans,
}

/// The state of the collector as it was logged.
pub(super) struct OutageLog {
    /// The collector's address, without a password.
    collector: String,
    timeout: Duration,
    heard: Heard,
    is_gone: AtomicBool,
    lines: Throttle<bool>,
}

impl OutageLog {
    pub(super) fn new(collector: &Collector, heard: Heard) -> OutageLog {
        let (scheme, rest) = collector.endpoint.split_once("://").unwrap_or(("", &collector.endpoint));
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        OutageLog {
            collector: format!("{scheme}://{place}"),
            timeout: collector.timeout,
            heard,
            is_gone: AtomicBool::new(false),
            lines: Throttle::default(),
        }
    }

    /// Logs a change between failure and success, given the result of a batch with this number of spans.
    fn note(&self, spans: usize, sent: &OTelSdkResult) {
        if self.is_gone.swap(sent.is_err(), Ordering::Relaxed) == sent.is_err() {
            return;
        }
        let collector = self.collector.clone();
        let error = sent.as_ref().err().map(|error| self.heard.last().unwrap_or_else(|| error.to_string()));
        self.lines.log(sent.is_err(), || {
            move |_| match error {
                Some(error) => {
                    tracing::warn!(collector, error, spans, "the collector does not accept spans: they are lost")
                }
                None => tracing::info!(collector, "the collector accepts spans again"),
            }
        });
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, outages, spans) = (Arc::clone(&self.exporter), Arc::clone(&self.outages), batch.len());
        let sending = self.runtime.spawn(async move {
            let limit = outages.timeout;
            // The exporter's own timeout does not end an attempt in progress.
            let sent = timeout(limit, exporter.export(batch)).await.unwrap_or(Err(OTelSdkError::Timeout(limit)));
            outages.note(spans, &sent);
            sent
        });
        let sent = sending.await.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        self.waiting.leave(spans);
        (self.on_spans)(if sent.is_ok() { Fate::Sent } else { Fate::Lost }, spans as u64);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &opentelemetry_sdk::Resource) {
        // The exporter is not shared yet.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
