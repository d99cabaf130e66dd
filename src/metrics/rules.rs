//! Metrics of the rules in force.

use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{IntGauge, IntGaugeVec};

use super::by_rule::RuleMetrics;
use super::declaration::Metrics;
use super::register::{Known, Register, itself};
use crate::engine::rules::Rules;

/// Metrics of the rules in force.
#[derive(Debug)]
pub(super) struct RulesMetrics {
    pub(super) loads: Known<&'static str, 2>,
    loaded: IntGauge,
    domains: IntGauge,
    info: IntGaugeVec,
    /// Whether the latest rules were rejected.
    pub(super) are_refused: AtomicBool,
}

impl RulesMetrics {
    pub(super) fn new(register: &Register<'_>) -> prometheus::Result<RulesMetrics> {
        Ok(RulesMetrics {
            loads: register.known(
                ("rules_loads_total", "Attempts to load rules, by result."),
                ("result", ["success", "error"]),
                itself,
            )?,
            loaded: register.gauge("rules_loaded", "Rules in force.")?,
            domains: register.gauge("domains_loaded", "Domains in force.")?,
            info: register.gauges(
                (
                    "rules_info",
                    "1 for the version of the rules in force. The version depends on the rules, not on file names: two \
                     instances of one release with different versions have different rules.",
                ),
                &["version"],
                &[],
            )?,
            are_refused: AtomicBool::new(false),
        })
    }
}

impl Metrics {
    /// Returns the table of the counters of these rules, which are about to be in force.
    pub fn of_rules(&self, rules: &Rules) -> RuleMetrics {
        self.by_rule.of_rules(rules)
    }

    /// Records that new rules are in force with these counters, and removes the series of rules that are gone.
    pub fn record_load(&self, new: &Rules, counters: &RuleMetrics) {
        let RulesMetrics { loads, loaded, domains, info, are_refused } = &self.rules;
        loads.inc("success");
        are_refused.store(false, Ordering::Relaxed);
        self.by_rule.take_paths(new, counters);
        loaded.set(i64::try_from(new.rules().len()).unwrap_or(i64::MAX));
        info.reset();
        info.with_label_values(&[new.version()]).set(1);
        domains.set(i64::try_from(new.domains()).unwrap_or(i64::MAX));
        self.by_rule.keep(new);
    }

    /// Records that rules were rejected.
    pub fn record_load_error(&self) {
        self.rules.loads.inc("error");
        self.rules.are_refused.store(true, Ordering::Relaxed);
    }
}
