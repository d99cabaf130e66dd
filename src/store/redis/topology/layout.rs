//! Which node of a cluster has which slots, as `CLUSTER SLOTS` tells.

use std::ops::RangeInclusive;

use deadpool_redis::redis::Value;

use crate::store::redis::address::Place;
use crate::store::redis::cause::Cause;
use crate::store::redis::slot::SLOTS;

/// The masters that have slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Layout {
    pub(in crate::store::redis) masters: Vec<Master>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Master {
    pub(in crate::store::redis) place: Place,
    pub(in crate::store::redis) replicas: Vec<Place>,
    /// In slots.
    pub(in crate::store::redis) ranges: Vec<RangeInclusive<u16>>,
}

impl Layout {
    /// Reads what the node at `from` says.
    ///
    /// # Errors
    /// Where that names no master of a slot.
    pub(super) fn read(said: &Value, from: &Place) -> Result<Layout, Cause> {
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

    /// The master that has this slot.
    pub(in crate::store::redis) fn owner(&self, slot: u16) -> Option<&Master> {
        self.masters.iter().find(|master| master.ranges.iter().any(|range| range.contains(&slot)))
    }

    /// How many slots have a master.
    pub(in crate::store::redis) fn slots(&self) -> u16 {
        self.masters.iter().map(Master::slots).fold(0, u16::saturating_add).min(SLOTS)
    }
}

impl Master {
    /// How many slots it has.
    pub(in crate::store::redis) fn slots(&self) -> u16 {
        self.ranges.iter().map(|range| range.end() - range.start() + 1).fold(0, u16::saturating_add)
    }
}

fn slot(value: &Value) -> Option<u16> {
    let Value::Int(slot) = value else { return None };
    u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS)
}

/// A node: its host, its port, its id, and from Redis 7 on what else is known of it. A node that does not know its own
/// address leaves the host out: it is where it was asked.
fn place(node: &Value, from: &Place) -> Option<Place> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), more @ ..] = &parts[..] else { return None };
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    match (text(host).as_deref(), from) {
        (None | Some(""), Place::Tcp(host, _)) => Some(Place::Tcp(host.clone(), port)),
        // It shall be known by a name, and has none.
        (Some("?"), _) => Some(Place::Tcp(more.get(1).and_then(address)?, port)),
        (Some(host), _) => Some(Place::Tcp(host.to_owned(), port)),
        (None, Place::Unix(_)) => None,
    }
}

/// The value of `ip` in names and values, in whichever way the protocol has them.
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
