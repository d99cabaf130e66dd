//! `docs/algorithms-in-detail.md` and `docs/recipes.md` are correct: the table is the result of the simulation, and the
//! rules do what the page says. The same for the log fields in `docs/observing.md` and the engines in `docs/redis.md`.

#[path = "../../examples/admission.rs"]
mod admission;
use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use support::tollgate::{Tollgate, descriptor};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitDescriptor, RateLimitRequest};

/// The rules to copy, by their domains.
fn rules() -> BTreeMap<String, String> {
    let page = std::fs::read_to_string("docs/recipes.md").unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let domain = |block: &str| block.lines().next().unwrap().strip_prefix("domain: ").unwrap().to_owned();
    blocks.map(|block| (domain(block), block.to_owned())).collect()
}

#[test]
fn the_table_of_what_is_admitted_is_current() {
    let hint = "put what `cargo run --release --example admission` prints into docs/algorithms-in-detail.md";
    let page = std::fs::read_to_string("docs/algorithms-in-detail.md").unwrap();
    assert!(page.contains(&admission::table()), "{hint}:\n{}", admission::table());
}

/// Returns the fields of a log line from the arguments of `tracing::info!(`: everything before the message.
fn fields(call: &str) -> Vec<String> {
    let is_message = |at: &usize| call[..*at].trim_end().ends_with(',') || call[..*at].trim().is_empty();
    let message = call.match_indices('"').map(|(at, _)| at).find(is_message).unwrap();
    let names = call[..message].split(',').map(|field| field.trim().trim_start_matches(['%', '?']));
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|char| char.is_ascii_lowercase() || char == '_');
    names.map(|field| field.split(" = ").next().unwrap()).filter(is_name).map(str::to_owned).collect()
}

#[test]
fn pictures_are_small_and_the_recording_plays_by_itself() {
    let bytes = |path: &Path| std::fs::metadata(path).unwrap().len();
    for picture in super::tidy::files("docs/console", "png") {
        assert!(bytes(&picture) <= 250_000, "{}", picture.display());
    }
    let path = Path::new("docs/terminal.svg");
    assert!(bytes(path) <= 400_000);
    let recording = std::fs::read_to_string(path).unwrap();
    assert!(recording.contains("@keyframes") && !recording.contains("<script"));
    for said in ["tollgate demo", "passed", "LIMITED", "tollgate explain", "tollgate top"] {
        assert!(recording.contains(said), "{said}: run `make pictures`");
    }
}

#[test]
fn every_field_of_the_log_is_explained() {
    let page = std::fs::read_to_string("docs/observing.md").unwrap();
    let (_, logs) = page.split_once("## Logs").unwrap();
    let (table, _) = logs.split_once("\n## ").unwrap();
    let explained = |name: &String| {
        table.lines().any(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{name}`"))))
    };
    let mut all = 0;
    for file in super::tidy::files("src", "rs") {
        let source = std::fs::read_to_string(&file).unwrap();
        for level in ["info", "warn", "error"] {
            for call in source.split(&format!("tracing::{level}!(")).skip(1) {
                let fields = fields(call);
                all += fields.len();
                let unexplained: Vec<_> = fields.into_iter().filter(|name| !explained(name)).collect();
                assert!(unexplained.is_empty(), "{}: {unexplained:?}, see docs/observing.md", file.display());
            }
        }
    }
    assert!(all > 50, "{all}");
}

/// A warning or an error of the log: where it is written, and its message as far as that is the same every time.
fn alarms() -> Vec<(String, String)> {
    let mut alarms = Vec::new();
    for file in super::tidy::files("src", "rs") {
        let source = std::fs::read_to_string(&file).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        for call in ["warn", "error"]
            .iter()
            .flat_map(|level| code.split(&format!("tracing::{level}!(")).skip(1).collect::<Vec<_>>())
        {
            let is_message = |at: &usize| call[..*at].trim_end().ends_with(',') || call[..*at].trim().is_empty();
            let start = call.match_indices('"').map(|(at, _)| at).find(is_message).unwrap() + 1;
            let literal = call[start..].split('"').next().unwrap();
            let message = literal.split(['{', '\\']).next().unwrap().trim_end().trim_end_matches(':');
            alarms.push((file.display().to_string(), message.to_owned()));
        }
    }
    assert!(alarms.len() > 40, "{alarms:?}");
    alarms
}

/// Rows for lines whose text is composed elsewhere.
const SAID_ELSEWHERE: [(&str, &[&str]); 7] = [
    (
        "src/command/serve.rs",
        &["`NAME=VALUE …`, and the process ends", "the last line", "`NAME (environment) does nothing`"],
    ),
    (
        "src/server/management.rs",
        &[
            "`ignoring a response of the management server for a resource type that was not requested`",
            "`rejected the rules of the management server (NACK)`",
        ],
    ),
    ("src/server/reload.rs", &["`FILE:LINE:COLUMN: …` of the rules"]),
    (
        "src/server/tls.rs",
        &[
            "`the certificate of FILE expires in`",
            "`the certificate of FILE expired`",
            "`the certificate of FILE only becomes valid in`",
            "a certificate, and `clients are not asked for certificates`",
        ],
    ),
    (
        "src/store/redis/link/breaker.rs",
        &[
            "`redis is down: its limits answer by their failure modes`",
            "`redis cannot be used: its limits answer by their failure modes`",
            "`cannot open a connection to redis, other connections still work`",
            "`lost a connection to redis, other connections still work`",
        ],
    ),
    (
        "src/store/redis/link/inspection.rs",
        &[
            "`redis evicts`",
            "`redis is a replica that accepts writes`",
            "`redis does not apply its min-replicas-to-write to scripts`",
            "`redis's clock is`",
            "`some limits cannot be decided in redis`",
        ],
    ),
    ("src/telemetry/mod.rs", &["`panicked at`, with a `thread`"]),
];

