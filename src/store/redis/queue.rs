//! What waits for a call to Redis, and the permits to make calls.
//!
//! Nothing that waits is forgotten: an item that comes while no permit is held brings a task that makes calls, and the
//! last task returns its permit only in the step in which it finds nothing. `tests/it/queue.rs` checks that with
//! `loom`, in every order that threads can take; for its sake this file takes its lock from the module beside it, and
//! knows nothing of Redis.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sync::Mutex;

/// What can wait.
pub trait Item {
    /// How much of the queue's capacity it takes.
    fn size(&self) -> usize;
}

/// What waits, in the order in which it came.
pub struct Queue<T> {
    capacity: usize,
    permits: usize,
    waiting: Mutex<Waiting<T>>,
}

/// What waits, as the holder of a permit finds it.
pub struct Waiting<T> {
    items: VecDeque<T>,
    size: usize,
    /// How many permits are held.
    held: usize,
    /// One of them has only just been handed out: its holder will take what waits now.
    starting: bool,
}

/// Allows one call at a time, for as long as something waits.
pub struct Permit<T> {
    queue: Arc<Queue<T>>,
    starting: bool,
    given_back: bool,
}

impl<T: Item> Queue<T> {
    /// An empty queue.
    pub fn new(capacity: usize, permits: usize) -> Queue<T> {
        let waiting = Waiting { items: VecDeque::new(), size: 0, held: 0, starting: false };
        Queue { capacity, permits, waiting: Mutex::new(waiting) }
    }

    /// Puts an item in the queue. Where a permit comes back, one more task shall make calls with it. Where others are
    /// held, `is_worth_another` says whether what waits shall have one more.
    ///
    /// # Errors
    /// The item, where there is no room for it. One alone always has room.
    pub fn push(
        self: &Arc<Self>,
        item: T,
        is_worth_another: impl FnOnce(&Waiting<T>) -> bool,
    ) -> Result<Option<Permit<T>>, T> {
        let mut waiting = self.waiting.lock();
        if waiting.size + item.size() > self.capacity && !waiting.items.is_empty() {
            return Err(item);
        }
        waiting.size += item.size();
        waiting.items.push_back(item);
        let is_free = !waiting.starting && waiting.held < self.permits;
        let starts = is_free && (waiting.held == 0 || is_worth_another(&waiting));
        if starts {
            waiting.starting = true;
            waiting.held += 1;
        }
        drop(waiting);
        Ok(starts.then(|| Permit { queue: Arc::clone(self), starting: true, given_back: false }))
    }
}

impl<T> Permit<T> {
    /// Takes of what waits what `choose` chooses. Where that is nothing, the permit is returned.
    pub fn take<B>(permit: &mut Option<Permit<T>>, choose: impl FnOnce(&mut Waiting<T>) -> Option<B>) -> Option<B> {
        let Permit { queue, starting, given_back } = permit.as_mut()?;
        let mut waiting = queue.waiting.lock();
        if std::mem::take(starting) {
            waiting.starting = false;
        }
        let chosen = choose(&mut waiting);
        if chosen.is_none() {
            waiting.held -= 1;
            *given_back = true;
        }
        drop(waiting);
        if chosen.is_none() {
            *permit = None;
        }
        chosen
    }
}

impl<T> Drop for Permit<T> {
    /// The task that held it has ended before its time: the next item brings another.
    fn drop(&mut self) {
        if !self.given_back {
            let mut waiting = self.queue.waiting.lock();
            waiting.held -= 1;
            waiting.starting &= !self.starting;
        }
    }
}

impl<T: Item> Waiting<T> {
    /// Takes the first.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.size -= item.size();
        Some(item)
    }

    /// Puts back what was the first.
    pub fn put_back(&mut self, item: T) {
        self.size += item.size();
        self.items.push_front(item);
    }

    /// What waits, the first first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.items.iter()
    }

    /// Other permits than that of the holder are held.
    pub fn has_other_holders(&self) -> bool {
        self.held > 1
    }
}
