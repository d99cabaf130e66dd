//! Sorting of events by time. Envoy logs a request when it ends, with the time at which it began.

use std::collections::{BTreeMap, VecDeque};

use super::Event;

/// The most events that are held, whatever the window.
const MOST_HELD: usize = 1 << 20;

/// Sorts events that are out of order by at most a window.
#[derive(Debug)]
pub(super) struct Order {
    window_ms: u64,
    /// Events by time that an earlier event may still follow.
    held: BTreeMap<u64, Vec<Event>>,
    len: usize,
    newest_ms: u64,
    /// Time of the last event that left.
    left_ms: u64,
    late: u64,
}

impl Order {
    /// Creates a sorter with a window of this length.
    pub(super) fn new(window_ms: u64) -> Order {
        Order { window_ms, held: BTreeMap::new(), len: 0, newest_ms: 0, left_ms: 0, late: 0 }
    }

    /// Adds an event. Moves the events that no earlier one can precede to `ordered`.
    pub(super) fn push(&mut self, event: Event, ordered: &mut VecDeque<Event>) {
        if event.at_ms < self.left_ms {
            // Late events get this time, because the clock must not step back.
            self.late += 1;
            ordered.push_back(Event { at_ms: self.left_ms, ..event });
            return;
        }
        self.newest_ms = self.newest_ms.max(event.at_ms);
        self.held.entry(event.at_ms).or_default().push(event);
        self.len += 1;
        while let Some(first) = self.held.first_entry()
            && (self.len > MOST_HELD || first.key().saturating_add(self.window_ms) < self.newest_ms)
        {
            let (at_ms, events) = first.remove_entry();
            self.left_ms = at_ms;
            self.len -= events.len();
            ordered.extend(events);
        }
    }

    /// Moves all remaining events to `ordered`.
    pub(super) fn finish(&mut self, ordered: &mut VecDeque<Event>) {
        ordered.extend(std::mem::take(&mut self.held).into_values().flatten());
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
    use crate::engine::descriptor::Request;

    /// Returns the times after sorting, each with its position before, and the number of late events.
    fn ordered(window_ms: u64, times: &[u64]) -> (Vec<(u64, String)>, u64) {
        let (mut order, mut all) = (Order::new(window_ms), VecDeque::new());
        for (place, at_ms) in times.iter().enumerate() {
            let request = Request { domain: place.to_string(), descriptors: Vec::new() };
            order.push(Event::new(*at_ms, request), &mut all);
        }
        order.finish(&mut all);
        (all.into_iter().map(|event| (event.at_ms, event.request.domain)).collect(), order.late())
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
                let places = (0..times.len()).map(|place| place.to_string());
                let mut sorted: Vec<_> = times.iter().copied().zip(places).collect();
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
