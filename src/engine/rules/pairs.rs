//! The options of a limit that can be combined, and the reasons why others cannot: one table of all pairs.
//!
//! The table is built from the conflicts that options declare (`Key::conflicts`) and from the options of each
//! algorithm. [`validate`](super::validate) rejects what the table rejects, with its texts; the schema for editors and
//! the page on rules are built from it; and tests go over every pair.

use std::fmt::Write as _;
use std::sync::LazyLock;

// Its hash is fast; the names come from the code alone.
use hashbrown::HashMap;

use super::config::RawLimit;
use super::keys::{DESCRIPTOR, RATE_LIMIT};
use super::options::{NO_PART, lease, own_share};
use super::section::{Key, Takes};
use crate::algorithm::{Algorithm, LimitError};

/// Options of an unlimited rule; all others are about counting.
const OF_UNLIMITED: [&str; 2] = ["name", "replaces"];

/// Why an unlimited rule ignores all other options.
const COUNTS_NOTHING: &str = "does nothing: an unlimited rule counts nothing";

/// Why its descriptor ignores options about denials.
const DENIES_NOTHING: &str = "does nothing: an unlimited rule denies nothing";

/// An option in the table.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// Its key.
    pub key: &'static Key,
    /// Whether it belongs to the descriptor rather than to the limit.
    pub is_beside: bool,
}

/// A conflict between two options.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// The key where it is reported.
    pub at: &'static str,
    /// The key or the algorithm that it conflicts with.
    pub with: &'static str,
    /// The reason, in the text of `tollgate check`.
    pub why: String,
    /// The effect of the conflict.
    pub kind: ConflictKind,
}

/// The effect of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// The rules are rejected.
    Refused,
    /// The option where it is reported has no effect, which is a warning.
    Ignored,
}

/// The table's entry for two options.
#[derive(Clone, Debug)]
pub enum Pair {
    /// They can be combined in a limit with any of these algorithms.
    Together(Vec<Algorithm>),
    /// They conflict.
    Apart(&'static Conflict),
    /// No algorithm has both.
    NoAlgorithm,
}

/// The table.
struct Table {
    /// Every option, and the number and the algorithm that every limit has.
    terms: Vec<Term>,
    /// Conflicts, each with the bits of its two options.
    conflicts: Vec<(u64, Conflict)>,
    /// The bit of each option by its key, and after these the bit of each algorithm by its name.
    places: HashMap<&'static str, usize>,
    /// For each bit, the bits that it conflicts with.
    against: [u64; 64],
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// Returns every option: those of a limit, and those of its descriptor that affect it.
pub fn terms() -> impl Iterator<Item = &'static Term> + Clone {
    TABLE.terms.iter().filter(|term| !term.key.example.is_empty())
}

/// Returns all conflicts.
pub fn conflicts() -> impl Iterator<Item = &'static Conflict> {
    TABLE.conflicts.iter().map(|(_, conflict)| conflict)
}

/// Returns the table's entry for two options, by their keys.
pub fn pair(one: &str, other: &str) -> Pair {
    if let Some(conflict) = between(one, other) {
        return Pair::Apart(conflict);
    }
    let has_both = |algorithm: &Algorithm| [one, other].iter().all(|key| between(key, algorithm.name()).is_none());
    let both: Vec<Algorithm> = Algorithm::ALL.iter().copied().filter(has_both).collect();
    if both.is_empty() { Pair::NoAlgorithm } else { Pair::Together(both) }
}

/// Returns the conflict between two options, or between an option and an algorithm.
pub fn between(one: &str, other: &str) -> Option<&'static Conflict> {
    conflicts()
        .find(|conflict| (conflict.at, conflict.with) == (one, other) || (conflict.at, conflict.with) == (other, one))
}

/// The options of one limit, as a set of bits of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given(u64);

