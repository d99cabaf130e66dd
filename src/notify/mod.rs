//! Notices: a limit with `notify` tells people when a counter reaches a share of it.
//!
//! A request only notes that a mark is reached, and only if this instance has not claimed the mark before; a task does
//! the rest. It claims the mark in the store, so that one instance of the fleet tells it, logs the notice, sends it to
//! the webhook, and then keeps the claim until the window is over. An instance that dies in between has claimed the
//! mark for [`CLAIM`] only: the next request beyond the mark makes another instance tell it. So a notice is told at
//! least once while requests come, and more than once only after such a failure.

mod notice;
mod reached;
mod seen;
mod webhook;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::poll_fn;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::engine::asked::Source;
use crate::engine::check::Key;
use crate::engine::decision::Limited;
use crate::engine::descriptor::Request;
use crate::engine::rules::Rules;
use crate::engine::rules::options::enforce::Share;
use crate::instant;
use crate::observe::redaction::Values;
use crate::observe::watch::{Observed, Observer, Watch};
use crate::shared::claims::{Claim, Claims};
use crate::telemetry::Throttle;
use notice::Notice;
use reached::Reached;
use seen::{Mark, Seen};

pub use webhook::{Secret, Webhook};

/// Number of notices that may wait. Further ones are dropped; a later request beyond the mark makes them anew.
const QUEUE: usize = 1_000;

/// Number of notices that are told at a time, so that a slow webhook delays few others.
const AT_A_TIME: usize = 8;

/// How long a mark is claimed while its notice is told. All attempts to tell it take less.
const CLAIM: Duration = Duration::from_secs(60);

const _: () = assert!(webhook::LONGEST.as_secs() < CLAIM.as_secs());

/// How long a mark is left alone after its notice was dropped, so that not each request of a flood makes one.
const DROPPED: Duration = Duration::from_secs(1);

/// The outcome of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was told: the webhook has taken it, or it was logged and there is no webhook.
    Told,
    /// It was told before, or another instance tells it.
    Repeated,
    /// It was dropped because too many were waiting.
    Queue,
    /// The store did not answer.
    Store,
    /// The webhook did not take it.
    Failed,
}

impl Fate {
    /// All outcomes.
    pub const ALL: [Fate; 5] = [Fate::Told, Fate::Repeated, Fate::Queue, Fate::Store, Fate::Failed];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Told => "told",
            Fate::Repeated => "repeated",
            Fate::Queue => "queue",
            Fate::Store => "store",
            Fate::Failed => "failed",
        }
    }
}

/// A callback that receives the outcome of each notice.
pub type OnNotice = Box<dyn Fn(Fate) + Send + Sync>;

/// Tells people of the marks that counters reach.
pub struct Notifier {
    claims: Claims,
    /// `None` if notices are only logged.
    webhook: Option<Webhook>,
    values: Values,
    seen: Seen,
    queue: mpsc::Sender<Waiting>,
    waiting: Mutex<mpsc::Receiver<Waiting>>,
    /// Number of notices that wait or are being told.
    open: watch::Sender<usize>,
    on_notice: OnNotice,
    /// One line for many failures of a kind.
    failures: Throttle<Fate>,
}

/// A notice that waits to be told.
struct Waiting {
    notice: Notice,
    mark: Mark,
    /// Names the mark in the store.
    name: String,
    /// When nobody needs to hear of the mark again.
    until: Instant,
    _open: Open,
}

/// Counts a notice that waits or is being told, until it is dropped.
struct Open(watch::Sender<usize>);

