//! Tasks that must run for as long as the process does, or as long as what they serve: a task that panics is started
//! again.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle, JoinSet};

/// Pause between a panic and the restart of the task.
pub const RETRY: Duration = Duration::from_secs(5);

/// Runs a task forever. If it panics, reports the error to `tell` and starts another.
pub async fn supervise<F: Future<Output = ()> + Send + 'static>(
    tell: impl Fn(&JoinError),
    mut task: impl FnMut() -> F,
) -> Infallible {
    loop {
        if let Err(error) = run(task()).await {
            tell(&error);
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Spawns a task, and logs a panic under this name and starts the task again. Ends when the task returns. Aborting the
/// handle ends the task.
pub fn spawn<F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    mut task: impl FnMut() -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Err(error) = run(task()).await {
            tracing::error!(%error, task = name, retry = ?RETRY, "a panic in a background task");
            tokio::time::sleep(RETRY).await;
        }
    })
}

/// Runs a task. Dropping this future ends the task.
async fn run(task: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let mut running = JoinSet::new();
    running.spawn(task);
    running.join_next().await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_spawned_task_is_started_again_until_it_returns_or_is_aborted() {
        let runs = Arc::new(AtomicU32::new(0));
        let task = |last: u32| {
            let runs = Arc::clone(&runs);
            move || {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                async move { assert!(run >= last, "a panic, for the test") }
            }
        };
        spawn("test", task(2)).await.unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 3, "two panics, and one that returns");
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        let mut alive = Some(alive);
        let endless = spawn("test", move || {
            let alive = alive.take();
            async move {
                let _alive = alive;
                std::future::pending().await
            }
        });
        tokio::task::yield_now().await;
        endless.abort();
        assert!(ended.await.is_err(), "the task ends with its handle");
    }

    #[tokio::test(start_paused = true)]
    async fn what_panics_is_told_and_made_anew() {
        let (runs, told) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
        let supervised = supervise(
            |_| {
                told.fetch_add(1, Ordering::Relaxed);
            },
            || {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                async move {
                    assert!(run >= 2, "a panic, for the test");
                    std::future::pending().await
                }
            },
        );
        let _ = tokio::time::timeout(10 * RETRY, supervised).await;
        assert_eq!(runs.load(Ordering::Relaxed), 3, "two panics, and one that lives");
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }
}
