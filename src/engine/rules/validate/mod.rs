//! Validation of rules, apart from a source's own syntax: turns raw domains into [`DomainConfig`]s, with errors and
//! warnings.
//!
//! A mistake is reported with the path of its field, and validation continues with the next one; a report with an error
//! never becomes rules. Anything that `envoyproxy/ratelimit` accepts is accepted, with a warning if it does not do what
//! it seems to.

mod descriptors;
mod idle;
mod lease;
mod limits;
mod own_share;
mod pattern;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use self::descriptors::Siblings;
pub use self::descriptors::holder_key;
pub use self::descriptors::{Item, Level};
use super::checked::{Defaults, DescriptorConfig, FailureMode, LimitConfig, OriginConfig};
use super::compiled::{CompiledDomain, CompiledPart, Rules, Subtree};
pub use super::complaints::{Complaints, Origin};
use super::config::{FieldPath, Raw, RawDefaults, RawDomain};
use super::expect::{self, Expect};
use super::options::lease::LeaseTerms;
use super::options::{self, denied_body};
use super::prices::{self, Prices};
use super::report::{Position, Problem, Report, Severity, nearest, quoted};
use crate::algorithm::Algorithm;

/// Deepest nesting of descriptors: Envoy Gateway creates one level for each of the 128 headers that a rule may match,
/// and more for its route, addresses and the like.
pub const MAX_LEVELS: usize = 160;

/// Largest number of comparisons in the search for similar names; enough for people, and fast.
const COMPARISONS: usize = 100_000;

/// Options of reading rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Values for limits that neither they nor their domain's defaults set.
    pub defaults: Defaults,
    /// Whether several files of one domain are merged. If not, the second one is an error.
    pub merge_domains: bool,
    /// Largest size of a file, and of the nodes that its aliases may add.
    pub max_file_bytes: u64,
}

impl Default for LoadOptions {
    /// Returns the defaults of the settings.
    fn default() -> Self {
        LoadOptions { defaults: Defaults::default(), merge_domains: false, max_file_bytes: MAX_FILE_BYTES }
    }
}

/// Default for the largest file: room for some 170,000 rules.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Joins parts to domains, one after the other.
#[derive(Debug)]
pub struct Validation {
    options: LoadOptions,
    domains: Vec<Domain>,
    by_name: HashMap<String, usize>,
}

/// A validated domain, or a validated part of one.
#[derive(Debug)]
pub struct Part {
    head: Head,
    descriptors: Vec<DescriptorConfig>,
}

/// A compiled part.
#[derive(Debug)]
pub struct Compiled {
    head: Head,
    subtree: Subtree,
}

/// The properties of a part needed for joining.
#[derive(Debug)]
struct Head {
    name: String,
    /// The kind of its source.
    kind: &'static str,
    /// The place of its name.
    named: Mark,
    /// What holds it inside its source.
    holder: Option<Arc<str>>,
    origin: OriginConfig,
    defaults: GivenDefaults,
    expect: Option<Expect>,
    /// The top level, if other parts may add to it.
    siblings: Siblings,
    names: Names,
}

/// The parts with one name, or the only part if they may not be merged.
#[derive(Debug)]
struct Domain {
    /// Properties of the first part.
    head: Head,
    parts: Vec<CompiledPart>,
}

/// Builds the part of one source, descriptor by descriptor, children before parents, so a source need not have all of
/// them in memory at once.
#[derive(Debug)]
pub struct PartBuilder {
    options: LoadOptions,
    beside: Beside,
    names: Names,
    /// Settings of limits, each stored once.
    limits: HashSet<Arc<LimitConfig>>,
    /// Warnings about descriptors without effect. They are dropped if there are errors, which may cause the effect to
    /// be missing.
    idle: Report,
}

/// The names of limits, and the names of those that they replace.
#[derive(Debug, Default)]
struct Names {
    given: BTreeSet<Arc<str>>,
    /// Names of replaced limits, each with the warning to report if no limit has that name.
    replaced: Vec<(String, Problem)>,
}

/// The values set in `defaults`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GivenDefaults {
    algorithm: Option<Algorithm>,
    failure_mode: Option<FailureMode>,
    denied_body: Option<denied_body::Value>,
    lease: Option<LeaseTerms>,
    own_share: options::own_share::Value,
}

/// The contents of a part beside its descriptors, which their validation needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The values for limits that do not set them.
    defaults: GivenDefaults,
    /// The price of units; unreadable if there is a mistake in it.
    prices: Raw<Arc<Prices>>,
}

/// A place for messages.
#[derive(Clone, Debug)]
struct Mark {
    origin: Arc<Path>,
    position: Option<Position>,
}

