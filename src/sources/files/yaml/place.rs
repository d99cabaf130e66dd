//! The place of a text: a file, or a part of another file. Messages show the lines of that file to people. A file may
//! hold several texts, so messages about one name the resource and the key that hold it.

use std::path::Path;
use std::sync::Arc;

use crate::engine::rules::config::FieldPath;
use crate::engine::rules::report::{Position, Problem, Severity};

/// Returns whether a file of a folder holds rules.
pub(in crate::sources::files) fn is_rules_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

/// The place of a text.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: Arc<Path>,
    /// The resource and key that hold the text, unless it is a file.
    holder: Option<Arc<str>>,
    within: Within,
}

#[derive(Clone, Copy, Debug)]
enum Within {
    /// The text is the whole file.
    Whole,
    /// The text is a block that begins after this number of lines and is indented by this number of columns.
    Block { lines: usize, columns: usize },
    /// The text is quoted or folded at this position, so its lines differ from the file's.
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

    /// Adds the resource and key that hold the text.
    pub(super) fn held_by(self, holder: String) -> Place {
        Place { holder: Some(holder.into()), ..self }
    }

    pub(super) fn holder(&self) -> Option<&Arc<str>> {
        self.holder.as_ref()
    }

    /// Builds an error about the text as a whole.
    pub(super) fn problem(self, message: String) -> Problem {
        let position = Some(self.position(Position { line: 1, column: 1 }));
        Problem { severity: Severity::Error, file: self.file, position, path: String::new(), message }
    }

    /// Converts a position in the text to one in the file.
    pub(super) fn position(&self, of: Position) -> Position {
        match self.within {
            Within::Whole => of,
            Within::Block { lines, columns } => Position { line: lines + of.line, column: columns + of.column },
            Within::Text(at) => at,
        }
    }

    /// Returns the name of a field for messages. It includes everything that the position in the file cannot show.
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
