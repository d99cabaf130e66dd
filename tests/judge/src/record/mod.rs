//! Records a history: drives a system with a drawn load, and writes down what it was asked and what it told.
//!
//! ```text
//! scenario    the limits, the system and the load, from a file
//! load        what a caller asks next, drawn
//! adapter     the systems
//! ```

pub mod adapter;
mod load;
pub mod scenario;

use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::now_us;
use crate::history::{Header, Operation, Told, VERSION};
use adapter::Connection;
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

/// Asks until the end.
async fn run(
    mut caller: Caller,
    mut connection: Connection,
    process: u32,
    end_us: u64,
    deadline: Duration,
) -> Vec<Operation<'static>> {
    let mut operations = Vec::new();
    while now_us() < end_us {
        let Turn { ask, asked, parts } = caller.next_turn();
        let begin = now_us();
        let answer = tokio::time::timeout(deadline, connection.ask(ask, &asked, deadline)).await;
        let end = now_us();
        let mut operation = Operation {
            begin,
            end,
            ask,
            of: parts,
            told: Told::Late,
            remaining: None,
            wait_us: None,
            from: process,
            by: None,
        };
        match answer {
            Err(_) => {}
            Ok(Err(_)) if end - begin >= deadline.as_micros() as u64 => {}
            Ok(Err(_)) => operation.told = Told::Failed,
            Ok(Ok(answer)) => {
                operation.told = answer.told;
                operation.remaining = answer.remaining;
                operation.wait_us = answer.wait.map(|wait| wait.as_micros() as u64);
                operation.by = answer.by.map(Into::into);
            }
        }
        let pause = caller.heard(&operation);
        operations.push(operation);
        tokio::time::sleep(pause.min(Duration::from_micros(end_us.saturating_sub(now_us())))).await;
    }
    operations
}
