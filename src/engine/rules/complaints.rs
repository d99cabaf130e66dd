//! Origins of raw domains, and reports of the problems in them. A problem has the path of a field, which the origin
//! maps to a position.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::config::{FieldPath, Raw};
use super::report::{Line, Position, Problem, Report, Severity, quoted, unknown};

/// Source of a raw domain.
pub trait Origin {
    /// Returns the name in messages: a file's path, or a resource's name.
    fn name(&self) -> &Arc<Path>;

    /// Returns the kind of source that holds one domain.
    fn kind(&self) -> &'static str {
        "file"
    }

    /// Returns the position of a field; for a missing field, the position where it is missing. Returns `None` if the
    /// source has no positions.
    fn position(&self, path: &FieldPath<'_>) -> Option<Position>;

    /// Returns what holds these rules inside a source that can hold several: the resource and the key of a Kubernetes
    /// manifest.
    fn holder(&self) -> Option<&Arc<str>> {
        None
    }

    /// Returns a field's name in messages.
    fn path(&self, path: &FieldPath<'_>) -> String {
        path.to_string()
    }
}

/// Receives the problems of one source.
pub struct Complaints<'r> {
    /// The source.
    pub origin: &'r dyn Origin,
    /// The report that collects them.
    pub report: &'r mut Report,
}

impl Complaints<'_> {
    pub(super) fn error(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Error, path, message.into());
        self.report.add(problem);
    }

    pub(super) fn warn(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Warning, path, message.into());
        self.report.add(problem);
    }

    pub(super) fn hint(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Hint, path, message.into());
        self.report.add(problem);
    }

    pub(super) fn problem(&self, severity: Severity, path: FieldPath<'_>, message: String) -> Problem {
        let (file, position) = (Arc::clone(self.origin.name()), self.origin.position(&path));
        Problem { severity, file, position, path: self.origin.path(&path), message }
    }

    /// Returns the line of a field.
    pub(super) fn line(&self, path: FieldPath<'_>) -> Line {
        let position = self.origin.position(&path)?;
        u32::try_from(position.line).ok().and_then(NonZeroU32::new)
    }

    /// Reads a required value; `hint` completes the message if it is missing.
    pub(super) fn required<'v, T>(&mut self, raw: &'v Raw<T>, path: FieldPath<'_>, hint: &str) -> Option<&'v T> {
        if raw.is_missing() {
            self.error(path, format!("is missing: {hint}"));
        }
        raw.get()
    }

    /// Reads a required text, which must not be empty.
    pub(super) fn required_text<'v>(&mut self, raw: &'v Raw<impl AsRef<str>>, path: FieldPath<'_>) -> Option<&'v str> {
        let text = match raw {
            Raw::Missing => "",
            Raw::Unreadable => return None,
            Raw::Given(text) => text.as_ref(),
        };
        if text.is_empty() {
            self.error(path, "is missing or empty");
            return None;
        }
        Some(text)
    }

    /// Reads a length of time such as `90s`.
    pub(super) fn length(&mut self, raw: &Raw<&str>, path: FieldPath<'_>) -> Option<Duration> {
        let text = raw.get()?;
        let length = humantime::parse_duration(text);
        if let Err(error) = &length {
            // The library's message repeats the given text.
            let reason = if text.len() > 100 { String::new() } else { format!(" ({error})") };
            let message = format!("{} is not a duration{reason}; write 500ms, 90s, 15m or 1h30m", quoted(text));
            self.error(path, message);
        }
        length.ok()
    }

    /// Finds the value with this name.
    pub(super) fn choice<T: Copy>(
        &mut self,
        raw: &Raw<impl AsRef<str>>,
        of: FieldPath<'_>,
        key: &str,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> Option<T> {
        let given = raw.get()?.as_ref();
        let found = all.iter().copied().find(|one| name(*one) == given);
        if found.is_none() {
            let names: Vec<_> = all.iter().copied().map(name).collect();
            self.error(of.key(key), unknown(key, given, &names));
        }
        found
    }
}
