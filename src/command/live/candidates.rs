//! `tollgate candidates`: what candidate rules would decide differently.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::admin_port::Administered;
use crate::command::output::{Output, print};
use crate::engine::descriptor::counted;
use crate::engine::printable::printable_lines;
use crate::observe::candidates::Report;
use crate::survey::Instances;

/// Show which requests the candidate rules of a running service decide differently.
///
/// Reads the comparison of all instances, as the console does. `tollgate promote --expect VERSION` puts in force what
/// this shows. Needs ADMIN_API=true and CANDIDATE_RULES at the service, and a token here.
///
/// Exits with 0 if candidates are compared, and with 1 if not.
#[derive(Args)]
pub(crate) struct Candidates {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    service: Administered,
}

/// The answer of `GET /candidates`.
#[derive(Serialize, Deserialize)]
struct Answer {
    instances: Instances,
    #[serde(flatten)]
    report: Report,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(candidates: Candidates) -> anyhow::Result<ExitCode> {
    let port = candidates.service.port();
    let Some(answer) = port.get::<Answer>("/candidates").await? else {
        bail!(
            "{} has no candidate rules: start the service with ADMIN_API=true and CANDIDATE_RULES",
            candidates.service.address
        );
    };
    print(&match candidates.output.is_json() {
        true => serde_json::to_string(&answer)? + "\n",
        false => printable_lines(&text(&answer)),
    })?;
    Ok(if answer.report.version.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(Answer { instances, report }: &Answer) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match (&report.version, &report.since) {
        (Some(version), Some(since)) => writeln!(
            text,
            "candidates {version} ({}), compared since {since} at {} of {}, for {} % of the keys",
            report.files.join(", "),
            instances.answered,
            counted(instances.of as u64, "instance"),
            (report.sample_now * 10_000.0).round() / 100.0,
        ),
        _ => writeln!(text, "no candidates are compared ({})", report.files.join(", ")),
    };
    if let Some(refused) = &report.refused {
        let _ = writeln!(text, "the present files are rejected: {refused}");
    }
    if report.version.is_some() {
        let _ = writeln!(text, "{}", report.changed);
        report.changes.iter().for_each(|change| text += &format!("  {change}\n"));
        text += &format!("{} compared\n{}", counted(report.differences.compared, "request"), report.differences);
    }
    text
}
