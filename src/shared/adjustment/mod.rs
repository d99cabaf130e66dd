//! Puts the adjustments of the store in force in this process.
//!
//! One task reads them every [`POLL`], by their version, so most reads transfer nothing. A change through this instance
//! is in force here when it is answered, and on the other instances after their next read. While the store does not
//! answer, the adjustments read last stay in force until they end. This process measures that by its own clock, so a
//! jump of the store's clock cannot prolong them.

pub mod audit;
pub mod board;
pub mod redis;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::resume_unwind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::engine::adjustment::{
    Adjustment, Content, Effect, Id, InForce, Kind, MOST, Mistakes, Proposal, Shown, Target, Written, check_words,
};
use crate::engine::check::StoreError;
use crate::engine::descriptor;
use crate::engine::rules::report::{nearest, quoted};
use crate::engine::rules::{Allowance, Budget, Domain, Rule, Rules};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::store::Store;
use audit::{Audit, Note};
use board::{Command, Outcome, Reply, remaining};

pub use store::AdjustmentStore;

/// The target of this module's log lines.
pub const LOG_TARGET: &str = module_path!();

/// How often the adjustments are read. Each is in force everywhere within a second.
pub const POLL: Duration = Duration::from_millis(500);

/// The adjustments of this process: reads them from the store, changes them there, and puts them in force here.
pub struct Adjustments<S> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    store: Arc<AdjustmentStore>,
    audit: Arc<Audit>,
    /// Name of this instance in the audit trail; `None` for a command.
    instance: Option<String>,
    /// Held from asking the store until its reply is in force, to keep an older reply from following a newer one.
    asking: tokio::sync::Mutex<()>,
    held: Mutex<Held>,
    /// Notified when the next end may be earlier than before.
    changed: Notify,
}

/// The adjustments read last.
#[derive(Default)]
struct Held {
    version: u64,
    list: Vec<Entry>,
    /// Whether the store did not answer the last question.
    is_unread: bool,
    unreadable: usize,
    /// The rules to which [`Entry::unmatched`] applies.
    rules: Weak<Rules>,
}

/// An adjustment in this process.
#[derive(Clone)]
struct Entry {
    adjustment: Arc<Adjustment>,
    /// When it ends, on this process's clock.
    ends: Instant,
    has_ended: bool,
    /// Why it does not match the rules.
    unmatched: Option<String>,
}

/// The most adjustments changed at the same time that get a log line each.
const LOGGED: usize = 10;

/// Most names of rules that are compared with a name that no rule has.
const NEAR: usize = 10_000;

/// An adjustment that is not in force, with the rules that it would change.
#[derive(Debug)]
pub struct Previewed {
    /// Its ID.
    pub id: Id,
    /// The rules in force.
    pub rules: Arc<Rules>,
    /// The adjustments in force, if any.
    pub before: Option<Arc<InForce>>,
    /// The same with this one.
    pub after: InForce,
    /// Why it changes only limits that requests bring along, if so.
    pub note: Option<String>,
}

/// The origin of a change, for the log.
#[derive(Clone, Copy, Debug)]
pub struct By<'b> {
    /// The name that the caller gave.
    pub who: &'b str,
    /// The reason that the caller gave.
    pub why: &'b str,
    /// The role that permits the change: `admin`.
    pub role: &'b str,
}

/// The reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum AdjustmentError {
    /// The request is invalid.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    /// The first rules are not loaded yet.
    #[error("no rules are in force yet: try again when they are loaded")]
    NoRules,
    /// The rules contain nothing that the adjustment would change.
    #[error("{0}")]
    Unmatched(String),
    /// Another adjustment has this ID.
    #[error("another adjustment has the id {0}: end it first, or choose another id")]
    Taken(Id),
    /// There are too many adjustments.
    #[error("{MOST} adjustments are in force, which is the maximum: end one first")]
    Full,
    /// No adjustment has this ID.
    #[error("no adjustment has the id {0}: it has ended, or never existed")]
    Unknown(Id),
    /// The store could not be reached, and has changed nothing.
    #[error("the store is unavailable ({0}), and nothing was changed: try again when it is back")]
    Unreached(StoreError),
    /// The store does not answer. The ID may be one that was chosen here.
    #[error("the store is unavailable ({cause}); the change may have been made: repeat it with the id {id}")]
    Store {
        /// The ID of the adjustment.
        id: Id,
        /// The store's error.
        cause: StoreError,
    },
}

