//! Requests travel to Redis together.
//!
//! One that comes while no call is on its way goes out at once, together with those that have come in the same turn of the event loop; those that
//! come while calls are on their way wait, and go together with the next. There is no timer: the busier Redis is, the more travel
//! together, and the less each costs it.
//!
//! Bounded are the calls on their way, what one call asks of Redis, and what waits. Who has waited too long, or has gone, is left out and
//! charged nothing. Too long is half of the time that there is: were it all of it, whoever gets his turn under more load than Redis bears would
//! get it just before his time is up, and Redis would work for answers that come too late, every one of them.
//!
//! A call that fails fails for those in it, once: nothing is sent a second time.

use std::borrow::Borrow;
use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::script::{Group, Reply};
use crate::store::{Check, StoreError, Verdicts};

/// Calls on their way at one time. One alone would leave Redis idle while its answer travels; with four it has always something to do.
const CALLS: usize = 4;
/// Requests in a call: more would gain little, and keep others waiting.
const REQUESTS: usize = 32;
/// Work in a call, in decisions of a small counter: half a millisecond of Redis's time, and hardly more than one where all of them are dear.
const WORK: u64 = 128;

/// What a request is told.
type Answer = Result<Verdicts, StoreError>;

/// Requests that wait for a call.
pub(super) struct Queue {
    /// How many checks may wait.
    capacity: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    checks: usize,
    /// Tasks that make calls, one after the other, until nothing waits.
    callers: usize,
    /// One of them has only just been started, and will take what waits now.
    starting: bool,
}

struct Request {
    group: Group,
    /// What it asks of Redis, in decisions of a small counter.
    work: u64,
    /// When it has waited too long.
    goes_by: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Requests that go together.
pub(super) struct Batch(Vec<Request>);

impl Queue {
    pub(super) fn new(capacity: usize) -> Queue {
        Queue { capacity, waiting: Mutex::default() }
    }

    /// Puts a request in the queue, unless too many wait. `start` is called where one more task shall make calls, of what is
    /// [`Queue::next`] until nothing is.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] where too many wait.
    pub(super) fn push<C: Borrow<Check>>(
        &self,
        checks: &[C],
        deadline: Instant,
        start: impl FnOnce(),
    ) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let now = Instant::now();
        let goes_by = now + deadline.saturating_duration_since(now) / 2;
        let work = checks.iter().map(|check| check.borrow().work()).sum();
        let request = Request { group: Group::new(checks), work, goes_by, answer };
        let mut waiting = self.waiting.lock();
        if waiting.checks + checks.len() > self.capacity && !waiting.requests.is_empty() {
            return Err(StoreError::Overloaded);
        }
        waiting.checks += checks.len();
        waiting.requests.push_back(request);
        let starts = !waiting.starting && waiting.callers < CALLS;
        if starts {
            waiting.starting = true;
            waiting.callers += 1;
        }
        drop(waiting);
        if starts {
            start();
        }
        Ok(answered)
    }

    /// What goes with the next call; where nothing waits any more, the task that asks ends.
    pub(super) fn next(&self) -> Option<Batch> {
        self.next_at(Instant::now())
    }

    fn next_at(&self, now: Instant) -> Option<Batch> {
        let mut waiting = self.waiting.lock();
        waiting.starting = false;
        let (mut batch, mut work) = (Vec::new(), 0);
        while let Some(request) = waiting.requests.pop_front() {
            if request.goes_by <= now || request.answer.is_closed() {
                waiting.checks -= request.group.checks();
                // Who has gone is not there to be told.
                let _ = request.answer.send(Err(StoreError::Overloaded));
                continue;
            }
            work += request.work;
            if !batch.is_empty() && (batch.len() == REQUESTS || work > WORK) {
                waiting.requests.push_front(request);
                break;
            }
            waiting.checks -= request.group.checks();
            batch.push(request);
        }
        if batch.is_empty() {
            waiting.callers -= 1;
            return None;
        }
        Some(Batch(batch))
    }
}

impl Batch {
    /// What each request asks.
    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> + Clone {
        self.0.iter().map(|request| &request.group)
    }

    /// Before it is sent once more: who has gone meanwhile is charged nothing.
    pub(super) fn leave_out_the_gone(&mut self) {
        self.0.retain(|request| !request.answer.is_closed());
    }

