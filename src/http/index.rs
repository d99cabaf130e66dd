//! `/`: links to the paths of the HTTP port, as a page for browsers and as text for everything else.

use std::fmt::Write as _;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;

use crate::observe::Observing;

/// Whether the console is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It is served.
    On,
    /// It is not, for this reason.
    Off(&'static str),
}

impl Availability {
    /// The reason without administrators' paths.
    pub const NO_ADMIN_API: Availability = Availability::Off("set ADMIN_API=true and an ADMIN_TOKEN to serve it");
    /// The reason with them.
    pub const NO_CONSOLE: Availability = Availability::Off("CONSOLE is off; set CONSOLE=true to serve it");
}

/// The parts of the port that settings turn on.
pub(super) struct Parts {
    pub(super) json: bool,
    /// The observers that administrators see; `None` without administrators.
    pub(super) observing: Option<Observing>,
    pub(super) console: Availability,
    pub(super) redis: bool,
}

/// A path of the port, and what it serves.
struct Link(&'static str, &'static str);

const ALWAYS: [Link; 2] =
    [Link("/healthcheck", "whether this instance serves"), Link("/metrics", "metrics for Prometheus")];

const JSON: Link = Link("/json", "decisions in JSON, by POST");

/// Paths that need a token.
const ADMIN: [Link; 11] = [
    Link("/top", "the keys with the most hits or denials"),
    Link("/explain", "why a request is limited: ?domain=D&key=value"),
    Link("/counters", "counters of a request: ?domain=D&key=value"),
    Link("/credits", "top-ups and refunds of budgets, by POST"),
    Link("/usage", "recorded usage"),
    Link("/adjustments", "limits adjusted for a while"),
    Link("/audit", "who changed what, and who was refused it"),
    Link("/what-if", "the effect of another number"),
    Link("/candidates", "the effect of candidate rules"),
    Link("/replicas", "the instances that share the store"),
    Link("/log-level", "the level of the log, which PUT changes"),
];

/// Paths that need a token, and that only the console has.
const CONSOLE: [Link; 3] = [
    Link("/overview", "the last fifteen minutes"),
    Link("/rules", "the limits in force with their counts"),
    Link("/log", "the latest log lines"),
];

/// The same, if counters are in Redis.
const REDIS: Link = Link("/redis", "the state of Redis");

const TOKEN: &str = "With the header Authorization: Bearer ADMIN_TOKEN";

pub(super) fn router(parts: Parts) -> Router {
    let (html, text) = (html(&parts), text(&parts));
    let index = async move |headers: HeaderMap| -> Response {
        let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let vary = [(header::VARY, "accept")];
        match accepted.contains("text/html") {
            true => {
                let policy = [(header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'")];
                (vary, policy, Html(html.clone())).into_response()
            }
            false => (vary, text.clone()).into_response(),
        }
    };
    let router = Router::new().route("/", get(index));
    match parts.console {
        Availability::On => router,
        Availability::Off(why) => {
            let absent = async move || (StatusCode::NOT_FOUND, format!("No console: {why}.\n"));
            router.route("/console", get(absent))
        }
    }
}

impl Parts {
    /// Returns the links without a token, and those with one.
    fn links(&self) -> (Vec<&'static Link>, Vec<&'static Link>) {
        let open = ALWAYS.iter().chain(self.json.then_some(&JSON)).collect();
        let has_console = self.console == Availability::On;
        let console = CONSOLE.iter().filter(|_| has_console);
        let redis = (has_console && self.redis).then_some(&REDIS);
        let observes = |path: &str| {
            self.observing.as_ref().is_some_and(|observing| match path {
                "/top" => observing.heavy_hitters.is_some(),
                "/what-if" => observing.what_if.is_some(),
                "/candidates" => observing.candidates.is_some(),
                _ => true,
            })
        };
        let closed = ADMIN.iter().filter(|Link(path, _)| observes(path)).chain(console).chain(redis).collect();
        (open, closed)
    }
}

fn text(parts: &Parts) -> String {
    let (open, closed) = parts.links();
    let mut text = String::from("Tollgate\n\n");
    let _ = match parts.console {
        Availability::On => writeln!(text, "{:<14}the console, for browsers", "/console"),
        Availability::Off(why) => writeln!(text, "No console: {why}.\n"),
    };
    let line = |text: &mut String, Link(path, what): &Link| {
        let _ = writeln!(text, "{path:<14}{what}");
    };
    open.iter().for_each(|link| line(&mut text, link));
    if !closed.is_empty() {
        let _ = writeln!(text, "\n{TOKEN}:");
        closed.iter().for_each(|link| line(&mut text, link));
    }
    text
}

fn html(parts: &Parts) -> String {
    let (open, closed) = parts.links();
    let mut html = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Tollgate</title>\n<h1>Tollgate</h1>\n",
    );
    let _ = match parts.console {
        Availability::On => writeln!(html, "<p><a href=\"/console\">Console</a></p>"),
        Availability::Off(why) => writeln!(html, "<p>No console: {why}.</p>"),
    };
    let list = |html: &mut String, links: &[&Link]| {
        html.push_str("<ul>\n");
        for Link(path, what) in links {
            let _ = match *path {
                // A browser's link sends a GET.
                "/json" => writeln!(html, "<li><code>{path}</code>: {what}</li>"),
                _ => writeln!(html, "<li><a href=\"{path}\">{path}</a>: {what}</li>"),
            };
        }
        html.push_str("</ul>\n");
    };
    list(&mut html, &open);
    if !closed.is_empty() {
        let _ = writeln!(html, "<p>{TOKEN}:</p>");
        // A browser sends no token with a link.
        html.push_str("<ul>\n");
        for Link(path, what) in closed {
            let _ = writeln!(html, "<li><code>{path}</code>: {what}</li>");
        }
        html.push_str("</ul>\n");
    }
    html
}
