//! A toy limiter on drawn clients: every instant is known, so that its histories are legal by construction, unless a
//! fault is planted in it.

use fastrand::Rng;
use tollgate_judge::history::{Ask, Header, Operation, Part, Promise, Told, VERSION};

/// A mistake in the toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The limit admits one more.
    OffByOne,
    /// The counters are forgotten now and then, as by a restart without persistence.
    Forgets,
    /// The latest writes are lost now and then, as by a failover.
    LosesLatest,
    /// One of two replicas has a clock that is ahead, and each counts by its own.
    ClockOfReplica,
    /// A period is a tenth too short.
    ShortPeriod,
    /// A hit counts for two periods.
    LongMemory,
    /// A reply is lost, and the limiter charges again without telling.
    ChargedTwice,
    /// A denied request is charged.
    DenialCharged,
    /// Of a group of limits, those before the one that denies are charged.
    PartOfGroup,
    /// Of a group of limits, only the first is asked.
    FirstOfGroup,
    /// Each request counts as one hit.
    HitsIgnored,
    /// All keys share a counter.
    KeysCollide,
    /// The period begins at fixed times.
    FixedWindow,
    /// Two replicas lease hits, and what is left of a lease at its end is spent and given back.
    LeaseSpentTwice,
    /// Each of two replicas has a share of its own, and gets it again when it restarts.
    ShareMinted,
    /// Peeking takes a hit.
    PeekTakes,
    /// What is given back is given back twice.
    ReturnedTwice,
    /// One too many remains, by the answer.
    RemainingOff,
    /// Half of the wait is told.
    ShortWait,
    /// Twice the wait is told.
    LongWait,
    /// A bucket refills twice as fast.
    FastRefill,
    /// A full bucket fills on.
    Overflow,
    /// A holder's place is given away at half of its time.
    HolderExpires,
    /// Any holder that leaves frees two places.
    HolderFreesTwo,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 24] = [
        Fault::OffByOne,
        Fault::Forgets,
        Fault::LosesLatest,
        Fault::ClockOfReplica,
        Fault::ShortPeriod,
        Fault::LongMemory,
        Fault::ChargedTwice,
        Fault::DenialCharged,
        Fault::PartOfGroup,
        Fault::FirstOfGroup,
        Fault::HitsIgnored,
        Fault::KeysCollide,
        Fault::FixedWindow,
        Fault::LeaseSpentTwice,
        Fault::ShareMinted,
        Fault::PeekTakes,
        Fault::ReturnedTwice,
        Fault::RemainingOff,
        Fault::ShortWait,
        Fault::LongWait,
        Fault::FastRefill,
        Fault::Overflow,
        Fault::HolderExpires,
        Fault::HolderFreesTwo,
    ];
}

const LONGEST_US: u64 = 200;

/// The state of a counter.
#[derive(Debug, Clone, Default)]
struct Counter {
    /// When each hit came, in the order of time.
    hits: Vec<u64>,
    /// Tokens times the period, and when they were that.
    tokens: Option<(u64, u64)>,
    /// Holders, with the end of their time.
    holders: Vec<(usize, u64)>,
    /// Hits that the replicas may take without asking: of leases, or of shares.
    own: [u64; 2],
}

/// A drawn limiter and its clients.
struct Toy {
    rng: Rng,
    fault: Option<Fault>,
    /// The limits: one, or a group of two.
    limits: Vec<Promise>,
    /// Length of a segment, by which hits of a window are forgotten together; 1 for none.
    segment_us: u64,
    /// The step of its clock.
    clock_us: u64,
    keys: usize,
    /// By limit and key.
    counters: Vec<Vec<Counter>>,
}

/// A call, before it is decided.
#[derive(Clone, Copy, Debug)]
struct Call {
    begin: u64,
    at: u64,
    end: u64,
    ask: Ask,
    key: usize,
    hits: u64,
    holder: usize,
    replica: usize,
    /// It has no answer; it is counted at its instant, or never.
    is_lost: bool,
    is_counted: bool,
}

