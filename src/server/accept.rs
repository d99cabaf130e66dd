//! Takes connections for gRPC. Whoever connects and does not begin to speak HTTP/2 is let go, so that silence, or a word and then silence,
//! uses up neither descriptors nor the patience of a shutdown; and running out of descriptors is told and waited for, not tried again in a
//! busy loop.

use std::io;
use std::net;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::telemetry::Bounded;

/// What a client of HTTP/2 says first (RFC 9113, section 3.4). Before it has come, hyper neither asks whether the client is there nor ends.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a client may take to say it.
const PREFACE_TIME: Duration = Duration::from_secs(10);
/// How long to wait before looking again: for connections where the system gives no more, for the rest of a preface.
const PAUSE: Duration = Duration::from_millis(100);

/// Hands on the connections of those who speak HTTP/2, for ever. When it is dropped the port closes, and all others are let go.
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

/// The connection, free of this runtime, once its client has sent the preface, which stays to be read.
async fn listen(connection: TcpStream) -> Option<net::TcpStream> {
    let speaks = tokio::time::timeout(PREFACE_TIME, begins_with_preface(&connection)).await;
    let speaks = matches!(speaks, Ok(Ok(true))) && connection.set_nodelay(true).is_ok();
    if speaks { connection.into_std().ok() } else { None }
}

/// Waits until the whole preface is there, or something else.
async fn begins_with_preface(connection: &TcpStream) -> io::Result<bool> {
    let mut buffer = [0; PREFACE.len()];
    loop {
        let length = connection.peek(&mut buffer).await?;
        match PREFACE.strip_prefix(&buffer[..length]) {
            Some([]) => return Ok(true),
            // It comes in one piece, nearly always: to look again is not worth being told when there is more.
            Some(_) if length > 0 && !connection.ready(Interest::READABLE).await?.is_read_closed() => {
                tokio::time::sleep(PAUSE).await;
            }
            _ => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;

    /// Listens, and hands on.
    struct Scene {
        address: net::SocketAddr,
        accepting: tokio::task::JoinHandle<()>,
        connections: mpsc::UnboundedReceiver<net::TcpStream>,
    }

    impl Scene {
        async fn new() -> Scene {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (hand_on, connections) = mpsc::unbounded_channel();
            let accepting = tokio::spawn(async {
                accept(listener, move |connection| hand_on.send(connection).unwrap()).await;
            });
            Scene { address, accepting, connections }
        }

        /// A client that has said this.
        async fn client(&self, words: &[u8]) -> TcpStream {
            let mut client = TcpStream::connect(self.address).await.unwrap();
            client.write_all(words).await.unwrap();
            client
        }

        /// Waits until a client is let go, and tells for how long it was kept.
        async fn let_go(&mut self, words: &[u8]) -> Duration {
            let mut client = self.client(words).await;
            let start = tokio::time::Instant::now();
            let heard = tokio::time::timeout(2 * PREFACE_TIME, client.read(&mut [0])).await;
            assert_eq!(heard.expect("it is let go").unwrap_or(0), 0, "closed");
            assert!(self.connections.is_empty(), "{words:?} is not handed on");
            start.elapsed()
        }
    }

    #[tokio::test]
    async fn who_speaks_is_served_with_all_that_was_said() {
        let mut scene = Scene::new().await;
        let client = scene.client(&[&PREFACE[..], b"more"].concat()).await;
        let mut served = TcpStream::from_std(scene.connections.recv().await.unwrap()).unwrap();
        let mut said = [0; PREFACE.len() + 4];
        served.read_exact(&mut said).await.unwrap();
        assert_eq!(said, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore");
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_is_let_go_though_it_has_said_something() {
        let mut scene = Scene::new().await;
        for words in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let kept = scene.let_go(words).await;
            assert!(kept >= PREFACE_TIME, "{words:?} was kept for {kept:?}");
        }
    }

    #[tokio::test]
    async fn who_says_something_else_is_let_go_at_once() {
        let mut scene = Scene::new().await;
        for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRINT", b"\x16\x03\x01"] {
            let kept = scene.let_go(words).await;
            assert!(kept < PREFACE_TIME, "{words:?} was kept for {kept:?}");
        }
    }

    #[tokio::test]
    async fn who_goes_within_the_preface_is_let_go_at_once() {
        let scene = Scene::new().await;
        let mut client = scene.client(b"PRI").await;
        client.shutdown().await.unwrap();
        let closed = tokio::time::timeout(PREFACE_TIME / 2, client.read(&mut [0])).await;
        assert_eq!(closed.expect("it is let go").unwrap_or(0), 0);
        assert!(scene.connections.is_empty());
    }

    #[tokio::test]
    async fn the_preface_may_come_in_pieces() {
        let mut scene = Scene::new().await;
        let mut client = scene.client(b"").await;
        for piece in PREFACE.chunks(5) {
            assert!(scene.connections.is_empty());
            client.write_all(piece).await.unwrap();
            tokio::time::sleep(PAUSE / 10).await;
        }
        assert!(scene.connections.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn when_it_is_dropped_the_port_closes_and_nobody_is_waited_for() {
        let mut scene = Scene::new().await;
        let mut clients = [scene.client(b"").await, scene.client(b"P").await];
        let start = tokio::time::Instant::now();
        scene.accepting.abort();
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0, "closed");
        }
        assert!(start.elapsed() < PREFACE_TIME);
        assert!(scene.connections.recv().await.is_none());
        assert!(TcpStream::connect(scene.address).await.is_err(), "the port is closed");
    }
}
