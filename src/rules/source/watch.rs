//! Loads the rules again when their files change; [`crate::files`] says how that is seen.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use super::load::{Loaded, Loader, Pace, Sources};
use crate::files::{Debounce, INTERVAL, Stamp, blocking};
use crate::rules::report::{Report, RulesError};

/// What the files looked like at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// What could not be found or read.
    problems: String,
}

impl Fingerprint {
    /// Of the files as they are now. Take it before the first [`load`], and give it to [`watch`], and no change in
    /// between is missed.
    pub fn of(sources: &Sources) -> Fingerprint {
        let mut report = Report::default();
        let files = sources.files(&mut report).into_iter().map(|path| {
            let stamp = Stamp::of(&path);
            (path, stamp)
        });
        let files = files.collect();
        let problems = report.finish().err().map(|error| error.to_string()).unwrap_or_default();
        Fingerprint { files, problems }
    }
}

/// Loads the rules whenever the files differ from what was `seen`, or at once when `asked`, and calls `on_change` with
/// the result. Never returns.
///
/// A file that is being written is left alone until it is done. Bad rules are reported once, not again until something
/// changes.
pub async fn watch(
    loader: Loader,
    seen: Fingerprint,
    asked: Arc<Notify>,
    mut on_change: impl FnMut(Result<Loaded, RulesError>),
) {
    let mut debounce = Debounce::after(seen);
    loop {
        let is_asked = tokio::select! {
            () = asked.notified() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let found = blocking({
            let sources = loader.sources.clone();
            move || Fingerprint::of(&sources)
        });
        let found = found.await;
        if is_asked {
            debounce = Debounce::after(found.clone());
        }
        if is_asked || debounce.settled(found) {
            let loader = loader.clone();
            on_change(blocking(move || loader.load(Pace::BesideRequests)).await);
        }
    }
}
