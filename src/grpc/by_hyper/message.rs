//! Receives the message of a call completely before any other work: a declared length reserves no memory, half-received
//! bytes count against the connection's budget, and the message must be complete within a deadline.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming};
use tonic::Status;
use tonic::codegen::http;
use tonic::codegen::http::header::{HeaderMap, HeaderName, HeaderValue};

use super::session::{Held, Session};
use crate::grpc::bounds;
use crate::grpc::protocol::{self, PREFIX};

/// Returns the request with its complete body, or the part that a message of `max_message_bytes` can have.
///
/// # Errors
/// If the body breaks off, is late, or exceeds the connection's budget.
pub(super) async fn receive(
    request: http::Request<Incoming>,
    session: &Arc<Session>,
    max_message_bytes: usize,
) -> Result<http::Request<Full<Bytes>>, Status> {
    let (mut parts, body) = request.into_parts();
    let mut message =
        Message { body, most: max_message_bytes.saturating_add(PREFIX), frame: Bytes::new(), kept: Vec::new() };
    let bytes = match poll_fn(|cx| Poll::Ready(message.poll(cx))).await {
        Poll::Ready(received) => received?,
        // Boxed, to spare a message that is already complete the larger state.
        Poll::Pending => Box::pin(wait(&mut parts, message, session)).await?,
    };
    match declared_length(&bytes) {
        Some(length) if length > max_message_bytes => Err(bounds::too_large(length, max_message_bytes)),
        _ => Ok(http::Request::from_parts(parts, Full::new(bytes))),
    }
}

/// Returns the length that the prefix of a message declares, or `None` if the prefix is cut off.
fn declared_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..PREFIX)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// Receives the rest of a message that is not complete yet.
async fn wait(parts: &mut http::request::Parts, mut message: Message, session: &Arc<Session>) -> Result<Bytes, Status> {
    let mut held = session.held();
    let headers = detach(parts);
    let receive = poll_fn(|cx| {
        let polled = message.poll(cx);
        if polled.is_pending() && !held.grow_to(headers + message.keep()) {
            return Poll::Ready(Err(bounds::too_much_half_received()));
        }
        polled
    });
    let drained = async {
        session.drained().await;
        tokio::time::sleep(bounds::DRAIN_TIME).await;
    };
    tokio::select! {
        biased;
        received = receive => received,
        () = tokio::time::sleep(bounds::MESSAGE_TIME) => {
            Err(bounds::late())
        }
        () = drained => Err(bounds::draining()),
    }
}

/// Returns the trailers that end a call with this status.
///
/// # Errors
/// If the status cannot be written as headers.
pub(super) fn trailers<D>(status: &Status) -> Result<Frame<D>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
}

/// A message being received.
struct Message {
    body: Incoming,
    most: usize,
    /// The first frame. It shares memory with whatever else was read from the connection at that time.
    frame: Bytes,
    /// All frames, copied, if there is more than one or the next has not arrived.
    kept: Vec<u8>,
}

impl Message {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while self.frame.len() + self.kept.len() < self.most {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => break,
                Some(Err(error)) => return Poll::Ready(Err(Status::cancelled(error.to_string()))),
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        self.push(data);
                    }
                    if self.body.is_end_stream() {
                        break;
                    }
                }
            }
        }
        let frame = std::mem::take(&mut self.frame);
        Poll::Ready(Ok(if self.kept.is_empty() { frame } else { std::mem::take(&mut self.kept).into() }))
    }

    fn push(&mut self, data: Bytes) {
        if self.frame.is_empty() && self.kept.is_empty() {
            self.frame = data;
        } else {
            self.keep();
            self.append(&data);
        }
    }

    /// Copies the shared frame, and returns how much memory the message takes.
    fn keep(&mut self) -> usize {
        let frame = std::mem::take(&mut self.frame);
        self.append(&frame);
        self.kept.capacity()
    }

    fn append(&mut self, data: &[u8]) {
        protocol::append(&mut self.kept, data, self.most);
    }
}

/// Copies the headers, and returns their size. As received, each header keeps everything alive that was read from the
/// connection with it.
pub(super) fn detach(parts: &mut http::request::Parts) -> usize {
    let mut bytes = parts.uri.path().len();
    let mut detached = HeaderMap::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        bytes += name.as_str().len() + value.len() + bounds::HEADER_OVERHEAD;
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        let copied = HeaderValue::from_bytes(value.as_bytes());
        // Valid headers remain valid when copied.
        if let (Ok(name), Ok(mut copied)) = (name, copied) {
            copied.set_sensitive(value.is_sensitive());
            detached.append(name, copied);
        }
    }
    parts.headers = detached;
    // Only the path is needed.
    if let Ok(uri) = http::Uri::try_from(parts.uri.path().to_owned()) {
        parts.uri = uri;
    }
    bytes
}

/// A body that is read as it arrives, for a call with any number of messages. All its bytes count against the
/// connection's budget until the call ends.
pub(super) struct Counted {
    body: Incoming,
    held: Held,
}

impl Counted {
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the budget has no room for the call's headers.
    pub(super) fn new(body: Incoming, headers: usize, session: &Arc<Session>) -> Result<Counted, Status> {
        let mut held = session.held();
        if held.grow_by(headers) { Ok(Counted { body, held }) } else { Err(bounds::too_much_half_received()) }
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(polled.map(|frame| {
            let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if self.held.grow_by(bytes) { Ok(frame) } else { Err(bounds::too_much_half_received()) }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
