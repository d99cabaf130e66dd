//! A store around another store. It admits requests in this process if their limits have
//! [shares](crate::engine::share), and asks the store for the rest.
//!
//! An instance that has a seat counts its share of a limit in its own memory. A request is admitted by itself only if
//! each of its limits has room in its share. Otherwise the limits without room ask the store, as one group, by the
//! number less all shares; what shares have charged for the request is taken back if the store denies it or does not
//! answer. If one of the limits is in quota mode, the store is asked for all of them, since its vote needs all.
//!
//! A refund goes to the share as far as it has hits, and the rest to the store. A reset is of both; the shares of other
//! instances keep their hits.
//!
//! What remains, in an answer, is what remains of the share and what the store told last.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use quick_cache::sync::Cache;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Store;
use super::memory::MemoryStore;
use crate::engine::algorithm::{Ask, Limit, Verdict};
use crate::engine::check::group::{self, Votes};
use crate::engine::check::{Check, CheckVerdict, Key, Partly, ShareLeft, StoreError, Verdicts};
use crate::engine::clock::Clock;
use crate::engine::descriptor::Role;
use crate::engine::share::View;
use crate::instant::Steady;

/// The most memory that counters of shares take, in bytes. Keys beyond it ask the store.
const MOST_BYTES: usize = 64 << 20;

/// The number of counters for which this process remembers what the store told last.
const TOLD: usize = 16_384;

/// Called for each request that shares have admitted, without asking the store.
pub type OnAdmitted = Box<dyn Fn() + Send + Sync>;

/// What the decisions of this process share: what they may do, and the counters of shares.
pub struct Desk {
    view: ArcSwap<View>,
    clock: OwnClock,
    own: MemoryStore<OwnClock>,
    told: Cache<Key, Told>,
    on_admitted: OnAdmitted,
    /// Whether the table of seats did not answer the last beat.
    is_away: AtomicBool,
    /// Whether it has answered one. Until then, others may use shares that this process knows nothing of.
    is_known: AtomicBool,
    /// Tells that a decision waits for a beat.
    wanted: Notify,
    /// Tells that a beat has ended.
    ended: Notify,
}

/// How a beat has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeatEnd {
    /// The table has answered it.
    Answered,
    /// The store never runs the table for this service, so no instance of the fleet has a seat.
    Refused,
    /// There is no answer.
    Lost,
}

/// The clock of shares.
#[derive(Clone)]
struct OwnClock(Arc<dyn Fn() -> Duration + Send + Sync>);

/// A time before all others of the clock, by which counters may look back: two years.
const BEGIN_MS: u64 = 2 * 366 * 24 * 60 * 60 * 1_000;

