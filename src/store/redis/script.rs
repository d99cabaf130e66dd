//! The Lua script: one text made of `lua/`, its arguments and its reply.

use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

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

/// The call that decides requests, each a group of checks, one after the other.
pub fn call(requests: &[&[Check]]) -> Cmd {
    call_by(&SHA1, requests)
}

/// The same for a script of this hash. Tests run the script behind a clock of theirs.
pub fn call_by(sha1: &str, requests: &[&[Check]]) -> Cmd {
    let checks: usize = requests.iter().map(|checks| checks.len()).sum();
    let mut questions = Vec::with_capacity(checks * QUESTION);
    let mut call = cmd("EVALSHA");
    call.arg(sha1).arg(checks);
    for checks in requests {
        for (i, check) in checks.iter().enumerate() {
            call.arg(check.key.as_str());
            let joined = i > 0 && checks[i - 1].descriptor == check.descriptor;
            question(&mut questions, check, joined, i + 1 < checks.len());
        }
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

/// The verdicts in a reply to so many checks.
///
/// # Errors
/// [`StoreError::Answer`] where it is not the reply of the script.
pub fn verdicts(reply: &[u8], checks: usize) -> Result<Verdicts, StoreError> {
    let (answers, []) = reply.as_chunks::<ANSWER>() else { return Err(StoreError::Answer) };
    if answers.len() != checks {
        return Err(StoreError::Answer);
    }
    Ok(answers.iter().map(verdict).collect())
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
