//! The formats of log lines and the fields in them.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use smallvec::SmallVec;

use super::template::{self, OpenField, Part, Values};

/// Envoy's default format.
const ENVOY: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
                     %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
                     %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \
                     \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"\n";

/// The text for a missing value in a log.
const MISSING: &str = "-";

/// The format of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text according to this format string of Envoy.
    Text(String),
    /// One JSON object per line.
    Json,
    /// One JSON object per line, as Envoy's `json_format` says: its operators, each with its key.
    Keyed(Vec<(String, String)>),
    /// Comma-separated values below a row of names.
    Csv,
    /// Tollgate's decision log.
    Decisions,
}

/// The reason why a log cannot be read in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A field does not end.
    #[error(transparent)]
    Open(#[from] OpenField),
    /// Neither a known name nor a format string.
    #[error("{0:?} is no format: auto, envoy, json, csv, decisions, or a format string with %START_TIME%")]
    Unknown(String),
    /// Two fields follow each other directly, so the end of the first is ambiguous.
    #[error("nothing stands between %{0}% and %{1}%: where the first ends cannot be told")]
    Adjoining(String, String),
    /// The mapping uses a field that lines do not have.
    #[error("lines have no %{0}%; they have {1}")]
    NoField(String, String),
}

impl Format {
    /// Parses the name of a format, or a format string; returns `None` for `auto`.
    ///
    /// # Errors
    /// Fails if the text is neither.
    pub fn parse(text: &str) -> Result<Option<Format>, FormatError> {
        Ok(Some(match text {
            "auto" => return Ok(None),
            "envoy" => Format::envoy(),
            "json" => Format::Json,
            "csv" => Format::Csv,
            "decisions" => Format::Decisions,
            text if text.contains('%') => {
                Pattern::new(text, &[])?;
                Format::Text(text.to_owned())
            }
            text => return Err(FormatError::Unknown(text.to_owned())),
        }))
    }

    /// Returns Envoy's default format.
    pub(super) fn envoy() -> Format {
        Format::Text(ENVOY.to_owned())
    }

    /// Returns the operators of Envoy that lines have as fields; `None` if other names are those of fields.
    pub(super) fn operators(&self) -> Option<Vec<&str>> {
        match self {
            // A format that cannot be parsed is refused where lines are read.
            Format::Text(format) => {
                Some(template::parts(format).unwrap_or_default().into_iter().filter_map(Part::field).collect())
            }
            Format::Keyed(fields) => Some(fields.iter().map(|(operator, _)| operator.as_str()).collect()),
            Format::Json | Format::Csv | Format::Decisions => None,
        }
    }

    /// Returns the format of a log with this name that starts with these bytes.
    pub fn detect(name: &Path, begin: &[u8]) -> Format {
        let name = name.to_string_lossy();
        let first = begin.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let has = |key: &str| memchr::memmem::find(first, key.as_bytes()).is_some();
        match first.trim_ascii_start().first() {
            _ if name.trim_end_matches(".gz").ends_with(".csv") => Format::Csv,
            Some(b'{') if ["\"descriptor\":", "\"outcome\":", "\"rule\":"].into_iter().all(has) => Format::Decisions,
            Some(b'{') => Format::Json,
            _ => Format::envoy(),
        }
    }
}

/// Returns whether a log that starts with these bytes is one JSON array of objects. A line of Envoy's text starts with
/// a bracket as well, but with a time behind it.
pub(super) fn is_array(begin: &[u8]) -> bool {
    let Some(rest) = begin.trim_ascii_start().strip_prefix(b"[") else { return false };
    rest.trim_ascii_start().starts_with(b"{")
}

/// Returns the value; `None` if it is missing.
pub(super) fn present<'l>(value: impl Into<Cow<'l, str>>) -> Option<Cow<'l, str>> {
    Some(value.into()).filter(|value| !value.is_empty() && value != MISSING)
}

/// The positions of fields in lines of text.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Text at the start of the line.
    begin: String,
    /// The fields, up to the last one that is used.
    fields: Vec<PatternField>,
    /// Number of fields that are used.
    wanted: usize,
}

#[derive(Clone, Debug)]
struct PatternField {
    /// Indices among the names of the fields that are used.
    index: SmallVec<[usize; 1]>,
    /// Text after the field; `None` if it ends with the line.
    end: Option<Finder<'static>>,
}

