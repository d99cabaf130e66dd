//! Commands that no test runs, each with the reason, and what is checked instead.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::tollgate;

/// Checks the words of a command as far as possible without running it.
pub type Trial = fn(&[&str]);

/// Programs that are not run, with the reason, and the check of their commands.
const UNRUN: &[(&str, &str, Trial)] = &[
    ("make", "it builds, and runs the tests themselves", make),
    ("cargo", "it builds, and runs the tests themselves", cargo),
    ("docker", "a container needs a daemon", files),
    ("kubectl", "it needs a cluster", kubectl),
    ("helm", "it needs a cluster, and `make e2e` renders the chart", files),
    ("kind", "it needs a cluster", files),
    ("cosign", "it asks for what a release has signed, and `make e2e` signs and checks one", cosign),
    ("grpcurl", "it is installed nowhere here", grpcurl),
];

/// Returns the check of a command that is not run.
pub fn trial(command: &str) -> Option<Trial> {
    let name = command.split_whitespace().next()?;
    UNRUN.iter().find(|(program, ..)| *program == name).map(|(.., trial)| *trial)
}

/// The words of a command, as far as a trial needs them.
pub fn words(command: &str) -> Vec<&str> {
    let command = command.split(" #").next().unwrap();
    command
        .split(['\'', '\\', '\n'])
        .flat_map(|part| if part.starts_with('{') { vec![part] } else { spaced(part) })
        .collect()
}

fn spaced(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn make(words: &[&str]) {
    let makefile = fs::read_to_string("Makefile").unwrap();
    for word in &words[1..] {
        let begins = match word.split_once('=') {
            Some((name, _)) => format!("{name} ?="),
            None => format!("{word}:"),
        };
        assert!(makefile.lines().any(|line| line.starts_with(&begins)), "make knows no {word}");
    }
}

fn cargo(words: &[&str]) {
    for pair in words.windows(2) {
        let homes: &[String] = match pair {
            ["--example", name] => &[format!("examples/{name}.rs")],
            ["--bench", name] => &[format!("benches/{name}.rs"), format!("benches/{name}/main.rs")],
            ["--test", name] => &[format!("tests/{name}.rs"), format!("tests/{name}/main.rs")],
            _ => continue,
        };
        assert!(homes.iter().any(|home| Path::new(home).exists()), "cargo knows no {}", pair[1]);
    }
    let is_ours = words.get(1) == Some(&"run") && !words.contains(&"--example");
    if let Some(dashes) = words.iter().position(|word| *word == "--").filter(|_| is_ours) {
        tollgate_knows(&words[dashes + 1..]);
    }
}

/// A command of ours in a pod is one that the command line knows.
fn kubectl(words: &[&str]) {
    files(words);
    if let Some(dashes) = words.windows(2).position(|pair| pair == ["--", "tollgate"]) {
        tollgate_knows(&words[dashes + 2..]);
    }
}

fn files(words: &[&str]) {
    for word in words.iter().filter(|word| word.starts_with("deploy/") || word.starts_with("config/")) {
        assert!(Path::new(word).exists(), "{word} is not there");
    }
}

/// The workflow that must have signed is ours, and the bundle has the name of the published one.
fn cosign(words: &[&str]) {
    for identity in words.iter().filter_map(|word| word.strip_prefix("/OWNER/NAME/")) {
        assert!(Path::new(identity.trim_end_matches('@')).exists(), "{identity} is not there");
    }
    let publish = fs::read_to_string("scripts/release/publish.sh").unwrap();
    for pair in words.windows(2).filter(|pair| pair[0] == "--bundle") {
        assert!(publish.contains(pair[1]), "{} is not published", pair[1]);
    }
}

/// The request that it sends is one of Envoy's.
fn grpcurl(words: &[&str]) {
    let body = words.iter().find(|word| word.starts_with('{')).expect("a request");
    let request: Value = serde_json::from_str(body).unwrap();
    assert!(request["domain"].is_string() && request["descriptors"][0]["entries"][0]["key"].is_string(), "{request}");
    let method = words.last().unwrap();
    assert_eq!(*method, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
}

/// The command line knows every command and flag: with `--help` at the end it does nothing.
pub fn tollgate_knows(arguments: &[&str]) {
    // Replaces the placeholder for a shell.
    let argument = |word: &&'_ str| if *word == "SHELL" { "bash".to_owned() } else { (*word).to_owned() };
    let arguments: Vec<String> =
        arguments.iter().take_while(|word| ![">", "|", "&&"].contains(*word)).map(argument).collect();
    let output = tollgate::command().args(&arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "tollgate {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    // Help looks at no values: an unknown flag has them reported, and runs nothing either.
    let output = tollgate::command().args(&arguments).arg("--no-such-flag").output().unwrap();
    let report = String::from_utf8(output.stderr).unwrap();
    let wrong: Vec<&str> = report.lines().filter(|line| line.contains(": must be one of ")).collect();
    assert!(wrong.is_empty(), "tollgate {arguments:?}: {wrong:?}");
}
