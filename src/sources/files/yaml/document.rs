//! A YAML text as a tree. Its nodes have a position and know whether they were quoted.
//!
//! Only this module uses the YAML library. It is `granit-parser`, the event parser inside `serde-saphyr`, rather than a
//! serde front end, because serde's data model loses what a rules file needs:
//!
//! - the position of every value, so that all mistakes of a file are reported together, each with its line and column.
//!   The forks of the archived `serde_yaml` have no positions; `serde-saphyr` has them in a wrapper type;
//! - the difference between `5` and `"5"`, and the original text of `007`, `0x1F` or `yes`: `serde-saphyr` returns only
//!   the number or truth value;
//! - the first document of a text with several: `serde-saphyr` rejects such a text.
//!
//! (It also takes a third of the time that `serde-saphyr` takes for the same tree.) A front end would add only what is
//! implemented here: aliases, merge keys (`<<`) and limits. An alias shares the node it refers to, and the total size
//! of such nodes is bounded, so "billion laughs" fail at once and take no memory. The parser bounds the depth of the
//! tree to 255 lists and mappings, and so the recursion of all code that walks or drops it.
//!
//! A tree takes ten times the memory of its text. To avoid a complete tree, a [`Visitor`] receives each descriptor as
//! soon as it has been read, and the tree leaves it out.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput, Tag};

use super::scalar::Plain;
use crate::engine::rules::report::{Bytes, Position};
use crate::engine::rules::validate::MAX_LEVELS;

/// Bytes counted for an aliased node beyond its text: about the size of writing one down.
const NODE_BYTES: u64 = 16;

/// The first document of a text.
#[derive(Debug)]
pub(super) struct Document<'a> {
    /// `None` if the text has no document.
    pub(super) root: Option<Node<'a>>,
    /// Position of a second document, if it is not empty.
    pub(super) second: Option<Position>,
    /// Positions of values with tags that have no meaning here, such as `!important`.
    pub(super) tags: Vec<Position>,
}

#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    /// For an alias, the position of the alias.
    pub(super) position: Position,
    pub(super) value: Value<'a>,
}

