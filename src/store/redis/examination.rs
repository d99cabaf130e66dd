//! Examines a Redis before anything depends on it: its address, its kind, its latency, and threats to limits in it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use deadpool_redis::redis::cmd;
use serde_json::json;
use tokio::time::Instant;

use super::doctor::cause::Cause;
use super::doctor::identity::{Concern, Identity};
use super::doctor::{Persistence, StartError};
use super::link::inspection::{Inspection, now_ms};
use crate::store::redis::link::connection::{Connection, Fault};
use crate::store::redis::script::own_counters::OwnCounters;
use crate::store::redis::script::slot::SLOTS;
use crate::store::redis::script::{self, Group};
use crate::store::redis::topology;
use crate::store::redis::topology::config::RedisConfig;
use crate::store::redis::topology::route::Route;
use crate::store::redis::topology::{Access, Dialer, Layout, Master, Reach};

/// Number of decisions for measuring the latency.
const DECISIONS: usize = 20;

/// The result of an examination.
#[derive(Debug)]
pub struct Examination {
    /// The configured address, without user and password.
    pub redis: String,
    /// `single`, `sentinel` or `cluster`.
    pub kind: &'static str,
    /// The Sentinels with the master that each names, or `None` if it names none.
    pub sentinels: Vec<(String, Option<String>)>,
    /// The servers that hold counters: a single one, or all masters of a cluster that have slots.
    pub servers: Vec<Server>,
    /// Problems that threaten limits.
    pub warnings: Vec<String>,
    /// Problems that prevent decisions.
    pub errors: Vec<String>,
    /// The examination of the Redis for limits of seconds, if there is one.
    pub per_second: Option<Box<Examination>>,
}

/// The findings about a server. Unknown ones are `None`.
#[derive(Debug, Default)]
pub struct Server {
    /// The address of the server.
    pub server: Option<String>,
    /// Number of the cluster's slots on this server.
    pub slots: Option<u16>,
    /// Name and version of the engine.
    pub engine: Option<String>,
    /// `master` or `slave`, as Redis calls it.
    pub role: Option<String>,
    /// Number of replicas.
    pub replicas: Option<u64>,
    /// Whether Tollgate's script runs there.
    pub runs_scripts: Option<bool>,
    /// Round trip of a decision in microseconds: median and maximum.
    pub latency_us: Option<(u64, u64)>,
    /// Eviction policy when the memory is full.
    pub maxmemory_policy: Option<String>,
    /// How it keeps its data on its disk.
    pub persistence: Option<Persistence>,
    /// How far the server's clock is ahead of this process's clock, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// Commands that decisions need and the user may not run.
    pub missing_permissions: Vec<String>,
    /// Problems that threaten limits.
    pub warnings: Vec<String>,
    /// Problems that prevent decisions.
    pub errors: Vec<String>,
}

/// Connects as the service would, and examines the Redis.
///
/// # Errors
/// If a password or TLS file cannot be used, or the TLS server name is invalid.
pub async fn examine(mut config: RedisConfig) -> Result<Examination, StartError> {
    let per_second = config.per_second.take();
    let mut found = examine_one(config).await?;
    if let Some(config) = per_second {
        let mut second = examine_one(*config).await?;
        second.names_settings_of_its_own();
        found.per_second = Some(Box::new(second));
    }
    Ok(found)
}

async fn examine_one(config: RedisConfig) -> Result<Examination, StartError> {
    let Route { config, access, reach, .. } = Route::start(config)?;
    let mut found = Examination {
        redis: config.to_string(),
        kind: config.address.kind(),
        sentinels: Vec::new(),
        servers: Vec::new(),
        warnings: Vec::new(),
        errors: Vec::new(),
        per_second: None,
    };
    match reach {
        Reach::One(dialer) => found.look_at_one(&config, &dialer).await?,
        Reach::Cluster(known) => match topology::survey(&known, &access, &config).await {
            Ok(layout) => found.look_at_all(&config, &layout, &access).await?,
            Err(cause) => found.errors.push(cause.to_string()),
        },
    }
    Ok(found)
}

