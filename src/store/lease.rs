//! A store around a store, which decides requests of a hot key by a [`lease`](crate::lease) where its limit has one.
//!
//! Only a request of one limit is decided so; one of several asks the store, which decides all of them together. What
//! is leased belongs to the process: all its workers use it.
//!
//! While the store is asked for a lease, other requests of the same counter wait, and then go together in the next
//! question: one call at a time asks for a hot key, however many wait. Near the limit nobody waits: each request asks
//! for itself, exactly.
//!
//! What is left of a lease at its end is given back, by a task that lives for as long as the counter is in use here, or
//! by [`Store::close`]. Of so many counters only is there a lease at one time ([`COUNTERS`]); a request of one more
//! asks the store for itself. What a process holds that is killed, or that the store did not take back, counts as used
//! until its window has passed.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::sharded::{SHARDS, Sharded};
use super::{Check, CheckVerdict, Key, Store, StoreError, Verdicts};
use crate::algorithm::{Ask, Limit, Verdict};
use crate::lease::{Account, Lease, Question};

/// How long the store may take for hits to be given back that nobody waits for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many counters may be in use: each is kept for as long as a lease lasts at least, with a task and a timer, a
/// kilobyte or two in all. A lease on a key that is another for each user is of no use, and shall not fill the memory
/// either.
pub const COUNTERS: usize = 16_384;

/// Told of every request that a lease decides, so that the store is not asked.
pub type OnDecision = Box<dyn Fn() + Send + Sync>;

/// The leases of this process, as one worker sees them.
pub struct Leases<S> {
    store: Arc<S>,
    book: Arc<Book>,
}

/// What the workers have in common.
struct Book {
    ledgers: Sharded<Ledger>,
    /// How many requests may wait for one counter.
    queue: usize,
    on_decision: OnDecision,
    start: tokio::time::Instant,
}

#[derive(Default)]
struct Ledger {
    /// Those of its counters that are in use.
    entries: HashMap<Key, Entry>,
    /// No lease is taken any more.
    closed: bool,
}

struct Entry {
    account: Account,
    waiting: Vec<Waiting>,
    /// A task is asking the store, and will ask for those who wait, too.
    busy: bool,
}

struct Waiting {
    /// Zero, where it waits for everything to be given back.
    hits: u64,
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

/// What a request is told that has waited: its verdict, or that it is to ask for itself.
type Answer = Result<Option<Verdict>, StoreError>;

/// One question to the store, and who waits for its answer.
struct Round {
    question: Question,
    limit: Limit,
    waiting: Vec<Waiting>,
}

/// What a request meets.
enum Found {
    Decided(Verdict),
    Waits(Wait),
    Alone,
    /// Alone, too; and the counter has not been in use.
    New,
}

struct Wait {
    answer: oneshot::Receiver<Answer>,
    /// There is nobody else who would ask the store.
    round: Option<Round>,
}

/// What those are to be told who have waited, once the ledger is unlocked: to wake thousands takes a while.
#[derive(Default)]
struct Answers(Vec<(oneshot::Sender<Answer>, Answer)>);

/// What is to be done for a counter.
enum Chore {
    Sleep(tokio::time::Instant),
    Ask(Round),
    Forget,
}

impl<S: Store> Leases<S> {
    /// Around these stores, one for each worker, which lead to the same counters. So many requests may wait for one
    /// counter.
    pub fn around(stores: Vec<S>, queue: usize, on_decision: OnDecision) -> Vec<Leases<S>> {
        let book = Arc::new(Book::new(queue, on_decision));
        stores.into_iter().map(|store| Leases { store: Arc::new(store), book: Arc::clone(&book) }).collect()
    }

