//! HTTP/2 of one connection, without input, output or clock: bytes come in, events come out, and what is to be sent
//! collects in a buffer. Every frame is judged by RFC 9113: an error of a stream resets it, and an error of the
//! connection ends it with GOAWAY.
//!
//! `C` is what the owner keeps for each stream.

use std::collections::{HashMap, VecDeque};

use super::frame::{self, HEAD, ID, MAX_PAYLOAD, Reason, flag, kind, setting};
use super::hash::StreamHash;
use super::head::{self, Head, Name, Reader, Request, Trailers, WrongHead};
use super::hpack::{self, Decoder, HpackError};
use super::stream::Stream;
use crate::grpc::bounds::CONNECTION_WINDOW;

/// Bytes of the table of headers, of which RFC 9113 has clients assume 4,096.
const TABLE: usize = 4_096;
/// Largest headers of a call, as HTTP/2 counts them.
const MAX_HEADERS: usize = 16 * 1024;
/// Largest header block with its CONTINUATION frames. Blocks are at most a little longer than the headers in them.
const MAX_BLOCK: usize = 2 * MAX_HEADERS;
/// What each CONTINUATION frame adds to its bytes: many empty ones would cost much and never exceed the bound.
const PER_CONTINUATION: usize = 1_024;
/// Number of streams with errors after which the client is at fault.
const MAX_ERRORS: u32 = 1_024;
/// Number of streams that the server has reset whose later frames are ignored. The client may not know yet.
const FORGIVEN: usize = 64;

/// The default window of HTTP/2, which holds until SETTINGS changes it.
const DEFAULT_WINDOW: i64 = 65_535;
/// Bytes of all calls that a client may send before they are read.
const WINDOW: i64 = CONNECTION_WINDOW as i64;

/// The payload of the PING behind the first GOAWAY. Its answer shows that the client knows of it.
const LEAVING: [u8; 8] = *b"tollgate";
/// The payload of PINGs that ask whether the client is there.
const ALIVE: [u8; 8] = *b"alive?\0\0";

/// What has happened.
#[derive(Debug)]
pub(super) enum Event<'i, C> {
    /// A call begins. `ended`: it has no body.
    Opened { stream: u32, head: Head, ended: bool },
    /// A part of a call's body, perhaps empty. `ended`: it is the last.
    Data { stream: u32, bytes: &'i [u8], ended: bool },
    /// A call is over, because the client has reset it, or for an error in its frames.
    Reset { call: C },
}

/// Bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Largest number of concurrent calls.
    pub(super) streams: u32,
    /// Whether anybody wants the trace and the ID of a call.
    pub(super) keeps_trace: bool,
}

/// The state of a connection.
pub(super) struct Connection<C> {
    bounds: Bounds,
    decoder: Decoder<Name>,
    /// The header block whose CONTINUATION frames are awaited.
    block: Option<Block>,
    pub(super) streams: HashMap<u32, Stream<C>, StreamHash>,
    /// The highest stream that the client has opened.
    last: u32,
    /// The streams that it has skipped last: from the first, up to and without the second.
    skipped: (u32, u32),
    /// Streams that were reset by this side.
    forgiven: VecDeque<u32>,
    errors: u32,
    has_settings: bool,
    is_alive: bool,
    leaving: Leaving,
    has_failed: bool,
    /// Bytes that the client may still send.
    receive_window: i64,
    /// Bytes that this side may still send, and the same for a new stream.
    pub(super) send_window: i64,
    initial_window: i64,
    /// Streams with unsent bytes that their own windows let pass.
    pub(super) ready: VecDeque<u32>,
    /// Number of unsent bytes of all streams.
    pub(super) unsent: usize,
    /// A number that [`Connection::next_turn`] raises.
    pub(super) turn: u64,
    /// Whether a header block was sent.
    pub(super) has_sent_block: bool,
    /// The bytes to send.
    pub(super) output: Vec<u8>,
}

/// A header block that is not complete.
struct Block {
    stream: u32,
    ended: bool,
    bytes: Vec<u8>,
    /// Its length, and that of its frames.
    cost: usize,
}

/// How far the end of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// The client was told to open no more streams; those that it opens before it knows are served.
    Announced,
    /// Streams after this one are ignored.
    After(u32),
}

