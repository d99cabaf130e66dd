//! Where the master is, as Sentinels have it.
//!
//! All are asked at the same time, for each connection that is made and once a second. Of their answers the one with
//! the newest configuration counts: a Sentinel that was cut off goes on naming a master of before, until it hears of
//! the failover. Nothing older is believed than what was heard once.
//!
//! They are polled and not listened to. While the master is down, each attempt to connect asks them anyway; and a
//! subscription can break as silently as a Sentinel can.

use std::cmp::Reverse;
use std::collections::HashMap;
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
use crate::store::redis::address::Place;
use crate::store::redis::cause::Cause;

/// How often they are asked while all is well.
const POLL: Duration = Duration::from_secs(1);

/// The Sentinels of one master.
pub(super) struct Sentinels {
    /// The master's name.
    name: String,
    sentinels: Vec<Sentinel>,
    access: Access,
    /// How long each may take: together with the connection that is then made it is to fit into the timeout.
    patience: Duration,
    /// The configuration in which the master was named last.
    epoch: Mutex<u64>,
    master: watch::Sender<Option<Place>>,
    polls: Mutex<Option<AbortHandle>>,
}

struct Sentinel {
    place: Place,
    connection: AsyncMutex<Option<Dialed>>,
}

/// What one of them says.
struct Answer {
    master: Place,
    epoch: u64,
}

impl Sentinels {
    /// Asks them from now on.
    pub(super) fn start(name: String, places: Vec<Place>, access: Access, timeout: Duration) -> Arc<Sentinels> {
        let sentinels = places.into_iter().map(|place| Sentinel { place, connection: AsyncMutex::default() });
        let sentinels = Arc::new(Sentinels {
            name,
            sentinels: sentinels.collect(),
            access,
            patience: timeout / 2,
            epoch: Mutex::new(0),
            master: watch::Sender::new(None),
            polls: Mutex::new(None),
        });
        *sentinels.polls.lock() = Some(tokio::spawn(poll(Arc::downgrade(&sentinels))).abort_handle());
        sentinels
    }

    /// Where the master is; changes when it is elsewhere.
    pub(super) fn moves(&self) -> watch::Receiver<Option<Place>> {
        self.master.subscribe()
    }

    /// What to say where none of them answers in time.
    pub(super) fn silence(&self) -> Cause {
        Cause::NoSentinel(Cause::Silent(self.patience).to_string())
    }

    /// Where the master is now.
    ///
    /// # Errors
    /// Where none of them says.
    pub(super) async fn ask(&self) -> Result<Place, Cause> {
        self.hear(self.sentinels.len() / 2 + 1).await
    }