impl Examination {
    /// Returns all problems that threaten limits, in every part of the examination.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.both().flat_map(|it| it.warnings.iter().chain(it.servers.iter().flat_map(|server| &server.warnings)))
    }

    /// Returns all problems that prevent decisions.
    pub fn errors(&self) -> impl Iterator<Item = &String> {
        self.both().flat_map(|it| it.errors.iter().chain(it.servers.iter().flat_map(|server| &server.errors)))
    }

    /// Returns the examination as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let mut told = self.to_json_alone();
        if let Some(per_second) = &self.per_second {
            told["per_second"] = per_second.to_json_alone();
        }
        told
    }

    fn to_json_alone(&self) -> serde_json::Value {
        let sentinels = self.sentinels.iter().map(|(place, master)| json!({ "sentinel": place, "master": master }));
        json!({
            "redis": self.redis,
            "kind": self.kind,
            "sentinels": sentinels.collect::<Vec<_>>(),
            "servers": self.servers.iter().map(Server::to_json).collect::<Vec<_>>(),
            "warnings": self.warnings,
            "errors": self.errors,
        })
    }

    /// Replaces the names of settings in texts by those for the Redis of limits of seconds.
    fn names_settings_of_its_own(&mut self) {
        let rename = |text: &mut String| *text = of_second(text);
        let of_servers =
            self.servers.iter_mut().flat_map(|server| server.warnings.iter_mut().chain(&mut server.errors));
        self.warnings.iter_mut().chain(&mut self.errors).chain(of_servers).for_each(rename);
    }

    /// Returns this examination and, if there are two Redises, the other one.
    pub fn both(&self) -> impl Iterator<Item = &Examination> {
        std::iter::once(self).chain(self.per_second.as_deref())
    }

    /// Warns of each server without a replica, for rules with `durable: true`.
    pub fn warn_without_replicas(&mut self) {
        for server in self.servers.iter_mut().filter(|server| server.replicas == Some(0)) {
            server.warnings.push(
                "it has no replica, and the rules have limits with durable: true: every request that takes hits from \
                 one waits in vain for a confirmation and is answered by failure_mode; add a replica, or remove \
                 durable: true"
                    .to_owned(),
            );
        }
    }

    /// Warns of each server that keeps nothing on its disk, for rules with balances.
    pub fn warn_without_persistence(&mut self) {
        let forgets = |server: &&mut Server| server.persistence == Some(Persistence::None);
        for server in self.servers.iter_mut().filter(forgets) {
            server.warnings.push(
                "it writes no file, and the rules have balances (unit: never), which its restart deletes: set \
                 appendonly yes"
                    .to_owned(),
            );
        }
    }

    /// Examines the only server, and the Sentinels that name it.
    async fn look_at_one(&mut self, config: &RedisConfig, dialer: &Dialer) -> Result<(), StartError> {
        for (sentinel, said) in dialer.survey().await {
            if let Err(cause) = &said {
                self.warnings.push(format!("the sentinel {sentinel} does not say where the master is: {cause}"));
            }
            self.sentinels.push((sentinel, said.ok()));
        }
        let server = Server::look(config, dialer, None).await?;
        let names_another =
            |named: &Option<String>| named.is_some() && server.server.is_some() && *named != server.server;
        for (sentinel, _) in self.sentinels.iter().filter(|(_, named)| names_another(named)) {
            self.warnings.push(format!("the sentinel {sentinel} names another master: has it been cut off?"));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Examines every master of a cluster.
    async fn look_at_all(
        &mut self,
        config: &RedisConfig,
        layout: &Layout,
        access: &Arc<Access>,
    ) -> Result<(), StartError> {
        let missing = SLOTS - layout.slots();
        if missing > 0 {
            let slots = if missing == 1 { "slot has" } else { "slots have" };
            self.warnings.push(format!("{missing} {slots} no node: limits there answer by their failure modes"));
        }
        for master in &layout.masters {
            let Master { place, replicas, ranges } = master;
            let dialer = topology::node_dialer(place.clone(), access);
            let slot = ranges.first().map(|range| *range.start());
            let mut server = Server::look(&config.of_node(place), &dialer, slot).await?;
            server.server.get_or_insert_with(|| place.to_string());
            server.slots = Some(master.slots());
            if replicas.is_empty() {
                server.warnings.push("it has no replica: if it fails, nothing takes its place".to_owned());
            }
            self.servers.push(server);
        }
        Ok(())
    }
}

impl Server {
    fn to_json(&self) -> serde_json::Value {
        let latency = self.latency_us.map(|(median, most)| json!({ "median": median, "most": most }));
        json!({
            "server": self.server,
            "slots": self.slots,
            "engine": self.engine,
            "role": self.role,
            "replicas": self.replicas,
            "runs_scripts": self.runs_scripts,
            "decision_us": latency,
            "maxmemory_policy": self.maxmemory_policy,
            "persistence": self.persistence.map(Persistence::name),
            "clock_ahead_ms": self.clock_ahead_ms,
            "missing_permissions": self.missing_permissions,
            "warnings": self.warnings,
            "errors": self.errors,
        })
    }
}

/// Settings that exist separately for each of two Redises.
const OWN: [&str; 6] = ["REDIS_URL", "REDIS_TYPE", "REDIS_AUTH", "REDIS_SENTINEL_AUTH", "REDIS_TLS", "REDIS_POOL_SIZE"];

/// Returns the text with the second Redis's names of the settings.
fn of_second(text: &str) -> String {
    let is_of_name = |char: char| char.is_ascii_uppercase() || char == '_';
    let mut renamed = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find("REDIS_") {
        let name = &rest[at..][..rest[at..].find(|char| !is_of_name(char)).unwrap_or(rest.len() - at)];
        renamed.push_str(&rest[..at]);
        renamed.push_str(&if OWN.contains(&name) { name.replacen('_', "_PERSECOND_", 1) } else { name.to_owned() });
        rest = &rest[at + name.len()..];
    }
    renamed + rest
}

impl Server {
    /// Examines the server that the dialer leads to; in a cluster, `slot` is one of its slots.
    async fn look(config: &RedisConfig, dialer: &Dialer, slot: Option<u16>) -> Result<Server, StartError> {
        let mut found = Server::default();
        match dialer.connect(config.timeout).await {
            Err(cause) => found.errors.push(cause.to_string()),
            Ok(dialed) => {
                let connection = Connection::new(dialed, 0);
                found.server = Some(connection.place().to_string());
                let own = Arc::new(OwnCounters::new(&config.key_prefix, slot)?);
                let slot_of_own = Arc::new(ArcSwap::new(Arc::clone(&own)));
                let inspection = Inspection::new(config.clone(), Arc::clone(dialer.access()), slot_of_own);
                Looking { config, connection, inspection, own, found: &mut found }.look().await;
            }
        }
        Ok(found)
    }

    fn warn(&mut self, concern: &Concern) {
        self.warnings.push(concern.to_string());
    }
}

/// A running examination of a server, with its findings.
struct Looking<'a> {
    config: &'a RedisConfig,
    connection: Connection,
    inspection: Inspection,
    own: Arc<OwnCounters>,
    found: &'a mut Server,
}

