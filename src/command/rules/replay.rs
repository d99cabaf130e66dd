//! `tollgate replay`: what rules would have done with the requests of a log.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, IsTerminal as _, Write as _};
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
use hyper::body::Bytes;

use crate::command::live::admin_port::{AdminPort, http_address};
use crate::command::output::{Format, NOTHING_APPLIES, RowsOutput, csv, err, print};
use crate::engine::explain;
use crate::engine::rules::Rules;
use crate::engine::rules::options::enforce::Share;
use crate::evaluate::{Comparison, FleetShares, FleetTerms, Goal, GoalError, RuleSet, Run, RunOptions, Search};
use crate::replay::{
    EnvoyConfig, Event, Format as LogFormat, FormatError, Log, MappingOptions, Read, Reading as LogReading, Report,
    Requests, Verdict,
};
use crate::settings::{Deciding, Reading, RulesSettings};
use crate::sources::files::load::{self, Sources};

/// Path that means standard input.
const STDIN: &str = "-";
/// Longest wait for the requests of a fleet.
const FLEET_TIMEOUT: Duration = Duration::from_secs(30);
/// First bytes of a gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// Number of requests that one thread hands to the other at once, and number of batches before it waits. All batches
/// together fit into a processor's cache.
const BATCH: usize = 512;
const BATCHES: usize = 4;

/// Fields of a limit in CSV.
const FIELDS: [&str; 13] = [
    "domain",
    "rule",
    "limit",
    "file",
    "line",
    "role",
    "decisions",
    "allowed",
    "denied",
    "keys",
    "keys_denied",
    "first_denied",
    "last_denied",
];

/// Report what rules would have done with the requests of a log.
///
/// Reads access logs of Envoy (text or JSON), CSV with a header row, or Tollgate's own decision log. Turns each line
/// into the request that Envoy would have sent, and decides it by the rules, with the real algorithms, at the times of
/// the log. Reports what each limit would have allowed and denied, for which keys and when. Asks neither Redis nor a
/// service. Exits with 3 if no request reaches a limit, and with 1 if no line can be read.
#[derive(Args)]
pub(crate) struct Replay {
    /// Logs, plain or compressed with gzip; - is standard input. Several are merged by time.
    #[arg(value_name = "LOG", required_unless_present = "fleet")]
    logs: Vec<PathBuf>,

    /// Replay what all instances of this service have recorded, not logs.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "logs", value_parser = http_address)]
    fleet: Option<String>,

    /// The service's ADMIN_TOKEN or ADMIN_READ_TOKEN.
    #[arg(long, env = "ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// Files or folders of rules to compare with.
    #[arg(long, value_name = "OLD")]
    against: Vec<PathBuf>,

    /// Domain of the requests; with --envoy, of the filter. Unset: that of the map file or log, or the rules' only one.
    #[arg(long, short)]
    domain: Option<String>,

    /// An entry of each line's descriptor, such as user=%REQ(x-user)%; may be given several times. %NAME% is a field:
    /// in text, the operator of the format string; in JSON, the key (a.b is b in a); in CSV, the column.
    #[arg(long, value_name = "KEY=TEXT")]
    map: Vec<String>,

    /// YAML file with the descriptors for each line: `rate_limits` with `actions` and `hits_addend`, as in Envoy's
    /// routes.
    #[arg(long, value_name = "FILE")]
    map_file: Option<PathBuf>,

    /// Envoy's bootstrap file or config_dump, which has the domain, each route's descriptors, and the log's format.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["map", "map_file", "fleet"])]
    envoy: Option<PathBuf>,

    /// The listener that wrote the log, if several have a filter.
    #[arg(long, value_name = "NAME", requires = "envoy")]
    listener: Option<String>,

    /// Hits of a request, such as %BYTES_SENT%. Unset or missing: 1.
    #[arg(long, value_name = "TEXT")]
    hits: Option<String>,

    /// Time of a request: RFC 3339, or a Unix time of seconds to nanoseconds. Unset: %START_TIME%; in JSON and CSV
    /// start_time, time, timestamp, @timestamp or ts.
    #[arg(long, value_name = "TEXT")]
    time: Option<String>,

