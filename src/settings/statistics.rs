//! Settings of the statistics with the names of `envoyproxy/ratelimit`: their destinations and format.

use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::links::port;
use super::path::path;
use super::tolerated::positive_or_default;
use super::{Environment, SettingsError, switch, whole};
use crate::files::refuse_pipe;
use crate::metrics::reference::{Exposition, Mapping, TimeUnit, escaped, is_reserved};
use crate::metrics::statsd::{Dialect, Mogrifier, StatsdConfig, Transport};

/// Settings of the statistics with the names of `envoyproxy/ratelimit`: their destinations and format.
#[derive(Args, Clone, Debug)]
pub struct StatisticsSettings {
    /// Serve the statistics of envoyproxy/ratelimit to Prometheus, with Tollgate's own metrics, on a separate port.
    #[arg(long, env = "USE_PROMETHEUS", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_prometheus: bool,

    /// Address of the port of USE_PROMETHEUS: address:port, or :port for every address.
    #[arg(long, env = "PROMETHEUS_ADDR", value_name = "ADDRESS", default_value = ":9090", help_heading = "Statistics",
        value_parser = address)]
    pub prometheus_addr: Address,

    /// Path of the statistics on the port of USE_PROMETHEUS.
    #[arg(long, env = "PROMETHEUS_PATH", value_name = "PATH", default_value = "/metrics", help_heading = "Statistics",
        value_parser = path_of_url)]
    pub prometheus_path: String,

    /// File of statsd_exporter with names and labels for Prometheus, in place of the built-in ones. If the file is
    /// missing, the start logs this and the built-in names are used.
    #[arg(long, env = "PROMETHEUS_MAPPER_YAML", value_name = "FILE", help_heading = "Statistics",
        value_parser = path)]
    pub prometheus_mapper_yaml: Option<PathBuf>,

    /// Report ratelimit_service_response_time_seconds in milliseconds, as some dashboards expect.
    #[arg(long, env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", help_heading = "Statistics",
        value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub prometheus_response_time_as_milliseconds: bool,

    /// Send the statistics to a statsd server. Unset: on if STATSD_HOST is set and USE_DOG_STATSD is off.
    #[arg(long, env = "USE_STATSD", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub use_statsd: Option<bool>,

    /// Host of the statsd or DogStatsD server. Unset: localhost.
    #[arg(long, env = "STATSD_HOST", value_name = "ADDRESS", help_heading = "Statistics")]
    pub statsd_host: Option<String>,

    /// Port of the statsd or DogStatsD server.
    #[arg(long, env = "STATSD_PORT", value_name = "PORT", default_value = "8125", help_heading = "Statistics",
        value_parser = port("STATSD_PORT"))]
    pub statsd_port: u16,

    /// Protocol to the statsd server. DogStatsD always uses udp.
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

    /// Names of mogrifiers, separated by commas, which turn statistics into names and tags for DogStatsD; the first
    /// that matches is used. For each N of them, DOG_STATSD_MOGRIFIER_N_PATTERN is a regular expression,
    /// DOG_STATSD_MOGRIFIER_N_NAME the name, and DOG_STATSD_MOGRIFIER_N_TAGS the tags (tag:value,...), in which $1 is
    /// the match of the first parentheses.
    #[arg(
        long,
        env = "USE_DOG_STATSD_MOGRIFIERS",
        value_name = "NAMES",
        value_delimiter = ',',
        help_heading = "Statistics"
    )]
    pub use_dog_statsd_mogrifiers: Vec<String>,

    /// Tags of every statistic: tag:value,tag:value. Prometheus gets them as labels.
    #[arg(long, env = "EXTRA_TAGS", value_name = "TAGS", value_delimiter = ',', value_parser = tag,
        help_heading = "Statistics")]
    pub extra_tags: Vec<(String, String)>,

    /// Interval at which statistics are sent.
    #[arg(long, env = "STATS_FLUSH_INTERVAL", value_name = "DURATION", default_value = "10s",
        help_heading = "Statistics", value_parser = positive_or_default("STATS_FLUSH_INTERVAL"))]
    pub stats_flush_interval: Duration,

    /// Turn off the statistics of envoyproxy/ratelimit, whatever the other settings say. Tollgate's own metrics remain.
    #[arg(long, env = "DISABLE_STATS", help_heading = "Statistics", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub disable_stats: bool,

    /// Most paths that detailed_metric and value_to_metric make from values of requests, and separately the most that
    /// limits in requests and domains without rules make. Each path has 5 or 6 series. At the bound, a new path
    /// replaces the least recently used one.
    #[arg(long, env = "MAX_VALUE_SERIES", value_name = "NUMBER", default_value = "10000", help_heading = "Statistics",
        value_parser = whole::<u32>(1..=1_000_000))]
    pub max_value_series: u32,
}

