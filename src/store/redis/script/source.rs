//! The scripts, assembled from `lua/`: one that decides any call without leases, one that decides any call, variants of
//! both for counters in several slots of a cluster, and for each algorithm one that decides a call of a single check.
//! In every call Redis runs the whole script, including its definitions. So the scripts for a single check have only
//! those that they need, and the others make most of theirs when a check needs them. Those of leases added a sixth to a
//! call of two checks, measured.

use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

use crate::engine::algorithm::Algorithm;
use crate::engine::algorithm::{leased, penalty};

const PRELUDE: &str = include_str!("../../../../lua/prelude.lua");
const BUCKET: &str = include_str!("../../../../lua/bucket.lua");
const USAGE: &str = include_str!("../../../../lua/usage.lua");
const DECIDE: &str = include_str!("../../../../lua/decide.lua");
const ALONE: &str = include_str!("../../../../lua/alone.lua");
const SCATTERED: &str = include_str!("../../../../lua/scattered.lua");

/// The lines of [`DECIDE`] that are replaced by the algorithms, the penalty, the records of usage, and the definitions
/// of leases.
const ALGORITHMS: &str = "  -- ALGORITHMS\n";
const PENALTIES: &str = "  -- PENALTY\n";
const RECORDS: &str = "  -- USAGE\n";
const LEASES: &str = "  local lease_of, decide_leased, answer_leases\n";

/// The line of [`ALONE`] that is replaced by an algorithm and its definitions.
const DEFINITIONS: &str = "  -- DEFINITIONS\n";

/// The scripts that are sent to Redis.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::behind(""));

/// A set of scripts.
pub struct Scripts {
    /// Without leases, and with them.
    all: [Text; 2],
    /// The same for counters in several slots.
    scattered: [Text; 2],
    /// In the order of [`Algorithm::ALL`].
    alone: Vec<Text>,
}

struct Text {
    source: String,
    sha1: String,
}

impl Scripts {
    /// Returns scripts with this text in front of each: tests insert a clock.
    pub fn behind(text: &str) -> Scripts {
        let script = |source: String| {
            let source = format!("{text}{source}");
            Text { sha1: Script::new(&source).get_hash().to_owned(), source }
        };
        Scripts {
            all: [false, true].map(|has_leases| script(all(has_leases))),
            scattered: [false, true].map(|has_leases| script([SCATTERED, &all(has_leases)].join("\n"))),
            alone: Algorithm::ALL.iter().map(|algorithm| script(alone(*algorithm))).collect(),
        }
    }

    /// Returns the commands that load the scripts. Only a cluster needs those for several slots.
    pub fn load(&self, is_cluster: bool) -> impl Iterator<Item = Cmd> {
        let scattered = self.scattered.iter().filter(move |_| is_cluster);
        self.all.iter().chain(scattered).chain(&self.alone).map(|text| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&text.source);
            load
        })
    }

    /// Returns the hash of the script for any call, with or without leases.
    pub(crate) fn all(&self, has_leases: bool) -> &str {
        &self.all[usize::from(has_leases)].sha1
    }

    /// Returns the hash of the script for any call with counters in several slots, which get the keys as arguments
    /// after the checks.
    pub(crate) fn scattered(&self, has_leases: bool) -> &str {
        &self.scattered[usize::from(has_leases)].sha1
    }

    /// Returns the hash of the script for a call with one check of this algorithm.
    pub(crate) fn alone(&self, algorithm: Algorithm) -> &str {
        &self.alone[algorithm as usize].sha1
    }
}

/// Returns the script that decides any call, with leases if calls have them. Definitions that it always needs come
/// first. Each algorithm, the penalty and the records of usage are within a function, together with those that only
/// they need.
pub(crate) fn all(has_leases: bool) -> String {
    let decide = if has_leases { DECIDE.replace(LEASES, leased::LUA) } else { DECIDE.to_owned() };
    let definitions: Vec<&str> = PRELUDE.split("\n\n").chain([BUCKET]).collect();
    let first = needed(&definitions, &[&decide]);
    let others: Vec<&str> = definitions.into_iter().filter(|definition| !first.contains(definition)).collect();
    let with_needed = |text: &str| [needed(&others, &[text]), vec![text]].concat().join("\n");
    let algorithms = Algorithm::ALL.iter().map(|algorithm| {
        let number = *algorithm as usize + 1;
        let lua = with_needed(&algorithm.lua().replace("#algorithms + 1", &number.to_string()));
        format!("  if number == {number} then\n{lua}  end\n")
    });
    let decide = decide.replace(ALGORITHMS, &algorithms.collect::<String>());
    let decide = decide.replace(PENALTIES, &with_needed(penalty::LUA)).replace(RECORDS, &with_needed(USAGE));
    [first, vec![&decide]].concat().join("\n")
}

