//! How the toy decides a call at its instant.

use tollgate_judge::history::{Ask, Promise, Told};

use super::{Call, Fault, Toy};

impl Toy {
    /// Returns its own count, if it is asked.
    pub(super) fn total(&self, call: &Call) -> Option<i64> {
        let limit = call.only.filter(|_| call.ask == Ask::Total)?;
        let key = if self.is(Fault::KeysCollide) { 0 } else { call.key };
        i64::try_from(self.counters[limit][key].total).ok()
    }

    /// Adds to its own count.
    fn count(&mut self, limits: usize, key: usize, hits: u64) {
        let misses = self.is(Fault::TotalMisses) && self.rng.u8(0..6) == 0;
        if !misses {
            self.counters[..limits].iter_mut().for_each(|counters| counters[key].total += hits);
        }
    }

    /// Decides a call at its instant.
    pub(super) fn decide(&mut self, call: &Call) -> (Told, Option<u64>, Option<u64>) {
        if !call.is_counted {
            return (Told::Failed, None, None);
        }
        let key = if self.is(Fault::KeysCollide) { 0 } else { call.key };
        let hits = if self.is(Fault::HitsIgnored) { 1 } else { call.hits };
        let ahead_us = if self.is(Fault::ClockOfReplica) && call.replica == 1 { 400 } else { 0 };
        let at = call.at / self.clock_us * self.clock_us + ahead_us;
        if call.ask == Ask::Total {
            return (Told::Allowed, None, None);
        }
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
            // A peek is denied at no limit of holders: it asks how many places remain.
            let is_of_holders = matches!(self.limits[0], Promise::Holders { .. });
            let told = if is_allowed || is_of_holders { Told::Allowed } else { Told::Denied };
            return (told, rooms.iter().map(|(_, left, _)| *left).min().filter(|_| is_of_holders), None);
        }
        if is_allowed || self.is(Fault::TotalOfDenied) {
            self.count(self.limits.len(), key, hits);
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
            Promise::Window { number, period_us, usable_thousandths, .. } => {
                let forgotten: Vec<u64> =
                    self.counters[limit][key].hits.iter().map(|hit| self.forgotten_at(*hit, period_us)).collect();
                let counter = &mut self.counters[limit][key];
                // With faults of clocks, hits are not in the order of time.
                let mut ends = forgotten.iter();
                counter.hits.retain(|_| ends.next().is_some_and(|end| *end > at));
                let mut live: Vec<u64> = forgotten.into_iter().filter(|end| *end > at).collect();
                live.sort_unstable();
                let count = live.len() as u64;
                // What the other instances hold.
                let most_held = number - number * usable_thousandths / 1_000;
                let held = match self.fault {
                    Some(Fault::HoldsBackMore) => (most_held + 1).min(number),
                    _ if most_held > 0 => self.rng.u64(0..=most_held),
                    _ => 0,
                };
                let number = number + extra - held;
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
            Promise::Bucket { burst, number, period_us, .. } => {
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
            // See tests/budgets.rs.
            Promise::Budget { .. } => unreachable!("this toy has no budgets"),
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
        let (is_half, is_kept) = (self.is(Fault::HolderExpires), self.is(Fault::PlaceKept));
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
                let lasts_us = if is_kept { u64::MAX / 2 } else { lasts_us };
                counter.holders.retain(|(one, _)| *one != holder);
                counter.holders.push((holder, at + lasts_us));
            }
            Promise::Budget { .. } => unreachable!("this toy has no budgets"),
        }
    }

    fn give_back(&mut self, limit: usize, key: usize, hits: u64, (holder, at): (usize, u64)) {
        let is_lost = self.is(Fault::RefundLost) || (self.is(Fault::ReleaseLost) && self.rng.u8(0..4) == 0);
        if is_lost {
            return;
        }
        let total = &mut self.counters[limit][key].total;
        *total = total.saturating_sub(hits);
        let frees_two = self.is(Fault::HolderFreesTwo);
        if let Promise::Bucket { burst, number, period_us, .. } = self.limits[limit] {
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
