//! The end of a history: once all callers have ended, each counter is asked for what shows only then.
//!
//! - Of a limit of holders, what remains and then all of its places. Before, the longest is waited that a place may
//!   still be held.
//! - Of a budget, whether a stream may hold all of it. Before, the longest is waited that hits may be held or used.
//! - Of all but holders, the system's own count, if it has one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::adapter::Asked;
use super::scenario::Scenario;
use super::{Caller, ask, now_us};
use crate::history::{Ask, Operation, Part, Promise, Told};

/// A limit and a key.
type Counter<'o> = (&'o str, &'o str);

/// Asks what shows at the end of these operations, and returns it.
///
/// # Errors
/// Fails if the scenario names an address of a wrong form.
pub async fn end(scenario: &Scenario, operations: &[Operation<'_>]) -> anyhow::Result<Vec<Operation<'static>>> {
    let parts = operations.iter().flat_map(|operation| &operation.of);
    let counters: BTreeSet<Counter<'_>> = parts.map(|part| (&*part.limit, &*part.key)).collect();
    let free_at = places_are_free_at(scenario, operations).max(budgets_are_free_at(scenario, operations));
    let settles_us = free_at.saturating_sub(now_us()).min(scenario.load.settle_ms * 1_000);
    tokio::time::sleep(Duration::from_micros(settles_us)).await;
    let mut connection = scenario.target.connect(0)?;
    let deadline = scenario.load.deadline();
    let mut asked = Vec::new();
    for (limit, key) in counters {
        let Some(of) = scenario.limits.get(limit) else { continue };
        let one = |holder: Option<String>| {
            let asked = Asked { entry: of.entry.clone(), key: key.to_owned(), hits: 1, holder: holder.clone() };
            let part = Part {
                limit: limit.to_owned().into(),
                key: key.to_owned().into(),
                hits: 1,
                holder: holder.map(Into::into),
            };
            (vec![asked], vec![part])
        };
        if let Promise::Budget { number, .. } = of.promise {
            for (what, hits) in [(Ask::Hold, number), (Ask::Settle, 0)] {
                let (mut all, mut parts) = one(Some("end".to_owned()));
                all.iter_mut().for_each(|asked| asked.hits = hits);
                parts.iter_mut().for_each(|part| part.hits = hits);
                asked.push(ask(&mut connection, 0, what, (all, parts), deadline).await);
            }
        }
        let Promise::Holders { number, .. } = of.promise else {
            if scenario.target.has_totals() {
                let (mut all, parts) = one(None);
                let is_budget = matches!(of.promise, Promise::Budget { .. });
                all.iter_mut().for_each(|asked| asked.holder = is_budget.then(|| "end".to_owned()));
                asked.push(ask(&mut connection, 0, Ask::Total, (all, parts), deadline).await);
            }
            continue;
        };
        asked.push(ask(&mut connection, 0, Ask::Peek, one(Some("end".to_owned())), deadline).await);
        let holder = |index: u64| Some(format!("end-{index}"));
        let all = 0..number.min(Caller::MOST_AT_END);
        for index in all.clone() {
            asked.push(ask(&mut connection, 0, Ask::Take, one(holder(index)), deadline).await);
        }
        for index in all {
            asked.push(ask(&mut connection, 0, Ask::Return, one(holder(index)), deadline).await);
        }
    }
    Ok(asked)
}

/// Returns when each place was let go or has expired.
fn places_are_free_at(scenario: &Scenario, operations: &[Operation<'_>]) -> u64 {
    let expiry_us: BTreeMap<&str, u64> = scenario
        .limits
        .iter()
        .filter_map(|(name, limit)| match limit.promise {
            Promise::Holders { expiry_us, .. } => Some((&**name, expiry_us)),
            Promise::Window { .. } | Promise::Bucket { .. } | Promise::Budget { .. } => None,
        })
        .collect();
    let deadline_us = scenario.load.deadline().as_micros() as u64;
    let mut free_at: HashMap<(Counter<'_>, &str), u64> = HashMap::new();
    for operation in operations {
        for part in &operation.of {
            let (Some(holder), Some(expiry_us)) = (part.holder.as_deref(), expiry_us.get(&*part.limit)) else {
                continue;
            };
            let place = ((&*part.limit, &*part.key), holder);
            match (operation.ask, operation.told) {
                (Ask::Take, Told::Allowed) => drop(free_at.insert(place, operation.end + expiry_us)),
                (Ask::Take, Told::Failed | Told::Late) => {
                    free_at.insert(place, operation.end + deadline_us + expiry_us);
                }
                (Ask::Return, Told::Allowed) => drop(free_at.remove(&place)),
                _ => {}
            }
        }
    }
    // To a clock of milliseconds it is a step later.
    free_at.into_values().max().map_or(0, |latest| latest + 2 * scenario.clock_us)
}

/// Returns when no stream of a budget holds hits, and none that it used count.
fn budgets_are_free_at(scenario: &Scenario, operations: &[Operation<'_>]) -> u64 {
    let deadline_us = scenario.load.deadline().as_micros() as u64;
    let mut free_at = 0;
    for operation in operations.iter().filter(|operation| operation.told != Told::Denied) {
        let latest = operation.end + if operation.told == Told::Allowed { 0 } else { deadline_us };
        for part in &operation.of {
            let Some(Promise::Budget { memory_us, hold_for_us, .. }) =
                scenario.limits.get(&*part.limit).map(|limit| &limit.promise)
            else {
                continue;
            };
            let held_us = if operation.ask == Ask::Hold { *hold_for_us } else { 0 };
            free_at = (latest + held_us + memory_us).max(free_at);
        }
    }
    // To a clock of milliseconds it is a step or two later.
    free_at + 3 * scenario.clock_us
}
