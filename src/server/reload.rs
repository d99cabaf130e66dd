//! The rules: read at the start, and again whenever they change, for as long as the process lives. Wrong ones leave the
//! old in force, and so does a panic while they are read, which is reported like any other mistake.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;

use super::announce::{Serving, Up};
use super::signals::Hangups;
use crate::changes::{Summary, Totals};
use crate::limiter::{Limiter, Snapshot};
use crate::metrics::Metrics;
use crate::rules::load::{Loaded, Loader, Pace, Progress, Sources};
use crate::rules::report::{Problem, RulesError};
use crate::rules::watch::{self, Fingerprint};
use crate::store::Store;

/// So long after a panic the rules are read again, whether they have changed or not: what changed meanwhile is not
/// known.
const RETRY: Duration = Duration::from_secs(5);

/// How often a load that takes long says how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// How often to look whether requests have done with rules that are no longer in force.
const RETIRE: Duration = Duration::from_millis(100);

/// What the rules are for.
pub(super) struct Target<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) serving: Serving,
    pub(super) up: Up,
}

/// Where the rules come from, and what to do if they are wrong at the start.
pub(super) struct Origin {
    pub(super) loader: Loader,
    pub(super) wrong_at_first: WrongAtFirst,
    /// What makes them be read again unchanged.
    pub(super) hangups: Hangups,
}

/// What becomes of a process whose first rules are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongAtFirst {
    /// It ends.
    End,
    /// It waits for right ones.
    Wait,
}

/// Loads the rules, announces the process, and puts changed rules in force, for ever.
///
/// # Errors
/// Where the first rules are wrong and the process ends for it.
pub(super) async fn keep<S: Store>(origin: Origin, target: Target<S>) -> anyhow::Result<Infallible> {
    let loader = origin.loader.clone();
    tokio::select! {
        kept = load_and_watch(origin, &target) => kept,
        never = report(&loader, &target.serving) => match never {},
    }
}

async fn load_and_watch<S: Store>(origin: Origin, target: &Target<S>) -> anyhow::Result<Infallible> {
    let Origin { loader, wrong_at_first, hangups } = origin;
    target.up.listening();
    let seen = load_first(loader.clone(), wrong_at_first, target).await?;
    target.up.announce(&target.limiter.snapshot().rules);
    let (changes, changed) = mpsc::unbounded_channel();
    let (mut seen, asked) = (Some(seen), Arc::new(Notify::new()));
    let watch = supervise(&target.metrics, || {
        let changes = changes.clone();
        // Of no files: whatever is there counts as a change.
        let nothing = || Fingerprint::of(&Sources { paths: Vec::new() });
        let seen = seen.take().unwrap_or_else(nothing);
        watch::watch(loader.clone(), seen, Arc::clone(&asked), move |change| {
            // The receiver is gone only when the process ends.
            let _ = changes.send(change);
        })
    });
    let (never, ..) = tokio::join!(watch, put_in_force(changed, target), hangups.forward(&asked));
    match never {}
}

/// Puts the first rules in force, and returns what their files looked like before they were read: a change from there
/// on is noticed.
async fn load_first<S: Store>(loader: Loader, wrong: WrongAtFirst, target: &Target<S>) -> anyhow::Result<Fingerprint> {
    let load = move || (Fingerprint::of(&loader.sources), loader.load(Pace::Alone));
    let (seen, loaded) = spawn_blocking(load).await.context("a panic while the rules are read, see above")?;
    match loaded {
        Ok(Loaded { rules, warnings, .. }) => {
            warn_of(&warnings);
            let (limiter, domains) = (Arc::clone(&target.limiter), rules.domains());
            spawn_blocking(move || limiter.put_in_force(rules)).await?;
            target.serving.loaded(domains).await;
        }
        Err(error) if wrong == WrongAtFirst::Wait => {
            target.metrics.record_load_error();
            target.serving.refused().await;
            tracing::error!("the rules are refused, not serving until they are right:\n{error}");
        }
        Err(error) => bail!("the rules are refused:\n{error}"),
    }
    Ok(seen)
}

/// Says every few seconds how far a load is, for ever.
async fn report(loader: &Loader, serving: &Serving) -> Infallible {
    let mut ticks = tokio::time::interval(PROGRESS);
    loop {
        ticks.tick().await;
        // What has just begun may soon be over.
        let progress = loader.progress().filter(|progress| progress.elapsed() >= PROGRESS / 2);
        if let Some(progress) = progress {
            let Progress { stage, files, files_read, bytes, bytes_read, .. } = progress;
            serving.progress(bytes_read, bytes);
            let (stage, elapsed_ms) = (stage.name(), progress.elapsed().as_millis() as u64);
            tracing::info!(stage, bytes_read, bytes, files_read, files, elapsed_ms, "loading the rules");
        }
    }
}

/// Makes and runs a task, and another when it ends by a panic, for ever.
async fn supervise<F: Future<Output = ()> + Send + 'static>(
    metrics: &Metrics,
    mut task: impl FnMut() -> F,
) -> Infallible {
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

async fn put_in_force<S: Store>(mut changed: mpsc::UnboundedReceiver<Result<Loaded, RulesError>>, target: &Target<S>) {
    let Target { limiter, metrics, serving, .. } = target;
    while let Some(change) = changed.recv().await {
        match change {
            Ok(Loaded { rules, warnings, .. }) => {
                warn_of(&warnings);
                let (count, domains) = (rules.rules().len(), rules.domains());
                // To compare a hundred thousand rules with the old ones takes a while.
                let limiter = Arc::clone(limiter);
                let put = move || {
                    let old = limiter.put_in_force(rules);
                    let summary = Summary::of(&old.rules, &limiter.snapshot().rules);
                    (old, summary)
                };
                match spawn_blocking(put).await {
                    Ok((old, summary)) => {
                        serving.loaded(domains).await;
                        report_changes(&summary, (count, domains));
                        tokio::spawn(retire(old));
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

/// How much has changed, and then what: fields would hang on the last line of many.
fn report_changes(summary: &Summary, (rules, domains): (usize, usize)) {
    let totals = summary.totals;
    let Totals { added, removed, changed, afresh } = totals;
    if totals.are_none() {
        return tracing::info!(
            rules,
            domains,
            added,
            removed,
            changed,
            afresh,
            "the rules have been read again, and limit the same"
        );
    }
    tracing::info!(rules, domains, added, removed, changed, afresh, "new rules are in force: {totals}");
    tracing::info!("what new rules change:\n{}", summary.to_string().trim_end());
}

/// Keeps rules that are no longer in force until no request has them, and frees them where that holds up none: a
/// million rules take a while.
async fn retire(old: Arc<Snapshot>) {
    while Arc::strong_count(&old) > 1 {
        tokio::time::sleep(RETIRE).await;
    }
    // It fails only by a panic, which is logged.
    let _ = spawn_blocking(move || drop(old)).await;
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
