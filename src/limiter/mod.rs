//! The path of a request: match, plan, ask the store, conclude, record, and delay if a limit says so.

mod outage;
mod snapshot;

use std::borrow::Borrow;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::delay::{Delay, DelayQueue};
use crate::engine::adjustment::InForce as Adjustments;
use crate::engine::asked::Asked;
use crate::engine::check::group;
use crate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};
use crate::engine::clock::Clock;
use crate::engine::decision::{DecidedBy, Decision, Refund};
use crate::engine::descriptor::{Request, Role};
use crate::engine::plan::{Names, Plan, PlanOptions, Undecided, WithoutStore};
use crate::engine::rules::report::escaped;
use crate::engine::rules::{Budget, Rules};
use crate::instant;
use crate::metrics::Metrics;
use crate::observe::Observers;
use crate::observe::watch::{Failed, FailedBy, Observed};
use crate::store::memory::{MemoryStore, SystemClock};
use crate::store::{self, Store};
use crate::telemetry::{self, Admitted};
use outage::Outage;
use snapshot::InForce;

pub use snapshot::{Exchanged, Snapshot};

/// Deadline of the store for refunding a delayed request that its caller cancelled.
const REFUND_TIMEOUT: Duration = Duration::from_secs(1);

pub use crate::engine::plan::MAX_WORK;

/// Seconds over which to spread the retries of requests denied while the store is unavailable. Otherwise all would
/// return at once.
const RETRY_SPREAD: u64 = 3;

/// Decides requests by the rules in force.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: Arc<S>,
    in_force: InForce,
}

/// The properties of a call apart from its request.
#[derive(Clone, Copy)]
pub struct Call<'c> {
    /// Deadlines of the call.
    pub deadlines: Deadlines,
    /// The caller's name for the request, which observers log.
    pub request_id: Option<&'c (dyn Display + Sync)>,
}

impl From<Deadlines> for Call<'_> {
    fn from(deadlines: Deadlines) -> Self {
        Call { deadlines, request_id: None }
    }
}

/// Deadlines of a request.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Deadline of the store's answer.
    pub store: Instant,
    /// The caller's deadline, or `None` if it has none. A request that would be delayed beyond it is denied.
    pub caller: Option<Instant>,
}

/// Decides in this process for limits in failure mode `local`.
pub trait Local: Send + Sync {
    /// Decides at once, as [`MemoryStore::decide`] does.
    ///
    /// # Errors
    /// If memory is full and cannot hold the request's counters.
    fn decide(&self, checks: &[Check]) -> Result<Verdicts, StoreError>;
}

impl<C: Clock> Local for MemoryStore<C> {
    fn decide(&self, checks: &[Check]) -> Result<Verdicts, StoreError> {
        MemoryStore::decide(self, checks)
    }
}

/// State shared by the limiters of all workers.
struct Common {
    options: LimiterOptions,
    /// Decides for limits in failure mode `local` while the store is unavailable.
    local: Arc<dyn Local>,
    metrics: Arc<Metrics>,
    delays: DelayQueue,
    retries: Retries,
    outage: Outage,
    unknown_domains: telemetry::ThrottleByName,
}

/// Retry times for requests denied while the store is unavailable.
#[derive(Default)]
struct Retries(AtomicU64);

impl Retries {
    /// Returns the time when the store may be available again, plus up to [`RETRY_SPREAD`] - 1 seconds in rotation.
    fn next_ms(&self) -> u64 {
        let turn = self.0.fetch_add(1, Ordering::Relaxed) % RETRY_SPREAD;
        store::RETRY.as_millis() as u64 + turn * 1_000
    }
}

/// Options for all requests.
#[derive(Clone, Debug, Default)]
pub struct LimiterOptions {
    /// Options of planning.
    pub plan: PlanOptions,
    /// What to do with a request that the store has no room for.
    pub overload: Overload,
    /// Largest number of requests delayed at once.
    pub max_delayed_requests: usize,
    /// Observers of decisions.
    pub observers: Observers,
}

/// Handling of a request that the store has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// Its limits answer by their failure modes.
    #[default]
    FailureMode,
    /// The call fails with RESOURCE_EXHAUSTED, unless all of its limits are in shadow mode.
    Refuse,
}

impl Overload {
    /// Both variants.
    pub const ALL: [Overload; 2] = [Overload::FailureMode, Overload::Refuse];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Overload::FailureMode => "failure-mode",
            Overload::Refuse => "refuse",
        }
    }
}

