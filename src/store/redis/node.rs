//! One Redis as one worker asks it: the link, which the workers share, and the worker's own queue.
//!
//! **Order.** What one request takes and another refunds of the same counter reach Redis in the order in which
//! they were asked, so that a refund does not come before what it refunds:
//! - All calls of a worker go over one connection at a time. They are taken from the queue and handed to the connection
//!   in one step, and a connection keeps its order, as Redis does.
//! - A worker that has lost its connection goes on over another at once. The calls that were on their way have failed:
//!   nobody knows what became of them, nor does order mean anything to them.
//! - It comes back to a connection of its own while no call of its is on the way.
//! - What two workers ask has an order only where one request is asked when another has been answered: Redis had
//!   decided that by then, whatever the connections. A proxy that does not wait for the answer, because its client has
//!   gone, sends both over one HTTP/2 connection, and so to one worker.
//!
//! Where somebody makes Redis forget the script (`SCRIPT FLUSH`), calls that are on their way at that moment go a
//! second time, and may then be overtaken.

use std::borrow::Borrow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::batch::{Batch, NodeError, Request, Travel};
use super::connection::{Call, Connection, Fault, Manner};
use super::link::Link;
use super::pace::Pace;
use super::queue::{Permit, Queue, Waiting};
use super::script::{self, Slots};
use crate::spans::{Current, Span};
use crate::store::{Check, StoreError, Verdicts};

/// Calls on their way at one time. One alone would leave Redis idle while its answer travels; with four it has always
/// something to do. Where Redis is busy, only full calls go beside another.
const CALLS: usize = 4;

/// The same where a replica is to hear of each: Redis does nothing else for the connection while it waits for that.
const DURABLE_CALLS: usize = 1;

pub(super) struct Node {
    link: Arc<Link>,
    worker: usize,
    /// A replica is to hear of what is asked.
    is_durable: bool,
    queue: Arc<Queue<Request>>,
    /// The connection that calls go over. Its lock is held while a call is taken from the queue and handed over.
    over: Mutex<Option<Arc<Connection>>>,
    pace: Mutex<Pace>,
}

/// What a request asks.
pub(super) struct Asking<'c, C> {
    pub(super) checks: &'c [C],
    pub(super) deadline: Instant,
    /// Where the counters lie, and with what they go.
    pub(super) slots: Slots,
    pub(super) travel: Travel,
    /// Within which it asks, where it is sampled.
    pub(super) span: Option<Current>,
}

/// A call on its way.
struct Sent {
    batch: Batch,
    connection: Arc<Connection>,
    call: Call,
    at: Instant,
    /// How often the script had been loaded before.
    loads: u64,
    /// Where a request in it is sampled.
    span: Option<Span>,
}

impl Node {
    pub(super) fn new(link: Arc<Link>, worker: usize, capacity: usize) -> Node {
        let queue = Arc::new(Queue::new(capacity, CALLS));
        Node { link, worker, is_durable: false, queue, over: Mutex::default(), pace: Mutex::default() }
    }

    /// The same Redis by a connection of its own, for what a replica is to hear of. It is made when it is first needed.
    pub(super) fn durable(link: Arc<Link>, worker: usize, capacity: usize) -> Node {
        let queue = Arc::new(Queue::new(capacity, DURABLE_CALLS));
        Node { is_durable: true, queue, ..Node::new(link, worker, capacity) }
    }

