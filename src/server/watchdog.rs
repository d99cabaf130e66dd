//! Watches the start of the process from another thread. The start reads files on the main thread, and a file on a
//! mount that hangs would block it: without a log line, and without an answer to SIGTERM.
//!
//! After the start the main thread waits for signals itself, and reads files on other threads.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::signals::Signals;
use crate::files::refuse_pipe;

/// Time after which a start counts as slow.
const SLOW: Duration = Duration::from_secs(1);
/// Time for a file to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Interval of further log lines.
const AGAIN: Duration = Duration::from_secs(30);
/// Time for the last log lines to be written.
const LAST_LINES: Duration = Duration::from_millis(200);

/// A setting that names a file, and the file.
pub type FileOfSetting = (String, PathBuf);

/// The watch over a start. Ends when the start does, or when it is dropped.
pub struct Watchdog {
    started: oneshot::Sender<()>,
}

impl Watchdog {
    /// Starts to watch. Until the start is over, a signal to stop ends the process at once: nothing is served yet. If
    /// the start is slow, logs which of these files do not answer.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn start(files: Vec<FileOfSetting>) -> io::Result<Watchdog> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (started, ended) = oneshot::channel();
        let signals = {
            let _within = runtime.enter();
            Signals::new()?
        };
        thread::Builder::new().name("start".into()).spawn(move || runtime.block_on(watch(files, signals, ended)))?;
        Ok(Watchdog { started })
    }

    /// Ends the watch, because the start is over.
    pub fn started(self) {
        // An error means that the watch has ended already.
        let _ = self.started.send(());
    }
}

async fn watch(files: Vec<FileOfSetting>, mut signals: Signals, started: oneshot::Receiver<()>) {
    let probes = Probes { files, probe, unanswered: Arc::default() };
    let tell = async {
        let mut pause = SLOW;
        loop {
            sleep(pause).await;
            probes.start();
            sleep(ANSWER).await;
            for (setting, path) in probes.silent() {
                let file = path.display();
                tracing::warn!(setting, %file, "the start waits for a file that does not answer: does its mount hang?");
            }
            pause = AGAIN;
        }
    };
    let signal = tokio::select! {
        // An error means that the start has failed, which is logged.
        _ = started => return,
        signal = signals.next() => signal,
        never = tell => never,
    };
    tracing::warn!(signal, "ending before the start is over");
    sleep(LAST_LINES).await;
    std::process::exit(0);
}

/// Threads that read these files. A thread whose file hangs stays, so each path has one at most.
struct Probes {
    files: Vec<FileOfSetting>,
    probe: fn(&Path),
    unanswered: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Probes {
    /// Starts to read all files, except those whose last probe has not ended.
    fn start(&self) {
        for (_, path) in &self.files {
            if !self.unanswered.lock().insert(path.clone()) {
                continue;
            }
            let (probe, unanswered, probed) = (self.probe, Arc::clone(&self.unanswered), path.clone());
            let probe = move || {
                probe(&probed);
                unanswered.lock().remove(&probed);
            };
            if thread::Builder::new().name("probe".into()).spawn(probe).is_err() {
                self.unanswered.lock().remove(path);
            }
        }
    }

    /// Returns the files of which not even the first byte has been read.
    fn silent(&self) -> Vec<FileOfSetting> {
        let unanswered = self.unanswered.lock();
        self.files.iter().filter(|(_, path)| unanswered.contains(path)).cloned().collect()
    }
}

/// Reads the first byte of a file. Errors do not matter: whoever reads the file reports them.
fn probe(path: &Path) {
    let file = refuse_pipe(path).and_then(|()| File::open(path));
    let _ = file.and_then(|mut file| file.read(&mut [0]));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Held while the file hangs.
    static HANG: Mutex<()> = Mutex::new(());
    static PROBES: AtomicUsize = AtomicUsize::new(0);

    fn hanging(path: &Path) {
        if path.ends_with("hangs") {
            PROBES.fetch_add(1, Ordering::Relaxed);
            drop(HANG.lock());
        }
    }

    fn wait_for(probes: &Probes, silent: &[&str]) {
        let settings = || probes.silent().into_iter().map(|(setting, _)| setting).collect::<Vec<_>>();
        while settings() != silent {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_path_that_hangs_has_one_probe_until_it_answers() {
        let files = [("A", "hangs"), ("B", "answers"), ("C", "hangs")];
        let files = files.map(|(setting, path)| (setting.to_owned(), PathBuf::from(path))).to_vec();
        let probes = Probes { files, probe: hanging, unanswered: Arc::default() };
        let hang = HANG.lock();
        for _ in 0..3 {
            probes.start();
            wait_for(&probes, &["A", "C"]);
        }
        assert!(PROBES.load(Ordering::Relaxed) <= 1);
        drop(hang);
        wait_for(&probes, &[]);
        assert_eq!(PROBES.load(Ordering::Relaxed), 1);
        probes.start();
        wait_for(&probes, &[]);
        // The second file of the same path may be probed after the first has answered.
        assert!(PROBES.load(Ordering::Relaxed) >= 2);
    }
}
