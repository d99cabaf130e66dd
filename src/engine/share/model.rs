//! Fleets of three instances with two seats and a limit of 5, of which all lives of some seconds are searched with
//! `stateright`: at no time more is admitted than the limit.
//!
//! A life begins when all three have rules with shares and two have seats. Time goes by in seconds: a seat may be used
//! for two, and the limit's period is two. In each second, each instance in turn beats with or without an answer, or
//! does nothing; before that it may change to the new rules, be killed and replaced, or leave; and the server may
//! restart. How often that happens in a life is limited, since otherwise there are too many.
//!
//! Hits are not drawn: a share that may be used in a period admits all that it can, and so does the store, by the
//! largest rest that an instance asks for. Clocks run alike, messages arrive at once, and no table is lost: `lives`
//! draws those.

use std::collections::BTreeMap;
use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::{DomainTerms, Member, Shared, Split, Table};
use crate::algorithm::{Algorithm, Limit, Options, clipped};

const DOMAIN: u64 = 1;
const SEATS: u32 = 2;

/// The timeout of a seat and the period of the limit, in seconds. The period is 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Times {
    timeout: u64,
    period: u64,
}

/// The rules: the number, and the part that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rules(u32, Option<u16>);

impl Rules {
    fn limit(self, times: Times) -> Limit {
        Limit::new(Algorithm::SlidingLog, self.0.into(), Duration::from_secs(times.period), Options::default()).unwrap()
    }

    fn split(self) -> Option<Split> {
        self.1.map(|part| Split::new(part, SEATS))
    }

    fn digest(self) -> u64 {
        self.1.map_or(0, |part| u64::from(self.0) << 16 | u64::from(part))
    }

    fn shared(self) -> Shared {
        Shared { domain: DOMAIN, digest: self.digest(), split: self.split(), is_changed: false }
    }

