//! `tollgate promote`: replaces the rules by the candidate rules, and keeps the old ones.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use crate::command::output::print;
use crate::engine::rules::diff::Summary;
use crate::engine::rules::report::Report;
use crate::settings::{CandidateFiles, Reading, RulesSettings};
use crate::sources::files::load::{self, LoadOptions, Sources};
use crate::sources::files::watch::Fingerprint;

/// Replace the rules by the candidate rules, and keep the old ones next to them.
///
/// Works on files of the machine on which it runs. Replaces a file by a file, or a folder by a folder, in one step, and
/// only if the candidates have no errors. The old rules are kept in the same folder under a name that no service reads:
/// .NAME.before-TIME. A service that reads the files loads the new rules by itself.
///
/// Copies only rules files: plain files named *.yaml, *.yml or *.json. Each gets the mode and the owner of the file
/// that it replaces.
///
/// Exits with 0 if the candidates are now the rules, or were before, and with 1 if not.
#[derive(Args)]
pub(crate) struct Promote {
    /// Promote only if the candidates have this version, as shown by GET /candidates. This protects against promoting a
    /// change that someone else has just made.
    #[arg(long, value_name = "VERSION")]
    expect: Option<String>,

    /// All paths that the service reads, if --rules names only some of them: the candidates must fit the rest. Unset:
    /// the paths in the variable RULES. May be given several times.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    served: Vec<PathBuf>,

    #[command(flatten)]
    candidates: CandidateFiles,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,
}

impl Promote {
    /// Returns all paths that the service reads.
    fn served(&self) -> Vec<PathBuf> {
        if !self.served.is_empty() {
            return self.served.clone();
        }
        // The flag --rules has replaced the value of the variable.
        let named = std::env::var("RULES").unwrap_or_default();
        named.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
    }
}

pub(crate) fn run(promote: &Promote) -> anyhow::Result<ExitCode> {
    let Some(candidates) = promote.candidates.sources() else {
        bail!("no candidate rules: name a file or folder with --candidate-rules PATH (or CANDIDATE_RULES)");
    };
    let swap = Swap::new(&promote.rules.sources()?, &candidates)?;
    let options = promote.reading.load_options();
    let seen = Fingerprint::of(&candidates);
    let new = load::load(&candidates, &options).context("the candidates are invalid")?.rules;
    if let Some(expected) = &promote.expect {
        ensure!(new.version() == expected, "the candidates have version {}, not {expected}", new.version());
    }
    // Unreadable rules may be replaced as well.
    let old = load::load(&promote.rules.sources()?, &options).map(|loaded| loaded.rules).ok();
    if old.as_ref().is_some_and(|old| old.version() == new.version()) {
        return print(&format!("{} and {} are identical\n", swap.rules.display(), swap.candidates.display()));
    }
    let staged = Staged::copy(&swap, &options)?;
    staged.check_beside(&promote.served(), &options)?;
    ensure!(Fingerprint::of(&candidates) == seen, "the candidates are changing: try again when they are complete");
    let kept = staged.promote()?;
    let (rules, candidates) = (swap.rules.display(), swap.candidates.display());
    let changes = old.map(|old| Summary::of(&old, &new).to_string()).unwrap_or_default();
    let kept = kept.display();
    print(&format!("{rules} now has the rules of {candidates}; the previous rules are in {kept}\n{changes}"))
}

/// The files or folders to exchange.
struct Swap {
    rules: PathBuf,
    candidates: PathBuf,
    /// Time in the names of files made by this run, to distinguish them from those of earlier runs.
    time: String,
}

