//! The series of `envoyproxy/ratelimit` for Prometheus, in addition to Tollgate's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};

use crate::metrics::by_rule::AtPlace;
use crate::metrics::by_value::ValueCounters;
use crate::metrics::declaration::Metrics;
use crate::metrics::names::{
    Departed, Exposition, Labels, Left, MILLISECONDS, NO_GARBAGE, Name, OfService, Shown, Stat, is_same,
};

/// The counters with one name.
#[derive(Default)]
struct Series {
    help: String,
    counts: BTreeMap<Labels, Sum>,
}

struct Sum {
    value: f64,
    is_quiet: bool,
}

/// A counter of a path or of the process.
struct Counted<'p> {
    name: Name<'p>,
    count: u64,
    is_quiet: bool,
}

/// The counts of all paths, read at one moment.
struct Paths<'d> {
    rules: Vec<AtPlace>,
    values: Vec<Arc<ValueCounters>>,
    left: Left<'d>,
}

impl Paths<'_> {
    /// Returns the counters of a statistic for the paths that have counted any hits.
    fn of_stat(&self, stat: Stat) -> impl Iterator<Item = Counted<'_>> {
        let counted = move |path, is_quiet, stat_of: &dyn Fn(Stat) -> u64| {
            let count = stat_of(stat);
            let is_rare = matches!(stat, Stat::OverLimitWithLocalCache | Stat::TotalNegativeHits);
            let is_shown = !is_rare || count > 0;
            let is_asked = stat_of(Stat::TotalHits) > 0 || stat_of(Stat::TotalNegativeHits) > 0;
            (is_asked && is_shown).then_some(Counted { name: Name::OfPath(path, stat), count, is_quiet })
        };
        let rules = self.rules.iter().filter_map(move |at| counted(&at.place.path, at.is_quiet, &|stat| at.stat(stat)));
        let values = self.values.iter();
        rules.chain(values.filter_map(move |of| counted(&of.path, false, &|stat| of.tally.stat(stat))))
    }
}

/// Receives one family at a time: together they would take ten times the memory of the resulting text.
type Write<'w> = dyn FnMut(MetricFamily) -> prometheus::Result<()> + 'w;

impl Metrics {
    /// Also shows the metrics to Prometheus under the names of `envoyproxy/ratelimit`.
    #[must_use]
    pub fn with_exposition(mut self, exposition: Exposition) -> Metrics {
        let departed = Arc::new(Departed::new(exposition));
        self.by_rule.departed = Some(Arc::clone(&departed));
        if let Some(values) = &self.values {
            values.show(&departed);
        }
        self
    }

    /// Writes all metrics in Prometheus' text format: Tollgate's, and those of `envoyproxy/ratelimit`.
    ///
    /// # Errors
    /// If a metric cannot be written.
    pub fn render_with_statistics(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = self.render()?;
        self.write_statistics(self.by_rule.now(), &mut text)?;
        Ok(text)
    }

    /// Writes the statistics as of `now`, which counts from the start.
    fn write_statistics(&self, now: Duration, text: &mut Vec<u8>) -> prometheus::Result<()> {
        let Some(departed) = &self.by_rule.departed else { return Ok(()) };
        // Read together, so that a path leaving meanwhile is not counted twice.
        let (rules, (values, left)) = self.by_rule.paths(now, || match &self.values {
            Some(values) => values.all(|| departed.left()),
            None => (Vec::new(), departed.left()),
        });
        let paths = Paths { rules, values, left };
        let encoder = TextEncoder::new();
        departed.exposition.each_family(self, &paths, &mut |family| encoder.encode(&[family], text))
    }
}

impl Exposition {
    fn each_family(&self, metrics: &Metrics, paths: &Paths<'_>, write: &mut Write<'_>) -> prometheus::Result<()> {
        let Paths { values, left, .. } = paths;
        let of_stat = |stat| paths.of_stat(stat);
        let unknown = values.iter().map(|counters| (Name::DomainNotFound(&counters.path), counters.domain_not_found()));
        let of_service =
            OfService::ALL.map(|of_service| (Name::OfService(of_service), super::of_service(of_service, metrics)));
        let others = unknown.filter(|(_, count)| *count > 0).chain(of_service);
        let others = others.map(|(name, count)| Counted { name, count, is_quiet: false });
        write(no_garbage())?;
        let time = self.response_time(metrics);
        if self.is_mapped() {
            // A mapping may give any two of them the same name.
            let families = self.families(Stat::ALL.into_iter().flat_map(of_stat).chain(others), left);
            let time = time.filter(|time| families.keys().all(|name| !meet(name, time.name())));
            families.into_iter().try_for_each(|(name, series)| write(counters(name, series)))?;
            return time.map_or(Ok(()), write);
        }
        for stat in Stat::ALL {
            let families = self.families(of_stat(stat), left);
            families.into_iter().try_for_each(|(name, series)| write(counters(name, series)))?;
        }
        self.families(others, left).into_iter().try_for_each(|(name, series)| write(counters(name, series)))?;
        time.map_or(Ok(()), write)
    }

