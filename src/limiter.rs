//! The straight line of a request: match, plan, ask the store, conclude, record; and delay, where a limit says so.

mod outage;

use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::adjustment::InForce as Adjustments;
use crate::candidates::Candidates;
use crate::counters::{self, Action, Counter, CounterError, CounterOf};
use crate::decision::{DecidedBy, Decision, Limited, Refund};
use crate::delay::{Delay, DelayQueue};
use crate::descriptor::{Request, Role};
use crate::explain::Explanation;
use crate::heavy_hitters::{HeavyHitters, Places};
use crate::metrics::{Metrics, RuleMetrics};
use crate::plan::{Asked, Names, Plan, PlanOptions, WithoutStore};
use crate::room;
use crate::rules::report::escaped;
use crate::rules::{Budget, Rules};
use crate::store::memory::{Clock, MemoryStore, SystemClock};
use crate::store::{self, Check, Store, StoreError, Verdicts, group};
use crate::telemetry::{self, Admitted};
use crate::what_if::WhatIf;
use outage::Outage;

/// How long the store has to refund what a delayed request has taken whose caller went away.
const REFUND_TIMEOUT: Duration = Duration::from_secs(1);

pub use crate::plan::MAX_WORK;

/// Over so many seconds come back who is denied while the store is unavailable: not all at once.
const RETRY_SPREAD: u64 = 3;

/// Decides requests by the rules in force.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: Arc<S>,
    in_force: Arc<InForce>,
}

/// The rules in force, as one worker takes them. Each worker has its own reference count, so that workers do not write
/// to the same memory for every request.
type InForce = ArcSwap<Arc<Snapshot>>;

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The store answers until then.
    pub store: Instant,
    /// The caller waits until then; `None`: as long as it takes. A request that would be delayed for longer is denied.
    pub caller: Option<Instant>,
}

/// Decides in this process for limits in failure mode `local`.
pub trait Local: Send + Sync {
    /// Decides at once, as [`MemoryStore::decide`] does.
    ///
    /// # Errors
    /// Where there is no room for what the request needs.
    fn decide(&self, checks: &[Check]) -> Result<Verdicts, StoreError>;
}

impl<C: Clock> Local for MemoryStore<C> {
    fn decide(&self, checks: &[Check]) -> Result<Verdicts, StoreError> {
        MemoryStore::decide(self, checks)
    }
}

/// What the limiters of all workers share.
struct Common {
    options: LimiterOptions,
    /// Those of all workers.
    in_force: Mutex<Vec<Arc<InForce>>>,
    /// Decides for limits in failure mode `local` while the store is unavailable.
    local: Arc<dyn Local>,
    metrics: Arc<Metrics>,
    delays: DelayQueue,
    retries: Retries,
    outage: Outage,
    unknown_domains: telemetry::ThrottleByName,
    /// Mostly there are none.
    candidates: OnceLock<Arc<Candidates>>,
    /// The same holds for this.
    what_if: OnceLock<Arc<WhatIf>>,
}

/// When to come back who is denied while the store is unavailable.
#[derive(Default)]
struct Retries(AtomicU64);

impl Retries {
    /// When the store may have been reached again, and up to [`RETRY_SPREAD`] seconds later, each in turn.
    fn next_ms(&self) -> u64 {
        let turn = self.0.fetch_add(1, Ordering::Relaxed) % RETRY_SPREAD;
        store::RETRY.as_millis() as u64 + turn * 1_000
    }
}

/// What holds for every request.
#[derive(Clone, Debug, Default)]
pub struct LimiterOptions {
    /// For planning it.
    pub plan: PlanOptions,
    /// What a request meets whose store has no room for it.
    pub overload: Overload,
    /// How many may be delayed at once.
    pub max_delayed_requests: usize,
    /// Where the heaviest keys of each rule are counted; `None`: nowhere.
    pub heavy_hitters: Option<Arc<HeavyHitters>>,
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
    /// No rules have been in force yet: what they limit nobody knows.
    #[error("no rules are in force yet")]
    NoRules,
    /// A limit wants the call to fail while the store is unavailable.
    #[error("the rate limit store is unavailable ({error}), and the rule {rule:?} says failure_mode: error")]
    Undecided {
        /// What the limit is called.
        rule: String,
        /// What the store said.
        #[source]
        error: StoreError,
    },
    /// The store has no room, and such requests are refused.
    #[error("too many requests wait for the rate limit store")]
    Overloaded,
    /// The caller's deadline is over, and the store has not been asked.
    #[error("the deadline is over before the rate limit store was asked")]
    DeadlineExceeded,
    /// Deciding it would delay all other requests.
    #[error(
        "the request is too much work ({0}, and {MAX_WORK} is the most): ask for fewer descriptors at once \
         whose limits keep much, which are sliding_log, concurrency and penalty of large numbers"
    )]
    TooMuchWork(u64),
    /// A limit says `give_back: false`.
    #[error("descriptors[{descriptor}]: negative hits, and the rule {rule:?} takes none: it says give_back: false")]
    GiveBack {
        /// Which of the request's descriptors has negative hits.
        descriptor: usize,
        /// What metrics call the limit.
        rule: String,
    },
}

