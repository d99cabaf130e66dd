//! What the Lua scripts are asked, and what they reply.

use std::borrow::Borrow;

use deadpool_redis::redis::{Cmd, cmd};
use smallvec::SmallVec;

use super::source::SCRIPTS;
pub use super::source::Scripts;
use crate::algorithm::{Algorithm, Ask, FIGURES, MAX_HITS, Verdict};
use crate::descriptor::Role;
use crate::store::memory::{Clock, SystemClock};
use crate::store::{Check, CheckVerdict, Key, Occasion, Recorded, StoreError, Verdicts, group};

/// Bytes that ask one check, and more than ask for its penalty, say what it takes back, or what to record: four flags,
/// and hits, number, period and the algorithm's own figures as doubles.
const QUESTION: usize = 4 + (3 + FIGURES) * 8;
/// Bytes in the reply before the counters: the time of all decisions, as a double.
pub const TIME: usize = 8;
/// Bytes in the reply for one counter: whether it is allowed, what remains, and three times as doubles.
pub const ANSWER: usize = 1 + 4 * 8;
/// In place of whether it is allowed, where the request of the check could not be decided.
const UNDECIDED: u8 = 2;
/// The same where that is because a node of a cluster does not have one of its counters.
const ELSEWHERE: u8 = 3;

/// In which slots of a Redis Cluster counters lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// There are none: it is no cluster.
    None,
    /// All of them in this one.
    One(u16),
    /// In several.
    Several,
}

/// A request as it travels: a group of checks.
pub struct Group {
    /// The keys, one after the other, and then the questions.
    bytes: Vec<u8>,
    /// Where each key ends.
    keys: SmallVec<[usize; 4]>,
    /// For each check, what else has a name.
    beside: SmallVec<[Beside; 4]>,
    /// The algorithm of the check that is all of it, where nothing but that is to be done.
    alone: Option<Algorithm>,
    slots: Slots,
}

/// What of a check has a name beside its counter.
#[derive(Clone, Copy)]
struct Beside {
    /// The counter of its penalty.
    penalty: bool,
    /// The page of its records.
    page: bool,
}

impl Group {
    /// Of these checks.
    pub fn new<C: Borrow<Check>>(checks: &[C]) -> Group {
        Group::by_clock(checks, &SystemClock)
    }

    /// The same in a process with this clock, which windows of a calendar are told by.
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
            let penalty = check.penalized();
            penalty.iter().for_each(|penalized| name(&penalized.key));
            let page = check.recorded.as_ref().map(|recorded| recorded.usage.period());
            page.iter().for_each(|period| name(&check.key.of_page(*period, clock.now())));
            beside.push(Beside { penalty: penalty.is_some(), page: page.is_some() });
        }
        for (i, check) in checks.iter().map(Borrow::borrow).enumerate() {
            let joined = i > 0 && checks[i - 1].borrow().descriptor == check.descriptor;
            question(&mut bytes, check, (joined, i + 1 < checks.len()), clock);
        }
        let alone = match checks {
            // The script for a check alone knows no resets, takes nothing back, and keeps no records.
            [check] => Some(check.borrow()).filter(|check| {
                let is_rare = matches!(check.ask, Ask::Reset | Ask::TakeBack(_));
                check.counters() == 1 && check.recorded.is_none() && !is_rare
            }),
            _ => None,
        };
        let alone = alone.map(|check| check.limit.algorithm());
        Group { bytes, keys, beside, alone, slots: Slots::None }
    }

    /// The same, whose counters lie there.
    #[must_use]
    pub fn within(self, slots: Slots) -> Group {
        Group { slots, ..self }
    }

    /// How many checks there are.
    pub fn checks(&self) -> usize {
        self.beside.len()
    }

    /// How many counters they ask, pages of records among them.
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

    /// The verdicts, in what the script says of these counters.
    fn verdicts(&self, at_ms: u64, answers: &[[u8; ANSWER]]) -> Result<Verdicts, StoreError> {
        let mut answers = answers.iter();
        let mut next = || verdict(answers.next().ok_or(StoreError::Answer)?);
        let check = |beside: &Beside| {
            let own = next()?;
            let ban = if beside.penalty { Some(next()?) } else { None };
            if beside.page {
                next()?;
            }
            Ok(Some(CheckVerdict { own, ban, is_known: false, at_ms }))
        };
        self.beside.iter().map(check).collect()
    }
}

/// The call that decides requests, one after the other.
pub fn call<'g>(groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    call_of(&SCRIPTS, groups)
}

/// The same for other scripts: tests run them behind a clock of theirs.
pub fn call_of<'g>(scripts: &Scripts, groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    let groups = groups.into_iter();
    let counters: usize = groups.clone().map(Group::counters).sum();
    let mut first_two = groups.clone();
    let first = first_two.next();
    let slots = first.map_or(Slots::None, |group| group.slots);
    let is_scattered = slots == Slots::Several || first_two.clone().any(|group| group.slots != slots);
    let sha1 = match (first.and_then(|group| group.alone), first_two.next()) {
        (Some(algorithm), None) => scripts.alone(algorithm),
        _ if is_scattered => scripts.scattered(),
        _ => scripts.all(),
    };
    let mut questions = Vec::with_capacity(counters * QUESTION);
    groups.clone().for_each(|group| questions.extend_from_slice(group.questions()));
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

/// The commands that let Redis know the scripts.
pub fn load(is_cluster: bool) -> impl Iterator<Item = Cmd> {
    SCRIPTS.load(is_cluster)
}

