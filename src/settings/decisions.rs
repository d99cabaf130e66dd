//! Settings of records of single decisions: the decision log, the top keys and the requests kept for what-if.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};

use super::path::{is_off, is_on, path};
use super::{MIN_TOKEN, SettingsError, named, share, switch, whole};
use crate::files::refuse_pipe;
use crate::observe::decision_log::{Destination, Options, Rotation};
use crate::observe::redaction::{Shown, Values};

/// Settings of records of single decisions.
#[derive(Args, Clone, Debug)]
pub struct DecisionSettings {
    /// Destination of the decision log: off, stdout, or the path of a file. It has a JSON line for each limit that
    /// denies a request, or would in shadow mode.
    #[arg(long, env = "DECISION_LOG", value_name = "PATH", default_value = "off", help_heading = "Decisions",
        value_parser = place)]
    pub decision_log: LogPlace,

    /// Share of requests, from 0 to 1, for which each limit writes a line, whatever its answer. Such lines are marked
    /// as sampled.
    #[arg(long, env = "DECISION_LOG_SAMPLE", value_name = "SHARE", default_value = "0", help_heading = "Decisions",
        value_parser = share)]
    pub decision_log_sample: f64,

    /// How the decision log shows the values of descriptors: as they are, hashed with VALUES_KEY, or not at all.
    /// Applies as well to values in the path of a rule.
    #[arg(long, env = "DECISION_LOG_VALUES", value_name = "HOW", default_value = "plain", ignore_case = true,
        help_heading = "Decisions", value_parser = named(&Shown::ALL, Shown::name))]
    pub decision_log_values: Shown,

    /// Most lines of the decision log per second: at most half of them samples, and at most a tenth denials of the same
    /// limit. Further lines are dropped and counted.
    #[arg(long, env = "DECISION_LOG_LINES_PER_SECOND", value_name = "NUMBER", default_value = "1000",
        help_heading = "Decisions", value_parser = whole::<NonZeroU32>(NonZeroU32::MIN..=NonZeroU32::MAX))]
    pub decision_log_lines_per_second: NonZeroU32,

    /// Size in bytes at which the file of the decision log is rotated: it becomes PATH.1, PATH.1 becomes PATH.2 and so
    /// on, and a new file is started.
    #[arg(long, env = "DECISION_LOG_FILE_BYTES", value_name = "BYTES", default_value = "104857600",
        help_heading = "Decisions", value_parser = whole::<u64>(1_024..=u64::MAX))]
    pub decision_log_file_bytes: u64,

    /// Number of rotated files of the decision log to keep.
    #[arg(long, env = "DECISION_LOG_FILES", value_name = "NUMBER", default_value = "5", help_heading = "Decisions",
        value_parser = whole::<u32>(0..=1_000))]
    pub decision_log_files: u32,

    /// Count the hits of the top keys of each rule, for `tollgate top` and /top. Takes at most 32 MiB.
    #[arg(long, env = "TOP_KEYS", help_heading = "Decisions", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub top_keys: bool,

    /// How top keys, the examples of candidate rules and the requests kept by WHAT_IF_REQUESTS show the values of
    /// descriptors: as they are, hashed with VALUES_KEY, or not at all. Applies as well to /adjustments for clients
    /// that send the ADMIN_READ_TOKEN.
    #[arg(long, env = "TOP_KEYS_VALUES", value_name = "HOW", default_value = "plain", ignore_case = true,
        help_heading = "Decisions", value_parser = named(&Shown::ALL, Shown::name))]
    pub top_keys_values: Shown,

    /// Number of recent requests to keep in memory, with 100 bytes each: at least 1 MiB, at most 8. /what-if, previews
    /// of adjustments and the console replay them. 0 keeps none.
    #[arg(long, env = "WHAT_IF_REQUESTS", value_name = "NUMBER", default_value = "20000", help_heading = "Decisions",
        value_parser = whole::<u32>(0..=10_000_000))]
    pub what_if_requests: u32,

    /// Largest share of keys for which requests are kept, from 0 to 1, with all requests of each key. A busy service
    /// keeps a smaller share, so that the requests cover five minutes. All instances select the same keys.
    #[arg(long, env = "WHAT_IF_SAMPLE", value_name = "SHARE", default_value = "1", help_heading = "Decisions",
        value_parser = share)]
    pub what_if_sample: f64,

    /// Key with which values are hashed, of at least 16 characters. Hashing likely values without the key does not
    /// reveal a value.
    #[arg(long, env = "VALUES_KEY", value_name = "KEY", hide_env_values = true, help_heading = "Decisions")]
    pub values_key: Option<String>,

    /// File with the key for hashing values. It takes precedence over VALUES_KEY.
    #[arg(long, env = "VALUES_KEY_FILE", value_name = "FILE", help_heading = "Decisions",
        value_parser = path)]
    pub values_key_file: Option<PathBuf>,
}

