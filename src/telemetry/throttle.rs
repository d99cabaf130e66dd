//! Limits how often a line about one subject is logged: at once, and then at most every ten seconds. A line held during
//! the pause is written at its end, or when the process ends. So for a subject with several states, the last line
//! always shows the last state.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

/// Pause after a line.
const PAUSE: Duration = Duration::from_secs(10);

/// Limits lines about a state to one every ten seconds. A subject without states uses the state `()`.
#[derive(Debug)]
pub struct Throttle<S: Copy + PartialEq = ()> {
    lines: Arc<Mutex<Lines<S>>>,
}

struct Lines<S> {
    /// Each state seen so far.
    states: Vec<Seen<S>>,
    /// The last line held, if no line has been written since.
    kept: Option<Kept<S>>,
    /// Whether a task is waiting to write the held line.
    is_timed: bool,
}

struct Seen<S> {
    state: S,
    written: Option<Instant>,
    /// Occurrences since the last line.
    times: u64,
}

struct Kept<S> {
    state: S,
    line: Line,
    /// The line is not written before this time.
    from: Instant,
}

/// Writes a line that includes the number of occurrences.
type Line = Box<dyn FnOnce(u64) + Send>;

impl<S: Copy + PartialEq + Send + 'static> Throttle<S> {
    /// Notes that this is the current state. `line` creates the function that writes a line about it, which receives
    /// the number of occurrences since the last line about this state. The line is written now, or at the end of the
    /// pause unless another line is written first.
    pub fn log<L: FnOnce(u64) + Send + 'static>(&self, state: S, line: impl FnOnce() -> L) {
        self.log_after(Duration::ZERO, state, line);
    }

    /// Like [`Throttle::log`], but waits at least `delay`. Another line that is written or held in that time replaces
    /// this one.
    pub fn log_after<L: FnOnce(u64) + Send + 'static>(&self, delay: Duration, state: S, line: impl FnOnce() -> L) {
        let now = Instant::now();
        let mut lines = self.lines.lock();
        let seen = lines.seen(state);
        seen.times += 1;
        if delay.is_zero() && seen.due().is_none_or(|due| due <= now) {
            // Written under the lock: lines appear in the order of the states.
            seen.write(line());
            lines.kept = None;
            return;
        }
        if lines.kept.as_ref().is_some_and(|kept| kept.state == state) {
            return;
        }
        lines.kept = Some(Kept { state, line: Box::new(line()), from: now + delay });
        if !lines.is_timed
            && let Ok(runtime) = Handle::try_current()
        {
            lines.is_timed = true;
            runtime.spawn(write_kept(Arc::clone(&self.lines)));
        }
    }
}

impl<S: Copy + PartialEq> Throttle<S> {
    /// Writes the held line, as the process is ending.
    pub fn flush(&self) {
        let mut lines = self.lines.lock();
        if let Some(Kept { state, line, .. }) = lines.kept.take() {
            lines.seen(state).write(line);
        }
    }
}

/// Writes the held line at the end of its pause.
async fn write_kept<S: Copy + PartialEq>(lines: Arc<Mutex<Lines<S>>>) {
    loop {
        let due = lines.lock().write_due(Instant::now());
        match due {
            Some(due) => sleep_until(due).await,
            None => return,
        }
    }
}

impl<S: Copy + PartialEq> Lines<S> {
    fn seen(&mut self, state: S) -> &mut Seen<S> {
        let place = self.states.iter().position(|seen| seen.state == state).unwrap_or_else(|| {
            self.states.push(Seen { state, written: None, times: 0 });
            self.states.len() - 1
        });
        &mut self.states[place]
    }

    /// Writes the held line if it is due, or returns the time when it will be.
    fn write_due(&mut self, now: Instant) -> Option<Instant> {
        if let Some(kept) = self.kept.take() {
            let seen = self.seen(kept.state);
            let due = seen.due().map_or(kept.from, |due| due.max(kept.from));
            if due > now {
                self.kept = Some(kept);
                return Some(due);
            }
            seen.write(kept.line);
        }
        self.is_timed = false;
        None
    }
}

impl<S> Seen<S> {
    /// Returns the end of the pause, if a line was written.
    fn due(&self) -> Option<Instant> {
        self.written.map(|at| at + PAUSE)
    }

    fn write(&mut self, line: impl FnOnce(u64)) {
        self.written = Some(Instant::now());
        line(std::mem::take(&mut self.times));
    }
}

