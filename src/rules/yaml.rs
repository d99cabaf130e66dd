//! What a rules file says, and every refusal.
//!
//! A mistake is reported and reading goes on, to find the next one; a report that holds an error never becomes rules. What the
//! reference accepts is accepted here, with a warning where it does not do what it seems to.

use std::collections::BTreeSet;
use std::collections::hash_map::{Entry, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::document::Value;
use super::fields::{self, Fields, File, Spot, kind};
use super::report::{Position, unknown};
use super::{Allowance, Defaults, DescriptorConfig, FailureMode, LimitConfig, RuleConfig};
use crate::algorithm::{Algorithm, Initial, Limit, LimitError, LimitErrors, Options, Penalty, Weighting};
use crate::descriptor::{Role, Unit};
use crate::lease::Lease;

/// How deep descriptors may nest.
const MAX_LEVELS: usize = 64;

/// The key that a limit with holders stands on.
const HOLDER_KEY: &str = "stream";

/// How long a slot is held that is not given back.
const HOLD: Duration = Duration::from_secs(60);

/// Stands for a length that cannot be read, so that what is beside it can be looked at.
const ANY_LENGTH: Duration = Duration::from_secs(1);

/// Reads the descriptors of a file.
pub(super) struct Tree<'r> {
    pub(super) file: File<'r>,
    /// What holds for a limit of this file that does not say otherwise.
    pub(super) defaults: Defaults,
    pub(super) names: &'r mut Names,
}

/// The descriptors of one level by key and value, and where each stands.
pub(super) type Siblings = HashMap<(String, Option<String>), Place>;

/// What rules are called, and what they call others.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) given: BTreeSet<String>,
    pub(super) replaced: Vec<(String, Place)>,
}

/// A place in some file.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: Arc<Path>,
    pub(super) position: Position,
    pub(super) path: String,
}

/// What a file's `defaults` say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FileDefaults {
    algorithm: Option<Algorithm>,
    failure_mode: Option<FailureMode>,
}

