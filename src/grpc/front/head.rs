//! The headers of a call. Each field is judged as it is read (RFC 9113, section 8), and only what the call needs is
//! kept: of a call for the rate limit service, its timeout and little more.

use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::hpack::Field;
use crate::grpc::bounds::HEADER_OVERHEAD;
use crate::grpc::parse_timeout;
use crate::grpc::protocol::is_grpc;
use crate::wire::details::REQUEST_KEY;

/// The method that nearly every call is for.
const RATE_LIMIT: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Size of a header beyond its name and value, as HTTP/2 counts it (RFC 9113, section 6.5.2).
const OVERHEAD: usize = 32;

/// How many times too large headers may be before their reading ends, and with it the connection. One octet can refer
/// to 4 KB of the table.
const FAR: usize = 16;

/// Names of headers, as far as the front tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Method,
    Scheme,
    Path,
    Authority,
    ContentType,
    ContentLength,
    Te,
    Timeout,
    Encoding,
    Details,
    /// The request's ID, or a part of its trace's context.
    Trace,
    Other,
    /// A header of HTTP/1 connections, which HTTP/2 forbids.
    Connection,
    /// Not a name: an unknown pseudo-header, or characters that names do not have.
    Wrong,
}

/// Returns the kind of a name.
pub(super) fn classify(name: &[u8]) -> Name {
    match name {
        b":method" => Name::Method,
        b":scheme" => Name::Scheme,
        b":path" => Name::Path,
        b":authority" => Name::Authority,
        b"content-type" => Name::ContentType,
        b"content-length" => Name::ContentLength,
        b"te" => Name::Te,
        b"grpc-timeout" => Name::Timeout,
        b"grpc-encoding" => Name::Encoding,
        b"x-request-id" | b"traceparent" | b"tracestate" | b"b3" => Name::Trace,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => Name::Connection,
        _ if name == REQUEST_KEY.as_bytes() => Name::Details,
        _ if name.starts_with(b"x-b3-") && is_name(name) => Name::Trace,
        _ if is_name(name) => Name::Other,
        _ => Name::Wrong,
    }
}

/// Returns whether these are the characters of a token (RFC 9110, section 5.6.2), none of them a capital.
fn is_name(name: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_token)
}

/// A call's headers.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) to: To,
    /// Whether the content type is gRPC's, with messages in protobuf.
    pub(super) is_grpc: bool,
    /// Whether messages are compressed.
    pub(super) is_encoded: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) details: bool,
    /// Of a call for the rate limit service its trace, if wanted; of any other all headers but pseudo-headers.
    pub(super) headers: Option<Box<HeaderMap>>,
    /// Length of the body, if it is declared.
    pub(super) length: Option<u64>,
    /// Memory that the kept headers take.
    pub(super) bytes: usize,
}

/// Methods of HTTP, as far as gRPC tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Post,
    Other,
}

/// What is called.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum To {
    /// The rate limit service.
    RateLimit,
    /// The method with this path.
    Other(String),
}

/// Reasons not to take a call by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongHead {
    /// The fields are not a request (RFC 9113, section 8.1.1).
    Malformed,
    /// They are larger than allowed.
    TooLarge,
}

/// Reads the fields of a block, one after the other: those of a request, or of its trailers.
#[derive(Debug)]
pub(super) struct Reader<B> {
    most: usize,
    size: usize,
    is_wrong: bool,
    block: B,
}

/// What the fields of a block must be.
pub(super) trait Block {
    /// Takes the next field. Returns whether it is right.
    fn field(&mut self, field: &Field<'_, Name>) -> bool;
}

impl<B: Block> Reader<B> {
    /// Returns a reader of fields of at most this size.
    pub(super) fn new(most: usize, block: B) -> Reader<B> {
        Reader { most, size: 0, is_wrong: false, block }
    }

    /// Takes the next field. Returns whether to go on: fields that are far too large are not even read to their end.
    pub(super) fn field(&mut self, field: &Field<'_, Name>) -> bool {
        self.size = self.size.saturating_add(field.name.len() + field.value.len() + OVERHEAD);
        if self.size <= self.most && !self.is_wrong {
            self.is_wrong = !self.block.field(field);
        }
        self.size <= FAR * self.most
    }

