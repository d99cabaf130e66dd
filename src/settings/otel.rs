//! The values of OpenTelemetry's variables.

use axum::http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::spans::{Compression, Decider, Propagators, Protocol};

/// Advice for an invalid sampler.
pub(super) const SAMPLERS: &str = "write always_on, always_off or traceidratio, with or without parentbased_ in front";
/// Advice for an invalid protocol.
pub(super) const PROTOCOLS: &str = "write http/protobuf or grpc";
/// Advice if one of two files is missing.
pub(super) const HALF_IDENTITY: &str =
    "needs both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither";

/// Names with values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

/// Parses a sampler: the decider and the share. If the share is `None`, it is the one in OTEL_TRACES_SAMPLER_ARG.
pub(super) fn sampler(name: &str) -> Option<(Decider, Option<f64>)> {
    let name = name.trim();
    let (decider, name) = match name.strip_prefix("parentbased_") {
        Some(rest) => (Decider::Caller, rest),
        None => (Decider::Share, name),
    };
    match name {
        "always_on" => Some((decider, Some(1.0))),
        "always_off" => Some((decider, Some(0.0))),
        "traceidratio" => Some((decider, None)),
        _ => None,
    }
}

/// Returns the headers to read, and the unknown names. Baggage is ignored: it is for services that a process calls, and
/// this one calls none.
pub(super) fn propagators(names: &str) -> (Propagators, Vec<&str>) {
    let (mut read, mut unknown) = (Propagators { trace_context: false, b3: false }, Vec::new());
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match name {
            "tracecontext" => read.trace_context = true,
            "b3" | "b3multi" => read.b3 = true,
            "baggage" | "none" => {}
            other => unknown.push(other),
        }
    }
    (read, unknown)
}

pub(super) fn protocol(word: &str) -> Option<Protocol> {
    match word.trim().to_ascii_lowercase().as_str() {
        "grpc" => Some(Protocol::Grpc),
        "http/protobuf" | "http" => Some(Protocol::Http),
        _ => None,
    }
}

pub(super) fn compression(word: &str) -> Option<Compression> {
    match word.trim().to_ascii_lowercase().as_str() {
        "none" | "" => Some(Compression::None),
        "gzip" => Some(Compression::Gzip),
        _ => None,
    }
}

pub(super) fn endpoint(text: &str) -> Result<Uri, String> {
    let wrong = "must be a URL, such as http://collector:4318";
    let url: Uri = text.parse().map_err(|_| wrong)?;
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err(wrong.to_owned()),
    }
}

pub(super) fn headers(text: &str) -> Result<Pairs, String> {
    let pairs = pairs(text)?;
    match pairs.0.iter().find(|(name, value)| !is_header(name, value)) {
        Some((name, _)) => Err(format!("{name:?} is not a valid HTTP header name")),
        None => Ok(pairs),
    }
}

fn is_header(name: &str, value: &str) -> bool {
    HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok()
}

pub(super) fn pairs(text: &str) -> Result<Pairs, String> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').ok_or("must be NAME=VALUE, separated by commas")?;
        let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| "a value is not UTF-8")?;
        Ok((name.trim().to_owned(), value.into_owned()))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect::<Result<_, String>>().map(Pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_trimmed_and_decoded_and_headers_can_be_sent() {
        assert!(headers("a b=1").is_err() && headers("a=1\n").is_ok() && headers("a").is_err());
        assert!(pairs("a=%ff").is_err());
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(pairs(" , a = 1 ,b=x%2Cy").unwrap().0, [pair("a", "1"), pair("b", "x,y")]);
    }

    #[test]
    fn propagators_are_those_that_are_named() {
        let read = |names| {
            let (Propagators { trace_context, b3 }, unknown) = propagators(names);
            (trace_context, b3, unknown)
        };
        assert_eq!(read("tracecontext, baggage"), (true, false, vec![]));
        assert_eq!(read("b3multi"), (false, true, vec![]));
        assert_eq!(read("none"), (false, false, vec![]));
        assert_eq!(read("jaeger,b3,xray"), (false, true, vec!["jaeger", "xray"]));
    }
}
