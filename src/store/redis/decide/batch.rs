//! Sends requests to Redis in batches.
//!
//! A request that arrives while no call is in progress is sent at once, together with others that arrive in the same
//! iteration of the event loop. The same holds while a few calls are in progress, as long as Redis is not busy
//! ([`Pace`]). Other requests wait for the next call. There is no timer: the busier Redis is, the more requests share a
//! call, and the less each costs Redis.
//!
//! [`Pace`]: super::pace::Pace
//!
//! There are bounds on the calls in progress, on the work that one call asks of Redis, and on the queue. A request
//! whose queue deadline has passed or whose caller was cancelled is left out and charged nothing. The queue deadline is
//! half of the request's time. If it were all of it, then under more load than Redis can bear every request would leave
//! the queue just before its deadline, and Redis would only work for answers that come too late.
//!
//! If a call fails, each request in it fails, once: nothing that may have been sent is sent a second time.

use std::borrow::Borrow;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::queue::{Item, Waiting};
use crate::engine::check::group::Votes;
use crate::engine::check::{Check, Partly, StoreError, Verdicts};
use crate::instant;
use crate::spans::{Current, Span, SpanKind};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::connection::{Elsewhere, Fault, reason};
use crate::store::redis::script::{Group, Reply, Slots};

/// The largest number of requests in a call. More would gain little, and keep others waiting.
const REQUESTS: usize = 32;
/// The most work in a call, in decisions of a small counter: half a millisecond of Redis's time, and hardly more than
/// one even if all of them are expensive.
const WORK: u64 = 128;

/// The answer to a request.
pub(crate) type Answer = Result<Verdicts, NodeError>;

/// The reason why a node has not decided a request.
#[derive(Clone, Debug)]
pub(crate) enum NodeError {
    /// The node failed to decide.
    Store(StoreError),
    /// The node does not have the counters, and nothing has happened.
    Elsewhere(Elsewhere),
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> NodeError {
        NodeError::Store(error)
    }
}

impl From<Fault> for NodeError {
    fn from(fault: Fault) -> NodeError {
        match fault {
            Fault::Elsewhere(elsewhere) => NodeError::Elsewhere(elsewhere),
            fault => NodeError::Store(fault.into()),
        }
    }
}

/// The call in which a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Travel {
    /// A call shared with other requests.
    #[default]
    Together,
    /// A separate call. A node of a cluster then reports where counters are that it does not have.
    Alone,
    /// A separate call, to the node that the counters are moving to.
    Asking,
}

/// A request that waits for a call or is in one.
pub(crate) struct PendingRequest {
    group: Group,
    /// The work for Redis, in decisions of a small counter.
    work: u64,
    travel: Travel,
    /// The checks, if one of them must be acknowledged by a replica.
    durable: Option<Box<[Check]>>,
    since: Instant,
    /// Time until the deadline at first, of which half may pass in the queue.
    time: Duration,
    answer: oneshot::Sender<Answer>,
    /// The span of the request, if it is sampled.
    span: Option<Current>,
}

/// Requests that share a call.
pub(crate) struct Batch(Vec<PendingRequest>);

/// What the reply to a batch contained in addition to the verdicts.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    /// An operation that Redis rejected for one of the requests, if any; a counter that fails does not count as a
    /// rejection.
    pub(crate) refusal: Option<StoreError>,
    /// The names of the counters that were damaged and were decided as fresh ones.
    pub(crate) damaged: Vec<Vec<u8>>,
}

impl PendingRequest {
    /// Returns a request for these checks, and the receiver of its answer.
    pub(crate) fn new<C: Borrow<Check>>(
        checks: &[C],
        deadline: Instant,
    ) -> (PendingRequest, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let now = instant::now();
        let time = deadline.saturating_duration_since(now);
        let work = checks.iter().map(|check| check.borrow().work()).sum();
        let (group, travel) = (Group::new(checks), Travel::default());
        let is_durable = checks.iter().map(Borrow::borrow).any(takes_durably);
        let durable = is_durable.then(|| checks.iter().map(|check| check.borrow().clone()).collect());
        (PendingRequest { group, work, travel, durable, since: now, time, answer, span: None }, answered)
    }

    /// Returns the request for counters in these slots, sent in this manner.
    pub(crate) fn to(self, slots: Slots, travel: Travel) -> PendingRequest {
        PendingRequest { group: self.group.within(slots), travel, ..self }
    }

    /// Returns the request with this span.
    pub(crate) fn within(self, span: Option<Current>) -> PendingRequest {
        PendingRequest { span, ..self }
    }

    fn has_gone(&self) -> bool {
        self.answer.is_closed()
    }
}

