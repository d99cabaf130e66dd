//! The calls of one connection: receives their messages, has them answered, and sends the answers.
//!
//! Nearly every call is for the rate limit service, and its message is one frame. Such a call is decided when the frame
//! is read, without a copy of its bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::{BodyExt as _, Full};
use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;

use super::alarm::Alarm;
use super::connection::Connection;
use super::drive::Answer;
use super::frame::Reason;
use super::general::{self, Incoming, Inlet, Outlet, Piece, Pieces, State};
use super::head::{Head, Method, To};
use super::hpack;
use super::short::{self, PREFIX};
use super::stream::End;
use super::tasks::{Panicked, Tasks};
use crate::grpc::message::{self, DRAIN_TIME, MESSAGE_TIME};
use crate::grpc::unsent::{BUDGET, MAX_UNSENT, over_budget};
use crate::grpc::{CallError, CallerHeaders};
use crate::instant;
use crate::wire::RateLimitResponse;

/// Deadlines of calls that have ended which may be kept.
const SPARE: usize = 64;

/// Memory of a piece of a body beyond its bytes.
const PIECE_OVERHEAD: usize = 64;

/// Memory for the message of an answer that is kept for the next one.
const KEPT_MESSAGE: usize = 64 * 1024;

/// Number of calls that are decided by one reading of the clock. Most cost a microsecond, some a hundred times as much.
const SAME_TIME: usize = 32;

/// What is kept of a call.
#[derive(Default)]
pub(super) enum Call {
    /// It has been answered, or is about to be.
    #[default]
    Answered,
    /// Its message has not come completely.
    Receiving(Receiving),
    /// It is being decided in this place.
    Deciding(u32, usize),
    /// A service of tonic answers it.
    General(General),
}

/// A call whose message has not come completely.
pub(super) struct Receiving {
    head: Head,
    message: Vec<u8>,
    /// Bytes that it holds of the connection's budget.
    held: usize,
}

/// A call that a service of tonic answers.
pub(super) struct General {
    stream: u32,
    place: usize,
    state: Arc<State>,
    /// Where its messages come in, if it may have any number of them.
    inlet: Option<Inlet>,
    held: usize,
}

type Forwarding = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of a connection.
pub(super) struct Calls<A: Answer> {
    answer: A,
    others: Routes,
    deciding: Tasks<A::Future, u32>,
    general: Tasks<Forwarding, u32>,
    pieces: Pieces,
    max_message_bytes: usize,
    /// Bytes of half-received messages that the connection may hold, and that it holds.
    budget: usize,
    held: usize,
    /// Calls without a whole message, which were opened in this poll.
    fresh: Vec<u32>,
    /// Calls without a whole message, with the time at which they are late.
    late: VecDeque<(Instant, u32)>,
    /// Calls whose answers wait for room.
    full: Vec<u32>,
    /// Whether a call has begun or was answered since that was last asked.
    has_begun: bool,
    /// Number of calls decided since the clock was read.
    decided: usize,
    is_draining: bool,
    /// The message of the answer that is being sent.
    message: Vec<u8>,
}

impl<A: Answer> Calls<A> {
    pub(super) fn new((answer, others): (A, Routes), max_message_bytes: usize, half_received: usize) -> Self {
        Calls {
            answer,
            others,
            deciding: Tasks::new(),
            general: Tasks::new(),
            pieces: Pieces::default(),
            max_message_bytes,
            budget: half_received,
            held: 0,
            fresh: Vec::new(),
            late: VecDeque::new(),
            full: Vec::new(),
            has_begun: false,
            decided: 0,
            is_draining: false,
            message: Vec::new(),
        }
    }

    /// Returns the number of requests that are being decided.
    pub(super) fn deciding(&self) -> usize {
        self.deciding.len()
    }

    /// Returns whether a call has begun or was answered since the last time.
    pub(super) fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    /// Has this task woken when a call can go on.
    pub(super) fn register(&self, cx: &std::task::Context<'_>) {
        self.deciding.register(cx);
        self.general.register(cx);
    }

