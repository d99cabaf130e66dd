//! The highest demand of each key of a limit within a period. This is the number that the limit needs to deny nothing
//! to the key.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Arrival;
use super::tally::{KeyHash, Room};
use crate::engine::asked::Source;
use crate::engine::decision::Decision;

/// The peaks of a limit's keys.
#[derive(Debug)]
pub struct Peaks {
    /// ID of the limit.
    id: usize,
    period_ms: u64,
    keys: HashMap<KeyHash, Peak>,
    room: Room,
}

#[derive(Debug, Default)]
struct Peak {
    /// The hits within the last period, with their times.
    within: VecDeque<(u64, u64)>,
    hits: u64,
    most: u64,
}

/// The number of keys with a peak up to a bound and above the previous bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UpTo {
    /// The bound.
    pub hits: u64,
    /// Number of keys.
    pub keys: u64,
}

impl Peaks {
    /// Creates empty peaks of the limit with this ID, within periods of this length.
    pub fn new(id: usize, period_ms: u64) -> Peaks {
        Peaks { id, period_ms, keys: HashMap::new(), room: Room::default() }
    }

    /// Adds the sampled descriptors of a decided request. Requests come in order of time.
    pub fn add(&mut self, arrival: Arrival<'_>, decision: &Decision<'_>) {
        let asked = decision.limits.iter().map(|limited| &limited.asked);
        for asked in asked.filter(|asked| arrival.is_sampled(asked.check.descriptor)) {
            let hits = asked.check.ask.taken();
            if !matches!(asked.source, Source::Rule(_, limit) if limit.id == self.id) || hits == 0 {
                continue;
            }
            let key = KeyHash::of(&asked.check.key);
            let peak = match self.keys.get_mut(&key) {
                Some(peak) => peak,
                None if self.room.take() => self.keys.entry(key).or_default(),
                None => continue,
            };
            peak.add(arrival.at_ms, hits, self.period_ms);
        }
    }

    /// Returns the distribution of peaks, by bounds of 1, 2, 5, 10, 20, 50 and so on.
    pub fn spread(&self) -> Vec<UpTo> {
        let mut spread: Vec<UpTo> = Vec::new();
        let most = self.keys.values().map(|peak| peak.most).max().unwrap_or(0);
        for hits in (0..19_u32).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power))) {
            let below = spread.last().map_or(0, |before| before.hits);
            if below >= most {
                break;
            }
            let is_here = |peak: &&Peak| (below + 1..=hits).contains(&peak.most);
            spread.push(UpTo { hits, keys: self.keys.values().filter(is_here).count() as u64 });
        }
        spread
    }
}

impl Peak {
    fn add(&mut self, at_ms: u64, hits: u64, period_ms: u64) {
        while let Some((before_ms, before)) = self.within.front()
            && before_ms + period_ms <= at_ms
        {
            self.hits -= before;
            self.within.pop_front();
        }
        self.hits += hits;
        self.most = self.most.max(self.hits);
        match self.within.back_mut() {
            Some((last_ms, last)) if *last_ms == at_ms => *last += hits,
            _ => self.within.push_back((at_ms, hits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_peak_is_the_most_within_any_period(
            steps in prop::collection::vec((0..50_u64, 1..4_u64), 0..80), period_ms in 1..200_u64,
        ) {
            let (mut peak, mut at_ms, mut all) = (Peak::default(), 1_000, Vec::new());
            for (step, hits) in steps {
                at_ms += step;
                peak.add(at_ms, hits, period_ms);
                all.push((at_ms, hits));
            }
            let within = |end: u64| -> u64 {
                all.iter().filter(|(at, _)| (end.saturating_sub(period_ms - 1)..=end).contains(at)).map(|it| it.1).sum()
            };
            let most = all.iter().map(|(at, _)| within(*at)).max().unwrap_or(0);
            prop_assert_eq!(peak.most, most);
        }
    }
}
