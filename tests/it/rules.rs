//! Rules files: accepted input and its meaning, error reports, and reloading.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod files;
mod manifests;
mod matching;
mod schema;
mod sources;
mod validating;
mod version;
mod watching;

use std::fs;
use std::path::{Path, PathBuf};

use tollgate::engine::algorithm::Algorithm;
use tollgate::engine::descriptor::Entry;
use tollgate::engine::rules::report::RulesError;
use tollgate::engine::rules::{Defaults, FailureMode, FixedWindows, Months, Rule, Rules};
use tollgate::sources::files::load::{LoadOptions, Loaded, MAX_FILE_BYTES, Sources, load};

const DEFAULTS: Defaults = Defaults {
    algorithm: Algorithm::SlidingWindow,
    fixed_windows: FixedWindows::CountDenied,
    months: Months::ThirtyDays,
    failure_mode: FailureMode::Open,
    denied_body: None,
};

const OPTIONS: LoadOptions = LoadOptions { defaults: DEFAULTS, merge_domains: false, max_file_bytes: MAX_FILE_BYTES };

const MERGED: LoadOptions = LoadOptions { defaults: DEFAULTS, merge_domains: true, max_file_bytes: MAX_FILE_BYTES };

fn sources(path: impl AsRef<Path>) -> Sources {
    Sources { paths: vec![path.as_ref().to_owned()] }
}

/// Loads one file or folder.
fn load_path(path: impl AsRef<Path>) -> Result<Loaded, RulesError> {
    load(&sources(path), &OPTIONS)
}

/// Loads a text as if it were a file.
pub fn load_text(text: impl AsRef<[u8]>) -> Result<Loaded, RulesError> {
    let folder = folder(&[]);
    let file = folder.path().join("rules.yaml");
    fs::write(&file, text).unwrap();
    load_path(file)
}

/// A folder with files of these names and texts.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// The files of a folder, in order.
fn files_in(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The rule that `key=value|key=value` reaches.
fn find<'r>(rules: &'r Rules, domain: &str, entries: &str) -> Option<&'r Rule> {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        Entry { key: key.into(), value: value.into() }
    };
    rules.find(rules.domain(domain).unwrap(), &entries.split('|').map(entry).collect::<Vec<_>>())
}
