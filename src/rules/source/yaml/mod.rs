//! Rules in YAML: a text becomes a tree of nodes (`document`), whose values have types (`scalar`, `fields`), and the
//! tree a domain as it states itself (`reader`). What is wrong with that as YAML is reported here; everything else by
//! `validate`, which names a field by its path, and the tree knows where that stands.

mod document;
mod fields;
mod reader;
mod scalar;

use std::path::Path;
use std::sync::Arc;

use self::document::Node;
use self::fields::File;
use crate::rules::config::FieldPath;
use crate::rules::report::{Position, Report, Severity};
use crate::rules::validate::{LoadOptions, Origin, Part};

/// What the text of a file says; `None` where it is no rules file at all. Its mistakes go to the report.
pub(super) fn read(name: &Path, text: &str, options: &LoadOptions, report: &mut Report) -> Option<Part> {
    let mut file = File { name: name.into(), report };
    let root = root(&mut file, text, options.max_file_bytes)?;
    let domain = reader::domain(&mut file, &root)?;
    let origin = Tree { file: file.name, root: &root };
    Some(Part::validate(&origin, &domain, options, report))
}

/// A file whose tree has been made.
struct Tree<'t> {
    file: Arc<Path>,
    root: &'t Node<'t>,
}

impl Origin for Tree<'_> {
    fn name(&self) -> &Arc<Path> {
        &self.file
    }

    fn position(&self, path: &FieldPath<'_>) -> Option<Position> {
        Some(self.root.position_of(path))
    }
}

/// The tree of a file; `None` where it has none.
fn root<'t>(file: &mut File<'_>, text: &'t str, max_bytes: u64) -> Option<Node<'t>> {
    let document = match document::parse(text, max_bytes) {
        Ok(document) => document,
        Err(error) => {
            file.add(Severity::Error, error.position(), FieldPath::Root, error.to_string());
            return None;
        }
    };
    if let Some(position) = document.second {
        let message = "a second YAML document begins here; only the first one counts";
        file.add(Severity::Warning, position, FieldPath::Root, message.to_owned());
    }
    let root = document.root.filter(|root| !root.is_null());
    if root.is_none() {
        let message = "the file is empty; it must begin with a domain";
        file.add(Severity::Error, Position { line: 1, column: 1 }, FieldPath::Root, message.to_owned());
    }
    root
}
