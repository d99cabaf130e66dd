//! The link to one node of Redis: a set of connections, which fail and recover separately.
//!
//! A request never connects and never waits for a connection. Either the worker's calls are sent at once over an
//! existing connection, or the breaker is open and the request fails at once. Each connection has a keeper, which
//! makes, checks and replaces it.
//!
//! Silence means a fault of Redis: a reply that is outstanding for [`RedisConfig::timeout`], counting only time in
//! which this process ran. A caller with an early deadline does not make a connection suspect, and neither does a
//! counter that Redis cannot read.
//!
//! A silent connection is suspect: calls go over other connections, if there are any, while its keeper checks it and
//! makes another one in parallel. The one that answers first serves. A frozen Redis therefore costs requests two
//! timeouts, one until a connection is suspect and one until the checks have failed, and nothing after that.

mod breaker;
mod confirmations;
pub(crate) mod connection;
pub(crate) mod inspection;
mod keeper;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use deadpool::Runtime;
use deadpool::managed::Pool;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, timeout_at};

use self::breaker::Breaker;
use self::confirmations::Confirmations;
use self::connection::{Confirmation, Connection, Fault, Silence, reason};
use self::inspection::Inspection;
use self::keeper::Keeper;
use crate::engine::check::StoreError;
use crate::store::health::OnChange;
use crate::store::redis::doctor::StartError;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::script::own_counters::OwnCounters;
use crate::store::redis::script::{self, Reply};
use crate::store::redis::topology::Dialer;
use crate::store::redis::topology::config::RedisConfig;
use crate::telemetry::Throttle;

/// The connections to a Redis, and their keepers.
pub(crate) struct Link {
    shared: Arc<Shared>,
    keepers: Vec<AbortHandle>,
    /// For each worker the connection for calls that a replica must acknowledge, once it is needed.
    durable: Vec<OnceLock<Durable>>,
    confirmations: Confirmations,
    runtimes: Vec<Handle>,
}

/// The keeper of a connection for calls that a replica must acknowledge, and whether it has tried to connect.
struct Durable {
    keeper: AbortHandle,
    tried: watch::Receiver<bool>,
}

/// The state that the keepers share.
pub(crate) struct Shared {
    pub(crate) config: RedisConfig,
    /// Makes connections; lost connections are not returned to it.
    pub(crate) pool: Pool<Dialer>,
    /// The connections that serve or are suspect: the same number for each worker, one worker after the other, followed
    /// by one durable connection for each worker.
    pub(crate) places: Vec<ArcSwapOption<Connection>>,
    pub(crate) for_each_worker: usize,
    pub(crate) breaker: Breaker,
    /// Throttles log lines about damaged counters.
    damage: Throttle,
    pub(crate) inspection: Inspection,
    /// Makes all keepers check their connections.
    pub(crate) doubts: watch::Sender<()>,
    /// The counter used by checks of a connection.
    own: Arc<ArcSwap<OwnCounters>>,
    /// Number of times the scripts have been loaded, and the lock for loading them.
    pub(crate) loads: AtomicU64,
    pub(crate) loading: Mutex<()>,
    /// The lock for making a connection in parallel with a suspect one.
    pub(crate) replacing: Mutex<()>,
}

