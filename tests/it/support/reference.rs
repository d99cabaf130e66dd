//! A real `envoyproxy/ratelimit`, where it is installed: `scripts/test-tools.sh ratelimit`.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tollgate::wire::RateLimitServiceClient;
use tonic::transport::Channel;

use super::free_port;
use super::redis::Redis;
use super::wait_until;

/// A running `envoyproxy/ratelimit`.
pub struct Reference {
    process: Child,
    grpc_port: u16,
    _root: TempDir,
}

impl Reference {
    /// Starts a server with these rules and settings and this Redis.
    pub fn start(rules: &str, redis: &Redis, settings: &[(&str, &str)]) -> Reference {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("ratelimit/config");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rules.yaml"), rules).unwrap();
        let [grpc_port, http_port, debug_port] = [free_port(), free_port(), free_port()];
        let process = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bin/ratelimit"))
            .env_clear()
            .env("RUNTIME_ROOT", root.path())
            .envs([("RUNTIME_SUBDIRECTORY", "ratelimit"), ("RUNTIME_WATCH_ROOT", "false"), ("USE_STATSD", "false")])
            .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
            .envs([("PORT", http_port), ("GRPC_PORT", grpc_port), ("DEBUG_PORT", debug_port)].map(text))
            .envs([("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &redis.tcp_address())])
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("envoyproxy/ratelimit is not installed: scripts/test-tools.sh ratelimit");
        let reference = Reference { process, grpc_port, _root: root };
        wait_until("ratelimit opens its port", || TcpStream::connect(("127.0.0.1", grpc_port)).is_ok());
        reference
    }

    /// Returns a client with a separate connection.
    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        let address = format!("http://127.0.0.1:{}", self.grpc_port);
        RateLimitServiceClient::new(tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap())
    }
}

fn text((name, port): (&str, u16)) -> (&str, String) {
    (name, port.to_string())
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
