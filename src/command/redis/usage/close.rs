//! `tollgate usage close`: appends finished periods to a ledger.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;

use super::warn_of_damage;
use crate::command::live::admin_port::Administered;
use crate::command::output::{errln, print};
use crate::engine::printable::printable;
use crate::engine::usage::Time;
use crate::ledger::answer::Wanted;
use crate::ledger::statement::{By, StatementOptions};
use crate::ledger::{Closing, Ledger, Length, SigningKey};
use crate::settings::named;

/// Append finished periods to a ledger: signed totals of each domain and day.
///
/// Appends a line of JSON for each domain and day that is over and not in the ledger yet. Each line is chained to the
/// line before. If the command is killed, it leaves whole lines, and perhaps half a line that the next run removes. Of
/// two simultaneous runs one fails. Needs ADMIN_API=true at the service, and a token here.
///
/// Exits with 0 if the ledger now has all finished periods. If not, exits with 1, and the ledger is unchanged.
#[derive(Args)]
pub(crate) struct Close {
    /// The ledger; created if it does not exist.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,

    /// Private key for the signatures, Ed25519 in PEM: `openssl genpkey -algorithm ed25519` makes one.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Length of the period that a line closes. Unset: that of the ledger, or a day in a new ledger.
    #[arg(long, value_name = "TIME", value_parser = named(&Length::ALL, Length::name))]
    by: Option<Length>,

    /// Time after the end of a period until it can be closed. By then, requests from its end must be decided and
    /// refunds applied; clocks must differ by less.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = humantime::parse_duration)]
    after: Duration,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(close: Close) -> anyhow::Result<ExitCode> {
    let pem = fs::read(&close.key).with_context(|| format!("{} cannot be read", close.key.display()))?;
    let key = SigningKey::read(&pem).map_err(|error| anyhow!("{} {error}", close.key.display()))?;
    let mut file = LedgerFile::open(&close.ledger)?;
    let ledger = &file.ledger;
    let (whole, half) = ledger.bytes();
    let by = close.by.or(ledger.length()).unwrap_or_default();
    // Starts at the beginning of that day, to include records kept by the day.
    let (from, to) = (Length::Day.begin(ledger.next(close.domain.as_deref())), Time::END);
    let wanted = Wanted { domain: close.domain.clone(), ..Wanted::within(from, to) };
    // Open periods are not written, but they show which records have longer periods.
    let options = StatementOptions { by: By::Kept, from, to, open: true, closed_after_ms: 0, zone: None };
    let statement = close.service.usage(&wanted, &options).await?;
    let (damaged, at) = (statement.damaged(), statement.now().unwrap_or_default());
    let after_ms = u64::try_from(close.after.as_millis()).unwrap_or(u64::MAX);
    let until = by.begin(Time(at.0.saturating_sub(after_ms)));
    let rows = statement.rows();
    let closing = Closing { rows: &rows, domain: close.domain.as_deref(), by, until, at };
    let lines = ledger.close(&closing, &key)?;
    if half > 0 {
        errln!("an earlier run was interrupted: removing an incomplete line of {half} bytes");
    }
    file.append(whole, &lines)?;
    let done = print(&summary(&close.ledger, &lines, by));
    warn_of_damage(damaged);
    done
}

/// Returns a line for each domain: its periods that were closed.
fn summary(path: &Path, lines: &str, by: Length) -> String {
    let mut closed: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in Ledger::read(lines.as_bytes()).closed() {
        *closed.entry(line.domain.clone()).or_default() += 1;
    }
    if closed.is_empty() {
        return format!("{}: nothing more to close\n", path.display());
    }
    let line = |(domain, times): (String, usize)| {
        let plural = if times == 1 { "" } else { "s" };
        format!("{}: {times} {}{plural} of {} closed\n", path.display(), by.name(), printable(&domain))
    };
    closed.into_iter().map(line).collect()
}

/// A ledger, locked against other writers.
struct LedgerFile {
    path: PathBuf,
    file: File,
    ledger: Ledger,
}

impl LedgerFile {
    fn open(path: &Path) -> anyhow::Result<LedgerFile> {
        let unopened = || format!("{} cannot be opened", path.display());
        let is_new = !path.exists();
        let mut options = File::options();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path).with_context(unopened)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another `tollgate usage close` is writing {}: try again when it has finished", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("{} cannot be locked", path.display()));
            }
        }
        if is_new {
            sync_folder(path).with_context(unopened)?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("{} cannot be read", path.display()))?;
        Ok(LedgerFile { path: path.to_owned(), file, ledger: Ledger::read(&bytes) })
    }

    /// Appends lines after the whole ones. If that fails, the file keeps only the whole lines.
    fn append(&mut self, whole: usize, lines: &str) -> anyhow::Result<()> {
        let whole = whole as u64;
        let mut write = || -> io::Result<()> {
            self.file.set_len(whole)?;
            self.file.seek(SeekFrom::Start(whole))?;
            self.file.write_all(lines.as_bytes())?;
            self.file.sync_all()
        };
        let written = write();
        if written.is_err() {
            // The next run removes what remains of a line.
            let _ = self.file.set_len(whole);
        }
        written.with_context(|| format!("cannot write {}: nothing was closed", self.path.display()))
    }
}

/// Syncs the folder. Without this, a crash could lose the new name.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
