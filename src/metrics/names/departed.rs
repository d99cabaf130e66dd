//! The counts of departed paths that Prometheus series keep. Several paths may be shown as one series, which is their
//! sum. If a departed path's share were dropped, the sum would fall, and Prometheus would take the whole remainder for
//! an increase.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;

use parking_lot::Mutex;

use super::exposition::{Exposition, Shown};
use super::{Name, Stat, StatPath};

/// Most series without a path that may wait for a scrape to drop them.
const MOST_WAITING: usize = 10_000;

/// The series that have paths, and those that had one at the last scrape.
pub(in crate::metrics) struct Departed {
    pub(in crate::metrics) exposition: Exposition,
    hasher: RandomState,
    series: Mutex<AllSeries>,
}

#[derive(Default)]
struct AllSeries {
    by_id: HashMap<SeriesId, Series>,
    /// Number of series without a path.
    waiting: usize,
}

#[derive(Default)]
struct Series {
    paths: usize,
    /// The counts of the paths that have left.
    left: f64,
}

/// A hash of a series' name and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SeriesId(u64);

/// The series in which a path's counters are shown, in the order of [`Places::names`].
#[derive(Debug)]
pub(in crate::metrics) struct Places(Box<[Option<(SeriesId, f64)>]>);

impl Places {
    fn names(path: &StatPath) -> impl Iterator<Item = Name<'_>> {
        let stats = Stat::ALL.into_iter().map(|stat| Name::OfPath(path, stat));
        stats.chain([Name::DomainNotFound(path)])
    }
}

impl Departed {
    pub(in crate::metrics) fn new(exposition: Exposition) -> Departed {
        Departed { exposition, hasher: RandomState::new(), series: Mutex::default() }
    }

    /// Returns the series in which a path is shown until it leaves.
    pub(in crate::metrics) fn places(&self, path: &StatPath) -> Places {
        let place = |name| self.exposition.shown(name).map(|shown| (self.id(&shown), shown.scale));
        Places(Places::names(path).map(place).collect())
    }

    /// Adds a path to its series.
    pub(in crate::metrics) fn enter(&self, places: &Places) {
        let AllSeries { by_id, waiting } = &mut *self.series.lock();
        for (id, _) in places.0.iter().flatten() {
            let is_known = by_id.contains_key(id);
            let series = by_id.entry(*id).or_default();
            *waiting -= usize::from(is_known && series.paths == 0);
            series.paths += 1;
        }
    }

    /// Removes a path from its series, which keep its counts.
    pub(in crate::metrics) fn leave(&self, places: &Places, hits: [u64; Stat::NUMBER], domain_not_found: u64) {
        let AllSeries { by_id, waiting } = &mut *self.series.lock();
        for (place, count) in places.0.iter().zip(hits.into_iter().chain([domain_not_found])) {
            let Some((id, scale)) = place else { continue };
            let Some(series) = by_id.get_mut(id) else { continue };
            series.left += count as f64 * scale;
            series.paths = series.paths.saturating_sub(1);
            *waiting += usize::from(series.paths == 0);
        }
        if *waiting > MOST_WAITING {
            by_id.retain(|_, series| series.paths > 0);
            *waiting = 0;
        }
    }

    /// Returns the kept count of each series. Series without a path are dropped: this scrape does not show them, and
    /// they start from zero if a path returns.
    pub(in crate::metrics) fn left(&self) -> Left<'_> {
        let AllSeries { by_id, waiting } = &mut *self.series.lock();
        by_id.retain(|_, series| series.paths > 0);
        *waiting = 0;
        let left = by_id.iter().filter(|(_, series)| series.left > 0.0).map(|(id, series)| (*id, series.left));
        Left { departed: self, by_id: left.collect() }
    }

    fn id(&self, Shown { name, labels, .. }: &Shown<'_>) -> SeriesId {
        SeriesId(self.hasher.hash_one((name, labels)))
    }
}

/// The kept counts of all series at one moment.
pub(in crate::metrics) struct Left<'d> {
    departed: &'d Departed,
    by_id: HashMap<SeriesId, f64>,
}

impl Left<'_> {
    pub(in crate::metrics) fn of(&self, shown: &Shown<'_>) -> f64 {
        if self.by_id.is_empty() {
            return 0.0;
        }
        self.by_id.get(&self.departed.id(shown)).copied().unwrap_or(0.0)
    }
}

impl fmt::Debug for Departed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departed").field("exposition", &self.exposition).finish_non_exhaustive()
    }
}
