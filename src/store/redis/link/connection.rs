//! One connection to Redis, and the calls over it.

use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, cmd, pipe};
use futures_util::FutureExt as _;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::{Duration, Instant, sleep};

use crate::engine::check::StoreError;
use crate::store::redis::deadlines::Deadlines;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::script::{self, Group};
use crate::store::redis::topology::Dialed;
use crate::store::redis::topology::address::Place;
use crate::store::redis::topology::config::RedisConfig;

/// Number of parts into which the wait for a silent Redis is divided.
const PARTS: u32 = 4;

/// The reason why a connection, or a call over it, has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Silent(Silence),
    #[error("connection lost: {0}")]
    Lost(String),
    #[error("{0}")]
    Refused(Cause),
    /// A rejection too, but the script can be loaded.
    #[error("Redis does not know the script")]
    NoScript,
    /// A node of a cluster has executed nothing, because it does not have the counters.
    #[error("{0}")]
    Elsewhere(Elsewhere),
    #[error("no reply of the script")]
    Answer,
    /// Redis has executed the call, but no replica is known to have received it.
    #[error("{why}")]
    Unheard {
        /// The reply of Redis.
        reply: Vec<u8>,
        why: Cause,
    },
    #[error("cannot connect: {0}")]
    Connect(Cause),
}

/// A time without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The time in which an answer must come.
    pub within: Duration,
    /// How much later the timer ended, because the process did not run.
    pub late: Duration,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Silence { within, late } = *self;
        write!(f, "no answer within {within:?}")?;
        if late < within {
            return Ok(());
        }
        let late = Duration::from_millis(u64::try_from(late.as_millis()).unwrap_or(u64::MAX));
        write!(f, ", but this process did not run for {late:?} of the time: it needs more processor time")
    }
}

/// The place of counters that a node of a cluster does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Elsewhere {
    /// The node does not say.
    #[error("the node does not have the counter")]
    Untold,
    /// The counters have moved to this place for good.
    #[error("the counter has moved to {0}")]
    Moved(Place),
    /// The counters are moving to this place, and have arrived there or are new.
    #[error("the counter is moving to {0}")]
    Asked(Place),
    /// Some of the counters have arrived at their new place, and others have not.
    #[error("counters of the request are moving")]
    Moving,
}

impl Elsewhere {
    /// Completes an answer of the node at this place. A node that does not know its own address leaves out the host.
    pub(crate) fn said_by(self, from: &Place) -> Elsewhere {
        let whole = |place| match (place, from) {
            (Place::Tcp(host, port), Place::Tcp(own, _)) if host.is_empty() => Place::Tcp(own.clone(), port),
            (place, _) => place,
        };
        match self {
            Elsewhere::Moved(place) => Elsewhere::Moved(whole(place)),
            Elsewhere::Asked(place) => Elsewhere::Asked(whole(place)),
            elsewhere @ (Elsewhere::Untold | Elsewhere::Moving) => elsewhere,
        }
    }

    /// Returns the meaning for each of several requests in one call. If a single counter has arrived elsewhere, Redis
    /// before 7.0 reports that all have, so each request must be repeated separately.
    pub(crate) fn of_several(self) -> Elsewhere {
        if matches!(self, Elsewhere::Asked(_)) { Elsewhere::Untold } else { self }
    }

    fn of(error: &RedisError) -> Option<Elsewhere> {
        let ErrorKind::Server(kind) = error.kind() else { return None };
        let place = || error.redirect_node().and_then(|(address, _)| Place::of_node(address));
        match kind {
            ServerErrorKind::Moved => Some(place().map_or(Elsewhere::Untold, Elsewhere::Moved)),
            ServerErrorKind::Ask => Some(place().map_or(Elsewhere::Moving, Elsewhere::Asked)),
            ServerErrorKind::TryAgain => Some(Elsewhere::Moving),
            _ => None,
        }
    }
}

impl Fault {
    /// Returns why this Redis can never be used, if that is the fault.
    pub(crate) fn unfit(&self) -> Option<&Cause> {
        match self {
            Fault::Refused(cause) | Fault::Connect(cause) => Some(cause).filter(|cause| cause.is_unfit()),
            _ => None,
        }
    }

