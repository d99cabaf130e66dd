//! Usage records of counters in memory, in pages as in Redis, until the process ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::check::{Key, Recorded};
use crate::engine::usage::page::{Page, PageName, Scope};
use crate::engine::usage::{Added, Time, Totals};

/// Bytes of a page in addition to its tag and its name, which is stored three times, and bytes of a record.
const PAGE_BYTES: usize = 300;
const RECORD_BYTES: usize = 48;
/// The largest number of pages searched for one answer.
const LOOKED_AT: usize = 10_000;
/// Number of pages searched under one lock. Decisions wait for that lock, each while it holds a shard of counters.
const IN_ONE_GO: usize = 64;

/// A store in memory that has pages.
pub trait MemoryPages: Send + Sync {
    /// Returns about this many pages, starting at this place, that the scope may want according to
    /// [`PageName::may_have`], and the next place if there are more. The first place is 0. A page that exists during
    /// the whole read is returned at least once.
    ///
    /// [`PageName::may_have`]: crate::engine::usage::page::PageName::may_have
    fn pages(&self, scope: &Scope<'_>, place: u64, about: usize) -> (Vec<Page>, Option<u64>);

    /// Returns the page with this name.
    fn page(&self, name: &str) -> Option<Page>;

    /// Returns the time, in milliseconds since the epoch.
    fn now(&self) -> u64;
}

/// The pages of a store.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: HashMap<Key, Kept>,
    /// The pages in the order of creation, so a reader that takes a part at a time finds its place again.
    places: BTreeMap<u64, Key>,
    next_place: u64,
    /// When each page expires, in milliseconds since the epoch.
    ends: BTreeSet<(u64, Key)>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    tag: Option<Arc<str>>,
    records: BTreeMap<u64, Totals>,
    ends_at: u64,
    place: u64,
}

impl Pages {
    /// Returns the bytes that must be added for a record, zero if it exists.
    pub(super) fn needed(&self, page: &Key, recorded: &Recorded, added: Added) -> usize {
        match self.pages.get(page) {
            Some(kept) if kept.records.contains_key(&added.index) => 0,
            Some(_) => RECORD_BYTES,
            None => page_bytes(page, recorded.tag.as_deref()) + RECORD_BYTES,
        }
    }

    pub(super) fn add(&mut self, page: Key, recorded: &Recorded, added: Added, now: u64) {
        let charged = self.pages.get(&page).map_or(0, |kept| kept.records.values().map(|record| record.cost).sum());
        let Some(added) = added.on_page(charged) else { return };
        if let Some(record) = self.pages.get_mut(&page).and_then(|kept| kept.records.get_mut(&added.index)) {
            *record = record.with(added);
            return;
        }
        self.bytes += self.needed(&page, recorded, added);
        let ends_at = now.saturating_add(recorded.usage.page_kept_ms());
        let kept = self.pages.entry(page.clone()).or_insert_with(|| {
            let place = self.next_place;
            self.next_place += 1;
            self.places.insert(place, page.clone());
            Kept { tag: recorded.tag.clone(), records: BTreeMap::new(), ends_at, place }
        });
        kept.records.insert(added.index, Totals::default().with(added));
        self.ends.remove(&(kept.ends_at, page.clone()));
        kept.ends_at = kept.ends_at.max(ends_at);
        self.ends.insert((kept.ends_at, page));
    }

