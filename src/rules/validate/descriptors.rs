//! The tree of descriptors.

use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use super::idle::{Others, idle};
use super::pattern::{is_network, taken_for};
use super::{Complaints, GivenDefaults, MAX_LEVELS, Mark, Names};
use crate::descriptor::Role;
use crate::rules::checked::{Allowance, Defaults, DescriptorConfig, Place, RuleConfig};
use crate::rules::config::{FieldPath, Raw, RawDescriptor};
use crate::rules::report::Report;

/// The key that a limit with holders stands on.
pub const HOLDER_KEY: &str = "stream";

/// Validates the descriptors of one origin.
pub(super) struct Tree<'r> {
    pub(super) complaints: Complaints<'r>,
    /// What holds for a limit that does not say otherwise.
    pub(super) defaults: Defaults,
    /// What of that the origin says itself.
    pub(super) given: GivenDefaults,
    /// Beside the descriptors of the top level.
    pub(super) others: Others,
    /// Which origin of its domain it is.
    pub(super) origin: u32,
    pub(super) names: &'r mut Names,
}

/// The descriptors of one level by key and value, and where the first of each stands.
#[derive(Debug, Default)]
pub(super) struct Siblings(HashMap<(String, Option<String>), First>);

#[derive(Debug)]
struct First {
    mark: Mark,
    /// In the list of its origin.
    index: usize,
}

impl Siblings {
    /// Adds those of another origin on the same level, which is the top.
    pub(super) fn join(&mut self, other: Siblings, report: &mut Report) {
        let mut others: Vec<_> = other.0.into_iter().collect();
        others.sort_unstable_by_key(|(_, first)| first.index);
        for (name, First { mark, index }) in others {
            let path = FieldPath::Root.key("descriptors");
            if let Err(message) = self.add(name, First { mark: mark.clone(), index }, path) {
                report.add(mark.problem(path.item(index).to_string(), message));
            }
        }
    }

    /// Fails where there is one of this name.
    fn add(&mut self, name: (String, Option<String>), new: First, list: FieldPath<'_>) -> Result<(), String> {
        match self.0.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(new);
                Ok(())
            }
            Entry::Occupied(entry) => {
                let First { mark, index } = entry.get();
                Err(format!("has the same key and value as {} at {mark}", list.item(*index)))
            }
        }
    }
}

