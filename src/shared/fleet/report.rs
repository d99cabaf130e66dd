//! The report on the instances of a fleet, and on whether all of them decide by the same rules.
//!
//! Another release of Tollgate may compute another version for the same rules, so only instances of the same release
//! are compared. An instance that is draining or has no rules yet is left out.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::shared::fleet::heartbeats::{Heartbeat, ReplicaState};

/// The instances, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// The instances in the order of their names.
    pub replicas: Vec<Line>,
    /// How long instances of one release have had different rules, in milliseconds, at the least: the time since the
    /// last of them got its rules. `None` if all have the same.
    pub rules_differ_ms: Option<u64>,
    /// Why the store does not list other instances, or `None` if it does.
    pub unavailable: Option<String>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The ID: the host name, and a part that is new after each start.
    pub id: String,
    /// Whether this is the instance that answers.
    pub is_self: bool,
    /// The version of Tollgate; empty if another version wrote a state that this one cannot read.
    pub version: String,
    /// Whether it answers requests.
    pub state: ReplicaState,
    /// The version of its rules, or `None` before it has any.
    pub rules: Option<String>,
    /// How long it has had its rules, in milliseconds.
    pub rules_age_ms: u64,
    /// Whether its rules differ from those of most instances of its release.
    pub differs: bool,
    /// The version of its candidate rules, if it has any.
    pub candidates: Option<String>,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// How long ago it published its state, in milliseconds.
    pub heard_ms: u64,
    /// Decisions a second in the last fifteen seconds; `None` if it was not asked or did not answer.
    #[serde(default)]
    pub decisions_per_s: Option<f64>,
    /// Its share of the decisions of all that answered; `None` if unknown, or if there were none.
    #[serde(default)]
    pub share: Option<f64>,
    /// Whether it answers questions of others.
    #[serde(skip)]
    pub answers: bool,
}

impl FleetReport {
    pub(super) fn new(
        own: Heartbeat,
        others: impl Iterator<Item = Heartbeat>,
        unavailable: Option<String>,
    ) -> FleetReport {
        let mut replicas: Vec<Line> = others.map(|other| Line::new(other, false)).collect();
        replicas.push(Line::new(own, true));
        replicas.sort_by(|one, other| one.id.cmp(&other.id));
        let rules_differ_ms = mark(&mut replicas);
        FleetReport { replicas, rules_differ_ms, unavailable }
    }

    /// Adds the decisions a second of these instances.
    pub fn add_rates(&mut self, rates: &HashMap<String, f64>) {
        let all: f64 = rates.values().sum();
        for line in &mut self.replicas {
            line.decisions_per_s = rates.get(&line.id).copied();
            line.share = line.decisions_per_s.filter(|_| all > 0.0).map(|own| own / all);
        }
    }

    /// Returns the number of instances that satisfy a condition.
    pub(super) fn count(&self, is_so: impl Fn(&Line) -> bool) -> usize {
        self.replicas.iter().filter(|line| is_so(line)).count()
    }

    /// Returns whether every instance that is not draining has these rules; with `None`, whether all instances of a
    /// release have the same rules.
    pub fn agrees(&self, rules: Option<&str>) -> bool {
        let mut lines = self.replicas.iter().filter(|line| line.state != ReplicaState::Draining);
        match rules {
            Some(rules) => lines.all(|line| line.rules.as_deref() == Some(rules)),
            None => self.rules_differ_ms.is_none() && lines.all(|line| line.rules.is_some()),
        }
    }
}

impl Line {
    fn new(Heartbeat { id, heard_ms, published }: Heartbeat, is_self: bool) -> Line {
        let published = published.unwrap_or_default();
        Line {
            id,
            is_self,
            version: published.version,
            state: published.state,
            rules: published.rules,
            rules_age_ms: published.rules_age_ms.saturating_add(heard_ms),
            differs: false,
            candidates: published.candidates,
            uptime_ms: published.uptime_ms.saturating_add(heard_ms),
            heard_ms,
            decisions_per_s: None,
            share: None,
            answers: published.answers,
        }
    }

    /// Returns its release and its rules, if it should be compared.
    fn compared(&self) -> Option<(&str, &str)> {
        let rules = self.rules.as_deref().filter(|_| self.state != ReplicaState::Draining)?;
        Some((&self.version, rules))
    }
}