impl Item for PendingRequest {
    fn size(&self) -> usize {
        self.group.checks()
    }
}

impl Batch {
    /// Takes the next batch from the queue. Returns `None` if nothing waits.
    pub(crate) fn of(waiting: &mut Waiting<PendingRequest>, now: Instant) -> Option<Batch> {
        let (mut batch, mut work) = (Vec::new(), 0);
        while let Some(request) = waiting.pop() {
            let waited = now.saturating_duration_since(request.since);
            if waited >= request.time / 2 || request.has_gone() {
                // The caller may have been cancelled.
                let _ = request.answer.send(Err(StoreError::Waited { waited, of: request.time }.into()));
                continue;
            }
            work += request.work;
            let goes_alone = request.travel != Travel::Together;
            if !batch.is_empty() && (goes_alone || batch.len() == REQUESTS || work > WORK) {
                waiting.put_back(request);
                break;
            }
            batch.push(request);
            if goes_alone {
                break;
            }
        }
        (!batch.is_empty()).then_some(Batch(batch))
    }

    /// Returns whether the waiting requests fill a call.
    pub(crate) fn is_full(waiting: &Waiting<PendingRequest>) -> bool {
        let requests = waiting.iter();
        requests.len() >= REQUESTS || requests.map(|request| request.work).sum::<u64>() >= WORK
    }

    /// Returns the number of requests in the batch.
    pub(crate) fn requests(&self) -> usize {
        self.0.len()
    }

    /// Returns the group of checks of each request.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> + Clone {
        self.0.iter().map(|request| &request.group)
    }

    /// Returns whether the counters are moving to the node that is asked.
    pub(crate) fn is_asking(&self) -> bool {
        self.0.iter().any(|request| request.travel == Travel::Asking)
    }

    /// Returns the span of the call if a request in it is sampled. It is a child of the first sampled request's span,
    /// and the others link to it.
    pub(crate) fn span(&self) -> Option<Span> {
        let mut sampled = self.0.iter().filter_map(|request| request.span.as_ref());
        let call = sampled.next()?.child("EVALSHA", SpanKind::Client);
        call.set("db.system.name", "redis");
        call.set("db.operation.name", "EVALSHA");
        call.set("tollgate.requests", self.0.len() as i64);
        sampled.for_each(|other| other.link(&call));
        Some(call)
    }

    /// Removes requests from cancelled callers, before the call is repeated. They are charged nothing.
    pub(crate) fn leave_out_the_gone(&mut self) {
        self.0.retain(|request| !request.has_gone());
    }

    /// Answers each request with its part of the reply, or with the error.
    pub(crate) fn answer(self, reply: Result<Vec<u8>, NodeError>) -> Answered {
        self.answer_heard(reply, None)
    }

    /// Answers each request, as `answer` does, when for this reason no replica is known to have received the call.
    pub(crate) fn answer_heard(self, reply: Result<Vec<u8>, NodeError>, unheard: Option<StoreError>) -> Answered {
        let counters = self.groups().map(Group::counters).sum();
        let mut reply = reply.and_then(|reply| Ok(Reply::new(&reply, counters)?));
        let mut refusal = None;
        for request in self.0 {
            let part = match &mut reply {
                Ok(reply) => part(reply, &request.group),
                Err(error) => Err(error.clone()),
            };
            let part = match (part, &unheard, &request.durable) {
                (Ok(verdicts), Some(why), Some(checks)) => without_unheard(checks, verdicts, why),
                (part, ..) => part,
            };
            if let Err(NodeError::Store(error @ (StoreError::Refused(_) | StoreError::Answer))) = &part {
                refusal = Some(error.clone());
            }
            // The caller may have been cancelled meanwhile.
            let _ = request.answer.send(part);
        }
        Answered { refusal, damaged: reply.map(Reply::into_damaged).unwrap_or_default() }
    }
}

/// Returns whether a replica must confirm the check before its request passes: it is durable, and takes hits.
pub(super) fn takes_durably(check: &Check) -> bool {
    check.durable && check.ask.taken() > 0
}

/// Withholds verdicts of durable limits that let pass, because no replica is known to have received them. A request
/// that is denied stays denied.
fn without_unheard(checks: &[Check], verdicts: Verdicts, why: &StoreError) -> Answer {
    let mut votes = Votes::default();
    let mut decided = verdicts.clone();
    for (check, verdict) in checks.iter().zip(&mut decided) {
        let passes = verdict.is_some_and(|verdict| verdict.allowed());
        votes.add(check.role, check, !passes);
        if passes && takes_durably(check) {
            *verdict = None;
        }
    }
    if votes.deny() || decided == verdicts {
        return Ok(verdicts);
    }
    if decided.iter().all(Option::is_none) {
        return Err(NodeError::Store(why.clone()));
    }
    Err(NodeError::Store(StoreError::Partly(Box::new(Partly { decided, denied: false, error: why.clone() }))))
}

