//! Puts candidate rules in place of the rules, and keeps the old ones.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::load::{self, LoadOptions, Sources};
use super::watch::Fingerprint;
use crate::engine::rules::diff::Summary;
use crate::engine::rules::report::{Report, RulesError};

/// A promotion: files or folders, and what it is held to.
#[derive(Clone, Debug)]
pub struct Promotion {
    /// The rules: one file or folder.
    pub rules: Sources,
    /// The candidates: one file or folder.
    pub candidates: Sources,
    /// All paths that the service reads, if the rules are only some of them: the candidates must fit the rest.
    pub served: Vec<PathBuf>,
    /// How rules are read.
    pub options: LoadOptions,
    /// Folder in which both must be; `None` if they may be anywhere.
    pub within: Option<PathBuf>,
}

/// What a promotion did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// The rules, with links resolved.
    pub rules: PathBuf,
    /// The candidates, with links resolved.
    pub candidates: PathBuf,
    /// The old rules; `None` if both were identical, and nothing was changed.
    pub kept: Option<PathBuf>,
    /// Version of the rules.
    pub version: String,
    /// The changes in words, a limit a line; empty if the old rules could not be read.
    pub changes: String,
}

/// The reason why nothing was promoted.
#[derive(Debug, thiserror::Error)]
pub enum PromoteError {
    /// The candidates are not those that the caller has seen.
    #[error("the candidates have version {found}, not {expected}")]
    Version {
        /// Their version.
        found: String,
        /// The version that the caller expected.
        expected: String,
    },
    /// Somebody writes the candidates now.
    #[error("the candidates are changing: try again when they are complete")]
    Changing,
    /// These paths cannot be promoted; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// The candidates have mistakes.
    #[error("{what}: {error}")]
    Invalid {
        /// What cannot be read.
        what: &'static str,
        /// The mistakes.
        error: RulesError,
    },
    /// A file cannot be read or written.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// The error of the system.
        error: io::Error,
    },
}

fn invalid(what: &'static str) -> impl FnOnce(RulesError) -> PromoteError {
    move |error| PromoteError::Invalid { what, error }
}

