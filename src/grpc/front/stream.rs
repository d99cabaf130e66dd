//! One stream of a connection: what its client may still send, and what has not been sent to it.

use std::collections::VecDeque;

use hyper::body::Bytes;

use super::frame::{ID, Reason};
use crate::grpc::bounds::STREAM_WINDOW;

const WINDOW: i64 = STREAM_WINDOW as i64;

/// A stream.
#[derive(Debug)]
pub(super) struct Stream<C> {
    pub(super) call: C,
    is_receiving: bool,
    receive_window: i64,
    /// Bytes of the body that are still to come, if its length was declared.
    expected: Option<u64>,
    pub(super) send_window: i64,
    /// What the window does not let pass yet.
    pub(super) unsent: Option<Box<Unsent>>,
}

/// The rest of an answer.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// Pieces of messages, and the turn in which each was made.
    pub(super) pieces: VecDeque<(u64, Bytes)>,
    /// The end of the stream, if the answer is complete.
    pub(super) end: Option<End>,
    pub(super) bytes: usize,
    /// Whether the stream is in the connection's list of those that can send.
    pub(super) is_ready: bool,
}

/// How an answer ends.
#[derive(Debug)]
pub(super) enum End {
    /// By this block of trailers.
    Trailers(Vec<u8>),
    /// By an empty frame of data.
    Data,
}

impl<C: Default> Stream<C> {
    pub(super) fn new(send_window: i64, expected: Option<u64>, ended: bool) -> Stream<C> {
        let call = C::default();
        Stream { call, is_receiving: !ended, receive_window: WINDOW, expected, send_window, unsent: None }
    }
}

impl<C> Stream<C> {
    /// Returns whether the end of the answer is there, and only waits for its window.
    pub(super) fn is_ended(&self) -> bool {
        self.unsent.as_ref().is_some_and(|unsent| unsent.end.is_some())
    }

    /// Returns whether the client has not ended the stream.
    pub(super) fn is_receiving(&self) -> bool {
        self.is_receiving
    }

    /// Takes a frame of this size with so many bytes of the body.
    ///
    /// # Errors
    /// If the stream has ended, or the client sends more than it may or than it has declared.
    pub(super) fn receive(&mut self, size: i64, body: usize, ended: bool) -> Result<(), Reason> {
        if !self.is_receiving {
            return Err(Reason::StreamClosed);
        }
        self.receive_window -= size;
        if self.receive_window < 0 {
            return Err(Reason::FlowControl);
        }
        if let Some(expected) = &mut self.expected {
            *expected = expected.checked_sub(body as u64).ok_or(Reason::Protocol)?;
            if ended && *expected > 0 {
                return Err(Reason::Protocol);
            }
        }
        self.is_receiving = !ended;
        Ok(())
    }

    /// Opens the window for the client again once half of it is used. Returns by how much.
    pub(super) fn widen(&mut self) -> Option<u32> {
        let used = WINDOW - self.receive_window;
        if !self.is_receiving || used < WINDOW / 2 {
            return None;
        }
        self.receive_window = WINDOW;
        u32::try_from(used).ok()
    }

    /// Widens the window for sending, or narrows it. Returns whether to list the stream as ready to send.
    ///
    /// # Errors
    /// If the window is larger than it can be.
    pub(super) fn widen_sending(&mut self, more: i64) -> Result<bool, Reason> {
        self.send_window += more;
        if self.send_window > i64::from(ID) {
            return Err(Reason::FlowControl);
        }
        Ok(self.becomes_ready())
    }

    /// Returns whether unsent bytes pass the window and the stream is not listed as ready. The caller lists it.
    pub(super) fn becomes_ready(&mut self) -> bool {
        let Some(unsent) = self.unsent.as_mut().filter(|_| self.send_window > 0) else { return false };
        !std::mem::replace(&mut unsent.is_ready, true)
    }
}
