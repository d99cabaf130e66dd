//! What is counted of hits: of each rule, and of each path of requests' values.

use std::sync::atomic::{AtomicU64, Ordering};

use super::reference::Stat;
use crate::algorithm::Verdict;
use crate::decision::Limited;
use crate::descriptor::Role;

/// What is counted of a rule.
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
    /// Where there is a penalty.
    Banned,
    /// Those over the limit that the store was not asked about.
    KnownDenied,
}

impl OfRule {
    pub(super) const NUMBER: usize = OfRule::KnownDenied as usize + 1;
}

/// The counters of hits.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: [AtomicU64; OfRule::NUMBER],
    /// What of each statistic has been pushed to a statsd server.
    pushed: [AtomicU64; Stat::NUMBER],
}

impl Tally {
    pub(super) fn get(&self, of_rule: OfRule) -> u64 {
        self.counts[of_rule as usize].load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, of_rule: OfRule, more: u64) {
        // The workers share it: what adds nothing takes it from none of them.
        if more > 0 {
            self.counts[of_rule as usize].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Counts so many hits of a call that failed.
    pub(super) fn record_undecided(&self, hits: u64) {
        self.add(OfRule::UndecidedRequests, 1);
        self.add(OfRule::Hits, hits);
    }

    /// Counts what a limit says of so many hits.
    pub(super) fn record(&self, limited: &Limited<'_>, hits: u64, near_limit_ratio: f32) {
        self.add(outcome(limited), 1);
        self.add(OfRule::Hits, hits);
        if limited.banned_ms().is_some() {
            self.add(OfRule::Banned, hits);
        }
        // What a failure mode answers is no statement about the limit.
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

    /// What `envoyproxy/ratelimit` would have counted.
    pub(super) fn stat(&self, stat: Stat) -> u64 {
        self.get(stat.counted_as())
    }

    /// What has not been pushed yet.
    pub(super) fn unpushed(&self, stat: Stat) -> u64 {
        self.stat(stat).saturating_sub(self.pushed[stat as usize].load(Ordering::Relaxed))
    }

    /// So much more has been pushed.
    pub(super) fn note_pushed(&self, stat: Stat, more: u64) {
        self.pushed[stat as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Something has not been pushed yet.
    pub(super) fn has_unpushed(&self) -> bool {
        Stat::ALL.iter().any(|stat| self.unpushed(*stat) > 0)
    }
}

/// As what a request counts.
fn outcome(limited: &Limited<'_>) -> OfRule {
    match limited.verdict() {
        None if limited.is_asked() => OfRule::UndecidedRequests,
        // An adjustment lets it pass.
        None | Some(Verdict { allowed: true, .. }) => OfRule::WithinLimitRequests,
        Some(_) if limited.role() == Role::Shadow => OfRule::ShadowRequests,
        Some(_) => OfRule::OverLimitRequests,
    }
}

/// How many hits of a request are beyond what is near a limit, and beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// Within the limit, beyond `NEAR_LIMIT_RATIO` of it.
    pub near: u64,
    /// Over the limit.
    pub over: u64,
}

/// The limit of a descriptor that decides what its rule counts once: one that denies, before one of which nobody knows,
/// and then the one that is nearest to its end.
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
    pub(super) fn of_limit(limited: &Limited<'_>, verdict: Verdict, hits: u64, near_limit_ratio: f32) -> Around {
        let capacity = limited.asked.check.limit.capacity();
        Around::of(verdict, capacity, near_limit(capacity, near_limit_ratio), hits)
    }

    /// Where a denied request is charged, it uses what is left before it is over: that is near the limit, and only the
    /// rest is over.
    fn of(verdict: Verdict, capacity: u32, near: u64, hits: u64) -> Around {
        let capacity = u64::from(capacity);
        if verdict.allowed {
            let used = capacity.saturating_sub(verdict.remaining.into());
            return Around { near: used.saturating_sub(near).min(hits), over: 0 };
        }
        let over = verdict.excess.map_or(hits, |excess| hits.min(excess.into()));
        let before = capacity.saturating_sub(hits - over);
        Around { near: if over < hits { capacity.saturating_sub(near.max(before)) } else { 0 }, over }
    }
}

/// How many hits may be used before a limit is near. In single precision, as `envoyproxy/ratelimit` computes it: 0.7 of
/// 90 is 63, and 62.99… in double precision.
fn near_limit(capacity: u32, ratio: f32) -> u64 {
    (capacity as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_over_the_limit_is_near_it_first() {
        let said = |allowed, remaining, excess| {
            let reset_after_ms = 1_000;
            Verdict { allowed, remaining, excess, reset_after_ms, retry_after_ms: Some(0), delay_ms: 0 }
        };
        let of = |verdict, hits| {
            let Around { near, over } = Around::of(verdict, 20, 16, hits);
            (near, over)
        };
        // Up to near, from far, within it.
        assert_eq!(of(said(true, 4, None), 6), (0, 0));
        assert_eq!(of(said(true, 2, None), 4), (2, 0));
        assert_eq!(of(said(true, 1, None), 3), (3, 0));
        // From 10 to 25, from 18 to 23, then all of it, and all at once.
        assert_eq!(of(said(false, 0, Some(5)), 15), (4, 5));
        assert_eq!(of(said(false, 0, Some(3)), 5), (2, 3));
        assert_eq!(of(said(false, 0, Some(8)), 5), (0, 5));
        assert_eq!(of(said(false, 0, Some(10)), 30), (4, 10));
        // What a denial costs nothing counts as over.
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
        assert_eq!(near_limit(u32::MAX, 1.0), 1 << 32);
    }
}
