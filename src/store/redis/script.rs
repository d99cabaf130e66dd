//! The Lua script: one text made of `lua/`, its arguments and its reply.

use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

use crate::algorithm::{Algorithm, FIGURES, Verdict};
use crate::descriptor::Role;
use crate::store::{Check, StoreError};

/// The whole script: the prelude, every algorithm in the order of [`Algorithm::SCRIPT`], and the group's decision.
pub static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let algorithms = Algorithm::SCRIPT.iter().map(|algorithm| algorithm.lua());
    let mut parts = vec![include_str!("../../../lua/prelude.lua")];
    parts.extend(algorithms);
    parts.push(include_str!("../../../lua/decide.lua"));
    parts.join("\n")
});

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(&SOURCE).get_hash().to_owned());

/// Bytes in the argument for one check: three flags, and hits, number, period and the algorithm's own figures as doubles.
const ARGUMENT: usize = 3 + (3 + FIGURES) * 8;
/// Integers in the reply for one check.
const INTEGERS: usize = 4;

/// The call that decides `checks`.
pub fn call(checks: &[Check]) -> Cmd {
    call_by(&SHA1, checks)
}

/// The same for a script of this hash. Tests run the script behind a clock of theirs.
pub fn call_by(sha1: &str, checks: &[Check]) -> Cmd {
    let mut call = cmd("EVALSHA");
    call.arg(sha1).arg(checks.len());
    for check in checks {
        call.arg(check.key.as_str());
    }
    let mut last = None;
    for check in checks {
        call.arg(&argument(check, last == Some(check.descriptor))[..]);
        last = Some(check.descriptor);
    }
    call
}

/// The command that lets Redis know the script.
pub fn load() -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(&*SOURCE);
    load
}

/// One check as `lua/prelude.lua` unpacks it, `<BBBdddddd`; joined to the one before it if both are for one descriptor.
fn argument(check: &Check, joined: bool) -> [u8; ARGUMENT] {
    let limit = &check.limit;
    let role = match check.role {
        Role::Enforced => 0,
        Role::Quota => 1,
        Role::Shadow => 2,
    };
    let mut argument = [0; ARGUMENT];
    let (flags, numbers) = argument.split_at_mut(3);
    let role = role + if joined { 4 } else { 0 };
    flags.copy_from_slice(&[limit.algorithm() as u8 + 1, role, u8::from(limit.count_denied())]);
    // Every one of them is whole and at most 2^53, so that nothing is rounded.
    let figures = limit.arguments().map(|figure| figure as f64);
    let values =
        [check.hits.get() as f64, f64::from(limit.number()), limit.period_ms() as f64].into_iter().chain(figures);
    for (place, value) in numbers.chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    argument
}

/// The verdicts in a reply to `checks` checks.
///
/// # Errors
/// [`StoreError::Answer`] where it is not the reply of the script.
pub fn verdicts(reply: &[i64], checks: usize) -> Result<Vec<Verdict>, StoreError> {
    if reply.len() != checks * INTEGERS {
        return Err(StoreError::Answer);
    }
    let verdict = |four: &[i64]| {
        let [allowed, remaining, reset_after, retry_after] = *four else { return None };
        Some(Verdict {
            allowed: allowed == 1,
            remaining: remaining.try_into().ok()?,
            reset_after_ms: reset_after.try_into().ok()?,
            retry_after_ms: if retry_after < 0 { None } else { Some(retry_after.try_into().ok()?) },
        })
    };
    reply.chunks_exact(INTEGERS).map(verdict).collect::<Option<_>>().ok_or(StoreError::Answer)
}
