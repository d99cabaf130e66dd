//! Forwards calls to tonic's services, and their answers to the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use tonic::service::Routes;

use super::calls::{Call, Calls, fail, put};
use super::connection::Connection;
use super::drive::Answer;
use super::frame::Reason;
use super::general::{self, Inlet, Outlet, Piece, State};
use super::head::{Head, To};
use super::stream::End;
use super::tasks::Panicked;
use crate::grpc::bounds::{self, MAX_UNREAD, MAX_UNREAD_ANSWER};

/// A call that a tonic service answers.
pub(super) struct General {
    pub(super) stream: u32,
    pub(super) place: usize,
    pub(super) state: Arc<State>,
    /// The sink of the request's messages, if there may be any number of them.
    pub(super) inlet: Option<Inlet>,
    pub(super) held: usize,
}

/// The task of a forwarded call.
pub(super) type Forwarding = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl<A: Answer> Calls<A> {
    /// Forwards a call whose only message is complete.
    pub(super) fn unary(
        &mut self,
        connection: &mut Connection<Call>,
        stream: u32,
        (path, headers): (&str, Option<Box<HeaderMap>>),
        body: &[u8],
    ) {
        let body = Full::new(Bytes::copy_from_slice(body)).map_err(|never| match never {});
        match general::request(path, headers, body) {
            Ok(request) => self
                .forward(connection, stream, None, |routes, outlet| Box::pin(general::answer(routes, request, outlet))),
            Err(status) => fail(connection, stream, &status),
        }
    }

    /// Forwards a call that may have any number of messages.
    pub(super) fn stream(&mut self, connection: &mut Connection<Call>, stream: u32, head: Head) {
        if connection.unread() >= MAX_UNREAD {
            return fail(connection, stream, &bounds::too_much_unread());
        }
        let To::Other(path) = &head.to else { return };
        let (inlet, incoming) = general::incoming();
        self.held += head.bytes;
        if self.held > self.budget {
            self.held -= head.bytes;
            return fail(connection, stream, &bounds::too_much_half_received());
        }
        match general::request(path, head.headers, incoming) {
            Ok(request) => self.forward(connection, stream, Some((inlet, head.bytes)), |routes, outlet| {
                Box::pin(general::answer(routes, request, outlet))
            }),
            Err(status) => {
                self.held -= head.bytes;
                fail(connection, stream, &status);
            }
        }
    }

    /// Starts the task of a call.
    fn forward(
        &mut self,
        connection: &mut Connection<Call>,
        stream: u32,
        inlet: Option<(Inlet, usize)>,
        answer: impl FnOnce(Routes, Outlet) -> Forwarding,
    ) {
        let state = Arc::new(State::default());
        state.is_draining.store(self.is_draining, Ordering::Relaxed);
        let outlet = Outlet { stream, pieces: Arc::clone(&self.pieces), state: Arc::clone(&state) };
        let (inlet, held) = inlet.unzip();
        let held = held.unwrap_or(0);
        match self.general.start(stream, || answer(self.others.clone(), outlet)) {
            Ok(ended) => {
                self.held -= held;
                self.forwarded(connection, stream, ended);
            }
            Err(place) => put(connection, stream, Call::General(General { stream, place, state, inlet, held })),
        }
        self.take_pieces(connection);
    }

    /// Forgets a call whose task has ended.
    pub(super) fn forwarded(&mut self, connection: &mut Connection<Call>, stream: u32, ended: Result<(), Panicked>) {
        if let Some(Call::General(general)) = connection.call(stream).map(std::mem::take) {
            self.held -= general.held;
        }
        if ended.is_err() {
            connection.reset(stream, Reason::Internal);
        }
    }

    /// Sends the pieces that the services have produced.
    pub(super) fn take_pieces(&mut self, connection: &mut Connection<Call>) {
        loop {
            let Some((stream, piece)) = self.pieces.lock().pop_front() else { return };
            match piece {
                Piece::Headers(block, ended) => connection.send_headers(stream, &block, ended),
                Piece::Data(bytes) if connection.unsent + bytes.len() > MAX_UNREAD => {
                    // Cancelled before its end is sent, because that removes the stream.
                    if let Some(call) = connection.call(stream).map(std::mem::take) {
                        self.cancel(call);
                    }
                    let block = general::status_block(&bounds::too_much_unread(), false);
                    connection.send_end(stream, End::Trailers(block));
                }
                Piece::Data(bytes) => {
                    connection.send_data(stream, bytes);
                    if connection.unsent_of(stream) >= MAX_UNREAD_ANSWER
                        && let Some(Call::General(general)) = connection.call(stream)
                        && !general.state.is_full.swap(true, Ordering::Relaxed)
                    {
                        self.full.push(stream);
                    }
                }
                Piece::End(end) => connection.send_end(stream, end),
            }
        }
    }

    /// Resumes answers that waited for the client to read.
    pub(super) fn make_room(&mut self, connection: &mut Connection<Call>) {
        if self.full.is_empty() {
            return;
        }
        let mut full = std::mem::take(&mut self.full);
        full.retain(|stream| {
            let is_full = connection.unsent_of(*stream) >= MAX_UNREAD_ANSWER;
            if let (false, Some(Call::General(general))) = (is_full, connection.call(*stream)) {
                general.state.is_full.store(false, Ordering::Relaxed);
                self.general.wake(general.place);
            }
            is_full
        });
        self.full = full;
    }
}