    /// How long a request lasted, in milliseconds, for limits of concurrency. Unset: %DURATION%; in JSON and CSV
    /// duration or duration_ms.
    #[arg(long, value_name = "TEXT")]
    duration: Option<String>,

    /// Write the verdict on each request into this file, in lines of JSON.
    #[arg(long, value_name = "FILE")]
    verdicts: Option<PathBuf>,

    /// What identifies a request in --verdicts, such as %REQ(x-request-id)%.
    #[arg(long, value_name = "TEXT", requires = "verdicts")]
    id: Option<String>,

    /// Format of the lines: auto detects it for each log; envoy is Envoy's default text; json; csv; decisions; or the
    /// format string of Envoy's configuration.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = log_format)]
    log_format: LineFormat,

    /// Longest time by which lines may be out of order.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    window: Duration,

    /// Stop at the first unreadable line. Unset: count them, show the first.
    #[arg(long)]
    strict: bool,

    /// For each limit, find the lowest number that denies no more than this, such as "deny at most 0.1 % of users" (or
    /// of requests).
    #[arg(long, value_name = "GOAL", value_parser = goal)]
    suggest: Option<Goal>,

    /// Find the number only for the limit of this name.
    #[arg(long, value_name = "NAME", requires = "suggest")]
    rule: Option<String>,

    /// Tell which calls to Redis own_share would save with this part of limits.
    #[arg(long, value_name = "PART", requires = "instances", value_parser = part)]
    fleet_share: Option<Share>,

    /// Number of instances that share the traffic, for --fleet-share.
    #[arg(long, value_name = "NUMBER", requires = "fleet_share",
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    instances: Option<u32>,

    #[command(flatten)]
    output: RowsOutput,

    #[command(flatten)]
    rules: RulesSettings,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    deciding: Deciding,
}

/// Format of the lines; `None` to detect it for each log.
#[derive(Clone, Debug)]
struct LineFormat(Option<LogFormat>);

fn log_format(text: &str) -> Result<LineFormat, FormatError> {
    LogFormat::parse(text).map(LineFormat)
}

fn part(text: &str) -> Result<Share, &'static str> {
    Share::parse(text).ok_or("a percentage with its sign, from 0.01% to 100%, such as 5%")
}

fn goal(text: &str) -> Result<Goal, GoalError> {
    text.parse()
}

pub(crate) fn run(replay: &Replay) -> anyhow::Result<ExitCode> {
    allow_huge_pages();
    let standard_inputs = replay.logs.iter().filter(|log| *log == Path::new(STDIN)).count();
    if standard_inputs > 1 {
        bail!("standard input can only be read once: name - once");
    }
    if standard_inputs > 0 && replay.suggest.is_some() {
        bail!("--suggest reads the logs several times: write standard input to a file");
    }
    if let Some(file) = replay.verdicts.as_ref().filter(|file| replay.logs.iter().any(|log| is_same(log, file))) {
        bail!("--verdicts would overwrite the log {}: name another file", file.display());
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
            Some(old.context("the rules of --against are invalid")?)
        }
    };
    let report = replay.report(&new, old.as_ref(), RunOptions::default().most_bytes)?;
    print(&match replay.output.format() {
        Format::Json => serde_json::to_string(&report)? + "\n",
        Format::Csv => csv(&FIELDS, &report.limits)?,
        Format::Text => report.to_string(),
    })?;
    if report.log.is_unreadable() {
        bail!("no line can be read: name the format of the log with --log-format (see tollgate replay --help)");
    }
    Ok(if report.reaches_no_limit() { ExitCode::from(NOTHING_APPLIES) } else { ExitCode::SUCCESS })
}

/// Enables huge pages. No request waits for a decision here, and with many keys nearly every decision touches other
/// pages.
#[cfg(target_os = "linux")]
fn allow_huge_pages() {
    // Older kernels do not support this, and replay works without it.
    let _ = nix::sys::prctl::set_thp_disable(false);
}

#[cfg(not(target_os = "linux"))]
fn allow_huge_pages() {}

