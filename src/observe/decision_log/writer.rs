//! The thread that writes lines, and its bounded queue.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::file::RotatedFile;
use super::{Destination, Fate, OnLine};
use crate::telemetry::Throttle;

/// The most requests in the queue.
const WAITING_REQUESTS: usize = 8_192;
/// The most bytes of their lines.
const WAITING_BYTES: usize = 8 << 20;

/// A handle that sends lines to the thread.
pub(super) struct Writer {
    messages: Sender<Message>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The lines of one request, which are written together.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Text of the lines, each with a newline.
    bytes: Vec<u8>,
    pub(super) count: usize,
}

impl Lines {
    /// Adds a line without its newline.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
        self.count += 1;
    }
}

enum Message {
    Lines(Lines),
    /// Ends the thread, which replies when all preceding lines are written.
    End(oneshot::Sender<()>),
}

enum Output {
    Stdout(io::Stdout),
    File(RotatedFile),
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or if the system cannot create a thread.
    pub(super) fn start(destination: Destination, on_line: OnLine) -> io::Result<Writer> {
        let (messages, received) = mpsc::channel(WAITING_REQUESTS);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let output = match destination {
            Destination::Stdout => Output::Stdout(io::stdout()),
            Destination::File(rotation) => Output::File(RotatedFile::open(rotation)?),
        };
        let thread = Thread {
            output,
            on_line,
            waiting_bytes: Arc::clone(&waiting_bytes),
            errors: Throttle::default(),
            runtime: Handle::try_current().ok(),
        };
        thread::Builder::new().name("decisions".into()).spawn(move || thread.run(received))?;
        Ok(Writer { messages, waiting_bytes })
    }

    /// Queues the lines of a request. Returns `false` if the queue is full.
    pub(super) fn take(&self, lines: Lines) -> bool {
        let bytes = lines.bytes.len();
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_taken = before + bytes <= WAITING_BYTES && self.messages.try_send(Message::Lines(lines)).is_ok();
        if !is_taken {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Stops accepting lines, and waits for at most `most` until all queued lines are written. Returns `false` if that
    /// takes longer.
    pub(super) async fn end(&self, most: Duration) -> bool {
        let (end, ended) = oneshot::channel();
        let written = async {
            let _ = self.messages.send(Message::End(end)).await;
            let _ = ended.await;
        };
        timeout(most, written).await.is_ok()
    }
}

struct Thread {
    output: Output,
    on_line: OnLine,
    waiting_bytes: Arc<AtomicUsize>,
    errors: Throttle,
    /// Runtime for the throttle, which logs suppressed errors after a delay.
    runtime: Option<Handle>,
}

impl Thread {
    fn run(mut self, mut messages: Receiver<Message>) {
        while let Some(message) = messages.blocking_recv() {
            match message {
                Message::Lines(Lines { bytes, count }) => {
                    let fate = self.write(&bytes, messages.is_empty());
                    self.waiting_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                    (0..count).for_each(|_| (self.on_line)(fate));
                }
                Message::End(ended) => {
                    let _ = ended.send(());
                    return;
                }
            }
        }
    }

    fn write(&mut self, lines: &[u8], is_last: bool) -> Fate {
        let written = match &mut self.output {
            // Standard output buffers only text after the last newline.
            Output::Stdout(stdout) => stdout.write_all(lines),
            Output::File(file) => file.write(lines, is_last, Instant::now()),
        };
        let Err(error) = written else { return Fate::Written };
        let _within = self.runtime.as_ref().map(Handle::enter);
        self.errors.log((), move || move |times| tracing::error!(%error, times, "the decision log cannot be written"));
        Fate::Error
    }
}
