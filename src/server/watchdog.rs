//! Watches the start of the process from another thread. The start reads files on the main thread, and a file on a
//! mount that hangs would block it: without a log line, and without an answer to SIGTERM.
//!
//! After the start the main thread waits for signals itself, and reads files on other threads.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

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
    let tell = async {
        let mut pause = SLOW;
        loop {
            sleep(pause).await;
            for (setting, path) in silent(&files) {
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

/// Returns the files of which not even the first byte can be read in time.
fn silent(files: &[FileOfSetting]) -> Vec<FileOfSetting> {
    let (answers, answered) = mpsc::channel();
    for (place, (_, path)) in files.iter().enumerate() {
        let (path, answers) = (path.clone(), answers.clone());
        let probe = move || {
            probe(&path);
            // The receiver is gone if this took too long.
            let _ = answers.send(place);
        };
        // A thread that hangs stays: there are few files, and the process is of no use.
        let _ = thread::Builder::new().name("probe".into()).spawn(probe);
    }
    drop(answers);
    let mut silent: Vec<Option<&FileOfSetting>> = files.iter().map(Some).collect();
    let end = Instant::now() + ANSWER;
    while let Ok(place) = answered.recv_timeout(end.saturating_duration_since(Instant::now())) {
        silent[place] = None;
    }
    silent.into_iter().flatten().cloned().collect()
}

/// Reads the first byte of a file. Errors do not matter: whoever reads the file reports them.
fn probe(path: &Path) {
    let file = refuse_pipe(path).and_then(|()| File::open(path));
    let _ = file.and_then(|mut file| file.read(&mut [0]));
}
