//! Questions of one instance to all others, such as for their busiest keys. They go through the store, like heartbeats:
//! the store tells each instance at its next heartbeat that a question is open. From then on the instance looks for
//! questions more often, for [`ATTENTIVE`]. So the first question waits for a heartbeat, and those that follow it, as
//! from an open page, are answered at once. While nobody asks, questions cost nothing.
//!
//! Answers are bounded in bytes and waited for within [`PATIENCE`]. Whoever has not answered by then is named.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::PERIOD;
use super::redis::RedisQuestions;
use crate::engine::check::StoreError;

/// How long an instance looks for further questions after one was open.
pub const ATTENTIVE: Duration = Duration::from_secs(30);

/// Interval at which an attentive instance looks for questions, in a small fleet.
const LOOK: Duration = Duration::from_millis(200);

/// Number of instances for which the interval doubles, so that looking costs a large fleet's store no more.
const DOUBLES: u32 = 100;

/// How long answers are waited for. An instance that is not attentive yet needs a heartbeat to notice the question.
const PATIENCE: Duration = Duration::from_secs(PERIOD.as_secs() + 2);

/// The same if each instance has answered a question shortly before, or was waited for in vain.
const SHORT_PATIENCE: Duration = Duration::from_millis(1_500);

/// The longest interval between two attempts to collect answers.
const COLLECT: Duration = Duration::from_millis(100);

/// The most questions open at once, of the whole fleet.
pub(super) const MOST_OPEN: usize = 16;

/// The most questions of one instance that are open at once. Others wait for their turn.
const MOST_OWN: usize = 4;

/// The most bytes of all answers to a question, and of one of them.
const MOST_BYTES: usize = 2 << 20;
const MOST_BYTES_EACH: usize = 256 << 10;
const LEAST_BYTES_EACH: usize = 8 << 10;

/// Answers the questions of other instances.
pub trait Responder: Send + Sync + 'static {
    /// Returns the answer in at most so many bytes; `None` if the question is unknown here. Called on a thread that may
    /// block.
    fn respond(&self, question: &str, most_bytes: usize) -> Option<Vec<u8>>;
}

/// The answers to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Answers, each with the ID of its instance.
    pub given: Vec<(String, Vec<u8>)>,
    /// Why the store did not carry the question, or not all answers.
    pub unavailable: Option<String>,
}

/// A question as it is stored.
#[derive(Serialize, Deserialize)]
struct Envelope<'q> {
    most_bytes: usize,
    #[serde(borrow)]
    question: std::borrow::Cow<'q, str>,
}

/// Asks and answers for one instance.
pub(super) struct Questions {
    /// ID of this instance.
    id: String,
    store: RedisQuestions,
    responder: Mutex<Option<Arc<dyn Responder>>>,
    /// Notified when a heartbeat says that questions are open.
    noticed: Notify,
    /// When a question was last open.
    open: Mutex<Option<Instant>>,
    /// When each other instance was last waited for: it has answered, or had time enough to notice the question.
    waited: Mutex<HashMap<String, Instant>>,
    turns: Semaphore,
}

impl Questions {
    pub(super) fn new(id: &str, store: RedisQuestions) -> Questions {
        Questions {
            id: id.to_owned(),
            store,
            responder: Mutex::default(),
            noticed: Notify::new(),
            open: Mutex::default(),
            waited: Mutex::default(),
            turns: Semaphore::new(MOST_OWN),
        }
    }

    /// Answers by this responder from now on.
    pub(super) fn answer_by(&self, responder: Arc<dyn Responder>) {
        *self.responder.lock() = Some(responder);
    }

    /// Returns whether this instance answers questions.
    pub(super) fn are_answered(&self) -> bool {
        self.responder.lock().is_some()
    }

    /// Notes that a heartbeat has found open questions.
    pub(super) fn notice(&self) {
        self.noticed.notify_one();
    }

    fn note_open(&self) {
        *self.open.lock() = Some(Instant::now());
    }

    /// Returns how long the answers of these instances are waited for.
    fn patience(&self, others: &[String]) -> Duration {
        let waited = self.waited.lock();
        let is_attentive = |id: &String| waited.get(id).is_some_and(|at| at.elapsed() < ATTENTIVE - PERIOD);
        if others.iter().all(is_attentive) { SHORT_PATIENCE } else { PATIENCE }
    }

