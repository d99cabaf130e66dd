//! How the command speaks to a running service.

use std::net::Ipv6Addr;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::connector::{self, Connector, Heard, Target};
use super::probe::{self, Found};
use super::secrecy::Secrecy;
use crate::settings;
use crate::tls::HandshakeError;

/// Where a running service is.
#[derive(Args)]
pub(super) struct ServiceAddress {
    /// Where the service listens for gRPC: HOST:PORT, or unix:PATH. Unset: this machine, on the port that GRPC_PORT
    /// names or on 8081, or where GRPC_UDS says, and in TLS where GRPC_SERVER_USE_TLS says so.
    #[arg(long, short, value_name = "HOST:PORT", value_parser = address)]
    address: Option<String>,

    /// For the default above: inside a container, the variable that moved the service moves its clients too. It is read
    /// only then.
    #[arg(long, env = "GRPC_PORT", default_value = "8081", hide = true)]
    grpc_port: String,

    /// For the default above, too.
    #[arg(long, env = "GRPC_UDS", hide = true)]
    grpc_uds: Option<String>,

    #[command(flatten)]
    secrecy: Secrecy,
}

/// A service that calls can be made to.
pub(super) struct Service {
    /// A connection on which every call is answered in time or fails.
    pub channel: Channel,
    address: String,
    is_tls: bool,
    heard: Heard,
    timeout: Duration,
}

impl Service {
    /// Connects to it; every call is answered within `timeout` or fails.
    ///
    /// # Errors
    /// Where the address is none, or nobody answers there.
    pub(super) async fn connect(place: &ServiceAddress, timeout: Duration) -> anyhow::Result<Service> {
        let address = place.or_default()?;
        let target = Target::of(&address);
        let tls = match place.address {
            Some(_) => place.secrecy.named(target.host())?,
            None => place.secrecy.of_this_machine(target.host())?,
        };
        let (is_tls, heard) = (tls.is_some(), Heard::default());
        // Where the connection leads is the connector's business; this is what HTTP/2 calls the service.
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
                    // Tollgate itself closes what is no HTTP/2 without a word.
                    Found::Http2 if is_tls => anyhow!("{}", of_handshake(&address, &HandshakeError::PlainText)),
                    Found::Silent | Found::Closes | Found::Http2 => {
                        anyhow!(error).context(format!("cannot reach {address}"))
                    }
                    found => anyhow!("{}", explained(&address, &found)),
                },
            }),
        }
    }

    /// Why a call failed: what the service said, or what is there instead of one.
    pub(super) async fn refusal(&self, status: &Status) -> anyhow::Error {
        // The words that gRPC has for a code are about the service, and Tollgate's own say what it is about.
        let said = match status.message() {
            "" => anyhow!("{}", status.code()),
            message => anyhow!("{message}"),
        };
        if status.code() == Code::Unimplemented {
            return said.context(format!("HTTP/2 is spoken at {}, but not by Tollgate: see --address", self.address));
        }
        // A status that the other side has sent comes from no error of ours.
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
            Some(address) => Ok(address.clone()),
            None if let Some(path) = &self.grpc_uds => Ok(format!("{}{path}", connector::UNIX)),
            None => {
                let port = settings::port("GRPC_PORT")(&self.grpc_port);
                let port = port.map_err(|reason| anyhow!("GRPC_PORT={} (environment): {reason}", self.grpc_port))?;
                Ok(format!("localhost:{port}"))
            }
        }
    }
}

/// The address as it stands, where it is one; otherwise what to write instead.
fn address(address: &str) -> Result<String, String> {
    match address.strip_prefix(connector::UNIX) {
        // Envoy and gRPC write it with two slashes more, or without.
        Some(path) => Ok(format!("{}{}", connector::UNIX, path.strip_prefix("//").unwrap_or(path))),
        None => host_and_port(address),
    }
}

fn host_and_port(address: &str) -> Result<String, String> {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, address),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    // An IPv6 address has colons of its own, and a port alone is one of this machine.
    let bracketed = match (authority.parse::<Ipv6Addr>(), authority.parse::<u16>()) {
        (Ok(address), _) => format!("[{address}]"),
        (_, Ok(port)) => format!("localhost:{port}"),
        _ => authority.to_owned(),
    };
    let uri: Uri = format!("http://{bracketed}").parse().map_err(|_| "write host:port, such as localhost:8081")?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or("write host:port, such as localhost:8081")?;
    let right = match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None if !bracketed.ends_with(host) => {
            return Err(format!("the port must be a whole number from 1 to 65535: write, for example, {host}:8081"));
        }
        None => format!("{host}:8081"),
    };
    match scheme {
        _ if right == address => Ok(right),
        Some("http") => Err(format!("gRPC needs no http:// in front: write {right}")),
        Some("https") => Err(format!("gRPC needs no https:// in front: write {right}, and --tls beside it")),
        Some(_) => Err(format!("gRPC needs no scheme in front: write {right}")),
        None => Err(format!("not host:port: write {right}")),
    }
}

fn explained(address: &str, found: &Found) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match found {
        Found::UnknownHost => format!("there is no host {host}: see --address"),
        Found::Nobody => format!("nobody listens at {address}: is the service running? see --address"),
        Found::Unreachable(error) => format!("cannot reach {address}: {error}"),
        Found::Tls => format!(
            "TLS is spoken at {address}: write --tls, and --ca FILE where no authority of this machine has signed its \
             certificate"
        ),
        Found::Http if port == "8081" => format!("HTTP/1.1 is spoken at {address}, not gRPC: see --address"),
        Found::Http => format!(
            "HTTP/1.1 is spoken at {address}, not gRPC: Tollgate's port for gRPC is GRPC_PORT, 8081 unless it is set; \
             for example --address {host}:8081"
        ),
        Found::Redis => format!("Redis is at {address}, not Tollgate: for example --address {host}:8081"),
        Found::Other(said) => {
            format!("something else than gRPC is spoken at {address}, which says {said:?}: see --address")
        }
        Found::Silent => format!("{address} takes connections and says nothing: is that Tollgate? see --address"),
        Found::Closes => format!("{address} closes connections without a word: is that Tollgate? see --address"),
        Found::Http2 => format!("HTTP/2 is spoken at {address}, but no call is answered"),
    }
}

/// What a failed handshake says of the service, and of this client.
fn of_handshake(address: &str, error: &HandshakeError) -> String {
    let advice = match error {
        HandshakeError::PlainText => {
            return format!("no TLS is spoken at {address}: leave --tls, --ca and --cert away");
        }
        HandshakeError::Untrusted(_) => "name the authority that has signed it: --ca FILE",
        HandshakeError::WrongName(_) => "name the service as its certificate does: --server-name NAME",
        HandshakeError::Refused(_) => "it wants a certificate of an authority that it trusts: --cert FILE, --key FILE",
        HandshakeError::NothingInCommon(_) => "is that Tollgate's port for gRPC? see --address",
        HandshakeError::Expired(_)
        | HandshakeError::Timeout
        | HandshakeError::Closed
        | HandshakeError::NoCertificate
        | HandshakeError::Broken(_) => return format!("{address}: {error}"),
    };
    format!("{address}: {error}: {advice}")
}
