//! `/rules`: the limits in force, with their counts over all instances.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::data::{Filter, LimitLine, Listing, Sort, Wanted};
use super::{HEADERS, Shown};
use crate::engine::rules::FailureMode;
use crate::http::admin::{Refusal, failed, refuse, scope};
use crate::http::client::Client;
use crate::observe::history::Minute;
use crate::observe::redaction::Values;
use crate::store::Store;
use crate::survey::{self, Counts, Instances, LimitsQuestion, Scope};

/// Number of limits that each instance counts, beside those of a page.
const BUSIEST: usize = 512;

/// A page of the limits.
#[derive(Serialize)]
struct Answer {
    instances: Instances,
    #[serde(flatten)]
    listing: Listing,
}

/// One limit.
#[derive(Serialize)]
struct One {
    instances: Instances,
    #[serde(flatten)]
    limit: LimitLine,
    /// The text at the rule's line of its file; `None` if the file cannot be read, or the client may not see values.
    yaml: Option<String>,
    /// The last hour by minutes; those without requests are left out.
    hour: Vec<Minute>,
}

/// Handles `GET /rules?domain=shop&search=user&failure_mode=open&filter=denying&sort=denials&offset=0&limit=100`; each
/// parameter is optional.
pub(super) async fn answer<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let (wanted, scope) = wanted(&query.unwrap_or_default())?;
    let (listing, instances) = shown.listing(wanted, scope).await?;
    Ok((HEADERS, Json(Answer { instances, listing })).into_response())
}

/// Handles `GET /rules/one?domain=shop&rule=per-user`.
pub(super) async fn one<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let (mut domain, mut rule, mut asked) = (String::new(), String::new(), Scope::Fleet);
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*key {
            "domain" => domain = value.into_owned(),
            "rule" => rule = value.into_owned(),
            "instance" => asked = scope(&value)?,
            _ => return Err(refuse(StatusCode::BAD_REQUEST, "the parameters are domain, rule and instance")),
        }
    }
    let name = (domain.clone(), rule.clone());
    let question = LimitsQuestion { named: vec![name.clone()], hour: true, ..LimitsQuestion::default() };
    let (mut counts, instances) = shown.counts(question, asked).await;
    let hour = counts.get_mut(&name).map(|counts| std::mem::take(&mut counts.hour)).unwrap_or_default();
    let wanted = Wanted { domain: Some(domain), label: Some(rule.clone()), limit: 1, ..Wanted::default() };
    let listing = shown.list(wanted, counts).await?;
    let Some(limit) = listing.limits.into_iter().next() else {
        return Err(refuse(StatusCode::NOT_FOUND, format!("the rules in force have no limit {rule} in this domain")));
    };
    // The file has values of descriptors as they are.
    let at = limit.at.clone().filter(|_| matches!(shown.admin.values(&client), Values::Plain));
    let yaml = spawn_blocking(move || yaml(&at?)).await.map_err(failed)?;
    Ok((HEADERS, Json(One { instances, limit, yaml, hour })).into_response())
}

/// The most lines of a rule's text.
const MOST_LINES: usize = 60;

