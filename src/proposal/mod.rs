//! Proposed rules: the text of one rules file, checked as `tollgate check` does, and compared with the rules in force.
//! Nothing is written, so it works as well where rules are mounted read-only, such as from a ConfigMap.
//!
//! The text stands for the file of its domain. If several files share the domain (`MERGE_DOMAIN_CONFIG`), the others
//! are read again, and the text takes the place of the file that it resembles most, or of the one that is named.

mod patch;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::engine::rules::Rules;
use crate::engine::rules::diff::{self, Totals};
use crate::engine::rules::report::RulesError;
use crate::sources::files::excerpt::{Texts, excerpts};
use crate::sources::files::load::{LoadOptions, Loaded, Loader, NamedText, Pace, Sources};

/// Name of the text in its reports.
const NAME: &str = "pasted.yaml";

/// The most changes that are written out.
const MOST_CHANGES: usize = 500;

/// Largest file in force that is compared with a text, in bytes. A text is shorter than this.
const MOST_BYTES: u64 = 4 << 20;

/// How this process reads rules.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Options of the loader.
    pub options: LoadOptions,
    /// The files of the rules in force.
    pub files: Files,
}

/// The files of the rules in force.
#[derive(Clone, Debug)]
pub enum Files {
    /// They are on the disk, except those with these texts.
    OnDisk(Arc<[NamedText]>),
    /// There are none: a management server sends the rules. What it names like a file is none.
    None,
}

/// The text of a rules file that someone proposes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The text.
    pub text: String,
    /// The file in force that it replaces; `None` to find it by the domain.
    pub file: Option<PathBuf>,
}

/// A valid text.
#[derive(Debug)]
pub struct Valid {
    /// The rules of its domain, as they would be in force.
    pub rules: Arc<Rules>,
    /// Its domain.
    pub domain: String,
    /// What it would change.
    pub changes: Changes,
}

/// What a valid text would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Warnings and hints, in the format of `tollgate check`; `None` without any.
    pub warnings: Option<String>,
    /// The file in force that the text replaces; `None` if there is none.
    pub file: Option<String>,
    /// The number of limits added, removed and changed, in words.
    pub changed: String,
    /// The changes, one in each line.
    pub changes: Vec<String>,
    /// Number of changes left out.
    pub more_changes: usize,
    /// The difference of the files, for `patch` and `git apply`; `None` if the file in force cannot be read, or if it
    /// has this text.
    pub patch: Option<String>,
}

impl Changes {
    /// Leaves out what has texts of the rules, and keeps the numbers.
    pub fn hide(&mut self) {
        self.more_changes += std::mem::take(&mut self.changes).len();
        self.patch = None;
    }
}

/// The report on an invalid text, in the format of `tollgate check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub String);

/// A file of the domain in force.
struct InForce {
    name: PathBuf,
    bytes: Option<Vec<u8>>,
}

impl Proposal {
    /// Checks the text, and finds what it would change in the rules in force. This takes a while for a long text.
    ///
    /// # Errors
    /// If the text is invalid, or together with the other files of its domain.
    pub fn examine(&self, in_force: &Rules, reading: &Reading) -> Result<Valid, Invalid> {
        let pasted = NamedText { name: NAME.into(), bytes: self.text.as_bytes().to_vec() };
        let Loaded { rules, .. } = load(std::slice::from_ref(&pasted), &reading.options)?;
        let Some(domain) = rules.domain_names().next().map(str::to_owned) else {
            return Err(Invalid(format!("{NAME}: has no domain\n")));
        };
        let files: Vec<InForce> = in_force.files_of(&domain).into_iter().map(|name| reading.read(name)).collect();
        let place = self.place(&files)?;
        let texts = files.iter().enumerate().map(|(at, file)| match &file.bytes {
            _ if Some(at) == place => Ok(pasted.clone()),
            Some(bytes) => Ok(NamedText { name: file.name.clone(), bytes: bytes.clone() }),
            None => Err(Invalid(format!("{}: cannot be read, and the domain is there as well\n", file.name.display()))),
        });
        let texts = match place {
            Some(_) => texts.collect::<Result<Vec<_>, _>>()?,
            None => vec![pasted],
        };
        let Loaded { rules, warnings, hints } = load(&texts, &reading.options)?;
        let notes = [warnings, hints].concat();
        let told = texts.iter().map(|text| (text.name.clone(), text.bytes.clone())).collect::<HashMap<_, _>>();
        let warnings = (!notes.is_empty()).then(|| excerpts(&notes, 0, &mut Texts::new(told)));
        let old = place.and_then(|place| files.get(place));
        let (totals, changes, more_changes) = changes(in_force, &rules, &domain);
        let changes = Changes {
            warnings,
            file: old.map(|file| file.name.display().to_string()),
            changed: totals.to_string(),
            changes,
            more_changes,
            patch: self.patch(old, &domain, &reading.files),
        };
        Ok(Valid { rules: Arc::new(rules), domain, changes })
    }