/// Address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// An address; `None` for every address.
    pub host: Option<String>,
    /// Its port.
    pub port: u16,
}

/// Protocol to a statsd server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// One connection.
    Tcp,
    /// Datagrams.
    Udp,
}

impl StatisticsSettings {
    /// Returns the address at which statistics are served to Prometheus; `None` if they are not.
    pub fn prometheus(&self) -> Option<&Address> {
        (self.use_prometheus && !self.disable_stats).then_some(&self.prometheus_addr)
    }

    /// Returns the names and labels for Prometheus, by the mapping file if it exists.
    ///
    /// # Errors
    /// Fails if the file is invalid or uses an unsupported feature, or if a tag cannot be a label.
    pub fn exposition(&self) -> Result<Exposition, SettingsError> {
        if let Some((tag, _)) = self.extra_tags.iter().find(|(tag, _)| is_reserved(&escaped(tag))) {
            return Err(SettingsError::ExtraTag(tag.clone()));
        }
        let response_times = match self.prometheus_response_time_as_milliseconds {
            true => TimeUnit::Milliseconds,
            false => TimeUnit::Seconds,
        };
        let wrong = |path: &Path, reason: String| SettingsError::Mapping(format!("{}: {reason}", path.display()));
        let read = |path| refuse_pipe(path).and_then(|()| fs::read_to_string(path));
        let mapping = match self.prometheus_mapper_yaml.as_deref().map(|path| (path, read(path))) {
            None => None,
            Some((_, Err(error))) if error.kind() == ErrorKind::NotFound => None,
            Some((path, Err(error))) => return Err(wrong(path, error.to_string())),
            Some((path, Ok(text))) => Some(Mapping::read(&text).map_err(|error| wrong(path, error.to_string()))?),
        };
        Ok(Exposition::new(&self.extra_tags, response_times, mapping))
    }

    /// Returns the mapping file if it is missing.
    pub fn missing_mapping(&self) -> Option<&Path> {
        let path = self.prometheus_mapper_yaml.as_deref().filter(|_| self.prometheus().is_some());
        path.filter(|path| matches!(path.try_exists(), Ok(false)))
    }

    /// Returns the server to send statistics to; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the settings conflict.
    pub fn statsd(&self, environment: &Environment) -> Result<Option<StatsdConfig>, SettingsError> {
        let plain = self.uses_plain_statsd();
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

    /// Returns whether statistics go to a server of either dialect, unless DISABLE_STATS is on.
    pub(super) fn sends_to_statsd(&self) -> bool {
        self.uses_plain_statsd() || self.use_dog_statsd
    }

    fn uses_plain_statsd(&self) -> bool {
        self.use_statsd.unwrap_or(self.statsd_host.is_some() && !self.use_dog_statsd)
    }

    /// Returns the most series of values; `None` if no destination shows them.
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

/// Parses `address:port`, `:port` or `[address]:port`.
fn address(text: &str) -> Result<Address, String> {
    let wrong = || "must be address:port, or :port for every address".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Address { host: Some(host.to_owned()).filter(|host| !host.is_empty()), port })
}

fn path_of_url(text: &str) -> Result<String, String> {
    let is_usual = |char: char| char.is_ascii_alphanumeric() || "/-_.~".contains(char);
    match text.starts_with('/') && text.chars().all(is_usual) {
        true => Ok(text.to_owned()),
        false => Err("must be a path, such as /metrics".into()),
    }
}

/// Parses `tag:value`.
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
