//! What the upstream of a request that passes is told: how much is left of its limits, and whether it is near one.
//! Envoy adds it to the request as headers, and keeps it as dynamic metadata.

use super::headers::header;
use crate::engine::asked::Source;
use crate::engine::decision::{Decision, Limited};
use crate::engine::descriptor::Role;
use crate::engine::rules::options::enforce::Share;
use crate::wire::{RateLimitResponse, details};

/// What the upstream is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The share of a limit beyond which a request is soft, for limits that set none; `None` tells nothing of them.
    pub soft: Option<Share>,
    /// Name of the header with the hits that are left.
    pub remaining_header: String,
    /// Name of the header that says whether the request is soft.
    pub soft_header: String,
}

impl Default for Upstream {
    /// Returns the defaults of the settings.
    fn default() -> Self {
        let [remaining_header, soft_header] = ["x-tollgate-remaining", "x-tollgate-soft"].map(str::to_owned);
        Upstream { soft: None, remaining_header, soft_header }
    }
}

/// A limit that the upstream is told of.
struct Told<'d> {
    rule: &'d str,
    remaining: u64,
    is_soft: bool,
}

/// Adds what the upstream is told to the answer to a request that passes.
pub(super) fn add(response: &mut RateLimitResponse, decision: &Decision<'_>, upstream: &Upstream) {
    let mut least: Option<Told<'_>> = None;
    let mut is_soft = false;
    for told in decision.limits.iter().filter_map(|limited| told(limited, upstream)) {
        is_soft |= told.is_soft;
        if least.as_ref().is_none_or(|least| told.remaining < least.remaining) {
            least = Some(told);
        }
    }
    let Some(Told { rule, remaining, .. }) = least else { return };
    response.request_headers_to_add = vec![
        header(&upstream.remaining_header, remaining.to_string()),
        header(&upstream.soft_header, is_soft.to_string()),
    ];
    details::tell_upstream(response.dynamic_metadata.get_or_insert_default(), (rule, remaining, is_soft));
}

/// Returns what the upstream is told of a limit: nothing of one in shadow mode, or whose count is unknown.
fn told<'d>(limited: &'d Limited<'_>, upstream: &Upstream) -> Option<Told<'d>> {
    let own = match limited.asked.source {
        Source::Rule(_, limit) => limit.config.options.soft,
        Source::Override(_) => None,
    };
    let share = own.or(upstream.soft).filter(|_| limited.role() != Role::Shadow)?;
    let (remaining, capacity) = (limited.remaining()?, limited.capacity());
    let is_soft = share.is_exceeded(capacity.saturating_sub(remaining), capacity);
    Some(Told { rule: limited.asked.source.label(), remaining, is_soft })
}
