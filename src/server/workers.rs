//! One thread per core, each with a separate runtime. All work of a connection happens on one thread, so no work is
//! stolen, its memory stays with one core, and answers that are ready together are written together. Workers share what
//! the process has once: the counters in memory, leases, the cache of denials, and the metrics of each limit.
//!
//! A proxy opens few connections and keeps them for long, so a new job goes to the worker with the fewest jobs.
//! `SO_REUSEPORT` would pick threads at random, and leave one core with three connections and another with none.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot, watch};

/// Number of tasks after which a thread asks the system for events, though others wait to run. A task is mostly a
/// connection with up to a hundred calls, some 0.4 ms: with tokio's 61, the events of other connections would wait for
/// 20 ms.
const EVENT_INTERVAL: u32 = 8;

/// The worker threads. Dropping this ends the threads and everything that runs on them.
pub struct Workers {
    workers: Vec<Worker>,
    lost: Arc<Notify>,
}

struct Worker {
    runtime: Handle,
    /// Every job holds a receiver. So the number of receivers is the number of jobs, a single message stops all of
    /// them, and the channel shows when none is left.
    stop: watch::Sender<bool>,
    /// Dropping this ends the thread.
    _alive: oneshot::Sender<Infallible>,
}

/// Tells a job to stop. The job counts as running for as long as it keeps this.
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits until the job should stop.
    pub async fn requested(&mut self) {
        // An error means that the workers are gone: stop then, too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl Workers {
    /// Starts this number of threads.
    ///
    /// # Errors
    /// If the system provides no more threads or file descriptors.
    pub fn start(number: usize) -> io::Result<Workers> {
        let lost = Arc::new(Notify::new());
        let workers = (0..number).map(|index| {
            let (alive, ended) = oneshot::channel::<Infallible>();
            let until = async { drop(ended.await) };
            Ok(Worker { runtime: start_thread(index, until, &lost)?, stop: watch::Sender::new(false), _alive: alive })
        });
        Ok(Workers { workers: workers.collect::<io::Result<_>>()?, lost })
    }

    /// Returns the runtime of each worker.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.workers.iter().map(|worker| worker.runtime.clone()).collect()
    }

    /// Runs a job on the worker with the fewest jobs. `job` receives the worker's number.
    pub fn run<F: Future<Output = ()> + Send + 'static>(&self, job: impl FnOnce(usize, Stop) -> F) {
        let jobs = |worker: &Worker| worker.stop.receiver_count();
        if let Some((index, worker)) = self.workers.iter().enumerate().min_by_key(|(_, worker)| jobs(worker)) {
            worker.runtime.spawn(job(index, Stop(worker.stop.subscribe())));
        }
    }

    /// Tells all jobs to stop, and waits until they have.
    pub async fn drain(&self) {
        for worker in &self.workers {
            worker.stop.send_replace(true);
        }
        join_all(self.workers.iter().map(|worker| worker.stop.closed())).await;
    }

    /// Waits until a thread ends by a panic, which should never happen. A panic inside a job ends only the job.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

/// Starts a thread with a runtime that runs spawned tasks until `until` completes.
fn start_thread(
    index: usize,
    until: impl Future<Output = ()> + Send + 'static,
    lost: &Arc<Notify>,
) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().event_interval(EVENT_INTERVAL).enable_all().build()?;
    let handle = runtime.handle().clone();
    let farewell = Farewell(Arc::clone(lost));
    std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
        let _farewell = farewell;
        runtime.block_on(until);
    })?;
    Ok(handle)
}

/// Notifies when its thread ends, for any reason.
struct Farewell(Arc<Notify>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Starts jobs that run until they are stopped, and records where each runs.
    struct Desk {
        workers: Arc<Workers>,
        started: (mpsc::UnboundedSender<Job>, mpsc::UnboundedReceiver<Job>),
    }

    /// The worker and the thread of a job. Dropping this ends the job.
    struct Job {
        worker: usize,
        thread: std::thread::ThreadId,
        _end: oneshot::Sender<Infallible>,
    }

    impl Desk {
        fn new(workers: usize) -> Desk {
            Desk { workers: Arc::new(Workers::start(workers).unwrap()), started: mpsc::unbounded_channel() }
        }

        async fn job(&mut self) -> Job {
            let started = self.started.0.clone();
            self.workers.run(|worker, mut stop| async move {
                let (end, ended) = oneshot::channel();
                let _ = started.send(Job { worker, thread: std::thread::current().id(), _end: end });
                tokio::select! {
                    _ = ended => {}
                    () = stop.requested() => {}
                }
            });
            self.started.1.recv().await.unwrap()
        }

        /// Returns the number of jobs of each worker.
        fn jobs(&self) -> Vec<usize> {
            self.workers.workers.iter().map(|worker| worker.stop.receiver_count()).collect()
        }
    }

    #[tokio::test]
    async fn a_job_goes_to_the_worker_with_the_fewest_also_after_some_have_ended() {
        let mut desk = Desk::new(3);
        let mut jobs = Vec::new();
        for _ in 0..9 {
            jobs.push(desk.job().await);
        }
        assert_eq!(desk.jobs(), [3, 3, 3]);

        jobs.retain(|job| job.worker != 1);
        while desk.jobs() != [3, 0, 3] {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let job = desk.job().await;
            assert_eq!(job.worker, 1);
            jobs.push(job);
        }
        assert_eq!(desk.jobs(), [3, 3, 3]);
    }

    #[tokio::test]
    async fn a_worker_is_one_thread_and_every_worker_another() {
        let mut desk = Desk::new(2);
        let jobs = [desk.job().await, desk.job().await, desk.job().await];
        assert_eq!(jobs.each_ref().map(|job| job.worker), [0, 1, 0]);
        assert_eq!(jobs[0].thread, jobs[2].thread);
        assert_ne!(jobs[0].thread, jobs[1].thread);
        assert_ne!(jobs[0].thread, std::thread::current().id());
    }

    #[tokio::test]
    async fn draining_tells_every_job_and_waits_for_the_last() {
        let mut desk = Desk::new(3);
        let _jobs = [desk.job().await, desk.job().await, desk.job().await, desk.job().await];
        let (let_go, held) = oneshot::channel::<()>();
        desk.workers.run(|_, stop| async move {
            let _ = held.await;
            drop(stop);
        });
        let workers = Arc::clone(&desk.workers);
        let drain = tokio::spawn(async move { workers.drain().await });
        while desk.jobs() != [0, 1, 0] {
            tokio::task::yield_now().await;
        }
        assert!(!drain.is_finished(), "one is still at it");
        let_go.send(()).unwrap();
        drain.await.unwrap();
        assert_eq!(desk.jobs(), [0, 0, 0]);
    }

    #[tokio::test]
    async fn a_panic_of_a_job_ends_the_job_and_one_of_a_thread_is_reported() {
        let mut desk = Desk::new(1);
        desk.workers.run(|_, _| async { panic!("a job's panic, for the test") });
        assert_eq!(desk.job().await.worker, 0, "the thread lives on");
        while desk.jobs() != [0] {
            tokio::task::yield_now().await;
        }

        start_thread(1, async { panic!("a thread's panic, for the test") }, &desk.workers.lost).unwrap();
        desk.workers.lost().await;
    }
}
