//! The audit trail: who changed what, and whom it was refused. The store keeps it for [`KEPT`], for all instances.
//!
//! An adjustment and its record are written together, by the store. All other records wait here until the store takes
//! them, so no request waits, and none is lost while the store is down for a while. At most [`MOST_WAITING`] wait;
//! further ones are lost, which is counted and logged.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::store::AdjustmentStore;
use crate::engine::adjustment::{Content, DescriptorPattern, EntryPattern, Target, ValuePattern, Written};
use crate::engine::check::StoreError;
use crate::engine::clock::timestamp;
use crate::engine::descriptor::Entry;
use crate::metrics::Metrics;

/// A day.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Number of days that a record is kept.
pub const KEPT_DAYS: u32 = 30;

/// How long a record is kept.
pub const KEPT: Duration = DAY.saturating_mul(KEPT_DAYS);

/// Most records of changes that are kept.
pub const MOST_CHANGES: usize = 2_000;

/// Most records of refused tries that are kept.
pub const MOST_REFUSALS: usize = 500;

/// Most records that wait for the store.
const MOST_WAITING: usize = 256;

/// Pause after the store has failed.
const RETRY: Duration = Duration::from_secs(1);

/// Longest text in a note, in characters.
const LONGEST: usize = 500;

/// Most bytes of the entries in a note.
const ENTRIES: usize = 1_000;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An adjustment began.
    Began,
    /// An adjustment was ended early.
    Ended,
    /// An adjustment was over.
    Expired,
    /// Counters were reset.
    Reset,
    /// A budget was topped up or refunded.
    Credited,
    /// The level of the log was changed.
    LogLevel,
    /// Candidate rules were put in force.
    Promoted,
    /// A request was refused, because its token does not permit it.
    Refused,
}

impl Action {
    const ALL: [Action; 8] = [
        Action::Began,
        Action::Ended,
        Action::Expired,
        Action::Reset,
        Action::Credited,
        Action::LogLevel,
        Action::Promoted,
        Action::Refused,
    ];

    /// Returns the name, in the store and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Began => "began",
            Action::Ended => "ended",
            Action::Expired => "expired",
            Action::Reset => "reset",
            Action::Credited => "credited",
            Action::LogLevel => "log_level",
            Action::Promoted => "promoted",
            Action::Refused => "refused",
        }
    }
}

/// A record's content beside the adjustment that it is about. Another version of Tollgate may omit fields or add
/// others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The role that permitted it, or did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Why, in the words of who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The instance that was asked; `None` for a command, which needs no instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The domain of the entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The entries of the descriptor that was changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    /// What was changed, if it is no descriptor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the change does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tells records apart that say the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
}

impl Note {
    /// Returns the note as it may be recorded: bounded, and different from every other.
    #[must_use]
    pub fn ready(self) -> Note {
        Note { nonce: Some(format!("{:016x}", RandomState::new().hash_one(0))), ..self.bounded() }
    }

    /// Shortens texts that a client may have made long.
    fn bounded(mut self) -> Note {
        let texts = [&mut self.who, &mut self.role, &mut self.why, &mut self.domain, &mut self.target];
        let texts = texts.into_iter().chain([&mut self.effect, &mut self.reason]);
        texts.flatten().for_each(|text| shorten(text, LONGEST));
        let mut left = ENTRIES;
        self.entries.retain_mut(|Entry { key, value }| {
            for text in [key, value] {
                let mut shown = text.as_str().to_owned();
                shorten(&mut shown, left.min(LONGEST));
                left = left.saturating_sub(shown.len());
                *text = shown.into();
            }
            left > 0
        });
        self
    }

    /// Returns the JSON, in one line.
    pub(super) fn json(&self) -> String {
        // Cannot fail, since there are only strings.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Cuts a text after this many characters, and marks that it was longer.
fn shorten(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push_str("...");
    }
}

/// A record of the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it happened, on the store's clock, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What happened.
    pub action: Action,
    /// The ID of the adjustment.
    pub id: Option<String>,
    /// All other content.
    pub note: Note,
    /// The adjustment.
    pub content: Option<Content>,
}

