//! Signals: to stop, and to read the rules again.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Stop signals this soon after the first one count as the same signal: some supervisors send two, and a terminal sends
/// one to each process of a pipe.
const ONE: Duration = Duration::from_secs(1);

/// The signals to stop: SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// SIGHUP, the signal to read the rules again. It is logged as soon as it arrives, even while rules are being loaded,
/// and remembered until it is handled.
pub(super) struct Hangups(Arc<Notify>);

impl Signals {
    /// Catches both signals, which no longer end the process by themselves.
    pub(super) fn new() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for the next signal that does not count as the same as the one at `first`.
    pub(super) async fn after(&mut self, first: Instant) -> &'static str {
        not_before(first + ONE, async || self.next().await).await
    }
}

impl Hangups {
    /// Catches SIGHUP, which no longer ends the process.
    pub(super) fn new() -> std::io::Result<Hangups> {
        let (mut hangups, kept) = (signal(SignalKind::hangup())?, Arc::new(Notify::new()));
        let heard = Arc::clone(&kept);
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                tracing::info!(signal = "SIGHUP", "the rules are reloaded, after the load in progress");
                heard.notify_one();
            }
        });
        Ok(Hangups(kept))
    }

    /// Notifies `reload` of each signal, forever.
    pub(super) async fn forward(self, reload: &Notify) {
        loop {
            self.0.notified().await;
            reload.notify_one();
        }
    }
}

async fn not_before(time: Instant, mut next: impl AsyncFnMut() -> &'static str) -> &'static str {
    loop {
        let signal = next().await;
        if Instant::now() >= time {
            return signal;
        }
        tracing::info!(signal, "ignoring a second signal within one second of the first");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many milliseconds after the first signal the process ends at once, if further signals arrive at
    /// these times.
    async fn ends_after(more: &[u64]) -> Option<u64> {
        let first = Instant::now();
        let mut more = more.iter();
        let next = async || match more.next() {
            Some(ms) => {
                tokio::time::sleep_until(first + Duration::from_millis(*ms)).await;
                "SIGTERM"
            }
            None => std::future::pending().await,
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), not_before(first + ONE, next)).await;
        ended.ok().map(|_| u64::try_from(first.elapsed().as_millis()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn signals_within_a_second_are_one_and_a_later_one_is_another() {
        assert_eq!(ends_after(&[]).await, None);
        assert_eq!(ends_after(&[0, 1, 500, 999]).await, None);
        assert_eq!(ends_after(&[1_000]).await, Some(1_000));
        assert_eq!(ends_after(&[3, 999, 5_000, 6_000]).await, Some(5_000));
    }
}
