//! Reasons why Redis does not decide, worded for people: the problem, and what to do about it.
//!
//! None of them repeats a value that Tollgate has sent, such as a password or a descriptor value.

use std::fmt;
use std::io;
use std::time::Duration;

use deadpool_redis::redis::{ErrorKind, RedisError};

/// A problem with a Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// DNS has no address for the host.
    #[error("its host name does not resolve: correct REDIS_URL or DNS")]
    UnknownHost,
    /// The connection was refused.
    #[error("connection refused: start Redis, or correct REDIS_URL")]
    NobodyListens,
    /// The socket file does not exist.
    #[error("the socket does not exist: start Redis with `unixsocket`, or correct REDIS_URL")]
    NoSocket,
    /// Permission for the socket was denied.
    #[error("this process may not open the socket: see `unixsocketperm` in redis.conf")]
    SocketForbidden,
    /// There is no route to the host.
    #[error("no route to it ({0}): correct REDIS_URL, or check routes and firewalls")]
    Unreachable(io::ErrorKind),
    /// Nothing was received within this time.
    #[error("no answer within {0:?}: check firewalls, slow commands (SLOWLOG), and REDIS_TIMEOUT")]
    Silent(Duration),
    /// `NOAUTH`
    #[error("it requires a password, and none is set: set REDIS_AUTH to PASSWORD or USER:PASSWORD")]
    NoPassword,
    /// `WRONGPASS`
    #[error(
        "the user or the password is wrong: correct REDIS_AUTH (PASSWORD or USER:PASSWORD) or REDIS_URL, where @ is \
         written %40, : %3A, / %2F and % %25"
    )]
    WrongPassword,
    /// A password was sent for a user without one.
    #[error("a password is set, but Redis has none: remove it from REDIS_AUTH and REDIS_URL, or set `requirepass`")]
    NeedlessPassword,
    /// `DENIED`
    #[error(
        "its protected mode rejects other machines: set a password there (`requirepass`), and the same in REDIS_AUTH"
    )]
    ProtectedMode,
    /// The port requires TLS, which was not used.
    #[error("the port uses TLS: write rediss:// in REDIS_URL, or set REDIS_TLS=true")]
    Tls,
    /// TLS was used, but the port does not speak it.
    #[error("the port does not use TLS: write redis:// in REDIS_URL and unset REDIS_TLS, or name the port with TLS")]
    NoTls,
    /// The TLS handshake failed: the reason, and what to do.
    #[error("TLS with it fails: {0}")]
    Handshake(String),
    /// Another server than Redis, with the protocol if it is known.
    #[error("the port speaks {0}, so it is not Redis: correct REDIS_URL; the default port is 6379")]
    NotRedis(&'static str),
    /// `OOM`
    #[error("Redis is full (OOM): raise its `maxmemory`, or use a separate Redis for Tollgate")]
    Full,
    /// `READONLY`, with the primary if it is known.
    #[error("it is a replica, which accepts no writes: name its primary{} in REDIS_URL", of(.0))]
    Replica(Option<String>),
    /// `MASTERDOWN`
    #[error("it is a replica that has lost its primary and rejects commands (`replica-serve-stale-data no`)")]
    CutOff,
    /// The Sentinels' information is outdated.
    #[error("the Sentinels name {0} as the master, which is now a replica: wait until they agree on another")]
    NoMaster(String),
    /// No Sentinel reports the master. Holds the reason of the first.
    #[error("no Sentinel names the master, the first because: {0}")]
    NoSentinel(String),
    /// The Sentinels watch other masters.
    #[error("the Sentinels do not know the master {0:?}: write its name from their `sentinel monitor` into REDIS_URL")]
    UnknownMaster(String),
    /// The Sentinels require another user or password, or none.
    #[error(
        "a Sentinel rejects the user or the password, or the user may not run SENTINEL MASTER: correct \
         REDIS_SENTINEL_AUTH (PASSWORD or USER:PASSWORD; unset it if they need none)"
    )]
    SentinelLogin,
    /// The server has none of the Sentinel commands.
    #[error(
        "an address given as a Sentinel is not a Sentinel: name their ports in REDIS_URL (default 26379), or use \
         REDIS_TYPE=SINGLE"
    )]
    NotSentinel,
    /// `LOADING`
    #[error("it is loading its data from disk: wait until it has finished")]
    Loading,
    /// `BUSY`
    #[error("a script of another client keeps it busy: end it with SCRIPT KILL")]
    Busy,
    /// `MISCONF`
    #[error(
        "it accepts no writes because it cannot save to disk: check its log and its disk, or CONFIG SET \
         stop-writes-on-bgsave-error no"
    )]
    CannotSave,
    /// `NOREPLICAS`
    #[error("it accepts no writes because it has too few replicas: see `min-replicas-to-write` in redis.conf")]
    FewReplicas,
    /// No replica acknowledged a durable limit.
    #[error("no replica confirmed the write within {0:?}, which durable: true requires: check the replicas of Redis")]
    NobodyHeard(Duration),
    /// `NOPERM`
    #[error("{0}")]
    Lacks(Rights),
    /// `maxclients`
    #[error("it has reached its number of clients: raise its `maxclients`, or lower REDIS_POOL_SIZE")]
    TooManyClients,
    /// Redis has no database with this number.
    #[error("the database does not exist: check the number at the end of REDIS_URL, and `databases` in redis.conf")]
    NoDatabase,
    /// A node of a cluster, but a single Redis is expected.
    #[error("it is a node of a Redis Cluster: set REDIS_TYPE=CLUSTER, or write redis-cluster:// in REDIS_URL")]
    Cluster,
    /// A single Redis, but a cluster is expected.
    #[error("it is not a node of a Redis Cluster (`cluster-enabled no`): unset REDIS_TYPE, or name nodes of a cluster")]
    NoCluster,
    /// `CLUSTERDOWN`
    #[error(
        "the cluster does not serve the counter (CLUSTERDOWN): check that CLUSTER INFO has \
         cluster_slots_assigned:16384 (redis-cli --cluster create, or fix, assigns slots), and set \
         cluster-require-full-coverage no, so that one slot without a master does not stop all others"
    )]
    ClusterDown,
    /// A Sentinel, with the server that it watches if that is known.
    #[error(
        "it is a Sentinel, which stores no counters: name the Redis that it monitors{} in REDIS_URL, or write \
         redis+sentinel://host:port,host:port/MASTER",
        of(.0)
    )]
    Sentinel(Option<String>),
    /// The version is too old. Holds engine and version.
    #[error("it is {0}, and Tollgate's script needs Redis 6.0 or newer")]
    TooOld(String),
    /// Redis runs no scripts, or lacks a command that the script uses.
    #[error("it does not know {0}: Tollgate needs Redis 6.0 or newer, or an engine that runs its Lua")]
    NoCommand(String),
    /// The server closes every connection.
    #[error(
        "it closes connections without an answer: correct REDIS_URL if this is not Redis's port; behind a proxy, check \
         that Redis runs"
    )]
    Mute,
    /// The connection was closed.
    #[error("the connection was closed: {0}")]
    Closed(String),
    /// Another error, in its own words.
    #[error("it says: {0}")]
    Other(String),
}

