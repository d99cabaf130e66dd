//! Starts the observers that the settings ask for, and the tasks that run them.

use std::sync::Arc;

use anyhow::Context as _;

use super::secure::{Words, secure};
use super::{candidates, options};
use crate::metrics::Metrics;
use crate::notify::{Notifier, Webhook};
use crate::observe::Observing;
use crate::observe::decision_log::DecisionLog;
use crate::settings::Settings;
use crate::shared::claims::Claims;
use crate::supervise;

const WEBHOOK: Words = Words {
    tls: "TLS with the webhook (NOTIFY_WEBHOOK_URL)",
    name: "NOTIFY_WEBHOOK_URL",
    plain_text: "use an http:// URL in NOTIFY_WEBHOOK_URL, or another port",
    untrusted: "an authority in NOTIFY_WEBHOOK_TLS_CACERT must have signed it",
    wrong_name: "use a host name from the certificate in NOTIFY_WEBHOOK_URL",
    refused: "it wants a certificate of its clients, which Tollgate does not send",
};

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

/// Starts to tell people of the marks that counters reach. Rules without `notify` give it nothing to do.
///
/// # Errors
/// If the settings or the files are invalid.
pub(super) fn notifier(settings: &Settings, metrics: &Metrics, claims: Claims) -> anyhow::Result<Arc<Notifier>> {
    let handshake = settings.notify.tls().map(|tls| secure(tls, &WEBHOOK)).transpose()?;
    let webhook = settings.notify.webhook()?.map(|(url, secret)| Webhook::new(url.clone(), &secret, handshake));
    let counts = metrics.notices()?;
    let on_notice = Box::new(move |fate| counts.record(fate));
    let notifier = Arc::new(Notifier::new(claims, webhook, settings.notice_values()?, on_notice));
    let running = Arc::clone(&notifier);
    supervise::spawn("notices", move || Arc::clone(&running).run());
    Ok(notifier)
}
