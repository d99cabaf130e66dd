//! The breaker of a Redis node, shared by all connections to it. It decides whether requests are sent.
//!
//! **Closed**: at least one connection serves, and requests are sent over it. **Open**: no connection serves, and each
//! request fails at once. **Half-open** is an open breaker while a single connection is made and tested with a real
//! check. If the check passes, the breaker closes, and the other connections are made too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Duration, Instant};

use super::connection::Fault;
use crate::store::health::{Health, OnChange};
use crate::telemetry::Throttle;

/// How often an open breaker is logged.
const REMINDER: Duration = Duration::from_secs(30);
/// Delay before a lost connection is logged. If Redis has ended, all other connections are lost within this time, and
/// only the outage is logged.
const SETTLE: Duration = Duration::from_secs(1);
/// The shortest time between log lines about different causes of the same outage.
const CAUSES_APART: Duration = Duration::from_secs(10);

pub(crate) struct Breaker {
    /// The address, for the log.
    redis: Arc<str>,
    state: Mutex<State>,
    /// Whether [`State`] is open, for requests, which take no lock.
    is_open: AtomicBool,
    /// Whether [`State`] is closed, for connections that wait until it is.
    closed: watch::Sender<bool>,
    /// Permit for the only connection that is tested while the breaker is open.
    trial: Semaphore,
    on_change: OnChange,
    /// Keeps a Redis that comes and goes, or single connections that do, from filling the log. All lines go through it,
    /// so the last line is always true.
    log: Throttle<News>,
    /// When another cause of the same outage was last logged.
    cause_logged: Mutex<Option<Instant>>,
}

/// A log line.
#[derive(Clone, Copy, PartialEq)]
enum News {
    Up,
    Down,
    /// A connection is lost, and others serve.
    Lost,
    /// A connection cannot be made, and others serve.
    Failed,
}

enum State {
    /// No connection serves, and this many have not been tried yet.
    Untried(usize),
    Closed {
        connections: usize,
    },
    Open(Outage),
}

/// An outage, in which no connection serves.
struct Outage {
    since: Instant,
    cause: Arc<str>,
    /// When it was last logged, and its cause at that time.
    reported: (Instant, Arc<str>),
}

impl Breaker {
    /// Returns the breaker of a node with this many connections.
    pub(crate) fn new(redis: String, connections: usize, on_change: OnChange) -> Breaker {
        Breaker {
            redis: redis.into(),
            state: Mutex::new(State::Untried(connections)),
            is_open: AtomicBool::new(true),
            closed: watch::Sender::new(false),
            trial: Semaphore::new(1),
            on_change,
            log: Throttle::default(),
            cause_logged: Mutex::default(),
        }
    }

    /// Returns whether no requests are sent.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns why the breaker is open. Empty if it is not open or has not been tried.
    pub(crate) fn cause(&self) -> Arc<str> {
        if let State::Open(outage) = &*self.state.lock() { Arc::clone(&outage.cause) } else { Arc::default() }
    }