/// Returns the text of the rule that begins at this line of its file: the lines that are indented further.
fn yaml(at: &str) -> Option<String> {
    let (file, line) = at.rsplit_once(':')?;
    let first = line.parse::<usize>().ok()?.checked_sub(1)?;
    let text = std::fs::read_to_string(file).ok()?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip(first);
    let begin = lines.next()?;
    let rest = lines.take_while(|line| line.trim().is_empty() || indent(line) > indent(begin));
    let lines: Vec<&str> = std::iter::once(begin).chain(rest).take(MOST_LINES).collect();
    let cut = |line: &&str| line.get(indent(begin)..).unwrap_or_default().to_owned();
    Some(lines.iter().map(cut).collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Parses the filter, order and page of a query, and who is asked.
fn wanted(query: &str) -> Result<(Wanted, Scope), Refusal> {
    let (mut wanted, mut asked) = (Wanted { limit: 100, ..Wanted::default() }, Scope::Fleet);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |right: &str| {
            let reason = format!("{key}={value} in the query of /rules: {right}");
            refuse(StatusCode::BAD_REQUEST, reason)
        };
        let number = || value.parse().map_err(|_| wrong("write a whole number"));
        match &*key {
            "domain" => wanted.domain = Some(value.into_owned()),
            "search" => wanted.search = value.into_owned(),
            "failure_mode" if FailureMode::ALL.iter().any(|mode| mode.name() == value) => {
                wanted.failure_mode = Some(value.into_owned());
            }
            "failure_mode" => return Err(wrong("write open, closed, local or error")),
            "filter" => {
                let filter = Filter::ALL.into_iter().find(|filter| filter.name() == value);
                let names = Filter::ALL.map(Filter::name).join(", ");
                wanted.filter = Some(filter.ok_or_else(|| wrong(&format!("write one of {names}")))?);
            }
            "sort" => {
                let sort = Sort::ALL.into_iter().find(|sort| sort.name() == value);
                let names = Sort::ALL.map(Sort::name).join(", ");
                wanted.sort = sort.ok_or_else(|| wrong(&format!("write one of {names}")))?;
            }
            "offset" => wanted.offset = number()?,
            "limit" => wanted.limit = number()?,
            "instance" => asked = scope(&value)?,
            _ => {
                return Err(wrong("write domain, search, failure_mode, filter, sort, offset, limit or instance"));
            }
        }
    }
    Ok((wanted, asked))
}

impl<S: Store> Shown<S> {
    /// Lists limits with their counts over all instances. Those of the busiest limits decide the order; those of the
    /// others on the page are asked for afterwards.
    pub(super) async fn listing(&self, wanted: Wanted, scope: Scope) -> Result<(Listing, Instances), Refusal> {
        let needs_counts = wanted.sort != Sort::Rules || wanted.filter.is_some();
        let busiest = LimitsQuestion { busiest: BUSIEST, ..LimitsQuestion::default() };
        let first = if needs_counts { self.counts(busiest, scope).await.0 } else { Counts::new() };
        let listing = self.list(wanted.clone(), first.clone()).await?;
        let name = |line: &LimitLine| (line.domain.clone(), line.rule.clone());
        let named = listing.limits.iter().map(name).collect();
        let (counts, instances) = self.counts(LimitsQuestion { named, ..LimitsQuestion::default() }, scope).await;
        // The order stays that of the first answer.
        let mut all = first;
        all.extend(counts);
        Ok((self.list(wanted, all).await?, instances))
    }

    /// Returns the counts that a question asks for.
    async fn counts(&self, question: LimitsQuestion, scope: Scope) -> (Counts, Instances) {
        match self.admin.survey().ask(question, scope).await {
            Some(parts) => {
                let instances = parts.instances.clone();
                (survey::merge_limits(parts), instances)
            }
            None => (Counts::new(), Instances::default()),
        }
    }

    /// Lists limits with these counts.
    async fn list(&self, wanted: Wanted, counts: Counts) -> Result<Listing, Refusal> {
        // The work goes on if the client leaves.
        let turn = Arc::clone(&self.looking).acquire_owned().await.map_err(failed)?;
        let (snapshot, metrics) = (self.admin.limiter().snapshot(), Arc::clone(&self.metrics));
        let listing = spawn_blocking(move || {
            let _turn = turn;
            Listing::new(&snapshot, &metrics, &counts, &wanted)
        });
        listing.await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_rule_ends_where_the_next_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: day\n\n  - key: path\n";
        std::fs::write(file.path(), text).unwrap();
        let at = |line: usize| yaml(&format!("{}:{line}", file.path().display()));
        assert_eq!(at(3).as_deref(), Some("- key: user\n  rate_limit:\n    unit: day"));
        assert_eq!(at(7).as_deref(), Some("- key: path"));
        assert_eq!((at(0), at(99), yaml("nowhere:1"), yaml("nothing")), (None, None, None, None));
    }
}
