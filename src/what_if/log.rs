//! The requests of the ring as lines of a decision log, which `tollgate replay` reads: what they asked, and nothing of
//! what was decided.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::WhatIf;
use super::ring::Event;
use crate::descriptor::{Descriptor, Override};
use crate::plan::OVERRIDE;
use crate::values::Values;

/// So many requests are written at once.
const AT_ONCE: usize = 256;

/// A descriptor of a request.
#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    domain: &'a str,
    /// Of a limit that the request brings along; none else, because other rules may be asked.
    rule: Option<&'static str>,
    descriptor: Vec<Pair<'a>>,
    hits: i64,
    limit: Option<Number>,
    outcome: Option<&'static str>,
    sampled: bool,
    sample_share: f64,
    /// Tells which lines are of one request.
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
    /// The lines of all requests, the oldest first, many at once.
    pub fn log(&self) -> impl Iterator<Item = String> + Send + use<> {
        let events = self.state.lock().ring.events();
        let (values, share) = (self.options.values.clone(), self.options.sample);
        let chunks = events.len().div_ceil(AT_ONCE);
        (0..chunks).map(move |chunk| {
            let begin = chunk * AT_ONCE;
            let events = events.iter().skip(begin).take(AT_ONCE).enumerate();
            events.map(|(place, event)| lines(event, begin + place, &values, share)).collect()
        })
    }
}

fn lines((at_ms, request): &Event, number: usize, values: &Values, share: f64) -> String {
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(*at_ms)).to_string();
    let (id, mut text) = (number.to_string(), String::new());
    for Descriptor { entries, ask, limit } in &request.descriptors {
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
            sample_share: share,
            request_id: &id,
        };
        // What is made of texts and numbers is always JSON.
        text += &serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
    }
    text
}
