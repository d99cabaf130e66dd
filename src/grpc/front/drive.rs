//! One connection, in one task: reads, receives, decides, and writes once what all that has brought.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tonic::service::Routes;

use super::alarm::{Alarm, Due};
use super::arrival::Arrival;
use super::calls::{Call, Calls};
use super::connection::{Bounds, Connection, Event};
use super::frame::{HEAD, MAX_PAYLOAD};
use crate::grpc::activity::Activity;
use crate::grpc::{CallError, CallerHeaders, Incoming};
use crate::instant::{self, Shared};
use crate::metrics::Metrics;
use crate::wire::{RateLimitRequest, RateLimitResponse};

/// Bytes read in a poll, about a hundred calls; then other connections have their turn.
pub(super) const READ: usize = 16 * 1024;
/// Bytes of output from which on nothing is read, until the client reads.
const MAX_OUTPUT: usize = 64 * 1024;
/// Time after which a poll decides no more calls, as soon as the clock is read: those that are decided are answered,
/// and other connections have their turn.
const POLL_TIME: Duration = Duration::from_micros(500);
/// Memory for output that a silent connection keeps.
const KEPT_OUTPUT: usize = 1_024;

/// Answers a call for the rate limit service.
pub(super) trait Answer: Fn(RateLimitRequest, CallerHeaders) -> Self::Future + Send {
    type Future: Future<Output = Result<RateLimitResponse, CallError>> + Send;
}

impl<A, F> Answer for A
where
    A: Fn(RateLimitRequest, CallerHeaders) -> F + Send,
    F: Future<Output = Result<RateLimitResponse, CallError>> + Send,
{
    type Future = F;
}

/// Why a connection is driven no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is closed.
    Closed,
    /// The client leaves answers unread for too long.
    Unread,
}

/// A connection and its calls.
pub(super) struct Driver<IO, A: Answer> {
    io: IO,
    connection: Connection<Call>,
    calls: Calls<A>,
    /// What was read and not taken: the beginning of a frame whose rest has not come, or frames for the next poll.
    rest: Vec<u8>,
    /// Whether it may hold whole frames.
    is_interrupted: bool,
    /// Number of bytes of the output that are written.
    written: usize,
    /// Whether bytes were written that the connection may hold, as TLS does.
    is_unflushed: bool,
    /// The end of the connection, once all is sent.
    closing: Closing,
    alarm: Alarm,
    activity: Arc<Activity>,
    /// Whether a frame has come since that was last asked.
    has_read: bool,
    arrival: Arrival,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// Our side is being closed: TLS may have to wait for the client.
    Ours,
    /// Our side is closed, and the client's is awaited.
    Theirs,
}

/// Why no more is read in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Nothing more has come; the task is woken when it does.
    Waiting,
    /// Enough was read or decided for this poll, or so much is unsent that the client must read first.
    Stopped,
    /// The client has closed the connection.
    Ended,
}

