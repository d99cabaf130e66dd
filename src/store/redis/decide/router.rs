//! The nodes of a Redis, as one worker uses them: which node holds a counter, and where a moved counter is now.
//!
//! A node of a cluster that does not have a counter reports this and executes nothing. The request is then sent to
//! where the counter is, as often as necessary within its deadline. That cannot charge anything twice. In a call that
//! several requests share, a node does not report where the counter is; the request is then repeated in a separate
//! call.
//!
//! While a slot moves, a request with counters in several slots is asked slot by slot, because some counters may have
//! moved and others not; see [`scatter`].

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::Either;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::batch::{NodeError, Travel};
use super::batcher::Asking;
use super::cluster::{Cluster, Member};
use super::node_queues::NodeQueues;
use crate::engine::check::{Check, StoreError, Verdicts};
use crate::spans::Current;
use crate::store::health::OnChange;
use crate::store::redis::doctor::StartError;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::Link;
use crate::store::redis::link::connection::Elsewhere;
use crate::store::redis::script::{Slots, slot};
use crate::store::redis::topology::{Reach, Route};
use crate::store::scatter;

/// The shortest and the longest pause before the next attempt of a request with moving counters.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The nodes, as one worker uses them.
#[derive(Clone)]
pub(crate) enum Router {
    One(Arc<NodeQueues>),
    Cluster(Arc<Cluster>, usize),
}

/// Decides `checks` as one group, whichever nodes hold their counters.
///
/// # Errors
/// As [`Store::check`](crate::store::Store::check).
pub(crate) fn check<C: Borrow<Check> + Sync>(
    nodes: &Router,
    checks: &[C],
    deadline: Instant,
    span: Option<Current>,
) -> impl Future<Output = Result<Verdicts, StoreError>> + Send {
    match nodes {
        Router::One(node) => {
            let asking = Asking { checks, deadline, slots: Slots::None, travel: Travel::Together, span };
            Either::Left(node.ask(asking).map_err(|error| match error {
                NodeError::Store(error) => error,
                NodeError::Elsewhere(_) => StoreError::Refused(Cause::Cluster.to_string().into()),
            }))
        }
        Router::Cluster(cluster, worker) => {
            let request = Arc::new(ByNode(ClusterRequest { cluster: Arc::clone(cluster), worker: *worker, span }));
            // Boxed to keep the future of a request to one Redis small.
            Either::Right(Box::pin(async move { scatter::decide(&request, checks, deadline).await }))
        }
    }
}

impl Router {
    /// Connects from each of these runtimes, and keeps trying in the background if that fails. Returns the nodes of
    /// each worker. A node is a [`Link`] and, for each worker, a queue ([`NodeQueues`]).
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold there.
    pub(crate) async fn start(
        route: &Route,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Vec<Router>, StartError> {
        let Route { config, access, reach, .. } = route.clone();
        let workers = 0..runtimes.len();
        let dialer = match reach {
            Reach::One(dialer) => dialer,
            Reach::Cluster(known) => {
                let cluster = Cluster::start(config, access, known, on_change, runtimes).await?;
                return Ok(workers.map(|worker| Router::Cluster(Arc::clone(&cluster), worker)).collect());
            }
        };
        let queue = config.queue;
        let link = Arc::new(Link::start(config, dialer, None, on_change, runtimes).await?);
        Ok(workers.map(|worker| Router::One(Arc::new(NodeQueues::new(Arc::clone(&link), worker, queue)))).collect())
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        match self {
            Router::One(node) => node.flush_log(),
            Router::Cluster(cluster, _) => cluster.flush_log(),
        }
    }
}

/// A request to a cluster.
#[derive(Clone)]
struct ClusterRequest {
    cluster: Arc<Cluster>,
    worker: usize,
    /// The span of the request, if it is sampled.
    span: Option<Current>,
}

/// A request split by the nodes that hold its counters.
struct ByNode(ClusterRequest);

/// A request split by the slots of its counters.
struct BySlot(ClusterRequest);

/// A node, or the slot if no node has it.
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
                // Boxed: this path is rare, and the common path must not carry its state.
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

impl ClusterRequest {
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

    /// Asks checks of one slot on the node that has them, after another node has reported that it does not.
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
            // A newly found node is being connected, counters are moving, or the nodes do not agree yet.
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

/// Returns the slots of these counters. The counters of a check's penalty are in the same slot as its own.
fn slots<C: Borrow<Check>>(checks: &[C]) -> Slots {
    let mut all = checks.iter().map(|check| slot::of(check.borrow().key.as_str()));
    match all.next() {
        Some(first) if all.all(|slot| slot == first) => Slots::One(first),
        Some(_) => Slots::Several,
        None => Slots::None,
    }
}