    /// Groups counters into families. A series is left out if all its paths are quiet.
    fn families<'p>(&self, counts: impl Iterator<Item = Counted<'p>>, left: &Left<'_>) -> BTreeMap<String, Series> {
        let mut families: BTreeMap<String, Series> = BTreeMap::new();
        for Counted { name, count, is_quiet } in counts {
            let Some(shown) = self.shown(name) else { continue };
            // The counts of departed paths are added with the first path present.
            let series = families.entry(shown.name.clone()).or_default();
            let sum = match series.counts.get_mut(&shown.labels) {
                Some(sum) => sum,
                None => {
                    let left = left.of(&shown);
                    series.counts.entry(shown.labels).or_insert(Sum { value: left, is_quiet: true })
                }
            };
            sum.value += count as f64 * shown.scale;
            sum.is_quiet &= is_quiet;
            if series.help.is_empty() {
                series.help = shown.help.to_owned();
            }
        }
        for series in families.values_mut() {
            series.counts.retain(|_, sum| !sum.is_quiet);
        }
        families.retain(|_, series| !series.counts.is_empty());
        families
    }

    fn response_time(&self, metrics: &Metrics) -> Option<MetricFamily> {
        let Shown { name, mut labels, help, scale, buckets } = self.shown(Name::ResponseTime)?;
        labels.retain(|(label, _)| label != "le");
        let scale = MILLISECONDS * scale;
        let counted = metrics.calls.seconds.histogram();
        let mut histogram = Histogram::default();
        histogram.set_sample_count(counted.get_sample_count());
        histogram.set_sample_sum(counted.get_sample_sum() * scale);
        let all =
            counted.get_bucket().iter().map(|counted| (counted.upper_bound() * scale, counted.cumulative_count()));
        let is_wanted = |bound: f64| buckets.is_none_or(|wanted| wanted.iter().any(|wanted| is_same(*wanted, bound)));
        let buckets = all.filter(|(bound, _)| is_wanted(*bound)).map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        let mut metric = Metric::default();
        metric.set_label(pairs(&labels));
        metric.set_histogram(histogram);
        Some(family(name, help.to_owned(), MetricType::HISTOGRAM, vec![metric]))
    }
}

/// Returns whether a counter's name is one of a histogram's names.
fn meet(counter: &str, histogram: &str) -> bool {
    counter.strip_prefix(histogram).is_some_and(|end| ["", "_bucket", "_count", "_sum"].contains(&end))
}

fn pairs(labels: &Labels) -> Vec<LabelPair> {
    let pair = |(name, value): &(String, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.clone());
        pair.set_value(value.clone());
        pair
    };
    labels.iter().map(pair).collect()
}

fn counters(name: String, Series { help, counts }: Series) -> MetricFamily {
    let metric = |(labels, sum): (Labels, Sum)| {
        let mut counter = Counter::default();
        counter.set_value(sum.value);
        let mut metric = Metric::default();
        metric.set_label(pairs(&labels));
        metric.set_counter(counter);
        metric
    };
    family(name, help, MetricType::COUNTER, counts.into_iter().map(metric).collect())
}

