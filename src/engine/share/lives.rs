//! Lives of fleets, drawn by seed, in which at no time more is admitted than the limit: the promise of
//! [`share`](super), against loss, delay, duplicates, clocks of different speeds, kills, pauses, partitions, changes of
//! rules, and lost or old tables. `LIVES_SEEDS=0..1000000` draws other lives.
//!
//! [`Mistake`] plants mistakes at the interfaces of [`Member`], [`View`] and [`Table`]: each is found.
//!
//! Not drawn: an instance that reaches the counters, but not the table, for longer than its timeout; and a new instance
//! with other rules than an instance that a lost table lacks (see [`World::is_blind`]). The head of `share` excludes
//! both.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use super::table::Beat;
use super::{Answer, DomainTerms, Entry, Member, Query, Seat, Shared, Split, Table, View};
use crate::algorithm::{Algorithm, Limit, Options, clipped};

/// The timeout of a seat.
const TIMEOUT: u64 = 1_000;
const DOMAIN: u64 = 7;

/// Parts of limits that are shared.
const PARTS: [u16; 5] = [1_000, 2_500, 5_000, 7_777, 9_000];

/// Random numbers: splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.roll() % (range.end - range.start)
    }

    /// Returns true in so many of a thousand cases.
    fn chance(&mut self, of_thousand: u64) -> bool {
        self.of(0..1_000) < of_thousand
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.of(0..values.len() as u64) as usize]
    }
}

/// The rules of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    number: u32,
    /// The part and the seats.
    share: Option<(u16, u32)>,
    /// By how much the largest part of the domain is larger than this limit's.
    larger: u16,
    adjusted: Option<u32>,
}

impl Rules {
    fn split(&self) -> Option<Split> {
        self.share.map(|(part, seats)| Split::new(part, seats))
    }

    fn digest(&self) -> u64 {
        let share = self.share.map_or(0, |(part, seats)| u64::from(part) * 64 + u64::from(seats));
        (u64::from(self.number) << 40) + (share << 16) + u64::from(self.larger) + 1
    }

    fn shared(&self) -> Shared {
        let digest = if self.share.is_some() { self.digest() } else { 0 };
        Shared { domain: DOMAIN, digest, split: self.split(), is_changed: self.adjusted.is_some() }
    }

    fn terms(&self) -> BTreeMap<u64, DomainTerms> {
        let terms = |(part, seats): (u16, u32)| {
            let largest = Split::new(part + self.larger, seats);
            (DOMAIN, DomainTerms { digest: self.digest(), largest })
        };
        self.share.map(terms).into_iter().collect()
    }

    fn in_force(&self) -> u32 {
        self.adjusted.unwrap_or(self.number)
    }

    fn limit(&self, period: u64) -> Limit {
        let period = Duration::from_millis(period);
        Limit::new(Algorithm::SlidingLog, self.in_force().into(), period, Options::default()).unwrap()
    }
}

/// An instance of the fleet.
struct Instance {
    id: String,
    member: Member,
    /// The time of its clock at the start, and by how many ten-thousandths the clock runs fast.
    offset: u64,
    fast: i64,
    rules: Rules,
    /// When the member learns of new rules.
    notes_at: Option<u64>,
    /// Rules to come.
    adopts: Option<(u64, Rules)>,
    paused_until: u64,
    cut_off_until: u64,
    beats_at: u64,
    flight: Option<Flight>,
    /// The hits that it has admitted by its share.
    own: VecDeque<u64>,
    is_answered: bool,
    /// Whether it is new, or was away, and has not seen a table since that has all instances: see [`World::is_blind`].
    is_new: bool,
    /// Since when it has its seat, and since when all agree.
    seat_since: Option<u64>,
    agreed_since: Option<u64>,
    /// For how long it was paused, if its clock stops then.
    stopped: u64,
    /// When its fixed window began, for [`Mistake::FixedWindow`].
    window: u64,
    /// Before which time its old share is used, and which, for [`Mistake::OldShareGoesOn`].
    old: (u64, u32),
}

/// A beat without an answer yet.
struct Flight {
    number: u64,
    query: Query,
    /// The member before the question.
    before: Member,
    answer: Option<(u64, Answer)>,
    gives_up: u64,
}

/// A beat on its way to the table.
struct Execution {
    at: u64,
    id: String,
    query: Query,
    incarnation: String,
    number: u64,
    answer_after: Option<u64>,
}

struct Server {
    name: String,
    table: Table,
    /// Copies of the table after each of the last beats.
    copies: VecDeque<Table>,
}

/// How often what happens, of a thousand steps or messages.
#[derive(Default)]
struct Odds {
    lost: u64,
    late: u64,
    twice: u64,
    kill: u64,
    leave: u64,
    pause: u64,
    cut_off: u64,
    rules: u64,
    adjust: u64,
    scale: u64,
    table_lost: u64,
    failover: u64,
    restart: u64,
    idle: u64,
}

impl Odds {
    fn drawn(dice: &mut Dice) -> Odds {
        let mut often = |most: u64| {
            let of = dice.pick(&[0, 0, 1, 1, 3]);
            most * of / 3
        };
        Odds {
            lost: often(500),
            late: often(500),
            twice: often(300),
            kill: often(8),
            leave: often(8),
            pause: often(20),
            cut_off: often(20),
            rules: often(12),
            adjust: often(8),
            scale: often(15),
            table_lost: often(4),
            failover: often(6),
            restart: often(4),
            idle: often(900),
        }
    }
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    by_shares: u64,
    by_store: u64,
    denied: u64,
    /// Decisions that asked the store.
    asked: u64,
}

