//! The signals: to stop, and to read the rules again.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Signals to stop that come so soon after the first are one with it: some supervisors send two, and a terminal sends
/// one to each process of a pipe.
const ONE: Duration = Duration::from_secs(1);

/// To stop: SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// To read the rules again: SIGHUP.
pub(super) struct Hangups(Signal);

impl Signals {
    /// From now on neither ends the process by itself.
    pub(super) fn new() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for the next that is not one with the `first`.
    pub(super) async fn after(&mut self, first: Instant) -> &'static str {
        not_before(first + ONE, async || self.next().await).await
    }
}

impl Hangups {
    /// From now on it does not end the process.
    pub(super) fn new() -> std::io::Result<Hangups> {
        signal(SignalKind::hangup()).map(Hangups)
    }

    /// Notifies `reload` of each, for ever.
    pub(super) async fn forward(mut self, reload: &Notify) {
        while self.0.recv().await.is_some() {
            tracing::info!(signal = "SIGHUP", "reading the rules again");
            reload.notify_one();
        }
        // No more will come.
        std::future::pending().await
    }
}

async fn not_before(time: Instant, mut next: impl AsyncFnMut() -> &'static str) -> &'static str {
    loop {
        let signal = next().await;
        if Instant::now() >= time {
            return signal;
        }
        tracing::info!(signal, "this signal is one with the first, which came within a second before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the process ends at once, in milliseconds after the first signal, where more come at these times.
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
