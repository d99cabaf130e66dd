//! The server for comparison: the same service by tonic alone, which returns a constant answer, with the cheapest
//! runtime for it. The difference is the cost of Tollgate.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;

use tokio::net::TcpListener;
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::stage::Stage;

/// The argument that makes this program act as this server.
pub const ARGUMENT: &str = "bare";

/// Answers as a Tollgate does that lets pass.
struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
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
        let response =
            RateLimitResponse { overall_code: Code::Ok.into(), statuses: vec![status], ..RateLimitResponse::default() };
        Ok(Response::new(response))
    }
}

/// Serves until standard input is closed. Prints the port as the first line.
#[tokio::main(flavor = "current_thread")]
pub async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().add_service(RateLimitServiceServer::new(Constant)).serve_with_incoming(incoming).await.unwrap();
}

/// The running server.
pub struct Bare {
    process: Child,
    pub port: u16,
}

impl Bare {
    /// Starts one.
    pub fn start(stage: &Stage) -> Bare {
        let mut process = stage.itself(ARGUMENT);
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
