//! One node of Redis, as one worker uses it: the link, which the workers share, and the worker's own queue.
//!
//! **Order.** If one request takes hits of a counter and another refunds hits of it, they reach Redis in the order in
//! which they were asked, and a refund never precedes its take:
//! - All calls of a worker go over one connection at a time. They are taken from the queue and handed to the connection
//!   in one step, and a connection keeps its order, as Redis does.
//! - A worker that has lost its connection continues over another one at once. The calls in progress have failed: it is
//!   unknown whether Redis executed them, and their order does not matter.
//! - It returns to one of its own connections when no call of the worker is in progress.
//! - Requests of two workers are ordered only if one is asked after the other was answered. Redis has decided the first
//!   by then, whatever the connections. A proxy that does not wait for the answer because its client has gone sends
//!   both over one HTTP/2 connection, and therefore to one worker.
//!
//! If someone makes Redis drop the script (`SCRIPT FLUSH`), calls in progress at that moment are sent a second time,
//! and later calls may overtake them.

use std::borrow::Borrow;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::{FutureExt as _, poll};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::batch::{Answered, Batch, NodeError, PendingRequest, Travel};
use super::pace::Pace;
use super::queue::{Permit, Queue, Waiting};
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::spans::{Current, Span};
use crate::store::redis::deadlines::Deadlines;
use crate::store::redis::link::Link;
use crate::store::redis::link::connection::{Call, Connection, Fault, Manner};
use crate::store::redis::script::{self, Slots};

/// The largest number of calls in progress. A single call would leave Redis idle while its answer travels; with four,
/// Redis always has work. While Redis is busy, only full calls are sent in parallel.
const CALLS: usize = 4;

/// The same for calls that a replica must acknowledge: while it waits for the replica, Redis handles nothing else on
/// the connection.
const DURABLE_CALLS: usize = 1;

pub(crate) struct Batcher {
    link: Arc<Link>,
    worker: usize,
    /// Whether a replica must acknowledge the calls.
    is_durable: bool,
    queue: Arc<Queue<PendingRequest>>,
    /// The connection in use. Its lock is held while a call is taken from the queue and handed over.
    over: Mutex<Option<Arc<Connection>>>,
    pace: Mutex<Pace>,
    deadlines: Deadlines,
}

/// The contents of a request.
pub(crate) struct Asking<'c, C> {
    pub(crate) checks: &'c [C],
    pub(crate) deadline: Instant,
    /// The slots of the counters, and the call in which the request is sent.
    pub(crate) slots: Slots,
    pub(crate) travel: Travel,
    /// The span of the request, if it is sampled.
    pub(crate) span: Option<Current>,
}

/// A call in progress.
struct Sent {
    batch: Batch,
    connection: Arc<Connection>,
    call: Call,
    at: Instant,
    /// Number of times the scripts had been loaded before the call.
    loads: u64,
    /// The span of the call, if a request in it is sampled.
    span: Option<Span>,
}

impl Batcher {
    pub(crate) fn new(link: Arc<Link>, worker: usize, capacity: usize) -> Batcher {
        let queue = Arc::new(Queue::new(capacity, CALLS));
        let (over, pace, deadlines) = (Mutex::default(), Mutex::default(), Deadlines::default());
        Batcher { link, worker, is_durable: false, queue, over, pace, deadlines }
    }

    /// Returns a node for durable limits, with a separate connection that is made when it is first needed.
    pub(crate) fn durable(link: Arc<Link>, worker: usize, capacity: usize) -> Batcher {
        let queue = Arc::new(Queue::new(capacity, DURABLE_CALLS));
        Batcher { is_durable: true, queue, ..Batcher::new(link, worker, capacity) }
    }

