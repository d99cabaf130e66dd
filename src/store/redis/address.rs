//! Where Redis is, and what lets Tollgate in. A password never leaves this type but to Redis.
//!
//! Addresses are read here and not by a URL library: `host:port` is none, nor is a list of hosts, a password may hold a
//! slash, and a lone word before the `@` is a password.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::tls::{ClientFiles, Expected, NamedFile, Protocol, Trusted};

/// The port of a Redis, and that of a Sentinel, where an address leaves it out.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Where Redis is, with credentials and database.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    servers: Servers,
    login: Login,
    database: u16,
    /// What is in there goes before the login.
    auth_file: Option<NamedFile>,
    sentinel_login: Login,
    tls: Option<RedisTls>,
}

/// What kind of Redis it is, and where.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Servers {
    Single(Place),
    /// The master that these Sentinels know by this name.
    Sentinel {
        master: String,
        sentinels: Vec<Place>,
    },
    /// Some of its nodes.
    Cluster(Vec<Place>),
}

/// Host and port, or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Place {
    /// `HOST:PORT`, as nodes of a cluster name each other: an IPv6 address has no brackets, and the host may be
    /// missing.
    pub(super) fn of_node(address: &str) -> Option<Place> {
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Place::Tcp(host.to_owned(), port))
    }
}

/// A user and a password, as far as they are wanted.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
}

/// Kinds of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisType {
    /// One server.
    Single,
    /// A master and its replicas, which Sentinels watch.
    Sentinel,
    /// A Redis Cluster.
    Cluster,
}

/// TLS with Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// Whom it trusts, and what it shows.
    pub files: ClientFiles,
    /// The name that every server must have; `None`: the one that is connected to.
    pub server_name: Option<String>,
}

/// What is wrong with an address. The address itself is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    /// None of the forms.
    #[error(
        "not an address of Redis: write host:port, redis://[user:password@]host[:port][/database] (rediss:// is with \
         TLS), redis+sentinel://host:port,host:port/MASTER, redis-cluster://host:port,host:port or unix:///path"
    )]
    Form,
    /// A host alone.
    #[error("the port is missing: write host:port, mostly host:6379, or redis://host, which means that")]
    NoPort,
    /// What only a URL has.
    #[error("a database and a password stand in a URL: write redis://[user:password@]host:port/database")]
    NoScheme,
    /// A list, and nobody says of what.
    #[error(
        "a single Redis has one host:port: set REDIS_TYPE=SENTINEL and write MASTER,host:port,host:port, or \
         REDIS_TYPE=CLUSTER and write host:port,host:port"
    )]
    Several,
    /// The name of the master stands alone, or is missing.
    #[error("the Sentinels are missing: write MASTER,host:port,host:port, or redis+sentinel://host:port/MASTER")]
    NoSentinels,
    /// The name of the master is missing.
    #[error(
        "the name of the master, as the Sentinels have it, is missing: write MASTER,host:port,host:port, or \
         redis+sentinel://host:port,host:port/MASTER"
    )]
    NoMaster,
    /// The setting says one kind, and the address another.
    #[error(
        "REDIS_TYPE says another kind of Redis than this address: write host:port for SINGLE, \
         MASTER,host:port,host:port for SENTINEL, host:port,host:port for CLUSTER, or leave REDIS_TYPE out"
    )]
    OtherType,
    /// Not a port.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// Not a database.
    #[error("the database after the last slash must be a number")]
    Database,
    /// There is but one.
    #[error("a Redis Cluster has database 0 alone: leave the last slash out")]
    ClusterDatabase,
    /// A bad escape.
    #[error("a % in the user or the password must be followed by two hexadecimal digits; a % itself is %25")]
    Escape,
}

impl RedisAddress {
    /// Reads an address of this kind; `None`: its scheme says which, and without one it is a single Redis.
    ///
    /// # Errors
    /// Where it is none.
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

    /// The same place for this user; `auth` is `password` or `user:password`.
    #[must_use]
    pub fn with_auth(mut self, auth: &str) -> RedisAddress {
        self.login = Login::of(auth, self.login.user);
        self
    }

    /// The same, where this file says who asks, in the same form.
    #[must_use]
    pub fn with_auth_file(self, file: NamedFile) -> RedisAddress {
        RedisAddress { auth_file: Some(file), ..self }
    }

    /// The same for Sentinels that want to know who asks.
    #[must_use]
    pub fn with_sentinel_auth(self, auth: &str) -> RedisAddress {
        RedisAddress { sentinel_login: Login::of(auth, None), ..self }
    }

