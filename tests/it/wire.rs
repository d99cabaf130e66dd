//! The generated code of Envoy's protocol is what `proto/` compiles to.

#[path = "../../examples/wire.rs"]
mod generating;

use std::collections::BTreeMap;
use std::path::Path;

/// Returns the files of a folder, by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

#[test]
fn the_generated_code_is_current() {
    let fresh = tempfile::tempdir().unwrap();
    generating::generate(fresh.path()).unwrap();
    let (fresh, stored) = (files(fresh.path()), files(Path::new("proto/generated")));
    assert_eq!(fresh.keys().collect::<Vec<_>>(), stored.keys().collect::<Vec<_>>());
    for (name, content) in fresh {
        assert!(content == stored[&name], "proto/generated/{name}: run `cargo run --example wire`");
    }
}
