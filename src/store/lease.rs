//! A store around another store. It decides requests of a hot key in this process if their limit has a
//! [lease](crate::engine::algorithm::lease_terms).
//!
//! It decides requests of one limit. For a request of several limits it asks the store, which decides all of them
//! together. A lease belongs to the process: all workers use it.
//!
//! While one call asks the store for a lease, other requests of the same counter wait and share the next call. So one
//! call at a time asks for a hot key, however many requests wait. Near the limit no request waits: each asks the store
//! itself, for an exact answer.
//!
//! A lease that ends is returned, either by a task that lives for as long as the counter is in use here or by
//! [`Store::close`]. At most [`COUNTERS`] counters are in use at one time. Beyond that, a counter that is asked for a
//! second time within the TTL of its lease takes the place of the one that was asked for longest ago, of those that
//! hold no hits. So many keys that are asked for once, or seldom, do not keep out a hot one. Other requests ask the
//! store themselves. If the process is killed, or if the store does not take what is returned, all hits of the lease
//! count as used.
//!
//! If the limit records usage, the question that returns a lease records what it was used for, in the step that settles
//! it. It is sent once, so nothing is recorded twice. What a lost return would have recorded is in no record: nobody is
//! billed for hits that perhaps no request has used.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::BuildHasher as _;
use std::panic::AssertUnwindSafe;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use smallvec::smallvec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Store;
use super::sharded::{SHARDS, Sharded};
use crate::engine::algorithm::lease_terms::{Account, Lease, Question};
use crate::engine::algorithm::{Ask, LeaseAsk, Limit, Verdict};
use crate::engine::check::{Check, CheckVerdict, Key, Occasion, Recorded, StoreError, Verdicts};
use crate::instant::Steady;

/// Timeout of a return that no request waits for.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of counters with leases. Each is kept at least for the duration of a lease, with a task and a
/// timer: a kilobyte or two in all. A lease on a key that differs for each user is useless and must not fill the
/// memory.
pub const COUNTERS: usize = 16_384;
/// The number of keys that a ledger without room remembers having been asked for once: four for each of its counters.
/// With a million requests a second of different keys, a key is remembered for 65 ms.
const STRANGERS: usize = 4 * COUNTERS / SHARDS;

/// An event of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A lease has decided a request without asking the store.
    Decided,
    /// This many hits were leased.
    Leased(u32),
    /// This many leased hits were not used. They are returned, or count as used if the store does not take them.
    Unused(u32),
    /// This many leased hits were used under a limit that records usage, and the store has not confirmed that it has
    /// recorded them.
    Unconfirmed(u32),
}

/// Called for each event.
pub type OnEvent = Box<dyn Fn(LeaseEvent) + Send + Sync>;

/// The leases of this process, as used by one worker.
pub struct Leases<S> {
    store: Arc<S>,
    book: Arc<Book>,
}

/// The state that the workers share.
struct Book {
    ledgers: Sharded<Ledger>,
    /// Number of requests that may wait for one counter.
    queue: usize,
    on_event: OnEvent,
    clock: Steady,
}

#[derive(Default)]
struct Ledger {
    /// The counters of this ledger that are in use.
    counters: HashMap<Key, LeasedCounter>,
    /// Whether leases are no longer taken.
    closed: bool,
    /// Keys that were asked for while there was no room, each in a place by its hash.
    strangers: Vec<Option<Stranger>>,
    hash: RandomState,
}

/// A key without an account.
#[derive(Clone, Copy)]
struct Stranger {
    hash: u64,
    /// When it was last asked for.
    asked: Duration,
}

struct LeasedCounter {
    account: Account,
    /// The usage record of its requests, if its limit keeps usage.
    recorded: Option<Recorded>,
    /// Ends the counter's task if it is dropped.
    _tended: oneshot::Sender<Infallible>,
    waiting: Vec<Waiting>,
    /// Whether a task is asking the store. It will also ask for the requests that wait.
    busy: bool,
}