    /// Returns the fault in one word, for metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Fault::Silent(_) => "timeout",
            Fault::Lost(_) => "connection",
            Fault::Refused(cause) | Fault::Connect(cause) => cause.kind(),
            Fault::NoScript => "no_script",
            Fault::Elsewhere(_) => Cause::Cluster.kind(),
            Fault::Answer => "answer",
            Fault::Unheard { why, .. } => why.kind(),
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        match fault {
            Fault::Silent(_) => StoreError::Timeout,
            Fault::Lost(cause) => StoreError::Connection(cause.into()),
            Fault::Refused(cause) => StoreError::Refused(cause.to_string().into()),
            // Redis was not asked at all.
            Fault::Connect(_) => StoreError::Down(fault.to_string().into()),
            Fault::NoScript | Fault::Elsewhere(_) | Fault::Unheard { .. } => {
                StoreError::Refused(fault.to_string().into())
            }
            Fault::Answer => StoreError::Answer,
        }
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Fault {
        if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
            Fault::NoScript
        } else if let Some(elsewhere) = Elsewhere::of(&error) {
            Fault::Elsewhere(elsewhere)
        } else if error.is_io_error() || error.is_connection_dropped() {
            Fault::Lost(error.to_string())
        } else {
            Fault::Refused(Cause::of_error(&error))
        }
    }
}

/// Returns why a counter failed, without its name: the script reports `{…}|LIMIT: reason`.
pub(crate) fn reason(failure: &str) -> &str {
    let behind_tag = failure.split_once('}').map_or(failure, |(_, rest)| rest);
    behind_tag.split_once(": ").map_or(behind_tag, |(_, reason)| reason)
}

/// Options for sending a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Whether the counters are moving to this node, which accepts the command only directly after ASKING.
    pub(crate) is_asking: bool,
    /// The confirmation that a durable command needs. Until it comes, Redis executes nothing else on this connection
    /// (WAIT).
    pub(crate) confirmation: Option<Confirmation>,
}

/// The confirmation of a command by replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmation {
    /// Number of replicas that must confirm it.
    pub(crate) replicas: usize,
    /// Time limit.
    pub(crate) within: Duration,
}

/// A connection that carries several calls at a time.
pub(crate) struct Connection {
    dialed: Dialed,
    /// The worker that owns the runtime of the connection.
    worker: usize,
    /// The thread that drives the connection, or `None` if several may.
    thread: Option<ThreadId>,
    /// Whether Redis has been silent.
    is_suspect: AtomicBool,
    /// The reason why the connection is unusable, once it is.
    lost: OnceLock<String>,
    /// Whether Redis has answered over the connection since the keeper last looked.
    answered: AtomicBool,
    alarm: Notify,
    refusal: Notify,
    /// Number of times that Redis was silent when asked to load the script.
    silent_loads: AtomicU64,
}

impl Connection {
    /// Wraps a new connection that lives on the runtime of this worker, which is the current one.
    pub(crate) fn new(dialed: Dialed, worker: usize) -> Connection {
        let one_thread = matches!(Handle::current().runtime_flavor(), RuntimeFlavor::CurrentThread);
        Connection {
            dialed,
            worker,
            thread: one_thread.then(|| thread::current().id()),
            is_suspect: AtomicBool::new(false),
            lost: OnceLock::new(),
            answered: AtomicBool::new(false),
            alarm: Notify::new(),
            refusal: Notify::new(),
            silent_loads: AtomicU64::new(0),
        }
    }

    /// Returns the worker that owns the runtime of the connection.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }

    /// Returns the address that the connection leads to.
    pub(crate) fn place(&self) -> &Place {
        &self.dialed.place
    }

    /// Returns whether the connection is usable and not suspect.
    pub(crate) fn serves(&self) -> bool {
        self.is_usable() && !self.is_suspect()
    }

    /// Returns whether the connection is usable; it may be suspect.
    pub(crate) fn is_usable(&self) -> bool {
        self.lost().is_none()
    }

    /// Returns whether Redis has been silent over the connection.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Returns the reason why the connection is unusable, if it is.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Notes that Redis has answered and executed a call.
    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Returns whether an answer has come since this was last called.
    pub(crate) fn take_answered(&self) -> bool {
        self.answered.swap(false, Ordering::Relaxed)
    }