/// Returns ` (HOST:PORT)` if the place is known.
fn of(place: &Option<String>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!(" ({place})"))
}

/// Rights that a user of Redis lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Commands as ACL rules name them; empty if Redis has not named them.
    pub commands: Vec<String>,
    /// Whether the rights to the keys of counters are missing.
    pub keys: bool,
    /// The command that grants all rights that Tollgate needs, if user and keys are known.
    pub grant: Option<String>,
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.commands.iter().map(|name| name.replace('|', " ").to_ascii_uppercase()).collect();
        let commands = if names.is_empty() { "a command that decisions need".to_owned() } else { names.join(", ") };
        match (names.is_empty(), self.keys) {
            (true, true) => f.write_str("its user may not access the keys of counters")?,
            (false, true) => write!(f, "its user may not run {commands}, nor access the keys of counters")?,
            (_, false) => write!(f, "its user may not run {commands}")?,
        }
        match &self.grant {
            Some(grant) => write!(f, "; this grants all that Tollgate needs: {grant}"),
            None => f.write_str(": see the log for the line that grants it"),
        }
    }
}

/// Errors by their code.
const CODES: [(&str, Cause); 14] = [
    ("NOAUTH", Cause::NoPassword),
    ("WRONGPASS", Cause::WrongPassword),
    ("DENIED", Cause::ProtectedMode),
    ("OOM", Cause::Full),
    ("READONLY", Cause::Replica(None)),
    ("MASTERDOWN", Cause::CutOff),
    ("LOADING", Cause::Loading),
    ("BUSY", Cause::Busy),
    ("MISCONF", Cause::CannotSave),
    ("NOREPLICAS", Cause::FewReplicas),
    ("MOVED", Cause::Cluster),
    ("ASK", Cause::Cluster),
    ("CROSSSLOT", Cause::Cluster),
    ("CLUSTERDOWN", Cause::ClusterDown),
];

