//! Reading and resetting counters by hand.
//!
//! Both take the path of any request: as a peek, or as a reset, which no client can request. So the result is what the
//! next request would meet, with every store and every algorithm. A reset does not reach state in other processes: they
//! use up the hits of a lease, and continue a known denial for up to a second.

pub mod credit;
pub mod next_pass;
pub mod running;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::engine::adjustment::InForce;
use crate::engine::algorithm::Ask;
use crate::engine::asked::Asked;
use crate::engine::check::{Check, CheckVerdict, StoreError};
use crate::engine::clock::Clock as _;
use crate::engine::descriptor::{self, Descriptor, Entry, Override, Request};
use crate::engine::explain::{self, ExplainedBudget, ExplainedShare};
use crate::engine::plan::{Plan, PlanOptions};
use crate::engine::rules::Rules;
use crate::store::Store;
use crate::store::memory::SystemClock;
use crate::store::redis::replicas::{Reading, RedisReplicas, Replica, ReplicaError};

/// An action on the counters of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Peek, without changing anything.
    Get,
    /// Reset the counters to a fresh state.
    Reset,
}

/// The state of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its name in the store.
    pub key: String,
    /// Name of its limit.
    pub rule: String,
    /// The limit as text.
    pub limit: String,
    /// Largest number of hits that can pass at one moment.
    pub capacity: u64,
    /// Number of hits that would pass now.
    pub remaining: u64,
    /// Time until it is as good as new.
    pub reset_after_ms: u64,
    /// Remaining time of a ban, if its penalty has imposed one.
    pub banned_ms: Option<u64>,
    /// Hits that instances hold in leases, if its limit has a lease. They do not remain, and may still be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<u32>,
    /// The share of this instance, if it has one now. What remains of it is part of `remaining`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ExplainedShare>,
    /// The most hits that other instances may have admitted by their shares, if its limit has shares. They are in none
    /// of these numbers, and a reset does not reach them: they end a period later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_shares: Option<u64>,
    /// What is used and held of a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<ExplainedBudget>,
}

/// The state of one counter at a replica of Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicatedCounter {
    /// The counter.
    #[serde(flatten)]
    pub counter: Counter,
    /// The replica.
    pub replica: Replica,
}

/// Reasons for having no counters to show.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// An entry has no key.
    #[error("{0:?} is not an entry: write KEY=VALUE, for example user=ann")]
    Entry(String),
    /// There are no rules yet, so the counters are not known.
    #[error("no rules are in force yet")]
    NoRules,
    /// No rule matches, or the rule is unlimited; the text explains which.
    #[error("no limit applies: {0}")]
    NoLimit(String),
    /// The store did not answer.
    #[error("the store is unavailable")]
    Store(#[from] StoreError),
    /// No replica answered.
    #[error("no replica can be read")]
    Replica(#[from] ReplicaError),
}

/// A descriptor, to read or reset its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterOf {
    /// The domain of the rules.
    pub domain: String,
    /// The entries of the descriptor.
    pub entries: Vec<Entry>,
    /// A limit that the request sends.
    pub limit: Option<Override>,
}

/// Parses entries of the form `KEY=VALUE`.
///
/// # Errors
/// If an entry does not have this form.
pub fn entries(words: &[String]) -> Result<Vec<Entry>, CounterError> {
    let entry = |word: &String| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry { key: key.into(), value: value.into() }),
        _ => Err(CounterError::Entry(word.clone())),
    };
    words.iter().map(entry).collect()
}

/// Peeks at the counters of a descriptor, after resetting them if that is the action.
///
/// # Errors
/// If no counter matches, or the store does not answer within `timeout`.
pub async fn act<S: Store>(
    action: Action,
    rules: (&Rules, Option<&InForce>),
    options: &PlanOptions,
    store: &S,
    descriptor: CounterOf,
    timeout: Duration,
) -> Result<Vec<Counter>, CounterError> {
    let ask = match action {
        Action::Get => Ask::Peek,
        Action::Reset => Ask::Reset,
    };
    let request = descriptor.asks(ask);
    // Skips adjustments that only allow or block requests: the counters underneath keep their limits.
    let adjustments = rules.1.map(InForce::that_count);
    let plan = plan((rules.0, adjustments.as_ref()), options, &request)?;
    // By itself, what is read of a budget would hold or settle hits.
    let plan = if action == Action::Get { plan.peek() } else { plan };
    let verdicts = store.check(plan.asked(), Instant::now() + timeout).await?;
    if action == Action::Reset {
        let rules: Vec<&str> = plan.asked().iter().map(|asked| asked.source.label()).collect();
        // Counter names contain values of the descriptor, which are logged only at level `debug`.
        let keys: Vec<&str> = plan.asked().iter().map(|asked| asked.check.key.as_str()).collect();
        let hashes: Vec<_> = keys.iter().map(|key| blake3::hash(key.as_bytes()).to_hex()).collect();
        tracing::warn!(domain = request.domain.as_str(), ?rules, ?hashes, "an operator has reset counters");
        tracing::debug!(counters = ?keys, "an operator has reset these counters");
    }
    let counters = plan.asked().iter().zip(verdicts).filter_map(|(asked, verdict)| Some(counter(asked, verdict?)));
    Ok(counters.collect())
}

