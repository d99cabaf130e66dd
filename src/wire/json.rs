//! Envoy's messages as JSON, in the mapping that Protocol Buffers define. `prost-reflect` converts them by the
//! descriptors that gRPC reflection needs anyway, so the message types of calls need no JSON code.

use prost_reflect::prost::Message;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Deserializer, Serializer};

use super::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};

/// Converts requests and answers from and to JSON.
#[derive(Clone, Debug)]
pub struct Mapping {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

/// An error in the message descriptors.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The descriptors created by the build cannot be read.
    #[error("the descriptors of the messages cannot be read")]
    Descriptors(#[from] DescriptorError),
    /// The descriptors have no message of this name.
    #[error("no message is called {0}")]
    NoMessage(&'static str),
}

/// An error in converting from or to JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON, or does not fit the message.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The message does not fit its descriptor.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}

impl Mapping {
    /// Creates the mapping of the service's messages.
    ///
    /// # Errors
    /// If the descriptors do not contain the messages.
    pub fn new() -> Result<Mapping, MappingError> {
        let pool = DescriptorPool::decode(DESCRIPTORS)?;
        let message = |name| pool.get_message_by_name(name).ok_or(MappingError::NoMessage(name));
        Ok(Mapping {
            request: message("envoy.service.ratelimit.v3.RateLimitRequest")?,
            response: message("envoy.service.ratelimit.v3.RateLimitResponse")?,
        })
    }

    /// Parses a request. Field names may be `hitsAddend` or `hits_addend`, 64-bit numbers may be in quotes, and enum
    /// values may be names or numbers.
    ///
    /// # Errors
    /// If the text is not JSON, or has an unknown field or an invalid value.
    pub fn request(&self, text: &[u8]) -> Result<RateLimitRequest, JsonError> {
        let mut json = Deserializer::from_slice(text);
        let message = DynamicMessage::deserialize(self.request.clone(), &mut json)?;
        json.end()?;
        Ok(message.transcode_to()?)
    }

    /// Writes an answer as JSON, without fields that are zero or empty.
    ///
    /// # Errors
    /// If the answer does not fit its descriptor.
    pub fn response(&self, response: &RateLimitResponse) -> Result<Vec<u8>, JsonError> {
        let message = DynamicMessage::decode(self.response.clone(), &*response.encode_to_vec())?;
        let mut text = Vec::new();
        serde::Serialize::serialize(&message, &mut Serializer::new(&mut text))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration, Struct, Value};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::wire::rate_limit_descriptor::{Entry, RateLimitOverride};
    use crate::wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
    use crate::wire::{HeaderValue, RateLimitDescriptor};

    fn read(json: Json) -> Result<RateLimitRequest, String> {
        Mapping::new().unwrap().request(json.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_is_read_in_both_spellings_with_enums_by_name_or_number_and_long_numbers_in_quotes() {
        let entries = json!([{"key": "user", "value": "ann"}]);
        let snake = json!({
            "domain": "shop",
            "hits_addend": 2,
            "descriptors": [{
                "entries": entries,
                "hits_addend": "3",
                "is_negative_hits": true,
                "limit": {"requests_per_unit": 5, "unit": "MINUTE", "unit_multiplier": 2},
            }],
        });
        let camel = json!({
            "domain": "shop",
            "hitsAddend": "2",
            "descriptors": [{
                "entries": entries,
                "hitsAddend": 3,
                "isNegativeHits": true,
                "limit": {"requestsPerUnit": 5, "unit": 2, "unitMultiplier": 2},
            }],
        });
        let entry = Entry { key: "user".into(), value: "ann".into() };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            hits_addend: Some(3),
            is_negative_hits: true,
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: 2, unit_multiplier: Some(2) }),
        };
        let request = RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 2 };
        assert_eq!(read(snake), Ok(request.clone()));
        assert_eq!(read(camel), Ok(request));
    }

    #[test]
    fn what_the_message_has_not_is_refused() {
        for (json, word) in [
            (json!({"domain": "shop", "descriptor": []}), "descriptor"),
            (json!({"domain": 5}), "string"),
            (json!({"hitsAddend": -1}), "out of range"),
            (json!({"hitsAddend": 4_294_967_296_u64}), "out of range"),
            (json!({"descriptors": [{"limit": {"unit": "MINUET"}}]}), "MINUET"),
            (json!([]), "map"),
        ] {
            let told = read(json.clone()).unwrap_err();
            assert!(told.contains(word), "{json}: {told}");
        }
        let mapping = Mapping::new().unwrap();
        for text in ["", "{", "{} {}", "\u{feff}{}"] {
            assert!(mapping.request(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(mapping.request(&[b'"', 0xff, b'"']).is_err());
        assert!(mapping.request("[".repeat(100_000).as_bytes()).is_err(), "it is no way into the stack");
    }

    #[test]
    fn an_answer_is_written_without_what_is_zero() {
        let limit = RateLimit { requests_per_unit: 5, unit: 2, name: "per-user".into(), unit_multiplier: None };
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(limit),
            limit_remaining: 0,
            duration_until_reset: Some(Duration { seconds: 30, nanos: 0 }),
            quota: None,
        };
        let header = HeaderValue { key: "RateLimit-Limit".into(), value: "5".into(), raw_value: Vec::new() };
        let metadata = Struct { fields: [("domain".to_owned(), Value::from("shop".to_owned()))].into() };
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status, DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }],
            response_headers_to_add: vec![header],
            dynamic_metadata: Some(metadata),
            ..RateLimitResponse::default()
        };
        let text = Mapping::new().unwrap().response(&response).unwrap();
        assert_eq!(
            serde_json::from_slice::<Json>(&text).unwrap(),
            json!({
                "overallCode": "OVER_LIMIT",
                "statuses": [
                    {
                        "code": "OVER_LIMIT",
                        "currentLimit": {"requestsPerUnit": 5, "unit": "MINUTE", "name": "per-user"},
                        "durationUntilReset": "30s",
                    },
                    {"code": "OK"},
                ],
                "responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "5"}],
                "dynamicMetadata": {"domain": "shop"},
            })
        );
    }
}
