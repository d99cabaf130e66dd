//! The names of the pages that counters may have, so that their usage is read without a scan of all keys.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::engine::check::Key;
use crate::engine::usage::{Time, Usage};

/// Counters, and the time of which usage is wanted.
#[derive(Clone, Debug)]
pub struct Named {
    /// The counters, each once, with the pages of the time: the first and the last.
    counters: Vec<(Key, Usage, u64, u64)>,
    /// Identifies the counters.
    hash: u64,
}

/// A place among the pages: that of the next one to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the store, if there are several.
    pub(super) source: usize,
    counter: usize,
    /// Number of the page; `None` for the first one of the counter.
    page: Option<u64>,
    /// Identifies the counters; 0 at the beginning.
    hash: u64,
}

impl Named {
    /// Names the pages that these counters may have of this time: neither of the future, nor older than the records
    /// are kept. The clocks of instances, which number the pages, differ by less than a page from `now`.
    pub fn new(counters: impl IntoIterator<Item = (Key, Usage)>, (from, to): (Time, Time), now: Time) -> Named {
        let (mut known, mut hasher) = (BTreeSet::new(), blake3::Hasher::new());
        let mut pages = |(key, usage): (Key, Usage)| {
            let page_ms = usage.period().page_ms();
            let first = from.0.max(now.0.saturating_sub(usage.page_kept_ms())) / page_ms;
            let last = to.0.saturating_sub(1).min(now.0) / page_ms;
            hasher.update(key.as_str().as_bytes()).update(&page_ms.to_le_bytes());
            known.insert(key.clone()).then_some((key, usage, first.saturating_sub(1), last + 1))
        };
        let counters = counters.into_iter().filter_map(&mut pages).collect();
        let mut hash = [0; 8];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Named { counters, hash: u64::from_le_bytes(hash) }
    }

    /// Returns whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Returns at most this many names from this place on, and the place of the next one; `None` if the place is among
    /// other counters, because the rules have changed.
    pub(super) fn part(&self, place: Place, most: usize) -> Option<(Vec<String>, Option<Place>)> {
        let Place { source, mut counter, mut page, hash } = place;
        if hash != self.hash && place != Place::first_of(source) {
            return None;
        }
        let mut names = Vec::new();
        while let Some((key, usage, first, last)) = self.counters.get(counter) {
            for number in page.unwrap_or(*first).max(*first)..=*last {
                if names.len() == most {
                    return Some((names, Some(Place { source, counter, page: Some(number), hash: self.hash })));
                }
                names.push(key.of_page(usage.period(), number * usage.period().page_ms()).as_str().to_owned());
            }
            (counter, page) = (counter + 1, None);
        }
        Some((names, None))
    }
}

impl Place {
    /// Returns the first place in this store.
    pub(super) fn first_of(source: usize) -> Place {
        Place { source, ..Place::default() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { source, counter, page, hash } = self;
        write!(f, "n{source}.{counter}.{}.{hash:x}", page.unwrap_or(0))
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Place, ()> {
        let mut parts = text.strip_prefix('n').ok_or(())?.split('.');
        let mut next = || parts.next().ok_or(());
        let (source, counter, page) = (next()?, next()?, next()?);
        let hash = u64::from_str_radix(next()?, 16).map_err(drop)?;
        let number = |text: &str| text.parse::<usize>().map_err(drop);
        let place = Place {
            source: number(source)?,
            counter: number(counter)?,
            page: Some(page.parse().map_err(drop)?).filter(|page| *page > 0),
            hash,
        };
        if parts.next().is_some() { Err(()) } else { Ok(place) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Limit, Options};
    use crate::engine::check::Origin;
    use crate::engine::usage::Period;
    use crate::engine::usage::page::PageName;

    fn counters(of: &[Period]) -> Vec<(Key, Usage)> {
        let limit = Limit::new(Algorithm::FixedWindow, 1, Duration::from_secs(1), Options::default()).unwrap();
        let counter = |(number, period): (usize, &Period)| {
            let key = Key::new("p:", &format!("d{number}"), &[], |_| None, &limit, Origin::Rule);
            (key, Usage::new(*period, Duration::from_millis(period.page_ms() * 20)).unwrap())
        };
        of.iter().enumerate().map(counter).collect()
    }

    proptest! {
        /// In parts or at once, these are the names that a scan would keep, of those that there can be.
        #[test]
        fn the_names_are_those_that_a_scan_would_keep(
            periods in prop::collection::vec(prop::sample::select(&Period::ALL[..]), 0..3),
            from in 0..3_000_u64, length in 1..300_u64, most in 1..50_usize,
        ) {
            const HOUR: u64 = 3_600_000;
            let (from, to) = (Time((3_000_000 + from) * HOUR), Time((3_000_000 + from + length) * HOUR));
            let (now, counters) = (Time(to.0 - 1), counters(&periods));
            let named = Named::new(counters.clone(), (from, to), now);
            let (mut place, mut names) = (Place::default(), Vec::new());
            loop {
                let (part, next) = named.part(place, most).unwrap();
                prop_assert!(part.len() <= most);
                names.extend(part);
                let Some(next) = next else { break };
                prop_assert_eq!(next.to_string().parse(), Ok(next));
                place = next;
            }
            let mut expected = Vec::new();
            for (key, usage) in &counters {
                let page_ms = usage.period().page_ms();
                let oldest = (now.0 - usage.page_kept_ms()) / page_ms;
                for number in oldest.saturating_sub(1)..=now.0 / page_ms + 1 {
                    let name = key.of_page(usage.period(), number * page_ms).as_str().to_owned();
                    if PageName::read(&name).unwrap().may_have(from, to) {
                        expected.push(name);
                    }
                }
            }
            prop_assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_place_among_other_counters_is_none() {
        let of = |periods: &[Period]| Named::new(counters(periods), (Time(0), Time(u64::MAX)), Time(1 << 41));
        let (_, next) = of(&[Period::Day, Period::Hour]).part(Place::default(), 3).unwrap();
        assert!(of(&[Period::Day, Period::Hour]).part(next.unwrap(), 3).is_some());
        assert_eq!(of(&[Period::Day]).part(next.unwrap(), 3), None);
        for wrong in ["", "1.2.3.4", "n1.2.3", "n1.2.3.x", "n1.2.3.4.5", "n-1.2.3.4"] {
            assert_eq!(wrong.parse::<Place>(), Err(()), "{wrong}");
        }
    }
}
