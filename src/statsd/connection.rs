//! The way to a statsd server. What it has taken is noted at once: a line is sent once, whatever breaks. Of datagrams
//! nobody knows who has taken them; where a host says at the first that nobody listens, they are kept, and sent again.

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

/// A datagram that no network divides.
const DATAGRAM: usize = 1_432;
/// So much is written to a connection at once.
const CHUNK: usize = 16 * 1_024;

/// The first datagram has so long to be turned away before others follow.
const TURNED_AWAY: Duration = Duration::from_millis(50);

/// A way to a server.
pub(super) struct Connection {
    transport: Transport,
    host: String,
    port: u16,
    tcp: Option<TcpStream>,
}

/// Lines that go together.
#[derive(Default)]
struct Batch<'p> {
    bytes: Vec<u8>,
    /// Where the line of each ends.
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

    /// Notes the lines that have gone in so many bytes, and begins anew.
    fn note(&mut self, push: &mut Push, bytes: usize) {
        self.lines.iter().filter(|(end, _)| *end <= bytes).for_each(|(_, pushed)| push.note(pushed));
        (self.bytes, self.lines) = (Vec::new(), Vec::new());
    }
}

impl Connection {
    pub(super) fn new(transport: Transport, host: String, port: u16) -> Connection {
        Connection { transport, host, port, tcp: None }
    }

    /// Sends all that is new.
    ///
    /// # Errors
    /// Where not all of it has gone by the deadline.
    pub(super) async fn flush(&mut self, push: &mut Push, lines: &Lines, deadline: Instant) -> io::Result<()> {
        let all = push.more();
        if all.is_empty() {
            push.finish();
            return Ok(());
        }
        let mut way = Way::open(self, deadline).await?;
        let mut batch = Batch::default();
        for pushed in &all {
            // A mogrifier has left nothing of its name.
            let Ok(line) = lines.line(pushed) else {
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

/// A way that is open. One on which a line was cut off is not kept.
enum Way {
    Tcp(TcpStream),
    Udp {
        socket: UdpSocket,
        /// A datagram has gone, and has not been turned away.
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
                // Then the system tells where nobody listens.
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
        // Others have their turn on this thread.
        yield_now().await;
        result
    }

    fn keep(self, connection: &mut Connection) {
        if let Way::Tcp(stream) = self {
            connection.tcp = Some(stream);
        }
    }
}

/// Why nobody has the datagram that has been sent. A host without a server says so, if it says anything.
async fn turned_away(socket: &UdpSocket) -> Option<io::Error> {
    // Only an error wakes it.
    let _ = timeout(TURNED_AWAY, socket.ready(Interest::ERROR)).await;
    socket.take_error().unwrap_or_else(Some)
}

/// A server that has closed the connection would lose what is written to it.
fn is_open(stream: &TcpStream) -> bool {
    let mut said = [0; 64];
    loop {
        match stream.try_read(&mut said) {
            Ok(0) => return false,
            // What it says is of no interest.
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// How many of the bytes the system has taken, and why not more.
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
