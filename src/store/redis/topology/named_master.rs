//! Chooses the master from the answers of all Sentinels. Does no I/O and reads no clock.
//!
//! - The newest configuration wins. A Sentinel that was cut off names the previous master until it learns of the
//!   failover.
//! - Within one configuration an address that was replaced does not come back. The Sentinel that leads a failover
//!   raises its configuration before it names the promoted replica, so both addresses appear under one number.
//! - Sentinels may lose their state and start again at configuration 0. So an older configuration wins once a majority
//!   has named one master for [`OVERRULED`] and no Sentinel has named the recorded one.
//!
//! What a silent Sentinel has said of a failover and of replicas counts for [`REMEMBERED`]. It may have begun a
//! failover before it fell silent: a replica that is promoted then follows the old master no more, but others still do,
//! and would confirm durable charges that are lost. What it said of a master that has been replaced counts no more.
//!
//! A Sentinel may give a failover up after it has promoted a replica. Until it makes that follow the master again, or
//! promotes it in earnest, it is open which of the two counts, so the failover counts as in progress. An earlier master
//! that comes back calls itself a master for some seconds, too, and is known.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::redis::topology::address::Place;

/// Time for which an answer is used.
const FRESH: Duration = Duration::from_secs(2);

/// Time for which the last answer of a silent Sentinel counts for failovers and replicas. By then the other Sentinels
/// have learned of a failover that it led, or have given it up.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Time for which a majority must name a master of an older configuration. Sentinels exchange a new configuration
/// within two seconds, so a majority that has only missed a failover does not last this long.
const OVERRULED: Duration = Duration::from_secs(5);

/// The answer of a Sentinel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SentinelAnswer {
    /// The server for clients: during a failover the promoted replica, as soon as the Sentinel knows it.
    pub(super) master: Place,
    /// The number of its configuration.
    pub(super) epoch: u64,
    /// Whether a failover is in progress whose promoted replica is not named yet.
    pub(super) is_failing_over: bool,
    /// Replicas that are up and follow the master.
    pub(super) following: Vec<Place>,
    /// Replicas that are up and call themselves masters.
    pub(super) promoted: Vec<Place>,
}

/// The master that all answers together name.
pub(super) struct NamedMaster {
    sentinels: Vec<Heard>,
    known: Option<Known>,
    /// The time since which a majority has named another master by an older configuration.
    overruled: Option<Instant>,
    /// The number of replicas that the last answers told.
    replicas: usize,
    /// Earlier masters that have not been told to follow another one.
    replaced: Vec<Place>,
}

/// What a Sentinel has said.
#[derive(Default)]
struct Heard {
    last: Option<(SentinelAnswer, Instant)>,
    is_silent: bool,
}

struct Known {
    master: Place,
    epoch: u64,
    /// Earlier masters of this configuration.
    replaced: Vec<Place>,
}

impl NamedMaster {
    /// Creates the record of this number of Sentinels, before any answer.
    pub(super) fn new(sentinels: usize) -> NamedMaster {
        let sentinels = (0..sentinels).map(|_| Heard::default()).collect();
        NamedMaster { sentinels, known: None, overruled: None, replicas: 0, replaced: Vec::new() }
    }

    /// Returns the master.
    pub(super) fn master(&self) -> Option<&Place> {
        self.known.as_ref().map(|known| &known.master)
    }

    /// Returns the number of Sentinels that make a majority.
    pub(super) fn majority(&self) -> usize {
        self.sentinels.len() / 2 + 1
    }

    /// Records the answer of the Sentinel with this index. Returns the master if it has changed.
    pub(super) fn note(&mut self, sentinel: usize, answer: SentinelAnswer, now: Instant) -> Option<Place> {
        let (master, epoch, before) = (answer.master.clone(), answer.epoch, self.master().cloned());
        self.replaced.retain(|place| !answer.following.contains(place));
        self.sentinels[sentinel] = Heard { last: Some((answer, now)), is_silent: false };
        let moved = self.choose(master, epoch, now);
        if let Some(now) = &moved {
            self.replaced.extend(before);
            self.replaced.retain(|place| place != now);
        }
        self.replicas = self.most_following(now).unwrap_or(0);
        moved
    }

