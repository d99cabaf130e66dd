//! The running process: builds the parts from the settings, opens the ports, reloads the rules, and drains on a signal.

pub mod accept;
pub mod workers;

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch as latest};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::{self, Admin};
use crate::grpc::{
    ConnectionOptions, HeaderFormat, HeaderNames, Headers, RequestLimits, Server, Service, ServiceOptions,
};
use crate::limiter::{Limiter, LimiterOptions};
use crate::metrics::Metrics;
use crate::plan::PlanOptions;
use crate::rules::Rules;
use crate::rules::load::{self, Loaded, Sources};
use crate::rules::report::{Problem, RulesError};
use crate::rules::watch::{self, Fingerprint};
use crate::settings::Settings;
use crate::store::Store;
use crate::store::denied::{Denials, DeniedCache};
use crate::store::lease::Leases;
use crate::store::memory::MemoryStore;
use crate::store::redis::RedisStore;
use crate::store::timed::{OnAnswer, Timed};
use crate::wire;
use workers::Workers;

/// The service's name in gRPC's health check; the empty name means the same.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Why the process ends where a worker has: its connections are gone, and no new ones would be served.
const WORKER_LOST: &str = "a thread that answers calls has ended by a panic, see above";

/// Serves until SIGTERM or SIGINT, and then until requests on their way are answered.
///
/// # Errors
/// Where it cannot start: wrong settings, wrong rules, a port in use.
pub async fn serve(settings: Settings) -> anyhow::Result<()> {
    settings.check_headers()?;
    settings.admin_token()?;
    // First of all, so that no signal ends the process without its draining.
    let signals = Signals::new()?;
    let sources = settings.rules.sources()?;
    // Taken before the rules are read: a change from here on is noticed.
    let fingerprint = Fingerprint::of(&sources);
    let loaded = load_first(&sources, &settings)?;
    let redis = settings.store.redis()?;
    let ports = Ports::open(&settings).await?;
    let workers = Workers::start(worker_threads(&settings)).context("cannot start the threads that answer calls")?;

    let metrics = Arc::new(Metrics::new(settings.near_limit_ratio)?);
    if loaded.is_none() {
        metrics.record_load_error();
    }
    let memory = Arc::new(MemoryStore::default());
    tokio::spawn(tend(Arc::clone(&memory), Arc::clone(&metrics)));
    let parts = Parts { settings, signals, sources, fingerprint, loaded, ports, workers, metrics, memory };
    let metrics = Arc::clone(&parts.metrics);
    let on_answer: OnAnswer = Arc::new(move |error, took| metrics.record_store(error, took));
    match redis {
        None => {
            parts.metrics.set_store_up(true);
            let store = Arc::new(Timed::new(Arc::clone(&parts.memory), on_answer));
            let stores = vec![store; parts.workers.runtimes().len()];
            parts.run(stores, "memory").await
        }
        Some(config) => {
            let (name, queue) = (config.to_string(), config.queue);
            let metrics = Arc::clone(&parts.metrics);
            let on_change = Box::new(move |up| metrics.set_store_up(up));
            let stores = RedisStore::start_on(parts.workers.runtimes(), config, on_change).await?;
            let timed = |store| Timed::new(Arc::new(store), Arc::clone(&on_answer));
            let metrics = Arc::clone(&parts.metrics);
            let bytes = usize::try_from(parts.settings.store.local_cache_size_in_bytes).unwrap_or(usize::MAX);
            let denials = Arc::new(Denials::new(bytes, Box::new(move || metrics.record_denied_cache_hit())));
            let cached = |store| DeniedCache::new(timed(store), Arc::clone(&denials));
            let stores = stores.into_iter().map(cached).collect();
            // Before the cache, which sees what leases give back: and what is held passes, whatever Redis has said to others.
            let metrics = Arc::clone(&parts.metrics);
            let stores = Leases::around(stores, queue, Box::new(move || metrics.record_lease()));
            parts.run(stores.into_iter().map(Arc::new).collect(), &name).await
        }
    }
}

/// The rules to start with; `None` where they are wrong and the process shall start all the same.
fn load_first(sources: &Sources, settings: &Settings) -> anyhow::Result<Option<Rules>> {
    match load::load(sources, &settings.reading.load_options()) {
        Ok(Loaded { rules, warnings }) => {
            warn_of(&warnings);
            Ok(Some(rules))
        }
        Err(error) if settings.force_start_without_initial_config => {
            tracing::error!("the rules are refused, not serving until they are right:\n{error}");
            Ok(None)
        }
        Err(error) => bail!("the rules are refused:\n{error}"),
    }
}

