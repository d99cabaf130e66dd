//! Credits: what operators add to a budget, or give back, once for each ID.
//!
//! A credit takes the path of any request, as a question that no client can ask. The script that changes the budget
//! remembers the ID, so a repetition changes nothing, wherever it is sent.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Action, Counter, CounterError, CounterOf, act, plan};
use crate::engine::adjustment::InForce;
use crate::engine::algorithm::{Algorithm, Ask, Credit, CreditKind, MAX_HITS, MAX_NUMBER};
use crate::engine::asked::Asked;
use crate::engine::check::StoreError;
use crate::engine::descriptor::{Entry, HOLD_KEY};
use crate::engine::plan::PlanOptions;
use crate::engine::rules::Rules;
use crate::store::Store;

/// The longest ID, in bytes.
const LONGEST_ID: usize = 200;

/// A credit as an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// `top-up` or `refund`.
    pub kind: String,
    /// Hits, from 1 up to 2^53 - 1.
    pub hits: u64,
    /// Its ID, such as that of an invoice.
    pub id: String,
    /// Name of the limit, where several budgets are on one descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why, for the audit trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a credit has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credited {
    /// Hits that were credited with this ID: of a refund no more than were used.
    pub hits: u64,
    /// An earlier credit with this ID has done so, and this one has changed nothing.
    pub repeated: bool,
    /// The budget now.
    pub counter: Counter,
}

/// Reasons why nothing is credited.
#[derive(Debug, thiserror::Error)]
pub enum CreditError {
    /// The credit is not readable.
    #[error("{0}")]
    Unreadable(String),
    /// No budget applies.
    #[error("no budget applies to this descriptor{0}: only a limit with algorithm: budget is credited")]
    NoBudget(String),
    /// Several budgets apply.
    #[error("several budgets apply to this descriptor: choose one of {0} as rule")]
    Several(String),
    /// The window slides.
    #[error(
        "{0} is not topped up, because its window slides, and a top-up would have no end: give it unit: never, or a \
         time_zone; a refund is possible"
    )]
    Slides(String),
    /// The ID is taken.
    #[error(
        "nothing was credited: another top-up or refund of {0} has this ID, with other hits or of the other kind; give \
         each an ID of its own"
    )]
    Taken(String),
    /// Nothing is used.
    #[error("nothing was credited, and the ID is free: nothing is used of {0} that could be refunded")]
    Unused(String),
    /// The budget would be too large.
    #[error("nothing was credited: {0} would exceed {MAX_NUMBER}")]
    TooMuch(String),
    /// No counter is found, or it cannot be asked.
    #[error(transparent)]
    Counter(#[from] CounterError),
}

impl Written {
    /// Parses the credit.
    ///
    /// # Errors
    /// [`CreditError::Unreadable`] with what would be right.
    pub fn read(&self) -> Result<Credit, CreditError> {
        let wrong = |reason: String| Err(CreditError::Unreadable(reason));
        let Some(kind) = CreditKind::ALL.into_iter().find(|kind| kind.name() == self.kind) else {
            return wrong(format!("unknown kind {:?}: write top-up or refund", self.kind));
        };
        if !(1..=MAX_NUMBER).contains(&self.hits) {
            return wrong(format!("hits are a whole number from 1 to {MAX_NUMBER}, not {}", self.hits));
        }
        if self.id.trim().is_empty() || self.id.len() > LONGEST_ID {
            return wrong(format!(
                "a credit needs an ID of up to {LONGEST_ID} bytes, such as that of an invoice: with the same ID, it is \
                 credited once"
            ));
        }
        Ok(Credit { hits: self.hits, id: number_of(&self.id), kind })
    }

    /// Returns the effect for the audit trail; `None` if there certainly is none.
    pub fn effect(&self, credited: &Result<Credited, CreditError>) -> Option<String> {
        let Written { kind, hits, id, .. } = self;
        match credited {
            Ok(Credited { repeated: true, .. }) => None,
            Ok(Credited { hits, counter, .. }) => {
                Some(format!("{kind} of {hits} to {}, with the ID {id}", counter.rule))
            }
            // The store may have done it before its reply was lost.
            Err(CreditError::Counter(CounterError::Store(cause))) => {
                Some(format!("a {kind} of {hits} with the ID {id} may have been done: {cause}"))
            }
            Err(_) => None,
        }
    }
}