    /// Decides a request of one limit that has a lease.
    async fn decide(&self, check: &Check, lease: Lease, hits: u64, deadline: Instant) -> Result<Verdict, StoreError> {
        let decided = match self.book.find(check, lease, hits, deadline)? {
            Found::Decided(verdict) => return Ok(verdict),
            Found::Waits(wait) => self.wait(&check.key, wait, deadline).await?,
            Found::Alone => None,
            Found::New => {
                tokio::spawn(self.clone().tend(check.key.clone()));
                None
            }
        };
        if let Some(verdict) = decided {
            return Ok(verdict);
        }
        let verdicts = self.store.check(from_ref(check), deadline).await?;
        let verdict = own(&verdicts)?;
        self.book.note(check, verdict);
        Ok(verdict)
    }

    /// Gives back what is held of a counter, also what is on its way.
    async fn end(&self, key: &Key, deadline: Instant) -> Result<(), StoreError> {
        if let Some(wait) = self.book.end(key, deadline) {
            self.wait(key, wait, deadline).await?;
        }
        Ok(())
    }

    async fn wait(&self, key: &Key, wait: Wait, deadline: Instant) -> Answer {
        let Wait { answer, round } = wait;
        if let Some(round) = round {
            // A task of its own: others may come to wait for it, and this caller may go away.
            tokio::spawn(self.clone().ask(key.clone(), round));
        }
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Asks for those who wait, until nobody does.
    async fn ask(self, key: Key, round: Round) {
        let mut next = Some(round);
        while let Some(round) = next {
            let told = self.put(&key, &round).await;
            next = self.book.settle(&key, round, told);
        }
    }

    async fn put(&self, key: &Key, round: &Round) -> Result<Verdict, StoreError> {
        let Round { question, limit, waiting } = round;
        let most_patient = waiting.iter().map(|waiting| waiting.deadline).max();
        let deadline = most_patient.unwrap_or_else(|| Instant::now() + PATIENCE);
        let refund = Some(question.give_back.into()).filter(|hits| *hits > 0).map(Ask::Refund);
        let take = Some(question.take.into()).filter(|hits| *hits > 0).map(Ask::Take);
        let asks = refund.into_iter().chain(take);
        let checks: Vec<Check> = asks.map(|ask| Check::new(key.clone(), *limit, ask)).collect();
        own(&self.store.check(&checks, deadline).await?)
    }

    /// Gives back what is held when it ends, until the counter is not in use any more.
    async fn tend(self, key: Key) {
        loop {
            match self.book.chore(&key) {
                Chore::Sleep(until) => tokio::time::sleep_until(until).await,
                Chore::Ask(round) => self.clone().ask(key.clone(), round).await,
                Chore::Forget => return,
            }
        }
    }
}

/// What the limit of the last check says.
fn own(verdicts: &Verdicts) -> Result<Verdict, StoreError> {
    let last = verdicts.last().copied().flatten();
    last.map(|verdict| verdict.own).ok_or(StoreError::Answer)
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
        {
            // Apart: a request without a lease need not carry the room that this takes.
            let own = Box::pin(self.decide(check, lease, hits, deadline)).await?;
            return Ok(smallvec![Some(CheckVerdict { own, ban: None })]);
        }
        // What is refunded to a counter must not find a part of it here.
        for check in checks.iter().map(Borrow::borrow) {
            if check.lease.is_some() && matches!(check.ask, Ask::Refund(_) | Ask::Reset) {
                Box::pin(self.end(&check.key, deadline)).await?;
            }
        }
        self.store.check(checks, deadline).await
    }

    fn known_denial(&self, check: &Check) -> Option<CheckVerdict> {
        self.store.known_denial(check)
    }