    /// Decides a request.
    pub(crate) async fn ask<C: Borrow<Check>>(
        self: &Arc<Self>,
        Asking { checks, deadline, slots, travel, span }: Asking<'_, C>,
    ) -> Result<Verdicts, NodeError> {
        self.link.admit()?;
        if self.is_durable {
            // Boxed to keep the future of other requests small.
            Box::pin(self.link.make_durable(self.worker, deadline)).await;
            // The old master decides until the new one is named, and a replica that is not promoted confirms it: what
            // such a replica has heard is lost.
            if self.link.is_failing_over() {
                return Err(StoreError::Down(
                    "a failover is in progress: durable limits wait for the new master".into(),
                )
                .into());
            }
        }
        let (request, answer) = PendingRequest::new(checks, deadline);
        let request = request.to(slots, travel).within(span);
        let permit = self.queue.push(request, |waiting| self.is_worth_another(waiting));
        if let Some(permit) = permit.map_err(|_| StoreError::Overloaded)? {
            tokio::spawn(Arc::clone(self).call_until_nothing_waits(permit));
        }
        match answer_by(&self.deadlines, deadline, answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(StoreError::Connection("the task that made the call has ended".into()).into()),
            None => Err(StoreError::Timeout.into()),
        }
    }

    async fn call_until_nothing_waits(self: Arc<Self>, permit: Permit<PendingRequest>) {
        let mut permit = Some(permit);
        while permit.is_some() {
            // A panic fails only the requests of one call, and no other call loses its permit.
            if AssertUnwindSafe(self.call(&mut permit)).catch_unwind().await.is_err() {
                tracing::error!("a panic in a call to redis: failure modes answer its requests");
            }
        }
    }

    /// Makes one call.
    async fn call(&self, permit: &mut Option<Permit<PendingRequest>>) {
        let Some(Sent { mut batch, connection, call, at, loads, span }) = self.send(permit) else { return };
        let timeout = self.link.timeout();
        let mut reply = call.wait_by(&self.deadlines, timeout).await;
        self.note_pace(at, reply.is_ok());
        // Redis has executed nothing then.
        if let Err(Fault::NoScript) = reply {
            reply = match self.link.load(&connection, loads).await {
                Ok(()) => {
                    batch.leave_out_the_gone();
                    match self.hand_over(&connection, &batch) {
                        Ok(call) => call.wait_by(&self.deadlines, timeout).await,
                        Err(fault) => Err(fault),
                    }
                }
                Err(fault) => Err(fault),
            };
        }
        if let Err(fault) = &reply {
            self.link.note(&connection, fault);
            span.iter().for_each(|span| span.fail(fault.kind()));
        }
        match &reply {
            Ok(_) if self.is_durable => self.link.note_confirmation(true),
            Err(Fault::Unheard { .. }) => self.link.note_confirmation(false),
            _ => {}
        }
        // The span of the call ends before those of the requests.
        drop(span);
        let failed = reply.is_err();
        let Answered { refusal, damaged } = match reply {
            Err(Fault::Unheard { reply, why }) => {
                batch.answer_heard(Ok(reply), Some(StoreError::Refused(why.to_string().into())))
            }
            Err(Fault::Elsewhere(elsewhere)) => {
                let elsewhere = elsewhere.said_by(connection.place());
                let is_shared = batch.groups().nth(1).is_some();
                batch.answer(Err(NodeError::Elsewhere(if is_shared { elsewhere.of_several() } else { elsewhere })))
            }
            reply => batch.answer(reply.map_err(NodeError::from)),
        };
        self.link.note_damaged(damaged);
        match refusal {
            _ if failed => {}
            Some(_) => connection.note_refusal(),
            None => connection.note_answer(),
        }
    }

    /// Returns whether the waiting requests justify a call in parallel with others. While Redis is busy, they must fill
    /// it.
    fn is_worth_another(&self, waiting: &Waiting<PendingRequest>) -> bool {
        !self.pace.lock().is_busy() || Batch::is_full(waiting)
    }

    fn note_pace(&self, sent: Instant, is_answered: bool) {
        let (mut pace, now) = (self.pace.lock(), Instant::now());
        if is_answered { pace.note(now - sent, now) } else { pace.forget() }
    }

