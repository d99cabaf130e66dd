//! Explanations as text for people.

use std::fmt;

use super::{
    At, Explained, ExplainedBudget, ExplainedLimit, ExplainedShare, Explanation, Found, From, Matched, MissedBy,
    MissingEntry, Part, RoleName, State, Verdict,
};
use crate::descriptor::{resets, wait};
use crate::printable::printable;
use crate::rules::MatchedBy;
use crate::rules::expect::OnMissing;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { domain, at, missing, descriptors, answer, because, .. } = self;
        writeln!(f, "domain {}{}", printable(domain), In(at.as_ref()))?;
        if let Some(MissingEntry { entry, on_missing }) = missing {
            let done = if on_missing == OnMissing::Deny.name() { "denied" } else { "counted" };
            writeln!(f, "  expects {}, which the request does not bring: {done}", printable(entry))?;
        }
        for descriptor in descriptors {
            descriptor.fmt(f)?;
            for limit in &descriptor.limits {
                limit.fmt(f)?;
                match &limit.no_state {
                    // The reason follows at the end.
                    Some(reason) if reason == because => writeln!(f, "    state: unknown")?,
                    Some(reason) => writeln!(f, "    state: unknown, {reason}")?,
                    None => {}
                }
            }
        }
        writeln!(f, "{answer}: {}", printable(because))
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explained { entries, matched, found, rule: _, missed, limits: _ } = self;
        writeln!(f, "{}", printable(&entries.join(" ")))?;
        for Matched { entry, node, by, at } in matched {
            let why = match by {
                MatchedBy::Value => "",
                MatchedBy::Wildcard => ", a wildcard",
                MatchedBy::Key => ", any value",
            };
            writeln!(f, "  {} matches {}{why}{}", printable(entry), printable(node), In(at.as_ref()))?;
        }
        if *found == Found::UnknownDescriptor
            && let Some(entry) = entries.get(matched.len())
        {
            writeln!(f, "  {} matches nothing", printable(entry))?;
        }
        if matches!(found, Found::UnknownDomain | Found::UnknownDescriptor) {
            writeln!(f, "  no limit applies")?;
        }
        for miss in missed {
            writeln!(f, "    {miss}")?;
        }
        if *found == Found::BroughtAlong {
            writeln!(f, "  the request supplies its own limit, so no rule is applied")?;
        }
        Ok(())
    }
}

impl fmt::Display for MissedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", printable(&self.words), In(self.at.as_ref()))
    }
}

impl fmt::Display for ExplainedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedLimit {
            name,
            at,
            role,
            parts,
            replaced_by,
            counter,
            penalty_counter,
            state,
            adjustments,
            in_share,
            ..
        } = self;
        let role = match role {
            RoleName::Enforced => "",
            RoleName::QuotaMode => ", in quota mode: denies where all limits in quota mode do",
            RoleName::ShadowMode => ", in shadow mode: denies no request",
        };
        writeln!(f, "  limit {}{role}{}", printable(name), In(at.as_ref()))?;
        for Part { key, value, from, setting, at } in parts {
            write!(f, "    {key}: {}", printable(value))?;
            match (from, setting) {
                (From::Limit, _) => {}
                (From::Request, _) => write!(f, ", supplied by the request")?,
                (From::Defaults, _) => write!(f, ", by the file's defaults{}", In(at.as_ref()))?,
                (From::Setting, Some(setting)) => write!(f, ", by the setting {setting}")?,
                (From::Setting | From::BuiltIn, _) => write!(f, ", built in")?,
            }
            writeln!(f)?;
        }
        if let Some(in_share) = in_share {
            let is_in = if *in_share { "is in" } else { "is not in" };
            writeln!(f, "    this key {is_in} the share of enforce")?;
        }
        for adjustment in adjustments {
            writeln!(f, "    adjustment {adjustment}")?;
        }
        if let Some(replaced_by) = replaced_by {
            writeln!(f, "    replaced by {}: not checked", printable(replaced_by))?;
        }
        if let Some(counter) = counter {
            writeln!(f, "    counter: {counter}")?;
        }
        if let Some(counter) = penalty_counter {
            writeln!(f, "    counter of its penalty: {counter}")?;
        }
        if let Some(state) = state {
            writeln!(f, "    state: {state}")?;
        }
        Ok(())
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { capacity, remaining, reset_after_ms, banned_ms, used_up, next_after_ms, decided_by, .. } = self;
        write!(f, "{remaining} of {capacity} left")?;
        if let Some(budget) = self.budget {
            write!(f, ", {budget}")?;
        }
        if let Some(leased) = self.leased.filter(|leased| *leased > 0) {
            write!(f, ", {leased} in leases")?;
        }
        if let Some(ExplainedShare { capacity, remaining }) = self.share {
            write!(f, ", {remaining} of them in this instance's share of {capacity}")?;
        }
        if let Some(most) = self.other_shares.filter(|most| *most > 0) {
            write!(f, ", up to {most} more in the shares of other instances")?;
        }
        if let Some(banned_ms) = banned_ms {
            write!(f, ", banned for {}", wait(*banned_ms))?;
            if let (Some(since), Some(until)) = (self.banned_since, self.banned_until) {
                write!(f, " (since {since}, until {until})")?;
            }
        }
        match (used_up, remaining) {
            (true, 0) if *capacity == 0 => f.write_str(", it allows no requests")?,
            (true, 0) if banned_ms.is_none() => f.write_str(", used up")?,
            (true, 1..) => f.write_str(", no room for one more")?,
            _ => {}
        }
        if let Some(next_after_ms) = next_after_ms {
            write!(f, ", one more passes in {}", wait(*next_after_ms))?;
        }
        f.write_str(&resets(*reset_after_ms).unwrap_or_default())?;
        if decided_by != "store" {
            write!(f, " ({decided_by}: the store is unavailable)")?;
        }
        Ok(())
    }
}

impl fmt::Display for ExplainedBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExplainedBudget { used, held, holds, first_ends_after_ms, extra, learned } = self;
        write!(f, "{used} used")?;
        if *extra > 0 {
            write!(f, ", {extra} beyond the number")?;
        }
        if let Some(first_ends_after_ms) = first_ends_after_ms {
            let streams = if *holds == 1 { "stream" } else { "streams" };
            write!(f, ", {held} held by {holds} {streams}, the first for at most {}", wait(*first_ends_after_ms))?;
        }
        if *learned > 0 {
            write!(f, ", nine of ten streams use up to {learned}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "a request would pass",
            Verdict::Deny => "a request would be LIMITED",
            Verdict::Fail => "the call would fail",
            Verdict::Unknown => "whether a request would pass is unknown",
        })
    }
}

/// Formats a place in parentheses after a space, or nothing if there is none.
struct In<'a>(Option<&'a At>);

impl fmt::Display for In<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(At { file, line: Some(line) }) => write!(f, " ({file}:{line})"),
            Some(At { file, line: None }) => write!(f, " ({file})"),
            None => Ok(()),
        }
    }
}
