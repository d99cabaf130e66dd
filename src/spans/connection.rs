//! The connection to the collector, by gRPC or by HTTP, and the reason if it fails.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tonic::transport::{Channel, Endpoint};

use super::{Collector, CollectorError, Compression, Protocol};
use crate::connect::{self, Connection, Connector, causes};

/// Creates an exporter that sends batches over such connections.
pub(super) fn exporter(collector: &Collector, connector: Listening) -> Result<SpanExporter, CollectorError> {
    // The exporter reads any option not set here from the environment.
    let Collector { endpoint, timeout, .. } = collector;
    match collector.protocol {
        Protocol::Http => {
            let builder = SpanExporter::builder().with_http().with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
            let builder = match collector.compression {
                Compression::None => builder,
                Compression::Gzip => builder.with_compression(opentelemetry_otlp::Compression::Gzip),
            };
            let client = HyperClient::new(connector, *timeout, None);
            let builder = builder.with_http_client(client).with_endpoint(endpoint).with_timeout(*timeout);
            Ok(builder.with_headers(collector.headers.clone()).build()?)
        }
        Protocol::Grpc => {
            let builder = SpanExporter::builder().with_tonic().with_channel(channel(collector, connector)?);
            let builder = match collector.compression {
                Compression::None => builder,
                Compression::Gzip => builder.with_compression(opentelemetry_otlp::Compression::Gzip),
            };
            Ok(builder.with_timeout(*timeout).with_metadata(metadata(&collector.headers)).build()?)
        }
    }
}

fn channel(collector: &Collector, connector: Listening) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(collector.endpoint.clone())?;
    Ok(endpoint.timeout(collector.timeout).connect_with_connector_lazy(connector))
}

/// Converts headers, with names and values that were checked when they were read.
fn metadata(headers: &HashMap<String, String>) -> MetadataMap {
    let pair = |(name, value): (&String, &String)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    };
    MetadataMap::from_headers(headers.iter().filter_map(pair).collect::<HeaderMap>())
}

/// The reason of the last failure to connect. The exporter's own errors have less detail.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<Option<String>>>);

impl Heard {
    /// Returns the last failure, or `None` if a connection has succeeded since.
    pub(super) fn last(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

/// A connector that notes failures.
#[derive(Clone)]
pub(super) struct Listening {
    pub(super) connector: Connector,
    pub(super) heard: Heard,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Listening {
    type Response = TokioIo<Box<dyn Connection>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, heard) = (self.connector.call(uri), self.heard.clone());
        Box::pin(async move {
            let connected = match timeout(connect::TIMEOUT, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(format!("no connection within {:?}", connect::TIMEOUT).into()),
            };
            *heard.0.lock() = connected.as_ref().err().map(|error| causes(&**error));
            connected
        })
    }
}
