//! Reports as text for people.

use std::fmt::{self, Display, Formatter};

use super::Report;
use super::source::Read;
use crate::engine::descriptor::counted;
use crate::engine::printable::printable;
use crate::evaluate::{LimitReport, Suggestion};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.log)?;
        if let (Some(first), Some(last)) = (&self.first, &self.last) {
            writeln!(f, "from {first} to {last}")?;
        }
        write!(f, "{}: {} pass", counted(self.requests, "request"), self.requests - self.denied)?;
        writeln!(f, ", {} denied", share(self.denied, self.requests))?;
        let rest = [
            (self.would_be_denied, "of those that pass would be denied, but for the shadow mode"),
            (self.delayed, "of those that pass are delayed"),
            (self.without_limit, "reach no limit"),
            (self.invalid, "ask for too much work at once, which the service calls invalid"),
        ];
        for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(f, "  {count} {what}")?;
        }
        if let Some(missed) = &self.missed {
            writeln!(f, "  for example: {}", printable(missed))?;
        }
        if self.more_keys {
            writeln!(f, "  there are more keys than are told apart: the numbers of keys are too small")?;
        }
        self.limits.iter().try_for_each(|limit| write!(f, "\n{limit}"))?;
        if self.limits_not_reached > 0 {
            writeln!(f, "\n{} not reached", counted(self.limits_not_reached as u64, "limit"))?;
        }
        if let Some(against) = &self.against {
            writeln!(f, "\nagainst the old rules, which deny {}:", share(against.denied, self.requests))?;
            write!(f, "{}", against.differences)?;
        }
        if let Some(fleet) = &self.fleet {
            write!(f, "\n{fleet}")?;
        }
        if let Some(why) = self.no_suggestion {
            writeln!(f, "\nno number is suggested: {why}")?;
        }
        self.suggestions.iter().try_for_each(|suggestion| write!(f, "\n{suggestion}"))
    }
}

impl Display for Read {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.lines {
            0 => writeln!(f, "0 lines: the log is empty")?,
            lines => writeln!(f, "{}", counted(lines, "line"))?,
        }
        if !self.left_out.is_empty() {
            writeln!(f, "  of Envoy's configuration these are not replayed:")?;
            self.left_out.iter().try_for_each(|what| writeln!(f, "    {}", printable(what)))?;
        }
        if self.unreadable > 0 {
            writeln!(f, "  {} cannot be read:", self.unreadable)?;
            self.unreadable_first.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        let rest = [
            (self.without_descriptor, "without a descriptor: a field that is mapped is missing, or the route has none"),
            (self.late, "further behind than --window: they count at the time of the line before"),
            (
                self.decisions,
                "of a decision log: of what passed a sample at most, and all denials as far as none was dropped: see \
                 tollgate_decision_log_lines_total",
            ),
            (
                self.unnamed,
                "of these do not name their call (they have no `call` and no `request_id`): each of their descriptors \
                 counts as a request of its own, so that requests and denials may be counted too often",
            ),
            (self.refunds, "of these are refunds: they are not replayed"),
            (
                self.masked,
                "of these have values that are hidden or look hashed: they reach no rule that spells a value out",
            ),
        ];
        let mut rest = rest.into_iter().filter(|(count, _)| *count > 0);
        rest.try_for_each(|(count, what)| writeln!(f, "  {count} {what}"))
    }
}

impl Display for LimitReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.domain, self.rule, self.limit)?;
        if let (Some(file), Some(line)) = (&self.file, self.line) {
            write!(f, " ({file}:{line})")?;
        }
        match self.role {
            "enforced" => writeln!(f)?,
            role => writeln!(f, ", {role}")?,
        }
        if self.not_replayed {
            let decisions = counted(self.decisions, "decision");
            return writeln!(f, "  {decisions}, not replayed: the log does not say how long requests last");
        }
        write!(f, "  {}: {} allowed", counted(self.decisions, "decision"), self.allowed)?;
        write!(f, ", {} denied", share(self.denied, self.decisions))?;
        writeln!(f, ", {} of {} hit", share(self.keys_denied, self.keys), counted(self.keys, "key"))?;
        if let Some(old) = &self.old {
            writeln!(f, "  by the old rules: {} denied, {} hit", old.denied, counted(old.keys_denied, "key"))?;
        }
        if let (Some(first), Some(last), Some(worst)) = (&self.first_denied, &self.last_denied, &self.worst_minute) {
            writeln!(f, "  from {first} to {last}, most in the minute from {}: {}", worst.begin, worst.denied)?;
        }
        let width = self.most_denied.iter().map(|key| key.key.chars().count()).max().unwrap_or(0);
        for key in &self.most_denied {
            writeln!(f, "    {:width$}  {} of {}", key.key, key.denied, key.decisions)?;
        }
        Ok(())
    }
}

impl Display for Suggestion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Suggestion { domain, rule, per, percent, of, present, keys, requests, .. } = self;
        match self.number {
            Some(number) => {
                writeln!(f, "{domain}: {rule}: {number} {per} deny at most {percent} % of {of} (now {present})")?
            }
            None => {
                writeln!(f, "{domain}: {rule}: no number denies at most {percent} % of {of} (now {present} {per})")?
            }
        }
        writeln!(f, "{:>12}  {:>20}  {:>20}", "number", "keys hit", "requests denied")?;
        for point in &self.curve {
            let (of_keys, of_requests) = (share(point.keys_denied, *keys), share(point.requests_denied, *requests));
            writeln!(f, "{:>12}  {of_keys:>20}  {of_requests:>20}", point.number)?;
        }
        Ok(())
    }
}

/// Formats a number and its share: `5 (0.1 %)`.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => part.to_string(),
        _ => format!("{part} ({} %)", percent(part as f64 * 100.0 / whole as f64)),
    }
}

/// Formats a percentage with two significant digits.
fn percent(percent: f64) -> String {
    match percent {
        0.0 => "0".to_owned(),
        _ if percent < 0.001 => "< 0.001".to_owned(),
        _ if percent < 1.0 => format!("{percent:.3}").trim_end_matches('0').to_owned(),
        _ if percent > 99.9 && percent < 100.0 => "> 99.9".to_owned(),
        _ => format!("{percent:.1}").trim_end_matches(".0").to_owned(),
    }
}
