//! A connection's round: some of what has come is read, the calls in it are begun, what is answered goes out, and other connections have theirs.
//!
//! Left alone, hyper reads all that there is, on every connection, and starts a task for each call before any of them is answered. Where there is
//! more than can be answered that is up to a megabyte for each connection, thousands of calls: what they need takes hundreds of megabytes and has
//! left every cache when they run, whoever waits waits for all of them, and the backlog feeds itself.
//!
//! A call is polled here and not in a task of its own: thirty that are answered by one reply of the store wake the connection once, go out
//! together, and cost no task each.

use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;

/// So many bytes are read in a round, and once up to what a buffer takes: about a hundred calls.
pub(super) const BYTES: usize = 16 * 1024;

/// The rounds of one connection, and its calls. Those that wait when it is dropped are given up.
#[derive(Default)]
pub(super) struct Rounds {
    shared: Arc<Shared>,
    /// Where calls wait. A place is used again by the next call, so that none needs a waker of its own.
    places: Vec<Place>,
    /// Of these, those that have no call.
    free: Vec<usize>,
}

#[derive(Default)]
struct Shared {
    /// How much may yet be read.
    left: AtomicUsize,
    /// Calls that have been read and not begun.
    new: Mutex<Vec<Call>>,
    /// The places of those that can go on.
    woken: Mutex<Vec<usize>>,
    connection: AtomicWaker,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Place {
    call: Option<Call>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Wakes the call at a place, whichever it is by then: a call bears to be looked at in vain.
struct Bell {
    place: usize,
    /// It is among the woken.
    rung: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.shared.woken.lock().push(self.place);
            self.shared.connection.wake();
        }
    }
}

/// Where hyper hands over what a call has to do.
#[derive(Clone)]
pub(super) struct Intake(Arc<Shared>);

impl<F> Executor<F> for Intake
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        self.0.new.lock().push(Box::pin(call));
    }
}

impl Rounds {
    /// For what hyper makes of the connection.
    pub(super) fn intake(&self) -> Intake {
        Intake(Arc::clone(&self.shared))
    }

    /// A connection that is read in these rounds.
    pub(super) fn of(&self, connection: TcpStream) -> InRounds {
        InRounds { connection, shared: Arc::clone(&self.shared) }
    }

    /// Drives what hyper makes of a connection, round by round.
    pub(super) async fn drive<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        // A round has a bound of its own; tokio's would have most of a hundred calls polled in vain.
        unconstrained(poll_fn(|cx| self.go_round(connection.as_mut(), cx))).await
    }

    /// Some calls are not answered yet.
    pub(super) fn has_calls(&self) -> bool {
        self.free.len() < self.places.len()
    }

    fn go_round<C: Future>(&mut self, mut connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        self.shared.connection.register(cx.waker());
        self.shared.left.store(BYTES, Ordering::Relaxed);
        let woken = take(&mut *self.shared.woken.lock());
        for place in woken {
            self.go_on(place);
        }
        loop {
            let driven = connection.as_mut().poll(cx);
            let new = take(&mut *self.shared.new.lock());
            if driven.is_ready() || new.is_empty() {
                return driven;
            }
            new.into_iter().for_each(|call| self.begin(call));
            // Once more, for the answers to go out together.
        }
    }

    fn begin(&mut self, call: Call) {
        let place = self.free.pop().unwrap_or_else(|| self.new_place());
        self.places[place].call = Some(call);
        self.go_on(place);
    }

    fn new_place(&mut self) -> usize {
        let place = self.places.len();
        let bell = Arc::new(Bell { place, rung: AtomicBool::new(false), shared: Arc::clone(&self.shared) });
        self.places.push(Place { call: None, waker: Waker::from(Arc::clone(&bell)), bell });
        place
    }

    fn go_on(&mut self, place: usize) {
        let Place { call, bell, waker } = &mut self.places[place];
        bell.rung.store(false, Ordering::Release);
        let Some(going_on) = call else { return };
        // A panic costs the call and not the connection, as it would in a task.
        let polled = catch_unwind(AssertUnwindSafe(|| going_on.as_mut().poll(&mut Context::from_waker(waker))));
        if !matches!(polled, Ok(Poll::Pending)) {
            *call = None;
            self.free.push(place);
        }
    }
}

/// A connection that is read in rounds.
pub(super) struct InRounds {
    connection: TcpStream,
    shared: Arc<Shared>,
}