impl Clock for OwnClock {
    fn now(&self) -> u64 {
        BEGIN_MS + u64::try_from((self.0)().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

/// What the store told of a counter.
#[derive(Clone, Copy)]
struct Told {
    remaining: u64,
    /// When the counter is like a new one.
    until: Duration,
}

impl Told {
    fn reset_after_ms(&self, now: Duration) -> u64 {
        u64::try_from(self.until.saturating_sub(now).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Desk {
    /// Returns a desk without a seat.
    pub fn new(on_admitted: OnAdmitted) -> Desk {
        let clock = Steady::new();
        Desk::by(move || clock.elapsed(), MOST_BYTES, on_admitted)
    }

    /// Returns a desk without a seat that goes by this clock, whose counters take at most so much memory.
    pub fn by(
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        most_bytes: usize,
        on_admitted: OnAdmitted,
    ) -> Desk {
        let clock = OwnClock(Arc::new(clock));
        Desk {
            view: ArcSwap::default(),
            own: MemoryStore::new(clock.clone(), most_bytes),
            clock,
            told: Cache::new(TOLD),
            on_admitted,
            is_away: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            wanted: Notify::new(),
            ended: Notify::new(),
        }
    }

    /// Returns the desk of a command that asks about counters: it never gets a seat, and waits for no beat.
    pub fn of_command() -> Desk {
        let desk = Desk::new(Box::new(|| {}));
        desk.end_beat(BeatEnd::Refused);
        desk
    }

    /// Returns the time on the clock of shares.
    pub fn now(&self) -> Duration {
        (self.clock.0)()
    }

    /// Returns whether the table of seats is known well enough to decide.
    pub fn is_current(&self) -> bool {
        self.view.load().is_current(self.now())
    }

    /// Lets decisions know what they may do from now on.
    pub fn put(&self, view: View) {
        self.view.store(Arc::new(view));
    }

    /// Tells the decisions that wait how a beat has ended.
    pub fn end_beat(&self, how: BeatEnd) {
        if how != BeatEnd::Lost {
            self.is_known.store(true, Ordering::Release);
        }
        self.is_away.store(how != BeatEnd::Answered, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Returns whether decisions wait for no beat.
    fn goes_by_what_is_known(&self) -> bool {
        self.is_away.load(Ordering::Acquire) && self.is_known.load(Ordering::Acquire)
    }

    /// Returns when a decision waits for a beat.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Removes expired counters of shares, forever.
    pub async fn sweep(&self) {
        self.own.sweep().await;
    }

    /// Asks this process's counter, in which the limit is the share.
    fn ask_own(&self, check: &Check, share: Limit, ask: Ask) -> Option<CheckVerdict> {
        // Without room for the counter, the store is asked.
        self.own.decide(&[own_check(check, share, ask)]).ok()?.into_iter().next()?
    }

    /// Takes back what a share has charged, and returns the verdict with what remains then.
    fn take_back(&self, check: &Check, share: Limit, verdict: CheckVerdict) -> CheckVerdict {
        let charged = own_check(check, share, check.ask);
        if let Some(back) = group::take_back(&charged, &verdict) {
            // It needs no room, so it cannot fail for lack of it.
            let _ = self.own.decide(&[back]);
        }
        let left = self.ask_own(check, share, Ask::Peek).unwrap_or(verdict).own;
        let Verdict { remaining, reset_after_ms, .. } = left;
        CheckVerdict { own: Verdict { remaining, reset_after_ms, ..verdict.own }, ..verdict }
    }

    /// Notes what the store told of a counter.
    fn note(&self, key: &Key, told: Verdict, now: Duration) {
        let until = now + Duration::from_millis(told.reset_after_ms);
        self.told.insert(key.clone(), Told { remaining: told.remaining, until });
    }

    /// Returns what the store has of a limit, as far as is known.
    fn known_rest(&self, key: &Key, rest: &Limit, now: Duration) -> Told {
        let full = Told { remaining: rest.capacity(), until: now };
        self.told.get(key).filter(|told| now < told.until && told.remaining < full.remaining).unwrap_or(full)
    }
}

/// Returns a check of a share's counter.
fn own_check(check: &Check, share: Limit, ask: Ask) -> Check {
    Check { caller: check.caller, role: Role::Shadow, ..Check::new(check.key.clone(), share, ask) }
}

/// The shares of this process, as used by one worker.
pub struct Shares<S> {
    store: S,
    desk: Arc<Desk>,
}

/// What a share says of a check.
struct Part {
    /// The limit of the share, and its verdict; `None` if there is no share, or no room for its counter.
    own: Option<(Limit, CheckVerdict)>,
    /// What the store is asked; `None` if the share answers.
    ask: Option<Ask>,
}

type Parts = SmallVec<[Part; 1]>;

impl<S> Shares<S> {
    /// Returns shares around these stores, one for each worker, which lead to the same counters.
    pub fn around(stores: Vec<S>, desk: &Arc<Desk>) -> Vec<Shares<S>> {
        stores.into_iter().map(|store| Shares { store, desk: Arc::clone(desk) }).collect()
    }

    /// Returns the store for a command that asks about counters: it knows that instances have shares, and has none.
    pub fn of_command(store: S) -> Shares<S> {
        Shares { store, desk: Arc::new(Desk::of_command()) }
    }

    /// Returns what the decisions of this process share.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Asks the shares of these checks.
    fn ask_own<C: Borrow<Check>>(&self, view: &View, checks: &[C], now: Duration) -> Parts {
        let mut parts: Parts = checks.iter().map(|check| self.part(view, check.borrow(), now)).collect();
        let checks = || checks.iter().map(Borrow::borrow);
        // The vote of quotas needs all of them.
        let has_quota = checks().any(|check| check.role == Role::Quota);
        if has_quota && parts.iter().any(|part| part.ask.is_some()) {
            for (part, check) in parts.iter_mut().zip(checks()).filter(|(part, _)| part.ask.is_none()) {
                self.ask_store_instead(part, check);
            }
        }
        // The process may have stood still meanwhile, for longer than the seat lasts.
        if parts.iter().any(|part| part.own.is_some()) && view.seat(self.desk.now()).is_none() {
            parts.iter_mut().zip(checks()).for_each(|(part, check)| self.ask_store_instead(part, check));
        }
        parts
    }

    /// Lets the store decide what the share has admitted. A refund stays where it was.
    fn ask_store_instead(&self, part: &mut Part, check: &Check) {
        if part.ask.is_none() && check.ask.taken() > 0 {
            self.give_back(part, check);
            part.ask = Some(check.ask);
        }
    }

    fn part(&self, view: &View, check: &Check, now: Duration) -> Part {
        let share = view.share(&check.shared, &check.limit, now);
        let of = |ask| share.and_then(|share| Some((share, self.desk.ask_own(check, share, ask)?)));
        match check.ask {
            Ask::Take(_) => {
                let own = of(check.ask);
                let is_admitted = own.is_some_and(|(_, verdict)| verdict.allowed());
                Part { own, ask: (!is_admitted).then_some(check.ask) }
            }
            Ask::Refund(hits) => {
                let used =
                    |(share, verdict): (Limit, CheckVerdict)| share.capacity().saturating_sub(verdict.own.remaining);
                let used = of(Ask::Peek).map_or(0, used);
                let own_hits = hits.min(used);
                let own = Ask::refund(own_hits).and_then(of);
                // A share whose counter cannot be asked refunds nothing.
                let left = if own.is_some() { hits - own_hits } else { hits };
                Part { own, ask: Ask::refund(left).filter(|ask| *ask != Ask::Peek) }
            }
            Ask::Peek | Ask::Reset => Part { own: of(check.ask), ask: Some(check.ask) },
            // Charges that are taken back are the store's: those of shares are taken back here. Budgets have no shares.
            Ask::TakeBack(_) | Ask::Settle(_) | Ask::Credit(_) => Part { own: None, ask: Some(check.ask) },
        }
    }

    /// Takes back what the share has charged for this check.
    fn give_back(&self, part: &mut Part, check: &Check) {
        if let Some((share, verdict)) = part.own.filter(|_| part.ask.is_none() && check.ask.taken() > 0) {
            part.own = Some((share, self.desk.take_back(check, share, verdict)));
        }
    }

    /// Returns the verdict of a check by those of the share and of the store; `None` if neither was asked.
    fn verdict(
        &self,
        (view, now): (&View, Duration),
        (check, part): (&Check, &Part),
        told: Option<CheckVerdict>,
    ) -> Option<CheckVerdict> {
        let Some((share, own)) = part.own.filter(|_| part.ask.is_none() || told.is_some()) else { return told };
        let Some(told) = told else { return self.known((view, now), check, part.own) };
        let share = Some(ShareLeft { capacity: share.capacity(), remaining: own.own.remaining });
        self.desk.note(&check.key, told.own, now);
        Some(CheckVerdict { own: together(check.ask, &own.own, &told.own), share, ..told })
    }

    /// Returns the verdict of a share, with what is known of the store.
    fn known(
        &self,
        (view, now): (&View, Duration),
        check: &Check,
        own: Option<(Limit, CheckVerdict)>,
    ) -> Option<CheckVerdict> {
        let (share, own) = own?;
        let rest = view.rest(&check.shared, &check.limit, now);
        let known = self.desk.known_rest(&check.key, &rest, now);
        let remaining = own.own.remaining.saturating_add(known.remaining);
        let reset_after_ms = own.own.reset_after_ms.max(known.reset_after_ms(now));
        let share = Some(ShareLeft { capacity: share.capacity(), remaining: own.own.remaining });
        Some(CheckVerdict { share, ..CheckVerdict::new(Verdict { remaining, reset_after_ms, ..own.own }, 0) })
    }

    /// Returns a check as the store decides it: by the number less all shares.
    fn for_store(&self, view: &View, check: &Check, ask: Ask, now: Duration) -> Check {
        let limit = view.rest(&check.shared, &check.limit, now);
        let lease = match check.lease {
            Some(lease) if limit != check.limit => lease.within(&limit),
            lease => lease,
        };
        Check { limit, lease, ask, ..check.clone() }
    }
}

/// Returns whether each share of a check that asks the store has room for one more hit.
fn has_room(parts: &Parts) -> bool {
    let mut asking = parts.iter().filter(|part| part.ask.is_some());
    asking.all(|part| part.own.is_some_and(|(_, verdict)| verdict.own.remaining > 0))
}

/// Returns the verdict of a limit by those of a share and of the store. Hits are not split: a request passes by one of
/// them.
fn together(ask: Ask, own: &Verdict, told: &Verdict) -> Verdict {
    let allowed = told.allowed || (ask == Ask::Peek && own.allowed);
    let remaining = told.remaining.saturating_add(own.remaining);
    let fewer = ask.taken().saturating_sub(1);
    let waits = [own.retry_after_ms, told.retry_after_ms];
    Verdict {
        allowed,
        remaining: if allowed { remaining } else { remaining.min(fewer) },
        reset_after_ms: told.reset_after_ms.max(own.reset_after_ms),
        retry_after_ms: if allowed { Some(0) } else { waits.into_iter().flatten().min() },
        ..*told
    }
}

/// What shares have charged for a request. Taken back at its end, unless it stands.
struct Charged<'s, S, C: Borrow<Check>> {
    shares: &'s Shares<S>,
    checks: &'s [C],
    parts: Box<Parts>,
    stands: bool,
}

impl<S, C: Borrow<Check>> Charged<'_, S, C> {
    fn take_back(&mut self) {
        let parts = self.parts.iter_mut().zip(self.checks);
        parts.for_each(|(part, check)| self.shares.give_back(part, check.borrow()));
        self.stands = true;
    }
}

impl<S, C: Borrow<Check>> Drop for Charged<'_, S, C> {
    fn drop(&mut self) {
        if !self.stands {
            self.take_back();
        }
    }
}

impl<S: Store> Shares<S> {
    /// Waits for a beat that makes the table known well enough. Does not wait if the table did not answer the last one:
    /// the decision then goes by what was known before. Without an answer to any beat it fails, since this instance may
    /// not ask the store for hits that others admit by shares; a store that is down says so.
    async fn wait<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<(), StoreError> {
        let desk = &self.desk;
        loop {
            // Made before the question, so that no beat is missed.
            let ended = desk.ended.notified();
            if desk.is_current() || desk.goes_by_what_is_known() {
                return Ok(());
            }
            desk.wanted.notify_one();
            let is_away = desk.is_away.load(Ordering::Acquire);
            if is_away {
                let peek = |Check { key, limit, caller, .. }: &Check| Check {
                    caller: *caller,
                    ..Check::new(key.clone(), *limit, Ask::Peek)
                };
                let peeks: Vec<Check> = checks.iter().map(|check| peek(check.borrow())).collect();
                self.store.check(&peeks, deadline).await.map_err(|error| error.without_verdicts().clone())?;
            }
            timeout_at(deadline, ended).await.map_err(|_| match is_away {
                true => StoreError::Down("the table of seats has not answered yet".into()),
                false => StoreError::Timeout,
            })?;
        }
    }

    /// Asks the store for what shares do not admit.
    async fn ask_store<C: Borrow<Check> + Sync>(
        &self,
        (view, now): (Arc<View>, Duration),
        (checks, parts): (&[C], Box<Parts>),
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        let asked = parts.iter().zip(checks).filter_map(|(part, check)| Some((part.ask?, check.borrow())));
        let questions: Vec<Check> = asked.map(|(ask, check)| self.for_store(&view, check, ask, now)).collect();
        let spread = |told: &Verdicts, parts: &Parts| {
            let mut told = told.iter().copied();
            parts.iter().map(|part| part.ask.and_then(|_| told.next().flatten())).collect::<Verdicts>()
        };
        // Taken back also if the caller goes away meanwhile.
        let mut charged = Charged { shares: self, checks, parts, stands: false };
        match self.store.check(&questions, deadline).await {
            Ok(told) => {
                let mut votes = Votes::default();
                for (check, told) in questions.iter().zip(&told) {
                    votes.add(check.role, check, told.is_some_and(|told| !told.allowed()));
                }
                match votes.deny() {
                    true => charged.take_back(),
                    false => charged.stands = true,
                }
                let told = spread(&told, &charged.parts).into_iter();
                let parts = checks.iter().map(Borrow::borrow).zip(charged.parts.iter());
                Ok(parts.zip(told).map(|(part, told)| self.verdict((&view, now), part, told)).collect())
            }
            Err(_) if questions.iter().all(|check| check.ask == Ask::Peek) && has_room(&charged.parts) => {
                charged.stands = true;
                let parts = checks.iter().map(Borrow::borrow).zip(charged.parts.iter());
                Ok(parts.map(|(check, part)| self.known((&view, now), check, part.own)).collect())
            }
            Err(StoreError::Partly(partly)) => {
                let decided = spread(&partly.decided, &charged.parts);
                Err(StoreError::Partly(Box::new(Partly { decided, ..*partly })))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the verdicts if shares admit the request, or else what to ask the store.
    fn admit<C: Borrow<Check>>(&self, (view, now): (&View, Duration), checks: &[C]) -> Result<Verdicts, Box<Parts>> {
        let parts = self.ask_own(view, checks, now);
        if parts.iter().any(|part| part.ask.is_some()) {
            return Err(Box::new(parts));
        }
        (self.desk.on_admitted)();
        let parts = checks.iter().map(Borrow::borrow).zip(&parts);
        Ok(parts.map(|part| self.verdict((view, now), part, None)).collect())
    }
}

impl<S: Store> Store for Shares<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let (mut view, mut now) = (self.desk.view.load(), self.desk.now());
        if !view.is_current(now) && !self.desk.goes_by_what_is_known() {
            drop(view);
            Box::pin(self.wait(checks, deadline)).await?;
            (view, now) = (self.desk.view.load(), self.desk.now());
        }
        let has_shares = !view.is_empty() || checks.iter().any(|check| check.borrow().shared.split.is_some());
        let admitted = has_shares.then(|| self.admit((&view, now), checks));
        match admitted {
            None => {
                drop(view);
                self.store.check(checks, deadline).await
            }
            Some(Ok(verdicts)) => Ok(verdicts),
            Some(Err(parts)) => {
                let view = Guard::into_inner(view);
                // Boxed to keep the future of a request without shares small.
                Box::pin(self.ask_store((view, now), (checks, parts), deadline)).await
            }
        }
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        let (view, now) = (self.desk.view.load(), self.desk.now());
        self.store.known_denial(&self.for_store(&view, check, check.ask, now))
    }

    async fn close(&self, deadline: Instant) {
        self.store.close(deadline).await;
    }

    fn flush_log(&self) {
        self.store.flush_log();
    }
}
