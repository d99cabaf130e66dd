//! What this binary is.

/// The version by the rules of docs/compatibility.md.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that it is built from, or in words why that is unknown; see build.rs.
pub const COMMIT: &str = env!("TOLLGATE_COMMIT");

/// All that `tollgate --version` prints behind the name: the target, too, because a bug may be of one alone.
pub const IN_FULL: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("TOLLGATE_COMMIT"), ", ", env!("TOLLGATE_TARGET"), ")");