/// Reasons for a request to have no decision.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// No rules have been in force yet, so the limits are not known.
    #[error("no rules are in force yet")]
    NoRules,
    /// A limit's failure mode is `error`, and the store is unavailable.
    #[error("the rate limit store is unavailable ({error}), and the rule {rule:?} says failure_mode: error")]
    Undecided {
        /// Name of the limit.
        rule: String,
        /// Error of the store.
        #[source]
        error: StoreError,
    },
    /// The store has no room, and the settings reject such requests.
    #[error("too many requests are queued for the rate limit store")]
    Overloaded,
    /// The caller's deadline passed before the store was asked.
    #[error("the deadline passed before the rate limit store was asked")]
    DeadlineExceeded,
    /// The request would delay all others.
    #[error(
        "the request is too expensive ({0} of at most {MAX_WORK} units): send fewer descriptors at once, or \
         descriptors with fewer limits; sliding_log, concurrency and penalty cost most where their numbers are large"
    )]
    TooMuchWork(u64),
    /// A limit has `give_back: false`.
    #[error(
        "descriptors[{descriptor}]: negative hits, but the rule {rule:?} allows no refunds: it has give_back: false"
    )]
    GiveBack {
        /// Index of the descriptor with negative hits.
        descriptor: usize,
        /// Name of the limit in metrics.
        rule: String,
    },
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Limiter { common: Arc::clone(&self.common), store: Arc::clone(&self.store), in_force: self.in_force.clone() }
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter without rules, until [`Limiter::put_in_force`].
    pub fn new(options: LimiterOptions, store: Arc<S>, local: Arc<dyn Local>, metrics: Arc<Metrics>) -> Limiter<S> {
        let common = Common {
            local,
            delays: DelayQueue::new(options.max_delayed_requests, Arc::clone(&metrics)),
            options,
            metrics,
            retries: Retries::default(),
            outage: Outage::default(),
            unknown_domains: telemetry::ThrottleByName::default(),
        };
        Limiter { common: Arc::new(common), store, in_force: InForce::new() }
    }

    /// Returns a limiter for another worker, with another handle to the same counters.
    pub fn with_store<T>(&self, store: Arc<T>) -> Limiter<T> {
        Limiter { common: Arc::clone(&self.common), store, in_force: self.in_force.of_another_worker() }
    }

    /// Puts rules in force, and returns the snapshot that they replace; requests in progress keep the one that they
    /// started with. Freeing a million rules takes a while: keep the returned snapshot until no request has it, or the
    /// last request frees it.
    pub fn put_in_force(&self, rules: Rules) -> Arc<Snapshot> {
        let exchanged = self.exchange(rules);
        self.record(&exchanged);
        exchanged.old
    }

    /// Puts an empty set of rules in force, and calls are then answered instead of failing.
    pub fn serve_without_rules(&self) {
        self.exchange(Rules::default());
    }

    /// Replaces the adjustments in force; requests in progress keep those that they started with.
    pub fn put_adjustments_in_force(&self, adjustments: Adjustments) {
        let adjustments = Some(Arc::new(adjustments)).filter(|adjustments| !adjustments.is_empty());
        self.in_force.replace(|old| Snapshot { adjustments, ..old.clone() });
    }

    /// The first step of [`Limiter::put_in_force`]: puts the rules in force, or leaves everything as it is if it
    /// panics. [`Limiter::record`] is the second.
    pub fn exchange(&self, rules: Rules) -> Exchanged {
        let (rules, metrics) = {
            let metrics = self.common.metrics.of_rules(&rules);
            (Arc::new(rules), Arc::new(metrics))
        };
        let watches = self.common.options.observers.watch(&rules);
        self.in_force.replace(|old| Snapshot {
            rules,
            metrics,
            watches,
            adjustments: old.adjustments.clone(),
            in_force: true,
        })
    }

    /// Records in the metrics that new rules are in force.
    pub fn record(&self, Exchanged { new, .. }: &Exchanged) {
        self.common.metrics.record_load(&new.rules, &new.metrics);
    }

    /// Returns the rules in force. Writes nothing that another worker writes or reads.
    pub fn snapshot(&self) -> Arc<Arc<Snapshot>> {
        self.in_force.mine.load_full()
    }

    /// Returns the options that every request is planned with.
    pub fn plan_options(&self) -> &PlanOptions {
        &self.common.options.plan
    }

    /// Returns this worker's handle to the counters.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the present names of counters.
    pub fn names(&self) -> Names {
        self.common.options.plan.counter_keys.names(|| SystemClock.now())
    }

    /// Returns the substitute for a store that returned `error`. `known` finds a known denial that still applies.
    pub fn without_store<'e, K>(
        &'e self,
        error: &'e StoreError,
        known: K,
    ) -> WithoutStore<'e, K, impl Fn(&[Check]) -> Result<Verdicts, StoreError>>
    where
        K: Fn(&Check) -> Option<CheckVerdict>,
    {
        WithoutStore {
            partly: error.partly(),
            known,
            decide: |checks: &[Check]| self.common.local.decide(checks),
            retry_after_ms: self.common.retries.next_ms(),
        }
    }

    /// Decides a request. A request that passes later has a delay; if the delay is dropped before its release time, the
    /// request's hits are refunded.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub async fn decide<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        request: &'a Request,
        call: impl Into<Call<'_>>,
    ) -> Result<(Decision<'a>, Option<Delay>), DecideError> {
        let Call { deadlines, request_id } = call.into();
        if !snapshot.in_force {
            self.common.metrics.record_no_rules();
            return Err(DecideError::NoRules);
        }
        let rules = snapshot.rules_and_adjustments();
        let mut plan = Plan::adjusted(&self.common.options.plan, rules, request, self.names());
        if !plan.domain_found() {
            self.report_unknown_domain(&snapshot.rules, &request.domain);
        }
        if let Some((descriptor, limit)) = plan.refused_refund() {
            return Err(DecideError::GiveBack { descriptor, rule: limit.label.to_string() });
        }
        let failed = |cause: FailedBy, asked: &[Asked<'_>]| {
            let request_id = request_id.map(|id| id as _);
            snapshot.watches.iter().for_each(|watch| watch.failed(&Failed { request, asked, cause, request_id }));
        };
        let (mut permit, mut may_delay) = (None, false);
        let decision = if plan.asked().is_empty() {
            plan.conclude(&Verdicts::new())
        } else {
            let now = instant::now();
            if deadlines.caller.is_some_and(|deadline| deadline <= now) {
                failed(FailedBy::DeadlineExceeded, plan.asked());
                return Err(DecideError::DeadlineExceeded);
            }
            let work = plan.work();
            if work > MAX_WORK {
                return Err(DecideError::TooMuchWork(work));
            }
            if let Some(deadline) = deadlines.caller {
                plan = plan.within(deadline.saturating_duration_since(now));
            }
            may_delay = plan.may_delay();
            if may_delay {
                // The permit is taken before the store charges: without one, a request that needs a delay is denied.
                permit = self.common.delays.try_acquire();
                plan = if permit.is_some() { plan } else { plan.within(Duration::ZERO) };
            }
            match self.ask(plan.asked(), deadlines.store).await {
                Ok(verdicts) => {
                    self.common.metrics.record_decision();
                    plan.conclude(&verdicts)
                }
                Err(error) if error.without_verdicts().is_overload() && self.refuses(plan.asked()) => {
                    self.take_back(plan.asked().iter().map(|asked| &asked.check), &error);
                    self.common.metrics.record_call_without_store();
                    self.common.metrics.record_overloaded(&snapshot.metrics, request, plan.asked());
                    failed(FailedBy::Overloaded, plan.asked());
                    return Err(DecideError::Overloaded);
                }
                Err(error) => self.decide_without_store((snapshot, request), plan, error, |undecided| {
                    failed(FailedBy::FailureModeError, &undecided.asked[undecided.place..=undecided.place]);
                })?,
            }
        };
        if may_delay && permit.is_none() && decision.over_limit {
            self.common.delays.report_no_permit();
        }
        let delay = permit.filter(|_| !decision.delay.is_zero()).map(|permit| {
            let (limiter, taken) = (self.clone(), decision.refund(self.common.options.plan.expected_replicas));
            permit.delay_until(Instant::now() + decision.delay, move || limiter.refund(taken))
        });
        let metrics = &self.common.metrics;
        metrics.record(&snapshot.metrics, request, &decision);
        for watch in &*snapshot.watches {
            watch.decided(&Observed {
                request,
                decision: &decision,
                adjustments: snapshot.adjustments.as_ref(),
                request_id: request_id.map(|id| id as _),
            });
        }
        Ok((decision, delay))
    }

    /// Returns whether to fail the call because the store has no room. Limits in shadow mode alone do not fail a call,
    /// and a known denial remains a denial.
    fn refuses(&self, asked: &[Asked<'_>]) -> bool {
        let is_denied =
            |Asked { check, .. }: &Asked<'_>| check.role == Role::Enforced && self.store.known_denial(check).is_some();
        self.common.options.overload == Overload::Refuse
            && asked.iter().any(|asked| asked.check.role != Role::Shadow)
            && !asked.iter().any(is_denied)
    }

    async fn ask<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let verdicts = self.store.check(checks, deadline).await;
        if let Err(error) = &verdicts {
            self.common.metrics.record_store_error(error);
        }
        verdicts
    }

    /// Logs at most once a minute that the rules do not have a domain.
    fn report_unknown_domain(&self, rules: &Rules, domain: &str) {
        let gets = self.common.options.plan.unknown_domain.name();
        match self.common.unknown_domains.admit(domain) {
            None => {}
            Some(Admitted::Name(requests)) => {
                let hint = rules.missed_domain(domain, &mut Budget::new(Budget::REQUEST)).words;
                tracing::warn!(domain = escaped(domain), requests, gets, "no rules for the {hint}");
            }
            Some(Admitted::Others(requests)) => {
                tracing::warn!(requests, gets, "no rules for further domains, which are not listed");
            }
        }
    }

    /// Refunds the hits of a request. No caller waits for this.
    fn refund(self, Refund { to_store, to_memory }: Refund) {
        if !to_memory.is_empty() {
            // A refund needs no room, so it cannot fail for lack of it.
            let _ = self.common.local.decide(&to_memory);
        }
        // Without a runtime the process is ending.
        if !to_store.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { self.ask(&to_store, Instant::now() + REFUND_TIMEOUT).await });
        }
    }

    /// Refunds what a part of the store has charged for a request that is denied by failure modes for the other parts.
    fn take_back<'c>(&self, checks: impl Iterator<Item = &'c Check>, error: &StoreError) {
        let Some(partly) = error.partly().filter(|partly| !partly.denied) else { return };
        let charged = checks.zip(&partly.decided).filter_map(|(check, verdict)| Some((check, verdict.as_ref()?)));
        let to_store = charged.filter_map(|(check, verdict)| group::take_back(check, verdict)).collect();
        self.clone().refund(Refund { to_store, to_memory: Vec::new() });
    }

    /// Writes the log lines held by throttles, as the process is ending.
    pub fn flush_log(&self) {
        self.common.outage.flush_log();
        self.common.delays.flush_log();
        self.store.flush_log();
    }

    /// Releases all delayed requests, and later ones at once, as the process is ending.
    pub fn release_delayed(&self) {
        self.common.delays.close();
    }

    fn decide_without_store<'a>(
        &self,
        (snapshot, request): (&Snapshot, &Request),
        plan: Plan<'a>,
        error: StoreError,
        failed: impl FnOnce(&Undecided<'_>),
    ) -> Result<Decision<'a>, DecideError> {
        tracing::debug!(?error, "the store could not decide a request");
        let without = self.without_store(&error, |check: &Check| self.store.known_denial(check));
        let Common { outage, metrics, .. } = &*self.common;
        metrics.record_call_without_store();
        match plan.conclude_without_store(without) {
            Ok(decision) => {
                if decision.over_limit {
                    let asked = decision.limits.iter().filter(|limited| limited.is_asked());
                    self.take_back(asked.map(|limited| &limited.asked.check), &error);
                }
                let answers = decision.limits.iter().filter(|limited| limited.is_asked());
                outage.note(&error, answers.map(|limited| (limited.asked.source, limited.answer.decided_by())));
                Ok(decision)
            }
            Err(undecided) => {
                self.take_back(undecided.asked.iter().map(|asked| &asked.check), &error);
                let source = undecided.source;
                outage.note(&error, [(source, DecidedBy::FailureModeError)]);
                metrics.record_unavailable(&snapshot.metrics, request, &undecided);
                failed(&undecided);
                Err(DecideError::Undecided { rule: source.label().to_owned(), error })
            }
        }
    }
}
