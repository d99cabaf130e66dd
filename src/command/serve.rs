//! `tollgate serve`: answers Envoy until a signal stops it.

use std::process::ExitCode;

use super::findings::Findings;
use crate::server;
use crate::settings::{Given, Settings};
use crate::telemetry::{self, Logs};

/// Runs the service. Logs why it cannot serve; logging does not wait for a reader.
pub(super) fn run(settings: Settings, findings: &Findings) -> ExitCode {
    let logs = telemetry::init(&settings.logs.log_level, settings.logs.log_format);
    tell(findings);
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

/// Runs the server on this thread. The server starts its own threads for calls.
fn run_to_the_end(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(serve(settings, logs));
    // A load in progress, or a disk that does not answer, must not delay the end.
    runtime.shutdown_background();
    done
}

async fn serve(settings: Settings, logs: &Logs) -> anyhow::Result<()> {
    server::serve(settings, logs.lost(), logs.events()).await
}

fn tell(findings: &Findings) {
    let Findings { given, warnings, mistakes } = findings;
    let names: Vec<_> = given.iter().map(Given::to_string).collect();
    tracing::info!("settings: {}", if names.is_empty() { "none".into() } else { names.join(", ") });
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    for mistake in mistakes {
        tracing::error!("{mistake}");
    }
}
