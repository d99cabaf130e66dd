//! The calls of one connection: receives their messages, has them answered, and sends the answers.
//!
//! Nearly every call is for the rate limit service, and its message is one frame. Such a call is decided when the frame
//! is read, without a copy of its bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;

use super::alarm::Alarm;
use super::connection::Connection;
use super::drive::Answer;
use super::forward::{Forwarding, General};
use super::frame::Reason;
use super::general::{self, Pieces};
use super::head::{Head, Method, To};
use super::hpack;
use super::short;
use super::stream::End;
use super::tasks::{Panicked, Tasks};
use crate::grpc::bounds::{self, DRAIN_TIME, MAX_UNREAD, MESSAGE_TIME};
use crate::grpc::protocol::{self, NoCall, PREFIX, append};
use crate::grpc::{CallError, CallerHeaders};
use crate::instant;
use crate::metrics::Metrics;
use crate::wire::RateLimitResponse;

/// Deadlines of calls that have ended which may be kept.
const SPARE: usize = 64;

/// Memory of a piece of a body beyond its bytes.
const PIECE_OVERHEAD: usize = 64;

/// Memory for the message of an answer that is kept for the next one.
const KEPT_MESSAGE: usize = 64 * 1024;

/// Number of calls that are decided by one reading of the clock. Most cost a microsecond, some a hundred times as much.
const SAME_TIME: usize = 8;

/// One part in this many of a caller's timeout is reserved for sending the answer.
const ANSWER_SHARE: u32 = 4;

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

/// The calls of a connection.
pub(super) struct Calls<A: Answer> {
    answer: A,
    pub(super) others: Routes,
    deciding: Tasks<A::Future, u32>,
    pub(super) general: Tasks<Forwarding, u32>,
    pub(super) pieces: Pieces,
    max_message_bytes: usize,
    /// Bytes of half-received messages that the connection may hold, and that it holds.
    pub(super) budget: usize,
    pub(super) held: usize,
    /// Calls without a whole message, which were opened in this poll.
    fresh: Vec<u32>,
    /// Calls without a whole message, with the time at which they are late.
    late: VecDeque<(Instant, u32)>,
    /// Calls whose answers wait for room.
    pub(super) full: Vec<u32>,
    /// Whether a call has begun or was answered since that was last asked.
    is_used: bool,
    /// Time since which the call of the present frame has been waiting, if it is known.
    came: Option<Instant>,
    metrics: Arc<Metrics>,
    /// Number of calls decided since the clock was read.
    decided: usize,
    pub(super) is_draining: bool,
    /// The message of the answer that is being sent.
    message: Vec<u8>,
}

