//! The recorded requests of other instances, as one stream with those of this one.
//!
//! All instances select keys by one hash, so the smallest share of any of them is complete at all. The stream begins
//! when the last of the rings begins that has dropped requests, and ends when the first recorder rests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::WhatIf;
use super::recorder::State;
use super::ring::Event;
use crate::engine::algorithm::Ask;
use crate::engine::descriptor::{Descriptor, Entry, Override, Request};
use crate::observe::sample::{Sampling, Share};

/// The most requests of all instances together.
const MOST_REQUESTS: usize = 200_000;

/// The requests that an instance has recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// How many times its share of keys was halved.
    pub halvings: u32,
    /// Version of its rules.
    pub rules: String,
    /// When the requests begin, if there were others before them.
    pub since_ms: Option<u64>,
    /// When they end, if they do not end now.
    pub until_ms: Option<u64>,
    /// Number of requests that could not be kept.
    pub dropped: u64,
    /// Different requests.
    texts: Vec<Text>,
    /// Times, each as the difference from the one before, and indices of requests.
    events: Vec<(i64, u32)>,
}

/// A request: its domain, and its descriptors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Text(String, Vec<Asked>);

/// A descriptor: its entries, its hits, and the number and the period of a limit that it brings along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Asked(Vec<Entry>, i64, Option<(u32, u64)>);

/// The other instances of the fleet, and what they have recorded.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// Their requests, each with the ID of its instance.
    pub recorded: Vec<(String, Recorded)>,
    /// Number of instances that did not answer.
    pub missing: usize,
    /// Whether the number of instances is known.
    pub are_known: bool,
}

/// A request with its place: the index of its instance, and its number there.
type Placed = (Event, (usize, u64));

/// One stream of requests.
pub(super) struct Stream {
    pub(super) sampling: Arc<Sampling<1>>,
    /// Requests in the order of time, each with its place.
    pub(super) events: Vec<Event>,
    /// For each request, the index of its instance, and its number there. This instance has index 0.
    pub(super) places: Vec<(usize, u64)>,
    pub(super) seconds: u64,
    pub(super) dropped: u64,
    /// Number of instances that share a limit; the stream has the requests of one of them.
    pub(super) replicas: u32,
    /// Times as many requests in the fleet as in the stream.
    pub(super) factor: f64,
}

impl Text {
    fn new(request: &Request) -> Text {
        let period_ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let asked = |Descriptor { entries, ask, limit }: &Descriptor| {
            let limit = limit.map(|Override { number, period }| (number, period_ms(period)));
            Asked(entries.clone(), ask.hits(), limit)
        };
        Text(request.domain.to_string(), request.descriptors.iter().map(asked).collect())
    }

    /// Returns the request; `None` if it is none that a service accepts.
    fn request(self) -> Option<Request> {
        let descriptor = |Asked(entries, hits, limit): Asked| {
            let amount = hits.unsigned_abs();
            let ask = if hits < 0 { Ask::refund(amount)? } else { Ask::take(amount)? };
            let limit = match limit {
                Some((number, period_ms)) => Some(Override::of_period(number, Duration::from_millis(period_ms))?),
                None => None,
            };
            Some(Descriptor { entries, ask, limit })
        };
        let Text(domain, asked) = self;
        Some(Request { domain: domain.into(), descriptors: asked.into_iter().map(descriptor).collect::<Option<_>>()? })
    }
}

impl Recorded {
    /// Returns the requests in their order; those that cannot be read are left out.
    fn events(self) -> Vec<Event> {
        let texts: Vec<Option<Arc<Request>>> =
            self.texts.into_iter().map(|text| text.request().map(Arc::new)).collect();
        let mut at_ms = 0_u64;
        let event = |(later_ms, text): (i64, u32)| {
            at_ms = at_ms.saturating_add_signed(later_ms);
            Some((at_ms, Arc::clone(texts.get(text as usize)?.as_ref()?)))
        };
        self.events.into_iter().filter_map(event).collect()
    }
}

impl WhatIf {
    /// Returns the recorded requests for another instance, after at least so many halvings of the share of keys; `None`
    /// before the first rules.
    pub fn recorded(&self, halvings: u32) -> Option<Recorded> {
        self.keep();
        let (sampling, events, mut recorded) = {
            let state = self.state.lock();
            let recorded = Recorded {
                halvings: state.halvings.max(halvings),
                since_ms: state.since_ms(),
                until_ms: state.until_ms(),
                dropped: state.dropped,
                ..Recorded::default()
            };
            (state.sampling.clone()?, state.ring.events(), recorded)
        };
        let [rules] = sampling.rules();
        recorded.rules = (**rules).as_ref().version().to_owned();
        let share = Share::new(self.options.sample).halved(recorded.halvings);
        let sampling = sampling.with_share(share);
        let (mut places, mut last_ms) = (HashMap::new(), 0_u64);
        for (at_ms, request) in events {
            let place = match places.get(&request) {
                Some(place) => *place,
                None => {
                    let place = sampling.picks_any(&request).then_some(recorded.texts.len() as u32);
                    recorded.texts.extend(place.map(|_| Text::new(&request)));
                    places.insert(request, place);
                    place
                }
            };
            let Some(place) = place else { continue };
            let later_ms = i64::try_from(i128::from(at_ms) - i128::from(last_ms)).unwrap_or(0);
            recorded.events.push((later_ms, place));
            last_ms = at_ms;
        }
        Some(recorded)
    }

