//! A Redis, and a master with two replicas that three Sentinels watch.

use super::super::process::{Process, Start, free_port, free_port_with_bus, program};
use super::super::proxy::Proxy;
use super::super::redis_cli::{ask, field, wait_until};
use super::super::system::Programs;
use super::Running;
use super::doors::{CUT_OFF, OTHERS, SECOND_REPLICA};

/// The name that Sentinels know the master by.
pub const MASTER: &str = "main";

impl Running {
    /// Starts a Redis with these further arguments; returns its port.
    pub(super) fn redis(&mut self, programs: &Programs, is_persistent: bool, more: &[&str]) -> anyhow::Result<u16> {
        let port = free_port_with_bus()?;
        self.redis_at(programs, port, is_persistent, more)?;
        Ok(port)
    }

    /// The same on this port.
    pub(super) fn redis_at(
        &mut self,
        programs: &Programs,
        port: u16,
        is_persistent: bool,
        more: &[&str],
    ) -> anyhow::Result<()> {
        let mut start = self.process(program(&programs.redis)?, format!("redis-{port}"), port)?;
        let persistence: &[&str] =
            if is_persistent { &["--appendonly", "yes", "--appendfsync", "always"] } else { &["--appendonly", "no"] };
        let port_text = port.to_string();
        let own = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"];
        start.arguments = own.iter().chain(persistence).chain(more).map(|text| (*text).to_owned()).collect();
        if let Some(clock) = &self.clock {
            std::fs::write(clock, "+0")?;
            start.environment = [
                ("LD_PRELOAD", programs.preload()),
                ("FAKETIME_TIMESTAMP_FILE", clock.display().to_string()),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                // Timers and timeouts go on: only the time of day steps.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        }
        self.stores.push(Process::start(start)?);
        Ok(())
    }

    /// Starts a master with two replicas, each behind a door, and three Sentinels that watch them.
    pub(super) async fn watched(&mut self, programs: &Programs, is_persistent: bool) -> anyhow::Result<()> {
        let mut master: Option<String> = None;
        // A replica with a lower priority is promoted first.
        for (source, priority) in [(CUT_OFF, "50"), (OTHERS, "10"), (SECOND_REPLICA, "100")] {
            let port = free_port()?;
            let door = Proxy::start(port).await?;
            let (own, from) = (door.port().to_string(), format!("127.0.0.{source}"));
            let announced = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &own];
            let of_master = master.clone().unwrap_or_default();
            let follows: &[&str] = if of_master.is_empty() { &[] } else { &["--replicaof", "127.0.0.1", &of_master] };
            let fixed =
                ["--bind-source-addr", &from, "--replica-priority", priority, "--repl-diskless-sync-delay", "0"];
            self.redis_at(programs, port, is_persistent, &[&announced[..], &fixed, follows].concat())?;
            master.get_or_insert(own);
            self.doors.stores.push(door);
        }
        let master = self.doors.stores[0].port();
        for source in [CUT_OFF, OTHERS, OTHERS] {
            let port = free_port()?;
            let door = Proxy::start(port).await?;
            let start = self.sentinel(programs, port, door.port(), master, source)?;
            self.sentinels.push(Process::start(start)?);
            self.doors.of_first.push(Proxy::start(port).await?);
            self.doors.sentinels.push(door);
        }
        self.wait_until_settled(programs).await
    }

    fn sentinel(&self, programs: &Programs, port: u16, door: u16, master: u16, source: u8) -> anyhow::Result<Start> {
        let mut start = self.process(program(&programs.redis)?, format!("sentinel-{port}"), port)?;
        // docs/redis.md: down-after-milliseconds is 2000 or more.
        let config = format!(
            "port {port}\nbind 127.0.0.1\nbind-source-addr 127.0.0.{source}\nsentinel announce-ip 127.0.0.1\n\
             sentinel announce-port {door}\nsentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} 2000\nsentinel failover-timeout {MASTER} 10000\n"
        );
        std::fs::write(start.folder.join("sentinel.conf"), config)?;
        start.arguments = ["sentinel.conf", "--sentinel"].map(str::to_owned).into();
        Ok(start)
    }

    /// Waits until every Sentinel knows the others, and both replicas are in step.
    async fn wait_until_settled(&self, programs: &Programs) -> anyhow::Result<()> {
        for sentinel in &self.sentinels {
            wait_until("the Sentinels know each other", async || {
                let known = ask(programs, sentinel.port(), &["SENTINEL", "MASTER", MASTER]).await?;
                let is = |name, value| field(&known, name) == Some(value);
                let replicas = ask(programs, sentinel.port(), &["SENTINEL", "REPLICAS", MASTER]).await?;
                let in_step = replicas.lines().collect::<Vec<_>>();
                let in_step = in_step.windows(2).filter(|pair| *pair == ["master-link-status", "ok"]).count();
                Ok(is("num-other-sentinels", "2") && is("num-slaves", "2") && is("flags", "master") && in_step == 2)
            })
            .await?;
        }
        Ok(())
    }

    /// Returns the settings of the instance that is started next: the first has doors of its own.
    pub(super) fn sentinel_settings(&self) -> [(String, String); 2] {
        let doors = if self.instances.is_empty() { &self.doors.of_first } else { &self.doors.sentinels };
        let addresses: Vec<String> = doors.iter().map(|door| format!("127.0.0.1:{}", door.port())).collect();
        [("REDIS_TYPE", "sentinel".to_owned()), ("REDIS_URL", format!("{MASTER},{}", addresses.join(",")))]
            .map(|(name, value)| (name.to_owned(), value))
    }
}

/// Returns whether the Sentinels on the side of most name another master than the first.
///
/// # Errors
/// Fails if one does not answer.
pub async fn sentinel_names_another(running: &Running, programs: &Programs) -> anyhow::Result<bool> {
    let first = running.doors.stores[0].port().to_string();
    for sentinel in &running.sentinels[1..] {
        let named = ask(programs, sentinel.port(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await?;
        if named.lines().nth(1).is_none_or(|port| port == first) {
            return Ok(false);
        }
    }
    Ok(true)
}
