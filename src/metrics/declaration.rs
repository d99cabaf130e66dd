//! Declarations of all metrics, with their names and meanings.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::by_rule::ByRule;
use super::by_value::Values;
use super::namespace::{NAMESPACE, SECONDS};
use super::observed::Observed;
use super::record::ReplicaCounts;
use super::striped::Striped;
use super::tally::OfRule;
use crate::engine::adjustment::Effect;
use crate::engine::check::StoreError;
use crate::engine::decision::DecidedBy;
use crate::store::health::Health;
use crate::tls::HandshakeError;
use crate::version;

/// Bounds of waits in seconds: from the shortest wait worth reporting to a day.
const WAITS: [f64; 14] = [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0];

/// Bounds of the number of requests carried in one call, which is at most 32.
const REQUESTS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Name and help of the requests of each rule, with the labels `domain`, `rule` and `outcome`.
pub(super) const REQUESTS_OF_RULES: (&str, &str) = (
    "rule_requests_total",
    "Requests that asked the rule, once for each of their descriptors: within its limit; over it, or banned; the same \
     of a rule in shadow mode, which denies nothing; or undecided, where a failure mode answered without counting, \
     nobody was asked or the call failed. The series of the last two begin with their first.",
);

/// Values of the label `outcome`.
pub(super) const OUTCOMES: [(OfRule, &str); 4] = [
    (OfRule::WithinLimitRequests, "within_limit"),
    (OfRule::OverLimitRequests, "over_limit"),
    (OfRule::ShadowRequests, "shadow"),
    (OfRule::UndecidedRequests, "undecided"),
];

/// Counts that only the statistics of `envoyproxy/ratelimit` show.
pub(super) const ELSEWHERE: [OfRule; 1] = [OfRule::Refunded];

/// Names and help of each rule's other metrics, with the labels `domain` and `rule`.
pub(super) const OF_RULES: [(OfRule, &str, &str); OfRule::NUMBER - OUTCOMES.len() - ELSEWHERE.len()] = [
    (
        OfRule::Hits,
        "hits_total",
        "Hits that a rule was asked about, at most 4294967295 for one descriptor of a request.",
    ),
    (OfRule::OverLimit, "over_limit_hits_total", "Hits over the rule's limit, where that could be decided."),
    (OfRule::NearLimit, "near_limit_hits_total", "Hits within the limit, beyond NEAR_LIMIT_RATIO of it."),
    (OfRule::WithinLimit, "within_limit_hits_total", "Hits within the rule's limit, where that could be decided."),
    (OfRule::Shadow, "shadow_hits_total", "Hits over the limit of a rule in shadow mode, which passed."),
    (
        OfRule::Banned,
        "banned_hits_total",
        "Hits of those whom the rule's penalty bans, the denial that brings the ban among them; they are over its \
         limit, too.",
    ),
    (
        OfRule::KnownDenied,
        "known_denied_hits_total",
        "Hits over the rule's limit by a denial that was known, without asking the store; a series begins with its \
         first.",
    ),
];

/// Name and help of the requests on which candidate rules are compared, with the labels `domain`, `rule` and `outcome`.
pub(super) const REQUESTS_OF_CANDIDATES: (&str, &str) = (
    "candidate_requests_total",
    "Requests in the sample that asked the rule, by how the rules in force and the candidates decide them: alike, or \
     denied by this rule of the candidates alone, or by this rule in force alone.",
);

const FAILURE_ANSWERS: &str = "Limits answered while the store was unavailable: by a denial that was known, or by \
                               their failure mode; and refunds that it has not confirmed.";

/// Name and help of each rule's failure mode answers, with the labels `domain`, `rule` and `decided_by`.
pub(super) const OF_RULES_WITHOUT_STORE: (&str, &str) =
    ("rule_failure_mode_answers_total", "The same of each rule; a series begins with its first answer.");

