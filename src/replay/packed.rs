//! Requests in little memory, from their lines until they are decided. A window of time holds many requests, and each
//! `Request` is spread over several allocations. Those of a decision log are packed whole; a
//! [`Mapping`](super::mapping::Mapping) needs only the parts that differ from line to line.

use crate::engine::descriptor::Text;

/// The number that represents a missing part.
const MISSING: u64 = u64::MAX;

/// Texts and numbers that are read in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Packed {
    text: String,
    numbers: Vec<u64>,
    /// Position of the next text.
    text_at: usize,
    /// Position of the next number.
    number_at: usize,
}

/// A position to which a list can be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    text: usize,
    numbers: usize,
}

impl Packed {
    /// The largest list that is worth keeping when it is empty, in bytes.
    const MOST_KEPT: usize = 1 << 14;

    /// Appends a number below 2^64 - 1, or that it is missing.
    pub(super) fn push_number(&mut self, number: Option<u64>) {
        self.numbers.push(number.unwrap_or(MISSING));
    }

    /// Appends a text, or that it is missing.
    pub(super) fn push_text(&mut self, text: Option<&str>) {
        self.push_number(text.map(|text| text.len() as u64));
        self.text.push_str(text.unwrap_or_default());
    }

    /// Appends the content of another list.
    pub(super) fn append(&mut self, other: &Packed) {
        self.text.push_str(&other.text);
        self.numbers.extend_from_slice(&other.numbers);
    }

    /// Reads the next number; `None` if it is missing.
    pub(super) fn number(&mut self) -> Option<u64> {
        let number = self.numbers.get(self.number_at).copied().filter(|number| *number != MISSING);
        self.number_at += 1;
        number
    }

    /// Reads the next text; `None` if it is missing.
    pub(super) fn text(&mut self) -> Option<&str> {
        let begin = self.text_at;
        self.text_at += usize::try_from(self.number()?).ok()?;
        self.text.get(begin..self.text_at)
    }

    /// Reads the next text into `text`, which becomes empty if the text is missing.
    pub(super) fn text_into(&mut self, text: &mut Text) {
        text.clear();
        text.push_str(self.text().unwrap_or_default());
    }

    /// Reads the next number as a length, which is 0 if the number is missing.
    pub(super) fn count(&mut self) -> usize {
        self.number().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
    }

    /// Returns the current end.
    pub(super) fn end(&self) -> End {
        End { text: self.text.len(), numbers: self.numbers.len() }
    }

    /// Removes what was appended after this end.
    pub(super) fn cut(&mut self, end: End) {
        self.text.truncate(end.text);
        self.numbers.truncate(end.numbers);
    }

    /// Removes everything. Keeps the memory for reuse, unless it is large.
    pub(super) fn clear(&mut self) {
        if self.text.capacity() + self.numbers.capacity() * size_of::<u64>() > Self::MOST_KEPT {
            *self = Packed::default();
        }
        self.cut(End { text: 0, numbers: 0 });
        (self.text_at, self.number_at) = (0, 0);
    }
}
