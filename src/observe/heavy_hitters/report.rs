//! Reports of the heaviest keys, with their names.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hasher as _;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::sketch::{Counts, Heavy};
use super::{HeavyHitters, Sketches, Tenant};
use crate::engine::asked::{Asked, Source};
use crate::engine::descriptor::{Entry, Request};
use crate::engine::rules::{Allowance, Rule};
use crate::observe::redaction::Values;

/// The measure by which keys are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// All hits.
    #[default]
    Hits,
    /// Hits over the limit.
    Denied,
    /// Hits within the limit, but beyond `NEAR_LIMIT_RATIO` of it.
    Near,
}

impl By {
    /// All measures.
    pub const ALL: [By; 3] = [By::Hits, By::Denied, By::Near];

    /// Returns the name in queries and answers.
    pub const fn name(self) -> &'static str {
        match self {
            By::Hits => "hits",
            By::Denied => "denied",
            By::Near => "near",
        }
    }
}

/// A query for the heaviest keys.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only this domain; `None` for all.
    pub domain: Option<String>,
    /// Only the rule with this name in metrics; `None` for all.
    pub rule: Option<String>,
    /// The measure.
    pub by: By,
    /// The most keys to return.
    pub most: usize,
}

/// The heaviest keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Top {
    /// The measure.
    pub by: By,
    /// Number of matching rules that are counted.
    pub rules: usize,
    /// Keys, the heaviest first.
    pub keys: Vec<HeavyKey>,
    /// Totals of the matching rules.
    #[serde(skip)]
    pub totals: Vec<RuleTotal>,
    /// Why counters that were requested could not all be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// A key of a rule. Its counts cover the last `window_ms`, with less weight for older hits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeavyKey {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the rule's limit in metrics.
    pub rule: String,
    /// Entries that identify the counter; `None` if they are too long to keep.
    pub descriptor: Option<Vec<Pair>>,
    /// Whether a request with these entries uses this counter. It is false if values are hashed or hidden, if several
    /// values share the counter or hold slots of it, and for limits that requests set.
    pub exact: bool,
    /// Approximate number of hits; `None` if there are too few for a count while other keys have more.
    pub hits: Option<u64>,
    /// Approximate number of these hits over the limit.
    pub denied: Option<u64>,
    /// Approximate number of these hits near the limit.
    pub near: Option<u64>,
    /// Lower bound of the measure's count.
    pub at_least: u64,
    /// The key's share of the rule's total by the measure.
    pub share: f64,
    /// Length of time that the counts cover, in milliseconds.
    pub window_ms: u64,
    /// Remaining hits of the counter now, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The most hits that the limit allows at one moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Time until the counter is as good as new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_after_ms: Option<u64>,
    /// How much longer a ban lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banned_ms: Option<u64>,
    /// Effect of a denial: `enforced`, `quota` or `shadow`; `None` if the rule is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Cow<'static, str>>,
    /// Entries to ask for the counter.
    #[serde(skip)]
    pub entries: Option<Vec<Entry>>,
    /// Label of the limit in metrics, without redaction.
    #[serde(skip)]
    pub label: String,
    /// Identifies the counter among those of all instances; `None` if its name was not kept.
    #[serde(skip)]
    pub id: Option<u64>,
}

/// The total of a rule, and the size of what its sketch may have missed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleTotal {
    /// Domain of the rule.
    pub domain: String,
    /// Label of the rule's limit as it is shown.
    pub rule: String,
    /// The measure's count over all keys.
    pub total: u64,
    /// The largest count that a key without a count had to compete with; 0 if all keys have a count.
    pub floor: u64,
}

/// An entry with its value as a setting shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Key of the entry.
    pub key: String,
    /// Value of the entry; `None` if it is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The parts of a rule's key names that do not depend on the key, and the label of the rule.
#[derive(Debug)]
pub(super) struct Names {
    /// The label of the rule as it is shown.
    shown: Box<str>,
    /// For each level of the rule its entry, or nothing if that differs by key. `None` if all levels differ.
    levels: Option<Box<str>>,
    /// Whether the shown entries are those of requests.
    is_exact: bool,
}

