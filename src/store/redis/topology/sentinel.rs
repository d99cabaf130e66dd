//! Where the master is, by the Sentinels that watch it.
//!
//! Every new connection asks all of them, and each is polled ten times a second: while the master is up, only a poll
//! notices a failover. Polls do without subscriptions, because a subscription can break as silently as a Sentinel can.
//! [`NamedMaster`] chooses among the answers.
//!
//! A Sentinel that leads a failover answers `SENTINEL MASTER` with the new configuration and the old address until the
//! failover is complete, which takes from one second to minutes. `GET-MASTER-ADDR-BY-NAME` names the promoted replica
//! at once. So the address comes from that, and configuration and flags from the other.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use deadpool_redis::redis::{Value, cmd};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::access::Access;
use super::dial::{DialError, Dialed, dial};
use super::named_master::{NamedMaster, SentinelAnswer};
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::topology::address::Place;
use crate::store::redis::topology::config::{OnCall, RedisConfig};
use crate::supervise;

/// Pause between two polls of a Sentinel.
const POLL: Duration = Duration::from_millis(100);

/// The pause while a Sentinel reports a failover: from its start to the new master's name it takes about a second.
const POLL_IN_FAILOVER: Duration = Duration::from_millis(20);

/// The Sentinels of one master.
pub(crate) struct Sentinels {
    /// The name of the master.
    name: String,
    sentinels: Vec<Sentinel>,
    access: Access,
    /// Timeout of each Sentinel. Together with connecting to the master it must fit into the timeout of Redis.
    patience: Duration,
    on_call: OnCall,
    named: Mutex<NamedMaster>,
    /// Whether the log has said that too few Sentinels answer.
    is_minority_logged: AtomicBool,
    master: watch::Sender<Option<Place>>,
    polls: Mutex<Vec<AbortHandle>>,
}

struct Sentinel {
    place: Place,
    connection: AsyncMutex<Option<Dialed>>,
}

impl Sentinels {
    /// Returns the Sentinels, which are polled from now on.
    pub(crate) fn start(name: String, places: Vec<Place>, access: Access, config: &RedisConfig) -> Arc<Sentinels> {
        let number = places.len();
        let sentinels = places.into_iter().map(|place| Sentinel { place, connection: AsyncMutex::default() });
        let sentinels = Arc::new(Sentinels {
            name,
            sentinels: sentinels.collect(),
            access,
            patience: config.timeout / 2,
            on_call: config.on_call.clone(),
            named: Mutex::new(NamedMaster::new(number)),
            is_minority_logged: AtomicBool::new(false),
            master: watch::Sender::new(None),
            polls: Mutex::default(),
        });
        let poll = |index| {
            let polled = Arc::downgrade(&sentinels);
            supervise::spawn("sentinel", move || poll(Weak::clone(&polled), index)).abort_handle()
        };
        *sentinels.polls.lock() = (0..number).map(poll).collect();
        sentinels
    }

    /// Returns the current place of the master, and its changes.
    pub(crate) fn moves(&self) -> watch::Receiver<Option<Place>> {
        self.master.subscribe()
    }

    /// Returns the current place of the master if it is known and another than this one.
    pub(super) fn moved_from(&self, place: &Place) -> Option<Place> {
        self.master.borrow().as_ref().filter(|now| *now != place).cloned()
    }

    /// Returns the cause if no Sentinel answers in time.
    pub(crate) fn silence(&self) -> Cause {
        Cause::NoSentinel(Cause::Silent(self.patience).to_string())
    }

    /// Returns whether a Sentinel reports a failover whose new master is not named yet.
    pub(crate) fn is_failing_over(&self) -> bool {
        self.named.lock().is_failing_over(Instant::now())
    }

    /// Returns the number of replicas that follow the master.
    pub(crate) fn replicas_in_step(&self) -> usize {
        self.named.lock().replicas(Instant::now())
    }

