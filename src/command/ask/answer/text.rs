//! An answer for people.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Answer, Outcome, What};
use crate::command::output::columns;
use crate::engine::algorithm::{Algorithm, StartsOn};
use crate::engine::decision::{DecidedBy, Never};
use crate::engine::descriptor::{self, wait};
use crate::engine::printable::{printable, printable_lines};
use crate::wire::details::LimitDetails;

/// Columns of the table of several limits.
const COLUMNS: [&str; 5] = ["    rule", "limit", "algorithm", "left", ""];

impl Answer {
    /// Returns the answer as text for people.
    pub(crate) fn text(&self) -> String {
        let mut text = match self.outcome() {
            Outcome::Passed => "passed\n",
            Outcome::Limited => "LIMITED\n",
            Outcome::Refunded => "refunded\n",
            Outcome::NotRefunded => "NOT REFUNDED\n",
            Outcome::NothingToRefund => "nothing to refund\n",
            Outcome::WouldPass => "one more would pass\n",
            Outcome::WouldBeLimited => "one more would be LIMITED\n",
        }
        .to_owned();
        for (asked, descriptor) in self.asked.iter().zip(&self.details.descriptors) {
            let asked = printable(asked);
            match &*descriptor.limits {
                [] if descriptor.unlimited => _ = writeln!(text, "  {asked}: unlimited"),
                [] => {
                    let missed = descriptor.missed.iter().map(|missed| format!(": {}", printable(missed)));
                    let _ = writeln!(text, "  {asked}: no limit applies{}", missed.collect::<String>());
                }
                [limit] => _ = writeln!(text, "  {asked}: {}", line(limit, self.what)),
                limits => _ = write!(text, "  {asked}: {} limits\n{}", limits.len(), table(limits, self.what)),
            }
        }
        if let Some(left_out) = &self.details.left_out {
            let _ = writeln!(text, "  {left_out}");
        }
        for (decided_by, setting) in
            [(DecidedBy::UnknownDomain, "UNKNOWN_DOMAIN"), (DecidedBy::UnknownDescriptor, "UNKNOWN_DESCRIPTOR")]
        {
            if self.details.decided_by.split(", ").any(|name| name == decided_by.name()) {
                let _ = writeln!(text, "  denied, because {setting} is deny");
            }
        }
        if self.details.decided_by.split(", ").any(|name| name == DecidedBy::MissingEntry.name()) {
            text.push_str("  denied, because the request does not bring an entry that the domain expects\n");
        }
        for header in &self.response.response_headers_to_add {
            let _ = writeln!(text, "  {}: {}", printable(&header.key), printable(&header.value));
        }
        if !self.response.raw_body.is_empty() {
            let _ = writeln!(text, "  {}", printable(String::from_utf8_lossy(&self.response.raw_body).trim_end()));
        }
        // Names of limits come from the rules and are escaped as well.
        printable_lines(&text)
    }
}

/// State of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Within,
    Over,
    /// Peek: one more hit would be over the limit, and nothing remains.
    UsedUp,
    /// Peek: one more hit would be over the limit. Something remains, but less than the hit counts.
    TooLittle,
}

impl Standing {
    fn of(limit: &LimitDetails, what: What) -> Standing {
        match limit.remaining {
            _ if limit.over => Standing::Over,
            Some(0) if limit.used_up && what == What::Peek => Standing::UsedUp,
            Some(_) if limit.used_up && what == What::Peek => Standing::TooLittle,
            _ => Standing::Within,
        }
    }
}

/// Returns which adjustment decided instead of the limit; `None` if none did.
fn adjusted(limit: &LimitDetails) -> Option<String> {
    match (&limit.blocked_by, &limit.passed_by) {
        (Some(id), _) => Some(format!("the adjustment {id} blocks it")),
        (None, Some(id)) => Some(format!("the adjustment {id} allows it")),
        // An older service does not name it.
        (None, None) if DecidedBy::named(&limit.decided_by) != Some(DecidedBy::Adjustment) => None,
        (None, None) if limit.over => Some("an adjustment blocks it".to_owned()),
        (None, None) => Some("an adjustment allows it".to_owned()),
    }
}

