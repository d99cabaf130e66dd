//! Logs: where they go, what they look like, and how often one failure is logged.
//!
//! Nothing waits for a log line. A thread writes them; while nobody reads standard error, lines beyond a bound are lost
//! and counted.

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
use tracing_subscriber::util::SubscriberInitExt as _;

use self::lines::Shortened;

pub use by_name::{Admitted, ThrottleByName};
pub use events::{Event, Events};
pub use levels::{LogLevels, LogLevelsError};
pub use throttle::Throttle;

/// So many lines may wait until they are written: 32 MiB where each is as long as it can be.
const WAITING_LINES: usize = 2_048;
/// How long the end of the process may wait for lines to be written: a little more than `tracing_appender` waits
/// itself.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For eyes.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

impl LogFormat {
    /// Both.
    pub const ALL: [LogFormat; 2] = [LogFormat::Text, LogFormat::Json];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// Logs that are being written. When this is dropped, what waits is written, unless that takes longer than 1.5 s.
#[must_use = "lines that wait are lost where nobody holds this"]
pub struct Logs {
    writer: Option<WorkerGuard>,
    lost: ErrorCounter,
    events: Events,
}

/// Sends logs to standard error from now on, those of panics among them.
pub fn init(levels: &LogLevels, format: LogFormat) -> Logs {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES).thread_name("logs");
    let (writer, guard) = builder.finish(io::stderr());
    let logs = Logs { lost: writer.error_counter(), writer: Some(guard), events: Events::default() };
    // On an error of its own it would write to standard error itself, and wait.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let (layer, targets) = (layer.with_writer(Shortened { format, writer }), levels.targets());
    // They are told whatever the log leaves out.
    let registry = tracing_subscriber::registry().with(logs.events.clone().with_filter(LevelFilter::INFO));
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(io::stderr().is_terminal()).with_filter(targets)).init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(targets)).init(),
    }
    panic::set_hook(Box::new(|panic| {
        // There is one where RUST_BACKTRACE asks for it.
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
    /// The last lines.
    pub fn events(&self) -> Events {
        self.events.clone()
    }

    /// Counts the lines that have been lost since the start.
    pub fn lost(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let lost = self.lost.clone();
        move || u64::try_from(lost.dropped_lines()).unwrap_or(u64::MAX)
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let writer = self.writer.take();
        let (written, all) = mpsc::channel::<()>();
        // Elsewhere, because it says so on standard output where it has waited in vain, and may wait for that.
        let flush = thread::Builder::new().name("flush".into()).spawn(move || {
            drop(writer);
            drop(written);
        });
        if flush.is_ok() {
            // Either way the process ends now.
            let _ = all.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}
