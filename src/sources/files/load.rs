//! Loads rules from files: finds the files, reads and compiles them in parallel, and joins their rules.
//!
//! While a file is read, its text and its checked descriptors are in memory. Only the compiled rules remain when the
//! next file is read, so at most one file per thread is in memory at once.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::yaml::{self, Manifests, Reading, Said, is_rules_file};
use crate::engine::rules::compiled::Rules;
use crate::engine::rules::report::{Bytes, Position, Problem, Report, RulesError, Severity};
use crate::engine::rules::validate::Validation;

pub use crate::engine::rules::validate::{LoadOptions, MAX_FILE_BYTES};

/// Files and folders with rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A file is read under any name. A folder contributes every file below it named `*.yaml`, `*.yml` or `*.json`, in
    /// the order of the paths. Names that begin with a dot are skipped, so a mounted Kubernetes ConfigMap, with links
    /// into dot folders, counts each file once.
    pub paths: Vec<PathBuf>,
}

/// A text that has already been read, with a name for messages.
#[derive(Clone, Debug)]
pub struct NamedText {
    /// The name, such as `-` for standard input.
    pub name: PathBuf,
    /// The contents.
    pub bytes: Vec<u8>,
}

/// Rules that are ready for use.
#[derive(Debug)]
pub struct Loaded {
    /// The rules of the files.
    pub rules: Rules,
    /// Mistakes that do not prevent the rules from being used.
    pub warnings: Vec<Problem>,
    /// Suggestions for limits that may fit better.
    pub hints: Vec<Problem>,
}

/// Loads the rules of all files; without sources, there are no rules.
///
/// # Errors
/// Lists every problem of every file: a path that does not exist or cannot be read, a folder without rules files, and
/// all mistakes inside the files.
pub fn load(sources: &Sources, options: &LoadOptions) -> Result<Loaded, RulesError> {
    Loader::new(sources.clone(), options.clone()).load(Pace::Alone)
}

/// Loads rules for checking: accepts texts that are not files, and the rules files in the ConfigMaps of Kubernetes
/// manifests.
///
/// # Errors
/// As [`load`], and if a manifest holds no rules.
pub fn check(sources: &Sources, texts: &[NamedText], options: &LoadOptions) -> Result<Loaded, RulesError> {
    Loader::new(sources.clone(), options.clone()).load_all(texts, Manifests::Read, Pace::Alone)
}

/// Loads the same files repeatedly, and tracks its progress.
#[derive(Clone, Debug)]
pub struct Loader {
    /// Files to load.
    pub sources: Sources,
    /// Texts to load after the files.
    texts: Arc<[NamedText]>,
    options: LoadOptions,
    progress: Arc<Mutex<Option<Progress>>>,
}

/// Other work of the process during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// None: every core reads files.
    Alone,
    /// The process answers requests, and half of the cores are left to them.
    BesideRequests,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    begin: Instant,
    /// Present stage.
    pub stage: Stage,
    /// Number of files.
    pub files: usize,
    /// Number of files read.
    pub files_read: usize,
    /// Total size of the files, as far as it is known.
    pub bytes: u64,
    /// Bytes read so far.
    pub bytes_read: u64,
}

/// Stage of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reads and checks each file.
    Reading,
    /// Joins the rules of all files.
    Joining,
}

impl Stage {
    /// Returns the name in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Reading => "reading",
            Stage::Joining => "joining",
        }
    }
}

impl Progress {
    /// Returns the time since the load began.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Loader {
    /// Creates a loader of these files.
    pub fn new(sources: Sources, options: LoadOptions) -> Loader {
        Loader { sources, texts: Arc::default(), options, progress: Arc::default() }
    }

    /// Loads these texts as well, after the files. They never change.
    #[must_use]
    pub fn with_texts(self, texts: &[NamedText]) -> Loader {
        Loader { texts: texts.into(), ..self }
    }

    /// Returns the progress, or `None` if no load is running.
    pub fn progress(&self) -> Option<Progress> {
        *self.progress.lock()
    }

    /// Loads the rules as [`load`] does.
    ///
    /// # Errors
    /// As [`load`]. They do not depend on which file is read first.
    pub fn load(&self, pace: Pace) -> Result<Loaded, RulesError> {
        self.load_all(&self.texts, Manifests::Refuse, pace)
    }

    fn load_all(&self, texts: &[NamedText], manifests: Manifests, pace: Pace) -> Result<Loaded, RulesError> {
        let loading = Loading(self);
        let (mut report, mut validation) = (Report::default(), Validation::new(self.options.clone()));
        let files = self.sources.files(&mut report);
        let inputs: Vec<Input<'_>> =
            files.iter().map(|file| Input::File(file)).chain(texts.iter().map(Input::Text)).collect();
        loading.begin(&inputs);
        let all = side_by_side(&inputs, threads(pace), |input| {
            let mut report = Report::default();
            let said = self.read(input, manifests, &loading, &mut report);
            (said, report)
        });
        loading.join();
        // Manifests without rules are ignored if there are rules elsewhere: a folder of manifests also holds other
        // resources.
        let mut without_rules = Vec::new();
        for (said, own) in all {
            report.merge(own);
            said.parts.into_iter().for_each(|part| validation.join(part, &mut report));
            without_rules.extend(said.without_rules);
        }
        if validation.is_empty() {
            without_rules.into_iter().for_each(|problem| report.add(problem));
        }
        let rules = validation.finish(&mut report);
        let hints = report.take_hints();
        let warnings = report.finish()?;
        Ok(Loaded { rules, warnings, hints })
    }

