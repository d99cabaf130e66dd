//! `/rules`: the limits in force, with their counts over all instances.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::data::{Filter, LimitLine, Listing, MOST, Sort, Wanted};
use super::{HEADERS, Shown};
use crate::engine::rules::FailureMode;
use crate::http::admin::{Refusal, failed, refuse};
use crate::http::client::Client;
use crate::http::query::Query;
use crate::observe::history::Minute;
use crate::observe::redaction::Values;
use crate::proposal::Reading;
use crate::store::Store;
use crate::survey::{self, Counts, Instances, LimitsPart, LimitsQuestion, Parts, Scope};

/// Default number of limits on a page.
const LIMITS: usize = 100;

/// Number of limits that each instance counts, beside those of a page.
const BUSIEST: usize = 512;

/// How often the limits of a page are asked for: a filter may drop some of them, for others.
const ROUNDS: usize = 4;

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
    /// The text at the rule's line of its file as it is now; `None` if the file cannot be read, if a management server
    /// has sent the rule, or if the client may not see values.
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
    let (wanted, scope) = wanted(query.as_deref())?;
    let (listing, instances) = shown.listing(wanted, scope).await?;
    Ok((HEADERS, Json(Answer { instances, listing })).into_response())
}

/// Handles `GET /rules/one?domain=shop&rule=per-user`.
pub(super) async fn one<S: Store>(
    State(shown): State<Arc<Shown<S>>>,
    Extension(client): Extension<Client>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["domain", "rule", "instance"])?;
    let (domain, rule, asked) = (query.owned("domain"), query.owned("rule"), query.scope()?);
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
    let reading = shown.admin.rules_reading().clone();
    let yaml = spawn_blocking(move || yaml(&reading, &at?)).await.map_err(failed)?;
    Ok((HEADERS, Json(One { instances, limit, yaml, hour })).into_response())
}

/// The most lines of a rule's text.
const MOST_LINES: usize = 60;

/// Returns the text of the rule that begins at this line of its file: the lines that are indented further.
fn yaml(reading: &Reading, at: &str) -> Option<String> {
    let (file, line) = at.rsplit_once(':')?;
    let first = line.parse::<usize>().ok()?.checked_sub(1)?;
    let text = String::from_utf8(reading.text(Path::new(file))?).ok()?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip(first);
    let begin = lines.next()?;
    let rest = lines.take_while(|line| line.trim().is_empty() || indent(line) > indent(begin));
    let lines: Vec<&str> = std::iter::once(begin).chain(rest).take(MOST_LINES).collect();
    let cut = |line: &&str| line.get(indent(begin)..).unwrap_or_default().to_owned();
    Some(lines.iter().map(cut).collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Parses the filter, order and page of a query, and who is asked.
fn wanted(query: Option<&str>) -> Result<(Wanted, Scope), Refusal> {
    let names = ["domain", "search", "failure_mode", "filter", "sort", "reverse", "offset", "limit", "instance"];
    let query = Query::read(query, &names)?;
    let mode = query.one_of("failure_mode", &FailureMode::ALL, FailureMode::name)?;
    let wanted = Wanted {
        domain: query.text("domain").map(str::to_owned),
        label: None,
        search: query.owned("search"),
        failure_mode: mode.map(FailureMode::name),
        filter: query.one_of("filter", &Filter::ALL, Filter::name)?,
        sort: query.one_of("sort", &Sort::ALL, Sort::name)?.unwrap_or_default(),
        reverse: query.flag("reverse")?,
        offset: query.number("offset", 0..=u32::MAX as usize)?.unwrap_or(0),
        limit: query.number("limit", 0..=MOST)?.unwrap_or(LIMITS),
    };
    Ok((wanted, query.scope()?))
}

impl<S: Store> Shown<S> {
    /// Lists limits with their counts over all instances. If counts decide which limits are on the page, the busiest
    /// limits are asked for first. Then those on the page are, until all of it is known or [`ROUNDS`] are over.
    async fn listing(&self, wanted: Wanted, scope: Scope) -> Result<(Listing, Instances), Refusal> {
        let mut known = Counts::new();
        let mut instances = None;
        if wanted.sort.needs_counts() || wanted.filter.is_some() {
            let question = LimitsQuestion { busiest: BUSIEST, ..LimitsQuestion::default() };
            let (busiest, answered) = self.counts(question, scope).await;
            known = busiest;
            // Then no instance has left any out, but those that were first used some seconds ago.
            let are_all = known.len() < BUSIEST && answered.shortened == 0;
            if are_all && wanted.filter != Some(Filter::Unused) {
                return Ok((self.list(wanted, known).await?, answered));
            }
            instances = Some(answered);
        }
        let mut asked_for = HashSet::new();
        for _ in 0..ROUNDS {
            let listing = self.list(wanted.clone(), known.clone()).await?;
            let named = listing.limits.iter().map(|line| (line.domain.clone(), line.rule.clone()));
            let named: Vec<_> = named.filter(|name| asked_for.insert(name.clone())).collect();
            if named.is_empty()
                && let Some(instances) = instances
            {
                return Ok((listing, instances));
            }
            let question = LimitsQuestion { named, ..LimitsQuestion::default() };
            let (counts, answered) = self.counts(question, scope).await;
            known.extend(counts);
            instances = Some(answered);
            // The order is that of the first answer, so the same limits are on the page.
            if wanted.filter.is_none() {
                break;
            }
        }
        Ok((self.list(wanted, known).await?, instances.unwrap_or_default()))
    }

    /// Returns the counts that a question asks for.
    async fn counts(&self, question: LimitsQuestion, scope: Scope) -> (Counts, Instances) {
        let merge = |parts: Parts<LimitsPart>| {
            let instances = parts.instances.clone();
            (survey::merge_limits(parts), instances)
        };
        self.admin.survey().ask(question, scope, merge).await.unwrap_or_default()
    }

    /// Lists limits with these counts.
    pub(super) async fn list(&self, wanted: Wanted, counts: Counts) -> Result<Listing, Refusal> {
        // The work goes on if the client leaves.
        let turn = Arc::clone(&self.listing).acquire_owned().await.map_err(failed)?;
        let (limiter, metrics) = (self.admin.limiter(), Arc::clone(&self.metrics));
        let listing = spawn_blocking(move || {
            let _turn = turn;
            Listing::new((&limiter.snapshot(), limiter.plan_options()), &metrics, &counts, &wanted)
        });
        listing.await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::Files;
    use crate::sources::files::load::LoadOptions;

    #[test]
    fn the_text_of_a_rule_ends_where_the_next_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: day\n\n  - key: path\n";
        std::fs::write(file.path(), text).unwrap();
        let read = |at: &str, files: Files| yaml(&Reading { options: LoadOptions::default(), files }, at);
        let on_disk = || Files::OnDisk(Arc::default());
        let at = |line: usize| read(&format!("{}:{line}", file.path().display()), on_disk());
        assert_eq!(at(3).as_deref(), Some("- key: user\n  rate_limit:\n    unit: day"));
        assert_eq!(at(7).as_deref(), Some("- key: path"));
        assert_eq!((at(0), at(99)), (None, None));
        assert_eq!((read("nowhere:1", on_disk()), read("nothing", on_disk())), (None, None));
        // What a management server names like a file is none.
        assert_eq!(read(&format!("{}:3", file.path().display()), Files::None), None);
        file.as_file().set_len(5 << 20).unwrap();
        assert_eq!(at(3), None, "no rules file is that long");
    }
}
