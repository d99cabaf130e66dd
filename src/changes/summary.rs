//! What is said of all differences together: how many there are, and the first of them.

use std::fmt;

use super::{Change, Kind, compare};
use crate::rules::Rules;

/// How many differences there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Limits that are new.
    pub added: usize,
    /// Limits that are gone.
    pub removed: usize,
    /// Limits and defaults that say something else.
    pub changed: usize,
    /// So many of these have counters that start afresh.
    pub afresh: usize,
}

/// How many differences there are, and the first of them.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many there are.
    pub totals: Totals,
    lost: Vec<String>,
    others: Vec<String>,
}

/// So many differences are written out. A line of the log has room for them.
const SHOWN: usize = 25;

impl Totals {
    /// There is none.
    pub fn are_none(&self) -> bool {
        *self == Totals::default()
    }

    /// Counts one more.
    pub fn add(&mut self, change: &Change<'_>) {
        match change.kind {
            Kind::DomainAdded(limits) => self.added += limits,
            Kind::DomainRemoved(limits) => self.removed += limits,
            Kind::Added(..) => self.added += 1,
            Kind::Removed(..) => self.removed += 1,
            Kind::Defaults(..) | Kind::Order | Kind::Changed(..) => self.changed += 1,
        }
        self.afresh += usize::from(change.counters.are_lost());
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { added, removed, changed, afresh } = self;
        write!(f, "{added} added, {removed} removed, {changed} changed; counters of {afresh} start afresh")
    }
}

impl Summary {
    /// Of the differences between these.
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

/// A line for each, those first whose counters start afresh.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&String> = self.lost.iter().chain(&self.others).collect();
        for line in lines.iter().take(SHOWN) {
            writeln!(f, "{line}")?;
        }
        if lines.len() > SHOWN {
            writeln!(f, "and more: tollgate check --against OLD NEW shows all of them")?;
        }
        Ok(())
    }
}
