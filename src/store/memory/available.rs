//! The memory that the process may use: the limit of its control group, or the memory of the machine.

use std::fs;

/// Files with the limit of a control group, in versions 2 and 1.
const LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Returns the available memory in bytes, or `None` if the system does not report it.
pub(super) fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let limits = LIMITS.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    limits.chain(machine).min()
}

/// Parses `MemTotal` of `/proc/meminfo`, in bytes.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read_from_the_line_that_tells_it() {
        assert_eq!(total("MemTotal:       24600000 kB\nMemFree:  1 kB\n"), Some(24_600_000 * 1024));
        assert_eq!([total(""), total("MemTotal: many kB"), total("MemTotal: 5 MB")], [None; 3]);
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available_memory().is_none_or(|bytes| bytes > 1 << 20));
    }
}
