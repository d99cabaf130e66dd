//! What a check finds.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

/// A kind of broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// More was admitted than is promised.
    OverLimit,
    /// No instants exist at which what was admitted keeps the limit.
    NoSchedule,
    /// More holders than places.
    TooManyHolders,
    /// A place was free for certain, was not given, and did not come back.
    LeakedPlace,
    /// A request was denied although its counters were free.
    NeedlessDenial,
    /// The answer told more or less than can have remained.
    WrongRemaining,
    /// The same request did not pass after the wait that was told, or passed long before it.
    WrongWait,
    /// The system's own count is not of what was allowed.
    WrongTotal,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::OverLimit,
        Kind::NoSchedule,
        Kind::TooManyHolders,
        Kind::LeakedPlace,
        Kind::NeedlessDenial,
        Kind::WrongRemaining,
        Kind::WrongWait,
        Kind::WrongTotal,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OverLimit => "over_limit",
            Kind::NoSchedule => "no_schedule",
            Kind::TooManyHolders => "too_many_holders",
            Kind::LeakedPlace => "leaked_place",
            Kind::NeedlessDenial => "needless_denial",
            Kind::WrongRemaining => "wrong_remaining",
            Kind::WrongWait => "wrong_wait",
            Kind::WrongTotal => "wrong_total",
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The line of the history at which it shows.
    pub line: u64,
    /// The limit.
    pub limit: String,
    /// The key.
    pub key: String,
    /// What happened, and what was promised.
    pub what: String,
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Finding { kind, line, limit, key, what } = self;
        write!(f, "line {line}: {kind}: {limit} of {key:?}: {what}")
    }
}

/// How often a promise was broken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of operations, or for a kind that is judged by key, of keys.
    pub count: u64,
    /// The hits that would have had to be denied.
    pub hits: u64,
    /// The line of the history at which it was broken last.
    pub last_line: u64,
}

/// How much of a limit was left where it denied, for certain: its number without all that may have counted. Only of
/// operations at one counter, since of several nobody sees which of them denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// Number of denials.
    pub denials: u64,
    /// The most that was left at one of them.
    pub most: u64,
    /// What was left at all of them together.
    pub sum: u64,
}

impl Unused {
    /// Returns what was left at a denial on average.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.denials.max(1) as f64
    }

    pub(super) fn add(&mut self, left: u64) {
        self.denials += 1;
        self.most = self.most.max(left);
        self.sum += left;
    }
}

/// The judgement of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Number of operations.
    pub operations: u64,
    /// Number of counters.
    pub counters: u64,
    /// Number of operations that were allowed.
    pub allowed: u64,
    /// Number of operations that were denied.
    pub denied: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Number of operations without an answer in time.
    pub late: u64,
    /// The hits of operations that were allowed, over all counters.
    pub admitted_hits: u64,
    /// The longest time in which no operation was decided although some were asked, in microseconds.
    pub longest_undecided_us: u64,
    /// Number of counters that the exact check left out, because they have too many operations.
    pub not_scheduled: u64,
    /// What was left unused where a limit denied, by limit.
    pub unused: std::collections::BTreeMap<String, Unused>,
    /// How often each promise was broken.
    pub broken: std::collections::BTreeMap<Kind, Count>,
    /// The first findings of each kind.
    pub findings: Vec<Finding>,
}

impl Judgement {
    /// The most findings of a kind.
    const MOST: u64 = 5;

    /// Whether all promises were kept, apart from these kinds.
    pub fn is_legal_but_for(&self, ignored: &[Kind]) -> bool {
        self.broken.keys().all(|kind| ignored.contains(kind))
    }

    /// Returns how often a promise was broken.
    pub fn count(&self, kind: Kind) -> u64 {
        self.broken.get(&kind).map_or(0, |count| count.count)
    }

    /// Adds a finding that shows at so many operations.
    pub(super) fn add(&mut self, operations: u64, hits: u64, finding: Finding) {
        let count = self.broken.entry(finding.kind).or_default();
        let is_shown = count.count < Self::MOST;
        count.count += operations;
        count.hits += hits;
        count.last_line = finding.line.max(count.last_line);
        if is_shown {
            self.findings.push(finding);
        }
    }
}

impl Display for Judgement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Judgement { operations, counters, allowed, denied, failed, late, .. } = self;
        writeln!(f, "{operations} operations of {counters} counters")?;
        writeln!(f, "  {allowed} allowed, {denied} denied, {failed} failed, {late} late")?;
        writeln!(f, "  {} hits admitted", self.admitted_hits)?;
        writeln!(f, "  at most {} ms without a decision", self.longest_undecided_us / 1_000)?;
        if self.not_scheduled > 0 {
            writeln!(f, "  {} counters have too many operations for the exact check", self.not_scheduled)?;
        }
        for (limit, unused) in &self.unused {
            let Unused { denials, most, .. } = unused;
            writeln!(
                f,
                "  {limit}: {:.2} left unused at a denial on average, at most {most}, of {denials}",
                unused.mean()
            )?;
        }
        if self.broken.is_empty() {
            return writeln!(f, "legal: every promise was kept");
        }
        for (kind, Count { count, hits, .. }) in &self.broken {
            writeln!(f, "{kind}: {count}, {hits} hits")?;
            for finding in self.findings.iter().filter(|finding| finding.kind == *kind) {
                writeln!(f, "  {finding}")?;
            }
        }
        Ok(())
    }
}