    /// Asks all Sentinels where the master is, and waits for a majority of answers.
    ///
    /// # Errors
    /// If none of them answers in time.
    pub(crate) async fn ask(&self) -> Result<Place, Cause> {
        let deadline = Instant::now() + self.patience;
        let ask = async |index| (index, self.ask_one(&self.sentinels[index], deadline).await);
        let mut asked: FuturesUnordered<_> = (0..self.sentinels.len()).map(ask).collect();
        let (majority, mut answers, mut causes) = (self.named.lock().majority(), 0, Vec::new());
        while answers < majority
            && let Some((index, answer)) = asked.next().await
        {
            match answer {
                Ok(answer) => {
                    self.note(index, answer);
                    answers += 1;
                }
                Err(cause) => causes.push(cause),
            }
        }
        match self.named.lock().master() {
            Some(master) if answers > 0 => Ok(master.clone()),
            _ => Err(self.refusal(causes)),
        }
    }

    /// Returns the answer of each Sentinel, in the configured order: its place, and the master's.
    pub(crate) async fn survey(&self) -> Vec<(String, Result<String, Cause>)> {
        let deadline = Instant::now() + self.patience;
        let asked = self.sentinels.iter().map(|sentinel| async move {
            let answer = self.ask_one(sentinel, deadline).await;
            (sentinel.place.to_string(), answer.map(|answer| answer.master.to_string()))
        });
        join_all(asked).await
    }

    /// Returns the places of replicas that are up, the most up-to-date first, according to the first Sentinel that
    /// answers.
    ///
    /// # Errors
    /// If no Sentinel reports them.
    pub(crate) async fn replicas(&self) -> Result<Vec<Place>, Cause> {
        let deadline = Instant::now() + self.patience;
        let ask = |sentinel| self.ask_one_for("REPLICAS", sentinel, deadline);
        let mut asked: FuturesUnordered<_> = self.sentinels.iter().map(ask).collect();
        let mut causes = Vec::new();
        while let Some(said) = asked.next().await {
            match said {
                Ok(said) => return Ok(replicas(&said)),
                Err(cause) => causes.push(cause),
            }
        }
        Err(self.refusal(causes))
    }

    async fn ask_one(&self, sentinel: &Sentinel, deadline: Instant) -> Result<SentinelAnswer, Cause> {
        // In this order: an address is then as new as the configuration, or newer.
        let master = self.ask_one_for("MASTER", sentinel, deadline).await?;
        let address = self.ask_one_for("GET-MASTER-ADDR-BY-NAME", sentinel, deadline).await?;
        let replicas = self.ask_one_for("REPLICAS", sentinel, deadline).await?;
        SentinelAnswer::of(&master, &address, &replicas)
    }

    /// Returns a Sentinel's reply to this question about the master.
    async fn ask_one_for(&self, part: &str, sentinel: &Sentinel, deadline: Instant) -> Result<Value, Cause> {
        if let Ok(said) = timeout_at(deadline, sentinel.ask(part, &self.name, &self.access)).await {
            return said;
        }
        // The next question uses a new connection, since this one may be broken.
        if let Ok(mut connection) = sentinel.connection.try_lock() {
            *connection = None;
        }
        Err(Cause::Silent(self.patience))
    }

    /// Records an answer, and announces the master if it has changed.
    fn note(&self, index: usize, answer: SentinelAnswer) {
        // The lock spans both, so that connections never move to an older answer.
        let mut named = self.named.lock();
        let Some(master) = named.note(index, answer, Instant::now()) else { return };
        let (name, now) = (&self.name, master.to_string());
        match &*self.master.borrow() {
            Some(before) => tracing::info!(name, %before, now, "the sentinels name another master"),
            None => tracing::info!(name, now, "the sentinels name the master"),
        }
        self.master.send_replace(Some(master));
    }

    /// Logs when fewer than a majority answer, and when a majority does again. Without one, no failover takes
    /// place, and the other side of a split network may have replaced the master.
    fn watch_majority(&self, cause: Option<&Cause>) {
        let (answering, majority) = {
            let named = self.named.lock();
            (named.answering(Instant::now()), named.majority())
        };
        let (name, all) = (&self.name, self.sentinels.len());
        self.on_call.tell_of_sentinels(name, answering, all);
        if answering >= majority {
            if self.is_minority_logged.swap(false, Ordering::Relaxed) {
                tracing::info!(name, answering, all, "the sentinels answer again");
            }
        } else if self.master.borrow().is_some() && !self.is_minority_logged.swap(true, Ordering::Relaxed) {
            let cause = cause.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(name, answering, all, "the sentinels do not answer, a failover would go unnoticed: {cause}");
        }
    }

