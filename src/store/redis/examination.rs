//! What there is to say of a Redis before anything depends on it: how it is reached, what it is, how far away, and what
//! would endanger limits in it.

use deadpool::managed::Manager as _;
use deadpool_redis::redis::cmd;
use tokio::time::{Instant, timeout};

use super::cause::Cause;
use super::connection::{Connection, Fault};
use super::identity::{Concern, Identity};
use super::inspection::{Inspection, now_ms};
use super::link::own_check;
use super::script::{self, Group};
use super::topology::Dialer;
use super::{RedisConfig, StartError, topology};

/// So many decisions tell how far away it is.
const DECISIONS: usize = 20;

/// What was found. What could not be asked is `None`.
#[derive(Debug)]
pub struct Examination {
    /// Its address, as it was given, without user and password.
    pub redis: String,
    /// `single`, `sentinel` or `cluster`.
    pub kind: &'static str,
    /// The server that holds the counters.
    pub server: Option<String>,
    /// The Sentinels, and the master that each names; `None` where it names none.
    pub sentinels: Vec<(String, Option<String>)>,
    /// Its name and version.
    pub engine: Option<String>,
    /// `master` or `slave`, as Redis has it.
    pub role: Option<String>,
    /// How many replicas it has.
    pub replicas: Option<u64>,
    /// Whether our script runs there.
    pub runs_scripts: Option<bool>,
    /// What a decision takes, there and back, in microseconds: in the middle, and at the most.
    pub latency_us: Option<(u64, u64)>,
    /// What it does when it is full.
    pub maxmemory_policy: Option<String>,
    /// How much its clock is ahead of ours, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// Commands that its user may not run, and decisions need.
    pub missing_permissions: Vec<String>,
    /// What endangers limits.
    pub warnings: Vec<String>,
    /// Why limits are not decided there.
    pub errors: Vec<String>,
}

/// Connects as the service would, and looks.
///
/// # Errors
/// Where no attempt is possible at all.
pub async fn examine(config: RedisConfig) -> Result<Examination, StartError> {
    let dialer = topology::dialer(&config)?;
    let mut found = Examination::of(&config);
    for (sentinel, said) in dialer.survey().await {
        if let Err(cause) = &said {
            found.warnings.push(format!("the sentinel {sentinel} does not say where the master is: {cause}"));
        }
        found.sentinels.push((sentinel, said.ok()));
    }
    match connect(&config, &dialer).await {
        Err(cause) => found.errors.push(cause.to_string()),
        Ok(connection) => {
            let server = connection.place().to_string();
            for (sentinel, _) in
                found.sentinels.iter().filter(|(_, named)| named.as_ref().is_some_and(|it| *it != server))
            {
                found.warnings.push(format!("the sentinel {sentinel} names another master: has it been cut off?"));
            }
            found.server = Some(server);
            let inspection = Inspection::new(config.clone(), dialer.access().clone());
            Looking { config: &config, connection, inspection, found: &mut found }.look().await?;
        }
    }
    Ok(found)
}

async fn connect(config: &RedisConfig, dialer: &Dialer) -> Result<Connection, Cause> {
    match timeout(config.timeout, dialer.create()).await {
        Ok(Ok(dialed)) => Ok(Connection::new(dialed, 0)),
        Ok(Err(error)) => Err(dialer.explain(error, config.timeout).await),
        Err(_) => Err(dialer.explain_silence(config.timeout).await),
    }
}

impl Examination {
    fn of(config: &RedisConfig) -> Examination {
        Examination {
            redis: config.to_string(),
            kind: config.address.kind(),
            server: None,
            sentinels: Vec::new(),
            engine: None,
            role: None,
            replicas: None,
            runs_scripts: None,
            latency_us: None,
            maxmemory_policy: None,
            clock_ahead_ms: None,
            missing_permissions: Vec::new(),
            warnings: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn warn(&mut self, concern: &Concern) {
        self.warnings.push(concern.to_string());
    }
}

/// What is looked at, and what comes of it.
struct Looking<'a> {
    config: &'a RedisConfig,
    connection: Connection,
    inspection: Inspection,
    found: &'a mut Examination,
}

impl Looking<'_> {
    async fn look(mut self) -> Result<(), StartError> {
        self.identify().await;
        let check = own_check(&self.config.key_prefix)?;
        match self.decide(&check).await {
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
                return Ok(());
            }
        }
        if let Ok(Some(rights)) = self.inspection.missing_rights(&self.connection).await {
            self.found.missing_permissions = rights.commands.clone();
            self.found.warn(&Concern::Lacks(self.inspection.with_grant(rights)));
        }
        Ok(())
    }

    /// What it says itself.
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
                found.clock_ahead_ms = identity.clock_ahead_ms(asked_at..=now_ms());
                identity.concerns(asked_at..=now_ms()).iter().for_each(|concern| found.warn(concern));
                found.errors.extend(identity.refusal().map(|cause| cause.to_string()));
            }
            Err(Fault::Refused(cause)) => found.warn(&Concern::Untold(self.inspection.of_user(cause))),
            Err(fault) => found.errors.push(fault.to_string()),
        }
    }

    /// Decides a check that is nobody's, some times.
    async fn decide(&self, check: &Group) -> Result<(u64, u64), Fault> {
        let ask = || self.connection.send(script::call([check])).wait(self.config.timeout);
        let first = match ask().await {
            Err(Fault::NoScript) => {
                self.connection.load(self.config.timeout).await?;
                ask().await?
            }
            reply => reply?,
        };
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
