//! Files that change while the process runs: rules, certificates.
//!
//! It polls the files' metadata a few times a second. That one mechanism sees an edit in place, a rename, a
//! deletion, a folder made anew and the symlink swap of a Kubernetes ConfigMap or Secret, on every file system. inotify
//! does not: it follows the file and not the name, loses a folder that is replaced, sees nothing on most network file
//! systems, and would need a case for each of these. A few dozen `stat` calls cost next to nothing.
//!
//! What it cannot see is a change that leaves a file's length, inode and both of its times as they were: one within the
//! same tick of the file system's clock (some milliseconds) as the change before.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How often files are looked at.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// What changes when a file's content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    identity: Identity,
}

impl Stamp {
    /// Of the file that the path leads to in the end; `None`: there is none.
    pub fn of(path: &Path) -> Option<Stamp> {
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

/// Distinguishes a change that is complete from one that is going on: a change counts once two polls in a row agree on
/// it, so a file that is being written is left alone until it is done.
#[derive(Debug)]
pub struct Debounce<T> {
    /// What was last acted upon.
    acted: T,
    /// What was found last.
    last: T,
}

impl<T: Clone + PartialEq> Debounce<T> {
    /// One that has acted upon this.
    pub fn after(seen: T) -> Debounce<T> {
        Debounce { acted: seen.clone(), last: seen }
    }

    /// Whether something new was found for the second time in a row.
    pub fn settled(&mut self, found: T) -> bool {
        let settled = found == self.last && found != self.acted;
        if settled {
            self.acted = found.clone();
        }
        self.last = found;
        settled
    }
}

/// Does work with files where it holds up no request.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
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
