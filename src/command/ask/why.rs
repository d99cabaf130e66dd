//! `tollgate why`: why a request was denied, by the lines of a decision log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::command::output::{NOTHING_APPLIES, Output, errln, print};
use crate::engine::descriptor::Entry;
use crate::inspect;
use crate::observe::decision_log::told::Told;
use crate::observe::redaction::Values;

/// Standard input.
const STDIN: &str = "-";

/// Why was a request denied, and when could its client return? Reads a decision log.
///
/// Prints the lines of a decision log in words: the limit, a ban, what an operator had adjusted, from when on the same
/// request would have passed, and a sentence for the client. Each instance logs its own decisions: name the logs of all
/// of them. PATH.1, PATH.2 and so on, the rotated files of a log, are read before it.
///
/// Exits with 0 if a line was found, 3 if none was, and 1 if a log cannot be read.
#[derive(Args)]
pub(crate) struct Why {
    /// Entries of the descriptor. Each line that is printed has all of them.
    #[arg(value_name = "KEY=VALUE", required_unless_present = "request_id")]
    entries: Vec<String>,

    /// Decision log to read, or - for standard input. May be given several times.
    #[arg(long, value_name = "PATH", required = true)]
    log: Vec<PathBuf>,

    /// Only this domain. Unset: all.
    #[arg(long, short)]
    domain: Option<String>,

    /// Only this time, or what begins with it, in UTC: 14:03, 2026-11-23, 2026-11-23T14:03 or 2026-11-23T14:03:07.
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<String>,

    /// Only the request with this ID, which the body of a 429 or the header x-request-id has.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Also lines of requests that passed.
    #[arg(long)]
    all: bool,

    /// Most lines to print, the newest ones.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "10")]
    limit: usize,

    /// Key of the hashes in the log, if it was written with DECISION_LOG_VALUES=hashed.
    #[arg(long, env = "VALUES_KEY", value_name = "KEY", hide_env_values = true)]
    values_key: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// What was found in all logs.
#[derive(Default)]
struct Found {
    /// The newest lines that match, in the order of their times.
    lines: Vec<Told>,
    /// Number of earlier ones that are left out.
    more: u64,
    /// Number of lines of a decision log.
    read: u64,
    /// Number of lines that are none.
    unreadable: u64,
}

/// What was found in one log.
#[derive(Default)]
struct Matching {
    lines: VecDeque<Told>,
    more: u64,
    read: u64,
    unreadable: u64,
}

pub(crate) fn run(why: &Why) -> anyhow::Result<ExitCode> {
    let entries = inspect::entries(&why.entries)?;
    let wanted = why.wanted(&entries);
    let mut found = Found::default();
    for path in &why.log {
        let mut of_log = Matching::default();
        if path == Path::new(STDIN) {
            of_log.read(io::stdin().lock(), why, &wanted).context("standard input cannot be read")?;
        } else {
            for path in with_rotated(path) {
                let cannot = || format!("{} cannot be read", path.display());
                let file = File::open(&path).with_context(cannot)?;
                of_log.read(BufReader::new(file), why, &wanted).with_context(cannot)?;
            }
        }
        found.add(of_log);
    }
    found.keep_newest(why.limit);
    if found.read == 0 && found.unreadable > 0 {
        bail!("none of {} lines is one of a decision log: is it the file of DECISION_LOG?", found.unreadable);
    }
    if found.unreadable > 0 {
        errln!("{} lines are not of a decision log, and were skipped", found.unreadable);
    }
    if found.lines.is_empty() {
        errln!("{}", why.nothing(found.read));
        return Ok(ExitCode::from(NOTHING_APPLIES));
    }
    if found.more > 0 {
        errln!("{} earlier lines match, too: see -n, or name a time with --at", found.more);
    }
    print(&match why.output.is_json() {
        true => serde_json::to_string(&found.lines)? + "\n",
        false => {
            let is_same_call = |one: &Told, next: &Told| (&one.instance, one.call) == (&next.instance, next.call);
            found.lines.chunk_by(is_same_call).map(text).collect::<Vec<_>>().join("\n")
        }
    })
}

/// Returns the lines of a call in words, and what to tell its client.
fn text(call: &[Told]) -> String {
    let lines: String = call.iter().map(ToString::to_string).collect();
    let sentence = Told::decisive(call).map(|line| format!("  to tell the client: {}\n", line.for_client()));
    lines + &sentence.unwrap_or_default()
}

/// An entry that lines must have, with its value as it is and as the log may have it.
struct Wanted {
    key: String,
    values: Vec<String>,
}

impl Why {
    fn wanted(&self, entries: &[Entry]) -> Vec<Wanted> {
        let hashing = self.values_key.as_deref().map(Values::hashed);
        let of = |Entry { key, value }: &Entry| {
            let hashed = hashing.as_ref().and_then(|hashing| hashing.shown(value)).map(|hash| hash.into_owned());
            Wanted { key: key.to_string(), values: [Some(value.to_string()), hashed].into_iter().flatten().collect() }
        };
        entries.iter().map(of).collect()
    }

