//! Asks a server, and puts its answer into the words of the cases.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deadpool_redis::redis::{self, AsyncConnectionConfig};
use serde_json::{Value, json};
use tollgate::wire::rate_limit_descriptor::{Entry, RateLimitOverride};
use tollgate::wire::rate_limit_response::rate_limit::Unit;
use tollgate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::case::{Asked, Expected, LongDescriptor, Step};
use super::http;
use super::server::Server;
use crate::support::SOON;

/// Units in texts, and their seconds.
const UNITS: [(&str, Unit, u64); 7] = [
    ("second", Unit::Second, 1),
    ("minute", Unit::Minute, 60),
    ("hour", Unit::Hour, 3_600),
    ("day", Unit::Day, 86_400),
    ("week", Unit::Week, 604_800),
    ("month", Unit::Month, 30 * 86_400),
    ("year", Unit::Year, 365 * 86_400),
];
/// Time limit for eventual results.
const EVENTUALLY: Duration = Duration::from_secs(10);

/// A client of the server.
pub struct Client<'s> {
    pub server: &'s Server,
    pub channel: Channel,
}

/// Start and end of a request, in seconds since the epoch.
#[derive(Clone, Copy)]
struct Span(u64, u64);

impl Client<'_> {
    /// Performs a step; returns an error if the result differs from the expected one.
    pub async fn take(&self, step: &Step, domain: &str, expected: &Expected) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let outcome = self.take_once(step, domain, expected).await;
            if outcome.is_ok() || !step.eventually || start.elapsed() > EVENTUALLY {
                return outcome;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn take_once(&self, step: &Step, domain: &str, expected: &Expected) -> Result<(), String> {
        let domain = step.domain.as_deref().unwrap_or(domain);
        for _ in 1..step.times.unwrap_or(1) {
            self.do_step(step, domain).await;
        }
        let before = now();
        let answered = self.do_step(step, domain).await;
        let span = Span(before, now());
        if holds(expected, &answered, span) {
            return Ok(());
        }
        let question = said(step, domain);
        Err(format!("{question}\n  must answer {}\n  and answers {}", shown(expected), shown(&answered.named(span))))
    }

    /// Returns the complete reply of Redis.
    async fn redis(&self, words: &str) -> String {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        command.arg(words.collect::<Vec<_>>());
        let client = redis::Client::open(self.server.redis.url()).unwrap();
        let patient = AsyncConnectionConfig::new().set_connection_timeout(Some(SOON)).set_response_timeout(Some(SOON));
        let said = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
            command.query_async(&mut connection).await
        };
        said.await.map_or_else(|error| error.to_string(), |value| redis_text(&value))
    }

    async fn do_step(&self, step: &Step, domain: &str) -> Expected {
        if let Some(descriptors) = &step.ask {
            let descriptors = descriptors.iter().map(descriptor).collect();
            let request = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: step.hits };
            let mut client = RateLimitServiceClient::new(self.channel.clone());
            return match client.should_rate_limit(request).await {
                Ok(response) => answered(&response.into_inner()),
                Err(status) => failed(&status),
            };
        }
        if let Some(service) = &step.health {
            let request = HealthCheckRequest { service: service.clone() };
            return match HealthClient::new(self.channel.clone()).check(request).await {
                Ok(response) => reply(response.into_inner().status().as_str_name()),
                Err(status) => failed(&status),
            };
        }
        if let Some(command) = &step.redis {
            return reply(&self.redis(&with_time(command, now())).await);
        }
        if let Some(files) = &step.write {
            files.iter().for_each(|(path, text)| self.server.process.write(path, text.as_deref()));
            return Expected::default();
        }
        let (path, body) = step.get.as_deref().map_or(("/json", step.json.as_deref()), |path| (path, None));
        let method = step.method.as_deref().unwrap_or(if body.is_some() { "POST" } else { "GET" });
        match self.server.http(step.port, &http::Request { method, path, body }) {
            Ok(answer) => {
                let body = serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body));
                Expected { status: Some(answer.status), body: Some(body), ..Expected::default() }
            }
            Err(error) => Expected { error: Some(error), ..Expected::default() },
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns the current minute, to detect that a window may have ended.
pub fn minute() -> u64 {
    now() / 60
}

fn descriptor(asked: &Asked) -> RateLimitDescriptor {
    match asked {
        Asked::Short(text) => short_descriptor(text),
        Asked::Long(LongDescriptor { entries, hits, negative, limit }) => RateLimitDescriptor {
            entries: entries.iter().map(|(key, value)| entry(key, value)).collect(),
            limit: limit.map(|(requests_per_unit, unit)| RateLimitOverride {
                requests_per_unit,
                unit,
                unit_multiplier: None,
            }),
            hits_addend: *hits,
            is_negative_hits: *negative,
        },
    }
}