/// The metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    pub(super) registry: Registry,
    /// The usual metrics of a process, with names without a prefix.
    pub(super) of_process: Registry,
    pub(super) near_limit_ratio: f32,
    pub(super) requests: Outcomes,
    pub(super) calls_without_store: Striped<IntCounter>,
    pub(super) request_seconds: Striped<Histogram>,
    pub(super) descriptors: Matches,
    /// By whether the domain or the rule is unknown.
    pub(super) unknown_denied: Known<&'static str, 2>,
    pub(super) only_shadow: IntCounter,
    pub(super) by_rule: ByRule,
    /// Set if the statistics by value are exported.
    pub(super) values: Option<Arc<Values>>,
    pub(super) store_seconds: Striped<Histogram>,
    pub(super) store_errors: Known<&'static str, 8>,
    pub(super) damaged_counters: IntCounter,
    pub(super) denied_cache_hits: Striped<IntCounter>,
    pub(super) lease_decisions: Striped<IntCounter>,
    pub(super) leased_hits: IntCounter,
    pub(super) unused_leased_hits: IntCounter,
    pub(super) retry_after_seconds: Striped<Histogram>,
    pub(super) store_call_requests: Striped<Histogram>,
    pub(super) failure_answers: Known<DecidedBy, { DecidedBy::WITHOUT_STORE.len() }>,
    pub(super) delayed_requests: IntGauge,
    pub(super) delayed: DelayedOutcomes,
    pub(super) store_up: Gauge,
    pub(super) store_down: IntGaugeVec,
    pub(super) memory_counters: IntGauge,
    pub(super) memory_bytes: IntGauge,
    pub(super) rules_loaded: IntGauge,
    pub(super) rules_info: IntGaugeVec,
    pub(super) domains_loaded: IntGauge,
    pub(super) loads: Known<&'static str, 2>,
    /// Whether the latest rules were rejected.
    pub(super) rules_refused: AtomicBool,
    /// By effect.
    pub(super) adjustments: IntGaugeVec,
    /// By whether their rules are the same as ours.
    pub(super) replicas: IntGaugeVec,
    pub(super) tls_handshakes: Known<&'static str, 11>,
    /// By the state of the client's certificate.
    pub(super) tls_unverified: Known<&'static str, 2>,
    pub(super) tls_reloads: Known<&'static str, 2>,
    /// Has no series without TLS.
    pub(super) tls_expiry: IntGaugeVec,
}

/// Counters of a label with values known from the start.
#[derive(Debug)]
pub(super) struct Known<K, const N: usize>(pub(super) [(K, IntCounter); N]);

/// Processor time, memory and file descriptors, if the system reports them.
fn of_process() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    #[cfg(target_os = "linux")]
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// Counters of calls by outcome.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) ok: Striped<IntCounter>,
    pub(super) over_limit: Striped<IntCounter>,
    pub(super) invalid: Striped<IntCounter>,
    pub(super) unavailable: Striped<IntCounter>,
    pub(super) no_rules: Striped<IntCounter>,
    pub(super) overloaded: Striped<IntCounter>,
    pub(super) deadline_exceeded: Striped<IntCounter>,
}

/// Counters of delayed requests by outcome.
#[derive(Debug)]
pub(super) struct DelayedOutcomes {
    pub(super) passed: IntCounter,
    pub(super) cancelled: IntCounter,
    pub(super) no_permit: IntCounter,
    pub(super) released: IntCounter,
}

/// Counters of descriptors by what was found for them.
#[derive(Debug)]
pub(super) struct Matches {
    pub(super) limited: Striped<IntCounter>,
    pub(super) unlimited: Striped<IntCounter>,
    pub(super) no_rule: Striped<IntCounter>,
    pub(super) domain_not_found: Striped<IntCounter>,
}

