//! One process of a simulation: what decides in it is real, but for the store and the table of seats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate::engine::clock::Clock;
use tollgate::engine::plan::PlanOptions;
use tollgate::engine::rules::Rules;
use tollgate::limiter::{Limiter, LimiterOptions, Overload};
use tollgate::metrics::Metrics;
use tollgate::observe::Observers;
use tollgate::shared::seats::{SeatTerms, Seats};
use tollgate::store::Store as _;
use tollgate::store::denied::{Denials, DeniedCache};
use tollgate::store::lease::Leases;
use tollgate::store::memory::MemoryStore;
use tollgate::store::share::{Desk, Shares};

use super::world::{self, Faulty, World};

/// What decides in a replica.
pub type Way = Shares<Leases<DeniedCache<Faulty>>>;

/// What all replicas of a run have in common.
#[derive(Clone)]
pub struct Fleet {
    pub world: Arc<Mutex<World>>,
    pub shadow_mode: bool,
    /// The seats, and how long each lasts, where rules have shares.
    pub seats: Option<SeatTerms>,
    /// The number of requests that shares have admitted.
    pub admitted: Arc<AtomicU64>,
}

/// One process: its workers share everything, except the connections to the store.
pub struct Replica {
    pub id: usize,
    pub workers: Vec<Limiter<Way>>,
    way: Arc<Way>,
    /// Its seat, where rules have shares.
    seats: Option<Arc<Seats<Way, Faulty>>>,
    /// What sends the beats.
    keeper: Option<JoinHandle<()>>,
    killed: watch::Sender<bool>,
}

/// A replica's own clock.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> u64 {
        world::START + self.0.elapsed().as_millis() as u64
    }
}

impl Replica {
    /// Starts a process with an ID that no other has had, whose clock of shares runs at this speed.
    pub fn start(fleet: &Fleet, id: usize, speed: f64, rules: Rules) -> Replica {
        let denials = Arc::new(Denials::new(1 << 20, Box::new(|| {})));
        let store = || DeniedCache::new(Faulty::new(Arc::clone(&fleet.world)), Arc::clone(&denials));
        let (begin, admitted) = (Instant::now(), Arc::clone(&fleet.admitted));
        let count = move || {
            admitted.fetch_add(1, Ordering::Relaxed);
        };
        let desk = Desk::by(move || begin.elapsed().mul_f64(speed), usize::MAX, Box::new(count));
        // Without a table there is nothing to wait for.
        let desk = Arc::new(if fleet.seats.is_some() { desk } else { Desk::of_command() });
        let ways = Shares::around(Leases::around(vec![store(), store()], 1_000, Box::new(|_| {})), &desk);
        let ways: Vec<Arc<Way>> = ways.into_iter().map(Arc::new).collect();
        let expected_replicas = fleet.seats.map_or(1, |terms| terms.seats);
        let plan = PlanOptions { shadow_mode: fleet.shadow_mode, expected_replicas, ..PlanOptions::default() };
        let options = LimiterOptions {
            plan,
            overload: Overload::FailureMode,
            max_delayed_requests: 2,
            observers: Observers::default(),
        };
        let metrics = Arc::new(Metrics::new(0.8).unwrap());
        let local = Arc::new(MemoryStore::new(Paused(Instant::now()), usize::MAX));
        let first = Limiter::new(options, Arc::clone(&ways[0]), local, Arc::clone(&metrics));
        let second = first.with_store(Arc::clone(&ways[1]));
        first.put_in_force(rules);
        let (seats, keeper) = fleet
            .seats
            .map(|terms| {
                let table = Faulty::new(Arc::clone(&fleet.world));
                let parts = (Arc::new(first.clone()), metrics);
                let seats = Arc::new(Seats::new(&format!("r{id}"), parts, (desk, table), terms));
                let kept = Arc::clone(&seats);
                let keeper = tokio::spawn(async move {
                    kept.beat().await;
                    match kept.keep().await {}
                });
                (seats, keeper)
            })
            .unzip();
        let (workers, way) = (vec![first, second], Arc::clone(&ways[0]));
        Replica { id, workers, way, seats, keeper, killed: watch::Sender::new(false) }
    }

    /// Lets its callers know when it has been killed: their requests have no answer.
    pub fn killed(&self) -> watch::Receiver<bool> {
        self.killed.subscribe()
    }

    /// Ends it as a signal does: leases are returned and the seat is given up.
    pub async fn end(self) {
        self.way.close(Instant::now() + Duration::from_secs(10)).await;
        if let Some(seats) = &self.seats {
            seats.leave().await;
        }
        self.keeper.iter().for_each(JoinHandle::abort);
    }

    /// Ends it without a last word.
    pub fn kill(self) {
        self.killed.send_replace(true);
        self.keeper.iter().for_each(JoinHandle::abort);
    }
}
