//! The statistics that have `envoyproxy/ratelimit`'s names, and where they go.

use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::links::port;
use super::{Environment, SettingsError, positive_duration, switch, whole};
use crate::metrics::reference::{Exposition, Mapping, TimeUnit, escaped, is_reserved};
use crate::statsd::{Dialect, Mogrifier, StatsdConfig, Transport};

/// The statistics that have `envoyproxy/ratelimit`'s names, and where they go.
#[derive(Args, Clone, Debug)]
pub struct StatisticsSettings {
    /// Show the statistics of envoyproxy/ratelimit to Prometheus, with Tollgate's own metrics, on a port of their own.
    #[arg(long, env = "USE_PROMETHEUS", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_prometheus: bool,

    /// Where that port listens: address:port, or :port for every address.
    #[arg(long, env = "PROMETHEUS_ADDR", value_name = "ADDRESS", default_value = ":9090", help_heading = "Statistics",
        value_parser = address)]
    pub prometheus_addr: Address,

    /// And the path there.
    #[arg(long, env = "PROMETHEUS_PATH", value_name = "PATH", default_value = "/metrics", help_heading = "Statistics",
        value_parser = path)]
    pub prometheus_path: String,

    /// A file of statsd_exporter with names and labels for Prometheus, in place of those that are built in. One that
    /// is not there is told at the start, and the built-in names stay.
    #[arg(long, env = "PROMETHEUS_MAPPER_YAML", value_name = "FILE", help_heading = "Statistics")]
    pub prometheus_mapper_yaml: Option<PathBuf>,

    /// Show ratelimit_service_response_time_seconds in milliseconds, as some dashboards expect it.
    #[arg(long, env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", help_heading = "Statistics",
        value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub prometheus_response_time_as_milliseconds: bool,

    /// Send the statistics to a statsd server. Unset: where STATSD_HOST is set, and USE_DOG_STATSD is not.
    #[arg(long, env = "USE_STATSD", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub use_statsd: Option<bool>,

    /// Where the statsd or DogStatsD server is. Unset: localhost.
    #[arg(long, env = "STATSD_HOST", value_name = "ADDRESS", help_heading = "Statistics")]
    pub statsd_host: Option<String>,

    /// And its port.
    #[arg(long, env = "STATSD_PORT", value_name = "PORT", default_value = "8125", help_heading = "Statistics",
        value_parser = port("STATSD_PORT"))]
    pub statsd_port: u16,

    /// How lines go to a statsd server. DogStatsD always takes udp.
    #[arg(
        long,
        env = "STATSD_PROTOCOL",
        value_name = "PROTOCOL",
        default_value = "tcp",
        ignore_case = true,
        help_heading = "Statistics"
    )]
    pub statsd_protocol: Protocol,

    /// Send the statistics to a DogStatsD server, with tags.
    #[arg(long, env = "USE_DOG_STATSD", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_dog_statsd: bool,

    /// Which mogrifiers make names and tags for DogStatsD, separated by commas: the first that matches. For each N of
    /// them there is DOG_STATSD_MOGRIFIER_N_PATTERN, a regular expression, DOG_STATSD_MOGRIFIER_N_NAME, and
    /// DOG_STATSD_MOGRIFIER_N_TAGS (tag:value,...), in which $1 is what the first parentheses match.
    #[arg(
        long,
        env = "USE_DOG_STATSD_MOGRIFIERS",
        value_name = "NAMES",
        value_delimiter = ',',
        help_heading = "Statistics"
    )]
    pub use_dog_statsd_mogrifiers: Vec<String>,

    /// Tags of every statistic: tag:value,tag:value. Prometheus has them as labels.
    #[arg(long, env = "EXTRA_TAGS", value_name = "TAGS", value_delimiter = ',', value_parser = tag,
        help_heading = "Statistics")]
    pub extra_tags: Vec<(String, String)>,

    /// How often statistics are sent.
    #[arg(long, env = "STATS_FLUSH_INTERVAL", value_name = "DURATION", default_value = "10s",
        help_heading = "Statistics", value_parser = positive_duration)]
    pub stats_flush_interval: Duration,

    /// Have no statistics of envoyproxy/ratelimit, whatever the other settings say. Tollgate's own metrics stay.
    #[arg(long, env = "DISABLE_STATS", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub disable_stats: bool,

    /// The most paths that requests' values make by detailed_metric and value_to_metric, and as many again by limits
    /// that requests bring along and domains that no rules have. A path has 5 or 6 series. For one more the path that
    /// was used least recently goes.
    #[arg(long, env = "MAX_VALUE_SERIES", value_name = "NUMBER", default_value = "10000", help_heading = "Statistics",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub max_value_series: u32,
}

/// Where a port listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// An address; `None`: every one.
    pub host: Option<String>,
    /// Its port.
    pub port: u16,
}

/// How lines go to a statsd server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// One connection.
    Tcp,
    /// Datagrams.
    Udp,
}

impl StatisticsSettings {
    /// Where the statistics are shown to Prometheus; `None`: nowhere.
    pub fn prometheus(&self) -> Option<&Address> {
        (self.use_prometheus && !self.disable_stats).then_some(&self.prometheus_addr)
    }

