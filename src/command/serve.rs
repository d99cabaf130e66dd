//! `tollgate serve`: answers Envoy until a signal ends it.

use std::process::ExitCode;

use anyhow::bail;

use crate::server;
use crate::settings::{self, Settings};
use crate::telemetry::{self, Logs};

/// Says why it cannot serve in the log, which waits for no reader.
pub(super) fn run(settings: Settings) -> ExitCode {
    let logs = telemetry::init(&settings.logs.log_level, settings.logs.log_format);
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
    let mut refused = Vec::new();
    for unsupported in settings::unsupported(|name| std::env::var(name).ok()) {
        let line = format!("{}: {}", unsupported.setting, unsupported.advice);
        if unsupported.fatal {
            refused.push(line);
        } else {
            tracing::warn!("{line}");
        }
    }
    if !refused.is_empty() {
        bail!("the environment asks for what is not there:\n{}", refused.join("\n"));
    }
    server::serve(settings, logs.lost()).await
}