    async fn close(&self, deadline: Instant) {
        let mut keys: Vec<Key> = Vec::new();
        for ledger in self.book.ledgers.iter() {
            let mut ledger = ledger.lock();
            ledger.closed = true;
            keys.extend(ledger.entries.keys().cloned());
        }
        let ended = join_all(keys.iter().map(|key| self.end(key, deadline))).await;
        let lost = ended.iter().filter(|ended| ended.is_err()).count();
        if lost > 0 {
            tracing::warn!(
                counters = lost,
                "leases could not be given back: they count as used until their windows have passed"
            );
        }
        self.store.close(deadline).await;
    }
}

impl Book {
    fn new(queue: usize, on_decision: OnDecision) -> Book {
        Book { ledgers: Sharded::default(), queue, on_decision, start: tokio::time::Instant::now() }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Acts under the lock of the ledger that this counter is in, and then tells those who have waited.
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
            if let Some(entry) = ledger.entries.get_mut(&check.key) {
                entry.account.set_terms(check.limit, lease);
                if let Some(verdict) = entry.account.spend(hits, now) {
                    (self.on_decision)();
                    return Ok(Found::Decided(verdict));
                }
                // Near the limit there is nothing to wait for: so a flood over it costs little here.
                if !entry.busy && entry.account.asks_alone(hits, now) {
                    return Ok(Found::Alone);
                }
                if entry.waiting.len() >= self.queue {
                    return Err(StoreError::Overloaded);
                }
                return Ok(Found::Waits(entry.wait(hits, deadline, self, answers)));
            }
            if ledger.entries.len() >= COUNTERS / SHARDS {
                return Ok(Found::Alone);
            }
            let mut account = Account::new(check.limit, lease, now);
            account.asks_alone(hits, now);
            let entry = Entry { account, waiting: Vec::new(), busy: false };
            ledger.entries.insert(check.key.clone(), entry);
            Ok(Found::New)
        })
    }

    /// What a request was told that has asked for itself.
    fn note(&self, check: &Check, verdict: Verdict) {
        if let Some(entry) = self.ledgers.of(&check.key).lock().entries.get_mut(&check.key) {
            entry.account.note(&check.limit, verdict, self.now());
        }
    }

    /// The answer to a question. Tells what to ask next.
    fn settle(&self, key: &Key, round: Round, told: Result<Verdict, StoreError>) -> Option<Round> {
        self.with_ledger(key, |ledger, answers| {
            let entry = ledger.entries.get_mut(key)?;
            let answer = told.map(|verdict| entry.account.answered(&round.question, verdict, self.now()));
            answers.0.extend(round.waiting.into_iter().map(|waiting| (waiting.answer, answer.clone())));
            entry.round(self, answers)
        })
    }

    /// Lets nothing more be used of what is held, or on its way. Who waits is told when it has been given back; `None`
    /// where nothing is.
    fn end(&self, key: &Key, deadline: Instant) -> Option<Wait> {
        self.with_ledger(key, |ledger, answers| {
            let entry = ledger.entries.get_mut(key)?;
            entry.account.end();
            (entry.busy || entry.account.held() > 0).then(|| entry.wait(0, deadline, self, answers))
        })
    }

    fn chore(&self, key: &Key) -> Chore {
        self.with_ledger(key, |ledger, answers| {
            let Some(entry) = ledger.entries.get_mut(key) else { return Chore::Forget };
            let now = self.now();
            if entry.busy {
                return Chore::Sleep(self.start + now + entry.account.lease().ttl());
            }
            if let Some(round) = entry.round(self, answers) {
                return Chore::Ask(round);
            }
            if entry.account.is_idle(now) {
                ledger.entries.remove(key);
                return Chore::Forget;
            }
            Chore::Sleep(self.start + entry.account.look_again())
        })
    }
}

impl Entry {
    fn wait(&mut self, hits: u64, deadline: Instant, book: &Book, answers: &mut Answers) -> Wait {
        let (sender, answer) = oneshot::channel();
        self.waiting.push(Waiting { hits, deadline, answer: sender });
        let round = if self.busy { None } else { self.round(book, answers) };
        Wait { answer, round }
    }