/// Marks the instances with other rules than most have. Returns the shortest time for which they may have differed.
fn mark(replicas: &mut [Line]) -> Option<u64> {
    // For each release the versions of rules, each with the number of instances that have it and the age of the latest.
    let mut releases: HashMap<String, HashMap<String, (usize, u64)>> = HashMap::new();
    for line in replicas.iter() {
        let Some((release, rules)) = line.compared() else { continue };
        let versions = releases.entry(release.to_owned()).or_default();
        let (number, youngest_ms) = versions.entry(rules.to_owned()).or_insert((0, u64::MAX));
        *number += 1;
        *youngest_ms = line.rules_age_ms.min(*youngest_ms);
    }
    releases.retain(|_, versions| versions.len() > 1);
    // In a tie, the newer rules count as those of most, since the other instances have yet to get them.
    let of_most = |versions: &HashMap<String, (usize, u64)>| {
        let most = versions.iter().max_by_key(|(_, (number, age_ms))| (*number, std::cmp::Reverse(*age_ms)));
        most.map(|(rules, _)| rules.clone())
    };
    let most: HashMap<&String, Option<String>> =
        releases.iter().map(|(release, versions)| (release, of_most(versions))).collect();
    for line in replicas.iter_mut() {
        let Some((release, rules)) = line.compared() else { continue };
        let differs = most.get(&release.to_owned()).is_some_and(|most| most.as_deref() != Some(rules));
        line.differs = differs;
    }
    let since = |versions: &HashMap<String, (usize, u64)>| versions.values().map(|(_, age_ms)| *age_ms).min();
    releases.values().filter_map(since).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fleet::heartbeats::Published;

    fn heartbeat(id: &str, rules: &str, age_s: u64) -> Heartbeat {
        let published = Published {
            version: "1.0.0".into(),
            state: ReplicaState::Ready,
            rules: Some(rules.to_owned()).filter(|rules| !rules.is_empty()),
            rules_age_ms: age_s * 1_000,
            ..Published::default()
        };
        Heartbeat { id: id.to_owned(), heard_ms: 1_000, published: Some(published) }
    }

    fn changed(heartbeat: Heartbeat, change: impl FnOnce(&mut Published)) -> Heartbeat {
        let mut published = heartbeat.published.clone().unwrap();
        change(&mut published);
        Heartbeat { published: Some(published), ..heartbeat }
    }

    fn report(all: impl IntoIterator<Item = Heartbeat>) -> FleetReport {
        let mut all = all.into_iter();
        FleetReport::new(all.next().unwrap(), all, None)
    }

    fn differing(report: &FleetReport) -> Vec<&str> {
        report.replicas.iter().filter(|line| line.differs).map(|line| &*line.id).collect()
    }

    #[test]
    fn those_whose_rules_are_not_those_of_most_are_marked_and_differ_since_the_last_change() {
        let told = report([heartbeat("c", "new", 100), heartbeat("a", "old", 900), heartbeat("b", "new", 40)]);
        assert_eq!(told.replicas.iter().map(|line| &*line.id).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((differing(&told), told.rules_differ_ms), (vec!["a"], Some(41_000)));
        assert!(!told.agrees(None) && !told.agrees(Some("new")));
        assert!(told.replicas[2].is_self && !told.replicas[0].is_self);
    }

    #[test]
    fn of_as_many_those_with_the_older_rules_are_marked() {
        for names in [["old", "new"], ["a-old", "z-new"], ["z-old", "a-new"]] {
            let told = report([heartbeat("a", names[0], 900), heartbeat("b", names[1], 40)]);
            assert_eq!(differing(&told), ["a"]);
        }
    }

    #[test]
    fn the_same_rules_agree_however_long_each_has_had_them() {
        let told = report([heartbeat("a", "x", 900), heartbeat("b", "x", 4)]);
        assert_eq!((differing(&told).len(), told.rules_differ_ms), (0, None));
        assert!(told.agrees(None) && told.agrees(Some("x")) && !told.agrees(Some("y")));
    }

    #[test]
    fn a_replica_of_another_release_or_one_that_goes_is_compared_with_none() {
        let other = changed(heartbeat("b", "y", 4), |published| published.version = "2.0.0".into());
        let goes = changed(heartbeat("c", "z", 4), |published| published.state = ReplicaState::Draining);
        let told = report([heartbeat("a", "x", 900), other, goes]);
        assert_eq!((differing(&told).len(), told.rules_differ_ms), (0, None));
        assert!(told.agrees(None) && !told.agrees(Some("x")), "the other release has other rules, or the same");
    }

    #[test]
    fn one_that_has_no_rules_yet_or_cannot_be_read_does_not_agree_and_is_not_marked() {
        let unreadable = Heartbeat { id: "c".into(), heard_ms: 0, published: None };
        for other in [heartbeat("b", "", 4), unreadable] {
            let told = report([heartbeat("a", "x", 900), other]);
            assert_eq!((differing(&told).len(), told.rules_differ_ms), (0, None));
            assert!(!told.agrees(None));
        }
    }
}