    /// Takes a batch from the queue and hands it to a connection, or to the next one if that turns out to be closed.
    /// Returns `None` if nothing waits.
    fn send(&self, permit: &mut Option<Permit<PendingRequest>>) -> Option<Sent> {
        let mut over = self.over.lock();
        loop {
            let go_home = self.choose(&mut over);
            let batch = Permit::take(permit, |waiting| {
                // The holders of the other permits continue in place of this one.
                let leave = waiting.has_other_holders() && (go_home.is_some() || !self.is_worth_another(waiting));
                if leave { None } else { Batch::of(waiting, Instant::now()) }
            })?;
            if go_home.is_some() {
                *over = go_home;
            }
            while let Some(connection) = over.clone() {
                let loads = self.link.loads();
                let span = batch.span();
                let at = Instant::now();
                let fault = match self.hand_over(&connection, &batch) {
                    Ok(call) if !connection.never_sent(&call) => {
                        self.link.note_call(batch.requests());
                        return Some(Sent { batch, connection, call, at, loads, span });
                    }
                    Ok(_) => Fault::Lost("Redis has closed it".to_owned()),
                    Err(fault) => fault,
                };
                span.iter().for_each(|span| span.fail("connection"));
                self.link.note(&connection, &fault);
                *over = self.any();
            }
            batch.answer(Err(self.link.down().into()));
        }
    }

    /// Makes sure that calls go over a connection that serves, if there is one. Returns this worker's own connection if
    /// calls should move to it once no other call is in progress.
    fn choose(&self, over: &mut Option<Arc<Connection>>) -> Option<Arc<Connection>> {
        match over {
            Some(connection) if connection.serves() && (connection.worker() == self.worker || self.is_durable) => None,
            Some(connection) if connection.serves() => self.link.own(self.worker),
            _ => {
                *over = self.any();
                None
            }
        }
    }

    /// Returns a connection for the calls of this node, if there is one.
    fn any(&self) -> Option<Arc<Connection>> {
        if self.is_durable { self.link.choose_durable(self.worker) } else { self.link.choose(self.worker) }
    }

    fn hand_over(&self, connection: &Connection, batch: &Batch) -> Result<Call, Fault> {
        let confirmation = if self.is_durable { Some(self.link.confirmation(connection)?) } else { None };
        let manner = Manner { is_asking: batch.is_asking(), confirmation };
        Ok(connection.send_as(script::call(batch.groups()), manner))
    }
}

/// Number of turns of the event loop before an expired timer is believed: one each to read the reply, to take it in the
/// call, and to hand the request its part.
const TURNS: usize = 4;

/// Returns the answer if it comes before this time. A process that did not run for a while finds that its timers have
/// expired, together with replies that came in time. Available replies are therefore read first.
async fn answer_by<A>(deadlines: &Deadlines, deadline: Instant, answer: impl Future<Output = A>) -> Option<A> {
    let mut answer = pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return Some(answer),
        () = deadlines.passed(deadline) => {}
    }
    for _ in 0..TURNS {
        yield_now().await;
        if let Poll::Ready(answer) = poll!(&mut answer) {
            return Some(answer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::Duration;

    use super::*;

    /// The reader of the connection, the task of the call and the caller take turns.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_came_in_time_is_taken_however_late_the_process_runs() {
        let deadline = Instant::now() + Duration::from_millis(100);
        let (read, reply) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep_until(deadline - Duration::from_millis(1)).await;
            let _ = read.send(());
        });
        tokio::spawn(async move {
            let _ = answer.send(reply.await);
        });
        let asked = tokio::spawn(async move { answer_by(&Deadlines::default(), deadline, answered).await });
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(matches!(asked.await.unwrap(), Some(Ok(Ok(())))));
        let (_never, answered) = oneshot::channel::<()>();
        assert!(answer_by(&Deadlines::default(), deadline, answered).await.is_none());
    }
}
