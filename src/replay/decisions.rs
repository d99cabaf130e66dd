//! Tollgate's own decision log: a line for each limit that was asked. Lines of one request become one again.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::{Event, time};
use crate::algorithm::Ask;
use crate::descriptor::{Descriptor, Entry, Override, Request};
use crate::plan::OVERRIDE;
use crate::values;

/// What a line says, as far as it is replayed.
#[derive(Debug, Deserialize)]
struct Line<'l> {
    #[serde(borrow)]
    time: Cow<'l, str>,
    #[serde(borrow)]
    domain: Cow<'l, str>,
    /// None where no rule was reached.
    #[serde(borrow)]
    rule: Option<Cow<'l, str>>,
    descriptor: Vec<LineEntry>,
    /// Below 0 is a refund.
    hits: i64,
    limit: Option<LineLimit>,
    #[serde(borrow)]
    request_id: Option<Cow<'l, str>>,
}

#[derive(Debug, Deserialize)]
struct LineEntry {
    key: String,
    /// None where values are hidden.
    value: Option<String>,
}

#[derive(Debug, Deserialize)]
struct LineLimit {
    number: u32,
    period_ms: Option<u64>,
}

/// The request that the last lines are about, and what is to be said of all lines.
#[derive(Debug, Default)]
pub(super) struct Joined {
    pending: Option<Pending>,
    refunds: u64,
    masked: u64,
}

#[derive(Debug)]
struct Pending {
    event: Event,
    id: Option<String>,
    /// The limits that have been asked, each with the index of its descriptor.
    asked: Vec<(usize, Option<String>)>,
}

impl Joined {
    /// How many lines were refunds, which are not replayed.
    pub(super) fn refunds(&self) -> u64 {
        self.refunds
    }

    /// How many lines had values that are hidden or look hashed.
    pub(super) fn masked(&self) -> u64 {
        self.masked
    }

    /// Takes a line, and returns the request before, if the line is about another one. It leaves refunds out.
    ///
    /// # Errors
    /// Why the line cannot be read.
    pub(super) fn push(&mut self, line: &str) -> Result<Option<Event>, String> {
        let line: Line<'_> = serde_json::from_str(line).map_err(|error| format!("is no line of decisions: {error}"))?;
        let at_ms = time::parse(&line.time).ok_or_else(|| format!("{:?} is no time", line.time))?;
        let Ok(hits) = u64::try_from(line.hits) else {
            self.refunds += 1;
            return Ok(None);
        };
        let ask = Ask::take(hits).ok_or_else(|| format!("{hits} is no number of hits"))?;
        let limit = line.brought_along()?;
        self.masked += u64::from(line.descriptor.iter().any(LineEntry::is_masked));
        let entries = line.descriptor.into_iter().map(LineEntry::entry).collect();
        let descriptor = Descriptor { entries, ask, limit };
        if let Some(pending) = &mut self.pending
            && pending.event.request.domain == line.domain
            && pending.event.at_ms == at_ms
            && pending.id.as_deref() == line.request_id.as_deref()
            && pending.join(&descriptor, line.rule.as_deref())
        {
            return Ok(None);
        }
        let request = Request { domain: line.domain.into_owned(), descriptors: vec![descriptor] };
        let (id, asked) = (line.request_id.map(Cow::into_owned), vec![(0, line.rule.map(Cow::into_owned))]);
        let before = self.pending.replace(Pending { event: Event { at_ms, request }, id, asked });
        Ok(before.map(|pending| pending.event))
    }

    /// The last request.
    pub(super) fn finish(&mut self) -> Option<Event> {
        self.pending.take().map(|pending| pending.event)
    }
}

impl Line<'_> {
    /// The limit that the request brought along.
    fn brought_along(&self) -> Result<Option<Override>, String> {
        if self.rule.as_deref() != Some(OVERRIDE) {
            return Ok(None);
        }
        let limit = self.limit.as_ref().and_then(|LineLimit { number, period_ms }| {
            Override::of_period(*number, Duration::from_millis((*period_ms)?))
        });
        limit.map(Some).ok_or_else(|| "has no limit that a request can bring along".to_owned())
    }
}

impl LineEntry {
    fn is_masked(&self) -> bool {
        self.value.as_deref().is_none_or(values::looks_hashed)
    }

    /// Hidden values are all one: the empty one.
    fn entry(self) -> Entry {
        Entry { key: self.key, value: self.value.unwrap_or_default() }
    }
}