/// Writes the held line when its subject ends.
impl<S: Copy + PartialEq> Drop for Throttle<S> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<S: Copy + PartialEq> Default for Throttle<S> {
    fn default() -> Self {
        Throttle { lines: Arc::new(Mutex::new(Lines { states: Vec::new(), kept: None, is_timed: false })) }
    }
}

impl<S> std::fmt::Debug for Lines<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;

    /// The written lines: second, state, and number of occurrences.
    type Written = Vec<(u64, u8, u64)>;

    /// Applies each state after its delay in milliseconds, followed by a long silence.
    fn written(changes: &[(u64, u8)]) -> Written {
        written_until(changes, |throttle| async move {
            tokio::time::sleep(PAUSE * 3).await;
            drop(throttle);
        })
    }

    /// Applies the states, then runs `end`.
    fn written_until<F: Future<Output = ()>>(changes: &[(u64, u8)], end: impl FnOnce(Throttle<u8>) -> F) -> Written {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (throttle, written) = (Throttle::default(), Arc::new(Mutex::new(Written::new())));
            let start = Instant::now();
            for (after_ms, state) in changes {
                // A task that falls due during the sleep runs at its time.
                tokio::time::sleep(Duration::from_millis(*after_ms)).await;
                throttle.log(*state, || {
                    let (state, written) = (*state, Arc::clone(&written));
                    move |times| written.lock().push((start.elapsed().as_secs(), state, times))
                });
            }
            end(throttle).await;
            std::mem::take(&mut *written.lock())
        })
    }

    proptest! {
        #[test]
        fn the_last_line_is_the_last_state_and_no_state_is_told_twice_in_a_pause(
            changes in prop::collection::vec((0_u64..12_000, 0_u8..3), 1..40),
        ) {
            let written = written(&changes);
            prop_assert_eq!(written.last().map(|line| line.1), changes.last().map(|change| change.1));
            for state in 0..3 {
                let lines: Vec<_> = written.iter().filter(|line| line.1 == state).collect();
                prop_assert!(lines.windows(2).all(|two| two[1].0 - two[0].0 >= 9), "{:?}", written);
            }
        }

        #[test]
        fn where_the_process_ends_the_last_line_is_the_last_state(
            changes in prop::collection::vec((0_u64..12_000, 0_u8..3), 1..40),
        ) {
            let written = written_until(&changes, |throttle| async move { throttle.flush() });
            prop_assert_eq!(written.last().map(|line| line.1), changes.last().map(|change| change.1));
        }

        #[test]
        fn what_happens_again_and_again_is_told_at_once_and_at_last_to_the_last_time(
            pauses in prop::collection::vec(0_u64..12_000, 1..40),
        ) {
            let written = written(&pauses.iter().map(|ms| (*ms, 0)).collect::<Vec<_>>());
            prop_assert_eq!(written[0].2, 1);
            prop_assert_eq!(written.iter().map(|line| line.2).sum::<u64>(), pauses.len() as u64);
        }
    }

    #[test]
    fn up_down_up_down_up_within_a_pause_ends_up() {
        let (up, down) = (1, 0);
        let changes = [(0, up), (1_000, down), (1_000, up), (1_000, down), (1_000, up)];
        assert_eq!(written(&changes), [(0, up, 1), (1, down, 1), (10, up, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_put_off_is_not_told_where_something_else_comes_meanwhile() {
        let (throttle, lines) = (Throttle::default(), Arc::new(Mutex::new(Vec::new())));
        let line = |state: u8| {
            let lines = Arc::clone(&lines);
            move || move |_| lines.lock().push(state)
        };
        throttle.log_after(PAUSE / 10, 1, line(1));
        throttle.log(2, line(2));
        tokio::time::sleep(PAUSE * 2).await;
        assert_eq!(*lines.lock(), [2]);
        throttle.log_after(PAUSE / 10, 1, line(1));
        assert_eq!(*lines.lock(), [2]);
        tokio::time::sleep(PAUSE / 5).await;
        assert_eq!(*lines.lock(), [2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_equal_failures_make_two_lines() {
        let (throttle, lines) = (Throttle::default(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..1_000 {
            throttle.log((), || {
                let lines = Arc::clone(&lines);
                move |times| lines.lock().push(times)
            });
        }
        assert_eq!(*lines.lock(), [1]);
        tokio::task::yield_now().await;
        advance(PAUSE).await;
        tokio::task::yield_now().await;
        assert_eq!(*lines.lock(), [1, 999]);
    }
}