/// An error in a frame.
enum Fault {
    Connection(Reason),
    Stream(u32, Reason),
}

type Taken<'i, C> = Result<Option<Event<'i, C>>, Fault>;

impl<C: Default> Connection<C> {
    /// Returns the state after the client's preface, with the server's preface to send.
    pub(super) fn new(bounds: Bounds) -> Connection<C> {
        let mut output = Vec::new();
        let max_headers = u32::try_from(MAX_HEADERS).unwrap_or(u32::MAX);
        frame::settings(
            &mut output,
            &[(setting::MAX_CONCURRENT_STREAMS, bounds.streams), (setting::MAX_HEADER_LIST_SIZE, max_headers)],
        );
        frame::window_update(&mut output, 0, (WINDOW - DEFAULT_WINDOW) as u32);
        Connection {
            bounds,
            decoder: Decoder::new(TABLE, head::classify),
            block: None,
            streams: HashMap::default(),
            last: 0,
            skipped: (0, 0),
            forgiven: VecDeque::new(),
            errors: 0,
            has_settings: false,
            is_alive: true,
            leaving: Leaving::No,
            has_failed: false,
            receive_window: WINDOW,
            send_window: DEFAULT_WINDOW,
            initial_window: DEFAULT_WINDOW,
            ready: VecDeque::new(),
            unsent: 0,
            turn: 0,
            has_sent_block: false,
            output,
        }
    }

