//! Sends the statistics named after `envoyproxy/ratelimit`'s to a statsd or DogStatsD server. A separate task sends the
//! increase since the previous flush every few seconds, and no request waits for it. An increase that the server does
//! not take stays counted and is part of the next flush.

mod connection;
mod lines;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::metrics::Metrics;
use crate::metrics::reference::Push;
use crate::supervise;
use crate::telemetry::Throttle;
use connection::Connection;
use lines::Lines;

pub use lines::{Dialect, Mogrifier};

/// Longest time that a server may take to connect and to accept all lines.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A statsd server and the protocol to use with it.
#[derive(Clone, Debug)]
pub struct StatsdConfig {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Transport of the lines.
    pub transport: Transport,
    /// Format of the lines.
    pub dialect: Dialect,
    /// Tags added to every line.
    pub extra_tags: Vec<(String, String)>,
    /// Interval between flushes.
    pub flush_interval: Duration,
}

/// Transport of lines to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One lasting connection.
    Tcp,
    /// Datagrams of several lines.
    Udp,
}

/// Handle of the task that sends.
pub struct Statsd {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Statsd {
    /// Starts the task.
    pub fn start(config: StatsdConfig, metrics: Arc<Metrics>) -> Statsd {
        metrics.push();
        let (stop, stopped) = watch::channel(false);
        let push = move || run(config.clone(), Push::new(Arc::clone(&metrics)), stopped.clone());
        Statsd { stop, task: supervise::spawn("statsd", push) }
    }

    /// Flushes once more and stops the task.
    pub async fn finish(self) {
        self.stop.send_replace(true);
        // After a panic, which is logged, the task may be waiting for its next start.
        let _ = timeout(2 * TIMEOUT, self.task).await;
    }
}

async fn run(config: StatsdConfig, mut push: Push, mut stopped: watch::Receiver<bool>) {
    let mut ticks = interval_at(Instant::now() + config.flush_interval, config.flush_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let failures = <Throttle>::default();
    let lines = Lines::new(config.dialect, config.extra_tags);
    let mut connection = Connection::new(config.transport, config.host, config.port);
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            // An error means that the sender is gone: the process is ending.
            _ = stopped.wait_for(|stopped| *stopped) => true,
        };
        if let Err(error) = connection.flush(&mut push, &lines, Instant::now() + TIMEOUT).await {
            let server = connection.to_string();
            failures.log((), || {
                move |times| {
                    tracing::warn!(%error, server, times, "cannot send statistics: they are kept and sent later");
                }
            });
        }
        if is_last {
            failures.flush();
            return;
        }
    }
}
