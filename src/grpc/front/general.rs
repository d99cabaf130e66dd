//! Calls of the services that tonic answers: health, reflection, and methods that do not exist. Each is an
//! `http::Request` for tonic's router; its answer is handed on to the connection piece by piece.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;
use tonic::Status;
use tonic::codegen::Service as _;
use tonic::service::Routes;

use super::hpack;
use super::stream::End;
use crate::grpc::bounds;

/// A piece of an answer.
pub(super) enum Piece {
    /// A header block; `true` if it is the whole answer.
    Headers(Vec<u8>, bool),
    Data(Bytes),
    End(End),
}

/// The pieces of all answers of a connection that it has not taken, each with its stream.
pub(super) type Pieces = Arc<Mutex<VecDeque<(u32, Piece)>>>;

/// Where an answer goes.
pub(super) struct Outlet {
    pub(super) stream: u32,
    pub(super) pieces: Pieces,
    pub(super) state: Arc<State>,
}

/// What the connection tells the task of a call. It wakes the task when something changes.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Whether so much is unsent that the task waits.
    pub(super) is_full: AtomicBool,
    /// Whether the call ends because the process does.
    pub(super) is_draining: AtomicBool,
}

/// Answers a call. The answer ends when the process drains, even if the service has not finished.
pub(super) async fn answer<B>(mut routes: Routes, request: Request<B>, outlet: Outlet)
where
    B: Body<Data = Bytes, Error = Status> + Send + 'static,
{
    let answering = routes.call(request);
    drop(routes);
    let response = tokio::select! {
        biased;
        Ok(response) = answering => response,
        () = outlet.drained() => return outlet.fail(&bounds::draining()),
    };
    // A watch lasts: of the response only its body is kept.
    let mut body = outlet.send_headers(response);
    if body.is_end_stream() {
        return;
    }
    loop {
        outlet.room().await;
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = outlet.drained() => return outlet.send(trailers(&bounds::draining())),
        };
        match frame {
            None => return outlet.send(Piece::End(End::Data)),
            Some(Err(status)) => return outlet.send(trailers(&status)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => outlet.send(Piece::Data(bytes)),
                Err(frame) => {
                    let mut block = Vec::new();
                    frame.trailers_ref().iter().for_each(|trailers| headers(&mut block, trailers));
                    return outlet.send(Piece::End(End::Trailers(block)));
                }
            },
        }
    }
}

impl Outlet {
    fn send(&self, piece: Piece) {
        self.pieces.lock().push_back((self.stream, piece));
    }

    fn send_headers<B: Body>(&self, response: Response<B>) -> B {
        let (parts, body) = response.into_parts();
        let mut block = Vec::new();
        hpack::status(&mut block, parts.status.as_u16());
        headers(&mut block, &parts.headers);
        self.send(Piece::Headers(block, body.is_end_stream()));
        body
    }

    fn fail(&self, status: &Status) {
        self.send(Piece::Headers(status_block(status, true), true));
    }

    /// Waits until the client has taken most of what it was sent.
    async fn room(&self) {
        std::future::poll_fn(|_| until(!self.state.is_full.load(Ordering::Relaxed))).await;
    }

    /// Waits until the process drains.
    async fn drained(&self) {
        std::future::poll_fn(|_| until(self.state.is_draining.load(Ordering::Relaxed))).await;
    }
}

fn until(condition: bool) -> Poll<()> {
    if condition { Poll::Ready(()) } else { Poll::Pending }
}

/// Returns the request for a method, with this body.
///
/// # Errors
/// If the path is no path.
pub(super) fn request<B>(path: &str, headers: Option<Box<HeaderMap>>, body: B) -> Result<Request<B>, Status> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = Uri::try_from(path).map_err(|_| Status::unimplemented("the path is not that of a method"))?;
    if let Some(headers) = headers {
        *request.headers_mut() = *headers;
    }
    Ok(request)
}

/// Returns the block of an answer that has only headers with this status, or of trailers.
pub(super) fn status_block(status: &Status, is_whole: bool) -> Vec<u8> {
    let mut block = Vec::new();
    if is_whole {
        hpack::status(&mut block, StatusCode::OK.as_u16());
        hpack::literal(&mut block, b"content-type", b"application/grpc");
    }
    let mut fields = HeaderMap::new();
    if status.add_header(&mut fields).is_err() {
        // Metadata of a status that cannot be written: its code alone.
        fields.clear();
        fields.insert("grpc-status", (status.code() as i32).into());
    }
    headers(&mut block, &fields);
    block
}

fn trailers(status: &Status) -> Piece {
    Piece::End(End::Trailers(status_block(status, false)))
}

fn headers(block: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        hpack::literal(block, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// The body of a call with any number of messages, as it arrives.
#[derive(Debug)]
pub(super) struct Incoming(Arc<Mutex<Arrived>>);

/// Where the pieces of that body come in. Dropping this before the last one breaks the body off: what waits for the
/// next piece, such as a task of the service, would otherwise wait forever.
#[derive(Debug)]
pub(super) struct Inlet(Arc<Mutex<Arrived>>);

#[derive(Debug, Default)]
struct Arrived {
    pieces: VecDeque<Bytes>,
    end: Option<Result<(), Status>>,
    waker: Option<Waker>,
}

/// Returns a body, and where its pieces come in.
pub(super) fn incoming() -> (Inlet, Incoming) {
    let arrived = Arc::<Mutex<Arrived>>::default();
    (Inlet(Arc::clone(&arrived)), Incoming(arrived))
}

impl Inlet {
    /// Adds a piece, which may be the last.
    pub(super) fn push(&self, bytes: &[u8], ended: bool) {
        let mut arrived = self.0.lock();
        if !bytes.is_empty() {
            arrived.pieces.push_back(Bytes::copy_from_slice(bytes));
        }
        if ended {
            arrived.end = Some(Ok(()));
        }
        arrived.wake();
    }

    /// Breaks the body off.
    pub(super) fn fail(&self, status: Status) {
        let mut arrived = self.0.lock();
        arrived.end = Some(Err(status));
        arrived.wake();
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut arrived = self.0.lock();
        if arrived.end.is_none() {
            arrived.end = Some(Err(Status::cancelled("the call has ended before its request")));
        }
        arrived.wake();
    }
}

impl Arrived {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut arrived = self.0.lock();
        if let Some(bytes) = arrived.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match arrived.end.take() {
            Some(Err(status)) => {
                arrived.end = Some(Ok(()));
                Poll::Ready(Some(Err(status)))
            }
            Some(Ok(())) => {
                arrived.end = Some(Ok(()));
                Poll::Ready(None)
            }
            None => {
                arrived.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let arrived = self.0.lock();
        arrived.pieces.is_empty() && matches!(arrived.end, Some(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_body_ends_with_its_last_piece_or_breaks_off_with_its_call() {
        let (inlet, mut body) = incoming();
        inlet.push(b"one", false);
        inlet.push(b"two", true);
        drop(inlet);
        let whole = (&mut body).collect().await.unwrap().to_bytes();
        assert_eq!((&whole[..], body.is_end_stream()), (&b"onetwo"[..], true));

        let (inlet, mut body) = incoming();
        let mut frame = body.frame();
        assert!((&mut frame).now_or_never().is_none());
        drop(inlet);
        assert_eq!(frame.await.unwrap().unwrap_err().code(), tonic::Code::Cancelled);
    }
}
