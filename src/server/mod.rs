//! The running process: reads its files, builds the parts, announces itself, waits for a signal, and drains.

mod announce;
mod candidates;
mod demands;
mod descriptors;
mod door;
mod drain;
mod exporting;
mod grpc;
mod http_ports;
mod listeners;
mod management;
mod observers;
mod options;
mod places;
pub mod port;
mod reload;
mod secure;
mod signals;
mod socket;
pub mod stream;
mod tls;
mod tokens;
mod unix;
pub mod watchdog;
pub mod workers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinError;

use crate::engine::rules::FailureMode;
use crate::grpc::{Server, Service};
use crate::http::console::data::RedisHistory;
use crate::http::{self, Port};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::metrics::statsd::Statsd;
use crate::observe::Observing;
use crate::observe::decision_log::DecisionLog;
use crate::settings::{ConfigType, Environment, Settings};
use crate::shared::adjustment::AdjustmentStore;
use crate::shared::adjustment::Adjustments;
use crate::shared::adjustment::board::MemoryAdjustments;
use crate::shared::adjustment::redis::RedisAdjustments;
use crate::shared::claims::Claims;
use crate::shared::fleet::heartbeats::ReplicaState;
use crate::shared::fleet::{Fleet, FleetStore, instance_id};
use crate::shared::seats::Seats;
use crate::shared::seats::redis::RedisSeats;
use crate::shared::usage::UsageStore;
use crate::shared::usage::redis::RedisUsage;
use crate::sources::files::load::Loader;
use crate::sources::xds::Options;
use crate::spans::{Exporting, Spans};
use crate::store::Store;
use crate::store::any::AnyStore;
use crate::store::denied::{Denials, DeniedCache};
use crate::store::health::Health;
use crate::store::lease::Leases;
use crate::store::memory::{self, MemoryStore, SystemClock};
use crate::store::redis::RedisStore;
use crate::store::redis::topology::config::OnCall;
use crate::store::redis::topology::route::Route;
use crate::store::share::{Desk, Shares};
use crate::store::timed::{OnAnswer, Timed};
use crate::supervise::{self, RETRY, supervise};
use crate::telemetry::{Events, LevelControl, Logs};
pub use announce::Addresses;
use announce::{Serving, Up};
use demands::Demands;
use door::Door;
use drain::Running;
use grpc::Entrance;
use listeners::Ports;
use management::{BeforeTheFirst, Management};
use reload::{Files, Origin, Target, WrongAtFirst};
use secure::secure;
use signals::{Hangups, Signals};
use tls::Tls;
use watchdog::Watchdog;
use workers::Workers;

/// Number of connections to Redis for what the fleet shares: adjustments, heartbeats, questions and seats.
const SHARED_CONNECTIONS: usize = 4;

