//! Any number of rules on one level, each for one user.

use std::sync::Arc;
use std::time::Duration;

use tollgate::engine::algorithm::{Algorithm, Limit, Options};
use tollgate::engine::descriptor::{Entry, Role};
use tollgate::engine::rules::options::RuleOptions;
use tollgate::engine::rules::{
    Allowance, Defaults, DescriptorConfig, DomainConfig, FailureMode, LimitConfig, Place, RuleConfig, RuleLimitConfig,
    Rules, SettingOrigins,
};

/// Returns this many rules in the domain `bench`.
pub fn of_one_level(rules: usize) -> Rules {
    let limits = vec![limit()];
    let rule = || RuleConfig { role: Role::Enforced, metadata: None, limits: limits.clone() };
    domain((0..rules).flat_map(entries).map(|entry| descriptor(entry, Some(rule()), Vec::new())).collect())
}

/// Returns a limit of five per minute.
pub fn limit() -> RuleLimitConfig {
    let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(60), Options::default());
    let config = LimitConfig {
        origins: SettingOrigins::default(),
        allowance: Allowance::Limited(limit.expect("there is such a limit")),
        failure_mode: FailureMode::Open,
        options: RuleOptions::default(),
        replaces: Vec::new(),
    };
    RuleLimitConfig { line: None, name: None, config: Arc::new(config) }
}

/// A node of the tree.
pub fn descriptor(entry: Entry, rule: Option<RuleConfig>, descriptors: Vec<DescriptorConfig>) -> DescriptorConfig {
    DescriptorConfig {
        place: Place::default(),
        key: entry.key.into(),
        value: Some(entry.value.into()),
        share_threshold: false,
        detailed_metric: false,
        value_to_metric: false,
        rule,
        descriptors,
    }
}

/// The domain `bench`.
pub fn domain(descriptors: Vec<DescriptorConfig>) -> Rules {
    let (name, defaults) = ("bench".into(), Defaults::default());
    Rules::new(vec![DomainConfig { name, defaults, expect: None, origins: Vec::new(), descriptors }])
}

/// Returns the entries of a user's request.
pub fn entries(user: usize) -> Vec<Entry> {
    vec![Entry { key: "user".into(), value: format!("user-{user:07}").into() }]
}
