//! Inspects a Redis: when connections are made, once for all that are made at about the same time and off the path of
//! requests, and from time to time while it serves.
//!
//! Missing rights or unknown commands for this are not errors: a managed Redis or a proxy may support only a part of
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use deadpool_redis::redis::{Value, cmd};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Duration, Instant};

use super::connection::{Connection, Fault};
use crate::store::redis::doctor::cause::{Cause, Rights};
use crate::store::redis::doctor::identity::{Concern, Identity};
use crate::store::redis::doctor::{Persistence, Vitals, rights};
use crate::store::redis::script::own_counters::OwnCounters;
use crate::store::redis::topology::Access;
use crate::store::redis::topology::config::RedisConfig;

/// How long the result of an inspection is reused.
const FRESH: Duration = Duration::from_secs(1);

/// How long the same process of Redis is not inspected again for a new connection. A process of Tollgate that gets too
/// little processor time often takes connections for lost; inspecting Redis each time would load it.
const KNOWN: Duration = Duration::from_secs(60);

/// How often the Redis is inspected again, by one of all connections, since an operator can change it while it runs.
const AGAIN: Duration = Duration::from_secs(10);

/// The results of inspections.
pub(crate) struct Inspection {
    config: RedisConfig,
    access: Arc<Access>,
    own: Arc<ArcSwap<OwnCounters>>,
    latest: AsyncMutex<Option<(Instant, Result<(), Cause>)>>,
    /// When the process of Redis with this `run_id` was last inspected without an error.
    known: Mutex<Option<(String, Instant)>>,
    /// Threats to limits, as last reported.
    concerns: Mutex<Vec<Concern>>,
    /// Missing rights, as last reported.
    missing: Mutex<Vec<Concern>>,
    /// When the Redis last described itself, if it did.
    looked: Mutex<Option<Instant>>,
    /// Whether the Redis has not told a setting when it was asked, so it is not asked again.
    hides_settings: AtomicBool,
}

impl Inspection {
    pub(crate) fn new(config: RedisConfig, access: Arc<Access>, own: Arc<ArcSwap<OwnCounters>>) -> Inspection {
        Inspection {
            config,
            access,
            own,
            latest: AsyncMutex::default(),
            known: Mutex::default(),
            concerns: Mutex::default(),
            missing: Mutex::default(),
            looked: Mutex::default(),
            hides_settings: AtomicBool::new(false),
        }
    }

    /// Checks that limits can hold in the Redis of this new connection, and that it passes `check`.
    ///
    /// # Errors
    /// If limits cannot hold, or if the check fails. A proxy may close the connection because of an unknown command; on
    /// the next connection that command is left out.
    pub(crate) async fn inspect(
        &self,
        connection: &Connection,
        check: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let mut latest = self.latest.lock().await;
        if let Some((at, found)) = &*latest
            && at.elapsed() < FRESH
        {
            let found = found.clone();
            drop(latest);
            found.map_err(Fault::Refused)?;
            return check.await;
        }
        let found = self.find_out(connection, check).await;
        *latest = match &found {
            Err(Fault::Refused(cause)) if cause.is_unfit() => Some((Instant::now(), Err(cause.clone()))),
            // Not kept: this error may pass soon.
            Err(Fault::Refused(_)) => None,
            _ => Some((Instant::now(), Ok(()))),
        };
        found
    }

    async fn find_out(
        &self,
        connection: &Connection,
        check: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let found = if self.knows(connection).await { check.await } else { self.inspect_all(connection, check).await };
        if matches!(found, Err(Fault::Refused(_))) {
            *self.known.lock() = None;
        }
        found
    }

    async fn inspect_all(
        &self,
        connection: &Connection,
        check: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let run_id = self.identify(connection).await?;
        check.await?;
        self.look_at_rights(connection).await?;
        *self.known.lock() = run_id.map(|run_id| (run_id, Instant::now()));
        Ok(())
    }

    /// Returns whether the Redis process at the other end was inspected within [`KNOWN`].
    async fn knows(&self, connection: &Connection) -> bool {
        let known = self.known.lock().clone().filter(|(_, at)| at.elapsed() < KNOWN);
        let Some((run_id, _)) = known else { return false };
        let mut ask = cmd("INFO");
        ask.arg("server");
        let Ok(info) = connection.send(ask).wait(self.config.timeout).await else { return false };
        Identity::read(&String::from_utf8_lossy(&info)).get("run_id") == Some(&run_id)
    }

    /// Returns whether it is time for another inspection, which the caller then makes.
    pub(crate) fn take_turn(&self) -> bool {
        let mut looked = self.looked.lock();
        // A Redis that did not describe itself at first is not asked again.
        let is_due = looked.is_some_and(|at| at.elapsed() >= AGAIN);
        if is_due {
            *looked = Some(Instant::now());
        }
        is_due
    }

    /// Looks again for threats to limits, over this connection. Whether Redis decides is left to checks.
    pub(crate) async fn look_again(&self, connection: &Connection) {
        let asked_at = now_ms();
        if let Ok(info) = connection.send(cmd("INFO")).wait(self.config.timeout).await {
            let info = String::from_utf8_lossy(&info);
            let identity = Identity::read(&info);
            self.tell(&self.concerns, identity.concerns(asked_at..=now_ms()));
            self.tell_vitals(connection, &identity).await;
        }
    }

