//! Gubernator over gRPC, by the part of its messages that a judge needs. A request brings its limit along.

use std::time::Duration;

use serde::Deserialize;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{Answer, Asked};
use crate::history::{Ask, Told};

const METHOD: &str = "/pb.gubernator.V1/GetRateLimits";
const OVER_LIMIT: i32 = 1;

/// A fleet, by the addresses of its instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gubernator {
    /// HOST:PORT of each instance; callers are spread over them.
    pub addresses: Vec<String>,
    /// The hits of a period.
    pub number: u64,
    /// The period in milliseconds.
    pub period_ms: u64,
}

/// A connection to one instance.
#[derive(Clone, Debug)]
pub struct Client {
    grpc: Grpc<Channel>,
    number: i64,
    period_ms: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    requests: Vec<One>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct One {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    unique_key: String,
    #[prost(int64, tag = "3")]
    hits: i64,
    #[prost(int64, tag = "4")]
    limit: i64,
    #[prost(int64, tag = "5")]
    duration: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(message, repeated, tag = "1")]
    responses: Vec<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(int64, tag = "3")]
    remaining: i64,
    #[prost(string, tag = "5")]
    error: String,
}

impl Gubernator {
    pub(super) fn connect(&self, caller: usize) -> anyhow::Result<Client> {
        let address = self.addresses.get(caller % self.addresses.len().max(1));
        let address = address.ok_or_else(|| anyhow::anyhow!("a target needs an address, HOST:PORT"))?;
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        let (number, period_ms) = (i64::try_from(self.number)?, i64::try_from(self.period_ms)?);
        Ok(Client { grpc: Grpc::new(channel), number, period_ms })
    }
}

impl Client {
    pub(super) async fn ask(&mut self, ask: Ask, asked: &[Asked], deadline: Duration) -> Result<Answer, String> {
        if ask == Ask::Total {
            return Err("the system has no count of its own".to_owned());
        }
        if matches!(ask, Ask::Hold | Ask::Settle) {
            return Err("the system has no budgets".to_owned());
        }
        let one = |asked: &Asked| {
            let hits = i64::try_from(asked.hits).unwrap_or(i64::MAX);
            One {
                name: asked.entry.clone(),
                unique_key: asked.key.clone(),
                hits: match ask {
                    Ask::Take => hits,
                    Ask::Peek | Ask::Hold | Ask::Settle | Ask::Total => 0,
                    Ask::Return => -hits,
                },
                limit: self.number,
                duration: self.period_ms,
            }
        };
        let mut request = tonic::Request::new(Request { requests: asked.iter().map(one).collect() });
        request.set_timeout(deadline);
        self.grpc.ready().await.map_err(|error| error.to_string())?;
        let codec = ProstCodec::<Request, Response>::default();
        let response = self.grpc.unary(request, PathAndQuery::from_static(METHOD), codec).await;
        let responses = response.map_err(|status| status.message().to_owned())?.into_inner().responses;
        if let Some(failed) = responses.iter().find(|one| !one.error.is_empty()) {
            return Err(failed.error.clone());
        }
        let is_denied = responses.iter().any(|one| one.status == OVER_LIMIT);
        let remaining = responses.iter().filter_map(|one| u64::try_from(one.remaining).ok()).min();
        Ok(Answer {
            told: if is_denied { Told::Denied } else { Told::Allowed },
            remaining: remaining.filter(|_| !is_denied),
            // It tells when the counter is as new, which is no wait.
            wait: None,
            total: None,
            by: None,
        })
    }
}
