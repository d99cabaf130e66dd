//! Converts settings to the options of the parts of the process.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use super::announce::Wants;
use super::descriptors::Shares;
use crate::engine::plan::PlanOptions;
use crate::grpc::{
    ConnectionOptions, HeaderFormat, HeaderNames, Headers, PartitionKeys, RequestLimits, ServiceOptions, Upstream,
};
use crate::http::Availability;
use crate::limiter::LimiterOptions;
use crate::observe::Observers;
use crate::observe::candidates::CandidateOptions;
use crate::observe::heavy_hitters::HeavyHitters;
use crate::observe::what_if::{self, WhatIf, WhatIfOptions};
use crate::proposal::{Files, Reading};
use crate::settings::{ConfigType, LogPlace, Settings, SettingsError};
use crate::shared::seats::SeatTerms;
use crate::sources::files::load::Sources;
use crate::sources::files::promote::Promotion;
use crate::store::memory::SystemClock;

/// Time that the requests kept for what-if cover at least, where possible.
const WHAT_IF_COVERS: Duration = Duration::from_secs(5 * 60);

/// Returns whether the console is served, and if not, why.
pub(super) fn console(settings: &Settings) -> Availability {
    match (settings.listeners.admin_api, settings.listeners.console) {
        (false, _) => Availability::NO_ADMIN_API,
        (true, false) => Availability::NO_CONSOLE,
        (true, true) => Availability::On,
    }
}

pub(super) fn worker_threads(settings: &Settings) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
    settings.listeners.worker_threads.map_or_else(cores, usize::from)
}

pub(super) fn connections(settings: &Settings) -> Shares {
    Shares { grpc: settings.listeners.grpc_max_connections as usize, http: settings.listeners.max_connections as usize }
}

pub(super) fn wants(settings: &Settings) -> Wants {
    Wants {
        domain: settings.deciding.healthy_with_at_least_one_config_loaded,
        store: settings.store.redis_health_check_active_connection,
    }
}

pub(super) fn limiter(settings: &Settings, observers: Observers) -> LimiterOptions {
    LimiterOptions {
        plan: plan(settings),
        overload: settings.store.overload,
        max_delayed_requests: settings.requests.max_delayed_requests as usize,
        observers,
    }
}

/// Returns the counter of the heaviest keys, or `None` if it is off.
pub(super) fn heavy_hitters(settings: &Settings) -> Result<Option<Arc<HeavyHitters>>, SettingsError> {
    let heavy_hitters = |values| Arc::new(HeavyHitters::new(values, settings.answers.near_limit_ratio));
    Ok(settings.decisions.heavy_hitters()?.map(heavy_hitters))
}

fn plan(settings: &Settings) -> PlanOptions {
    PlanOptions {
        key_prefix: settings.store.cache_key_prefix.clone(),
        counter_keys: settings.store.counter_keys(),
        ..settings.deciding.plan_options()
    }
}

pub(super) fn candidates(settings: &Settings, sources: &Sources) -> Result<CandidateOptions, SettingsError> {
    Ok(CandidateOptions {
        files: {
            let texts = settings.candidates.files.built_in.iter().map(|text| &text.name);
            sources.paths.iter().chain(texts).map(|path| path.display().to_string()).collect()
        },
        plan: plan(settings),
        replicas: replicas(settings)?,
        sample: settings.candidates.candidate_sample,
        most_bytes: settings.candidates.candidate_store_size_in_bytes as usize,
        values: settings.decisions.reader_values()?,
    })
}

/// Returns the number of processes that share each limit, as each compares candidates for itself.
fn replicas(settings: &Settings) -> Result<u32, SettingsError> {
    // In memory each process admits the whole limit.
    Ok(if settings.store.redis()?.is_some() { settings.deciding.expected_replicas } else { 1 })
}

/// Returns what the settings say about shares of limits.
pub(super) fn seats(settings: &Settings) -> SeatTerms {
    SeatTerms { seats: settings.deciding.expected_replicas, timeout: settings.store.share_timeout }
}

/// Returns how the process reads rules.
pub(super) fn reading(settings: &Settings) -> Reading {
    let files = match settings.rules.config_type {
        ConfigType::File => Files::OnDisk(settings.rules.built_in.clone().into()),
        ConfigType::GrpcXdsSotw => Files::None,
    };
    Reading { options: settings.reading.load_options(), files }
}

/// Returns how a request may put candidate rules in force, or `None` if none may, or if there are no two files to
/// exchange.
pub(super) fn promotion(settings: &Settings) -> Option<Promotion> {
    Some(Promotion {
        within: Some(settings.candidates.promote_folder.clone()?),
        rules: settings.rules.sources().ok()?,
        candidates: settings.candidates.files.sources()?,
        served: Vec::new(),
        options: settings.reading.load_options(),
    })
}

/// Returns the store of requests for replays, or `None` if it is off, or if nobody may ask.
pub(super) fn what_if(settings: &Settings, instance: &str) -> Result<Option<Arc<WhatIf>>, SettingsError> {
    let requests = settings.decisions.what_if_requests as usize;
    let options = || {
        Ok(WhatIfOptions {
            requests,
            sample: settings.decisions.what_if_sample,
            covers: WHAT_IF_COVERS,
            plan: plan(settings),
            replicas: replicas(settings)?,
            values: settings.decisions.reader_values()?,
            instance: instance.to_owned(),
            longest: what_if::LONGEST,
        })
    };
    (requests > 0 && settings.listeners.admin_api)
        .then(|| Ok(Arc::new(WhatIf::new(options()?, SystemClock))))
        .transpose()
}

pub(super) fn connection(settings: &Settings) -> ConnectionOptions {
    ConnectionOptions {
        max_age: settings.listeners.grpc_max_connection_age,
        max_age_grace: settings.listeners.grpc_max_connection_age_grace,
        max_message_bytes: settings.requests.max_message_bytes as usize,
        max_concurrent_streams: settings.listeners.grpc_max_concurrent_streams,
        transport: settings.listeners.grpc_transport,
    }
}

pub(super) fn service(settings: &Settings) -> ServiceOptions {
    let headers =
        match (settings.answers.limit_response_headers_enabled, settings.answers.limit_response_headers_format) {
            (false, _) => Headers::Off,
            (true, HeaderFormat::Ietf) => Headers::Ietf(match settings.answers.limit_response_headers_partition_key {
                true => PartitionKeys::Shown,
                false => PartitionKeys::Hidden,
            }),
            (true, HeaderFormat::Separate) => Headers::Separate(HeaderNames {
                limit: settings.answers.limit_limit_header.clone(),
                remaining: settings.answers.limit_remaining_header.clone(),
                reset: settings.answers.limit_reset_header.clone(),
            }),
        };
    ServiceOptions {
        limits: RequestLimits {
            descriptors: settings.requests.max_descriptors as usize,
            entries: settings.requests.max_entries as usize,
            key_bytes: settings.requests.max_key_bytes as usize,
            value_bytes: settings.requests.max_value_bytes as usize,
        },
        headers,
        decided_by_header: settings.answers.limit_decided_by_header.clone(),
        dynamic_metadata: settings.answers.response_dynamic_metadata,
        upstream: Upstream {
            soft: settings.answers.upstream_headers_enabled.then_some(settings.answers.soft_limit),
            remaining_header: settings.answers.upstream_remaining_header.clone(),
            soft_header: settings.answers.upstream_soft_header.clone(),
        },
        store_timeout: settings.store.redis_timeout,
        request_ids: settings.decisions.decision_log != LogPlace::Off,
    }
}