/// The rules that one request sees from start to end, and what is changed about them for a while.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The rules.
    pub rules: Arc<Rules>,
    metrics: Arc<RuleMetrics>,
    places: Arc<Places>,
    /// `None` where there is none, so that it costs a request nothing.
    adjustments: Option<Arc<Adjustments>>,
    /// The rules have been put in force; the first snapshot of a process has none.
    in_force: bool,
}

impl Snapshot {
    /// Whether its rules have been put in force; a process begins without any.
    pub fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// What is changed about the rules, if anything is.
    pub fn adjustments(&self) -> Option<&Adjustments> {
        self.adjustments.as_deref()
    }

    /// Both together, as a plan takes them.
    fn rules_and_adjustments(&self) -> (&Rules, Option<&Adjustments>) {
        (&self.rules, self.adjustments())
    }
}

impl AsRef<Rules> for Snapshot {
    fn as_ref(&self) -> &Rules {
        &self.rules
    }
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
    pub fn new(options: LimiterOptions, store: Arc<S>, local: Arc<dyn Local>, metrics: Arc<Metrics>) -> Limiter<S> {
        let common = Common {
            in_force: Mutex::default(),
            local,
            delays: DelayQueue::new(options.max_delayed_requests, Arc::clone(&metrics)),
            options,
            metrics,
            retries: Retries::default(),
            outage: Outage::default(),
            unknown_domains: telemetry::ThrottleByName::default(),
            candidates: OnceLock::new(),
            what_if: OnceLock::new(),
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

    /// Puts rules in force, and returns those that were; requests on their way go on with the rules that they began
    /// with. To free a million rules takes a while: who keeps the old ones until no request has them does it, and else
    /// the last request.
    pub fn put_in_force(&self, rules: Rules) -> Arc<Snapshot> {
        let (old, new) = self.exchange(rules);
        self.common.metrics.record_load(&new.rules);
        old
    }

    /// Candidates that see what any worker decides. Only the first ones do, and they are named before rules are put in
    /// force.
    pub fn try_out(&self, candidates: Arc<Candidates>) {
        self.common.candidates.get_or_init(|| candidates);
    }

    /// Rules that are compared with those in force, where there are any.
    pub fn candidates(&self) -> Option<&Arc<Candidates>> {
        self.common.candidates.get()
    }

    /// Keeps some of what any worker decides, to be replayed. Only the first one does, and it is named before rules are
    /// put in force.
    pub fn keep_for(&self, what_if: Arc<WhatIf>) {
        self.common.what_if.get_or_init(|| what_if);
    }

    /// What is kept to be replayed, where anything is.
    pub fn what_if(&self) -> Option<&Arc<WhatIf>> {
        self.common.what_if.get()
    }

    /// Answers as where there is no rule, instead of failing calls until there are some.
    pub fn serve_without_rules(&self) {
        self.exchange(Rules::default());
    }

    /// Puts adjustments in force in place of those that were; requests on their way go on with what they began with.
    pub fn put_adjustments_in_force(&self, adjustments: Adjustments) {
        let adjustments = Some(Arc::new(adjustments)).filter(|adjustments| !adjustments.is_empty());
        self.replace(|old| Snapshot { adjustments, ..old.clone() });
    }

    /// The rules that were in force, and those that are.
    fn exchange(&self, rules: Rules) -> (Arc<Snapshot>, Arc<Snapshot>) {
        let places = self.heavy_hitters().map(|_| Places::new(&rules)).unwrap_or_default();
        let (metrics, places) = (Arc::new(RuleMetrics::new(&rules)), Arc::new(places));
        let rules = Arc::new(rules);
        let (old, new) = self.replace(|old| Snapshot {
            rules,
            metrics,
            places,
            adjustments: old.adjustments.clone(),
            in_force: true,
        });
        if let Some(candidates) = self.candidates() {
            candidates.put_in_force(Arc::clone(&new) as _);
        }
        if let Some(what_if) = self.what_if() {
            what_if.put_in_force(Arc::clone(&new) as _);
        }
        (old, new)
    }

    /// Puts a snapshot in force that is made of the one that is. Gives both, the old one first.
    fn replace(&self, make: impl FnOnce(&Snapshot) -> Snapshot) -> (Arc<Snapshot>, Arc<Snapshot>) {
        // Under the lock, so that neither of two changes at once is lost.
        let all = self.common.in_force.lock();
        let old: Arc<Snapshot> = Arc::clone(&self.snapshot());
        let new = Arc::new(make(&old));
        for in_force in &*all {
            in_force.store(Arc::new(Arc::clone(&new)));
        }
        (old, new)
    }

    /// The rules in force. Taking them writes nothing that another worker writes or reads.
    pub fn snapshot(&self) -> Arc<Arc<Snapshot>> {
        self.in_force.load_full()
    }

    /// Who uses most of which limit, where that is counted.
    pub fn heavy_hitters(&self) -> Option<&Arc<HeavyHitters>> {
        self.common.options.heavy_hitters.as_ref()
    }

    /// Reads the counters of a descriptor, or resets them.
    ///
    /// # Errors
    /// See [`counters::act`].
    pub async fn counters(
        &self,
        action: Action,
        descriptor: CounterOf,
        timeout: Duration,
    ) -> Result<Vec<Counter>, CounterError> {
        let snapshot = self.snapshot();
        if !snapshot.in_force {
            return Err(CounterError::NoRules);
        }
        let rules = snapshot.rules_and_adjustments();
        counters::act(action, rules, &self.common.options.plan, &*self.store, descriptor, timeout).await
    }

    /// For each limit of a peek that is used up, when one more hit passes: see [`room::next_after_ms`].
    pub async fn next_after_ms(&self, decision: &Decision<'_>, deadline: Instant) -> Vec<Option<u64>> {
        room::next_after_ms(decision, &*self.store, deadline).await
    }

    /// What the rules say of a request: a matter of some milliseconds, if it misses them.
    pub fn explain(&self, snapshot: &Snapshot, request: &Request) -> Explanation {
        let rules = snapshot.rules_and_adjustments();
        Explanation::adjusted(rules, &self.common.options.plan, request, self.names())
    }

    /// What the limit is called whose counter has this name, by the rules in force; `None` where they have none for
    /// these entries that has it.
    pub fn label_of(&self, snapshot: &Snapshot, request: &Request, is_its: impl Fn(&str) -> bool) -> Option<String> {
        let plan = Plan::new(&self.common.options.plan, &snapshot.rules, request, self.names());
        let asked = plan.asked().iter().find(|asked| is_its(asked.check.key.as_str()))?;
        Some(asked.source.label().to_owned())
    }

    /// The names that counters have now.
    fn names(&self) -> Names {
        self.common.options.plan.counter_keys.names(|| SystemClock.now())
    }

    /// The same explanation with what the counters say now, or what answers for them. Nothing is counted.
    pub async fn add_state(
        &self,
        explanation: Explanation,
        (snapshot, request): (&Snapshot, &Request),
        timeout: Duration,
    ) -> Explanation {
        if !explanation.reads() {
            return explanation;
        }
        let rules = snapshot.rules_and_adjustments();
        let asking = Plan::adjusted(&self.common.options.plan, rules, request, self.names());
        let peek = asking.clone().peek();
        let error = match self.store.check(peek.asked(), Instant::now() + timeout).await {
            Ok(verdicts) => {
                let decision = peek.conclude(&verdicts);
                let next_after_ms = self.next_after_ms(&decision, Instant::now() + timeout).await;
                return explanation.answered(&decision, &next_after_ms);
            }
            Err(error) => error,
        };
        let is_same = |asked: &&Asked<'_>, check: &Check| asked.check.key == check.key;
        let without = WithoutStore {
            partly: error.partly(),
            known: |check: &Check| {
                let asked = asking.asked().iter().find(|asked| is_same(asked, check))?;
                self.store.known_denial(&asked.check)
            },
            decide: |checks: &[Check]| self.common.local.decide(checks),
            retry_after_ms: self.common.retries.next_ms(),
        };
        match peek.conclude_without_store(without) {
            Ok(decision) => explanation.answered(&decision, &[]),
            Err(undecided) => explanation.undecided(undecided, &error.to_string()),
        }
    }

    /// Decides a request. A request that passes later has a delay; if the delay is dropped before its release time,
    /// what the request has taken is refunded.
    ///
    /// # Errors
    /// See [`DecideError`].
    pub async fn decide<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        request: &'a Request,
        deadlines: Deadlines,
    ) -> Result<(Decision<'a>, Option<Delay>), DecideError> {
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
        let (mut permit, mut may_delay) = (None, false);
        let decision = if plan.asked().is_empty() {
            plan.conclude(&Verdicts::new())
        } else {
            let now = Instant::now();
            if deadlines.caller.is_some_and(|deadline| deadline <= now) {
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
                // Before the store charges: without a permit a request that would have to be delayed is denied.
                permit = self.common.delays.try_acquire();
                plan = if permit.is_some() { plan } else { plan.within(Duration::ZERO) };
            }
            match self.ask(plan.asked(), deadlines.store).await {
                Ok(verdicts) => plan.conclude(&verdicts),
                Err(error)
                    if matches!(error.without_verdicts(), StoreError::Overloaded) && self.refuses(plan.asked()) =>
                {
                    self.take_back(plan.asked().iter().map(|asked| &asked.check), &error);
                    self.common.metrics.record_call_without_store();
                    self.common.metrics.record_overloaded(&snapshot.metrics, request, plan.asked());
                    return Err(DecideError::Overloaded);
                }
                Err(error) => self.decide_without_store((snapshot, request), plan, error)?,
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
        if let Some(heavy_hitters) = self.heavy_hitters() {
            let around = |limited: &Limited<'_>, hits| metrics.around(limited, hits);
            heavy_hitters.record(&snapshot.places, request, &decision, around);
        }
        if let Some(candidates) = self.candidates() {
            candidates.offer(request);
        }
        if let Some(what_if) = self.what_if() {
            what_if.offer(request);
        }
        Ok((decision, delay))
    }

    /// Whether the call fails where the store has no room. A limit that denies no request fails no call, and
    /// a known denial stays a denial.
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

    /// Says once a minute of a domain that the rules do not have it.
    fn report_unknown_domain(&self, rules: &Rules, domain: &str) {
        let gets = self.common.options.plan.unknown_domain.name();
        match self.common.unknown_domains.admit(domain) {
            None => {}
            Some(Admitted::Name(requests)) => {
                let hint = rules.missed_domain(domain, &mut Budget::new(Budget::REQUEST)).words;
                tracing::warn!(domain = escaped(domain), requests, gets, "no rules for the {hint}");
            }
            Some(Admitted::Others(requests)) => {
                tracing::warn!(requests, gets, "no rules for more domains than are named here");
            }
        }
    }

    /// Takes the request out of its counters. No caller waits for that.
    fn refund(self, Refund { to_store, to_memory }: Refund) {
        if !to_memory.is_empty() {
            // A refund needs no room.
            let _ = self.common.local.decide(&to_memory);
        }
        // Where there is no runtime any more, the process ends.
        if !to_store.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { self.ask(&to_store, Instant::now() + REFUND_TIMEOUT).await });
        }
    }

    /// Takes back what a part of the store has charged for a request that does not pass nevertheless, because of what
    /// the failure modes answer for the rest.
    fn take_back<'c>(&self, checks: impl Iterator<Item = &'c Check>, error: &StoreError) {
        let Some(partly) = error.partly().filter(|partly| !partly.denied) else { return };
        let charged = checks.zip(&partly.decided).filter_map(|(check, verdict)| Some((check, verdict.as_ref()?)));
        let to_store = charged.filter_map(|(check, verdict)| group::take_back(check, verdict)).collect();
        self.clone().refund(Refund { to_store, to_memory: Vec::new() });
    }

    /// Logs what throttles have kept back, because the process ends.
    pub fn flush_log(&self) {
        self.common.outage.flush_log();
        self.common.delays.flush_log();
        self.store.flush_log();
    }

    /// Releases all delayed requests, now and from now on: the process ends.
    pub fn release_delayed(&self) {
        self.common.delays.close();
    }

    fn decide_without_store<'a>(
        &self,
        (snapshot, request): (&Snapshot, &Request),
        plan: Plan<'a>,
        error: StoreError,
    ) -> Result<Decision<'a>, DecideError> {
        tracing::debug!(?error, "the store could not decide a request");
        let without = WithoutStore {
            partly: error.partly(),
            known: |check: &Check| self.store.known_denial(check),
            decide: |checks: &[Check]| self.common.local.decide(checks),
            retry_after_ms: self.common.retries.next_ms(),
        };
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
                Err(DecideError::Undecided { rule: source.label().to_owned(), error })
            }
        }
    }
}
