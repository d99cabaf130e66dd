//! The recorder: moves queued requests into the ring, and adapts the share of keys to the traffic.
//!
//! A quiet service records all keys. Each time the ring is full and covers less than [`WhatIfOptions::covers`], or more
//! than [`MOST_A_SECOND`] requests arrive in a second, the share is halved: the requests of the other half are dropped,
//! and those of the remaining keys are still complete. So the cost is bounded, whatever the traffic. When the traffic
//! has decreased for an hour, the recorder starts over with a larger share.
//!
//! If the half has no key, as for a service with one busy key, the recorder keeps its share, and rests for [`REST_MS`]
//! whenever the ring is full. It then starts over with an empty ring, because the requests in between are missing.

use std::sync::Arc;

use super::ring::Ring;
use super::{WhatIf, WhatIfOptions};
use crate::observe::sample::{Copied, Sampling, Share, Shared};

/// The most memory of the ring, in bytes, for each of its requests; within [`RING_BYTES`].
const BYTES_EACH: usize = 100;
/// The least and the most memory of the ring, in bytes.
const RING_BYTES: (usize, usize) = (1 << 20, 8 << 20);
/// The most requests that are recorded in a second.
const MOST_A_SECOND: usize = 500;
/// Time without recording after the ring was filled by the last key of the sample.
const REST_MS: u64 = 15_000;
/// Span of the ring from which on the share may grow again.
const LONG_MS: u64 = 60 * 60 * 1_000;
/// The most halvings. Less than one key of a trillion remains.
const MOST_HALVINGS: u32 = 40;

/// The requests that are recorded, and the keys that they are of.
#[derive(Default)]
pub(super) struct State {
    pub(super) ring: Ring,
    /// The keys of the ring, once there are rules.
    pub(super) sampling: Option<Arc<Sampling<1>>>,
    /// Number of requests dropped because the queue was full.
    pub(super) dropped: u64,
    /// How many times the share was halved.
    pub(super) halvings: u32,
    /// When the ring was emptied, if there were requests before; `None` if it has all requests so far.
    pub(super) begins_at_ms: Option<u64>,
    /// Whether the ring has dropped its oldest requests since then.
    pub(super) has_dropped: bool,
    /// The second of the latest request, and the number of requests in it.
    second: (u64, usize),
    /// End of the rest, if the recorder rests.
    pub(super) rests_until_ms: Option<u64>,
}

impl State {
    /// Returns the number of seconds that the ring covers, at least 1; 0 if it is empty.
    pub(super) fn seconds(&self, now_ms: u64) -> u64 {
        let Some((first, last)) = self.ring.between_ms() else { return 0 };
        let end = if self.rests_until_ms.is_some() { last } else { now_ms.max(last) };
        // A clock that was set back leaves no time between them.
        end.saturating_sub(first).div_ceil(1_000).max(1)
    }

    /// Empties the ring.
    fn start_over(&mut self, now_ms: u64) {
        self.ring.clear();
        (self.begins_at_ms, self.has_dropped) = (Some(now_ms), false);
    }

    /// Returns whether a request makes more of them in its second than may be recorded.
    fn is_too_many(&mut self, at_ms: u64) -> bool {
        let second = at_ms / 1_000;
        if self.second.0 != second {
            self.second = (second, 0);
        }
        self.second.1 += 1;
        self.second.1 > MOST_A_SECOND
    }

    /// Returns how many times the share may be doubled, because the ring covers a long time.
    fn doublings(&self, options: &WhatIfOptions) -> u32 {
        let Some((first, last)) = self.ring.between_ms() else { return 0 };
        let span = last.saturating_sub(first);
        if self.halvings == 0 || span < LONG_MS {
            return 0;
        }
        let covers = u64::try_from(options.covers.as_millis()).unwrap_or(u64::MAX).max(1);
        let fits = |times: &u32| {
            let requests = (self.ring.len() as u64) << times;
            // Twice the time, so that it is not halved at once.
            requests.saturating_mul(2 * covers) / span <= options.requests as u64
        };
        (1..=self.halvings).take_while(fits).last().unwrap_or(0)
    }
}

