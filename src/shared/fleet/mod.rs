//! The instances that share a store. Each publishes its state every [`PERIOD`] and whenever the state changes. The
//! reply has the states of the others if they may have changed. One call does both, from a separate task: no decision
//! waits for it or depends on it.
//!
//! While the store does not answer, the known instances are listed for as long as if they were silent.

pub mod heartbeats;
pub mod questions;
pub mod redis;
mod report;
mod store;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::engine::check::StoreError;
use crate::limiter::Limiter;
use crate::metrics::{Metrics, ReplicaCounts};
use crate::observe::candidates::Candidates;
use crate::shared::fleet::heartbeats::{Beat, Command, Heartbeat, MOST, Published, ReplicaState, Reply, TTL};
use crate::shared::fleet::questions::{Answers, Questions, Responder};
use crate::shared::fleet::redis::RedisHeartbeats;
use crate::store::Store;
use crate::version;

pub use report::{FleetReport, Line};
pub use store::FleetStore;

/// The target of this module's log lines.
pub const LOG_TARGET: &str = module_path!();

/// How often an instance publishes its state.
pub const PERIOD: Duration = Duration::from_secs(3);

/// How often an instance checks whether its state has changed.
const LOOK: Duration = Duration::from_millis(500);

/// Timeout of the message that an instance leaves.
const LAST_WORD: Duration = Duration::from_millis(500);

/// One of the instances that share a store, with its knowledge of the others.
pub struct Fleet<S> {
    id: String,
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    candidates: Option<Arc<Candidates>>,
    /// `None` if the store is not shared.
    store: Option<Box<RedisHeartbeats>>,
    /// `None` if the store is not shared, so that there is nobody to ask.
    questions: Option<Questions>,
    state: Box<dyn Fn() -> ReplicaState + Send + Sync>,
    started: Instant,
    /// Held while the store is asked; `true` after this instance has left.
    asking: tokio::sync::Mutex<bool>,
    known: Mutex<Known>,
}

/// The latest knowledge.
#[derive(Default)]
struct Known {
    /// The version of the rules in force, and since when.
    rules: Option<(String, Instant)>,
    heard: Option<Heard>,
    /// Why the store did not answer the last question.
    error: Option<StoreError>,
    is_full: bool,
}

/// The other instances, when the store last answered.
struct Heard {
    others: Vec<Heartbeat>,
    /// The version of the list.
    list: u64,
    at: Instant,
}

impl Heard {
    /// Returns the others, none of which has been silent for long since.
    fn heard_since(self, now: Instant) -> Vec<Heartbeat> {
        let since = now.duration_since(self.at);
        let renewed = |other: &Heartbeat| {
            let Heartbeat { id, heard_ms, published } = aged(other, since);
            let later_ms = heard_ms.saturating_sub(ms(PERIOD));
            let published = published.map(|published| Published {
                rules_age_ms: published.rules_age_ms.saturating_add(later_ms),
                uptime_ms: published.uptime_ms.saturating_add(later_ms),
                ..published
            });
            Heartbeat { id, heard_ms: heard_ms - later_ms, published }
        };
        self.others.iter().map(renewed).collect()
    }
}

