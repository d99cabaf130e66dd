//! Connections that have not begun: their client owes a handshake, or the first words of HTTP/2. They count like any
//! other, and where all places are taken the oldest of them makes room for a new one: clients that connect and say
//! nothing keep nobody out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

/// Counts a connection of a port as open for as long as it is kept.
pub type Permit = OwnedSemaphorePermit;

/// So much time every client has, however many others come: else a crowd that connects at once would drive out one
/// another, and none would ever begin.
const LEAST: Duration = Duration::from_secs(1);

/// Those of one port.
#[derive(Default)]
pub(super) struct Beginnings {
    by_age: Mutex<ByAge>,
}

#[derive(Default)]
struct ByAge {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    permit: Permit,
    since: Instant,
    /// The connection ends when this is dropped.
    _alive: oneshot::Sender<Infallible>,
}

/// One of them.
pub struct Beginning {
    number: u64,
    all: Arc<Beginnings>,
    alive: oneshot::Receiver<Infallible>,
}

impl Beginnings {
    /// A new one.
    pub(super) fn begin(self: &Arc<Self>, permit: Permit) -> Beginning {
        let (kept, alive) = oneshot::channel();
        let mut by_age = self.by_age.lock();
        let number = by_age.next;
        by_age.next += 1;
        by_age.waiting.insert(number, Waiting { permit, since: Instant::now(), _alive: kept });
        drop(by_age);
        Beginning { number, all: Arc::clone(self), alive }
    }

    /// Ends the oldest, if it has had its time, for its place.
    pub(super) fn make_room(&self) -> Option<Permit> {
        let mut by_age = self.by_age.lock();
        let oldest = by_age.waiting.first_entry().filter(|oldest| oldest.get().since.elapsed() >= LEAST)?;
        Some(oldest.remove().permit)
    }
}

impl Beginning {
    /// Waits until it has to make room.
    pub async fn ended(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.alive).await;
    }

    /// It has begun: from now on it has its place for itself. `None`: it has just had to make room.
    pub fn begun(self) -> Option<Permit> {
        let waiting = self.all.by_age.lock().waiting.remove(&self.number);
        waiting.map(|waiting| waiting.permit)
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.all.by_age.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::Semaphore;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_makes_room_when_it_has_had_its_time_and_what_has_begun_never_does() {
        let room = Arc::new(Semaphore::new(3));
        let all = Arc::new(Beginnings::default());
        let begin = || all.begin(Arc::clone(&room).try_acquire_owned().unwrap());
        let (first, mut second) = (begin(), begin());
        advance(LEAST / 2).await;
        let mut third = begin();
        assert!(all.make_room().is_none(), "none has had its time");
        let served = first.begun().expect("its place");
        advance(LEAST / 2).await;
        let freed = all.make_room().expect("the second's");
        assert!(second.ended().now_or_never().is_some() && second.begun().is_none());
        assert!(third.ended().now_or_never().is_none() && all.make_room().is_none());
        assert_eq!(room.available_permits(), 0);
        drop((served, freed, third));
        assert_eq!(room.available_permits(), 3);
    }
}
