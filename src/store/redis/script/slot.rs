//! Slots, into which a Redis Cluster divides its keys: the CRC-16 (XMODEM) of a key's hash tag, or of the whole key if
//! it has none, modulo 16,384.

use std::num::NonZeroU32;

use crc16::{State, XMODEM};

use crate::engine::descriptor::Entry;

/// Number of slots.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of this key.
pub(crate) fn of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    State::<XMODEM>::calculate(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns entries for a counter that no request uses, with a key in this slot. Returns none without slots.
pub(crate) fn entries_in(slot: Option<u16>) -> Vec<Entry> {
    let Some(slot) = slot else { return Vec::new() };
    // On average, one key in 16,384 is in the slot.
    let numbers = std::iter::successors(Some(NonZeroU32::MIN), |number| number.checked_add(1));
    let entry = |number: NonZeroU32| Entry { key: "slot".into(), value: number.to_string().into() };
    numbers.map(entry).find(|entry| of(&tagged(entry)) == slot).into_iter().collect()
}

/// Returns a key with the hash tag that a counter of this entry in the empty domain has.
fn tagged(entry: &Entry) -> String {
    format!("{{|{}={}}}", entry.key, entry.value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Limit, Options};
    use crate::engine::check::{Key, Origin};

    #[test]
    fn a_key_lies_where_redis_says() {
        // As reported by CLUSTER KEYSLOT.
        for (key, slot) in
            [("123456789", 12_739), ("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363), ("", 0)]
        {
            assert_eq!(of(key), slot, "{key}");
        }
        assert_eq!(of("p{user1000}|fw1:1"), of("{user1000}|rights:list"));
    }

    #[test]
    fn every_slot_has_a_counter_of_our_own() {
        let limit = Limit::new(Algorithm::FixedWindow, 1, Duration::from_secs(1), Options::default()).unwrap();
        for slot in (0..SLOTS).step_by(101).chain([SLOTS - 1]) {
            let key = Key::new("p:", "", &entries_in(Some(slot)), |_| None, &limit, Origin::Rule);
            assert_eq!(of(key.as_str()), slot, "{key}");
        }
        assert!(entries_in(None).is_empty());
    }
}