    /// Returns the index of the file that the text replaces; `None` if the domain is new.
    fn place(&self, files: &[InForce]) -> Result<Option<usize>, Invalid> {
        if let Some(wanted) = &self.file {
            let names = || files.iter().map(|file| file.name.display().to_string()).collect::<Vec<_>>().join(", ");
            let place = files.iter().position(|file| file.name == *wanted);
            return match place {
                Some(place) => Ok(Some(place)),
                None if files.is_empty() => Err(Invalid(format!("{}: its domain is new\n", wanted.display()))),
                None => Err(Invalid(format!("{}: its domain is in {}\n", wanted.display(), names()))),
            };
        }
        if files.len() < 2 {
            return Ok((!files.is_empty()).then_some(0));
        }
        let lines: HashSet<&str> = self.text.lines().map(str::trim_end).collect();
        let alike = |file: &InForce| {
            let text = String::from_utf8_lossy(file.bytes.as_deref().unwrap_or_default());
            text.lines().filter(|line| lines.contains(line.trim_end())).count()
        };
        // The first of several that are equally alike.
        Ok((0..files.len()).rev().max_by_key(|place| alike(&files[*place])))
    }

    fn patch(&self, old: Option<&InForce>, domain: &str, files: &Files) -> Option<String> {
        match (old, files) {
            (Some(InForce { name, bytes: Some(bytes) }), _) => {
                patch::patch(Some(std::str::from_utf8(bytes).ok()?), &self.text, name)
            }
            (Some(InForce { bytes: None, .. }), _) | (None, Files::None) => None,
            (None, Files::OnDisk(_)) => {
                let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
                let name = if domain.chars().all(is_plain) { domain } else { "rules" };
                patch::patch(None, &self.text, Path::new(&format!("{name}.yaml")))
            }
        }
    }
}

impl Reading {
    /// Reads a file of the rules in force as it is now. `None` if it cannot be read or is too large, or if a management
    /// server sends the rules: what it names like a file is none.
    pub fn text(&self, name: &Path) -> Option<Vec<u8>> {
        let Files::OnDisk(texts) = &self.files else { return None };
        if let Some(text) = texts.iter().find(|text| text.name == name) {
            return Some(text.bytes.clone());
        }
        let fits = fs::metadata(name).is_ok_and(|file| file.is_file() && file.len() <= MOST_BYTES);
        if fits { fs::read(name).ok() } else { None }
    }

    fn read(&self, name: &Path) -> InForce {
        InForce { name: name.to_owned(), bytes: self.text(name) }
    }
}

fn load(texts: &[NamedText], options: &LoadOptions) -> Result<Loaded, Invalid> {
    let loader = Loader::new(Sources::default(), options.clone()).with_texts(texts);
    loader.load(Pace::BesideRequests).map_err(|RulesError { problems, more }| {
        let known = texts.iter().map(|text| (text.name.clone(), text.bytes.clone())).collect();
        Invalid(excerpts(&problems, more, &mut Texts::new(known)))
    })
}

