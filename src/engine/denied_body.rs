//! Bodies of the answers to denied requests: ready formats, and texts of rules with placeholders.
//!
//! A body is for the client, so it says nothing of the request's values: only what the rules say, and how long to wait.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

/// Maximum number of bytes in a text of rules.
pub const MAX_TEXT: usize = 4 * 1024;
/// Maximum number of placeholders in a text of rules.
pub const MAX_PLACEHOLDERS: usize = 16;
/// Maximum number of bytes in a content type.
const MAX_CONTENT_TYPE: usize = 100;
/// Maximum number of bytes of a name in a body; a longer one is cut.
const MAX_NAME: usize = 256;
/// Maximum number of limits that a body lists.
pub const MAX_POLICIES: usize = 16;

/// The content type of a text that names none.
const PLAIN: &str = "text/plain; charset=utf-8";
/// Problem types of the IETF draft on rate limit fields.
const PROBLEMS: &str = "https://iana.org/assignments/http-problem-types";

/// The body of the answer to a denied request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeniedBody {
    /// A ready format.
    Ready(Format),
    /// A text of rules.
    Custom(Template),
}

/// A ready format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Problem details (RFC 9457), with the types of draft-ietf-httpapi-ratelimit-headers-11.
    Problem,
    /// The error of OpenAI's API.
    OpenAi,
    /// The error of Anthropic's API.
    Anthropic,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 3] = [Format::Problem, Format::OpenAi, Format::Anthropic];

    /// Returns the name in rules and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Problem => "problem",
            Format::OpenAi => "openai",
            Format::Anthropic => "anthropic",
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Format::Problem => "application/problem+json",
            Format::OpenAi | Format::Anthropic => "application/json",
        }
    }

    fn json(self, denial: &Denial<'_>) -> Value {
        let message = denial.message();
        match self {
            Format::Problem => {
                let (kind, title) = denial.reason.problem();
                let mut problem = json!({
                    "type": format!("{PROBLEMS}#{kind}"),
                    "title": title,
                    "detail": message,
                    "violated-policies": denial.policies(),
                });
                if let Some(seconds) = denial.wait_seconds {
                    problem["retry-after"] = json!(seconds);
                }
                problem
            }
            Format::OpenAi => json!({
                "error": {"message": message, "type": "requests", "param": null, "code": "rate_limit_exceeded"},
            }),
            Format::Anthropic => json!({"type": "error", "error": {"type": "rate_limit_error", "message": message}}),
        }
    }
}

/// A text of rules with its placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    text: Box<str>,
    content_type: Box<str>,
    syntax: Syntax,
    placeholders: Vec<(Range<usize>, Placeholder)>,
}

/// The syntax of a content type, which values are escaped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Syntax {
    Json,
    /// HTML or XML.
    Markup,
    Plain,
}

impl Syntax {
    fn of(content_type: &str) -> Syntax {
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is = |name: &str| media_type.ends_with(&format!("/{name}")) || media_type.ends_with(&format!("+{name}"));
        match media_type {
            _ if is("json") => Syntax::Json,
            _ if is("html") || is("xml") => Syntax::Markup,
            _ => Syntax::Plain,
        }
    }

    fn escaped(self, text: &str) -> Cow<'_, str> {
        match self {
            Syntax::Plain => text.into(),
            // Without the quotes around it.
            Syntax::Json => {
                let quoted = json!(text).to_string();
                quoted[1..quoted.len() - 1].to_owned().into()
            }
            Syntax::Markup => {
                let entity = |char| match char {
                    '&' => "&amp;".to_owned(),
                    '<' => "&lt;".to_owned(),
                    '>' => "&gt;".to_owned(),
                    '"' => "&quot;".to_owned(),
                    '\'' => "&#39;".to_owned(),
                    other => String::from(other),
                };
                text.chars().map(entity).collect::<String>().into()
            }
        }
    }

    /// Returns the text of a number that is not known.
    const fn unknown(self) -> &'static str {
        match self {
            Syntax::Json => "null",
            Syntax::Markup | Syntax::Plain => "unknown",
        }
    }
}

/// A part of a text that is replaced when a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placeholder {
    /// The domain.
    Domain,
    /// The name of the limit that denies the request, as in metrics and headers.
    Rule,
    /// The number of the limit.
    Limit,
    /// Its period in words: `per minute`.
    Period,
    /// The number of hits that are left.
    Remaining,
    /// The seconds until the request passes, as in `Retry-After`.
    WaitSeconds,
    /// The same in words: `1m 2s`.
    Wait,
    /// A sentence on the cause, and one on what to do.
    Message,
    /// The names of all exceeded limits: a JSON list, or the names separated by commas.
    Policies,
}

