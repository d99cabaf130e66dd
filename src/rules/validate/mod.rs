//! Every refusal and warning that is no matter of how a source writes things down: raw domains become
//! [`DomainConfig`]s.
//!
//! A mistake is reported by the path of its field, and validation goes on, to find the next one; a report that holds an
//! error never becomes rules. What `envoyproxy/ratelimit` accepts is accepted here, with a warning where it does not do
//! what it seems to.

mod descriptors;
mod idle;
mod limits;
mod pattern;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

pub(in crate::rules) use self::descriptors::HOLDER_KEY;
use self::descriptors::Siblings;
pub use self::descriptors::{Item, Level};
use super::checked::{Defaults, DescriptorConfig, FailureMode, LimitConfig, Line, OriginConfig};
use super::compiled::{CompiledDomain, CompiledPart, Rules, Subtree};
use super::config::{FieldPath, Raw, RawDefaults, RawDomain, Text};
use super::report::{Position, Problem, Report, Severity, nearest, quoted, unknown};
use crate::algorithm::Algorithm;

/// How deep descriptors may nest: Envoy Gateway makes a level of each of the 128 headers that a rule of its may match,
/// and some more of its route, addresses and the like.
pub const MAX_LEVELS: usize = 160;

/// How often names are compared in search of near ones; enough for people, and soon over for machines.
const COMPARISONS: usize = 100_000;

/// How rules are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// What holds where neither a limit nor its domain says otherwise.
    pub defaults: Defaults,
    /// Several files of one domain add up. Otherwise the second one is refused.
    pub merge_domains: bool,
    /// The longest file, and the most that aliases may add to one.
    pub max_file_bytes: u64,
}

impl Default for LoadOptions {
    /// As the settings are by default.
    fn default() -> Self {
        LoadOptions { defaults: Defaults::default(), merge_domains: false, max_file_bytes: MAX_FILE_BYTES }
    }
}

/// The longest file by default: room for some 170,000 rules.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Where a raw domain comes from.
pub trait Origin {
    /// What messages call it: a file's path, a resource's name.
    fn name(&self) -> &Arc<Path>;

    /// What it is, of which one holds a domain.
    fn kind(&self) -> &'static str {
        "file"
    }

    /// Where a field stands in it; of a field that is missing, where it is missing. `None` where there are no
    /// positions.
    fn position(&self, path: &FieldPath<'_>) -> Option<Position>;

    /// What in it holds these rules, where it can hold several: the resource and the key of a Kubernetes manifest.
    fn holder(&self) -> Option<&Arc<str>> {
        None
    }

    /// What messages call a field.
    fn path(&self, path: &FieldPath<'_>) -> String {
        path.to_string()
    }
}

/// Joins parts to domains, one after the other.
#[derive(Debug)]
pub struct Validation {
    options: LoadOptions,
    domains: Vec<Domain>,
    by_name: HashMap<String, usize>,
}

/// A domain, or a part of one, that has been validated by itself.
#[derive(Debug)]
pub struct Part {
    head: Head,
    descriptors: Vec<DescriptorConfig>,
}

/// A part that has been compiled, too.
#[derive(Debug)]
pub struct Compiled {
    head: Head,
    subtree: Subtree,
}

/// What joining parts needs of each.
#[derive(Debug)]
struct Head {
    name: String,
    /// What the domain is in.
    kind: &'static str,
    /// Where it is named.
    named: Mark,
    /// What holds it there.
    holder: Option<Arc<str>>,
    origin: OriginConfig,
    defaults: GivenDefaults,
    /// The top level, where several parts may add to it.
    siblings: Siblings,
    names: Names,
}

/// The parts of one name; or the only one, where they may not add up.
#[derive(Debug)]
struct Domain {
    /// The first.
    head: Head,
    parts: Vec<CompiledPart>,
}

/// What one origin says, descriptor by descriptor, each after those below it: a source need not have all of them in
/// memory at once.
#[derive(Debug)]
pub struct PartBuilder {
    options: LoadOptions,
    given: GivenDefaults,
    names: Names,
    /// What limits say, each once.
    limits: HashSet<Arc<LimitConfig>>,
    /// Which descriptors do nothing. What has a mistake may do nothing for that alone.
    idle: Report,
}

