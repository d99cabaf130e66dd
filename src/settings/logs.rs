//! What is logged.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::named;
use crate::telemetry::LogFormat;

/// What is logged.
#[derive(Args, Clone, Debug)]
pub struct LogSettings {
    /// The least important log lines to write: error, warn, info, debug (tells of every request, with its values) or
    /// trace.
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVEL", default_value = "info", ignore_case = true, help_heading = "Logs",
        value_parser = level_parser())]
    pub log_level: tracing::Level,

    /// What log lines look like: text for people, json for machines, one object a line.
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", default_value = "text", ignore_case = true,
        help_heading = "Logs", value_parser = named(&LogFormat::ALL, LogFormat::name))]
    pub log_format: LogFormat,
}

/// The levels of `envoyproxy/ratelimit`, of which panic and fatal are errors here.
fn level_parser() -> impl TypedValueParser<Value = tracing::Level> {
    PossibleValuesParser::new(["trace", "debug", "info", "warn", "warning", "error", "fatal", "panic"]).try_map(
        |name| match name.to_ascii_lowercase().as_str() {
            "warning" => Ok(tracing::Level::WARN),
            "fatal" | "panic" => Ok(tracing::Level::ERROR),
            level => level.parse(),
        },
    )
}