impl Swap {
    fn new(rules: &Sources, candidates: &Sources) -> anyhow::Result<Swap> {
        let (rules, candidates) = (only(rules, "RULES")?, only(candidates, "CANDIDATE_RULES")?);
        if rules.starts_with(&candidates) || candidates.starts_with(&rules) {
            bail!("{} and {} must not contain each other", rules.display(), candidates.display());
        }
        if rules.is_dir() != candidates.is_dir() {
            bail!("{} and {} must be two files or two folders", rules.display(), candidates.display());
        }
        if !candidates.is_dir() && !candidates.is_file() {
            bail!("{} is not a regular file", candidates.display());
        }
        // The files in such a folder are links that Kubernetes manages.
        if rules.join("..data").exists() {
            bail!(
                "{} is a mounted ConfigMap or Secret, which is read-only: copy the candidates into its manifest",
                rules.display()
            );
        }
        if rules.join(".git").exists() {
            bail!("{} is a checkout of Git: commit the candidates there", rules.display());
        }
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
        Ok(Swap { rules, candidates, time })
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
fn only(sources: &Sources, setting: &str) -> anyhow::Result<PathBuf> {
    let [path] = &sources.paths[..] else {
        bail!("{setting} names several paths, which promote cannot replace: copy the files by hand");
    };
    path.canonicalize().with_context(|| format!("{} cannot be read", path.display()))
}

/// A copy of the candidates in the folder of the rules. It is removed unless it is promoted.
struct Staged<'s> {
    swap: &'s Swap,
    path: PathBuf,
}

impl<'s> Staged<'s> {
    /// Copies the candidates, and reads the copy as the service will.
    fn copy(swap: &'s Swap, options: &LoadOptions) -> anyhow::Result<Staged<'s>> {
        let path = swap.beside("next");
        ensure!(!path.exists(), "{} exists already: try again", path.display());
        let staged = Staged { swap, path };
        staged.copy_files()?;
        let sources = Sources { paths: vec![staged.path.clone()] };
        load::load(&sources, options).context("the copy of the candidates is invalid")?;
        Ok(staged)
    }

    /// Copies the rules files of the candidates and syncs them to disk.
    fn copy_files(&self) -> anyhow::Result<()> {
        let Swap { rules, candidates, .. } = self.swap;
        let mut report = Report::default();
        let files = Sources { paths: vec![candidates.clone()] }.files(&mut report);
        report.finish()?;
        // New files get the mode and the owner of the first old file.
        let old = Sources { paths: vec![rules.clone()] }.files(&mut Report::default());
        let first = fs::metadata(old.first().unwrap_or(rules))?;
        if rules.is_dir() {
            make_folder(&self.path, rules).with_context(|| not_written(rules))?;
        }
        for file in files {
            let below = file.strip_prefix(candidates).unwrap_or(Path::new(""));
            // Joining an empty path would add a slash.
            let at = |root: &Path| below.iter().fold(root.to_owned(), |path, part| path.join(part));
            for folder in below.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let (made, replaced) = (self.path.join(folder), rules.join(folder));
                if !made.exists() {
                    let like = if replaced.is_dir() { &replaced } else { rules };
                    make_folder(&made, like).with_context(|| not_written(rules))?;
                }
            }
            let (copy, replaced) = (at(&self.path), fs::metadata(at(rules)).ok().filter(Metadata::is_file));
            fs::copy(&file, &copy).with_context(|| not_written(rules))?;
            give(&copy, replaced.as_ref().unwrap_or(&first))?;
            File::open(&copy)?.sync_all().with_context(|| not_written(rules))?;
        }
        Ok(())
    }

    /// Reads all paths of the service, with the copy in place of the rules.
    fn check_beside(&self, served: &[PathBuf], options: &LoadOptions) -> anyhow::Result<()> {
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
        whole.context("the candidates do not fit the other rules that the service reads (RULES)")?;
        Ok(())
    }

    /// Puts the copy in place of the rules, and returns the path of the old ones.
    fn promote(mut self) -> anyhow::Result<PathBuf> {
        let (rules, kept) = (&self.swap.rules, self.swap.beside("before"));
        let kept = if exchange(&self.path, rules).with_context(|| not_written(rules))? {
            // From here on the path holds the old rules, which must not be removed.
            let path = std::mem::take(&mut self.path);
            fs::rename(&path, &kept).map_or(path, |()| kept)
        } else {
            fs::rename(rules, &kept).with_context(|| not_written(rules))?;
            if let Err(error) = fs::rename(&self.path, rules) {
                fs::rename(&kept, rules).with_context(|| format!("the rules are in {}", kept.display()))?;
                return Err(error).with_context(|| not_written(rules));
            }
            kept
        };
        // Makes the change survive a crash. Some file systems cannot do this.
        let _ = rules.parent().map(File::open).transpose()?.map(|folder| folder.sync_all());
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
fn make_folder(path: &Path, like: &Path) -> anyhow::Result<()> {
    fs::create_dir(path)?;
    give(path, &fs::metadata(like)?)
}

/// Gives a file or a folder the mode and the owner of `like`.
#[cfg(unix)]
fn give(path: &Path, like: &Metadata) -> anyhow::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, chown};

    let own = fs::metadata(path)?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        chown(path, Some(like.uid()), Some(like.gid())).with_context(|| {
            format!("the rules belong to user {} and group {}: promote as that user", like.uid(), like.gid())
        })?;
    }
    Ok(fs::set_permissions(path, like.permissions())?)
}

#[cfg(not(unix))]
fn give(path: &Path, like: &Metadata) -> anyhow::Result<()> {
    Ok(fs::set_permissions(path, like.permissions())?)
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