/// Errors by their wording.
const PHRASES: [(&str, Cause); 7] = [
    ("cluster support disabled", Cause::NoCluster),
    ("while the cluster is down", Cause::ClusterDown),
    ("without any password configured", Cause::NeedlessPassword),
    ("max number of clients", Cause::TooManyClients),
    ("DB index", Cause::NoDatabase),
    ("SELECT is not allowed in cluster mode", Cause::Cluster),
    ("invalid password", Cause::WrongPassword),
];

impl Cause {
    /// Returns the meaning of an error of Redis, wherever in the text it is, since the script puts a counter's name in
    /// front. Returns `None` if the error is not about Redis but perhaps about a counter.
    pub(crate) fn known(text: &str) -> Option<Cause> {
        // A code must be a whole word. Spaces in keys are escaped.
        let has_code = |code: &str| {
            let places = text.match_indices(code).map(|(at, _)| at);
            places.into_iter().any(|at| {
                let before = text[..at].chars().next_back();
                before.is_none_or(|char| char == ' ' || char == '-') && text[at + code.len()..].starts_with(' ')
            })
        };
        let by_code = CODES.iter().find(|(code, _)| has_code(code)).map(|(_, cause)| cause.clone());
        let by_phrase = || PHRASES.iter().find(|(phrase, _)| text.contains(phrase)).map(|(_, cause)| cause.clone());
        by_code.or_else(by_phrase).or_else(|| lacks(text).map(Cause::Lacks)).or_else(|| unknown_command(text))
    }

    /// Returns the meaning of an error of Redis.
    pub(crate) fn of_reply(text: &str) -> Cause {
        // The rest of the text repeats the request.
        let own_words = || text.split(", with args").next().unwrap_or_default().trim().to_owned();
        Cause::known(text).unwrap_or_else(|| Cause::Other(own_words()))
    }

    /// Returns the meaning of an error of the client library, which is usually an error of Redis.
    pub(crate) fn of_error(error: &RedisError) -> Cause {
        match (error.kind(), error.code(), error.detail()) {
            (ErrorKind::AuthenticationFailed, ..) => Cause::WrongPassword,
            (_, Some(code), detail) => Cause::of_reply(&format!("{code} {}", detail.unwrap_or_default())),
            (_, None, Some(detail)) => Cause::of_reply(detail),
            (_, None, None) => Cause::Closed(error.to_string()),
        }
    }