    /// Notes that Redis has rejected a call, which makes the keeper check the connection.
    pub(crate) fn note_refusal(&self) {
        self.refusal.notify_one();
    }

    /// Marks the connection as suspect because Redis is silent, which makes the keeper check it, or, after a check, as
    /// not suspect.
    pub(crate) fn set_suspect(&self, is_suspect: bool) {
        self.is_suspect.store(is_suspect, Ordering::Relaxed);
        if is_suspect {
            self.alarm.notify_one();
        }
    }

    /// Marks the connection as no longer usable, which makes the keeper replace it.
    pub(crate) fn lose(&self, cause: &str) {
        self.lost.get_or_init(|| cause.to_owned());
        self.alarm.notify_one();
    }

    /// Returns how often Redis was silent when asked to load the script.
    pub(crate) fn silent_loads(&self) -> u64 {
        self.silent_loads.load(Ordering::Relaxed)
    }

    /// Notes that Redis was silent once more when asked to load the script.
    pub(crate) fn note_silent_load(&self) {
        self.silent_loads.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for an event that the keeper must see at once.
    pub(crate) async fn alarm(&self) {
        self.alarm.notified().await;
    }

    /// Waits for a rejected call.
    pub(crate) async fn refusal(&self) {
        self.refusal.notified().await;
    }

    /// Hands a command over. Redis gets the commands of a connection in the order in which they are handed over.
    pub(crate) fn send(&self, command: Cmd) -> Call {
        let mut redis = self.dialed.redis.clone();
        Call::begin(async move { Ok(redis.send_packed_command(&command).await?.extract_error()?) })
    }

    /// Hands a command over with these options.
    pub(crate) fn send_as(&self, command: Cmd, manner: Manner) -> Call {
        let Manner { is_asking, confirmation } = manner;
        if !is_asking && confirmation.is_none() {
            return self.send(command);
        }
        let mut redis = self.dialed.redis.clone();
        Call::begin(async move {
            let mut all = pipe();
            if is_asking {
                all.cmd("ASKING");
            }
            all.add_command(command);
            if let Some(Confirmation { replicas, within }) = confirmation {
                all.cmd("WAIT").arg(replicas).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1));
            }
            let mut replies = redis.send_packed_commands(&all, 0, all.len()).await?.into_iter();
            let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
            if is_asking {
                next()?;
            }
            let reply = next()?;
            let Some(Confirmation { replicas, within }) = confirmation else { return Ok(reply) };
            let why = match next() {
                Ok(Value::Int(heard)) if usize::try_from(heard).is_ok_and(|heard| heard >= replicas) => {
                    return Ok(reply);
                }
                Ok(_) => Cause::NobodyHeard(within),
                Err(error) => Cause::of_error(&error),
            };
            let Value::BulkString(reply) = reply else { return Err(Fault::Answer) };
            Err(Fault::Unheard { reply, why })
        })
    }

    /// Returns the script's reply to a group in a separate call. Loads the scripts if Redis does not have them.
    pub(crate) async fn decide(&self, group: &Group, config: &RedisConfig) -> Result<Vec<u8>, Fault> {
        let ask = || self.send(script::call([group])).wait(config.timeout);
        match ask().await {
            Err(Fault::NoScript) => {
                self.load(config.address.is_cluster(), config.timeout).await?;
                ask().await
            }
            reply => reply,
        }
    }

    /// Loads the scripts into Redis.
    pub(crate) async fn load(&self, is_cluster: bool, timeout: Duration) -> Result<(), Fault> {
        let calls: Vec<Call> = script::load(is_cluster).map(|load| self.send(load)).collect();
        for call in calls {
            call.wait(timeout).await?;
        }
        Ok(())
    }

    /// Returns whether a call failed when it was handed over because the connection's driver had already ended, so
    /// nothing of it was sent. If the driver runs on another thread, it may have ended since.
    pub(crate) fn never_sent(&self, call: &Call) -> bool {
        call.ready.as_ref().is_some_and(Result::is_err) && self.thread == Some(thread::current().id())
    }

    /// Returns whether Redis or the network has closed the connection. Sends nothing: a command with a dropped future
    /// is left out.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.send(cmd("PING")).ready, Some(Err(_)))
    }
}

/// A command in progress.
pub(crate) struct Call {
    reply: Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send>>,
    ready: Option<Result<Value, Fault>>,
}