    /// Reads the server's description of itself, and returns the ID of its process if it reports one.
    async fn identify(&self, connection: &Connection) -> Result<Option<String>, Fault> {
        let asked_at = now_ms();
        let info = match connection.send(cmd("INFO")).wait(self.config.timeout).await {
            Ok(info) => info,
            Err(fault @ (Fault::Lost(_) | Fault::Silent(_))) => {
                self.tell(&self.concerns, vec![Concern::Untold(Cause::Closed(fault.to_string()))]);
                return Err(fault);
            }
            Err(Fault::Refused(cause @ (Cause::Lacks(_) | Cause::NoCommand(_) | Cause::Other(_)))) => {
                self.tell(&self.concerns, vec![Concern::Untold(self.of_user(cause))]);
                return Ok(None);
            }
            // The check reports errors that affect every command.
            Err(_) => return Ok(None),
        };
        let info = String::from_utf8_lossy(&info);
        let identity = Identity::read(&info);
        tracing::debug!(redis = %self.config, engine = identity.engine(), "redis answers INFO");
        if let Some(cause) = identity.refusal(self.access.is_cluster()) {
            return Err(Fault::Refused(cause));
        }
        *self.looked.lock() = Some(Instant::now());
        self.tell(&self.concerns, identity.concerns(asked_at..=now_ms()));
        self.tell_vitals(connection, &identity).await;
        Ok(identity.get("run_id").map(str::to_owned))
    }

    async fn tell_vitals(&self, connection: &Connection, identity: &Identity<'_>) {
        let on_call = &self.config.on_call;
        let persistence = match on_call.wants_persistence() {
            true => self.persistence(connection, identity).await,
            false => None,
        };
        on_call.tell_of(&connection.place().to_string(), Vitals { persistence, ..identity.vitals() });
    }

    /// Returns how the server keeps its data on its disk; `None` if it does not say.
    pub(crate) async fn persistence(&self, connection: &Connection, identity: &Identity<'_>) -> Option<Persistence> {
        let asks = identity.logs_writes() == Some(false) && !self.hides_settings.load(Relaxed);
        let save = if asks { self.setting(connection, "save").await } else { None };
        if asks && save.is_none() {
            tracing::debug!(redis = %self.config, "redis does not tell whether it saves snapshots");
            self.hides_settings.store(true, Relaxed);
        }
        identity.persistence(save.as_deref())
    }

    /// Returns a setting of the server. `None` if it has none of this name, or its user may not run `CONFIG`.
    pub(crate) async fn setting(&self, connection: &Connection, name: &str) -> Option<String> {
        let mut ask = cmd("CONFIG");
        ask.arg("GET").arg(name);
        let value = match connection.send(ask).reply(self.config.timeout).await.ok()? {
            Value::Array(parts) => parts.into_iter().nth(1)?,
            Value::Map(pairs) => pairs.into_iter().next()?.1,
            _ => return None,
        };
        match value {
            Value::BulkString(text) => String::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Looks for missing rights of a user that can decide, but perhaps not with every algorithm.
    async fn look_at_rights(&self, connection: &Connection) -> Result<(), Fault> {
        let missing = match self.missing_rights(connection).await {
            Ok(missing) => missing,
            Err(Fault::Refused(Cause::Lacks(rights))) => Some(rights),
            Err(Fault::Refused(cause)) if cause.is_unfit() => return Err(Fault::Refused(cause)),
            Err(fault) => {
                tracing::debug!(redis = %self.config, error = %fault, "the permissions of redis's user are not \
                    checked");
                return Ok(());
            }
        };
        let concern = |missing| Concern::Lacks(self.with_grant(missing));
        self.tell(&self.missing, missing.map(concern).into_iter().collect());
        Ok(())
    }

    /// Adds all missing rights to a fault about rights, since an error names at most one command.
    pub(crate) async fn name_rights(&self, connection: &Connection, fault: Fault) -> Fault {
        let Fault::Refused(Cause::Lacks(first)) = fault else { return fault };
        let rights = match self.missing_rights(connection).await {
            Ok(Some(missing)) => missing,
            // The user may not even run that script.
            Err(Fault::Refused(Cause::Lacks(missing))) => missing,
            _ => first,
        };
        Fault::Refused(Cause::Lacks(self.with_grant(rights)))
    }

    pub(crate) async fn missing_rights(&self, connection: &Connection) -> Result<Option<Rights>, Fault> {
        let ask = || connection.send(rights::call(&self.own.load().prefix)).wait(self.config.timeout);
        let reply = match ask().await {
            Err(Fault::NoScript) => {
                connection.send(rights::load()).wait(self.config.timeout).await?;
                ask().await?
            }
            reply => reply?,
        };
        rights::missing(&String::from_utf8_lossy(&reply)).map_err(Fault::Refused)
    }

    /// Adds the command that grants all rights, if the cause is that some are missing.
    pub(crate) fn of_user(&self, cause: Cause) -> Cause {
        match cause {
            Cause::Lacks(rights) => Cause::Lacks(self.with_grant(rights)),
            cause => cause,
        }
    }

    pub(crate) fn with_grant(&self, rights: Rights) -> Rights {
        Rights { grant: Some(self.access.grant(&self.config.key_prefix)), ..rights }
    }

    /// Logs new concerns, and those that are over.
    fn tell(&self, told: &Mutex<Vec<Concern>>, concerns: Vec<Concern>) {
        // Locked, to keep log lines in the order of the changes.
        let mut told = told.lock();
        for concern in &concerns {
            match concern {
                _ if told.iter().any(|other| other.is_like(concern)) => {}
                Concern::Untold(_) => tracing::info!(redis = %self.config, "{concern}"),
                _ => tracing::warn!(redis = %self.config, "{concern}"),
            }
        }
        let is_untold = concerns.iter().any(|concern| matches!(concern, Concern::Untold(_)));
        let is_over = |was: &&Concern| !is_untold && !concerns.iter().any(|concern| concern.is_about(was));
        for was in told.iter().filter(is_over) {
            tracing::info!(redis = %self.config, "{}", was.over());
        }
        *told = concerns;
    }
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
