//! Tollgate's decision log, which has a line for each limit that was asked. This reader joins the lines of a request.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use serde::Deserialize;

use super::Event;
use super::format;
use super::packed::Packed;
use super::time;
use crate::engine::algorithm::Ask;
use crate::engine::asked::OVERRIDE;
use crate::engine::descriptor::{self, Descriptor, Entry, Override, Request};
use crate::observe::redaction;

/// The fields of a line that a replay uses.
#[derive(Debug, Deserialize)]
struct Line<'l> {
    #[serde(borrow)]
    time: Cow<'l, str>,
    #[serde(borrow)]
    domain: Cow<'l, str>,
    /// None if no rule matched.
    #[serde(borrow)]
    rule: Option<Text<'l>>,
    #[serde(borrow)]
    descriptor: Vec<LineEntry<'l>>,
    /// Negative for a refund.
    hits: i64,
    limit: Option<LineLimit>,
    /// The key is outside of the log's sample.
    #[serde(default)]
    partial: bool,
    /// The instance that decided the call, and the number of the call there. Older logs have neither.
    #[serde(borrow, default)]
    instance: Option<Text<'l>>,
    call: Option<u64>,
    #[serde(borrow)]
    request_id: Option<Text<'l>>,
}

/// A text that is borrowed from its line unless it has escapes. Serde would not borrow an `Option<Cow<str>>`.
#[derive(Debug, Deserialize)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

#[derive(Debug, Deserialize)]
struct LineEntry<'l> {
    #[serde(borrow)]
    key: Cow<'l, str>,
    /// None if values are hidden.
    #[serde(borrow)]
    value: Option<Text<'l>>,
}

#[derive(Debug, Deserialize)]
struct LineLimit {
    number: u64,
    period_ms: Option<u64>,
}

/// The most requests that wait for more of their lines. An instance writes the lines of a call together, but a
/// collector that merges the logs of several instances may put other lines between them.
const MOST_PENDING: usize = 1_024;

/// The requests of the latest lines, and counts over all lines.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// In the order of their first lines.
    pending: VecDeque<Pending>,
    /// The last request that left, whose memory is reused.
    spare: Option<Pending>,
    /// Names of instances and rules.
    names: Names,
    /// Number of requests that are no longer pending.
    left: usize,
    /// The latest request of each call, by its place among all requests of the log.
    by_call: HashMap<(Option<u32>, u64), usize>,
    refunds: u64,
    masked: u64,
    unnamed: u64,
}

#[derive(Debug)]
struct Pending {
    event: Event,
    id: Id,
    /// The limits that were asked, by their numbers in [`Names`], each with the index of its descriptor.
    asked: Vec<(usize, Option<u32>)>,
}

/// Numbers of names.
#[derive(Debug, Default)]
struct Names(HashMap<Box<str>, u32>);

impl Names {
    /// Returns the number of a name, which is new if the name is.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let number = self.0.len() as u32;
        self.0.insert(name.into(), number);
        number
    }
}

/// What a line says of the call that it belongs to.
#[derive(Debug, PartialEq)]
enum Id {
    /// The instance, by its number in [`Names`], and the number of the call. Together they identify the call.
    Call(Option<u32>, u64),
    /// The caller's ID for the request, which several calls may share.
    Request(String),
    /// Nothing.
    None,
}

impl Joined {
    /// Returns the number of lines that were refunds, which are not replayed.
    pub(super) fn refunds(&self) -> u64 {
        self.refunds
    }

    /// Returns the number of lines with values that are hidden or look like hashes.
    pub(super) fn masked(&self) -> u64 {
        self.masked
    }

