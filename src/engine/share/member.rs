//! An instance's part in the table of seats: what it states and asks at each beat, what it concludes from the answers,
//! and what decisions may do by that. Times are of a steady clock of the instance, which counts suspension.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::split::{Shared, Split};
use super::table::{Answer, Beat, Entry, Seat};
use crate::algorithm::Limit;

/// By which part an instance waits longer for the end of a time of others: a tenth, for clocks that run at different
/// speeds and for requests on their way.
const MARGIN: u32 = 10;

/// What an instance states about a domain whose rules have shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainTerms {
    /// A digest of the domain's rules.
    pub digest: u64,
    /// The split with the largest part of a limit.
    pub largest: Split,
}

/// What an instance states: how long it uses its seat without a confirmed beat, and the terms of its domains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The time after which it stops using its seat.
    pub timeout: Duration,
    /// The terms of each domain whose rules have shares.
    pub domains: BTreeMap<u64, DomainTerms>,
}

impl DomainTerms {
    /// Writes the terms of a domain as the table stores them: its number, the digest, the part and the seats.
    fn write(&self, domain: u64, text: &mut String) {
        let DomainTerms { digest, largest } = self;
        // Writing to a String cannot fail.
        let _ = write!(text, " {domain:x}:{digest:x}:{}:{}", largest.part(), largest.seats());
    }
}

impl Terms {
    /// Returns the terms as the table stores them: the timeout in milliseconds, and those of each domain.
    fn written(&self) -> String {
        let mut text = self.timeout.as_millis().to_string();
        self.domains.iter().for_each(|(domain, terms)| terms.write(*domain, &mut text));
        text
    }

    /// Reads stored terms and uses before them; `None` if another version of Tollgate wrote them in another way.
    fn read(text: &str) -> Option<(Terms, Vec<Past>)> {
        let mut words = text.split(' ');
        let timeout = Duration::from_millis(words.next()?.parse().ok()?);
        let (mut domains, mut past) = (BTreeMap::new(), Vec::new());
        for word in words {
            let mut parts = word.split(':');
            let domain = u64::from_str_radix(parts.next()?, 16).ok()?;
            let digest = u64::from_str_radix(parts.next()?, 16).ok()?;
            let largest = Split::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let terms = DomainTerms { digest, largest };
            match parts.next() {
                Some(ago) => past.push(Past { domain, terms, ago: Duration::from_millis(ago.parse().ok()?) }),
                None => drop(domains.insert(domain, terms)),
            }
        }
        Some((Terms { timeout, domains }, past))
    }

    /// Returns whether these are the terms of an instance that has left.
    fn is_left(&self) -> bool {
        self.timeout.is_zero()
    }

    /// Returns how long an instance with these terms must be silent until it is removed.
    fn silence(&self) -> Duration {
        with_margin(self.timeout)
    }
}

/// Terms that may have been in use until lately, so that new instances know what was admitted before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Past {
    domain: u64,
    terms: DomainTerms,
    /// For how long nobody uses it, at least.
    ago: Duration,
}

/// One instance of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    id: String,
    /// The number of seats.
    seats: u32,
    terms: Terms,
    beat: u64,
    /// The incarnation of the table, since when it is known, and for how long others have known it.
    table: Option<(String, Duration, u64)>,
    others: BTreeMap<String, Other>,
    view: View,
}

/// Another instance, as its entry was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Other {
    beat: u64,
    seat: Option<u32>,
    /// `None` if another version of Tollgate wrote them.
    terms: Option<Terms>,
    past: Vec<Past>,
    /// When the beat was first seen.
    since: Duration,
    /// The incarnation in which it was last seen.
    incarnation: String,
}

/// A question to the table.
#[derive(Clone, Debug)]
pub struct Query {
    beat: u64,
    seat: Seat,
    stated: String,
    terms: Terms,
    known: (String, u64),
    silent: Vec<(String, u64)>,
    sent: Duration,
}

