//! Faults of a cluster's slots: redis-cli moves them one after the other, with their keys, as operators do.

use anyhow::bail;

use super::super::fault::Fault;
use super::super::redis_cli::{ask, cluster};
use super::super::running::Running;
use super::super::system::Programs;

/// Number of slots that move.
const SLOTS: &str = "2000";

pub(super) async fn happen(fault: Fault, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
    match fault {
        Fault::SlotsMoved => shift(running, programs, SLOTS, 0, 1).await,
        Fault::MasterAdded => {
            running.add_master(programs).await?;
            let added = running.stores.len() - 1;
            shift(running, programs, SLOTS, 0, added).await
        }
        Fault::MasterRemoved => {
            let slots = ask(programs, running.stores[1].port(), &["CLUSTER", "NODES"]).await?;
            let own = slots.lines().find(|line| line.contains("myself")).unwrap_or_default();
            shift(running, programs, &count(own).to_string(), 1, 0).await?;
            let name = running.name_of(programs, 1).await?;
            let other = format!("127.0.0.1:{}", running.stores[0].port());
            // The other nodes forget it (CLUSTER FORGET).
            cluster(programs, &["del-node", &other, &name]).await?;
            running.stores[1].kill()
        }
        _ => bail!("{fault:?} is no fault of slots"),
    }
}

/// Moves slots from one store to another.
async fn shift(running: &Running, programs: &Programs, slots: &str, from: usize, to: usize) -> anyhow::Result<()> {
    let node = format!("127.0.0.1:{}", running.stores[0].port());
    let (from, to) = (running.name_of(programs, from).await?, running.name_of(programs, to).await?);
    let what = ["--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", slots, "--cluster-yes"];
    cluster(programs, &[&["reshard", &node], &what[..]].concat()).await.map(drop)
}

/// Returns the number of slots that a line of `CLUSTER NODES` has: from its ninth word on, each a slot or a range.
fn count(line: &str) -> u32 {
    let of = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<u32>().ok()? + 1 - first.parse::<u32>().ok()?)
    };
    line.split(' ').skip(8).filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted() {
        let node = "07c3 127.0.0.1:30004@31004 myself,master - 0 1426238317239 4 connected";
        assert_eq!(count(&format!("{node} 0-5460 6000 [93-<-292f]")), 5_462);
        assert_eq!(count(node), 0);
    }
}
