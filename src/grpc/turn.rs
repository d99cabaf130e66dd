//! A connection's turn: some of what has come is read, the calls in it are begun, what is answered goes out, and other connections have theirs.
//!
//! Left alone, hyper reads all that there is, on every connection, and starts a task for each call before any of them is answered. Where there is
//! more than can be answered that is up to a megabyte for each connection, thousands of calls: what they need takes hundreds of megabytes and has
//! left every cache when they run, whoever waits waits for all of them, and the backlog feeds itself.
//!
//! A call that is decided at once, in memory or because it is refused, never needs a task. One that waits for the store has one.

use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// So many bytes are read in a turn, and once up to what a buffer takes: about a hundred calls.
pub(super) const BYTES: usize = 16 * 1024;

/// The turn of one connection. hyper hands over to it what a call has to do.
#[derive(Clone, Default)]
pub(super) struct Turn(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// How much may yet be read.
    left: AtomicUsize,
    /// Calls that have been read and not begun.
    calls: Mutex<Vec<Call>>,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F> Executor<F> for Turn
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        self.0.calls.lock().push(Box::pin(call));
    }
}

impl Turn {
    /// Drives what hyper makes of a connection, turn by turn.
    pub(super) async fn drive<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|cx| {
            self.0.left.store(BYTES, Ordering::Relaxed);
            loop {
                let driven = connection.as_mut().poll(cx);
                let calls = take(&mut *self.0.calls.lock());
                if driven.is_ready() || calls.is_empty() {
                    return driven;
                }
                calls.into_iter().for_each(begin);
                // Once more, for the answers to go out together.
            }
        })
        .await
    }

    /// A connection that is read in these turns.
    pub(super) fn of(&self, connection: TcpStream) -> InTurns {
        InTurns { connection, turn: self.clone() }
    }
}

/// Answers a call, or gives it a task where it has to wait.
fn begin(mut call: Call) {
    // Nobody need be woken: a task begins by looking again.
    let mut nobody = Context::from_waker(Waker::noop());
    // As in a task, so that a panic costs the call and not the connection.
    let begun = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut nobody)));
    if matches!(begun, Ok(Poll::Pending)) {
        tokio::spawn(call);
    }
}

/// A connection that is read in turns.
pub(super) struct InTurns {
    connection: TcpStream,
    turn: Turn,
}

impl AsyncRead for InTurns {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.turn.0.left.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(cx, buffer);
        self.turn.0.left.store(left.saturating_sub(buffer.filled().len() - before), Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for InTurns {
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
    use std::sync::atomic::AtomicBool;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_turn_ends_though_there_is_more_and_the_next_begins_by_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let sent = 5 * BYTES;
        client.write_all(&vec![7; sent]).await.unwrap();
        drop(client);
        let turn = Turn::default();
        let mut connection = turn.of(listener.accept().await.unwrap().0);
        let mut reading = std::pin::pin!(async move {
            let mut read = Vec::new();
            connection.read_to_end(&mut read).await.map(|_| read.len())
        });
        let (mut turns, mut driving) = (0, std::pin::pin!(turn.drive(reading.as_mut())));
        let read = poll_fn(|cx| {
            turns += 1;
            driving.as_mut().poll(cx)
        });
        assert_eq!(read.await.unwrap(), sent);
        assert!(turns >= 3, "{turns} turns");
    }

    #[tokio::test]
    async fn a_call_is_answered_in_the_turn_or_by_a_task_and_a_panic_is_its_own() {
        let (turn, looked) = (Turn::default(), Arc::new(AtomicBool::new(false)));
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (let_go, held) = tokio::sync::oneshot::channel();
        let mut begun = false;
        let mut connection = std::pin::pin!(poll_fn(|_| {
            if std::mem::replace(&mut begun, true) {
                assert!(looked.load(Ordering::Relaxed), "it was answered before the connection was looked at again");
                return Poll::Ready(());
            }
            turn.execute(async { panic!("a panic in a call, for the test") });
            let looked = Arc::clone(&looked);
            turn.execute(async move { looked.store(true, Ordering::Relaxed) });
            Poll::Pending
        }));
        turn.drive(connection.as_mut()).await;
        turn.execute(async move {
            let () = held.await.unwrap();
            answer.send(()).unwrap();
        });
        let mut first = true;
        turn.drive(std::pin::pin!(poll_fn(|_| if take(&mut first) { Poll::Pending } else { Poll::Ready(()) }))).await;
        let_go.send(()).unwrap();
        answered.await.unwrap();
    }
}
