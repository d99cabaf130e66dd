//! The caller's ID of a request: from the header `x-request-id`, or else the ID of its trace.

use std::fmt;

use opentelemetry::trace::TraceId;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};

use crate::spans;

/// Largest number of characters shown.
const SHOWN: usize = 128;

/// The ID of a request, formatted only when it is shown.
#[derive(Debug)]
pub(super) enum RequestId {
    Header(HeaderValue),
    Trace(TraceId),
}

impl RequestId {
    /// Reads the ID from the headers of a call, if they have one.
    pub(super) fn of(headers: &HeaderMap) -> Option<RequestId> {
        static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
        let header = headers.get(&X_REQUEST_ID).cloned().map(RequestId::Header);
        header.or_else(|| spans::trace_id(headers).map(RequestId::Trace))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestId::Header(value) => {
                let text = String::from_utf8_lossy(value.as_bytes());
                text.chars().take(SHOWN).try_for_each(|char| fmt::Write::write_char(f, char))
            }
            RequestId::Trace(trace) => write!(f, "{trace}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_own_name_goes_before_its_trace_and_is_cut_where_it_is_long() {
        let id = |headers: &[(&'static str, &str)]| {
            let header = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            RequestId::of(&headers.iter().map(header).collect()).map(|id| id.to_string())
        };
        let trace = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert_eq!(id(&[]), None);
        assert_eq!(id(&[trace]).as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        assert_eq!(id(&[trace, ("x-request-id", "a-1")]).as_deref(), Some("a-1"));
        assert_eq!(id(&[("x-request-id", &"x".repeat(1_000))]).map(|id| id.len()), Some(SHOWN));
    }
}
