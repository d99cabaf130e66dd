//! Settings of the rules: their sources, and how they are read and applied.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use clap::{ArgAction, Args};

use super::path::path;
use super::{SettingsError, named, switch, whole};
use crate::engine::algorithm::Algorithm;
use crate::engine::denied_body::{DeniedBody, Format};
use crate::engine::plan::{PlanOptions, Unknown};
use crate::engine::rules::options::denied_body;
use crate::engine::rules::{Defaults, FailureMode, FixedWindows, Months};
use crate::sources::files::load::{LoadOptions, MAX_FILE_BYTES, NamedText, Sources};

/// Source of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigType {
    /// Files.
    File,
    /// A management server, by Envoy's discovery protocol.
    GrpcXdsSotw,
}

impl ConfigType {
    const ALL: [ConfigType; 2] = [ConfigType::File, ConfigType::GrpcXdsSotw];

    /// Returns the name, as in `envoyproxy/ratelimit`.
    const fn name(self) -> &'static str {
        match self {
            ConfigType::File => "FILE",
            ConfigType::GrpcXdsSotw => "GRPC_XDS_SOTW",
        }
    }
}

/// Sources of the rules.
#[derive(Args, Clone, Debug)]
pub struct RulesSettings {
    /// Source of the rules: files, or a management server such as Envoy Gateway (xDS). The settings of the latter begin
    /// with CONFIG_GRPC_XDS and XDS_CLIENT.
    #[arg(long, env = "CONFIG_TYPE", value_name = "TYPE", default_value = "FILE", help_heading = "Rules",
        ignore_case = true, value_parser = named(&ConfigType::ALL, ConfigType::name))]
    pub config_type: ConfigType,

    /// File or folder of rules. May be given several times; in the environment, separated by commas.
    #[arg(long, env = "RULES", value_name = "PATH", value_delimiter = ',', help_heading = "Rules",
        value_parser = path)]
    pub rules: Vec<PathBuf>,

    /// First folder of the layout of envoyproxy/ratelimit. Rules are read from ROOT/SUBDIRECTORY/APPDIRECTORY if this
    /// or RUNTIME_SUBDIRECTORY is set. Unset: /srv/runtime_data/current.
    #[arg(long, env = "RUNTIME_ROOT", value_name = "PATH", help_heading = "Rules",
        value_parser = path)]
    pub runtime_root: Option<PathBuf>,

    /// Folder below RUNTIME_ROOT.
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_name = "PATH", help_heading = "Rules")]
    pub runtime_subdirectory: Option<String>,

    /// Folder below RUNTIME_SUBDIRECTORY.
    #[arg(long, env = "RUNTIME_APPDIRECTORY", value_name = "PATH", default_value = "config", help_heading = "Rules")]
    pub runtime_appdirectory: String,

    /// Rules in the binary, in place of files. Only `tollgate demo` has some.
    #[arg(skip)]
    pub built_in: Vec<NamedText>,
}

/// Settings that change the meaning of rules files: serving and checking must agree on them.
#[derive(Args, Clone, Copy, Debug)]
pub struct Reading {
    /// Allow several files with the same domain. Their top levels are joined in the order of the file names.
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub merge_domain_config: bool,

    /// Longest rules file in bytes, and the most bytes that aliases may add to one. Reading a file takes about five
    /// times as much memory.
    #[arg(long, env = "MAX_RULES_FILE_BYTES", value_name = "BYTES", default_value_t = MAX_FILE_BYTES,
        help_heading = "Rules", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_rules_file_bytes: u64,

    /// Default algorithm of limits that set none. fixed_window makes a file behave as in envoyproxy/ratelimit.
    #[arg(long, env = "DEFAULT_ALGORITHM", value_name = "NAME", default_value = "sliding_window",
        help_heading = "Rules",
        value_parser = algorithm_parser())]
    pub default_algorithm: Algorithm,

    /// Do not charge denied requests to a fixed_window, unless the limit sets count_denied. Limits with another
    /// algorithm always behave like this.
    #[arg(long, env = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", help_heading = "Rules", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub stop_cache_key_increment_when_overlimit: bool,

    /// Use calendar months in UTC for a fixed_window with unit month, unless the limit sets a time_zone. If off, a
    /// month has 30 days.
    #[arg(long, env = "USE_CALENDAR_MONTH_RATE_LIMIT", help_heading = "Rules", value_parser = switch(),
        ignore_case = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        default_value = "false")]
    pub use_calendar_month_rate_limit: bool,

    /// Answer of limits that set no failure_mode while the store is unavailable: open lets requests pass, closed denies
    /// them, local counts in this process, and error fails the call, which leaves the decision to Envoy's
    /// failure_mode_deny. With error, calls also fail until a management server has sent the first rules. Default when
    /// the process is started as `ratelimit`: error.
    #[arg(long, env = "FAILURE_MODE", value_name = "MODE", default_value = "open", help_heading = "Rules",
        value_parser = named(&FailureMode::ALL, FailureMode::name))]
    pub failure_mode: FailureMode,

    /// Body of the answer to a denied request, for limits and files that set no denied_body: problem for problem
    /// details, openai or anthropic for the errors of their APIs. Envoy sends it with its content type.
    #[arg(long, env = "DENIED_BODY", value_name = "FORMAT", default_value = "none", help_heading = "Rules",
        value_parser = denied_body_parser())]
    pub denied_body: DeniedBodyFormat,
}

/// The ready format of bodies, or none.
pub type DeniedBodyFormat = NoneOr<Format>;

