//! Instances of the rate limiters.

use std::time::Duration;

use anyhow::Context as _;

use super::super::process::{Process, Start, free_port, program};
use super::super::proxy::Proxy;
use super::super::system::{Programs, System};
use super::Running;

impl Running {
    /// Starts one more instance, which reaches the store that the others reach.
    ///
    /// # Errors
    /// Fails if it does not start.
    pub async fn add_instance(&mut self, programs: &Programs) -> anyhow::Result<()> {
        if self.system.has_sentinels() {
            self.store = self.sentinel_settings().into();
        }
        if matches!(self.system, System::TollgateRedis | System::TollgateShares | System::Ratelimit) {
            let proxy = Proxy::start(self.stores[0].port()).await?;
            self.reach([("REDIS_URL", format!("127.0.0.1:{}", proxy.port()))]);
            self.proxies.push(proxy);
        }
        let mut attempts = 0;
        let instance = loop {
            let start = match self.system {
                System::Gubernator => self.gubernator(programs)?,
                System::Ratelimit => self.ratelimit(programs)?,
                _ => self.tollgate(programs)?,
            };
            let (name, log) = (start.program.display().to_string(), start.folder.join(&start.log));
            match tokio::task::block_in_place(|| Process::start(start)) {
                // A connection of the load has taken a port that was free.
                Err(error) if attempts < 3 && error.to_string().contains("in use") => {
                    attempts += 1;
                    std::fs::remove_file(log)?;
                }
                started => break started.with_context(|| name)?,
            }
        };
        self.instances.push(instance);
        if self.system == System::Gubernator {
            // Until the others know it.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    fn tollgate(&self, programs: &Programs) -> anyhow::Result<Start> {
        let (grpc, http) = (free_port()?, free_port()?);
        let name = format!("tollgate-{}", self.instances.len());
        let mut start = self.process(program(&programs.tollgate)?, name, grpc)?;
        self.write_rules(&start)?;
        let own = [("RULES", "rules.yaml"), ("GRPC_PORT", &*grpc.to_string()), ("PORT", &*http.to_string())].map(text);
        start.environment = own.into_iter().chain(self.system.settings()).chain(self.store.iter().cloned()).collect();
        Ok(start)
    }

    fn ratelimit(&self, programs: &Programs) -> anyhow::Result<Start> {
        let (grpc, http, debug) = (free_port()?, free_port()?, free_port()?);
        let name = format!("ratelimit-{}", self.instances.len());
        let mut start = self.process(program(&programs.ratelimit)?, name, grpc)?;
        self.write_rules(&start)?;
        let root = start.folder.display().to_string();
        let own = [
            ("RUNTIME_ROOT", &*root),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("USE_STATSD", "false"),
            ("HOST", "127.0.0.1"),
            ("GRPC_HOST", "127.0.0.1"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("PORT", &http.to_string()),
            ("GRPC_PORT", &grpc.to_string()),
            ("DEBUG_PORT", &debug.to_string()),
            ("BACKEND_TYPE", "redis"),
            ("REDIS_SOCKET_TYPE", "tcp"),
        ]
        .map(text);
        start.environment = own.into_iter().chain(self.store.iter().cloned()).collect();
        Ok(start)
    }

    /// The first two have the places that all of them know from the start.
    fn gubernator(&self, programs: &Programs) -> anyhow::Result<Start> {
        let (grpc, http) = (free_port()?, free_port()?);
        let index = self.instances.len();
        let known = self.store.iter().flat_map(|(_, known)| known.split(','));
        let member = known.map(str::to_owned).nth(index).map_or_else(address, Ok)?;
        let name = format!("gubernator-{index}");
        let mut start = self.process(program(&programs.gubernator)?, name, grpc)?;
        let own = [
            ("GUBER_GRPC_ADDRESS", &*format!("127.0.0.1:{grpc}")),
            ("GUBER_HTTP_ADDRESS", &*format!("127.0.0.1:{http}")),
            ("GUBER_ADVERTISE_ADDRESS", &*format!("127.0.0.1:{grpc}")),
            ("GUBER_PEER_DISCOVERY_TYPE", "member-list"),
            ("GUBER_MEMBERLIST_ADDRESS", &*member),
            ("GUBER_MEMBERLIST_BIND_ADDRESS", &*member),
            ("GUBER_MEMBERLIST_NODE_NAME", &*format!("instance-{index}")),
        ]
        .map(text);
        start.environment = own.into_iter().chain(self.store.iter().cloned()).collect();
        Ok(start)
    }

    fn write_rules(&self, start: &Start) -> anyhow::Result<()> {
        let Some(file) = self.system.rules_file() else { return Ok(()) };
        let path = start.folder.join(file);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, self.system.rules(""))?)
    }
}

/// Returns a free address of this machine.
pub(super) fn address() -> anyhow::Result<String> {
    Ok(format!("127.0.0.1:{}", free_port()?))
}

fn text((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
