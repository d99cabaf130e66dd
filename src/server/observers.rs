//! Starts the observers that the settings ask for, and the tasks that run them.

use std::sync::Arc;

use anyhow::Context as _;

use super::{candidates, options};
use crate::metrics::Metrics;
use crate::observe::Observing;
use crate::observe::decision_log::DecisionLog;
use crate::settings::Settings;
use crate::supervise;

/// Starts the observers with their tasks and threads. The decision log is started earlier, because its errors must end
/// the process before anything else is created.
///
/// # Errors
/// If the system provides no thread.
pub(super) fn start(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    decision_log: Option<Arc<DecisionLog>>,
    instance: &str,
) -> anyhow::Result<Observing> {
    let heavy_hitters = options::heavy_hitters(settings)?;
    if let Some(heavy_hitters) = &heavy_hitters {
        let tended = Arc::clone(heavy_hitters);
        supervise::spawn("heavy hitters", move || Arc::clone(&tended).tend());
    }
    let what_if = options::what_if(settings, instance)?;
    if let Some(what_if) = &what_if {
        what_if.follow().context("cannot start the thread that keeps requests to be replayed")?;
        let (requests, sample) = (settings.decisions.what_if_requests, settings.decisions.what_if_sample);
        tracing::info!(requests, sample, "recent requests are kept for what-if and previews of adjustments");
    }
    Ok(Observing { heavy_hitters, decision_log, candidates: candidates::start(settings, metrics)?, what_if })
}