    /// Returns the requests of this instance and of the others as one stream; `None` before the first rules.
    pub(super) fn stream(&self, others: &Others) -> Option<Stream> {
        self.keep();
        let (own, halvings, between, dropped, seconds) = {
            let state = self.state.lock();
            let between = (state.since_ms(), state.until_ms());
            let seconds = state.seconds(self.queue.now());
            (
                (state.sampling.clone()?, state.ring.events(), state.ring.first_number()),
                state.halvings,
                between,
                state.dropped,
                seconds,
            )
        };
        let (sampling, events, first) = own;
        let [rules] = sampling.rules();
        let version = (**rules).as_ref().version();
        // Rules that count other values together select other keys.
        let fits = |recorded: &Recorded| !sampling.has_shared_counters() || recorded.rules == version;
        let (answered, unfit): (Vec<_>, Vec<_>) = others.recorded.iter().partition(|(_, recorded)| fits(recorded));
        let (replicas, factor) = self.part_of(others, answered.len(), others.missing + unfit.len());
        let numbered = |place: usize, events: Vec<Event>, first: u64| {
            events.into_iter().zip(first..).map(move |(event, number)| (event, (place, number)))
        };
        let mut all: Vec<Placed> = numbered(0, events, first).collect();
        if answered.is_empty() {
            let (events, places) = all.into_iter().unzip();
            return Some(Stream { sampling, events, places, seconds, dropped, replicas, factor });
        }
        let ((mut since_ms, mut until_ms), mut halvings, mut dropped) = (between, halvings, dropped);
        for (place, (_, recorded)) in others.recorded.iter().enumerate().filter(|(_, (_, recorded))| fits(recorded)) {
            halvings = halvings.max(recorded.halvings);
            since_ms = since_ms.max(recorded.since_ms);
            until_ms = [until_ms, recorded.until_ms].into_iter().flatten().min();
            dropped += recorded.dropped;
            all.extend(numbered(place + 1, recorded.clone().events(), 1));
        }
        all.retain(|((at_ms, _), _)| {
            since_ms.is_none_or(|since| *at_ms >= since) && until_ms.is_none_or(|until| *at_ms <= until)
        });
        // Requests of one instance at one time keep their order.
        all.sort_by_key(|((at_ms, _), _)| *at_ms);
        let base = Share::new(self.options.sample);
        let mut sampling = Arc::new(sampling.with_share(base.halved(halvings)));
        all.retain(|((_, request), _)| sampling.picks_any(request));
        while all.len() > MOST_REQUESTS.max(self.options.requests) {
            sampling = Arc::new(sampling.half());
            all.retain(|((_, request), _)| sampling.picks_any(request));
        }
        let first_ms = since_ms.or(all.first().map(|((at_ms, _), _)| *at_ms));
        let now_ms = self.queue.now().max(all.last().map_or(0, |((at_ms, _), _)| *at_ms));
        let end_ms = until_ms.unwrap_or(now_ms);
        let seconds = match all.is_empty() {
            true => 0,
            false => end_ms.saturating_sub(first_ms.unwrap_or(end_ms)).div_ceil(1_000).max(1),
        };
        let (events, places) = all.into_iter().unzip();
        Some(Stream { sampling, events, places, seconds, dropped, replicas, factor })
    }

    /// Returns the number of instances that share a limit of which a stream has one's requests, and how many times as
    /// many requests the fleet has.
    fn part_of(&self, others: &Others, answered: usize, missing: usize) -> (u32, f64) {
        let expected = self.options.replicas.max(1);
        match (answered, missing) {
            (_, 0) if others.are_known => (1, 1.0),
            (0, _) => (expected, f64::from(expected)),
            (answered, missing) => (1, (answered + 1 + missing) as f64 / (answered + 1) as f64),
        }
    }
}

impl State {
    /// Returns when the requests in the ring begin, if there were others before them.
    pub(super) fn since_ms(&self) -> Option<u64> {
        let first = self.ring.between_ms().map(|(first, _)| first);
        self.begins_at_ms.map(|begins| if self.has_dropped { first.unwrap_or(begins) } else { begins })
    }

    /// Returns when the requests in the ring end, if the recorder rests.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.rests_until_ms.and(self.ring.between_ms()).map(|(_, last)| last)
    }
}
