//! The rules in force, as requests see them: a snapshot, which each worker takes without writing to shared memory.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::engine::adjustment::InForce as Adjustments;
use crate::engine::rules::Rules;
use crate::metrics::RuleMetrics;
use crate::observe::watch::Watch;

/// An exchange of rules.
#[derive(Clone)]
pub struct Exchanged {
    /// The snapshot with the previous rules.
    pub old: Arc<Snapshot>,
    /// The one with the rules that are in force now.
    pub new: Arc<Snapshot>,
}

/// The rules and adjustments that one request sees from start to end.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// The rules.
    pub rules: Arc<Rules>,
    pub(super) metrics: Arc<RuleMetrics>,
    /// The observers' watches over decisions by these rules; empty if there are no observers.
    pub(super) watches: Arc<[Arc<dyn Watch>]>,
    /// `None` if there are no adjustments, the usual case, which costs a request nothing.
    pub(super) adjustments: Option<Arc<Adjustments>>,
    /// False for the first snapshot of a process, which has no rules yet.
    pub(super) in_force: bool,
}

impl Snapshot {
    /// Returns whether rules have been put in force; a process starts without any.
    pub fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// Returns the adjustments in force, if there are any.
    pub fn adjustments(&self) -> Option<&Adjustments> {
        self.adjustments.as_deref()
    }

    /// Returns the adjustments in force for use after the snapshot.
    pub fn shared_adjustments(&self) -> Option<Arc<Adjustments>> {
        self.adjustments.clone()
    }

    /// Returns rules and adjustments as a plan takes them.
    pub fn rules_and_adjustments(&self) -> (&Rules, Option<&Adjustments>) {
        (&self.rules, self.adjustments())
    }
}

/// One worker's pointer to the snapshot, with a reference count that no other worker writes to.
type Pointer = Arc<ArcSwap<Arc<Snapshot>>>;

/// The snapshot in force, as one worker sees it. All workers see the same one.
#[derive(Clone)]
pub(super) struct InForce {
    pub(super) mine: Pointer,
    all: Arc<Mutex<Vec<Pointer>>>,
}

impl InForce {
    /// Starts with a snapshot that has no rules.
    pub(super) fn new() -> InForce {
        let mine = Pointer::default();
        InForce { all: Arc::new(Mutex::new(vec![Arc::clone(&mine)])), mine }
    }

    /// Returns the view of another worker.
    pub(super) fn of_another_worker(&self) -> InForce {
        let mut all = self.all.lock();
        // A new outer `Arc`: with another worker's, both would write to one reference count.
        let mine = Arc::new(ArcSwap::from_pointee(Arc::clone(&**self.mine.load())));
        all.push(Arc::clone(&mine));
        InForce { mine, all: Arc::clone(&self.all) }
    }

    /// Replaces the snapshot by one made from it. Returns the old one and the new one.
    pub(super) fn replace(&self, make: impl FnOnce(&Snapshot) -> Snapshot) -> Exchanged {
        // The lock spans reading and writing, so that two changes at once are both kept.
        let all = self.all.lock();
        let old = Arc::clone(&**self.mine.load());
        let new = Arc::new(make(&old));
        for in_force in &*all {
            in_force.store(Arc::new(Arc::clone(&new)));
        }
        Exchanged { old, new }
    }
}
