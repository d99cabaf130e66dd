//! A toy limiter on drawn clients: every instant is known, so that its histories are legal by construction, unless a
//! fault is planted in it.

mod fault;
mod limiter;

use fastrand::Rng;
use tollgate_judge::history::{Ask, Header, Operation, Part, Promise, Told, VERSION};

pub use fault::Fault;

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
    /// The hits that were taken and not given back, by its own count.
    total: u64,
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
    /// The only limit that is asked.
    only: Option<usize>,
    hits: u64,
    holder: usize,
    replica: usize,
    /// It has no answer; it is counted at its instant, or never.
    is_lost: bool,
    is_counted: bool,
}

impl Call {
    /// Asks at the end what remains.
    fn last_peek(key: usize, at: u64) -> Call {
        let (begin, end) = (at, at + 1);
        let (is_lost, is_counted) = (false, true);
        Call { begin, at, end, ask: Ask::Peek, key, only: Some(0), hits: 1, holder: 6, replica: 0, is_lost, is_counted }
    }
}

/// Returns a history of a seed.
pub fn history(seed: u64, fault: Option<Fault>) -> (Header, Vec<Operation<'static>>) {
    let mut toy = Toy::draw(Rng::with_seed(seed), fault);
    let calls = toy.calls();
    let mut operations = Vec::new();
    for call in calls {
        toy.disturb();
        let total = toy.total(&call);
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
            of: call.only.map_or(0..toy.limits.len(), |limit| limit..limit + 1).map(part).collect(),
            told,
            remaining: remaining.filter(|_| is_told),
            total: total.filter(|_| is_told),
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
            let holds_back = fault == Some(Fault::HoldsBackMore) || (fault.is_none() && rng.u8(0..4) == 0);
            let usable_thousandths = if holds_back { rng.u64(300..1_000) } else { 1_000 };
            Promise::Window { number: rng.u64(1..8), period_us, memory_us, usable_thousandths, unrecorded: 0 }
        };
        let kind = match fault {
            Some(Fault::FastRefill | Fault::Overflow) => 1,
            Some(Fault::HolderExpires | Fault::HolderFreesTwo | Fault::ReleaseLost | Fault::PlaceKept) => 2,
            Some(_) => 0,
            None => rng.u8(0..3),
        };
        let limits = match kind {
            0 if rng.bool() => vec![window(&mut rng), window(&mut rng)],
            0 => vec![window(&mut rng)],
            1 => vec![Promise::Bucket {
                burst: rng.u64(1..8),
                number: rng.u64(1..8),
                period_us,
                usable_thousandths: 1_000,
            }],
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
        let has_returns =
            rng.u8(0..4) == 0 || is_of_holders || matches!(self.fault, Some(Fault::ReturnedTwice | Fault::RefundLost));
        let is_lossy = rng.u8(0..3) == 0;
        let has_totals = !is_of_holders && rng.bool();
        let most_hits = if rng.bool() { 1 } else { 5 };
        let (pause, lasts) = (rng.u64(1..300), rng.u64(1..LONGEST_US));
        let mut begin = 1_000;
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..rng.usize(5..80) {
            begin += rng.u64(0..pause);
            let end = begin + rng.u64(0..lasts);
            let ask = match rng.u8(0..10) {
                0 if has_totals && rng.bool() => Ask::Total,
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
                only: (ask == Ask::Total).then(|| rng.usize(0..self.limits.len())),
                hits: if is_of_holders { 1 } else { rng.u64(1..=most_hits) },
                holder: rng.usize(0..6),
                replica: rng.usize(0..2),
                is_lost,
                is_counted: !is_lost || rng.bool(),
            });
        }
        if let Promise::Holders { expiry_us, .. } = self.limits[0] {
            // All is let go or has expired.
            let at = begin + 3 * LONGEST_US + expiry_us + 2 * self.clock_us;
            calls.extend((0..self.keys).map(|key| Call::last_peek(key, at)));
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
}
