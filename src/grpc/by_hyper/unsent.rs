//! Bounds the answers of a connection that its client has not read, in bytes and in time. Without bounds a client that
//! sends calls and reads no answers makes the process keep every answer for as long as the client likes.
//!
//! Each piece of an answer counts itself until it is dropped. The count stays right whatever the HTTP/2 library does
//! with a piece: sends it, keeps it until the client opens its window, or discards it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use tokio::time::sleep;
use tonic::Status;

use super::message;
use crate::grpc::bounds::{self, MAX_UNREAD, TURN, TURNS};

/// The unsent answers of one connection.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// Number of unsent pieces by turn, in a ring.
    pieces: [AtomicUsize; TURNS],
    bytes: AtomicUsize,
    turn: AtomicUsize,
}

impl Unsent {
    /// Returns whether the budget is used up. Further calls should then be rejected.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= MAX_UNREAD
    }

    /// Completes when an answer was not sent in time. Poll it after the connection, as polling the connection sends
    /// answers.
    pub(super) async fn overdue(&self) {
        let mut timer = None;
        poll_fn(|cx| {
            loop {
                if self.is_empty() {
                    timer = None;
                    return Poll::Pending;
                }
                ready!(timer.get_or_insert_with(|| Box::pin(sleep(TURN))).as_mut().poll(cx));
                timer = None;
                if self.next_turn() {
                    return Poll::Ready(());
                }
            }
        })
        .await;
    }

    fn is_empty(&self) -> bool {
        self.pieces.iter().all(|pieces| pieces.load(Ordering::Relaxed) == 0)
    }

    /// Begins the next turn, and returns whether an answer made three turns ago is still unsent.
    fn next_turn(&self) -> bool {
        let turn = (self.turn.load(Ordering::Relaxed) + 1) % TURNS;
        self.turn.store(turn, Ordering::Relaxed);
        self.pieces[turn].load(Ordering::Relaxed) > 0
    }

    /// Counts these bytes until they are dropped. Returns `None` if they exceed the budget.
    fn count(self: &Arc<Self>, bytes: Bytes) -> Option<Piece> {
        let size = bytes.len();
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Relaxed);
        self.pieces[turn].fetch_add(1, Ordering::Relaxed);
        let piece = Piece { bytes, size, turn, unsent: Arc::clone(self) };
        (before.saturating_add(size) <= MAX_UNREAD).then_some(piece)
    }
}

/// A piece of an answer.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    /// Length when it was made. It counts in full until its last byte is sent.
    size: usize,
    turn: usize,
    unsent: Arc<Unsent>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.unsent.bytes.fetch_sub(self.size, Ordering::Relaxed);
        self.unsent.pieces[self.turn].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that counts its bytes as unsent. It ends with `RESOURCE_EXHAUSTED` if they exceed the budget.
pub(super) struct Counted<B> {
    body: B,
    unsent: Arc<Unsent>,
    ended: bool,
}

impl<B> Counted<B> {
    pub(super) fn new(body: B, unsent: &Arc<Unsent>) -> Counted<B> {
        Counted { body, unsent: Arc::clone(unsent), ended: false }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Counted<B> {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        let piece = match frame?.into_data() {
            Ok(bytes) => self.unsent.count(bytes).map(Frame::data),
            Err(frame) => frame.into_trailers().ok().map(Frame::trailers),
        };
        Poll::Ready(Some(match piece {
            Some(piece) => Ok(piece),
            None => {
                self.ended = true;
                message::trailers(&bounds::too_much_unread())
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use http_body_util::{BodyExt as _, Full};
    use tokio::time::advance;

    use super::*;

    fn piece(unsent: &Arc<Unsent>, size: usize) -> Option<Piece> {
        unsent.count(Bytes::from(vec![7; size]))
    }

    #[test]
    fn answers_count_until_they_are_dropped_whatever_part_of_them_is_sent() {
        let unsent = Arc::<Unsent>::default();
        let mut large = piece(&unsent, MAX_UNREAD - 10).unwrap();
        large.advance(MAX_UNREAD - 10);
        assert!(piece(&unsent, 11).is_none() && !unsent.is_full());
        let small = piece(&unsent, 10).unwrap();
        assert!(unsent.is_full());
        drop(large);
        assert!(piece(&unsent, MAX_UNREAD - 10).is_some());
        drop(small);
        assert!(unsent.is_empty() && unsent.bytes.load(Ordering::Relaxed) == 0);
    }

    #[tokio::test]
    async fn an_answer_without_room_ends_as_grpc_does() {
        let unsent = Arc::<Unsent>::default();
        let body = |size: usize| {
            let body = Full::new(Bytes::from(vec![7; size])).map_err(|never| match never {});
            Counted::new(body, &unsent)
        };
        let held = body(MAX_UNREAD).frame().await.unwrap().unwrap();
        let mut refused = body(1);
        let trailers = refused.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "8");
        assert!(refused.frame().await.is_none() && refused.is_end_stream());
        drop(held);
        assert!(body(1).frame().await.unwrap().unwrap().is_data());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_overdue_after_its_time_and_others_do_not_hide_it() {
        let unsent = Arc::<Unsent>::default();
        let mut overdue = pin!(unsent.overdue());
        let mut is_overdue = || (&mut overdue).now_or_never().is_some();
        assert!(!is_overdue(), "there is none");
        for _ in 0..10 {
            let taken = piece(&unsent, 1);
            assert!(!is_overdue());
            advance(2 * TURN).await;
            drop(taken);
            assert!(!is_overdue());
        }
        let _stuck = piece(&unsent, 1);
        for turn in 1..=TURNS {
            let _taken = piece(&unsent, 1);
            assert!(!is_overdue());
            advance(TURN).await;
            assert_eq!(is_overdue(), turn == TURNS, "{turn}");
        }
    }
}
