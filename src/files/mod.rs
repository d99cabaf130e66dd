//! Watching files that change while the process runs: rules, certificates, tokens.
//!
//! The files' metadata is polled a few times a second. This single mechanism notices an edit in place, a rename, a
//! deletion, a recreated folder, and the symlink swap of a Kubernetes ConfigMap or Secret, on every file system.
//! inotify does not: it follows the file rather than the name, loses a folder that is replaced, misses changes on most
//! network file systems, and would need code for each of these cases. A few dozen `stat` calls cost next to nothing.
//!
//! Polling misses a change that keeps a file's length, inode and both of its times: one within the same tick of the
//! file system's clock (some milliseconds) as the change before.

pub mod watch;

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Interval of the polls.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// Metadata that changes when a file's content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    identity: Identity,
}

impl Stamp {
    /// Reads the stamp of the file that the path leads to after symlinks. Returns `None` if there is none.
    pub fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp { length: metadata.len(), modified: metadata.modified().ok(), identity: Identity::of(&metadata) })
    }
}

/// Identifies a file and the last change to its content or metadata.
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

/// Rejects a path to a pipe or a socket before it is opened. Opening a pipe blocks until a process opens its other end,
/// which may never happen; a signal does not interrupt it.
///
/// # Errors
/// If the path leads to a pipe or a socket. A missing file is not an error.
pub fn refuse_pipe(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        let kind = fs::metadata(path).map(|metadata| metadata.file_type());
        if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket()) {
            let reason = "it is a pipe or a socket: name a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Separates complete changes from those in progress: a change counts once two consecutive polls agree on it, so a file
/// is not read while it is being written.
#[derive(Debug)]
pub struct Debounce<T> {
    /// The state last acted upon.
    acted: T,
    /// The state found last.
    last: T,
}

impl<T: Clone + PartialEq> Debounce<T> {
    /// Starts with a state that has been acted upon.
    pub fn after(seen: T) -> Debounce<T> {
        Debounce { acted: seen.clone(), last: seen }
    }

    /// Returns whether a new state was found for the second time in a row.
    pub fn settled(&mut self, found: T) -> bool {
        let settled = found == self.last && found != self.acted;
        if settled {
            self.acted = found.clone();
        }
        self.last = found;
        settled
    }
}

/// Runs blocking work with files on a thread where it delays no request.
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
