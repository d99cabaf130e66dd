//! The decision log: one JSON line for each limit that denied a request or would have, and for a sample of the others.
//!
//! Requests never wait for a line, because a separate thread writes them. Lines beyond the rate limit, the queue's
//! memory or the disk's space are dropped, and counted by cause.

mod file;
mod line;
pub mod told;
mod writer;

use std::fmt::Display;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::engine::asked::Source;
use crate::engine::decision::Status;
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;
use crate::observe::redaction::Values;
use crate::observe::watch::{Failed, Observed, Observer, Watch};
use line::{CallId, Context, Line, OfCall};
use writer::{Lines, Writer};

/// Options for selecting, showing and writing lines.
#[derive(Clone, Debug)]
pub struct Options {
    /// Destination of the lines.
    pub destination: Destination,
    /// The share of requests that have a line for every limit, denied or not, from 0 to 1.
    pub sample: f64,
    /// How the values of descriptors are shown.
    pub values: Values,
    /// The most lines in a second. Samples use at most half of them, and denials of each limit a tenth.
    pub lines_per_second: NonZeroU32,
}

/// The destination of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file that is rotated.
    File(Rotation),
}

/// A file and its rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Path of the newest file. Older files have the names `PATH.1`, `PATH.2` and so on.
    pub path: PathBuf,
    /// The most bytes in a file, unless the lines of a single request are longer.
    pub bytes: u64,
    /// Number of older files to keep.
    pub kept: u32,
}

/// The outcome of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The line was written.
    Written,
    /// The line was dropped because there were too many in this second.
    Rate,
    /// The line was dropped because there were too many denials of its limit in this second.
    Rule,
    /// The line was dropped because the queue was full.
    Queue,
    /// The line was dropped because it could not be written.
    Error,
}

impl Fate {
    /// All outcomes.
    pub const ALL: [Fate; 5] = [Fate::Written, Fate::Rate, Fate::Rule, Fate::Queue, Fate::Error];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Written => "written",
            Fate::Rate => "rate",
            Fate::Rule => "rule",
            Fate::Queue => "queue",
            Fate::Error => "error",
        }
    }
}

/// The part of all lines that one limit may write.
const PARTS: u32 = 10;

/// A callback that receives the outcome of each line.
pub type OnLine = Arc<dyn Fn(Fate) + Send + Sync>;

/// A decision log. It writes lines until it is dropped.
pub struct DecisionLog {
    sample: f64,
    values: Values,
    budget: Budget,
    writer: Writer,
    on_line: OnLine,
    instance: String,
    /// Number of calls that have lines.
    calls: AtomicU64,
}

impl Observer for DecisionLog {
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch> {
        Arc::new(LogOfRules { limits: LimitBudgets::new(rules, self.budget.lines.most), log: self })
    }
}

/// Logs decisions by the rules with these limits.
struct LogOfRules {
    limits: LimitBudgets,
    log: Arc<DecisionLog>,
}

impl Watch for LogOfRules {
    fn decided(&self, observed: &Observed<'_, '_>) {
        self.log.record(&self.limits, observed);
    }

    fn failed(&self, failed: &Failed<'_, '_>) {
        self.log.record_failed(&self.limits, failed);
    }
}

impl DecisionLog {
    /// Starts writing in a separate thread. Each line names the instance by this ID.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or if the system cannot create a thread.
    pub fn start(options: Options, instance: String, on_line: OnLine) -> io::Result<DecisionLog> {
        let Options { destination, sample, values, lines_per_second } = options;
        let writer = Writer::start(destination, Arc::clone(&on_line))?;
        let (budget, calls) = (Budget::new(lines_per_second), AtomicU64::new(0));
        Ok(DecisionLog { sample, values, budget, writer, on_line, instance, calls })
    }

