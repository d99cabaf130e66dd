//! `expect: [user]`: the entries that each request of a domain must bring, in any of its descriptors.
//!
//! A proxy leaves out a descriptor whose value it does not have, such as that of a header. Without this, a request that
//! leaves out who sends it is not limited by user.

use std::collections::BTreeSet;
use std::fmt;

use super::checked::DescriptorConfig;
use super::compiled::Domain;
use super::complaints::Complaints;
use super::config::{FieldPath, Raw, RawDomain};
use super::report::{nearest, quoted};
use super::section::{Key, Takes, key};
use crate::descriptor::{Descriptor, Request};

pub(super) const EXPECT: Key = key(
    "expect",
    Takes::Names,
    "Keys of entries that each request must bring, in any of its descriptors and not empty. See on_missing.",
);

pub(super) const ON_MISSING: Key = key(
    "on_missing",
    Takes::Choice(names),
    "What happens to a request without an expected entry: count only counts it, deny denies it. Default: count.",
);

/// Largest number of expected entries.
const MOST: usize = 16;

/// The entries that each request must bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Their keys.
    pub entries: Vec<Box<str>>,
    /// What happens to a request without one.
    pub on_missing: OnMissing,
}

/// What happens to a request without an expected entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// It is counted.
    #[default]
    Count,
    /// It is denied.
    Deny,
}

impl OnMissing {
    /// Both values.
    pub const ALL: [OnMissing; 2] = [OnMissing::Count, OnMissing::Deny];

    /// Returns the name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            OnMissing::Count => "count",
            OnMissing::Deny => "deny",
        }
    }
}

/// An entry that a request does not bring.
#[derive(Clone, Copy, Debug)]
pub struct Missing<'a> {
    /// The domain that expects it.
    pub domain: &'a Domain,
    /// Its index among the entries that the domain expects.
    pub index: usize,
    /// Its key.
    pub entry: &'a str,
    /// What happens to the request.
    pub action: OnMissing,
}

impl Missing<'_> {
    /// Returns whether the request is denied for it.
    pub fn denies(&self) -> bool {
        self.action == OnMissing::Deny
    }
}

impl Expect {
    /// Returns the first entry that a domain expects and a request does not bring. A request that only refunds or
    /// settles need not bring any.
    pub fn missing<'a>(domain: &'a Domain, request: &Request) -> Option<Missing<'a>> {
        let expect = domain.expect.as_ref()?;
        let reports = |descriptor: &Descriptor| descriptor.ask.is_refund() || descriptor.settles();
        if request.descriptors.iter().all(reports) {
            return None;
        }
        let has = |key: &str| {
            let mut entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
            entries.any(|entry| entry.key == key && !entry.value.is_empty())
        };
        let (index, entry) = expect.entries.iter().enumerate().find(|(_, key)| !has(key))?;
        Some(Missing { domain, index, entry, action: expect.on_missing })
    }
}

/// Formats them as in rules.
impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.entries.join(", "), self.on_missing.name())
    }
}

/// Reads the entries that a domain expects. `top` is its tree; `None` if other files may add to it.
pub(super) fn read(
    raw: &RawDomain<'_>,
    complaints: &mut Complaints<'_>,
    top: Option<&[DescriptorConfig]>,
) -> Option<Expect> {
    let (path, action_path) = (FieldPath::Root.key(EXPECT.name), FieldPath::Root.key(ON_MISSING.name));
    let on_missing =
        complaints.choice(&raw.on_missing, FieldPath::Root, ON_MISSING.name, &OnMissing::ALL, OnMissing::name);
    let Some(list) = raw.expect.get().filter(|list| !list.is_empty()) else {
        if raw.on_missing.get().is_some() && !matches!(raw.expect, Raw::Unreadable) {
            complaints.warn(action_path, "does nothing without expect, which names the entries");
        }
        return None;
    };
    if list.len() > MOST {
        complaints.error(path, format!("names {} entries; there may be up to {MOST}", list.len()));
    }
    let keys = top.map(keys);
    let mut entries: Vec<Box<str>> = Vec::new();
    for (index, raw) in list.iter().enumerate() {
        let path = path.item(index);
        let Some(key) = complaints.required_text(raw, path) else { continue };
        if entries.iter().any(|known| **known == *key) {
            complaints.error(path, format!("{} is named above as well", quoted(key)));
            continue;
        }
        if let Some(keys) =
            keys.as_ref().filter(|keys| !keys.contains(key) && !keys.iter().any(|key| key.contains('*')))
        {
            let near = nearest(key, &keys.iter().copied().collect::<Vec<_>>());
            let near = near.map(|near| format!(", did you mean {}?", quoted(near))).unwrap_or_default();
            complaints.warn(path, format!("no descriptor of this domain has the key {}{near}", quoted(key)));
        }
        entries.push(key.into());
    }
    Some(Expect { entries, on_missing: on_missing.unwrap_or_default() })
}

/// Returns every key of a tree.
fn keys(top: &[DescriptorConfig]) -> BTreeSet<&str> {
    let (mut keys, mut left) = (BTreeSet::new(), vec![top]);
    while let Some(level) = left.pop() {
        for descriptor in level {
            keys.insert(&*descriptor.key);
            left.push(&descriptor.descriptors);
        }
    }
    keys
}

fn names() -> Vec<&'static str> {
    OnMissing::ALL.map(OnMissing::name).to_vec()
}
