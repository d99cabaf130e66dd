//! A collector of traces: OTLP over gRPC, or over HTTP, with TLS or without.

use std::convert::Infallible;
use std::io::Read as _;
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::wait_until;

/// A running collector, on a separate thread.
pub struct Collector {
    /// Its address.
    pub url: String,
    received: Received,
    _alive: oneshot::Sender<Infallible>,
}

/// The batches received: each with its `token` header, the process attributes, and the spans.
type Received = Arc<Mutex<Vec<(Option<String>, ExportTraceServiceRequest)>>>;

/// The behavior of a collector.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Grpc,
    Http,
    /// Accepts connections and never answers.
    Silent,
}

impl Collector {
    /// Starts a collector for gRPC.
    pub fn grpc() -> Collector {
        Collector::start("127.0.0.1:0", Kind::Grpc, None)
    }

    /// Starts a collector for HTTP.
    pub fn http() -> Collector {
        Collector::http_at("127.0.0.1:0")
    }

    /// The same at this address.
    pub fn http_at(address: &str) -> Collector {
        Collector::start(address, Kind::Http, None)
    }

    /// Starts a collector that accepts connections and never answers.
    pub fn silent() -> Collector {
        Collector::start("127.0.0.1:0", Kind::Silent, None)
    }

    /// Starts a collector for gRPC over TLS.
    pub fn grpc_with(tls: Arc<ServerConfig>) -> Collector {
        Collector::start("127.0.0.1:0", Kind::Grpc, Some(tls))
    }

    /// Starts a collector for HTTPS.
    pub fn https(tls: Arc<ServerConfig>) -> Collector {
        Collector::start("127.0.0.1:0", Kind::Http, Some(tls))
    }

    fn start(address: &str, kind: Kind, tls: Option<Arc<ServerConfig>>) -> Collector {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (alive, ended) = oneshot::channel::<Infallible>();
        let received = Received::default();
        let to = Arc::clone(&received);
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = serve(listener, (kind, tls), to) => {}
                    _ = ended => {}
                }
            });
        });
        Collector { url, received, _alive: alive }
    }

    /// All spans that have come.
    pub fn spans(&self) -> Vec<Span> {
        let received = self.received.lock().unwrap();
        let scopes = received.iter().flat_map(|(_, request)| &request.resource_spans).flat_map(|all| &all.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The same, once there are so many.
    pub fn must_get(&self, spans: usize) -> Vec<Span> {
        wait_until("spans come", || self.spans().len() >= spans);
        let all = self.spans();
        assert_eq!(all.len(), spans, "{all:#?}");
        all
    }

    /// Returns the token and the process attributes of the first batch.
    pub fn first(&self) -> (Option<String>, Vec<KeyValue>) {
        let received = self.received.lock().unwrap();
        let (token, request) = &received[0];
        (token.clone(), request.resource_spans[0].resource.clone().unwrap().attributes)
    }

    /// All that has come, as text.
    pub fn text(&self) -> String {
        format!("{:?}", self.received.lock().unwrap())
    }
}

/// Returns the value of an attribute as text.
pub fn attribute(all: &[KeyValue], name: &str) -> Option<String> {
    fn text(value: &AnyValue) -> String {
        match value.value.as_ref().unwrap() {
            any_value::Value::StringValue(text) => text.clone(),
            any_value::Value::IntValue(number) => number.to_string(),
            any_value::Value::ArrayValue(all) => all.values.iter().map(text).collect::<Vec<_>>().join(","),
            other => format!("{other:?}"),
        }
    }
    all.iter().find(|pair| pair.key == name).map(|pair| text(pair.value.as_ref().unwrap()))
}

async fn serve(listener: TcpListener, (kind, tls): (Kind, Option<Arc<ServerConfig>>), to: Received) {
    let mut silent = Vec::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let to = Arc::clone(&to);
        match &tls {
            _ if kind == Kind::Silent => silent.push(stream),
            None => drop(tokio::spawn(speak(stream, kind, to))),
            Some(tls) => {
                let accepting = TlsAcceptor::from(Arc::clone(tls)).accept(stream);
                tokio::spawn(async move {
                    // Some are refused.
                    if let Ok(stream) = accepting.await {
                        speak(stream, kind, to).await;
                    }
                });
            }
        }
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, kind: Kind, to: Received) {
    let stream = TokioIo::new(stream);
    // Ends when the other side closes the connection.
    let _ = match kind {
        Kind::Grpc => {
            let service = TraceServiceServer::new(Grpc(to)).accept_compressed(CompressionEncoding::Gzip);
            let http2 = http2::Builder::new(TokioExecutor::new());
            http2.serve_connection(stream, TowerToHyperService::new(service)).await
        }
        _ => {
            let service = service_fn(move |request| take(request, Arc::clone(&to)));
            http1::Builder::new().serve_connection(stream, service).await
        }
    };
}

struct Grpc(Received);

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let token = request.metadata().get("token").map(|token| token.to_str().unwrap().to_owned());
        self.0.lock().unwrap().push((token, request.into_inner()));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn take(request: http::Request<Incoming>, to: Received) -> Result<http::Response<Full<Bytes>>, Infallible> {
    assert_eq!((request.uri().path(), request.method().as_str()), ("/v1/traces", "POST"));
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    let token = request.headers().get("token").map(|token| token.to_str().unwrap().to_owned());
    let is_packed = request.headers().get("content-encoding").is_some_and(|encoding| encoding == "gzip");
    let mut body = request.into_body().collect().await.unwrap().to_bytes();
    if is_packed {
        let mut whole = Vec::new();
        GzDecoder::new(&body[..]).read_to_end(&mut whole).unwrap();
        body = whole.into();
    }
    to.lock().unwrap().push((token, ExportTraceServiceRequest::decode(body).unwrap()));
    Ok(http::Response::new(Full::default()))
}
