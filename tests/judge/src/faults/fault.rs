//! Faults: each begins and ends, and leaves nothing behind.

use std::time::Duration;

use clap::ValueEnum;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::proxy::Mode;
use super::system::{Programs, Running, System, redis_command};

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
    /// Each instance is ended and started again, one after the other.
    RollingRestart,
    /// The store is killed, and started again after a second; it has no persistence. Of a cluster, a master.
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
    /// The store forgets its scripts.
    ScriptsFlushed,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 14] = [
        Fault::None,
        Fault::InstanceKilled,
        Fault::InstanceStopped,
        Fault::RollingRestart,
        Fault::StoreKilled,
        Fault::StoreKilledPersistent,
        Fault::StoreStoppedShortly,
        Fault::StoreStopped,
        Fault::StoreStoppedLong,
        Fault::RepliesLost,
        Fault::RepliesLate,
        Fault::HalfOpen,
        Fault::OneWithoutStore,
        Fault::ScriptsFlushed,
    ];

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::InstanceKilled => "an instance is killed for 2 s",
            Fault::InstanceStopped => "an instance stops for 2 s",
            Fault::RollingRestart => "all instances restart in turn",
            Fault::StoreKilled => "the store is killed for 1 s, without persistence",
            Fault::StoreKilledPersistent => "the same, with persistence",
            Fault::StoreStoppedShortly => "the store stops for 0.5 s",
            Fault::StoreStopped => "the store stops for 2 s",
            Fault::StoreStoppedLong => "the store stops for 10 s",
            Fault::RepliesLost => "replies of the store are lost for 2 s",
            Fault::RepliesLate => "replies come 300 ms late for 2 s",
            Fault::HalfOpen => "connections to the store are half open for 2 s",
            Fault::OneWithoutStore => "one instance does not reach the store for 2 s",
            Fault::ScriptsFlushed => "the store forgets its scripts",
        }
    }

    /// Whether the store keeps what it is told.
    pub fn is_persistent(self) -> bool {
        self == Fault::StoreKilledPersistent
    }

    /// Whether it can happen to a system.
    pub fn happens_to(self, system: System) -> bool {
        let has_store = !matches!(system, System::TollgateMemory | System::Gubernator);
        match self {
            Fault::None | Fault::InstanceKilled | Fault::InstanceStopped | Fault::RollingRestart => true,
            Fault::RepliesLost | Fault::RepliesLate | Fault::HalfOpen | Fault::OneWithoutStore => {
                has_store && system != System::TollgateCluster
            }
            _ => has_store,
        }
    }

    /// How long it lasts.
    pub fn lasts(self) -> Duration {
        Duration::from_millis(match self {
            Fault::None | Fault::RollingRestart | Fault::ScriptsFlushed => 0,
            Fault::StoreStoppedShortly => 500,
            Fault::StoreKilled | Fault::StoreKilledPersistent => 1_000,
            Fault::StoreStoppedLong => 10_000,
            _ => 2_000,
        })
    }

    /// Lets it happen, and ends it.
    ///
    /// # Errors
    /// Fails if a process cannot be reached or started.
    pub async fn happen(self, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
        let pause = tokio::time::sleep(self.lasts());
        let Running { instances, stores, proxies, .. } = running;
        match self {
            Fault::None => {}
            Fault::InstanceKilled => {
                instances[0].kill()?;
                pause.await;
                instances[0].start_again()?;
            }
            Fault::InstanceStopped => {
                instances[0].signal(Signal::STOP)?;
                pause.await;
                instances[0].signal(Signal::CONT)?;
            }
            Fault::RollingRestart => {
                for instance in instances {
                    tokio::task::block_in_place(|| instance.end())?;
                    instance.start_again()?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            Fault::StoreKilled | Fault::StoreKilledPersistent => {
                stores[0].kill()?;
                pause.await;
                stores[0].start_again()?;
            }
            Fault::StoreStoppedShortly | Fault::StoreStopped | Fault::StoreStoppedLong => {
                stores[0].signal(Signal::STOP)?;
                pause.await;
                stores[0].signal(Signal::CONT)?;
            }
            Fault::RepliesLost | Fault::RepliesLate | Fault::HalfOpen => {
                let mode = match self {
                    Fault::RepliesLost => Mode::LoseReplies,
                    Fault::RepliesLate => Mode::Delay,
                    _ => Mode::HalfOpen,
                };
                proxies.iter().for_each(|proxy| proxy.set(mode));
                pause.await;
                proxies.iter().for_each(|proxy| proxy.set(Mode::Forward));
            }
            Fault::OneWithoutStore => {
                proxies[0].set(Mode::Refuse);
                pause.await;
                proxies[0].set(Mode::Forward);
            }
            Fault::ScriptsFlushed => {
                stores
                    .iter()
                    .try_for_each(|store| redis_command(&programs.redis, store.port(), &["SCRIPT", "FLUSH"]))?;
            }
        }
        Ok(())
    }
}
