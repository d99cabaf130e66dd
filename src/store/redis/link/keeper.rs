//! The keeper of one connection: a task that makes the connection, tests it with a real check of Tollgate's own
//! counter, and replaces it when it is lost.
//!
//! A connection serves from a check that passes until one that fails. The keeper checks it
//! - when a call over it, or over another connection of the node, has met silence or was rejected, and
//! - when no answer has come over it for a while; the longer none comes, the less often.
//!
//! From time to time one of the keepers also inspects the Redis server.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use deadpool::managed::{Object, PoolError};
use futures_util::FutureExt as _;
use futures_util::future::{Either, pending, select};
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::Shared;
use super::connection::{Connection, Fault};
use crate::store;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::topology::DialError;

/// How often a keeper polls whether its connection is closed, which costs Redis nothing.
const POLL: Duration = Duration::from_secs(1);
/// How long after the last answer a connection is checked, and the longest time between two such checks.
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// The shortest and the longest time between two checks caused by rejected calls, while the checks pass.
const REFUSED: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// The shortest time between two checks of a connection for any reason.
const PAUSE: Duration = Duration::from_millis(20);
/// The shortest and the longest pause between two attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), store::RETRY);

/// The keeper of the connection at one place.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    place: usize,
    /// Receives the cause if the first attempt to connect finds that this Redis can never be used; dropped after that
    /// attempt.
    tried: Option<mpsc::Sender<Cause>>,
}

/// The result of checking a connection.
enum Checked {
    Good,
    Replaced(Arc<Connection>),
    Bad(Fault),
}

impl Keeper {
    /// Returns the keeper of this place of the link. `tried` receives the result of the first attempt to connect.
    pub(crate) fn new(shared: Arc<Shared>, place: usize, tried: mpsc::Sender<Cause>) -> Keeper {
        Keeper { shared, place, tried: Some(tried) }
    }

    /// Runs for as long as the link exists, even after a panic.
    pub(crate) async fn run(mut self) {
        loop {
            let start = Instant::now();
            let kept = AssertUnwindSafe(self.keep()).catch_unwind().await;
            let has_panicked = kept.is_err();
            let fault = kept.unwrap_or_else(|_| Fault::Lost("its keeper has panicked".to_owned()));
            match self.shared.places[self.place].swap(None) {
                Some(connection) => {
                    connection.lose(&fault.to_string());
                    self.shared.breaker.lose(&fault);
                }
                None => self.shared.breaker.fail(&fault),
            }
            // The failure of this connection may have affected all of them.
            self.shared.doubts.send_replace(());
            self.tried = None;
            // Limits how often a connection is made that is lost immediately.
            if has_panicked || start.elapsed() < POLL {
                sleep(RETRY.0).await;
            }
        }
    }

    /// Makes a connection, and returns the fault that ended it.
    async fn keep(&mut self) -> Fault {
        let connection = self.connect().await;
        self.shared.places[self.place].store(Some(Arc::clone(&connection)));
        self.shared.breaker.gain();
        self.tried = None;
        self.watch(connection).await
    }

