//! The running process and its shutdown: health turns to not serving, the ports close, calls in progress are answered,
//! and the last writes are sent to Redis. Shutdown waits for nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::announce::Serving;
use super::signals::Signals;
use super::workers::Workers;
use crate::limiter::Limiter;
use crate::metrics::statsd::Statsd;
use crate::notify::Notifier;
use crate::observe::decision_log::DecisionLog;
use crate::settings::Settings;
use crate::shared::adjustment::audit::Audit;
use crate::shared::fleet::Fleet;
use crate::shared::seats::Seats;
use crate::spans::Exporting;
use crate::store::Store;

/// All parts of the running process.
pub(super) struct Running<S> {
    pub(super) settings: Settings,
    pub(super) serving: Serving,
    pub(super) rules: JoinHandle<anyhow::Result<Infallible>>,
    pub(super) ports: Ports,
    pub(super) workers: Arc<Workers>,
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) store: Arc<S>,
    /// `None` without Redis.
    pub(super) seats: Option<Arc<Seats<S>>>,
    pub(super) fleet: Arc<Fleet<S>>,
    pub(super) last: Last,
}

/// The tasks of the ports.
pub(super) struct Ports {
    pub(super) grpc: JoinHandle<()>,
    pub(super) http: JoinHandle<()>,
    /// Tells HTTP to stop.
    pub(super) stop: watch::Sender<bool>,
}

/// The parts that send something after the last request.
pub(super) struct Last {
    /// `None` if tracing is off.
    pub(super) exporting: Option<Exporting>,
    /// `None` if the decision log is off.
    pub(super) decision_log: Option<Arc<DecisionLog>>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) statsd: Option<Statsd>,
    pub(super) audit: Arc<Audit>,
}

/// Time limit for the collector to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Time limit for writing the last lines of the decision log.
const LAST_DECISIONS: Duration = Duration::from_secs(2);

/// Time limit for telling the last notices.
const LAST_NOTICES: Duration = Duration::from_secs(2);

/// Time limit for the store to take the last records of the audit trail.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// The error when a worker thread ends: its connections are gone, and new ones would not be served.
const WORKER_LOST: &str = "a worker thread has panicked, see above";

impl<S: Store> Running<S> {
    /// Serves until a signal, and drains. A second signal ends the process at once.
    ///
    /// # Errors
    /// If a part that the process needs has ended.
    pub(super) async fn until_signal(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = self.workers.lost() => bail!(WORKER_LOST),
            // The task returns only if the first rules are wrong.
            ended = &mut self.rules => match ended?? {},
            // Neither port's task ends by itself.
            ended = &mut self.ports.grpc => bail!("the gRPC port no longer accepts connections: {ended:?}"),
            ended = &mut self.ports.http => bail!("the HTTP port no longer accepts connections: {ended:?}"),
        };
        let first = Instant::now();
        tracing::info!(signal, drain = ?self.settings.listeners.drain_delay, "draining");
        let timeout = self.settings.listeners.shutdown_timeout;
        let (workers, limiter) = (Arc::clone(&self.workers), Arc::clone(&self.limiter));
        tokio::select! {
            answered = self.drain() => {
                limiter.flush_log();
                match answered? {
                    true => tracing::info!("all requests are answered, exiting"),
                    false => tracing::warn!(after = ?timeout, "closing connections that are still open"),
                }
            }
            signal = signals.after(first) => {
                limiter.flush_log();
                tracing::warn!(signal, "second signal: exiting immediately");
            }
            () = workers.lost() => bail!(WORKER_LOST),
        }
        Ok(())
    }

    /// Shuts down. Returns `false` if some requests were not answered within the timeout of a shutdown.
    async fn drain(self) -> anyhow::Result<bool> {
        let Running { settings, serving, rules, ports, workers, limiter, store, seats, fleet, last } = self;
        let Ports { grpc, http, stop } = ports;
        let (begin, flushing) = (Instant::now(), last.exporting.as_ref().map(Exporting::flush));
        // A load that ended now would announce the process as serving again.
        rules.abort();
        let _ = rules.await;
        // If the process was not healthy, clients do not call it, and none needs time to leave.
        if serving.drain().await {
            tokio::time::sleep(settings.listeners.drain_delay).await;
        }

        grpc.abort();
        let _ = grpc.await;
        stop.send_replace(true);
        let timeout = settings.listeners.shutdown_timeout;
        tokio::spawn(async move {
            // Requests that are delayed beyond this time are released before their connections are closed.
            tokio::time::sleep(timeout / 10 * 9).await;
            limiter.release_delayed();
        });
        let finished = tokio::time::timeout(timeout, async { tokio::join!(workers.drain(), http) }).await;
        store.close(Instant::now() + settings.store.redis_timeout).await;
        if let Some(seats) = seats {
            seats.leave().await;
        }
        fleet.leave().await;
        last.finish(flushing, begin.elapsed()).await;
        match finished {
            Ok(((), http)) => http.map(|()| true).context("the HTTP port"),
            Err(_) => Ok(false),
        }
    }
}

impl Last {
    /// Sends the last spans and notices and writes the last lines of the decision log and of the audit trail, at the
    /// same time, and then sends the last statistics. `flushing` sends the spans of before the drain, which took the
    /// time `drained`: a collector that has not answered since then gets no more time.
    async fn finish(self, flushing: Option<JoinHandle<()>>, drained: Duration) {
        let last_spans = async {
            if let Some(exporting) = self.exporting {
                let answers = flushing.is_some_and(|flushing| flushing.is_finished());
                let timeout = if answers { LAST_SPANS } else { LAST_SPANS.saturating_sub(drained) };
                exporting.end(timeout).await;
            }
        };
        let last_decisions = async {
            if let Some(decision_log) = &self.decision_log {
                decision_log.end(LAST_DECISIONS).await;
            }
        };
        let last_notices = self.notifier.end(LAST_NOTICES);
        tokio::join!(last_spans, last_decisions, last_notices, self.audit.finish(LAST_RECORDS));
        if let Some(statsd) = self.statsd {
            statsd.finish().await;
        }
    }
}
