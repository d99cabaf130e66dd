//! Doors: proxies in front of the nodes of a store, by which nodes can be cut off from each other.
//!
//! All nodes are on one machine, and a proxy cannot recognize a caller by its port. So each node connects from the
//! loopback address of its side (`bind-source-addr`), and announces the door in front of it as its address.

use super::super::proxy::{Mode, Proxy, Source};

/// The side that is cut off: the master, and its Sentinel.
pub const CUT_OFF: Source = 2;
/// The other side.
pub const OTHERS: Source = 3;
/// On the other side, too: the replica that is not promoted.
pub const SECOND_REPLICA: Source = 4;

/// The doors of a store's nodes. Without doors, nodes are reached directly.
#[derive(Debug, Default)]
pub struct Doors {
    /// Of the stores, in their order.
    pub stores: Vec<Proxy>,
    /// Of the buses of a cluster's nodes, in the same order.
    pub buses: Vec<Proxy>,
    /// Of the Sentinels.
    pub sentinels: Vec<Proxy>,
    /// Through which the first instance reaches the Sentinels: it can be on the side that is cut off.
    pub of_first: Vec<Proxy>,
}

impl Doors {
    /// Cuts the first store and the first Sentinel off from all others, and the first instance from those Sentinels.
    /// Nothing passes, and no connection is closed.
    pub fn cut(&self) {
        for doors in [&self.stores, &self.buses, &self.sentinels] {
            for (index, door) in doors.iter().enumerate() {
                let from_beyond: &[Source] = if index == 0 { &[OTHERS, SECOND_REPLICA] } else { &[CUT_OFF] };
                door.set_for(Mode::HalfOpen, from_beyond);
            }
        }
        self.of_first.iter().skip(1).for_each(|door| door.set(Mode::HalfOpen));
    }

    /// Lets everything pass.
    pub fn mend(&self) {
        for doors in [&self.stores, &self.buses, &self.sentinels, &self.of_first] {
            doors.iter().for_each(|door| door.set(Mode::Forward));
        }
    }
}
