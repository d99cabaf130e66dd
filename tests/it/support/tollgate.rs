//! A real `tollgate` process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;
use tempfile::TempDir;
use tollgate::wire::details::{Details, REQUEST_KEY};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient, rate_limit_descriptor,
};
use tonic::transport::Channel;

use super::{signal, wait_until};

/// A running service and its log.
pub struct Tollgate {
    process: Child,
    logs: Arc<Mutex<Vec<Value>>>,
    /// The thread that reads its log, until the process ends.
    reader: Option<JoinHandle<()>>,
    /// Port of gRPC.
    pub grpc_port: u16,
    /// Port of HTTP.
    pub http_port: u16,
    /// The folder of its rules, in `rules.yaml`.
    pub rules: TempDir,
}

/// Path of the command.
pub const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");

/// The command with nothing of the test's own environment that it would take for a setting.
pub fn command() -> Command {
    let mut command = Command::new(BINARY);
    command.env_clear().stdin(Stdio::null());
    command
}

impl Tollgate {
    /// Starts one with these rules and settings (`NAME=value`), on free ports.
    pub fn start(rules: &str, settings: &[&str]) -> Tollgate {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        Tollgate::start_in(folder, settings)
    }

    /// The same with the rules in a folder that is there already.
    pub fn start_in(rules: TempDir, settings: &[&str]) -> Tollgate {
        let named = format!("RULES={}", rules.path().display());
        let mut settings = settings.to_vec();
        settings.push(&named);
        let mut tollgate = Tollgate::start_from(&settings);
        tollgate.rules = rules;
        tollgate
    }

    /// The same with nothing but settings, which name the rules.
    pub fn start_from(settings: &[&str]) -> Tollgate {
        Tollgate::start_by(command(), settings)
    }

    /// The same by another command, which becomes a `tollgate`.
    pub fn start_by(command: Command, settings: &[&str]) -> Tollgate {
        Tollgate::start_until("tollgate is up", command, settings)
    }

    /// The same, up to the line that begins so, which names the ports.
    pub fn start_until(said: &str, mut command: Command, settings: &[&str]) -> Tollgate {
        command.envs([
            ("GRPC_PORT", "0"),
            ("PORT", "0"),
            ("GRPC_HOST", "127.0.0.1"),
            ("HOST", "127.0.0.1"),
            ("LOG_FORMAT", "json"),
            ("DRAIN_DELAY", "200ms"),
        ]);
        // `make test-hyper` runs the tests of the gRPC port with the other server of HTTP/2.
        command.envs(std::env::var_os("TOLLGATE_TEST_TRANSPORT").map(|server| ("GRPC_TRANSPORT", server)));
        command.envs(settings.iter().map(|setting| setting.split_once('=').unwrap()));
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let logs = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let sink = Arc::clone(&logs);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                sink.lock().unwrap().push(line);
            }
        });
        let rules = tempfile::tempdir().unwrap();
        let mut tollgate = Tollgate { process, logs, reader: Some(reader), grpc_port: 0, http_port: 0, rules };
        wait_until(said, || {
            assert!(tollgate.process.try_wait().unwrap().is_none(), "it ended: {:?}", tollgate.logs());
            tollgate.logged(said).is_some()
        });
        let up = tollgate.logged(said).unwrap();
        // At a Unix socket there is none.
        let port = |field: &str| up[field].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap_or(0);
        (tollgate.grpc_port, tollgate.http_port) = (port("grpc"), port("http"));
        tollgate
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The first log line with this message.
    pub fn logged(&self, message: &str) -> Option<Value> {
        self.logs().into_iter().find(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message)))
    }

    /// Like `logged`, but waits for the line: written lines may not have been read yet.
    pub fn must_log(&self, message: &str) -> Value {
        wait_until(message, || self.logged(message).is_some());
        self.logged(message).unwrap()
    }

    /// All that it has logged.
    pub fn logs(&self) -> Vec<Value> {
        self.logs.lock().unwrap().clone()
    }

    /// A connection.
    pub async fn channel(&self) -> Channel {
        let address = format!("http://127.0.0.1:{}", self.grpc_port);
        tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap()
    }

    /// Returns a client with a separate connection.
    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }

    /// Returns whether a request with these entries passes.
    pub async fn passes(&self, domain: &str, entries: &[(&str, &str)]) -> bool {
        let response = self.client().await.should_rate_limit(request(domain, &[entries])).await;
        response.unwrap().into_inner().overall_code() == Code::Ok
    }

    /// The answer to one request.
    pub async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        self.client().await.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the details of an answer, with every limit of the request.
    pub async fn details(&self, request: RateLimitRequest) -> Details {
        let mut call = tonic::Request::new(request);
        call.metadata_mut().insert(REQUEST_KEY, "1".parse().unwrap());
        let response = self.client().await.should_rate_limit(call).await.unwrap().into_inner();
        Details::of_metadata(&response.dynamic_metadata.unwrap()).unwrap()
    }

    /// Puts other rules in place of the ones it has, at one stroke.
    pub fn change_rules(&self, rules: &str) {
        let next = self.rules.path().join(".next");
        std::fs::write(&next, rules).unwrap();
        std::fs::rename(next, self.rules.path().join("rules.yaml")).unwrap();
    }

    /// The status and body of a GET.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.http_port, path)
    }

    /// The status and body of a POST.
    pub fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        self.send("POST", path, &[], body)
    }

    /// The status and body of any request.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
        send(self.http_port, &format!("{method} {path}"), headers, body)
    }

    /// Sends a request with this token; returns the status and the body.
    pub fn admin(&self, method: &str, path: &str, token: &str) -> (u16, Value) {
        self.admin_with(method, path, token, "")
    }

    /// The same with a body.
    pub fn admin_with(&self, method: &str, path: &str, token: &str, body: &str) -> (u16, Value) {
        let address = format!("http://127.0.0.1:{}{path}", self.http_port);
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = ureq::http::Request::builder().method(method).uri(address);
        let request = request.header("Authorization", format!("Bearer {token}")).body(body.to_owned()).unwrap();
        let mut response = agent.run(request).unwrap();
        let body = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// The value of one series, by its whole name with labels; 0 where there is none.
    pub fn metric(&self, series: &str) -> f64 {
        let (_, body) = self.get("/metrics");
        let value = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// Waits for its end, and for its last line.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.process.wait().unwrap();
        self.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        status
    }
}

impl Drop for Tollgate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The status and body of a GET at a port.
pub fn get(port: u16, path: &str) -> (u16, String) {
    send(port, &format!("GET {path}"), &[], &[])
}

/// The same of any request: its method and path.
pub fn send(port: u16, line: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n").unwrap();
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n").unwrap();
    }
    write!(stream, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A request of these descriptors.
pub fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, &str)| rate_limit_descriptor::Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}
