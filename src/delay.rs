//! Where requests wait that are admitted, but not before their release time: those of a `leaky_bucket` with
//! `max_delay`.
//!
//! The store has told each of them its time, so that nobody here keeps an order, and all replicas together serve first
//! who came first. A request that waits costs a timer and a permit, and no thread. Permits are bounded, and taken
//! before the store is asked: a request that finds none is never charged for a delay that it cannot have.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::{Held, Metrics};
use crate::telemetry::Throttle;

/// The room.
pub struct WaitingRoom {
    permits: Arc<Semaphore>,
    closed: watch::Sender<bool>,
    metrics: Arc<Metrics>,
    reports: Throttle,
}

/// The right to wait.
pub struct Permit {
    permit: OwnedSemaphorePermit,
    closed: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
}

/// When a request may leave. If it is dropped before, its caller has left by itself.
pub struct Turn {
    at: Instant,
    closed: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    /// What to do when the request leaves before its time.
    give_up: Option<Box<dyn FnOnce() + Send>>,
    _permit: OwnedSemaphorePermit,
}

impl WaitingRoom {
    /// With so many permits.
    pub fn new(permits: usize, metrics: Arc<Metrics>) -> WaitingRoom {
        let permits = Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        WaitingRoom { permits, closed: watch::Sender::new(false), metrics, reports: Throttle::default() }
    }

    /// Takes a permit; `None` where all are taken.
    pub fn enter(&self) -> Option<Permit> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.metrics.record_held(Held::Refused);
            if let Some(requests) = self.reports.admit() {
                tracing::warn!(
                    requests,
                    "as many requests are delayed as MAX_HELD_REQUESTS allows: nothing more is delayed"
                );
            }
            return None;
        };
        Some(Permit { permit, closed: self.closed.subscribe(), metrics: Arc::clone(&self.metrics) })
    }

    /// From now on every request may leave.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }
}

impl Permit {
    /// To wait until this time. A request that leaves before gives up.
    pub fn wait_until(self, at: Instant, give_up: impl FnOnce() + Send + 'static) -> Turn {
        let Permit { permit, closed, metrics } = self;
        metrics.add_held(1);
        Turn { at, closed, metrics, give_up: Some(Box::new(give_up)), _permit: permit }
    }
}

impl Turn {
    /// Waits for it: never less, and more by what the timer is late, a millisecond or two.
    pub async fn come(mut self) {
        let held = tokio::select! {
            () = tokio::time::sleep_until(self.at) => Held::Passed,
            // An error means that the room is gone: so is the service.
            _ = self.closed.wait_for(|closed| *closed) => Held::Released,
        };
        self.give_up = None;
        self.metrics.record_held(held);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.metrics.add_held(-1);
        if let Some(give_up) = self.give_up.take() {
            self.metrics.record_held(Held::Left);
            give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A room, and how many have given up.
    struct Scene {
        room: WaitingRoom,
        gave_up: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
    }

    impl Scene {
        fn new(seats: usize) -> Scene {
            let metrics = Arc::new(Metrics::new(0.8).unwrap());
            Scene { room: WaitingRoom::new(seats, Arc::clone(&metrics)), gave_up: Arc::default(), metrics }
        }

        fn enter(&self, ms: u64) -> Option<Turn> {
            let gave_up = Arc::clone(&self.gave_up);
            let at = Instant::now() + Duration::from_millis(ms);
            let turn = self.room.enter()?.wait_until(at, move || {
                gave_up.fetch_add(1, Ordering::Relaxed);
            });
            Some(turn)
        }

        fn gave_up(&self) -> usize {
            self.gave_up.load(Ordering::Relaxed)
        }

        fn shows(&self, line: &str) -> bool {
            let text = String::from_utf8(self.metrics.render().unwrap()).unwrap();
            text.lines().any(|shown| shown == line)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_waits_for_the_turn_and_not_a_millisecond_less() {
        let scene = Scene::new(3);
        let start = tokio::time::Instant::now();
        let [late, early, past] = [30, 10, 0].map(|ms| scene.enter(ms).unwrap());
        assert!(scene.shows("tollgate_held_requests 3"));
        let left = async |turn: Turn| {
            turn.come().await;
            start.elapsed().as_millis()
        };
        let (late, early, past) = tokio::join!(left(late), left(early), left(past));
        // The timer counts whole milliseconds.
        assert!((30..=31).contains(&late) && (10..=11).contains(&early) && past <= 1, "{past}, {early}, {late}");
        assert_eq!(scene.gave_up(), 0);
        assert!(scene.shows("tollgate_held_requests 0"));
        assert!(scene.shows("tollgate_held_requests_total{outcome=\"passed\"} 3"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_before_the_turn_gives_up_and_the_seat_is_free() {
        let scene = Scene::new(1);
        let turn = scene.enter(1_000).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(10), turn.come()).await.is_err());
        assert_eq!(scene.gave_up(), 1);
        assert!(scene.shows("tollgate_held_requests_total{outcome=\"left\"} 1"));
        drop(scene.enter(1_000).unwrap());
        assert_eq!(scene.gave_up(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_no_permit_beyond_the_bound() {
        let scene = Scene::new(2);
        let _waiting = [scene.enter(1_000).unwrap(), scene.enter(1_000).unwrap()];
        assert!(scene.enter(1).is_none());
        assert_eq!(scene.gave_up(), 0, "it has nothing to give up");
        assert!(scene.shows("tollgate_held_requests_total{outcome=\"refused\"} 1"));
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_room_closes_all_may_go() {
        let scene = Scene::new(2);
        let [first, second] = [scene.enter(60_000).unwrap(), scene.enter(60_000).unwrap()];
        let start = tokio::time::Instant::now();
        tokio::join!(first.come(), async { scene.room.close() });
        second.come().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(scene.gave_up(), 0);
        assert!(scene.shows("tollgate_held_requests_total{outcome=\"released\"} 2"));
    }
}
