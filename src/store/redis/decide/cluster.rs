//! The nodes of a Redis Cluster, each with its link, its breaker and its queues.
//!
//! The layout (the node of each slot) is read from one node: at intervals while all nodes are up; at once when a node
//! reports that a slot is elsewhere, or goes down; and often while a node is down, from one node after the other, since
//! another will take its place. The whole process shares each answer, and answers are at least [`APART`] apart: a
//! cluster that moves a thousand slots is not asked a thousand times. A redirection takes effect at once for its slot.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::node_queues::NodeQueues;
use super::overview::Overview;
use crate::store::health::{Health, OnChange};
use crate::store::redis::doctor::StartError;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::link::Link;
use crate::store::redis::link::connection::Elsewhere;
use crate::store::redis::script::slot::SLOTS;
use crate::store::redis::topology::address::Place;
use crate::store::redis::topology::config::RedisConfig;
use crate::store::redis::topology::route::KnownNodes;
use crate::store::redis::topology::survey::{ask_any, ask_one};
use crate::store::redis::topology::{Access, Dialed, Layout, node_dialer};
use crate::supervise;

/// How often the layout is read while all nodes are up, and while a node is down.
const POLL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(150));
/// The longest time between two reads during a long outage of a node.
const LONG: Duration = Duration::from_secs(1);
/// The shortest time between two answers.
const APART: Duration = Duration::from_millis(100);
/// Delay before another attempt with a node in which limits could not hold.
const UNFIT: Duration = Duration::from_secs(10);
/// How long a node without slots is kept after it was last requested, since slots may be moving there.
const KEPT: Duration = Duration::from_secs(60);

/// A cluster, shared by all workers.
pub(crate) struct Cluster {
    config: RedisConfig,
    access: Arc<Access>,
    runtimes: Vec<Handle>,
    /// The nodes that the layout is read from.
    known: Arc<KnownNodes>,
    routes: ArcSwap<Routes>,
    members: Mutex<HashMap<Place, Membership>>,
    overview: Arc<Overview>,
    /// Makes the task read the layout at once.
    doubts: Arc<Notify>,
    task: Mutex<Option<AbortHandle>>,
}

/// A node of the cluster.
pub(crate) struct Member {
    link: Arc<Link>,
    /// The node as each worker uses it.
    nodes: Vec<Arc<NodeQueues>>,
}

/// A member, `None` until it is made, with the time when its place was last requested.
struct Membership {
    member: Option<Arc<Member>>,
    wanted: Instant,
    /// When it was found that limits could never hold in the node.
    unfit: Option<Instant>,
}

/// The node that the layout is read from.
#[derive(Default)]
struct LayoutSource {
    dialed: Option<Dialed>,
    /// The index of the known node that the latest attempt to find another started with.
    turn: usize,
}

/// The members, and the member that has each slot.
struct Routes {
    members: Vec<Arc<Member>>,
    /// For each slot an index into the members, beyond their end if no member has the slot.
    owners: Vec<u16>,
}

impl Cluster {
    /// Connects to the nodes of the cluster, and keeps trying in the background if that fails.
    ///
    /// # Errors
    /// If a password or TLS file cannot be used, the TLS server name is invalid, or the first attempt finds that limits
    /// could never hold there.
    pub(crate) async fn start(
        config: RedisConfig,
        access: Arc<Access>,
        known: Arc<KnownNodes>,
        on_change: OnChange,
        runtimes: &[Handle],
    ) -> Result<Arc<Cluster>, StartError> {
        let doubts = Arc::new(Notify::new());
        let cluster = Arc::new(Cluster {
            access,
            runtimes: runtimes.to_vec(),
            known,
            routes: ArcSwap::from_pointee(Routes::none()),
            members: Mutex::default(),
            overview: Arc::new(Overview::new(config.to_string(), on_change, Arc::clone(&doubts))),
            doubts,
            task: Mutex::new(None),
            config,
        });
        let unfit = |cause| StartError::Unfit { redis: cluster.config.to_string(), cause };
        let mut source = LayoutSource::default();
        match cluster.ask(&mut source).await {
            Ok(layout) => cluster.take(&layout).await?,
            Err(cause) if cause.is_unfit() => return Err(unfit(cause)),
            Err(cause) => cluster.overview.fail(&cause),
        }
        let (followed, mut source) = (Arc::downgrade(&cluster), Some(source));
        let follow = move || follow(Weak::clone(&followed), source.take().unwrap_or_default());
        *cluster.task.lock() = Some(supervise::spawn("cluster layout", follow).abort_handle());
        Ok(cluster)
    }

