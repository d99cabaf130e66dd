//! The counts of limits over all instances.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Ask, Local, Parts, sent_as};
use crate::metrics::RuleReading;
use crate::observe::history::{Minute, Rate, RuleHistory};

/// The most limits asked by name.
pub const MOST_NAMED: usize = 500;

/// A question for the counts of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsQuestion {
    /// Domain and label of limits to count.
    pub named: Vec<(String, String)>,
    /// Number of further limits: those that denied the most, and then those with the most requests.
    pub busiest: usize,
    /// Whether to add the last hour, by minutes.
    pub hour: bool,
}

/// The counts of limits at one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitsPart {
    /// The limits that were used.
    pub limits: Vec<LimitPart>,
}

/// The counts of one limit at one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitPart {
    /// Its last fifteen minutes, with its name.
    pub history: RuleHistory,
    /// Counts since the start of the process.
    pub counted: RuleReading,
    /// The last hour, if it was asked for.
    #[serde(default)]
    pub hour: Vec<Minute>,
}

/// The counts of one limit over all instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LimitCounts {
    /// Counts since the start of each instance.
    pub counted: RuleReading,
    /// The last fifteen seconds; `None` if it was not used then.
    pub rate: Option<Rate>,
    /// Requests over the limit in each thirtieth of the last fifteen minutes, the oldest first.
    pub spark: Vec<u64>,
    /// The last hour, if it was asked for; minutes without requests are left out.
    pub hour: Vec<Minute>,
}

/// Counts of limits over all instances, by domain and label.
pub type Counts = HashMap<(String, String), LimitCounts>;

impl Ask for LimitsQuestion {
    type Part = LimitsPart;

    fn answer(&self, local: &Local) -> Option<LimitsPart> {
        let (metrics, history) = (local.metrics.as_ref()?, local.history.as_ref()?);
        let part = |mut history: RuleHistory, hour: Vec<Minute>| {
            history.fold();
            let counted = metrics.reading_of(&history.domain, &history.rule)?;
            Some(LimitPart { history, counted, hour })
        };
        let named = self.named.iter().take(MOST_NAMED).filter_map(|(domain, rule)| {
            let unused = || RuleHistory { domain: domain.clone(), rule: rule.clone(), ..RuleHistory::default() };
            let hour = if self.hour { history.hour_of_rule(domain, rule) } else { Vec::new() };
            part(history.of_rule(domain, rule).unwrap_or_else(unused), hour)
        });
        let is_named =
            |of: &RuleHistory| self.named.iter().any(|(domain, rule)| of.domain == *domain && of.rule == *rule);
        let busiest = history.busiest_rules(self.busiest).into_iter().filter(|of| !is_named(of));
        Some(LimitsPart { limits: named.chain(busiest.filter_map(|of| part(of, Vec::new()))).collect() })
    }

    fn shorter(&self) -> Option<LimitsQuestion> {
        match (self.busiest, self.named.len()) {
            (0, 0 | 1) => None,
            (0, named) => Some(LimitsQuestion { named: self.named[..named / 2].to_vec(), ..self.clone() }),
            (busiest, _) => Some(LimitsQuestion { busiest: busiest / 2, ..self.clone() }),
        }
    }

    sent_as!(Limits);
}

/// Adds up the counts of all instances, by domain and label.
pub fn merge(parts: Parts<LimitsPart>) -> Counts {
    let all = || parts.parts.iter().flat_map(|(_, part)| &part.limits);
    let latest_ms = all().map(|part| part.history.latest_ms).max().unwrap_or_default();
    let mut merged = Counts::new();
    for LimitPart { history, counted, hour } in all() {
        let counts = merged.entry((history.domain.clone(), history.rule.clone())).or_default();
        counts.counted += *counted;
        if let Some(rate) = history.rate {
            *counts.rate.get_or_insert_default() += rate;
        }
        let spark = history.spark(latest_ms);
        counts.spark.resize(spark.len(), 0);
        counts.spark.iter_mut().zip(spark).for_each(|(sum, more)| *sum += more);
        for minute in hour {
            match counts.hour.binary_search_by_key(&minute.at_ms, |known| known.at_ms) {
                Ok(at) => {
                    counts.hour[at].requests += minute.requests;
                    counts.hour[at].denied += minute.denied;
                }
                Err(at) => counts.hour.insert(at, *minute),
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::Instances;

    fn part(rule: &str, requests: u64, latest_ms: u64) -> LimitPart {
        LimitPart {
            history: RuleHistory {
                domain: "shop".into(),
                rule: rule.into(),
                rate: Some(Rate { requests_per_s: requests as f64, ..Rate::default() }),
                latest_ms,
                over: vec![(latest_ms, 3)],
                denied: vec![(latest_ms, 3)],
            },
            counted: RuleReading { requests, ..RuleReading::default() },
            hour: vec![Minute { at_ms: 60_000, requests, denied: 1 }],
        }
    }

    #[test]
    fn the_counts_of_all_instances_add_up_by_limit() {
        let parts = [vec![part("user", 10, 100_000), part("login", 1, 100_000)], vec![part("user", 5, 105_000)]];
        let parts = parts.into_iter().map(|limits| (String::new(), LimitsPart { limits })).collect();
        let merged = merge(Parts { parts, instances: Instances::default() });
        let user = &merged[&("shop".to_owned(), "user".to_owned())];
        assert_eq!((user.counted.requests, user.rate.unwrap().requests_per_s), (15, 15.0));
        assert_eq!((user.spark.last(), user.spark.iter().sum::<u64>()), (Some(&6), 6));
        assert_eq!(user.hour, [Minute { at_ms: 60_000, requests: 15, denied: 2 }]);
        assert_eq!(merged.len(), 2);
    }

    #[test]
    fn a_shorter_question_ends() {
        let named = (0..100).map(|rule| ("shop".to_owned(), format!("r{rule}"))).collect();
        let mut question = LimitsQuestion { named, busiest: 512, hour: false };
        let mut times = 0;
        while let Some(shorter) = question.shorter() {
            (question, times) = (shorter, times + 1);
        }
        assert!(times < 30, "{times}");
    }
}