impl AdjustmentError {
    /// Returns the error for a change to this ID when the store failed.
    pub fn unavailable(id: &Id, cause: StoreError) -> AdjustmentError {
        match cause {
            StoreError::Down(_) => AdjustmentError::Unreached(cause),
            cause => AdjustmentError::Store { id: id.clone(), cause },
        }
    }
}

impl<S> Adjustments<S> {
    /// Returns the audit trail.
    pub fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    /// Returns the name of this instance in the audit trail.
    pub fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }
}

impl<S: Store> Adjustments<S> {
    /// Returns the adjustments of this limiter's limits. None is in force before the first [`Adjustments::read`].
    pub fn new(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>, store: AdjustmentStore) -> Adjustments<S> {
        let store = Arc::new(store);
        Adjustments {
            audit: Arc::new(Audit::new(Arc::clone(&store), Arc::clone(&metrics))),
            limiter,
            metrics,
            store,
            instance: None,
            asking: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Names this instance in the audit trail.
    #[must_use]
    pub fn of_instance(self, instance: String) -> Adjustments<S> {
        Adjustments { instance: Some(instance), ..self }
    }

    /// Reads the adjustments once, and puts them in force.
    ///
    /// # Errors
    /// If the store does not answer, which is logged. The known adjustments stay in force until they end.
    pub async fn read(&self) -> Result<(), StoreError> {
        self.ask(Command::Read).await.map(drop)
    }

    /// Reads the adjustments repeatedly, and ends each in time. Never returns. If restarted after a panic, reads all of
    /// them.
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
            // The error is logged, and the next one tries again.
            let _ = self.ask(self.next_command()).await;
        }
    }

