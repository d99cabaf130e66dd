//! The nodes of a Redis as one worker asks them: which of them holds a counter, and where it is if it has moved.
//!
//! A node of a cluster that does not have a counter says so, and has done nothing; so the request is asked again where
//! the counter is, as often as that takes and its deadline allows. That can charge nothing twice. In a call that
//! several requests share, a node does not say where: the request then goes in a call of its own.
//!
//! While a slot moves, a request with counters in several slots is asked slot by slot, because some may be here and
//! others there; see [`scatter`].

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::batch::{NodeError, Travel};
use super::cause::Cause;
use super::connection::Elsewhere;
use super::lanes::Lanes;
use super::node::Asking;
use super::script::Slots;
use super::slot;
use super::topology::{Cluster, Member, Topology};
use crate::spans::Current;
use crate::store::{Check, StoreError, Verdicts, scatter};

/// The first pause before a request is asked again whose counters are on their way, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The nodes, as one worker asks them.
#[derive(Clone)]
pub(super) enum Nodes {
    One(Arc<Lanes>),
    Cluster(Arc<Cluster>, usize),
}

/// Decides `checks` as one group, wherever their counters are.
///
/// # Errors
/// As [`Store::check`](crate::store::Store::check).
pub(super) async fn check<C: Borrow<Check> + Sync>(
    nodes: &Nodes,
    checks: &[C],
    deadline: Instant,
    span: Option<Current>,
) -> Result<Verdicts, StoreError> {
    match nodes {
        Nodes::One(node) => {
            let asking = Asking { checks, deadline, slots: Slots::None, travel: Travel::Together, span };
            node.ask(asking).await.map_err(|error| match error {
                NodeError::Store(error) => error,
                NodeError::Elsewhere(_) => StoreError::Refused(Cause::Cluster.to_string().into()),
            })
        }
        Nodes::Cluster(cluster, worker) => {
            let request = Request { cluster: Arc::clone(cluster), worker: *worker, span };
            scatter::decide(&Arc::new(ByNode(request)), checks, deadline).await
        }
    }
}

impl Nodes {
    /// Those of this topology, as this worker asks them.
    pub(super) fn of(topology: &Topology, worker: usize) -> Nodes {
        match topology {
            Topology::One(nodes) => Nodes::One(Arc::clone(&nodes[worker])),
            Topology::Cluster(cluster) => Nodes::Cluster(Arc::clone(cluster), worker),
        }
    }

    /// Logs what has been kept back.
    pub(super) fn flush_log(&self) {
        match self {
            Nodes::One(node) => node.flush_log(),
            Nodes::Cluster(cluster, _) => cluster.flush_log(),
        }
    }
}

/// A request of a cluster.
#[derive(Clone)]
struct Request {
    cluster: Arc<Cluster>,
    worker: usize,
    /// Within which it is asked, where it is sampled.
    span: Option<Current>,
}

/// In parts by the nodes that hold its counters.
struct ByNode(Request);

/// In parts by the slots that its counters lie in.
struct BySlot(Request);

/// A node; where no node has the slot, the slot.
enum Holder {
    Member(Arc<Member>),
    Nobody(u16),
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        match (self, other) {
            (Holder::Member(one), Holder::Member(other)) => Arc::ptr_eq(one, other),
            (Holder::Nobody(one), Holder::Nobody(other)) => one == other,
            _ => false,
        }
    }
}

impl scatter::Nodes for ByNode {
    type Node = Holder;

    fn holder(&self, check: &Check) -> Holder {
        self.0.holder(slot::of(check.key.as_str()))
    }

    async fn ask<C: Borrow<Check> + Sync>(
        &self,
        holder: &Holder,
        checks: &[C],
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        let Holder::Member(member) = holder else { return Err(self.0.nobody()) };
        let slots = slots(checks);
        match self.0.ask(member, checks, deadline, (slots, Travel::Together)).await {
            Ok(verdicts) => Ok(verdicts),
            Err(NodeError::Store(error)) => Err(error),
            Err(NodeError::Elsewhere(elsewhere)) => match slots {
                Slots::One(slot) => self.0.follow(slot, checks, elsewhere, deadline).await,
                // In a task of its own: it is a rare way, and the common one shall not carry its state.
                _ => Box::pin(scatter::decide(&Arc::new(BySlot(self.0.clone())), checks, deadline)).await,
            },
        }
    }
}

impl scatter::Nodes for BySlot {
    type Node = u16;

    fn holder(&self, check: &Check) -> u16 {
        slot::of(check.key.as_str())
    }

    async fn ask<C: Borrow<Check> + Sync>(
        &self,
        slot: &u16,
        checks: &[C],
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        self.0.follow(*slot, checks, Elsewhere::Untold, deadline).await
    }
}

impl Request {
    fn holder(&self, slot: u16) -> Holder {
        self.cluster.owner(slot).map_or(Holder::Nobody(slot), Holder::Member)
    }

    fn nobody(&self) -> StoreError {
        self.cluster.note_doubt();
        StoreError::Down(self.cluster.why_nobody())
    }

    async fn ask<C: Borrow<Check>>(
        &self,
        member: &Member,
        checks: &[C],
        deadline: Instant,
        (slots, travel): (Slots, Travel),
    ) -> Result<Verdicts, NodeError> {
        let asking = Asking { checks, deadline, slots, travel, span: self.span.clone() };
        member.node(self.worker).ask(asking).await
    }

    /// Asks checks of one slot where they are, after a node has said that they are elsewhere.
    async fn follow<C: Borrow<Check>>(
        &self,
        slot: u16,
        checks: &[C],
        mut elsewhere: Elsewhere,
        deadline: Instant,
    ) -> Result<Verdicts, StoreError> {
        let mut pause = PAUSE.0;
        loop {
            elsewhere = self.cluster.known(elsewhere);
            let (member, travel) = match &elsewhere {
                Elsewhere::Moved(place) => {
                    self.cluster.note_moved(slot, place);
                    (self.cluster.at(place), Travel::Alone)
                }
                Elsewhere::Asked(place) => (self.cluster.at(place), Travel::Asking),
                Elsewhere::Untold | Elsewhere::Moving => match self.holder(slot) {
                    Holder::Member(member) => (Some(member), Travel::Alone),
                    Holder::Nobody(_) => return Err(self.nobody()),
                },
            };
            if let Some(member) = member {
                match self.ask(&member, checks, deadline, (Slots::One(slot), travel)).await {
                    Ok(verdicts) => return Ok(verdicts),
                    Err(NodeError::Elsewhere(next)) => elsewhere = next,
                    Err(NodeError::Store(error)) => return Err(error),
                }
            }
            // A node that has just been heard of is being made, counters are on their way, or nodes do not agree yet.
            let again = Instant::now() + pause;
            if again >= deadline {
                self.cluster.note_doubt();
                return Err(StoreError::Refused(elsewhere.to_string().into()));
            }
            if !matches!(elsewhere, Elsewhere::Moved(_) | Elsewhere::Asked(_)) || pause > PAUSE.0 {
                sleep_until(again).await;
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

/// In which slots these counters lie. Those of a check's penalty lie where its own does.
fn slots<C: Borrow<Check>>(checks: &[C]) -> Slots {
    let mut all = checks.iter().map(|check| slot::of(check.borrow().key.as_str()));
    match all.next() {
        Some(first) if all.all(|slot| slot == first) => Slots::One(first),
        Some(_) => Slots::Several,
        None => Slots::None,
    }
}