/// Returns the number of an ID, up to 2^53: two IDs have the same with a chance of one in 10^16.
fn number_of(id: &str) -> u64 {
    let hash = blake3::hash(id.trim().as_bytes());
    let first = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    first % (MAX_HITS + 1)
}

/// Returns the entries of a budget's descriptor, which end with the key of streams. Operators need not write it.
pub fn of_budget(mut entries: Vec<Entry>) -> Vec<Entry> {
    if entries.last().is_none_or(|last| last.key != HOLD_KEY) {
        entries.push(Entry { key: HOLD_KEY.into(), value: "-".into() });
    }
    entries
}

/// Credits hits to the budget of a descriptor.
///
/// # Errors
/// If the credit is unreadable, no single budget applies, the store refuses it, or does not answer within `timeout`:
/// then it may be done, and can be repeated.
pub async fn credit<S: Store>(
    written: &Written,
    rules: (&Rules, Option<&InForce>),
    options: &PlanOptions,
    store: &S,
    descriptor: CounterOf,
    timeout: Duration,
) -> Result<Credited, CreditError> {
    let credit = written.read()?;
    let descriptor = CounterOf { entries: of_budget(descriptor.entries), ..descriptor };
    let request = descriptor.clone().asks(Ask::Credit(credit));
    let adjustments = rules.1.map(InForce::that_count);
    let asked = plan((rules.0, adjustments.as_ref()), options, &request)?.into_asked();
    let name = |asked: &Asked<'_>| asked.source.label().to_owned();
    let is_wanted = |asked: &Asked<'_>| {
        asked.check.limit.algorithm() == Algorithm::Budget
            && written.rule.as_ref().is_none_or(|rule| *rule == asked.source.name() || *rule == asked.source.label())
    };
    let asked: Vec<Asked<'_>> = asked.into_iter().filter(is_wanted).collect();
    let [one] = &asked[..] else {
        let named = written.rule.as_ref().map(|rule| format!(" with the name {rule}")).unwrap_or_default();
        let names = || asked.iter().map(name).collect::<Vec<_>>().join(", ");
        return Err(if asked.is_empty() { CreditError::NoBudget(named) } else { CreditError::Several(names()) });
    };
    if credit.kind == CreditKind::TopUp && !one.check.limit.is_topped_up() {
        return Err(CreditError::Slides(name(one)));
    }
    let verdicts = store.check(&asked, Instant::now() + timeout).await.map_err(CounterError::from)?;
    let Some(verdict) = verdicts.first().copied().flatten() else {
        return Err(CounterError::from(StoreError::Answer).into());
    };
    let own = verdict.own;
    let seen = async || {
        let counters = act(Action::Get, rules, options, store, descriptor.clone(), timeout).await?;
        Ok::<_, CounterError>(counters.into_iter().find(|counter| counter.key == one.check.key.as_str()))
    };
    let Some(done) = own.held.filter(|_| own.allowed) else {
        let would_be = one.check.limit.number() + own.extra + credit.hits;
        return Err(match credit.kind {
            CreditKind::TopUp if would_be > MAX_NUMBER => CreditError::TooMuch(name(one)),
            CreditKind::Refund if seen().await?.and_then(|seen| seen.budget).is_some_and(|budget| budget.used == 0) => {
                CreditError::Unused(name(one))
            }
            CreditKind::TopUp | CreditKind::Refund => CreditError::Taken(name(one)),
        });
    };
    let hash = blake3::hash(one.check.key.as_str().as_bytes()).to_hex();
    let (kind, hits, repeated) = (credit.kind.name(), done.hits, done.holds == 0);
    tracing::warn!(
        domain = request.domain.as_str(), rule = name(one), %hash, kind, hits, repeated,
        "an operator has credited a budget"
    );
    // The credit is done, even if the store does not answer again: then what streams hold is not shown.
    let seen = seen().await.ok().flatten();
    let counter = seen.unwrap_or_else(|| Counter { budget: None, ..super::counter(one, verdict) });
    Ok(Credited { hits, repeated, counter })
}

impl fmt::Display for Credited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credited { hits, repeated, counter } = self;
        match repeated {
            true => write!(f, "nothing changed: {hits} were credited with this ID before\n{counter}"),
            false => write!(f, "{hits} credited\n{counter}"),
        }
    }
}
