//! Loads the rules again when their files change.
//!
//! It polls the files' metadata a few times a second. That one mechanism sees an edit in place, a rename, a
//! deletion, a folder made anew and the symlink swap of a Kubernetes ConfigMap, on every file system. inotify does not:
//! it follows the file and not the name, loses a folder that is replaced, sees nothing on most network file systems,
//! and would need a case for each of these. A few dozen `stat` calls cost next to nothing.
//!
//! What it cannot see is a change that leaves a file's length, inode and both of its times as they were: one within the
//! same tick of the file system's clock (some milliseconds) as the change before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use super::load::{Loaded, Loader, Pace, Sources};
use crate::rules::report::{Report, RulesError};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// What the files looked like at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    files: Vec<(PathBuf, Option<Stamp>)>,
    /// What could not be found or read.
    problems: String,
}

/// What changes when a file's content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    identity: Identity,
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

impl Stamp {
    /// Of the file that the path leads to in the end.
    fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp { length: metadata.len(), modified: metadata.modified().ok(), identity: Identity::of(&metadata) })
    }
}

/// Which file it is, and when anything about it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    #[cfg(unix)]
    device_inode_changed: (u64, u64, i64, i64),
}

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &fs::Metadata) -> Identity {
        use std::os::unix::fs::MetadataExt as _;
        Identity { device_inode_changed: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()) }
    }

    #[cfg(not(unix))]
    fn of(_: &fs::Metadata) -> Identity {
        Identity {}
    }
}

/// Loads the rules whenever the files differ from what was `seen`, or at once when `asked`, and calls `on_change` with
/// the result. Never returns.
///
/// A change counts once two polls in a row agree on it, so a file that is being written is left alone until
/// it is done. Bad rules are reported once, not again until something changes.
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

/// Distinguishes a change that is complete from one that is going on.
struct Debounce<T> {
    /// What was last acted upon.
    acted: T,
    /// What was found last.
    last: T,
}

impl<T: Clone + PartialEq> Debounce<T> {
    fn after(seen: T) -> Debounce<T> {
        Debounce { acted: seen.clone(), last: seen }
    }

    /// Whether something new was found for the second time in a row.
    fn settled(&mut self, found: T) -> bool {
        let settled = found == self.last && found != self.acted;
        if settled {
            self.acted = found.clone();
        }
        self.last = found;
        settled
    }
}

/// Does work with files where it holds up no request.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_and_when_two_polls_agree() {
        let mut debounce = Debounce::after("old");
        let mut settled = |found| debounce.settled(found);
        assert!(!settled("old"));
        assert!(!settled("half"));
        assert!(!settled("more"));
        assert!(!settled("new"));
        assert!(settled("new"));
        assert!(!settled("new"));
    }

    #[test]
    fn a_change_that_is_undone_is_none() {
        let mut debounce = Debounce::after("old");
        assert!(!debounce.settled("new"));
        assert!(!debounce.settled("old"));
        assert!(!debounce.settled("old"));
    }
}