impl Query {
    /// Returns the beat of this instance. `incarnation` is a new name that no table has had.
    pub fn beat<'b>(&'b self, id: &'b str, incarnation: &'b str) -> Beat<'b> {
        let known = (&*self.known.0, self.known.1);
        let Query { beat, seat, stated, silent, .. } = self;
        Beat { id, beat: *beat, seat: *seat, stated, incarnation, known, silent }
    }
}

/// What decisions know: which shares this instance may use, and how much it may ask the store for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The seat, since when it is this instance's, and until when it may be used.
    seat: Option<(u32, Duration, Duration)>,
    /// The end of the time in which the table counts as known: decisions after it are better made after another beat.
    known_until: Duration,
    domains: BTreeMap<u64, DomainView>,
}

/// What is known of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct DomainView {
    /// The terms that this instance has stated.
    own: Option<DomainTerms>,
    /// When all instances had stated the same terms as this one.
    agreed: Option<Duration>,
    /// Terms of instances that may have had others than this one, and since when nobody uses them; `None` while
    /// somebody may.
    others: Vec<(DomainTerms, Option<Duration>)>,
}

impl DomainView {
    fn is_empty(&self) -> bool {
        self.own.is_none() && self.others.is_empty()
    }

    /// Removes terms that no longer matter. Terms with the same split cut the same, so the last that nobody uses any
    /// more decides for how long; and the last but one decides it for rules that have the terms of the last.
    fn forget(&mut self, now: Duration) {
        // Those in use first, then the last.
        self.others.sort_by_key(|(_, gone)| Reverse(gone.unwrap_or(Duration::MAX)));
        let mut kept: Vec<Split> = Vec::new();
        self.others.retain(|(terms, gone)| {
            let Some(gone) = gone else { return true };
            let newer = kept.iter().filter(|split| **split == terms.largest).count();
            let matters = now < *gone + FORGOTTEN && newer < 2;
            if matters {
                kept.push(terms.largest);
            }
            matters
        });
    }
}

impl View {
    /// Returns the limit of this instance's own counter, if the instance may use its share now.
    pub fn share(&self, shared: &Shared, limit: &Limit, now: Duration) -> Option<Limit> {
        let split = shared.split.filter(|_| !shared.is_changed)?;
        let (seat, taken, until) = self.seat?;
        let domain = self.domains.get(&shared.domain)?;
        let is_own = domain.own.is_some_and(|own| own.digest == shared.digest);
        let agreed = domain.agreed.filter(|_| is_own && seat < split.seats() && now < until)?;
        let share = split.share(limit)?;
        (now >= agreed.max(taken) + with_margin(Split::forgets_after(limit, Some(&share)))).then_some(share)
    }

    /// Returns the limit that the store decides.
    pub fn rest(&self, shared: &Shared, limit: &Limit, now: Duration) -> Limit {
        let own = shared.rest(limit);
        let Some(domain) = self.domains.get(&shared.domain) else { return own };
        let others = domain.others.iter().filter(|(_, gone)| match gone {
            Some(gone) => now < *gone + with_margin(Split::shares_matter_for(limit)),
            None => true,
        });
        // Rules that are new here: the shares of the old ones have just been in use.
        let others = others.map(|(terms, _)| *terms).chain(domain.own);
        let cuts = others.filter(|terms| !shared.is_by(terms)).map(|terms| terms.largest.cut(limit));
        cuts.fold(own, |least, cut| Split::smaller(&least, &cut))
    }

    /// Returns whether no limit of any domain is changed by shares.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns whether the table is known well enough to decide without another beat.
    pub fn is_current(&self, now: Duration) -> bool {
        now < self.known_until
    }

    /// Returns the seat, if the instance has one now.
    pub fn seat(&self, now: Duration) -> Option<u32> {
        self.seat.filter(|(_, _, until)| now < *until).map(|(seat, ..)| seat)
    }

    /// Returns whether all instances have agreed on the rules of a domain.
    pub fn is_agreed(&self, domain: u64) -> bool {
        self.domains.get(&domain).is_some_and(|domain| domain.agreed.is_some())
    }