    /// Returns the block.
    ///
    /// # Errors
    /// If its fields are too large, or wrong.
    pub(super) fn finish(self) -> Result<B, WrongHead> {
        match self {
            Reader { size, most, .. } if size > most => Err(WrongHead::TooLarge),
            Reader { is_wrong: true, .. } => Err(WrongHead::Malformed),
            Reader { block, .. } => Ok(block),
        }
    }
}

/// The fields of a request.
#[derive(Debug)]
pub(super) struct Request {
    keeps_trace: bool,
    method: Option<Method>,
    has_scheme: bool,
    has_authority: bool,
    to: Option<To>,
    past_pseudo: bool,
    head: Rest,
}

#[derive(Debug, Default)]
struct Rest {
    is_grpc: bool,
    is_encoded: bool,
    timeout: Option<Duration>,
    details: bool,
    headers: Option<Box<HeaderMap>>,
    length: Option<u64>,
    bytes: usize,
}

impl Request {
    /// Returns a request without fields. `keeps_trace` says whether anybody wants the trace and the ID of a call.
    pub(super) fn new(keeps_trace: bool) -> Request {
        Request {
            keeps_trace,
            method: None,
            has_scheme: false,
            has_authority: false,
            to: None,
            past_pseudo: false,
            head: Rest::default(),
        }
    }

    fn pseudo(&mut self, kind: Name, value: &[u8]) -> bool {
        match kind {
            Name::Method => {
                let method = if value == b"POST" { Method::Post } else { Method::Other };
                self.method.replace(method).is_none() && is_name(&value.to_ascii_lowercase())
            }
            Name::Scheme => !std::mem::replace(&mut self.has_scheme, true) && !value.is_empty(),
            // Any text is right: gRPC's C core sends the path of a Unix socket.
            Name::Authority => !std::mem::replace(&mut self.has_authority, true) && is_value(value),
            _ if value == RATE_LIMIT => self.to.replace(To::RateLimit).is_none(),
            _ => {
                let path = String::from_utf8_lossy(value).into_owned();
                self.head.bytes += path.len();
                !path.is_empty() && is_value(value) && self.to.replace(To::Other(path)).is_none()
            }
        }
    }

    /// Keeps a header. Returns whether it is one.
    fn keep(&mut self, field: &Field<'_, Name>) -> bool {
        let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(field.name), HeaderValue::from_bytes(field.value))
        else {
            return false;
        };
        value.set_sensitive(field.sensitive);
        self.head.bytes += field.name.len() + field.value.len() + HEADER_OVERHEAD;
        self.head.headers.get_or_insert_default().append(name, value);
        true
    }

    /// Returns the call's headers.
    ///
    /// # Errors
    /// If they are not those of a request.
    pub(super) fn head(self) -> Result<Head, WrongHead> {
        let Request { method: Some(method), has_scheme: true, to: Some(to), head, .. } = self else {
            return Err(WrongHead::Malformed);
        };
        let Rest { is_grpc, is_encoded, timeout, details, headers, length, bytes } = head;
        Ok(Head { method, to, is_grpc, is_encoded, timeout, details, headers, length, bytes })
    }
}

impl Block for Request {
    fn field(&mut self, field: &Field<'_, Name>) -> bool {
        let Field { kind, value, .. } = *field;
        if let Name::Method | Name::Scheme | Name::Path | Name::Authority = kind {
            return !self.past_pseudo && self.pseudo(kind, value);
        }
        self.past_pseudo = true;
        let is_right = match kind {
            Name::Wrong | Name::Connection => false,
            Name::Te => value == b"trailers",
            Name::ContentLength => {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let is_second = self.head.length.is_some_and(|before| Some(before) != length);
                self.head.length = length;
                length.is_some() && !is_second
            }
            _ => true,
        };
        if !is_right || !is_value(value) {
            return false;
        }
        match kind {
            Name::ContentType => self.head.is_grpc = is_grpc(value),
            Name::Timeout => self.head.timeout = parse_timeout(value),
            Name::Encoding => self.head.is_encoded = value != b"identity",
            Name::Details => self.head.details = true,
            _ => {}
        }
        let is_kept = match self.to {
            Some(To::RateLimit) => self.keeps_trace && kind == Name::Trace,
            _ => true,
        };
        !is_kept || self.keep(field)
    }
}

/// Returns whether these bytes may be a value (RFC 9113, section 8.2.1).
fn is_value(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) && !is_blank(value.first()) && !is_blank(value.last())
}

