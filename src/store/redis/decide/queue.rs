//! The queue of items that wait for a call to Redis, and the permits to make calls.
//!
//! No waiting item is forgotten. An item that arrives while no permit is held hands out a permit for a new task, which
//! makes calls. The last task returns its permit only in the step in which it finds the queue empty.
//! `tests/it/queue.rs` checks this with `loom` for every interleaving of threads. To make that possible, this file
//! takes its lock from the module around it and does not depend on Redis.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sync::Mutex;

/// An item that can wait.
pub trait Item {
    /// Returns the share of the queue's capacity that the item takes.
    fn size(&self) -> usize;
}

/// A queue in the order of arrival.
pub struct Queue<T> {
    capacity: usize,
    permits: usize,
    waiting: Mutex<Waiting<T>>,
}

/// The waiting items, as the holder of a permit sees them.
pub struct Waiting<T> {
    items: VecDeque<T>,
    size: usize,
    /// Number of permits held.
    held: usize,
    /// Whether a permit was handed out and not used yet. Its holder will take the items that wait now.
    starting: bool,
}

/// Permission to make one call at a time, for as long as items wait.
pub struct Permit<T> {
    queue: Arc<Queue<T>>,
    starting: bool,
    given_back: bool,
}

impl<T: Item> Queue<T> {
    /// Returns an empty queue.
    pub fn new(capacity: usize, permits: usize) -> Queue<T> {
        let waiting = Waiting { items: VecDeque::new(), size: 0, held: 0, starting: false };
        Queue { capacity, permits, waiting: Mutex::new(waiting) }
    }

    /// Adds an item to the queue. If this returns a permit, the caller starts one more task that makes calls with it.
    /// While others are held, `is_worth_another` decides whether the waiting items get one more.
    ///
    /// # Errors
    /// The item, if there is no room for it. An item on an empty queue always has room.
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
    /// Takes the items that `choose` chooses. If it chooses none, the permit is returned.
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
    /// Frees the permit if its task ended early. The next item then hands out another.
    fn drop(&mut self) {
        if !self.given_back {
            let mut waiting = self.queue.waiting.lock();
            waiting.held -= 1;
            waiting.starting &= !self.starting;
        }
    }
}

impl<T: Item> Waiting<T> {
    /// Takes the first item.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.size -= item.size();
        Some(item)
    }

    /// Puts an item back as the first.
    pub fn put_back(&mut self, item: T) {
        self.size += item.size();
        self.items.push_front(item);
    }

    /// Returns the waiting items in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.items.iter()
    }

    /// Returns whether permits other than the caller's are held.
    pub fn has_other_holders(&self) -> bool {
        self.held > 1
    }
}
