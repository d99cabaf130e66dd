//! Concurrency limits with `deploy/envoy/concurrency.yaml` in a real Envoy, in front of a service that answers on
//! command.

use crate::support;

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use support::envoy::Envoy;
use support::redis::Redis;
use support::tollgate::{Tollgate, request};
use support::{SOON, wait_until, wait_until_async};
use tollgate::wire::RateLimitRequest;
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::rate_limit_response::rate_limit::Unit;

/// Three at once, and nothing frees itself while a test runs.
const RULES: &str = "
domain: shop
descriptors:
  - key: route
    value: reports
    descriptors:
      - key: stream
        rate_limit: {algorithm: concurrency, requests_per_unit: 3, hold: 1h}
";

/// A service that keeps its clients waiting.
struct Service {
    port: u16,
    waiting: Arc<Mutex<VecDeque<TcpStream>>>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let waiting = Arc::new(Mutex::new(VecDeque::new()));
        let queue = Arc::clone(&waiting);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                // Ignores connections that close without a request.
                if head.count() > 0 {
                    queue.lock().unwrap().push_back(stream);
                }
            }
        });
        Service { port, waiting }
    }

    /// Waits until so many clients are waiting.
    fn has_waiting(&self, clients: usize) {
        wait_until("requests reach the service", || self.waiting.lock().unwrap().len() == clients);
    }

    /// Answers the request that waits longest.
    fn answer(&self) {
        let mut stream = self.waiting.lock().unwrap().pop_front().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    }
}

/// Starts an Envoy in front of it.
fn envoy(tollgate: &Tollgate, service: &Service) -> Envoy {
    let stand_in = "endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 10001 } } }";
    let service = stand_in.replace("10001", &service.port.to_string());
    Envoy::start_from("deploy/envoy/concurrency.yaml", tollgate.grpc_port, &[Envoy::LONG_TIMEOUT, (stand_in, &service)])
}

/// Asks for a report. To drop it is to hang up.
struct Client(TcpStream);

impl Client {
    fn start(envoy: &Envoy) -> Client {
        let mut stream = TcpStream::connect(("127.0.0.1", envoy.port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(b"GET /reports HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        Client(stream)
    }

    /// The status it gets, when it gets one.
    fn status(self) -> u16 {
        let mut line = String::new();
        BufReader::new(self.0).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {line:?}")).parse().unwrap()
    }
}

/// Returns the number of free slots, from a peek.
async fn free_slots(tollgate: &Tollgate) -> u32 {
    let mut peek: RateLimitRequest = request("shop", &[&[("route", "reports"), ("stream", "a peek")]]);
    peek.descriptors[0].hits_addend = Some(0);
    tollgate.ask(peek).await.unwrap().statuses[0].limit_remaining
}

async fn until_free(tollgate: &Tollgate, slots: u32) {
    wait_until_async(&format!("{slots} slots are free"), async || free_slots(tollgate).await == slots).await;
}

/// Starts this many more requests, and returns them in the order in which the service received them.
fn start(clients: usize, envoy: &Envoy, service: &Service) -> VecDeque<Client> {
    let before = service.waiting.lock().unwrap().len();
    let start = |nth| {
        let client = Client::start(envoy);
        service.has_waiting(before + nth);
        client
    };
    (1..=clients).map(start).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_pass_the_next_is_refused_and_when_one_ends_another_passes() {
    let (tollgate, service) = (Tollgate::start(RULES, &[]), Service::start());
    let envoy = envoy(&tollgate, &service);
    let mut clients = start(3, &envoy, &service);
    for _ in 0..5 {
        assert_eq!(Client::start(&envoy).status(), 429);
    }
    for _ in 0..4 {
        service.answer();
        assert_eq!(clients.pop_front().unwrap().status(), 200);
        until_free(&tollgate, 1).await;
        clients.extend(start(1, &envoy, &service));
        // Denied streams have no part in the count, nor have their releases.
        assert_eq!(Client::start(&envoy).status(), 429);
    }
    for client in clients {
        service.answer();
        assert_eq!(client.status(), 200);
    }
    until_free(&tollgate, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_in_the_middle_releases_its_slot() {
    let (tollgate, service) = (Tollgate::start(RULES, &[]), Service::start());
    let envoy = envoy(&tollgate, &service);
    let clients = start(3, &envoy, &service);
    assert_eq!(Client::start(&envoy).status(), 429);
    drop(clients);
    until_free(&tollgate, 3).await;
    let _clients = start(3, &envoy, &service);
    assert_eq!(Client::start(&envoy).status(), 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_killed_envoy_expire() {
    let (tollgate, service) = (Tollgate::start(&RULES.replace("1h", "2s"), &[]), Service::start());
    let killed = envoy(&tollgate, &service);
    let _clients = start(3, &killed, &service);
    drop(killed); // by SIGKILL
    until_free(&tollgate, 3).await;
    let _clients = start(3, &envoy(&tollgate, &service), &service);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_tollgate_was_not_given_back_frees_itself() {
    let redis = Redis::start();
    let settings = [&format!("REDIS_URL={}", redis.url()), "REDIS_TIMEOUT=2s"];
    let rules = RULES.replace("1h", "2s");
    let (killed, service) = (Tollgate::start(&rules, &settings), Service::start());
    let envoy = envoy(&killed, &service);
    let clients = start(3, &envoy, &service);
    drop(killed); // by SIGKILL
    for client in clients {
        service.answer();
        assert_eq!(client.status(), 200);
    }
    until_free(&Tollgate::start(&rules, &settings), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stream_that_was_not_counted_gives_nobody_elses_slot_back() {
    let (killed, service) = (Tollgate::start(RULES, &[]), Service::start());
    let envoy = envoy(&killed, &service);
    let uncounted = start(3, &envoy, &service);
    let port = format!("GRPC_PORT={}", killed.grpc_port);
    drop(killed); // with all its counters
    let tollgate = Tollgate::start(RULES, &[&port]);
    let mut counted = Vec::new();
    wait_until_async("Envoy finds Tollgate again", async || {
        counted.extend(start(1, &envoy, &service));
        free_slots(&tollgate).await < 3
    })
    .await;
    drop(counted);
    until_free(&tollgate, 3).await;

    let _counted = [Client::start(&envoy), Client::start(&envoy)];
    until_free(&tollgate, 1).await;
    let calls = "tollgate_requests_total{outcome=\"ok\"}";
    let before = tollgate.metric(calls);
    drop(uncounted);
    wait_until("three releases", || tollgate.metric(calls) >= before + 3.0);
    assert_eq!(free_slots(&tollgate).await, 1);
}

#[tokio::test]
async fn an_answer_names_no_window_and_no_time_to_wait_where_there_is_none() {
    let headers = ["LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_RESPONSE_HEADERS_FORMAT=ietf"];
    let tollgate = Tollgate::start(&RULES.replace("1h", "1m"), &headers);
    for over in [false, false, false, true] {
        let response = tollgate.ask(request("shop", &[&[("route", "reports"), ("stream", "1")]])).await.unwrap();
        assert_eq!(response.overall_code() == Code::OverLimit, over);
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Unknown));
        let header = |key| response.response_headers_to_add.iter().find(|header| header.key == key);
        assert_eq!(
            header("RateLimit-Policy").unwrap().value,
            "\"route=reports|stream\";q=3;qu=\"concurrent-requests\""
        );
        assert_eq!(header("Retry-After"), None);
    }
}
