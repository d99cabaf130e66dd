//! Runs of real systems with a fault each, and the table of what came of it.
//!
//! ```text
//! system      the systems
//! running     a system that runs: processes on free ports of this machine, which end with the run
//! fault       the faults
//! happen      how they happen
//! promised    what the docs promise for them
//! shares      limits with shares, and who has a seat
//! process     a process
//! proxy       in front of a process
//! redis_cli   commands to a Redis
//! report      the table
//! ```

mod fault;
mod happen;
mod process;
mod promised;
mod proxy;
mod redis_cli;
mod report;
mod running;
mod shares;
mod system;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::check::{Checks, Judge, Judgement, Kind};
use crate::clock::now_us;
use crate::history::{Header, Operation, Promise, Told};
use crate::record::scenario::{Limit, Load, Scenario};
use crate::record::{self, header};
pub use fault::Fault;
pub use report::table;
use running::Running;
pub use system::{Programs, System};

/// How long a system is asked before the fault.
const BEFORE: Duration = Duration::from_secs(4);

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The system.
    pub system: System,
    /// The fault.
    pub fault: Fault,
    /// Number of operations.
    pub operations: u64,
    /// Hits that were admitted beyond the limit, for certain.
    pub over_hits: u64,
    /// Those of them that Tollgate's pages do not allow for the fault.
    #[serde(default)]
    pub beyond_hits: u64,
    /// Operations that were denied without need, for certain.
    pub needless: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Operations without an answer within half a second.
    pub late: u64,
    /// The longest time without a decision, in milliseconds.
    pub longest_undecided_ms: u64,
    /// How long after the end of the fault the last operation failed, was late, or was denied without need, in
    /// milliseconds.
    pub recovered_after_ms: u64,
    /// Whether an instance complained in its log from the begin of the fault on.
    pub said_so: bool,
}

/// Runs a system with a fault. Returns what came of it, and the history.
///
/// # Errors
/// Fails if the system does not start, or the fault cannot happen.
pub async fn run(
    system: System,
    fault: Fault,
    programs: &Programs,
) -> anyhow::Result<(Outcome, Header, Vec<Operation<'static>>)> {
    let mut running = Running::start(system, fault, programs).await?;
    let lasts = BEFORE + fault.lasts() + fault.watched(system);
    let promises = promised::meanwhile(fault, system).unwrap_or_else(|| system.limits());
    let limit = |(entry, promise): (String, Promise)| (format!("per-{entry}"), Limit { entry, promise });
    let scenario = Scenario {
        about: format!("{}: {}", system.name(), fault.name()),
        target: running.target(),
        clock_us: 1_000,
        limits: promises.into_iter().map(limit).collect(),
        load: Load {
            seconds: lasts.as_secs_f64(),
            probers: 0,
            // Counters of shares are new after a second.
            new_keys_ms: if system.has_shares() { 0 } else { 1_000 },
            most_hits: if system.has_shares() { 2 } else { 1 },
            peeks: 0,
            ..Load::default()
        },
    };
    if system.has_fixed_minutes() {
        wait_for_minute(lasts).await;
    }
    let complaints = async {
        tokio::time::sleep(BEFORE).await;
        let before = running.complaints();
        if system.has_shares() {
            shares::assert_in_use(&running).await?;
        }
        let began_us = now_us();
        happen::happen(fault, &mut running, programs).await?;
        let ended_us = now_us();
        let by_shares = if system.has_shares() { shares::admitted(&running).await.iter().sum() } else { 0.0 };
        anyhow::Ok((before, (began_us, ended_us), by_shares))
    };
    let (one, other, happened) = tokio::join!(record::record(&scenario, 0), record::record(&scenario, 1), complaints);
    let (before, (began_us, ended_us), by_shares) = happened?;
    if system.has_shares() && shares::admitted(&running).await.iter().sum::<f64>() <= by_shares {
        bail!("no share was used after the fault, so the run says nothing of them");
    }
    let mut operations: Vec<Operation<'static>> = [one?, other?].concat();
    operations.sort_by_key(|operation| operation.end);
    let header = header(&scenario, &operations);
    let judgement = judged(&header, &operations)?;
    let limits = || system.limits().into_iter().map(|(entry, promise)| (format!("per-{entry}"), promise));
    let always = Header { limits: limits().collect(), ..header.clone() };
    let over_hits = hits_over(&judged(&always, &operations)?);
    let beyond_hits = match promised::excess(fault, system) {
        _ if promised::meanwhile(fault, system).is_some() => {
            let is_outside = |one: &&Operation<'_>| one.end < began_us || one.begin > ended_us;
            let outside: Vec<_> = operations.iter().filter(is_outside).cloned().collect();
            hits_over(&judgement) + hits_over(&judged(&always, &outside)?)
        }
        Some(_) => 0,
        None => over_hits,
    };
    let needless_line = judgement.broken.get(&Kind::NeedlessDenial).map_or(0, |count| count.last_line);
    // The first line is the header.
    let needless = usize::try_from(needless_line)?.checked_sub(2).and_then(|index| operations.get(index));
    let needless_at = needless.map_or(0, |operation| operation.end);
    let undecided = operations.iter().filter(|operation| matches!(operation.told, Told::Failed | Told::Late));
    let last = undecided.map(|operation| operation.end).max().unwrap_or(0).max(needless_at);
    let outcome = Outcome {
        system,
        fault,
        operations: judgement.operations,
        over_hits,
        beyond_hits,
        needless: judgement.count(Kind::NeedlessDenial),
        failed: judgement.failed,
        late: judgement.late,
        longest_undecided_ms: judgement.longest_undecided_us / 1_000,
        recovered_after_ms: last.saturating_sub(ended_us) / 1_000,
        said_so: running.complaints() > before,
    };
    Ok((outcome, header, operations))
}

/// Judges these operations.
fn judged(header: &Header, operations: &[Operation<'_>]) -> anyhow::Result<Judgement> {
    let mut judge = Judge::new(header.clone(), Checks::default());
    for operation in operations {
        judge.add(operation).map_err(anyhow::Error::msg)?;
    }
    Ok(judge.finish())
}

/// Returns the hits that were admitted over a limit, and one for each counter that only the exact check finds broken.
fn hits_over(judgement: &Judgement) -> u64 {
    let hits = judgement.broken.get(&Kind::OverLimit).map_or(0, |count| count.hits);
    hits.max(judgement.count(Kind::NoSchedule))
}

/// Waits until a run of this length lies within one minute of the clock on the wall.
async fn wait_for_minute(lasts: Duration) {
    let into = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() % 60_000);
    let into = Duration::from_millis(u64::try_from(into).unwrap_or(0));
    let minute = Duration::from_secs(60);
    let slack = Duration::from_secs(3);
    if into < Duration::from_secs(1) || into + lasts + slack > minute {
        tokio::time::sleep((minute + Duration::from_secs(1)).saturating_sub(into)).await;
    }
}
