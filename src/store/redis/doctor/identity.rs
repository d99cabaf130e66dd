//! The identity of a Redis according to `INFO`: whether limits can hold in it, and threats to them.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::cause::{Cause, Rights};

/// The oldest Redis with all features that the script needs (`SET … KEEPTTL`).
const OLDEST_MAJOR: u32 = 6;
/// The oldest Redis that applies `min-replicas-to-write` to scripts.
const REPLICAS_BIND_SCRIPTS: u32 = 7;
/// The largest difference between clocks that is not reported, in milliseconds.
const CLOCKS_APART: u64 = 5_000;

/// The fields of `INFO`. Engines and proxies may leave out any of them.
pub(crate) struct Identity<'i>(HashMap<&'i str, &'i str>);

/// Vital figures of a Redis server, from `INFO`; `None` if it does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    /// Memory for data, in bytes.
    pub used_memory: Option<u64>,
    /// The bound of that memory; 0 if there is none.
    pub maxmemory: Option<u64>,
    /// Number of keys evicted since the server started.
    pub evicted_keys: Option<u64>,
    /// Number of connected clients.
    pub clients: Option<u64>,
    /// Number of commands in the last second, without those that scripts run.
    pub commands_per_second: Option<u64>,
    /// Processor time since the server started, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Number of replicas of a master.
    pub replicas: Option<u64>,
    /// How it keeps its data on its disk; not in `INFO` alone.
    pub persistence: Option<Persistence>,
}

/// How a Redis keeps its data on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It logs every write.
    AppendOnly,
    /// It saves everything from time to time.
    Snapshots,
    /// Not at all: a restart deletes everything.
    None,
}

impl Persistence {
    /// Returns the name of the setting that is on, or `none`.
    pub fn name(self) -> &'static str {
        match self {
            Persistence::AppendOnly => "appendonly",
            Persistence::Snapshots => "save",
            Persistence::None => "none",
        }
    }
}

/// A problem that threatens limits without breaking them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Counters may be evicted, by this policy; this many keys were evicted so far.
    Evicts { policy: String, evicted: u64 },
    /// A replica that accepts writes and loses them.
    WritableReplica { primary: String },
    /// Scripts write with any number of replicas, regardless of `min-replicas-to-write`.
    WritesAlone { engine: String },
    /// The server's clock is this far ahead of this process's clock, in milliseconds; negative if it is behind.
    Clock { ahead_ms: i64 },
    /// The user lacks rights, so some limits cannot be decided.
    Lacks(Rights),
    /// The identity could not be read.
    Untold(Cause),
}