fn family(name: String, help: String, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name);
    family.set_help(help);
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Builds a metric that a panel of Envoy Gateway's dashboard queries.
fn no_garbage() -> MetricFamily {
    let mut metric = Metric::default();
    metric.set_gauge(Gauge::default());
    let help = "Always 0, because Tollgate has no garbage collector. Dashboards for envoyproxy/ratelimit use it.";
    family(NO_GARBAGE.to_owned(), help.to_owned(), MetricType::GAUGE, vec![metric])
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::check::Check;
    use crate::engine::descriptor::{Descriptor, Entry, Request};
    use crate::engine::plan::{Names, Plan, PlanOptions, WithoutStore};
    use crate::engine::rules::Rules;
    use crate::metrics::RuleMetrics;
    use crate::metrics::names::{Mapping, TimeUnit};
    use crate::sources::files::load::{self, LoadOptions, Sources};

    /// Merges all paths.
    const MERGING: &str = "
mappings:
- {match: 'rate_limit\\.shop\\..*\\.([a-z_]*)$', match_type: regex, name: of_shop, labels: {stat: $1}, scale: 2}
";

    #[derive(Clone, Debug)]
    enum Step {
        Ask([(&'static str, u8); 2]),
        /// Loads rules with these plans.
        Load(Vec<u8>),
        Pass(u64),
        Scrape,
    }

    fn step() -> impl Strategy<Value = Step> {
        let last = prop_oneof![(Just("user"), 0..6_u8), (Just("plan"), 0..4_u8)];
        prop_oneof![
            8 => (0..2_u8, last).prop_map(|(tenant, last)| Step::Ask([("tenant", tenant), last])),
            1 => proptest::sample::subsequence(vec![0, 1, 2, 3], 0..4).prop_map(Step::Load),
            1 => (0..90_u64).prop_map(Step::Pass),
            6 => Just(Step::Scrape),
        ]
    }

    /// Returns rules with a user by value, and with a separate rule for each plan, three levels deep.
    fn rules(plans: &[u8]) -> Rules {
        let limit = "rate_limit: {unit: year, requests_per_unit: 9}";
        let plans: String =
            plans.iter().map(|plan| format!("    - {{key: plan, value: 'plan-{plan}', {limit}}}\n")).collect();
        let user = format!("    - {{key: user, value_to_metric: true, {limit}}}\n");
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        let text = format!(
            "domain: shop\ndescriptors:\n- key: route\n  descriptors:\n  - key: tenant\n    descriptors:\n{user}{plans}"
        );
        std::fs::write(&file, text).unwrap();
        load::load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
    }

    fn ask(metrics: &Metrics, (of_rules, rules): &(RuleMetrics, Rules), entries: &[(&str, u8)]) {
        let entries =
            entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: format!("{key}-{value}").into() });
        let entries = std::iter::once(Entry { key: "route".into(), value: "a".into() }).chain(entries).collect();
        let descriptors = vec![Descriptor { entries, ask: Ask::Take(1), limit: None }];
        let request = Request { domain: "shop".into(), descriptors };
        let options = PlanOptions::default();
        let decision = Plan::new(&options, rules, &request, Names::default()).conclude_without_store(WithoutStore {
            partly: None,
            known: |_: &Check| None,
            decide: |_: &[Check]| unreachable!("it fails open"),
            retry_after_ms: 0,
        });
        metrics.record(of_rules, &request, &decision.unwrap());
    }

    fn scrape(metrics: &Metrics, minutes: u64) -> BTreeMap<String, f64> {
        let mut text = Vec::new();
        metrics.write_statistics(Duration::from_secs(60 * minutes), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
        samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    /// Returns the counters that fell between two scrapes.
    fn fallen(steps: &[Step], mapping: Option<Mapping>) -> Vec<String> {
        let metrics = Metrics::new(0.8).unwrap().with_values(NonZeroUsize::new(3).unwrap()).unwrap();
        let metrics = metrics.with_exposition(Exposition::new(&[], TimeUnit::Seconds, mapping));
        let in_force = |plans: &[u8]| {
            let rules = rules(plans);
            (metrics.of_rules(&rules), rules)
        };
        let (mut rules, mut minutes, mut before) = (in_force(&[0, 1, 2, 3]), 0, BTreeMap::new());
        let mut fallen = Vec::new();
        for step in steps {
            match step {
                Step::Ask(entries) => ask(&metrics, &rules, entries),
                Step::Load(plans) => {
                    rules = in_force(plans);
                    metrics.record_load(&rules.1, &rules.0);
                }
                Step::Pass(more) => minutes += more,
                Step::Scrape => {
                    let now = scrape(&metrics, minutes);
                    let less = before.iter().filter(|(name, value)| now.get(*name).is_some_and(|now| now < *value));
                    fallen.extend(less.map(|(name, value)| format!("{name} {value}, now {}", now[name])));
                    before = now;
                }
            }
        }
        fallen
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn no_counter_falls_when_a_path_is_evicted_or_quiet_or_its_rule_is_gone(
            steps in proptest::collection::vec(step(), 1..80),
        ) {
            prop_assert_eq!(fallen(&steps, None), [""; 0]);
            prop_assert_eq!(fallen(&steps, Some(Mapping::read(MERGING).unwrap())), [""; 0]);
        }
    }

    #[test]
    fn a_series_keeps_what_has_left_it_and_one_that_has_gone_begins_anew() {
        let metrics = Metrics::new(0.8).unwrap().with_values(NonZeroUsize::new(3).unwrap()).unwrap();
        let metrics = metrics.with_exposition(Exposition::default());
        let hits = |minutes| {
            let name = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"route\",key2=\"tenant\"}";
            scrape(&metrics, minutes).get(name).copied()
        };
        let all = rules(&[0, 1]);
        let all = (metrics.of_rules(&all), all);
        (0..50).for_each(|user| ask(&metrics, &all, &[("tenant", 0), ("user", user)]));
        assert_eq!(hits(0), Some(50.0));
        (0..7).for_each(|_| ask(&metrics, &all, &[("tenant", 0), ("plan", 0)]));
        ask(&metrics, &all, &[("tenant", 0), ("plan", 1)]);
        assert_eq!(hits(0), Some(58.0));
        let fewer = rules(&[1]);
        metrics.record_load(&fewer, &metrics.of_rules(&fewer));
        assert_eq!(hits(0), Some(58.0));
    }
}
