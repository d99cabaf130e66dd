//! The body of a denial, which Envoy sends in place of an empty one.

use super::headers::header;
use crate::engine::asked::Source;
use crate::engine::decision::Decision;
use crate::engine::denial;
use crate::engine::denied_body::DeniedBody;
use crate::engine::rules::Rules;
use crate::wire::RateLimitResponse;

/// Adds the body to the answer to a request that is denied, with its content type. If a request passed, Envoy would put
/// the content type on the response of the service.
pub(super) fn add<'a>(response: &mut RateLimitResponse, decision: &Decision<'a>, (rules, domain): (&'a Rules, &str)) {
    let Some(body) = of(decision, (rules, domain)) else { return };
    response.response_headers_to_add.push(header("content-type", body.content_type().to_owned()));
    response.raw_body = body.render(&denial::of(domain, decision)).into_bytes();
}

/// Returns the body of the limit that is reported to the client, or that of the domain if no limit denies the request.
fn of<'a>(decision: &Decision<'a>, (rules, domain): (&'a Rules, &str)) -> Option<&'a DeniedBody> {
    let of_domain = || rules.domain(domain).and_then(|domain| domain.defaults.denied_body.as_deref());
    match decision.reported().filter(|limited| limited.shown_over()).map(|limited| limited.asked.source) {
        Some(Source::Rule(_, limit)) => limit.config.options.denied_body.as_deref(),
        Some(Source::Override(domain)) => domain.defaults.denied_body.as_deref(),
        None => of_domain(),
    }
}
