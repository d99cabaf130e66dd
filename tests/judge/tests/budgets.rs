//! The checks of budgets are judged: a toy budget whose instants are known raises no alarm, and each fault that is
//! planted in it is found. `JUDGE_SEEDS=0..1000000` draws other histories.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::collections::BTreeMap;

use fastrand::Rng;
use tollgate_judge::check::{Checks, Judge, Judgement, Kind};
use tollgate_judge::history::{Ask, Header, Operation, Part, Promise, Told, Unsettled, VERSION};

const LONGEST_US: u64 = 200;

/// What a toy budget does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One hit more than the number fits.
    OneTooMany,
    /// What others hold is not counted when a stream begins.
    HoldsForgotten,
    /// Used hits are not counted when a stream begins.
    UsedForgotten,
    /// Used hits leave the window early.
    WindowTooShort,
    /// A settle does not end the hold.
    HoldKept,
    /// A hold without a settle never ends.
    NeverEnds,
    /// Some settles get lost.
    SettleLost,
    /// A second settle is charged in full.
    ChargedTwice,
    /// A settle is charged beside the charge of a hold that has ended.
    LateSettleAdds,
    /// What is to be charged is refunded, or the other way round.
    OtherEnd,
    /// A settle charges what was held.
    ChargesHold,
    /// A denied hold reserves.
    DeniedHolds,
    /// The count lacks a hit now and then.
    CountLacks,
}

impl Fault {
    const ALL: [Fault; 13] = [
        Fault::OneTooMany,
        Fault::HoldsForgotten,
        Fault::UsedForgotten,
        Fault::WindowTooShort,
        Fault::HoldKept,
        Fault::NeverEnds,
        Fault::SettleLost,
        Fault::ChargedTwice,
        Fault::LateSettleAdds,
        Fault::OtherEnd,
        Fault::ChargesHold,
        Fault::DeniedHolds,
        Fault::CountLacks,
    ];
}

/// A call, before it is decided.
#[derive(Clone, Copy, Debug)]
struct Call {
    begin: u64,
    at: u64,
    end: u64,
    ask: Ask,
    stream: usize,
    hits: u64,
    /// It has no answer; it takes effect at its instant, or never.
    is_lost: bool,
    has_effect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until this time.
    Held(u64, u64),
    /// The hits that were charged, and when if at the end of the hold.
    Ended(u64, Option<u64>),
}

/// A toy budget.
struct Toy {
    rng: Rng,
    fault: Option<Fault>,
    number: u64,
    /// How long used hits count.
    window_us: u64,
    held_us: (u64, u64),
    unsettled: Unsettled,
    /// Settles are answered although they may have no effect.
    loses_settles: bool,
    /// The step of its clock.
    clock_us: u64,
    streams: BTreeMap<usize, State>,
    /// When hits were charged.
    used: Vec<(u64, u64)>,
    /// What has ended and is in no count yet.
    total: i64,
    uncounted: i64,
}

impl Toy {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Ends holds that are over.
    fn end_holds(&mut self, at: u64) {
        let charges = (self.unsettled == Unsettled::Charge) != self.is(Fault::OtherEnd);
        for state in self.streams.values_mut() {
            if let State::Held(hits, over) = *state
                && over <= at
            {
                let paid = if charges { hits } else { 0 };
                *state = State::Ended(paid, Some(over));
                self.used.push((over, paid));
                self.uncounted += paid as i64;
            }
        }
    }

    fn used(&self, at: u64) -> u64 {
        let short = if self.is(Fault::WindowTooShort) { self.window_us / 2 } else { self.window_us };
        self.used.iter().filter(|(since, _)| since + short > at).map(|(_, hits)| hits).sum()
    }

    fn held(&self) -> u64 {
        let held = |state: &State| if let State::Held(hits, _) = state { *hits } else { 0 };
        self.streams.values().map(held).sum()
    }

    fn remaining(&self, at: u64) -> u64 {
        self.number.saturating_sub(self.used(at) + self.held())
    }

    fn charge(&mut self, at: u64, hits: u64) {
        self.used.push((at, hits));
        let is_lacking = self.is(Fault::CountLacks) && self.rng.u8(0..8) == 0;
        self.total += hits as i64 - i64::from(is_lacking);
    }

    /// Whatever has ended is counted with a change.
    fn count(&mut self) {
        self.total += std::mem::take(&mut self.uncounted);
    }