impl Tree<'_> {
    /// The descriptors of a list, of which others on the same level may have been read.
    pub(super) fn level(&mut self, list: Spot<'_>, level: usize, siblings: &mut Siblings) -> Vec<DescriptorConfig> {
        if level > MAX_LEVELS {
            self.file.error(list, format!("descriptors may nest up to {MAX_LEVELS} levels deep"));
            return Vec::new();
        }
        let mut configs = Vec::new();
        for (index, node) in self.file.items(&list).iter().enumerate() {
            let spot = list.item(index, node);
            let Some(config) = self.descriptor(spot, level) else { continue };
            self.check_unique(spot, &config, siblings);
            configs.push(config);
        }
        configs
    }

    fn descriptor(&mut self, spot: Spot<'_>, level: usize) -> Option<DescriptorConfig> {
        let fields = self.file.fields(&spot, &fields::DESCRIPTOR)?;
        let key = self.file.required_text(&fields, "key").map(str::to_owned);
        let value = fields.get("value").and_then(|spot| self.file.text(spot)).filter(|value| !value.is_empty());
        let value = value.map(str::to_owned);
        let share_threshold = self.file.is_set(&fields, "share_threshold");
        if share_threshold && ![&key, &value].into_iter().flatten().any(|text| text.contains('*')) {
            let message = "values share a threshold only where the key or the value has a wildcard (*)";
            self.file.error(fields.place("share_threshold"), message);
        }
        self.check_unused(&fields);
        let role = self.role(&fields);
        let rule = self.rule(&fields, role);
        if let Some(rule) = &rule
            && (key.as_deref() != Some(HOLDER_KEY) || value.is_some())
        {
            self.check_holders(&fields, rule);
        }
        let descriptors = match fields.get("descriptors") {
            Some(list) => self.level(list, level + 1, &mut Siblings::new()),
            None => Vec::new(),
        };
        Some(DescriptorConfig { key: key?, value, share_threshold, rule, descriptors })
    }

    /// A limit that has holders must be told who they are.
    fn check_holders(&mut self, fields: &Fields<'_>, rule: &RuleConfig) {
        for config in &rule.limits {
            if let Allowance::Limited(limit) = config.allowance
                && limit.algorithm().has_holders()
            {
                let message = format!(
                    "a {} limit stands on the key {HOLDER_KEY}, without a value: what comes there (Envoy's x-request-id) tells \
                     whose slot is given back; put {HOLDER_KEY} one level below what is limited",
                    limit.algorithm()
                );
                self.file.error(fields.place("rate_limit"), message);
            }
        }
    }

    /// What nothing depends on yet must still be of its type.
    fn check_unused(&mut self, fields: &Fields<'_>) {
        for metric in ["detailed_metric", "value_to_metric"] {
            self.file.is_set(fields, metric);
        }
        if let Some(spot) = fields.get("metadata")
            && !matches!(spot.node.value, Value::Map(_))
        {
            self.file.error(spot, format!("must be a mapping, not {}", kind(spot.node)));
        }
    }

    /// Shadow wins over quota: what is never denied needs no quota.
    fn role(&mut self, fields: &Fields<'_>) -> Role {
        let mut found = Role::Enforced;
        for (key, role) in [("quota_mode", Role::Quota), ("shadow_mode", Role::Shadow)] {
            if self.file.is_set(fields, key) {
                found = role;
                if fields.get("rate_limit").is_none() && fields.get("rate_limits").is_none() {
                    self.file
                        .warn(fields.place(key), "does nothing without a rate_limit beside it; it is not inherited");
                }
            }
        }
        found
    }

    fn check_unique(&mut self, spot: Spot<'_>, config: &DescriptorConfig, siblings: &mut Siblings) {
        match siblings.entry((config.key.clone(), config.value.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(self.place(spot));
            }
            Entry::Occupied(entry) => {
                let Place { file, position: Position { line, column }, path } = entry.get();
                let message = format!("has the same key and value as {path} at {}:{line}:{column}", file.display());
                self.file.error(spot, message);
            }
        }
    }

    fn place(&self, spot: Spot<'_>) -> Place {
        Place { file: Arc::clone(&self.file.name), position: spot.node.position, path: spot.trail.to_string() }
    }

    fn rule(&mut self, fields: &Fields<'_>, role: Role) -> Option<RuleConfig> {
        let limits = match (fields.get("rate_limit"), fields.get("rate_limits")) {
            (None, None) => return None,
            (Some(_), Some(list)) => {
                self.file.error(list, "a descriptor has a rate_limit or rate_limits: remove one of the two");
                return None;
            }
            (Some(spot), None) => vec![self.rate_limit(spot)?],
            (None, Some(list)) => self.rate_limits(list),
        };
        Some(RuleConfig { role, limits })
    }

    fn rate_limits(&mut self, list: Spot<'_>) -> Vec<LimitConfig> {
        let items = self.file.items(&list);
        if items.is_empty() && matches!(list.node.value, Value::List(_)) {
            self.file.error(list, "is empty: write a limit, or leave it out");
        }
        let mut limits = Vec::new();
        let mut counters: HashMap<String, usize> = HashMap::new();
        for (index, node) in items.iter().enumerate() {
            let spot = list.item(index, node);
            let Some(config) = self.rate_limit(spot) else { continue };
            match config.allowance {
                Allowance::Unlimited => self.file.error(spot, "among several limits none can be unlimited: remove it"),
                Allowance::Limited(limit) if limit.algorithm().has_holders() => {
                    let message = "among several limits none can count what is in progress: beside the key stream the others would \
                                   count each request for itself; let them stand on a descriptor without it";
                    self.file.error(spot, message);
                }
                Allowance::Limited(_) if config.lease.is_some() => {
                    let message = "among several limits none has a lease: the store decides all of them together; remove it, or \
                                   leave one limit";
                    self.file.error(spot, message);
                }
                Allowance::Limited(limit) => {
                    let mut counter = String::new();
                    limit.identity(&mut counter);
                    if let Some(other) = counters.insert(counter, index) {
                        let message = "has the same algorithm and period as";
                        self.file.error(spot, format!("{message} rate_limits[{other}]: keep the lower of the two"));
                    }
                }
            }
            limits.push(config);
        }
        limits
    }

    fn rate_limit(&mut self, spot: Spot<'_>) -> Option<LimitConfig> {
        let fields = self.file.fields(&spot, &fields::RATE_LIMIT)?;
        let name = fields.get("name").and_then(|spot| self.file.text(spot)).unwrap_or_default().to_owned();
        if !name.is_empty() {
            self.names.given.insert(name.clone());
        }
        let replaces = fields.get("replaces").map(|spot| self.replaces(spot, &name)).unwrap_or_default();
        let failure_mode = failure_mode(&mut self.file, &fields).unwrap_or(self.defaults.failure_mode);
        let cost = self.cost(&fields);
        let unlimited = match fields.get("unlimited") {
            Some(spot) => self.file.flag(spot)?,
            None => false,
        };
        if unlimited {
            self.check_unlimited(&fields);
            let allowance = Allowance::Unlimited;
            return Some(LimitConfig {
                name,
                allowance,
                failure_mode,
                cost: cost?,
                penalty: None,
                lease: None,
                replaces,
            });
        }
        let limit = self.limit(&fields);
        if let (Some(cost), Some(limit)) = (cost, &limit) {
            self.check_cost(&fields, cost, limit);
        }
        let penalty = fields.get("penalty").map(|spot| self.penalty(spot));
        let lease = fields.get("lease").map(|spot| self.lease(spot, limit.as_ref(), penalty.is_some()));
        // What is there and cannot be read has been reported.
        if penalty == Some(None) || lease == Some(None) {
            return None;
        }
        let (allowance, cost, penalty, lease) = (Allowance::Limited(limit?), cost?, penalty.flatten(), lease.flatten());
        Some(LimitConfig { name, allowance, failure_mode, cost, penalty, lease, replaces })
    }

    fn cost(&mut self, fields: &Fields<'_>) -> Option<u32> {
        let Some(spot) = fields.get("cost") else { return Some(1) };
        let cost = self.file.number(spot)?;
        if cost == 0 {
            self.file.error(spot, "must be at least 1: what costs nothing is unlimited: true");
            return None;
        }
        Some(cost)
    }

    /// A number of 0 says by itself that nothing passes.
    fn check_cost(&mut self, fields: &Fields<'_>, cost: u32, limit: &Limit) {
        let most = limit.capacity();
        if limit.number() > 0 && cost > most {
            let message =
                format!("no request ever passes: each costs {cost}, and no more than {most} can be taken at once");
            self.file.warn(fields.place("cost"), message);
        }
    }

    fn penalty(&mut self, spot: Spot<'_>) -> Option<Penalty> {
        let fields = self.file.fields(&spot, &fields::PENALTY)?;
        let file = &mut self.file;
        let after = file.required(&fields, "after", "how many denials bring a ban, such as 5");
        let after = after.and_then(|spot| file.number(spot));
        let within = file.required(&fields, "within", "the time in which denials are counted, such as 1m");
        let within = within.and_then(|spot| file.length(spot));
        let ban = file.required(&fields, "ban", "how long a ban lasts, such as 15m").and_then(|spot| file.length(spot));
        let extend = file.is_set(&fields, "extend");
        let is_whole = after.is_some() && within.is_some() && ban.is_some();
        let (after, [within, ban]) = (after.unwrap_or(1), [within, ban].map(|length| length.unwrap_or(ANY_LENGTH)));
        match Penalty::new(after, within, ban, extend) {
            Ok(penalty) => is_whole.then_some(penalty),
            Err(errors) => {
                errors.iter().for_each(|error| self.file.error(fields.place(error.key()), error.to_string()));
                None
            }
        }
    }

    fn lease(&mut self, spot: Spot<'_>, limit: Option<&Limit>, has_penalty: bool) -> Option<Lease> {
        let fields = self.file.fields(&spot, &fields::LEASE)?;
        let file = &mut self.file;
        let size = file.required(&fields, "size", "how many hits a process takes in advance, such as 50");
        let size = size.and_then(|spot| file.number(spot));
        let ttl = file.required(&fields, "ttl", "how long they may be used, such as 100ms");
        let ttl = ttl.and_then(|spot| file.length(spot));
        if has_penalty {
            let message = "a limit that has a penalty has no lease: a ban must be seen at once; remove one of the two";
            file.error(spot, message);
            return None;
        }
        let lease = Lease::new(size?, ttl?, limit?);
        if let Err(error) = &lease {
            let place = error.key().map_or(spot, |key| fields.place(key));
            file.error(place, error.to_string());
        }
        lease.ok()
    }

    fn replaces(&mut self, list: Spot<'_>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for (index, node) in self.file.items(&list).iter().enumerate() {
            let spot = list.item(index, node);
            let Some(fields) = self.file.fields(&spot, &fields::REPLACES) else { continue };
            let Some(name) = self.file.required_text(&fields, "name") else { continue };
            let place = fields.place("name");
            if name == own {
                self.file.error(place, "a rule cannot replace itself");
                continue;
            }
            self.names.replaced.push((name.to_owned(), self.place(place)));
            names.push(name.to_owned());
        }
        names
    }

    /// A unit is refused as in the reference; what else makes no sense here is legal there.
    fn check_unlimited(&mut self, fields: &Fields<'_>) {
        if let Some(spot) = fields.get("unit")
            && let Some(unit) = self.file.text(spot)
        {
            match unit_named(unit) {
                Some(_) => self.file.error(spot, "an unlimited rule has no unit: remove one of the two"),
                None if unit.is_empty() => {}
                None => self.file.warn(spot, "does nothing: an unlimited rule has no unit"),
            }
        }
        if let Some(spot) = fields.get("period") {
            self.file.error(spot, "an unlimited rule has no period: remove one of the two");
        }
        // Every other key is about counting.
        let elsewhere = ["name", "replaces", "unlimited", "unit", "period"];
        for key in fields::RATE_LIMIT.keys.iter().copied().filter(|key| !elsewhere.contains(key)) {
            if let Some(spot) = fields.get(key) {
                self.file.warn(spot, "does nothing: an unlimited rule counts nothing");
            }
        }
    }

    fn limit(&mut self, fields: &Fields<'_>) -> Option<Limit> {
        let algorithm = match fields.get("algorithm") {
            Some(_) => algorithm(&mut self.file, fields),
            None => Some(self.defaults.algorithm),
        };
        let period = match algorithm {
            Some(algorithm) if algorithm.has_holders() => self.hold(fields),
            // Whether it must have one, nobody knows.
            None if fields.get("unit").is_none() && fields.get("period").is_none() => None,
            _ => self.period(fields),
        };
        if let (Some(spot), Some(algorithm)) = (fields.get("hold"), algorithm)
            && !algorithm.has_holders()
        {
            self.file.error(spot, LimitError::NoOption(algorithm, "hold").to_string());
        }
        let number = match fields.get("requests_per_unit") {
            Some(spot) => self.file.number(spot),
            None => {
                let place = fields.place("requests_per_unit");
                self.file.warn(place, "is missing, so it is 0 and every request is over the limit");
                Some(0)
            }
        };
        let options = Options {
            count_denied: fields.get("count_denied").and_then(|spot| self.file.flag(spot)),
            burst: fields.get("burst").and_then(|spot| self.file.number(spot)),
            max_delay: fields.get("max_delay").and_then(|spot| self.file.length(spot)),
            initial: fields
                .get("initial")
                .and_then(|spot| self.file.choice(spot, "initial", &Initial::ALL, Initial::name)),
            segments: fields.get("segments").and_then(|spot| self.file.number(spot)),
            weighting: fields
                .get("weighting")
                .and_then(|spot| self.file.choice(spot, "weighting", &Weighting::ALL, Weighting::name)),
        };
        let (is_whole, number) = (number.is_some() && period.is_some(), number.unwrap_or(1));
        let limit = Limit::new(algorithm?, number, period.unwrap_or(ANY_LENGTH), options);
        self.readable(fields, limit, is_whole)
    }

    /// Reports all that is wrong with a limit. Where it is not whole, something else stands for what could not be read.
    fn readable(&mut self, fields: &Fields<'_>, limit: Result<Limit, LimitErrors>, is_whole: bool) -> Option<Limit> {
        let errors = match limit {
            Ok(limit) => return is_whole.then_some(limit),
            Err(LimitErrors(errors)) => errors,
        };
        for error in errors.iter().filter(|error| is_whole || !error.is_of_several()) {
            self.file.error(fields.place(error.key()), error.to_string());
        }
        None
    }

    fn period(&mut self, fields: &Fields<'_>) -> Option<Duration> {
        match (fields.get("unit"), fields.get("period")) {
            (Some(_), Some(period)) => {
                self.file.error(period, "a limit has a unit or a period: remove one of the two");
                None
            }
            (None, Some(period)) => self.file.length(period),
            (unit, None) => {
                let name = match unit {
                    Some(spot) => self.file.text(spot)?,
                    None => "",
                };
                self.unit(fields.place("unit"), name).map(Unit::duration)
            }
        }
    }

    /// The period of a limit of what is in progress.
    fn hold(&mut self, fields: &Fields<'_>) -> Option<Duration> {
        let mut wrong = false;
        for key in ["unit", "period"] {
            if let Some(spot) = fields.get(key) {
                wrong = true;
                let message = format!(
                    "concurrency has no {key}: requests_per_unit is how many may be in progress at once; how long a slot is held \
                     that is not given back, hold says"
                );
                self.file.error(spot, message);
            }
        }
        let hold = match fields.get("hold") {
            Some(spot) => self.file.length(spot)?,
            None => HOLD,
        };
        (!wrong).then_some(hold)
    }

    fn unit(&mut self, place: Spot<'_>, name: &str) -> Option<Unit> {
        let found = unit_named(name);
        if found.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let message = match name {
                "" => format!("is missing; it is one of {}, or there is a period such as 90s", names.join(", ")),
                _ => unknown("unit", name, &names),
            };
            self.file.error(place, message);
        }
        found
    }
}