    /// Makes a connection, however long that takes.
    async fn connect(&mut self) -> Arc<Connection> {
        let shared = Arc::clone(&self.shared);
        let (mut trial, mut pause, mut moves) = (None, RETRY.0, shared.pool.manager().moves());
        loop {
            if trial.is_none() {
                trial = shared.breaker.admit().await;
            }
            match self.make().await {
                Ok(connection) => return connection,
                Err(fault) => {
                    self.refuse_start(&fault).await;
                    shared.breaker.fail(&fault);
                }
            }
            self.tried = None;
            // Failed attempts to reach the previous master do not delay the attempt to reach a new one.
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(RETRY.1),
                () = changed(&mut moves) => pause = RETRY.0,
            }
        }
    }

    /// If the first attempt finds that this Redis can never be used, reports the cause to the caller of the start,
    /// which ends this task.
    async fn refuse_start(&self, fault: &Fault) {
        if let (Some(tried), Some(cause)) = (&self.tried, fault.unfit())
            && tried.send(cause.clone()).await.is_ok()
        {
            pending::<()>().await;
        }
    }

    /// Makes one attempt. Returns a connection that has passed a check, to a Redis in which limits can hold.
    async fn make(&self) -> Result<Arc<Connection>, Fault> {
        let Shared { inspection, .. } = &*self.shared;
        let connection = self.dial().await?;
        match inspection.inspect(&connection, self.shared.check(&connection)).await {
            Ok(()) => Ok(Arc::new(connection)),
            // A proxy may have closed the connection because of a question, which is not asked again now.
            Err(Fault::Lost(_)) => {
                let connection = self.dial().await?;
                inspection.inspect(&connection, self.shared.check(&connection)).await?;
                Ok(Arc::new(connection))
            }
            Err(fault) => Err(fault),
        }
    }

    async fn dial(&self) -> Result<Connection, Fault> {
        match self.shared.pool.get().await {
            // Taken out of the pool for good, since the pool would hand out a returned connection to any worker.
            Ok(dialed) => Ok(Connection::new(Object::take(dialed), self.shared.worker_of(self.place))),
            Err(error) => Err(Fault::Connect(self.why_not_connected(error).await)),
        }
    }

    async fn why_not_connected(&self, error: PoolError<DialError>) -> Cause {
        let Shared { pool, config, inspection, .. } = &*self.shared;
        let cause = match error {
            PoolError::Timeout(_) => pool.manager().explain_silence(config.timeout).await,
            PoolError::Backend(error) => pool.manager().explain(error, config.timeout).await,
            error => Cause::Other(error.to_string()),
        };
        inspection.of_user(cause)
    }

    /// Waits until the connection no longer serves, and returns the fault.
    async fn watch(&self, mut connection: Arc<Connection>) -> Fault {
        let mut doubts = self.shared.doubts.subscribe();
        let dialer = self.shared.pool.manager();
        let (mut moves, mut renewals) = (dialer.moves(), Some(dialer.access().renewals()));
        // A previous master must not decide, even if it answers.
        if let Some(why) = dialer.moved_from(connection.place()) {
            return Fault::Lost(why);
        }
        let (mut idle, mut heard) = (IDLE.0, Instant::now());
        let (mut pause, mut refusals_from) = (REFUSED.0, Instant::now());
        loop {
            let refusal = async {
                sleep_until(refusals_from).await;
                connection.refusal().await;
            };
            tokio::select! {
                () = connection.alarm() => {}
                Ok(()) = doubts.changed() => {}
                () = changed(&mut moves) => {
                    if let Some(why) = dialer.moved_from(connection.place()) {
                        return Fault::Lost(why);
                    }
                    continue;
                }
                () = changed(&mut renewals) => {
                    self.make_known(&connection).await;
                    continue;
                }
                () = refusal => {
                    // The pause doubles each time, unless there was no rejected call for a while.
                    let again = refusals_from.elapsed() < REFUSED.1;
                    pause = if again { (pause * 2).min(REFUSED.1) } else { REFUSED.0 };
                    refusals_from = Instant::now() + pause;
                }
                () = sleep(POLL) => {
                    if connection.take_answered() {
                        (idle, heard) = (IDLE.0, Instant::now());
                    }
                    self.look_again(&connection);
                    if heard.elapsed() < idle && !connection.is_closed() {
                        continue;
                    }
                    idle = (idle * 2).min(IDLE.1);
                }
            }
            doubts.mark_unchanged();
            if let Some(cause) = connection.lost() {
                return Fault::Lost(cause.to_owned());
            }
            match self.check(&connection).await {
                Checked::Good => connection.set_suspect(false),
                Checked::Replaced(new) => {
                    self.shared.places[self.place].store(Some(Arc::clone(&new)));
                    connection.lose("another has taken its place");
                    connection = new;
                }
                Checked::Bad(fault) => return fault,
            }
            heard = Instant::now();
            sleep(PAUSE).await;
        }
    }

    /// Authenticates again with the new password over a connection that used the old one. If Redis rejects it, the
    /// connection continues as it is.
    async fn make_known(&self, connection: &Connection) {
        let Shared { pool, config, .. } = &*self.shared;
        let Some(auth) = pool.manager().access().auth() else { return };
        match connection.send(auth).reply(config.timeout).await {
            Ok(_) => tracing::debug!(redis = %config, "a connection to redis is authenticated with the new password"),
            Err(fault @ Fault::Refused(_)) => tracing::warn!(
                redis = %config, error = %fault,
                "redis rejects the new password: an open connection keeps using the old one"
            ),
            Err(fault) => self.shared.note(connection, &fault),
        }
    }

    /// Inspects the Redis server again, in a separate task that does not delay alarms.
    fn look_again(&self, connection: &Arc<Connection>) {
        if !self.shared.inspection.take_turn() {
            return;
        }
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(connection));
        tokio::spawn(async move { shared.inspection.look_again(&connection).await });
    }

    /// Checks a connection. If the connection is suspect, makes another one in parallel, for one connection of the node
    /// at a time.
    async fn check(&self, connection: &Connection) -> Checked {
        let good_or_bad = |checked: Result<(), Fault>| checked.map_or_else(Checked::Bad, |()| Checked::Good);
        let check = pin!(self.shared.check(connection));
        if !connection.is_suspect() {
            return good_or_bad(check.await);
        }
        let replace = pin!(async {
            let _one_at_a_time = self.shared.replacing.try_lock().ok()?;
            self.make().await.ok()
        });
        match select(check, replace).await {
            Either::Left((Err(fault), replace)) => replace.await.map_or(Checked::Bad(fault), Checked::Replaced),
            Either::Left((Ok(()), _)) => Checked::Good,
            Either::Right((Some(new), _)) => Checked::Replaced(new),
            Either::Right((None, check)) => good_or_bad(check.await),
        }
    }
}

/// Waits for a change, forever if none is possible.
async fn changed<T>(receiver: &mut Option<watch::Receiver<T>>) {
    let has_changed = match receiver {
        Some(receiver) => receiver.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        pending::<()>().await;
    }
}