struct Waiting {
    /// Zero if the request waits for the return of the lease.
    hits: u64,
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

/// The answer to a request that has waited: a verdict, or `None` if the request must ask the store itself.
type Answer = Result<Option<Verdict>, StoreError>;

/// One question to the store, and the requests that wait for its answer.
struct Refill {
    question: Question,
    limit: Limit,
    recorded: Option<Recorded>,
    waiting: Vec<Waiting>,
}

/// The book's response to a request.
enum Found {
    Decided(Verdict),
    Waits(Wait),
    /// The request must ask the store itself.
    Alone,
    /// The request must ask the store itself, and the counter was not in use before. Its task ends with this.
    New(oneshot::Receiver<Infallible>),
}

struct Wait {
    answer: oneshot::Receiver<Answer>,
    /// The question for this request to ask, because no task is asking the store.
    refill: Option<Box<Refill>>,
}

/// Answers to requests that have waited, sent after the ledger is unlocked, since waking thousands of tasks takes time.
#[derive(Default)]
struct Answers(Vec<(oneshot::Sender<Answer>, Answer)>);

/// The next step of a counter's task.
enum Chore {
    Sleep(Instant),
    Ask(Box<Refill>),
    Forget,
}

impl<S: Store> Leases<S> {
    /// Returns leases around these stores, one for each worker, which lead to the same counters. At most `queue`
    /// requests may wait for one counter.
    pub fn around(stores: Vec<S>, queue: usize, on_event: OnEvent) -> Vec<Leases<S>> {
        let book = Arc::new(Book::new(queue, on_event));
        stores.into_iter().map(|store| Leases { store: Arc::new(store), book: Arc::clone(&book) }).collect()
    }

    /// Returns the store for a command that asks about counters: it takes no lease, and knows of those of instances.
    pub fn of_command(store: S) -> Leases<S> {
        Leases { store: Arc::new(store), book: Arc::new(Book::new(0, Box::new(|_| {}))) }
    }

    /// Decides a request of one limit that has a lease.
    async fn decide(&self, check: &Check, lease: Lease, hits: u64, deadline: Instant) -> Result<Verdict, StoreError> {
        let decided = match self.book.find(check, lease, hits, deadline)? {
            Found::Decided(verdict) => return Ok(verdict),
            Found::Waits(wait) => self.wait(&check.key, wait, deadline).await?,
            Found::Alone => None,
            Found::New(in_use) => {
                tokio::spawn(self.clone().tend(check.key.clone(), in_use));
                None
            }
        };
        if let Some(verdict) = decided {
            return Ok(verdict);
        }
        let verdicts = self.store.check(from_ref(&check.of_leases(LeaseAsk::default())), deadline).await?;
        let verdict = last(&verdicts)?.own;
        self.book.note(check, verdict);
        Ok(verdict)
    }

    /// Decides a request of several checks, or of no take, some of which have leases.
    async fn check_leased<C: Borrow<Check>>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        let checks = checks.iter().map(|check| match check.borrow() {
            check if check.lease.is_some() => check.of_leases(LeaseAsk::default()),
            check => check.clone(),
        });
        let checks: Vec<Check> = checks.collect();
        for check in &checks {
            // The counter must know of the hits that are refunded.
            if check.lease.is_some() && matches!(check.ask, Ask::Refund(_) | Ask::Reset) {
                self.end(&check.key, deadline).await?;
            }
        }
        self.store.check(&checks, deadline).await
    }

    /// Returns the lease of a counter, or one that is being taken.
    async fn end(&self, key: &Key, deadline: Instant) -> Result<(), StoreError> {
        if let Some(wait) = self.book.end(key, deadline) {
            self.wait(key, wait, deadline).await?;
        }
        Ok(())
    }

