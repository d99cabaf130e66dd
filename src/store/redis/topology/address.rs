//! The address of a Redis, with credentials. Only Redis ever receives a password from this type.
//!
//! Addresses are parsed here instead of by a URL library: neither `host:port` nor a list of hosts is a URL, a password
//! may contain a slash, and a single word before the `@` is a password.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// The default port of Redis, and that of Sentinel.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// An address of a Redis, with credentials and database.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    servers: Servers,
    login: Login,
    database: u16,
    /// A file with credentials, which take precedence over the login.
    auth_file: Option<NamedFile>,
    sentinel_login: Login,
    tls: Option<RedisTls>,
}

/// The kind of the Redis, and its servers.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    Single(Place),
    /// The master that these Sentinels know by this name.
    Sentinel {
        master: String,
        sentinels: Vec<Place>,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Place>),
}

/// Host and port, or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Place {
    /// Parses `HOST:PORT` as nodes of a cluster name each other: an IPv6 address has no brackets, and the host may be
    /// missing.
    pub(crate) fn of_node(address: &str) -> Option<Place> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Place::Tcp(host.to_owned(), port))
    }
}

/// A user and a password, each if required.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
}

/// A kind of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisType {
    /// One server.
    Single,
    /// A master and its replicas, watched by Sentinels.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

/// TLS to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// The trusted authorities and the client certificate.
    pub files: ClientFiles,
    /// The name that every server's certificate must have, or `None` for the host in the address.
    pub server_name: Option<String>,
}

/// A problem of an address. The address is not repeated, since it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    /// The text has none of the known forms.
    #[error(
        "not an address of Redis: write host:port, redis://[user:password@]host[:port][/database] (rediss:// is with \
         TLS), redis+sentinel://host:port,host:port/MASTER, redis-cluster://host:port,host:port or unix:///path"
    )]
    Form,
    /// A host without a port.
    #[error("the port is missing: write host:port, mostly host:6379, or redis://host, which means that")]
    NoPort,
    /// A part that only a URL can have.
    #[error("a database and a password stand in a URL: write redis://[user:password@]host:port/database")]
    NoScheme,
    /// A list without a kind.
    #[error(
        "a single Redis has one host:port: set REDIS_TYPE=SENTINEL and write MASTER,host:port,host:port, or \
         REDIS_TYPE=CLUSTER and write host:port,host:port"
    )]
    Several,
    /// There is only the master's name, or the name is missing.
    #[error("the Sentinels are missing: write MASTER,host:port,host:port, or redis+sentinel://host:port/MASTER")]
    NoSentinels,
    /// The master's name is missing.
    #[error(
        "the name of the master, as the Sentinels have it, is missing: write MASTER,host:port,host:port, or \
         redis+sentinel://host:port,host:port/MASTER"
    )]
    NoMaster,
    /// The setting and the address have different kinds.
    #[error(
        "REDIS_TYPE says another kind of Redis than this address: write host:port for SINGLE, \
         MASTER,host:port,host:port for SENTINEL, host:port,host:port for CLUSTER, or leave REDIS_TYPE out"
    )]
    OtherType,
    /// The port is invalid.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// The database is invalid.
    #[error("the database after the last slash must be a number")]
    Database,
    /// A cluster has only one database.
    #[error("a Redis Cluster has database 0 alone: leave the last slash out")]
    ClusterDatabase,
    /// An escape sequence is invalid.
    #[error("a % in the user or the password must be followed by two hexadecimal digits; a % itself is %25")]
    Escape,
}