/// The fields of trailers, which are ignored. They have no pseudo-headers.
#[derive(Debug)]
pub(super) struct Trailers;

impl Block for Trailers {
    fn field(&mut self, field: &Field<'_, Name>) -> bool {
        match field.kind {
            Name::Method | Name::Scheme | Name::Path | Name::Authority | Name::Wrong | Name::Connection => false,
            Name::Te => field.value == b"trailers",
            _ => is_value(field.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    const CALL: Fields<'_> = &[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];

    fn read(fields: &[(&str, &str)]) -> Result<Head, WrongHead> {
        let mut reader = Reader::new(1_000, Request::new(true));
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            reader.field(&Field { kind: classify(name), name, value, sensitive: false });
        }
        reader.finish()?.head()
    }

    fn with<'a>(extra: Fields<'a>) -> Vec<(&'a str, &'a str)> {
        [CALL, extra].concat()
    }

    #[test]
    fn a_call_for_the_rate_limit_service_keeps_its_timeout_and_its_trace() {
        let extra = [("grpc-timeout", "20m"), ("x-request-id", "a"), ("user-agent", "envoy"), ("traceparent", "00-1")];
        let head = read(&with(&extra)).unwrap();
        assert_eq!((head.method, head.to, head.is_grpc), (Method::Post, To::RateLimit, true));
        assert_eq!((head.timeout, head.details, head.is_encoded), (Some(Duration::from_millis(20)), false, false));
        let kept = head.headers.unwrap();
        assert_eq!(
            (kept.len(), &kept["x-request-id"], &kept["traceparent"]),
            (2, &"a".parse().unwrap(), &"00-1".parse().unwrap())
        );
        let head = read(&with(&[(REQUEST_KEY, "1"), ("grpc-encoding", "gzip"), ("content-length", "7")])).unwrap();
        assert_eq!((head.details, head.is_encoded, head.length), (true, true, Some(7)));
        assert!(head.headers.is_none());
    }

    #[test]
    fn any_other_call_keeps_all_headers() {
        let mut fields = with(&[("user-agent", "grpcurl")]);
        fields[2].1 = "/grpc.health.v1.Health/Check";
        let head = read(&fields).unwrap();
        assert_eq!(head.to, To::Other("/grpc.health.v1.Health/Check".to_owned()));
        assert_eq!(head.headers.unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_request_is_told_from_one() {
        let wrong: &[Fields<'_>] = &[
            &[("Upper", "a")],
            &[("connection", "close")],
            &[("transfer-encoding", "chunked")],
            &[("te", "gzip")],
            &[(":method", "POST")],
            &[(":unknown", "a")],
            &[("", "a")],
            &[("a", "line\nbreak")],
            &[("a", " blank")],
            &[("content-length", "many")],
            &[("content-length", "1"), ("content-length", "2")],
        ];
        for extra in wrong {
            assert_eq!(read(&with(extra)).unwrap_err(), WrongHead::Malformed, "{extra:?}");
        }
        for (place, (name, _)) in CALL[..3].iter().enumerate() {
            let mut fields = CALL.to_vec();
            fields.remove(place);
            assert_eq!(read(&fields).unwrap_err(), WrongHead::Malformed, "without {name}");
        }
        let (mut empty, mut unix) = (CALL.to_vec(), CALL.to_vec());
        empty[2].1 = "";
        assert_eq!(read(&empty).unwrap_err(), WrongHead::Malformed);
        unix.insert(0, (":authority", "%2Frun%2Ftollgate.sock"));
        assert!(read(&unix).is_ok(), "as gRPC's C core sends it");
        let long = "a".repeat(1_000);
        assert_eq!(read(&with(&[("a", &long)])).unwrap_err(), WrongHead::TooLarge);
    }

    #[test]
    fn trailers_have_no_pseudo_headers() {
        let read = |name: &str| {
            let mut trailers = Reader::new(100, Trailers);
            trailers.field(&Field {
                kind: classify(name.as_bytes()),
                name: name.as_bytes(),
                value: b"a",
                sensitive: false,
            });
            trailers.finish().map(drop)
        };
        assert_eq!(
            (read("a"), read(":path"), read("A")),
            (Ok(()), Err(WrongHead::Malformed), Err(WrongHead::Malformed))
        );
        assert_eq!(read(&"a".repeat(100)), Err(WrongHead::TooLarge));
    }
}
