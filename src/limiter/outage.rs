//! Log lines about an outage: which failure modes answered, for which rules, and how often. Logs one line at once, and
//! then one every ten seconds at most, which covers all answers since the last.

use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::asked::Source;
use crate::engine::check::StoreError;
use crate::engine::decision::DecidedBy;
use crate::telemetry::Throttle;

/// Largest number of rules named in a line.
const NAMED: usize = 10;

/// The answers given without the store, until they are logged.
#[derive(Default)]
pub(super) struct Outage {
    answers: Arc<Mutex<Answers>>,
    throttle: Throttle,
}

#[derive(Default)]
struct Answers {
    /// The latest error.
    error: Option<StoreError>,
    named: Vec<Answered>,
    /// Number of answers of other rules.
    others: u64,
}

struct Answered {
    domain: Box<str>,
    rule: Box<str>,
    decided_by: DecidedBy,
    times: u64,
}

impl Outage {
    /// Notes a request answered without the store because of this error, with the cause of each limit's answer.
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
                    "the store could not decide all limits: their failure modes answered"
                );
            }
        });
    }

    /// Writes the log line held by the throttle.
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

    /// Formats the answers, like `shop/per-user: 12 by failure_mode_open; …`.
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
