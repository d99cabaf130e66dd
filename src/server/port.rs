//! A port with a maximum number of connections. At the maximum, a new connection replaces one that has not finished its
//! handshake or is idle. If every connection is in use, the new one is closed at once: its client notices without
//! waiting and goes elsewhere, and file descriptors stay free for the other port, Redis and files.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::places::{self, Places, Room};
use super::socket::Bound;
use super::stream::{Accepted, Peer, Plain, Socket};
use super::unix::{self, SocketFile};
use crate::telemetry::Throttle;

/// Pause after the system fails to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The address where gRPC will listen. Until then the system refuses clients, which go elsewhere or try again.
pub(super) struct Closed {
    place: Place,
    most: usize,
}

enum Place {
    Tcp(Bound),
    /// A path, and the mode of the socket file.
    Unix(PathBuf, u32),
}

/// The open gRPC port.
pub struct Port {
    listener: Listener,
    room: Arc<Semaphore>,
    places: Arc<Places>,
    refusals: Throttle<Refusal>,
    failures: Throttle,
}

/// A listening socket.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(SocketFile, UnixListener),
}

/// The address of the gRPC port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// How a port at its bound treats a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The new connection is closed.
    New,
    /// Another connection, which has not begun, is closed for it.
    Beginning,
    /// Another connection, which is idle, is closed for it.
    Idle,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Closed {
    pub(super) fn tcp(bound: Bound, most: usize) -> Closed {
        Closed { place: Place::Tcp(bound), most }
    }

    pub(super) fn unix(path: PathBuf, mode: u32, most: usize) -> Closed {
        Closed { place: Place::Unix(path, mode), most }
    }

    /// Returns the address where it will listen.
    pub(super) fn address(&self) -> Address {
        match &self.place {
            Place::Tcp(bound) => Address::Tcp(bound.address()),
            Place::Unix(path, _) => Address::Unix(path.clone()),
        }
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// If another process has begun to listen there, or the file of a Unix socket cannot be created.
    pub(super) fn listen(self) -> anyhow::Result<Port> {
        let address = self.address();
        let listener = match self.place {
            Place::Tcp(bound) => bound.listen().map(Listener::Tcp).map_err(anyhow::Error::from),
            Place::Unix(path, mode) => unix::listen(&path, mode).map(|(file, listener)| Listener::Unix(file, listener)),
        };
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Port::new(listener, self.most))
    }
}

impl Port {
    /// Accepts connections of this listener, at most `most` at a time.
    pub fn new(listener: Listener, most: usize) -> Port {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let (refusals, failures) = (Throttle::default(), Throttle::default());
        Port { listener, room, places: Places::new(), refusals, failures }
    }

    /// Waits for the next connection that there is room for.
    pub async fn accept(&self) -> (Plain, Peer, places::Place) {
        loop {
            match self.listener.accept().await {
                Ok((connection, peer)) => match self.room() {
                    // Without TCP_NODELAY, small answers wait for earlier ones. If setting it fails, the client has
                    // gone.
                    Some(place) if connection.set_nodelay().is_ok() => return (connection, peer, place),
                    Some(_) => {}
                    None => self.refused(Refusal::New),
                },
                Err(error) => {
                    self.failures
                        .log((), || move |times| tracing::error!(%error, times, "cannot accept a gRPC connection"));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Finds a place for one more connection.
    fn room(&self) -> Option<places::Place> {
        let permit = match Arc::clone(&self.room).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => match self.places.make_room()? {
                Room::Beginning(permit) => {
                    self.refused(Refusal::Beginning);
                    permit
                }
                Room::Idle(permit) => {
                    self.refused(Refusal::Idle);
                    permit
                }
            },
        };
        Some(self.places.take(permit))
    }

    /// Passes each connection to `to`, detached from this runtime, forever. Dropping the future closes the port.
    pub async fn hand_on(self, to: impl Fn(Accepted, places::Place)) -> ! {
        loop {
            let (connection, peer, place) = self.accept().await;
            match connection.into_socket() {
                Ok(socket) => to(Accepted { socket, peer }, place),
                Err(error) => tracing::debug!(%error, "a connection is lost"),
            }
        }
    }

    fn refused(&self, refusal: Refusal) {
        self.refusals.log(refusal, || {
            move |times| match refusal {
                Refusal::New => {
                    tracing::warn!(times, "GRPC_MAX_CONNECTIONS is reached: new connections were closed");
                }
                Refusal::Beginning => tracing::warn!(
                    times,
                    "GRPC_MAX_CONNECTIONS is reached: connections without a finished handshake were closed for new ones"
                ),
                Refusal::Idle => tracing::warn!(
                    times,
                    "GRPC_MAX_CONNECTIONS is reached: the longest idle connections were closed for new ones"
                ),
            }
        });
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<(Plain, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                // On a dual-stack socket, an IPv4 address arrives mapped to an IPv6 one.
                let peer = |peer: SocketAddr| Peer::Tcp((peer.ip().to_canonical(), peer.port()).into());
                listener.accept().await.map(|(stream, address)| (Plain::Tcp(stream), peer(address)))
            }
            Listener::Unix(_, listener) => listener.accept().await.map(|(stream, _)| (Plain::Unix(stream), Peer::Unix)),
        }
    }
}

impl Plain {
    fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Plain::Tcp(stream) => stream.set_nodelay(true),
            Plain::Unix(_) => Ok(()),
        }
    }

    fn into_socket(self) -> io::Result<Socket> {
        match self {
            Plain::Tcp(stream) => TcpStream::into_std(stream).map(Socket::Tcp),
            Plain::Unix(stream) => UnixStream::into_std(stream).map(Socket::Unix),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::server::socket;

    /// Opens a port, and returns it with its address.
    async fn port(most: usize) -> (Port, SocketAddr) {
        let bound = socket::bind("127.0.0.1", 0).await.unwrap();
        let address = bound.address();
        (Closed::tcp(bound, most).listen().unwrap(), address)
    }

    #[tokio::test]
    async fn beyond_the_bound_a_connection_is_closed_at_once_and_room_comes_back() {
        let (port, address) = port(2).await;
        let connect = || TcpStream::connect(address);
        let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
        let (first, second) = (port.accept().await, port.accept().await);
        let mut third = connect().await.unwrap();
        let refused = async { third.read(&mut [0]).await.unwrap_or(0) };
        tokio::select! {
            _ = port.accept() => panic!("there is no room"),
            read = refused => assert_eq!(read, 0, "closed"),
        }
        drop(first);
        let fourth = connect().await.unwrap();
        let accepted = port.accept().await;
        assert_eq!(accepted.1, Peer::Tcp(fourth.local_addr().unwrap()));
        drop((one, other, second));
    }

    #[tokio::test]
    async fn when_it_is_dropped_the_port_closes() {
        let (port, address) = port(1).await;
        let handing_on = tokio::spawn(async { port.hand_on(|_, _| {}).await });
        handing_on.abort();
        assert!(handing_on.await.is_err_and(|error| error.is_cancelled()));
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
