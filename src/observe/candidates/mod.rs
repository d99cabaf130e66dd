//! Candidate rules: evaluates them on live traffic beside the rules in force, and reports where the decisions differ.
//!
//! ```text
//! worker ─▶ sample       selects keys by their hash, the same on every instance, and copies their requests
//! thread ─▶ trial        decides each request by the rules in force and by the candidates, on one clock
//! people ◀─ report       for `GET /candidates`
//! ```
//!
//! Each set of rules counts in its own memory, which is empty when the trial starts. So a difference comes from the
//! rules, not from Redis or from earlier counts. Adjustments in force apply to both sets. No answer depends on a trial,
//! and it does not touch the service's counters.

mod report;
mod trial;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::adjustment::InForce;
use crate::engine::clock::Clock;
use crate::engine::descriptor::Request;
use crate::engine::plan::{CounterKeys, PlanOptions};
use crate::engine::rules::Rules;
use crate::engine::rules::diff::Summary;
use crate::engine::rules::report::RulesError;
use crate::metrics::CandidateMetrics;
use crate::observe::redaction::Values;
use crate::observe::sample::{self, Queue, RETRY, Sampling, Share, Shared, Waiting};
use crate::observe::watch::{Observed, Observer, Watch};
use trial::{Room, Trial};

pub use report::Report;

/// Interval at which differences are logged.
const TELL: Duration = Duration::from_secs(60);
/// The most memory of queued requests, in bytes.
const MOST_QUEUED_BYTES: usize = 4 << 20;

/// Options of all trials.
#[derive(Clone, Debug)]
pub struct CandidateOptions {
    /// Paths of the candidate files, for display.
    pub files: Vec<String>,
    /// Options for planning requests. Global shadow mode is ignored, to let only the rules decide.
    pub plan: PlanOptions,
    /// Number of instances that share the traffic of a key. Each compares its share of every limit.
    pub replicas: u32,
    /// The share of sampled keys, from 0 to 1.
    pub sample: f64,
    /// The most memory of the counters of both sets of rules, in bytes.
    pub most_bytes: usize,
    /// How examples show the values of descriptors.
    pub values: Values,
}

/// Candidate rules and the results of their trial.
pub struct Candidates {
    options: CandidateOptions,
    metrics: CandidateMetrics,
    /// Requests sampled by the rules in force and the candidates, in this order.
    queue: Queue<2>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_force: Option<Shared>,
    candidates: Option<Shared>,
    trial: Option<Trial>,
    /// The error in the present files.
    refused: Option<String>,
    /// The numbers that were last logged for this trial: newly denied, newly allowed.
    told: (u64, u64),
}

impl Candidates {
    /// Creates an idle comparison. It starts once both sets of rules are set.
    pub fn new(options: CandidateOptions, clock: impl Clock, metrics: CandidateMetrics) -> Candidates {
        let plan = PlanOptions { shadow_mode: false, counter_keys: CounterKeys::default(), ..options.plan };
        Candidates {
            options: CandidateOptions { plan, ..options },
            metrics,
            queue: Queue::new(clock, MOST_QUEUED_BYTES),
            state: Mutex::default(),
        }
    }

    /// Queues a copy of a request that was decided with these adjustments, if its keys are sampled.
    pub fn offer(&self, request: &Request, adjustments: Option<&Arc<InForce>>) {
        self.queue.offer(request, adjustments);
    }

    /// Sets the rules in force. A trial continues if their content is unchanged, and restarts if it differs.
    pub fn put_in_force(&self, rules: Shared) {
        let mut state = self.state.lock();
        let version = (*rules).as_ref().version();
        let is_same = state.in_force.as_deref().is_some_and(|old| old.as_ref().version() == version);
        state.in_force = Some(Arc::clone(&rules));
        match &mut state.trial {
            Some(trial) if is_same => {
                let [_, candidates] = trial.sampling.rules();
                trial.sampling = Arc::new(trial.sampling.with_rules([rules, Arc::clone(candidates)]));
                self.queue.sample(Arc::clone(&trial.sampling));
            }
            _ => self.begin(&mut state),
        }
    }

