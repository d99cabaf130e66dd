//! `tollgate-judge`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use tollgate_judge::check::{Checks, Judge, Kind};
use tollgate_judge::faults::{self, Fault, Outcome, Programs, System};
use tollgate_judge::history::{self, Operation};
use tollgate_judge::record;
use tollgate_judge::record::scenario::Scenario;

/// Judge whether a rate limiter keeps its promises: record what it tells its clients, and check it.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    Record(Record),
    Check(Check),
    Faults(Faults),
    Report(Report),
}

/// Start systems on this machine, let a fault happen to each, and write what came of it, in lines of JSON.
#[derive(Args)]
struct Faults {
    /// The systems. Unset: all whose programs are named.
    #[arg(long, value_name = "SYSTEM")]
    system: Vec<System>,

    /// The faults. Unset: all.
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,

    /// Tollgate.
    #[arg(long, value_name = "PROGRAM", default_value = "tollgate")]
    tollgate: PathBuf,

    /// envoyproxy/ratelimit.
    #[arg(long, value_name = "PROGRAM")]
    ratelimit: Option<PathBuf>,

    /// Gubernator.
    #[arg(long, value_name = "PROGRAM")]
    gubernator: Option<PathBuf>,

    /// Redis.
    #[arg(long, value_name = "PROGRAM", default_value = "redis-server")]
    redis: PathBuf,

    /// libfaketime, for faults that step Redis's clock, as LD_PRELOAD takes it.
    #[arg(long, value_name = "LIBRARY", default_value = Programs::LIBFAKETIME)]
    libfaketime: PathBuf,

    /// A folder for the histories. Unset: they are not kept.
    #[arg(long, value_name = "FOLDER")]
    histories: Option<PathBuf>,

    /// The file to write.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
}

/// Print the table of what `faults` has written, in Markdown.
#[derive(Args)]
struct Report {
    /// What `faults` has written.
    outcomes: PathBuf,
}

/// Drive a system with a drawn load, from several processes, and write the history.
#[derive(Args)]
struct Record {
    /// YAML file with the system, its limits and the load.
    scenario: PathBuf,

    /// The file to write; - is standard output.
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    out: PathBuf,

    /// Be one of the processes, and write its operations.
    #[arg(long, value_name = "NUMBER", hide = true)]
    process: Option<u32>,
}

/// Judge a history. Exits with 1 if a promise was broken.
#[derive(Args)]
struct Check {
    /// The history; - is standard input.
    history: PathBuf,

    /// Kinds of broken promises that do not count, such as needless_denial.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    ignore: Vec<Kind>,

    /// The most operations of a counter for which the exact check runs; 0 for none.
    #[arg(long, value_name = "NUMBER", default_value_t = Checks::default().most_scheduled)]
    most_scheduled: usize,

    /// Print the judgement as JSON.
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    known.ok_or_else(|| format!("the kinds are {}", Kind::ALL.map(Kind::name).join(", ")))
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse().command {
        Commands::Record(record) => record.run(),
        Commands::Check(check) => check.run(),
        Commands::Faults(faults) => faults.run(),
        Commands::Report(report) => report.run(),
    }
}

