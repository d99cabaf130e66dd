//! Looking at counters and resetting them by hand.
//!
//! Both go the way of any request: as a peek, or as a reset, which no client can ask for. So what is shown is
//! what the next request would meet, in every store and of every algorithm. What other processes hold of a counter by a
//! lease, or know to be denied, a reset does not reach: they use it up, or deny for a second more at most.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::algorithm::{Ask, Limit, Verdict};
use crate::decision::Answer;
use crate::descriptor::{self, Descriptor, Entry, Override, Request};
use crate::explain;
use crate::plan::{Plan, PlanOptions};
use crate::rules::Rules;
use crate::store::memory::{Clock as _, SystemClock};
use crate::store::{Store, StoreError};

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
    rules: &Rules,
    options: &PlanOptions,
    store: &S,
    CounterOf { domain, entries, limit }: CounterOf,
    timeout: Duration,
) -> Result<Vec<Counter>, CounterError> {
    let ask = match action {
        Action::Get => Ask::Peek,
        Action::Reset => Ask::Reset,
    };
    let request = Request { domain, descriptors: vec![Descriptor { entries, ask, limit }] };
    let plan = Plan::new(options, rules, &request, options.counter_keys.names(|| SystemClock.now()));
    if plan.asked().is_empty() {
        let missed = explain::missed(rules, &request).into_iter().flatten().next();
        return Err(CounterError::NoLimit(
            missed.unwrap_or_else(|| "the rule that it reaches is unlimited".to_owned()),
        ));
    }
    let keys: Vec<String> = plan.asked().iter().map(|asked| asked.check.key.to_string()).collect();
    let verdicts = store.check(plan.asked(), Instant::now() + timeout).await?;
    let decision = plan.conclude(&verdicts);
    if action == Action::Reset {
        let rules: Vec<&str> = decision.limits.iter().map(|limited| limited.asked.source.label()).collect();
        // Their names hold values of the descriptor, which are for `debug` alone.
        let hashes: Vec<_> = keys.iter().map(|key| blake3::hash(key.as_bytes()).to_hex()).collect();
        tracing::warn!(domain = request.domain, ?rules, ?hashes, "counters are reset by hand");
        tracing::debug!(counters = ?keys, "these counters are reset");
    }
    let counters = keys.into_iter().zip(&decision.limits).filter_map(|(key, limited)| match limited.answer {
        Answer::Store(verdict) => Some(Counter {
            banned_ms: verdict.banned_ms(),
            ..counter(key, limited.asked.source.label(), &limited.asked.check.limit, verdict.together())
        }),
        _ => None,
    });
    Ok(counters.collect())
}

/// A limit as people say it: `5 per minute, sliding_window`.
pub fn in_words(limit: &Limit) -> String {
    let held = match limit.options().max_delay {
        None => String::new(),
        Some(delay) => format!(", delayed up to {}", humantime::format_duration(delay)),
    };
    format!("{} {}, {}{held}", limit.number(), descriptor::per(limit.window()), limit.algorithm())
}

fn counter(key: String, rule: &str, limit: &Limit, verdict: Verdict) -> Counter {
    Counter {
        key,
        rule: rule.to_owned(),
        limit: in_words(limit),
        capacity: limit.capacity(),
        remaining: verdict.remaining,
        reset_after_ms: verdict.reset_after_ms,
        banned_ms: None,
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