const ON_IS_NO_PLACE: &str = "say where to write it: stdout, or the path of a file such as /var/log/decisions.jsonl";

/// Destination of the decision log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// No decision log.
    Off,
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl DecisionSettings {
    /// Returns the options of the decision log; `None` if it is off.
    ///
    /// # Errors
    /// Fails if hashing is chosen without a valid key.
    pub fn decision_log(&self) -> Result<Option<Options>, SettingsError> {
        let destination = match &self.decision_log {
            LogPlace::Off => return Ok(None),
            LogPlace::Stdout => Destination::Stdout,
            LogPlace::File(path) => Destination::File(Rotation {
                path: path.clone(),
                bytes: self.decision_log_file_bytes,
                kept: self.decision_log_files,
            }),
        };
        Ok(Some(Options {
            destination,
            sample: self.decision_log_sample,
            values: self.values("DECISION_LOG_VALUES", self.decision_log_values)?,
            lines_per_second: self.decision_log_lines_per_second,
        }))
    }

    /// Returns the file of the decision log; `None` if it goes elsewhere.
    pub fn file(&self) -> Option<&Path> {
        let LogPlace::File(path) = &self.decision_log else { return None };
        Some(path)
    }

    /// Returns how top keys show values; `None` if top keys are not counted.
    ///
    /// # Errors
    /// Fails if hashing is chosen without a valid key.
    pub fn heavy_hitters(&self) -> Result<Option<Values>, SettingsError> {
        self.top_keys.then(|| self.reader_values()).transpose()
    }

    /// Returns how values are shown to people, and those of adjustments to clients that may only read.
    ///
    /// # Errors
    /// Fails if hashing is chosen without a valid key.
    pub fn reader_values(&self) -> Result<Values, SettingsError> {
        self.values("TOP_KEYS_VALUES", self.top_keys_values)
    }

    /// Returns the first error in these settings.
    pub fn errors(&self) -> Option<SettingsError> {
        self.decision_log().err().or_else(|| self.reader_values().err())
    }

    /// Returns how values are shown that a setting wants to be shown in this way.
    ///
    /// # Errors
    /// Fails if hashing is chosen without a valid key.
    pub(super) fn values(&self, setting: &'static str, shown: Shown) -> Result<Values, SettingsError> {
        match shown {
            Shown::Plain => Ok(Values::Plain),
            Shown::Hashed => self.key(setting).map(|key| Values::hashed(&key)),
            Shown::Hidden => Ok(Values::Hidden),
        }
    }

    fn key(&self, setting: &'static str) -> Result<String, SettingsError> {
        let key = match (&self.values_key_file, &self.values_key) {
            (Some(path), _) => read(path)?,
            (None, Some(key)) => key.clone(),
            (None, None) => return Err(SettingsError::NoValuesKey(setting)),
        };
        match key.chars().count() {
            short @ 0..MIN_TOKEN => {
                let given = if self.values_key_file.is_some() { "VALUES_KEY_FILE" } else { "VALUES_KEY" };
                Err(SettingsError::ShortValuesKey(given, short))
            }
            _ => Ok(key),
        }
    }
}

fn read(path: &Path) -> Result<String, SettingsError> {
    match refuse_pipe(path).and_then(|()| fs::read_to_string(path)) {
        Ok(key) => Ok(key.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(SettingsError::ValuesKeyFile(error.to_string())),
    }
}

fn place(text: &str) -> Result<LogPlace, String> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LogPlace::Off),
        "stdout" => Ok(LogPlace::Stdout),
        _ if is_off(text) => Err("to turn it off, write off; for a file of this name, ./ in front of it".to_owned()),
        _ if is_on(text) => Err(ON_IS_NO_PLACE.to_owned()),
        _ => Ok(LogPlace::File(text.into())),
    }
}