/// Returns one limit as a line.
fn line(limit: &LimitDetails, what: What) -> String {
    if let Some(adjusted) = adjusted(limit) {
        // The number of a blocked limit is 0, and its counter was not asked.
        let name = if limit.name.is_empty() { String::new() } else { format!(" {}", limit.name) };
        return format!("not checked against the limit{name}: {adjusted}");
    }
    let mut which = format!("limit of {}", allowance(limit));
    match &*limit.name {
        "" => {}
        // The limit that a request brings along has no such name.
        name if name.starts_with('(') => _ = write!(which, " {name}"),
        name => _ = write!(which, " ({name})"),
    }
    let state = state(limit, what);
    let left = limit.remaining.map(|remaining| format!(", {remaining} left")).unwrap_or_default();
    let comma = if state.is_empty() { "" } else { ", " };
    match (DecidedBy::named(&limit.decided_by), Standing::of(limit, what)) {
        (Some(DecidedBy::NotRefunded), _) => format!("not refunded to the {which}: {state}"),
        (Some(DecidedBy::FailureModeOpen | DecidedBy::FailureModeClosed | DecidedBy::Skipped), _) => {
            format!("not checked against the {which}: {state}")
        }
        (_, Standing::Over) => format!("over the {which}{left}{comma}{state}"),
        (_, Standing::Within) => format!("within the {which}{left}{comma}{state}"),
        (_, Standing::UsedUp) if allows_nothing(limit) => format!("the {which} allows no requests"),
        (_, Standing::UsedUp) => format!("the {which} is used up{left}{comma}{state}"),
        (_, Standing::TooLittle) => format!("the {which} has no room for one more{left}{comma}{state}"),
    }
}

/// Returns several limits as a table, with a row for each.
fn table(limits: &[LimitDetails], what: What) -> String {
    let row = |limit: &LimitDetails| {
        if let Some(adjusted) = adjusted(limit) {
            return [format!("    {}", limit.name), String::new(), limit.algorithm.clone(), String::new(), adjusted];
        }
        let standing = match (limit.remaining, Standing::of(limit, what)) {
            (None, _) => "",
            (_, Standing::Over) => "over",
            (_, Standing::Within) => "within",
            (_, Standing::UsedUp) => "used up",
            (_, Standing::TooLittle) => "no room for one more",
        };
        let state = [standing, &*state(limit, what)];
        let state = state.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ");
        let left = limit.remaining.map_or_else(|| "?".to_owned(), |remaining| remaining.to_string());
        [format!("    {}", limit.name), allowance(limit), limit.algorithm.clone(), left, state]
    };
    let rows: Vec<[String; 5]> = [COLUMNS.map(str::to_owned)].into_iter().chain(limits.iter().map(row)).collect();
    columns(&rows, 3..4)
}

/// Returns the allowance of a limit: `5 per 90s`.
fn allowance(limit: &LimitDetails) -> String {
    let mut text = match limit.period_ms.map(Duration::from_millis) {
        // The protocol cannot name every period, and names no algorithm.
        None if limit.algorithm.is_empty() => limit.number.to_string(),
        period => {
            let starts_on = limit.starts_on.as_deref().and_then(StartsOn::parse);
            let starts_on = if limit.counts_days { starts_on.map(StartsOn::of_days) } else { starts_on };
            let time_zone = limit.time_zone.as_deref();
            format!("{} {}", limit.number, descriptor::per(&limit.algorithm, period, time_zone, starts_on))
        }
    };
    if limit.algorithm == Algorithm::Budget.name() && limit.capacity > limit.number {
        let _ = write!(text, " and {} more", limit.capacity - limit.number);
    } else if limit.capacity > 0 && limit.capacity != limit.number {
        let _ = write!(text, ", {} at once", limit.capacity);
    }
    text
}

