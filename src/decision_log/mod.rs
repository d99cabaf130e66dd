//! The decision log: one JSON line for each limit that denied a request or would have, and for a sample of all others.
//!
//! No request waits for a line: a thread writes them. What is too much for the rate, for the memory in which lines
//! wait, or for the disk is dropped, and counted by cause.

mod file;
mod line;
mod writer;

use std::fmt::Display;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::decision::{Decision, Status};
use crate::descriptor::Request;
use crate::values::Values;
use line::{Context, Line};
use writer::{Lines, Writer};

/// How lines are chosen, shown and written.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where they go.
    pub destination: Destination,
    /// The share of requests of which every limit has a line, denied or not: from 0 to 1.
    pub sample: f64,
    /// How the values of descriptors are shown.
    pub values: Values,
    /// The most in a second, of which samples take half at most.
    pub lines_per_second: NonZeroU32,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To standard output.
    Stdout,
    /// To a file that is rotated.
    File(Rotation),
}

/// A file, and when another begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Of the newest; those of before are called `PATH.1`, `PATH.2` and so on.
    pub path: PathBuf,
    /// A file has so many bytes at most, unless the lines of one request are longer.
    pub bytes: u64,
    /// So many of those of before are kept.
    pub kept: u32,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is written.
    Written,
    /// It was dropped: there were too many in that second.
    Rate,
    /// It was dropped: too many waited.
    Queue,
    /// It was dropped: it could not be written.
    Error,
}

impl Fate {
    /// Each of them.
    pub const ALL: [Fate; 4] = [Fate::Written, Fate::Rate, Fate::Queue, Fate::Error];

    /// The word that metrics have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Written => "written",
            Fate::Rate => "rate",
            Fate::Queue => "queue",
            Fate::Error => "error",
        }
    }
}

/// Is called with what has become of a line.
pub type OnLine = Arc<dyn Fn(Fate) + Send + Sync>;

/// Writes lines for as long as it is kept.
pub struct DecisionLog {
    sample: f64,
    values: Values,
    budget: Budget,
    writer: Writer,
    on_line: OnLine,
}

impl DecisionLog {
    /// Begins to write, on a thread of its own.
    ///
    /// # Errors
    /// Where the file cannot be opened, or the system gives no thread.
    pub fn start(options: Options, on_line: OnLine) -> io::Result<DecisionLog> {
        let Options { destination, sample, values, lines_per_second } = options;
        let writer = Writer::start(destination, Arc::clone(&on_line))?;
        Ok(DecisionLog { sample, values, budget: Budget::new(lines_per_second), writer, on_line })
    }

    /// Notes what the limits have said of a request. It has an id where the caller names one.
    pub fn record(&self, request: &Request, decision: &Decision<'_>, request_id: Option<&dyn Display>) {
        let is_sampled = self.sample > 0.0 && fastrand::f64() < self.sample;
        let is_denied = decision.limits.iter().any(|limited| limited.over());
        let denies_unknown = decision.statuses.iter().any(Status::is_unknown);
        if !is_sampled && !is_denied && !denies_unknown {
            return;
        }
        let time = SystemTime::now();
        let context = Context { time, request, decision, values: &self.values, request_id };
        let mut lines = Lines::default();
        for limited in &decision.limits {
            // Each limit that denies has its line, so such a line stands for itself alone.
            let is_over = limited.over();
            if is_over || is_sampled {
                let (kind, share) = if is_over { (Kind::Denial, None) } else { (Kind::Sample, Some(self.sample)) };
                self.add(&mut lines, time, kind, || context.of_limit(limited, share));
            }
        }
        for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
            if status.is_unknown() {
                self.add(&mut lines, time, Kind::Denial, || Some(context.of_unknown(descriptor)));
            }
        }
        let count = lines.count;
        if count > 0 && !self.writer.take(lines) {
            (0..count).for_each(|_| (self.on_line)(Fate::Queue));
        }
    }

    /// Adds a line to those of its request, unless there are too many in this second.
    fn add<'l>(&self, lines: &mut Lines, time: SystemTime, kind: Kind, line: impl FnOnce() -> Option<Line<'l>>) {
        if !self.budget.admits(kind, time) {
            return (self.on_line)(Fate::Rate);
        }
        if let Some(line) = line().and_then(|line| serde_json::to_vec(&line).ok()) {
            lines.push(&line);
        }
    }

    /// Writes what waits, for so long at most.
    pub async fn end(&self, timeout: Duration) {
        if !self.writer.end(timeout).await {
            tracing::warn!("the last lines of the decision log could not be written in time: they are lost");
        }
    }
}