    /// Returns the number of lines that do not name their call, neither by its number nor by the caller's ID.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Adds a line. If too many requests are pending, packs the oldest and returns its time. Refunds are left out.
    ///
    /// # Errors
    /// Returns the reason why the line cannot be read.
    pub(super) fn push(&mut self, line: &str, packed: &mut Packed) -> Result<Option<u64>, String> {
        let line: Line<'_> = serde_json::from_str(line).map_err(|error| no_decision(line, &error))?;
        let at_ms = time::parse(&line.time).ok_or_else(|| format!("{:?} is no time", line.time))?;
        let Ok(hits) = u64::try_from(line.hits) else {
            self.refunds += 1;
            return Ok(None);
        };
        let ask = Ask::take(hits).ok_or_else(|| format!("{hits} is no number of hits"))?;
        let limit = line.brought_along()?;
        self.masked += u64::from(line.descriptor.iter().any(LineEntry::is_masked));
        let id = self.id(&line);
        self.unnamed += u64::from(id == Id::None);
        let rule = line.rule.as_ref().map(|Text(rule)| self.names.number(rule));
        let descriptor = LineDescriptor { entries: &line.descriptor, ask, limit, rule, is_partial: line.partial };
        if let Some(pending) = self.pending_of(&id)
            && pending.id == id
            && pending.event.at_ms == at_ms
            && pending.event.request.domain == line.domain
            && pending.join(&descriptor)
        {
            return Ok(None);
        }
        if let Id::Call(instance, call) = id {
            self.by_call.insert((instance, call), self.left + self.pending.len());
        }
        let mut pending = self.spare.take().unwrap_or_default();
        pending.begin((at_ms, &line.domain, id), &descriptor);
        self.pending.push_back(pending);
        Ok(if self.pending.len() > MOST_PENDING { self.finish(packed) } else { None })
    }

    fn id(&mut self, line: &Line<'_>) -> Id {
        match (line.call, &line.request_id) {
            (Some(call), _) => Id::Call(line.instance.as_ref().map(|Text(name)| self.names.number(name)), call),
            (None, Some(Text(id))) => Id::Request(id.as_ref().to_owned()),
            (None, None) => Id::None,
        }
    }

    /// Returns the request that a line with this ID may belong to. Without a number of the call, only lines next to
    /// each other are known to belong together.
    fn pending_of(&mut self, id: &Id) -> Option<&mut Pending> {
        match id {
            Id::Call(instance, call) => {
                let place = self.by_call.get(&(*instance, *call))?;
                self.pending.get_mut(place - self.left)
            }
            Id::Request(_) | Id::None => self.pending.back_mut(),
        }
    }

    /// Packs the oldest pending request, and returns its time. At the end of the log, this is called until there is
    /// none.
    pub(super) fn finish(&mut self, packed: &mut Packed) -> Option<u64> {
        let pending = self.pending.pop_front()?;
        if let Id::Call(instance, call) = pending.id
            && self.by_call.get(&(instance, call)) == Some(&self.left)
        {
            self.by_call.remove(&(instance, call));
        }
        self.left += 1;
        pack(&pending.event, packed);
        let at_ms = pending.event.at_ms;
        self.spare = Some(pending);
        Some(at_ms)
    }
}

/// Packs a request, without its time.
fn pack(Event { request: Request { domain, descriptors }, outside, .. }: &Event, packed: &mut Packed) {
    packed.push_text(Some(domain));
    packed.push_number(Some(descriptors.len() as u64));
    for (index, Descriptor { entries, ask, limit }) in descriptors.iter().enumerate() {
        packed.push_number(Some(ask.taken()));
        packed.push_number(limit.map(|limit| limit.number.into()));
        packed.push_number(limit.map(|limit| limit.period.as_millis() as u64));
        packed.push_number(Some(u64::from(outside.contains(&index))));
        packed.push_number(Some(entries.len() as u64));
        for Entry { key, value } in entries {
            packed.push_text(Some(key));
            packed.push_text(Some(value));
        }
    }
}

/// Reads a packed request into `event`, whose memory is reused.
pub(super) fn unpack(at_ms: u64, packed: &mut Packed, event: &mut Event) {
    let Event { at_ms: time, request: Request { domain, descriptors }, outside, lasts_ms, id } = event;
    (*lasts_ms, *id) = (None, None);
    *time = at_ms;
    packed.text_into(domain);
    outside.clear();
    descriptors.resize_with(packed.count(), empty_descriptor);
    for (index, Descriptor { entries, ask, limit }) in descriptors.iter_mut().enumerate() {
        *ask = packed.number().and_then(Ask::take).unwrap_or_default();
        let (number, period_ms) = (packed.number(), packed.number());
        *limit = number.zip(period_ms).and_then(|(number, period_ms)| {
            Override::of_period(u32::try_from(number).ok()?, Duration::from_millis(period_ms))
        });
        outside.extend((packed.number() == Some(1)).then_some(index));
        entries.resize_with(packed.count(), empty_entry);
        for Entry { key, value } in entries {
            packed.text_into(key);
            packed.text_into(value);
        }
    }
}

