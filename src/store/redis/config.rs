//! The address of Redis, and the user. A password never leaves this type but to Redis.
//!
//! Addresses are read here and not by a URL library: `host:port` is none, a password may hold a slash, and a lone word
//! before the `@` is a password.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::{Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, cmd};
use percent_encoding::percent_decode_str;

/// How to reach Redis, and for how long to wait.
#[derive(Clone)]
pub struct RedisConfig {
    /// Where it is.
    pub address: RedisAddress,
    /// Connections, over all workers.
    pub connections: usize,
    /// How long Redis may be silent, and how long connecting may take.
    pub timeout: Duration,
    /// How many checks may wait, for each worker.
    pub queue: usize,
    /// In front of every counter's name.
    pub key_prefix: String,
}

/// Host and port, or the path of a Unix socket; with credentials and database.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    place: Place,
    user: Option<String>,
    password: Option<String>,
    database: u16,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// What is wrong with an address. The address itself is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    /// None of the forms.
    #[error("not an address of Redis: write host:port, redis://[user:password@]host[:port][/database] or unix:///path")]
    Form,
    /// A host alone.
    #[error("the port is missing: write host:port, mostly host:6379, or redis://host, which means that")]
    NoPort,
    /// What only a URL has.
    #[error("a database and a password stand in a URL: write redis://[user:password@]host:port/database")]
    NoScheme,
    /// `rediss://`.
    #[error("TLS to Redis (rediss://) is not supported: use redis:// and a port without TLS, or a tunnel (stunnel)")]
    Tls,
    /// A list, as for a cluster.
    #[error("a single Redis is supported: write one host:port")]
    Several,
    /// Not a port.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// Not a database.
    #[error("the database after the last slash must be a number")]
    Database,
    /// A bad escape.
    #[error("a % in the user or the password must be followed by two hexadecimal digits; a % itself is %25")]
    Escape,
}

impl RedisAddress {
    /// The same place for this user; `auth` is `password` or `user:password`.
    #[must_use]
    pub fn with_auth(mut self, auth: &str) -> RedisAddress {
        let (user, password) = match auth.split_once(':') {
            Some((user, password)) if !user.is_empty() => (Some(user), password),
            Some((_, password)) => (None, password),
            None => (None, auth),
        };
        self.user = user.map(str::to_owned);
        self.password = Some(password.to_owned());
        self
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Who Redis takes Tollgate for; `None` for the default user.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(super) fn database(&self) -> u16 {
        self.database
    }

    /// What makes Tollgate known to Redis; `None` without a password.
    pub(super) fn auth(&self) -> Option<Cmd> {
        let mut auth = cmd("AUTH");
        if let Some(user) = &self.user {
            auth.arg(user);
        }
        auth.arg(self.password.as_ref()?);
        Some(auth)
    }
}

impl RedisConfig {
    pub(super) fn connection_info(&self) -> ConnectionInfo {
        let RedisAddress { place, user, password, database } = &self.address;
        let mut settings = RedisConnectionInfo::default().set_db((*database).into());
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let address = match place {
            Place::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
            Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        // Into itself: an address has no form that could be refused.
        match address.into_connection_info() {
            // Small writes of many requests share a connection: none of them shall wait for another's acknowledgement.
            Ok(info) => info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)),
            Err(error) => unreachable!("an address needs no parsing: {error}"),
        }
    }
}

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |place| RedisAddress { place, user: None, password: None, database: 0 };
        if text.starts_with("rediss:") {
            return Err(RedisAddressError::Tls);
        }
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.starts_with('/').then_some(text)) {
            return if path.is_empty() { Err(RedisAddressError::Form) } else { Ok(plain(Place::Unix(path.into()))) };
        }
        let Some(url) = text.strip_prefix("redis://") else {
            // Neither of the two is in a name or a port.
            if text.contains(['/', '@']) && !text.contains("://") {
                return Err(RedisAddressError::NoScheme);
            }
            return Ok(plain(tcp(text, None)?));
        };
        let (auth, rest) = match url.rsplit_once('@') {
            Some((auth, rest)) => (Some(auth), rest),
            None => (None, url),
        };
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        let mut address = plain(tcp(host, Some(6379))?);
        if !database.is_empty() {
            address.database = database.parse().map_err(|_| RedisAddressError::Database)?;
        }
        if let Some(auth) = auth {
            // In a URL a lone word is the user; here it can only be meant as the password.
            let (user, password) = auth.split_once(':').unwrap_or(("", auth));
            address.user = Some(unescape(user)?).filter(|user| !user.is_empty());
            address.password = Some(unescape(password)?);
        }
        Ok(address)
    }
}

