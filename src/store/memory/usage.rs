//! What counters were used, by pages as in Redis, until the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::store::{Key, Recorded};
use crate::usage::{Added, Page, Totals};

/// What a page takes beside its name, which is there twice, and its tag; and what a record takes.
const PAGE_BYTES: usize = 200;
const RECORD_BYTES: usize = 48;
/// How many pages that have expired leave when a record comes.
const SWEEP_PER_RECORD: usize = 2;

/// The pages of a store.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: BTreeMap<Key, Kept>,
    /// When each leaves, in milliseconds since the epoch.
    ends: BTreeSet<(u64, Key)>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    tag: Option<Arc<str>>,
    records: BTreeMap<u64, Totals>,
    ends_at: u64,
}

impl Pages {
    /// What a record would take that is not there, in bytes.
    pub(super) fn needed(&self, page: &Key, recorded: &Recorded, added: Added) -> usize {
        match self.pages.get(page) {
            Some(kept) if kept.records.contains_key(&added.index) => 0,
            Some(_) => RECORD_BYTES,
            None => page_bytes(page, recorded.tag.as_deref()) + RECORD_BYTES,
        }
    }

    pub(super) fn add(&mut self, page: Key, recorded: &Recorded, added: Added, now: u64) {
        self.sweep(SWEEP_PER_RECORD, now);
        if let Some(record) = self.pages.get_mut(&page).and_then(|kept| kept.records.get_mut(&added.index)) {
            *record = record.with(added);
            return;
        }
        self.bytes += self.needed(&page, recorded, added);
        let ends_at = now.saturating_add(recorded.usage.page_kept_ms());
        let kept = self.pages.entry(page.clone()).or_insert_with(|| Kept {
            tag: recorded.tag.clone(),
            records: BTreeMap::new(),
            ends_at,
        });
        kept.records.insert(added.index, Totals::default().with(added));
        self.ends.remove(&(kept.ends_at, page.clone()));
        kept.ends_at = ends_at;
        self.ends.insert((ends_at, page));
    }

    /// Removes pages that have expired, at most so many.
    pub(super) fn sweep(&mut self, most: usize, now: u64) {
        for _ in 0..most {
            let Some((ends_at, page)) = self.ends.first().filter(|(ends_at, _)| *ends_at <= now).cloned() else {
                return;
            };
            self.ends.remove(&(ends_at, page.clone()));
            if let Some(kept) = self.pages.remove(&page) {
                self.bytes -= page_bytes(&page, kept.tag.as_deref()) + kept.records.len() * RECORD_BYTES;
            }
        }
    }

    /// About what they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pages behind the one of this name, in the order of their names, at most so many.
    pub(super) fn after(&self, name: Option<&str>, most: usize) -> Vec<Page> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let pages = self.pages.range::<str, _>((from, Bound::Unbounded)).take(most);
        let page = |(key, kept): (&Key, &Kept)| Page {
            name: key.as_str().to_owned(),
            tag: kept.tag.as_deref().map(str::to_owned),
            records: kept.records.iter().map(|(index, totals)| (*index, *totals)).collect(),
        };
        pages.map(page).collect()
    }
}

fn page_bytes(page: &Key, tag: Option<&str>) -> usize {
    PAGE_BYTES + 2 * page.as_str().len() + tag.map_or(0, str::len)
}
