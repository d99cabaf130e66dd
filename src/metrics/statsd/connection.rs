//! A connection to a statsd server. Lines that the server has taken are noted at once, so a line is sent only once even
//! when the connection breaks. UDP gives no sign that a datagram arrived; if the host rejects the first datagram
//! because no server listens there, the lines are kept and sent again.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use super::Transport;
use super::lines::Lines;
use crate::metrics::reference::{Push, Pushed};

/// Size of a datagram that no network fragments.
const DATAGRAM: usize = 1_432;
/// Number of bytes written to a connection at once.
const CHUNK: usize = 16 * 1_024;

/// Time to wait for a rejection of the first datagram before sending more.
const TURNED_AWAY: Duration = Duration::from_millis(50);

/// A server's address, and the open connection if its transport is TCP.
pub(super) struct Connection {
    transport: Transport,
    host: String,
    port: u16,
    tcp: Option<TcpStream>,
}

/// Lines that are sent together.
#[derive(Default)]
struct Batch<'p> {
    bytes: Vec<u8>,
    /// The end of each line in `bytes`.
    lines: Vec<(usize, &'p Pushed)>,
}

impl<'p> Batch<'p> {
    fn add(&mut self, line: &str, pushed: &'p Pushed) {
        self.bytes.extend(line.as_bytes());
        self.bytes.push(b'\n');
        self.lines.push((self.bytes.len(), pushed));
    }

    fn is_full_with(&self, line: &str, most: usize) -> bool {
        !self.bytes.is_empty() && self.bytes.len() + line.len() >= most
    }

    /// Notes the lines that lie entirely within the first `bytes` bytes, and empties the batch.
    fn note(&mut self, push: &mut Push, bytes: usize) {
        self.lines.iter().filter(|(end, _)| *end <= bytes).for_each(|(_, pushed)| push.note(pushed));
        (self.bytes, self.lines) = (Vec::new(), Vec::new());
    }
}

impl Connection {
    pub(super) fn new(transport: Transport, host: String, port: u16) -> Connection {
        Connection { transport, host, port, tcp: None }
    }

    /// Sends every statistic that has grown.
    ///
    /// # Errors
    /// If not all lines were sent by the deadline.
    pub(super) async fn flush(&mut self, push: &mut Push, lines: &Lines, deadline: Instant) -> io::Result<()> {
        let all = push.more();
        if all.is_empty() {
            push.finish();
            return Ok(());
        }
        let mut way = Way::open(self, deadline).await?;
        let mut batch = Batch::default();
        for pushed in &all {
            let Some(line) = lines.line(pushed) else {
                push.note(pushed);
                continue;
            };
            if batch.is_full_with(&line, way.most()) {
                way.send(&mut batch, push, deadline).await?;
            }
            batch.add(&line, pushed);
        }
        way.send(&mut batch, push, deadline).await?;
        way.keep(self);
        drop(all);
        push.finish();
        Ok(())
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// An open socket. It is not kept if a line was cut off on it.
enum Way {
    Tcp(TcpStream),
    Udp {
        socket: UdpSocket,
        /// A datagram was sent and not rejected.
        is_heard: bool,
    },
}

impl Way {
    async fn open(connection: &mut Connection, deadline: Instant) -> io::Result<Way> {
        let server = (connection.host.as_str(), connection.port);
        match connection.transport {
            Transport::Tcp => {
                let open = connection.tcp.take().filter(is_open);
                let stream = match open {
                    Some(stream) => stream,
                    None => timeout_at(deadline, TcpStream::connect(server)).await??,
                };
                Ok(Way::Tcp(stream))
            }
            Transport::Udp => {
                let mut found = timeout_at(deadline, lookup_host(server)).await??;
                let server = found.next().ok_or(ErrorKind::NotFound)?;
                let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).await?;
                // On a connected socket the system reports that no server listens.
                socket.connect(server).await?;
                Ok(Way::Udp { socket, is_heard: false })
            }
        }
    }

    fn most(&self) -> usize {
        match self {
            Way::Tcp(_) => CHUNK,
            Way::Udp { .. } => DATAGRAM,
        }
    }

    async fn send(&mut self, batch: &mut Batch<'_>, push: &mut Push, deadline: Instant) -> io::Result<()> {
        let (taken, result) = match self {
            Way::Tcp(stream) => written(stream, &batch.bytes, deadline).await,
            Way::Udp { socket, is_heard } => {
                let mut result = timeout_at(deadline, socket.send(&batch.bytes)).await.map_err(io::Error::from);
                if !*is_heard && matches!(result, Ok(Ok(_))) {
                    result = turned_away(socket).await.map_or(result, |error| Ok(Err(error)));
                }
                *is_heard = true;
                match result.flatten() {
                    Ok(_) => (batch.bytes.len(), Ok(())),
                    Err(error) => (0, Err(error)),
                }
            }
        };
        batch.note(push, taken);
        // Lets other tasks run on this thread.
        yield_now().await;
        result
    }

    fn keep(self, connection: &mut Connection) {
        if let Way::Tcp(stream) = self {
            connection.tcp = Some(stream);
        }
    }
}

/// Waits for a rejection of the datagram just sent. A host without a server may reject it or stay silent.
async fn turned_away(socket: &UdpSocket) -> Option<io::Error> {
    // Only an error ends the wait early.
    let _ = timeout(TURNED_AWAY, socket.ready(Interest::ERROR)).await;
    socket.take_error().unwrap_or_else(Some)
}

/// Checks that the server has not closed the connection, since anything written to a closed one would be lost.
fn is_open(stream: &TcpStream) -> bool {
    let mut said = [0; 64];
    loop {
        match stream.try_read(&mut said) {
            Ok(0) => return false,
            // The server's data is ignored.
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Writes the bytes; returns the number the system accepted, and the reason if that is not all of them.
async fn written(stream: &TcpStream, bytes: &[u8], deadline: Instant) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        let ready = timeout_at(deadline, stream.writable()).await;
        let more = match ready.unwrap_or_else(|elapsed| Err(elapsed.into())) {
            Ok(()) => stream.try_write(&bytes[taken..]),
            Err(error) => Err(error),
        };
        match more {
            Ok(more) => taken += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return (taken, Err(error)),
        }
    }
    (taken, Ok(()))
}