impl Part {
    /// Validates the contents of one source, and adds its mistakes to the report.
    pub fn validate(origin: &dyn Origin, raw: &RawDomain<'_>, options: &LoadOptions, report: &mut Report) -> Part {
        let mut builder = PartBuilder::new(Beside::of(raw), options);
        let mut complaints = Complaints { origin, report };
        let path = FieldPath::Root.key("descriptors");
        let top = raw.descriptors.get().map(|list| builder.list(&mut complaints, list, (path, 1)));
        builder.finish(&mut complaints, raw, top.unwrap_or_default())
    }

    /// Compiles the part; the result is empty if the report has an error. Parts can be compiled in parallel.
    pub fn compile(self, report: &Report) -> Compiled {
        let Part { head, descriptors } = self;
        let subtree = if report.has_errors() { Subtree::default() } else { Subtree::compile(&head.name, descriptors) };
        Compiled { head, subtree }
    }
}

impl PartBuilder {
    /// Begins a part with these defaults and prices.
    pub fn new(beside: Beside, options: &LoadOptions) -> PartBuilder {
        let (names, limits, idle) = (Names::default(), HashSet::new(), Report::default());
        PartBuilder { options: options.clone(), beside, names, limits, idle }
    }

    /// Returns the defaults and prices that the part began with.
    pub fn beside(&self) -> &Beside {
        &self.beside
    }

    /// Returns the values for limits that do not set them.
    fn defaults(&self) -> Defaults {
        self.beside.defaults.clone().or_settings(&self.options.defaults)
    }

    /// Completes the part with its top level.
    pub fn finish(self, complaints: &mut Complaints<'_>, raw: &RawDomain<'_>, top: Level) -> Part {
        let path = FieldPath::Root.key("domain");
        let name = complaints.required_text(&raw.domain, path).unwrap_or_default().to_owned();
        let named = Mark { origin: Arc::clone(complaints.origin.name()), position: complaints.origin.position(&path) };
        let defaults = raw.defaults.get().map(|raw| defaults(raw, complaints)).unwrap_or_default();
        prices::read(&raw.prices, complaints);
        let origin = complaints.origin_config(&defaults);
        if !complaints.report.has_errors() {
            complaints.report.merge(self.idle);
        }
        let is_weighed = |limit: &Arc<LimitConfig>| limit.options.weigh_by.is_some();
        if !raw.prices.is_missing() && !self.limits.iter().any(is_weighed) && !complaints.report.has_errors() {
            let message = "does nothing: no limit of this file has weigh_by";
            complaints.warn(FieldPath::Root.key(prices::KEY.name), message);
        }
        // A part with mistakes may be empty only because of them.
        if top.configs.is_empty() && !self.options.merge_domains && !complaints.report.has_errors() {
            let path = FieldPath::Root.key("descriptors");
            complaints.warn(path, "is empty, so no request of this domain is limited");
        }
        let is_whole = !self.options.merge_domains && !complaints.report.has_errors();
        let expect = expect::read(raw, complaints, is_whole.then_some(&*top.configs));
        let Level { configs: descriptors, siblings, .. } = top;
        // Without merging, no other part adds to them.
        let siblings = if self.options.merge_domains { siblings } else { Siblings::default() };
        let (kind, holder) = (complaints.origin.kind(), complaints.origin.holder().cloned());
        let head = Head { name, kind, named, holder, origin, defaults, expect, siblings, names: self.names };
        Part { head, descriptors }
    }
}

impl Domain {
    /// Adds another part of the same domain. If their defaults or expected entries differ, those of the first part
    /// count.
    fn join(&mut self, Compiled { head, subtree }: Compiled, report: &mut Report) {
        self.head.defaults = std::mem::take(&mut self.head.defaults).or(head.defaults);
        self.head.expect = self.head.expect.take().or(head.expect);
        self.parts.push(CompiledPart { subtree, origins: vec![head.origin] });
        let origins: Vec<_> = self.parts.iter().flat_map(|part| &part.origins).map(|origin| &origin.name).collect();
        self.head.siblings.join((head.siblings, head.holder.as_ref()), &origins, report);
        self.head.names.given.extend(head.names.given);
        self.head.names.replaced.extend(head.names.replaced);
    }
}

impl Validation {
    /// Begins without any parts.
    pub fn new(options: LoadOptions) -> Validation {
        Validation { options, domains: Vec::new(), by_name: HashMap::new() }
    }

    /// Joins a part to its domain. If parts are not merged, a second part of a domain is an error.
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
                "{name} is already the domain of {first}; a domain must be in one {}, unless MERGE_DOMAIN_CONFIG=true",
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