/// What limits are called, and what they call others.
#[derive(Debug, Default)]
struct Names {
    given: BTreeSet<Arc<str>>,
    /// With the problem that it is where nobody has that name.
    replaced: Vec<(String, Problem)>,
}

/// What `defaults` say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenDefaults {
    algorithm: Option<Algorithm>,
    failure_mode: Option<FailureMode>,
}

/// Where something stands, for what is said of it.
#[derive(Clone, Debug)]
struct Mark {
    origin: Arc<Path>,
    position: Option<Position>,
}

impl Part {
    /// Validates what one origin says. What is wrong with it goes to the report.
    pub fn validate(origin: &dyn Origin, raw: &RawDomain<'_>, options: &LoadOptions, report: &mut Report) -> Part {
        let mut builder = PartBuilder::new(GivenDefaults::of(&raw.defaults), options);
        let mut complaints = Complaints { origin, report };
        let path = FieldPath::Root.key("descriptors");
        let top = raw.descriptors.get().map(|list| builder.list(&mut complaints, list, (path, 1)));
        builder.finish(&mut complaints, raw, top.unwrap_or_default())
    }

    /// Makes of it what requests are matched with; nothing, where the report holds an error. It can be done for all
    /// parts side by side.
    pub fn compile(self, report: &Report) -> Compiled {
        let Part { head, descriptors } = self;
        let subtree = if report.has_errors() { Subtree::default() } else { Subtree::compile(&head.name, descriptors) };
        Compiled { head, subtree }
    }
}

impl PartBuilder {
    /// Nothing yet, where these defaults are given.
    pub fn new(given: GivenDefaults, options: &LoadOptions) -> PartBuilder {
        let (names, limits, idle) = (Names::default(), HashSet::new(), Report::default());
        PartBuilder { options: *options, given, names, limits, idle }
    }

    /// What it was made with.
    pub fn given(&self) -> GivenDefaults {
        self.given
    }

    /// What holds for a limit that does not say otherwise.
    fn defaults(&self) -> Defaults {
        self.given.or_settings(self.options.defaults)
    }

    /// The part, once its top level is complete.
    pub fn finish(self, complaints: &mut Complaints<'_>, raw: &RawDomain<'_>, top: Level) -> Part {
        let path = FieldPath::Root.key("domain");
        let name = complaints.required_text(&raw.domain, path).unwrap_or_default().to_owned();
        let named = Mark { origin: Arc::clone(complaints.origin.name()), position: complaints.origin.position(&path) };
        let defaults = raw.defaults.get().map(|raw| defaults(raw, complaints)).unwrap_or_default();
        let origin = complaints.origin_config(defaults);
        if !complaints.report.has_errors() {
            complaints.report.merge(self.idle);
        }
        // What has a mistake may be empty for that alone.
        if top.configs.is_empty() && !self.options.merge_domains && !complaints.report.has_errors() {
            let path = FieldPath::Root.key("descriptors");
            complaints.warn(path, "there are none, so no request of this domain is limited");
        }
        let Level { configs: descriptors, siblings, .. } = top;
        // Otherwise no other part adds to them.
        let siblings = if self.options.merge_domains { siblings } else { Siblings::default() };
        let (kind, holder) = (complaints.origin.kind(), complaints.origin.holder().cloned());
        Part { head: Head { name, kind, named, holder, origin, defaults, siblings, names: self.names }, descriptors }
    }
}

impl Domain {
    /// Adds another part of the same domain. Of parts whose defaults differ, the first counts.
    fn join(&mut self, Compiled { head, subtree }: Compiled, report: &mut Report) {
        self.head.defaults = self.head.defaults.or(head.defaults);
        self.parts.push(CompiledPart { subtree, origins: vec![head.origin] });
        let origins: Vec<_> = self.parts.iter().flat_map(|part| &part.origins).map(|origin| &origin.name).collect();
        self.head.siblings.join((head.siblings, head.holder.as_ref()), &origins, report);
        self.head.names.given.extend(head.names.given);
        self.head.names.replaced.extend(head.names.replaced);
    }
}

