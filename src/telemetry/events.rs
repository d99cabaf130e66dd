//! The latest log lines, for readers of the console who cannot see the log.

use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event as TracingEvent, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of lines kept.
const KEPT: usize = 200;
/// Bytes kept of each line, plus a few to complete a character.
const BYTES: usize = 4_096;

/// The latest log lines from level INFO up, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    /// Number of lines so far.
    number: u64,
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Event {
    /// Position among all lines, from 1.
    pub number: u64,
    /// Time in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// `ERROR`, `WARN` or `INFO`.
    pub level: &'static str,
    /// The message, followed by the fields.
    pub text: String,
}

impl Events {
    /// Returns the lines after the one with this number; 0 returns all kept lines.
    pub fn after(&self, number: u64) -> Vec<Event> {
        let kept = self.0.lock();
        kept.events.iter().filter(|event| event.number > number).cloned().collect()
    }

    fn keep(&self, level: Level, text: String) {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut kept = self.0.lock();
        kept.number += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        let event = Event { number: kept.number, at_ms, level: level.as_str(), text };
        kept.events.push_back(event);
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &TracingEvent<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.keep(level, text.message + &text.fields);
    }
}

/// An event's message and fields, cut at the limit.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

impl Text {
    fn add(&mut self, field: &Field, value: &str) {
        let room = BYTES.saturating_sub(self.message.len() + self.fields.len());
        let end = (0..=value.len().min(room)).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
        let (value, more) = (&value[..end], if end < value.len() { "..." } else { "" });
        match field.name() {
            "message" => self.message = format!("{value}{more}"),
            // Writing to a string cannot fail.
            name => drop(write!(self.fields, " {name}={value}{more}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;
    use tracing::{debug, error, info, warn};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn kept(tell: impl FnOnce()) -> Vec<Event> {
        let events = Events::default();
        with_default(tracing_subscriber::registry().with(events.clone()), tell);
        events.after(0)
    }

    #[test]
    fn the_last_lines_are_kept_with_their_fields_and_those_for_developers_are_not() {
        let told = kept(|| {
            info!(rules = 3, "new rules are in force");
            debug!("a counter is reset");
            error!(cause = "refused", "redis is down");
        });
        let texts: Vec<_> = told.iter().map(|event| (event.number, event.level, &*event.text)).collect();
        let expected = [(1, "INFO", "new rules are in force rules=3"), (2, "ERROR", "redis is down cause=refused")];
        assert_eq!(texts, expected);
    }

    #[test]
    fn neither_many_nor_long_ones_take_more_than_their_room() {
        let long = "ü".repeat(BYTES);
        let told = kept(|| (0..KEPT + 50).for_each(|_| warn!(long, "it is {long}")));
        assert_eq!((told.len(), told[0].number), (KEPT, 51));
        assert!(told.iter().all(|event| event.text.len() < BYTES + 64), "{}", told[0].text.len());
        assert!(told[0].text.starts_with("it is ü"));
    }
}
