//! The health of a cluster as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::store::health::{Health, OnChange};
use crate::store::redis::doctor::StartError;
use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::script::slot::SLOTS;
use crate::store::redis::topology::Layout;
use crate::store::redis::topology::address::Place;
use crate::telemetry::Throttle;

/// The nodes that have slots, and their health.
pub(crate) struct Overview {
    /// The address, for the log.
    redis: Arc<str>,
    on_change: OnChange,
    /// Notified when a node goes down.
    doubts: Arc<Notify>,
    state: Mutex<State>,
    /// Log lines about whether the layout can be read.
    log: Throttle<bool>,
}

struct State {
    nodes: HashMap<Place, Health>,
    /// The nodes that have slots, with the number of slots.
    holders: Vec<(Place, u16)>,
    /// Number of slots that have no node.
    missing: u16,
    /// Why the layout cannot be read at present.
    failure: Option<Cause>,
    /// The health reported last.
    told: Option<Health>,
}

impl Overview {
    pub(crate) fn new(redis: String, on_change: OnChange, doubts: Arc<Notify>) -> Overview {
        let state = State { nodes: HashMap::new(), holders: Vec::new(), missing: 0, failure: None, told: None };
        Overview { redis: redis.into(), on_change, doubts, state: Mutex::new(state), log: Throttle::default() }
    }

    /// Returns the callback for the health of this node.
    pub(crate) fn of_node(self: &Arc<Self>, place: Place) -> OnChange {
        let overview = Arc::clone(self);
        Box::new(move |health| {
            let mut state = overview.state.lock();
            state.nodes.insert(place.clone(), health);
            overview.tell(&mut state);
            if health != Health::Up {
                overview.doubts.notify_one();
            }
        })
    }

    /// Notes that the layout was read.
    pub(crate) fn count(&self, layout: &Layout) {
        let mut state = self.state.lock();
        state.holders = layout.masters.iter().map(|master| (master.place.clone(), master.slots())).collect();
        if state.failure.take().is_some() {
            let redis = Arc::clone(&self.redis);
            self.log.log(true, || move |_| tracing::info!(%redis, "the cluster reports its slots again"));
        }
        let missing = SLOTS - layout.slots();
        match (state.missing, missing) {
            (before, now) if before == now => {}
            (_, 0) => tracing::info!(redis = %self.redis, "every slot of the cluster has a node again"),
            (_, slots) => tracing::warn!(
                redis = %self.redis,
                slots,
                "slots of the cluster have no node: their limits answer by failure modes; assign them with redis-cli \
                 --cluster fix"
            ),
        }
        state.missing = missing;
        self.tell(&mut state);
    }

    /// Notes that the layout could not be read.
    pub(crate) fn fail(&self, cause: &Cause) {
        let mut state = self.state.lock();
        if state.failure.is_none() {
            let (redis, error) = (Arc::clone(&self.redis), cause.to_string());
            self.log.log(
                false,
                || move |times| tracing::warn!(%redis, error, times, "no node of the cluster reports the slots"),
            );
        }
        state.failure = Some(cause.clone());
        self.tell(&mut state);
    }

    /// Reports a new node that can never be used.
    pub(crate) fn report(&self, error: &StartError) {
        let (redis, error) = (Arc::clone(&self.redis), error.to_string());
        self.log
            .log(false, || move |times| tracing::warn!(%redis, error, times, "a node of the cluster cannot be used"));
    }

    /// Forgets all other nodes.
    pub(crate) fn keep(&self, is_kept: impl Fn(&Place) -> bool) {
        let mut state = self.state.lock();
        state.nodes.retain(|place, _| is_kept(place));
        self.tell(&mut state);
    }

    /// Returns whether every slot has a node that is up.
    pub(crate) fn is_well(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_none() && state.health() == Health::Up
    }

    /// Returns why a slot has no node.
    pub(crate) fn why_nobody(&self) -> Arc<str> {
        let state = self.state.lock();
        state.failure.as_ref().unwrap_or(&Cause::ClusterDown).to_string().into()
    }

