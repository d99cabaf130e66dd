//! What the log tells of an outage: which failure modes answered, for which rules, and how often. One line at once, and
//! then one every ten seconds at most, which tells of all that has been answered since.

use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::decision::DecidedBy;
use crate::plan::Source;
use crate::store::StoreError;
use crate::telemetry::Throttle;

/// A line names so many rules at most.
const NAMED: usize = 10;

/// The answers without the store, until they are told.
#[derive(Default)]
pub(super) struct Outage {
    answers: Arc<Mutex<Answers>>,
    throttle: Throttle,
}

#[derive(Default)]
struct Answers {
    /// Why, the last time.
    error: Option<StoreError>,
    named: Vec<Answered>,
    /// So many answers of other rules.
    others: u64,
}

struct Answered {
    domain: Box<str>,
    rule: Box<str>,
    decided_by: DecidedBy,
    times: u64,
}

impl Outage {
    /// A request was answered without the store, because of this: by what, for each limit.
    pub(super) fn note<'a>(&self, error: &StoreError, answers: impl IntoIterator<Item = (Source<'a>, DecidedBy)>) {
        {
            let mut noted = self.answers.lock();
            noted.error = Some(error.clone());
            answers.into_iter().for_each(|(source, decided_by)| noted.add(source, decided_by));
        }
        self.throttle.log((), || {
            let answers = Arc::clone(&self.answers);
            move |requests| {
                let answers = std::mem::take(&mut *answers.lock());
                tracing::warn!(
                    error = answers.error.as_ref().map(|error| error as &dyn std::error::Error),
                    kind = answers.error.as_ref().map(StoreError::kind),
                    requests,
                    rules = answers.text(),
                    "the store could not decide: failure modes answered"
                );
            }
        });
    }

    /// Logs what has been kept back.
    pub(super) fn flush_log(&self) {
        self.throttle.flush();
    }
}

impl Answers {
    fn add(&mut self, source: Source<'_>, decided_by: DecidedBy) {
        let (domain, rule) = (source.domain(), source.label());
        let is_it =
            |known: &Answered| known.decided_by == decided_by && *known.rule == *rule && *known.domain == *domain;
        match self.named.iter().position(is_it) {
            Some(place) => self.named[place].times += 1,
            None if self.named.len() < NAMED => {
                self.named.push(Answered { domain: domain.into(), rule: rule.into(), decided_by, times: 1 });
            }
            None => self.others += 1,
        }
    }

    /// `shop/per-user: 12 by failure_mode_open; …`.
    fn text(&self) -> String {
        let mut text = String::new();
        for Answered { domain, rule, decided_by, times } in &self.named {
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}{domain}/{rule}: {times} by {}", decided_by.name());
        }
        if self.others > 0 {
            let _ = write!(text, "; other rules: {}", self.others);
        }
        text
    }
}
