//! Texts with wildcards, in rules and in targets of adjustments.

use std::fmt;

/// A text in which each `*` matches any number of characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wildcard {
    /// The pieces between the stars.
    pieces: Box<[Box<str>]>,
}

impl Wildcard {
    /// Reads a text, in which each `*` is a wildcard.
    pub fn new(pattern: &str) -> Wildcard {
        Wildcard { pieces: pattern.split('*').map(Into::into).collect() }
    }

    /// Returns whether there is a wildcard at all.
    pub fn is_wild(&self) -> bool {
        self.pieces.len() > 1
    }

    /// Returns whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.pieces else {
            return *self.pieces[0] == *text;
        };
        let Some(text) = text.strip_prefix(&**first) else { return false };
        let Some(mut text) = text.strip_suffix(&**last) else { return false };
        middle.iter().all(|piece| match text.find(&**piece) {
            Some(at) => {
                text = &text[at + piece.len()..];
                true
            }
            None => false,
        })
    }

    /// Returns whether some text matches both. The cost is the product of their lengths.
    pub fn overlaps(&self, other: &Wildcard) -> bool {
        let [one, other] = [self, other].map(|wildcard| wildcard.to_string().chars().collect::<Vec<char>>());
        // For each rest of `other`: whether it overlaps the present rest of `one`.
        let ends = |rest: &[char]| rest.iter().all(|char| *char == '*');
        let mut below: Vec<bool> = (0..=other.len()).map(|at| ends(&other[at..])).collect();
        for (at, char) in one.iter().enumerate().rev() {
            let mut row = vec![false; other.len() + 1];
            row[other.len()] = ends(&one[at..]);
            for of in (0..other.len()).rev() {
                row[of] = match (char, &other[of]) {
                    // A wildcard matches nothing, or the next character of the other text.
                    ('*', _) | (_, '*') => below[of] || row[of + 1],
                    (a, b) => a == b && below[of + 1],
                };
            }
            below = row;
        }
        below[0]
    }
}

/// Writes it as it was read.
impl fmt::Display for Wildcard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pieces.join("*"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Matches character by character.
    fn matches(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|at| matches(rest, &text[at..])),
            [char, rest @ ..] => text.first() == Some(char) && matches(rest, &text[1..]),
        }
    }

    fn chars(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    /// Returns all texts of these characters up to a length.
    fn texts(most: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        for _ in 0..most {
            let longer: Vec<String> = all.iter().flat_map(|text| [format!("{text}a"), format!("{text}b")]).collect();
            all.extend(longer);
        }
        all.sort();
        all.dedup();
        all
    }

    proptest! {
        #[test]
        fn a_text_matches_as_character_by_character(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let wildcard = Wildcard::new(&pattern);
            prop_assert_eq!(wildcard.matches(&text), matches(&chars(&pattern), &chars(&text)));
            prop_assert_eq!((wildcard.is_wild(), wildcard.to_string()), (pattern.contains('*'), pattern));
        }

        #[test]
        fn two_overlap_if_a_text_matches_both(one in "[ab*]{0,4}", other in "[ab*]{0,4}") {
            // The shortest common text has no more characters than both patterns together.
            let [a, b] = [&one, &other].map(|pattern| Wildcard::new(pattern));
            let common = texts(8).iter().any(|text| a.matches(text) && b.matches(text));
            prop_assert_eq!(a.overlaps(&b), common);
        }
    }
}
