//! Version of this binary.

/// The version, by the rules of docs/compatibility.md.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that it is built from, or a text that says why it is unknown; see build.rs.
pub const COMMIT: &str = env!("TOLLGATE_COMMIT");

/// The text of `tollgate --version` after the name. It includes the target, as a bug may affect only one.
pub const IN_FULL: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("TOLLGATE_COMMIT"), ", ", env!("TOLLGATE_TARGET"), ")");
