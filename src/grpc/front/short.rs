//! The message of a call for the rate limit service, and the frames of its answer: what a unary call needs of gRPC.

use std::sync::LazyLock;

use prost::Message as _;
use tonic::Status;

use super::general::status_block;
use crate::engine::descriptor::SETTLE_KEY;
use crate::grpc::protocol::PREFIX;
use crate::grpc::{CallError, bounds};
use crate::wire::{RateLimitRequest, RateLimitResponse};

/// The headers of every answer with a message: `:status: 200` and `content-type: application/grpc`, in HPACK.
pub(super) const HEADERS: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// Its trailers: `grpc-status: 0`.
pub(super) const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

/// The answer to a call that has been waiting for too long: headers alone.
pub(super) static TOO_OLD: LazyLock<Vec<u8>> =
    LazyLock::new(|| status_block(&Status::deadline_exceeded("the call waited too long to be answered in time"), true));

/// Reads the request in the body of a call.
///
/// # Errors
/// If it is not one message of at most `most` bytes, uncompressed.
pub(super) fn request(body: &[u8], most: usize) -> Result<RateLimitRequest, Status> {
    let Some((&[flag, ref length @ ..], message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(Status::internal("the call has no message"));
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > most {
        return Err(bounds::too_large(length, most));
    }
    match (flag, message.len().cmp(&length)) {
        (0, std::cmp::Ordering::Equal) => RateLimitRequest::decode(message)
            .map_err(|error| Status::internal(format!("the message is not a RateLimitRequest: {error}"))),
        (0, std::cmp::Ordering::Less) => Err(Status::internal(format!(
            "the message breaks off: {} of the {length} bytes that its prefix declares",
            message.len()
        ))),
        (0, std::cmp::Ordering::Greater) => Err(Status::unimplemented("a call has one message, and nothing after it")),
        (1, _) => Err(Status::internal("the message is compressed, but the call has no grpc-encoding")),
        (flag, _) => {
            Err(Status::internal(format!("the message begins with the flag {flag}: only 0 and 1 have a meaning")))
        }
    }
}

/// The part of a `RateLimitRequest` that tells whether it reports what has happened.
#[derive(prost::Message)]
struct Direction {
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<DirectionOfOne>,
}

#[derive(prost::Message)]
struct DirectionOfOne {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<KeyOfEntry>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(prost::Message)]
struct KeyOfEntry {
    #[prost(string, tag = "1")]
    key: String,
}

/// Returns whether any descriptor in the body of a call refunds hits, releases a slot or settles what a stream has
/// used. Entries that choose a price may follow the one that settles. Decodes nothing else.
pub(super) fn is_report(body: &[u8]) -> bool {
    let reports = |DirectionOfOne { entries, is_negative_hits }: &DirectionOfOne| {
        *is_negative_hits || entries.iter().any(|entry| entry.key == SETTLE_KEY)
    };
    let direction = Direction::decode(body.get(PREFIX..).unwrap_or_default());
    direction.is_ok_and(|direction| direction.descriptors.iter().any(reports))
}

/// Returns the status of a call with compressed messages.
pub(super) fn compressed() -> Status {
    Status::unimplemented("messages are not accepted with a grpc-encoding: send them uncompressed")
}

/// Writes a message with its prefix.
pub(super) fn message(response: &RateLimitResponse, out: &mut Vec<u8>) {
    out.clear();
    // A message of 4 GiB cannot be made: every part of it has a bound.
    let length = u32::try_from(response.encoded_len()).unwrap_or(u32::MAX);
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    response.encode_raw(out);
}

/// Returns the headers that are the whole answer of a failed call.
pub(super) fn failure(error: CallError) -> Vec<u8> {
    status_block(&error.into(), true)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::wire::RateLimitDescriptor;
    use crate::wire::rate_limit_descriptor::Entry;

    fn body(flag: u8, declared: usize, message: &[u8]) -> Vec<u8> {
        [&[flag], &(declared as u32).to_be_bytes()[..], message].concat()
    }

    #[test]
    fn a_body_is_one_message() {
        let asked = RateLimitRequest { domain: "shop".into(), ..RateLimitRequest::default() };
        let bytes = asked.encode_to_vec();
        assert_eq!(request(&body(0, bytes.len(), &bytes), 100).unwrap(), asked);
        let code = |body: &[u8]| request(body, 100).unwrap_err().code();
        assert_eq!(code(&[]), Code::Internal);
        assert_eq!(code(&body(0, bytes.len() + 1, &bytes)), Code::Internal);
        assert_eq!(code(&body(0, bytes.len() - 1, &bytes)), Code::Unimplemented);
        assert_eq!(code(&body(1, bytes.len(), &bytes)), Code::Internal);
        assert_eq!(code(&body(2, bytes.len(), &bytes)), Code::Internal);
        assert_eq!(code(&body(0, 101, &bytes)), Code::ResourceExhausted);
        assert_eq!(code(&body(0, 1, &[0xff])), Code::Internal);
    }

    #[test]
    fn a_refund_or_a_settle_is_told_without_decoding_it() {
        let descriptor = |(key, is_negative_hits): (&str, bool)| RateLimitDescriptor {
            // An entry that chooses a price may follow.
            entries: ["tenant", key, "model"].map(|key| Entry { key: key.into(), value: " \u{1}".into() }).to_vec(),
            hits_addend: Some(1),
            is_negative_hits,
            ..RateLimitDescriptor::default()
        };
        let user = |is_negative_hits| ("user", is_negative_hits);
        for (given, expected) in [
            (&[][..], false),
            (&[user(false), ("hold", false)], false),
            (&[user(false), user(true)], true),
            (&[user(false), ("settle", false)], true),
        ] {
            let descriptors = given.iter().copied().map(descriptor).collect();
            let request = RateLimitRequest { domain: " \u{1}".into(), descriptors, hits_addend: 1 };
            let bytes = request.encode_to_vec();
            assert_eq!(is_report(&body(0, bytes.len(), &bytes)), expected, "{given:?}");
        }
        assert!(!is_report(&[]) && !is_report(&body(0, 1, &[0xff])));
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let response = RateLimitResponse { overall_code: 2, ..RateLimitResponse::default() };
        let mut out = vec![7; 100];
        message(&response, &mut out);
        assert_eq!(out[..PREFIX], [0, 0, 0, 0, 2]);
        assert_eq!(RateLimitResponse::decode(&out[PREFIX..]).unwrap(), response);
    }
}
