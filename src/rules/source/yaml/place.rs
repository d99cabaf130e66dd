//! Where a text stands: in a file of its own, or within another one, whose lines are what people see.

use std::path::Path;
use std::sync::Arc;

use crate::rules::report::{Position, Problem, Severity};

/// A text's place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: Arc<Path>,
    within: Within,
}

#[derive(Clone, Copy, Debug)]
enum Within {
    /// It is the file.
    Whole,
    /// It is a block below so many lines and indented by so many columns.
    Block { lines: usize, columns: usize },
    /// It is written in a way that has other lines: in quotes, folded.
    Text(Position),
}

impl Place {
    pub(super) fn whole(file: &Path) -> Place {
        Place { file: file.into(), within: Within::Whole }
    }

    pub(super) fn block(file: &Arc<Path>, lines: usize, columns: usize) -> Place {
        Place { file: Arc::clone(file), within: Within::Block { lines, columns } }
    }

    pub(super) fn text(file: &Arc<Path>, position: Position) -> Place {
        Place { file: Arc::clone(file), within: Within::Text(position) }
    }

    /// A mistake of the whole.
    pub(super) fn problem(self, message: String) -> Problem {
        let position = Some(self.position(Position { line: 1, column: 1 }));
        Problem { severity: Severity::Error, file: self.file, position, path: String::new(), message }
    }

    /// Where a position of the text is in the file.
    pub(super) fn position(&self, of: Position) -> Position {
        match self.within {
            Within::Whole => of,
            Within::Block { lines, columns } => Position { line: lines + of.line, column: columns + of.column },
            Within::Text(at) => at,
        }
    }

    /// A message about a position, which says what the file's own position cannot.
    pub(super) fn message(&self, of: Position, message: String) -> String {
        match self.within {
            Within::Text(_) => format!("in line {} of this text: {message}", of.line),
            Within::Whole | Within::Block { .. } => message,
        }
    }
}
