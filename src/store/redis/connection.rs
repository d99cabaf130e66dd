//! One connection to Redis, and the calls over it.

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
use tokio::time::{Duration, sleep};

use super::RedisConfig;
use super::address::Place;
use super::cause::Cause;
use super::script::{self, Group};
use super::topology::Dialed;
use crate::store::StoreError;

/// In how many parts silence is waited for.
const PARTS: u32 = 4;

/// Why a connection, or a call over it, has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("connection lost: {0}")]
    Lost(String),
    #[error("{0}")]
    Refused(Cause),
    /// A refusal as well; the script can be loaded.
    #[error("Redis does not know the script")]
    NoScript,
    /// A node of a cluster has done nothing, because it does not have the counters.
    #[error("{0}")]
    Elsewhere(Elsewhere),
    #[error("no reply of the script")]
    Answer,
    /// It has done what it was asked, and no replica is known to have heard of it.
    #[error("{why}")]
    Unheard {
        /// What it has answered.
        reply: Vec<u8>,
        why: Cause,
    },
    #[error("cannot connect: {0}")]
    Connect(Cause),
}

/// Where counters are that a node of a cluster does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Elsewhere {
    /// It does not say.
    #[error("the node does not have the counter")]
    Untold,
    /// They have moved there for good.
    #[error("the counter has moved to {0}")]
    Moved(Place),
    /// They are moving there, and are there already or new.
    #[error("the counter is moving to {0}")]
    Asked(Place),
    /// Some have arrived there, and others have not.
    #[error("counters of the request are moving")]
    Moving,
}

