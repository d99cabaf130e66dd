//! Envoy's rate limit service, by the part of its messages that a judge needs.

use std::time::Duration;

use serde::Deserialize;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{Answer, Asked};
use crate::history::{Ask, Told};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OVER_LIMIT: i32 = 2;

/// A service, by the addresses of its instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rls {
    /// HOST:PORT of each instance; callers are spread over them.
    pub addresses: Vec<String>,
    /// The domain of the rules.
    pub domain: String,
    /// The header of an answer that says who decided, if there is one.
    #[serde(default)]
    pub decided_by: String,
}

/// A connection to one instance.
#[derive(Clone, Debug)]
pub struct Client {
    grpc: Grpc<Channel>,
    domain: String,
    decided_by: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<Number>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Number {
    #[prost(uint64, tag = "1")]
    value: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Seconds>,
}

/// A limit, of which only matters that it is there.
#[derive(Clone, PartialEq, prost::Message)]
struct Limit {}

#[derive(Clone, PartialEq, prost::Message)]
struct Seconds {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Rls {
    pub(super) fn connect(&self, caller: usize) -> anyhow::Result<Client> {
        let address = self.addresses.get(caller % self.addresses.len().max(1));
        let address = address.ok_or_else(|| anyhow::anyhow!("a target needs an address, HOST:PORT"))?;
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        Ok(Client { grpc: Grpc::new(channel), domain: self.domain.clone(), decided_by: self.decided_by.clone() })
    }
}

impl Client {
    pub(super) async fn ask(&mut self, ask: Ask, asked: &[Asked], deadline: Duration) -> Result<Answer, String> {
        if ask == Ask::Total {
            return Err("the system has no count of its own".to_owned());
        }
        let descriptors = asked.iter().map(|one| Descriptor::new(ask, one)).collect();
        let mut request = tonic::Request::new(Request { domain: self.domain.clone(), descriptors });
        request.set_timeout(deadline);
        self.grpc.ready().await.map_err(|error| error.to_string())?;
        let codec = ProstCodec::<Request, Response>::default();
        let response = self.grpc.unary(request, PathAndQuery::from_static(METHOD), codec).await;
        let response = response.map_err(|status| status.message().to_owned())?.into_inner();
        Ok(response.answer(&self.decided_by))
    }
}

impl Descriptor {
    fn new(ask: Ask, asked: &Asked) -> Descriptor {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let mut entries = vec![entry(&asked.entry, &asked.key)];
        let stream = match ask {
            Ask::Hold => "hold",
            Ask::Settle => "settle",
            Ask::Take | Ask::Peek | Ask::Return | Ask::Total => "stream",
        };
        entries.extend(asked.holder.iter().map(|holder| entry(stream, holder)));
        let value = if ask == Ask::Peek { 0 } else { asked.hits };
        Descriptor { entries, hits_addend: Some(Number { value }), is_negative_hits: ask == Ask::Return }
    }
}

impl Response {
    fn answer(self, decided_by: &str) -> Answer {
        let is_denied = self.overall_code == OVER_LIMIT;
        let limited = || self.statuses.iter().filter(|status| status.current_limit.is_some());
        // A denied request waits for all that deny it.
        let waits = limited().filter(|status| status.code == OVER_LIMIT).filter_map(|status| {
            let Seconds { seconds, nanos } = status.duration_until_reset.as_ref()?;
            Some(Duration::new(u64::try_from(*seconds).ok()?, u32::try_from(*nanos).ok()?))
        });
        let remaining = limited().map(|status| u64::from(status.limit_remaining)).min();
        let is_by = |header: &&Entry| header.key.eq_ignore_ascii_case(decided_by);
        Answer {
            told: if is_denied { Told::Denied } else { Told::Allowed },
            remaining: remaining.filter(|_| !is_denied),
            wait: waits.max().filter(|_| is_denied),
            total: None,
            by: self.response_headers_to_add.iter().find(is_by).map(|header| header.value.clone()),
        }
    }
}
