//! Candidate rules: read at the start and whenever their files change, and compared with the rules in force.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, spawn_blocking};

use super::options;
use crate::metrics::Metrics;
use crate::observe::candidates::Candidates;
use crate::settings::Settings;
use crate::sources::files::load::{Loader, Sources};
use crate::sources::files::watch::{self, Fingerprint};
use crate::store::memory::SystemClock;
use crate::supervise::{RETRY, supervise};

/// Returns the candidates that the settings name, kept up to date by a task, or `None` if there are none.
///
/// # Errors
/// If the system provides no thread.
pub(super) fn start(settings: &Settings, metrics: &Arc<Metrics>) -> anyhow::Result<Option<Arc<Candidates>>> {
    let Some(sources) = settings.candidates.files.sources() else { return Ok(None) };
    let options = options::candidates(settings, &sources)?;
    let candidates = Arc::new(Candidates::new(options, SystemClock, metrics.candidates()?));
    candidates.follow().context("cannot start the thread that compares candidate rules")?;
    let built_in = &settings.candidates.files.built_in;
    let loader = Loader::new(sources, settings.reading.load_options()).with_texts(built_in);
    let asked = Arc::new(Notify::new());
    if !built_in.is_empty() {
        // They never change, so the watch alone would not read them.
        asked.notify_one();
    }
    let kept = Arc::clone(&candidates);
    tokio::spawn(async move { keep(loader, &asked, &kept).await });
    Ok(Some(candidates))
}

async fn keep(loader: Loader, asked: &Arc<Notify>, candidates: &Arc<Candidates>) -> Infallible {
    let (changes, mut changed) = mpsc::unbounded_channel();
    let panicked = |error: &JoinError| tracing::error!(%error, retry = ?RETRY, "a panic while reading candidate rules");
    let watch = supervise(panicked, || {
        let changes = changes.clone();
        // A fingerprint of no files differs from any file, so everything counts as changed.
        let nothing = Fingerprint::of(&Sources { paths: Vec::new() });
        watch::watch(loader.clone(), nothing, Arc::clone(asked), move |change| {
            // The receiver is gone only if the process is ending.
            let _ = changes.send(change);
        })
    });
    let settle = async {
        while let Some(change) = changed.recv().await {
            let candidates = Arc::clone(candidates);
            // Comparing many rules takes a while. Fails only by a panic, which is logged.
            let _ = spawn_blocking(move || candidates.settle(change.map(|loaded| loaded.rules))).await;
        }
    };
    let (never, ()) = tokio::join!(watch, settle);
    match never {}
}