impl Validation {
    /// Nothing yet.
    pub fn new(options: LoadOptions) -> Validation {
        Validation { options, domains: Vec::new(), by_name: HashMap::new() }
    }

    /// Joins a part to its domain. It is a domain of its own, unless parts are to be merged.
    pub fn join(&mut self, part: Compiled, report: &mut Report) {
        let head = &part.head;
        if let Some(&index) = self.by_name.get(&head.name) {
            let domain = &mut self.domains[index];
            if self.options.merge_domains {
                return domain.join(part, report);
            }
            let (name, first) = (quoted(&head.name), domain.head.named.origin.display().to_string());
            let first = held(domain.head.holder.as_ref(), first);
            let message = format!(
                "{name} is already the domain of {first}; one {} holds a domain, unless MERGE_DOMAIN_CONFIG=true",
                head.kind
            );
            report.add(head.named.problem(held(head.holder.as_ref(), "domain".to_owned()), message));
        }
        if !head.name.is_empty() {
            self.by_name.entry(head.name.clone()).or_insert(self.domains.len());
        }
        let Compiled { head, subtree } = part;
        let parts = vec![CompiledPart { subtree, origins: vec![head.origin.clone()] }];
        self.domains.push(Domain { head, parts });
    }

    /// Nothing has been added.
    pub(in crate::rules) fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The rules of every domain; none where the report holds an error.
    pub fn finish(self, report: &mut Report) -> Rules {
        let settings = self.options.defaults;
        let mut domains = Vec::with_capacity(self.domains.len());
        for Domain { head: Head { name, defaults, names, .. }, parts } in self.domains {
            warn_of_unknown(&name, names, report);
            domains.push(CompiledDomain { name, defaults: defaults.or_settings(settings), parts });
        }
        if report.has_errors() { Rules::default() } else { Rules::join(domains) }
    }
}

/// Something within what holds it.
fn held(holder: Option<&Arc<str>>, what: String) -> String {
    match holder {
        Some(holder) => format!("{holder}: {what}"),
        None => what,
    }
}

