//! The increase of statistics since they were last pushed to a statsd server. The sender notes each increase that has
//! arrived. The rest stays counted, so while a server is down nothing is stored, and the server gets everything once it
//! is back.

use std::sync::Arc;

use super::of_service as count;
use crate::metrics::by_rule::{Place, RuleCounters};
use crate::metrics::by_value::ValueCounters;
use crate::metrics::declaration::Metrics;
use crate::metrics::names::{Name, OfService, Stat};

/// The state of one sender.
#[derive(Debug)]
pub struct Push {
    metrics: Arc<Metrics>,
    of_service: [u64; OfService::NUMBER],
    /// Number of times pushed from each bucket of the response times.
    times: Vec<u64>,
}

/// An increase of one series.
#[derive(Debug)]
pub struct Pushed {
    counter: Source,
    /// The increase.
    pub more: u64,
}

/// The counter of a series.
#[derive(Debug)]
enum Source {
    Rule(Arc<Place>, Arc<RuleCounters>, Stat),
    Value(Arc<ValueCounters>, Stat),
    DomainNotFound(Arc<ValueCounters>),
    OfService(OfService),
    /// A bucket, and the time in milliseconds that represents the times in it.
    Time(usize, u64),
}

impl Pushed {
    /// Returns the name of the series.
    pub fn name(&self) -> Name<'_> {
        match &self.counter {
            Source::Rule(place, _, stat) => Name::OfPath(&place.path, *stat),
            Source::Value(counters, stat) => Name::OfPath(&counters.path, *stat),
            Source::DomainNotFound(counters) => Name::DomainNotFound(&counters.path),
            Source::OfService(of_service) => Name::OfService(*of_service),
            Source::Time(..) => Name::ResponseTime,
        }
    }

    /// Returns the duration that represents these times, in whole milliseconds, or `None` if the series is not a time.
    pub fn took_ms(&self) -> Option<u64> {
        match self.counter {
            Source::Time(_, took_ms) => Some(took_ms),
            _ => None,
        }
    }
}

impl Metrics {
    /// Counts the statistics of rules, and keeps removed counters until they are pushed. Called before rules are used.
    pub fn push(&self) {
        self.by_rule.push();
        if let Some(values) = &self.values {
            values.push();
        }
    }
}

impl Push {
    /// Creates the state for metrics that are [kept for a push](Metrics::push).
    pub fn new(metrics: Arc<Metrics>) -> Push {
        Push { metrics, of_service: [0; OfService::NUMBER], times: Vec::new() }
    }

    /// Returns every increase that has not arrived yet.
    pub fn more(&mut self) -> Vec<Pushed> {
        let mut pushed = Vec::new();
        let mut add = |counter: Source, more: u64| {
            if more > 0 {
                pushed.push(Pushed { counter, more });
            }
        };
        for counters in self.metrics.by_rule.to_push() {
            let Some(place) = counters.place() else { continue };
            for stat in Stat::ALL {
                let more = counters.at_path(&place).unpushed(stat);
                add(Source::Rule(Arc::clone(&place), Arc::clone(&counters), stat), more);
            }
        }
        let values = self.metrics.values.as_ref().map(|values| values.to_push());
        for counters in values.into_iter().flatten() {
            for stat in Stat::ALL {
                add(Source::Value(Arc::clone(&counters), stat), counters.tally.unpushed(stat));
            }
            let more = counters.unpushed_domain_not_found();
            add(Source::DomainNotFound(counters), more);
        }
        for of_service in OfService::ALL {
            let arrived = self.of_service[of_service as usize];
            add(Source::OfService(of_service), count(of_service, &self.metrics).saturating_sub(arrived));
        }
        let histogram = self.metrics.calls.seconds.histogram();
        let (mut below, mut bound) = (0, 0.0);
        self.times.resize(histogram.get_bucket().len() + 1, 0);
        let buckets = histogram.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        // How far times lie beyond the last bound is not known.
        let rest = histogram.get_bucket().last().map(|last| (last.upper_bound(), histogram.get_sample_count()));
        for (index, (upper, up_to)) in buckets.chain(rest).enumerate() {
            let took_ms = (f64::midpoint(bound, upper) * 1_000.0) as u64;
            add(Source::Time(index, took_ms), (up_to - below).saturating_sub(self.times[index]));
            (below, bound) = (up_to, upper);
        }
        pushed
    }

    /// Notes that an increase has arrived.
    pub fn note(&mut self, pushed: &Pushed) {
        let more = pushed.more;
        match &pushed.counter {
            Source::Rule(place, counters, stat) => counters.at_path(place).note_pushed(*stat, more),
            Source::Value(counters, stat) => counters.tally.note_pushed(*stat, more),
            Source::DomainNotFound(counters) => counters.note_domain_not_found_pushed(more),
            Source::OfService(of_service) => self.of_service[*of_service as usize] += more,
            Source::Time(bucket, _) => self.times[*bucket] += more,
        }
    }

    /// Drops the removed counters that have been pushed completely.
    pub fn finish(&self) {
        self.metrics.by_rule.forget_pushed();
        if let Some(values) = &self.metrics.values {
            values.forget_pushed();
        }
    }
}