    /// Returns why no Sentinel reported the master. One that rejects the name or the user is more informative than one
    /// that cannot be reached.
    fn refusal(&self, causes: Vec<Cause>) -> Cause {
        let tells =
            |cause: &&Cause| matches!(cause, Cause::UnknownMaster(_) | Cause::SentinelLogin | Cause::NotSentinel);
        let cause = causes.iter().find(tells).or(causes.first()).cloned();
        match cause {
            Some(cause @ (Cause::UnknownMaster(_) | Cause::SentinelLogin | Cause::NotSentinel)) => cause,
            Some(cause) => Cause::NoSentinel(cause.to_string()),
            None => self.silence(),
        }
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.polls.lock().iter().for_each(AbortHandle::abort);
    }
}

/// Polls one Sentinel for as long as anything uses the master. Each has its own task, so a silent one delays no other.
async fn poll(sentinels: Weak<Sentinels>, index: usize) {
    let mut pause = POLL;
    loop {
        sleep(pause).await;
        let Some(sentinels) = sentinels.upgrade() else { return };
        let deadline = Instant::now() + sentinels.patience;
        match sentinels.ask_one(&sentinels.sentinels[index], deadline).await {
            Ok(answer) => {
                sentinels.note(index, answer);
                sentinels.watch_majority(None);
            }
            Err(cause) => {
                sentinels.named.lock().note_silence(index);
                sentinels.watch_majority(Some(&cause));
            }
        }
        pause = if sentinels.is_failing_over() { POLL_IN_FAILOVER } else { POLL };
    }
}

impl Sentinel {
    async fn ask(&self, part: &str, name: &str, access: &Access) -> Result<Value, Cause> {
        let mut connection = self.connection.lock().await;
        // Kept open even if the caller is cancelled.
        if let Some(dialed) = &*connection
            && let Ok(said) = say(dialed, part, name).await
        {
            return Ok(said);
        }
        // There was no connection, or it was closed meanwhile.
        *connection = None;
        let dialed = dial(self.place.clone(), access).await.map_err(|error| match error {
            DialError::Known(cause) | DialError::Unclear(cause) => of_sentinel(cause),
        })?;
        let said = say(&dialed, part, name).await?;
        *connection = Some(dialed);
        Ok(said)
    }
}

/// Asks `SENTINEL MASTER`, `REPLICAS` or `GET-MASTER-ADDR-BY-NAME` about the master with this name.
async fn say(dialed: &Dialed, part: &str, name: &str) -> Result<Value, Cause> {
    let mut ask = cmd("SENTINEL");
    ask.arg(part).arg(name);
    let said = dialed.redis.clone().send_packed_command(&ask).await.and_then(Value::extract_error);
    said.map_err(|error| match error.to_string() {
        text if text.contains("No such master") => Cause::UnknownMaster(name.to_owned()),
        _ => of_sentinel(Cause::of_error(&error)),
    })
}

/// Returns the meaning of an error from the address of a Sentinel.
fn of_sentinel(cause: Cause) -> Cause {
    match cause {
        Cause::NoPassword | Cause::WrongPassword | Cause::NeedlessPassword | Cause::Lacks(_) => Cause::SentinelLogin,
        Cause::NoCommand(_) => Cause::NotSentinel,
        cause => cause,
    }
}

impl SentinelAnswer {
    /// Reads an answer from the replies to `SENTINEL MASTER`, `GET-MASTER-ADDR-BY-NAME` and `REPLICAS`.
    fn of(master: &Value, address: &Value, replicas: &Value) -> Result<SentinelAnswer, Cause> {
        let told = pairs(master);
        let known = place(&told).ok_or(Cause::NotSentinel)?;
        let epoch = told.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        let flags = told.get("flags").map_or("", String::as_str);
        let is_in_failover = flags.split(',').any(|flag| flag == "failover_in_progress");
        let master = address_of(address).ok_or(Cause::NotSentinel)?;
        let (following, promoted) = (in_step(replicas), promoted(replicas));
        Ok(SentinelAnswer { is_failing_over: is_in_failover && master == known, master, epoch, following, promoted })
    }
}