    /// Decides a request.
    pub(super) async fn ask<C: Borrow<Check>>(
        self: &Arc<Self>,
        Asking { checks, deadline, slots, travel, span }: Asking<'_, C>,
    ) -> Result<Verdicts, NodeError> {
        self.link.admit()?;
        if self.is_durable {
            self.link.make_durable(self.worker, deadline).await;
        }
        let (request, answer) = Request::new(checks, deadline);
        let request = request.to(slots, travel).within(span);
        let permit = self.queue.push(request, |waiting| self.is_worth_another(waiting));
        if let Some(permit) = permit.map_err(|_| StoreError::Overloaded)? {
            tokio::spawn(Arc::clone(self).call_until_nothing_waits(permit));
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::Connection("the task that made the call has ended".into()).into()),
            Err(_) => Err(StoreError::Timeout.into()),
        }
    }

    async fn call_until_nothing_waits(self: Arc<Self>, permit: Permit<Request>) {
        let mut permit = Some(permit);
        while permit.is_some() {
            // A panic fails the requests of one call, and takes the permit from no other.
            if AssertUnwindSafe(self.call(&mut permit)).catch_unwind().await.is_err() {
                tracing::error!("a call to redis has panicked: its requests are answered by their failure modes");
            }
        }
    }

    /// Makes one call.
    async fn call(&self, permit: &mut Option<Permit<Request>>) {
        let Some(Sent { mut batch, connection, call, at, loads, span }) = self.send(permit) else { return };
        let timeout = self.link.timeout();
        let mut reply = call.wait(timeout).await;
        self.note_pace(at, reply.is_ok());
        // It has done nothing then.
        if let Err(Fault::NoScript) = reply {
            reply = match self.link.load(&connection, loads).await {
                Ok(()) => {
                    batch.leave_out_the_gone();
                    self.hand_over(&connection, &batch).wait(timeout).await
                }
                Err(fault) => Err(fault),
            };
        }
        if let Err(fault) = &reply {
            self.link.note(&connection, fault);
            span.iter().for_each(|span| span.fail(fault.kind()));
        }
        // It ends before those of the requests do.
        drop(span);
        let failed = reply.is_err();
        let refusal = match reply {
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
        match refusal {
            _ if failed => {}
            Some(_) => connection.note_refusal(),
            None => connection.note_answer(),
        }
    }

    /// Whether what waits shall travel beside calls that are on their way: where Redis is busy, only what fills a call.
    fn is_worth_another(&self, waiting: &Waiting<Request>) -> bool {
        !self.pace.lock().is_busy() || Batch::is_full(waiting)
    }

    fn note_pace(&self, sent: Instant, is_answered: bool) {
        let (mut pace, now) = (self.pace.lock(), Instant::now());
        if is_answered { pace.note(now - sent, now) } else { pace.forget() }
    }

    /// Takes what waits and hands it to a connection, to the next one where that turns out to be closed. `None` where
    /// nothing waits.
    fn send(&self, permit: &mut Option<Permit<Request>>) -> Option<Sent> {
        let mut over = self.over.lock();
        loop {
            let go_home = self.choose(&mut over);
            let batch = Permit::take(permit, |waiting| {
                // The holders of the other permits go on for this one.
                let leave = waiting.has_other_holders() && (go_home.is_some() || !self.is_worth_another(waiting));
                if leave { None } else { Batch::of(waiting, Instant::now()) }
            })?;
            if go_home.is_some() {
                *over = go_home;
            }
            while let Some(connection) = over.clone() {
                let loads = self.link.loads();
                let span = batch.span();
                let (at, call) = (Instant::now(), self.hand_over(&connection, &batch));
                if !connection.never_sent(&call) {
                    self.link.note_call(batch.requests());
                    return Some(Sent { batch, connection, call, at, loads, span });
                }
                span.iter().for_each(|span| span.fail("connection"));
                self.link.note(&connection, &Fault::Lost("Redis has closed it".to_owned()));
                *over = self.any();
            }
            batch.answer(Err(self.link.down().into()));
        }
    }

    /// Sees to it that calls go over a connection that serves, if there is any. Gives the one of this worker's own that
    /// they should go over as soon as no other call is on its way.
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

    /// A connection for the calls of this node, if there is any.
    fn any(&self) -> Option<Arc<Connection>> {
        if self.is_durable { self.link.choose_durable(self.worker) } else { self.link.choose(self.worker) }
    }

    fn hand_over(&self, connection: &Connection, batch: &Batch) -> Call {
        // Half of what silence is, lest it be taken for that.
        let heard_within = self.is_durable.then(|| self.link.timeout() / 2);
        let manner = Manner { is_asking: batch.is_asking(), heard_within };
        connection.send_as(script::call(batch.groups()), manner)
    }
}