impl AsyncRead for InRounds {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.shared.left.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(cx, buffer);
        self.shared.left.store(left.saturating_sub(buffer.filled().len() - before), Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for InRounds {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_round_ends_though_there_is_more_and_the_next_begins_by_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let sent = 5 * BYTES;
        client.write_all(&vec![7; sent]).await.unwrap();
        drop(client);
        let mut rounds = Rounds::default();
        let mut connection = rounds.of(listener.accept().await.unwrap().0);
        let mut reading = std::pin::pin!(async move {
            let mut read = Vec::new();
            connection.read_to_end(&mut read).await.map(|_| read.len())
        });
        let (mut polled, mut driving) = (0, std::pin::pin!(rounds.drive(reading.as_mut())));
        let read = poll_fn(|cx| {
            polled += 1;
            driving.as_mut().poll(cx)
        });
        assert_eq!(read.await.unwrap(), sent);
        assert!(polled >= 3, "{polled} rounds");
    }

    /// What hyper would be: hands these calls over, and then looks until it is told that all is done.
    async fn drive(rounds: &mut Rounds, calls: Vec<Call>, done: impl Fn() -> bool) {
        let (intake, mut calls) = (rounds.intake(), Some(calls));
        let connection = poll_fn(|_| {
            calls.take().into_iter().flatten().for_each(|call| intake.execute(call));
            if done() { Poll::Ready(()) } else { Poll::Pending }
        });
        rounds.drive(std::pin::pin!(connection)).await;
    }

    #[tokio::test]
    async fn a_call_is_answered_in_its_round_and_a_panic_is_its_own() {
        let (mut rounds, answered) = (Rounds::default(), Arc::new(AtomicUsize::new(0)));
        let answer = || -> Call {
            let answered = Arc::clone(&answered);
            Box::pin(async move {
                answered.fetch_add(1, Ordering::Relaxed);
            })
        };
        let panics: Call = Box::pin(async { panic!("a panic in a call, for the test") });
        let calls = vec![answer(), panics, answer()];
        let polled = std::cell::Cell::new(0);
        drive(&mut rounds, calls, || polled.replace(polled.get() + 1) == 1).await;
        assert_eq!(answered.load(Ordering::Relaxed), 2, "before the connection was looked at again");
        assert_eq!((rounds.places.len(), rounds.free.len()), (1, 1), "one after the other had the same place");
    }

    #[tokio::test]
    async fn a_call_that_waits_goes_on_when_it_is_woken_and_is_not_looked_at_before() {
        let mut rounds = Rounds::default();
        let looks = Arc::new(AtomicUsize::new(0));
        let (let_go, mut held): (Vec<_>, Vec<_>) = (0..3).map(|_| tokio::sync::oneshot::channel::<()>()).unzip();
        let wait = |mut held: tokio::sync::oneshot::Receiver<()>| -> Call {
            let looks = Arc::clone(&looks);
            Box::pin(poll_fn(move |cx| {
                looks.fetch_add(1, Ordering::Relaxed);
                Pin::new(&mut held).poll(cx).map(drop)
            }))
        };
        let calls = held.drain(..).map(wait).collect();
        let free = tokio::spawn(async move {
            tokio::task::yield_now().await;
            // From another task, and the last of them first.
            let_go.into_iter().rev().for_each(|let_go| let_go.send(()).unwrap());
        });
        drive(&mut rounds, calls, || looks.load(Ordering::Relaxed) == 6).await;
        free.await.unwrap();
        assert_eq!((rounds.places.len(), rounds.free.len()), (3, 3), "each was looked at twice, and has gone");
    }

    #[tokio::test]
    async fn more_calls_than_tokio_lets_a_task_do_at_once_are_answered_in_one_round() {
        let mut rounds = Rounds::default();
        let answered = Arc::new(AtomicUsize::new(0));
        let call = |_| -> Call {
            let answered = Arc::clone(&answered);
            Box::pin(async move {
                // Takes of the budget, and is ready.
                let (send, receive) = tokio::sync::oneshot::channel();
                send.send(()).unwrap();
                receive.await.unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            })
        };
        let polled = std::cell::Cell::new(0);
        drive(&mut rounds, (0..1_000).map(call).collect(), || polled.replace(polled.get() + 1) == 1).await;
        assert_eq!(answered.load(Ordering::Relaxed), 1_000);
    }

    #[tokio::test]
    async fn what_waits_is_given_up_with_the_connection() {
        let mut rounds = Rounds::default();
        let (guard, dropped) = tokio::sync::oneshot::channel::<()>();
        let call: Call = Box::pin(async move {
            let _guard = guard;
            std::future::pending().await
        });
        let polled = std::cell::Cell::new(0);
        drive(&mut rounds, vec![call], || polled.replace(polled.get() + 1) == 1).await;
        drop(rounds);
        assert!(dropped.await.is_err(), "its sender is gone");
    }
}
