//! The straight line of a request: match, plan, ask the store, conclude, record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};

use crate::counters::{self, Action, Counter, CounterError};
use crate::descriptor::{Entry, Request};
use crate::metrics::{Metrics, RuleMetrics};
use crate::plan::{Decision, Plan, PlanOptions};
use crate::rules::Rules;
use crate::store::memory::MemoryStore;
use crate::store::{Store, StoreError};
use crate::telemetry;

/// Decides requests by the rules in force.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: Arc<S>,
}

/// What the limiters of all workers have in common.
struct Common {
    options: LimiterOptions,
    in_force: ArcSwap<Snapshot>,
    /// Decides for limits in failure mode `local` while the store cannot.
    local: Arc<MemoryStore>,
    metrics: Arc<Metrics>,
    reports: telemetry::Bounded,
}

/// What holds for every request.
#[derive(Clone, Debug, Default)]
pub struct LimiterOptions {
    /// For planning it.
    pub plan: PlanOptions,
    /// Where the store has no room for it.
    pub overload: Overload,
}

/// What a request meets that the store has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Overload {
    /// Its limits answer by their failure modes.
    #[default]
    FailureMode,
    /// The call fails with RESOURCE_EXHAUSTED.
    Refuse,
}

/// Why a request has no decision.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// A limit wants the call to fail where the store cannot decide.
    #[error("the rate limit store cannot decide: {0}")]
    Undecided(#[source] StoreError),
    /// The store has no room, and such requests are refused.
    #[error("too many requests wait for the rate limit store")]
    Overloaded,
}

/// The rules that one request sees from start to end.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The rules.
    pub rules: Rules,
    metrics: RuleMetrics,
}

impl<S: Store> Limiter<S> {
    /// Without rules, until [`Limiter::put_in_force`].
    pub fn new(options: LimiterOptions, store: Arc<S>, local: Arc<MemoryStore>, metrics: Arc<Metrics>) -> Limiter<S> {
        let in_force = ArcSwap::default();
        let common = Common { options, in_force, local, metrics, reports: telemetry::Bounded::default() };
        Limiter { common: Arc::new(common), store }
    }

    /// The same limiter by another way to the same counters.
    pub fn with_store(&self, store: Arc<S>) -> Limiter<S> {
        Limiter { common: Arc::clone(&self.common), store }
    }

    /// From now on these rules decide; requests on their way go on with the ones they began with.
    pub fn put_in_force(&self, rules: Rules) {
        let snapshot = Snapshot { metrics: RuleMetrics::new(&rules), rules };
        let snapshot = Arc::new(snapshot);
        let old = self.common.in_force.swap(Arc::clone(&snapshot));
        self.common.metrics.record_load(&snapshot.rules, &old.rules);
    }

    /// The rules in force. To take them writes nothing that another worker reads.
    pub fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.common.in_force.load()
    }

    /// Looks at the counters of a descriptor, or resets them.
    ///
    /// # Errors
    /// See [`counters::act`].
    pub async fn counters(
        &self,
        action: Action,
        descriptor: (&str, Vec<Entry>),
        patience: Duration,
    ) -> Result<Vec<Counter>, CounterError> {
        counters::act(action, &self.snapshot().rules, &self.common.options.plan, &*self.store, descriptor, patience)
            .await
    }

    /// Decides a request; the store has until `deadline`.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub async fn decide<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        request: &'a Request,
        deadline: Instant,
    ) -> Result<Decision<'a>, DecideError> {
        let plan = Plan::new(&self.common.options.plan, &snapshot.rules, request);
        let decision = if plan.checks().is_empty() {
            plan.conclude(&[])
        } else {
            let asked = Instant::now();
            let verdicts = self.store.check(plan.checks(), deadline).await;
            self.common.metrics.record_store(verdicts.as_ref().err(), asked.elapsed());
            match verdicts {
                Ok(verdicts) => plan.conclude(&verdicts),
                Err(StoreError::Overloaded) if self.common.options.overload == Overload::Refuse => {
                    self.common.metrics.record_overloaded();
                    return Err(DecideError::Overloaded);
                }
                Err(error) => self.decide_without_store(plan, error)?,
            }
        };
        self.common.metrics.record(&snapshot.metrics, &decision);
        Ok(decision)
    }

    fn decide_without_store<'a>(&self, plan: Plan<'a>, error: StoreError) -> Result<Decision<'a>, DecideError> {
        if let Some(since_last) = self.common.reports.admit() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                kind = error.kind(),
                requests = since_last,
                "the store could not decide: failure modes answered"
            );
        }
        plan.conclude_without_store(|checks| self.common.local.decide(checks)).map_err(|_| {
            self.common.metrics.record_unavailable();
            DecideError::Undecided(error)
        })
    }
}
