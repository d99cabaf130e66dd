//! Client of the gRPC port of a running service.

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::connector::{self, Connector, Heard, Target};
use super::secrecy::Secrecy;
use crate::probe::{self, Found};
use crate::settings;
use crate::tls::HandshakeError;

/// Address of a running service.
#[derive(Args)]
pub(crate) struct ServiceAddress {
    /// Address of the service's gRPC port: HOST:PORT, a URL such as https://HOST:PORT, which implies --tls, or
    /// unix:PATH. Unset: this machine, at GRPC_UDS or at the port GRPC_PORT (default 8081), with TLS if
    /// GRPC_SERVER_USE_TLS is on.
    #[arg(long, short, value_name = "HOST:PORT", value_parser = address)]
    address: Option<Address>,

    /// For the default above. Inside a container, the variable that changes the service's port changes it for its
    /// clients as well. Read only if no address is given.
    #[arg(long, env = "GRPC_PORT", default_value = "8081", hide = true)]
    grpc_port: String,

    /// For the default above.
    #[arg(long, env = "GRPC_UDS", hide = true)]
    grpc_uds: Option<String>,

    #[command(flatten)]
    secrecy: Secrecy,
}

/// Address that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    /// `host:port`, or `unix:path`.
    place: String,
    /// Whether it is a URL with TLS.
    is_secure: bool,
}

/// A service that can be called.
pub(crate) struct Service {
    /// Connection on which every call is answered within the timeout or fails.
    pub channel: Channel,
    address: String,
    is_tls: bool,
    heard: Heard,
    timeout: Duration,
}

impl Service {
    /// Connects to the service. Every call is answered within `timeout` or fails.
    ///
    /// # Errors
    /// Fails if the address is invalid, or if no service answers there.
    pub(crate) async fn connect(place: &ServiceAddress, timeout: Duration) -> anyhow::Result<Service> {
        let address = place.or_default()?;
        let target = Target::of(&address);
        let tls = match place.address {
            Some(Address { is_secure, .. }) => place.secrecy.named(target.host(), is_secure)?,
            None => place.secrecy.of_this_machine(target.host())?,
        };
        let (is_tls, heard) = (tls.is_some(), Heard::default());
        // The connector knows the destination; this is the name of the service in HTTP/2.
        let scheme = if is_tls { "https" } else { "http" };
        let origin: Uri = format!("{scheme}://{}", target.authority()).parse()?;
        let endpoint = Endpoint::from_shared(format!("http://{}", target.authority()))?;
        let endpoint = endpoint.origin(origin).connect_timeout(timeout).timeout(timeout);
        let connected = match (&target, tls) {
            (Target::Tcp(_), None) => endpoint.connect().await,
            (_, tls) => endpoint.connect_with_connector(Connector::new(target, tls, heard.clone())).await,
        };
        match connected {
            Ok(channel) => Ok(Service { channel, address, is_tls, heard, timeout }),
            Err(error) => Err(match heard.take() {
                Some(refused) => anyhow!("{}", of_handshake(&address, &refused)),
                None if address.starts_with(connector::UNIX) => {
                    let reason = connector::root(&error);
                    anyhow!("cannot reach {address}: {reason}: is the service running? see --address")
                }
                None => match probe::probe(&address, timeout).await {
                    // Tollgate itself closes connections that are not HTTP/2 without an answer.
                    Found::Http2 if is_tls => anyhow!("{}", of_handshake(&address, &HandshakeError::PlainText)),
                    Found::Silent | Found::Closes | Found::Http2 => {
                        anyhow!(error).context(format!("cannot reach {address}"))
                    }
                    found => anyhow!("{}", explained(&address, &found)),
                },
            }),
        }
    }

    /// Returns why a call failed: the message of the service, or what else was found at its address.
    pub(crate) async fn refusal(&self, status: &Status) -> anyhow::Error {
        // gRPC's name of a code describes the service; Tollgate's own message describes the problem.
        let said = match status.message() {
            "" => anyhow!("{}", status.code()),
            message => anyhow!("{message}"),
        };
        if status.code() == Code::Unimplemented {
            return said.context(format!("{} speaks HTTP/2, but is not Tollgate: see --address", self.address));
        }
        // A status that the service has sent has no source on this side.
        if std::error::Error::source(status).is_none() {
            return said;
        }
        if let Some(refused) = self.heard.take() {
            return anyhow!("{}", of_handshake(&self.address, &refused));
        }
        if self.address.starts_with(connector::UNIX) {
            return said;
        }
        match probe::probe(&self.address, self.timeout).await {
            Found::Http2 => said,
            Found::Tls if self.is_tls => said,
            found => anyhow!("{}", explained(&self.address, &found)),
        }
    }
}

