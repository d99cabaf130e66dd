//! What the sketches say, for people: keys by their names.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::sketch::{Counts, Heavy};
use super::{HeavyHitters, Sketches, Tenant};
use crate::descriptor::{Entry, Request};
use crate::plan::{Asked, Source};
use crate::rules::{Allowance, Rule};
use crate::values::Values;

/// By what keys are heavy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// All hits.
    #[default]
    Hits,
    /// Those over the limit.
    Denied,
    /// Those within the limit, beyond `NEAR_LIMIT_RATIO` of it.
    Near,
}

impl By {
    /// Each of them.
    pub const ALL: [By; 3] = [By::Hits, By::Denied, By::Near];

    /// The name in queries and answers.
    pub const fn name(self) -> &'static str {
        match self {
            By::Hits => "hits",
            By::Denied => "denied",
            By::Near => "near",
        }
    }
}

/// Which keys are asked for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Of this domain; `None`: of all.
    pub domain: Option<String>,
    /// Of this rule, by the name that metrics have for it; `None`: of all.
    pub rule: Option<String>,
    /// The heaviest by this.
    pub by: By,
    /// So many.
    pub most: usize,
}

/// The heaviest keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Top {
    /// By what.
    pub by: By,
    /// So many rules are counted, of those that were asked for.
    pub rules: usize,
    /// The heaviest first.
    pub keys: Vec<HeavyKey>,
}

/// A key of a rule. Its counts tell of the last `window_ms`, in which what was earlier weighs less.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeavyKey {
    /// The domain of the rule.
    pub domain: String,
    /// What metrics call the rule's limit.
    pub rule: String,
    /// The entries that make the counter; `None` where they are too long to be kept.
    pub descriptor: Option<Vec<Pair>>,
    /// A request with these entries has this counter. Not so where values are hashed or hidden, where several share a
    /// counter, or hold slots of it, and where requests bring the limit along.
    pub exact: bool,
    /// About so many hits; `None`: too few for a count, where others have more.
    pub hits: Option<u32>,
    /// About so many of them were over the limit.
    pub denied: Option<u32>,
    /// About so many were near it.
    pub near: Option<u32>,
    /// Of what it is heavy by, so many for certain.
    pub at_least: u32,
    /// Of what it is heavy by, the part of all that the rule has.
    pub share: f64,
    /// The time that the counts tell of, in milliseconds.
    pub window_ms: u64,
    /// What the counter says now, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// How many hits can pass at one moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// How long a ban still lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banned_ms: Option<u64>,
    /// What asks for the counter.
    #[serde(skip)]
    pub entries: Option<Vec<Entry>>,
    /// What metrics call the limit, whatever values are in that.
    #[serde(skip)]
    pub label: String,
}

/// An entry, whose value is shown as a setting says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Its key.
    pub key: String,
    /// Its value; `None`: it is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// How the names of a rule's keys are completed, and what the rule is called.
#[derive(Debug)]
pub(super) struct Names {
    /// What is shown as the rule's label.
    shown: Box<str>,
    /// Each level of the rule: what it says, or nothing where that differs from key to key. `None`: all levels differ.
    levels: Option<Box<str>>,
    /// The entries that are shown are those of requests.
    is_exact: bool,
}

/// Entries as one text. Empty pairs are none of an entry.
fn joined<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

fn split(text: &str) -> impl Iterator<Item = Entry> {
    form_urlencoded::parse(text.as_bytes())
        .map(|(key, value)| Entry { key: key.into_owned(), value: value.into_owned() })
}

/// Each level of a rule, where it says all of it.
fn spelled_out(rule: &Rule) -> impl Iterator<Item = Option<(&str, &str)>> {
    rule.keys_and_values().map(|(key, value)| {
        let value = value.filter(|value| !value.contains('*') && !key.contains('*'))?;
        Some((key, value))
    })
}

/// What is kept of the name of a request's counter: what its rule does not say. Values that share a counter are one.
pub(super) fn name(request: &Request, asked: &Asked<'_>) -> String {
    let Some(descriptor) = request.descriptors.get(asked.check.descriptor) else { return String::new() };
    let entries = descriptor.entries.iter().map(|Entry { key, value }| (key.as_str(), value.as_str()));
    let Source::Rule(rule, _) = asked.source else { return joined(entries) };
    let last = descriptor.entries.len().wrapping_sub(1);
    let holder = asked.check.limit.algorithm().has_holders().then_some(last);
    let open = entries.zip(spelled_out(rule)).enumerate().filter(|(_, (_, spelled_out))| spelled_out.is_none());
    joined(open.map(|(level, ((key, value), _))| {
        let shared = rule.shared_pattern(level).or((holder == Some(level)).then_some("*"));
        (key, shared.unwrap_or(value))
    }))
}