impl<'i> Identity<'i> {
    pub(crate) fn read(info: &'i str) -> Identity<'i> {
        Identity(info.lines().filter_map(|line| line.trim_end().split_once(':')).collect())
    }

    /// Returns engine and version, for the log.
    pub(crate) fn engine(&self) -> String {
        const OTHERS: [(&str, &str); 4] = [
            ("valkey_version", "Valkey"),
            ("dragonfly_version", "Dragonfly"),
            ("garnet_version", "Garnet"),
            ("kvrocks_version", "Kvrocks"),
        ];
        let other = OTHERS.iter().find_map(|(field, name)| Some(format!("{name} {}", self.get(field)?)));
        other.unwrap_or_else(|| format!("Redis {}", self.get("redis_version").unwrap_or("of unknown version")))
    }

    /// Returns why limits cannot hold in it, given whether a node of a cluster is expected.
    pub(crate) fn refusal(&self, wants_cluster: bool) -> Option<Cause> {
        if self.mode() == Some("sentinel") {
            Some(Cause::Sentinel(self.watched()))
        } else if self.is_cluster() && !wants_cluster {
            Some(Cause::Cluster)
        } else if self.get("cluster_enabled").is_some() && !self.is_cluster() && wants_cluster {
            Some(Cause::NoCluster)
        } else if self.is_redis_before(OLDEST_MAJOR) {
            Some(Cause::TooOld(self.engine()))
        } else if self.is("role", "slave") && !self.is("slave_read_only", "0") && !wants_cluster {
            Some(Cause::Replica(self.primary()))
        } else {
            None
        }
    }

    /// Returns threats to limits in it. The question was sent and answered within this range, in milliseconds since
    /// 1970.
    pub(crate) fn concerns(&self, asked: RangeInclusive<u64>) -> Vec<Concern> {
        let concerns = [self.eviction(), self.writable_replica(), self.writes_alone(), self.clock(asked)];
        concerns.into_iter().flatten().collect()
    }

    /// Returns the vital figures.
    pub(crate) fn vitals(&self) -> Vitals {
        let seconds = |field| self.get(field)?.parse::<f64>().ok();
        Vitals {
            used_memory: self.number("used_memory"),
            maxmemory: self.number("maxmemory"),
            evicted_keys: self.number("evicted_keys"),
            clients: self.number("connected_clients"),
            commands_per_second: self.number("instantaneous_ops_per_sec"),
            cpu_seconds: seconds("used_cpu_user").zip(seconds("used_cpu_sys")).map(|(user, system)| user + system),
            replicas: self.is("role", "master").then(|| self.number("connected_slaves")).flatten(),
            persistence: None,
        }
    }

    /// Returns how the server keeps its data, given its setting `save`, which is not in `INFO`; `None` if it does not
    /// say. A managed Redis may keep data in another way, and then has neither of the two.
    pub(crate) fn persistence(&self, save: Option<&str>) -> Option<Persistence> {
        if self.logs_writes()? {
            return Some(Persistence::AppendOnly);
        }
        save.map(|times| if times.is_empty() { Persistence::None } else { Persistence::Snapshots })
    }

    /// Returns whether the server has an append-only file.
    pub(crate) fn logs_writes(&self) -> Option<bool> {
        Some(self.number("aof_enabled")? > 0)
    }

    fn is_cluster(&self) -> bool {
        self.is("cluster_enabled", "1") || self.mode() == Some("cluster")
    }

    fn eviction(&self) -> Option<Concern> {
        let policy = self.get("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
        let has_bound = self.number("maxmemory")? > 0;
        let evicted = self.number("evicted_keys").unwrap_or(0);
        has_bound.then(|| Concern::Evicts { policy: policy.to_owned(), evicted })
    }

    /// In a cluster, a replica redirects clients to its master.
    fn writable_replica(&self) -> Option<Concern> {
        (self.is("role", "slave") && !self.is_cluster())
            .then(|| Concern::WritableReplica { primary: self.primary().unwrap_or_default() })
    }

    fn writes_alone(&self) -> Option<Concern> {
        // Redis reports the number of good replicas only if the setting requires some.
        let wants_replicas = self.get("min_slaves_good_slaves").is_some();
        let is_concern = wants_replicas && self.is_redis_before(REPLICAS_BIND_SCRIPTS);
        is_concern.then(|| Concern::WritesAlone { engine: self.engine() })
    }

    fn clock(&self, asked: RangeInclusive<u64>) -> Option<Concern> {
        let ahead_ms = self.clock_ahead_ms(asked)?;
        (ahead_ms.unsigned_abs() > CLOCKS_APART).then_some(Concern::Clock { ahead_ms })
    }

    /// Returns how far the server's clock is ahead, in milliseconds; 0 if it is within the time that the question took.
    pub(crate) fn clock_ahead_ms(&self, asked: RangeInclusive<u64>) -> Option<i64> {
        let clock = self.number("server_time_usec")? / 1_000;
        Some(if clock > *asked.end() {
            i64::try_from(clock - asked.end()).unwrap_or(i64::MAX)
        } else if clock < *asked.start() {
            i64::try_from(asked.start() - clock).map_or(i64::MIN, |behind| -behind)
        } else {
            0
        })
    }

    /// Returns `standalone`, `sentinel` or `cluster`. Valkey uses another name for the field.
    fn mode(&self) -> Option<&'i str> {
        self.get("redis_mode").or_else(|| self.get("server_mode"))
    }

    /// Returns whether this is Redis before this version. Never true of another engine, which reports a version of
    /// Redis only for compatibility with clients.
    fn is_redis_before(&self, major: u32) -> bool {
        let engine = self.engine();
        let version = engine.strip_prefix("Redis ").and_then(|version| version.split('.').next()?.parse().ok());
        version.is_some_and(|version: u32| version < major)
    }

    fn primary(&self) -> Option<String> {
        Some(format!("{}:{}", self.get("master_host")?, self.get("master_port")?))
    }

    /// Parses `master0:name=mymaster,status=ok,address=127.0.0.1:6379,…`.
    fn watched(&self) -> Option<String> {
        self.get("master0")?.split(',').find_map(|part| part.strip_prefix("address=")).map(str::to_owned)
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'i str> {
        self.0.get(field).copied()
    }

    /// Returns whether this is a master that accepts writes without any replica. Redis reports the number of replicas
    /// in step only where `min-replicas-to-write` asks for some.
    pub(crate) fn decides_alone(&self) -> bool {
        let asks_for_replicas =
            |field: &&str| field.starts_with("min_slaves_good") || field.starts_with("min_replicas_good");
        self.is("role", "master") && !self.0.keys().any(asks_for_replicas)
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.get(field) == Some(value)
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const THEN: &str = "and a limit starts over when its counter is evicted, a balance without its top-ups";
        const REMEDY: &str = "CONFIG SET maxmemory-policy noeviction, or give Tollgate a Redis of its own";
        match self {
            Concern::Evicts { policy, evicted } => {
                let why =
                    if policy.starts_with("volatile-") { "keys with a TTL, which every counter has," } else { "keys" };
                write!(f, "redis evicts {why} when it is full ({policy}, {evicted} so far), {THEN}: {REMEDY}")
            }
            Concern::WritableReplica { primary } => {
                write!(
                    f,
                    "redis is a replica that accepts writes, and loses them at its next full sync with the primary: "
                )?;
                write!(f, "name that ({primary}) in REDIS_URL")
            }
            Concern::WritesAlone { engine } => write!(
                f,
                "redis does not apply its min-replicas-to-write to scripts ({engine}), so an isolated master keeps \
                 counting, and a failover loses those counts: use Redis 7.0 or newer"
            ),
            Concern::Clock { ahead_ms } => {
                let apart = humantime::format_duration(std::time::Duration::from_secs(ahead_ms.unsigned_abs() / 1_000));
                let way = if *ahead_ms > 0 { "ahead of" } else { "behind" };
                write!(f, "redis's clock is {apart} {way} this machine's, which limits use: synchronize both by NTP")
            }
            Concern::Lacks(rights) => write!(f, "some limits cannot be decided in redis: {rights}"),
            Concern::Untold(cause) => write!(
                f,
                "redis does not answer INFO, so its version, role and maxmemory-policy are not checked: {cause}"
            ),
        }
    }
}

impl Concern {
    /// Returns whether both are the same kind of concern.
    pub(crate) fn is_about(&self, other: &Concern) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns the message for when the concern is over.
    pub(crate) fn over(&self) -> &'static str {
        match self {
            Concern::Evicts { .. } => "redis no longer evicts keys",
            Concern::WritableReplica { .. } => "redis is no longer a replica",
            Concern::WritesAlone { .. } => "redis no longer sets min-replicas-to-write, or applies it to scripts",
            Concern::Clock { .. } => "redis's clock is correct again",
            Concern::Lacks(_) => "redis's user has all rights that limits need",
            Concern::Untold(_) => "redis answers INFO",
        }
    }