impl Tree<'_> {
    /// The descriptors of a list, of which others on the same level may have been validated.
    pub(super) fn level(
        &mut self,
        list: &[Raw<RawDescriptor<'_>>],
        path: FieldPath<'_>,
        level: usize,
        siblings: &mut Siblings,
    ) -> Vec<DescriptorConfig> {
        if level > MAX_LEVELS {
            self.complaints.error(path, format!("descriptors may nest up to {MAX_LEVELS} levels deep"));
            return Vec::new();
        }
        let mut configs = Vec::new();
        for (index, raw) in list.iter().enumerate() {
            let Some(config) = raw.get().and_then(|raw| self.descriptor(raw, path.item(index), level)) else {
                continue;
            };
            self.check_unique(path, index, &config, siblings);
            configs.push(config);
        }
        // What has a mistake may do nothing for that alone.
        if !self.complaints.report.has_errors() {
            for index in idle(list, if level == 1 { self.others } else { Others::None }) {
                let message = "does nothing: it has neither a limit nor descriptors, and is no exemption from another";
                self.complaints.warn(path.item(index), message);
            }
        }
        configs
    }

    fn descriptor(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>, level: usize) -> Option<DescriptorConfig> {
        let key = self.complaints.required_text(&raw.key, path.key("key")).map(str::to_owned);
        let value = raw.value.get().filter(|value| !value.is_empty()).map(|value| value.clone().into_owned());
        self.check_patterns(&key, &value, path);
        let share_threshold = raw.share_threshold.is_set();
        if share_threshold && ![&key, &value].into_iter().flatten().any(|text| text.contains('*')) {
            let message = "values share a threshold only where the key or the value has a wildcard (*)";
            self.complaints.error(path.key("share_threshold"), message);
        }
        let rule = self.rule(raw, path);
        if let Some(rule) = &rule
            && (key.as_deref() != Some(HOLDER_KEY) || value.is_some())
        {
            self.check_holders(rule, path);
        }
        let descriptors = match raw.descriptors.get() {
            Some(list) => self.level(list, path.key("descriptors"), level + 1, &mut Siblings::default()),
            None => Vec::new(),
        };
        let place = Place { origin: self.origin, line: self.complaints.line(path) };
        Some(DescriptorConfig { place, key: key?, value, share_threshold, rule, descriptors })
    }

    /// What looks like a pattern matches as it is written, which is hardly meant.
    fn check_patterns(&mut self, key: &Option<String>, value: &Option<String>, path: FieldPath<'_>) {
        for (name, text) in [("key", key), ("value", value)] {
            if let Some(message) = text.as_deref().and_then(taken_for) {
                self.complaints.warn(path.key(name), message);
            }
        }
        if key.as_deref() == Some("remote_address") && value.as_deref().is_some_and(is_network) {
            let message = "an address is never a network: let Envoy send masked_remote_address, and match that";
            self.complaints.warn(path.key("value"), message);
        }
    }

    /// A limit that has holders needs the key that names them.
    fn check_holders(&mut self, rule: &RuleConfig, path: FieldPath<'_>) {
        for config in &rule.limits {
            if let Allowance::Limited(limit) = config.allowance
                && limit.algorithm().has_holders()
            {
                let message = format!(
                    "a {} limit stands on the key {HOLDER_KEY}, without a value: what comes there, an id of each \
                     request's own, says whose slot is released; put {HOLDER_KEY} one level below what is limited",
                    limit.algorithm()
                );
                self.complaints.error(path.key("rate_limit"), message);
            }
        }
    }

    /// Shadow wins over quota: what is never denied needs no quota.
    fn role(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>) -> Role {
        let mut found = Role::Enforced;
        let roles = [("quota_mode", &raw.quota_mode, Role::Quota), ("shadow_mode", &raw.shadow_mode, Role::Shadow)];
        for (key, _, role) in roles.into_iter().filter(|(_, flag, _)| flag.is_set()) {
            found = role;
            self.check_has_limit(raw, path, key);
        }
        found
    }

    /// What stands beside a limit says nothing alone.
    fn check_has_limit(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>, key: &str) {
        if raw.rate_limit.is_missing() && raw.rate_limits.is_missing() {
            let message = "does nothing without a rate_limit beside it; it is not inherited";
            self.complaints.warn(path.key(key), message);
        }
    }

    fn check_unique(&mut self, list: FieldPath<'_>, index: usize, config: &DescriptorConfig, siblings: &mut Siblings) {
        let (path, origin) = (list.item(index), self.complaints.origin);
        let mark = Mark { origin: Arc::clone(origin.name()), position: origin.position(&path) };
        let name = (config.key.clone(), config.value.clone());
        if let Err(message) = siblings.add(name, First { mark, index }, list) {
            self.complaints.error(path, message);
        }
    }

    fn rule(&mut self, raw: &RawDescriptor<'_>, path: FieldPath<'_>) -> Option<RuleConfig> {
        let role = self.role(raw, path);
        let metadata = raw.metadata.get().filter(|metadata| !metadata.is_empty()).cloned();
        if metadata.is_some() {
            self.check_has_limit(raw, path, "metadata");
        }
        let limits = match (&raw.rate_limit, &raw.rate_limits) {
            (Raw::Missing, Raw::Missing) => return None,
            (limit, Raw::Missing) => vec![self.rate_limit(limit.get()?, path.key("rate_limit"))?],
            (Raw::Missing, list) => self.rate_limits(list.get()?, path.key("rate_limits")),
            _ => {
                let message = "a descriptor has a rate_limit or rate_limits: remove one of the two";
                self.complaints.error(path.key("rate_limits"), message);
                return None;
            }
        };
        Some(RuleConfig { role, metadata, limits })
    }
}