/// `host:port`, or `host` alone where there is a default; an IPv6 address stands in brackets.
fn tcp(text: &str, default_port: Option<u16>) -> Result<Place, RedisAddressError> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port > 0).ok_or(RedisAddressError::Port)?;
            (host, port)
        }
        _ => (text, default_port.unwrap_or_default()),
    };
    if host.contains(',') {
        return Err(RedisAddressError::Several);
    }
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains(['/', '@', ' ', ':', '[', ']']),
    };
    match (is_host, port) {
        (false, _) => Err(RedisAddressError::Form),
        (true, 0) => Err(RedisAddressError::NoPort),
        (true, port) => Ok(Place::Tcp(in_brackets.unwrap_or(host).to_owned(), port)),
    }
}

/// A lone % is refused rather than taken for itself: it may be half of an escape.
fn unescape(text: &str) -> Result<String, RedisAddressError> {
    let is_escape = |rest: &str| {
        rest.as_bytes().first_chunk().is_some_and(|[a, b]| (*a).is_ascii_hexdigit() && b.is_ascii_hexdigit())
    };
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| text.split('%').skip(1).all(is_escape));
    decoded.map(Cow::into_owned).ok_or(RedisAddressError::Escape)
}

/// Without user and password.
impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => write!(f, "redis://[{host}]:{port}")?,
            Place::Tcp(host, port) => write!(f, "redis://{host}:{port}")?,
            Place::Unix(path) => write!(f, "unix://{}", path.display())?,
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RedisAddress {
        text.parse().unwrap()
    }

    #[test]
    fn every_form_of_an_address_is_understood() {
        for (text, shown) in [
            ("localhost:6379", "redis://localhost:6379"),
            ("[::1]:6380", "redis://[::1]:6380"),
            ("redis://cache", "redis://cache:6379"),
            ("redis://cache:7000/3", "redis://cache:7000/3"),
            ("redis://u:p@cache:7000", "redis://cache:7000"),
            ("redis://:p%40ss@cache", "redis://cache:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("/run/redis.sock", "unix:///run/redis.sock"),
        ] {
            assert_eq!(parsed(text).to_string(), shown);
        }
    }

    #[test]
    fn a_password_is_kept_for_redis_and_shown_to_nobody() {
        let address = parsed("redis://ann:s%3Acret%25@cache");
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("ann"), Some("s:cret%")));
        let config = RedisConfig {
            address: address.with_auth("bob:a:b"),
            connections: 1,
            timeout: Duration::from_millis(100),
            queue: 1,
            key_prefix: String::new(),
        };
        let info = config.connection_info();
        assert_eq!(info.redis_settings().username(), Some("bob"));
        assert_eq!(info.redis_settings().password(), Some("a:b"));
        assert_eq!(format!("{config} {:?}", config.address), "redis://cache:6379 redis://cache:6379");
    }

    #[test]
    fn a_wrong_address_is_refused_with_what_would_be_right() {
        for (text, error) in [
            ("", RedisAddressError::Form),
            ("localhost", RedisAddressError::NoPort),
            ("[::1]", RedisAddressError::NoPort),
            ("localhost:6379/99", RedisAddressError::NoScheme),
            ("localhost/0", RedisAddressError::NoScheme),
            ("ann:secret@cache:6379", RedisAddressError::NoScheme),
            ("localhost:redis", RedisAddressError::Port),
            ("localhost:0", RedisAddressError::Port),
            ("http://cache:6379", RedisAddressError::Form),
            ("cache:6379,other:6379", RedisAddressError::Several),
            ("cache:x:6379", RedisAddressError::Form),
            ("[cache]:6379", RedisAddressError::Form),
            ("rediss://cache", RedisAddressError::Tls),
            ("redis://cache/x", RedisAddressError::Database),
            ("redis://a:%zz@cache", RedisAddressError::Escape),
            ("redis://a:100%@cache", RedisAddressError::Escape),
            ("redis://a:%ff@cache", RedisAddressError::Escape),
            ("unix://", RedisAddressError::Form),
        ] {
            assert_eq!(text.parse::<RedisAddress>(), Err(error), "{text}");
        }
    }
}
