//! The running process: reads what it needs, builds the parts, announces itself, waits for a signal, and drains.

mod announce;
mod beginnings;
mod candidates;
mod descriptors;
mod drain;
mod exporting;
mod grpc;
mod listeners;
mod management;
mod options;
pub mod port;
mod reload;
mod secure;
mod signals;
mod supervise;
pub mod stream;
mod tls;
mod unix;
pub mod workers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::console::{History, RedisHistory};
use crate::decision_log::DecisionLog;
use crate::fleet::Fleet;
use crate::grpc::{Server, Service};
use crate::http::{self, Admin, JsonApi, Port};
use crate::limiter::Limiter;
use crate::metrics::Metrics;
use crate::rules::load::Loader;
use crate::rules::xds::Options;
use crate::settings::{ConfigType, Environment, Settings};
use crate::spans::{Exporting, Spans};
use crate::statsd::Statsd;
use crate::steering::Steering;
use crate::store::Store;
use crate::store::adjustments::{AdjustmentStore, MemoryAdjustments};
use crate::store::denied::{Denials, DeniedCache};
use crate::store::heartbeats::{HeartbeatStore, ReplicaState};
use crate::store::lease::Leases;
use crate::store::memory::{self, MemoryStore, SystemClock};
use crate::store::redis::{Health, OnCall, RedisAdjustments, RedisConfig, RedisHeartbeats, RedisStore, RedisUsage};
use crate::store::timed::{OnAnswer, Timed};
use crate::store::usage::{MemoryPages, UsageStore};
use crate::telemetry::Events;
use crate::wire::json::Mapping;
use announce::{Serving, Up};
use drain::Running;
use grpc::Entrance;
use listeners::Ports;
use management::{BeforeTheFirst, Management};
use reload::{Files, Origin, Target, WrongAtFirst};
use secure::secure;
use signals::{Hangups, Signals};
use supervise::{RETRY, supervise};
use tls::Tls;
use workers::Workers;

/// So many people may look at the debug port at once; the oldest goes for a new one.
const DEBUG_CONNECTIONS: usize = 8;

/// So many connections to Redis are for what replicas share: adjustments, and who is there.
const SHARED_CONNECTIONS: usize = 2;

/// How long the collector has for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// How long the last lines of the decision log may take.
const LAST_DECISIONS: Duration = Duration::from_secs(2);

/// Why the process ends where a worker has: its connections are gone, and no new ones would be served.
const WORKER_LOST: &str = "a thread that answers calls has ended by a panic, see above";

/// The port for statistics has so many connections at once: Prometheus has one, or two.
const STATISTICS_CONNECTIONS: usize = 16;

/// Serves until SIGTERM or SIGINT, and then until requests that are being decided are answered. The metrics show how
/// many log lines are lost, and the console shows the last ones.
///
/// # Errors
/// Where it cannot start: wrong settings, a port in use, wrong rules. The ports answer while the rules are loaded, and
/// health says that they are not there yet.
pub async fn serve(
    settings: Settings,
    lost_log_lines: impl Fn() -> u64 + Send + Sync + 'static,
    events: Events,
) -> anyhow::Result<()> {
    // First of all, so that no signal ends the process without its draining.
    let (signals, hangups) = (Signals::new()?, Hangups::new()?);
    let redis = settings.store.redis()?;
    let threads = options::worker_threads(&settings);
    let ports =
        Ports::open(&settings, threads, redis.as_ref().map_or(0, |redis| redis.connections + SHARED_CONNECTIONS))
            .await?;
    let workers = Workers::start(threads).context("cannot start the threads that answer calls")?;

    let metrics = Metrics::new(settings.answers.near_limit_ratio)?;
    let metrics = match settings.statistics.value_series() {
        Some(most) => metrics.with_values(most)?,
        None => metrics,
    };
    let metrics = Arc::new(match settings.statistics.prometheus() {
        Some(_) => metrics.with_exposition(settings.statistics.exposition()?),
        None => metrics,
    });
    metrics.observe_lost_log_lines(lost_log_lines)?;
    let (spans, exporting) = exporting::start(&settings.tracing, &metrics)?;
    let decision_log = exporting::decision_log(&settings.decisions, &metrics)?;
    let origin = origin(&settings, &metrics, hangups)?;
    let most_bytes = settings.requests.memory_store_size_in_bytes;
    let most_bytes = most_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let memory =
        Arc::new(MemoryStore::new(SystemClock, most_bytes.unwrap_or_else(memory::default_bytes)).keeping_usage());
    tokio::spawn(tend(Arc::clone(&memory), Arc::clone(&metrics)));
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
        events,
        decision_log,
        redis_history: Arc::default(),
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
            let shared = Shared::in_redis(&config)?;
            let metrics = Arc::clone(&parts.metrics);
            let on_change = Box::new(move |health| {
                // Of a cluster a part decides what it can.
                store_is_up.send_replace(!matches!(health, Health::Down(_)));
                metrics.set_store_health(health);
            });
            let counted = Arc::clone(&parts.metrics);
            let on_call = OnCall::new(move |requests| counted.record_store_call(requests));
            let history = Arc::clone(&parts.redis_history);
            let config = config.told_to(on_call.and_of_servers(move |server, vitals| history.take(server, vitals)));
            let stores = RedisStore::start_on(parts.workers.runtimes(), config, on_change).await?;
            let timed = |store: RedisStore| {
                let store = Arc::new(store.traced(spans.clone()));
                Timed::new(store, Arc::clone(&on_answer)).traced(spans.clone())
            };
            let metrics = Arc::clone(&parts.metrics);
            let bytes = parts.settings.store.local_cache_size_in_bytes;
            let denials = Arc::new(Denials::new(bytes, Box::new(move || metrics.record_denied_cache_hit())));
            let cached = |store| DeniedCache::new(timed(store), Arc::clone(&denials));
            let stores = stores.into_iter().map(cached).collect();
            // Before the cache, which sees what leases refund. What a lease holds passes, whatever Redis has answered
            // to other requests.
            let metrics = Arc::clone(&parts.metrics);
            let stores = Leases::around(stores, queue, Box::new(move |event| metrics.record_lease(event)));
            parts.run(stores.into_iter().map(Arc::new).collect(), shared, &name).await
        }
    }
}

