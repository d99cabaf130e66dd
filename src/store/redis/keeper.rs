//! The keeper of one connection: a task that makes it, tries it by a real check of a counter of its own, and makes
//! it anew when it is lost.
//!
//! A connection serves from a check that passes to one that does not. The keeper checks it
//! - when a call over it, or over another connection of the node, has met silence or refusal, and
//! - when nothing has come over it for a while; the longer nothing comes, the more seldom.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use deadpool_redis::{Connection as Pooled, PoolError};
use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::connection::{Connection, Fault};
use super::link::Shared;
use crate::store;

/// How often a keeper polls whether its connection is closed, which costs Redis nothing.
const POLL: Duration = Duration::from_secs(1);
/// After how long without an answer a connection is checked, and the longest time between two such checks.
const IDLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// The shortest and the longest time between two checks because of refusals, where the checks pass.
const REFUSED: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// The shortest time between two checks of a connection for any reason.
const PAUSE: Duration = Duration::from_millis(20);
/// The first pause between two attempts to connect, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), store::RETRY);

/// Keeps the connection of one slot.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    slot: usize,
    /// Is dropped after the first attempt to connect.
    tried: Option<mpsc::Sender<()>>,
}

/// What becomes of a connection that has been checked.
enum Checked {
    Good,
    Replaced(Arc<Connection>),
    Bad(Fault),
}

impl Keeper {
    /// Keeps this slot of the link; `tried` is dropped after the first attempt to connect.
    pub(super) fn new(shared: Arc<Shared>, slot: usize, tried: mpsc::Sender<()>) -> Keeper {
        Keeper { shared, slot, tried: Some(tried) }
    }

    /// For as long as the link is there, whatever happens.
    pub(super) async fn run(mut self) {
        loop {
            let start = Instant::now();
            let kept = AssertUnwindSafe(self.keep()).catch_unwind().await;
            let has_panicked = kept.is_err();
            let fault = kept.unwrap_or_else(|_| Fault::Lost("its keeper has panicked".to_owned()));
            match self.shared.slots[self.slot].swap(None) {
                Some(connection) => {
                    connection.lose(&fault.to_string());
                    self.shared.breaker.lose(&fault);
                }
                None => self.shared.breaker.fail(&fault),
            }
            // What has befallen this connection may have befallen all.
            self.shared.doubts.send_replace(());
            self.tried = None;
            // One that is lost as soon as it is made is not made all the time.
            if has_panicked || start.elapsed() < POLL {
                sleep(RETRY.0).await;
            }
        }
    }

    /// Makes a connection, and returns what has ended it.
    async fn keep(&mut self) -> Fault {
        let connection = self.connect().await;
        self.shared.slots[self.slot].store(Some(Arc::clone(&connection)));
        self.shared.breaker.gain();
        self.tried = None;
        self.watch(connection).await
    }

    /// Makes a connection, however long that takes.
    async fn connect(&mut self) -> Arc<Connection> {
        let shared = Arc::clone(&self.shared);
        let (mut trial, mut pause) = (None, RETRY.0);
        loop {
            if trial.is_none() {
                trial = shared.breaker.admit().await;
            }
            match self.make().await {
                Ok(connection) => return connection,
                Err(fault) => shared.breaker.fail(&fault),
            }
            self.tried = None;
            sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// One attempt: a connection that has passed a check.
    async fn make(&self) -> Result<Arc<Connection>, Fault> {
        // For good: the pool would hand out a returned connection again, to any worker.
        let redis = Pooled::take(self.shared.pool.get().await.map_err(|error| self.not_connected(error))?);
        let connection = Connection::new(redis, self.slot / self.shared.for_each_worker);
        self.shared.check(&connection).await?;
        Ok(Arc::new(connection))
    }

    fn not_connected(&self, error: PoolError) -> Fault {
        Fault::Connect(match error {
            PoolError::Backend(error) if !error.is_timeout() => error.to_string(),
            PoolError::Backend(_) | PoolError::Timeout(_) => {
                format!("no answer within {:?}", self.shared.config.timeout)
            }
            error => error.to_string(),
        })
    }

    /// Waits until the connection does not serve any more, and returns why.
    async fn watch(&self, mut connection: Arc<Connection>) -> Fault {
        let mut doubts = self.shared.doubts.subscribe();
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
                () = refusal => {
                    // Longer each time, unless there was none for a while.
                    let again = refusals_from.elapsed() < REFUSED.1;
                    pause = if again { (pause * 2).min(REFUSED.1) } else { REFUSED.0 };
                    refusals_from = Instant::now() + pause;
                }
                () = sleep(POLL) => {
                    if connection.take_answered() {
                        (idle, heard) = (IDLE.0, Instant::now());
                    }
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
                    self.shared.slots[self.slot].store(Some(Arc::clone(&new)));
                    connection.lose("another has taken its place");
                    connection = new;
                }
                Checked::Bad(fault) => return fault,
            }
            heard = Instant::now();
            sleep(PAUSE).await;
        }
    }

    /// Checks a connection. Beside a suspect one another is made, for one connection of the node at a time.
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
