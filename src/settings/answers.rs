//! Settings of answers: headers and metadata, and the count of hits near the limit.

use clap::{ArgAction, Args};

use super::tolerated::share_or_nearest;
use super::{SettingsError, named, switch};
use crate::engine::rules::options::enforce::Share;
use crate::grpc::HeaderFormat;

/// Settings of answers: headers and metadata, and the count of hits near the limit.
#[derive(Args, Clone, Debug)]
pub struct AnswerSettings {
    /// Send response headers that describe a client's limit.
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED",
        help_heading = "Answers", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub limit_response_headers_enabled: bool,

    /// Format of the response headers: separate sends a header for each number, ietf the two structured fields of the
    /// IETF draft.
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_FORMAT", value_name = "FORMAT", default_value = "separate",
        help_heading = "Answers", value_parser = named(&HeaderFormat::ALL, HeaderFormat::name))]
    pub limit_response_headers_format: HeaderFormat,

    /// Name the counter in the fields of the IETF draft, as a hash of its name (pk). Two clients with the same value
    /// share the limit.
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_PARTITION_KEY",
        help_heading = "Answers", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub limit_response_headers_partition_key: bool,

    /// Name of the header for the limit.
    #[arg(
        long,
        env = "LIMIT_LIMIT_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Limit",
        help_heading = "Answers"
    )]
    pub limit_limit_header: String,

    /// Name of the header for the remaining hits.
    #[arg(
        long,
        env = "LIMIT_REMAINING_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Remaining",
        help_heading = "Answers"
    )]
    pub limit_remaining_header: String,

    /// Name of the header for the seconds until the limit is fully available again.
    #[arg(
        long,
        env = "LIMIT_RESET_HEADER",
        value_name = "NAME",
        default_value = "RateLimit-Reset",
        help_heading = "Answers"
    )]
    pub limit_reset_header: String,

    /// Name of a header that says what decided a request: store, known_denial, failure_mode_open, failure_mode_closed,
    /// failure_mode_local, not_refunded, adjustment, unknown_domain, unknown_descriptor or missing_entry. Unset: no
    /// such header.
    #[arg(long, env = "LIMIT_DECIDED_BY_HEADER", value_name = "NAME", help_heading = "Answers")]
    pub limit_decided_by_header: Option<String>,

    /// Send dynamic metadata: the request's descriptors, which of them pass, and the metadata of the rules of those.
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA",
        help_heading = "Answers", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub response_dynamic_metadata: bool,

    /// Tell the upstream of each request that passes how much is left of its limits, and whether it is near one: as
    /// headers that Envoy adds to the request, and as dynamic metadata. If off, only limits with `soft` do that.
    #[arg(long, env = "UPSTREAM_HEADERS_ENABLED",
        help_heading = "Answers", value_parser = switch(), ignore_case = true,
        action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub upstream_headers_enabled: bool,

    /// Name of the request header with the least number of hits that are left.
    #[arg(
        long,
        env = "UPSTREAM_REMAINING_HEADER",
        value_name = "NAME",
        default_value = "x-tollgate-remaining",
        help_heading = "Answers"
    )]
    pub upstream_remaining_header: String,

    /// Name of the request header that is true if the request is near a limit, and false otherwise.
    #[arg(
        long,
        env = "UPSTREAM_SOFT_HEADER",
        value_name = "NAME",
        default_value = "x-tollgate-soft",
        help_heading = "Answers"
    )]
    pub upstream_soft_header: String,

    /// Share of a limit beyond which the upstream is told that a request is near it, for limits that set no `soft`.
    #[arg(long, env = "SOFT_LIMIT", value_name = "PERCENTAGE", default_value = "80%", help_heading = "Answers",
        value_parser = soft_limit)]
    pub soft_limit: Share,

    /// Share of a limit, from 0 to 1, beyond which a hit counts as near the limit in the metrics.
    #[arg(long, env = "NEAR_LIMIT_RATIO", value_name = "SHARE", default_value = "0.8", help_heading = "Answers",
        value_parser = share_or_nearest)]
    pub near_limit_ratio: f64,
}

fn soft_limit(text: &str) -> Result<Share, String> {
    Share::parse(text).ok_or_else(|| "write a percentage with its sign, from 0.01% to 100%, such as 80%".to_owned())
}

impl AnswerSettings {
    /// Returns an error for each header name that HTTP does not allow.
    pub fn wrong_headers(&self) -> impl Iterator<Item = SettingsError> {
        let names = [
            ("LIMIT_LIMIT_HEADER", &self.limit_limit_header),
            ("LIMIT_REMAINING_HEADER", &self.limit_remaining_header),
            ("LIMIT_RESET_HEADER", &self.limit_reset_header),
            ("UPSTREAM_REMAINING_HEADER", &self.upstream_remaining_header),
            ("UPSTREAM_SOFT_HEADER", &self.upstream_soft_header),
        ];
        let decided_by = self.limit_decided_by_header.as_ref();
        let names = names.into_iter().chain(decided_by.map(|name| ("LIMIT_DECIDED_BY_HEADER", name)));
        let is_wrong = |name: &str| axum::http::HeaderName::try_from(name).is_err();
        names.filter(move |(_, name)| is_wrong(name)).map(|(setting, _)| SettingsError::HeaderName(setting))
    }
}