impl Pending {
    /// Adds what one more limit was asked; `false` where it is about another request. A request asks each limit of a
    /// descriptor once; without an id, only lines about the same descriptor are known to be of one request.
    fn join(&mut self, descriptor: &Descriptor, rule: Option<&str>) -> bool {
        let descriptors = &mut self.event.request.descriptors;
        let known = descriptors.iter().position(|known| known == descriptor);
        let index = match known {
            Some(index) if self.asked.iter().any(|(asked, name)| *asked == index && name.as_deref() == rule) => {
                return false;
            }
            Some(index) => index,
            None if self.id.is_none() => return false,
            None => {
                descriptors.push(descriptor.clone());
                descriptors.len() - 1
            }
        };
        self.asked.push((index, rule.map(str::to_owned)));
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::descriptor::Unit;
    use crate::values::Values;

    fn line(ms: u64, rule: &str, user: &str, id: Option<&str>) -> String {
        json!({
            "time": format!("2026-01-02T03:04:05.{ms:03}Z"), "domain": "shop", "rule": rule,
            "descriptor": [{"key": "user", "value": user}], "hits": 2, "remaining": 0,
            "limit": {"algorithm": "fixed_window", "number": 5, "period_ms": 60_000},
            "retry_after_ms": 1, "outcome": "denied", "reason": "over", "sampled": false, "request_id": id,
        })
        .to_string()
    }

    #[test]
    fn lines_of_one_request_are_one_request() {
        let lines = [
            (1, "minute", "ann", None),
            (1, "day", "ann", None),    // another limit of the same request
            (1, "minute", "ann", None), // the same limit: another request
            (1, "minute", "bob", None), // another descriptor, and no id
            (2, "minute", "ann", Some("a")),
            (2, "minute", "bob", Some("a")), // another descriptor of the same request
            (2, "minute", "ann", Some("b")),
            (3, "minute", "ann", Some("b")), // a second attempt
        ];
        let mut joined = Joined::default();
        let mut events: Vec<Event> = Vec::new();
        for (ms, rule, user, id) in lines {
            events.extend(joined.push(&line(ms, rule, user, id)).unwrap());
        }
        events.extend(joined.finish());
        let users = |event: &Event| -> Vec<String> {
            let descriptors = event.request.descriptors.iter();
            descriptors.map(|descriptor| descriptor.entries[0].value.clone()).collect()
        };
        let all: Vec<_> = events.iter().map(users).collect();
        assert_eq!(all, [vec!["ann"], vec!["ann"], vec!["bob"], vec!["ann", "bob"], vec!["ann"], vec!["ann"]]);
        assert_eq!(events[0].request.descriptors[0].ask, Ask::Take(2));
        assert!(joined.push("{}").is_err() && joined.finish().is_none());
    }

    /// The only request of a line in which these fields are otherwise, and what is said of the line.
    fn read(other: Value) -> (Result<Option<Request>, String>, Joined) {
        let mut line: Value = serde_json::from_str(&line(1, "minute", "ann", None)).unwrap();
        line.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let mut joined = Joined::default();
        let pushed = joined.push(&line.to_string());
        (pushed.map(|_| joined.finish().map(|event| event.request)), joined)
    }

    #[test]
    fn values_that_are_hidden_are_all_one() {
        let (request, joined) = read(json!({"descriptor": [{"key": "user"}, {"key": "path"}]}));
        let entries = &request.unwrap().unwrap().descriptors[0].entries;
        let expected = ["user", "path"].map(|key| Entry { key: key.into(), value: String::new() });
        assert_eq!((&entries[..], joined.masked()), (&expected[..], 1));
    }

    #[test]
    fn values_that_look_hashed_are_counted() {
        let masked = |value: &str| read(json!({"descriptor": [{"key": "user", "value": value}]})).1.masked();
        let hashed = Values::hashed("a key of sixteen");
        assert_eq!(["ann", "/a", ""].map(masked), [0, 0, 0]);
        assert_eq!(["ann", "/a", ""].map(|value| masked(&hashed.shown(value).unwrap())), [1, 1, 1]);
    }

    #[test]
    fn a_limit_that_the_request_brought_along_is_replayed() {
        let limit = |rule: &str, limit: Value| {
            let (request, _) = read(json!({"rule": rule, "limit": limit}));
            request.map(|request| request.unwrap().descriptors[0].limit)
        };
        let number = json!({"algorithm": "fixed_window", "number": 7, "period_ms": 1_000});
        assert_eq!(limit("(override)", number.clone()), Ok(Override::new(7, Unit::Second, 1)));
        assert_eq!(limit("minute", number), Ok(None));
        for wrong in [json!(null), json!({"number": 7}), json!({"number": 7, "period_ms": 0})] {
            assert!(limit("(override)", wrong).is_err());
        }
    }

    #[test]
    fn a_refund_is_left_out_and_counted_and_what_reached_no_rule_is_a_request() {
        let (request, joined) = read(json!({"hits": -1}));
        assert_eq!((request, joined.refunds()), (Ok(None), 1));
        let (request, joined) = read(json!({"rule": null, "limit": null}));
        assert_eq!((request.unwrap().unwrap().descriptors.len(), joined.refunds()), (1, 0));
    }
}
