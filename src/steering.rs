//! Steering: the adjustments of the store, put in force in this process.
//!
//! One task reads them every [`POLL`], by their version, so that mostly nothing travels. A change through this replica
//! is in force here with its reply, and at the others with their next reading. While the store does not answer, those
//! last read hold until their end, which this process keeps by its own clock: a clock of the store that steps makes
//! none last longer.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::adjustment::{
    Adjustment, Content, Effect, Id, InForce, Kind, MOST, Mistakes, Proposal, Shown, Target, Written, check_words,
};
use crate::descriptor;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::rules::{Allowance, Rule, Rules};
use crate::store::adjustments::{AdjustmentStore, Command, Outcome, Reply, remaining};
use crate::store::{Store, StoreError};

/// The target of all log lines of this.
pub const LOG_TARGET: &str = module_path!();

/// How often the adjustments are read: each is in force everywhere within a second.
pub const POLL: Duration = Duration::from_millis(500);

/// Reads adjustments, changes them, and puts them in force.
pub struct Steering<S> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    store: AdjustmentStore,
    /// Held while the store is asked and until its reply is in force, so that no older reply comes after it.
    asking: tokio::sync::Mutex<()>,
    held: Mutex<Held>,
    /// An end may have come nearer.
    changed: Notify,
}

/// What was read last.
#[derive(Default)]
struct Held {
    version: u64,
    list: Vec<Entry>,
    /// The store did not answer when it was last asked.
    is_unread: bool,
    unreadable: usize,
    /// The rules that [`Entry::unmatched`] is about.
    rules: Weak<Rules>,
}

/// An adjustment, as this process knows it.
#[derive(Clone)]
struct Entry {
    adjustment: Arc<Adjustment>,
    /// When it ends, on this process's clock.
    ends: Instant,
    has_ended: bool,
    /// Why it does not match the rules.
    unmatched: Option<String>,
}

/// Who asks for a change, for the log.
#[derive(Clone, Copy, Debug)]
pub struct By<'b> {
    /// As they say themselves.
    pub who: &'b str,
    /// Why.
    pub why: &'b str,
    /// By what right: `admin`.
    pub role: &'b str,
}

/// Why a change has not been made.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// It says something wrong.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    /// The rules have nothing that it would change.
    #[error("{0}")]
    Unmatched(String),
    /// Another has this id.
    #[error("the id {0} is that of another adjustment: end that one first, or choose another id")]
    Taken(Id),
    /// There are too many.
    #[error("there are {MOST} adjustments, which is the most: end one first")]
    Full,
    /// There is none of this id.
    #[error("no adjustment has the id {0}: it has ended, or never begun")]
    Unknown(Id),
    /// The store was not reached, and has changed nothing.
    #[error("nothing is changed, because the store is unavailable ({0}): ask again when it is back")]
    Unreached(StoreError),
    /// The store does not answer. The id may be one that was chosen here.
    #[error("the store is unavailable ({cause}); the change may have been made: ask again with the id {id}")]
    Store {
        /// Of the adjustment.
        id: Id,
        /// What the store says.
        cause: StoreError,
    },
}

impl SteeringError {
    /// What the store has said of a change of this id.
    pub fn unavailable(id: &Id, cause: StoreError) -> SteeringError {
        match cause {
            StoreError::Down(_) => SteeringError::Unreached(cause),
            cause => SteeringError::Store { id: id.clone(), cause },
        }
    }
}