impl<S: Store> Fleet<S> {
    /// Creates the membership of the instance with this ID in this store's fleet. `state` returns its current state.
    pub fn new(
        id: String,
        (limiter, metrics, candidates): (Arc<Limiter<S>>, Arc<Metrics>, Option<Arc<Candidates>>),
        store: FleetStore,
        state: impl Fn() -> ReplicaState + Send + Sync + 'static,
    ) -> Fleet<S> {
        let (store, questions) = match store {
            FleetStore::Redis(heartbeats, questions) => (Some(heartbeats), Some(Questions::new(&id, *questions))),
            FleetStore::Memory => (None, None),
        };
        Fleet {
            id,
            limiter,
            metrics,
            candidates,
            store,
            questions,
            state: Box::new(state),
            started: Instant::now(),
            asking: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Answers the questions of other instances by this responder from now on.
    pub fn answer_by(&self, responder: Arc<dyn Responder>) {
        if let Some(questions) = &self.questions {
            questions.answer_by(responder);
        }
    }

    /// Asks all other instances that answer questions, and returns the answers that came in time.
    pub async fn ask(&self, question: &str) -> Answers {
        let others = self.report().replicas.into_iter().filter(|line| !line.is_self && line.answers);
        let others: Vec<String> = others.map(|line| line.id).collect();
        match &self.questions {
            Some(questions) if !others.is_empty() => questions.ask(question, &others).await,
            _ => Answers::default(),
        }
    }

    /// Publishes the state of this instance, reads the others' and answers their questions, forever.
    pub async fn keep(&self) -> Infallible {
        let answer = async {
            match &self.questions {
                Some(questions) => questions.answer_on(|| self.report().replicas.len()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            never = self.beat_on() => never,
            never = answer => never,
        }
    }

    async fn beat_on(&self) -> Infallible {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<(Published, Instant)> = None;
        loop {
            ticks.tick().await;
            let published = self.published();
            let is_due = last.as_ref().is_none_or(|(before, at)| at.elapsed() >= PERIOD || differs(before, &published));
            if is_due {
                let at = Instant::now();
                self.beat(&published).await;
                last = Some((published, at));
            }
        }
    }

    /// Removes this instance from the store. Others then need not wait until it counts as silent.
    pub async fn leave(&self) {
        let last_word = async {
            let mut has_left = self.asking.lock().await;
            *has_left = true;
            self.exchange(Command::Leave).await
        };
        if let Ok(Err(error)) = timeout(LAST_WORD, last_word).await {
            tracing::debug!(%error, "cannot tell the store that this instance is leaving");
        }
    }

    /// Returns the instances, as far as this one knows them.
    pub fn report(&self) -> FleetReport {
        let own = Heartbeat { id: self.id.clone(), heard_ms: 0, published: Some(self.published()) };
        let known = self.known.lock();
        let since = known.heard.as_ref().map_or(Duration::ZERO, |heard| heard.at.elapsed());
        let others = known.heard.iter().flat_map(|heard| &heard.others).map(|other| aged(other, since));
        let listed = others.filter(|other| other.heard_ms < ms(TTL));
        let unlisted = known.is_full.then(|| format!("more than {MOST} instances share this store"));
        let unavailable = known.error.as_ref().map(ToString::to_string).or(unlisted);
        FleetReport::new(own, listed, unavailable)
    }

    /// Returns the state of this instance.
    fn published(&self) -> Published {
        let snapshot = self.limiter.snapshot();
        let version = snapshot.is_in_force().then(|| snapshot.rules.version());
        let mut known = self.known.lock();
        if known.rules.as_ref().map(|(version, _)| version.as_str()) != version {
            known.rules = version.map(|version| (version.to_owned(), Instant::now()));
        }
        Published {
            version: version::VERSION.to_owned(),
            state: (self.state)(),
            rules: known.rules.as_ref().map(|(version, _)| version.clone()),
            rules_age_ms: known.rules.as_ref().map_or(0, |(_, since)| ms(since.elapsed())),
            candidates: self.candidates.as_ref().and_then(|candidates| candidates.version()),
            uptime_ms: ms(self.started.elapsed()),
            answers: self.questions.as_ref().is_some_and(Questions::are_answered),
        }
    }

    async fn exchange(&self, command: Command<'_>) -> Result<Reply, StoreError> {
        match &self.store {
            Some(heartbeats) => heartbeats.ask(&self.id, command).await,
            None => Ok(Reply::default()),
        }
    }

    /// Publishes this state.
    async fn beat(&self, published: &Published) {
        let has_left = self.asking.lock().await;
        if *has_left {
            return;
        }
        let list = self.known.lock().heard.as_ref().map_or(0, |heard| heard.list);
        let reply = self.exchange(Command::Beat(Beat { published, list })).await;
        drop(has_left);
        self.take(reply);
        let report = self.report();
        self.metrics.set_replicas(ReplicaCounts {
            same: report.count(|line| {
                line.rules.is_some() && line.version == published.version && line.rules == published.rules
            }),
            other: report.count(|line| {
                line.rules.is_some() && line.version == published.version && line.rules != published.rules
            }),
            unknown: report.count(|line| line.rules.is_none() || line.version != published.version),
        });
    }

    fn take(&self, reply: Result<Reply, StoreError>) {
        let mut known = self.known.lock();
        match reply {
            Ok(Reply { replicas, list, is_full, has_questions }) => {
                if let Some(questions) = self.questions.as_ref().filter(|_| has_questions) {
                    questions.notice();
                }
                let (at, before) = (Instant::now(), known.heard.take());
                let others = match replicas {
                    Some(replicas) => replicas.into_iter().filter(|replica| replica.id != self.id).collect(),
                    None => before.map(|heard| heard.heard_since(at)).unwrap_or_default(),
                };
                known.heard = Some(Heard { others, list, at });
                known.error = None;
                if is_full && !known.is_full {
                    tracing::warn!(replicas = MOST, "too many instances share this store: this instance is not listed");
                }
                known.is_full = is_full;
            }
            Err(error) => {
                // The outage of the store is logged elsewhere.
                tracing::debug!(%error, "cannot read the other instances from the store");
                known.error = Some(error);
            }
        }
    }
}

/// Returns whether the state has changed, ignoring times.
fn differs(before: &Published, now: &Published) -> bool {
    let timeless = |published: &Published| Published { rules_age_ms: 0, uptime_ms: 0, ..published.clone() };
    timeless(before) != timeless(now)
}

/// Returns the heartbeat aged by this duration.
fn aged(heartbeat: &Heartbeat, by: Duration) -> Heartbeat {
    Heartbeat { heard_ms: heartbeat.heard_ms + ms(by), ..heartbeat.clone() }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns an ID for this process: the letters, digits, dots and dashes of the host's name, and a random part that
/// distinguishes two processes of one name.
pub fn instance_id(name: &str) -> String {
    const LONGEST: usize = 63;
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || ".-_".contains(*char);
    let name: String = name.chars().filter(is_plain).take(LONGEST).collect();
    let name = if name.is_empty() { "replica" } else { &name };
    format!("{name}-{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_no_room_for_what_separates_them_and_two_of_one_name_differ() {
        for (name, starts) in [("toll-7f.b", "toll-7f.b-"), ("a b\n\u{1b}ü", "ab-"), ("", "replica-")] {
            let id = instance_id(name);
            assert!(id.starts_with(starts) && id.len() == starts.len() + 8, "{id}");
        }
        assert_eq!(instance_id(&"x".repeat(300)).len(), 63 + 9);
        assert_ne!(instance_id("a"), instance_id("a"));
    }
}