    fn matches(&self, line: &Told, wanted: &[Wanted]) -> bool {
        let has = |Wanted { key, values }: &Wanted| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            line.has(key, &values)
        };
        // A prefix of the time, or of the part after the date.
        let is_at = |at: &String| {
            line.time.starts_with(&**at) || line.time.split_once('T').is_some_and(|(_, clock)| clock.starts_with(&**at))
        };
        (self.all || line.outcome != "allowed")
            && self.at.as_ref().is_none_or(is_at)
            && self.domain.as_ref().is_none_or(|domain| *domain == line.domain)
            && self.request_id.as_ref().is_none_or(|id| line.request_id.as_ref() == Some(id))
            && wanted.iter().all(has)
    }

    /// Says that there is no line, and where to look.
    fn nothing(&self, read: u64) -> String {
        let more = match self.all {
            true => "",
            false => ", or --all adds what passed",
        };
        format!(
            "none of {read} lines matches: Tollgate did not deny it, its line was left out (see the metric \
             tollgate_decision_log_lines_total), or another instance has it{more}"
        )
    }
}

impl Found {
    fn add(&mut self, Matching { lines, more, read, unreadable }: Matching) {
        self.lines.extend(lines);
        self.more += more;
        self.read += read;
        self.unreadable += unreadable;
    }

    /// Keeps so many lines of all logs.
    fn keep_newest(&mut self, most: usize) {
        // Stable, so the lines of a call stay together.
        self.lines.sort_by(|one, other| (&one.time, &one.instance).cmp(&(&other.time, &other.instance)));
        let left_out = self.lines.len().saturating_sub(most);
        self.lines.drain(..left_out);
        self.more += left_out as u64;
    }
}

impl Matching {
    /// Reads a file of the log.
    fn read(&mut self, log: impl BufRead, why: &Why, wanted: &[Wanted]) -> io::Result<()> {
        for line in log.split(b'\n') {
            let line = line?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Ok(line) = serde_json::from_slice::<Told>(&line) else {
                self.unreadable += 1;
                continue;
            };
            self.read += 1;
            if why.matches(&line, wanted) {
                self.lines.push_back(line);
            }
            if self.lines.len() > why.limit {
                self.lines.pop_front();
                self.more += 1;
            }
        }
        Ok(())
    }
}

/// Returns the rotated files of a log, the oldest first, and the log.
fn with_rotated(path: &Path) -> Vec<PathBuf> {
    let rotated = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let mut all: Vec<PathBuf> = (1..).map(rotated).take_while(|path| path.exists()).collect();
    all.reverse();
    all.push(path.to_owned());
    all
}

/// Returns a time, or the part of one, if it has the digits and the marks of one.
fn time(text: &str) -> Result<String, String> {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00.000Z";
    let fits = |shape: &[u8]| {
        text.len() <= shape.len()
            && text.bytes().zip(shape).all(|(char, shape)| match shape {
                b'0' => char.is_ascii_digit(),
                mark => char == *mark,
            })
    };
    // An hour alone would be the beginning of a year.
    let is_time = text.len() >= 5 && (fits(SHAPE) || fits(&SHAPE[11..]));
    is_time.then(|| text.to_owned()).ok_or_else(|| {
        "write a time in UTC or the beginning of one, such as 14:03, 2026-11-23T14 or 2026-11-23T14:03:07".to_owned()
    })
}