    /// Returns whether both are the same concern, ignoring figures.
    pub(crate) fn is_like(&self, other: &Concern) -> bool {
        match (self, other) {
            (Concern::Evicts { policy, .. }, Concern::Evicts { policy: other, .. }) => policy == other,
            (Concern::Clock { ahead_ms }, Concern::Clock { ahead_ms: other }) => (*ahead_ms > 0) == (*other > 0),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\nrole:master\r\ncluster_enabled:0\r\nserver_time_usec:1000000000\r\n";
    /// A single moment, in milliseconds.
    const NOW: RangeInclusive<u64> = 1_000_000..=1_000_000;

    /// Returns the refusal and the concerns if these fields differ from those of a healthy Redis.
    fn told(fields: &[(&str, &str)]) -> (Option<Cause>, Vec<Concern>) {
        let info: String = fields.iter().map(|(field, value)| format!("{field}:{value}\r\n")).collect();
        let info = SINGLE.to_owned() + &info;
        let identity = Identity::read(&info);
        (identity.refusal(false), identity.concerns(NOW))
    }

    #[test]
    fn where_limits_could_not_hold_is_refused() {
        let primary = [("master_host", "10.0.0.1"), ("master_port", "6379")];
        for (fields, refusal) in [
            (&[][..], None),
            (&[("cluster_enabled", "1")], Some(Cause::Cluster)),
            (&[("redis_mode", "cluster")], Some(Cause::Cluster)),
            (&[("redis_mode", "sentinel")], Some(Cause::Sentinel(None))),
            (
                &[("redis_mode", "sentinel"), ("master0", "name=m,status=ok,address=10.0.0.1:6379,slaves=0")],
                Some(Cause::Sentinel(Some("10.0.0.1:6379".into()))),
            ),
            (&[("redis_version", "5.0.14")], Some(Cause::TooOld("Redis 5.0.14".into()))),
            (&[("redis_version", "255.255.255")], None),
            (&[("redis_version", "unstable")], None),
            // Other engines have version numbers of a different kind, and report a version of Redis for its clients.
            (&[("redis_version", "4.0.0"), ("kvrocks_version", "2.9.0")], None),
            (&[("role", "slave"), primary[0], primary[1]], Some(Cause::Replica(Some("10.0.0.1:6379".into())))),
            (&[("role", "slave")], Some(Cause::Replica(None))),
            (&[("role", "slave"), ("slave_read_only", "0")], None),
        ] {
            assert_eq!(told(fields).0, refusal, "{fields:?}");
        }
        for (info, refusal) in [
            ("cluster_enabled:1\r\nrole:slave\r\n", None),
            ("redis_mode:cluster\r\n", None),
            // Valkey 9.
            ("server_mode:cluster\r\ncluster_enabled:1\r\n", None),
            (SINGLE, Some(Cause::NoCluster)),
            // A server that reports no mode may be a cluster.
            ("", None),
        ] {
            assert_eq!(Identity::read(info).refusal(true), refusal, "{info}");
        }
        assert_eq!(Identity::read("").refusal(false), None);
        // The field's name in Valkey.
        assert_eq!(Identity::read("server_mode:sentinel").refusal(true), Some(Cause::Sentinel(None)));
    }

    #[test]
    fn what_endangers_limits_is_told() {
        let evicts = |policy: &str, evicted| Concern::Evicts { policy: policy.into(), evicted };
        for (fields, concern) in [
            (&[][..], None),
            // Without a memory bound the policy has no effect.
            (&[("maxmemory_policy", "allkeys-lru")], None),
            (&[("maxmemory", "1000000")], None),
            (&[("maxmemory", "1000000"), ("maxmemory_policy", "allkeys-lru")], Some(evicts("allkeys-lru", 0))),
            (
                &[("maxmemory", "1"), ("maxmemory_policy", "volatile-ttl"), ("evicted_keys", "7")],
                Some(evicts("volatile-ttl", 7)),
            ),
            (&[("server_time_usec", "1005000000")], None),
            (&[("server_time_usec", "1065001000")], Some(Concern::Clock { ahead_ms: 65_001 })),
            (&[("server_time_usec", "935000000")], Some(Concern::Clock { ahead_ms: -65_000 })),
            (&[("min_slaves_good_slaves", "0")], None),
            (
                &[("redis_version", "6.2.5"), ("min_slaves_good_slaves", "0")],
                Some(Concern::WritesAlone { engine: "Redis 6.2.5".into() }),
            ),
            (&[("redis_version", "6.2.5")], None),
            (&[("redis_version", "6.0"), ("kvrocks_version", "2.9.0"), ("min_slaves_good_slaves", "0")], None),
            (
                &[("role", "slave"), ("slave_read_only", "0"), ("master_host", "::1"), ("master_port", "1")],
                Some(Concern::WritableReplica { primary: "::1:1".into() }),
            ),
        ] {
            assert_eq!(told(fields).1, Vec::from_iter(concern), "{fields:?}");
        }
        let words = evicts("volatile-ttl", 7).to_string();
        assert!(words.contains("keys with a TTL, which every counter has") && words.contains("noeviction"), "{words}");
        assert!(Concern::Clock { ahead_ms: -65_000 }.to_string().contains("1m 5s behind"));
    }

    #[test]
    fn a_redis_persists_by_a_log_of_writes_or_by_snapshots_or_does_not_say() {
        for (info, save, expected) in [
            ("aof_enabled:1", None, Some(Persistence::AppendOnly)),
            ("aof_enabled:1", Some(""), Some(Persistence::AppendOnly)),
            ("aof_enabled:0", Some("3600 1 300 100"), Some(Persistence::Snapshots)),
            ("aof_enabled:0", Some(""), Some(Persistence::None)),
            ("aof_enabled:0", None, None),
            ("redis_version:7.0.15", Some(""), None),
        ] {
            assert_eq!(Identity::read(info).persistence(save), expected, "{info} {save:?}");
        }
    }

    #[test]
    fn other_figures_of_the_same_concern_are_no_news() {
        let evicts = |policy: &str, evicted| Concern::Evicts { policy: policy.into(), evicted };
        assert!(evicts("allkeys-lru", 0).is_like(&evicts("allkeys-lru", 9)));
        assert!(!evicts("allkeys-lru", 0).is_like(&evicts("volatile-lru", 0)));
        assert!(!Concern::Clock { ahead_ms: 9_000 }.is_like(&Concern::Clock { ahead_ms: -9_000 }));
    }
}
