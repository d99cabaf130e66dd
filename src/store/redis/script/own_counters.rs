//! Tollgate's own counters, for testing a node. No request's counter has such a name, because no domain is empty.

use std::io;
use std::time::Duration;

use super::{Group, Slots, slot};
use crate::engine::algorithm::{Algorithm, Ask, Limit, Options};
use crate::engine::check::{Check, Key, Origin};
use crate::store::redis::doctor::StartError;

/// Tollgate's own counters on one node.
pub(crate) struct OwnCounters {
    /// The slot of the counters, or `None` without a cluster.
    pub(crate) slot: Option<u16>,
    /// A check that takes one hit. It writes, which reveals a Redis that takes no writes. Its limit is never reached.
    pub(crate) check: Group,
    /// The prefix of the names of the other counters.
    pub(crate) prefix: String,
}

impl OwnCounters {
    /// Returns counters with this prefix, in this slot.
    ///
    /// # Errors
    /// Never, as long as such a limit is valid.
    pub(crate) fn new(key_prefix: &str, slot: Option<u16>) -> Result<OwnCounters, StartError> {
        let limit = Limit::new(Algorithm::FixedWindow, u32::MAX.into(), Duration::from_secs(1), Options::default());
        let limit = limit.map_err(|error| StartError::new(io::Error::other(error.to_string())))?;
        let key = Key::new(key_prefix, "", &slot::entries_in(slot), |_| None, &limit, Origin::Rule);
        let prefix = key.as_str().split_inclusive('}').next().unwrap_or_default().to_owned();
        let check = Group::new(&[Check::new(key, limit, Ask::Take(1))]);
        Ok(OwnCounters { slot, check: check.within(slot.map_or(Slots::None, Slots::One)), prefix })
    }
}
