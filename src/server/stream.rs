//! Connections of the gRPC port: over TCP or a Unix socket, with or without TLS. A single type covers them all, so
//! HTTP/2 is compiled once. Only the TLS variant is boxed, because it is large.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{self, SocketAddr};
use std::os::unix;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::grpc::Incoming;

/// A connection that is not registered with a runtime, and its peer.
pub struct Accepted {
    pub(super) socket: Socket,
    /// The client.
    pub peer: Peer,
}

pub(super) enum Socket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client at this address.
    Tcp(SocketAddr),
    /// A client on this machine.
    Unix,
}

/// A connection without TLS.
pub enum Plain {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

/// A connection that is ready for HTTP/2.
pub enum Stream {
    /// Without TLS.
    Plain(Plain),
    /// In TLS.
    Tls(Box<TlsStream<Plain>>),
}

impl Accepted {
    /// Registers the connection with the current runtime.
    ///
    /// # Errors
    /// If the connection is lost.
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

/// Implements reading, writing and what waits for an enum of two kinds of connection.
macro_rules! either {
    ($kind:ident: $one:path, $other:path) => {
        impl Incoming for $kind {
            fn waiting(&self) -> u64 {
                match self {
                    $one(one) => one.waiting(),
                    $other(other) => other.waiting(),
                }
            }

            fn wake_at_input(&self, cx: &mut Context<'_>) {
                match self {
                    $one(one) => one.wake_at_input(cx),
                    $other(other) => other.wake_at_input(cx),
                }
            }
        }

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
