//! Surveys: a question that every instance of the fleet answers for itself, and the answers of all as one.
//!
//! ```text
//! page, command ─▶ Survey ─▶ Fleet::ask ─▶ the store ─▶ the other instances
//!                    │                                       │ Local::answer
//!                    └─ Local::answer, its own part          ▼
//! merged answer ◀── sums up the parts ◀────────────── their parts, compressed
//! ```
//!
//! Each kind of question has its own file, with the part that one instance answers and the way in which parts add up.
//! Several clients that ask the same within a second share one survey.

mod candidates;
mod limits;
mod log;
mod overview;
mod rates;
mod recorded;
mod top;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::observe::candidates::Candidates;
use crate::observe::heavy_hitters::HeavyHitters;
use crate::observe::history::History;
use crate::observe::what_if::WhatIf;
use crate::shared::fleet::questions::{Answers, Responder};
use crate::shared::fleet::{Fleet, FleetReport};
use crate::store::Store;
use crate::telemetry::Events;

pub use candidates::{CandidatesQuestion, merge as merge_candidates};
pub use limits::{Counts, LimitCounts, LimitsPart, LimitsQuestion, merge as merge_limits};
pub use log::{LogLine, LogPart, LogQuestion, merge as merge_log};
pub use overview::{
    DeniedBy, Now, Overview, OverviewPart, OverviewQuestion, OverviewStep, Part, merge as merge_overview,
};
pub use rates::{RatesQuestion, merge as merge_rates};
pub use recorded::{RecordedQuestion, merge as merge_recorded};
pub use top::{MergedTop, TopKey, TopPart, TopQuestion, merge as merge_top};

/// How long an answer of the fleet serves further clients that ask the same.
const FRESH: Duration = Duration::from_millis(900);

/// The most questions with answers that are kept at once.
const MOST_KEPT: usize = 32;

/// The most bytes of an answer once it is no longer compressed.
const MOST_BYTES: u64 = 8 << 20;

/// A question of the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
enum Question {
    Top(TopQuestion),
    Overview(OverviewQuestion),
    Limits(LimitsQuestion),
    Log(LogQuestion),
    Recorded(RecordedQuestion),
    Candidates(CandidatesQuestion),
    Rates(RatesQuestion),
}

/// A kind of question.
pub trait Ask: Clone + Send + 'static {
    /// What one instance answers.
    type Part: Serialize + DeserializeOwned + Send + 'static;

    /// Answers for this instance; `None` if it does not know, because of its settings.
    fn answer(&self, local: &Local) -> Option<Self::Part>;

    /// Returns a question with a shorter answer; `None` if there is none.
    fn shorter(&self) -> Option<Self>;

    /// Returns the question as it is sent.
    #[doc(hidden)]
    fn sent(&self) -> String;
}

/// What this instance knows.
#[derive(Clone, Default)]
pub struct Local {
    /// Its metrics.
    pub metrics: Option<Arc<Metrics>>,
    /// Its heaviest keys.
    pub heavy_hitters: Option<Arc<HeavyHitters>>,
    /// Its last fifteen minutes.
    pub history: Option<Arc<History>>,
    /// Its recorded requests.
    pub what_if: Option<Arc<WhatIf>>,
    /// Its comparison of candidate rules.
    pub candidates: Option<Arc<Candidates>>,
    /// Its latest log lines.
    pub events: Option<Events>,
}

/// Which instances a merged answer is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// Number of instances whose parts are in the answer.
    pub answered: usize,
    /// Number of instances that are known.
    pub of: usize,
    /// IDs of the instances that did not answer in time, or are of a release that does not answer.
    pub missing: Vec<String>,
    /// Number of instances that left out a part of their answer, because it would have been too long.
    #[serde(default)]
    pub shortened: usize,
    /// Why the store does not carry questions, or does not list all instances.
    pub unavailable: Option<String>,
}

/// A part as it is sent.
#[derive(Serialize, Deserialize)]
struct Packed<P> {
    is_shortened: bool,
    part: P,
}

/// The parts of an answer, each with the ID of its instance, that of the instance asked first.
#[derive(Debug)]
pub struct Parts<P> {
    /// The parts.
    pub parts: Vec<(String, P)>,
    /// Where they are from.
    pub instances: Instances,
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All instances.
    #[default]
    Fleet,
    /// The asked instance alone.
    Own,
}

/// Asks the fleet.
pub struct Survey<S> {
    fleet: Arc<Fleet<S>>,
    local: Arc<Local>,
    /// The latest answers, by question.
    kept: Mutex<HashMap<String, Kept>>,
}

/// The latest answers to a question. Locked while it is asked.
type Kept = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Answers>)>>>;

impl<S: Store> Survey<S> {
    /// Returns surveys of this fleet. From now on, this instance answers the questions of others by `local`.
    pub fn new(fleet: Arc<Fleet<S>>, local: Local) -> Survey<S> {
        let local = Arc::new(local);
        fleet.answer_by(Arc::clone(&local) as _);
        Survey { fleet, local, kept: Mutex::default() }
    }