    /// Sets the candidates after their files changed, and starts a trial. If they are invalid, the error is logged and
    /// the previous trial continues.
    pub fn settle(&self, loaded: Result<Rules, RulesError>) {
        let mut state = self.state.lock();
        match loaded {
            Ok(rules) => {
                state.refused = None;
                state.candidates = Some(Arc::new(rules));
                self.begin(&mut state);
            }
            Err(error) => {
                match state.candidates {
                    Some(_) => tracing::error!(
                        "new candidate rules are rejected, the previous ones are still compared:\n{error}"
                    ),
                    None => tracing::error!("the candidate rules are rejected, nothing is compared:\n{error}"),
                }
                state.refused = Some(error.to_string());
            }
        }
    }

    /// Starts a trial if both sets of rules are set.
    fn begin(&self, state: &mut State) {
        let (Some(in_force), Some(candidates)) = (&state.in_force, &state.candidates) else { return };
        let summary = Summary::of((**in_force).as_ref(), (**candidates).as_ref());
        let (rules, domains) = ((**candidates).as_ref().rules().len(), (**candidates).as_ref().domains());
        tracing::info!(rules, domains, "comparing candidate rules with the rules in force: {}", summary.totals);
        let share = Share::new(self.options.sample);
        let sampling = Arc::new(Sampling::new(share, [Arc::clone(in_force), Arc::clone(candidates)]));
        self.metrics.begin(share.as_ratio());
        self.queue.sample(Arc::clone(&sampling));
        state.trial = Some(Trial::new(sampling, &self.options, summary, self.queue.now()));
        state.told = (0, 0);
    }

    /// Decides the queued requests by both sets of rules.
    pub fn evaluate(&self) {
        let Waiting { requests, dropped, .. } = self.queue.take();
        self.metrics.record_dropped(dropped);
        let mut state = self.state.lock();
        let Some(trial) = &mut state.trial else { return };
        for copied in &requests {
            match trial.compare(copied, &self.metrics) {
                Room::Enough => {}
                Room::UsedUp => {
                    trial.halve();
                    let sample = trial.sampling.share().as_ratio();
                    tracing::warn!(
                        sample,
                        "no room for the counters of candidate rules: the comparison restarts with half of the sample"
                    );
                    self.metrics.set_sample(sample);
                    self.queue.sample(Arc::clone(&trial.sampling));
                }
            }
        }
    }

    /// Starts a thread that evaluates until this object is dropped.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn follow(self: &Arc<Self>) -> io::Result<()> {
        let panicked = || tracing::error!(retry = ?RETRY, "a panic while comparing candidate rules");
        let mut told = Instant::now();
        sample::follow(self, "candidates", panicked, move |candidates| {
            candidates.evaluate();
            if told.elapsed() >= TELL {
                told = Instant::now();
                candidates.tell();
            }
        })
    }

    /// Logs differences that were not logged before.
    fn tell(&self) {
        let mut state = self.state.lock();
        let Some(trial) = &state.trial else { return };
        let [compared, newly_denied, newly_allowed] = trial.comparison.counts();
        let now = (newly_denied, newly_allowed);
        if now != std::mem::replace(&mut state.told, now) {
            tracing::info!(compared, newly_denied, newly_allowed, "candidate rules decide some requests differently");
        }
    }

    /// Returns the version of the candidates under comparison, without waiting for a comparison.
    pub fn version(&self) -> Option<String> {
        let sampling = self.queue.sampling();
        sampling.map(|sampling| (*sampling.rules()[1]).as_ref().version().to_owned())
    }

    /// Returns the present results.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        Report::new(&self.options.files, self.options.sample, state.refused.clone(), state.trial.as_ref())
    }
}

impl Observer for Candidates {
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch> {
        self.put_in_force(Arc::clone(rules) as _);
        self
    }
}

impl Watch for Candidates {
    fn decided(&self, observed: &Observed<'_, '_>) {
        self.offer(observed.request, observed.adjustments);
    }
}
