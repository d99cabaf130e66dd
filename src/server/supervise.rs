//! Tasks that must run for as long as the process does: a task that panics is started again.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

/// Pause between a panic and the restart of the task.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// Runs a task forever. If it panics, reports the error to `tell` and starts another.
pub(super) async fn supervise<F: Future<Output = ()> + Send + 'static>(
    tell: impl Fn(&JoinError),
    mut task: impl FnMut() -> F,
) -> Infallible {
    loop {
        // Dropping the set with this future ends the task.
        let mut running = JoinSet::new();
        running.spawn(task());
        if let Some(Err(error)) = running.join_next().await {
            tell(&error);
        }
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

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