fn warn_of(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Keeps the memory store free of expired counters, and tells how many there are.
async fn tend(memory: Arc<MemoryStore>, metrics: Arc<Metrics>) {
    let count = async {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            metrics.set_memory_counters(memory.len());
        }
    };
    tokio::join!(memory.sweep(), count);
}

/// The listeners, open before anything says so.
struct Ports {
    grpc: TcpListener,
    http: TcpListener,
}

impl Ports {
    async fn open(settings: &Settings) -> anyhow::Result<Ports> {
        let bind = async |host: &str, port, settings: &str| {
            let listener = TcpListener::bind((host, port)).await;
            listener.with_context(|| format!("cannot listen on {host}:{port} ({settings})"))
        };
        Ok(Ports {
            grpc: bind(&settings.grpc_host, settings.grpc_port, "GRPC_HOST, GRPC_PORT").await?,
            http: bind(&settings.host, settings.port, "HOST, PORT").await?,
        })
    }
}

/// Everything but the store, whose type differs.
struct Parts {
    settings: Settings,
    signals: Signals,
    sources: Sources,
    fingerprint: Fingerprint,
    loaded: Option<Rules>,
    ports: Ports,
    workers: Workers,
    metrics: Arc<Metrics>,
    memory: Arc<MemoryStore>,
}

impl Parts {
    /// Each worker has a store of its own; all lead to the same counters.
    async fn run<S: Store>(self, stores: Vec<Arc<S>>, store_name: &str) -> anyhow::Result<()> {
        let Parts { settings, mut signals, sources, fingerprint, loaded, ports, workers, metrics, memory } = self;
        let options = LimiterOptions {
            plan: PlanOptions {
                key_prefix: settings.store.cache_key_prefix.clone(),
                shadow_mode: settings.shadow_mode,
                expected_replicas: settings.expected_replicas,
            },
            overload: settings.store.overload,
            max_held_requests: settings.max_held_requests as usize,
        };
        let first = Arc::clone(stores.first().context("there is one worker at least")?);
        let limiter = Arc::new(Limiter::new(options, Arc::clone(&first), memory, Arc::clone(&metrics)));
        let (reporter, health) = tonic_health::server::health_reporter();
        let serving = Serving { reporter, http: Arc::default() };
        serving.set(false).await;

        let grpc_address = ports.grpc.local_addr()?;
        let example = loaded.as_ref().and_then(|rules| example(rules, grpc_address));
        let (rules, domains) = loaded.as_ref().map_or((0, 0), |rules| (rules.rules().len(), rules.domains()));
        if let Some(rules) = loaded {
            limiter.put_in_force(rules);
            serving.set(true).await;
        }
        let (changes, changed) = mpsc::unbounded_channel();
        let watch = watch::watch(sources, settings.reading.load_options(), fingerprint, move |change| {
            // The receiver is gone only when the process ends.
            let _ = changes.send(change);
        });
        let reload = reload(changed, Arc::clone(&limiter), Arc::clone(&metrics), serving.clone());
        let reload = tokio::spawn(async { tokio::join!(watch, reload) });

        let (stop, stopped) = latest::channel(false);
        let stop_signal = || {
            let mut stopped = stopped.clone();
            async move {
                // An error means that the sender is gone: stop then, too.
                let _ = stopped.wait_for(|stop| *stop).await;
            }
        };
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(wire::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let others = Routes::new(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare();
        let servers: Arc<[_]> = stores
            .into_iter()
            .map(|store| {
                let limiter = Arc::new(limiter.with_store(store));
                let service = Service::new(limiter, Arc::clone(&metrics), service_options(&settings));
                Arc::new(Server::new(service, others.clone(), connection_options(&settings)))
            })
            .collect();
        let workers = Arc::new(workers);
        let accepting = tokio::spawn(accept::accept(ports.grpc, {
            let workers = Arc::clone(&workers);
            move |connection| {
                workers.run(|worker, stop| {
                    let server = Arc::clone(&servers[worker]);
                    async move { server.serve(connection, stop).await }
                });
            }
        }));

        let http_address = ports.http.local_addr()?;
        let router = admin::router(Admin {
            serving: Arc::clone(&serving.http),
            metrics,
            limiter: Arc::clone(&limiter),
            token: settings.admin_token()?,
            store_timeout: settings.store.redis_timeout,
        });
        let http = axum::serve(ports.http, router).with_graceful_shutdown(stop_signal());
        let http = tokio::spawn(http.into_future());

        tracing::info!(
            grpc = %grpc_address, http = %http_address, store = store_name, rules, domains,
            version = env!("CARGO_PKG_VERSION"), "tollgate is up"
        );
        if let Some(example) = example {
            tracing::info!("try: {example}");
        }

        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = workers.lost() => bail!(WORKER_LOST),
        };
        tracing::info!(signal, drain = ?settings.drain_delay, "draining");
        // No reload shall call it serving again.
        reload.abort();
        let _ = reload.await;
        serving.set(false).await;
        let drain = async {
            tokio::time::sleep(settings.drain_delay).await;
            accepting.abort();
            let _ = accepting.await;
            stop.send_replace(true);
            tokio::spawn(async move {
                // Who is held for longer is answered at least before connections are closed.
                tokio::time::sleep(settings.shutdown_timeout / 10 * 9).await;
                limiter.release_held();
            });
            let finished =
                tokio::time::timeout(settings.shutdown_timeout, async { tokio::join!(workers.drain(), http) }).await;
            first.close(Instant::now() + settings.store.redis_timeout).await;
            finished
        };
        tokio::select! {
            finished = drain => match finished {
                Ok(((), http)) => {
                    http??;
                    tracing::info!("every request is answered: bye");
                }
                Err(_) => tracing::warn!(after = ?settings.shutdown_timeout, "connections are still open: closing them"),
            },
            signal = signals.next() => tracing::warn!(signal, "a second signal: ending at once"),
            () = workers.lost() => bail!(WORKER_LOST),
        }
        Ok(())
    }
}

fn worker_threads(settings: &Settings) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    settings.worker_threads.map_or_else(cores, usize::from)
}

