//! The scripts, made of `lua/`: one that decides whatever a call asks, the same for counters that lie in several slots
//! of a cluster, and for each algorithm one that decides a check that is all of its call. Redis runs all of a script in
//! every call, its definitions too; the ones for a check alone have few.

use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

use crate::algorithm::{Algorithm, penalty};

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const BUCKET: &str = include_str!("../../../lua/bucket.lua");
const USAGE: &str = include_str!("../../../lua/usage.lua");
const DECIDE: &str = include_str!("../../../lua/decide.lua");
const ALONE: &str = include_str!("../../../lua/alone.lua");
const SCATTERED: &str = include_str!("../../../lua/scattered.lua");

/// The line of [`ALONE`] in whose place an algorithm and its definitions belong.
const DEFINITIONS: &str = "  -- DEFINITIONS\n";

/// What Redis is asked with.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::behind(""));

/// Scripts that belong together.
pub struct Scripts {
    all: Text,
    scattered: Text,
    /// In the order of [`Algorithm::ALL`].
    alone: Vec<Text>,
}

struct Text {
    source: String,
    sha1: String,
}

impl Scripts {
    /// With this text before each of them: tests bring a clock.
    pub fn behind(text: &str) -> Scripts {
        let script = |source: String| {
            let source = format!("{text}{source}");
            Text { sha1: Script::new(&source).get_hash().to_owned(), source }
        };
        Scripts {
            all: script(all()),
            scattered: script([SCATTERED, &all()].join("\n")),
            alone: Algorithm::ALL.iter().map(|algorithm| script(alone(*algorithm))).collect(),
        }
    }

    /// The commands that let Redis know them; that for several slots is of use in a cluster alone.
    pub fn load(&self, is_cluster: bool) -> impl Iterator<Item = Cmd> {
        let scattered = is_cluster.then_some(&self.scattered);
        std::iter::once(&self.all).chain(scattered).chain(&self.alone).map(|text| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(&text.source);
            load
        })
    }

    /// The hash of the one for any call.
    pub(super) fn all(&self) -> &str {
        &self.all.sha1
    }

    /// The hash of the one for any call whose counters lie in several slots, and come as arguments behind the checks.
    pub(super) fn scattered(&self) -> &str {
        &self.scattered.sha1
    }

    /// The hash of the one for a call that asks one check of this algorithm.
    pub(super) fn alone(&self, algorithm: Algorithm) -> &str {
        &self.alone[algorithm as usize].sha1
    }
}

/// The prelude, what the buckets share, the penalty, every algorithm in the order of [`Algorithm::ALL`], what records
/// their use, and what decides a group.
pub(super) fn all() -> String {
    let mut parts = vec![PRELUDE, BUCKET, penalty::LUA];
    parts.extend(Algorithm::ALL.iter().map(|algorithm| algorithm.lua()));
    parts.extend([USAGE, DECIDE]);
    parts.join("\n")
}

/// What decides a check by this algorithm, with the definitions that the two name.
fn alone(algorithm: Algorithm) -> String {
    let prelude = registered_alone(PRELUDE);
    let mut needed = registered_alone(algorithm.lua());
    // Each names only those before it.
    let definitions: Vec<&str> = prelude.split("\n\n").chain([BUCKET]).collect();
    for definition in definitions.into_iter().rev() {
        if defined(definition).any(|name| names(ALONE, name) || names(&needed, name)) {
            needed = [definition, &needed].join("\n");
        }
    }
    ALONE.replace(DEFINITIONS, &needed)
}

/// The text with local names where an algorithm and what opens its state have their places among others.
fn registered_alone(text: &str) -> String {
    let tables = text.replace("local algorithms = {}", "local algorithm").replace("local lists = {}", "local open");
    tables.replace("algorithms[#algorithms + 1]", "algorithm").replace("lists[#algorithms + 1]", "open")
}

/// The names that a paragraph of Lua defines for those behind it.
fn defined(paragraph: &str) -> impl Iterator<Item = &str> {
    let definitions = paragraph.lines().filter_map(|line| line.strip_prefix("local "));
    definitions.filter_map(|rest| words(rest.strip_prefix("function ").unwrap_or(rest)).next())
}

/// Whether it names this beside its comments.
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
        for name in ["mul_div", "open_list", "list_get", "bucket", "penalize", "algorithms", "lists"] {
            assert!(!defined(&fixed).any(|defined| defined == name), "{name}");
        }
    }
}
