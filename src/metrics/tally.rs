//! Counters of hits, for each rule and for each path made of requests' values.

use std::sync::atomic::{AtomicU64, Ordering};

use super::names::Stat;
use crate::engine::algorithm::Verdict;
use crate::engine::decision::Limited;
use crate::engine::descriptor::Role;

/// A quantity that is counted for each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfRule {
    WithinLimitRequests,
    OverLimitRequests,
    ShadowRequests,
    UndecidedRequests,
    Hits,
    OverLimit,
    NearLimit,
    WithinLimit,
    Shadow,
    /// Only for rules with a penalty.
    Banned,
    /// Hits over the limit that were denied without asking the store.
    KnownDenied,
    /// Hits that streams of a budget have used.
    Settled,
    /// Hits that requests asked to refund.
    Refunded,
}

impl OfRule {
    pub(super) const NUMBER: usize = OfRule::Refunded as usize + 1;
}

/// A set of counters.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: [AtomicU64; OfRule::NUMBER],
    /// The part of each statistic that has been pushed to a statsd server.
    pushed: [AtomicU64; Stat::NUMBER],
}

impl Tally {
    pub(super) fn get(&self, of_rule: OfRule) -> u64 {
        self.counts[of_rule as usize].load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, of_rule: OfRule, more: u64) {
        // All workers write to this counter: skipping zero avoids taking its cache line from another core.
        if more > 0 {
            self.counts[of_rule as usize].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Counts the hits of a call that failed.
    pub(super) fn record_undecided(&self, hits: u64) {
        self.add(OfRule::UndecidedRequests, 1);
        self.add(OfRule::Hits, hits);
    }

    /// Counts a limit's verdict on a request of `hits` hits.
    pub(super) fn record(&self, limited: &Limited<'_>, hits: u64, near_limit_ratio: f32) {
        self.add(outcome(limited), 1);
        self.add(OfRule::Hits, hits);
        if limited.banned_ms().is_some() {
            self.add(OfRule::Banned, hits);
        }
        // An answer of a failure mode says nothing about the limit.
        let Some(verdict) = limited.verdict() else { return };
        let around = Around::of_limit(limited, verdict, hits, near_limit_ratio);
        self.add(OfRule::NearLimit, around.near);
        if verdict.allowed {
            return self.add(OfRule::WithinLimit, hits);
        }
        self.add(OfRule::OverLimit, around.over);
        if limited.is_known_denial() {
            self.add(OfRule::KnownDenied, around.over);
        }
        if limited.role() == Role::Shadow {
            self.add(OfRule::Shadow, around.over);
        }
    }

    /// Returns the value that `envoyproxy/ratelimit` would have counted.
    pub(super) fn stat(&self, stat: Stat) -> u64 {
        self.get(counted_as(stat))
    }

    /// Returns the part of a statistic that has not been pushed yet.
    pub(super) fn unpushed(&self, stat: Stat) -> u64 {
        self.stat(stat).saturating_sub(self.pushed[stat as usize].load(Ordering::Relaxed))
    }

    /// Notes that `more` of a statistic have been pushed.
    pub(super) fn note_pushed(&self, stat: Stat, more: u64) {
        self.pushed[stat as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Returns whether any statistic has a part that has not been pushed yet.
    pub(super) fn has_unpushed(&self) -> bool {
        Stat::ALL.iter().any(|stat| self.unpushed(*stat) > 0)
    }
}

/// Returns the quantity from which a statistic derives.
pub(super) const fn counted_as(stat: Stat) -> OfRule {
    match stat {
        Stat::TotalHits => OfRule::Hits,
        Stat::OverLimit => OfRule::OverLimit,
        Stat::NearLimit => OfRule::NearLimit,
        Stat::WithinLimit => OfRule::WithinLimit,
        Stat::ShadowMode => OfRule::Shadow,
        Stat::OverLimitWithLocalCache => OfRule::KnownDenied,
        Stat::TotalNegativeHits => OfRule::Refunded,
    }
}

/// Returns the outcome under which a request is counted.
fn outcome(limited: &Limited<'_>) -> OfRule {
    match limited.verdict() {
        None if limited.is_asked() => OfRule::UndecidedRequests,
        // Without a check, an adjustment lets the request pass.
        None | Some(Verdict { allowed: true, .. }) => OfRule::WithinLimitRequests,
        Some(_) if limited.role() == Role::Shadow => OfRule::ShadowRequests,
        Some(_) => OfRule::OverLimitRequests,
    }
}

/// Numbers of a request's hits near a limit and over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// Hits within the limit, but beyond `NEAR_LIMIT_RATIO` of it.
    pub near: u64,
    /// Hits over the limit.
    pub over: u64,
}

/// Picks, of a descriptor's limits, the one whose verdict its rule counts: a limit that denies goes before one that is
/// undecided, and that before the limit closest to exhaustion.
pub(super) fn decisive<'l, 'a>(limits: &'l [Limited<'a>], near_limit_ratio: f32) -> Option<&'l Limited<'a>> {
    if let [only] = limits {
        return Some(only);
    }
    limits.iter().max_by_key(|limited| {
        let hits = limited.asked.check.ask.taken();
        let of_limit = |verdict| Around::of_limit(limited, verdict, hits, near_limit_ratio);
        let around = limited.verdict().map(of_limit).map(|Around { near, over }| (over, near));
        (limited.over(), around)
    })
}

impl Around {
    /// Counts how many of the hits are near the limit and how many over it. A hit is near beyond `near_limit_ratio` of
    /// the limit's number.
    pub fn of_limit(limited: &Limited<'_>, verdict: Verdict, hits: u64, near_limit_ratio: f32) -> Around {
        let capacity = limited.capacity();
        Around::of(verdict, capacity, near_limit(capacity, near_limit_ratio), hits)
    }

    /// Where denied requests are charged, the hits that use the rest of the limit are near it, and only those after
    /// them are over it.
    fn of(verdict: Verdict, capacity: u64, near: u64, hits: u64) -> Around {
        if verdict.allowed {
            let used = capacity.saturating_sub(verdict.remaining);
            return Around { near: used.saturating_sub(near).min(hits), over: 0 };
        }
        let over = verdict.excess.map_or(hits, |excess| hits.min(excess));
        let before = capacity.saturating_sub(hits - over);
        Around { near: if over < hits { capacity.saturating_sub(near.max(before)) } else { 0 }, over }
    }
}

/// Returns the number of hits up to which a limit is not near. Computed in single precision, as `envoyproxy/ratelimit`
/// does: 0.7 of 90 is 63, but 62.99… in double precision.
fn near_limit(capacity: u64, ratio: f32) -> u64 {
    (capacity as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_over_the_limit_is_near_it_first() {
        let said = |allowed, remaining, excess| {
            let reset_after_ms = 1_000;
            Verdict { allowed, remaining, excess, reset_after_ms, retry_after_ms: Some(0), ..Verdict::NOTHING }
        };
        let of = |verdict, hits| {
            let Around { near, over } = Around::of(verdict, 20, 16, hits);
            (near, over)
        };
        // Up to the near mark, across it, and within the near range.
        assert_eq!(of(said(true, 4, None), 6), (0, 0));
        assert_eq!(of(said(true, 2, None), 4), (2, 0));
        assert_eq!(of(said(true, 1, None), 3), (3, 0));
        // From 10 to 25 used, from 18 to 23, all of it used before, and all of it used at once.
        assert_eq!(of(said(false, 0, Some(5)), 15), (4, 5));
        assert_eq!(of(said(false, 0, Some(3)), 5), (2, 3));
        assert_eq!(of(said(false, 0, Some(8)), 5), (0, 5));
        assert_eq!(of(said(false, 0, Some(10)), 30), (4, 10));
        // A denial that charges nothing counts all its hits as over the limit.
        assert_eq!(of(said(false, 2, None), 5), (0, 5));
    }

    #[test]
    fn a_limit_is_near_where_envoyproxy_ratelimit_says_so() {
        let near = [
            (1, 0.8),
            (100, 0.57),
            (15, 0.8),
            (20, 0.8),
            (10, 0.8),
            (8, 0.8),
            (14, 0.8),
            (5, 0.8),
            (0, 0.8),
            (90, 0.7),
            (180, 0.7),
        ];
        let near = near.map(|(capacity, ratio)| near_limit(capacity, ratio));
        assert_eq!(near, [0, 57, 12, 16, 8, 6, 11, 4, 0, 63, 126]);
        assert_eq!(near_limit(100_000_007, 0.8), 80_000_008);
        assert_eq!(near_limit(u32::MAX.into(), 1.0), 1 << 32);
    }
}