    fn decide(&mut self, Call { at, ask, stream, hits, .. }: Call) -> (Told, Option<u64>) {
        let at = at - at % self.clock_us;
        self.end_holds(at);
        match ask {
            Ask::Hold => {
                if let Some(State::Ended(..)) = self.streams.get(&stream) {
                    return (Told::Allowed, Some(self.remaining(at)));
                }
                let used = if self.is(Fault::UsedForgotten) { 0 } else { self.used(at) };
                let held = if self.is(Fault::HoldsForgotten) { 0 } else { self.held() };
                let most = self.number + u64::from(self.is(Fault::OneTooMany));
                let over = at + self.rng.u64(self.held_us.0..=self.held_us.1);
                let over = if self.is(Fault::NeverEnds) { u64::MAX / 2 } else { over };
                let allowed = used + held + hits <= most;
                if allowed || self.is(Fault::DeniedHolds) {
                    self.streams.insert(stream, State::Held(hits, over));
                }
                if !allowed {
                    return (Told::Denied, None);
                }
                self.count();
            }
            Ask::Settle => self.settle(at, stream, hits),
            _ => {}
        }
        (Told::Allowed, Some(self.remaining(at)))
    }

    fn settle(&mut self, at: u64, stream: usize, hits: u64) {
        if self.is(Fault::SettleLost) && self.rng.u8(0..4) == 0 {
            return;
        }
        let state = self.streams.get(&stream).copied();
        match state {
            Some(State::Held(held, _)) => {
                self.count();
                self.charge(at, if self.is(Fault::ChargesHold) { held } else { hits });
                if self.is(Fault::HoldKept) {
                    self.streams.insert(stream + 100_000, State::Held(held, u64::MAX / 2));
                }
                self.streams.insert(stream, State::Ended(hits, None));
            }
            Some(State::Ended(paid, over)) => {
                self.count();
                let adds = over.is_some() && self.is(Fault::LateSettleAdds);
                let more = if adds || self.is(Fault::ChargedTwice) { hits } else { hits.saturating_sub(paid) };
                self.charge(at, more);
                if let Some(over) = over
                    && hits < paid
                    && !adds
                {
                    // Corrects the charge of the hold.
                    let charged = self.used.iter_mut().find(|(since, hits)| (*since, *hits) == (over, paid));
                    charged.unwrap().1 = hits;
                    self.total -= (paid - hits) as i64;
                }
                let kept = if over.is_some() { hits } else { hits.max(paid) };
                self.streams.insert(stream, State::Ended(kept, None));
            }
            None if hits > 0 => {
                self.count();
                self.charge(at, hits);
                self.streams.insert(stream, State::Ended(hits, None));
            }
            None => {}
        }
    }

    /// Draws the calls of all streams, in the order of their instants, and what is asked at the end.
    fn calls(&mut self, most_hits: u64) -> (Vec<Call>, u64) {
        let rng = &mut self.rng;
        let (is_lossy, loses_settles) = (rng.u8(0..3) == 0, self.loses_settles);
        let (pause, lasts) = (rng.u64(1..300), rng.u64(1..LONGEST_US));
        let mut calls = Vec::new();
        let mut call = |rng: &mut Rng, begin: u64, ask, stream, hits| {
            let end = begin + rng.u64(0..lasts);
            let is_lost = is_lossy && rng.u8(0..8) == 0;
            let at = rng.u64(begin..=if is_lost { end + LONGEST_US } else { end });
            let has_effect = if is_lost || (loses_settles && ask == Ask::Settle) { rng.bool() } else { true };
            calls.push(Call { begin, at, end, ask, stream, hits, is_lost, has_effect });
            end
        };
        let (mut begin, mut last) = (1_000, 0);
        for stream in 0..rng.usize(3..40) {
            begin += rng.u64(0..pause);
            let hits = rng.u64(1..=most_hits);
            let mut end = call(rng, begin, Ask::Hold, stream, hits);
            // Some settle before they have begun, some late, some twice, some never.
            for _ in 0..[0, 1, 1, 1, 1, 2][rng.usize(0..6)] {
                let at = match rng.u8(0..8) {
                    0 => begin + rng.u64(0..lasts),
                    1 => end + self.held_us.1 + rng.u64(0..100),
                    _ => end + 1 + rng.u64(0..self.held_us.0),
                };
                let used = used(rng, hits);
                end = call(rng, at, Ask::Settle, stream, used);
            }
            last = end.max(last);
        }
        calls.sort_by_key(|call| call.at);
        (calls, last + 2 * LONGEST_US + self.held_us.1 + self.window_us + 3 * self.clock_us + 1)
    }
}

/// Draws the hits that a stream uses that holds this many.
fn used(rng: &mut Rng, held: u64) -> u64 {
    let most = if rng.u8(0..4) == 0 { 2 * held } else { held };
    rng.u64(0..=most)
}