    /// Asks all instances in this scope, and merges what they answer. `None` if this instance itself does not know,
    /// because of its settings.
    pub async fn ask<Q: Ask, M: Send + 'static>(
        &self,
        question: Q,
        scope: Scope,
        merge: impl FnOnce(Parts<Q::Part>) -> M + Send + 'static,
    ) -> Option<M> {
        let (text, local) = (question.sent(), Arc::clone(&self.local));
        // If this instance does not know, the others would be asked in vain.
        let own = spawn_blocking(move || question.answer(&local)).await.ok().flatten()?;
        let others = match scope {
            Scope::Fleet => self.others(text).await,
            Scope::Own => Arc::new(Answers::default()),
        };
        let report = self.fleet.report();
        // Not on the thread of the ports: there may be megabytes.
        spawn_blocking(move || merge(Parts::new(own, &others, &report, scope))).await.ok()
    }

    /// Returns the answers of the other instances, or those of the last second.
    async fn others(&self, text: String) -> Arc<Answers> {
        let kept = {
            let mut all = self.kept.lock();
            // Answers are megabytes, and of use for a second. Those that are being asked for are in use.
            all.retain(|_, kept| kept.try_lock().map_or(true, |kept| kept.as_ref().is_some_and(is_fresh)));
            if all.len() >= MOST_KEPT { Kept::default() } else { Arc::clone(all.entry(text.clone()).or_default()) }
        };
        let mut kept = kept.lock().await;
        if let Some((_, answers)) = kept.as_ref().filter(|kept| is_fresh(kept)) {
            return Arc::clone(answers);
        }
        let answers = Arc::new(self.fleet.ask(&text).await);
        *kept = Some((Instant::now(), Arc::clone(&answers)));
        answers
    }
}

impl<P: DeserializeOwned> Parts<P> {
    /// Reads the answers of the other instances, beside the own part.
    fn new(own: P, others: &Answers, report: &FleetReport, scope: Scope) -> Parts<P> {
        let own_id = report.replicas.iter().find(|line| line.is_self).map(|line| line.id.clone()).unwrap_or_default();
        let (mut parts, mut shortened) = (vec![(own_id, own)], 0);
        for (id, answer) in &others.given {
            let Some(Packed { is_shortened, part }) = unpacked(answer) else { continue };
            shortened += usize::from(is_shortened);
            parts.push((id.clone(), part));
        }
        let is_missing = |id: &String| parts.iter().all(|(answered, _)| answered != id);
        let missing: Vec<String> = match scope {
            Scope::Fleet => report.replicas.iter().map(|line| line.id.clone()).filter(is_missing).collect(),
            Scope::Own => Vec::new(),
        };
        let unavailable = match scope {
            Scope::Fleet => others.unavailable.clone().or_else(|| report.unavailable.clone()),
            Scope::Own => None,
        };
        let instances =
            Instances { answered: parts.len(), of: parts.len() + missing.len(), missing, shortened, unavailable };
        Parts { parts, instances }
    }
}

fn is_fresh((at, _): &(Instant, Arc<Answers>)) -> bool {
    at.elapsed() < FRESH
}

impl Responder for Local {
    fn respond(&self, question: &str, most_bytes: usize) -> Option<Vec<u8>> {
        match serde_json::from_str(question).ok()? {
            Question::Top(question) => self.packed(question, most_bytes),
            Question::Overview(question) => self.packed(question, most_bytes),
            Question::Limits(question) => self.packed(question, most_bytes),
            Question::Log(question) => self.packed(question, most_bytes),
            Question::Recorded(question) => self.packed(question, most_bytes),
            Question::Candidates(question) => self.packed(question, most_bytes),
            Question::Rates(question) => self.packed(question, most_bytes),
        }
    }
}

impl Local {
    /// Returns the answer in at most so many bytes, shortened as far as needed.
    fn packed<Q: Ask>(&self, mut question: Q, most_bytes: usize) -> Option<Vec<u8>> {
        let mut is_shortened = false;
        loop {
            let part = Packed { is_shortened, part: question.answer(self)? };
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            serde_json::to_writer(&mut encoder, &part).ok()?;
            encoder.flush().ok()?;
            let packed = encoder.finish().ok()?;
            if packed.len() <= most_bytes {
                return Some(packed);
            }
            (question, is_shortened) = (question.shorter()?, true);
        }
    }
}

/// Reads a part that another instance has packed; `None` if it is damaged or too long.
fn unpacked<P: DeserializeOwned>(answer: &[u8]) -> Option<Packed<P>> {
    let mut text = Vec::new();
    let read = GzDecoder::new(answer).take(MOST_BYTES + 1).read_to_end(&mut text).ok()?;
    if read as u64 > MOST_BYTES { None } else { serde_json::from_slice(&text).ok() }
}

/// Makes a kind of question of a type.
macro_rules! sent_as {
    ($variant:ident) => {
        fn sent(&self) -> String {
            // Cannot fail: there are only texts and numbers.
            serde_json::to_string(&$crate::survey::Question::$variant(self.clone())).unwrap_or_default()
        }
    };
}
use sent_as;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_was_packed_and_what_is_damaged_or_too_long_is_left_out() {
        let pack = |text: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let unpacked = |answer: &[u8]| unpacked::<Vec<u32>>(answer).map(|packed| (packed.is_shortened, packed.part));
        let part = br#"{"is_shortened": true, "part": [1, 2]}"#;
        assert_eq!(unpacked(&pack(part)), Some((true, vec![1, 2])));
        assert_eq!((unpacked(b"junk"), unpacked(&pack(b"{}"))), (None, None));
        let long = [part.to_vec(), vec![b' '; 9 << 20]].concat();
        assert!(pack(&long).len() < 64 << 10, "little that becomes much");
        assert_eq!(unpacked(&pack(&long)), None);
    }

    #[test]
    fn a_question_of_a_later_release_is_not_answered() {
        let local = Local::default();
        for question in [r#"{"about": "weather"}"#, "junk", r#"{"about": "top", "by": "mood"}"#] {
            assert_eq!(local.respond(question, 1 << 20), None, "{question}");
        }
    }
}