impl RedisAddress {
    /// Parses an address of this kind. With `None`, the scheme determines the kind; without a scheme it is a single
    /// Redis.
    ///
    /// # Errors
    /// If the text is not an address.
    pub fn read(text: &str, kind: Option<RedisType>) -> Result<RedisAddress, RedisAddressError> {
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.starts_with('/').then_some(text)) {
            return match kind {
                _ if path.is_empty() => Err(RedisAddressError::Form),
                None | Some(RedisType::Single) => Ok(RedisAddress::of(Servers::Single(Place::Unix(path.into())))),
                Some(_) => Err(RedisAddressError::OtherType),
            };
        }
        match text.split_once("://") {
            Some((scheme, rest)) if !scheme.contains([',', ':', '@', '/']) => Url::new(scheme, rest, kind)?.read(),
            _ => listed(text, kind.unwrap_or(RedisType::Single)),
        }
    }

    fn of(servers: Servers) -> RedisAddress {
        let (login, sentinel_login) = (Login::default(), Login::default());
        RedisAddress { servers, login, database: 0, auth_file: None, sentinel_login, tls: None }
    }

    /// Returns the address with these credentials; `auth` is `password` or `user:password`.
    #[must_use]
    pub fn with_auth(mut self, auth: &str) -> RedisAddress {
        self.login = Login::of(auth, self.login.user);
        self
    }

    /// Returns the address with credentials from this file, in the same form.
    #[must_use]
    pub fn with_auth_file(self, file: NamedFile) -> RedisAddress {
        RedisAddress { auth_file: Some(file), ..self }
    }

    /// Returns the address with these credentials for the Sentinels.
    #[must_use]
    pub fn with_sentinel_auth(self, auth: &str) -> RedisAddress {
        RedisAddress { sentinel_login: Login::of(auth, None), ..self }
    }

    /// Returns the address with TLS.
    #[must_use]
    pub fn with_tls(self, tls: RedisTls) -> RedisAddress {
        RedisAddress { tls: Some(tls), ..self }
    }

    /// Returns the address of one node of this cluster.
    pub(crate) fn of_node(&self, place: Place) -> RedisAddress {
        RedisAddress { servers: Servers::Cluster(vec![place]), ..self.clone() }
    }

    /// Returns whether connections use TLS.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the address is a Unix socket, which keeps all bytes on this machine.
    pub fn is_socket(&self) -> bool {
        matches!(&self.servers, Servers::Single(Place::Unix(_)))
    }

    /// Returns whether Sentinels report where the master is.
    pub fn has_sentinels(&self) -> bool {
        matches!(&self.servers, Servers::Sentinel { .. })
    }

    /// Returns whether the address is of a cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(&self.servers, Servers::Cluster(_))
    }

    /// Returns the kind in one word.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.servers {
            Servers::Single(_) => "single",
            Servers::Sentinel { .. } => "sentinel",
            Servers::Cluster(_) => "cluster",
        }
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    pub(crate) fn sentinel_login(&self) -> &Login {
        &self.sentinel_login
    }

    pub(crate) fn auth_file(&self) -> Option<&NamedFile> {
        self.auth_file.as_ref()
    }

    pub(crate) fn tls(&self) -> Option<&RedisTls> {
        self.tls.as_ref()
    }

    pub(crate) fn database(&self) -> u16 {
        self.database
    }
}

impl Login {
    /// Parses `password` or `user:password`; without a user it is for this one.
    pub(crate) fn of(auth: &str, user: Option<String>) -> Login {
        let (user, password) = match auth.split_once(':') {
            Some((name, password)) if !name.is_empty() => (Some(name.to_owned()), password),
            Some((_, password)) => (user, password),
            None => (user, auth),
        };
        Login { user, password: Some(password.to_owned()) }
    }
}

impl RedisTls {
    /// Returns TLS that trusts the authorities of this machine and has no client certificate.
    fn plain() -> RedisTls {
        let files =
            ClientFiles { trusted: Trusted::Machine(Expected::Name), identity: None, protocol: Protocol::Unnamed };
        RedisTls { files, server_name: None }
    }
}

/// The parts of an address with a scheme.
struct Url<'a> {
    kind: RedisType,
    is_secure: bool,
    auth: Option<&'a str>,
    hosts: &'a str,
    /// The text after the hosts, without the first slash.
    path: &'a str,
}