fn failed(what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> PromoteError {
    move |error| PromoteError::Io { what: what(), error }
}

impl Promotion {
    /// Replaces the rules by the candidates in one step, if these have the expected version. If the two are identical,
    /// nothing changes, so it may be repeated.
    ///
    /// # Errors
    /// Nothing was changed then, unless the text of [`PromoteError::Io`] says where the rules are.
    pub fn run(&self, expected: Option<&str>) -> Result<Promoted, PromoteError> {
        let Promotion { rules, candidates, served, options, within } = self;
        let swap = Swap::new(rules, candidates)?;
        if let Some(within) = within {
            swap.must_be_in(within)?;
        }
        let seen = Fingerprint::of(candidates);
        let new = load::load(candidates, options).map_err(invalid("the candidates are invalid"))?.rules;
        let version = new.version().to_owned();
        if let Some(expected) = expected.filter(|expected| *expected != version) {
            return Err(PromoteError::Version { found: version, expected: expected.to_owned() });
        }
        // Unreadable rules may be replaced as well.
        let old = load::load(rules, options).map(|loaded| loaded.rules).ok();
        let promoted = |kept, changes| Promoted {
            rules: swap.rules.clone(),
            candidates: swap.candidates.clone(),
            kept,
            version: version.clone(),
            changes,
        };
        if old.as_ref().is_some_and(|old| old.version() == version) {
            return Ok(promoted(None, String::new()));
        }
        let staged = Staged::copy(&swap, options)?;
        staged.check_beside(served, options)?;
        if Fingerprint::of(candidates) != seen {
            return Err(PromoteError::Changing);
        }
        let kept = staged.promote()?;
        Ok(promoted(Some(kept), old.map(|old| Summary::of(&old, &new).to_string()).unwrap_or_default()))
    }
}

/// The files or folders to exchange.
struct Swap {
    rules: PathBuf,
    candidates: PathBuf,
    /// Time in the names of files made by this run, to distinguish them from those of earlier runs.
    time: String,
}

impl Swap {
    fn new(rules: &Sources, candidates: &Sources) -> Result<Swap, PromoteError> {
        let (rules, candidates) = (only(rules, "RULES")?, only(candidates, "CANDIDATE_RULES")?);
        let (rules_path, candidates_path) = (rules.display(), candidates.display());
        let refused = if rules.starts_with(&candidates) || candidates.starts_with(&rules) {
            Some(format!("{rules_path} and {candidates_path} must not contain each other"))
        } else if rules.is_dir() != candidates.is_dir() {
            Some(format!("{rules_path} and {candidates_path} must be two files or two folders"))
        } else if !candidates.is_dir() && !candidates.is_file() {
            Some(format!("{candidates_path} is not a regular file"))
        // The files in such a folder are links that Kubernetes manages.
        } else if rules.join("..data").exists() {
            Some(format!(
                "{rules_path} is a mounted ConfigMap or Secret, which is read-only: copy the candidates into its \
                 manifest"
            ))
        } else if rules.join(".git").exists() {
            Some(format!("{rules_path} is a checkout of Git: commit the candidates there"))
        } else {
            None
        };
        if let Some(refused) = refused {
            return Err(PromoteError::Refused(refused));
        }
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
        Ok(Swap { rules, candidates, time })
    }

    /// # Errors
    /// If the rules, the candidates or one of their files, with links resolved, are not below this folder.
    fn must_be_in(&self, within: &Path) -> Result<(), PromoteError> {
        let folder = within.canonicalize().map_err(failed(|| format!("{} cannot be read", within.display())))?;
        let mut paths = vec![self.rules.clone(), self.candidates.clone()];
        for path in [&self.rules, &self.candidates] {
            for file in (Sources { paths: vec![path.clone()] }).files(&mut Report::default()) {
                paths.push(file.canonicalize().map_err(failed(|| format!("{} cannot be read", file.display())))?);
            }
        }
        match paths.iter().find(|path| !path.starts_with(&folder) || **path == folder) {
            Some(outside) => {
                let (outside, folder) = (outside.display(), folder.display());
                Err(PromoteError::Refused(format!("{outside} is not below {folder} (PROMOTE_FOLDER)")))
            }
            None => Ok(()),
        }
    }

    /// Returns `.rules.before-2026-01-02T03-04-05Z`, in the folder of the rules. A service that reads this folder skips
    /// it.
    fn beside(&self, what: &str) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.rules.file_name().unwrap_or_default());
        name.push(format!(".{what}-{}", self.time));
        self.rules.with_file_name(name)
    }
}

/// Returns the only path, with links resolved.
fn only(sources: &Sources, setting: &str) -> Result<PathBuf, PromoteError> {
    let [path] = &sources.paths[..] else {
        return Err(PromoteError::Refused(format!(
            "{setting} names several paths, which promote cannot replace: copy the files by hand"
        )));
    };
    path.canonicalize().map_err(failed(|| format!("{} cannot be read", path.display())))
}

/// A copy of the candidates in the folder of the rules. It is removed unless it is promoted.
struct Staged<'s> {
    swap: &'s Swap,
    path: PathBuf,
}

