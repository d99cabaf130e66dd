//! A counter that is kept elsewhere: it is read whenever it is asked for.

use std::fmt;

use prometheus::core::{Collector, Desc, Describer as _};
use prometheus::proto::{Counter, Metric, MetricFamily, MetricType};

/// What `read` says, which never falls.
pub(super) struct Observed<F> {
    desc: Desc,
    read: F,
}

impl<F: Fn() -> u64 + Send + Sync> Observed<F> {
    /// A counter of this name and meaning.
    ///
    /// # Errors
    /// Where Prometheus does not allow the name.
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
