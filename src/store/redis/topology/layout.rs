//! The layout of a cluster, as `CLUSTER SLOTS` reports it: the node of each slot.

use std::ops::RangeInclusive;

use deadpool_redis::redis::Value;

use crate::store::redis::doctor::cause::Cause;
use crate::store::redis::script::slot::SLOTS;
use crate::store::redis::topology::address::Place;

/// The masters that have slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) masters: Vec<Master>,
}

/// A master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) place: Place,
    pub(crate) replicas: Vec<Place>,
    /// Ranges of slots.
    pub(crate) ranges: Vec<RangeInclusive<u16>>,
}

impl Layout {
    /// Parses the reply of the node at `from`.
    ///
    /// # Errors
    /// If the reply names no master of any slot.
    pub(crate) fn read(said: &Value, from: &Place) -> Result<Layout, Cause> {
        let mut layout = Layout::default();
        let ranges = if let Value::Array(ranges) = said { &ranges[..] } else { &[] };
        for range in ranges {
            let Value::Array(parts) = range else { continue };
            let [first, last, nodes @ ..] = &parts[..] else { continue };
            let (Some(first), Some(last)) = (slot(first), slot(last)) else { continue };
            if first > last {
                continue;
            }
            let mut places = nodes.iter().map(|node| place(node, from));
            let Some(place) = places.next().flatten() else { continue };
            let replicas = places.flatten();
            let known = layout.masters.iter().position(|master| master.place == place);
            let known = known.unwrap_or_else(|| {
                layout.masters.push(Master { place, replicas: Vec::new(), ranges: Vec::new() });
                layout.masters.len() - 1
            });
            let master = &mut layout.masters[known];
            master.ranges.push(first..=last);
            for replica in replicas {
                if !master.replicas.contains(&replica) {
                    master.replicas.push(replica);
                }
            }
        }
        if layout.masters.is_empty() { Err(Cause::ClusterDown) } else { Ok(layout) }
    }

    /// Returns the master that has this slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Master> {
        self.masters.iter().find(|master| master.ranges.iter().any(|range| range.contains(&slot)))
    }

    /// Returns the number of slots that have a master.
    pub(crate) fn slots(&self) -> u16 {
        self.masters.iter().map(Master::slots).fold(0, u16::saturating_add).min(SLOTS)
    }
}

impl Master {
    /// Returns the number of slots of this master.
    pub(crate) fn slots(&self) -> u16 {
        self.ranges.iter().map(|range| range.end() - range.start() + 1).fold(0, u16::saturating_add)
    }
}

fn slot(value: &Value) -> Option<u16> {
    let Value::Int(slot) = value else { return None };
    u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS)
}

/// Parses a node: host, port, id, and since Redis 7 further details. A node that does not know its own address leaves
/// out the host, and then has the address at which it was asked.
fn place(node: &Value, from: &Place) -> Option<Place> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), more @ ..] = &parts[..] else { return None };
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    match (text(host).as_deref(), from) {
        (None | Some(""), Place::Tcp(host, _)) => Some(Place::Tcp(host.clone(), port)),
        // The node should be known by a name but has none.
        (Some("?"), _) => Some(Place::Tcp(more.get(1).and_then(address)?, port)),
        (Some(host), _) => Some(Place::Tcp(host.to_owned(), port)),
        (None, Place::Unix(_)) => None,
    }
}

/// Returns the value of `ip` in a list of names and values, in either protocol's format.
fn address(known: &Value) -> Option<String> {
    let pairs: Vec<(&Value, &Value)> = match known {
        Value::Array(parts) => parts.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        _ => Vec::new(),
    };
    pairs.into_iter().find(|(name, _)| text(name).as_deref() == Some("ip")).and_then(|(_, value)| text(value))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Value {
        Value::BulkString(name.as_bytes().to_vec())
    }

    fn node(name: Value, port: i64, more: &[Value]) -> Value {
        Value::Array([&[name, Value::Int(port), host("id")], more].concat())
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
    }

    fn at(host: &str, port: u16) -> Place {
        Place::Tcp(host.to_owned(), port)
    }

    #[test]
    fn masters_replicas_and_slots_are_read_as_versions_write_them() {
        let named = [Value::Array(vec![host("ip"), host("10.0.0.3")])];
        let said = Value::Array(vec![
            range(0, 99, &[node(host("10.0.0.1"), 7_000, &[]), node(host("10.0.0.2"), 7_001, &[])]),
            range(100, 199, &[node(Value::Nil, 7_002, &[])]),
            range(200, 200, &[node(host("10.0.0.1"), 7_000, &[]), node(host("10.0.0.2"), 7_001, &[])]),
            range(201, 300, &[node(host(""), 7_003, &[])]),
            range(301, 16_383, &[node(host("?"), 7_004, &named)]),
        ]);
        let layout = Layout::read(&said, &at("seed", 1)).unwrap();
        let places: Vec<&Place> = layout.masters.iter().map(|master| &master.place).collect();
        assert_eq!(places, [&at("10.0.0.1", 7_000), &at("seed", 7_002), &at("seed", 7_003), &at("10.0.0.3", 7_004)]);
        assert_eq!(layout.masters[0].ranges, [0..=99, 200..=200]);
        assert_eq!(layout.masters[0].replicas, [at("10.0.0.2", 7_001)]);
        assert_eq!(layout.slots(), 16_384);
    }

    #[test]
    fn what_names_no_master_is_no_layout() {
        let odd = [
            Value::Nil,
            Value::Array(Vec::new()),
            Value::Array(vec![range(0, 16_384, &[node(host("a"), 1, &[])])]),
            Value::Array(vec![range(0, 1, &[])]),
            Value::Array(vec![range(0, 1, &[node(host("a"), 0, &[])])]),
        ];
        for said in odd {
            assert_eq!(Layout::read(&said, &at("seed", 1)), Err(Cause::ClusterDown), "{said:?}");
        }
    }
}