/// More admitted than the limit.
#[derive(Debug)]
struct Broken {
    at: u64,
    admitted: usize,
    most: u32,
    history: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { at, admitted, most, history } = self;
        write!(f, "{admitted} hits of {most} at {at}:\n{}", history.join("\n"))
    }
}

struct World {
    dice: Dice,
    odds: Odds,
    mistake: Option<Mistake>,
    now: u64,
    period: u64,
    seats: u32,
    target: Rules,
    /// Whether instances have different timeouts. The table is then never lost.
    has_timeouts: bool,
    most_instances: usize,
    /// The hits of each instance at each step, if they are not drawn.
    hits: Option<u64>,
    /// Until when nothing happens.
    calm_until: u64,
    /// When a new instance comes.
    spawns_at: Option<u64>,
    instances: Vec<Instance>,
    executions: Vec<Execution>,
    server: Server,
    names: u64,
    /// When each incarnation began.
    begun: HashMap<String, u64>,
    of_store: VecDeque<u64>,
    /// What shares admitted, by which rules.
    by_shares: VecDeque<(u64, Rules)>,
    all: VecDeque<u64>,
    /// Numbers that were in force until a time.
    numbers: VecDeque<(u64, u32)>,
    counts: Counts,
    history: Option<VecDeque<String>>,
}