/// Where the rules come from.
fn origin(settings: &Settings, metrics: &Metrics, hangups: Hangups) -> anyhow::Result<Origin> {
    let force_start = settings.deciding.force_start_without_initial_config;
    Ok(match settings.rules.config_type {
        ConfigType::File => Origin::Files(Files {
            loader: Loader::new(settings.rules.sources()?, settings.reading.load_options()),
            wrong_at_first: if force_start { WrongAtFirst::Wait } else { WrongAtFirst::End },
            hangups,
        }),
        ConfigType::GrpcXdsSotw => Origin::Management(Box::new(Management {
            options: Options {
                handshake: settings.management.tls()?.map(|tls| secure(tls, &management::TLS)).transpose()?,
                ..settings.management_server()
            },
            before_the_first: if force_start { BeforeTheFirst::Serve } else { BeforeTheFirst::Wait },
            metrics: metrics.xds()?,
            hangups,
        })),
    })
}

/// Reads adjustments and ends them in time, for ever: one that is not ended would deny, or let pass, for ever.
async fn keep<S: Store>(steering: Arc<Steering<S>>) {
    let panicked = |error: &JoinError| tracing::error!(%error, retry = ?RETRY, "a panic while adjustments are kept");
    let task = || {
        let steering = Arc::clone(&steering);
        async move { match steering.keep().await {} }
    };
    match supervise(panicked, task).await {}
}

/// Tells the other replicas of this one, and hears of them, for ever.
async fn meet<S: Store>(fleet: Arc<Fleet<S>>) {
    let panicked = |error: &JoinError| tracing::error!(%error, retry = ?RETRY, "a panic while replicas are heard");
    let task = || {
        let fleet = Arc::clone(&fleet);
        async move { match fleet.keep().await {} }
    };
    match supervise(panicked, task).await {}
}

/// This process among those that share its store.
fn fleet<S: Store>(
    limiter: &Arc<Limiter<S>>,
    metrics: &Arc<Metrics>,
    heartbeats: HeartbeatStore,
    health: watch::Receiver<http::Health>,
) -> Arc<Fleet<S>> {
    let state = move || match *health.borrow() {
        http::Health::Serving => ReplicaState::Ready,
        http::Health::Draining => ReplicaState::Draining,
        _ => ReplicaState::NotReady,
    };
    Arc::new(Fleet::new(&host_name(), (Arc::clone(limiter), Arc::clone(metrics)), heartbeats, state))
}

/// What this machine is called; empty where nobody knows.
fn host_name() -> String {
    #[cfg(unix)]
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.unwrap_or_default()
}

/// Where what all replicas share is kept.
struct Shared {
    adjustments: AdjustmentStore,
    heartbeats: HeartbeatStore,
}