    /// Returns why no connection could be made, if the system reports it.
    pub(crate) fn of_connecting(error: &io::Error) -> Option<Cause> {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Some(Cause::NobodyListens),
            io::ErrorKind::NotFound => Some(Cause::NoSocket),
            io::ErrorKind::PermissionDenied => Some(Cause::SocketForbidden),
            kind @ (io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable) => Some(Cause::Unreachable(kind)),
            // The standard library has no error kind for this.
            _ => error.to_string().contains("lookup address").then_some(Cause::UnknownHost),
        }
    }

    /// Returns whether this Redis can never be used as it is: limits would not hold, or the script cannot run.
    pub fn is_unfit(&self) -> bool {
        use Cause::{Cluster, NoCluster, NoCommand, Sentinel, TooOld};
        matches!(self, Cluster | NoCluster | Sentinel(_) | TooOld(_) | NoCommand(_))
    }

    /// Returns the cause in one word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Cause::UnknownHost => "unknown_host",
            Cause::NobodyListens | Cause::NoSocket => "nobody_listens",
            Cause::SocketForbidden => "socket_forbidden",
            Cause::Unreachable(_) => "unreachable",
            Cause::Silent(_) => "timeout",
            Cause::NoPassword => "no_password",
            Cause::WrongPassword => "wrong_password",
            Cause::NeedlessPassword => "needless_password",
            Cause::ProtectedMode => "protected_mode",
            Cause::Tls | Cause::NoTls | Cause::Handshake(_) => "tls",
            Cause::NotRedis(_) => "not_redis",
            Cause::Full => "full",
            Cause::Replica(_) | Cause::CutOff | Cause::NoMaster(_) => "replica",
            Cause::NoSentinel(_) | Cause::SentinelLogin | Cause::NotSentinel => "no_sentinel",
            Cause::UnknownMaster(_) => "unknown_master",
            Cause::Loading => "loading",
            Cause::Busy => "busy",
            Cause::CannotSave => "cannot_save",
            Cause::FewReplicas | Cause::NobodyHeard(_) => "few_replicas",
            Cause::Lacks(_) => "no_permission",
            Cause::TooManyClients => "too_many_clients",
            Cause::NoDatabase => "no_database",
            Cause::Cluster => "cluster",
            Cause::NoCluster => "no_cluster",
            Cause::ClusterDown => "cluster_down",
            Cause::Sentinel(_) => "sentinel",
            Cause::TooOld(_) => "too_old",
            Cause::NoCommand(_) => "no_command",
            Cause::Mute => "mute",
            Cause::Closed(_) => "connection",
            Cause::Other(_) => "other",
        }
    }
}

/// Returns the missing rights if the error is about rights; its wording depends on the version.
fn lacks(text: &str) -> Option<Rights> {
    const DENIALS: [&str; 5] =
        ["NOPERM", "no permissions", "No permissions", "ACL failure in script", "executing the script can't"];
    if !DENIALS.iter().any(|denial| text.contains(denial)) {
        return None;
    }
    let named = |text: &str| Some(text.split_once("run the '")?.1.split_once('\'')?.0.to_ascii_lowercase());
    // Only one of its subcommands is needed, and Redis 6 does not name it.
    let rule = |name: String| if name == "script" { "script|load".to_owned() } else { name };
    let commands: Vec<String> = named(text).map(rule).into_iter().collect();
    let is_of_keys = ["access one of the keys", "access a key", "at least one of the keys"];
    let keys = is_of_keys.iter().any(|words| text.contains(words));
    Some(Rights { commands, keys, grant: None })
}