    /// Returns how many domains with shares there are, and on how many of them all instances have agreed.
    pub fn domains(&self) -> (usize, usize) {
        let own = || self.domains.values().filter(|domain| domain.own.is_some());
        (own().count(), own().filter(|domain| domain.agreed.is_some()).count())
    }
}

impl Member {
    /// Creates an instance with this ID, which no other has or has had. It uses its seat for `timeout` after a beat
    /// that was confirmed.
    pub fn new(id: &str, seats: u32, timeout: Duration) -> Member {
        Member {
            id: id.to_owned(),
            seats: seats.max(1),
            terms: Terms { timeout, domains: BTreeMap::new() },
            beat: 0,
            table: None,
            others: BTreeMap::new(),
            view: View::default(),
        }
    }

    /// Returns the ID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns what decisions may do now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Gives up the seat, and returns what decisions may still do.
    pub fn left(&mut self) -> View {
        self.view.seat = None;
        self.view.clone()
    }

    /// Returns the number of other instances that are in the table or were there lately.
    pub fn others(&self) -> usize {
        self.others.values().filter(|other| !other.has_left()).count()
    }

    /// Sets the terms of the rules in force. Returns whether they are new: the next beat is then due at once. Shares of
    /// a domain whose terms change are not used any more.
    pub fn set_domains(&mut self, domains: BTreeMap<u64, DomainTerms>) -> bool {
        if domains == self.terms.domains {
            return false;
        }
        for (domain, terms) in &self.terms.domains {
            if domains.get(domain) != Some(terms) {
                let view = self.view.domains.entry(*domain).or_default();
                (view.own, view.agreed) = (None, None);
                // Others count on them until the table has new ones: see `agree`.
                note_use(&mut view.others, *terms, None);
            }
        }
        for (domain, terms) in &domains {
            self.view.domains.entry(*domain).or_default().own = Some(*terms);
        }
        self.terms.domains = domains;
        true
    }

    /// Returns the next question to the table.
    pub fn query(&mut self, now: Duration) -> Query {
        self.beat += 1;
        let known = self.table.as_ref().map(|(incarnation, since, _)| (incarnation.clone(), ms(now - *since)));
        let silent = self.others.iter().filter(|(_, other)| now >= other.since + other.silence(&self.terms));
        let silent = silent.map(|(id, other)| (id.clone(), other.beat)).collect();
        let seat = match self.view.seat(now) {
            _ if self.terms.domains.is_empty() => None,
            Some(seat) => Some(Seat::Hold(seat)),
            None => self.free_seat().map(|seat| Seat::Take(seat, ms(self.longest_silence()))),
        };
        if !matches!(seat, Some(Seat::Hold(_))) {
            self.view.seat = None;
        }
        Query {
            beat: self.beat,
            seat: seat.unwrap_or_default(),
            stated: self.terms.written() + &self.past(now),
            terms: self.terms.clone(),
            known: known.unwrap_or_default(),
            silent,
            sent: now,
        }
    }

    /// Returns the last beat of an instance that leaves, after its last decision: it has no answer that matters.
    /// The entry stays until another instance has seen it.
    pub fn last_query(&mut self, now: Duration) -> Query {
        self.set_domains(BTreeMap::new());
        self.terms.timeout = Duration::ZERO;
        self.query(now)
    }

    /// Returns which terms may have been in use until lately, as text: each as it was stated, and for how many
    /// milliseconds nobody uses it.
    fn past(&self, now: Duration) -> String {
        let mut text = String::new();
        for (domain, view) in &self.view.domains {
            for (terms, gone) in &view.others {
                terms.write(*domain, &mut text);
                let _ = write!(text, ":{}", gone.map_or(0, |gone| ms(now.saturating_sub(gone))));
            }
        }
        text
    }

