//! Puts the adjustments of the store in force in this process.
//!
//! One task reads them every [`POLL`], by their version, so most reads transfer nothing. A change through this instance
//! is in force here when it is answered, and on the other instances after their next read. While the store does not
//! answer, the adjustments read last stay in force until they end. This process measures that by its own clock, so a
//! jump of the store's clock cannot prolong them. A change through a service then holds at this instance alone:
//! [`own`].

pub mod audit;
pub mod board;
mod matching;
mod own;
pub mod redis;
mod store;

use std::collections::HashMap;
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
    Adjustment, Content, DescriptorPattern, Id, InForce, MOST, Mistakes, OnlyHere, Proposal, Shown, Target, Written,
    check_words,
};
use crate::engine::check::StoreError;
use crate::engine::clock::Clock as _;
use crate::engine::rules::Rules;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::store::memory::SystemClock;
use audit::{Action, Audit, Note};
use board::{Command, Offer, Outcome, Reply, remaining};
use matching::{note_of, unmatched};
use own::{Begun, Ended, Next, Own};

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
    own: Own,
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
    /// Whether it is outside its hours.
    is_paused: bool,
    /// Why it does not match the rules.
    unmatched: Option<String>,
}

impl Entry {
    /// Returns when it began, on this process's clock; `None` if that is before the clock began.
    fn began(&self) -> Option<Instant> {
        self.ends.checked_sub(self.adjustment.lasts())
    }
}

/// The most adjustments changed at the same time that get a log line each.
const LOGGED: usize = 10;

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