    async fn wait(&self, key: &Key, wait: Wait, deadline: Instant) -> Answer {
        let Wait { answer, refill } = wait;
        if let Some(refill) = refill {
            // A separate task, because other requests may join the wait and this caller may be cancelled.
            tokio::spawn(self.clone().ask(key.clone(), refill));
        }
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Asks for the requests that wait, until none does.
    async fn ask(self, key: Key, refill: Box<Refill>) {
        let mut next = Some(refill);
        while let Some(refill) = next {
            // A panic of the store, which is logged, must not leave the counter busy: nobody would ask for it again.
            let put = AssertUnwindSafe(self.put(&key, &refill)).catch_unwind().await;
            let verdict = put.unwrap_or(Err(StoreError::Answer));
            next = self.book.settle(&key, refill, verdict);
        }
    }

    async fn put(&self, key: &Key, refill: &Refill) -> Result<CheckVerdict, StoreError> {
        let Refill { question, limit, recorded, waiting } = refill;
        let latest = waiting.iter().map(|waiting| waiting.deadline).max();
        let deadline = latest.unwrap_or_else(|| Instant::now() + RETURN_TIMEOUT);
        let ask = Ask::take(question.take).unwrap_or_default();
        let check = Check { recorded: recorded.clone(), ..Check::new(key.clone(), *limit, ask) };
        let check = check.of_leases(question.ask);
        last(&self.store.check(from_ref(&check), deadline).await?)
    }

    /// Returns each lease that ends, for as long as the counter is in use.
    async fn tend(self, key: Key, mut in_use: oneshot::Receiver<Infallible>) {
        loop {
            match self.book.chore(&key) {
                Chore::Sleep(until) => {
                    if tokio::time::timeout_at(until, &mut in_use).await.is_ok() {
                        return;
                    }
                }
                Chore::Ask(refill) => self.clone().ask(key.clone(), refill).await,
                Chore::Forget => return,
            }
        }
    }
}

/// Returns the verdict on the last check.
fn last(verdicts: &Verdicts) -> Result<CheckVerdict, StoreError> {
    verdicts.last().copied().flatten().ok_or(StoreError::Answer)
}

impl<S> Clone for Leases<S> {
    fn clone(&self) -> Self {
        Leases { store: Arc::clone(&self.store), book: Arc::clone(&self.book) }
    }
}

impl<S: Store> Store for Leases<S> {
    async fn check<C: Borrow<Check> + Sync>(&self, checks: &[C], deadline: Instant) -> Result<Verdicts, StoreError> {
        if let [check] = checks
            && let check = check.borrow()
            && let (Some(lease), Ask::Take(hits)) = (check.lease, check.ask)
            && check.recorded.as_ref().is_none_or(|recorded| recorded.occasion == Occasion::Decided)
        {
            // Boxed to keep the future of a request without a lease small.
            let own = Box::pin(self.decide(check, lease, hits, deadline)).await?;
            return Ok(smallvec![Some(CheckVerdict::new(own, 0))]);
        }
        if checks.iter().all(|check| check.borrow().lease.is_none()) {
            return self.store.check(checks, deadline).await;
        }
        Box::pin(self.check_leased(checks, deadline)).await
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        self.store.known_denial(check)
    }

    async fn close(&self, deadline: Instant) {
        let mut keys: Vec<Key> = Vec::new();
        for ledger in self.book.ledgers.iter() {
            let mut ledger = ledger.lock();
            ledger.closed = true;
            keys.extend(ledger.counters.keys().cloned());
        }
        // In their order, so that runs of the simulation repeat.
        keys.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        let ended = join_all(keys.iter().map(|key| self.end(key, deadline))).await;
        let lost = ended.iter().filter(|ended| ended.is_err()).count();
        if lost > 0 {
            tracing::warn!(
                counters = lost,
                "leases could not be returned: all their hits count as used until their windows end"
            );
        }
        self.store.close(deadline).await;
    }

    fn flush_log(&self) {
        self.store.flush_log();
    }
}

impl Book {
    fn new(queue: usize, on_event: OnEvent) -> Book {
        Book::by(Steady::new(), queue, on_event)
    }

    fn by(clock: Steady, queue: usize, on_event: OnEvent) -> Book {
        Book { ledgers: Sharded::default(), queue, on_event, clock }
    }

    /// Returns the time since the start, in which the machine may have been suspended: Redis's clock went on.
    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Runs `act` under the lock of the counter's ledger, and then answers the requests that have waited.
    fn with_ledger<T>(&self, key: &Key, act: impl FnOnce(&mut Ledger, &mut Answers) -> T) -> T {
        let mut answers = Answers::default();
        let done = act(&mut self.ledgers.of(key).lock(), &mut answers);
        answers.send();
        done
    }