impl Link {
    /// Starts the keepers on these runtimes, and waits until each has tried to connect once, successfully or not. In a
    /// cluster, `slot` is one of the node's slots.
    ///
    /// # Errors
    /// If no attempt is possible, or if one has found that limits could never hold.
    pub(crate) async fn start(
        config: RedisConfig,
        dialer: Dialer,
        slot: Option<u16>,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Link, StartError> {
        let own = Arc::new(ArcSwap::from_pointee(OwnCounters::new(&config.key_prefix, slot)?));
        let for_each_worker = config.connections.div_ceil(runtimes.len());
        let (connections, workers) = (for_each_worker * runtimes.len(), runtimes.len());
        let shared = Arc::new(Shared {
            places: (0..connections + workers).map(|_| ArcSwapOption::empty()).collect(),
            for_each_worker,
            breaker: Breaker::new(config.to_string(), connections, on_change),
            damage: Throttle::default(),
            doubts: watch::Sender::new(()),
            inspection: Inspection::new(config.clone(), Arc::clone(dialer.access()), Arc::clone(&own)),
            // Twice as many, since a connection and its replacement may exist at the same time.
            pool: pool(dialer, config.timeout, (connections + workers) * 2)?,
            own,
            loads: AtomicU64::new(0),
            loading: Mutex::new(()),
            replacing: Mutex::new(()),
            config,
        });
        let (tried, mut all_tried) = mpsc::channel(1);
        let keeper = |place| {
            let keeper = Keeper::new(Arc::clone(&shared), place, tried.clone());
            runtimes[place / for_each_worker].spawn(keeper.run()).abort_handle()
        };
        let keepers = (0..connections).map(keeper).collect();
        drop(tried);
        let durable = (0..workers).map(|_| OnceLock::new()).collect();
        let confirmations = Confirmations::new();
        let link = Link { shared, keepers, durable, confirmations, runtimes: runtimes.to_vec() };
        match all_tried.recv().await {
            Some(cause) => Err(StartError::Unfit { redis: link.shared.config.to_string(), cause }),
            None => Ok(link),
        }
    }

    /// Returns an error if Redis is known to be down.
    ///
    /// # Errors
    /// If the breaker is open.
    pub(crate) fn admit(&self) -> Result<(), StoreError> {
        if self.shared.breaker.is_open() { Err(self.down()) } else { Ok(()) }
    }

    /// Returns the error for a request that cannot be sent.
    pub(crate) fn down(&self) -> StoreError {
        let cause = self.shared.breaker.cause();
        StoreError::Down(if cause.is_empty() { "its connection is being made".into() } else { cause })
    }

    /// Moves Tollgate's own counter to this slot, which is one of the node's slots.
    pub(crate) fn move_own(&self, slot: u16) {
        if self.shared.own.load().slot != Some(slot)
            && let Ok(own) = OwnCounters::new(&self.shared.config.key_prefix, Some(slot))
        {
            self.shared.own.store(Arc::new(own));
        }
    }

    /// Notes that a call with this many requests has been sent.
    pub(crate) fn note_call(&self, requests: usize) {
        self.shared.config.on_call.tell(requests);
    }

    /// Logs and counts counters that were damaged and were decided as fresh ones.
    pub(super) fn note_damaged(&self, names: Vec<Vec<u8>>) {
        if names.is_empty() {
            return;
        }
        self.shared.config.on_call.tell_of_damaged(names.len());
        for name in names {
            // The name holds descriptor values, which may be logged only at `debug`.
            let hash = blake3::hash(&name).to_hex();
            tracing::debug!(counter = %String::from_utf8_lossy(&name), %hash, "this counter was damaged");
            self.shared.damage.log((), || {
                move |times| {
                    tracing::info!(%hash, times, "damaged counters were treated as new ones; this is one of them")
                }
            });
        }
    }

    /// Returns how a durable charge over this connection must be confirmed.
    ///
    /// # Errors
    /// If the connection leads to a previous master. Replicas that still follow it would confirm what is lost.
    pub(crate) fn confirmation(&self, connection: &Connection) -> Result<Confirmation, Fault> {
        let dialer = self.shared.pool.manager();
        // Before the master is read: both change at once.
        let replicas = dialer.confirming();
        if let Some(why) = dialer.moved_from(connection.place()) {
            return Err(Fault::Lost(why));
        }
        // Half of the timeout, so that waiting for replicas is not mistaken for silence.
        Ok(Confirmation { replicas, within: self.confirmations.within(self.timeout() / 2) })
    }

    /// Notes whether replicas confirmed a durable charge.
    pub(crate) fn note_confirmation(&self, is_confirmed: bool) {
        self.confirmations.note(is_confirmed);
    }

    /// Returns whether a Sentinel reports a failover of this node whose new master is not named yet.
    pub(crate) fn is_failing_over(&self) -> bool {
        self.shared.pool.manager().is_failing_over()
    }

    /// Returns how long a reply may be outstanding.
    pub(crate) fn timeout(&self) -> Duration {
        self.shared.config.timeout
    }

    /// Returns a connection for the calls of this worker: preferably one that serves and belongs to the worker. Returns
    /// a suspect connection only if none serves.
    pub(crate) fn choose(&self, worker: usize) -> Option<Arc<Connection>> {
        let all = self.shared.places.len() - self.durable.len();
        self.find(worker, all, Connection::serves).or_else(|| self.find(worker, all, Connection::is_usable))
    }

    /// Returns one of this worker's own connections that serves.
    pub(crate) fn own(&self, worker: usize) -> Option<Arc<Connection>> {
        self.find(worker, self.shared.for_each_worker, Connection::serves)
    }

    /// Returns this worker's connection for calls that a replica must acknowledge.
    pub(crate) fn choose_durable(&self, worker: usize) -> Option<Arc<Connection>> {
        let place = &self.shared.places[self.shared.durable_place(worker)];
        place.load_full().filter(|connection| connection.is_usable())
    }

    /// Makes this worker's connection for calls that a replica must acknowledge, unless it was made before. Waits until
    /// the first attempt has ended, or until the deadline.
    pub(crate) async fn make_durable(&self, worker: usize, deadline: Instant) {
        let Durable { tried, .. } = self.durable[worker].get_or_init(|| {
            let (first, mut all_tried) = mpsc::channel(1);
            let (is_tried, tried) = watch::channel(false);
            let keeper = Keeper::new(Arc::clone(&self.shared), self.shared.durable_place(worker), first);
            self.runtimes[worker].spawn(async move {
                all_tried.recv().await;
                is_tried.send_replace(true);
            });
            Durable { keeper: self.runtimes[worker].spawn(keeper.run()).abort_handle(), tried }
        });
        if !*tried.borrow() {
            let mut tried = tried.clone();
            // If this is too late, the caller finds no connection.
            let _ = timeout_at(deadline, tried.wait_for(|tried| *tried)).await;
        }
    }

    /// Returns the first matching connection among this many places, starting with the worker's own.
    fn find(&self, worker: usize, count: usize, is: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        let Shared { places: all, for_each_worker, .. } = &*self.shared;
        let places = (0..count).map(|place| (worker * for_each_worker + place) % (all.len() - self.durable.len()));
        places.filter_map(|place| all[place].load_full()).find(|connection| is(connection))
    }

    /// Returns how often the scripts have been loaded.
    pub(crate) fn loads(&self) -> u64 {
        self.shared.loads.load(Ordering::Relaxed)
    }

    /// Loads the scripts, unless another call has loaded them since `loads` was read.
    pub(crate) async fn load(&self, connection: &Connection, loads: u64) -> Result<(), Fault> {
        self.shared.load(connection, loads).await
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        self.shared.breaker.flush_log();
        self.shared.damage.flush();
    }

    /// Notes that a call over this connection has failed.
    pub(crate) fn note(&self, connection: &Connection, fault: &Fault) {
        self.shared.note(connection, fault);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let durable = self.durable.iter().filter_map(OnceLock::get).map(|durable| &durable.keeper);
        self.keepers.iter().chain(durable).for_each(AbortHandle::abort);
    }
}

fn pool(dialer: Dialer, timeout: Duration, size: usize) -> Result<Pool<Dialer>, StartError> {
    let pool = Pool::builder(dialer)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .build();
    pool.map_err(StartError::new)
}

impl Shared {
    fn durable_place(&self, worker: usize) -> usize {
        self.places.len() - self.places.len() / (self.for_each_worker + 1) + worker
    }

