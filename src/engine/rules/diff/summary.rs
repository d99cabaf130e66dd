//! A summary of all differences: their number, and the first of them.

use std::fmt;

use super::{Change, Kind, compare};
use crate::rules::Rules;

/// Numbers of differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// New limits.
    pub added: usize,
    /// Removed limits.
    pub removed: usize,
    /// Changed limits and defaults.
    pub changed: usize,
    /// The differences with counters that start from zero.
    pub afresh: usize,
}

/// Numbers of differences, and the first of them as text.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The numbers.
    pub totals: Totals,
    lost: Vec<String>,
    others: Vec<String>,
}

/// Number of differences written out; a line of the log has room for them.
const SHOWN: usize = 25;

impl Totals {
    /// Returns whether there are no differences.
    pub fn are_none(&self) -> bool {
        *self == Totals::default()
    }

    /// Counts a difference.
    pub fn add(&mut self, change: &Change<'_>) {
        match change.kind {
            Kind::DomainAdded(limits) => self.added += limits,
            Kind::DomainRemoved(limits) => self.removed += limits,
            Kind::Added(..) => self.added += 1,
            Kind::Removed(..) => self.removed += 1,
            Kind::Defaults(..) | Kind::Expect(..) | Kind::Order | Kind::Changed(..) => self.changed += 1,
        }
        self.afresh += usize::from(change.counters.are_lost());
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { added, removed, changed, afresh } = self;
        write!(f, "{added} added, {removed} removed, {changed} changed; counters of {afresh} are reset")
    }
}

impl Summary {
    /// Summarizes the differences between two sets of rules.
    pub fn of(old: &Rules, new: &Rules) -> Summary {
        let mut summary = Summary::default();
        compare(old, new, &mut |change| summary.add(&change));
        summary
    }

    fn add(&mut self, change: &Change<'_>) {
        self.totals.add(change);
        let lines = if change.counters.are_lost() { &mut self.lost } else { &mut self.others };
        // Whole domains count as one.
        if lines.len() <= SHOWN {
            lines.push(change.to_string());
        }
    }
}

/// Writes one line per difference, starting with those that reset counters.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&String> = self.lost.iter().chain(&self.others).collect();
        for line in lines.iter().take(SHOWN) {
            writeln!(f, "{line}")?;
        }
        if lines.len() > SHOWN {
            writeln!(f, "more changes: tollgate check --against OLD NEW shows all of them")?;
        }
        Ok(())
    }
}
