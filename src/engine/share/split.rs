//! How a limit is split into the shares of seats and the rest.

use std::time::Duration;

use super::member::DomainTerms;
use crate::algorithm::{Algorithm, Limit, Options, clipped};

/// The whole of a limit, in hundredths of a percent.
const WHOLE: u64 = 10_000;

/// The part of a limit that seats admit by themselves, and the number of seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Split {
    /// In hundredths of a percent, from 1 to 10,000.
    part: u16,
    seats: u32,
}

/// What a check of a rule knows of the shares of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// The domain: see [`domain_id`](Shared::domain_id). 0 for a counter that no rule has.
    pub domain: u64,
    /// The digest of the domain's rules, if one of them has a share.
    pub digest: u64,
    /// The split of this limit, if its rule has a share.
    pub split: Option<Split>,
    /// Whether the number is not that of the rule, but an adjustment's or the request's.
    pub is_changed: bool,
}

impl Shared {
    /// Returns the number by which instances call a domain; never 0.
    pub fn domain_id(name: &str) -> u64 {
        let hash = blake3::hash(name.as_bytes());
        let first = hash.as_bytes().first_chunk().map_or(1, |first| u64::from_le_bytes(*first));
        first.max(1)
    }
}

impl Shared {
    /// Returns the limit that the store decides, as far as this instance's rules say: the number less all shares.
    pub fn rest(&self, limit: &Limit) -> Limit {
        match self.split {
            Some(split) if !self.is_changed => split.rest(limit),
            // Others may not know the change yet, and use their share of the rule's number.
            Some(split) => split.cut(limit),
            None => *limit,
        }
    }

    /// Returns whether an instance with these terms uses the same share of this limit.
    pub(super) fn is_by(&self, terms: &DomainTerms) -> bool {
        terms.digest == self.digest && self.split.is_none_or(|split| split.seats() == terms.largest.seats())
    }
}

impl Split {
    /// Returns the split of a limit of which this part, in hundredths of a percent, is divided among `seats`.
    pub fn new(part: u16, seats: u32) -> Split {
        Split { part: part.min(WHOLE as u16), seats: seats.max(1) }
    }

    /// Returns the part, in hundredths of a percent.
    pub fn part(&self) -> u16 {
        self.part
    }

    /// Returns the number of seats.
    pub fn seats(&self) -> u32 {
        self.seats
    }

    /// Returns what each seat may admit of a number.
    pub fn each(&self, number: u32) -> u32 {
        let each = u64::from(number) * u64::from(self.part) / (WHOLE * u64::from(self.seats));
        u32::try_from(each).unwrap_or(u32::MAX)
    }

    /// Returns the limit of a seat's own counter, or `None` if its share is less than one hit. The share of a fixed
    /// window slides.
    pub fn share(&self, limit: &Limit) -> Option<Limit> {
        let number = Some(self.each(clipped(limit.number()))).filter(|each| *each > 0)?;
        if limit.algorithm() == Algorithm::FixedWindow {
            return Limit::new(Algorithm::SlidingWindow, number.into(), limit.period(), Options::default()).ok();
        }
        let burst = match burst(limit) {
            Some(burst) => Some(Some(self.each(burst)).filter(|each| *each > 0)?),
            None => None,
        };
        limit.with_number_and_burst(number.into(), burst)
    }

    /// Returns the limit that the store decides: the number less all shares. It is closed if nothing is left.
    pub fn rest(&self, limit: &Limit) -> Limit {
        let Some(share) = self.share(limit) else { return *limit };
        let less = |whole: u32, each: u32| whole.saturating_sub(each.saturating_mul(self.seats));
        let number = less(clipped(limit.number()), clipped(share.number()));
        // A burst of its own is stated, since that of the number would be smaller.
        let burst = burst(limit).map(|burst| less(burst, self.each(burst)));
        reduced(limit, number, burst)
    }

    /// Returns a limit that leaves room for the shares of instances with other rules. The sum is never more than the
    /// larger of this number and theirs, whatever theirs is.
    ///
    /// With their number M, they use up to `seats * each(M)`, which grows by `seats` at each multiple of
    /// `seats / part`. For an M up to N that is no more than at N. For a larger M, what M leaves is least just at such
    /// a multiple, and each later one leaves more; so the next multiple decides.
    pub fn cut(&self, limit: &Limit) -> Limit {
        let left = |number: u32| {
            let at = |number: u64| {
                let shares = number * u64::from(self.part) / (WHOLE * u64::from(self.seats)) * u64::from(self.seats);
                number - shares.min(number)
            };
            let number = u64::from(number);
            let step = WHOLE * u64::from(self.seats);
            // The least number whose shares are one hit larger.
            let next = ((number * u64::from(self.part) / step + 1) * step).div_ceil(u64::from(self.part));
            u32::try_from(at(number).min(at(next))).unwrap_or(u32::MAX)
        };
        let own = clipped(limit.number());
        let number = left(own).min(own);
        reduced(limit, number, burst(limit).map(|burst| left(burst).min(burst)))
    }

    /// Returns the limit with the smaller number and the smaller burst of two limits of one counter.
    pub fn smaller(one: &Limit, other: &Limit) -> Limit {
        let burst = burst(one).zip(burst(other)).map(|(one, other)| one.min(other));
        reduced(one, clipped(one.number().min(other.number())), burst)
    }