/// Returns a history of a seed.
pub fn history(seed: u64, fault: Option<Fault>) -> (Header, Vec<Operation<'static>>) {
    let mut toy = Toy::draw(Rng::with_seed(seed), fault);
    let calls = toy.calls();
    let mut operations = Vec::new();
    for call in calls {
        toy.disturb();
        let (told, remaining, wait_us) = toy.decide(&call);
        let told = if call.is_lost { if toy.rng.bool() { Told::Late } else { Told::Failed } } else { told };
        let is_told = !call.is_lost;
        let part = |limit: usize| Part {
            limit: format!("l{limit}").into(),
            key: format!("k{}", call.key).into(),
            hits: call.hits,
            holder: matches!(toy.limits[limit], Promise::Holders { .. }).then(|| format!("h{}", call.holder).into()),
        };
        operations.push(Operation {
            begin: call.begin,
            end: call.end,
            ask: call.ask,
            of: (0..toy.limits.len()).map(part).collect(),
            told,
            remaining: remaining.filter(|_| is_told),
            wait_us: wait_us.filter(|_| is_told),
            from: 0,
            by: None,
        });
    }
    operations.sort_by_key(|operation| operation.end);
    let limits = toy.limits.iter().enumerate().map(|(index, promise)| (format!("l{index}"), promise.clone()));
    let (judge, about, limits) = (VERSION, String::new(), limits.collect());
    (
        Header {
            judge,
            about,
            longest_us: LONGEST_US,
            wait_resolution_us: toy.clock_us,
            clock_us: toy.clock_us,
            limits,
        },
        operations,
    )
}