    /// Waits until a connection may be made: not at all while the breaker is closed; while it is open, until no other
    /// connection is being tried. The caller keeps the permit during the attempt.
    pub(crate) async fn admit(&self) -> Option<SemaphorePermit<'_>> {
        if matches!(*self.state.lock(), State::Untried(_)) {
            return None;
        }
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            // Both are closed only when the breaker is dropped.
            _ = closed.wait_for(|closed| *closed) => None,
            permit = self.trial.acquire() => permit.ok(),
        }
    }

    /// Notes that one more connection serves.
    pub(crate) fn gain(&self) {
        let mut state = self.state.lock();
        let connections = if let State::Closed { connections } = *state { connections } else { 0 };
        let was = std::mem::replace(&mut *state, State::Closed { connections: connections + 1 });
        if connections > 0 {
            return;
        }
        self.set_open(false, Health::Up);
        let down_ms = if let State::Open(outage) = was { Some(outage.since.elapsed().as_millis()) } else { None };
        self.log.log(News::Up, || {
            let redis = Arc::clone(&self.redis);
            move |times| tracing::info!(%redis, down_ms, times, "redis is up: it decides its limits")
        });
    }

    /// Notes that a connection no longer serves.
    pub(crate) fn lose(&self, error: &Fault) {
        let mut state = self.state.lock();
        let State::Closed { connections } = &mut *state else { return };
        *connections -= 1;
        if *connections > 0 {
            self.report_single(News::Lost, error, *connections);
            return;
        }
        *state = State::Open(self.open(error));
        self.report_down("redis is down: its limits answer by their failure modes", error);
    }

    /// Notes that a connection could not be made or failed its test.
    pub(crate) fn fail(&self, error: &Fault) {
        let mut state = self.state.lock();
        match &mut *state {
            State::Untried(connections) if *connections > 1 => *connections -= 1,
            State::Untried(_) => {
                *state = State::Open(self.open(error));
                self.report_down("redis cannot be used: its limits answer by their failure modes", error);
            }
            State::Open(outage) => self.go_on(outage, error),
            State::Closed { connections } => self.report_single(News::Failed, error, *connections),
        }
    }

    /// Notes that the outage continues, perhaps for another cause.
    fn go_on(&self, outage: &mut Outage, error: &Fault) {
        let text = error.to_string();
        if *outage.cause != *text {
            outage.cause = text.into();
            (self.on_change)(Health::Down(error.kind()));
        }
        let now = Instant::now();
        let is_due = |at: Instant, pause: Duration| now.duration_since(at) > pause;
        let mut cause_logged = self.cause_logged.lock();
        let has_news = outage.cause != outage.reported.1 && cause_logged.is_none_or(|at| is_due(at, CAUSES_APART));
        if has_news {
            *cause_logged = Some(now);
        }
        if has_news || is_due(outage.reported.0, REMINDER) {
            outage.reported = (now, Arc::clone(&outage.cause));
            self.log.log(News::Down, || {
                let (redis, error) = (Arc::clone(&self.redis), error.to_string());
                move |_| tracing::warn!(%redis, error, "redis is still down")
            });
        }
    }

    /// Logs news of one connection while this many others serve.
    fn report_single(&self, news: News, error: &Fault, serving: usize) {
        let what = match news {
            News::Failed => "cannot open a connection to redis, other connections still work",
            _ => "lost a connection to redis, other connections still work",
        };
        self.log.log_after(SETTLE, news, || {
            let (redis, error) = (Arc::clone(&self.redis), error.to_string());
            move |times| tracing::warn!(%redis, error, times, serving, "{what}")
        });
    }

    /// Logs the lines held back, before the process ends.
    pub(crate) fn flush_log(&self) {
        self.log.flush();
    }

    fn report_down(&self, what: &'static str, error: &Fault) {
        self.log.log(News::Down, || {
            let (redis, error) = (Arc::clone(&self.redis), error.to_string());
            move |times| tracing::error!(%redis, error, times, "{what}")
        });
    }

    /// Opens the breaker.
    fn open(&self, error: &Fault) -> Outage {
        self.set_open(true, Health::Down(error.kind()));
        let (now, cause) = (Instant::now(), Arc::<str>::from(error.to_string()));
        Outage { since: now, cause: Arc::clone(&cause), reported: (now, cause) }
    }

    /// Sets and reports the state. Runs under the lock, so changes are reported in order.
    fn set_open(&self, open: bool, health: Health) {
        self.is_open.store(open, Ordering::Relaxed);
        self.closed.send_replace(!open);
        (self.on_change)(health);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;

    use super::*;

    /// The log lines of this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An event of a connection, after a delay in milliseconds.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Gained,
        Lost,
        NotMade,
    }

    fn fault(text: &str) -> Fault {
        Fault::Lost(text.to_owned())
    }

    /// Returns whether the last logged state says that Redis is up, and whether it is up.
    fn told_and_true(events: &[(u64, Event)]) -> (bool, bool) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let is_up = tracing::subscriber::with_default(subscriber, || {
            runtime.block_on(async {
                let breaker = Breaker::new("localhost".to_owned(), 2, Box::new(|_| {}));
                breaker.fail(&fault("nobody is there"));
                breaker.fail(&fault("nobody is there"));
                for (after_ms, event) in events {
                    tokio::time::sleep(Duration::from_millis(*after_ms)).await;
                    match event {
                        Event::Gained => breaker.gain(),
                        Event::Lost => breaker.lose(&fault("it broke")),
                        Event::NotMade => breaker.fail(&fault("nobody is there")),
                    }
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
                !breaker.is_open()
            })
        });
        let log = String::from_utf8(log.0.lock().clone()).unwrap();
        let says_up = |line: &str| {
            let up = line.contains("redis is up") || line.contains("other connections still work");
            let down = ["redis is down", "redis cannot be used", "redis is still down"];
            (up || down.iter().any(|words| line.contains(words))).then_some(up)
        };
        (log.lines().filter_map(says_up).next_back().unwrap(), is_up)
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_the_last_line_says_what_is_so(
            events in prop::collection::vec(
                (0_u64..12_000, prop::sample::select(&[Event::Gained, Event::Lost, Event::NotMade][..])),
                0..30,
            ),
        ) {
            let (told, is_up) = told_and_true(&events);
            prop_assert_eq!(told, is_up);
        }
    }
}