fn connection_options(settings: &Settings) -> ConnectionOptions {
    ConnectionOptions {
        max_age: settings.grpc_max_connection_age,
        max_age_grace: settings.grpc_max_connection_age_grace,
        max_message_bytes: settings.max_message_bytes as usize,
        max_concurrent_streams: settings.grpc_max_concurrent_streams,
    }
}

fn service_options(settings: &Settings) -> ServiceOptions {
    let headers = match (settings.limit_response_headers_enabled, settings.limit_response_headers_format) {
        (false, _) => Headers::Off,
        (true, HeaderFormat::Ietf) => Headers::Ietf,
        (true, HeaderFormat::Separate) => Headers::Separate(HeaderNames {
            limit: settings.limit_limit_header.clone(),
            remaining: settings.limit_remaining_header.clone(),
            reset: settings.limit_reset_header.clone(),
        }),
    };
    ServiceOptions {
        limits: RequestLimits {
            descriptors: settings.max_descriptors as usize,
            entries: settings.max_entries as usize,
            key_bytes: settings.max_key_bytes as usize,
            value_bytes: settings.max_value_bytes as usize,
        },
        headers,
        store_timeout: settings.store.redis_timeout,
    }
}

/// What the world is told about whether this process answers by rules.
#[derive(Clone)]
struct Serving {
    reporter: HealthReporter,
    http: Arc<AtomicBool>,
}

impl Serving {
    async fn set(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("", status).await;
        self.reporter.set_service_status(SERVICE, status).await;
        self.http.store(serving, Ordering::Relaxed);
    }
}

/// Puts changed rules in force; wrong ones leave the old in force.
async fn reload<S: Store>(
    mut changed: mpsc::UnboundedReceiver<Result<Loaded, RulesError>>,
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    serving: Serving,
) {
    while let Some(change) = changed.recv().await {
        match change {
            Ok(Loaded { rules, warnings }) => {
                warn_of(&warnings);
                let (count, domains) = (rules.rules().len(), rules.domains());
                // To compare a hundred thousand rules with the old ones, and to let those go, takes a while.
                let limiter = Arc::clone(&limiter);
                if tokio::task::spawn_blocking(move || limiter.put_in_force(rules)).await.is_ok() {
                    tracing::info!(rules = count, domains, "new rules are in force");
                    serving.set(true).await;
                }
            }
            Err(error) => refuse(&error, &metrics),
        }
    }
}

fn refuse(error: &RulesError, metrics: &Metrics) {
    metrics.record_load_error();
    tracing::error!("changed rules are refused, the old ones stay in force:\n{error}");
}

/// A command that asks this process about the first of its rules.
fn example(rules: &Rules, grpc: SocketAddr) -> Option<String> {
    let rule = rules.rules().first()?;
    let entries: Vec<String> = rule
        .path
        .split('|')
        .map(|step| {
            let step = step.replace('*', "x");
            if step.contains('=') { step } else { format!("{step}=ann") }
        })
        .collect();
    let address = match grpc.port() {
        8081 => String::new(),
        port => format!(" --address localhost:{port}"),
    };
    // As it was started, because it need not be on the path.
    let program = std::env::args().next().unwrap_or_else(|| "tollgate".into());
    Some(format!("{program} ask{address} --domain {} {}", rule.domain, entries.join(" ")))
}

/// The signals to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next, and tells its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
