//! The requests of the ring as lines of a decision log for `tollgate replay`. They contain the requests, but no
//! decisions.

use std::borrow::Cow;

use serde::Serialize;

use super::WhatIf;
use super::others::{Others, Stream};
use super::ring::Event;
use crate::engine::asked::OVERRIDE;
use crate::engine::clock::timestamp;
use crate::engine::descriptor::{Descriptor, Override};
use crate::observe::redaction::Values;
use crate::observe::sample::Sampling;

/// Number of requests written at once.
const AT_ONCE: usize = 256;

/// A descriptor of a request.
#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    domain: &'a str,
    /// Set only for a limit that the request sets, because the log may be replayed with other rules.
    rule: Option<&'static str>,
    descriptor: Vec<Pair<'a>>,
    hits: i64,
    limit: Option<Number>,
    outcome: Option<&'static str>,
    sampled: bool,
    sample_share: f64,
    /// The key is outside of the sample: the log has only those of its requests that ask about a sampled key, too.
    partial: bool,
    /// ID of the instance that kept the request.
    instance: &'a str,
    /// Number of the request at this instance. All lines of a request have the same number.
    call: u64,
    /// `instance` and `call` together, for older versions of `tollgate replay`.
    request_id: &'a str,
}

#[derive(Serialize)]
struct Pair<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Number {
    number: u32,
    period_ms: u64,
}

impl WhatIf {
    /// Returns the lines of all requests, also those of other instances, the oldest first, in large pieces.
    pub fn log(&self, others: &Others) -> impl Iterator<Item = String> + Send + use<> {
        let stream = self.stream(others);
        let ids = others.recorded.iter().map(|(id, _)| id.clone());
        let instances: Vec<String> = std::iter::once(self.options.instance.clone()).chain(ids).collect();
        let values = self.options.values.clone();
        let chunks = stream.as_ref().map_or(0, |stream| stream.events.len()).div_ceil(AT_ONCE);
        (0..chunks).map(move |chunk| {
            let Some(Stream { sampling, events, places, .. }) = &stream else { return String::new() };
            let begin = chunk * AT_ONCE;
            let events = events.iter().zip(places).skip(begin).take(AT_ONCE);
            let lines = events.map(|(event, (instance, call))| {
                let instance = instances.get(*instance).map_or("", String::as_str);
                lines(event, (instance, *call), sampling, &values)
            });
            lines.collect()
        })
    }
}

fn lines((at_ms, request): &Event, (instance, call): (&str, u64), sampling: &Sampling<1>, values: &Values) -> String {
    let time = timestamp(*at_ms);
    let (id, mut text) = (format!("{instance}/{call}"), String::new());
    for (index, Descriptor { entries, ask, limit }) in request.descriptors.iter().enumerate() {
        let brought_along = |Override { number, period }: &Override| Number {
            number: *number,
            period_ms: u64::try_from(period.as_millis()).unwrap_or(u64::MAX),
        };
        let line = Line {
            time: &time,
            domain: &request.domain,
            rule: limit.map(|_| OVERRIDE),
            descriptor: values.of_entries(entries).map(|(key, value)| Pair { key, value }).collect(),
            hits: ask.hits(),
            limit: limit.as_ref().map(brought_along),
            outcome: None,
            sampled: true,
            sample_share: sampling.share().as_ratio(),
            partial: !sampling.picks(request, index),
            instance,
            call,
            request_id: &id,
        };
        // Cannot fail for texts and numbers.
        text += &serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
    }
    text
}
