//! What a connection sends: answers, as far as the client's windows let them pass.

use hyper::body::Bytes;

use super::connection::Connection;
use super::frame::{self, MAX_PAYLOAD, Reason, flag, kind};
use super::stream::{End, Unsent};
use crate::grpc::bounds::TURNS;

/// Bytes of output from which on nothing more is framed. The rest waits at its stream until the socket has taken them.
const MAX_OUTPUT: usize = 64 * 1024;

/// The size update that sets the table of headers to nothing.
const NO_TABLE: &[u8] = b"\x20";

/// Streams that have ended which the list of those that can send may hold.
const SPARE: usize = 64;

impl<C: Default> Connection<C> {
    /// Sends a whole answer: its headers, one message, and the trailers that end it. The message has its prefix.
    pub(super) fn answer(&mut self, stream: u32, headers: &[u8], message: &[u8], trailers: &[u8]) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        let size = message.len() as i64;
        let fits = message.len() <= MAX_PAYLOAD && size <= open.send_window && size <= self.send_window;
        if fits && open.unsent.is_none() && self.has_sent_block {
            self.send_window -= size;
            let out = &mut self.output;
            frame::begin(out, headers.len(), (kind::HEADERS, flag::END_HEADERS), stream);
            out.extend_from_slice(headers);
            frame::begin(out, message.len(), (kind::DATA, 0), stream);
            out.extend_from_slice(message);
            frame::begin(out, trailers.len(), (kind::HEADERS, flag::END_HEADERS | flag::END_STREAM), stream);
            out.extend_from_slice(trailers);
            self.end(stream);
        } else {
            self.send_headers(stream, headers, false);
            self.send_data(stream, Bytes::copy_from_slice(message));
            self.send_end(stream, End::Trailers(trailers.to_vec()));
        }
    }

    /// Sends the headers of an answer, which may be all of it.
    pub(super) fn send_headers(&mut self, stream: u32, block: &[u8], ended: bool) {
        if self.streams.contains_key(&stream) {
            self.block(stream, block, ended);
            if ended {
                self.end(stream);
            }
        }
    }

    /// Sends a piece of a message.
    pub(super) fn send_data(&mut self, stream: u32, bytes: Bytes) {
        let Some(open) = self.streams.get_mut(&stream).filter(|open| !bytes.is_empty() && !open.is_ended()) else {
            return;
        };
        let unsent = open.unsent.get_or_insert_default();
        self.unsent += bytes.len();
        unsent.bytes += bytes.len();
        unsent.pieces.push_back((self.turn, bytes));
        if open.becomes_ready() {
            self.ready.push_back(stream);
        }
        self.send_unsent();
    }

    /// Sends the end of an answer, behind what is unsent of it.
    pub(super) fn send_end(&mut self, stream: u32, end: End) {
        let Some(open) = self.streams.get_mut(&stream) else { return };
        match (&mut open.unsent, end) {
            // The first end counts.
            (Some(unsent), end) => drop(unsent.end.get_or_insert(end)),
            (None, End::Trailers(block)) => self.send_headers(stream, &block, true),
            (None, End::Data) => {
                frame::begin(&mut self.output, 0, (kind::DATA, flag::END_STREAM), stream);
                self.end(stream);
            }
        }
    }

    /// Ends a stream by RST_STREAM. Returns what was kept for it.
    pub(super) fn reset(&mut self, stream: u32, reason: Reason) -> Option<C> {
        frame::reset(&mut self.output, stream, reason);
        self.forgive(stream);
        self.remove(stream)
    }

    /// Forgets a stream. Returns what was kept for it.
    pub(super) fn remove(&mut self, stream: u32) -> Option<C> {
        let removed = self.streams.remove(&stream)?;
        // Streams that are given up while the connection's window is closed make the list no longer than this.
        if self.ready.len() > 2 * self.streams.len() + SPARE {
            self.ready.retain(|stream| self.streams.contains_key(stream));
        }
        self.unsent -= removed.unsent.map_or(0, |unsent| unsent.bytes);
        Some(removed.call)
    }

    /// Returns the number of unsent bytes of a stream.
    pub(super) fn unsent_of(&self, stream: u32) -> usize {
        let open = self.streams.get(&stream);
        open.and_then(|stream| stream.unsent.as_ref()).map_or(0, |unsent| unsent.bytes)
    }

    /// Begins the next turn. Returns whether a piece of an answer is overdue.
    pub(super) fn next_turn(&mut self) -> bool {
        self.turn += 1;
        let is_overdue =
            |unsent: &Unsent| unsent.pieces.front().is_some_and(|(made, _)| made + TURNS as u64 <= self.turn);
        self.unsent > 0 && self.streams.values().filter_map(|stream| stream.unsent.as_deref()).any(is_overdue)
    }

    /// Frames what the windows let pass, a frame of each stream in turn.
    pub(super) fn send_unsent(&mut self) {
        while self.send_window > 0
            && self.output.len() < MAX_OUTPUT
            && let Some(stream) = self.ready.pop_front()
        {
            let Some(open) = self.streams.get_mut(&stream) else { continue };
            let Some(unsent) = &mut open.unsent else { continue };
            unsent.is_ready = false;
            if open.send_window <= 0 {
                continue;
            }
            if let Some((_, piece)) = unsent.pieces.front_mut() {
                let window = usize::try_from(open.send_window.min(self.send_window)).unwrap_or(0);
                let now = piece.split_to(piece.len().min(window).min(MAX_PAYLOAD));
                if piece.is_empty() {
                    unsent.pieces.pop_front();
                }
                open.send_window -= now.len() as i64;
                self.send_window -= now.len() as i64;
                unsent.bytes -= now.len();
                self.unsent -= now.len();
                frame::begin(&mut self.output, now.len(), (kind::DATA, 0), stream);
                self.output.extend_from_slice(&now);
            }
            if !unsent.pieces.is_empty() {
                if open.becomes_ready() {
                    self.ready.push_back(stream);
                }
                continue;
            }
            if let Some(end) = open.unsent.take().and_then(|unsent| unsent.end) {
                self.send_end(stream, end);
            }
        }
    }

    /// Writes a header block, in several frames if it is long.
    fn block(&mut self, stream: u32, block: &[u8], ended: bool) {
        let (mut kind, mut flags) = (kind::HEADERS, if ended { flag::END_STREAM } else { 0 });
        // A client that has made its table smaller waits for a size update in the first block (RFC 7541, section 4.2).
        // Blocks use no table: its size is 0 from then on.
        let first =
            if std::mem::replace(&mut self.has_sent_block, true) { None } else { Some([NO_TABLE, block].concat()) };
        let mut rest = first.as_deref().unwrap_or(block);
        loop {
            let (now, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            if later.is_empty() {
                flags |= flag::END_HEADERS;
            }
            frame::begin(&mut self.output, now.len(), (kind, flags), stream);
            self.output.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            (kind, flags, rest) = (kind::CONTINUATION, 0, later);
        }
    }

    /// Forgets a stream whose answer has been sent. Its client need not send the rest of its request.
    fn end(&mut self, stream: u32) {
        if self.streams.remove(&stream).is_some_and(|open| open.is_receiving()) {
            frame::reset(&mut self.output, stream, Reason::NoError);
            self.forgive(stream);
        }
    }
}
