//! The reference page of all metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::SystemTime;

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use super::declaration::{
    Metrics, OF_RULES, OF_RULES_WITHOUT_STORE, OUTCOMES, REQUESTS_OF_CANDIDATES, REQUESTS_OF_RULES,
};
use super::namespace::NAMESPACE;
use crate::engine::decision::DecidedBy;
use crate::engine::rules::Rules;
use crate::evaluate::Difference;
use crate::tls::Held;

/// Writes the page in Markdown from the metrics' declarations.
///
/// # Errors
/// If two metrics have the same name.
pub fn page() -> prometheus::Result<String> {
    let metrics = Metrics::new(0.0)?;
    let metrics = metrics.with_values(NonZeroUsize::MIN)?;
    metrics.observe_lost_log_lines(|| 0)?;
    metrics.record_load(&Rules::default());
    metrics.xds()?;
    metrics.admin()?;
    metrics.sentinels()?.set_answering("", 1, 1);
    metrics.spans()?;
    metrics.decision_log()?;
    metrics.candidates()?;
    [Held::SERVER, Held::CLIENT_CA].iter().for_each(|role| metrics.set_certificate(role, SystemTime::UNIX_EPOCH));
    let mut page = String::from(
        "# Metrics\n\n\
         `/metrics` on the HTTP port has them all, for Prometheus. This page is made by `tollgate metrics`.\n\n\
         Labels of Tollgate's own come from rules and settings, which are few, and never from requests. A counter\n\
         begins at 0 with the process.\n\n\
         ## Of the process\n\n\
         | Metric | Kind | Meaning |\n| --- | --- | --- |\n",
    );
    for family in metrics.registry.gather() {
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        };
        let _ = writeln!(page, "| `{}` | {kind} | {}{} |", family.name(), family.help(), labels(&family));
    }
    page.push_str(
        "\n## Of each rule\n\n\
         Each has the labels `domain` and `rule`, and a series once a request has asked the rule. The series of a\n\
         rule that no request has asked for an hour disappear, and come back with the values that they had: no\n\
         counter falls while the process lives, and `increase()` over the gap is right. `rule=\"(override)\"` is\n\
         what requests that bring a limit of their own have asked.\n\n\
         | Metric | Kind | Meaning |\n| --- | --- | --- |\n",
    );
    let with_label = |(name, help): (&str, &str), label: &str, values: &[&str]| {
        let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
        let values = one_of(&values);
        format!("| `{NAMESPACE}_{name}` | counter | {help} Also with the label `{label}`: {values}. |\n")
    };
    page.push_str(&with_label(REQUESTS_OF_RULES, "outcome", &OUTCOMES.map(|(_, outcome)| outcome)));
    for (_, name, help) in OF_RULES {
        let _ = writeln!(page, "| `{NAMESPACE}_{name}` | counter | {help} |");
    }
    page.push_str(&with_label(OF_RULES_WITHOUT_STORE, "decided_by", &DecidedBy::WITHOUT_STORE.map(DecidedBy::name)));
    page.push_str(
        "\n## Of candidate rules\n\n\
         With `CANDIDATE_RULES`. It has the labels `domain` and `rule`, and begins at 0 again where the candidates or\n\
         the rules in force change. `rule=\"(unknown)\"` is what is denied because the rules do not know it.\n\n\
         | Metric | Kind | Meaning |\n| --- | --- | --- |\n",
    );
    let outcomes = Difference::ALL.map(Difference::name);
    page.push_str(&with_label(REQUESTS_OF_CANDIDATES, "outcome", &outcomes));
    page.push_str(REFERENCE);
    Ok(page)
}

/// The part of the page that follows Tollgate's own metrics.
const REFERENCE: &str = include_str!("reference/page.md");

/// Lists the labels of a metric, with the values of labels that have several.
fn labels(family: &MetricFamily) -> String {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for label in family.get_metric().iter().flat_map(|metric| metric.get_label()) {
        values.entry(LabelPair::name(label)).or_default().push(label.value());
    }
    let label = |(name, values): (&str, Vec<&str>)| match &values[..] {
        [_] => format!(" Label: `{name}`."),
        values => {
            let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
            format!(" `{name}` is {}.", one_of(&values))
        }
    };
    values.into_iter().map(label).collect()
}

fn one_of(values: &[String]) -> String {
    match values {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => values.concat(),
    }
}
