//! Sorting of events by time. Envoy logs a request when it ends, with the time at which it began.

use std::collections::{BTreeMap, VecDeque};

/// The most events that are held, whatever the window.
const MOST_HELD: usize = 1 << 20;

/// The most emptied lists of events that are kept for reuse.
const MOST_SPARES: usize = 1 << 10;

/// Sorts events that are out of order by at most a window. `T` is a list of events.
#[derive(Debug)]
pub(super) struct Order<T> {
    window_ms: u64,
    /// Events by time that an earlier event may still follow.
    held: BTreeMap<u64, Held<T>>,
    /// Emptied lists, which are filled next.
    spares: Vec<T>,
    len: usize,
    newest_ms: u64,
    /// Time of the last event that left.
    left_ms: u64,
    late: u64,
}

/// Events that are held.
#[derive(Debug)]
struct Held<T> {
    len: usize,
    events: T,
}

/// Events that count at the same time, in the order of the log.
#[derive(Debug)]
pub(super) struct Simultaneous<T> {
    pub(super) at_ms: u64,
    /// Number of events; at least one.
    pub(super) len: usize,
    pub(super) events: T,
}

impl<T: Default> Order<T> {
    /// Creates a sorter with a window of this length.
    pub(super) fn new(window_ms: u64) -> Order<T> {
        let (held, spares) = (BTreeMap::new(), Vec::new());
        Order { window_ms, held, spares, len: 0, newest_ms: 0, left_ms: 0, late: 0 }
    }

    /// Adds an event by calling `add` with the list of its time. Moves the events that no earlier one can precede to
    /// `ordered`.
    pub(super) fn push(&mut self, at_ms: u64, add: impl FnOnce(&mut T), ordered: &mut VecDeque<Simultaneous<T>>) {
        if at_ms < self.left_ms {
            // Late events get this time, because the clock must not step back.
            self.late += 1;
            let mut events = self.spares.pop().unwrap_or_default();
            add(&mut events);
            ordered.push_back(Simultaneous { at_ms: self.left_ms, len: 1, events });
            return;
        }
        self.newest_ms = self.newest_ms.max(at_ms);
        let spares = &mut self.spares;
        let new = || Held { len: 0, events: spares.pop().unwrap_or_default() };
        let held = self.held.entry(at_ms).or_insert_with(new);
        add(&mut held.events);
        held.len += 1;
        self.len += 1;
        while let Some(first) = self.held.first_entry()
            && (self.len > MOST_HELD || first.key().saturating_add(self.window_ms) < self.newest_ms)
        {
            let (at_ms, Held { len, events }) = first.remove_entry();
            self.left_ms = at_ms;
            self.len -= len;
            ordered.push_back(Simultaneous { at_ms, len, events });
        }
    }

    /// Keeps an emptied list for reuse.
    pub(super) fn recycle(&mut self, emptied: T) {
        if self.spares.len() < MOST_SPARES {
            self.spares.push(emptied);
        }
    }

    /// Moves all remaining events to `ordered`.
    pub(super) fn finish(&mut self, ordered: &mut VecDeque<Simultaneous<T>>) {
        let held = std::mem::take(&mut self.held).into_iter();
        ordered.extend(held.map(|(at_ms, Held { len, events })| Simultaneous { at_ms, len, events }));
        self.left_ms = self.newest_ms;
        self.len = 0;
    }

    /// Returns the number of events that were later than the window. They count at the time of the preceding event.
    pub(super) fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the times after sorting, each with its position before, and the number of late events.
    fn ordered(window_ms: u64, times: &[u64]) -> (Vec<(u64, usize)>, u64) {
        let (mut order, mut all) = (Order::<Vec<usize>>::new(window_ms), VecDeque::new());
        for (place, at_ms) in times.iter().enumerate() {
            order.push(*at_ms, |events| events.push(place), &mut all);
        }
        order.finish(&mut all);
        assert!(all.iter().all(|together| together.len == together.events.len() && together.len > 0));
        let places =
            |together: Simultaneous<Vec<usize>>| together.events.into_iter().map(move |place| (together.at_ms, place));
        (all.into_iter().flat_map(places).collect(), order.late())
    }

    proptest! {
        #[test]
        fn what_is_within_the_window_is_sorted_and_what_is_not_does_not_step_back(
            times in prop::collection::vec(0..2_000_u64, 0..200), window_ms in 0..2_500_u64,
        ) {
            let (all, late) = ordered(window_ms, &times);
            prop_assert_eq!(all.len(), times.len());
            prop_assert!(all.is_sorted_by_key(|(at_ms, _)| *at_ms), "{:?}", all);
            let mut newest = 0;
            let is_late = |at_ms: &u64| {
                newest = newest.max(*at_ms);
                at_ms + window_ms < newest
            };
            prop_assert!(late <= times.iter().copied().filter(is_late).count() as u64);
            if late == 0 {
                let mut sorted: Vec<_> = times.iter().copied().zip(0..).collect();
                sorted.sort_by_key(|(at_ms, _)| *at_ms);
                prop_assert_eq!(all, sorted, "events of one time keep their order");
            }
        }
    }

    #[test]
    fn a_line_far_behind_counts_when_the_one_before_does() {
        let (all, late) = ordered(10, &[100, 105, 200, 50, 201]);
        assert_eq!(all.iter().map(|(at_ms, _)| *at_ms).collect::<Vec<_>>(), [100, 105, 105, 200, 201]);
        assert_eq!(late, 1);
    }
}