/// Returns whether a limit writes that it has none of this option, whatever the defaults of its file are.
fn is_none(raw: &RawLimit<'_>, key: &str) -> bool {
    match key {
        lease::KEY_NAME => raw.mapping(key).get().is_some_and(|lease| lease.text("unused").get() == Some(&NO_PART)),
        own_share::KEY_NAME => raw.text(key).get() == Some(&NO_PART),
        _ => false,
    }
}

impl Given {
    /// Collects the options of a limit, alone or as one of several. `counted` is its algorithm, and whether a denied
    /// request is charged if the limit does not set that.
    pub(super) fn of(raw: &RawLimit<'_>, counted: Option<(Algorithm, bool)>, is_one_of_several: bool) -> Given {
        let mut given = Given(0);
        let is_unlimited = raw.flag("unlimited").get() == Some(&true);
        for name in raw.given() {
            let Some(place) = TABLE.places.get(name) else { continue };
            let key = TABLE.terms[*place].key;
            let has_effect = match (key.takes, raw.flag(name).get()) {
                // A flag with its default value has no effect; in an unlimited rule, no value of it has one.
                (Takes::Flag, flag) => flag.is_some_and(|flag| is_unlimited || *flag == (key.example == "true")),
                _ => raw.get(name).get().is_some() && !is_none(raw, name),
            };
            given.0 |= u64::from(has_effect) << place;
        }
        if let Some((algorithm, counts_denied)) = counted {
            let counts_denied = counts_denied && raw.get("count_denied").is_missing();
            given.0 |= TABLE.bit(algorithm.name()) | if counts_denied { TABLE.bit("count_denied") } else { 0 };
        }
        given.0 |= if is_one_of_several { TABLE.bit("rate_limits") } else { 0 };
        given
    }

    /// Removes one option.
    #[must_use]
    pub(super) fn without(self, key: &str) -> Given {
        Given(self.0 & !TABLE.bit(key))
    }

    /// Returns the conflicts among these options; for an unlimited rule, only those with `unlimited`.
    pub(super) fn conflicts(self, is_unlimited: bool) -> impl Iterator<Item = &'static Conflict> {
        // Usually there is none.
        let all = if self.is_at_odds() { &TABLE.conflicts[..] } else { &[] };
        let all = all.iter().filter(move |(bits, _)| self.0 & bits == *bits);
        all.map(|(_, conflict)| conflict).filter(move |conflict| !is_unlimited || conflict.is_of("unlimited"))
    }

    fn is_at_odds(self) -> bool {
        let mut left = self.0;
        while left != 0 {
            if self.0 & TABLE.against[left.trailing_zeros() as usize] != 0 {
                return true;
            }
            left &= left - 1;
        }
        false
    }
}

impl Conflict {
    /// Returns whether it is about this option or algorithm.
    pub fn is_of(&self, name: &str) -> bool {
        self.at == name || self.with == name
    }

    /// Returns the other option if it is about this one.
    pub fn other_than(&self, name: &str) -> Option<&'static str> {
        match (self.at, self.with) {
            (at, with) if with == name => Some(at),
            (at, with) if at == name => Some(with),
            _ => None,
        }
    }
}

