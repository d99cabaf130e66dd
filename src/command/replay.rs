//! `tollgate replay`: what rules would have done with the requests of a log.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use flate2::bufread::MultiGzDecoder;

use crate::plan::PlanOptions;
use crate::replay::{
    Comparison, Event, Format, FormatError, Goal, Log, MappingOptions, Read, Reading as LogReading, Report, Requests,
    Run, Search,
};
use crate::rules::Rules;
use crate::rules::load::{self, Sources};
use crate::settings::{Deciding, Reading, RulesSettings};

/// What stands for standard input.
const STDIN: &str = "-";
/// What a file begins with that gzip has written.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// How many requests go from one thread to the other at once, and how often before one waits.
const BATCH: usize = 1_024;
const BATCHES: usize = 16;
/// How often the progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// Say what rules would have done with the requests of a log.
///
/// It reads access logs of Envoy (text or JSON), CSV with a row of names, or Tollgate's own decision log, makes of each
/// line the request that Envoy would have sent, and decides it by the rules, with the real algorithms, on the clock of
/// the log. It says what each limit lets pass and denies, whom and when; with --against what changes; with --suggest
/// which number would deny less. Nothing is asked of Redis or of a service.
///
/// Exits with 0 if the log was replayed, and with 1 if not.
#[derive(Args)]
pub(super) struct Replay {
    /// Logs, also packed by gzip; - is standard input. Several are joined by time, as the logs of several proxies are.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,

    /// Files or folders of other rules: say which requests they decide otherwise, with examples. May be given several
    /// times.
    #[arg(long, value_name = "OLD")]
    against: Vec<PathBuf>,

    /// The domain of the requests; of a decision log its own. Unset: what the map file says, or the only one that the
    /// rules have.
    #[arg(long, short)]
    domain: Option<String>,

    /// An entry of the descriptor that a line stands for, such as user=%REQ(x-user)%. Between percent signs stands a
    /// field: of text the operator in its format string, of JSON the key (a.b is b in a), of CSV the column. May be
    /// given several times, for several entries in this order. A line that lacks a field has no descriptor, as with
    /// Envoy.
    #[arg(long, value_name = "KEY=TEXT")]
    map: Vec<String>,

    /// A YAML file of descriptors that a line stands for: `rate_limits` with `actions`, as Envoy's routes have them
    /// (generic_key, request_headers, remote_address, and hits_addend); texts have fields as in --map.
    #[arg(long, value_name = "FILE")]
    map_file: Option<PathBuf>,

    /// What a request takes, such as %BYTES_SENT%. Unset, or where a line lacks the field: 1.
    #[arg(long, value_name = "TEXT")]
    hits: Option<String>,

    /// When a request came: RFC 3339, or seconds, milliseconds, microseconds or nanoseconds since 1970. Unset:
    /// %START_TIME%; of JSON and CSV start_time, time, timestamp, @timestamp or ts.
    #[arg(long, value_name = "TEXT")]
    time: Option<String>,

    /// How lines are written: auto looks at each log; envoy is Envoy's default text; json; csv; decisions; or the
    /// format string that Envoy is configured with.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = format)]
    format: LineFormat,

    /// By how much lines may be out of order.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    window: Duration,

    /// Stop at the first line that cannot be read. Otherwise such lines are counted, and the first told.
    #[arg(long)]
    strict: bool,

    /// For each limit, search the least number that denies no more than this, such as "deny at most 0.1 % of users" (or
    /// of requests), and show what other numbers deny. The logs are read several times.
    #[arg(long, value_name = "GOAL", value_parser = goal)]
    suggest: Option<Goal>,

    /// Search the number of the limit of this name alone.
    #[arg(long, value_name = "NAME", requires = "suggest")]
    rule: Option<String>,

    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    deciding: Deciding,
}

/// `None` where each log is looked at.
#[derive(Clone, Debug)]
struct LineFormat(Option<Format>);

fn format(text: &str) -> Result<LineFormat, FormatError> {
    Format::parse(text).map(LineFormat)
}

fn goal(text: &str) -> Result<Goal, crate::replay::GoalError> {
    text.parse()
}

pub(super) fn run(replay: &Replay) -> anyhow::Result<ExitCode> {
    allow_huge_pages();
    let standard_inputs = replay.logs.iter().filter(|log| *log == Path::new(STDIN)).count();
    if standard_inputs > 1 {
        bail!("standard input is read once: name - once");
    }
    if standard_inputs > 0 && replay.suggest.is_some() {
        bail!("--suggest reads logs several times: write standard input into a file");
    }
    let new = replay.load(&replay.rules.sources()?)?;
    if let Some(name) = &replay.rule
        && new.limits().all(|(_, limit)| *limit.label != **name)
    {
        bail!("no limit is called {name}: --rule takes the name that reports have");
    }
    let old = match &replay.against[..] {
        [] => None,
        paths => {
            let old = replay.load(&Sources { paths: paths.to_vec() });
            Some(old.context("the rules of --against are refused")?)
        }
    };
    let report = replay.report(&new, old.as_ref())?;
    super::print(&if replay.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() })
}

/// Nobody waits for a single decision here, and with many keys nearly each looks up pages of its own.
#[cfg(target_os = "linux")]
fn allow_huge_pages() {
    // Where the kernel does not know of this, there is nothing to be done.
    let _ = nix::sys::prctl::set_thp_disable(false);
}

#[cfg(not(target_os = "linux"))]
fn allow_huge_pages() {}

impl Replay {
    fn load(&self, sources: &Sources) -> anyhow::Result<Rules> {
        Ok(load::load(sources, &self.reading.load_options())?.rules)
    }

