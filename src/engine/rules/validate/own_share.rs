//! Advice about own shares that save nothing, or begin late. Each number in it is computed from the limit.

use std::time::Duration;

use crate::algorithm::{Limit, clipped};
use crate::descriptor::{length, per_of};
use crate::rules::options::enforce::Share;
use crate::rules::report::Severity;
use crate::share::Split;

/// Number of instances that a fleet may have: a share that is none with fewer is advised against.
const INSTANCES: u32 = 8;

/// The part, in hundredths of a percent, from which what is left without shares is told.
const LARGE: u16 = 5_000;

/// The longest period whose shares begin soon enough to go without advice.
const SOON: Duration = Duration::from_secs(60 * 60);

/// Returns the most important advice on a share of this limit, whose requests have this cost; `None` if it is well
/// chosen.
pub(super) fn advice(part: Share, limit: &Limit, cost: u32) -> Option<(Severity, String)> {
    let is_enough = |seats| admits(part, limit, seats) >= cost;
    let is_left = |seats| Split::new(part.hundredths(), seats).rest(limit).capacity() >= cost.into();
    let (number, per) = (limit.number(), per_of(limit));
    let most = clipped(limit.number().min(limit.capacity()));
    let hits = Split::new(part.hundredths(), 1).each(most);
    // The largest part, in percent, that leaves enough for a request.
    let largest = u64::from(most.saturating_sub(cost)) * 100 / u64::from(most.max(1));
    let is_neither = |seats: &u32| cost <= most && !is_enough(*seats) && !is_left(*seats);
    if let Some(seats) = (1..=INSTANCES).find(is_neither) {
        let fleet = if seats == 1 { String::new() } else { format!(" with {seats} instances (EXPECTED_REPLICAS)") };
        let remedy = if largest > 0 { format!("write own_share: {largest}% or less") } else { "remove it".to_owned() };
        let least = format!("neither a share nor what {part} leaves of {number} {per} is as much{fleet}");
        return Some((Severity::Warning, format!("lets no request pass: one costs {cost}, and {least}: {remedy}")));
    }
    if !is_enough(1) {
        let wanted = u64::from(cost) * 10_000;
        let least = wanted.div_ceil(most.max(1).into()).div_ceil(100);
        let remedy = match least {
            ..=100 if least <= largest => format!("remove it, or write own_share: {least}%"),
            _ => "remove it, because no part of this limit is large enough and leaves as much".to_owned(),
        };
        let of = format!("of {number} {per}, {part} is {hits}, and a request costs {cost}");
        return Some((Severity::Warning, format!("does nothing: {of}: {remedy}")));
    }
    // The share of each becomes smaller with each instance.
    if let Some(seats) = (2..=INSTANCES).find(|seats| !is_enough(*seats)) {
        let message = format!(
            "of {number} {per}, {part} is {hits}, divided among the instances: with {seats} or more \
             (EXPECTED_REPLICAS), the share of each is less than one request"
        );
        return Some((Severity::Hint, message));
    }
    let message = || {
        let begins = length(limit.period());
        format!(
            "an instance uses its share only {begins} after it has started, or after the rules have changed; until \
             then, it asks the store"
        )
    };
    if limit.period() > SOON {
        return Some((Severity::Hint, message()));
    }
    (part.hundredths() >= LARGE).then(|| {
        let rest = Split::new(part.hundredths(), 1).rest(limit).number();
        let message = format!(
            "until instances use their shares, a period after each start and after each change of the domain's rules, \
             only {rest} of {number} {per} pass, and other limits of the domain have as large a part less"
        );
        (Severity::Hint, message)
    })
}

/// Returns the most hits at once that one of so many instances may admit by itself.
pub(super) fn admits(part: Share, limit: &Limit, seats: u32) -> u32 {
    Split::new(part.hundredths(), seats).share(limit).map_or(0, |share| clipped(share.capacity()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Options};

    fn says(share: &str, number: u32, period: Duration, cost: u32) -> String {
        let limit = Limit::new(Algorithm::SlidingWindow, number.into(), period, Options::default()).unwrap();
        let advice = advice(Share::parse(share).unwrap(), &limit, cost);
        advice.map(|(severity, message)| format!("{severity:?}: {message}")).unwrap_or_default()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_large_share_is_told_what_is_left_while_it_is_not_in_use() {
        assert_eq!(says("49%", 1_000, MINUTE, 1), "");
        assert!(says("50%", 1_000, MINUTE, 1).contains("only 500 of 1000 per minute pass"));
        assert!(says("100%", 1_000, MINUTE, 1).contains("only 0 of 1000 per minute pass"));
    }

    #[test]
    fn a_share_of_less_than_a_request_is_warned_of() {
        assert_eq!(
            says("5%", 5, MINUTE, 1),
            "Warning: does nothing: of 5 per minute, 5% is 0, and a request costs 1: remove it, or write own_share: 20%"
        );
        assert_eq!(
            says("100%", 5, MINUTE, 6),
            "Warning: does nothing: of 5 per minute, 100% is 5, and a request costs 6: remove it, because no part of \
             this limit is large enough and leaves as much"
        );
        assert_eq!(
            says("10%", 1_000, MINUTE, 600),
            "Warning: does nothing: of 1000 per minute, 10% is 100, and a request costs 600: remove it, because no \
             part of this limit is large enough and leaves as much"
        );
        assert!(says("20%", 5, MINUTE, 1).starts_with("Hint: "), "what it says is enough for one instance");
    }

    /// Asked for more than the rest, Redis denies, whatever other shares have.
    #[test]
    fn a_share_that_leaves_too_little_for_a_request_is_warned_of() {
        assert_eq!(
            says("50%", 1_000, MINUTE, 600),
            "Warning: lets no request pass: one costs 600, and neither a share nor what 50% leaves of 1000 per minute \
             is as much: write own_share: 40% or less"
        );
        assert!(
            says("60%", 1_000, MINUTE, 600)
                .contains("as much with 2 instances (EXPECTED_REPLICAS): write own_share: 40%")
        );
        assert!(says("100%", 5, MINUTE, 5).contains("with 2 instances (EXPECTED_REPLICAS): remove it"));
        assert!(says("40%", 1_000, MINUTE, 600).starts_with("Warning: does nothing"), "Redis lets them pass");
    }

    #[test]
    fn a_share_that_a_few_instances_divide_up_to_nothing_is_hinted_at() {
        assert_eq!(
            says("5%", 100, MINUTE, 1),
            "Hint: of 100 per minute, 5% is 5, divided among the instances: with 6 or more (EXPECTED_REPLICAS), the \
             share of each is less than one request"
        );
        assert_eq!(says("5%", 1_000, MINUTE, 1), "");
        assert!(says("5%", 1_000, MINUTE, 10).contains("with 6 or more"));
    }

    #[test]
    fn a_share_that_begins_a_day_later_is_hinted_at() {
        assert_eq!(
            says("5%", 100_000, 1_440 * MINUTE, 1),
            "Hint: an instance uses its share only 1d after it has started, or after the rules have changed; until \
             then, it asks the store"
        );
        assert_eq!(says("5%", 100_000, 60 * MINUTE, 1), "");
    }
}