    /// Takes the table's answer to a question. Questions are asked one at a time.
    pub fn answered(&mut self, query: &Query, answer: &Answer, now: Duration) {
        let Answer { incarnation, known_ms, entries } = answer;
        let is_new = self.table.as_ref().is_none_or(|(known, ..)| known != incarnation);
        match &mut self.table {
            Some((known, _, by_others)) if known == incarnation => *by_others = (*by_others).max(*known_ms),
            table => *table = Some((incarnation.clone(), now, *known_ms)),
        }
        let was_away = now >= self.view.known_until;
        let until = query.sent + self.terms.timeout;
        self.view.known_until = until;
        let seat = entries.get(&self.id).filter(|entry| entry.beat == query.beat).and_then(|entry| entry.seat);
        self.view.seat = match (seat, self.view.seat) {
            (Some(seat), Some((held, since, _))) if seat == held => Some((seat, since, until)),
            (Some(seat), _) => Some((seat, now, until)),
            (None, _) => None,
        };
        self.see(is_new, incarnation, entries, now);
        if was_away {
            self.catch_up(now);
        }
        self.agree(query, now);
    }

    /// Notes what may have happened while this instance did not know the table: others may have removed it, agreed
    /// without it, and changed their terms again.
    fn catch_up(&mut self, now: Duration) {
        self.view.domains.values_mut().for_each(|domain| domain.agreed = None);
        for Past { domain, terms, ago } in self.others.values().flat_map(|other| &other.past) {
            let view = self.view.domains.entry(*domain).or_default();
            note_use(&mut view.others, *terms, Some(now.saturating_sub(*ago)));
        }
    }

    /// Notes the entries of others.
    fn see(&mut self, is_new: bool, incarnation: &str, entries: &BTreeMap<String, Entry>, now: Duration) {
        if is_new {
            // Beats that the table lost may have confirmed seats until now.
            self.others.values_mut().for_each(|other| other.since = now);
        }
        for (id, entry) in entries.iter().filter(|(id, _)| **id != self.id) {
            match self.others.get_mut(id) {
                Some(other) if other.beat == entry.beat && !is_new => {
                    (other.seat, other.incarnation) = (entry.seat, incarnation.to_owned());
                }
                _ => {
                    let (terms, past) = Terms::read(&entry.stated).unzip();
                    let other = Other {
                        beat: entry.beat,
                        seat: entry.seat,
                        terms,
                        past: past.unwrap_or_default(),
                        since: now,
                        incarnation: incarnation.to_owned(),
                    };
                    self.others.insert(id.clone(), other);
                }
            }
        }
        // One that is missing has left or was removed, if the table is the same; it may be missing from a new table
        // because that has lost it.
        let own = &self.terms;
        self.others.retain(|id, other| {
            let is_lost = other.incarnation != *incarnation && now < other.since + other.silence(own);
            entries.contains_key(id) || is_lost
        });
    }

    /// Notes on which domains all agree, and which terms others may use.
    fn agree(&mut self, query: &Query, now: Duration) {
        // A new incarnation may lack instances, and have old terms of others.
        let is_old = self.table.as_ref().is_some_and(|(_, since, by_others)| {
            (now - *since).max(Duration::from_millis(*by_others)) >= self.longest_silence()
        });
        for (domain, own) in &self.terms.domains {
            let is_stated = query.terms.domains.get(domain) == Some(own);
            let mut others = self.others.values().filter(|other| !other.has_left());
            let view = self.view.domains.entry(*domain).or_default();
            if is_old && is_stated && others.all(|other| other.of(*domain) == Some(own)) {
                view.agreed.get_or_insert(now);
            }
        }
        let mut used: Vec<(u64, DomainTerms)> = Vec::new();
        // With the terms that the table had of this instance until now, others may have agreed.
        for terms in self.others.values().filter_map(|other| other.terms.as_ref()).chain([&query.terms]) {
            for (domain, terms) in &terms.domains {
                if self.terms.domains.get(domain) != Some(terms) {
                    used.push((*domain, *terms));
                }
            }
        }
        for (domain, view) in &mut self.view.domains {
            for (terms, gone) in &mut view.others {
                if is_old && !used.contains(&(*domain, *terms)) {
                    gone.get_or_insert(now);
                }
            }
        }
        for (domain, terms) in used {
            note_use(&mut self.view.domains.entry(domain).or_default().others, terms, None);
        }
        self.view.domains.values_mut().for_each(|view| view.forget(now));
        self.view.domains.retain(|_, view| !view.is_empty());
    }

