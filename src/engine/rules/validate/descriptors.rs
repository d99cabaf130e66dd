//! Validation of the tree of descriptors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use super::idle::{Others, idle};
use super::lease::{Advice, Leasing};
use super::limits::Count;
use super::own_share;
use super::pattern::{is_network, taken_for};
use super::{Complaints, MAX_LEVELS, Mark, PartBuilder, held};
use crate::algorithm::Algorithm;
use crate::descriptor::{HOLD_KEY, Role, SETTLE_KEY};
use crate::rules::checked::{Allowance, DescriptorConfig, LimitConfig, Place, RuleConfig, SettingOrigin};
use crate::rules::config::{FieldPath, Raw, RawDescriptor};
use crate::rules::options::weigh_by;
use crate::rules::pairs;
use crate::rules::report::{Position, Problem, Report, Severity};

/// The key required for a concurrency limit.
const STREAM_KEY: &str = "stream";

/// Returns the key required for a limit of this algorithm, if the last entry of a descriptor names a stream.
pub fn holder_key(algorithm: Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::Budget => Some(HOLD_KEY),
        _ => algorithm.has_holders().then_some(STREAM_KEY),
    }
}

/// The descriptors of one level that have been validated so far.
#[derive(Debug, Default)]
pub struct Level {
    pub(super) configs: Vec<DescriptorConfig>,
    pub(super) siblings: Siblings,
    /// Indexes and positions of descriptors with neither a limit nor descriptors below them.
    empty: Vec<(usize, Option<Position>)>,
}

/// A descriptor of a list.
#[derive(Debug)]
pub struct Item<'i, 'r> {
    /// Its path.
    pub path: FieldPath<'i>,
    /// Its contents, apart from the descriptors in it.
    pub raw: &'i RawDescriptor<'r>,
    /// The validated level of its descriptors.
    pub below: Level,
}

/// The descriptors of one level by a hash of key and value, with the place of the first of each. There may be a
/// million, so it stores 16-byte hashes instead of texts; collisions are out of reach.
#[derive(Debug, Default)]
pub(super) struct Siblings(HashMap<[u8; 16], First>);

/// The place of a descriptor.
#[derive(Clone, Copy, Debug)]
struct First {
    /// Index among the origins of its domain.
    origin: u32,
    /// Index in the list of its origin.
    index: u32,
    position: Option<(u32, u32)>,
}

impl First {
    fn mark(&self, origin: &Arc<Path>) -> Mark {
        let position = self.position.map(|(line, column)| Position { line: line as usize, column: column as usize });
        Mark { origin: Arc::clone(origin), position }
    }
}

impl Siblings {
    /// Inserts a name, or fails with the first descriptor that has it.
    fn insert(&mut self, name: [u8; 16], new: First) -> Result<(), First> {
        match self.0.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(new);
                Ok(())
            }
            Entry::Occupied(entry) => Err(*entry.get()),
        }
    }

    /// Adds the descriptors of another origin to the same top level. That origin comes last in `origins`.
    pub(super) fn join(
        &mut self,
        (other, holder): (Siblings, Option<&Arc<str>>),
        origins: &[&Arc<Path>],
        report: &mut Report,
    ) {
        let Some(origin) = origins.len().checked_sub(1) else { return };
        let mut others: Vec<_> = other.0.into_iter().collect();
        others.sort_unstable_by_key(|(_, first)| first.index);
        for (name, first) in others {
            let new = First { origin: origin as u32, ..first };
            if let Err(before) = self.insert(name, new) {
                let path = FieldPath::Root.key("descriptors");
                let message = same_as(path.item(before.index as usize), &before.mark(origins[before.origin as usize]));
                let path = held(holder, path.item(new.index as usize).to_string());
                report.add(new.mark(origins[origin]).problem(path, message));
            }
        }
    }
}

/// Hashes a key and a value, or a key alone. Equal hashes of different texts cannot be found.
fn hash(key: &str, value: Option<&str>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes());
    if let Some(value) = value {
        hasher.update(b"=").update(value.as_bytes());
    }
    let mut name = [0; 16];
    hasher.finalize_xof().fill(&mut name);
    name
}

fn same_as(path: FieldPath<'_>, mark: &Mark) -> String {
    format!("has the same key and value as {path} at {mark}")
}

