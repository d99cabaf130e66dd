//! As many rules as one likes, beside each other on one level, each for one user.

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::{Algorithm, Limit, Options};
use tollgate::descriptor::{Entry, Role};
use tollgate::rules::{
    Allowance, Defaults, DescriptorConfig, DomainConfig, FailureMode, LimitConfig, Place, RuleConfig, RuleLimitConfig,
    Rules, Said,
};

/// So many rules, in the domain `bench`.
pub fn of_one_level(rules: usize) -> Rules {
    let limit = Limit::new(Algorithm::SlidingWindow, 5, Duration::from_secs(60), Options::default());
    let allowance = Allowance::Limited(limit.expect("there is such a limit"));
    let config = Arc::new(LimitConfig {
        said: Said::default(),
        allowance,
        failure_mode: FailureMode::Open,
        cost: 1,
        give_back: true,
        penalty: None,
        lease: None,
        replaces: Vec::new(),
    });
    let limit = RuleLimitConfig { line: None, name: None, config };
    let descriptors = (0..rules).flat_map(entries).map(|entry| DescriptorConfig {
        place: Place::default(),
        key: entry.key.into(),
        value: Some(entry.value.into()),
        share_threshold: false,
        rule: Some(RuleConfig { role: Role::Enforced, metadata: None, limits: vec![limit.clone()] }),
        descriptors: Vec::new(),
    });
    let (name, defaults) = ("bench".into(), Defaults::default());
    Rules::new(vec![DomainConfig { name, defaults, origins: Vec::new(), descriptors: descriptors.collect() }])
}

/// What a user's request asks about.
pub fn entries(user: usize) -> Vec<Entry> {
    vec![Entry { key: "user".into(), value: format!("user-{user:07}") }]
}
