//! Settings of the log.

use clap::Args;

use super::named;
use crate::telemetry::{LogFormat, LogLevels};

/// Settings of the log.
#[derive(Args, Clone, Debug)]
pub struct LogSettings {
    /// Lowest level of log lines to write: error, warn, info, debug (logs every request, with its values) or trace.
    /// Libraries log nothing unless they are named with a level: info,h2=warn,hyper=debug.
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVELS", default_value = "info", help_heading = "Logs")]
    pub log_level: LogLevels,

    /// Format of log lines: text for people, or json, one object per line.
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", default_value = "text", ignore_case = true,
        help_heading = "Logs", value_parser = named(&LogFormat::ALL, LogFormat::name))]
    pub log_format: LogFormat,
}