    /// The same by the answers of so many, as far as they come in time.
    async fn hear(&self, enough: usize) -> Result<Place, Cause> {
        let deadline = Instant::now() + self.patience;
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask_one(sentinel, deadline)).collect();
        let (mut answers, mut causes) = (Vec::new(), Vec::new());
        while answers.len() < enough
            && let Some(answer) = asked.next().await
        {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(cause) => causes.push(cause),
            }
        }
        match answers.into_iter().max_by_key(|answer| answer.epoch) {
            Some(answer) => Ok(self.learn(answer)),
            None => Err(self.refusal(causes)),
        }
    }

    /// What each of them says, in the order in which they are named: its place, and the master's.
    pub(super) async fn survey(&self) -> Vec<(String, Result<String, Cause>)> {
        let deadline = Instant::now() + self.patience;
        let asked = self.sentinels.iter().map(|sentinel| async move {
            let answer = self.ask_one(sentinel, deadline).await;
            (sentinel.place.to_string(), answer.map(|answer| answer.master.to_string()))
        });
        join_all(asked).await
    }

    /// Where the replicas are that are up, as the first one says that answers; those first that have heard the most.
    ///
    /// # Errors
    /// Where none of them says.
    pub(super) async fn replicas(&self) -> Result<Vec<Place>, Cause> {
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

    async fn ask_one(&self, sentinel: &Sentinel, deadline: Instant) -> Result<Answer, Cause> {
        Answer::of(&self.ask_one_for("MASTER", sentinel, deadline).await?)
    }

    /// What it says of this part of what it watches.
    async fn ask_one_for(&self, part: &str, sentinel: &Sentinel, deadline: Instant) -> Result<Value, Cause> {
        if let Ok(said) = timeout_at(deadline, sentinel.ask(part, &self.name, &self.access)).await {
            return said;
        }
        // The next one connects anew: nobody may be at the other end any more.
        if let Ok(mut connection) = sentinel.connection.try_lock() {
            *connection = None;
        }
        Err(Cause::Silent(self.patience))
    }

    /// What counts of an answer and of what was heard before.
    fn learn(&self, answer: Answer) -> Place {
        let mut epoch = self.epoch.lock();
        let known = self.master.borrow().clone();
        if let Some(known) = known.filter(|_| answer.epoch < *epoch) {
            return known;
        }
        *epoch = answer.epoch;
        self.master.send_if_modified(|master| {
            let is_new = master.as_ref() != Some(&answer.master);
            if is_new {
                let (name, now) = (&self.name, answer.master.to_string());
                match master {
                    Some(before) => tracing::info!(name, %before, now, "the sentinels name another master"),
                    None => tracing::info!(name, now, "the sentinels name the master"),
                }
                *master = Some(answer.master.clone());
            }
            is_new
        });
        answer.master
    }

    /// Why none has said it. One that does not know the name, or the user, tells more than one that is not there.
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
        if let Some(polls) = self.polls.lock().take() {
            polls.abort();
        }
    }
}

/// Hears of a master that is elsewhere while the one of before goes on answering.
async fn poll(sentinels: Weak<Sentinels>) {
    let mut is_told = false;
    loop {
        sleep(POLL).await;
        let Some(sentinels) = sentinels.upgrade() else { return };
        // All of them: whoever is slow is connected to then, and need not be when it matters.
        match sentinels.hear(sentinels.sentinels.len()).await {
            Ok(_) if is_told => {
                tracing::info!(name = sentinels.name, "the sentinels answer again");
                is_told = false;
            }
            Err(cause) if !is_told && sentinels.master.borrow().is_some() => {
                tracing::warn!(
                    name = sentinels.name,
                    "the sentinels do not answer, a failover would not be seen: {cause}"
                );
                is_told = true;
            }
            Ok(_) | Err(_) => {}
        }
    }
}

impl Sentinel {
    async fn ask(&self, part: &str, name: &str, access: &Access) -> Result<Value, Cause> {
        let mut connection = self.connection.lock().await;
        // It stays where nobody waits for the answer any more.
        if let Some(dialed) = &*connection
            && let Ok(said) = say(dialed, part, name).await
        {
            return Ok(said);
        }
        // There was none, or it has been closed meanwhile.
        *connection = None;
        let dialed = dial(self.place.clone(), access).await.map_err(|error| match error {
            DialError::Known(cause) | DialError::Unclear(cause) => of_sentinel(cause),
        })?;
        let said = say(&dialed, part, name).await?;
        *connection = Some(dialed);
        Ok(said)
    }
}

/// What it says of this part, `MASTER` or `REPLICAS`, of what it watches by this name.
async fn say(dialed: &Dialed, part: &str, name: &str) -> Result<Value, Cause> {
    let mut ask = cmd("SENTINEL");
    ask.arg(part).arg(name);
    let said = dialed.redis.clone().send_packed_command(&ask).await.and_then(Value::extract_error);
    said.map_err(|error| match error.to_string() {
        text if text.contains("No such master") => Cause::UnknownMaster(name.to_owned()),
        _ => of_sentinel(Cause::of_error(&error)),
    })
}