/// Reads the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`: a host and a port.
fn address_of(said: &Value) -> Option<Place> {
    let Value::Array(parts) = said else { return None };
    let [host, port] = parts.as_slice() else { return None };
    Some(Place::Tcp(text(host)?, text(port)?.parse().ok()?))
}

/// Returns the replicas that are up and follow their master.
fn in_step(said: &Value) -> Vec<Place> {
    up(said, |replica| reports(replica, "role-reported", "slave") && reports(replica, "master-link-status", "ok"))
}

/// Returns the replicas that are up and call themselves masters.
fn promoted(said: &Value) -> Vec<Place> {
    up(said, |replica| reports(replica, "role-reported", "master"))
}

fn up(said: &Value, is: impl Fn(&HashMap<String, String>) -> bool) -> Vec<Place> {
    let Value::Array(said) = said else { return Vec::new() };
    said.iter()
        .map(pairs)
        .filter(|replica| is_up(replica) && is(replica))
        .filter_map(|replica| place(&replica))
        .collect()
}

fn reports(replica: &HashMap<String, String>, name: &str, value: &str) -> bool {
    replica.get(name).is_some_and(|found| found == value)
}

/// Returns whether a Sentinel reaches a server.
fn is_up(server: &HashMap<String, String>) -> bool {
    let flags = server.get("flags").map_or("", String::as_str);
    !flags.split(',').any(|flag| ["s_down", "o_down", "disconnected"].contains(&flag))
}

/// Returns the servers that are up, the most up-to-date first.
fn replicas(said: &Value) -> Vec<Place> {
    let Value::Array(said) = said else { return Vec::new() };
    let mut up: Vec<_> = said.iter().map(pairs).filter(is_up).collect();
    up.sort_by_key(|replica| Reverse(replica.get("slave-repl-offset").and_then(|offset| offset.parse::<u64>().ok())));
    up.iter().filter_map(place).collect()
}

/// Returns the place in a report.
fn place(told: &HashMap<String, String>) -> Option<Place> {
    let (host, port) = told.get("ip").zip(told.get("port")?.parse().ok())?;
    Some(Place::Tcp(host.clone(), port))
}