/// Serves until SIGTERM or SIGINT, and then until the calls in progress are answered. The metrics show the number of
/// lost lines of `logs`, the console shows the latest ones, and administrators change its levels. `announced` gets the
/// addresses once rules are in force.
///
/// # Errors
/// If the process cannot start: wrong settings, a port in use, or wrong rules. While rules are read from files, only
/// HTTP answers, with a health check that shows the progress; gRPC listens once the rules are in force.
pub async fn serve(
    settings: Settings,
    logs: &Logs,
    watchdog: Watchdog,
    announced: watch::Sender<Option<Addresses>>,
) -> anyhow::Result<()> {
    // Comes first: before this, a signal would end the process without draining.
    let (signals, hangups) = (Signals::new()?, Hangups::new()?);
    let redis = settings.store.redis()?;
    let threads = options::worker_threads(&settings);
    let ports =
        Ports::open(&settings, threads, redis.as_ref().map_or(0, |redis| redis.connections + SHARED_CONNECTIONS))
            .await?;
    let workers = Workers::start(threads).context("cannot start the worker threads")?;

    let metrics = Metrics::new(settings.answers.near_limit_ratio)?;
    let metrics = match settings.statistics.value_series() {
        Some(most) => metrics.with_values(most)?,
        None => metrics,
    };
    let metrics = Arc::new(match settings.statistics.prometheus() {
        Some(_) => metrics.with_exposition(settings.statistics.exposition()?),
        None => metrics,
    });
    metrics.observe_lost_log_lines(logs.lost())?;
    let (spans, exporting) = exporting::start(&settings.tracing, &metrics)?;
    let instance = instance_id(&host_name());
    let decision_log = exporting::decision_log(&settings.decisions, instance.clone(), &metrics)?;
    let origin = origin(&settings, &metrics, hangups)?;
    let most_bytes = settings.requests.memory_store_size_in_bytes;
    let most_bytes = most_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let memory =
        Arc::new(MemoryStore::new(SystemClock, most_bytes.unwrap_or_else(memory::default_bytes)).keeping_usage());
    let (tended, counted) = (Arc::clone(&memory), Arc::clone(&metrics));
    supervise::spawn("memory", move || tend(Arc::clone(&tended), Arc::clone(&counted)));
    let (store_is_up, seen_store) = watch::channel(redis.is_none());
    let parts = Parts {
        settings,
        signals,
        origin,
        ports,
        workers,
        metrics,
        memory,
        store_is_up: seen_store,
        spans: spans.clone(),
        exporting,
        events: logs.events(),
        levels: logs.levels(),
        instance,
        decision_log,
        redis_history: Arc::default(),
        demands: Arc::default(),
        watchdog,
        announced,
    };
    let metrics = Arc::clone(&parts.metrics);
    let on_answer: OnAnswer = Arc::new(move |error, took| metrics.record_store(error, took));
    match redis {
        None => {
            parts.metrics.set_store_health(Health::Up);
            let store = Arc::new(Timed::new(Arc::clone(&parts.memory), on_answer).traced(spans));
            let stores = vec![store; parts.workers.runtimes().len()];
            parts.run(stores, Shared::in_memory(), "memory").await
        }
        Some(config) => {
            let (name, queue) = (config.to_string(), config.queue);
            let metrics = Arc::clone(&parts.metrics);
            let on_change = Box::new(move |health| {
                // A cluster that is only partly available still decides for the slots it has.
                store_is_up.send_replace(!matches!(health, Health::Down(_)));
                metrics.set_store_health(health);
            });
            let counted = Arc::clone(&parts.metrics);
            let on_call = OnCall::new(move |requests| counted.record_store_call(requests));
            let counted = Arc::clone(&parts.metrics);
            let on_call = on_call.and_of_damaged(move |counters| counted.record_damaged_counters(counters));
            let history = Arc::clone(&parts.redis_history);
            let sentinels = parts.metrics.sentinels()?;
            let on_call =
                on_call.and_of_sentinels(move |master, answering, all| sentinels.set_answering(master, answering, all));
            let demands = Arc::clone(&parts.demands);
            let config = config.told_to(on_call.and_of_servers(move |server, vitals| {
                demands.take_server(server, &vitals);
                history.take(server, vitals);
            }));
            let route = Route::start(config)?;
            let counted = Arc::clone(&parts.metrics);
            let desk = Arc::new(Desk::new(Box::new(move || counted.record_share_decision())));
            let shared = Shared::in_redis(&route, Arc::clone(&desk));
            let stores = RedisStore::start_over(parts.workers.runtimes(), &route, on_change).await?;
            let timed = |store: RedisStore| {
                let store = Arc::new(store.traced(spans.clone()));
                Timed::new(store, Arc::clone(&on_answer)).traced(spans.clone())
            };
            let metrics = Arc::clone(&parts.metrics);
            let bytes = parts.settings.store.local_cache_size_in_bytes;
            let denials = Arc::new(Denials::new(bytes, Box::new(move || metrics.record_denied_cache_hit())));
            let cached = |store| DeniedCache::new(timed(store), Arc::clone(&denials));
            let stores = stores.into_iter().map(cached).collect();
            // Around the cache, which so sees the hits that leases refund. Hits from a lease pass regardless of Redis'
            // answers to other requests.
            let metrics = Arc::clone(&parts.metrics);
            let stores = Leases::around(stores, queue, Box::new(move |event| metrics.record_lease(event)));
            // Around leases, since what a share admits takes nothing from them.
            let stores = Shares::around(stores, &desk);
            parts.run(stores.into_iter().map(Arc::new).collect(), shared, &name).await
        }
    }
}