    /// Reads frames up to the next event. Returns `None` if no whole frame is left, or the connection has failed.
    pub(super) fn next<'i>(&mut self, input: &mut &'i [u8]) -> Option<Event<'i, C>> {
        while !self.has_failed {
            let head = frame::head(input)?;
            if head.length > MAX_PAYLOAD {
                self.fail(Reason::FrameSize);
                return None;
            }
            let (frame, rest) = input.split_at_checked(HEAD + head.length)?;
            *input = rest;
            let event = match self.frame(head, &frame[HEAD..]) {
                Ok(event) => event,
                Err(Fault::Connection(reason)) => {
                    self.fail(reason);
                    None
                }
                Err(Fault::Stream(stream, reason)) => self.fault(stream, reason),
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Returns the bytes of answers that the client has not read.
    pub(super) fn unread(&self) -> usize {
        self.unsent + self.output.len()
    }

    /// Returns whether the connection is over once its output is sent.
    pub(super) fn is_over(&self) -> bool {
        self.has_failed || matches!(self.leaving, Leaving::After(_)) && self.streams.is_empty()
    }

    /// Returns whether an error has ended the connection.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns what is kept for a stream.
    pub(super) fn call(&mut self, stream: u32) -> Option<&mut C> {
        self.streams.get_mut(&stream).map(|stream| &mut stream.call)
    }

    /// Asks the client to open no more streams. The connection is over when its streams are.
    pub(super) fn leave(&mut self) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Announced;
            frame::goaway(&mut self.output, ID, Reason::NoError);
            frame::ping(&mut self.output, 0, &LEAVING);
        }
    }

    /// Asks whether the client is there.
    pub(super) fn ask_alive(&mut self) {
        self.is_alive = false;
        frame::ping(&mut self.output, 0, &ALIVE);
    }

    /// Returns whether the client has answered the last question.
    pub(super) fn is_alive(&self) -> bool {
        self.is_alive
    }

    fn fail(&mut self, reason: Reason) {
        self.has_failed = true;
        // A later GOAWAY must not name a higher stream (RFC 9113, section 6.8).
        let last = match self.leaving {
            Leaving::After(last) => last,
            Leaving::No | Leaving::Announced => self.last,
        };
        frame::goaway(&mut self.output, last, reason);
    }

    /// Resets a stream with an error in its frames.
    fn fault<'i>(&mut self, stream: u32, reason: Reason) -> Option<Event<'i, C>> {
        // Clients that do not know the bound yet exceed it without fault. grpc-java sends the messages of some calls
        // after their RST_STREAM: many over a connection's life, and each as cheap to answer as a PING.
        let is_closed = reason == Reason::StreamClosed && !self.streams.contains_key(&stream);
        self.errors += u32::from(reason != Reason::RefusedStream && !is_closed);
        if self.errors > MAX_ERRORS {
            self.fail(Reason::EnhanceYourCalm);
            return None;
        }
        self.reset(stream, reason).map(|call| Event::Reset { call })
    }

    /// Ignores the later frames of a stream that this side has ended.
    pub(super) fn forgive(&mut self, stream: u32) {
        if self.forgiven.len() == FORGIVEN {
            self.forgiven.pop_front();
        }
        self.forgiven.push_back(stream);
    }

    fn frame<'i>(&mut self, head: frame::Head, payload: &'i [u8]) -> Taken<'i, C> {
        let is_continued = head.kind == kind::CONTINUATION;
        if self.block.is_some() != is_continued || !self.has_settings && head.kind != kind::SETTINGS {
            return Err(Fault::Connection(Reason::Protocol));
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => self.headers(head, payload),
            kind::CONTINUATION => self.continuation(head, payload),
            kind::PRIORITY => priority(head, payload).map(|()| None),
            kind::RST_STREAM => self.reset_by_client(head, payload),
            kind::SETTINGS => self.settings(head, payload).map(|()| None),
            kind::PING => self.ping(head, payload).map(|()| None),
            kind::WINDOW_UPDATE => self.window_update(head, payload).map(|()| None),
            kind::PUSH_PROMISE => Err(Fault::Connection(Reason::Protocol)),
            kind::GOAWAY if head.stream != 0 => Err(Fault::Connection(Reason::Protocol)),
            // The client opens no streams after its GOAWAY, and ends the connection. Others are to be ignored.
            _ => Ok(None),
        }
    }

    /// Returns whether the client has never opened a stream with this number.
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last || stream.is_multiple_of(2)
    }

    fn data<'i>(&mut self, head: frame::Head, payload: &'i [u8]) -> Taken<'i, C> {
        let frame::Head { stream, .. } = head;
        if stream == 0 || self.is_idle(stream) {
            return Err(Fault::Connection(Reason::Protocol));
        }
        let size = payload.len() as i64;
        self.receive_window -= size;
        if self.receive_window < 0 {
            return Err(Fault::Connection(Reason::FlowControl));
        }
        // All bytes are taken over at once; what calls hold of them has a bound of its own.
        if self.receive_window < WINDOW / 2 {
            let taken = WINDOW - self.receive_window;
            frame::window_update(&mut self.output, 0, taken as u32);
            self.receive_window = WINDOW;
        }
        let bytes = unpadded(head, payload)?;
        let Some(open) = self.streams.get_mut(&stream) else {
            return if self.forgiven.contains(&stream) || self.is_ignored(stream) {
                Ok(None)
            } else {
                Err(Fault::Stream(stream, Reason::StreamClosed))
            };
        };
        let ended = head.has(flag::END_STREAM);
        open.receive(size, bytes.len(), ended).map_err(|reason| Fault::Stream(stream, reason))?;
        if let Some(taken) = open.widen() {
            frame::window_update(&mut self.output, stream, taken);
        }
        Ok(Some(Event::Data { stream, bytes, ended }))
    }

    fn headers<'i>(&mut self, head: frame::Head, payload: &[u8]) -> Taken<'i, C> {
        let frame::Head { stream, .. } = head;
        if stream.is_multiple_of(2) {
            return Err(Fault::Connection(Reason::Protocol));
        }
        let mut fragment = unpadded(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or(Fault::Connection(Reason::FrameSize))?;
            depends_on_itself = frame::number(&priority[..4]).is_some_and(|on| on & ID == stream);
            fragment = rest;
        }
        let ended = head.has(flag::END_STREAM);
        if !head.has(flag::END_HEADERS) {
            self.block = Some(Block { stream, ended, cost: fragment.len(), bytes: fragment.to_vec() });
            return Ok(None);
        }
        let event = self.fields(stream, ended, fragment)?;
        if depends_on_itself { Err(Fault::Stream(stream, Reason::Protocol)) } else { Ok(event) }
    }

    fn continuation<'i>(&mut self, head: frame::Head, payload: &[u8]) -> Taken<'i, C> {
        let Some(mut block) = self.block.take().filter(|block| block.stream == head.stream) else {
            return Err(Fault::Connection(Reason::Protocol));
        };
        block.cost += payload.len() + PER_CONTINUATION;
        if block.cost > MAX_BLOCK {
            return Err(Fault::Connection(Reason::EnhanceYourCalm));
        }
        block.bytes.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            self.block = Some(block);
            return Ok(None);
        }
        self.fields(block.stream, block.ended, &block.bytes)
    }

    /// Takes a whole header block. It is decoded whatever becomes of it, since it may change the table.
    fn fields<'i>(&mut self, stream: u32, ended: bool, block: &[u8]) -> Taken<'i, C> {
        if self.streams.contains_key(&stream) {
            let mut trailers = Reader::new(MAX_HEADERS, Trailers);
            self.decoder.decode(block, |field| trailers.field(&field)).map_err(decoding)?;
            return self.trailers(stream, ended, trailers);
        }
        let mut request = Reader::new(MAX_HEADERS, Request::new(self.bounds.keeps_trace));
        self.decoder.decode(block, |field| request.field(&field)).map_err(decoding)?;
        if stream <= self.last {
            let (from, to) = self.skipped;
            return if self.forgiven.contains(&stream) || self.is_ignored(stream) {
                Ok(None)
            } else if (from..to).contains(&stream) {
                Err(Fault::Connection(Reason::Protocol))
            } else {
                Err(Fault::Connection(Reason::StreamClosed))
            };
        }
        if self.last + 2 < stream {
            self.skipped = (self.last + 2, stream);
        }
        self.last = stream;
        if self.is_ignored(stream) {
            return Ok(None);
        }
        if self.streams.len() >= self.bounds.streams as usize {
            return Err(Fault::Stream(stream, Reason::RefusedStream));
        }
        let head = match request.finish().and_then(Request::head) {
            Ok(head) => head,
            Err(WrongHead::Malformed) => return Err(Fault::Stream(stream, Reason::Protocol)),
            Err(WrongHead::TooLarge) => {
                self.streams.insert(stream, Stream::new(self.initial_window, None, ended));
                self.refuse_headers(stream);
                return Ok(None);
            }
        };
        if ended && head.length.is_some_and(|length| length > 0) {
            return Err(Fault::Stream(stream, Reason::Protocol));
        }
        self.streams.insert(stream, Stream::new(self.initial_window, head.length, ended));
        Ok(Some(Event::Opened { stream, head, ended }))
    }

    fn trailers<'i>(&mut self, stream: u32, ended: bool, trailers: Reader<Trailers>) -> Taken<'i, C> {
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(None) };
        if !open.is_receiving() {
            return Err(Fault::Stream(stream, Reason::StreamClosed));
        }
        if !ended || trailers.finish().is_err() {
            return Err(Fault::Stream(stream, Reason::Protocol));
        }
        open.receive(0, 0, true).map_err(|reason| Fault::Stream(stream, reason))?;
        Ok(Some(Event::Data { stream, bytes: &[], ended: true }))
    }

    /// Answers a call whose headers are too large, as HTTP says.
    fn refuse_headers(&mut self, stream: u32) {
        let mut block = Vec::new();
        hpack::status(&mut block, 431);
        self.send_headers(stream, &block, true);
    }

    /// Returns whether a stream was opened after the client was told that it would be ignored.
    fn is_ignored(&self, stream: u32) -> bool {
        matches!(self.leaving, Leaving::After(last) if stream > last)
    }

    fn reset_by_client<'i>(&mut self, head: frame::Head, payload: &[u8]) -> Taken<'i, C> {
        if payload.len() != 4 {
            return Err(Fault::Connection(Reason::FrameSize));
        }
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(Fault::Connection(Reason::Protocol));
        }
        Ok(self.remove(head.stream).map(|call| Event::Reset { call }))
    }

    fn settings(&mut self, head: frame::Head, payload: &[u8]) -> Result<(), Fault> {
        let wrong = |reason| Err(Fault::Connection(reason));
        if head.stream != 0 {
            return wrong(Reason::Protocol);
        }
        if head.has(flag::ACK) {
            return if payload.is_empty() { Ok(()) } else { wrong(Reason::FrameSize) };
        }
        let (settings, []) = payload.as_chunks::<6>() else { return wrong(Reason::FrameSize) };
        self.has_settings = true;
        let mut initial = self.initial_window;
        for [a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                setting::ENABLE_PUSH if value > 1 => return wrong(Reason::Protocol),
                setting::INITIAL_WINDOW_SIZE if value > ID => return wrong(Reason::FlowControl),
                setting::INITIAL_WINDOW_SIZE => initial = i64::from(value),
                setting::MAX_FRAME_SIZE if !(MAX_PAYLOAD as u32..1 << 24).contains(&value) => {
                    return wrong(Reason::Protocol);
                }
                // Frames are sent in the size that every peer takes, and without a table of headers.
                _ => {}
            }
        }
        // Once for all values of the frame: each takes a look at every stream.
        self.resize_windows(initial)?;
        frame::settings_ack(&mut self.output);
        self.send_unsent();
        Ok(())
    }

    fn resize_windows(&mut self, initial: i64) -> Result<(), Fault> {
        let more = initial - self.initial_window;
        self.initial_window = initial;
        if more == 0 {
            return Ok(());
        }
        for (number, stream) in &mut self.streams {
            match stream.widen_sending(more) {
                Ok(true) => self.ready.push_back(*number),
                Ok(false) => {}
                Err(reason) => return Err(Fault::Connection(reason)),
            }
        }
        Ok(())
    }

    fn ping(&mut self, head: frame::Head, payload: &[u8]) -> Result<(), Fault> {
        let payload: &[u8; 8] = payload.try_into().map_err(|_| Fault::Connection(Reason::FrameSize))?;
        if head.stream != 0 {
            return Err(Fault::Connection(Reason::Protocol));
        }
        match (head.has(flag::ACK), *payload) {
            (false, _) => frame::ping(&mut self.output, flag::ACK, payload),
            (true, LEAVING) if self.leaving == Leaving::Announced => {
                self.leaving = Leaving::After(self.last);
                frame::goaway(&mut self.output, self.last, Reason::NoError);
            }
            (true, ALIVE) => self.is_alive = true,
            (true, _) => {}
        }
        Ok(())
    }

    fn window_update(&mut self, head: frame::Head, payload: &[u8]) -> Result<(), Fault> {
        let frame::Head { stream, .. } = head;
        let more = frame::number(payload).ok_or(Fault::Connection(Reason::FrameSize))? & ID;
        if stream == 0 {
            self.send_window += i64::from(more);
            return match more {
                0 => Err(Fault::Connection(Reason::Protocol)),
                _ if self.send_window > i64::from(ID) => Err(Fault::Connection(Reason::FlowControl)),
                _ => {
                    self.send_unsent();
                    Ok(())
                }
            };
        }
        if self.is_idle(stream) {
            return Err(Fault::Connection(Reason::Protocol));
        }
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        if more == 0 {
            return Err(Fault::Stream(stream, Reason::Protocol));
        }
        if open.widen_sending(i64::from(more)).map_err(|reason| Fault::Stream(stream, reason))? {
            self.ready.push_back(stream);
            self.send_unsent();
        }
        Ok(())
    }
}

/// Returns the fault of a block that cannot be decoded.
fn decoding(error: HpackError) -> Fault {
    Fault::Connection(match error {
        HpackError::TooLarge => Reason::EnhanceYourCalm,
        _ => Reason::Compression,
    })
}

/// Returns the payload without its padding.
fn unpadded(head: frame::Head, payload: &[u8]) -> Result<&[u8], Fault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(Fault::Connection(Reason::FrameSize))?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(Fault::Connection(Reason::Protocol))?;
    Ok(&rest[..length])
}

/// Judges PRIORITY, which has no effect.
fn priority(head: frame::Head, payload: &[u8]) -> Result<(), Fault> {
    if head.stream == 0 {
        return Err(Fault::Connection(Reason::Protocol));
    }
    match payload.split_at_checked(4) {
        Some((on, [_])) if frame::number(on).is_some_and(|on| on & ID != head.stream) => Ok(()),
        Some((_, [_])) => Err(Fault::Stream(head.stream, Reason::Protocol)),
        _ => Err(Fault::Stream(head.stream, Reason::FrameSize)),
    }
}
