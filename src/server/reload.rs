//! Loads the rules at the start and whenever they change, for as long as the process runs. If new rules are wrong, the
//! old ones stay in force. A panic while rules are read has the same effect, and is reported like any other error.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;

use super::announce::{Serving, Up};
use super::demands::Demands;
use super::door::Door;
use super::management::{self, Management};
use super::signals::Hangups;
use crate::engine::rules::Rules;
use crate::engine::rules::diff::{Summary, Totals};
use crate::engine::rules::report::{Problem, RulesError};
use crate::limiter::{Exchanged, Limiter, Snapshot};
use crate::metrics::Metrics;
use crate::sources::files::load::{Loaded, Loader, Pace, Progress, Sources};
use crate::sources::files::watch::{self, Fingerprint};
use crate::store::Store;
use crate::supervise::{RETRY, supervise};

/// Interval of log lines about the progress of a long load.
const PROGRESS: Duration = Duration::from_secs(2);

/// Interval of checks whether requests still use rules that are no longer in force.
const RETIRE: Duration = Duration::from_millis(100);

/// The parts of the process that new rules change.
pub(super) struct Target<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) serving: Serving,
    pub(super) door: Door,
    pub(super) up: Up,
    /// Whether counters and usage are kept in this process.
    pub(super) in_memory: bool,
    pub(super) demands: Arc<Demands>,
}

/// Source of the rules.
pub(super) enum Origin {
    /// Files.
    Files(Files),
    /// A management server.
    Management(Box<Management>),
}

/// Rule files, and the behavior if they are wrong at the start.
pub(super) struct Files {
    pub(super) loader: Loader,
    pub(super) wrong_at_first: WrongAtFirst,
    /// Each SIGHUP reads the files again, even if they have not changed.
    pub(super) hangups: Hangups,
}

/// Behavior of the process if its first rules are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongAtFirst {
    /// The process ends.
    End,
    /// The process waits for correct rules.
    Wait,
}

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The new rules are in force.
    InForce,
    /// The old rules are still in force.
    Kept,
}

/// Loads the rules, announces the process, and puts changed rules in force, forever.
///
/// # Errors
/// If the first rules are wrong and the process must end for that.
pub(super) async fn keep<S: Store>(origin: Origin, target: Target<S>) -> anyhow::Result<Infallible> {
    match origin {
        Origin::Files(files) => {
            let loader = files.loader.clone();
            tokio::select! {
                kept = load_and_watch(files, &target) => kept,
                never = report(&loader, &target.serving) => match never {},
            }
        }
        Origin::Management(management) => management::keep(*management, target).await,
    }
}

async fn load_and_watch<S: Store>(files: Files, target: &Target<S>) -> anyhow::Result<Infallible> {
    let Files { loader, wrong_at_first, hangups } = files;
    target.up.listening_for_http();
    let seen = load_first(loader.clone(), wrong_at_first, target).await?;
    target.door.open()?;
    target.up.announce(&target.limiter.snapshot().rules);
    let (changes, changed) = mpsc::unbounded_channel();
    let (mut seen, asked) = (Some(seen), Arc::new(Notify::new()));
    // After a panic the rules are read again even if they have not changed, since changes may have been missed.
    let watch = supervise(
        |error| panicked(error, &target.metrics),
        || {
            let changes = changes.clone();
            // A fingerprint of no files differs from any file, so everything counts as changed.
            let nothing = || Fingerprint::of(&Sources { paths: Vec::new() });
            let seen = seen.take().unwrap_or_else(nothing);
            watch::watch(loader.clone(), seen, Arc::clone(&asked), move |change| {
                // The receiver is gone only if the process is ending.
                let _ = changes.send(change);
            })
        },
    );
    let (never, ..) = tokio::join!(watch, target.settle_all(changed), hangups.forward(&asked));
    match never {}
}

/// Puts the first rules in force. Returns the fingerprint of their files from before they were read, to notice any
/// later change.
async fn load_first<S: Store>(loader: Loader, wrong: WrongAtFirst, target: &Target<S>) -> anyhow::Result<Fingerprint> {
    let load = move || (Fingerprint::of(&loader.sources), loader.load(Pace::Alone));
    let (seen, loaded) = spawn_blocking(load).await.context("a panic while loading the rules, see above")?;
    match loaded {
        Ok(Loaded { rules, warnings, .. }) => {
            warn_of(&warnings);
            let (limiter, domains) = (Arc::clone(&target.limiter), rules.domains());
            spawn_blocking(move || limiter.put_in_force(rules)).await?;
            target.warn_of_store();
            target.serving.loaded(domains).await;
        }
        Err(error) if wrong == WrongAtFirst::Wait => {
            target.metrics.record_load_error();
            target.serving.refused().await;
            tracing::error!("the rules are rejected, not serving until they are corrected:\n{error}");
        }
        Err(error) => bail!("the rules are rejected:\n{error}"),
    }
    Ok(seen)
}