    /// The same place over TLS.
    #[must_use]
    pub fn with_tls(self, tls: RedisTls) -> RedisAddress {
        RedisAddress { tls: Some(tls), ..self }
    }

    /// The same for one node of a cluster.
    pub(super) fn of_node(&self, place: Place) -> RedisAddress {
        RedisAddress { servers: Servers::Cluster(vec![place]), ..self.clone() }
    }

    /// TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// It is a Unix socket, whose bytes leave no machine.
    pub fn is_socket(&self) -> bool {
        matches!(&self.servers, Servers::Single(Place::Unix(_)))
    }

    /// Sentinels say where it is.
    pub fn has_sentinels(&self) -> bool {
        matches!(&self.servers, Servers::Sentinel { .. })
    }

    /// It is a cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(&self.servers, Servers::Cluster(_))
    }

    /// In one word.
    pub(super) fn kind(&self) -> &'static str {
        match &self.servers {
            Servers::Single(_) => "single",
            Servers::Sentinel { .. } => "sentinel",
            Servers::Cluster(_) => "cluster",
        }
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(super) fn login(&self) -> &Login {
        &self.login
    }

    pub(super) fn sentinel_login(&self) -> &Login {
        &self.sentinel_login
    }

    pub(super) fn auth_file(&self) -> Option<&NamedFile> {
        self.auth_file.as_ref()
    }

    pub(super) fn tls(&self) -> Option<&RedisTls> {
        self.tls.as_ref()
    }

    pub(super) fn database(&self) -> u16 {
        self.database
    }
}

impl Login {
    /// What `password` or `user:password` says; without a user it is this one.
    pub(super) fn of(auth: &str, user: Option<String>) -> Login {
        let (user, password) = match auth.split_once(':') {
            Some((name, password)) if !name.is_empty() => (Some(name.to_owned()), password),
            Some((_, password)) => (user, password),
            None => (user, auth),
        };
        Login { user, password: Some(password.to_owned()) }
    }
}

impl RedisTls {
    /// Trusts the authorities of this machine, and shows nothing.
    fn plain() -> RedisTls {
        let files =
            ClientFiles { trusted: Trusted::Machine(Expected::Name), identity: None, protocol: Protocol::Unnamed };
        RedisTls { files, server_name: None }
    }
}

/// An address with a scheme, in its parts.
struct Url<'a> {
    kind: RedisType,
    is_secure: bool,
    auth: Option<&'a str>,
    hosts: &'a str,
    /// What is behind the hosts, without the first slash.
    path: &'a str,
}

impl<'a> Url<'a> {
    fn new(scheme: &str, rest: &'a str, kind: Option<RedisType>) -> Result<Url<'a>, RedisAddressError> {
        let (is_secure, family) = match scheme.strip_prefix("rediss") {
            Some(family) => (true, family),
            None => (false, scheme.strip_prefix("redis").ok_or(RedisAddressError::Form)?),
        };
        let kind = match (family, kind) {
            // A list of nodes has the same scheme as one of them.
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
            // In a URL a lone word is the user; here it can only be meant as the password.
            let (user, password) = auth.split_once(':').unwrap_or(("", auth));
            let user = Some(unescape(user)?).filter(|user| !user.is_empty());
            address.login = Login { user, password: Some(unescape(password)?) };
        }
        address.tls = self.is_secure.then(RedisTls::plain);
        Ok(address)
    }
}

/// An address without a scheme, as envoyproxy/ratelimit has them.
fn listed(text: &str, kind: RedisType) -> Result<RedisAddress, RedisAddressError> {
    // Neither of the two is in a name or a port.
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

/// The name of a master: what Sentinels take for one.
fn named(master: &str) -> Result<String, RedisAddressError> {
    let is_name = !master.is_empty() && master.chars().all(|char| char.is_ascii_graphic() && char != ',');
    if is_name { Ok(master.to_owned()) } else { Err(RedisAddressError::NoMaster) }
}

/// One place at least, separated by commas. Each may have the scheme that a single one may have.
fn places(text: &str, default_port: Option<u16>) -> Result<Vec<Place>, RedisAddressError> {
    let place = |one: &str| match one.trim().strip_prefix("redis://") {
        Some(one) => tcp(one, Some(default_port.unwrap_or(PORT))),
        None => tcp(one.trim(), default_port),
    };
    text.split(',').map(place).collect()
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

impl FromStr for RedisAddress {
    type Err = RedisAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        RedisAddress::read(text, None)
    }
}

/// Without user and password.
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
        // A password alone, as a token comes, is for the user that the URL names.
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