    /// Returns how the adjustments are read next. If one is over, the store removes it, which records its end once for
    /// the fleet.
    fn next_command(&self) -> Command<'static> {
        match self.held.lock().list.iter().any(|entry| entry.has_ended) {
            true => Command::Sweep,
            false => Command::Read,
        }
    }

    /// Runs in parallel with reading, which may wait for the store.
    async fn expire_on(&self) -> Infallible {
        loop {
            let next = self.expire(Instant::now());
            tokio::select! {
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Begins an adjustment, which is in force here on return. A repeated call with the same ID changes nothing.
    ///
    /// # Errors
    /// If the adjustment is invalid or would change nothing, or if the store does not answer.
    pub async fn begin(&self, written: &Written, role: &str) -> Result<Shown, AdjustmentError> {
        let proposal = written.proposal(fresh_id)?;
        let snapshot = self.limiter.snapshot();
        if !snapshot.is_in_force() {
            return Err(AdjustmentError::NoRules);
        }
        let (rules, content) = (Arc::clone(&snapshot.rules), proposal.content.clone());
        let mismatch = off_thread(move || unmatched(&rules, &[&content]).remove(&0)).await;
        let note = match mismatch {
            Some(Mismatch { reason, may_begin: false }) => return Err(AdjustmentError::Unmatched(reason)),
            Some(Mismatch { reason, may_begin: true }) => Some(reason),
            None => None,
        };
        let unavailable = |cause| AdjustmentError::unavailable(&proposal.id, cause);
        let reply = self.ask(Command::Begin(&proposal, &self.note(role))).await.map_err(unavailable)?;
        match reply.outcome {
            Outcome::Taken => return Err(AdjustmentError::Taken(proposal.id)),
            Outcome::Full => return Err(AdjustmentError::Full),
            _ => {}
        }
        let Proposal { id, content: Content { target, effect, who, why }, .. } = &proposal;
        let (target, is_new) = (target.without_values(), reply.outcome == Outcome::Done);
        tracing::warn!(%id, %effect, target, who, why, role, is_new, "an operator has created an adjustment");
        let begun = reply.adjustments.iter().find(|one| one.id == *id);
        begun.map(|adjustment| Shown::new(adjustment, note)).ok_or_else(|| unavailable(StoreError::Answer))
    }

    /// Returns an adjustment and the rules with and without it, without beginning it. Who begins it, why and for how
    /// long need not be known yet.
    ///
    /// # Errors
    /// If the adjustment is invalid or would change nothing.
    pub async fn preview(&self, written: &Written) -> Result<Previewed, AdjustmentError> {
        let or = |text: &String, other: &str| if text.trim().is_empty() { other.to_owned() } else { text.clone() };
        let written = Written {
            who: or(&written.who, "a preview"),
            why: or(&written.why, "a preview"),
            lasts: written.lasts.clone().or_else(|| Some("1h".to_owned())),
            ..written.clone()
        };
        let Proposal { id, content, lasts } = written.proposal(fresh_id)?;
        let snapshot = self.limiter.snapshot();
        if !snapshot.is_in_force() {
            return Err(AdjustmentError::NoRules);
        }
        let (rules, before) = (Arc::clone(&snapshot.rules), snapshot.shared_adjustments());
        off_thread(move || {
            let note = match unmatched(&rules, &[&content]).remove(&0) {
                Some(Mismatch { reason, may_begin: false }) => return Err(AdjustmentError::Unmatched(reason)),
                Some(Mismatch { reason, may_begin: true }) => Some(reason),
                None => None,
            };
            let until_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
            let adjustment = Adjustment { id: id.clone(), content, since_ms: 0, until_ms };
            let after = before.as_deref().unwrap_or(&InForce::default()).with(adjustment);
            Ok(Previewed { id, rules, before, after, note })
        })
        .await
    }

    /// Ends an adjustment early, immediately on this instance.
    ///
    /// # Errors
    /// If the name or the reason is invalid, no adjustment has this ID, or the store does not answer.
    pub async fn end(&self, id: &Id, By { who, why, role }: By<'_>) -> Result<(), AdjustmentError> {
        check_words(who, why)?;
        let unavailable = |cause| AdjustmentError::unavailable(id, cause);
        let note = Note { who: Some(who.to_owned()), why: Some(why.to_owned()), ..self.note(role) };
        let reply = self.ask(Command::End(id, &note)).await.map_err(unavailable)?;
        if reply.outcome == Outcome::Unknown {
            return Err(AdjustmentError::Unknown(id.clone()));
        }
        tracing::warn!(%id, who, why, role, "an operator has ended an adjustment");
        Ok(())
    }

    fn note(&self, role: &str) -> Note {
        Note { role: Some(role.to_owned()), instance: self.instance.clone(), ..Note::default() }
    }

    /// Returns the number of adjustments in force.
    pub fn count(&self) -> usize {
        self.held.lock().list.iter().filter(|entry| !entry.has_ended).count()
    }

    /// Returns the adjustments in force, the oldest first.
    pub fn list(&self) -> Vec<Shown> {
        let held = self.held.lock();
        let in_force = held.list.iter().filter(|entry| !entry.has_ended);
        in_force.map(|entry| Shown::new(&entry.adjustment, entry.unmatched.clone())).collect()
    }

    async fn ask(&self, command: Command<'_>) -> Result<Reply, StoreError> {
        let one_at_a_time = self.asking.lock().await;
        let (known, asked) = (self.held.lock().version, Instant::now());
        let reply = self.store.ask(known, command).await;
        match &reply {
            Ok(reply) => self.take(reply, asked),
            Err(error) => self.report_unread(error),
        }
        drop(one_at_a_time);
        self.match_rules().await;
        reply
    }

    /// Puts the store's reply in force, to a question asked at this time.
    fn take(&self, reply: &Reply, asked: Instant) {
        let mut held = self.held.lock();
        if std::mem::take(&mut held.is_unread) && !held.list.is_empty() {
            tracing::info!("adjustments can be read from the store again");
        }
        if reply.outcome == Outcome::Unchanged {
            return;
        }
        if reply.unreadable > 0 && reply.unreadable != held.unreadable {
            let adjustments = reply.unreadable;
            tracing::warn!(
                adjustments,
                "ignoring adjustments of another version of Tollgate, which this one cannot read"
            );
        }
        held.unreadable = reply.unreadable;
        held.version = reply.version;
        let mut before: HashMap<Id, Entry> =
            held.list.drain(..).map(|entry| (entry.adjustment.id.clone(), entry)).collect();
        let mut begun = Vec::new();
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
                begun.push(Arc::clone(&entry.adjustment));
            }
            held.list.push(entry);
        }
        tell(&begun, "an adjustment is in force");
        let gone = before.into_values().filter(|entry| !entry.has_ended).map(|entry| entry.adjustment);
        tell(&gone.collect::<Vec<_>>(), "an adjustment has ended");
        held.rules = Weak::new();
        self.put_in_force(&held);
        drop(held);
        self.changed.notify_one();
    }

    /// Ends adjustments that are over, and returns when the next one ends.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut held = self.held.lock();
        let mut ended = Vec::new();
        for entry in held.list.iter_mut().filter(|entry| !entry.has_ended && entry.ends <= now) {
            entry.has_ended = true;
            ended.push(Arc::clone(&entry.adjustment));
        }
        tell(&ended, "an adjustment has ended");
        if !ended.is_empty() {
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

    /// Logs which adjustments do not match the rules, whenever either has changed.
    async fn match_rules(&self) {
        let rules = Arc::clone(&self.limiter.snapshot().rules);
        let adjustments: Vec<Arc<Adjustment>> = {
            let held = self.held.lock();
            if std::ptr::eq(held.rules.as_ptr(), Arc::as_ptr(&rules)) {
                return;
            }
            held.list.iter().map(|entry| Arc::clone(&entry.adjustment)).collect()
        };
        let (searched, contents) = (Arc::clone(&rules), adjustments.clone());
        let mut found = off_thread(move || {
            let contents: Vec<&Content> = contents.iter().map(|adjustment| &adjustment.content).collect();
            unmatched(&searched, &contents)
        })
        .await;
        let mut held = self.held.lock();
        if !held.list.iter().map(|entry| &entry.adjustment).eq(&adjustments) {
            // The next read matches the new ones.
            return;
        }
        let mut new = 0;
        for (place, entry) in held.list.iter_mut().enumerate() {
            let reason = found.remove(&place).map(|mismatch| mismatch.reason);
            if let Some(reason) = reason.as_ref().filter(|reason| entry.unmatched.as_ref() != Some(reason)) {
                new += 1;
                if new <= LOGGED {
                    let id = &entry.adjustment.id;
                    tracing::warn!(%id, reason, "an adjustment does not match the rules");
                }
            }
            entry.unmatched = reason;
        }
        if new > LOGGED {
            tracing::warn!(adjustments = new - LOGGED, "more adjustments do not match the rules");
        }
        held.rules = Arc::downgrade(&rules);
    }

    fn report_unread(&self, error: &StoreError) {
        let mut held = self.held.lock();
        let adjustments = held.list.iter().filter(|entry| !entry.has_ended).count();
        match std::mem::replace(&mut held.is_unread, true) {
            // The outage of the store is logged elsewhere; this logs only the consequence.
            false if adjustments > 0 => tracing::warn!(
                %error, adjustments,
                "cannot read adjustments from the store: the known ones stay in force until they expire"
            ),
            _ => tracing::debug!(%error, "cannot read adjustments from the store"),
        }
    }
}

/// Returns whether both are the same adjustment, even if the store's clock was set back and the duration is counted
/// from then on.
fn is_same(known: &Adjustment, read: &Adjustment) -> bool {
    known.content == read.content && known.lasts() == read.lasts() && read.since_ms <= known.since_ms
}

/// Logs the same event for each of these, up to [`LOGGED`] of them.
fn tell(adjustments: &[Arc<Adjustment>], what: &str) {
    for adjustment in adjustments.iter().take(LOGGED) {
        let Adjustment { id, content: Content { target, effect, who, why }, .. } = &**adjustment;
        let target = target.without_values();
        tracing::info!(%id, %effect, target, who, why, "{what}");
    }
    if adjustments.len() > LOGGED {
        tracing::info!(adjustments = adjustments.len() - LOGGED, "{what}: more adjustments");
    }
}

/// Runs work that may go over a million rules. On the calling thread it would hold up the ports and health checks.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => resume_unwind(error.into_panic()),
    }
}

