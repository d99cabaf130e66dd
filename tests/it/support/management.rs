//! A management server: the real one (tests/xds, in Go), or a replay of its recorded messages. Each scenario runs
//! against both.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tollgate::wire::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tollgate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use tollgate::wire::ratelimit_config::RateLimitConfig;
use tonic::{Request, Response, Status, Streaming};

use super::wait_until_async;

/// The binary built by `make e2e`.
const REAL: &str = "target/tools/bin/xds-server";

/// A management server on its own port.
pub struct Management {
    kind: Kind,
    /// Its port, also after a restart.
    pub port: u16,
}

enum Kind {
    Real { process: Option<Child>, record: PathBuf, arguments: Vec<String> },
    Replayed { play: Arc<Play>, server: Option<JoinHandle<()>> },
}

impl Management {
    /// Starts the real server; its messages are recorded under this name, permanently with `TOLLGATE_XDS_RECORD=1`.
    pub fn real(name: &str, arguments: &[&str]) -> Management {
        // Arguments do not change its messages.
        let is_kept = std::env::var_os("TOLLGATE_XDS_RECORD").is_some() && arguments.is_empty();
        let folder = if is_kept { "tests/xds/exchanges" } else { "target/xds" };
        std::fs::create_dir_all(folder).unwrap();
        let record = Path::new(folder).join(format!("{name}.txt"));
        let _ = std::fs::remove_file(&record);
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut management = Management { kind: Kind::Real { process: None, record, arguments }, port: 0 };
        management.run_real();
        management
    }

    /// Starts a server that replays the recording with this name.
    pub async fn replayed(name: &str) -> Management {
        let text = std::fs::read_to_string(format!("tests/xds/exchanges/{name}.txt")).unwrap();
        let play = Arc::new(Play::new(text.lines().map(Entry::of).collect()));
        let mut management = Management { kind: Kind::Replayed { play, server: None }, port: super::free_port() };
        management.start().await;
        management
    }

    /// Restarts it on the same port, without state.
    pub async fn start(&mut self) {
        match &mut self.kind {
            Kind::Real { .. } => self.run_real(),
            Kind::Replayed { play, server } => {
                let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
                self.port = listener.local_addr().unwrap().port();
                let service = AggregatedDiscoveryServiceServer::new(Player(Arc::clone(play)));
                let serving = tonic::transport::Server::builder().add_service(service);
                let incoming = futures_util::stream::unfold(listener, async |listener| {
                    Some((listener.accept().await.map(|(connection, _)| connection), listener))
                });
                *server = Some(tokio::spawn(async move { serving.serve_with_incoming(incoming).await.unwrap() }));
            }
        }
    }

    /// Ends it, without a word to anybody.
    pub async fn stop(&mut self) {
        match &mut self.kind {
            Kind::Real { process, record, .. } => {
                let mut process = process.take().unwrap();
                process.kill().unwrap();
                process.wait().unwrap();
                let mut record = std::fs::OpenOptions::new().append(true).open(record).unwrap();
                writeln!(record, "stop").unwrap();
            }
            Kind::Replayed { play, server } => {
                server.take().unwrap().abort();
                play.stop();
            }
        }
    }

    /// Makes these all resources that there are.
    pub async fn set(&mut self, version: &str, configs: &[RateLimitConfig]) {
        match &mut self.kind {
            Kind::Real { process, .. } => {
                let configs: Vec<_> = configs.iter().map(|config| hex(&config.encode_to_vec())).collect();
                let process = process.as_mut().unwrap();
                writeln!(process.stdin.as_mut().unwrap(), "set {version} {}", configs.join(" ")).unwrap();
            }
            Kind::Replayed { play, .. } => play.allow(),
        }
    }

    /// Returns the reasons of the rejections it received.
    pub fn refusals(&self) -> Vec<String> {
        let heard = match &self.kind {
            Kind::Real { record, .. } => {
                let text = std::fs::read_to_string(record).unwrap();
                let whole = text.rfind('\n').map_or("", |end| &text[..end]);
                let requests = whole.lines().map(Entry::of).filter_map(|entry| match entry {
                    Entry::Request(request) => Some(request),
                    _ => None,
                });
                requests.collect()
            }
            Kind::Replayed { play, .. } => play.heard.lock().unwrap().clone(),
        };
        heard.into_iter().filter_map(|request| Some(request.error_detail?.message)).collect()
    }

    /// Waits until everything has been played that is recorded, and nothing was other than that.
    pub async fn finish(self) {
        if let Kind::Replayed { play, .. } = &self.kind {
            wait_until_async("everything is played", async || play.is_over() || !play.wrong().is_empty()).await;
            assert_eq!(play.wrong(), Vec::<String>::new());
        }
    }

    fn run_real(&mut self) {
        let Kind::Real { process, record, arguments } = &mut self.kind else { return };
        let address = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(REAL);
        command.args(["-address", &address]).arg("-record").arg(record).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("make e2e builds it");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.port = line.trim().rsplit(':').next().unwrap().parse().expect("it says where it listens");
        *process = Some(child);
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        match &mut self.kind {
            Kind::Real { process: Some(process), .. } => {
                let _ = process.kill();
                let _ = process.wait();
            }
            Kind::Replayed { server: Some(server), .. } => server.abort(),
            _ => {}
        }
    }
}

/// A line of a recording.
#[derive(Clone, Debug)]
enum Entry {
    /// A stream began.
    Stream,
    Request(DiscoveryRequest),
    Response(DiscoveryResponse),
    /// The scenario has set the resources.
    Set,
    /// The server was ended.
    Stop,
}

