//! What a rules file says, and every refusal.
//!
//! A mistake is reported and reading goes on with something harmless in its place, to find the next one; a report that holds an
//! error never becomes rules. What the reference accepts is accepted here, with a warning where it does not do what its author
//! must believe.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::document::{self, Document, Node, Value};
use super::fields::{self, Fields, File, Spot, Trail, kind};
use super::load::LoadOptions;
use super::report::{Position, Problem, Report, Severity, nearest, quoted, unknown};
use super::scalar::Plain;
use super::{Allowance, Defaults, DescriptorConfig, DomainConfig, FailureMode, Role, RuleConfig};
use crate::algorithm::{Algorithm, Limit, LimitError, Options};
use crate::descriptor::Unit;

/// How deep descriptors may nest.
pub const MAX_LEVELS: usize = 64;

/// Reads one file after the other, and then what concerns them all.
#[derive(Debug)]
pub(super) struct Reader {
    options: LoadOptions,
    domains: Vec<Domain>,
    by_name: HashMap<String, usize>,
}

/// A domain, as far as its files have been read.
#[derive(Debug)]
struct Domain {
    name: String,
    /// The first file that names it.
    file: Arc<Path>,
    /// Of all its files; where two differ, the first counts.
    defaults: FileDefaults,
    descriptors: Vec<DescriptorConfig>,
    /// The top level, to which several files may add.
    siblings: Siblings,
    names: Names,
}

/// What a file's `defaults` say.
#[derive(Clone, Copy, Debug, Default)]
struct FileDefaults {
    algorithm: Option<Algorithm>,
    failure_mode: Option<FailureMode>,
}

/// The descriptors of one level by key and value, and where each stands.
type Siblings = HashMap<(String, Option<String>), Place>;

/// What rules are called, and what they call others.
#[derive(Debug, Default)]
struct Names {
    given: HashSet<String>,
    replaced: Vec<(String, Place)>,
}

/// A place in some file.
#[derive(Clone, Debug)]
struct Place {
    file: Arc<Path>,
    position: Position,
    path: String,
}

impl Reader {
    pub(super) fn new(options: LoadOptions) -> Reader {
        Reader { options, domains: Vec::new(), by_name: HashMap::new() }
    }

    /// Reads the text of a file. Its mistakes go to the report.
    pub(super) fn read(&mut self, file: &Path, text: &str, report: &mut Report) {
        let mut file = File { name: file.into(), report };
        let Some(root) = root(&mut file, text) else { return };
        let spot = Spot { node: &root, trail: Trail::Root };
        let Some(fields) = file.fields(&spot, &fields::ROOT) else { return };
        let settings = self.options.defaults;
        let domain = self.domain(&mut file, &fields);

        let defaults = file_defaults(&mut file, &fields);
        domain.defaults = domain.defaults.or(defaults);
        let mut tree = Tree { file, defaults: defaults.or_settings(settings), names: &mut domain.names };
        if let Some(descriptors) = fields.get("descriptors") {
            domain.descriptors.extend(tree.level(descriptors, 1, &mut domain.siblings));
        }
    }

    /// The domain that a file adds to. It is new, unless files are to be merged.
    fn domain(&mut self, file: &mut File<'_>, fields: &Fields<'_>) -> &mut Domain {
        let name = file.required_text(fields, "domain").unwrap_or_default();
        if let Some(&index) = self.by_name.get(name) {
            if self.options.merge_domains {
                return &mut self.domains[index];
            }
            let first = self.domains[index].file.display();
            let hint = "one file holds a domain, unless MERGE_DOMAIN_CONFIG=true";
            file.error(fields.place("domain"), format!("{} is already the domain of {first}; {hint}", quoted(name)));
        }
        let index = self.domains.len();
        if !name.is_empty() {
            self.by_name.entry(name.to_owned()).or_insert(index);
        }
        self.domains.push(Domain {
            name: name.to_owned(),
            file: Arc::clone(&file.name),
            defaults: FileDefaults::default(),
            descriptors: Vec::new(),
            siblings: Siblings::new(),
            names: Names::default(),
        });
        &mut self.domains[index]
    }

    /// Every domain. They are of no use where the report holds an error.
    pub(super) fn finish(self, report: &mut Report) -> Vec<DomainConfig> {
        let settings = self.options.defaults;
        let mut configs = Vec::with_capacity(self.domains.len());
        for Domain { name, defaults, descriptors, names, .. } in self.domains {
            names.warn_of_unknown(&name, report);
            configs.push(DomainConfig { name, defaults: defaults.or_settings(settings), descriptors });
        }
        configs
    }
}

