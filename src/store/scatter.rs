//! Decides a request with counters on several nodes.
//!
//! Each node decides its part as one group. All nodes are asked at the same time, and each charges what passes there.
//! If the request as a whole is denied, the charges are taken back on the nodes that made them. Meanwhile another
//! request may be denied too early, but too much is never admitted.
//!
//! - A quota denies only together with all other quotas of the request, which no single node sees. Nodes therefore
//!   decide quotas in shadow mode, and this module counts the votes.
//! - If a node does not answer, the verdicts of the others are kept ([`StoreError::Partly`]). If one of them denies the
//!   request, the charges of the others are taken back; if none does, the caller decides what happens to it.
//! - A cancelled caller does not interrupt the request: a task completes it.
//! - A charge stays if it was not taken back within [`TAKE_BACK_TIME`], or if the node failed during the attempt: in
//!   that case it is unknown whether the node took it back, and nothing is taken back twice.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::engine::check::group::{self, Votes};
use crate::engine::check::{Check, CheckVerdict, Partly, StoreError, Verdicts};
use crate::engine::descriptor::Role;

/// How long to retry taking back a charge on an unavailable node.
const TAKE_BACK_TIME: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Nodes, each of which decides the checks of the counters that it holds.
pub trait Nodes: Send + Sync + 'static {
    /// One node.
    type Node: PartialEq + Send + Sync + 'static;

    /// Returns the node that holds the counters of this check.
    fn holder(&self, check: &Check) -> Self::Node;

    /// Asks one node to decide these checks as one group, until `deadline`.
    ///
    /// # Errors
    /// As [`Store::check`](super::Store::check).
    fn ask<C: Borrow<Check> + Sync>(
        &self,
        node: &Self::Node,
        checks: &[C],
        deadline: Instant,
    ) -> impl Future<Output = Result<Verdicts, StoreError>> + Send;
}

/// Decides `checks` as one group, whichever nodes hold their counters.
///
/// # Errors
/// As [`Store::check`](super::Store::check), and [`StoreError::Partly`].
pub async fn decide<N: Nodes, C: Borrow<Check> + Sync>(
    nodes: &Arc<N>,
    checks: &[C],
    deadline: Instant,
) -> Result<Verdicts, StoreError> {
    let Some(first) = checks.first() else { return Ok(Verdicts::new()) };
    let node = nodes.holder(first.borrow());
    if checks[1..].iter().all(|check| nodes.holder(check.borrow()) == node) {
        return nodes.ask(&node, checks, deadline).await;
    }
    let request = Request::split(&**nodes, checks);
    let (answer, answered) = oneshot::channel();
    tokio::spawn(request.run(Arc::clone(nodes), deadline, answer));
    let ended = || StoreError::Connection("the task that asked several nodes has ended".into());
    answered.await.unwrap_or_else(|_| Err(ended()))
}

/// A request, split into parts.
struct Request<N> {
    parts: Vec<Part<N>>,
    /// For each check in order: its part, its place in that part, and the effect of its denial.
    order: SmallVec<[(usize, usize, Role); 4]>,
}

/// The part of a request that one node decides.
struct Part<N> {
    node: N,
    checks: Vec<Check>,
}

/// The reply of a node to its part.
type Reply = Result<Verdicts, StoreError>;