impl Replay {
    fn load(&self, sources: &Sources) -> anyhow::Result<Rules> {
        Ok(load::load(sources, &self.reading.load_options())?.rules)
    }

    /// Replays the logs. `most_bytes` is the most memory that all counters may take together.
    fn report(&self, new: &Rules, old: Option<&Rules>, most_bytes: usize) -> anyhow::Result<Report> {
        let options = self.deciding.plan_options();
        let reading = self.log_reading(new)?;
        let recorded = self.recorded()?;
        let logs = (&reading, recorded.as_ref());
        let fleet = self.fleet_share.zip(self.instances).map(|(part, instances)| FleetTerms { part, instances });
        let parts = 1 + usize::from(old.is_some()) + usize::from(fleet.is_some());
        let of_one = RunOptions { most_bytes: most_bytes / parts, ..RunOptions::default() };
        let begin = |rules| Run::new(RuleSet::new(rules, &options), of_one.clone());
        let (mut run, mut before) = (begin(new), old.map(|old| (begin(old), Comparison::default())));
        let mut fleet = fleet.map(|terms| FleetShares::new(RuleSet::new(new, &options), terms, of_one.most_bytes));
        let mut first = None;
        let mut verdicts = self.verdicts.as_deref().map(Verdicts::create).transpose()?;
        let read = self.each(logs, "replaying".to_owned(), |events| {
            first = first.take().or_else(|| events.first().map(|event| event.request.clone()));
            let mut in_order = events.iter();
            run.decide_all(events, |arrival, decision| {
                let event = in_order.next();
                let old = match &mut before {
                    Some((before, _)) => Some(before.decide(arrival)?),
                    None => None,
                };
                if let (Some(verdicts), Some(event)) = (&mut verdicts, event) {
                    let old = old.as_ref().map(Option::as_ref);
                    verdicts.write(&Verdict::new(event, decision.as_ref(), old))?;
                }
                if let (Some(fleet), Some(without)) = (&mut fleet, &decision) {
                    fleet.decide(arrival, without)?;
                }
                if let (Some((_, comparison)), Some(Some(old)), Some(new)) = (&mut before, &old, &decision) {
                    comparison.add(arrival, (old, new), |_, _| {});
                }
                anyhow::Ok(())
            })
        })?;
        if let Some(verdicts) = verdicts {
            verdicts.finish()?;
        }
        let mut report = Report::new(read, &run);
        if let Some(first) = first.filter(|_| report.reaches_no_limit()) {
            report.missed = explain::missed(new, &first).into_iter().flatten().next();
        }
        if let Some((before, comparison)) = &before {
            report = report.against(before, comparison);
        }
        if let Some(fleet) = &fleet {
            report = report.of_fleet(fleet);
        }
        if let Some(goal) = self.suggest {
            let mut search = Search::new(goal, &run, self.rule.as_deref(), most_bytes);
            // Frees their counters, because those of the search may take all the memory.
            drop((run, before, fleet));
            let mut pass = 0;
            while !search.is_done() {
                pass += 1;
                self.each(logs, format!("trying numbers, pass {pass}"), |events| Ok(search.decide_all(events)?))?;
                search.narrow();
            }
            report = report.suggesting(&search);
        }
        Ok(report)
    }

    /// Returns the requests that a service has recorded; `None` if logs are replayed.
    fn recorded(&self) -> anyhow::Result<Option<Bytes>> {
        let Some(address) = &self.fleet else { return Ok(None) };
        // The other instances may notice the question only at their next heartbeat.
        let port = AdminPort { address, token: self.admin_token.as_deref(), timeout: FLEET_TIMEOUT };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(port.recorded_requests()).map(Some)
    }

