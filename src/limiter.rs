//! The straight line of a request: match, plan, ask the store, conclude, record; and wait, where a limit says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::counters::{self, Action, Counter, CounterError};
use crate::descriptor::{Entry, Request, Role};
use crate::metrics::{Metrics, RuleMetrics};
use crate::plan::{Decision, GiveBack, Plan, PlanOptions};
use crate::rules::Rules;
use crate::store::memory::MemoryStore;
use crate::store::{Check, Store, StoreError, Verdicts};
use crate::telemetry;
use crate::waiting_room::{Turn, WaitingRoom};

/// How long the store has to take back what a request has taken that waits no longer.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides requests by the rules in force.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: Arc<S>,
    in_force: Arc<InForce>,
}

/// The rules in force, as one worker takes them: what counts who is using them is its own, so that workers do not write to the same place for
/// every request.
type InForce = ArcSwap<Arc<Snapshot>>;

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The store has until then.
    pub store: Instant,
    /// And what would be held for longer than until then is denied; `None`: its caller has time.
    pub turn: Option<Instant>,
}

/// What the limiters of all workers have in common.
struct Common {
    options: LimiterOptions,
    /// Those of all workers.
    in_force: Mutex<Vec<Arc<InForce>>>,
    /// Decides for limits in failure mode `local` while the store cannot.
    local: Arc<MemoryStore>,
    metrics: Arc<Metrics>,
    waiting_room: WaitingRoom,
    reports: telemetry::Bounded,
}

/// What holds for every request.
#[derive(Clone, Debug, Default)]
pub struct LimiterOptions {
    /// For planning it.
    pub plan: PlanOptions,
    /// Where the store has no room for it.
    pub overload: Overload,
    /// How many may be held at once.
    pub max_held_requests: usize,
}

/// What a request meets that the store has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// Its limits answer by their failure modes.
    #[default]
    FailureMode,
    /// The call fails with RESOURCE_EXHAUSTED, unless all of its limits are in shadow mode.
    Refuse,
}

impl Overload {
    /// Both.
    pub const ALL: [Overload; 2] = [Overload::FailureMode, Overload::Refuse];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Overload::FailureMode => "failure-mode",
            Overload::Refuse => "refuse",
        }
    }
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
    /// A limit says `give_back: false`.
    #[error("descriptors[{descriptor}]: negative hits, and the rule {rule:?} takes none: it says give_back: false")]
    GiveBack {
        /// Which of the request's descriptors has negative hits.
        descriptor: usize,
        /// What metrics call the limit.
        rule: String,
    },
}

/// The rules that one request sees from start to end.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The rules.
    pub rules: Rules,
    metrics: RuleMetrics,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Limiter {
            common: Arc::clone(&self.common),
            store: Arc::clone(&self.store),
            in_force: Arc::clone(&self.in_force),
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Without rules, until [`Limiter::put_in_force`].
    pub fn new(options: LimiterOptions, store: Arc<S>, local: Arc<MemoryStore>, metrics: Arc<Metrics>) -> Limiter<S> {
        let common = Common {
            in_force: Mutex::default(),
            local,
            waiting_room: WaitingRoom::new(options.max_held_requests, Arc::clone(&metrics)),
            options,
            metrics,
            reports: telemetry::Bounded::default(),
        };
        let in_force = Arc::new(InForce::default());
        common.in_force.lock().push(Arc::clone(&in_force));
        Limiter { common: Arc::new(common), store, in_force }
    }

    /// The same limiter by another way to the same counters: that of another worker.
    pub fn with_store(&self, store: Arc<S>) -> Limiter<S> {
        let mut all = self.common.in_force.lock();
        let in_force = Arc::new(InForce::from_pointee(Arc::clone(&self.snapshot())));
        all.push(Arc::clone(&in_force));
        Limiter { common: Arc::clone(&self.common), store, in_force }
    }

    /// From now on these rules decide; requests on their way go on with the ones they began with.
    pub fn put_in_force(&self, rules: Rules) {
        let snapshot = Snapshot { metrics: RuleMetrics::new(&rules), rules };
        let snapshot = Arc::new(snapshot);
        let all = self.common.in_force.lock();
        let old = self.snapshot();
        for in_force in &*all {
            in_force.store(Arc::new(Arc::clone(&snapshot)));
        }
        self.common.metrics.record_load(&snapshot.rules, &old.rules);
    }

    /// The rules in force. To take them writes nothing that another worker writes or reads.
    pub fn snapshot(&self) -> Arc<Arc<Snapshot>> {
        self.in_force.load_full()
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

    /// Decides a request. What passes, but not yet, passes when its turn has come; if that is dropped before, what it has taken is
    /// given back.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub async fn decide<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        request: &'a Request,
        deadlines: Deadlines,
    ) -> Result<(Decision<'a>, Option<Turn>), DecideError> {
        let mut plan = Plan::new(&self.common.options.plan, &snapshot.rules, request);
        if let Some((descriptor, limit)) = plan.refused_give_back() {
            return Err(DecideError::GiveBack { descriptor, rule: limit.label.to_string() });
        }
        let mut decision = if plan.checks().is_empty() {
            plan.conclude(&[])
        } else {
            if let Some(latest) = deadlines.turn {
                plan = plan.within(latest.saturating_duration_since(Instant::now()));
            }
            match self.ask(plan.checks(), deadlines.store).await {
                Ok(verdicts) => plan.conclude(&verdicts),
                Err(StoreError::Overloaded) if self.refuses(plan.checks()) => {
                    self.common.metrics.record_overloaded();
                    return Err(DecideError::Overloaded);
                }
                Err(error) => self.decide_without_store(plan, error)?,
            }
        };
        let turn = if decision.delay.is_zero() { None } else { self.seat(&mut decision) };
        self.common.metrics.record(&snapshot.metrics, &decision);
        Ok((decision, turn))
    }

    /// Where the store has no room. What denies nobody fails nobody's call.
    fn refuses(&self, checks: &[Check]) -> bool {
        self.common.options.overload == Overload::Refuse && checks.iter().any(|check| check.role != Role::Shadow)
    }

    async fn ask(&self, checks: &[Check], deadline: Instant) -> Result<Verdicts, StoreError> {
        let verdicts = self.store.check(checks, deadline).await;
        if let Err(error) = &verdicts {
            self.common.metrics.record_store_error(error);
        }
        verdicts
    }

    /// Lets a request wait that has just been decided, or denies it where there is no seat.
    fn seat(&self, decision: &mut Decision<'_>) -> Option<Turn> {
        let limiter = self.clone();
        let taken = decision.give_back(&self.common.options.plan);
        let turn = self.common.waiting_room.enter(Instant::now() + decision.delay, move || limiter.give_back(taken));
        if turn.is_none() {
            decision.refuse_to_hold();
        }
        turn
    }

    /// As if the request had not been. Nobody waits for that.
    fn give_back(self, GiveBack { to_store, to_memory }: GiveBack) {
        if !to_memory.is_empty() {
            self.common.local.decide(&to_memory);
        }
        // Where there is no runtime any more, the process ends.
        if !to_store.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { self.ask(&to_store, Instant::now() + GIVE_BACK_TIMEOUT).await });
        }
    }

    /// Lets all go who are held, and whoever comes from now on: the process ends.
    pub fn release_held(&self) {
        self.common.waiting_room.close();
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
