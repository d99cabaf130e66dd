//! `tollgate bans`: the keys that penalties ban.

use std::process::ExitCode;

use clap::Args;

use super::admin_port::Administered;
use super::top::name;
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
/// Exits with 0 if the keys could be checked, and with 1 if not.
#[derive(Args)]
pub(crate) struct Bans {
    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this rule, by its name in metrics. Unset: all.
    #[arg(long, short)]
    rule: Option<String>,

    /// Print JSON, with the fields of /top.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(bans: Bans) -> anyhow::Result<ExitCode> {
    let mut query = vec![("by", "denied"), ("n", KEYS), ("remaining", "true")];
    query.extend(bans.domain.iter().map(|domain| ("domain", &**domain)));
    query.extend(bans.rule.iter().map(|rule| ("rule", &**rule)));
    let answer = bans.service.top(&query).await?;
    let banned: Vec<&HeavyKey> = answer.keys.iter().filter(|key| key.banned_ms.is_some()).collect();
    if bans.json {
        println!("{}", serde_json::to_string(&banned)?);
        return Ok(ExitCode::SUCCESS);
    }
    if banned.is_empty() {
        println!("none of the {KEYS} most denied keys is banned (rules: {})", answer.rules);
    }
    for key in banned {
        println!("{:>10}  {}", descriptor::wait(key.banned_ms.unwrap_or_default()), name(key));
    }
    Ok(ExitCode::SUCCESS)
}