    /// Chooses between the recorded master and the one that a Sentinel names. Returns it if it is another one.
    fn choose(&mut self, master: Place, epoch: u64, now: Instant) -> Option<Place> {
        let Some(known) = &mut self.known else {
            self.known = Some(Known { master: master.clone(), epoch, replaced: Vec::new() });
            return Some(master);
        };
        if known.master == master {
            known.epoch = known.epoch.max(epoch);
            self.overruled = None;
            return None;
        }
        if epoch == known.epoch && !known.replaced.contains(&master) {
            known.replaced.push(std::mem::replace(&mut known.master, master.clone()));
        } else if epoch > known.epoch || self.is_overruled(&master, now) {
            self.known = Some(Known { master: master.clone(), epoch, replaced: Vec::new() });
        } else {
            return None;
        }
        self.overruled = None;
        Some(master)
    }

    /// Notes that the Sentinel with this index no longer answers.
    pub(super) fn note_silence(&mut self, sentinel: usize) {
        self.sentinels[sentinel].is_silent = true;
    }

    /// Returns the number of Sentinels that answer.
    pub(super) fn answering(&self, now: Instant) -> usize {
        self.answers(now).count()
    }

    /// Returns whether a failover is in progress whose new master is not known yet, or was given up half-way.
    pub(super) fn is_failing_over(&self, now: Instant) -> bool {
        let is_open = |place: &Place| Some(place) != self.master() && !self.replaced.contains(place);
        self.remembered(now).any(|answer| answer.is_failing_over || answer.promoted.iter().any(is_open))
    }

    /// Returns the number of replicas that follow the master: the largest that any Sentinel reports. While none
    /// answers, it is what they reported last.
    pub(super) fn replicas(&self, now: Instant) -> usize {
        self.most_following(now).unwrap_or(self.replicas)
    }

    fn most_following(&self, now: Instant) -> Option<usize> {
        self.remembered(now).map(|answer| answer.following.len()).max()
    }

    fn answers(&self, now: Instant) -> impl Iterator<Item = &SentinelAnswer> {
        self.sentinels.iter().filter(|heard| !heard.is_silent).filter_map(move |heard| heard.within(FRESH, now))
    }

    /// Returns the last answers, also of Sentinels that have been silent since they named the present master.
    fn remembered(&self, now: Instant) -> impl Iterator<Item = &SentinelAnswer> {
        let of_silent = self.sentinels.iter().filter_map(move |heard| heard.within(REMEMBERED, now));
        self.answers(now).chain(of_silent.filter(|answer| Some(&answer.master) == self.master()))
    }

    /// Returns whether a majority has named this master, and no Sentinel the recorded one, for long enough.
    fn is_overruled(&mut self, master: &Place, now: Instant) -> bool {
        let names = |place: &Place| self.answers(now).filter(|answer| answer.master == *place).count();
        let recorded = self.master().map_or(0, names);
        if names(master) < self.majority() || recorded > 0 {
            self.overruled = None;
            return false;
        }
        now.duration_since(*self.overruled.get_or_insert(now)) >= OVERRULED
    }
}

