//! The input and the reply of the Lua scripts.

pub(crate) mod own_counters;
pub(crate) mod slot;
pub(crate) mod source;

use std::borrow::Borrow;

use deadpool_redis::redis::{Cmd, cmd};
use smallvec::SmallVec;

use self::source::SCRIPTS;
pub use self::source::Scripts;
use crate::engine::algorithm::{Algorithm, Ask, FIGURES, Granted, Held, LeaseAsk, Limit, MAX_HITS, Occupies, Verdict};
use crate::engine::check::group;
use crate::engine::check::{Check, CheckVerdict, Key, Occasion, Recorded, StoreError, Verdicts};
use crate::engine::clock::Clock;
use crate::engine::descriptor::Role;
use crate::store::memory::SystemClock;

/// Bytes for one check, enough to include its penalty, its leases, its charge to take back, or its record: four flags,
/// and the hits, number, period and figures of the algorithm as doubles.
const QUESTION: usize = 4 + (3 + FIGURES) * 8;
/// The byte in place of a check that decides alone and is the same as the previous one. Other checks begin with the
/// number of an algorithm.
const REPEATED: u8 = 0;
/// Bytes in the reply before the counters: the time of all decisions, as a double.
pub const TIME: usize = 8;
/// Bytes in the reply for one counter: whether it is allowed, the remaining hits, and three times as doubles.
pub const ANSWER: usize = 1 + 4 * 8;
/// The value in place of "allowed" if the request of the check could not be decided.
const UNDECIDED: u8 = 2;
/// The value in place of "allowed" if a node of a cluster does not have one of the request's counters.
const ELSEWHERE: u8 = 3;
/// Added to "allowed" if the counter was damaged and was decided as a fresh one.
const DAMAGED: u8 = 4;
/// Added to "allowed" if a budget tells more, which follows behind all answers.
const TELLS_MORE: u8 = 8;
/// Bytes for what a budget tells there: its hits beyond its number, and what it has learned.
const MORE: usize = 2 * 8;

/// The slots of a Redis Cluster that hold the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// No slots, without a cluster.
    None,
    /// A single slot.
    One(u16),
    /// Several slots.
    Several,
}

/// A request as it is sent: a group of checks.
pub struct Group {
    /// The keys one after the other, followed by the questions.
    bytes: Vec<u8>,
    /// The end of each key.
    keys: SmallVec<[usize; 4]>,
    /// For each check, its keys in addition to its counter.
    beside: SmallVec<[Beside; 4]>,
    /// The algorithm of the only check, if nothing but that check is required.
    alone: Option<Algorithm>,
    slots: Slots,
}

/// The keys of a check in addition to its counter.
#[derive(Clone, Copy)]
struct Beside {
    /// Whether the answer tells what streams hold of a budget.
    holds: bool,
    /// Whether there is a counter of its leases.
    leases: bool,
    /// Whether there is a counter of its penalty.
    penalty: bool,
    /// Whether there is a page of its records.
    page: bool,
}

impl Group {
    /// Returns the group of these checks.
    pub fn new<C: Borrow<Check>>(checks: &[C]) -> Group {
        Group::by_clock(checks, &SystemClock)
    }