impl Metrics {
    /// Creates all metrics at zero. A hit is near its limit beyond the share `near_limit_ratio` of it.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new(near_limit_ratio: f64) -> prometheus::Result<Metrics> {
        let registry = Registry::new_custom(Some(NAMESPACE.into()), None)?;
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let striped = |options: Opts| -> prometheus::Result<Striped<IntCounter>> {
            let counter = Striped::new(|| IntCounter::with_opts(options.clone()))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name: &str, help: &str, bounds: &[f64]| -> prometheus::Result<Striped<Histogram>> {
            let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
            let histogram = Striped::new(|| Histogram::with_opts(options.clone()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let seconds = |name: &str, help: &str| histogram(name, help, &SECONDS);

        let requests = Opts::new("requests_total", "Calls to ShouldRateLimit by outcome.");
        let requests = |outcome: &str| striped(requests.clone().const_label("outcome", outcome));
        let descriptors = Opts::new("descriptors_total", "Descriptors asked about, by what the rules say.");
        let descriptors = |matched: &str| striped(descriptors.clone().const_label("match", matched));
        let delayed = counters(
            "delayed_requests_total",
            "Requests that were to be delayed, by what became of them.",
            &["outcome"],
        )?;
        let unknown_denied = counters(
            "unknown_denied_total",
            "Descriptors denied because the rules know no such domain (UNKNOWN_DOMAIN=deny) or no rule for them \
             (UNKNOWN_DESCRIPTOR=deny); those that only SHADOW_MODE lets pass among them.",
            &["unknown"],
        )?;
        let store_errors =
            counters("store_errors_total", "Decisions that the store could not make, by reason.", &["kind"])?;
        let failure_answers = counters("failure_mode_answers_total", FAILURE_ANSWERS, &["decided_by"])?;
        let loads = counters("rules_loads_total", "Attempts to load the rules, by result.", &["result"])?;
        let tls_handshakes = counters(
            "tls_handshakes_total",
            "TLS handshakes at the gRPC port by outcome. A client that only looks whether the port is open is closed.",
            &["outcome"],
        )?;
        let tls_unverified = counters(
            "tls_unverified_clients_total",
            "Clients that GRPC_SERVER_TLS_CA_CERT lets in and GRPC_CLIENT_TLS_CACERT would keep out, by their \
             certificate.",
            &["certificate"],
        )?;
        let tls_reloads =
            counters("tls_reloads_total", "Attempts to exchange certificates whose files changed.", &["result"])?;
        let tls_expiry = IntGaugeVec::new(
            Opts::new("tls_certificate_expiry_timestamp_seconds", "When a certificate in force ends, in Unix time."),
            &["certificate"],
        )?;
        registry.register(Box::new(tls_expiry.clone()))?;
        let rules_info = Opts::new(
            "rules_info",
            "1 for the rules in force; the version names what they say, whatever their files are called. Two replicas \
             of one release that differ here decide by different rules.",
        );
        let rules_info = IntGaugeVec::new(rules_info, &["version"])?;
        registry.register(Box::new(rules_info.clone()))?;
        let adjustments = Opts::new("adjustments", "Adjustments in force, by what they do.");
        let adjustments = IntGaugeVec::new(adjustments, &["effect"])?;
        registry.register(Box::new(adjustments.clone()))?;
        Effect::NAMES.iter().for_each(|effect| adjustments.with_label_values(&[*effect]).set(0));
        let replicas = Opts::new(
            "replicas",
            "Replicas that share the store and were heard of in the last 15 seconds, this one among them: those that \
             decide by the same rules as this one, by other rules, or by rules that cannot be compared, because the \
             replica has none yet or is of another release.",
        );
        let replicas = IntGaugeVec::new(replicas, &["rules"])?;
        registry.register(Box::new(replicas.clone()))?;
        ReplicaCounts::default().each().iter().for_each(|(rules, _)| replicas.with_label_values(&[*rules]).set(0));
        let store_up = Gauge::new(
            "store_up",
            "1 while the store can be asked; 0 while it is known to be down and is not. Of a Redis Cluster, the share \
             of its slots whose node can be asked.",
        )?;
        registry.register(Box::new(store_up.clone()))?;
        let store_down = Opts::new("store_down", "1 for the cause why Redis is down, and 0 for all others.");
        let store_down = IntGaugeVec::new(store_down, &["cause"])?;
        registry.register(Box::new(store_down.clone()))?;
        Health::CAUSES.iter().for_each(|cause| store_down.with_label_values(&[*cause]).set(0));
        let metrics = Metrics {
            near_limit_ratio: near_limit_ratio as f32,
            of_process: of_process()?,
            requests: Outcomes {
                ok: requests("ok")?,
                over_limit: requests("over_limit")?,
                invalid: requests("invalid")?,
                unavailable: requests("unavailable")?,
                no_rules: requests("no_rules")?,
                overloaded: requests("overloaded")?,
                deadline_exceeded: requests("deadline_exceeded")?,
            },
            calls_without_store: striped(Opts::new(
                "calls_without_store_total",
                "Calls that the store could not decide, whatever they were answered.",
            ))?,
            request_seconds: seconds(
                "request_seconds",
                "Time from a call's arrival to its answer, its delay not counted.",
            )?,
            descriptors: Matches {
                limited: descriptors("limited")?,
                unlimited: descriptors("unlimited")?,
                no_rule: descriptors("no_rule")?,
                domain_not_found: descriptors("domain_not_found")?,
            },
            unknown_denied: Known(
                ["domain", "descriptor"].map(|what| (what, unknown_denied.with_label_values(&[what]))),
            ),
            only_shadow: counter("global_shadow_mode_total", "Calls that only SHADOW_MODE let pass.")?,
            by_rule: ByRule::default(),
            values: None,
            store_seconds: seconds(
                "store_seconds",
                "Time the store took to decide or to fail, its queue included; where a lease or the denied cache \
                 answers it is not asked.",
            )?,
            store_errors: Known(StoreError::KINDS.map(|kind| (kind, store_errors.with_label_values(&[kind])))),
            denied_cache_hits: striped(Opts::new(
                "denied_cache_hits_total",
                "Requests denied without asking Redis, which had just said so.",
            ))?,
            lease_decisions: striped(Opts::new(
                "lease_decisions_total",
                "Requests decided by a lease, without asking the store.",
            ))?,
            damaged_counters: counter(
                "damaged_counters_total",
                "Counters and records of usage in Redis that were damaged, and were decided or written as fresh ones.",
            )?,
            leased_hits: counter("leased_hits_total", "Hits that leases took from the store in advance.")?,
            unused_leased_hits: counter(
                "unused_leased_hits_total",
                "Those of them that no request used before their lease ended: they are refunded.",
            )?,
            retry_after_seconds: histogram(
                "retry_after_seconds",
                "Wait of denied calls until the same may pass, where it is known; clients are told whole seconds.",
                &WAITS,
            )?,
            store_call_requests: histogram(
                "store_call_requests",
                "Requests that travelled in one call to Redis.",
                &REQUESTS,
            )?,
            failure_answers: Known(
                DecidedBy::WITHOUT_STORE.map(|by| (by, failure_answers.with_label_values(&[by.name()]))),
            ),
            delayed_requests: gauge("delayed_requests", "Requests that are delayed now.")?,
            delayed: DelayedOutcomes {
                passed: delayed.with_label_values(&["passed"]),
                cancelled: delayed.with_label_values(&["cancelled"]),
                no_permit: delayed.with_label_values(&["no_permit"]),
                released: delayed.with_label_values(&["released"]),
            },
            store_down,
            store_up,
            memory_counters: gauge("memory_counters", "Counters in this process's memory.")?,
            memory_bytes: gauge(
                "memory_bytes",
                "About what the counters in this process's memory take; bounded by MEMORY_STORE_SIZE_IN_BYTES.",
            )?,
            rules_info,
            rules_loaded: gauge("rules_loaded", "Rules in force.")?,
            domains_loaded: gauge("domains_loaded", "Domains in force.")?,
            rules_refused: AtomicBool::new(false),
            loads: Known(["success", "error"].map(|result| (result, loads.with_label_values(&[result])))),
            adjustments,
            replicas,
            tls_handshakes: Known(
                HandshakeError::OUTCOMES.map(|outcome| (outcome, tls_handshakes.with_label_values(&[outcome]))),
            ),
            tls_unverified: Known(["none", "wrong"].map(|what| (what, tls_unverified.with_label_values(&[what])))),
            tls_reloads: Known(["success", "error"].map(|result| (result, tls_reloads.with_label_values(&[result])))),
            tls_expiry,
            registry: registry.clone(),
        };
        let options = Opts::new("build_info", "Always 1; the labels name the version and the commit.");
        let build = IntGaugeVec::new(options, &["version", "commit"])?;
        registry.register(Box::new(build.clone()))?;
        build.with_label_values(&[version::VERSION, version::COMMIT]).set(1);
        Ok(metrics)
    }

    /// Adds separate counts by values of requests, for rules that ask for them, with at most `most` paths.
    ///
    /// # Errors
    /// If they are already registered.
    pub fn with_values(mut self, most: NonZeroUsize) -> prometheus::Result<Metrics> {
        let values = Arc::new(Values::new(most));
        let evicted = Arc::clone(&values);
        let options = Opts::new(
            "value_series_evicted_total",
            "Paths with requests' values that made way for others, at the bound of MAX_VALUE_SERIES.",
        );
        self.registry.register(Box::new(Observed::new(&options, move || evicted.evicted())?))?;
        self.values = Some(values);
        Ok(self)
    }

    /// Adds the number of lost log lines, read through `lost`.
    ///
    /// # Errors
    /// If it is already registered.
    pub fn observe_lost_log_lines(&self, lost: impl Fn() -> u64 + Send + Sync + 'static) -> prometheus::Result<()> {
        let options =
            Opts::new("log_lines_lost_total", "Log lines that were dropped because standard error takes none.");
        self.registry.register(Box::new(Observed::new(&options, lost)?))
    }
}
