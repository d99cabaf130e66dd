//! A separate connection for state that instances share: a small script and its keys. In a cluster the keys are in one
//! slot, and the node with that slot is asked.
//!
//! The connection comes from the route that decisions use. It ends when the master moves, even if the previous master
//! still answers, and a reply that arrives after the move does not count.
//!
//! The connection is made when it is first needed, and again after each failure. Callers ask repeatedly, so the only
//! retries here are for errors that a lost connection may have caused. Each command says whether it may be repeated.

use deadpool_redis::redis::{Cmd, Script, Value, cmd};
use tokio::sync::{Mutex, MutexGuard};

use crate::engine::check::StoreError;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::connection::{Connection, Fault};
use crate::store::redis::script::slot;
use crate::store::redis::topology::{self, Reach, Route};

/// Access to one script.
pub(super) struct Exchange {
    route: Route,
    source: &'static str,
    sha1: String,
    keys: Vec<String>,
    connection: Mutex<Option<Connection>>,
}

/// Exclusive use of the connection.
pub(super) struct Turn<'e> {
    exchange: &'e Exchange,
    connection: MutexGuard<'e, Option<Connection>>,
}

/// Whether a command may be sent again when it is unknown if Redis has executed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The second execution changes nothing, and has the same reply.
    Allowed,
    /// The reply to the second execution would be another one.
    Never,
}

impl Exchange {
    /// Returns access over this route, without asking Redis yet. The keys consist of the counters' prefix, `{|what}|`
    /// and these names. No counter has such a name, because no domain is empty.
    pub(super) fn new(route: &Route, source: &'static str, (what, names): (&str, &[&str])) -> Exchange {
        let keys = names.iter().map(|name| format!("{}{{|{what}}}|{name}", route.config.key_prefix)).collect();
        let sha1 = Script::new(source).get_hash().to_owned();
        Exchange { route: route.clone(), source, sha1, keys, connection: Mutex::default() }
    }

    /// Returns the key at this place.
    pub(super) fn key(&self, place: usize) -> &str {
        &self.keys[place]
    }

    /// Returns a call of the script without arguments.
    pub(super) fn call(&self) -> Cmd {
        self.call_with(&self.keys)
    }

    /// Returns a call of the script for these keys, which must be in the slot of the known ones.
    pub(super) fn call_with<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> Cmd {
        let keys: Vec<K> = keys.into_iter().collect();
        let mut call = cmd("EVALSHA");
        call.arg(&self.sha1).arg(keys.len());
        for key in &keys {
            call.arg(key.as_ref());
        }
        call
    }

    /// Waits for exclusive use of the connection. The reply read last is therefore the most recent.
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn { exchange: self, connection: self.connection.lock().await }
    }

    /// Checks that a change made now can last.
    ///
    /// # Errors
    /// If a failover is in progress whose new master is not named yet. The present master is about to lose its changes.
    pub(super) fn admit_change(&self) -> Result<(), StoreError> {
        let is_failing_over = matches!(&self.route.reach, Reach::One(dialer) if dialer.is_failing_over());
        if is_failing_over {
            let why = "a failover of Redis is in progress, which could lose the change: try again in a few seconds";
            return Err(StoreError::Refused(why.into()));
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let Route { config, access, reach, .. } = &self.route;
        let dialed = match reach {
            Reach::One(dialer) => dialer.connect(config.timeout).await,
            Reach::Cluster(known) => {
                let layout = topology::survey(known, access, config).await.map_err(Fault::Connect)?;
                let owner = layout.owner(slot::of(&self.keys[0])).ok_or(Fault::Connect(Cause::ClusterDown))?;
                topology::node_dialer(owner.place.clone(), access).connect(config.timeout).await
            }
        };
        Ok(Connection::new(dialed.map_err(Fault::Connect)?, 0))
    }
}

impl Turn<'_> {
    /// Sends a command.
    pub(super) async fn send(&mut self, command: &Cmd, repeat: Repeat) -> Result<Value, Fault> {
        let is_new = self.connection.is_none();
        match self.try_send(command).await {
            // Redis or a proxy has closed the connection meanwhile, or the master has moved.
            Err(first @ Fault::Lost(_)) if !is_new && repeat == Repeat::Allowed => {
                match self.try_send(command).await {
                    // The first error is returned, since the first command may have been executed.
                    Err(Fault::Connect(_)) => Err(first),
                    reply => reply,
                }
            }
            // The slot has moved: nothing was executed.
            Err(Fault::Elsewhere(_)) if !is_new => self.try_send(command).await,
            reply => reply,
        }
    }

    /// Sends the command over the connection, which is made if there is none and dropped if it fails.
    async fn try_send(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let Exchange { route, source, .. } = self.exchange;
        let connection =
            match self.connection.take().filter(|connection| route.moved_from(connection.place()).is_none()) {
                Some(connection) => connection,
                None => self.exchange.connect().await?,
            };
        let timeout = route.config.timeout;
        let reply = match connection.send(command.clone()).reply(timeout).await {
            Err(Fault::NoScript) => {
                let mut load = cmd("SCRIPT");
                load.arg("LOAD").arg(source);
                connection.send(load).reply(timeout).await?;
                connection.send(command.clone()).reply(timeout).await?
            }
            reply => reply?,
        };
        if let Some(why) = route.moved_from(connection.place()) {
            return Err(Fault::Lost(why));
        }
        *self.connection = Some(connection);
        Ok(reply)
    }
}
