//! Looking at counters and resetting them by hand.
//!
//! Both go the way of any request: as a peek, or as a reset, which no client can ask for. So what is shown is
//! what the next request would meet, in every store and of every algorithm. What other processes hold of a counter by a
//! lease, or know to be denied, a reset does not reach: they use it up, or deny for a second more at most.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::adjustment::InForce;
use crate::algorithm::{Ask, Limit};
use crate::descriptor::{self, Descriptor, Entry, Override, Request};
use crate::explain;
use crate::plan::{Asked, Plan, PlanOptions};
use crate::rules::Rules;
use crate::store::memory::{Clock as _, SystemClock};
use crate::store::redis::{Reading, RedisReplicas, Replica, ReplicaError};
use crate::store::{Check, CheckVerdict, Store, StoreError};

/// What to do with the counters of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Peek; nothing changes.
    Get,
    /// Make them as fresh.
    Reset,
}

/// What one counter says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Its name in the store.
    pub key: String,
    /// What its limit is called.
    pub rule: String,
    /// The limit in words.
    pub limit: String,
    /// So many hits can pass at one moment.
    pub capacity: u32,
    /// So many hits would pass now.
    pub remaining: u32,
    /// From then on it is as fresh.
    pub reset_after_ms: u64,
    /// How long a ban still lasts, where its penalty has brought one.
    pub banned_ms: Option<u64>,
}

/// What one counter says at a replica of Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicatedCounter {
    /// What it says there.
    #[serde(flatten)]
    pub counter: Counter,
    /// Who has said it.
    pub replica: Replica,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// An entry without a key.
    #[error("{0:?} is not an entry: write KEY=VALUE, for example user=ann")]
    Entry(String),
    /// Which counters there are nobody knows yet.
    #[error("no rules are in force yet")]
    NoRules,
    /// No rule, or an unlimited one: by what a rule is missed, or which it is.
    #[error("no limit applies: {0}")]
    NoLimit(String),
    /// The store did not answer.
    #[error("the store is unavailable")]
    Store(#[from] StoreError),
    /// No replica did.
    #[error("no replica can be read")]
    Replica(#[from] ReplicaError),
}

/// Whose counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterOf {
    /// The domain of the rules.
    pub domain: String,
    /// The entries of the descriptor.
    pub entries: Vec<Entry>,
    /// A limit that the request brings along.
    pub limit: Option<Override>,
}

/// Entries as people write them: `KEY=VALUE`.
///
/// # Errors
/// Where one is not.
pub fn entries(words: &[String]) -> Result<Vec<Entry>, CounterError> {
    let entry = |word: &String| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry { key: key.to_owned(), value: value.to_owned() }),
        _ => Err(CounterError::Entry(word.clone())),
    };
    words.iter().map(entry).collect()
}

/// Peeks at the counters of a descriptor, after resetting them if that is the action.
///
/// # Errors
/// Where no counter is meant, or the store does not answer within `timeout`.
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
    // A counter goes on behind what passes or is blocked.
    let adjustments = rules.1.map(InForce::that_count);
    let plan = plan((rules.0, adjustments.as_ref()), options, &request)?;
    let verdicts = store.check(plan.asked(), Instant::now() + timeout).await?;
    if action == Action::Reset {
        let rules: Vec<&str> = plan.asked().iter().map(|asked| asked.source.label()).collect();
        // Their names hold values of the descriptor, which are for `debug` alone.
        let keys: Vec<&str> = plan.asked().iter().map(|asked| asked.check.key.as_str()).collect();
        let hashes: Vec<_> = keys.iter().map(|key| blake3::hash(key.as_bytes()).to_hex()).collect();
        tracing::warn!(domain = request.domain, ?rules, ?hashes, "counters are reset by hand");
        tracing::debug!(counters = ?keys, "these counters are reset");
    }
    let counters = plan.asked().iter().zip(verdicts).filter_map(|(asked, verdict)| Some(counter(asked, verdict?)));
    Ok(counters.collect())
}

/// Peeks at the counters of a descriptor as replicas of Redis have them; the master is not asked for them.
///
/// # Errors
/// Where no counter is meant, or no replica answers.
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
/// Where no counter is meant.
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
            missed.unwrap_or_else(|| "the rule that it reaches is unlimited".to_owned()),
        ));
    }
    Ok(plan)
}

/// A limit as people say it: `5 per minute, sliding_window`.
pub fn in_words(limit: &Limit) -> String {
    let held = match limit.options().max_delay {
        None => String::new(),
        Some(delay) => format!(", delayed up to {}", humantime::format_duration(delay)),
    };
    format!("{} {}, {}{held}", limit.number(), descriptor::per_of(limit), limit.algorithm())
}

fn counter(asked: &Asked<'_>, verdict: CheckVerdict) -> Counter {
    let (Check { key, limit, .. }, together) = (&asked.check, verdict.together());
    Counter {
        key: key.to_string(),
        rule: asked.source.label().to_owned(),
        limit: in_words(limit),
        capacity: limit.capacity(),
        remaining: together.remaining,
        reset_after_ms: together.reset_after_ms,
        banned_ms: verdict.banned_ms(),
    }
}

impl CounterOf {
    fn asks(self, ask: Ask) -> Request {
        let CounterOf { domain, entries, limit } = self;
        Request { domain, descriptors: vec![Descriptor { entries, ask, limit }] }
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counter { key, rule, limit, capacity, remaining, reset_after_ms, banned_ms } = self;
        write!(f, "{key}\n  {limit} ({rule}): {remaining} of {capacity} left")?;
        if let Some(banned_ms) = banned_ms {
            write!(f, ", banned for {}", descriptor::wait(*banned_ms))?;
        }
        if *reset_after_ms > 0 {
            write!(f, ", resets in {}", descriptor::wait(*reset_after_ms))?;
        }
        Ok(())
    }
}

impl fmt::Display for ReplicatedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  at {}", self.counter, self.replica)
    }
}
