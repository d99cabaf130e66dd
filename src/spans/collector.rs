//! Export of spans to the collector: a bounded queue, a thread that takes batches from it, and another that sends them.
//! No request waits for either. Spans beyond the queue's capacity are dropped; spans that the collector does not accept
//! within the timeout are lost.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::{TraceId, TracerProvider as _};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, Sampler, SdkTracerProvider,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::connection::{Heard, Listening, exporter};
use super::exporter::{Exporter, OutageLog};
use super::queue::{Bounded, Waiting};
use super::{Sampling, Spans};
use crate::connect::{Connector, Handshake};

/// Protocol of the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP, in protobuf.
    #[default]
    Http,
    /// OTLP over gRPC.
    Grpc,
}

impl Protocol {
    /// Both protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }
}

/// Options of making and sending spans.
#[derive(Clone)]
pub struct SpanOptions {
    /// Selects the calls that get spans.
    pub sampling: Sampling,
    /// Describes this process.
    pub resource: Resource,
    /// The collector.
    pub collector: Collector,
    /// Adds TLS to a connection to the collector; `None` leaves it as it is.
    pub handshake: Option<Handshake>,
    /// The queue of spans.
    pub queue: Queue,
}

/// Address of the collector, and options of the requests to it.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Protocol of the export.
    pub protocol: Protocol,
    /// Complete URL.
    pub endpoint: String,
    /// Headers of each request.
    pub headers: HashMap<String, String>,
    /// Compression of each request.
    pub compression: Compression,
    /// Timeout of a batch, including retries.
    pub timeout: Duration,
}

/// Compression of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Uncompressed.
    #[default]
    None,
    /// Compressed with gzip.
    Gzip,
}

/// The process that makes the spans.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`, or `None` for a random one.
    pub instance: Option<String>,
    /// Further attributes.
    pub attributes: Vec<(String, String)>,
}

/// Options of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Largest number of waiting spans; further ones are dropped.
    pub capacity: usize,
    /// Largest number of spans in a batch.
    pub batch: usize,
    /// Longest time that a span waits for a batch to fill.
    pub delay: Duration,
}

/// The fate of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The collector accepted it.
    Sent,
    /// Too many spans were waiting.
    Dropped,
    /// The collector did not accept it.
    Lost,
}

impl Fate {
    /// All fates.
    pub const ALL: [Fate; 3] = [Fate::Sent, Fate::Dropped, Fate::Lost];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Sent => "sent",
            Fate::Dropped => "dropped",
            Fate::Lost => "lost",
        }
    }
}

/// Callback with a fate and the number of spans that had it.
pub type OnSpans = Arc<dyn Fn(Fate, u64) + Send + Sync>;

/// An error while starting the export.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The settings are inconsistent.
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The address is not valid for gRPC.
    #[error("traces cannot be exported: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    /// The system provides no thread or no file descriptors.
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[from] io::Error),
}

/// The running export. Dropping it ends the export.
#[derive(Debug)]
pub struct Exporting {
    provider: SdkTracerProvider,
    /// Dropping this ends the thread that sends.
    _alive: oneshot::Sender<Infallible>,
}

impl Exporting {
    /// Starts the export, even if the collector is not available.
    ///
    /// # Errors
    /// See [`CollectorError`].
    pub fn start(options: SpanOptions, on_spans: OnSpans) -> Result<(Spans, Exporting), CollectorError> {
        let (runtime, alive) = start_thread()?;
        let heard = Heard::default();
        let exporter = {
            // The channel to the collector must be created on this runtime.
            let _within = runtime.enter();
            let connector = Listening { connector: Connector::new(options.handshake), heard: heard.clone() };
            exporter(&options.collector, connector)?
        };
        let waiting = Arc::new(Waiting::default());
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(options.queue.capacity)
            .with_max_export_batch_size(options.queue.batch.min(options.queue.capacity))
            .with_scheduled_delay(options.queue.delay)
            .build();
        let outages = OutageLog::new(&options.collector, heard);
        let exporter = Exporter {
            exporter: Arc::new(exporter),
            runtime,
            outages: Arc::new(outages),
            waiting: Arc::clone(&waiting),
            on_spans: Arc::clone(&on_spans),
        };
        let batches = BatchSpanProcessor::new(exporter, config);
        let bounded = Bounded { batches, waiting, capacity: options.queue.capacity, on_spans };
        let provider = SdkTracerProvider::builder()
            // Sampling was decided earlier: only sampled spans get here.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource(options.resource))
            .with_span_processor(bounded)
            .build();
        let spans = Spans::new(provider.tracer("tollgate"), options.sampling);
        Ok((spans, Exporting { provider, _alive: alive }))
    }

    /// Starts to send the waiting spans.
    pub fn flush(&self) -> JoinHandle<()> {
        let provider = self.provider.clone();
        // An error is logged where the spans are sent.
        tokio::task::spawn_blocking(move || drop(provider.force_flush()))
    }

    /// Sends the waiting spans, for at most `timeout`.
    pub async fn end(self, timeout: Duration) {
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(timeout)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the collector did not accept the last spans in time: they are lost");
        }
    }
}

fn resource(resource: Resource) -> opentelemetry_sdk::Resource {
    let instance = resource.instance.unwrap_or_else(|| uuid(RandomIdGenerator::default().new_trace_id()));
    let attributes = resource.attributes.into_iter().map(|(name, value)| KeyValue::new(name, value));
    opentelemetry_sdk::Resource::builder_empty()
        .with_attributes(attributes)
        .with_attribute(KeyValue::new("service.version", crate::version::VERSION))
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .with_service_name(resource.service)
        .build()
}

/// Formats random bits as a UUID of version 4.
fn uuid(random: TraceId) -> String {
    let bits = u128::from_be_bytes(random.to_bytes());
    let bits = (bits & !(0xF << 76 | 0x3 << 62)) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Starts a thread that sends until the returned sender is dropped.
fn start_thread() -> io::Result<(Handle, oneshot::Sender<Infallible>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (alive, ended) = oneshot::channel();
    std::thread::Builder::new().name("traces".into()).spawn(move || runtime.block_on(async { drop(ended.await) }))?;
    Ok((handle, alive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_instance_is_a_uuid_of_version_4() {
        let random = RandomIdGenerator::default();
        let made = [uuid(random.new_trace_id()), uuid(random.new_trace_id())];
        assert_ne!(made[0], made[1]);
        for uuid in made {
            let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
            assert_eq!((lengths, &uuid[14..15]), (vec![8, 4, 4, 4, 12], "4"), "{uuid}");
            assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
        }
    }
}