/// Reports the progress of a load every few seconds, forever.
async fn report(loader: &Loader, serving: &Serving) -> Infallible {
    let mut ticks = tokio::time::interval(PROGRESS);
    loop {
        ticks.tick().await;
        // A load that has just begun may soon be over.
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

    /// Puts changed rules in force and logs the changes, or logs their errors. If they are wrong, or after a panic, the
    /// old rules stay.
    pub(super) async fn settle(&self, change: Result<Loaded, RulesError>) -> Settled {
        match change {
            Ok(Loaded { rules, warnings, .. }) => {
                warn_of(&warnings);
                self.put_in_force(rules).await
            }
            Err(error) => {
                self.refuse(error)(1);
                Settled::Kept
            }
        }
    }

    /// Counts rejected rules, and returns a function that logs why, with the number of rejections since the last line.
    pub(super) fn refuse(&self, error: RulesError) -> impl FnOnce(u64) + Send + 'static {
        self.metrics.record_load_error();
        move |times| {
            let times = (times > 1).then_some(times);
            tracing::error!(times, "changed rules are rejected, the previous ones stay in force:\n{error}");
        }
    }

    /// Warns if usage that is to be billed, or a balance, is lost when the process ends, and if no replica can confirm
    /// charges.
    fn warn_of_store(&self) {
        let snapshot = self.limiter.snapshot();
        let new = self.demands.take_rules(&snapshot.rules);
        if self.in_memory && new.durable {
            tracing::warn!(
                "durable: true does nothing without Redis, counters are lost when this process ends: set REDIS_URL"
            );
        }
        if self.in_memory && new.balances {
            tracing::warn!(
                "balances (unit: never) are kept in memory and lost when this process ends, with all top-ups: set \
                 REDIS_URL to keep them"
            );
        }
        if self.in_memory && snapshot.rules.limits().any(|(_, limit)| limit.config.options.usage.is_some()) {
            tracing::warn!("usage is kept in memory and lost when this process ends: set REDIS_URL to keep it");
        }
    }

    async fn put_in_force(&self, rules: Rules) -> Settled {
        let (count, domains) = (rules.rules().len(), rules.domains());
        let (exchanging, recording) = (Arc::clone(&self.limiter), Arc::clone(&self.limiter));
        let record = move |exchanged: &Exchanged| {
            recording.record(exchanged);
            // Comparing a hundred thousand rules with the old ones takes a while.
            Summary::of(&exchanged.old.rules, &exchanged.new.rules)
        };
        let settled = in_two_steps(move || exchanging.exchange(rules), record, &self.metrics).await;
        let Some((Exchanged { old, new }, summary)) = settled else { return Settled::Kept };
        drop(new);
        self.warn_of_store();
        self.serving.loaded(domains).await;
        if let Some(summary) = summary {
            report_changes(&summary, (count, domains));
        }
        tokio::spawn(retire(old));
        Settled::InForce
    }
}

/// Runs the exchange of rules, and then what follows from it. Each may take a while, and logs a panic. Returns `None`
/// if the exchange panicked: the old rules are in force then, and the new ones whatever happens after it.
async fn in_two_steps<E: Clone + Send + 'static, T: Send + 'static>(
    exchange: impl FnOnce() -> E + Send + 'static,
    follow: impl FnOnce(&E) -> T + Send + 'static,
    metrics: &Metrics,
) -> Option<(E, Option<T>)> {
    let exchanged = match spawn_blocking(exchange).await {
        Ok(exchanged) => exchanged,
        Err(error) => {
            panicked(&error, metrics);
            return None;
        }
    };
    let followed = exchanged.clone();
    let followed = spawn_blocking(move || follow(&followed)).await.inspect_err(|error| {
        tracing::error!(%error, "a panic after new rules came into force: their changes are not logged");
    });
    Some((exchanged, followed.ok()))
}

/// Logs how much has changed, and then each change. The totals have a line to themselves: as fields they would be
/// attached to the last of many lines.
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
            "the rules were reloaded, their limits are unchanged"
        );
    }
    tracing::info!(rules, domains, added, removed, changed, afresh, "new rules are in force: {totals}");
    tracing::info!("changes of the new rules:\n{}", summary.to_string().trim_end());
}

/// Keeps rules that are no longer in force until no request uses them, then frees them on a thread where this delays no
/// call: freeing a million rules takes a while.
async fn retire(old: Arc<Snapshot>) {
    // Several snapshots that differ in their adjustments may share the same rules.
    while Arc::strong_count(&old) > 1 || Arc::strong_count(&old.rules) > 1 {
        tokio::time::sleep(RETIRE).await;
    }
    // Fails only by a panic, which is logged.
    let _ = spawn_blocking(move || drop(old)).await;
}

pub(super) fn panicked(error: &tokio::task::JoinError, metrics: &Metrics) {
    metrics.record_load_error();
    tracing::error!(%error, retry = ?RETRY, "a panic while reloading the rules, the previous ones stay in force");
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

    #[tokio::test]
    async fn a_panic_after_the_exchange_of_rules_does_not_say_that_the_previous_ones_are_in_force() {
        let metrics = Metrics::new(0.8).unwrap();
        let panics = |_: &u8| -> u8 { panic!("a panic in what follows, for the test") };
        assert_eq!(in_two_steps(|| 1, panics, &metrics).await, Some((1, None)));
        assert!(!metrics.are_rules_refused());
        assert_eq!(in_two_steps(|| 1, |exchanged| exchanged + 1, &metrics).await, Some((1, Some(2))));
        let panics = || -> u8 { panic!("a panic in the exchange, for the test") };
        assert_eq!(in_two_steps(panics, |_| 2, &metrics).await, None);
        assert!(metrics.are_rules_refused());
    }
}