impl Entry {
    fn of(line: &str) -> Entry {
        match line.split_once(' ').unwrap_or((line, "")) {
            (">", text) => Entry::Request(DiscoveryRequest::decode(&*from_hex(text)).unwrap()),
            ("<", text) => Entry::Response(DiscoveryResponse::decode(&*from_hex(text)).unwrap()),
            ("set", _) => Entry::Set,
            ("stream", _) => Entry::Stream,
            ("stop", _) => Entry::Stop,
            _ => panic!("no line of a recording: {line}"),
        }
    }
}

/// A recording and the position in it.
struct Play {
    entries: Vec<Entry>,
    next: Mutex<usize>,
    /// Number of times the scenario has set the resources.
    allowed: watch::Sender<usize>,
    /// Number of times it was stopped.
    stopped: watch::Sender<usize>,
    heard: Mutex<Vec<DiscoveryRequest>>,
    wrong: Mutex<Vec<String>>,
}

impl Play {
    fn new(entries: Vec<Entry>) -> Play {
        let (allowed, stopped) = (watch::Sender::new(0), watch::Sender::new(0));
        Play { entries, next: Mutex::new(0), allowed, stopped, heard: Mutex::default(), wrong: Mutex::default() }
    }

    fn allow(&self) {
        self.allowed.send_modify(|times| *times += 1);
    }

    /// Discards the messages queued before the stop.
    fn stop(&self) {
        let mut next = self.next.lock().unwrap();
        let rest = self.entries[*next..].iter().position(|entry| matches!(entry, Entry::Stop));
        *next += rest.expect("a stop is recorded") + 1;
        self.stopped.send_modify(|times| *times += 1);
    }

    fn is_over(&self) -> bool {
        *self.next.lock().unwrap() >= self.entries.len()
    }

    fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Returns the next entry, unless another stream has advanced the position.
    fn at(&self, place: usize) -> Option<&Entry> {
        (*self.next.lock().unwrap() == place).then(|| self.entries.get(place)).flatten()
    }

    /// Plays one stream.
    async fn stream(
        &self,
        mut requests: Streaming<DiscoveryRequest>,
        responses: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
    ) {
        let mut place = *self.next.lock().unwrap();
        let mut is_begun = false;
        while let Some(entry) = self.at(place) {
            match entry {
                // The entry belongs to another stream.
                Entry::Stream if is_begun => return,
                Entry::Stream => is_begun = true,
                Entry::Stop => break,
                Entry::Set => {
                    let before = self.entries[..=place].iter().filter(|entry| matches!(entry, Entry::Set)).count();
                    self.allowed.subscribe().wait_for(|times| *times >= before).await.unwrap();
                }
                Entry::Response(response) => drop(responses.send(Ok(response.clone()))),
                Entry::Request(expected) => match requests.next().await {
                    Some(Ok(request)) => self.hear(place, expected, request),
                    _ => return,
                },
            }
            let mut next = self.next.lock().unwrap();
            // It was stopped meanwhile.
            if *next != place {
                return;
            }
            place += 1;
            *next = place;
        }
        // Keeps the stream open, as the real server does.
        responses.closed().await;
    }

    fn hear(&self, place: usize, expected: &DiscoveryRequest, request: DiscoveryRequest) {
        let parts = |request: &DiscoveryRequest| {
            let node = request.node.as_ref().map(|node| (node.id.clone(), node.metadata.clone()));
            let DiscoveryRequest { version_info, response_nonce, type_url, resource_names, error_detail, .. } = request;
            let texts = [version_info, response_nonce, type_url].map(String::clone);
            (texts, resource_names.clone(), node, error_detail.is_some())
        };
        let (expected, found) = (parts(expected), parts(&request));
        if expected != found {
            self.wrong.lock().unwrap().push(format!("line {}: {found:?} instead of {expected:?}", place + 1));
        }
        self.heard.lock().unwrap().push(request);
    }
}

struct Player(Arc<Play>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Player {
    type StreamAggregatedResourcesStream = UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, stream) = mpsc::unbounded_channel();
        let play = Arc::clone(&self.0);
        let mut stopped = play.stopped.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = play.stream(request.into_inner(), responses) => {}
                _ = stopped.changed() => {}
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

/// A management server that sends another response after each acknowledgement.
pub struct Fickle(pub Arc<Vec<DiscoveryResponse>>);

impl Fickle {
    /// Starts it, and returns its port.
    pub async fn start(responses: Vec<DiscoveryResponse>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = AggregatedDiscoveryServiceServer::new(Fickle(Arc::new(responses)));
        let serving = tonic::transport::Server::builder().add_service(service);
        let incoming = futures_util::stream::unfold(listener, async |listener| {
            Some((listener.accept().await.map(|(connection, _)| connection), listener))
        });
        tokio::spawn(async move { serving.serve_with_incoming(incoming).await.unwrap() });
        port
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Fickle {
    type StreamAggregatedResourcesStream = UnboundedReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (said, stream) = mpsc::unbounded_channel();
        let (mut heard, responses) = (request.into_inner(), Arc::clone(&self.0));
        tokio::spawn(async move {
            let mut responses = responses.iter();
            // Keeps the stream open after the last response.
            while let Some(Ok(_)) = heard.next().await {
                responses.next().map(|response| said.send(Ok(response.clone())));
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