    /// Returns the group in a process with this clock, which determines calendar windows.
    pub fn by_clock<C: Borrow<Check>>(checks: &[C], clock: &impl Clock) -> Group {
        let keys_and_questions = group::keys(checks).map(|key| key.as_str().len() + QUESTION);
        let size = keys_and_questions.sum();
        let (mut bytes, mut keys) = (Vec::with_capacity(size), SmallVec::new());
        let mut beside = SmallVec::with_capacity(checks.len());
        let mut name = |key: &Key| {
            bytes.extend_from_slice(key.as_str().as_bytes());
            keys.push(bytes.len());
        };
        for check in checks.iter().map(Borrow::borrow) {
            name(&check.key);
            check.leased.iter().for_each(|leased| name(&leased.key));
            let penalty = check.penalized();
            penalty.iter().for_each(|penalized| name(&penalized.key));
            let page = check.recorded.as_ref().map(|recorded| recorded.usage.period());
            page.iter().for_each(|period| name(&check.key.of_page(*period, clock.now())));
            beside.push(Beside {
                holds: check.limit.algorithm() == Algorithm::Budget,
                leases: check.leased.is_some(),
                penalty: penalty.is_some(),
                page: page.is_some(),
            });
        }
        for (i, check) in checks.iter().map(Borrow::borrow).enumerate() {
            let joined = i > 0 && checks[i - 1].borrow().descriptor == check.descriptor;
            question(&mut bytes, check, (joined, i + 1 < checks.len()), clock);
        }
        let alone = match checks {
            // The script for a single check has no resets, takes nothing back, and keeps no records.
            [check] => Some(check.borrow()).filter(|check| {
                let is_rare = matches!(check.ask, Ask::Reset | Ask::TakeBack(_));
                check.counters() == 1 && check.recorded.is_none() && !is_rare
            }),
            _ => None,
        };
        let alone = alone.map(|check| check.limit.algorithm());
        Group { bytes, keys, beside, alone, slots: Slots::None }
    }

    /// Returns the group for counters in these slots.
    #[must_use]
    pub fn within(self, slots: Slots) -> Group {
        Group { slots, ..self }
    }

    /// Returns the number of checks.
    pub fn checks(&self) -> usize {
        self.beside.len()
    }

    /// Returns the number of counters, including pages of records.
    pub fn counters(&self) -> usize {
        self.keys.len()
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.keys.iter().copied());
        begins.zip(&self.keys).map(|(begin, end)| &self.bytes[begin..*end])
    }

    fn questions(&self) -> &[u8] {
        &self.bytes[self.keys.last().copied().unwrap_or(0)..]
    }

    /// Returns the verdicts from the script's answers for these counters.
    fn verdicts(
        &self,
        at_ms: u64,
        answers: &[[u8; ANSWER]],
        more: &mut impl Iterator<Item = [u64; 2]>,
    ) -> Result<Verdicts, StoreError> {
        let mut answers = answers.iter();
        let mut next = || answers.next().ok_or(StoreError::Answer);
        let check = |beside: &Beside| {
            let own = if beside.holds { of_budget(next()?, more)? } else { verdict(next()?)? };
            let lease = if beside.leases { Some(granted(next()?)?) } else { None };
            let ban = if beside.penalty { Some(verdict(next()?)?.into()) } else { None };
            if beside.page {
                next()?;
            }
            Ok(Some(CheckVerdict { ban, lease, ..CheckVerdict::new(own, at_ms) }))
        };
        self.beside.iter().map(check).collect()
    }
}

/// Returns the call that decides these requests, one after the other.
pub fn call<'g>(groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    call_of(&SCRIPTS, groups)
}

/// Returns the call to other scripts: tests run scripts with a clock that they control.
pub fn call_of<'g>(scripts: &Scripts, groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    let groups = groups.into_iter();
    let counters: usize = groups.clone().map(Group::counters).sum();
    let mut first_two = groups.clone();
    let first = first_two.next();
    let slots = first.map_or(Slots::None, |group| group.slots);
    let is_scattered = slots == Slots::Several || first_two.clone().any(|group| group.slots != slots);
    let has_leases = groups.clone().any(|group| group.beside.iter().any(|beside| beside.leases));
    let sha1 = match (first.and_then(|group| group.alone), first_two.next()) {
        (Some(algorithm), None) => scripts.alone(algorithm),
        _ if is_scattered => scripts.scattered(has_leases),
        _ => scripts.all(has_leases),
    };
    let questions = questions(groups.clone(), counters);
    let keys: SmallVec<[&[u8]; 32]> = groups.flat_map(Group::keys).collect();
    let mut call = cmd("EVALSHA");
    call.arg(sha1);
    if is_scattered {
        call.arg(0).arg(questions).arg(&keys[..]);
    } else {
        call.arg(counters).arg(&keys[..]).arg(questions);
    }
    call
}