    /// Reads one input.
    fn read(&self, input: &Input<'_>, manifests: Manifests, loading: &Loading<'_>, report: &mut Report) -> Said {
        let (options, known) = (&self.options, input.bytes());
        let (name, bytes) = match input {
            Input::File(path) => (*path, read(path, options.max_file_bytes, report)),
            Input::Text(NamedText { name, bytes }) => (name.as_path(), Some(bytes.clone())),
        };
        let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let read = Cell::new(0);
        let on_read = |bytes| {
            // A text may be read twice.
            let more = (bytes as u64).saturating_sub(read.get());
            read.set(read.get() + more);
            loading.read(more);
        };
        let text = bytes.and_then(|bytes| decode(name, bytes, options.max_file_bytes, report));
        let said = text.map(|text| yaml::read(name, &text, &Reading { manifests, options, on_read: &on_read }, report));
        loading.end(FileRead { known, length, read: read.get() });
        said.unwrap_or_default()
    }
}

/// A file or text to read.
enum Input<'i> {
    File(&'i Path),
    Text(&'i NamedText),
}

impl Input<'_> {
    /// Returns its expected length.
    fn bytes(&self) -> u64 {
        match self {
            Input::File(path) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
            Input::Text(text) => text.bytes.len() as u64,
        }
    }
}

/// A file that has been read.
struct FileRead {
    /// Length expected before reading.
    known: u64,
    /// Actual length.
    length: u64,
    /// Part that the progress includes already.
    read: u64,
}

/// A load in progress. It ends when this is dropped, even by a panic.
struct Loading<'l>(&'l Loader);

impl Loading<'_> {
    fn begin(&self, inputs: &[Input<'_>]) {
        let (begin, files, bytes) = (Instant::now(), inputs.len(), inputs.iter().map(Input::bytes).sum());
        let progress = Progress { begin, stage: Stage::Reading, files, files_read: 0, bytes, bytes_read: 0 };
        *self.0.progress.lock() = Some(progress);
    }

    fn read(&self, more: u64) {
        self.go_on(|progress| progress.bytes_read += more);
    }

    fn end(&self, FileRead { known, length, read }: FileRead) {
        self.go_on(|progress| {
            progress.files_read += 1;
            progress.bytes = progress.bytes.saturating_sub(known) + length;
            progress.bytes_read += length.saturating_sub(read);
        });
    }

    fn join(&self) {
        self.go_on(|progress| progress.stage = Stage::Joining);
    }

    fn go_on(&self, by: impl FnOnce(&mut Progress)) {
        if let Some(progress) = &mut *self.0.progress.lock() {
            by(progress);
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        *self.0.progress.lock() = None;
    }
}

fn threads(pace: Pace) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    match pace {
        Pace::Alone => cores,
        Pace::BesideRequests => cores.div_ceil(2),
    }
}

/// Runs `work` on each item, on up to `threads` threads. Returns the results in the order of the items.
fn side_by_side<T: Sync, R: Send>(all: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(index) else { break done };
            done.push((index, work(one)));
        }
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(all.len())).map(|_| scope.spawn(some)).collect();
        let mut done = some();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Sources {
    /// Returns the layout of envoyproxy/ratelimit: one folder, `root/subdirectory/appdirectory`, without the parts that
    /// are empty.
    pub fn runtime(root: impl AsRef<Path>, subdirectory: &str, appdirectory: &str) -> Sources {
        let parts = [subdirectory, appdirectory].into_iter().filter(|part| !part.is_empty());
        Sources { paths: vec![parts.fold(root.as_ref().to_owned(), |path, part| path.join(part))] }
    }

    /// Returns every file once, in order.
    pub(crate) fn files(&self, report: &mut Report) -> Vec<PathBuf> {
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

/// Returns the rules files of a folder and all folders below it, in the order of their paths.
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
        report.refuse(root, "this folder has no rules: no *.yaml, *.yml or *.json".to_owned());
    }
    found.sort();
    found
}

/// Lists the contents of a folder, without dot files and dot folders.
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

/// Reads a file. Returns `None` if it has reported a problem.
pub(super) fn read(path: &Path, max_bytes: u64, report: &mut Report) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte beyond the limit shows that the file is too long, regardless of the length that the file system reports.
    let enough = max_bytes.saturating_add(1);
    let result = fs::File::open(path).and_then(|file| file.take(enough).read_to_end(&mut bytes));
    if let Err(error) = &result {
        refuse(path, error, report);
    }
    result.ok().map(|_| bytes)
}

/// Decodes a file's text. Returns `None` if it has reported a problem.
pub(super) fn decode(path: &Path, bytes: Vec<u8>, max_bytes: u64, report: &mut Report) -> Option<String> {
    if bytes.len() as u64 > max_bytes {
        let message = format!("is longer than {}: split it, or raise MAX_RULES_FILE_BYTES", Bytes(max_bytes));
        report.refuse(path, message);
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
