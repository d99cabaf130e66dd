//! Delayed requests: those that are admitted, but not before their release time, by a `leaky_bucket` with `max_delay`.
//!
//! The store has decided the release time of each, so nothing here keeps an order, and the whole fleet releases
//! requests in the order of their arrival. A delayed request costs a timer and a permit, but no thread. The number of
//! permits is bounded. A request takes a permit before the store is asked, so a request without a permit is never
//! charged for a delay that it cannot have.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::{Delayed, Metrics};
use crate::telemetry::Throttle;

/// The delayed requests of a process.
pub struct DelayQueue {
    permits: Arc<Semaphore>,
    closed: watch::Sender<bool>,
    metrics: Arc<Metrics>,
    reports: Throttle,
}

/// The permission to delay a request.
pub struct Permit {
    permit: OwnedSemaphorePermit,
    closed: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
}

/// The delay of one request. If it is dropped before the release time, it counts as cancelled by the caller.
pub struct Delay {
    release_time: Instant,
    closed: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    /// Called when the delay is cancelled.
    on_cancel: Option<Box<dyn FnOnce() + Send>>,
    _permit: OwnedSemaphorePermit,
}

impl DelayQueue {
    /// Creates a queue with this number of permits.
    pub fn new(permits: usize, metrics: Arc<Metrics>) -> DelayQueue {
        let permits = Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        DelayQueue { permits, closed: watch::Sender::new(false), metrics, reports: Throttle::default() }
    }

    /// Takes a permit, or returns `None` if all are taken.
    pub fn try_acquire(&self) -> Option<Permit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(Permit { permit, closed: self.closed.subscribe(), metrics: Arc::clone(&self.metrics) })
    }

    /// Reports a request that was denied because no permit was free to delay it.
    pub fn report_no_permit(&self) {
        self.metrics.record_delayed(Delayed::NoPermit);
        self.reports.log((), || {
            |requests| {
                tracing::warn!(
                    requests,
                    "MAX_DELAYED_REQUESTS is reached: further requests that need a delay are denied"
                );
            }
        });
    }

    /// Writes the log line held by the throttle.
    pub(crate) fn flush_log(&self) {
        self.reports.flush();
    }

    /// Releases every delayed request, now and from now on.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }
}

impl Permit {
    /// Delays a request until its release time. `on_cancel` runs if the caller cancels it first.
    pub fn delay_until(self, release_time: Instant, on_cancel: impl FnOnce() + Send + 'static) -> Delay {
        let Permit { permit, closed, metrics } = self;
        metrics.add_delayed(1);
        Delay { release_time, closed, metrics, on_cancel: Some(Box::new(on_cancel)), _permit: permit }
    }
}

impl Delay {
    /// Waits for the release time: never less, and a millisecond or two longer if the timer is late.
    pub async fn wait(mut self) {
        let outcome = tokio::select! {
            () = tokio::time::sleep_until(self.release_time) => Delayed::Passed,
            // An error means that the queue is gone, and the service with it.
            _ = self.closed.wait_for(|closed| *closed) => Delayed::Released,
        };
        self.on_cancel = None;
        self.metrics.record_delayed(outcome);
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.metrics.add_delayed(-1);
        if let Some(on_cancel) = self.on_cancel.take() {
            self.metrics.record_delayed(Delayed::Cancelled);
            on_cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A queue, and the number of its delays that were cancelled.
    struct Scene {
        queue: DelayQueue,
        cancelled: Arc<AtomicUsize>,
        metrics: Arc<Metrics>,
    }

    impl Scene {
        fn new(permits: usize) -> Scene {
            let metrics = Arc::new(Metrics::new(0.8).unwrap());
            Scene { queue: DelayQueue::new(permits, Arc::clone(&metrics)), cancelled: Arc::default(), metrics }
        }

        fn delay(&self, ms: u64) -> Option<Delay> {
            let cancelled = Arc::clone(&self.cancelled);
            let at = Instant::now() + Duration::from_millis(ms);
            let delay = self.queue.try_acquire()?.delay_until(at, move || {
                cancelled.fetch_add(1, Ordering::Relaxed);
            });
            Some(delay)
        }

        fn cancelled(&self) -> usize {
            self.cancelled.load(Ordering::Relaxed)
        }

        fn shows(&self, line: &str) -> bool {
            let text = String::from_utf8(self.metrics.render().unwrap()).unwrap();
            text.lines().any(|shown| shown == line)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_released_at_its_time_and_not_a_millisecond_before() {
        let scene = Scene::new(3);
        let start = tokio::time::Instant::now();
        let [late, early, past] = [30, 10, 0].map(|ms| scene.delay(ms).unwrap());
        assert!(scene.shows("tollgate_delayed_requests 3"));
        let left = async |delay: Delay| {
            delay.wait().await;
            start.elapsed().as_millis()
        };
        let (late, early, past) = tokio::join!(left(late), left(early), left(past));
        // The timer has a resolution of one millisecond.
        assert!((30..=31).contains(&late) && (10..=11).contains(&early) && past <= 1, "{past}, {early}, {late}");
        assert_eq!(scene.cancelled(), 0);
        assert!(scene.shows("tollgate_delayed_requests 0"));
        assert!(scene.shows("tollgate_delayed_requests_total{outcome=\"passed\"} 3"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_cancels_its_delay_and_frees_the_permit() {
        let scene = Scene::new(1);
        let delay = scene.delay(1_000).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(10), delay.wait()).await.is_err());
        assert_eq!(scene.cancelled(), 1);
        assert!(scene.shows("tollgate_delayed_requests_total{outcome=\"cancelled\"} 1"));
        drop(scene.delay(1_000).unwrap());
        assert_eq!(scene.cancelled(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_no_permit_beyond_the_bound() {
        let scene = Scene::new(2);
        let _waiting = [scene.delay(1_000).unwrap(), scene.delay(1_000).unwrap()];
        assert!(scene.delay(1).is_none());
        assert_eq!(scene.cancelled(), 0, "there is nothing to cancel");
        scene.queue.report_no_permit();
        assert!(scene.shows("tollgate_delayed_requests_total{outcome=\"no_permit\"} 1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_releases_all() {
        let scene = Scene::new(2);
        let [first, second] = [scene.delay(60_000).unwrap(), scene.delay(60_000).unwrap()];
        let start = tokio::time::Instant::now();
        tokio::join!(first.wait(), async { scene.queue.close() });
        second.wait().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(scene.cancelled(), 0);
        assert!(scene.shows("tollgate_delayed_requests_total{outcome=\"released\"} 2"));
    }
}
