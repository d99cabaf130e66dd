//! Every knob of the process, once: its flag, environment variable, default and meaning.
//!
//! The help text and the reference page (`docs/settings.md`, made by `tollgate settings`) derive from this
//! declaration. Where `envoyproxy/ratelimit` has the same thing, its variable names it here.

mod answers;
mod candidates;
mod decisions;
mod duration;
mod environment;
mod given;
mod links;
mod listeners;
mod logs;
mod management;
mod misspelt;
mod otel;
mod page;
mod per_second;
mod redis_tls;
mod reference;
mod replicas;
mod requests;
mod rules;
mod statistics;
mod store;
mod tls;
mod tracing;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::metrics::reference::NO_LABEL;
use crate::store::redis::RedisAddressError;

use self::duration::{duration, positive_duration};

pub use answers::AnswerSettings;
pub use candidates::{CandidateFiles, CandidateSettings};
pub use decisions::{DecisionSettings, LogPlace};
pub use environment::Environment;
pub use given::{Given, Mistake, Origin};
pub use links::port;
pub use listeners::ListenerSettings;
pub use logs::LogSettings;
pub use management::ManagementSettings;
pub use misspelt::{Misspelt, misspelt};
pub use page::{names, page};
pub use redis_tls::RedisTlsSettings;
pub use reference::{Unsupported, unsupported};
pub use replicas::sign_of_replicas;
pub use requests::RequestSettings;
pub use rules::{ConfigType, Deciding, Reading, RulesSettings};
pub use statistics::{Address, StatisticsSettings};
pub use store::{Backend, KeyNames, SocketType, StoreSettings};
pub use tls::{PeerTls, TlsSettings};
pub use tracing::TracingSettings;

/// How the process runs, in the order of the reference page. Durations read like 150us, 20ms, 1h30m.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Where the rules are.
    #[command(flatten)]
    pub rules: RulesSettings,

    /// How they are read.
    #[command(flatten)]
    pub reading: Reading,

    /// What holds for all of them.
    #[command(flatten)]
    pub deciding: Deciding,

    /// What others would decide otherwise.
    #[command(flatten)]
    pub candidates: CandidateSettings,

    /// The management server that they come from, where they come from one.
    #[command(flatten)]
    pub management: ManagementSettings,

    /// Where counters live.
    #[command(flatten)]
    pub store: StoreSettings,

    /// Where the process listens.
    #[command(flatten)]
    pub listeners: ListenerSettings,

    /// What is encrypted, and who gets in.
    #[command(flatten)]
    pub tls: TlsSettings,

    /// What a request may be.
    #[command(flatten)]
    pub requests: RequestSettings,

    /// What an answer carries.
    #[command(flatten)]
    pub answers: AnswerSettings,

    /// Where statistics go.
    #[command(flatten)]
    pub statistics: StatisticsSettings,

    /// What is logged.
    #[command(flatten)]
    pub logs: LogSettings,

    /// What is told of single decisions.
    #[command(flatten)]
    pub decisions: DecisionSettings,

    /// What is traced.
    #[command(flatten)]
    pub tracing: TracingSettings,
}

