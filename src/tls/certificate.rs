//! Reads the validity and the names of a certificate. rustls checks both, but does not report them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use x509_cert::der::{self, Decode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Longest time before the end of a certificate to warn.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The warning comes in the last tenth of a certificate's lifetime if that is shorter.
const SOON_SHARE: u32 = 10;

/// The parts of a certificate that matter here.
pub(super) struct Certificate {
    pub validity: Validity,
    /// The subject's alternative names.
    pub names: Vec<PeerName>,
}

/// Period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start of the period.
    pub from: SystemTime,
    /// End of the period.
    pub until: SystemTime,
}

/// Validity of a certificate at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It becomes valid after this time.
    NotYet(Duration),
    /// It is valid.
    Valid,
    /// It is valid for only this time, and should have been replaced.
    Ending(Duration),
    /// It expired this long ago.
    Expired(Duration),
}

/// A certificate in use, for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// One word for its purpose.
    pub role: &'static str,
    /// The file with the certificate.
    pub file: super::NamedFile,
    /// `None` if the certificate cannot be parsed.
    pub validity: Option<Validity>,
}

/// A name in a certificate. Names are compared as a whole: `*.example.com` matches only a certificate with that name,
/// and not `a.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// A DNS name in lower case.
    Dns(String),
    /// A URI such as `spiffe://cluster.local/ns/default/sa/envoy`.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
}

impl Certificate {
    pub fn of(der: &[u8]) -> der::Result<Certificate> {
        let certificate = x509_cert::Certificate::from_der(der)?.tbs_certificate;
        let names = certificate.get::<SubjectAltName>()?.map_or_else(Vec::new, |(_, names)| names.0);
        Ok(Certificate {
            validity: Validity {
                from: certificate.validity.not_before.to_system_time(),
                until: certificate.validity.not_after.to_system_time(),
            },
            names: names.iter().filter_map(PeerName::of).collect(),
        })
    }
}

impl Validity {
    /// Returns the validity at `now`.
    pub fn standing(self, now: SystemTime) -> Standing {
        let whole_seconds = |duration: Duration| Duration::from_secs(duration.as_secs());
        if let Ok(early) = self.from.duration_since(now)
            && !early.is_zero()
        {
            return Standing::NotYet(whole_seconds(early));
        }
        let lifetime = self.until.duration_since(self.from).unwrap_or_default();
        match self.until.duration_since(now) {
            Ok(left) if left <= SOON.min(lifetime / SOON_SHARE) => Standing::Ending(whole_seconds(left)),
            Ok(_) => Standing::Valid,
            Err(over) => Standing::Expired(whole_seconds(over.duration())),
        }
    }
}

impl PeerName {
    fn of(name: &GeneralName) -> Option<PeerName> {
        match name {
            GeneralName::DnsName(name) => Some(PeerName::Dns(name.as_str().to_ascii_lowercase())),
            GeneralName::UniformResourceIdentifier(uri) => Some(PeerName::Uri(uri.as_str().to_owned())),
            GeneralName::IpAddress(address) => {
                let four = <[u8; 4]>::try_from(address.as_bytes()).map(IpAddr::from);
                four.or_else(|_| <[u8; 16]>::try_from(address.as_bytes()).map(IpAddr::from)).ok().map(PeerName::Ip)
            }
            _ => None,
        }
    }
}

impl FromStr for PeerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<PeerName, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(PeerName::Ip(address));
        }
        let is_printable = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.split_once("://") {
            Some((scheme, rest)) if is_printable(scheme) && is_printable(rest) => Ok(PeerName::Uri(text.to_owned())),
            None if is_printable(text) && !text.contains([':', '/', '@', '=']) => {
                Ok(PeerName::Dns(text.trim_end_matches('.').to_ascii_lowercase()))
            }
            _ => Err("write a DNS name, an address, or a URI such as spiffe://cluster.local/ns/default/sa/envoy"),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerName::Dns(name) | PeerName::Uri(name) => f.write_str(name),
            PeerName::Ip(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn a_certificate_ends_soon_by_its_own_lifetime() {
        let from = SystemTime::UNIX_EPOCH + 10_000 * DAY;
        let standing =
            |lifetime: Duration, after: Duration| Validity { from, until: from + lifetime }.standing(from + after);
        assert_eq!(standing(90 * DAY, 60 * DAY), Standing::Valid);
        assert_eq!(standing(90 * DAY, 83 * DAY), Standing::Ending(7 * DAY));
        assert_eq!(standing(DAY, DAY / 2), Standing::Valid, "what lasts for a day is renewed by the hour");
        assert_eq!(standing(DAY, DAY - DAY / 10), Standing::Ending(DAY / 10));
        assert_eq!(standing(DAY, 3 * DAY), Standing::Expired(2 * DAY));
        let early = Validity { from, until: from + DAY }.standing(from - 2 * DAY);
        assert_eq!(early, Standing::NotYet(2 * DAY));
        assert_eq!(standing(DAY, Duration::ZERO), Standing::Valid);
    }

    #[test]
    fn a_name_is_read_as_what_it_is() {
        for (text, name) in [
            ("Gate.Example.", PeerName::Dns("gate.example".into())),
            ("*.example", PeerName::Dns("*.example".into())),
            ("spiffe://Cluster.local/ns/a", PeerName::Uri("spiffe://Cluster.local/ns/a".into())),
            ("10.0.0.1", PeerName::Ip("10.0.0.1".parse().unwrap())),
            ("::1", PeerName::Ip("::1".parse().unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(name));
        }
        for wrong in ["", "a b", "://", "spiffe://", "gate:8081", "CN=gate", "ann@example"] {
            assert!(wrong.parse::<PeerName>().is_err(), "{wrong}");
        }
    }
}
