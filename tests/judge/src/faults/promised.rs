//! What the pages of Tollgate promise for a fault.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::shares::Numbers;
use super::system::System;
use crate::history::Promise;

/// Returns why hits over the limit are what Tollgate's pages say of a fault. `None`: they promise that there are none.
/// Of other systems nothing is known.
pub fn excess(fault: Fault, system: System) -> Option<&'static str> {
    let is_in_memory = matches!(system, System::TollgateMemory | System::TollgateLocal);
    let is_durable = system == System::TollgateSentinelDurable;
    match fault {
        Fault::InstanceKilled | Fault::RollingRestart if is_in_memory => {
            Some("counters in memory end with their process")
        }
        Fault::NumberChanged => Some("while rules change, no more passes than the larger of the two numbers allows"),
        Fault::ScaledOut if system == System::TollgateMemory => Some("instances without Redis count alone"),
        Fault::ScaledOut if system == System::TollgateLocal => {
            Some("each instance has the limit's number divided by `EXPECTED_REPLICAS`, which is 2, and there are four")
        }
        // Those of shares last for a second, and no longer than the store was away.
        Fault::StoreKilled | Fault::MasterKilled if system.has_shares() => None,
        Fault::StoreKilled => {
            Some("a Redis without persistence has lost all counters when it is back, and its replicas copy that")
        }
        Fault::StoreEvicts => Some("a counter that Redis evicts starts again from zero"),
        Fault::ClockForward | Fault::ClockForwardLong => Some("hits leave their window earlier by the step"),
        Fault::FailoverPlanned | Fault::FailoverStuck if system.has_sentinels() && !is_durable => {
            Some("the old master decides until a Sentinel names the new one, and Redis loses those hits")
        }
        Fault::MasterKilled | Fault::MasterStopped if !is_durable => {
            Some("hits that the replica had not received are admitted again")
        }
        Fault::Split | Fault::SplitBounded if !is_durable => {
            Some("both sides decide, for as long as the master that is cut off accepts writes")
        }
        _ => None,
    }
}

/// Returns what limits with shares promise while a fault happens, if that is not what they always do.
pub fn meanwhile(fault: Fault, system: System) -> Option<BTreeMap<String, Promise>> {
    match fault {
        _ if !system.has_shares() => None,
        Fault::NumberChanged => Some(Numbers::CHANGED.promises_between(&Numbers::BEFORE)),
        Fault::FailoverPlanned | Fault::MasterStopped | Fault::Split => Some(Numbers::BEFORE.promises_of_two_masters()),
        _ => None,
    }
}

/// Whether the pages of Tollgate are about a system.
pub fn is_of_tollgate(system: System) -> bool {
    !matches!(system, System::Ratelimit | System::Gubernator)
}
