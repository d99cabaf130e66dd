//! Tasks that the process cannot be without: what ends by a panic is made anew.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

/// So long after a panic a task is made anew.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// Makes and runs a task, and another when it ends by a panic, which `tell` is told, for ever.
pub(super) async fn supervise<F: Future<Output = ()> + Send + 'static>(
    tell: impl Fn(&JoinError),
    mut task: impl FnMut() -> F,
) -> Infallible {
    loop {
        // Is dropped with this, and ends then.
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