impl Record {
    /// Parses a record as the store keeps it.
    pub(super) fn parse(kept: &str) -> Option<Record> {
        let (head, content) = kept.split_once('\n')?;
        let mut head = head.splitn(4, ' ');
        let (at_ms, action, id) = (head.next()?.parse().ok()?, head.next()?, head.next()?);
        let action = Action::ALL.into_iter().find(|one| one.name() == action)?;
        let note = serde_json::from_str(head.next()?).ok()?;
        let content = serde_json::from_str::<Written>(content).ok().and_then(|written| written.content().ok());
        Some(Record { at_ms, action, id: (id != "-").then(|| id.to_owned()), note, content })
    }

    /// Returns the record in the form that [`Record::parse`] reads. The content is the JSON of an adjustment.
    pub(super) fn kept(at_ms: u64, action: Action, id: &str, (note, content): (&str, &str)) -> String {
        format!("{at_ms} {} {id} {note}\n{content}", action.name())
    }

    /// Returns the answer for people, with values and patterns as `shown` says: `None` hides one.
    pub fn shown(&self, shown: impl Fn(&str) -> Option<Cow<'_, str>>) -> Shown {
        let Record { at_ms, action, id, note, content } = self;
        let written = |key: &str, sign: char, value: &str| match shown(value) {
            Some(value) => format!("{key}{sign}{value}"),
            None => key.to_owned(),
        };
        let pattern = |EntryPattern { key, value }: &EntryPattern| match value {
            ValuePattern::Exactly(value) => written(key, '=', value),
            ValuePattern::Like(pattern) => written(key, '~', &pattern.to_string()),
        };
        let target = match content.as_ref().map(|content| &content.target) {
            Some(Target::All) => "everything".to_owned(),
            Some(Target::Domain(domain)) => domain.clone(),
            Some(Target::Rule { domain, rule }) => format!("{domain}/{rule}"),
            Some(Target::Descriptors { domain, descriptors }) => {
                let descriptor = |DescriptorPattern(entries): &DescriptorPattern| {
                    entries.iter().map(pattern).collect::<Vec<_>>().join(" ")
                };
                format!("{domain}: {}", descriptors.iter().map(descriptor).collect::<Vec<_>>().join(" + "))
            }
            None if note.entries.is_empty() => note.target.clone().unwrap_or_default(),
            None => {
                let entries = note.entries.iter().map(|Entry { key, value }| written(key, '=', value));
                let domain = note.domain.as_deref().unwrap_or_default();
                format!("{domain}: {}", entries.collect::<Vec<_>>().join(" "))
            }
        };
        let own = |of: fn(&Content) -> &String| content.as_ref().map(|content| of(content).clone());
        Shown {
            at: timestamp(*at_ms),
            who: note.who.clone().or_else(|| own(|content| &content.who)),
            role: note.role.clone(),
            action: action.name().to_owned(),
            target,
            effect: note.effect.clone().or_else(|| content.as_ref().map(|content| content.effect.to_string())),
            why: note.why.clone().or_else(|| own(|content| &content.why)),
            instance: note.instance.clone(),
            reason: note.reason.clone(),
            id: id.clone(),
        }
    }
}

/// A record for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// When it happened, by the store's clock.
    pub at: String,
    /// Who did it.
    pub who: Option<String>,
    /// The role that permitted it, or did not.
    pub role: Option<String>,
    /// What happened.
    pub action: String,
    /// What it concerns.
    pub target: String,
    /// What it does.
    pub effect: Option<String>,
    /// Why, in the words of who did it.
    pub why: Option<String>,
    /// The instance that was asked.
    pub instance: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
    /// The ID of the adjustment.
    pub id: Option<String>,
}

/// The trail as the store returned it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// The store's time.
    pub now_ms: u64,
    /// The records, changes and refusals, the newest of each first.
    pub records: Vec<Record>,
}

/// Writes records to the store and reads them.
pub struct Audit {
    store: Arc<AdjustmentStore>,
    metrics: Arc<Metrics>,
    waiting: Mutex<VecDeque<Waiting>>,
    added: Notify,
    /// Notified when nothing waits anymore.
    written: Notify,
}

#[derive(Clone)]
struct Waiting {
    since: Instant,
    action: Action,
    note: Note,
}

impl Audit {
    pub(crate) fn new(store: Arc<AdjustmentStore>, metrics: Arc<Metrics>) -> Audit {
        Audit { store, metrics, waiting: Mutex::default(), added: Notify::new(), written: Notify::new() }
    }