impl Open {
    fn new(open: &watch::Sender<usize>) -> Open {
        open.send_modify(|open| *open += 1);
        Open(open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Observer for Notifier {
    fn watch(self: Arc<Self>, rules: &Arc<Rules>) -> Arc<dyn Watch> {
        let is_idle = rules.limits().all(|(_, limit)| limit.config.options.notify.is_none());
        Arc::new(Marks { is_idle, notifier: self })
    }
}

/// Looks for marks that decisions by one set of rules reach.
struct Marks {
    /// No limit has marks.
    is_idle: bool,
    notifier: Arc<Notifier>,
}

impl Watch for Marks {
    fn decided(&self, &Observed { request, decision, .. }: &Observed<'_, '_>) {
        if !self.is_idle {
            decision.limits.iter().for_each(|limited| self.notifier.look(request, limited));
        }
    }
}

impl Notifier {
    /// Creates a notifier. [`Notifier::run`] tells what it notes.
    pub fn new(claims: Claims, webhook: Option<Webhook>, values: Values, on_notice: OnNotice) -> Notifier {
        let (queue, waiting) = mpsc::channel(QUEUE);
        Notifier {
            claims,
            webhook,
            values,
            seen: Seen::new(),
            queue,
            waiting: Mutex::new(waiting),
            open: watch::Sender::new(0),
            on_notice,
            failures: Throttle::default(),
        }
    }

    /// Notes each mark that the decision of a limit has reached, and that this instance has not claimed.
    fn look(&self, request: &Request, limited: &Limited<'_>) {
        let Source::Rule(_, limit) = limited.asked.source else { return };
        let Some(marks) = &limit.config.options.notify else { return };
        let Some(reached) = Reached::by(limited) else { return };
        let counter = &limited.asked.check.key;
        for share in reached.of(marks) {
            let (mark, now) = (self.seen.mark(counter, share), instant::now());
            if !self.seen.claim(mark, now, now + CLAIM) {
                continue;
            }
            let notice = Notice::new((request, limited), (reached, share), &self.values);
            let (name, until) = (name(counter, share), now + reached.lasts);
            let waiting = Waiting { notice, mark, name, until, _open: Open::new(&self.open) };
            if self.queue.try_send(waiting).is_err() {
                self.seen.keep(mark, now + DROPPED);
                (self.on_notice)(Fate::Queue);
                self.note(Fate::Queue, || "too many notices are waiting".to_owned());
            }
        }
    }

    /// Tells the notices that wait, forever.
    pub async fn run(self: Arc<Self>) {
        let mut waiting = self.waiting.lock().await;
        let notices = poll_fn(|context| waiting.poll_recv(context));
        pin!(notices)
            .for_each_concurrent(AT_A_TIME, |waiting| {
                let notifier = &self;
                async move { (notifier.on_notice)(notifier.tell(&waiting).await) }
            })
            .await;
    }

    /// Waits until all notices are told, for at most `timeout`, as the process is ending.
    pub async fn end(&self, timeout: Duration) {
        let mut open = self.open.subscribe();
        let none = open.wait_for(|open| *open == 0);
        if tokio::time::timeout(timeout, none).await.is_err() {
            tracing::warn!("the last notices could not be told in time: a later request makes them anew");
        }
        self.failures.flush();
    }

    async fn tell(&self, Waiting { notice, mark, name, until, .. }: &Waiting) -> Fate {
        let now = Instant::now();
        match self.claims.claim(name, &notice.id, CLAIM).await {
            Ok(Claim::Ours) => self.seen.keep(*mark, now + CLAIM),
            Ok(Claim::Taken(rest)) => {
                self.seen.keep(*mark, now + rest);
                return Fate::Repeated;
            }
            Err(error) => {
                self.seen.keep(*mark, now + DROPPED);
                self.note(Fate::Store, || error.to_string());
                return Fate::Store;
            }
        }
        notice.log();
        if let Some(webhook) = &self.webhook
            && let Err(why) = webhook.send(&notice.id, notice.body()).await
        {
            self.note(Fate::Failed, || why);
            return Fate::Failed;
        }
        let rest = until.saturating_duration_since(Instant::now());
        self.seen.keep(*mark, *until);
        // Without the store's reply, the mark may be told again when the claim ends.
        if let Err(error) = self.claims.keep(name, &notice.id, rest).await {
            self.note(Fate::Store, || error.to_string());
        }
        Fate::Told
    }

    fn note(&self, fate: Fate, why: impl FnOnce() -> String) {
        self.failures.log(fate, || {
            let (kind, why) = (fate.name(), why());
            move |times| tracing::warn!(kind, why, times, "a notice was not told")
        });
    }
}

/// Names a mark in the store: the same at every instance, whatever their versions.
fn name(counter: &Key, share: Share) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&share.hundredths().to_le_bytes());
    hasher.update(counter.as_str().as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::*;
    use crate::engine::algorithm::Ask;
    use crate::engine::clock::Clock;
    use crate::engine::decision::Decision;
    use crate::engine::descriptor::{Descriptor, Entry};
    use crate::engine::plan::{Names, Plan, PlanOptions};
    use crate::sources::files::load::{LoadOptions, Sources, load};
    use crate::store::memory::MemoryStore;

    /// The paused clock of the runtime, as the store's.
    #[derive(Clone)]
    struct Paused(Instant);

    /// Any time that is the start of a minute.
    const START_MS: u64 = 1_700_000_040_000;

    impl Clock for Paused {
        fn now(&self) -> u64 {
            START_MS + self.0.elapsed().as_millis() as u64
        }
    }

    fn rules(limit: &str) -> Arc<Rules> {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(&file, format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {{{limit}}}}}]\n"))
            .unwrap();
        Arc::new(load(&Sources { paths: vec![file.path().to_owned()] }, &LoadOptions::default()).unwrap().rules)
    }

    fn take(user: &str, hits: u64) -> Request {
        let entries = vec![Entry { key: "user".into(), value: user.into() }];
        let ask = Ask::take(hits).unwrap();
        Request { domain: "shop".into(), descriptors: vec![Descriptor { entries, ask, limit: None }] }
    }

    fn see(watch: &dyn Watch, request: &Request, decision: &Decision<'_>) {
        watch.decided(&Observed { request, decision, adjustments: None, request_id: None });
    }

    fn paused() -> tokio::runtime::Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    fn notifier() -> Arc<Notifier> {
        Arc::new(Notifier::new(Claims::Alone, None, Values::Plain, Box::new(|_| {})))
    }

