//! A port, and a bound on its connections. What is beyond the bound is closed at once: the client learns it without
//! waiting and goes elsewhere, and the descriptors of the other port, of Redis and of files stay free.

use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::Throttle;

/// How long to wait where the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// Where gRPC listens.
pub struct Port {
    listener: TcpListener,
    room: Arc<Semaphore>,
    refusals: Throttle,
    failures: Throttle,
}

/// Counts a connection of a port as open for as long as it is kept.
pub type Permit = OwnedSemaphorePermit;

impl Port {
    /// Takes connections of this listener, so many at a time.
    pub fn new(listener: TcpListener, most: usize) -> Port {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Port { listener, room, refusals: Throttle::default(), failures: Throttle::default() }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection for which there is room.
    pub async fn accept(&self) -> (TcpStream, Permit) {
        loop {
            match self.listener.accept().await {
                Ok((connection, _)) => match Arc::clone(&self.room).try_acquire_owned() {
                    // Without it, small answers wait for the ones before. Where it fails the client has gone.
                    Ok(permit) if connection.set_nodelay(true).is_ok() => return (connection, permit),
                    Ok(_) => {}
                    Err(_) => self.refused(),
                },
                Err(error) => {
                    self.failures
                        .log((), || move |times| tracing::error!(%error, times, "cannot take a gRPC connection"));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Hands on each connection, free of this runtime, for ever. When it is dropped the port closes.
    pub async fn hand_on(self, to: impl Fn(net::TcpStream, Permit)) -> ! {
        loop {
            let (connection, permit) = self.accept().await;
            match connection.into_std() {
                Ok(connection) => to(connection, permit),
                Err(error) => tracing::debug!(%error, "a connection is lost"),
            }
        }
    }

    fn refused(&self) {
        self.refusals.log((), || {
            |times| tracing::warn!(times, "as many gRPC connections as may be are open: others were closed")
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn port(most: usize) -> Port {
        Port::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), most)
    }

    #[tokio::test]
    async fn beyond_the_bound_a_connection_is_closed_at_once_and_room_comes_back() {
        let port = port(2).await;
        let address = port.address().unwrap();
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
        assert_eq!(accepted.0.peer_addr().unwrap(), fourth.local_addr().unwrap());
        drop((one, other, second));
    }

    #[tokio::test]
    async fn when_it_is_dropped_the_port_closes() {
        let port = port(1).await;
        let address = port.address().unwrap();
        let handing_on = tokio::spawn(async { port.hand_on(|_, _| {}).await });
        handing_on.abort();
        assert!(handing_on.await.is_err_and(|error| error.is_cancelled()));
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
