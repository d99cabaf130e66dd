//! Chooses the connection that is closed for a new one when a port has reached its maximum. The oldest connection still
//! without a handshake or HTTP/2 preface is closed first, then the one that has been idle longest. A connection with a
//! call in progress is never closed for another. So neither silent clients nor clients that called once and stayed can
//! keep new clients out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::grpc::Activity;

/// Counts a connection of a port as open for as long as it is kept.
pub type Permit = OwnedSemaphorePermit;

/// Lets a connection that has lost its place end by GOAWAY. Until then it is open in addition to those that count.
pub type Leave = OwnedSemaphorePermit;

/// Minimum time that a client has to begin, and that a connection is idle, before it is closed for another. Without it,
/// clients that all connect at the same moment would close each other's connections.
const LEAST: Duration = Duration::from_secs(1);

/// Pause before the next search when none was idle.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of connections that end by GOAWAY at a time. Each takes one of the descriptors kept in reserve.
const LEAVING: usize = 8;

/// The places of one port.
pub(super) struct Places {
    taken: Mutex<Taken>,
    leaving: Arc<Semaphore>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    beginning: BTreeMap<u64, Beginning>,
    serving: BTreeMap<u64, Serving>,
    /// Connections that the last search found idle, with the time since when, the longest idle first.
    idle: VecDeque<(u64, Instant)>,
    /// Time of the last search, if it found none.
    in_vain: Option<Instant>,
}

struct Beginning {
    permit: Permit,
    since: Instant,
    closed: oneshot::Sender<Leave>,
}

struct Serving {
    permit: Permit,
    activity: Arc<Activity>,
    closed: oneshot::Sender<Leave>,
}

/// A connection's place. Dropping it frees the place.
pub struct Place {
    number: u64,
    all: Arc<Places>,
    closed: oneshot::Receiver<Leave>,
}

/// Room made for a new connection.
pub(super) enum Room {
    /// From a connection that had not begun.
    Beginning(Permit),
    /// From an idle connection.
    Idle(Permit),
}

impl Places {
    pub(super) fn new() -> Arc<Places> {
        Arc::new(Places { taken: Mutex::default(), leaving: Arc::new(Semaphore::new(LEAVING)) })
    }

    /// Takes a place for a connection that is about to begin.
    pub(super) fn take(self: &Arc<Self>, permit: Permit) -> Place {
        let (closed, receiver) = oneshot::channel();
        let mut taken = self.taken.lock();
        let number = taken.next;
        taken.next += 1;
        taken.beginning.insert(number, Beginning { permit, since: Instant::now(), closed });
        drop(taken);
        Place { number, all: Arc::clone(self), closed: receiver }
    }

    /// Closes a connection to free its place.
    pub(super) fn make_room(&self) -> Option<Room> {
        let mut taken = self.taken.lock();
        let oldest = taken.beginning.first_entry().filter(|oldest| oldest.get().since.elapsed() >= LEAST);
        if let Some(oldest) = oldest {
            return Some(Room::Beginning(oldest.remove().permit));
        }
        let Serving { permit, closed, .. } = taken.longest_idle()?;
        if let Ok(leave) = Arc::clone(&self.leaving).try_acquire_owned() {
            // If that connection has just ended, its place is free anyway.
            let _ = closed.send(leave);
        }
        Some(Room::Idle(permit))
    }
}

impl Taken {
    /// Removes the connection that has been idle longest. One search serves several new connections.
    fn longest_idle(&mut self) -> Option<Serving> {
        loop {
            if self.idle.is_empty() {
                self.search();
            }
            let (number, since) = self.idle.pop_front()?;
            let is_idle = |serving: &Serving| serving.activity.idle_since() == Some(since);
            if self.serving.get(&number).is_some_and(is_idle) {
                return self.serving.remove(&number);
            }
        }
    }

    fn search(&mut self) {
        if self.in_vain.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let idle = self.serving.iter().filter_map(|(number, serving)| {
            let since = serving.activity.idle_since()?;
            (since.elapsed() >= LEAST).then_some((*number, since))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(_, since)| *since);
        self.in_vain = idle.is_empty().then(Instant::now);
        self.idle = idle.into();
    }
}

impl Place {
    /// Waits until the place is given to another connection. Returns `None` if this connection must close at once.
    pub async fn lost(&mut self) -> Option<Leave> {
        (&mut self.closed).await.ok()
    }