    /// Tells what waits, and returns it.
    async fn told(notifier: &Notifier) -> Vec<Notice> {
        let (mut waiting, mut told) = (notifier.waiting.lock().await, Vec::new());
        while let Ok(waiting) = waiting.try_recv() {
            assert_eq!(notifier.tell(&waiting).await, Fate::Told);
            told.push(waiting.notice);
        }
        told
    }

    const LIMITS: [&str; 6] = [
        "unit: minute, requests_per_unit: 10, algorithm: fixed_window",
        "unit: hour, requests_per_unit: 10, algorithm: fixed_window, count_denied: false",
        "unit: minute, requests_per_unit: 10, algorithm: sliding_window",
        "unit: minute, requests_per_unit: 10, algorithm: sliding_log",
        "unit: minute, requests_per_unit: 10, burst: 7, algorithm: token_bucket",
        "unit: second, requests_per_unit: 10, algorithm: sliding_window",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Each mark that is reached is told once in its time: in a fixed window, once a window.
        #[test]
        fn each_mark_is_told_once_a_window(
            limit in prop::sample::select(&LIMITS[..]),
            steps in prop::collection::vec((0..40_000_u64, 0..2_u32, 1..13_u64), 1..60),
        ) {
            let rules = rules(&format!("{limit}, notify: {{at: [50%, 80%, 100%]}}"));
            let is_fixed = limit.contains("fixed_window");
            let shortest = if limit.contains("hour") { 3_600_000 } else { 60_000 };
            paused().block_on(async {
                let clock = Paused(Instant::now());
                let (store, notifier, options) =
                    (MemoryStore::new(clock.clone(), usize::MAX), notifier(), PlanOptions::default());
                let watch = Arc::clone(&notifier).watch(&rules);
                // When each mark of each counter was told last; in a fixed window, the end of that window.
                let mut last: HashMap<(u32, &str), u64> = HashMap::new();
                for (pause, user, hits) in steps {
                    advance(Duration::from_millis(pause)).await;
                    let (now, request) = (clock.now(), take(&user.to_string(), hits));
                    let plan = Plan::new(&options, &rules, &request, Names::default());
                    let verdicts = store.decide(plan.asked()).unwrap();
                    let decision: Decision<'_> = plan.conclude(&verdicts);
                    see(&*watch, &request, &decision);
                    let told: Vec<String> = told(&notifier).await.into_iter().map(|notice| notice.mark).collect();
                    let own = decision.limits[0].own().unwrap();
                    let capacity = decision.limits[0].asked.check.limit.capacity();
                    let used = (capacity - own.remaining) as f64 / capacity as f64;
                    let is_full = own.remaining == 0 || !own.allowed && hits <= capacity;
                    for (mark, share) in [("50%", 0.5), ("80%", 0.8), ("100%", 1.0)] {
                        let until = last.get(&(user, mark)).copied().unwrap_or(0);
                        let is_due = (used >= share - 1e-9 || is_full) && now >= until;
                        let is_told = told.contains(&mark.to_owned());
                        prop_assert_eq!(is_told, is_due, "{} at {}: {:?} {:?}", mark, now, own, told);
                        if is_due {
                            let window = now + if is_fixed { own.reset_after_ms } else { shortest };
                            last.insert((user, mark), window);
                        }
                    }
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_notices_and_a_later_request_makes_them_anew() {
        let rules = rules("unit: hour, requests_per_unit: 1, notify: {at: [100%]}");
        let (store, options) = (MemoryStore::new(Paused(Instant::now()), usize::MAX), PlanOptions::default());
        let dropped = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let counted = Arc::clone(&dropped);
        let on_notice: OnNotice = Box::new(move |fate| counted.lock().push(fate));
        let notifier = Arc::new(Notifier::new(Claims::Alone, None, Values::Plain, on_notice));
        let watch = Arc::clone(&notifier).watch(&rules);
        let ask = |user: usize| {
            let request = take(&user.to_string(), 1);
            let plan = Plan::new(&options, &rules, &request, Names::default());
            let verdicts = store.decide(plan.asked()).unwrap();
            let decision = plan.conclude(&verdicts);
            see(&*watch, &request, &decision);
        };
        (0..QUEUE + 3).for_each(ask);
        assert_eq!(*dropped.lock(), [Fate::Queue; 3]);
        ask(QUEUE + 1);
        assert_eq!(dropped.lock().len(), 3, "a flood does not try again at once");
        assert_eq!(told(&notifier).await.len(), QUEUE);
        assert_eq!(*notifier.open.borrow(), 0);
        advance(DROPPED).await;
        ask(QUEUE + 1);
        assert_eq!(told(&notifier).await.len(), 1);
    }

    #[test]
    fn a_name_in_the_store_is_the_same_in_every_version() {
        let rules = rules("unit: hour, requests_per_unit: 1, notify: {at: [100%, 5%]}");
        let (request, options) = (take("ann", 1), PlanOptions::default());
        let plan = Plan::new(&options, &rules, &request, Names::default());
        let key = &plan.asked()[0].check.key;
        let names = ["5%", "100%"].map(|share| name(key, Share::parse(share).unwrap()));
        insta::assert_debug_snapshot!((key.as_str(), names));
    }
}
