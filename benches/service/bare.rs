//! The servers for comparison: the same service with a constant answer, by tonic alone and by hyper alone, each with
//! the cheapest runtime for it. The difference is the cost of Tollgate.

use std::convert::Infallible;
use std::future::ready;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::TcpListener;
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::stage::Stage;

/// The library of a bare server.
#[derive(Clone, Copy)]
pub enum Library {
    /// gRPC: reads and writes messages.
    Tonic,
    /// HTTP/2: does not look at messages.
    Hyper,
}

impl Library {
    const ALL: [Library; 2] = [Library::Tonic, Library::Hyper];

    /// The argument that makes this program act as the server.
    fn argument(self) -> &'static str {
        match self {
            Library::Tonic => "bare-tonic",
            Library::Hyper => "bare-hyper",
        }
    }
}

/// Acts as a bare server until standard input is closed, if an argument says so. Prints the port as the first line.
pub fn serve(is_given: impl Fn(&str) -> bool) -> bool {
    let Some(library) = Library::ALL.into_iter().find(|library| is_given(library.argument())) else { return false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        match library {
            Library::Tonic => serve_by_tonic(listener).await,
            Library::Hyper => serve_by_hyper(listener).await,
        }
    });
    true
}

/// The answer of a Tollgate that lets pass.
fn answer() -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000_000,
            unit: Unit::Minute.into(),
            ..RateLimit::default()
        }),
        limit_remaining: 3_999_999_999,
        duration_until_reset: Some(prost_types::Duration { seconds: 66, nanos: 0 }),
        ..DescriptorStatus::default()
    };
    RateLimitResponse { overall_code: Code::Ok.into(), statuses: vec![status], ..RateLimitResponse::default() }
}

struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(answer()))
    }
}

async fn serve_by_tonic(listener: TcpListener) {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().add_service(RateLimitServiceServer::new(Constant)).serve_with_incoming(incoming).await.unwrap();
}

async fn serve_by_hyper(listener: TcpListener) {
    let body = answer().encode_to_vec();
    let message = Bytes::from([&[0], &(body.len() as u32).to_be_bytes()[..], &body].concat());
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.auto_date_header(false);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let message = message.clone();
        let service = service_fn(move |request| answer_by_hyper(request, message.clone()));
        // Its error: the client disconnected.
        tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
    }
}

/// Reads a request to its end.
async fn answer_by_hyper(
    mut request: hyper::Request<Incoming>,
    message: Bytes,
) -> hyper::Result<hyper::Response<impl Body<Data = Bytes, Error = Infallible>>> {
    while let Some(frame) = request.body_mut().frame().await {
        frame?;
    }
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = hyper::Response::new(Full::new(message).with_trailers(ready(Some(Ok(trailers)))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// The running server.
pub struct Bare {
    process: Child,
    pub port: u16,
}

impl Bare {
    /// Starts one.
    pub fn start(stage: &Stage, library: Library) -> Bare {
        let mut process = stage.itself(library.argument());
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Bare { port: port.trim().parse().unwrap(), process }
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
