//! `tollgate usage check`: whether a ledger is complete, and the store agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Args;

use super::warn_of_damage;
use crate::command::live::admin_port::Administered;
use crate::command::output::print;
use crate::engine::usage::Time;
use crate::ledger::answer::Wanted;
use crate::ledger::statement::{By, Row, StatementOptions};
use crate::ledger::{Closed, Ledger, PublicKey, Stored};

/// Check a ledger: its signatures, that no line is missing, and that the records in the store agree with it.
///
/// Reports records that the store has since dropped as expected. A ledger that was cut off after a whole run of `close`
/// looks complete; give --to to say how far it must go.
///
/// Exits with 0 if every check succeeds, and with 1 if not.
#[derive(Args)]
pub(crate) struct Check {
    /// The ledger to check.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,

    /// Public key to trust, Ed25519 in PEM: `openssl pkey -pubout` makes it from the private key. May be given several
    /// times; each is trusted.
    #[arg(long, value_name = "FILE", required = true)]
    public_key: Vec<PathBuf>,

    /// Time up to which every domain of the ledger must be closed.
    #[arg(long, value_name = "TIME")]
    to: Option<Time>,

    /// Check only the file, without a service.
    #[arg(long)]
    offline: bool,

    #[command(flatten)]
    service: Administered,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(check: Check) -> anyhow::Result<ExitCode> {
    let path = check.ledger.display();
    let bytes = fs::read(&check.ledger).with_context(|| format!("{path} cannot be read"))?;
    let keys: Vec<PublicKey> = check.public_key.iter().map(read_key).collect::<anyhow::Result<_>>()?;
    let ledger = Ledger::read(&bytes);
    let problems = ledger.problems(&keys, check.to);
    print(&problems.iter().map(|problem| format!("{path}: {problem}\n")).collect::<String>())?;
    let wrong: BTreeSet<usize> = problems.iter().map(|problem| problem.at).collect();
    let mut is_good = problems.is_empty();
    if is_good {
        print(&format!("{path}: {} lines, signed and in order{}\n", ledger.len(), extent(&ledger)))?;
    }
    if !check.offline {
        let closed: Vec<_> = ledger.closed().filter(|(at, _)| !wrong.contains(at)).collect();
        let asked = compare(&check.service, &ledger, &closed).await;
        let (differences, expired) = asked.context("cannot compare the ledger with the store; --offline skips this")?;
        is_good &= differences.is_empty();
        let mut text: String = differences.iter().map(|difference| format!("{path}: {difference}\n")).collect();
        if expired > 0 {
            text += &format!("{path}: {expired} lines were not compared: their records in the store have expired\n");
        }
        if differences.is_empty() {
            text += &format!("{path}: the store agrees with {} lines\n", closed.len() - expired);
        }
        print(&text)?;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_key(path: &PathBuf) -> anyhow::Result<PublicKey> {
    let pem = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    PublicKey::read(&pem).map_err(|error| anyhow!("{} {error}", path.display()))
}

/// Returns the times that the ledger covers: `; shop from … to …`.
fn extent(ledger: &Ledger) -> String {
    let mut domains: BTreeMap<&str, (Time, Time)> = BTreeMap::new();
    for (_, closed) in ledger.closed() {
        domains.entry(&closed.domain).or_insert((closed.from, closed.to)).1 = closed.to;
    }
    domains.iter().map(|(domain, (from, to))| format!("; {domain} from {from} to {to}")).collect()
}

/// Compares closed lines with the store. Returns the differences with their lines, and the number of lines whose
/// records the store has dropped.
async fn compare(
    service: &Administered,
    ledger: &Ledger,
    closed: &[(usize, &Closed)],
) -> anyhow::Result<(Vec<String>, usize)> {
    let ends = closed.iter().map(|(_, closed)| closed.to).max();
    let Some((to, by)) = ends.zip(ledger.length()) else { return Ok((Vec::new(), 0)) };
    let options = StatementOptions { by: By::Kept, from: Time(0), to, open: true, closed_after_ms: 0, zone: None };
    let statement = service.usage(&Wanted::within(Time(0), to), &options).await?;
    warn_of_damage(statement.damaged());
    let now = statement.now().unwrap_or_default();
    let rows = statement.rows();
    let mut stored: BTreeMap<(&str, Time), Vec<&Row>> = BTreeMap::new();
    for row in &rows {
        stored.entry((&row.counter.owner.domain, by.begin(row.start))).or_default().push(row);
    }
    let (mut differences, mut expired) = (Vec::new(), 0);
    for (at, closed) in closed {
        let rows = stored.remove(&(&*closed.domain, closed.from)).unwrap_or_default();
        match closed.compare(&rows, now) {
            Stored::Agrees => {}
            Stored::Expired(_) => expired += 1,
            Stored::Differs(how) => {
                differences
                    .push(format!("line {at}: the store differs on {} from {} on: {how}", closed.domain, closed.from));
            }
        }
    }
    // Wrong lines were reported before, and so were the periods that they close.
    ledger.closed().for_each(|(_, closed)| drop(stored.remove(&(&*closed.domain, closed.from))));
    for ((domain, from), rows) in stored {
        if ledger.sealed_until(domain).is_some_and(|until| from < until) {
            let records = rows.len();
            differences.push(format!("the store has {records} records of {domain} from {from} on that no line closes"));
        }
    }
    Ok((differences, expired))
}
