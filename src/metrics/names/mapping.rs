//! Names and labels from a mapping file of `statsd_exporter`, which replace the built-in ones of
//! `envoyproxy/ratelimit`. Options that Tollgate does not support are rejected; none is ignored silently. One
//! difference from `statsd_exporter`: a dot inside a domain or a value does not separate parts of a name, so it does
//! not shift labels.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde::Deserialize;
use serde_json::Value;

use super::Name;
use super::exposition::{HELP, Labels, MILLISECONDS, NO_LABEL, Shown, escaped, is_of_tollgate, is_reserved};
use crate::metrics::namespace::SECONDS;

/// A reference in a template to the text matched by a star.
static REFERENCE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\$\{?([a-zA-Z0-9_$]+)\}?").ok());
/// A valid glob `match`: every star is a whole part.
static GLOB: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^(\*|[a-zA-Z_][a-zA-Z0-9_-]*)(\.\*|\.[a-zA-Z0-9_][a-zA-Z0-9_-]*)*$").ok());
static METRIC: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^([a-zA-Z_]|\$\{?[0-9]+\}?)([a-zA-Z0-9_]|\$\{?[0-9]+\}?)*$").ok());
static LABEL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[a-zA-Z_][a-zA-Z0-9_]*$").ok());

/// An error in a mapping file.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file is not valid YAML, or a field has the wrong type.
    #[error("cannot be read: {0}")]
    Yaml(#[from] serde_saphyr::Error),
    /// An error in one of the mappings.
    #[error("mappings[{index}]: {wrong}")]
    Mapping {
        /// Index of the mapping.
        index: usize,
        /// The error.
        wrong: Wrong,
    },
    /// An error in the defaults.
    #[error("defaults: {0}")]
    Defaults(Wrong),
}

/// An error in a mapping.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It has no name.
    #[error("has no name")]
    NoName,
    /// Prometheus does not allow the name.
    #[error("name: {0:?} is not a metric name")]
    Name(String),
    /// The name may clash with one of Tollgate's own metrics.
    #[error("name: {0:?} begins like Tollgate's own metrics: choose another name")]
    OwnName(String),
    /// Prometheus does not allow the label.
    #[error("labels: {0:?} {NO_LABEL}, of letters, digits and _")]
    Label(String),
    /// The pattern can match nothing.
    #[error("match: {0:?} is not a pattern: write parts separated by dots, each a word or *")]
    Glob(String),
    /// The regular expression is invalid.
    #[error("match: {0}")]
    Pattern(regex::Error),
    /// It asks for quantiles, which are not kept.
    #[error("{0}: quantiles are not supported: use histogram")]
    Summary(&'static str),
    /// It asks for a bucket that is not kept.
    #[error("buckets: {0} is not one of the available bounds: {1}")]
    Bucket(f64, String),
    /// The scale would keep counters from growing.
    #[error("scale: must be greater than 0")]
    Scale,
    /// Series expire by a fixed rule instead.
    #[error("ttl: is not supported: remove it; series disappear after an hour without requests")]
    Ttl,
    /// Mappings always apply in the order of the file.
    #[error("glob_disable_ordering: is not supported: remove it; the first mapping that matches applies")]
    Ordering,
}

/// A mapping file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    defaults: Options,
    mappings: Vec<RawEntry>,
}

