//! `tollgate bans`: the keys that penalties ban.

use std::cmp::Reverse;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::admin_port::Administered;
use super::top::name;
use crate::command::output::{Format, NOTHING_APPLIES, RowsOutput, columns, csv, errln, print};
use crate::engine::descriptor;
use crate::observe::heavy_hitters::HeavyKey;

/// Number of most denied keys to check: the service reads the counters of no more.
const KEYS: &str = "100";

/// Show the keys that penalties ban, and for how long.
///
/// A store cannot list its counters, so this checks the hundred keys that the service has denied most in the last
/// minutes. For any other key, use `tollgate counter get`; to lift a ban, use `tollgate counter reset`. Needs
/// ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if the keys could be checked, 3 if the rules have no such domain or rule, and with 1 if there is no
/// answer, for example because Redis is down.
#[derive(Args)]
pub(crate) struct Bans {
    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this rule, by its name in metrics. Unset: all.
    #[arg(long, short)]
    rule: Option<String>,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(bans: Bans) -> anyhow::Result<ExitCode> {
    let mut query = vec![("by", "denied"), ("n", KEYS), ("remaining", "true")];
    query.extend(bans.domain.iter().map(|domain| ("domain", &**domain)));
    query.extend(bans.rule.iter().map(|rule| ("rule", &**rule)));
    let answer = bans.service.top(&query).await?;
    let mut banned: Vec<&HeavyKey> =
        answer.keys.iter().map(|key| &key.key).filter(|key| key.banned_ms.is_some()).collect();
    if let Some(why) = &answer.unavailable {
        bail!("unknown: {why}, so the service cannot read which keys are banned");
    }
    banned.sort_by_key(|key| Reverse(key.banned_ms));
    let done = print(&match bans.output.format() {
        Format::Json => serde_json::to_string(&banned)? + "\n",
        Format::Csv => csv(&["domain", "rule", "descriptor", "banned_ms"], &banned)?,
        Format::Text if answer.keys.is_empty() => "no key was denied in the last minutes\n".to_owned(),
        Format::Text if banned.is_empty() => {
            format!("none of the {KEYS} most denied keys is banned (rules: {})\n", answer.rules)
        }
        Format::Text => table(&banned),
    })?;
    match answer.missed {
        Some(missed) if answer.keys.is_empty() => {
            errln!("{missed}");
            Ok(ExitCode::from(NOTHING_APPLIES))
        }
        _ => Ok(done),
    }
}

/// Returns a line for each key, the longest ban first, below the names of the columns.
fn table(banned: &[&HeavyKey]) -> String {
    let cells = |key: &&HeavyKey| [descriptor::wait(key.banned_ms.unwrap_or_default()), name(key)];
    let rows: Vec<_> = [["BANNED FOR", "KEY"].map(str::to_owned)].into_iter().chain(banned.iter().map(cells)).collect();
    columns(&rows, 0..1)
}
