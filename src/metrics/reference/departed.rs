//! What series for Prometheus keep of paths that have left them. Several paths may be shown as one series, which is
//! their sum; without the part of a path that has left, the sum would fall, and Prometheus take all that remains for
//! new.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;

use parking_lot::Mutex;

use super::exposition::{Exposition, Shown};
use super::{Name, Stat, StatPath};

/// So many series without a path may wait for a scrape that no longer has them.
const MOST_WAITING: usize = 10_000;

/// The series that have paths, and those that had one at the last scrape.
pub(in crate::metrics) struct Departed {
    pub(super) exposition: Exposition,
    hasher: RandomState,
    series: Mutex<AllSeries>,
}

#[derive(Default)]
struct AllSeries {
    by_id: HashMap<SeriesId, Series>,
    /// So many of them have no path.
    waiting: usize,
}

#[derive(Default)]
struct Series {
    paths: usize,
    /// What they have counted that have left.
    left: f64,
}

/// A hash of its name and its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SeriesId(u64);

/// Where the counters of a path are shown, in the order of [`Places::names`].
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

    /// Where a path is shown from now on, until it leaves.
    pub(in crate::metrics) fn places(&self, path: &StatPath) -> Places {
        let place = |name| self.exposition.shown(name).map(|shown| (self.id(&shown), shown.scale));
        Places(Places::names(path).map(place).collect())
    }

    /// A path is shown there.
    pub(in crate::metrics) fn enter(&self, places: &Places) {
        let AllSeries { by_id, waiting } = &mut *self.series.lock();
        for (id, _) in places.0.iter().flatten() {
            let is_known = by_id.contains_key(id);
            let series = by_id.entry(*id).or_default();
            *waiting -= usize::from(is_known && series.paths == 0);
            series.paths += 1;
        }
    }

    /// A path is no longer shown there, and has counted so much.
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

    /// What each series keeps. Those that have no path are not in this scrape, and begin anew when they come back.
    pub(super) fn left(&self) -> Left<'_> {
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

/// What each series kept at one time.
pub(super) struct Left<'d> {
    departed: &'d Departed,
    by_id: HashMap<SeriesId, f64>,
}

impl Left<'_> {
    pub(super) fn of(&self, shown: &Shown<'_>) -> f64 {
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