    /// Returns the worker that owns the runtime of the connection at this place.
    pub(crate) fn worker_of(&self, place: usize) -> usize {
        let durable = self.durable_place(0);
        place.checked_sub(durable).unwrap_or(place / self.for_each_worker)
    }

    /// Notes that a call over this connection has failed.
    pub(crate) fn note(&self, connection: &Connection, fault: &Fault) {
        match fault {
            Fault::Silent(_) => {
                connection.set_suspect(true);
                self.doubts.send_replace(());
            }
            Fault::Lost(cause) => connection.lose(cause),
            Fault::Refused(_) | Fault::NoScript | Fault::Answer | Fault::Connect(_) => connection.note_refusal(),
            // Redis has answered.
            Fault::Elsewhere(_) | Fault::Unheard { .. } => connection.note_answer(),
        }
    }

    async fn load(&self, connection: &Connection, loads: u64) -> Result<(), Fault> {
        let silent_loads = connection.silent_loads();
        let _one_at_a_time = self.loading.lock().await;
        if self.loads.load(Ordering::Relaxed) != loads {
            return Ok(());
        }
        // While this call waited for the lock, another call tried to load over this connection, and Redis was silent.
        if connection.silent_loads() != silent_loads {
            return Err(Fault::Silent(Silence { within: self.config.timeout, late: Duration::ZERO }));
        }
        let loaded = connection.load(self.config.address.is_cluster(), self.config.timeout).await;
        match &loaded {
            Ok(()) => drop(self.loads.fetch_add(1, Ordering::Relaxed)),
            Err(Fault::Silent(_)) => connection.note_silent_load(),
            Err(_) => {}
        }
        loaded
    }

    /// Tests whether Redis answers over this connection and executes everything that a decision needs.
    pub(crate) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        match self.decide(connection).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.inspection.name_rights(connection, fault).await),
        }
    }

    /// Decides a check of Tollgate's own counter over this connection.
    async fn decide(&self, connection: &Connection) -> Result<(), Fault> {
        let own = self.own.load_full();
        let ask = || connection.send(script::call([&own.check])).wait(self.config.timeout);
        let loads = self.loads.load(Ordering::Relaxed);
        let reply = match ask().await {
            Err(Fault::NoScript) => {
                self.load(connection, loads).await?;
                ask().await?
            }
            // The slot has moved away. The answer is as good as a decision, since the node may still have other slots.
            Err(Fault::Elsewhere(_)) if own.slot.is_some() => return Ok(()),
            Err(Fault::Elsewhere(_)) => return Err(Fault::Refused(Cause::Cluster)),
            reply => reply?,
        };
        match Reply::new(&reply, 1).and_then(|mut reply| reply.next(&own.check)) {
            Ok(_) => Ok(()),
            // If Redis is not the cause, another client has written to the counter.
            Err(StoreError::Counter(failure)) => {
                Cause::known(reason(&failure)).map_or(Ok(()), |cause| Err(Fault::Refused(cause)))
            }
            Err(_) => Err(Fault::Answer),
        }
    }
}
