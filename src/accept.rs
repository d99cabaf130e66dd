//! Takes connections for gRPC. Whoever connects and says nothing is let go, so that silence uses up neither descriptors nor the
//! patience of a shutdown; and running out of descriptors is told and waited for, not tried again in a busy loop.

use std::net;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::telemetry::Bounded;

/// How long a client may take to send its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// How long to wait where the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// Hands on the connections of those who speak, for ever. When it is dropped the port closes, and those who have not spoken are let go.
pub async fn accept(listener: TcpListener, hand_on: impl Fn(net::TcpStream) + Clone + Send + 'static) -> ! {
    let mut silent = JoinSet::new();
    let reports = Bounded::default();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let hand_on = hand_on.clone();
                silent.spawn(async move {
                    if let Some(spoken) = listen(connection).await {
                        hand_on(spoken);
                    }
                });
            }
            Err(error) => {
                if let Some(times) = reports.admit() {
                    tracing::error!(%error, times, "cannot take a connection");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        while silent.try_join_next().is_some() {}
    }
}

/// The connection, free of this runtime, once its client has sent something.
async fn listen(connection: TcpStream) -> Option<net::TcpStream> {
    let first = tokio::time::timeout(FIRST_BYTE, connection.peek(&mut [0])).await;
    let speaks = matches!(first, Ok(Ok(1))) && connection.set_nodelay(true).is_ok();
    if speaks { connection.into_std().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_speaks_is_served_and_who_is_silent_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (hand_on, mut connections) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept(listener, move |connection| hand_on.send(connection).unwrap()));

        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut speaking = TcpStream::connect(address).await.unwrap();
        speaking.write_all(b"PRI").await.unwrap();
        let mut served = TcpStream::from_std(connections.recv().await.unwrap()).unwrap();
        let mut bytes = [0; 3];
        served.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"PRI", "what it said is still there");
        assert_eq!(silent.read(&mut bytes).await.unwrap(), 0, "closed");

        let mut silent = TcpStream::connect(address).await.unwrap();
        accepting.abort();
        assert_eq!(silent.read(&mut bytes).await.unwrap_or(0), 0, "closed without its ten seconds");
        assert!(connections.recv().await.is_none());
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
    }
}
