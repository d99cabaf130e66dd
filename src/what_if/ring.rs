//! The last requests. Those that ask the same share their text.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::descriptor::Request;
use crate::sample;

/// When a request came, in milliseconds since the Unix epoch, and what it asked.
pub(super) type Event = (u64, Arc<Request>);

/// What a request takes in the ring beside its text.
const EVENT_BYTES: usize = size_of::<Event>();

/// What one more text takes beside what is in it.
const TEXT_BYTES: usize = 64;

/// The last requests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ring {
    events: VecDeque<Event>,
    /// How many of them ask the same.
    texts: HashMap<Arc<Request>, usize>,
    bytes: usize,
}

impl Ring {
    /// Adds the newest one, and before that forgets the oldest, where there would be more than so many, or they would
    /// take more bytes.
    pub(super) fn push(&mut self, (at_ms, request): (u64, Request), (most, most_bytes): (usize, usize)) {
        let text = match self.texts.get_key_value(&request) {
            Some((text, _)) => Arc::clone(text),
            None => {
                self.bytes += sample::bytes(&request) + TEXT_BYTES;
                Arc::new(request)
            }
        };
        *self.texts.entry(Arc::clone(&text)).or_default() += 1;
        // The list itself never grows beyond its bound.
        while self.events.len() >= most || self.bytes + EVENT_BYTES > most_bytes {
            let Some((_, oldest)) = self.events.pop_front() else { return self.forget(&text) };
            self.bytes -= EVENT_BYTES;
            self.forget(&oldest);
        }
        self.events.push_back((at_ms, text));
        self.bytes += EVENT_BYTES;
    }

    /// One fewer asks this.
    fn forget(&mut self, text: &Arc<Request>) {
        let Some(times) = self.texts.get_mut(text) else { return };
        *times -= 1;
        if *times == 0 {
            self.texts.remove(text);
            self.bytes -= sample::bytes(text) + TEXT_BYTES;
        }
    }

    /// All of them.
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Ask;
    use crate::descriptor::{Descriptor, Entry};

    fn request(user: u8) -> Request {
        let entry = Entry { key: "user".into(), value: format!("u{user}") };
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
        }
    }
}