    /// Removes at most this many expired pages.
    pub(super) fn sweep(&mut self, most: usize, now: u64) {
        for _ in 0..most {
            let Some((ends_at, page)) = self.ends.first().filter(|(ends_at, _)| *ends_at <= now).cloned() else {
                return;
            };
            self.ends.remove(&(ends_at, page.clone()));
            if let Some(kept) = self.pages.remove(&page) {
                self.places.remove(&kept.place);
                self.bytes -= page_bytes(&page, kept.tag.as_deref()) + kept.records.len() * RECORD_BYTES;
            }
        }
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns about this many pages of a scope, starting at this place, and the next place if there are more.
    pub(super) fn read(
        pages: &Mutex<Pages>,
        scope: &Scope<'_>,
        mut place: u64,
        about: usize,
    ) -> (Vec<Page>, Option<u64>) {
        let mut found = Vec::new();
        for _ in 0..LOOKED_AT / IN_ONE_GO {
            match pages.lock().read_some(scope, place, about, &mut found) {
                Some(next) if found.len() < about => place = next,
                next => return (found, next),
            }
        }
        (found, Some(place))
    }

    /// Returns the page with this name.
    pub(super) fn named(&self, name: &str) -> Option<Page> {
        self.pages.get_key_value(name).map(|(key, kept)| kept.page(key))
    }

    /// Reads a part of the pages under one lock.
    fn read_some(&self, scope: &Scope<'_>, place: u64, about: usize, found: &mut Vec<Page>) -> Option<u64> {
        for (looked_at, (place, key)) in self.places.range(place..).enumerate() {
            if found.len() == about || looked_at == IN_ONE_GO {
                return Some(*place);
            }
            let is_wanted = PageName::read(key.as_str()).is_some_and(|name| name.may_have(scope.from, scope.to));
            found.extend(self.pages.get(key).filter(|_| is_wanted).map(|kept| kept.page(key)));
        }
        None
    }
}

impl Kept {
    fn page(&self, key: &Key) -> Page {
        Page {
            name: key.as_str().to_owned(),
            full_tag: self.tag.as_deref().map(str::to_owned),
            expires: Some(Time(self.ends_at)),
            records: self.records.iter().map(|(index, totals)| (*index, *totals)).collect(),
            damaged: 0,
        }
    }
}

fn page_bytes(page: &Key, tag: Option<&str>) -> usize {
    PAGE_BYTES + 3 * page.as_str().len() + tag.map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Limit, Options};
    use crate::engine::check::{Check, Occasion, Origin, StoreError};
    use crate::engine::clock::GivenClock;
    use crate::engine::usage::{Period, Usage};
    use crate::store::memory::MemoryStore;

    const DAY: u64 = 86_400_000;

    /// Returns a request of this user, with a limit of a million hits per year.
    fn check(user: &str) -> Check {
        let year = Duration::from_millis(365 * DAY);
        let limit = Limit::new(Algorithm::FixedWindow, 1_000_000, year, Options::default()).unwrap();
        let usage = Usage::new(Period::Hour, Duration::from_millis(2 * DAY)).unwrap();
        let recorded = Some(Recorded { usage, tag: None, occasion: Occasion::Decided });
        Check { recorded, ..Check::new(Key::new("", user, &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1)) }
    }

    fn store(most_bytes: usize) -> (GivenClock, MemoryStore<GivenClock>) {
        let clock = GivenClock::default();
        clock.set(1_000 * DAY);
        (clock.clone(), MemoryStore::new(clock, most_bytes).keeping_usage())
    }

    const EVERYTHING: Scope<'_> = Scope { domain: None, from: Time(0), to: Time::END };

    fn all(store: &MemoryStore<GivenClock>) -> Vec<Page> {
        store.pages(&EVERYTHING, 0, usize::MAX).0
    }

