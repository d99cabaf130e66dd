//! The link to a node of Redis: its connections, each of which stands for itself.
//!
//! A request never connects and never waits for a connection: the worker's calls go out at once over one that is there,
//! or the breaker is open and the request fails at once. Each connection has a keeper, which makes it, checks it
//! and makes it anew.
//!
//! Silence is Redis's own: a reply that is outstanding for [`RedisConfig::timeout`], in time in which this process ran.
//! A caller in a hurry is no reason to suspect anything, nor is a counter that Redis cannot read.
//!
//! A silent connection is suspect: calls go over others where there are any, while its keeper checks it and makes
//! another beside it. The one that answers first serves. So a frozen Redis costs requests two timeouts, one until a
//! connection is suspect and one until the checks have failed, and then nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use deadpool::Runtime;
use deadpool::managed::Pool;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, timeout_at};

use super::breaker::Breaker;
use super::cause::Cause;
use super::connection::{Connection, Fault, reason};
use super::inspection::Inspection;
use super::keeper::Keeper;
use super::own::Own;
use super::script::{self, Reply};
use super::topology::Dialer;
use super::{OnChange, RedisConfig, StartError};
use crate::store::StoreError;

/// The connections to a Redis, and their keepers.
pub(super) struct Link {
    shared: Arc<Shared>,
    keepers: Vec<AbortHandle>,
    /// Of connections for what a replica is to hear of, one for each worker, once they are needed.
    durable: Vec<OnceLock<Durable>>,
    runtimes: Vec<Handle>,
}

/// The keeper of a connection for what a replica is to hear of, and whether it has tried to make it.
struct Durable {
    keeper: AbortHandle,
    tried: watch::Receiver<bool>,
}

/// What they share.
pub(super) struct Shared {
    pub(super) config: RedisConfig,
    /// Makes connections; none that is lost goes back to it.
    pub(super) pool: Pool<Dialer>,
    /// Those that serve or are suspect: so many for each worker, one worker after the other; and behind them one for
    /// each that is durable.
    pub(super) places: Vec<ArcSwapOption<Connection>>,
    pub(super) for_each_worker: usize,
    pub(super) breaker: Breaker,
    pub(super) inspection: Inspection,
    /// Makes all keepers check their connections.
    pub(super) doubts: watch::Sender<()>,
    /// What a check asks.
    own: Arc<ArcSwap<Own>>,
    /// How often the scripts have been loaded, and the lock under which it is.
    pub(super) loads: AtomicU64,
    pub(super) loading: Mutex<()>,
    /// Under which a connection is made beside one that is suspect.
    pub(super) replacing: Mutex<()>,
}

