//! Sources of rules: YAML files, or a management server. Each source produces complete snapshots.

pub mod files;
pub mod xds;
