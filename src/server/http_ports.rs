//! The parts of the HTTP ports that the settings turn on, and the ports themselves.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::{options, tokens};
use crate::grpc::Service;
use crate::http::console::data::RedisHistory;
use crate::http::{self, Admin, Console, JsonApi};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::observe::Observing;
use crate::observe::history::History;
use crate::settings::Settings;
use crate::shared::adjustment::Adjustments;
use crate::shared::fleet::Fleet;
use crate::shared::usage::UsageStore;
use crate::spans::Spans;
use crate::store::Store;
use crate::supervise;
use crate::survey::{Local, Survey};
use crate::telemetry::Events;
use crate::wire::json::Mapping;

/// Largest number of open connections to the debug port; the oldest is closed for a new one.
const DEBUG_CONNECTIONS: usize = 8;

/// Largest number of open connections to the statistics port. Prometheus uses one or two.
const STATISTICS_CONNECTIONS: usize = 16;

/// The state that several parts share.
pub(super) struct Parts<'p, S> {
    pub(super) settings: &'p Settings,
    pub(super) limiter: &'p Arc<Limiter<S>>,
    pub(super) metrics: &'p Arc<Metrics>,
    pub(super) spans: &'p Spans,
}

impl<S: Store> Parts<'_, S> {
    /// Returns `/json`, which decides on a worker's runtime; `None` if `JSON_API` is off.
    pub(super) fn json(&self, runtime: Handle) -> anyhow::Result<Option<JsonApi<S>>> {
        if !self.settings.listeners.json_api {
            return Ok(None);
        }
        let (limiter, metrics) = (Arc::clone(self.limiter), Arc::clone(self.metrics));
        let service = Service::new(limiter, metrics, options::service(self.settings)).traced(self.spans.clone());
        let most_bytes = self.settings.requests.max_message_bytes as usize;
        Ok(Some(JsonApi::new(service, runtime, most_bytes, Mapping::new()?)))
    }

    /// Starts recording the last fifteen minutes for the console; `None` if `CONSOLE` or the administrators' paths are
    /// off.
    pub(super) fn history(&self) -> Option<Arc<History>> {
        if !self.settings.listeners.console || !self.settings.listeners.admin_api {
            return None;
        }
        let history = Arc::new(History::default());
        let (followed, metrics) = (Arc::clone(&history), Arc::clone(self.metrics));
        supervise::spawn("console history", move || {
            let follow = Arc::clone(&followed).follow(Arc::clone(&metrics));
            async move { match follow.await {} }
        });
        Some(history)
    }

    /// Returns the routes for administrators, whose decisions run on a worker's runtime; `None` without a token.
    pub(super) fn admin(
        &self,
        runtime: Handle,
        (adjustments, fleet): (Arc<Adjustments<S>>, Arc<Fleet<S>>),
        usage: UsageStore,
        (observing, history, events): (&Observing, Option<Arc<History>>, Events),
    ) -> anyhow::Result<Option<Admin<S>>> {
        let listeners = &self.settings.listeners;
        // Before the file is read, to miss no change in between.
        let watched = tokens::watched(listeners);
        let Some(given) = listeners.admin_tokens()? else { return Ok(None) };
        tokens::tell(listeners, &given);
        let limiter = (Arc::clone(self.limiter), runtime);
        let local = Local {
            metrics: Some(Arc::clone(self.metrics)),
            heavy_hitters: observing.heavy_hitters.clone(),
            history,
            what_if: observing.what_if.clone(),
            candidates: observing.candidates.clone(),
            events: Some(events),
        };
        let survey = Survey::new(Arc::clone(&fleet), local);
        let (timeout, metrics) = (self.settings.store.redis_timeout, self.metrics.admin()?);
        let admin = Admin::new(limiter, (adjustments, fleet, survey), usage, (&given, metrics.clone()), timeout);
        if let Some(watched) = watched {
            tokens::keep(listeners.clone(), watched, (admin.clients(), metrics));
        }
        let admin = admin.answering_to(listeners.admin_hosts.clone().unwrap_or_default());
        let admin = admin.reading(options::reading(self.settings)).promoting(options::promotion(self.settings));
        Ok(Some(admin.observing(observing.clone()).showing(self.settings.decisions.reader_values()?)))
    }

    /// Returns the console with this history, and starts recording that of Redis; `None` if `CONSOLE` is off.
    pub(super) fn console(
        &self,
        (history, redis_history): (Option<Arc<History>>, Arc<RedisHistory>),
        events: Events,
        (store, grpc, grpc_tls): (&str, String, bool),
    ) -> anyhow::Result<Option<Console>> {
        let Some(history) = history else { return Ok(None) };
        let redis = self.settings.store.redis()?;
        if redis.is_some() {
            let (followed, metrics) = (Arc::clone(&redis_history), Arc::clone(self.metrics));
            supervise::spawn("redis history", move || {
                let follow = Arc::clone(&followed).follow(Arc::clone(&metrics));
                async move { match follow.await {} }
            });
        }
        let about = http::About {
            store: store.to_owned(),
            redis: redis.map(|redis| (redis, redis_history)),
            shadow_mode: self.settings.deciding.shadow_mode,
            grpc,
            grpc_tls,
        };
        Ok(Some(Console::new(history, events, about)))
    }

    /// Serves the debug port, if there is one, until `stop` is set.
    pub(super) fn serve_debug(&self, port: Option<TcpListener>, stop: &watch::Receiver<bool>) {
        if let Some(port) = port {
            let router = http::debug_router(Arc::clone(self.limiter), Arc::clone(self.metrics));
            serve(port, router, DEBUG_CONNECTIONS, stop.clone());
        }
    }

    /// Serves the statistics port, if there is one, until `stop` is set.
    pub(super) fn serve_statistics(&self, port: Option<TcpListener>, stop: &watch::Receiver<bool>) {
        let statistics = &self.settings.statistics;
        let Some(port) = port else { return };
        if let Some(path) = statistics.missing_mapping() {
            tracing::warn!(
                path = %path.display(),
                "the file of PROMETHEUS_MAPPER_YAML does not exist: using the built-in names"
            );
        }
        let router = http::statistics_router(&statistics.prometheus_path, Arc::clone(self.metrics));
        serve(port, router, STATISTICS_CONNECTIONS, stop.clone());
    }
}

/// Serves a port with at most so many connections, until `stop` is set or its sender is gone.
pub(super) fn serve(
    port: TcpListener,
    router: axum::Router,
    connections: usize,
    mut stop: watch::Receiver<bool>,
) -> JoinHandle<()> {
    tokio::spawn(http::serve(port, router, Arc::new(Semaphore::new(connections)), async move {
        let _ = stop.wait_for(|stop| *stop).await;
    }))
}
