//! `tollgate serve`: answers Envoy until a signal ends it.

use std::process::ExitCode;

use anyhow::bail;

use crate::server;
use crate::settings::{self, Settings};
use crate::telemetry;

/// The threads that answer calls are the server's own; this one looks after them.
#[tokio::main(flavor = "current_thread")]
pub(super) async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    telemetry::init(settings.logs.log_level, settings.logs.log_format);
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
    server::serve(settings).await?;
    Ok(ExitCode::SUCCESS)
}