    fn log_reading(&self, rules: &Rules) -> anyhow::Result<LogReading> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
        };
        let mut names = rules.domain_names();
        let only = names.next().filter(|_| names.next().is_none());
        Ok(LogReading {
            format: self.log_format.0.clone(),
            mapping: MappingOptions {
                domain: self.domain.clone(),
                entries: self.map.clone(),
                file: self.map_file.as_ref().map(read).transpose()?,
                envoy: self.envoy.as_ref().map(|path| self.envoy_config(path, &read(path)?)).transpose()?,
                hits: self.hits.clone(),
                time: self.time.clone(),
                duration: self.duration.clone(),
                id: self.id.clone(),
            },
            domain: only.map(str::to_owned),
            window_ms: u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX),
            is_strict: self.strict,
        })
    }

    fn envoy_config(&self, path: &Path, text: &str) -> anyhow::Result<EnvoyConfig> {
        let config = EnvoyConfig::parse(text, self.listener.as_deref(), self.domain.as_deref());
        config.with_context(|| path.display().to_string())
    }

    /// Calls `visit` with all requests of the logs, some at a time, which another thread reads.
    fn each(
        &self,
        (reading, recorded): (&LogReading, Option<&Bytes>),
        what: String,
        mut visit: impl FnMut(&[Event]) -> anyhow::Result<()>,
    ) -> anyhow::Result<Read> {
        let mut progress = Progress::new(what, Screen::of_stderr());
        let logs = self.logs.iter().map(|path| Ok((path.clone(), open(path, &mut progress)?)));
        let mut logs = logs.collect::<anyhow::Result<Vec<_>>>()?;
        if let Some(recorded) = recorded {
            progress.total = None;
            let name = self.fleet.as_deref().unwrap_or_default();
            logs.push((PathBuf::from(name), Box::new(io::Cursor::new(recorded.clone())) as Log));
        }
        let (sender, batches) = mpsc::sync_channel(BATCHES);
        let (used, spares) = mpsc::channel();
        thread::scope(|scope| {
            let reader = scope.spawn(move || read(logs, reading, &sender, &spares));
            let mut visited = Ok(());
            for batch in batches {
                visited = visit(&batch);
                if visited.is_err() {
                    break;
                }
                progress.add(batch.len());
                // The reader does not need it after the last line.
                let _ = used.send(batch);
            }
            progress.finish();
            let read = reader.join().map_err(|_| anyhow::anyhow!("the thread that reads the logs has failed"))?;
            visited?;
            Ok(read?)
        })
    }
}

/// Returns whether both are the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The file of verdicts.
struct Verdicts<'p> {
    path: &'p Path,
    file: BufWriter<File>,
}

impl<'p> Verdicts<'p> {
    fn create(path: &'p Path) -> anyhow::Result<Verdicts<'p>> {
        let file = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Verdicts { path, file: BufWriter::new(file) })
    }

