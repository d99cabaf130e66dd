//! Futures of one connection's calls, polled by the task of the connection. A place and its waker are used again by the
//! next call, so that a call that is decided at once costs no allocation and no wake.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// Places that are kept while no call is in progress.
const KEPT: usize = 4;

/// Futures with a tag each, such as the stream that they answer.
pub(super) struct Tasks<F, T> {
    places: Vec<Place<F, T>>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    /// Filled and emptied by each poll.
    turn: Vec<usize>,
}

struct Place<F, T> {
    future: Pin<Box<Option<F>>>,
    /// `None` while the place is free.
    tag: Option<T>,
    wake: Arc<PlaceWake>,
    waker: Waker,
}

/// The places that were woken, and the task of the connection.
#[derive(Default)]
struct Woken {
    places: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

struct PlaceWake {
    place: usize,
    is_woken: AtomicBool,
    woken: Arc<Woken>,
}

/// A future has panicked; the hook has logged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

impl Wake for PlaceWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.woken.places.lock().push(self.place);
            self.woken.task.wake();
        }
    }
}

impl<F: Future, T: Copy> Tasks<F, T> {
    pub(super) fn new() -> Tasks<F, T> {
        Tasks { places: Vec::new(), free: Vec::new(), woken: Arc::default(), turn: Vec::new() }
    }