/// A value that may be absent. The parser of arguments takes an `Option` for an argument that may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoneOr<T> {
    /// None.
    None,
    /// The value.
    Some(T),
}

/// Settings for all rules together.
#[derive(Args, Clone, Copy, Debug)]
pub struct Deciding {
    /// Start even if the rules are invalid or missing. With files, the health check reports NOT_SERVING until they are
    /// valid. With a management server, the health check reports SERVING before the first rules, and requests get the
    /// answer of UNKNOWN_DOMAIN, or fail if FAILURE_MODE is error.
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG",
        help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub force_start_without_initial_config: bool,

    /// Report NOT_SERVING also while the rules in force have no domain.
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub healthy_with_at_least_one_config_loaded: bool,

    /// Number of instances that share the traffic. Failure mode local, own_share in rules, candidate rules and /what-if
    /// give each instance an equal part of a limit. The results of candidate rules and /what-if are correct only for
    /// this number.
    #[arg(long, env = "EXPECTED_REPLICAS", value_name = "NUMBER", default_value = "1", help_heading = "Rules",
        value_parser = whole(1..=u32::MAX))]
    pub expected_replicas: u32,

    /// Answer to requests for a domain that is not in the rules: pass or deny. Also used while no rules are in force.
    #[arg(long, env = "UNKNOWN_DOMAIN", value_name = "ANSWER", default_value = "pass", help_heading = "Rules",
        value_parser = named(&Unknown::ALL, Unknown::name))]
    pub unknown_domain: Unknown,

    /// Answer to requests with a descriptor that reaches no rule. pass ignores this descriptor; deny denies the whole
    /// request, and charges only limits that count denials.
    #[arg(long, env = "UNKNOWN_DESCRIPTOR", value_name = "ANSWER", default_value = "pass", help_heading = "Rules",
        value_parser = named(&Unknown::ALL, Unknown::name))]
    pub unknown_descriptor: Unknown,

    /// Deny no request. Requests that would have been denied are counted and reported in the statuses.
    #[arg(long, env = "SHADOW_MODE", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub shadow_mode: bool,

    /// Treat every rule as one with quota_mode: a request is denied only if all rules that apply to it are over their
    /// limits, apart from those in shadow mode. A descriptor without limits does not count.
    #[arg(long, env = "QUOTA_MODE", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub quota_mode: bool,
}

impl RulesSettings {
    /// Returns the sources for the loader.
    ///
    /// # Errors
    /// Fails if no file is named.
    pub fn sources(&self) -> Result<Sources, SettingsError> {
        if !self.rules.is_empty() {
            return Ok(Sources { paths: self.rules.clone() });
        }
        if !self.built_in.is_empty() {
            return Ok(Sources::default());
        }
        // envoyproxy/ratelimit reads no files then, even if some are named.
        if self.config_type == ConfigType::GrpcXdsSotw {
            return Err(SettingsError::RulesElsewhere);
        }
        if self.runtime_root.is_none() && self.runtime_subdirectory.is_none() {
            return Err(SettingsError::NoRules);
        }
        let root = self.runtime_root.clone().unwrap_or_else(|| "/srv/runtime_data/current".into());
        let subdirectory = self.runtime_subdirectory.clone().unwrap_or_default();
        Ok(Sources::runtime(root, &subdirectory, &self.runtime_appdirectory))
    }
}

impl Reading {
    /// Returns whether limits that set no algorithm count by a fixed window.
    pub fn counts_by_fixed_windows(&self) -> bool {
        self.default_algorithm == Algorithm::FixedWindow
    }

    /// Returns the options for the loader.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            defaults: Defaults {
                algorithm: self.default_algorithm,
                fixed_windows: match self.stop_cache_key_increment_when_overlimit {
                    true => FixedWindows::CountPassed,
                    false => FixedWindows::CountDenied,
                },
                months: match self.use_calendar_month_rate_limit {
                    true => Months::Calendar,
                    false => Months::ThirtyDays,
                },
                failure_mode: self.failure_mode,
                denied_body: match self.denied_body {
                    NoneOr::None => None,
                    NoneOr::Some(format) => Some(Arc::new(DeniedBody::Ready(format))),
                },
            },
            merge_domains: self.merge_domain_config,
            max_file_bytes: self.max_rules_file_bytes,
        }
    }
}

impl Deciding {
    /// Returns the options for planning requests, with default names of counters.
    pub fn plan_options(&self) -> PlanOptions {
        PlanOptions {
            shadow_mode: self.shadow_mode,
            quota_mode: self.quota_mode,
            expected_replicas: self.expected_replicas,
            unknown_domain: self.unknown_domain,
            unknown_descriptor: self.unknown_descriptor,
            ..PlanOptions::default()
        }
    }
}

fn denied_body_parser() -> impl clap::builder::TypedValueParser<Value = DeniedBodyFormat> {
    let names = [denied_body::NONE].into_iter().chain(Format::ALL.map(Format::name));
    PossibleValuesParser::new(names).map(|name| {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.map_or(NoneOr::None, NoneOr::Some)
    })
}

fn algorithm_parser() -> impl clap::builder::TypedValueParser<Value = Algorithm> {
    let value = |algorithm: &Algorithm| PossibleValue::new(algorithm.name()).hide(algorithm.no_default().is_some());
    PossibleValuesParser::new(Algorithm::ALL.iter().map(value)).try_map(|name| {
        let found = Algorithm::ALL.iter().copied().find(|algorithm| algorithm.name() == name);
        let algorithm = found.ok_or("unknown algorithm")?;
        algorithm.no_default().map_or(Ok(algorithm), Err)
    })
}
