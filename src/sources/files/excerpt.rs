//! The lines of files that problems are about, each with a mark below the position.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::engine::rules::report::{Position, Problem};

/// Number of characters shown on either side of the location. A JSON file can be a single line.
const AROUND: usize = 60;

/// Texts with problems. A file is read again when it has a problem.
#[derive(Debug)]
pub struct Texts {
    known: HashMap<Arc<Path>, Vec<String>>,
}

impl Texts {
    /// Takes the texts that are not in files, by their names. Others are read from files.
    pub fn new(given: HashMap<PathBuf, Vec<u8>>) -> Texts {
        Texts { known: given.into_iter().map(|(name, bytes)| (name.into(), lines(&bytes))).collect() }
    }

    fn line(&mut self, file: &Arc<Path>, number: usize) -> Option<&str> {
        let read = || lines(&std::fs::read(file).unwrap_or_default());
        let lines = self.known.entry(Arc::clone(file)).or_insert_with(read);
        lines.get(number.checked_sub(1)?).map(String::as_str)
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).trim_start_matches('\u{feff}').lines().map(str::to_owned).collect()
}

/// Writes problems for people: each with a location that editors and terminals can open, and its line of the file below
/// it. `more` is the number of problems left out.
pub fn excerpts(problems: &[Problem], more: usize, texts: &mut Texts) -> String {
    let mut text = String::new();
    for problem in problems {
        text += &format!("{problem}\n");
        if let Some(excerpt) = excerpt(problem, texts) {
            text += &excerpt;
            text.push('\n');
        }
    }
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

/// Returns the line of a problem, with a mark below the location.
fn excerpt(problem: &Problem, texts: &mut Texts) -> Option<String> {
    let Position { line: number, column } = problem.position?;
    let line = texts.line(&problem.file, number)?;
    if line.trim().is_empty() {
        return None;
    }
    let (at, first) = (column - 1, (column - 1).saturating_sub(AROUND));
    // The renderer replaces ASCII control characters, but would pass on those above.
    let visible = |char| if matches!(char, '\u{80}'..='\u{9f}') { char::REPLACEMENT_CHARACTER } else { char };
    let shown: String = line.chars().skip(first).take(2 * AROUND).map(visible).collect();
    let start = shown.char_indices().nth(at - first).map_or(shown.len(), |(start, _)| start);
    let end = start + token(&shown[start..]);
    let snippet = Snippet::source(shown).line_start(number).annotation(AnnotationKind::Primary.span(start..end));
    let excerpt = Renderer::plain().render(&[Group::with_level(Level::ERROR).element(snippet)]);
    // Its first line contains only the margin.
    Some(excerpt.split_once('\n').map_or(excerpt.as_str(), |(_, rest)| rest).trim_end().to_owned())
}

/// Returns the length in bytes of the first word.
fn token(text: &str) -> usize {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''));
    let closed = quote.and_then(|quote| Some(text[1..].find(quote)? + 2));
    closed.unwrap_or_else(|| {
        let ends = |(at, char): &(usize, char)| {
            matches!(char, ',' | ']' | '}' | '{' | '[') || char.is_whitespace() || text[*at..].starts_with(": ")
        };
        let end = text.char_indices().find(ends).map_or(text.len(), |(end, _)| end);
        text[..end].strip_suffix(':').unwrap_or(&text[..end]).len()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::rules::report::Severity;

    proptest! {
        #[test]
        fn a_mark_is_one_line_under_one_line_whatever_the_text(
            text in "[ -~\t\u{0}-\u{1f}\u{7f}-\u{a0}\u{4e00}-\u{4e20}\"'{}\\[\\],:]{0,200}",
            line in 1..4_usize,
            column in 1..250_usize,
        ) {
            let file: Arc<Path> = Path::new("-").into();
            let position = Some(Position { line, column });
            let (path, message) = (String::new(), String::new());
            let problem = Problem { severity: Severity::Error, file, position, path, message };
            let mut texts = Texts::new(HashMap::from([("-".into(), text.into_bytes())]));
            if let Some(excerpt) = excerpt(&problem, &mut texts) {
                prop_assert_eq!(excerpt.lines().count(), 2, "{}", excerpt);
                prop_assert!(excerpt.lines().nth(1).is_some_and(|mark| mark.contains('^')));
                prop_assert!(excerpt.chars().all(|char| char == '\n' || !char.is_control()), "{:?}", excerpt);
            }
        }
    }
}