impl Placeholder {
    /// All placeholders.
    pub const ALL: [Placeholder; 9] = [
        Placeholder::Domain,
        Placeholder::Rule,
        Placeholder::Limit,
        Placeholder::Period,
        Placeholder::Remaining,
        Placeholder::WaitSeconds,
        Placeholder::Wait,
        Placeholder::Message,
        Placeholder::Policies,
    ];

    /// Returns the name between braces.
    pub const fn name(self) -> &'static str {
        match self {
            Placeholder::Domain => "domain",
            Placeholder::Rule => "rule",
            Placeholder::Limit => "limit",
            Placeholder::Period => "period",
            Placeholder::Remaining => "remaining",
            Placeholder::WaitSeconds => "wait_seconds",
            Placeholder::Wait => "wait",
            Placeholder::Message => "message",
            Placeholder::Policies => "policies",
        }
    }

    fn value(self, denial: &Denial<'_>, syntax: Syntax) -> String {
        let number =
            |number: Option<u64>| number.map_or_else(|| syntax.unknown().to_owned(), |number| number.to_string());
        let escaped = |text: &str| syntax.escaped(text).into_owned();
        match self {
            Placeholder::Domain => escaped(cut(denial.domain)),
            Placeholder::Rule => escaped(cut(denial.rule)),
            Placeholder::Limit => number(denial.limit),
            Placeholder::Period => escaped(&denial.period),
            Placeholder::Remaining => number(denial.remaining),
            Placeholder::WaitSeconds => number(denial.wait_seconds),
            Placeholder::Wait => denial.wait().unwrap_or_else(|| "unknown".to_owned()),
            Placeholder::Message => escaped(&denial.message()),
            Placeholder::Policies if syntax == Syntax::Json => json!(denial.policies()).to_string(),
            Placeholder::Policies => escaped(&denial.policies().join(", ")),
        }
    }
}

/// An error in a text of rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text has no characters.
    #[error("is empty: write the text of the body, or format: none")]
    Empty,
    /// The text is too long.
    #[error("has {0} bytes; a body may have up to {MAX_TEXT}")]
    TooLong(usize),
    /// The text has too many placeholders.
    #[error("has {0} placeholders; a body may have up to {MAX_PLACEHOLDERS}")]
    TooMany(usize),
    /// A text in braces that is no placeholder.
    #[error("unknown placeholder {{{0}}}")]
    Unknown(String),
    /// The placeholder for the list of limits occurs more than once.
    #[error("has {{policies}} more than once")]
    Repeated,
    /// The content type is JSON, but the text is not.
    #[error(
        "is not JSON once its placeholders are replaced: {0}; numbers and {{policies}} are written without quotes \
         around them, and all other placeholders within a text in quotes"
    )]
    Json(String),
    /// The content type is not one.
    #[error("is not a content type; write one such as application/json")]
    ContentType,
}

impl Template {
    /// Parses a text. A placeholder is a name of lower-case letters in braces, so the braces of JSON are none.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn parse(text: &str, content_type: Option<&str>) -> Result<Template, TemplateError> {
        let content_type = content_type.unwrap_or(PLAIN);
        if !is_content_type(content_type) {
            return Err(TemplateError::ContentType);
        }
        match text.len() {
            0 => return Err(TemplateError::Empty),
            length @ ..=MAX_TEXT => length,
            length => return Err(TemplateError::TooLong(length)),
        };
        let mut placeholders = Vec::new();
        for place in braces(text) {
            let name = &text[place.start + 1..place.end - 1];
            let placeholder = Placeholder::ALL.into_iter().find(|placeholder| placeholder.name() == name);
            placeholders.push((place, placeholder.ok_or_else(|| TemplateError::Unknown(name.to_owned()))?));
        }
        if placeholders.len() > MAX_PLACEHOLDERS {
            return Err(TemplateError::TooMany(placeholders.len()));
        }
        if placeholders.iter().filter(|(_, placeholder)| *placeholder == Placeholder::Policies).count() > 1 {
            return Err(TemplateError::Repeated);
        }
        let syntax = Syntax::of(content_type);
        let template = Template { text: text.into(), content_type: content_type.into(), syntax, placeholders };
        if syntax == Syntax::Json {
            let unknown = Denial { wait_seconds: None, limit: None, remaining: None, ..Denial::sample() };
            for sample in [Denial::sample(), unknown] {
                let rendered = template.render(&sample);
                let read: Result<Value, _> = serde_json::from_str(&rendered);
                read.map_err(|error| TemplateError::Json(error.to_string()))?;
            }
        }
        Ok(template)
    }

    fn render(&self, denial: &Denial<'_>) -> String {
        let (mut rendered, mut end) = (String::with_capacity(2 * self.text.len()), 0);
        for (place, placeholder) in &self.placeholders {
            rendered.push_str(&self.text[end..place.start]);
            rendered.push_str(&placeholder.value(denial, self.syntax));
            end = place.end;
        }
        rendered.push_str(&self.text[end..]);
        rendered
    }
}

