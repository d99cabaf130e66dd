//! Records how long the input of a connection has been waiting: since the system reported it, or, where more waits than
//! is read at once, since it was last seen to wait. It may have arrived a little earlier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::time::{Duration, Instant};

use crate::grpc::Incoming;

/// Minimum time between two records of what waits, and their maximum number.
const RECORD_TIME: Duration = Duration::from_millis(1);
const RECORDS: usize = 256;
/// The end of a record that holds for whatever is read next.
const OPEN: u64 = u64::MAX;

/// Wakes the task of a connection when the connection has input, and records the time.
pub(super) struct Arrival {
    state: Arc<State>,
    waker: Waker,
    /// Number of bytes read, and what it was at [`Arrival::begin`].
    read: u64,
    begun: u64,
    /// Positions in the stream, in ascending order, with a time at which all before them had arrived.
    arrived: VecDeque<(u64, Instant)>,
}

struct State {
    task: AtomicWaker,
    opened: Instant,
    /// Time of the first wake since [`State::take`], in nanoseconds after `opened` plus one; 0 if there was none.
    at: AtomicU64,
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.at.load(Ordering::Relaxed) == 0 {
            let ns = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.at.store(ns.saturating_add(1), Ordering::Relaxed);
        }
        self.task.wake();
    }
}

impl State {
    /// Returns the time of the first wake since the last call of this function, if there was one.
    fn take(&self) -> Option<Instant> {
        let ns = self.at.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(self.opened + Duration::from_nanos(ns))
    }
}

impl Arrival {
    pub(super) fn new() -> Arrival {
        let state = Arc::new(State { task: AtomicWaker::new(), opened: Instant::now(), at: AtomicU64::new(0) });
        Arrival { waker: Waker::from(Arc::clone(&state)), state, read: 0, begun: 0, arrived: VecDeque::new() }
    }

    /// Sets the task to wake. Call it in each poll of the task.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.state.task.register(cx.waker());
    }

    /// Returns the waker for polls of the input.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Call it before the input is read. Whatever is read next has been waiting since the report, if nothing else is
    /// known of it, until [`Arrival::drained`] or [`Arrival::stopped`].
    pub(super) fn begin(&mut self) {
        if let Some(reported) = self.state.take() {
            self.record(OPEN, reported);
        }
        self.begun = self.read;
    }

    /// Counts bytes that were read.
    pub(super) fn read(&mut self, bytes: usize) {
        self.read += bytes as u64;
    }

    /// Returns a time by which input had arrived that is read and followed by `rest` bytes that are read.
    pub(super) fn of(&mut self, rest: usize) -> Option<Instant> {
        let end = self.read - rest as u64;
        while self.arrived.front()?.0 < end {
            self.arrived.pop_front();
        }
        self.arrived.front().map(|(_, at)| *at)
    }

    /// Call it when nothing waits, or when it waits only for the client.
    pub(super) fn drained(&mut self) {
        self.arrived.clear();
    }

    /// Call it when reading stops although there may be more, with the number of bytes that are read and not taken.
    pub(super) fn stopped(&mut self, input: &impl Incoming, rest: usize) {
        if self.read > self.begun
            && let Some((OPEN, reported)) = self.arrived.back().copied()
        {
            self.arrived.pop_back();
            self.record(self.read, reported);
        }
        let now = Instant::now();
        let is_recent = |(end, at): &(u64, Instant)| *end > self.read && now.duration_since(*at) < RECORD_TIME;
        if !self.arrived.back().is_some_and(is_recent) {
            let end = self.read + input.waiting();
            if end > self.read - rest as u64 {
                self.record(end, now);
            }
        }
        input.wake_at_input(&mut Context::from_waker(&self.waker));
    }

    /// Notes that everything before `end` had arrived at that time, unless that is known.
    fn record(&mut self, end: u64, at: Instant) {
        if self.arrived.len() < RECORDS && self.arrived.back().is_none_or(|(last, _)| *last < end) {
            self.arrived.push_back((end, at));
        }
    }

    /// Frees memory that was needed for a while.
    pub(super) fn shrink(&mut self) {
        self.arrived.shrink_to_fit();
    }
}
