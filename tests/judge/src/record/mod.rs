//! Records a history: drives a system with a drawn load, and writes down what it was asked and what it told.
//!
//! ```text
//! scenario    the limits, the system and the load, from a file
//! load        what a caller asks next, drawn
//! streams     what it holds of budgets, and when it settles
//! end         what is asked once all callers have ended
//! adapter     the systems
//! ```

pub mod adapter;
mod end;
mod load;
pub mod scenario;
mod streams;

use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::now_us;
use crate::history::{Ask, Header, Operation, Part, Told, VERSION};
use adapter::{Asked, Connection};
pub use end::end;
use load::{Caller, Turn};
use scenario::Scenario;

/// Drives the system as one of the processes of a scenario, and returns its operations in the order of their ends.
///
/// # Errors
/// Fails if the scenario names an address of a wrong form.
pub async fn record(scenario: &Scenario, process: u32) -> anyhow::Result<Vec<Operation<'static>>> {
    let end_us = now_us() + scenario.load.lasts().as_micros() as u64;
    let mut callers = JoinSet::new();
    for index in 0..scenario.load.callers + scenario.load.probers {
        let connection = scenario.target.connect(index)?;
        let caller = Caller::new(scenario, process, index);
        callers.spawn(run(caller, connection, process, end_us, scenario.load.deadline()));
    }
    let mut all: Vec<Operation<'static>> = callers.join_all().await.into_iter().flatten().collect();
    all.sort_by_key(|operation| operation.end);
    Ok(all)
}

/// Drives the system as all processes of a scenario, from this one, and returns the history up to its [`end`].
///
/// # Errors
/// Fails if the scenario names an address of a wrong form.
pub async fn history(scenario: &Scenario) -> anyhow::Result<(Header, Vec<Operation<'static>>)> {
    let mut processes = JoinSet::new();
    for process in 0..scenario.load.processes.max(1) {
        let scenario = scenario.clone();
        processes.spawn(async move { record(&scenario, process).await });
    }
    let mut operations = Vec::new();
    for recorded in processes.join_all().await {
        operations.append(&mut recorded?);
    }
    operations.append(&mut end(scenario, &operations).await?);
    operations.sort_by_key(|operation| operation.end);
    Ok((header(scenario, &operations), operations))
}

/// Returns the header of a history with these operations.
pub fn header(scenario: &Scenario, operations: &[Operation<'_>]) -> Header {
    let longest = operations.iter().map(|operation| operation.end - operation.begin).max().unwrap_or(0);
    Header {
        judge: VERSION,
        about: scenario.about.clone(),
        longest_us: longest.max(scenario.load.deadline().as_micros() as u64),
        wait_resolution_us: scenario.target.wait_resolution().as_micros() as u64 + scenario.load.slack_us(),
        clock_us: scenario.clock_us,
        limits: scenario.promises(),
    }
}

/// Asks until the end, and lets all places go.
async fn run(
    mut caller: Caller,
    mut connection: Connection,
    process: u32,
    end_us: u64,
    deadline: Duration,
) -> Vec<Operation<'static>> {
    let mut operations = Vec::new();
    while now_us() < end_us {
        let Turn { ask: what, asked, parts } = caller.next_turn();
        let operation = ask(&mut connection, process, what, (asked, parts), deadline).await;
        let pause = caller.heard(&operation);
        operations.push(operation);
        tokio::time::sleep(pause.min(Duration::from_micros(end_us.saturating_sub(now_us())))).await;
    }
    while let Some(Turn { ask: what, asked, parts }) = caller.last_turn() {
        operations.push(ask(&mut connection, process, what, (asked, parts), deadline).await);
    }
    operations
}

/// Asks once.
async fn ask(
    connection: &mut Connection,
    process: u32,
    ask: Ask,
    (asked, of): (Vec<Asked>, Vec<Part<'static>>),
    deadline: Duration,
) -> Operation<'static> {
    let begin = now_us();
    let answer = tokio::time::timeout(deadline, connection.ask(ask, &asked, deadline)).await;
    let end = now_us();
    let (remaining, total, wait_us, by) = (None, None, None, None);
    let told = Told::Late;
    let mut operation = Operation { begin, end, ask, of, told, remaining, total, wait_us, from: process, by };
    match answer {
        Err(_) => {}
        Ok(Err(_)) if end - begin >= deadline.as_micros() as u64 => {}
        Ok(Err(_)) => operation.told = Told::Failed,
        Ok(Ok(answer)) => {
            operation.told = answer.told;
            operation.remaining = answer.remaining;
            operation.total = answer.total;
            operation.wait_us = answer.wait.map(|wait| wait.as_micros() as u64);
            operation.by = answer.by.map(Into::into);
        }
    }
    operation
}
