//! One stream to a management server, with its requests and responses.

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

/// Longest reason for a rejection that is sent, in bytes; a management server reads no more.
const MOST_REASON_BYTES: usize = 8 * 1024;

/// Reasons for a stream to fail or end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The connection failed.
    #[error("{0}")]
    Unreachable(String),
    /// The connection was lost.
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// The server rejected the stream.
    #[error("the server rejected the stream: {0}")]
    Refused(String),
    /// The server ended the stream.
    #[error("the server ended the stream")]
    Ended,
    /// The response is too large.
    #[error("the response has more than {0} bytes: raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")]
    TooLong(usize),
}

impl StreamError {
    /// Returns the first wait before the next attempt.
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
        // A status from the server itself has no error as its source.
        match std::error::Error::source(status) {
            Some(source) => StreamError::Lost(causes(source)),
            None if status.code() == Code::Unimplemented => StreamError::Refused(
                "it is no management server (Unimplemented): see CONFIG_GRPC_XDS_SERVER_URL".into(),
            ),
            None if status.message().is_empty() => StreamError::Refused(status.code().to_string()),
            None => StreamError::Refused(format!("{} ({:?})", status.message(), status.code())),
        }
    }
}

/// An open stream with a request sent on it.
pub(super) struct Stream<'o> {
    options: &'o Options,
    requests: mpsc::UnboundedSender<DiscoveryRequest>,
    responses: Responses,
}

/// The responses. A server may send nothing, not even headers, before its first response.
enum Responses {
    Opening(BoxFuture<'static, Result<Streaming<DiscoveryResponse>, tonic::Status>>),
    Open(Box<Streaming<DiscoveryResponse>>),
}

impl<'o> Stream<'o> {
    /// Connects, and requests all resources, without a version.
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

    /// Waits for the next response. Dropping the future loses no data.
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
        // Fails only if the stream has ended, which `next` reports.
        let _ = self.requests.send(DiscoveryRequest { type_url: TYPE_URL.into(), ..request });
    }
}

/// Builds the acceptance of the response with this nonce.
pub(super) fn ack(version: &str, nonce: String) -> DiscoveryRequest {
    DiscoveryRequest { version_info: version.to_owned(), response_nonce: nonce, ..DiscoveryRequest::default() }
}

/// Builds the rejection of the response with this nonce; `version` is the one accepted before.
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
