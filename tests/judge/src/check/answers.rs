//! What was told, judged by what is known.

use super::counter::{Counter, Sound};
use super::finding::Kind;
use super::places::Doubt;
use super::{Judge, Lagging};
use crate::history::{Ask, Promise, Told};

impl Judge {
    /// A denial is needless if each of its counters was free at every instant of it, whatever may have counted.
    pub(super) fn judge_denial(&mut self, operation: &Lagging) {
        let is_free = |left: u64, counter, hits: u64| left >= hits.saturating_add(self.held_back(counter));
        let is_needless = match operation.parts[..] {
            [] => false,
            [(counter, hits)] => {
                let left = self.least_left(counter, operation);
                let is_needless = is_free(left, counter, hits);
                // A request of more hits than there ever are says nothing of the limit.
                if hits <= self.capacity(counter) {
                    self.unused[self.counters.all[counter].limit].add(left);
                }
                is_needless
            }
            _ => operation
                .parts
                .iter()
                .all(|(counter, hits)| is_free(self.least_left(*counter, operation), *counter, *hits)),
        };
        if !is_needless {
            return;
        }
        let (counter, hits) = operation.parts[0];
        let what = "no counter of the request can have been full".to_owned();
        if operation.parts.len() == 1 && self.counters.all[counter].places().is_some() {
            let missing = self.least_left(counter, operation);
            self.doubt(counter, Doubt { kind: Kind::NeedlessDenial, line: operation.line, what, count: 1, missing });
            return;
        }
        self.finding(Kind::NeedlessDenial, operation.line, counter, hits, what);
    }

    /// Returns what of a limit was left at each instant of an operation, whatever may have counted.
    fn least_left(&self, counter: usize, operation: &Lagging) -> u64 {
        let Counter { limit, known, sound, .. } = &self.counters.all[counter];
        let Lagging { begin, end, .. } = *operation;
        match (&self.limits[*limit].1, sound) {
            (Promise::Window { number, memory_us, .. }, _) => {
                number.saturating_sub(known.most_in(begin, end, *memory_us))
            }
            (Promise::Bucket { .. }, _) => known.least_tokens(begin, end),
            (Promise::Holders { number, .. }, Sound::Holders(holders)) => {
                number.saturating_sub(holders.1.most_in(begin, end))
            }
            (Promise::Holders { .. } | Promise::Budget { .. }, _) => 0,
        }
    }

    /// Returns the most hits that can pass at once.
    fn capacity(&self, counter: usize) -> u64 {
        match self.limits[self.counters.all[counter].limit].1 {
            Promise::Window { number, .. } | Promise::Holders { number, .. } | Promise::Budget { number, .. } => number,
            Promise::Bucket { burst, .. } => burst,
        }
    }

    /// Returns what instances may hold back of a limit.
    fn held_back(&self, counter: usize) -> u64 {
        match self.limits[self.counters.all[counter].limit].1 {
            Promise::Window { number, usable_thousandths, .. } => {
                number.saturating_sub(number * usable_thousandths / 1_000)
            }
            // Of a bucket, only the usable share is known.
            Promise::Bucket { .. } | Promise::Holders { .. } | Promise::Budget { .. } => 0,
        }
    }

    /// What remains is between the limit without all that may have counted, and without all that must have.
    pub(super) fn judge_remaining(&mut self, operation: &Lagging) {
        let Some(told) = operation.remaining.filter(|_| operation.told == Told::Allowed) else { return };
        if let [(counter, _)] = operation.parts[..]
            && self.counters.all[counter].places().is_some()
        {
            self.judge_free_places(operation, counter, told);
            return;
        }
        if !operation.ask.is_take() {
            return;
        }
        let mut range = Some((u64::MAX, u64::MAX));
        for (counter, hits) in &operation.parts {
            let Counter { limit, known, .. } = &self.counters.all[*counter];
            let Promise::Window { number, period_us, memory_us, usable_thousandths, .. } = &self.limits[*limit].1
            else {
                range = None;
                break;
            };
            if *usable_thousandths != 1_000 || !known.returns().is_empty() {
                range = None;
                break;
            }
            let may = known.most_in(operation.begin, operation.end, *memory_us);
            let must = hits + known.least_in(operation.begin, operation.end, *period_us);
            range = range
                .map(|(least, most)| (least.min(number.saturating_sub(may)), most.min(number.saturating_sub(must))));
        }
        if let Some((least, most)) = range
            && let Some((counter, _)) = operation.parts.first()
            && !(least..=most).contains(&told)
        {
            let what = format!("{told} remaining were told, between {least} and {most} can be");
            self.finding(Kind::WrongRemaining, operation.line, *counter, 0, what);
        }
    }