/// Returns the source of the rules.
fn origin(settings: &Settings, metrics: &Metrics, hangups: Hangups) -> anyhow::Result<Origin> {
    let force_start = settings.deciding.force_start_without_initial_config;
    Ok(match settings.rules.config_type {
        ConfigType::File => Origin::Files(Files {
            loader: Loader::new(settings.rules.sources()?, settings.reading.load_options())
                .with_texts(&settings.rules.built_in),
            wrong_at_first: if force_start { WrongAtFirst::Wait } else { WrongAtFirst::End },
            hangups,
        }),
        ConfigType::GrpcXdsSotw => Origin::Management(Box::new(Management {
            options: Options {
                handshake: settings.management.tls()?.map(|tls| secure(tls, &management::TLS)).transpose()?,
                ..settings.management_server()
            },
            before_the_first: match settings.reading.failure_mode {
                _ if !force_start => BeforeTheFirst::Wait,
                FailureMode::Error => BeforeTheFirst::Fail,
                FailureMode::Open | FailureMode::Closed | FailureMode::Local => BeforeTheFirst::Serve,
            },
            metrics: metrics.xds()?,
            hangups,
        })),
    })
}

/// Reads adjustments and ends them when they expire, forever. An adjustment that did not end would keep denying or
/// allowing requests.
async fn keep<S: Store>(adjustments: Arc<Adjustments<S>>) {
    let panicked = |error: &JoinError| tracing::error!(%error, retry = ?RETRY, "a panic while updating adjustments");
    let task = || {
        let adjustments = Arc::clone(&adjustments);
        async move { match adjustments.keep().await {} }
    };
    match supervise(panicked, task).await {}
}

/// Announces this instance to the fleet, and reads the heartbeats of the others, forever.
async fn meet<S: Store>(fleet: Arc<Fleet<S>>) {
    let panicked = |error: &JoinError| {
        tracing::error!(%error, retry = ?RETRY, "a panic while exchanging heartbeats with other instances");
    };
    let task = || {
        let fleet = Arc::clone(&fleet);
        async move { match fleet.keep().await {} }
    };
    match supervise(panicked, task).await {}
}

/// Creates this instance's view of the fleet that shares its store.
fn fleet<S: Store>(
    instance: String,
    (limiter, metrics, observing): (&Arc<Limiter<S>>, &Arc<Metrics>, &Observing),
    fleet_store: FleetStore,
    health: watch::Receiver<http::Health>,
) -> Arc<Fleet<S>> {
    let state = move || match *health.borrow() {
        http::Health::Serving => ReplicaState::Ready,
        http::Health::Draining => ReplicaState::Draining,
        _ => ReplicaState::NotReady,
    };
    let candidates = observing.candidates.clone();
    Arc::new(Fleet::new(instance, (Arc::clone(limiter), Arc::clone(metrics), candidates), fleet_store, state))
}

/// Sends the first beat of this instance to the table of seats, and the others from then on. Without the first one,
/// decisions would not know of the shares of others.
async fn seated<S: Store>(
    settings: &Settings,
    instance: &str,
    (limiter, metrics): (&Arc<Limiter<S>>, &Arc<Metrics>),
    (desk, table): (Arc<Desk>, RedisSeats),
) -> Arc<Seats<S>> {
    // Two of one name would take each other for one instance.
    let id = format!("{instance}-{:016x}", fastrand::u64(..));
    let parts = (Arc::clone(limiter), Arc::clone(metrics));
    let seats = Arc::new(Seats::new(&id, parts, (Arc::clone(&desk), table), options::seats(settings)));
    seats.beat().await;
    let kept = Arc::clone(&seats);
    supervise::spawn("seats", move || {
        let kept = Arc::clone(&kept);
        async move { match kept.keep().await {} }
    });
    supervise::spawn("counters of shares", move || {
        let desk = Arc::clone(&desk);
        async move { desk.sweep().await }
    });
    seats
}