/// Parses `ERR unknown command 'EVALSHA', with args …`, with any of three kinds of quotes.
fn unknown_command(text: &str) -> Option<Cause> {
    if text.contains("Unknown Redis command called from script") {
        return Some(Cause::NoCommand("a command of its script".into()));
    }
    let (_, behind) = text.split_once("unknown command ")?;
    let name = behind.split(['\'', '`', '"', ',', ' ']).find(|part| !part.is_empty())?;
    Some(Cause::NoCommand(name.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(commands: &[&str]) -> Cause {
        Cause::Lacks(rights(commands, false))
    }

    fn rights(commands: &[&str], keys: bool) -> Rights {
        Rights { commands: commands.iter().map(|name| (*name).to_owned()).collect(), keys, grant: None }
    }

    #[test]
    fn what_versions_of_redis_say_is_understood() {
        for (text, cause) in [
            ("NOAUTH Authentication required.", Cause::NoPassword),
            ("WRONGPASS invalid username-password pair or user is disabled.", Cause::WrongPassword),
            ("ERR invalid password", Cause::WrongPassword),
            ("ERR AUTH <password> called without any password configured for the d", Cause::NeedlessPassword),
            ("DENIED Redis is running in protected mode because", Cause::ProtectedMode),
            ("ERR max number of clients reached", Cause::TooManyClients),
            ("ERR DB index is out of range", Cause::NoDatabase),
            ("ERR SELECT is not allowed in cluster mode", Cause::Cluster),
            ("MOVED 12539 10.0.0.1:6379", Cause::Cluster),
            ("CROSSSLOT Keys in request don't hash to the same slot", Cause::Cluster),
            ("BUSY Redis is busy running a script.", Cause::Busy),
            ("LOADING Redis is loading the dataset in memory", Cause::Loading),
            ("MISCONF Redis is configured to save RDB snapshots, but", Cause::CannotSave),
            ("NOREPLICAS Not enough good replicas to write.", Cause::FewReplicas),
            ("NOPERM User toll has no permissions to run the 'evalsha' command", lacking(&["evalsha"])),
            ("NOPERM this user has no permissions to run the 'script' command or its", lacking(&["script|load"])),
            ("NOPERM No permissions to access a key", Cause::Lacks(rights(&[], true))),
            ("NOPERM this user has no permissions to access one of the keys used as", Cause::Lacks(rights(&[], true))),
            ("ERR unknown command `EVALSHA`, with args beginning with: `s`", Cause::NoCommand("EVALSHA".into())),
            ("ERR unknown command 'evalsha', with args beginning with: ", Cause::NoCommand("EVALSHA".into())),
            ("ERR something else, with args beginning with: 'a secret'", Cause::Other("ERR something else".into())),
        ] {
            assert_eq!(Cause::of_reply(text), cause, "{text}");
        }
    }

    #[test]
    fn a_redis_that_refuses_differs_from_a_counter_that_is_damaged() {
        for (failure, cause) in [
            ("p|shop|ann|fw1000: OOM command not allowed when used memory > 'maxmemory'.", Cause::Full),
            (
                "shop|ann|fw1000: @user_script: 180: -READONLY You can't write against a read only replica.",
                Cause::Replica(None),
            ),
            (
                "shop|ann|fw1000: NOPERM ACL failure in script: User bob has no permissions to run the 'set' command",
                lacking(&["set"]),
            ),
            ("shop|ann|fw1000: The user executing the script can't run this command or subcommand", lacking(&[])),
        ] {
            assert_eq!(Cause::known(failure), Some(cause), "{failure}");
        }
        for damaged in [
            "shop|OOM%20=x|fw1000: WRONGTYPE Operation against a key holding the wrong kind of value",
            "shop|READONLY=x|fw1000: user_script:7: data string too short",
            "shop|TASK%20=BUSY|fw1000: user_script:7: data string too short",
        ] {
            assert_eq!(Cause::known(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_missing_right_comes_with_the_line_that_grants_it() {
        let of = |commands, keys, grant: Option<&str>| {
            Rights { grant: grant.map(str::to_owned), ..rights(commands, keys) }.to_string()
        };
        let grant = Some("ACL SETUSER toll ~*");
        for (told, expected) in [
            (of(&["set", "script|load"], false, grant), "its user may not run SET, SCRIPT LOAD; "),
            (of(&["set"], true, grant), "its user may not run SET, nor access the keys of counters; "),
            (of(&[], true, grant), "its user may not access the keys of counters; "),
            (of(&[], false, grant), "its user may not run a command that decisions need; "),
        ] {
            assert_eq!(told, format!("{expected}this grants all that Tollgate needs: ACL SETUSER toll ~*"));
        }
        let unknown = of(&["set"], false, None);
        assert_eq!(unknown, "its user may not run SET: see the log for the line that grants it");
    }
}
