//! What waits at a connection to be read, which tells how old a call is.

use std::task::Context;

use rustix::io::ioctl_fionread;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A stream of bytes that reports how much of it waits to be read.
pub trait Incoming {
    /// Returns the number of bytes that have arrived and are not read, or 0 if that is unknown. In TLS they are
    /// encrypted: some more than what will be read, but without what is decrypted and not read yet.
    fn waiting(&self) -> u64;

    /// Has the task woken when more arrives. A read that finds nothing does that, too.
    fn wake_at_input(&self, cx: &mut Context<'_>);
}

/// Implements [`Incoming`] for a socket.
macro_rules! socket {
    ($kind:ty) => {
        impl Incoming for $kind {
            fn waiting(&self) -> u64 {
                ioctl_fionread(self).unwrap_or(0)
            }

            fn wake_at_input(&self, cx: &mut Context<'_>) {
                // Ready where something waits already: then nobody waits for a wake.
                let _ = self.poll_read_ready(cx);
            }
        }
    };
}

socket!(TcpStream);
socket!(UnixStream);

impl<C: Incoming> Incoming for TlsStream<C> {
    fn waiting(&self) -> u64 {
        self.get_ref().0.waiting()
    }

    fn wake_at_input(&self, cx: &mut Context<'_>) {
        self.get_ref().0.wake_at_input(cx);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert_known(near, listener.accept().await.unwrap().0).await;
        let (near, far) = UnixStream::pair().unwrap();
        assert_known(near, far).await;
    }

    async fn assert_known(mut near: impl AsyncWrite + Unpin, mut far: impl AsyncRead + Incoming + Unpin) {
        assert_eq!(far.waiting(), 0);
        near.write_all(&[7; 300]).await.unwrap();
        far.read_exact(&mut [0; 100]).await.unwrap();
        assert_eq!(far.waiting(), 200);
    }
}
