//! Faults of instances.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;

use super::super::fault::Fault;
use super::super::redis_cli::wait_until;
use super::super::running::Running;
use super::super::shares::{self, Numbers};
use super::super::system::Programs;
use crate::history::{Ask, Told};
use crate::record::adapter::{Asked, Target};

/// Returns a rule that is added: one request of a minute passes.
fn added(entry: &str) -> String {
    format!("- key: {entry}\n  rate_limit: {{unit: minute, requests_per_unit: 1}}\n")
}

pub(super) async fn happen(fault: Fault, running: &mut Running, programs: &Programs) -> anyhow::Result<()> {
    match fault {
        Fault::InstanceKilled => {
            running.instances[0].kill()?;
            tokio::time::sleep(fault.lasts()).await;
            running.instances[0].start_again()
        }
        Fault::InstanceStopped => {
            running.instances[0].signal(Signal::STOP)?;
            tokio::time::sleep(fault.lasts()).await;
            running.instances[0].signal(Signal::CONT)
        }
        Fault::RollingRestart => {
            for instance in &mut running.instances {
                tokio::task::block_in_place(|| instance.end())?;
                instance.start_again()?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        }
        Fault::InstanceStoppedLong => {
            let index = shares::seated(running).await?;
            running.instances[index].signal(Signal::STOP)?;
            let (taken, ()) = tokio::join!(shares::wait_until_taken(running, index), tokio::time::sleep(fault.lasts()));
            running.instances[index].signal(Signal::CONT)?;
            taken
        }
        Fault::RulesChanged => change_rules(running, "added", &running.system.rules(&added("added"))).await,
        Fault::NumberChanged => {
            change_rules(running, "added", &Numbers::CHANGED.rules(&added("added"))).await?;
            // Until shares of the new numbers are in use.
            tokio::time::sleep(fault.lasts() / 2).await;
            change_rules(running, "again", &Numbers::BEFORE.rules(&added("again"))).await
        }
        Fault::ScaledOut => {
            for entrance in 2..4 {
                running.add_instance(programs).await?;
                let port = running.instances.last().context("it has just been added")?.port();
                running.entrances[entrance].lead_to(port);
            }
            Ok(())
        }
        _ => bail!("{fault:?} is no fault of instances"),
    }
}

/// Puts other rules in the place of each instance's, and waits until the rule that they have for an entry is in force.
async fn change_rules(running: &Running, entry: &str, rules: &str) -> anyhow::Result<()> {
    let file = running.system.rules_file().context("a system with rules")?;
    for instance in &running.instances {
        let path = instance.folder().join(file);
        let next = instance.folder().join("next.yaml");
        std::fs::write(&next, rules)?;
        std::fs::rename(next, path)?;
    }
    let Target::Rls(target) = running.target() else { bail!("its callers bring the limit") };
    for index in 0..target.addresses.len() {
        let target = Target::Rls(target.clone());
        wait_until("the rule that was added is in force", async || {
            let mut connection = target.connect(index)?;
            let key = format!("caller-{index}");
            let asked = [Asked { entry: entry.to_owned(), key, hits: 1, holder: None }];
            let answer = connection.ask(Ask::Take, &asked, Duration::from_millis(500)).await;
            Ok(answer.map_err(anyhow::Error::msg)?.told == Told::Denied)
        })
        .await?;
    }
    Ok(())
}
