//! Envoy Gateway's policies: each header that a rule matches is a level of the tree, and an entry of the request.

use tollgate::engine::descriptor::{Entry, Role};
use tollgate::engine::rules::{DescriptorConfig, RuleConfig, Rules};

use super::rules::{descriptor, domain, limit};

/// The largest number of headers that a rule of Envoy Gateway can match.
const HEADERS: usize = 128;

/// Returns a policy of Envoy Gateway: this many rules with the maximum number of headers.
pub fn of_rules(rules: usize) -> Rules {
    let limits = vec![limit()];
    let chain = |rule| {
        entries(rule).into_iter().rev().fold(Vec::new(), |below: Vec<DescriptorConfig>, entry| {
            let rule = || RuleConfig { role: Role::Enforced, metadata: None, limits: limits.clone() };
            vec![descriptor(entry, below.is_empty().then(rule), below)]
        })
    };
    domain((0..rules).flat_map(chain).collect())
}

/// Returns the entries of a request with all headers of a rule.
pub fn entries(rule: usize) -> Vec<Entry> {
    let name = |header| format!("rule-{rule}-match-{header}");
    (0..HEADERS).map(name).map(|name| Entry { key: (&name).into(), value: name.into() }).collect()
}