    /// Logs what the log throttles hold back.
    pub(crate) fn flush_log(&self) {
        self.log.flush();
    }

    /// Reports the health. Runs under the lock, so changes are reported in order.
    fn tell(&self, state: &mut State) {
        let health = state.health();
        // Nothing is reported until every new node has been tried.
        if state.holders.iter().all(|(place, _)| state.nodes.contains_key(place)) && state.told != Some(health) {
            state.told = Some(health);
            (self.on_change)(health);
        }
    }
}

impl State {
    fn health(&self) -> Health {
        let kind = |cause: &Option<Cause>| cause.as_ref().unwrap_or(&Cause::ClusterDown).kind();
        let (mut up, mut down) = (0_u16, None);
        for (place, slots) in &self.holders {
            match self.nodes.get(place) {
                Some(Health::Up) => up = up.saturating_add(*slots),
                Some(Health::Down(cause) | Health::Partly { cause, .. }) => down = Some(*cause),
                None => down = down.or(Some(kind(&self.failure))),
            }
        }
        let cause = down.unwrap_or(kind(&self.failure));
        match up {
            0 => Health::Down(cause),
            SLOTS.. => Health::Up,
            slots => Health::Partly { slots, cause },
        }
    }
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::Value;

    use super::*;

    fn place(port: u16) -> Place {
        Place::Tcp("a".to_owned(), port)
    }

    /// Returns a layout with masters at these ports, which have all slots or all but the last.
    fn layout(ports: &[u16], has_all: bool) -> Layout {
        let count = ports.len() as i64;
        let of = |(i, port): (i64, &u16)| {
            let last = if i == count - 1 { 16_383 - i64::from(!has_all) } else { (i + 1) * 100 - 1 };
            let node = Value::Array(vec![Value::BulkString(b"a".to_vec()), Value::Int((*port).into())]);
            Value::Array(vec![Value::Int(i * 100), Value::Int(last), node])
        };
        Layout::read(&Value::Array((0..).zip(ports).map(of).collect()), &place(1)).unwrap()
    }

    fn overview() -> (Arc<Overview>, Arc<Mutex<Vec<Health>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let on_change = Box::new(move |health| heard.lock().push(health));
        (Arc::new(Overview::new("a:1".to_owned(), on_change, Arc::default())), told)
    }

    #[test]
    fn a_cluster_is_up_as_far_as_its_nodes_are() {
        let (overview, told) = overview();
        overview.count(&layout(&[1, 2], true));
        let nodes = [1, 2].map(|port| overview.of_node(place(port)));
        nodes[0](Health::Up);
        assert!(told.lock().is_empty(), "the other has not been tried yet");
        nodes[1](Health::Up);
        nodes[0](Health::Down("timeout"));
        nodes[1](Health::Down("full"));
        nodes[0](Health::Up);
        nodes[1](Health::Up);
        let partly = |slots, cause| Health::Partly { slots, cause };
        assert_eq!(
            *told.lock(),
            [Health::Up, partly(16_284, "timeout"), Health::Down("full"), partly(100, "full"), Health::Up]
        );
        assert!(overview.is_well());
    }

    #[test]
    fn slots_that_nobody_has_and_a_layout_that_nobody_tells_are_told() {
        let (overview, told) = overview();
        overview.fail(&Cause::NobodyListens);
        assert!(!overview.is_well());
        overview.count(&layout(&[1, 2], false));
        [1, 2].iter().for_each(|port| overview.of_node(place(*port))(Health::Up));
        assert!(!overview.is_well());
        overview.count(&layout(&[1], true));
        overview.keep(|known| *known == place(1));
        let partly = Health::Partly { slots: 16_383, cause: "cluster_down" };
        assert_eq!(*told.lock(), [Health::Down("nobody_listens"), partly, Health::Up]);
        assert!(overview.is_well());
        assert_eq!(&*overview.why_nobody(), Cause::ClusterDown.to_string());
    }
}