/// Finds names in braces.
fn braces(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices('{') {
        let name = &text[start + 1..];
        let length =
            name.bytes().take_while(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'0'..=b'9')).count();
        if length > 0 && name.as_bytes().get(length) == Some(&b'}') {
            found.push(start..start + length + 2);
        }
    }
    found
}

fn is_content_type(text: &str) -> bool {
    let (kind, rest) = text.split_once('/').unwrap_or_default();
    let is_word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let (subtype, parameters) = rest.split_once(';').unwrap_or((rest, ""));
    text.len() <= MAX_CONTENT_TYPE
        && is_word(kind)
        && is_word(subtype.trim_end())
        && parameters.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

/// Cuts a name that is too long.
fn cut(name: &str) -> &str {
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or_default()]
}

impl DeniedBody {
    /// Returns the content type.
    pub fn content_type(&self) -> &str {
        match self {
            DeniedBody::Ready(format) => format.content_type(),
            DeniedBody::Custom(template) => &template.content_type,
        }
    }

    /// Writes the body of a denial.
    pub fn render(&self, denial: &Denial<'_>) -> String {
        match self {
            DeniedBody::Ready(format) => format.json(denial).to_string(),
            DeniedBody::Custom(template) => template.render(denial),
        }
    }
}

/// Formats the body in a few words, for comparing rules.
impl fmt::Display for DeniedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        match self {
            DeniedBody::Ready(format) => f.write_str(format.name()),
            DeniedBody::Custom(Template { text, content_type, .. }) => {
                let line: String =
                    text.chars().take(SHOWN).map(|char| if char.is_control() { ' ' } else { char }).collect();
                write!(f, "{content_type} {line:?}")?;
                if line.len() < text.len() {
                    // Texts that differ only at their ends must not look alike.
                    write!(f, "... ({} bytes, {})", text.len(), &blake3::hash(text.as_bytes()).to_hex()[..8])?;
                }
                Ok(())
            }
        }
    }
}

/// The denial of a request, as a body shows it.
#[derive(Clone, Debug)]
pub struct Denial<'d> {
    /// The domain.
    pub domain: &'d str,
    /// The limit's name; empty if no limit denies the request.
    pub rule: &'d str,
    /// The limit's number.
    pub limit: Option<u64>,
    /// The limit's period in words.
    pub period: Cow<'d, str>,
    /// Number of hits that are left.
    pub remaining: Option<u64>,
    /// Seconds until the request passes, if that is known.
    pub wait_seconds: Option<u64>,
    /// The cause.
    pub reason: Reason,
    /// The names of all exceeded limits, each once; at most [`MAX_POLICIES`].
    pub policies: Vec<&'d str>,
}

/// The cause of a denial, in the words of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request is over the limit.
    Exceeded,
    /// The limit's penalty bans the client.
    Banned,
    /// The store was unavailable, and the limit fails closed.
    Unavailable,
    /// An adjustment blocks the request.
    Blocked,
    /// No rule matches the request.
    NoRule,
}

impl Reason {
    /// Returns the problem type and its title.
    const fn problem(self) -> (&'static str, &'static str) {
        match self {
            Reason::Exceeded | Reason::Blocked | Reason::NoRule => {
                ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded")
            }
            Reason::Banned => {
                ("abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern")
            }
            Reason::Unavailable => (
                "temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
        }
    }
}

impl<'d> Denial<'d> {
    /// Returns a denial to try texts with.
    fn sample() -> Denial<'static> {
        Denial {
            domain: "shop",
            rule: "per-user",
            limit: Some(5),
            period: "per minute".into(),
            remaining: Some(0),
            wait_seconds: Some(62),
            reason: Reason::Exceeded,
            policies: vec!["per-user"],
        }
    }

