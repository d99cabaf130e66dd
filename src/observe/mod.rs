//! Observers of decisions. After a decision is made and recorded, the limiter passes it to the watches of its snapshot.
//! An observer that is off is not in that list and costs a request nothing.

pub mod candidates;
pub mod decision_log;
pub mod heavy_hitters;
pub mod history;
pub mod redaction;
pub mod sample;
pub mod watch;
pub mod what_if;

use std::fmt;
use std::sync::Arc;

use self::candidates::Candidates;
use self::decision_log::DecisionLog;
use self::heavy_hitters::HeavyHitters;
use self::watch::{Observer, Watch};
use self::what_if::WhatIf;

use crate::engine::rules::Rules;

/// The observers of a process that operators can read; `None` if a setting disables one.
#[derive(Clone, Default)]
pub struct Observing {
    /// Counts the heaviest keys of each rule.
    pub heavy_hitters: Option<Arc<HeavyHitters>>,
    /// Logs decisions.
    pub decision_log: Option<Arc<DecisionLog>>,
    /// Compares candidate rules with those in force.
    pub candidates: Option<Arc<Candidates>>,
    /// Keeps requests for replays.
    pub what_if: Option<Arc<WhatIf>>,
}

impl Observing {
    /// Returns the enabled observers.
    pub fn observers(&self) -> Observers {
        let Observing { heavy_hitters, decision_log, candidates, what_if } = self.clone();
        let mut observers = Observers::default();
        heavy_hitters.into_iter().for_each(|heavy_hitters| observers.add(heavy_hitters));
        decision_log.into_iter().for_each(|decision_log| observers.add(decision_log));
        candidates.into_iter().for_each(|candidates| observers.add(candidates));
        what_if.into_iter().for_each(|what_if| observers.add(what_if));
        observers
    }
}

/// The observers of a process, created once at startup.
#[derive(Clone, Default)]
pub struct Observers(Vec<Arc<dyn Observer>>);

impl Observers {
    /// Adds an observer, which sees each decision after those added before it.
    pub fn add(&mut self, observer: Arc<dyn Observer>) {
        self.0.push(observer);
    }

    /// Returns the watches over decisions by these rules.
    pub fn watch(&self, rules: &Arc<Rules>) -> Arc<[Arc<dyn Watch>]> {
        self.0.iter().map(|observer| Arc::clone(observer).watch(rules)).collect()
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.len()).finish()
    }
}