impl<S: Store> Steering<S> {
    /// Of the limits that this limiter decides. None is in force before the first [`Steering::read`].
    pub fn new(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>, store: AdjustmentStore) -> Steering<S> {
        Steering {
            limiter,
            metrics,
            store,
            asking: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Reads the adjustments once, and puts them in force.
    ///
    /// # Errors
    /// Where the store does not answer, which is logged: those that are known hold until their end.
    pub async fn read(&self) -> Result<(), StoreError> {
        self.ask(Command::Read).await.map(drop)
    }

    /// Reads them again and again, and ends each in time, for ever. Begun anew after a panic, it reads all of them.
    pub async fn keep(&self) -> Infallible {
        self.held.lock().version = 0;
        tokio::select! {
            never = self.read_on() => never,
            never = self.expire_on() => never,
        }
    }

    async fn read_on(&self) -> Infallible {
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // It is logged, and tried again.
            let _ = self.read().await;
            self.match_rules();
        }
    }

    /// Beside the reading, which may wait for the store.
    async fn expire_on(&self) -> Infallible {
        loop {
            let next = self.expire(Instant::now());
            tokio::select! {
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Begins an adjustment, in force here when this returns. Asked again with the same id, it changes nothing.
    ///
    /// # Errors
    /// Where it is wrong, or would change nothing, or the store does not answer.
    pub async fn begin(&self, written: &Written, role: &str) -> Result<Shown, SteeringError> {
        let proposal = written.proposal(fresh_id)?;
        let mismatch = unmatched(&self.limiter.snapshot().rules, &[&proposal.content]).remove(&0);
        let note = match mismatch {
            Some(Mismatch { reason, may_begin: false }) => return Err(SteeringError::Unmatched(reason)),
            Some(Mismatch { reason, may_begin: true }) => Some(reason),
            None => None,
        };
        let unavailable = |cause| SteeringError::unavailable(&proposal.id, cause);
        let reply = self.ask(Command::Begin(&proposal)).await.map_err(unavailable)?;
        match reply.outcome {
            Outcome::Taken => return Err(SteeringError::Taken(proposal.id)),
            Outcome::Full => return Err(SteeringError::Full),
            _ => {}
        }
        let Proposal { id, content: Content { target, effect, who, why }, .. } = &proposal;
        let (target, is_new) = (target.without_values(), reply.outcome == Outcome::Done);
        tracing::warn!(%id, %effect, target, who, why, role, is_new, "an adjustment is made by hand");
        let begun = reply.adjustments.iter().find(|one| one.id == *id);
        begun.map(|adjustment| Shown::new(adjustment, note)).ok_or_else(|| unavailable(StoreError::Answer))
    }

    /// Ends an adjustment before its time, at once here.
    ///
    /// # Errors
    /// Where the words are wrong, there is none of this id, or the store does not answer.
    pub async fn end(&self, id: &Id, By { who, why, role }: By<'_>) -> Result<(), SteeringError> {
        check_words(who, why)?;
        let unavailable = |cause| SteeringError::unavailable(id, cause);
        let reply = self.ask(Command::End(id)).await.map_err(unavailable)?;
        if reply.outcome == Outcome::Unknown {
            return Err(SteeringError::Unknown(id.clone()));
        }
        tracing::warn!(%id, who, why, role, "an adjustment is ended by hand");
        Ok(())
    }

    /// How many are in force.
    pub fn count(&self) -> usize {
        self.held.lock().list.iter().filter(|entry| !entry.has_ended).count()
    }

    /// Those in force, the oldest first.
    pub fn list(&self) -> Vec<Shown> {
        let held = self.held.lock();
        let in_force = held.list.iter().filter(|entry| !entry.has_ended);
        in_force.map(|entry| Shown::new(&entry.adjustment, entry.unmatched.clone())).collect()
    }

    async fn ask(&self, command: Command<'_>) -> Result<Reply, StoreError> {
        let _one_at_a_time = self.asking.lock().await;
        let (known, asked) = (self.held.lock().version, Instant::now());
        let reply = self.store.ask(known, command).await;
        match &reply {
            Ok(reply) => self.take(reply, asked),
            Err(error) => self.report_unread(error),
        }
        reply
    }

    /// Puts in force what the store has replied to a question of then.
    fn take(&self, reply: &Reply, asked: Instant) {
        let mut held = self.held.lock();
        if std::mem::take(&mut held.is_unread) && !held.list.is_empty() {
            tracing::info!("the store tells of adjustments again");
        }
        if reply.outcome == Outcome::Unchanged {
            return;
        }
        if reply.unreadable > 0 && reply.unreadable != held.unreadable {
            let adjustments = reply.unreadable;
            tracing::warn!(adjustments, "another version of Tollgate has made adjustments that this one cannot read");
        }
        held.unreadable = reply.unreadable;
        held.version = reply.version;
        let mut before: HashMap<Id, Entry> =
            held.list.drain(..).map(|entry| (entry.adjustment.id.clone(), entry)).collect();
        for adjustment in &reply.adjustments {
            let known = before.get(&adjustment.id).filter(|known| is_same(&known.adjustment, adjustment));
            if known.is_some() {
                held.list.extend(before.remove(&adjustment.id));
                continue;
            }
            let ends = asked + remaining(adjustment, reply.now_ms);
            let entry =
                Entry { adjustment: Arc::new(adjustment.clone()), ends, has_ended: ends <= asked, unmatched: None };
            if !entry.has_ended {
                tell(adjustment, "an adjustment begins");
            }
            held.list.push(entry);
        }
        for gone in before.into_values().filter(|entry| !entry.has_ended) {
            tell(&gone.adjustment, "an adjustment has ended");
        }
        held.rules = Weak::new();
        self.put_in_force(&held);
        drop(held);
        self.match_rules();
        self.changed.notify_one();
    }

    /// Ends those whose time is over, and says when the next one ends.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut held = self.held.lock();
        let mut any = false;
        for entry in held.list.iter_mut().filter(|entry| !entry.has_ended && entry.ends <= now) {
            entry.has_ended = true;
            any = true;
            tell(&entry.adjustment, "an adjustment has ended");
        }
        if any {
            self.put_in_force(&held);
        }
        held.list.iter().filter(|entry| !entry.has_ended).map(|entry| entry.ends).min()
    }

    fn put_in_force(&self, held: &Held) {
        let in_force = held.list.iter().filter(|entry| !entry.has_ended);
        let in_force = InForce::new(in_force.map(|entry| Arc::clone(&entry.adjustment)).collect());
        self.metrics.set_adjustments(in_force.iter().map(|adjustment| adjustment.content.effect.name()));
        self.limiter.put_adjustments_in_force(in_force);
    }

    /// Tells which adjustments do not match the rules, whenever either has changed.
    fn match_rules(&self) {
        let mut held = self.held.lock();
        let rules = Arc::clone(&self.limiter.snapshot().rules);
        if std::ptr::eq(held.rules.as_ptr(), Arc::as_ptr(&rules)) {
            return;
        }
        let contents: Vec<&Content> = held.list.iter().map(|entry| &entry.adjustment.content).collect();
        let mut found = unmatched(&rules, &contents);
        for (place, entry) in held.list.iter_mut().enumerate() {
            let reason = found.remove(&place).map(|mismatch| mismatch.reason);
            if let Some(reason) = reason.as_ref().filter(|reason| entry.unmatched.as_ref() != Some(reason)) {
                let id = &entry.adjustment.id;
                tracing::warn!(%id, reason, "an adjustment does not match the rules");
            }
            entry.unmatched = reason;
        }
        held.rules = Arc::downgrade(&rules);
    }

    fn report_unread(&self, error: &StoreError) {
        let mut held = self.held.lock();
        let adjustments = held.list.iter().filter(|entry| !entry.has_ended).count();
        match std::mem::replace(&mut held.is_unread, true) {
            // That the store is down is told elsewhere: here only what comes of it.
            false if adjustments > 0 => tracing::warn!(
                %error, adjustments,
                "the store does not tell of adjustments: those that are known hold until their end"
            ),
            _ => tracing::debug!(%error, "the store does not tell of adjustments"),
        }
    }
}

/// It is the same, also where the store's clock was set back and it counts from then on.
fn is_same(known: &Adjustment, read: &Adjustment) -> bool {
    known.content == read.content && known.lasts() == read.lasts() && read.since_ms <= known.since_ms
}

fn tell(adjustment: &Adjustment, what: &str) {
    let Adjustment { id, content: Content { target, effect, who, why }, .. } = adjustment;
    let target = target.without_values();
    tracing::info!(%id, %effect, target, who, why, "{what}");
}

/// One that nobody has chosen.
fn fresh_id() -> Id {
    Id::of_number(RandomState::new().hash_one(0))
}

/// Why an adjustment does not match the rules.
struct Mismatch {
    reason: String,
    /// It may be meant so: it changes limits that requests bring along.
    may_begin: bool,
}

impl Mismatch {
    fn refused(reason: String) -> Mismatch {
        Mismatch { reason, may_begin: false }
    }

    fn of_rules(reason: &str) -> Mismatch {
        let reason = format!("{reason}: it changes only limits that requests bring along");
        Mismatch { reason, may_begin: true }
    }
}

/// Which of these do not match the rules, by their places.
fn unmatched(rules: &Rules, contents: &[&Content]) -> BTreeMap<usize, Mismatch> {
    let mut found = BTreeMap::new();
    // By name, so that a million rules are looked at once.
    let mut wanted: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (place, content) in contents.iter().enumerate() {
        let Some(name) = content.target.domain() else { continue };
        let Some(domain) = rules.domain(name) else {
            found.insert(place, Mismatch::refused(format!("the rules have no domain {name}")));
            continue;
        };
        match &content.target {
            Target::Rule { rule, .. } => {
                let reason = format!("domain {name} has no rule {rule}: name its path or its limit");
                found.insert(place, Mismatch::refused(reason));
                wanted.entry((name, rule)).or_default().push(place);
            }
            Target::Descriptor { entries, .. } => {
                let mismatch = of_descriptor(rules.find(domain, entries), entries, content.effect);
                found.extend(mismatch.map(|mismatch| (place, mismatch)));
            }
            Target::All | Target::Domain(_) => {}
        }
    }
    if wanted.is_empty() {
        return found;
    }
    for (rule, limit) in rules.limits() {
        for name in [&rule.path, &limit.label] {
            for place in wanted.get(&(&*rule.domain, &**name)).into_iter().flatten() {
                match changes(contents[*place].effect, &limit.config.allowance) {
                    None => drop(found.remove(place)),
                    Some(reason) => drop(found.entry(*place).and_modify(|found| found.reason = reason)),
                }
            }
        }
    }
    found
}

/// Why an adjustment of one descriptor, which reaches this rule, does not match it.
fn of_descriptor(rule: Option<&Rule>, entries: &[descriptor::Entry], effect: Effect) -> Option<Mismatch> {
    let Some(rule) = rule else {
        return Some(Mismatch::of_rules("a descriptor of these entries reaches no rule"));
    };
    if let Some(reason) = shares(rule, entries, effect) {
        return Some(Mismatch::refused(reason));
    }
    let allowances = || rule.limits.iter().map(|limit| &limit.config.allowance);
    if allowances().all(|allowance| matches!(allowance, Allowance::Unlimited)) {
        return Some(Mismatch::of_rules("the rule is unlimited"));
    }
    allowances().map(|allowance| changes(effect, allowance)).reduce(Option::and).flatten().map(Mismatch::refused)
}

/// Why a descriptor has nothing of its own to change where it shares its counter: a pattern is no value of a request,
/// and the number is that of all who share it. What is asked of the counter, and what a denial means, each value has
/// for itself.
fn shares(rule: &Rule, entries: &[descriptor::Entry], effect: Effect) -> Option<String> {
    entries.iter().enumerate().find_map(|(level, descriptor::Entry { key, value })| {
        let pattern = rule.shared_pattern(level)?;
        let is_of_all = value == pattern || effect.kind() == Kind::Number;
        let path = &rule.path;
        is_of_all.then(|| format!("the values of {key} that match {pattern} share one counter: name the rule {path}"))
    })
}

/// Why this effect changes nothing about a limit, if it is so.
fn changes(effect: Effect, allowance: &Allowance) -> Option<String> {
    let Allowance::Limited(limit) = allowance else { return Some("the rule is unlimited".to_owned()) };
    let number = effect.number(limit.number());
    let has_number = effect.limit(limit).number() == number;
    (!has_number).then(|| format!("{} cannot have the number {number}", limit.algorithm()))
}
