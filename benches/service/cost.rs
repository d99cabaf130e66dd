//! What processes have used, by the system's own account: unlike the time that passes, it does not depend on who else
//! is there.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// So much of a core, used by others, disturbs.
const DISTURBED: f64 = 0.02;

/// What one load has cost.
pub struct Cost {
    /// Requests, or decisions.
    pub done: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// What each used of the processor, in the order in which they were named.
    pub used: Vec<Used>,
    /// What the system used for everybody else, its host included.
    others: Duration,
}

/// What the processes of one name used.
pub struct Used {
    name: &'static str,
    account: Account,
}

/// What a process has had of the processor, and how long it would have gone on if others had not been there.
#[derive(Clone, Copy)]
struct Account {
    cpu: Duration,
    waiting: Duration,
}

impl Cost {
    /// What these processes, each by its name, use while `load` does so much. Those of one name count together.
    pub fn of(processes: &[(&'static str, u32)], load: impl FnOnce() -> u64) -> Cost {
        let start = Instant::now();
        let (everybody_before, stolen_before) = (everybody(), stolen());
        let before: Vec<Account> = processes.iter().map(|(_, pid)| Account::of(*pid)).collect();
        let done = load();
        let elapsed = start.elapsed();
        let mut used: Vec<Used> = Vec::new();
        for ((name, pid), before) in processes.iter().zip(before) {
            let now = Account::of(*pid);
            let account = Account { cpu: now.cpu - before.cpu, waiting: now.waiting - before.waiting };
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

    /// Microseconds of the processor for each request, of what was named in this place.
    pub fn each_us(&self, process: usize) -> f64 {
        self.used[process].account.cpu.as_secs_f64() * 1e6 / self.done as f64
    }

    /// So many in a second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64()
    }

    /// How much of a core each had, and how long its threads waited for one that others were on. What had nine tenths
    /// or more was saturated.
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

    /// Whether others were on the cores so much that times and rates say nothing, unlike the use of the processor.
    pub fn disturbed(&self) -> bool {
        self.others > self.elapsed.mul_f64(DISTURBED)
    }
}

impl Account {
    /// Of all threads of a process, to the nanosecond.
    fn of(pid: u32) -> Account {
        let (mut cpu, mut waiting) = (0, 0);
        // It may end meanwhile, or one of its threads.
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let Ok(account) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let mut figures = account.split_whitespace().map(|figure| figure.parse::<u64>().unwrap());
            cpu += figures.next().unwrap();
            waiting += figures.next().unwrap();
        }
        Account { cpu: Duration::from_nanos(cpu), waiting: Duration::from_nanos(waiting) }
    }

    fn add(&mut self, other: Account) {
        self.cpu += other.cpu;
        self.waiting += other.waiting;
    }
}

/// What every process there is has had of the processor.
fn everybody() -> HashMap<u32, Duration> {
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.map(|pid| (pid, Account::of(pid).cpu)).collect()
}

/// What this machine's host had of its cores, or gave to other machines.
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
