//! Logging: destination, format, and limits on repeated lines.
//!
//! No code waits for a log line. A separate thread writes the lines; if standard error blocks, lines beyond a bound are
//! lost and counted.

mod by_name;
mod events;
mod levels;
mod lines;
mod throttle;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::lines::Shortened;

pub use by_name::{Admitted, ThrottleByName};
pub use events::{Event, Events};
pub use levels::{LevelControl, LogLevels, LogLevelsError};
pub use throttle::Throttle;

/// Number of lines that may wait to be written: 32 MiB if each has the maximum length.
const WAITING_LINES: usize = 2_048;
/// Longest wait for lines to be written when the process ends: slightly longer than the timeout of `tracing_appender`.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Both formats.
    pub const ALL: [LogFormat; 2] = [LogFormat::Text, LogFormat::Json];

    /// Returns the name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// The running log. Dropping it writes the waiting lines, for at most 1.5 s.
#[must_use = "dropping this loses the lines that are queued"]
pub struct Logs {
    writer: Option<WorkerGuard>,
    lost: ErrorCounter,
    events: Events,
    levels: LevelControl,
}

/// Starts logging to standard error, including panics.
pub fn init(levels: &LogLevels, format: LogFormat) -> Logs {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).thread_name("logs");
    let (writer, guard) = builder.finish(io::stderr());
    let (targets, handle) = reload::Layer::new(levels.targets());
    let apply = move |levels: &LogLevels| {
        // Fails only if a thread panicked in it; the levels before then stay in force.
        let _ = handle.reload(levels.targets());
    };
    let levels = LevelControl::new(levels.clone(), apply);
    let logs = Logs { lost: writer.error_counter(), writer: Some(guard), events: Events::default(), levels };
    // If the layer logged its own errors, it would write to standard error directly and could block.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let layer = layer.with_writer(Shortened { format, writer });
    // Collects events from INFO up, regardless of the level of the log.
    let registry = tracing_subscriber::registry().with(logs.events.clone().with_filter(LevelFilter::INFO));
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(io::stderr().is_terminal()).with_filter(targets)).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(targets)).init(),
    }
    panic::set_hook(Box::new(|panic| {
        // A backtrace is captured only if RUST_BACKTRACE asks for it.
        let backtrace = Backtrace::capture();
        let trace = match backtrace.status() {
            BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        tracing::error!(thread = thread::current().name(), "{panic}{trace}");
    }));
    logs
}

impl Logs {
    /// Returns the latest lines.
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// Returns the control of the levels.
    pub fn levels(&self) -> LevelControl {
        self.levels.clone()
    }

    /// Returns a function that reads the number of lines lost since the start.
    pub fn lost(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let lost = self.lost.clone();
        move || u64::try_from(lost.dropped_lines()).unwrap_or(u64::MAX)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let writer = self.writer.take();
        let (written, all) = mpsc::channel::<()>();
        // On a separate thread, because the guard prints a message to standard output after its timeout, and may block
        // on that.
        let flush = thread::Builder::new().name("flush".into()).spawn(move || {
            drop(writer);
            drop(written);
        });
        if flush.is_ok() {
            // The process ends whether or not the lines were written in time.
            let _ = all.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}
