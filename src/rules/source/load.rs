//! Where rules come from: finds the files, reads them, and makes rules of them.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::yaml::{self, Manifests};
use crate::rules::compiled::Rules;
use crate::rules::report::{Position, Problem, Report, RulesError, Severity};
use crate::rules::validate::Validation;

pub use super::yaml::MAX_BYTES as MAX_FILE_BYTES;
pub use crate::rules::validate::LoadOptions;

/// Files and folders that hold rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A file is read whatever its name is. Of a folder, everything below it that is called `*.yaml`, `*.yml` or
    /// `*.json`, in the order of the paths; what begins with a dot is passed over, so a mounted Kubernetes ConfigMap,
    /// in which dot folders hold what the names outside link to, counts each file once.
    pub paths: Vec<PathBuf>,
}

/// A text that has been read already, and what messages call it.
#[derive(Clone, Debug)]
pub struct NamedText {
    /// Such as `-`, for standard input.
    pub name: PathBuf,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// Rules, ready for use.
#[derive(Debug)]
pub struct Loaded {
    /// What the files say.
    pub rules: Rules,
    /// What in them is hardly meant.
    pub warnings: Vec<Problem>,
}

/// Reads all files and makes rules of them; of no sources, no rules.
///
/// # Errors
/// With every problem of every file: a path that is not there or cannot be read, a folder without any rules file, and
/// whatever is wrong in a file.
pub fn load(sources: &Sources, options: &LoadOptions) -> Result<Loaded, RulesError> {
    load_all(sources, &[], Manifests::Refuse, options)
}

/// Loads rules before they are where the service reads them: also texts that are in no file, and the rules files in the
/// ConfigMaps of Kubernetes manifests.
///
/// # Errors
/// As [`load`] has them, and where a manifest holds no rules.
pub fn check(sources: &Sources, texts: &[NamedText], options: &LoadOptions) -> Result<Loaded, RulesError> {
    load_all(sources, texts, Manifests::Read, options)
}

fn load_all(
    sources: &Sources,
    texts: &[NamedText],
    manifests: Manifests,
    options: &LoadOptions,
) -> Result<Loaded, RulesError> {
    let mut report = Report::default();
    let mut validation = Validation::new(*options);
    // Beside rules they are nothing to speak of: a folder of manifests holds others, too.
    let mut without_rules = Vec::new();
    let mut add = |name: &Path, bytes: Vec<u8>, report: &mut Report| {
        if let Some(text) = decode(name, bytes, report) {
            without_rules.extend(yaml::add(name, &text, manifests, &mut validation, report));
        }
    };
    for file in sources.files(&mut report) {
        if let Some(bytes) = read(&file, &mut report) {
            add(&file, bytes, &mut report);
        }
    }
    for NamedText { name, bytes } in texts {
        add(name, bytes.clone(), &mut report);
    }
    if validation.is_empty() {
        without_rules.into_iter().for_each(|problem| report.add(problem));
    }
    let configs = validation.finish(&mut report);
    let warnings = report.finish()?;
    Ok(Loaded { rules: Rules::new(configs), warnings })
}

impl Sources {
    /// The layout of envoyproxy/ratelimit: one folder, `root/subdirectory/appdirectory`. An empty part is left out.
    pub fn runtime(root: impl AsRef<Path>, subdirectory: &str, appdirectory: &str) -> Sources {
        let parts = [subdirectory, appdirectory].into_iter().filter(|part| !part.is_empty());
        Sources { paths: vec![parts.fold(root.as_ref().to_owned(), |path, part| path.join(part))] }
    }

    /// Every file, once, in order.
    pub(in crate::rules) fn files(&self, report: &mut Report) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for path in &self.paths {
            match fs::metadata(path) {
                Ok(metadata) if metadata.is_dir() => files.extend(folder(path, report)),
                Ok(_) => files.push(path.clone()),
                Err(error) => refuse(path, &error, report),
            }
        }
        let mut seen = HashSet::new();
        files.retain(|path| seen.insert(end_of_links(path)));
        files
    }
}

/// The rules files of a folder and of all below it, in the order of their paths.
fn folder(root: &Path, report: &mut Report) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    let mut seen = HashSet::new(); // A folder may link to one above it.
    while let Some(folder) = folders.pop() {
        if !seen.insert(end_of_links(&folder)) {
            continue;
        }
        match entries(&folder) {
            Ok(paths) => paths.into_iter().for_each(|path| match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => folders.push(path),
                Ok(metadata) if metadata.is_file() && is_rules_file(&path) => found.push(path),
                Err(error) if is_rules_file(&path) => refuse(&path, &error, report),
                _ => {}
            }),
            Err(error) => refuse(&folder, &error, report),
        }
    }
    if found.is_empty() {
        report.refuse(root, "no rules in this folder: no *.yaml, *.yml or *.json".to_owned());
    }
    found.sort();
    found
}

/// What is in a folder, but for dot files and dot folders.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

fn end_of_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn refuse(path: &Path, error: &io::Error, report: &mut Report) {
    report.refuse(path, format!("cannot be read: {error}"));
}

pub(super) fn is_rules_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

/// What is in a file; `None` where there is a problem with it.
fn read(path: &Path, report: &mut Report) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long, whatever the file system says of its length.
    let result = fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    if let Err(error) = &result {
        refuse(path, error, report);
    }
    result.ok().map(|_| bytes)
}

/// The text of a file; `None` where there is a problem with it.
fn decode(path: &Path, bytes: Vec<u8>, report: &mut Report) -> Option<String> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        report.refuse(path, format!("is longer than {} MiB", MAX_FILE_BYTES / 1024 / 1024));
        return None;
    }
    let is_utf_16 = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
    let error = match String::from_utf8(bytes) {
        Ok(text) => return Some(text),
        Err(error) => error,
    };
    let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
    let line = valid.matches('\n').count() + 1;
    let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    report.add(Problem {
        severity: Severity::Error,
        file: path.into(),
        position: Some(Position { line, column }),
        path: String::new(),
        message: if is_utf_16 { "is UTF-16: save it as UTF-8" } else { "not UTF-8" }.to_owned(),
    });
    None
}
