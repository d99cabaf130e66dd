//! Rules in YAML: a text becomes a tree of nodes (`document`), whose values have types (`scalar`, `fields`,
//! `metadata`), and the tree a domain as it states itself (`reader`), by the one list of `keys`. What is wrong with
//! that as YAML is reported here, with a word on what to write instead (`syntax`, `hints`); everything else by
//! `validate`, which names a field by its path, and the tree knows where that stands (`place`), in a Kubernetes
//! manifest (`manifest`), too. Descriptors are taken out of the tree one by one, and compiled (`descriptors`). Editors
//! get a `schema`.

mod descriptors;
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

use self::descriptors::Descriptors;
use self::document::{DocumentError, Node, Visitor};
use self::fields::File;
use self::place::Place;
use crate::rules::config::FieldPath;
use crate::rules::report::{Position, Problem, Report, Severity};
use crate::rules::validate::{Compiled, Complaints, GivenDefaults, LoadOptions, Origin, Part};

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
    pub(super) parts: Vec<Compiled>,
    /// A mistake only where nothing else has rules: a manifest without any.
    pub(super) without_rules: Option<Problem>,
}

/// How a text is read.
pub(super) struct Reading<'r> {
    pub(super) manifests: Manifests,
    pub(super) options: &'r LoadOptions,
    /// Is called now and then with how many bytes have been read.
    pub(super) on_read: &'r dyn Fn(usize),
}

/// Reads what the text of a file says. Its mistakes go to the report.
pub(super) fn read(name: &Path, text: &str, reading: &Reading<'_>, report: &mut Report) -> Said {
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

/// The rules of a text, compiled; `None` where it holds none.
fn rules(place: Place, text: &str, reading: &Reading<'_>, report: &mut Report) -> Option<Compiled> {
    let mut pass = Pass { place, text, reading, report: Report::default() };
    let mut part = pass.read(None);
    if let Some(Err(Late(defaults))) = part {
        // Once more, and now they are known.
        pass.report = Report::default();
        part = pass.read(Some(defaults));
    }
    let part = part.and_then(Result::ok).map(|part| part.compile(&pass.report));
    report.merge(pass.report);
    part
}

/// The defaults of a file that stand behind its descriptors.
struct Late(GivenDefaults);

/// Once through a text.
struct Pass<'t> {
    place: Place,
    text: &'t str,
    reading: &'t Reading<'t>,
    report: Report,
}

impl Pass<'_> {
    fn read(&mut self, defaults: Option<GivenDefaults>) -> Option<Result<Part, Late>> {
        let Pass { place, text, reading: Reading { options, on_read, .. }, report } = self;
        let mut file = File { place: place.clone(), report };
        let mut descriptors = Descriptors::new(place.clone(), options, defaults, on_read);
        let root = root(&mut file, text, (options.max_file_bytes, &mut descriptors))?;
        let (part, of_descriptors, top) = descriptors.finish(&root);
        let raw = reader::domain(&mut file, &root)?;
        let origin = Tree { place, node: &root, steps: 0 };
        let Some(top) = top else { return Some(Ok(Part::validate(&origin, &raw, options, report))) };
        let defaults = GivenDefaults::of(&raw.defaults);
        if defaults != part.given() {
            return Some(Err(Late(defaults)));
        }
        report.merge(of_descriptors);
        Some(Ok(part.finish(&mut Complaints { origin: &origin, report }, &raw, top)))
    }
}

/// A text whose tree, or a part of it, has been made.
struct Tree<'t> {
    place: &'t Place,
    node: &'t Node<'t>,
    /// So far the node is from the root.
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

/// The tree of a text; `None` where it has none that could be rules.
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
