//! Reads the caller's trace from headers: W3C's `traceparent` and `tracestate`, or else B3 in one or several headers.
//! Nothing is allocated unless the call is sampled. A malformed header counts as missing.
//!
//! Baggage is ignored, as Tollgate calls no service that would read it.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
static B3: HeaderName = HeaderName::from_static("b3");
static B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
static B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
static B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
static B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// The caller's trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The IDs of its trace and span, if it sends them.
    ids: Option<(TraceId, SpanId)>,
    /// Whether the trace is sampled, or `None` if the caller has not decided.
    pub(super) sampled: Option<bool>,
}

/// The headers to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagators {
    /// W3C's `traceparent` and `tracestate`.
    pub trace_context: bool,
    /// B3, in one or several headers.
    pub b3: bool,
}

impl Caller {
    pub(super) fn of(headers: &HeaderMap, read: Propagators) -> Caller {
        let w3c = || traceparent(text(headers, &TRACEPARENT).filter(|_| read.trace_context)?);
        let b3 = || single(text(headers, &B3).filter(|_| read.b3)?);
        let several = || several(headers).filter(|_| read.b3);
        w3c().or_else(b3).or_else(several).unwrap_or_default()
    }

    /// Returns the ID of its trace.
    pub(super) fn trace(&self) -> Option<TraceId> {
        self.ids.map(|(trace, _)| trace)
    }