impl Pattern {
    /// Creates the pattern for a format string and the fields to use.
    pub(super) fn new(format: &str, wanted: &[String]) -> Result<Pattern, FormatError> {
        let mut begin = String::new();
        let (mut fields, mut operators) = (Vec::<PatternField>::new(), Vec::<&str>::new());
        for part in template::parts(format.trim_end_matches(['\r', '\n']))? {
            match (part, fields.last_mut()) {
                (Part::Text(text), None) => begin = text,
                (Part::Text(text), Some(before)) => before.end = Some(Finder::new(&text).into_owned()),
                (Part::Field(operator), before) => {
                    if let (Some(before), Some(PatternField { end: None, .. })) = (operators.last(), before) {
                        return Err(FormatError::Adjoining((*before).to_owned(), operator.to_owned()));
                    }
                    operators.push(operator);
                    fields.push(PatternField { index: SmallVec::new(), end: None });
                }
            }
        }
        for (index, name) in wanted.iter().enumerate() {
            let at = operators.iter().position(|operator| is_named(operator, name)).ok_or_else(|| {
                let all: Vec<String> = operators.iter().map(|operator| format!("%{operator}%")).collect();
                FormatError::NoField(name.clone(), all.join(" "))
            })?;
            fields[at].index.push(index);
        }
        let last = fields.iter().rposition(|field| !field.index.is_empty()).map_or(0, |last| last + 1);
        fields.truncate(last);
        Ok(Pattern { begin, fields, wanted: wanted.len() })
    }

    /// Returns the used fields of a line; `None` if the line does not have this format.
    pub(super) fn values<'l>(&self, line: &'l str) -> Option<Values<'l>> {
        let mut values = smallvec::smallvec![None; self.wanted];
        let mut rest = line.strip_prefix(self.begin.as_str())?;
        for PatternField { index, end } in &self.fields {
            let value = match end {
                None => std::mem::take(&mut rest),
                Some(end) => {
                    let at = end.find(rest.as_bytes())?;
                    let value = &rest[..at];
                    rest = &rest[at + end.needle().len()..];
                    value
                }
            };
            for index in index {
                values[*index] = present(value);
            }
        }
        Some(values)
    }
}

/// Returns the key of each name, in the JSON of lines whose operators have these keys.
pub(super) fn keys(fields: &[(String, String)], names: &[String]) -> Result<Vec<String>, FormatError> {
    let key = |name: &String| {
        let field = fields.iter().find(|(operator, _)| is_named(operator, name));
        field.map(|(_, key)| key.clone()).ok_or_else(|| {
            let all: Vec<String> = fields.iter().map(|(operator, _)| format!("%{operator}%")).collect();
            FormatError::NoField(name.clone(), all.join(" "))
        })
    };
    names.iter().map(key).collect()
}

/// Returns whether a name refers to an operator of a format string: `REQ(x-user)` refers to `REQ(X-USER?:PATH):12`, and
/// `START_TIME` refers to `START_TIME(%s)`.
pub(super) fn is_named(operator: &str, name: &str) -> bool {
    fn cut(text: &str) -> (&str, Option<&str>) {
        let argument = |rest: &'_ str| rest.rfind(')').unwrap_or(rest.len());
        text.split_once('(').map_or((text, None), |(command, rest)| (command, Some(&rest[..argument(rest)])))
    }
    let ((command, argument), (name, wanted)) = (cut(operator), cut(name));
    let is_one_of = |argument: &str, wanted: &str| {
        argument.eq_ignore_ascii_case(wanted) || argument.split('?').any(|one| one.eq_ignore_ascii_case(wanted))
    };
    command.eq_ignore_ascii_case(name)
        && wanted.is_none_or(|wanted| argument.is_some_and(|argument| is_one_of(argument, wanted)))
}

/// Returns the used fields of a JSON object. `a.b` is field `b` of `a`, unless there is a field with the full name.
///
/// # Errors
/// Fails if the line is not a JSON object.
pub(super) fn json_values<'l>(line: &'l str, wanted: &[String]) -> Result<Values<'l>, serde_json::Error> {
    let mut values = smallvec::smallvec![None; wanted.len()];
    let names = wanted.iter().enumerate().map(|(index, name)| (index, name.as_str())).collect();
    let mut deserializer = serde_json::Deserializer::from_str(line);
    deserializer.deserialize_map(Field { own: None, names, values: &mut values })?;
    deserializer.end()?;
    Ok(values)
}

/// Returns why a line is not a JSON object.
pub(super) fn no_object(line: &str, error: &serde_json::Error) -> String {
    match error.classify() {
        _ if !line.trim_start().starts_with('{') => "is not a JSON object: it does not begin with {".to_owned(),
        Category::Eof => "is not a JSON object: it ends too early".to_owned(),
        _ => format!("is not a JSON object: there is a mistake in column {}", error.column()),
    }
}

/// A deserializer that collects the used fields of a JSON value.
struct Field<'v, 'n, 'l> {
    /// Index of the value itself, if it is used.
    own: Option<usize>,
    /// Index and remaining name of each used field of the value.
    names: SmallVec<[(usize, &'n str); 8]>,
    values: &'v mut Values<'l>,
}

/// The name of a field.
#[derive(Deserialize)]
struct Name<'l>(#[serde(borrow)] Cow<'l, str>);

impl<'l> Field<'_, '_, 'l> {
    fn put<E>(self, value: impl Into<Cow<'l, str>>) -> Result<(), E> {
        if let Some(index) = self.own {
            self.values[index] = present(value);
        }
        Ok(())
    }
}

