//! Rules in YAML: a text becomes a tree of nodes (`document`), whose values have types (`scalar`, `fields`), and the
//! tree a domain as it states itself (`reader`), by the one list of `keys`. What is wrong with that as YAML is reported
//! here, with a word on what to write instead (`syntax`, `hints`); everything else by `validate`, which names a field
//! by its path, and the tree knows where that stands (`place`), in a Kubernetes manifest (`manifest`), too. Editors
//! get a `schema`.

mod document;
mod fields;
mod hints;
mod keys;
mod manifest;
mod place;
mod reader;
mod scalar;
mod schema;
mod syntax;

pub use document::MAX_BYTES;
pub use schema::schema;

use std::path::Path;
use std::sync::Arc;

use self::document::{DocumentError, Node};
use self::fields::File;
use self::place::Place;
use crate::rules::config::FieldPath;
use crate::rules::report::{Position, Problem, Report, Severity};
use crate::rules::validate::{Origin, Validation};

/// What becomes of Kubernetes manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manifests {
    /// They are no rules.
    Refuse,
    /// The rules files in their ConfigMaps are read where they stand.
    Read,
}

/// Adds what the text of a file says. Its mistakes go to the report. What comes back is a mistake only where nothing
/// else has rules: a manifest without any.
pub(super) fn add(
    name: &Path,
    text: &str,
    manifests: Manifests,
    validation: &mut Validation,
    report: &mut Report,
) -> Option<Problem> {
    let place = Place::whole(name);
    let documents = if manifests == Manifests::Read { manifest::documents(text) } else { None };
    match documents {
        Some(Ok(roots)) => {
            let found = manifest::embedded(&mut File { place: place.clone(), report }, text, &roots);
            match found {
                Ok(all) => all.into_iter().for_each(|one| add_rules(one.place, one.text, validation, report)),
                Err(message) => return Some(place.problem(message)),
            }
        }
        Some(Err(error)) => refuse(&mut File { place, report }, text, &error),
        None => add_rules(place, text, validation, report),
    }
    None
}

fn refuse(file: &mut File<'_>, text: &str, error: &DocumentError) {
    let (position, message) = match error {
        DocumentError::Syntax(error) => syntax::explained(error, text),
        _ => (error.position(), error.to_string()),
    };
    file.add(Severity::Error, position, FieldPath::Root, message);
}

fn add_rules(place: Place, text: &str, validation: &mut Validation, report: &mut Report) {
    let mut file = File { place, report };
    let Some(root) = root(&mut file, text) else { return };
    if let Some(domain) = reader::domain(&mut file, &root) {
        let origin = Tree { place: file.place, root: &root };
        validation.add(&origin, &domain, report);
    }
}

/// A text whose tree has been made.
struct Tree<'t> {
    place: Place,
    root: &'t Node<'t>,
}

impl Origin for Tree<'_> {
    fn name(&self) -> &Arc<Path> {
        &self.place.file
    }

    fn position(&self, path: &FieldPath<'_>) -> Option<Position> {
        Some(self.place.position(self.root.position_of(path)))
    }
}

/// The tree of a text; `None` where it has none that could be rules.
fn root<'t>(file: &mut File<'_>, text: &'t str) -> Option<Node<'t>> {
    let document = match document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            refuse(file, text, &error);
            return None;
        }
    };
    let root = document.root.filter(|root| !root.is_null());
    if let Some(kind) = root.as_ref().and_then(manifest::kind) {
        file.add(Severity::Error, Position { line: 1, column: 1 }, FieldPath::Root, manifest::refusal(kind));
        return None;
    }
    if let Some(position) = document.second {
        let message = "a second YAML document begins here, and is ignored: only the first one counts; give each domain \
                       a file of its own";
        file.add(Severity::Warning, position, FieldPath::Root, message.to_owned());
    }
    for position in document.tags {
        let message = "what begins with ! is a tag in YAML, and means nothing here; a text needs quotes".to_owned();
        file.add(Severity::Warning, position, FieldPath::Root, message);
    }
    if root.is_none() {
        let message = "the file is empty; it must begin with a domain";
        file.add(Severity::Error, Position { line: 1, column: 1 }, FieldPath::Root, message.to_owned());
    }
    root
}
