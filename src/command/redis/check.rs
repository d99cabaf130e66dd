//! `tollgate check --redis`: what the service would find at its Redis.

use std::process::ExitCode;

use anyhow::bail;

use crate::command::environment;
use crate::command::findings::Findings;
use crate::command::rules::check::Check;
use crate::command::rules::report::Format;
use crate::settings::{Environment, Settings};
use crate::sources::files::load::load;
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
        findings.mistakes.iter().for_each(|mistake| eprintln!("error: {mistake}"));
        return Ok(ExitCode::FAILURE);
    }
    let Some(config) = store? else {
        bail!("no REDIS_URL: counters are in the service's memory, not in Redis; set REDIS_URL");
    };
    let mut found = examine(config).await?;
    if has_durable_limits(&settings) {
        found.warn_without_replicas();
    }
    match check.format {
        Format::Text => print_text(&found),
        Format::Json => print_json(&found),
        Format::Github | Format::Sarif => {
            bail!("--redis has no file positions to report: use --format text or json")
        }
    }
    let is_good = found.errors().next().is_none() && (found.warnings().next().is_none() || !check.strict);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether a limit of the service needs replicas. Rules that cannot be read are the matter of another check.
fn has_durable_limits(settings: &Settings) -> bool {
    let sources = settings.rules.sources().ok();
    let loaded = sources.and_then(|sources| load(&sources, &settings.reading.load_options()).ok());
    loaded.is_some_and(|loaded| loaded.rules.limits().any(|(_, limit)| limit.config.options.durable))
}

fn print_text(found: &Examination) {
    found.both().for_each(print_redis);
    println!("errors: {}, warnings: {}", found.errors().count(), found.warnings().count());
}

fn print_redis(found: &Examination) {
    let sentinel = |(place, named): &(String, Option<String>)| match named {
        Some(master) => format!("{place} names {master}"),
        None => format!("{place} names none"),
    };
    let sentinels = found.sentinels.iter().map(sentinel).collect::<Vec<_>>().join(", ");
    print_lines(&[
        ("redis", Some(found.redis.clone())),
        ("kind", Some(found.kind.to_owned())),
        ("sentinels", Some(sentinels).filter(|sentinels| !sentinels.is_empty())),
    ]);
    print_findings(&found.warnings, &found.errors);
    found.servers.iter().for_each(print_server);
}

fn print_server(found: &Server) {
    let clock = found.clock_ahead_ms.map(|ms| match ms {
        0.. => format!("{ms} ms ahead of this machine's"),
        _ => format!("{} ms behind this machine's", -ms),
    });
    let latency = found.latency_us.map(|(median, most)| format!("median {median} us, maximum {most} us"));
    print_lines(&[
        ("server", found.server.clone()),
        ("slots", found.slots.map(|slots| slots.to_string())),
        ("engine", found.engine.clone()),
        ("role", found.role.clone()),
        ("replicas", found.replicas.map(|replicas| replicas.to_string())),
        ("scripts", found.runs_scripts.map(|runs| if runs { "run" } else { "do not run" }.to_owned())),
        ("decision", latency),
        ("maxmemory-policy", found.maxmemory_policy.clone()),
        ("clock", clock),
    ]);
    print_findings(&found.warnings, &found.errors);
}

/// Prints each name with its finding, without those that are unknown.
fn print_lines(lines: &[(&str, Option<String>)]) {
    for (name, value) in lines.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        println!("{name:17} {value}");
    }
}

fn print_findings(warnings: &[String], errors: &[String]) {
    warnings.iter().for_each(|warning| println!("warning: {warning}"));
    errors.iter().for_each(|error| println!("error: {error}"));
}

fn print_json(found: &Examination) {
    println!("{:#}", found.to_json());
}
