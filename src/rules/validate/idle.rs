//! Descriptors that change nothing.

use std::collections::HashSet;

use crate::rules::checked::DescriptorConfig;
use crate::rules::report::Position;

/// What may stand on a level that is not in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// Other files of the domain add to it.
    Possible,
}

/// Those of a level that have neither a limit nor descriptors below them, and are no exemption: without them, too,
/// what they match would have no limit. `empty` are those that have neither, and where these stand.
///
/// One that matches before another of its level is an exemption from that one, as in `envoyproxy/ratelimit`: `value:
/// health` without a limit beside the same key without a value.
pub(super) fn idle(
    configs: &[DescriptorConfig],
    empty: &[(usize, Option<Position>)],
    others: Others,
) -> Vec<(usize, Option<Position>)> {
    let (mut broad, mut any_key) = (HashSet::new(), others == Others::Possible);
    for config in configs.iter().filter(|config| !config.is_empty()) {
        any_key |= config.key.contains('*');
        if config.value.as_ref().is_none_or(|value| value.contains('*')) {
            broad.insert(&config.key);
        }
    }
    let exempts = |DescriptorConfig { key, value, .. }: &DescriptorConfig| {
        // A key alone is what comes last.
        let is_last = value.is_none() && !key.contains('*');
        !is_last && (any_key || key.contains('*') || broad.contains(key))
    };
    empty.iter().filter(|(index, _)| !exempts(&configs[*index])).copied().collect()
}