    /// And how, as the file with names says, if it is there.
    ///
    /// # Errors
    /// Where the file is none of its kind, or asks for what is not there, and where a tag can be no label.
    pub fn exposition(&self) -> Result<Exposition, SettingsError> {
        if let Some((tag, _)) = self.extra_tags.iter().find(|(tag, _)| is_reserved(&escaped(tag))) {
            return Err(SettingsError::ExtraTag(tag.clone()));
        }
        let response_times = match self.prometheus_response_time_as_milliseconds {
            true => TimeUnit::Milliseconds,
            false => TimeUnit::Seconds,
        };
        let wrong = |path: &Path, reason: String| SettingsError::Mapping(format!("{}: {reason}", path.display()));
        let mapping = match self.prometheus_mapper_yaml.as_deref().map(|path| (path, fs::read_to_string(path))) {
            None => None,
            Some((_, Err(error))) if error.kind() == ErrorKind::NotFound => None,
            Some((path, Err(error))) => return Err(wrong(path, error.to_string())),
            Some((path, Ok(text))) => Some(Mapping::read(&text).map_err(|error| wrong(path, error.to_string()))?),
        };
        Ok(Exposition::new(&self.extra_tags, response_times, mapping))
    }

    /// The file with names, where it is not there.
    pub fn missing_mapping(&self) -> Option<&Path> {
        let path = self.prometheus_mapper_yaml.as_deref().filter(|_| self.prometheus().is_some());
        path.filter(|path| matches!(path.try_exists(), Ok(false)))
    }

    /// The server that they are sent to; `None`: none.
    ///
    /// # Errors
    /// Where the settings contradict each other.
    pub fn statsd(&self, environment: &Environment) -> Result<Option<StatsdConfig>, SettingsError> {
        let plain = self.use_statsd.unwrap_or(self.statsd_host.is_some() && !self.use_dog_statsd);
        let (dialect, transport) = match (plain, self.use_dog_statsd) {
            _ if self.disable_stats => return Ok(None),
            (false, false) => return Ok(None),
            (true, true) => return Err(SettingsError::TwoStatsds),
            (true, false) => (
                Dialect::Statsd,
                match self.statsd_protocol {
                    Protocol::Tcp => Transport::Tcp,
                    Protocol::Udp => Transport::Udp,
                },
            ),
            (false, true) => (Dialect::DogStatsd(self.mogrifiers(environment)?), Transport::Udp),
        };
        Ok(Some(StatsdConfig {
            host: self.statsd_host.clone().unwrap_or_else(|| "localhost".to_owned()),
            port: self.statsd_port,
            transport,
            dialect,
            extra_tags: self.extra_tags.clone(),
            flush_interval: self.stats_flush_interval,
        }))
    }

    /// The most series of values, where anybody sees them.
    pub fn value_series(&self) -> Option<NonZeroUsize> {
        let is_seen =
            self.use_prometheus || self.use_dog_statsd || self.use_statsd.unwrap_or(self.statsd_host.is_some());
        NonZeroUsize::new(self.max_value_series as usize).filter(|_| is_seen && !self.disable_stats)
    }

    fn mogrifiers(&self, environment: &Environment) -> Result<Vec<Mogrifier>, SettingsError> {
        let names = self.use_dog_statsd_mogrifiers.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
        let mogrifier = |name: &str| {
            let variable = |part| format!("DOG_STATSD_MOGRIFIER_{}_{part}", name.to_uppercase());
            let wrong = |part, reason: String| SettingsError::Mogrifier(format!("{}: {reason}", variable(part)));
            let value = |part| environment.get(&variable(part));
            let needed = |part| value(part).ok_or_else(|| wrong(part, "must be set".to_owned()));
            let pairs = value("TAGS").unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty());
            let tags = pairs.map(tag).collect::<Result<_, _>>().map_err(|reason| wrong("TAGS", reason))?;
            let (pattern, name) = (needed("PATTERN")?, needed("NAME")?);
            Mogrifier::new(pattern, name, tags).map_err(|error| wrong("PATTERN", error.to_string()))
        };
        names.map(mogrifier).collect()
    }
}

/// `address:port`, `:port` or `[address]:port`.
fn address(text: &str) -> Result<Address, String> {
    let wrong = || "must be address:port, or :port for every address".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Address { host: Some(host.to_owned()).filter(|host| !host.is_empty()), port })
}

fn path(text: &str) -> Result<String, String> {
    let is_usual = |char: char| char.is_ascii_alphanumeric() || "/-_.~".contains(char);
    match text.starts_with('/') && text.chars().all(is_usual) {
        true => Ok(text.to_owned()),
        false => Err("must be a path, such as /metrics".into()),
    }
}

/// `tag:value`.
fn tag(text: &str) -> Result<(String, String), String> {
    match text.trim().split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a tag is tag:value".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_go_takes_for_one() {
        let address = |text| address(text).map(|Address { host, port }| (host.unwrap_or_default(), port));
        for (text, host, port) in
            [(":9090", "", 9090), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:2", "::1", 2), ("a.example:0", "a.example", 0)]
        {
            assert_eq!(address(text), Ok((host.to_owned(), port)));
        }
        for text in ["", "9090", "a:", "a:70000"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
