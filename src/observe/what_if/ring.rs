//! The ring of the latest requests. Equal requests share their text.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::engine::descriptor::Request;
use crate::observe::sample;

/// A request with its time in milliseconds since the Unix epoch.
pub(super) type Event = (u64, Arc<Request>);

/// Memory of an event in the ring, without its text.
const EVENT_BYTES: usize = size_of::<Event>();

/// Memory overhead of another text, without its content.
const TEXT_BYTES: usize = 64;

/// The latest requests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ring {
    events: VecDeque<Event>,
    /// Number of events for each text.
    texts: HashMap<Arc<Request>, usize>,
    bytes: usize,
    /// Number of requests that were added since the start of the process.
    added: u64,
}

impl Ring {
    /// Adds the newest request. Before that, it drops the oldest ones as needed to stay within the most requests and
    /// bytes. Returns whether it was full.
    pub(super) fn push(&mut self, (at_ms, request): (u64, Request), (most, most_bytes): (usize, usize)) -> bool {
        let text = match self.texts.get_key_value(&request) {
            Some((text, _)) => Arc::clone(text),
            None => {
                self.bytes += sample::bytes(&request) + TEXT_BYTES;
                Arc::new(request)
            }
        };
        *self.texts.entry(Arc::clone(&text)).or_default() += 1;
        self.added += 1;
        let mut was_full = false;
        // The list itself never grows beyond its bound.
        while self.events.len() >= most || self.bytes + EVENT_BYTES > most_bytes {
            was_full = true;
            let Some((_, oldest)) = self.events.pop_front() else {
                self.forget(&text);
                return was_full;
            };
            self.bytes -= EVENT_BYTES;
            self.forget(&oldest);
        }
        self.events.push_back((at_ms, text));
        self.bytes += EVENT_BYTES;
        was_full
    }

    /// Returns whether any request fulfills a condition.
    pub(super) fn has(&self, condition: impl FnMut(&Arc<Request>) -> bool) -> bool {
        self.texts.keys().any(condition)
    }

    /// Drops the requests that do not fulfill a condition.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&Request) -> bool) {
        let (mut kept, mut dropped) = (VecDeque::new(), Vec::new());
        for (at_ms, text) in self.events.drain(..) {
            match is_kept(&text) {
                true => kept.push_back((at_ms, text)),
                false => dropped.push(text),
            }
        }
        self.bytes -= dropped.len() * EVENT_BYTES;
        self.events = kept;
        dropped.iter().for_each(|text| self.forget(text));
    }

    /// Returns the times of the oldest and the newest request.
    pub(super) fn between_ms(&self) -> Option<(u64, u64)> {
        Some((self.events.front()?.0, self.events.back()?.0))
    }

    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Releases one use of a text.
    fn forget(&mut self, text: &Arc<Request>) {
        let Some(times) = self.texts.get_mut(text) else { return };
        *times -= 1;
        if *times == 0 {
            self.texts.remove(text);
            self.bytes -= sample::bytes(text) + TEXT_BYTES;
        }
    }

    /// Drops all requests. Those added later have other numbers.
    pub(super) fn clear(&mut self) {
        *self = Ring { added: self.added, ..Ring::default() };
    }

    /// Returns the number of the oldest event. Each event has the number of the one before it, plus 1.
    pub(super) fn first_number(&self) -> u64 {
        self.added - self.events.len() as u64 + 1
    }

    /// Returns all events.
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::descriptor::{Descriptor, Entry};

    fn request(user: u8) -> Request {
        let entry = Entry { key: "user".into(), value: format!("u{user}").into() };
        let descriptor = Descriptor { entries: vec![entry], ask: Ask::Take(1), limit: None };
        Request { domain: "shop".into(), descriptors: vec![descriptor] }
    }

    proptest! {
        #[test]
        fn it_has_the_last_ones_within_its_bounds_and_forgets_what_nobody_asks_any_more(
            users in prop::collection::vec(0..12_u8, 0..200), most in 1..40_usize, kilobytes in 0..8_usize,
        ) {
            let mut ring = Ring::default();
            for (at, user) in users.iter().enumerate() {
                ring.push((at as u64, request(*user)), (most, kilobytes << 10));
                prop_assert!(ring.events.len() <= most && ring.bytes <= kilobytes << 10);
            }
            let last = users.iter().enumerate().skip(users.len() - ring.events.len());
            let expected: Vec<(u64, Request)> = last.map(|(at, user)| (at as u64, request(*user))).collect();
            let events = ring.events();
            let kept: Vec<(u64, Request)> = events.iter().map(|(at, text)| (*at, (**text).clone())).collect();
            prop_assert_eq!(&kept, &expected);
            let distinct: std::collections::HashSet<_> = kept.iter().map(|(_, request)| request).collect();
            prop_assert_eq!(ring.texts.len(), distinct.len());
            let texts: usize = distinct.iter().map(|request| sample::bytes(request) + TEXT_BYTES).sum();
            prop_assert_eq!(ring.bytes, kept.len() * EVENT_BYTES + texts);
            let is_kept = |request: &Request| request.descriptors[0].entries[0].value.as_str() < "u4";
            ring.retain(is_kept);
            let some: Vec<(u64, Request)> = kept.iter().filter(|(_, request)| is_kept(request)).cloned().collect();
            let left: Vec<(u64, Request)> = ring.events().iter().map(|(at, text)| (*at, (**text).clone())).collect();
            prop_assert_eq!(&left, &some);
            let distinct: std::collections::HashSet<_> = some.iter().map(|(_, request)| request).collect();
            let texts: usize = distinct.iter().map(|request| sample::bytes(request) + TEXT_BYTES).sum();
            prop_assert_eq!((ring.texts.len(), ring.bytes), (distinct.len(), some.len() * EVENT_BYTES + texts));
        }
    }
}
