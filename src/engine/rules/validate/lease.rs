//! Advice about leases that save nothing, or that cost more than they need to. Each number in it is computed from the
//! limit, by the rules of [`leased`](crate::algorithm::leased).

use std::time::Duration;

use crate::algorithm::lease_terms::{Lease, MOST_TTL};
use crate::algorithm::{Algorithm, Limit};
use crate::descriptor::{length, per_of};
use crate::rules::report::Severity;

/// Number of requests that a lease must decide to save work: a call to Redis with a lease costs about twice as much as
/// one without.
const WORTH: u32 = 2;

/// Number of instances that a fleet may have: if fewer make a lease on a counter for each client useless, it is advised
/// against.
const INSTANCES: u32 = 8;

/// A limit with a lease, and how its counters are divided.
pub(super) struct Leasing<'l> {
    pub(super) lease: Lease,
    pub(super) limit: &'l Limit,
    /// Hits of one request.
    pub(super) cost: u32,
    /// The key, if each of its values has a separate counter.
    pub(super) per_value: Option<&'l str>,
}

/// A piece of advice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) severity: Severity,
    /// The key of the lease that it is about.
    pub(super) key: &'static str,
    pub(super) message: String,
}

impl Leasing<'_> {
    /// Returns the most important advice; `None` if the lease is well chosen.
    pub(super) fn advice(&self) -> Option<Advice> {
        let hint = |key, message| Advice { severity: Severity::Hint, key, message };
        let useless = |message| Advice { severity: Severity::Warning, key: "unused", message };
        self.decides_none()
            .map(useless)
            .or_else(|| self.decides_one().map(|message| hint("unused", message)))
            .or_else(|| self.asked_seldom().map(|message| hint("ttl", message)))
            .or_else(|| self.split_up().map(|message| hint("unused", message)))
            .or_else(|| self.lasts_long().map(|message| hint("ttl", message)))
    }

    /// Returns whether a lease can decide enough requests to be worth the call that takes it.
    pub(super) fn saves_calls(&self) -> bool {
        self.decides_none().is_none() && self.decides_one().is_none()
    }

    /// Tells that no lease ever has the hits of a request.
    fn decides_none(&self) -> Option<String> {
        let (largest, capacity) = (self.largest(), self.limit.capacity());
        let message = || {
            format!(
                "does nothing: of {capacity} hits at once, an instance takes at most {largest} in advance, and a \
                 request costs {}: {}",
                self.cost,
                self.remedy()
            )
        };
        (largest < self.cost).then(message)
    }

    /// Tells that a lease decides too few requests to be worth the call that takes it.
    fn decides_one(&self) -> Option<String> {
        let (largest, capacity) = (self.largest(), self.limit.capacity());
        let message = || {
            format!(
                "saves nothing: {}% of {capacity} is {}, of which an instance takes at most {largest} at once. So a \
                 call to Redis decides at most 2 requests, and costs about twice as much: {}",
                self.lease.percent(),
                self.lease.most(),
                self.remedy()
            )
        };
        (largest / self.cost < WORTH).then(message)
    }

    /// Returns how to let a lease decide enough requests.
    fn remedy(&self) -> String {
        let wanted = u64::from(self.cost) * u64::from(WORTH);
        // Half of the limit may be out at most, and a lease takes half of that.
        let (limit, cost) = (self.limit, self.cost);
        let most = Lease::new(5_000, Some(self.lease.ttl()), limit).map_or(0, |lease| lease.largest(limit, cost));
        if u64::from(most) < wanted {
            return "remove it, because no part of this limit is large enough".to_owned();
        }
        // The least part, of which half rounded up is enough, in percent rounded up.
        let part = ((2 * wanted - 1) * 100).div_ceil(limit.capacity());
        format!("remove it, or write unused: {part}%")
    }

    /// Tells that a key at its limit is asked for too seldom within the TTL.
    fn asked_seldom(&self) -> Option<String> {
        let requests = self.lease.requests(self.limit, self.cost);
        if requests >= f64::from(WORTH) {
            return None;
        }
        let enough = self.lease.ttl().mul_f64(f64::from(WORTH) / requests.max(1e-6));
        // Whole seconds, if it takes seconds.
        let enough = match enough.as_secs() {
            0 => Duration::from_millis(enough.as_secs_f64().mul_add(1_000.0, 0.999) as u64),
            _ => Duration::from_secs(enough.as_secs_f64().ceil() as u64),
        };
        let remedy = if enough <= MOST_TTL.min(self.limit.period()) {
            format!("write ttl: {} or more", length(enough))
        } else {
            "remove it, unless most requests of a key come within seconds".to_owned()
        };
        Some(format!(
            "saves little: at its full rate of {} {}, a key is asked for {requests:.1} times within the ttl of {}, and \
             a lease decides only the requests after the first: {remedy}",
            self.limit.number(),
            per_of(self.limit),
            length(self.lease.ttl())
        ))
    }

    /// Tells that each value has a separate counter, which each instance of a fleet asks for too seldom.
    fn split_up(&self) -> Option<String> {
        let (key, requests) = (self.per_value?, self.lease.requests(self.limit, self.cost));
        let instances = (requests / f64::from(WORTH)) as u32;
        let message = || {
            format!(
                "each value of {key:?} has a separate counter, and one that is at its limit is asked for {requests:.0} \
                 times within the ttl of {}. So with more than {instances} instances, which share these requests, a \
                 lease saves nothing: it is for keys that many clients share",
                length(self.lease.ttl())
            )
        };
        (instances <= INSTANCES).then(message)
    }

    /// Tells that the TTL keeps unused hits from other instances for most of the period.
    fn lasts_long(&self) -> Option<String> {
        let (ttl, period) = (self.lease.ttl(), self.limit.period());
        let half = period / 2;
        let is_long = ttl > half && half >= Duration::from_millis(1);
        // A fixed window's leases end with it; and a shorter TTL must still be worth it.
        let shorter = Lease::new(self.lease.unused(), Some(half), self.limit).ok()?;
        if !is_long
            || self.limit.algorithm() == Algorithm::FixedWindow
            || shorter.requests(self.limit, self.cost) < f64::from(WORTH)
        {
            return None;
        }
        Some(format!(
            "hits that an instance does not use are denied to the others for up to {} of each period of {}: without \
             ttl, a lease lasts {}",
            length(ttl + ttl / 4),
            length(period),
            length(half)
        ))
    }

    fn largest(&self) -> u32 {
        self.lease.largest(self.limit, self.cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Options;

    /// Returns the advice on a lease of a sliding window of so many hits.
    fn advice(
        (number, period_ms): (u32, u64),
        (hundredths, ttl_ms): (u16, Option<u64>),
        (cost, per_value): (u32, Option<&str>),
    ) -> Option<Advice> {
        let period = Duration::from_millis(period_ms);
        let limit = Limit::new(Algorithm::SlidingWindow, number.into(), period, Options::default()).unwrap();
        let lease = Lease::new(hundredths, ttl_ms.map(Duration::from_millis), &limit).unwrap();
        Leasing { lease, limit: &limit, cost, per_value }.advice()
    }

    fn says(advice: Option<Advice>) -> String {
        advice.map(|Advice { severity, key, message }| format!("{severity:?} {key}: {message}")).unwrap_or_default()
    }

    const MINUTE: u64 = 60_000;

    #[test]
    fn a_lease_that_can_never_decide_a_request_is_warned_of() {
        assert_eq!(
            says(advice((8, MINUTE), (5_000, None), (1, None))),
            "Warning unused: does nothing: of 8 hits at once, an instance takes at most 0 in advance, and a request \
             costs 1: remove it, because no part of this limit is large enough"
        );
        assert_eq!(
            says(advice((1_000, MINUTE), (500, None), (30, None))),
            "Warning unused: does nothing: of 1000 hits at once, an instance takes at most 25 in advance, and a \
             request costs 30: remove it, or write unused: 12%"
        );
    }

    #[test]
    fn a_lease_of_one_request_is_hinted_at() {
        assert_eq!(
            says(advice((20, MINUTE), (500, None), (1, None))),
            "Hint unused: saves nothing: 5% of 20 is 1, of which an instance takes at most 1 at once. So a call to \
             Redis decides at most 2 requests, and costs about twice as much: remove it, or write unused: 15%"
        );
        assert_eq!(advice((20, MINUTE), (1_500, None), (1, None)), None, "what it says is enough");
        let small = says(advice((12, MINUTE), (5_000, None), (1, None)));
        assert!(small.ends_with("remove it, because no part of this limit is large enough"), "{small}");
    }

    #[test]
    fn a_lease_that_ends_before_the_next_request_is_hinted_at() {
        assert_eq!(
            says(advice((100, 60 * MINUTE), (500, None), (1, None))),
            "Hint ttl: saves little: at its full rate of 100 per hour, a key is asked for 0.8 times within the ttl of \
             30s, and a lease decides only the requests after the first: remove it, unless most requests of a key come \
             within seconds"
        );
        assert_eq!(
            says(advice((1_000, MINUTE), (500, Some(100)), (1, None))),
            "Hint ttl: saves little: at its full rate of 1000 per minute, a key is asked for 1.7 times within the ttl \
             of 100ms, and a lease decides only the requests after the first: write ttl: 120ms or more"
        );
        assert_eq!(advice((1_000, MINUTE), (500, Some(120)), (1, None)), None, "what it says is enough");
    }

    #[test]
    fn a_lease_of_a_counter_for_each_client_is_hinted_at_if_a_few_instances_make_it_useless() {
        assert_eq!(
            says(advice((30, MINUTE), (2_000, None), (1, Some("user")))),
            "Hint unused: each value of \"user\" has a separate counter, and one that is at its limit is asked for 15 \
             times within the ttl of 30s. So with more than 7 instances, which share these requests, a lease saves \
             nothing: it is for keys that many clients share"
        );
        assert_eq!(advice((30, MINUTE), (2_000, None), (1, None)), None, "all share one counter");
        assert_eq!(advice((1_000, MINUTE), (500, None), (1, Some("user"))), None, "a client may be busy");
    }

    #[test]
    fn a_ttl_of_most_of_the_period_is_hinted_at() {
        assert_eq!(
            says(advice((1_000, 10_000), (500, Some(8_000)), (1, None))),
            "Hint ttl: hits that an instance does not use are denied to the others for up to 10s of each period of \
             10s: without ttl, a lease lasts 5s"
        );
        assert_eq!(advice((1_000, 10_000), (500, Some(5_000)), (1, None)), None);
        assert_eq!(advice((1_000, 10_000), (500, None), (1, None)), None);
    }
}