/// Returns a history of a seed.
fn history(seed: u64, fault: Option<Fault>) -> (Header, Vec<Operation<'static>>) {
    let mut rng = Rng::with_seed(seed);
    let number = rng.u64(1..30);
    let period_us = rng.u64(20..3_000);
    let segment_us = if rng.bool() { 0 } else { period_us / rng.u64(2..11) };
    let within = rng.u64(100..2_000);
    let held_us = (within, within + within / 16 + 2);
    let unsettled = if rng.bool() { Unsettled::Charge } else { Unsettled::Refund };
    let window_us = period_us + rng.u64(0..=segment_us);
    let (streams, used) = (BTreeMap::new(), Vec::new());
    // Faults have to be more than what a coarse clock and lost settles do.
    let clock_us = if fault.is_none() { [1, 1, 3, 10][rng.usize(0..4)] } else { 1 };
    let loses_settles = fault.is_none() && rng.u8(0..4) == 0;
    let mut toy = Toy {
        rng,
        fault,
        number,
        window_us,
        held_us,
        unsettled,
        loses_settles,
        clock_us,
        streams,
        used,
        total: 0,
        uncounted: 0,
    };
    let (mut calls, free_at) = toy.calls(number.min(8));
    for (index, (ask, hits)) in [(Ask::Hold, number), (Ask::Settle, 0), (Ask::Total, 1)].into_iter().enumerate() {
        let at = free_at + 2 * index as u64;
        let (begin, end, stream) = (at, at, usize::MAX);
        calls.push(Call { begin, at, end, ask, stream, hits, is_lost: false, has_effect: true });
    }
    let mut operations = Vec::new();
    for call in calls {
        let (told, remaining) = if call.has_effect { toy.decide(call) } else { (Told::Allowed, None) };
        let told = if call.is_lost { [Told::Late, Told::Failed][toy.rng.usize(0..2)] } else { told };
        let holder = (call.ask != Ask::Total).then(|| format!("s{}", call.stream).into());
        operations.push(Operation {
            begin: call.begin,
            end: call.end,
            ask: call.ask,
            of: vec![Part { limit: "b".into(), key: "k".into(), hits: call.hits, holder }],
            told,
            remaining: remaining.filter(|_| !call.is_lost),
            total: (call.ask == Ask::Total).then_some(toy.total),
            wait_us: None,
            from: 0,
            by: None,
        });
    }
    operations.sort_by_key(|operation| operation.end);
    let promise = Promise::Budget {
        number,
        period_us,
        memory_us: period_us + segment_us,
        settle_within_us: held_us.0,
        hold_for_us: held_us.1,
        unsettled,
        settles_may_be_lost: loses_settles,
    };
    let header = Header {
        judge: VERSION,
        about: String::new(),
        longest_us: LONGEST_US,
        wait_resolution_us: 0,
        clock_us,
        limits: [("b".to_owned(), promise)].into(),
    };
    (header, operations)
}

fn judged(seed: u64, fault: Option<Fault>) -> Judgement {
    let (header, operations) = history(seed, fault);
    let mut judge = Judge::new(header, Checks::default());
    operations.iter().for_each(|operation| judge.add(operation).unwrap());
    judge.finish()
}

#[test]
fn a_legal_history_raises_no_alarm() {
    let seeds = std::env::var("JUDGE_SEEDS").unwrap_or("0..20000".to_owned());
    let (from, to) = seeds.split_once("..").expect("JUDGE_SEEDS=0..1000000");
    let (mut allowed, mut denied) = (0, 0);
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        let judgement = judged(seed, None);
        assert!(judgement.is_legal_but_for(&[]), "seed {seed}: {judgement}");
        (allowed, denied) = (allowed + judgement.allowed, denied + judgement.denied);
    }
    assert!(denied > allowed / 20, "{denied} of {allowed} are too few to say anything");
}

#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        match (0..2_000).find(|seed| !judged(*seed, Some(fault)).is_legal_but_for(&[])) {
            Some(seed) => println!("{fault:?}: seed {seed}: {:?}", judged(seed, Some(fault)).broken),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// What each check is for: it finds this fault.
#[test]
fn each_check_finds_what_it_is_for() {
    let finds = |fault, kind| (0..2_000).any(|seed| judged(seed, Some(fault)).count(kind) > 0);
    for (fault, kind) in [
        (Fault::OneTooMany, Kind::OverLimit),
        (Fault::HoldsForgotten, Kind::OverLimit),
        (Fault::UsedForgotten, Kind::OverLimit),
        (Fault::WindowTooShort, Kind::OverLimit),
        (Fault::HoldKept, Kind::NeedlessDenial),
        (Fault::NeverEnds, Kind::NeedlessDenial),
        (Fault::DeniedHolds, Kind::NeedlessDenial),
        (Fault::HoldKept, Kind::WrongRemaining),
        (Fault::ChargedTwice, Kind::WrongTotal),
        (Fault::LateSettleAdds, Kind::WrongTotal),
        (Fault::SettleLost, Kind::WrongTotal),
        (Fault::OtherEnd, Kind::WrongTotal),
        (Fault::CountLacks, Kind::WrongTotal),
    ] {
        assert!(finds(fault, kind), "{fault:?}: {kind}");
    }
}