impl Table {
    fn new() -> Table {
        let of_limits: Vec<Term> = RATE_LIMIT.keys().map(|key| Term { key, is_beside: false }).collect();
        let beside = DESCRIPTOR.keys().filter(|key| !key.example.is_empty());
        let beside: Vec<Term> = beside.map(|key| Term { key, is_beside: true }).collect();
        let terms = [of_limits.clone(), beside.clone()].concat();
        let names =
            terms.iter().map(|term| term.key.name).chain(Algorithm::ALL.iter().map(|algorithm| algorithm.name()));
        let places = names.enumerate().map(|(place, name)| (name, place)).collect();
        let mut table = Table { terms, conflicts: Vec::new(), places, against: [0; 64] };
        for Term { key, .. } in &of_limits {
            for (with, why) in key.conflicts {
                table.add(key.name, with, (*why).to_owned(), ConflictKind::Refused);
            }
        }
        for Term { key, .. } in &beside {
            // Reported at the other option, which is in the limit.
            for (other, why) in key.conflicts {
                table.add(other, key.name, (*why).to_owned(), ConflictKind::Refused);
            }
        }
        let is_of_one = |key: &str| Algorithm::ALL.iter().any(|algorithm| algorithm.options().contains(&key));
        for Term { key, .. } in of_limits.iter().filter(|term| is_of_one(term.key.name)) {
            for algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.has(key.name)) {
                let why = LimitError::NoOption(*algorithm, key.name).to_string();
                table.add(key.name, algorithm.name(), why, ConflictKind::Refused);
            }
        }
        let counts = |name: &str| name != "unlimited" && !OF_UNLIMITED.contains(&name);
        for Term { key, is_beside } in table.terms.clone().into_iter().filter(|term| counts(term.key.name)) {
            let is_known = table.conflicts.iter().any(|(_, known)| known.is_of("unlimited") && known.is_of(key.name));
            if !is_known {
                let why = if is_beside { DENIES_NOTHING } else { COUNTS_NOTHING };
                table.add(key.name, "unlimited", why.to_owned(), ConflictKind::Ignored);
            }
        }
        table
    }

    fn add(&mut self, at: &'static str, with: &'static str, why: String, kind: ConflictKind) {
        let bits = self.bit(at) | self.bit(with);
        for place in [at, with].into_iter().filter_map(|name| self.places.get(name)) {
            self.against[*place] |= bits & !(1 << place);
        }
        self.conflicts.push((bits, Conflict { at, with, why, kind }));
    }

    /// Returns the bit of an option or an algorithm.
    fn bit(&self, name: &str) -> u64 {
        self.places.get(name).map_or(0, |place| 1 << place)
    }
}

/// Writes the conflicts, each once, as in the page on rules.
pub fn page() -> String {
    let mut page = "| option | not with | because |\n| --- | --- | --- |\n".to_owned();
    for (place, Term { key, .. }) in terms().enumerate() {
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        let mut add = |with: &'static str, why: String| match rows.iter_mut().find(|(known, _)| *known == why) {
            Some((_, all)) => all.push(shown(with)),
            None => rows.push((why, vec![shown(with)])),
        };
        let owners = Algorithm::ALL.iter().filter(|algorithm| algorithm.options().contains(&key.name));
        let owners: Vec<String> = owners.map(|algorithm| shown(algorithm.name())).collect();
        let is_algorithm = |name: &str| Algorithm::ALL.iter().any(|algorithm| algorithm.name() == name);
        for conflict in conflicts() {
            match conflict.kind {
                ConflictKind::Refused
                    if conflict.at == key.name && is_algorithm(conflict.with) && !owners.is_empty() =>
                {
                    add(conflict.with, format!("only {} has it", owners.join(" or ")));
                }
                ConflictKind::Refused if conflict.at == key.name => add(conflict.with, conflict.why.clone()),
                // All conflicts of an unlimited rule share one row.
                ConflictKind::Ignored if conflict.with == key.name => {
                    add(conflict.at, format!("a warning: {}", conflict.why));
                }
                _ => {}
            }
        }
        let never = |other: &&Term| matches!(pair(key.name, other.key.name), Pair::NoAlgorithm);
        for other in terms().skip(place + 1).filter(never) {
            add(other.key.name, "no algorithm has both".to_owned());
        }
        for (why, with) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| {} | {} | {why} |", shown(key.name), with.join(", "));
        }
    }
    page
}

/// Formats an option or algorithm, with the effective value if it is a flag.
fn shown(name: &str) -> String {
    let term = terms().find(|term| term.key.name == name);
    match term {
        Some(Term { key, .. }) if matches!(key.takes, Takes::Flag) => format!("`{name}: {}`", key.example),
        _ => format!("`{name}`"),
    }
}
