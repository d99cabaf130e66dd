//! One stream to a management server: what is sent on it, and what comes.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream;
use prost_types::{Struct, Value, value};
use tokio::sync::mpsc;
use tonic::{Code, Request, Streaming};

use super::connect::connect;
use super::resource::TYPE_URL;
use super::{Metadata, Options};
use crate::connect::causes;
use crate::wire::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use crate::wire::{Node, Status, node};

/// A management server reads no more of a reason.
const MOST_REASON_BYTES: usize = 8 * 1024;

/// Why there is no stream, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No connection comes about.
    #[error("{0}")]
    Unreachable(String),
    /// There was one.
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// The server does not want this.
    #[error("it refuses the stream: {0}")]
    Refused(String),
    /// It does not want any more.
    #[error("it has ended the stream")]
    Ended,
    /// More than is taken.
    #[error("its response has more than {0} bytes: raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")]
    TooLong(usize),
}

impl StreamError {
    /// How long to wait at first before the next attempt.
    pub(super) fn first_wait(&self, options: &Options) -> Duration {
        match self {
            StreamError::Unreachable(_) | StreamError::Lost(_) | StreamError::Ended => options.backoff.unreachable,
            StreamError::Refused(_) | StreamError::TooLong(_) => options.backoff.refused,
        }
    }

    fn of(status: &tonic::Status, options: &Options) -> StreamError {
        if status.code() == Code::OutOfRange && status.message().contains("message length too large") {
            return StreamError::TooLong(options.max_response_bytes);
        }
        // What the server says itself comes from no error of ours.
        match std::error::Error::source(status) {
            Some(source) => StreamError::Lost(causes(source)),
            None if status.message().is_empty() => StreamError::Refused(status.code().to_string()),
            None => StreamError::Refused(format!("{} ({:?})", status.message(), status.code())),
        }
    }
}

/// A stream that a request has been sent on.
pub(super) struct Stream<'o> {
    options: &'o Options,
    requests: mpsc::UnboundedSender<DiscoveryRequest>,
    responses: Responses,
}

/// The responses. A server may send nothing at all, not even headers, before there is something to say.
enum Responses {
    Opening(BoxFuture<'static, Result<Streaming<DiscoveryResponse>, tonic::Status>>),
    Open(Box<Streaming<DiscoveryResponse>>),
}

impl<'o> Stream<'o> {
    /// Connects, and asks for all resources, without a version.
    pub(super) async fn open(options: &'o Options) -> Result<Stream<'o>, StreamError> {
        let channel = connect(options).await?;
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(options.max_response_bytes);
        let (requests, mut queue) = mpsc::unbounded_channel();
        let mut request = Request::new(stream::poll_fn(move |context| queue.poll_recv(context)));
        *request.metadata_mut() = options.headers.0.clone();
        let call = async move { client.stream_aggregated_resources(request).await.map(tonic::Response::into_inner) };
        let stream = Stream { options, requests, responses: Responses::Opening(Box::pin(call)) };
        stream.send(DiscoveryRequest { node: Some(node(options)), ..DiscoveryRequest::default() });
        Ok(stream)
    }

    /// The next response. What has come is not lost where this is dropped.
    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, StreamError> {
        loop {
            let responses = match &mut self.responses {
                Responses::Opening(call) => call.await.map_err(|status| StreamError::of(&status, self.options))?,
                Responses::Open(responses) => {
                    let next = responses.message().await;
                    let next = next.map_err(|status| StreamError::of(&status, self.options))?;
                    return next.ok_or(StreamError::Ended);
                }
            };
            self.responses = Responses::Open(Box::new(responses));
        }
    }

    /// Sends a request about these resources.
    pub(super) fn send(&self, request: DiscoveryRequest) {
        // It fails only where the stream has ended, which `next` tells.
        let _ = self.requests.send(DiscoveryRequest { type_url: TYPE_URL.into(), ..request });
    }
}

/// Says of the response with this nonce that it is accepted.
pub(super) fn ack(version: &str, nonce: String) -> DiscoveryRequest {
    DiscoveryRequest { version_info: version.to_owned(), response_nonce: nonce, ..DiscoveryRequest::default() }
}

/// Says of the response with this nonce why it is refused; `version` is what was accepted before.
pub(super) fn nack(version: &str, nonce: String, reason: &str) -> DiscoveryRequest {
    let mut end = reason.len().min(MOST_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut message = reason[..end].to_owned();
    if end < reason.len() {
        message.push_str("...");
    }
    let error_detail = Some(Status { code: Code::InvalidArgument.into(), message });
    DiscoveryRequest { error_detail, ..ack(version, nonce) }
}

fn node(options: &Options) -> Node {
    let text = |text: &String| Value { kind: Some(value::Kind::StringValue(text.clone())) };
    let Metadata(pairs) = &options.node_metadata;
    Node {
        id: options.node_id.clone(),
        metadata: Some(Struct { fields: pairs.iter().map(|(name, value)| (name.clone(), text(value))).collect() }),
        user_agent_name: "tollgate".into(),
        user_agent_version_type: Some(node::UserAgentVersionType::UserAgentVersion(env!("CARGO_PKG_VERSION").into())),
    }
}