impl Link {
    /// Starts the keepers on these runtimes, and waits for the first attempt of each, whatever comes of it. In a
    /// cluster, `slot` is one of the node's.
    ///
    /// # Errors
    /// Where no attempt is possible, or one has found that limits could never hold.
    pub(super) async fn start(
        config: RedisConfig,
        dialer: Dialer,
        slot: Option<u16>,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Link, StartError> {
        let own = Arc::new(ArcSwap::from_pointee(Own::new(&config.key_prefix, slot)?));
        let for_each_worker = config.connections.div_ceil(runtimes.len());
        let (connections, workers) = (for_each_worker * runtimes.len(), runtimes.len());
        let shared = Arc::new(Shared {
            places: (0..connections + workers).map(|_| ArcSwapOption::empty()).collect(),
            for_each_worker,
            breaker: Breaker::new(config.to_string(), connections, on_change),
            doubts: watch::Sender::new(()),
            inspection: Inspection::new(config.clone(), Arc::clone(dialer.access()), Arc::clone(&own)),
            // One more for each, while it is made anew.
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
        let link = Link { shared, keepers, durable, runtimes: runtimes.to_vec() };
        match all_tried.recv().await {
            Some(cause) => Err(StartError::Unfit { redis: link.shared.config.to_string(), cause }),
            None => Ok(link),
        }
    }

    /// # Errors
    /// Where Redis is known to be down.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        if self.shared.breaker.is_open() { Err(self.down()) } else { Ok(()) }
    }

    /// What to say to a request that cannot be asked.
    pub(super) fn down(&self) -> StoreError {
        let cause = self.shared.breaker.cause();
        StoreError::Down(if cause.is_empty() { "its connection is being made".into() } else { cause })
    }

    /// The node has slots, and this is one of them.
    pub(super) fn move_own(&self, slot: u16) {
        if self.shared.own.load().slot != Some(slot)
            && let Ok(own) = Own::new(&self.shared.config.key_prefix, Some(slot))
        {
            self.shared.own.store(Arc::new(own));
        }
    }

    /// A call of so many requests has been sent.
    pub(super) fn note_call(&self, requests: usize) {
        self.shared.config.on_call.tell(requests);
    }

    /// How long a reply may be outstanding.
    pub(super) fn timeout(&self) -> Duration {
        self.shared.config.timeout
    }

    /// A connection for the calls of this worker: one of its own, if any serves; suspect ones are better than none.
    pub(super) fn choose(&self, worker: usize) -> Option<Arc<Connection>> {
        let all = self.shared.places.len() - self.durable.len();
        self.find(worker, all, Connection::serves).or_else(|| self.find(worker, all, Connection::is_usable))
    }

    /// One of this worker's own that serves.
    pub(super) fn own(&self, worker: usize) -> Option<Arc<Connection>> {
        self.find(worker, self.shared.for_each_worker, Connection::serves)
    }

    /// The one of this worker for what a replica is to hear of.
    pub(super) fn choose_durable(&self, worker: usize) -> Option<Arc<Connection>> {
        let place = &self.shared.places[self.shared.durable_place(worker)];
        place.load_full().filter(|connection| connection.is_usable())
    }

    /// Makes that one, if nobody has yet, and waits until it has been tried once, or until then.
    pub(super) async fn make_durable(&self, worker: usize, deadline: Instant) {
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
            // Whoever is late learns that it is not there.
            let _ = timeout_at(deadline, tried.wait_for(|tried| *tried)).await;
        }
    }

    /// The first of so many, from the worker's own on.
    fn find(&self, worker: usize, count: usize, is: impl Fn(&Connection) -> bool) -> Option<Arc<Connection>> {
        let Shared { places: all, for_each_worker, .. } = &*self.shared;
        let places = (0..count).map(|place| (worker * for_each_worker + place) % (all.len() - self.durable.len()));
        places.filter_map(|place| all[place].load_full()).find(|connection| is(connection))
    }

    /// How often the scripts have been loaded.
    pub(super) fn loads(&self) -> u64 {
        self.shared.loads.load(Ordering::Relaxed)
    }

    /// Loads the scripts, unless that was done since it was loaded so often.
    pub(super) async fn load(&self, connection: &Connection, loads: u64) -> Result<(), Fault> {
        self.shared.load(connection, loads).await
    }

    /// Logs what has been kept back.
    pub(super) fn flush_log(&self) {
        self.shared.breaker.flush_log();
    }

    /// A call over this connection has failed.
    pub(super) fn note(&self, connection: &Connection, fault: &Fault) {
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

    /// On whose runtime the connection at this place lives.
    pub(super) fn worker_of(&self, place: usize) -> usize {
        let durable = self.durable_place(0);
        place.checked_sub(durable).unwrap_or(place / self.for_each_worker)
    }

    /// A call over this connection has failed.
    pub(super) fn note(&self, connection: &Connection, fault: &Fault) {
        match fault {
            Fault::Silent(_) => {
                connection.set_suspect(true);
                self.doubts.send_replace(());
            }
            Fault::Lost(cause) => connection.lose(cause),
            Fault::Refused(_) | Fault::NoScript | Fault::Answer | Fault::Connect(_) => connection.note_refusal(),
            // It has answered.
            Fault::Elsewhere(_) | Fault::Unheard { .. } => connection.note_answer(),
        }
    }

    async fn load(&self, connection: &Connection, loads: u64) -> Result<(), Fault> {
        let silent_loads = connection.silent_loads();
        let _one_at_a_time = self.loading.lock().await;
        if self.loads.load(Ordering::Relaxed) != loads {
            return Ok(());
        }
        // Another call has waited for it over this connection, and this one has waited for that: for both in vain.
        if connection.silent_loads() != silent_loads {
            return Err(Fault::Silent(self.config.timeout));
        }
        let loaded = connection.load(self.config.address.is_cluster(), self.config.timeout).await;
        match &loaded {
            Ok(()) => drop(self.loads.fetch_add(1, Ordering::Relaxed)),
            Err(Fault::Silent(_)) => connection.note_silent_load(),
            Err(_) => {}
        }
        loaded
    }

    /// Whether Redis answers over this connection, and does what a decision needs.
    pub(super) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        match self.decide(connection).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.inspection.name_rights(connection, fault).await),
        }
    }

    /// Decides the check over this connection.
    async fn decide(&self, connection: &Connection) -> Result<(), Fault> {
        let own = self.own.load_full();
        let ask = || connection.send(script::call([&own.check])).wait(self.config.timeout);
        let loads = self.loads.load(Ordering::Relaxed);
        let reply = match ask().await {
            Err(Fault::NoScript) => {
                self.load(connection, loads).await?;
                ask().await?
            }
            // The slot has moved away: what it answers is as good as a decision, for whoever has other slots there.
            Err(Fault::Elsewhere(_)) if own.slot.is_some() => return Ok(()),
            Err(Fault::Elsewhere(_)) => return Err(Fault::Refused(Cause::Cluster)),
            reply => reply?,
        };
        match Reply::new(&reply, 1).and_then(|mut reply| reply.next(&own.check)) {
            Ok(_) => Ok(()),
            // Unless it is Redis, somebody else has written to the counter.
            Err(StoreError::Counter(failure)) => {
                Cause::known(reason(&failure)).map_or(Ok(()), |cause| Err(Fault::Refused(cause)))
            }
            Err(_) => Err(Fault::Answer),
        }
    }
}