impl ServiceAddress {
    fn or_default(&self) -> anyhow::Result<String> {
        match &self.address {
            Some(address) => Ok(address.place.clone()),
            None if let Some(path) = &self.grpc_uds => Ok(format!("{}{path}", connector::UNIX)),
            None => {
                let port = settings::port("GRPC_PORT")(&self.grpc_port);
                let port = port.map_err(|reason| anyhow!("GRPC_PORT={} (environment): {reason}", self.grpc_port))?;
                Ok(format!("localhost:{port}"))
            }
        }
    }
}

/// Returns the address if it is valid; if not, says what to write instead.
fn address(address: &str) -> Result<Address, String> {
    if let Some(path) = address.strip_prefix(connector::UNIX) {
        // Envoy and gRPC also accept two more slashes.
        let path = path.strip_prefix("//").unwrap_or(path);
        return Ok(Address { place: format!("{}{path}", connector::UNIX), is_secure: false });
    }
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest.strip_suffix('/').unwrap_or(rest)),
        None => (None, address),
    };
    let is_secure = match scheme {
        None | Some("http" | "grpc") => false,
        Some("https" | "grpcs") => true,
        Some(scheme) => return Err(format!("unknown scheme {scheme}://: write {}", host_and_port(rest).1)),
    };
    match host_and_port(rest) {
        (Some(place), _) => Ok(Address { place, is_secure }),
        (None, advice) => Err(advice),
    }
}

/// Returns the text if it is `host:port`, and what to write instead.
fn host_and_port(address: &str) -> (Option<String>, String) {
    let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    // An IPv6 address contains colons. A port alone is a port of this machine.
    let bracketed = match (authority.parse::<Ipv6Addr>(), authority.parse::<u16>()) {
        (Ok(address), _) => format!("[{address}]"),
        (_, Ok(port)) => format!("localhost:{port}"),
        _ => authority.to_owned(),
    };
    let parsed = format!("http://{bracketed}").parse::<Uri>().ok();
    let Some(host) = parsed.as_ref().and_then(Uri::host).filter(|host| !host.is_empty()) else {
        return (None, "write host:port, such as localhost:8081".to_owned());
    };
    match parsed.as_ref().and_then(Uri::port_u16) {
        Some(port) if format!("{host}:{port}") == address => (Some(address.to_owned()), address.to_owned()),
        Some(port) => (None, format!("not host:port: write {host}:{port}")),
        None if !bracketed.ends_with(host) => {
            (None, format!("the port must be a whole number from 1 to 65535: write, for example, {host}:8081"))
        }
        None => (None, format!("not host:port: write {host}:8081")),
    }
}

fn explained(address: &str, found: &Found) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match found {
        Found::UnknownHost => format!("the host name {host} does not resolve: see --address"),
        Found::Nobody => format!("connection to {address} refused: is the service running? see --address"),
        Found::Unreachable(error) => format!("cannot reach {address}: {error}"),
        Found::Tls => format!(
            "{address} uses TLS: write --tls, and --ca FILE if this machine does not trust the authority of its \
             certificate"
        ),
        Found::Http if port == "8081" => format!("{address} speaks HTTP/1.1, not gRPC: see --address"),
        Found::Http => format!(
            "{address} speaks HTTP/1.1, not gRPC: Tollgate's port for gRPC is GRPC_PORT, 8081 unless it is set; \
             for example --address {host}:8081"
        ),
        Found::Redis => format!("{address} is Redis, not Tollgate: for example --address {host}:8081"),
        Found::Other(said) => {
            format!("{address} speaks another protocol than gRPC; it sends {said:?}: see --address")
        }
        Found::Silent => format!("{address} accepts connections and sends nothing: is that Tollgate? see --address"),
        Found::Closes => format!("{address} closes connections without an answer: is that Tollgate? see --address"),
        Found::Http2 => format!("{address} speaks HTTP/2, but answers no call"),
    }
}

/// Describes a failed handshake: the fault of the service or of this client, and what to do.
fn of_handshake(address: &str, error: &HandshakeError) -> String {
    let advice = match error {
        HandshakeError::PlainText => {
            return format!("{address} does not use TLS: omit --tls, --ca and --cert");
        }
        HandshakeError::Untrusted(_) => "name the authority that signed it, or the certificate itself: --ca FILE",
        HandshakeError::WrongName(_) => "write a name that its certificate has: --server-name NAME",
        HandshakeError::Refused(_) => {
            "the service requires a certificate from an authority that it trusts: --cert FILE, --key FILE"
        }
        HandshakeError::NothingInCommon(_) => "is that Tollgate's port for gRPC? see --address",
        HandshakeError::Expired(_)
        | HandshakeError::Nameless(_)
        | HandshakeError::Timeout
        | HandshakeError::Closed
        | HandshakeError::NoCertificate
        | HandshakeError::Broken(_) => return format!("{address}: {error}"),
    };
    format!("{address}: {error}: {advice}")
}