    fn find(&self, check: &Check, lease: Lease, hits: u64, deadline: Instant) -> Result<Found, StoreError> {
        self.with_ledger(&check.key, |ledger, answers| {
            let now = self.now();
            if ledger.closed {
                return Ok(Found::Alone);
            }
            if let Some(counter) = ledger.counters.get_mut(&check.key) {
                counter.account.set_terms(check.limit, lease);
                if counter.recorded != check.recorded {
                    // What the present lease is used for is in the records of before, so it is returned first.
                    counter.account.end();
                    if counter.busy || counter.account.owes() {
                        return Ok(Found::Alone);
                    }
                    counter.recorded.clone_from(&check.recorded);
                }
                if let Some(verdict) = counter.account.spend(hits, now) {
                    (self.on_event)(LeaseEvent::Decided);
                    return Ok(Found::Decided(verdict));
                }
                // Near the limit there is nothing to wait for. This keeps a flood over the limit cheap.
                if !counter.busy && counter.account.asks_alone(hits, now) {
                    return Ok(Found::Alone);
                }
                if counter.waiting.len() >= self.queue {
                    return Err(StoreError::Overloaded);
                }
                return Ok(Found::Waits(counter.wait(hits, deadline, self, answers)));
            }
            if !ledger.makes_room(&check.key, lease.ttl(), now) {
                return Ok(Found::Alone);
            }
            let mut account = Account::new(check.limit, lease, now);
            account.asks_alone(hits, now);
            let (tended, in_use) = oneshot::channel();
            let recorded = check.recorded.clone();
            let counter = LeasedCounter { account, recorded, _tended: tended, waiting: Vec::new(), busy: false };
            ledger.counters.insert(check.key.clone(), counter);
            Ok(Found::New(in_use))
        })
    }

    /// Notes the answer to a request that asked the store itself.
    fn note(&self, check: &Check, verdict: Verdict) {
        if let Some(counter) = self.ledgers.of(&check.key).lock().counters.get_mut(&check.key) {
            counter.account.note(&check.limit, verdict, self.now());
        }
    }

    /// Takes the answer to a question, and returns the next question.
    fn settle(&self, key: &Key, refill: Box<Refill>, verdict: Result<CheckVerdict, StoreError>) -> Option<Box<Refill>> {
        self.with_ledger(key, |ledger, answers| {
            let counter = ledger.counters.get_mut(key)?;
            let question = &refill.question;
            if verdict.is_err() && refill.recorded.is_some() && question.used() > 0 {
                (self.on_event)(LeaseEvent::Unconfirmed(question.used()));
            }
            let granted = verdict.as_ref().ok().and_then(|verdict| verdict.lease).unwrap_or_default();
            let answer = verdict
                .map(|verdict| counter.account.answered(question, (verdict.own, granted, verdict.at_ms), self.now()));
            if granted.hits > 0 {
                (self.on_event)(LeaseEvent::Leased(granted.hits));
            }
            if question.unused() > 0 {
                (self.on_event)(LeaseEvent::Unused(question.unused()));
            }
            answers.0.extend(refill.waiting.into_iter().map(|waiting| (waiting.answer, answer.clone())));
            counter.refill(self, answers)
        })
    }

    /// Ends the lease of a counter, including one that is being taken. The caller waits for its return. Returns `None`
    /// if there is nothing to return.
    fn end(&self, key: &Key, deadline: Instant) -> Option<Wait> {
        self.with_ledger(key, |ledger, answers| {
            let counter = ledger.counters.get_mut(key)?;
            counter.account.end();
            (counter.busy || counter.account.owes()).then(|| counter.wait(0, deadline, self, answers))
        })
    }

    fn chore(&self, key: &Key) -> Chore {
        self.with_ledger(key, |ledger, answers| {
            let Some(counter) = ledger.counters.get_mut(key) else { return Chore::Forget };
            let now = self.now();
            if counter.busy {
                return Chore::Sleep(Instant::now() + counter.account.lease().ttl());
            }
            if let Some(refill) = counter.refill(self, answers) {
                return Chore::Ask(refill);
            }
            if counter.account.is_idle(now) && !counter.owes_record() {
                ledger.counters.remove(key);
                return Chore::Forget;
            }
            Chore::Sleep(Instant::now() + counter.next_check().saturating_sub(now))
        })
    }
}

impl Ledger {
    /// Returns whether there is room for one more counter. If there is none, a key that is asked for again within the
    /// TTL gets the place of the counter that was asked for longest ago, of those that hold nothing.
    fn makes_room(&mut self, key: &Key, ttl: Duration, now: Duration) -> bool {
        if self.counters.len() < COUNTERS / SHARDS {
            return true;
        }
        if !self.is_known(key, ttl, now) {
            return false;
        }
        let idle = self.counters.iter().filter(|(_, counter)| counter.holds_nothing());
        let Some(oldest) = idle.min_by_key(|(_, counter)| counter.account.asked()).map(|(key, _)| key.clone()) else {
            return false;
        };
        self.counters.remove(&oldest);
        true
    }