/// Returns the host name, or an empty string if it is not known.
fn host_name() -> String {
    #[cfg(unix)]
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.unwrap_or_default()
}

/// Stores for the state that the fleet shares.
struct Shared {
    adjustments: AdjustmentStore,
    fleet: FleetStore,
    claims: Claims,
    /// The table of seats, and what decisions know of it; `None` without Redis.
    seats: Option<(Arc<Desk>, RedisSeats)>,
    /// The pages of usage; `None` if they are in memory.
    usage: Option<RedisUsage>,
}

impl Shared {
    fn in_memory() -> Shared {
        let adjustments = AdjustmentStore::Memory(MemoryAdjustments::default());
        Shared { adjustments, fleet: FleetStore::Memory, claims: Claims::Alone, seats: None, usage: None }
    }

    fn in_redis(route: &Route, desk: Arc<Desk>) -> Shared {
        Shared {
            adjustments: AdjustmentStore::Redis(Box::new(RedisAdjustments::new(route))),
            fleet: FleetStore::in_redis(route),
            claims: Claims::in_redis(route),
            seats: Some((desk, RedisSeats::new(route))),
            usage: Some(RedisUsage::new(route)),
        }
    }
}

/// Removes expired counters from the memory store, and reports their number.
async fn tend(memory: Arc<MemoryStore>, metrics: Arc<Metrics>) {
    let count = async {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            metrics.set_memory(memory.len(), memory.bytes());
        }
    };
    tokio::join!(memory.sweep(), count);
}

/// All parts that do not depend on the type of the store.
struct Parts {
    settings: Settings,
    signals: Signals,
    origin: Origin,
    ports: Ports,
    workers: Workers,
    metrics: Arc<Metrics>,
    memory: Arc<MemoryStore>,
    store_is_up: watch::Receiver<bool>,
    spans: Spans,
    /// `None` if tracing is off.
    exporting: Option<Exporting>,
    events: Events,
    levels: LevelControl,
    /// ID of this process in the fleet, and in logs of requests.
    instance: String,
    /// `None` if the decision log is off.
    decision_log: Option<Arc<DecisionLog>>,
    redis_history: Arc<RedisHistory>,
    demands: Arc<Demands>,
    watchdog: Watchdog,
    announced: watch::Sender<Option<Addresses>>,
}