/// Returns the commands that load the scripts into Redis.
pub fn load(is_cluster: bool) -> impl Iterator<Item = Cmd> {
    SCRIPTS.load(is_cluster)
}

/// Returns the questions of groups with this many counters in all. A question that is the same as the previous one
/// takes one byte: most calls are about many counters of few rules.
fn questions<'g>(groups: impl Iterator<Item = &'g Group>, counters: usize) -> Vec<u8> {
    let mut questions = Vec::with_capacity(counters * QUESTION);
    let mut previous = None;
    for group in groups {
        let alone = group.alone.map(|_| group.questions());
        if alone.is_some() && alone == previous {
            questions.push(REPEATED);
        } else {
            questions.extend_from_slice(group.questions());
        }
        previous = alone;
    }
    questions
}

/// Appends one check as `lua/prelude.lua` unpacks it. It is `joined` to the previous check if both are of one rule, and
/// `followed` by another check of the same request.
fn question(questions: &mut Vec<u8>, check: &Check, (joined, followed): (bool, bool), clock: &impl Clock) {
    let Check { limit, ask, caller, .. } = check;
    let role = match check.role {
        // To the script, a settle or a credit is like a peek, which is a vote of a quota.
        Role::Quota if !ask.is_vote() && ask.hits() == 0 => 2,
        Role::Enforced => 0,
        Role::Quota => 1,
        Role::Shadow => 2,
    };
    let penalty = check.penalized().map(|penalized| penalized.penalty);
    let flags = role + if joined { 4 } else { 0 } + if followed { 8 } else { 0 };
    let extra = match ask {
        Ask::Reset => 2,
        Ask::TakeBack(_) => 4,
        Ask::Take(_) | Ask::Peek | Ask::Refund(_) | Ask::Settle(_) | Ask::Credit(_) => 0,
    };
    let recorded = check.recorded.as_ref();
    let with = |flag: u8, is_given: bool| if is_given { flag } else { 0 };
    let extras = with(1, penalty.is_some()) + extra + with(8, recorded.is_some()) + with(16, check.leased.is_some());
    questions.extend([limit.algorithm() as u8 + 1, flags, u8::from(limit.count_denied()), extras]);
    // All of them are whole numbers up to 2^53, so nothing is rounded.
    let mut time = None;
    let mut now = || *time.get_or_insert_with(|| clock.now());
    let figures = limit.figures(*ask, *caller, &mut now).map(|figure| figure as f64);
    let period_ms = limit.period_figure(now) as f64;
    let values = [ask.hits() as f64, limit.number() as f64, period_ms];
    let charge = ask.charge().map(|charge| [charge.at_ms as f64, charge.reset_after_ms as f64]);
    let penalty = penalty.map(|penalty| penalty.figures().map(|figure| figure as f64));
    let leased = check.leased.as_ref().map(|leased| leases(limit, &leased.ask));
    let more = charge.into_iter().flatten().chain(leased.into_iter().flatten()).chain(penalty.into_iter().flatten());
    for value in values.into_iter().chain(figures).chain(more) {
        questions.extend(value.to_le_bytes());
    }
    recorded.iter().for_each(|recorded| record(questions, recorded, check.costs_denied()));
}

/// Returns what is asked of leases, as `lua/prelude.lua` unpacks it.
fn leases(limit: &Limit, LeaseAsk { returned, want, ttl_ms, most }: &LeaseAsk) -> [f64; 8] {
    let occupies = limit.occupies().unwrap_or(Occupies::Room) as u8;
    let (until_ms, hits, used) = returned.map_or((0, 0, 0), |lease| (lease.until_ms, lease.hits, lease.used));
    let capacity = limit.capacity() as f64;
    let [hits, used, want, most] = [hits, used, *want, *most].map(f64::from);
    [f64::from(occupies), capacity, until_ms as f64, hits, used, want, *ttl_ms as f64, most]
}

