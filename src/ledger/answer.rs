//! The answer of `/usage`: some pages, and a cursor to continue.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::usage::page::{Owner, Page, PageName, Part};
use crate::engine::usage::{Period, Time, Totals};

/// A part of the usage records, as the service sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAnswer {
    /// The store's time.
    pub now: Time,
    /// Name of the store. Pages with the same name are separate in two stores; in one store, they are the same page
    /// sent twice.
    pub store: String,
    /// Pages of records, in any order.
    pub pages: Vec<CounterPage>,
    /// Number of records that cannot be read, or that have an unknown owner and may be among those requested.
    pub damaged: u64,
    /// Cursor for the next request; `None` at the end.
    pub cursor: Option<String>,
    /// How the domain or the rule of the request misses the rules in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
}

/// A page and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterPage {
    /// Name of the page in the store.
    pub page: String,
    /// Domain of the rules.
    pub domain: String,
    /// Entries of the counter.
    pub descriptor: Vec<Part>,
    /// The part of the counter's name that identifies the limit: its algorithm and its window.
    pub limit: String,
    /// Label of the limit, if the rules in force have it.
    pub rule: Option<String>,
    /// Length of time that a record covers.
    #[serde(with = "by_name")]
    pub period: Period,
    /// Expiry of the page.
    pub expires: Option<Time>,
    /// Records on the page.
    pub records: Vec<Record>,
}

/// The usage of a counter in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Start of the period.
    pub start: Time,
    /// The amounts.
    #[serde(flatten)]
    pub totals: Totals,
}

/// A filter of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only this domain; `None` for all.
    pub domain: Option<String>,
    /// Only this rule of the rules in force.
    pub rule: Option<String>,
    /// Only descriptors that have all of these entries.
    pub entries: Vec<(String, String)>,
    /// Only the counters of the descriptor that consists of these entries, by the rules in force. Their pages are read
    /// by name.
    pub is_exact: bool,
    /// Only periods that begin at this time or later.
    pub from: Time,
    /// Only periods that begin before this time.
    pub to: Time,
}

impl Wanted {
    /// Selects all records of a range of time.
    pub fn within(from: Time, to: Time) -> Wanted {
        Wanted { from, to, ..Wanted::default() }
    }

    /// Returns whether a counter is selected, apart from its rule. What was read by name is.
    pub fn takes(&self, owner: &Owner) -> bool {
        let has =
            |(key, value): &(String, String)| owner.parts.iter().any(|part| part.key == *key && part.value == *value);
        self.domain.as_ref().is_none_or(|domain| owner.domain == *domain)
            && (self.is_exact || self.entries.iter().all(has))
    }
}

impl UsageAnswer {
    /// Creates an answer without pages.
    pub fn new(now: Time, store: &str, cursor: Option<String>) -> UsageAnswer {
        UsageAnswer { now, store: store.to_owned(), pages: Vec::new(), damaged: 0, cursor, missed: None }
    }

    /// Adds the selected records of a page. `rule` returns the label of a limit.
    pub fn add(&mut self, page: Page, wanted: &Wanted, rule: impl FnOnce(&Owner, &str) -> Option<String>) {
        let Page { name, full_tag, expires, records, damaged } = page;
        let Some(read) = PageName::read(&name) else { return };
        let is_for_all = wanted.domain.is_none() && wanted.rule.is_none() && wanted.entries.is_empty();
        let unknown = || read.unknown_owner().filter(|_| is_for_all);
        let Some(owner) = read.owner(full_tag.as_deref()).or_else(unknown) else {
            // Counted even if one domain was requested, because the page may belong to it.
            self.damaged += damaged + records.len() as u64;
            return;
        };
        if !wanted.takes(&owner) {
            return;
        }
        let rule = rule(&owner, &name);
        if wanted.rule.is_some() && wanted.rule != rule {
            return;
        }
        // A record far from its page's time has a damaged index.
        let (records, far): (Vec<_>, Vec<_>) = records.into_iter().partition(|(index, _)| read.is_near(*index));
        self.damaged += damaged + far.len() as u64;
        let record = |(index, totals): (u64, Totals)| Record { start: Time(index * read.period.ms()), totals };
        let is_wanted = |record: &Record| (wanted.from..wanted.to).contains(&record.start);
        let mut records: Vec<Record> = records.into_iter().map(record).filter(is_wanted).collect();
        if records.is_empty() {
            return;
        }
        records.sort_unstable_by_key(|record| record.start);
        let Owner { domain, parts } = owner;
        let (limit, period) = (read.limit.to_owned(), read.period);
        self.pages.push(CounterPage { page: name, domain, descriptor: parts, limit, rule, period, expires, records });
    }
}

/// Serializes a period as its name.
mod by_name {
    use super::{Deserialize as _, Deserializer, Period, Serializer};

    pub(super) fn serialize<S: Serializer>(period: &Period, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(period.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
        let name = String::deserialize(deserializer)?;
        Period::named(&name).ok_or_else(|| serde::de::Error::custom("a period is minute, hour or day"))
    }
}