    /// No fewer places remain than are free for certain.
    fn judge_free_places(&mut self, operation: &Lagging, counter: usize, told: u64) {
        let Promise::Holders { number, .. } = self.limits[self.counters.all[counter].limit].1 else { return };
        let least = self.least_left(counter, operation);
        if told < least {
            let what = format!("{told} remaining were told, and at least {least} places are free");
            let (line, missing) = (operation.line, least - told);
            self.doubt(counter, Doubt { kind: Kind::WrongRemaining, line, what, count: 1, missing });
            return;
        }
        // The place that a take was given was free before it.
        let free = told + u64::from(operation.ask.is_take());
        let ended = self.counters.all[counter].places().and_then(|places| places.hear_free(free, number));
        if let Some(Doubt { kind, line, what, count, .. }) = ended {
            let finding = self.finding_of(kind, line, counter, what);
            self.judgement.add(count, count, finding);
        }
    }

    fn doubt(&mut self, counter: usize, doubt: Doubt) {
        if let Some(places) = self.counters.all[counter].places() {
            places.doubt(doubt);
        }
    }

    /// After a wait that was told, the same request passes if nobody else asked, and not long before.
    pub(super) fn judge_wait(&mut self, operation: &Lagging) {
        let [(counter, hits)] = operation.parts[..] else {
            operation.parts.iter().for_each(|(counter, _)| self.counters.all[*counter].known.forget_wait());
            return;
        };
        match self.limits[self.counters.all[counter].limit].1 {
            Promise::Window { usable_thousandths: 1_000, .. } | Promise::Bucket { usable_thousandths: 1_000, .. } => {}
            // What instances hold back comes and goes, and a place may be let go before it expires.
            _ => return,
        }
        // A request of more hits than there ever are never passes, and no wait is right.
        let wait_us = operation.wait_us.filter(|_| hits <= self.capacity(counter));
        let steps = (self.wait_resolution_us, self.clock_us);
        let interval = (operation.begin, operation.end);
        let known = &mut self.counters.all[counter].known;
        let wrong = known.judge_wait(interval, (operation.ask, operation.told), hits, wait_us, steps);
        if let Some(what) = wrong {
            self.finding(Kind::WrongWait, operation.line, counter, 0, what);
        }
    }

    /// A total is between what certainly was taken and what may have been.
    pub(super) fn judge_total(&mut self, operation: &Lagging) {
        let ([(counter, _)], Some(told), Told::Allowed) = (&operation.parts[..], operation.total, operation.told)
        else {
            return;
        };
        if operation.ask != Ask::Total || matches!(self.counters.all[*counter].sound, Sound::Budget(_)) {
            return;
        }
        let (least, most) = self.counters.all[*counter].known.total_in(operation.begin, operation.end);
        let unrecorded = match self.limits[self.counters.all[*counter].limit].1 {
            Promise::Window { unrecorded, .. } => unrecorded,
            Promise::Bucket { .. } | Promise::Holders { .. } | Promise::Budget { .. } => 0,
        };
        let least = least - i128::from(unrecorded);
        if !(least..=most).contains(&i128::from(told)) {
            let what = format!("{told} hits were counted by the system, between {least} and {most} were allowed");
            self.finding(Kind::WrongTotal, operation.line, *counter, 0, what);
        }
    }
}
