//! What a client of a management server has to know.

use std::str::FromStr;
use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::Backoff;
use crate::connect::Handshake;
use crate::rules::load::LoadOptions;

/// How a management server is asked.
#[derive(Clone)]
pub struct Options {
    /// Where it is.
    pub server: HostPort,
    /// What makes a connection a secure one. `None`: it stays as it is.
    pub handshake: Option<Handshake>,
    /// Who asks: the server sends what is meant for this name.
    pub node_id: String,
    /// And what else it may want to know.
    pub node_metadata: Metadata,
    /// Sent along with the stream's first bytes.
    pub headers: Headers,
    /// The longest response.
    pub max_response_bytes: usize,
    /// How often it has to show that it is alive: [`PING_INTERVAL`](super::PING_INTERVAL).
    pub ping_interval: Duration,
    /// How soon it is asked again.
    pub backoff: Backoff,
    /// So long after the first response of a new stream rules stay that the stream has not named.
    pub removal_delay: Duration,
    /// How rules are read.
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

/// Names and values, in the order of their writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub Vec<(String, String)>);

/// Headers of HTTP.
#[derive(Clone, Debug, Default)]
pub struct Headers(pub(super) MetadataMap);

/// What is wrong with a text of names and values.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// A part has no mark between name and value. The value may be a secret, and is not told.
    #[error("part {place} of {of} is no {name}{mark}{value}")]
    NoMark {
        /// Counted from 1.
        place: usize,
        /// How many there are.
        of: usize,
        /// What stands before the mark.
        name: &'static str,
        /// What is missing.
        mark: char,
        /// What stands behind it.
        value: &'static str,
    },
    /// Something that HTTP does not allow, or that gRPC keeps for itself.
    #[error("{0:?} cannot be the name of a header: use lower case letters, digits and dashes, and no -bin at the end")]
    HeaderName(String),
    /// The same of a value.
    #[error("the value of the header {0:?} has characters that HTTP does not allow")]
    HeaderValue(String),
}

impl FromStr for HostPort {
    type Err = &'static str;

    /// `host:port`, `[::1]:18000`, or what Go's gRPC calls the same: `dns:///host:port`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "not host:port, such as envoy-gateway:18001";
        let text = text.strip_prefix("dns:///").unwrap_or(text);
        if text.contains("://") {
            return Err("write host:port alone, without a scheme in front");
        }
        let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err("an IPv6 address stands in brackets: [::1]:18000");
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

    /// `name=value,name=value`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Ok(Metadata(pairs(text, '=')?.into_iter().map(own).collect()))
    }
}

impl FromStr for Headers {
    type Err = PairsError;

    /// `name:value,name:value`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut headers = MetadataMap::new();
        for (name, value) in pairs(text, ':')? {
            let known: Option<AsciiMetadataKey> = name.to_lowercase().parse().ok();
            // tonic would leave it out without a word.
            let known = known.filter(|key| !key.as_str().starts_with("grpc-") && key.as_str() != "content-type");
            let key = known.ok_or_else(|| PairsError::HeaderName(name.to_owned()))?;
            let value: Option<AsciiMetadataValue> = value.parse().ok();
            headers.append(key, value.ok_or_else(|| PairsError::HeaderValue(name.to_owned()))?);
        }
        Ok(Headers(headers))
    }
}

/// The parts between commas, each cut at its first mark; of an empty text none.
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
        assert_eq!(told, "part 2 of 2 is no NAME=VALUE");

        let headers: Headers = "X-Tenant:a,authorization:Bearer a:b".parse().unwrap();
        assert_eq!(headers.0.get("x-tenant").unwrap(), "a");
        assert_eq!(headers.0.get("authorization").unwrap(), "Bearer a:b");
        for wrong in ["a b:c", "te-bin:x", "grpc-timeout:1S", "x:\u{7f}", ":x", "x"] {
            assert!(wrong.parse::<Headers>().is_err(), "{wrong}");
        }
    }
}