    fn write(&mut self, verdict: &Verdict<'_>) -> anyhow::Result<()> {
        let line = serde_json::to_string(verdict)?;
        writeln!(self.file, "{line}").with_context(|| format!("{} cannot be written", self.path.display()))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

/// Reads all requests until the receiver is gone. `spares` are batches that were decided; their memory is reused, which
/// is faster than to free it in another thread than the one that allocated it.
fn read(
    logs: Vec<(PathBuf, Log)>,
    reading: &LogReading,
    sender: &mpsc::SyncSender<Vec<Event>>,
    spares: &mpsc::Receiver<Vec<Event>>,
) -> Result<Read, crate::replay::ReadError> {
    let mut requests = Requests::new(logs, reading)?;
    loop {
        let mut batch = spares.try_recv().unwrap_or_default();
        batch.resize_with(BATCH, Event::empty);
        let mut len = 0;
        while len < BATCH && requests.read_into(&mut batch[len])? {
            len += 1;
        }
        batch.truncate(len);
        // If the receiver is gone, the batch is not needed.
        if sender.send(batch).is_err() || len < BATCH {
            return Ok(requests.read());
        }
    }
}

/// Opens a log, and decompresses it if it is compressed with gzip.
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

/// A reader that counts its bytes.
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

/// The progress of a pass over the logs, on standard error.
struct Progress {
    what: String,
    /// Number of bytes read from the files.
    bytes: Arc<AtomicU64>,
    /// Length of the files; `None` if it is not known.
    total: Option<u64>,
    requests: usize,
    screen: Screen,
    begin: Instant,
    next: Instant,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// One line that is rewritten.
    Terminal,
    /// A line now and then, for a log.
    Lines,
}

impl Screen {
    fn of_stderr() -> Screen {
        if io::stderr().is_terminal() { Screen::Terminal } else { Screen::Lines }
    }

    fn interval(self) -> Duration {
        match self {
            Screen::Terminal => Duration::from_millis(200),
            Screen::Lines => Duration::from_secs(10),
        }
    }
}

impl Progress {
    fn new(what: String, screen: Screen) -> Progress {
        let begin = Instant::now();
        Progress {
            what,
            bytes: Arc::default(),
            total: Some(0),
            requests: 0,
            screen,
            begin,
            next: begin + screen.interval(),
        }
    }

    fn add(&mut self, requests: usize) {
        self.requests += requests;
        let now = Instant::now();
        if let Some(text) = self.due(now) {
            self.next = now + self.screen.interval();
            err!("{text}");
        }
    }

    /// Returns what to write at this time, if anything.
    fn due(&self, now: Instant) -> Option<String> {
        if now < self.next {
            return None;
        }
        let bytes = self.bytes.load(Ordering::Relaxed);
        let part = self.total.filter(|total| *total > 0).map(|total| format!("{} %, ", bytes * 100 / total));
        let each_second = self.requests as f64 / (now - self.begin).as_secs_f64();
        let part = part.unwrap_or_default();
        let line = format!("{}: {part}{} requests, {each_second:.0} a second", self.what, self.requests);
        Some(match self.screen {
            Screen::Terminal => format!("\r\x1b[K{line}"),
            Screen::Lines => line + "\n",
        })
    }

    fn finish(&self) {
        if self.screen == Screen::Terminal {
            err!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        replay: Replay,
    }

    #[test]
    fn two_sets_of_rules_share_the_memory_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let rate_limit = "{unit: day, requests_per_unit: 1}";
        let rules = file("rules.yaml", &format!("domain: a\ndescriptors: [{{key: user, rate_limit: {rate_limit}}}]"));
        let lines = (0..500).fold("time,user\n".to_owned(), |mut lines, user| {
            writeln!(lines, "2026-01-02T03:04:05Z,{user}").unwrap();
            lines
        });
        let log = file("log.csv", &lines);
        let arguments = ["replay", &log, "--rules", &rules, "--map", "user=%user%"];
        let Command { replay } = Command::parse_from(arguments);
        let Command { replay: suggesting } =
            Command::parse_from(arguments.iter().chain(&["--suggest", "deny at most 1 % of users"]));
        let rules = replay.load(&replay.rules.sources().unwrap()).unwrap();
        let fits = |old, kib: usize| replay.report(&rules, old, kib << 10).is_ok();
        let suggests = |old, kib: usize| suggesting.report(&rules, old, kib << 10).is_ok();
        let least = (1..).find(|kib| fits(None, *kib)).unwrap();
        assert!(least > 10, "{least} KiB are too few to show it");
        assert!(!fits(Some(&rules), 2 * (least - 1)) && fits(Some(&rules), 2 * least), "{least} KiB for one");
        // A search has all the memory, since it begins when they are done.
        let least = (1..).map(|times| times * least).find(|kib| suggests(None, *kib)).unwrap();
        assert!(suggests(Some(&rules), least), "{least} KiB for a search");
    }

    #[test]
    fn progress_is_shown_on_a_terminal_and_as_lines_elsewhere() {
        let shown = |screen: Screen, after_ms: u64| {
            let mut progress = Progress::new("trying numbers, pass 2".to_owned(), screen);
            progress.total = Some(200);
            progress.bytes.store(50, Ordering::Relaxed);
            progress.requests = 3_000;
            progress.due(progress.begin + Duration::from_millis(after_ms))
        };
        assert_eq!((shown(Screen::Terminal, 199), shown(Screen::Lines, 9_999)), (None, None));
        let line = "trying numbers, pass 2: 25 %, 3000 requests, 300 a second\n";
        assert_eq!(shown(Screen::Lines, 10_000).as_deref(), Some(line));
        assert!(
            shown(Screen::Terminal, 200)
                .is_some_and(|text| text.starts_with("\r\x1b[Ktrying") && !text.ends_with('\n'))
        );
    }
}
