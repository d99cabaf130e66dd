//! Runs of real systems with a fault each, and the table of what came of it.
//!
//! ```text
//! system      the systems
//! running     a system that runs: processes on free ports of this machine, which end with the run
//! fault       the faults
//! happen      how they happen
//! promised    what the docs promise for them
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
mod system;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::check::{Checks, Judge, Kind};
use crate::clock::now_us;
use crate::history::{Header, Operation, Told};
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
    let limit = Limit { entry: "user".to_owned(), promise: system.promise() };
    let scenario = Scenario {
        about: format!("{}: {}", system.name(), fault.name()),
        target: running.target(),
        clock_us: 1_000,
        limits: BTreeMap::from([("per-user".to_owned(), limit)]),
        load: Load {
            seconds: lasts.as_secs_f64(),
            probers: 0,
            new_keys_ms: 1_000,
            most_hits: 1,
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
        let happened = happen::happen(fault, &mut running, programs).await;
        happened.map(|()| (before, now_us()))
    };
    let (one, other, happened) = tokio::join!(record::record(&scenario, 0), record::record(&scenario, 1), complaints);
    let (before, ended_us) = happened?;
    let mut operations: Vec<Operation<'static>> = [one?, other?].concat();
    operations.sort_by_key(|operation| operation.end);
    let header = header(&scenario, &operations);
    let mut judge = Judge::new(header.clone(), Checks::default());
    for operation in &operations {
        judge.add(operation).map_err(anyhow::Error::msg)?;
    }
    let judgement = judge.finish();
    let needless_line = judgement.broken.get(&Kind::NeedlessDenial).map_or(0, |count| count.last_line);
    // The first line is the header.
    let needless = usize::try_from(needless_line)?.checked_sub(2).and_then(|index| operations.get(index));
    let needless_at = needless.map_or(0, |operation| operation.end);
    let undecided = operations.iter().filter(|operation| matches!(operation.told, Told::Failed | Told::Late));
    let last = undecided.map(|operation| operation.end).max().unwrap_or(0).max(needless_at);
    let hits = |kind| judgement.broken.get(&kind).map_or(0, |count| count.hits);
    let outcome = Outcome {
        system,
        fault,
        operations: judgement.operations,
        over_hits: hits(Kind::OverLimit),
        needless: judgement.count(Kind::NeedlessDenial),
        failed: judgement.failed,
        late: judgement.late,
        longest_undecided_ms: judgement.longest_undecided_us / 1_000,
        recovered_after_ms: last.saturating_sub(ended_us) / 1_000,
        said_so: running.complaints() > before,
    };
    Ok((outcome, header, operations))
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
