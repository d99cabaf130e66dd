//! The link to Redis: connections kept ready, and the word whether Redis can be asked at all.
//!
//! A request never connects and never waits for a connection: either the link is up and the request goes out at once over a
//! shared connection, together with others, or the link is down and the request is told so at once. One task, the
//! keeper, looks after it: once a second, and whenever a request suspects something, it probes; when a probe fails the link is
//! down, and the keeper connects anew until a probe passes.
//!
//! So a Redis that is frozen costs requests two timeouts, the first request's and the probe's, until the link is known to be
//! down, and then nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, RedisError, pipe};
use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime};
use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

use super::{RedisConfig, script};
use crate::telemetry::Throttle;

/// How often the keeper probes a link that is up and that nobody suspects.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The least time between two probes, however many requests suspect something.
const PROBE_PAUSE: Duration = Duration::from_millis(20);
/// The first pause between two attempts to connect, and the longest.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How often a link that stays down is logged.
const REMINDER: Duration = Duration::from_secs(30);

/// Told whenever the link goes up or down.
pub type OnChange = Box<dyn Fn(bool) + Send + Sync>;

pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    /// `None` while the link is down.
    connections: ArcSwapOption<Connections>,
    suspicion: Notify,
}

/// Connections in use, by worker; the pool makes new ones only.
type Connections = Vec<OfWorker>;

/// The connections that live on the runtime of one worker.
struct OfWorker {
    ready: Vec<Connection>,
    next: AtomicUsize,
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error(transparent)]
    Worker(#[from] JoinError),
}