/// Joins entries into one text. An empty pair represents no entry.
fn joined<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

fn split(text: &str) -> impl Iterator<Item = Entry> {
    form_urlencoded::parse(text.as_bytes()).map(|(key, value)| Entry { key: key.into(), value: value.into() })
}

/// Returns each level of a rule, if the rule specifies it completely.
fn spelled_out(rule: &Rule) -> impl Iterator<Item = Option<(&str, &str)>> {
    rule.keys_and_values().map(|(key, value)| {
        let value = value.filter(|value| !value.contains('*') && !key.contains('*'))?;
        Some((key, value))
    })
}

/// Returns the part of a request's counter name that is kept: whatever its rule does not specify. Values that share a
/// counter have one name.
pub(super) fn name(request: &Request, asked: &Asked<'_>) -> String {
    let Some(descriptor) = request.descriptors.get(asked.check.descriptor) else { return String::new() };
    let entries = descriptor.entries.iter().map(|Entry { key, value }| (key.as_str(), value.as_str()));
    let Source::Rule(rule, _) = asked.source else { return joined(entries) };
    let last = rule.levels().wrapping_sub(1);
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

    /// Returns the entries of a key from the part that was kept.
    fn entries(&self, kept: &str) -> Vec<Entry> {
        let mut open = split(kept);
        let Some(levels) = &self.levels else { return open.collect() };
        let is_open = |level: &Entry| level.key.is_empty();
        split(levels).filter_map(|level| if is_open(&level) { open.next() } else { Some(level) }).collect()
    }
}

impl HeavyHitters {
    /// Returns the heaviest keys.
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
                let (keys, total) = self.keys(tenant, sketches, query, now);
                top.keys.extend(keys);
                top.totals.push(total);
                // Keeps at most twice the requested number while collecting.
                if top.keys.len() > 2 * query.most {
                    top.keep(query.most);
                }
            }
        }
        top.keep(query.most);
        top
    }

    /// Returns the keys of a rule, and its total.
    fn keys(&self, tenant: &Tenant, sketches: &Sketches, query: &Query, now: Instant) -> (Vec<HeavyKey>, RuleTotal) {
        let [hits_of, denied_of, near_of] = By::ALL.map(|by| Others::of(&sketches.of(by).counts()));
        let Counts { mut heaviest, total, floor, .. } = sketches.of(query.by).counts();
        heaviest.sort_unstable_by_key(|heavy| Reverse(heavy.hits));
        heaviest.truncate(query.most);
        let key = |Heavy { print, name, hits, at_least }| {
            let id = name.as_ref().map(|name| identity(&tenant.domain, &tenant.path, name));
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
                share: hits as f64 / (total.max(1) as f64),
                window_ms: u64::try_from(tenant.age.window(now).as_millis()).unwrap_or(u64::MAX),
                remaining: None,
                capacity: None,
                reset_after_ms: None,
                banned_ms: None,
                role: None,
                entries,
                label: tenant.label.to_string(),
                id,
            }
        };
        let (domain, rule) = (tenant.domain.to_string(), tenant.names.shown.to_string());
        (heaviest.into_iter().map(key).collect(), RuleTotal { domain, rule, total, floor })
    }
}

/// Returns the identity of a counter, which is the same at all instances.
fn identity(domain: &str, path: &str, name: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    for text in [domain, path, name] {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

/// Another sketch's counts for keys that were found in the first.
struct Others {
    hits: HashMap<u64, u64>,
    is_full: bool,
}

impl Others {
    fn of(counts: &Counts) -> Others {
        Others {
            hits: counts.heaviest.iter().map(|heavy| (heavy.print, heavy.hits)).collect(),
            is_full: counts.is_full,
        }
    }

    /// Returns the hits of a key. A key without a count has none, unless the sketch is full.
    fn get(&self, print: u64) -> Option<u64> {
        self.hits.get(&print).copied().or((!self.is_full).then_some(0))
    }
}

impl HeavyKey {
    /// Returns the key's count by a measure.
    pub fn count(&self, by: By) -> u64 {
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
