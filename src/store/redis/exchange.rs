//! A connection beside those of requests, for what replicas share: a small script and its keys, which in a cluster lie
//! in one slot, whose node is asked.
//!
//! The connection is made when it is first needed, and anew after each failure. Who asks does so again and again, and
//! so this retries nothing but what may be due to a connection that is gone.

use std::sync::Arc;

use deadpool_redis::redis::{Cmd, Script, Value, cmd};
use tokio::sync::{Mutex, MutexGuard};

use super::cause::Cause;
use super::connection::{Connection, Fault};
use super::topology::{self, Access, Reach};
use super::{RedisConfig, StartError, slot};

/// The way to one script.
pub(super) struct Exchange {
    config: RedisConfig,
    access: Arc<Access>,
    reach: Reach,
    source: &'static str,
    sha1: String,
    keys: Vec<String>,
    connection: Mutex<Option<Connection>>,
}

/// The connection, for as long as it is one's own.
pub(super) struct Turn<'e> {
    exchange: &'e Exchange,
    connection: MutexGuard<'e, Option<Connection>>,
}

impl Exchange {
    /// The way of the service with this configuration; nothing is asked yet. The keys are `{|what}|` and these names
    /// behind the prefix of all counters, of which none has such a name: no domain is empty.
    ///
    /// # Errors
    /// Where no attempt is possible at all.
    pub(super) fn new(
        config: RedisConfig,
        source: &'static str,
        (what, names): (&str, &[&str]),
    ) -> Result<Exchange, StartError> {
        let access = Arc::new(Access::start(&config.address).map_err(StartError::new)?);
        let reach = topology::reach(&config, &access);
        let keys = names.iter().map(|name| format!("{}{{|{what}}}|{name}", config.key_prefix)).collect();
        let sha1 = Script::new(source).get_hash().to_owned();
        Ok(Exchange { config, access, reach, source, sha1, keys, connection: Mutex::default() })
    }

    /// The key of this place.
    pub(super) fn key(&self, place: usize) -> &str {
        &self.keys[place]
    }

    /// A call of the script, without its arguments.
    pub(super) fn call(&self) -> Cmd {
        let mut call = cmd("EVALSHA");
        call.arg(&self.sha1).arg(self.keys.len()).arg(&self.keys);
        call
    }

    /// Waits until nobody else has the connection: what is heard last is what is true.
    pub(super) async fn turn(&self) -> Turn<'_> {
        Turn { exchange: self, connection: self.connection.lock().await }
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let timeout = self.config.timeout;
        let dialed = match &self.reach {
            Reach::One(dialer) => dialer.connect(timeout).await,
            Reach::Cluster(seeds) => {
                let layout = topology::survey(seeds, &self.access, &self.config).await.map_err(Fault::Connect)?;
                let owner = layout.owner(slot::of(&self.keys[0])).ok_or(Fault::Connect(Cause::ClusterDown))?;
                topology::node_dialer(owner.place.clone(), &self.access).connect(timeout).await
            }
        };
        Ok(Connection::new(dialed.map_err(Fault::Connect)?, 0))
    }
}

impl Turn<'_> {
    /// Sends a command that may be sent twice.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let is_new = self.connection.is_none();
        match self.try_send(command).await {
            // Redis, or something on the way, has closed it meanwhile; or the slot has moved.
            Err(first @ (Fault::Lost(_) | Fault::Elsewhere(_))) if !is_new => match self.try_send(command).await {
                // Not what the last try says: the first may have been heard.
                Err(Fault::Connect(_)) => Err(first),
                reply => reply,
            },
            reply => reply,
        }
    }

    /// Sends it over the connection, which is made where there is none and is given up where it fails.
    async fn try_send(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.exchange.connect().await?,
        };
        let timeout = self.exchange.config.timeout;
        let reply = match connection.send(command.clone()).reply(timeout).await {
            Err(Fault::NoScript) => {
                let mut load = cmd("SCRIPT");
                load.arg("LOAD").arg(self.exchange.source);
                connection.send(load).reply(timeout).await?;
                connection.send(command.clone()).reply(timeout).await?
            }
            reply => reply?,
        };
        *self.connection = Some(connection);
        Ok(reply)
    }
}
