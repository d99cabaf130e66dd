//! How often one thing is logged: at once, and then not again for ten seconds. What the pause has kept back is told
//! when it is over, or when the process ends. So of a thing with several states the last line is the last state.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

/// The pause after a line.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets one of many lines about a state through every ten seconds. What is always the same has one state, `()`.
#[derive(Debug)]
pub struct Throttle<S: Copy + PartialEq = ()> {
    lines: Arc<Mutex<Lines<S>>>,
}

struct Lines<S> {
    /// Each state that there was.
    states: Vec<Seen<S>>,
    /// The last line that was kept back, if nothing has been written since.
    kept: Option<Kept<S>>,
    /// A task will write it.
    is_timed: bool,
}

struct Seen<S> {
    state: S,
    written: Option<Instant>,
    /// So often since.
    times: u64,
}

struct Kept<S> {
    state: S,
    line: Line,
    /// It is not written before.
    from: Instant,
}

/// Writes a line about what has happened so often.
type Line = Box<dyn FnOnce(u64) + Send>;

impl<S: Copy + PartialEq + Send + 'static> Throttle<S> {
    /// Notes that this is the state now. `line` makes what writes a line about it, which is given how often this has
    /// been so since the last line about the same: now, or when the pause is over, unless something else is written
    /// before.
    pub fn log<L: FnOnce(u64) + Send + 'static>(&self, state: S, line: impl FnOnce() -> L) {
        self.log_after(Duration::ZERO, state, line);
    }

    /// The same, but not before so long: something else that is written, or kept back, meanwhile takes its place.
    pub fn log_after<L: FnOnce(u64) + Send + 'static>(&self, delay: Duration, state: S, line: impl FnOnce() -> L) {
        let now = Instant::now();
        let mut lines = self.lines.lock();
        let seen = lines.seen(state);
        seen.times += 1;
        if delay.is_zero() && seen.due().is_none_or(|due| due <= now) {
            // Under the lock: lines come in the order of the states.
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
    /// Writes what is kept back, because the process ends.
    pub fn flush(&self) {
        let mut lines = self.lines.lock();
        if let Some(Kept { state, line, .. }) = lines.kept.take() {
            lines.seen(state).write(line);
        }
    }
}

/// Writes what is kept back when its pause is over.
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

    /// Writes what is due, or returns when it is.
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
    /// When its pause is over, if there was a line.
    fn due(&self) -> Option<Instant> {
        self.written.map(|at| at + PAUSE)
    }

    fn write(&mut self, line: impl FnOnce(u64)) {
        self.written = Some(Instant::now());
        line(std::mem::take(&mut self.times));
    }
}

/// What it was about has ended.
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

    /// What was written: the second, the state, and how often it had been so.
    type Written = Vec<(u64, u8, u64)>;

    /// Lets states follow each other after so many milliseconds each, and then nothing for long.
    fn written(changes: &[(u64, u8)]) -> Written {
        written_until(changes, |throttle| async move {
            tokio::time::sleep(PAUSE * 3).await;
            drop(throttle);
        })
    }

    /// The same, and then this.
    fn written_until<F: Future<Output = ()>>(changes: &[(u64, u8)], end: impl FnOnce(Throttle<u8>) -> F) -> Written {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (throttle, written) = (Throttle::default(), Arc::new(Mutex::new(Written::new())));
            let start = Instant::now();
            for (after_ms, state) in changes {
                // Where a task is due meanwhile, it runs at its time.
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