impl Line<'_> {
    /// Returns the limit that the request set, if any.
    fn brought_along(&self) -> Result<Option<Override>, String> {
        if self.rule.as_ref().is_none_or(|Text(rule)| rule != OVERRIDE) {
            return Ok(None);
        }
        let limit = self.limit.as_ref().and_then(|LineLimit { number, period_ms }| {
            Override::of_period(u32::try_from(*number).ok()?, Duration::from_millis((*period_ms)?))
        });
        limit.map(Some).ok_or_else(|| "has no limit that a request can bring along".to_owned())
    }
}

impl LineEntry<'_> {
    fn is_masked(&self) -> bool {
        self.value.as_ref().is_none_or(|Text(value)| redaction::looks_hashed(value))
    }

    /// Returns the key and the value. All hidden values become the empty one.
    fn parts(&self) -> (&str, &str) {
        (&self.key, self.value.as_ref().map_or("", |Text(value)| value))
    }
}

/// The part of a line that it adds to its request.
struct LineDescriptor<'l> {
    entries: &'l [LineEntry<'l>],
    ask: Ask,
    limit: Option<Override>,
    /// The rule's number in [`Names`].
    rule: Option<u32>,
    /// The key is outside of the log's sample.
    is_partial: bool,
}

impl LineDescriptor<'_> {
    fn is(&self, Descriptor { entries, ask, limit }: &Descriptor) -> bool {
        let parts = entries.iter().map(|Entry { key, value }| (&**key, &**value));
        *ask == self.ask && *limit == self.limit && self.entries.iter().map(LineEntry::parts).eq(parts)
    }

    /// Writes it into `descriptor`, whose memory is reused.
    fn write(&self, Descriptor { entries, ask, limit }: &mut Descriptor) {
        (*ask, *limit) = (self.ask, self.limit);
        entries.resize_with(self.entries.len(), empty_entry);
        for (Entry { key, value }, line) in entries.iter_mut().zip(self.entries) {
            let (new_key, new_value) = line.parts();
            replace(key, new_key);
            replace(value, new_value);
        }
    }
}

/// Replaces a text, in its memory.
fn replace(text: &mut descriptor::Text, with: &str) {
    text.clear();
    text.push_str(with);
}

impl Default for Pending {
    fn default() -> Self {
        Pending { event: Event::empty(), id: Id::None, asked: Vec::new() }
    }
}

impl Pending {
    /// Makes this the request of a line, in the memory of the previous request.
    fn begin(&mut self, (at_ms, domain, id): (u64, &str, Id), line: &LineDescriptor<'_>) {
        let Event { at_ms: time, request, outside, .. } = &mut self.event;
        *time = at_ms;
        replace(&mut request.domain, domain);
        request.descriptors.resize_with(1, empty_descriptor);
        line.write(&mut request.descriptors[0]);
        outside.clear();
        outside.extend(line.is_partial.then_some(0));
        self.id = id;
        self.asked.clear();
        self.asked.push((0, line.rule));
    }

    /// Adds a line to the request; returns `false` if the line belongs to another one. A request asks each limit of a
    /// descriptor once. So another line of the same limit is about an equal descriptor of the call, if the line has the
    /// number of the call, and else about another call. Without an ID, only lines with the same descriptor are known to
    /// be of one request.
    fn join(&mut self, line: &LineDescriptor<'_>) -> bool {
        let Event { request: Request { descriptors, .. }, outside, .. } = &mut self.event;
        let is_asked = |index: usize| self.asked.contains(&(index, line.rule));
        let mut known = (0..descriptors.len()).filter(|index| line.is(&descriptors[*index])).peekable();
        let is_known = known.peek().is_some();
        let index = match (known.find(|index| !is_asked(*index)), &self.id) {
            (Some(index), _) => index,
            (None, Id::None) => return false,
            (None, Id::Request(_)) if is_known => return false,
            (None, Id::Call(..) | Id::Request(_)) => {
                let index = descriptors.len();
                outside.extend(line.is_partial.then_some(index));
                descriptors.push(empty_descriptor());
                line.write(&mut descriptors[index]);
                index
            }
        };
        self.asked.push((index, line.rule));
        true
    }
}