#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// Text without quotes as it was written. Its reader takes it for a number, a truth value, null or a text.
    Plain(Cow<'a, str>),
    /// Text in quotes or in a block, which is always a text.
    Quoted(Cow<'a, str>),
    List(Rc<[Node<'a>]>),
    /// Entries in the order of the file. If a key occurs twice, the later entry counts.
    Map(Rc<[Entry<'a>]>),
    /// A list with its items passed to the visitor, and the number that [`Visitor::begin`] returned for it.
    Visited(usize),
}

/// Receives the items of lists under the key `descriptors`, of the root and of these items in turn, in the order in
/// which they end. Items with an anchor stay in the tree, and so do nodes that aliases and merge keys refer to.
pub(super) trait Visitor<'a> {
    /// Begins a list, and returns how many have begun. The root's list comes after the entries `before` of the root; if
    /// the root has a second such list, only that one counts.
    fn begin(&mut self, before: &[Entry<'a>]) -> usize;

    /// Receives the next item of the innermost open list.
    fn item(&mut self, item: Node<'a>);

    /// Ends that list.
    fn end(&mut self);

    /// Notes that this many bytes of the text have been read.
    fn read(&mut self, bytes: usize);
}

#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: Node<'a>,
    pub(super) value: Node<'a>,
    /// Whether it comes from a merge key. Such entries precede the mapping's own entries, which replace them.
    pub(super) merged: bool,
}

/// Reasons for a text to have no tree.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    #[error("not YAML: {}", .0.info())]
    Syntax(#[from] ScanError),
    #[error("this alias refers to a node that contains it")]
    Recursion(Position),
    #[error("the aliases up to here expand to more than {}", Bytes(*.1))]
    Expansion(Position, u64),
    #[error("a merge key (<<) needs a mapping or a list of mappings")]
    Merge(Position),
}

impl DocumentError {
    pub(super) fn position(&self) -> Position {
        match self {
            DocumentError::Syntax(error) => position(*error.marker()),
            DocumentError::Recursion(position)
            | DocumentError::Expansion(position, _)
            | DocumentError::Merge(position) => *position,
        }
    }
}

/// Reads the first document of a text. Its aliases may refer to nodes of at most `max_bytes` in total.
pub(super) fn parse<'a>(
    text: &'a str,
    max_bytes: u64,
    visitor: &mut dyn Visitor<'a>,
) -> Result<Document<'a>, DocumentError> {
    /// Number of events between two notes of the progress.
    const EVENTS: usize = 1024;

    let (mut builder, mut events, mut begun) = (Builder::new(max_bytes, Some(visitor)), parser(text), false);
    let mut count = 0;
    while let Some(event) = events.next() {
        let (event, span) = event?;
        count += 1;
        if count % EVENTS == 0 {
            builder.read(span.start);
        }
        if begun && matches!(event, Event::DocumentStart(..)) {
            let second = events.any(|event| event.map_or(true, |(event, _)| says_something(&event)));
            let second = second.then(|| position(span.start));
            return Ok(Document { root: builder.root, second, tags: builder.tags });
        }
        begun |= matches!(event, Event::DocumentStart(..));
        builder.take(event, position(span.start))?;
    }
    Ok(Document { root: builder.root, second: None, tags: builder.tags })
}

/// Reads every document of a text.
pub(super) fn parse_all(text: &str, max_bytes: u64) -> Result<Vec<Node<'_>>, DocumentError> {
    let (mut builder, mut roots) = (Builder::new(max_bytes, None), Vec::new());
    for event in parser(text) {
        let (event, span) = event?;
        builder.take(event, position(span.start))?;
        roots.extend(builder.root.take());
    }
    Ok(roots)
}

fn parser(text: &str) -> Parser<'_, StrInput<'_>> {
    // Set explicitly, because another crate may enable the parser's feature: with it, a long run of comments is
    // rejected.
    Parser::new_from_str_with_options(text, granit_parser::options! { emit_comments: false })
}

/// Returns whether an event belongs to a document that is not empty, unlike the one after a last `---`.
fn says_something(event: &Event<'_>) -> bool {
    match event {
        Event::Scalar(text, style, _, tag) => !is_plain(*style, tag.as_deref()) || Plain::of(text) != Plain::Null,
        Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(..) => true,
        _ => false,
    }
}

/// Builds the tree from the parser's events.
struct Builder<'a, 'v> {
    visitor: Option<&'v mut dyn Visitor<'a>>,
    /// Lists and mappings that have begun and not ended.
    open: Vec<Open<'a>>,
    anchors: HashMap<usize, Weighed<'a>>,
    /// Total size of the nodes behind all aliases so far, bounded by `max_bytes`.
    aliased: u64,
    max_bytes: u64,
    root: Option<Node<'a>>,
    tags: Vec<Position>,
}

/// A node, with its approximate size in bytes if its aliases were written out.
#[derive(Clone)]
struct Weighed<'a> {
    node: Node<'a>,
    bytes: u64,
}

struct Open<'a> {
    position: Position,
    anchor: usize,
    bytes: u64,
    items: Items<'a>,
}

enum Items<'a> {
    List(Vec<Node<'a>>),
    Map { entries: Vec<Entry<'a>>, key: Option<Node<'a>>, merges: Vec<Node<'a>> },
    Visited(usize),
}

impl<'a, 'v> Builder<'a, 'v> {
    fn new(max_bytes: u64, visitor: Option<&'v mut dyn Visitor<'a>>) -> Self {
        let (open, anchors, tags) = (Vec::new(), HashMap::new(), Vec::new());
        Builder { visitor, open, anchors, aliased: 0, max_bytes, root: None, tags }
    }

    fn read(&mut self, marker: Marker) {
        if let (Some(visitor), Some(bytes)) = (&mut self.visitor, marker.byte_offset()) {
            visitor.read(bytes);
        }
    }

    fn take(&mut self, event: Event<'a>, position: Position) -> Result<(), DocumentError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let bytes = NODE_BYTES + text.len() as u64;
                if tag.as_deref().is_some_and(|tag| tag.core_suffix().is_none()) {
                    self.tags.push(position);
                }
                let value = if is_plain(style, tag.as_deref()) { Value::Plain(text) } else { Value::Quoted(text) };
                self.add(Weighed { node: Node { position, value }, bytes }, anchor);
            }
            Event::SequenceStart(_, anchor, _) => {
                let items = self.begin_visit(anchor).map_or_else(|| Items::List(Vec::new()), Items::Visited);
                self.begin(position, anchor, items);
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(position, anchor, Items::Map { entries: Vec::new(), key: None, merges: Vec::new() });
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => {
                let Weighed { node, bytes } =
                    self.anchors.get(&anchor).cloned().ok_or(DocumentError::Recursion(position))?;
                self.aliased = self.aliased.saturating_add(bytes);
                if self.aliased > self.max_bytes {
                    return Err(DocumentError::Expansion(position, self.max_bytes));
                }
                self.add(Weighed { node: Node { position, ..node }, bytes }, 0);
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins a list. Returns its number if its items go to the visitor.
    fn begin_visit(&mut self, anchor: usize) -> Option<usize> {
        let visitor = self.visitor.as_mut()?;
        let (parent, above) = self.open.split_last()?;
        let Items::Map { entries, key: Some(key), .. } = &parent.items else { return None };
        let is_theirs = above.last().is_none_or(|list| matches!(list.items, Items::Visited(_)));
        // Each level is a list and a mapping. A list nested too deep stays in the tree, and the reader rejects it as a
        // whole.
        let is_visited = is_theirs && anchor == 0 && parent.anchor == 0 && above.len() < 2 * MAX_LEVELS;
        let is_of_descriptors = matches!(&key.value, Value::Plain(key) | Value::Quoted(key) if key == "descriptors");
        (is_visited && is_of_descriptors).then(|| visitor.begin(entries))
    }

    fn begin(&mut self, position: Position, anchor: usize, items: Items<'a>) {
        self.open.push(Open { position, anchor, bytes: NODE_BYTES, items });
    }

    fn end(&mut self) -> Result<(), DocumentError> {
        let Some(Open { position, anchor, bytes, items }) = self.open.pop() else { return Ok(()) };
        let value = match items {
            Items::List(items) => Value::List(items.into()),
            Items::Visited(list) => {
                if let Some(visitor) = &mut self.visitor {
                    visitor.end();
                }
                Value::Visited(list)
            }
            Items::Map { entries, merges, .. } => Value::Map(merge(merges, entries)?.into()),
        };
        self.add(Weighed { node: Node { position, value }, bytes }, anchor);
        Ok(())
    }

    /// Adds a finished node to its parent.
    fn add(&mut self, weighed: Weighed<'a>, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, weighed.clone());
        }
        let Weighed { node, bytes } = weighed;
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        open.bytes = open.bytes.saturating_add(bytes);
        match &mut open.items {
            Items::List(items) => items.push(node),
            Items::Visited(_) => {
                if let Some(visitor) = &mut self.visitor {
                    visitor.item(node);
                }
            }
            Items::Map { entries, key, merges } => match key.take() {
                None => *key = Some(node),
                Some(Node { value: Value::Plain(name), .. }) if name == "<<" => merges.push(node),
                Some(key) => entries.push(Entry { key, value: node, merged: false }),
            },
        }
    }
}

/// Appends a mapping's entries to those it merges. Its own entries win, then those of the mapping named first.
fn merge<'a>(merges: Vec<Node<'a>>, own: Vec<Entry<'a>>) -> Result<Vec<Entry<'a>>, DocumentError> {
    if merges.is_empty() {
        return Ok(own);
    }
    let mut entries = Vec::new();
    for merge in merges {
        let maps = match &merge.value {
            Value::List(maps) => maps,
            _ => std::slice::from_ref(&merge),
        };
        for map in maps.iter().rev() {
            let Value::Map(merged) = &map.value else { return Err(DocumentError::Merge(map.position)) };
            entries.extend(merged.iter().map(|entry| Entry { merged: true, ..entry.clone() }));
        }
    }
    entries.extend(own);
    Ok(entries)
}

/// Returns whether a scalar counts as unquoted. A tag overrides the quotes: `!!str 5` is a text, and `!!int "5"` a
/// number.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag.and_then(Tag::core_suffix) {
        Some("str") => false,
        Some(_) => true,
        None => style == ScalarStyle::Plain,
    }
}

pub(super) fn position(marker: Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}