/// Returns the script that decides one check by this algorithm, with the definitions that both use.
fn alone(algorithm: Algorithm) -> String {
    let (prelude, lua) = (registered_alone(PRELUDE), registered_alone(algorithm.lua()));
    let definitions: Vec<&str> = prelude.split("\n\n").chain([BUCKET]).collect();
    let definitions = [needed(&definitions, &[ALONE, &lua]), vec![&lua]].concat().join("\n");
    ALONE.replace(DEFINITIONS, &definitions)
}

/// Returns the definitions that these texts use, and those that they use in turn. Each uses only those before it.
fn needed<'d>(definitions: &[&'d str], texts: &[&str]) -> Vec<&'d str> {
    let mut needed: Vec<&str> = Vec::new();
    for definition in definitions.iter().rev() {
        let is_used = |name| texts.iter().chain(&needed).any(|text| names(text, name));
        if defined(definition).any(is_used) {
            needed.insert(0, definition);
        }
    }
    needed
}

/// Returns the text with local variables in place of the tables of algorithms and openers.
fn registered_alone(text: &str) -> String {
    let tables = text.replace("local algorithms = {}", "local algorithm").replace("local openers = {}", "local open");
    tables.replace("algorithms[#algorithms + 1]", "algorithm").replace("openers[#algorithms + 1]", "open")
}

/// Returns the names that a paragraph of Lua defines.
fn defined(paragraph: &str) -> impl Iterator<Item = &str> {
    let definitions = paragraph.lines().filter_map(|line| line.strip_prefix("local "));
    definitions.filter_map(|rest| words(rest.strip_prefix("function ").unwrap_or(rest)).next())
}

/// Returns whether the text uses this name outside comments.
fn names(text: &str, name: &str) -> bool {
    let code = text.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    code.flat_map(words).any(|word| word == name)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_without_leases_has_none_of_their_definitions() {
        let of = |has_leases| defined(&all(has_leases)).map(str::to_owned).collect::<Vec<_>>();
        let [without, with] = [false, true].map(of);
        for name in ["settle_leased", "lends", "unpack_leased"] {
            assert!(!without.iter().any(|defined| defined == name) && with.iter().any(|defined| defined == name));
        }
        for line in [ALGORITHMS, PENALTIES, RECORDS, LEASES] {
            assert!(DECIDE.contains(line) && !all(true).contains(line), "definitions are in the place of {line:?}");
        }
    }

    #[test]
    fn a_script_for_any_call_makes_few_definitions_before_a_check_needs_them() {
        let source = all(false);
        let (always, later) = source.split_once("local function define(number)\n").unwrap();
        for name in ["write", "ask", "damaged", "algorithms", "openers"] {
            assert!(defined(always).any(|defined| defined == name), "{name}");
        }
        for name in ["bucket", "open_list", "mul_div", "steady", "penalize", "record", "decide_slots"] {
            assert!(!defined(always).any(|defined| defined == name), "{name}");
            assert!(defined(later).any(|defined| defined == name), "{name}");
        }
    }

    #[test]
    fn a_script_for_a_check_alone_has_the_definitions_that_it_names_and_no_others() {
        for (algorithm, has) in [
            (Algorithm::FixedWindow, &["NEVER", "MAX_COUNT", "algorithm", "open", "write", "steady", "add"][..]),
            (Algorithm::SlidingLog, &["list_get", "list_write", "open_list", "steady", "NEVER"]),
            (Algorithm::TokenBucket, &["bucket", "steady", "mul_div", "REMEMBERED"]),
        ] {
            let source = alone(algorithm);
            let found: Vec<&str> = defined(&source).collect();
            assert!(!source.contains("[#algorithms + 1]"), "{algorithm:?} is registered");
            for name in has {
                assert!(found.contains(name), "{algorithm:?} lacks {name}: {found:?}");
            }
        }
        let fixed = alone(Algorithm::FixedWindow);
        for name in ["mul_div", "open_list", "list_get", "bucket", "penalize", "algorithms", "openers"] {
            assert!(!defined(&fixed).any(|defined| defined == name), "{name}");
        }
    }
}
