//! Where a text stands: in a file of its own, or within another one, whose lines are what people see. There may be
//! several in one, so what is said of it names the resource and the key that hold it.

use std::path::Path;
use std::sync::Arc;

use crate::rules::config::FieldPath;
use crate::rules::report::{Position, Problem, Severity};

/// A text's place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: Arc<Path>,
    /// What in the file holds the text, where that is not the file.
    holder: Option<Arc<str>>,
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
        Place { file: file.into(), holder: None, within: Within::Whole }
    }

    pub(super) fn block(file: &Arc<Path>, lines: usize, columns: usize) -> Place {
        Place { file: Arc::clone(file), holder: None, within: Within::Block { lines, columns } }
    }

    pub(super) fn text(file: &Arc<Path>, position: Position) -> Place {
        Place { file: Arc::clone(file), holder: None, within: Within::Text(position) }
    }

    /// The same, and what holds the text.
    pub(super) fn held_by(self, holder: String) -> Place {
        Place { holder: Some(holder.into()), ..self }
    }

    pub(super) fn holder(&self) -> Option<&Arc<str>> {
        self.holder.as_ref()
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

    /// What messages about a position call its field. It says what the file's own position cannot.
    pub(super) fn path(&self, of: Position, path: &FieldPath<'_>) -> String {
        let Some(holder) = &self.holder else { return path.to_string() };
        let line = match self.within {
            Within::Text(_) => format!(", line {}", of.line),
            Within::Whole | Within::Block { .. } => String::new(),
        };
        match path {
            FieldPath::Root => format!("{holder}{line}"),
            _ => format!("{holder}{line}: {path}"),
        }
    }
}