impl PartBuilder {
    /// Validates the descriptors of a list and all below them.
    pub(super) fn list(
        &mut self,
        complaints: &mut Complaints<'_>,
        list: &[Raw<RawDescriptor<'_>>],
        (path, depth): (FieldPath<'_>, usize),
    ) -> Level {
        let mut level = Level::default();
        if depth > MAX_LEVELS {
            complaints.error(path, format!("descriptors may nest up to {MAX_LEVELS} levels deep"));
            return level;
        }
        for (index, raw) in list.iter().enumerate() {
            let Some(raw) = raw.get() else { continue };
            let path = path.item(index);
            let below = self.below(complaints, raw, (path, depth));
            self.add(complaints, &mut level, Item { path, raw, below });
        }
        self.close(complaints.origin.name(), &level, path);
        level
    }

    /// Validates the descriptors inside a descriptor at this depth.
    pub fn below(
        &mut self,
        complaints: &mut Complaints<'_>,
        raw: &RawDescriptor<'_>,
        (path, depth): (FieldPath<'_>, usize),
    ) -> Level {
        let list = raw.descriptors.get();
        list.map(|list| self.list(complaints, list, (path.key("descriptors"), depth + 1))).unwrap_or_default()
    }

    /// Validates a descriptor, and adds it to its level.
    pub fn add(&mut self, complaints: &mut Complaints<'_>, level: &mut Level, Item { path, raw, below }: Item<'_, '_>) {
        let config = Tree { complaints, part: self }.descriptor(raw, path, below);
        let Some(config) = config else { return };
        let position = complaints.origin.position(&path);
        complaints.check_unique((path, position), &config, &mut level.siblings);
        if complaints.report.has_errors() {
            // The rules are rejected already, and further mistakes are found without the descriptor.
            return;
        }
        if config.is_empty() {
            level.empty.push((level.configs.len(), position));
        }
        level.configs.push(config);
    }

    /// Checks a complete level for descriptors without effect.
    pub fn close(&mut self, file: &Arc<Path>, level: &Level, list: FieldPath<'_>) {
        if level.empty.is_empty() {
            return;
        }
        let is_top = matches!(list, FieldPath::Key(FieldPath::Root, _));
        let others = if is_top && self.options.merge_domains { Others::Possible } else { Others::None };
        for (index, position) in idle(&level.configs, &level.empty, others) {
            let message = "does nothing: it has neither a limit nor descriptors, and does not exempt requests from \
                           another rule";
            let (file, path) = (Arc::clone(file), list.item(index).to_string());
            let message = message.to_owned();
            self.idle.add(Problem { severity: Severity::Warning, file, position, path, message });
        }
    }
}

impl Complaints<'_> {
    fn check_unique(
        &mut self,
        (path, position): (FieldPath<'_>, Option<Position>),
        config: &DescriptorConfig,
        siblings: &mut Siblings,
    ) {
        let FieldPath::Item(list, index) = path else { return };
        let position = position.map(|Position { line, column }| (line as u32, column as u32));
        let new = First { origin: 0, index: index as u32, position };
        let of_budget = config.rule.as_ref().is_some_and(RuleConfig::is_budget).then_some((SETTLE_KEY, None));
        for (key, value) in [(&*config.key, config.value.as_deref())].into_iter().chain(of_budget) {
            let Err(before) = siblings.insert(hash(key, value), new) else { continue };
            let other = list.item(before.index as usize);
            let message = match (key, value) {
                (SETTLE_KEY, None) if before.index != new.index => format!(
                    "{HOLD_KEY} and {SETTLE_KEY} cannot both be here: where {HOLD_KEY} has a budget, {SETTLE_KEY} \
                     settles it; see {other}"
                ),
                _ => same_as(other, &before.mark(self.origin.name())),
            };
            self.error(path, message);
        }
    }
}

/// Validates one descriptor.
pub(super) struct Tree<'t, 'r> {
    pub(super) complaints: &'t mut Complaints<'r>,
    pub(super) part: &'t mut PartBuilder,
}

impl Tree<'_, '_> {
    fn descriptor(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>, below: Level) -> Option<DescriptorConfig> {
        let key = self.complaints.required_text(&raw.key, path.key("key"));
        let value = raw.value.get().filter(|value| !value.is_empty()).map(|value| &**value);
        self.check_patterns(key, value, path);
        let share_threshold = raw.share_threshold.is_set();
        if share_threshold && ![key, value].into_iter().flatten().any(|text| text.contains('*')) {
            let message = "values share a threshold only where the key or the value has a wildcard (*)";
            self.complaints.error(path.key("share_threshold"), message);
        }
        let rule = self.rule(raw, path);
        if let Some(rule) = &rule {
            self.check_holders(rule, key.filter(|_| value.is_none()), path);
            self.check_weights(rule, &below, path);
        }
        if let Some(rule) = &rule {
            let is_per_value = value.is_none_or(|value| value.contains('*')) && !share_threshold;
            self.advise_on_leases(rule, key.filter(|_| is_per_value), path);
            self.advise_on_shares(rule, path);
        }
        let place = Place { origin: 0, line: self.complaints.line(path) };
        let (detailed_metric, value_to_metric) = (raw.detailed_metric.is_set(), raw.value_to_metric.is_set());
        if detailed_metric && raw.rate_limit.is_missing() && raw.rate_limits.is_missing() {
            let message = "does nothing without a rate_limit in the same descriptor; it is not inherited";
            self.complaints.warn(path.key("detailed_metric"), message);
        }
        Some(DescriptorConfig {
            place,
            key: key?.into(),
            value: value.map(Into::into),
            share_threshold,
            detailed_metric,
            value_to_metric,
            rule,
            descriptors: below.configs,
        })
    }

    /// Warns of texts that look like patterns, as they are matched literally, which is probably not intended.
    fn check_patterns(&mut self, key: Option<&str>, value: Option<&str>, path: FieldPath<'_>) {
        for (name, text) in [("key", key), ("value", value)] {
            if let Some(message) = text.and_then(taken_for) {
                self.complaints.warn(path.key(name), message);
            }
        }
        if key == Some("remote_address") && value.is_some_and(is_network) {
            let message = "an entry has a single address, never a network: send masked_remote_address from Envoy, and \
                           match that";
            self.complaints.warn(path.key("value"), message);
        }
    }

    /// Checks that a limit with holders is on the key that names them; `key` is that of a descriptor without a value.
    fn check_holders(&mut self, rule: &RuleConfig, key: Option<&str>, path: FieldPath<'_>) {
        let is_budget = rule.is_budget();
        for algorithm in rule.algorithms() {
            let message = match algorithm.and_then(|algorithm| Some((algorithm, holder_key(algorithm)?))) {
                Some((_, needed)) if key == Some(needed) => continue,
                Some((Algorithm::Budget, needed)) => format!(
                    "a budget needs the key {needed} without a value: the value in a request is the unique ID of a \
                     stream, and the key {SETTLE_KEY} with the same value settles it; put {needed} one level below the \
                     entry to limit"
                ),
                Some((algorithm, needed)) => format!(
                    "a {algorithm} limit needs the key {needed} without a value: the value in a request is its unique \
                     ID, by which its slot is released; put {needed} one level below the entry to limit"
                ),
                None if is_budget => format!(
                    "a limit beside a budget would count each stream on its own, by its ID: put it on a descriptor \
                     without the key {HOLD_KEY}"
                ),
                None => continue,
            };
            let at = if rule.limits.len() > 1 { "rate_limits" } else { "rate_limit" };
            self.complaints.error(path.key(at), message);
        }
    }

    /// Checks that the entries after those of a rule can only mean its prices.
    fn check_weights(&mut self, rule: &RuleConfig, below: &Level, path: FieldPath<'_>) {
        let weights = rule.limits.iter().map(|limit| limit.config.options.weigh_by.as_ref());
        let weights: Vec<_> = weights.enumerate().filter_map(|(index, weights)| Some((index, weights?))).collect();
        let Some((first, rest)) = weights.split_first() else { return };
        for (index, _) in rest.iter().filter(|(_, other)| other.keys != first.1.keys) {
            let message = format!("differs from that of rate_limits[{}]: the same entries follow for both", first.0);
            self.complaints.error(path.key("rate_limits").item(*index).key(weigh_by::KEY.name), message);
        }
        if !below.configs.is_empty() {
            let message = "cannot be below a limit with weigh_by: the entries that follow choose its price; move them \
                           one level up";
            self.complaints.error(path.key("descriptors"), message);
        }
    }

    /// Advises on leases that save nothing. `per_value` is the key, if each of its values has a separate counter.
    fn advise_on_leases(&mut self, rule: &RuleConfig, per_value: Option<&str>, path: FieldPath<'_>) {
        for config in &rule.limits {
            let LimitConfig { origins, allowance, options, .. } = &*config.config;
            let lease = options.lease.filter(|_| origins.lease == SettingOrigin::Limit);
            let (Allowance::Limited(limit), Some(lease)) = (allowance, lease) else { continue };
            let leasing = Leasing { lease, limit, cost: options.cost, per_value };
            if let Some(Advice { severity, key, message }) = leasing.advice() {
                let problem = self.complaints.problem(severity, path.key("rate_limit").key("lease").key(key), message);
                self.complaints.report.add(problem);
            }
        }
    }

    /// Advises on shares that save nothing.
    fn advise_on_shares(&mut self, rule: &RuleConfig, path: FieldPath<'_>) {
        for config in &rule.limits {
            let LimitConfig { origins, allowance, options, .. } = &*config.config;
            let share = options.own_share.filter(|_| origins.own_share == SettingOrigin::Limit);
            let (Allowance::Limited(limit), Some(share)) = (allowance, share) else { continue };
            if let Some((severity, message)) = own_share::advice(share, limit, options.cost) {
                let problem = self.complaints.problem(severity, path.key("rate_limit").key("own_share"), message);
                self.complaints.report.add(problem);
            }
        }
    }

    /// Reads the role. Shadow mode overrides quota mode, since a limit that never denies needs no quota.
    fn role(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>) -> Role {
        let mut found = Role::Enforced;
        let roles = [("quota_mode", &raw.quota_mode, Role::Quota), ("shadow_mode", &raw.shadow_mode, Role::Shadow)];
        for (key, _, role) in roles.into_iter().filter(|(_, flag, _)| flag.is_set()) {
            found = role;
            if !self.has_limit(raw, path, key) {
                continue;
            }
            let is_unlimited = raw.rate_limit.get().is_some_and(|limit| limit.flag("unlimited").is_set());
            if let Some(conflict) = pairs::between(key, "unlimited").filter(|_| is_unlimited) {
                self.complaints.warn(path.key(key), &*conflict.why);
            }
        }
        found
    }

    /// Checks that there is a limit, without which a key for limits has no effect.
    fn has_limit(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>, key: &str) -> bool {
        let has_limit = !(raw.rate_limit.is_missing() && raw.rate_limits.is_missing());
        if !has_limit {
            let message = "does nothing without a rate_limit in the same descriptor; it is not inherited";
            self.complaints.warn(path.key(key), message);
        }
        has_limit
    }

    /// Reports limits in shadow mode that are enforced for a share of their keys.
    fn refuse_shares(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>) {
        let Some(conflict) = pairs::between("enforce", "shadow_mode") else { return };
        if raw.rate_limit.get().is_some_and(|limit| !limit.get("enforce").is_missing()) {
            self.complaints.error(path.key("rate_limit").key("enforce"), &*conflict.why);
        }
        for (index, limit) in raw.rate_limits.get().into_iter().flatten().enumerate() {
            if limit.get().is_some_and(|limit| !limit.get("enforce").is_missing()) {
                self.complaints.error(path.key("rate_limits").item(index).key("enforce"), &*conflict.why);
            }
        }
    }

    fn rule(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>) -> Option<RuleConfig> {
        let role = self.role(raw, path);
        let metadata = raw.metadata.get().filter(|metadata| !metadata.is_empty()).cloned();
        if metadata.is_some() {
            self.has_limit(raw, path, "metadata");
        }
        if role == Role::Shadow {
            self.refuse_shares(raw, path);
        }
        let limits = match (&raw.rate_limit, &raw.rate_limits) {
            (Raw::Missing, Raw::Missing) => return None,
            (limit, Raw::Missing) => {
                vec![self.rate_limit(limit.get()?, path.key("rate_limit"), Count::Alone)?]
            }
            (Raw::Missing, list) => self.rate_limits(list.get()?, path.key("rate_limits")),
            _ => {
                let message = "a descriptor takes rate_limit or rate_limits, not both: remove one of the two";
                self.complaints.error(path.key("rate_limits"), message);
                return None;
            }
        };
        Some(RuleConfig { role, metadata, limits })
    }
}
