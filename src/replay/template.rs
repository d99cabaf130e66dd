//! Texts that contain fields of a log line: `%NAME%` is a field, `%%` is a percent sign.

use std::borrow::Cow;

use smallvec::SmallVec;

/// The fields of a line, by their index in [`Names`]; `None` for a field that the line does not have.
pub(super) type Values<'l> = SmallVec<[Option<Cow<'l, str>>; 8]>;

/// The names of all fields in use, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// Returns the index of the field with this name. Adds the name if it is new.
    fn index(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }

    pub(super) fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// A part of a text. `F` represents a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part<F> {
    Text(String),
    Field(F),
}

impl<F> Part<F> {
    /// Returns the field, if it is one.
    pub(super) fn field(self) -> Option<F> {
        match self {
            Part::Text(_) => None,
            Part::Field(field) => Some(field),
        }
    }
}

/// The error for a field that does not end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} has a % that begins a field and none that ends it: write %NAME%, and %% for a percent sign")]
pub struct OpenField(String);

/// Splits a text at its fields. A field may have an argument in parentheses, where percent signs have no meaning.
pub(super) fn parts(text: &str) -> Result<Vec<Part<&str>>, OpenField> {
    let open = || OpenField(text.to_owned());
    let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            plain.push('%');
            rest = after;
            continue;
        }
        let argument_end = match (after.find('('), after.find('%')) {
            (Some(begin), Some(end)) if begin < end => begin + after[begin..].find(')').ok_or_else(open)?,
            _ => 0,
        };
        let end = argument_end + after[argument_end..].find('%').ok_or_else(open)?;
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Field(&after[..end]));
        rest = &after[end + 1..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

/// A text with fields, given by their indices.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Part<usize>>);

impl Template {
    pub(super) fn parse(text: &str, names: &mut Names) -> Result<Template, OpenField> {
        let parts = parts(text)?.into_iter().map(|part| match part {
            Part::Text(text) => Part::Text(text),
            Part::Field(name) => Part::Field(names.index(name)),
        });
        Ok(Template(parts.collect()))
    }

    /// Creates a template without a field.
    pub(super) fn of_text(text: &str) -> Template {
        Template(vec![Part::Text(text.to_owned())])
    }

    /// Creates a template with just one field.
    pub(super) fn of_field(name: &str, names: &mut Names) -> Template {
        Template(vec![Part::Field(names.index(name))])
    }

    /// Returns the text with the fields of a line; `None` if the line lacks one of them.
    pub(super) fn fill<'v>(&'v self, values: &'v Values<'_>) -> Option<Cow<'v, str>> {
        match &self.0[..] {
            [] => Some(Cow::Borrowed("")),
            [part] => part.fill(values).map(Cow::Borrowed),
            parts => parts.iter().map(|part| part.fill(values)).collect::<Option<String>>().map(Cow::Owned),
        }
    }
}

impl Part<usize> {
    fn fill<'v>(&'v self, values: &'v Values<'_>) -> Option<&'v str> {
        match self {
            Part::Text(text) => Some(text),
            Part::Field(index) => values[*index].as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, fields: &[(&str, Option<&str>)]) -> Option<String> {
        let mut names = Names::default();
        let template = Template::parse(template, &mut names).unwrap();
        let value = |name: &String| fields.iter().find(|(field, _)| field == name)?.1.map(Cow::Borrowed);
        let values: Values<'_> = names.as_slice().iter().map(value).collect();
        template.fill(&values).map(Cow::into_owned)
    }

    #[test]
    fn fields_stand_between_percent_signs() {
        let fields = [("REQ(x-user)", Some("ann")), ("path", Some("/a")), ("START_TIME(%s.%3f)", Some("1.5"))];
        let said = |template| filled(template, &fields);
        assert_eq!(said("%REQ(x-user)%").as_deref(), Some("ann"));
        assert_eq!(said("u-%REQ(x-user)%%path%!").as_deref(), Some("u-ann/a!"));
        assert_eq!(said("%START_TIME(%s.%3f)%").as_deref(), Some("1.5"));
        assert_eq!(said("100 %%").as_deref(), Some("100 %"));
        assert_eq!(said("").as_deref(), Some(""));
        assert_eq!(said("a %nobody% b"), None);
    }

    #[test]
    fn a_field_that_does_not_end_is_refused() {
        for open in ["%", "a%b", "%REQ(x", "%REQ(x)", "%a%%b"] {
            assert!(parts(open).is_err(), "{open}");
        }
    }
}
