//! Shutdown: health turns to not serving, the ports close, calls in progress are answered, and the last writes are sent
//! to Redis. Shutdown waits for nothing else.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::announce::Serving;
use super::workers::Workers;
use crate::limiter::Limiter;
use crate::settings::Settings;
use crate::store::Store;

/// All parts of the running process.
pub(super) struct Running<S> {
    pub(super) settings: Settings,
    pub(super) serving: Serving,
    pub(super) rules: JoinHandle<anyhow::Result<Infallible>>,
    pub(super) grpc: JoinHandle<()>,
    pub(super) http: JoinHandle<()>,
    /// Tells HTTP to stop.
    pub(super) stop: watch::Sender<bool>,
    pub(super) workers: Arc<Workers>,
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) store: Arc<S>,
}

impl<S: Store> Running<S> {
    /// Shuts down. Returns `false` if some requests were not answered within the timeout of a shutdown.
    pub(super) async fn drain(self) -> anyhow::Result<bool> {
        // A load that ended now would announce the process as serving again.
        self.rules.abort();
        let _ = self.rules.await;
        // If the process was not healthy, clients do not call it, and none needs time to leave.
        if self.serving.drain().await {
            tokio::time::sleep(self.settings.listeners.drain_delay).await;
        }

        self.grpc.abort();
        let _ = self.grpc.await;
        self.stop.send_replace(true);
        let timeout = self.settings.listeners.shutdown_timeout;
        let limiter = self.limiter;
        tokio::spawn(async move {
            // Requests that are delayed beyond this time are released before their connections are closed.
            tokio::time::sleep(timeout / 10 * 9).await;
            limiter.release_delayed();
        });
        let finished = tokio::time::timeout(timeout, async { tokio::join!(self.workers.drain(), self.http) }).await;
        self.store.close(Instant::now() + self.settings.store.redis_timeout).await;
        match finished {
            Ok(((), http)) => http.map(|()| true).context("the HTTP port"),
            Err(_) => Ok(false),
        }
    }
}
