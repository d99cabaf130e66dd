//! One timer for all deadlines of a queue to Redis.
//!
//! With a timer for each request, tokio would write to its eventfd whenever a timer ends before all others, which is
//! always so for a single request. This timer keeps its time when a request is answered, as nearly all are before their
//! deadlines.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::instant;

/// The deadlines of tasks that wait for something.
#[derive(Default)]
pub(crate) struct Deadlines(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// The waiting tasks, by deadline and a unique number.
    waiting: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    timer: Option<Timer>,
}

/// The running timer.
struct Timer {
    /// End of the timer, at or before the first deadline.
    at: Instant,
    /// The task of the timer, to wake if the timer must end earlier.
    task: Option<Waker>,
}

impl Deadlines {
    /// Completes at this time, or up to a few milliseconds later.
    pub(crate) fn passed(&self, at: Instant) -> Passed<'_> {
        Passed { deadlines: self, at, number: None }
    }

    /// Adds a deadline, and returns its number.
    fn add(&self, at: Instant, task: &Waker) -> u64 {
        let mut queue = self.0.lock();
        let number = queue.next;
        queue.next += 1;
        queue.waiting.insert((at, number), task.clone());
        self.run(queue);
        number
    }

    /// Starts the timer, or makes it end earlier, if the first deadline requires it.
    fn run(&self, mut queue: MutexGuard<'_, Queue>) {
        let Some((&(first, _), _)) = queue.waiting.first_key_value() else { return };
        match &mut queue.timer {
            None => {
                queue.timer = Some(Timer { at: first, task: None });
                drop(queue);
                let sleep = Box::pin(sleep_until(first));
                tokio::spawn(Running { queue: Arc::clone(&self.0), sleep, is_over: false });
            }
            Some(timer) if first < timer.at => {
                timer.at = first;
                let task = timer.task.take();
                drop(queue);
                task.into_iter().for_each(Waker::wake);
            }
            Some(_) => {}
        }
    }
}

/// Completes when a deadline has passed.
pub(crate) struct Passed<'d> {
    deadlines: &'d Deadlines,
    at: Instant,
    number: Option<u64>,
}

impl Future for Passed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.number {
            Some(number) => {
                let mut queue = self.deadlines.0.lock();
                match queue.waiting.get_mut(&(self.at, number)) {
                    None => return Poll::Ready(()),
                    Some(task) => task.clone_from(cx.waker()),
                }
                self.deadlines.run(queue);
            }
            None if self.at <= instant::now() => return Poll::Ready(()),
            None => self.number = Some(self.deadlines.add(self.at, cx.waker())),
        }
        Poll::Pending
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.deadlines.0.lock().waiting.remove(&(self.at, number));
        }
    }
}

/// The task of the timer. It ends when the timer does and no deadline is left.
struct Running {
    queue: Arc<Mutex<Queue>>,
    sleep: Pin<Box<Sleep>>,
    is_over: bool,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Running { queue, sleep, is_over } = &mut *self;
        loop {
            if let Some(timer) = &mut queue.lock().timer {
                timer.task = Some(cx.waker().clone());
                if sleep.deadline() != timer.at {
                    sleep.as_mut().reset(timer.at);
                }
            }
            ready!(sleep.as_mut().poll(cx));
            let (due, next) = queue.lock().take_due(Instant::now());
            due.into_values().for_each(Waker::wake);
            if next.is_none() {
                *is_over = true;
                return Poll::Ready(());
            }
        }
    }
}

impl Queue {
    /// Removes the tasks whose deadlines have passed, and returns the next deadline.
    fn take_due(&mut self, now: Instant) -> (BTreeMap<(Instant, u64), Waker>, Option<Instant>) {
        let later = self.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut self.waiting, later);
        let next = self.waiting.first_key_value().map(|((at, _), _)| *at);
        self.timer = next.map(|at| Timer { at, task: None });
        (due, next)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The runtime ends. Tasks of another runtime start a timer there when they are polled.
        let mut queue = self.queue.lock();
        queue.timer = None;
        let tasks: Vec<Waker> = queue.waiting.values().cloned().collect();
        drop(queue);
        tasks.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use tokio::task::LocalSet;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    proptest! {
        /// Each wait: when it begins, how long it lasts, and when it is given up, if it is.
        #[test]
        fn each_wait_ends_at_its_deadline_unless_it_is_given_up(
            waits in prop::collection::vec((0_u64..50, 0_u64..50, prop::option::of(0_u64..50)), 1..30),
        ) {
            let runtime = runtime();
            let deadlines = Rc::new(Deadlines::default());
            runtime.block_on(LocalSet::new().run_until(async {
                let start = Instant::now();
                let tasks = waits.iter().map(|&(begin, lasts, given_up)| {
                    let deadlines = Rc::clone(&deadlines);
                    tokio::task::spawn_local(async move {
                        sleep_until(start + ms(begin)).await;
                        let passed = deadlines.passed(start + ms(begin + lasts));
                        let given_up = start + ms(begin) + given_up.map_or(Duration::MAX / 4, ms);
                        tokio::select! {
                            biased;
                            () = passed => (true, start.elapsed()),
                            () = sleep_until(given_up) => (false, start.elapsed()),
                        }
                    })
                });
                let ended = futures_util::future::join_all(tasks.collect::<Vec<_>>()).await;
                for (&(begin, lasts, given_up), ended) in waits.iter().zip(ended) {
                    let (passed, at) = ended.unwrap();
                    let expected = begin + given_up.map_or(lasts, |given_up| given_up.min(lasts));
                    assert!((ms(expected)..=ms(expected + 1)).contains(&at), "{at:?} of {expected} ms");
                    assert!(passed || given_up.is_some_and(|given_up| given_up <= lasts));
                }
                tokio::time::sleep(ms(200)).await;
                let queue = deadlines.0.lock();
                assert!(queue.waiting.is_empty() && queue.timer.is_none());
            }));
        }
    }

    #[test]
    fn waits_that_end_before_their_deadline_leave_the_timer_as_it_is() {
        let deadlines = Deadlines::default();
        let timer = || deadlines.0.lock().timer.as_ref().map(|timer| timer.at);
        runtime().block_on(async {
            let start = Instant::now();
            for number in 0..5 {
                let waiting = deadlines.passed(Instant::now() + ms(20));
                tokio::select! {
                    () = waiting => panic!("it is given up"),
                    () = tokio::time::sleep(ms(2)) => {}
                }
                assert_eq!(timer(), Some(start + ms(20)), "{number}");
            }
            let mut sooner = Box::pin(deadlines.passed(start + ms(12)));
            assert!((&mut sooner).now_or_never().is_none());
            assert_eq!(timer(), Some(start + ms(12)));
            sooner.await;
            assert_eq!(start.elapsed(), ms(12));
        });
    }

    #[test]
    fn a_wait_goes_on_when_the_runtime_with_the_timer_ends() {
        let deadlines = Arc::new(Deadlines::default());
        let (first, second) = (runtime(), runtime());
        let wait = |ms: u64| {
            let deadlines = Arc::clone(&deadlines);
            async move { deadlines.passed(Instant::now() + Duration::from_millis(ms)).await }
        };
        first.spawn(wait(10));
        first.block_on(tokio::task::yield_now());
        let waiting = second.spawn(wait(20));
        second.block_on(tokio::task::yield_now());
        drop(first);
        assert!(deadlines.0.lock().timer.is_none());
        second.block_on(async { tokio::time::timeout(ms(1_000), waiting).await.unwrap().unwrap() });
    }
}