/// What a line is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The limit denies, or would.
    Denial,
    /// It stands for others that have no line.
    Sample,
}

/// What may be written in a second.
struct Budget {
    lines: Rate,
    /// At most half of all, so that samples do not push out denials.
    samples: Rate,
}

impl Budget {
    fn new(lines_per_second: NonZeroU32) -> Budget {
        let most = lines_per_second.get();
        Budget { lines: Rate::new(most), samples: Rate::new(most / 2) }
    }

    /// Counts one more line, unless there are as many as may be.
    fn admits(&self, kind: Kind, time: SystemTime) -> bool {
        (kind == Kind::Denial || self.samples.admits(time)) && self.lines.admits(time)
    }
}

/// How many lines there have been in this second.
struct Rate {
    most: u32,
    /// The second, in the upper half, and the lines.
    counted: AtomicU64,
}

impl Rate {
    fn new(most: u32) -> Rate {
        Rate { most, counted: AtomicU64::new(0) }
    }

    /// Counts one more, unless there are as many as may be.
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
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::algorithm::Ask;
    use crate::descriptor::{Descriptor, Entry};
    use crate::plan::{Names, Plan, PlanOptions};
    use crate::rules::Rules;
    use crate::rules::load::{self, LoadOptions, Sources};
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
        let log = DecisionLog::start(options, Arc::new(|fate| assert_eq!(fate, Fate::Written))).unwrap();
        let request = request(&[("user", "ann")]);
        let (options, store) = (PlanOptions::default(), MemoryStore::default());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (rules, request, options, store, log) = (&rules, &request, &options, &store, &log);
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let plan = Plan::new(options, rules, request, Names::default());
                        let verdicts = store.decide(plan.asked()).unwrap();
                        log.record(request, &plan.conclude(&verdicts), Some(&format!("{thread}-{number}")));
                    }
                });
            }
        });
        let lines = written(&log, &path);
        let id = |line: &String| serde_json::from_str::<Value>(line).unwrap()["request_id"].clone();
        assert_eq!(lines.len(), 2 * THREADS * REQUESTS);
        assert!(lines.chunks(2).all(|pair| id(&pair[0]) == id(&pair[1])));
    }

    fn rules(text: &str) -> Rules {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, text).unwrap();
        load::load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules
    }

    fn request(entries: &[(&str, &str)]) -> Request {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        let descriptor = Descriptor { entries: entries.iter().map(entry).collect(), ask: Ask::Take(1), limit: None };
        Request { domain: "shop".into(), descriptors: vec![descriptor] }
    }

    /// The lines of a log that ends.
    fn written(log: &DecisionLog, path: &Path) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(log.end(Duration::from_secs(60)));
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    /// The lines of so many requests of these entries.
    fn lines(rules: &Rules, entries: &[(&str, &str)], requests: usize, (values, sample): (Values, f64)) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("decisions");
        let rotation = Rotation { path: path.clone(), bytes: u64::MAX, kept: 1 };
        let lines_per_second = NonZeroU32::MAX;
        let options = Options { destination: Destination::File(rotation), sample, values, lines_per_second };
        let log = DecisionLog::start(options, Arc::new(|fate| assert_eq!(fate, Fate::Written))).unwrap();
        let request = request(entries);
        let (options, store) = (PlanOptions::default(), MemoryStore::default());
        for _ in 0..requests {
            let plan = Plan::new(&options, rules, &request, Names::default());
            let verdicts = store.decide(plan.asked()).unwrap();
            log.record(&request, &plan.conclude(&verdicts), None);
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

        /// Also where rules spell them out, in paths, patterns and the paths of limits without a name.
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