impl Record {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let cannot = || self.scenario.display().to_string();
        let text = std::fs::read_to_string(&self.scenario).with_context(cannot)?;
        let scenario: Scenario = serde_saphyr::from_str(&text).with_context(cannot)?;
        if scenario.limits.is_empty() {
            bail!("{}: a scenario needs limits", cannot());
        }
        if let Some(process) = self.process {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let operations = runtime.block_on(record::record(&scenario, process))?;
            serde_json::to_writer(io::stdout().lock(), &operations)?;
            return Ok(ExitCode::SUCCESS);
        }
        let of_processes = self.processes(scenario.load.processes)?;
        let mut operations: Vec<Operation<'_>> = Vec::new();
        for text in &of_processes {
            operations.append(&mut serde_json::from_str(text)?);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut at_end = runtime.block_on(record::end(&scenario, &operations))?;
        operations.append(&mut at_end);
        let header = record::header(&scenario, &operations);
        if self.out == Path::new("-") {
            history::write(&header, operations, io::stdout().lock())?;
        } else {
            let file = File::create(&self.out).with_context(|| self.out.display().to_string())?;
            history::write(&header, operations, BufWriter::new(file))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the processes, and returns what each has written.
    fn processes(&self, count: u32) -> anyhow::Result<Vec<String>> {
        let myself = std::env::current_exe()?;
        let start = |process: u32| {
            let mut command = std::process::Command::new(&myself);
            command.arg("record").arg(&self.scenario).args(["--process", &process.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
        };
        let mut processes = (0..count.max(1)).map(start).collect::<io::Result<Vec<_>>>()?;
        // All of them write at their end, and each can write while another is read.
        let read = std::thread::scope(|scope| {
            let readers = processes.iter_mut().map(|process| {
                let output = process.stdout.take();
                scope.spawn(move || {
                    let mut text = String::new();
                    output.map_or(Ok(0), |mut output| output.read_to_string(&mut text)).map(|_| text)
                })
            });
            let readers: Vec<_> = readers.collect();
            let failed = |_| io::Error::other("a thread has failed");
            readers.into_iter().map(|reader| reader.join().map_err(failed)?).collect::<io::Result<Vec<_>>>()
        })?;
        for mut process in processes {
            let status = process.wait()?;
            if !status.success() {
                bail!("a process of the load has failed: {status}");
            }
        }
        Ok(read)
    }
}

impl Check {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let text: Box<dyn BufRead> = if self.history == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            let file = File::open(&self.history);
            Box::new(BufReader::with_capacity(1 << 16, file.with_context(|| self.history.display().to_string())?))
        };
        let checks = Checks { most_scheduled: self.most_scheduled };
        let judge = history::read(text, |header| Judge::new(header, checks), Judge::add);
        let judgement = judge.with_context(|| self.history.display().to_string())?.finish();
        if self.json {
            println!("{}", serde_json::to_string_pretty(&judgement)?);
        } else {
            print!("{judgement}");
        }
        Ok(if judgement.is_legal_but_for(&self.ignore) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Faults {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let programs = Programs {
            tollgate: self.tollgate.clone(),
            ratelimit: self.ratelimit.clone().unwrap_or_default(),
            gubernator: self.gubernator.clone().unwrap_or_default(),
            redis: self.redis.clone(),
            libfaketime: self.libfaketime.clone(),
        };
        let is_there = |system: &System| match system {
            System::Ratelimit => self.ratelimit.is_some(),
            System::Gubernator => self.gubernator.is_some(),
            _ => true,
        };
        let systems: Vec<System> = if self.system.is_empty() {
            System::ALL.into_iter().filter(is_there).collect()
        } else {
            self.system.clone()
        };
        let faults = if self.fault.is_empty() { &Fault::ALL[..] } else { &self.fault };
        if faults.iter().any(|fault| fault.steps_clock()) {
            programs.check_libfaketime()?;
        }
        let cannot = || self.out.display().to_string();
        let mut out = File::create(&self.out).with_context(cannot)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut failed = 0;
        for system in systems {
            for fault in faults.iter().filter(|fault| fault.happens_to(system)) {
                eprintln!("{}: {}", system.name(), fault.name());
                let run = runtime.block_on(faults::run(system, *fault, &programs));
                let (outcome, header, operations) = match run {
                    Ok(run) => run,
                    // The others take an hour.
                    Err(error) => {
                        eprintln!("{}: {}: {error:#}", system.name(), fault.name());
                        failed += 1;
                        continue;
                    }
                };
                writeln!(out, "{}", serde_json::to_string(&outcome)?).with_context(cannot)?;
                if let Some(folder) = &self.histories {
                    let path = folder.join(format!("{system:?}-{fault:?}.jsonl"));
                    let file = File::create(&path).with_context(|| path.display().to_string())?;
                    history::write(&header, operations, BufWriter::new(file))?;
                }
            }
        }
        if failed > 0 {
            bail!("{failed} of the runs did not happen");
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Report {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let cannot = || self.outcomes.display().to_string();
        let text = std::fs::read_to_string(&self.outcomes).with_context(cannot)?;
        let outcomes = text.lines().map(serde_json::from_str).collect::<Result<Vec<Outcome>, _>>();
        print!("{}", faults::table(&outcomes.with_context(cannot)?));
        Ok(ExitCode::SUCCESS)
    }
}