/// Returns an unused ID.
fn fresh_id() -> Id {
    Id::of_number(RandomState::new().hash_one(0))
}

/// The reason why an adjustment does not match the rules.
struct Mismatch {
    reason: String,
    /// Whether the adjustment may still be intended, because it changes limits that requests bring along.
    may_begin: bool,
}

impl Mismatch {
    fn refused(reason: String) -> Mismatch {
        Mismatch { reason, may_begin: false }
    }

    /// Adds what the rules have instead, for entries that reach no rule.
    fn with_near_miss(mut self, rules: &Rules, domain: &Domain, entries: &[descriptor::Entry]) -> Mismatch {
        let mut budget = Budget::new(Budget::PERSON);
        if let Some(miss) = rules.trace(domain, entries, &mut budget).misses.into_iter().next() {
            self.reason = format!("{}; {}", self.reason, miss.words);
        }
        self
    }

    fn of_rules(reason: &str) -> Mismatch {
        let reason = format!("{reason}: it changes only limits that requests supply");
        Mismatch { reason, may_begin: true }
    }
}

/// Returns which of these do not match the rules, by index.
fn unmatched(rules: &Rules, contents: &[&Content]) -> BTreeMap<usize, Mismatch> {
    let mut found = BTreeMap::new();
    // By name, so a million rules are searched only once.
    let mut wanted: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (place, content) in contents.iter().enumerate() {
        let Some(name) = content.target.domain() else { continue };
        let Some(domain) = rules.domain(name) else {
            let miss = rules.missed_domain(name, &mut Budget::new(Budget::PERSON));
            found.insert(place, Mismatch::refused(format!("the rules have no domain {name}: {}", miss.words)));
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
                let mismatch = mismatch.map(|mismatch| mismatch.with_near_miss(rules, domain, entries));
                found.extend(mismatch.map(|mismatch| (place, mismatch)));
            }
            Target::All | Target::Domain(_) => {}
        }
    }
    if wanted.is_empty() {
        return found;
    }
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (rule, limit) in rules.limits() {
        for name in [&rule.path, &limit.label] {
            if names.len() < NEAR && wanted.keys().any(|(domain, _)| *domain == &*rule.domain) {
                names.push((&rule.domain, name));
            }
            for place in wanted.get(&(&*rule.domain, &**name)).into_iter().flatten() {
                match changes(contents[*place].effect, &limit.config.allowance) {
                    None => drop(found.remove(place)),
                    Some(reason) => drop(found.entry(*place).and_modify(|found| found.reason = reason)),
                }
            }
        }
    }
    for ((domain, rule), places) in wanted {
        let known: Vec<&str> = names.iter().filter(|(of, _)| *of == domain).map(|(_, name)| *name).collect();
        let Some(near) = nearest(rule, &known).filter(|near| *near != rule) else { continue };
        for place in places {
            found.entry(place).and_modify(|found| found.reason += &format!("; did you mean {}?", quoted(near)));
        }
    }
    found
}

