//! The faults.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::system::System;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing happens.
    None,
    /// An instance is killed, and started again after two seconds.
    InstanceKilled,
    /// An instance stops for two seconds.
    InstanceStopped,
    /// An instance with a seat stops for twenty seconds, longer than it may use the seat, for which a third one waits.
    InstanceStoppedLong,
    /// Each instance is ended and started again, one after the other.
    RollingRestart,
    /// The files of rules get one more rule.
    RulesChanged,
    /// The rules get other numbers and shares, and then those from before.
    NumberChanged,
    /// A third and a fourth instance start, and half of the callers are led to them. In memory, a second and a third.
    ScaledOut,
    /// The store is killed, and started again after a second; it has no persistence. Of several, a master.
    StoreKilled,
    /// The same with a store that writes each command to its disk.
    StoreKilledPersistent,
    /// The store stops for half a second.
    StoreStoppedShortly,
    /// The store stops for two seconds.
    StoreStopped,
    /// The store stops for ten seconds.
    StoreStoppedLong,
    /// For two seconds the store does what it is asked, and its replies are lost.
    RepliesLost,
    /// For two seconds each reply of the store comes 300 ms late.
    RepliesLate,
    /// For two seconds connections to the store are open, and nothing passes.
    HalfOpen,
    /// For two seconds one instance does not reach the store.
    OneWithoutStore,
    /// For twenty seconds an instance with a seat does not reach the store, and a third one waits for the seat.
    OneWithoutStoreLong,
    /// The store forgets its scripts.
    ScriptsFlushed,
    /// For two seconds others fill the store, and it evicts the keys that were used least recently.
    StoreEvicts,
    /// The same with a store that refuses writes when it is full.
    StoreFull,
    /// The clock of the store steps forward by five seconds.
    ClockForward,
    /// It steps back by five seconds.
    ClockBack,
    /// It steps forward by more than a period.
    ClockForwardLong,
    /// It steps back by more than a period.
    ClockBackLong,
    /// An operator has a replica take over from its master.
    FailoverPlanned,
    /// The same, and the other replica cannot follow the new master: the failover ends late.
    FailoverStuck,
    /// The master is killed until a second after a replica has taken over; it has no persistence.
    MasterKilled,
    /// The master stops until a second after a replica has taken over, and then goes on as a master.
    MasterStopped,
    /// The master is cut off from the other nodes. Of Sentinels and instances, one each is on its side.
    Split,
    /// The same, and the master writes only while a replica follows it.
    SplitBounded,
    /// 2,000 slots move to another master.
    SlotsMoved,
    /// A master is added, and 2,000 slots move to it.
    MasterAdded,
    /// All slots of a master move to another, and it is removed.
    MasterRemoved,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 34] = [
        Fault::None,
        Fault::InstanceKilled,
        Fault::InstanceStopped,
        Fault::InstanceStoppedLong,
        Fault::RollingRestart,
        Fault::RulesChanged,
        Fault::NumberChanged,
        Fault::ScaledOut,
        Fault::StoreKilled,
        Fault::StoreKilledPersistent,
        Fault::StoreStoppedShortly,
        Fault::StoreStopped,
        Fault::StoreStoppedLong,
        Fault::RepliesLost,
        Fault::RepliesLate,
        Fault::HalfOpen,
        Fault::OneWithoutStore,
        Fault::OneWithoutStoreLong,
        Fault::ScriptsFlushed,
        Fault::StoreEvicts,
        Fault::StoreFull,
        Fault::ClockForward,
        Fault::ClockBack,
        Fault::ClockForwardLong,
        Fault::ClockBackLong,
        Fault::FailoverPlanned,
        Fault::FailoverStuck,
        Fault::MasterKilled,
        Fault::MasterStopped,
        Fault::Split,
        Fault::SplitBounded,
        Fault::SlotsMoved,
        Fault::MasterAdded,
        Fault::MasterRemoved,
    ];

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::InstanceKilled => "an instance is killed for 2 s",
            Fault::InstanceStopped => "an instance stops for 2 s",
            Fault::InstanceStoppedLong => "an instance stops for 20 s, and a third has no seat",
            Fault::RollingRestart => "all instances restart in turn",
            Fault::RulesChanged => "a rule is added to the rules",
            Fault::NumberChanged => "numbers and shares change, and change back",
            Fault::ScaledOut => "two instances are added, and half of the callers are led to them",
            Fault::StoreKilled => "the store is killed for 1 s, without persistence",
            Fault::StoreKilledPersistent => "the same, with persistence",
            Fault::StoreStoppedShortly => "the store stops for 0.5 s",
            Fault::StoreStopped => "the store stops for 2 s",
            Fault::StoreStoppedLong => "the store stops for 10 s",
            Fault::RepliesLost => "replies of the store are lost for 2 s",
            Fault::RepliesLate => "replies come 300 ms late for 2 s",
            Fault::HalfOpen => "connections to the store are half open for 2 s",
            Fault::OneWithoutStore => "one instance does not reach the store for 2 s",
            Fault::OneWithoutStoreLong => "one instance does not reach the store for 20 s, and a third has no seat",
            Fault::ScriptsFlushed => "the store forgets its scripts",
            Fault::StoreEvicts => "the store is full and evicts keys for 2 s (allkeys-lru)",
            Fault::StoreFull => "the store is full and refuses writes for 2 s (noeviction)",
            Fault::ClockForward => "the store's clock steps forward by 5 s",
            Fault::ClockBack => "the store's clock steps back by 5 s",
            Fault::ClockForwardLong => "the store's clock steps forward by 90 s",
            Fault::ClockBackLong => "the store's clock steps back by 90 s",
            Fault::FailoverPlanned => "a planned failover",
            Fault::FailoverStuck => "the same, and the second replica cannot follow the new master",
            Fault::MasterKilled => "the master is killed until it is replaced, and comes back empty",
            Fault::MasterStopped => "the master stops until it is replaced, and goes on",
            Fault::Split => "the master is cut off from the other nodes",
            Fault::SplitBounded => "the same with min-replicas-to-write 1",
            Fault::SlotsMoved => "2,000 slots move to another master",
            Fault::MasterAdded => "a master is added and given 2,000 slots",
            Fault::MasterRemoved => "a master's slots are moved away, and it is removed",
        }
    }

    /// Whether the store keeps what it is told.
    pub fn is_persistent(self) -> bool {
        self == Fault::StoreKilledPersistent
    }

    /// Whether the store's clock steps.
    pub fn steps_clock(self) -> bool {
        matches!(self, Fault::ClockForward | Fault::ClockBack | Fault::ClockForwardLong | Fault::ClockBackLong)
    }

    /// Whether it cuts nodes off from each other.
    pub fn cuts_off(self) -> bool {
        matches!(self, Fault::Split | Fault::SplitBounded)
    }

    /// Whether an instance is without its seat for so long that a third one takes it.
    pub fn loses_seat(self) -> bool {
        matches!(self, Fault::InstanceStoppedLong | Fault::OneWithoutStoreLong)
    }

    /// Whether it can happen to a system whose limits have shares.
    fn happens_to_shares(self, has_sentinels: bool) -> bool {
        match self {
            Fault::None => true,
            Fault::FailoverPlanned | Fault::MasterKilled | Fault::MasterStopped | Fault::Split => has_sentinels,
            Fault::InstanceKilled
            | Fault::InstanceStopped
            | Fault::InstanceStoppedLong
            | Fault::RollingRestart
            | Fault::RulesChanged
            | Fault::NumberChanged
            | Fault::ScaledOut
            | Fault::StoreKilled
            | Fault::StoreStoppedLong
            | Fault::RepliesLost
            | Fault::OneWithoutStore
            | Fault::OneWithoutStoreLong => !has_sentinels,
            _ => false,
        }
    }

    /// Whether it can happen to a system.
    pub fn happens_to(self, system: System) -> bool {
        if system.has_shares() {
            return self.happens_to_shares(system.has_sentinels());
        }
        let has_one_store = matches!(system, System::TollgateRedis | System::Ratelimit);
        let is_cluster = system == System::TollgateCluster;
        let has_master = is_cluster || system.has_sentinels();
        match self {
            Fault::None => true,
            Fault::InstanceKilled => !system.has_sentinels(),
            Fault::InstanceStoppedLong | Fault::OneWithoutStoreLong | Fault::NumberChanged => false,
            Fault::InstanceStopped | Fault::RollingRestart => {
                !system.has_sentinels() && system != System::TollgateLocal
            }
            Fault::RulesChanged => has_one_store || is_cluster || system == System::TollgateMemory,
            Fault::ScaledOut => !system.has_sentinels(),
            Fault::RepliesLost | Fault::RepliesLate | Fault::HalfOpen | Fault::OneWithoutStore => has_one_store,
            Fault::StoreEvicts | Fault::StoreFull => has_one_store,
            Fault::StoreKilled => has_one_store || has_master,
            Fault::FailoverPlanned | Fault::MasterKilled | Fault::MasterStopped | Fault::Split => has_master,
            Fault::FailoverStuck | Fault::SplitBounded => system.has_sentinels(),
            Fault::SlotsMoved | Fault::MasterAdded | Fault::MasterRemoved => is_cluster,
            _ if self.steps_clock() => has_one_store,
            _ => has_one_store || is_cluster,
        }
    }

    /// How long it lasts at least.
    pub fn lasts(self) -> Duration {
        Duration::from_millis(match self {
            Fault::None | Fault::ScriptsFlushed => 0,
            _ if self.steps_clock() => 0,
            Fault::StoreStoppedShortly => 500,
            Fault::StoreKilled | Fault::StoreKilledPersistent => 1_000,
            Fault::FailoverPlanned => 4_000,
            Fault::SlotsMoved | Fault::RollingRestart => 6_000,
            Fault::MasterKilled | Fault::MasterStopped | Fault::MasterAdded | Fault::StoreStoppedLong => 10_000,
            Fault::FailoverStuck | Fault::Split | Fault::SplitBounded | Fault::NumberChanged => 12_000,
            Fault::MasterRemoved => 15_000,
            // A third takes the seat after up to thirteen seconds, and uses it a period later.
            Fault::InstanceStoppedLong | Fault::OneWithoutStoreLong => 20_000,
            _ => 2_000,
        })
    }

    /// For how long a system is asked after it.
    pub fn watched(self, system: System) -> Duration {
        // Whether hits leave the window too early, or too late, shows only when they leave it.
        let shows_late = matches!(self, Fault::ClockForward | Fault::ClockBack) && system == System::TollgateRedis;
        // The seat of an instance that was killed is free eleven seconds later.
        let others = if system.has_shares() { 16 } else { 6 };
        Duration::from_secs(if shows_late { 72 } else { others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_are_listed_once_and_happen_to_a_system() {
        for fault in Fault::value_variants() {
            assert_eq!(Fault::ALL.iter().filter(|one| *one == fault).count(), 1, "{fault:?}");
            assert!(System::ALL.into_iter().any(|system| fault.happens_to(system)), "{fault:?}");
        }
    }
}