/// Returns the differences of one domain: their number, the first of them as text, and how many are left out.
fn changes(old: &Rules, new: &Rules, domain: &str) -> (Totals, Vec<String>, usize) {
    let (mut totals, mut lines, mut more) = (Totals::default(), Vec::new(), 0);
    diff::compare(old, new, &mut |change| {
        if change.domain != domain {
            return;
        }
        totals.add(&change);
        match lines.len() < MOST_CHANGES {
            true => lines.push(change.to_string()),
            false => more += 1,
        }
    });
    (totals, lines, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      name: per-user\n      unit: \
                        minute\n      requests_per_unit: 5\n";

    fn reading(files: Files) -> Reading {
        Reading { options: LoadOptions { merge_domains: true, ..LoadOptions::default() }, files }
    }

    fn text(name: &str, text: &str) -> NamedText {
        NamedText { name: name.into(), bytes: text.as_bytes().to_vec() }
    }

    fn in_force(texts: &[NamedText]) -> (Rules, Reading) {
        let reading = reading(Files::OnDisk(texts.into()));
        (load(texts, &reading.options).unwrap().rules, reading)
    }

    fn examine(pasted: &str, of: &(Rules, Reading)) -> Result<Valid, Invalid> {
        Proposal { text: pasted.to_owned(), file: None }.examine(&of.0, &of.1)
    }

    #[test]
    fn a_changed_number_is_told_with_a_patch_of_the_file() {
        let of = in_force(&[text("rules/shop.yaml", SHOP)]);
        let Valid { domain, changes, .. } = examine(&SHOP.replace(": 5", ": 3"), &of).unwrap();
        assert_eq!((&*domain, changes.file.as_deref()), ("shop", Some("rules/shop.yaml")));
        assert_eq!(changes.changes, ["changed: shop: per-user: requests_per_unit 5 -> 3: counters are kept"]);
        let patch = changes.patch.unwrap();
        assert!(patch.starts_with("--- a/rules/shop.yaml\n+++ b/rules/shop.yaml\n@@"), "{patch}");
        assert!(patch.contains("\n-      requests_per_unit: 5\n+      requests_per_unit: 3\n"), "{patch}");
        assert_eq!(examine(SHOP, &of).unwrap().changes.patch, None);
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_a_mark() {
        let of = in_force(&[text("rules/shop.yaml", SHOP)]);
        let Invalid(report) = examine(&SHOP.replace("minute", "minuets"), &of).unwrap_err();
        assert!(report.starts_with("pasted.yaml:6:13: descriptors[0].rate_limit.unit: unknown unit"), "{report}");
        assert!(report.contains("did you mean \"minute\"") && report.contains("^^^"), "{report}");
    }

    #[test]
    fn other_domains_are_not_told_as_removed() {
        let of = in_force(&[text("a.yaml", SHOP), text("b.yaml", &SHOP.replace("shop", "bank"))]);
        assert_eq!(examine(SHOP, &of).unwrap().changes.changes, Vec::<String>::new());
        let added = examine(&SHOP.replace("shop", "club"), &of).unwrap().changes;
        assert_eq!((added.file, &*added.changes), (None, &["added: domain club: 1 limit".to_owned()][..]));
        assert!(added.patch.unwrap().starts_with("--- /dev/null\n+++ b/club.yaml\n@@ -0,0 +1,7 @@\n"));
    }

    #[test]
    fn of_the_files_of_one_domain_the_most_alike_is_replaced() {
        let path = "domain: shop\ndescriptors:\n  - key: path\n    rate_limit:\n      unit: hour\n      \
                    requests_per_unit: 9\n";
        let of = in_force(&[text("a.yaml", SHOP), text("b.yaml", path)]);
        let changes = examine(&path.replace(": 9", ": 8"), &of).unwrap().changes;
        assert_eq!(changes.file.as_deref(), Some("b.yaml"));
        assert_eq!(changes.changes, ["changed: shop: path: requests_per_unit 9 -> 8: counters are kept"]);
        let named = Proposal { text: path.to_owned(), file: Some("c.yaml".into()) };
        let Invalid(report) = named.examine(&of.0, &of.1).unwrap_err();
        assert_eq!(report, "c.yaml: its domain is in a.yaml, b.yaml\n");
    }

    #[test]
    fn what_a_management_server_names_is_no_file_to_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.yaml");
        fs::write(&path, SHOP).unwrap();
        let named = text(path.to_str().unwrap(), SHOP);
        let rules = load(&[named], &reading(Files::None).options).unwrap().rules;
        let of = (rules, reading(Files::None));
        assert_eq!(examine(&SHOP.replace(": 5", ": 3"), &of).unwrap().changes.patch, None);
        let of = (of.0, reading(Files::OnDisk(Arc::default())));
        assert!(examine(&SHOP.replace(": 5", ": 3"), &of).unwrap().changes.patch.is_some());
    }

    #[test]
    fn hostile_texts_are_refused_in_time() {
        let of = in_force(&[text("rules/shop.yaml", SHOP)]);
        let deep = format!("domain: shop\ndescriptors: {}{}", "[".repeat(200_000), "]".repeat(200_000));
        let nested = format!("domain: shop\ndescriptors: {}", "[{key: a, descriptors: ".repeat(40_000));
        let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        (1..12).for_each(|at| {
            aliases += &format!("a{at}: &a{at} [{}]\n", format!("*a{}, ", at - 1).repeat(10));
        });
        let aliases = format!("{aliases}domain: shop\ndescriptors: *a11\n");
        for hostile in [&*deep, &nested, &aliases, "", "\0", "- a", "domain: 5: 5", "&a *a", "domain: *nothing"] {
            let begin = std::time::Instant::now();
            let Invalid(report) = examine(hostile, &of).unwrap_err();
            assert!(!report.is_empty() && report.len() < 100_000, "{}", report.len());
            assert!(begin.elapsed().as_secs() < 20, "{report}");
        }
    }
}