/// Notes an event, if somebody reads it.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if let Some(history) = &mut $world.history {
            if history.len() >= 80 {
                history.pop_front();
            }
            history.push_back(format!("{:>6} {}", $world.now, format_args!($($text)*)));
        }
    };
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> World {
        let mut dice = Dice(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let odds = Odds::drawn(&mut dice);
        let period = dice.pick(&[100, 250, 500, 1_000, 2_000]);
        let seats = dice.pick(&[1, 1, 2, 2, 3, 4]);
        let has_timeouts = dice.chance(150);
        let most_instances = dice.of(2..6) as usize;
        let share = dice.chance(800).then_some((dice.pick(&PARTS), seats));
        let target = Rules { number: dice.of(2..40) as u32, share, larger: 0, adjusted: None };
        let mut world = World {
            dice,
            odds,
            mistake,
            now: 10_000,
            period,
            seats,
            target,
            has_timeouts,
            most_instances,
            hits: None,
            calm_until: 0,
            spawns_at: None,
            instances: Vec::new(),
            executions: Vec::new(),
            server: Server { name: "s1".to_owned(), table: Table::default(), copies: VecDeque::new() },
            names: 1,
            begun: HashMap::new(),
            of_store: VecDeque::new(),
            by_shares: VecDeque::new(),
            all: VecDeque::new(),
            numbers: VecDeque::new(),
            counts: Counts::default(),
            history: None,
        };
        // Half of the fleets have shares before anything happens.
        world.calm_until = if world.dice.chance(500) { world.now + 2 * TIMEOUT + period } else { 0 };
        for _ in 0..world.dice.of(2..1 + most_instances as u64) {
            world.spawn();
        }
        world
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// Returns rules that differ from those of the fleet in one thing or all.
    fn drawn_rules(&mut self) -> Rules {
        let dice = &mut self.dice;
        let mut rules = self.target;
        let what = dice.of(0..8);
        if matches!(what, 0 | 1 | 7) {
            rules.number = dice.of(2..40) as u32;
        }
        if matches!(what, 2..=4 | 7) {
            let is_shared = if what == 2 { rules.share.is_none() } else { dice.chance(800) };
            let seats = if dice.chance(800) { self.seats } else { dice.of(1..6) as u32 };
            let part = dice.pick(&PARTS);
            rules.share = is_shared.then_some((part, seats));
            rules.larger = dice.pick(&[0, 0, 500, 1_000]);
        }
        rules
    }

    fn spawn(&mut self) {
        let id = format!("i{}", self.name());
        let seats = if self.dice.chance(850) { self.seats } else { self.dice.of(1..6) as u32 };
        let rules = if self.dice.chance(800) { self.target } else { self.drawn_rules() };
        let timeout = if self.has_timeouts && self.dice.chance(500) { 2 * TIMEOUT } else { TIMEOUT };
        let (offset, fast) = (self.dice.of(0..1_000_000_000), self.dice.of(0..401) as i64 - 200);
        note!(self, "{id} starts with {rules:?}, {seats} seats, clock {fast}");
        let mut instance = Instance {
            member: Member::new(&id, seats, Duration::from_millis(timeout)),
            id,
            offset,
            fast,
            rules,
            notes_at: None,
            adopts: None,
            paused_until: 0,
            cut_off_until: 0,
            beats_at: self.now,
            flight: None,
            own: VecDeque::new(),
            is_answered: false,
            is_new: false,
            seat_since: None,
            agreed_since: None,
            stopped: 0,
            window: 0,
            old: (0, 0),
        };
        instance.member.set_domains(rules.terms());
        self.instances.push(instance);
    }

    /// Runs a life.
    fn run(&mut self, until: u64) -> Result<Counts, Broken> {
        while self.now < until {
            let most = self.dice.pick(&[2, 20, 60, 60, 120]);
            self.now += self.dice.of(1..most);
            if self.now >= self.calm_until {
                self.happen();
            }
            self.beat_and_decide();
            self.check()?;
        }
        Ok(self.counts)
    }

    /// Draws what happens to the fleet.
    fn happen(&mut self) {
        let Odds { kill, leave, pause, cut_off, rules, adjust, scale, table_lost, failover, restart, .. } = self.odds;
        if self.dice.chance(kill) && !self.instances.is_empty() {
            let gone = self.drawn_instance();
            let gone = self.remove(gone);
            note!(self, "{} is killed", gone.id);
        }
        if self.dice.chance(leave) && !self.instances.is_empty() {
            let at = self.drawn_instance();
            if self.instances[at].paused_until <= self.now {
                self.leave(at);
            }
        }
        let is_time = self.spawns_at.take_if(|at| *at <= self.now).is_some();
        if self.instances.len() < self.most_instances
            && (self.instances.is_empty() || is_time || self.dice.chance(scale + kill + leave))
        {
            self.spawn();
        }
        if self.dice.chance(pause) {
            let (at, ms) = (self.drawn_instance(), self.dice.pick(&[100, 500, 900, 1_050, 1_200, 2_500, 4_000]));
            let stops = self.has(Mistake::ClockStopsInPauses);
            let instance = &mut self.instances[at];
            let until = instance.paused_until.max(self.now + ms);
            if stops {
                instance.stopped += until - instance.paused_until.max(self.now);
            }
            instance.paused_until = until;
            note!(self, "{} is paused for {ms}", self.instances[at].id);
        }
        if self.dice.chance(cut_off) {
            self.cut_one_off();
        }
        if self.dice.chance(rules) {
            self.change_rules();
        }
        if self.dice.chance(adjust) {
            let adjusted = self.dice.chance(500).then(|| self.dice.of(1..60) as u32);
            self.target.adjusted = adjusted;
            for at in 0..self.instances.len() {
                let rules = Rules { adjusted, ..self.instances[at].rules };
                let at_time = self.now + self.dice.of(0..TIMEOUT / 2);
                self.instances[at].adopts.get_or_insert((at_time, rules));
            }
        }
        if !self.has_timeouts {
            self.befall_table(table_lost, failover, restart);
        }
    }

    fn cut_one_off(&mut self) {
        let (at, ms) = (self.drawn_instance(), self.dice.pick(&[100, 500, 900, 1_050, 1_200, 2_500, 4_000]));
        self.instances[at].cut_off_until = self.now + ms;
        note!(self, "{} is cut off for {ms}", self.instances[at].id);
    }

    fn leave(&mut self, at: usize) {
        let instance = &mut self.instances[at];
        let clock = instance.clock(self.now);
        let (id, query) = (instance.id.clone(), instance.member.clone().last_query(clock));
        if self.mistake == Some(Mistake::LeavesEarly) {
            instance.beats_at = u64::MAX;
        } else {
            self.remove(at);
        }
        note!(self, "{id} leaves");
        self.execute_last(query, id);
    }

    /// Draws what happens to the table.
    fn befall_table(&mut self, lost: u64, failover: u64, restart: u64) {
        if self.dice.chance(lost) {
            self.server.table = Table::default();
            // The same server may lose it, too.
            let name = self.name();
            if self.dice.chance(700) {
                self.server.name = format!("s{name}");
            }
            note!(self, "the table is lost; the server is {}", self.server.name);
            self.cut_one_off();
        }
        if self.dice.chance(failover) {
            self.server.name = format!("s{}", self.name());
            let back = self.dice.of(0..1 + self.server.copies.len() as u64) as usize;
            if let Some(copy) = self.server.copies.iter().rev().nth(back) {
                self.server.table = copy.clone();
            }
            let lost = if self.dice.chance(500) { self.dice.of(0..5) } else { 0 };
            for _ in 0..lost {
                let Some(hit) = self.of_store.pop_back() else { break };
                if let Some(place) = self.all.iter().rposition(|other| *other == hit) {
                    self.all.remove(place);
                }
            }
            note!(self, "failover to {}, {back} beats old, without {lost} hits", self.server.name);
        }
        if self.dice.chance(restart) {
            self.server.name = format!("s{}", self.name());
            note!(self, "the server restarts as {}", self.server.name);
        }
    }

    fn change_rules(&mut self) {
        let before = self.target;
        self.target = self.drawn_rules();
        note!(self, "new rules: {:?}", self.target);
        for at in 0..self.instances.len() {
            let at_time = self.now + self.dice.of(0..2 * TIMEOUT);
            let rules = if self.dice.chance(900) { self.target } else { self.drawn_rules() };
            self.instances[at].adopts = Some((at_time, rules));
        }
        // New instances often come with new rules.
        if self.instances.len() < self.most_instances && self.dice.chance(500) {
            self.spawns_at = Some(self.now + self.dice.of(0..3 * TIMEOUT));
        }
        // Rules that are there again are worth more lives.
        if self.dice.chance(300) {
            self.target = before;
        }
    }

    fn drawn_instance(&mut self) -> usize {
        self.dice.of(0..self.instances.len() as u64) as usize
    }

    fn remove(&mut self, at: usize) -> Instance {
        let gone = self.instances.swap_remove(at);
        self.numbers.push_back((self.now, gone.rules.in_force()));
        gone
    }

    fn beat_and_decide(&mut self) {
        self.executions.sort_by_key(|execution| execution.at);
        while self.executions.first().is_some_and(|first| first.at <= self.now) {
            let execution = self.executions.remove(0);
            self.execute(execution);
        }
        let first = self.drawn_instance();
        for place in 0..self.instances.len() {
            let at = (first + place) % self.instances.len();
            if self.instances[at].paused_until > self.now {
                continue;
            }
            self.take_answer(at);
            self.adopt(at);
            self.start_beat(at);
            self.decide(at);
        }
    }

    /// Puts new rules into force, and tells the member a little later.
    fn adopt(&mut self, at: usize) {
        let (now, period) = (self.now, self.period);
        let instance = &mut self.instances[at];
        if let Some((_, rules)) = instance.adopts.take_if(|(adopts, _)| *adopts <= now) {
            let share = instance.share(now, period);
            self.numbers.push_back((now, instance.rules.in_force()));
            instance.rules = rules;
            instance.notes_at = Some(now + self.dice.of(0..60));
            instance.old = (now + period / 2, share);
            note!(self, "{} has {rules:?}", self.instances[at].id);
        }
        if self.instances[at].notes_at.is_some_and(|notes| notes <= now) {
            self.note_rules(at);
        }
    }

    fn note_rules(&mut self, at: usize) {
        let instance = &mut self.instances[at];
        instance.notes_at = None;
        if instance.member.set_domains(instance.rules.terms()) {
            instance.beats_at = self.now;
            instance.agreed_since = None;
        }
    }

    /// Sends a beat if one is due, with what may befall it.
    fn start_beat(&mut self, at: usize) {
        let now = self.now;
        let instance = &mut self.instances[at];
        if instance.flight.as_ref().is_some_and(|flight| now >= flight.gives_up) {
            instance.flight = None;
        }
        if instance.flight.is_some() || now < instance.beats_at || instance.cut_off_until > now {
            return;
        }
        instance.beats_at = now + self.dice.of(TIMEOUT / 8..TIMEOUT / 4);
        let Odds { lost, late, twice, .. } = self.odds;
        let delay = |dice: &mut Dice| if dice.chance(late) { dice.of(0..TIMEOUT) } else { dice.of(0..5) };
        let is_lost = self.dice.chance(lost);
        let there = if is_lost && self.dice.chance(500) { None } else { Some(now + delay(&mut self.dice)) };
        let back = if is_lost { None } else { Some(delay(&mut self.dice)) };
        let again = self.dice.chance(twice).then(|| now + self.dice.of(0..3 * TIMEOUT));
        self.send(at, (there, back), again);
    }

    /// Sends a beat that reaches the table at the time `there`, and whose answer takes the time `back`.
    fn send(&mut self, at: usize, (there, back): (Option<u64>, Option<u64>), again: Option<u64>) {
        self.note_rules(at);
        let number = self.name();
        let gives_up = self.now + self.dice.of(TIMEOUT / 8..2 * TIMEOUT);
        let instance = &mut self.instances[at];
        let before = instance.member.clone();
        let query = instance.member.query(instance.clock(self.now));
        let (id, incarnation) = (instance.id.clone(), format!("{}/{number}", instance.id));
        note!(self, "{id} beats {number}, there {there:?}, back {back:?}, again {again:?}: {query:?}");
        for (arrives, answer_after) in [(there, back), (again, None)] {
            let Some(arrives) = arrives else { continue };
            let (id, query, incarnation) = (id.clone(), query.clone(), incarnation.clone());
            self.executions.push(Execution { at: arrives, id, query, incarnation, number, answer_after });
        }
        self.instances[at].flight = Some(Flight { number, query, before, answer: None, gives_up });
    }

    /// Lets the table take a beat.
    fn execute(&mut self, execution: Execution) {
        let Execution { id, query, incarnation, number, answer_after, .. } = execution;
        let mut beat = query.beat(&id, &incarnation);
        let mut name = self.server.name.as_str();
        let (silent, first): (Vec<(String, u64)>, _);
        match self.mistake {
            Some(Mistake::CountsAsKnown) => {
                if let Seat::Take(seat, _) = beat.seat {
                    beat.seat = Seat::Take(seat, 0);
                }
            }
            Some(Mistake::IncarnationStays) => name = "s",
            Some(Mistake::HoldsNothing) => {
                beat.seat = if let Seat::Hold(_) = beat.seat { Seat::None } else { beat.seat }
            }
            Some(Mistake::FirstTermsStay) => {
                first = self.entry(&id);
                beat.stated = first.as_ref().map_or(beat.stated, |first| &first.stated);
            }
            Some(Mistake::RemovedAfterAnotherBeat) => {
                let others = self.server.table.clone().beat(name, &beat).entries;
                let now = |(id, _): &(String, u64)| Some((id.clone(), others.get(id)?.beat));
                silent = beat.silent.iter().filter_map(now).collect();
                beat.silent = &silent;
            }
            Some(Mistake::OldBeatCounts) => beat.beat = beat.beat.max(self.entry(&id).map_or(0, |entry| entry.beat)),
            Some(Mistake::RemovedAtFirstSight) => {
                let mut others = self.server.table.clone().beat(name, &beat).entries;
                others.remove(&id);
                silent = others.into_iter().map(|(id, entry)| (id, entry.beat)).collect();
                beat.silent = &silent;
            }
            _ => {}
        }
        let mut answer = self.server.table.beat(name, &beat);
        self.begun.entry(answer.incarnation.clone()).or_insert(self.now);
        note!(self, "{id}'s beat {number} is at {}: {answer:?}", self.server.name);
        self.tamper(&id, &query.beat(&id, &incarnation).seat, &mut answer);
        self.keep_copy();
        let flight = self.instances.iter_mut().find(|one| one.id == id).and_then(|one| one.flight.as_mut());
        if let (Some(flight), Some(after)) = (flight.filter(|flight| flight.number == number), answer_after) {
            flight.answer.get_or_insert((self.now + after, answer));
        }
    }

    /// Lets the table take the last beat of an instance that leaves, unless that is lost.
    fn execute_last(&mut self, query: Query, id: String) {
        if !self.dice.chance(self.odds.lost) {
            let (number, incarnation) = (self.name(), format!("{id}/last"));
            self.execute(Execution { at: self.now, id, query, incarnation, number, answer_after: None });
        }
    }

    fn entry(&self, id: &str) -> Option<Entry> {
        self.server.table.clone().beat("", &Beat::default()).entries.remove(id)
    }

    fn keep_copy(&mut self) {
        if self.odds.failover == 0 {
            return;
        }
        if self.server.copies.len() >= 8 {
            self.server.copies.pop_front();
        }
        self.server.copies.push_back(self.server.table.clone());
    }

    fn take_answer(&mut self, at: usize) {
        let now = self.now;
        let has_answer = |flight: &mut Flight| flight.answer.as_ref().is_some_and(|(arrives, _)| *arrives <= now);
        let instance = &mut self.instances[at];
        let Some(Flight { query, before, answer: Some((_, answer)), .. }) = instance.flight.take_if(has_answer) else {
            return;
        };
        let clock = instance.clock(now);
        let query = if self.mistake == Some(Mistake::TimeoutFromAnswer) { before.clone().query(clock) } else { query };
        let was_away = !instance.is_current(now);
        instance.member.answered(&query, &answer, clock);
        instance.is_answered = true;
        let since = |is: bool, since: Option<u64>| since.or(Some(now)).filter(|_| is);
        instance.seat_since = since(instance.member.view().seat(clock).is_some(), instance.seat_since);
        instance.agreed_since = since(instance.member.view().is_agreed(DOMAIN), instance.agreed_since);
        let age = now - self.begun[&answer.incarnation];
        instance.is_new = (instance.is_new || was_away) && age < TIMEOUT * 12 / 10 + self.period;
        note!(self, "{} has its answer: {:?}", self.instances[at].id, self.instances[at].member.view());
    }

    /// Sends beats until one is answered, if the view is old. Returns whether the instance may ask the store.
    fn catch_up(&mut self, at: usize) -> bool {
        let instance = &mut self.instances[at];
        let is_needed = match self.mistake {
            Some(Mistake::DecidesAtOnce) => instance.is_answered && !instance.is_current(self.now),
            Some(Mistake::WakesWithoutBeat) => !instance.is_answered,
            _ => !instance.is_current(self.now),
        };
        if instance.cut_off_until > self.now {
            return false;
        }
        if is_needed {
            let there = self.dice.chance(1_000 - self.odds.lost / 2).then_some(self.now);
            let back = self.dice.chance(1_000 - self.odds.lost / 2).then_some(0);
            self.send(at, (there, back), None);
            while let Some(place) = self.executions.iter().position(|execution| execution.at <= self.now) {
                let execution = self.executions.remove(place);
                self.execute(execution);
            }
            self.take_answer(at);
        }
        !is_needed || self.instances[at].is_current(self.now)
    }

    /// Admits hits as long as the share and the store do.
    fn decide(&mut self, at: usize) {
        let hits = match self.hits {
            Some(hits) => hits,
            None if self.dice.chance(self.odds.idle) => self.dice.of(0..2),
            None => 100,
        };
        if hits > 0 {
            let may_ask = self.catch_up(at);
            let mut is_asked = || self.hits.is_some() || self.dice.chance(900);
            let (by_share, by_store) = (is_asked(), may_ask && is_asked());
            self.admit(at, hits, by_share, by_store && !self.is_blind(at));
        }
    }

    fn admit(&mut self, at: usize, hits: u64, by_share: bool, by_store: bool) {
        let (now, period) = (self.now, self.period);
        let share = if by_share { self.share(at) } else { 0 };
        let rest = if by_store { self.rest(at) } else { 0 };
        forget(&mut self.of_store, now, period);
        let instance = &mut self.instances[at];
        instance.forget(now, period, self.mistake);
        let (mut own, mut asked) = (0, 0);
        for _ in 0..hits {
            if instance.own.len() < share as usize {
                instance.own.push_back(now);
                own += 1;
            } else if self.of_store.len() < rest as usize {
                self.of_store.push_back(now);
                asked += 1;
            } else {
                self.counts.denied += 1;
                self.counts.asked += 1;
                break;
            }
            self.all.push_back(now);
        }
        self.counts.by_shares += own;
        self.counts.by_store += asked;
        self.counts.asked += asked;
        if own > 0 {
            self.by_shares.push_back((now, instance.rules));
        }
        if own + asked > 0 {
            note!(self, "{} admits {own} of {share}, the store {asked} of {rest}", self.instances[at].id);
        }
    }

    /// Returns whether a lost table keeps an instance from knowing of shares under other rules: it is new or was away,
    /// the table has not been known for long, and somebody uses a share, or has just used one.
    fn is_blind(&self, at: usize) -> bool {
        let instance = &self.instances[at];
        if !instance.is_new {
            return false;
        }
        let terms = instance.rules.terms();
        let agreed = |other: &Instance| other.view().is_agreed(DOMAIN) && other.rules.terms() != terms;
        self.instances.iter().any(agreed) || self.by_shares.iter().any(|(_, rules)| rules.terms() != terms)
    }

    /// Checks that in the last period no more was admitted than the largest number that was in force.
    fn check(&mut self) -> Result<(), Broken> {
        forget(&mut self.all, self.now, self.period);
        self.by_shares.retain(|(used, _)| used + self.period > self.now);
        self.numbers.retain(|(until, _)| until + self.period > self.now);
        let before = self.numbers.iter().map(|(_, number)| *number);
        let most = before.chain(self.instances.iter().map(|instance| instance.rules.in_force())).max();
        let (admitted, most) = (self.all.len(), most.unwrap_or(0));
        if admitted > most as usize {
            let history = self.history.take().into_iter().flatten().collect();
            return Err(Broken { at: self.now, admitted, most, history });
        }
        Ok(())
    }
}

/// Forgets hits that were before the last period.
fn forget(hits: &mut VecDeque<u64>, now: u64, period: u64) {
    while hits.front().is_some_and(|hit| hit + period <= now) {
        hits.pop_front();
    }
}

impl Instance {
    /// Returns what the instance's clock says.
    fn clock(&self, now: u64) -> Duration {
        let micros = (now - self.stopped.min(now)) as i64 * 1_000;
        Duration::from_micros((self.offset as i64 + micros + micros / 10_000 * self.fast) as u64)
    }

    fn view(&self) -> &View {
        self.member.view()
    }

    fn is_current(&self, now: u64) -> bool {
        self.view().is_current(self.clock(now))
    }

    fn share_at(&self, clock: Duration, period: u64) -> u32 {
        let share = self.view().share(&self.rules.shared(), &self.rules.limit(period), clock);
        share.map_or(0, |share| clipped(share.number()))
    }

    fn share(&self, now: u64, period: u64) -> u32 {
        self.share_at(self.clock(now), period)
    }

    fn forget(&mut self, now: u64, period: u64, mistake: Option<Mistake>) {
        if mistake == Some(Mistake::FixedWindow) {
            if now >= self.window + period {
                self.window = now - now % period;
                self.own.clear();
            }
            return;
        }
        forget(&mut self.own, now, period);
    }
}

/// A mistake at the interfaces of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    SeatPastTimeout,
    TimeoutFromAnswer,
    ClockStopsInPauses,
    NoMargin,
    RemovedEarly,
    RemovedAtFirstSight,
    RemovedAfterAnotherBeat,
    CountsAsKnown,
    IncarnationStays,
    OldBeatCounts,
    TakesTakenSeat,
    HoldsNothing,
    LeavesEarly,
    BeginsAtAgreement,
    BeginsAtTaking,
    MajorityAgrees,
    UnstatedIgnored,
    DigestIgnored,
    FirstTermsStay,
    DecidesAtOnce,
    WakesWithoutBeat,
    NoCut,
    CutEndsAtOnce,
    OldShareGoesOn,
    RoundedUp,
    RestOfFewerSeats,
    FixedWindow,
    AdjustedHasShare,
}