    /// Returns the time after which nothing that was admitted before matters to a counter of this limit: the period,
    /// or the time in which the share's bucket fills.
    pub fn forgets_after(limit: &Limit, share: Option<&Limit>) -> Duration {
        let of = share.unwrap_or(limit);
        match burst(of) {
            Some(burst) => {
                let ms = (u128::from(burst) * u128::from(of.period_ms())).div_ceil(of.number().max(1).into());
                Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
            }
            None => limit.period(),
        }
    }

    /// Returns the time after which nothing that shares of this limit have admitted matters to its counter. The bucket
    /// of a share may take nearly twice as long to fill as that of the limit, since both its values are rounded down.
    pub fn shares_matter_for(limit: &Limit) -> Duration {
        let fills = Split::forgets_after(limit, None);
        if burst(limit).is_some() { limit.period().max(2 * fills) } else { fills }
    }
}

/// Returns the burst of a bucket, also where it is the number.
fn burst(limit: &Limit) -> Option<u32> {
    match limit.algorithm() {
        Algorithm::TokenBucket => Some(clipped(limit.capacity())),
        _ => None,
    }
}

/// Returns this limit with less.
fn reduced(limit: &Limit, number: u32, burst: Option<u32>) -> Limit {
    if number == 0 || burst == Some(0) {
        return limit.closed();
    }
    limit.with_number_and_burst(number.into(), burst).unwrap_or_else(|| limit.closed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(number: u32) -> Limit {
        Limit::new(Algorithm::SlidingWindow, number.into(), Duration::from_secs(60), Options::default()).unwrap()
    }

    fn bucket(number: u32, burst: u32) -> Limit {
        let options = Options { burst: Some(burst), ..Options::default() };
        Limit::new(Algorithm::TokenBucket, number.into(), Duration::from_secs(60), options).unwrap()
    }

    #[test]
    fn a_share_is_rounded_down_and_the_store_has_what_is_left() {
        let split = Split::new(500, 4);
        assert_eq!(split.share(&window(1_000)).map(|share| share.number()), Some(12));
        assert_eq!(split.rest(&window(1_000)).number(), 952);
        assert_eq!((split.share(&window(79)), split.rest(&window(79))), (None, window(79)));
        assert_eq!(Split::new(10_000, 3).rest(&window(10)).number(), 1);
        assert_eq!(Split::new(10_000, 2).rest(&window(10)).number(), 0);
    }

    #[test]
    fn of_a_bucket_both_rate_and_burst_are_split() {
        let split = Split::new(1_000, 2);
        let share = split.share(&bucket(100, 40)).unwrap();
        assert_eq!((share.number(), share.capacity()), (5, 2));
        let rest = split.rest(&bucket(100, 40));
        assert_eq!((rest.number(), rest.capacity()), (90, 36));
        assert_eq!(split.share(&bucket(100, 19)), None, "there would be no burst");
        assert_eq!(Split::forgets_after(&bucket(100, 40), Some(&share)), Duration::from_secs(24));
    }

    #[test]
    fn a_share_of_a_fixed_window_slides() {
        let fixed = Limit::new(Algorithm::FixedWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
        let share = Split::new(500, 4).share(&fixed).unwrap();
        assert_eq!((share.algorithm(), share.number(), share.period()), (Algorithm::SlidingWindow, 12, fixed.period()));
        assert_eq!(Split::new(500, 4).rest(&fixed).algorithm(), Algorithm::FixedWindow);
    }

    proptest! {
        #[test]
        fn all_parts_are_the_whole(
            number in 0..3_000_u32,
            burst in 1..3_000_u32,
            part in 1..=10_000_u16,
            seats in 1..40_u32,
        ) {
            let split = Split::new(part, seats);
            for limit in [window(number), bucket(number, burst)] {
                let (rest, share) = (split.rest(&limit), split.share(&limit));
                let shares = share.map_or(0, |share| share.number() * u64::from(seats));
                prop_assert!(rest.number() + shares <= number.into());
                prop_assert!(shares <= u64::from(number * u32::from(part)) / 10_000);
                let bursts = share.map_or(0, |share| share.capacity() * u64::from(seats));
                prop_assert!(rest.capacity() + bursts <= limit.capacity());
                if share.is_none() {
                    prop_assert_eq!(rest, limit);
                }
            }
        }

        #[test]
        fn a_share_matters_no_longer_than_stated(
            number in 1..3_000_u32, burst in 1..3_000_u32, part in 1..=10_000_u16, seats in 1..40_u32,
        ) {
            for limit in [window(number), bucket(number, burst)] {
                if let Some(share) = Split::new(part, seats).share(&limit) {
                    prop_assert!(Split::forgets_after(&limit, Some(&share)) <= Split::shares_matter_for(&limit));
                }
            }
        }

        #[test]
        fn a_cut_leaves_room_for_the_shares_of_any_other_number(
            own in 0..3_000_u32,
            other in 0..3_000_u32,
            part in 1..=10_000_u16,
            smaller in 1..=10_000_u16,
            seats in 1..40_u32,
        ) {
            let (largest, theirs) = (Split::new(part, seats), Split::new(smaller.min(part), seats));
            let asked = largest.cut(&window(own)).number().max(theirs.rest(&window(other)).number());
            let shares = theirs.share(&window(other)).map_or(0, |share| share.number() * u64::from(seats));
            prop_assert!(asked + shares <= own.max(other).into(), "{} and {}", asked, shares);
        }
    }
}