/// Appends a record as `lua/prelude.lua` unpacks it.
fn record(questions: &mut Vec<u8>, Recorded { usage, tag, occasion }: &Recorded, costs_denied: bool) {
    let (occasion, at_ms, cost) = match *occasion {
        Occasion::Decided => (0, 0, 0.0),
        Occasion::Denied { hits } => (1, 0, hits as f64),
        Occasion::Undone { at_ms, cost } => (2, at_ms, cost as f64),
        Occasion::Exempt { hits } => (3, 0, hits as f64),
        Occasion::Leased { waiting, decided } => (4, waiting, decided as f64),
    };
    questions.extend([occasion, u8::from(costs_denied)]);
    for value in [usage.period().ms() as f64, usage.page_kept_ms() as f64, at_ms as f64, cost] {
        questions.extend(value.to_le_bytes());
    }
    let tag = tag.as_deref().unwrap_or_default();
    // A request is far smaller than that.
    let bytes = u32::try_from(tag.len()).unwrap_or(u32::MAX);
    questions.extend(bytes.to_le_bytes());
    questions.extend_from_slice(tag.as_bytes());
}

/// The script's reply to all groups of a call.
pub struct Reply {
    /// The time on Redis's clock when it decided.
    at_ms: u64,
    answers: Vec<[u8; ANSWER]>,
    /// Number of answers taken so far.
    taken: usize,
    /// What the budgets that are not taken yet tell behind all answers.
    more: std::vec::IntoIter<[u64; 2]>,
    /// The reason why some answers are undecided; empty if none is.
    failure: String,
    /// The names of the counters that were damaged.
    damaged: Vec<Vec<u8>>,
}

impl Reply {
    /// Parses the reply to groups with this many counters in all.
    ///
    /// # Errors
    /// [`StoreError::Answer`] if it is not a reply of the script.
    pub fn new(bytes: &[u8], counters: usize) -> Result<Reply, StoreError> {
        let (at, bytes) = bytes.split_first_chunk::<TIME>().ok_or(StoreError::Answer)?;
        let (answers, failure) = bytes.split_at_checked(counters * ANSWER).ok_or(StoreError::Answer)?;
        let (answers, _) = answers.as_chunks::<ANSWER>();
        let told = answers.iter().filter(|[flags, ..]| flags & TELLS_MORE != 0).count();
        let (more, failure) = failure.split_at_checked(told * MORE).ok_or(StoreError::Answer)?;
        let numbers = more.as_chunks().0.iter().map(|bytes| time(*bytes)).collect::<Result<Vec<_>, _>>()?;
        let failure = String::from_utf8_lossy(failure).into_owned();
        let (answers, more) = (answers.to_vec(), numbers.as_chunks().0.to_vec().into_iter());
        Ok(Reply { at_ms: time(*at)?, answers, taken: 0, more, failure, damaged: Vec::new() })
    }

    /// Returns whether a node of a cluster left the next group undecided because it does not have one of its counters.
    pub fn is_elsewhere(&self, group: &Group) -> bool {
        let answers = self.answers.get(self.taken..self.taken + group.counters());
        answers.is_some_and(|answers| answers.iter().any(|[allowed, ..]| *allowed == ELSEWHERE))
    }

    /// Returns the verdicts on the next group.
    ///
    /// # Errors
    /// If it could not be decided.
    pub fn next(&mut self, group: &Group) -> Result<Verdicts, StoreError> {
        let from = self.taken;
        self.taken += group.counters();
        let answers = self.answers.get(from..self.taken).ok_or(StoreError::Answer)?;
        if answers.iter().any(|[allowed, ..]| *allowed == UNDECIDED) {
            return Err(StoreError::Counter(self.failure.clone()));
        }
        let damaged = group.keys().zip(answers).filter(|(_, [allowed, ..])| allowed & DAMAGED != 0);
        self.damaged.extend(damaged.map(|(key, _)| key.to_vec()));
        group.verdicts(self.at_ms, answers, &mut self.more)
    }

