//! Connections and workers: a failing call affects no other call.

use crate::support;

use std::borrow::Borrow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::tollgate::request;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tollgate::engine::adjustment::Written;
use tollgate::engine::algorithm::{Ask, Verdict};
use tollgate::engine::check::{Check, CheckVerdict, StoreError, Verdicts};
use tollgate::engine::descriptor::{Descriptor, Entry, Request};
use tollgate::grpc::{
    self, Activity, ConnectionOptions, Headers, RequestLimits, Server, Service, ServiceOptions, Transport, Upstream,
};
use tollgate::http::{self, Admin, AdminTokens, Health, Port};
use tollgate::limiter::{Deadlines, Limiter, LimiterOptions, Overload};
use tollgate::metrics::Metrics;
use tollgate::observe::Observing;
use tollgate::observe::heavy_hitters::HeavyHitters;
use tollgate::observe::redaction::Values;
use tollgate::server::port::{Listener, Port as GrpcPort};
use tollgate::server::workers::Workers;
use tollgate::shared::adjustment::AdjustmentStore;
use tollgate::shared::adjustment::Adjustments;
use tollgate::shared::adjustment::board::MemoryAdjustments;
use tollgate::shared::fleet::Fleet;
use tollgate::shared::fleet::FleetStore;
use tollgate::shared::fleet::heartbeats::ReplicaState;
use tollgate::shared::usage::UsageStore;
use tollgate::sources::files::load::{self, LoadOptions, Sources};
use tollgate::store::Store;
use tollgate::store::memory::MemoryStore;
use tollgate::survey::{Local, Survey};
use tollgate::wire::rate_limit_response::Code;
use tollgate::wire::{RateLimitService, RateLimitServiceClient};
use tonic::transport::Endpoint;

/// Panics where the user is `panic`, and lets `slow` wait for the semaphore.
struct Fragile {
    counters: MemoryStore,
    slow: Arc<Semaphore>,
}

impl Store for Fragile {
    async fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: tokio::time::Instant,
    ) -> Result<Verdicts, StoreError> {
        let name = checks[0].borrow().key.as_str();
        assert!(!name.contains("user=panic"), "a panic in a call, for the test");
        if name.contains("user=slow") {
            drop(self.slow.acquire().await);
        }
        self.counters.check(checks, deadline).await
    }
}

/// Records the threads on which it is called.
#[derive(Default)]
struct Noting {
    counters: MemoryStore,
    threads: Mutex<Vec<String>>,
}

impl Store for Noting {
    async fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: tokio::time::Instant,
    ) -> Result<Verdicts, StoreError> {
        self.threads.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
        self.counters.check(checks, deadline).await
    }
}

