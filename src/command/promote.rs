//! `tollgate promote`: candidate rules become the rules, and the old ones are kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use crate::changes::Summary;
use crate::rules::load::{self, LoadOptions, Sources};
use crate::rules::watch::Fingerprint;
use crate::settings::{CandidateFiles, Reading, RulesSettings};

/// Put candidate rules in the place of the rules, and keep the old ones beside.
///
/// It works on files, where it is run. A file is exchanged for a file, or a folder for a folder, at one stroke, and
/// only if the candidates have no mistake. The old ones are kept under the same name with .before-TIME behind it. A
/// service that reads the files follows by itself.
///
/// Exits with 0 if the candidates are the rules now, also if they were before, and with 1 if not.
#[derive(Args)]
pub(super) struct Promote {
    /// Do it only if the candidates have this version, which GET /candidates tells: so nobody promotes what another has
    /// just changed.
    #[arg(long, value_name = "VERSION")]
    expect: Option<String>,

    #[command(flatten)]
    candidates: CandidateFiles,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(promote: &Promote) -> anyhow::Result<ExitCode> {
    let Some(candidates) = promote.candidates.sources() else {
        bail!("no candidate rules: name a file or folder with --candidate-rules PATH (or CANDIDATE_RULES)");
    };
    let swap = Swap::new(&promote.rules.sources()?, &candidates)?;
    let options = promote.reading.load_options();
    let seen = Fingerprint::of(&candidates);
    let new = load::load(&candidates, &options).context("the candidates are refused")?.rules;
    if let Some(expected) = &promote.expect {
        ensure!(new.version() == expected, "the candidates are of version {}, not {expected}", new.version());
    }
    // Rules that cannot be read are no reason to keep them.
    let old = load::load(&promote.rules.sources()?, &options).map(|loaded| loaded.rules).ok();
    if old.as_ref().is_some_and(|old| old.version() == new.version()) {
        println!("{} already says what {} says", swap.rules.display(), swap.candidates.display());
        return Ok(ExitCode::SUCCESS);
    }
    let staged = Staged::copy(&swap, &options)?;
    ensure!(Fingerprint::of(&candidates) == seen, "the candidates have just changed: try again when that is done");
    let kept = staged.promote()?;
    let (rules, candidates) = (swap.rules.display(), swap.candidates.display());
    println!("{rules} is what {candidates} is; the old rules are in {}", kept.display());
    if let Some(old) = old {
        print!("{}", Summary::of(&old, &new));
    }
    Ok(ExitCode::SUCCESS)
}

/// What takes the place of what: two files, or two folders.
struct Swap {
    rules: PathBuf,
    candidates: PathBuf,
    /// Tells what is made beside the rules from what was made before.
    time: String,
}

impl Swap {
    fn new(rules: &Sources, candidates: &Sources) -> anyhow::Result<Swap> {
        let (rules, candidates) = (only(rules, "RULES")?, only(candidates, "CANDIDATE_RULES")?);
        if rules.starts_with(&candidates) || candidates.starts_with(&rules) {
            bail!("{} and {} must lie apart", rules.display(), candidates.display());
        }
        if rules.is_dir() != candidates.is_dir() {
            bail!("{} and {} must be two files or two folders", rules.display(), candidates.display());
        }
        // Kubernetes links to it what a folder shows.
        if rules.join("..data").exists() {
            bail!(
                "{} is a mounted ConfigMap or Secret, which cannot be written here: put the text of the candidates \
                 into its manifest",
                rules.display()
            );
        }
        if rules.join(".git").exists() {
            bail!("{} is a checkout of Git: commit the candidates there", rules.display());
        }
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(':', "-");
        Ok(Swap { rules, candidates, time })
    }

    /// `rules.before-2026-01-02T03-04-05Z`, beside the rules.
    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.rules.clone().into_os_string();
        name.push(format!(".{what}-{}", self.time));
        name.into()
    }
}

/// The one path, without links.
fn only(sources: &Sources, setting: &str) -> anyhow::Result<PathBuf> {
    let [path] = &sources.paths[..] else {
        bail!("{setting} names several paths, of which one cannot take the place of the others: copy them by hand");
    };
    path.canonicalize().with_context(|| format!("{} cannot be read", path.display()))
}

/// A copy of the candidates beside the rules. It goes where it is not promoted.
struct Staged<'s> {
    swap: &'s Swap,
    path: PathBuf,
}

impl<'s> Staged<'s> {
    /// Copies them, and reads the copy as the service will.
    fn copy(swap: &'s Swap, options: &LoadOptions) -> anyhow::Result<Staged<'s>> {
        let path = swap.beside("next");
        ensure!(!path.exists(), "{} is there already: try again", path.display());
        let staged = Staged { swap, path };
        copy(&swap.candidates, &staged.path).with_context(|| not_written(&swap.rules))?;
        let sources = Sources { paths: vec![staged.path.clone()] };
        load::load(&sources, options).context("the copy of the candidates is refused")?;
        Ok(staged)
    }

    /// Puts the copy where the rules are, and returns where those are now.
    fn promote(mut self) -> anyhow::Result<PathBuf> {
        let (rules, kept) = (&self.swap.rules, self.swap.beside("before"));
        let kept = if exchange(&self.path, rules).with_context(|| not_written(rules))? {
            // From here on the old rules are there, and nobody removes them.
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
        // So that it stays so where the machine fails now. Not every file system can.
        let _ = rules.parent().map(File::open).transpose()?.map(|folder| folder.sync_all());
        Ok(kept)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // It is not there any more where it was promoted.
        let _ = if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
    }
}

fn not_written(rules: &Path) -> String {
    format!(
        "{} cannot be replaced here. Where it is part of an image, a volume of its own or read-only, change it where \
         it comes from",
        rules.display()
    )
}

/// Copies a file, or a folder and all below it but what begins with a dot, down to the disk.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        fs::copy(from, to)?;
        return File::open(to)?.sync_all();
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            copy(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

/// Exchanges two files or folders at one stroke; false: the system cannot.
#[cfg(target_os = "linux")]
fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}