    fn report(&self, new: &Rules, old: Option<&Rules>) -> anyhow::Result<Report> {
        let options = PlanOptions {
            shadow_mode: self.deciding.shadow_mode,
            quota_mode: self.deciding.quota_mode,
            expected_replicas: self.deciding.expected_replicas,
            unknown_domain: self.deciding.unknown_domain,
            unknown_descriptor: self.deciding.unknown_descriptor,
            ..PlanOptions::default()
        };
        let reading = self.log_reading(new)?;
        let mut run = Run::new(new, &options);
        let mut before = old.map(|old| (Run::new(old, &options), Comparison::default()));
        let read = self.each(&reading, "replaying", |event| {
            let judged = run.decide(event)?;
            if let Some((before, comparison)) = &mut before {
                comparison.add(event, &before.decide(event)?, &judged);
            }
            Ok(())
        })?;
        let mut report = Report::new(read, &run);
        if let Some((before, comparison)) = &before {
            report = report.against(before, &run, comparison);
        }
        if let Some(goal) = self.suggest {
            let mut search = Search::new(goal, &run, self.rule.as_deref());
            while !search.is_done() {
                self.each(&reading, "trying numbers", |event| Ok(search.decide(event)?))?;
                search.narrow();
            }
            report = report.suggesting(&search);
        }
        Ok(report)
    }

    fn log_reading(&self, rules: &Rules) -> anyhow::Result<LogReading> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
        };
        let mut names = rules.domain_names();
        let only = names.next().filter(|_| names.next().is_none());
        Ok(LogReading {
            format: self.format.0.clone(),
            mapping: MappingOptions {
                domain: self.domain.clone(),
                entries: self.map.clone(),
                file: self.map_file.as_ref().map(read).transpose()?,
                hits: self.hits.clone(),
                time: self.time.clone(),
            },
            domain: only.map(str::to_owned),
            window_ms: u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX),
            is_strict: self.strict,
        })
    }

    /// Calls `visit` with every request of the logs, which another thread reads.
    fn each(
        &self,
        reading: &LogReading,
        what: &'static str,
        mut visit: impl FnMut(&Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<Read> {
        let mut progress = Progress::new(what);
        let logs = self.logs.iter().map(|path| Ok((path.clone(), open(path, &mut progress)?)));
        let logs = logs.collect::<anyhow::Result<Vec<_>>>()?;
        let (sender, batches) = mpsc::sync_channel::<Vec<Event>>(BATCHES);
        thread::scope(|scope| {
            let reader = scope.spawn(move || read(logs, reading, &sender));
            let mut visited = Ok(());
            for batch in batches {
                visited = batch.iter().try_for_each(&mut visit);
                if visited.is_err() {
                    break;
                }
                progress.add(batch.len());
            }
            progress.finish();
            let read = reader.join().map_err(|_| anyhow::anyhow!("the thread that reads the logs has failed"))?;
            visited?;
            Ok(read?)
        })
    }
}

/// Reads all requests, as long as somebody takes them.
fn read(
    logs: Vec<(PathBuf, Log)>,
    reading: &LogReading,
    sender: &mpsc::SyncSender<Vec<Event>>,
) -> Result<Read, crate::replay::ReadError> {
    let mut requests = Requests::new(logs, reading)?;
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(event) = requests.next_event()? {
        batch.push(event);
        if batch.len() == BATCH && sender.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH))).is_err() {
            return Ok(requests.read());
        }
    }
    // Where nobody takes them any more, nobody needs them.
    let _ = sender.send(batch);
    Ok(requests.read())
}

/// Opens a log, and unpacks it where gzip has packed it.
fn open(path: &Path, progress: &mut Progress) -> anyhow::Result<Log> {
    let cannot = || format!("{} cannot be read", path.display());
    let file: Box<dyn io::Read + Send> = if path == Path::new(STDIN) {
        progress.total = None;
        Box::new(io::stdin())
    } else {
        let file = File::open(path).with_context(cannot)?;
        let length = file.metadata().with_context(cannot)?.len();
        progress.total = progress.total.map(|total| total + length);
        Box::new(file)
    };
    let mut log = BufReader::with_capacity(1 << 16, Counted { file, bytes: Arc::clone(&progress.bytes) });
    let is_packed = log.fill_buf().with_context(cannot)?.starts_with(GZIP);
    Ok(if is_packed { Box::new(BufReader::new(MultiGzDecoder::new(log))) } else { Box::new(log) })
}

/// Counts what is read.
struct Counted {
    file: Box<dyn io::Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl io::Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// How far it is, for people who wait at a terminal.
struct Progress {
    what: &'static str,
    /// What has been read of the files.
    bytes: Arc<AtomicU64>,
    /// How long they are; `None` where nobody knows.
    total: Option<u64>,
    requests: usize,
    is_shown: bool,
    begin: Instant,
    next: Instant,
}

impl Progress {
    fn new(what: &'static str) -> Progress {
        let begin = Instant::now();
        let (bytes, is_shown) = (Arc::default(), io::stderr().is_terminal());
        Progress { what, bytes, total: Some(0), requests: 0, is_shown, begin, next: begin + SHOWN_EVERY }
    }

    fn add(&mut self, requests: usize) {
        self.requests += requests;
        if self.is_shown && Instant::now() >= self.next {
            self.next = Instant::now() + SHOWN_EVERY;
            let bytes = self.bytes.load(Ordering::Relaxed);
            let part = self.total.filter(|total| *total > 0).map(|total| format!("{} %, ", bytes * 100 / total));
            let each_second = self.requests as f64 / self.begin.elapsed().as_secs_f64();
            let part = part.unwrap_or_default();
            eprint!("\r\x1b[K{}: {part}{} requests, {each_second:.0} a second", self.what, self.requests);
        }
    }

    fn finish(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