/// Takes a moment for each check, and notes how many there were at once.
#[derive(Default)]
struct Unhurried {
    counters: MemoryStore,
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

impl Store for Unhurried {
    async fn check<C: Borrow<Check> + Sync>(
        &self,
        checks: &[C],
        deadline: tokio::time::Instant,
    ) -> Result<Verdicts, StoreError> {
        self.all.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.counters.check(checks, deadline).await
    }
}

/// Does not answer in time.
struct Silent;

impl Store for Silent {
    async fn check<C: Borrow<Check> + Sync>(
        &self,
        _: &[C],
        deadline: tokio::time::Instant,
    ) -> Result<Verdicts, StoreError> {
        tokio::time::sleep_until(deadline).await;
        Err(StoreError::Timeout)
    }
}

/// Has no room for anything, and has denied `denied` before.
struct Crowded;

impl Store for Crowded {
    async fn check<C: Borrow<Check> + Sync>(&self, _: &[C], _: tokio::time::Instant) -> Result<Verdicts, StoreError> {
        Err(StoreError::Overloaded)
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        let own = Verdict { reset_after_ms: 1, retry_after_ms: Some(1), ..Verdict::NOTHING };
        let known = CheckVerdict { is_known: true, ..CheckVerdict::new(own, 0) };
        check.key.as_str().contains("user=denied").then_some(known)
    }
}

/// Lets each user pass once.
fn limiter<S: Store>(store: Arc<S>, metrics: &Arc<Metrics>) -> Limiter<S> {
    observed_limiter(store, metrics, &Observing::default())
}

fn observed_limiter<S: Store>(store: Arc<S>, metrics: &Arc<Metrics>, observing: &Observing) -> Limiter<S> {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(&rules, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]")
        .unwrap();
    let sources = Sources { paths: vec![rules.path().to_owned()] };
    let observers = observing.observers();
    let options = LimiterOptions { overload: Overload::Refuse, observers, ..LimiterOptions::default() };
    let limiter = Limiter::new(options, store, Arc::<MemoryStore>::default(), Arc::clone(metrics));
    limiter.put_in_force(load::load(&sources, &LoadOptions::default()).unwrap().rules);
    limiter
}

fn service<S: Store>(limiter: Limiter<S>, metrics: Arc<Metrics>) -> Service<S> {
    let options = ServiceOptions {
        limits: RequestLimits { descriptors: 1, entries: 1, key_bytes: 10, value_bytes: 10 },
        headers: Headers::Off,
        decided_by_header: None,
        dynamic_metadata: false,
        upstream: Upstream::default(),
        store_timeout: support::SOON,
        request_ids: false,
    };
    Service::new(Arc::new(limiter), metrics, options)
}

const TOKEN: &str = "a token of some length";

/// Serves the administrators' paths, with work on this worker. Returns the address of the port.
async fn serve_admin<S: Store>(
    runtime: Handle,
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    observing: Observing,
) -> SocketAddr {
    let adjustments = AdjustmentStore::Memory(MemoryAdjustments::default());
    let adjustments = Arc::new(Adjustments::new(Arc::clone(&limiter), Arc::clone(&metrics), adjustments));
    let (parts, alone) = ((Arc::clone(&limiter), Arc::clone(&metrics), None), FleetStore::Memory);
    let fleet = Arc::new(Fleet::new("a".to_owned(), parts, alone, || ReplicaState::Ready));
    let local = Local { heavy_hitters: observing.heavy_hitters.clone(), ..Local::default() };
    let survey = Survey::new(Arc::clone(&fleet), local);
    let tokens = AdminTokens { admin: Some(TOKEN.to_owned()), ..AdminTokens::default() };
    let usage = UsageStore::Memory(Arc::<MemoryStore>::default());
    let tokens = (&tokens, metrics.admin().unwrap());
    let admin = Admin::new((limiter, runtime), (adjustments, fleet, survey), usage, tokens, support::SOON);
    let router = http::router(Port {
        health: tokio::sync::watch::channel(Health::Serving).1,
        metrics,
        json: None,
        admin: Some(admin.observing(observing)),
        console: None,
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(http::serve(listener, router, Arc::new(Semaphore::new(8)), std::future::pending()));
    address
}

/// Reads a path as an administrator.
async fn get(address: SocketAddr, path: &str) -> String {
    let get = ureq::get(format!("http://{address}{path}")).header("Authorization", format!("Bearer {TOKEN}"));
    tokio::task::spawn_blocking(move || get.call().unwrap().body_mut().read_to_string().unwrap()).await.unwrap()
}

#[tokio::test]
async fn what_an_admin_asks_a_worker_does() {
    let (store, metrics) = (Arc::new(Noting::default()), Arc::new(Metrics::new(0.8).unwrap()));
    let limiter = Arc::new(limiter(Arc::clone(&store), &metrics));
    let workers = Workers::start(2).unwrap();
    let runtime = workers.runtimes()[0].clone();
    let address = serve_admin(runtime, limiter, metrics, Observing::default()).await;
    get(address, "/counters?domain=shop&user=ann").await;
    assert_eq!(*store.threads.lock().unwrap(), ["worker-0"]);
}

#[tokio::test]
async fn the_counters_of_many_keys_are_read_for_one_client_at_a_time() {
    const USERS: usize = 20;

    let (store, metrics) = (Arc::new(Unhurried::default()), Arc::new(Metrics::new(0.8).unwrap()));
    let heavy_hitters = Some(Arc::new(HeavyHitters::new(Values::Plain, 0.8)));
    let observing = Observing { heavy_hitters, ..Observing::default() };
    let limiter = Arc::new(observed_limiter(Arc::clone(&store), &metrics, &observing));
    for user in 0..USERS {
        let entry = Entry { key: "user".into(), value: user.to_string().into() };
        let descriptor = Descriptor { entries: vec![entry], ask: Ask::Take(1), limit: None };
        let request = Request { domain: "shop".into(), descriptors: vec![descriptor] };
        let deadlines = Deadlines { store: tokio::time::Instant::now() + support::SOON, caller: None };
        limiter.decide(&limiter.snapshot(), &request, deadlines).await.unwrap();
    }
    let workers = Workers::start(2).unwrap();
    let runtime = workers.runtimes()[0].clone();
    let address = serve_admin(runtime, limiter, metrics, observing).await;

    // A client that leaves keeps its turn until its work is done.
    let request = format!("GET /top?remaining=true HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    let mut leaving = TcpStream::connect(address).await.unwrap();
    leaving.write_all(request.as_bytes()).await.unwrap();
    support::wait_until_async("its work begins", async || store.all.load(Ordering::SeqCst) > USERS).await;
    drop(leaving);

    for top in futures_util::future::join_all((0..3).map(|_| get(address, "/top?remaining=true"))).await {
        assert_eq!(top.matches("\"remaining\":0").count(), USERS, "{top}");
    }
    assert_eq!(store.all.load(Ordering::SeqCst), USERS * 5);
    assert_eq!(store.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_adjustment_is_matched_to_the_rules_on_another_thread() {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let limiter = Arc::new(limiter(Arc::<MemoryStore>::default(), &metrics));
    let store = AdjustmentStore::Memory(MemoryAdjustments::default());
    let adjustments = Adjustments::new(limiter, metrics, store);
    let written = serde_json::json!({
        "effect": "block", "domain": "shop", "rule": "user", "who": "ann", "why": "a test", "for": "1h"
    });
    let written: Written = serde_json::from_value(written).unwrap();
    // With many rules this takes long, and this thread serves the ports.
    let mut begin = std::pin::pin!(adjustments.begin(&written, "admin", true));
    assert!(futures_util::poll!(begin.as_mut()).is_pending());
    begin.await.unwrap();
    let listed = adjustments.list();
    assert_eq!(listed.len(), 1, "{listed:?}");
}

#[tokio::test]
async fn a_panic_costs_its_own_call_and_no_other_on_the_connection() {
    for transport in Transport::ALL {
        a_panic_costs_one_call(transport).await;
    }
}

async fn a_panic_costs_one_call(transport: Transport) {
    let slow = Arc::new(Semaphore::new(0));
    let store = Fragile { counters: MemoryStore::default(), slow: Arc::clone(&slow) };
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let service = service(limiter(Arc::new(store), &metrics), metrics);
    let hour = Duration::from_secs(60 * 60);
    let options = ConnectionOptions {
        max_age: hour,
        max_age_grace: hour,
        max_message_bytes: 1_000,
        max_concurrent_streams: 100,
        transport,
    };
    let server = Arc::new(Server::new(service, tonic::service::Routes::default(), options));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let workers = Arc::new(Workers::start(1).unwrap());
    tokio::spawn(GrpcPort::new(Listener::Tcp(listener), 10).hand_on(move |accepted, place| {
        workers.run(|_, mut stop| {
            let server = Arc::clone(&server);
            async move {
                let begun = grpc::begin(accepted.register().unwrap()).await.unwrap();
                let activity = Activity::new();
                assert!(place.begun(&activity));
                server.serve(begun, activity, stop.requested()).await;
            }
        });
    }));

    let client = RateLimitServiceClient::new(Endpoint::from_shared(address).unwrap().connect_lazy());
    let ask = |user: &'static str| {
        let mut client = client.clone();
        async move { client.should_rate_limit(request("shop", &[&[("user", user)]])).await }
    };
    let on_its_way = tokio::spawn(ask("slow"));
    ask("panic").await.expect_err(transport.name());
    assert_eq!(ask("ann").await.unwrap().into_inner().overall_code(), Code::Ok);
    slow.add_permits(1);
    assert_eq!(on_its_way.await.unwrap().unwrap().into_inner().overall_code(), Code::Ok);
    assert_eq!(ask("ann").await.unwrap().into_inner().overall_code(), Code::OverLimit);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_deadline_is_over_is_told_so_and_not_what_a_failure_mode_says() {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let service = service(limiter(Arc::new(Silent), &metrics), Arc::clone(&metrics));
    // No timer is finer than a millisecond.
    let late = tonic::Code::DeadlineExceeded;
    for (timeout, expected) in [("100m", tonic::Code::Ok), ("20u", late), ("0n", late)] {
        let mut call = tonic::Request::new(request("shop", &[&[("user", "ann")]]));
        call.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let answer = service.should_rate_limit(call).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| tonic::Code::Ok), expected, "{timeout}");
    }
    let counted = String::from_utf8(metrics.render().unwrap()).unwrap();
    assert!(counted.contains("requests_total{outcome=\"deadline_exceeded\"} 1\n"), "{counted}");
}

#[tokio::test]
async fn what_is_known_to_be_denied_is_denied_also_where_calls_are_refused_that_are_too_many() {
    let metrics = Arc::new(Metrics::new(0.8).unwrap());
    let service = service(limiter(Arc::new(Crowded), &metrics), metrics);
    let ask = async |user| service.should_rate_limit(tonic::Request::new(request("shop", &[&[("user", user)]]))).await;
    assert_eq!(ask("denied").await.unwrap().into_inner().overall_code(), Code::OverLimit);
    assert_eq!(ask("ann").await.unwrap_err().code(), tonic::Code::ResourceExhausted);
}
