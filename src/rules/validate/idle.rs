//! Descriptors that change nothing.

use std::collections::HashSet;

use crate::rules::config::{Raw, RawDescriptor};

/// What may stand on a level that is not in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// Other files of the domain add to it.
    Possible,
}

/// Those of a level that have neither a limit nor descriptors below them, and are no exemption: without them, too,
/// what they match would have no limit.
///
/// One that matches before another of its level is an exemption from that one, as in `envoyproxy/ratelimit`: `value:
/// health` without a limit beside the same key without a value.
pub(super) fn idle(list: &[Raw<RawDescriptor<'_>>], others: Others) -> Vec<usize> {
    let empty =
        list.iter().enumerate().filter_map(|(index, raw)| Some((index, raw.get().filter(|raw| is_empty(raw))?)));
    let empty: Vec<_> = empty.collect();
    if empty.is_empty() {
        return Vec::new();
    }
    let (mut broad, mut any_key) = (HashSet::new(), others == Others::Possible);
    for raw in list.iter().filter_map(Raw::get).filter(|raw| !is_empty(raw)) {
        let key = text(&raw.key);
        any_key |= key.contains('*');
        if text(&raw.value).is_empty() || text(&raw.value).contains('*') {
            broad.insert(key);
        }
    }
    let exempts = |raw: &RawDescriptor<'_>| {
        let (key, value) = (text(&raw.key), text(&raw.value));
        // A key alone is what comes last.
        let is_last = value.is_empty() && !key.contains('*');
        !is_last && (any_key || key.contains('*') || broad.contains(key))
    };
    empty.into_iter().filter(|(_, raw)| !exempts(raw)).map(|(index, _)| index).collect()
}

fn is_empty(raw: &RawDescriptor<'_>) -> bool {
    let no_descriptors = match &raw.descriptors {
        Raw::Missing => true,
        Raw::Unreadable => false,
        Raw::Given(list) => list.is_empty(),
    };
    raw.rate_limit.is_missing() && raw.rate_limits.is_missing() && no_descriptors
}

fn text<'v>(raw: &'v Raw<std::borrow::Cow<'_, str>>) -> &'v str {
    raw.get().map_or("", |text| text)
}
