//! Rules files, as people write them and as they are reported back.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::Path;

use tollgate::algorithm::Algorithm;
use tollgate::rules::load::{LoadOptions, Sources, load};
use tollgate::rules::{Defaults, FailureMode};

const OPTIONS: LoadOptions = LoadOptions {
    defaults: Defaults { algorithm: Algorithm::SlidingWindow, failure_mode: FailureMode::Open },
    merge_domains: false,
};

fn sources(path: impl AsRef<Path>) -> Sources {
    Sources { paths: vec![path.as_ref().to_owned()] }
}

#[test]
fn the_example_files_load_without_a_warning() {
    let loaded = load(&sources("config/rules"), &OPTIONS).unwrap();
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.rules.domains(), 3);
    assert_eq!(fs::read_dir("config/rules").unwrap().count(), 3);
}
