//! The way of spans to the collector: a bounded queue, a thread that takes batches from it, and another that sends
//! them. No request waits for either. What the queue has no room for is dropped; what the collector does not take in
//! its time is lost.

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

use super::connection::{Heard, Listening, exporter};
use super::exporter::{Exporter, Told};
use super::queue::{Bounded, Waiting};
use super::{Sampling, Spans};
use crate::connect::{Connector, Handshake};

/// How spans travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP, in protobuf.
    #[default]
    Http,
    /// OTLP over gRPC.
    Grpc,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }
}

/// How spans are made and sent.
#[derive(Clone)]
pub struct Options {
    /// Which calls have them.
    pub sampling: Sampling,
    /// Who has made them.
    pub resource: Resource,
    /// Where they go.
    pub collector: Collector,
    /// What makes a connection to the collector a secure one. `None`: it stays as it is.
    pub handshake: Option<Handshake>,
    /// How they wait.
    pub queue: Queue,
}

/// Where spans go, and how.
#[derive(Clone, Debug)]
pub struct Collector {
    /// How they travel.
    pub protocol: Protocol,
    /// Where to: a whole URL.
    pub endpoint: String,
    /// What goes along with each batch.
    pub headers: HashMap<String, String>,
    /// How they are packed.
    pub compression: Compression,
    /// How long a batch may take, its retries included.
    pub timeout: Duration,
}

/// How batches are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// By gzip.
    Gzip,
}

/// Who has made the spans.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`; `None`: a random one.
    pub instance: Option<String>,
    /// What else there is to say.
    pub attributes: Vec<(String, String)>,
}

/// How spans wait for the collector.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// So many at most; more are dropped.
    pub capacity: usize,
    /// So many go together at most.
    pub batch: usize,
    /// They wait for others for so long.
    pub delay: Duration,
}

/// What becomes of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The collector has it.
    Sent,
    /// Too many were waiting.
    Dropped,
    /// The collector did not take it.
    Lost,
}

impl Fate {
    /// Each of them.
    pub const ALL: [Fate; 3] = [Fate::Sent, Fate::Dropped, Fate::Lost];

    /// The word that metrics have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Sent => "sent",
            Fate::Dropped => "dropped",
            Fate::Lost => "lost",
        }
    }
}

/// Is called with what has become of so many spans.
pub type OnSpans = Arc<dyn Fn(Fate, u64) + Send + Sync>;

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The settings do not fit.
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// No place that gRPC can go to.
    #[error("traces cannot be exported: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    /// The system gives no thread, or no descriptors.
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[from] io::Error),
}

/// Sends spans for as long as it is kept.
#[derive(Debug)]
pub struct Exporting {
    provider: SdkTracerProvider,
    /// The thread that sends lives as long as this.
    _alive: oneshot::Sender<Infallible>,
}

impl Exporting {
    /// Begins, whether the collector is there or not.
    ///
    /// # Errors
    /// See [`CollectorError`].
    pub fn start(options: Options, on_spans: OnSpans) -> Result<(Spans, Exporting), CollectorError> {
        let (runtime, alive) = start_thread()?;
        let heard = Heard::default();
        let exporter = {
            // The channel to the collector lives on this runtime.
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
        let told = Told::new(&options.collector, heard);
        let exporter = Exporter {
            exporter: Arc::new(exporter),
            runtime,
            told: Arc::new(told),
            waiting: Arc::clone(&waiting),
            on_spans: Arc::clone(&on_spans),
        };
        let batches = BatchSpanProcessor::new(exporter, config);
        let bounded = Bounded { batches, waiting, capacity: options.queue.capacity, on_spans };
        let provider = SdkTracerProvider::builder()
            // What is not sampled does not come so far.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource(options.resource))
            .with_span_processor(bounded)
            .build();
        let spans = Spans::new(provider.tracer("tollgate"), options.sampling);
        Ok((spans, Exporting { provider, _alive: alive }))
    }

    /// Sends what waits, for so long at most.
    pub async fn end(self, timeout: Duration) {
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(timeout)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the collector has not taken the last spans: they are lost");
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

/// A UUID of version 4, of these random bits.
fn uuid(random: TraceId) -> String {
    let bits = u128::from_be_bytes(random.to_bytes());
    let bits = (bits & !(0xF << 76 | 0x3 << 62)) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A thread that sends, until what is returned with it is dropped.
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
