//! TCP sockets of this process. A bound socket refuses every client until it listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, lookup_host};

/// Number of connections that the system completes before this process accepts them.
const BACKLOG: i32 = 1024;

/// A TCP address that belongs to this process. Connections are refused until it listens.
pub(super) struct Bound {
    socket: Socket,
    address: SocketAddr,
}

/// Binds a port of `host`, which is an address or a name.
///
/// `0.0.0.0` and `::` both mean every address, of IPv6 and IPv4, as they do for a server in Go. A kernel without IPv6
/// gets the addresses of IPv4.
///
/// # Errors
/// If no address of that name can be bound; the error is that of the last address.
pub(super) async fn bind(host: &str, port: u16) -> io::Result<Bound> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name does not resolve");
    for address in lookup_host((host, port)).await? {
        let bound = if address.ip().is_unspecified() { bind_every(port) } else { bind_one(address) };
        match bound {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_every(port: u16) -> io::Result<Bound> {
    bind_one((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|error| match has_no_ipv6(&error) {
        true => bind_one((Ipv4Addr::UNSPECIFIED, port).into()),
        false => Err(error),
    })
}

/// Returns whether binding failed because the kernel lacks IPv6, and not for another reason.
fn has_no_ipv6(error: &io::Error) -> bool {
    // EAFNOSUPPORT has no kind in the standard library.
    let unsupported = error.kind() == io::ErrorKind::AddrNotAvailable || error.kind() == io::ErrorKind::Unsupported;
    unsupported || error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
}

fn bind_one(address: SocketAddr) -> io::Result<Bound> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Allows a port that another process has just left.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&SockAddr::from(address))?;
    let no_address = || io::Error::other("cannot get the address that the socket is bound to");
    let address = socket.local_addr()?.as_socket().ok_or_else(no_address)?;
    Ok(Bound { socket, address })
}

impl Bound {
    /// Returns its address. If port 0 was asked for, this has the port that the system chose.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// If another process has begun to listen there.
    pub(super) fn listen(self) -> io::Result<TcpListener> {
        self.socket.listen(BACKLOG)?;
        TcpListener::from_std(self.socket.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_bound_port_refuses_clients_until_it_listens_and_is_taken_from_others_then() {
        let bound = bind("127.0.0.1", 0).await.unwrap();
        let address = bound.address();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = bound.listen().unwrap();
        TcpStream::connect(address).unwrap();
        let taken = bind("127.0.0.1", address.port()).await.err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn every_address_is_that_of_ipv6_and_ipv4_whichever_way_it_is_written() {
        let has_ipv6 = bind("::1", 0).await.is_ok();
        for host in ["0.0.0.0", "::"] {
            let bound = bind(host, 0).await.unwrap();
            let port = bound.address().port();
            let _listener = bound.listen().unwrap();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok(), has_ipv6, "{host}");
        }
    }

    #[tokio::test]
    async fn an_address_of_one_family_stays_in_it() {
        let listener = bind("127.0.0.1", 0).await.unwrap().listen().unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_err());
    }

    #[test]
    fn only_a_kernel_without_ipv6_gets_ipv4_alone() {
        assert!(has_no_ipv6(&io::Error::from_raw_os_error(nix::libc::EAFNOSUPPORT)));
        assert!(has_no_ipv6(&io::Error::from_raw_os_error(nix::libc::EADDRNOTAVAIL)));
        assert!(!has_no_ipv6(&io::Error::from_raw_os_error(nix::libc::EADDRINUSE)));
        assert!(!has_no_ipv6(&io::Error::from_raw_os_error(nix::libc::EACCES)));
    }
}