    /// Returns a seat that nobody has, if there is one. Instances that start together take different ones: each goes by
    /// its place among those without a seat.
    fn free_seat(&self) -> Option<u32> {
        let waits = |(id, other): &(&String, &Other)| other.seat.is_none() && !other.has_left() && **id < self.id;
        let place = self.others.iter().filter(waits).count();
        let is_free = |seat: &u32| !self.others.values().any(|other| other.seat == Some(*seat));
        let free: Vec<u32> = (0..self.seats).filter(is_free).take(place + 1).collect();
        free.get(place.checked_rem(free.len())?).copied()
    }

    /// Returns how long the instance with the longest timeout must be silent until it is removed.
    fn longest_silence(&self) -> Duration {
        let others = self.others.values().map(|other| other.silence(&self.terms));
        others.fold(self.terms.silence(), Duration::max)
    }
}

/// The longest time for which terms that nobody uses matter: the longest period.
const FORGOTTEN: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Other {
    fn of(&self, domain: u64) -> Option<&DomainTerms> {
        self.terms.as_ref()?.domains.get(&domain)
    }

    /// Returns how long it must be silent until it is removed. Terms that cannot be read count like one's own.
    fn silence(&self, own: &Terms) -> Duration {
        self.terms.as_ref().unwrap_or(own).silence()
    }

    fn has_left(&self) -> bool {
        self.terms.as_ref().is_some_and(Terms::is_left)
    }
}

/// Returns a time that is surely over by the clocks of others, too.
fn with_margin(time: Duration) -> Duration {
    time + time / MARGIN
}

