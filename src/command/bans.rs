//! `tollgate bans`: whom penalties ban.

use std::process::ExitCode;

use clap::Args;

use super::admin_port::Administered;
use super::top::name;
use crate::descriptor;
use crate::heavy_hitters::HeavyKey;

/// So many keys are looked at, of those that are denied most: as many as the service reads the counters of.
const KEYS: &str = "100";

/// Show whom penalties ban, and for how long.
///
/// A store does not list its counters, so what is looked at are the hundred keys of the last minutes that the service
/// denies most. `tollgate counter get` tells it of any other; `tollgate counter reset` lifts a ban. It needs
/// ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if it could look, and with 1 otherwise.
#[derive(Args)]
pub(super) struct Bans {
    /// In this domain. Unset: in all.
    #[arg(long, short)]
    domain: Option<String>,

    /// By this rule, by the name that metrics have for it. Unset: by all.
    #[arg(long, short)]
    rule: Option<String>,

    /// Print them as JSON, in the words of /top.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(bans: Bans) -> anyhow::Result<ExitCode> {
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
        println!("no one is banned, of the {KEYS} keys that are denied most (rules: {})", answer.rules);
    }
    for key in banned {
        println!("{:>10}  {}", descriptor::wait(key.banned_ms.unwrap_or_default()), name(key));
    }
    Ok(ExitCode::SUCCESS)
}
