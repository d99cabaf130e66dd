//! When one more hit would pass, where a peek says that a limit has no room for it.
//!
//! A store tells the wait of what it denies, and a peek is denied nothing. So this asks for one hit of each limit, as
//! one group with more hits than any limit has: nothing of such a group passes, so nothing is charged. Only limits are
//! asked that a denied request leaves as they are. What is known of denials is neither used nor learned, because each
//! counter is asked twice.

use tokio::time::Instant;

use crate::algorithm::{Algorithm, Ask, MAX_HITS, Verdict};
use crate::decision::{Answer, Decision, Limited};
use crate::plan::MAX_WORK;
use crate::store::{Check, Store};

/// For each limit of a decision, how long until one more hit of each descriptor is within it. `None` where it is now,
/// and where nobody can say: then also if the store does not answer until the deadline.
pub async fn next_after_ms<S: Store>(decision: &Decision<'_>, store: &S, deadline: Instant) -> Vec<Option<u64>> {
    let mut waits: Vec<Option<u64>> = vec![None; decision.limits.len()];
    let full = full(decision);
    let (at_reset, probed): (Vec<&Full<'_, '_>>, Vec<_>) =
        full.iter().partition(|full| full.limited.asked.check.limit.algorithm() == Algorithm::FixedWindow);
    for Full { place, limited, hits } in at_reset {
        // A new window is empty.
        let wait = |own: Verdict| if u64::from(own.remaining) >= *hits { 0 } else { own.reset_after_ms };
        waits[*place] = limited.own().map(wait);
    }
    let probed: Vec<_> = probed.into_iter().filter(|full| full.limited.asked.check.limit.ignores_denied()).collect();
    let probe: Vec<Check> = probed.iter().flat_map(|full| full.probe()).collect();
    // Nobody waits for more than a request may ask.
    if !probe.is_empty() && probe.iter().map(Check::work).sum::<u64>() <= MAX_WORK {
        let verdicts = store.check(&probe, deadline).await.unwrap_or_default();
        for (full, verdict) in probed.iter().zip(verdicts.into_iter().step_by(2)) {
            waits[full.place] = verdict.and_then(|verdict| verdict.own.retry_after_ms);
        }
    }
    for Full { place, limited, .. } in full {
        // Under a ban the limit may have room already.
        let ban = limited.banned_ms().unwrap_or(0);
        waits[place] = waits[place].map(|own| own.max(ban));
    }
    waits
}

/// A limit that has no room for one more hit of each descriptor, and may have it one day.
struct Full<'d, 'a> {
    place: usize,
    limited: &'d Limited<'a>,
    /// So many hits take those up to it that share its counter.
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
    let fits = |full: &Full<'_, '_>| full.hits <= full.limited.asked.check.limit.capacity().into();
    full.filter(|full| matches!(full.limited.answer, Answer::Store(_)) && fits(full)).collect()
}

impl Full<'_, '_> {
    /// What it would take, and then more than can pass.
    fn probe(&self) -> [Check; 2] {
        let check = &self.limited.asked.check;
        [self.hits, MAX_HITS]
            .map(|hits| Check { caller: check.caller, ..Check::new(check.key.clone(), check.limit, Ask::Take(hits)) })
    }
}
