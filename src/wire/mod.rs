//! The messages of Envoy's protocol, generated from `proto/` by examples/wire.rs.

#![expect(missing_docs, reason = "the .proto files document the messages")]
#![expect(clippy::doc_markdown, reason = "generated")]

pub mod codec;
pub mod details;
pub mod json;
mod request;
mod unit;

include!("../../proto/generated/wire.rs");

pub use self::ratelimit::config::ratelimit::v3 as ratelimit_config;
pub use envoy::config::core::v3::{HeaderValue, Node, node};
pub use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use envoy::service::discovery::v3 as discovery;
pub use envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use envoy::service::ratelimit::v3::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
pub use envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response};
pub use google::rpc::Status;
pub use request::RateLimitRequest;

/// The messages within a [`RateLimitDescriptor`].
pub mod rate_limit_descriptor {
    pub use super::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
    pub use super::request::Entry;
}

/// The descriptors of the served protocol, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("../../proto/generated/descriptors.bin");
