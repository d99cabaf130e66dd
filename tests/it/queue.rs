//! The queue of calls, under every interleaving of threads: no request is forgotten, and no more calls run than
//! allowed.

#![allow(missing_docs, reason = "the file is part of this binary here")]

#[path = "../../src/store/redis/decide/queue.rs"]
#[allow(dead_code, reason = "a part of it is no matter of order")]
mod subject;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use subject::{Item, Permit, Queue, Waiting};

/// The queue's locks, by loom.
mod sync {
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

struct Request;

impl Item for Request {
    fn size(&self) -> usize {
        1
    }
}

const PERMITS: usize = 2;

/// In every order in which a thread is interrupted three times at most: of more there are too many, and few faults need
/// more.
fn in_every_order(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// The work of the tasks.
#[derive(Default)]
struct Log {
    calls: AtomicUsize,
    taken: AtomicUsize,
}

impl Log {
    /// Makes calls until nothing waits, as a task does, or until one has ended by a panic.
    fn make_calls(
        &self,
        permit: Permit<Request>,
        choose: impl Fn(&mut Waiting<Request>) -> Option<Request>,
        ends_early: bool,
    ) {
        let mut permit = Some(permit);
        while Permit::take(&mut permit, &choose).is_some() {
            assert!(self.calls.fetch_add(1, Ordering::SeqCst) < PERMITS, "more calls than permits");
            self.taken.fetch_add(1, Ordering::SeqCst);
            self.calls.fetch_sub(1, Ordering::SeqCst);
            if ends_early {
                return;
            }
        }
        assert!(permit.is_none());
    }
}

/// Three threads queue one request each, and make calls if they get a permit; asserts that each request is taken.
fn assert_all_are_taken(
    is_worth_another: fn(&Waiting<Request>) -> bool,
    choose: fn(&mut Waiting<Request>) -> Option<Request>,
) {
    in_every_order(move || {
        let (queue, log) = (std::sync::Arc::new(Queue::new(10, PERMITS)), Arc::new(Log::default()));
        let push = || {
            let (queue, log) = (std::sync::Arc::clone(&queue), Arc::clone(&log));
            move || {
                if let Some(permit) = queue.push(Request, is_worth_another).ok().unwrap() {
                    log.make_calls(permit, choose, false);
                }
            }
        };
        let threads = [loom::thread::spawn(push()), loom::thread::spawn(push())];
        push()();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(log.taken.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn every_request_is_taken_and_no_more_make_calls_than_may() {
    assert_all_are_taken(|_| true, Waiting::pop);
}

#[test]
fn what_is_not_worth_another_call_is_taken_behind_the_one_on_its_way() {
    assert_all_are_taken(|_| false, Waiting::pop);
    let two = |waiting: &Waiting<Request>| waiting.iter().len() == 2;
    assert_all_are_taken(two, Waiting::pop);
}

#[test]
fn a_holder_that_leaves_the_rest_to_others_leaves_it_to_somebody() {
    assert_all_are_taken(|_| true, |waiting| if waiting.has_other_holders() { None } else { waiting.pop() });
}

#[test]
fn a_task_that_ends_early_takes_no_permit_with_it() {
    in_every_order(|| {
        let (queue, log) = (std::sync::Arc::new(Queue::new(10, PERMITS)), Arc::new(Log::default()));
        let thread = loom::thread::spawn({
            let (queue, log) = (std::sync::Arc::clone(&queue), Arc::clone(&log));
            move || {
                // One ends before it has taken a request, one after.
                drop(queue.push(Request, |_| true).ok().unwrap());
                if let Some(permit) = queue.push(Request, |_| true).ok().unwrap() {
                    log.make_calls(permit, Waiting::pop, true);
                }
            }
        });
        if let Some(permit) = queue.push(Request, |_| true).ok().unwrap() {
            log.make_calls(permit, Waiting::pop, false);
        }
        thread.join().unwrap();
        let permit = queue.push(Request, |_| true).ok().unwrap();
        log.make_calls(permit.expect("a permit is free"), Waiting::pop, false);
        assert_eq!(log.taken.load(Ordering::SeqCst), 4, "the next takes what was left");
    });
}