impl<N: PartialEq + Send + Sync + 'static> Request<N> {
    fn split<C: Borrow<Check>>(nodes: &impl Nodes<Node = N>, checks: &[C]) -> Request<N> {
        let mut parts: Vec<Part<N>> = Vec::with_capacity(2);
        let mut order = SmallVec::with_capacity(checks.len());
        for check in checks.iter().map(Borrow::borrow) {
            let node = nodes.holder(check);
            let part = parts.iter().position(|part| part.node == node).unwrap_or_else(|| {
                parts.push(Part { node, checks: Vec::new() });
                parts.len() - 1
            });
            let checks = &mut parts[part].checks;
            order.push((part, checks.len(), check.role));
            let role = if check.role == Role::Quota { Role::Shadow } else { check.role };
            checks.push(Check { role, ..check.clone() });
        }
        Request { parts, order }
    }

    /// Asks the nodes, answers by `deadline`, and takes back charges if necessary.
    async fn run(
        self,
        nodes: Arc<impl Nodes<Node = N>>,
        deadline: Instant,
        answer: oneshot::Sender<Result<Verdicts, StoreError>>,
    ) {
        let asked = self.parts.iter().map(|part| nodes.ask(&part.node, &part.checks, deadline));
        let mut replies: Vec<Reply> = join_all(asked).await;
        if !self.is_denied(&replies) {
            // The caller may have been cancelled.
            let _ = answer.send(self.answer(&replies, false));
            return;
        }
        let owed: Vec<Vec<(usize, Check)>> =
            self.parts.iter().zip(&replies).map(|(part, reply)| part.owed(reply)).collect();
        let returns = self.parts.iter().zip(&owed).map(|(part, owed)| part.take_back(&*nodes, owed));
        let mut returns = std::pin::pin!(join_all(returns));
        tokio::select! {
            biased;
            returned = &mut returns => {
                for ((reply, owed), returned) in replies.iter_mut().zip(&owed).zip(returned) {
                    note_returned(reply, owed, returned);
                }
                let _ = answer.send(self.answer(&replies, true));
            }
            () = sleep_until(deadline) => {
                let _ = answer.send(self.answer(&replies, true));
                returns.await;
            }
        }
    }

    /// Returns the verdicts in the order of the request's checks, with `None` for those that are undecided.
    fn verdicts(&self, replies: &[Reply]) -> Verdicts {
        let of_check =
            |(part, place, _): &(usize, usize, Role)| verdicts_of(&replies[*part]).get(*place).copied().flatten();
        self.order.iter().map(of_check).collect()
    }

    /// Returns whether the replies deny the request.
    fn is_denied(&self, replies: &[Reply]) -> bool {
        let mut votes = Votes::default();
        for ((part, place, role), verdict) in self.order.iter().zip(self.verdicts(replies)) {
            votes.add(*role, &self.parts[*part].checks[*place], verdict.is_some_and(|verdict| !verdict.allowed()));
        }
        votes.deny()
    }

    fn answer(&self, replies: &[Reply], denied: bool) -> Result<Verdicts, StoreError> {
        let decided = self.verdicts(replies);
        let errors = || replies.iter().filter_map(|reply| reply.as_ref().err().map(StoreError::without_verdicts));
        // The request as a whole changed nothing only if no part did.
        let changes = errors().find(|error| !error.changes_nothing());
        let Some(error) = changes.or(errors().next()).cloned() else { return Ok(decided) };
        if decided.iter().all(Option::is_none) {
            return Err(error);
        }
        Err(StoreError::Partly(Box::new(Partly { decided, denied, error })))
    }
}

impl<N: Send + Sync> Part<N> {
    /// Returns the charges to take back if the request is denied: the place of each check, and the check that takes it
    /// back. A part that denied by itself has charged nothing.
    fn owed(&self, reply: &Reply) -> Vec<(usize, Check)> {
        let decided = || {
            let verdicts = self.checks.iter().zip(verdicts_of(reply)).enumerate();
            verdicts.filter_map(|(place, (check, verdict))| Some((place, check, verdict.as_ref()?)))
        };
        if decided().any(|(_, check, verdict)| check.role == Role::Enforced && !verdict.allowed()) {
            return Vec::new();
        }
        decided().filter_map(|(place, check, verdict)| Some((place, group::take_back(check, verdict)?))).collect()
    }

