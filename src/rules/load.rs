//! Where rules come from: finds the files, reads them, and makes rules of them.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::document::MAX_BYTES;
use super::report::{Position, Problem, Report, RulesError, Severity};
use super::yaml::Reader;
use super::{Defaults, Rules};

/// Files and folders that hold rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A file is read whatever its name is. Of a folder, everything below it that is called `*.yaml`, `*.yml` or `*.json`,
    /// in the order of the paths; what begins with a dot is passed over, so a mounted Kubernetes ConfigMap, in which dot
    /// folders hold what the names outside link to, counts each file once.
    pub paths: Vec<PathBuf>,
}

/// How files are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// What holds where neither a limit nor its file says otherwise.
    pub defaults: Defaults,
    /// Several files of one domain add up. Otherwise the second one is refused.
    pub merge_domains: bool,
}

/// Rules, ready for use.
#[derive(Debug)]
pub struct Loaded {
    /// What the files say.
    pub rules: Rules,
    /// What in them is hardly meant.
    pub warnings: Vec<Problem>,
}

/// Reads all files and makes rules of them.
///
/// # Errors
/// With every problem of every file: a path that is not there or cannot be read, a folder without any rules file, and
/// whatever is wrong in a file.
pub fn load(sources: &Sources, options: &LoadOptions) -> Result<Loaded, RulesError> {
    let mut report = Report::default();
    let mut reader = Reader::new(*options);
    for file in sources.files(&mut report) {
        if let Some(text) = read(&file, &mut report) {
            reader.read(&file, &text, &mut report);
        }
    }
    let configs = reader.finish(&mut report);
    let warnings = report.finish()?;
    Ok(Loaded { rules: Rules::new(configs), warnings })
}

impl Sources {
    /// The reference's layout: one folder, `root/subdirectory/appdirectory`. An empty part is left out.
    pub fn runtime(root: impl AsRef<Path>, subdirectory: &str, appdirectory: &str) -> Sources {
        let parts = [subdirectory, appdirectory].into_iter().filter(|part| !part.is_empty());
        Sources { paths: vec![parts.fold(root.as_ref().to_owned(), |path, part| path.join(part))] }
    }

    /// Every file, once.
    pub(super) fn files(&self, report: &mut Report) -> Vec<PathBuf> {
        let mut search = Search { files: Vec::new(), seen: HashSet::new(), report };
        for path in &self.paths {
            search.named(path);
        }
        search.files
    }
}

struct Search<'r> {
    files: Vec<PathBuf>,
    /// Where the links end, so that nothing counts twice and a folder that links to one above it ends.
    seen: HashSet<PathBuf>,
    report: &'r mut Report,
}

impl Search<'_> {
    fn named(&mut self, path: &Path) {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let mut found = Vec::new();
                self.folder(path, &mut found);
                if found.is_empty() {
                    self.report.refuse(path, "no rules in this folder: no *.yaml, *.yml or *.json".to_owned());
                }
                found.sort();
                for path in found {
                    self.file(path);
                }
            }
            Ok(_) => self.file(path.to_owned()),
            Err(error) => self.refuse(path, &error),
        }
    }

    fn folder(&mut self, folder: &Path, found: &mut Vec<PathBuf>) {
        if !self.is_new(folder) {
            return;
        }
        let entries = match fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => return self.refuse(folder, &error),
        };
        for entry in entries {
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.folder(&path, found),
                Ok(metadata) if metadata.is_file() && is_rules_file(&path) => found.push(path),
                Ok(_) => {}
                Err(error) if is_rules_file(&path) => self.refuse(&path, &error),
                Err(_) => {} // A dead link of another name is none of our business.
            }
        }
    }

    fn file(&mut self, path: PathBuf) {
        if self.is_new(&path) {
            self.files.push(path);
        }
    }

    fn is_new(&mut self, path: &Path) -> bool {
        let end = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.seen.insert(end)
    }

    fn refuse(&mut self, path: &Path, error: &io::Error) {
        self.report.refuse(path, format!("cannot be read: {error}"));
    }
}

fn is_rules_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}

/// The text of a file; `None` where there is a problem with it.
fn read(path: &Path, report: &mut Report) -> Option<String> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long, whatever the file system says of its length.
    let result = fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    if let Err(error) = result {
        report.refuse(path, format!("cannot be read: {error}"));
        return None;
    }
    if bytes.len() as u64 > MAX_BYTES {
        report.refuse(path, format!("is longer than {} MiB", MAX_BYTES / 1024 / 1024));
        return None;
    }
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
            let line = valid.matches('\n').count() + 1;
            let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            report.add(Problem {
                severity: Severity::Error,
                file: path.into(),
                position: Some(Position { line, column }),
                path: String::new(),
                message: "not UTF-8".to_owned(),
            });
            None
        }
    }
}
