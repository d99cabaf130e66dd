//! Reloading of changed files. Tests wait for events, never for a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tollgate::sources::files::load::Loader;
use tollgate::sources::files::watch::{Fingerprint, watch};

use super::*;

/// The events of a watch.
struct Watched {
    results: UnboundedReceiver<Result<Loaded, RulesError>>,
    task: tokio::task::JoinHandle<()>,
    asked: Arc<Notify>,
}

impl Watched {
    fn start(path: &Path, seen: Fingerprint) -> Watched {
        let (sender, results) = unbounded_channel();
        let asked = Arc::new(Notify::new());
        let tell = move |result| drop(sender.send(result));
        let loader = Loader::new(sources(path), OPTIONS);
        let task = tokio::spawn(watch(loader, seen, Arc::clone(&asked), tell));
        Watched { results, task, asked }
    }

    async fn next(&mut self) -> Result<Loaded, RulesError> {
        tokio::time::timeout(Duration::from_secs(60), self.results.recv()).await.unwrap().unwrap()
    }

    /// The names of the rules that have come into force.
    async fn names(&mut self) -> Vec<String> {
        let rules = self.next().await.unwrap_or_else(|error| panic!("{error}")).rules;
        rules.rules().iter().map(|rule| rule.limits[0].name().to_owned()).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn rule(name: &str) -> String {
    format!("{{domain: d, descriptors: [{{key: a, rate_limit: {{name: {name}, unit: hour, requests_per_unit: 1}}}}]}}")
}

fn watched(files: &[(&str, &str)]) -> (tempfile::TempDir, Watched) {
    let folder = folder(files);
    let watched = Watched::start(folder.path(), Fingerprint::of(&sources(folder.path())));
    (folder, watched)
}

#[tokio::test]
async fn an_edit_a_rename_a_new_file_and_a_deletion_come_into_force() {
    let (folder, mut watched) = watched(&[("a.yaml", &rule("first"))]);
    let path = |name: &str| folder.path().join(name);

    fs::write(path("a.yaml"), rule("edited")).unwrap();
    assert_eq!(watched.names().await, ["edited"]);

    fs::write(path("a.tmp"), rule("moved")).unwrap();
    fs::rename(path("a.tmp"), path("a.yaml")).unwrap();
    assert_eq!(watched.names().await, ["moved"]);

    fs::write(path("b.yaml"), rule("second").replace("domain: d", "domain: e")).unwrap();
    assert_eq!(watched.names().await, ["moved", "second"]);

    fs::remove_file(path("a.yaml")).unwrap();
    assert_eq!(watched.names().await, ["second"]);
}

#[cfg(unix)]
#[tokio::test]
async fn the_swap_of_a_config_map_comes_into_force() {
    use std::os::unix::fs::symlink;
    let folder = folder(&[("..1/a.yaml", &rule("one")), ("..2/a.yaml", &rule("two"))]);
    let path = |name: &str| folder.path().join(name);
    symlink("..1", path("..data")).unwrap();
    symlink("..data/a.yaml", path("a.yaml")).unwrap();
    let mut watched = Watched::start(folder.path(), Fingerprint::of(&sources(folder.path())));

    symlink("..2", path("..data_tmp")).unwrap();
    fs::rename(path("..data_tmp"), path("..data")).unwrap();
    assert_eq!(watched.names().await, ["two"]);
}

#[tokio::test]
async fn a_change_between_the_first_load_and_the_watch_is_not_missed() {
    let folder = folder(&[("a.yaml", &rule("before"))]);
    let seen = Fingerprint::of(&sources(folder.path()));
    fs::write(folder.path().join("a.yaml"), rule("meanwhile")).unwrap();
    assert_eq!(Watched::start(folder.path(), seen).names().await, ["meanwhile"]);
}

#[tokio::test]
async fn a_bad_change_is_reported_once_and_a_good_one_after_it_is_live() {
    let (folder, mut watched) = watched(&[("a.yaml", &rule("good"))]);
    let path = folder.path().join("a.yaml");

    fs::write(&path, "domain:").unwrap();
    let error = watched.next().await.unwrap_err();
    assert!(error.to_string().ends_with("a.yaml:1:1: domain: is missing or empty"), "{error}");

    fs::write(&path, rule("better")).unwrap();
    assert_eq!(watched.names().await, ["better"]);
}

#[tokio::test]
async fn removing_the_last_file_or_the_folder_is_an_error_and_its_return_is_not() {
    let (folder, mut watched) = watched(&[("a.yaml", &rule("first"))]);
    let path = folder.path().join("a.yaml");

    fs::remove_file(&path).unwrap();
    assert!(watched.next().await.unwrap_err().to_string().contains("this folder has no rules"));

    fs::remove_dir(folder.path()).unwrap();
    assert!(watched.next().await.unwrap_err().to_string().contains("cannot be read"));

    fs::create_dir(folder.path()).unwrap();
    fs::write(&path, rule("back")).unwrap();
    loop {
        // The watch may see the empty folder before the file is in it.
        if let Ok(loaded) = watched.next().await {
            assert_eq!(loaded.rules.rules()[0].limits[0].name(), "back");
            break;
        }
    }
}

#[tokio::test]
async fn what_has_not_changed_is_loaded_again_where_somebody_asks() {
    let (folder, mut watched) = watched(&[("a.yaml", &rule("first"))]);
    for _ in 0..2 {
        watched.asked.notify_one();
        assert_eq!(watched.names().await, ["first"]);
    }
    // Later changes are detected as before.
    fs::write(folder.path().join("a.yaml"), rule("second")).unwrap();
    assert_eq!(watched.names().await, ["second"]);
    fs::write(folder.path().join("a.yaml"), "domain: [").unwrap();
    assert!(watched.next().await.is_err());
    watched.asked.notify_one();
    assert!(watched.next().await.is_err(), "who asks is told once more");
}
