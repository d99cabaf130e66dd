//! The tokens of administrators: logs which are in force, and replaces them when their file changes.

use crate::files::watch::{self, Watched};
use crate::http::{AdminTokens, KnownClients};
use crate::metrics::AdminMetrics;
use crate::settings::{ListenerSettings, SettingsError};
use crate::supervise;

/// The state of the file before it is first read; `None` without a file.
pub(super) fn watched(settings: &ListenerSettings) -> Option<Watched> {
    settings.admin_tokens_file.clone().map(|file| Watched::new(vec![file]))
}

/// Logs who may use the administrators' paths, and for which hosts.
pub(super) fn tell(settings: &ListenerSettings, tokens: &AdminTokens) {
    let hosts = settings.admin_hosts.clone().unwrap_or_default();
    let (admin, reader, named) = (tokens.admin.is_some(), tokens.reader.is_some(), tokens.named.len());
    tracing::info!(
        admin_token = admin, admin_read_token = reader, named_tokens = named, %hosts,
        "the admin API answers requests with these tokens"
    );
}

/// Replaces the tokens whenever their file changes. Wrong ones are rejected, and the previous ones stay in force.
pub(super) fn keep(settings: ListenerSettings, watched: Watched, (clients, metrics): (KnownClients, AdminMetrics)) {
    supervise::spawn("tokens", move || {
        let (settings, watched) = (settings.clone(), watched.clone());
        let (clients, metrics) = (clients.clone(), metrics.clone());
        watch::watch(
            watched,
            move || settings.admin_tokens(),
            move |loaded| {
                metrics.record_token_reload(loaded.is_ok());
                match loaded {
                    Ok(tokens) => {
                        let named = tokens.unwrap_or_default().named;
                        clients.replace(&named);
                        tracing::info!(named_tokens = named.len(), "new tokens of administrators are in force");
                    }
                    Err(SettingsError::AdminTokensFile(mistakes)) => mistakes.to_string().lines().for_each(reject),
                    Err(error) => reject(&error.to_string()),
                }
            },
        )
    });
}

fn reject(mistake: &str) {
    tracing::error!("changed tokens of administrators are rejected, the previous ones stay in force: {mistake}");
}
