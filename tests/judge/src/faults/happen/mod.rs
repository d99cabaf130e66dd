//! How faults happen: each begins and ends, and leaves nothing behind.
//!
//! ```text
//! instances   to instances of the rate limiter
//! store       to one store, or to the connections to it
//! failover    to a master and what watches it
//! slots       to the slots of a cluster
//! ```

mod failover;
mod instances;
mod slots;
mod store;

use anyhow::bail;
use tokio::time::Instant;

use super::fault::Fault;
use super::running::Running;
use super::system::Programs;

/// Lets a fault happen, and ends it.
///
/// # Errors
/// Fails if a process cannot be reached or started, or the fault takes much longer than it should.
pub async fn happen(fault: Fault, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
    let begin = Instant::now();
    match fault {
        Fault::None => {}
        Fault::InstanceKilled
        | Fault::InstanceStopped
        | Fault::InstanceStoppedLong
        | Fault::RollingRestart
        | Fault::RulesChanged
        | Fault::NumberChanged
        | Fault::ScaledOut => instances::happen(fault, running, programs).await?,
        Fault::FailoverPlanned
        | Fault::FailoverStuck
        | Fault::MasterKilled
        | Fault::MasterStopped
        | Fault::Split
        | Fault::SplitBounded => failover::happen(fault, running, programs).await?,
        Fault::SlotsMoved | Fault::MasterAdded | Fault::MasterRemoved => {
            slots::happen(fault, running, programs).await?;
        }
        _ => store::happen(fault, running, programs).await?,
    }
    // Callers would have stopped before its end.
    let last = fault.lasts() + fault.watched(running.system) / 2;
    if begin.elapsed() > last {
        bail!("{} took {:?}, which is too long", fault.name(), begin.elapsed());
    }
    tokio::time::sleep_until(begin + fault.lasts()).await;
    Ok(())
}
