//! Candidate rules beside those in force: what they would decide otherwise, found on live traffic.
//!
//! ```text
//! worker ─▶ sample       picks keys by their hash, on every replica alike, and takes copies of their requests
//! thread ─▶ trial        decides it twice, by the rules in force and by the candidates, on one clock
//!           tally        counts by rule what differs, and keeps the last examples
//! people ◀─ report       for `GET /candidates`
//! ```
//!
//! Both sets of rules count in memory of their own, which was empty when the trial began. So a difference comes from
//! what the rules say, and neither from Redis nor from what was counted before. No answer depends on any of it, and no
//! counter of the service is touched.

mod report;
mod tally;
mod trial;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::changes::Summary;
use crate::descriptor::Request;
use crate::metrics::CandidateMetrics;
use crate::plan::{CounterKeys, PlanOptions};
use crate::rules::Rules;
use crate::rules::report::RulesError;
use crate::sample::{Queue, Sampling, Share, Shared, Waiting};
use crate::store::memory::Clock;
use crate::values::Values;
use tally::Tally;
use trial::{Room, Trial};

pub use report::{Example, Report, RuleReport};

/// How often the thread takes what is queued.
const TICK: Duration = Duration::from_millis(50);
/// How often the log says what differs.
const TELL: Duration = Duration::from_secs(60);
/// So long after a panic it goes on.
const RETRY: Duration = Duration::from_secs(1);
/// The most that queued requests take, in bytes.
const MOST_QUEUED_BYTES: usize = 4 << 20;

/// What holds for every trial.
#[derive(Clone, Debug)]
pub struct CandidateOptions {
    /// Where the candidates are, as people call it.
    pub files: Vec<String>,
    /// How requests are planned. Global shadow mode is left out: what differs is what the rules say.
    pub plan: PlanOptions,
    /// Among so many processes the traffic of a key is divided: each compares its part of every limit.
    pub replicas: u32,
    /// The share of keys, from 0 to 1.
    pub sample: f64,
    /// The most that the counters of both sets of rules may take, in bytes.
    pub most_bytes: usize,
    /// How examples show the values of descriptors.
    pub values: Values,
}

/// Candidate rules, and what is known of them.
pub struct Candidates {
    options: CandidateOptions,
    metrics: CandidateMetrics,
    /// Of the rules in force and the candidates, in this order.
    queue: Queue<2>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_force: Option<Shared>,
    candidates: Option<Shared>,
    trial: Option<Trial>,
    /// What is wrong with the files as they are.
    refused: Option<String>,
    /// What the log has said of this trial: newly denied, newly allowed.
    told: (u64, u64),
}

impl Candidates {
    /// Compares nothing, until there are both sets of rules.
    pub fn new(options: CandidateOptions, clock: impl Clock, metrics: CandidateMetrics) -> Candidates {
        let plan = PlanOptions { shadow_mode: false, counter_keys: CounterKeys::default(), ..options.plan };
        Candidates {
            options: CandidateOptions { plan, ..options },
            metrics,
            queue: Queue::new(clock, MOST_QUEUED_BYTES),
            state: Mutex::default(),
        }
    }

    /// Takes a copy of a request that has been decided, where its keys are in the sample.
    pub fn offer(&self, request: &Request) {
        self.queue.offer(request);
    }

    /// These rules are in force now. A trial goes on where they say the same as before, and else begins anew.
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

    /// The files of the candidates have changed: a trial of them begins. Wrong ones are told, and those before go on.
    pub fn settle(&self, loaded: Result<Rules, RulesError>) {
        let mut state = self.state.lock();
        match loaded {
            Ok(rules) => {
                state.refused = None;
                state.candidates = Some(Arc::new(rules));
                self.begin(&mut state);
            }
            Err(error) => {
                tracing::error!("candidate rules are refused, those before are compared on:\n{error}");
                state.refused = Some(error.to_string());
            }
        }
    }

    /// Begins a trial, where there are two sets of rules to compare.
    fn begin(&self, state: &mut State) {
        let (Some(in_force), Some(candidates)) = (&state.in_force, &state.candidates) else { return };
        let summary = Summary::of((**in_force).as_ref(), (**candidates).as_ref());
        let (rules, domains) = ((**candidates).as_ref().rules().len(), (**candidates).as_ref().domains());
        tracing::info!(rules, domains, "candidate rules are compared with those in force: {}", summary.totals);
        let share = Share::new(self.options.sample);
        let sampling = Arc::new(Sampling::new(share, [Arc::clone(in_force), Arc::clone(candidates)]));
        self.metrics.begin(share.as_ratio());
        self.queue.sample(Arc::clone(&sampling));
        state.trial = Some(Trial::new(sampling, &self.options, summary, self.queue.now()));
        state.told = (0, 0);
    }

    /// Decides what is queued by both sets of rules.
    pub fn evaluate(&self) {
        let Waiting { requests, dropped, .. } = self.queue.take();
        self.metrics.record_dropped(dropped);
        let mut state = self.state.lock();
        let Some(trial) = &mut state.trial else { return };
        for (at_ms, request) in &requests {
            match trial.compare(*at_ms, request, &self.metrics) {
                Room::Enough => {}
                Room::UsedUp => {
                    trial.halve();
                    let sample = trial.sampling.share().as_ratio();
                    tracing::warn!(
                        sample,
                        "no room for the counters of candidate rules: they begin anew with half of the sample"
                    );
                    self.metrics.set_sample(sample);
                    self.queue.sample(Arc::clone(&trial.sampling));
                }
            }
        }
    }

    /// Evaluates on a thread of its own, until nobody holds this any more.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn follow(self: &Arc<Self>) -> io::Result<()> {
        let candidates = Arc::downgrade(self);
        thread::Builder::new().name("candidates".to_owned()).spawn(move || follow(&candidates))?;
        Ok(())
    }

    /// Logs what differs more than was told before.
    fn tell(&self) {
        let mut state = self.state.lock();
        let Some(Trial { tally: Tally { compared, newly_denied, newly_allowed, .. }, .. }) = &state.trial else {
            return;
        };
        let (compared, now) = (*compared, (*newly_denied, *newly_allowed));
        if now != std::mem::replace(&mut state.told, now) {
            let (newly_denied, newly_allowed) = now;
            tracing::info!(compared, newly_denied, newly_allowed, "candidate rules decide requests otherwise");
        }
    }

    /// The version of the candidates that are compared now. Waits for no comparison.
    pub fn version(&self) -> Option<String> {
        let sampling = self.queue.sampling();
        sampling.map(|sampling| (*sampling.rules()[1]).as_ref().version().to_owned())
    }

    /// What is known so far.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        Report::new(&self.options.files, self.options.sample, state.refused.clone(), state.trial.as_ref())
    }
}

fn follow(candidates: &Weak<Candidates>) {
    let mut told = Instant::now();
    loop {
        thread::sleep(TICK);
        let Some(candidates) = candidates.upgrade() else { return };
        let done = catch_unwind(AssertUnwindSafe(|| {
            candidates.evaluate();
            if told.elapsed() >= TELL {
                told = Instant::now();
                candidates.tell();
            }
        }));
        if done.is_err() {
            // What it was about has left the queue.
            tracing::error!(retry = ?RETRY, "a panic while candidates are compared");
            thread::sleep(RETRY);
        }
    }
}