impl Shared {
    fn in_memory() -> Shared {
        let adjustments = AdjustmentStore::Memory(MemoryAdjustments::default());
        Shared { adjustments, heartbeats: HeartbeatStore::Memory }
    }

    fn in_redis(config: &RedisConfig) -> anyhow::Result<Shared> {
        Ok(Shared {
            adjustments: AdjustmentStore::Redis(Box::new(RedisAdjustments::new(config.clone())?)),
            heartbeats: HeartbeatStore::Redis(Box::new(RedisHeartbeats::new(config.clone())?)),
        })
    }
}

/// Keeps the memory store free of expired counters, and reports how many there are.
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

/// Everything but the store, whose type differs.
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
    /// `None` where tracing is off.
    exporting: Option<Exporting>,
    events: Events,
    /// `None` where it is off.
    decision_log: Option<Arc<DecisionLog>>,
    redis_history: Arc<RedisHistory>,
}

impl Parts {
    /// Each worker has a store of its own; all lead to the same counters.
    async fn run<S: Store>(self, stores: Vec<Arc<S>>, shared: Shared, store_name: &str) -> anyhow::Result<()> {
        let Parts {
            settings,
            mut signals,
            origin,
            ports,
            workers,
            metrics,
            memory,
            store_is_up,
            spans,
            exporting,
            events,
            decision_log,
            redis_history,
        } = self;
        let files = settings.tls.server()?;
        let up = Up {
            grpc: ports.grpc.address()?,
            client_flags: files.as_ref().map_or("", tls::client_flags),
            http: ports.http.local_addr()?,
            debug: ports.debug.as_ref().map(TcpListener::local_addr).transpose()?,
            statistics: ports.statistics.as_ref().map(TcpListener::local_addr).transpose()?,
            store: store_name.to_owned(),
        };
        let pages: Arc<dyn MemoryPages> = Arc::clone(&memory) as _;
        let in_memory = matches!(shared.adjustments, AdjustmentStore::Memory(_));
        let (grpc_address, grpc_tls) = (up.grpc.to_string(), files.is_some());
        let store = Arc::clone(stores.first().context("there is one worker at least")?);
        let limiter =
            Arc::new(Limiter::new(options::limiter(&settings)?, Arc::clone(&store), memory, Arc::clone(&metrics)));
        if let Some(heavy_hitters) = limiter.heavy_hitters() {
            tokio::spawn(Arc::clone(heavy_hitters).tend());
        }
        let steering = Arc::new(Steering::new(Arc::clone(&limiter), Arc::clone(&metrics), shared.adjustments));
        // Before the first decision; where the store does not answer, it is asked again.
        let _ = steering.read().await;
        tokio::spawn(keep(Arc::clone(&steering)));
        if let Some(candidates) = candidates::start(&settings, &metrics)? {
            limiter.try_out(candidates);
        }
        if let Some(what_if) = options::what_if(&settings)? {
            what_if.follow().context("cannot start the thread that keeps requests to be replayed")?;
            limiter.keep_for(what_if);
        }
        let (reporter, health) = tonic_health::server::health_reporter();
        let serving = Serving::new(reporter, options::wants(&settings)).await;
        tokio::spawn(serving.clone().follow_store(store_is_up));
        let fleet = fleet(&limiter, &metrics, shared.heartbeats, serving.health());
        tokio::spawn(meet(Arc::clone(&fleet)));
        let (of_rules, of_metrics) = (Arc::clone(&limiter), Arc::clone(&metrics));
        let target = Target { limiter: of_rules, metrics: of_metrics, serving: serving.clone(), up, in_memory };
        let first_worker = workers.runtimes().into_iter().next().context("there is one worker at least")?;
        let workers = Arc::new(workers);
        let others = grpc::others(health)?;
        let tls = match files {
            Some(files) => {
                let (tls, kept) = Tls::start(files, Arc::clone(&metrics))?;
                tokio::spawn(kept);
                Some(tls)
            }
            None => None,
        };
        let servers = stores.into_iter().map(|store| {
            let limiter = Arc::new(limiter.with_store(store));
            let service = Service::new(limiter, Arc::clone(&metrics), options::service(&settings));
            let service = service.traced(spans.clone()).logged(decision_log.clone());
            Server::new(service, others.clone(), options::connection(&settings))
        });
        let json = match settings.listeners.json_api {
            true => {
                let service = Service::new(Arc::clone(&limiter), Arc::clone(&metrics), options::service(&settings));
                let service = service.traced(spans.clone()).logged(decision_log.clone());
                let most_bytes = settings.requests.max_message_bytes as usize;
                Some(JsonApi::new(service, first_worker.clone(), most_bytes, Mapping::new()?))
            }
            false => None,
        };
        let mut grpc = grpc::serve(ports.grpc, Entrance::new(tls), Arc::clone(&workers), servers);
        let (stop, mut stopped) = watch::channel(false);
        let admin = match settings.listeners.admin_tokens()? {
            None => None,
            Some(tokens) => {
                let usage = match settings.store.redis()? {
                    Some(redis) => UsageStore::Redis(Box::new(RedisUsage::new(redis)?)),
                    None => UsageStore::Memory(pages),
                };
                let (limiter, shared) = ((Arc::clone(&limiter), first_worker), (steering, Arc::clone(&fleet)));
                let admin = Admin::new(limiter, shared, usage, tokens, settings.store.redis_timeout);
                Some(admin.showing(settings.decisions.reader_values()?))
            }
        };
        if let Some(port) = ports.debug {
            let router = http::debug_router(Arc::clone(&limiter), Arc::clone(&metrics));
            let permits = Arc::new(Semaphore::new(DEBUG_CONNECTIONS));
            let mut stopped = stopped.clone();
            tokio::spawn(http::serve(port, router, permits, async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            }));
        }
        if let Some(port) = ports.statistics {
            let statistics = &settings.statistics;
            if let Some(path) = statistics.missing_mapping() {
                tracing::warn!(
                    path = %path.display(),
                    "PROMETHEUS_MAPPER_YAML names a file that is not there: the built-in names stay"
                );
            }
            let router = http::statistics_router(&statistics.prometheus_path, Arc::clone(&metrics));
            let permits = Arc::new(Semaphore::new(STATISTICS_CONNECTIONS));
            let mut stopped = stopped.clone();
            tokio::spawn(http::serve(port, router, permits, async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            }));
        }
        let statsd = settings.statistics.statsd(&Environment::of_process())?;
        let statsd = statsd.map(|config| Statsd::start(config, Arc::clone(&metrics)));
        let console = match (&admin, settings.listeners.console) {
            (Some(_), true) => {
                let history = Arc::new(History::default());
                tokio::spawn(Arc::clone(&history).follow(Arc::clone(&metrics)));
                let redis = settings.store.redis()?;
                if redis.is_some() {
                    tokio::spawn(Arc::clone(&redis_history).follow(Arc::clone(&metrics)));
                }
                let about = http::About {
                    store: store_name.to_owned(),
                    redis: redis.map(|redis| (redis, redis_history)),
                    shadow_mode: settings.deciding.shadow_mode,
                    grpc: grpc_address,
                    grpc_tls,
                };
                Some(http::Console::new(history, events, about))
            }
            _ => None,
        };
        let router = http::router(Port { health: serving.health(), metrics, json, admin, console });
        let permits = Arc::new(Semaphore::new(ports.http_connections));
        let mut http = tokio::spawn(http::serve(ports.http, router, permits, async move {
            // An error means that the sender is gone: stop then, too.
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        let mut rules = tokio::spawn(reload::keep(origin, target));

        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = workers.lost() => bail!(WORKER_LOST),
            // It ends only where the first rules are wrong.
            ended = &mut rules => match ended?? {},
            // Neither ends by itself.
            ended = &mut grpc => bail!("the gRPC port takes no more connections: {ended:?}"),
            ended = &mut http => bail!("the HTTP port takes no more connections: {ended:?}"),
        };
        let first = Instant::now();
        tracing::info!(signal, drain = ?settings.listeners.drain_delay, "draining");
        let timeout = settings.listeners.shutdown_timeout;
        let lost = Arc::clone(&workers);
        let log = Arc::clone(&limiter);
        let running = Running { settings, serving, rules, grpc, http, stop, workers, limiter, store };
        let drained = async {
            let answered = running.drain().await;
            fleet.leave().await;
            if let Some(exporting) = exporting {
                exporting.end(LAST_SPANS).await;
            }
            if let Some(decision_log) = &decision_log {
                decision_log.end(LAST_DECISIONS).await;
            }
            answered
        };
        tokio::select! {
            answered = drained => {
                if let Some(statsd) = statsd {
                    statsd.finish().await;
                }
                log.flush_log();
                match answered? {
                    true => tracing::info!("every request is answered: bye"),
                    false => tracing::warn!(after = ?timeout, "connections are still open: closing them"),
                }
            }
            signal = signals.after(first) => {
                log.flush_log();
                tracing::warn!(signal, "a second signal: ending at once");
            }
            () = lost.lost() => bail!(WORKER_LOST),
        }
        Ok(())
    }
}