    /// What to ask for those who wait, and for a lease that is over; `None` where nothing is to be asked. Whoever can
    /// be told something without asking is told.
    fn round(&mut self, book: &Book, answers: &mut Answers) -> Option<Round> {
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
                    (book.on_decision)();
                    answers.add(waiting, Ok(Some(verdict)));
                }
                None => asking.push(waiting),
            }
        }
        self.busy = false;
        if asking.is_empty() && !self.account.is_over(now) {
            return None;
        }
        let hits = asking.iter().fold(0, |sum: u64, waiting| sum.saturating_add(waiting.hits));
        let question = self.account.question(hits, now);
        if question.is_empty() {
            asking.into_iter().for_each(|waiting| answers.add(waiting, Ok(None)));
            return None;
        }
        self.busy = true;
        Some(Round { question, limit: self.account.limit(), waiting: asking })
    }
}

impl Answers {
    fn add(&mut self, waiting: Waiting, answer: Answer) {
        self.0.push((waiting.answer, answer));
    }

    fn send(self) {
        for (waiting, answer) in self.0 {
            // Who has gone meanwhile is not there to be told.
            let _ = waiting.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::algorithm::{Algorithm, Options};
    use crate::store::Origin;

    fn book() -> Book {
        Book::new(1_000, Box::new(|| {}))
    }

    fn check(name: &str) -> (Check, Lease) {
        let limit = Limit::new(Algorithm::SlidingWindow, 1_000, Duration::from_secs(60), Options::default()).unwrap();
        let key = Key::new("", name, &[], |_| None, &limit, Origin::Rule);
        let lease = Lease::new(50, Duration::from_secs(10), &limit).unwrap();
        (Check { lease: Some(lease), ..Check::new(key, limit, Ask::Take(1)) }, lease)
    }

    fn remaining(remaining: u32) -> Verdict {
        Verdict { allowed: true, remaining, reset_after_ms: 60_000, retry_after_ms: Some(0), delay_ms: 0 }
    }

    fn find(book: &Book, name: &str) -> Found {
        let (check, lease) = check(name);
        book.find(&check, lease, 1, Instant::now() + PATIENCE).unwrap()
    }

    /// Looks, whenever it is woken, whether the ledger is free.
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

    #[test]
    fn nobody_is_woken_while_the_ledger_is_locked() {
        let (ann, _) = check("ann");
        let watch =
            Arc::new(Watch { book: book(), key: ann.key.clone(), woken: AtomicU32::new(0), free: AtomicU32::new(0) });
        let book = &watch.book;
        assert!(matches!(find(book, "ann"), Found::New));
        assert!(matches!(find(book, "ann"), Found::Alone), "nothing is known of it");
        book.note(&ann, remaining(999));
        let mut rounds = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let Found::Waits(Wait { mut answer, round, .. }) = find(book, "ann") else { panic!("there is no lease") };
            let waker = Waker::from(Arc::clone(&watch));
            assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
            rounds.extend(round);
            answers.push(answer);
        }
        let round = rounds.pop().unwrap();
        assert_eq!((rounds.len(), round.waiting.len()), (0, 1), "one asks for all");
        // The first is told what the store says, the others are told by the lease.
        book.settle(&ann.key, round, Ok(remaining(900)));
        assert!(answers.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Ok(Some(_))))));
        assert_eq!((watch.woken.load(Ordering::Relaxed), watch.free.load(Ordering::Relaxed)), (3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_counters_than_are_kept_a_request_asks_for_itself() {
        let book = book();
        let kept = |found: &Found| matches!(found, Found::New);
        let first = (0..COUNTERS * 2).filter(|i| kept(&find(&book, &format!("user{i}")))).count();
        assert!((COUNTERS * 9 / 10..=COUNTERS).contains(&first), "{first} counters are in use");
        let refused = (0..).map(|i| format!("late{i}")).find(|name| matches!(find(&book, name), Found::Alone));
        let refused = refused.unwrap();
        // When one has not been asked for in the length of a lease, there is room for another.
        let key = book.ledgers.of(&check(&refused).0.key).lock().entries.keys().next().cloned().unwrap();
        assert!(matches!(book.chore(&key), Chore::Sleep(_)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(matches!(book.chore(&key), Chore::Forget));
        assert!(kept(&find(&book, &refused)));
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
