//! The calls that a real Envoy makes for a stream, at its start and at its end. docs/streams-in-envoy.md has the table.
//! A newer Envoy that calls differently fails here.

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::sync::oneshot;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use tonic::{Request, Response, Status};

use crate::support::envoy::{Envoy, binary};
use crate::support::{SOON, wait_until};

/// A rate-limit service that records its calls, in the order of their arrival.
struct Recorder {
    port: u16,
    record: Record,
    _alive: oneshot::Sender<Infallible>,
}

#[derive(Clone, Default)]
struct Record(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    calls: Vec<RateLimitRequest>,
    /// Number of calls that Envoy cancelled.
    cancelled: usize,
}

/// A tenant with reservations that are denied, and one with reservations that get no answer.
const DENIED: &str = "denied";
const UNANSWERED: &str = "unanswered";

impl Recorder {
    fn start() -> Recorder {
        // One thread records the calls in the order in which Envoy sends them.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let (alive, ended) = oneshot::channel::<Infallible>();
        let record = Record::default();
        let to = record.clone();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(tokio::net::TcpListener::from_std(listener).unwrap(), to) => {}
                    _ = ended => {}
                }
            });
        });
        Recorder { port, record, _alive: alive }
    }

    /// Returns the calls of a tenant, as a text each: `hold#1 500 + hold#1 0` has two descriptors of the first stream.
    fn calls(&self, tenant: &str) -> Vec<String> {
        let recorded = self.record.0.lock().unwrap();
        let mut streams = Vec::new();
        recorded.calls.iter().filter(|call| tenant_of(call) == tenant).map(|call| text(call, &mut streams)).collect()
    }

    fn cancelled(&self) -> usize {
        self.record.0.lock().unwrap().cancelled
    }
}

fn tenant_of(call: &RateLimitRequest) -> String {
    let tenant = &call.descriptors[0].entries[0];
    assert_eq!(&*tenant.key, "tenant");
    tenant.value.to_string()
}

/// Names the streams by numbers.
fn text(call: &RateLimitRequest, streams: &mut Vec<String>) -> String {
    assert_eq!((&*call.domain, call.hits_addend), ("llm", 0));
    let mut of_descriptor = |descriptor: &RateLimitDescriptor| {
        assert!(!descriptor.is_negative_hits && descriptor.limit.is_none());
        let (last, before) = descriptor.entries.split_last().unwrap();
        let id = last.value.to_string();
        assert_eq!((id.len(), id.matches('-').count()), (36, 4), "a UUID by Envoy: {id}");
        let stream = streams.iter().position(|known| *known == id).unwrap_or_else(|| {
            streams.push(id);
            streams.len() - 1
        });
        let direction = before.get(1).map_or_else(String::new, |entry| format!(" {}", &*entry.value));
        let hits = descriptor.hits_addend.map_or_else(|| "none".to_owned(), |hits| hits.to_string());
        format!("{}#{}{direction} {hits}", &*last.key, stream + 1)
    };
    call.descriptors.iter().map(&mut of_descriptor).collect::<Vec<_>>().join(" + ")
}

async fn serve(listener: tokio::net::TcpListener, record: Record) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap(); // an answer is several small writes
        let service = TowerToHyperService::new(RateLimitServiceServer::new(record.clone()));
        tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
    }
}

#[tonic::async_trait]
impl RateLimitService for Record {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        /// Counts the call when its future is dropped.
        struct Cancelled<'a>(&'a Record);
        impl Drop for Cancelled<'_> {
            fn drop(&mut self) {
                self.0.0.lock().unwrap().cancelled += 1;
            }
        }

        let request = request.into_inner();
        let tenant = tenant_of(&request);
        let reserves = request.descriptors.iter().any(|asked| &*asked.entries.last().unwrap().key == "hold");
        self.0.lock().unwrap().calls.push(request);
        if reserves && tenant == UNANSWERED {
            let _cancelled = Cancelled(self);
            std::future::pending::<()>().await;
        }
        let code = if reserves && tenant == DENIED { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }))
    }
}

/// A service that fails as the header `x-do` of a request says, and sends the request's costs back.
struct Service {
    port: u16,
    /// Connections with a request that gets no complete answer.
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::default();
        let kept = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || answer_all(&stream, &kept));
            }
        });
        Service { port, open }
    }
}