impl Mark {
    /// An error there.
    fn problem(&self, path: String, message: String) -> Problem {
        let (file, position) = (Arc::clone(&self.origin), self.position);
        Problem { severity: Severity::Error, file, position, path, message }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin.display())?;
        match self.position {
            Some(Position { line, column }) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

/// A request has one domain, so only a rule of the same domain can be replaced.
fn warn_of_unknown(domain: &str, names: Names, report: &mut Report) {
    let given: Vec<_> = names.given.iter().map(|name| &**name).collect();
    let mut comparisons = 0;
    for (name, problem) in names.replaced.into_iter().filter(|(name, _)| !names.given.contains(name.as_str())) {
        comparisons += given.len();
        let near = if comparisons <= COMPARISONS { nearest(&name, &given) } else { None };
        let near = near.map(|near| format!(", did you mean {}?", quoted(near))).unwrap_or_default();
        let message = format!("no rule of domain {} is named {}{near}", quoted(domain), quoted(&name));
        report.add(Problem { message, ..problem });
    }
}

fn defaults(raw: &RawDefaults<'_>, complaints: &mut Complaints<'_>) -> GivenDefaults {
    let path = FieldPath::Root.key("defaults");
    let algorithm = algorithm(&raw.algorithm, path, complaints);
    let algorithm = algorithm.filter(|algorithm| match algorithm.no_default() {
        Some(reason) => {
            complaints.error(path.key("algorithm"), reason);
            false
        }
        None => true,
    });
    GivenDefaults { algorithm, failure_mode: failure_mode(&raw.failure_mode, path, complaints) }
}

/// `of` is the mapping that the value stands in.
fn algorithm(raw: &Raw<Text<'_>>, of: FieldPath<'_>, complaints: &mut Complaints<'_>) -> Option<Algorithm> {
    complaints.choice(raw, of, "algorithm", Algorithm::ALL, Algorithm::name)
}

fn failure_mode(raw: &Raw<Text<'_>>, of: FieldPath<'_>, complaints: &mut Complaints<'_>) -> Option<FailureMode> {
    complaints.choice(raw, of, "failure_mode", &FailureMode::ALL, FailureMode::name)
}

impl GivenDefaults {
    /// What of them is right; of what is wrong nothing is said.
    pub fn of(raw: &Raw<RawDefaults<'_>>) -> GivenDefaults {
        let (origin, mut report) = (Nowhere(Path::new("").into()), Report::default());
        let mut complaints = Complaints { origin: &origin, report: &mut report };
        raw.get().map(|raw| defaults(raw, &mut complaints)).unwrap_or_default()
    }

    fn or(self, other: GivenDefaults) -> GivenDefaults {
        GivenDefaults {
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

/// What has no place.
struct Nowhere(Arc<Path>);

impl Origin for Nowhere {
    fn name(&self) -> &Arc<Path> {
        &self.0
    }

    fn position(&self, _: &FieldPath<'_>) -> Option<Position> {
        None
    }
}

/// Where what is wrong with one origin goes to.
pub struct Complaints<'r> {
    /// What they are about.
    pub origin: &'r dyn Origin,
    /// What collects them.
    pub report: &'r mut Report,
}

impl Complaints<'_> {
    fn error(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Error, path, message.into());
        self.report.add(problem);
    }

    fn warn(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Warning, path, message.into());
        self.report.add(problem);
    }

    fn hint(&mut self, path: FieldPath<'_>, message: impl Into<String>) {
        let problem = self.problem(Severity::Hint, path, message.into());
        self.report.add(problem);
    }

    fn problem(&self, severity: Severity, path: FieldPath<'_>, message: String) -> Problem {
        let (file, position) = (Arc::clone(self.origin.name()), self.origin.position(&path));
        Problem { severity, file, position, path: self.origin.path(&path), message }
    }

    /// The origin as it is remembered.
    fn origin_config(&self, defaults: GivenDefaults) -> OriginConfig {
        let of_defaults = FieldPath::Root.key("defaults");
        let line = |is_given: bool, key| if is_given { self.line(of_defaults.key(key)) } else { None };
        OriginConfig {
            name: Arc::clone(self.origin.name()),
            domain: self.line(FieldPath::Root.key("domain")),
            algorithm: line(defaults.algorithm.is_some(), "algorithm"),
            failure_mode: line(defaults.failure_mode.is_some(), "failure_mode"),
        }
    }

    /// The line of a field.
    fn line(&self, path: FieldPath<'_>) -> Line {
        let position = self.origin.position(&path)?;
        u32::try_from(position.line).ok().and_then(NonZeroU32::new)
    }

    /// A value that must be there; `hint` tells what is missing where it is not.
    fn required<'v, T>(&mut self, raw: &'v Raw<T>, path: FieldPath<'_>, hint: &str) -> Option<&'v T> {
        if raw.is_missing() {
            self.error(path, format!("is missing: {hint}"));
        }
        raw.get()
    }

    /// A text that must be there and must not be empty.
    fn required_text<'v>(&mut self, raw: &'v Raw<Text<'_>>, path: FieldPath<'_>) -> Option<&'v str> {
        let text = match raw {
            Raw::Missing => "",
            Raw::Unreadable => return None,
            Raw::Given(text) => text,
        };
        if text.is_empty() {
            self.error(path, "is missing or empty");
            return None;
        }
        Some(text)
    }

    /// The one of several that has this name.
    fn choice<T: Copy>(
        &mut self,
        raw: &Raw<Text<'_>>,
        of: FieldPath<'_>,
        key: &str,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> Option<T> {
        let given = raw.get()?;
        let found = all.iter().copied().find(|one| name(*one) == *given);
        if found.is_none() {
            let names: Vec<_> = all.iter().copied().map(name).collect();
            self.error(of.key(key), unknown(key, given, &names));
        }
        found
    }
}
