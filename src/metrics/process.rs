//! The usual metrics of a process, read from `/proc` whenever they are asked for.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge};

/// The processor time, memory, threads and open descriptors of this process, under the names of every Prometheus
/// client.
pub(super) struct Process {
    cpu: Counter,
    open_descriptors: IntGauge,
    most_descriptors: IntGauge,
    virtual_bytes: IntGauge,
    resident_bytes: IntGauge,
    start: IntGauge,
    threads: IntGauge,
}

/// The fields of `/proc/self/stat`, in its units.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: i64,
    start_ticks: u64,
    virtual_bytes: i64,
    resident_pages: i64,
}

impl Process {
    pub(super) fn new() -> prometheus::Result<Process> {
        let process = Process {
            cpu: Counter::new("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")?,
            open_descriptors: IntGauge::new("process_open_fds", "Number of open file descriptors.")?,
            most_descriptors: IntGauge::new("process_max_fds", "Maximum number of open file descriptors.")?,
            virtual_bytes: IntGauge::new("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            resident_bytes: IntGauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            start: IntGauge::new(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
            threads: IntGauge::new("process_threads", "Number of OS threads in the process.")?,
        };
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_seconds(&text));
        if let (Some(stat), Some(boot)) = (Stat::of_process(), boot) {
            process.start.set(saturated(boot + stat.start_ticks / ticks_per_second()));
        }
        Ok(process)
    }

    /// The parts, in the order in which they are reported.
    fn parts(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu,
            &self.open_descriptors,
            &self.most_descriptors,
            &self.virtual_bytes,
            &self.resident_bytes,
            &self.start,
            &self.threads,
        ]
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().iter().flat_map(|part| part.desc()).collect()
    }

    /// Returns nothing if the system does not tell.
    fn collect(&self) -> Vec<MetricFamily> {
        let Some(stat) = Stat::of_process() else { return Vec::new() };
        let cpu = stat.cpu_ticks as f64 / ticks_per_second() as f64;
        // Two threads may collect at once; a counter never goes back.
        self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
        self.threads.set(stat.threads);
        self.virtual_bytes.set(stat.virtual_bytes);
        self.resident_bytes.set(stat.resident_pages.saturating_mul(rustix::param::page_size() as i64));
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            self.open_descriptors.set(open.count() as i64);
        }
        if let Ok((most, _)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
            self.most_descriptors.set(saturated(most));
        }
        self.parts().iter().flat_map(|part| part.collect()).collect()
    }
}

impl Stat {
    fn of_process() -> Option<Stat> {
        Stat::read(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Reads the line by the numbers that proc(5) gives its fields. The second one, the name, may have spaces and
    /// parentheses.
    fn read(line: &str) -> Option<Stat> {
        let (_, after_name) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let unsigned = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let signed = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
        Some(Stat {
            cpu_ticks: unsigned(14)? + unsigned(15)?,
            threads: signed(20)?,
            start_ticks: unsigned(22)?,
            virtual_bytes: saturated(unsigned(23)?),
            resident_pages: signed(24)?,
        })
    }
}

/// Returns the time of the boot from `/proc/stat`.
fn boot_seconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

fn saturated(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_system_is_read_by_its_fields_whatever_the_name() {
        let line = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 100 0 3 0 250 125 0 0 20 0 9 0 12345 1073741824 2048 \
                    18446744073709551615 1 1";
        let stat = Stat {
            cpu_ticks: 375,
            threads: 9,
            start_ticks: 12_345,
            virtual_bytes: 1_073_741_824,
            resident_pages: 2_048,
        };
        assert_eq!(Stat::read(line), Some(stat));
        for damaged in ["", "4711 (a", "4711 (a) S 1", &line.replace("250", "x")] {
            assert_eq!(Stat::read(damaged), None, "{damaged:?}");
        }
        assert_eq!(boot_seconds("cpu 1 2\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_000));
    }

    #[test]
    fn a_process_knows_its_own_figures() {
        let process = Process::new().unwrap();
        let families = process.collect();
        let names: Vec<&str> = families.iter().map(MetricFamily::name).collect();
        assert_eq!(
            names,
            [
                "process_cpu_seconds_total",
                "process_open_fds",
                "process_max_fds",
                "process_virtual_memory_bytes",
                "process_resident_memory_bytes",
                "process_start_time_seconds",
                "process_threads",
            ]
        );
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let start = u64::try_from(process.start.get()).unwrap();
        assert!(start <= now + 1 && now < start + 86_400, "{start} {now}");
        let (open, most) = (process.open_descriptors.get(), process.most_descriptors.get());
        assert!(open >= 3 && most >= open, "{open} {most}");
        assert!(process.threads.get() >= 1);
        assert!(process.resident_bytes.get() > 1 << 20 && process.virtual_bytes.get() > process.resident_bytes.get());
    }
}