    /// Logs the limits' answers to a request.
    fn record(&self, limits: &LimitBudgets, &Observed { request, decision, request_id, .. }: &Observed<'_, '_>) {
        let is_sampled = self.sample > 0.0 && fastrand::f64() < self.sample;
        let is_denied = decision.limits.iter().any(|limited| limited.over());
        let is_missing = decision.missing.is_some_and(|missing| missing.denies());
        let denies_unknown = is_missing || decision.statuses.iter().any(Status::is_unknown);
        if !is_sampled && !is_denied && !denies_unknown {
            return;
        }
        let context = Context { call: self.call(request, request_id), decision };
        let mut lines = Lines::default();
        for limited in &decision.limits {
            // Each limit that denies has its own line, so such a line is not weighted.
            let is_over = limited.over();
            if is_over || is_sampled {
                let (kind, share) = if is_over { (Kind::Denial, None) } else { (Kind::Sample, Some(self.sample)) };
                let budget = limits.of(limited.asked.source);
                self.add(&mut lines, (context.call.time, kind), budget, || context.of_limit(limited, share));
            }
        }
        for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
            if is_missing || status.is_unknown() {
                let kind = (context.call.time, Kind::Denial);
                self.add(&mut lines, kind, limits.of_unknown(), || Some(context.of_unknown(descriptor)));
            }
        }
        self.hand_over(lines);
    }

    /// Logs the limits for which a call failed.
    fn record_failed(&self, limits: &LimitBudgets, &Failed { request, asked, cause, request_id }: &Failed<'_, '_>) {
        let (call, mut lines) = (self.call(request, request_id), Lines::default());
        for asked in asked {
            let budget = limits.of(asked.source);
            self.add(&mut lines, (call.time, Kind::Denial), budget, || call.of_failed(asked, cause));
        }
        self.hand_over(lines);
    }

    /// Returns a new call with lines.
    fn call<'a>(&'a self, request: &'a Request, request_id: Option<&'a dyn Display>) -> OfCall<'a> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let id = CallId { instance: &self.instance, call, request_id };
        OfCall { time: SystemTime::now(), request, values: &self.values, id }
    }

    fn hand_over(&self, lines: Lines) {
        let count = lines.count;
        if count > 0 && !self.writer.take(lines) {
            (0..count).for_each(|_| (self.on_line)(Fate::Queue));
        }
    }

    /// Adds a line to those of its request, unless there are too many in this second: of all limits, or denials of its
    /// own. Samples represent the traffic only if each is as likely, so no limit has a part of them.
    fn add<'l>(
        &self,
        lines: &mut Lines,
        (time, kind): (SystemTime, Kind),
        limit: &LimitBudget,
        line: impl FnOnce() -> Option<Line<'l>>,
    ) {
        let fate = match kind {
            Kind::Denial if !limit.rate.admits(time) => Some(Fate::Rule),
            kind => (!self.budget.admits(kind, time)).then_some(Fate::Rate),
        };
        if let Some(fate) = fate {
            if kind == Kind::Denial {
                limit.suppressed.fetch_add(1, Ordering::Relaxed);
            }
            return (self.on_line)(fate);
        }
        let Some(mut line) = line() else { return };
        line.suppressed = limit.suppressed.swap(0, Ordering::Relaxed);
        if let Ok(line) = serde_json::to_vec(&line) {
            lines.push(&line);
        }
    }

    /// Writes the queued lines, for at most `timeout`.
    pub async fn end(&self, timeout: Duration) {
        if !self.writer.end(timeout).await {
            tracing::warn!("the last lines of the decision log could not be written in time: they are lost");
        }
    }
}

/// The reason for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The limit denies the request, or would.
    Denial,
    /// The line is a sample and represents others.
    Sample,
}

/// The lines that may be written in a second.
struct Budget {
    lines: Rate,
    /// At most half of all lines, so samples cannot displace denials.
    samples: Rate,
}

impl Budget {
    fn new(lines_per_second: NonZeroU32) -> Budget {
        let most = lines_per_second.get();
        Budget { lines: Rate::new(most), samples: Rate::new(most / 2) }
    }

    /// Counts a line and returns true, unless the rate is used up.
    fn admits(&self, kind: Kind, time: SystemTime) -> bool {
        (kind == Kind::Denial || self.samples.admits(time)) && self.lines.admits(time)
    }
}

/// The lines of each limit of a set of rules: first of the limits, in the order of their IDs, then of the limits that
/// requests bring along, in the order of the domains' IDs, then of what no rule knows.
struct LimitBudgets {
    budgets: Box<[LimitBudget]>,
    limits: usize,
}

/// The denials that one limit may write in a second, so that a flood at one limit does not displace those of others.
struct LimitBudget {
    rate: Rate,
    /// Number of lines left out since the last one.
    suppressed: AtomicU64,
}

