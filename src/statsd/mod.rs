//! Sends the statistics that have `envoyproxy/ratelimit`'s names to a statsd or DogStatsD server: what has been counted
//! since the last time, every few seconds, on a task of its own. No request waits for it. What a server does not take
//! stays where it is counted, and goes with the next.

mod connection;
mod lines;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::metrics::Metrics;
use crate::metrics::reference::Push;
use crate::telemetry::Throttle;
use connection::Connection;
use lines::Lines;

pub use lines::{Dialect, Mogrifier};

/// The longest that a server may take to connect and to take all lines.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A server, and how to speak to it.
#[derive(Clone, Debug)]
pub struct StatsdConfig {
    /// An address or a name.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How lines get there.
    pub transport: Transport,
    /// How they read.
    pub dialect: Dialect,
    /// Tags of every line.
    pub extra_tags: Vec<(String, String)>,
    /// How often it is sent what is new.
    pub flush_interval: Duration,
}

/// How lines get to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One connection, which stays.
    Tcp,
    /// Datagrams of several lines.
    Udp,
}

/// The task that sends.
pub struct Statsd {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Statsd {
    /// Sends from now on.
    pub fn start(config: StatsdConfig, metrics: Arc<Metrics>) -> Statsd {
        let (stop, stopped) = watch::channel(false);
        Statsd { stop, task: tokio::spawn(run(config, Push::new(metrics), stopped)) }
    }

    /// Sends for the last time, and ends.
    pub async fn finish(self) {
        self.stop.send_replace(true);
        // A task that has panicked has said so.
        let _ = self.task.await;
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
            // An error means that nobody is there to stop it: the process ends.
            _ = stopped.wait_for(|stopped| *stopped) => true,
        };
        if let Err(error) = connection.flush(&mut push, &lines, Instant::now() + TIMEOUT).await {
            let server = connection.to_string();
            failures.log((), || move |times| {
                tracing::warn!(%error, server, times, "cannot send statistics: they are kept, and sent when it works");
            });
        }
        if is_last {
            failures.flush();
            return;
        }
    }
}
