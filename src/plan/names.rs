//! By which names a request finds its counters: Tollgate's own, or for fixed windows those of `envoyproxy/ratelimit`,
//! so that old and new processes count together while one takes the other's place.
//!
//! There the window is part of the name, by the clock of the host that asks; it is read once for a request, and never
//! where counters have names of our own. Which limits have such names: a fixed window of a unit that
//! `envoyproxy/ratelimit` has, without a time zone, which is the only one of its rule. Of two, both would have one
//! counter whenever their windows begin together.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU64;

use crate::algorithm::{Algorithm, Limit, NamedWindow};
use crate::descriptor::Unit;
use crate::rules::{Allowance, Rule};
use crate::store::Key;

/// Whose names counters have in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterKeys {
    /// Tollgate's own.
    #[default]
    Tollgate,
    /// Of fixed windows those of `envoyproxy/ratelimit`.
    Reference {
        /// A counter is kept for less than so many seconds longer than a window lasts: not all expire at once.
        jitter_s: u32,
    },
}

/// The names that the counters of one request have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Tollgate's own.
    #[default]
    Tollgate,
    /// Of fixed windows those of `envoyproxy/ratelimit` at this time.
    Reference {
        /// When the request came, in milliseconds since the epoch.
        now_ms: u64,
        /// See [`CounterKeys::Reference`].
        jitter_s: u32,
    },
}

/// The window of a limit that is in its counter's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// It began then, in seconds since the epoch.
    start_s: u64,
    period_s: u64,
    left_ms: NonZeroU64,
    jitter_s: u32,
}

impl CounterKeys {
    /// The names for a request that comes now; `now_ms` is asked where they depend on it.
    pub fn names(self, now_ms: impl FnOnce() -> u64) -> Names {
        match self {
            CounterKeys::Tollgate => Names::Tollgate,
            CounterKeys::Reference { jitter_s } => Names::Reference { now_ms: now_ms(), jitter_s },
        }
    }
}

impl Names {
    /// The window in the name of a limit's counter; `None` where the name is our own.
    pub(super) fn window(self, limit: &Limit) -> Option<Window> {
        let Names::Reference { now_ms, jitter_s } = self else { return None };
        if limit.algorithm() != Algorithm::FixedWindow || limit.options().time_zone.is_some() {
            return None;
        }
        let period_s = Unit::of(limit.period())?.duration().as_secs();
        let now_s = now_ms / 1_000;
        let start_s = now_s - now_s % period_s;
        let left_ms = NonZeroU64::new((start_s + period_s) * 1_000 - now_ms)?;
        Some(Window { start_s, period_s, left_ms, jitter_s })
    }

    /// The same of a limit of a rule.
    pub(super) fn window_in(self, rule: &Rule, limit: &Limit) -> Option<Window> {
        let window = self.window(limit)?;
        let limits = rule.limits.iter().filter(|limit| match &limit.config.allowance {
            Allowance::Limited(limit) => self.window(limit).is_some(),
            Allowance::Unlimited => false,
        });
        (limits.count() == 1).then_some(window)
    }
}

/// A counter's name, and what the counter is told of the window in it, where there is one.
pub(super) fn name(
    window: Option<Window>,
    own: impl FnOnce() -> Key,
    of_window: impl FnOnce(u64) -> Key,
) -> (Key, Option<NamedWindow>) {
    let Some(window) = window else { return (own(), None) };
    let key = of_window(window.start_s);
    let named = window.named(&key);
    (key, Some(named))
}

impl Window {
    /// What the counter of this name is told of it. When it expires is drawn from its name: a counter that is charged
    /// again is kept for the same time again.
    fn named(self, key: &Key) -> NamedWindow {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let jitter_s = hasher.finish().checked_rem(self.jitter_s.into()).unwrap_or(0);
        NamedWindow { left_ms: self.left_ms, kept_ms: (self.period_s + jitter_s) * 1_000 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Options, TimeZone};

    fn fixed(period: Duration) -> Limit {
        Limit::new(Algorithm::FixedWindow, 5, period, Options::default()).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::of_window("", name, &[], |_| None, 0)
    }

    #[test]
    fn nobody_reads_a_clock_for_names_of_our_own() {
        assert_eq!(CounterKeys::Tollgate.names(|| unreachable!("no time is needed")), Names::Tollgate);
    }

    #[test]
    fn a_length_or_calendar_that_the_other_does_not_have_and_another_algorithm_keep_our_names() {
        let names = Names::Reference { now_ms: 1_234_000, jitter_s: 0 };
        assert!(names.window(&fixed(Duration::from_secs(60))).is_some());
        assert!(names.window(&fixed(Duration::from_secs(90))).is_none());
        let time_zone = TimeZone::named("UTC");
        let day = Duration::from_secs(24 * 60 * 60);
        let calendar = Limit::new(Algorithm::FixedWindow, 5, day, Options { time_zone, ..Options::default() });
        assert!(names.window(&fixed(day)).is_some() && names.window(&calendar.unwrap()).is_none());
        for algorithm in Algorithm::ALL.iter().filter(|algorithm| **algorithm != Algorithm::FixedWindow) {
            let limit = Limit::new(*algorithm, 5, Duration::from_secs(60), Options::default()).unwrap();
            assert!(names.window(&limit).is_none(), "{algorithm}");
        }
        assert!(Names::Tollgate.window(&fixed(Duration::from_secs(60))).is_none());
    }

    proptest! {
        #[test]
        fn now_is_in_the_window_and_a_counter_outlives_it_by_less_than_the_jitter(
            unit in prop::sample::select(&Unit::ALL[..]), now_ms in 0..1_u64 << 42, jitter_s in 0..1_000_u32,
            name in "[a-z]{0,3}"
        ) {
            let window = Names::Reference { now_ms, jitter_s }.window(&fixed(unit.duration())).unwrap();
            let period_s = unit.duration().as_secs();
            let NamedWindow { left_ms, kept_ms } = window.named(&key(&name));
            prop_assert_eq!(window.start_s % period_s, 0);
            prop_assert_eq!(now_ms + left_ms.get(), (window.start_s + period_s) * 1_000);
            prop_assert!(left_ms.get() <= period_s * 1_000);
            let jitter = (kept_ms / 1_000 - period_s) as u32;
            prop_assert!(jitter == 0 || jitter < jitter_s, "{}", jitter);
            prop_assert_eq!(kept_ms % 1_000, 0);
        }
    }

    #[test]
    fn not_all_counters_expire_at_once() {
        let window = Names::Reference { now_ms: 0, jitter_s: 300 }.window(&fixed(Duration::from_secs(1))).unwrap();
        let kept: Vec<u64> = (0..1_000).map(|i| window.named(&key(&i.to_string())).kept_ms).collect();
        let different: std::collections::BTreeSet<_> = kept.iter().collect();
        assert!(different.len() > 250, "{}", different.len());
        assert_eq!((kept.iter().min(), kept.iter().max().map(|most| *most < 301_000)), (Some(&1_000), Some(true)));
    }
}