fn empty_descriptor() -> Descriptor {
    Descriptor { entries: Vec::new(), ask: Ask::Peek, limit: None }
}

fn empty_entry() -> Entry {
    Entry { key: "".into(), value: "".into() }
}

/// Returns why a line is not of a decision log.
fn no_decision(line: &str, error: &serde_json::Error) -> String {
    match error.is_data() && line.trim_start().starts_with('{') {
        true => "is not a line of a decision log: it lacks a field, or a field has another type".to_owned(),
        false => format::no_object(line, error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::descriptor::Unit;
    use crate::observe::redaction::Values;

    /// Reads lines into their requests, as a log does.
    struct Reader {
        joined: Joined,
        packed: Packed,
        /// The memory of all events, which logs reuse, too.
        event: Event,
    }

    impl Default for Reader {
        fn default() -> Self {
            Reader { joined: Joined::default(), packed: Packed::default(), event: Event::empty() }
        }
    }

    impl Reader {
        fn push(&mut self, line: &str) -> Result<Option<Event>, String> {
            let at_ms = self.joined.push(line, &mut self.packed)?;
            Ok(at_ms.map(|at_ms| self.event(at_ms)))
        }

        fn finish(&mut self) -> Option<Event> {
            let at_ms = self.joined.finish(&mut self.packed)?;
            Some(self.event(at_ms))
        }

        fn event(&mut self, at_ms: u64) -> Event {
            unpack(at_ms, &mut self.packed, &mut self.event);
            self.packed.clear();
            self.event.clone()
        }
    }

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
        let mut joined = Reader::default();
        let mut events: Vec<Event> = Vec::new();
        for (ms, rule, user, id) in lines {
            events.extend(joined.push(&line(ms, rule, user, id)).unwrap());
        }
        events.extend(std::iter::from_fn(|| joined.finish()));
        let users = |event: &Event| -> Vec<String> {
            let descriptors = event.request.descriptors.iter();
            descriptors.map(|descriptor| descriptor.entries[0].value.to_string()).collect()
        };
        let all: Vec<_> = events.iter().map(users).collect();
        assert_eq!(all, [vec!["ann"], vec!["ann"], vec!["bob"], vec!["ann", "bob"], vec!["ann"], vec!["ann"]]);
        assert_eq!(events[0].request.descriptors[0].ask, Ask::Take(2));
        assert!(joined.push("{}").is_err() && joined.finish().is_none());
    }

    /// Returns the users of the requests that these lines make, with the indices outside of the sample.
    fn joined(lines: &[Value]) -> Vec<(Vec<String>, Vec<usize>)> {
        let mut joined = Reader::default();
        let mut events: Vec<Event> = lines.iter().flat_map(|line| joined.push(&line.to_string()).unwrap()).collect();
        events.extend(std::iter::from_fn(|| joined.finish()));
        let users = |event: &Event| {
            let descriptors = event.request.descriptors.iter();
            descriptors.map(|descriptor| descriptor.entries[0].value.to_string()).collect()
        };
        events.iter().map(|event| (users(event), event.outside.clone())).collect()
    }

    fn of_call(instance: &str, call: u64, rule: &str, user: &str) -> Value {
        let mut line: Value = serde_json::from_str(&line(1, rule, user, None)).unwrap();
        line.as_object_mut().unwrap().extend(json!({"instance": instance, "call": call}).as_object().unwrap().clone());
        line
    }

    #[test]
    fn lines_with_the_number_of_their_call_are_joined_exactly_also_those_of_several_instances() {
        let of = |users: &[&str]| (users.iter().map(|user| (*user).to_owned()).collect::<Vec<_>>(), Vec::new());
        let lines = [
            of_call("a", 1, "minute", "ann"),
            of_call("b", 1, "minute", "bob"), // the same number at another instance
            of_call("a", 1, "day", "ann"),
            of_call("a", 1, "paths", "cid"),  // another descriptor of the first call
            of_call("b", 1, "minute", "bob"), // an equal descriptor of the same call
            of_call("a", 2, "minute", "ann"),
            of_call("b", 1, "day", "bob"),
            of_call("b", 1, "day", "bob"),
        ];
        assert_eq!(joined(&lines), [of(&["ann", "cid"]), of(&["bob", "bob"]), of(&["ann"])]);
        let many = |call| of_call("a", call, "minute", "ann");
        let apart: Vec<Value> = (1..3_000).chain([2_999, 1]).map(many).collect();
        let joined = joined(&apart);
        assert_eq!((joined.len(), &joined[2_998].0.len()), (3_000, &2), "one call is joined, one left too long ago");
    }

    #[test]
    fn keys_outside_of_the_sample_of_a_log_are_known() {
        let mut outside = of_call("a", 1, "minute", "bob");
        outside["partial"] = json!(true);
        let lines = [of_call("a", 1, "minute", "ann"), outside.clone(), of_call("a", 2, "minute", "ann")];
        let users = |users: &[&str]| users.iter().map(|user| (*user).to_owned()).collect::<Vec<_>>();
        assert_eq!(joined(&lines), [(users(&["ann", "bob"]), vec![1]), (users(&["ann"]), vec![])]);
        assert_eq!(joined(&[outside]), [(users(&["bob"]), vec![0])]);
    }

    #[test]
    fn nothing_of_a_request_is_left_in_the_memory_that_the_next_one_reuses() {
        let with = |mut line: Value, other: Value| {
            line.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            line
        };
        let brought = json!({"rule": "(override)", "partial": true, "hits": 7});
        let large = |call| {
            [with(of_call("a", call, "minute", "ann"), brought.clone()), of_call("a", call, "minute", "a longer name")]
        };
        let small = |call| [of_call("a", call, "minute", "bob")];
        // More calls than wait for further lines at once, so that the memory of the first ones is reused.
        let calls = 2 * u64::try_from(MOST_PENDING).unwrap();
        let lines = (0..calls).flat_map(large).chain((calls..2 * calls).flat_map(small));
        let mut reader = Reader::default();
        let mut events: Vec<Event> = lines.flat_map(|line| reader.push(&line.to_string()).unwrap()).collect();
        events.extend(std::iter::from_fn(|| reader.finish()));
        let of = |lines: &[Value]| {
            let mut reader = Reader::default();
            lines.iter().for_each(|line| assert_eq!(reader.push(&line.to_string()), Ok(None)));
            reader.finish().unwrap()
        };
        let (large, small) = (of(&large(0)), of(&small(0)));
        assert_eq!((large.request.descriptors.len(), &*large.outside), (2, &[0][..]));
        let (first, last) = events.split_at(events.len() / 2);
        assert!(first.iter().all(|event| *event == large) && last.iter().all(|event| *event == small));
    }

    #[test]
    fn lines_that_do_not_name_their_call_are_counted() {
        let unnamed = |other| read(other).1.joined.unnamed();
        assert_eq!([json!({}), json!({"request_id": "a"}), json!({"call": 1})].map(unnamed), [1, 0, 0]);
    }

    /// Reads a line with these fields replaced. Returns its request, and the reader.
    fn read(other: Value) -> (Result<Option<Request>, String>, Reader) {
        let mut line: Value = serde_json::from_str(&line(1, "minute", "ann", None)).unwrap();
        line.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let mut joined = Reader::default();
        let pushed = joined.push(&line.to_string());
        (pushed.map(|_| joined.finish().map(|event| event.request)), joined)
    }

    #[test]
    fn values_that_are_hidden_are_all_one() {
        let (request, joined) = read(json!({"descriptor": [{"key": "user"}, {"key": "path"}]}));
        let entries = &request.unwrap().unwrap().descriptors[0].entries;
        let expected = ["user", "path"].map(|key| Entry { key: key.into(), value: "".into() });
        assert_eq!((&entries[..], joined.joined.masked()), (&expected[..], 1));
    }

    #[test]
    fn values_that_look_hashed_are_counted() {
        let masked = |value: &str| read(json!({"descriptor": [{"key": "user", "value": value}]})).1.joined.masked();
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
        assert_eq!((request, joined.joined.refunds()), (Ok(None), 1));
        let (request, joined) = read(json!({"rule": null, "limit": null}));
        assert_eq!((request.unwrap().unwrap().descriptors.len(), joined.joined.refunds()), (1, 0));
    }
}
