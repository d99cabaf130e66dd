//! Options of the client of a management server.

use std::str::FromStr;
use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::Backoff;
use crate::connect::Handshake;
use crate::sources::files::load::LoadOptions;

/// Options of the client.
#[derive(Clone)]
pub struct Options {
    /// Address of the server.
    pub server: HostPort,
    /// Adds TLS to a connection; `None` leaves it as it is.
    pub handshake: Option<Handshake>,
    /// ID of this client; the server sends the resources meant for it.
    pub node_id: String,
    /// Further properties of this client.
    pub node_metadata: Metadata,
    /// Headers of the stream's request.
    pub headers: Headers,
    /// Largest response.
    pub max_response_bytes: usize,
    /// Interval of pings: [`PING_INTERVAL`](super::PING_INTERVAL).
    pub ping_interval: Duration,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Time after the first response of a new stream for which rules not named on it stay in force.
    pub removal_delay: Duration,
    /// Options of reading rules.
    pub load: LoadOptions,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// Not 0.
    pub port: u16,
}

/// Names and values, as ordered in the setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub Vec<(String, String)>);

/// HTTP headers.
#[derive(Clone, Debug, Default)]
pub struct Headers(pub(super) MetadataMap);

/// An error in a text of names and values.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// A part has no separator between name and value. The value may be a secret, so it is not shown.
    #[error("part {place} of {of} is not {name}{mark}{value}")]
    NoMark {
        /// Index of the part, from 1.
        place: usize,
        /// Number of parts.
        of: usize,
        /// Placeholder for the name.
        name: &'static str,
        /// The missing separator.
        mark: char,
        /// Placeholder for the value.
        value: &'static str,
    },
    /// A name that HTTP does not allow, or that gRPC reserves.
    #[error("{0:?} cannot be a header name: use lower case letters, digits and dashes, without -bin at the end")]
    HeaderName(String),
    /// A value that HTTP does not allow.
    #[error("the value of the header {0:?} has characters that HTTP does not allow")]
    HeaderValue(String),
}

impl FromStr for HostPort {
    type Err = &'static str;

    /// Parses `host:port`, `[::1]:18000`, or the form of Go's gRPC, `dns:///host:port`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "not host:port: write, for example, envoy-gateway:18001";
        let text = text.strip_prefix("dns:///").unwrap_or(text);
        if text.contains("://") {
            return Err("write only host:port, without a scheme");
        }
        let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err("write an IPv6 address in brackets: [::1]:18000");
        }
        let host = bare.unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0).ok_or("the port is a whole number from 1 to 65535")?;
        match host.is_empty() || host.contains(['/', '@', ' ', '?', '#']) {
            true => Err(EXPECTED),
            false => Ok(HostPort { host: host.to_owned(), port }),
        }
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Metadata {
    type Err = PairsError;

    /// Parses `name=value,name=value`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Ok(Metadata(pairs(text, '=')?.into_iter().map(own).collect()))
    }
}

impl FromStr for Headers {
    type Err = PairsError;

    /// Parses `name:value,name:value`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut headers = MetadataMap::new();
        for (name, value) in pairs(text, ':')? {
            let known: Option<AsciiMetadataKey> = name.to_lowercase().parse().ok();
            // tonic would silently omit it.
            let known = known.filter(|key| !key.as_str().starts_with("grpc-") && key.as_str() != "content-type");
            let key = known.ok_or_else(|| PairsError::HeaderName(name.to_owned()))?;
            let value: Option<AsciiMetadataValue> = value.parse().ok();
            headers.append(key, value.ok_or_else(|| PairsError::HeaderValue(name.to_owned()))?);
        }
        Ok(Headers(headers))
    }
}

/// Splits at commas, and each part at its first separator. An empty text has no parts.
fn pairs(text: &str, mark: char) -> Result<Vec<(&str, &str)>, PairsError> {
    let parts: Vec<&str> = text.split(',').filter(|part| !part.trim().is_empty()).collect();
    let (of, value) = (parts.len(), "VALUE");
    let cut = |(index, part): (usize, &&'_ str)| {
        let no_mark = PairsError::NoMark { place: index + 1, of, name: "NAME", mark, value };
        parts[index].split_once(mark).filter(|_| !part.starts_with(mark)).ok_or(no_mark)
    };
    let cut = parts.iter().enumerate().map(cut);
    cut.map(|pair| pair.map(|(name, value)| (name.trim(), value.trim()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, shown) in [
            ("envoy-gateway:18001", "envoy-gateway:18001"),
            ("dns:///envoy-gateway:18001", "envoy-gateway:18001"),
            ("[::1]:18000", "[::1]:18000"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), shown);
        }
        for wrong in ["", "host", ":1", "host:0", "host:99999", "http://host:1", "::1:18000", "a/b:1", "user@host:1"] {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn metadata_and_headers_are_pairs() {
        let metadata: Metadata = "role=gold, zone = a=b".parse().unwrap();
        assert_eq!(metadata.0, [("role".into(), "gold".into()), ("zone".into(), "a=b".into())]);
        assert_eq!("".parse(), Ok(Metadata::default()));
        let told = "a=b,secret".parse::<Metadata>().unwrap_err().to_string();
        assert_eq!(told, "part 2 of 2 is not NAME=VALUE");

        let headers: Headers = "X-Tenant:a,authorization:Bearer a:b".parse().unwrap();
        assert_eq!(headers.0.get("x-tenant").unwrap(), "a");
        assert_eq!(headers.0.get("authorization").unwrap(), "Bearer a:b");
        for wrong in ["a b:c", "te-bin:x", "grpc-timeout:1S", "x:\u{7f}", ":x", "x"] {
            assert!(wrong.parse::<Headers>().is_err(), "{wrong}");
        }
    }
}
