//! `tollgate serve`: answers Envoy until a signal ends it.

use std::process::ExitCode;

use super::findings::Findings;
use crate::server;
use crate::settings::{self, Backend, ConfigType, Environment, Given, Settings};
use crate::telemetry::{self, Logs};

/// Says why it cannot serve in the log, which waits for no reader.
pub(super) fn run(settings: Settings, findings: &Findings, environment: &Environment) -> ExitCode {
    let logs = telemetry::init(&settings.logs.log_level, settings.logs.log_format);
    tell(&settings, findings, environment);
    if !findings.mistakes.is_empty() {
        return ExitCode::FAILURE;
    }
    match run_to_the_end(settings, &logs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The threads that answer calls are the server's own; this one starts and ends them.
fn run_to_the_end(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(serve(settings, logs));
    // A load that is going on, or a disk that does not answer, holds up no end.
    runtime.shutdown_background();
    done
}

async fn serve(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    server::serve(settings, logs.lost()).await
}

fn tell(settings: &Settings, findings: &Findings, environment: &Environment) {
    let Findings { given, warnings, mistakes } = findings;
    let names: Vec<_> = given.iter().map(Given::to_string).collect();
    tracing::info!("settings: {}", if names.is_empty() { "none".into() } else { names.join(", ") });
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    for mistake in mistakes {
        tracing::error!("{mistake}");
    }
    let ignores_redis = settings.store.backend_type == Some(Backend::Memory);
    if let Some(given) = given.iter().find(|given| given.variable.as_deref() == Some("REDIS_URL"))
        && ignores_redis
    {
        tracing::warn!("{given} does nothing: BACKEND_TYPE is memory, so each replica counts for itself");
    }
    for warning in without_effect(settings, given) {
        tracing::warn!("{warning}");
    }
    for given in given.iter().filter(|given| given.is_one_of(&settings.tls.without_effect())) {
        tracing::warn!("{given} ({}) does nothing: GRPC_SERVER_USE_TLS is off", given.origin);
    }
    let expects = given.iter().any(|given| given.variable.as_deref() == Some("EXPECTED_REPLICAS"));
    let expected = expects.then_some(settings.deciding.expected_replicas);
    if let Ok(None) = settings.store.redis()
        && mistakes.is_empty()
        && let Some(sign) = settings::sign_of_replicas(environment, expected)
    {
        tracing::warn!(
            "counters are in the memory of this process, but {sign}: each replica counts for itself, and so many \
             replicas let so many times a limit pass; set REDIS_URL, or EXPECTED_REPLICAS=1 where there is one"
        );
    }
}

/// What names a place of rules, and they come from another.
fn without_effect(settings: &Settings, given: &[Given]) -> Vec<String> {
    let is_of_server = |name: &str| name.starts_with("CONFIG_GRPC_XDS_") || name.starts_with("XDS_CLIENT_");
    // Drivers of envoyproxy/ratelimit set its folders in any case.
    let is_of_files = |name: &str| name == "RULES";
    let (kind, has_none): (_, &dyn Fn(&str) -> bool) = match settings.rules.config_type {
        ConfigType::File => ("FILE", &is_of_server),
        ConfigType::GrpcXdsSotw => ("GRPC_XDS_SOTW", &is_of_files),
    };
    let concerned = given.iter().filter(|given| given.variable.as_deref().is_some_and(has_none));
    concerned.map(|given| format!("{given} does nothing: CONFIG_TYPE is {kind}")).collect()
}