/// Options of a mapping and of the defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    match_type: MatchType,
    observer_type: Option<Observer>,
    /// Older name of `observer_type`.
    timer_type: Option<Observer>,
    glob_disable_ordering: bool,
    ttl: Option<Value>,
    buckets: Option<Vec<f64>>,
    histogram_options: Buckets,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Buckets {
    buckets: Option<Vec<f64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    r#match: String,
    name: String,
    labels: BTreeMap<String, String>,
    honor_labels: bool,
    match_metric_type: Option<Kind>,
    action: Action,
    help: Option<String>,
    scale: Option<f64>,
    match_type: Option<MatchType>,
    observer_type: Option<Observer>,
    timer_type: Option<Observer>,
    ttl: Option<Value>,
    buckets: Option<Vec<f64>>,
    histogram_options: Option<Buckets>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum MatchType {
    #[default]
    #[serde(alias = "")]
    Glob,
    Regex,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Observer {
    Histogram,
    #[serde(alias = "")]
    Summary,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Counter,
    Gauge,
    #[serde(alias = "timer")]
    Observer,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Action {
    #[default]
    #[serde(alias = "")]
    Map,
    Drop,
}

/// Names and labels of series.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// Globs are tried before regular expressions, whatever their order in the file.
    globs: Vec<Entry>,
    patterns: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    matches: Matches,
    kind: Option<Kind>,
    /// `None` leaves the series out.
    shown: Option<Template>,
}

#[derive(Clone, Debug)]
enum Matches {
    /// Compared part by part; `None` is a star.
    Parts(Vec<Option<String>>),
    Pattern(Regex),
}

#[derive(Clone, Debug)]
struct Template {
    name: String,
    labels: BTreeMap<String, String>,
    help: Option<String>,
    honors_tags: bool,
    scale: f64,
    buckets: Option<Vec<f64>>,
}

/// A match.
enum Found<'n, 't> {
    Parts(Vec<&'t str>),
    Pattern(Captures<'n>),
}

impl Mapping {
    /// Reads a mapping file.
    ///
    /// # Errors
    /// If the file is invalid, or asks for something that is not supported.
    pub fn read(text: &str) -> Result<Mapping, MappingError> {
        let File { defaults, mappings } =
            if text.trim().is_empty() { File::default() } else { serde_saphyr::from_str(text)? };
        check_defaults(&defaults).map_err(MappingError::Defaults)?;
        let mut mapping = Mapping::default();
        for (index, raw) in mappings.into_iter().enumerate() {
            let entry = entry(raw, &defaults).map_err(|wrong| MappingError::Mapping { index, wrong })?;
            match entry.matches {
                Matches::Parts(_) => mapping.globs.push(entry),
                Matches::Pattern(_) => mapping.patterns.push(entry),
            }
        }
        Ok(mapping)
    }

    /// Returns the name and labels of a series, or `None` if it is left out.
    pub(super) fn shown(&self, name: Name<'_>, tags: &Labels) -> Option<Shown<'_>> {
        let (text, parts) = (name.to_string(), name.parts());
        let kind = if matches!(name, Name::ResponseTime) { Kind::Observer } else { Kind::Counter };
        let found = self.globs.iter().chain(&self.patterns).find_map(|entry| {
            let of_kind = entry.kind.is_none_or(|of| of == kind);
            of_kind.then(|| entry.matches.find(&text, &parts)).flatten().map(|found| (&entry.shown, found))
        });
        let shown = match found {
            Some((shown, found)) => shown.as_ref()?.fill(&found, tags),
            None => Shown { labels: tags.clone(), ..Shown::new(escaped(&text)) },
        };
        Some(shown).filter(|shown| !shown.name.is_empty() && !is_of_tollgate(&shown.name))
    }
}

impl Matches {
    fn find<'n, 't>(&self, text: &'n str, parts: &[&'t str]) -> Option<Found<'n, 't>> {
        match self {
            Matches::Parts(pattern) => {
                let fits = |(own, part): (&Option<String>, &&str)| own.as_ref().is_none_or(|own| own == part);
                let is_found = pattern.len() == parts.len() && pattern.iter().zip(parts).all(fits);
                let stars = pattern.iter().zip(parts).filter(|(own, _)| own.is_none());
                is_found.then(|| Found::Parts(stars.map(|(_, part)| *part).collect()))
            }
            Matches::Pattern(pattern) => pattern.captures(text).map(Found::Pattern),
        }
    }
}

impl Found<'_, '_> {
    /// Replaces `$1` with the matched text, and so on.
    fn fill(&self, template: &str) -> String {
        match (self, &*REFERENCE) {
            (Found::Pattern(found), _) => {
                let mut text = String::new();
                found.expand(template, &mut text);
                text
            }
            (Found::Parts(parts), Some(reference)) => {
                let part = |found: &Captures<'_>| {
                    let index = found[1].parse::<usize>().ok().and_then(|index| index.checked_sub(1));
                    index.and_then(|index| parts.get(index)).copied().unwrap_or_default().to_owned()
                };
                reference.replace_all(template, part).into_owned()
            }
            (Found::Parts(_), None) => template.to_owned(),
        }
    }
}

impl Template {
    fn fill(&self, found: &Found<'_, '_>, tags: &Labels) -> Shown<'_> {
        let mut labels = tags.clone();
        for (label, value) in &self.labels {
            let has_tag = labels.iter().any(|(tag, _)| tag == label);
            if !has_tag || !self.honors_tags {
                labels.retain(|(tag, _)| tag != label);
                labels.push((label.clone(), found.fill(value)));
            }
        }
        Shown {
            name: escaped(&found.fill(&self.name)),
            labels,
            help: self.help.as_deref().unwrap_or(HELP),
            scale: self.scale,
            buckets: self.buckets.as_deref(),
        }
    }
}

fn check_defaults(defaults: &Options) -> Result<(), Wrong> {
    check_ttl(defaults.ttl.as_ref())?;
    if defaults.glob_disable_ordering { Err(Wrong::Ordering) } else { Ok(()) }
}

fn check_ttl(ttl: Option<&Value>) -> Result<(), Wrong> {
    let is_none = |ttl: &Value| matches!(ttl, Value::Null) || *ttl == 0 || matches!(ttl.as_str(), Some("0" | "0s"));
    if ttl.is_none_or(is_none) { Ok(()) } else { Err(Wrong::Ttl) }
}

fn entry(raw: RawEntry, defaults: &Options) -> Result<Entry, Wrong> {
    check_ttl(raw.ttl.as_ref())?;
    let is = |pattern: &LazyLock<Option<Regex>>, text: &str| {
        LazyLock::force(pattern).as_ref().is_some_and(|pattern| pattern.is_match(text))
    };
    if let Some(label) = raw.labels.keys().find(|label| !is(&LABEL, label) || is_reserved(label)) {
        return Err(Wrong::Label(label.clone()));
    }
    match raw.name {
        name if name.is_empty() => return Err(Wrong::NoName),
        name if !is(&METRIC, &name) => return Err(Wrong::Name(name)),
        name if is_of_tollgate(&name) => return Err(Wrong::OwnName(name)),
        _ => {}
    }
    let matches = match raw.match_type.unwrap_or(defaults.match_type) {
        MatchType::Glob if !is(&GLOB, &raw.r#match) => return Err(Wrong::Glob(raw.r#match)),
        MatchType::Glob => {
            let part = |part: &str| Some(part.to_owned()).filter(|part| part != "*");
            Matches::Parts(raw.r#match.split('.').map(part).collect())
        }
        MatchType::Regex => Matches::Pattern(Regex::new(&raw.r#match).map_err(Wrong::Pattern)?),
    };
    let kind = raw.match_metric_type;
    if raw.action == Action::Drop {
        return Ok(Entry { matches, kind, shown: None });
    }
    let scale = raw.scale.unwrap_or(1.0);
    if !(scale.is_finite() && scale > 0.0) {
        return Err(Wrong::Scale);
    }
    let mut shown = Template {
        name: raw.name,
        labels: raw.labels,
        help: raw.help,
        honors_tags: raw.honor_labels,
        scale,
        buckets: None,
    };
    let (name, time) = (Name::ResponseTime, Name::ResponseTime.to_string());
    if kind.is_none_or(|kind| kind == Kind::Observer) && matches.find(&time, &name.parts()).is_some() {
        let observer = raw.observer_type.or(raw.timer_type).or(defaults.observer_type).or(defaults.timer_type);
        if observer == Some(Observer::Summary) {
            return Err(Wrong::Summary("observer_type"));
        }
        let own = raw.histogram_options.and_then(|options| options.buckets).or(raw.buckets);
        let wanted = own.or_else(|| defaults.histogram_options.buckets.clone()).or_else(|| defaults.buckets.clone());
        shown.buckets = wanted.filter(|wanted| !wanted.is_empty());
        check_buckets(shown.buckets.as_deref().unwrap_or_default(), scale)?;
    }
    Ok(Entry { matches, kind, shown: Some(shown) })
}

/// Checks that each bucket is one of the kept bounds, in the scaled unit of times: milliseconds times `scale`.
fn check_buckets(wanted: &[f64], scale: f64) -> Result<(), Wrong> {
    let bounds: Vec<f64> = SECONDS.iter().map(|bound| bound * MILLISECONDS * scale).collect();
    match wanted.iter().find(|wanted| !bounds.iter().any(|bound| is_same(*bound, **wanted))) {
        None => Ok(()),
        Some(wanted) => {
            let bounds: Vec<String> = bounds.iter().map(|bound| format!("{}", *bound as f32)).collect();
            Err(Wrong::Bucket(*wanted, bounds.join(", ")))
        }
    }
}

/// Compares two numbers up to the last digit, which a scale may change.
pub(in crate::metrics) fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::metrics::names::{OfService, Stat, StatPath};

    fn path(levels: &[&str]) -> StatPath {
        StatPath::new("shop.example", levels.iter().map(|level| Cow::Owned((*level).to_owned())))
    }

    /// Writes a series as Prometheus does.
    fn shown(mapping: &str, name: Name<'_>) -> Option<String> {
        let mapping = Mapping::read(mapping).unwrap();
        let Shown { name, labels, scale, .. } = mapping.shown(name, &vec![("pod".to_owned(), "a".to_owned())])?;
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
        Some(format!("{name}{{{}}} {scale}", labels.join(",")))
    }

    #[test]
    fn the_first_with_stars_counts_then_the_first_regular_expression_and_then_the_name_itself() {
        let mapping = "
mappings:
- match: 'rate_limit\\.(?P<d>[^.]*)\\.(.*)\\.(total|near)_(.*)$'
  match_type: regex
  name: 'r_$4'
  labels: {of: '${d}/$2'}
- {match: ratelimit.service.rate_limit.*.*.total_hits, name: one, labels: {domain: $1, key: '${2}!', none: 'a$9'}}
- {match: ratelimit.service.rate_limit.*.*.*, name: 'any_$3', scale: 2, match_metric_type: counter}
- {match: ratelimit.service.rate_limit.*.user_ann.*, name: never}
- {match: ratelimit_server.*.*, match_metric_type: timer, timer_type: histogram, name: $2, labels: {pod: b}}
- {match: ratelimit_server.*.total_requests, name: calls, honor_labels: true, labels: {pod: b}}
- {match: config_load, match_type: regex, name: gone, action: drop}
";
        let (one, two) = (path(&["user_ann"]), path(&["path_/v1.2", "user"]));
        for (name, expected) in [
            (Name::OfPath(&one, Stat::TotalHits), Some("one{pod=a,domain=shop.example,key=user_ann!,none=a} 1")),
            (Name::OfPath(&one, Stat::NearLimit), Some("any_near_limit{pod=a} 2")),
            (Name::OfPath(&two, Stat::NearLimit), Some("r_limit{pod=a,of=shop/example.path_/v1.2.user} 1")),
            (
                Name::OfPath(&two, Stat::OverLimit),
                Some("ratelimit_service_rate_limit_shop_example_path__v1_2_user_over_limit{pod=a} 1"),
            ),
            (Name::ResponseTime, Some("response_time{pod=b} 1")),
            (Name::OfService(OfService::TotalRequests), Some("calls{pod=a} 1")),
            (Name::OfService(OfService::LoadErrors), None),
        ] {
            assert_eq!(shown(mapping, name).as_deref(), expected, "{name}");
        }
        assert_eq!(shown("", Name::ResponseTime).unwrap(), "ratelimit_server_ShouldRateLimit_response_time{pod=a} 1");
    }

    #[test]
    fn what_a_file_asks_for_and_nobody_can_do_is_named() {
        let time = "match: ratelimit_server.*.response_time, name: t";
        for (file, said) in [
            ("mappings: [{match: a}]".to_owned(), "mappings[0]: has no name"),
            ("mappings: [{match: a, name: b}, {match: a*, name: b}]".to_owned(), "mappings[1]: match: \"a*\""),
            ("mappings: [{match: a, name: b-c}]".to_owned(), "mappings[0]: name: \"b-c\""),
            ("mappings: [{match: a, name: tollgate_b}]".to_owned(), "begins like Tollgate's own"),
            ("mappings: [{match: a, name: b, labels: {c-d: e}}]".to_owned(), "labels: \"c-d\""),
            ("mappings: [{match: a, name: b, labels: {le: e}}]".to_owned(), "labels: \"le\" cannot be a label"),
            ("mappings: [{match: a, name: b, labels: {__name__: e}}]".to_owned(), "does not begin with __"),
            ("mappings: [{match: (, match_type: regex, name: b}]".to_owned(), "mappings[0]: match: regex"),
            ("mappings: [{match: a, name: b, scale: 0}]".to_owned(), "scale: must be"),
            ("mappings: [{match: a, name: b, ttl: 1h}]".to_owned(), "mappings[0]: ttl: is not supported"),
            ("mappings: [{match: a, name: b, action: keep}]".to_owned(), "cannot be read"),
            ("defaults: {glob_disable_ordering: true}".to_owned(), "defaults: glob_disable_ordering"),
            (format!("mappings: [{{{time}, observer_type: summary}}]"), "use histogram"),
            (format!("defaults: {{timer_type: summary}}\nmappings: [{{{time}}}]"), "use histogram"),
            (format!("mappings: [{{{time}, buckets: [5, 7]}}]"), "buckets: 7 is not one of"),
        ] {
            let error = Mapping::read(&file).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(said), "{file}: {error}");
        }
        for file in [
            "{}",
            "defaults: {ttl: 0s, match_type: '', quantiles: [{quantile: 0.5, error: 0.1}], observer_type: summary}",
            "mappings: [{match: a, name: b, summary_options: {max_age: 1m}, observer_type: summary}]",
            &format!("mappings: [{{{time}, scale: 0.001, histogram_options: {{buckets: [0.005, 0.1, 10]}}}}]"),
        ] {
            Mapping::read(file).unwrap();
        }
    }
}