/// What an error means that comes from where a Sentinel should be.
fn of_sentinel(cause: Cause) -> Cause {
    match cause {
        Cause::NoPassword | Cause::WrongPassword | Cause::NeedlessPassword | Cause::Lacks(_) => Cause::SentinelLogin,
        Cause::NoCommand(_) => Cause::NotSentinel,
        cause => cause,
    }
}

impl Answer {
    fn of(said: &Value) -> Result<Answer, Cause> {
        let said = pairs(said);
        let master = place(&said).ok_or(Cause::NotSentinel)?;
        let epoch = said.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok(Answer { master, epoch })
    }
}

/// Those that are up, those first that have heard the most.
fn replicas(said: &Value) -> Vec<Place> {
    let Value::Array(said) = said else { return Vec::new() };
    let is_up = |replica: &HashMap<String, String>| {
        let flags = replica.get("flags").map_or("", String::as_str);
        !flags.split(',').any(|flag| ["s_down", "o_down", "disconnected"].contains(&flag))
    };
    let mut up: Vec<_> = said.iter().map(pairs).filter(is_up).collect();
    up.sort_by_key(|replica| Reverse(replica.get("slave-repl-offset").and_then(|offset| offset.parse::<u64>().ok())));
    up.iter().filter_map(place).collect()
}

/// Where what is told of is.
fn place(told: &HashMap<String, String>) -> Option<Place> {
    let (host, port) = told.get("ip").zip(told.get("port")?.parse().ok())?;
    Some(Place::Tcp(host.clone(), port))
}

/// Names and values, in whichever way the protocol has them.
fn pairs(said: &Value) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    match said {
        Value::Array(parts) => {
            parts.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect()
        }
        Value::Map(pairs) => pairs.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect(),
        _ => HashMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels() -> Arc<Sentinels> {
        let address = "redis+sentinel://127.0.0.1:1/main".parse().unwrap();
        let access = Access::start(&address).unwrap();
        Sentinels::start("main".into(), vec![Place::Tcp("127.0.0.1".into(), 1)], access, Duration::from_secs(1))
    }

    fn at(port: u16, epoch: u64) -> Answer {
        Answer { master: Place::Tcp("10.0.0.1".into(), port), epoch }
    }

    #[tokio::test]
    async fn a_sentinel_that_was_cut_off_is_not_believed() {
        let sentinels = sentinels();
        let mut moves = sentinels.moves();
        assert_eq!(sentinels.learn(at(1, 3)), at(1, 3).master);
        assert!(moves.has_changed().unwrap());
        moves.mark_unchanged();
        assert_eq!(sentinels.learn(at(2, 4)), at(2, 4).master);
        assert!(moves.has_changed().unwrap());
        moves.mark_unchanged();
        assert_eq!(sentinels.learn(at(1, 3)), at(2, 4).master, "it has not heard of the failover");
        assert!(!moves.has_changed().unwrap());
    }

    #[tokio::test]
    async fn what_tells_most_is_told() {
        let unknown = || Cause::UnknownMaster("main".into());
        assert_eq!(sentinels().refusal(vec![Cause::NobodyListens, unknown()]), unknown());
        assert!(matches!(sentinels().refusal(vec![Cause::NobodyListens]), Cause::NoSentinel(_)));
    }

    #[test]
    fn an_answer_is_read_in_both_protocols() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let pairs = [("name", "main"), ("ip", "10.0.0.1"), ("port", "7"), ("config-epoch", "9")];
        let array = Value::Array(pairs.iter().flat_map(|(name, value)| [text(name), text(value)]).collect());
        let map = Value::Map(pairs.iter().map(|(name, value)| (text(name), text(value))).collect());
        for said in [array, map] {
            let answer = Answer::of(&said).unwrap();
            assert_eq!((answer.master, answer.epoch), (at(7, 9).master, 9));
        }
        assert_eq!(Answer::of(&Value::Okay).err(), Some(Cause::NotSentinel));
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
        assert_eq!(replicas(&said), [at(3, 0).master, at(1, 0).master]);
        assert!(replicas(&Value::Array(Vec::new())).is_empty());
    }
}
