//! Counters of our own, by which a node is tried: no request's counter has such a name, because no domain is empty.

use std::io;
use std::time::Duration;

use super::StartError;
use super::script::{Group, Slots};
use super::slot;
use crate::algorithm::{Algorithm, Ask, Limit, Options};
use crate::store::{Check, Key, Origin};

/// Those of one node.
pub(super) struct Own {
    /// In which slot they lie; `None`: it is no cluster.
    pub(super) slot: Option<u16>,
    /// Takes one hit. It writes, so that a Redis that takes no writes is seen, and nobody comes near its limit.
    pub(super) check: Group,
    /// What the names of the others begin with.
    pub(super) prefix: String,
}

impl Own {
    /// Their names have this prefix, and lie in this slot.
    ///
    /// # Errors
    /// Never, as long as such a limit may be made.
    pub(super) fn new(key_prefix: &str, slot: Option<u16>) -> Result<Own, StartError> {
        let limit = Limit::new(Algorithm::FixedWindow, u32::MAX, Duration::from_secs(1), Options::default());
        let limit = limit.map_err(|error| StartError::new(io::Error::other(error.to_string())))?;
        let key = Key::new(key_prefix, "", &slot::entries_in(slot), |_| None, &limit, Origin::Rule);
        let prefix = key.as_str().split_inclusive('}').next().unwrap_or_default().to_owned();
        let check = Group::new(&[Check::new(key, limit, Ask::Take(1))]);
        Ok(Own { slot, check: check.within(slot.map_or(Slots::None, Slots::One)), prefix })
    }
}
