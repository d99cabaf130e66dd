//! A port, and a bound on its connections. What is beyond the bound is closed at once: the client learns it without
//! waiting and goes elsewhere, and the descriptors of the other port, of Redis and of files stay free.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::beginnings::{Beginning, Beginnings};
use super::stream::{Accepted, Peer, Plain, Socket};
use super::unix::SocketFile;
use crate::telemetry::Throttle;

/// How long to wait where the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// Where gRPC listens.
pub struct Port {
    listener: Listener,
    room: Arc<Semaphore>,
    beginnings: Arc<Beginnings>,
    refusals: Throttle<Refusal>,
    failures: Throttle,
}

/// How it listens.
pub enum Listener {
    /// At a port.
    Tcp(TcpListener),
    /// At a path.
    Unix(SocketFile, UnixListener),
}

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
}

/// What becomes of a connection that there is no room for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// It is closed.
    New,
    /// Another is closed for it.
    Oldest,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Port {
    /// Takes connections of this listener, so many at a time.
    pub fn new(listener: Listener, most: usize) -> Port {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let (refusals, failures) = (Throttle::default(), Throttle::default());
        Port { listener, room, beginnings: Arc::default(), refusals, failures }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn address(&self) -> io::Result<Address> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Listener::Unix(file, _) => Ok(Address::Unix(file.path().to_owned())),
        }
    }

    /// The next connection for which there is room.
    pub async fn accept(&self) -> (Plain, Peer, Beginning) {
        loop {
            match self.listener.accept().await {
                Ok((connection, peer)) => match self.room() {
                    // Without it, small answers wait for the ones before. Where it fails the client has gone.
                    Some(place) if connection.set_nodelay().is_ok() => return (connection, peer, place),
                    Some(_) => {}
                    None => self.refused(Refusal::New),
                },
                Err(error) => {
                    self.failures
                        .log((), || move |times| tracing::error!(%error, times, "cannot take a gRPC connection"));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// A place for one more.
    fn room(&self) -> Option<Beginning> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok().or_else(|| {
            let permit = self.beginnings.make_room()?;
            self.refused(Refusal::Oldest);
            Some(permit)
        });
        permit.map(|permit| self.beginnings.begin(permit))
    }

    /// Hands on each connection, free of this runtime, for ever. When it is dropped the port closes.
    pub async fn hand_on(self, to: impl Fn(Accepted, Beginning)) -> ! {
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
                    tracing::warn!(times, "as many gRPC connections as may be are open: others were closed");
                }
                Refusal::Oldest => tracing::warn!(
                    times,
                    "as many gRPC connections as may be are open: some that had not begun were closed for others"
                ),
            }
        });
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<(Plain, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, peer)| (Plain::Tcp(stream), Peer::Tcp(peer)))
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

    async fn port(most: usize) -> Port {
        Port::new(Listener::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap()), most)
    }

    fn tcp(port: &Port) -> SocketAddr {
        match port.address().unwrap() {
            Address::Tcp(address) => address,
            Address::Unix(path) => panic!("{path:?}"),
        }
    }

    #[tokio::test]
    async fn beyond_the_bound_a_connection_is_closed_at_once_and_room_comes_back() {
        let port = port(2).await;
        let address = tcp(&port);
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
        let port = port(1).await;
        let address = tcp(&port);
        let handing_on = tokio::spawn(async { port.hand_on(|_, _| {}).await });
        handing_on.abort();
        assert!(handing_on.await.is_err_and(|error| error.is_cancelled()));
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
