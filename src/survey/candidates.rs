//! What candidate rules would decide differently, over all instances.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Ask, Local, Parts, sent_as};
use crate::evaluate::{Differences, RuleDifferences};
use crate::observe::candidates::Report;

/// The most examples of a rule.
const EXAMPLES: usize = 10;

/// A question for the results of candidate rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CandidatesQuestion {
    /// The most rules; `None` for all.
    pub most: Option<usize>,
}

impl Ask for CandidatesQuestion {
    type Part = Report;

    fn answer(&self, local: &Local) -> Option<Report> {
        let mut report = local.candidates.as_ref()?.report();
        let rules = &mut report.differences.rules;
        let most = self.most.unwrap_or(usize::MAX);
        report.differences.more_rules += rules.len().saturating_sub(most);
        rules.truncate(most);
        Some(report)
    }

    fn shorter(&self) -> Option<CandidatesQuestion> {
        match self.most {
            None => Some(CandidatesQuestion { most: Some(64) }),
            Some(0) => None,
            Some(most) => Some(CandidatesQuestion { most: Some(most / 2) }),
        }
    }

    sent_as!(Candidates);
}

/// Adds up the results of all instances that compare the candidates of the first. The number of keys of a rule is then
/// a lower bound, that of one instance: several may have seen the same keys.
pub fn merge(parts: Parts<Report>) -> Option<Report> {
    let mut parts = parts.parts.into_iter().map(|(_, report)| report);
    let mut merged = parts.next()?;
    for report in parts.filter(|report| report.version == merged.version && merged.version.is_some()) {
        merged.since = merged.since.max(report.since);
        merged.sample_now = merged.sample_now.min(report.sample_now);
        add(&mut merged.differences, report.differences);
    }
    Some(merged)
}

fn add(sum: &mut Differences, more: Differences) {
    sum.compared += more.compared;
    sum.newly_denied += more.newly_denied;
    sum.newly_allowed += more.newly_allowed;
    sum.more_rules = sum.more_rules.max(more.more_rules);
    sum.more_keys |=
        more.more_keys || more.rules.iter().any(|rule| rule.keys_newly_denied + rule.keys_newly_allowed > 0);
    let name = |rule: &RuleDifferences| (rule.domain.clone(), rule.rule.clone());
    let places: HashMap<(String, String), usize> =
        sum.rules.iter().enumerate().map(|(place, rule)| (name(rule), place)).collect();
    for rule in more.rules {
        let Some(known) = places.get(&name(&rule)).and_then(|place| sum.rules.get_mut(*place)) else {
            sum.rules.push(rule);
            continue;
        };
        known.agreed += rule.agreed;
        known.newly_denied += rule.newly_denied;
        known.newly_allowed += rule.newly_allowed;
        known.keys_newly_denied = known.keys_newly_denied.max(rule.keys_newly_denied);
        known.keys_newly_allowed = known.keys_newly_allowed.max(rule.keys_newly_allowed);
        known.examples.extend(rule.examples);
        // The latest last, as at one instance.
        known.examples.sort_by(|one, other| one.at.cmp(&other.at));
        known.examples.drain(..known.examples.len().saturating_sub(EXAMPLES));
    }
    sum.rules.sort_by_key(|rule| std::cmp::Reverse(rule.newly_denied + rule.newly_allowed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Example;
    use crate::survey::Instances;

    fn report(version: &str, newly_denied: u64, at: &str) -> Report {
        let example = Example { at: at.into(), asked: "user=ann".into(), outcome: "newly_denied".into() };
        let rule = RuleDifferences {
            domain: "shop".into(),
            rule: "user".into(),
            agreed: 10,
            newly_denied,
            newly_allowed: 0,
            keys_newly_denied: newly_denied as usize,
            keys_newly_allowed: 0,
            examples: vec![example],
        };
        Report {
            files: Vec::new(),
            refused: None,
            version: Some(version.into()),
            since: Some(at.into()),
            sample: 1.0,
            sample_now: 1.0,
            changed: String::new(),
            changes: Vec::new(),
            differences: Differences { compared: 20, newly_denied, rules: vec![rule], ..Differences::default() },
        }
    }

    #[test]
    fn results_of_the_same_candidates_add_up_and_others_are_left_out() {
        let parts = [report("a", 3, "14:00"), report("a", 4, "14:05"), report("b", 100, "14:09")];
        let parts = parts.into_iter().map(|part| (String::new(), part)).collect();
        let merged = merge(Parts { parts, instances: Instances::default() }).unwrap();
        let (all, rule) = (&merged.differences, &merged.differences.rules[0]);
        assert_eq!((all.compared, all.newly_denied, merged.since.as_deref()), (40, 7, Some("14:05")));
        assert_eq!((rule.agreed, rule.newly_denied, rule.keys_newly_denied), (20, 7, 4));
        assert!(all.more_keys, "the number of keys is a lower bound");
        assert_eq!(rule.examples.iter().map(|example| &*example.at).collect::<Vec<_>>(), ["14:00", "14:05"]);
    }
}
