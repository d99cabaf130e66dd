//! Systems that a run starts: each with one limit, 30 in a minute for each key, or with [limits that have
//! shares](super::shares), and so that it errs when it cannot decide.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::process::program;
use super::shares::Numbers;
use crate::history::Promise;

/// The hits of a minute.
pub const NUMBER: u64 = 30;

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Two instances of Tollgate on one Redis.
    TollgateRedis,
    /// Two instances of Tollgate on a cluster of three masters, each with a replica.
    TollgateCluster,
    /// Two instances of Tollgate on a master with two replicas and three Sentinels.
    TollgateSentinel,
    /// The same with a limit that is durable.
    TollgateSentinelDurable,
    /// One instance of Tollgate without Redis.
    TollgateMemory,
    /// Two instances of Tollgate that cannot reach Redis: each decides by its half of the limit.
    TollgateLocal,
    /// Two instances of Tollgate on one Redis whose limits have shares: they start with seats, and use their shares.
    TollgateShares,
    /// The same on a master with two replicas and three Sentinels.
    TollgateSharesSentinel,
    /// Two instances of envoyproxy/ratelimit on one Redis.
    Ratelimit,
    /// Two instances of Gubernator, which know each other.
    Gubernator,
}

impl System {
    /// All of them.
    pub const ALL: [System; 10] = [
        System::TollgateRedis,
        System::TollgateCluster,
        System::TollgateSentinel,
        System::TollgateSentinelDurable,
        System::TollgateMemory,
        System::TollgateLocal,
        System::TollgateShares,
        System::TollgateSharesSentinel,
        System::Ratelimit,
        System::Gubernator,
    ];

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            System::TollgateRedis => "Tollgate, Redis",
            System::TollgateCluster => "Tollgate, cluster",
            System::TollgateSentinel => "Tollgate, Sentinels",
            System::TollgateSentinelDurable => "Tollgate, Sentinels, durable",
            System::TollgateMemory => "Tollgate, memory",
            System::TollgateLocal => "Tollgate, local",
            System::TollgateShares => "Tollgate, shares",
            System::TollgateSharesSentinel => "Tollgate, shares, Sentinels",
            System::Ratelimit => "envoyproxy/ratelimit",
            System::Gubernator => "Gubernator",
        }
    }

    /// Whether its store is a master that Sentinels watch.
    pub fn has_sentinels(self) -> bool {
        matches!(self, System::TollgateSentinel | System::TollgateSentinelDurable | System::TollgateSharesSentinel)
    }

    /// Whether its limits have shares.
    pub fn has_shares(self) -> bool {
        matches!(self, System::TollgateShares | System::TollgateSharesSentinel)
    }

    /// Whether its periods begin at each full minute.
    pub fn has_fixed_minutes(self) -> bool {
        self == System::Ratelimit
    }

    /// Returns its limits, each for the entry of its name.
    pub fn limits(self) -> BTreeMap<String, Promise> {
        if self.has_shares() { Numbers::BEFORE.promises() } else { [("user".to_owned(), self.promise())].into() }
    }

    /// Returns what the limit for a user promises for each key.
    fn promise(self) -> Promise {
        // Sub-windows of a tenth: a hit counts up to a tenth longer.
        let (period_us, memory_us) = (60_000_000, 66_000_000);
        // Each of two instances has its half.
        let usable_thousandths = if self == System::TollgateLocal { 500 } else { 1_000 };
        Promise::Window { number: NUMBER, period_us, memory_us, usable_thousandths, unrecorded: 0 }
    }

    /// Returns the file of an instance's rules in its folder. Gubernator has none: its callers bring the limit.
    pub fn rules_file(self) -> Option<&'static str> {
        match self {
            System::Gubernator => None,
            System::Ratelimit => Some("ratelimit/config/rules.yaml"),
            _ => Some("rules.yaml"),
        }
    }

    /// Returns the settings of an instance beside where its store is.
    pub fn settings(self) -> Vec<(String, String)> {
        let shares = [("EXPECTED_REPLICAS", "2"), ("SHARE_TIMEOUT", "10s")];
        let settings = shares.map(|(name, value)| (name.to_owned(), value.to_owned()));
        if self.has_shares() { settings.into() } else { Vec::new() }
    }

    /// Returns the rules, followed by these lines.
    pub fn rules(self, more: &str) -> String {
        if self.has_shares() {
            return Numbers::BEFORE.rules(more);
        }
        let limit = "unit: minute, requests_per_unit: 30";
        let (defaults, options) = match self {
            System::Ratelimit => ("", ""),
            System::TollgateSentinelDurable => ("defaults: {failure_mode: error}\n", ", name: per-user, durable: true"),
            System::TollgateLocal => ("defaults: {failure_mode: local}\n", ", name: per-user"),
            _ => ("defaults: {failure_mode: error}\n", ", name: per-user"),
        };
        format!("domain: judge\n{defaults}descriptors:\n- key: user\n  rate_limit: {{{limit}{options}}}\n{more}")
    }
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Tollgate.
    pub tollgate: PathBuf,
    /// envoyproxy/ratelimit.
    pub ratelimit: PathBuf,
    /// Gubernator.
    pub gubernator: PathBuf,
    /// redis-server; redis-cli is beside it.
    pub redis: PathBuf,
    /// libfaketime, as `LD_PRELOAD` takes it, for faults that step Redis's clock.
    pub libfaketime: PathBuf,
}

impl Programs {
    /// Where Debian's package puts libfaketime; the loader replaces `$LIB`.
    pub const LIBFAKETIME: &str = "/usr/$LIB/faketime/libfaketime.so.1";

    /// Returns the `LD_PRELOAD` of a Redis with a clock that can step.
    pub fn preload(&self) -> String {
        // Debian's Redis takes its memory from jemalloc, which reads the clock while it starts: libfaketime would wait
        // for it, and it for libfaketime. With libc before it, jemalloc does not start so early.
        format!("{} libc.so.6", self.libfaketime.display())
    }

    /// Makes sure that a Redis can run with libfaketime.
    ///
    /// # Errors
    /// Fails if the loader does not find it, or Redis does not start with it.
    pub fn check_libfaketime(&self) -> anyhow::Result<()> {
        let mut redis = Command::new(program(&self.redis)?);
        redis.arg("--version").env("LD_PRELOAD", self.preload()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut redis = redis.spawn()?;
        let begin = Instant::now();
        while redis.try_wait()?.is_none() {
            if begin.elapsed() > Duration::from_secs(10) {
                redis.kill()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = redis.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || said.contains("cannot be preloaded") {
            bail!("faults of Redis's clock need libfaketime, from scripts/test-tools.sh libfaketime: {}", said.trim());
        }
        Ok(())
    }
}
