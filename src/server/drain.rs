//! The end: health turns, the ports close, what is being decided is answered, and Redis hears the last of it. Nothing
//! else is waited for.

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

/// All that runs.
pub(super) struct Running<S> {
    pub(super) settings: Settings,
    pub(super) serving: Serving,
    pub(super) rules: JoinHandle<anyhow::Result<Infallible>>,
    pub(super) grpc: JoinHandle<()>,
    pub(super) http: JoinHandle<()>,
    /// Tells HTTP to end.
    pub(super) stop: watch::Sender<bool>,
    pub(super) workers: Arc<Workers>,
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) store: Arc<S>,
}

impl<S: Store> Running<S> {
    /// Ends it. `false`: requests were not answered within the time for a shutdown.
    pub(super) async fn drain(self) -> anyhow::Result<bool> {
        // No load shall call it serving again.
        self.rules.abort();
        let _ = self.rules.await;
        // A process that nobody takes for serving has nobody to warn.
        if self.serving.drain().await {
            tokio::time::sleep(self.settings.listeners.drain_delay).await;
        }

        self.grpc.abort();
        let _ = self.grpc.await;
        self.stop.send_replace(true);
        let timeout = self.settings.listeners.shutdown_timeout;
        let limiter = self.limiter;
        tokio::spawn(async move {
            // A request that is delayed for longer is released before connections are closed.
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