/// Returns why an adjustment of one descriptor, which reaches this rule, does not match it.
fn of_descriptor(rule: Option<&Rule>, entries: &[descriptor::Entry], effect: Effect) -> Option<Mismatch> {
    let Some(rule) = rule else {
        return Some(Mismatch::of_rules("no rule matches a descriptor with these entries"));
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

/// Returns why a descriptor that shares its counter has nothing to change separately: a pattern is not a value of any
/// request, and the number belongs to all values that share the counter. The cost of requests and the effect of a
/// denial are separate for each value.
fn shares(rule: &Rule, entries: &[descriptor::Entry], effect: Effect) -> Option<String> {
    entries.iter().enumerate().find_map(|(level, descriptor::Entry { key, value })| {
        let pattern = rule.shared_pattern(level)?;
        let is_of_all = value == pattern || effect.kind() == Kind::Number;
        let path = &rule.path;
        is_of_all.then(|| format!("the values of {key} that match {pattern} share one counter: name the rule {path}"))
    })
}

/// Returns why this effect changes nothing about a limit, if so.
fn changes(effect: Effect, allowance: &Allowance) -> Option<String> {
    let Allowance::Limited(limit) = allowance else { return Some("the rule is unlimited".to_owned()) };
    let number = effect.number(limit.number());
    let has_number = effect.limit(limit).number() == number;
    (!has_number).then(|| format!("{} cannot have the number {number}", limit.algorithm()))
}