impl<'l> DeserializeSeed<'l> for Field<'_, '_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for Field<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(key)) = map.next_key()? {
            let own = self.names.iter().find(|(_, name)| *name == key).map(|(index, _)| *index);
            let below = |(index, name): &(usize, &'_ str)| {
                let begin = name.strip_prefix(&*key)?.strip_prefix('.')?;
                Some((*index, name.len() - begin.len()))
            };
            let nested = self.names.iter().filter_map(|name| below(name).map(|(index, at)| (index, &name.1[at..])));
            let names: SmallVec<[_; 8]> = nested.collect();
            if own.is_none() && names.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Field { own, names, values: self.values })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<(), E> {
        self.put(text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.put(text.to_owned())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        self.put(if truth { "true" } else { "false" })
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.put(number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.put(number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.put(number.to_string())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn texts(values: Option<Values<'_>>) -> Option<Vec<Option<String>>> {
        Some(values?.into_iter().map(|value| value.map(Cow::into_owned)).collect())
    }

    fn some(texts: &[&str]) -> Option<Vec<Option<String>>> {
        Some(texts.iter().map(|text| present(*text).map(Cow::into_owned)).collect())
    }

    #[test]
    fn a_line_of_envoys_default_format_is_read() {
        let line = "[2026-01-02T03:04:05.678Z] \"GET /a?b=c HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.1\" \"curl/8 (x; y)\" \
                    \"4c9\" \"shop.example\" \"127.0.0.1:80\"";
        let wanted = names(&["START_TIME", "req(:path)", "REQ(:authority)", "REQ(X-FORWARDED-FOR)", "RESPONSE_FLAGS"]);
        let pattern = Pattern::new(ENVOY, &wanted).unwrap();
        let expected = some(&["2026-01-02T03:04:05.678Z", "/a?b=c", "shop.example", "192.0.2.1", "-"]);
        assert_eq!(texts(pattern.values(line)), expected);
        assert!(pattern.values("upstream connect error").is_none());
    }

    #[test]
    fn a_format_that_cannot_be_told_apart_or_lacks_a_field_is_refused() {
        let adjoining = Pattern::new("%REQ(a)%%REQ(b)%", &[]).unwrap_err();
        assert_eq!(adjoining, FormatError::Adjoining("REQ(a)".into(), "REQ(b)".into()));
        let missing = Pattern::new("%START_TIME% %REQ(x-user)%", &names(&["REQ(x-usr)"])).unwrap_err();
        assert_eq!(missing.to_string(), "lines have no %REQ(x-usr)%; they have %START_TIME% %REQ(x-user)%");
        assert!(Format::parse("yaml").is_err() && Format::parse("%open").is_err());
    }

    #[test]
    fn a_log_is_known_by_its_name_or_its_first_line() {
        let decision = b"{\"time\":\"\",\"domain\":\"d\",\"rule\":\"r\",\"descriptor\":[],\"outcome\":\"denied\"}\n{";
        let of = |name, begin| Format::detect(Path::new(name), begin);
        assert_eq!(of("a.csv.gz", b"time,user\n"), Format::Csv);
        assert_eq!(of("a.log", b" {\"user\":\"ann\"}\n"), Format::Json);
        assert_eq!(of("-", decision), Format::Decisions);
        assert_eq!(of("a.log", b"[2026"), Format::Text(ENVOY.to_owned()));
    }

    #[test]
    fn json_has_fields_in_fields() {
        let line = "{\"a.b\":\"whole\",\"a\":{\"b\":\"inner\",\"c\":7,\"d\":[{\"e\":1}]},\"n\":null,\"m\":\"-\",\
                    \"t\":true,\"esc\":\"\\u00e9\\n\",\"f\":1.5,\"o\":{\"x\":1}}";
        let wanted = names(&["a.c", "n", "m", "t", "esc", "f", "o", "a.d.e", "gone"]);
        let expected = some(&["7", "-", "-", "true", "\u{e9}\n", "1.5", "-", "-", "-"]);
        assert_eq!(texts(json_values(line, &wanted).ok()), expected);
        assert!(json_values("[]", &wanted).is_err() && json_values("{\"a\":1} x", &wanted).is_err());
    }

    proptest! {
        /// Fields have any content, except for the text that ends them.
        #[test]
        fn a_text_is_read_as_it_was_written(user in "[^\"\r\n]{0,12}", path in "[^ \r\n]{0,12}", time in 0..u64::MAX) {
            let line = format!("{time} \"{user}\" {path} end");
            let format = "%START_TIME(%s)% \"%REQ(X-USER?Y)%\" %PATH% end";
            let pattern = Pattern::new(format, &names(&["path", "REQ(y)", "start_time"])).unwrap();
            prop_assert_eq!(texts(pattern.values(&line)), some(&[&path, &user, &time.to_string()]));
        }

        #[test]
        fn json_is_read_as_it_was_written(user in ".{0,12}", path in ".{0,12}", other in ".{0,12}") {
            let line = serde_json::json!({"o": other, "user": user, "request": {"o": other, "path": path}}).to_string();
            let wanted = names(&["request.path", "user"]);
            prop_assert_eq!(texts(json_values(&line, &wanted).ok()), some(&[&path, &user]));
        }
    }
}
