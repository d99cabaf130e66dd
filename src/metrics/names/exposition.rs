//! How the statistics are named in Prometheus: by the built-in names of `envoyproxy/ratelimit`, or by a mapping.

use super::mapping::Mapping;
use super::{METHOD, Name, OfService, Stat, StatPath};
use crate::metrics::namespace::NAMESPACE;

/// The error for a label that is not allowed.
pub(crate) const NO_LABEL: &str = "cannot be a label: choose a name other than le that does not begin with __";

/// Returns whether Prometheus reserves a label for itself.
pub(crate) fn is_reserved(label: &str) -> bool {
    label == "le" || label.starts_with("__")
}

/// The help text of every series, as users know the names already.
pub(in crate::metrics) const HELP: &str = "As counted by envoyproxy/ratelimit.";
/// Milliseconds in a second.
pub(in crate::metrics) const MILLISECONDS: f64 = 1_000.0;
pub(in crate::metrics) const NO_GARBAGE: &str = "go_memstats_gc_cpu_fraction";

/// Options of how the series are shown.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    tags: Labels,
    response_times: TimeUnit,
    mapping: Option<Mapping>,
}

/// Unit of the response times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds, the usual unit in Prometheus.
    #[default]
    Seconds,
    /// Milliseconds, under the same name.
    Milliseconds,
}

/// A series as Prometheus shows it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::metrics) struct Shown<'m> {
    pub(in crate::metrics) name: String,
    pub(in crate::metrics) labels: Labels,
    pub(in crate::metrics) help: &'m str,
    /// The factor applied to its values; times are counted in milliseconds.
    pub(in crate::metrics) scale: f64,
    /// The bounds of a histogram, or `None` for all of them.
    pub(in crate::metrics) buckets: Option<&'m [f64]>,
}

/// Labels: names and values.
pub(in crate::metrics) type Labels = Vec<(String, String)>;

impl Shown<'_> {
    pub(in crate::metrics) fn new(name: String) -> Shown<'static> {
        Shown { name, labels: Vec::new(), help: HELP, scale: 1.0, buckets: None }
    }
}

impl Exposition {
    /// Shows series with these labels, times in this unit, and names by a mapping if there is one. A mapping sets the
    /// unit itself.
    pub fn new(extra_tags: &[(String, String)], response_times: TimeUnit, mapping: Option<Mapping>) -> Exposition {
        let mut tags = Labels::new();
        for (tag, value) in extra_tags {
            let label = escaped(tag);
            tags.retain(|(other, _)| *other != label);
            tags.push((label, value.clone()));
        }
        Exposition { tags, response_times, mapping }
    }

    /// Returns whether a mapping names the series.
    pub(in crate::metrics) fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns the name and labels of a series, or `None` if it is not shown.
    pub(in crate::metrics) fn shown(&self, name: Name<'_>) -> Option<Shown<'_>> {
        if let Some(mapping) = &self.mapping {
            return mapping.shown(name, &self.tags);
        }
        let mut shown = built_in(name, self.response_times);
        let more = self.tags.iter().filter(|(tag, _)| shown.labels.iter().all(|(label, _)| label != tag));
        let more: Labels = more.cloned().collect();
        shown.labels.extend(more);
        Some(shown)
    }
}

/// Returns the built-in name and labels of `envoyproxy/ratelimit`. They distinguish two levels; all paths below these
/// are one series.
fn built_in(name: Name<'_>, response_times: TimeUnit) -> Shown<'static> {
    let called = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        Shown { labels, ..Shown::new(name.to_owned()) }
    };
    let error = |kind| called("ratelimit_service_should_rate_limit_error", &[("err_type", kind)]);
    match name {
        Name::OfPath(path, stat) if path.level(0).is_some() && stat != Stat::OverLimitWithLocalCache => {
            let name = format!("ratelimit_service_rate_limit_{}", stat.name());
            Shown { labels: labels_of(path), ..Shown::new(name) }
        }
        Name::OfService(OfService::RedisErrors) => error("redis_error"),
        Name::OfService(OfService::ServiceErrors) => error("service_error"),
        Name::OfService(OfService::TotalRequests) => {
            called("ratelimit_service_total_requests", &[("grpc_method", METHOD)])
        }
        Name::ResponseTime => {
            let scale = match response_times {
                TimeUnit::Seconds => 1.0 / MILLISECONDS,
                TimeUnit::Milliseconds => 1.0,
            };
            Shown { scale, ..called("ratelimit_service_response_time_seconds", &[("grpc_method", METHOD)]) }
        }
        Name::OfPath(..) | Name::DomainNotFound(_) | Name::OfService(_) => Shown::new(escaped(&name.to_string())),
    }
}

fn labels_of(path: &StatPath) -> Labels {
    let levels = ["key1", "key2"].into_iter().enumerate();
    let levels = levels.filter_map(|(level, name)| Some((name.to_owned(), path.level(level)?.to_owned())));
    std::iter::once(("domain".to_owned(), path.domain().to_owned())).chain(levels).collect()
}

/// Replaces characters that Prometheus does not allow in a name.
pub(crate) fn escaped(name: &str) -> String {
    let allowed = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let name: String = name.chars().map(|char| if allowed(char) { char } else { '_' }).collect();
    if name.starts_with(|char: char| char.is_ascii_digit()) { format!("_{name}") } else { name }
}

/// Returns whether a name may clash with metrics that are always present.
pub(in crate::metrics) fn is_of_tollgate(name: &str) -> bool {
    name.starts_with(&format!("{NAMESPACE}_")) || name.starts_with("process_") || name == NO_GARBAGE
}
