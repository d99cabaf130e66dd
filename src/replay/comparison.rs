//! Comparisons of the decisions by two sets of rules.

use std::collections::BTreeMap;

use super::{Event, Judged};

/// The most examples of a limit.
const EXAMPLES: usize = 3;

/// The requests that two sets of rules decide differently, by the limits that deny them.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    pub(super) newly_denied: Difference,
    pub(super) newly_allowed: Difference,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Difference {
    pub(super) requests: u64,
    /// Requests by the ID of the limit in the rules that deny them.
    pub(super) by_limit: BTreeMap<usize, ByLimit>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ByLimit {
    pub(super) requests: u64,
    /// The first requests that differ from each other, with their times.
    pub(super) examples: Vec<(u64, String)>,
}

impl Comparison {
    /// Adds a request with its decisions by both sets of rules.
    pub fn add(&mut self, event: &Event, old: &Judged, new: &Judged) {
        match (old.is_denied, new.is_denied) {
            (false, true) => self.newly_denied.add(event, new),
            (true, false) => self.newly_allowed.add(event, old),
            _ => {}
        }
    }
}

impl Difference {
    fn add(&mut self, event: &Event, denied: &Judged) {
        self.requests += 1;
        for limit in &denied.over {
            let ByLimit { requests, examples } = self.by_limit.entry(*limit).or_default();
            *requests += 1;
            if examples.len() < EXAMPLES {
                let asked = event.request.to_string();
                if examples.iter().all(|(_, known)| *known != asked) {
                    examples.push((event.at_ms, asked));
                }
            }
        }
    }
}