impl FileDefaults {
    fn or(self, other: FileDefaults) -> FileDefaults {
        FileDefaults {
            algorithm: self.algorithm.or(other.algorithm),
            failure_mode: self.failure_mode.or(other.failure_mode),
        }
    }

    fn or_settings(self, settings: Defaults) -> Defaults {
        Defaults {
            algorithm: self.algorithm.unwrap_or(settings.algorithm),
            failure_mode: self.failure_mode.unwrap_or(settings.failure_mode),
        }
    }
}

impl Names {
    /// A request has one domain, so only a rule of the same domain can be replaced.
    fn warn_of_unknown(&self, domain: &str, report: &mut Report) {
        for (name, place) in self.replaced.iter().filter(|(name, _)| !self.given.contains(name)) {
            let names: Vec<_> = self.given.iter().map(String::as_str).collect();
            let near = nearest(name, &names).map(|near| format!(", did you mean {near:?}?")).unwrap_or_default();
            let message = format!("no rule of domain {} is named {}{near}", quoted(domain), quoted(name));
            let Place { file, position, path } = place.clone();
            report.add(Problem { severity: Severity::Warning, file, position: Some(position), path, message });
        }
    }
}

/// The tree of a file; `None` where it has none.
fn root<'t>(file: &mut File<'_>, text: &'t str) -> Option<Node<'t>> {
    let start = Position { line: 1, column: 1 };
    let Document { root, second } = match document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            file.add(Severity::Error, error.position(), Trail::Root, error.to_string());
            return None;
        }
    };
    if let Some(position) = second {
        let message = "a second YAML document begins here; only the first one counts";
        file.add(Severity::Warning, position, Trail::Root, message.to_owned());
    }
    match root {
        Some(Node { value: Value::Plain(text), .. }) if Plain::of(&text) == Plain::Null => None,
        root => root,
    }
    .or_else(|| {
        file.add(Severity::Error, start, Trail::Root, "the file is empty; it must begin with a domain".to_owned());
        None
    })
}

fn file_defaults(file: &mut File<'_>, root: &Fields<'_>) -> FileDefaults {
    let Some(spot) = root.get("defaults") else { return FileDefaults::default() };
    let Some(fields) = file.fields(&spot, &fields::DEFAULTS) else { return FileDefaults::default() };
    FileDefaults { algorithm: algorithm(file, &fields), failure_mode: failure_mode(file, &fields) }
}

fn algorithm(file: &mut File<'_>, fields: &Fields<'_>) -> Option<Algorithm> {
    let key = "algorithm";
    fields.get(key).and_then(|spot| file.choice(spot, key, Algorithm::ALL, Algorithm::name))
}

fn failure_mode(file: &mut File<'_>, fields: &Fields<'_>) -> Option<FailureMode> {
    let key = "failure_mode";
    fields.get(key).and_then(|spot| file.choice(spot, key, &FailureMode::ALL, FailureMode::name))
}

/// Reads the descriptors of a file.
struct Tree<'r> {
    file: File<'r>,
    /// What holds for a limit of this file that does not say otherwise.
    defaults: Defaults,
    names: &'r mut Names,
}

