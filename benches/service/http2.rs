//! A client for unary calls of one method, by the least of HTTP/2 that it takes.
//!
//! It needs a quarter of the CPU time of the cheapest server, so it saturates a server on another core and leaves room
//! for Redis on its own. It sends what Envoy sends: the same headers, indexed as long as they are in HPACK's table, and
//! a message in one frame. It does not parse headers: an answer is a message, and a call that ends without one has
//! failed. It does not track flow control: it grants the server an unlimited window, and the message of a call is far
//! smaller than a window.

#[path = "hpack.rs"]
mod hpack;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use hpack::Encoder;
pub use hpack::Headers;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS_FRAME: u8 = 1;
const RESET: u8 = 3;
const CANCEL: u32 = 8;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const HEADER_TABLE_SIZE: u16 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const END_HEADERS: u8 = 4;
const FRAME_HEADER: usize = 9;

/// The address of a server, its transport, and the headers of calls to it.
#[derive(Clone)]
pub struct Server {
    port: u16,
    tls: Option<Arc<ClientConfig>>,
    headers: Headers,
}

/// A connection with calls on their way, each with a `T` of the caller's.
pub struct Connection<T> {
    stream: Stream,
    encoder: Encoder,
    next_stream: u32,
    calls: HashMap<u32, Call<T>>,
    /// The server's maximum number of concurrent calls.
    most: usize,
    out: Vec<u8>,
    /// The headers of the last call.
    block: Vec<u8>,
    received: Vec<u8>,
    chunk: Box<[u8]>,
}

/// With TLS or without.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

struct Call<T> {
    tag: T,
    answered: bool,
}

impl From<u16> for Server {
    /// A port of this machine, for calls with constant headers.
    fn from(port: u16) -> Server {
        Server { port, tls: None, headers: Headers::Constant }
    }
}

impl Server {
    /// A port where TLS is spoken.
    pub fn with_tls(port: u16, config: Arc<ClientConfig>) -> Server {
        Server { port, tls: Some(config), headers: Headers::Constant }
    }

    /// The same server, called with these headers.
    pub fn with(self, headers: Headers) -> Server {
        Server { headers, ..self }
    }
}

impl Stream {
    fn open(Server { port, tls, .. }: Server) -> io::Result<Stream> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let Some(config) = tls else { return Ok(Stream::Plain(stream)) };
        let session = ClientConnection::new(config, "localhost".try_into().unwrap()).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &stream.sock,
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

impl<T> Connection<T> {
    /// Connects to a server on this machine, for calls that have so long, as they say.
    pub fn open(server: impl Into<Server>, timeout: Duration) -> io::Result<Self> {
        let server = server.into();
        let encoder = Encoder::new(&in_grpc(timeout), server.headers);
        let stream = Stream::open(server)?;
        let mut out = PREFACE.to_vec();
        // Every window as large as can be: the answers to come are less.
        let largest = i32::MAX.to_be_bytes();
        frame(&mut out, SETTINGS, 0, 0, &[&[0, 4], &largest[..]].concat());
        frame(&mut out, WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes());
        let (calls, block, received, chunk) = Default::default();
        Ok(Connection { stream, encoder, next_stream: 1, calls, most: usize::MAX, out, block, received, chunk })
    }

    /// From now on neither [`Connection::receive`] nor [`Connection::flush`] waits.
    pub fn never_wait(&mut self) -> io::Result<()> {
        self.stream.socket().set_nonblocking(true)
    }

    /// Returns whether the server accepts another call now.
    pub fn has_room(&self) -> bool {
        self.calls.len() < self.most
    }

    /// Adds a call with this message, including its gRPC prefix, to the buffer; [`Connection::flush`] sends it. Returns
    /// its number.
    pub fn call(&mut self, message: &[u8], tag: T) -> u32 {
        let id = self.next_stream;
        self.next_stream += 2;
        self.block.clear();
        self.encoder.call(&mut self.block);
        frame(&mut self.out, HEADERS_FRAME, END_HEADERS, id, &self.block);
        frame(&mut self.out, DATA, END_STREAM, id, message);
        self.calls.insert(id, Call { tag, answered: false });
        id
    }

    /// Gives a call up, unless it has ended.
    pub fn cancel(&mut self, id: u32) -> Option<T> {
        let call = self.calls.remove(&id)?;
        frame(&mut self.out, RESET, 0, id, &CANCEL.to_be_bytes());
        Some(call.tag)
    }

    /// Sends the buffer. A non-blocking connection sends only as much as the system accepts.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(size) => sent += size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..sent);
        // TLS may still buffer data.
        match self.stream.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }

    /// Reads once, gives every message that has come to `answer`, with its gRPC prefix, and every call that has ended
    /// to `end`, with whether it was answered.
    ///
    /// # Errors
    /// Where the server ends the connection.
    pub fn receive(&mut self, mut answer: impl FnMut(&T, &[u8]), mut end: impl FnMut(T, bool)) -> io::Result<()> {
        if self.chunk.is_empty() {
            self.chunk = vec![0; 1 << 16].into();
        }
        match self.stream.read(&mut self.chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(size) => self.received.extend_from_slice(&self.chunk[..size]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut rest = &self.received[..];
        while let Some((header, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *header;
            let length = u32::from_be_bytes([0, l2, l1, l0]) as usize;
            let Some((payload, after)) = after.split_at_checked(length) else { break };
            let id = u32::from_be_bytes([s3, s2, s1, s0]);
            match kind {
                // Cancelled calls are sometimes answered nevertheless.
                DATA if length > 0 => {
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.answered = true;
                        answer(&call.tag, payload);
                    }
                }
                SETTINGS if flags & ACK == 0 => {
                    for setting in payload.chunks_exact(6) {
                        let (name, value) = setting.split_at(2);
                        let value = u32::from_be_bytes(value.try_into().unwrap());
                        match u16::from_be_bytes(name.try_into().unwrap()) {
                            HEADER_TABLE_SIZE => self.encoder.resize(value),
                            MAX_CONCURRENT_STREAMS => self.most = value as usize,
                            _ => {}
                        }
                    }
                    frame(&mut self.out, SETTINGS, ACK, 0, &[]);
                }
                PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, payload),
                GO_AWAY => {
                    return Err(io::Error::other(format!(
                        "the server gives up: {:?}",
                        String::from_utf8_lossy(payload)
                    )));
                }
                _ => {}
            }
            let ends = kind == RESET || matches!(kind, DATA | HEADERS_FRAME) && flags & END_STREAM != 0;
            if ends && let Some(call) = self.calls.remove(&id) {
                end(call.tag, call.answered && kind != RESET);
            }
            rest = after;
        }
        let taken = self.received.len() - rest.len();
        self.received.drain(..taken);
        Ok(())
    }

    /// Sends what there is, and frees the buffers until the next call.
    pub fn rest(&mut self) -> io::Result<()> {
        self.flush()?;
        (self.out, self.block, self.chunk) = Default::default();
        Ok(())
    }

    /// Returns the number of calls in progress.
    pub fn waiting(&self) -> usize {
        self.calls.len()
    }
}

/// A timeout as gRPC has it; less than a millisecond in nanoseconds.
fn in_grpc(timeout: Duration) -> String {
    match timeout.as_millis() {
        0 => format!("{}n", timeout.as_nanos()),
        ms => format!("{ms}m"),
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