    /// Returns whether no part has been added.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns the rules of all domains, or none if the report has an error.
    pub fn finish(self, report: &mut Report) -> Rules {
        let settings = self.options.defaults;
        let mut domains = Vec::with_capacity(self.domains.len());
        for Domain { head: Head { name, defaults, expect, names, .. }, parts } in self.domains {
            warn_of_unknown(&name, names, report);
            domains.push(CompiledDomain { name, defaults: defaults.or_settings(&settings), expect, parts });
        }
        if report.has_errors() { Rules::default() } else { Rules::join(domains) }
    }
}

/// Prefixes a text with what holds it.
fn held(holder: Option<&Arc<str>>, what: String) -> String {
    match holder {
        Some(holder) => format!("{holder}: {what}"),
        None => what,
    }
}

impl Mark {
    /// Builds an error at this place.
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

/// A request has one domain, so a limit can replace only limits of its own domain.
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
    let failure_mode = failure_mode(&raw.failure_mode, path, complaints);
    let body = raw.denied_body.get();
    let denied_body = body.and_then(|raw| denied_body::read(raw, complaints, path.key(denied_body::KEY.name)));
    let (lease, share) = (raw.lease.get(), raw.own_share.get());
    let of_lease = path.key(options::lease::KEY.name);
    let lease = lease.and_then(|raw| options::lease::read(raw, complaints, of_lease).flatten());
    let lease = lease.and_then(|terms| terms.checked(complaints, of_lease));
    let of_share = path.key(options::own_share::KEY.name);
    let own_share = share.and_then(|text| options::own_share::read(text, complaints, of_share));
    GivenDefaults { algorithm, failure_mode, denied_body, lease, own_share: own_share.flatten() }
}

/// Reads an algorithm. `of` is the mapping that contains the value.
fn algorithm(raw: &Raw<impl AsRef<str>>, of: FieldPath<'_>, complaints: &mut Complaints<'_>) -> Option<Algorithm> {
    complaints.choice(raw, of, "algorithm", Algorithm::ALL, Algorithm::name)
}

fn failure_mode(raw: &Raw<impl AsRef<str>>, of: FieldPath<'_>, complaints: &mut Complaints<'_>) -> Option<FailureMode> {
    complaints.choice(raw, of, "failure_mode", &FailureMode::ALL, FailureMode::name)
}

impl Beside {
    /// Reads what is valid without reporting mistakes.
    pub fn of(raw: &RawDomain<'_>) -> Beside {
        let (origin, mut report) = (Nowhere(Path::new("").into()), Report::default());
        let mut complaints = Complaints { origin: &origin, report: &mut report };
        let defaults = raw.defaults.get().map(|raw| defaults(raw, &mut complaints)).unwrap_or_default();
        Beside { defaults, prices: prices::read(&raw.prices, &mut complaints).map(Arc::new) }
    }
}

impl GivenDefaults {
    fn or(self, other: GivenDefaults) -> GivenDefaults {
        GivenDefaults {
            algorithm: self.algorithm.or(other.algorithm),
            failure_mode: self.failure_mode.or(other.failure_mode),
            denied_body: self.denied_body.or(other.denied_body),
            lease: self.lease.or(other.lease),
            own_share: self.own_share.or(other.own_share),
        }
    }

    fn or_settings(self, settings: &Defaults) -> Defaults {
        Defaults {
            algorithm: self.algorithm.unwrap_or(settings.algorithm),
            fixed_windows: settings.fixed_windows,
            months: settings.months,
            failure_mode: self.failure_mode.unwrap_or(settings.failure_mode),
            denied_body: self.denied_body.unwrap_or_else(|| settings.denied_body.clone()),
        }
    }
}

/// An origin without a place.
struct Nowhere(Arc<Path>);

impl Origin for Nowhere {
    fn name(&self) -> &Arc<Path> {
        &self.0
    }

    fn position(&self, _: &FieldPath<'_>) -> Option<Position> {
        None
    }
}

impl Complaints<'_> {
    /// The origin as it is remembered.
    fn origin_config(&self, defaults: &GivenDefaults) -> OriginConfig {
        let of_defaults = FieldPath::Root.key("defaults");
        let line = |is_given: bool, key| if is_given { self.line(of_defaults.key(key)) } else { None };
        OriginConfig {
            name: Arc::clone(self.origin.name()),
            domain: self.line(FieldPath::Root.key("domain")),
            algorithm: line(defaults.algorithm.is_some(), "algorithm"),
            failure_mode: line(defaults.failure_mode.is_some(), "failure_mode"),
            denied_body: line(defaults.denied_body.is_some(), denied_body::KEY.name),
            lease: line(defaults.lease.is_some(), options::lease::KEY.name),
            own_share: line(defaults.own_share.is_some(), options::own_share::KEY.name),
        }
    }
}
