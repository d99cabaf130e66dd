//! What is told of single decisions: the decision log, and the heaviest keys; and how values are shown there.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};

use super::{MIN_TOKEN, SettingsError, named, share, switch, whole};
use crate::decision_log::{Destination, Options, Rotation};
use crate::values::{Shown, Values};

/// What is told of single decisions.
#[derive(Args, Clone, Debug)]
pub struct DecisionSettings {
    /// Where a JSON line goes for each limit that denies a request, or would in shadow mode: off, stdout, or the path
    /// of a file.
    #[arg(long, env = "DECISION_LOG", value_name = "PATH", default_value = "off", help_heading = "Decisions",
        value_parser = place)]
    pub decision_log: LogPlace,

    /// The share of requests of which every limit has a line, whatever it says: from 0 to 1. Such lines say that they
    /// are sampled.
    #[arg(long, env = "DECISION_LOG_SAMPLE", value_name = "SHARE", default_value = "0", help_heading = "Decisions",
        value_parser = share)]
    pub decision_log_sample: f64,

    /// How lines show the values of descriptors: as they are, hashed by VALUES_KEY, or not at all. The values that a
    /// rule spells out are shown the same way in its path.
    #[arg(long, env = "DECISION_LOG_VALUES", value_name = "HOW", default_value = "plain", ignore_case = true,
        help_heading = "Decisions", value_parser = named(&Shown::ALL, Shown::name))]
    pub decision_log_values: Shown,

    /// The most lines in a second, of which samples take half at most; more are dropped, and counted.
    #[arg(long, env = "DECISION_LOG_LINES_PER_SECOND", value_name = "NUMBER", default_value = "1000",
        help_heading = "Decisions", value_parser = whole::<NonZeroU32>(NonZeroU32::MIN..=NonZeroU32::MAX))]
    pub decision_log_lines_per_second: NonZeroU32,

    /// When the file has so many bytes, it becomes PATH.1, PATH.1 becomes PATH.2 and so on, and a new one begins.
    #[arg(long, env = "DECISION_LOG_FILE_BYTES", value_name = "BYTES", default_value = "104857600",
        help_heading = "Decisions", value_parser = whole::<u64>(1_024..=u64::MAX))]
    pub decision_log_file_bytes: u64,

    /// So many of those of before are kept.
    #[arg(long, env = "DECISION_LOG_FILES", value_name = "NUMBER", default_value = "5", help_heading = "Decisions",
        value_parser = whole::<u32>(0..=1_000))]
    pub decision_log_files: u32,

    /// Count the heaviest keys of each rule, for `tollgate top` and /top: 32 MiB at most.
    #[arg(long, env = "TOP_KEYS", help_heading = "Decisions", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub top_keys: bool,

    /// How they show the values of descriptors, and /adjustments to who sends ADMIN_READ_TOKEN: as they are, hashed by
    /// VALUES_KEY, or not at all. So do the examples of candidate rules, and what is kept by WHAT_IF_REQUESTS.
    #[arg(long, env = "TOP_KEYS_VALUES", value_name = "HOW", default_value = "plain", ignore_case = true,
        help_heading = "Decisions", value_parser = named(&Shown::ALL, Shown::name))]
    pub top_keys_values: Shown,

    /// Keep so many of the last requests in memory, 8 MiB at most, to tell at /what-if and in the console what another
    /// number would do with them. 0 keeps none.
    #[arg(long, env = "WHAT_IF_REQUESTS", value_name = "NUMBER", default_value = "0", help_heading = "Decisions",
        value_parser = whole::<u32>(0..=10_000_000))]
    pub what_if_requests: u32,

    /// The share of keys whose requests are kept, from 0 to 1. A key is wholly in it or not at all, on every replica
    /// alike.
    #[arg(long, env = "WHAT_IF_SAMPLE", value_name = "SHARE", default_value = "0.1", help_heading = "Decisions",
        value_parser = share)]
    pub what_if_sample: f64,

    /// What values are hashed by, of at least 16 characters: who does not know it cannot try values until one has the
    /// same hash.
    #[arg(long, env = "VALUES_KEY", value_name = "KEY", hide_env_values = true, help_heading = "Decisions")]
    pub values_key: Option<String>,

    /// A file with that key, which goes before VALUES_KEY.
    #[arg(long, env = "VALUES_KEY_FILE", value_name = "FILE", help_heading = "Decisions")]
    pub values_key_file: Option<PathBuf>,
}

/// Where the decision log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// Nowhere.
    Off,
    /// To standard output.
    Stdout,
    /// To a file.
    File(PathBuf),
}

impl DecisionSettings {
    /// How the decision log is written; `None`: it is not.
    ///
    /// # Errors
    /// Where values are hashed by no key.
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

    /// How the heaviest keys are shown; `None`: they are not counted.
    ///
    /// # Errors
    /// Where values are hashed by no key.
    pub fn heavy_hitters(&self) -> Result<Option<Values>, SettingsError> {
        self.top_keys.then(|| self.reader_values()).transpose()
    }

    /// How values are shown to people, and those of adjustments to who may only read.
    ///
    /// # Errors
    /// Where they are hashed by no key.
    pub fn reader_values(&self) -> Result<Values, SettingsError> {
        self.values("TOP_KEYS_VALUES", self.top_keys_values)
    }

    /// What is wrong with them.
    pub fn errors(&self) -> Option<SettingsError> {
        self.decision_log().err().or_else(|| self.reader_values().err())
    }

    /// The settings that do nothing beside the others, and why.
    pub fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        const OF_LOG: [&str; 3] = ["DECISION_LOG_SAMPLE", "DECISION_LOG_VALUES", "DECISION_LOG_LINES_PER_SECOND"];
        const OF_FILE: [&str; 2] = ["DECISION_LOG_FILE_BYTES", "DECISION_LOG_FILES"];
        let is_off = self.decision_log == LogPlace::Off;
        let is_file = matches!(self.decision_log, LogPlace::File(_));
        let hashes = !is_off && self.decision_log_values == Shown::Hashed || self.top_keys_values == Shown::Hashed;
        let idle = |is_idle: bool, names: &'static [&'static str], why: &'static str| {
            names.iter().filter(move |_| is_idle).map(move |name| (*name, why))
        };
        let of_log = idle(is_off, &OF_LOG, "DECISION_LOG is off");
        let of_file = idle(!is_file, &OF_FILE, "DECISION_LOG is no file");
        let of_what_if = idle(self.what_if_requests == 0, &["WHAT_IF_SAMPLE"], "WHAT_IF_REQUESTS is 0");
        let of_key = idle(!hashes, &["VALUES_KEY", "VALUES_KEY_FILE"], "nothing is hashed");
        of_log.chain(of_file).chain(of_what_if).chain(of_key).collect()
    }

    fn values(&self, setting: &'static str, shown: Shown) -> Result<Values, SettingsError> {
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
    match fs::read_to_string(path) {
        Ok(key) => Ok(key.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(SettingsError::ValuesKeyFile(error.to_string())),
    }
}

fn place(text: &str) -> Result<LogPlace, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "off" => LogPlace::Off,
        "stdout" => LogPlace::Stdout,
        _ => LogPlace::File(text.into()),
    })
}
