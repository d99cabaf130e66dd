//! Metrics of the state that a fleet shares: its instances, and the adjustments in force.

use prometheus::{IntCounter, IntGauge, IntGaugeVec};

use super::declaration::Metrics;
use super::register::Register;
use crate::engine::adjustment::Effect;

/// Metrics of the state that a fleet shares.
#[derive(Debug)]
pub(super) struct FleetMetrics {
    /// By effect.
    adjustments: IntGaugeVec,
    own_adjustments: IntGauge,
    /// By whether their rules are the same as ours.
    replicas: IntGaugeVec,
    lost_audit_records: IntCounter,
}

/// Numbers of instances in the fleet, by whether they have the same rules as this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Instances with the same rules, including this one.
    pub same: usize,
    /// Instances with other rules.
    pub other: usize,
    /// Instances with rules that are not known.
    pub unknown: usize,
}

impl ReplicaCounts {
    /// Returns each number with its name in metrics.
    fn each(self) -> [(&'static str, usize); 3] {
        [("same", self.same), ("other", self.other), ("unknown", self.unknown)]
    }
}

impl FleetMetrics {
    pub(super) fn new(register: &Register<'_>) -> prometheus::Result<FleetMetrics> {
        Ok(FleetMetrics {
            adjustments: register.gauges(
                ("adjustments", "Adjustments in force and within their hours, by effect."),
                &["effect"],
                &Effect::NAMES,
            )?,
            own_adjustments: register.gauge(
                "own_adjustments",
                "Adjustments that hold at this instance alone, because the store was away when they began.",
            )?,
            replicas: register.gauges(
                (
                    "replicas",
                    "Instances that share the store and sent a heartbeat in the last 15 seconds, including this one, \
                     by rules: the same as this instance's, other ones, or unknown, because an instance has no rules \
                     yet or runs another release.",
                ),
                &["rules"],
                &ReplicaCounts::default().each().map(|(rules, _)| rules),
            )?,
            lost_audit_records: register.counter(
                "audit_records_lost_total",
                "Records of the audit trail that were lost, because the store was down for long. Each is in the log.",
            )?,
        })
    }
}

impl Metrics {
    /// Replaces the number of adjustments that hold at this instance alone.
    pub fn set_own_adjustments(&self, number: usize) {
        self.fleet.own_adjustments.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Replaces the numbers of adjustments in force. `effects` has one item for each adjustment.
    pub fn set_adjustments(&self, effects: impl IntoIterator<Item = &'static str>) {
        let mut counts = Effect::NAMES.map(|name| (name, 0));
        for effect in effects {
            counts.iter_mut().filter(|(name, _)| *name == effect).for_each(|(_, count)| *count += 1);
        }
        counts.iter().for_each(|(name, count)| self.fleet.adjustments.with_label_values(&[*name]).set(*count));
    }

    /// Records that records of the audit trail were lost.
    pub fn record_lost_audit_records(&self, records: u64) {
        self.fleet.lost_audit_records.inc_by(records);
    }

    /// Records the number of instances in the fleet.
    pub fn set_replicas(&self, counts: ReplicaCounts) {
        for (rules, number) in counts.each() {
            self.fleet.replicas.with_label_values(&[rules]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}