impl Looking<'_> {
    async fn look(mut self) {
        self.identify().await;
        if !self.found.errors.is_empty() {
            return;
        }
        if self.config.address.is_cluster() {
            self.look_at_coverage().await;
        }
        match self.decide(&self.own.check).await {
            Ok(took) => {
                self.found.runs_scripts = Some(true);
                self.found.latency_us = Some(took);
            }
            Err(fault) => {
                self.found.runs_scripts = match &fault {
                    Fault::NoScript | Fault::Answer | Fault::Refused(Cause::NoCommand(_)) => Some(false),
                    _ => None,
                };
                let fault = self.inspection.name_rights(&self.connection, fault).await;
                if let Fault::Refused(Cause::Lacks(rights)) = &fault {
                    self.found.missing_permissions = rights.commands.clone();
                }
                self.found.errors.push(fault.to_string());
                return;
            }
        }
        if let Ok(Some(rights)) = self.inspection.missing_rights(&self.connection).await {
            self.found.missing_permissions = rights.commands.clone();
            self.found.warn(&Concern::Lacks(self.inspection.with_grant(rights)));
        }
    }

    /// Examines whether a slot without a master stops all others; not every user may run `CONFIG`.
    async fn look_at_coverage(&mut self) {
        let setting = self.inspection.setting(&self.connection, "cluster-require-full-coverage").await;
        if setting.as_deref() == Some("yes") {
            let advice = "cluster-require-full-coverage is yes: where one slot has no master, no counter is decided; \
                          set it to no";
            self.found.warnings.push(advice.to_owned());
        }
    }

    /// Reads the server's own description.
    async fn identify(&mut self) {
        let asked_at = now_ms();
        let found = &mut *self.found;
        match self.connection.send(cmd("INFO")).wait(self.config.timeout).await {
            Ok(info) => {
                let info = String::from_utf8_lossy(&info);
                let identity = Identity::read(&info);
                let known = |field| identity.get(field).map(str::to_owned);
                found.engine = Some(identity.engine());
                found.role = known("role");
                found.replicas = identity.number("connected_slaves");
                found.maxmemory_policy = known("maxmemory_policy");
                found.persistence = self.inspection.persistence(&self.connection, &identity).await;
                if self.config.address.kind() == "sentinel" && identity.decides_alone() {
                    let advice = "min-replicas-to-write is 0: a master that a split network cuts off from its replicas \
                                  and Sentinels goes on deciding beside the new one; set it to 1, and \
                                  min-replicas-max-lag to 2";
                    found.warnings.push(advice.to_owned());
                }
                found.clock_ahead_ms = identity.clock_ahead_ms(asked_at..=now_ms());
                identity.concerns(asked_at..=now_ms()).iter().for_each(|concern| found.warn(concern));
                found.errors.extend(identity.refusal(self.config.address.is_cluster()).map(|cause| cause.to_string()));
            }
            Err(Fault::Refused(cause)) => found.warn(&Concern::Untold(self.inspection.of_user(cause))),
            Err(fault) => found.errors.push(fault.to_string()),
        }
    }

    /// Measures several decisions of Tollgate's own counter.
    async fn decide(&self, check: &Group) -> Result<(u64, u64), Fault> {
        let ask = || self.connection.decide(check, self.config);
        let first = ask().await?;
        script::Reply::new(&first, check.counters())
            .and_then(|mut reply| reply.next(check))
            .map_err(|_| Cause::known(&String::from_utf8_lossy(&first)).map_or(Fault::Answer, Fault::Refused))?;
        let mut took = Vec::with_capacity(DECISIONS);
        for _ in 0..DECISIONS {
            let asked = Instant::now();
            ask().await?;
            took.push(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        took.sort_unstable();
        Ok((took[DECISIONS / 2], took[DECISIONS - 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_second_redis_names_its_settings() {
        let said = "correct REDIS_AUTH (or REDIS_URL), REDIS_TLS=true; see REDIS_TLS_CACERT and REDIS_TIMEOUT";
        let expected = "correct REDIS_PERSECOND_AUTH (or REDIS_PERSECOND_URL), REDIS_PERSECOND_TLS=true; see \
                        REDIS_TLS_CACERT and REDIS_TIMEOUT";
        assert_eq!(of_second(said), expected);
    }
}
