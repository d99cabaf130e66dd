//! The table of seats, which the store keeps: the instances, what each states, and which have a seat.
//!
//! The table reads no clock, because the store's clock may step. Whether an instance is silent, and how long a table
//! has been known, instances tell by their own clocks.

use std::collections::BTreeMap;

/// A table of seats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    about: Option<About>,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct About {
    incarnation: String,
    /// The server that has the table.
    server: String,
    /// For how long instances have known the incarnation, at least.
    known_ms: u64,
}

/// The entry of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Increases with each beat.
    pub beat: u64,
    /// The seat that the instance has, from 0.
    pub seat: Option<u32>,
    /// What the instance states, as text.
    pub stated: String,
}

/// What a beat asks about seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Seat {
    /// The instance wants no seat, and gives up the one it has.
    #[default]
    None,
    /// The instance has this seat.
    Hold(u32),
    /// The instance takes this seat, if it is free and the incarnation has been known for this long.
    Take(u32, u64),
}

/// A beat of an instance, as the table gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beat<'b> {
    /// The instance.
    pub id: &'b str,
    /// The number of the beat.
    pub beat: u64,
    /// What it asks about seats.
    pub seat: Seat,
    /// What it states.
    pub stated: &'b str,
    /// The name of a new incarnation, if there is to be one.
    pub incarnation: &'b str,
    /// The incarnation that the instance knows, and for how long it has known it.
    pub known: (&'b str, u64),
    /// Instances that it has seen silent for long, and the last beat of each.
    pub silent: &'b [(String, u64)],
}

/// The table after a beat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The incarnation of the table.
    pub incarnation: String,
    /// For how long instances have known it, at least.
    pub known_ms: u64,
    /// All entries, with that of the asker.
    pub entries: BTreeMap<String, Entry>,
}

impl Table {
    /// Takes a beat, on the server with this name.
    pub fn beat(&mut self, server: &str, beat: &Beat<'_>) -> Answer {
        let Beat { id, seat, stated, silent, .. } = *beat;
        let about = match self.about.take() {
            Some(about) if about.server == server => {
                let is_known = about.incarnation == beat.known.0;
                About { known_ms: about.known_ms.max(if is_known { beat.known.1 } else { 0 }), ..about }
            }
            // Entries may be missing, and those that are here may be old.
            // The server is part of the name, since the same beat may reach two servers.
            _ => {
                let incarnation = format!("{}@{server}", beat.incarnation);
                About { incarnation, server: server.to_owned(), known_ms: 0 }
            }
        };
        // An old table may have an old beat of an instance that was heard of since.
        for (other, last) in silent.iter().filter(|_| about.incarnation == beat.known.0) {
            if other != id && self.entries.get(other).is_some_and(|entry| entry.beat == *last) {
                self.entries.remove(other);
            }
        }
        let is_free = |seat| !self.entries.iter().any(|(other, entry)| other != id && entry.seat == Some(seat));
        let seat = match seat {
            Seat::Hold(seat) if is_free(seat) => Some(seat),
            Seat::Take(seat, after_ms) if about.known_ms >= after_ms && is_free(seat) => Some(seat),
            Seat::Hold(_) | Seat::Take(..) | Seat::None => None,
        };
        // A beat that arrives late, or a second time, does not replace a newer one.
        if self.entries.get(id).is_none_or(|entry| entry.beat <= beat.beat) {
            self.entries.insert(id.to_owned(), Entry { beat: beat.beat, seat, stated: stated.to_owned() });
        }
        let answer =
            Answer { incarnation: about.incarnation.clone(), known_ms: about.known_ms, entries: self.entries.clone() };
        self.about = Some(about);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(id: &'static str, beat: u64, seat: Seat) -> Beat<'static> {
        Beat { id, beat, seat, incarnation: id, ..Beat::default() }
    }

    #[test]
    fn a_beat_that_arrives_late_does_not_replace_a_newer_one() {
        let mut table = Table::default();
        table.beat("s", &beat("a", 2, Seat::Hold(1)));
        let answer = table.beat("s", &beat("a", 1, Seat::Hold(0)));
        assert_eq!((answer.entries["a"].beat, answer.entries["a"].seat), (2, Some(1)));
    }

    #[test]
    fn the_same_beat_makes_another_incarnation_on_another_server() {
        let first = Table::default().beat("s", &beat("a", 1, Seat::None));
        let second = Table::default().beat("t", &beat("a", 1, Seat::None));
        assert_ne!(first.incarnation, second.incarnation);
    }

    #[test]
    fn an_instance_is_removed_only_in_the_incarnation_in_which_it_was_silent() {
        let mut table = Table::default();
        let incarnation = table.beat("s", &beat("a", 1, Seat::None)).incarnation;
        let silent = [("a".to_owned(), 1)];
        let by = Beat { known: (&incarnation, 0), silent: &silent, ..beat("b", 1, Seat::None) };
        assert!(table.clone().beat("t", &by).entries.contains_key("a"));
        assert!(!table.beat("s", &by).entries.contains_key("a"));
    }
}
