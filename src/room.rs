//! When one more hit would pass, where a peek says that a limit has no room for it.
//!
//! A store tells the wait of what it denies, and a peek is denied nothing. So this asks for one hit of each limit, as
//! one group with more hits than any limit has: nothing of such a group passes, so nothing is charged. Only limits are
//! asked that a denied request leaves as they are. What is known of denials is neither used nor learned, because each
//! counter is asked twice.

use tokio::time::Instant;

use crate::algorithm::{Algorithm, Ask, MAX_HITS, Verdict};
use crate::decision::{Answer, Decision, Limited};
use crate::plan::{Asked, MAX_WORK};
use crate::store::{Check, Store};

/// For each limit of a decision, how long until one more hit of each descriptor is within it. `None` where it is now,
/// and where nobody can say: then also if the store does not answer until the deadline.
pub async fn next_after_ms<S: Store>(decision: &Decision<'_>, store: &S, deadline: Instant) -> Vec<Option<u64>> {
    let (rooms, limits) = (decision.rooms(), &decision.limits);
    let mut waits: Vec<Option<u64>> = vec![None; limits.len()];
    let full: Vec<usize> = (0..limits.len()).filter(|place| !rooms[*place] && may_have_room(&limits[*place])).collect();
    for place in &full {
        let limited = &limits[*place];
        waits[*place] = match limited.asked.check.limit.algorithm() {
            // A new window is empty.
            Algorithm::FixedWindow => {
                let has_room = |own: Verdict| own.remaining >= limited.asked.cost();
                limited.own().map(|own| if has_room(own) { 0 } else { own.reset_after_ms })
            }
            _ => None,
        };
    }
    let is_probed = |place: &usize| waits[*place].is_none() && leaves_no_trace(&limits[*place].asked.check);
    if full.iter().any(is_probed) {
        // Those with room, too: descriptors may share a counter.
        let places: Vec<usize> = (0..limits.len()).filter(is_probed).collect();
        let probe = probe(places.iter().map(|place| &limits[*place].asked));
        let is_little = probe.iter().map(Check::work).sum::<u64>() <= MAX_WORK;
        let verdicts = if is_little { store.check(&probe, deadline).await.unwrap_or_default() } else { <_>::default() };
        for (place, verdict) in places.iter().zip(verdicts) {
            waits[*place] = verdict.and_then(|verdict| verdict.own.retry_after_ms).filter(|_| full.contains(place));
        }
    }
    for place in full {
        // Under a ban the limit may have room already.
        let ban = limits[place].banned_ms().unwrap_or(0);
        waits[place] = waits[place].map(|own| own.max(ban));
    }
    waits
}

/// A counter has been asked, and what it counts can be less one day.
fn may_have_room(limited: &Limited<'_>) -> bool {
    matches!(limited.answer, Answer::Store(_)) && limited.asked.cost() <= limited.asked.check.limit.capacity()
}

fn leaves_no_trace(check: &Check) -> bool {
    check.limit.ignores_denied()
}

/// One hit of each, and then more of each than can pass.
fn probe<'p>(asked: impl Iterator<Item = &'p Asked<'p>> + Clone) -> Vec<Check> {
    let take = |asked: &Asked<'_>, hits: u64| {
        let check = &asked.check;
        Check { caller: check.caller, ..Check::new(check.key.clone(), check.limit, Ask::Take(hits)) }
    };
    let one = asked.clone().map(|asked| take(asked, asked.cost().into()));
    one.chain(asked.map(|asked| take(asked, MAX_HITS))).collect()
}