#[test]
fn every_warning_and_error_of_the_log_has_its_row() {
    let page = std::fs::read_to_string("docs/log-lines.md").unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut rows: Vec<&str> = rows.filter(|cell| !["---", "the log says"].contains(cell)).collect();
    assert!(rows.len() > 40, "{rows:?}");
    let mut elsewhere = BTreeSet::new();
    let alarms = alarms();
    for (file, message) in &alarms {
        if message.is_empty() {
            elsewhere.insert(file.as_str());
            continue;
        }
        let is_of = |row: &&str| row.split('`').any(|words| words.len() > 10 && message.starts_with(words));
        assert!(rows.iter().any(is_of), "{file}: docs/log-lines.md does not have {message:?}");
    }
    assert_eq!(elsewhere, SAID_ELSEWHERE.iter().map(|(file, _)| *file).collect());
    for (file, stands) in SAID_ELSEWHERE {
        for words in stands {
            let row = rows.iter().position(|row| row.starts_with(words));
            rows.remove(row.unwrap_or_else(|| panic!("{file}: docs/log-lines.md does not have {words:?}")));
        }
    }
    let is_said = |words: &str| alarms.iter().any(|(_, message)| words.len() > 10 && message.starts_with(words));
    rows.retain(|row| !row.split('`').any(is_said));
    assert_eq!(rows, [""; 0], "no such line is logged");
}

/// For each engine, whether its row has the right package and TLS support.
#[test]
fn the_engines_that_are_told_are_those_that_make_engines_runs() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (page, script) = (read(Path::new("docs/redis.md")), read(Path::new("scripts/engines.sh")));
    let (_, table) = page.split_once("## Engines").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter_map(|row| row.strip_prefix("| ")).skip(1).filter(|row| !row.starts_with("---"));
    let (_, without_tls) = script.split_once("# Built without TLS.").unwrap();
    let (without_tls, _) = without_tls.split_once(')').unwrap();
    let mut told = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = cells[0].to_lowercase().replace(' ', "-");
        assert_eq!(without_tls.contains(&name), cells[2] == "not built in", "{row}");
        // The one that the system has.
        if cells[1] != "Debian 12" {
            let package = cells[1].strip_prefix("PyPI, `").unwrap().trim_end_matches('`');
            let requirements = read(&Path::new("scripts/engines").join(format!("{name}.txt")));
            assert!(requirements.contains(&format!("\n{package}==")), "{row}");
            let (versions, hashes) = (requirements.matches("==").count(), requirements.matches("--hash=").count());
            assert_eq!(versions, hashes, "what is downloaded to be run is pinned by its bytes: {name}");
            told.insert(format!("{name}.txt"));
        }
    }
    let files = super::tidy::files("scripts/engines", "txt");
    let run = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
    assert_eq!(told, run.collect());
}

