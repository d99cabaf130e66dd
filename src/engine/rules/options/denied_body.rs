//! `denied_body: {format: problem}`: the body of the answer to a request that the limit denies.

use std::sync::Arc;

use super::Validation;
use crate::denied_body::{DeniedBody, Format, Placeholder, Template, TemplateError};
use crate::rules::complaints::Complaints;
use crate::rules::config::{FieldPath, Raw, RawMapping};
use crate::rules::report::unknown;
use crate::rules::section::{Key, Section, Takes, key};

/// The key in rules.
pub const KEY_NAME: &str = "denied_body";

pub(in crate::rules) const KEY: Key = key(
    KEY_NAME,
    Takes::One(&SECTION),
    "Body of the answer to a request that the limit denies. Default: the file's defaults, then the setting \
     DENIED_BODY.",
)
.example("{format: problem}");

/// The keys of a body.
pub static SECTION: Section = Section::new(
    "denied_body",
    "The body of the answer to a denied request: a ready format, or a text.",
    &[&[
        key(
            "format",
            Takes::Choice(formats),
            "A ready format: problem for problem details, openai or anthropic for the errors of their APIs, none for \
             no body.",
        ),
        key(
            "text",
            Takes::Text,
            "A text, with the placeholders {rule}, {domain}, {limit}, {period}, {remaining}, {wait_seconds}, {wait}, \
             {message} and {policies}.",
        ),
        key(
            "content_type",
            Takes::Text,
            "Content type of the text, which its values are escaped for. Default: text/plain; charset=utf-8.",
        ),
    ]],
    &[],
);

/// The name of the format that is no body.
pub const NONE: &str = "none";

/// The body of the answer to a request that the limit denies.
pub type Value = Option<Arc<DeniedBody>>;

pub(super) const UNSAID: Value = None;

pub(super) fn check(validation: &mut Validation<'_, '_>, path: FieldPath<'_>) -> Option<Value> {
    let raw = validation.raw.mapping(KEY.name);
    read(raw.get()?, validation.complaints, path)
}

/// Reads a body. Returns `None` if it has reported a mistake.
pub(in crate::rules) fn read(
    raw: &RawMapping<'_>,
    complaints: &mut Complaints<'_>,
    path: FieldPath<'_>,
) -> Option<Value> {
    let (format, text, content_type) = (raw.text("format"), raw.text("text"), raw.text("content_type"));
    if let (Raw::Given(_), Raw::Missing) = (&content_type, &text) {
        complaints.error(path.key("content_type"), "is for a text: a format has its own; remove it, or write a text");
        return None;
    }
    match (format, text) {
        (Raw::Given(_), Raw::Given(_)) => {
            complaints.error(path, "takes format or text, not both: remove one of the two");
            None
        }
        (Raw::Missing, Raw::Missing) => {
            let formats = formats().join(", ");
            complaints.error(path, format!("is empty: write a format ({formats}), or a text"));
            None
        }
        (Raw::Given(NONE), _) => Some(None),
        (Raw::Given(name), _) => {
            let found = Format::ALL.into_iter().find(|format| format.name() == name);
            if found.is_none() {
                complaints.error(path.key("format"), unknown("format", name, &formats()));
            }
            found.map(|format| Some(Arc::new(DeniedBody::Ready(format))))
        }
        (_, Raw::Given(text)) => match Template::parse(text, content_type.get().copied()) {
            Ok(template) => Some(Some(Arc::new(DeniedBody::Custom(template)))),
            Err(error) => {
                let key = if error == TemplateError::ContentType { "content_type" } else { "text" };
                let message = match &error {
                    TemplateError::Unknown(name) => {
                        unknown("placeholder", name, &Placeholder::ALL.map(Placeholder::name))
                    }
                    other => other.to_string(),
                };
                complaints.error(path.key(key), message);
                None
            }
        },
        (Raw::Unreadable, _) | (_, Raw::Unreadable) => None,
    }
}

pub(in crate::rules) fn written(body: &Value) -> String {
    super::given(&body.as_deref())
}

pub(super) fn explained(body: &Value) -> String {
    written(body)
}

fn formats() -> Vec<&'static str> {
    Format::ALL.map(Format::name).into_iter().chain([NONE]).collect()
}
