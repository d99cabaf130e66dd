//! Loads the rules again when their files change; [`crate::files`] explains how changes are detected.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use super::load::{Loaded, Loader, Pace, Sources};
use crate::engine::rules::report::{Report, RulesError};
use crate::files::{Debounce, INTERVAL, Stamp, blocking};

/// The state of the files at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// Errors about files that could not be found or read.
    problems: String,
}

impl Fingerprint {
    /// Reads the present state of the files. Call it before the first [`load`] and pass the result to [`watch`], to
    /// miss no change in between.
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

/// Loads the rules whenever the files differ from the state `seen`, or at once when `asked` is notified, and passes the
/// result to `on_change`. Never returns.
///
/// A file is not read while it is being written. Bad rules are reported once, and not again until something changes.
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
