//! Limits how often a line about a name is logged when clients choose the names.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Interval between lines about one name.
const EVERY: Duration = Duration::from_secs(60);

/// Number of names kept, and so of lines in an interval. All other names together have one more line.
const NAMES: usize = 32;

/// Bytes kept of a name.
const NAME_BYTES: usize = 128;

/// Allows one line a minute for each name, and one for all names beyond a bound. The log and the memory stay bounded
/// regardless of the names that clients send.
#[derive(Debug, Default)]
pub struct ThrottleByName {
    names: Mutex<Names>,
}

/// A line that may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// A line about the name, with the number of its occurrences since its last line, including this one.
    Name(u64),
    /// A line about all other names, with the number of their occurrences since the last such line.
    Others(u64),
}

#[derive(Debug, Default)]
struct Names {
    kept: HashMap<Box<str>, Line>,
    others: Option<Line>,
    /// No kept name can be replaced before this time.
    full_until: Option<Instant>,
}

/// The time of the last line, and the number of occurrences since.
#[derive(Clone, Copy, Debug)]
struct Line {
    logged: Instant,
    times: u64,
}

impl ThrottleByName {
    /// Returns the line to log about a name, or `None` to log nothing.
    pub fn admit(&self, name: &str) -> Option<Admitted> {
        self.names.lock().admit(name, Instant::now())
    }
}

impl Line {
    /// Counts an occurrence. Returns the number since the last line if the next line is due.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if now.duration_since(self.logged) < EVERY {
            return None;
        }
        self.logged = now;
        Some(std::mem::take(&mut self.times))
    }
}

impl Names {
    fn admit(&mut self, name: &str, now: Instant) -> Option<Admitted> {
        let end =
            name.char_indices().map(|(at, char)| at + char.len_utf8()).take_while(|end| *end <= NAME_BYTES).last();
        let name = &name[..end.unwrap_or(0)];
        if let Some(line) = self.kept.get_mut(name) {
            return line.admit(now).map(Admitted::Name);
        }
        if self.has_room(now) {
            self.kept.insert(name.into(), Line { logged: now, times: 0 });
            return Some(Admitted::Name(1));
        }
        match &mut self.others {
            Some(line) => line.admit(now).map(Admitted::Others),
            None => {
                self.others = Some(Line { logged: now, times: 0 });
                Some(Admitted::Others(1))
            }
        }
    }

    /// Returns whether there is room for a new name, after removing names not logged for an interval.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.kept.len() < NAMES {
            return true;
        }
        if self.full_until.is_none_or(|until| until <= now) {
            self.kept.retain(|_, line| now.duration_since(line.logged) < EVERY);
            self.full_until = self.kept.values().map(|line| line.logged + EVERY).min();
        }
        self.kept.len() < NAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_logged_at_once_and_then_once_a_minute_with_how_often_it_came() {
        let (mut names, start) = (Names::default(), Instant::now());
        let mut at = |second| names.admit("shpo", start + Duration::from_secs(second));
        assert_eq!(at(0), Some(Admitted::Name(1)));
        assert!((1..60).all(|second| at(second).is_none()));
        assert_eq!(at(60), Some(Admitted::Name(60)));
        assert_eq!(at(61), None);
    }

    #[test]
    fn a_flood_of_names_makes_a_bounded_number_of_lines_and_takes_bounded_memory() {
        let (mut names, start) = (Names::default(), Instant::now());
        let mut lines = [0; 3];
        for ms in 0..180_000 {
            let name = format!("é{ms}{}", "x".repeat(1_000));
            let admitted = names.admit(&name, start + Duration::from_millis(ms));
            lines[(ms / 60_000) as usize] += usize::from(admitted.is_some());
            assert!(names.kept.len() <= NAMES && names.kept.keys().all(|name| name.len() <= NAME_BYTES));
        }
        assert!(lines.iter().all(|lines| (1..=NAMES + 1).contains(lines)), "{lines:?}");
    }
}