fn short_descriptor(text: &str) -> RateLimitDescriptor {
    let mut descriptor = RateLimitDescriptor::default();
    for word in text.split_whitespace() {
        if let Some((key, value)) = word.split_once('=') {
            descriptor.entries.push(entry(key, value));
        } else if let Some(hits) = word.strip_prefix('+') {
            descriptor.hits_addend = Some(hits.parse().unwrap());
        } else {
            let (number, unit) = word.strip_prefix('@').and_then(|limit| limit.split_once('/')).expect(word);
            let (_, unit, _) = UNITS.iter().find(|(name, ..)| *name == unit).expect(word);
            let requests_per_unit = number.parse().unwrap();
            let limit = RateLimitOverride { requests_per_unit, unit: *unit as i32, unit_multiplier: None };
            descriptor.limit = Some(limit);
        }
    }
    descriptor
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

fn answered(response: &RateLimitResponse) -> Expected {
    let headers = response.response_headers_to_add.iter().map(|header| {
        // Newer versions have the value in the newer field.
        let raw = String::from_utf8_lossy(&header.raw_value);
        format!("{}: {}{raw}", header.key, header.value)
    });
    Expected {
        answer: Some(response.statuses.iter().map(status).collect()),
        code: Some(code(response.overall_code()).to_owned()),
        headers: Some(headers.collect()),
        metadata: response.dynamic_metadata.as_ref().and_then(metadata),
        ..Expected::default()
    }
}

/// Removes the metadata under Tollgate's own name, which these cases do not test.
fn metadata(given: &prost_types::Struct) -> Option<Value> {
    let mut given = json_struct(given);
    given.as_object_mut()?.remove("tollgate");
    Some(given).filter(|rest| *rest != json!({}))
}

fn failed(status: &tonic::Status) -> Expected {
    let code = format!("{:?}", status.code());
    Expected { error: Some(format!("{code}: {}", status.message())), ..Expected::default() }
}

fn reply(text: &str) -> Expected {
    Expected { reply: Some(text.to_owned()), ..Expected::default() }
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "unknown",
        Code::Ok => "ok",
        Code::OverLimit => "over",
    }
}

/// Returns the text of a status, with its reset time as `{day}` unless it is correct.
fn status(status: &DescriptorStatus) -> String {
    let mut text = code(status.code()).to_owned();
    let reset = status.duration_until_reset.as_ref().map(|reset| reset.seconds);
    match &status.current_limit {
        Some(limit) => {
            text.push_str(&format!(" {} of {}", status.limit_remaining, self::limit(limit)));
            text.push_str(&reset.map_or(" without reset".to_owned(), |seconds| format!(" resets in {seconds}")));
        }
        None if status.limit_remaining == u32::MAX => text.push_str(" unlimited"),
        None if status.limit_remaining > 0 => text.push_str(&format!(" {}", status.limit_remaining)),
        None => {}
    }
    if let (None, Some(seconds)) = (&status.current_limit, reset) {
        text.push_str(&format!(" resets in {seconds}"));
    }
    text
}

fn limit(limit: &RateLimit) -> String {
    let unit = UNITS.iter().find(|(_, unit, _)| *unit == limit.unit()).map_or("unknown", |(name, ..)| name);
    let multiplier = limit.unit_multiplier.map(|multiplier| format!("{multiplier} ")).unwrap_or_default();
    let name = if limit.name.is_empty() { String::new() } else { format!(" {}", limit.name) };
    format!("{}/{multiplier}{unit}{name}", limit.requests_per_unit)
}

fn json_struct(metadata: &prost_types::Struct) -> Value {
    metadata
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), json_value(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn json_value(value: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::StructValue(fields)) => json_struct(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(json_value).collect(),
    }
}