impl<'s> Staged<'s> {
    /// Copies the candidates, and reads the copy as the service will.
    fn copy(swap: &'s Swap, options: &LoadOptions) -> Result<Staged<'s>, PromoteError> {
        let path = swap.beside("next");
        if path.exists() {
            return Err(PromoteError::Refused(format!("{} exists already: try again", path.display())));
        }
        let staged = Staged { swap, path };
        staged.copy_files()?;
        let sources = Sources { paths: vec![staged.path.clone()] };
        load::load(&sources, options).map_err(invalid("the copy of the candidates is invalid"))?;
        Ok(staged)
    }

    /// Copies the rules files of the candidates and syncs them to disk.
    fn copy_files(&self) -> Result<(), PromoteError> {
        let Swap { rules, candidates, .. } = self.swap;
        let mut report = Report::default();
        let files = Sources { paths: vec![candidates.clone()] }.files(&mut report);
        report.finish().map_err(invalid("the candidates are invalid"))?;
        // New files get the mode and the owner of the first old file.
        let old = Sources { paths: vec![rules.clone()] }.files(&mut Report::default());
        let not_written = || not_written(rules);
        let first = fs::metadata(old.first().unwrap_or(rules)).map_err(failed(not_written))?;
        if rules.is_dir() {
            make_folder(&self.path, rules).map_err(failed(not_written))?;
        }
        for file in files {
            let below = file.strip_prefix(candidates).unwrap_or(Path::new(""));
            // Joining an empty path would add a slash.
            let at = |root: &Path| below.iter().fold(root.to_owned(), |path, part| path.join(part));
            for folder in below.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let (made, replaced) = (self.path.join(folder), rules.join(folder));
                if !made.exists() {
                    let like = if replaced.is_dir() { &replaced } else { rules };
                    make_folder(&made, like).map_err(failed(not_written))?;
                }
            }
            let (copy, replaced) = (at(&self.path), fs::metadata(at(rules)).ok().filter(Metadata::is_file));
            fs::copy(&file, &copy).map_err(failed(not_written))?;
            give(&copy, replaced.as_ref().unwrap_or(&first)).map_err(failed(not_written))?;
            File::open(&copy).and_then(|copy| copy.sync_all()).map_err(failed(not_written))?;
        }
        Ok(())
    }

    /// Reads all paths of the service, with the copy in place of the rules.
    fn check_beside(&self, served: &[PathBuf], options: &LoadOptions) -> Result<(), PromoteError> {
        let mut report = Report::default();
        let mut paths = Sources { paths: served.to_vec() }.files(&mut report);
        let all = paths.len();
        let is_replaced = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path.starts_with(&self.swap.rules));
        paths.retain(|path| !is_replaced(path));
        // The rules of another service need not fit.
        if paths.is_empty() || paths.len() == all {
            return Ok(());
        }
        paths.push(self.path.clone());
        let whole = load::load(&Sources { paths }, options);
        whole.map_err(invalid("the candidates do not fit the other rules that the service reads (RULES)")).map(drop)
    }

    /// Puts the copy in place of the rules, and returns the path of the old ones.
    fn promote(mut self) -> Result<PathBuf, PromoteError> {
        let (rules, kept) = (&self.swap.rules, self.swap.beside("before"));
        let not_written = || not_written(rules);
        let kept = if exchange(&self.path, rules).map_err(failed(not_written))? {
            // From here on the path holds the old rules, which must not be removed.
            let path = std::mem::take(&mut self.path);
            fs::rename(&path, &kept).map_or(path, |()| kept)
        } else {
            fs::rename(rules, &kept).map_err(failed(not_written))?;
            if let Err(error) = fs::rename(&self.path, rules) {
                fs::rename(&kept, rules).map_err(failed(|| format!("the rules are in {}", kept.display())))?;
                return Err(failed(not_written)(error));
            }
            kept
        };
        // Makes the change survive a crash. Some file systems cannot do this.
        let _ = rules.parent().map(|folder| File::open(folder).and_then(|folder| folder.sync_all()));
        Ok(kept)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // After a promotion there is nothing to remove.
        let _ = if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
    }
}

fn not_written(rules: &Path) -> String {
    format!(
        "cannot replace {}. If it is part of an image, a mount point or read-only, change it at its source",
        rules.display()
    )
}

/// Creates a folder with the mode and the owner of another.
fn make_folder(path: &Path, like: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    give(path, &fs::metadata(like)?)
}

/// Gives a file or a folder the mode and the owner of `like`.
#[cfg(unix)]
fn give(path: &Path, like: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, chown};

    let own = fs::metadata(path)?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        chown(path, Some(like.uid()), Some(like.gid())).map_err(|error| {
            let (user, group) = (like.uid(), like.gid());
            let said = format!("the rules belong to user {user} and group {group}: promote as that user: {error}");
            io::Error::new(error.kind(), said)
        })?;
    }
    fs::set_permissions(path, like.permissions())
}

#[cfg(not(unix))]
fn give(path: &Path, like: &Metadata) -> io::Result<()> {
    fs::set_permissions(path, like.permissions())
}

/// Exchanges two files or folders in one step. Returns `false` if the system cannot do this.
#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        // Some file systems cannot exchange files.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}
