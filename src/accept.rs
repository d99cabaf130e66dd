//! Takes connections for gRPC. Whoever connects and says nothing is let go, so that silence uses up neither descriptors nor the
//! patience of a shutdown; and running out of descriptors is told and waited for, not tried again in a busy loop.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::telemetry::Bounded;

/// How long a client may take to send its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// How long to wait where the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that have spoken and wait to be served.
const WAITING: usize = 64;

/// The connections of those who speak, until `stop`; then the port is closed.
pub fn accept(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> ReceiverStream<io::Result<TcpStream>> {
    let (spoken, connections) = mpsc::channel(WAITING);
    let take = async move {
        let reports = Bounded::default();
        loop {
            match listener.accept().await {
                Ok((connection, _)) => drop(tokio::spawn(listen(connection, spoken.clone()))),
                Err(error) => {
                    if let Some(times) = reports.admit() {
                        tracing::error!(%error, times, "cannot take a connection");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::spawn(async {
        tokio::select! {
            () = take => {}
            () = stop => {}
        }
    });
    ReceiverStream::new(connections)
}

/// Hands a connection on once its client has sent something.
async fn listen(connection: TcpStream, spoken: mpsc::Sender<io::Result<TcpStream>>) {
    let first = tokio::time::timeout(FIRST_BYTE, connection.peek(&mut [0])).await;
    if matches!(first, Ok(Ok(1))) && connection.set_nodelay(true).is_ok() {
        // An error means that nobody serves any more: the connection closes.
        let _ = spoken.send(Ok(connection)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;
    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_speaks_is_served_and_who_is_silent_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut connections = accept(listener, async { drop(stopped.await) });

        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut speaking = TcpStream::connect(address).await.unwrap();
        speaking.write_all(b"PRI").await.unwrap();
        let mut served = connections.next().await.unwrap().unwrap();
        let mut bytes = [0; 3];
        served.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"PRI", "what it said is still there");
        assert_eq!(silent.read(&mut bytes).await.unwrap(), 0, "closed");

        stop.send(()).unwrap();
        assert!(connections.next().await.is_none());
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
