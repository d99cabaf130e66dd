//! What a connection of the gRPC port may be: over TCP or a Unix socket, and in TLS or not. One type for all of them,
//! so that there is one HTTP/2, and none in a box but TLS's, which is large.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{self, SocketAddr};
use std::os::unix;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A connection of no runtime, and who is at its other end.
pub struct Accepted {
    pub(super) socket: Socket,
    /// Who that is.
    pub peer: Peer,
}

pub(super) enum Socket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Somebody at this address.
    Tcp(SocketAddr),
    /// Somebody on this machine.
    Unix,
}

/// A connection as the system has it.
pub enum Plain {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

/// A connection that HTTP/2 can begin on.
pub enum Stream {
    /// Without TLS.
    Plain(Plain),
    /// In TLS.
    Tls(Box<TlsStream<Plain>>),
}

impl Accepted {
    /// Makes it one of this runtime.
    ///
    /// # Errors
    /// Where the connection is lost.
    pub fn register(self) -> io::Result<Plain> {
        match self.socket {
            Socket::Tcp(socket) => TcpStream::from_std(socket).map(Plain::Tcp),
            Socket::Unix(socket) => UnixStream::from_std(socket).map(Plain::Unix),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix => f.write_str("this machine"),
        }
    }
}

/// Hands on what can be done with each of two kinds.
macro_rules! either {
    ($kind:ident: $one:path, $other:path) => {
        impl AsyncRead for $kind {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $one(one) => Pin::new(one).poll_read(cx, buffer),
                    $other(other) => Pin::new(other).poll_read(cx, buffer),
                }
            }
        }

        impl AsyncWrite for $kind {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $one(one) => Pin::new(one).poll_write(cx, bytes),
                    $other(other) => Pin::new(other).poll_write(cx, bytes),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                parts: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $one(one) => Pin::new(one).poll_write_vectored(cx, parts),
                    $other(other) => Pin::new(other).poll_write_vectored(cx, parts),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $one(one) => one.is_write_vectored(),
                    $other(other) => other.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $one(one) => Pin::new(one).poll_flush(cx),
                    $other(other) => Pin::new(other).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $one(one) => Pin::new(one).poll_shutdown(cx),
                    $other(other) => Pin::new(other).poll_shutdown(cx),
                }
            }
        }
    };
}

either!(Plain: Plain::Tcp, Plain::Unix);
either!(Stream: Stream::Plain, Stream::Tls);