    #[test]
    fn records_of_a_day_share_a_page_which_leaves_when_the_last_is_old_enough() {
        let (clock, store) = store(usize::MAX);
        for hour in 0..30 {
            clock.set(1_000 * DAY + hour * DAY / 24);
            store.decide(&[check("ann"), check("ann")]).unwrap();
        }
        let pages = all(&store);
        let records: Vec<usize> = pages.iter().map(|page| page.records.len()).collect();
        assert_eq!(records, [24, 6]);
        let twice = Totals { admitted: 2, cost: 2, ..Totals::default() };
        assert!(pages.iter().flat_map(|page| &page.records).all(|(_, record)| *record == twice));
        let (first, next) = store.pages(&EVERYTHING, 0, 1);
        assert_eq!(first, pages[..1]);
        assert_eq!(store.pages(&EVERYTHING, next.unwrap(), 9), (pages[1..].to_vec(), None));
        let second_day = Scope { from: Time(1_002 * DAY), ..EVERYTHING };
        assert_eq!(store.pages(&second_day, 0, 9), (pages[1..].to_vec(), None), "the first is two days older");
        // The last hour of the first day is kept for two days, and its page for one day more.
        clock.set(1_003 * DAY + 23 * DAY / 24 - 1);
        store.decide(&[check("ben")]).unwrap();
        assert_eq!(all(&store).len(), 3);
        clock.set(1_003 * DAY + 23 * DAY / 24);
        store.decide(&[check("ben")]).unwrap();
        let left = all(&store);
        assert_eq!(left.iter().filter(|page| page.name.contains("ann")).count(), 1, "{left:?}");
    }

    #[test]
    fn a_refund_takes_away_no_more_than_was_charged_on_its_page() {
        let (clock, store) = store(usize::MAX);
        let ask = |ask| store.decide(&[Check { ask, ..check("ann") }]).unwrap();
        let costs = || all(&store)[0].records.iter().map(|(_, record)| record.cost).collect::<Vec<_>>();
        ask(Ask::Take(3));
        clock.set(1_000 * DAY + DAY / 24);
        ask(Ask::Take(2));
        ask(Ask::Refund(4));
        assert_eq!(costs(), [3, -2], "what was charged an hour before, too");
        ask(Ask::Refund(1 << 31));
        ask(Ask::Refund(1 << 31));
        assert_eq!(costs(), [3, -3]);
    }

    #[test]
    fn the_lock_is_held_for_a_few_pages_at_a_time_and_all_are_read() {
        let (_, store) = store(usize::MAX);
        for user in 0..2 * IN_ONE_GO + 5 {
            store.decide(&[check(&format!("user{user}"))]).unwrap();
        }
        let pages = store.usage.as_ref().unwrap();
        let mut some = Vec::new();
        assert!(pages.lock().read_some(&EVERYTHING, 0, usize::MAX, &mut some).is_some());
        assert_eq!(some.len(), IN_ONE_GO);
        assert_eq!(all(&store).len(), 2 * IN_ONE_GO + 5);
        let (first, next) = store.pages(&EVERYTHING, 0, IN_ONE_GO + 1);
        assert_eq!((first.len(), store.pages(&EVERYTHING, next.unwrap(), 999).0.len()), (IN_ONE_GO + 1, IN_ONE_GO + 4));
        let nothing = Scope { from: Time(2_000 * DAY), ..EVERYTHING };
        assert_eq!(store.pages(&nothing, 0, 9), (Vec::new(), None));
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_room_for_a_record_nothing_is_charged() {
        let (clock, store) = store(3_000);
        let mut users: usize = 0;
        while store.decide(&[check(&format!("user{users}"))]).is_ok() {
            users += 1;
        }
        assert!((3..12).contains(&users), "{users}");
        store.decide(&[check("user0")]).unwrap();
        let late = check(&format!("user{users}"));
        assert!(matches!(store.decide(&[late]), Err(StoreError::Full)));
        assert!(store.bytes() <= 3_000, "{}", store.bytes());
        let peek = Check { ask: Ask::Peek, recorded: None, ..check(&format!("user{users}")) };
        assert_eq!(store.decide(&[peek]).unwrap()[0].unwrap().own.remaining, 1_000_000);
        clock.set(2_000 * DAY);
        let _ = tokio::time::timeout(Duration::from_secs(2), store.sweep()).await;
        assert_eq!((all(&store), store.bytes()), (Vec::new(), 0));
        store.decide(&[check("user0")]).unwrap();
    }
}
