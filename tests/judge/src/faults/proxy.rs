//! A proxy in front of a store, whose connections can be disturbed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// What the proxy does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// It passes them on.
    Forward,
    /// It passes requests on, and loses the replies: what was asked is done, and nobody hears of it.
    LoseReplies,
    /// It passes replies on after 300 ms.
    Delay,
    /// It accepts connections and bytes, and passes nothing on.
    HalfOpen,
    /// It closes all connections at once.
    Refuse,
}

const ALL: [Mode; 5] = [Mode::Forward, Mode::LoseReplies, Mode::Delay, Mode::HalfOpen, Mode::Refuse];

/// A proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    mode: Arc<AtomicU8>,
    port: u16,
}

impl Proxy {
    /// Starts a proxy to a port of this machine, in the background.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub async fn start(to: u16) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let proxy = Proxy { mode: Arc::default(), port: listener.local_addr()?.port() };
        let mode = Arc::clone(&proxy.mode);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, SocketAddr::from(([127, 0, 0, 1], to)), Arc::clone(&mode)));
            }
        });
        Ok(proxy)
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes what it does, for connections that exist, too.
    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

fn current(mode: &AtomicU8) -> Mode {
    ALL.into_iter().find(|one| *one as u8 == mode.load(Ordering::SeqCst)).unwrap_or(Mode::Forward)
}

async fn serve(client: TcpStream, to: SocketAddr, mode: Arc<AtomicU8>) {
    if current(&mode) == Mode::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect(to).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let watched = Arc::clone(&mode);
    let refused = async move {
        while current(&watched) != Mode::Refuse {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = pass(from_client, to_server, Arc::clone(&mode), false) => {}
        () = pass(from_server, to_client, mode, true) => {}
        () = refused => {}
    }
}

/// Passes bytes on in one direction, as the mode says.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mode: Arc<AtomicU8>, are_replies: bool) {
    let mut buffer = vec![0; 1 << 14];
    let mut has_lost = false;
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        match current(&mode) {
            Mode::HalfOpen => has_lost = true,
            Mode::LoseReplies if are_replies => has_lost = true,
            // TCP loses no bytes between others: a connection that has lost some ends.
            _ if has_lost => return,
            Mode::Delay if are_replies => tokio::time::sleep(Duration::from_millis(300)).await,
            _ => {}
        }
        if has_lost {
            continue;
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