impl LimitBudgets {
    fn new(rules: &Rules, lines_per_second: u32) -> LimitBudgets {
        let limits = rules.limits().count();
        let most = (lines_per_second / PARTS).max(1);
        let budget = |_| LimitBudget { rate: Rate::new(most), suppressed: AtomicU64::new(0) };
        LimitBudgets { budgets: (0..=limits + rules.domains()).map(budget).collect(), limits }
    }

    fn of(&self, source: Source<'_>) -> &LimitBudget {
        let place = match source {
            Source::Rule(_, limit) => limit.id,
            Source::Override(domain) => self.limits + domain.id,
        };
        self.budgets.get(place).unwrap_or(self.of_unknown())
    }

    fn of_unknown(&self) -> &LimitBudget {
        // There is always this last one.
        &self.budgets[self.budgets.len() - 1]
    }
}

/// The number of lines in this second.
struct Rate {
    most: u32,
    /// The second in the upper half, the number of lines in the lower half.
    counted: AtomicU64,
}

impl Rate {
    fn new(most: u32) -> Rate {
        Rate { most, counted: AtomicU64::new(0) }
    }

    /// Counts a line and returns true, unless the rate is used up.
    fn admits(&self, time: SystemTime) -> bool {
        let second =
            time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() & u64::from(u32::MAX));
        let count = |counted: u64| {
            let begun = if counted >> 32 == second { counted } else { second << 32 };
            ((begun as u32) < self.most).then_some(begun + 1)
        };
        self.counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::decision::Decision;
    use crate::engine::descriptor::{Descriptor, Entry};
    use crate::engine::plan::{Names, Plan, PlanOptions};
    use crate::engine::rules::Rules;
    use crate::sources::files::load::{self, LoadOptions, Sources};
    use crate::store::memory::MemoryStore;

    #[test]
    fn so_many_lines_are_admitted_in_each_second_and_no_more() {
        let rate = Rate::new(3);
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        for second in [7, 8, 1_000, 7] {
            let admitted = (0..10).filter(|line| rate.admits(at(second * 1_000 + line * 100))).count();
            assert_eq!(admitted, 3, "in second {second}");
        }
        assert!(!Rate::new(0).admits(at(7_000)));
    }

