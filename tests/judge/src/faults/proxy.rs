//! A proxy in front of a process, whose connections can be disturbed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};
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

/// The last byte of the loopback address that a process connects from, below 32: by it a proxy knows the process.
pub type Source = u8;

/// A proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    state: Arc<State>,
    port: u16,
}

#[derive(Debug)]
struct State {
    mode: AtomicU8,
    /// The sources to which the mode applies, a bit for each.
    sources: AtomicU32,
    to: AtomicU16,
}

impl Proxy {
    /// Starts a proxy to a port of this machine, in the background.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub async fn start(to: u16) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let state = Arc::new(State {
            mode: AtomicU8::new(Mode::Forward as u8),
            sources: AtomicU32::new(u32::MAX),
            to: AtomicU16::new(to),
        });
        let proxy = Proxy { state: Arc::clone(&state), port: listener.local_addr()?.port() };
        tokio::spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let source = match from.ip() {
                    IpAddr::V4(address) => address.octets()[3],
                    IpAddr::V6(_) => 1,
                };
                tokio::spawn(serve(client, source, Arc::clone(&state)));
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
        self.state.sources.store(u32::MAX, Ordering::SeqCst);
        self.state.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Changes what it does with connections from these sources; it forwards all others.
    pub fn set_for(&self, mode: Mode, sources: &[Source]) {
        let bits = sources.iter().fold(0, |bits, source| bits | 1_u32 << source);
        self.state.sources.store(bits, Ordering::SeqCst);
        self.state.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Closes its connections, and leads new ones to another port.
    pub fn lead_to(&self, port: u16) {
        self.state.to.store(port, Ordering::SeqCst);
    }
}

impl State {
    fn mode_of(&self, source: Source) -> Mode {
        if self.sources.load(Ordering::SeqCst) >> (source % 32) & 1 == 0 {
            return Mode::Forward;
        }
        let mode = self.mode.load(Ordering::SeqCst);
        ALL.into_iter().find(|one| *one as u8 == mode).unwrap_or(Mode::Forward)
    }
}

async fn serve(client: TcpStream, source: Source, state: Arc<State>) {
    if state.mode_of(source) == Mode::Refuse {
        return;
    }
    let to = state.to.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], to))).await else { return };
    // Neither end sees the other's acknowledgements: small messages would wait for those of the one before.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let closed = async {
        while state.mode_of(source) != Mode::Refuse && state.to.load(Ordering::SeqCst) == to {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = pass(from_client, to_server, || state.mode_of(source), false) => {}
        () = pass(from_server, to_client, || state.mode_of(source), true) => {}
        () = closed => {}
    }
}

/// Passes bytes on in one direction, as the mode says.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mode: impl Fn() -> Mode, are_replies: bool) {
    let mut buffer = vec![0; 1 << 14];
    let mut has_lost = false;
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        match mode() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mode_is_for_the_sources_that_are_named() {
        let proxy = Proxy::start(1).await.unwrap();
        proxy.set_for(Mode::HalfOpen, &[2, 4]);
        let modes = [1, 2, 3, 4].map(|source| proxy.state.mode_of(source));
        assert_eq!(modes, [Mode::Forward, Mode::HalfOpen, Mode::Forward, Mode::HalfOpen]);
        proxy.set(Mode::Refuse);
        assert_eq!(proxy.state.mode_of(1), Mode::Refuse);
    }
}