/// Returns whether the limit never lets anything pass. A balance is topped up.
fn allows_nothing(limit: &LimitDetails) -> bool {
    let is_balance = limit.algorithm == Algorithm::Budget.name() && limit.period_ms.is_none();
    limit.number == 0 && !is_balance
}

/// Returns the other facts about a limit, joined by commas.
fn state(limit: &LimitDetails, what: What) -> String {
    let delayed = limit.delay_ms.map(|ms| format!("delayed by {}", wait(ms)));
    let banned = limit.banned_ms.map(|ms| format!("banned for {}", wait(ms)));
    let resets = limit.reset_after_ms.filter(|ms| *ms > 0 && !limit.over).map(|ms| format!("resets in {}", wait(ms)));
    let shadow = limit.shadow.then(|| "shadow mode: denies no request".to_owned());
    let said = [without_store(limit, what), delayed, banned, next(limit, what), resets, shadow];
    said.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns what answered instead of the store.
fn without_store(limit: &LimitDetails, what: What) -> Option<String> {
    const UNKNOWN: &str = "the store is unavailable or has not confirmed the hits";
    const DURABLE: &str = "no replica of Redis has confirmed the hits in time, which durable requires, or Redis is \
                           unavailable (tollgate check --redis says which)";
    let why = if limit.durable { DURABLE } else { UNKNOWN };
    let words = match DecidedBy::named(&limit.decided_by)? {
        DecidedBy::FailureModeOpen => {
            return Some(format!("{why}: failure_mode open allows the request"));
        }
        DecidedBy::FailureModeClosed => {
            return Some(format!("{why}: failure_mode closed denies the request"));
        }
        DecidedBy::FailureModeLocal if what == What::Refund => {
            "the store is unavailable: refunded to this instance's share only"
        }
        DecidedBy::FailureModeLocal => {
            return Some(format!("{why}: failure_mode local decides with a share of the limit"));
        }
        DecidedBy::NotRefunded => "the store is unavailable and has not confirmed the refund",
        DecidedBy::KnownDenial => "the store is unavailable, and denied this earlier",
        DecidedBy::Skipped => "another limit is known to deny the request",
        DecidedBy::Store
        | DecidedBy::FailureModeError
        | DecidedBy::Adjustment
        | DecidedBy::UnknownDomain
        | DecidedBy::UnknownDescriptor
        | DecidedBy::MissingEntry => return None,
    };
    Some(words.to_owned())
}

/// Returns when the same request passes if it was denied, or for a peek, when one more hit passes.
fn next(limit: &LimitDetails, what: What) -> Option<String> {
    let holds = limit.algorithm == Algorithm::Concurrency.name();
    match Standing::of(limit, what) {
        Standing::Within => None,
        _ if allows_nothing(limit) => Some("it allows no requests".to_owned()),
        Standing::Over if what == What::Peek && limit.next_after_ms.is_some() => {
            limit.next_after_ms.map(|ms| format!("one more passes in {}", wait(ms)))
        }
        Standing::Over => Some(match (limit.retry_after_ms, limit.never.as_deref().and_then(Never::named)) {
            (Some(ms), _) if holds && limit.banned_ms.is_none() => {
                format!("try again when a slot is released; one expires in {}", wait(ms))
            }
            (Some(ms), _) => format!("try again in {}", wait(ms)),
            (None, Some(Never::LetsNothingPass)) => "it allows no requests".to_owned(),
            (None, Some(Never::Timeout)) => "its delay would be longer than the timeout".to_owned(),
            (None, Some(Never::NoDelay)) => "MAX_DELAYED_REQUESTS is reached".to_owned(),
            (None, Some(Never::Spent)) => "it is used up until it is topped up".to_owned(),
            (None, Some(Never::TooMany) | None) => "more hits than the limit ever allows at once".to_owned(),
        }),
        Standing::UsedUp | Standing::TooLittle if holds => Some("one more passes when a slot is released".to_owned()),
        Standing::UsedUp | Standing::TooLittle => {
            limit.next_after_ms.map(|ms| format!("one more passes in {}", wait(ms)))
        }
    }
}