fn answer_all(stream: &TcpStream, open: &Mutex<Vec<TcpStream>>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    loop {
        let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        if head.is_empty() {
            return;
        }
        let header = |name: &str| {
            let pairs = head.iter().filter_map(|line| line.split_once(": "));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
        };
        let costs: String = ["x-input", "x-output"]
            .iter()
            .filter_map(|name| header(name).map(|cost| format!("{name}: {cost}\r\n")))
            .collect();
        let body = header("x-body").unwrap_or("{}");
        let kind = match body.split(':').next() {
            Some("data") => "text/event-stream",
            Some("{}") => "text/plain",
            _ => "application/json",
        };
        let whole =
            format!("HTTP/1.1 200 OK\r\n{costs}content-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let part = format!("HTTP/1.1 200 OK\r\n{costs}content-type: {kind}\r\ncontent-length: 1000\r\n\r\n{body}");
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n";
        let trailer = format!("{chunked}{costs}\r\n");
        let failed = format!("HTTP/1.1 503 Service Unavailable\r\n{costs}content-length: 0\r\n\r\n");
        let moved = "HTTP/1.1 302 Found\r\nlocation: http://service/moved\r\ncontent-length: 0\r\n\r\n";
        let is_first = header("x-envoy-attempt-count") == Some("1");
        // The connection ends, or stays open without more.
        let (answer, ends, stays) = match header("x-do") {
            Some("close") => ("", true, false),
            Some("cut") => (&*part, true, false),
            Some("wait") => ("", true, true),
            Some("begin") => (&*part, true, true),
            Some("trailer") => (&*trailer, false, false),
            Some("fail") => (&*failed, false, false),
            Some("fail once") if is_first => (&*failed, false, false),
            Some("move") if head[0].starts_with("GET /moves") => (moved, false, false),
            _ => (&*whole, false, false),
        };
        let mut to = stream;
        if to.write_all(answer.as_bytes()).is_err() {
            return;
        }
        if stays {
            open.lock().unwrap().push(stream.try_clone().unwrap());
        }
        if ends {
            return;
        }
    }
}

/// Costs by two headers of the response.
const COSTS: [(&str, &str); 2] = [("x-input", "123"), ("x-output", "45")];
const ESTIMATE: (&str, &str) = ("x-max-tokens", "500");

/// An Envoy between a client, the service and the recorder.
struct Setup {
    recorder: Recorder,
    service: Service,
    envoy: Envoy,
}

impl Setup {
    fn start(binary: &Path, changes: &[(&str, &str)]) -> Setup {
        let (recorder, service) = (Recorder::start(), Service::start());
        let port = format!("port_value: {} }}", service.port);
        let mut all = vec![("port_value: 10002 }", &*port)];
        all.extend(changes);
        let envoy = Envoy::start_by(binary, "tests/it/streams/envoy.yaml", recorder.port, &all);
        Setup { recorder, service, envoy }
    }

    /// Sends a request as a tenant, with an ID of the client's choice.
    fn send(&self, tenant: &str, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.envoy.port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let own = format!("host: service\r\nx-tenant: {tenant}\r\nx-stream: chosen\r\nconnection: close\r\n");
        stream.write_all(format!("GET {path} HTTP/1.1\r\n{own}{headers}\r\n").as_bytes()).unwrap();
        stream
    }

    /// The same, and reads to the end; returns the status.
    fn ask(&self, tenant: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut answer = Vec::new();
        match self.send(tenant, path, headers).read_to_end(&mut answer) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{tenant}: {error}"),
            _ => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        answer.split(' ').nth(1).unwrap_or_else(|| panic!("{tenant}: no answer: {answer}")).parse().unwrap()
    }

    /// Waits until these calls of a tenant have come.
    fn must_come(&self, tenant: &str, calls: &[&str]) {
        wait_until(&format!("the calls of {tenant:?}"), || self.recorder.calls(tenant).len() >= calls.len());
        assert_eq!(self.recorder.calls(tenant), calls, "{tenant}");
    }

    /// Waits until all calls for streams that have ended have come: Envoy sends them on one connection, in order.
    fn pass(&self) {
        self.ask("the last", "/", &[]);
        self.must_come("the last", &["hold#1 0", "settle#1 0"]);
    }
}

/// A request, the status of its answer, and the expected calls.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], u16, &'static [&'static str]);

const RESERVED: &str = "hold#1 0 + hold#1 500";
const SETTLED: &str = "settle#1 input 123 + settle#1 output 45 + settle#1 0";
const NO_COST: &str = "settle#1 0";

const USAGE: &str = r#"{"usage": {"prompt_tokens": 123, "completion_tokens": 45}}"#;
const EVENT: &str = r#"data: {"usage": {"prompt_tokens": 123, "completion_tokens": 45}}"#;

/// In the order of the table in docs/streams-in-envoy.md.
const CASES: &[Case] = &[
    ("ends well", "/", &[ESTIMATE, COSTS[0], COSTS[1]], 200, &[RESERVED, SETTLED]),
    ("usage in JSON", "/", &[ESTIMATE, ("x-body", USAGE)], 200, &[RESERVED, SETTLED]),
    ("usage in an event", "/", &[ESTIMATE, ("x-body", EVENT)], 200, &[RESERVED, SETTLED]),
    ("one cost of two", "/", &[ESTIMATE, COSTS[1]], 200, &[RESERVED, "settle#1 output 45 + settle#1 0"]),
    ("no cost", "/", &[ESTIMATE], 200, &[RESERVED, NO_COST]),
    ("no estimate", "/", &[COSTS[0], COSTS[1]], 200, &["hold#1 0", SETTLED]),
    ("not a number", "/", &[("x-max-tokens", "many"), ("x-input", "x")], 200, &["hold#1 0", NO_COST]),
    ("broken JSON", "/", &[ESTIMATE, ("x-body", "{\"usage\":")], 200, &[RESERVED, NO_COST]),
    (DENIED, "/", &[ESTIMATE, COSTS[0]], 429, &[RESERVED, NO_COST]),
    ("no connection", "/refused", &[ESTIMATE], 503, &[RESERVED, NO_COST]),
    ("closed by the upstream", "/", &[ESTIMATE, ("x-do", "close"), COSTS[0]], 503, &[RESERVED, NO_COST]),
    ("failed by the upstream", "/", &[ESTIMATE, ("x-do", "fail"), COSTS[0], COSTS[1]], 503, &[RESERVED, SETTLED]),
    ("cut by the upstream", "/", &[ESTIMATE, ("x-do", "cut"), COSTS[0], COSTS[1]], 200, &[RESERVED, SETTLED]),
    ("cut within JSON", "/", &[ESTIMATE, ("x-do", "cut"), ("x-body", USAGE)], 502, &[RESERVED, NO_COST]),
    ("cut after an event", "/", &[ESTIMATE, ("x-do", "cut"), ("x-body", EVENT)], 200, &[RESERVED, SETTLED]),
    ("late", "/late", &[ESTIMATE, ("x-do", "wait")], 504, &[RESERVED, NO_COST]),
    ("retried", "/retried", &[ESTIMATE, ("x-do", "fail once"), COSTS[0], COSTS[1]], 200, &[RESERVED, SETTLED]),
    ("answered by a later filter", "/", &[ESTIMATE, ("x-answered-by", "later")], 403, &[RESERVED, NO_COST]),
    ("answered by an earlier filter", "/", &[ESTIMATE, ("x-answered-by", "earlier")], 403, &[]),
    ("direct response", "/direct", &[ESTIMATE], 200, &[]),
    ("redirect", "/redirect", &[ESTIMATE], 301, &[]),
    ("unknown cluster", "/unknown", &[ESTIMATE], 503, &[]),
    ("without its ID", "/stripped", &[ESTIMATE, COSTS[0]], 200, &[RESERVED]),
    ("formats alone", "/formats", &[ESTIMATE, COSTS[0]], 200, &["hold#1 500", "settle#1 123"]),
    ("formats alone, no cost", "/formats", &[ESTIMATE], 200, &["hold#1 500"]),
    ("formats alone, no estimate", "/formats", &[COSTS[0]], 200, &["settle#1 123"]),
    ("formats alone, neither", "/formats", &[], 200, &[]),
];

/// Numbers of a format, and the hits that arrive, if the entry does.
const NUMBERS: &[(&str, Option<&str>)] = &[
    ("0", Some("0")),
    ("12.9", Some("12")),
    ("1e3", Some("1000")),
    ("0x10", Some("16")),
    ("+7", Some("7")),
    ("1000000000", Some("1000000000")),
    ("1000000001", None),
    ("18446744073709551616", None),
    ("-5", None),
    ("12abc", None),
    ("inf", None),
    #[cfg(target_arch = "x86_64")]
    ("nan", Some("9223372036854775808")),
];

/// Tries all of it with an Envoy, where `by_header` are the calls for costs by `%RESP(…)%`.
fn try_all(binary: &Path, by_header: &[&str]) {
    let setup = Setup::start(binary, &[Envoy::LONG_TIMEOUT]);
    for (name, path, headers, status, calls) in CASES {
        assert_eq!(setup.ask(name, path, headers), *status, "{name}");
        setup.must_come(name, calls);
    }
    setup.ask("by other formats", "/response", &[COSTS[0]]);
    setup.must_come("by other formats", by_header);
    setup.ask("by a trailer", "/response", &[("x-do", "trailer"), COSTS[0]]);
    setup.must_come("by a trailer", &["settle#1 bytes 2 + settle#1 none"]);

    for (number, arrives) in NUMBERS {
        let (estimated, cost) = (format!("estimate {number}"), format!("cost {number}"));
        setup.ask(&estimated, "/", &[("x-max-tokens", number)]);
        let hits = arrives.map_or_else(String::new, |hits| format!(" + hold#1 {hits}"));
        setup.must_come(&estimated, &[&format!("hold#1 0{hits}"), NO_COST]);
        setup.ask(&cost, "/", &[("x-input", number)]);
        let hits = arrives.map_or_else(String::new, |hits| format!("settle#1 input {hits} + "));
        setup.must_come(&cost, &["hold#1 0", &format!("{hits}settle#1 0")]);
    }

    // The client hangs up before the response, and in the middle of it.
    let waiting = || setup.service.open.lock().unwrap().len();
    let waited = waiting();
    let before = setup.send("hangs up before", "/", &[ESTIMATE, ("x-do", "wait")]);
    wait_until("the service has the request", || waiting() > waited);
    drop(before);
    setup.must_come("hangs up before", &[RESERVED, NO_COST]);
    let mut within = setup.send("hangs up within", "/", &[ESTIMATE, ("x-do", "begin"), COSTS[0], COSTS[1]]);
    within.read_exact(&mut [0; 1]).unwrap();
    drop(within);
    setup.must_come("hangs up within", &[RESERVED, SETTLED]);

    // A redirect that Envoy follows is a new stream. Either may come first: the end of the old one or its start.
    setup.ask("follows", "/moves", &[ESTIMATE, ("x-do", "move"), COSTS[0]]);
    let is_settled = |call: &String| call.starts_with("settle#2 input 123");
    wait_until("a followed redirect ends", || setup.recorder.calls("follows").iter().any(is_settled));
    wait_until("all calls", || setup.recorder.calls("follows").len() >= 4);
    let mut followed = setup.recorder.calls("follows");
    followed.sort();
    let new = ["hold#2 0 + hold#2 500", "settle#2 input 123 + settle#2 0"];
    assert_eq!(followed, [RESERVED, new[0], NO_COST, new[1]]);

    // The client hangs up while its reservation is under way: Envoy cancels the call and never reports the end.
    let asking = setup.send(UNANSWERED, "/", &[ESTIMATE]);
    setup.must_come(UNANSWERED, &[RESERVED]);
    drop(asking);
    wait_until("the reservation is cancelled", || setup.recorder.cancelled() == 1);

    setup.pass();
    for (name, .., calls) in CASES {
        assert_eq!(setup.recorder.calls(name), *calls, "{name}");
    }
    assert_eq!(setup.recorder.calls(UNANSWERED), [RESERVED]);
}

#[test]
fn a_stream_settles_in_one_call_however_it_ends() {
    let by_header = ["settle#1 header 123 + settle#1 bytes 2 + settle#1 none"];
    try_all(&binary(), &by_header);
}

#[test]
#[ignore = "needs an old Envoy: make e2e"]
fn the_oldest_envoy_settles_alike_but_not_by_headers_of_the_response() {
    let binary = fs::canonicalize("target/tools/bin/envoy-oldest").expect("make e2e installs it");
    try_all(&binary, &["settle#1 bytes 2 + settle#1 none"]);
}

#[test]
fn a_stream_settles_after_a_reservation_without_an_answer() {
    let setup = Setup::start(&binary(), &[]);
    assert_eq!(setup.ask(UNANSWERED, "/", &[ESTIMATE, COSTS[0], COSTS[1]]), 200);
    setup.must_come(UNANSWERED, &[RESERVED, SETTLED]);
    assert_eq!(setup.recorder.cancelled(), 1);
}
