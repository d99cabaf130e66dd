//! Units of the protocol.

use super::rate_limit_response::rate_limit::Unit as WireUnit;
use crate::engine::descriptor::Unit;

impl WireUnit {
    /// Returns the unit, or `None` for `UNKNOWN`.
    pub fn known(self) -> Option<Unit> {
        Some(match self {
            WireUnit::Unknown => return None,
            WireUnit::Second => Unit::Second,
            WireUnit::Minute => Unit::Minute,
            WireUnit::Hour => Unit::Hour,
            WireUnit::Day => Unit::Day,
            WireUnit::Week => Unit::Week,
            WireUnit::Month => Unit::Month,
            WireUnit::Year => Unit::Year,
        })
    }
}

impl From<Unit> for WireUnit {
    fn from(unit: Unit) -> WireUnit {
        match unit {
            Unit::Second => WireUnit::Second,
            Unit::Minute => WireUnit::Minute,
            Unit::Hour => WireUnit::Hour,
            Unit::Day => WireUnit::Day,
            Unit::Week => WireUnit::Week,
            Unit::Month => WireUnit::Month,
            Unit::Year => WireUnit::Year,
        }
    }
}
