//! Conditions on the fields of a line, as Envoy's routes and actions have them.

use std::borrow::Cow;
use std::ops::Range;

use percent_encoding::percent_decode_str;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::template::{Template, Values};

/// A condition on a part of a request.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) subject: Subject,
    pub(super) test: Test,
    /// Whether the condition holds if the test fails.
    pub(super) is_inverted: bool,
    /// Whether a missing part counts as an empty one. Without this it fails every test, inverted or not, like in Envoy.
    pub(super) is_missing_empty: bool,
}

/// A part of a request.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A field of the line.
    Field(Template),
    /// The path of a field that has a path and a query.
    Path(Template),
    /// A parameter of the query in such a field, as it is written: the routes of Envoy do not decode it.
    RawQuery(Template, String),
    /// The same with its percent signs decoded, as actions of Envoy do.
    Query(Template, String),
}

/// What a condition requires of a part.
#[derive(Clone, Debug)]
pub(super) enum Test {
    /// That the request has it (true), or has it not.
    Present(bool),
    /// That it has this text.
    Text(TextTest),
    /// That it is a whole number in this range.
    Number(Range<i64>),
}

/// A test of a text.
#[derive(Clone, Debug)]
pub(super) struct TextTest {
    kind: Kind,
    ignores_case: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Exact(String),
    Prefix(String),
    /// The text itself, or a path below it.
    Folder(String),
    Suffix(String),
    Contains(String),
    Regex(Regex),
}

/// `StringMatcher` in Envoy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StringMatcher {
    exact: Option<String>,
    prefix: Option<String>,
    suffix: Option<String>,
    contains: Option<String>,
    safe_regex: Option<RegexMatcher>,
    #[serde(default)]
    ignore_case: bool,
}

/// `RegexMatcher` in Envoy.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RegexMatcher {
    regex: String,
}

impl Condition {
    /// Creates a condition that a part has a text.
    pub(super) fn of_text(subject: Subject, test: TextTest) -> Condition {
        Condition { subject, test: Test::Text(test), is_inverted: false, is_missing_empty: false }
    }

    /// Returns whether the request of a line fulfils it.
    pub(super) fn holds(&self, values: &Values<'_>) -> bool {
        let value = self.subject.value(values);
        let value = if self.is_missing_empty { Some(value.unwrap_or_default()) } else { value };
        match (&self.test, value) {
            (Test::Present(present), value) => (value.is_some() == *present) != self.is_inverted,
            (_, None) => false,
            (Test::Text(test), Some(value)) => test.holds(&value) != self.is_inverted,
            (Test::Number(range), Some(value)) => {
                value.parse().is_ok_and(|number| range.contains(&number)) != self.is_inverted
            }
        }
    }
}

impl Subject {
    /// Returns the part in the request of a line; `None` if it is missing.
    pub(super) fn value<'v>(&'v self, values: &'v Values<'_>) -> Option<Cow<'v, str>> {
        match self {
            Subject::Field(field) => field.fill(values),
            Subject::Path(field) => Some(match field.fill(values)? {
                Cow::Borrowed(path) => Cow::Borrowed(split(path).0),
                Cow::Owned(path) => Cow::Owned(split(&path).0.to_owned()),
            }),
            Subject::RawQuery(field, name) => parameter(&field.fill(values)?, name, str::to_owned),
            Subject::Query(field, name) => {
                // A plus sign is no space to Envoy.
                parameter(&field.fill(values)?, name, |text| percent_decode_str(text).decode_utf8_lossy().into_owned())
            }
        }
    }
}

/// Returns the first parameter of this name in the query.
fn parameter(path: &str, name: &str, decoded: impl Fn(&str) -> String) -> Option<Cow<'static, str>> {
    let mut parameters = split(path).1.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
    let (_, value) = parameters.find(|(key, _)| decoded(key) == *name)?;
    Some(Cow::Owned(decoded(value)))
}

/// Returns the path and the query.
fn split(path: &str) -> (&str, &str) {
    let path = path.split_once('#').map_or(path, |(path, _)| path);
    path.split_once('?').unwrap_or((path, ""))
}

impl TextTest {
    pub(super) fn exact(text: String) -> TextTest {
        TextTest { kind: Kind::Exact(text), ignores_case: false }
    }

    pub(super) fn prefix(text: String) -> TextTest {
        TextTest { kind: Kind::Prefix(text), ignores_case: false }
    }

    /// Creates a test for a path and all paths below it.
    pub(super) fn folder(text: String) -> TextTest {
        TextTest { kind: Kind::Folder(text), ignores_case: false }
    }

    pub(super) fn suffix(text: String) -> TextTest {
        TextTest { kind: Kind::Suffix(text), ignores_case: false }
    }

    pub(super) fn contains(text: String) -> TextTest {
        TextTest { kind: Kind::Contains(text), ignores_case: false }
    }

    /// Creates a test for a pattern of the whole text.
    ///
    /// # Errors
    /// Fails if the pattern is invalid.
    pub(super) fn regex(RegexMatcher { regex }: &RegexMatcher) -> Result<TextTest, String> {
        let whole = RegexBuilder::new(&format!("^(?:{regex})$")).dot_matches_new_line(true).build();
        let regex = whole.map_err(|error| format!("{regex:?} is no regular expression: {error}"))?;
        Ok(TextTest { kind: Kind::Regex(regex), ignores_case: false })
    }

    /// Returns the test for any case of letters, which those for a pattern do not have.
    pub(super) fn ignoring_case(self, ignores_case: bool) -> TextTest {
        TextTest { ignores_case, ..self }
    }

    /// Returns whether the test is fulfilled by every path.
    pub(super) fn is_of_any_path(&self) -> bool {
        matches!(&self.kind, Kind::Prefix(prefix) if prefix == "/" || prefix.is_empty())
    }

