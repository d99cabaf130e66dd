//! Tells gRPC calls from other HTTP requests, and collects their messages.

use tonic::codegen::http::StatusCode;

/// Length of gRPC's prefix of a message: a flag and the message's length.
pub(super) const PREFIX: usize = 5;

/// Returns whether a content type is gRPC's, with messages in protobuf.
pub(super) fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(b"application/grpc").is_some_and(|suffix| {
        let suffix = suffix.strip_prefix(b"+proto").unwrap_or(suffix);
        matches!(suffix.first(), None | Some(b';' | b' '))
    })
}

/// The reason why a request is not a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCall {
    /// The method is not POST.
    Method,
    /// The content type is not gRPC's.
    ContentType,
}

impl NoCall {
    /// Returns the HTTP status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            NoCall::Method => StatusCode::METHOD_NOT_ALLOWED,
            NoCall::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// Returns the text of the answer. It is for people; gRPC clients read only the status.
    pub(super) fn text(self) -> &'static str {
        match self {
            NoCall::Method => "gRPC calls use POST\n",
            NoCall::ContentType => "gRPC calls have the content type application/grpc\n",
        }
    }
}

/// Returns whether a call of the method with this path may have any number of messages. Of the services here only
/// reflection has such calls. Clients that take this port for a management server open a stream of discovery, and learn
/// at once that there is none, instead of when their request is late.
pub(super) fn is_stream(path: &str) -> bool {
    path.starts_with("/grpc.reflection.") || path.starts_with("/envoy.service.discovery.")
}

/// Adds bytes to a message. It grows by doubling like a vector, but not beyond the largest message, because that must
/// fit into the budget, too.
pub(super) fn append(message: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let needed = message.len() + bytes.len();
    if needed > message.capacity() {
        let capacity = needed.next_power_of_two().min(most).max(needed);
        message.reserve_exact(capacity - message.len());
    }
    message.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_of_grpc_in_protobuf() {
        for content_type in ["application/grpc", "application/grpc+proto", "application/grpc; charset=utf-8"] {
            assert!(is_grpc(content_type.as_bytes()), "{content_type}");
        }
        for content_type in
            ["", "application/json", "application/grpc-web", "application/grpc+json", "application/grpcx"]
        {
            assert!(!is_grpc(content_type.as_bytes()), "{content_type}");
        }
    }

    #[test]
    fn a_message_takes_no_more_memory_than_the_largest() {
        let mut message = Vec::new();
        for _ in 0..10 {
            append(&mut message, &[7; 10], 100);
            assert!(message.capacity() <= 100, "{}", message.capacity());
        }
        assert_eq!(message, [7; 100]);
    }
}
