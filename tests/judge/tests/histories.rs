//! Faults that were found: for each a small history in `histories`, named by the kind of its finding. Its header says
//! what happened.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs;
use std::path::Path;

use tollgate_judge::check::{Checks, Judge, Kind};
use tollgate_judge::history;

#[test]
fn faults_of_the_past_are_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read(&path).unwrap();
        let begin = |header: history::Header| {
            assert!(!header.about.is_empty(), "{}: what happened?", path.display());
            Judge::new(header, Checks::default())
        };
        let judgement = history::read(&text[..], begin, Judge::add).unwrap().finish();
        let name = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap();
        match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => assert!(judgement.count(kind) > 0, "{}: {judgement}", path.display()),
            None => {
                assert_eq!(name, "legal", "{}: a name begins with a kind, or with legal", path.display());
                assert!(judgement.is_legal_but_for(&[]), "{}: {judgement}", path.display());
            }
        }
        found.push(name.to_owned());
    }
    assert!(found.len() >= 10, "{found:?}");
}