impl Call {
    /// Hands the command over by starting the future `reply`.
    fn begin(reply: impl Future<Output = Result<Value, Fault>> + Send + 'static) -> Call {
        let mut call = Call { reply: Box::pin(reply), ready: None };
        // The first poll hands the command over, whatever budget the task has left; the next poll, in `wait`, is for
        // the reply.
        let polled = unconstrained(&mut call.reply).poll_unpin(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(ready) = polled {
            call.ready = Some(ready);
        }
        call
    }

    /// Returns the script's reply, unless Redis is silent for this long.
    pub(crate) async fn wait(self, timeout: Duration) -> Result<Vec<u8>, Fault> {
        script_reply(self.reply(timeout).await?)
    }

    /// The same with a timer of `deadlines`.
    pub(crate) async fn wait_by(self, deadlines: &Deadlines, timeout: Duration) -> Result<Vec<u8>, Fault> {
        let silence = silence(timeout, |part| deadlines.passed(Instant::now() + part));
        script_reply(self.reply_unless(silence).await?)
    }

    /// Returns a reply of any type, unless Redis is silent for this long.
    pub(crate) async fn reply(self, timeout: Duration) -> Result<Value, Fault> {
        self.reply_unless(silence(timeout, sleep)).await
    }

    async fn reply_unless(self, silence: impl Future<Output = Silence>) -> Result<Value, Fault> {
        match self.ready {
            Some(ready) => ready,
            None => tokio::select! {
                biased;
                reply = self.reply => reply,
                silence = silence => Err(Fault::Silent(silence)),
            },
        }
    }
}

fn script_reply(reply: Value) -> Result<Vec<u8>, Fault> {
    match reply {
        Value::BulkString(reply) => Ok(reply),
        _ => Err(Fault::Answer),
    }
}

/// Completes after the process has run for this long. `timer` returns a timer for each part of that time. A pause of
/// the process, however long, counts as one part. After a pause the process therefore has time to read a reply that has
/// already arrived.
async fn silence<T: Future>(timeout: Duration, timer: impl Fn(Duration) -> T) -> Silence {
    let begin = Instant::now();
    for _ in 0..PARTS {
        timer(timeout / PARTS).await;
    }
    Silence { within: timeout, late: begin.elapsed().saturating_sub(timeout) }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn of_counters_that_went_together_one_may_have_arrived_elsewhere_and_another_not() {
        let (there, nameless) = (Place::Tcp("a".into(), 1), Place::Tcp(String::new(), 1));
        assert_eq!(Elsewhere::Asked(there.clone()).of_several(), Elsewhere::Untold);
        assert_eq!(Elsewhere::Moved(there.clone()).of_several(), Elsewhere::Moved(there.clone()));
        assert_eq!(Elsewhere::Asked(nameless).said_by(&Place::Tcp("a".into(), 2)), Elsewhere::Asked(there));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_did_not_run_is_a_part_of_silence_at_most() {
        let deadlines = Deadlines::default();
        assert_is_a_part(silence(Duration::from_millis(400), sleep)).await;
        assert_is_a_part(silence(Duration::from_millis(400), |part| deadlines.passed(Instant::now() + part))).await;
    }

    async fn assert_is_a_part(silence: impl Future<Output = Silence>) {
        let mut silence = pin!(silence);
        let mut is_over = || silence.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let advance = async |time| {
            tokio::time::advance(time).await;
            // The task of a timer has its turn.
            tokio::task::yield_now().await;
        };
        for _ in 0..PARTS - 1 {
            assert!(!is_over());
            advance(Duration::from_secs(3_600)).await;
        }
        assert!(!is_over());
        advance(Duration::from_millis(98)).await;
        assert!(!is_over());
        advance(Duration::from_millis(4)).await;
        assert!(is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_did_not_run_is_told_from_a_redis_that_is_silent() {
        let timeout = Duration::from_millis(400);
        assert_eq!(silence(timeout, sleep).await.to_string(), "no answer within 400ms");
        let mut late = pin!(silence(timeout, sleep));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::time::advance(Duration::from_secs(3)).await;
        let said = late.await.to_string();
        assert!(said.contains("did not run for 2.9") || said.contains("did not run for 2.8"), "{said}");
    }
}
