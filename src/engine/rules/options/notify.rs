//! `notify: {at: [80%, 100%]}`: people are told when a counter reaches these shares of the limit.

use std::fmt;

use super::Validation;
use super::enforce::Share;
use crate::rules::config::{FieldPath, Raw, RawValue};
use crate::rules::report::quoted;
use crate::rules::section::{Key, Section, Takes, key};

pub(in crate::rules) const KEY: Key = key(
    "notify",
    Takes::One(&SECTION),
    "Tells a webhook and the log, once a window, that a counter has reached a share of the limit.",
)
.example("{at: [80%, 100%]}");

/// The keys of the option.
pub static SECTION: Section = Section::new(
    "notify",
    "Shares of the limit that people are told of when a counter reaches them.",
    &[&[key("at", Takes::Names, "Shares of the limit, from 0.01% to 100%, at most 8 of them.")]],
    &["at"],
);

/// The largest number of marks.
pub const MOST: usize = 8;

/// The marks of a limit, if it has some.
pub type Value = Option<Marks>;

pub(super) const UNSAID: Value = None;

/// Shares of a limit, in ascending order and each once. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Marks(Box<[Share]>);

impl Marks {
    /// Returns the marks, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Share> {
        self.0.iter().copied()
    }
}

/// Formats them as in rules.
impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marks: Vec<String> = self.iter().map(|mark| mark.to_string()).collect();
        write!(f, "{{at: [{}]}}", marks.join(", "))
    }
}

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let raw = validation.raw.mapping(KEY.name);
    let (complaints, path) = (&mut *validation.complaints, path.key("at"));
    let list = match raw.get()?.get("at") {
        Raw::Unreadable => return None,
        Raw::Given(RawValue::Names(list)) if !list.is_empty() => list,
        _ => {
            complaints.error(path, "is empty: write shares of the limit, such as [80%, 100%]");
            return None;
        }
    };
    if list.len() > MOST {
        complaints.error(path, format!("has {} shares; there may be up to {MOST}", list.len()));
        return None;
    }
    let mut marks: Vec<Share> = Vec::with_capacity(list.len());
    for (index, raw) in list.iter().enumerate() {
        let path = path.item(index);
        let text = complaints.required_text(raw, path)?;
        let Some(mark) = Share::parse(text) else {
            complaints.error(
                path,
                format!("{} is not a share: write a percentage with its sign, such as 80%", quoted(text)),
            );
            return None;
        };
        if marks.contains(&mark) {
            complaints.error(path, format!("{mark} is named above as well"));
            return None;
        }
        marks.push(mark);
    }
    marks.sort_unstable();
    Some(Some(Marks(marks.into())))
}

pub(super) fn written(marks: &Value) -> String {
    super::given(marks)
}

pub(super) fn explained(marks: &Value) -> String {
    match marks {
        Some(marks) => {
            let marks: Vec<String> = marks.iter().map(|mark| mark.to_string()).collect();
            format!("at {} of the limit, once a window", marks.join(", "))
        }
        None => super::given(marks),
    }
}
