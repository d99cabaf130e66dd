//! `tollgate replicas`: who shares a store, and whether all decide by the same rules.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep};

use super::admin_port::Administered;
use crate::descriptor::{printable, wait};
use crate::fleet::{Line, Report};
use crate::store::heartbeats::ReplicaState;

/// How often `--wait` asks.
const EVERY: Duration = Duration::from_secs(1);

/// Show the replicas that share the service's store, and whether all decide by the same rules.
///
/// A script that rolls out rules waits for it: `tollgate replicas --rules VERSION --wait 2m`. Replicas of one release
/// are compared; those that are draining do not count. Each says what it is every few seconds, and is listed for 15 s
/// after it has fallen silent. It needs ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if all have the same rules, and with 1 otherwise.
#[derive(Args)]
pub(super) struct Replicas {
    /// All must have the rules of this version, as tollgate_rules_info and GET /candidates have it. Unset: all the
    /// same.
    #[arg(long, value_name = "VERSION")]
    rules: Option<String>,

    /// Ask again until all have the rules, for so long at most. Unset: ask once.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    /// Print them as JSON, in the words of /replicas.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(replicas: Replicas) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + replicas.wait.unwrap_or_default();
    loop {
        let told = replicas.service.replicas().await;
        let agrees = told.as_ref().is_ok_and(|report| replicas.agrees(report));
        if !agrees && Instant::now() + EVERY < deadline {
            // One that does not answer may be starting.
            sleep(EVERY).await;
            continue;
        }
        let report = told?;
        match replicas.json {
            true => println!("{}", serde_json::to_string(&report)?),
            false => print!("{}", table(&report)),
        }
        return Ok(if agrees { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
}

impl Replicas {
    /// Whether that is what is waited for; nobody knows while the store does not tell of others.
    fn agrees(&self, report: &Report) -> bool {
        report.unavailable.is_none() && report.agrees(self.rules.as_deref())
    }
}

/// A line for each replica, those that differ from most with a mark, and what there is to say of all. What others have
/// written into Redis moves no cursor.
fn table(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |mark: &str, cells: [&str; 7]| {
        let [version, state, rules, since, up, heard, name] = cells.map(printable);
        // A String takes all that is written to it.
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
        let _ = writeln!(text, "the store does not tell of replicas ({}): others may be missing", printable(why));
    }
    if let Some(ms) = report.rules_differ_ms {
        let _ = writeln!(text, "replicas have different rules, for {} at least", age(ms));
    } else if report.replicas.iter().any(|line| line.rules.is_none() && line.state != ReplicaState::Draining) {
        let _ = writeln!(text, "not all replicas have rules");
    }
    text
}

/// In seconds, or its two largest parts.
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
        assert_eq!(lines[3], "replicas have different rules, for 61s at least");
    }
}