    pub(super) fn holds(&self, text: &str) -> bool {
        let same = |part: &[u8], other: &str| match self.ignores_case {
            true => part.eq_ignore_ascii_case(other.as_bytes()),
            false => part == other.as_bytes(),
        };
        let bytes = text.as_bytes();
        let begins = |with: &str| bytes.get(..with.len()).is_some_and(|part| same(part, with));
        match &self.kind {
            Kind::Exact(exact) => same(bytes, exact),
            Kind::Prefix(prefix) => begins(prefix),
            Kind::Folder(folder) => begins(folder) && matches!(bytes.get(folder.len()), None | Some(b'/')),
            Kind::Suffix(suffix) => {
                bytes.len().checked_sub(suffix.len()).is_some_and(|begin| same(&bytes[begin..], suffix))
            }
            Kind::Contains(part) => match self.ignores_case {
                true => text.to_ascii_lowercase().contains(&part.to_ascii_lowercase()),
                false => text.contains(part),
            },
            Kind::Regex(regex) => regex.is_match(text),
        }
    }
}

impl RegexMatcher {
    pub(super) fn new(regex: &str) -> RegexMatcher {
        RegexMatcher { regex: regex.to_owned() }
    }
}

impl StringMatcher {
    /// Returns the test.
    ///
    /// # Errors
    /// Fails if there is not exactly one test, or its pattern is invalid.
    pub(super) fn test(self) -> Result<TextTest, String> {
        let StringMatcher { exact, prefix, suffix, contains, safe_regex, ignore_case } = self;
        let texts = [
            exact.map(TextTest::exact),
            prefix.map(TextTest::prefix),
            suffix.map(TextTest::suffix),
            contains.map(TextTest::contains),
            safe_regex.as_ref().map(TextTest::regex).transpose()?,
        ];
        let mut tests = texts.into_iter().flatten();
        match (tests.next(), tests.next()) {
            (Some(test), None) => Ok(test.ignoring_case(ignore_case)),
            _ => Err("a string_match needs one of exact, prefix, suffix, contains and safe_regex".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::Names;
    use super::*;

    fn condition(subject: impl Fn(Template) -> Subject, test: Test) -> Condition {
        let field = Template::of_field("field", &mut Names::default());
        Condition { subject: subject(field), test, is_inverted: false, is_missing_empty: false }
    }

    fn holds(condition: &Condition, value: Option<&str>) -> bool {
        condition.holds(&std::iter::once(value.map(Cow::Borrowed)).collect())
    }

    fn matcher(json: &str) -> TextTest {
        serde_json::from_str::<StringMatcher>(json).unwrap().test().unwrap()
    }

    #[test]
    fn texts_are_tested_as_envoy_tests_them() {
        let cases = [
            ("{\"exact\":\"aB\"}", "aB", "ab"),
            ("{\"exact\":\"aB\",\"ignore_case\":true}", "Ab", "abc"),
            ("{\"prefix\":\"a\u{e9}\"}", "a\u{e9}b", "\u{e9}"),
            ("{\"suffix\":\"b\"}", "ab", "ba"),
            ("{\"contains\":\"B\",\"ignore_case\":true}", "abc", "ac"),
            ("{\"safe_regex\":{\"regex\":\"a|b.\"}}", "bx", "ax"),
        ];
        for (json, holds, fails) in cases {
            let test = matcher(json);
            assert!(test.holds(holds) && !test.holds(fails), "{json}");
        }
        let folder = TextTest::folder("/api".to_owned());
        assert!(folder.holds("/api") && folder.holds("/api/v1") && !folder.holds("/apis") && !folder.holds("/ap"));
        for wrong in ["{}", "{\"exact\":\"a\",\"prefix\":\"a\"}", "{\"safe_regex\":{\"regex\":\"(\"}}"] {
            assert!(serde_json::from_str::<StringMatcher>(wrong).unwrap().test().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_part_fails_every_test_but_that_it_is_missing() {
        let exact = condition(Subject::Field, Test::Text(TextTest::exact("a".to_owned())));
        let inverted = Condition { is_inverted: true, ..exact.clone() };
        let empty = Condition { is_missing_empty: true, ..inverted.clone() };
        assert_eq!([&exact, &inverted, &empty].map(|one| holds(one, None)), [false, false, true]);
        assert_eq!([&exact, &inverted, &empty].map(|one| holds(one, Some("b"))), [false, true, true]);
        let present = condition(Subject::Field, Test::Present(true));
        let absent = Condition { is_inverted: true, ..present.clone() };
        assert_eq!([&present, &absent].map(|one| holds(one, None)), [false, true]);
    }

    #[test]
    fn numbers_paths_and_parameters_are_parts() {
        let range = condition(Subject::Field, Test::Number(-1..2));
        assert_eq!(["-1", "1", "2", "x"].map(|value| holds(&range, Some(value))), [true, true, false, false]);
        let path = condition(Subject::Path, Test::Text(TextTest::exact("/a".to_owned())));
        assert_eq!(["/a?b", "/a#c", "/ab"].map(|value| holds(&path, Some(value))), [true, true, false]);
        let query = |field| Subject::Query(field, "q".to_owned());
        let query = condition(query, Test::Text(TextTest::exact("x y".to_owned())));
        assert_eq!(["/?q=x%20y&q=z", "/?q=x+y", "/"].map(|value| holds(&query, Some(value))), [true, false, false]);
        let raw = |field| Subject::RawQuery(field, "q".to_owned());
        let raw = condition(raw, Test::Text(TextTest::exact("x%20y".to_owned())));
        assert!(holds(&raw, Some("/?q=x%20y")));
    }
}