    /// Returns the node that has this slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Member>> {
        let routes = self.routes.load();
        routes.members.get(usize::from(*routes.owners.get(usize::from(slot))?)).cloned()
    }

    /// Returns the node at this place. If there is none yet, one is made soon.
    pub(crate) fn at(&self, place: &Place) -> Option<Arc<Member>> {
        let mut members = self.members.lock();
        let now = Instant::now();
        let membership = members.entry(place.clone()).or_insert_with(|| {
            self.doubts.notify_one();
            Membership::new()
        });
        membership.wanted = now;
        membership.member.clone()
    }

    /// Completes a redirection to a node that should have a host name but has none yet, by its port alone.
    pub(crate) fn known(&self, elsewhere: Elsewhere) -> Elsewhere {
        let (Elsewhere::Moved(Place::Tcp(host, port)) | Elsewhere::Asked(Place::Tcp(host, port))) = &elsewhere else {
            return elsewhere;
        };
        if host != "?" {
            return elsewhere;
        }
        let members = self.members.lock();
        let mut known = members.keys().filter(|place| matches!(place, Place::Tcp(_, own) if own == port));
        match (known.next(), known.next(), &elsewhere) {
            (Some(place), None, Elsewhere::Moved(_)) => Elsewhere::Moved(place.clone()),
            (Some(place), None, _) => Elsewhere::Asked(place.clone()),
            _ => Elsewhere::Untold,
        }
    }

    /// Notes that a node reports this slot at another place now.
    pub(crate) fn note_moved(&self, slot: u16, place: &Place) {
        if let Some(member) = self.at(place) {
            self.routes.rcu(|routes| Arc::new(routes.with(slot, &member)));
        }
        self.doubts.notify_one();
    }

    /// Notes that the layout may be outdated.
    pub(crate) fn note_doubt(&self) {
        self.doubts.notify_one();
    }

    /// Returns why a slot has no node.
    pub(crate) fn why_nobody(&self) -> Arc<str> {
        self.overview.why_nobody()
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        self.members.lock().values().filter_map(|it| it.member.as_ref()).for_each(|member| member.link.flush_log());
        self.overview.flush_log();
    }

    /// Reads the layout from the node that was used before, or from another if that does not answer.
    async fn ask(&self, source: &mut LayoutSource) -> Result<Layout, Cause> {
        if let Some(dialed) = source.dialed.take()
            && let Ok(layout) = ask_one(&dialed, self.config.timeout).await
        {
            self.known.note(&layout);
            source.dialed = Some(dialed);
            return Ok(layout);
        }
        let mut places = self.known.places();
        source.turn = (source.turn + 1) % places.len().max(1);
        places.rotate_left(source.turn);
        let (dialed, layout) = ask_any(&places, &self.access, &self.config).await?;
        self.known.note(&layout);
        source.dialed = Some(dialed);
        Ok(layout)
    }

    /// Puts a layout in force: makes new nodes, and drops nodes without slots.
    ///
    /// # Errors
    /// If the first attempt to connect finds that limits could never hold in one of the nodes; the others are in force.
    async fn take(self: &Arc<Self>, layout: &Layout) -> Result<(), StartError> {
        let first_slots: HashMap<&Place, u16> =
            layout.masters.iter().filter_map(|master| Some((&master.place, *master.ranges.first()?.start()))).collect();
        let missing: Vec<Place> = {
            let mut members = self.members.lock();
            for place in first_slots.keys() {
                members.entry((*place).clone()).or_insert_with(Membership::new);
            }
            members.retain(|place, it| first_slots.contains_key(place) || it.wanted.elapsed() < KEPT);
            members.iter().filter(|(_, it)| it.is_due()).map(|(place, _)| place.clone()).collect()
        };
        self.overview.count(layout);
        let making = missing.into_iter().map(async |place| {
            let slot = first_slots.get(&place).copied();
            (place.clone(), self.make(place, slot).await)
        });
        let mut unfit = None;
        for (place, made) in join_all(making).await {
            let mut members = self.members.lock();
            let Some(membership) = members.get_mut(&place) else { continue };
            match made {
                Ok(member) => membership.member = Some(Arc::new(member)),
                Err(error) => {
                    membership.unfit = Some(Instant::now());
                    self.overview.of_node(place)(Health::Down(error.kind()));
                    unfit.get_or_insert(error);
                }
            }
        }
        let members = self.members.lock();
        self.overview.keep(|place| members.contains_key(place));
        let (mut listed, mut owners) = (Vec::with_capacity(layout.masters.len()), vec![u16::MAX; SLOTS.into()]);
        for master in &layout.masters {
            let Some(member) = members.get(&master.place).and_then(|it| it.member.clone()) else { continue };
            if let Some(slot) = first_slots.get(&master.place) {
                member.link.move_own(*slot);
            }
            let index = u16::try_from(listed.len()).unwrap_or(u16::MAX);
            for slot in master.ranges.iter().cloned().flatten() {
                owners[usize::from(slot)] = index;
            }
            listed.push(member);
        }
        self.routes.store(Arc::new(Routes { members: listed, owners }));
        unfit.map_or(Ok(()), Err)
    }

    /// Returns a node after its first attempts to connect have ended.
    async fn make(&self, place: Place, slot: Option<u16>) -> Result<Member, StartError> {
        let dialer = node_dialer(place.clone(), &self.access);
        let on_change = self.overview.of_node(place.clone());
        let config = self.config.of_node(&place);
        let queue = config.queue;
        // A node without slots redirects every check, which counts as an answer.
        let link = Link::start(config, dialer, Some(slot.unwrap_or_default()), on_change, &self.runtimes).await?;
        let link = Arc::new(link);
        let node = |worker| Arc::new(NodeQueues::new(Arc::clone(&link), worker, queue));
        Ok(Member { nodes: (0..self.runtimes.len()).map(node).collect(), link })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Membership {
    fn new() -> Membership {
        Membership { member: None, wanted: Instant::now(), unfit: None }
    }

    /// Returns whether the node should be made now.
    fn is_due(&self) -> bool {
        self.member.is_none() && self.unfit.is_none_or(|at| at.elapsed() > UNFIT)
    }
}

impl Member {
    /// Returns the node as this worker uses it.
    pub(crate) fn node(&self, worker: usize) -> &Arc<NodeQueues> {
        &self.nodes[worker]
    }
}

impl Routes {
    fn none() -> Routes {
        Routes { members: Vec::new(), owners: vec![u16::MAX; SLOTS.into()] }
    }

    /// Returns the routes with this slot moved.
    fn with(&self, slot: u16, member: &Arc<Member>) -> Routes {
        let mut members = self.members.clone();
        let known = members.iter().position(|known| Arc::ptr_eq(known, member));
        let index = known.unwrap_or_else(|| {
            members.push(Arc::clone(member));
            members.len() - 1
        });
        let mut owners = self.owners.clone();
        if let Some(owner) = owners.get_mut(usize::from(slot)) {
            *owner = u16::try_from(index).unwrap_or(u16::MAX);
        }
        Routes { members, owners }
    }
}

/// Keeps reading the layout until the cluster is dropped.
async fn follow(cluster: Weak<Cluster>, mut source: LayoutSource) {
    let Some(doubts) = cluster.upgrade().map(|cluster| Arc::clone(&cluster.doubts)) else { return };
    let mut pause = POLL.0;
    let mut is_well = true;
    loop {
        tokio::select! {
            () = doubts.notified() => {}
            () = sleep(pause) => {}
        }
        let Some(cluster) = cluster.upgrade() else { return };
        match cluster.ask(&mut source).await {
            Ok(layout) => {
                // Reports nodes that are unfit from the start. The link reports those found unfit later.
                let taken = cluster.take(&layout).await;
                taken.unwrap_or_else(|error| cluster.overview.report(&error));
            }
            Err(cause) => cluster.overview.fail(&cause),
        }
        let was_well = std::mem::replace(&mut is_well, cluster.overview.is_well());
        pause = if is_well {
            POLL.0
        } else {
            // The node that was asked may be cut off from the others.
            source.dialed = None;
            // Less often, the longer the outage lasts.
            if was_well { POLL.1 } else { (pause + APART).min(LONG) }
        };
        drop(cluster);
        sleep(APART).await;
    }
}
