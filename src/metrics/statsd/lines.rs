//! Formats statistics as lines of statsd, or of DogStatsD with its tags.

use regex::{Captures, Regex};

use crate::metrics::reference::Pushed;

/// Format of lines.
#[derive(Clone, Debug)]
pub enum Dialect {
    /// Tags are part of the name: `name.__tag=value:1|c`.
    Statsd,
    /// Tags follow the value: `name:1|c|#tag:value`. The first mogrifier that matches a name replaces it.
    DogStatsd(Vec<Mogrifier>),
}

/// A rule that turns part of a name into tags.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    pattern: Regex,
    name: String,
    tags: Vec<(String, String)>,
}

impl Mogrifier {
    /// Reads the pattern. In `name` and in the tags, `$1` is replaced by the text that the pattern's first group
    /// matched.
    ///
    /// # Errors
    /// If the pattern is not a valid regular expression.
    pub fn new(pattern: &str, name: &str, tags: Vec<(String, String)>) -> Result<Mogrifier, regex::Error> {
        Ok(Mogrifier { pattern: Regex::new(pattern)?, name: name.to_owned(), tags })
    }

    fn apply(&self, name: &str) -> Option<(String, Vec<(String, String)>)> {
        let found = self.pattern.captures(name)?;
        let tags = self.tags.iter().map(|(tag, value)| (expanded(tag, &found), expanded(value, &found)));
        Some((expanded(&self.name, &found), tags.collect()))
    }
}

/// Replaces `$1` with the text of the first group, and so on. A number without a group is left unchanged.
fn expanded(template: &str, found: &Captures<'_>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut parts = template.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let group = part[..digits].parse().ok().filter(|group| *group < found.len());
        match group {
            Some(group) => text.push_str(found.get(group).map_or("", |group| group.as_str())),
            None => {
                text.push('$');
                text.push_str(&part[..digits]);
            }
        }
        text.push_str(&part[digits..]);
    }
    text
}

/// Formatter of lines.
pub(super) struct Lines {
    dialect: Dialect,
    extra_tags: Vec<(String, String)>,
}

impl Lines {
    pub(super) fn new(dialect: Dialect, mut extra_tags: Vec<(String, String)>) -> Lines {
        extra_tags.sort();
        Lines { dialect, extra_tags }
    }

    /// Formats a statistic as a line, without the line break. Returns `None` if a mogrifier has left an empty name.
    pub(super) fn line(&self, pushed: &Pushed) -> Option<String> {
        let name = pushed.name().to_string();
        let (name, tags) = match &self.dialect {
            Dialect::Statsd => {
                let add = |name: String, (tag, value): &(String, String)| {
                    format!("{name}.__{}={}", in_name(tag), in_name(value))
                };
                (self.extra_tags.iter().fold(name, add), Vec::new())
            }
            Dialect::DogStatsd(mogrifiers) => {
                let found = mogrifiers.iter().find_map(|mogrifier| mogrifier.apply(&name));
                let (name, own) = found.unwrap_or((name, Vec::new()));
                (name.replace(ends_name, "_"), self.extra_tags.iter().cloned().chain(own).collect())
            }
        };
        if name.is_empty() {
            return None;
        }
        let mut line = match pushed.took_ms() {
            // One line with a sampling rate represents all equal times.
            Some(took_ms) => format!("{name}:{took_ms}|ms|@{}", 1.0 / pushed.more as f64),
            None => format!("{name}:{}|c", pushed.more),
        };
        for (at, (tag, value)) in tags.iter().enumerate() {
            line.extend([if at == 0 { "|#" } else { "," }, &harmless(tag), ":", &harmless(value)]);
        }
        Some(line)
    }
}

/// Replaces characters that would end a tag, as its value may come from a request.
fn harmless(tag: &str) -> String {
    tag.replace(|char: char| matches!(char, ',' | '|' | '#') || char.is_control(), "_")
}

/// Makes a tag a single part of a name.
fn in_name(tag: &str) -> String {
    tag.replace(|char: char| char == '.' || ends_name(char), "_")
}

fn ends_name(char: char) -> bool {
    matches!(char, ':' | '|') || char.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(pattern: &str, name: &str, tags: &[(&str, &str)], of: &str) -> Option<(String, Vec<(String, String)>)> {
        let tags = tags.iter().map(|(tag, value)| ((*tag).to_owned(), (*value).to_owned())).collect();
        Mogrifier::new(pattern, name, tags).unwrap().apply(of)
    }

    #[test]
    fn a_mogrifier_makes_a_name_and_tags_of_what_it_matches() {
        let pattern = r"^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$";
        let tags = [("domain", "$1"), ("descriptor", "$2"), ("odd", "$7")];
        let (name, tags) =
            applied(pattern, "ratelimit.$3", &tags, "ratelimit.service.rate_limit.shop.user_ann.total_hits").unwrap();
        assert_eq!(name, "ratelimit.total_hits");
        let tags: Vec<_> = tags.iter().map(|(tag, value)| format!("{tag}:{value}")).collect();
        assert_eq!(tags, ["domain:shop", "descriptor:user_ann", "odd:$7"]);
        assert_eq!(applied(pattern, "x", &[], "ratelimit_server.ShouldRateLimit.total_requests"), None);
    }
}