impl WhatIf {
    /// Sets the rules in force. The ring is emptied if they may select other keys.
    pub fn put_in_force(&self, rules: Shared) {
        let mut state = self.state.lock();
        let sampling = self.sampling(state.halvings, rules);
        let starts_over = state.sampling.as_ref().is_some_and(|old| {
            let version = |sampling: &Sampling<1>| (*sampling.rules()[0]).as_ref().version().to_owned();
            (old.has_shared_counters() || sampling.has_shared_counters()) && version(old) != version(&sampling)
        });
        if starts_over {
            drop(self.queue.take());
            state.start_over(self.queue.now());
        }
        self.select(&mut state, sampling);
    }

    fn sampling(&self, halvings: u32, rules: Shared) -> Arc<Sampling<1>> {
        Arc::new(Sampling::new(Share::new(self.options.sample).halved(halvings), [rules]))
    }

    fn select(&self, state: &mut State, sampling: Arc<Sampling<1>>) {
        if state.rests_until_ms.is_none() {
            self.queue.sample(Arc::clone(&sampling));
        }
        state.sampling = Some(sampling);
    }

    /// Moves queued requests into the ring, and adapts the share of keys.
    pub fn keep(&self) {
        let mut state = self.state.lock();
        self.resume(&mut state);
        let waiting = self.queue.take();
        state.dropped += waiting.dropped;
        let requests = self.options.requests;
        let (least, most) = RING_BYTES;
        let bounds = (requests, requests.saturating_mul(BYTES_EACH).clamp(least, most));
        for Copied { at_ms, request, .. } in waiting.requests {
            let Some(sampling) = &state.sampling else { return };
            if !sampling.picks_any(&request) {
                continue;
            }
            let is_full = state.ring.push((at_ms, request), bounds);
            if is_full {
                (state.begins_at_ms, state.has_dropped) = (Some(at_ms), true);
            }
            if self.options.covers.is_zero() {
                continue;
            }
            let is_too_many = state.is_too_many(at_ms);
            let is_short = is_full
                && state.ring.between_ms().is_some_and(|(first, last)| {
                    u128::from(last.saturating_sub(first)) < self.options.covers.as_millis()
                });
            if is_short || is_too_many {
                self.adapt(&mut state, is_short);
            }
            if state.rests_until_ms.is_some() {
                return;
            }
        }
        self.grow(&mut state);
    }

    /// Continues with half of the keys. If none of them has been seen, rests if the ring is full.
    fn adapt(&self, state: &mut State, is_full: bool) {
        let Some(sampling) = state.sampling.clone() else { return };
        let half = Arc::new(sampling.half());
        if state.halvings < MOST_HALVINGS && state.ring.has(|request| half.picks_any(request)) {
            state.halvings += 1;
            state.second.1 = 0;
            state.ring.retain(|request| half.picks_any(request));
            self.select(state, half);
        } else if is_full {
            self.queue.rest();
            drop(self.queue.take());
            state.rests_until_ms = Some(self.queue.now().saturating_add(REST_MS));
        }
    }

    /// Ends a rest in time. The clock may have been set back meanwhile.
    fn resume(&self, state: &mut State) {
        let Some(until_ms) = state.rests_until_ms else { return };
        let left_ms = until_ms.saturating_sub(self.queue.now());
        if left_ms > 0 && left_ms <= REST_MS {
            return;
        }
        state.rests_until_ms = None;
        state.start_over(self.queue.now());
        if let Some(sampling) = state.sampling.clone() {
            self.select(state, sampling);
        }
    }

    /// Starts over with more keys, if the traffic has decreased for long.
    fn grow(&self, state: &mut State) {
        let doublings = state.doublings(&self.options);
        let Some(sampling) = state.sampling.clone().filter(|_| doublings > 0) else { return };
        state.halvings -= doublings;
        // The requests of the other keys are missing.
        state.start_over(self.queue.now());
        let [rules] = sampling.rules();
        self.select(state, self.sampling(state.halvings, Arc::clone(rules)));
    }
}