fn redis_text(value: &redis::Value) -> String {
    match value {
        redis::Value::Nil => "none".to_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

/// A text in which `{day}` is the seconds until the day ends, and `{day start}` when it began.
fn with_time(text: &str, now: u64) -> String {
    UNITS.iter().fold(text.to_owned(), |text, (name, _, seconds)| {
        let text = text.replace(&format!("{{{name}}}"), &(seconds - now % seconds).to_string());
        text.replace(&format!("{{{name} start}}"), &(now - now % seconds).to_string())
    })
}

fn holds(expected: &Expected, answered: &Expected, span: Span) -> bool {
    (span.0..=span.1).any(|now| holds_at(expected, answered, now))
}

fn holds_at(expected: &Expected, answered: &Expected, now: u64) -> bool {
    if let Some(error) = &expected.error {
        return answered.error.as_ref().is_some_and(|text| matches_text(error, text));
    }
    if answered.error.is_some() {
        return false;
    }
    let is_equal = |expected: &Option<Vec<String>>, answered: &Option<Vec<String>>| {
        let expected: Vec<String> = expected.iter().flatten().map(|text| with_time(text, now)).collect();
        expected == answered.clone().unwrap_or_default()
    };
    if let Some(answer) = &expected.answer {
        let timed = answer.iter().map(|text| timed(text)).collect();
        let overall = expected.code.clone().unwrap_or_else(|| overall(answer).to_owned());
        let holds = is_equal(&Some(timed), &answered.answer) && answered.code == Some(overall);
        return holds && is_equal(&expected.headers, &answered.headers) && {
            let metadata = expected.metadata.as_ref().map(|value| value_with_time(value, now));
            numbers(metadata) == numbers(answered.metadata.clone())
        };
    }
    if let Some(code) = &expected.code {
        return answered.code.as_ref() == Some(code);
    }
    let text = match &answered.body {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    expected.status.is_none_or(|status| answered.status == Some(status))
        && expected
            .body
            .as_ref()
            .is_none_or(|body| numbers(Some(value_with_time(body, now))) == numbers(answered.body.clone()))
        && expected.lines.as_ref().is_none_or(|expected| lines(&expected.join("\n")) == lines(&text))
        && expected.has.iter().flatten().all(|part| text.contains(part.as_str()))
        && expected
            .reply
            .as_ref()
            .is_none_or(|reply| answered.reply.as_ref().is_some_and(|text| matches_text(&with_time(reply, now), text)))
}

/// `...` at the end of a text matches anything.
fn matches_text(expected: &str, answered: &str) -> bool {
    match expected.strip_suffix("...") {
        Some(begin) => answered.starts_with(begin),
        None => answered == expected,
    }
}

/// The status of a limit with the reset time that follows from its unit.
fn timed(text: &str) -> String {
    let unit = text.split_once('/').map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
    match unit {
        Some(unit) if !text.contains("reset") => format!("{text} resets in {{{unit}}}"),
        _ => text.to_owned(),
    }
}

fn overall(answer: &[String]) -> &'static str {
    if answer.iter().any(|status| status.starts_with("over")) { "over" } else { "ok" }
}

fn value_with_time(value: &Value, now: u64) -> Value {
    match value {
        Value::String(text) => Value::String(with_time(text, now)),
        Value::Array(values) => values.iter().map(|value| value_with_time(value, now)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), value_with_time(value, now)));
            Value::Object(fields.collect())
        }
        value => value.clone(),
    }
}

/// 5 and 5.0 are the same.
fn numbers(value: Option<Value>) -> Option<Value> {
    value.map(|value| match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.into_iter().filter_map(|value| numbers(Some(value))).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter_map(|(name, value)| Some((name, numbers(Some(value))?)));
            Value::Object(fields.collect())
        }
        value => value,
    })
}

impl Expected {
    /// With the times that are right by their names, as a case has them.
    fn named(mut self, Span(first, last): Span) -> Expected {
        for text in self.answer.iter_mut().flatten() {
            let Some((begin, seconds)) = text.rsplit_once(" resets in ") else { continue };
            let is_right = |now| with_time(&timed(begin), now).ends_with(&format!(" resets in {seconds}"));
            if (first..=last).any(is_right) {
                *text = begin.to_owned();
            }
        }
        self
    }
}

fn shown(expected: &Expected) -> String {
    let Expected { answer, code, headers, metadata, error, status, body, lines, has, reply } = expected;
    let mut parts = Vec::new();
    parts.extend(answer.as_ref().map(|answer| format!("{answer:?}")));
    parts.extend(code.as_ref().map(|code| format!("code: {code}")));
    parts.extend(headers.as_ref().filter(|headers| !headers.is_empty()).map(|headers| format!("headers: {headers:?}")));
    parts.extend(metadata.as_ref().map(|metadata| format!("metadata: {metadata}")));
    parts.extend(error.as_ref().map(|error| format!("error: {error:?}")));
    parts.extend(status.map(|status| format!("status: {status}")));
    parts.extend(body.as_ref().map(|body| format!("body: {body}")));
    parts.extend(lines.as_ref().map(|lines| format!("lines: {lines:?}")));
    parts.extend(has.as_ref().map(|has| format!("has: {has:?}")));
    parts.extend(reply.as_ref().map(|reply| format!("reply: {reply:?}")));
    parts.join(", ")
}

fn said(step: &Step, domain: &str) -> String {
    let Step { ask, json, get, health, write, redis, hits, .. } = step;
    match (ask, json, get, health, redis, write) {
        (Some(ask), ..) => format!("ask {domain} {ask:?} hits {hits}"),
        (_, Some(json), ..) => format!("json {json}"),
        (_, _, Some(path), ..) => format!("get {path}"),
        (_, _, _, Some(service), ..) => format!("health of {service:?}"),
        (_, _, _, _, Some(command), _) => format!("redis {command}"),
        _ => format!("write {write:?}"),
    }
}
