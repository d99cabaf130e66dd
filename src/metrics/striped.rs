//! Metrics that every request writes, with one copy per core, added up when they are read: cores that wrote to one
//! place would wait for each other. Used only for metrics that the process has once. For each limit, the copies would
//! multiply the memory by the number of cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use prometheus::IntCounter;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Histogram, Metric, MetricFamily};

/// A metric without variable labels, with one copy per core. Threads are assigned copies in the order in which they
/// first count something.
#[derive(Debug)]
pub(super) struct Striped<M>(Arc<[M]>);

impl<M: Collector> Striped<M> {
    /// Creates equal copies.
    ///
    /// # Errors
    /// The errors of `make`.
    pub(super) fn new(make: impl Fn() -> prometheus::Result<M>) -> prometheus::Result<Striped<M>> {
        let cores = available_parallelism().map_or(1, usize::from);
        Ok(Striped((0..cores).map(|_| make()).collect::<prometheus::Result<_>>()?))
    }

    /// Returns the copy of the current thread.
    pub(super) fn mine(&self) -> &M {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        &self.0[THREAD.with(|thread| thread % self.0.len())]
    }
}

impl Striped<IntCounter> {
    /// Returns the sum over all threads.
    pub(super) fn get(&self) -> u64 {
        self.0.iter().map(IntCounter::get).sum()
    }
}

impl Striped<prometheus::Histogram> {
    /// Returns the sum over all threads.
    pub(super) fn histogram(&self) -> Histogram {
        let family = self.collect().into_iter().next();
        let metric = family.and_then(|family| family.get_metric().first().cloned());
        metric.map(|metric| metric.get_histogram().clone()).unwrap_or_default()
    }

    /// Returns the number of observations.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(prometheus::Histogram::get_sample_count).sum()
    }
}

impl<M> Clone for Striped<M> {
    fn clone(&self) -> Self {
        Striped(Arc::clone(&self.0))
    }
}

impl<M: Collector> Collector for Striped<M> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.first().map_or_else(Vec::new, Collector::desc)
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.0.iter().flat_map(Collector::collect);
        let sum = families.reduce(|mut sum, family| {
            sum.mut_metric().iter_mut().zip(family.get_metric()).for_each(|(sum, metric)| add(sum, metric));
            sum
        });
        sum.into_iter().collect()
    }
}

/// Adds up two metrics of the same kind. The parts of other kinds are zero.
fn add(sum: &mut Metric, metric: &Metric) {
    let mut counter = sum.get_counter().clone();
    counter.set_value(counter.get_value() + metric.get_counter().get_value());
    sum.set_counter(counter);

    let (before, more) = (sum.get_histogram(), metric.get_histogram());
    let mut histogram = Histogram::default();
    histogram.set_sample_count(before.get_sample_count() + more.get_sample_count());
    histogram.set_sample_sum(before.get_sample_sum() + more.get_sample_sum());
    let buckets = before.get_bucket().iter().zip(more.get_bucket()).map(|(before, more)| {
        let mut bucket = before.clone();
        bucket.set_cumulative_count(before.cumulative_count() + more.cumulative_count());
        bucket
    });
    histogram.set_bucket(buckets.collect());
    sum.set_histogram(histogram);
}

#[cfg(test)]
mod tests {
    use prometheus::HistogramOpts;

    use super::*;

    #[test]
    fn each_thread_counts_for_itself_and_all_are_added_up() {
        let counter = Striped::new(|| IntCounter::new("calls", "Calls.")).unwrap();
        let options = HistogramOpts::new("seconds", "Seconds.").buckets(vec![1.0, 2.0]);
        let histogram = Striped::new(|| prometheus::Histogram::with_opts(options.clone())).unwrap();
        let cores = counter.0.len();
        std::thread::scope(|scope| {
            for seconds in [0.5, 1.5, 4.0].repeat(20) {
                let (counter, histogram) = (&counter, &histogram);
                scope.spawn(move || {
                    counter.mine().inc();
                    histogram.mine().observe(seconds);
                });
            }
        });
        assert!(cores == 1 || counter.0.iter().all(|own| own.get() < 60), "none has them all: {counter:?}");
        let collected = counter.collect();
        assert_eq!(collected[0].get_metric()[0].get_counter().get_value(), 60.0);
        let collected = histogram.collect();
        let sum = collected[0].get_metric()[0].get_histogram();
        assert_eq!((sum.get_sample_count(), sum.get_sample_sum()), (60, 120.0));
        assert_eq!(sum.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect::<Vec<_>>(), [20, 40]);
    }
}
