//! What a connection waits for in time, by one timer: a silent client, an unread answer, and the rest of a message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::grpc::bounds::{PONG, SILENCE, TURN, TURNS};

/// The timer of a connection.
pub(super) struct Alarm {
    timer: Pin<Box<Sleep>>,
    /// Whether the task is registered with the timer as it is set.
    is_registered: bool,
    /// When to look whether the client has been silent, which is noticed after one to two times [`SILENCE`].
    silence: Instant,
    unsent: Option<Instant>,
    message: Option<Instant>,
    /// Bytes written in all.
    written: u64,
    /// What must have been written in all by now, in a turn, and in two: what was output three turns before.
    turns: VecDeque<u64>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The client may be silent.
    Silence,
    /// A turn is over.
    Unsent,
    /// A message is late.
    Message,
    /// Nothing any more.
    Nothing,
}

impl Alarm {
    pub(super) fn new() -> Alarm {
        let silence = Instant::now() + SILENCE;
        Alarm {
            timer: Box::pin(sleep_until(silence)),
            is_registered: false,
            silence,
            unsent: None,
            message: None,
            written: 0,
            turns: VecDeque::new(),
        }
    }

    /// Returns whether something is due.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_registered = true;
        self.timer.as_mut().poll(cx)
    }

    /// The same, if the timer was set since the last time.
    pub(super) fn poll_if_set(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_registered { Poll::Pending } else { self.poll(cx) }
    }

    /// Returns what is due, and sets the timer to what comes next.
    pub(super) fn due(&mut self) -> Due {
        let now = Instant::now();
        let due = if self.unsent.is_some_and(|at| at <= now) {
            self.unsent = Some(now + TURN);
            Due::Unsent
        } else if self.message.is_some_and(|at| at <= now) {
            self.message = None;
            Due::Message
        } else if self.silence <= now {
            self.silence = now + SILENCE;
            Due::Silence
        } else {
            Due::Nothing
        };
        self.reset();
        due
    }

    /// Sets the time for the answer to a question whether the client is there.
    pub(super) fn await_pong(&mut self) {
        self.silence = Instant::now() + PONG;
        self.reset();
    }

    /// Notes that something is unsent: so many bytes of output, or answers that the windows hold back.
    pub(super) fn set_unsent(&mut self, output: usize) {
        if self.unsent.is_none() {
            self.unsent = Some(Instant::now() + TURN);
            self.turns.push_back(self.written + output as u64);
            self.reset();
        }
    }

    /// Begins the last turn, in which the client closes its side.
    pub(super) fn begin_last_turn(&mut self) {
        self.unsent = Some(Instant::now() + TURN);
        self.reset();
    }

    /// Notes how many bytes were written.
    pub(super) fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Begins the next turn, or none if nothing `waits`. Returns whether output that is three turns old is unwritten.
    pub(super) fn next_turn(&mut self, waits: bool, output: usize) -> bool {
        if !waits {
            self.unsent = None;
            self.turns.clear();
            self.reset();
            return false;
        }
        self.turns.push_back(self.written + output as u64);
        self.turns.len() > TURNS && self.turns.pop_front().is_some_and(|due| self.written < due)
    }

    /// Sets the time at which the first of the messages that have not come completely is late.
    pub(super) fn set_message(&mut self, at: Instant) {
        if self.message.is_none_or(|before| at < before) {
            self.message = Some(at);
            self.reset();
        }
    }

    fn reset(&mut self) {
        let next = [self.unsent, self.message].into_iter().flatten().fold(self.silence, Instant::min);
        if self.timer.deadline() != next {
            self.timer.as_mut().reset(next);
            self.is_registered = false;
        }
    }
}
