//! `tollgate serve`: answers Envoy until a signal stops it.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::sync::watch;

use super::findings::Findings;
use crate::server::watchdog::{FileOfSetting, Watchdog};
use crate::server::{self, Addresses};
use crate::settings::{Given, Settings};
use crate::telemetry::{self, Logs};

/// A service that has begun to log, and whose start is watched.
pub(super) struct Begun {
    logs: Logs,
    watchdog: io::Result<Watchdog>,
}

/// Begins the service, before any file is read. `files` are those that settings name.
pub(super) fn begin(settings: &Settings, mut files: Vec<FileOfSetting>) -> Begun {
    files.extend(settings.decisions.file().map(|path| ("DECISION_LOG".to_owned(), path.to_owned())));
    let logs = telemetry::init(&settings.logs.log_level, settings.logs.log_format);
    Begun { logs, watchdog: Watchdog::start(files) }
}

/// Runs the service. Logs why it cannot serve; logging does not wait for a reader.
pub(super) fn run(settings: Settings, findings: &Findings, begun: Begun) -> ExitCode {
    let Begun { logs, watchdog } = begun;
    tell(findings);
    if !findings.mistakes.is_empty() {
        return ExitCode::FAILURE;
    }
    match run_to_the_end(settings, &logs, watchdog, watch::Sender::new(None)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the server on this thread. The server starts its own threads for calls. `announced` gets its addresses.
pub(super) fn run_to_the_end(
    settings: Settings,
    logs: &Logs,
    watchdog: io::Result<Watchdog>,
    announced: watch::Sender<Option<Addresses>>,
) -> anyhow::Result<()> {
    let watchdog = watchdog.context("cannot watch for signals")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(server::serve(settings, logs, watchdog, announced));
    // A load in progress, or a disk that does not answer, must not delay the end.
    runtime.shutdown_background();
    done
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