    /// Sends the answers that are ready.
    pub(super) fn go_on(&mut self, connection: &mut Connection<Call>) {
        while let Some((stream, answer)) = self.deciding.poll_next() {
            self.answered(connection, stream, answer);
        }
        while let Some((stream, ended)) = self.general.poll_next() {
            self.forwarded(connection, stream, ended);
        }
        self.take_pieces(connection);
    }

    /// Takes a new call.
    pub(super) fn open(&mut self, connection: &mut Connection<Call>, stream: u32, head: Head, ended: bool) {
        if ended {
            self.complete(connection, stream, head, &[]);
        } else if is_stream(&head) && refusal(&head).is_none() {
            self.stream(connection, stream, head);
        } else {
            self.fresh.push(stream);
            let held = head.bytes;
            self.held += held;
            put(connection, stream, Call::Receiving(Receiving { head, message: Vec::new(), held }));
            if self.held > self.budget {
                self.give_up(connection, stream, &message::over_budget());
            }
        }
    }

    /// Takes a part of a call's body.
    pub(super) fn data(&mut self, connection: &mut Connection<Call>, stream: u32, bytes: &[u8], ended: bool) {
        let Some(call) = connection.call(stream) else { return };
        match call {
            Call::Receiving(receiving) => {
                let most = self.max_message_bytes.saturating_add(PREFIX);
                if ended && receiving.message.is_empty() {
                    if let Call::Receiving(Receiving { head, held, .. }) = std::mem::take(call) {
                        self.received(stream, held);
                        self.complete(connection, stream, head, bytes);
                    }
                    return;
                }
                // What goes beyond the largest message is not needed to refuse it.
                let room = most.saturating_sub(receiving.message.len()).min(bytes.len());
                append(&mut receiving.message, &bytes[..room], most);
                if ended || receiving.message.len() >= most {
                    if let Call::Receiving(Receiving { head, message, held }) = std::mem::take(call) {
                        self.received(stream, held);
                        self.complete(connection, stream, head, &message);
                    }
                    return;
                }
                let needed = receiving.head.bytes + receiving.message.capacity();
                self.held += needed - receiving.held;
                receiving.held = needed;
                if self.held > self.budget {
                    self.give_up(connection, stream, &message::over_budget());
                }
            }
            Call::General(general) => {
                let Some(inlet) = &general.inlet else { return };
                let held = bytes.len() + PIECE_OVERHEAD;
                general.held += held;
                self.held += held;
                if self.held > self.budget {
                    inlet.fail(message::over_budget());
                } else {
                    inlet.push(bytes, ended);
                }
            }
            Call::Answered | Call::Deciding(..) => {}
        }
    }

    /// Drops a call that its client has given up.
    pub(super) fn cancel(&mut self, call: Call) {
        match call {
            Call::Answered => {}
            Call::Receiving(receiving) => self.held -= receiving.held,
            Call::Deciding(stream, place) => self.deciding.cancel(place, stream),
            Call::General(general) => {
                self.held -= general.held;
                self.general.cancel(general.place, general.stream);
            }
        }
    }

    /// Ends all calls but those that are being decided.
    pub(super) fn drain(&mut self, connection: &mut Connection<Call>, alarm: &mut Alarm) {
        self.is_draining = true;
        for open in connection.streams.values() {
            if let Call::General(general) = &open.call {
                general.state.is_draining.store(true, Ordering::Relaxed);
            }
        }
        self.general.wake_all();
        let soon = Instant::now() + DRAIN_TIME;
        self.late.iter_mut().for_each(|(at, _)| *at = soon.min(*at));
        self.set_deadlines(connection, alarm);
    }

    /// Lets the answers go on that waited for room.
    pub(super) fn make_room(&mut self, connection: &mut Connection<Call>) {
        if self.full.is_empty() {
            return;
        }
        let mut full = std::mem::take(&mut self.full);
        full.retain(|stream| {
            let is_full = connection.unsent_of(*stream) >= MAX_UNSENT;
            if let (false, Some(Call::General(general))) = (is_full, connection.call(*stream)) {
                general.state.is_full.store(false, Ordering::Relaxed);
                self.general.wake(general.place);
            }
            is_full
        });
        self.full = full;
    }