    /// Returns its span as part of a sampled trace.
    pub(super) fn span(&self, headers: &HeaderMap) -> Option<SpanContext> {
        let (trace, span) = self.ids?;
        Some(SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state(headers)))
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Reads the trace state of other vendors, which may span several headers.
fn state(headers: &HeaderMap) -> TraceState {
    let all: Vec<_> = headers.get_all(&TRACESTATE).iter().filter_map(|value| value.to_str().ok()).collect();
    all.join(",").parse().unwrap_or_default()
}

/// Parses `00-TRACE-SPAN-FLAGS`; a later version may have more parts.
fn traceparent(text: &str) -> Option<Caller> {
    let mut parts = text.trim().splitn(5, '-');
    let mut next = || parts.next();
    let (version, trace, span, flags) = (byte(next()?)?, next()?, next()?, byte(next()?)?);
    let has_more = next().is_some();
    if version == 0xFF || (version == 0 && has_more) || trace.len() != 32 {
        return None;
    }
    Some(Caller { ids: Some(ids(trace, span)?), sampled: Some(flags & 1 == 1) })
}

/// Parses `TRACE-SPAN-SAMPLED-PARENT`, in which the last two are optional, or SAMPLED alone.
fn single(text: &str) -> Option<Caller> {
    let mut parts = text.trim().split('-');
    let (first, span) = (parts.next()?, parts.next());
    let Some(span) = span else { return Some(Caller { ids: None, sampled: Some(sampled(first)?) }) };
    let sampled = match parts.next() {
        Some(word) => Some(sampled(word)?),
        None => None,
    };
    Some(Caller { ids: Some(ids(first, span)?), sampled })
}

/// Parses B3 with one header per part.
fn several(headers: &HeaderMap) -> Option<Caller> {
    let is_debug = text(headers, &B3_FLAGS) == Some("1");
    let sampled = if is_debug { Some(true) } else { text(headers, &B3_SAMPLED).and_then(sampled) };
    let ids = || ids(text(headers, &B3_TRACE)?, text(headers, &B3_SPAN)?);
    let caller = Caller { ids: ids(), sampled };
    (caller != Caller::default()).then_some(caller)
}

/// Parses the sampling decision. Debug implies sampled.
fn sampled(word: &str) -> Option<bool> {
    match word {
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// Parses the IDs. A trace ID of B3 may have only half the digits.
fn ids(trace: &str, span: &str) -> Option<(TraceId, SpanId)> {
    let is_trace = (trace.len() == 32 || trace.len() == 16) && is_hex(trace);
    if !is_trace || span.len() != 16 || !is_hex(span) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    (trace != TraceId::INVALID && span != SpanId::INVALID).then_some((trace, span))
}

fn byte(text: &str) -> Option<u8> {
    if text.len() == 2 && is_hex(text) { u8::from_str_radix(text, 16).ok() } else { None }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        all.iter().map(pair).collect()
    }

    fn caller(all: &[(&'static str, &str)]) -> Caller {
        Caller::of(&headers(all), Propagators { trace_context: true, b3: true })
    }

    fn known(sampled: Option<bool>) -> Caller {
        Caller { ids: ids(TRACE, SPAN), sampled }
    }

    #[test]
    fn a_caller_is_known_by_w3c_and_by_b3_in_one_header_or_several() {
        let w3c = |flags: &str| caller(&[("traceparent", &format!("00-{TRACE}-{SPAN}-{flags}"))]);
        assert_eq!([w3c("01"), w3c("00"), w3c("03")], [Some(true), Some(false), Some(true)].map(known));
        let later = format!("01-{TRACE}-{SPAN}-01-more");
        assert_eq!(caller(&[("traceparent", &later)]), known(Some(true)));

        let b3 = |rest: &str| caller(&[("b3", &format!("{TRACE}-{SPAN}{rest}"))]);
        let parent = format!("-1-{SPAN}");
        assert_eq!(
            [b3("-1"), b3("-d"), b3(&parent), b3("-0"), b3("")],
            [Some(true), Some(true), Some(true), Some(false), None].map(known)
        );
        assert_eq!(caller(&[("b3", "0")]), Caller { ids: None, sampled: Some(false) });

        let (trace, span) = (("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN));
        for (name, value, sampled) in [
            ("x-b3-sampled", "1", Some(true)),
            ("x-b3-sampled", "0", Some(false)),
            ("x-b3-flags", "1", Some(true)),
            ("x-b3-flags", "0", None),
        ] {
            assert_eq!(caller(&[trace, span, (name, value)]), known(sampled), "{name}: {value}");
        }
        assert_eq!(caller(&[("x-b3-traceid", &TRACE[16..]), span]).trace(), TraceId::from_hex(&TRACE[16..]).ok());
    }

    #[test]
    fn w3c_comes_before_b3_and_what_is_wrong_counts_as_none() {
        let b3 = ("b3", "0");
        assert_eq!(caller(&[("traceparent", &format!("00-{TRACE}-{SPAN}-01")), b3]), known(Some(true)));
        for wrong in [
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-+{}-01", &SPAN[1..]),
            format!("00-{}-{SPAN}-01", &TRACE[16..]),
            String::new(),
        ] {
            assert_eq!(caller(&[("traceparent", &wrong)]), Caller::default(), "{wrong}");
            assert_eq!(caller(&[("traceparent", &wrong), b3]).sampled, Some(false), "{wrong}");
        }
    }

    #[test]
    fn only_the_headers_of_the_propagators_are_read() {
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        let all = [
            ("traceparent", &*traceparent),
            ("b3", "0"),
            ("x-b3-traceid", TRACE),
            ("x-b3-spanid", SPAN),
            ("x-b3-sampled", "0"),
        ];
        let read = |trace_context, b3, from: usize| {
            Caller::of(&headers(&all[from..]), Propagators { trace_context, b3 }).sampled
        };
        assert_eq!([read(true, false, 0), read(true, false, 1)], [Some(true), None]);
        assert_eq!([read(false, true, 0), read(false, true, 2)], [Some(false), Some(false)]);
        assert_eq!(read(false, false, 0), None);
    }

    #[test]
    fn what_others_have_noted_goes_along() {
        let several = headers(&[("tracestate", "a=1"), ("tracestate", "b=2")]);
        assert_eq!(known(None).span(&several).unwrap().trace_state().get("b"), Some("2"));
        let wrong = headers(&[("tracestate", "=,,;")]);
        assert_eq!(known(None).span(&wrong).unwrap().trace_state().header(), "");
    }

    proptest! {
        #[test]
        fn no_header_ends_the_process(name in 0..4_usize, value in "[0-9a-fA-F+ -]{0,60}") {
            let name = ["traceparent", "b3", "x-b3-traceid", "x-b3-spanid"][name];
            let caller = caller(&[(name, &value)]);
            prop_assert!(caller.ids.is_none_or(|(trace, span)| trace != TraceId::INVALID && span != SpanId::INVALID));
        }
    }
}
