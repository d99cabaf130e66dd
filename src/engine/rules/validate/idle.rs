//! Finds descriptors that have no effect.

use std::collections::HashSet;

use crate::rules::checked::DescriptorConfig;
use crate::rules::report::Position;

/// Whether a level may have descriptors that are not in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// Other files of the domain may add some.
    Possible,
}

/// Returns the descriptors of a level that have no effect: those in `empty`, which have neither a limit nor descriptors
/// below them, unless they are exemptions. `empty` holds indexes and positions.
///
/// A descriptor that takes precedence over another of its level exempts requests from it, as in `envoyproxy/ratelimit`:
/// `value: health` without a limit next to the same key without a value.
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
        // A key without a value or wildcard has the lowest precedence.
        let is_last = value.is_none() && !key.contains('*');
        !is_last && (any_key || key.contains('*') || broad.contains(key))
    };
    empty.iter().filter(|(index, _)| !exempts(&configs[*index])).copied().collect()
}