/// Notes that terms are in use, or were until `gone`.
fn note_use(others: &mut Vec<(DomainTerms, Option<Duration>)>, terms: DomainTerms, gone: Option<Duration>) {
    match others.iter_mut().find(|(other, _)| *other == terms) {
        Some((_, before)) => *before = before.zip(gone).map(|(before, gone)| before.max(gone)),
        None => others.push((terms, gone)),
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Options};
    use crate::share::Table;

    const DOMAIN: u64 = 1;
    const TIMEOUT: u64 = 100;
    const PERIOD: u64 = 10;

    /// A table on a server, and the time in seconds.
    struct World {
        table: Table,
        server: &'static str,
        now: u64,
    }

    impl World {
        /// Returns a world in which these instances use shares.
        fn settled(members: &mut [&mut Member]) -> World {
            let mut world = World { table: Table::default(), server: "s1", now: 1_000 };
            for _ in 0..20 {
                world.now += TIMEOUT / 10;
                members.iter_mut().for_each(|member| world.beat(member));
            }
            world
        }

        fn clock(&self) -> Duration {
            Duration::from_secs(self.now)
        }

        fn beat(&mut self, member: &mut Member) {
            let query = member.query(self.clock());
            self.answer(member, &query);
        }

        fn answer(&mut self, member: &mut Member, query: &Query) {
            let id = member.id().to_owned();
            let answer = self.table.beat(self.server, &query.beat(&id, &format!("{id}{}", self.now)));
            member.answered(query, &answer, self.clock());
        }

        /// Returns the number that an instance with these terms may admit by itself, and that it asks the store for.
        fn may(&self, member: &Member) -> (u64, u64) {
            let terms = member.terms.domains.get(&DOMAIN);
            let split = terms.map(|terms| terms.largest);
            let shared =
                Shared { domain: DOMAIN, digest: terms.map_or(0, |terms| terms.digest), split, is_changed: false };
            let period = Duration::from_secs(PERIOD);
            let limit = Limit::new(Algorithm::SlidingLog, 100, period, Options::default()).unwrap();
            let share = member.view().share(&shared, &limit, self.clock());
            (share.map_or(0, |share| share.number()), member.view().rest(&shared, &limit, self.clock()).number())
        }
    }

    /// Terms by which two seats have so many hits of a hundred each.
    fn terms(each: u16) -> BTreeMap<u64, DomainTerms> {
        BTreeMap::from([(DOMAIN, DomainTerms { digest: u64::from(each), largest: Split::new(each * 200, 2) })])
    }

    fn member(id: &str, domains: BTreeMap<u64, DomainTerms>) -> Member {
        let mut member = Member::new(id, 2, Duration::from_secs(TIMEOUT));
        member.set_domains(domains);
        member
    }

    /// Two instances that use shares of twenty.
    fn two() -> (Member, Member) {
        (member("a", terms(20)), member("b", terms(20)))
    }

    #[test]
    fn old_terms_count_until_the_table_has_others_and_the_period_is_over() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        assert_eq!((world.may(&a), world.may(&b)), ((20, 60), (20, 60)));
        a.set_domains(BTreeMap::new());
        world.now += 2 * PERIOD;
        assert_eq!(world.may(&a), (0, 60), "no beat has reached the table");
        world.beat(&mut a);
        let old = b.query(world.clock());
        b.set_domains(BTreeMap::new());
        world.answer(&mut b, &old);
        world.now += 2 * PERIOD;
        assert_eq!(world.may(&b), (0, 60), "the answer is to a beat with the old terms");
        world.beat(&mut b);
        world.beat(&mut a);
        world.now += PERIOD;
        assert_eq!((world.may(&a), world.may(&b)), ((0, 60), (0, 60)));
        world.now += PERIOD / 10;
        assert_eq!((world.may(&a), world.may(&b)), ((0, 100), (0, 100)));
    }

    #[test]
    fn nothing_is_agreed_or_over_in_a_table_that_may_lack_instances() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        (world.table, world.server) = (Table::default(), "s2");
        a.set_domains(BTreeMap::new());
        for _ in 0..8 {
            world.now += PERIOD;
            world.beat(&mut a);
        }
        assert_eq!((world.may(&a), world.may(&b)), ((0, 60), (20, 60)));
        let mut c = member("c", terms(20));
        world.beat(&mut c);
        a.set_domains(terms(20));
        world.beat(&mut a);
        world.beat(&mut c);
        assert!(!a.view().is_agreed(DOMAIN) && !c.view().is_agreed(DOMAIN), "b is not here");
    }

    #[test]
    fn old_terms_count_while_a_table_may_lack_one_that_agreed_with_them() {
        let mut a = member("a", terms(20));
        let mut world = World::settled(&mut [&mut a]);
        let mut b = member("b", terms(20));
        world.beat(&mut b);
        world.beat(&mut b);
        world.now += PERIOD;
        assert_eq!(world.may(&b), (0, 60), "a clock may be fast by a tenth");
        world.now += PERIOD / 10;
        assert_eq!(world.may(&b), (20, 60));
        // a has not seen b, and does not find it in the new table.
        (world.table, world.server) = (Table::default(), "s2");
        a.set_domains(BTreeMap::new());
        world.beat(&mut a);
        world.now += 2 * PERIOD;
        assert_eq!((world.may(&a), world.may(&b)), ((0, 60), (20, 60)));
    }

    #[test]
    fn an_instance_that_was_away_agrees_anew() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        b.set_domains(terms(10));
        for _ in 0..30 {
            world.now += PERIOD;
            world.beat(&mut b);
        }
        assert_eq!(world.may(&b), (10, 80));
        world.beat(&mut a);
        world.now += 2 * PERIOD;
        assert_eq!(world.may(&a).0, 0);
    }

    #[test]
    fn a_new_instance_hears_of_shares_that_were_just_in_use() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        a.set_domains(BTreeMap::new());
        b.set_domains(BTreeMap::new());
        world.beat(&mut a);
        world.beat(&mut b);
        let mut c = member("c", BTreeMap::new());
        world.beat(&mut c);
        assert_eq!(world.may(&c), (0, 60));
        // All that used shares leave, and the last is seen by none.
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        for left in [&mut a, &mut b] {
            let last = left.last_query(world.clock());
            world.table.beat(world.server, &last.beat(left.id(), "unused"));
        }
        let mut c = member("c", BTreeMap::new());
        world.beat(&mut c);
        assert_eq!(world.may(&c), (0, 60));
        world.now += PERIOD + PERIOD / 10;
        assert_eq!(world.may(&c), (0, 100));
    }

    #[test]
    fn those_that_come_and_go_with_the_same_terms_cost_the_store_nothing() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        let last = a.last_query(world.clock());
        world.table.beat(world.server, &last.beat(a.id(), "unused"));
        let mut c = member("c", terms(20));
        // A limit with a smaller share than the largest of the domain.
        let shared = Shared { domain: DOMAIN, digest: 20, split: Some(Split::new(1_000, 2)), ..Shared::default() };
        let limit = Limit::new(Algorithm::SlidingLog, 100, Duration::from_secs(PERIOD), Options::default()).unwrap();
        for _ in 0..30 {
            [&mut b, &mut c].into_iter().for_each(|member| world.beat(member));
            for member in [&b, &c] {
                assert_eq!(member.view().rest(&shared, &limit, world.clock()).number(), 90);
            }
            world.now += 1;
        }
    }

    #[test]
    fn a_thousand_changes_of_rules_are_few_terms_and_cut_as_the_last() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        for digest in 100..1_100 {
            let terms = BTreeMap::from([(DOMAIN, DomainTerms { digest, largest: Split::new(4_000, 2) })]);
            for member in [&mut a, &mut b] {
                member.set_domains(terms.clone());
                world.beat(member);
            }
            world.now += 1;
        }
        for member in [&mut a, &mut b] {
            world.beat(member);
            let past = member.past(world.clock());
            assert!(past.split(' ').count() <= 4, "{past}");
        }
        assert_eq!(world.may(&a), (0, 60));
        // A new instance with no shares learns of the last.
        let mut c = member("c", BTreeMap::new());
        a.set_domains(BTreeMap::new());
        b.set_domains(BTreeMap::new());
        [&mut a, &mut b, &mut c].into_iter().for_each(|member| world.beat(member));
        [&mut a, &mut b, &mut c].into_iter().for_each(|member| world.beat(member));
        world.now += PERIOD;
        assert_eq!(world.may(&c), (0, 60));
        world.now += PERIOD / 10 + 1;
        assert_eq!(world.may(&c), (0, 100));
    }

    #[test]
    fn rules_that_come_back_are_cut_by_those_before_them() {
        let of =
            |digest, each: u16| BTreeMap::from([(DOMAIN, DomainTerms { digest, largest: Split::new(each * 200, 2) })]);
        let (mut a, mut b) = (member("a", of(1, 20)), member("b", of(1, 20)));
        let mut world = World::settled(&mut [&mut a, &mut b]);
        // The second rules have a share of this size elsewhere, and the third a smaller one.
        for domains in [of(2, 20), of(3, 5)] {
            for member in [&mut a, &mut b] {
                member.set_domains(domains.clone());
                world.beat(member);
            }
            world.beat(&mut a);
        }
        // Rules are in force before the next beat tells of them. In the second, this limit has no share.
        let shared = Shared { domain: DOMAIN, digest: 2, ..Shared::default() };
        let limit = Limit::new(Algorithm::SlidingLog, 100, Duration::from_secs(PERIOD), Options::default()).unwrap();
        assert_eq!(a.view().rest(&shared, &limit, world.clock()).number(), 60, "the shares of the first still count");
    }

    #[test]
    fn an_old_table_makes_no_instance_silent_that_was_heard_of_since() {
        let (mut a, mut b) = two();
        let mut world = World::settled(&mut [&mut a, &mut b]);
        let old = world.table.clone();
        a.set_domains(BTreeMap::new());
        world.beat(&mut a);
        world.now += TIMEOUT - 1;
        world.beat(&mut b);
        (world.table, world.server) = (old, "s2");
        world.now += TIMEOUT / 5;
        world.beat(&mut a);
        world.beat(&mut a);
        world.now += 2 * PERIOD;
        assert_eq!((world.may(&a), world.may(&b)), ((0, 60), (20, 60)));
    }
}