    /// Takes the charges back, once. Retries for a while only if the node is known not to have received the question.
    async fn take_back(&self, nodes: &impl Nodes<Node = N>, owed: &[(usize, Check)]) -> Verdicts {
        let mut returned: Verdicts = owed.iter().map(|_| None).collect();
        let (end, mut pause) = (Instant::now() + TAKE_BACK_TIME, PAUSE.0);
        loop {
            let places: Vec<usize> = (0..owed.len()).filter(|place| returned[*place].is_none()).collect();
            if places.is_empty() {
                return returned;
            }
            let checks: Vec<&Check> = places.iter().map(|place| &owed[*place].1).collect();
            let reply = nodes.ask(&self.node, &checks, end).await;
            places.iter().zip(verdicts_of(&reply)).for_each(|(place, verdict)| returned[*place] = *verdict);
            match reply.as_ref().map_err(StoreError::without_verdicts) {
                Ok(_) => return returned,
                Err(error) if error.changes_nothing() && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(error) => {
                    tracing::debug!(%error, "what a denied request was charged may stay charged");
                    return returned;
                }
            }
        }
    }
}

/// Returns the verdicts in a reply.
fn verdicts_of(reply: &Reply) -> &[Option<CheckVerdict>] {
    match reply {
        Ok(verdicts) => verdicts,
        Err(error) => error.partly().map_or(&[], |partly| &partly.decided),
    }
}