/// Each mistake, in words, and a life that has found it: it is tried first.
const MISTAKES: [(&str, Mistake, u64); 28] = [
    ("a seat is used past the timeout", Mistake::SeatPastTimeout, 127),
    ("the timeout counts from the answer", Mistake::TimeoutFromAnswer, 540),
    ("the clock stops while the instance is paused", Mistake::ClockStopsInPauses, 243),
    ("an instance is removed after its timeout without a margin", Mistake::NoMargin, 265),
    ("an instance is removed before its timeout", Mistake::RemovedEarly, 24),
    ("an instance is removed when it is first seen", Mistake::RemovedAtFirstSight, 0),
    ("an instance is removed though it has beaten again", Mistake::RemovedAfterAnotherBeat, 22),
    ("a new incarnation counts as known for long", Mistake::CountsAsKnown, 637),
    ("another server has the same incarnation", Mistake::IncarnationStays, 1012),
    ("an old beat that is executed late replaces a newer one", Mistake::OldBeatCounts, 41),
    ("an instance takes a seat that another has", Mistake::TakesTakenSeat, 20),
    ("an instance does not tell that it holds its seat", Mistake::HoldsNothing, 0),
    ("an instance leaves the table before its last decision", Mistake::LeavesEarly, 24),
    ("a share begins when all agree", Mistake::BeginsAtAgreement, 935),
    ("a share begins when the seat is taken", Mistake::BeginsAtTaking, 57),
    ("a majority agrees for all", Mistake::MajorityAgrees, 261),
    ("agreement does not ask instances without shares", Mistake::UnstatedIgnored, 15),
    ("agreement compares parts and seats, but not the rules", Mistake::DigestIgnored, 265),
    ("an instance states its first rules forever", Mistake::FirstTermsStay, 323),
    ("a new instance decides before its first beat", Mistake::DecidesAtOnce, 41),
    ("an instance that was paused decides without a beat", Mistake::WakesWithoutBeat, 1932),
    ("the store is asked as if others had the same rules", Mistake::NoCut, 0),
    ("the store is asked for more as soon as others have changed", Mistake::CutEndsAtOnce, 45),
    ("the share of old rules is used on", Mistake::OldShareGoesOn, 250),
    ("a share is rounded up", Mistake::RoundedUp, 0),
    ("the rest leaves out one seat", Mistake::RestOfFewerSeats, 0),
    ("a share has a fixed window of the instance's clock", Mistake::FixedWindow, 0),
    ("an adjusted limit has a share", Mistake::AdjustedHasShare, 1151),
];

