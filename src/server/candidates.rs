//! Candidate rules: read when the process starts and whenever their files change, and compared with those in force.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, spawn_blocking};

use super::options;
use super::supervise::{RETRY, supervise};
use crate::candidates::Candidates;
use crate::metrics::Metrics;
use crate::rules::load::{Loader, Sources};
use crate::rules::watch::{self, Fingerprint};
use crate::settings::Settings;
use crate::store::memory::SystemClock;

/// The candidates that the settings name, and a task that reads them for ever; `None` where there are none.
///
/// # Errors
/// Where the system gives no thread.
pub(super) fn start(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Option<Arc<Candidates>>> {
    let Some(sources) = settings.candidates.files.sources() else { return Ok(None) };
    let options = options::candidates(settings, &sources)?;
    let candidates = Arc::new(Candidates::new(options, SystemClock, metrics.candidates()?));
    candidates.follow().context("cannot start the thread that compares candidate rules")?;
    let loader = Loader::new(sources, settings.reading.load_options());
    let kept = Arc::clone(&candidates);
    tokio::spawn(async move { keep(loader, &kept).await });
    Ok(Some(candidates))
}

async fn keep(loader: Loader, candidates: &Arc<Candidates>) -> Infallible {
    let (changes, mut changed) = mpsc::unbounded_channel();
    let panicked = |error: &JoinError| tracing::error!(%error, retry = ?RETRY, "a panic while candidates are read");
    let watch = supervise(panicked, || {
        let changes = changes.clone();
        // Of no files: whatever is there counts as a change.
        let nothing = Fingerprint::of(&Sources { paths: Vec::new() });
        watch::watch(loader.clone(), nothing, Arc::new(Notify::new()), move |change| {
            // The receiver is gone only when the process ends.
            let _ = changes.send(change);
        })
    });
    let settle = async {
        while let Some(change) = changed.recv().await {
            let candidates = Arc::clone(candidates);
            // To compare many rules takes a while. It fails only by a panic, which is logged.
            let _ = spawn_blocking(move || candidates.settle(change.map(|loaded| loaded.rules))).await;
        }
    };
    let (never, ()) = tokio::join!(watch, settle);
    match never {}
}