impl Elsewhere {
    /// As the node at this place says it: one that does not know its own address leaves the host out.
    pub(super) fn said_by(self, from: &Place) -> Elsewhere {
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

    /// What it says to each of several requests that went together. Redis before 7.0 says of all their counters that
    /// they have arrived elsewhere where only one has, so that each has to be asked for by itself.
    pub(super) fn of_several(self) -> Elsewhere {
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
    /// Why Redis can never be of use, if it is that.
    pub(super) fn unfit(&self) -> Option<&Cause> {
        match self {
            Fault::Refused(cause) | Fault::Connect(cause) => Some(cause).filter(|cause| cause.is_unfit()),
            _ => None,
        }
    }

    /// In one word, as metrics have it.
    pub(super) fn kind(&self) -> &'static str {
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
            // It was not asked at all.
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

/// Why a counter failed, without its name: the script says `{…}|LIMIT: reason`.
pub(super) fn reason(failure: &str) -> &str {
    let behind_tag = failure.split_once('}').map_or(failure, |(_, rest)| rest);
    behind_tag.split_once(": ").map_or(behind_tag, |(_, reason)| reason)
}

/// What a command needs beyond being sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// Its counters are moving to this node, which takes the command that comes next behind ASKING.
    pub(super) is_asking: bool,
    /// A replica is to hear of it within so long. Meanwhile Redis does nothing else for this connection (WAIT).
    pub(super) heard_within: Option<Duration>,
}

/// What calls go over, together with others.
pub(super) struct Connection {
    dialed: Dialed,
    /// On whose runtime it lives.
    worker: usize,
    /// What drives it runs on this thread; `None` where it may run on several.
    thread: Option<ThreadId>,
    /// Redis has been silent.
    is_suspect: AtomicBool,
    /// It is of no use any more: why.
    lost: OnceLock<String>,
    /// Redis has answered over it since the keeper last looked.
    answered: AtomicBool,
    alarm: Notify,
    refusal: Notify,
    /// How often Redis has been silent instead of loading the script.
    silent_loads: AtomicU64,
}

impl Connection {
    /// One that has just been made, on the runtime of this worker, which is the one that this runs on.
    pub(super) fn new(dialed: Dialed, worker: usize) -> Connection {
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

    /// On whose runtime it lives.
    pub(super) fn worker(&self) -> usize {
        self.worker
    }

    /// Where it leads.
    pub(super) fn place(&self) -> &Place {
        &self.dialed.place
    }

    /// Nothing is known against it.
    pub(super) fn serves(&self) -> bool {
        self.is_usable() && !self.is_suspect()
    }

    /// It may be suspect.
    pub(super) fn is_usable(&self) -> bool {
        self.lost().is_none()
    }

    /// Redis has been silent over it.
    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Why it is of no use any more.
    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Redis has answered, and done what it was asked.
    pub(super) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Whether there was an answer since this was asked.
    pub(super) fn take_answered(&self) -> bool {
        self.answered.swap(false, Ordering::Relaxed)
    }

    /// Redis has refused: the keeper shall check.
    pub(super) fn note_refusal(&self) {
        self.refusal.notify_one();
    }

    /// Redis is silent, and the keeper shall check; or, after a check, it is not.
    pub(super) fn set_suspect(&self, is_suspect: bool) {
        self.is_suspect.store(is_suspect, Ordering::Relaxed);
        if is_suspect {
            self.alarm.notify_one();
        }
    }

    /// It is of no use any more: the keeper shall make another.
    pub(super) fn lose(&self, cause: &str) {
        self.lost.get_or_init(|| cause.to_owned());
        self.alarm.notify_one();
    }

    /// How often Redis has been silent instead of loading the script.
    pub(super) fn silent_loads(&self) -> u64 {
        self.silent_loads.load(Ordering::Relaxed)
    }

    /// It has once more.
    pub(super) fn note_silent_load(&self) {
        self.silent_loads.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for what the keeper shall see at once.
    pub(super) async fn alarm(&self) {
        self.alarm.notified().await;
    }

    /// Waits for a refusal.
    pub(super) async fn refusal(&self) {
        self.refusal.notified().await;
    }

    /// Hands a command over: Redis gets the commands of a connection in the order in which they are handed over.
    pub(super) fn send(&self, command: Cmd) -> Call {
        let mut redis = self.dialed.redis.clone();
        Call::begin(async move { Ok(redis.send_packed_command(&command).await?.extract_error()?) })
    }

    /// The same for a command that needs more than to be sent.
    pub(super) fn send_as(&self, command: Cmd, manner: Manner) -> Call {
        let Manner { is_asking, heard_within } = manner;
        if !is_asking && heard_within.is_none() {
            return self.send(command);
        }
        let mut redis = self.dialed.redis.clone();
        Call::begin(async move {
            let mut all = pipe();
            if is_asking {
                all.cmd("ASKING");
            }
            all.add_command(command);
            if let Some(patience) = heard_within {
                all.cmd("WAIT").arg(1).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1));
            }
            let mut replies = redis.send_packed_commands(&all, 0, all.len()).await?.into_iter();
            let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
            if is_asking {
                next()?;
            }
            let reply = next()?;
            let Some(patience) = heard_within else { return Ok(reply) };
            let why = match next() {
                Ok(Value::Int(1..)) => return Ok(reply),
                Ok(_) => Cause::NobodyHeard(patience),
                Err(error) => Cause::of_error(&error),
            };
            let Value::BulkString(reply) = reply else { return Err(Fault::Answer) };
            Err(Fault::Unheard { reply, why })
        })
    }

    /// What the script replies to a group that is all of its call. Redis learns the scripts where it has to.
    pub(super) async fn decide(&self, group: &Group, config: &RedisConfig) -> Result<Vec<u8>, Fault> {
        let ask = || self.send(script::call([group])).wait(config.timeout);
        match ask().await {
            Err(Fault::NoScript) => {
                self.load(config.address.is_cluster(), config.timeout).await?;
                ask().await
            }
            reply => reply,
        }
    }

    /// Lets Redis know the scripts.
    pub(super) async fn load(&self, is_cluster: bool, timeout: Duration) -> Result<(), Fault> {
        let calls: Vec<Call> = script::load(is_cluster).map(|load| self.send(load)).collect();
        for call in calls {
            call.wait(timeout).await?;
        }
        Ok(())
    }

    /// A call that failed when it was handed over: what drives the connection has ended before, and has sent nothing of
    /// it. Where that runs on another thread, it may have ended since.
    pub(super) fn never_sent(&self, call: &Call) -> bool {
        call.ready.as_ref().is_some_and(Result::is_err) && self.thread == Some(thread::current().id())
    }

    /// Whether Redis, or the network, has closed it. To know that nothing is sent: a command that nobody waits for is
    /// left out.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.send(cmd("PING")).ready, Some(Err(_)))
    }
}

/// A command on its way.
pub(super) struct Call {
    reply: Pin<Box<dyn Future<Output = Result<Value, Fault>> + Send>>,
    ready: Option<Result<Value, Fault>>,
}

impl Call {
    /// Hands over what `reply` sends.
    fn begin(reply: impl Future<Output = Result<Value, Fault>> + Send + 'static) -> Call {
        let mut call = Call { reply: Box::pin(reply), ready: None };
        // The first poll hands it over, whatever budget the task has left; the next, in `wait`, is for the reply.
        let polled = unconstrained(&mut call.reply).poll_unpin(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(ready) = polled {
            call.ready = Some(ready);
        }
        call
    }

    /// The reply, unless Redis is silent for so long.
    pub(super) async fn wait(self, timeout: Duration) -> Result<Vec<u8>, Fault> {
        match self.reply(timeout).await? {
            Value::BulkString(reply) => Ok(reply),
            _ => Err(Fault::Answer),
        }
    }

    /// The same, whatever kind of reply it is.
    pub(super) async fn reply(self, timeout: Duration) -> Result<Value, Fault> {
        match self.ready {
            Some(ready) => ready,
            None => tokio::select! {
                biased;
                reply = self.reply => reply,
                () = silence(timeout) => Err(Fault::Silent(timeout)),
            },
        }
    }
}

/// Passes when this process has run for so long: however long it did not, that counts as one part. So what it finds
/// late on its own account, the reply among it, it has the time to find.
async fn silence(timeout: Duration) {
    for _ in 0..PARTS {
        sleep(timeout / PARTS).await;
    }
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
        let mut silence = pin!(silence(Duration::from_millis(400)));
        let mut is_over = || silence.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        for _ in 0..PARTS - 1 {
            assert!(!is_over());
            tokio::time::advance(Duration::from_secs(3_600)).await;
        }
        assert!(!is_over());
        tokio::time::advance(Duration::from_millis(98)).await;
        assert!(!is_over());
        tokio::time::advance(Duration::from_millis(4)).await;
        assert!(is_over());
    }
}
