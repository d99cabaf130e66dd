//! Metrics of the store, and of what answers in place of it.

use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter, IntGauge, IntGaugeVec, Opts};

use super::declaration::Metrics;
use super::register::{Known, Register, itself};
use super::striped::Striped;
use crate::engine::check::StoreError;
use crate::store::health::Health;
use crate::store::lease::LeaseEvent;

/// Bounds of the number of requests carried in one call, which is at most 32.
const REQUESTS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Whether all instances have agreed on the rules of a domain.
const SHARE_STATES: [&str; 2] = ["agreed", "waiting"];

/// Metrics of the store.
#[derive(Debug)]
pub(super) struct StoreMetrics {
    pub(super) seconds: Striped<Histogram>,
    pub(super) errors: Known<&'static str, { StoreError::KINDS.len() }>,
    pub(super) damaged: IntCounter,
    pub(super) call_requests: Striped<Histogram>,
    pub(super) up: Gauge,
    pub(super) down: IntGaugeVec,
    decisions: Striped<IntCounter>,
    denied_cache_hits: Striped<IntCounter>,
    lease_decisions: Striped<IntCounter>,
    leased_hits: IntCounter,
    unused_leased_hits: IntCounter,
    unconfirmed_leased_hits: IntCounter,
    share_decisions: Striped<IntCounter>,
    share_seat: IntGauge,
    share_domains: IntGaugeVec,
    memory_counters: IntGauge,
    memory_bytes: IntGauge,
}

impl StoreMetrics {
    pub(super) fn new(register: &Register<'_>) -> prometheus::Result<StoreMetrics> {
        Ok(StoreMetrics {
            seconds: register.seconds(
                "store_seconds",
                "Time the store took to decide or fail, including its queue. Requests decided by a lease or the denied \
                 cache are not included.",
            )?,
            errors: register.known(
                ("store_errors_total", "Requests that the store could not decide, by reason."),
                ("kind", StoreError::KINDS),
                itself,
            )?,
            damaged: register.counter(
                "damaged_counters_total",
                "Damaged counters and usage records in Redis, which were treated as new ones.",
            )?,
            call_requests: register.histogram(
                "store_call_requests",
                "Requests sent in one call to Redis.",
                &REQUESTS,
            )?,
            up: register.share(
                "store_up",
                "1 while the store is up, 0 while it is down. For a Redis Cluster, the share of slots with a node that \
                 is up.",
            )?,
            down: register.gauges(
                ("store_down", "1 for the cause of Redis being down, 0 for all other causes."),
                &["cause"],
                &Health::CAUSES,
            )?,
            decisions: register.striped(Opts::new(
                "decisions_total",
                "Requests decided by their counters: by a lease, by an own share, by the denied cache, or by the \
                 store, which decides all that the others do not.",
            ))?,
            denied_cache_hits: register.striped(Opts::new(
                "denied_cache_hits_total",
                "Requests denied by the denied cache, without asking Redis.",
            ))?,
            lease_decisions: register.striped(Opts::new(
                "lease_decisions_total",
                "Requests decided by a lease, without asking the store.",
            ))?,
            leased_hits: register.counter("leased_hits_total", "Hits taken from the store in advance by leases.")?,
            unused_leased_hits: register.counter(
                "unused_leased_hits_total",
                "Leased hits that no request used before their lease ended; they are returned.",
            )?,
            unconfirmed_leased_hits: register.counter(
                "unconfirmed_leased_hits_total",
                "Used hits of leases under limits with usage for which the store did not confirm that it has recorded \
                 them: they may be in no record.",
            )?,
            share_decisions: register.striped(Opts::new(
                "share_decisions_total",
                "Requests admitted by the instance's own shares, without asking the store.",
            ))?,
            share_seat: register.gauge(
                "share_seat",
                "1 while the instance has a seat, which gives it a share of each limit with own_share.",
            )?,
            share_domains: register.gauges(
                (
                    "share_domains",
                    "Domains with own_share, by whether all instances had the rules of this one when it began to use \
                     its shares.",
                ),
                &["state"],
                &SHARE_STATES,
            )?,
            memory_counters: register.gauge("memory_counters", "Counters in this process's memory.")?,
            memory_bytes: register.gauge(
                "memory_bytes",
                "Approximate size of the counters in this process's memory, at most MEMORY_STORE_SIZE_IN_BYTES.",
            )?,
        })
    }
}

impl Metrics {
    /// Records the duration of a call to the store, except if the store turned out to be unavailable or overloaded.
    pub fn record_store(&self, error: Option<&StoreError>, took: Duration) {
        if !error.is_some_and(|error| error.is_overload() || matches!(error, StoreError::Down(_))) {
            self.store.seconds.mine().observe(took.as_secs_f64());
        }
    }

    /// Records that the store could not decide.
    pub fn record_store_error(&self, error: &StoreError) {
        self.store.errors.inc(error.kind());
    }

    /// Records the number of damaged counters found in the store.
    pub fn record_damaged_counters(&self, counters: usize) {
        self.store.damaged.inc_by(counters as u64);
    }

    /// Records a request that its counters decided, wherever they are.
    pub fn record_decision(&self) {
        self.store.decisions.mine().inc();
    }

    /// Records a request denied from the cache of denials.
    pub fn record_denied_cache_hit(&self) {
        self.store.denied_cache_hits.mine().inc();
    }

    /// Records a request that shares have admitted.
    pub fn record_share_decision(&self) {
        self.store.share_decisions.mine().inc();
    }

    /// Records whether the instance has a seat, and the numbers of domains on which instances have agreed, and have
    /// not.
    pub fn set_shares(&self, has_seat: bool, (agreed, waiting): (usize, usize)) {
        self.store.share_seat.set(has_seat.into());
        for (state, domains) in SHARE_STATES.into_iter().zip([agreed, waiting]) {
            self.store.share_domains.with_label_values(&[state]).set(i64::try_from(domains).unwrap_or(i64::MAX));
        }
    }

    /// Records an event of a lease.
    pub fn record_lease(&self, event: LeaseEvent) {
        match event {
            LeaseEvent::Decided => self.store.lease_decisions.mine().inc(),
            LeaseEvent::Leased(hits) => self.store.leased_hits.inc_by(hits.into()),
            LeaseEvent::Unused(hits) => self.store.unused_leased_hits.inc_by(hits.into()),
            LeaseEvent::Unconfirmed(hits) => self.store.unconfirmed_leased_hits.inc_by(hits.into()),
        }
    }

    /// Records the number of requests carried in one call to the store.
    pub fn record_store_call(&self, requests: usize) {
        self.store.call_requests.mine().observe(requests as f64);
    }

    /// Records the health of the store.
    pub fn set_store_health(&self, health: Health) {
        let (up, down) = match health {
            Health::Up => (1.0, None),
            Health::Down(cause) => (0.0, Some(cause)),
            Health::Partly { slots, cause } => (f64::from(slots) / f64::from(Health::SLOTS), Some(cause)),
        };
        self.store.up.set(up);
        for cause in Health::CAUSES {
            self.store.down.with_label_values(&[cause]).set(i64::from(Some(cause) == down));
        }
    }

    /// Records the number of counters in memory and their size.
    pub fn set_memory(&self, counters: usize, bytes: usize) {
        self.store.memory_counters.set(i64::try_from(counters).unwrap_or(i64::MAX));
        self.store.memory_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
