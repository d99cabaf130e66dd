//! What `/usage` answers: some pages at a time, and where to go on.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::page::{Owner, Page, PageName, Part};
use super::{Period, Time, Totals};

/// Some of what is kept, as the service tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The store's time.
    pub now: Time,
    /// Where it is from: pages of one name in two stores are two, and in one store they are one that is told twice.
    pub store: String,
    /// What stands on pages, in no order.
    pub pages: Vec<CounterPage>,
    /// So many records cannot be read, or nobody knows whose they are.
    pub damaged: u64,
    /// Where to go on; `None` where this is the end.
    pub cursor: Option<String>,
}

/// A page, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterPage {
    /// Its name in the store.
    pub page: String,
    /// The domain of the rules.
    pub domain: String,
    /// The entries of the counter.
    pub descriptor: Vec<Part>,
    /// What names the limit: its algorithm and its window.
    pub limit: String,
    /// What the limit is called by the rules in force, where they have it.
    pub rule: Option<String>,
    /// How long a time a record is about.
    #[serde(with = "by_name")]
    pub period: Period,
    /// When the store forgets it.
    pub expires: Option<Time>,
    /// What stands on it.
    pub records: Vec<Record>,
}

/// How much a counter was used in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the period begins.
    pub start: Time,
    /// How much.
    #[serde(flatten)]
    pub totals: Totals,
}

/// Which records are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of this domain. `None`: of all.
    pub domain: Option<String>,
    /// Of this rule of the rules in force.
    pub rule: Option<String>,
    /// Of descriptors that have all of these entries.
    pub entries: Vec<(String, String)>,
    /// Of periods that begin at this time or later.
    pub from: Time,
    /// Of periods that begin before.
    pub to: Time,
}

impl Wanted {
    /// All of a time.
    pub fn within(from: Time, to: Time) -> Wanted {
        Wanted { from, to, ..Wanted::default() }
    }

    /// Whether a counter's records are wanted, whatever its rule is.
    pub fn takes(&self, owner: &Owner) -> bool {
        let has =
            |(key, value): &(String, String)| owner.parts.iter().any(|part| part.key == *key && part.value == *value);
        self.domain.as_ref().is_none_or(|domain| owner.domain == *domain) && self.entries.iter().all(has)
    }
}

impl Answer {
    /// One that holds no page yet.
    pub fn new(now: Time, store: &str, cursor: Option<String>) -> Answer {
        Answer { now, store: store.to_owned(), pages: Vec::new(), damaged: 0, cursor }
    }

    /// Takes a page of the store, as far as it is wanted. `rule` knows what a limit is called.
    pub fn add(&mut self, page: Page, wanted: &Wanted, rule: impl FnOnce(&Owner, &str) -> Option<String>) {
        let Page { name, full_tag, expires, records, damaged } = page;
        let Some(read) = PageName::read(&name) else { return };
        let Some(owner) = read.owner(full_tag.as_deref()) else {
            // Whoever asks for one domain is told as well: it may be that one.
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
        // A record of a time that is far from its page's has a damaged number.
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

/// A period is told by its name.
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
