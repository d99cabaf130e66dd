//! Rules in YAML: a text becomes a tree of nodes (`document`), whose values have types (`scalar`, `fields`, `metadata`),
//! and the tree a domain as it states itself (`reader`), by the one list of `keys`. What is wrong with that as YAML is
//! reported here, with a word on what to write instead (`syntax`, `hints`); everything else by `validate`, which names a
//! field by its path, and the tree knows where that stands (`place`), in a Kubernetes manifest (`manifest`), too.
//! Editors get a `schema`.

mod document;
mod fields;
mod hints;
mod keys;
mod manifest;
mod metadata;
mod place;
mod reader;
mod scalar;
mod schema;
mod syntax;

pub use schema::schema;

use std::path::Path;
use std::sync::Arc;

use self::document::{DocumentError, Node};
use self::fields::File;
use self::place::Place;
use crate::rules::config::FieldPath;
use crate::rules::report::{Position, Problem, Report, Severity};
use crate::rules::validate::{LoadOptions, Origin, Part};

/// What becomes of Kubernetes manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manifests {
    /// They are no rules.
    Refuse,
    /// The rules files in their ConfigMaps are read where they stand.
    Read,
}

/// What a text says.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Of each rules file in it; mostly it is one itself.
    pub(super) parts: Vec<Part>,
    /// A mistake only where nothing else has rules: a manifest without any.
    pub(super) without_rules: Option<Problem>,
}

/// Reads what the text of a file says. Its mistakes go to the report.
pub(super) fn read(
    name: &Path,
    text: &str,
    (manifests, options): (Manifests, &LoadOptions),
    report: &mut Report,
) -> Said {
    let (place, max_bytes) = (Place::whole(name), options.max_file_bytes);
    let documents = if manifests == Manifests::Read { manifest::documents(text, max_bytes) } else { None };
    let mut said = Said::default();
    match documents {
        Some(Ok(roots)) => {
            let found = manifest::embedded(&mut File { place: place.clone(), report }, text, &roots);
            match found {
                Ok(all) => {
                    said.parts.extend(all.into_iter().filter_map(|one| rules(one.place, one.text, options, report)));
                }
                Err(message) => said.without_rules = Some(place.problem(message)),
            }
        }
        Some(Err(error)) => refuse(&mut File { place, report }, text, &error),
        None => said.parts.extend(rules(place, text, options, report)),
    }
    said
}

fn refuse(file: &mut File<'_>, text: &str, error: &DocumentError) {
    let (position, message) = match error {
        DocumentError::Syntax(error) => syntax::explained(error, text),
        _ => (error.position(), error.to_string()),
    };
    file.add(Severity::Error, position, FieldPath::Root, message);
}

fn rules(place: Place, text: &str, options: &LoadOptions, report: &mut Report) -> Option<Part> {
    let mut file = File { place, report };
    let root = root(&mut file, text, options.max_file_bytes)?;
    let domain = reader::domain(&mut file, &root)?;
    let origin = Tree { place: file.place, root: &root };
    Some(Part::validate(&origin, &domain, options, report))
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
fn root<'t>(file: &mut File<'_>, text: &'t str, max_bytes: u64) -> Option<Node<'t>> {
    let document = match document::parse(text, max_bytes) {
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