    /// Notes that these instances were waited for, of which `given` have answered. Those that did not answer within the
    /// short time are waited for longer again when they have been silent for a while.
    fn note_waited(&self, others: &[String], patience: Duration, given: &[(String, Vec<u8>)]) {
        let (now, mut waited) = (Instant::now(), self.waited.lock());
        waited.retain(|id, at| others.contains(id) && at.elapsed() < ATTENTIVE);
        for id in others {
            if patience == PATIENCE || given.iter().any(|(answered, _)| answered == id) {
                waited.insert(id.clone(), now);
            }
        }
    }

    /// Asks these other instances, and returns the answers that came in time.
    pub(super) async fn ask(&self, question: &str, ids: &[String]) -> Answers {
        // Fails only if the semaphore is closed, which it never is.
        let _turn = self.turns.acquire().await;
        let (patience, others) = (self.patience(ids), ids.len());
        let unavailable = |error: &dyn ToString| Answers { unavailable: Some(error.to_string()), ..Answers::default() };
        let most_bytes = (MOST_BYTES / others.max(1)).clamp(LEAST_BYTES_EACH, MOST_BYTES_EACH);
        let text = match serde_json::to_string(&Envelope { most_bytes, question: question.into() }) {
            Ok(text) => text,
            Err(error) => return unavailable(&error),
        };
        let id = format!("{}-{:016x}", self.id, fastrand::u64(..));
        match self.store.ask(&id, (&text, patience + COLLECT)).await {
            Ok(true) => {}
            Ok(false) => return unavailable(&"too many questions are open at once: try again"),
            Err(error) => return unavailable(&error),
        }
        let (end, mut pause) = (Instant::now() + patience, COLLECT / 4);
        loop {
            sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
            let is_over = Instant::now() >= end;
            match self.store.collect(&id, if is_over { 0 } else { others }).await {
                Ok(given) if is_over || given.len() >= others => {
                    self.note_waited(ids, patience, &given);
                    return Answers { given, unavailable: None };
                }
                Ok(_) => pause = COLLECT.min(pause * 2),
                Err(error) if is_over => return unavailable(&error),
                Err(_) => pause = COLLECT,
            }
        }
    }

    /// Answers questions, forever. `instances` returns the size of the fleet.
    pub(super) async fn answer_on(&self, instances: impl Fn() -> usize) -> Infallible {
        let mut answered = HashSet::new();
        loop {
            self.noticed.notified().await;
            self.note_open();
            while self.open.lock().is_some_and(|last| last.elapsed() < ATTENTIVE) {
                // An error is that of a store whose outage is logged elsewhere.
                if let Err(error) = self.answer_open(&mut answered).await {
                    tracing::debug!(%error, "cannot read the questions of other instances");
                }
                let size = u32::try_from(instances()).unwrap_or(u32::MAX).min(10 * DOUBLES);
                sleep(LOOK + LOOK * size / DOUBLES).await;
            }
        }
    }

    /// Answers the open questions that are not in `answered`, which then has the open ones.
    async fn answer_open(&self, answered: &mut HashSet<String>) -> Result<(), StoreError> {
        let responder = self.responder.lock().clone();
        let open = self.store.read().await?;
        answered.retain(|id| open.iter().any(|(open, _)| open == id));
        for (id, text) in open {
            if id.starts_with(&format!("{}-", self.id)) {
                continue;
            }
            self.note_open();
            let Some(responder) = responder.clone().filter(|_| !answered.contains(&id)) else { continue };
            let respond = move || {
                let Envelope { most_bytes, question } = serde_json::from_str(&text).ok()?;
                let most_bytes = most_bytes.min(MOST_BYTES_EACH);
                responder.respond(&question, most_bytes).filter(|answer| answer.len() <= most_bytes)
            };
            // A panic is reported by the hook of the process, and the question stays unanswered.
            if let Ok(Some(answer)) = spawn_blocking(respond).await {
                self.store.answer(&id, &self.id, &answer).await?;
            }
            answered.insert(id);
        }
        Ok(())
    }
}
