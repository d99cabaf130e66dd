//! Faults of a master: a replica takes its place, or tries to.

use std::time::Duration;

use anyhow::bail;
use rustix::process::Signal;

use super::super::fault::Fault;
use super::super::proxy::Mode;
use super::super::redis_cli::{ask, wait_until};
use super::super::running::{MASTER, Running, SECOND_REPLICA, sentinel_names_another};
use super::super::system::Programs;

pub(super) async fn happen(fault: Fault, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
    match fault {
        Fault::FailoverPlanned => plan(running, programs).await,
        Fault::FailoverStuck => {
            let promoted = running.doors.stores[1].clone();
            promoted.set_for(Mode::Refuse, &[SECOND_REPLICA]);
            plan(running, programs).await?;
            tokio::time::sleep(fault.lasts() / 2).await;
            promoted.set(Mode::Forward);
            Ok(())
        }
        Fault::MasterKilled => {
            let replica = replica(running, programs).await?;
            running.stores[0].kill()?;
            wait_until_replaced(running, programs, replica).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            running.stores[0].start_again()
        }
        Fault::MasterStopped => {
            let replica = replica(running, programs).await?;
            running.stores[0].signal(Signal::STOP)?;
            wait_until_replaced(running, programs, replica).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            running.stores[0].signal(Signal::CONT)
        }
        Fault::Split | Fault::SplitBounded => {
            let replica = replica(running, programs).await?;
            if fault == Fault::SplitBounded {
                let words = ["CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "2"];
                ask(programs, running.stores[0].port(), &words).await?;
            }
            running.doors.cut();
            wait_until_replaced(running, programs, replica).await?;
            tokio::time::sleep(Duration::from_secs(4)).await;
            running.doors.mend();
            Ok(())
        }
        _ => bail!("{fault:?} is no fault of a master"),
    }
}

/// Returns the port of the replica of the first master.
async fn replica(running: &Running, programs: &Programs) -> anyhow::Result<u16> {
    if running.system.has_sentinels() { Ok(running.stores[1].port()) } else { running.replica_of(programs, 0).await }
}

/// Has the replica take over, as an operator does.
async fn plan(running: &Running, programs: &Programs) -> anyhow::Result<()> {
    let replica = replica(running, programs).await?;
    if running.system.has_sentinels() {
        ask(programs, running.sentinels[1].port(), &["SENTINEL", "FAILOVER", MASTER]).await?;
    } else {
        ask(programs, replica, &["CLUSTER", "FAILOVER"]).await?;
    }
    wait_until_replaced(running, programs, replica).await
}

/// Waits until the replica is a master, and Sentinels say so.
async fn wait_until_replaced(running: &Running, programs: &Programs, replica: u16) -> anyhow::Result<()> {
    wait_until("the master is replaced", async || {
        let is_master = ask(programs, replica, &["ROLE"]).await?.starts_with("master");
        Ok(is_master && (!running.system.has_sentinels() || sentinel_names_another(running, programs).await?))
    })
    .await
}