    /// Records that the connection has begun, with its activity. Returns `false` if its place has just been given to
    /// another.
    pub fn begun(&self, activity: &Arc<Activity>) -> bool {
        let mut taken = self.all.taken.lock();
        let Some(Beginning { permit, closed, .. }) = taken.beginning.remove(&self.number) else { return false };
        taken.serving.insert(self.number, Serving { permit, activity: Arc::clone(activity), closed });
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.all.taken.lock();
        taken.beginning.remove(&self.number);
        taken.serving.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    struct Scene {
        room: Arc<Semaphore>,
        places: Arc<Places>,
    }

    impl Scene {
        fn new(places: usize) -> Scene {
            Scene { room: Arc::new(Semaphore::new(places)), places: Places::new() }
        }

        fn take(&self) -> Place {
            self.places.take(Arc::clone(&self.room).try_acquire_owned().unwrap())
        }

        fn begin(&self) -> (Place, Arc<Activity>) {
            let (place, activity) = (self.take(), Activity::new());
            assert!(place.begun(&activity));
            (place, activity)
        }

        /// Returns whether there is room for one more connection, and takes that room.
        fn makes_room(&self) -> bool {
            self.places.make_room().is_some()
        }
    }

    fn is_lost(place: &mut Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_has_not_begun_makes_room_when_it_has_had_its_time() {
        let scene = Scene::new(3);
        let (first, mut second) = (scene.take(), scene.take());
        advance(LEAST / 2).await;
        let mut third = scene.take();
        assert!(!scene.makes_room(), "none has had its time");
        let activity = Activity::new();
        let call = activity.begin_call();
        assert!(first.begun(&activity));
        advance(LEAST / 2).await;
        let freed = scene.places.make_room();
        assert!(matches!(freed, Some(Room::Beginning(_))), "the second's");
        assert!(is_lost(&mut second) && !second.begun(&Activity::new()));
        assert!(!is_lost(&mut third) && !scene.makes_room());
        assert_eq!(scene.room.available_permits(), 0);
        drop((first, freed, third, call));
        assert_eq!(scene.room.available_permits(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room_and_none_that_has_a_call() {
        let scene = Scene::new(4);
        let ((mut first, one), (mut second, two), (mut third, _three)) = (scene.begin(), scene.begin(), scene.begin());
        let (mut fourth, four) = scene.begin();
        let call = two.begin_call();
        advance(LEAST).await;
        for activity in [&four, &one] {
            drop(activity.begin_call());
            activity.polled();
            advance(LEAST).await;
        }
        for longest in [&mut third, &mut fourth, &mut first] {
            assert!(!is_lost(longest));
            assert!(scene.makes_room() && is_lost(longest));
        }
        assert!(!scene.makes_room());
        drop(call);
        two.polled();
        assert!(!scene.makes_room(), "it has just had a call");
        advance(LEAST).await;
        assert!(scene.makes_room() && is_lost(&mut second));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_found_idle_and_is_in_use_again_stays() {
        let scene = Scene::new(3);
        let ((mut first, _), (mut second, two), (mut third, _)) = (scene.begin(), scene.begin(), scene.begin());
        advance(LEAST).await;
        assert!(scene.makes_room() && is_lost(&mut first));
        drop(two.begin_call());
        two.polled();
        assert!(scene.makes_room() && is_lost(&mut third));
        assert!(!scene.makes_room() && !is_lost(&mut second));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_few_take_leave_at_the_same_time() {
        let scene = Scene::new(LEAVING + 1);
        let mut all: Vec<_> = (0..=LEAVING).map(|_| scene.begin()).collect();
        advance(LEAST).await;
        let mut leaves = Vec::new();
        for (place, _) in &mut all {
            assert!(scene.makes_room());
            leaves.push(place.lost().now_or_never().unwrap());
        }
        assert_eq!(leaves.iter().flatten().count(), LEAVING);
    }
}
