//! What rules say to each request of a log: a line of JSON, to be joined with what is known of the request elsewhere.

use serde::Serialize;

use super::Event;
use crate::engine::clock::timestamp;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::{Descriptor, Role};

/// The verdict on a request of a log.
#[derive(Debug, Serialize)]
pub struct Verdict<'v> {
    /// When it came.
    time: String,
    /// What identifies it elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'v str>,
    domain: &'v str,
    descriptors: Vec<Asked<'v>>,
    verdict: &'static str,
    /// The limits that deny it.
    denied_by: Vec<&'v str>,
    /// The limits in shadow mode that would.
    would_deny: Vec<&'v str>,
    /// The verdict of the rules that these are compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_verdict: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Asked<'v> {
    entries: Vec<[&'v str; 2]>,
    hits: u64,
}

impl<'v> Verdict<'v> {
    /// Creates the verdict of a decision, and of that by other rules. A decision is `None` if the service would reject
    /// the request as invalid.
    pub fn new(
        event: &'v Event,
        decision: Option<&'v Decision<'_>>,
        old: Option<Option<&Decision<'_>>>,
    ) -> Verdict<'v> {
        let over = |is_wanted: fn(&Limited<'_>) -> bool| {
            let limits = decision.into_iter().flat_map(|decision| &decision.limits);
            limits.filter(|one| one.over() && is_wanted(one)).map(|one| one.asked.source.label()).collect()
        };
        let denies = decision.is_some_and(|decision| decision.over_limit);
        Verdict {
            time: timestamp(event.at_ms),
            id: event.id.as_deref(),
            domain: &event.request.domain,
            descriptors: event.request.descriptors.iter().map(Asked::new).collect(),
            verdict: word(decision),
            denied_by: if denies { over(|one| one.role() != Role::Shadow) } else { Vec::new() },
            would_deny: over(|one| one.role() == Role::Shadow),
            old_verdict: old.map(word),
        }
    }
}

impl<'v> Asked<'v> {
    fn new(Descriptor { entries, ask, .. }: &'v Descriptor) -> Asked<'v> {
        let entries = entries.iter().map(|entry| [entry.key.as_str(), entry.value.as_str()]).collect();
        Asked { entries, hits: ask.taken() }
    }
}

fn word(decision: Option<&Decision<'_>>) -> &'static str {
    match decision {
        Some(decision) if decision.over_limit => "deny",
        Some(_) => "pass",
        None => "invalid",
    }
}