    /// Gives the messages that have not come completely in this poll their time.
    pub(super) fn set_deadlines(&mut self, connection: &mut Connection<Call>, alarm: &mut Alarm) {
        if !self.fresh.is_empty() {
            let time = if self.is_draining { DRAIN_TIME } else { MESSAGE_TIME };
            let late = Instant::now() + time;
            self.late.extend(self.fresh.drain(..).map(|stream| (late, stream)));
        }
        // A client that begins calls and gives them up makes the list no longer than this.
        if self.late.len() > 2 * connection.streams.len() + SPARE {
            self.late.retain(|(_, stream)| matches!(connection.call(*stream), Some(Call::Receiving(_))));
        }
        if let Some((late, _)) = self.late.front() {
            alarm.set_message(*late);
        }
    }

    /// Answers the calls whose messages are late.
    pub(super) fn give_up_late(&mut self, connection: &mut Connection<Call>) {
        let now = Instant::now();
        while let Some((late, stream)) = self.late.front().copied()
            && late <= now
        {
            self.late.pop_front();
            if let Some(Call::Receiving(_)) = connection.call(stream) {
                let status = match self.is_draining {
                    true => message::draining(),
                    false => message::late(),
                };
                self.give_up(connection, stream, &status);
            }
        }
    }

    /// Gives back memory that was needed for a while.
    pub(super) fn shrink(&mut self) {
        self.deciding.shrink();
        self.general.shrink();
        self.message = Vec::new();
        self.fresh.shrink_to_fit();
        self.late.shrink_to_fit();
    }

    /// Notes that a message has come completely.
    fn received(&mut self, stream: u32, held: usize) {
        self.held -= held;
        if self.fresh.last() == Some(&stream) {
            self.fresh.pop();
        }
        // Mostly the first: others are found out when their time has come.
        if self.late.front().is_some_and(|(_, late)| *late == stream) {
            self.late.pop_front();
        }
    }

    fn give_up(&mut self, connection: &mut Connection<Call>, stream: u32, status: &Status) {
        if let Some(Call::Receiving(receiving)) = connection.call(stream).map(std::mem::take) {
            self.held -= receiving.held;
        }
        fail(connection, stream, status);
    }

    /// Answers a call whose message is there.
    fn complete(&mut self, connection: &mut Connection<Call>, stream: u32, head: Head, body: &[u8]) {
        if let Some(status) = refusal(&head) {
            return refuse(connection, stream, status);
        }
        // A client that does not read the answers it has gets no more decisions.
        if connection.unsent + connection.output.len() >= BUDGET {
            return fail(connection, stream, &over_budget());
        }
        self.has_begun = true;
        match &head.to {
            To::RateLimit => self.decide(connection, stream, head, body),
            To::Other(path) => {
                let body = Full::new(Bytes::copy_from_slice(body)).map_err(|never| match never {});
                match general::request(path, head.headers, body) {
                    Ok(request) => self.forward(connection, stream, None, |routes, outlet| {
                        Box::pin(general::answer(routes, request, outlet))
                    }),
                    Err(status) => fail(connection, stream, &status),
                }
            }
        }
    }

    fn decide(&mut self, connection: &mut Connection<Call>, stream: u32, head: Head, body: &[u8]) {
        let request = match short::request(body, self.max_message_bytes) {
            _ if head.is_encoded => return fail(connection, stream, &short::compressed()),
            Ok(request) => request,
            Err(status) => return fail(connection, stream, &status),
        };
        self.decided += 1;
        if self.decided == SAME_TIME {
            self.decided = 0;
            instant::share_again();
        }
        let Head { timeout, details, headers, .. } = head;
        match self.deciding.start(stream, || (self.answer)(request, CallerHeaders { timeout, details, headers })) {
            Ok(answer) => self.answered(connection, stream, answer),
            Err(place) => put(connection, stream, Call::Deciding(stream, place)),
        }
    }