/// One check as `lua/prelude.lua` unpacks it: `joined` to the one before if both are of one rule, and `followed` by
/// another of the same request.
fn question(questions: &mut Vec<u8>, check: &Check, (joined, followed): (bool, bool), clock: &impl Clock) {
    let Check { limit, ask, caller, .. } = check;
    let role = match check.role {
        Role::Enforced => 0,
        Role::Quota => 1,
        Role::Shadow => 2,
    };
    let penalty = check.penalized().map(|penalized| penalized.penalty);
    let flags = role + if joined { 4 } else { 0 } + if followed { 8 } else { 0 };
    let extra = match ask {
        Ask::Reset => 2,
        Ask::TakeBack(_) => 4,
        Ask::Take(_) | Ask::Peek | Ask::Refund(_) => 0,
    };
    let recorded = check.recorded.as_ref();
    let extras = u8::from(penalty.is_some()) + extra + if recorded.is_some() { 8 } else { 0 };
    questions.extend([limit.algorithm() as u8 + 1, flags, u8::from(limit.count_denied()), extras]);
    // Every one of them is whole and at most 2^53, so that nothing is rounded.
    let figures = limit.figures(*caller, || clock.now()).map(|figure| figure as f64);
    let values = [ask.hits() as f64, f64::from(limit.number()), limit.period_ms() as f64];
    let charge = ask.charge().map(|charge| [charge.at_ms as f64, charge.reset_after_ms as f64]);
    let penalty = penalty.map(|penalty| penalty.figures().map(|figure| figure as f64));
    let more = charge.into_iter().flatten().chain(penalty.into_iter().flatten());
    for value in values.into_iter().chain(figures).chain(more) {
        questions.extend(value.to_le_bytes());
    }
    recorded.iter().for_each(|recorded| record(questions, recorded, check.costs_denied()));
}

/// What is to be recorded, as `lua/prelude.lua` unpacks it.
fn record(questions: &mut Vec<u8>, Recorded { usage, tag, occasion }: &Recorded, costs_denied: bool) {
    let (occasion, at_ms, cost) = match *occasion {
        Occasion::Decided => (0, 0, 0.0),
        Occasion::Denied { hits } => (1, 0, hits as f64),
        Occasion::Undone { at_ms, cost } => (2, at_ms, cost as f64),
        Occasion::Exempt { hits } => (3, 0, hits as f64),
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

/// What the script says to all the groups of a call.
pub struct Reply {
    /// When Redis decided.
    at_ms: u64,
    answers: Vec<[u8; ANSWER]>,
    /// How many of them have been taken.
    taken: usize,
    /// Why some of them are undecided; empty where none is.
    failure: String,
}

impl Reply {
    /// The reply to groups of so many counters.
    ///
    /// # Errors
    /// [`StoreError::Answer`] where it is not the reply of the script.
    pub fn new(bytes: &[u8], counters: usize) -> Result<Reply, StoreError> {
        let (at, bytes) = bytes.split_first_chunk::<TIME>().ok_or(StoreError::Answer)?;
        let (answers, failure) = bytes.split_at_checked(counters * ANSWER).ok_or(StoreError::Answer)?;
        let (answers, _) = answers.as_chunks();
        let failure = String::from_utf8_lossy(failure).into_owned();
        Ok(Reply { at_ms: time(*at)?, answers: answers.to_vec(), taken: 0, failure })
    }

    /// Whether a node of a cluster has not decided the next group because it does not have one of its counters.
    pub fn is_elsewhere(&self, group: &Group) -> bool {
        let answers = self.answers.get(self.taken..self.taken + group.counters());
        answers.is_some_and(|answers| answers.iter().any(|[allowed, ..]| *allowed == ELSEWHERE))
    }

    /// The verdicts on the next group.
    ///
    /// # Errors
    /// Where it could not be decided.
    pub fn next(&mut self, group: &Group) -> Result<Verdicts, StoreError> {
        let from = self.taken;
        self.taken += group.counters();
        let answers = self.answers.get(from..self.taken).ok_or(StoreError::Answer)?;
        if answers.iter().any(|[allowed, ..]| *allowed == UNDECIDED) {
            return Err(StoreError::Counter(self.failure.clone()));
        }
        group.verdicts(self.at_ms, answers)
    }
}

fn verdict(answer: &[u8; ANSWER]) -> Result<Verdict, StoreError> {
    /// What the script says of a request that can never pass.
    const NEVER: f64 = -1.0;
    let [allowed, numbers @ ..] = answer;
    let (numbers, _) = numbers.as_chunks::<8>();
    let [left, reset_after, retry_after, delay] = *numbers else { return Err(StoreError::Answer) };
    let left = f64::from_le_bytes(left);
    let is_count = left.fract() == 0.0 && left.abs() <= f64::from(u32::MAX);
    // What counts denials may have counted more than its number.
    let (remaining, excess) = match is_count {
        false => return Err(StoreError::Answer),
        true if left < 0.0 => (0, Some(-left as u32)),
        true => (left as u32, None),
    };
    Ok(Verdict {
        allowed: match allowed {
            0 => false,
            1 => true,
            _ => return Err(StoreError::Answer),
        },
        remaining,
        excess,
        reset_after_ms: time(reset_after)?,
        retry_after_ms: if f64::from_le_bytes(retry_after) == NEVER { None } else { Some(time(retry_after)?) },
        delay_ms: time(delay)?,
    })
}

/// A time in milliseconds: a whole number, less than 2^53.
fn time(bytes: [u8; 8]) -> Result<u64, StoreError> {
    let time = f64::from_le_bytes(bytes);
    let is_time = time.fract() == 0.0 && (0.0..MAX_HITS as f64).contains(&time);
    if is_time { Ok(time as u64) } else { Err(StoreError::Answer) }
}
