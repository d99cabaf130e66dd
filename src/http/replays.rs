//! Turns of those who replay recorded requests. A replay takes a core for a while, and the memory of the recorders of
//! all instances, so one runs at a time, and few wait for it.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admin::{Refusal, failed, refuse};
use super::client::Client;

/// Most clients that wait for a turn. One of these places is kept for clients that may change something.
const WAITING: usize = 4;

/// Places for clients. One is kept for those that may change something.
#[derive(Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    kept: Arc<Semaphore>,
}

impl Places {
    /// Returns this number of places, which is at least two.
    pub(super) fn new(places: usize) -> Places {
        Places { all: Arc::new(Semaphore::new(places - 1)), kept: Arc::new(Semaphore::new(1)) }
    }

    /// Takes a place, which is free again when it is dropped; `None` if there is none for this client.
    pub(super) fn take(&self, client: &Client) -> Option<OwnedSemaphorePermit> {
        match Arc::clone(&self.all).try_acquire_owned() {
            Err(_) if client.may_change() => Arc::clone(&self.kept).try_acquire_owned().ok(),
            place => place.ok(),
        }
    }
}

/// Admits one replay at a time.
pub(super) struct Replays {
    running: Arc<Semaphore>,
    waiting: Places,
}

/// The right to replay, until it is dropped.
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Replays {
    pub(super) fn new() -> Replays {
        Replays { running: Arc::new(Semaphore::new(1)), waiting: Places::new(WAITING) }
    }

    /// Waits for a turn. Refuses if too many clients wait.
    pub(super) async fn turn(&self, client: &Client) -> Result<Turn, Refusal> {
        let full = || refuse(StatusCode::TOO_MANY_REQUESTS, "too many clients wait for a replay: try again later");
        let _place = self.waiting.take(client).ok_or_else(full)?;
        Ok(Turn { _permit: Arc::clone(&self.running).acquire_owned().await.map_err(failed)? })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::sources::files::tokens::Role;

    #[tokio::test]
    async fn few_wait_for_a_replay_and_a_place_is_kept_for_clients_that_may_change_something() {
        let (reader, admin) = (Client::of_role(Role::Read), Client::of_role(Role::Admin));
        let replays = Replays::new();
        let running = replays.turn(&reader).await.ok();
        let mut waiting: Vec<_> = (1..WAITING).map(|_| Box::pin(replays.turn(&reader))).collect();
        for turn in &mut waiting {
            assert!(turn.now_or_never().is_none());
        }
        let refused = |client| replays.turn(client).now_or_never().is_some_and(|turn| turn.is_err());
        assert!(refused(&reader));
        let mut kept = Box::pin(replays.turn(&admin));
        assert!((&mut kept).now_or_never().is_none(), "it waits");
        assert!(refused(&admin) && refused(&reader));
        drop((running, waiting));
        assert!(kept.await.is_ok());
        assert!(replays.turn(&reader).await.is_ok(), "places are free again");
    }
}