/// Where an end holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndHolds {
    /// At all instances.
    Everywhere,
    /// At this instance, which is named, alone. If it is meant for the fleet, the store is told when it is back.
    Here(OnlyHere),
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
            if self.ask(self.next_command()).await.is_ok() {
                self.offer().await;
            }
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

    /// Begins an adjustment, which is in force here on return. A repeated call with the same ID changes nothing. While
    /// the store does not answer, a service holds it at this instance alone, and offers it to the store later if it is
    /// meant for the `fleet`.
    ///
    /// # Errors
    /// If the adjustment is invalid or would change nothing, or, for a command, if the store does not answer.
    pub async fn begin(&self, written: &Written, role: &str, fleet: bool) -> Result<Shown, AdjustmentError> {
        let proposal = written.proposal(fresh_id)?;
        let (rules, content) = (self.rules()?, proposal.content.clone());
        let note = off_thread(move || note_of(&rules, &content)).await?;
        if let Some(shown) = self.repeated_here(&proposal, fleet) {
            return Ok(shown);
        }
        let unavailable = |cause| AdjustmentError::unavailable(&proposal.id, cause);
        let reply = match (self.ask(Command::Begin(&proposal, &self.note(role))).await, &self.instance) {
            (Ok(reply), _) => reply,
            (Err(cause), None) => return Err(unavailable(cause)),
            (Err(cause), Some(instance)) => return self.begin_here(proposal, (role, fleet), note, (instance, &cause)),
        };
        match reply.outcome {
            Outcome::Taken => return Err(AdjustmentError::Taken(proposal.id)),
            Outcome::Full => return Err(AdjustmentError::Full),
            _ => {}
        }
        let Proposal { id, content: Content { target, effect, who, why, .. }, .. } = &proposal;
        self.begun_again(id);
        let (target, is_new) = (target.without_values(), reply.outcome == Outcome::Done);
        tracing::warn!(%id, %effect, target, who, why, role, is_new, "an operator has created an adjustment");
        let begun = reply.adjustments.iter().find(|one| one.id == *id);
        begun
            .map(|adjustment| Shown::new(adjustment, reply.now_ms, note))
            .ok_or_else(|| unavailable(StoreError::Answer))
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
        let (rules, before) = (self.rules()?, self.limiter.snapshot().shared_adjustments());
        off_thread(move || {
            let note = note_of(&rules, &content)?;
            let until_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
            let adjustment = Adjustment { id: id.clone(), content, since_ms: 0, until_ms };
            let after = before.as_deref().unwrap_or(&InForce::default()).with(adjustment);
            Ok(Previewed { id, rules, before, after, note })
        })
        .await
    }

    fn rules(&self) -> Result<Arc<Rules>, AdjustmentError> {
        let snapshot = self.limiter.snapshot();
        snapshot.is_in_force().then(|| Arc::clone(&snapshot.rules)).ok_or(AdjustmentError::NoRules)
    }

    /// Returns the same adjustment, if it holds at this instance alone. It may be meant for the fleet from now on, and
    /// the next read offers it.
    fn repeated_here(&self, proposal: &Proposal, fleet: bool) -> Option<Shown> {
        repeated(&mut self.held.lock(), self.instance.as_deref()?, proposal, fleet)
    }

    fn begun_again(&self, id: &Id) {
        let mut held = self.held.lock();
        let ends = held.own.ended.len();
        held.own.begun_again(id);
        if held.own.ended.len() != ends {
            self.put_in_force(&held);
        }
    }

    /// Holds an adjustment at this instance, because the store does not answer.
    fn begin_here(
        &self,
        proposal: Proposal,
        (role, fleet): (&str, bool),
        unmatched: Option<String>,
        (instance, cause): (&str, &StoreError),
    ) -> Result<Shown, AdjustmentError> {
        let (now, now_ms) = (Instant::now(), SystemClock.now());
        let mut held = self.held.lock();
        // Another request may have begun it meanwhile.
        if let Some(shown) = repeated(&mut held, instance, &proposal, fleet) {
            return Ok(shown);
        }
        let has_id = |entry: &Entry| entry.adjustment.id == proposal.id && !entry.has_ended;
        let is_taken = held.own.begun.iter().any(|own| own.proposal.id == proposal.id)
            || held.list.iter().any(|entry| has_id(entry) && !held.own.ended.iter().any(|ended| ended.ends(entry)));
        if is_taken {
            return Err(AdjustmentError::Taken(proposal.id));
        }
        if held.list.len() + held.own.begun.len() >= MOST {
            return Err(AdjustmentError::Full);
        }
        let Proposal { id, content, lasts } = proposal.clone();
        let until_ms = now_ms + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        let own = Begun {
            is_paused: content.hours.is_some_and(|hours| !hours.contain(now_ms)),
            adjustment: Arc::new(Adjustment { id, content, since_ms: now_ms, until_ms }),
            since: now,
            note: self.note(role),
            unmatched,
            fleet,
            uncertain: !matches!(cause, StoreError::Down(_)),
            stays: None,
            proposal,
        };
        self.record_own(Action::Began, &own.adjustment, &own.note);
        held.own.begun_again(&own.proposal.id);
        held.own.begun.push(own.clone());
        self.put_in_force(&held);
        drop(held);
        self.changed.notify_one();
        let Proposal { id, content: Content { target, effect, who, why, .. }, .. } = &own.proposal;
        let target = target.without_values();
        tracing::warn!(
            %id, %effect, target, who, why, role, fleet, %cause,
            "an operator has created an adjustment that holds at this instance alone: the store does not answer"
        );
        let only_here = Some(own.shown(instance));
        Ok(Shown { only_here, ..Shown::new(&own.adjustment, now_ms, own.unmatched) })
    }

    /// Records in the audit trail what happened to an adjustment at this instance alone.
    fn record_own(&self, action: Action, Adjustment { id, content, .. }: &Adjustment, by: &Note) {
        let Content { target, effect, who, why, .. } = content;
        let (domain, entries) = match target {
            Target::Descriptors { domain, descriptors } => {
                let only = descriptors.first().filter(|_| descriptors.len() == 1);
                let entries = only.and_then(DescriptorPattern::exact);
                (entries.is_some().then(|| domain.clone()), entries.unwrap_or_default())
            }
            _ => (None, Vec::new()),
        };
        let note = Note {
            who: by.who.clone().or_else(|| Some(who.clone())),
            why: by.why.clone().or_else(|| Some(why.clone())),
            role: by.role.clone(),
            instance: self.instance.clone(),
            domain,
            entries,
            target: Some(target.without_values()),
            effect: Some(effect.to_string()),
            reason: Some(format!("{id} at this instance alone: the store was away")),
            ..Note::default()
        };
        self.audit.record(action, note);
    }

    /// Ends an adjustment early, immediately on this instance. While the store does not answer, a service ends it here
    /// alone, and tells the store later if the end is meant for the `fleet`.
    ///
    /// # Errors
    /// If the name or the reason is invalid, no adjustment has this ID, or, for a command, if the store does not
    /// answer.
    pub async fn end(&self, id: &Id, by: By<'_>, fleet: bool) -> Result<EndHolds, AdjustmentError> {
        let By { who, why, role } = by;
        check_words(who, why)?;
        let note = Note { who: Some(who.to_owned()), why: Some(why.to_owned()), ..self.note(role) };
        if let Some(fleet) = self.end_own(id, &note) {
            tracing::warn!(%id, who, why, role, "an operator has ended an adjustment of this instance alone");
            return Ok(self.ended_here(fleet));
        }
        let holds = match (self.ask(Command::End(id, &note)).await, &self.instance) {
            (Ok(reply), _) if reply.outcome == Outcome::Unknown => return Err(AdjustmentError::Unknown(id.clone())),
            (Ok(_), _) => EndHolds::Everywhere,
            (Err(cause), Some(_)) if self.end_here(id, &note, fleet) => {
                tracing::warn!(%cause, "the end holds at this instance alone");
                self.ended_here(fleet)
            }
            (Err(cause), _) => return Err(AdjustmentError::unavailable(id, cause)),
        };
        tracing::warn!(%id, who, why, role, "an operator has ended an adjustment");
        Ok(holds)
    }

    fn ended_here(&self, fleet: bool) -> EndHolds {
        EndHolds::Here(self.only_ended_here(fleet))
    }

    fn only_ended_here(&self, fleet: bool) -> OnlyHere {
        let instance = self.instance.clone().unwrap_or_default();
        OnlyHere { instance, fleet, uncertain: false, ended: true, stays: None }
    }

    /// Ends an adjustment of this instance alone. Returns whether it was meant for the fleet; `None` if there is none
    /// with this ID.
    fn end_own(&self, id: &Id, note: &Note) -> Option<bool> {
        let mut held = self.held.lock();
        let place = held.own.begun.iter().position(|own| own.proposal.id == *id)?;
        let own = held.own.begun.remove(place);
        self.record_own(Action::Ended, &own.adjustment, note);
        // The store may have it although its answer was lost, or get it from another instance that was asked, too.
        let (until, fleet) = (own.ends(), own.fleet || own.uncertain);
        let (adjustment, note) = (own.adjustment, note.clone());
        held.own.note_end(Ended { adjustment, at: Instant::now(), until, note, fleet });
        self.put_in_force(&held);
        Some(fleet)
    }

    /// Ends an adjustment of the store at this instance alone. Returns `false` if none has this ID.
    fn end_here(&self, id: &Id, note: &Note, fleet: bool) -> bool {
        let mut held = self.held.lock();
        let known = held.list.iter().find(|entry| entry.adjustment.id == *id && !entry.has_ended);
        let Some(Entry { adjustment, ends, .. }) = known.cloned() else { return false };
        self.record_own(Action::Ended, &adjustment, note);
        held.own.note_end(Ended { adjustment, at: Instant::now(), until: ends, note: note.clone(), fleet });
        self.put_in_force(&held);
        true
    }

    /// Offers the store what holds here alone and is meant for the fleet.
    async fn offer(&self) {
        for _ in 0..MOST {
            let Some((own, seen)) = self.next_offer() else { break };
            let id = &own.proposal.id;
            let held = Duration::from_secs(own.since.elapsed().as_secs());
            let held = humantime::format_duration(held);
            let reason = format!("published by this instance, where it has held for {held} already");
            let note = Note { reason: Some(reason), ..own.note.clone() };
            let offer = Offer { proposal: &own.proposal, note: &note, held: own.since.elapsed(), seen };
            let Ok(reply) = self.ask(Command::Offer(offer)).await else { return };
            match reply.outcome {
                Outcome::Full => self.keep_here(id, format!("{MOST} adjustments are in force")),
                Outcome::Taken => self.keep_here(id, format!("another adjustment has the id {id}")),
                // It is over.
                Outcome::Unknown => drop(self.expire(Instant::now())),
                // It is published, or others have changed: what was read says which.
                _ => {}
            }
        }
        for Ended { adjustment, note, .. } in self.late_ends() {
            if self.ask(Command::End(&adjustment.id, &note)).await.is_err() {
                return;
            }
        }
    }

    /// Returns the next adjustment to offer, with the version of those that this was decided by.
    fn next_offer(&self) -> Option<(Begun, u64)> {
        let mut held = self.held.lock();
        if held.own.begun.is_empty() {
            return None;
        }
        let Held { own, list, version, .. } = &mut *held;
        let (mut next, mut has_changed) = (None, false);
        own.begun.retain_mut(|own| {
            if !own.is_in(list) && (own.stays.is_some() || !own.fleet) {
                return true;
            }
            let id = &own.proposal.id;
            match own.next(list) {
                Next::Offer if next.is_none() => next = Some(own.clone()),
                Next::Offer => {}
                Next::Published => {
                    tracing::warn!(%id, "an adjustment of this instance is published to all");
                    has_changed = true;
                    return false;
                }
                Next::Stays(why) => {
                    tracing::warn!(%id, why, "an adjustment of this instance is not published");
                    own.stays = Some(why);
                }
            }
            true
        });
        let version = *version;
        if has_changed {
            self.put_in_force(&held);
        }
        Some((next?, version))
    }

    fn keep_here(&self, id: &Id, why: String) {
        tracing::warn!(%id, why, "an adjustment of this instance is not published");
        let mut held = self.held.lock();
        let own = held.own.begun.iter_mut().find(|own| own.proposal.id == *id);
        own.into_iter().for_each(|own| own.stays = Some(why.clone()));
    }

    /// Returns the ends that the store is told now.
    fn late_ends(&self) -> Vec<Ended> {
        let held = self.held.lock();
        let is_due = |ended: &&Ended| ended.fleet && held.list.iter().any(|entry| ended.ends(entry));
        held.own.ended.iter().filter(is_due).cloned().collect()
    }

    fn note(&self, role: &str) -> Note {
        Note { role: Some(role.to_owned()), instance: self.instance.clone(), ..Note::default() }
    }

    /// Returns the number of adjustments that take effect now.
    pub fn count(&self) -> usize {
        let held = self.held.lock();
        let of_store = held.in_force().filter(|entry| !entry.is_paused).count();
        of_store + held.own.begun.iter().filter(|own| !own.is_paused).count()
    }

    /// Returns the adjustments in force, the oldest first: of the store, with those that are ended at this instance
    /// alone, and of this instance alone.
    pub fn list(&self) -> Vec<Shown> {
        let (held, now) = (self.held.lock(), Instant::now());
        let shown = |one: &Adjustment, ends: Instant, unmatched: &Option<String>| {
            Shown::new(one, store_time(one, ends, now), unmatched.clone())
        };
        let of_store = held.list.iter().filter(|entry| !entry.has_ended).map(|entry| {
            let ended = held.own.ended.iter().find(|ended| ended.ends(entry));
            let only_here = ended.map(|ended| self.only_ended_here(ended.fleet));
            Shown { only_here, ..shown(&entry.adjustment, entry.ends, &entry.unmatched) }
        });
        let own = held.own.begun.iter().map(|own| {
            let only_here = self.instance.as_deref().map(|instance| own.shown(instance));
            Shown { only_here, ..shown(&own.adjustment, own.ends(), &own.unmatched) }
        });
        of_store.chain(own).collect()
    }

    async fn ask(&self, command: Command<'_>) -> Result<Reply, StoreError> {
        let one_at_a_time = self.asking.lock().await;
        let (known, asked) = (self.held.lock().version, Instant::now());
        let reply = self.store.ask(known, command).await;
        match &reply {
            Ok(reply) => self.take(reply, asked, command.reads()),
            Err(error) if command.reads() => self.report_unread(error),
            Err(error) => tracing::debug!(%error, "the store did not take a change of adjustments"),
        }
        drop(one_at_a_time);
        self.match_rules().await;
        reply
    }

    /// Puts the store's reply in force, to a question asked at this time.
    fn take(&self, reply: &Reply, asked: Instant, is_read: bool) {
        let mut held = self.held.lock();
        if is_read && std::mem::take(&mut held.is_unread) && !held.list.is_empty() {
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
        let (mut begun, mut paused) = (Vec::new(), Vec::new());
        for adjustment in &reply.adjustments {
            let known = before.get(&adjustment.id).filter(|known| is_same(&known.adjustment, adjustment));
            if known.is_some() {
                held.list.extend(before.remove(&adjustment.id));
                continue;
            }
            let ends = asked + remaining(adjustment, reply.now_ms);
            let is_paused = !adjustment.is_within_hours(reply.now_ms);
            let adjustment = Arc::new(adjustment.clone());
            let entry = Entry { adjustment, ends, has_ended: ends <= asked, is_paused, unmatched: None };
            if !entry.has_ended {
                if is_paused { &mut paused } else { &mut begun }.push(Arc::clone(&entry.adjustment));
            }
            held.list.push(entry);
        }
        tell(&begun, "an adjustment is in force");
        tell(&paused, "an adjustment is outside its hours");
        let gone = before.into_values().filter(|entry| !entry.has_ended).map(|entry| entry.adjustment);
        tell(&gone.collect::<Vec<_>>(), "an adjustment has ended");
        held.rules = Weak::new();
        self.put_in_force(&held);
        drop(held);
        self.changed.notify_one();
    }

    /// Ends adjustments that are over, pauses those outside their hours, and returns when the next one ends or turns.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut held = self.held.lock();
        let mut ended = Vec::new();
        for entry in held.list.iter_mut().filter(|entry| !entry.has_ended && entry.ends <= now) {
            entry.has_ended = true;
            ended.push(Arc::clone(&entry.adjustment));
        }
        for own in held.own.begun.extract_if(.., |own| own.ends() <= now) {
            self.record_own(Action::Expired, &own.adjustment, &own.note);
            ended.push(own.adjustment);
        }
        held.own.ended.retain(|ended| ended.until > now);
        tell(&ended, "an adjustment has ended");
        let (turned, next_turn) = held.turn(now);
        tell(&turned.begun, "the hours of an adjustment have begun");
        tell(&turned.paused, "an adjustment is outside its hours");
        if !ended.is_empty() || !turned.begun.is_empty() || !turned.paused.is_empty() {
            self.put_in_force(&held);
        }
        let ends = held.list.iter().filter(|entry| !entry.has_ended).map(|entry| entry.ends);
        ends.chain(held.own.begun.iter().map(Begun::ends)).chain(next_turn).min()
    }

    fn put_in_force(&self, held: &Held) {
        let in_force = InForce::in_order(held.by_start());
        let in_list = held.list.iter().filter(|entry| !entry.has_ended).count();
        self.metrics.set_own_adjustments(held.own.begun.len() + in_list - held.in_force().count());
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
            held.all().cloned().collect()
        };
        let (searched, contents) = (Arc::clone(&rules), adjustments.clone());
        let mut found = off_thread(move || {
            let contents: Vec<&Content> = contents.iter().map(|adjustment| &adjustment.content).collect();
            unmatched(&searched, &contents)
        })
        .await;
        let mut held = self.held.lock();
        if !held.all().eq(&adjustments) {
            // The next read matches the new ones.
            return;
        }
        let mut new = 0;
        let Held { list, own, .. } = &mut *held;
        let of_store = list.iter_mut().map(|entry| (&entry.adjustment, &mut entry.unmatched));
        let all = of_store.chain(own.begun.iter_mut().map(|own| (&own.adjustment, &mut own.unmatched)));
        for (place, (adjustment, unmatched)) in all.enumerate() {
            let reason = found.remove(&place).map(|mismatch| mismatch.reason);
            if let Some(reason) = reason.as_ref().filter(|reason| unmatched.as_ref() != Some(reason)) {
                new += 1;
                if new <= LOGGED {
                    tracing::warn!(id = %adjustment.id, reason, "an adjustment does not match the rules");
                }
            }
            *unmatched = reason;
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

/// Adjustments whose hours have begun or ended.
#[derive(Default)]
struct Turned {
    begun: Vec<Arc<Adjustment>>,
    paused: Vec<Arc<Adjustment>>,
}

impl Held {
    /// Pauses adjustments outside their hours, and returns when the next hours begin or end.
    fn turn(&mut self, now: Instant) -> (Turned, Option<Instant>) {
        let (mut turned, mut next) = (Turned::default(), None::<Instant>);
        let list = self.list.iter_mut().filter(|entry| !entry.has_ended);
        let list = list.map(|entry| (&entry.adjustment, entry.ends, &mut entry.is_paused));
        let own = self.own.begun.iter_mut();
        let own = own.map(|own| (&own.adjustment, own.since + own.proposal.lasts, &mut own.is_paused));
        for (adjustment, ends, is_paused) in list.chain(own) {
            let Some(hours) = adjustment.content.hours else { continue };
            let now_ms = store_time(adjustment, ends, now);
            let was_paused = std::mem::replace(is_paused, !hours.contain(now_ms));
            if was_paused != *is_paused {
                if *is_paused { &mut turned.paused } else { &mut turned.begun }.push(Arc::clone(adjustment));
            }
            let turn = hours.next_turn(now_ms).map(|turn| now + Duration::from_millis(turn - now_ms));
            next = next.into_iter().chain(turn).min();
        }
        (turned, next)
    }

    /// Returns all adjustments, of the store and of this instance alone.
    fn all(&self) -> impl Iterator<Item = &Arc<Adjustment>> {
        let own = self.own.begun.iter().map(|own| &own.adjustment);
        self.list.iter().map(|entry| &entry.adjustment).chain(own)
    }

    /// Returns the adjustments of the store that are not ended here. Some may be paused.
    fn in_force(&self) -> impl Iterator<Item = &Entry> {
        let is_ended_here = |entry: &Entry| self.own.ended.iter().any(|ended| ended.ends(entry));
        self.list.iter().filter(move |entry| !entry.has_ended && !is_ended_here(entry))
    }

    /// Returns all adjustments in force here within their hours, the oldest first: of several for the same limits, the
    /// latest applies, wherever it began.
    fn by_start(&self) -> Vec<Arc<Adjustment>> {
        let in_force = self.in_force().filter(|entry| !entry.is_paused);
        let mut all: Vec<(Option<Instant>, &Arc<Adjustment>)> =
            in_force.map(|entry| (entry.began(), &entry.adjustment)).collect();
        // The same order at all instances, whenever each has read them.
        all.sort_by(|(_, a), (_, b)| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
        // One that the store has taken meanwhile is the store's.
        let is_own = |own: &&Begun| !own.is_paused && !own.is_in(&self.list);
        for own in self.own.begun.iter().filter(is_own) {
            let since = Some(own.since);
            let place = all.iter().position(|(began, _)| *began > since).unwrap_or(all.len());
            all.insert(place, (since, &own.adjustment));
        }
        all.into_iter().map(|(_, adjustment)| Arc::clone(adjustment)).collect()
    }
}

/// Returns the same adjustment, if it holds at this instance alone, and notes whether it is meant for the fleet now.
fn repeated(held: &mut Held, instance: &str, proposal: &Proposal, fleet: bool) -> Option<Shown> {
    let own = held.own.begun.iter_mut().find(|own| own.proposal == *proposal)?;
    if fleet && !own.fleet {
        (own.fleet, own.stays) = (true, None);
    }
    let only_here = Some(own.shown(instance));
    let now_ms = store_time(&own.adjustment, own.ends(), Instant::now());
    Some(Shown { only_here, ..Shown::new(&own.adjustment, now_ms, own.unmatched.clone()) })
}

/// Returns the time of the clock that an adjustment ends by, from when it ends on this process's clock. A step of that
/// clock after the adjustment was read does not show.
fn store_time(adjustment: &Adjustment, ends: Instant, now: Instant) -> u64 {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let left = ends.saturating_duration_since(now);
    // Rounded up: a turn at a whole millisecond is not missed by a part of one.
    adjustment.until_ms.saturating_sub(ms(left)).saturating_add(ms(now.saturating_duration_since(ends)))
}

/// Returns whether both are the same adjustment, even if the store's clock was set back and the duration is counted
/// from then on.
fn is_same(known: &Adjustment, read: &Adjustment) -> bool {
    known.content == read.content && known.lasts() == read.lasts() && read.since_ms <= known.since_ms
}

/// Logs the same event for each of these, up to [`LOGGED`] of them.
fn tell(adjustments: &[Arc<Adjustment>], what: &str) {
    for adjustment in adjustments.iter().take(LOGGED) {
        let Adjustment { id, content: Content { target, effect, who, why, .. }, .. } = &**adjustment;
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
pub fn fresh_id() -> Id {
    Id::of_number(RandomState::new().hash_one(0))
}
