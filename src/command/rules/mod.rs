//! Commands that work on rules files.

pub(crate) mod check;
pub(crate) mod promote;
pub(crate) mod replay;
pub(crate) mod report;
