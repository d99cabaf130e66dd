//! Waits between attempts to connect.

use std::time::Duration;

/// Growth of the waits between attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// First wait after the server could not be reached or its connection was lost, as it is usually back soon.
    pub unreachable: Duration,
    /// First wait after the server rejected the stream, which rarely changes soon.
    pub refused: Duration,
    /// Longest wait, before the spread.
    pub most: Duration,
    /// Largest share, from 0 to 1, by which a wait is randomly shortened or lengthened, to keep the instances of a
    /// fleet from connecting all at once.
    pub spread: f64,
}

impl Backoff {
    /// Returns the wait after this many failures in a row, at least one, starting from `first`. `random` is at least 0
    /// and below 1.
    pub(super) fn delay(&self, first: Duration, failures: u32, random: f64) -> Duration {
        let doubled = first.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.most).mul_f64(1.0 + self.spread.clamp(0.0, 1.0) * (2.0 * random - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        unreachable: Duration::from_secs(3),
        refused: Duration::from_secs(10),
        most: Duration::from_secs(60),
        spread: 0.5,
    };

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits: Vec<u64> =
            [1, 2, 3, 4, 5, 6, 40, u32::MAX].map(|n| BACKOFF.delay(BACKOFF.unreachable, n, 0.5).as_secs()).into();
        assert_eq!(waits, [3, 6, 12, 24, 48, 60, 60, 60]);
        assert_eq!(BACKOFF.delay(BACKOFF.refused, 2, 0.5).as_secs(), 20);
    }

    #[test]
    fn a_wait_is_drawn_around_its_length() {
        let drawn = |random| BACKOFF.delay(BACKOFF.refused, 1, random);
        assert_eq!((drawn(0.0), drawn(0.5)), (Duration::from_secs(5), Duration::from_secs(10)));
        assert!(drawn(0.999) > Duration::from_millis(14_900));
        let steady = Backoff { spread: 0.0, ..BACKOFF };
        assert_eq!(steady.delay(steady.refused, 1, 0.0), steady.delay(steady.refused, 1, 0.999));
        // A user who takes the spread for a growth factor sets more than 1.
        assert_eq!(Backoff { spread: 7.0, ..BACKOFF }.delay(BACKOFF.refused, 1, 0.0), Duration::ZERO);
    }
}
