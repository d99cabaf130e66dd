//! The rules: read at the start, and again whenever they change, for as long as the process lives. Wrong ones leave the
//! old in force, and so does a panic while they are read, which is reported like any other mistake.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::{Notify, mpsc};

use super::announce::Serving;
use super::signals::Hangups;
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::rules::Rules;
use crate::rules::load::{self, LoadOptions, Loaded, Sources};
use crate::rules::report::{Problem, RulesError};
use crate::rules::watch::{self, Fingerprint};
use crate::settings::Settings;
use crate::store::Store;

/// So long after a panic the rules are read again, whether they have changed or not: what changed meanwhile is not
/// known.
const RETRY: Duration = Duration::from_secs(5);

/// The rules to start with; `None` where they are wrong and the process shall start all the same.
pub(super) fn load_first(sources: &Sources, settings: &Settings) -> anyhow::Result<Option<Rules>> {
    match load::load(sources, &settings.reading.load_options()) {
        Ok(Loaded { rules, warnings }) => {
            warn_of(&warnings);
            Ok(Some(rules))
        }
        Err(error) if settings.deciding.force_start_without_initial_config => {
            tracing::error!("the rules are refused, not serving until they are right:\n{error}");
            Ok(None)
        }
        Err(error) => bail!("the rules are refused:\n{error}"),
    }
}

/// Where the rules come from, what is known of them, and what makes them be read again unchanged.
pub(super) struct Origin {
    pub(super) sources: Sources,
    pub(super) options: LoadOptions,
    pub(super) seen: Fingerprint,
    pub(super) hangups: Hangups,
}

/// Puts rules in force that have changed, and also unchanged where a signal asks for it, for ever.
pub(super) async fn reload<S: Store>(
    origin: Origin,
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    serving: Serving,
) {
    let (changes, changed) = mpsc::unbounded_channel();
    let Origin { sources, options, seen, hangups } = origin;
    let (mut seen, asked) = (Some(seen), Arc::new(Notify::new()));
    let watch = supervise(&metrics, || {
        let changes = changes.clone();
        // Of no files: whatever is there counts as a change.
        let nothing = || Fingerprint::of(&Sources { paths: Vec::new() });
        let seen = seen.take().unwrap_or_else(nothing);
        watch::watch(sources.clone(), options, seen, Arc::clone(&asked), move |change| {
            // The receiver is gone only when the process ends.
            let _ = changes.send(change);
        })
    });
    tokio::join!(watch, put_in_force(changed, limiter, &metrics, serving), hangups.forward(&asked));
}

/// Makes and runs a task, and another when it ends by a panic, for ever.
async fn supervise<F: Future<Output = ()> + Send + 'static>(metrics: &Metrics, mut task: impl FnMut() -> F) {
    loop {
        // Is dropped with this, and ends then.
        let mut running = tokio::task::JoinSet::new();
        running.spawn(task());
        if let Some(Err(error)) = running.join_next().await {
            panicked(&error, metrics);
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn put_in_force<S: Store>(
    mut changed: mpsc::UnboundedReceiver<Result<Loaded, RulesError>>,
    limiter: Arc<Limiter<S>>,
    metrics: &Metrics,
    serving: Serving,
) {
    while let Some(change) = changed.recv().await {
        match change {
            Ok(Loaded { rules, warnings }) => {
                warn_of(&warnings);
                let (count, domains) = (rules.rules().len(), rules.domains());
                // To compare a hundred thousand rules with the old ones, and to let those go, takes a while.
                let limiter = Arc::clone(&limiter);
                match tokio::task::spawn_blocking(move || limiter.put_in_force(rules)).await {
                    Ok(()) => {
                        tracing::info!(rules = count, domains, "new rules are in force");
                        serving.set(true).await;
                    }
                    Err(error) => panicked(&error, metrics),
                }
            }
            Err(error) => {
                metrics.record_load_error();
                tracing::error!("changed rules are refused, the old ones stay in force:\n{error}");
            }
        }
    }
}

fn panicked(error: &tokio::task::JoinError, metrics: &Metrics) {
    metrics.record_load_error();
    tracing::error!(%error, retry = ?RETRY, "a panic while rules are read, the old ones stay in force");
}

fn warn_of(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_the_loader_is_counted_and_reloading_goes_on() {
        let metrics = Metrics::new(0.8).unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let supervised = supervise(&metrics, || {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            async move {
                assert!(run >= 2, "a panic in the loader, for the test");
                std::future::pending().await
            }
        });
        let _ = tokio::time::timeout(10 * RETRY, supervised).await;
        assert_eq!(runs.load(Ordering::Relaxed), 3, "two panics, and one that lives");
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        assert!(text.contains("tollgate_rules_loads_total{result=\"error\"} 2"), "{text}");
    }
}