    /// Notes that a key is asked for, and returns whether it was within this time before.
    fn is_known(&mut self, key: &Key, ttl: Duration, now: Duration) -> bool {
        // Keys come from clients, so the hash has a secret.
        let hash = self.hash.hash_one(key);
        self.strangers.resize(STRANGERS, None);
        let place = &mut self.strangers[hash as usize % STRANGERS];
        let before = place.replace(Stranger { hash, asked: now });
        before.is_some_and(|before| before.hash == hash && now < before.asked + ttl)
    }
}

impl LeasedCounter {
    /// Returns whether nothing is lost if the counter is forgotten: no hits, no lease to return, and no request.
    fn holds_nothing(&self) -> bool {
        !self.busy && self.waiting.is_empty() && !self.account.owes()
    }

    /// Returns whether hits were used that are in no record yet. Without records, a lease of which all hits are used
    /// need not be returned: that is what the store takes for granted.
    fn owes_record(&self) -> bool {
        self.recorded.is_some() && self.account.owes()
    }

    /// Returns whether a lease is to be returned.
    fn is_over(&self, now: Duration) -> bool {
        self.account.is_over(now) || (self.owes_record() && now >= self.account.ends())
    }

    /// Returns when to check next whether a lease is to be returned or the counter idle.
    fn next_check(&self) -> Duration {
        if self.owes_record() { self.account.ends() } else { self.account.next_check() }
    }

    fn wait(&mut self, hits: u64, deadline: Instant, book: &Book, answers: &mut Answers) -> Wait {
        let (sender, answer) = oneshot::channel();
        self.waiting.push(Waiting { hits, deadline, answer: sender });
        let refill = if self.busy { None } else { self.refill(book, answers) };
        Wait { answer, refill }
    }

    /// Returns the question for the requests that wait and for a lease that is over, or `None` if there is nothing to
    /// ask. Answers the requests that need no question.
    fn refill(&mut self, book: &Book, answers: &mut Answers) -> Option<Box<Refill>> {
        let now = book.now();
        let late = Instant::now();
        let mut waiting = std::mem::take(&mut self.waiting);
        for gone in waiting.extract_if(.., |waiting| waiting.deadline <= late || waiting.answer.is_closed()) {
            answers.add(gone, Err(StoreError::Timeout));
        }
        if waiting.iter().any(|waiting| waiting.hits == 0) {
            self.account.end();
        }
        let mut asking = Vec::new();
        for waiting in waiting {
            match self.account.spend(waiting.hits, now) {
                Some(verdict) => {
                    (book.on_event)(LeaseEvent::Decided);
                    answers.add(waiting, Ok(Some(verdict)));
                }
                None => asking.push(waiting),
            }
        }
        self.busy = false;
        if asking.is_empty() && !self.is_over(now) {
            return None;
        }
        let hits = asking.iter().fold(0, |sum: u64, waiting| sum.saturating_add(waiting.hits));
        let question = self.account.question(hits, now);
        if question.is_empty() {
            asking.into_iter().for_each(|waiting| answers.add(waiting, Ok(None)));
            return None;
        }
        self.busy = true;
        // If nothing is taken for them, each asks by itself.
        let waiting = if question.take > 0 { asking.iter().filter(|waiting| waiting.hits > 0).count() } else { 0 };
        let occasion = Occasion::Leased { waiting: waiting as u64, decided: question.decided };
        let recorded = self.recorded.as_ref().map(|recorded| Recorded { occasion, ..recorded.clone() });
        Some(Box::new(Refill { question, limit: self.account.limit(), recorded, waiting: asking }))
    }
}

impl Answers {
    fn add(&mut self, waiting: Waiting, answer: Answer) {
        self.0.push((waiting.answer, answer));
    }