impl Tree<'_> {
    fn level(&mut self, list: Spot<'_>, level: usize, siblings: &mut Siblings) -> Vec<DescriptorConfig> {
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
        let rule = fields.get("rate_limit").and_then(|spot| self.rule(spot, role));
        let descriptors = match fields.get("descriptors") {
            Some(list) => self.level(list, level + 1, &mut Siblings::new()),
            None => Vec::new(),
        };
        Some(DescriptorConfig { key: key?, value, share_threshold, rule, descriptors })
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
                if fields.get("rate_limit").is_none() {
                    self.file
                        .warn(fields.place(key), "does nothing without a rate_limit beside it; it is not inherited");
                }
            }
        }
        found
    }

    fn check_unique(&mut self, spot: Spot<'_>, config: &DescriptorConfig, siblings: &mut Siblings) {
        let place = |file: &File<'_>| Place {
            file: Arc::clone(&file.name),
            position: spot.node.position,
            path: spot.trail.to_string(),
        };
        match siblings.entry((config.key.clone(), config.value.clone())) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(place(&self.file));
            }
            std::collections::hash_map::Entry::Occupied(entry) => {
                let Place { file, position: Position { line, column }, path } = entry.get();
                let file = file.display();
                let message = format!("has the same key and value as {path} at {file}:{line}:{column}");
                self.file.error(spot, message);
            }
        }
    }

    fn rule(&mut self, spot: Spot<'_>, role: Role) -> Option<RuleConfig> {
        let fields = self.file.fields(&spot, &fields::RATE_LIMIT)?;
        let name = fields.get("name").and_then(|spot| self.file.text(spot)).unwrap_or_default().to_owned();
        if !name.is_empty() {
            self.names.given.insert(name.clone());
        }
        let replaces = fields.get("replaces").map(|spot| self.replaces(spot, &name)).unwrap_or_default();
        let failure_mode = failure_mode(&mut self.file, &fields).unwrap_or(self.defaults.failure_mode);
        let unlimited = match fields.get("unlimited") {
            Some(spot) => self.file.flag(spot)?,
            None => false,
        };
        let allowance = if unlimited {
            self.check_unlimited(&fields);
            Allowance::Unlimited
        } else {
            Allowance::Limited(self.limit(&fields)?)
        };
        Some(RuleConfig { name, allowance, failure_mode, role, replaces })
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
            let path = place.trail.to_string();
            let place = Place { file: Arc::clone(&self.file.name), position: place.node.position, path };
            self.names.replaced.push((name.to_owned(), place));
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
        for key in ["requests_per_unit", "algorithm", "burst", "failure_mode", "count_denied"] {
            if let Some(spot) = fields.get(key) {
                self.file.warn(spot, "does nothing: an unlimited rule counts nothing");
            }
        }
    }

    fn limit(&mut self, fields: &Fields<'_>) -> Option<Limit> {
        let period = self.period(fields);
        let number = match fields.get("requests_per_unit") {
            Some(spot) => self.file.number(spot),
            None => {
                let place = fields.place("requests_per_unit");
                self.file.warn(place, "is missing, so it is 0 and every request is over the limit");
                Some(0)
            }
        };
        let algorithm = match fields.get("algorithm") {
            Some(_) => algorithm(&mut self.file, fields),
            None => Some(self.defaults.algorithm),
        };
        let options = Options {
            burst: fields.get("burst").and_then(|spot| self.file.number(spot)),
            count_denied: fields.get("count_denied").and_then(|spot| self.file.flag(spot)),
        };
        let limit = Limit::new(algorithm?, number?, period?, options);
        if let Err(error) = &limit {
            let key = match error {
                LimitError::Period => "period",
                LimitError::NoBurst(_) | LimitError::ZeroBurst | LimitError::EndlessRefill => "burst",
            };
            self.file.error(fields.place(key), error.to_string());
        }
        limit.ok()
    }

    fn period(&mut self, fields: &Fields<'_>) -> Option<Duration> {
        match (fields.get("unit"), fields.get("period")) {
            (Some(_), Some(period)) => {
                self.file.error(period, "a limit has a unit or a period: remove one of the two");
                None
            }
            (None, Some(period)) => self.length(period),
            (unit, None) => {
                let names = Unit::ALL.map(Unit::name);
                let name = match unit {
                    Some(spot) => self.file.text(spot)?,
                    None => "",
                };
                let found = unit_named(name);
                if name.is_empty() {
                    let message =
                        format!("is missing; it is one of {}, or there is a period such as 90s", names.join(", "));
                    self.file.error(fields.place("unit"), message);
                } else if found.is_none() {
                    self.file.error(fields.place("unit"), unknown("unit", name, &names));
                }
                found.map(Unit::duration)
            }
        }
    }

    /// A length of time that a person can read: `90s`.
    fn length(&mut self, spot: Spot<'_>) -> Option<Duration> {
        let (Value::Plain(text) | Value::Quoted(text)) = &spot.node.value else {
            self.file.error(spot, format!("must be a length of time such as 90s, not {}", kind(spot.node)));
            return None;
        };
        let length = humantime::parse_duration(text);
        if let Err(error) = &length {
            let message = format!("{} is no length of time ({error}); write 500ms, 90s, 15m or 1h30m", quoted(text));
            self.file.error(spot, message);
        }
        length.ok()
    }
}

fn unit_named(name: &str) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
}