impl Heard {
    /// Returns the last answer, unless it is older than this.
    fn within(&self, age: Duration, now: Instant) -> Option<&SentinelAnswer> {
        self.last.as_ref().filter(|(_, at)| now.duration_since(*at) < age).map(|(answer, _)| answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16, epoch: u64) -> SentinelAnswer {
        let master = Place::Tcp("10.0.0.1".into(), port);
        SentinelAnswer { master, epoch, is_failing_over: false, following: Vec::new(), promoted: Vec::new() }
    }

    /// An answer that names the first master, which so many replicas follow.
    fn followed_by(replicas: u16) -> SentinelAnswer {
        SentinelAnswer { following: (0..replicas).map(|replica| place(10 + replica)).collect(), ..at(1, 3) }
    }

    fn place(port: u16) -> Place {
        at(port, 0).master
    }

    #[test]
    fn the_newest_configuration_counts_and_within_one_the_way_leads_forward_only() {
        let (mut named, now) = (NamedMaster::new(3), Instant::now());
        for (sentinel, answer, expected) in [
            (0, at(1, 3), Some(1)),
            (1, at(1, 3), None),
            // The leader of a failover has written the new configuration, and knows the new master a moment later.
            (0, at(1, 4), None),
            (0, at(2, 4), Some(2)),
            (0, at(1, 4), None),
            (1, at(1, 3), None),
            (2, at(2, 4), None),
            (2, at(3, 4), Some(3)),
            (0, at(2, 4), None),
            (1, at(1, 5), Some(1)),
        ] {
            assert_eq!(named.note(sentinel, answer.clone(), now), expected.map(place), "{answer:?}");
        }
        assert_eq!(named.master(), Some(&place(1)));
    }

    #[test]
    fn a_majority_that_has_lost_its_state_is_believed_after_a_while() {
        let (mut named, start) = (NamedMaster::new(3), Instant::now());
        named.note(0, at(1, 3), start);
        let second = |s| start + Duration::from_secs(s);
        for s in 1..=4 {
            assert_eq!(named.note(0, at(2, 0), second(s)), None, "one alone");
        }
        for s in 5..=9 {
            assert_eq!(named.note(0, at(2, 0), second(s)), None);
            assert_eq!(named.note(1, at(2, 0), second(s)), None, "not long enough");
        }
        // One Sentinel that names the recorded master outweighs all others.
        named.note(2, at(1, 3), second(9));
        for s in 10..=15 {
            assert_eq!(named.note(0, at(2, 0), second(s)), None, "second {s}");
            assert_eq!(named.note(1, at(2, 0), second(s)), None, "second {s}");
        }
        assert_eq!(named.note(0, at(2, 0), second(16)), Some(place(2)));
        assert_eq!(named.note(1, at(1, 1), second(16)), Some(place(1)), "from there on it is as before");
    }

    #[test]
    fn what_a_silent_sentinel_said_of_a_failover_counts_for_a_while() {
        let (mut named, start) = (NamedMaster::new(3), Instant::now());
        let fails_over = SentinelAnswer { is_failing_over: true, ..followed_by(2) };
        named.note(0, fails_over.clone(), start);
        named.note(1, followed_by(1), start);
        assert!(named.is_failing_over(start));
        assert_eq!((named.replicas(start), named.answering(start)), (2, 2));
        named.note_silence(0);
        assert_eq!(named.answering(start), 1);
        assert_eq!(named.answering(start + FRESH), 0, "whatever became of who asks it");
        // The replica that it promotes follows the old master no more; the other one must not confirm for both.
        let later = start + REMEMBERED - Duration::from_millis(1);
        named.note(1, followed_by(1), later);
        assert_eq!((named.is_failing_over(later), named.replicas(later)), (true, 2));
        let last = start + REMEMBERED;
        assert_eq!((named.is_failing_over(last), named.replicas(last)), (false, 1));
        // While nobody answers, a charge needs as many replicas as it did.
        named.note_silence(1);
        assert_eq!(named.replicas(last + 2 * REMEMBERED), 2);
        // Both have died with the old master. The new one has one replica, which is enough.
        named.note(0, fails_over, last);
        named.note_silence(0);
        assert_eq!((named.is_failing_over(last), named.replicas(last)), (true, 2));
        assert_eq!(
            named.note(2, SentinelAnswer { epoch: 4, master: place(2), ..followed_by(1) }, last),
            Some(place(2))
        );
        assert_eq!((named.is_failing_over(last), named.replicas(last)), (false, 1));
    }

    #[test]
    fn a_failover_that_is_given_up_half_way_is_open_and_an_earlier_master_that_comes_back_is_not() {
        let (mut named, now) = (NamedMaster::new(2), Instant::now());
        named.note(0, followed_by(2), now);
        // It has promoted 11, and given up.
        let half = SentinelAnswer { promoted: vec![place(11)], ..followed_by(1) };
        named.note(0, half.clone(), now);
        named.note(1, followed_by(2), now);
        assert!(named.is_failing_over(now));
        named.note(0, followed_by(2), now);
        assert!(!named.is_failing_over(now), "it follows again");
        // Now it is the master. One Sentinel names it as promoted, and one the earlier master, which comes back.
        let of_new = |promoted| SentinelAnswer { master: place(11), promoted, ..followed_by(1) };
        named.note(1, half, now);
        assert!(named.note(0, SentinelAnswer { epoch: 4, ..of_new(vec![place(1)]) }, now).is_some());
        assert!(!named.is_failing_over(now));
        // Once it has followed, it is a replica like others.
        let follows = SentinelAnswer { following: vec![place(10), place(1)], ..of_new(Vec::new()) };
        named.note(0, SentinelAnswer { epoch: 4, ..follows }, now);
        named.note(0, SentinelAnswer { epoch: 4, ..of_new(vec![place(1)]) }, now);
        assert!(named.is_failing_over(now));
    }
}
