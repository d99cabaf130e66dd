//! The naming of a request's counters: Tollgate's names or, for fixed windows, those of `envoyproxy/ratelimit`. With
//! the latter, old and new processes count together during a migration.
//!
//! A name of `envoyproxy/ratelimit` contains the window by the clock of the host that asks. The clock is read once per
//! request, and only for such names. They are used for a fixed window that has a unit of `envoyproxy/ratelimit` and no
//! time zone, that starts with the clock, and that is the only one of its rule: two windows that begin at the same time
//! would share a counter.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU64;

use crate::algorithm::{Algorithm, Limit, NamedWindow, Options, Starts};
use crate::check::Key;
use crate::descriptor::Unit;
use crate::rules::{Allowance, Rule};

/// The naming scheme of counters in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterKeys {
    /// Tollgate's names.
    #[default]
    Tollgate,
    /// Names of `envoyproxy/ratelimit` for fixed windows, Tollgate's names for the rest.
    Reference {
        /// Upper bound, in seconds, of the random time that a counter is kept after its window. It spreads the expiry
        /// of counters.
        jitter_s: u32,
    },
}

/// The naming of one request's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Tollgate's names.
    #[default]
    Tollgate,
    /// Names of `envoyproxy/ratelimit` for fixed windows, at this time.
    Reference {
        /// Time of the request, in milliseconds since the epoch.
        now_ms: u64,
        /// See [`CounterKeys::Reference`].
        jitter_s: u32,
    },
}

/// The window in the name of a limit's counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Start of the window, in seconds since the epoch.
    start_s: u64,
    period_s: u64,
    left_ms: NonZeroU64,
    jitter_s: u32,
}

impl CounterKeys {
    /// Returns the naming for a request that comes now. `now_ms` is called only if the names depend on the time.
    pub fn names(self, now_ms: impl FnOnce() -> u64) -> Names {
        match self {
            CounterKeys::Tollgate => Names::Tollgate,
            CounterKeys::Reference { jitter_s } => Names::Reference { now_ms: now_ms(), jitter_s },
        }
    }
}

impl Names {
    /// Returns the window in the name of a limit's counter; `None` if the name is Tollgate's.
    pub(super) fn window(self, limit: &Limit) -> Option<Window> {
        let Names::Reference { now_ms, jitter_s } = self else { return None };
        let Options { time_zone, starts, .. } = limit.options();
        let is_aligned = time_zone.is_none() && starts.unwrap_or_default() == Starts::Clock;
        if limit.algorithm() != Algorithm::FixedWindow || !is_aligned {
            return None;
        }
        let period_s = Unit::of(limit.period())?.duration().as_secs();
        let now_s = now_ms / 1_000;
        let start_s = now_s - now_s % period_s;
        let left_ms = NonZeroU64::new((start_s + period_s) * 1_000 - now_ms)?;
        Some(Window { start_s, period_s, left_ms, jitter_s })
    }

    /// Returns the window in the name of the counter of a rule's limit; `None` if the name is Tollgate's.
    pub(super) fn window_in(self, rule: &Rule, limit: &Limit) -> Option<Window> {
        let window = self.window(limit)?;
        let limits = rule.limits.iter().filter(|limit| match &limit.config.allowance {
            Allowance::Limited(limit) => self.window(limit).is_some(),
            Allowance::Unlimited => false,
        });
        (limits.count() == 1).then_some(window)
    }
}

/// Returns a counter's name, and the window in it, if any.
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
    /// Returns the window for the counter with this name. The expiry is derived from a hash of the name, so a counter
    /// that is charged again gets the same TTL again.
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
