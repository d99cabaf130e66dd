//! Commands that ask a running service through its HTTP port.

pub(crate) mod admin_port;
pub(crate) mod bans;
pub(crate) mod candidates;
pub(crate) mod instances;
mod terminal;
pub(crate) mod top;
