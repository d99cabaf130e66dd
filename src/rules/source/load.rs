//! Where rules come from: finds the files, reads and compiles them side by side, and joins the rules that they make.
//!
//! While a file is read, its text is in memory, and what its descriptors mean. Of both only the compiled rules are left
//! when the next file is read, so as many files as threads have theirs at once.

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

use super::yaml::{self, Manifests, Reading, Said};
use crate::rules::compiled::Rules;
use crate::rules::report::{Bytes, Position, Problem, Report, RulesError, Severity};
use crate::rules::validate::Validation;

pub use crate::rules::validate::{LoadOptions, MAX_FILE_BYTES};

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
    /// What may fit better.
    pub hints: Vec<Problem>,
}

/// Reads all files and makes rules of them; of no sources, no rules.
///
/// # Errors
/// With every problem of every file: a path that is not there or cannot be read, a folder without any rules file, and
/// whatever is wrong in a file.
pub fn load(sources: &Sources, options: &LoadOptions) -> Result<Loaded, RulesError> {
    Loader::new(sources.clone(), *options).load(Pace::Alone)
}

/// Loads rules before they are where the service reads them: also texts that are in no file, and the rules files in the
/// ConfigMaps of Kubernetes manifests.
///
/// # Errors
/// As [`load`] has them, and where a manifest holds no rules.
pub fn check(sources: &Sources, texts: &[NamedText], options: &LoadOptions) -> Result<Loaded, RulesError> {
    Loader::new(sources.clone(), *options).load_all(texts, Manifests::Read, Pace::Alone)
}

/// Loads the same files again and again, and knows how far it is.
#[derive(Clone, Debug)]
pub struct Loader {
    /// The files.
    pub sources: Sources,
    options: LoadOptions,
    progress: Arc<Mutex<Option<Progress>>>,
}

/// What else the process does while it loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Nothing: every core reads files.
    Alone,
    /// It answers requests: half of the cores are left to them.
    BesideRequests,
}

/// How far a load is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    begin: Instant,
    /// What it is doing.
    pub stage: Stage,
    /// So many files there are.
    pub files: usize,
    /// So many of them have been read.
    pub files_read: usize,
    /// So long they are together, as far as is known.
    pub bytes: u64,
    /// So much of that has been read.
    pub bytes_read: u64,
}

/// What a load is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It reads files and checks what each says.
    Reading,
    /// It joins the rules of all files.
    Joining,
}

impl Stage {
    /// The name in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Reading => "reading",
            Stage::Joining => "joining",
        }
    }
}

impl Progress {
    /// For how long it has been going on.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Loader {
    /// Loads these files.
    pub fn new(sources: Sources, options: LoadOptions) -> Loader {
        Loader { sources, options, progress: Arc::default() }
    }

    /// How far it is; `None` where it is not loading.
    pub fn progress(&self) -> Option<Progress> {
        *self.progress.lock()
    }

    /// As [`load`] does.
    ///
    /// # Errors
    /// As [`load`] has them. They do not depend on which file is read first.
    pub fn load(&self, pace: Pace) -> Result<Loaded, RulesError> {
        self.load_all(&[], Manifests::Refuse, pace)
    }

    fn load_all(&self, texts: &[NamedText], manifests: Manifests, pace: Pace) -> Result<Loaded, RulesError> {
        let loading = Loading(self);
        let (mut report, mut validation) = (Report::default(), Validation::new(self.options));
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
        // Beside rules they are nothing to speak of: a folder of manifests holds others, too.
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

    /// Reads one of them.
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

/// What is read.
enum Input<'i> {
    File(&'i Path),
    Text(&'i NamedText),
}

impl Input<'_> {
    /// How long it seems to be.
    fn bytes(&self) -> u64 {
        match self {
            Input::File(path) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
            Input::Text(text) => text.bytes.len() as u64,
        }
    }
}

/// A file that has been read.
struct FileRead {
    /// How long it was thought to be.
    known: u64,
    /// How long it is.
    length: u64,
    /// How much of that progress tells already.
    read: u64,
}

/// A load that is going on; it has ended when this is dropped, by a panic too.
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

/// Does the same with each, on up to so many threads; the results are in the order of what they are for.
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
fn read(path: &Path, max_bytes: u64, report: &mut Report) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to see that it is too long, whatever the file system says of its length.
    let enough = max_bytes.saturating_add(1);
    let result = fs::File::open(path).and_then(|file| file.take(enough).read_to_end(&mut bytes));
    if let Err(error) = &result {
        refuse(path, error, report);
    }
    result.ok().map(|_| bytes)
}

/// The text of a file; `None` where there is a problem with it.
fn decode(path: &Path, bytes: Vec<u8>, max_bytes: u64, report: &mut Report) -> Option<String> {
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