/// Replaces the remaining hits by those left after charges were taken back.
fn note_returned(reply: &mut Reply, owed: &[(usize, Check)], returned: Verdicts) {
    let verdicts = match reply {
        Ok(verdicts) => verdicts,
        Err(StoreError::Partly(partly)) => &mut partly.decided,
        Err(_) => return,
    };
    for ((place, _), after) in owed.iter().zip(returned) {
        if let (Some(Some(verdict)), Some(after)) = (verdicts.get_mut(*place), after) {
            verdict.own = verdict.own.as_left(after.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicU64, Ordering};

    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::task::yield_now;

    use super::*;
    use crate::engine::algorithm::{Algorithm, Ask, Limit, Options};
    use crate::engine::check::{Key, Occasion, Origin, Recorded};
    use crate::engine::clock::Clock;
    use crate::engine::descriptor::Entry;
    use crate::engine::usage::page::Scope;
    use crate::engine::usage::{Added, Period, Time, Totals, Usage};
    use crate::store::Store as _;
    use crate::store::memory::MemoryPages as _;
    use crate::store::memory::MemoryStore;

    /// A clock that does not move unless it is set.
    #[derive(Clone, Default)]
    struct Still(Arc<AtomicU64>);

    impl Clock for Still {
        fn now(&self) -> u64 {
            1_784_000_000_000 + self.0.load(Ordering::Relaxed)
        }
    }

    /// The outcome of one question to a node.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        Answered,
        /// The node is known not to have received it.
        Down,
        /// The connection broke before the node received it.
        LostBefore,
        /// The connection broke after the node decided.
        LostAfter,
    }

    /// Nodes in memory. The name of a counter determines its node.
    struct Simulated {
        clock: Still,
        nodes: Vec<MemoryStore<Still>>,
        /// Outcomes of the next questions; once they are used up, every question is answered.
        fates: Mutex<Vec<Fate>>,
        /// Whether other tasks run while a question travels.
        yields: bool,
        /// How long a question takes.
        step_ms: AtomicU64,
    }

    impl Simulated {
        fn new(nodes: usize, yields: bool) -> Arc<Simulated> {
            let clock = Still::default();
            let store = |_| MemoryStore::new(clock.clone(), 1 << 20).keeping_usage();
            let nodes = (0..nodes).map(store).collect();
            Arc::new(Simulated { clock, nodes, fates: Mutex::default(), yields, step_ms: AtomicU64::new(1) })
        }

        /// Returns the remaining hits of a counter.
        async fn left(&self, key: usize, limit: Limit) -> u64 {
            let check = check(key, limit, Ask::Peek, Role::Enforced);
            let verdicts = self.nodes[self.holder(&check)].check(&[check], Instant::now()).await.unwrap();
            verdicts[0].unwrap().own.remaining
        }
    }

    impl Simulated {
        /// Returns the recorded usage of a counter, over all pages.
        fn recorded(&self, key: usize, limit: Limit) -> Totals {
            let check = check(key, limit, Ask::Peek, Role::Enforced);
            let everything = Scope { domain: None, from: Time(0), to: Time::END };
            let (pages, _) = self.nodes[self.holder(&check)].pages(&everything, 0, usize::MAX);
            let own = pages.iter().filter(|page| page.name.starts_with(check.key.as_str()));
            own.flat_map(|page| &page.records).fold(Totals::default(), |sum, (_, record)| sum.plus(*record))
        }
    }

    impl Nodes for Simulated {
        type Node = usize;

        fn holder(&self, check: &Check) -> usize {
            let number: usize =
                check.key.as_str().bytes().filter(u8::is_ascii_digit).map(usize::from).next().unwrap_or(0);
            number % NonZeroUsize::new(self.nodes.len()).unwrap()
        }

        async fn ask<C: Borrow<Check> + Sync>(
            &self,
            node: &usize,
            checks: &[C],
            deadline: Instant,
        ) -> Result<Verdicts, StoreError> {
            let fate = self.fates.lock().pop().unwrap_or(Fate::Answered);
            if self.yields {
                yield_now().await;
            }
            let lost = || StoreError::Connection("it broke".into());
            match fate {
                Fate::Down => return Err(StoreError::Down("it is down".into())),
                Fate::LostBefore => return Err(lost()),
                Fate::Answered | Fate::LostAfter => {}
            }
            let verdicts = self.nodes[*node].check(checks, deadline).await;
            self.clock.0.fetch_add(self.step_ms.load(Ordering::Relaxed), Ordering::Relaxed);
            if self.yields {
                yield_now().await;
            }
            if fate == Fate::LostAfter { Err(lost()) } else { verdicts }
        }
    }

    /// Two stores of several nodes each, to test nodes that consist of nodes.
    struct Nested([Arc<Simulated>; 2]);

    impl Nested {
        fn new() -> Arc<Nested> {
            Arc::new(Nested([Simulated::new(3, false), Simulated::new(2, false)]))
        }

        fn of(&self, key: usize, limit: Limit) -> &Arc<Simulated> {
            &self.0[self.holder(&check(key, limit, Ask::Peek, Role::Enforced))]
        }
    }

    impl Nodes for Nested {
        type Node = usize;

        fn holder(&self, check: &Check) -> usize {
            usize::from(check.descriptor >= KEYS / 2)
        }

        async fn ask<C: Borrow<Check> + Sync>(
            &self,
            node: &usize,
            checks: &[C],
            deadline: Instant,
        ) -> Result<Verdicts, StoreError> {
            Box::pin(decide(&self.0[*node], checks, deadline)).await
        }
    }

    fn check(key: usize, limit: Limit, ask: Ask, role: Role) -> Check {
        let entries = [Entry { key: "k".into(), value: key.to_string().into() }];
        let key_of = Key::new("", "d", &entries, |_| None, &limit, Origin::Rule);
        Check { role, descriptor: key, ..Check::new(key_of, limit, ask) }
    }

    const KEYS: usize = 6;

    fn limit_of(algorithm: Algorithm, count_denied: bool) -> Limit {
        let options = Options { count_denied: Some(count_denied), ..Options::default() };
        Limit::new(algorithm, 12, Duration::from_secs(366 * 86_400), options).unwrap()
    }

    /// Algorithms that keep all hits for the duration of a test.
    const LASTING: &[Algorithm] = &[Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

    fn limits() -> impl Strategy<Value = Limit> {
        (prop::sample::select(LASTING), any::<bool>()).prop_map(|(it, denied)| limit_of(it, denied))
    }

    type Asked = Vec<(usize, Ask, Role)>;

    fn asked() -> impl Strategy<Value = Asked> {
        let ask = prop_oneof![6 => (1..4_u64).prop_map(Ask::Take), 1 => Just(Ask::Peek), 1 => Just(Ask::Refund(1))];
        let role = prop_oneof![5 => Just(Role::Enforced), 2 => Just(Role::Quota), 1 => Just(Role::Shadow)];
        // No counter twice, to tell the charges of each apart.
        prop::collection::btree_map(0..KEYS, (ask, role), 1..5)
            .prop_map(|asked| asked.into_iter().map(|(key, (ask, role))| (key, ask, role)).collect())
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![
            6 => Just(Fate::Answered),
            1 => Just(Fate::Down),
            1 => Just(Fate::LostBefore),
            1 => Just(Fate::LostAfter),
        ]
    }

    fn run<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(future)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    proptest! {
        /// One request after the other, with no failures: several nodes answer and charge as one node would.
        #[test]
        fn several_nodes_decide_as_one_does(
            limits in prop::collection::vec(limits(), KEYS),
            requests in prop::collection::vec(asked(), 1..40),
        ) {
            run(async {
                let (several, one) = (Simulated::new(3, false), Simulated::new(1, false));
                for request in &requests {
                    let checks: Vec<Check> =
                        request.iter().map(|(key, ask, role)| check(*key, limits[*key], *ask, *role)).collect();
                    let said = |verdicts: Verdicts| -> Vec<(bool, u64)> {
                        verdicts.iter().flatten().map(|it| (it.own.allowed, it.own.remaining)).collect()
                    };
                    let by_several = said(decide(&several, &checks, soon()).await.unwrap());
                    let by_one = said(decide(&one, &checks, soon()).await.unwrap());
                    assert_eq!(by_several, by_one, "{request:?}");
                }
            });
        }

        /// Whatever fails, each counter is charged once or not at all, and never for a request that is known to be
        /// denied unless something failed.
        #[test]
        fn whatever_breaks_nothing_is_charged_twice(
            limits in prop::collection::vec(limits(), KEYS),
            requests in prop::collection::vec(
                (asked(), [0; 2].map(|_| prop::collection::vec(fate(), 0..8))),
                1..40,
            ),
        ) {
            run(async {
                let nodes = Nested::new();
                for (request, fates) in &requests {
                    let mut before = Vec::new();
                    for (key, limit) in limits.iter().enumerate() {
                        before.push(nodes.of(key, *limit).left(key, *limit).await);
                    }
                    nodes.0.iter().zip(fates).for_each(|(nodes, fates)| nodes.fates.lock().clone_from(fates));
                    let checks: Vec<Check> =
                        request.iter().map(|(key, ask, role)| check(*key, limits[*key], *ask, *role)).collect();
                    let answer = decide(&nodes, &checks, soon()).await;
                    // After this time no more charges are taken back.
                    sleep(TAKE_BACK_TIME * 2).await;
                    nodes.0.iter().for_each(|nodes| nodes.fates.lock().clear());
                    let (decided, error) = match &answer {
                        Ok(verdicts) => (&verdicts[..], false),
                        Err(error) => (error.partly().map_or(&[][..], |partly| &partly.decided), true),
                    };
                    let broke = fates.iter().flatten().any(|fate| *fate != Fate::Answered);
                    prop_assert!(!error || broke);
                    for (key, limit) in limits.iter().enumerate() {
                        let after = nodes.of(key, *limit).left(key, *limit).await;
                        let taken = before[key] as i64 - after as i64;
                        let Some(place) = request.iter().position(|(asked, ..)| *asked == key) else {
                            prop_assert_eq!(taken, 0, "nobody has asked for it");
                            continue;
                        };
                        let hits = request[place].1.hits();
                        let counts_denied = limit.count_denied();
                        // A limit that counts denials stops at its number, and a refund stops at zero.
                        let at_most = hits.min(before[key] as i64);
                        let (low, high) = if hits < 0 { (hits, 0) } else { (0, at_most) };
                        prop_assert!((low..=high).contains(&taken), "{taken} of {hits}");
                        prop_assert!(
                            hits < 0 || counts_denied || taken == 0 || taken == hits,
                            "a part of what was asked was taken: {taken} of {hits}"
                        );
                        let passed = decided.get(place).copied().flatten().is_some_and(|it| it.own.allowed);
                        let partly = answer.as_ref().err().and_then(StoreError::partly);
                        let partly_denied = partly.is_some_and(|partly| partly.denied);
                        let denied = answer.as_ref().is_ok_and(|_| is_denied(&checks, decided)) || partly_denied;
                        // If denials count, there may be more to refund than the remaining hits show.
                        if passed && !denied && (hits > 0 || !counts_denied) {
                            // At most the hits that were taken are refunded.
                            prop_assert_eq!(taken, hits.max(before[key] as i64 - 12), "it passed");
                        }
                        if denied && !broke && !counts_denied && hits > 0 {
                            prop_assert_eq!(taken, 0, "it was denied");
                        }
                    }
                }
                Ok(())
            })?;
        }

        /// Whatever fails, the records agree with the charges; if nothing fails, also with the number of passed
        /// requests.
        #[test]
        fn what_is_recorded_is_what_was_charged(
            limits in prop::collection::vec(limits(), KEYS),
            requests in prop::collection::vec((asked(), prop::collection::vec(fate(), 0..6)), 1..40),
            breaks in any::<bool>(), step_ms in prop_oneof![Just(1), Just(3_600_000_u64)],
        ) {
            run(async {
                let nodes = Simulated::new(3, false);
                // Taking a charge back may be recorded on a later page.
                nodes.step_ms.store(step_ms, Ordering::Relaxed);
                let mut expected = [Totals::default(); KEYS];
                for (request, fates) in &requests {
                    if breaks {
                        nodes.fates.lock().clone_from(fates);
                    }
                    let is_take = |ask: &Ask| ask.taken() > 0;
                    let request: Vec<_> = request.iter().filter(|(_, ask, _)| is_take(ask)).collect();
                    let usage = Usage::new(Period::Minute, Duration::from_secs(366 * 86_400)).unwrap();
                    let recorded = || Some(Recorded { usage, tag: None, occasion: Occasion::Decided });
                    let to_check = |(key, ask, role): &&(usize, Ask, Role)| Check {
                        recorded: recorded(),
                        ..check(*key, limits[*key], *ask, *role)
                    };
                    let checks: Vec<Check> = request.iter().map(to_check).collect();
                    let answer = decide(&nodes, &checks, soon()).await;
                    sleep(TAKE_BACK_TIME * 2).await;
                    nodes.fates.lock().clear();
                    let Ok(verdicts) = answer else { continue };
                    let denied = is_denied(&checks, &verdicts);
                    for (key, ask, _) in request {
                        let costs_denied = limits[*key].options().count_denied == Some(true);
                        let cost = if denied && !costs_denied { 0 } else { ask.hits() };
                        let (admitted, denied) = if denied { (0, 1) } else { (1, 0) };
                        let added = Added { admitted, denied, cost, ..Added::default() };
                        expected[*key] = expected[*key].with(added);
                    }
                }
                for (key, limit) in limits.iter().enumerate() {
                    let recorded = nodes.recorded(key, *limit);
                    if !breaks {
                        prop_assert_eq!(recorded, expected[key], "of {}", key);
                    }
                    let charged = 12 - nodes.left(key, *limit).await as i64;
                    // A limit in shadow mode admits hits that it cannot charge, and a limit that counts denials stops
                    // at its number.
                    prop_assert!(recorded.cost >= charged, "{} was charged, {} recorded", charged, recorded.cost);
                    let only_enforced = requests.iter().flat_map(|(request, _)| request)
                        .all(|(other, _, role)| other != &key || *role == Role::Enforced);
                    if only_enforced && !limit.count_denied() {
                        prop_assert_eq!(recorded.cost, charged, "of {}", key);
                    }
                }
                Ok(())
            })?;
        }

        /// Of concurrent requests no more pass than the limit allows, and denied ones leave nothing charged.
        #[test]
        fn of_requests_at_the_same_time_no_more_pass_than_may(
            requests in prop::collection::vec(asked(), 1..60),
            algorithm in prop::sample::select(LASTING),
        ) {
            run(async {
                let limit = limit_of(algorithm, false);
                let nodes = Simulated::new(3, true);
                let mut tasks = Vec::new();
                for request in requests {
                    let nodes = Arc::clone(&nodes);
                    tasks.push(tokio::spawn(async move {
                        let takes = |(key, ask, _): (usize, Ask, Role)| {
                            Some((key, ask)).filter(|(_, ask)| ask.taken() > 0)
                        };
                        let request: Vec<(usize, Ask)> = request.into_iter().filter_map(takes).collect();
                        let checks: Vec<Check> =
                            request.iter().map(|(key, ask)| check(*key, limit, *ask, Role::Enforced)).collect();
                        let verdicts = decide(&nodes, &checks, soon()).await.unwrap();
                        (request, verdicts.iter().flatten().all(|verdict| verdict.own.allowed))
                    }));
                }
                let mut passed = [0; KEYS];
                for task in tasks {
                    let (request, has_passed) = task.await.unwrap();
                    if has_passed {
                        request.iter().for_each(|(key, ask)| passed[*key] += ask.taken());
                    }
                }
                for (key, passed) in passed.into_iter().enumerate() {
                    prop_assert!(passed <= 12, "{passed} passed");
                    prop_assert_eq!(nodes.left(key, limit).await, 12 - passed, "of {}", key);
                }
                Ok(())
            })?;
        }
    }

    fn is_denied(checks: &[Check], decided: &[Option<CheckVerdict>]) -> bool {
        let mut votes = Votes::default();
        for (check, verdict) in checks.iter().zip(decided) {
            votes.add(check.role, check, verdict.is_some_and(|verdict| !verdict.allowed()));
        }
        votes.deny()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_leaves_nothing_charged() {
        let limit = limit_of(Algorithm::FixedWindow, false);
        let nodes = Simulated::new(3, true);
        let take = |key, hits| check(key, limit, Ask::Take(hits), Role::Enforced);
        decide(&nodes, &[take(1, 12)], soon()).await.unwrap();
        let checks = [take(0, 5), take(1, 5)];
        let asking = decide(&nodes, &checks, soon());
        // Polled once, which starts the request.
        assert!(tokio::time::timeout(Duration::ZERO, asking).await.is_err());
        sleep(TAKE_BACK_TIME).await;
        assert_eq!(nodes.left(0, limit).await, 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_down_takes_back_when_it_is_up_again() {
        let limit = limit_of(Algorithm::FixedWindow, false);
        let nodes = Simulated::new(2, false);
        let take = |key, hits| check(key, limit, Ask::Take(hits), Role::Enforced);
        // Outcomes are popped from the end: both parts are answered, and then the node is down three times.
        *nodes.fates.lock() = [[Fate::Down; 3].as_slice(), &[Fate::Answered; 2]].concat();
        let verdicts = decide(&nodes, &[take(0, 5), take(1, 13)], soon()).await.unwrap();
        assert_eq!(verdicts[0].unwrap().own.remaining, 12, "what is left is told after it was taken back");
        assert_eq!(nodes.left(0, limit).await, 12);
    }
}
