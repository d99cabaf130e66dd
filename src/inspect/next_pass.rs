//! Finds when one more hit would pass, for limits that a peek reports as used up.
//!
//! A store returns the wait only with a denial, and a peek is never denied. So this asks for one hit of each limit,
//! grouped with more hits than any limit has: the group is denied as a whole, and nothing is charged. It asks only
//! limits that a denied request leaves unchanged. The cache of denials is neither read nor filled, because each counter
//! is asked twice.

use tokio::time::Instant;

use crate::engine::algorithm::{Algorithm, Ask, MAX_HITS, Verdict};
use crate::engine::check::Check;
use crate::engine::decision::{Answer, Decision, Limited};
use crate::engine::plan::MAX_WORK;
use crate::store::Store;

/// Returns, for each limit of a decision, the time until one more hit of each descriptor is within it. `None` if it is
/// within the limit now, or if the time is not known, also because the store does not answer by the deadline.
pub async fn next_after_ms<S: Store>(decision: &Decision<'_>, store: &S, deadline: Instant) -> Vec<Option<u64>> {
    let mut waits: Vec<Option<u64>> = vec![None; decision.limits.len()];
    let full = full(decision);
    let (at_reset, probed): (Vec<&Full<'_, '_>>, Vec<_>) =
        full.iter().partition(|full| full.limited.asked.check.limit.algorithm() == Algorithm::FixedWindow);
    for Full { place, limited, hits } in at_reset {
        // A new window is empty.
        let wait = |own: Verdict| if own.remaining >= *hits { 0 } else { own.reset_after_ms };
        waits[*place] = limited.own().map(wait);
    }
    let probed: Vec<_> = probed.into_iter().filter(|full| full.limited.asked.check.limit.ignores_denied()).collect();
    let probe: Vec<Check> = probed.iter().flat_map(|full| full.probe()).collect();
    // Skipped if it is more work than a request may cause.
    if !probe.is_empty() && probe.iter().map(Check::work).sum::<u64>() <= MAX_WORK {
        let verdicts = store.check(&probe, deadline).await.unwrap_or_default();
        for (full, verdict) in probed.iter().zip(verdicts.into_iter().step_by(2)) {
            waits[full.place] = verdict.and_then(|verdict| verdict.own.retry_after_ms);
        }
    }
    for Full { place, limited, .. } in full {
        // During a ban, the limit itself may already have room.
        let ban = limited.banned_ms().unwrap_or(0);
        waits[place] = waits[place].map(|own| own.max(ban));
    }
    waits
}

/// A limit without room for one more hit of each descriptor, which may have room later.
struct Full<'d, 'a> {
    place: usize,
    limited: &'d Limited<'a>,
    /// Number of hits for this descriptor and those before it that share its counter.
    hits: u64,
}

fn full<'d, 'a>(decision: &'d Decision<'a>) -> Vec<Full<'d, 'a>> {
    let limits = &decision.limits;
    let of = |place: usize| {
        let limited = &limits[place];
        let sharing = limits[..=place].iter().filter(|other| other.asked.check.key == limited.asked.check.key);
        let hits = sharing.map(|other| u64::from(other.asked.cost())).sum();
        Full { place, limited, hits }
    };
    let rooms = decision.rooms();
    let full = (0..limits.len()).filter(|place| !rooms[*place]).map(of);
    let fits = |full: &Full<'_, '_>| full.hits <= full.limited.capacity();
    full.filter(|full| matches!(full.limited.answer, Answer::Store(_)) && fits(full)).collect()
}

impl Full<'_, '_> {
    /// Returns a check of the wanted hits, and one of more hits than can pass.
    fn probe(&self) -> [Check; 2] {
        let check = &self.limited.asked.check;
        [self.hits, MAX_HITS].map(|hits| Check {
            caller: check.caller,
            shared: check.shared,
            ..Check::new(check.key.clone(), check.limit, Ask::Take(hits))
        })
    }
}