/// Requests to a domain and the expected result: the entries, and for each request its hits and whether it passes.
type Scenario = (&'static str, &'static [(&'static str, &'static str)], &'static [(u64, bool)]);

const SCENARIOS: &[Scenario] = &[
    ("login", &[("route", "login"), ("remote_address", "192.0.2.1")], &[(9, true), (1, true), (1, false)]),
    ("login", &[("route", "login"), ("remote_address", "192.0.2.2")], &[(1, true)]),
    // The limit lets a peek pass; it is the ban that denies it.
    ("login", &[("route", "login"), ("remote_address", "192.0.2.3")], &[(11, false); 19]),
    ("login", &[("route", "login"), ("remote_address", "192.0.2.3")], &[(0, true), (11, false), (0, false)]),
    ("failed-logins", &[("failed", "login"), ("remote_address", "192.0.2.1")], &[(5, true), (1, false), (0, true)]),
    // The log has room for all five; it is the ban that denies.
    ("failed-logins", &[("failed", "login"), ("remote_address", "192.0.2.2")], &[(6, false); 10]),
    ("failed-logins", &[("failed", "login"), ("remote_address", "192.0.2.2")], &[(1, false), (0, false)]),
    ("failures", &[("failures", "ann")], &[(4, true), (0, true), (1, false), (0, false)]),
    ("sms", &[("phone", "1")], &[(1, true), (1, false), (0, true)]),
    ("plans", &[("plan", "free"), ("tenant", "t")], &[(1_000, true), (1, false)]),
    ("plans", &[("plan", "paid"), ("tenant", "t")], &[(100_000, true), (1, false)]),
    ("plans", &[("plan", "paid"), ("tenant", "acme")], &[(400_000, true), (100_001, false)]),
    ("crawl", &[("remote_address", "192.0.2.1")], &[(40, true), (39, false)]),
    ("scan", &[("scanner", "192.0.2.1")], &[(100, true), (101, false), (0, true)]),
    ("scan", &[("scanner", "192.0.2.2")], &[(101, false); 50]),
    // The bucket is full all the time; it is the ban that denies.
    ("scan", &[("scanner", "192.0.2.2")], &[(1, false), (0, false)]),
    ("search", &[("path", "/search"), ("user", "ann")], &[(20, true), (1, false)]),
    ("order", &[("route", "order"), ("user", "ann")], &[(2, false), (1, true), (2, false)]),
    ("upload", &[("route", "upload"), ("user", "ann")], &[(50, true), (1, false)]),
    ("expensive", &[("user", "ann")], &[(1_000, true), (1, false)]),
    ("expensive", &[("export", "ann")], &[(50, true), (1, false)]),
    ("weak", &[("upstream", "legacy")], &[(11, false), (10, true)]),
    ("even", &[("upstream", "legacy")], &[(27, false), (1, true)]),
    ("tokens", &[("model-tokens", "ann")], &[(0, true), (9_000, true), (0, true), (2_000, false), (0, false)]),
    ("tokens-held", &[("tenant", "t"), ("hold", "a")], &[(9_000, true), (1_001, false), (1_000, true), (0, false)]),
    ("dollars", &[("tenant", "t"), ("hold", "a"), ("model", "gpt-4o")], &[(90_000, true), (10_001, false)]),
    ("dollars", &[("tenant", "u"), ("settle", "a"), ("model", "gpt-4o")], &[(2_000_000, true)]),
    ("dollars", &[("tenant", "u"), ("hold", "b"), ("model", "gpt-4o-mini")], &[(1, false)]),
    ("bytes", &[("download-bytes", "ann")], &[(0, true), (1_500_000_000, false), (0, false)]),
    ("reports", &[("route", "reports"), ("stream", "a")], &[(2, true), (2, false)]),
    ("reports", &[("route", "reports"), ("stream", "b")], &[(1, true), (1, false)]),
    ("addresses", &[("network", "office")], &[(6_000, true), (1, false)]),
    ("addresses", &[("network", "elsewhere"), ("remote_address", "192.0.2.1")], &[(60, true), (1, false)]),
    ("mcp", &[("agent", "ann"), ("method", "tools/call"), ("tool", "search")], &[(60, true), (1, false)]),
    ("mcp", &[("agent", "ann"), ("method", "tools/call"), ("tool", "send_email")], &[(10, true), (1, false)]),
    ("mcp", &[("session", "a"), ("method", "tools/call")], &[(500, true), (1, false)]),
    ("mcp", &[("session", "a"), ("tool", "search")], &[(10, true), (1, false)]),
    // There is room for a peek; it is the ban that denies it.
    ("mcp", &[("session", "b"), ("tool", "search")], &[(11, false); 20]),
    ("mcp", &[("session", "b"), ("tool", "search")], &[(0, false)]),
    ("queue", &[("queue", "mail")], &[(302, false), (1, true)]),
    ("gateway", &[("generic_key", "gateway")], &[(501, false), (500, true)]),
];

#[tokio::test]
async fn every_rule_of_the_page_does_what_it_is_for() {
    let rules = rules();
    for domain in rules.keys() {
        assert!(SCENARIOS.iter().any(|(asked, ..)| asked == domain), "{domain} is not tried");
    }
    let folder = tempfile::tempdir().unwrap();
    for (domain, rules) in &rules {
        std::fs::write(folder.path().join(domain).with_extension("yaml"), rules).unwrap();
    }
    let tollgate = Tollgate::start_in(folder, &[]);
    assert!(tollgate.logs().iter().all(|line| line["level"] != "WARN"), "{:?}", tollgate.logs());
    for (domain, entries, requests) in SCENARIOS {
        for (hits, passes) in *requests {
            let asked = RateLimitDescriptor { hits_addend: Some(*hits), ..descriptor(entries) };
            let request = RateLimitRequest { domain: (*domain).into(), descriptors: vec![asked], hits_addend: 0 };
            let response = tollgate.ask(request).await.unwrap();
            assert!(response.statuses[0].current_limit.is_some(), "{domain} {entries:?} has no limit");
            assert_eq!(response.overall_code() == Code::Ok, *passes, "{domain} {entries:?}: {hits}");
        }
    }
}
