//! A call's message is received whole before anything is done for it: nothing is reserved that its length only
//! promises, what is half-received is counted against its connection's budget, and it has to be whole in time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming};
use tonic::Status;
use tonic::codegen::http;
use tonic::codegen::http::header::{HeaderMap, HeaderName, HeaderValue};

use super::session::{Held, Session};

/// How long a client may take from a call's headers to its end.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// And how long yet once the process drains.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// What a header takes beside its name and its value: its place in a map.
const HEADER_OVERHEAD: usize = 128;
/// gRPC's prefix of a message: a flag, and its length.
const PREFIX: usize = 5;

/// The request with all of its body, or as much of it as a message of `max_message_bytes` has.
///
/// # Errors
/// Where it does not come, not in time, or not within the connection's budget.
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
        // What a late message needs is set aside for none that is there.
        Poll::Pending => Box::pin(wait(&mut parts, message, session)).await?,
    };
    Ok(http::Request::from_parts(parts, Full::new(bytes)))
}

/// The rest of a message of which something has not come yet.
async fn wait(parts: &mut http::request::Parts, mut message: Message, session: &Arc<Session>) -> Result<Bytes, Status> {
    let mut held = session.held();
    let headers = detach(parts);
    let receive = poll_fn(|cx| {
        let polled = message.poll(cx);
        if polled.is_pending() && !held.grow_to(headers + message.keep()) {
            return Poll::Ready(Err(over_budget()));
        }
        polled
    });
    let drained = async {
        session.drained().await;
        tokio::time::sleep(DRAIN_TIME).await;
    };
    tokio::select! {
        biased;
        received = receive => received,
        () = tokio::time::sleep(MESSAGE_TIME) => {
            Err(Status::deadline_exceeded(format!("the request has not come whole within {MESSAGE_TIME:?}")))
        }
        () = drained => Err(draining()),
    }
}

/// What a call is answered that the end of the process ends.
pub(super) fn draining() -> Status {
    Status::unavailable("the service is shutting down")
}

fn over_budget() -> Status {
    Status::resource_exhausted("too much of this connection's requests is half-received")
}

/// A message as it comes.
struct Message {
    body: Incoming,
    most: usize,
    /// The first frame. It shares its memory with what else was read from the connection at the time.
    frame: Bytes,
    /// All frames, in memory of their own, where there is more than one or the next has not come.
    kept: Vec<u8>,
}

impl Message {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while self.frame.len() + self.kept.len() < self.most {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => break,
                Some(Err(error)) => return Poll::Ready(Err(Status::cancelled(error.to_string()))),
                Some(Ok(frame)) => {
                    // Trailers say nothing.
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
            self.kept.extend_from_slice(&data);
        }
    }

    /// Lets go of what is shared, and returns how much memory the message takes.
    fn keep(&mut self) -> usize {
        let frame = std::mem::take(&mut self.frame);
        self.kept.extend_from_slice(&frame);
        self.kept.capacity()
    }
}

/// Puts the headers into memory of their own, and returns how much. As they come, each keeps all that was read from the
/// connection with it.
pub(super) fn detach(parts: &mut http::request::Parts) -> usize {
    let mut bytes = parts.uri.path().len();
    let mut detached = HeaderMap::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        bytes += name.as_str().len() + value.len() + HEADER_OVERHEAD;
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        let copied = HeaderValue::from_bytes(value.as_bytes());
        // What was valid stays so.
        if let (Ok(name), Ok(mut copied)) = (name, copied) {
            copied.set_sensitive(value.is_sensitive());
            detached.append(name, copied);
        }
    }
    parts.headers = detached;
    // A path is all that is asked of it.
    if let Ok(uri) = http::Uri::try_from(parts.uri.path().to_owned()) {
        parts.uri = uri;
    }
    bytes
}

/// A body that is read as it comes, of a call that has any number of messages. All of it counts against the
/// connection's budget until the call ends.
pub(super) struct Counted {
    body: Incoming,
    held: Held,
}

impl Counted {
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the budget has no room for the call's headers.
    pub(super) fn new(body: Incoming, headers: usize, session: &Arc<Session>) -> Result<Counted, Status> {
        let mut held = session.held();
        if held.grow_by(headers) { Ok(Counted { body, held }) } else { Err(over_budget()) }
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
            if self.held.grow_by(bytes) { Ok(frame) } else { Err(over_budget()) }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