impl<'a> Url<'a> {
    fn new(scheme: &str, rest: &'a str, kind: Option<RedisType>) -> Result<Url<'a>, RedisAddressError> {
        let (is_secure, family) = match scheme.strip_prefix("rediss") {
            Some(family) => (true, family),
            None => (false, scheme.strip_prefix("redis").ok_or(RedisAddressError::Form)?),
        };
        let kind = match (family, kind) {
            // A list of nodes has the same scheme as a single one.
            ("", Some(RedisType::Cluster)) => RedisType::Cluster,
            ("", None | Some(RedisType::Single)) => RedisType::Single,
            ("+sentinel", None | Some(RedisType::Sentinel)) => RedisType::Sentinel,
            ("-cluster", None | Some(RedisType::Cluster)) => RedisType::Cluster,
            ("" | "+sentinel" | "-cluster", Some(_)) => return Err(RedisAddressError::OtherType),
            _ => return Err(RedisAddressError::Form),
        };
        let (auth, rest) = match rest.rsplit_once('@') {
            Some((auth, rest)) => (Some(auth), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Url { kind, is_secure, auth, hosts, path })
    }

    fn read(self) -> Result<RedisAddress, RedisAddressError> {
        let (servers, database) = match self.kind {
            RedisType::Single => (Servers::Single(tcp(self.hosts, Some(PORT))?), self.path),
            RedisType::Cluster if self.path.is_empty() => (Servers::Cluster(places(self.hosts, Some(PORT))?), ""),
            RedisType::Cluster => return Err(RedisAddressError::ClusterDatabase),
            RedisType::Sentinel => {
                let (master, database) = self.path.split_once('/').unwrap_or((self.path, ""));
                let sentinels = places(self.hosts, Some(SENTINEL_PORT))?;
                (Servers::Sentinel { master: named(&unescape(master)?)?, sentinels }, database)
            }
        };
        let mut address = RedisAddress::of(servers);
        if !database.is_empty() {
            address.database = database.parse().map_err(|_| RedisAddressError::Database)?;
        }
        if let Some(auth) = self.auth {
            // In a URL a single word is the user; here only a password makes sense.
            let (user, password) = auth.split_once(':').unwrap_or(("", auth));
            let user = Some(unescape(user)?).filter(|user| !user.is_empty());
            address.login = Login { user, password: Some(unescape(password)?) };
        }
        address.tls = self.is_secure.then(RedisTls::plain);
        Ok(address)
    }
}

/// Parses an address without a scheme, in the form of envoyproxy/ratelimit.
fn listed(text: &str, kind: RedisType) -> Result<RedisAddress, RedisAddressError> {
    // Neither character occurs in a name or a port.
    if text.contains(['/', '@']) && !text.contains("://") {
        return Err(RedisAddressError::NoScheme);
    }
    let servers = match kind {
        RedisType::Single if text.contains(',') => return Err(RedisAddressError::Several),
        RedisType::Single => Servers::Single(tcp(text, None)?),
        RedisType::Cluster => Servers::Cluster(places(text, None)?),
        RedisType::Sentinel => {
            let (master, sentinels) = text.split_once(',').ok_or(RedisAddressError::NoSentinels)?;
            if master.contains(':') {
                return Err(RedisAddressError::NoMaster);
            }
            Servers::Sentinel { master: named(master)?, sentinels: places(sentinels, None)? }
        }
    };
    Ok(RedisAddress::of(servers))
}

/// Returns the name of a master if Sentinels accept it.
fn named(master: &str) -> Result<String, RedisAddressError> {
    let is_name = !master.is_empty() && master.chars().all(|char| char.is_ascii_graphic() && char != ',');
    if is_name { Ok(master.to_owned()) } else { Err(RedisAddressError::NoMaster) }
}

/// Parses at least one place; places are separated by commas. Each may have the scheme of a single server.
fn places(text: &str, default_port: Option<u16>) -> Result<Vec<Place>, RedisAddressError> {
    let place = |one: &str| match one.trim().strip_prefix("redis://") {
        Some(one) => tcp(one, Some(default_port.unwrap_or(PORT))),
        None => tcp(one.trim(), default_port),
    };
    text.split(',').map(place).collect()
}

/// Parses `host:port`, or `host` alone if there is a default port. An IPv6 address is in brackets.
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

/// Decodes escapes. A `%` that starts none is rejected, since it may be part of an incomplete escape.
fn unescape(text: &str) -> Result<String, RedisAddressError> {
    let is_escape = |rest: &str| {
        rest.as_bytes().first_chunk().is_some_and(|[a, b]| (*a).is_ascii_hexdigit() && b.is_ascii_hexdigit())
    };
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| text.split('%').skip(1).all(is_escape));
    decoded.map(Cow::into_owned).ok_or(RedisAddressError::Escape)
}

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        RedisAddress::read(text, None)
    }
}