    fn send(self) {
        for (waiting, answer) in self.0 {
            // The caller may have been cancelled meanwhile.
            let _ = waiting.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::engine::algorithm::{Algorithm, Granted, Options};
    use crate::engine::check::Origin;
    use crate::store::memory::MemoryStore;

    fn book() -> Book {
        Book::new(1_000, Box::new(|_| {}))
    }

    fn check(name: &str) -> (Check, Lease) {
        let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
        let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
        let lease = Lease::new(1_000, Some(Duration::from_secs(10)), &limit).unwrap();
        (Check { lease: Some(lease), ..Check::new(key, limit, Ask::Take(1)) }, lease)
    }

    fn remaining(remaining: u64) -> Verdict {
        Verdict { allowed: true, remaining, reset_after_ms: 60_000, retry_after_ms: Some(0), ..Verdict::NOTHING }
    }

    fn find(book: &Book, name: &str) -> Found {
        let (check, lease) = check(name);
        book.find(&check, lease, 1, Instant::now() + RETURN_TIMEOUT).unwrap()
    }

    /// Checks, each time it is woken, that the ledger is unlocked.
    struct Watch {
        book: Book,
        key: Key,
        woken: AtomicU32,
        free: AtomicU32,
    }

    impl Wake for Watch {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            let is_free = self.book.ledgers.of(&self.key).try_lock().is_some();
            self.free.fetch_add(is_free.into(), Ordering::Relaxed);
        }
    }

    /// Panics where it is told to.
    #[derive(Default)]
    struct Fragile {
        counters: MemoryStore,
        panics: AtomicBool,
    }

    impl Store for Fragile {
        async fn check<C: Borrow<Check> + Sync>(
            &self,
            checks: &[C],
            deadline: Instant,
        ) -> Result<Verdicts, StoreError> {
            assert!(!self.panics.load(Ordering::Relaxed), "a panic of the store, for the test");
            self.counters.check(checks, deadline).await
        }
    }

    #[tokio::test]
    async fn after_a_panic_of_the_store_the_counter_is_asked_for_again() {
        let leases = Leases::around(vec![Fragile::default()], 100, Box::new(|_| {})).pop().unwrap();
        let (check, _) = check("ann");
        let ask = async || leases.check(from_ref(&check), Instant::now() + RETURN_TIMEOUT).await;
        // The first request makes the counter known, so the second one waits for a lease.
        ask().await.unwrap();
        leases.store.panics.store(true, Ordering::Relaxed);
        ask().await.unwrap_err();
        leases.store.panics.store(false, Ordering::Relaxed);
        ask().await.expect("the store answers again");
    }

    #[test]
    fn no_request_is_woken_while_the_ledger_is_locked() {
        let (ann, _) = check("ann");
        let watch =
            Arc::new(Watch { book: book(), key: ann.key.clone(), woken: AtomicU32::new(0), free: AtomicU32::new(0) });
        let book = &watch.book;
        assert!(matches!(find(book, "ann"), Found::New(_)));
        assert!(matches!(find(book, "ann"), Found::Alone), "nothing is known of it");
        book.note(&ann, remaining(999));
        let mut refills = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let Found::Waits(Wait { mut answer, refill, .. }) = find(book, "ann") else { panic!("there is no lease") };
            let waker = Waker::from(Arc::clone(&watch));
            assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
            refills.extend(refill);
            answers.push(answer);
        }
        let refill = refills.pop().unwrap();
        assert_eq!((refills.len(), refill.waiting.len()), (0, 1), "one asks for all");
        // The store answers the first request, the lease the others.
        let granted = Granted { hits: 20, until_ms: 10_000, out: 20 };
        let (own, lease) = (remaining(900), Some(granted));
        book.settle(&ann.key, refill, Ok(CheckVerdict { lease, ..CheckVerdict::new(own, 0) }));
        assert!(answers.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Ok(Some(_))))));
        assert_eq!((watch.woken.load(Ordering::Relaxed), watch.free.load(Ordering::Relaxed)), (3, 3));
    }

    fn is_kept(found: &Found) -> bool {
        matches!(found, Found::New(_))
    }

    /// Fills a book with counters that are asked for once, and returns a key for which there is no room.
    fn fill(book: &Book) -> String {
        let first = (0..COUNTERS * 2).filter(|i| is_kept(&find(book, &format!("user{i}")))).count();
        assert!((COUNTERS * 9 / 10..=COUNTERS).contains(&first), "{first} counters are in use");
        (0..).map(|i| format!("late{i}")).find(|name| matches!(find(book, name), Found::Alone)).unwrap()
    }

    fn counters(book: &Book, name: &str) -> Vec<Key> {
        book.ledgers.of(&check(name).0.key).lock().counters.keys().cloned().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_counters_than_are_kept_a_request_asks_for_itself() {
        let book = book();
        let refused = fill(&book);
        // A counter that gets no request for the duration of a lease makes room for another.
        let key = counters(&book, &refused).swap_remove(0);
        assert!(matches!(book.chore(&key), Chore::Sleep(_)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(matches!(book.chore(&key), Chore::Forget));
        assert!(is_kept(&find(&book, &refused)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_asked_for_again_takes_the_place_of_the_counter_that_is_idle_for_longest() {
        let book = book();
        let hot = fill(&book);
        let before = counters(&book, &hot);
        // One of them is busy, and one holds hits.
        tokio::time::advance(Duration::from_secs(1)).await;
        {
            let mut ledger = book.ledgers.of(&check(&hot).0.key).lock();
            for key in &before[1..] {
                ledger.counters.get_mut(key).unwrap().account.asks_alone(1, book.now());
            }
            ledger.counters.get_mut(&before[0]).unwrap().busy = true;
            let account = &mut ledger.counters.get_mut(&before[1]).unwrap().account;
            account.note(&check(&hot).0.limit, remaining(999), book.now());
            let question = account.question(1, book.now());
            account.answered(&question, (remaining(900), Granted { hits: 9, until_ms: 10_000, out: 9 }, 0), book.now());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        {
            let mut ledger = book.ledgers.of(&check(&hot).0.key).lock();
            for key in &before[3..] {
                ledger.counters.get_mut(key).unwrap().account.asks_alone(1, book.now());
            }
        }
        assert!(is_kept(&find(&book, &hot)), "it is asked for a second time");
        let after = counters(&book, &hot);
        let gone: Vec<&Key> = before.iter().filter(|key| !after.contains(key)).collect();
        assert_eq!((gone, after.len()), (vec![&before[2]], before.len()));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_asked_for_once_take_no_place_and_are_forgotten_after_a_lease() {
        let book = book();
        let late = fill(&book);
        let before = counters(&book, &late);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(matches!(find(&book, &late), Found::Alone), "the first request was too long ago");
        for i in 0..10_000 {
            assert!(matches!(find(&book, &format!("once{i}")), Found::Alone));
        }
        assert_eq!(counters(&book, &late).len(), before.len());
        assert!(counters(&book, &late).iter().all(|key| before.contains(key)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_of_a_counter_that_makes_room_ends() {
        let leases = Leases::around(vec![MemoryStore::default()], 100, Box::new(|_| {})).pop().unwrap();
        let ask = async |name: &str| {
            leases.check(from_ref(&check(name).0), Instant::now() + RETURN_TIMEOUT).await.unwrap();
        };
        let tasks = || Arc::strong_count(&leases.book) - 1;
        for i in 0..COUNTERS * 2 {
            ask(&format!("user{i}")).await;
        }
        let kept = tasks();
        assert!(kept <= COUNTERS, "{kept}");
        for i in 0..1_000 {
            ask(&format!("late{i}")).await;
            ask(&format!("late{i}")).await;
        }
        // By then all tasks have run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(tasks(), kept);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(tasks(), 0);
    }

    #[test]
    fn a_lease_ends_while_the_machine_is_suspended() {
        static SUSPENDED_S: AtomicU32 = AtomicU32::new(7);
        let suspended = || Duration::from_secs(SUSPENDED_S.load(Ordering::Relaxed).into());
        let book = Book::by(Steady::counting(suspended), 1_000, Box::new(|_| {}));
        let (ann, _) = check("ann");
        assert!(matches!(find(&book, "ann"), Found::New(_)));
        book.note(&ann, remaining(999));
        let Found::Waits(Wait { refill: Some(refill), .. }) = find(&book, "ann") else { panic!("there is no lease") };
        let granted = Granted { hits: 20, until_ms: 10_000, out: 20 };
        let (own, lease) = (remaining(900), Some(granted));
        book.settle(&ann.key, refill, Ok(CheckVerdict { lease, ..CheckVerdict::new(own, 0) }));
        SUSPENDED_S.store(16, Ordering::Relaxed);
        assert!(matches!(find(&book, "ann"), Found::Decided(_)), "of 10 s");
        SUSPENDED_S.store(17, Ordering::Relaxed);
        assert!(matches!(find(&book, "ann"), Found::Waits(_)));
    }

    #[test]
    fn one_counter_does_not_keep_all_others_waiting() {
        let book = book();
        let (ann, _) = check("ann");
        let _locked = book.ledgers.of(&ann.key).lock();
        let others = (0..1_000).map(|i| check(&format!("user{i}")).0.key);
        let free = others.filter(|other| book.ledgers.of(other).try_lock().is_some()).count();
        assert!(free > 900, "{free} of a thousand");
    }
}
