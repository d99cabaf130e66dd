//! The debug port: the rules in force and the counts of metrics, for people. Anyone who can reach it sees how far each
//! client may go. So it is a separate port, which is closed unless a setting opens it.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::engine::descriptor::{Role, Unit, length};
use crate::engine::rules::{Allowance, Rule, RuleLimit, Rules};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::store::Store;

/// The paths of the port, in the order listed.
const PATHS: &[(&str, &str)] = &[
    ("/", "this list"),
    ("/rlconfig", "the limits in force, one per line, in the order of the rules"),
    ("/stats", "the counts so far, one series per line"),
];

/// Returns the paths of the debug port. One text is rendered at a time, on a thread that answers nothing else: a
/// million rules are a hundred megabytes.
pub fn debug_router<S: Store>(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>) -> Router {
    let turns = Arc::new(Semaphore::new(1));
    let (list, count) = (Arc::clone(&turns), turns);
    let rules = async move || {
        let snapshot = limiter.snapshot();
        text(&list, move || Ok(lines(&snapshot.rules))).await
    };
    let stats = async move || {
        let metrics = Arc::clone(&metrics);
        text(&count, move || metrics.render().map(|page| samples(&page)).map_err(|error| error.to_string())).await
    };
    let help = async || PATHS.iter().map(|(path, help)| format!("{path}: {help}\n")).collect::<String>();
    Router::new().route("/rlconfig", any(rules)).route("/stats", any(stats)).fallback(help)
}

async fn text(turns: &Semaphore, make: impl FnOnce() -> Result<String, String> + Send + 'static) -> Response {
    let made = match turns.acquire().await {
        Ok(_turn) => spawn_blocking(make).await.unwrap_or_else(|error| Err(error.to_string())),
        Err(error) => Err(error.to_string()),
    };
    match made {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

/// Returns the metrics page without its comment lines.
fn samples(page: &[u8]) -> String {
    let page = String::from_utf8_lossy(page);
    page.lines().filter(|line| !line.starts_with('#')).fold(String::with_capacity(page.len()), |mut text, line| {
        text.push_str(line);
        text.push('\n');
        text
    })
}

/// Returns a line for each limit in the format of `envoyproxy/ratelimit`. Features that this format lacks are at the
/// end of the line.
fn lines(rules: &Rules) -> String {
    let mut text = String::new();
    for (rule, limit) in rules.limits() {
        line(&mut text, rule, limit);
    }
    text
}

fn line(text: &mut String, rule: &Rule, limit: &RuleLimit) {
    let (unit, number, beside) = match &limit.config.allowance {
        Allowance::Unlimited => ("unknown", 0, String::new()),
        Allowance::Limited(limit) => {
            let (unit, beside) = match limit.window() {
                None => ("unknown", format!(", algorithm: {}", limit.algorithm())),
                Some(window) => match Unit::multiple_of(window) {
                    Some((unit, 1)) => (unit.name(), String::new()),
                    Some((unit, multiplier)) => (unit.name(), format!(", unit_multiplier: {multiplier}")),
                    None => ("unknown", format!(", period: {}", length(window))),
                },
            };
            let there = limit.options().time_zone.map(|name| format!(", time_zone: {name}")).unwrap_or_default();
            let from = limit.options().starts_on.map(|date| format!(", starts_on: {date}")).unwrap_or_default();
            (unit, limit.number(), beside + &there + &from)
        }
    };
    let (shadow, quota) = (rule.role == Role::Shadow, rule.role == Role::Quota);
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        text,
        "{}: unit={} requests_per_unit={number}, shadow_mode: {shadow}, quota_mode: {quota}{beside}",
        name(rule),
        unit.to_uppercase(),
    );
}

/// Returns `domain.key_value.key`: the path with `.` in place of `|` and `_` in place of `=`.
fn name(rule: &Rule) -> String {
    let levels = rule.path.split('|').map(|level| level.replacen('=', "_", 1));
    levels.fold(rule.domain.to_string(), |name, level| name + "." + &level).escape_debug().to_string()
}
