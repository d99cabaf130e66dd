//! A counter that is kept elsewhere and read at each scrape.

use std::fmt;

use prometheus::core::{Collector, Desc, Describer as _};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

/// A counter with its value read through `read`, which must never fall.
pub(super) struct Observed<F> {
    desc: Desc,
    read: F,
}

impl<F: Fn() -> u64 + Send + Sync> Observed<F> {
    /// Creates a counter with this name and help.
    ///
    /// # Errors
    /// If Prometheus does not allow the name.
    pub(super) fn new(options: &prometheus::Opts, read: F) -> prometheus::Result<Observed<F>> {
        Ok(Observed { desc: options.describe()?, read })
    }
}

impl<F: Fn() -> u64 + Send + Sync> Collector for Observed<F> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut counter = Counter::default();
        counter.set_value((self.read)() as f64);
        let mut metric = Metric::default();
        metric.set_counter(counter);
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::COUNTER);
        family.set_metric(vec![metric]);
        vec![family]
    }
}

impl<F> fmt::Debug for Observed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("desc", &self.desc).finish_non_exhaustive()
    }
}
