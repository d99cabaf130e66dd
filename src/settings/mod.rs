//! The settings of the process. Each is declared once: its flag, environment variable, default and meaning.
//!
//! The help and the reference page (`docs/settings.md`, made by `tollgate settings`) derive from this declaration. A
//! setting that `envoyproxy/ratelimit` has as well has the name of its variable there.

pub(crate) mod fleet;
mod answers;
mod candidates;
#[cfg(test)]
mod chart;
mod decisions;
mod duration;
mod environment;
mod given;
mod links;
mod listeners;
mod logs;
mod management;
mod misspelt;
mod needs;
mod notify;
mod otel;
mod page;
mod path;
mod per_second;
mod redis_tls;
mod reference;
mod requests;
mod rules;
mod statistics;
mod store;
mod tls;
mod tolerated;
mod tracing;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::engine::rules::report::RulesError;
use crate::metrics::reference::NO_LABEL;
use crate::observe::redaction::Values;
use crate::store::redis::topology::address::RedisAddressError;

use self::duration::{duration, positive_duration};

pub use answers::AnswerSettings;
pub use candidates::{CandidateFiles, CandidateSettings};
pub use decisions::{DecisionSettings, LogPlace};
pub use environment::Environment;
pub use fleet::sign_of_replicas;
pub use given::{Given, Mistake, Origin};
pub use links::port;
pub use listeners::ListenerSettings;
pub use logs::LogSettings;
pub use management::ManagementSettings;
pub use misspelt::{Misspelt, misspelt};
pub use needs::without_effect;
pub use notify::NotifySettings;
pub use page::{names, page};
pub use redis_tls::RedisTlsSettings;
pub use reference::{Unsupported, unsupported};
pub use requests::RequestSettings;
pub use rules::{ConfigType, Deciding, Reading, RulesSettings};
pub use statistics::{Address, StatisticsSettings};
pub use store::{Backend, KeyNames, SocketType, StoreSettings};
pub use tls::{PeerTls, TlsSettings};
pub use tolerated::tolerated;
pub use tracing::TracingSettings;

/// The settings of the process, in the order of the reference page. Durations are written as 150us, 20ms, 1h30m.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Sources of the rules.
    #[command(flatten)]
    pub rules: RulesSettings,

    /// How rules are read.
    #[command(flatten)]
    pub reading: Reading,

    /// Settings for all rules together.
    #[command(flatten)]
    pub deciding: Deciding,

    /// Rules evaluated beside those in force.
    #[command(flatten)]
    pub candidates: CandidateSettings,

    /// The management server that sends the rules, if there is one.
    #[command(flatten)]
    pub management: ManagementSettings,

    /// The store of counters.
    #[command(flatten)]
    pub store: StoreSettings,

    /// The ports.
    #[command(flatten)]
    pub listeners: ListenerSettings,

    /// Encryption, and the clients to admit.
    #[command(flatten)]
    pub tls: TlsSettings,

    /// Limits on requests.
    #[command(flatten)]
    pub requests: RequestSettings,

    /// Content of answers.
    #[command(flatten)]
    pub answers: AnswerSettings,

    /// Destinations of statistics.
    #[command(flatten)]
    pub statistics: StatisticsSettings,

    /// The log.
    #[command(flatten)]
    pub logs: LogSettings,

    /// Records of single decisions.
    #[command(flatten)]
    pub decisions: DecisionSettings,

    /// Notices of limits with `notify`.
    #[command(flatten)]
    pub notify: NotifySettings,

    /// Traces.
    #[command(flatten)]
    pub tracing: TracingSettings,
}