    fn answered(
        &mut self,
        connection: &mut Connection<Call>,
        stream: u32,
        answer: Result<Result<RateLimitResponse, CallError>, Panicked>,
    ) {
        self.has_begun = true;
        match answer {
            Ok(Ok(response)) => {
                if self.message.capacity() > KEPT_MESSAGE {
                    self.message = Vec::new();
                }
                short::message(&response, &mut self.message);
                if connection.unsent + connection.output.len() + self.message.len() > BUDGET {
                    return fail(connection, stream, &over_budget());
                }
                connection.answer(stream, short::HEADERS, &self.message, short::TRAILERS);
            }
            Ok(Err(error)) => connection.send_headers(stream, &short::failure(error), true),
            Err(Panicked) => {
                connection.reset(stream, Reason::Internal);
            }
        }
    }

    /// Begins a call that may have any number of messages.
    fn stream(&mut self, connection: &mut Connection<Call>, stream: u32, head: Head) {
        if connection.unsent + connection.output.len() >= BUDGET {
            return fail(connection, stream, &over_budget());
        }
        let To::Other(path) = &head.to else { return };
        let (inlet, incoming): (Inlet, Incoming) = general::incoming();
        self.held += head.bytes;
        if self.held > self.budget {
            self.held -= head.bytes;
            return fail(connection, stream, &message::over_budget());
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

    /// Has a service of tonic answer a call.
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

    /// Takes note that a service of tonic has answered a call.
    fn forwarded(&mut self, connection: &mut Connection<Call>, stream: u32, ended: Result<(), Panicked>) {
        if let Some(Call::General(general)) = connection.call(stream).map(std::mem::take) {
            self.held -= general.held;
        }
        if ended.is_err() {
            connection.reset(stream, Reason::Internal);
        }
    }

    /// Sends what services of tonic have answered.
    fn take_pieces(&mut self, connection: &mut Connection<Call>) {
        loop {
            let Some((stream, piece)) = self.pieces.lock().pop_front() else { return };
            match piece {
                Piece::Headers(block, ended) => connection.send_headers(stream, &block, ended),
                Piece::Data(bytes) if connection.unsent + bytes.len() > BUDGET => {
                    // Before its end, which may forget the stream and all that is kept for it.
                    if let Some(call) = connection.call(stream).map(std::mem::take) {
                        self.cancel(call);
                    }
                    let block = general::status_block(&over_budget(), false);
                    connection.send_end(stream, End::Trailers(block));
                }
                Piece::Data(bytes) => {
                    connection.send_data(stream, bytes);
                    if connection.unsent_of(stream) >= MAX_UNSENT
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
}

/// Grows by doubling like a vector, but not beyond the largest message, because that must fit into the budget, too.
fn append(message: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let needed = message.len() + bytes.len();
    if needed > message.capacity() {
        let capacity = needed.next_power_of_two().min(most).max(needed);
        message.reserve_exact(capacity - message.len());
    }
    message.extend_from_slice(bytes);
}

fn put(connection: &mut Connection<Call>, stream: u32, call: Call) {
    if let Some(before) = connection.call(stream) {
        *before = call;
    }
}

/// Ends a call with this status.
fn fail(connection: &mut Connection<Call>, stream: u32, status: &Status) {
    connection.send_headers(stream, &general::status_block(status, true), true);
}

/// Returns whether a call may have any number of messages. Only reflection does.
fn is_stream(head: &Head) -> bool {
    matches!(&head.to, To::Other(path) if path.starts_with("/grpc.reflection."))
}

/// Returns the status for a request that is not gRPC, by its method or content type.
fn refusal(head: &Head) -> Option<StatusCode> {
    match head {
        Head { method: Method::Other, .. } => Some(StatusCode::METHOD_NOT_ALLOWED),
        Head { is_grpc: false, .. } => Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
        _ => None,
    }
}

/// Refuses a request that is not gRPC. The text is for people.
fn refuse(connection: &mut Connection<Call>, stream: u32, status: StatusCode) {
    let mut block = Vec::new();
    hpack::status(&mut block, status.as_u16());
    hpack::literal(&mut block, b"content-type", b"text/plain");
    let reason = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            hpack::literal(&mut block, b"allow", b"POST");
            "gRPC calls use POST\n"
        }
        _ => "gRPC calls have the content type application/grpc\n",
    };
    connection.send_headers(stream, &block, false);
    connection.send_data(stream, Bytes::from_static(reason.as_bytes()));
    connection.send_end(stream, End::Data);
}