impl World {
    /// Plants mistakes in what an instance hears.
    fn tamper(&self, id: &str, asked: &Seat, answer: &mut Answer) {
        let Some(mistake) = self.mistake else { return };
        let own = answer.entries[id].clone();
        let (own_timeout, own_terms) = timeout_and_terms(&own.stated);
        if mistake == Mistake::CountsAsKnown {
            answer.known_ms = u64::from(u32::MAX);
        }
        let others = || answer.entries.iter().filter(|(other, _)| *other != id);
        let alike = others().filter(|(_, other)| timeout_and_terms(&other.stated).1 == own_terms).count();
        let is_majority = alike * 2 > others().count();
        let mut seat = own.seat;
        match (mistake, asked) {
            (Mistake::TakesTakenSeat, Seat::Take(wanted, _)) => seat = Some(*wanted),
            (Mistake::HoldsNothing, Seat::Hold(held)) => seat = Some(*held),
            _ => {}
        }
        if let Some(own) = answer.entries.get_mut(id) {
            own.seat = seat;
        }
        for (_, other) in answer.entries.iter_mut().filter(|(other, _)| *other != id) {
            let (timeout, terms) = timeout_and_terms(&other.stated);
            let stated = match mistake {
                Mistake::NoMargin => format!("{}{terms}", timeout * 10 / 11),
                Mistake::RemovedEarly => format!("{}{terms}", timeout / 3),
                Mistake::MajorityAgrees if is_majority => format!("{own_timeout}{own_terms}"),
                Mistake::DigestIgnored if own_terms.split(':').skip(2).eq(terms.split(':').skip(2)) => {
                    format!("{timeout}{own_terms}")
                }
                _ => continue,
            };
            other.stated = stated;
        }
        if mistake == Mistake::UnstatedIgnored {
            answer.entries.retain(|other, entry| other == id || !timeout_and_terms(&entry.stated).1.is_empty());
        }
    }

