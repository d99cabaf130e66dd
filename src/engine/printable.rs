//! Text that clients and people have sent, made fit for a terminal and for one line. What a character would do there,
//! its escape says: none moves the cursor, ends the line, turns the reading direction, or is invisible.

use std::fmt::{self, Write as _};

/// The text with every character escaped that is not printed as itself.
pub fn printable(text: &str) -> String {
    escaped(text, is_printable)
}

/// The same for a text of several lines, whose ends stay.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |char| char == '\n' || is_printable(char))
}

/// Writes a character as it is, or its escape.
pub fn write_printable(f: &mut impl fmt::Write, char: char) -> fmt::Result {
    if is_printable(char) { f.write_char(char) } else { write!(f, "{}", char.escape_default()) }
}

fn escaped(text: &str, is_fit: impl Fn(char) -> bool) -> String {
    let mut fit = String::with_capacity(text.len());
    for char in text.chars() {
        // A String takes all that is written to it.
        let _ = if is_fit(char) { fit.write_char(char) } else { write_printable(&mut fit, char) };
    }
    fit
}

/// Not a control character, a separator of lines, a sign that turns the reading direction, or one of no width. (Two
/// descriptors that differ only in such a sign would look the same.)
fn is_printable(char: char) -> bool {
    !char.is_control()
        && !matches!(char,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_a_terminal_or_cannot_be_seen_is_escaped() {
        let text = "a\u{1b}[2J\r\u{7}\u{9b}\u{7f}\u{202e}\u{2028}\u{200b}\u{feff}\tb";
        assert_eq!(printable(text), "a\\u{1b}[2J\\r\\u{7}\\u{9b}\\u{7f}\\u{202e}\\u{2028}\\u{200b}\\u{feff}\\tb");
        assert_eq!(printable("one\ntwo"), "one\\ntwo");
        assert_eq!(printable_lines("one\ntwo\u{1b}"), "one\ntwo\\u{1b}");
    }

    #[test]
    fn words_of_any_script_stay_as_they_are() {
        for text in ["", "ann", "é e\u{301}", "שלום", "日本", "नमस्ते", "🦀", "\\(=|)"] {
            assert_eq!(printable(text), text);
        }
    }
}
