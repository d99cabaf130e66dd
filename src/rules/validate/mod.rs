//! Adds files up to domains, and sees what no file shows by itself: a domain that two files claim, a name that no rule has.

mod limits;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::report::{Position, Problem, Report, Severity, nearest, quoted};
use super::source::load::LoadOptions;
use super::source::yaml::document::{self, Node};
use super::source::yaml::fields::{self, Fields, File, Spot, Trail};
use super::{DescriptorConfig, DomainConfig};
use limits::{FileDefaults, Names, Place, Siblings, Tree, file_defaults};

/// How often names are compared in search of near ones; enough for people, and soon over for machines.
const COMPARISONS: usize = 100_000;

/// The domains of all files that have been read.
#[derive(Debug)]
pub(super) struct Domains {
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

impl Domains {
    pub(super) fn new(options: LoadOptions) -> Domains {
        Domains { options, domains: Vec::new(), by_name: HashMap::new() }
    }

    /// Reads the text of a file. Its mistakes go to the report.
    pub(super) fn add(&mut self, file: &Path, text: &str, report: &mut Report) {
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
            warn_of_unknown(&name, &names, report);
            configs.push(DomainConfig { name, defaults: defaults.or_settings(settings), descriptors });
        }
        configs
    }
}

/// A request has one domain, so only a rule of the same domain can be replaced.
fn warn_of_unknown(domain: &str, names: &Names, report: &mut Report) {
    let given: Vec<_> = names.given.iter().map(String::as_str).collect();
    let mut comparisons = 0;
    for (name, place) in names.replaced.iter().filter(|(name, _)| !names.given.contains(name)) {
        comparisons += given.len();
        let near = if comparisons <= COMPARISONS { nearest(name, &given) } else { None };
        let near = near.map(|near| format!(", did you mean {}?", quoted(near))).unwrap_or_default();
        let message = format!("no rule of domain {} is named {}{near}", quoted(domain), quoted(name));
        let Place { file, position, path } = place.clone();
        report.add(Problem { severity: Severity::Warning, file, position: Some(position), path, message });
    }
}

/// The tree of a file; `None` where it has none.
fn root<'t>(file: &mut File<'_>, text: &'t str) -> Option<Node<'t>> {
    let document = match document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            file.add(Severity::Error, error.position(), Trail::Root, error.to_string());
            return None;
        }
    };
    if let Some(position) = document.second {
        let message = "a second YAML document begins here; only the first one counts";
        file.add(Severity::Warning, position, Trail::Root, message.to_owned());
    }
    let root = document.root.filter(|root| !root.is_null());
    if root.is_none() {
        let message = "the file is empty; it must begin with a domain";
        file.add(Severity::Error, Position { line: 1, column: 1 }, Trail::Root, message.to_owned());
    }
    root
}
