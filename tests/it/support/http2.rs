//! HTTP/2 by the frame, for clients that behave as no library lets them.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use super::SOON;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The start of an HTTP/2 connection, before SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The path of the call that this is all about.
pub const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the headers of a call in their shortest HPACK encoding, without indexing.
pub fn call(path: &str) -> Vec<u8> {
    // POST and http have numbers; :path has one, and content-type another, that is longer than fits.
    let literal = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    [vec![0x83, 0x86], literal(&[4], path), literal(&[0x0f, 16], "application/grpc")].concat()
}

/// Opens a connection and sends the client's preface with these settings.
pub fn open(port: u16, settings: &[u8]) -> TcpStream {
    try_open(port, settings).unwrap()
}

/// Like `open`, but the service may close the connection.
pub fn try_open(port: u16, settings: &[u8]) -> io::Result<TcpStream> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(SOON))?;
    connection.set_nodelay(true)?;
    connection.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat())?;
    Ok(connection)
}

/// Waits until the service has read all that was sent. `false`: it has closed the connection.
pub fn is_read(connection: &mut TcpStream) -> bool {
    let _ = connection.write_all(&frame(PING, 0, 0, &[1; 8]));
    let mut head = [0; 9];
    while connection.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if connection.read_exact(&mut vec![0; length]).is_err() {
            break;
        }
        if (head[3], head[4]) == (PING, ACK) {
            return true;
        }
    }
    false
}

/// A received frame.
pub struct Received {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The next frame. `None`: the service has closed the connection.
pub fn any_frame(connection: &mut TcpStream) -> Option<Received> {
    let mut head = [0; 9];
    read(connection, &mut head)?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    read(connection, &mut payload)?;
    Some(Received { kind, flags, stream: u32::from_be_bytes(stream), payload })
}

/// The next frame that is neither SETTINGS nor PING, which are answered. `None`: the service has closed the connection.
pub fn next_frame(connection: &mut TcpStream) -> Option<Received> {
    loop {
        let Received { kind, flags, stream, payload } = any_frame(connection)?;
        match kind {
            SETTINGS | PING if flags & ACK == 0 => {
                let answer = if kind == PING { &payload[..] } else { &[] };
                let _ = connection.write_all(&frame(kind, ACK, 0, answer));
            }
            SETTINGS | PING => {}
            _ => return Some(Received { kind, flags, stream, payload }),
        }
    }
}

/// Reads bytes; `None` at the end of the stream. Panics on a timeout.
fn read(connection: &mut TcpStream, bytes: &mut [u8]) -> Option<()> {
    match connection.read_exact(bytes) {
        Ok(()) => Some(()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => panic!("nothing comes"),
        Err(_) => None,
    }
}