impl Link {
    /// Starts the keeper on this runtime, and waits for its first attempt to connect on those, whatever comes of it.
    pub(super) async fn start(
        config: RedisConfig,
        on_change: OnChange,
        runtimes: Vec<Handle>,
    ) -> Result<Link, RedisError> {
        let connection_config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.timeout))
            .set_response_timeout(Some(config.timeout));
        let manager = Manager::new_with_config(config.connection_info(), connection_config)?;
        let pool = Pool::builder(manager)
            .max_size(config.connections.div_ceil(runtimes.len()) * runtimes.len())
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.timeout))
            .create_timeout(Some(config.timeout))
            .recycle_timeout(Some(config.timeout))
            .build()
            .map_err(|error| RedisError::from(std::io::Error::other(error)))?;
        let shared = Arc::new(Shared { connections: ArcSwapOption::empty(), suspicion: Notify::new() });
        let tried = Arc::new(Notify::new());
        let keeper = Keeper {
            config,
            pool,
            runtimes,
            shared: Arc::clone(&shared),
            on_change,
            tried: Arc::clone(&tried),
            ups: Throttle::default(),
            downs: Throttle::default(),
        };
        let keeper = tokio::spawn(keeper.run());
        tried.notified().await;
        Ok(Link { shared, keeper })
    }

    /// A connection for this worker to ask over; `None` while Redis is known to be down.
    pub(super) fn connection(&self, worker: usize) -> Option<MultiplexedConnection> {
        let connections = self.shared.connections.load();
        let OfWorker { ready, next } = &connections.as_ref()?[worker];
        let turn = next.fetch_add(1, Ordering::Relaxed) % ready.len();
        Some(MultiplexedConnection::clone(&ready[turn]))
    }

    /// Redis is known to be down.
    pub(super) fn is_down(&self) -> bool {
        self.shared.connections.load().is_none()
    }

    /// Something went wrong with a request: the keeper shall look.
    pub(super) fn suspect(&self) {
        self.shared.suspicion.notify_one();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

struct Keeper {
    config: RedisConfig,
    pool: Pool,
    /// The workers': their connections live on them.
    runtimes: Vec<Handle>,
    shared: Arc<Shared>,
    on_change: OnChange,
    /// Told after the first attempt to connect.
    tried: Arc<Notify>,
    /// A link that goes up and down all the time does not fill the logs.
    ups: Throttle,
    downs: Throttle,
}

/// Since when Redis is down, and when that was last logged.
struct Down {
    since: Instant,
    told: Instant,
}

impl Down {
    fn now() -> Down {
        Down { since: Instant::now(), told: Instant::now() }
    }
}

impl Keeper {
    async fn run(self) {
        let mut down = None;
        loop {
            let connections = self.connect(&mut down).await;
            self.shared.connections.store(Some(Arc::clone(&connections)));
            (self.on_change)(true);
            self.tried.notify_one();
            if let Some(changes) = self.ups.admit() {
                let down_ms = down.map(|down: Down| down.since.elapsed().as_millis());
                tracing::info!(redis = %self.config, down_ms, changes, "redis is up: limits are decided there");
            }

            let error = self.watch(&connections).await;
            self.shared.connections.store(None);
            (self.on_change)(false);
            if let Some(changes) = self.downs.admit() {
                tracing::error!(redis = %self.config, %error, changes, "redis is down: each limit answers by its failure mode");
            }
            down = Some(Down::now());
            self.discard(connections);
        }
    }

    /// Connects until a probe passes over every connection.
    async fn connect(&self, down: &mut Option<Down>) -> Arc<Connections> {
        let mut pause = RETRY_PAUSE.0;
        loop {
            let error = match self.try_connect().await {
                Ok(connections) => return Arc::new(connections),
                Err(error) => error,
            };
            match down {
                None => {
                    tracing::error!(redis = %self.config, %error, "redis cannot be reached: each limit answers by its failure mode");
                    (self.on_change)(false);
                    self.tried.notify_one();
                    *down = Some(Down::now());
                }
                Some(down) if down.told.elapsed() > REMINDER => {
                    tracing::warn!(redis = %self.config, %error, "redis is still down");
                    down.told = Instant::now();
                }
                Some(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE.1);
        }
    }

    async fn try_connect(&self) -> Result<Connections, ProbeError> {
        let connections = try_join_all(self.runtimes.iter().map(|runtime| self.connect_on(runtime))).await?;
        if let Err(error) = self.probe(&connections).await {
            self.discard(Arc::new(connections));
            return Err(error);
        }
        Ok(connections)
    }

    /// The part of one worker: what drives a connection runs where it was made.
    async fn connect_on(&self, runtime: &Handle) -> Result<OfWorker, ProbeError> {
        let part = self.config.connections.div_ceil(self.runtimes.len());
        let pool = self.pool.clone();
        let ready = runtime.spawn(async move { try_join_all((0..part).map(|_| pool.get())).await }).await??;
        Ok(OfWorker { ready, next: AtomicUsize::new(0) })
    }

    /// Returns when a probe has failed.
    async fn watch(&self, connections: &Connections) -> ProbeError {
        loop {
            let _ = timeout(HEARTBEAT, self.shared.suspicion.notified()).await;
            if let Err(error) = self.probe(connections).await {
                return error;
            }
            sleep(PROBE_PAUSE).await;
        }
    }

    /// Asks for what a decision needs: the script, and a write.
    async fn probe(&self, connections: &Connections) -> Result<(), ProbeError> {
        let key = format!("{}|probe", self.config.key_prefix);
        let mut probe = pipe();
        probe.add_command(script::load()).cmd("SET").arg(key).arg(1).arg("PX").arg(1000);
        let probe = &probe;
        let ready = connections.iter().flat_map(|of_worker| &of_worker.ready);
        let probe =
            try_join_all(ready.map(|connection| async move {
                probe.exec_async(&mut MultiplexedConnection::clone(connection)).await
            }));
        match timeout(self.config.timeout, probe).await {
            Ok(result) => Ok(result.map(drop)?),
            Err(_) => Err(ProbeError::Timeout(self.config.timeout)),
        }
    }

    /// Closes connections for good: whatever was wrong with them, the pool shall not hand them out again.
    fn discard(&self, connections: Arc<Connections>) {
        if let Ok(connections) = Arc::try_unwrap(connections).map_err(drop) {
            connections.into_iter().flat_map(|of_worker| of_worker.ready).map(Connection::take).for_each(drop);
        }
    }
}