impl<A: Answer> Calls<A> {
    pub(super) fn new(
        (answer, others): (A, Routes),
        metrics: Arc<Metrics>,
        max_message_bytes: usize,
        half_received: usize,
    ) -> Self {
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
            is_used: false,
            came: None,
            metrics,
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
    pub(super) fn take_used(&mut self) -> bool {
        std::mem::take(&mut self.is_used)
    }

    /// Sets the time since which the call of the next frame has been waiting, if it is known.
    pub(super) fn set_came(&mut self, came: Option<Instant>) {
        self.came = came;
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
        } else if is_stream(&head) && no_call(&head).is_none() {
            self.stream(connection, stream, head);
        } else {
            self.fresh.push(stream);
            let held = head.bytes;
            self.held += held;
            put(connection, stream, Call::Receiving(Receiving { head, message: Vec::new(), held }));
            if self.held > self.budget {
                self.give_up(connection, stream, &bounds::too_much_half_received());
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
                    self.give_up(connection, stream, &bounds::too_much_half_received());
                }
            }
            Call::General(general) => {
                let Some(inlet) = &general.inlet else { return };
                let held = bytes.len() + PIECE_OVERHEAD;
                general.held += held;
                self.held += held;
                if self.held > self.budget {
                    inlet.fail(bounds::too_much_half_received());
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
                    true => bounds::draining(),
                    false => bounds::late(),
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
        if let Some(no_call) = no_call(&head) {
            return refuse(connection, stream, no_call);
        }
        // A client that does not read the answers it has gets no more decisions.
        if connection.unread() >= MAX_UNREAD {
            return fail(connection, stream, &bounds::too_much_unread());
        }
        self.is_used = true;
        match &head.to {
            To::RateLimit => {
                let waited = self.waited();
                let timeout = match head.timeout {
                    Some(timeout) if !is_too_old(waited, timeout) => Some(timeout.saturating_sub(waited)),
                    Some(_) if !short::is_report(body) => {
                        self.metrics.record_deadline_exceeded();
                        tracing::debug!(?waited, "rejected a call that waited too long");
                        return connection.send_headers(stream, &short::TOO_OLD, true);
                    }
                    // A refund or settle that is late has only the store's timeout.
                    _ => None,
                };
                self.decide(connection, stream, Head { timeout, ..head }, body);
            }
            To::Other(path) => self.unary(connection, stream, (path, head.headers), body),
        }
    }

    /// Returns how long the call of the present frame has been waiting.
    fn waited(&self) -> Duration {
        self.came.map_or(Duration::ZERO, |came| instant::now().duration_since(came))
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
        self.is_used = true;
        match answer {
            Ok(Ok(response)) => {
                if self.message.capacity() > KEPT_MESSAGE {
                    self.message = Vec::new();
                }
                short::message(&response, &mut self.message);
                if connection.unread() + self.message.len() > MAX_UNREAD {
                    return fail(connection, stream, &bounds::too_much_unread());
                }
                connection.answer(stream, short::HEADERS, &self.message, short::TRAILERS);
            }
            Ok(Err(error)) => connection.send_headers(stream, &short::failure(error), true),
            Err(Panicked) => {
                connection.reset(stream, Reason::Internal);
            }
        }
    }
}

/// Returns whether a call has been waiting for so long that its answer would be late. Calls that the system reported
/// together count as old as the oldest. Under overload the service rejects such calls before it decodes them; otherwise
/// it would answer every call, each of them too late. Refunds are still made, because callers do not repeat them.
fn is_too_old(waited: Duration, timeout: Duration) -> bool {
    waited >= timeout - timeout / ANSWER_SHARE
}

/// Stores a call with its stream.
pub(super) fn put(connection: &mut Connection<Call>, stream: u32, call: Call) {
    if let Some(before) = connection.call(stream) {
        *before = call;
    }
}

/// Ends a call with this status.
pub(super) fn fail(connection: &mut Connection<Call>, stream: u32, status: &Status) {
    connection.send_headers(stream, &general::status_block(status, true), true);
}

/// Returns whether a call may have any number of messages.
fn is_stream(head: &Head) -> bool {
    matches!(&head.to, To::Other(path) if protocol::is_stream(path))
}

/// Returns why a request is not a gRPC call, or `None` if it is one.
fn no_call(head: &Head) -> Option<NoCall> {
    match head {
        Head { method: Method::Other, .. } => Some(NoCall::Method),
        Head { is_grpc: false, .. } => Some(NoCall::ContentType),
        _ => None,
    }
}

/// Rejects a request that is not a gRPC call.
fn refuse(connection: &mut Connection<Call>, stream: u32, no_call: NoCall) {
    let mut block = Vec::new();
    hpack::status(&mut block, no_call.status().as_u16());
    hpack::literal(&mut block, b"content-type", b"text/plain");
    if no_call == NoCall::Method {
        hpack::literal(&mut block, b"allow", b"POST");
    }
    connection.send_headers(stream, &block, false);
    connection.send_data(stream, Bytes::from_static(no_call.text().as_bytes()));
    connection.send_end(stream, End::Data);
}
