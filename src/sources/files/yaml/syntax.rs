//! Messages about texts that are not YAML: what to write instead, if that is clear, or else the parser's message.

use granit_parser::{ErrorKind, ScanError};

use super::document::position;
use crate::engine::rules::keys::SECTIONS;
use crate::engine::rules::report::{Position, quoted};

const TAB: &str = "there is a tab here; YAML indents with spaces";
const INDENT: &str = "this line is not indented like the lines it belongs to";
const BRACKET: &str = "a string that begins with [ or { needs quotes";

/// Returns the position where a text stops being YAML, and what to do about it.
pub(super) fn explained(error: &ScanError, text: &str) -> (Position, String) {
    let position = position(*error.marker());
    if let Some(line) = text.lines().position(is_conflict) {
        return (
            Position { line: line + 1, column: 1 },
            "a conflict marker of git: resolve the conflict first".to_owned(),
        );
    }
    let upto = position.line.saturating_sub(2);
    let lines: Vec<&str> = text.lines().skip(upto).take(position.line - upto).collect();
    let line = if position.line - upto == lines.len() { lines.last().copied().unwrap_or_default() } else { "" };
    let reason = of_lines(&lines).or_else(|| of_kind(error.kind(), line, position));
    let position = if reason.as_deref() == Some(TAB) { tab(text, position) } else { position };
    (position, format!("not YAML: {}", reason.unwrap_or_else(|| error.info())))
}

/// Finds the tab at which the parser stops, or just before that.
fn tab(text: &str, at: Position) -> Position {
    let near = text.lines().enumerate().skip(at.line - 1).take(2);
    let mut tabs = near.filter_map(|(above, line)| Some((above + 1, line.chars().position(|char| char == '\t')? + 1)));
    tabs.next().map_or(at, |(line, column)| Position { line, column })
}

/// Explains the line where the parser gives up and the one before.
fn of_lines(lines: &[&str]) -> Option<String> {
    if lines.iter().any(|line| line.contains("{{")) {
        return Some(
            "this is a template, {{ }}, that has not been rendered: check the output of helm template".to_owned(),
        );
    }
    let key = lines.iter().find_map(|line| without_space(line))?;
    Some(format!("a space is missing after the colon: {key}: ..."))
}

/// Returns whether a value ended like a list or mapping and then continued, like `[0-9]+`.
fn is_after_bracket(line: &str, position: Position) -> bool {
    let value = line.split_once(": ").or_else(|| line.split_once("- ")).map(|(_, value)| value.trim_start());
    let Some(value) = value.filter(|value| value.starts_with(['[', '{'])) else { return false };
    let closed = value.find([']', '}']).map(|close| line.len() - value.len() + close);
    let at = line.char_indices().nth(position.column - 1).map_or(line.len(), |(at, _)| at);
    closed.is_some_and(|closed| closed < at)
}

fn of_kind(kind: &ErrorKind, line: &str, position: Position) -> Option<String> {
    let rest: String = line.chars().skip(position.column - 1).collect();
    let words = match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => TAB.to_owned(),
        ErrorKind::MissingAnchorOrAliasName | ErrorKind::UnknownAnchor => return alias(line, position),
        ErrorKind::UnexpectedCharacter { character } => {
            format!("a string that begins with {} needs quotes", character.escape_debug())
        }
        ErrorKind::MappingValueNotAllowed => {
            "a string that contains a colon and a space needs quotes; or this line is indented too far".to_owned()
        }
        ErrorKind::ExpectedBlockMappingKey | ErrorKind::SimpleKeyExpected if is_after_bracket(line, position) => {
            BRACKET.to_owned()
        }
        ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed
        | ErrorKind::InvalidIndentation => INDENT.to_owned(),
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            "a key needs a colon and a space after it: key: user".to_owned()
        }
        ErrorKind::UnclosedQuotedScalar | ErrorKind::DocumentIndicatorInQuotedScalar => {
            "these quotes are never closed".to_owned()
        }
        ErrorKind::InvalidQuotedScalarIndent => {
            "the quotes above are never closed, or this line of theirs is not indented".to_owned()
        }
        ErrorKind::InvalidTrailingSingleQuotedScalar | ErrorKind::InvalidTrailingDoubleQuotedScalar => {
            "nothing may follow the closing quotes; inside single quotes, double a quote: ''".to_owned()
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            "in double quotes a backslash begins an escape: double it, or use single quotes".to_owned()
        }
        ErrorKind::UnclosedFlowCollection { open } => format!("this {open} is never closed"),
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => format!("a {open} is closed by {close}"),
        ErrorKind::ExpectedFlowMappingSeparator => "a comma is missing before this, or a }".to_owned(),
        ErrorKind::ExpectedFlowSequenceSeparator => "a comma is missing before this, or a ]".to_owned(),
        ErrorKind::RecursionLimitExceeded => "lists and mappings nest too deep".to_owned(),
        _ if rest.starts_with('\t') => TAB.to_owned(),
        _ => return None,
    };
    Some(words)
}

/// Returns the message about a `*` or `&` that was meant as text. The parser's position is after it.
fn alias(line: &str, position: Position) -> Option<String> {
    let before = line.char_indices().nth(position.column).map_or(line, |(end, _)| &line[..end]);
    let start = before.rfind(['*', '&'])?;
    let end = line[start..].find([',', ' ', '\t', ']', '}']).map_or(line.len(), |end| start + end);
    let given = &line[start..end];
    let (sign, what) = if given.starts_with('*') { ('*', "an alias") } else { ('&', "an anchor") };
    Some(format!("{sign} begins {what} in YAML; a string that begins with it needs quotes: {}", quoted(given)))
}

/// Returns the known key that a line begins with, if its value follows the colon without a space.
pub(super) fn without_space(line: &str) -> Option<&'static str> {
    let (name, value) = line.trim_start_matches([' ', '-']).split_once(':')?;
    let mut names = SECTIONS.iter().flat_map(|section| section.names());
    let key = names.find(|key| *key == name)?;
    value.starts_with(|first: char| !first.is_whitespace()).then_some(key)
}

fn is_conflict(line: &str) -> bool {
    ["<<<<<<< ", ">>>>>>> "].iter().any(|sign| line.starts_with(sign))
}