/// Returns names and values, in either protocol's format.
fn pairs(said: &Value) -> HashMap<String, String> {
    match said {
        Value::Array(parts) => {
            parts.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect()
        }
        Value::Map(pairs) => pairs.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect(),
        _ => HashMap::new(),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::topology::address::RedisAddress;

    fn sentinels() -> Arc<Sentinels> {
        let address: RedisAddress = "redis+sentinel://127.0.0.1:1/main".parse().unwrap();
        let access = Access::start(&address).unwrap();
        let config = RedisConfig {
            address,
            connections: 1,
            timeout: Duration::from_secs(1),
            queue: 1,
            key_prefix: String::new(),
            per_second: None,
            on_call: OnCall::default(),
        };
        Sentinels::start("main".into(), vec![Place::Tcp("127.0.0.1".into(), 1)], access, &config)
    }

    fn place_at(port: u16) -> Place {
        Place::Tcp("10.0.0.1".into(), port)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn address(port: &str) -> Value {
        Value::Array(vec![bulk("10.0.0.1"), bulk(port)])
    }

    fn named_by(port: u16, epoch: u64) -> SentinelAnswer {
        SentinelAnswer {
            master: place_at(port),
            epoch,
            is_failing_over: false,
            following: Vec::new(),
            promoted: Vec::new(),
        }
    }

    #[tokio::test]
    async fn connections_move_once_and_forward_only() {
        let sentinels = sentinels();
        let mut moves = sentinels.moves();
        for (answer, moved) in [
            (named_by(1, 3), true),
            // The leader of a failover has raised its configuration, and does not name the promoted replica yet.
            (named_by(1, 4), false),
            (named_by(2, 4), true),
            (named_by(1, 4), false),
            (named_by(1, 3), false),
        ] {
            sentinels.note(0, answer.clone());
            assert_eq!(moves.has_changed().unwrap(), moved, "{answer:?}");
            moves.mark_unchanged();
        }
        assert_eq!(*moves.borrow(), Some(place_at(2)));
    }

    #[tokio::test]
    async fn what_tells_most_is_told() {
        let unknown = || Cause::UnknownMaster("main".into());
        assert_eq!(sentinels().refusal(vec![Cause::NobodyListens, unknown()]), unknown());
        assert!(matches!(sentinels().refusal(vec![Cause::NobodyListens]), Cause::NoSentinel(_)));
    }

    #[test]
    fn an_answer_is_read_in_both_protocols() {
        let pairs = [("name", "main"), ("ip", "10.0.0.1"), ("port", "7"), ("flags", "master"), ("config-epoch", "9")];
        let array = Value::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect());
        let map = Value::Map(pairs.iter().map(|(name, value)| (bulk(name), bulk(value))).collect());
        for said in [array, map] {
            assert_eq!(SentinelAnswer::of(&said, &address("7"), &Value::Nil).unwrap(), named_by(7, 9));
        }
        assert_eq!(SentinelAnswer::of(&Value::Okay, &address("7"), &Value::Nil).err(), Some(Cause::NotSentinel));
    }

    #[test]
    fn the_leader_of_a_failover_names_the_promoted_replica_by_its_address_alone() {
        let of = |flags: &str, named: &str| {
            let pairs = [("ip", "10.0.0.1"), ("port", "7"), ("flags", flags), ("config-epoch", "9")];
            let master = Value::Array(pairs.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect());
            let answer = SentinelAnswer::of(&master, &address(named), &Value::Nil).unwrap();
            (answer.master, answer.is_failing_over)
        };
        assert_eq!(of("master", "7"), (place_at(7), false));
        assert_eq!(of("master,failover_in_progress", "7"), (place_at(7), true));
        assert_eq!(of("master,failover_in_progress,force_failover", "8"), (place_at(8), false));
    }

    #[test]
    fn of_the_replicas_that_are_up_the_one_that_has_heard_the_most_comes_first() {
        let replica = |port: &str, flags: &str, offset: &str| {
            let pairs = [("ip", "10.0.0.1"), ("port", port), ("flags", flags), ("slave-repl-offset", offset)];
            let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(pairs.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
        };
        let said = Value::Array(vec![
            replica("1", "slave", "70"),
            replica("2", "s_down,slave,disconnected", "900"),
            replica("3", "slave", "100"),
            replica("4", "slave,disconnected", "90"),
        ]);
        assert_eq!(replicas(&said), [place_at(3), place_at(1)]);
        assert!(replicas(&Value::Array(Vec::new())).is_empty());
    }

    #[test]
    fn a_replica_that_was_promoted_or_is_cut_off_confirms_nothing() {
        let replica = |port: &str, flags: &str, role: &str, link: &str| {
            let address = [("ip", "10.0.0.1"), ("port", port)];
            let told = [("flags", flags), ("role-reported", role), ("master-link-status", link)];
            let pairs = address.into_iter().chain(told);
            Value::Array(pairs.flat_map(|(name, value)| [bulk(name), bulk(value)]).collect())
        };
        let said = Value::Array(vec![
            replica("1", "slave", "slave", "ok"),
            replica("2", "slave", "slave", "err"),
            replica("3", "slave", "master", "ok"),
            replica("4", "s_down,slave", "slave", "ok"),
            replica("5", "slave,promoted", "slave", "ok"),
            replica("6", "s_down,slave", "master", "ok"),
        ]);
        assert_eq!((in_step(&said), promoted(&said)), (vec![place_at(1), place_at(5)], vec![place_at(3)]));
        assert_eq!((in_step(&Value::Nil), promoted(&Value::Nil)), (Vec::new(), Vec::new()));
    }
}
