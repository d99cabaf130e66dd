//! Whether a Redis is asked: the breaker of a node, which all of its connections share.
//!
//! **Closed**: at least one connection serves, and requests are asked over it. **Open**: none does, and each request
//! fails at once. **Half-open** is an open breaker while one connection, and one only, is made and tried by a real
//! check; when that passes, the breaker closes, and the others are made, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Duration, Instant};

use super::connection::Fault;
use super::{Health, OnChange};
use crate::telemetry::Throttle;

/// How often an open breaker is logged.
const REMINDER: Duration = Duration::from_secs(30);

pub(super) struct Breaker {
    /// The address, for the log.
    redis: String,
    state: Mutex<State>,
    /// What [`State`] says, for requests, which take no lock.
    is_open: AtomicBool,
    /// The same, for connections that wait for it.
    closed: watch::Sender<bool>,
    /// The one connection that is tried while the breaker is open.
    trial: Semaphore,
    on_change: OnChange,
    /// A Redis that comes and goes does not fill the log, nor do single connections.
    closings: Throttle,
    openings: Throttle,
    losses: Throttle,
    failures: Throttle,
    causes: Throttle,
}

enum State {
    /// So many connections have not been tried yet, and none serves.
    Untried(usize),
    Closed {
        connections: usize,
    },
    Open {
        since: Instant,
        cause: Arc<str>,
        reported: Instant,
        /// The cause then.
        reported_cause: Arc<str>,
    },
}

impl Breaker {
    /// Of a node that so many connections lead to.
    pub(super) fn new(redis: String, connections: usize, on_change: OnChange) -> Breaker {
        Breaker {
            redis,
            state: Mutex::new(State::Untried(connections)),
            is_open: AtomicBool::new(true),
            closed: watch::Sender::new(false),
            trial: Semaphore::new(1),
            on_change,
            closings: Throttle::default(),
            openings: Throttle::default(),
            losses: Throttle::default(),
            failures: Throttle::default(),
            causes: Throttle::default(),
        }
    }

    /// No request is asked.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Why it is open; empty where it is not, or has not been tried.
    pub(super) fn cause(&self) -> Arc<str> {
        if let State::Open { cause, .. } = &*self.state.lock() { Arc::clone(cause) } else { Arc::default() }
    }

    /// Waits until a connection may be made: at once while the breaker is closed; while it is open, until it is the
    /// only one that tries, which it is for as long as it keeps the permit.
    pub(super) async fn admit(&self) -> Option<SemaphorePermit<'_>> {
        if matches!(*self.state.lock(), State::Untried(_)) {
            return None;
        }
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            // Neither is ever closed before the breaker goes.
            _ = closed.wait_for(|closed| *closed) => None,
            permit = self.trial.acquire() => permit.ok(),
        }
    }

    /// One more connection serves.
    pub(super) fn gain(&self) {
        let mut state = self.state.lock();
        let connections = if let State::Closed { connections } = *state { connections } else { 0 };
        let was = std::mem::replace(&mut *state, State::Closed { connections: connections + 1 });
        if connections > 0 {
            return;
        }
        self.set_open(false, Health::Up);
        if let Some(changes) = self.closings.admit() {
            let down_ms = if let State::Open { since, .. } = was { Some(since.elapsed().as_millis()) } else { None };
            tracing::info!(redis = self.redis, down_ms, changes, "redis is up: limits are decided there");
        }
    }

    /// One that served does not any more.
    pub(super) fn lose(&self, error: &Fault) {
        let mut state = self.state.lock();
        let State::Closed { connections } = &mut *state else { return };
        *connections -= 1;
        if *connections > 0 {
            if let Some(losses) = self.losses.admit() {
                let serving = *connections;
                tracing::warn!(
                    redis = self.redis, %error, losses, serving,
                    "a connection to redis is lost and made anew: the others serve"
                );
            }
            return;
        }
        *state = self.open(error);
        if let Some(changes) = self.openings.admit() {
            tracing::error!(
                redis = self.redis, %error, changes,
                "redis is down: each limit answers by its failure mode"
            );
        }
    }

    /// A connection could not be made, or did not pass its trial.
    pub(super) fn fail(&self, error: &Fault) {
        let mut state = self.state.lock();
        match &mut *state {
            State::Untried(connections) if *connections > 1 => *connections -= 1,
            State::Untried(_) => {
                *state = self.open(error);
                tracing::error!(
                    redis = self.redis, %error,
                    "redis cannot be reached: each limit answers by its failure mode"
                );
            }
            State::Open { cause, reported, reported_cause, .. } => {
                let text = error.to_string();
                if **cause != *text {
                    *cause = text.into();
                    (self.on_change)(Health::Down(error.kind()));
                }
                let is_news = cause != reported_cause;
                if reported.elapsed() > REMINDER || (is_news && self.causes.admit().is_some()) {
                    (*reported, *reported_cause) = (Instant::now(), Arc::clone(cause));
                    tracing::warn!(redis = self.redis, %error, "redis is still down");
                }
            }
            State::Closed { connections } => {
                if let Some(failures) = self.failures.admit() {
                    let serving = *connections;
                    tracing::warn!(
                        redis = self.redis, %error, failures, serving,
                        "a connection to redis cannot be made: the others serve"
                    );
                }
            }
        }
    }

    /// Opens it.
    fn open(&self, error: &Fault) -> State {
        self.set_open(true, Health::Down(error.kind()));
        let now = Instant::now();
        let cause: Arc<str> = error.to_string().into();
        State::Open { since: now, reported: now, reported_cause: Arc::clone(&cause), cause }
    }

    /// Under the lock of the state, so that changes are reported in their order.
    fn set_open(&self, open: bool, health: Health) {
        self.is_open.store(open, Ordering::Relaxed);
        self.closed.send_replace(!open);
        (self.on_change)(health);
    }
}
