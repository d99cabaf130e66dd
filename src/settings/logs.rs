//! What is logged.

use clap::Args;

use super::named;
use crate::telemetry::{LogFormat, LogLevels};

/// What is logged.
#[derive(Args, Clone, Debug)]
pub struct LogSettings {
    /// The least important log lines to write: error, warn, info, debug (logs every request, with its values) or
    /// trace. Libraries are silent unless they are named, each with its level: info,h2=warn,hyper=debug.
    #[arg(long, env = "LOG_LEVEL", value_name = "LEVELS", default_value = "info", help_heading = "Logs")]
    pub log_level: LogLevels,

    /// What log lines look like: text for people, json for machines, one object a line.
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", default_value = "text", ignore_case = true,
        help_heading = "Logs", value_parser = named(&LogFormat::ALL, LogFormat::name))]
    pub log_format: LogFormat,
}