    #[test]
    fn lines_of_a_request_stay_together_whoever_else_writes() {
        const THREADS: usize = 4;
        const REQUESTS: usize = 300;
        let rules = rules(
            "domain: shop\ndescriptors: [{key: user, rate_limits: [{unit: day, requests_per_unit: 1}, \
             {unit: year, requests_per_unit: 1}]}]\n",
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let rotation = Rotation { path: path.clone(), bytes: u64::MAX, kept: 1 };
        let (destination, lines_per_second) = (Destination::File(rotation), NonZeroU32::MAX);
        let options = Options { destination, sample: 1.0, values: Values::Plain, lines_per_second };
        let log = start(options);
        let request = request(&[("user", "ann")]);
        let (options, store) = (PlanOptions::default(), MemoryStore::default());
        let limits = LimitBudgets::new(&rules, u32::MAX);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (rules, request, options, store, log) = (&rules, &request, &options, &store, &log);
                let limits = &limits;
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let plan = Plan::new(options, rules, request, Names::default());
                        let verdicts = store.decide(plan.asked()).unwrap();
                        let (decision, id) = (plan.conclude(&verdicts), format!("{thread}-{number}"));
                        log.record(limits, &observed(request, &decision, Some(&id)));
                    }
                });
            }
        });
        let lines = written(&log, &path);
        assert_eq!(lines.len(), 2 * THREADS * REQUESTS);
        let id = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["instance"], "toll-1");
            (line["request_id"].to_string(), line["call"].as_u64().unwrap())
        };
        assert!(lines.chunks(2).all(|pair| id(&pair[0]) == id(&pair[1])));
        let calls: HashSet<u64> = lines.iter().map(|line| id(line).1).collect();
        assert_eq!(calls.len(), THREADS * REQUESTS, "each call has a number of its own");
    }

    pub(super) fn rules(text: &str) -> Rules {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, text).unwrap();
        load::load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
    }

    fn request(entries: &[(&str, &str)]) -> Request {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        let descriptor = Descriptor { entries: entries.iter().map(entry).collect(), ask: Ask::Take(1), limit: None };
        Request { domain: "shop".into(), descriptors: vec![descriptor] }
    }

    fn observed<'d, 'a>(
        request: &'d Request,
        decision: &'d Decision<'a>,
        request_id: Option<&'d dyn Display>,
    ) -> Observed<'d, 'a> {
        Observed { request, decision, adjustments: None, request_id }
    }

    fn start(options: Options) -> DecisionLog {
        DecisionLog::start(options, "toll-1".to_owned(), Arc::new(|fate| assert_eq!(fate, Fate::Written))).unwrap()
    }

    /// Returns the lines of a log after ending it.
    fn written(log: &DecisionLog, path: &Path) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(log.end(Duration::from_secs(60)));
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns the lines of `requests` requests with these entries.
    fn lines(rules: &Rules, entries: &[(&str, &str)], requests: usize, (values, sample): (Values, f64)) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let rotation = Rotation { path: path.clone(), bytes: u64::MAX, kept: 1 };
        let lines_per_second = NonZeroU32::MAX;
        let options = Options { destination: Destination::File(rotation), sample, values, lines_per_second };
        let log = start(options);
        let request = request(entries);
        let (options, store) = (PlanOptions::default(), MemoryStore::default());
        let limits = LimitBudgets::new(rules, u32::MAX);
        for _ in 0..requests {
            let plan = Plan::new(&options, rules, &request, Names::default());
            let verdicts = store.decide(plan.asked()).unwrap();
            log.record(&limits, &observed(&request, &plan.conclude(&verdicts), None));
        }
        written(&log, &path)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn samples_take_half_of_the_lines_at_most_and_denials_what_is_left(
            most in 1_u32..40, samples in prop::collection::vec(any::<bool>(), 0..120),
        ) {
            let budget = Budget::new(NonZeroU32::new(most).unwrap());
            let (mut sampled, mut denied) = (0, 0);
            for is_sample in &samples {
                let (kind, count) =
                    if *is_sample { (Kind::Sample, &mut sampled) } else { (Kind::Denial, &mut denied) };
                *count += u32::from(budget.admits(kind, SystemTime::UNIX_EPOCH));
            }
            let denials = samples.iter().filter(|is_sample| !**is_sample).count() as u32;
            prop_assert!(sampled <= most / 2);
            prop_assert_eq!(denied, denials.min(most - sampled));
        }

        /// Includes values that rules contain: in paths, patterns, and the paths of limits without a name.
        #[test]
        fn values_that_are_hashed_or_hidden_are_nowhere_in_a_line(
            user in "[a-z0-9@.]{12,20}", path in "/[a-z0-9]{12,20}", is_named in any::<bool>(),
        ) {
            let name = if is_named { "name: odd, " } else { "" };
            let rules = rules(&format!(
                "
domain: shop
descriptors:
- key: path
  value: '{path}*'
  share_threshold: true
  descriptors:
  - key: user
    value: '{user}'
    rate_limits:
    - {{{name}unit: year, requests_per_unit: 1}}
    - {{unit: day, requests_per_unit: 1}}
"
            ));
            let longer = format!("{path}/1");
            let entries = [("path", longer.as_str()), ("user", user.as_str())];
            let lines = |values| lines(&rules, &entries, 3, (values, 1.0)).join("\n");
            let plain = lines(Values::Plain);
            prop_assert!(plain.contains(&user) && plain.contains(&longer), "{}", plain);
            for values in [Values::Hidden, Values::hashed("a key of sixteen")] {
                let told = lines(values);
                prop_assert_eq!(told.lines().count(), 6);
                prop_assert!(!told.contains(&user) && !told.contains(&path), "{}", told);
            }
        }
    }

    #[test]
    fn a_sample_has_about_its_share_and_says_it_and_every_denial_stands_for_itself() {
        fastrand::seed(1);
        let rules =
            rules("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2000}}]\n");
        let lines = lines(&rules, &[("user", "ann")], 2_100, (Values::Plain, 0.1));
        let (mut sampled, mut denied) = (0, 0);
        for line in lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            match line["outcome"].as_str().unwrap() {
                "allowed" => sampled += u32::from(line["sampled"] == true && line["sample_share"] == 0.1),
                "denied" => denied += u32::from(line["sampled"] == false && line["sample_share"].is_null()),
                other => panic!("{other}"),
            }
        }
        assert_eq!(denied, 100);
        assert!((150..250).contains(&sampled) && lines.len() as u32 == sampled + denied, "{sampled}");
    }
}
