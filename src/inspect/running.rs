//! Inspection of a running service: counters and explanations, as the limiter's next request would see them.

use std::time::Duration;

use tokio::time::Instant;

use super::credit::{self, CreditError, Credited, Written};
use super::{Action, Counter, CounterError, CounterOf, act, next_pass};
use crate::engine::asked::Asked;
use crate::engine::check::{Check, Key};
use crate::engine::descriptor::Request;
use crate::engine::explain::Explanation;
use crate::engine::plan::Plan;
use crate::engine::usage::Usage;
use crate::limiter::{Limiter, Snapshot};
use crate::store::Store;

/// Reads or resets the counters of a descriptor.
///
/// # Errors
/// See [`act`].
pub async fn counters<S: Store>(
    limiter: &Limiter<S>,
    action: Action,
    descriptor: CounterOf,
    timeout: Duration,
) -> Result<Vec<Counter>, CounterError> {
    let snapshot = limiter.snapshot();
    if !snapshot.is_in_force() {
        return Err(CounterError::NoRules);
    }
    act(action, snapshot.rules_and_adjustments(), limiter.plan_options(), limiter.store(), descriptor, timeout).await
}

/// Credits hits to the budget of a descriptor.
///
/// # Errors
/// See [`credit::credit`].
pub async fn credit<S: Store>(
    limiter: &Limiter<S>,
    written: &Written,
    descriptor: CounterOf,
    timeout: Duration,
) -> Result<Credited, CreditError> {
    let snapshot = limiter.snapshot();
    if !snapshot.is_in_force() {
        return Err(CounterError::NoRules.into());
    }
    let (rules, options) = (snapshot.rules_and_adjustments(), limiter.plan_options());
    credit::credit(written, rules, options, limiter.store(), descriptor, timeout).await
}

/// Explains which rules limit a request. Takes some milliseconds for a request that matches no rule.
pub fn explain<S: Store>(limiter: &Limiter<S>, snapshot: &Snapshot, request: &Request) -> Explanation {
    Explanation::adjusted(snapshot.rules_and_adjustments(), limiter.plan_options(), request, limiter.names())
}

/// Returns the name of the limit whose counter `is_its` recognizes by its name in the store, or `None` if the rules in
/// force have no such limit for these entries.
pub fn label_of<S: Store>(
    limiter: &Limiter<S>,
    snapshot: &Snapshot,
    request: &Request,
    is_its: impl Fn(&str) -> bool,
) -> Option<String> {
    let plan = Plan::new(limiter.plan_options(), &snapshot.rules, request, limiter.names());
    let asked = plan.asked().iter().find(|asked| is_its(asked.check.key.as_str()))?;
    Some(asked.source.label().to_owned())
}

/// Returns the counters of a request that keep usage, by the rules in force.
pub fn recorded<S: Store>(limiter: &Limiter<S>, request: &Request) -> Vec<(Key, Usage)> {
    let snapshot = limiter.snapshot();
    let plan = Plan::new(limiter.plan_options(), &snapshot.rules, request, limiter.names());
    let recorded = |asked: &Asked<'_>| Some((asked.check.key.clone(), asked.check.recorded.as_ref()?.usage));
    plan.asked().iter().filter_map(recorded).collect()
}

/// Adds to an explanation the present state of its counters, or the answers of failure modes. Charges nothing.
pub async fn add_state<S: Store>(
    limiter: &Limiter<S>,
    explanation: Explanation,
    (snapshot, request): (&Snapshot, &Request),
    timeout: Duration,
) -> Explanation {
    if !explanation.reads() {
        return explanation;
    }
    let (rules, store) = (snapshot.rules_and_adjustments(), limiter.store());
    let asking = Plan::adjusted(limiter.plan_options(), rules, request, limiter.names());
    let peek = asking.clone().peek();
    let error = match store.check(peek.asked(), Instant::now() + timeout).await {
        Ok(verdicts) => {
            let decision = peek.conclude(&verdicts);
            let next_after_ms = next_pass::next_after_ms(&decision, store, Instant::now() + timeout).await;
            return explanation.answered(&decision, &next_after_ms);
        }
        Err(error) => error,
    };
    let is_same = |asked: &&Asked<'_>, check: &Check| asked.check.key == check.key;
    let known = |check: &Check| {
        let asked = asking.asked().iter().find(|asked| is_same(asked, check))?;
        store.known_denial(&asked.check)
    };
    match peek.conclude_without_store(limiter.without_store(&error, known)) {
        Ok(decision) => explanation.answered(&decision, &[]),
        Err(undecided) => explanation.undecided(undecided, &error.to_string()),
    }
}