    /// Returns how much an instance may admit by itself.
    fn share(&self, at: usize) -> u32 {
        let (now, period, instance) = (self.now, self.period, &self.instances[at]);
        let (rules, view, clock) = (&instance.rules, instance.view(), instance.clock(now));
        let limit = rules.limit(period);
        let share = instance.share(now, period);
        let each = rules.split().map_or(0, |split| split.each(clipped(limit.number())));
        let is_noted = instance.notes_at.is_none() && view.is_agreed(DOMAIN) && rules.adjusted.is_none();
        let may_have = is_noted && view.seat(clock).is_some_and(|seat| seat < rules.split().map_or(0, |s| s.seats()));
        let has_waited = |since: Option<u64>| since.is_some_and(|since| since + period * 12 / 10 < now);
        match self.mistake {
            Some(Mistake::SeatPastTimeout) => {
                share.max(instance.share_at(clock - Duration::from_millis(2 * TIMEOUT), period))
            }
            Some(Mistake::BeginsAtAgreement) if may_have && has_waited(instance.seat_since) => each,
            Some(Mistake::BeginsAtTaking) if may_have && has_waited(instance.agreed_since) => each,
            Some(Mistake::OldShareGoesOn) if now < instance.old.0 => share.max(instance.old.1),
            Some(Mistake::RoundedUp) if share > 0 || (may_have && each == 0) => share + 1,
            Some(Mistake::AdjustedHasShare) => {
                let shared = Shared { is_changed: false, ..rules.shared() };
                view.share(&shared, &limit, clock).map_or(0, |share| clipped(share.number()))
            }
            _ => share,
        }
    }