    /// Returns the number of futures that are not ready.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Has this task woken whenever one of the futures is. Call it in each poll of the task, before the others.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.woken.task.register(cx.waker());
    }

    /// Makes and polls a future, and keeps it with its tag if it is not ready. Returns its place then.
    pub(super) fn start(&mut self, tag: T, future: impl FnOnce() -> F) -> Result<Result<F::Output, Panicked>, usize> {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = self.places.len();
            let wake = Arc::new(PlaceWake { place, is_woken: AtomicBool::new(false), woken: Arc::clone(&self.woken) });
            let waker = Waker::from(Arc::clone(&wake));
            self.places.push(Place { future: Box::pin(None), tag: None, wake, waker });
            place
        });
        self.places[place].future.set(Some(future()));
        self.places[place].tag = Some(tag);
        self.poll_one(place).map(|(_, output)| output).ok_or(place)
    }

    /// Returns the next future that has become ready, with its tag.
    pub(super) fn poll_next(&mut self) -> Option<(T, Result<F::Output, Panicked>)> {
        loop {
            if self.turn.is_empty() {
                std::mem::swap(&mut self.turn, &mut *self.woken.places.lock());
                if self.turn.is_empty() {
                    return None;
                }
                // The first that was woken is answered first.
                self.turn.reverse();
            }
            while let Some(place) = self.turn.pop() {
                let ready = self.poll_one(place);
                if ready.is_some() {
                    return ready;
                }
            }
        }
    }

    /// Polls the future in a place. Frees the place if it is ready.
    fn poll_one(&mut self, place: usize) -> Option<(T, Result<F::Output, Panicked>)> {
        let Place { future, tag, wake, waker } = self.places.get_mut(place)?;
        wake.is_woken.store(false, Ordering::Release);
        let running = future.as_mut().as_pin_mut()?;
        let polled = catch_unwind(AssertUnwindSafe(|| running.poll(&mut Context::from_waker(waker))));
        let output = match polled {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(_) => Err(Panicked),
        };
        future.set(None);
        let tag = tag.take()?;
        self.free.push(place);
        Some((tag, output))
    }

    /// Drops the future in a place, if it still has this tag.
    pub(super) fn cancel(&mut self, place: usize, tag: T)
    where
        T: PartialEq,
    {
        if let Some(cancelled) = self.places.get_mut(place)
            && cancelled.tag == Some(tag)
        {
            cancelled.future.set(None);
            cancelled.tag = None;
            self.free.push(place);
        }
    }

    /// Wakes all futures.
    pub(super) fn wake_all(&self) {
        self.places.iter().filter(|place| place.tag.is_some()).for_each(|place| place.waker.wake_by_ref());
    }

    /// Wakes the future in a place.
    pub(super) fn wake(&self, place: usize) {
        self.places.get(place).iter().for_each(|place| place.waker.wake_by_ref());
    }

    /// Gives back the memory of places that were needed for a while, if no future is left.
    pub(super) fn shrink(&mut self) {
        if self.len() == 0 && self.places.len() > KEPT {
            self.places.truncate(KEPT);
            self.places.shrink_to_fit();
            self.free = (0..KEPT).collect();
            self.turn = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::rc::Rc;
    use std::task::Context;

    use futures_util::future::LocalBoxFuture;
    use futures_util::task::noop_waker;
    use tokio::sync::oneshot;

    use super::*;

    type Some<'a> = Tasks<LocalBoxFuture<'a, u32>, u32>;

    /// A task that counts its wakes.
    #[derive(Default)]
    struct Counted(std::sync::atomic::AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_ready_at_once_keeps_no_place_and_a_place_is_used_again() {
        let mut tasks = Some::new();
        for number in 0..10 {
            assert_eq!(tasks.start(number, || Box::pin(async move { number })), Ok(Ok(number)));
        }
        assert_eq!((tasks.len(), tasks.places.len()), (0, 1));
    }

    #[test]
    fn many_wakes_wake_the_task_once_and_only_the_woken_are_polled() {
        let mut tasks = Some::new();
        let polls = Rc::new(Cell::new(0));
        let (wake, waiting): (Vec<_>, Vec<_>) = (0..5).map(|_| oneshot::channel::<u32>()).unzip();
        for (tag, mut waiting) in waiting.into_iter().enumerate() {
            let polls = Rc::clone(&polls);
            let future = poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                Pin::new(&mut waiting).poll(cx).map(|output| output.unwrap())
            });
            assert_eq!(tasks.start(tag as u32, || Box::pin(future)), Err(tag));
        }
        let counted = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&counted));
        tasks.register(&Context::from_waker(&waker));
        assert!(tasks.poll_next().is_none());
        let mut wake = wake.into_iter();
        let (first, second) = (wake.next().unwrap(), wake.next().unwrap());
        second.send(10).unwrap();
        // Its future finds no sender, and panics.
        drop(first);
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        let ready: Vec<_> = std::iter::from_fn(|| tasks.poll_next()).collect();
        assert_eq!(ready, [(1, Ok(10)), (0, Err(Panicked))]);
        assert_eq!((polls.get(), tasks.len()), (7, 3));
    }

    #[test]
    fn a_wake_of_a_call_that_has_gone_does_nothing_to_the_next_in_its_place() {
        let mut tasks = Some::new();
        let kept = Rc::new(Cell::new(noop_waker()));
        let keep = Rc::clone(&kept);
        let future = poll_fn(move |cx| {
            keep.set(cx.waker().clone());
            Poll::Pending
        });
        assert_eq!(tasks.start(1, || Box::pin(future)), Err(0));
        tasks.cancel(0, 7);
        assert_eq!(tasks.len(), 1, "it has another tag");
        tasks.cancel(0, 1);
        assert_eq!(tasks.start(2, || Box::pin(pending())), Err(0));
        kept.replace(noop_waker()).wake();
        assert!(tasks.poll_next().is_none());
        assert_eq!(tasks.len(), 1);
    }

    #[test]
    fn places_that_were_needed_for_a_while_are_given_back() {
        let mut tasks = Some::new();
        for tag in 0..100 {
            assert_eq!(tasks.start(tag, || Box::pin(pending())), Err(tag as usize));
        }
        tasks.shrink();
        assert_eq!(tasks.places.len(), 100);
        (0..100).for_each(|tag| tasks.cancel(tag as usize, tag));
        tasks.shrink();
        assert_eq!((tasks.places.len(), tasks.len()), (KEPT, 0));
        assert_eq!(tasks.start(1, || Box::pin(async { 5 })), Ok(Ok(5)));
    }
}