    /// Returns the names of the damaged counters in the groups read so far.
    pub fn into_damaged(self) -> Vec<Vec<u8>> {
        self.damaged
    }
}

fn verdict(answer: &[u8; ANSWER]) -> Result<Verdict, StoreError> {
    /// The script's value for a request that can never pass.
    const NEVER: f64 = -1.0;
    let [allowed, numbers @ ..] = answer;
    let (numbers, _) = numbers.as_chunks::<8>();
    let [left, reset_after, retry_after, delay] = *numbers else { return Err(StoreError::Answer) };
    let left = f64::from_le_bytes(left);
    let is_count = left.fract() == 0.0 && left.abs() < MAX_HITS as f64;
    // A limit that counts denials may have counted more than its number.
    let (remaining, excess) = match is_count {
        false => return Err(StoreError::Answer),
        true if left < 0.0 => (0, Some(-left as u64)),
        true => (left as u64, None),
    };
    Ok(Verdict {
        allowed: match allowed & !DAMAGED {
            0 => false,
            1 => true,
            _ => return Err(StoreError::Answer),
        },
        remaining,
        excess,
        reset_after_ms: time(reset_after)?,
        retry_after_ms: if f64::from_le_bytes(retry_after) == NEVER { None } else { Some(time(retry_after)?) },
        delay_ms: time(delay)?,
        ..Verdict::NOTHING
    })
}

/// Parses the answer of a budget, given what budgets tell behind all answers. If it allows, its last two numbers tell
/// what streams hold.
fn of_budget(answer: &[u8; ANSWER], more: &mut impl Iterator<Item = [u64; 2]>) -> Result<Verdict, StoreError> {
    /// In one number: the number of holds, and so many times the time until the first of them ends.
    const HOLDS_TOLD: u64 = 16_384;
    let [flags, numbers @ ..] = *answer;
    let tells_more = flags & TELLS_MORE != 0;
    let [extra, learned] = if tells_more { more.next().ok_or(StoreError::Answer)? } else { [0; 2] };
    let mut answer = [flags & !TELLS_MORE; ANSWER];
    answer[1..].copy_from_slice(&numbers);
    let verdict = Verdict { extra, learned, ..verdict(&answer)? };
    let (Verdict { allowed: true, delay_ms: hits, .. }, Some(told)) = (verdict, verdict.retry_after_ms) else {
        return Ok(verdict);
    };
    let held = Held { hits, holds: (told % HOLDS_TOLD) as u32, first_ends_ms: told / HOLDS_TOLD };
    Ok(Verdict { retry_after_ms: Some(0), delay_ms: 0, held: Some(held), ..verdict })
}

/// Parses the answer about leases.
fn granted(answer: &[u8; ANSWER]) -> Result<Granted, StoreError> {
    let Verdict { remaining, reset_after_ms, retry_after_ms, .. } = verdict(answer)?;
    let out = retry_after_ms.and_then(|out| u32::try_from(out).ok()).ok_or(StoreError::Answer)?;
    let hits = u32::try_from(remaining).map_err(|_| StoreError::Answer)?;
    Ok(Granted { hits, until_ms: reset_after_ms, out })
}

/// Parses a time in milliseconds: a whole number less than 2^53.
fn time(bytes: [u8; 8]) -> Result<u64, StoreError> {
    let time = f64::from_le_bytes(bytes);
    let is_time = time.fract() == 0.0 && (0.0..MAX_HITS as f64).contains(&time);
    if is_time { Ok(time as u64) } else { Err(StoreError::Answer) }
}
