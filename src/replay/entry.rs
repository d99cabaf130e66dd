//! Descriptors and their entries, filled with the fields of a line.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::condition::{Condition, Subject};
use super::packed::Packed;
use super::template::{Template, Values};
use crate::engine::algorithm::Ask;
use crate::engine::descriptor::{Descriptor, Entry, Text};

/// A descriptor, from the fields of a line.
#[derive(Clone, Debug)]
pub(super) struct DescriptorMap {
    pub(super) entries: Vec<EntryMap>,
    pub(super) hits: Option<Template>,
    /// Whether there is no descriptor without a number in `hits`, like in Envoy. Without this it has one hit if they
    /// are missing, and the line is wrong if they are no number.
    pub(super) needs_hits: bool,
}

/// An entry, from the fields of a line.
#[derive(Clone, Debug)]
pub(super) struct EntryMap {
    pub(super) key: Text,
    pub(super) value: Source,
    /// Whether the descriptor is created without this entry if the value is missing.
    pub(super) is_optional: bool,
}

/// What an entry's value comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Text(Template),
    Part(Subject),
    Address(Address),
    /// A field, or if that is missing, this text.
    OrElse(Template, String),
    /// The text, if all conditions hold (true), or if not all hold.
    If(Vec<Condition>, bool, Template),
}

/// The client's address.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) field: Template,
    /// Whether the field has a port behind the address.
    pub(super) has_port: bool,
    /// Numbers of bits of an IPv4 and an IPv6 address that are kept, if the value is a network.
    pub(super) mask: Option<(u8, u8)>,
}

impl DescriptorMap {
    /// Packs the descriptor, and returns whether it exists: if a value is missing, it does not, like in Envoy.
    pub(super) fn pack(&self, values: &Values<'_>, packed: &mut Packed) -> Result<bool, String> {
        let text = self.hits.as_ref().and_then(|hits| hits.fill(values));
        let hits = match &text {
            None => Some(1).filter(|_| self.hits.is_none() || !self.needs_hits),
            Some(text) => text.parse().ok().filter(|hits| Ask::take(*hits).is_some()),
        };
        let begin = packed.end();
        packed.push_number(hits);
        let mut has_any = false;
        let mut is_missing = hits.is_none() && self.needs_hits;
        for EntryMap { value, is_optional, .. } in &self.entries {
            let value = value.fill(values);
            is_missing |= value.is_none() && !is_optional;
            if is_missing {
                packed.cut(begin);
                packed.push_number(None);
                return Ok(false);
            }
            has_any |= value.is_some();
            packed.push_text(value.as_deref());
        }
        if hits.is_none() {
            return Err(format!("{:?} is no number of hits", text.unwrap_or_default()));
        }
        if !has_any {
            packed.cut(begin);
            packed.push_number(None);
        }
        Ok(has_any)
    }

    /// Reads the descriptor after its hits, in the memory of a former one.
    pub(super) fn unpack(&self, hits: u64, packed: &mut Packed, Descriptor { entries, ask, limit }: &mut Descriptor) {
        (*ask, *limit) = (Ask::take(hits).unwrap_or_default(), None);
        let mut len = 0;
        for map in &self.entries {
            let Some(text) = packed.text() else { continue };
            match entries.get_mut(len) {
                Some(Entry { key, value }) => {
                    key.clone_from(&map.key);
                    value.clear();
                    value.push_str(text);
                }
                None => entries.push(Entry { key: map.key.clone(), value: text.into() }),
            }
            len += 1;
        }
        entries.truncate(len);
    }
}

impl EntryMap {
    /// Creates an entry that its descriptor needs.
    pub(super) fn new(key: &str, value: Source) -> EntryMap {
        EntryMap { key: key.into(), value, is_optional: false }
    }
}

impl Source {
    /// Returns the value; `None` if the line lacks it.
    fn fill<'v>(&'v self, values: &'v Values<'_>) -> Option<Cow<'v, str>> {
        match self {
            Source::Text(text) => text.fill(values),
            Source::Part(part) => part.value(values),
            Source::Address(address) => address.fill(values).map(Cow::Owned),
            Source::OrElse(field, text) => field.fill(values).or(Some(Cow::Borrowed(text))),
            Source::If(conditions, expected, text) => {
                let all_hold = conditions.iter().all(|condition| condition.holds(values));
                if all_hold == *expected { text.fill(values) } else { None }
            }
        }
    }
}

impl Address {
    fn fill(&self, values: &Values<'_>) -> Option<String> {
        let text = self.field.fill(values)?;
        let text = match text.rsplit_once(':') {
            Some((address, _port)) if self.has_port => address.trim_start_matches('[').trim_end_matches(']'),
            _ => &*text,
        };
        let Some((of_v4, of_v6)) = self.mask else { return Some(text.to_owned()) };
        Some(match text.parse().ok()? {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(of_v4.min(32))).unwrap_or(0);
                format!("{}/{of_v4}", Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(of_v6.min(128))).unwrap_or(0);
                format!("{}/{of_v6}", Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::Names;
    use super::*;

    fn address(has_port: bool, mask: Option<(u8, u8)>, text: &str) -> Option<String> {
        let field = Template::of_field("address", &mut Names::default());
        Source::Address(Address { field, has_port, mask })
            .fill(&std::iter::once(Some(Cow::Borrowed(text))).collect())
            .map(Cow::into_owned)
    }

    #[test]
    fn an_address_is_told_without_its_port_and_cut_to_a_network() {
        let cases = [
            (true, None, "192.0.2.7:80", "192.0.2.7"),
            (true, None, "[2001:db8::1]:80", "2001:db8::1"),
            (false, None, "2001:db8::1", "2001:db8::1"),
            (false, Some((24, 64)), "192.0.2.7", "192.0.2.0/24"),
            (true, Some((32, 48)), "[2001:db8:1:2::9]:1", "2001:db8:1::/48"),
            (false, Some((0, 0)), "192.0.2.7", "0.0.0.0/0"),
            (false, Some((32, 128)), "2001:db8::1", "2001:db8::1/128"),
        ];
        for (has_port, mask, text, expected) in cases {
            assert_eq!(address(has_port, mask, text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(address(false, Some((24, 64)), "a pipe"), None);
    }
}