impl Parts {
    /// Runs the process. Each worker has a separate store handle; all handles lead to the same counters.
    async fn run<S: Store>(self, stores: Vec<Arc<S>>, shared: Shared, store_name: &str) -> anyhow::Result<()> {
        let Parts { settings, metrics, workers, ports, spans, .. } = self;
        let files = settings.tls.server()?;
        let up = Up {
            grpc: ports.grpc.address(),
            client_flags: files.as_ref().map_or("", tls::client_flags),
            http: ports.http.local_addr()?,
            debug: ports.debug.as_ref().map(TcpListener::local_addr).transpose()?,
            statistics: ports.statistics.as_ref().map(TcpListener::local_addr).transpose()?,
            store: store_name.to_owned(),
            console: options::console(&settings),
            announced: self.announced,
        };
        let about = (store_name, up.grpc.to_string(), files.is_some());
        let in_memory = matches!(shared.adjustments, AdjustmentStore::Memory(_));
        let usage = shared.usage.map_or_else(
            || UsageStore::Memory(Arc::clone(&self.memory) as _),
            |redis| UsageStore::Redis(Box::new(redis)),
        );
        let observing = observers::start(&settings, &metrics, self.decision_log, &self.instance)?;
        let notifier = observers::notifier(&settings, &metrics, shared.claims)?;
        let store = Arc::clone(stores.first().context("there is one worker at least")?);
        // Only the gRPC port has limiters with the type of the store; all that follows is compiled once.
        let store = Arc::new(AnyStore::new(store));
        let mut observers = observing.observers();
        observers.add(Arc::clone(&notifier) as _);
        let limiter = options::limiter(&settings, observers);
        let limiter = Arc::new(Limiter::new(limiter, Arc::clone(&store), self.memory, Arc::clone(&metrics)));
        let adjustments = Adjustments::new(Arc::clone(&limiter), Arc::clone(&metrics), shared.adjustments);
        let adjustments = Arc::new(adjustments.of_instance(self.instance.clone()));
        let audit = Arc::clone(adjustments.audit());
        let kept = Arc::clone(&audit);
        supervise::spawn("audit trail", move || {
            let kept = Arc::clone(&kept);
            async move { match kept.keep().await {} }
        });
        // Runs before the first decision. If the store does not answer, the task below reads again.
        let _ = adjustments.read().await;
        tokio::spawn(keep(Arc::clone(&adjustments)));
        let seats = match shared.seats {
            Some(seats) => Some(seated(&settings, &self.instance, (&limiter, &metrics), seats).await),
            None => None,
        };

        let (reporter, health) = tonic_health::server::health_reporter();
        let serving = Serving::new(reporter, options::wants(&settings)).await;
        let (followed, store_is_up) = (serving.clone(), self.store_is_up);
        supervise::spawn("store health", move || followed.clone().follow_store(store_is_up.clone()));
        let fleet = fleet(self.instance, (&limiter, &metrics, &observing), shared.fleet, serving.health());
        tokio::spawn(meet(Arc::clone(&fleet)));

        let others = grpc::others(health)?;
        let servers = stores.into_iter().map(|store| {
            let limiter = Arc::new(limiter.with_store(store));
            let service = Service::new(limiter, Arc::clone(&metrics), options::service(&settings));
            Server::new(service.traced(spans.clone()), others.clone(), options::connection(&settings))
        });
        let first_worker = workers.runtimes().into_iter().next().context("there is one worker at least")?;
        let workers = Arc::new(workers);
        let (door, opened) = Door::new(ports.grpc);
        let tls = files.map(|files| Tls::keep(files, Arc::clone(&metrics))).transpose()?;
        let grpc = grpc::serve(opened, Entrance::new(tls), Arc::clone(&workers), servers);

        let parts = http_ports::Parts { settings: &settings, limiter: &limiter, metrics: &metrics, spans: &spans };
        let (stop, stopped) = watch::channel(false);
        let json = parts.json(first_worker.clone())?;
        let history = parts.history();
        let known = (&observing, history.clone(), self.events.clone());
        let admin = parts.admin(first_worker, (adjustments, Arc::clone(&fleet)), usage, known)?;
        let admin = admin.map(|admin| admin.leveling(self.levels));
        let console = match admin {
            Some(_) => parts.console((history, self.redis_history), self.events, about)?,
            None => None,
        };
        parts.serve_debug(ports.debug, &stopped);
        parts.serve_statistics(ports.statistics, &stopped);
        let router =
            http::router(Port { health: serving.health(), metrics: Arc::clone(&metrics), json, admin, console });
        let http = http_ports::serve(ports.http, router, ports.http_connections, stopped);
        let statsd = settings.statistics.statsd(&Environment::of_process())?;
        let statsd = statsd.map(|config| Statsd::start(config, Arc::clone(&metrics)));
        let target = Target {
            limiter: Arc::clone(&limiter),
            metrics,
            serving: serving.clone(),
            door,
            up,
            in_memory,
            demands: self.demands,
        };
        let rules = tokio::spawn(reload::keep(self.origin, target));
        self.watchdog.started();
        let (exporting, decision_log) = (self.exporting, observing.decision_log);
        let ports = drain::Ports { grpc, http, stop };
        let last = drain::Last { exporting, decision_log, notifier, statsd, audit };
        Running { settings, serving, rules, ports, workers, limiter, store, seats, fleet, last }
            .until_signal(self.signals)
            .await
    }
}