    fn policies(&self) -> Vec<&'d str> {
        self.policies.iter().copied().map(cut).take(MAX_POLICIES).collect()
    }

    fn wait(&self) -> Option<String> {
        self.wait_seconds.map(|seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string())
    }

    fn message(&self) -> String {
        let (rule, period) = (cut(self.rule), &self.period);
        let limit = self.limit.unwrap_or_default();
        let mut message = match self.reason {
            Reason::Exceeded => format!("Rate limit {rule} of {limit} {period} exceeded."),
            Reason::Banned => format!("Rate limit {rule} of {limit} {period} exceeded repeatedly."),
            Reason::Unavailable => "Rate limits cannot be checked at the moment.".to_owned(),
            Reason::Blocked => "Such requests are blocked at the moment.".to_owned(),
            Reason::NoRule => "Such requests are not allowed.".to_owned(),
        };
        if let Some(wait) = self.wait() {
            // Writing to a string cannot fail.
            let _ = write!(message, " Try again in {wait}.");
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, content_type: &str, denial: &Denial<'_>) -> String {
        DeniedBody::Custom(Template::parse(text, Some(content_type)).unwrap()).render(denial)
    }

    #[test]
    fn values_are_escaped_for_the_content_type() {
        let denial = Denial { rule: "<a> \"b\" & \\c\n", policies: vec!["<a> \"b\"", "d"], ..Denial::sample() };
        let json = r#"{"rule": "{rule}", "all": {policies}, "wait": {wait_seconds}, "in": "{wait}"}"#;
        for content_type in ["application/json", "application/problem+json; charset=utf-8"] {
            let read: Value = serde_json::from_str(&rendered(json, content_type, &denial)).unwrap();
            let expected = json!({"rule": denial.rule, "all": denial.policies, "wait": 62, "in": "1m 2s"});
            assert_eq!(read, expected);
        }
        assert_eq!(rendered("<p>{rule}</p>", "text/html", &denial), "<p>&lt;a&gt; &quot;b&quot; &amp; \\c\n</p>");
        assert_eq!(rendered("{rule}: {policies}", "text/plain", &denial), "<a> \"b\" & \\c\n: <a> \"b\", d");
        let never = Denial { wait_seconds: None, ..denial };
        assert_eq!(rendered(r#"{"wait": {wait_seconds}}"#, "application/json", &never), r#"{"wait": null}"#);
        assert_eq!(rendered("{wait_seconds} {wait}", "text/plain", &never), "unknown unknown");
    }

    #[test]
    fn texts_with_a_mistake_are_rejected_and_say_which() {
        let long = "x".repeat(MAX_TEXT + 1);
        let many = "{rule}".repeat(MAX_PLACEHOLDERS + 1);
        for (text, content_type, told) in [
            ("", None, "is empty"),
            (&*long, None, "has 4097 bytes"),
            (&*many, None, "has 17 placeholders"),
            ("{rul}", None, "unknown placeholder {rul}"),
            ("{policies} {policies}", None, "more than once"),
            (r#"{"rule": {rule}}"#, Some("application/json"), "is not JSON"),
            (r#"{"all": "{policies}"}"#, Some("application/json"), "is not JSON"),
            ("x", Some("json"), "is not a content type"),
            ("x", Some("text/plain\r\nx: y"), "is not a content type"),
        ] {
            let error = Template::parse(text, content_type).unwrap_err().to_string();
            assert!(error.contains(told), "{text:.40}: {error}");
        }
        // The braces of JSON and CSS, and names that no placeholder could have.
        for text in ["{}", "{ rule }", "{Rule}", "a { color: red }", "{\"rule\"}"] {
            assert!(Template::parse(text, None).unwrap().placeholders.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_body_is_bounded_whatever_rules_are_called() {
        let name = "\u{1}".repeat(10_000);
        let denial =
            Denial { domain: &name, rule: cut(&name), policies: vec![cut(&name); MAX_POLICIES], ..Denial::sample() };
        let text = format!("\"{}\"", "{rule}".repeat(MAX_PLACEHOLDERS));
        let longest = rendered(&text, "application/json", &denial).len();
        assert!(longest < MAX_TEXT + MAX_PLACEHOLDERS * MAX_NAME * 6 + 100, "{longest}");
        for format in Format::ALL {
            assert!(DeniedBody::Ready(format).render(&denial).len() < 64 * 1024);
        }
    }

    #[test]
    fn long_texts_that_differ_at_their_ends_do_not_look_alike() {
        let shown = |end: &str| {
            let text = format!("{}{end}", "x".repeat(100));
            DeniedBody::Custom(Template::parse(&text, None).unwrap()).to_string()
        };
        assert_ne!(shown("a"), shown("b"));
        assert!(shown("a").len() < 120, "{}", shown("a"));
    }
}