impl Names {
    pub(super) fn new(source: Source<'_>, values: &Values) -> Names {
        let levels = match source {
            Source::Rule(rule, _) => Some(joined(spelled_out(rule).map(Option::unwrap_or_default)).into()),
            Source::Override(_) => None,
        };
        let is_exact = match source {
            Source::Rule(rule, limit) => {
                let has_holders = match &limit.config.allowance {
                    Allowance::Limited(limit) => limit.algorithm().has_holders(),
                    Allowance::Unlimited => false,
                };
                let is_shared = (0..rule.levels()).any(|level| rule.shared_pattern(level).is_some());
                matches!(values, Values::Plain) && !has_holders && !is_shared
            }
            Source::Override(_) => false,
        };
        Names { shown: values.label(source).into(), levels, is_exact }
    }

    /// The entries of a key of which so much is kept.
    fn entries(&self, kept: &str) -> Vec<Entry> {
        let mut open = split(kept);
        let Some(levels) = &self.levels else { return open.collect() };
        let is_open = |level: &Entry| level.key.is_empty();
        split(levels).filter_map(|level| if is_open(&level) { open.next() } else { Some(level) }).collect()
    }
}

impl HeavyHitters {
    /// The heaviest keys.
    pub fn top(&self, query: &Query) -> Top {
        let now = Instant::now();
        let is_asked = |tenant: &Tenant| {
            let is_it = |asked: &Option<String>, is: &str| asked.as_deref().is_none_or(|asked| asked == is);
            let rule = is_it(&query.rule, &tenant.label) || is_it(&query.rule, &tenant.names.shown);
            is_it(&query.domain, &tenant.domain) && rule
        };
        let tenants = self.tenants.lock();
        let mut top = Top { by: query.by, ..Top::default() };
        for (tenant, seat) in tenants.seated.iter().zip(&self.seats) {
            if let (Some(tenant), Some(sketches)) = (tenant, seat.sketches.get())
                && is_asked(tenant)
            {
                top.rules += 1;
                top.keys.extend(self.keys(tenant, sketches, query, now));
                // No more is kept on the way than is wanted in the end, and once again as many.
                if top.keys.len() > 2 * query.most {
                    top.keep(query.most);
                }
            }
        }
        top.keep(query.most);
        top
    }

    /// The keys of a rule.
    fn keys(&self, tenant: &Tenant, sketches: &Sketches, query: &Query, now: Instant) -> Vec<HeavyKey> {
        let [hits_of, denied_of, near_of] = By::ALL.map(|by| Others::of(&sketches.of(by).counts()));
        let Counts { mut heaviest, total, .. } = sketches.of(query.by).counts();
        heaviest.sort_unstable_by_key(|heavy| Reverse(heavy.hits));
        heaviest.truncate(query.most);
        let key = |Heavy { print, name, hits, at_least }| {
            let entries = name.map(|name| tenant.names.entries(&name));
            let shown = |entries: &Vec<Entry>| {
                let pair = |(key, value): (&str, Option<Cow<'_, str>>)| Pair {
                    key: key.to_owned(),
                    value: value.map(Cow::into_owned),
                };
                self.values.of_entries(entries).map(pair).collect()
            };
            HeavyKey {
                domain: tenant.domain.to_string(),
                rule: tenant.names.shown.to_string(),
                descriptor: entries.as_ref().map(shown),
                exact: tenant.names.is_exact && entries.is_some(),
                hits: hits_of.get(print),
                denied: denied_of.get(print),
                near: near_of.get(print),
                at_least,
                share: f64::from(hits) / (total.max(1) as f64),
                window_ms: u64::try_from(tenant.age.window(now).as_millis()).unwrap_or(u64::MAX),
                remaining: None,
                capacity: None,
                banned_ms: None,
                entries,
                label: tenant.label.to_string(),
            }
        };
        heaviest.into_iter().map(key).collect()
    }
}

/// What one sketch says of keys that another has named.
struct Others {
    hits: HashMap<u64, u32>,
    is_full: bool,
}

impl Others {
    fn of(counts: &Counts) -> Others {
        Others {
            hits: counts.heaviest.iter().map(|heavy| (heavy.print, heavy.hits)).collect(),
            is_full: counts.is_full,
        }
    }

    /// Where there is a count for every key, one without has none.
    fn get(&self, print: u64) -> Option<u32> {
        self.hits.get(&print).copied().or((!self.is_full).then_some(0))
    }
}

impl HeavyKey {
    /// What it is heavy by.
    pub fn count(&self, by: By) -> u32 {
        match by {
            By::Hits => self.hits,
            By::Denied => self.denied,
            By::Near => self.near,
        }
        .unwrap_or(0)
    }
}

impl Top {
    fn keep(&mut self, most: usize) {
        let by = self.by;
        self.keys.sort_by_key(|key| Reverse(key.count(by)));
        self.keys.truncate(most);
    }
}
