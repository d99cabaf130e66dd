//! The streams that are in progress: each holds its slots of concurrency limits until it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::algorithm::{Algorithm, Ask};
use crate::engine::check::Check;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::Role;

/// Streams in progress, by their ends. They take memory as long as they last.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ends: BinaryHeap<Reverse<Stream>>,
    /// Number of streams so far: of those with one end, the first to begin is the first to end.
    begun: u64,
    /// Whether a request has told how long it lasts.
    pub(super) has_begun: bool,
}

/// A stream in progress.
#[derive(Debug)]
struct Stream {
    ends_ms: u64,
    number: u64,
    /// The checks that release its slots.
    releases: Vec<Check>,
}

impl Streams {
    /// Begins the stream of a request that ends at this time, if the request passes and holds a slot.
    pub(super) fn begin(&mut self, decision: &Decision<'_>, ends_ms: u64) {
        self.has_begun = true;
        if decision.over_limit {
            return;
        }
        let release = |limited: &Limited<'_>| {
            let check = &limited.asked.check;
            let ask = match (check.ask, check.limit.algorithm()) {
                // What a stream has used is not known: as much as it holds.
                (Ask::Take(_), Algorithm::Budget) => Ask::Settle(limited.taken()),
                (Ask::Take(hits), algorithm) if algorithm.has_holders() => Ask::Refund(hits),
                _ => return None,
            };
            Some(Check { ask, role: Role::Shadow, recorded: None, lease: None, ..check.clone() })
        };
        let limits = decision.limits.iter().filter(|limited| limited.is_asked() && !limited.over());
        let releases: Vec<Check> = limits.filter_map(release).collect();
        if !releases.is_empty() {
            self.begun += 1;
            self.ends.push(Reverse(Stream { ends_ms, number: self.begun, releases }));
        }
    }

    /// Returns the end of the next stream that ends up to this time, with the checks that release its slots.
    pub(super) fn ended_by(&mut self, at_ms: u64) -> Option<(u64, Vec<Check>)> {
        self.ends.peek().filter(|Reverse(first)| first.ends_ms <= at_ms)?;
        let Reverse(Stream { ends_ms, releases, .. }) = self.ends.pop()?;
        Some((ends_ms, releases))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Stream {}

impl PartialOrd for Stream {
    fn partial_cmp(&self, other: &Stream) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Stream {
    fn cmp(&self, other: &Stream) -> std::cmp::Ordering {
        (self.ends_ms, self.number).cmp(&(other.ends_ms, other.number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::engine::descriptor::{Descriptor, Entry, Request};
    use crate::engine::plan::PlanOptions;
    use crate::engine::rules::Rules;
    use crate::evaluate::{Arrival, RuleSet, Run, RunOptions};
    use crate::sources::files::load::{LoadOptions, Sources, load};

    use super::*;

    fn rules() -> Rules {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        let text = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: hour, requests_per_unit: 1000}\n  \
                    descriptors:\n  - key: stream\n    \
                    rate_limit: {requests_per_unit: 3, hold: 1m, algorithm: concurrency}\n";
        std::fs::write(&file, text).unwrap();
        load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
    }

    fn begin(user: u64, stream: usize) -> Request {
        let entry = |key: &str, value: String| Entry { key: key.into(), value: value.as_str().into() };
        let entries = vec![entry("user", user.to_string()), entry("stream", stream.to_string())];
        Request { domain: "shop".into(), descriptors: vec![Descriptor { entries, ask: Ask::Take(1), limit: None }] }
    }

    proptest! {
        /// A stream passes if fewer than the limit are in progress, each until it ends, or until its slot expires.
        #[test]
        fn streams_hold_their_slots_as_long_as_they_last(
            streams in prop::collection::vec((0..400_u64, 0..2_u64, prop::option::weighted(0.9, 0..90_000_u64)), 1..80),
        ) {
            let (rules, options) = (rules(), PlanOptions::default());
            let enough = RunOptions { most_bytes: usize::MAX, ..RunOptions::default() };
            let mut run = Run::new(RuleSet::new(&rules, &options), enough);
            let mut at_ms = 1_700_000_000_000;
            let mut held: [Vec<u64>; 2] = Default::default();
            for (number, (pause, user, lasts_ms)) in streams.into_iter().enumerate() {
                at_ms += pause;
                let request = begin(user, number);
                let arrival = Arrival { at_ms, request: &request, outside: &[], lasts_ms };
                let decision = run.decide(arrival).unwrap().unwrap();
                let held = &mut held[user as usize];
                held.retain(|ends_ms| *ends_ms > at_ms);
                // A request that does not tell how long it lasts takes no slot, and is not denied one.
                let is_over = lasts_ms.is_some() && held.len() >= 3;
                prop_assert_eq!(decision.over_limit, is_over, "at {}: {:?}", at_ms, held);
                if let Some(lasts_ms) = lasts_ms.filter(|_| !decision.over_limit) {
                    held.push(at_ms + lasts_ms.min(60_000));
                }
            }
        }
    }
}