    /// Tells each request its part of the reply, or why there is none.
    pub(super) fn answer(self, reply: Result<Vec<u8>, StoreError>) {
        let counters = self.groups().map(Group::counters).sum();
        let mut reply = reply.and_then(|reply| Reply::new(&reply, counters));
        for request in self.0 {
            let part = match &mut reply {
                Ok(reply) => reply.next(&request.group),
                Err(error) => Err(error.clone()),
            };
            // Who has gone meanwhile is not there to be told.
            let _ = request.answer.send(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Algorithm, Ask, Limit, Options, Penalty};
    use crate::store::{Key, Origin, Penalized};

    fn check(algorithm: Algorithm) -> Check {
        let limit = Limit::new(algorithm, 5_000, Duration::from_secs(1), Options::default()).unwrap();
        Check::new(Key::new("", "test", &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Puts requests of so many checks in the queue, and counts the tasks that are to be started.
    fn push(queue: &Queue, checks: &[usize], algorithm: Algorithm) -> (Vec<oneshot::Receiver<Answer>>, usize) {
        let mut started = 0;
        let one = |count: &usize| queue.push(&vec![check(algorithm); *count], soon(), || started += 1).unwrap();
        (checks.iter().map(one).collect(), started)
    }

    /// What the script answers to a check.
    fn answer(allowed: u8, remaining: u32) -> Vec<u8> {
        [&[allowed][..], &remaining.to_le_bytes(), &[0; 24]].concat()
    }

    fn sizes(batch: Option<Batch>) -> Vec<usize> {
        batch.map_or(Vec::new(), |batch| batch.groups().map(Group::checks).collect())
    }

    #[test]
    fn what_waits_goes_together_and_no_request_is_cut() {
        let queue = Queue::new(1_000);
        let (_answers, started) = push(&queue, &[1, 30, 96, 1, 1, 130, 1], Algorithm::SlidingWindow);
        assert_eq!(started, 1, "the first starts a task, the others join it");
        assert_eq!(sizes(queue.next()), [1, 30, 96, 1]);
        assert_eq!(sizes(queue.next()), [1]);
        assert_eq!(sizes(queue.next()), [130], "one that is larger than a call goes alone");
        assert_eq!(sizes(queue.next()), [1]);
        assert!(queue.next().is_none());
    }

    #[test]
    fn counters_that_are_much_work_go_in_smaller_parts() {
        for (algorithm, number, in_a_call) in [
            (Algorithm::Concurrency, 5_000, 1),
            (Algorithm::SlidingLog, 100_000, 8),
            (Algorithm::SlidingLog, 1_000, 21),
            (Algorithm::TokenBucket, 1_000, 32),
        ] {
            let queue = Queue::new(1_000);
            let limit = Limit::new(algorithm, number, Duration::from_secs(1), Options::default()).unwrap();
            let checks = vec![Check { limit, ..check(algorithm) }];
            let _answers: Vec<_> = (0..40).map(|_| queue.push(&checks, soon(), || {}).unwrap()).collect();
            assert_eq!(sizes(queue.next()).len(), in_a_call, "{algorithm} of {number}");
        }
    }

    #[test]
    fn penalties_of_many_denials_go_in_smaller_parts() {
        let queue = Queue::new(1_000);
        let minute = Duration::from_secs(60);
        let penalty = Penalty::new(1_000, minute, minute, false).unwrap();
        let limited = check(Algorithm::SlidingWindow);
        let penalty = Some(Penalized { key: limited.key.of_penalty(&penalty), penalty });
        let checks = [Check { penalty, ..limited }];
        let _answers: Vec<_> = (0..10).map(|_| queue.push(&checks, soon(), || {}).unwrap()).collect();
        assert_eq!(sizes(queue.next()), [1]);
    }

    #[test]
    fn who_goes_before_a_call_is_made_once_more_is_left_out() {
        let queue = Queue::new(1_000);
        let (mut answers, _) = push(&queue, &[1, 2, 3], Algorithm::SlidingWindow);
        let mut batch = queue.next().unwrap();
        drop(answers.remove(1));
        batch.leave_out_the_gone();
        assert_eq!(sizes(Some(batch)), [1, 3]);
    }

    #[test]
    fn no_more_tasks_are_started_than_calls_may_be_on_their_way() {
        let queue = Queue::new(1_000);
        let mut answers = Vec::new();
        for _ in 0..CALLS {
            let (answer, started) = push(&queue, &[1], Algorithm::SlidingWindow);
            answers.extend(answer);
            assert_eq!(started, 1);
            assert_eq!(sizes(queue.next()), [1]);
        }
        let (answer, started) = push(&queue, &[1, 1], Algorithm::SlidingWindow);
        answers.extend(answer);
        assert_eq!(started, 0, "a task that has its answer takes them");
        assert_eq!(sizes(queue.next()), [1, 1]);
        assert!(queue.next().is_none());
        assert_eq!(push(&queue, &[1], Algorithm::SlidingWindow).1, 1, "one has ended, and another may start");
    }

    #[test]
    fn who_has_gone_is_left_out() {
        let queue = Queue::new(1_000);
        let (mut answers, _) = push(&queue, &[1, 2, 3], Algorithm::SlidingWindow);
        answers.remove(1);
        assert_eq!(sizes(queue.next()), [1, 3]);
    }

    #[test]
    fn who_has_waited_for_half_of_its_time_is_told_so_and_makes_room() {
        let queue = Queue::new(4);
        let (waiting, _) = push(&queue, &[2], Algorithm::SlidingWindow);
        let _patient = queue.push(&[check(Algorithm::SlidingWindow)], soon() + Duration::from_secs(60), || {}).unwrap();
        let half_over = Instant::now() + Duration::from_secs(30);
        assert_eq!(sizes(queue.next_at(half_over)), [1], "the patient one");
        for answer in waiting {
            assert!(matches!(answer.blocking_recv(), Ok(Err(StoreError::Overloaded))));
        }
        push(&queue, &[4], Algorithm::SlidingWindow);
    }

    #[test]
    fn what_waits_is_bounded_but_for_a_request_alone() {
        let queue = Queue::new(4);
        let (_answers, _) = push(&queue, &[6], Algorithm::SlidingWindow);
        let refused = || queue.push(&[check(Algorithm::SlidingWindow)], soon(), || {}).err();
        assert!(matches!(refused(), Some(StoreError::Overloaded)));
        assert_eq!(sizes(queue.next()), [6]);
        assert!(refused().is_none());
    }

    #[test]
    fn each_request_is_told_its_own_part() {
        let queue = Queue::new(1_000);
        let (answers, _) = push(&queue, &[1, 2], Algorithm::SlidingWindow);
        let reply = [answer(1, 7), answer(1, 8), answer(0, 9)].concat();
        queue.next().unwrap().answer(Ok(reply));
        let told = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().unwrap());
        let told: Vec<Vec<(bool, u32)>> = told
            .map(|part| part.iter().flatten().map(|verdict| (verdict.own.allowed, verdict.own.remaining)).collect())
            .collect();
        assert_eq!(told, [vec![(true, 7)], vec![(true, 8), (false, 9)]]);
    }

    #[test]
    fn a_request_that_could_not_be_decided_is_told_why_and_no_other() {
        let queue = Queue::new(1_000);
        let (answers, _) = push(&queue, &[1, 2, 1], Algorithm::SlidingWindow);
        let reply = [&answer(1, 7)[..], &answer(2, 0), &answer(2, 0), &answer(1, 8), b"KEY: it is damaged"].concat();
        queue.next().unwrap().answer(Ok(reply));
        let [first, second, third] = answers.try_into().unwrap();
        assert_eq!(first.blocking_recv().unwrap().unwrap()[0].unwrap().own.remaining, 7);
        let error = second.blocking_recv().unwrap().unwrap_err();
        assert!(matches!(&error, StoreError::Counter(failure) if failure == "KEY: it is damaged"), "{error:?}");
        assert_eq!(third.blocking_recv().unwrap().unwrap()[0].unwrap().own.remaining, 8);
    }

    #[test]
    fn what_is_no_verdict_is_an_error_and_no_denial() {
        let odd = |times: [f64; 3]| [&[1, 0, 0, 0, 0][..], &times.map(f64::to_le_bytes).concat()].concat();
        for reply in
            [answer(0xFF, 7), answer(3, 7), odd([f64::NAN, 0.0, 0.0]), odd([0.0, -2.0, 0.0]), odd([0.0, 0.0, 0.5])]
        {
            let queue = Queue::new(1_000);
            let (answers, _) = push(&queue, &[1], Algorithm::SlidingWindow);
            queue.next().unwrap().answer(Ok(reply));
            let answer = answers.into_iter().next().unwrap().blocking_recv().unwrap();
            assert!(matches!(answer, Err(StoreError::Answer)), "{answer:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error_for_all() {
        let queue = Queue::new(1_000);
        let (answers, _) = push(&queue, &[1, 1], Algorithm::SlidingWindow);
        queue.next().unwrap().answer(Ok(answer(1, 7)));
        for answer in answers {
            assert!(matches!(answer.blocking_recv().unwrap(), Err(StoreError::Answer)));
        }
    }
}
