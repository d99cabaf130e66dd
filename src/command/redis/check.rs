//! `tollgate check --redis`: what the service would find at its Redis.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;

use crate::command::environment;
use crate::command::findings::Findings;
use crate::command::output::{errln, print};
use crate::command::rules::check::Check;
use crate::command::rules::report::Format;
use crate::engine::rules::LimitConfig;
use crate::settings::{Environment, Settings};
use crate::sources::files::load::{Loaded, load};
use crate::store::redis;
use crate::store::redis::examination::{Examination, Server, examine};
use crate::telemetry::{self, LogFormat, LogLevels};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(cli: &clap::Command, check: &Check, environment: &Environment) -> anyhow::Result<ExitCode> {
    let _logs = telemetry::init(&LogLevels::of_command(&[redis::LOG_TARGET]), LogFormat::Text);
    let (settings, read) = environment::read(cli, environment)?;
    let store = settings.store.redis();
    let errors: Vec<_> = store.as_ref().err().into_iter().collect();
    let findings = Findings::of_errors(read, &errors, environment);
    if !findings.mistakes.is_empty() {
        findings.mistakes.iter().for_each(|mistake| errln!("error: {mistake}"));
        return Ok(ExitCode::FAILURE);
    }
    let Some(config) = store? else {
        bail!("no REDIS_URL: counters are in the service's memory, not in Redis; set REDIS_URL");
    };
    let mut found = examine(config).await?;
    let limits = limits_of(&settings);
    if limits.iter().any(|limit| limit.options.durable) {
        found.warn_without_replicas();
    }
    if limits.iter().any(|limit| limit.is_balance()) {
        found.warn_without_persistence();
    }
    print(&match check.format {
        Format::Text => text(&found),
        Format::Json => format!("{:#}\n", found.to_json()),
        Format::Github | Format::Sarif => {
            bail!("--redis has no file positions to report: use --format text or json")
        }
    })?;
    let is_good = found.errors().next().is_none() && (found.warnings().next().is_none() || !check.strict);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the limits of the service. Rules that cannot be read are the matter of another check, and have none.
fn limits_of(settings: &Settings) -> Vec<Arc<LimitConfig>> {
    let sources = settings.rules.sources().ok();
    let loaded = sources.and_then(|sources| load(&sources, &settings.reading.load_options()).ok());
    let limits = |loaded: Loaded| loaded.rules.limits().map(|(_, limit)| Arc::clone(&limit.config)).collect();
    loaded.map(limits).unwrap_or_default()
}

fn text(found: &Examination) -> String {
    let mut text: String = found.both().map(redis_text).collect();
    text += &format!("errors: {}, warnings: {}\n", found.errors().count(), found.warnings().count());
    text
}

fn redis_text(found: &Examination) -> String {
    let sentinel = |(place, named): &(String, Option<String>)| match named {
        Some(master) => format!("{place} names {master}"),
        None => format!("{place} names none"),
    };
    let sentinels = found.sentinels.iter().map(sentinel).collect::<Vec<_>>().join(", ");
    let mut text = lines(&[
        ("redis", Some(found.redis.clone())),
        ("kind", Some(found.kind.to_owned())),
        ("sentinels", Some(sentinels).filter(|sentinels| !sentinels.is_empty())),
    ]);
    text += &findings(&found.warnings, &found.errors);
    text.extend(found.servers.iter().map(server_text));
    text
}

fn server_text(found: &Server) -> String {
    let clock = found.clock_ahead_ms.map(|ms| match ms {
        0.. => format!("{ms} ms ahead of this machine's"),
        _ => format!("{} ms behind this machine's", -ms),
    });
    let latency = found.latency_us.map(|(median, most)| format!("median {median} us, maximum {most} us"));
    let text = lines(&[
        ("server", found.server.clone()),
        ("slots", found.slots.map(|slots| slots.to_string())),
        ("engine", found.engine.clone()),
        ("role", found.role.clone()),
        ("replicas", found.replicas.map(|replicas| replicas.to_string())),
        ("scripts", found.runs_scripts.map(|runs| if runs { "run" } else { "do not run" }.to_owned())),
        ("decision", latency),
        ("maxmemory-policy", found.maxmemory_policy.clone()),
        ("persistence", found.persistence.map(|persistence| persistence.name().to_owned())),
        ("clock", clock),
    ]);
    text + &findings(&found.warnings, &found.errors)
}

/// Returns each name with its finding, without those that are unknown.
fn lines(lines: &[(&str, Option<String>)]) -> String {
    let known = lines.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    known.map(|(name, value)| format!("{name:17} {value}\n")).collect()
}

fn findings(warnings: &[String], errors: &[String]) -> String {
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}\n"));
    warnings.chain(errors.iter().map(|error| format!("error: {error}\n"))).collect()
}