/// An invalid setting, or one that conflicts with others. The text says what to do; [`Mistake::of`] adds the name of
/// the flag or variable that was used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No rules are named.
    #[error(
        "no rules: name a file or folder with --rules PATH (or RULES), or the layout of envoyproxy/ratelimit with \
         RUNTIME_SUBDIRECTORY"
    )]
    NoRules,
    /// The rules come from a source that this command does not read.
    #[error(
        "the rules come from a management server (CONFIG_TYPE=GRPC_XDS_SOTW): name files with --rules PATH, or query \
         the running service"
    )]
    RulesElsewhere,
    /// The store is Redis, without an address.
    #[error("needs REDIS_URL, for example REDIS_URL=localhost:6379")]
    NoRedisUrl,
    /// An address that cannot be parsed.
    #[error(transparent)]
    RedisUrl(RedisAddressError),
    /// The type is tcp, but the address is a path.
    #[error("REDIS_URL is the path of a Unix socket: write host:port there, or unix here")]
    SocketType,
    /// TLS on a Unix socket, which sends nothing over a network.
    #[error("REDIS_URL is a Unix socket, which does not use TLS: unset it")]
    SocketTls,
    /// One of two files that are needed together.
    #[error("needs both REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY, or neither")]
    HalfRedisIdentity(&'static str),
    /// The timeout of shares is out of range.
    #[error("must be from 10s to 1h: other instances wait this long for the share of one that was lost")]
    ShareTimeout,
    /// The second Redis is on, without an address.
    #[error("needs a REDIS_PERSECOND_URL")]
    NoPerSecondUrl,
    /// An error of the setting of this name, in the text for the Redis of all counters.
    #[error("{}", .1.replace("REDIS_URL", "REDIS_PERSECOND_URL"))]
    PerSecond(&'static str, String),
    /// ADMIN_API is on without a token, so no client could use it.
    #[error("needs an ADMIN_TOKEN of at least {MIN_TOKEN} characters, or an ADMIN_TOKENS_FILE")]
    NoAdminToken,
    /// A token that is easy to guess.
    #[error("has {1} characters, which is too easy to guess: it needs at least {MIN_TOKEN}")]
    ShortAdminToken(&'static str, usize),
    /// The token for reading is also the token for changes.
    #[error("is the same as the ADMIN_TOKEN, which permits changes: choose another")]
    SameAdminTokens,
    /// The file of tokens has mistakes, or cannot be read.
    #[error("{}", mistakes(.0))]
    AdminTokensFile(RulesError),
    /// TLS without a certificate.
    #[error("needs GRPC_SERVER_TLS_CERT, the file of the server's certificate")]
    NoTlsCertificate,
    /// TLS without a key.
    #[error("needs GRPC_SERVER_TLS_KEY, the file of the certificate's private key")]
    NoTlsKey,
    /// One of two files that are needed together.
    #[error("needs both CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY, or neither")]
    HalfClientIdentity,
    /// Names of clients are required, without an authority that certifies them.
    #[error("needs GRPC_CLIENT_TLS_CACERT, the file of the authority that signs the certificates of clients")]
    NoClientAuthority,
    /// Both dialects of statsd are on.
    #[error("statsd or DogStatsD: set USE_STATSD or USE_DOG_STATSD to false")]
    TwoStatsds,
    /// A mapping file with an unsupported feature.
    #[error("{0}")]
    Mapping(String),
    /// A tag that Prometheus uses itself.
    #[error("{0:?} {NO_LABEL}")]
    ExtraTag(String),
    /// An invalid mogrifier: its name, and the reason.
    #[error("{0}")]
    Mogrifier(String),
    /// A header that HTTP cannot carry.
    #[error("not a header name: use letters, digits and dashes")]
    HeaderName(&'static str),
    /// Values are to be hashed without a key.
    #[error("needs VALUES_KEY, or VALUES_KEY_FILE, of at least {MIN_TOKEN} characters")]
    NoValuesKey(&'static str),
    /// The key for hashing is too short.
    #[error("has {1} characters, which is too easy to guess: it needs at least {MIN_TOKEN}")]
    ShortValuesKey(&'static str, usize),
    /// The file of the key cannot be read.
    #[error("cannot be read: {0}")]
    ValuesKeyFile(String),
    /// A webhook without a secret.
    #[error("needs a NOTIFY_WEBHOOK_SECRET, or a NOTIFY_WEBHOOK_SECRET_FILE, which signs what the webhook gets")]
    NoNotifySecret,
    /// A secret that cannot be used, and why.
    #[error("{1}")]
    NotifySecret(&'static str, String),
    /// An invalid setting of OpenTelemetry, and what to do.
    #[error("{1}")]
    Otel(&'static str, String),
}

/// Fewest characters of an administrator's token.
const MIN_TOKEN: usize = 16;

/// Returns a single mistake of a file, or all of them, each on its own line.
fn mistakes(error: &RulesError) -> String {
    if error.problems.len() > 1 { format!("the file has mistakes:\n{error}") } else { error.to_string() }
}

impl SettingsError {
    /// Returns the variable of the invalid setting, if there is one.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            SettingsError::NoRules | SettingsError::RulesElsewhere => None,
            SettingsError::NoRedisUrl => Some("BACKEND_TYPE"),
            SettingsError::RedisUrl(_) => Some("REDIS_URL"),
            SettingsError::SocketType => Some("REDIS_SOCKET_TYPE"),
            SettingsError::SocketTls => Some("REDIS_TLS"),
            SettingsError::NoAdminToken => Some("ADMIN_API"),
            SettingsError::SameAdminTokens => Some("ADMIN_READ_TOKEN"),
            SettingsError::AdminTokensFile(_) => Some("ADMIN_TOKENS_FILE"),
            SettingsError::NoTlsCertificate | SettingsError::NoTlsKey => Some("GRPC_SERVER_USE_TLS"),
            SettingsError::HalfClientIdentity => Some("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
            SettingsError::NoClientAuthority => Some("GRPC_CLIENT_TLS_SAN"),
            SettingsError::TwoStatsds => Some("USE_DOG_STATSD"),
            SettingsError::Mapping(_) => Some("PROMETHEUS_MAPPER_YAML"),
            SettingsError::ExtraTag(_) => Some("EXTRA_TAGS"),
            SettingsError::Mogrifier(_) => Some("USE_DOG_STATSD_MOGRIFIERS"),
            SettingsError::ValuesKeyFile(_) => Some("VALUES_KEY_FILE"),
            SettingsError::NoNotifySecret => Some("NOTIFY_WEBHOOK_URL"),
            SettingsError::HeaderName(setting)
            | SettingsError::NotifySecret(setting, _)
            | SettingsError::NoValuesKey(setting)
            | SettingsError::ShortValuesKey(setting, _)
            | SettingsError::Otel(setting, _)
            | SettingsError::PerSecond(setting, _)
            | SettingsError::ShortAdminToken(setting, _)
            | SettingsError::HalfRedisIdentity(setting) => Some(setting),
            SettingsError::NoPerSecondUrl => Some("REDIS_PERSECOND"),
            SettingsError::ShareTimeout => Some("SHARE_TIMEOUT"),
        }
    }
}

impl Settings {
    /// Returns how notices show values.
    ///
    /// # Errors
    /// Fails if hashing is chosen without a valid key.
    pub fn notice_values(&self) -> Result<Values, SettingsError> {
        self.decisions.values("NOTIFY_VALUES", self.notify.notify_values)
    }

    /// Returns all errors in settings that clap could read. `environment` contains the variables that are named in a
    /// setting.
    pub fn errors(&self, environment: &Environment) -> Vec<SettingsError> {
        let sources = match self.rules.config_type {
            ConfigType::File => self.rules.sources().err(),
            ConfigType::GrpcXdsSotw => None,
        };
        let found = [
            sources,
            self.management.tls().err(),
            self.store.redis().err(),
            self.listeners.admin_tokens().err(),
            self.tls.server().err(),
            self.tracing.exporting().and_then(|_| self.tracing.tls()).err(),
            self.statistics.prometheus().and_then(|_| self.statistics.exposition().err()),
            self.statistics.statsd(environment).err(),
            self.decisions.errors(),
            self.notify.webhook().err(),
            self.notice_values().err(),
        ];
        found.into_iter().flatten().chain(self.answers.wrong_headers()).collect()
    }
}

/// Returns a parser that selects a value by its name.
pub fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().copied().map(name))
        .try_map(move |given| all.iter().copied().find(|one| name(*one).eq_ignore_ascii_case(&given)).ok_or("unknown"))
}

/// Returns a parser of booleans, in all spellings of Go and YAML.
pub fn switch() -> impl TypedValueParser<Value = bool> {
    let on = PossibleValue::new("true").aliases(["t", "1", "yes", "y", "on"]);
    let off = PossibleValue::new("false").aliases(["f", "0", "no", "n", "off"]);
    PossibleValuesParser::new([on.clone(), off]).map(move |given| on.matches(&given, true))
}

/// Parses a number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".into()),
    }
}

/// Returns a parser of numbers within this range.
fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    }
}
