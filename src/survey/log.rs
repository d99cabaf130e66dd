//! The latest log lines of all instances.

use serde::{Deserialize, Serialize};

use super::{Ask, Local, Parts, sent_as};

/// A question for log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogQuestion {
    /// The least level: `ERROR`, `WARN` or `INFO`; empty for all.
    pub level: String,
    /// Text that a line must contain, ignoring case.
    pub search: String,
    /// The most lines.
    pub most: usize,
}

/// Log lines of one instance, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// The lines.
    pub lines: Vec<LogLine>,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Time in milliseconds since the epoch.
    pub at_ms: u64,
    /// `ERROR`, `WARN` or `INFO`.
    pub level: String,
    /// The message, followed by the fields.
    pub text: String,
    /// ID of the instance.
    #[serde(default)]
    pub instance: String,
}

impl Ask for LogQuestion {
    type Part = LogPart;

    fn answer(&self, local: &Local) -> Option<LogPart> {
        let (search, events) = (self.search.to_lowercase(), local.events.as_ref()?);
        let severity = |level: &str| ["ERROR", "WARN", "INFO"].iter().position(|known| *known == level);
        let least = severity(&self.level);
        let lines = events.after(0).into_iter().rev();
        let lines = lines.filter(|event| least.is_none_or(|least| severity(event.level) <= Some(least)));
        let lines = lines.filter(|event| event.text.to_lowercase().contains(&search)).take(self.most);
        let line = |event: crate::telemetry::Event| LogLine {
            at_ms: event.at_ms,
            level: event.level.to_owned(),
            text: event.text,
            instance: String::new(),
        };
        Some(LogPart { lines: lines.map(line).collect() })
    }

    fn shorter(&self) -> Option<LogQuestion> {
        (self.most > 1).then(|| LogQuestion { most: self.most / 2, ..self.clone() })
    }

    sent_as!(Log);
}

/// Returns the lines of all instances, the newest first.
pub fn merge(parts: Parts<LogPart>, most: usize) -> Vec<LogLine> {
    let lines = parts.parts.into_iter().flat_map(|(instance, part)| {
        part.lines.into_iter().map(move |line| LogLine { instance: instance.clone(), ..line })
    });
    let mut lines: Vec<LogLine> = lines.collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.at_ms));
    lines.truncate(most);
    lines
}
