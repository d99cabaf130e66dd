//! Every knob of the process, once: its flag, environment variable, default and meaning.
//!
//! The help text and the reference page (`docs/settings.md`, made by `tollgate settings`) derive from this
//! declaration. Where `envoyproxy/ratelimit` has the same thing, its variable names it here.

mod answers;
mod listeners;
mod logs;
mod page;
mod reference;
mod requests;
mod rules;
mod store;

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::store::redis::RedisAddressError;

pub use answers::AnswerSettings;
pub use listeners::ListenerSettings;
pub use logs::LogSettings;
pub use page::page;
pub use reference::{Unsupported, unsupported};
pub use requests::RequestSettings;
pub use rules::{Deciding, Reading, RulesSettings};
pub use store::{Backend, SocketType, StoreSettings};

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

    /// Where counters live.
    #[command(flatten)]
    pub store: StoreSettings,

    /// Where the process listens.
    #[command(flatten)]
    pub listeners: ListenerSettings,

    /// What a request may be.
    #[command(flatten)]
    pub requests: RequestSettings,

    /// What an answer carries.
    #[command(flatten)]
    pub answers: AnswerSettings,

    /// What is logged.
    #[command(flatten)]
    pub logs: LogSettings,
}

/// Settings that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No place is named.
    #[error(
        "no rules: name a file or folder with --rules PATH (or RULES), or the layout of envoyproxy/ratelimit with \
         RUNTIME_SUBDIRECTORY"
    )]
    NoRules,
    /// Redis without a place.
    #[error("BACKEND_TYPE=redis needs REDIS_URL, for example REDIS_URL=localhost:6379")]
    NoRedisUrl,
    /// A place that cannot be understood.
    #[error("REDIS_URL")]
    RedisUrl(#[source] RedisAddressError),
    /// One says tcp and the other means a path.
    #[error(
        "REDIS_SOCKET_TYPE=tcp, but REDIS_URL is the path of a Unix socket: write host:port, or REDIS_SOCKET_TYPE=unix"
    )]
    SocketType,
    /// Anybody could reset counters.
    #[error("ADMIN_API=true needs an ADMIN_TOKEN of at least 16 characters")]
    AdminToken,
    /// A header that HTTP cannot carry.
    #[error("{0}={1:?} is not the name of a header: use letters, digits and dashes")]
    HeaderName(&'static str, String),
}

/// The one of several that has this name.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().copied().map(name))
        .try_map(move |given| all.iter().copied().find(|one| name(*one).eq_ignore_ascii_case(&given)).ok_or("unknown"))
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        duration => Ok(duration),
    }
}

/// Up to a year: what is longer is a mistake, and the clock could not count it.
fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > Duration::from_secs(366 * 24 * 60 * 60) => Err("must be at most 366d".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}: a duration has units, such as 150us, 20ms, 1h30m")),
    }
}