/// Peeks at the counters of a descriptor on replicas of Redis, without asking the master.
///
/// # Errors
/// If no counter matches, or no replica answers.
pub async fn peek_at_replicas(
    rules: &Rules,
    options: &PlanOptions,
    replicas: &RedisReplicas,
    descriptor: CounterOf,
) -> Result<Vec<ReplicatedCounter>, CounterError> {
    let request = descriptor.asks(Ask::Peek);
    let plan = plan((rules, None), options, &request)?;
    let readings = replicas.peek(plan.asked()).await?;
    let counters = plan
        .asked()
        .iter()
        .zip(readings)
        .map(|(asked, Reading { verdict, replica })| ReplicatedCounter { counter: counter(asked, verdict), replica });
    Ok(counters.collect())
}

/// # Errors
/// If no counter matches.
fn plan<'a>(
    (rules, adjustments): (&'a Rules, Option<&'a InForce>),
    options: &'a PlanOptions,
    request: &'a Request,
) -> Result<Plan<'a>, CounterError> {
    let names = options.counter_keys.names(|| SystemClock.now());
    let plan = Plan::adjusted(options, (rules, adjustments), request, names);
    if plan.asked().is_empty() {
        let missed = explain::missed(rules, request).into_iter().flatten().next();
        return Err(CounterError::NoLimit(
            missed.unwrap_or_else(|| "the rule that matches it is unlimited".to_owned()),
        ));
    }
    Ok(plan)
}

fn counter(asked: &Asked<'_>, verdict: CheckVerdict) -> Counter {
    let (Check { key, limit, .. }, together) = (&asked.check, verdict.together());
    Counter {
        key: key.to_string(),
        rule: asked.source.label().to_owned(),
        limit: descriptor::in_words(limit),
        capacity: limit.capacity_with(verdict.own.extra),
        remaining: together.remaining,
        reset_after_ms: together.reset_after_ms,
        banned_ms: verdict.banned_ms(),
        leased: verdict.lease.map(|granted| granted.out),
        share: verdict.share.map(ExplainedShare::from),
        other_shares: asked.check.other_shares(verdict.share.map_or(0, |share| share.capacity)),
        budget: ExplainedBudget::of(limit, &verdict.own),
    }
}

impl CounterOf {
    fn asks(self, ask: Ask) -> Request {
        let CounterOf { domain, entries, limit } = self;
        Request { domain: domain.into(), descriptors: vec![Descriptor { entries, ask, limit }] }
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counter { key, rule, limit, capacity, remaining, .. } = self;
        let Counter { reset_after_ms, banned_ms, leased, share, other_shares, budget, .. } = self;
        write!(f, "{key}\n  {limit} ({rule}): {remaining} of {capacity} left")?;
        if let Some(budget) = budget {
            write!(f, ", {budget}")?;
        }
        if let Some(leased) = leased.filter(|leased| *leased > 0) {
            write!(f, ", {leased} in leases")?;
        }
        if let Some(ExplainedShare { capacity, remaining }) = share {
            write!(f, ", {remaining} of them in this instance's share of {capacity}")?;
        }
        if let Some(most) = other_shares.filter(|most| *most > 0) {
            write!(f, ", up to {most} more in the shares of other instances")?;
        }
        if let Some(banned_ms) = banned_ms {
            write!(f, ", banned for {}", descriptor::wait(*banned_ms))?;
        }
        f.write_str(&descriptor::resets(*reset_after_ms).unwrap_or_default())
    }
}

impl fmt::Display for ReplicatedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  at {}", self.counter, self.replica)
    }
}
