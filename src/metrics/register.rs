//! Makes metrics, each registered as it is made.

use prometheus::core::Collector;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::namespace::SECONDS;
use super::striped::Striped;

/// Counters of a label with values known from the start.
#[derive(Debug)]
pub(super) struct Known<K, const N: usize>(pub(super) [(K, IntCounter); N]);

impl<K: PartialEq, const N: usize> Known<K, N> {
    pub(super) fn get(&self, value: K) -> u64 {
        self.0.iter().find(|(known, _)| *known == value).map_or(0, |(_, counter)| counter.get())
    }

    pub(super) fn inc(&self, value: K) {
        self.inc_by(value, 1);
    }

    pub(super) fn inc_by(&self, value: K, by: u64) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == value) {
            counter.inc_by(by);
        }
    }
}

/// A registry that metrics are made for. Each method fails if a metric with the name is already registered.
pub(super) struct Register<'r>(pub(super) &'r Registry);

impl Register<'_> {
    pub(super) fn add<C: Collector + Clone + 'static>(&self, collector: C) -> prometheus::Result<C> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Makes a counter for each of these values of a label.
    pub(super) fn known<K: Copy, const N: usize>(
        &self,
        (name, help): (&str, &str),
        (label, values): (&str, [K; N]),
        value_name: fn(K) -> &'static str,
    ) -> prometheus::Result<Known<K, N>> {
        let counters = self.counters(name, help, &[label])?;
        Ok(Known(values.map(|value| (value, counters.with_label_values(&[value_name(value)])))))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    /// Makes a gauge of a share or another number that is not whole.
    pub(super) fn share(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.add(Gauge::new(name, help)?)
    }

    /// Makes gauges with these labels, at zero for each of these values of a single label.
    pub(super) fn gauges(
        &self,
        (name, help): (&str, &str),
        labels: &[&str],
        values: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        let gauges = self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)?;
        values.iter().for_each(|value| gauges.with_label_values(&[*value]).set(0));
        Ok(gauges)
    }

    /// Makes a counter that workers increment without waiting for each other.
    pub(super) fn striped(&self, options: Opts) -> prometheus::Result<Striped<IntCounter>> {
        self.add(Striped::new(|| IntCounter::with_opts(options.clone()))?)
    }

    pub(super) fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> prometheus::Result<Striped<Histogram>> {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.add(Striped::new(|| Histogram::with_opts(options.clone()))?)
    }

    pub(super) fn seconds(&self, name: &str, help: &str) -> prometheus::Result<Striped<Histogram>> {
        self.histogram(name, help, &SECONDS)
    }
}

/// Returns the name of a value that is its name.
pub(super) fn itself(name: &'static str) -> &'static str {
    name
}