/// Leaves out user and password.
impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure() { "rediss" } else { "redis" };
        match &self.servers {
            Servers::Single(Place::Unix(path)) => write!(f, "unix://{}", path.display())?,
            Servers::Single(place) => write!(f, "{scheme}://{place}")?,
            Servers::Sentinel { master, sentinels } => {
                let master = utf8_percent_encode(master, NON_ALPHANUMERIC);
                write!(f, "{scheme}+sentinel://{}/{master}", List(sentinels))?;
            }
            Servers::Cluster(nodes) => write!(f, "{scheme}-cluster://{}", List(nodes))?,
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Place::Tcp(host, port) => write!(f, "{host}:{port}"),
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

struct List<'a>(&'a [Place]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, place) in self.0.iter().enumerate() {
            write!(f, "{}{place}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
        use RedisType::{Cluster, Sentinel, Single};
        for (text, kind, shown) in [
            ("localhost:6379", None, "redis://localhost:6379"),
            ("localhost:6379", Some(Single), "redis://localhost:6379"),
            ("[::1]:6380", None, "redis://[::1]:6380"),
            ("redis://cache", None, "redis://cache:6379"),
            ("redis://cache:7000/3", None, "redis://cache:7000/3"),
            ("redis://u:p@cache:7000", None, "redis://cache:7000"),
            ("redis://:p%40ss@cache", None, "redis://cache:6379"),
            ("rediss://u:p@cache/2", None, "rediss://cache:6379/2"),
            ("unix:///run/redis.sock", None, "unix:///run/redis.sock"),
            ("/run/redis.sock", Some(Single), "unix:///run/redis.sock"),
            ("main,a:1,b:2", Some(Sentinel), "redis+sentinel://a:1,b:2/main"),
            ("main,redis://a:1, [::1]:2", Some(Sentinel), "redis+sentinel://a:1,[::1]:2/main"),
            ("redis+sentinel://a,b:2/main", None, "redis+sentinel://a:26379,b:2/main"),
            ("redis+sentinel://u:p@a:1/ma%2Fin/3", Some(Sentinel), "redis+sentinel://a:1/ma%2Fin/3"),
            ("rediss+sentinel://a/main", None, "rediss+sentinel://a:26379/main"),
            ("a:1,b:2", Some(Cluster), "redis-cluster://a:1,b:2"),
            ("redis://a:1,b:2", Some(Cluster), "redis-cluster://a:1,b:2"),
            ("redis-cluster://a,b:2", None, "redis-cluster://a:6379,b:2"),
            ("rediss-cluster://p@a", None, "rediss-cluster://a:6379"),
        ] {
            assert_eq!(RedisAddress::read(text, kind).unwrap().to_string(), shown, "{text}");
            assert_eq!(parsed(shown).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn a_password_is_kept_for_redis_and_shown_to_nobody() {
        let address = parsed("redis://ann:s%3Acret%25@cache");
        let known = |address: &RedisAddress| (address.login.user.clone(), address.login.password.clone());
        assert_eq!(known(&address), (Some("ann".into()), Some("s:cret%".into())));
        let address = address.with_auth("bob:a:b");
        assert_eq!(known(&address), (Some("bob".into()), Some("a:b".into())));
        // A single password, as in a token, is for the user in the URL.
        assert_eq!(known(&parsed("redis://ann:@cache").with_auth("token")), (Some("ann".into()), Some("token".into())));
        assert_eq!(known(&parsed("redis://cache").with_auth(":a:b")), (None, Some("a:b".into())));
        let address = address.with_sentinel_auth("carl:hidden");
        assert_eq!(format!("{address} {address:?}"), "redis://cache:6379 redis://cache:6379");
    }

    #[test]
    fn a_wrong_address_is_refused_with_what_would_be_right() {
        use RedisType::{Cluster, Sentinel, Single};
        for (text, kind, error) in [
            ("", None, RedisAddressError::Form),
            ("localhost", None, RedisAddressError::NoPort),
            ("[::1]", None, RedisAddressError::NoPort),
            ("localhost:6379/99", None, RedisAddressError::NoScheme),
            ("localhost/0", None, RedisAddressError::NoScheme),
            ("ann:secret@cache:6379", None, RedisAddressError::NoScheme),
            ("redis://", None, RedisAddressError::Form),
            ("redis://cache:0", None, RedisAddressError::Port),
            ("redis://cache:70000", None, RedisAddressError::Port),
            ("redis://cache/x", None, RedisAddressError::Database),
            ("redis://:p%4@cache", None, RedisAddressError::Escape),
            ("http://cache:6379", None, RedisAddressError::Form),
            ("redis-sentinel://cache:6379", None, RedisAddressError::Form),
            ("a:1,b:2", None, RedisAddressError::Several),
            ("redis://a:1,b:2", None, RedisAddressError::Several),
            ("unix://", None, RedisAddressError::Form),
            ("main", Some(Sentinel), RedisAddressError::NoSentinels),
            ("a:1,b:2", Some(Sentinel), RedisAddressError::NoMaster),
            (",b:2", Some(Sentinel), RedisAddressError::NoMaster),
            ("main,b", Some(Sentinel), RedisAddressError::NoPort),
            ("redis+sentinel://a:1", None, RedisAddressError::NoMaster),
            ("redis+sentinel://a:1/main/x", None, RedisAddressError::Database),
            ("redis://a:1", Some(Sentinel), RedisAddressError::OtherType),
            ("redis+sentinel://a:1/main", Some(Single), RedisAddressError::OtherType),
            ("/run/redis.sock", Some(Cluster), RedisAddressError::OtherType),
            ("redis-cluster://a:1/3", None, RedisAddressError::ClusterDatabase),
        ] {
            assert_eq!(RedisAddress::read(text, kind), Err(error), "{text}");
        }
    }
}