    fn terms(self) -> BTreeMap<u64, DomainTerms> {
        self.split().map(|largest| (DOMAIN, DomainTerms { digest: self.digest(), largest })).into_iter().collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Instance {
    member: Member,
    rules: Rules,
}

/// The most that may be admitted in a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Second {
    /// By the shares of instances.
    shares: BTreeMap<String, u32>,
    /// By the store.
    rest: u32,
    /// The largest number in force.
    number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fleet {
    times: Times,
    now: u64,
    /// The instance whose turn it is.
    turn: usize,
    instances: Vec<Option<Instance>>,
    table: Table,
    server: u32,
    ids: u32,
    before: Second,
    current: Second,
    /// How often what may still happen.
    odds: Odds,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Odds {
    /// Beats that are not sent or have no answer.
    silences: u32,
    changes: u32,
    ends: u32,
    starts: u32,
    restarts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Beat,
    BeatWithoutAnswer,
    Nothing,
    Change,
    Kill,
    Leave,
    Start,
    Restart,
}

impl Fleet {
    /// Returns a fleet in which all seats are used.
    fn settled(times: Times, old: Rules, odds: Odds) -> Fleet {
        let (before, current) = (Second::default(), Second::default());
        let (table, instances) = (Table::default(), vec![None, None, None]);
        let mut fleet = Fleet {
            times,
            now: 100,
            turn: 0,
            instances,
            table,
            server: 0,
            ids: 0,
            before,
            current,
            odds: Odds::default(),
        };
        for place in 0..3 {
            fleet.start(place, old);
        }
        for _ in 0..3 * 12 {
            fleet.beat(true);
            fleet.pass();
        }
        Fleet { odds, ..fleet }
    }

    fn clock(&self) -> Duration {
        Duration::from_secs(self.now)
    }

    fn start(&mut self, place: usize, rules: Rules) {
        self.ids += 1;
        let id = format!("{place}{}", ["a", "b", "c", "d", "e"][self.ids as usize % 5]);
        let mut member = Member::new(&id, SEATS, Duration::from_secs(self.times.timeout));
        member.set_domains(rules.terms());
        self.instances[place] = Some(Instance { member, rules });
    }

    fn beat(&mut self, is_answered: bool) {
        let (now, server) = (self.clock(), format!("s{}", self.server));
        let Some(Instance { member, .. }) = &mut self.instances[self.turn] else { return };
        let (query, id) = (member.query(now), member.id().to_owned());
        let answer = self.table.beat(&server, &query.beat(&id, &format!("{id}{}", self.now)));
        if is_answered {
            member.answered(&query, &answer, now);
        }
    }

    fn leave(&mut self) {
        let (now, server) = (self.clock(), format!("s{}", self.server));
        if let Some(Instance { mut member, .. }) = self.instances[self.turn].take() {
            let query = member.last_query(now);
            self.table.beat(&server, &query.beat(member.id(), &format!("{}{}", member.id(), self.now)));
        }
    }

    /// Goes on to the next instance, or the next second.
    fn pass(&mut self) {
        self.turn += 1;
        if self.turn == self.instances.len() {
            (self.turn, self.now) = (0, self.now + 1);
            self.before = std::mem::take(&mut self.current);
        }
        self.note();
    }

    /// Notes what may be admitted now.
    fn note(&mut self) {
        let now = self.clock();
        for Instance { member, rules } in self.instances.iter().flatten() {
            let (view, limit, shared) = (member.view(), rules.limit(self.times), rules.shared());
            let share = view.share(&shared, &limit, now).map_or(0, |share| clipped(share.number()));
            if share > 0 {
                let most = self.current.shares.entry(member.id().to_owned()).or_default();
                *most = share.max(*most);
            }
            // Without a current view, an instance beats before it decides.
            let rest = if view.is_current(now) { clipped(view.rest(&shared, &limit, now).number()) } else { 0 };
            self.current.rest = rest.max(self.current.rest);
            self.current.number = rules.0.max(self.current.number);
        }
    }

    /// Returns the most that may be admitted in the last period, and the largest number in force in it.
    fn admitted(&self) -> (u32, u32) {
        let nothing = Second::default();
        let before = if self.times.period > 1 { &self.before } else { &nothing };
        let current = &self.current;
        let mut shares = before.shares.clone();
        for (id, share) in &current.shares {
            let most = shares.entry(id.clone()).or_default();
            *most = share.max(most).to_owned();
        }
        (shares.values().sum::<u32>() + before.rest.max(current.rest), before.number.max(current.number))
    }
}

struct Lives {
    times: Times,
    old: Rules,
    new: Rules,
    odds: Odds,
    seconds: u64,
}

impl Model for Lives {
    type State = Fleet;
    type Action = Action;

    fn init_states(&self) -> Vec<Fleet> {
        vec![Fleet::settled(self.times, self.old, self.odds)]
    }

    fn actions(&self, fleet: &Fleet, actions: &mut Vec<Action>) {
        let Odds { silences, changes, ends, starts, restarts } = fleet.odds;
        let Some(instance) = &fleet.instances[fleet.turn] else {
            actions.push(Action::Nothing);
            actions.extend((starts > 0).then_some(Action::Start));
            return;
        };
        actions.push(Action::Beat);
        if silences > 0 {
            actions.extend([Action::BeatWithoutAnswer, Action::Nothing]);
        }
        if changes > 0 && instance.rules == self.old {
            actions.push(Action::Change);
        }
        if ends > 0 {
            actions.extend([Action::Kill, Action::Leave]);
        }
        if restarts > 0 {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, fleet: &Fleet, action: Action) -> Option<Fleet> {
        let mut fleet = fleet.clone();
        let (turn, odds) = (fleet.turn, &mut fleet.odds);
        let mut is_over = true;
        match action {
            Action::Beat => fleet.beat(true),
            Action::BeatWithoutAnswer => {
                odds.silences -= 1;
                fleet.beat(false);
            }
            Action::Nothing => odds.silences -= u32::from(fleet.instances[turn].is_some()),
            Action::Change => {
                odds.changes -= 1;
                if let Some(instance) = &mut fleet.instances[turn] {
                    instance.rules = self.new;
                    instance.member.set_domains(self.new.terms());
                }
                is_over = false;
            }
            Action::Kill => {
                odds.ends -= 1;
                fleet.instances[turn] = None;
            }
            Action::Leave => {
                odds.ends -= 1;
                fleet.leave();
            }
            Action::Start => {
                odds.starts -= 1;
                fleet.start(turn, self.new);
                fleet.beat(true);
            }
            Action::Restart => {
                odds.restarts -= 1;
                fleet.server += 1;
                is_over = false;
            }
        }
        fleet.note();
        if is_over {
            fleet.pass();
        }
        Some(fleet)
    }

    fn properties(&self) -> Vec<Property<Lives>> {
        vec![
            Property::always("never more than the limit", |_, fleet: &Fleet| {
                let (admitted, number) = fleet.admitted();
                admitted <= number
            }),
            Property::sometimes("shares of the new rules are used", |lives: &Lives, fleet: &Fleet| {
                let new = fleet.instances.iter().flatten().filter(|instance| instance.rules == lives.new);
                let ids: Vec<_> = new.map(|instance| instance.member.id()).collect();
                lives.new.1.is_none() || ids.iter().any(|id| fleet.current.shares.contains_key(*id))
            }),
        ]
    }

    fn within_boundary(&self, fleet: &Fleet) -> bool {
        fleet.now <= 112 + self.seconds
    }
}

fn search(lives: Lives) {
    let Lives { times, old, new, odds, .. } = lives;
    let fleet = Fleet::settled(times, old, odds);
    assert_eq!(fleet.current.shares.len(), if old.1.is_some() { 2 } else { 0 });
    let checker = lives.checker().threads(2).spawn_bfs().join();
    println!("{} states of {old:?} to {new:?} with {odds:?}", checker.unique_state_count());
    checker.assert_no_discovery("never more than the limit");
    if odds.changes == 3 && new.1.is_some() {
        checker.assert_any_discovery("shares of the new rules are used");
    }
}

const SHARED: Rules = Rules(5, Some(4_000));
const PLAIN: Rules = Rules(5, None);
const MORE: Rules = Rules(5, Some(8_000));

/// The seconds of a life. `MODEL_SECONDS=9` searches longer ones, which takes minutes and gigabytes.
fn seconds() -> u64 {
    std::env::var("MODEL_SECONDS").map_or(6, |seconds| seconds.parse().unwrap())
}

#[test]
fn no_life_of_a_small_fleet_exceeds_the_limit() {
    let none = Odds::default();
    let silent = Odds { silences: 2, changes: 1, ..none };
    let changing = Odds { changes: 3, ..none };
    let restarting = Odds { changes: 1, restarts: 1, ..none };
    let ending = Odds { changes: 2, ends: 1, starts: 1, ..none };
    for times in [Times { timeout: 2, period: 2 }, Times { timeout: 3, period: 1 }] {
        for (old, new) in [(SHARED, PLAIN), (SHARED, MORE), (PLAIN, SHARED)] {
            for odds in [silent, changing, restarting, ending] {
                search(Lives { times, old, new, odds, seconds: seconds() });
            }
        }
    }
}
