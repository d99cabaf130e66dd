//! How often one failure is logged.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets one of many equal log lines through every ten seconds.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Mutex<(Option<Instant>, u64)>,
}

impl Throttle {
    const EVERY: Duration = Duration::from_secs(10);

    /// How many there were since the last that was let through, this one included; `None`: say nothing.
    pub fn admit(&self) -> Option<u64> {
        let mut last = self.last.lock();
        last.1 += 1;
        if last.0.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return None;
        }
        let (_, since_last) = std::mem::replace(&mut *last, (Some(Instant::now()), 0));
        Some(since_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_equal_failures_make_one_line() {
        let throttle = Throttle::default();
        let lines = (0..1_000).filter_map(|_| throttle.admit()).count();
        assert_eq!(lines, 1);
    }
}
