//! The rules: read at the start, and again whenever they change, for as long as the process lives. Wrong ones leave the
//! old in force, and so does a panic while they are read, which is reported like any other mistake.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;

use super::announce::{Serving, Up};
use super::management::{self, Management};
use super::signals::Hangups;
use super::supervise::{RETRY, supervise};
use crate::changes::{Summary, Totals};
use crate::limiter::{Limiter, Snapshot};
use crate::metrics::Metrics;
use crate::rules::Rules;
use crate::rules::load::{Loaded, Loader, Pace, Progress, Sources};
use crate::rules::report::{Problem, RulesError};
use crate::rules::watch::{self, Fingerprint};
use crate::store::Store;

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
    /// Counters, and what they are used, live in this process.
    pub(super) in_memory: bool,
}

/// Where the rules come from.
pub(super) enum Origin {
    /// Files.
    Files(Files),
    /// A management server.
    Management(Box<Management>),
}

/// Files that hold the rules, and what to do if they are wrong at the start.
pub(super) struct Files {
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

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The new rules are in force.
    InForce,
    /// The old ones still are.
    Kept,
}

/// Loads the rules, announces the process, and puts changed rules in force, for ever.
///
/// # Errors
/// Where the first rules are wrong and the process ends for it.
pub(super) async fn keep<S: Store>(origin: Origin, target: Target<S>) -> anyhow::Result<Infallible> {
    match origin {
        Origin::Files(files) => {
            let loader = files.loader.clone();
            tokio::select! {
                kept = load_and_watch(files, &target) => kept,
                never = report(&loader, &target.serving) => match never {},
            }
        }
        Origin::Management(management) => match management::keep(*management, target).await {},
    }
}

async fn load_and_watch<S: Store>(files: Files, target: &Target<S>) -> anyhow::Result<Infallible> {
    let Files { loader, wrong_at_first, hangups } = files;
    target.up.listening();
    let seen = load_first(loader.clone(), wrong_at_first, target).await?;
    target.up.announce(&target.limiter.snapshot().rules);
    let (changes, changed) = mpsc::unbounded_channel();
    let (mut seen, asked) = (Some(seen), Arc::new(Notify::new()));
    // After a panic the rules are read again, whether they have changed or not: what changed meanwhile is not known.
    let watch = supervise(
        |error| panicked(error, &target.metrics),
        || {
            let changes = changes.clone();
            // Of no files: whatever is there counts as a change.
            let nothing = || Fingerprint::of(&Sources { paths: Vec::new() });
            let seen = seen.take().unwrap_or_else(nothing);
            watch::watch(loader.clone(), seen, Arc::clone(&asked), move |change| {
                // The receiver is gone only when the process ends.
                let _ = changes.send(change);
            })
        },
    );
    let (never, ..) = tokio::join!(watch, target.settle_all(changed), hangups.forward(&asked));
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
            target.warn_of_usage();
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

impl<S: Store> Target<S> {
    async fn settle_all(&self, mut changed: mpsc::UnboundedReceiver<Result<Loaded, RulesError>>) {
        while let Some(change) = changed.recv().await {
            self.settle(change).await;
        }
    }

    /// Puts changed rules in force and says what that changes, or says what is wrong with them; then, and after a
    /// panic, the old ones stay.
    pub(super) async fn settle(&self, change: Result<Loaded, RulesError>) -> Settled {
        match change {
            Ok(Loaded { rules, warnings, .. }) => {
                warn_of(&warnings);
                self.put_in_force(rules).await
            }
            Err(error) => {
                self.metrics.record_load_error();
                tracing::error!("changed rules are refused, the old ones stay in force:\n{error}");
                Settled::Kept
            }
        }
    }

    /// Says so where what is to be billed does not outlive the process.
    fn warn_of_usage(&self) {
        let snapshot = self.limiter.snapshot();
        if self.in_memory && snapshot.rules.limits().any(|(_, limit)| limit.config.usage.is_some()) {
            tracing::warn!("usage is kept in memory, and is gone when this process ends: set REDIS_URL to keep it");
        }
    }

    async fn put_in_force(&self, rules: Rules) -> Settled {
        let (count, domains) = (rules.rules().len(), rules.domains());
        // To compare a hundred thousand rules with the old ones takes a while.
        let limiter = Arc::clone(&self.limiter);
        let put = move || {
            let old = limiter.put_in_force(rules);
            let summary = Summary::of(&old.rules, &limiter.snapshot().rules);
            (old, summary)
        };
        let (old, summary) = match spawn_blocking(put).await {
            Ok(done) => done,
            Err(error) => {
                panicked(&error, &self.metrics);
                return Settled::Kept;
            }
        };
        self.warn_of_usage();
        self.serving.loaded(domains).await;
        report_changes(&summary, (count, domains));
        tokio::spawn(retire(old));
        Settled::InForce
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
    // The rules may be those of several snapshots, which differ in their adjustments.
    while Arc::strong_count(&old) > 1 || Arc::strong_count(&old.rules) > 1 {
        tokio::time::sleep(RETIRE).await;
    }
    // It fails only by a panic, which is logged.
    let _ = spawn_blocking(move || drop(old)).await;
}

pub(super) fn panicked(error: &tokio::task::JoinError, metrics: &Metrics) {
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_the_loader_is_counted() {
        let metrics = Metrics::new(0.8).unwrap();
        let supervised = supervise(|error| panicked(error, &metrics), || async { panic!("a panic, for the test") });
        let _ = tokio::time::timeout(RETRY * 3 / 2, supervised).await;
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        assert!(text.contains("tollgate_rules_loads_total{result=\"error\"} 2"), "{text}");
        assert!(metrics.are_rules_refused());
    }
}
