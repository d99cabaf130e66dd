//! Reads and validates each descriptor of a text as soon as it is complete: of a million descriptors, only the results
//! are kept.

use super::Tree;
use super::document::{Entry, Node, Visitor};
use super::fields::{File, Spot};
use super::place::Place;
use super::reader;
use crate::engine::rules::config::{FieldPath, Raw};
use crate::engine::rules::report::Report;
use crate::engine::rules::validate::{Beside, Complaints, Item, Level, LoadOptions, PartBuilder};

/// Takes descriptors out of a text as they are read.
pub(super) struct Descriptors<'o> {
    place: Place,
    options: &'o LoadOptions,
    /// The file's defaults and prices, if a first pass found them; they may come after the descriptors.
    beside: Option<Beside>,
    on_read: &'o dyn Fn(usize),
    /// Mistakes in the descriptors.
    report: Report,
    part: PartBuilder,
    /// Number of lists begun so far.
    begun: usize,
    open: Vec<List>,
    /// Finished lists below the item that is still being read.
    ended: Vec<List>,
}

/// A list of descriptors.
struct List {
    /// Its number.
    list: usize,
    /// Number of its items.
    items: usize,
    level: Level,
}

impl<'o> Descriptors<'o> {
    /// Begins with a text at this place. Without known defaults and prices, those that precede its descriptors count.
    pub(super) fn new(
        place: Place,
        options: &'o LoadOptions,
        beside: Option<Beside>,
        on_read: &'o dyn Fn(usize),
    ) -> Self {
        let part = PartBuilder::new(beside.clone().unwrap_or_default(), options);
        let (open, ended, report) = (Vec::new(), Vec::new(), Report::default());
        Descriptors { place, options, beside, on_read, report, part, begun: 0, open, ended }
    }

    /// Returns the part that the descriptors belong to, the mistakes in them, and the top level if it has been visited.
    pub(super) fn finish(mut self, root: &Node<'_>) -> (PartBuilder, Report, Option<Level>) {
        let top = self.take(root);
        (self.part, self.report, top)
    }

    /// Takes the finished list under a mapping's key `descriptors`.
    fn take(&mut self, node: &Node<'_>) -> Option<Level> {
        let wanted = reader::visited(node);
        let mut ended = self.ended.drain(..);
        ended.find(|list| Some(list.list) == wanted).map(|list| list.level)
    }
}

impl<'a> Visitor<'a> for Descriptors<'_> {
    fn begin(&mut self, before: &[Entry<'a>]) -> usize {
        if self.open.is_empty() {
            let beside = self.beside.clone().unwrap_or_else(|| Beside::of(&reader::beside_among(before)));
            // If the root has a second list, the first one is dropped.
            self.part = PartBuilder::new(beside, self.options);
            self.report = Report::default();
            self.ended.clear();
        }
        self.begun += 1;
        self.open.push(List { list: self.begun, items: 0, level: Level::default() });
        self.begun
    }

    fn item(&mut self, node: Node<'a>) {
        let mut below = self.take(&node);
        let Some(mut own) = self.open.pop() else { return };
        let Descriptors { place, report, part, open, .. } = self;
        let depth = open.len() + 1;
        at(FieldPath::Root, open, &mut |list| {
            let path = list.item(own.items);
            let mut file = File { place: place.clone(), report };
            let Raw::Given(raw) = reader::descriptor(&mut file, Spot { node: &node, path }, depth) else { return };
            let origin = Tree { place, node: &node, steps: path.steps() };
            let mut complaints = Complaints { origin: &origin, report };
            let below = below.take().unwrap_or_else(|| part.below(&mut complaints, &raw, (path, depth)));
            part.add(&mut complaints, &mut own.level, Item { path, raw: &raw, below });
        });
        own.items += 1;
        self.open.push(own);
    }

    fn end(&mut self) {
        let Some(ended) = self.open.pop() else { return };
        let Descriptors { place, part, open, .. } = self;
        at(FieldPath::Root, open, &mut |list| part.close(&place.file, &ended.level, list));
        self.ended.push(ended);
    }

    fn read(&mut self, bytes: usize) {
        (self.on_read)(bytes);
    }
}

/// Calls `then` with the path of the list below the current items of these lists.
fn at(path: FieldPath<'_>, lists: &[List], then: &mut dyn FnMut(FieldPath<'_>)) {
    let list = path.key("descriptors");
    match lists.split_first() {
        Some((first, below)) => at(list.item(first.items), below, then),
        None => then(list),
    }
}
