//! `tollgate replicas`: the instances that share a store, and whether all decide by the same rules.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep};

use crate::command::live::admin_port::Administered;
use crate::command::output::{Format, RowsOutput, csv, print};
use crate::engine::descriptor::wait;
use crate::engine::printable::printable;
use crate::shared::fleet::heartbeats::ReplicaState;
use crate::shared::fleet::{FleetReport, Line};

/// Fields of an instance in CSV.
const FIELDS: [&str; 8] = ["id", "version", "state", "rules", "rules_age_ms", "uptime_ms", "heard_ms", "differs"];

/// Interval between questions of `--wait`.
const EVERY: Duration = Duration::from_secs(1);

/// Show the instances that share the service's store, and whether all decide by the same rules.
///
/// A script that rolls out rules can wait: `tollgate replicas --rules VERSION --expect 5 --wait 2m`. Compares instances
/// of the same release; those that are draining do not count. Each instance reports every few seconds, and stays listed
/// for 15 s after its last report. Needs ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if all have the same rules and as many as expected are ready, and with 1 if not.
#[derive(Args)]
pub(crate) struct Replicas {
    /// Version of the rules that all must have, as in tollgate_rules_info and GET /candidates. Unset: any, if all have
    /// the same.
    #[arg(long, value_name = "VERSION")]
    rules: Option<String>,

    /// Number of ready instances that there must be. An instance that was killed, is paused or drains is not ready.
    #[arg(long, value_name = "NUMBER")]
    expect: Option<usize>,

    /// Repeat until all have the rules, and are as many as expected, for this long at most. Unset: ask once.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(replicas: Replicas) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + replicas.wait.unwrap_or_default();
    loop {
        let told = replicas.service.replicas().await;
        let agrees = told.as_ref().is_ok_and(|report| replicas.agrees(report));
        let left = deadline.saturating_duration_since(Instant::now());
        if !agrees && !left.is_zero() {
            // A service that does not answer may be starting. The last question comes at the deadline.
            sleep(left.min(EVERY)).await;
            continue;
        }
        let report = told?;
        print(&match replicas.output.format() {
            Format::Json => serde_json::to_string(&report)? + "\n",
            Format::Csv => csv(&FIELDS, &report.replicas)?,
            Format::Text => table(&report) + &replicas.missing(&report).unwrap_or_default(),
        })?;
        return Ok(if agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
}

impl Replicas {
    /// Returns whether the instances agree. The answer is unknown while the store does not report the others.
    fn agrees(&self, report: &FleetReport) -> bool {
        report.unavailable.is_none() && report.agrees(self.rules.as_deref()) && self.missing(report).is_none()
    }

    /// Returns a line that says how many instances are ready, if they are not as many as expected.
    fn missing(&self, report: &FleetReport) -> Option<String> {
        let ready = report.replicas.iter().filter(|line| line.state == ReplicaState::Ready).count();
        self.expect.filter(|expected| *expected != ready).map(|expected| format!("{ready} of {expected} are ready\n"))
    }
}

/// Returns a line for each instance, with a mark at those that differ from most, and a summary. Control characters that
/// other instances have written into Redis are escaped.
fn table(report: &FleetReport) -> String {
    let mut text = String::new();
    let mut line = |mark: &str, cells: [&str; 7]| {
        let [version, state, rules, since, up, heard, name] = cells.map(printable);
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{mark} {version:9}  {state:9}  {rules:12}  {since:>9}  {up:>9}  {heard:>9}  {name}");
    };
    line(" ", ["VERSION", "STATE", "RULES", "FOR", "UP", "HEARD", "REPLICA"]);
    for replica in &report.replicas {
        let Line { id, version, state, rules, rules_age_ms, uptime_ms, heard_ms, differs, .. } = replica;
        let (rules, since) = match rules {
            Some(rules) => (&**rules, age(*rules_age_ms)),
            None => ("-", "-".to_owned()),
        };
        let version = if version.is_empty() { "?" } else { version };
        let heard = if replica.is_self { "answers".to_owned() } else { format!("{} ago", age(*heard_ms)) };
        line(if *differs { "!" } else { " " }, [version, state.name(), rules, &since, &age(*uptime_ms), &heard, id]);
    }
    if let Some(why) = &report.unavailable {
        let _ =
            writeln!(text, "cannot read the other instances from the store ({}): some may be missing", printable(why));
    }
    if let Some(ms) = report.rules_differ_ms {
        let _ = writeln!(text, "the instances have had different rules for at least {}", age(ms));
    } else if report.replicas.iter().any(|line| line.rules.is_none() && line.state != ReplicaState::Draining) {
        let _ = writeln!(text, "some instances have no rules");
    }
    text
}

/// Returns the age in seconds, or its two largest units.
fn age(ms: u64) -> String {
    let words = wait(ms / 1_000 * 1_000);
    if ms < 1_000 { "0s".to_owned() } else { words.split(' ').take(2).collect::<Vec<_>>().join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_marks_who_differs_and_nothing_moves_the_cursor() {
        let line = |id: &str, rules: &str, differs: bool| {
            serde_json::json!({
                "id": id, "is_self": !differs, "version": "0.1.0", "state": "ready", "rules": rules,
                "rules_age_ms": 61_999, "differs": differs, "candidates": null, "uptime_ms": 3_600_000,
                "heard_ms": 1_200,
            })
        };
        let replicas = [line("toll-1", "aaaaaaaaaaaa", false), line("toll-2\u{1b}[2J", "bbbbbbbbbbbb", true)];
        let told = serde_json::json!({"replicas": replicas, "rules_differ_ms": 61_999, "unavailable": null});
        let text = table(&serde_json::from_value(told).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("  0.1.0 ") && lines[1].ends_with("  answers  toll-1"), "{text}");
        assert!(lines[2].starts_with("! 0.1.0 ") && lines[2].ends_with(r" 1s ago  toll-2\u{1b}[2J"), "{text}");
        assert_eq!(lines[3], "the instances have had different rules for at least 61s");
    }
}
