//! Rules in YAML: a text becomes a tree of nodes (`document`) with typed values (`scalar`, `fields`, `metadata`), and
//! the tree becomes a raw domain (`reader`), by the single list of [`keys`](crate::engine::rules::keys). Errors in the
//! YAML are reported here, with advice (`syntax`, `hints`); all others by `validate`, which names a field by its path.
//! The tree knows the position of a path (`place`), even inside a Kubernetes manifest (`manifest`). Descriptors are
//! taken out of the tree one by one, and compiled (`descriptors`). Editors get a `schema`.

mod descriptors;
mod document;
mod fields;
mod hints;
mod manifest;
mod metadata;
mod place;
mod prices;
mod reader;
mod scalar;
mod schema;
mod syntax;
mod tokens;

pub(super) use place::is_rules_file;
pub use schema::schema;
pub(super) use tokens::tokens;

use std::path::Path;
use std::sync::Arc;

use self::descriptors::Descriptors;
use self::document::{DocumentError, Node, Visitor};
use self::fields::File;
use self::place::Place;
use crate::engine::rules::config::FieldPath;
use crate::engine::rules::report::{Position, Problem, Report, Severity};
use crate::engine::rules::validate::{Beside, Compiled, Complaints, LoadOptions, Origin, Part};

/// Handling of Kubernetes manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manifests {
    /// They are rejected.
    Refuse,
    /// The rules files in their ConfigMaps are read in place.
    Read,
}

/// The contents of a text.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The compiled part of each rules file in it; usually the text is a single rules file.
    pub(crate) parts: Vec<Compiled>,
    /// A problem only if no other text has rules: a manifest without any.
    pub(crate) without_rules: Option<Problem>,
}

/// Options of reading a text.
pub(crate) struct Reading<'r> {
    pub(crate) manifests: Manifests,
    pub(crate) options: &'r LoadOptions,
    /// Called from time to time with the number of bytes read.
    pub(crate) on_read: &'r dyn Fn(usize),
}

/// Reads the text of a file, and adds its mistakes to the report.
pub(crate) fn read(name: &Path, text: &str, reading: &Reading<'_>, report: &mut Report) -> Said {
    let (place, max_bytes) = (Place::whole(name), reading.options.max_file_bytes);
    let documents = if reading.manifests == Manifests::Read { manifest::documents(text, max_bytes) } else { None };
    let mut said = Said::default();
    match documents {
        Some(Ok(roots)) => {
            let found = manifest::embedded(&mut File { place: place.clone(), report }, text, &roots);
            match found {
                Ok(all) => {
                    said.parts.extend(all.into_iter().filter_map(|one| rules(one.place, &one.text, reading, report)));
                }
                Err(message) => said.without_rules = Some(place.problem(message)),
            }
        }
        Some(Err(error)) => refuse(&mut File { place, report }, text, &error),
        None => said.parts.extend(rules(place, text, reading, report)),
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

/// Compiles the rules of a text. Returns `None` if it has none.
fn rules(place: Place, text: &str, reading: &Reading<'_>, report: &mut Report) -> Option<Compiled> {
    let mut pass = Pass { place, text, reading, report: Report::default() };
    let mut part = pass.read(None);
    if let Some(Err(Late(beside))) = part {
        // Reads the text again with the defaults and prices now known.
        pass.report = Report::default();
        part = pass.read(Some(beside));
    }
    let part = part.and_then(Result::ok).map(|part| part.compile(&pass.report));
    report.merge(pass.report);
    part
}

/// The defaults and prices of a file in which they follow the descriptors.
struct Late(Beside);

/// One pass through a text.
struct Pass<'t> {
    place: Place,
    text: &'t str,
    reading: &'t Reading<'t>,
    report: Report,
}

impl Pass<'_> {
    fn read(&mut self, beside: Option<Beside>) -> Option<Result<Part, Late>> {
        let Pass { place, text, reading: Reading { options, on_read, .. }, report } = self;
        let mut file = File { place: place.clone(), report };
        let mut descriptors = Descriptors::new(place.clone(), options, beside, on_read);
        let root = root(&mut file, text, (options.max_file_bytes, &mut descriptors))?;
        let (part, of_descriptors, top) = descriptors.finish(&root);
        let raw = reader::domain(&mut file, &root)?;
        let origin = Tree { place, node: &root, steps: 0 };
        let Some(top) = top else { return Some(Ok(Part::validate(&origin, &raw, options, report))) };
        let beside = Beside::of(&raw);
        if beside != *part.beside() {
            return Some(Err(Late(beside)));
        }
        report.merge(of_descriptors);
        Some(Ok(part.finish(&mut Complaints { origin: &origin, report }, &raw, top)))
    }
}

/// The tree of a text, or a part of it.
struct Tree<'t> {
    place: &'t Place,
    node: &'t Node<'t>,
    /// The number of steps from the root to the node.
    steps: usize,
}

impl Origin for Tree<'_> {
    fn name(&self) -> &Arc<Path> {
        &self.place.file
    }

    fn position(&self, path: &FieldPath<'_>) -> Option<Position> {
        let steps = path.steps().saturating_sub(self.steps);
        Some(self.place.position(self.node.position_of(path, steps)))
    }

    fn holder(&self) -> Option<&Arc<str>> {
        self.place.holder()
    }

    fn path(&self, path: &FieldPath<'_>) -> String {
        let steps = path.steps().saturating_sub(self.steps);
        self.place.path(self.node.position_of(path, steps), path)
    }
}

/// Builds the tree of a text. Returns `None` if it has none that could be rules.
fn root<'t>(file: &mut File<'_>, text: &'t str, (max_bytes, visitor): (u64, &mut dyn Visitor<'t>)) -> Option<Node<'t>> {
    let document = match document::parse(text, max_bytes, visitor) {
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
        let message = "a second YAML document begins here and is ignored: only the first one counts; write a separate \
                       file for each domain";
        file.add(Severity::Warning, position, FieldPath::Root, message.to_owned());
    }
    for position in document.tags {
        let message = "a word that begins with ! is a YAML tag, which has no meaning here; a string needs \
                       quotes"
            .to_owned();
        file.add(Severity::Warning, position, FieldPath::Root, message);
    }
    if root.is_none() {
        let message = "the file is empty; it must begin with a domain";
        file.add(Severity::Error, Position { line: 1, column: 1 }, FieldPath::Root, message.to_owned());
    }
    root
}