/// A setting that cannot be by itself, or that does not go with the others. Its text is what would be right;
/// [`Mistake::of`] puts the name that was used in front.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No place is named.
    #[error(
        "no rules: name a file or folder with --rules PATH (or RULES), or the layout of envoyproxy/ratelimit with \
         RUNTIME_SUBDIRECTORY"
    )]
    NoRules,
    /// They are where this command does not look.
    #[error(
        "the rules come from a management server (CONFIG_TYPE=GRPC_XDS_SOTW): name files with --rules PATH, or ask the \
         running service"
    )]
    RulesElsewhere,
    /// Redis without a place.
    #[error("needs REDIS_URL, for example REDIS_URL=localhost:6379")]
    NoRedisUrl,
    /// A place that cannot be understood.
    #[error(transparent)]
    RedisUrl(RedisAddressError),
    /// One says tcp and the other means a path.
    #[error("REDIS_URL is the path of a Unix socket: write host:port there, or unix here")]
    SocketType,
    /// Nothing leaves the machine there.
    #[error("REDIS_URL is a Unix socket, where no TLS is spoken: unset it")]
    SocketTls,
    /// One of two files that make sense together.
    #[error("needs both REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY, or neither")]
    HalfRedisIdentity(&'static str),
    /// It is wanted, and not named.
    #[error("needs a REDIS_PERSECOND_URL")]
    NoPerSecondUrl,
    /// What is wrong with the setting of this name, in words of the one for all counters.
    #[error("{}", .1.replace("REDIS_URL", "REDIS_PERSECOND_URL"))]
    PerSecond(&'static str, String),
    /// Nobody could reset counters.
    #[error("needs an ADMIN_TOKEN of at least {MIN_TOKEN} characters")]
    NoAdminToken,
    /// Anybody could reset counters.
    #[error("has {1} characters, which is too easy to guess: it needs at least {MIN_TOKEN}")]
    ShortAdminToken(&'static str, usize),
    /// Who may only read could change things.
    #[error("is the ADMIN_TOKEN, with which everything may be changed: choose another")]
    SameAdminTokens,
    /// TLS without a certificate.
    #[error("needs GRPC_SERVER_TLS_CERT, the file of the server's certificate")]
    NoTlsCertificate,
    /// TLS without a key.
    #[error("needs GRPC_SERVER_TLS_KEY, the file of the certificate's private key")]
    NoTlsKey,
    /// One of two files that make sense together.
    #[error("needs both CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY, or neither")]
    HalfClientIdentity,
    /// A name that nobody would have vouched for.
    #[error("needs GRPC_CLIENT_TLS_CACERT, the file of the authority that signs the certificates of clients")]
    NoClientAuthority,
    /// One process has one of them.
    #[error("statsd or DogStatsD: set USE_STATSD or USE_DOG_STATSD to false")]
    TwoStatsds,
    /// A file with names that asks for what is not there.
    #[error("{0}")]
    Mapping(String),
    /// A tag that Prometheus uses itself.
    #[error("{0:?} {NO_LABEL}")]
    ExtraTag(String),
    /// A mogrifier that cannot be: which, and why.
    #[error("{0}")]
    Mogrifier(String),
    /// A header that HTTP cannot carry.
    #[error("not the name of a header: use letters, digits and dashes")]
    HeaderName(&'static str),
    /// Anybody could try values.
    #[error("needs VALUES_KEY, or VALUES_KEY_FILE, of at least {MIN_TOKEN} characters")]
    NoValuesKey(&'static str),
    /// Nearly anybody could.
    #[error("has {1} characters, which is too easy to guess: it needs at least {MIN_TOKEN}")]
    ShortValuesKey(&'static str, usize),
    /// A key that is not there.
    #[error("cannot be read: {0}")]
    ValuesKeyFile(String),
    /// One of OpenTelemetry's, and what would be right.
    #[error("{1}")]
    Otel(&'static str, String),
}

/// An administrator's token has so many characters at least.
const MIN_TOKEN: usize = 16;

impl SettingsError {
    /// The variable of the setting that is wrong, where there is one.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            SettingsError::NoRules | SettingsError::RulesElsewhere => None,
            SettingsError::NoRedisUrl => Some("BACKEND_TYPE"),
            SettingsError::RedisUrl(_) => Some("REDIS_URL"),
            SettingsError::SocketType => Some("REDIS_SOCKET_TYPE"),
            SettingsError::SocketTls => Some("REDIS_TLS"),
            SettingsError::NoAdminToken => Some("ADMIN_API"),
            SettingsError::SameAdminTokens => Some("ADMIN_READ_TOKEN"),
            SettingsError::NoTlsCertificate | SettingsError::NoTlsKey => Some("GRPC_SERVER_USE_TLS"),
            SettingsError::HalfClientIdentity => Some("CONFIG_GRPC_XDS_SERVER_USE_TLS"),
            SettingsError::NoClientAuthority => Some("GRPC_CLIENT_TLS_SAN"),
            SettingsError::TwoStatsds => Some("USE_DOG_STATSD"),
            SettingsError::Mapping(_) => Some("PROMETHEUS_MAPPER_YAML"),
            SettingsError::ExtraTag(_) => Some("EXTRA_TAGS"),
            SettingsError::Mogrifier(_) => Some("USE_DOG_STATSD_MOGRIFIERS"),
            SettingsError::ValuesKeyFile(_) => Some("VALUES_KEY_FILE"),
            SettingsError::HeaderName(setting)
            | SettingsError::NoValuesKey(setting)
            | SettingsError::ShortValuesKey(setting, _)
            | SettingsError::Otel(setting, _)
            | SettingsError::PerSecond(setting, _)
            | SettingsError::ShortAdminToken(setting, _)
            | SettingsError::HalfRedisIdentity(setting) => Some(setting),
            SettingsError::NoPerSecondUrl => Some("REDIS_PERSECOND"),
        }
    }
}

impl Settings {
    /// All that is wrong with settings that can be read. The environment has what belongs to names that a setting
    /// lists.
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
        ];
        found.into_iter().flatten().chain(self.answers.wrong_headers()).collect()
    }
}

/// The one of several that has this name.
pub fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().copied().map(name))
        .try_map(move |given| all.iter().copied().find(|one| name(*one).eq_ignore_ascii_case(&given)).ok_or("unknown"))
}

/// What is on or off, in all spellings that Go and YAML have.
pub fn switch() -> impl TypedValueParser<Value = bool> {
    let on = PossibleValue::new("true").aliases(["t", "1", "yes", "y", "on"]);
    let off = PossibleValue::new("false").aliases(["f", "0", "no", "n", "off"]);
    PossibleValuesParser::new([on.clone(), off]).map(move |given| on.matches(&given, true))
}

/// A part of a whole.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".into()),
    }
}

/// A number within these bounds.
fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
    }
}
