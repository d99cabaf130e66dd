//! Where rules are, and what changes their meaning.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use clap::{ArgAction, Args};

use super::{SettingsError, named, switch, whole};
use crate::algorithm::Algorithm;
use crate::plan::Unknown;
use crate::rules::load::{LoadOptions, MAX_FILE_BYTES, Sources};
use crate::rules::{Defaults, FailureMode};

/// What rules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigType {
    /// Files.
    File,
    /// A management server, by Envoy's discovery protocol.
    GrpcXdsSotw,
}

impl ConfigType {
    const ALL: [ConfigType; 2] = [ConfigType::File, ConfigType::GrpcXdsSotw];

    /// As `envoyproxy/ratelimit` names them.
    const fn name(self) -> &'static str {
        match self {
            ConfigType::File => "FILE",
            ConfigType::GrpcXdsSotw => "GRPC_XDS_SOTW",
        }
    }
}

/// Where rules are.
#[derive(Args, Clone, Debug)]
pub struct RulesSettings {
    /// What rules come from: files, or a management server such as Envoy Gateway (xDS), whose settings begin with
    /// CONFIG_GRPC_XDS and XDS_CLIENT.
    #[arg(long, env = "CONFIG_TYPE", value_name = "TYPE", default_value = "FILE", help_heading = "Rules",
        ignore_case = true, value_parser = named(&ConfigType::ALL, ConfigType::name))]
    pub config_type: ConfigType,

    /// A file or folder of rules. May be given several times; in the environment, separated by commas.
    #[arg(long, env = "RULES", value_name = "PATH", value_delimiter = ',', help_heading = "Rules")]
    pub rules: Vec<PathBuf>,

    /// Where the layout of envoyproxy/ratelimit begins: rules are read from ROOT/SUBDIRECTORY/APPDIRECTORY if this or
    /// RUNTIME_SUBDIRECTORY is set. Unset: /srv/runtime_data/current.
    #[arg(long, env = "RUNTIME_ROOT", value_name = "PATH", help_heading = "Rules")]
    pub runtime_root: Option<PathBuf>,

    /// The folder below RUNTIME_ROOT.
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_name = "PATH", help_heading = "Rules")]
    pub runtime_subdirectory: Option<String>,

    /// The folder below that.
    #[arg(long, env = "RUNTIME_APPDIRECTORY", value_name = "PATH", default_value = "config", help_heading = "Rules")]
    pub runtime_appdirectory: String,
}

/// What changes the meaning of rules files: serving and checking must agree on it.
#[derive(Args, Clone, Copy, Debug)]
pub struct Reading {
    /// Several files may have the same domain: their top levels are joined, in the order of the files' names.
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub merge_domain_config: bool,

    /// The longest rules file in bytes, and the most that aliases may add to one. Reading one takes some five times as
    /// much memory, for as long as it is being read.
    #[arg(long, env = "MAX_RULES_FILE_BYTES", value_name = "BYTES", default_value_t = MAX_FILE_BYTES,
        help_heading = "Rules", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_rules_file_bytes: u64,

    /// How a limit counts that does not say. fixed_window makes a file behave as in envoyproxy/ratelimit.
    #[arg(long, env = "DEFAULT_ALGORITHM", value_name = "NAME", default_value = "sliding_window",
        help_heading = "Rules",
        value_parser = algorithm_parser())]
    pub default_algorithm: Algorithm,

    /// What a limit that does not say answers while the store is unavailable: open lets pass, closed denies, local
    /// decides in this process, error fails the call so that Envoy's failure_mode_deny decides.
    #[arg(long, env = "FAILURE_MODE", value_name = "MODE", default_value = "open", help_heading = "Rules",
        value_parser = named(&FailureMode::ALL, FailureMode::name))]
    pub failure_mode: FailureMode,
}

/// What holds for all rules together.
#[derive(Args, Clone, Copy, Debug)]
pub struct Deciding {
    /// Start even where the rules are wrong or missing. Of files: the health check says NOT_SERVING until they are
    /// right. Of a management server: serve without rules until the first come.
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG",
        help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub force_start_without_initial_config: bool,

    /// Where rules without any domain are in force, health says NOT_SERVING, too.
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub healthy_with_at_least_one_config_loaded: bool,

    /// How many replicas share the traffic: failure mode local gives each its part of a limit, and so do candidate
    /// rules and /what-if, whose answers are true only if so many do.
    #[arg(long, env = "EXPECTED_REPLICAS", value_name = "NUMBER", default_value = "1", help_heading = "Rules",
        value_parser = whole(1..=u32::MAX))]
    pub expected_replicas: u32,

    /// What a request gets whose domain the rules do not have: it passes, or it is denied. Also while no rules are in
    /// force.
    #[arg(long, env = "UNKNOWN_DOMAIN", value_name = "ANSWER", default_value = "pass", help_heading = "Rules",
        value_parser = named(&Unknown::ALL, Unknown::name))]
    pub unknown_domain: Unknown,

    /// What a request gets of whose descriptors one reaches no rule: it passes as far as that descriptor is concerned,
    /// or the whole of it is denied, and charged to no limit but those that count denials.
    #[arg(long, env = "UNKNOWN_DESCRIPTOR", value_name = "ANSWER", default_value = "pass", help_heading = "Rules",
        value_parser = named(&Unknown::ALL, Unknown::name))]
    pub unknown_descriptor: Unknown,

    /// Deny nothing: what would have been denied is counted and reported in the statuses.
    #[arg(long, env = "SHADOW_MODE", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub shadow_mode: bool,

    /// Take every rule for one with quota_mode: a request is denied where all limits that apply to it deny it, but for
    /// those in shadow mode. A descriptor that no limit applies to does not count.
    #[arg(long, env = "QUOTA_MODE", help_heading = "Rules", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub quota_mode: bool,
}

impl RulesSettings {
    /// As the loader takes it.
    ///
    /// # Errors
    /// Where no file is named.
    pub fn sources(&self) -> Result<Sources, SettingsError> {
        if !self.rules.is_empty() {
            return Ok(Sources { paths: self.rules.clone() });
        }
        // envoyproxy/ratelimit reads no file then, whatever names one.
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
    /// A limit counts by a fixed window that does not say.
    pub fn counts_by_fixed_windows(&self) -> bool {
        self.default_algorithm == Algorithm::FixedWindow
    }

    /// As the loader takes it.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            defaults: Defaults { algorithm: self.default_algorithm, failure_mode: self.failure_mode },
            merge_domains: self.merge_domain_config,
            max_file_bytes: self.max_rules_file_bytes,
        }
    }
}

fn algorithm_parser() -> impl clap::builder::TypedValueParser<Value = Algorithm> {
    let value = |algorithm: &Algorithm| PossibleValue::new(algorithm.name()).hide(algorithm.no_default().is_some());
    PossibleValuesParser::new(Algorithm::ALL.iter().map(value)).try_map(|name| {
        let found = Algorithm::ALL.iter().copied().find(|algorithm| algorithm.name() == name);
        let algorithm = found.ok_or("unknown algorithm")?;
        algorithm.no_default().map_or(Ok(algorithm), Err)
    })
}