/// Returns the answer to a request from the next part of a reply.
fn part(reply: &mut Reply, group: &Group) -> Answer {
    let is_elsewhere = reply.is_elsewhere(group);
    match reply.next(group) {
        _ if is_elsewhere => Err(NodeError::Elsewhere(Elsewhere::Untold)),
        Err(StoreError::Counter(failure)) => Err(NodeError::Store(match Cause::known(reason(&failure)) {
            Some(cause) => StoreError::Refused(cause.to_string().into()),
            None => StoreError::Counter(failure),
        })),
        part => Ok(part?),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Limit, Options, Penalty};
    use crate::engine::check::{Key, Origin, Penalized};
    use crate::store::redis::decide::queue::{Permit, Queue};
    use crate::store::redis::script::TIME;

    fn check(algorithm: Algorithm) -> Check {
        let limit = Limit::new(algorithm, 5_000, Duration::from_secs(1), Options::default()).unwrap();
        Check::new(Key::new("", "test", &[], |_| None, &limit, Origin::Rule), limit, Ask::Take(1))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A queue, and its only permit to make calls.
    struct Scene {
        queue: Arc<Queue<PendingRequest>>,
        permit: Option<Permit<PendingRequest>>,
    }

    type Answered = oneshot::Receiver<Answer>;

    impl Scene {
        fn new(capacity: usize) -> Scene {
            Scene { queue: Arc::new(Queue::new(capacity, 1)), permit: None }
        }

        /// Returns `None` if the queue is full.
        fn push(&mut self, checks: &[Check], deadline: Instant) -> Option<Answered> {
            let (request, answered) = PendingRequest::new(checks, deadline);
            let permit = self.queue.push(request, |_| true).ok()?;
            self.permit = self.permit.take().or(permit);
            Some(answered)
        }

        /// Queues requests with these numbers of checks.
        fn push_all(&mut self, checks: &[usize]) -> Vec<Answered> {
            let checks = checks.iter().map(|count| vec![check(Algorithm::SlidingWindow); *count]);
            checks.map(|checks| self.push(&checks, soon()).unwrap()).collect()
        }

        fn next(&mut self) -> Option<Batch> {
            self.next_at(Instant::now())
        }

        fn next_at(&mut self, now: Instant) -> Option<Batch> {
            Permit::take(&mut self.permit, |waiting| Batch::of(waiting, now))
        }
    }

    /// The time, at the start of the script's reply.
    const AT: [u8; TIME] = [0; TIME];

    /// Returns the script's reply to a check.
    fn answer(allowed: u8, remaining: u32) -> Vec<u8> {
        [&[allowed][..], &f64::from(remaining).to_le_bytes(), &[0; 24]].concat()
    }

    fn sizes(batch: Option<Batch>) -> Vec<usize> {
        batch.map_or(Vec::new(), |batch| batch.groups().map(Group::checks).collect())
    }

    #[test]
    fn what_waits_goes_together_and_no_request_is_cut() {
        let mut scene = Scene::new(1_000);
        let _answers = scene.push_all(&[1, 30, 96, 1, 1, 130, 1]);
        assert_eq!(sizes(scene.next()), [1, 30, 96, 1]);
        assert_eq!(sizes(scene.next()), [1]);
        assert_eq!(sizes(scene.next()), [130], "one that is larger than a call goes alone");
        assert_eq!(sizes(scene.next()), [1]);
        assert!(scene.next().is_none());
    }

    #[test]
    fn what_fills_a_call_is_full_and_one_less_is_not() {
        for (algorithm, number, full) in [
            (Algorithm::TokenBucket, 5_000, 32),
            (Algorithm::SlidingLog, 100_000, 8),
            (Algorithm::Concurrency, 5_000, 1),
        ] {
            let mut scene = Scene::new(1_000);
            let limit = Limit::new(algorithm, number, Duration::from_secs(1), Options::default()).unwrap();
            let checks = vec![Check { limit, ..check(algorithm) }];
            for waiting in 1..=full {
                let (request, _) = PendingRequest::new(&checks, soon());
                let asked = |requests: &Waiting<PendingRequest>| {
                    assert_eq!(Batch::is_full(requests), waiting == full, "{waiting} of {algorithm}");
                    false
                };
                // The first is not asked, because no call is in progress.
                scene.permit = scene.permit.take().or(scene.queue.push(request, asked).ok().unwrap());
            }
        }
    }

    #[test]
    fn counters_that_are_much_work_go_in_smaller_parts() {
        for (algorithm, number, in_a_call) in [
            (Algorithm::Concurrency, 5_000, 1),
            (Algorithm::SlidingLog, 100_000, 8),
            (Algorithm::SlidingLog, 1_000, 21),
            (Algorithm::TokenBucket, 1_000, 32),
        ] {
            let mut scene = Scene::new(1_000);
            let limit = Limit::new(algorithm, number, Duration::from_secs(1), Options::default()).unwrap();
            let checks = vec![Check { limit, ..check(algorithm) }];
            let _answers: Vec<_> = (0..40).map(|_| scene.push(&checks, soon()).unwrap()).collect();
            assert_eq!(sizes(scene.next()).len(), in_a_call, "{algorithm} of {number}");
        }
    }

    #[test]
    fn penalties_of_many_denials_go_in_smaller_parts() {
        let mut scene = Scene::new(1_000);
        let minute = Duration::from_secs(60);
        let penalty = Penalty::new(1_000, minute, minute, false).unwrap();
        let limited = check(Algorithm::SlidingWindow);
        let penalty = Some(Penalized { key: limited.key.of_penalty(&penalty), penalty });
        let checks = [Check { penalty, ..limited }];
        let _answers: Vec<_> = (0..10).map(|_| scene.push(&checks, soon()).unwrap()).collect();
        assert_eq!(sizes(scene.next()), [1]);
    }

    #[test]
    fn a_request_whose_caller_goes_before_a_call_is_made_once_more_is_left_out() {
        let mut scene = Scene::new(1_000);
        let mut answers = scene.push_all(&[1, 2, 3]);
        let mut batch = scene.next().unwrap();
        drop(answers.remove(1));
        batch.leave_out_the_gone();
        assert_eq!(sizes(Some(batch)), [1, 3]);
    }

    #[test]
    fn a_request_whose_caller_has_gone_is_left_out() {
        let mut scene = Scene::new(1_000);
        let mut answers = scene.push_all(&[1, 2, 3]);
        answers.remove(1);
        assert_eq!(sizes(scene.next()), [1, 3]);
    }

    #[test]
    fn a_request_that_has_waited_for_half_of_its_time_fails_and_makes_room() {
        let mut scene = Scene::new(4);
        let waiting = scene.push_all(&[2]);
        let _more_time = scene.push(&[check(Algorithm::SlidingWindow)], soon() + Duration::from_secs(60)).unwrap();
        let half_over = Instant::now() + Duration::from_secs(30);
        assert_eq!(sizes(scene.next_at(half_over)), [1], "the one that has more time");
        for answer in waiting {
            assert!(matches!(answer.blocking_recv(), Ok(Err(NodeError::Store(StoreError::Waited { .. })))));
        }
        scene.push_all(&[4]);
    }

    #[test]
    fn what_waits_is_bounded_but_for_a_request_alone() {
        let mut scene = Scene::new(4);
        let _answers = scene.push_all(&[6]);
        let one = [check(Algorithm::SlidingWindow)];
        assert!(scene.push(&one, soon()).is_none());
        assert_eq!(sizes(scene.next()), [6]);
        assert!(scene.push(&one, soon()).is_some());
    }

    #[test]
    fn each_request_gets_its_own_part() {
        let mut scene = Scene::new(1_000);
        let answers = scene.push_all(&[1, 2]);
        let reply = [&AT[..], &answer(1, 7), &answer(1, 8), &answer(0, 9)].concat();
        assert!(scene.next().unwrap().answer(Ok(reply)).refusal.is_none());
        let answered = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().unwrap());
        let answered: Vec<Vec<(bool, u64)>> = answered
            .map(|part| part.iter().flatten().map(|verdict| (verdict.own.allowed, verdict.own.remaining)).collect())
            .collect();
        assert_eq!(answered, [vec![(true, 7)], vec![(true, 8), (false, 9)]]);
    }

    /// Answers three requests, the second of which is undecided because of this failure.
    fn undecided(failure: &str) -> (Option<StoreError>, [Answer; 3]) {
        let mut scene = Scene::new(1_000);
        let answers = scene.push_all(&[1, 2, 1]);
        let reply = [&AT[..], &answer(1, 7), &answer(2, 0), &answer(2, 0), &answer(1, 8), failure.as_bytes()].concat();
        let refusal = scene.next().unwrap().answer(Ok(reply)).refusal;
        let answers: Vec<Answer> = answers.into_iter().map(|answer| answer.blocking_recv().unwrap()).collect();
        (refusal, answers.try_into().unwrap())
    }

    #[test]
    fn a_request_that_could_not_be_decided_learns_why_and_no_other() {
        let (refusal, [first, second, third]) = undecided("{KEY}|fw1:1: it is damaged");
        assert_eq!(first.unwrap()[0].unwrap().own.remaining, 7);
        let Err(NodeError::Store(StoreError::Counter(failure))) = second else { panic!("it is damaged") };
        assert_eq!(failure, "{KEY}|fw1:1: it is damaged");
        assert_eq!(third.unwrap()[0].unwrap().own.remaining, 8);
        assert!(refusal.is_none(), "a damaged counter is no reason to suspect Redis");
    }

    #[test]
    fn a_damaged_counter_is_named_and_its_request_is_decided() {
        let mut scene = Scene::new(1_000);
        let answers = scene.push_all(&[1, 1]);
        let reply = [&AT[..], &answer(1, 7), &answer(5, 4_999)].concat();
        let damaged = scene.next().unwrap().answer(Ok(reply)).damaged;
        let names: Vec<_> = damaged.iter().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(names, [check(Algorithm::SlidingWindow).key.as_str()]);
        let second = answers.into_iter().nth(1).unwrap().blocking_recv().unwrap().unwrap();
        assert!(second[0].unwrap().own.allowed);
    }

    #[test]
    fn where_no_replica_has_heard_of_it_only_what_a_durable_limit_lets_pass_is_undecided() {
        let refused = || StoreError::Refused("nobody has heard of it".into());
        let ask = |durable: &[bool], allowed: &[u8]| {
            let mut scene = Scene::new(1_000);
            let checks = durable.iter().map(|durable| Check { durable: *durable, ..check(Algorithm::TokenBucket) });
            let answer_to = scene.push(&checks.collect::<Vec<_>>(), soon()).unwrap();
            let reply = allowed.iter().flat_map(|allowed| answer(*allowed, 7));
            let reply = AT.into_iter().chain(reply).collect();
            scene.next().unwrap().answer_heard(Ok(reply), Some(refused()));
            match answer_to.blocking_recv().unwrap() {
                Ok(verdicts) => verdicts.iter().map(Option::is_some).collect(),
                Err(NodeError::Store(StoreError::Partly(partly))) if !partly.denied => {
                    partly.decided.iter().map(Option::is_some).collect()
                }
                Err(NodeError::Store(StoreError::Refused(_))) => Vec::new(),
                Err(error) => panic!("{error:?}"),
            }
        };
        assert_eq!(ask(&[true], &[1]), [false; 0]);
        assert_eq!(ask(&[true], &[0]), [true]);
        assert_eq!(ask(&[false, true], &[1, 1]), [true, false]);
        assert_eq!(ask(&[false, true], &[0, 1]), [true, true], "it is denied anyway");
        assert_eq!(ask(&[false], &[1]), [true]);
    }

    #[test]
    fn where_redis_refuses_within_the_script_the_request_learns_it_and_not_the_name_of_a_counter() {
        let (refusal, [_, second, _]) = undecided("{KEY}|fw1:1: OOM command: not allowed");
        assert!(
            matches!(second, Err(NodeError::Store(StoreError::Refused(cause))) if *cause == *Cause::Full.to_string())
        );
        assert!(refusal.is_some());
    }

    #[test]
    fn what_is_no_verdict_is_an_error_and_no_denial() {
        let odd = |times: [f64; 3]| [&[1, 0, 0, 0, 0][..], &times.map(f64::to_le_bytes).concat()].concat();
        for reply in
            [answer(0xFF, 7), answer(8, 7), odd([f64::NAN, 0.0, 0.0]), odd([0.0, -2.0, 0.0]), odd([0.0, 0.0, 0.5])]
        {
            let mut scene = Scene::new(1_000);
            let answers = scene.push_all(&[1]);
            assert!(scene.next().unwrap().answer(Ok([&AT[..], &reply].concat())).refusal.is_some());
            let answer = answers.into_iter().next().unwrap().blocking_recv().unwrap();
            assert!(matches!(answer, Err(NodeError::Store(StoreError::Answer))), "{answer:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error_for_all() {
        let mut scene = Scene::new(1_000);
        let answers = scene.push_all(&[1, 1]);
        scene.next().unwrap().answer(Ok([&AT[..], &answer(1, 7)].concat()));
        for answer in answers {
            assert!(matches!(answer.blocking_recv().unwrap(), Err(NodeError::Store(StoreError::Answer))));
        }
    }
}