impl Toy {
    fn draw(mut rng: Rng, fault: Option<Fault>) -> Toy {
        let period_us = rng.u64(20..2_000);
        let segments = if rng.bool() { 1_000_000 } else { rng.u64(2..11) };
        let segment_us = (period_us / segments).max(1);
        let window = |rng: &mut Rng| {
            let memory_us = if segment_us == 1 { period_us } else { period_us + segment_us };
            Promise::Window { number: rng.u64(1..8), period_us, memory_us, usable_thousandths: 1_000 }
        };
        let kind = match fault {
            Some(Fault::FastRefill | Fault::Overflow) => 1,
            Some(Fault::HolderExpires | Fault::HolderFreesTwo) => 2,
            Some(_) => 0,
            None => rng.u8(0..3),
        };
        let limits = match kind {
            0 if rng.bool() => vec![window(&mut rng), window(&mut rng)],
            0 => vec![window(&mut rng)],
            1 => vec![Promise::Bucket { burst: rng.u64(1..8), number: rng.u64(1..8), period_us }],
            _ => vec![Promise::Holders { number: rng.u64(1..4), expiry_us: period_us }],
        };
        let keys = rng.usize(1..4);
        // Faults have to be more than what a coarse clock does.
        let clock_us = if fault.is_none() { [1, 1, 3, 10][rng.usize(0..4)] } else { 1 };
        let mut counters = vec![vec![Counter::default(); keys]; limits.len()];
        for (promise, counters) in limits.iter().zip(&mut counters) {
            if let Promise::Window { number, .. } = promise {
                counters.iter_mut().for_each(|counter| counter.own = [number / 2, number - number / 2]);
            }
        }
        Toy { rng, fault, limits, segment_us, clock_us, keys, counters }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Draws calls, in the order of their instants.
    fn calls(&mut self) -> Vec<Call> {
        let rng = &mut self.rng;
        let is_of_holders = matches!(self.limits[0], Promise::Holders { .. });
        let has_returns = rng.u8(0..4) == 0 || is_of_holders || self.fault == Some(Fault::ReturnedTwice);
        let is_lossy = rng.u8(0..3) == 0;
        let most_hits = if rng.bool() { 1 } else { 5 };
        let (pause, lasts) = (rng.u64(1..300), rng.u64(1..LONGEST_US));
        let mut begin = 1_000;
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..rng.usize(5..80) {
            begin += rng.u64(0..pause);
            let end = begin + rng.u64(0..lasts);
            let ask = match rng.u8(0..10) {
                0 => Ask::Peek,
                1 | 2 if has_returns => Ask::Return,
                _ => Ask::Take,
            };
            let is_lost = is_lossy && rng.u8(0..8) == 0;
            // A lost call may be counted after its caller has given up.
            let latest = if is_lost { end + LONGEST_US } else { end };
            calls.push(Call {
                begin,
                at: rng.u64(begin..=latest),
                end,
                ask,
                key: rng.usize(0..self.keys),
                hits: if is_of_holders { 1 } else { rng.u64(1..=most_hits) },
                holder: rng.usize(0..6),
                replica: rng.usize(0..2),
                is_lost,
                is_counted: !is_lost || rng.bool(),
            });
        }
        calls.sort_by_key(|call| call.at);
        calls
    }

    /// Forgets what a fault forgets.
    fn disturb(&mut self) {
        if self.rng.u8(0..12) != 0 {
            return;
        }
        for (promise, counters) in self.limits.iter().zip(&mut self.counters) {
            for counter in counters {
                match (self.fault, promise) {
                    (Some(Fault::Forgets), _) => counter.hits.clear(),
                    (Some(Fault::LosesLatest), _) => drop(counter.hits.pop()),
                    (Some(Fault::ShareMinted), Promise::Window { number, .. }) => counter.own[0] = number / 2,
                    _ => {}
                }
            }
        }
    }

    /// Decides a call at its instant.
    fn decide(&mut self, call: &Call) -> (Told, Option<u64>, Option<u64>) {
        if !call.is_counted {
            return (Told::Failed, None, None);
        }
        let key = if self.is(Fault::KeysCollide) { 0 } else { call.key };
        let hits = if self.is(Fault::HitsIgnored) { 1 } else { call.hits };
        let ahead_us = if self.is(Fault::ClockOfReplica) && call.replica == 1 { 400 } else { 0 };
        let at = call.at / self.clock_us * self.clock_us + ahead_us;
        if call.ask == Ask::Return {
            let times = if self.is(Fault::ReturnedTwice) { 2 } else { 1 };
            (0..self.limits.len()).for_each(|limit| self.give_back(limit, key, times * hits, (call.holder, at)));
            return (Told::Allowed, None, None);
        }
        let asked = if self.is(Fault::FirstOfGroup) { 1 } else { self.limits.len() };
        let rooms: Vec<(bool, u64, u64)> =
            (0..asked).map(|limit| self.room(limit, key, hits, (call.holder, call.replica, at))).collect();
        let is_allowed = rooms.iter().all(|(fits, ..)| *fits);
        if call.ask == Ask::Peek && !self.is(Fault::PeekTakes) {
            return (if is_allowed { Told::Allowed } else { Told::Denied }, None, None);
        }
        let taken = match is_allowed {
            true => self.limits.len(),
            false if self.is(Fault::DenialCharged) => self.limits.len(),
            false if self.is(Fault::PartOfGroup) => rooms.iter().take_while(|(fits, ..)| *fits).count(),
            false => 0,
        };
        let times = if self.is(Fault::ChargedTwice) && self.rng.u8(0..6) == 0 { 2 } else { 1 };
        for limit in 0..taken {
            self.take(limit, key, times * hits, (call.holder, call.replica, at));
        }
        if !is_allowed {
            let wait_us = rooms.iter().map(|(.., wait_us)| *wait_us).max().unwrap_or(0);
            let wait_us = match self.fault {
                Some(Fault::ShortWait) => wait_us / 2,
                Some(Fault::LongWait) => wait_us * 2,
                _ => wait_us,
            };
            return (Told::Denied, None, Some(wait_us).filter(|wait_us| *wait_us < u64::MAX / 4));
        }
        let remaining = rooms.iter().map(|(_, left, _)| *left).min().unwrap_or(0).saturating_sub(hits);
        let remaining = if self.is(Fault::RemainingOff) { remaining + 1 } else { remaining };
        (Told::Allowed, Some(remaining), None)
    }

    /// When a hit at this time is forgotten.
    fn forgotten_at(&self, hit: u64, period_us: u64) -> u64 {
        match self.fault {
            Some(Fault::ShortPeriod) => hit + period_us * 9 / 10,
            Some(Fault::LongMemory) => hit + 2 * period_us,
            Some(Fault::FixedWindow) => (hit / period_us + 1) * period_us,
            _ if self.segment_us > 1 => hit / self.segment_us * self.segment_us + period_us + self.segment_us,
            _ => hit + period_us,
        }
    }

    /// Returns whether the hits fit, what is left, and how long to wait until they fit.
    fn room(
        &mut self,
        limit: usize,
        key: usize,
        hits: u64,
        (holder, replica, at): (usize, usize, u64),
    ) -> (bool, u64, u64) {
        let extra = u64::from(self.is(Fault::OffByOne));
        match self.limits[limit] {
            Promise::Window { number, period_us, .. } => {
                let forgotten: Vec<u64> =
                    self.counters[limit][key].hits.iter().map(|hit| self.forgotten_at(*hit, period_us)).collect();
                let counter = &mut self.counters[limit][key];
                // With faults of clocks, hits are not in the order of time.
                let mut ends = forgotten.iter();
                counter.hits.retain(|_| ends.next().is_some_and(|end| *end > at));
                let mut live: Vec<u64> = forgotten.into_iter().filter(|end| *end > at).collect();
                live.sort_unstable();
                let count = live.len() as u64;
                let number = number + extra;
                if self.is(Fault::LeaseSpentTwice) && self.counters[limit][key].own[replica] >= hits {
                    return (true, number.saturating_sub(count), 0);
                }
                if self.is(Fault::ShareMinted) {
                    let own = self.counters[limit][key].own[replica];
                    return (own >= hits && count < 2 * number, own, 0);
                }
                if hits > number {
                    return (false, number.saturating_sub(count), u64::MAX / 2);
                }
                let over = (count + hits).saturating_sub(number);
                let wait_us = over.checked_sub(1).map_or(0, |last| live[last as usize] - at);
                (over == 0, number.saturating_sub(count), wait_us)
            }
            Promise::Bucket { burst, number, period_us } => {
                let tokens = self.tokens(limit, key, at, (burst, number, period_us));
                let needed = hits * period_us;
                let wait_us = if hits > burst { u64::MAX / 2 } else { needed.saturating_sub(tokens).div_ceil(number) };
                (tokens >= needed, tokens / period_us, wait_us)
            }
            Promise::Holders { number, .. } => {
                let holders = &mut self.counters[limit][key].holders;
                holders.retain(|(_, until)| *until > at);
                let is_in = holders.iter().any(|(one, _)| *one == holder);
                let left = number.saturating_sub(holders.len() as u64);
                (is_in || left > 0, left, u64::MAX / 2)
            }
        }
    }

    fn tokens(&mut self, limit: usize, key: usize, at: u64, (burst, number, period_us): (u64, u64, u64)) -> u64 {
        let (tokens, since) = self.counters[limit][key].tokens.unwrap_or((burst * period_us, at));
        let speed = if self.is(Fault::FastRefill) { 2 } else { 1 };
        let most = if self.is(Fault::Overflow) { u64::MAX } else { burst * period_us };
        let tokens = (tokens + speed * number * (at - since)).min(most);
        self.counters[limit][key].tokens = Some((tokens, at));
        tokens
    }

    fn take(&mut self, limit: usize, key: usize, hits: u64, (holder, replica, at): (usize, usize, u64)) {
        let is_half = self.is(Fault::HolderExpires);
        let (leases, shares) = (self.is(Fault::LeaseSpentTwice), self.is(Fault::ShareMinted));
        let counter = &mut self.counters[limit][key];
        match self.limits[limit] {
            Promise::Window { number, .. } => {
                if leases || shares {
                    counter.own[replica] = counter.own[replica].saturating_sub(hits);
                }
                if leases && counter.own[replica] == 0 {
                    // Takes a new lease; what is spent of it is not counted a second time, but was given back, too.
                    counter.own[replica] = number / 2;
                }
                if !leases || self.rng.bool() {
                    counter.hits.extend((0..hits).map(|_| at));
                }
                if shares && counter.hits.len() as u64 >= number {
                    counter.hits.clear();
                }
            }
            Promise::Bucket { period_us, .. } => {
                if let Some((tokens, _)) = &mut counter.tokens {
                    *tokens = tokens.saturating_sub(hits * period_us);
                }
            }
            Promise::Holders { expiry_us, .. } => {
                let lasts_us = if is_half { expiry_us / 2 } else { expiry_us };
                counter.holders.retain(|(one, _)| *one != holder);
                counter.holders.push((holder, at + lasts_us));
            }
        }
    }

    fn give_back(&mut self, limit: usize, key: usize, hits: u64, (holder, at): (usize, u64)) {
        let frees_two = self.is(Fault::HolderFreesTwo);
        if let Promise::Bucket { burst, number, period_us } = self.limits[limit] {
            let tokens = self.tokens(limit, key, at, (burst, number, period_us));
            self.counters[limit][key].tokens = Some(((tokens + hits * period_us).min(burst * period_us), at));
            return;
        }
        let counter = &mut self.counters[limit][key];
        let kept = counter.hits.len().saturating_sub(hits as usize);
        counter.hits.truncate(kept);
        let had = counter.holders.len();
        counter.holders.retain(|(one, _)| *one != holder);
        if frees_two && counter.holders.len() < had {
            counter.holders.pop();
        }
    }
}