    /// Records an action, without waiting for the store: [`Audit::keep`] writes it.
    pub fn record(&self, action: Action, note: Note) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST_WAITING {
            drop(waiting);
            self.metrics.record_lost_audit_records(1);
            let why = "the store does not take them, and the most wait already";
            tracing::error!(action = action.name(), "a record of the audit trail is lost: {why}");
            return;
        }
        waiting.push_back(Waiting { since: Instant::now(), action, note: note.ready() });
        drop(waiting);
        self.added.notify_one();
    }

    /// Writes the records that wait, in their order. Never returns.
    pub async fn keep(&self) -> Infallible {
        let mut is_failing = false;
        loop {
            let next = self.waiting.lock().front().cloned();
            let Some(next) = next else {
                self.written.notify_waiters();
                self.added.notified().await;
                continue;
            };
            match self.store.record(next.action, next.since.elapsed(), &next.note).await {
                Ok(()) => {
                    is_failing = false;
                    self.waiting.lock().pop_front();
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "records of the audit trail wait for the store");
                    }
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Waits at most this long until nothing waits. Records that still wait are lost: they are counted and logged.
    pub async fn finish(&self, most: Duration) {
        let all = async {
            loop {
                let written = self.written.notified();
                if self.waiting.lock().is_empty() {
                    return;
                }
                written.await;
            }
        };
        if timeout(most, all).await.is_err() {
            let records = self.waiting.lock().len();
            self.metrics.record_lost_audit_records(records as u64);
            tracing::error!(records, "records of the audit trail are lost: the store did not take them in time");
        }
    }

    /// Reads the newest records of the last `age`, at most `most`, the newest first.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn read(&self, age: Duration, most: usize) -> Result<Vec<Record>, StoreError> {
        Ok(newest(self.store.trail(most).await?, age, most))
    }
}

/// Returns the newest records of the last `age`, at most `most`, the newest first.
pub fn newest(Trail { now_ms, mut records }: Trail, age: Duration, most: usize) -> Vec<Record> {
    let begin = now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    records.retain(|record| record.at_ms >= begin);
    records.sort_by_key(|record| std::cmp::Reverse(record.at_ms));
    records.truncate(most);
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::adjustment::board::MemoryAdjustments;

    fn audit() -> Arc<Audit> {
        let store = Arc::new(AdjustmentStore::Memory(MemoryAdjustments::default()));
        Arc::new(Audit::new(store, Arc::new(Metrics::new(0.8).unwrap())))
    }

    #[test]
    fn a_note_is_bounded_whatever_a_client_sends() {
        let long = "ä\u{1}".repeat(100_000);
        let entry = Entry { key: (&long).into(), value: (&long).into() };
        let (who, reason) = (Some(long.clone()), Some(long));
        let note = Note { who, reason, entries: vec![entry; 1_000], ..Note::default() }.bounded();
        assert!(note.json().len() < 20_000, "{}", note.json().len());
        assert!(!note.json().contains('\n'));
    }

    #[test]
    fn a_record_of_another_version_is_read_as_far_as_it_goes() {
        let read = Record::parse("17 reset - {\"who\":\"ann\",\"mood\":\"good\"}\n").unwrap();
        assert_eq!((read.at_ms, read.action, read.note.who.as_deref()), (17, Action::Reset, Some("ann")));
        for damaged in ["", "17", "17 reset - {}", "x reset - {}\n", "17 slept - {}\n", "17 reset - {\n"] {
            assert_eq!(Record::parse(damaged), None, "{damaged}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn records_beyond_the_most_that_wait_are_counted_as_lost() {
        let audit = audit();
        for number in 0..MOST_WAITING + 3 {
            audit.record(Action::Reset, Note { target: Some(number.to_string()), ..Note::default() });
        }
        let lost = || {
            let text = String::from_utf8(audit.metrics.render().unwrap()).unwrap();
            text.lines().any(|line| line == "tollgate_audit_records_lost_total 3")
        };
        assert!(lost());
        let kept = tokio::spawn({
            let audit = Arc::clone(&audit);
            async move { audit.keep().await }
        });
        audit.finish(Duration::from_secs(5)).await;
        let read = audit.read(KEPT, MOST_CHANGES).await.unwrap();
        assert_eq!(read.len(), MOST_WAITING);
        assert!(lost());
        kept.abort();
    }
}