    /// Returns how much an instance asks the store for.
    fn rest(&self, at: usize) -> u32 {
        let instance = &self.instances[at];
        let (rules, clock) = (&instance.rules, instance.clock(self.now));
        let (limit, shared) = (rules.limit(self.period), rules.shared());
        let rest = |clock| clipped(instance.view().rest(&shared, &limit, clock).number());
        match self.mistake {
            Some(Mistake::NoCut) => clipped(View::default().rest(&shared, &limit, clock).number()),
            Some(Mistake::CutEndsAtOnce) => rest(clock + Duration::from_millis(2 * self.period)),
            Some(Mistake::RestOfFewerSeats) => {
                rest(clock) + rules.split().map_or(0, |split| split.each(clipped(limit.number())))
            }
            _ => rest(clock),
        }
    }
}

/// Splits what an instance states: the timeout, its terms, and what was before.
fn timeout_and_terms(stated: &str) -> (u64, String) {
    let mut words = stated.split(' ');
    let timeout = words.next().unwrap().parse().unwrap();
    // What was before has a fifth part.
    (timeout, words.filter(|word| word.split(':').count() == 4).map(|word| format!(" {word}")).collect())
}

fn life(seed: u64, mistake: Option<Mistake>, has_history: bool) -> Result<Counts, Broken> {
    let mut world = World::new(seed, mistake);
    world.history = has_history.then(VecDeque::new);
    world.run(10_000 + 14 * TIMEOUT)
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("LIVES_SEEDS") else { return 0..1_000 };
    let (from, to) = text.split_once("..").expect("LIVES_SEEDS=0..1000000");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn a_fleet_never_admits_more_than_the_limit() {
    let mut counts = Counts::default();
    for seed in seeds() {
        match life(seed, None, false) {
            Ok(of_life) => {
                counts.by_shares += of_life.by_shares;
                counts.by_store += of_life.by_store;
            }
            Err(_) => panic!("seed {seed}: {}", life(seed, None, true).unwrap_err()),
        }
    }
    println!("{counts:?}");
    assert!(counts.by_shares > counts.by_store / 20, "too few by shares to say anything: {counts:?}");
}

/// The number of lives that find each mistake.
const MOST_LIVES: u64 = 3_000;

#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for (name, mistake, found) in MISTAKES {
        match [found].into_iter().chain(0..MOST_LIVES).find(|seed| life(*seed, Some(mistake), false).is_err()) {
            Some(seed) => println!("{name}: seed {seed}"),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// Returns a fleet to which nothing happens, whose clocks run right, after so many milliseconds.
fn calm(seed: u64, instances: usize, rules: Rules, seats: u32) -> World {
    let mut world = World::new(seed, None);
    world.odds = Odds::default();
    (world.instances, world.target, world.seats) = (Vec::new(), rules, seats);
    (world.has_timeouts, world.calm_until, world.most_instances) = (false, u64::MAX, instances);
    for _ in 0..instances {
        world.spawn();
        let instance = world.instances.last_mut().unwrap();
        (instance.rules, instance.fast) = (rules, 0);
        instance.member = Member::new(&instance.id, seats, Duration::from_millis(TIMEOUT));
        instance.member.set_domains(rules.terms());
    }
    world
}

impl World {
    fn in_use(&self) -> usize {
        self.instances.iter().filter(|instance| instance.share(self.now, self.period) > 0).count()
    }

    /// Returns the time, with the margin of a tenth.
    fn with_margin(time: u64) -> u64 {
        time + time / 10
    }
}

/// Two beats and their answers, and a step of the world.
const BEATS: u64 = 2 * (TIMEOUT / 4 + 10 + 120);

#[test]
fn every_seat_is_used_after_the_silence_and_the_period() {
    let mut dice = Dice(1);
    for seed in 0..100 {
        let (instances, seats) = (dice.of(1..6) as usize, dice.of(1..5) as u32);
        let rules = Rules { number: 40, share: Some((5_000, seats)), larger: 0, adjusted: None };
        let mut world = calm(seed, instances, rules, seats);
        let begun = world.now + World::with_margin(TIMEOUT) + World::with_margin(world.period) + 2 * BEATS;
        world.run(begun).unwrap();
        assert_eq!(world.in_use(), instances.min(seats as usize), "seed {seed}");

        // After a change of rules that all have, shares come back a period later.
        let changed = Rules { number: 30, ..rules };
        for instance in &mut world.instances {
            instance.adopts = Some((world.now + 1, changed));
        }
        world.run(world.now + 200).unwrap();
        assert!(world.in_use() == 0 || world.period < 250, "seed {seed}");
        world.run(world.now + 60 + BEATS + World::with_margin(world.period)).unwrap();
        assert_eq!(world.in_use(), instances.min(seats as usize), "seed {seed}");

        // An instance that leaves hands its seat to one that waits, which begins a period later.
        if instances > seats as usize {
            let holder = world.instances.iter().position(|one| one.share(world.now, world.period) > 0).unwrap();
            world.leave(holder);
            world.run(world.now + 2 * BEATS + World::with_margin(world.period)).unwrap();
            assert_eq!(world.in_use(), (instances - 1).min(seats as usize), "seed {seed}");
        }
    }
}

#[test]
fn a_demand_of_half_the_limit_asks_the_store_for_few_decisions() {
    let rules = Rules { number: 1_000, share: Some((6_000, 4)), larger: 0, adjusted: None };
    let mut world = calm(1, 4, rules, 4);
    world.period = 1_000;
    world.run(world.now + 4 * TIMEOUT).unwrap();
    world.hits = Some(1);
    for _ in 0..200 {
        world.now += 8;
        world.beat_and_decide();
    }
    world.counts = Counts::default();
    // A hundred and twenty-five hits a second of each of four instances.
    for _ in 0..1_000 {
        world.now += 8;
        world.beat_and_decide();
        world.check().unwrap();
    }
    let Counts { by_shares, asked, .. } = world.counts;
    println!("{by_shares} by shares, {asked} by the store");
    assert!(asked * 50 < by_shares, "{by_shares} by shares, {asked} by the store");
}