thread_local! {
    /// Where the connections of a thread read to, one after the other. A connection that waits keeps no buffer.
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<IO: AsyncRead + AsyncWrite + Incoming + Unpin, A: Answer> Driver<IO, A> {
    pub(super) fn new(
        io: IO,
        (answer, others): (A, Routes),
        bounds: Bounds,
        (max_message_bytes, half_received): (usize, usize),
        (activity, metrics): (Arc<Activity>, Arc<Metrics>),
    ) -> Self {
        Driver {
            io,
            connection: Connection::new(bounds),
            calls: Calls::new((answer, others), metrics, max_message_bytes, half_received),
            rest: Vec::new(),
            is_interrupted: false,
            written: 0,
            is_unflushed: false,
            closing: Closing::No,
            alarm: Alarm::new(),
            activity,
            has_read: false,
            arrival: Arrival::new(),
        }
    }

    /// Serves the connection until it is over. May be called again after it was dropped.
    pub(super) async fn run(&mut self) -> Ended {
        // Each poll has a bound of its own; tokio's would waste most polls of a hundred calls.
        unconstrained(std::future::poll_fn(|cx| {
            let polled = self.poll(cx);
            self.activity.report(self.calls.deciding(), self.calls.take_used());
            polled
        }))
        .await
    }

    /// Asks the client to begin no more calls. The connection is over when its calls are.
    pub(super) fn leave(&mut self) {
        self.connection.leave();
    }

    /// Ends all calls but those that are being decided.
    pub(super) fn drain(&mut self) {
        self.calls.drain(&mut self.connection, &mut self.alarm);
    }

    /// Returns whether any request is being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.calls.deciding() > 0
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let _time = Shared::read();
        self.calls.register(cx);
        self.arrival.register(cx);
        self.calls.go_on(&mut self.connection);
        while self.alarm.poll(cx).is_ready() {
            if let Some(ended) = self.alarmed() {
                return Poll::Ready(ended);
            }
        }
        if self.closing != Closing::No {
            return self.close(cx);
        }
        let Ok(reading) = self.receive() else { return Poll::Ready(Ended::Closed) };
        let sending = self.send(cx);
        if reading == Reading::Ended || matches!(sending, Poll::Ready(Err(_))) {
            return Poll::Ready(Ended::Closed);
        }
        if reading == Reading::Stopped {
            if self.connection.output.len() < MAX_OUTPUT {
                // Nothing else would wake this task for what is left in the socket, or of what was read.
                self.arrival.stopped(&self.io, self.rest.len());
                cx.waker().wake_by_ref();
            } else {
                // The client does not read its answers: that its calls wait is its own doing.
                self.arrival.drained();
            }
        }
        if sending.is_pending() {
            self.alarm.set_unsent(self.unwritten());
        } else if self.connection.is_over() {
            self.closing = Closing::Ours;
            self.alarm.begin_last_turn();
            return self.close(cx);
        }
        if self.connection.unsent > 0 {
            self.alarm.set_unsent(self.unwritten());
        }
        self.calls.set_deadlines(&mut self.connection, &mut self.alarm);
        if self.alarm.poll_if_set(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Closes our side, and then reads until the client closes its side, for a turn at most. Input that arrives at a
    /// closed socket resets the connection, and a client that notices the reset first loses the answers that it has not
    /// read: grpc-java, which writes while it reads, lost calls of connections that had reached their age.
    fn close(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if self.alarm.poll_if_set(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        if self.closing == Closing::Ours {
            if ready!(Pin::new(&mut self.io).poll_shutdown(cx)).is_err() {
                return Poll::Ready(Ended::Closed);
            }
            self.closing = Closing::Theirs;
        }
        self.arrival.begin();
        let is_ended = INPUT.with_borrow_mut(|input| {
            input.resize(HEAD + MAX_PAYLOAD + READ, 0);
            match self.read(&mut input[..READ]) {
                Ok(Poll::Ready(1..)) => {
                    cx.waker().wake_by_ref();
                    false
                }
                Ok(Poll::Pending) => false,
                Ok(Poll::Ready(0)) | Err(_) => true,
            }
        });
        self.arrival.drained();
        if is_ended { Poll::Ready(Ended::Closed) } else { Poll::Pending }
    }

    /// Returns the number of bytes of output that are not written. Bytes that TLS holds count as one.
    fn unwritten(&self) -> usize {
        self.connection.output.len() - self.written + usize::from(self.is_unflushed)
    }

    /// Does what is due.
    fn alarmed(&mut self) -> Option<Ended> {
        match self.alarm.due() {
            Due::Silence if !self.connection.is_alive() => return Some(Ended::Closed),
            Due::Silence => {
                if !std::mem::take(&mut self.has_read) {
                    self.connection.ask_alive();
                    self.alarm.await_pong();
                }
                self.calls.shrink();
                self.arrival.shrink();
                if self.connection.output.capacity() > KEPT_OUTPUT {
                    self.connection.output.shrink_to(KEPT_OUTPUT);
                }
            }
            Due::Unsent if self.closing != Closing::No => return Some(Ended::Closed),
            Due::Unsent => {
                let (output, unsent) = (self.unwritten(), self.connection.unsent);
                let is_overdue = self.connection.next_turn();
                if self.alarm.next_turn(output + unsent > 0, output) || is_overdue {
                    return Some(Ended::Unread);
                }
            }
            Due::Message => self.calls.give_up_late(&mut self.connection),
            Due::Nothing => {}
        }
        None
    }

    /// Reads what has come, and takes the frames in it.
    fn receive(&mut self) -> io::Result<Reading> {
        if self.connection.has_failed() {
            return Ok(Reading::Waiting);
        }
        self.arrival.begin();
        instant::share_again();
        let start = instant::now();
        INPUT.with_borrow_mut(|input| {
            // The largest partial frame, and as much as is read at once.
            input.resize(HEAD + MAX_PAYLOAD + READ, 0);
            if self.is_interrupted {
                let held = self.rest.len();
                input[..held].copy_from_slice(&self.rest);
                self.take(&input[..held], start);
            }
            let mut budget = READ;
            while budget > 0
                && !self.is_interrupted
                && self.connection.output.len() < MAX_OUTPUT
                && !self.connection.has_failed()
            {
                let held = self.rest.len();
                let read = match self.read(&mut input[held..held + READ])? {
                    Poll::Pending => {
                        self.arrival.drained();
                        return Ok(Reading::Waiting);
                    }
                    Poll::Ready(0) => return Ok(Reading::Ended),
                    Poll::Ready(read) => read,
                };
                input[..held].copy_from_slice(&self.rest);
                self.take(&input[..held + read], start);
                budget = budget.saturating_sub(read);
            }
            Ok(Reading::Stopped)
        })
    }

    fn read(&mut self, input: &mut [u8]) -> io::Result<Poll<usize>> {
        let mut buffer = ReadBuf::new(input);
        let mut cx = Context::from_waker(self.arrival.waker());
        if Pin::new(&mut self.io).poll_read(&mut cx, &mut buffer)?.is_pending() {
            return Ok(Poll::Pending);
        }
        let read = buffer.filled().len();
        self.arrival.read(read);
        Ok(Poll::Ready(read))
    }

    /// Takes frames until the time of a poll that began at `start` is over. What is left is for the next poll, or the
    /// next read.
    fn take(&mut self, input: &[u8], start: Instant) {
        let mut rest = input;
        self.is_interrupted = false;
        while !self.is_interrupted
            && let Some(event) = self.connection.next(&mut rest)
        {
            self.calls.set_came(self.arrival.of(rest.len()));
            match event {
                Event::Opened { stream, head, ended } => self.calls.open(&mut self.connection, stream, head, ended),
                Event::Data { stream, bytes, ended } => self.calls.data(&mut self.connection, stream, bytes, ended),
                Event::Reset { call } => self.calls.cancel(call),
            }
            self.is_interrupted = instant::now().duration_since(start) >= POLL_TIME;
        }
        // Half a frame is no sign of life.
        self.has_read |= rest.len() < input.len();
        self.rest.clear();
        self.rest.extend_from_slice(rest);
        if rest.is_empty() && self.rest.capacity() > 0 {
            self.rest = Vec::new();
        }
    }

    /// Writes the output, and what the windows of the client let pass besides. Ready when nothing of that is left.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.connection.send_unsent();
            self.calls.make_room(&mut self.connection);
            if self.connection.output.is_empty() && !self.is_unflushed {
                return Poll::Ready(Ok(()));
            }
            ready!(self.write(cx))?;
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.connection.output.len() {
            let rest = &self.connection.output[self.written..];
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            self.is_unflushed = true;
            self.alarm.note_written(written);
        }
        self.connection.output.clear();
        if self.connection.output.capacity() > 2 * MAX_OUTPUT {
            self.connection.output.shrink_to(MAX_OUTPUT);
        }
        self.written = 0;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }
}
