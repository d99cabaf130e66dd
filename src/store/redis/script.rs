//! The Lua script: one text made of `lua/`, its arguments and its reply.

use std::ops::Range;
use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};
use smallvec::SmallVec;

use crate::algorithm::{Algorithm, FIGURES, Verdict};
use crate::descriptor::Role;
use crate::store::{Check, StoreError, Verdicts};

/// The whole script: the prelude, what the buckets share, every algorithm in the order of [`Algorithm::SCRIPT`], and the group's decision.
pub static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let algorithms = Algorithm::SCRIPT.iter().map(|algorithm| algorithm.lua());
    let mut parts = vec![include_str!("../../../lua/prelude.lua"), include_str!("../../../lua/bucket.lua")];
    parts.extend(algorithms);
    parts.push(include_str!("../../../lua/decide.lua"));
    parts.join("\n")
});

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(&SOURCE).get_hash().to_owned());

/// Bytes that ask one check: three flags, and hits, number, period and the algorithm's own figures as doubles.
const QUESTION: usize = 3 + (3 + FIGURES) * 8;
/// Bytes in the reply for one check: whether it is allowed, what remains, and three times as doubles.
pub const ANSWER: usize = 1 + 4 + 3 * 8;
/// In place of whether it is allowed, where the request of the check could not be decided.
const UNDECIDED: u8 = 2;

/// A request as it travels: a group of checks.
pub struct Group {
    /// The keys, one after the other, and then the questions.
    bytes: Vec<u8>,
    /// Where each key ends.
    keys: SmallVec<[usize; 4]>,
}

impl Group {
    /// Of these checks.
    pub fn new(checks: &[Check]) -> Group {
        let size = checks.iter().map(|check| check.key.as_str().len() + QUESTION).sum();
        let (mut bytes, mut keys) = (Vec::with_capacity(size), SmallVec::with_capacity(checks.len()));
        for check in checks {
            bytes.extend_from_slice(check.key.as_str().as_bytes());
            keys.push(bytes.len());
        }
        for (i, check) in checks.iter().enumerate() {
            let joined = i > 0 && checks[i - 1].descriptor == check.descriptor;
            question(&mut bytes, check, joined, i + 1 < checks.len());
        }
        Group { bytes, keys }
    }

    /// How many checks there are.
    pub fn checks(&self) -> usize {
        self.keys.len()
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.keys.iter().copied());
        begins.zip(&self.keys).map(|(begin, end)| &self.bytes[begin..*end])
    }

    fn questions(&self) -> &[u8] {
        &self.bytes[self.keys.last().copied().unwrap_or(0)..]
    }
}

/// The call that decides requests, one after the other.
pub fn call<'g>(groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    call_by(&SHA1, groups)
}

/// The same for a script of this hash. Tests run the script behind a clock of theirs.
pub fn call_by<'g>(sha1: &str, groups: impl IntoIterator<Item = &'g Group, IntoIter: Clone>) -> Cmd {
    let groups = groups.into_iter();
    let checks: usize = groups.clone().map(Group::checks).sum();
    let mut questions = Vec::with_capacity(checks * QUESTION);
    let mut call = cmd("EVALSHA");
    call.arg(sha1).arg(checks);
    for group in groups {
        for key in group.keys() {
            call.arg(key);
        }
        questions.extend_from_slice(group.questions());
    }
    call.arg(questions);
    call
}

/// The command that lets Redis know the script.
pub fn load() -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(&*SOURCE);
    load
}

/// One check as `lua/prelude.lua` unpacks it, `<BBBdddddddd`: `joined` to the one before if both are of one rule, and `followed` by another
/// of the same request.
fn question(questions: &mut Vec<u8>, check: &Check, joined: bool, followed: bool) {
    let limit = &check.limit;
    let role = match check.role {
        Role::Enforced => 0,
        Role::Quota => 1,
        Role::Shadow => 2,
    };
    let flags = role + if joined { 4 } else { 0 } + if followed { 8 } else { 0 };
    questions.extend([limit.algorithm() as u8 + 1, flags, u8::from(limit.count_denied())]);
    // Every one of them is whole and at most 2^53, so that nothing is rounded.
    let figures = limit.arguments().map(|figure| figure as f64);
    for value in
        [check.hits.get() as f64, f64::from(limit.number()), limit.period_ms() as f64].into_iter().chain(figures)
    {
        questions.extend(value.to_le_bytes());
    }
}

/// What the script says to all the checks of a call.
pub struct Reply {
    answers: Vec<[u8; ANSWER]>,
    /// Why some of them are undecided; empty where none is.
    failure: String,
}

impl Reply {
    /// The reply to so many checks.
    ///
    /// # Errors
    /// [`StoreError::Answer`] where it is not the reply of the script.
    pub fn new(bytes: &[u8], checks: usize) -> Result<Reply, StoreError> {
        let (answers, failure) = bytes.split_at_checked(checks * ANSWER).ok_or(StoreError::Answer)?;
        let (answers, _) = answers.as_chunks();
        Ok(Reply { answers: answers.to_vec(), failure: String::from_utf8_lossy(failure).into_owned() })
    }

    /// The verdicts of a request, by the places of its checks.
    ///
    /// # Errors
    /// Where it could not be decided.
    pub fn verdicts(&self, checks: Range<usize>) -> Result<Verdicts, StoreError> {
        let answers = self.answers.get(checks).ok_or(StoreError::Answer)?;
        if answers.iter().any(|[allowed, ..]| *allowed == UNDECIDED) {
            return Err(StoreError::Counter(self.failure.clone()));
        }
        Ok(answers.iter().map(verdict).collect())
    }
}

fn verdict(answer: &[u8; ANSWER]) -> Verdict {
    let [allowed, a, b, c, d, times @ ..] = answer;
    let (times, _) = times.as_chunks::<8>();
    // Whole numbers, each less than 2^53; negative means never.
    let time =
        |place: usize| Some(f64::from_le_bytes(times[place])).filter(|time| *time >= 0.0).map(|time| time as u64);
    Verdict {
        allowed: *allowed == 1,
        remaining: u32::from_le_bytes([*a, *b, *c, *d]),
        reset_after_ms: time(0).unwrap_or_default(),
        retry_after_ms: time(1),
        delay_ms: time(2).unwrap_or_default(),
    }
}