impl FileDefaults {
    pub(super) fn or(self, other: FileDefaults) -> FileDefaults {
        FileDefaults {
            algorithm: self.algorithm.or(other.algorithm),
            failure_mode: self.failure_mode.or(other.failure_mode),
        }
    }

    pub(super) fn or_settings(self, settings: Defaults) -> Defaults {
        Defaults {
            algorithm: self.algorithm.unwrap_or(settings.algorithm),
            failure_mode: self.failure_mode.unwrap_or(settings.failure_mode),
        }
    }
}

/// The `defaults` of a file.
pub(super) fn file_defaults(file: &mut File<'_>, root: &Fields<'_>) -> FileDefaults {
    let Some(spot) = root.get("defaults") else { return FileDefaults::default() };
    let Some(fields) = file.fields(&spot, &fields::DEFAULTS) else { return FileDefaults::default() };
    let algorithm = algorithm(file, &fields).filter(|algorithm| match algorithm.no_default() {
        Some(reason) => {
            file.error(fields.place("algorithm"), reason);
            false
        }
        None => true,
    });
    FileDefaults { algorithm, failure_mode: failure_mode(file, &fields) }
}

fn algorithm(file: &mut File<'_>, fields: &Fields<'_>) -> Option<Algorithm> {
    let key = "algorithm";
    fields.get(key).and_then(|spot| file.choice(spot, key, Algorithm::ALL, Algorithm::name))
}

fn failure_mode(file: &mut File<'_>, fields: &Fields<'_>) -> Option<FailureMode> {
    let key = "failure_mode";
    fields.get(key).and_then(|spot| file.choice(spot, key, &FailureMode::ALL, FailureMode::name))
}

fn unit_named(name: &str) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
}
