//! The CPU time of processes, as reported by the system. Unlike elapsed time, it does not depend on other processes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

/// Share of a core that other processes can use without disturbing a measurement.
const DISTURBED: f64 = 0.02;

/// The cost of a load.
pub struct Cost {
    /// Requests, or decisions.
    pub done: u64,
    /// Duration.
    pub elapsed: Duration,
    /// CPU time of each process, in the order given.
    pub used: Vec<Used>,
    /// CPU time of all other processes, including that of the host.
    others: Duration,
}

/// CPU time of the processes with one name.
pub struct Used {
    name: &'static str,
    account: Account,
}

/// CPU time of threads, and the time they waited for a CPU.
#[derive(Clone, Copy, Default)]
struct Account {
    cpu: Duration,
    waiting: Duration,
}

impl Cost {
    /// Measures the CPU use of these processes during `load`, which returns its number of requests. Processes with the
    /// same name are added up.
    pub fn of(processes: &[(&'static str, u32)], load: impl FnOnce() -> u64) -> Cost {
        let start = Instant::now();
        let (everybody_before, stolen_before) = (everybody(), stolen());
        let before: Vec<Accounts> = processes.iter().map(|(_, pid)| Accounts::of(*pid)).collect();
        let done = load();
        let elapsed = start.elapsed();
        let mut used: Vec<Used> = Vec::new();
        for ((name, pid), before) in processes.iter().zip(before) {
            let account = Accounts::of(*pid).since(&before);
            match used.iter_mut().find(|used| used.name == *name) {
                Some(used) => used.account.add(account),
                None => used.push(Used { name, account }),
            }
        }
        let is_ours = |pid: u32| processes.iter().any(|(_, ours)| *ours == pid);
        let others = everybody().into_iter().filter(|(pid, _)| !is_ours(*pid));
        let others =
            others.map(|(pid, cpu)| cpu.saturating_sub(everybody_before.get(&pid).copied().unwrap_or_default()));
        let others = others.sum::<Duration>() + (stolen() - stolen_before);
        Cost { done, elapsed, used, others }
    }

    /// Returns the CPU time per request of the process at this position, in microseconds.
    pub fn each_us(&self, process: usize) -> f64 {
        self.used[process].account.cpu.as_secs_f64() * 1e6 / self.done as f64
    }

    /// Returns the requests per second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64()
    }

    /// Describes the share of a core that each process used, and the time its threads waited for a core. A share of
    /// nine tenths or more means saturation.
    pub fn busy(&self) -> String {
        let percent = |time: Duration| time.as_secs_f64() / self.elapsed.as_secs_f64() * 100.0;
        let tell = |Used { name, account }: &Used| {
            let (had, waited) = (percent(account.cpu), percent(account.waiting));
            let waited_for = if waited >= 5.0 { format!(" (and waited {waited:.0} %)") } else { String::new() };
            let saturated = if had >= 90.0 { ", saturated" } else { "" };
            format!("{name} {had:.0} %{waited_for}{saturated}")
        };
        self.used.iter().map(tell).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether other processes used so much CPU time that durations and rates are meaningless. CPU times remain
    /// valid.
    pub fn disturbed(&self) -> bool {
        self.others > self.elapsed.mul_f64(DISTURBED)
    }
}

/// The accounts of a process's threads, by their names in `/proc`.
struct Accounts(HashMap<OsString, Account>);

impl Accounts {
    /// Reads them, in nanoseconds. The process or a thread can end during this.
    fn of(pid: u32) -> Accounts {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let accounts = tasks.filter_map(|task| {
            let account = fs::read_to_string(task.path().join("schedstat")).ok()?;
            let mut figures = account.split_whitespace().map(|figure| Duration::from_nanos(figure.parse().unwrap()));
            let account = Account { cpu: figures.next().unwrap(), waiting: figures.next().unwrap() };
            Some((task.file_name(), account))
        });
        Accounts(accounts.collect())
    }

    /// Returns the time that the threads have used since `before`, without threads that have ended: the system reports
    /// only living ones.
    fn since(&self, before: &Accounts) -> Account {
        let mut sum = Account::default();
        for (task, now) in &self.0 {
            let before = before.0.get(task).copied().unwrap_or_default();
            sum.cpu += now.cpu.saturating_sub(before.cpu);
            sum.waiting += now.waiting.saturating_sub(before.waiting);
        }
        sum
    }

    fn cpu(&self) -> Duration {
        self.0.values().map(|account| account.cpu).sum()
    }
}

impl Account {
    fn add(&mut self, other: Account) {
        self.cpu += other.cpu;
        self.waiting += other.waiting;
    }
}

/// Returns the CPU time of every process.
fn everybody() -> HashMap<u32, Duration> {
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.map(|pid| (pid, Accounts::of(pid).cpu())).collect()
}

/// Returns the time that the host used for itself or for other machines.
fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.lines().next().unwrap().split_whitespace().nth(8).map_or(0, |ticks| ticks.parse().unwrap());
    Duration::from_millis(ticks * 10)
}

/// The memory that a process has in use, in bytes; none where it has ended.
pub fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024)
}

/// The one in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
